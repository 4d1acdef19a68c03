/*-------------------------------------------------------------------------
 *
 * page_links.c
 *	  To which blocks a page of an index refers.
 *
 * A page of zeros proves no damage: a file is extended first, and a crash before the
 * record of the new page leaves zeros, which nothing refers to; a hash index makes
 * the pages of its buckets ahead.  But a page that an index needs is reached from its
 * first page or its root.  So if the true contents of some pages are lost, the first
 * lost one on the way to any of them is referred to by a page that is not.
 *
 * Assumption: a page gets a reference to a block in the record that initializes the
 * block, or later.  So it is for the references that are reported here: downlinks, the right
 * siblings that stand in for a downlink while a split is incomplete, chains of hash buckets,
 * and the references of the first page.  Not for GIN's pending list: makeSublist() of
 * ginfast.c logs a page before the page behind it, and only in the end has the list
 * lead there.  So that list is followed from its head: page_next_in_list().
 *
 * Left out are pages that are deleted, whose references are outdated, and references that say
 * nothing of pages that are in use: redirections of SP-GiST, GiST's other rightlinks.
 *
 * Nothing here trusts a page more than PageIsVerified() and page_is_of() do.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/brin_page.h"
#include "access/gin_private.h"
#include "access/gist_private.h"
#include "access/hash.h"
#include "access/itup.h"
#include "access/nbtree.h"
#include "access/spgist_private.h"
#include "catalog/pg_am_d.h"
#include "miscadmin.h"

#include "report/report.h"

/* The arguments of page_links() */
typedef struct LinkVisitor
{
	PageLinkFunction found;
	void	   *arg;
} LinkVisitor;

/* Report a block, unless it is InvalidBlockNumber. */
static void
report_link(const LinkVisitor *visitor, BlockNumber block)
{
	if (block != InvalidBlockNumber)
		visitor->found(block, visitor->arg);
}

/* Return a tuple of at least these bytes, and its length; NULL if its line pointer has none. */
static void *
tuple_of_page(Page page, OffsetNumber offset, Size least, Size *length)
{
	ItemId		item = PageGetItemId(page, offset);

	*length = ItemIdGetLength(item);
	if (!ItemIdHasStorage(item) || *length < least || ItemIdGetOffset(item) + *length > BLCKSZ)
		return NULL;
	return (char *) page + ItemIdGetOffset(item);
}

/* Report the blocks in the heap pointers of all index tuples from this on. */
static void
report_downlinks(const LinkVisitor *visitor, Page page, OffsetNumber first)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	Size		length;

	for (OffsetNumber offset = first; offset <= last; offset = OffsetNumberNext(offset))
	{
		IndexTuple	tuple = tuple_of_page(page, offset, sizeof(IndexTupleData), &length);

		if (tuple != NULL)
			report_link(visitor, ItemPointerGetBlockNumberNoCheck(&tuple->t_tid));
	}
}

static void
btree_links(const LinkVisitor *visitor, Page page)
{
	BTPageOpaque opaque = (BTPageOpaque) PageGetSpecialPointer(page);

	if (P_ISMETA(opaque))
	{
		if (BTPageGetMeta(page)->btm_root != P_NONE)
			report_link(visitor, BTPageGetMeta(page)->btm_root);
		return;
	}
	if (P_IGNORE(opaque))
		return;
	if (!P_RIGHTMOST(opaque))
		report_link(visitor, opaque->btpo_next);
	if (!P_ISLEAF(opaque))
		report_downlinks(visitor, page, P_FIRSTDATAKEY(opaque));
}

/* The caller has checked the first page by page_root(): its buckets are in the file. */
static void
hash_links(const LinkVisitor *visitor, Page page)
{
	HashPageOpaque opaque = (HashPageOpaque) PageGetSpecialPointer(page);
	HashMetaPage meta = HashPageGetMeta(page);

	if ((opaque->hasho_flag & LH_META_PAGE) != 0)
	{
		for (Bucket bucket = 0; bucket <= meta->hashm_maxbucket; bucket++)
		{
			CHECK_FOR_INTERRUPTS();
			report_link(visitor, BUCKET_TO_BLKNO(meta, bucket));
		}
		for (uint32 i = 0; i < Min(meta->hashm_nmaps, HASH_MAX_BITMAPS); i++)
			report_link(visitor, meta->hashm_mapp[i]);
	}
	/* hasho_prevblkno of a bucket's first page is no block */
	else if ((opaque->hasho_flag & (LH_BUCKET_PAGE | LH_OVERFLOW_PAGE)) != 0)
		report_link(visitor, opaque->hasho_nextblkno);
}

static void
gin_links(const LinkVisitor *visitor, Page page)
{
	GinPageOpaque opaque = GinPageGetOpaque(page);
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	Size		length;

	if ((opaque->flags & GIN_META) != 0)
		report_link(visitor, GIN_ROOT_BLKNO);
	if ((opaque->flags & (GIN_META | GIN_DELETED | GIN_LIST)) != 0)
		return;
	report_link(visitor, opaque->rightlink);
	if (!GinPageIsData(page) && !GinPageIsLeaf(page))
		report_downlinks(visitor, page, FirstOffsetNumber);
	else if (!GinPageIsData(page))
	{
		for (OffsetNumber at = FirstOffsetNumber; at <= last; at = OffsetNumberNext(at))
		{
			IndexTuple	tuple = tuple_of_page(page, at, sizeof(IndexTupleData), &length);

			if (tuple != NULL && GinIsPostingTree(tuple))
				report_link(visitor, GinGetPostingTree(tuple));
		}
	}
	else if (!GinPageIsLeaf(page))
	{
		int			most = GinDataPageMaxDataSize / sizeof(PostingItem);

		for (int i = 1; i <= Min(opaque->maxoff, most); i++)
			report_link(visitor, PostingItemGetBlockNumber(GinDataPageGetPostingItem(page, i)));
	}
}

static void
gist_links(const LinkVisitor *visitor, Page page)
{
	if (GistPageIsDeleted(page))
		return;
	if (GistFollowRight(page))
		report_link(visitor, GistPageGetOpaque(page)->rightlink);
	if (!GistPageIsLeaf(page))
		report_downlinks(visitor, page, FirstOffsetNumber);
}

/* Report the children of an inner tuple of SP-GiST of this length. */
static void
report_children(const LinkVisitor *visitor, SpGistInnerTuple inner, Size length)
{
	const char *end = (char *) inner + length;
	char	   *at = (char *) SGITNODEPTR(inner);

	for (unsigned int i = 0; i < inner->nNodes; i++)
	{
		SpGistNodeTuple node = (SpGistNodeTuple) at;

		if (end - at < (ptrdiff_t) sizeof(IndexTupleData))
			break;
		if (ItemPointerIsValid(&node->t_tid))
			report_link(visitor, ItemPointerGetBlockNumberNoCheck(&node->t_tid));
		at += Max(IndexTupleSize(node), sizeof(IndexTupleData));
	}
}

static void
spgist_links(const LinkVisitor *visitor, Page page)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	Size		length;

	if (SpGistPageIsMeta(page))
	{
		report_link(visitor, SPGIST_ROOT_BLKNO);
		report_link(visitor, SPGIST_NULL_BLKNO);
		return;
	}
	if (SpGistPageIsDeleted(page) || SpGistPageIsLeaf(page))
		return;
	for (OffsetNumber offset = FirstOffsetNumber; offset <= last; offset = OffsetNumberNext(offset))
	{
		SpGistInnerTuple inner = tuple_of_page(page, offset, SGITHDRSZ, &length);

		if (inner != NULL && inner->tupstate == SPGIST_LIVE)
			report_children(visitor, inner, length);
	}
}

static void
brin_links(const LinkVisitor *visitor, Page page)
{
	if (BRIN_IS_META_PAGE(page))
	{
		BlockNumber last = ((BrinMetaPageData *) PageGetContents(page))->lastRevmapPage;

		for (BlockNumber block = 1; block <= last && block != InvalidBlockNumber; block++)
		{
			CHECK_FOR_INTERRUPTS();
			report_link(visitor, block);
		}
	}
	else if (BRIN_IS_REVMAP_PAGE(page))
	{
		const ItemPointerData *tids = ((RevmapContents *) PageGetContents(page))->rm_tids;

		for (int i = 0; i < (int) REVMAP_PAGE_MAXITEMS; i++)
		{
			if (ItemPointerIsValid(&tids[i]))
				report_link(visitor, ItemPointerGetBlockNumberNoCheck(&tids[i]));
		}
	}
}

/*
 * Call found() for each block that must not be empty if a private copy of a page is as
 * it should be.  The page is one of this access method by page_is_of().  One that
 * page_is_meta() is the first by page_root(), and has its blocks in the file.  Nothing for
 * other access methods.
 */
void
page_links(Oid relam, Page page, PageLinkFunction found, void *arg)
{
	LinkVisitor visitor = {found, arg};

	Assert(page_is_of(relam, page));
	if (PageIsNew(page))
		return;
	switch (relam)
	{
		case BTREE_AM_OID:
			btree_links(&visitor, page);
			break;
		case HASH_AM_OID:
			hash_links(&visitor, page);
			break;
		case GIN_AM_OID:
			gin_links(&visitor, page);
			break;
		case GIST_AM_OID:
			gist_links(&visitor, page);
			break;
		case SPGIST_AM_OID:
			spgist_links(&visitor, page);
			break;
		case BRIN_AM_OID:
			brin_links(&visitor, page);
			break;
	}
}

/*
 * Return the head of GIN's pending list, if the page is the first, or the page behind
 * a page of that list; else InvalidBlockNumber.  To be called as page_links().
 */
BlockNumber
page_next_in_list(Oid relam, Page page)
{
	if (relam != GIN_AM_OID || PageIsNew(page) || GinPageIsDeleted(page))
		return InvalidBlockNumber;
	if ((GinPageGetOpaque(page)->flags & GIN_META) != 0)
		return GinPageGetMeta(page)->head;
	return GinPageIsList(page) ? GinPageGetOpaque(page)->rightlink : InvalidBlockNumber;
}
