/*-------------------------------------------------------------------------
 *
 * copy_locks.c
 *	  Method copy: the locks of the long phase, giving way to others, and reading
 *	  the WAL meanwhile.
 *
 * Locks, for the session: AccessShareLock on the table, then
 * ShareUpdateExclusiveLock on the index, if an index moves.  TOAST is locked in the same
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
#include "plan/space.h"
#include "printed_command.h"

/* Queue no longer than this at once, so that a cancel is noticed */
#define LOCK_ATTEMPT_MS		250

/*
 * Have move_by_copy() start the copy again, for a reason that is a constant; or end it, if
 * its row is skipped by now, or gives its turn.  Returns false, which the caller hands on.
 * This is no ERROR, because an abort would release all session locks.
 */
bool
copy_start_again(CopyMove *move, const char *why)
{
	move->again = why;
	return false;
}

/*
 * After lock_wait: raise ERROR 55P03 or, with on_blocker = wait, warn, once in a
 * move.  Without holders, too much was to be done under the lock, or a catalog was
 * locked.
 */
void
copy_lock_wait_is_over(CopyMove *move, const VirtualTransactionId *holders, int nholders)
{
	const char *noun = relation_noun(move->item->relkind);
	const char *name = NameStr(move->item->relname);
	double		seconds = move->settings->lock_wait / 1000.0;
	bool		goes_on = (move->settings->on_blocker == ON_BLOCKER_WAIT);
	char	   *list;

	if (goes_on && move->so_far->told)
		return;
	move->so_far->told = true;
	StartTransactionCommand();	/* for names of roles */
	list = blockers_describe(holders, nholders);
	if (goes_on && nholders > 0)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						noun, name, seconds),
				 errdetail("The lock is held by: %s.", list),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", move->mc->job->job))));
	else if (goes_on)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						noun, name, seconds),
				 errdetail("No transaction holds it: too many blocks change to be copied under the lock, or a system catalog is locked."),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", move->mc->job->job))));
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
lock_all(CopyMove *move, Wait *wait)
{
	for (int i = 0; i < move->nrelations; i++)
	{
		if (!lock_or_look(wait, move->relations[i].relid, move->relations[i].lock))
			return false;
	}
	return true;
}

/* Keep the locks of lock_all() for the session. */
static void
keep_all(CopyMove *move)
{
	/* step: keep-lock */
	for (int i = 0; i < move->nrelations; i++)
		keep_relation_lock(move->relations[i].relid, move->relations[i].lock);
	move->has_locks = true;
}

/* Check that this process has the locks of the long phase, and no others, or none. */
void
copy_check_locks(const CopyMove *move)
{
	check_relation_locks(move->has_locks ? move->nrelations : 0);
}

/* Get the locks of the long phase, or do as on_blocker says; keep up with the WAL. */
bool
copy_wait_for_locks(CopyMove *move)
{
	WaitLimits	limits = {.max_ms = LOCK_WAIT,.mc = move->mc};
	Wait		wait;
	MovePhase	phase = progress_phase(PHASE_WAIT_START);

	Assert(!IsTransactionState() && !move->has_locks);
	IM_POINT("locks-wanted");
	wait_begin(&wait, NULL, &limits);
	/* a session that waits for this transaction waits for a moment only */
	wait.ignore_deadlocks = true;
	for (;;)
	{
		bool		is_over;

		(void) pacing_rest(NULL, 0, NULL, copy_let_others_pass, move);
		if (move->again != NULL)
			return false;

		StartTransactionCommand();
		if (lock_all(move, &wait))
		{
			keep_all(move);
			CommitTransactionCommand();
			break;
		}
		is_over = wait_look(&wait);
		if (is_over && move->settings->on_blocker != ON_BLOCKER_WAIT)
			wait_give_up(&wait);
		CommitTransactionCommand();
		copy_check_locks(move);
		/* without holders, others queue for the lock */
		if (is_over && wait.nholders > 0)
		{
			VirtualTransactionId named[WAIT_MAX_PIDS];
			int			nnamed = wait_named(&wait, named);

			copy_lock_wait_is_over(move, named, nnamed);
		}
		if (copy_gives_turn(move, &limits))
			return copy_start_again(move, "it gives its turn to another relation");
		job_check_cancel();
	}
	copy_check_locks(move);
	progress_blockers(NULL, 0);
	progress_phase(phase);
	return true;
}

void
copy_release_locks(CopyMove *move)
{
	Assert(!IsTransactionState());
	if (!move->has_locks)
		return;
	move->has_locks = false;
	for (int i = move->nrelations - 1; i >= 0; i--)
		unlock_relation_for_session(move->relations[i].relid, move->relations[i].lock);
	copy_check_locks(move);
}

/* Return whether the table has the TOAST table, and that the index, that we follow. */
static bool
has_same_parts(const CopyMove *move)
{
	Oid			table = move->relations[0].relid;
	RelationFacts facts;
	List	   *followed = NIL;
	List	   *parts = NIL;

	if (move->item->relid != table)
		return true;			/* an index */
	for (int i = 1; i < move->nrelations; i++)
		followed = lappend_oid(followed, move->relations[i].relid);
	if (relation_facts(table, &facts))
		parts = parts_of_table(&facts);
	return equal(followed, parts);
}

/* Check whether a relation may still be moved, and remember or compare its file. */
static bool
check_file(CopyMove *move, CopyRelation *relation, bool first)
{
	MoveItem   *item = move->item;
	const char *noun = relation_noun(relation->item->relkind);
	bool		is_index = relkind_is_index(relation->item->relkind);
	RelFileLocator file;
	RelationFacts facts;
	const char *hindrance;
	const char *lost = NULL;

	Assert(CheckRelationOidLockedByMe(relation->relid, relation->lock, false));
	if (!relation_facts(relation->relid, &facts))
		elog(ERROR, "cache lookup failed for relation %u", relation->relid);
	hindrance = copy_hindrance(&facts);
	if (first && hindrance == NULL)
		lost = lost_file(&facts, LOOK_QUICK);
	if (hindrance != NULL)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "Method copy cannot move the %s: %s.", noun, hindrance);
	else if (lost != NULL)
	{
		int			code = is_index ? ERRCODE_INDEX_CORRUPTED : ERRCODE_DATA_CORRUPTED;

		item_skip(item, code, "The %s \"%s\" cannot be copied: %s.", noun,
				  NameStr(facts.relname), lost);
	}
	if (item->outcome.status == STATUS_SKIPPED)
		return copy_start_again(move, "it is skipped");

	file = make_locator(facts.tablespace, MyDatabaseId, facts.relfilenumber);
	if (first)
	{
		relation->file = file;
		relation->relam = facts.relam;
	}
	/* step: check-files */
	else if (!RelFileLocatorEquals(relation->file, file))
		return copy_start_again(move, "its file was replaced by another command");
	return true;
}

/* Check all relations, in a transaction. */
static bool
check_all(CopyMove *move, bool first)
{
	if (!plan_recheck(move->item, move->so_far->began))
		return copy_start_again(move, "it is skipped");
	if (!has_same_parts(move))
		return copy_start_again(move, "its TOAST table was replaced by another command");
	for (int i = 0; i < move->nrelations; i++)
	{
		if (move->relations[i].item == NULL)
			continue;
		if (!check_file(move, &move->relations[i], first))
			return false;
	}
	return true;
}

/* Check whether all may still be moved, and remember or compare their files. */
bool
copy_check_relations(CopyMove *move, bool first)
{
	bool		movable;

	Assert(move->has_locks && !IsTransactionState());
	StartTransactionCommand();
	movable = check_all(move, first);
	CommitTransactionCommand();
	if (movable)
		move->so_far->began = true;
	return movable;
}

/* Return whether DDL waits behind our locks, if held. */
bool
copy_is_in_the_way(CopyMove *move)
{
	int			pid;

	if (!move->has_locks)
		return false;
	for (int i = 0; i < move->nrelations; i++)
	{
		if (relation_lock_waiters(move->relations[i].relid, move->relations[i].lock, &pid, 1) > 0)
			return true;
	}
	return false;
}

/* Give way to DDL that waits behind our locks: release them, queue again, check the files. */
static bool
give_way(CopyMove *move)
{
	MovePhase	phase = progress_phase(PHASE_GIVING_WAY);

	/* step: give-way */
	move->gave_way = true;
	copy_release_locks(move);
	IM_POINT("gave-way");
	throttle_rest(5);
	if (!copy_wait_for_locks(move))
		return false;
	if (!copy_check_relations(move, false))
		return false;
	/* VACUUM may have truncated a table: do not ask for blocks that are gone */
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file->changes == NULL)
			continue;
		if (!copy_drain(file))
			return false;
	}
	progress_phase(phase);
	return true;
}

/* Return whether to go on resting; called by pacing_rest(). */
static bool
may_rest(void *arg)
{
	CopyMove   *move = (CopyMove *) arg;

	job_check_cancel();
	return !copy_is_in_the_way(move);
}

/* After the swap, rest while the job is paused, unless a session waits for our locks. */
void
copy_rest_after_swap(void *arg)
{
	(void) pacing_rest(NULL, 0, NULL, may_rest, arg);
}

/*
 * Give way to others, and keep up with the WAL.  For pacing_rest(), too: by false it ends the
 * rest, and the caller looks at move->again.
 */
bool
copy_let_others_pass(void *arg)
{
	CopyMove   *move = (CopyMove *) arg;

	Assert(move->again == NULL);
	if (copy_is_in_the_way(move))
	{
		if (!give_way(move))
			return false;
	}
	return copy_keep_up(move);
}

/*
 * Begin a transaction that writes to the ledger.  As long as a session has locked that,
 * give way to others, and keep up with the WAL.
 */
bool
copy_begin_with_ledger(CopyMove *move)
{
	for (;;)
	{
		job_check_cancel();
		if (!copy_let_others_pass(move))
			return false;
		StartTransactionCommand();
		if (lock_relation_within(extension_relation("ledger"), RowExclusiveLock,
								 move->settings->lock_timeout, NULL))
			return true;
		CommitTransactionCommand();
	}
}

/*
 * To be called between two pieces of work: obey a cancel, give way to others,
 * rest for a pause, for max_rate, for slow storage or for a standby, and keep up
 * with the WAL.  ERROR 53100 if there is no free space for the next piece.
 */
bool
copy_between_chunks(CopyFile *file)
{
	CopyMove   *move = file->move;
	int64		began = GetCurrentTimestamp() / 1000 - pacing_rested_ms();
	int64		changed = wal_changes_count(file->changes);

	Assert(!IsTransactionState() && move->stage < COPY_ASKING);
	job_check_cancel();
	space_check_again(file->item, move->settings);
	wal_ahead();
	(void) pacing_rest(move->settings, 0, &file->throttle, copy_let_others_pass, move);
	if (move->again != NULL)
		return false;
	if (!file->throttle.rested && !move->gave_way)
		return true;
	/* the writers have not outpaced us while we waited behind DDL */
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyPace   *pace = &move->files[i].pace;

		if (pace->outpaced_since != 0)
			pace->outpaced_since += GetCurrentTimestamp() / 1000 - pacing_rested_ms() - began;
	}
	if (!copy_drain(file))
		return false;
	file->throttle.rested = false;
	move->gave_way = false;
	/* a round is not judged by blocks that change during rests for others */
	changed = wal_changes_count(file->changes) - changed;
	file->pace.changed_before += changed;
	file->pace.written_before = Min(file->pace.written_before + changed,
									copy_blocks_written(file));
	return true;
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
bool
copy_drain_to(CopyFile *file, XLogRecPtr upto)
{
	bool		asking = (file->move->stage >= COPY_ASKING);
	const char *lost;

	Assert(file->move->stage < COPY_SWAPPED && asking == IsTransactionState());
	lost = copy_changes_lost(wal_changes_read(file->changes, upto, file->copied, asking));
	if (lost != NULL)
		return copy_start_again(file->move, lost);
	progress_set(blocks_changed, copy_changes_left(file->move));
	copy_change_rate(file->move);
	return true;
}

/* The same up to now. */
bool
copy_drain(CopyFile *file)
{
	/* not while others may be waiting; wal_changes.c keeps the segments open */
	if (file->move->stage < COPY_ASKING)
		wal_ahead();
	return copy_drain_to(file, wal_changes_mark());
}

/*
 * Read the WAL if it could soon be recycled unread.  If paced, and not in a
 * hurry, yield the processor then, as at each piece of a copy: a process that
 * was woken on it, its flush being done, else waits for the end of our time slice,
 * even where another processor is idle.
 */
bool
copy_keep_up(CopyMove *move)
{
	bool		paced = move->settings->pacing;

	for (int i = 0; i < move->nfiles; i++)
	{
		if (move->files[i].throttle.hurry)
			paced = false;
	}
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file->changes == NULL || !wal_changes_read_is_due(file->changes))
			continue;
		if (!copy_drain(file))
			return false;
		if (paced)
			(void) sched_yield();
	}
	return true;
}

/* Put the blocks by which the file has grown onto the list, and return its length. */
BlockNumber
copy_take_tail(CopyFile *file)
{
	BlockNumber nblocks = file_blocks(&file->from, MAIN_FORKNUM);

	if (IM_MUTATION("tail"))
		return nblocks;
	/* step: take-tail */
	for (; file->copied < nblocks; file->copied++)
		block_set_add(file->todo, file->copied);
	return nblocks;
}

/* Add the changed blocks that the WAL tells to the list of blocks to copy. */
void
copy_take_changes(CopyFile *file)
{
	/* step: take-changes */
	BlockSet   *set = wal_changes_take(file->changes);

	/* step: take-position */
	file->taken_at = wal_changes_position(file->changes);
	for (int64 n = IM_LIMIT("catch-up", 0); n != 0 && block_set_count(set) > 0; n--)
		block_set_remove(set, block_set_next(set, n > 0 ? 1 : 0));
	file->changed_blocks += block_set_count(set);
	block_set_add_all(file->todo, set);
	block_set_free(set);
}
