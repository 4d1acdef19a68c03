/*-------------------------------------------------------------------------
 *
 * copy_maps.c
 *	  Method copy: the free space map, and the visibility map of a table.
 *
 * Neither is followed: their pages are compared through shared buffers, and copied
 * where they differ.  The free space map once, without a lock: it may change
 * meanwhile, since its users check the page that it names, which is in the new file,
 * at least as long as the old is now.
 *
 * The visibility map must be equal (see src/README, "A table"): so before the
 * exclusive lock, which leaves the pages in shared buffers, and again under it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/storage_xlog.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"

#include "copy/copy_private.h"
#include "file_system.h"

/* To compare so many pages in buffers takes a fifth of it: max_lock_time bounds only the excess */
#define USUAL_US(npages)	(1000 + (npages) * IM_LIMIT("slow-map", 5))

/* Create the maps of the new file, if it has none yet, before its directory is made durable. */
void
copy_create_maps(CopyFile *file)
{
	StartTransactionCommand();
	for (ForkNumber fork = FSM_FORKNUM; fork <= VISIBILITYMAP_FORKNUM; fork++)
	{
		if (fork == FSM_FORKNUM ? file_blocks(&file->from, fork) == 0 : !file->is_table)
			continue;
		smgrcreate(smgropen(file->to, INVALID_PROC_NUMBER), fork, true);
		log_smgrcreate(&file->to, fork);
	}
	CommitTransactionCommand();
}

/* Read a block, looking first into the buffer that has had it. */
static Buffer
read_recent(const RelFileLocator *locator, ForkNumber fork, BlockNumber block,
			ReadBufferMode mode, Buffer *recent)
{
	bool		found = false;

	if (BufferIsValid(*recent))
		found = ReadRecentBuffer(*locator, fork, block, *recent);
	if (!found)
		*recent = ReadBufferWithoutRelcache(*locator, fork, block, mode, NULL, true);
	return *recent;
}

/*
 * Make pages of a new map equal to the old pages, where they are: under the exclusive
 * lock, the buffers are the same as in the call before.  A share lock does not wait for a
 * checkpointer that writes a page.  Unless most_us is NULL, time beyond the usual is
 * subtracted from *most_us: return false when that is used up.
 */
static bool
copy_pages(CopyFile *file, ForkNumber fork, BlockNumber block, BlockNumber end,
		   Buffer *buffers, int64 *most_us)
{
	Size		compared_from = offsetof(PageHeaderData, pd_flags); /* behind LSN and
																	 * checksum */
	int64		usual_us = USUAL_US((int64) end - block);
	instr_time	start;

	Assert(IsTransactionState());
	INSTR_TIME_SET_CURRENT(start);
	file_copy_extend(file->copy, fork, end);
	IM_POINT("swap-map");
	for (; block < end && (most_us == NULL || elapsed_us(start) - usual_us <= *most_us); block++)
	{
		/* as core reads it: a damaged page of a map counts as empty */
		Buffer		old = read_recent(&file->from, fork, block, RBM_ZERO_ON_ERROR, buffers++);
		Buffer		new = read_recent(&file->to, fork, block, RBM_NORMAL, buffers++);

		LockBuffer(old, BUFFER_LOCK_SHARE);
		LockBuffer(new, BUFFER_LOCK_SHARE);
		if (memcmp((char *) BufferGetPage(old) + compared_from,
				   (char *) BufferGetPage(new) + compared_from, BLCKSZ - compared_from) != 0)
		{
			LockBuffer(new, BUFFER_LOCK_UNLOCK);
			LockBuffer(new, BUFFER_LOCK_EXCLUSIVE);
			file_copy_replace_page(file->copy, new, BufferGetPage(old), false);
		}
		UnlockReleaseBuffer(new);
		UnlockReleaseBuffer(old);
	}
	if (most_us != NULL)
		*most_us -= Max(elapsed_us(start) - usual_us, 0);
	return block == end;
}

/* Make the visibility map of a table equal to the old; as copy_pages(). */
bool
copy_visibility_map(CopyFile *file, int64 *most_us)
{
	BlockNumber nblocks = file_blocks(&file->from, VISIBILITYMAP_FORKNUM);

	Assert(file_blocks(&file->to, VISIBILITYMAP_FORKNUM) <= nblocks);
	if (IM_MUTATION("map-once") && file->map_blocks > 0)
		return true;
	if (file->map_blocks < nblocks)
	{
		file->map_buffers = MemoryContextAllocZero(file->move->cxt,
												   nblocks * 2 * sizeof(Buffer));
		file->map_blocks = nblocks;
	}
	return copy_pages(file, VISIBILITYMAP_FORKNUM, 0, nblocks, file->map_buffers, most_us);
}

/* Copy the free space map, if there was any when the maps were created. */
bool
copy_free_space_map(CopyFile *file)
{
	BlockNumber nblocks = smgrexists(smgropen(file->to, INVALID_PROC_NUMBER), FSM_FORKNUM) ?
		file_blocks(&file->from, FSM_FORKNUM) : 0;

	for (BlockNumber block = 0, end; block < nblocks; block = end)
	{
		Buffer		buffers[2 * FILE_COPY_CHUNK] = {InvalidBuffer};

		end = Min(block + FILE_COPY_CHUNK, nblocks);
		if (!copy_between_chunks(file))
			return false;
		StartTransactionCommand();
		(void) copy_pages(file, FSM_FORKNUM, block, end, buffers, NULL);
		CommitTransactionCommand();
		throttle_written(&file->throttle, (int64) (end - block) * BLCKSZ);
		if (!copy_keep_up(file->move))
			return false;
	}
	return true;
}
