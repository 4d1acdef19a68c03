/*-------------------------------------------------------------------------
 *
 * move.h
 *	  Moving one index, from start to end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_MOVE_H
#define IM_MOVE_H

#include "job.h"

/* What the methods get.  Lives in a runner, for one item. */
typedef struct MoveContext
{
	JobShared  *job;
	MoveItem   *item;
	const MoveSettings *settings;	/* may change under us: read when needed */
} MoveContext;

/*
 * Both methods are called in a background worker, connected to the database,
 * GetUserId() = the job's role, with NO transaction open and no lock held, and
 * return in the same state.
 *
 * Return normally: item->status is STATUS_MOVED (or STATUS_SKIPPED with
 * item->detail and sqlstate saying why), and the outcome is committed.
 * ERROR: nothing is changed for the user, the index is where it was; unless
 * item->status is STATUS_MOVED already, and only something that is no longer
 * needed could not be removed.  move.c then aborts the transaction, releases all locks, and calls the cleanup
 * function below, which removes what the ledger says this job left behind.
 */
extern void move_by_rebuild(MoveContext *mc);
extern void move_by_copy(MoveContext *mc);

/*
 * Called with no transaction open after an ERROR of the function above, and
 * with item->status already failed or cancelled.  Must not throw for anything
 * that can be retried later: a leftover that can't be removed now stays in the
 * ledger.  Waits for other transactions at most max_wait_ms for each (0 = for
 * ever).
 */
extern void rebuild_cleanup(MoveContext *mc, int max_wait_ms);
extern void copy_cleanup(MoveContext *mc, int max_wait_ms);

/* move_find_out() for an item that this process was rebuilding. */
extern void rebuild_find_out(MoveItem *item);

/* ---- the driver, for worker.c ---- */

/*
 * Move one item: never throws; the outcome is in the item.  With no
 * transaction open before and after.
 */
extern void move_item(JobShared *job, MoveItem *item);

/* Write down in an item an error that has kept it from being moved. */
extern void move_take_error(MoveItem *item, ErrorData *edata);

/*
 * The process ends in the middle of an item: if it is moved, set its status to
 * STATUS_MOVED.  With no transaction open before and after.
 */
extern void move_find_out(MoveItem *item);

/* Remove what a failed or cancelled item has left behind; never throws. */
extern void move_cleanup(JobShared *job, MoveItem *item, int max_wait_ms);

/* true if an item after this one is still to be moved */
extern bool move_has_more(const JobShared *job, int n);

#endif							/* IM_MOVE_H */
