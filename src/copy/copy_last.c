/*-------------------------------------------------------------------------
 *
 * copy_last.c
 *	  Method copy: the last blocks, before the exclusive lock and under it.
 *
 * They are copied through shared buffers, and logged, so no fsync is needed
 * under the lock.  copy_catch_up() leaves few blocks, and has their pages in shared
 * buffers, old and new, so that under the lock nothing is read from disk.
 *
 * copy_last_blocks() determines how long the lock is held.  It gives up when the
 * rest would take longer than the caller wants: by the number of blocks; then by the
 * time that the blocks so far have taken.  Not for time lost in waiting for a flush
 * or for a processor: the next attempt would not be faster, and would make others
 * wait again.
 *
 * Tricky: under the lock the WAL is read first, up to a mark made after all
 * files were locked, then the file's length is taken, and block 0 is copied in
 * any case.  Only in this order does the new file get all that the WAL does not
 * tell.  Blocks that an attempt in vain has not copied stay on the list.
 *
 * proof/copy.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"

#include "copy/copy_private.h"
#include "file_system.h"

/* At most so many changed blocks are left to an attempt at the lock */
#define VERY_FEW_BLOCKS		16
/* Bounds of CopyPace.block_us: a batch that had to wait says nothing of the speed */
#define LEAST_BLOCK_US		(COPY_BLOCK_US / 5)
#define MOST_BLOCK_US		(5 * COPY_BLOCK_US)

/* Blocks in one transaction */
#define BUFFERED_BATCH		64

/* Between two catch-ups of a copy that waits: this part of its wait so far */
#define CATCH_UP_PART		IM_LIMIT("wait-part", 20)

/* With more changed blocks left, copy directly once more: buffers may be slower than writers */
#define TOO_MANY_FOR_BUFFERS	IM_LIMIT("again", COPY_FAR_TOO_MANY)

/* Copy a block of the list through shared buffers. */
static void
copy_through_buffer(CopyFile *file, BlockNumber block)
{
	file_copy_through_buffer(file->copy, block);
	if (file->verify.begun)
		block_set_add(file->verify.unverified, block);
	block_set_remove(file->todo, block);
	file->item->blocks_recopied++;
}

/* Update pace.block_us by blocks copied through shared buffers since this time. */
static void
measure_blocks(CopyFile *file, instr_time start, int64 nblocks)
{
	double		us;

	if (nblocks == 0)
		return;
	us = (double) elapsed_us(start) / nblocks;
	us = Min(Max(us, LEAST_BLOCK_US), MOST_BLOCK_US);
	file->pace.block_us += (us - file->pace.block_us) *
		Min(nblocks / (2.0 * BUFFERED_BATCH), 1);
}

/* Copy so many blocks of the list, or all, through shared buffers. */
void
copy_todo_through_buffers(CopyFile *file, int64 most)
{
	BlockNumber block = 0;

	Assert(!IsTransactionState());
	while (most > 0 && block_set_count(file->todo) > 0)
	{
		int64		nblocks = Min(block_set_count(file->todo), BUFFERED_BATCH);
		instr_time	start;

		copy_between_chunks(file);
		StartTransactionCommand();
		INSTR_TIME_SET_CURRENT(start);
		for (int i = 0; i < nblocks; i++)
		{
			block = block_set_next(file->todo, block);
			Assert(block != InvalidBlockNumber);	/* so many are left */
			copy_through_buffer(file, block);
		}
		measure_blocks(file, start, nblocks);
		if (file->move->settings->pacing)
			file_copy_flush_wal(file->copy);
		CommitTransactionCommand();
		most -= nblocks;
		throttle_written(&file->throttle, nblocks * BLCKSZ);
		copy_keep_up(file->move);
	}
}

/*
 * Return the microseconds to the next catch-up of a copy that has waited since then.
 * A block that keeps changing is logged each time, for hours maybe.
 */
int64
copy_catch_up_interval(TimestampTz since)
{
	TimestampTz part = (GetCurrentTimestamp() - since) / CATCH_UP_PART;

	return Min(Max(part, USECS_PER_SEC), USECS_PER_MINUTE);
}

/* Wait until index_mover.swap_after, and keep up with the changes. */
void
copy_wait_for_swap_time(CopyMove *move)
{
	MovePhase	phase = progress_phase(PHASE_WAIT_SWAP_TIME);
	TimestampTz since = GetCurrentTimestamp();
	TimestampTz caught_up_at = since;

	while (move->settings->swap_after > GetCurrentTimestamp() &&
		   !job_swap_now_requested())
	{
		copy_publish_eta(move, 0);
		pacing_tell_of_drop("waits for the time of its swap");
		throttle_rest(SHORT_REST_MS);
		/* each file has a throttle of its own: take that of the first */
		copy_between_chunks(&move->files[0]);

		if (copy_changes_left(move) > 0 &&
			GetCurrentTimestamp() - caught_up_at > copy_catch_up_interval(since))
		{
			copy_catch_up(move);
			caught_up_at = GetCurrentTimestamp();
		}
	}
	move->so_far->rested_us += GetCurrentTimestamp() - since;
	progress_phase(phase);
}

static void
catch_up(CopyFile *file)
{
	int64		least = PG_INT64_MAX;
	bool		again = false;

	for (int round = 0;; round++)
	{
		int64		left;

		copy_between_chunks(file);
		copy_drain(file);
		copy_take_changes(file);

		(void) copy_take_tail(file);
		left = block_set_count(file->todo);
		/* if outpaced, there may never be fewer; copy some for their speed */
		if (file->pace.outpaced && left > COPY_FAR_TOO_MANY && copy_fits_under_lock(file, left))
		{
			copy_todo_through_buffers(file, 2 * BUFFERED_BATCH);
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
			copy_rounds(file, false);
			/* slower rounds would not leave fewer */
			if (block_set_count(file->todo) > COPY_FAR_TOO_MANY)
				least = block_set_count(file->todo);
			continue;
		}
		if (left <= VERY_FEW_BLOCKS || left >= least || round >= 10)
			break;
		least = left;
		IM_POINT("copy-buffered-round");
		copy_todo_through_buffers(file, PG_INT64_MAX);
	}

	if (file->verify.begun)
		copy_verify_rest(file, Min(file->copied, file_blocks(&file->to, MAIN_FORKNUM)));
	StartTransactionCommand();
	if (file->is_table)
		(void) copy_visibility_map(file, NULL);
	if (block_set_count(file->todo) <= COPY_FAR_TOO_MANY)
		file_copy_prepare(file->copy, file->copied, file->todo);
	CommitTransactionCommand();
}

/* Before an attempt: give way to others, and copy until few changed blocks are left. */
void
copy_catch_up(CopyMove *move)
{
	Assert(!IsTransactionState());
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file->copy != NULL)
			catch_up(file);
	}
}

/* Without an attempt, or in its queue, where we cannot give way to others: read the WAL. */
void
copy_stay_near(CopyMove *move)
{
	if (move->stage < COPY_ASKING)
		copy_between_chunks(&move->files[0]);
	for (int i = 0; i < move->nfiles; i++)
		copy_drain(&move->files[i]);
}

/*
 * Under the lock: make the new file equal to the old one, if that is likely to
 * take no longer than *most_us microseconds, from which its time is subtracted.
 * upto is a mark of the WAL made since all files were locked.  SWAPPED: it is equal.
 */
AttemptOutcome
copy_last_blocks(CopyFile *file, XLogRecPtr upto, int64 *most_us)
{
	BlockNumber nblocks;
	int64		ncopied = 0;
	instr_time	start;

	Assert(file->move->stage == COPY_LOCKED &&
		   CheckRelationOidLockedByMe(file->relid, AccessExclusiveLock, false));
	copy_drain_to(file, upto);
	copy_take_changes(file);

	nblocks = copy_take_tail(file);
	if (nblocks > 0)
		/* step: block-0 */
		block_set_add(file->todo, 0);
	if (IM_MUTATION("block-0"))
		block_set_remove(file->todo, 0);
	if (copy_blocks_us(file, block_set_count(file->todo)) > *most_us)
		return TOO_MUCH_LEFT;

	INSTR_TIME_SET_CURRENT(start);
	foreach_block(block, file->todo)
	{
		int64		us;

		IM_POINT("swap-block");
		copy_through_buffer(file, block);
		ncopied++;
		us = elapsed_us(start);
		if (us > *most_us && us / ncopied * block_set_count(file->todo) > *most_us / 2)
			break;
	}
	measure_blocks(file, start, ncopied);
	if (block_set_count(file->todo) > 0)
		return TOO_MUCH_LEFT;
	/* by the speed, not the time: it may have waited for a flush */
	*most_us -= copy_blocks_us(file, ncopied);

	IM_FILL_TAIL(&file->to, nblocks);
	if (IM_MUTATION("verify-all"))
		file->verify.compared = 0;
	if (file->is_table && !copy_visibility_map(file, most_us))
		return TOO_MUCH_LEFT;

	/* both lengths from the files: no Assert, since a tail may be lost */
	nblocks = file_blocks(&file->from, MAIN_FORKNUM);
	if (file_blocks(&file->to, MAIN_FORKNUM) != nblocks)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the copy of %s \"%s\" has %u blocks instead of %u",
						relation_noun(file->item->relkind),
						NameStr(file->item->relname),
						file_blocks(&file->to, MAIN_FORKNUM), nblocks),
				 errdetail("Nothing was moved.")));
	if (file->verify.begun || IM_MUTATION("verify-all"))
		copy_verify_rest(file, nblocks);
	return SWAPPED;
}
