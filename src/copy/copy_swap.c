/*-------------------------------------------------------------------------
 *
 * copy_swap.c
 *	  Method copy: the short exclusive step that gives a relation its new
 *	  file.
 *
 * Waiting for the lock must not hurt others: everything that wants the
 * relation queues behind an AccessExclusiveLock that waits.  So we first
 * check the holders, without queueing.  One that was there at the last check,
 * too, runs a long transaction, and to queue behind it would be in vain.
 * Only without such a holder do we queue, for index_mover.lock_timeout; if
 * that was not enough, we let others run for a while before the next attempt.
 *
 * A holder may stay for hours: a VACUUM keeps its lock on all indexes of a
 * table to its end.  A copy that is ready is not thrown away for that: with
 * on_blocker = wait, the default, the checks never end, and after lock_wait a
 * WARNING names the holders.  While one stays, the WAL is read, but changes
 * are copied only from time to time: a block that keeps changing would be
 * copied, and logged, at each check.
 *
 * No WAL can be read while we queue.  So if lock_timeout is longer than a
 * second, we leave the queue after a second, read the WAL, and queue again,
 * until lock_timeout is over.  Where others write little, the turns get
 * longer, because leaving the queue lets all pass that came later.
 *
 * Under the lock, in this order and nothing else:
 *	1. the caller's last_blocks(): read the WAL, copy what is left;
 *	2. the new file and tablespace in pg_class;
 *	3. the ledger: delete the new file's row, insert the old file's row;
 *	4. invalidation of the table's relcache entry, so that queries are
 *	   planned again with the costs of the new tablespace;
 *	5. commit, flushed locally.  Not waiting for a synchronous standby: a
 *	   commit waits for it before it releases its locks, so that a stopped
 *	   standby would keep the exclusive lock held.
 * What could block there is locked before (pg_class, the ledger), and the
 * lock timeout applies to all of it.  What could be slow there is done
 * before: the pages of the catalog and of the ledger are read, the WAL has a
 * segment to go on with, and the caller has prepared its blocks.  What is
 * left is two flushes of the WAL, one to make its end readable and one by the
 * commit.  An attempt in vain flushes after the lock is released, not under
 * it.
 *
 * The caller's part is limited to 5 ms.  If what is left would take longer,
 * the lock is released, and the attempt repeated after another round; each
 * time half as much again is allowed, but never more than the lock timeout,
 * which others may have to wait for us anyway.  So a swap succeeds however
 * many are writing.
 *
 * Nothing here depends on the kind of relation, but for the word "index" in
 * the messages, and for what the recovery of a BRIN index needs: no other
 * kind is moved yet.
 *
 * Assumption: no process changes a block of the relation's file without a
 * lock that conflicts with AccessExclusiveLock, and the caller's callbacks
 * know which blocks were changed before.  The new file is durable but for
 * what its last blocks' WAL restores.
 *
 * Locks: the caller holds ShareUpdateExclusiveLock on the relation and
 * AccessShareLock on its table, for the session, and keeps them.  Ours are
 * held to the end of the transaction: RowExclusiveLock on pg_class and the
 * ledger first, then AccessExclusiveLock on the relation.
 *
 * Tricky: asking for the lock assigns an xid, even in vain, so each attempt
 * is a transaction of its own.  An attempt in vain must not end in an abort,
 * which would release the caller's session locks.  lock_time runs from the
 * grant, before anything else is done (see lock_relation_within()), to the
 * commit callback, which comes just before the locks are released.
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

/* Rest after the first check of the lock holders, and after the others */
#define FIRST_LOOKS_MS		20
#define LOOK_AGAIN_MS		150

/* Rest after an attempt in vain: this for each one so far, at most ... */
#define REST_AFTER_MS		100
#define LONGEST_REST_MS		2000
#define MOST_AT_ONCE_MS		150
/* ... and after each one that is made after lock_wait */
#define LONG_REST_MS		20000

/*
 * While a holder stays, catch up no more often than this, and for no more
 * than a twentieth of the time
 */
#define CATCH_UP_AGAIN_MS	1000
#define CATCH_UP_SHARE		20

/* First turn in the queue; doubled after less WAL than this */
#define QUEUE_TURN_MS		1000
#define LITTLE_WAL			(4 * 1024 * 1024)

/* Time for the last blocks, under the lock, at first */
#define LAST_BLOCKS_US		5000

/* Valid between the grant and the end of the transaction */
static bool measuring = false;
static instr_time granted_at;
static int64 measured;

typedef enum AttemptResult
{
	ATTEMPT_DONE,				/* see *result */
	ATTEMPT_NOT_GRANTED,
	ATTEMPT_GRANTED,			/* got the lock, and did nothing else yet */
	ATTEMPT_TOO_MUCH,			/* left to do under the lock */
} AttemptResult;

static AttemptResult attempt(Swap *swap, int64 most_us, SwapResult *result);
static AttemptResult queue_for_lock(Swap *swap);
static void read_pages(const Swap *swap);
static void lock_wait_is_over(Swap *swap, const int *pids, int npids);

/* Take the time after the commit, before the release of locks. */
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

/*
 * Rest between two attempts, and read what changes.  Return false if the copy
 * has to be started again.
 */
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
 * Swap the file of a relation, when the exclusive lock can be had without
 * making others wait long.  Called with no transaction open, and returns so.
 *
 * ERROR 55P03 after index_mover.lock_wait, if on_blocker is fail, or no
 * process can be signaled as it says, or that did not help.  Any error leaves
 * everything as it was, with the transaction to be aborted by the caller's
 * caller.
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
	/* what waits for us is given way to, or is not to be */
	wait.deadlock_check_at = DT_NOEND;
	for (;;)
	{
		VirtualTransactionId *now;
		int			nnow;
		MemoryContext oldcontext;
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

		oldcontext = MemoryContextSwitchTo(cxt);
		now = relation_lock_holders(swap->relid, AccessExclusiveLock, &nnow);
		MemoryContextSwitchTo(oldcontext);

		/* those that were there at the last check, too */
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
		else if (ready)			/* otherwise there are no long holders: catch
								 * up first */
		{
			AttemptResult outcome;
			bool		over = wait_is_over(&wait) &&
				swap->settings->on_blocker == ON_BLOCKER_WAIT;
			int			rest_ms = Min(REST_AFTER_MS * (swap->lock_attempts + 1),
									  LONGEST_REST_MS);

			progress_blockers(NULL, 0);
			outcome = attempt(swap, most_us, &result);
			if (outcome == ATTEMPT_DONE)
				break;
			if (outcome == ATTEMPT_TOO_MUCH)
			{
				most_us = Min(most_us + most_us / 2,
							  Max((int64) swap->settings->lock_timeout * 1000,
								  LAST_BLOCKS_US));
				rest_ms = FIRST_LOOKS_MS;
			}
			/* this may go on without end, so others must hardly notice */
			if (over)
				rest_ms = LONG_REST_MS;
			if (!rest_and_stay_near(swap, rest_ms))
				break;

			/* attempts in vain with no long holders: there is much traffic */
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
 * Queue for the lock once, and swap if it is granted and the last blocks take
 * no longer than most_us.  *result is set for ATTEMPT_DONE.
 */
static AttemptResult
attempt(Swap *swap, int64 most_us, SwapResult *result)
{
	Oid			ledger;
	Relation	rel;
	MovePhase	phase;
	LastBlocks	last;
	AttemptResult outcome;
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

	/* even if it does not get as far as the lock: the rest depends on it */
	swap->lock_attempts++;
	progress_lock_attempt();

	/* first what could make us wait under the lock, and warm the caches */
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
	outcome = queue_for_lock(swap);
	if (outcome != ATTEMPT_GRANTED)
	{
		*result = SWAP_START_AGAIN;
		CommitTransactionCommand();
		return outcome;
	}
	measuring = true;
	phase = progress_phase(PHASE_SWAPPING);
	IM_POINT("swap-locked");

	last = swap->last_blocks(swap->arg, most_us);
	if (last != LAST_BLOCKS_COPIED)
	{
		*result = SWAP_START_AGAIN;

		/*
		 * Nothing has to be durable, so the lock need not be held for a
		 * flush.  But flush afterwards: a standby may know of the lock
		 * already, and holds it until it gets this record.
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
	/* an orphan must not commit: the server may have been started again */
	if (!PostmasterIsAlive())
		proc_exit(1);
	CommitTransactionCommand();

	swap->lock_time = measured;
	*result = SWAP_DONE;
	return ATTEMPT_DONE;
}

/* Queue for lock_timeout in all, in turns, between which the WAL is read. */
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

/* Look up a pg_class row, which may not exist, to read its pages. */
static void
read_by_index(Relation pg_class, Oid index, ScanKey key, int nkeys)
{
	SysScanDesc scan = systable_beginscan(pg_class, index, true, NULL, nkeys, key);

	(void) systable_getnext(scan);
	systable_endscan(scan);
}

/*
 * Read the pages that will be changed under the lock: those of the relation's
 * row and of its future index entries, and of the ledger's row.
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
 * Give up after lock_wait or, with on_blocker = wait, warn and return.
 * Without pids, there was too much to do under the lock, or pg_class or the
 * ledger could not be locked before it.
 */
static void
lock_wait_is_over(Swap *swap, const int *pids, int npids)
{
	char	   *list;

	StartTransactionCommand();	/* for catalog access: names of roles */
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
 * Warn, once in a copy (*told), that it goes on trying to lock this relation
 * after lock_wait, and name the holders.  In a transaction.
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
