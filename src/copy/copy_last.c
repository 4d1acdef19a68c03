/*-------------------------------------------------------------------------
 *
 * copy_last.c
 *	  Method copy: the last blocks, before the exclusive lock and under it, and
 *	  how long they take.
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

#include "copy/copy_private.h"
#include "file_system.h"

/* Bounds of CopyPace.block_us: a batch that had to wait says nothing of the speed */
#define LEAST_BLOCK_US		(COPY_BLOCK_US / 5)
#define MOST_BLOCK_US		(5 * COPY_BLOCK_US)

/* Copy a block of the list through shared buffers. */
static void
copy_through_buffer(CopyFile *file, BlockNumber block)
{
	file_copy_through_buffer(file->copy, block);
	if (file->verify.begun)
		block_set_add(file->verify.unverified, block);
	block_set_remove(file->todo, block);
	file->item->outcome.blocks_recopied++;
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
		Min(nblocks / (2.0 * COPY_BUFFERED_BATCH), 1);
}

/* Return how long copying so many blocks takes, in microseconds. */
int64
copy_blocks_us(const CopyFile *file, int64 nblocks)
{
	return nblocks * file->pace.block_us;
}

/* Return whether so many blocks may be copied under the lock. */
bool
copy_fits_under_lock(const CopyFile *file, int64 nblocks)
{
	int64		most_us = file->move->settings->max_lock_time * INT64CONST(1000);

	return copy_blocks_us(file, nblocks) <= most_us;
}

/* Return how long copying the rest of all files would take, in microseconds. */
int64
copy_last_us(const CopyMove *move)
{
	int64		result = 0;

	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];
		int64		nblocks;

		if (file->changes == NULL)
			continue;			/* its copy has not begun: nothing is known */
		nblocks = block_set_count(file->todo) + wal_changes_count(file->changes);
		result += wal_changes_unread_us(file->changes) + copy_blocks_us(file, nblocks);
	}
	return result;
}

/* Before the lock: copy so many blocks of the list, or all, through shared buffers. */
bool
copy_todo_through_buffers(CopyFile *file, int64 most)
{
	BlockNumber block = 0;

	Assert(!IsTransactionState());
	while (most > 0 && block_set_count(file->todo) > 0)
	{
		int64		nblocks = Min(block_set_count(file->todo), COPY_BUFFERED_BATCH);
		instr_time	start;

		if (!copy_between_chunks(file))
			return false;
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
		if (!copy_keep_up(file->move))
			return false;
	}
	return true;
}

/*
 * Under the lock: make the new file equal to the old, if that is likely to
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
	if (!copy_drain_to(file, upto))
		return CANNOT_GO_ON;
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
	if (file->is_table)
	{
		if (!copy_visibility_map(file, most_us))
			return TOO_MUCH_LEFT;
	}

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
	{
		if (!copy_verify_rest(file, nblocks))
			return CANNOT_GO_ON;
	}
	return SWAPPED;
}
