/*-------------------------------------------------------------------------
 *
 * index_size.h
 *	  How large an open relation is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_INDEX_SIZE_H
#define IM_INDEX_SIZE_H

#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/rel.h"

/* Bytes of all forks.  The caller holds a lock on the relation. */
static inline int64
relation_size_on_disk(Relation rel)
{
	int64		nblocks = 0;
	ForkNumber	fork;

	if (!RELKIND_HAS_STORAGE(rel->rd_rel->relkind))
		return 0;
	for (fork = 0; fork <= MAX_FORKNUM; fork++)
		if (smgrexists(RelationGetSmgr(rel), fork))
			nblocks += smgrnblocks(RelationGetSmgr(rel), fork);
	return nblocks * BLCKSZ;
}

#endif							/* IM_INDEX_SIZE_H */
