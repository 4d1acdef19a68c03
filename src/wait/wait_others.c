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

#include <signal.h>

#include "access/transam.h"
#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "job.h"
#include "settings.h"
#include "wait/relation_locks.h"
#include "wait/wait.h"

#define ASK_AGAIN_MS	50

static uint32 lock_wait_event = 0;

#define SHORTEST_NAP_MS		2
#define LONGEST_NAP_MS		100
#define MAX_CHAIN			64	/* processes looked at for one deadlock check */

/* What core's WaitForOlderSnapshots() passes over, we pass over. */
#define FLAGS_NOT_WAITED_FOR \
	(PROC_IS_AUTOVACUUM | PROC_IN_VACUUM | PROC_IN_SAFE_IC)

/* Transactions that were found at the first look and are still there. */
typedef struct Others
{
	VirtualTransactionId *vxids;
	int			nvxids;
} Others;

/* State of one wait. */
typedef struct Wait
{
	WaitLimits *limits;
	const char *what;			/* completes "gave up waiting for %s" */
	Oid			relid;			/* whose lock they hold, if any */
	TimestampTz started_at;
	TimestampTz deadlock_check_at;
	TimestampTz grace_until;	/* for those who were signalled */
	long		nap_ms;
	bool		told;			/* have we set a phase and published blockers? */
	TimestampTz autovacuum_told_at;
	MovePhase	phase_before;
	VirtualTransactionId prepared;	/* the prepared one that we have named */
} Wait;

/* Outlives transactions; reset when the next wait begins. */
static MemoryContext wait_context = NULL;

/*
 * Take a lock on a relation to the end of the transaction, by asking again and
 * again rather than by queueing, so that nobody has to wait behind us.  The
 * pids of who holds it are published while we wait.  When index_mover.lock_wait,
 * counted from since, is over, on_blocker says what happens to them.
 *
 * Returns false if the job has been paused meanwhile, or if one of the holders
 * waits for a lock of ours, which the deadlock detector can't see, for we are in
 * no queue: the caller ends his transaction, and with it gives back what he has,
 * before he rests or comes again.
 *
 * ERROR 55P03 naming the holders when it was all in vain.
 */
bool
lock_relation_without_queueing(Oid relid, LOCKMODE mode, MoveItem *item,
							   const MoveSettings *settings, TimestampTz since)
{
	TimestampTz grace_until = 0;
	TimestampTz looked_at = GetCurrentTimestamp();

	while (!ConditionalLockRelationOid(relid, mode))
	{
		VirtualTransactionId *holders;
		int			nholders;
		int			pids[IM_MAX_BLOCKERS];
		int			npids;
		bool		over;

		holders = relation_lock_holders(relid, mode, &nholders);
		npids = virtual_transaction_pids(holders, nholders, pids, IM_MAX_BLOCKERS);
		progress_blockers(pids, npids);
		over = settings->lock_wait > 0 && GetCurrentTimestamp() >= grace_until &&
			TimestampDifferenceExceeds(since, GetCurrentTimestamp(), settings->lock_wait);
		if (over && blockers_signal(item, settings, pids, npids) > 0)
			grace_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													  BLOCKER_GRACE_MS);
		else if (over)
		{
			char	   *name = get_rel_name(relid);
			StringInfoData list;

			initStringInfo(&list);
			blockers_describe(&list, relid, pids, npids);
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not lock relation \"%s\" within %g seconds",
							name ? name : "?", settings->lock_wait / 1000.0),
					 npids > 0 ?
					 errdetail("The lock was held by: %s.", list.data) : 0,
					 errhint("See move_blockers(), or raise index_mover.lock_wait.")));
		}
		pfree(holders);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ASK_AGAIN_MS, IM_WAIT_EVENT(lock_wait_event, "IndexMoverLock"));
		ResetLatch(MyLatch);
		job_check_cancel();
		if (job_pause_requested())
			return false;
		if (TimestampDifferenceExceeds(looked_at, GetCurrentTimestamp(), DeadlockTimeout))
		{
			if (lockers_wait_for_us(relid, mode, 0))
				return false;
			looked_at = GetCurrentTimestamp();
		}
	}
	progress_blockers(NULL, 0);
	return true;
}

TimestampTz
wait_deadline(int max_ms)
{
	return max_ms > 0 ? TimestampTzPlusMilliseconds(GetCurrentTimestamp(), max_ms) : 0;
}

static void
begin_wait(Wait *wait, const char *what, Oid relid, WaitLimits *limits)
{
	if (wait_context == NULL)
		wait_context = AllocSetContextCreate(TopMemoryContext,
											 "index_mover wait",
											 ALLOCSET_SMALL_SIZES);
	MemoryContextReset(wait_context);

	memset(wait, 0, sizeof(Wait));
	wait->limits = limits;
	wait->what = what;
	wait->relid = relid;
	wait->nap_ms = SHORTEST_NAP_MS;
	wait->started_at = wait->autovacuum_told_at = GetCurrentTimestamp();
	wait->deadlock_check_at = TimestampTzPlusMilliseconds(wait->started_at,
														  DeadlockTimeout);
}

static void
end_wait(Wait *wait)
{
	if (wait->told)
	{
		progress_blockers(NULL, 0);
		progress_prepared("");
		progress_phase(wait->phase_before);
	}
}

/* The processes that run these transactions; 0 for a prepared one. */
static int
pids_of(const Others *others, int **pids)
{
	*pids = palloc(sizeof(int) * Max(others->nvxids, 1));
	return virtual_transaction_pids(others->vxids, others->nvxids, *pids,
									others->nvxids);
}

/* Append the members of an int4 array that aren't known yet. */
static int
add_pids(int *known, int nknown, ArrayType *pids)
{
	const int32 *values = (const int32 *) ARR_DATA_PTR(pids);
	int			n = ArrayGetNItems(ARR_NDIM(pids), ARR_DIMS(pids));
	int			i;

	for (i = 0; i < n && nknown < MAX_CHAIN; i++)
	{
		int			j;

		for (j = 0; j < nknown; j++)
			if (known[j] == values[i])
				break;
		if (j == nknown)
			known[nknown++] = values[i];
	}
	return nknown;
}

/*
 * Find one of these processes that waits, also indirectly, for a lock of ours,
 * or for the session that waits for us.  *which: that process; *whom: us or that
 * session.
 */
static bool
find_deadlock(const int *pids, int npids, int caller_pid, int *which, int *whom)
{
	MemoryContext check_context = AllocSetContextCreate(CurrentMemoryContext,
														"index_mover deadlock check",
														ALLOCSET_SMALL_SIZES);
	MemoryContext old_context = MemoryContextSwitchTo(check_context);
	bool		found = false;
	int			i;

	for (i = 0; i < npids && !found; i++)
	{
		int			chain[MAX_CHAIN];
		int			nchain = 1;
		int			j;

		chain[0] = pids[i];
		for (j = 0; j < nchain && !found; j++)
		{
			if (chain[j] == 0)
				continue;		/* a prepared transaction waits for nobody */
			/* another runner of the job that waits for the caller steps back */
			if (chain[j] == MyProcPid ||
				(caller_pid != 0 && chain[j] == caller_pid && !runner_of_same_job(pids[i])))
			{
				*which = pids[i];
				*whom = chain[j];
				found = true;
			}
			else
				nchain = add_pids(chain, nchain,
								  DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
																		 Int32GetDatum(chain[j]))));
		}
	}

	MemoryContextSwitchTo(old_context);
	MemoryContextDelete(check_context);
	return found;
}

/* ERROR 40P01 if waiting for these processes would be for ever. */
static void
check_waits_for_us(const int *pids, int npids, int caller_pid)
{
	int			which;
	int			whom;

	if (find_deadlock(pids, npids, caller_pid, &which, &whom))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 which == whom ?
				 errdetail("The move waits for process %d, which waits for the move.%s",
						   which, describe_command(which)) :
				 errdetail("The move waits for process %d, which waits, directly or indirectly, for process %d.%s",
						   which, whom, describe_command(which)),
				 errhint("The move has been canceled, so that the others can go on.")));
}

/*
 * If one of those we wait for is a prepared transaction, which has no process,
 * publish its name.  In a transaction that ends at once: we must not be waited
 * for ourselves.
 */
static void
name_prepared(Wait *wait, const Others *others)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *name;
	int			i;

	for (i = 0; i < others->nvxids; i++)
	{
		int			pid;

		if (virtual_transaction_pids(&others->vxids[i], 1, &pid, 1) == 1 && pid == 0)
			break;
	}
	if (i == others->nvxids || IsTransactionState() ||
		VirtualTransactionIdEquals(others->vxids[i], wait->prepared))
		return;
	wait->prepared = others->vxids[i];

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	name = prepared_transaction_name(wait->prepared);
	progress_prepared(name ? name : "");
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
}

static void
give_up_waiting(const Wait *wait, const int *pids, int npids, TimestampTz now)
{
	long		waited = TimestampDifferenceMilliseconds(wait->started_at, now);
	StringInfoData who;

	initStringInfo(&who);
	if (npids == 0)
		appendStringInfoString(&who, "others that queue for the same lock");
	else
		blockers_describe(&who, wait->relid, pids, npids);

	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("gave up waiting for %s", wait->what),
			 errdetail("Waited %g seconds for %s.", waited / 1000.0, who.data),
			 errhint("End that transaction, or raise index_mover.lock_wait.")));
}

/* pause_move(): wait for nobody, until it is over. */
static void
put_off(Wait *wait)
{
	WaitLimits *limits = wait->limits;
	int64		rested = pacing_rest_while_paused();

	if (limits->deadline != 0)
		limits->deadline += rested;
	if (limits->signal_at != 0)
		limits->signal_at += rested;
	wait->deadlock_check_at += rested;
}

/*
 * Say whom we wait for, check that it makes sense to go on, and sleep a bit.
 * ERRORs: 55P03 after the deadline, 40P01, and what cancels the job.
 */
static void
nap(Wait *wait, const int *pids, int npids)
{
	WaitLimits *limits = wait->limits;
	TimestampTz now = GetCurrentTimestamp();
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
	progress_blockers(pids, npids);

	/* what the job itself does at the same time must not make it fail */
	for (int i = 0; i < npids && limits->deadline != 0; i++)
		if (runner_of_same_job(pids[i]))
			limits->deadline = Max(limits->deadline, now + USECS_PER_SEC);

	if (now >= wait->deadlock_check_at)
	{
		check_waits_for_us(pids, npids, limits->caller_pid);
		wait->deadlock_check_at = TimestampTzPlusMilliseconds(now, DeadlockTimeout);
	}

	/*
	 * As core does for who waits for a lock, or for the end of a transaction;
	 * the next one may be there already.
	 */
	if (TimestampDifferenceExceeds(wait->autovacuum_told_at, now, DeadlockTimeout))
	{
		blockers_cancel_autovacuum(pids, npids);
		wait->autovacuum_told_at = now;
	}

	if (limits->signal_at != 0 && now >= limits->signal_at &&
		now >= wait->grace_until && limits->item != NULL &&
		blockers_signal(limits->item, limits->settings, pids, npids) > 0)
		wait->grace_until = TimestampTzPlusMilliseconds(now, BLOCKER_GRACE_MS);
	if (limits->deadline != 0 && now >= limits->deadline &&
		now >= wait->grace_until)
		give_up_waiting(wait, pids, npids, now);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 wait->nap_ms, IM_WAIT_EVENT(wait_event, "IndexMoverWaitOthers"));
	ResetLatch(MyLatch);
	wait->nap_ms = Min(wait->nap_ms * 2, LONGEST_NAP_MS);

	if (limits->cancellable)
		job_check_cancel();
	else
	{
		/* a clean-up does not stop for a cancel; SIGTERM is obeyed */
		QueryCancelPending = false;
		CHECK_FOR_INTERRUPTS();
		runner_check_step_back();
	}

	/* what we looked up meanwhile must not hold back anybody's vacuum */
	InvalidateCatalogSnapshot();
}

/* Keep of *others who is in *now too. */
static void
keep_common(Others *others, const Others *now)
{
	int			kept = 0;
	int			i;

	for (i = 0; i < others->nvxids; i++)
	{
		int			j;

		for (j = 0; j < now->nvxids; j++)
			if (VirtualTransactionIdEquals(others->vxids[i], now->vxids[j]))
				break;
		if (j < now->nvxids)
			others->vxids[kept++] = others->vxids[i];
	}
	others->nvxids = kept;
}

static Others
find_lockers(Oid heap_oid, LOCKMODE lockmode)
{
	Others		result;
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, heap_oid);
	result.vxids = GetLockConflicts(&tag, lockmode, &result.nvxids);
	return result;
}

/*
 * Wait until every other transaction that now holds a lock on this table that
 * conflicts with the given mode has ended.  Prepared ones count.
 *
 * Who comes later sees what the caller has committed before, which is all that
 * the callers of this need; core's WaitForLockers() has the same rule.
 * Needs no transaction; takes no lock.
 */
void
wait_for_lockers(Oid heap_oid, LOCKMODE lockmode, WaitLimits *limits)
{
	Wait		wait;
	Others		others;
	MemoryContext caller_context;

	begin_wait(&wait, "transactions that use the table", heap_oid, limits);
	caller_context = MemoryContextSwitchTo(wait_context);

	others = find_lockers(heap_oid, lockmode);
	while (others.nvxids > 0)
	{
		Others		now;
		int		   *pids;
		int			npids = pids_of(&others, &pids);

		name_prepared(&wait, &others);
		nap(&wait, pids, npids);
		pfree(pids);

		now = find_lockers(heap_oid, lockmode);
		keep_common(&others, &now);
		pfree(now.vxids);
	}

	MemoryContextSwitchTo(caller_context);
	end_wait(&wait);
}

/*
 * Would it be for ever?  Whether somebody who has, or wants, a lock that is in
 * the way of this one waits, also indirectly, for a lock of ours, or for the
 * session that waits for our job.
 */
bool
lockers_wait_for_us(Oid relid, LOCKMODE lockmode, int caller_pid)
{
	Others		others = find_lockers(relid, lockmode);
	int		   *pids;
	int			npids = pids_of(&others, &pids);
	int			queued[MAX_CHAIN];
	int			nqueued = relation_lock_waiters(relid, lockmode, queued, MAX_CHAIN);
	int			which;
	int			whom;
	bool		result = find_deadlock(pids, npids, caller_pid, &which, &whom) ||
		find_deadlock(queued, nqueued, caller_pid, &which, &whom);

	pfree(pids);
	pfree(others.vxids);
	return result;
}

/*
 * Transactions of this database with a snapshot whose xmin isn't above the
 * limit, without the sessions that hide when asked.
 */
static Others
find_snapshots(TransactionId limit_xmin, bool (*hides) (PGPROC *proc))
{
	Others		result;
	int			kept = 0;
	int			i;

	result.vxids = GetCurrentVirtualXIDs(limit_xmin, true, false,
										 FLAGS_NOT_WAITED_FOR, &result.nvxids);
	for (i = 0; i < result.nvxids; i++)
	{
		PGPROC	   *proc = im_vxid_proc(result.vxids[i]);

		if (proc != NULL && !hides(proc))
			result.vxids[kept++] = result.vxids[i];
	}
	result.nvxids = kept;
	return result;
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
	Wait		wait;
	Others		others;
	MemoryContext caller_context;

	begin_wait(&wait, "transactions with an old snapshot", InvalidOid, limits);
	caller_context = MemoryContextSwitchTo(wait_context);

	others = find_snapshots(limit_xmin, hides);
	while (others.nvxids > 0)
	{
		Others		now;
		int		   *pids;
		int			npids = pids_of(&others, &pids);

		nap(&wait, pids, npids);
		pfree(pids);

		now = find_snapshots(limit_xmin, hides);
		keep_common(&others, &now);
		pfree(now.vxids);
	}

	MemoryContextSwitchTo(caller_context);
	end_wait(&wait);
}

static bool
try_lock(Oid relid)
{
	LOCKTAG		tag;

	/* the caller's next transaction reads the invalidation messages */
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return LockAcquire(&tag, ShareUpdateExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock(Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	LockRelease(&tag, ShareUpdateExclusiveLock, true);
}

/*
 * Get ShareUpdateExclusiveLock on table and index for the session, table
 * first.  The caller releases both with unlock_table_and_index().  Returns
 * true if it had to wait.
 */
bool
lock_table_and_index(Oid heap_oid, Oid index_oid, WaitLimits *limits)
{
	Wait		wait;
	MemoryContext caller_context;

	begin_wait(&wait, "a lock on table and index", heap_oid, limits);
	caller_context = MemoryContextSwitchTo(wait_context);

	for (;;)
	{
		Others		others;
		int		   *pids;
		int			npids;

		if (try_lock(heap_oid))
		{
			if (try_lock(index_oid))
				break;
			unlock(heap_oid);
			wait.relid = index_oid;
		}
		else
			wait.relid = heap_oid;
		others = find_lockers(wait.relid, ShareUpdateExclusiveLock);

		npids = pids_of(&others, &pids);
		name_prepared(&wait, &others);
		nap(&wait, pids, npids);
		MemoryContextReset(wait_context);
	}

	MemoryContextSwitchTo(caller_context);
	end_wait(&wait);
	return wait.told;
}

void
unlock_table_and_index(Oid heap_oid, Oid index_oid)
{
	unlock(index_oid);
	unlock(heap_oid);
}
