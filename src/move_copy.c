/*-------------------------------------------------------------------------
 *
 * move_copy.c
 *	  The method copy: move a relation's file while the relation is in use.
 *
 * The steps, each in transactions of its own:
 *
 *	1. lock; choose a file number, record it in the ledger, create the file;
 *	2. follow the WAL from here on (changed_blocks.c);
 *	3. copy every block once (file_copy.c), draining the WAL as we go;
 *	4. copy again what has changed meanwhile, in rounds, until it is little;
 *	5. copy the free space map, make the new file durable;
 *	6. from here on through shared buffers: what still changes, again and again
 *	   until the lock can be had; then the last blocks and the swap (swap.c);
 *	7. load what was cached, remove the old file (leftover_files.c).
 *
 * Assumption: the WAL tells every change of a block but hint bits (copy_methods.c
 * says of which access methods that is known), and these:
 *	- block 0: SP-GiST's metapage; so it is copied under the lock, always;
 *	- blocks of zeros that an extension has added; so what is beyond the copied
 *	  length is always copied as a whole;
 *	- the free space map: it corrects itself, and was never exact.
 *
 * Locks: AccessShareLock on the table, then ShareUpdateExclusiveLock on the
 * index, both for the session.  That keeps out DROP, TRUNCATE, REINDEX and
 * rewrites, and lets VACUUM pass.  If DDL waits behind us we let go of both,
 * queue behind it, and look whether the file is still the same.  No snapshot
 * and no xid is held in the long phase, and no transaction lasts longer than
 * the copying of 1 MB: vacuum is not held back anywhere, and CREATE INDEX
 * CONCURRENTLY of a sister index does not wait for us.
 *
 * Tricky point: nothing but the ledger knows the new file, and nothing but the
 * ledger the old one after the swap.  An ERROR ends in copy_cleanup(), an exit
 * in our before_shmem_exit callback, a crash in leftover_files_remove() of
 * whoever comes next.  After the swap's commit no error may reach the caller:
 * the move has happened.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "cached_blocks.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "catalog/storage_xlog.h"
#include "changed_blocks.h"
#include "compare_blocks.h"
#include "copy_methods.h"
#include "executor/instrument.h"
#include "file_copy.h"
#include "leftover_files.h"
#include "miscadmin.h"
#include "move.h"
#include "plan.h"
#include "relation_locks.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/pmsignal.h"
#include "storage/smgr.h"
#include "swap.h"
#include "test_points.h"
#include "throttle.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

/* The WAL is drained when so much of it is unread, and each so many blocks */
#define DRAIN_BYTES			(16 * 1024 * 1024)
#define DRAIN_BLOCKS		(16 * FILE_COPY_CHUNK)

/* So few changed blocks end the rounds of direct copying ... */
#define FEW_BLOCKS			256
/* ... so few the rounds through shared buffers, before an attempt at the lock */
#define VERY_FEW_BLOCKS		16
/* Not more than so many under the lock: about 10 microseconds each */
#define MOST_UNDER_LOCK		512
/* If the rounds stop shrinking above this, the writers are too fast for us */
#define HOPELESS_BLOCKS		8192

/* A copy that had to be started again so often is given up */
#define MOST_STARTS			5

/* Blocks in one transaction where they go through shared buffers */
#define BUFFERED_BATCH		64

typedef enum Outcome
{
	GO_ON,
	START_AGAIN,				/* the copy is of no use; the file is new, or
								 * WAL is missing */
	NOT_MOVABLE,				/* plan_recheck() has said why */
} Outcome;

typedef struct CopyState
{
	MemoryContext cxt;
	MoveContext *mc;
	Oid			index;
	Oid			table;
	bool		locked;
	RelFileLocator from;
	RelFileLocator to;
	RmgrId		rmid;

	LedgerEntry new_file;		/* id 0 = no row */
	bool		new_file_made;	/* or tried to */
	LedgerEntry old_file;		/* the same, after the swap */

	ChangedBlocks *changes;
	FileCopy   *copy;
	Throttle	throttle;
	BlockNumber copied;			/* blocks below are in the new file */
	BlockSet   *todo;			/* of these, the ones to be copied again */
	BlockSet   *unverified;		/* copied since they were verified */
	bool		verifying;		/* keep "unverified" up to date */
	const char *start_again;	/* why the copy has to be started again */
	Outcome		outcome;		/* of a callback that returns less */
	bool		swapped;
} CopyState;

/* The move that is going on in this process. */
static CopyState *current = NULL;

static Outcome copy_once(CopyState *cs);
static void wait_for_locks(CopyState *cs);
static void release_locks(CopyState *cs);
static Outcome check_relation(CopyState *cs, bool first);
static void make_file(CopyState *cs);
static void discard_file(CopyState *cs);
static Outcome breathe(CopyState *cs);
static Outcome give_way(CopyState *cs);
static Outcome drain(CopyState *cs);
static void take_changes(CopyState *cs);
static Outcome copy_blocks(CopyState *cs, BlockNumber upto);
static Outcome copy_changed_directly(CopyState *cs);
static Outcome rounds(CopyState *cs);
static void copy_free_space_map(CopyState *cs);
static Outcome copy_todo_through_buffers(CopyState *cs);
static void copy_through_buffer(CopyState *cs, BlockNumber block);
static Outcome verify_all(CopyState *cs);
static void verify_again(CopyState *cs, bool locked);
static Outcome wait_for_swap_time(CopyState *cs);
static bool catch_up(void *arg);
static LastBlocks last_blocks(void *arg);
static void after_swap(CopyState *cs);
static void forget_state(void);
static void cleanup_at_exit(int code, Datum arg);
static void remove_what_is_left(CopyState *cs);

/* Is it cancelled, or the postmaster gone?  Every loop asks. */
static void
check_interrupts(void)
{
	if (!PostmasterIsAlive())
		proc_exit(1);
	job_check_cancel();
}

/* Remember our own records, so that draining needs not read them. */
static void
own_record(void *arg, XLogRecPtr start, XLogRecPtr end)
{
	CopyState  *cs = (CopyState *) arg;

	changed_blocks_skip(cs->changes, start, end);
}

/* Rest between the steps of removing the old file. */
static void
rest(int ms)
{
	(void) throttle_rest(ms);
	check_interrupts();
}

/* Move one index by copying its file; see move.h for the contract. */
void
move_by_copy(MoveContext *mc)
{
	static bool registered = false;
	MoveItem   *item = mc->item;
	MemoryContext cxt;
	CopyState  *cs;
	uint64		wal_before = pgWalUsage.wal_bytes;

	if (!registered)
	{
		before_shmem_exit(cleanup_at_exit, (Datum) 0);
		registered = true;
	}

	forget_state();
	cxt = AllocSetContextCreate(TopMemoryContext, "index_mover copy",
								ALLOCSET_DEFAULT_SIZES);
	cs = MemoryContextAllocZero(cxt, sizeof(CopyState));
	cs->cxt = cxt;
	cs->mc = mc;
	cs->index = item->index_oid;
	cs->table = item->heap_oid;
	current = cs;

	item->blocks_copied = 0;
	item->blocks_recopied = 0;
	item->lock_attempts = 0;

	for (int start = 1;; start++)
	{
		Outcome		outcome = copy_once(cs);

		item->wal_written = pgWalUsage.wal_bytes - wal_before;
		if (outcome == GO_ON)
			break;
		discard_file(cs);
		release_locks(cs);
		if (outcome == NOT_MOVABLE)
			break;
		if (start == MOST_STARTS)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("gave up copying index \"%s\" after %d starts",
							NameStr(item->index_name), MOST_STARTS),
					 errdetail("The last time, %s.", cs->start_again)));
		ereport(LOG,
				(errmsg("index_mover starts the copy of index \"%s\" again, because %s",
						NameStr(item->index_name), cs->start_again)));
	}
	forget_state();
}

/*
 * Clean up after an ERROR; see move.h for the contract.  Waits for nobody: no
 * lock on the table is needed to drop a file that only the ledger knows.
 */
void
copy_cleanup(MoveContext *mc, int max_wait_ms)
{
	if (current == NULL)
		return;
	remove_what_is_left(current);
	/* else there may be another call */
	if (current->new_file.id == 0 && current->old_file.id == 0)
		forget_state();
}

/* Everything from the locks to the removal of the old file. */
static Outcome
copy_once(CopyState *cs)
{
	MoveItem   *item = cs->mc->item;
	MemoryContext oldcxt;
	Outcome		outcome;
	Swap		swap;
	SwapResult	result;

	cs->copied = 0;
	cs->verifying = false;

	wait_for_locks(cs);
	if ((outcome = check_relation(cs, true)) != GO_ON)
		return outcome;
	make_file(cs);

	StartTransactionCommand();
	oldcxt = MemoryContextSwitchTo(cs->cxt);
	cs->changes = changed_blocks_begin(&cs->from, check_interrupts);
	cs->copy = file_copy_create(&cs->from, &cs->to, own_record, cs);
	cs->todo = block_set_create();
	cs->unverified = block_set_create();
	MemoryContextSwitchTo(oldcxt);
	CommitTransactionCommand();

	progress_phase(PHASE_COPYING);
	if ((outcome = rounds(cs)) != GO_ON)
		return outcome;

	StartTransactionCommand();
	copy_free_space_map(cs);
	CommitTransactionCommand();
	IM_POINT("copy-before-sync");
	StartTransactionCommand();
	file_copy_sync(cs->copy);
	CommitTransactionCommand();
	IM_POINT("copy-synced");

	if ((outcome = copy_todo_through_buffers(cs)) != GO_ON)
		return outcome;
	if (cs->mc->settings->verify && (outcome = verify_all(cs)) != GO_ON)
		return outcome;
	if ((outcome = wait_for_swap_time(cs)) != GO_ON)
		return outcome;

	memset(&swap, 0, sizeof(swap));
	swap.relid = cs->index;
	swap.table = cs->table;
	swap.from = cs->from;
	swap.to = cs->to;
	swap.ledger_id = cs->new_file.id;
	swap.old_file = cs->new_file;
	swap.old_file.id = 0;
	swap.old_file.kind = LEDGER_OLD_FILE;
	swap.old_file.tablespace = cs->from.spcOid;
	swap.old_file.relfilenumber = cs->from.relNumber;
	swap.settings = cs->mc->settings;
	swap.catch_up = catch_up;
	swap.last_blocks = last_blocks;
	swap.arg = cs;

	cs->outcome = START_AGAIN;
	oldcxt = MemoryContextSwitchTo(cs->cxt);
	result = swap_when_possible(&swap);
	MemoryContextSwitchTo(oldcxt);
	item->lock_attempts += swap.lock_attempts;
	if (result != SWAP_DONE)
		return cs->outcome;

	/* it is done; whatever goes wrong now, the index has moved */
	cs->swapped = true;
	cs->old_file = swap.old_file;
	item->lock_time = swap.lock_time;
	item->status = STATUS_MOVED;
	after_swap(cs);
	return GO_ON;
}

/*
 * Lock table and index for the session, in this order, however long others
 * have them, but at most lock_wait.  Nobody's reads and writes wait behind
 * these two.
 */
static void
wait_for_locks(CopyState *cs)
{
	TimestampTz start = GetCurrentTimestamp();
	MovePhase	phase = progress_phase(PHASE_WAIT_START);

	for (;;)
	{
		const MoveSettings *settings = cs->mc->settings;
		VirtualTransactionId *holders;
		int			nholders;
		int			pids[IM_MAX_BLOCKERS];
		Oid			wanted = cs->table;
		LOCKMODE	mode = AccessShareLock;
		char	   *name;

		/* short waits, so that a cancelled job notices */
		StartTransactionCommand();
		if (lock_relation_within(cs->table, AccessShareLock, true, 1000))
		{
			if (lock_relation_within(cs->index, ShareUpdateExclusiveLock, true, 1000))
			{
				CommitTransactionCommand();
				break;
			}
			unlock_relation_for_session(cs->table, AccessShareLock);
			wanted = cs->index;
			mode = ShareUpdateExclusiveLock;
		}
		holders = relation_lock_holders(wanted, mode, &nholders);
		progress_blockers(pids, virtual_transaction_pids(holders, nholders, pids,
														 IM_MAX_BLOCKERS));
		if (settings->lock_wait > 0 &&
			TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
									   settings->lock_wait))
		{
			name = get_rel_name(wanted);
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not lock relation \"%s\" within %d seconds",
							name ? name : "?", settings->lock_wait / 1000),
					 errhint("See move_blockers(), or raise index_mover.lock_wait.")));
		}
		CommitTransactionCommand();
		check_interrupts();
	}
	cs->locked = true;
	progress_blockers(NULL, 0);
	progress_phase(phase);
}

/* Let go of both locks. */
static void
release_locks(CopyState *cs)
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
static Outcome
check_relation(CopyState *cs, bool first)
{
	MoveItem   *item = cs->mc->item;
	HeapTuple	tuple;
	Form_pg_class form;
	RelFileLocator file;
	char	   *reason;
	Outcome		outcome = GO_ON;

	StartTransactionCommand();
	if (!plan_recheck(item))
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
	cs->rmid = page_resource_manager(form->relam);
	ReleaseSysCache(tuple);
	CommitTransactionCommand();

	if (first)
		cs->from = file;
	else if (!RelFileLocatorEquals(cs->from, file))
	{
		cs->start_again = "its file was replaced by another command";
		outcome = START_AGAIN;
	}
	return outcome;
}

/*
 * Choose a number for the new file, record it, create it.  The row is
 * committed, and flushed, before the file exists.
 */
static void
make_file(CopyState *cs)
{
	MoveItem   *item = cs->mc->item;
	LedgerEntry entry;
	SMgrRelation smgr;

	StartTransactionCommand();
	commit_locally();
	memset(&entry, 0, sizeof(entry));
	entry.kind = LEDGER_NEW_FILE;
	entry.tablespace = item->to_tablespace;
	entry.relfilenumber = GetNewRelFileNumber(item->to_tablespace, NULL,
											  RELPERSISTENCE_PERMANENT);
	entry.heap_oid = cs->table;
	entry.index_oid = cs->index;
	entry.job = cs->mc->job->job;
	entry.pid = MyProcPid;
	entry.made_at = GetCurrentTimestamp();
	ledger_insert(&entry);
	ledger_row_claim(entry.id);
	CommitTransactionCommand();
	cs->new_file = entry;
	IM_POINT("copy-registered");

	cs->to.spcOid = item->to_tablespace;
	cs->to.dbOid = MyDatabaseId;
	cs->to.relNumber = entry.relfilenumber;

	StartTransactionCommand();
	smgr = smgropen(cs->to, INVALID_PROC_NUMBER);
	if (smgrexists(smgr, MAIN_FORKNUM))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_FILE),
				 errmsg("file \"%s\" exists already",
						relation_fork_path(cs->to, MAIN_FORKNUM)),
				 errhint("Call the function again.")));
	cs->new_file_made = true;
	smgrcreate(smgr, MAIN_FORKNUM, false);
	log_smgrcreate(&cs->to, MAIN_FORKNUM);
	CommitTransactionCommand();
	IM_POINT("copy-created");
}

/* Drop the new file and its ledger row, and all that belongs to the copy. */
static void
discard_file(CopyState *cs)
{
	if (cs->new_file.id != 0)
	{
		StartTransactionCommand();
		commit_locally();
		leftover_file_drop(&cs->new_file, cs->new_file_made);
		CommitTransactionCommand();
		ledger_row_release(cs->new_file.id);
		cs->new_file.id = 0;
		cs->new_file_made = false;
	}
	changed_blocks_end(cs->changes);
	cs->changes = NULL;
	file_copy_free(cs->copy);
	cs->copy = NULL;
	block_set_free(cs->todo);
	cs->todo = NULL;
	block_set_free(cs->unverified);
	cs->unverified = NULL;
}

/*
 * Between two pieces of work, with no transaction open: is the job cancelled,
 * does anybody wait behind us, is it paused, are we too fast?  Keeps up with
 * the WAL while it waits.
 */
static Outcome
breathe(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_COPYING);
	Outcome		outcome = GO_ON;
	bool		waited = false;

	progress_phase(phase);
	check_interrupts();

	for (;;)
	{
		const MoveSettings *settings = cs->mc->settings;
		int			pid;
		int			ms;

		if (settings->give_way &&
			(relation_lock_waiters(cs->index, ShareUpdateExclusiveLock, &pid, 1) > 0 ||
			 relation_lock_waiters(cs->table, AccessShareLock, &pid, 1) > 0))
		{
			if ((outcome = give_way(cs)) != GO_ON)
				break;
		}

		if (job_pause_requested())
		{
			progress_phase(PHASE_PAUSED);
			ms = 200;
		}
		else if ((ms = throttle_due(&cs->throttle, settings)) > 0)
			progress_phase(PHASE_THROTTLED);
		else
			break;
		waited = true;
		(void) throttle_rest(ms);
		check_interrupts();

		if (GetXLogInsertRecPtr() - changed_blocks_position(cs->changes) > DRAIN_BYTES &&
			(outcome = drain(cs)) != GO_ON)
			break;
	}
	if (waited)
		progress_phase(phase);
	return outcome;
}

/*
 * Somebody's DDL waits behind our locks, and all clients of the table behind
 * him: let him pass, queue again, and see what he has left us.
 */
static Outcome
give_way(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_GIVING_WAY);
	Outcome		outcome;

	ereport(DEBUG1,
			(errmsg_internal("index_mover lets others pass on index %u", cs->index)));
	release_locks(cs);
	(void) throttle_rest(5);
	wait_for_locks(cs);
	outcome = check_relation(cs, false);
	progress_phase(phase);
	return outcome;
}

/*
 * Read the WAL up to now.  In a transaction of its own, except under the lock.
 */
static Outcome
drain(CopyState *cs)
{
	bool		own_transaction = !IsTransactionState();
	XLogRecPtr	upto;
	ChangesResult result;

	if (own_transaction)
		StartTransactionCommand();
	upto = changed_blocks_mark();
	result = changed_blocks_read(cs->changes, upto, cs->copied);
	if (own_transaction)
		CommitTransactionCommand();

	switch (result)
	{
		case CHANGES_READ:
			break;
		case CHANGES_FILE_REPLACED:
			cs->start_again = "its file was truncated by another command";
			return START_AGAIN;
		case CHANGES_WAL_GONE:
			cs->start_again = "WAL that tells its changes was removed before it was read";
			return START_AGAIN;
	}
	progress_changed(changed_blocks_count(cs->changes) + block_set_count(cs->todo));
	return GO_ON;
}

/* Put what draining has found onto the list of blocks to be copied again. */
static void
take_changes(CopyState *cs)
{
	BlockSet   *set = changed_blocks_take(cs->changes);

	if (IM_MUTATION("one-block"))
		block_set_remove(set, block_set_next(set, 1));
	if (!IM_MUTATION("catch-up"))
		block_set_add_all(cs->todo, set);
	block_set_free(set);
}

/* Copy, directly, the blocks from where we are up to a length of the file. */
static Outcome
copy_blocks(CopyState *cs, BlockNumber upto)
{
	BlockNumber half = cs->copied + (upto - cs->copied) / 2;
	BlockNumber drained_at = cs->copied;
	Outcome		outcome;

	while (cs->copied < upto)
	{
		BlockNumber nblocks = FILE_COPY_CHUNK - cs->copied % FILE_COPY_CHUNK;
		XLogRecPtr	lsn;

		if ((outcome = breathe(cs)) != GO_ON)
			return outcome;

		nblocks = Min(nblocks, upto - cs->copied);
		StartTransactionCommand();
		lsn = file_copy_range(cs->copy, MAIN_FORKNUM, cs->copied, nblocks);
		changed_blocks_seen(cs->changes, cs->copied, nblocks, lsn);
		if (cs->mc->settings->pacing)
			file_copy_flush_wal(cs->copy);
		CommitTransactionCommand();

		if (cs->copied == 0)
			IM_POINT("copy-first");
		if (cs->copied < half && cs->copied + nblocks >= half)
			IM_POINT("copy-half");

		cs->copied += nblocks;
		cs->mc->item->blocks_copied += nblocks;
		throttle_written(&cs->throttle, (int64) nblocks * BLCKSZ);
		progress_blocks(Max(upto, cs->copied), cs->copied);

		if (cs->copied - drained_at >= DRAIN_BLOCKS ||
			GetXLogInsertRecPtr() - changed_blocks_position(cs->changes) > 2 * DRAIN_BYTES)
		{
			if ((outcome = drain(cs)) != GO_ON)
				return outcome;
			drained_at = cs->copied;
		}
	}
	return GO_ON;
}

/* Copy, directly, what is on the list, and empty it. */
static Outcome
copy_changed_directly(CopyState *cs)
{
	BlockNumber from = 0;

	while (from != InvalidBlockNumber)
	{
		Outcome		outcome;
		int			ncopied;

		if ((outcome = breathe(cs)) != GO_ON)
			return outcome;
		StartTransactionCommand();
		from = file_copy_set(cs->copy, cs->todo, from, &ncopied);
		if (cs->mc->settings->pacing)
			file_copy_flush_wal(cs->copy);
		CommitTransactionCommand();
		cs->mc->item->blocks_recopied += ncopied;
		throttle_written(&cs->throttle, (int64) ncopied * BLCKSZ);

		if (GetXLogInsertRecPtr() - changed_blocks_position(cs->changes) > DRAIN_BYTES &&
			(outcome = drain(cs)) != GO_ON)
			return outcome;
	}

	block_set_free(cs->todo);
	{
		MemoryContext oldcxt = MemoryContextSwitchTo(cs->cxt);

		cs->todo = block_set_create();
		MemoryContextSwitchTo(oldcxt);
	}
	return GO_ON;
}

/*
 * Copy everything once, then what has changed since, in rounds, until little
 * is left on the list, or it does not get less any more.
 */
static Outcome
rounds(CopyState *cs)
{
	int64		least = PG_INT64_MAX;
	int			in_vain = 0;

	for (int round = 0;; round++)
	{
		BlockNumber nblocks;
		int64		left;
		Outcome		outcome;

		StartTransactionCommand();
		nblocks = file_blocks(&cs->from, MAIN_FORKNUM);
		CommitTransactionCommand();

		/* also a tail, if it is long; the rest is left for the lock */
		if (round == 0 || nblocks - cs->copied > FEW_BLOCKS)
		{
			if ((outcome = copy_blocks(cs, nblocks)) != GO_ON)
				return outcome;
		}
		if (round == 0)
		{
			IM_POINT("copy-end");
			progress_phase(PHASE_CATCHING_UP);
		}

		if ((outcome = drain(cs)) != GO_ON)
			return outcome;
		take_changes(cs);

		left = block_set_count(cs->todo);
		if (left <= FEW_BLOCKS)
			break;
		if (left < least)
		{
			least = left;
			in_vain = 0;
		}
		else if (++in_vain >= 3)
		{
			if (left > HOPELESS_BLOCKS)
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("copying index \"%s\" cannot keep up with those who write to it",
								NameStr(cs->mc->item->index_name)),
						 errdetail("After %d rounds, %lld blocks have changed since they were copied.",
								   round + 1, (long long) left),
						 errhint("Raise or unset index_mover.max_rate, or move the index at a quieter time.")));
			break;
		}
		IM_POINT("copy-round");
		if ((outcome = copy_changed_directly(cs)) != GO_ON)
			return outcome;
	}
	return GO_ON;
}

/*
 * Copy the free space map, if there is one.  It is never exact, and whoever
 * uses it checks the page it names; that the file changes meanwhile does not
 * matter.  It names no block beyond the end of the new file either: the file
 * gets at least as long as it is now.
 */
static void
copy_free_space_map(CopyState *cs)
{
	BlockNumber nblocks = file_blocks(&cs->from, FSM_FORKNUM);
	SMgrRelation smgr;

	if (nblocks == 0)
		return;
	smgr = smgropen(cs->to, INVALID_PROC_NUMBER);
	smgrcreate(smgr, FSM_FORKNUM, false);
	log_smgrcreate(&cs->to, FSM_FORKNUM);
	for (BlockNumber block = 0; block < nblocks; block += FILE_COPY_CHUNK)
	{
		check_interrupts();
		(void) file_copy_range(cs->copy, FSM_FORKNUM, block,
							   Min(FILE_COPY_CHUNK, nblocks - block));
	}
}

/* Copy one block through shared buffers. */
static void
copy_through_buffer(CopyState *cs, BlockNumber block)
{
	file_copy_through_buffer(cs->copy, block);
	if (cs->verifying)
		block_set_add(cs->unverified, block);
}

/* Copy what is on the list through shared buffers, and empty it. */
static Outcome
copy_todo_through_buffers(CopyState *cs)
{
	BlockNumber block = 0;

	while ((block = block_set_next(cs->todo, block)) != InvalidBlockNumber)
	{
		Outcome		outcome;
		int			ncopied = 0;

		if ((outcome = breathe(cs)) != GO_ON)
			return outcome;
		StartTransactionCommand();
		do
		{
			copy_through_buffer(cs, block);
			block_set_remove(cs->todo, block);
		} while (++ncopied < BUFFERED_BATCH &&
				 (block = block_set_next(cs->todo, block)) != InvalidBlockNumber);
		if (cs->mc->settings->pacing)
			file_copy_flush_wal(cs->copy);
		CommitTransactionCommand();
		cs->mc->item->blocks_recopied += ncopied;
		throttle_written(&cs->throttle, (int64) ncopied * BLCKSZ);
		if (block == InvalidBlockNumber)
			break;
	}
	return GO_ON;
}

/* The copy is wrong: say so, as damage. */
static void
report_difference(CopyState *cs, BlockNumber block)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the copy of index \"%s\" differs from the original in block %u",
					NameStr(cs->mc->item->index_name), block),
			 errdetail("The index was not moved.")));
}

/*
 * Compare all that is copied with the original, without a lock that would keep
 * writers out.  A difference in a block that the WAL says has changed meanwhile
 * is none: the block is copied again, and compared again.
 */
static Outcome
verify_all(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_VERIFYING);
	MemoryContext oldcxt;
	BlockSet   *suspects;
	BufferAccessStrategy ring;
	Outcome		outcome;

	oldcxt = MemoryContextSwitchTo(cs->cxt);
	suspects = block_set_create();
	ring = GetAccessStrategy(BAS_BULKREAD);
	MemoryContextSwitchTo(oldcxt);
	cs->verifying = true;

	for (BlockNumber block = 0; block < cs->copied;)
	{
		BlockNumber end = Min(block + FILE_COPY_CHUNK, cs->copied);

		if ((outcome = breathe(cs)) != GO_ON)
			return outcome;
		StartTransactionCommand();
		for (; block < end; block++)
		{
			if (!same_block(&cs->from, &cs->to, block, cs->rmid, ring))
				block_set_add(suspects, block);
		}
		CommitTransactionCommand();
		progress_blocks(cs->copied, block);
		if (GetXLogInsertRecPtr() - changed_blocks_position(cs->changes) > DRAIN_BYTES &&
			(outcome = drain(cs)) != GO_ON)
			return outcome;
	}

	/* nothing was taken from the set of changes since before we began */
	if ((outcome = drain(cs)) != GO_ON)
		return outcome;
	{
		BlockSet   *changed = changed_blocks_take(cs->changes);

		for (BlockNumber block = block_set_next(suspects, 0);
			 block != InvalidBlockNumber;
			 block = block_set_next(suspects, block + 1))
		{
			/* block 0 can change unseen, and is copied under the lock */
			if (block != 0 && !block_set_has(changed, block))
				report_difference(cs, block);
		}
		block_set_add_all(cs->todo, changed);
		block_set_free(changed);
	}
	block_set_free(suspects);
	FreeAccessStrategy(ring);
	progress_phase(phase);
	return GO_ON;
}

/*
 * Compare the blocks that were copied since they were compared last.  While
 * others write, what differs stays on the list; under the lock it is an error.
 */
static void
verify_again(CopyState *cs, bool locked)
{
	BlockNumber block = 0;

	for (block = block_set_next(cs->unverified, 0);
		 block != InvalidBlockNumber;
		 block = block_set_next(cs->unverified, block + 1))
	{
		if (same_block(&cs->from, &cs->to, block, cs->rmid, NULL))
			block_set_remove(cs->unverified, block);
		else if (locked)
			report_difference(cs, block);
	}
}

/*
 * index_mover.swap_after: the copy is ready, but is not to be swapped in yet.
 * Keeps up with the changes meanwhile.
 */
static Outcome
wait_for_swap_time(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_WAIT_SWAP_TIME);

	for (;;)
	{
		char		text[sizeof(cs->mc->settings->swap_after)];
		TimestampTz when;
		Outcome		outcome;

		strlcpy(text, cs->mc->settings->swap_after, sizeof(text));
		if (text[0] == '\0' || job_swap_now_requested())
			break;
		StartTransactionCommand();
		when = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in,
													   CStringGetDatum(text),
													   ObjectIdGetDatum(InvalidOid),
													   Int32GetDatum(-1)));
		CommitTransactionCommand();
		if (when <= GetCurrentTimestamp())
			break;
		(void) throttle_rest(500);
		if ((outcome = breathe(cs)) != GO_ON)
			return outcome;
		if (GetXLogInsertRecPtr() - changed_blocks_position(cs->changes) > DRAIN_BYTES &&
			!catch_up(cs))
			return cs->outcome;
	}
	progress_phase(phase);
	return GO_ON;
}

/*
 * Swap's callback outside of the lock: let others pass, and copy what has
 * changed, until very little is left or it does not get less.
 */
static bool
catch_up(void *arg)
{
	CopyState  *cs = (CopyState *) arg;
	int64		least = PG_INT64_MAX;

	for (int round = 0;; round++)
	{
		BlockNumber nblocks;
		int64		left;

		if ((cs->outcome = breathe(cs)) != GO_ON ||
			(cs->outcome = drain(cs)) != GO_ON)
			return false;
		take_changes(cs);

		StartTransactionCommand();
		nblocks = file_blocks(&cs->from, MAIN_FORKNUM);
		CommitTransactionCommand();
		if (!IM_MUTATION("tail"))
		{
			for (; cs->copied < nblocks; cs->copied++)
				block_set_add(cs->todo, cs->copied);
		}

		left = block_set_count(cs->todo);
		if (left <= VERY_FEW_BLOCKS || left >= least || round >= 10)
			break;
		least = left;
		IM_POINT("copy-buffered-round");
		if ((cs->outcome = copy_todo_through_buffers(cs)) != GO_ON)
			return false;
	}

	if (cs->verifying)
	{
		StartTransactionCommand();
		verify_again(cs, false);
		CommitTransactionCommand();
	}
	cs->outcome = START_AGAIN;	/* of what is reported by a bare "false" */
	return true;
}

/*
 * Swap's callback under the lock: make the files equal.
 */
static LastBlocks
last_blocks(void *arg)
{
	CopyState  *cs = (CopyState *) arg;
	BlockNumber nblocks;
	BlockNumber block;

	if ((cs->outcome = drain(cs)) != GO_ON)
		return LAST_BLOCKS_START_AGAIN;
	take_changes(cs);

	nblocks = file_blocks(&cs->from, MAIN_FORKNUM);
	if (!IM_MUTATION("tail"))
	{
		for (; cs->copied < nblocks; cs->copied++)
			block_set_add(cs->todo, cs->copied);
	}
	if (nblocks > 0 && !IM_MUTATION("block-0"))
		block_set_add(cs->todo, 0);
	if (block_set_count(cs->todo) > MOST_UNDER_LOCK)
		return LAST_BLOCKS_TOO_MANY;

	for (block = block_set_next(cs->todo, 0);
		 block != InvalidBlockNumber;
		 block = block_set_next(cs->todo, block + 1))
	{
		copy_through_buffer(cs, block);
		cs->mc->item->blocks_recopied++;
	}

#ifdef INDEX_MOVER_TEST
	if (IM_MUTATION("tail") && nblocks > 0)
	{
		/* right length, wrong contents */
		SMgrRelation smgr = smgropen(cs->to, INVALID_PROC_NUMBER);
		PGAlignedBlock zero;

		memset(&zero, 0, sizeof(zero));
		for (block = smgrnblocks(smgr, MAIN_FORKNUM); block < nblocks; block++)
			smgrextend(smgr, MAIN_FORKNUM, block, zero.data, false);
	}
	if (IM_MUTATION("verify-all"))
	{
		for (block = 0; block < nblocks; block++)
			block_set_add(cs->unverified, block);
		verify_again(cs, true);
	}
#endif

	if (file_blocks(&cs->to, MAIN_FORKNUM) != nblocks)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the copy of index \"%s\" has %u blocks instead of %u",
						NameStr(cs->mc->item->index_name),
						file_blocks(&cs->to, MAIN_FORKNUM), nblocks),
				 errdetail("The index was not moved.")));
	if (cs->verifying)
		verify_again(cs, true);

	block_set_free(cs->todo);
	{
		MemoryContext oldcxt = MemoryContextSwitchTo(cs->cxt);

		cs->todo = block_set_create();
		MemoryContextSwitchTo(oldcxt);
	}
	return LAST_BLOCKS_COPIED;
}

/*
 * The move has happened.  Load what was cached, remove the old file.  An error
 * here is not the move's: it is reported as a WARNING, and what is left behind
 * is in the ledger.
 */
static void
after_swap(CopyState *cs)
{
	MoveItem   *item = cs->mc->item;
	MemoryContext oldcxt = CurrentMemoryContext;

	PG_TRY();
	{
		IM_POINT("swapped");
		/* the row for the new file is gone with the swap */
		ledger_row_release(cs->new_file.id);
		cs->new_file.id = 0;
		ledger_row_claim(cs->old_file.id);

		StartTransactionCommand();
		item->size_after = 0;
		for (ForkNumber fork = MAIN_FORKNUM; fork <= MAX_FORKNUM; fork++)
			item->size_after += (int64) file_blocks(&cs->to, fork) * BLCKSZ;
		if (cs->mc->settings->prewarm)
		{
			SMgrRelation smgr;
			BlockSet   *cached;

			progress_phase(PHASE_PREWARMING);
			cached = cached_blocks(&cs->from);
			/* the old buffers are free for the new blocks */
			smgr = smgropen(cs->from, INVALID_PROC_NUMBER);
			DropRelationsAllBuffers(&smgr, 1);
			load_blocks(&cs->to, cached, check_interrupts);
		}
		CommitTransactionCommand();
		IM_POINT("prewarmed");
		release_locks(cs);

		progress_phase(PHASE_REMOVING_OLD_FILE);
		leftover_file_remove(&cs->old_file, rest);
		ledger_row_release(cs->old_file.id);
		cs->old_file.id = 0;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(oldcxt);
		error = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		LockReleaseAll(DEFAULT_LOCKMETHOD, true);
		cs->locked = false;
		MemoryContextSwitchTo(oldcxt);
		ereport(error->sqlerrcode == ERRCODE_QUERY_CANCELED ? NOTICE : WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("index \"%s\" was moved, but its old file not removed piece by piece: %s",
						NameStr(item->index_name), error->message)));
		FreeErrorData(error);

		/* so at once */
		remove_what_is_left(cs);
	}
	PG_END_TRY();
}

/*
 * Remove the file, new or old, that the ledger says is ours, at once.  Called
 * with no transaction open and no lock held.  Throws nothing: what can't be
 * removed now stays in the ledger.
 */
static void
remove_what_is_left(CopyState *cs)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	LedgerEntry *entries[2];
	bool		made[2];

	entries[0] = &cs->new_file;
	made[0] = cs->new_file_made;
	entries[1] = &cs->old_file;
	made[1] = true;

	for (int i = 0; i < 2; i++)
	{
		if (entries[i]->id == 0)
			continue;
		PG_TRY();
		{
			StartTransactionCommand();
			commit_locally();
			ledger_row_claim(entries[i]->id);
			leftover_file_drop(entries[i], made[i]);
			CommitTransactionCommand();
			ledger_row_release(entries[i]->id);
			entries[i]->id = 0;
		}
		PG_CATCH();
		{
			ErrorData  *error;

			MemoryContextSwitchTo(oldcxt);
			error = CopyErrorData();
			FlushErrorState();
			AbortOutOfAnyTransaction();
			LockReleaseAll(DEFAULT_LOCKMETHOD, true);
			MemoryContextSwitchTo(oldcxt);
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("could not remove a file that a move has left behind: %s",
							error->message),
					 errhint("Call index_mover_cleanup() later.")));
			FreeErrorData(error);
		}
		PG_END_TRY();
	}
}

/*
 * Free the state of a move.  What is in the ledger stays there; the locks are
 * gone, by release_locks() or by the abort after an error.
 */
static void
forget_state(void)
{
	CopyState  *cs = current;

	if (cs == NULL)
		return;
	current = NULL;
	file_copy_free(cs->copy);
	MemoryContextDelete(cs->cxt);
}

/*
 * The worker is terminated in the middle of a move: as after an ERROR, but
 * here, because a FATAL error passes by everyone who could catch it.  Runs
 * before the transaction machinery is shut down.  Not if the postmaster is
 * gone: then nothing may keep us, and the ledger has it.
 */
static void
cleanup_at_exit(int code, Datum arg)
{
	CopyState  *cs = current;

	if (cs == NULL || !PostmasterIsAlive())
		return;
	current = NULL;
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	remove_what_is_left(cs);
}
