/*-------------------------------------------------------------------------
 *
 * copy_prewarm.c
 *	  Method copy: loading the blocks that were cached into the new file's
 *	  buffers (index_mover.prewarm).
 *
 * The old file's buffers tell which blocks are in use.  After the swap these are
 * loaded from the new file.  A copy past the operating system's cache has left none
 * there, so before the swap they are read into that: else clients and we would read
 * them from the disk at the same time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "utils/memutils.h"
#include "utils/spccache.h"

#include "cleanup/cleanup.h"
#include "copy/copy_private.h"
#include "file_system.h"

/* Return the set of the old file's blocks that are in shared buffers. */
static BlockSet *
cached_blocks(CopyFile *file)
{
	BlockSet   *set = block_set_create(file->move->cxt);
	BlockNumber nblocks = file_blocks(&file->from, MAIN_FORKNUM);

	/*
	 * as core's DropRelationBuffers(): a small file is not worth a look at
	 * all buffers
	 */
	if (nblocks < (uint32) NBuffers / 32)
	{
		for (BlockNumber block = 0; block < nblocks; block++)
		{
			if (file_has_buffer(&file->from, block))
				block_set_add(set, block);
		}
		return set;
	}
	for (int i = 0; i < NBuffers; i++)
	{
		/* read without a lock: a wrong block would only be loaded in vain */
		BufferTag	tag = GetBufferDescriptor(i)->tag;

		if (BufTagMatchesRelFileLocator(&tag, &file->from) &&
			tag.forkNum == MAIN_FORKNUM && tag.blockNum != InvalidBlockNumber)
			block_set_add(set, tag.blockNum);
	}
	return set;
}

/* Return the number of these blocks now. */
int64
copy_count_cached(CopyFile *file)
{
	BlockSet   *cached = cached_blocks(file);
	int64		result = block_set_count(cached);

	block_set_free(cached);
	return result;
}

/*
 * Read a megabyte of a set's blocks, from block "from" on: into shared buffers or, if
 * "page" is given, into that, for the operating system's cache.  Returns where to
 * continue, or InvalidBlockNumber.
 */
static BlockNumber
load_cached(CopyFile *file, const BlockSet *cached, BlockNumber from, char *page)
{
	SMgrRelation smgr;
	BlockNumber nblocks;
	BlockNumber ahead = from;
	int			asked = 0;
	int			distance;

	StartTransactionCommand();
	smgr = smgropen(file->to, INVALID_PROC_NUMBER);
	nblocks = file_blocks(&file->to, MAIN_FORKNUM);
	/* as core's commands that read scattered blocks, or all of a step */
	distance = file->move->settings->pacing ?
		get_tablespace_maintenance_io_concurrency(file->to.spcOid) : FILE_COPY_CHUNK;
	for (int count = 0; count < FILE_COPY_CHUNK; count++, from++)
	{
		from = block_set_next(cached, from);
		if (from == InvalidBlockNumber || from >= nblocks)
		{
			from = InvalidBlockNumber;
			break;
		}
		for (; asked < Min(count + distance, FILE_COPY_CHUNK); asked++, ahead++)
		{
			ahead = block_set_next(cached, ahead);
			if (ahead == InvalidBlockNumber || ahead >= nblocks)
				break;
			(void) PrefetchSharedBuffer(smgr, MAIN_FORKNUM, ahead);
		}
		if (page != NULL)
			smgrread(smgr, MAIN_FORKNUM, from, page);
		else
			ReleaseBuffer(ReadBufferWithoutRelcache(file->to, MAIN_FORKNUM, from,
													RBM_NORMAL, NULL, true));
	}
	CommitTransactionCommand();
	/* nothing else stops us where the cache has the blocks */
	if (file->move->settings->pacing)
		(void) sched_yield();
	return from;
}

/* Before the swap, read the blocks into the operating system's cache. */
bool
copy_prepare_prewarm(CopyFile *file)
{
	MovePhase	phase = progress_phase(PHASE_PREWARMING);
	BlockSet   *cached = cached_blocks(file);
	PGIOAlignedBlock page;
	BlockNumber block = 0;

	while (block != InvalidBlockNumber)
	{
		if (!copy_between_chunks(file))
			return false;
		block = load_cached(file, cached, block, page.data);
		IM_POINT("prewarm-read");
		if (!copy_keep_up(file->move))
			return false;
	}
	block_set_free(cached);
	progress_phase(phase);
	return true;
}

/* After the swap, load the blocks, unless another session waits for our locks. */
void
copy_prewarm(CopyFile *file)
{
	BlockSet   *cached = cached_blocks(file);
	BlockNumber block = 0;

	copy_eta(file, PHASE_PREWARMING, file->copied,
			 file->copied - Min(block_set_count(cached), file->copied));

	StartTransactionCommand();
	/* make the old buffers available for the new blocks */
	leftover_file_drop_buffers(&file->from);
	CommitTransactionCommand();

	while (block != InvalidBlockNumber)
	{
		copy_rest_after_swap(file->move);
		if (copy_is_in_the_way(file->move))
			break;
		block = load_cached(file, cached, block, NULL);
		IM_POINT("prewarm-step");
	}
	block_set_free(cached);
}
