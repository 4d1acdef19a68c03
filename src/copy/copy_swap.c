/*-------------------------------------------------------------------------
 *
 * copy_swap.c
 *	  Method copy: the short exclusive step that gives a relation its new
 *	  file, or new files to a table, its TOAST table and the TOAST index.
 *
 * src/README, "Protocol of the swap", has the order of steps, why it is right, and
 * when we ask for the lock, with or without queueing.
 *
 * The last blocks may take 10 ms.  If they would take longer, at their speed so
 * far, the lock is not asked for, or is given back, and the attempt repeated after
 * another round; each time twice as much is allowed, up to index_mover.max_lock_time.
 *
 * Before the lock everything is done that could block under it (attempts_prepare())
 * or be slow (read_pages(), wal_ahead(), copy_catch_up()).  There remain two flushes
 * of the WAL, one to make its end readable and one by the commit.
 *
 * Locks: the locks of copy_locks.c are kept.  The locks of this file are held to the end of
 * the transaction: RowExclusiveLock on catalogs and the ledger first, then
 * AccessExclusiveLock on the relations, in core's order: table, TOAST table, index.
 *
 * proof/copy.pml and proof/swap.pml are models of this protocol.
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
#include "storage/lmgr.h"
#include "storage/pmsignal.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "copy/copy.h"
#include "copy/copy_private.h"
#include "errors.h"
#include "evidence.h"
#include "own_tables.h"
#include "plan/plan.h"

/* While a holder stays, catch up for no more than a twentieth of the time */
#define CATCH_UP_SHARE		20
/* With more changed blocks left, catch up as soon as that share allows: the next holder may come soon */
#define NEAR_BLOCKS			IM_LIMIT("near", COPY_FAR_TOO_MANY / 2)

/* Between two catch-ups, read the WAL this often */
#define STAY_NEAR_US		(150 * INT64CONST(1000))

/* Relations are moved together no longer after this many attempts that got a lock, or had too much left */
#define MOST_IN_VAIN		3

/* Time for the last blocks, under the lock, at first */
#define LAST_BLOCKS_US		INT64CONST(10000)

/* While an attempt holds a lock: the item whose lock_time is measured, and when it got the first lock */
static MoveItem *measuring = NULL;
static instr_time granted_at;

/* How long the last attempt held its locks */
static int64 last_us;

/* The time of the last swap, under the lock, to give a relation its file */
static int64 set_file_us = 0;

/* Take the time of the locks, the longest of all attempts, just before their release. */
static void
measure_commit(XactEvent event, void *arg)
{
	if (measuring == NULL || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT))
		return;
	last_us = elapsed_us(granted_at);
	measuring->outcome.lock_time = Max(measuring->outcome.lock_time, last_us);
	measuring = NULL;
}

/* Read the pages of the relations' rows, of their future index entries, and of the ledger. */
static void
read_pages(void *arg)
{
	CopyMove   *move = (CopyMove *) arg;
	Relation	pg_class = table_open(RelationRelationId, NoLock);

	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];
		Relation	rel = relation_open(file->relid, NoLock);
		ScanKeyData key[2];
		SysScanDesc scan;

		(void) catalog_rows(RelationRelationId, ClassOidIndexId,
							Anum_pg_class_oid, file->relid, 0, InvalidOid);
		(void) catalog_rows(RelationRelationId, ClassTblspcRelfilenodeIndexId,
							Anum_pg_class_reltablespace, tablespace_in_catalog(file->to.spcOid),
							Anum_pg_class_relfilenode, file->to.relNumber);
		ScanKeyInit(&key[0], Anum_pg_class_relname, BTEqualStrategyNumber, F_NAMEEQ,
					NameGetDatum(&rel->rd_rel->relname));
		ScanKeyInit(&key[1], Anum_pg_class_relnamespace, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(rel->rd_rel->relnamespace));
		scan = systable_beginscan(pg_class, ClassNameNspIndexId, true, NULL, 2, key);
		(void) systable_getnext(scan);
		systable_endscan(scan);
		relation_close(rel, NoLock);
		(void) ledger_exists(file->new_file.id);
	}
	table_close(pg_class, NoLock);
}

/* Callback of a bid that lasts: read the WAL that has come. */
static bool
stay_near(void *arg)
{
	return copy_stay_near((CopyMove *) arg);
}

/*
 * Lock all relations of the move.  Queue, if at all, for a single lock, before any other is held:
 * a session that wants a relation that we have must not wait for a third transaction.  Returns false
 * if a lock is not free, or the job was paused since the last catch-up: read_pages() may have waited
 * for a lock, too.
 */
static bool
lock_files(CopyMove *move, Attempts *attempts, CopyFile *queue_for)
{
	if (job_pause_requested())
		return false;
	/* step: queue-for-one */
	if (queue_for != NULL)
	{
		if (!attempts_queue_for_bid(attempts, queue_for->relid, &granted_at))
			return false;
		measuring = move->item;
		IM_POINT("swap-file-locked");
	}
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file == queue_for)
			continue;
		if (measuring == NULL)
			INSTR_TIME_SET_CURRENT(granted_at);
		if (!ConditionalLockRelationOid(file->relid, AccessExclusiveLock))
			return false;
		measuring = move->item;
		IM_POINT("swap-file-locked");
	}
	return true;
}

/*
 * Note where the rows of pg_class are that we will change.  Return whether no other transaction is
 * changing such a row, as GRANT does without a lock on the table (from 18 on, with a lock).  We
 * would wait for the end of that transaction, and sessions that wait for our lock would, too.
 */
static bool
note_rows(CopyMove *move)
{
	VirtualTransactionId changer;

	IM_POINT("swap-copied");
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		file->row = relation_row_position(file->relid);
		if (relation_row_changer(file->relid, &changer))
			return false;
	}
	IM_POINT("swap-row");
	return true;
}

/* Give all relations their new files in pg_class and in the ledger. */
static void
set_files(void *arg)
{
	CopyMove   *move = arg;

	/* step: set-files */
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];
		Relation	rel = relation_open(file->relid, NoLock);

		Assert(CheckRelationLockedByMe(rel, AccessExclusiveLock, false));
		if (!RelFileLocatorEquals(rel->rd_locator, file->from))
			elog(ERROR, "relation %u has another file than the one that was copied",
				 file->relid);
		SetRelationTableSpace(rel, file->to.spcOid, file->to.relNumber);
		InvokeObjectPostAlterHook(RelationRelationId, file->relid, 0);
		relation_close(rel, NoLock);
		ledger_delete(file->new_file.id);
		ledger_insert(&file->old_file);
		IM_POINT("swap-file-set");
	}
	for (int i = 0; i < move->nrelations; i++)
	{
		if (move->relations[i].relid == move->relations[i].table)
			CacheInvalidateRelcacheByRelid(move->relations[i].table);
	}

	/*
	 * a lock timeout that has met the grant is of this attempt, and of no
	 * later work
	 */
	CHECK_FOR_INTERRUPTS();
}

/* Work in a subtransaction; return false if another transaction was in the way. */
static bool
try_unhindered(void (*work) (void *arg), CopyMove *move)
{
	ErrorData  *error;
	bool		changed = false;

	Assert(IsTransactionState());
	error = errors_catch(work, move);
	if (error == NULL)
		return true;

	/*
	 * Another transaction has changed the row after note_rows().  Core's
	 * "tuple concurrently updated" is an internal error.
	 */
	if (error->sqlerrcode == ERRCODE_INTERNAL_ERROR && work == set_files)
	{
		for (int i = 0; i < move->nfiles; i++)
		{
			CopyFile   *file = &move->files[i];

			if (relation_row_has_moved(file->relid, &file->row))
				changed = true;
		}
	}
	if (!errors_was_hindered(error) && !changed)
		ReThrowError(error);
	return false;
}

/* Make all files equal under the locks, within most_us microseconds. */
static AttemptOutcome
copy_last_of_all(CopyMove *move, int64 most_us)
{
	AttemptOutcome outcome = SWAPPED;
	XLogRecPtr	upto;

	Assert(measuring != NULL);
	/* each file has a reader of its own */
	for (int i = 0; i < move->nfiles; i++)
		most_us -= wal_changes_unread_us(move->files[i].changes);
	if (most_us < 0)
		return TOO_MUCH_LEFT;
	IM_LOG_SPECIAL(&move->files[0].from, true);
	/* step: last-read */
	upto = wal_changes_mark();
	for (int i = 0; i < move->nfiles; i++)
	{
		outcome = copy_last_blocks(&move->files[i], upto, &most_us);
		if (outcome != SWAPPED)
			break;
	}
	return outcome;
}

/* End an attempt that was in vain, by a commit: an abort would release the session locks. */
static AttemptOutcome
give_back(CopyMove *move, AttemptOutcome outcome)
{
	bool		held = measuring != NULL;
	const char *why = "another transaction is in the way";

	Assert(IsTransactionState() && outcome != SWAPPED);
	Assert(move->stage == COPY_ASKING || move->stage == COPY_LOCKED);
	if (held)
		move->in_vain++;
	if (outcome == TOO_MUCH_LEFT)
		why = "too much left to do";
	else if (outcome == CANNOT_GO_ON)
		why = "the copy has ended";

	/*
	 * The locks need not be held for a flush.  But flush afterwards: a
	 * standby may hold them until it gets this record.
	 */
	/* step: give-back */
	set_commit("off");
	CommitTransactionCommand();
	move->stage = COPY_CATCHING_UP;
	XLogFlush(XactLastCommitEnd);
	if (held)
	{
		IM_POINT("swap-given-back");
		ereport(DEBUG1,
				(errmsg_internal("index_mover has given the exclusive lock on relation %u back after " INT64_FORMAT " us: %s",
								 move->item->relid, last_us, why)));
	}
	return outcome;
}

/* Raise an ERROR if the server could not recover from a crash once the old file of an index is gone. */
static void
check_full_pages(const MoveItem *item)
{
	RelationFacts facts;

	if (relation_facts(item->relid, &facts) && recovery_needs_full_pages(&facts))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("full_page_writes was switched off while BRIN index \"%s\" was being moved",
						NameStr(item->relname)),
				 errdetail("This server cannot recover from a crash after the file of such an index was removed."),
				 errhint("Switch it on, and CHECKPOINT, before the move.")));
}

/*
 * Ask for the locks once, queueing for the lock of a file (NULL: of none), and swap if the
 * last blocks take no longer than most_us.  To ask for an exclusive lock assigns a
 * transaction ID, even in vain, so each attempt is a transaction of its own.
 */
static AttemptOutcome
attempt(CopyMove *move, Attempts *attempts, CopyFile *queue_for, int64 most_us)
{
	AttemptOutcome outcome;
	MovePhase	phase;
	instr_time	start;

	Assert(!IsTransactionState() && measuring == NULL && move->has_locks);
	Assert(move->stage == COPY_CATCHING_UP);
	wal_ahead();
	StartTransactionCommand();
	move->stage = COPY_ASKING;
	for (int i = 0; i < move->nitems; i++)
		check_full_pages(move->items[i]);
	progress_set(lock_attempts, move->item->outcome.lock_attempts);

	/* first the locks and pages for which we could wait under the lock */
	if (!attempts_prepare(move->settings, move->ledger))
		return give_back(move, LOCK_NOT_GRANTED);
	if (!try_unhindered(read_pages, move))
		return give_back(move, LOCK_NOT_GRANTED);
	InvalidateCatalogSnapshot();

	IM_POINT("swap-asking");
	/* step: lock */
	if (!lock_files(move, attempts, queue_for))
		return give_back(move, move->end != COPY_GOES_ON ? CANNOT_GO_ON : LOCK_NOT_GRANTED);
	move->stage = COPY_LOCKED;
	phase = progress_phase(PHASE_SWAPPING);
	progress_blockers(NULL, 0);
	IM_POINT("swap-locked");
	outcome = copy_last_of_all(move, most_us);
	if (outcome == SWAPPED)
	{
		bool		are_free = note_rows(move);

		if (!are_free)
			outcome = LOCK_NOT_GRANTED;
	}
	if (outcome == SWAPPED)
	{
		INSTR_TIME_SET_CURRENT(start);
		if (!try_unhindered(set_files, move))
			outcome = LOCK_NOT_GRANTED;
		set_file_us = elapsed_us(start) / move->nfiles;
	}
	if (outcome != SWAPPED)
	{
		(void) progress_phase(phase);
		return give_back(move, outcome);
	}

	/* a result that was overlooked would lose changes */
	if (move->end != COPY_GOES_ON)
		elog(ERROR, "swap of a copy that cannot go on: %s", move->why_ended);
	IM_POINT("swap-before-commit");
	/* an orphan must not commit: the server may have been started again */
	if (!PostmasterIsAlive())
		proc_exit(1);
	/* step: commit */
	CommitTransactionCommand();
	move->stage = COPY_SWAPPED;
	Assert(measuring == NULL);
	return SWAPPED;
}

/* The result of a look at the relations */
typedef struct SwapHolders
{
	bool		known;			/* pg_class was not locked, and so was read */
	CopyFile   *held;			/* the first file that others hold; NULL =
								 * none */
	int			nheld;			/* tables that others hold */
	int			nlong;			/* of these tables, how many are in use for
								 * long */
	bool		row_changes;	/* a transaction is changing a row of pg_class */
} SwapHolders;

/*
 * look: find the sessions that hold the relations, or change their rows.  From 18 on, GRANT, which
 * changes a row, holds its table, too.
 */
static SwapHolders
look_at_holders(CopyMove *move, Wait *wait)
{
	SwapHolders look = {0};
	Oid			last_held = InvalidOid;
	Oid			last_in_use = InvalidOid;
	VirtualTransactionId *vxids = NULL;
	int			count = 0;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	look.known = lock_relation_within(RelationRelationId, AccessShareLock,
									  move->settings->lock_timeout, NULL);
	if (look.known)
	{
		for (int i = 0; i < move->nfiles; i++)
		{
			CopyFile   *file = &move->files[i];
			int			nholders;
			VirtualTransactionId *holders = relation_lock_holders(file->relid, AccessExclusiveLock,
																  &nholders);
			VirtualTransactionId changer;
			bool		is_changing;
			bool		in_use;

			if (nholders > 0 && look.held == NULL)
				look.held = file;
			in_use = wait_has_long_among(wait, holders, nholders);
			vxids = virtual_transactions_add(vxids, &count, holders, nholders);
			is_changing = relation_row_changer(file->relid, &changer);
			if (is_changing)
			{
				look.row_changes = true;
				in_use = in_use || wait_has_long_among(wait, &changer, 1);
				vxids = virtual_transactions_add(vxids, &count, &changer, 1);
			}
			/* the files of a table follow each other */
			if ((nholders > 0 || is_changing) && last_held != file->table)
			{
				look.nheld++;
				last_held = file->table;
			}
			if (in_use && last_in_use != file->table)
			{
				look.nlong++;
				last_in_use = file->table;
			}
		}
	}
	if (look.known)
		wait_note_holders(wait, vxids, count);
	else
		wait_forget_ended(wait);
	CommitTransactionCommand();
	return look;
}

/* Make an attempt, if the rest fits into *most_us, which is doubled each time it does not. */
static AttemptOutcome
try_swap(CopyMove *move, Attempts *attempts, CopyFile *queue_for, int64 *most_us)
{
	int64		longest_us = move->settings->max_lock_time * INT64CONST(1000);
	AttemptOutcome outcome = TOO_MUCH_LEFT;

	*most_us = Min(*most_us, longest_us);
	/* each further try would cost a round of direct copying */
	for (int i = 0; i < move->nfiles; i++)
	{
		if (block_set_count(move->files[i].todo) > COPY_FAR_TOO_MANY)
			*most_us = longest_us;
	}
	IM_POINT("swap-ready");

	/*
	 * most of it may be WAL, which was read for the first file before the
	 * others caught up
	 */
	if (copy_last_us(move) > *most_us)
	{
		if (!copy_stay_near(move))
			return CANNOT_GO_ON;
	}
	if (copy_last_us(move) <= *most_us)
	{
		move->item->outcome.lock_attempts++;
		outcome = attempt(move, attempts, queue_for, *most_us);
	}
	else
		move->in_vain++;
	if (outcome != TOO_MUCH_LEFT)
		return outcome;

	/* the rest may have been WAL, which is read without a lock */
	if (!copy_stay_near(move))
		return CANNOT_GO_ON;
	if (*most_us >= longest_us && copy_last_us(move) > *most_us)
		copy_check_hope(move);
	*most_us = Min(*most_us * 2, longest_us);
	return TOO_MUCH_LEFT;
}

/* When a copy that waits copies changed blocks again, and the result */
typedef struct CatchUp
{
	int64		due;			/* by clock_us(), as the others */
	int64		due_if_many;	/* changed blocks; no later */
	int64		near;			/* to read the WAL, and let others pass */
	int64		most_us;		/* for the last blocks, in the next attempt */
	bool		crowded;		/* too many blocks were left, and lock_wait is
								 * over */
} CatchUp;

/*
 * Copy changed blocks if that is due, or now is set; else only read the WAL.  *caught_up: whether
 * blocks were copied.  Returns false if the copy has ended.
 */
static bool
follow_changes(CopyMove *move, const Attempts *attempts, CatchUp *catch_up, bool now,
			   bool *caught_up)
{
	int64		began = clock_us();
	int64		ended;
	int64		due = copy_changes_left(move) > NEAR_BLOCKS ? catch_up->due_if_many : catch_up->due;

	if (!now && began < due)
	{
		/* it flushes a record, so not at each look */
		*caught_up = false;
		if (began >= catch_up->near)
		{
			if (!copy_stay_near(move))
				return false;
			catch_up->near = clock_us() + STAY_NEAR_US;
		}
		return true;
	}
	*caught_up = true;
	if (!copy_catch_up(move))
		return false;
	ended = clock_us();
	catch_up->due_if_many = ended + Max((ended - began) * CATCH_UP_SHARE, USECS_PER_SEC);
	catch_up->due = Max(catch_up->due_if_many,
						ended + copy_catch_up_interval(attempts->limits.since));
	return true;
}

/* bid: note whether a holder of any of the relations keeps us from the queue. */
static void
note_barred(CopyMove *move, Attempts *attempts)
{
	for (int i = 0; i < move->nitems; i++)
	{
		const MoveItem *item = move->items[i];
		bool		is_index = relkind_is_index(item->relkind);

		/* for an index only the holders count */
		attempts_note_barred(attempts, is_index ? InvalidOid : item->relid);
		if (attempts->barred)
			return;
	}
}

/*
 * together: return why relations had better be moved one after the other, as a constant, or NULL:
 * some of them are in use for long, or for moments all the time, and others are not; or attempts
 * were in vain.
 */
static const char *
had_better_part(CopyMove *move, const SwapHolders *look, const WaitLimits *limits)
{
	int			ntables = 0;
	bool		was_uneven = move->uneven;

	if (move->nitems == 1)
		return NULL;
	for (int i = 0; i < move->nfiles; i++)
	{
		if (i == 0 || move->files[i].table != move->files[i - 1].table)
			ntables++;
	}
	/* a transaction that ends during a look was found at some of them only */
	move->uneven = look->nlong > 0 && look->nlong < ntables;
	/* by G1, a relation that no session locks waits no longer for the others */
	if (!move->uneven && turn_is_due(move->mc, limits, move->so_far->rested_us))
		move->uneven = look->nheld > 0 && look->nheld < ntables;
	if (move->uneven && was_uneven)
		return "it was in use while others were free";
	return move->in_vain >= MOST_IN_VAIN ? "attempts to swap them together were in vain" : NULL;
}

/* Whether the last copy that was swapped has found other sessions in its way */
static bool has_waited = false;

/*
 * Return how many relations had better be copied and swapped together: one if the last one has not
 * waited, else as many as can be given their files within max_lock_time.
 */
int
copy_most_together(const MoveSettings *settings)
{
	int64		most = settings->max_lock_time * INT64CONST(1000) / Max(set_file_us, 1);

	return has_waited ? Max(Min(most, IM_MOST_TOGETHER), 1) : 1;
}

/* What a round does after its look */
typedef enum AttemptKind
{
	ATTEMPT_NONE,				/* it rests */
	ATTEMPT_FREE,				/* asks for the locks, which no session holds */
	ATTEMPT_BID,				/* queues for one of them */
} AttemptKind;

/* A round: a catch-up, a look, and an attempt or none */
typedef struct SwapRound
{
	bool		is_bid;			/* a bid is due; attempts.barred can forbid it */
	bool		is_over;		/* lock_wait is */
	SwapHolders look;
	AttemptKind kind;
	AttemptOutcome outcome;		/* LOCK_NOT_GRANTED if there was no attempt */
	int64		attempts_before;	/* outcome.lock_attempts when it began */
} SwapRound;

/* Choose which attempt follows a look; a bid that is due says whether it is barred. */
static AttemptKind
choose_attempt(CopyMove *move, Attempts *attempts, const SwapRound *round, bool is_free)
{
	if (round->is_bid)
	{
		/* stay */
		attempts->barred = true;
		if (round->look.known && !round->look.row_changes)
			note_barred(move, attempts);
		/* bid */
		if (!attempts->barred)
			return ATTEMPT_BID;
	}
	/* free */
	return is_free ? ATTEMPT_FREE : ATTEMPT_NONE;
}

/*
 * After a round that has not swapped the files: warn, note the end of a bid, and have relations
 * part, or the move give its turn.  Returns false if the copy has ended.
 */
static bool
after_attempt(CopyMove *move, Attempts *attempts, CatchUp *catch_up, const SwapRound *round)
{
	const Wait *wait = &attempts->wait;
	bool		tried = round->kind != ATTEMPT_NONE;
	bool		asked = move->item->outcome.lock_attempts > round->attempts_before;
	bool		too_many = round->outcome == TOO_MUCH_LEFT;
	const char *why_part;
	bool		gives_turn;

	/* others were in the way */
	if (tried && round->outcome == LOCK_NOT_GRANTED)
		copy_reset_pace(move);
	if (tried && round->is_over && wait->nholders == 0)
		copy_warn_or_give_up(move, wait);
	/* if no lock was asked for, catch up again at once */
	if (round->is_bid && (!too_many || round->is_over || asked))
	{
		attempts_end_bid(attempts);
		runner_make_room(move->mc->job, move->item, relation_is_free);
	}
	why_part = had_better_part(move, &round->look, wait->limits);
	if (why_part != NULL)
		return copy_end(move, COPY_PART, why_part);
	/* each try costs a round: after lock_wait make it at the bids alone */
	catch_up->crowded = round->is_over &&
		(too_many || (catch_up->crowded && !round->is_bid));
	gives_turn = turn_give(move->mc, wait->limits, move->so_far->rested_us);
	if (gives_turn)
		return copy_end(move, COPY_TURN, "it gives its turn to another relation");
	return true;
}

/*
 * Look at the holders, and make attempts, until any succeeds.  attempts.c says when; each
 * is made right after a catch-up and a look, and has few blocks left to copy.
 */
static bool
make_attempts(CopyMove *move)
{
	Attempts	attempts;
	Wait	   *wait = &attempts.wait;
	CatchUp		catch_up = {.most_us = LAST_BLOCKS_US};
	bool		is_free = true;
	bool		has_met_others = false;

	attempts_begin(&attempts, move->mc, move->item->relid);
	attempts.keep_up = stay_near;
	attempts.keep_up_arg = move;
	for (int i = 0; i < move->nfiles; i++)
	{
		if (move->files[i].pace.outpaced)
			attempts.hurry = true;
	}
	for (;;)
	{
		SwapRound	round = {.outcome = LOCK_NOT_GRANTED};
		CopyFile   *queue_for = NULL;
		bool		now;
		bool		ready;

		round.is_bid = attempts_bid_is_due(&attempts);
		round.attempts_before = move->item->outcome.lock_attempts;
		now = is_free || (round.is_bid && !attempts.barred);
		if (!follow_changes(move, &attempts, &catch_up, now, &ready))
			return false;
		round.look = look_at_holders(move, wait);
		has_met_others = has_met_others || round.look.held != NULL;
		round.is_over = wait_look(wait);
		if (wait_has_long_holder(wait))
			copy_reset_pace(move);
		/* as long as pg_class is locked, no attempt is made */
		if (round.is_over && (wait->nholders > 0 || !round.look.known))
			copy_warn_or_give_up(move, wait);

		is_free = round.look.known && wait->nholders == 0 && !catch_up.crowded;
		round.kind = choose_attempt(move, &attempts, &round, is_free);
		if (round.kind != ATTEMPT_NONE && !ready)
			continue;			/* it catches up, and looks again */
		if (round.kind == ATTEMPT_BID)
			queue_for = round.look.held != NULL ? round.look.held : &move->files[0];
		if (round.kind != ATTEMPT_NONE)
			round.outcome = try_swap(move, &attempts, queue_for, &catch_up.most_us);
		if (round.outcome == SWAPPED)
		{
			has_waited = has_met_others;
			return true;
		}
		copy_check_locks(move);
		if (round.outcome == CANNOT_GO_ON)
			return false;
		if (!after_attempt(move, &attempts, &catch_up, &round))
			return false;
		throttle_rest(attempts_nap_ms(&attempts));
	}
}

/*
 * Swap the files, when the exclusive locks can be had without making others wait
 * long.  ERROR 55P03 after index_mover.lock_wait, if on_blocker is fail, or what it says
 * did not help.  An error leaves the transaction to be aborted.
 */
bool
copy_swap(CopyMove *move)
{
	static bool registered = false;
	MoveItem   *item = move->item;

	Assert(!IsTransactionState() && move->nfiles > 0 && move->has_locks);
	Assert(move->stage == COPY_CATCHING_UP);
	if (!registered)
		RegisterXactCallback(measure_commit, NULL);
	registered = true;

	/* prepare the ledger's rows of the old files */
	if (!copy_begin_with_ledger(move))
		return false;
	/* the job keeps it from being dropped */
	move->ledger = extension_relation("ledger");
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		file->old_file = file->new_file;
		file->old_file.id = file->claimed = ledger_new_id();
		(void) ledger_row_claim(file->old_file.id, true);
		file->old_file.kind = LEDGER_OLD_FILE;
		file->old_file.tablespace = file->from.spcOid;
		file->old_file.relfilenumber = file->from.relNumber;
		evidence_note_file(file->to.spcOid);
	}
	CommitTransactionCommand();

	progress_phase(PHASE_WAIT_SWAP_LOCK);
	if (!make_attempts(move))
		return false;
	Assert(!IsTransactionState() && move->stage == COPY_SWAPPED);
	/* whatever goes wrong from here on, all has moved */
	item->outcome.status = STATUS_MOVED;
	item->outcome.finished_at = GetCurrentTimestamp();
	item->outcome.idle = progress_idle();
	for (int i = 0; i < move->nitems; i++)
	{
		MoveOutcome *outcome = &move->items[i]->outcome;

		outcome->status = item->outcome.status;
		outcome->finished_at = item->outcome.finished_at;
		outcome->idle = item->outcome.idle;
		outcome->lock_time = item->outcome.lock_time;
		outcome->lock_attempts = item->outcome.lock_attempts;
	}
	return true;
}
