/*-------------------------------------------------------------------------
 *
 * wait_others.h
 *	  Waiting for other transactions without standing in anybody's way.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WAIT_OTHERS_H
#define IM_WAIT_OTHERS_H

#include "job.h"
#include "storage/lockdefs.h"
#include "storage/proc.h"

/* How long to wait, and what to tell about it. */
typedef struct WaitLimits
{
	MovePhase	phase;			/* shown while there is somebody to wait for */
	TimestampTz deadline;		/* ERROR 55P03 then; 0 = for ever */
	TimestampTz signal_at;		/* obey on_blocker then; 0 = never */
	MoveItem   *item;			/* for which others are signalled, or NULL */
	const MoveSettings *settings;	/* with item */
	int			caller_pid;		/* who waits for us outside the lock manager; 0
								 * = nobody */
	bool		cancellable;	/* obey job_check_cancel(); else only SIGTERM */
	bool		pausable;		/* nothing is held: obey pause_move(), which
								 * puts off the two moments above; with
								 * cancellable */
} WaitLimits;

extern TimestampTz wait_deadline(int max_ms);	/* 0 = for ever */

extern void wait_for_lockers(Oid heap_oid, LOCKMODE lockmode,
							 WaitLimits *limits);

/*
 * Would it be for ever?  Whether somebody who has, or wants, a lock that is in
 * the way of this one waits, also indirectly, for a lock of ours, or for the
 * session that waits for our job.
 */
extern bool lockers_wait_for_us(Oid relid, LOCKMODE lockmode, int caller_pid);

extern void wait_for_snapshots(TransactionId limit_xmin,
							   bool (*hides) (PGPROC *proc),
							   WaitLimits *limits);

/*
 * Get ShareUpdateExclusiveLock on table and index for the session, table
 * first.  The caller releases both with unlock_table_and_index().  Returns
 * true if it had to wait.
 */
extern bool lock_table_and_index(Oid heap_oid, Oid index_oid,
								 WaitLimits *limits);
extern void unlock_table_and_index(Oid heap_oid, Oid index_oid);

#endif							/* IM_WAIT_OTHERS_H */
