/*-------------------------------------------------------------------------
 *
 * copyable.h
 *	  Which indexes the method copy can move.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COPYABLE_H
#define IM_COPYABLE_H

#include "access/rmgr.h"

extern bool copy_can_move(Oid index_oid, const char *more_access_methods,
						  const char **reason);
extern RmgrId copy_resource_manager(Oid access_method);

#endif							/* IM_COPYABLE_H */
