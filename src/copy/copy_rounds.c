/*-------------------------------------------------------------------------
 *
 * copy_rounds.c
 *	  Method copy: every block once, then changed blocks in rounds, and when
 *	  these are over.
 *
 * copy_rounds() copies directly, in the long phase and, where many blocks have changed
 * again, while the copy waits for its locks.  copy_catch_up() copies the changed blocks of
 * all files through shared buffers, before each attempt at the locks.  Whether a file is
 * finished is decided here only: count_round() and few_are_left() say that a round
 * is the last one, is_hopeless() that there will be no last one.  copy_last.c knows how much
 * fits under the lock.
 *
 * Tricky: changes found in the WAL are put onto the list only between two
 * rounds, and the list is emptied only when all of it is copied.  So a block
 * that changes after it was copied again is in the next round, and never lost
 * in between; a block that changes before is not in it (see wal_changes.c).
 *
 * A round that leaves hardly fewer blocks than the round before shows that the
 * writers are about as fast as we are: from then on the copy counts as outpaced.
 * Rounds are hurried, since slow rounds would be more, and cost the clients more.  And
 * they end as soon as the blocks that are left may be copied under the lock.
 *
 * proof/copy.pml and proof/resume.pml are models of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"

#include "copy/copy_private.h"
#include "file_system.h"
#include "printed_command.h"

/* So few changed blocks end the rounds of direct copying */
#define FEW_BLOCKS			256

/* So many rounds end the rounds through shared buffers; or COPY_VERY_FEW */
#define MOST_BUFFERED_ROUNDS	10

/* With more changed blocks left, copy directly once more: buffers may be slower than writers */
#define TOO_MANY_FOR_BUFFERS	IM_LIMIT("again", COPY_FAR_TOO_MANY)

/* Between two catch-ups of a copy that waits: this part of its wait so far */
#define CATCH_UP_PART		IM_LIMIT("wait-part", 20)

/* A round that is this long, less rests for others, tells whether it makes progress */
#define LONG_ROUND_MS		(5 * 1000)
#define MOST_CHANGED_IN_ROUND	0.75

/*
 * When the writers are too fast for us: give up if more than HOPELESS_BLOCKS are
 * left, more than can be copied under the lock, and their number has not fallen
 * by a tenth for HOPELESS_MS.  (Writes come in bursts, as by the flush of a GIN
 * index's pending list.)  Give up, too, before the relation (at least
 * SMALL_COPY_BLOCKS) would have been written more than HOPELESS_COPIES times; at any
 * size, and after half of the time, if max_rate makes us slow: look_at_round().
 */
#define HOPELESS_BLOCKS		IM_LIMIT("busy", 8192)
#define HOPELESS_MS			IM_LIMIT("hopeless-ms", 60 * 1000)
#define HOPELESS_COPIES		IM_LIMIT("hopeless", 3)
#define HOPELESS_COPIES_BUSY 10 /* where max_lock_time was raised */
#define SMALL_COPY_BLOCKS	32768

/* Return the time, in milliseconds, without rests for others, but with rests for max_rate. */
static int64
busy_ms(const CopyFile *file)
{
	return clock_us() / 1000 - (pacing_rested_ms() - file->throttle.rested_us / 1000);
}

/* Look at a round from here on. */
static void
begin_round(CopyFile *file)
{
	file->pace.round_began = busy_ms(file);
	file->pace.rate_rested_before = file->throttle.rested_us;
	file->pace.written_before = copy_blocks_written(file);
	file->pace.changed_before = wal_changes_count(file->changes);
	file->pace.in_vain = false;
}

/*
 * After a piece of a round: if max_rate makes it so long that most of its blocks
 * have changed by its end, the next round is no shorter.  Then publish no end of the
 * move, and warn once.
 */
static void
look_at_round(CopyFile *file)
{
	const MoveSettings *settings = file->move->settings;
	CopyPace   *pace = &file->pace;
	int64		written = copy_blocks_written(file);
	int64		done = written - pace->written_before;
	int64		changed = wal_changes_count(file->changes);
	int64		ms = busy_ms(file) - pace->round_began;

	/* a round takes the blocks that it copies from the set */
	pace->changed_before = Min(pace->changed_before, changed);
	changed -= pace->changed_before;

	/*
	 * without the rests of pacing, the rests for max_rate would have been
	 * longer
	 */
	pace->in_vain = settings->max_rate > 0 && ms > LONG_ROUND_MS &&
		(file->throttle.rested_us - pace->rate_rested_before) / 1000 > ms / 2 &&
		done * BLCKSZ > settings->max_rate * INT64CONST(1024) * LONG_ROUND_MS / 2000 &&
		changed > done * MOST_CHANGED_IN_ROUND;
	if (!pace->in_vain || pace->told)
		return;
	pace->told = true;
	ereport(WARNING,
			(errmsg("%s \"%s\" changes nearly as fast as max_rate lets it be copied",
					relation_noun(file->item->relkind), NameStr(file->item->relname)),
			 errdetail("Of %lld blocks that were copied, %lld have changed since.",
					   (long long) done, (long long) changed),
			 errhint("To raise it: %s",
					 printed_command("alter_move", file->move->mc->job->job, "max_rate",
									 psprintf("%dMB", settings->max_rate / 1024 * 4 + 4)))));
}

/* Begin to measure the pace again: something other than fast writers delays all files, or has. */
void
copy_reset_pace(CopyMove *move)
{
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		file->pace.outpaced_since = 0;
		file->pace.recopied_before = file->item->outcome.blocks_recopied;
	}
}

/* Return whether all would be written too often if these were copied, too. */
static bool
would_write_too_much(const CopyFile *file, int64 left)
{
	int			copies = file->move->settings->max_lock_time > DEFAULT_MAX_LOCK_TIME ?
		HOPELESS_COPIES_BUSY : HOPELESS_COPIES;
	int64		recopied = file->item->outcome.blocks_recopied - file->pace.recopied_before;

	return file->copied + left + recopied >
		copies * Max((int64) file->copied, SMALL_COPY_BLOCKS);
}

/* Give up, because so many blocks are left, and do not get fewer. */
static void
cannot_keep_up(const CopyFile *file, int64 left)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("copying %s \"%s\" cannot keep up with the changes to it",
					relation_noun(file->item->relkind), NameStr(file->item->relname)),
			 errdetail("After %lld blocks were copied, %lld have changed since. Their copy under the lock would take about %lld ms; index_mover.max_lock_time is %d ms.",
					   (long long) copy_blocks_written(file),
					   (long long) left, (long long) copy_last_us(file->move) / 1000 + 1,
					   file->move->settings->max_lock_time),
			 errhint("Raise index_mover.max_lock_time, or index_mover.max_rate if it is set, or make the move at a quieter time.")));
}

/*
 * At the swap, where the last blocks take too long: give up if there is no hope for the
 * file that has the most.
 */
void
copy_check_hope(CopyMove *move)
{
	CopyFile   *worst = NULL;
	int64		most = -1;

	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];
		int64		left = block_set_count(file->todo) + wal_changes_count(file->changes);

		if (file->pace.outpaced_since == 0)
			file->pace.outpaced_since = busy_ms(file);
		if (left > most)
		{
			most = left;
			worst = file;
		}
	}
	if (would_write_too_much(worst, most) ||
		busy_ms(worst) - worst->pace.outpaced_since > HOPELESS_MS)
		cannot_keep_up(worst, most);
}

/* Return how much of all files of the move is copied, by their size in the plan. */
static int64
bytes_copied(const CopyMove *move)
{
	int64		result = 0;

	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		result += Min((int64) file->copied * BLCKSZ, Max(file->item->size_before, 0));
	}
	return result;
}

/* Copy, directly, the blocks from file->copied up to a length of the file. */
static bool
copy_blocks(CopyFile *file, BlockNumber upto)
{
	BlockNumber half = file->copied + (upto - file->copied) / 2;

	progress_copied(bytes_copied(file->move));	/* with an earlier copy's */
	while (file->copied < upto)
	{
		BlockNumber nblocks = Min(FILE_COPY_CHUNK - file->copied % FILE_COPY_CHUNK,
								  upto - file->copied);

		if (!copy_between_chunks(file))
			return false;
		StartTransactionCommand();
		file_copy_range(file->copy, file->copied, nblocks);
		CommitTransactionCommand();
		throttle_written(&file->throttle, (int64) nblocks * BLCKSZ);
		if (file->copied == 0)
			IM_POINT("copy-first");
		if (file->copied < half && file->copied + nblocks >= half)
			IM_POINT("copy-half");

		file->copied += nblocks;
		file->item->outcome.blocks_copied += nblocks;
		progress_blocks(Max(upto, file->copied), file->copied);
		progress_copied(bytes_copied(file->move));
		look_at_round(file);
		copy_eta(file, PHASE_COPYING, Max(upto, file->copied), file->copied);

		copy_resume_record(file, false);
		if (!copy_keep_up(file->move))
			return false;
	}
	return true;
}

/* Copy, directly, the blocks on the list, and empty it. */
static bool
copy_changed_directly(CopyFile *file)
{
	BlockNumber from = 0;
	int64		left = block_set_count(file->todo);

	Assert(!IsTransactionState());
	if (file->verify.begun)
		block_set_add_all(file->verify.unverified, file->todo);

	while (from != InvalidBlockNumber)
	{
		int			ncopied;

		if (!copy_between_chunks(file))
			return false;
		StartTransactionCommand();
		from = file_copy_set(file->copy, file->todo, from, &ncopied);
		CommitTransactionCommand();
		file->item->outcome.blocks_recopied += ncopied;
		throttle_written(&file->throttle, (int64) ncopied * BLCKSZ);
		left -= ncopied;
		look_at_round(file);
		copy_eta(file, PHASE_CATCHING_UP, file->copied, file->copied - left);
		if (!copy_keep_up(file->move))
			return false;
	}

	/* wal_changes.c needs the list until the WAL up to now is read */
	if (!copy_drain(file))
		return false;
	/* step: empty-list */
	block_set_clear(file->todo);
	/* step: move-position */
	file->new_file.changes_from = file->taken_at;
	file->new_file.timeline = GetWALInsertionTimeLine();
	return true;
}

/*
 * Return whether the writers stay too fast for us, after so many rounds that have not left
 * fewer blocks.  See HOPELESS_BLOCKS.
 */
static bool
is_hopeless(const CopyFile *file, int64 left, int in_vain)
{
	bool		too_slow = file->pace.in_vain;	/* because of max_rate */
	bool		too_many = left > HOPELESS_BLOCKS && !copy_fits_under_lock(file, left);
	int64		outpaced_ms = busy_ms(file) - file->pace.outpaced_since;

	if (too_slow && outpaced_ms > HOPELESS_MS / 2)
		return true;
	if (!too_slow && !too_many)
		return false;
	return would_write_too_much(file, left) || (in_vain >= 3 && outpaced_ms > HOPELESS_MS);
}

/*
 * Count a round.  Return whether it is the last: the blocks left are few, or few enough for the
 * lock, or no fewer than before; *least is how few were left so far, and *in_vain counts the
 * rounds since.  Gives up, the first time, if there is no hope.
 */
static bool
count_round(CopyFile *file, int64 *least, int *in_vain, bool first_time)
{
	int64		left = block_set_count(file->todo);
	bool		fits = copy_fits_under_lock(file, left);

	/* a little less each time is no progress, unless it adds up */
	if (left <= FEW_BLOCKS || left < *least - *least / 10)
	{
		*least = left;
		*in_vain = 0;
		if (first_time)
			file->pace.outpaced_since = busy_ms(file);
		/* the next round of a copy that is outpaced may leave more */
		return left <= FEW_BLOCKS || (file->pace.outpaced && fits);
	}
	++*in_vain;
	if (!first_time && file->pace.outpaced && !fits && *in_vain < 3)
		return false;			/* buffers would be slower */
	file->pace.outpaced = true;
	if (!first_time)
		return true;

	if (is_hopeless(file, left, *in_vain))
		cannot_keep_up(file, left);
	if (file->pace.in_vain)
		return false;			/* until there is no hope */
	if (fits)
		return true;
	/* a burst may be over soon */
	return left <= HOPELESS_BLOCKS && *in_vain >= 3;
}

/*
 * Make the new file durable.  DDL that waits behind our locks, and all sessions behind that, wait for
 * the fsync of a segment at most.
 */
static bool
sync_segments(CopyFile *file)
{
	BlockNumber next = 0;

	while (next != InvalidBlockNumber)
	{
		if (!copy_between_chunks(file))
			return false;
		StartTransactionCommand();
		next = file_copy_sync(file->copy, next);
		CommitTransactionCommand();
	}
	return true;
}

/*
 * Copy all blocks, and changed blocks in rounds, until few are left, or they do not get
 * fewer.  The first time, new blocks at the end of the file are copied before a round,
 * if they are many.  Later they are put onto the list, which may name them already, and
 * only changed blocks are copied, which is faster than by buffers; it does not give up.
 */
bool
copy_rounds(CopyFile *file, bool first_time)
{
	MovePhase	phase = progress_phase(first_time ? PHASE_COPYING : PHASE_CATCHING_UP);
	int64		least = PG_INT64_MAX;
	int			in_vain = 0;

	Assert(!IsTransactionState() && file->move->stage < COPY_ASKING);
	if (!first_time)
	{
		StartTransactionCommand();
		file_copy_unsync(file->copy);
		CommitTransactionCommand();
	}
	file->throttle.hurry = false;
	for (int round = 0;; round++)
	{
		BlockNumber nblocks;
		bool		is_last;

		if (first_time)
			nblocks = file_blocks(&file->from, MAIN_FORKNUM);
		else
			nblocks = copy_take_tail(file);
		if (round == 0)
			begin_round(file);
		if (first_time && (round == 0 || nblocks - file->copied > FEW_BLOCKS))
		{
			if (!copy_blocks(file, nblocks))
				return false;
		}
		if (first_time && round == 0)
		{
			IM_POINT("copy-end");
			IM_LOG_SPECIAL(&file->from, false);
			progress_phase(PHASE_CATCHING_UP);
		}

		if (!copy_drain(file))
			return false;
		copy_take_changes(file);
		is_last = count_round(file, &least, &in_vain, first_time);
		if (is_last)
			break;

		IM_POINT("copy-round");
		file->pace.rounds++;
		begin_round(file);
		/* blocks that change faster than we copy do not wait for our rests */
		file->throttle.hurry = in_vain > 0 || (file->pace.outpaced && !first_time);
		if (!copy_changed_directly(file))
			return false;
		file->throttle.hurry = false;
	}
	/* the rest of the move has an end */
	file->pace.in_vain = false;

	if (first_time)
	{
		copy_create_maps(file);
		IM_POINT("copy-before-sync");
	}
	else
		IM_POINT("copy-again");
	if (!sync_segments(file))
		return false;
	if (!first_time)
		progress_phase(phase);
	return true;
}

/* Return whether so many blocks are few enough for an attempt, or will not get fewer. */
static bool
few_are_left(int64 left, int64 least, int round)
{
	return left <= COPY_VERY_FEW || left >= least || round >= MOST_BUFFERED_ROUNDS;
}

/*
 * Copy changed blocks of a file until few are left, verify the blocks copied since the last
 * time, and have the pages in shared buffers that are needed under the lock.  The first
 * round has the blocks that the WAL tells up to a mark.
 */
static bool
catch_up(CopyFile *file, XLogRecPtr upto)
{
	int64		least = PG_INT64_MAX;
	bool		again = false;

	for (int round = 0;; round++)
	{
		int64		left;

		if (!copy_between_chunks(file))
			return false;
		if (round > 0)
			upto = copy_drain_mark(file->move);
		if (!copy_drain_to(file, upto))
			return false;
		copy_take_changes(file);

		(void) copy_take_tail(file);
		left = block_set_count(file->todo);
		/* if outpaced, there may never be fewer; copy some for their speed */
		if (file->pace.outpaced && left > COPY_FAR_TOO_MANY && copy_fits_under_lock(file, left))
		{
			if (!copy_todo_through_buffers(file, 2 * COPY_BUFFERED_BATCH))
				return false;
			if (copy_fits_under_lock(file, block_set_count(file->todo)))
				break;
		}

		/*
		 * Copy directly only once, since as many can change during the fsync;
		 * and not with wal_level = minimal, where a block that was logged
		 * once must be logged each time.
		 */
		if (!again && XLogIsNeeded() && left > TOO_MANY_FOR_BUFFERS)
		{
			again = true;
			if (!copy_rounds(file, false))
				return false;
			/* slower rounds would not leave fewer */
			if (block_set_count(file->todo) > COPY_FAR_TOO_MANY)
				least = block_set_count(file->todo);
			continue;
		}
		if (few_are_left(left, least, round))
			break;
		least = left;
		IM_POINT("copy-buffered-round");
		if (!copy_todo_through_buffers(file, PG_INT64_MAX))
			return false;
	}

	if (file->verify.begun)
	{
		if (!copy_verify_rest(file, Min(file->copied, file_blocks(&file->to, MAIN_FORKNUM))))
			return false;
	}
	StartTransactionCommand();
	if (file->is_table)
		(void) copy_visibility_map(file, NULL);
	if (block_set_count(file->todo) <= COPY_FAR_TOO_MANY)
		file_copy_prepare(file->copy, file->copied, file->todo);
	CommitTransactionCommand();
	return true;
}

/* Before an attempt: give way to others, and copy until few changed blocks are left. */
bool
copy_catch_up(CopyMove *move)
{
	XLogRecPtr	upto = copy_drain_mark(move);

	Assert(!IsTransactionState());
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file->copy == NULL)
			continue;
		if (!catch_up(file, upto))
			return false;
	}
	return true;
}

/* Without an attempt, or in its queue, where we cannot give way to others: read the WAL. */
bool
copy_stay_near(CopyMove *move)
{
	XLogRecPtr	upto;

	if (move->stage < COPY_ASKING)
	{
		if (!copy_between_chunks(&move->files[0]))
			return false;
	}
	upto = copy_drain_mark(move);
	for (int i = 0; i < move->nfiles; i++)
	{
		if (!copy_drain_to(&move->files[i], upto))
			return false;
	}
	return true;
}

/*
 * Return the microseconds to the next catch-up of a copy that has waited since then.
 * A block that keeps changing is logged each time, for hours maybe.
 */
int64
copy_catch_up_interval(int64 since)
{
	int64		part = (clock_us() - since) / CATCH_UP_PART;

	return Min(Max(part, USECS_PER_SEC), USECS_PER_MINUTE);
}

/* Wait until index_mover.swap_after, and keep up with the changes. */
bool
copy_wait_for_swap_time(CopyMove *move)
{
	MovePhase	phase = progress_phase(PHASE_WAIT_SWAP_TIME);
	int64		since = clock_us();
	int64		caught_up_at = since;

	while (move->settings->swap_after > GetCurrentTimestamp())
	{
		copy_publish_eta(move, 0);
		pacing_tell_of_drop("waits for the time of its swap");
		throttle_rest(SHORT_REST_MS);
		/* each file has a throttle of its own: take that of the first */
		if (!copy_between_chunks(&move->files[0]))
			return false;

		if (copy_changes_left(move) > 0 &&
			clock_us() - caught_up_at > copy_catch_up_interval(since))
		{
			if (!copy_catch_up(move))
				return false;
			caught_up_at = clock_us();
		}
	}
	move->so_far->rested_us += clock_us() - since;
	progress_phase(phase);
	return true;
}
