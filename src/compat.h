/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every test of the server's version, spelt as in the newest core.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COMPAT_H
#define IM_COMPAT_H

#if PG_VERSION_NUM < 150000
#error index_mover needs PostgreSQL 15 or newer
#endif

#if PG_VERSION_NUM >= 160000
#include "storage/relfilelocator.h"
#else
#include "storage/relfilenode.h"

typedef Oid RelFileNumber;
typedef RelFileNode RelFileLocator;
#define RelFileNumberIsValid(n) OidIsValid(n)
#endif

#endif							/* IM_COMPAT_H */
