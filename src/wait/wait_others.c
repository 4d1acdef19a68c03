/*-------------------------------------------------------------------------
 *
 * wait_others.c
 *	  Waiting for other transactions without making others wait.
 *
 * Core queues for other transactions and for locks.  Here we check, sleep and
 * check again instead.  So a waiting runner shows whom it waits for, obeys
 * cancel_move(), and never has others queue behind it.
 *
 * Locks: only the caller's; no snapshot and no transaction ID.
 *
 * Tricky: the deadlock detector does not see a wait of this kind, see src/README.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "own_tables.h"
#include "wait/wait.h"

#define SHORTEST_NAP_MS		2
#define LONGEST_NAP_MS		100

/* A transaction is in the way for long if it has been found for longer than both */
#define LONG_MS				1000
#define LONG_TIMEOUTS		10	/* times lock_timeout */

/* As core's WaitForOlderSnapshots() */
#define FLAGS_NOT_WAITED_FOR \
	(PROC_IS_AUTOVACUUM | PROC_IN_VACUUM | PROC_IN_SAFE_IC)

/* Outlives transactions; reset when the next wait begins. */
static MemoryContext wait_context = NULL;

/* Append the processes for whose locks, or outside of the lock manager, it waits. */
static List *
add_waited_for(List *pids, int pid, const RunnerSlot *runners, int nrunners)
{
	ArrayType  *array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
															   Int32GetDatum(pid)));
	const int32 *blockers = (const int32 *) ARR_DATA_PTR(array);

	for (int i = 0; i < ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)); i++)
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

/* Return the job slot of the runner that a process is, -1 if it is none. */
static int
slot_of(int pid, const RunnerSlot *runners, int nrunners)
{
	for (int i = 0; i < nrunners; i++)
	{
		if (runners[i].pid == pid)
			return runners[i].slot;
	}
	return -1;
}

/*
 * Find out whether a process is, or waits, directly or not, for any of the
 * targets (0 = none).  Return that target, or 0; *last becomes the process that itself
 * waits for it.
 *
 * If runners are given, their waits without queueing count, a caller waits for
 * the runners of its job, and a program that polls may wait for us (pollers.c).
 * Waits of another runner of the first process's job do not count: that runner
 * handles them itself.
 */
int
wait_find_deadlock(int pid, const int targets[2],
				   const RunnerSlot *runners, int nrunners, int *last)
{
	MemoryContext check_context = AllocSetContextCreate(CurrentMemoryContext,
														"index_mover deadlock check",
														ALLOCSET_SMALL_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(check_context);
	List	   *pids = list_make1_int(pid);
	int			slot = slot_of(pid, runners, nrunners);
	int			found = 0;

	*last = pid;
	/* the list grows during the loop */
	for (int n = 0;; n++)
	{
		for (int i = 0; i < 2 && found == 0; i++)
		{
			if (list_member_int(pids, targets[i]))
				found = targets[i];
		}
		if (found != 0 || n >= list_length(pids))
			break;
		*last = list_nth_int(pids, n);
		if (n == 0 || slot < 0 || slot_of(*last, runners, nrunners) != slot)
			pids = add_waited_for(pids, *last, runners, nrunners);
		if (n > 0 && nrunners > 0)
		{
			if (poller_find_wait(*last))
				pids = list_append_unique_int(pids, MyProcPid);
		}
	}

	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(check_context);
	return found;
}

/* Return any of these processes that waits, in the end, for us or our caller; 0 if none does. */
static int
find_waiting_for_us(const int *pids, int npids, int caller_pid)
{
	int			last;

	for (int i = 0; i < npids; i++)
	{
		/* another runner of our job steps back if it waits for the caller */
		const int	targets[2] = {MyProcPid, runner_of_same_job(pids[i]) ? 0 : caller_pid};

		if (pids[i] == 0)
			continue;
		if (wait_find_deadlock(pids[i], targets, NULL, 0, &last) != 0)
			return pids[i];
	}
	return 0;
}

/*
 * Return whether a wait for extension_hold()'s lock would never end: a process that
 * holds or wants a conflicting lock waits, also indirectly, for us or for our caller.
 */
bool
extension_find_deadlock(int caller_pid)
{
	LOCKTAG		tag;
	int			count;
	VirtualTransactionId *holders;
	int			pids[WAIT_MAX_PIDS];
	int			npids;

	extension_lock_tag(&tag);
	holders = GetLockConflicts(&tag, AccessShareLock, &count);
	npids = virtual_transaction_pids(holders, count, pids, WAIT_MAX_PIDS / 2);
	pfree(holders);				/* in a loop, perhaps in no transaction */
	npids += extension_lock_waiters(pids + npids, WAIT_MAX_PIDS / 2);
	return find_waiting_for_us(pids, npids, caller_pid) != 0;
}

/*
 * Begin a wait; limits must remain valid.
 */
void
wait_begin(Wait *wait, const char *gave_up, WaitLimits *limits)
{
	if (wait_context == NULL)
		wait_context = AllocSetContextCreate(TopMemoryContext,
											 "index_mover wait",
											 ALLOCSET_SMALL_SIZES);
	memset(wait, 0, sizeof(Wait));
	wait->limits = limits;
	wait->gave_up = gave_up;
	wait->nap_ms = SHORTEST_NAP_MS;
	wait->checked_at = clock_seconds();
	if (limits->since == 0)
	{
		limits->since = clock_us();
		limits->rested_before = pacing_rested_ms();
	}
}

/*
 * Note the transactions that a look has found in the way.  Transactions that were found before
 * keep the time, and their places at the front; of too many the oldest are kept.
 */
void
wait_note_holders(Wait *wait, const VirtualTransactionId *vxids, int count)
{
	int64		now = clock_us();
	int			kept = 0;

	for (int i = 0; i < wait->nholders; i++)
	{
		if (virtual_transactions_have(vxids, count, wait->holders[i].vxid))
			wait->holders[kept++] = wait->holders[i];
		else if (wait->holders[i].since > wait->first_look)
			wait->lasted = now - wait->holders[i].since;
	}
	wait->nholders = kept;
	if (wait->first_look == 0)
		wait->first_look = now;
	for (int i = 0; i < count && wait->nholders < WAIT_MAX_PIDS; i++)
	{
		bool		found = false;

		for (int j = 0; j < kept; j++)
		{
			if (VirtualTransactionIdEquals(wait->holders[j].vxid, vxids[i]))
				found = true;
		}
		if (!found)
		{
			Holder	   *holder = &wait->holders[wait->nholders++];

			holder->vxid = vxids[i];
			holder->since = now;
		}
	}
}

/* Find the transactions with a lock that conflicts.  Return whether there are any. */
bool
wait_find_holders(Wait *wait, Oid relid, LOCKMODE mode)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(wait_context);
	VirtualTransactionId *vxids;
	int			count;

	MemoryContextReset(wait_context);
	wait->relid = relid;
	vxids = relation_lock_holders(relid, mode, &count);
	wait_note_holders(wait, vxids, count);
	MemoryContextSwitchTo(oldcontext);
	return wait->nholders > 0;
}

/*
 * Forget the holders that have ended, where a look could not be made.  How long the last one
 * has lasted is not known then.
 */
void
wait_forget_ended(Wait *wait)
{
	int			kept = 0;

	for (int i = 0; i < wait->nholders; i++)
	{
		if (virtual_transaction_pid(wait->holders[i].vxid) >= 0)
			wait->holders[kept++] = wait->holders[i];
	}
	wait->nholders = kept;
}

/* Return when a wait has begun, later by all rests since then, which are no part of it. */
int64
wait_began(const WaitLimits *limits)
{
	return limits->since + (pacing_rested_ms() - limits->rested_before) * 1000;
}

/*
 * Return whether the wait has lasted so long, without rests and at least since then,
 * and whoever was signaled had time.
 */
static bool
is_over(const Wait *wait, int64 ms, int64 then)
{
	int64		begin = Max(wait_began(wait->limits), then);
	int64		now = clock_us();

	return ms > 0 && now >= begin + ms * 1000 && now >= wait->grace_until;
}

static int
limit_ms(const WaitLimits *limits)
{
	return limits->max_ms == LOCK_WAIT ? limits->mc->settings->lock_wait : limits->max_ms;
}

/* Return whether it is time to give up (on_blocker = wait: to warn). */
bool
wait_is_over(const Wait *wait)
{
	/*
	 * the work of another runner of the job must not make ours fail; but a
	 * cleanup is not to last as long as that
	 */
	bool		is_move = wait->limits->max_ms == LOCK_WAIT;

	return is_over(wait, limit_ms(wait->limits), is_move ? wait->ours_at : 0);
}

/*
 * Return from which age on a transaction is in the way for long, in ms: as long as an
 * attempt cannot wait for it by far, but no longer than the whole wait is to last.
 */
static int64
long_ms(const WaitLimits *limits)
{
	int64		ms = LONG_MS;
	int64		limit = limit_ms(limits);

	if (limits->mc != NULL)
		ms = Max(ms, (int64) limits->mc->settings->lock_timeout * LONG_TIMEOUTS);
	return limit > 0 ? Min(ms, limit) : ms;
}

/* Return how many of the holders, at the front, have been there for long. */
static int
count_long_holders(const Wait *wait)
{
	int64		then = clock_us() - long_ms(wait->limits) * 1000;
	int			count = 0;

	while (count < wait->nholders && wait->holders[count].since <= then)
		count++;
	return count;
}

bool
wait_has_long_holder(const Wait *wait)
{
	return count_long_holders(wait) > 0;
}

/* Return whether any of these transactions was, at the last look, and has been there for long. */
bool
wait_has_long_among(const Wait *wait, const VirtualTransactionId *vxids, int count)
{
	int			nlong = count_long_holders(wait);

	for (int i = 0; i < nlong; i++)
	{
		if (virtual_transactions_have(vxids, count, wait->holders[i].vxid))
			return true;
	}
	return false;
}

/*
 * Set named[] to whom to name as being in the way: the holders that have been there for
 * long or, if there are none, all of them.  Return how many.
 */
int
wait_named(const Wait *wait, VirtualTransactionId named[WAIT_MAX_PIDS])
{
	int			count = count_long_holders(wait);

	if (count == 0)
		count = wait->nholders;
	for (int i = 0; i < count; i++)
		named[i] = wait->holders[i].vxid;
	return count;
}

/*
 * Set named[] to the holders that people are told of when a wait has lasted: who was there before
 * it, or has been there for half as long as "for long".  If others come and go, those that are
 * there for less are gone when their names are read, and their sessions would be ended for
 * nothing.  Return how many.
 */
int
wait_lasting(const Wait *wait, VirtualTransactionId named[WAIT_MAX_PIDS])
{
	int64		then = clock_us() - long_ms(wait->limits) * 1000 / 2;
	int			count = 0;

	if (wait->lasted == 0)
		return wait_named(wait, named);
	while (count < wait->nholders &&
		   wait->holders[count].since <= Max(then, wait->first_look))
	{
		named[count] = wait->holders[count].vxid;
		count++;
	}
	return count;
}

/* Signal the holders that have been there for long; true if others may turn out to be so soon. */
static bool
signal_holders(Wait *wait)
{
	const MoveContext *mc = wait->limits->mc;
	VirtualTransactionId named[WAIT_MAX_PIDS];
	int			nlong = count_long_holders(wait);
	bool		signaled = false;

	/* the front of the list */
	(void) wait_named(wait, named);
	if (nlong > 0)
		signaled = blockers_signal(mc->item, mc->settings, named, nlong);
	if (signaled)
	{
		wait->grace_until = clock_us() + BLOCKER_GRACE_MS * INT64CONST(1000);
		return true;
	}
	return nlong < wait->nholders &&
		!is_over(wait, mc->settings->lock_wait + long_ms(wait->limits), 0);
}

/*
 * Publish whom we wait for, check for a deadlock, and cancel or signal blockers
 * when it is time to.  Return whether it is time to give up.  ERROR 40P01 if the
 * wait would never end.
 */
bool
wait_look(Wait *wait)
{
	const MoveContext *mc = wait->limits->mc;
	int64		now = clock_us();
	VirtualTransactionId named[WAIT_MAX_PIDS];
	int			nnamed = wait_named(wait, named);
	int			pids[WAIT_MAX_PIDS];
	int			npids = 0;
	int			which;
	bool		goes_on = false;

	for (int i = 0; i < wait->nholders; i++)
	{
		int			pid = virtual_transaction_pid(wait->holders[i].vxid);

		if (pid < 0)
			continue;			/* it has ended */
		pids[npids++] = pid;
		if (runner_of_same_job(pid))
			wait->ours_at = now;
	}
	progress_blockers(named, nnamed);

	if (clock_has_passed(wait->checked_at, DeadlockTimeout))
	{
		which = 0;
		if (!wait->ignore_deadlocks)
			which = find_waiting_for_us(pids, npids, mc ? mc->job->caller_pid : 0);
		if (which != 0 && OidIsValid(wait->limits->insist_on))
		{
			PGPROC	   *proc = BackendPidGetProc(which);
			bool		gives_way = false;

			if (proc != NULL && blockers_may_signal(proc->roleId))
				gives_way = blockers_cancel_maintenance(proc, wait->limits->insist_on,
														mc->settings);
			if (gives_way)
				which = 0;
		}
		if (which != 0)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected"),
					 errdetail("The move waits for process %d, which waits, directly or indirectly, for the move.",
							   which),
					 errdetail_log("The move waits for process %d, which waits, directly or indirectly, for the move.%s",
								   which, describe_command(which))));
		/* as core does; and again, since the next autovacuum may have come */
		blockers_cancel_autovacuum(pids, npids);
		wait->checked_at = clock_seconds();
	}

	if (mc != NULL && SIGNALS_BLOCKERS(mc->settings) &&
		is_over(wait, mc->settings->lock_wait, 0))
		goes_on = signal_holders(wait);
	return !goes_on && wait_is_over(wait);
}

/* Raise ERROR 55P03, which names the holders that the last wait_look() has found. */
void
wait_give_up(const Wait *wait)
{
	VirtualTransactionId named[WAIT_MAX_PIDS];
	int			nnamed = wait_lasting(wait, named);
	char	   *list = blockers_describe(named, nnamed);
	const char *name = get_rel_name(wait->relid);
	double		limit_s = limit_ms(wait->limits) / 1000.0;

	if (wait->gave_up != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg_internal("%s", _(wait->gave_up)),
				 errdetail("Waited %g seconds for %s.",
						   (clock_us() - wait->limits->since) / 1000 / 1000.0, list)));
	if (name == NULL)
		name = "?";
	if (nnamed > 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not lock relation \"%s\" within %g seconds", name, limit_s),
				 errdetail("The lock was held by: %s.", list)));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not lock relation \"%s\" within %g seconds", name, limit_s),
			 errdetail("Others queue for the lock, or have held it only for moments."),
			 errhint("Make the move at a quieter time, or raise index_mover.lock_timeout.")));
}

/* Look at the holders, and sleep a bit.  ERRORs: 55P03 after the deadline, 40P01, 57014. */
static void
nap(Wait *wait)
{
	WaitLimits *limits = wait->limits;

	if (!wait->told)
	{
		wait->phase_before = progress_phase(limits->phase);
		wait->told = true;
	}
	if (limits->cancellable && !IsTransactionState() && job_pause_requested())
	{
		pacing_rest_while_paused();
		return;
	}
	if (wait_look(wait))
		wait_give_up(wait);

	latch_nap(wait->nap_ms, "IndexMoverWaitOthers");
	wait->nap_ms = Min(wait->nap_ms * 2, LONGEST_NAP_MS);

	if (limits->cancellable)
		job_check_cancel();
	else
	{
		/* a cleanup does not stop for a cancel; SIGTERM is obeyed */
		if (limits->mc != NULL)
			runner_take_cancel(limits->mc->job);
		else
			QueryCancelPending = false;
		CHECK_FOR_INTERRUPTS();
		runner_check_step_back();
	}

	/* catalog snapshots must not hold back vacuum */
	InvalidateCatalogSnapshot();
}

/*
 * Wait until is_free() returns true; while it returns false, it sets relid
 * and vxids.  It may have started a transaction when it returns true.  Return
 * whether there was something to wait for.
 */
bool
wait_until(const char *gave_up, WaitLimits *limits,
		   bool (*is_free) (Wait *wait, void *arg), void *arg)
{
	MemoryContext caller_context = CurrentMemoryContext;
	Wait		wait;

	wait_begin(&wait, gave_up, limits);
	MemoryContextReset(wait_context);
	for (;;)
	{
		MemoryContextSwitchTo(wait_context);
		if (is_free(&wait, arg))
			break;
		MemoryContextSwitchTo(wait_context);
		nap(&wait);
	}
	MemoryContextSwitchTo(caller_context);
	if (wait.told)
	{
		progress_blockers(NULL, 0);
		progress_phase(wait.phase_before);
	}
	return wait.told;
}

/* Whom wait_for_lockers() or wait_for_snapshots() waits for */
typedef struct Others
{
	Oid			relid;			/* holders of its lock; 0 = of snapshots */
	LOCKMODE	mode;
	TransactionId limit_xmin;
	bool		(*hides) (PGPROC *proc);
	VirtualTransactionId *first;	/* found at the first look, and still
									 * there */
	int			count;
} Others;

/* Keep the transactions of the first check that are left.  Return whether none is. */
static bool
keep_others(Wait *wait, void *arg)
{
	Others	   *others = arg;
	int			count;
	int			kept = 0;
	VirtualTransactionId *now = OidIsValid(others->relid) ?
		relation_lock_holders(others->relid, others->mode, &count) :
		GetCurrentVirtualXIDs(others->limit_xmin, true, false, FLAGS_NOT_WAITED_FOR, &count);

	wait->relid = others->relid;
	if (others->first == NULL)
	{
		others->first = now;
		others->count = count;
	}
	for (int i = 0; i < others->count; i++)
	{
		VirtualTransactionId vxid = others->first[i];
		PGPROC	   *proc = im_vxid_proc(vxid);

		if (!virtual_transactions_have(now, count, vxid) ||
			(others->hides != NULL && (proc == NULL || others->hides(proc))))
			continue;
		others->first[kept++] = vxid;
	}
	if (now != others->first)
		pfree(now);
	others->count = kept;
	wait_note_holders(wait, others->first, kept);
	return kept == 0;
}

/*
 * Wait until every other transaction, prepared or not, that now holds a conflicting
 * lock on this table has ended.  A later transaction sees the caller's commits: the rule of
 * core's WaitForLockers().
 */
void
wait_for_lockers(Oid heap_oid, LOCKMODE lockmode, WaitLimits *limits)
{
	Others		others = {.relid = heap_oid,.mode = lockmode};

	(void) wait_until(gettext_noop("gave up waiting for transactions that use the table"),
					  limits, keep_others, &others);
}

/*
 * Wait until every other transaction of this database that now has a snapshot
 * with xmin <= limit_xmin has released it; core's WaitForOlderSnapshots() waits for
 * its end.  hides() tells which processes core will not wait for either.
 */
void
wait_for_snapshots(TransactionId limit_xmin, bool (*hides) (PGPROC *proc),
				   WaitLimits *limits)
{
	Others		others = {.limit_xmin = limit_xmin,.hides = hides};

	(void) wait_until(gettext_noop("gave up waiting for transactions with an old snapshot"),
					  limits, keep_others, &others);
}

/* Lock for the session; the next transaction reads the invalidations. */
static bool
try_lock(Wait *wait, Oid relid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	if (LockAcquire(&tag, ShareUpdateExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL)
		return true;
	(void) wait_find_holders(wait, relid, ShareUpdateExclusiveLock);
	return false;
}

/* Lock both for the session, or none.  arg: table and index */
static bool
try_lock_both(Wait *wait, void *arg)
{
	const Oid  *relids = arg;

	if (!try_lock(wait, relids[0]))
		return false;
	if (try_lock(wait, relids[1]))
		return true;
	unlock_relation_for_session(relids[0], ShareUpdateExclusiveLock);
	return false;
}

/*
 * Lock table and index, in this order, in ShareUpdateExclusiveLock for the
 * session.  The caller releases both with unlock_table_and_index().  Return
 * whether it had to wait.
 */
bool
lock_table_and_index(Oid heap_oid, Oid index_oid, WaitLimits *limits)
{
	Oid			relids[2] = {heap_oid, index_oid};

	return wait_until(NULL, limits, try_lock_both, relids);
}

/* Release the locks of lock_table_and_index(). */
void
unlock_table_and_index(Oid heap_oid, Oid index_oid)
{
	unlock_relation_for_session(index_oid, ShareUpdateExclusiveLock);
	unlock_relation_for_session(heap_oid, ShareUpdateExclusiveLock);
}
