/*-------------------------------------------------------------------------
 *
 * cached_blocks.c
 *	  Which blocks of a relation file are in shared buffers, and loading them.
 *
 * Reads the buffers' tags as autoprewarm and pg_buffercache do: one header
 * lock at a time, so the result is not exact, which does not matter for a
 * cache.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/buf_internals.h"

#include "copy/copy_private.h"
#include "file_system.h"

/* For an estimate, read one buffer's tag of so many */
#define SAMPLE_EVERY	16

/* Return the set of the main fork's blocks that are in shared buffers. */
BlockSet *
cached_blocks(const RelFileLocator *locator)
{
	BlockSet   *set = block_set_create();

	for (int i = 0; i < NBuffers; i++)
	{
		BufferDesc *buffer = GetBufferDescriptor(i);
		BufferState state;

		/* unlocked precheck: most buffers belong to other relations */
		if (!BufTagMatchesRelFileLocator(&buffer->tag, locator))
			continue;
		state = LockBufHdr(buffer);
		if ((state & BM_TAG_VALID) && (state & BM_VALID) &&
			BufTagMatchesRelFileLocator(&buffer->tag, locator) &&
			buffer->tag.forkNum == MAIN_FORKNUM)
		{
			BlockNumber block = buffer->tag.blockNum;

			unlock_buffer_header(buffer, state);
			block_set_add(set, block);
		}
		else
			unlock_buffer_header(buffer, state);
	}
	return set;
}

/* Estimate the number of these blocks from a sample, without header locks. */
double
cached_blocks_estimate(const RelFileLocator *locator)
{
	int			found = 0;

	for (int i = 0; i < NBuffers; i += SAMPLE_EVERY)
		if (BufTagMatchesRelFileLocator(&GetBufferDescriptor(i)->tag, locator))
			found++;
	return (double) found * SAMPLE_EVERY;
}

/*
 * Read the next blocks of a set, up to "most" of them from block "from" on, in
 * file order: into shared buffers or, if "page" is given, into that one after
 * the other, so that only the operating system's cache has them then.  Returns
 * where to continue, or InvalidBlockNumber after the last one.  The caller is in
 * a transaction, and keeps the file from being truncated or dropped.
 *
 * They are asked for ahead of time, "distance" blocks at once: a copy past the
 * operating system's cache leaves none of them there.
 */
BlockNumber
cached_blocks_load(const RelFileLocator *locator, const BlockSet *set,
				   BlockNumber from, int most, int distance, char *page)
{
	SMgrRelation smgr = smgropen(*locator, INVALID_PROC_NUMBER);
	BlockNumber nblocks = file_blocks(locator, MAIN_FORKNUM);
	BlockNumber ahead = from;
	int			asked = 0;

	for (int count = 0; count < most; count++, from++)
	{
		from = block_set_next(set, from);
		if (from == InvalidBlockNumber || from >= nblocks)
			return InvalidBlockNumber;
		for (; asked < Min(count + distance, most); asked++, ahead++)
		{
			ahead = block_set_next(set, ahead);
			if (ahead == InvalidBlockNumber || ahead >= nblocks)
				break;
			(void) PrefetchSharedBuffer(smgr, MAIN_FORKNUM, ahead);
		}
		if (page != NULL)
			smgrread(smgr, MAIN_FORKNUM, from, page);
		else
			ReleaseBuffer(ReadBufferWithoutRelcache(*locator, MAIN_FORKNUM, from,
													RBM_NORMAL, NULL, true));
	}
	return from;
}
