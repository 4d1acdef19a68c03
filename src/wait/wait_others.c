/*-------------------------------------------------------------------------
 *
 * wait_others.c
 *	  Waiting for other transactions without standing in anybody's way.
 *
 * Core waits for other transactions by queueing for their virtual transaction
 * IDs, and for locks by queueing for them.  Here we look, sleep and look again
 * instead: so a waiting runner can tell whom it waits for, obeys cancel_move(),
 * and is never what others have to queue behind.
 *
 * Assumption: who isn't among those found at the first look need not be waited
 * for.  Each function says why that is right for it.
 *
 * Locking: nothing is held but what the caller holds, and no snapshot and no
 * transaction ID are taken, so that two runners, or a runner and a CREATE INDEX
 * CONCURRENTLY, never wait for each other here.
 *
 * Tricky: the deadlock detector doesn't know about a wait of this kind, so once
 * per deadlock_timeout we look ourselves whether somebody we wait for waits for
 * us, or for the session that waits for this job.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "job.h"
#include "settings.h"
#include "wait/relation_locks.h"
#include "wait/wait.h"

#define SHORTEST_NAP_MS		2
#define LONGEST_NAP_MS		100

/* What core's WaitForOlderSnapshots() passes over, we pass over. */
#define FLAGS_NOT_WAITED_FOR \
	(PROC_IS_AUTOVACUUM | PROC_IN_VACUUM | PROC_IN_SAFE_IC)

/* Outlives transactions; reset when the next wait begins. */
static MemoryContext wait_context = NULL;

/* ----------------------------------------------------------------
 *	Deadlocks that the deadlock detector cannot see
 * ----------------------------------------------------------------
 */

/*
 * Append the processes that this one waits for: for locks, and, as far as the
 * runners are given, outside of the lock manager, too.
 */
static List *
add_waited_for(List *pids, int pid, const RunnerSlot *runners, int nrunners)
{
	ArrayType  *array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
															   Int32GetDatum(pid)));
	const int32 *blockers = (const int32 *) ARR_DATA_PTR(array);
	int			nblockers = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));

	for (int i = 0; i < nblockers; i++)
		pids = list_append_unique_int(pids, blockers[i]);
	for (int i = 0; i < nrunners; i++)
	{
		for (int j = 0; j < runners[i].nblockers && runners[i].pid == pid; j++)
			pids = list_append_unique_int(pids, runners[i].blockers[j]);
		if (runners[i].caller_pid == pid)
			pids = list_append_unique_int(pids, runners[i].pid);
	}
	/* a prepared transaction waits for nothing */
	return list_delete_int(pids, 0);
}

/*
 * Find out whether a process is, or waits, directly or not, for one of the
 * targets.  Returns that target, or 0; *last becomes the process that itself
 * waits for it.
 *
 * With runners: what these wait for without queueing, and that a caller waits
 * for the runners of its job, counts.  But what another runner of the job of the
 * first process waits for is the affair of that runner.
 */
int
wait_find_deadlock(int pid, const int *targets, int ntargets,
				   const RunnerSlot *runners, int nrunners, int *last)
{
	MemoryContext check_context = AllocSetContextCreate(CurrentMemoryContext,
														"index_mover deadlock check",
														ALLOCSET_SMALL_SIZES);
	MemoryContext old_context = MemoryContextSwitchTo(check_context);
	List	   *pids = list_make1_int(pid);
	int			slot = -1;
	int			found = 0;

	*last = pid;
	for (int i = 0; i < nrunners; i++)
		if (runners[i].pid == pid)
			slot = runners[i].slot;

	/* the list grows while we walk along it */
	for (int n = 0;; n++)
	{
		bool		other_runner = false;

		for (int i = 0; i < ntargets && found == 0; i++)
			if (list_member_int(pids, targets[i]))
				found = targets[i];
		if (found != 0 || n >= list_length(pids))
			break;
		*last = list_nth_int(pids, n);
		for (int i = 0; i < nrunners && n > 0; i++)
			if (runners[i].pid == *last && runners[i].slot == slot)
				other_runner = true;
		if (!other_runner)
			pids = add_waited_for(pids, *last, runners, nrunners);
	}

	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(check_context);
	return found;
}

/*
 * Find one of these processes that waits, also indirectly, for a lock of ours,
 * or for the session that waits for us.  *which: that process; *whom: us or that
 * session.
 */
static bool
find_waiting_for_us(const int *pids, int npids, int caller_pid, int *which, int *whom)
{
	int			targets[2] = {MyProcPid, caller_pid};

	for (int i = 0; i < npids; i++)
	{
		int			last;

		if (pids[i] == 0)
			continue;
		/* another runner of the job that waits for the caller steps back */
		*which = pids[i];
		*whom = wait_find_deadlock(pids[i], targets,
								   caller_pid != 0 && !runner_of_same_job(pids[i]) ? 2 : 1,
								   NULL, 0, &last);
		if (*whom != 0)
			return true;
	}
	return false;
}

/*
 * Would it never end?  Whether a process that has, or wants, a lock that is in
 * the way of this one waits, also indirectly, for a lock of ours, or for the
 * session that waits for our job.
 */
bool
lockers_wait_for_us(Oid relid, LOCKMODE lockmode, int caller_pid)
{
	int			count;
	VirtualTransactionId *holders = relation_lock_holders(relid, lockmode, &count);
	int			pids[WAIT_MAX_PIDS];
	int			npids = virtual_transaction_pids(holders, count, pids, WAIT_MAX_PIDS);
	int			which;
	int			whom;

	pfree(holders);
	if (find_waiting_for_us(pids, npids, caller_pid, &which, &whom))
		return true;
	npids = relation_lock_waiters(relid, lockmode, pids, WAIT_MAX_PIDS);
	return find_waiting_for_us(pids, npids, caller_pid, &which, &whom);
}

/* ----------------------------------------------------------------
 *	One wait
 * ----------------------------------------------------------------
 */

TimestampTz
wait_deadline(int max_ms)
{
	return max_ms > 0 ? TimestampTzPlusMilliseconds(GetCurrentTimestamp(), max_ms) : 0;
}

void
wait_begin(Wait *wait, const char *what, WaitLimits *limits)
{
	if (wait_context == NULL)
		wait_context = AllocSetContextCreate(TopMemoryContext,
											 "index_mover wait",
											 ALLOCSET_SMALL_SIZES);
	memset(wait, 0, sizeof(Wait));
	wait->limits = limits;
	wait->what = what;
	wait->nap_ms = SHORTEST_NAP_MS;
	wait->started_at = wait->autovacuum_told_at = GetCurrentTimestamp();
	wait->rested_before = limits->rested_ms != NULL ? *limits->rested_ms : 0;
	wait->deadlock_check_at = TimestampTzPlusMilliseconds(wait->started_at,
														  DeadlockTimeout);
}

/*
 * Look which transactions hold a lock on this relation that is in the way of
 * this one.  Returns whether there are any.
 */
bool
wait_find_holders(Wait *wait, Oid relid, LOCKMODE mode)
{
	MemoryContext old_context;

	MemoryContextReset(wait_context);
	old_context = MemoryContextSwitchTo(wait_context);
	wait->relid = relid;
	wait->vxids = relation_lock_holders(relid, mode, &wait->nvxids);
	MemoryContextSwitchTo(old_context);
	return wait->nvxids > 0;
}

/* Is it time to give up, or, with on_blocker = wait, to say so and go on? */
bool
wait_is_over(const Wait *wait)
{
	WaitLimits *limits = wait->limits;
	TimestampTz now = GetCurrentTimestamp();

	if (limits->rested_ms != NULL)
	{
		int64		ms = limits->settings->lock_wait;

		/* alter_move() may have changed it */
		limits->deadline = limits->signal_at = ms == 0 ? 0 : wait->started_at +
			(ms + *limits->rested_ms - wait->rested_before) * 1000;
	}
	return limits->deadline != 0 && now >= limits->deadline && now >= wait->grace_until;
}

/*
 * Publish what we wait for, check that it makes sense to go on, and do what is to
 * be done about it.  Returns whether it is time to give up.  In a transaction or
 * not.  ERROR 40P01 if the wait would never end.
 */
bool
wait_look(Wait *wait)
{
	WaitLimits *limits = wait->limits;
	TimestampTz now = GetCurrentTimestamp();
	int			which;
	int			whom;
	bool		over;

	wait->npids = virtual_transaction_pids(wait->vxids, wait->nvxids,
										   wait->pids, WAIT_MAX_PIDS);
	progress_blockers(wait->pids, wait->npids);

	/* what the job itself does at the same time must not make it fail */
	for (int i = 0; i < wait->npids && limits->deadline != 0; i++)
		if (runner_of_same_job(wait->pids[i]))
			limits->deadline = Max(limits->deadline, now + USECS_PER_SEC);

	if (now >= wait->deadlock_check_at)
	{
		if (find_waiting_for_us(wait->pids, wait->npids, limits->caller_pid, &which, &whom))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected"),
					 which == whom ?
					 errdetail("The move waits for process %d, which waits for the move.%s",
							   which, describe_command(which)) :
					 errdetail("The move waits for process %d, which waits, directly or indirectly, for process %d.%s",
							   which, whom, describe_command(which)),
					 errhint("The move has been canceled, so that the others can go on.")));
		wait->deadlock_check_at = TimestampTzPlusMilliseconds(now, DeadlockTimeout);
	}

	/*
	 * As core does for a process that waits for a lock, or for the end of a
	 * transaction; the next one may be there already.
	 */
	if (TimestampDifferenceExceeds(wait->autovacuum_told_at, now, DeadlockTimeout))
	{
		blockers_cancel_autovacuum(wait->pids, wait->npids);
		wait->autovacuum_told_at = now;
	}

	over = wait_is_over(wait);
	if (limits->signal_at != 0 && now >= limits->signal_at &&
		now >= wait->grace_until && limits->item != NULL &&
		blockers_signal(limits->item, limits->settings, wait->pids, wait->npids) > 0)
	{
		wait->grace_until = TimestampTzPlusMilliseconds(now, BLOCKER_GRACE_MS);
		over = false;
	}
	return over;
}

/* ERROR 55P03, which names what is in the way, as found by the last look. */
void
wait_give_up(const Wait *wait)
{
	double		waited = TimestampDifferenceMilliseconds(wait->started_at,
														 GetCurrentTimestamp()) / 1000.0;
	char	   *list = blockers_describe(wait->relid, wait->pids, wait->npids);
	char	   *name;

	if (wait->what != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("gave up waiting for %s", wait->what),
				 errdetail("Waited %g seconds for %s.", waited, list),
				 errhint("End that transaction, or raise index_mover.lock_wait.")));

	if (!IsTransactionState())
		StartTransactionCommand();	/* the catalog has the name */
	name = get_rel_name(wait->relid);
	if (wait->limits->rested_ms != NULL)
		waited = wait->limits->settings->lock_wait / 1000.0;
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not lock relation \"%s\" within %g seconds",
					name ? name : "?", waited),
			 wait->npids > 0 ?
			 errdetail("The lock was held by: %s.", list) :
			 errdetail("Others queue for the lock, or have held it only for moments."),
			 errhint("See move_blockers(), or raise index_mover.lock_wait.")));
}

/*
 * If one of those we wait for is a prepared transaction, which has no process,
 * publish its name.  In a transaction that ends at once: we must not be waited
 * for ourselves.
 */
static void
name_prepared(Wait *wait)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *name;
	int			i;

	for (i = 0; i < wait->nvxids; i++)
	{
		int			pid;

		if (virtual_transaction_pids(&wait->vxids[i], 1, &pid, 1) == 1 && pid == 0)
			break;
	}
	if (i == wait->nvxids || IsTransactionState() ||
		VirtualTransactionIdEquals(wait->vxids[i], wait->prepared))
		return;
	wait->prepared = wait->vxids[i];

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	name = prepared_transaction_name(wait->prepared);
	progress_prepared(name ? name : "");
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

/* pause_move(): wait for nothing, until it is over. */
static void
put_off(Wait *wait)
{
	WaitLimits *limits = wait->limits;
	int64		rested = pacing_rest_while_paused();

	if (limits->rested_ms != NULL)
		*limits->rested_ms += rested / 1000;
	if (limits->deadline != 0)
		limits->deadline += rested;
	if (limits->signal_at != 0)
		limits->signal_at += rested;
	wait->deadlock_check_at += rested;
}

/*
 * Look what is in the way, and sleep a bit.
 * ERRORs: 55P03 after the deadline, 40P01, and what cancels the job.
 */
static void
nap(Wait *wait)
{
	WaitLimits *limits = wait->limits;
	static uint32 wait_event = 0;

	if (!wait->told)
	{
		wait->phase_before = progress_phase(limits->phase);
		wait->told = true;
	}
	if (limits->pausable && job_pause_requested())
	{
		put_off(wait);
		return;
	}
	if (wait_look(wait))
		wait_give_up(wait);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 wait->nap_ms, IM_WAIT_EVENT(wait_event, "IndexMoverWaitOthers"));
	ResetLatch(MyLatch);
	wait->nap_ms = Min(wait->nap_ms * 2, LONGEST_NAP_MS);

	if (limits->cancellable)
		job_check_cancel();
	else
	{
		/* a cleanup does not stop for a cancel; SIGTERM is obeyed */
		QueryCancelPending = false;
		CHECK_FOR_INTERRUPTS();
		runner_check_step_back();
	}

	/* what we looked up meanwhile must not hold back vacuum */
	InvalidateCatalogSnapshot();
}

/*
 * Wait until is_free() says that nothing is in the way any more; else it sets
 * relid and vxids.  It is called with no lock of ours held and may, when it
 * returns true, have started a transaction.  Returns true if there was something
 * to wait for.
 */
bool
wait_until(const char *what, WaitLimits *limits,
		   bool (*is_free) (Wait *wait, void *arg), void *arg)
{
	MemoryContext caller_context = CurrentMemoryContext;
	Wait		wait;

	wait_begin(&wait, what, limits);
	MemoryContextReset(wait_context);
	for (;;)
	{
		MemoryContextSwitchTo(wait_context);
		if (is_free(&wait, arg))
			break;
		MemoryContextSwitchTo(wait_context);
		name_prepared(&wait);
		nap(&wait);
	}
	MemoryContextSwitchTo(caller_context);
	if (wait.told)
	{
		progress_blockers(NULL, 0);
		progress_prepared("");
		progress_phase(wait.phase_before);
	}
	return wait.told;
}

/* Keep, of these transactions, those that are among the others, too. */
int
wait_keep_common(VirtualTransactionId *vxids, int nvxids,
				 const VirtualTransactionId *others, int nothers)
{
	int			kept = 0;

	for (int i = 0; i < nvxids; i++)
		for (int j = 0; j < nothers; j++)
			if (VirtualTransactionIdEquals(vxids[i], others[j]))
			{
				vxids[kept++] = vxids[i];
				break;
			}
	return kept;
}

/*
 * Of the transactions that were there at the first look, is none there now?
 */
static bool
none_is_left(Wait *wait, VirtualTransactionId *now, int nnow)
{
	if (wait->vxids == NULL)
	{
		wait->vxids = now;
		wait->nvxids = nnow;
	}
	else
	{
		wait->nvxids = wait_keep_common(wait->vxids, wait->nvxids, now, nnow);
		pfree(now);
	}
	return wait->nvxids == 0;
}

/* ----------------------------------------------------------------
 *	What there is to wait for
 * ----------------------------------------------------------------
 */

typedef struct Lockers
{
	Oid			relid;
	LOCKMODE	mode;
} Lockers;

static bool
lockers_are_gone(Wait *wait, void *arg)
{
	const Lockers *lockers = arg;
	int			count;
	VirtualTransactionId *vxids = relation_lock_holders(lockers->relid, lockers->mode,
														&count);

	wait->relid = lockers->relid;
	return none_is_left(wait, vxids, count);
}

/*
 * Wait until every other transaction that now holds a lock on this table that
 * conflicts with the given mode has ended.  Prepared ones count.
 *
 * One that comes later sees what the caller has committed before, which is all
 * that the callers of this need; core's WaitForLockers() has the same rule.
 * Needs no transaction; takes no lock.
 */
void
wait_for_lockers(Oid heap_oid, LOCKMODE lockmode, WaitLimits *limits)
{
	Lockers		lockers = {heap_oid, lockmode};

	(void) wait_until("transactions that use the table", limits, lockers_are_gone, &lockers);
}

typedef struct Snapshots
{
	TransactionId limit_xmin;
	bool		(*hides) (PGPROC *proc);
} Snapshots;

static bool
snapshots_are_gone(Wait *wait, void *arg)
{
	const Snapshots *snapshots = arg;
	int			count;
	VirtualTransactionId *vxids = GetCurrentVirtualXIDs(snapshots->limit_xmin, true, false,
														FLAGS_NOT_WAITED_FOR, &count);
	int			kept = 0;

	for (int i = 0; i < count; i++)
	{
		PGPROC	   *proc = im_vxid_proc(vxids[i]);

		if (proc != NULL && !snapshots->hides(proc))
			vxids[kept++] = vxids[i];
	}
	return none_is_left(wait, vxids, kept);
}

/*
 * Wait until every other transaction of this database that now has a snapshot
 * with xmin <= limit_xmin has let go of it.  Core's WaitForOlderSnapshots() has
 * the same rule, but waits for the end of the transaction.  Of which processes
 * core will not wait either, hides() says.
 * Needs no transaction; takes no lock.
 */
void
wait_for_snapshots(TransactionId limit_xmin, bool (*hides) (PGPROC *proc),
				   WaitLimits *limits)
{
	Snapshots	snapshots = {limit_xmin, hides};

	(void) wait_until("transactions with an old snapshot", limits, snapshots_are_gone,
					  &snapshots);
}

static bool
try_lock(Oid relid)
{
	LOCKTAG		tag;

	/* the caller's next transaction reads the invalidation messages */
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return LockAcquire(&tag, ShareUpdateExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* arg: table and index */
static bool
both_are_locked(Wait *wait, void *arg)
{
	const Oid  *relids = arg;

	if (try_lock(relids[0]))
	{
		if (try_lock(relids[1]))
			return true;
		unlock_relation_for_session(relids[0], ShareUpdateExclusiveLock);
		(void) wait_find_holders(wait, relids[1], ShareUpdateExclusiveLock);
	}
	else
		(void) wait_find_holders(wait, relids[0], ShareUpdateExclusiveLock);
	return false;
}

/*
 * Get ShareUpdateExclusiveLock on table and index for the session, table
 * first.  The caller releases both with unlock_table_and_index().  Returns
 * true if it had to wait.
 */
bool
lock_table_and_index(Oid heap_oid, Oid index_oid, WaitLimits *limits)
{
	Oid			relids[2] = {heap_oid, index_oid};

	return wait_until(NULL, limits, both_are_locked, relids);
}

void
unlock_table_and_index(Oid heap_oid, Oid index_oid)
{
	unlock_relation_for_session(index_oid, ShareUpdateExclusiveLock);
	unlock_relation_for_session(heap_oid, ShareUpdateExclusiveLock);
}
