/*-------------------------------------------------------------------------
 *
 * copy_locks.c
 *	  Method copy: the locks of the long phase, and whether the relations are still
 *	  the same when we have them.
 *
 * Locks, for the session: AccessShareLock on the table, then
 * ShareUpdateExclusiveLock on the index, if an index moves.  TOAST is locked in the same
 * way, since REINDEX and VACUUM FULL can be told to work on it alone.  Assumption:
 * whatever gives any of these relations another file, or drops it, or gives the table
 * another TOAST table, conflicts with any of these locks.
 *
 * Tricky: the abort of any transaction releases session locks, so a wait in
 * vain must not throw (see relation_locks.c).
 *
 * proof/swap.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "copy/copy_private.h"
#include "file_system.h"
#include "plan/plan.h"
#include "printed_command.h"

/* Queue for the first lock no longer than this at once, at first, and for the others later */
#define LOCK_ATTEMPT_MS		250

/* The time for the first lock is doubled after each wait in vain, up to this; a pause is not seen */
#define LONGEST_ATTEMPT_MS	QUEUE_PIECE_MS

/*
 * After lock_wait: raise ERROR 55P03 or, with on_blocker = wait, warn, once in a
 * move.  It names the holders that have stayed.  Without holders, too much was to be done
 * under the lock, or a catalog was locked.
 */
void
copy_warn_or_give_up(CopyMove *move, const Wait *wait)
{
	VirtualTransactionId lasting[WAIT_MAX_PIDS];
	int			nlasting = wait_lasting(wait, lasting);
	const char *noun = relation_noun(move->item->relkind);
	const char *name = NameStr(move->item->relname);
	double		seconds = move->settings->lock_wait / 1000.0;
	bool		goes_on = (move->settings->on_blocker == ON_BLOCKER_WAIT);
	char	   *list;

	if (goes_on && move->so_far->told)
		return;
	move->so_far->told = true;
	StartTransactionCommand();	/* for names of roles */
	list = blockers_describe(lasting, nlasting);
	if (goes_on && nlasting > 0)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						noun, name, seconds),
				 errdetail("The lock is held by: %s.", list),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", move->mc->job->job))));
	else if (goes_on && wait->nholders > 0)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						noun, name, seconds),
				 errdetail("Others queue for the lock, or have held it only for moments."),
				 errhint("To let attempts last longer: %s",
						 printed_command("alter_move", move->mc->job->job, "lock_timeout",
										 psprintf("%dms", 2 * move->settings->lock_timeout)))));
	else if (goes_on)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the copy of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						noun, name, seconds),
				 errdetail("No transaction holds it: too many blocks change to be copied under the lock, or a system catalog is locked."),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", move->mc->job->job))));
	else if (nlasting > 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not get the exclusive lock on %s \"%s\" within %g seconds",
						noun, name, seconds),
				 errdetail("The lock was held by: %s.", list),
				 errhint("End these transactions, or raise index_mover.lock_wait.")));
	else if (wait->nholders > 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not get the exclusive lock on %s \"%s\" within %g seconds",
						noun, name, seconds),
				 errdetail("Others queue for the lock, or have held it only for moments."),
				 errhint("Make the move at a quieter time, or raise index_mover.lock_timeout.")));
	else
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not get the exclusive lock on %s \"%s\" within %g seconds",
						noun, name, seconds),
				 errdetail("No transaction held it: too many blocks change to be copied under the lock, or a system catalog is locked."),
				 errhint("Make the move at a quieter time, or raise index_mover.max_lock_time or index_mover.lock_wait.")));
	CommitTransactionCommand();
}

/*
 * Lock the table and the relations that move, until the end of the transaction; else have *wait
 * look at the holders of one of them.  first_ms: the longest time in the queue for the first lock.
 * We hold nothing then.  Whoever comes later waits for the sessions ahead of us anyway.
 *
 * A session that wants a relation that we have waits for all that we wait for then, and may even
 * hold it.  So from the first grant on we queue for lock_timeout at most, in all.
 */
static bool
lock_all(CopyMove *move, Wait *wait, int first_ms)
{
	int			most_ms = Min(move->settings->lock_timeout, LOCK_ATTEMPT_MS);
	int			left_ms = first_ms;
	int64		since = 0;

	for (int i = 0; i < move->nrelations; i++)
	{
		const CopyRelation *relation = &move->relations[i];

		/* a timeout of 0 would be none */
		if (i > 0)
			left_ms = Max(most_ms - (clock_us() - since) / 1000, 1);
		if (!lock_relation_within(relation->relid, relation->lock, left_ms, NULL))
		{
			(void) wait_find_holders(wait, relation->relid, relation->lock);
			return false;
		}
		if (i == 0)
			since = clock_us();
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

/*
 * For pacing_rest(): by false it ends the rest, and the caller looks at move->end.  No session
 * waits behind us, since we have no locks.
 */
static bool
keep_up_while_waiting(void *arg)
{
	CopyMove   *move = (CopyMove *) arg;

	Assert(move->end == COPY_GOES_ON && !move->has_locks);
	return copy_keep_up(move);
}

/* Get the locks of the long phase, or do as on_blocker says; keep up with the WAL. */
bool
copy_wait_for_locks(CopyMove *move)
{
	WaitLimits	limits = {.max_ms = LOCK_WAIT,.mc = move->mc};
	Wait		wait;
	MovePhase	phase = progress_phase(PHASE_WAIT_START);
	int			first_ms = LOCK_ATTEMPT_MS;

	Assert(!IsTransactionState() && !move->has_locks);
	IM_POINT("locks-wanted");
	wait_begin(&wait, NULL, &limits);
	/* a session that waits for this transaction waits for a moment only */
	wait.ignore_deadlocks = true;
	for (;;)
	{
		bool		is_over;
		bool		gives_turn;

		(void) pacing_rest(NULL, 0, NULL, keep_up_while_waiting, move);
		if (move->end != COPY_GOES_ON)
			return false;

		StartTransactionCommand();
		if (lock_all(move, &wait, first_ms))
		{
			keep_all(move);
			CommitTransactionCommand();
			break;
		}

		/*
		 * sessions that lock it one after the other stood ahead of us for
		 * longer
		 */
		first_ms = Min(2 * first_ms, LONGEST_ATTEMPT_MS);
		is_over = wait_look(&wait);
		if (is_over && move->settings->on_blocker != ON_BLOCKER_WAIT)
			wait_give_up(&wait);
		CommitTransactionCommand();
		copy_check_locks(move);
		/* part: the others need not wait for the one that is locked */
		if (move->nitems > 1)
		{
			move->mc->was_locked = true;
			return copy_end(move, COPY_PART, "another session has locked it");
		}
		/* without holders, others queue for the lock */
		if (is_over && wait.nholders > 0)
			copy_warn_or_give_up(move, &wait);
		gives_turn = turn_give(move->mc, &limits, move->so_far->rested_us);
		if (gives_turn)
			return copy_end(move, COPY_TURN, "it gives its turn to another relation");
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

/* Return whether a table has the TOAST table, and that the index, that we follow. */
static bool
has_same_parts(const CopyMove *move, const MoveItem *item)
{
	RelationFacts facts;
	List	   *followed = NIL;
	List	   *parts = NIL;

	if (relkind_is_index(item->relkind))
		return true;
	for (int i = 0; i < move->nrelations; i++)
	{
		const CopyRelation *relation = &move->relations[i];

		if (relation->table == item->relid && relation->relid != item->relid)
			followed = lappend_oid(followed, relation->relid);
	}
	if (relation_facts(item->relid, &facts))
		parts = parts_of_table(&facts);
	return equal(followed, parts);
}

/* A file that is read before it is copied */
typedef struct CopyReading
{
	CopyMove   *move;
	double		read_from;		/* since when, clock_seconds() */
} CopyReading;

/* A megabyte was read: obey a cancel, and rest.  Return whether to go on: no DDL waits behind our locks. */
static bool
keep_reading(void *arg)
{
	CopyReading *reading = (CopyReading *) arg;

	job_check_cancel();
	lost_rest(&reading->read_from);
	return !copy_is_in_the_way(reading->move);
}

/*
 * Look for damage to a file that is to be copied, and set *damage to it, or NULL.  What is known of a file goes
 * by its number, and the copy has another one: so of a file that is not known to be whole, all pages are read.
 * Return false if that has not come to its end, because DDL waits.
 */
static bool
look_for_damage(CopyMove *move, const RelationFacts *facts, const char **damage)
{
	CopyReading reading = {.move = move,.read_from = clock_seconds()};
	BlockNumber npages = 0;
	bool		is_complete;

	*damage = lost_file_slowly(facts, LOOK_UNKNOWN, keep_reading, &reading, &npages, &is_complete);
	return is_complete;
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
	bool		is_read = true;

	Assert(CheckRelationOidLockedByMe(relation->relid, relation->lock, false));
	if (!relation_facts(relation->relid, &facts))
		elog(ERROR, "cache lookup failed for relation %u", relation->relid);
	hindrance = copy_hindrance(&facts);
	if (first && hindrance == NULL)
		is_read = look_for_damage(move, &facts, &lost);
	if (!is_read)
		return copy_start_again(move, "another session waits for its lock");
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
		return copy_end(move, COPY_SKIPPED, "it is skipped");

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
	for (int i = 0; i < move->nitems; i++)
	{
		if (!plan_recheck(move->items[i], move->so_far->began))
			return copy_end(move, COPY_SKIPPED, "it is skipped");
		if (!has_same_parts(move, move->items[i]))
			return copy_start_again(move, "its TOAST table was replaced by another command");
	}
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
