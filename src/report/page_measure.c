/*-------------------------------------------------------------------------
 *
 * page_measure.c
 *	  What is on one page of an index: kind, bytes used, bytes worth keeping.
 *
 * There is one function for each access method.  It gets a private copy of
 * the page, so it holds no lock and nothing changes under it.  It trusts
 * nothing on the page: every offset and length is checked before use, because
 * a report must survive a damaged index.
 *
 * There are two byte counts.  "used" is what the page holds, counted as by
 * pgstatindex (with line pointers and the high key), so that densities are
 * comparable.  "packed" is the part that a rebuild would write again: without
 * tuples marked dead and GIN keys without rows, and with btree duplicates
 * merged into posting lists.
 *
 * Tricky: the six access methods have only the page header in common.  BRIN
 * keeps its type in the last two bytes, GIN's posting tree pages have no line
 * pointers, SP-GiST's tuples start with a state instead of a TID.
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

#include "report/report_private.h"

/* A tuple of a btree leaf, as deduplication sees it */
typedef struct BtreeKey
{
	const char *data;			/* key bytes, without the tuple header */
	Size		len;
	uint16		flags;			/* null and variable-width flags */
} BtreeKey;

/* as in core's _bt_load(): the longest posting list of a build */
#define BTREE_BUILD_POSTING_SIZE \
	(MAXALIGN_DOWN((BLCKSZ * 10 / 100)) - sizeof(ItemIdData))

/* a larger posting list gets a tree of its own in GIN */
#define GIN_LARGEST_LIST	((double) (GinMaxItemSize - MAXALIGN(sizeof(IndexTupleData) + 1)))
/* bytes of a segment's first TID once it is one among others */
#define GIN_NEXT_FIRST		2

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

/* A scan of the tuples of a page whose header was checked */
typedef struct ItemScan
{
	Page		page;
	OffsetNumber next;
	OffsetNumber last;
	Size		min_size;		/* of a tuple */
	bool		skip_unused;	/* unused line pointers are no damage */
	bool		invalid;		/* ended at an invalid line pointer */
	char	   *item;
	Size		len;
	double		bytes;			/* with the line pointer */
	bool		dead;
} ItemScan;

static ItemScan
scan_items(Page page, OffsetNumber first, Size min_size)
{
	PageHeader	ph = (PageHeader) page;
	ItemScan	scan = {0};

	scan.page = page;
	scan.next = first;
	scan.last = (ph->pd_lower - SizeOfPageHeaderData) / sizeof(ItemIdData);
	scan.min_size = min_size;
	return scan;
}

/*
 * Advance to the next tuple.  Returns false at the end, with scan->invalid if
 * a line pointer points outside of the tuple area or to less than a tuple.
 */
static bool
next_item(ItemScan *scan)
{
	ItemId		iid;
	PageHeader	ph = (PageHeader) scan->page;
	Size		start;

	do
	{
		if (scan->next > scan->last)
			return false;
		iid = PageGetItemId(scan->page, scan->next++);
	} while (scan->skip_unused && !ItemIdIsUsed(iid));
	start = ItemIdGetOffset(iid);
	scan->len = ItemIdGetLength(iid);
	if (scan->len < scan->min_size || start < ph->pd_upper ||
		start + scan->len > ph->pd_special || start != MAXALIGN(start))
	{
		scan->invalid = true;
		return false;
	}
	scan->item = (char *) scan->page + start;
	scan->bytes = sizeof(ItemIdData) + MAXALIGN(scan->len);
	scan->dead = ItemIdIsDead(iid);
	return true;
}

/* Count the current tuple as one that a rebuild writes again. */
static void
count_item(PageMeasure *pm, const ItemScan *scan)
{
	pm->tuples += 1;
	pm->packed += scan->bytes;
}

/* Set the byte counts as pgstatindex would. */
static void
measure_space(Page page, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;

	pm->avail = ph->pd_special - SizeOfPageHeaderData;
	/* PageGetFreeSpace() reserves space for one more line pointer */
	pm->used = pm->avail - PageGetFreeSpace(page);
	pm->packed = pm->used;
}

/* ----------------------------------------------------------------
 *		btree
 * ----------------------------------------------------------------
 */

/*
 * Get what deduplication needs of a leaf tuple: the key's bytes and the
 * number of TIDs.  Returns false if the tuple contradicts itself.
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
 * Return the bytes, with line pointers, that a build needs for one key with
 * nhtids rows, and add the tuples it makes to *tuples.
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
	ItemScan	items;
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

	items = scan_items(page, P_FIRSTDATAKEY(opaque), sizeof(IndexTupleData));
	while (next_item(&items))
	{
		BtreeKey	key;
		int			nhtids;

		if (!btree_leaf_tuple(items.item, items.len, &key, &nhtids))
			return "invalid leaf tuple";
		before += items.bytes;
		smallest = Min(smallest, MAXALIGN(items.len));
		largest = Max(largest, MAXALIGN(items.len));
		if (items.dead)
		{
			pm->dead += 1;
			continue;
		}
		pm->items += nhtids;
		if (!mc->deduplicates)
		{
			after += items.bytes;
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

	if (items.invalid)
		return "invalid leaf tuple";
	if (before > pm->used)
		return "tuples overlap";
	/* with keys that span pages, merging can seem to cost space */
	pm->packed = Min(after, before);
	pm->heavy = pm->used - before;	/* the high key */
	pm->one_size = smallest >= largest ? 1 : 0;
	return NULL;
}

/* ----------------------------------------------------------------
 *		hash
 * ----------------------------------------------------------------
 */

/* Account for a run of rows with the same hash value. */
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
	ItemScan	items;
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
	 * Tuples are sorted by hash value.  Those of one value share a bucket, so
	 * a value with more rows than half a page keeps its overflow pages with
	 * any number of buckets.
	 */
	half_page = pm->avail / 2 / (sizeof(ItemIdData) + MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32)));
	pm->packed = 0;
	items = scan_items(page, FirstOffsetNumber, sizeof(IndexTupleData) + sizeof(uint32));
	while (next_item(&items))
	{
		uint32		hash;

		if (items.dead)
		{
			pm->dead += 1;
			continue;
		}
		count_item(pm, &items);
		memcpy(&hash, items.item + sizeof(IndexTupleData), sizeof(uint32));
		if (run > 0 && hash == run_hash)
			run++;
		else
		{
			hash_end_run(pm, run, half_page);
			run_hash = hash;
			run = 1;
		}
	}
	if (items.invalid)
		return "invalid tuple";
	hash_end_run(pm, run, half_page);
	pm->items = pm->tuples;
	pm->packed = Min(pm->packed, pm->used);
	return NULL;
}

/* ----------------------------------------------------------------
 *		GIN
 * ----------------------------------------------------------------
 */

/*
 * Count the TIDs in the compressed posting lists of a posting tree's leaf,
 * and the bytes that they would take as one list.  Returns -1 if the segments
 * do not fit into the page.
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
		items++;				/* the first one is stored uncompressed */
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

	/*
	 * The last page is usually the only page of a small tree.  A rebuild
	 * turns it into a list in the key's tuple if that is short enough,
	 * otherwise into one page, full or not.
	 */
	if (pm->kind == PAGE_POSTING_LAST)
	{
		pm->packed = 0;
		if (list_bytes <= GIN_LARGEST_LIST && pm->items > 0)
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
	ItemScan	items;

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

	pm->packed = 0;
	items = scan_items(page, FirstOffsetNumber, sizeof(IndexTupleData));
	while (next_item(&items))
	{
		int			nposting = pm->kind == PAGE_PENDING ? 1 : GinGetNPosting((IndexTuple) items.item);

		if (nposting != GIN_TREE_POSTING)
			pm->items += nposting;
		/* vacuum empties posting lists but never removes a key */
		if (nposting > 0)
			count_item(pm, &items);
	}
	if (items.invalid)
		return "invalid tuple";
	pm->packed = Min(pm->packed, pm->used);
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
	ItemScan	items;

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

	pm->packed = 0;
	items = scan_items(page, FirstOffsetNumber, sizeof(IndexTupleData));
	while (next_item(&items))
	{
		if (items.dead)
			pm->dead += 1;
		else
			count_item(pm, &items);
	}
	if (items.invalid)
		return "invalid tuple";
	pm->items = pm->tuples;
	pm->packed = Min(pm->packed, pm->used);
	return NULL;
}

static const char *
measure_spgist(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem = check_header(page, sizeof(SpGistPageOpaqueData));
	SpGistPageOpaque opaque;
	ItemScan	items;

	if (problem)
		return problem;
	opaque = (SpGistPageOpaque) PageGetSpecialPointer(page);
	if (opaque->spgist_page_id != SPGIST_PAGE_ID)
		return "not an SP-GiST page";
	if (opaque->flags & SPGIST_META)
		return "unexpected metapage";
	measure_space(page, pm);

	pm->packed = 0;
	items = scan_items(page, FirstOffsetNumber, sizeof(SpGistDeadTupleData));
	while (next_item(&items))
	{
		/* all kinds of tuples have the state in the same place */
		unsigned int state = ((SpGistDeadTuple) items.item)->tupstate;

		/* the others are redirections, dead, placeholders */
		if (state == SPGIST_LIVE)
			count_item(pm, &items);
	}
	if (items.invalid)
		return "invalid tuple";
	if (opaque->flags & SPGIST_LEAF)
		pm->items = pm->tuples;
	pm->packed = Min(pm->packed, pm->used);
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
	ItemScan	items;

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

	pm->packed = 0;
	items = scan_items(page, FirstOffsetNumber, sizeof(BlockNumber));
	items.skip_unused = true;
	while (next_item(&items))
		count_item(pm, &items);
	if (items.invalid)
		return "invalid tuple";
	pm->items = pm->tuples;
	pm->packed = Min(pm->packed, pm->used);
	pm->kind = pm->items > 0 ? PAGE_LEAF : PAGE_EMPTY;
	return NULL;
}


/* Return whether page_measure() knows the access method. */
bool
page_measure_supports(Oid relam)
{
	return relam == BTREE_AM_OID || relam == HASH_AM_OID ||
		relam == GIN_AM_OID || relam == GIST_AM_OID ||
		relam == SPGIST_AM_OID || relam == BRIN_AM_OID;
}

/*
 * Measure a private copy of a page.  Returns NULL, or what is wrong with the
 * page (a fragment, not translated).  Never reads beyond the page.
 */
const char *
page_measure(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	memset(pm, 0, sizeof(*pm));
	if (PageIsNew(page))
	{
		/* extended but not yet used, possibly since a crash */
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
