/*-------------------------------------------------------------------------
 *
 * gin_pending.c
 *	  How long the pending list of a GIN index is.
 *
 * The metapage has the counts, so one page is read whatever the size.
 * Assumption: every search reads the whole list, page by page, before it
 * looks at the tree (ginGetBitmap calls scanPendingInsert first), so the pages
 * of the list are what a search pays on top of its own.
 *
 * The metapage is read under a share lock and copied; nobody waits for us
 * longer than that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"

#include "report/gin_pending.h"

void
gin_pending_read(Relation index, GinPending *pending)
{
	Buffer		buffer;
	Page		page;
	GinMetaPageData meta;
	bool		valid;
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);

	if (nblocks == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" has no metapage", RelationGetRelationName(index))));

	buffer = ReadBuffer(index, GIN_METAPAGE_BLKNO);
	LockBuffer(buffer, GIN_SHARE);
	page = BufferGetPage(buffer);
	memcpy(&meta, GinPageGetMeta(page), sizeof(meta));
	valid = !PageIsNew(page) &&
		((PageHeader) page)->pd_special == BLCKSZ - MAXALIGN(sizeof(GinPageOpaqueData)) &&
		(GinPageGetOpaque(page)->flags & GIN_META) != 0;
	UnlockReleaseBuffer(buffer);

	if (!valid || meta.ginVersion < 0 || meta.ginVersion > GIN_CURRENT_VERSION ||
		meta.nPendingPages >= nblocks || meta.nPendingHeapTuples < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" contains corrupted page at block %u",
						RelationGetRelationName(index), GIN_METAPAGE_BLKNO)));

	pending->pages = meta.nPendingPages;
	pending->tuples = meta.nPendingHeapTuples;
	pending->limit_bytes = GinGetPendingListCleanupSize(index) * INT64CONST(1024);
	pending->fastupdate = GinGetUseFastUpdate(index);
}
