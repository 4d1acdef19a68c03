/*-------------------------------------------------------------------------
 *
 * copy_changes.c
 *	  Method copy: reading the changes of others to a file that is copied.
 *
 * copy_drain() reads the WAL to its end now, copy_keep_up() only as much as must not wait
 * longer.  copy_take_changes() puts the blocks that were found onto the list of a round.
 *
 * proof/copy.pml and proof/resume.pml are models of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>

#include "access/xact.h"

#include "copy/copy_private.h"
#include "file_system.h"

/* Return why changes that were read do not tell all, NULL if they do. */
const char *
copy_changes_lost(ChangesResult result)
{
	switch (result)
	{
		case CHANGES_READ:
			break;
		case CHANGES_FILE_REPLACED:
			return "its file was truncated, or changed in a way that the WAL does not tell block by block";
		case CHANGES_WAL_GONE:
			return "WAL that tells its changes was removed before it was read";
	}
	return NULL;
}

/* Read the WAL up to a mark; while others may be waiting, leave all work that can be done later. */
bool
copy_drain_to(CopyFile *file, XLogRecPtr upto)
{
	bool		asking = (file->move->stage >= COPY_ASKING);
	const char *lost;

	Assert(file->move->stage < COPY_SWAPPED && asking == IsTransactionState());
	lost = copy_changes_lost(wal_changes_read(file->changes, upto, file->copied, asking));
	if (lost != NULL)
		return copy_start_again(file->move, lost);
	progress_set(blocks_changed, copy_changes_left(file->move));
	copy_change_rate(file->move);
	return true;
}

/* Return a mark for now.  To make one flushes a record: so one is for all files of a move. */
XLogRecPtr
copy_drain_mark(const CopyMove *move)
{
	/* not while others may be waiting; wal_changes.c keeps the segments open */
	if (move->stage < COPY_ASKING)
		wal_ahead();
	return wal_changes_mark();
}

/* As copy_drain_to(), up to now. */
bool
copy_drain(CopyFile *file)
{
	return copy_drain_to(file, copy_drain_mark(file->move));
}

/*
 * Read the WAL if it could soon be recycled unread.  If paced, and not in a
 * hurry, yield the processor then, as at each piece of a copy: a process that
 * was woken on it, its flush being done, else waits for the end of our time slice,
 * even where another processor is idle.
 */
bool
copy_keep_up(CopyMove *move)
{
	bool		paced = move->settings->pacing;

	for (int i = 0; i < move->nfiles; i++)
	{
		if (move->files[i].throttle.hurry)
			paced = false;
	}
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file->changes == NULL || !wal_changes_read_is_due(file->changes))
			continue;
		if (!copy_drain(file))
			return false;
		if (paced)
			(void) sched_yield();
	}
	return true;
}

/* Put the blocks by which the file has grown onto the list, and return its length. */
BlockNumber
copy_take_tail(CopyFile *file)
{
	BlockNumber nblocks = file_blocks(&file->from, MAIN_FORKNUM);

	if (IM_MUTATION("tail"))
		return nblocks;
	/* step: take-tail */
	for (; file->copied < nblocks; file->copied++)
		block_set_add(file->todo, file->copied);
	return nblocks;
}

/* Add the changed blocks that the WAL tells to the list of blocks to copy. */
void
copy_take_changes(CopyFile *file)
{
	/* step: take-changes */
	BlockSet   *set = wal_changes_take(file->changes);

	/* step: take-position */
	file->taken_at = wal_changes_position(file->changes);
	for (int64 n = IM_LIMIT("catch-up", 0); n != 0 && block_set_count(set) > 0; n--)
		block_set_remove(set, block_set_next(set, n > 0 ? 1 : 0));
	file->changed_blocks += block_set_count(set);
	block_set_add_all(file->todo, set);
	block_set_free(set);
}
