/*-------------------------------------------------------------------------
 *
 * wait.h
 *	  Waiting for other sessions, and slowing a move down for them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WAIT_H
#define IM_WAIT_H

#include "portability/instr_time.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"

#include "compat.h"
#include "job.h"
#include "settings.h"
#include "virtual_transactions.h"

/* relation_locks.c */
extern bool lock_relation_within(Oid relid, LOCKMODE mode, int timeout_ms,
								 instr_time *granted_at);
extern void keep_relation_lock(Oid relid, LOCKMODE mode);
extern void unlock_relation_for_session(Oid relid, LOCKMODE mode);
#if defined(USE_ASSERT_CHECKING) || defined(INDEX_MOVER_TEST)
extern void check_relation_locks(int expected);
#else
#define check_relation_locks(expected) ((void) (expected))
#endif
extern int	relation_lock_waiters(Oid relid, LOCKMODE held, int *pids, int maxpids);
#define extension_lock_waiters(pids, maxpids) \
	relation_lock_waiters(InvalidOid, AccessShareLock, pids, maxpids)
extern bool relation_row_changer(Oid relid, VirtualTransactionId *vxid);
extern ItemPointerData relation_row_position(Oid relid);
extern bool relation_row_has_moved(Oid relid, const ItemPointerData *since);
extern bool relation_is_free(const MoveItem *item);
extern VirtualTransactionId *relation_lock_holders(Oid relid, LOCKMODE wanted,
												   int *count);

/* Limits of a wait, and how to publish it. */
typedef struct WaitLimits
{
	MovePhase	phase;			/* shown while there is something to wait for */
	int			max_ms;			/* then ERROR 55P03; 0: never; or LOCK_WAIT */
	const MoveContext *mc;		/* the move for which others are signaled
								 * after its lock_wait; NULL = none */
	Oid			insist_on;		/* VACUUM and ANALYZE of this table give way;
								 * 0 = none */
	bool		cancellable;	/* obey a cancel and, outside of transactions,
								 * a pause; else only SIGTERM */

	/* set by the first wait, so that several can share them */
	int64		since;			/* by clock_us(), as all times of a wait */
	int64		rested_before;	/* pacing_rested_ms() then, see wait_began() */
} WaitLimits;

#define LOCK_WAIT		(-1)	/* that of the move, as it is by then */

#define WAIT_MAX_PIDS	64		/* processes considered in a wait */

/* A transaction that a wait has found in its way */
typedef struct Holder
{
	VirtualTransactionId vxid;
	int64		since;			/* when it was found first */
} Holder;

/* State of a wait. */
typedef struct Wait
{
	WaitLimits *limits;
	const char *gave_up;		/* message then; NULL: of a lock on relid */
	Oid			relid;			/* whose lock the holders have, if any */

	/* at the last look, the oldest first; set by wait_note_holders() */
	Holder		holders[WAIT_MAX_PIDS];
	int			nholders;
	int64		lasted;			/* us, of the last one that came and ended; 0
								 * = none yet */

	bool		ignore_deadlocks;

	/* private */
	int64		first_look;		/* a holder found then had come before */
	double		checked_at;		/* for deadlocks and autovacuums; by
								 * clock_seconds() */
	int64		grace_until;	/* for the processes that were signaled */
	int64		ours_at;		/* when last our job itself was in the way */
	long		nap_ms;
	bool		told;			/* phase set and blockers published */
	MovePhase	phase_before;
} Wait;

extern void wait_begin(Wait *wait, const char *gave_up, WaitLimits *limits);
extern bool wait_find_holders(Wait *wait, Oid relid, LOCKMODE mode);
extern void wait_note_holders(Wait *wait, const VirtualTransactionId *vxids, int count);
extern bool wait_has_long_holder(const Wait *wait);
extern bool wait_has_long_among(const Wait *wait, const VirtualTransactionId *vxids, int count);
extern int	wait_named(const Wait *wait, VirtualTransactionId named[WAIT_MAX_PIDS]);
extern int	wait_lasting(const Wait *wait, VirtualTransactionId named[WAIT_MAX_PIDS]);
extern bool wait_look(Wait *wait);
extern bool wait_is_over(const Wait *wait);
extern int64 wait_began(const WaitLimits *limits);
extern void wait_forget_ended(Wait *wait);
pg_noreturn extern void wait_give_up(const Wait *wait);
extern bool wait_until(const char *gave_up, WaitLimits *limits,
					   bool (*is_free) (Wait *wait, void *arg), void *arg);
extern int	wait_find_deadlock(int pid, const int targets[2],
							   const RunnerSlot *runners, int nrunners,
							   int *last);

extern void wait_for_lockers(Oid heap_oid, LOCKMODE lockmode,
							 WaitLimits *limits);
extern bool extension_find_deadlock(int caller_pid);
extern void wait_for_snapshots(TransactionId limit_xmin,
							   bool (*hides) (PGPROC *proc),
							   WaitLimits *limits);

/* attempts.c: attempts at an exclusive lock that others hold */

/* Queue no longer than this at once: a pause is not seen in the queue */
#define QUEUE_PIECE_MS		1000

typedef struct Attempts
{
	Wait		wait;			/* with the holders at the last look */
	WaitLimits	limits;
	bool		hurry;			/* no looks before the first bid */
	bool		barred;			/* at the last bid attempts_note_barred()
								 * forbade it */

	/* between two pieces of a long bid; NULL: nothing, see attempts.c */
	bool		(*keep_up) (void *arg);
	void	   *keep_up_arg;

	/* private */
	int			bids;			/* so far */
	int			delays;			/* bids of these that were not alone */
	int64		bid_ended;		/* the last one; at first, when the looks
								 * began */
	double		chance;			/* 0 to 1: how much longer to rest after it */
	Oid			queued_for;		/* by this one; 0 = it has not queued */
	bool		granted;		/* and got it */
	VirtualTransactionId before[WAIT_MAX_PIDS]; /* holders of that lock then */
	int			nbefore;
	VirtualTransactionId delayed[WAIT_MAX_PIDS];	/* who has waited behind
													 * the last one */
	int			ndelayed;
} Attempts;

extern void attempts_begin(Attempts *attempts, const MoveContext *mc, Oid relid);
extern bool attempts_bid_is_due(const Attempts *attempts);
extern void attempts_note_barred(Attempts *attempts, Oid table);
extern void attempts_end_bid(Attempts *attempts);
extern int	attempts_nap_ms(const Attempts *attempts);
extern bool attempts_prepare(const MoveSettings *settings, Oid catalog);
extern bool attempts_queue_for_bid(Attempts *attempts, Oid relid, instr_time *granted_at);

/* turn.c */
extern bool turn_give(MoveContext *mc, const WaitLimits *limits, int64 rested_us);
extern bool turn_is_due(const MoveContext *mc, const WaitLimits *limits, int64 rested_us);

extern bool poller_find_wait(int pid);
extern bool lock_table_and_index(Oid heap_oid, Oid index_oid,
								 WaitLimits *limits);
extern void unlock_table_and_index(Oid heap_oid, Oid index_oid);

/* Time for signaled processes to release their locks */
#define BLOCKER_GRACE_MS	5000

extern void blockers_begin(void);
extern void blockers_forget(void);
extern bool blockers_cancel_maintenance(const PGPROC *proc, Oid table,
										const MoveSettings *settings);
extern bool blockers_kill(int pid, Oid role, const MoveSettings *settings);
extern void blockers_report(const MoveItem *item);
extern bool blockers_signal(const MoveItem *item, const MoveSettings *settings,
							const VirtualTransactionId *vxids, int count);
extern PgBackendStatus *blockers_find(int pid);
extern bool blockers_may_signal(Oid role);
extern void blockers_tell(MoveItem *item);
extern void blockers_cancel_autovacuum(const int *pids, int npids);
extern char *blockers_describe(const VirtualTransactionId *vxids, int count);

/* Of a move; set to zero at its start. */
typedef struct Throttle
{
	double		write_mark;		/* see runner_use() */
	double		read_mark;
	double		read_ms;		/* that a megabyte takes to be read, smoothed */
	bool		hurry;			/* do not rest for reading */
	int64		bytes;			/* since the rate was last shown */
	double		rate;			/* bytes per second, as shown */
	instr_time	shown;
	int64		rested_us;		/* for the rate alone */
	bool		rested;			/* for others, since this was reset */
	const struct SpaceWatch *space; /* whose free space to watch; NULL =
									 * none's */
} Throttle;

/* Storage that takes longer to read a megabyte is slow */
#define FAST_READ_MS		5

extern void throttle_written(Throttle *throttle, int64 bytes);
extern void throttle_read(Throttle *throttle, int64 us, int64 bytes);

/* With rests no longer than this, WAL is read before it is recycled */
#define SHORT_REST_MS		20

extern void throttle_rest(int ms);

/* receivers.c */
struct WalSnd;
struct ReplicationSlot;
extern struct WalSnd *walsender_next(int *i);
extern struct ReplicationSlot *slot_next(int *i);

/* replica_lag.c */
extern RunnerRest replica_lag_why;
extern bool replica_lag_look(const MoveSettings *settings, int64 at_once);
extern int64 replica_lag_slot_limit(void);

/* pacing.c */
extern bool pacing_look(const MoveSettings *settings, int64 wal_bytes);
extern bool pacing_hold_back(const MoveSettings *settings, int64 wal_bytes);
extern bool pacing_rest(const MoveSettings *settings, int64 wal_at_once,
						Throttle *throttle, bool (*keep_up) (void *arg),
						void *arg);
extern void pacing_tell_of_drop(const char *job_does);
extern int64 pacing_rested_ms(void);
extern void pacing_rest_while_paused(void);

#endif							/* IM_WAIT_H */
