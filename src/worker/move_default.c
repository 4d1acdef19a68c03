/*-------------------------------------------------------------------------
 *
 * move_default.c
 *	  METHOD_DEFAULT: the tablespace for new partitions, or their indexes.
 *
 * A partitioned relation has no file.  Its row of pg_class is changed under its exclusive lock, for
 * which attempts are made as for the swap of a copy (attempts.c).
 *
 * Locks: of an attempt, to the end of its transaction: RowExclusiveLock on catalogs,
 * AccessExclusiveLock on the relation, AccessShareLock on the table of an index.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_shdepend.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "errors.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"
#include "test_points.h"
#include "wait/wait.h"
#include "worker/worker.h"

/*
 * look: find the transactions in the way of a partitioned index or table.  Return whether to ask for
 * its lock would help, which it does not against DDL of its table, a change of its row, or a
 * lock on pg_class.
 */
static bool
look_at_partitioned(const MoveItem *item, Wait *wait)
{
	VirtualTransactionId changer;
	VirtualTransactionId *vxids = NULL;
	VirtualTransactionId *holders;
	int			count = 0;
	int			nholders;
	bool		helps;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	if (!lock_relation_within(RelationRelationId, AccessShareLock,
							  wait->limits->mc->settings->lock_timeout, NULL))
	{
		wait_forget_ended(wait);
		CommitTransactionCommand();
		return false;
	}
	if (item->heap_oid != item->relid)
	{
		holders = relation_lock_holders(item->heap_oid, AccessShareLock, &nholders);
		vxids = virtual_transactions_add(vxids, &count, holders, nholders);
	}
	if (relation_row_changer(item->relid, &changer))
		vxids = virtual_transactions_add(vxids, &count, &changer, 1);
	helps = (count == 0);
	holders = relation_lock_holders(item->relid, AccessExclusiveLock, &nholders);
	vxids = virtual_transactions_add(vxids, &count, holders, nholders);
	wait_note_holders(wait, vxids, count);
	CommitTransactionCommand();
	return helps;
}

/*
 * Lock a partitioned index, and its table, or a partitioned table.  Queues for the relation only,
 * while it has no lock on it (but see "line" in attempts.c).
 */
static bool
lock_partitioned(const MoveItem *item, Attempts *attempts, bool queue)
{
	bool		locked;

	if (queue)
		locked = attempts_queue_for_bid(attempts, item->relid, NULL);
	else
		locked = ConditionalLockRelationOid(item->relid, AccessExclusiveLock);
	if (locked && item->heap_oid != item->relid)
		locked = ConditionalLockRelationOid(item->heap_oid, AccessShareLock);
	return locked;
}

/* Set the tablespace of a partitioned relation, or skip it. */
static void
set_default(void *arg)
{
	MoveItem   *item = arg;
	Relation	rel;

	if (!plan_recheck(item, false))
		return;
	rel = relation_open(item->relid, NoLock);
	if (CheckRelationTableSpaceMove(rel, item->to_tablespace))
	{
		SetRelationTableSpace(rel, item->to_tablespace, InvalidOid);
		InvokeObjectPostAlterHook(RelationRelationId, item->relid, 0);
	}
	relation_close(rel, NoLock);
	IM_POINT("default-set");

	/*
	 * a lock timeout that has met the grant is of this attempt, and of no
	 * later work
	 */
	CHECK_FOR_INTERRUPTS();
}

/* Do so in a subtransaction; return false if another transaction was in the way. */
static bool
try_default(MoveItem *item)
{
	VirtualTransactionId changer;
	ItemPointerData row = relation_row_position(item->relid);
	MovePhase	phase;
	ErrorData  *error;
	bool		changed;

	/* with the lock, do not wait for a GRANT */
	if (relation_row_changer(item->relid, &changer))
		return false;
	phase = progress_phase(PHASE_SWAPPING);
	IM_POINT("default-row");
	error = errors_catch(set_default, item);
	if (error == NULL)
		return true;
	(void) progress_phase(phase);
	changed = error->sqlerrcode == ERRCODE_INTERNAL_ERROR &&
		relation_row_has_moved(item->relid, &row);
	if (!errors_was_hindered(error) && !changed)
		ReThrowError(error);
	return false;
}

/*
 * Make an attempt at the lock of a partitioned relation, queueing or not, and set its tablespace.
 * Return false if it was in vain.
 */
static bool
attempt_default(MoveContext *mc, Attempts *attempts, bool queue)
{
	bool		done;

	StartTransactionCommand();
	/* the tablespace of a relation without a file is in pg_shdepend, too */
	done = attempts_prepare(mc->settings, SharedDependRelationId);
	if (done)
		done = lock_partitioned(mc->item, attempts, queue);
	if (done)
		done = try_default(mc->item);
	if (done)
	{
		CommitTransactionCommand();
		/* not before: the commit could have failed */
		if (mc->item->outcome.status == STATUS_RUNNING)
		{
			mc->item->outcome.status = STATUS_MOVED;
			mc->item->outcome.size_after = 0;
		}
		return true;
	}

	/* see give_back() of copy_swap.c */
	set_commit("off");
	CommitTransactionCommand();
	XLogFlush(XactLastCommitEnd);
	return false;
}

/*
 * After lock_wait: raise ERROR 55P03 or, with on_blocker = wait, warn, once.  As for a copy, a
 * wait without end holds no session up.
 */
static void
default_warn_or_give_up(const MoveContext *mc, const Wait *wait, bool *told)
{
	const MoveItem *item = mc->item;
	VirtualTransactionId lasting[WAIT_MAX_PIDS];
	int			nlasting;

	if (mc->settings->on_blocker != ON_BLOCKER_WAIT)
		wait_give_up(wait);
	if (*told)
		return;
	*told = true;
	nlasting = wait_lasting(wait, lasting);
	StartTransactionCommand();	/* for names of roles */
	if (nlasting > 0)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the change of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						relation_noun(item->relkind), NameStr(item->relname),
						mc->settings->lock_wait / 1000.0),
				 errdetail("The lock is held by: %s.", blockers_describe(lasting, nlasting)),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", mc->job->job))));
	else if (wait->nholders > 0)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the change of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						relation_noun(item->relkind), NameStr(item->relname),
						mc->settings->lock_wait / 1000.0),
				 errdetail("Others queue for the lock, or have held it only for moments."),
				 errhint("To let attempts last longer: %s",
						 printed_command("alter_move", mc->job->job, "lock_timeout",
										 psprintf("%dms", 2 * mc->settings->lock_timeout)))));
	else
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("the change of %s \"%s\" has waited for a lock for %g seconds, and goes on waiting",
						relation_noun(item->relkind), NameStr(item->relname),
						mc->settings->lock_wait / 1000.0),
				 errdetail("No transaction holds it: a system catalog is locked."),
				 errhint("To see more: %s To cancel the job: %s", printed_command("blockers"),
						 printed_command("cancel_move", mc->job->job))));
	CommitTransactionCommand();
}

/*
 * Set the tablespace for new partitions, or their indexes.  As
 * ATExecSetTableSpaceNoStorage(), but for the exclusive lock attempts are made as for
 * the swap of a copy, since every query of the table would queue behind; and so it gives its
 * turn, though it has nothing to throw away.
 */
void
move_default(MoveContext *mc)
{
	MoveItem   *item = mc->item;
	bool		is_table = !relkind_is_index(item->relkind);
	Attempts	attempts;
	bool		told = false;

	pacing_rest_while_paused();
	progress_phase(PHASE_WAIT_SWAP_LOCK);
	IM_POINT("locks-wanted");
	attempts_begin(&attempts, mc, item->relid);
	attempts.wait.ignore_deadlocks = false;
	for (;;)
	{
		bool		is_bid = attempts_bid_is_due(&attempts);
		bool		helps = look_at_partitioned(item, &attempts.wait);
		bool		is_over = wait_look(&attempts.wait);
		bool		queue = false;
		bool		done = false;
		bool		gives_turn;

		if (is_bid && helps)
		{
			attempts_note_barred(&attempts, is_table ? item->relid : InvalidOid);
			queue = !attempts.barred;
		}
		/* free, bid */
		if (queue || (helps && attempts.wait.nholders == 0))
			done = attempt_default(mc, &attempts, queue);
		if (done)
			break;
		if (is_over)
			default_warn_or_give_up(mc, &attempts.wait, &told);
		if (is_bid)
			attempts_end_bid(&attempts);
		/* all of the time before the wait was rest, and not work */
		gives_turn = turn_give(mc, &attempts.limits,
							   (attempts.limits.rested_before - mc->rested_before) * 1000);
		if (gives_turn)
		{
			progress_blockers(NULL, 0);
			return;
		}
		throttle_rest(attempts_nap_ms(&attempts));
		if (job_pause_requested())
			pacing_rest_while_paused();
		/* catalog snapshots must not hold back vacuum */
		InvalidateCatalogSnapshot();
	}
	progress_blockers(NULL, 0);
}
