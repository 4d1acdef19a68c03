/*-------------------------------------------------------------------------
 *
 * timescaledb.h
 *	  TimescaleDB: its catalog, and which tables are its own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIMESCALEDB_H
#define IM_TIMESCALEDB_H

#include "postgres.h"

extern Oid	timescaledb_catalog(const char *name);
extern bool timescaledb_has(Oid relid);

#endif							/* IM_TIMESCALEDB_H */
