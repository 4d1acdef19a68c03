/*-------------------------------------------------------------------------
 *
 * copy_swap.c
 *	  The short exclusive step: give a relation its new file.
 *
 * Waiting for the lock must not hurt others: everybody who wants the relation
 * stands behind an AccessExclusiveLock that waits.  So first look, without
 * standing in the queue; whoever was there at the last look too runs a long
 * transaction, and to queue behind it would be for nothing.  Only when the
 * road looks free, queue for index_mover.lock_timeout; and if that was not
 * enough, let the others run for a while before the next attempt.
 *
 * Whoever stays may stay for hours: a VACUUM keeps its lock on all indexes of a
 * table to its end.  A copy that is ready is not thrown away for that: with
 * on_blocker = wait, the default, there is no end to the looks, and after
 * lock_wait a WARNING says who is in the way.  While somebody stays, the WAL is
 * read, but what has changed is copied from time to time only: a block that
 * changes all the time would be copied, and logged, at each look.
 *
 * Nothing can be read while a process stands in a queue.  So one that may stand
 * there for longer than a second leaves it after a second, reads the WAL, and
 * queues again, until lock_timeout is over; where others write little, the turns
 * get longer, for who leaves the queue lets all pass who came after it.
 *
 * Under the lock, in this order and nothing else:
 *	1. the caller's last_blocks(): drain the WAL, copy what is left;
 *	2. the new file and tablespace in pg_class;
 *	3. the ledger: the new file's row goes, the old file's row comes;
 *	4. invalidation of the table's relcache entry, so that plans are made anew
 *	   with the costs of the new tablespace;
 *	5. commit, flushed locally.  Not waiting for a synchronous standby: a
 *	   commit waits for it before it releases its locks, so that a stopped
 *	   standby would hold the exclusive lock for ever.
 * What could block there is locked before (pg_class, the ledger), and the lock
 * timeout holds for all of it.  What could be slow there is done before: the
 * pages of the catalog and of the ledger are read, the WAL has a segment to go
 * on with, and the caller has done the like for his blocks.  What is left is
 * two flushes of the WAL, one for its end to be readable and one by the commit.
 * An attempt in vain has no flush under the lock, but one behind it.
 *
 * The caller's part is bounded: 5 ms.  If more is left to do than can be done in
 * that time, the lock is given back, and the attempt made again after another
 * round; each time half as much again is allowed, but never more than the lock
 * timeout, which is what others may have to wait for us anyway.  So a swap comes
 * to pass however many are writing.
 *
 * Nothing here knows what kind of relation it is, but for the word "index" in
 * the messages, and for what the recovery of a BRIN index needs: no other kind
 * is moved yet.
 *
 * Assumption: nobody changes a block of the relation's file without a lock that
 * conflicts with AccessExclusiveLock, and the caller's two callbacks know which
 * blocks were changed before.  The new file is durable but for what its last
 * blocks' WAL restores.
 *
 * Locks: the caller holds ShareUpdateExclusiveLock on the relation and
 * AccessShareLock on its table, for the session, and keeps them.  Ours go with
 * the transaction: RowExclusiveLock on pg_class and the ledger first, then
 * AccessExclusiveLock on the relation.
 *
 * Tricky points: asking for the lock assigns an xid, also in vain, so each
 * attempt is a transaction of its own; and an attempt in vain must not end in an
 * abort, which would take the caller's session locks.  lock_time runs from the
 * grant, before anything else is done (see lock_relation_within()), to the commit
 * callback, which comes just before the locks are released.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "cleanup/ledger.h"
#include "compat.h"
#include "copy/copy_private.h"
#include "copy/wal_changes.h"
#include "job.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "settings.h"
#include "test_points.h"
#include "wait/relation_locks.h"
#include "wait/wait.h"

/* Looks at who holds the lock: the first two, and all others */
#define FIRST_LOOKS_MS		20
#define LOOK_AGAIN_MS		150

/* The rest after a vain attempt: that long for each one so far, at most ... */
#define REST_AFTER_MS		100
#define LONGEST_REST_MS		2000
#define MOST_AT_ONCE_MS		150
/* ... and for each of them, if it goes on after lock_wait */
#define LONG_REST_MS		20000

/*
 * While somebody stays, catch up no more often than that, and for no more than a
 * twentieth of the time
 */
#define CATCH_UP_AGAIN_MS	1000
#define CATCH_UP_SHARE		20

/* One turn in the queue, at first; twice as long after less WAL than that */
#define QUEUE_TURN_MS		1000
#define LITTLE_WAL			(4 * 1024 * 1024)

/* For the last blocks, under the lock */
#define LAST_BLOCKS_US		5000

/* Set between the grant and the end of the transaction. */
static bool measuring = false;
static instr_time granted_at;
static int64 measured;

typedef enum AttemptResult
{
	ATTEMPT_DONE,				/* swapped, or it has to start again */
	ATTEMPT_NOT_GRANTED,
	ATTEMPT_GRANTED,			/* the lock, nothing more yet */
	ATTEMPT_TOO_MUCH,			/* to do under the lock */
} AttemptResult;

static AttemptResult attempt(Swap *swap, int64 most_us, SwapResult *result);
static AttemptResult queue_for_lock(Swap *swap);
static void read_pages(const Swap *swap);
static void lock_wait_is_over(Swap *swap, const int *pids, int npids);

/* Take the time when the transaction is committed, but not yet its locks gone. */
static void
measure_commit(XactEvent event, void *arg)
{
	instr_time	now;

	if (!measuring || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT))
		return;
	measuring = false;
	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, granted_at);
	measured = INSTR_TIME_GET_MICROSEC(now);
}

/* Rest between two attempts, and learn what changes meanwhile. */
static bool
rest_and_stay_near(Swap *swap, int ms)
{
	for (; ms > MOST_AT_ONCE_MS; ms -= MOST_AT_ONCE_MS)
	{
		(void) throttle_rest(MOST_AT_ONCE_MS);
		if (!swap->stay_near(swap->arg))
			return false;
	}
	(void) throttle_rest(ms);
	return true;
}

/*
 * Wait until the exclusive lock can be had without making others wait long,
 * and swap.  Called with no transaction open, and returns so.
 *
 * ERROR 55P03 after index_mover.lock_wait, if index_mover.on_blocker is fail, or
 * nobody can be signalled as it says, or that didn't help; any error leaves
 * everything as it was, with the transaction to be aborted by the caller's caller.
 */
SwapResult
copy_swap(Swap *swap)
{
	static bool registered = false;
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "index_mover swap",
											  ALLOCSET_SMALL_SIZES);
	WaitLimits	limits = {.item = swap->item,.settings = swap->settings,.rested_ms = swap->rested_ms};
	Wait		wait;
	VirtualTransactionId *before = NULL;
	int			nbefore = 0;
	bool		looked = false;
	TimestampTz catch_up_at = GetCurrentTimestamp();
	int64		most_us = LAST_BLOCKS_US;
	SwapResult	result = SWAP_START_AGAIN;

	if (!registered)
	{
		RegisterXactCallback(measure_commit, NULL);
		registered = true;
	}

	progress_phase(PHASE_WAIT_SWAP_LOCK);
	wait_begin(&wait, NULL, &limits);
	wait.relid = swap->relid;
	/* what waits for us is let pass, or is not to be */
	wait.deadlock_check_at = DT_NOEND;
	for (;;)
	{
		VirtualTransactionId *now;
		int			nnow;
		MemoryContext oldcxt;
		TimestampTz began = GetCurrentTimestamp();
		bool		ready = wait.nvxids == 0 || began >= catch_up_at;

		if (!(ready ? swap->catch_up : swap->stay_near) (swap->arg))
			break;
		if (ready)
		{
			TimestampTz ended = GetCurrentTimestamp();

			catch_up_at = ended + Max((ended - began) * CATCH_UP_SHARE,
									  CATCH_UP_AGAIN_MS * INT64CONST(1000));
		}

		oldcxt = MemoryContextSwitchTo(cxt);
		now = relation_lock_holders(swap->relid, AccessExclusiveLock, &nnow);
		MemoryContextSwitchTo(oldcxt);

		/* whichever was there at the last look, too */
		if (wait.vxids)
			pfree(wait.vxids);
		wait.vxids = before;
		wait.nvxids = wait_keep_common(before, nbefore, now, nnow);
		before = now;
		nbefore = nnow;

		if (nnow > 0 && !looked)
		{
			looked = true;
			(void) throttle_rest(FIRST_LOOKS_MS);
			continue;
		}
		looked = true;

		if (wait.nvxids > 0)
		{
			if (wait_look(&wait))
				lock_wait_is_over(swap, wait.pids, wait.npids);
			(void) throttle_rest(LOOK_AGAIN_MS);
		}
		else if (ready)			/* else the road is free: catch up first */
		{
			AttemptResult came_of_it;
			bool		over = wait_is_over(&wait) &&
				swap->settings->on_blocker == ON_BLOCKER_WAIT;
			int			rest_ms = Min(REST_AFTER_MS * (swap->lock_attempts + 1),
									  LONGEST_REST_MS);

			progress_blockers(NULL, 0);
			came_of_it = attempt(swap, most_us, &result);
			if (came_of_it == ATTEMPT_DONE)
				break;
			if (came_of_it == ATTEMPT_TOO_MUCH)
			{
				most_us = Min(most_us + most_us / 2,
							  Max((int64) swap->settings->lock_timeout * 1000,
								  LAST_BLOCKS_US));
				rest_ms = FIRST_LOOKS_MS;
			}
			/* there is no end to this, so the others must hardly notice */
			if (over)
				rest_ms = LONG_REST_MS;
			if (!rest_and_stay_near(swap, rest_ms))
				break;

			/*
			 * attempts in vain, though nothing stays for long: there is much
			 * traffic
			 */
			if (wait_is_over(&wait))
				lock_wait_is_over(swap, wait.pids,
								  virtual_transaction_pids(before, nbefore, wait.pids,
														   WAIT_MAX_PIDS));
		}
	}

	progress_blockers(NULL, 0);
	MemoryContextDelete(cxt);
	return result;
}

/*
 * Queue for the lock once, and swap if it is granted, and if what the caller
 * has left to do takes no longer than most_us microseconds.  *result says what
 * has come of it if it is done.
 */
static AttemptResult
attempt(Swap *swap, int64 most_us, SwapResult *result)
{
	Oid			ledger;
	Relation	rel;
	MovePhase	phase;
	LastBlocks	last;
	AttemptResult came_of_it;
	char		timeout[32];

	wal_ahead();
	StartTransactionCommand();
	if (recovery_needs_full_pages(swap->relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("full_page_writes was switched off while BRIN index \"%s\" was being moved",
						NameStr(swap->item->index_name)),
				 errdetail("This server cannot recover from a crash after the file of such an index was removed."),
				 errhint("Switch it on, and CHECKPOINT, before the move.")));
	commit_locally();
	snprintf(timeout, sizeof(timeout), "%dms", swap->settings->lock_timeout);
	(void) set_config_option("lock_timeout", timeout, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);

	/* also one that does not come as far as the lock: the rest depends on it */
	swap->lock_attempts++;
	progress_lock_attempt();

	/* what could make us wait under the lock, first, and the caches warm */
	ledger = extension_relation("index_mover_ledger");
	if (!lock_relation_within(RelationRelationId, RowExclusiveLock, false,
							  swap->settings->lock_timeout, NULL) ||
		!lock_relation_within(ledger, RowExclusiveLock, false,
							  swap->settings->lock_timeout, NULL))
	{
		CommitTransactionCommand();
		return ATTEMPT_NOT_GRANTED;
	}
	read_pages(swap);
	InvalidateCatalogSnapshot();

	IM_POINT("swap-asking");
	came_of_it = queue_for_lock(swap);
	if (came_of_it != ATTEMPT_GRANTED)
	{
		*result = SWAP_START_AGAIN;
		CommitTransactionCommand();
		return came_of_it;
	}
	measuring = true;
	phase = progress_phase(PHASE_SWAPPING);
	IM_POINT("swap-locked");

	last = swap->last_blocks(swap->arg, most_us);
	if (last != LAST_BLOCKS_COPIED)
	{
		*result = SWAP_START_AGAIN;

		/*
		 * Nothing that has to last: the lock need not wait for a flush.  But
		 * a standby, which may know of the lock already, keeps it until it
		 * gets this record.
		 */
		set_commit("off");
		CommitTransactionCommand();
		XLogFlush(XactLastCommitEnd);
		IM_POINT("swap-given-back");
		progress_phase(phase);
		ereport(DEBUG1,
				(errmsg_internal("index_mover has given the exclusive lock on index %u back after " INT64_FORMAT " us: %s",
								 swap->relid, measured,
								 last == LAST_BLOCKS_TOO_MANY ? "too much left to do" : "the copy is of no use any more")));
		return last == LAST_BLOCKS_TOO_MANY ? ATTEMPT_TOO_MUCH : ATTEMPT_DONE;
	}
	IM_POINT("swap-copied");

	rel = relation_open(swap->relid, NoLock);
	if (!RelFileLocatorEquals(rel->rd_locator, swap->from))
		elog(ERROR, "relation %u has another file than the one that was copied",
			 swap->relid);
	SetRelationTableSpace(rel, swap->to.spcOid, swap->to.relNumber);
	InvokeObjectPostAlterHook(RelationRelationId, swap->relid, 0);
	relation_close(rel, NoLock);

	ledger_delete(swap->ledger_id);
	ledger_insert(&swap->old_file);
	CacheInvalidateRelcacheByRelid(swap->table);
	IM_POINT("swap-before-commit");
	/* an orphan must not commit: somebody may start the server anew */
	if (!PostmasterIsAlive())
		proc_exit(1);
	CommitTransactionCommand();

	swap->lock_time = measured;
	*result = SWAP_DONE;
	return ATTEMPT_DONE;
}

/*
 * Stand in the queue for lock_timeout in all, in turns, between which the WAL is
 * read.
 */
static AttemptResult
queue_for_lock(Swap *swap)
{
	int			left = swap->settings->lock_timeout;
	int			turn = QUEUE_TURN_MS;

	for (;;)
	{
		XLogRecPtr	end = GetXLogInsertRecPtr();

		if (lock_relation_within(swap->relid, AccessExclusiveLock, false,
								 Min(turn, left), &granted_at))
			return ATTEMPT_GRANTED;
		left -= turn;
		if (left <= 0)
			return ATTEMPT_NOT_GRANTED;
		if (GetXLogInsertRecPtr() - end < LITTLE_WAL)
			turn = Min(turn, INT_MAX / 2) * 2;
		if (!swap->stay_near(swap->arg))
			return ATTEMPT_DONE;
		IM_POINT("swap-turn");
	}
}

/* Look a pg_class row up, whether there is one or not. */
static void
read_by_index(Relation pg_class, Oid index, ScanKey key, int nkeys)
{
	SysScanDesc scan = systable_beginscan(pg_class, index, true, NULL, nkeys, key);

	(void) systable_getnext(scan);
	systable_endscan(scan);
}

/*
 * Read the pages that are going to be changed under the lock: the relation's
 * row and where its index entries will be, and the ledger's row.
 */
static void
read_pages(const Swap *swap)
{
	Relation	pg_class = table_open(RelationRelationId, NoLock);
	Relation	rel = relation_open(swap->relid, NoLock);
	ScanKeyData key[2];

	ScanKeyInit(&key[0], Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(swap->relid));
	read_by_index(pg_class, ClassOidIndexId, key, 1);

	ScanKeyInit(&key[0], Anum_pg_class_relname, BTEqualStrategyNumber, F_NAMEEQ,
				NameGetDatum(&rel->rd_rel->relname));
	ScanKeyInit(&key[1], Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(rel->rd_rel->relnamespace));
	read_by_index(pg_class, ClassNameNspIndexId, key, 2);

	ScanKeyInit(&key[0], Anum_pg_class_reltablespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(swap->to.spcOid == MyDatabaseTableSpace ?
								 InvalidOid : swap->to.spcOid));
	ScanKeyInit(&key[1], Anum_pg_class_relfilenode, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(swap->to.relNumber));
	read_by_index(pg_class, ClassTblspcRelfilenodeIndexId, key, 2);

	relation_close(rel, NoLock);
	table_close(pg_class, NoLock);
	(void) ledger_exists(swap->ledger_id);
}

/*
 * lock_wait is over, and who is in the way is not to be signalled: give up, or say
 * who it is and go on.  If it is nobody, there was too much to do under the lock,
 * or pg_class or the ledger could not be locked before it.
 */
static void
lock_wait_is_over(Swap *swap, const int *pids, int npids)
{
	char	   *list;

	StartTransactionCommand();	/* the catalog has the names of roles */
	if (swap->settings->on_blocker == ON_BLOCKER_WAIT)
	{
		swap_still_waiting(swap->item, swap->relid, swap->settings, pids, npids,
						   swap->told);
		CommitTransactionCommand();
		return;
	}
	list = blockers_describe(swap->relid, pids, npids);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not get the exclusive lock on index \"%s\" within %g seconds",
					NameStr(swap->item->index_name), swap->settings->lock_wait / 1000.0),
			 npids > 0 ?
			 errdetail("The lock was held by: %s.", list) :
			 errdetail("No transaction held it: too much of the index changes to be copied under the lock, or a system catalog is locked."),
			 npids > 0 ?
			 errhint("End these transactions, or raise index_mover.lock_wait.") :
			 errhint("Move the index at a quieter time, or raise index_mover.lock_timeout or index_mover.lock_wait.")));
}

/*
 * A copy goes on trying to lock this relation though lock_wait is over: say so,
 * and who is in the way, once in a copy (*told).  In a transaction.
 */
void
swap_still_waiting(const MoveItem *item, Oid relid, const MoveSettings *settings,
				   const int *pids, int npids, bool *told)
{
	char	   *list;

	if (*told)
		return;
	*told = true;
	list = blockers_describe(relid, pids, npids);
	ereport(WARNING,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("the copy of index \"%s\" has waited for a lock for %g seconds, and goes on waiting",
					NameStr(item->index_name), settings->lock_wait / 1000.0),
			 npids > 0 ?
			 errdetail("The lock is held by: %s.", list) :
			 errdetail("No transaction holds it: too much of the index changes to be copied under the lock, or a system catalog is locked."),
			 errhint("See move_blockers(); cancel_move() ends the wait.")));
	pfree(list);
}
