/*-------------------------------------------------------------------------
 *
 * copy_locks.c
 *	  Method copy: the locks of the long phase, and letting others pass.
 *
 * AccessShareLock on the table, then ShareUpdateExclusiveLock on the index, both
 * for the session.  That keeps out DROP, TRUNCATE, REINDEX and rewrites, and
 * lets VACUUM pass.  If DDL waits behind us we let go of both, queue behind it,
 * and look whether the file is still the same.
 *
 * Assumption: whatever gives the index another file, or drops it, conflicts with
 * one of these two locks.
 *
 * Tricky point: an abort of any transaction takes session locks with it; so who
 * waits in vain must not throw (see relation_locks.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "wait/blockers.h"
#include "catalog/pg_class.h"
#include "copy/compare_blocks.h"
#include "plan/copy_methods.h"
#include "copy/copy_state.h"
#include "wait/holders.h"
#include "miscadmin.h"
#include "plan/plan.h"
#include "wait/relation_locks.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* Stand in a queue no longer than this at once, so that a cancel is noticed */
#define LOCK_ATTEMPT_MS		250

/* Is it cancelled, or the postmaster gone?  Every loop asks. */
void
copy_check_interrupts(void)
{
	if (!PostmasterIsAlive())
		proc_exit(1);
	job_check_cancel();
}

/*
 * While the job is paused, don't ask for locks either.  Nothing is locked, so
 * nobody has to be let pass.  Keeps up with the WAL, if that is followed.
 */
static CopyOutcome
rest_while_paused(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_PAUSED);
	TimestampTz start = GetCurrentTimestamp();
	CopyOutcome outcome = GO_ON;

	progress_blockers(NULL, 0);
	while (job_pause_requested())
	{
		(void) throttle_rest(SHORT_REST_MS);
		copy_check_interrupts();
		if (cs->changes != NULL && outcome == GO_ON)
			outcome = copy_keep_up(cs);
	}
	cs->rested_ms += TimestampDifferenceMilliseconds(start, GetCurrentTimestamp());
	progress_phase(phase);
	return outcome;
}

/*
 * Lock table and index for the session, in this order, however long others
 * have them; after lock_wait as on_blocker says.  Nobody's reads and writes wait
 * behind these two.  Keeps up with the WAL, if that is followed already.
 */
CopyOutcome
copy_wait_for_locks(CopyState *cs)
{
	CopyOutcome outcome = GO_ON;
	TimestampTz start = GetCurrentTimestamp();
	int64		rested_before = cs->rested_ms;
	TimestampTz grace_until = 0;
	MovePhase	phase = progress_phase(PHASE_WAIT_START);

	for (;;)
	{
		const MoveSettings *settings = cs->mc->settings;
		VirtualTransactionId *holders;
		int			nholders;
		int			pids[IM_MAX_BLOCKERS];
		int			npids;
		Oid			wanted = cs->table;
		LOCKMODE	mode = AccessShareLock;
		bool		over;
		char	   *name;

		if (job_pause_requested())
		{
			CopyOutcome meanwhile = rest_while_paused(cs);

			if (outcome == GO_ON)
				outcome = meanwhile;
		}

		/* short waits, so that a cancelled job notices */
		StartTransactionCommand();
		if (lock_relation_within(cs->table, AccessShareLock, true, LOCK_ATTEMPT_MS,
								 NULL))
		{
			if (lock_relation_within(cs->index, ShareUpdateExclusiveLock, true,
									 LOCK_ATTEMPT_MS, NULL))
			{
				CommitTransactionCommand();
				break;
			}
			unlock_relation_for_session(cs->table, AccessShareLock);
			wanted = cs->index;
			mode = ShareUpdateExclusiveLock;
		}
		holders = relation_lock_holders(wanted, mode, &nholders);
		npids = virtual_transaction_pids(holders, nholders, pids, IM_MAX_BLOCKERS);
		progress_blockers(pids, npids);
		over = settings->lock_wait > 0 &&
			TimestampDifferenceMilliseconds(start, GetCurrentTimestamp()) -
			(cs->rested_ms - rested_before) >= settings->lock_wait;
		if (over && blockers_signal(cs->mc->item, settings, pids, npids) > 0)
			grace_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													  BLOCKER_GRACE_MS);
		if (over && settings->on_blocker == ON_BLOCKER_WAIT)
			swap_still_waiting(cs->mc->item, wanted, settings, pids, npids, &cs->told);
		else if (over && GetCurrentTimestamp() >= grace_until)
		{
			StringInfoData list;

			name = get_rel_name(wanted);
			initStringInfo(&list);
			holders_describe(&list, wanted, pids, npids);
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not lock relation \"%s\" within %g seconds",
							name ? name : "?", settings->lock_wait / 1000.0),
					 npids > 0 ?
					 errdetail("The lock was held by: %s.", list.data) : 0,
					 errhint("See move_blockers(), or raise index_mover.lock_wait.")));
		}
		CommitTransactionCommand();
		copy_check_interrupts();

		if (cs->changes != NULL && outcome == GO_ON)
			outcome = copy_keep_up(cs);
	}
	cs->locked = true;
	progress_blockers(NULL, 0);
	progress_phase(phase);
	return outcome;
}

/* Let go of both locks. */
void
copy_release_locks(CopyState *cs)
{
	if (!cs->locked)
		return;
	cs->locked = false;
	unlock_relation_for_session(cs->index, ShareUpdateExclusiveLock);
	unlock_relation_for_session(cs->table, AccessShareLock);
}

/*
 * Under the locks, look whether the index may still be moved, and which file
 * it has: remember it the first time, compare it later.
 */
CopyOutcome
copy_check_relation(CopyState *cs, bool first)
{
	MoveItem   *item = cs->mc->item;
	HeapTuple	tuple;
	Form_pg_class form;
	RelFileLocator file;
	char	   *reason;
	CopyOutcome outcome = GO_ON;

	StartTransactionCommand();
	if (!plan_recheck(item, cs->began))
	{
		CommitTransactionCommand();
		return NOT_MOVABLE;
	}
	if (!copy_can_move(cs->index, cs->mc->settings->copy_access_methods, &reason))
	{
		item->status = STATUS_SKIPPED;
		strlcpy(item->sqlstate, unpack_sql_state(ERRCODE_FEATURE_NOT_SUPPORTED),
				sizeof(item->sqlstate));
		snprintf(item->detail, sizeof(item->detail),
				 "method copy cannot move this index: %s", reason);
		CommitTransactionCommand();
		return NOT_MOVABLE;
	}

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(cs->index));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", cs->index);
	form = (Form_pg_class) GETSTRUCT(tuple);
	file.spcOid = OidIsValid(form->reltablespace) ? form->reltablespace :
		MyDatabaseTableSpace;
	file.dbOid = MyDatabaseId;
	file.relNumber = form->relfilenode;
	cs->rmid = page_resource_manager(form->relam);
	ReleaseSysCache(tuple);
	cs->opted_in = !copy_can_move(cs->index, "", NULL);
	CommitTransactionCommand();
	cs->began = true;

	if (first)
		cs->from = file;
	else if (!RelFileLocatorEquals(cs->from, file))
	{
		cs->start_again = "its file was replaced by another command";
		outcome = START_AGAIN;
	}
	return outcome;
}

/* Does somebody's DDL wait behind our locks, and may it pass? */
bool
copy_is_in_the_way(CopyState *cs)
{
	int			pid;

	return cs->mc->settings->give_way &&
		(relation_lock_waiters(cs->index, ShareUpdateExclusiveLock, &pid, 1) > 0 ||
		 relation_lock_waiters(cs->table, AccessShareLock, &pid, 1) > 0);
}

/*
 * Somebody's DDL waits behind our locks, and all clients of the table behind
 * him: let him pass, queue again, and see what he has left us.
 */
CopyOutcome
copy_give_way(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_GIVING_WAY);
	CopyOutcome outcome;

	ereport(DEBUG1,
			(errmsg_internal("index_mover lets others pass on index %u", cs->index)));
	copy_release_locks(cs);
	(void) throttle_rest(5);
	outcome = copy_wait_for_locks(cs);
	if (outcome == GO_ON)
		outcome = copy_check_relation(cs, false);
	progress_phase(phase);
	return outcome;
}
