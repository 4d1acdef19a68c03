/*-------------------------------------------------------------------------
 *
 * visibility_map.c
 *	  Method copy: the visibility map of a table.
 *
 * It is not followed (see src/README, "A table"): all of its pages are compared, and
 * copied where they differ, before the exclusive lock, which leaves them in shared
 * buffers, and again under it.  That takes about two microseconds a page, which stands
 * for 255 MB of the table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"

#include "copy/copy_private.h"
#include "file_system.h"

/* Read a block, looking first into the buffer that has had it. */
static Buffer
read_recent(const RelFileLocator *locator, BlockNumber block, ReadBufferMode mode,
			Buffer *recent)
{
	if (!BufferIsValid(*recent) ||
		!ReadRecentBuffer(*locator, VISIBILITYMAP_FORKNUM, block, *recent))
		*recent = ReadBufferWithoutRelcache(*locator, VISIBILITYMAP_FORKNUM, block,
											mode, NULL, true);
	return *recent;
}

/*
 * Make the new map equal to the old one.  The last call is under the exclusive
 * lock, so the pages are compared where they are, and found where the call before
 * has found them.  A share lock does not wait for a checkpointer that writes one.
 */
void
visibility_map_copy(CopyState *cs)
{
	SMgrRelation to = smgropen(cs->to, INVALID_PROC_NUMBER);
	BlockNumber nblocks = file_blocks(&cs->from, VISIBILITYMAP_FORKNUM);
	BlockNumber extended = smgrnblocks(to, VISIBILITYMAP_FORKNUM);
	Size		compared_from = offsetof(PageHeaderData, pd_flags); /* behind LSN and
																	 * checksum */

	Assert(IsTransactionState() && extended <= nblocks);
	if (IM_MUTATION("map-once") && cs->map_blocks > 0)
		return;
	if (cs->map_blocks < nblocks)
	{
		cs->map_buffers = MemoryContextAllocZero(cs->cxt, nblocks * 2 * sizeof(Buffer));
		cs->map_blocks = nblocks;
	}
	for (BlockNumber block = 0; block < nblocks; block++)
	{
		Buffer		old;
		Buffer		new;

		for (; extended <= block; extended++)
		{
			PGIOAlignedBlock zeros;

			memset(zeros.data, 0, BLCKSZ);
			smgrextend(to, VISIBILITYMAP_FORKNUM, extended, zeros.data, false);
		}
		/* as core reads it: a damaged page of the map is an empty one */
		old = read_recent(&cs->from, block, RBM_ZERO_ON_ERROR, &cs->map_buffers[block * 2]);
		new = read_recent(&cs->to, block, RBM_NORMAL, &cs->map_buffers[block * 2 + 1]);
		LockBuffer(old, BUFFER_LOCK_SHARE);
		LockBuffer(new, BUFFER_LOCK_SHARE);
		if (memcmp((char *) BufferGetPage(old) + compared_from,
				   (char *) BufferGetPage(new) + compared_from, BLCKSZ - compared_from) != 0)
		{
			LockBuffer(new, BUFFER_LOCK_UNLOCK);
			LockBuffer(new, BUFFER_LOCK_EXCLUSIVE);
			file_copy_replace_page(cs->copy, new, BufferGetPage(old), false);
		}
		UnlockReleaseBuffer(new);
		UnlockReleaseBuffer(old);
	}
}
