/*-------------------------------------------------------------------------
 *
 * timescaledb.h
 *	  TimescaleDB: which tables are its own, and which have a chunk's compressed data.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIMESCALEDB_H
#define IM_TIMESCALEDB_H

#include "postgres.h"

#include "utils/hsearch.h"

/* A chunk of TimescaleDB, and the table with its compressed data */
typedef struct ChunkPair
{
	Oid			chunk;			/* hash key */
	Oid			compressed;
} ChunkPair;

extern HTAB *timescaledb_chunk_pairs(const char **problem);
extern bool timescaledb_has(Oid relid);

#endif							/* IM_TIMESCALEDB_H */
