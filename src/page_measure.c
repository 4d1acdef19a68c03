/*-------------------------------------------------------------------------
 *
 * page_measure.c
 *	  What is on one page of an index: kind, bytes used, bytes worth keeping.
 *
 * One function for each access method.  They get a private copy of the page
 * (so no lock is held while they look, and nothing changes under them) and
 * trust nothing on it: every offset and length is checked before it is
 * followed, because a report must survive the index it is asked to judge.
 *
 * Two byte counts come out.  "used" is what the page holds, counted as
 * pgstatindex counts it (line pointers and the high key included), so that
 * densities can be compared with its.  "packed" is what of it a rebuild would
 * write again: tuples marked dead are left out, btree duplicates are merged
 * into posting lists, GIN keys without rows are dropped.
 *
 * The tricky point is that the six access methods agree on the page header
 * and on nothing else: BRIN keeps its type in the last two bytes, GIN's
 * posting tree pages have no line pointers, SP-GiST's tuples start with a
 * state instead of a TID.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/brin_page.h"
#include "access/gin_private.h"
#include "access/gist.h"
#include "access/hash.h"
#include "access/itup.h"
#include "access/nbtree.h"
#include "access/spgist_private.h"
#include "catalog/pg_am_d.h"

#include "page_measure.h"

/* One tuple of a btree leaf, as deduplication sees it. */
typedef struct BtreeKey
{
	const char *data;			/* key bytes, without the tuple header */
	Size		len;
	uint16		flags;			/* null and variable-width flags */
} BtreeKey;

/* as in core's _bt_load(): a posting list made by a build gets no longer */
#define BTREE_BUILD_POSTING_SIZE \
	(MAXALIGN_DOWN((BLCKSZ * 10 / 100)) - sizeof(ItemIdData))

/* above this many bytes GIN keeps a posting list in a tree of its own */
#define GIN_LARGEST_LIST	((double) (GinMaxItemSize - MAXALIGN(sizeof(IndexTupleData) + 1)))
/* what the first TID of a segment takes if it becomes one among others */
#define GIN_NEXT_FIRST		2

/*
 * Check the header's offsets and the size of the special space.
 */
static const char *
check_header(Page page, Size special_size)
{
	PageHeader	ph = (PageHeader) page;

	if (ph->pd_lower < SizeOfPageHeaderData ||
		ph->pd_lower > ph->pd_upper ||
		ph->pd_upper > ph->pd_special ||
		ph->pd_special != BLCKSZ - MAXALIGN(special_size))
		return "invalid page header";
	if (PageGetPageSize(page) != BLCKSZ)
		return "invalid page size";
	return NULL;
}

/*
 * Return the number of line pointers, from a header that was checked.
 */
static int
line_pointers(Page page)
{
	return (((PageHeader) page)->pd_lower - SizeOfPageHeaderData) / sizeof(ItemIdData);
}

/*
 * Fetch a tuple's address and length.  Returns false where the line pointer
 * points outside of the tuple area or at something too short to be a tuple.
 */
static bool
fetch_item(Page page, OffsetNumber off, Size min_size, char **item, Size *len)
{
	ItemId		iid = PageGetItemId(page, off);
	PageHeader	ph = (PageHeader) page;
	Size		start = ItemIdGetOffset(iid);

	*len = ItemIdGetLength(iid);
	if (*len < min_size || start < ph->pd_upper ||
		start + *len > ph->pd_special || start != MAXALIGN(start))
		return false;
	*item = (char *) page + start;
	return true;
}

/*
 * Fill in the byte counts that pgstatindex would see.
 */
static void
measure_space(Page page, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;

	pm->avail = ph->pd_special - SizeOfPageHeaderData;
	/* PageGetFreeSpace() keeps room for one more line pointer */
	pm->used = pm->avail - PageGetFreeSpace(page);
	pm->packed = pm->used;
}

/*
 * Return 1 where a page's right sibling comes soon after it in the file, as
 * when rows arrive in the order of the index, else 0.
 */
static double
follows(BlockNumber blkno, BlockNumber right)
{
	return right > blkno && right - blkno <= 3 ? 1 : 0;
}

/* ----------------------------------------------------------------
 *		btree
 * ----------------------------------------------------------------
 */

/*
 * Read what deduplication needs to know of a leaf tuple: the key's bytes and
 * the number of TIDs.  Returns false where the tuple contradicts itself.
 */
static bool
btree_leaf_tuple(char *item, Size len, BtreeKey *key, int *nhtids)
{
	IndexTuple	itup = (IndexTuple) item;
	Size		keysize = IndexTupleSize(itup);

	if (keysize < sizeof(IndexTupleData) || keysize > len)
		return false;
	*nhtids = 1;
	if (BTreeTupleIsPosting(itup))
	{
		Size		posting = BTreeTupleGetPostingOffset(itup);

		*nhtids = BTreeTupleGetNPosting(itup);
		if (posting < sizeof(IndexTupleData) || *nhtids < 1 ||
			posting + *nhtids * sizeof(ItemPointerData) > keysize)
			return false;
		keysize = posting;
	}
	key->data = item + sizeof(IndexTupleData);
	key->len = keysize - sizeof(IndexTupleData);
	key->flags = itup->t_info & (INDEX_NULL_MASK | INDEX_VAR_MASK);
	return true;
}

/*
 * Return the bytes, line pointers included, that a build needs for one key
 * with that many rows, and add the tuples it makes to *tuples.
 */
static double
btree_run_bytes(Size keylen, int nhtids, double *tuples)
{
	Size		base = sizeof(IndexTupleData) + keylen;
	int			per_tuple;
	double		bytes = 0;

	if (base + 2 * sizeof(ItemPointerData) > BTREE_BUILD_POSTING_SIZE)
		per_tuple = 1;
	else
		per_tuple = (BTREE_BUILD_POSTING_SIZE - base) / sizeof(ItemPointerData);

	while (nhtids > 0)
	{
		int			n = Min(nhtids, per_tuple);

		bytes += sizeof(ItemIdData) +
			(n == 1 ? MAXALIGN(base) : MAXALIGN(base + n * sizeof(ItemPointerData)));
		*tuples += 1;
		nhtids -= n;
	}
	return bytes;
}

static const char *
measure_btree(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem = check_header(page, sizeof(BTPageOpaqueData));
	BTPageOpaque opaque;
	int			maxoff;
	double		before = 0;
	double		after = 0;
	BtreeKey	run = {0};
	int			run_tids = 0;
	Size		smallest = BLCKSZ;
	Size		largest = 0;

	if (problem)
		return problem;
	opaque = (BTPageOpaque) PageGetSpecialPointer(page);
	if (opaque->btpo_flags & BTP_META)
		return "unexpected metapage";
	if (opaque->btpo_cycleid > MAX_BT_CYCLE_ID)
		return "not a btree page";
	measure_space(page, pm);
	if (P_IGNORE(opaque))
	{
		pm->kind = PAGE_EMPTY;	/* deleted or half-dead */
		return NULL;
	}
	pm->kind = P_ISLEAF(opaque) ? PAGE_LEAF : PAGE_INTERNAL;
	if (pm->kind == PAGE_INTERNAL)
		return NULL;

	maxoff = line_pointers(page);
	for (OffsetNumber off = P_FIRSTDATAKEY(opaque); off <= maxoff; off++)
	{
		BtreeKey	key;
		char	   *item;
		Size		len;
		int			nhtids;

		if (!fetch_item(page, off, sizeof(IndexTupleData), &item, &len) ||
			!btree_leaf_tuple(item, len, &key, &nhtids))
			return "invalid leaf tuple";
		before += sizeof(ItemIdData) + MAXALIGN(len);
		smallest = Min(smallest, MAXALIGN(len));
		largest = Max(largest, MAXALIGN(len));
		if (ItemIdIsDead(PageGetItemId(page, off)))
		{
			pm->dead += 1;
			continue;
		}
		pm->items += nhtids;
		if (!mc->deduplicates)
		{
			after += sizeof(ItemIdData) + MAXALIGN(len);
			pm->tuples += 1;
			continue;
		}
		if (run_tids > 0 && key.len == run.len && key.flags == run.flags &&
			memcmp(key.data, run.data, key.len) == 0)
		{
			run_tids += nhtids;
			continue;
		}
		if (run_tids > 0)
			after += btree_run_bytes(run.len, run_tids, &pm->tuples);
		run = key;
		run_tids = nhtids;
	}
	if (run_tids > 0)
		after += btree_run_bytes(run.len, run_tids, &pm->tuples);

	if (before > pm->used)
		return "tuples overlap";
	/* keys that span pages can make it look as if merging cost space */
	pm->packed = Min(after, before);
	pm->heavy = pm->used - before;	/* the high key */
	pm->in_order = smallest >= largest ? 1 : 0;
	return NULL;
}

/* ----------------------------------------------------------------
 *		hash
 * ----------------------------------------------------------------
 */

/*
 * Account for that many neighbours with the same hash value.
 */
static void
hash_end_run(PageMeasure *pm, int run, int half_page)
{
	if (run > half_page)
		pm->heavy += run;
	else
		pm->squares += (double) run * run;
}

static const char *
measure_hash(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem = check_header(page, sizeof(HashPageOpaqueData));
	HashPageOpaque opaque;
	int			maxoff;
	double		live = 0;
	uint32		run_hash = 0;
	int			run = 0;
	int			half_page;

	if (problem)
		return problem;
	opaque = (HashPageOpaque) PageGetSpecialPointer(page);
	if (opaque->hasho_page_id != HASHO_PAGE_ID)
		return "not a hash page";
	measure_space(page, pm);
	switch (opaque->hasho_flag & LH_PAGE_TYPE)
	{
		case LH_BUCKET_PAGE:
			pm->kind = PAGE_LEAF;
			break;
		case LH_OVERFLOW_PAGE:
			pm->kind = PAGE_OVERFLOW;
			break;
		case LH_BITMAP_PAGE:
			pm->kind = PAGE_FIXED;
			return NULL;
		case LH_UNUSED_PAGE:
			pm->kind = PAGE_EMPTY;
			return NULL;
		default:
			return "unexpected page type";
	}

	/*
	 * Tuples are sorted by hash value.  Those of one value always share a
	 * bucket, so a value with more rows than half a page holds keeps its
	 * overflow pages whatever the number of buckets.
	 */
	half_page = pm->avail / 2 / (sizeof(ItemIdData) + MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32)));
	maxoff = line_pointers(page);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		char	   *item;
		Size		len;
		uint32		hash;

		if (!fetch_item(page, off, sizeof(IndexTupleData) + sizeof(uint32), &item, &len))
			return "invalid tuple";
		if (ItemIdIsDead(PageGetItemId(page, off)))
		{
			pm->dead += 1;
			continue;
		}
		live += sizeof(ItemIdData) + MAXALIGN(len);
		pm->items += 1;
		memcpy(&hash, item + sizeof(IndexTupleData), sizeof(uint32));
		if (run > 0 && hash == run_hash)
			run++;
		else
		{
			hash_end_run(pm, run, half_page);
			run_hash = hash;
			run = 1;
		}
	}
	hash_end_run(pm, run, half_page);
	pm->tuples = pm->items;
	pm->packed = Min(live, pm->used);
	return NULL;
}

/* ----------------------------------------------------------------
 *		GIN
 * ----------------------------------------------------------------
 */

/*
 * Count the TIDs in the compressed posting lists of a posting tree's leaf, and
 * the bytes that they would take as one list.  Returns -1 where the segments
 * don't fit into the page.
 */
static int
gin_count_compressed(const char *ptr, Size size, double *list_bytes)
{
	int			items = 0;

	*list_bytes = 0;

	while (size > 0)
	{
		GinPostingList *segment = (GinPostingList *) ptr;
		Size		len;

		if (size < offsetof(GinPostingList, bytes))
			return -1;
		len = SizeOfGinPostingList(segment);
		if (len > size || offsetof(GinPostingList, bytes) + segment->nbytes > size)
			return -1;
		items++;				/* the first one is stored in full */
		*list_bytes += items == 1 ? offsetof(GinPostingList, bytes) : GIN_NEXT_FIRST;
		*list_bytes += segment->nbytes;
		for (int i = 0; i < segment->nbytes; i++)
		{
			/* the last byte of a varbyte-encoded difference has no high bit */
			if ((segment->bytes[i] & 0x80) == 0)
				items++;
		}
		ptr += len;
		size -= len;
	}
	return items;
}

static const char *
measure_gin_posting(Page page, GinPageOpaque opaque, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;
	Size		head = MAXALIGN(SizeOfPageHeaderData) + MAXALIGN(sizeof(ItemPointerData));

	double		list_bytes;

	pm->avail = GinDataPageMaxDataSize;
	if (!(opaque->flags & GIN_LEAF))
	{
		pm->kind = PAGE_POSTING_INTERNAL;
		pm->used = opaque->maxoff * (double) sizeof(PostingItem);
		if (pm->used > pm->avail)
			return "too many posting items";
		pm->packed = pm->used;
		return NULL;
	}

	pm->kind = opaque->rightlink == InvalidBlockNumber ? PAGE_POSTING_LAST : PAGE_POSTING_LEAF;
	if (opaque->flags & GIN_COMPRESSED)
	{
		if (ph->pd_lower < head)
			return "invalid page header";
		pm->used = ph->pd_lower - head;
		pm->items = gin_count_compressed((char *) page + head, ph->pd_lower - head, &list_bytes);
		if (pm->items < 0)
			return "invalid posting list";
	}
	else
	{
		/* from before 9.4: plain TIDs, which a rebuild compresses */
		pm->items = opaque->maxoff;
		pm->used = pm->items * sizeof(ItemPointerData);
		list_bytes = pm->used / 2;
		if (pm->used > pm->avail)
			return "too many items";
	}
	pm->packed = pm->used;
	pm->squares = list_bytes;
	if (pm->kind == PAGE_POSTING_LAST)
	{
		/*
		 * The only page of a small tree, as a rule.  A rebuild turns it back
		 * into a list beside the key if that has become short enough, and
		 * makes one page of it, full or not, if it hasn't.
		 */
		if (list_bytes > GIN_LARGEST_LIST)
		{
			pm->heavy = 1;
			pm->packed = 0;
		}
		else if (pm->items > 0)
		{
			pm->tuples = 1;
			pm->packed = list_bytes;
		}
	}
	return NULL;
}

static const char *
measure_gin(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem = check_header(page, sizeof(GinPageOpaqueData));
	GinPageOpaque opaque;
	int			maxoff;
	double		dropped = 0;

	if (problem)
		return problem;
	opaque = (GinPageOpaque) PageGetSpecialPointer(page);
	if (opaque->flags & ~(GIN_DATA | GIN_LEAF | GIN_DELETED | GIN_LIST |
						  GIN_LIST_FULLROW | GIN_INCOMPLETE_SPLIT | GIN_COMPRESSED))
		return "unexpected page type";
	if (opaque->flags & GIN_DELETED)
	{
		pm->avail = ((PageHeader) page)->pd_special - SizeOfPageHeaderData;
		pm->kind = PAGE_EMPTY;
		return NULL;
	}
	if (opaque->flags & GIN_DATA)
		return measure_gin_posting(page, opaque, pm);

	measure_space(page, pm);
	if (opaque->flags & GIN_LIST)
		pm->kind = PAGE_PENDING;
	else
		pm->kind = (opaque->flags & GIN_LEAF) ? PAGE_LEAF : PAGE_INTERNAL;
	if (pm->kind == PAGE_INTERNAL)
		return NULL;
	pm->in_order = follows(blkno, opaque->rightlink);

	maxoff = line_pointers(page);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		char	   *item;
		Size		len;
		int			nposting;

		if (!fetch_item(page, off, sizeof(IndexTupleData), &item, &len))
			return "invalid tuple";
		pm->tuples += 1;
		if (pm->kind == PAGE_PENDING)
		{
			pm->items += 1;
			continue;
		}
		nposting = GinGetNPosting((IndexTuple) item);
		if (nposting == GIN_TREE_POSTING)
			continue;
		pm->items += nposting;
		if (nposting == 0)
		{
			/* vacuum empties posting lists but never removes a key */
			dropped += sizeof(ItemIdData) + MAXALIGN(len);
			pm->tuples -= 1;
		}
	}
	pm->packed = Max(pm->used - dropped, 0);
	return NULL;
}

/* ----------------------------------------------------------------
 *		GiST, SP-GiST, BRIN
 * ----------------------------------------------------------------
 */
static const char *
measure_gist(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem = check_header(page, sizeof(GISTPageOpaqueData));
	GISTPageOpaque opaque;
	int			maxoff;
	double		dead = 0;

	if (problem)
		return problem;
	opaque = (GISTPageOpaque) PageGetSpecialPointer(page);
	if (opaque->gist_page_id != GIST_PAGE_ID)
		return "not a GiST page";
	measure_space(page, pm);
	if (opaque->flags & F_DELETED)
	{
		pm->kind = PAGE_EMPTY;
		return NULL;
	}
	pm->kind = (opaque->flags & F_LEAF) ? PAGE_LEAF : PAGE_INTERNAL;
	if (pm->kind == PAGE_INTERNAL)
		return NULL;
	pm->in_order = follows(blkno, opaque->rightlink);

	maxoff = line_pointers(page);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		char	   *item;
		Size		len;

		if (!fetch_item(page, off, sizeof(IndexTupleData), &item, &len))
			return "invalid tuple";
		if (ItemIdIsDead(PageGetItemId(page, off)))
		{
			dead += sizeof(ItemIdData) + MAXALIGN(len);
			pm->dead += 1;
		}
		else
			pm->items += 1;
	}
	pm->tuples = pm->items;
	pm->packed = Max(pm->used - dead, 0);
	return NULL;
}

static const char *
measure_spgist(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem = check_header(page, sizeof(SpGistPageOpaqueData));
	SpGistPageOpaque opaque;
	int			maxoff;
	double		live = 0;

	if (problem)
		return problem;
	opaque = (SpGistPageOpaque) PageGetSpecialPointer(page);
	if (opaque->spgist_page_id != SPGIST_PAGE_ID)
		return "not an SP-GiST page";
	if (opaque->flags & SPGIST_META)
		return "unexpected metapage";
	measure_space(page, pm);

	maxoff = line_pointers(page);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		char	   *item;
		Size		len;
		unsigned int state;

		if (!fetch_item(page, off, sizeof(SpGistDeadTupleData), &item, &len))
			return "invalid tuple";
		/* all kinds of tuples have the state in the same place */
		state = ((SpGistDeadTuple) item)->tupstate;
		if (state != SPGIST_LIVE)
			continue;			/* redirect, dead, placeholder */
		live += sizeof(ItemIdData) + MAXALIGN(len);
		pm->tuples += 1;
	}
	if (opaque->flags & SPGIST_LEAF)
		pm->items = pm->tuples;
	pm->packed = Min(live, pm->used);
	if (SpGistBlockIsFixed(blkno))
		pm->kind = PAGE_FIXED;	/* a build makes both roots, full or not */
	else if (pm->tuples == 0)
		pm->kind = PAGE_EMPTY;
	else
		pm->kind = (opaque->flags & SPGIST_LEAF) ? PAGE_LEAF : PAGE_INTERNAL;
	return NULL;
}

static const char *
measure_brin(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem = check_header(page, sizeof(BrinSpecialSpace));
	int			maxoff;
	double		live = 0;

	if (problem)
		return problem;
	switch (BrinPageType(page))
	{
		case BRIN_PAGETYPE_REVMAP:
			pm->avail = ((PageHeader) page)->pd_special - SizeOfPageHeaderData;
			pm->kind = PAGE_FIXED;
			return NULL;
		case BRIN_PAGETYPE_REGULAR:
			break;
		default:
			return "unexpected page type";
	}
	measure_space(page, pm);
	maxoff = line_pointers(page);
	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		char	   *item;
		Size		len;

		if (!ItemIdIsUsed(PageGetItemId(page, off)))
			continue;
		if (!fetch_item(page, off, sizeof(BlockNumber), &item, &len))
			return "invalid tuple";
		live += sizeof(ItemIdData) + MAXALIGN(len);
		pm->items += 1;
	}
	pm->tuples = pm->items;
	pm->packed = Min(live, pm->used);
	pm->kind = pm->items > 0 ? PAGE_LEAF : PAGE_EMPTY;
	return NULL;
}

/* ----------------------------------------------------------------
 *		the door
 * ----------------------------------------------------------------
 */
bool
page_measure_supports(Oid relam)
{
	return relam == BTREE_AM_OID || relam == HASH_AM_OID ||
		relam == GIN_AM_OID || relam == GIST_AM_OID ||
		relam == SPGIST_AM_OID || relam == BRIN_AM_OID;
}

const char *
page_measure(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	memset(pm, 0, sizeof(*pm));
	if (PageIsNew(page))
	{
		/* extended but not used yet, or since a crash */
		pm->kind = PAGE_EMPTY;
		return NULL;
	}
	switch (mc->relam)
	{
		case BTREE_AM_OID:
			return measure_btree(mc, page, blkno, pm);
		case HASH_AM_OID:
			return measure_hash(mc, page, blkno, pm);
		case GIN_AM_OID:
			return measure_gin(mc, page, blkno, pm);
		case GIST_AM_OID:
			return measure_gist(mc, page, blkno, pm);
		case SPGIST_AM_OID:
			return measure_spgist(mc, page, blkno, pm);
		case BRIN_AM_OID:
			return measure_brin(mc, page, blkno, pm);
		default:
			return "unknown access method";
	}
}
