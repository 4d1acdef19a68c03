/*-------------------------------------------------------------------------
 *
 * copy_pace.c
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
#include "access/spgist_private.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/bufpage.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "copy/block_set.h"
#include "copy/copy_private.h"
#include "copy/wal_changes.h"
#include "job.h"
#include "plan/plan.h"
#include "settings.h"
#include "test_points.h"
#include "wait/relation_locks.h"
#include "wait/wait.h"

/* Stand in a queue no longer than this at once, so that a cancel is noticed */
#define LOCK_ATTEMPT_MS		250

/*
 * copy_locks.c
 *
 * Is it canceled, or the postmaster gone?  Every loop asks.
 */
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
rest_without_locks(CopyState *cs)
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
			CopyOutcome meanwhile = rest_without_locks(cs);

			if (outcome == GO_ON)
				outcome = meanwhile;
		}

		/* short waits, so that a canceled job notices */
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
			blockers_describe(&list, wanted, pids, npids);
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
	cs->rmid = copy_page_rmgr(form->relam);
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

/*
 * Between two pieces of work, with no transaction open: is the job canceled,
 * does anybody wait behind us, is it paused, are we too fast for max_rate or
 * for a standby?  Keeps up with the WAL while it waits.  ERROR 53100 if there is
 * no room for the next piece.
 */
CopyOutcome
copy_between_chunks(CopyState *cs)
{
	MovePhase	phase = PHASE_COPYING;
	CopyOutcome outcome = GO_ON;
	bool		waited = false;
	TimestampTz start = GetCurrentTimestamp();
	int64		rested_before = cs->rested_ms;

	copy_check_interrupts();
	space_check_again(cs->mc->item, cs->mc->settings);
	wal_ahead();

	for (;;)
	{
		const MoveSettings *settings = cs->mc->settings;
		MovePhase	before;
		int			ms;

		if (copy_is_in_the_way(cs) && (outcome = copy_give_way(cs)) != GO_ON)
			break;

		if (job_pause_requested())
		{
			before = progress_phase(PHASE_PAUSED);
			progress_blockers(NULL, 0);
			ms = SHORT_REST_MS;
		}
		else if (replica_lag_too_large(&cs->lag, settings))
		{
			before = progress_phase(PHASE_THROTTLED);
			ms = SHORT_REST_MS;
		}
		else if ((ms = throttle_due(&cs->throttle, settings)) > 0)
			before = progress_phase(PHASE_THROTTLED);
		else
			break;
		if (!waited)
			phase = before;
		waited = true;
		(void) throttle_rest(Min(ms, SHORT_REST_MS));
		copy_check_interrupts();

		if ((outcome = copy_keep_up(cs)) != GO_ON)
			break;
	}
	if (waited)
	{
		progress_phase(phase);
		cs->rested_ms = rested_before +
			TimestampDifferenceMilliseconds(start, GetCurrentTimestamp());
	}
	return outcome;
}

/*
 * Read the WAL up to now.  In a transaction of its own, except under the lock.
 */
CopyOutcome
copy_drain(CopyState *cs)
{
	bool		own_transaction = !IsTransactionState();
	XLogRecPtr	upto;
	ChangesResult result;

	if (own_transaction)
	{
		/* not under the lock; changed_blocks.c keeps open what it makes */
		wal_ahead();
		StartTransactionCommand();
	}
	upto = IM_MUTATION("flushed-only") ? GetFlushRecPtr(NULL) : wal_changes_mark();
	result = wal_changes_read(cs->changes, upto, cs->copied);
	if (own_transaction)
		CommitTransactionCommand();

	switch (result)
	{
		case CHANGES_READ:
			break;
		case CHANGES_FILE_REPLACED:
			cs->start_again = "its file was truncated, or changed in a way that the WAL does not tell block by block";
			return START_AGAIN;
		case CHANGES_WAL_GONE:
			cs->start_again = "WAL that tells its changes was removed before it was read";
			return START_AGAIN;
	}
	progress_changed(wal_changes_count(cs->changes) + block_set_count(cs->todo));
	copy_change_rate(cs);
	return GO_ON;
}

/* Read the WAL if it could be recycled before we come to it. */
CopyOutcome
copy_keep_up(CopyState *cs)
{
	return wal_changes_read_is_due(cs->changes) ? copy_drain(cs) : GO_ON;
}

/* Put what draining has found onto the list of blocks to be copied again. */
void
copy_take_changes(CopyState *cs)
{
	BlockSet   *set = wal_changes_take(cs->changes);

	if (IM_MUTATION("one-block"))
		block_set_remove(set, block_set_next(set, 1));
	if (!IM_MUTATION("catch-up"))
		block_set_add_all(cs->todo, set);
	block_set_free(set);
}

/* The resource manager that knows how to mask the pages of an access method. */
RmgrId
copy_page_rmgr(Oid access_method)
{
	switch (access_method)
	{
		case BTREE_AM_OID:
			return RM_BTREE_ID;
		case HASH_AM_OID:
			return RM_HASH_ID;
		case GIST_AM_OID:
			return RM_GIST_ID;
		case GIN_AM_OID:
			return RM_GIN_ID;
		case SPGIST_AM_OID:
			return RM_SPGIST_ID;
		case BRIN_AM_OID:
			return RM_BRIN_ID;
		default:
			return RM_GENERIC_ID;
	}
}
