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

/*
 * In a runner, outside of transactions: remove all that can be removed, of all
 * tables, or of those of the job's items.  Waits at most that long for the
 * transactions that use a table.  Returns false if something is left.
 */
extern bool cleanup_run(JobShared *shared, int max_wait_ms);

/*
 * The same for what dead jobs have left on one table, before it is worked on
 * again.  Waits at most that long for other transactions.  As part of a move: it
 * obeys pause_move(), and a cancel is an ERROR.
 */
extern void cleanup_table(Oid heap_oid, int max_wait_ms);

/*
 * Have removed what dead jobs have left on those tables of a plan on which
 * nothing is to be moved: a job that moves does it itself.  plan: of MoveItem.
 * The first form waits for that, but not long for others that use the table;
 * the second leaves it to a job that begins when this transaction commits.
 * ERRORs as for submit_and_wait() and submit_at_commit().
 */
extern void cleanup_and_wait(const List *plan, const MoveSettings *settings);
extern void cleanup_at_commit(const List *plan, const MoveSettings *settings);

#endif							/* IM_CLEANUP_H */
