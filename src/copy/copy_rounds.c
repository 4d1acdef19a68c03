/*-------------------------------------------------------------------------
 *
 * copy_rounds.c
 *	  Method copy: the long phase, every block once and then changed blocks in
 *	  rounds.
 *
 * All is written directly, past the shared buffers (see file_copy.c).  The rounds
 * end when few blocks are left, or when they do not get fewer, and are not many.
 * Changes that the WAL does not tell (block 0, the tail) are left to copy_last.c.
 *
 * Tricky: changes found in the WAL are put onto the list only between two
 * rounds, and the list is emptied only when all of it is copied.  So a block
 * that changes after it was copied again is in the next round, and never lost
 * in between; a block that changes before is not in it (see wal_changes.c).
 *
 * A round that leaves hardly fewer blocks than the round before shows that the
 * writers are about as fast as we are: from then on the copy counts as outpaced.
 * Rounds are hurried, since slow ones would be more, and cost the clients more.  And
 * they end as soon as the blocks that are left may be copied under the lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/storage_xlog.h"

#include "copy/copy_private.h"
#include "file_system.h"

/* So few changed blocks end the rounds of direct copying */
#define FEW_BLOCKS			256

/*
 * When the writers are too fast for us: give up if more than HOPELESS_BLOCKS are
 * left, more than can be copied under the lock, and their number has not fallen
 * by a tenth for HOPELESS_MS.  (Writes come in bursts: the flush of a GIN index's
 * pending list changes a large part of a small index within a second.)  Give up, too,
 * before the relation (at least SMALL_COPY_BLOCKS) would have been written more than
 * HOPELESS_COPIES times.  If max_rate makes us slow, see copy_look_at_round(),
 * give up at any size, after half of the time, rests for the rate included.
 */
#define HOPELESS_BLOCKS		IM_LIMIT("busy", 8192)
#define HOPELESS_MS			(60 * 1000)
#define HOPELESS_COPIES		IM_LIMIT("hopeless", 3)
#define HOPELESS_COPIES_BUSY 10 /* where max_lock_time was raised */
#define SMALL_COPY_BLOCKS	32768

/* Choose the pace: hurried once the writers are as fast as we are. */
static FileCopyPace
current_pace(const CopyState *cs)
{
	return cs->throttle.hurry ? FILE_COPY_HURRIED :
		cs->settings->pacing ? FILE_COPY_PACED : FILE_COPY_UNPACED;
}

/* Call this when something other than fast writers delays the copy of all files. */
void
copy_is_not_outpaced(CopyState *cs)
{
	foreach_file(f, cs)
	{
		f->outpaced_since = 0;
		f->recopied_before = f->item->blocks_recopied;
	}
}

/* Return whether all would be written too often if these were copied, too. */
static bool
would_write_too_much(const CopyState *cs, int64 left)
{
	int			copies = cs->settings->max_lock_time > DEFAULT_MAX_LOCK_TIME ?
		HOPELESS_COPIES_BUSY : HOPELESS_COPIES;

	return cs->copied + left + cs->item->blocks_recopied - cs->recopied_before >
		copies * Max((int64) cs->copied, SMALL_COPY_BLOCKS);
}

/* Return whether the blocks left have not got fewer for too long, without rests. */
static bool
is_outpaced_for_long(const CopyState *cs)
{
	return TimestampDifferenceMilliseconds(cs->outpaced_since, GetCurrentTimestamp()) -
		(pacing_rested_ms() - cs->outpaced_rested_ms) > HOPELESS_MS;
}

/* At the swap, where so many blocks take too long: return whether to give up. */
bool
copy_is_hopeless(CopyState *cs, int64 left)
{
	if (cs->outpaced_since == 0)
	{
		cs->outpaced_since = GetCurrentTimestamp();
		cs->outpaced_rested_ms = pacing_rested_ms();
	}
	return would_write_too_much(cs, left) || is_outpaced_for_long(cs);
}

/* Give up, because so many blocks are left, and do not get fewer. */
void
copy_cannot_keep_up(const CopyState *cs, int64 left)
{
	const MoveSettings *settings = cs->settings;

	/* rows show the detail, and no hint */
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("copying %s \"%s\" cannot keep up with the changes to it",
					relation_noun(cs->item->relkind), NameStr(cs->item->relname)),
			 errdetail("After %lld blocks were copied, %lld have changed since, which takes about %lld ms to be copied under the exclusive lock; index_mover.max_lock_time is %d ms.",
					   (long long) (cs->item->blocks_copied + cs->item->blocks_recopied),
					   (long long) left, (long long) copy_last_us(cs) / 1000 + 1,
					   settings->max_lock_time),
			 settings->max_rate > 0 && cs->throttle.rested_us > 0 ?
			 errhint("Raise or unset index_mover.max_rate, or make the move at a quieter time.") :
			 errhint("Raise index_mover.max_lock_time, or make the move at a quieter time.")));
}

/* Copy, directly, a chunk of a fork, in a transaction of its own. */
static void
copy_chunk(CopyState *cs, ForkNumber fork, BlockNumber first, BlockNumber nblocks)
{
	XLogRecPtr	lsn;

	copy_between_chunks(cs);
	StartTransactionCommand();
	lsn = file_copy_range(cs->copy, fork, first, nblocks, current_pace(cs));
	if (fork == MAIN_FORKNUM)
		wal_changes_seen(cs->changes, first, nblocks, lsn, NULL);
	CommitTransactionCommand();
	throttle_written(&cs->throttle, (int64) nblocks * BLCKSZ);
}

/* Return how much of all files of the move is copied, by their size in the plan. */
static int64
bytes_copied(const CopyState *cs)
{
	int64		result = 0;

	foreach_file(f, cs)
		result += Min((int64) f->copied * BLCKSZ, Max(f->item->size_before, 0));
	return result;
}

/* Copy, directly, the blocks from cs->copied up to a length of the file. */
static void
copy_blocks(CopyState *cs, BlockNumber upto)
{
	BlockNumber half = cs->copied + (upto - cs->copied) / 2;

	while (cs->copied < upto)
	{
		BlockNumber nblocks = Min(FILE_COPY_CHUNK - cs->copied % FILE_COPY_CHUNK,
								  upto - cs->copied);

		copy_chunk(cs, MAIN_FORKNUM, cs->copied, nblocks);
		if (cs->copied == 0)
			IM_POINT("copy-first");
		if (cs->copied < half && cs->copied + nblocks >= half)
			IM_POINT("copy-half");

		cs->copied += nblocks;
		cs->item->blocks_copied += nblocks;
		progress_blocks(Max(upto, cs->copied), cs->copied);
		progress_copied(bytes_copied(cs));
		/* a tail is no round */
		if (cs->rounds == 0)
			copy_look_at_round(cs, cs->copied);
		copy_eta(cs, PART_COPY, Max(upto, cs->copied), cs->copied);

		copy_resume_record(cs, false);
		copy_keep_up(cs);
	}
}

/* Copy, directly, the blocks on the list, and empty it. */
static void
copy_changed_directly(CopyState *cs)
{
	BlockNumber from = 0;
	int64		total = block_set_count(cs->todo);
	int64		done = 0;

	Assert(!IsTransactionState());
	if (cs->verifying)
		block_set_add_all(cs->unverified, cs->todo);

	while (from != InvalidBlockNumber)
	{
		BlockNumber first = from;
		XLogRecPtr	lsn;
		int			ncopied;

		copy_between_chunks(cs);
		StartTransactionCommand();
		from = file_copy_set(cs->copy, cs->todo, first, current_pace(cs), &lsn, &ncopied);
		wal_changes_seen_set(cs->changes, cs->todo, first, from, lsn);
		CommitTransactionCommand();
		cs->item->blocks_recopied += ncopied;
		throttle_written(&cs->throttle, (int64) ncopied * BLCKSZ);
		done += ncopied;
		copy_look_at_round(cs, done);
		copy_eta(cs, PART_AGAIN, cs->copied, cs->copied - Max(total - done, 0));
		copy_keep_up(cs);
	}

	/* the list is needed until the WAL up to now is read */
	copy_drain(cs);
	block_set_clear(cs->todo);
	cs->changes_from = cs->taken_at;
	cs->timeline = GetWALInsertionTimeLine();
}

/* Whether the rounds get anywhere. */
typedef struct Progress
{
	int64		least;			/* blocks that were left so far */
	TimestampTz least_at;
	int64		rested_by_then; /* copy_rested_ms() */
	int			in_vain;		/* rounds that have not left less since */
} Progress;

/*
 * Copy the blocks that the new file does not have: all before the first round,
 * then a tail, if it is long.  After file_copy_unsync() they are put onto the
 * list, which may name such blocks already.
 */
static void
copy_new_blocks(CopyState *cs, bool first_time, bool first_round)
{
	BlockNumber nblocks = first_time ? file_blocks(&cs->from, MAIN_FORKNUM) : copy_take_tail(cs);

	if (!first_time || (!first_round && nblocks - cs->copied <= FEW_BLOCKS))
		return;
	if (first_round)
		copy_begin_round(cs);
	copy_blocks(cs, nblocks);
}

/*
 * Return whether the blocks left are few, or few enough for the lock, or no fewer than
 * before.  Gives up, the first time, if there is no hope.
 */
static bool
rounds_are_over(CopyState *cs, Progress *progress, bool first_time, int64 left)
{
	bool		fits = copy_fits_under_lock(cs, left);
	bool		too_slow;
	bool		too_many;
	int64		elapsed;

	/* a little less each time is no progress, unless it adds up */
	if (left <= FEW_BLOCKS || left < progress->least - progress->least / 10)
	{
		progress->least = left;
		progress->least_at = GetCurrentTimestamp();
		progress->rested_by_then = copy_rested_ms(cs);
		progress->in_vain = 0;
		if (first_time)
		{
			cs->outpaced_since = progress->least_at;
			cs->outpaced_rested_ms = pacing_rested_ms();
		}
		/* the next round of a copy that is outpaced may leave more */
		return left <= FEW_BLOCKS || (cs->outpaced && fits);
	}
	progress->in_vain++;
	if (!first_time && cs->outpaced && !fits && progress->in_vain < 3)
		return false;			/* see copy_rounds_again() */
	cs->outpaced = true;
	if (!first_time)
		return true;

	too_slow = cs->eta.in_vain;
	too_many = left > HOPELESS_BLOCKS && !fits;
	elapsed = TimestampDifferenceMilliseconds(progress->least_at, GetCurrentTimestamp());
	if ((too_slow && elapsed - (copy_rested_ms(cs) - progress->rested_by_then) > HOPELESS_MS / 2) ||
		((too_slow || too_many) && (would_write_too_much(cs, left) ||
									(progress->in_vain >= 3 && is_outpaced_for_long(cs)))))
		copy_cannot_keep_up(cs, left);
	/* a burst may be over soon, unless we need not wait for that */
	return !too_slow && !too_many && (progress->in_vain >= 3 || fits);
}

/* Copy changed blocks in rounds, until few are left, or they do not get fewer. */
void
copy_rounds(CopyState *cs, bool first_time)
{
	Progress	progress = {.least = PG_INT64_MAX};

	cs->throttle.hurry = false;
	for (int round = 0;; round++)
	{
		copy_new_blocks(cs, first_time, round == 0);
		if (round == 0 && first_time)
		{
			IM_POINT("copy-end");
			IM_LOG_SPECIAL(&cs->from, false);
			progress_phase(PHASE_CATCHING_UP);
		}

		copy_drain(cs);
		copy_take_changes(cs);
		if (rounds_are_over(cs, &progress, first_time, block_set_count(cs->todo)))
			break;

		IM_POINT("copy-round");
		cs->rounds++;
		copy_begin_round(cs);
		/* blocks that change faster than we copy do not wait for our rests */
		cs->throttle.hurry = progress.in_vain > 0 || (cs->outpaced && !first_time);
		copy_changed_directly(cs);
		cs->throttle.hurry = false;
	}
	/* the rest of the move has an end */
	cs->eta.in_vain = false;
}

/* The same after file_copy_sync(), since that is faster than by buffers.  Does not give up. */
void
copy_rounds_again(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_CATCHING_UP);

	Assert(!IsTransactionState());
	StartTransactionCommand();
	file_copy_unsync(cs->copy);
	CommitTransactionCommand();

	copy_rounds(cs, false);
	IM_POINT("copy-again");

	StartTransactionCommand();
	file_copy_sync(cs->copy);
	CommitTransactionCommand();
	progress_phase(phase);
}

/* Create a fork of the new file, which may be there already, if the copy goes on. */
void
copy_create_fork(const CopyState *cs, ForkNumber fork)
{
	StartTransactionCommand();
	smgrcreate(smgropen(cs->to, INVALID_PROC_NUMBER), fork, true);
	log_smgrcreate(&cs->to, fork);
	CommitTransactionCommand();
}

/*
 * Copy the free space map, if any.  It may change meanwhile, since its users check
 * the page that it names, which is in the new file, at least as long as the old is now.
 */
void
copy_free_space_map(CopyState *cs)
{
	BlockNumber nblocks = file_blocks(&cs->from, FSM_FORKNUM);

	if (nblocks > 0)
		copy_create_fork(cs, FSM_FORKNUM);
	for (BlockNumber block = 0; block < nblocks; block += FILE_COPY_CHUNK)
	{
		copy_chunk(cs, FSM_FORKNUM, block, Min(FILE_COPY_CHUNK, nblocks - block));
		copy_keep_up(cs);
	}
}
