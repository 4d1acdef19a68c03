/*-------------------------------------------------------------------------
 *
 * page_measure.c
 *	  The contents of an index page: kind, bytes used, bytes worth keeping.
 *
 * The flags of a page tell its kind, and each access method has a function for a
 * tuple of a page of leaves.  They get a private copy of the page, so nothing
 * changes under them.  Every offset and length is checked before use, because a
 * report must survive a damaged index.
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

/* as in core's _bt_load(): the longest posting list of a build */
#define BTREE_BUILD_POSTING_SIZE \
	(MAXALIGN_DOWN((BLCKSZ * 10 / 100)) - sizeof(ItemIdData))

#define HASH_TUPLE_SIZE		(sizeof(IndexTupleData) + sizeof(uint32))
#define HASH_HALF_PAGE \
	((int) (BLCKSZ / 2 / (sizeof(ItemIdData) + MAXALIGN(HASH_TUPLE_SIZE))))

/* A tuple, and the run of tuples with its key that it belongs to */
typedef struct IndexItem
{
	char	   *data;
	Size		len;
	double		bytes;			/* with the line pointer */
	bool		dead;

	const char *key;			/* of the run; btree: without the header */
	Size		key_len;
	uint16		key_flags;		/* btree: null and variable-width flags */
	int			run_rows;		/* before this tuple; 0 = no run yet */
} IndexItem;

/*
 * Count a tuple that is not dead, and return the bytes that it adds to those of
 * a rebuild; -1 if it is damaged.
 */
typedef double (*CountItem) (const IndexFacts *facts, IndexItem *item, PageMeasure *pm);

/* Return the bytes of a build's tuples for a key with this many rows. */
static double
btree_run_bytes(Size key_len, int rows, double *tuples)
{
	Size		base = sizeof(IndexTupleData) + key_len;
	int			per_tuple = 1;

	if (base + 2 * sizeof(ItemPointerData) <= BTREE_BUILD_POSTING_SIZE)
		per_tuple = (BTREE_BUILD_POSTING_SIZE - base) / sizeof(ItemPointerData);
	*tuples = (rows + per_tuple - 1) / per_tuple;
	return *tuples * (sizeof(ItemIdData) + MAXALIGN(base)) +
		(rows > *tuples ? rows * sizeof(ItemPointerData) : 0);
}

static double
btree_item(const IndexFacts *facts, IndexItem *item, PageMeasure *pm)
{
	IndexTuple	itup = (IndexTuple) item->data;
	Size		size = IndexTupleSize(itup);
	const char *key = item->data + sizeof(IndexTupleData);
	uint16		flags = itup->t_info & (INDEX_NULL_MASK | INDEX_VAR_MASK);
	int			rows = 1;
	double		bytes_before = 0;
	double		tuples_before = 0;
	double		bytes;
	double		tuples;

	if (size < sizeof(IndexTupleData) || size > item->len)
		return -1;
	if (BTreeTupleIsPosting(itup))
	{
		Size		offset = BTreeTupleGetPostingOffset(itup);

		rows = BTreeTupleGetNPosting(itup);
		if (offset < sizeof(IndexTupleData) || rows < 1 ||
			offset + rows * sizeof(ItemPointerData) > size)
			return -1;
		size = offset;
	}
	size -= sizeof(IndexTupleData);
	pm->rows += rows;
	if (!facts->deduplicates)
	{
		pm->tuples += 1;
		return item->bytes;
	}
	if (item->run_rows > 0 && size == item->key_len && flags == item->key_flags &&
		memcmp(key, item->key, size) == 0)
		bytes_before = btree_run_bytes(size, item->run_rows, &tuples_before);
	else
		item->run_rows = 0;
	item->key = key;
	item->key_len = size;
	item->key_flags = flags;
	item->run_rows += rows;
	bytes = btree_run_bytes(size, item->run_rows, &tuples);
	pm->tuples += tuples - tuples_before;
	return bytes - bytes_before;
}

/*
 * Tuples are sorted by hash value.  One value has one bucket, so a value with
 * more rows than half a page needs overflow pages with any number of buckets.
 */
static double
hash_item(const IndexFacts *facts, IndexItem *item, PageMeasure *pm)
{
	const char *key = item->data + sizeof(IndexTupleData);

	if (item->run_rows == 0 || memcmp(key, item->key, sizeof(uint32)) != 0)
		item->run_rows = 0;
	item->key = key;
	if (item->run_rows < HASH_HALF_PAGE)
		pm->squares += 2 * item->run_rows + 1;
	else if (item->run_rows == HASH_HALF_PAGE)
	{
		pm->squares -= (double) HASH_HALF_PAGE * HASH_HALF_PAGE;
		pm->heavy += HASH_HALF_PAGE + 1;
	}
	else
		pm->heavy += 1;
	item->run_rows++;
	pm->rows += 1;
	pm->tuples += 1;
	return item->bytes;
}

/* Measure a page of a posting tree, which has no line pointers. */
static const char *
gin_posting_page(Page page, GinPageOpaque opaque, PageMeasure *pm)
{
	Size		head = MAXALIGN(SizeOfPageHeaderData) + MAXALIGN(sizeof(ItemPointerData));

	if (!(opaque->flags & GIN_LEAF))
	{
		pm->kind = PAGE_INTERNAL;
		return NULL;
	}
	pm->avail = GinDataPageMaxDataSize;
	if (!(opaque->flags & GIN_COMPRESSED))	/* from before 9.4 */
		pm->used = opaque->maxoff * sizeof(ItemPointerData);
	else if (((PageHeader) page)->pd_lower < head)
		return "invalid page header";
	else
		pm->used = ((PageHeader) page)->pd_lower - head;
	if (pm->used > pm->avail)
		return "too many items";
	pm->packed = pm->used;
	pm->kind = PAGE_POSTING;
	/* the rightmost page, and most often the only one, counts for its tree */
	if (opaque->rightlink == InvalidBlockNumber && pm->used > 0)
		pm->tuples = 1;
	return NULL;
}

static double
gin_item(const IndexFacts *facts, IndexItem *item, PageMeasure *pm)
{
	/* vacuum empties posting lists but never removes a key */
	if (pm->kind == PAGE_LEAF && GinGetNPosting((IndexTuple) item->data) == 0)
		return 0;
	pm->tuples += 1;
	return item->bytes;
}

/* Count a tuple for one row, or one summary of BRIN. */
static double
row_item(const IndexFacts *facts, IndexItem *item, PageMeasure *pm)
{
	pm->rows += 1;
	pm->tuples += 1;
	return item->bytes;
}

static double
spgist_item(const IndexFacts *facts, IndexItem *item, PageMeasure *pm)
{
	/* all kinds of tuples have the state in the same place */
	if (((SpGistDeadTuple) item->data)->tupstate != SPGIST_LIVE)
		return 0;
	return row_item(facts, item, pm);
}

#define BRIN_FLAG(type)		(1 << ((type) - BRIN_PAGETYPE_META))

/* An access method; of the flags of a page, the first that it has tells its kind. */
static const struct
{
	Oid			relam;
	Size		special_size;
	uint16		lowest_id;		/* of the last two bytes of a page */
	uint16		highest_id;
	uint16		meta;
	uint16		empty;
	uint16		fixed;
	uint16		pending;
	uint16		leaf;
	PageKind	other;			/* the kind without any of them */
	Size		min_tuple;
	CountItem	count_item;
}			methods[] =

{
	{BTREE_AM_OID, sizeof(BTPageOpaqueData), 0, MAX_BT_CYCLE_ID,
		BTP_META, BTP_DELETED | BTP_HALF_DEAD, 0, 0, BTP_LEAF, PAGE_INTERNAL,
	sizeof(IndexTupleData), btree_item},
	{HASH_AM_OID, sizeof(HashPageOpaqueData), HASHO_PAGE_ID, HASHO_PAGE_ID,
		LH_META_PAGE, 0, LH_BITMAP_PAGE, 0, LH_BUCKET_PAGE | LH_OVERFLOW_PAGE, PAGE_EMPTY,
	HASH_TUPLE_SIZE, hash_item},
	{GIN_AM_OID, sizeof(GinPageOpaqueData), 0, 0xFF,
		GIN_META, GIN_DELETED, 0, GIN_LIST, GIN_LEAF, PAGE_INTERNAL,
	sizeof(IndexTupleData), gin_item},
	{GIST_AM_OID, sizeof(GISTPageOpaqueData), GIST_PAGE_ID, GIST_PAGE_ID,
		0, F_DELETED, 0, 0, F_LEAF, PAGE_INTERNAL,
	sizeof(IndexTupleData), row_item},
	{SPGIST_AM_OID, sizeof(SpGistPageOpaqueData), SPGIST_PAGE_ID, SPGIST_PAGE_ID,
		SPGIST_META, 0, 0, 0, SPGIST_LEAF, PAGE_INTERNAL,
	sizeof(SpGistDeadTupleData), spgist_item},
	{BRIN_AM_OID, sizeof(BrinSpecialSpace), BRIN_PAGETYPE_META, BRIN_PAGETYPE_REGULAR,
		BRIN_FLAG(BRIN_PAGETYPE_META), 0, BRIN_FLAG(BRIN_PAGETYPE_REVMAP), 0, 0, PAGE_LEAF,
	sizeof(BlockNumber), row_item},
};

/* Return the flags of a page that page_is_of() this method. */
static uint16
page_flags(Oid relam, Page page)
{
	void	   *special = PageGetSpecialPointer(page);

	switch (relam)
	{
		case BTREE_AM_OID:
			return ((BTPageOpaque) special)->btpo_flags;
		case HASH_AM_OID:
			return ((HashPageOpaque) special)->hasho_flag;
		case GIN_AM_OID:
			return ((GinPageOpaque) special)->flags;
		case GIST_AM_OID:
			return ((GISTPageOpaque) special)->flags;
		case SPGIST_AM_OID:
			return ((SpGistPageOpaque) special)->flags;
	}
	return BRIN_FLAG(BrinPageType(page));
}

/* Return the number in methods[] of an access method, -1 if it is not known. */
static int
find_method(Oid relam)
{
	for (int i = 0; i < lengthof(methods); i++)
		if (methods[i].relam == relam)
			return i;
	return -1;
}

/* Return whether page_measure() knows the access method. */
bool
page_measure_supports(Oid relam)
{
	return find_method(relam) >= 0;
}

/*
 * Return whether a page that PageIsVerified() accepts may be one of this access
 * method, of tables, too: by the size of its special space, and the bytes at its
 * end.  A page of zeros may be any; so may the pages of other methods.
 */
bool
page_is_of(Oid relam, const char *page)
{
	uint16		id;
	Size		special = ((const PageHeaderData *) page)->pd_special;
	int			method = find_method(relam);

	if (PageIsNew((Page) page))
		return true;
	if (relam == HEAP_TABLE_AM_OID)
		return special == BLCKSZ;
	memcpy(&id, page + BLCKSZ - sizeof(id), sizeof(id));
	return method < 0 ||
		(special == BLCKSZ - MAXALIGN(methods[method].special_size) &&
		 id >= methods[method].lowest_id && id <= methods[method].highest_id);
}

/*
 * Return a block that a relation with this first page must have, not empty: the
 * root, the last bucket, the last page of BRIN's map.  InvalidBlockNumber if the
 * page is not the first one of this access method.
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

/* Count the tuples of a page whose header was checked.  Returns its fault. */
static const char *
count_items(const IndexFacts *facts, int method, Page page, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;
	OffsetNumber last = (ph->pd_lower - SizeOfPageHeaderData) / sizeof(ItemIdData);
	OffsetNumber first = FirstOffsetNumber;
	double		all = 0;
	Size		smallest = BLCKSZ;
	Size		largest = 0;
	IndexItem	item = {0};

	if (facts->relam == BTREE_AM_OID)
		first = P_FIRSTDATAKEY((BTPageOpaque) PageGetSpecialPointer(page));
	pm->packed = 0;
	for (OffsetNumber offnum = first; offnum <= last; offnum++)
	{
		ItemId		iid = PageGetItemId(page, offnum);
		Size		start = ItemIdGetOffset(iid);
		double		bytes;

		/* BRIN leaves unused line pointers */
		if (facts->relam == BRIN_AM_OID && !ItemIdIsUsed(iid))
			continue;
		item.data = (char *) page + start;
		item.len = ItemIdGetLength(iid);
		item.bytes = sizeof(ItemIdData) + MAXALIGN(item.len);
		if (item.len < methods[method].min_tuple || start < ph->pd_upper ||
			start + item.len > ph->pd_special || start != MAXALIGN(start))
			return "invalid tuple";
		all += item.bytes;
		smallest = Min(smallest, MAXALIGN(item.len));
		largest = Max(largest, MAXALIGN(item.len));
		if (ItemIdIsDead(iid))
		{
			pm->rows += 1;
			continue;
		}
		bytes = methods[method].count_item(facts, &item, pm);
		if (bytes < 0)
			return "invalid tuple";
		pm->packed += bytes;
	}
	if (all > pm->used)
		return "tuples overlap";
	/* with keys that span pages, merging can seem to cost space */
	pm->packed = Min(pm->packed, all);
	pm->one_size = smallest >= largest ? 1 : 0;
	return NULL;
}

/*
 * Measure a private copy of a page.  Returns NULL, or the page's fault (a
 * fragment, not translated).  Never reads beyond the page.
 */
const char *
page_measure(const IndexFacts *facts, Page page, BlockNumber blkno, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;
	int			method = find_method(facts->relam);
	uint16		flags;
	const char *problem;

	Assert(method >= 0);
	memset(pm, 0, sizeof(*pm));
	pm->count = 1;
	pm->kind = PAGE_EMPTY;
	/* extended but not yet used, possibly since a crash */
	if (PageIsNew(page))
		return NULL;
	if (ph->pd_lower < SizeOfPageHeaderData || ph->pd_lower > ph->pd_upper ||
		ph->pd_upper > ph->pd_special || PageGetPageSize(page) != BLCKSZ)
		return "invalid page header";
	if (!page_is_of(facts->relam, (char *) page))
		return "not of this access method";
	pm->avail = ph->pd_special - SizeOfPageHeaderData;
	/* PageGetFreeSpace() reserves space for one more line pointer */
	pm->used = pm->packed = pm->avail - PageGetFreeSpace(page);

	flags = page_flags(facts->relam, page);
	if (flags & methods[method].meta)
		return "unexpected metapage";
	if (facts->relam == GIN_AM_OID && (flags & (GIN_DATA | GIN_DELETED)) == GIN_DATA)
		return gin_posting_page(page, (GinPageOpaque) PageGetSpecialPointer(page), pm);
	/* a build makes both roots of SP-GiST, full or not */
	if (facts->relam == SPGIST_AM_OID && SpGistBlockIsFixed(blkno))
		pm->kind = PAGE_FIXED;
	else
		pm->kind = (flags & methods[method].empty) ? PAGE_EMPTY :
			(flags & methods[method].fixed) ? PAGE_FIXED :
			(flags & methods[method].pending) ? PAGE_PENDING :
			(flags & methods[method].leaf) ? PAGE_LEAF : methods[method].other;
	if (pm->kind != PAGE_LEAF && pm->kind != PAGE_PENDING && facts->relam != SPGIST_AM_OID)
		return NULL;
	problem = count_items(facts, method, page, pm);
	/* SP-GiST and BRIN do not mark a page whose tuples are all gone */
	if (pm->tuples == 0 && pm->kind != PAGE_FIXED &&
		(facts->relam == SPGIST_AM_OID || facts->relam == BRIN_AM_OID))
		pm->kind = PAGE_EMPTY;
	return problem;
}
