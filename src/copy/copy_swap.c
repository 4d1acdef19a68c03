/*-------------------------------------------------------------------------
 *
 * copy_swap.c
 *	  Method copy: the short exclusive step that gives a relation its new
 *	  file, or a table, its TOAST table and the index of that theirs.
 *
 * src/README, "Protocol of the swap", has the order of steps, why it is right, and
 * when we ask for the lock, with or without queueing.
 *
 * The last blocks may take 10 ms.  If they would take longer, at their speed so
 * far, the lock is not asked for, or is given back, and the attempt repeated after
 * another round; each time twice as much is allowed, up to index_mover.max_lock_time.
 *
 * Before the lock everything is done that could block under it (lock_catalogs())
 * or be slow (read_pages(), wal_ahead(), copy_catch_up()).  There remain two flushes
 * of the WAL, one to make its end readable and one by the commit.
 *
 * Locks: those of copy_locks.c are kept.  Ours are held to the end of the
 * transaction: RowExclusiveLock on catalogs and the ledger first, then
 * AccessExclusiveLock on the relations, in core's order: table, TOAST table, index.
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
#include "catalog/pg_am.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/pmsignal.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "copy/copy_private.h"
#include "errors.h"
#include "own_tables.h"
#include "plan/plan.h"

/* Rest after a look that found short transactions, and after the others */
#define FIRST_LOOKS_MS		20
#define LOOK_AGAIN_MS		150
/* After so many looks that found one short transaction or another, queue */
#define LOOKS_BEFORE_QUEUE	5

/* Rest after each attempt in the queue: longer by so much each time, up to a bound */
#define REST_AFTER_MS		100
#define LONGEST_REST_MS		2000
#define LONG_REST_MS		20000	/* after lock_wait */

/* While a holder stays, catch up for no more than a twentieth of the time */
#define CATCH_UP_SHARE		20
/* With more changed blocks, as soon as that allows: the next holder may come soon */
#define NEAR_BLOCKS			IM_LIMIT("near", COPY_FAR_TOO_MANY / 2)

#define QUEUE_TURN_MS		1000

/* Time for the last blocks, under the lock, at first */
#define LAST_BLOCKS_US		INT64CONST(10000)

/* From the grant of the first lock to the end of the transaction: the row of lock_time */
static MoveItem *measuring = NULL;
static instr_time granted_at;
static int64 last_us;			/* of the last attempt */

/* Take the time of the locks, the longest of all attempts, just before their release. */
static void
measure_commit(XactEvent event, void *arg)
{
	if (measuring == NULL || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT))
		return;
	last_us = elapsed_us(granted_at);
	measuring->lock_time = Max(measuring->lock_time, last_us);
	measuring = NULL;
}

/* The rows that the swap changes, from which core may build a relcache entry under the lock. */
static const Oid swap_catalogs[] = {
	AccessMethodRelationId, AccessMethodProcedureRelationId, AttrDefaultRelationId,
	AttributeRelationId, ConstraintRelationId, ExtensionRelationId, IndexRelationId,
	InheritsRelationId, NamespaceRelationId, OperatorClassRelationId, PolicyRelationId,
	ProcedureRelationId, RelationRelationId, RewriteRelationId, TriggerRelationId,
	TypeRelationId,
};

/* Lock the catalogs and the ledger for the swap; false if one cannot be had in this time. */
static bool
lock_catalogs(Oid ledger, int timeout_ms)
{
	Assert(IsTransactionState());
	for (int i = 0; i < lengthof(swap_catalogs); i++)
		if (!lock_relation_within(swap_catalogs[i], RowExclusiveLock, false, timeout_ms, NULL))
			return false;
	return lock_relation_within(ledger, RowExclusiveLock, false, timeout_ms, NULL);
}

/* Read the pages of the relations' rows, of their future index entries, and of the ledger. */
static void
read_pages(void *arg)
{
	Relation	pg_class = table_open(RelationRelationId, NoLock);

	foreach_file(f, (CopyState *) arg)
	{
		Relation	rel = relation_open(f->relid, NoLock);
		ScanKeyData key[2];
		SysScanDesc scan;

		(void) catalog_rows(RelationRelationId, ClassOidIndexId,
							Anum_pg_class_oid, f->relid, 0, InvalidOid);
		(void) catalog_rows(RelationRelationId, ClassTblspcRelfilenodeIndexId,
							Anum_pg_class_reltablespace, tablespace_in_catalog(f->to.spcOid),
							Anum_pg_class_relfilenode, f->to.relNumber);
		ScanKeyInit(&key[0], Anum_pg_class_relname, BTEqualStrategyNumber, F_NAMEEQ,
					NameGetDatum(&rel->rd_rel->relname));
		ScanKeyInit(&key[1], Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(rel->rd_rel->relnamespace));
		scan = systable_beginscan(pg_class, ClassNameNspIndexId, true, NULL, 2, key);
		(void) systable_getnext(scan);
		systable_endscan(scan);
		relation_close(rel, NoLock);
		(void) ledger_exists(f->new_file.id);
	}
	table_close(pg_class, NoLock);
}

/* Queue for lock_timeout in all, in turns: no WAL can be read in the queue. */
static bool
queue_for_lock(CopyState *cs)
{
	for (int left = cs->settings->lock_timeout;; left -= QUEUE_TURN_MS)
	{
		if (lock_relation_within(cs->relid, AccessExclusiveLock, false,
								 Min(QUEUE_TURN_MS, left), &granted_at))
			return true;
		if (left <= QUEUE_TURN_MS)
			return false;
		copy_stay_near(cs);
		IM_POINT("swap-turn");
	}
}

/* Lock all that moves.  Never queue for a lock while others wait for the first. */
static bool
lock_files(CopyState *cs, bool queue)
{
	foreach_file(f, cs)
	{
		if (measuring == NULL)
			INSTR_TIME_SET_CURRENT(granted_at);
		if (!(queue && measuring == NULL ? queue_for_lock(f) :
			  ConditionalLockRelationOid(f->relid, AccessExclusiveLock)))
			return false;
		measuring = cs->item;
		IM_POINT("swap-file-locked");
	}
	return true;
}

static ItemPointerData
row_position(const CopyState *cs)
{
	HeapTuple	tuple;
	ItemPointerData position;

	AcceptInvalidationMessages();
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(cs->relid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", cs->relid);
	position = tuple->t_self;
	ReleaseSysCache(tuple);
	return position;
}

/* Return whether no other transaction is changing our rows, as GRANT does without a lock. */
static bool
rows_are_free(CopyState *cs)
{
	VirtualTransactionId changer;

	IM_POINT("swap-copied");
	foreach_file(f, cs)
	{
		f->row = row_position(f);
		if (relation_row_changer(f->relid, &changer))
			return false;
	}
	IM_POINT("swap-row");
	return true;
}

/* Give all relations their new files in pg_class and in the ledger. */
static void
set_files(void *arg)
{
	CopyState  *cs = arg;

	foreach_file(f, cs)
	{
		Relation	rel = relation_open(f->relid, NoLock);

		Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, false));
		if (!RelFileLocatorEquals(rel->rd_locator, f->from))
			elog(ERROR, "relation %u has another file than the one that was copied",
				 f->relid);
		SetRelationTableSpace(rel, f->to.spcOid, f->to.relNumber);
		InvokeObjectPostAlterHook(RelationRelationId, f->relid, 0);
		relation_close(rel, NoLock);
		ledger_delete(f->new_file.id);
		ledger_insert(&f->old_file);
		IM_POINT("swap-file-set");
	}
	CacheInvalidateRelcacheByRelid(cs->table);
}

/* Work in a subtransaction; return false if another transaction was in the way. */
static bool
try_unhindered(void (*work) (void *arg), CopyState *cs)
{
	ErrorData  *error;
	bool		changed = false;

	Assert(IsTransactionState());
	error = errors_catch(work, cs);
	if (error == NULL)
		return true;

	/* core's "tuple concurrently updated" is an internal error */
	if (error->sqlerrcode == ERRCODE_INTERNAL_ERROR && work == set_files)
		foreach_file(f, cs)
	{
		ItemPointerData now = row_position(f);

		changed |= !ItemPointerEquals(&f->row, &now);
	}
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
		error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED && !changed)
		ReThrowError(error);
	return false;
}

/* Make all files equal under the locks, within most_us microseconds. */
static AttemptOutcome
copy_last_of_all(CopyState *cs, int64 most_us)
{
	AttemptOutcome outcome = SWAPPED;
	XLogRecPtr	upto;

	Assert(measuring != NULL);
	/* each file has a reader of its own */
	foreach_file(f, cs)
		most_us -= wal_changes_unread_us(f->changes);
	if (most_us < 0)
		return TOO_MUCH_LEFT;
	IM_LOG_SPECIAL(&cs->from, true);
	upto = wal_changes_mark();
	foreach_file(f, cs)
		if (outcome == SWAPPED)
		outcome = copy_last_blocks(f, upto, &most_us);
	return outcome;
}

/* End an attempt in vain; not by an abort, which would release the session locks. */
static AttemptOutcome
give_back(CopyState *cs, AttemptOutcome outcome)
{
	bool		held = measuring != NULL;

	Assert(IsTransactionState() && outcome != SWAPPED);

	/*
	 * The locks need not be held for a flush.  But flush afterwards: a
	 * standby may hold them until it gets this record.
	 */
	set_commit("off");
	CommitTransactionCommand();
	XLogFlush(XactLastCommitEnd);
	if (held)
	{
		IM_POINT("swap-given-back");
		ereport(DEBUG1,
				(errmsg_internal("index_mover has given the exclusive lock on relation %u back after " INT64_FORMAT " us: %s",
								 cs->relid, last_us, outcome == TOO_MUCH_LEFT ? "too much left to do" :
								 "another transaction is in the way")));
	}
	return outcome;
}

/* Ask for the locks once, and swap if the last blocks take no longer than most_us. */
static AttemptOutcome
attempt(CopyState *cs, bool queue, int64 most_us)
{
	AttemptOutcome outcome;
	MovePhase	phase;
	int			timeout_ms = cs->settings->lock_timeout;
	char		timeout[32];
	RelationFacts facts;

	Assert(!IsTransactionState() && measuring == NULL && cs->first->locked);
	wal_ahead();
	StartTransactionCommand();
	if (relation_facts(cs->relid, &facts) && recovery_needs_full_pages(&facts))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("full_page_writes was switched off while BRIN index \"%s\" was being moved",
						NameStr(cs->item->relname)),
				 errdetail("This server cannot recover from a crash after the file of such an index was removed."),
				 errhint("Switch it on, and CHECKPOINT, before the move.")));
	commit_locally();
	snprintf(timeout, sizeof(timeout), "%dms", timeout_ms);
	(void) set_config_option("lock_timeout", timeout, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	progress_set(lock_attempts, cs->item->lock_attempts);

	/* first the locks and pages for which we could wait under the lock */
	if (!lock_catalogs(cs->ledger, timeout_ms) ||
		!try_unhindered(read_pages, cs))
		return give_back(cs, LOCK_NOT_GRANTED);
	InvalidateCatalogSnapshot();

	IM_POINT("swap-asking");
	if (!lock_files(cs, queue))
		return give_back(cs, LOCK_NOT_GRANTED);
	phase = progress_phase(PHASE_SWAPPING);
	IM_POINT("swap-locked");
	outcome = copy_last_of_all(cs, most_us);
	if (outcome == SWAPPED &&
		!(rows_are_free(cs) && try_unhindered(set_files, cs)))
		outcome = LOCK_NOT_GRANTED;
	if (outcome != SWAPPED)
	{
		(void) progress_phase(phase);
		return give_back(cs, outcome);
	}

	IM_POINT("swap-before-commit");
	/* an orphan must not commit: the server may have been started again */
	if (!PostmasterIsAlive())
		proc_exit(1);
	CommitTransactionCommand();
	Assert(measuring == NULL);
	return SWAPPED;
}

/* Add to a list the transactions that hold a relation. */
static VirtualTransactionId *
add_holders(VirtualTransactionId *vxids, int *count, Oid relid)
{
	int			nholders;
	VirtualTransactionId *holders = relation_lock_holders(relid, AccessExclusiveLock, &nholders);

	return virtual_transactions_add(vxids, count, holders, nholders);
}

/* Return who holds the relations, or changes their rows; NULL if pg_class cannot be read now. */
static VirtualTransactionId *
swap_holders(CopyState *cs, int *count)
{
	VirtualTransactionId *result = NULL;

	Assert(!IsTransactionState());
	*count = 0;
	StartTransactionCommand();
	if (lock_relation_within(RelationRelationId, AccessShareLock, false,
							 cs->settings->lock_timeout, NULL))
	{
		/* it stays in this context when it grows */
		result = MemoryContextAlloc(cs->cxt, sizeof(VirtualTransactionId));
		foreach_file(f, cs)
		{
			VirtualTransactionId changer;

			result = add_holders(result, count, f->relid);
			if (relation_row_changer(f->relid, &changer))
				result = virtual_transactions_add(result, count, &changer, 1);
		}
	}
	CommitTransactionCommand();
	return result;
}

/*
 * Return whether one of these transactions, which hold the table, holds none of its
 * indexes, as pg_dump, COPY and LOCK TABLE: a query's planner locks them.  The other
 * processes of a parallel pg_dump would fail if we queued.
 */
static bool
reads_whole_table(const CopyState *cs, const VirtualTransactionId *vxids, int count)
{
	VirtualTransactionId *users = NULL;
	int			nusers = 0;
	List	   *indexes;
	int			n;

	if (!cs->is_table)
		return false;
	StartTransactionCommand();
	indexes = indexes_of_table(cs->table);
	foreach_oid(index, indexes)
		users = add_holders(users, &nusers, index);
	n = nusers;
	if (indexes != NIL)
		(void) virtual_transactions_add(users, &n, vxids, count);
	CommitTransactionCommand();
	return n > nusers;
}

/* Make an attempt, if the rest fits into *most_us, which is doubled each time it does not. */
static AttemptOutcome
try_swap(CopyState *cs, bool queue, int64 *most_us)
{
	int64		longest_us = cs->settings->max_lock_time * INT64CONST(1000);
	AttemptOutcome outcome = TOO_MUCH_LEFT;

	*most_us = Min(*most_us, longest_us);
	/* each further try would cost a round of direct copying */
	foreach_file(f, cs)
		if (block_set_count(f->todo) > COPY_FAR_TOO_MANY)
		*most_us = longest_us;
	progress_blockers(NULL, 0);
	IM_POINT("swap-ready");
	if (copy_last_us(cs) <= *most_us)
	{
		cs->item->lock_attempts++;
		outcome = attempt(cs, queue, *most_us);
	}
	if (outcome != TOO_MUCH_LEFT)
		return outcome;

	/* it may have been WAL to be read, which needs no lock */
	copy_stay_near(cs);
	if (*most_us >= longest_us && copy_last_us(cs) > *most_us)
		copy_check_hope(cs);
	*most_us = Min(*most_us * 2, longest_us);
	return TOO_MUCH_LEFT;
}

typedef struct Attempts
{
	Wait		wait;			/* for holders that were there at two looks */
	VirtualTransactionId *holders;	/* at the last look; NULL = not known */
	int			nholders;
	TimestampTz catch_up_at;
	TimestampTz catch_up_again; /* with many changed blocks; no later */
	int64		most_us;		/* for the last blocks, in the next attempt */
	int			queued;			/* attempts in the queue */
	int			looks;			/* in vain, without queueing */
	int			again;			/* looks in a row that found one again */
} Attempts;

/* Copy changed blocks, if it is time to, and return true; or only read the WAL. */
static bool
follow_changes(CopyState *cs, Attempts *attempts)
{
	TimestampTz began = GetCurrentTimestamp();
	TimestampTz ended;

	if (attempts->wait.nvxids > 0 &&
		began < (copy_changes_left(cs) > NEAR_BLOCKS ? attempts->catch_up_again : attempts->catch_up_at))
	{
		copy_stay_near(cs);
		return false;
	}
	copy_catch_up(cs);
	ended = GetCurrentTimestamp();
	attempts->catch_up_again = ended + Max((ended - began) * CATCH_UP_SHARE, USECS_PER_SEC);
	attempts->catch_up_at = Max(attempts->catch_up_again,
								ended + copy_catch_up_interval(attempts->wait.limits->since));
	return true;
}

/* Look at the holders.  Return whether some were there at the last look, too. */
static bool
find_long_holders(CopyState *cs, Attempts *attempts)
{
	Wait	   *wait = &attempts->wait;
	int			nholders;
	VirtualTransactionId *holders = swap_holders(cs, &nholders);

	if (wait->vxids)
		pfree(wait->vxids);
	wait->vxids = attempts->holders;
	wait->nvxids = virtual_transactions_common(wait->vxids, attempts->nholders, holders, nholders);
	attempts->holders = holders;
	attempts->nholders = nholders;
	attempts->again = wait->nvxids > 0 ? attempts->again + 1 : 0;
	return attempts->again > 0;
}

/* Make an attempt, if there is a chance, and rest after it for others; true: all has moved. */
static bool
try_if_free(CopyState *cs, Attempts *attempts)
{
	int			nholders = attempts->nholders;
	int			rest_ms = FIRST_LOOKS_MS;
	bool		queue = attempts->looks >= IM_LIMIT("looks", LOOKS_BEFORE_QUEUE);
	bool		tried;
	AttemptOutcome outcome = LOCK_NOT_GRANTED;

	foreach_file(f, cs)
		queue = queue || f->outpaced;
	queue = queue && nholders > 0 && !reads_whole_table(cs, attempts->holders, nholders);
	tried = queue || (nholders == 0 && attempts->holders != NULL);
	if (tried)
		outcome = try_swap(cs, queue, &attempts->most_us);
	if (outcome == SWAPPED)
		return true;
	attempts->looks = queue ? 0 : attempts->looks + 1;
	if (outcome == LOCK_NOT_GRANTED)
	{
		if (tried)
			copy_is_not_outpaced(cs);	/* but others were in the way */
		if (queue)
			rest_ms = Min(REST_AFTER_MS * ++attempts->queued, LONGEST_REST_MS);
		else if (attempts->looks > LOOKS_BEFORE_QUEUE)
			rest_ms = LOOK_AGAIN_MS;
	}
	/* this may go on without end, so others must hardly notice */
	if ((queue || outcome == TOO_MUCH_LEFT) && wait_is_over(&attempts->wait) &&
		cs->settings->on_blocker == ON_BLOCKER_WAIT)
		rest_ms = LONG_REST_MS;

	/* read the WAL now and then */
	for (; rest_ms > LOOK_AGAIN_MS; rest_ms -= LOOK_AGAIN_MS)
	{
		throttle_rest(LOOK_AGAIN_MS);
		copy_stay_near(cs);
	}
	throttle_rest(rest_ms);
	return false;
}

/* Look at the holders, and make attempts when there is a chance, until one succeeds. */
static void
make_attempts(CopyState *cs)
{
	WaitLimits	limits = {.max_ms = LOCK_WAIT,.mc = cs->mc};
	Attempts	attempts = {.catch_up_at = GetCurrentTimestamp(),.most_us = LAST_BLOCKS_US};
	Wait	   *wait = &attempts.wait;

	wait_begin(wait, NULL, &limits);
	wait->relid = cs->relid;
	/* a session that waits for us is given way to, or must not be waited for */
	wait->ignore_deadlocks = cs->settings->give_way;
	for (;;)
	{
		bool		ready = follow_changes(cs, &attempts);

		if (find_long_holders(cs, &attempts))
		{
			if (attempts.again > 1) /* not only for FIRST_LOOKS_MS */
				attempts.looks = 0;
			copy_is_not_outpaced(cs);
			if (wait_look(wait))
				copy_lock_wait_is_over(cs, wait->vxids, wait->nvxids);
			throttle_rest(LOOK_AGAIN_MS);
		}
		/* no long holders, so catch up first; the next look is to find others */
		else if (!ready)
			throttle_rest(LOOK_AGAIN_MS);
		else if (try_if_free(cs, &attempts))
			return;
		/* attempts in vain with no long holders: there is much traffic */
		else if (wait_is_over(wait) && !(cs->settings->on_blocker == ON_BLOCKER_WAIT && cs->first->so_far->told))
		{
			/* one may have come since the last look */
			(void) find_long_holders(cs, &attempts);
			copy_lock_wait_is_over(cs, attempts.holders, attempts.nholders);
		}
	}
}

/*
 * Swap the files, when the exclusive locks can be had without making others wait
 * long.  ERROR 55P03 after index_mover.lock_wait, if on_blocker is fail, or what it says
 * did not help.  An error leaves the transaction to be aborted.
 */
void
copy_swap(CopyState *cs)
{
	static bool registered = false;
	MoveItem   *item = cs->item;

	Assert(!IsTransactionState() && cs->first == cs && cs->locked);
	if (!registered)
		RegisterXactCallback(measure_commit, NULL);
	registered = true;

	/* prepare the ledger's rows of the old files */
	copy_begin_with_ledger(cs);
	/* the job keeps it from being dropped */
	cs->ledger = extension_relation("ledger");
	foreach_file(f, cs)
	{
		f->old_file = f->new_file;
		f->old_file.id = f->claimed = ledger_new_id();
		(void) ledger_row_claim(f->old_file.id, true);
		f->old_file.kind = LEDGER_OLD_FILE;
		f->old_file.tablespace = f->from.spcOid;
		f->old_file.relfilenumber = f->from.relNumber;
	}
	CommitTransactionCommand();

	progress_phase(PHASE_WAIT_SWAP_LOCK);
	make_attempts(cs);
	Assert(!IsTransactionState());

	progress_blockers(NULL, 0);
	cs->moved = true;
	/* whatever goes wrong from here on, all has moved */
	item->status = STATUS_MOVED;
	item->finished_at = GetCurrentTimestamp();
	item->idle = progress_idle();
}
