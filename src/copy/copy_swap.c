/*-------------------------------------------------------------------------
 *
 * copy_swap.c
 *	  Method copy: the short exclusive step that gives a relation its new
 *	  file.
 *
 * Everything that wants the relation queues behind an AccessExclusiveLock
 * that waits.  So we first check the holders, without queueing.  One that was
 * there at the last check, too, runs a long transaction, and to queue behind
 * it would be in vain.  Only without such a holder do we queue, for
 * index_mover.lock_timeout; if that was not enough, we let others run for a
 * while before the next attempt.
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
 *	1. copy_last_blocks(): read the WAL, copy what is left;
 *	2. the new file and tablespace in pg_class;
 *	3. the ledger: delete the new file's row, insert the old file's row;
 *	4. invalidation of the table's relcache entry, so that queries are
 *	   planned again with the costs of the new tablespace;
 *	5. commit, flushed locally: a commit waits for a synchronous standby
 *	   before it releases its locks.
 * What could block there is locked before (pg_class, the ledger), under the
 * same lock timeout.  What could be slow is done before: the pages of the
 * catalog and of the ledger are read, the WAL has a segment to go on with,
 * and copy_catch_up() has prepared the blocks.  What is left is two flushes
 * of the WAL, one to make its end readable and one by the commit.  An attempt
 * in vain flushes after the lock is released.
 *
 * The last blocks may take 10 ms.  If they would take longer, at the speed of
 * those so far, the lock is not asked for, or released, and the attempt
 * repeated after another round; each time twice as much is allowed, up to
 * index_mover.max_lock_time.  If that is not enough, copy_is_losing() says
 * when to give up.
 *
 * Assumption: no process changes a block of the relation's file without a
 * lock that conflicts with AccessExclusiveLock.  The new file is durable but
 * for what its last blocks' WAL restores.
 *
 * Locks: those of copy_pace.c are kept.  Ours are held to the end of the
 * transaction: RowExclusiveLock on pg_class and the ledger first, then
 * AccessExclusiveLock on the relation.
 *
 * GRANT changes the pg_class row of a table without a lock on the table, and
 * keeps it to the end of its transaction.  So one that does counts as a holder
 * in the checks, and under the lock we look again.  If one comes even after
 * that, the update of the row gives up after the lock timeout, or fails because
 * the other transaction has committed, in a subtransaction; and with it the
 * attempt.
 *
 * Tricky: asking for the lock assigns an xid, even in vain, so each attempt
 * is a transaction of its own.  An attempt in vain must not end in an abort,
 * which would release the session locks.  lock_time runs from the grant,
 * before anything else is done (see lock_relation_within()), to the commit
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
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "copy/copy_private.h"
#include "own_tables.h"
#include "plan/plan.h"

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
#define LAST_BLOCKS_US		INT64CONST(10000)

/* Valid between the grant and the end of the transaction */
static bool measuring = false;
static instr_time granted_at;
static int64 measured;

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

/* Rest between two attempts, and read what changes. */
static CopyOutcome
rest_and_stay_near(CopyState *cs, int ms)
{
	for (; ms > MOST_AT_ONCE_MS; ms -= MOST_AT_ONCE_MS)
	{
		CopyOutcome outcome;

		(void) throttle_rest(MOST_AT_ONCE_MS);
		if ((outcome = copy_stay_near(cs)) != GO_ON)
			return outcome;
	}
	(void) throttle_rest(ms);
	return GO_ON;
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
read_pages(const CopyState *cs)
{
	Relation	pg_class = table_open(RelationRelationId, NoLock);
	Relation	rel = relation_open(cs->index, NoLock);
	ScanKeyData key[2];

	ScanKeyInit(&key[0], Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(cs->index));
	read_by_index(pg_class, ClassOidIndexId, key, 1);

	ScanKeyInit(&key[0], Anum_pg_class_relname, BTEqualStrategyNumber, F_NAMEEQ,
				NameGetDatum(&rel->rd_rel->relname));
	ScanKeyInit(&key[1], Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(rel->rd_rel->relnamespace));
	read_by_index(pg_class, ClassNameNspIndexId, key, 2);

	ScanKeyInit(&key[0], Anum_pg_class_reltablespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(cs->to.spcOid == MyDatabaseTableSpace ?
								 InvalidOid : cs->to.spcOid));
	ScanKeyInit(&key[1], Anum_pg_class_relfilenode, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(cs->to.relNumber));
	read_by_index(pg_class, ClassTblspcRelfilenodeIndexId, key, 2);

	relation_close(rel, NoLock);
	table_close(pg_class, NoLock);
	(void) ledger_exists(cs->new_file.id);
}

/*
 * Give up after lock_wait or, with on_blocker = wait, warn and return.
 * Without pids, there was too much to do under the lock, or pg_class or the
 * ledger could not be locked before it.
 */
static void
lock_wait_is_over(CopyState *cs, const int *pids, int npids)
{
	const MoveSettings *settings = cs->mc->settings;
	char	   *list;

	StartTransactionCommand();	/* for catalog access: names of roles */
	if (settings->on_blocker == ON_BLOCKER_WAIT)
	{
		copy_still_waiting(cs, cs->index, pids, npids);
		CommitTransactionCommand();
		return;
	}
	list = blockers_describe(cs->index, pids, npids);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not get the exclusive lock on %s \"%s\" within %g seconds",
					relation_noun(cs->mc->item->relkind), NameStr(cs->mc->item->relname), settings->lock_wait / 1000.0),
			 npids > 0 ?
			 errdetail("The lock was held by: %s.", list) :
			 errdetail("No transaction held it: too many blocks change to be copied under the lock, or a system catalog is locked."),
			 npids > 0 ?
			 errhint("End these transactions, or raise index_mover.lock_wait.") :
			 errhint("Make the move at a quieter time, or raise index_mover.max_lock_time or index_mover.lock_wait.")));
}

/* Queue for lock_timeout in all, in turns, between which the WAL is read. */
static CopyOutcome
queue_for_lock(CopyState *cs)
{
	int			left = cs->mc->settings->lock_timeout;
	int			turn = QUEUE_TURN_MS;

	for (;;)
	{
		XLogRecPtr	end = GetXLogInsertRecPtr();
		CopyOutcome outcome;

		if (lock_relation_within(cs->index, AccessExclusiveLock, false,
								 Min(turn, left), &granted_at))
			return GO_ON;
		left -= turn;
		if (left <= 0)
			return LOCK_NOT_GRANTED;
		if (GetXLogInsertRecPtr() - end < LITTLE_WAL)
			turn = Min(turn, INT_MAX / 2) * 2;
		if ((outcome = copy_stay_near(cs)) != GO_ON)
			return outcome;
		IM_POINT("swap-turn");
	}
}

/* Return where the row of the relation in pg_class is now. */
static ItemPointerData
row_position(const CopyState *cs)
{
	HeapTuple	tuple;
	ItemPointerData position;

	AcceptInvalidationMessages();
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(cs->index));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", cs->index);
	position = tuple->t_self;
	ReleaseSysCache(tuple);
	return position;
}

/* Give the relation its new file in pg_class. */
static void
set_file(void *arg)
{
	CopyState  *cs = arg;
	Relation	rel = relation_open(cs->index, NoLock);

	if (!RelFileLocatorEquals(rel->rd_locator, cs->from))
		elog(ERROR, "relation %u has another file than the one that was copied",
			 cs->index);
	SetRelationTableSpace(rel, cs->to.spcOid, cs->to.relNumber);
	InvokeObjectPostAlterHook(RelationRelationId, cs->index, 0);
	relation_close(rel, NoLock);
}

/*
 * The same for a table.  Return false if another transaction is changing the
 * row, or has changed it meanwhile; that of an index, none does.
 */
static bool
set_file_of_table(CopyState *cs)
{
	VirtualTransactionId changer;
	ItemPointerData before = row_position(cs);
	ItemPointerData now;
	ErrorData  *error;

	/* those that wait for our lock would wait for this one, too */
	if (relation_row_changer(cs->index, &changer))
		return false;
	IM_POINT("swap-row");
	if ((error = errors_catch(set_file, cs)) == NULL)
		return true;

	/*
	 * The update of a row that was changed while we waited for it is an
	 * internal error in core ("tuple concurrently updated").
	 */
	now = row_position(cs);
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
		error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED &&
		(error->sqlerrcode != ERRCODE_INTERNAL_ERROR || ItemPointerEquals(&before, &now)))
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/*
 * Queue for the lock once, and swap if it is granted and the last blocks take
 * no longer than most_us.
 */
static CopyOutcome
attempt(CopyState *cs, LedgerEntry *old_file, int64 most_us)
{
	Oid			ledger;
	MovePhase	phase;
	CopyOutcome outcome;
	int			timeout_ms = cs->mc->settings->lock_timeout;
	char		timeout[32];

	wal_ahead();
	StartTransactionCommand();
	if (recovery_needs_full_pages(cs->index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("full_page_writes was switched off while BRIN index \"%s\" was being moved",
						NameStr(cs->mc->item->relname)),
				 errdetail("This server cannot recover from a crash after the file of such an index was removed."),
				 errhint("Switch it on, and CHECKPOINT, before the move.")));
	commit_locally();
	snprintf(timeout, sizeof(timeout), "%dms", timeout_ms);
	(void) set_config_option("lock_timeout", timeout, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	progress_lock_attempt();

	/* first what could make us wait under the lock, and warm the caches */
	ledger = extension_relation("ledger");
	if (!lock_relation_within(RelationRelationId, RowExclusiveLock, false, timeout_ms, NULL) ||
		!lock_relation_within(ledger, RowExclusiveLock, false, timeout_ms, NULL))
	{
		CommitTransactionCommand();
		return LOCK_NOT_GRANTED;
	}
	read_pages(cs);
	InvalidateCatalogSnapshot();

	IM_POINT("swap-asking");
	if ((outcome = queue_for_lock(cs)) != GO_ON)
	{
		CommitTransactionCommand();
		return outcome;
	}
	measuring = true;
	phase = progress_phase(PHASE_SWAPPING);
	IM_POINT("swap-locked");

	if ((outcome = copy_last_blocks(cs, most_us)) == GO_ON)
	{
		IM_POINT("swap-copied");
		if (!cs->is_table)
			set_file(cs);
		else if (!set_file_of_table(cs))
			outcome = LOCK_NOT_GRANTED;
	}
	if (outcome != GO_ON)
	{
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
								 cs->index, measured,
								 outcome == TOO_MUCH_LEFT ? "too much left to do" :
								 outcome == LOCK_NOT_GRANTED ? "its pg_class row is locked" :
								 "the copy is of no use any more")));
		return outcome;
	}

	ledger_delete(cs->new_file.id);
	ledger_insert(old_file);
	CacheInvalidateRelcacheByRelid(cs->table);
	IM_POINT("swap-before-commit");
	/* an orphan must not commit: the server may have been started again */
	if (!PostmasterIsAlive())
		proc_exit(1);
	CommitTransactionCommand();
	return GO_ON;
}

/*
 * Swap the file, when the exclusive lock can be had without making others
 * wait long.  Called with no transaction open, and returns so.
 *
 * ERROR 55P03 after index_mover.lock_wait, if on_blocker is fail, or no
 * process can be signaled as it says, or that did not help.  Any error leaves
 * everything as it was, with the transaction to be aborted by the caller's
 * caller.
 */
CopyOutcome
copy_swap(CopyState *cs)
{
	static bool registered = false;
	MoveItem   *item = cs->mc->item;
	const MoveSettings *settings = cs->mc->settings;
	WaitLimits	limits = {.item = item,.settings = settings,.rested_ms = &cs->rested_ms};
	Wait		wait;
	VirtualTransactionId *before = NULL;
	int			nbefore = 0;
	bool		looked = false;
	TimestampTz catch_up_at = GetCurrentTimestamp();
	int64		most_us = LAST_BLOCKS_US;
	int			attempts = 0;
	CopyOutcome outcome;
	LedgerEntry old_file = cs->new_file;

	if (!registered)
		RegisterXactCallback(measure_commit, NULL);
	registered = true;

	/* here, so that it need not be done under the lock */
	StartTransactionCommand();
	old_file.id = ledger_new_id();
	ledger_row_claim(old_file.id);
	CommitTransactionCommand();
	old_file.kind = LEDGER_OLD_FILE;
	old_file.tablespace = cs->from.spcOid;
	old_file.relfilenumber = cs->from.relNumber;

	progress_phase(PHASE_WAIT_SWAP_LOCK);
	wait_begin(&wait, NULL, &limits);
	wait.relid = cs->index;
	/* what waits for us is given way to; if not, it must not be waited for */
	if (settings->give_way)
		wait.deadlock_check_at = DT_NOEND;
	for (;;)
	{
		VirtualTransactionId *now;
		int			nnow;
		MemoryContext oldcontext;
		TimestampTz began = GetCurrentTimestamp();
		bool		ready = wait.nvxids == 0 || began >= catch_up_at;

		if ((outcome = ready ? copy_catch_up(cs) : copy_stay_near(cs)) != GO_ON)
			break;
		if (ready)
		{
			TimestampTz ended = GetCurrentTimestamp();

			catch_up_at = ended + Max((ended - began) * CATCH_UP_SHARE,
									  CATCH_UP_AGAIN_MS * INT64CONST(1000));
		}

		oldcontext = MemoryContextSwitchTo(cs->cxt);
		now = relation_lock_holders(cs->index, AccessExclusiveLock, &nnow);
		now = repalloc(now, sizeof(VirtualTransactionId) * (nnow + 1));
		MemoryContextSwitchTo(oldcontext);
		if (cs->is_table)
		{
			StartTransactionCommand();
			if (relation_row_changer(cs->index, &now[nnow]))
			{
				int			same = 0;

				/* from 18 on, GRANT holds the table, too */
				while (!VirtualTransactionIdEquals(now[same], now[nnow]))
					same++;
				if (same == nnow)
					nnow++;
			}
			CommitTransactionCommand();
		}

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
			copy_is_not_losing(cs);
			if (wait_look(&wait))
				lock_wait_is_over(cs, wait.pids, wait.npids);
			(void) throttle_rest(LOOK_AGAIN_MS);
		}
		else if (ready)			/* otherwise there are no long holders: catch
								 * up first */
		{
			bool		over = wait_is_over(&wait) &&
				settings->on_blocker == ON_BLOCKER_WAIT;
			int64		longest_us = settings->max_lock_time * INT64CONST(1000);
			int			rest_ms = Min(REST_AFTER_MS * (attempts + 1), LONGEST_REST_MS);

			most_us = Min(most_us, longest_us);
			/* each further try would cost a round of direct copying */
			if (block_set_count(cs->todo) > COPY_FAR_TOO_MANY)
				most_us = longest_us;
			progress_blockers(NULL, 0);
			IM_POINT("swap-ready");
			if (copy_last_us(cs) <= most_us)
			{
				attempts++;
				outcome = attempt(cs, &old_file, most_us);
			}
			else
				outcome = TOO_MUCH_LEFT;
			if (outcome == GO_ON || outcome == START_AGAIN)
				break;
			if (outcome == TOO_MUCH_LEFT)
			{
				int64		left;

				/* it may have been WAL to be read, which needs no lock */
				if ((outcome = copy_stay_near(cs)) != GO_ON)
					break;
				left = block_set_count(cs->todo) + wal_changes_count(cs->changes);
				if (most_us >= longest_us && copy_is_losing(cs, left) &&
					copy_last_us(cs) > most_us)
					copy_cannot_keep_up(cs, left);
				most_us = Min(most_us * 2, longest_us);
				rest_ms = FIRST_LOOKS_MS;
			}
			else
				copy_is_not_losing(cs); /* but others were in the way */
			/* this may go on without end, so others must hardly notice */
			if (over)
				rest_ms = LONG_REST_MS;
			if ((outcome = rest_and_stay_near(cs, rest_ms)) != GO_ON)
				break;

			/* attempts in vain with no long holders: there is much traffic */
			if (wait_is_over(&wait))
				lock_wait_is_over(cs, wait.pids,
								  virtual_transaction_pids(before, nbefore, wait.pids,
														   WAIT_MAX_PIDS));
		}
	}

	progress_blockers(NULL, 0);
	item->lock_attempts += attempts;
	if (outcome != GO_ON)
	{
		ledger_row_release(old_file.id);
		return outcome;
	}

	/* whatever goes wrong from here on, the index has moved */
	cs->old_file = old_file;
	item->lock_time = measured;
	item->status = STATUS_MOVED;
	item->finished_at = GetCurrentTimestamp();
	item->idle = progress_idle();
	return GO_ON;
}
