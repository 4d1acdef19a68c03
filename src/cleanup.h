/*-------------------------------------------------------------------------
 *
 * cleanup.h
 *	  Removing what moves have left behind.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CLEANUP_H
#define IM_CLEANUP_H

#include "job.h"

/* In a transaction: is anything of this job in the ledger? */
extern bool cleanup_is_needed(int64 job);

/* In a runner, outside of transactions: remove all that can be removed. */
extern void cleanup_run(JobShared *shared);

/*
 * The same for what dead jobs have left on one table, before it is worked on
 * again.  Waits at most that long for other transactions.
 */
extern void cleanup_table(Oid heap_oid, int max_wait_ms);

#endif							/* IM_CLEANUP_H */
