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

/*
 * In a transaction: is there anything of this job in the ledger that is not a
 * live job's?  0 = of any job.
 */
extern bool cleanup_is_needed(int64 job);

/* Start a worker that cleans up, if there is a slot for it; nobody waits. */
extern void cleanup_submit(Oid database, Oid role);

/* In a runner, outside of transactions: remove all that can be removed. */
extern void cleanup_run(JobShared *shared);

/* The same for one table (or TOAST table), before it is worked on again. */
extern void cleanup_table(Oid heap_oid);

#endif							/* IM_CLEANUP_H */
