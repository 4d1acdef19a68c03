/*-------------------------------------------------------------------------
 *
 * page_measure.c
 *	  The contents of an index page: kind, bytes used, bytes worth keeping.
 *
 * Each access method has a function, which gets a private copy of the page, so
 * nothing changes under it.  Every offset and length is checked before use,
 * because a report must survive a damaged index.
 *
 * "used" are the bytes on the page, counted as by pgstatindex (with line
 * pointers and the high key), so that densities are comparable.  "packed" are
 * the bytes that a rebuild would write again: without tuples marked dead and GIN
 * keys without rows, and with btree duplicates merged into posting lists.
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

#include "report/report.h"
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
#define HASH_TUPLE_SIZE		(sizeof(IndexTupleData) + sizeof(uint32))
/* bytes of a segment's first TID once it is one among others */
#define GIN_NEXT_FIRST		2

/* Check the page header, and set the byte counts as pgstatindex would. */
static const char *
check_header(Page page, Size special_size, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;

	if (ph->pd_lower < SizeOfPageHeaderData ||
		ph->pd_lower > ph->pd_upper ||
		ph->pd_upper > ph->pd_special ||
		ph->pd_special != BLCKSZ - MAXALIGN(special_size))
		return "invalid page header";
	if (PageGetPageSize(page) != BLCKSZ)
		return "invalid page size";
	pm->avail = ph->pd_special - SizeOfPageHeaderData;
	/* PageGetFreeSpace() reserves space for one more line pointer */
	pm->used = pm->packed = pm->avail - PageGetFreeSpace(page);
	return NULL;
}

/* A scan of the tuples of a page whose header was checked */
typedef struct ItemScan
{
	Page		page;
	OffsetNumber next;
	Size		min_size;		/* of a tuple */
	bool		skip_unused;	/* unused line pointers are no damage */
	bool		invalid;		/* ended at an invalid line pointer */
	char	   *item;
	Size		len;
	double		bytes;			/* with the line pointer */
	bool		dead;
} ItemScan;

/*
 * Advance to the next tuple.  Returns false at the end, with scan->invalid set if
 * a line pointer is wrong: outside of the tuples' area, or too short.
 */
static bool
next_item(ItemScan *scan)
{
	PageHeader	ph = (PageHeader) scan->page;
	ItemId		iid;
	Size		start;

	do
	{
		if (scan->next > (ph->pd_lower - SizeOfPageHeaderData) / sizeof(ItemIdData))
			return false;
		iid = PageGetItemId(scan->page, scan->next++);
	} while (scan->skip_unused && !ItemIdIsUsed(iid));
	start = ItemIdGetOffset(iid);
	scan->len = ItemIdGetLength(iid);
	scan->item = (char *) scan->page + start;
	scan->bytes = sizeof(ItemIdData) + MAXALIGN(scan->len);
	scan->dead = ItemIdIsDead(iid);
	scan->invalid = scan->len < scan->min_size || start < ph->pd_upper ||
		start + scan->len > ph->pd_special || start != MAXALIGN(start);
	return !scan->invalid;
}

/* Count a tuple, and return whether a rebuild would write it again. */
typedef bool (*ItemCallback) (const ItemScan *scan, PageMeasure *pm);

/* Set the counts by a scan of all tuples. */
static const char *
count_items(Page page, Size min_size, bool skip_unused, ItemCallback callback, PageMeasure *pm)
{
	ItemScan	scan = {page, FirstOffsetNumber, min_size, skip_unused};

	pm->packed = 0;
	while (next_item(&scan))
	{
		if (callback(&scan, pm))
		{
			pm->tuples += 1;
			pm->packed += scan.bytes;
		}
	}
	pm->packed = Min(pm->packed, pm->used);
	return scan.invalid ? "invalid tuple" : NULL;
}

/* Count a tuple for one row, which may be marked dead. */
static bool
count_row(const ItemScan *scan, PageMeasure *pm)
{
	if (scan->dead)
		pm->dead += 1;
	else
		pm->items += 1;
	return !scan->dead;
}

/* ----------------------------------------------------------------
 *		btree
 * ----------------------------------------------------------------
 */

/*
 * Get key and number of TIDs of a leaf tuple, for deduplication.  Returns false
 * if its lengths contradict each other.
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
 * Return the bytes, with line pointers, of a build's tuples for one key with
 * nhtids rows, and add their number to *tuples.
 */
static double
btree_run_bytes(Size keylen, int nhtids, double *tuples)
{
	Size		base = sizeof(IndexTupleData) + keylen;
	int			per_tuple = 1;
	double		bytes = 0;

	if (base + 2 * sizeof(ItemPointerData) <= BTREE_BUILD_POSTING_SIZE)
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
	BTPageOpaque opaque = (BTPageOpaque) PageGetSpecialPointer(page);
	ItemScan	items = {page, 0, sizeof(IndexTupleData)};
	double		before = 0;
	double		after = 0;
	BtreeKey	run = {0};
	int			run_tids = 0;
	Size		smallest = BLCKSZ;
	Size		largest = 0;

	if (opaque->btpo_flags & BTP_META)
		return "unexpected metapage";
	if (opaque->btpo_cycleid > MAX_BT_CYCLE_ID)
		return "not a btree page";
	if (P_IGNORE(opaque))
		return NULL;			/* deleted or half-dead: empty */
	pm->kind = P_ISLEAF(opaque) ? PAGE_LEAF : PAGE_INTERNAL;
	if (pm->kind == PAGE_INTERNAL)
		return NULL;

	items.next = P_FIRSTDATAKEY(opaque);
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
		}
		else if (run_tids > 0 && key.len == run.len && key.flags == run.flags &&
				 memcmp(key.data, run.data, key.len) == 0)
			run_tids += nhtids;
		else
		{
			after += btree_run_bytes(run.len, run_tids, &pm->tuples);
			run = key;
			run_tids = nhtids;
		}
	}
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

/* Count a run of rows of the same hash value. */
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
	HashPageOpaque opaque = (HashPageOpaque) PageGetSpecialPointer(page);
	ItemScan	items = {page, FirstOffsetNumber, HASH_TUPLE_SIZE};
	uint32		run_hash = 0;
	int			run = 0;
	int			half_page = pm->avail / 2 / (sizeof(ItemIdData) + MAXALIGN(HASH_TUPLE_SIZE));

	if (opaque->hasho_page_id != HASHO_PAGE_ID)
		return "not a hash page";
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
			return NULL;
		default:
			return "unexpected page type";
	}

	/*
	 * Tuples are sorted by hash value.  One value has one bucket, so a value
	 * with more rows than half a page needs overflow pages with any number of
	 * buckets.
	 */
	while (next_item(&items))
	{
		uint32		hash;

		if (items.dead)
			continue;
		memcpy(&hash, items.item + sizeof(IndexTupleData), sizeof(uint32));
		if (run > 0 && hash != run_hash)
		{
			hash_end_run(pm, run, half_page);
			run = 0;
		}
		run_hash = hash;
		run++;
	}
	hash_end_run(pm, run, half_page);
	return count_items(page, HASH_TUPLE_SIZE, false, count_row, pm);
}

/* ----------------------------------------------------------------
 *		GIN
 * ----------------------------------------------------------------
 */

/*
 * Count the TIDs in the compressed posting lists of a posting tree's leaf, and
 * their bytes as one list.  Returns -1 if the segments do not fit into the page.
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
		pm->used = pm->packed = opaque->maxoff * (double) sizeof(PostingItem);
		return pm->used > pm->avail ? "too many posting items" : NULL;
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
	 * The last page is usually the only one of a small tree.  A rebuild makes
	 * it a list in the key's tuple if that is short enough, else one page.
	 */
	if (pm->kind == PAGE_POSTING_LAST)
	{
		pm->tuples = list_bytes <= GIN_LARGEST_LIST && pm->items > 0 ? 1 : 0;
		pm->packed = pm->tuples * list_bytes;
	}
	return NULL;
}

static bool
count_gin_key(const ItemScan *scan, PageMeasure *pm)
{
	int			nposting = pm->kind == PAGE_PENDING ? 1 : GinGetNPosting((IndexTuple) scan->item);

	if (nposting != GIN_TREE_POSTING)
		pm->items += nposting;
	/* vacuum empties posting lists but never removes a key */
	return nposting > 0;
}

static const char *
measure_gin(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	GinPageOpaque opaque = (GinPageOpaque) PageGetSpecialPointer(page);

	if (opaque->flags & ~(GIN_DATA | GIN_LEAF | GIN_DELETED | GIN_LIST |
						  GIN_LIST_FULLROW | GIN_INCOMPLETE_SPLIT | GIN_COMPRESSED))
		return "unexpected page type";
	if (opaque->flags & GIN_DELETED)
		return NULL;
	if (opaque->flags & GIN_DATA)
		return measure_gin_posting(page, opaque, pm);

	pm->kind = (opaque->flags & GIN_LIST) ? PAGE_PENDING :
		(opaque->flags & GIN_LEAF) ? PAGE_LEAF : PAGE_INTERNAL;
	if (pm->kind == PAGE_INTERNAL)
		return NULL;
	return count_items(page, sizeof(IndexTupleData), false, count_gin_key, pm);
}

/* ----------------------------------------------------------------
 *		GiST, SP-GiST, BRIN
 * ----------------------------------------------------------------
 */
static const char *
measure_gist(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	GISTPageOpaque opaque = (GISTPageOpaque) PageGetSpecialPointer(page);

	if (opaque->gist_page_id != GIST_PAGE_ID)
		return "not a GiST page";
	pm->kind = (opaque->flags & F_DELETED) ? PAGE_EMPTY :
		(opaque->flags & F_LEAF) ? PAGE_LEAF : PAGE_INTERNAL;
	if (pm->kind != PAGE_LEAF)
		return NULL;
	return count_items(page, sizeof(IndexTupleData), false, count_row, pm);
}

static bool
count_spgist_tuple(const ItemScan *scan, PageMeasure *pm)
{
	/* all kinds of tuples have the state in the same place */
	return ((SpGistDeadTuple) scan->item)->tupstate == SPGIST_LIVE;
}

static const char *
measure_spgist(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	SpGistPageOpaque opaque = (SpGistPageOpaque) PageGetSpecialPointer(page);
	const char *problem;

	if (opaque->spgist_page_id != SPGIST_PAGE_ID)
		return "not an SP-GiST page";
	if (opaque->flags & SPGIST_META)
		return "unexpected metapage";
	problem = count_items(page, sizeof(SpGistDeadTupleData), false, count_spgist_tuple, pm);
	if (opaque->flags & SPGIST_LEAF)
		pm->items = pm->tuples;
	if (SpGistBlockIsFixed(blkno))
		pm->kind = PAGE_FIXED;	/* a build makes both roots, full or not */
	else if (pm->tuples == 0)
		pm->kind = PAGE_EMPTY;
	else
		pm->kind = (opaque->flags & SPGIST_LEAF) ? PAGE_LEAF : PAGE_INTERNAL;
	return problem;
}

static const char *
measure_brin(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem;

	pm->kind = PAGE_FIXED;
	if (BrinPageType(page) == BRIN_PAGETYPE_REVMAP)
		return NULL;
	if (BrinPageType(page) != BRIN_PAGETYPE_REGULAR)
		return "unexpected page type";
	problem = count_items(page, sizeof(BlockNumber), true, count_row, pm);
	pm->kind = pm->items > 0 ? PAGE_LEAF : PAGE_EMPTY;
	return problem;
}

static const struct
{
	Oid			relam;
	Size		special_size;
	uint16		lowest_id;		/* of the last two bytes of a page */
	uint16		highest_id;
	const char *(*measure) (const MeasureContext *mc, Page page,
							BlockNumber blkno, PageMeasure *pm);
}			methods[] =

{
	{BTREE_AM_OID, sizeof(BTPageOpaqueData), 0, MAX_BT_CYCLE_ID, measure_btree},
	{HASH_AM_OID, sizeof(HashPageOpaqueData), HASHO_PAGE_ID, HASHO_PAGE_ID, measure_hash},
	{GIN_AM_OID, sizeof(GinPageOpaqueData), 0, 0xFF, measure_gin},
	{GIST_AM_OID, sizeof(GISTPageOpaqueData), GIST_PAGE_ID, GIST_PAGE_ID, measure_gist},
	{SPGIST_AM_OID, sizeof(SpGistPageOpaqueData), SPGIST_PAGE_ID, SPGIST_PAGE_ID, measure_spgist},
	{BRIN_AM_OID, sizeof(BrinSpecialSpace), BRIN_PAGETYPE_META, BRIN_PAGETYPE_REGULAR, measure_brin},
};

/* Return whether page_measure() knows the access method. */
bool
page_measure_supports(Oid relam)
{
	for (int i = 0; i < lengthof(methods); i++)
		if (methods[i].relam == relam)
			return true;
	return false;
}

/*
 * Return whether a page that PageIsVerified() accepts may be one of this access
 * method, of tables, too: by the size of its special space, and the bytes at its
 * end that tell index pages apart.  A page of zeros, which core leaves behind, may
 * be any; so may the pages of other methods.
 */
bool
page_is_of(Oid relam, const char *page)
{
	uint16		id;
	Size		special = ((const PageHeaderData *) page)->pd_special;

	if (PageIsNew((Page) page))
		return true;
	if (relam == HEAP_TABLE_AM_OID)
		return special == BLCKSZ;
	memcpy(&id, page + BLCKSZ - sizeof(id), sizeof(id));
	for (int i = 0; i < lengthof(methods); i++)
		if (methods[i].relam == relam)
			return special == BLCKSZ - MAXALIGN(methods[i].special_size) &&
				id >= methods[i].lowest_id && id <= methods[i].highest_id;
	return true;
}

/*
 * Return a block that an index, or a table, with this first page must have, and
 * that is not empty: the root, the last bucket, the last page of BRIN's map.
 * InvalidBlockNumber if the page is not the first one of this access method.
 */
BlockNumber
page_root(Oid relam, Page page)
{
	HashMetaPage hash = HashPageGetMeta(page);
	bool		is_meta = true;
	BlockNumber root = 0;

	if (relam == HEAP_TABLE_AM_OID || !page_measure_supports(relam))
		return 0;
	if (PageIsNew(page) || !page_is_of(relam, page))
		return InvalidBlockNumber;
	switch (relam)
	{
		case BTREE_AM_OID:
			is_meta = BTPageGetMeta(page)->btm_magic == BTREE_MAGIC;
			root = BTPageGetMeta(page)->btm_root;
			break;
		case HASH_AM_OID:
			is_meta = hash->hashm_magic == HASH_MAGIC && hash->hashm_maxbucket < PG_INT32_MAX &&
				hash->hashm_ovflpoint < HASH_MAX_SPLITPOINTS &&
				_hash_spareindex(hash->hashm_maxbucket + 1) <= hash->hashm_ovflpoint;
			root = is_meta ? BUCKET_TO_BLKNO(hash, hash->hashm_maxbucket) : 0;
			break;
		case GIN_AM_OID:
			is_meta = GinPageGetOpaque(page)->flags == GIN_META;
			root = GIN_ROOT_BLKNO;
			break;
		case SPGIST_AM_OID:
			is_meta = SpGistPageGetMeta(page)->magicNumber == SPGIST_MAGIC_NUMBER;
			root = SPGIST_ROOT_BLKNO;
			break;
		case BRIN_AM_OID:
			is_meta = ((BrinMetaPageData *) PageGetContents(page))->brinMagic == BRIN_META_MAGIC;
			root = ((BrinMetaPageData *) PageGetContents(page))->lastRevmapPage;
			break;
	}
	return is_meta ? root : InvalidBlockNumber;
}

/*
 * Measure a private copy of a page.  Returns NULL, or the page's fault (a
 * fragment, not translated).  Never reads beyond the page.
 */
const char *
page_measure(const MeasureContext *mc, Page page, BlockNumber blkno, PageMeasure *pm)
{
	memset(pm, 0, sizeof(*pm));
	pm->count = 1;
	pm->kind = PAGE_EMPTY;
	if (PageIsNew(page))
		return NULL;			/* extended but not yet used, possibly since a
								 * crash */
	for (int i = 0; i < lengthof(methods); i++)
	{
		const char *problem;

		if (methods[i].relam != mc->relam)
			continue;
		problem = check_header(page, methods[i].special_size, pm);
		return problem ? problem : methods[i].measure(mc, page, blkno, pm);
	}
	return "unknown access method";
}
