/*-------------------------------------------------------------------------
 *
 * copy_pace.c
 *	  Method copy: the locks of the long phase, and giving way to others.
 *
 * Locks: AccessShareLock on the table, then, if that is what moves,
 * ShareUpdateExclusiveLock on the index, both for the session.  These keep out
 * DROP, TRUNCATE, REINDEX and rewrites, but not VACUUM.  A table is moved under
 * the first alone: whatever replaces its file asks for AccessExclusiveLock.  If
 * DDL waits behind us we release them, queue behind it, and check whether the
 * file is still the same.
 *
 * Assumption: whatever gives the index another file, or drops it, conflicts
 * with one of these two locks.
 *
 * Tricky: the abort of any transaction releases session locks, so a wait in
 * vain must not throw (see relation_locks.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/syscache.h"

#include "copy/copy_private.h"
#include "file_system.h"
#include "plan/plan.h"

/* Queue no longer than this at once, so that a cancel is noticed */
#define LOCK_ATTEMPT_MS		250

/* Obey a cancel, and the death of the postmaster.  Every loop calls this. */
void
copy_check_interrupts(void)
{
	if (!PostmasterIsAlive())
		proc_exit(1);
	job_check_cancel();
}

/*
 * Warn, once in a copy, that it goes on trying to lock this relation after
 * lock_wait, and name the holders.  In a transaction.
 */
void
copy_still_waiting(CopyState *cs, Oid relid, const int *pids, int npids)
{
	char	   *list;

	if (cs->told)
		return;
	cs->told = true;
	list = blockers_describe(relid, pids, npids);
	ereport(WARNING,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
					relation_noun(cs->mc->item->relkind), NameStr(cs->mc->item->relname), cs->mc->settings->lock_wait / 1000.0),
			 npids > 0 ?
			 errdetail("The lock is held by: %s.", list) :
			 errdetail("No transaction holds it: too many blocks change to be copied under the lock, or a system catalog is locked."),
			 errhint("See index_mover_blockers(); cancel_move() ends the wait.")));
	pfree(list);
}

/* Read the WAL in time, if it is followed.  Never ends the rest. */
static bool
keep_up_without_locks(void *arg)
{
	CopyState  *cs = (CopyState *) arg;

	if (cs->changes != NULL && cs->outcome == GO_ON)
		cs->outcome = copy_keep_up(cs);
	return true;
}

/*
 * Lock table and index for the session, in this order, however long others
 * hold them; after lock_wait do as on_blocker says.  Reads and writes do not
 * wait behind these two locks.  Keeps up with the WAL, if that is followed
 * already.
 */
CopyOutcome
copy_wait_for_locks(CopyState *cs)
{
	const MoveSettings *settings = cs->mc->settings;
	WaitLimits	limits = {.item = cs->mc->item,.settings = settings,.rested_ms = &cs->rested_ms};
	Wait		wait;
	MovePhase	phase = progress_phase(PHASE_WAIT_START);

	cs->outcome = GO_ON;
	wait_begin(&wait, NULL, &limits);
	/* a session that waits for this transaction waits for a moment only */
	wait.deadlock_check_at = DT_NOEND;
	for (;;)
	{
		cs->rested_ms += pacing_rest(NULL, NULL, NULL, keep_up_without_locks, cs) / 1000;

		/* short waits, so that a cancel is noticed */
		StartTransactionCommand();
		if (lock_relation_within(cs->table, AccessShareLock, true, LOCK_ATTEMPT_MS,
								 NULL))
		{
			if (cs->is_table ||
				lock_relation_within(cs->index, ShareUpdateExclusiveLock, true,
									 LOCK_ATTEMPT_MS, NULL))
			{
				CommitTransactionCommand();
				break;
			}
			unlock_relation_for_session(cs->table, AccessShareLock);
			(void) wait_find_holders(&wait, cs->index, ShareUpdateExclusiveLock);
		}
		else
			(void) wait_find_holders(&wait, cs->table, AccessShareLock);
		if (wait_look(&wait))
		{
			if (settings->on_blocker != ON_BLOCKER_WAIT)
				wait_give_up(&wait);
			copy_still_waiting(cs, wait.relid, wait.pids, wait.npids);
		}
		CommitTransactionCommand();
		copy_check_interrupts();
		keep_up_without_locks(cs);
	}
	cs->locked = true;
	progress_blockers(NULL, 0);
	progress_phase(phase);
	return cs->outcome;
}

/* Release both locks, if held. */
void
copy_release_locks(CopyState *cs)
{
	if (!cs->locked)
		return;
	cs->locked = false;
	if (!cs->is_table)
		unlock_relation_for_session(cs->index, ShareUpdateExclusiveLock);
	unlock_relation_for_session(cs->table, AccessShareLock);
}

/*
 * Check, under the locks, whether the index may still be moved, and which
 * file it has: the file is remembered the first time, and compared later.
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
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "Method copy cannot move the %s: %s.", relation_noun(item->relkind), reason);
		CommitTransactionCommand();
		return NOT_MOVABLE;
	}

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(cs->index));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", cs->index);
	form = (Form_pg_class) GETSTRUCT(tuple);
	file = make_locator(OidIsValid(form->reltablespace) ? form->reltablespace : MyDatabaseTableSpace,
						MyDatabaseId, form->relfilenode);
	cs->rmid = cs->is_table ? RM_HEAP_ID : copy_page_rmgr(form->relam);
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

/* Return whether DDL waits behind our locks and may pass. */
bool
copy_is_in_the_way(CopyState *cs)
{
	int			pid;

	return cs->mc->settings->give_way &&
		((!cs->is_table &&
		  relation_lock_waiters(cs->index, ShareUpdateExclusiveLock, &pid, 1) > 0) ||
		 relation_lock_waiters(cs->table, AccessShareLock, &pid, 1) > 0);
}

/*
 * Give way to DDL that waits behind our locks, and holds up all clients:
 * release the locks, queue again, and check what has changed.
 */
CopyOutcome
copy_give_way(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_GIVING_WAY);
	CopyOutcome outcome;

	ereport(DEBUG1,
			(errmsg_internal("index_mover lets others pass on index %u", cs->index)));
	cs->throttle.held = true;
	copy_release_locks(cs);
	IM_POINT("gave-way");
	(void) throttle_rest(5);
	outcome = copy_wait_for_locks(cs);
	if (outcome == GO_ON)
		outcome = copy_check_relation(cs, false);
	/* VACUUM may have truncated a table: do not ask for blocks that are gone */
	if (outcome == GO_ON)
		outcome = copy_drain(cs);
	progress_phase(phase);
	return outcome;
}

static bool
let_others_pass(void *arg)
{
	CopyState  *cs = (CopyState *) arg;
	CopyOutcome outcome = copy_is_in_the_way(cs) ? copy_give_way(cs) : GO_ON;

	cs->outcome = outcome == GO_ON ? copy_keep_up(cs) : outcome;
	return cs->outcome == GO_ON;
}

/*
 * Do what is due between two pieces of work, with no transaction open: obey a
 * cancel, give way to others, rest for a pause, for max_rate, for slow storage
 * or for a standby, and keep up with the WAL.  ERROR 53100 if there is no free space
 * for the next piece.
 */
CopyOutcome
copy_between_chunks(CopyState *cs)
{
	TimestampTz start = GetCurrentTimestamp();
	int64		rested_before = cs->rested_ms;
	int64		rate_rested_before = cs->throttle.rested_us;
	int64		changed_before = wal_changes_count(cs->changes);

	copy_check_interrupts();
	space_check_again(cs->mc->item, cs->mc->settings);
	wal_ahead();
	if (cs->copy != NULL)
	{
		int64		bytes;
		int64		us = file_copy_reading(cs->copy, &bytes);

		throttle_read(&cs->throttle, us, bytes);
	}

	if (pacing_rest(cs->mc->settings, &cs->lag, &cs->throttle, let_others_pass, cs) > 0)
		cs->rested_ms = rested_before +
			TimestampDifferenceMilliseconds(start, GetCurrentTimestamp());
	if (cs->throttle.held && cs->outcome == GO_ON && (cs->outcome = copy_drain(cs)) == GO_ON)
	{
		cs->throttle.held = false;
		copy_was_held_up(cs, start, rate_rested_before, changed_before);
	}
	return cs->outcome;
}

/* Read the WAL up to now, in a transaction of its own if there is none. */
CopyOutcome
copy_drain(CopyState *cs)
{
	bool		own_transaction = !IsTransactionState();
	XLogRecPtr	upto;
	ChangesResult result;

	if (own_transaction)
	{
		/* not under the lock; wal_changes.c keeps open what it makes */
		wal_ahead();
		StartTransactionCommand();
	}
	upto = IM_MUTATION("flushed-only") ? GetFlushRecPtr(NULL) : wal_changes_mark();
	result = wal_changes_read(cs->changes, upto, cs->copied, !own_transaction);
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

/*
 * Read the WAL if it could soon be recycled unread.  If paced, and not in a hurry,
 * let others have the processor then, as at each piece of a copy: a process that
 * has waited for its flush, and is woken on the processor where we work, else
 * waits until our time slice of some milliseconds is over, even where another
 * processor is idle.
 */
CopyOutcome
copy_keep_up(CopyState *cs)
{
	CopyOutcome outcome;

	if (!wal_changes_read_is_due(cs->changes))
		return GO_ON;
	outcome = copy_drain(cs);
	if (cs->mc->settings->pacing && !cs->throttle.hurry)
		(void) sched_yield();
	return outcome;
}

/*
 * Add the blocks by which the file has grown to the list of blocks to be
 * copied again.  Return the file's length.  In a transaction.
 */
BlockNumber
copy_take_tail(CopyState *cs)
{
	BlockNumber nblocks = file_blocks(&cs->from, MAIN_FORKNUM);

	for (; cs->copied < nblocks && !IM_MUTATION("tail"); cs->copied++)
		block_set_add(cs->todo, cs->copied);
	return nblocks;
}

/* Add the changed blocks that the WAL tells to the list of blocks to copy. */
void
copy_take_changes(CopyState *cs)
{
	BlockSet   *set = wal_changes_take(cs->changes);

	if (IM_MUTATION("one-block"))
		block_set_remove(set, block_set_next(set, 1));
	cs->changed_blocks += block_set_count(set);
	if (!IM_MUTATION("catch-up"))
		block_set_add_all(cs->todo, set);
	block_set_free(set);
}

/* Return the resource manager that can mask the pages of an access method. */
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
