/*-------------------------------------------------------------------------
 *
 * copy_locks.c
 *	  Method copy: the locks of the long phase, giving way to others, and reading
 *	  the WAL meanwhile.
 *
 * Locks, for the session: AccessShareLock on the table, then
 * ShareUpdateExclusiveLock on the index, if one moves.  TOAST is locked in the same
 * way, since REINDEX and VACUUM FULL can be told to work on it alone.  Assumption:
 * whatever gives one of these relations another file, or drops it, or gives the table
 * another TOAST table, conflicts with one of these locks.
 *
 * Tricky: the abort of any transaction releases session locks, so a wait in
 * vain must not throw (see relation_locks.c).
 *
 * proof/copy.pml, proof/resume.pml and proof/swap.pml are models of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>

#include "access/xact.h"
#include "miscadmin.h"

#include "copy/copy_private.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"

/* Queue no longer than this at once, so that a cancel is noticed */
#define LOCK_ATTEMPT_MS		250

/*
 * Have the copy started again, for a reason that is a constant; or ended, if its row
 * is skipped by now.  The ERROR is for move_by_copy() alone.  An abort would release
 * all session locks, so the transaction, if there is one, is committed before.
 */
void
copy_start_again(const char *why)
{
	if (IsTransactionState())
		CommitTransactionCommand();
	ereport(ERROR,
			(errcode(ERRCODE_START_AGAIN),
			 errmsg_internal("%s", why)));
}

/*
 * After lock_wait: raise ERROR 55P03 or, with on_blocker = wait, warn, once in a
 * move.  Without holders, too much was to be done under the lock, or a catalog was
 * locked.
 */
void
copy_lock_wait_is_over(CopyState *cs, const VirtualTransactionId *holders, int nholders)
{
	const char *noun = relation_noun(cs->item->relkind);
	const char *name = NameStr(cs->item->relname);
	double		seconds = cs->settings->lock_wait / 1000.0;
	bool		goes_on = (cs->settings->on_blocker == ON_BLOCKER_WAIT);
	char	   *list;

	if (goes_on && cs->first->so_far->told)
		return;
	cs->first->so_far->told = true;
	StartTransactionCommand();	/* for names of roles */
	list = blockers_describe(holders, nholders);
	if (goes_on && nholders > 0)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						noun, name, seconds),
				 errdetail("The lock is held by: %s.", list),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", cs->mc->job->job))));
	else if (goes_on)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						noun, name, seconds),
				 errdetail("No transaction holds it: too many blocks change to be copied under the lock, or a system catalog is locked."),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", cs->mc->job->job))));
	else if (nholders > 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not get the exclusive lock on %s \"%s\" within %g seconds",
						noun, name, seconds),
				 errdetail("The lock was held by: %s.", list),
				 errhint("End these transactions, or raise index_mover.lock_wait.")));
	else
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not get the exclusive lock on %s \"%s\" within %g seconds",
						noun, name, seconds),
				 errdetail("No transaction held it: too many blocks change to be copied under the lock, or a system catalog is locked."),
				 errhint("Make the move at a quieter time, or raise index_mover.max_lock_time or index_mover.lock_wait.")));
	CommitTransactionCommand();
}

/* Return the lock of the long phase on a relation that moves. */
static LOCKMODE
long_lock(const CopyState *cs)
{
	return cs->is_table ? AccessShareLock : ShareUpdateExclusiveLock;
}

/* Lock a relation, with a short wait; else have *wait look at the holders. */
static bool
lock_or_look(Wait *wait, Oid relid, LOCKMODE mode)
{
	if (lock_relation_within(relid, mode, LOCK_ATTEMPT_MS, NULL))
		return true;
	(void) wait_find_holders(wait, relid, mode);
	return false;
}

/* Lock the table and the relations that move, until the end of the transaction. */
static bool
lock_all(CopyState *cs, Wait *wait)
{
	if (!lock_or_look(wait, cs->table, AccessShareLock))
		return false;
	for (CopyState *f = cs->first; f != NULL; f = f->next)
	{
		if (f->relid == cs->table)
			continue;
		if (!lock_or_look(wait, f->relid, long_lock(f)))
			return false;
	}
	return true;
}

/* Keep the locks of lock_all() for the session. */
static void
keep_all(CopyState *cs)
{
	/* step: keep-lock */
	keep_relation_lock(cs->table, AccessShareLock);
	for (CopyState *f = cs->first; f != NULL; f = f->next)
	{
		if (f->relid != cs->table)
			keep_relation_lock(f->relid, long_lock(f));
	}
	cs->first->locked = true;
}

/* Check that this process has the locks of the long phase, and no others, or none. */
void
copy_check_locks(const CopyState *cs)
{
	int			expected = 0;

	if (cs->first->locked)
	{
		expected = 1;			/* the table */
		for (const CopyState *f = cs->first; f != NULL; f = f->next)
		{
			if (f->relid != cs->table)
				expected++;
		}
	}
	check_relation_locks(expected);
}

/* Get the locks of the long phase, or do as on_blocker says; keep up with the WAL. */
void
copy_wait_for_locks(CopyState *cs)
{
	WaitLimits	limits = {.max_ms = LOCK_WAIT,.mc = cs->mc};
	Wait		wait;
	MovePhase	phase = progress_phase(PHASE_WAIT_START);

	Assert(!IsTransactionState() && !cs->first->locked);
	IM_POINT("locks-wanted");
	wait_begin(&wait, NULL, &limits);
	/* a session that waits for this transaction waits for a moment only */
	wait.ignore_deadlocks = true;
	for (;;)
	{
		bool		is_over;

		(void) pacing_rest(NULL, 0, NULL, copy_let_others_pass, cs);

		StartTransactionCommand();
		if (lock_all(cs, &wait))
		{
			keep_all(cs);
			CommitTransactionCommand();
			break;
		}
		is_over = wait_look(&wait);
		if (is_over && cs->settings->on_blocker != ON_BLOCKER_WAIT)
			wait_give_up(&wait);
		CommitTransactionCommand();
		copy_check_locks(cs);
		/* without holders, others queue for the lock */
		if (is_over && wait.nholders > 0)
		{
			VirtualTransactionId named[WAIT_MAX_PIDS];
			int			nnamed = wait_named(&wait, named);

			copy_lock_wait_is_over(cs, named, nnamed);
		}
		if (copy_gives_turn(cs, limits.since))
			copy_start_again("it gives its turn to another relation");
		job_check_cancel();
	}
	copy_check_locks(cs);
	progress_blockers(NULL, 0);
	progress_phase(phase);
}

void
copy_release_locks(CopyState *cs)
{
	Assert(!IsTransactionState());
	if (!cs->first->locked)
		return;
	cs->first->locked = false;
	for (CopyState *f = cs->first; f != NULL; f = f->next)
	{
		if (f->relid != cs->table)
			unlock_relation_for_session(f->relid, long_lock(f));
	}
	unlock_relation_for_session(cs->table, AccessShareLock);
	copy_check_locks(cs);
}

/* Return whether the table has the TOAST table, and that the index, that we follow. */
static bool
has_same_parts(const CopyState *first)
{
	RelationFacts facts;
	List	   *followed = NIL;

	List	   *parts = NIL;

	for (const CopyState *f = first->next; f != NULL; f = f->next)
		followed = lappend_oid(followed, f->relid);
	if (first->is_table && relation_facts(first->relid, &facts))
		parts = parts_of_table(&facts);
	return equal(followed, parts);
}

static void
check_file(CopyState *cs, bool first)
{
	MoveItem   *item = cs->first->item;
	RelFileLocator file;
	RelationFacts facts;
	const char *noun = relation_noun(cs->item->relkind);
	const char *hindrance;
	const char *lost = NULL;

	Assert(CheckRelationOidLockedByMe(cs->relid, long_lock(cs), false));
	if (!relation_facts(cs->relid, &facts))
		elog(ERROR, "cache lookup failed for relation %u", cs->relid);
	hindrance = copy_hindrance(&facts);
	if (first && hindrance == NULL)
		lost = lost_file(&facts, LOOK_QUICK);
	if (hindrance != NULL)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "Method copy cannot move the %s: %s.", noun, hindrance);
	else if (lost != NULL)
	{
		int			code = cs->is_table ? ERRCODE_DATA_CORRUPTED : ERRCODE_INDEX_CORRUPTED;

		item_skip(item, code, "The %s \"%s\" cannot be copied: %s.", noun,
				  NameStr(facts.relname), lost);
	}
	if (item->status == STATUS_SKIPPED)
		copy_start_again("it is skipped");

	file = make_locator(facts.tablespace, MyDatabaseId, facts.relfilenumber);
	cs->relam = facts.relam;
	if (first)
	{
		cs->from = file;
		cs->in_place = (file.spcOid == item->to_tablespace);
	}
	/* step: check-files */
	else if (!RelFileLocatorEquals(cs->from, file))
		copy_start_again("its file was replaced by another command");
}

/* Check whether all may still be moved, and remember or compare their files. */
void
copy_check_relations(CopyState *cs, bool first)
{
	Assert(cs->first->locked && !IsTransactionState());
	StartTransactionCommand();
	if (!plan_recheck(cs->first->item, cs->first->so_far->began))
		copy_start_again("it is skipped");
	if (!has_same_parts(cs->first))
		copy_start_again("its TOAST table was replaced by another command");
	for (CopyState *f = cs->first; f != NULL; f = f->next)
		check_file(f, first);
	CommitTransactionCommand();
	cs->first->so_far->began = true;
}

/* Return whether DDL waits behind our locks, if held. */
bool
copy_is_in_the_way(CopyState *cs)
{
	int			pid;

	if (!cs->first->locked)
		return false;
	for (CopyState *f = cs->first; f != NULL; f = f->next)
	{
		if (relation_lock_waiters(f->relid, long_lock(f), &pid, 1) > 0)
			return true;
	}
	return relation_lock_waiters(cs->table, AccessShareLock, &pid, 1) > 0;
}

/* Give way to DDL that waits behind our locks: release them, queue again, check the files. */
static void
give_way(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_GIVING_WAY);

	/* step: give-way */
	cs->throttle.rested = true;
	copy_release_locks(cs);
	IM_POINT("gave-way");
	throttle_rest(5);
	copy_wait_for_locks(cs);
	copy_check_relations(cs, false);
	/* VACUUM may have truncated a table: do not ask for blocks that are gone */
	foreach_file(f, cs)
	{
		if (f->changes != NULL)
			copy_drain(f);
	}
	progress_phase(phase);
}

/* Return whether to go on resting; called by pacing_rest(). */
static bool
may_rest(void *arg)
{
	CopyState  *cs = (CopyState *) arg;

	job_check_cancel();
	return !copy_is_in_the_way(cs);
}

/* After the swap, rest while the job is paused, unless a session waits for our locks. */
void
copy_rest_after_swap(void *arg)
{
	(void) pacing_rest(NULL, 0, NULL, may_rest, arg);
}

/* Give way to others, and keep up with the WAL; for pacing_rest(), too. */
bool
copy_let_others_pass(void *arg)
{
	CopyState  *cs = (CopyState *) arg;

	if (copy_is_in_the_way(cs))
		give_way(cs);
	copy_keep_up(cs);
	return true;
}

/*
 * Begin a transaction that writes to the ledger.  As long as a session has locked that,
 * give way to others, and keep up with the WAL.
 */
void
copy_begin_with_ledger(CopyState *cs)
{
	for (;;)
	{
		job_check_cancel();
		(void) copy_let_others_pass(cs);
		StartTransactionCommand();
		if (lock_relation_within(extension_relation("ledger"), RowExclusiveLock,
								 cs->settings->lock_timeout, NULL))
			return;
		CommitTransactionCommand();
	}
}

/*
 * To be called between two pieces of work: obey a cancel, give way to others,
 * rest for a pause, for max_rate, for slow storage or for a standby, and keep up
 * with the WAL.  ERROR 53100 if there is no free space for the next piece.
 */
void
copy_between_chunks(CopyState *cs)
{
	int64		began = GetCurrentTimestamp() / 1000 - pacing_rested_ms();
	int64		changed = wal_changes_count(cs->changes);

	Assert(!IsTransactionState() && !cs->in_place && cs->first->stage < COPY_ASKING);
	job_check_cancel();
	space_check_again(cs->item, cs->settings);
	wal_ahead();
	(void) pacing_rest(cs->settings, 0, &cs->throttle, copy_let_others_pass, cs);
	if (!cs->throttle.rested)
		return;
	/* the writers have not outpaced us while we waited behind DDL */
	foreach_file(f, cs)
	{
		if (f->outpaced_since != 0)
			f->outpaced_since += GetCurrentTimestamp() / 1000 - pacing_rested_ms() - began;
	}
	copy_drain(cs);
	cs->throttle.rested = false;
	/* a round is not judged by blocks that change during rests for others */
	changed = wal_changes_count(cs->changes) - changed;
	cs->eta.changed_before += changed;
	cs->eta.written_before = Min(cs->eta.written_before + changed,
								 cs->item->blocks_copied + cs->item->blocks_recopied);
}

/* Return why changes that were read do not tell all, NULL if they do. */
const char *
copy_changes_lost(ChangesResult result)
{
	switch (result)
	{
		case CHANGES_READ:
			break;
		case CHANGES_FILE_REPLACED:
			return "its file was truncated, or changed in a way that the WAL does not tell block by block";
		case CHANGES_WAL_GONE:
			return "WAL that tells its changes was removed before it was read";
	}
	return NULL;
}

/* Read the WAL up to a mark, and leave what can be done later while others may be waiting. */
void
copy_drain_to(CopyState *cs, XLogRecPtr upto)
{
	bool		asking = (cs->first->stage >= COPY_ASKING);
	const char *lost;

	Assert(cs->first->stage < COPY_SWAPPED && asking == IsTransactionState());
	lost = copy_changes_lost(wal_changes_read(cs->changes, upto, cs->copied, asking));
	if (lost != NULL)
		copy_start_again(lost);
	progress_set(blocks_changed, copy_changes_left(cs));
	copy_change_rate(cs);
}

/* The same up to now. */
void
copy_drain(CopyState *cs)
{
	/* not while others may be waiting; wal_changes.c keeps the segments open */
	if (cs->first->stage < COPY_ASKING)
		wal_ahead();
	copy_drain_to(cs, wal_changes_mark());
}

/*
 * Read the WAL if it could soon be recycled unread.  If paced, and not in a
 * hurry, yield the processor then, as at each piece of a copy: a process that
 * was woken on it, its flush being done, else waits for the end of our time slice,
 * even where another processor is idle.
 */
void
copy_keep_up(CopyState *cs)
{
	foreach_file(f, cs)
	{
		if (f->changes == NULL || !wal_changes_read_is_due(f->changes))
			continue;
		copy_drain(f);
		if (cs->settings->pacing && !cs->throttle.hurry)
			(void) sched_yield();
	}
}

/* Put the blocks by which the file has grown onto the list, and return its length. */
BlockNumber
copy_take_tail(CopyState *cs)
{
	BlockNumber nblocks = file_blocks(&cs->from, MAIN_FORKNUM);

	if (IM_MUTATION("tail"))
		return nblocks;
	/* step: take-tail */
	for (; cs->copied < nblocks; cs->copied++)
		block_set_add(cs->todo, cs->copied);
	return nblocks;
}

/* Add the changed blocks that the WAL tells to the list of blocks to copy. */
void
copy_take_changes(CopyState *cs)
{
	/* step: take-changes */
	BlockSet   *set = wal_changes_take(cs->changes);

	/* step: take-position */
	cs->taken_at = wal_changes_position(cs->changes);
	for (int64 n = IM_LIMIT("catch-up", 0); n != 0 && block_set_count(set) > 0; n--)
		block_set_remove(set, block_set_next(set, n > 0 ? 1 : 0));
	cs->changed_blocks += block_set_count(set);
	block_set_add_all(cs->todo, set);
	block_set_free(set);
}
