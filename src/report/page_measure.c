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
 * Tricky: the access methods have only the page header in common.  GIN's posting tree
 * pages have no line pointers, BRIN keeps its type in the last two bytes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/brin_page.h"
#include "access/gin_private.h"
#include "access/gist_private.h"
#include "access/hash.h"
#include "access/itup.h"
#include "access/nbtree.h"
#include "access/spgist_private.h"
#include "catalog/pg_am_d.h"
#include "utils/float.h"
#include "utils/rel.h"

#include "report/report.h"
#include "report/report_private.h"

/* as in core's _bt_load(): the longest posting list of a build */
#define BTREE_BUILD_POSTING_SIZE \
	(MAXALIGN_DOWN((BLCKSZ * 10 / 100)) - sizeof(ItemIdData))

/* A tuple and, for btree, the run of tuples with its key that it belongs to */
typedef struct IndexItem
{
	char	   *data;
	Size		len;
	double		bytes;			/* with the line pointer */

	const char *key;			/* of the run, without the header */
	Size		key_size;		/* with it */
	uint16		key_flags;		/* null and variable-width flags */
	double		run_rows;		/* so far; 0 = no run yet */
	double		run_tuples;		/* after a rebuild */
	double		run_bytes;
} IndexItem;

/*
 * Count a tuple of btree that is not dead, and return the bytes that it adds to the bytes of
 * a rebuild; -1 if it is damaged.  The duplicates in a run go to posting lists of the
 * greatest length that a build makes.
 */
static double
btree_item(const IndexFacts *facts, IndexItem *item, PageMeasure *pm)
{
	IndexTuple	itup = (IndexTuple) item->data;
	Size		size = IndexTupleSize(itup);
	const char *key = item->data + sizeof(IndexTupleData);
	uint16		flags = itup->t_info & (INDEX_NULL_MASK | INDEX_VAR_MASK);
	int			rows = 1;
	int			per_tuple = 1;
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
	pm->rows += rows;
	if (!facts->deduplicates)
	{
		pm->tuples += 1;
		return item->bytes;
	}
	if (item->run_rows == 0 || size != item->key_size || flags != item->key_flags ||
		memcmp(key, item->key, size - sizeof(IndexTupleData)) != 0)
		item->run_rows = item->run_tuples = item->run_bytes = 0;
	item->key = key;
	item->key_size = size;
	item->key_flags = flags;
	item->run_rows += rows;

	if (size + 2 * sizeof(ItemPointerData) <= BTREE_BUILD_POSTING_SIZE)
		per_tuple = (BTREE_BUILD_POSTING_SIZE - size) / sizeof(ItemPointerData);
	tuples = ceil(item->run_rows / per_tuple);
	bytes = tuples * (sizeof(ItemIdData) + MAXALIGN(size)) +
		(item->run_rows > tuples ? item->run_rows * sizeof(ItemPointerData) : 0);
	pm->tuples += tuples - item->run_tuples;
	item->run_tuples = tuples;
	bytes -= item->run_bytes;
	item->run_bytes += bytes;
	return bytes;
}

/* As btree_item(), of another access method. */
static double
other_item(const IndexFacts *facts, IndexItem *item, PageMeasure *pm)
{
	/* vacuum empties posting lists but never removes a key */
	if (facts->relam == GIN_AM_OID && pm->kind == PAGE_LEAF &&
		GinGetNPosting((IndexTuple) item->data) == 0)
		return 0;
	/* tuples of a hash index are in the order of their codes */
	if (facts->relam == HASH_AM_OID)
	{
		const char *code = item->data + sizeof(IndexTupleData);

		if (item->key == NULL || memcmp(code, item->key, sizeof(uint32)) != 0)
			pm->keys += 1;
		item->key = code;
	}
	pm->rows += 1;
	pm->tuples += 1;
	return item->bytes;
}

/* An access method; the flags of a page tell its kind. */
typedef struct Method
{
	Oid			relam;
	int			fillfactor;		/* default; 0 = the method has none */
	uint32		magic;			/* of the metapage; 0 = none */
	BlockNumber root;			/* if that is always the same */

	Size		special_size;
	uint16		lowest_id;		/* of the last two bytes of a page */
	uint16		highest_id;
	Size		flags_at;		/* in the special space */
	uint16		meta;			/* flags */
	uint16		empty;
	uint16		leaf;

	Size		min_tuple;		/* 0 = page_measure() is not for it */
} Method;

static const Method methods[] = {
	{BTREE_AM_OID, BTREE_DEFAULT_FILLFACTOR, BTREE_MAGIC, 0,
		sizeof(BTPageOpaqueData), 0, MAX_BT_CYCLE_ID, offsetof(BTPageOpaqueData, btpo_flags),
		BTP_META, BTP_DELETED | BTP_HALF_DEAD, BTP_LEAF,
	sizeof(IndexTupleData)},
	{HASH_AM_OID, HASH_DEFAULT_FILLFACTOR, HASH_MAGIC, 0,
		sizeof(HashPageOpaqueData), HASHO_PAGE_ID, HASHO_PAGE_ID,
		offsetof(HashPageOpaqueData, hasho_flag),
		LH_META_PAGE, 0, LH_BUCKET_PAGE | LH_OVERFLOW_PAGE,
	sizeof(IndexTupleData) + sizeof(uint32)},
	{GIN_AM_OID, 0, 0, GIN_ROOT_BLKNO,
		sizeof(GinPageOpaqueData), 0, 0xFF, offsetof(GinPageOpaqueData, flags),
		GIN_META, GIN_DELETED, GIN_LEAF,
	sizeof(IndexTupleData)},
	{GIST_AM_OID, GIST_DEFAULT_FILLFACTOR, 0, GIST_ROOT_BLKNO,
		sizeof(GISTPageOpaqueData), GIST_PAGE_ID, GIST_PAGE_ID, offsetof(GISTPageOpaqueData, flags),
		0, F_DELETED, F_LEAF,
	sizeof(IndexTupleData)},
	{SPGIST_AM_OID, SPGIST_DEFAULT_FILLFACTOR, SPGIST_MAGIC_NUMBER, SPGIST_ROOT_BLKNO,
	sizeof(SpGistPageOpaqueData), SPGIST_PAGE_ID, SPGIST_PAGE_ID},
	{BRIN_AM_OID, 0, BRIN_META_MAGIC, 0,
	sizeof(BrinSpecialSpace), BRIN_PAGETYPE_META, BRIN_PAGETYPE_REGULAR},
};

/* Return the flags of a page that page_is_of() this method. */
static uint16
page_flags(const Method *method, Page page)
{
	return *(uint16 *) (PageGetSpecialPointer(page) + method->flags_at);
}

/* Return our facts about an access method, NULL if there are none. */
static const Method *
find_method(Oid relam)
{
	for (int i = 0; i < lengthof(methods); i++)
	{
		if (methods[i].relam == relam)
			return &methods[i];
	}
	return NULL;
}

/* Set the facts from the catalog.  Returns whether page_measure() knows the access method. */
bool
page_measure_facts(Relation index, IndexFacts *facts)
{
	const Method *method = find_method(index->rd_rel->relam);

	/* the options of all that have a fillfactor begin alike */
	StaticAssertStmt(offsetof(StdRdOptions, fillfactor) == offsetof(BTOptions, fillfactor) &&
					 offsetof(StdRdOptions, fillfactor) == offsetof(GiSTOptions, fillfactor),
					 "the options of an index are not like those of a table");
	facts->relam = index->rd_rel->relam;
	facts->fillfactor = method != NULL && method->fillfactor > 0 ?
		RelationGetFillFactor(index, method->fillfactor) / 100.0 : get_float8_nan();
	return method != NULL && method->min_tuple > 0;
}

/* Return whether the pages of an access method are known here. */
bool
page_is_known(Oid relam)
{
	return find_method(relam) != NULL;
}

/*
 * Return whether a page that PageIsVerified() accepts may be of this access
 * method, of tables, too: by the size of its special space, and the bytes at its
 * end.  A page of zeros may be any; so may the pages of other methods.
 */
bool
page_is_of(Oid relam, const char *page)
{
	uint16		id;
	Size		special = ((const PageHeaderData *) page)->pd_special;
	const Method *method = find_method(relam);

	if (PageIsNew((Page) page))
		return true;
	if (relam == HEAP_TABLE_AM_OID)
		return special == BLCKSZ;
	memcpy(&id, page + BLCKSZ - sizeof(id), sizeof(id));
	return method == NULL ||
		(special == BLCKSZ - MAXALIGN(method->special_size) &&
		 id >= method->lowest_id && id <= method->highest_id);
}

/*
 * Return whether a page that page_is_of() an access method says that it is a metapage, which
 * only the first page can be.
 */
bool
page_is_meta(Oid relam, Page page)
{
	const Method *method = find_method(relam);

	if (PageIsNew(page) || method == NULL)
		return false;
	if (relam == BRIN_AM_OID)
		return BRIN_IS_META_PAGE(page);
	if (relam == SPGIST_AM_OID)
		return SpGistPageIsMeta(page);
	return (page_flags(method, page) & method->meta) != 0;
}

/*
 * Return a block that a relation with this first page must have, not empty: the
 * root, the last bucket, the last page of BRIN's map.  InvalidBlockNumber if the
 * page is not the first of this access method.  *spare, unless spare is NULL, is
 * the last of the blocks after it that may be empty, 0 if none may: a hash index makes
 * the pages of buckets ahead.
 */
BlockNumber
page_root(Oid relam, Page page, BlockNumber *spare)
{
	const Method *method = find_method(relam);
	HashMetaPage hash = HashPageGetMeta(page);

	if (spare != NULL)
		*spare = 0;
	if (method == NULL)
		return 0;
	if (PageIsNew(page) || !page_is_of(relam, page) ||
		(page_flags(method, page) & method->meta) != method->meta ||
		(method->magic != 0 && *(uint32 *) PageGetContents(page) != method->magic))
		return InvalidBlockNumber;
	switch (relam)
	{
		case BTREE_AM_OID:
			return BTPageGetMeta(page)->btm_root;
		case HASH_AM_OID:
			if (hash->hashm_maxbucket >= PG_INT32_MAX ||
				hash->hashm_ovflpoint >= HASH_MAX_SPLITPOINTS ||
				_hash_spareindex(hash->hashm_maxbucket + 1) > hash->hashm_ovflpoint ||
				BUCKET_TO_BLKNO(hash, hash->hashm_maxbucket) <= hash->hashm_maxbucket)
				return InvalidBlockNumber;
			if (spare != NULL)
			{
				uint32		phase = _hash_spareindex(hash->hashm_maxbucket + 1);

				*spare = BUCKET_TO_BLKNO(hash, _hash_get_totalbuckets(phase) - 1);
			}
			return BUCKET_TO_BLKNO(hash, hash->hashm_maxbucket);
		case BRIN_AM_OID:
			return ((BrinMetaPageData *) PageGetContents(page))->lastRevmapPage;
	}
	return method->root;
}

/* Count the tuples of a page whose header was checked.  Returns its fault. */
static const char *
count_items(const IndexFacts *facts, const Method *method, Page page, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;
	OffsetNumber last = (ph->pd_lower - SizeOfPageHeaderData) / sizeof(ItemIdData);
	OffsetNumber first = FirstOffsetNumber;

	/* three tuples of GIN fit on a page, on which the simulated build relies */
	Size		most = facts->relam == GIN_AM_OID ? GinMaxItemSize : BLCKSZ;
	double		all = 0;
	IndexItem	item = {0};

	if (facts->relam == BTREE_AM_OID)
		first = P_FIRSTDATAKEY((BTPageOpaque) PageGetSpecialPointer(page));
	pm->packed = 0;
	for (OffsetNumber offnum = first; offnum <= last; offnum++)
	{
		ItemId		iid = PageGetItemId(page, offnum);
		Size		start = ItemIdGetOffset(iid);
		double		bytes;

		item.data = (char *) page + start;
		item.len = ItemIdGetLength(iid);
		item.bytes = sizeof(ItemIdData) + MAXALIGN(item.len);
		if (item.len < method->min_tuple || item.len > most || start < ph->pd_upper ||
			start + item.len > ph->pd_special || start != MAXALIGN(start))
			return "invalid tuple";
		all += item.bytes;
		if (ItemIdIsDead(iid))
		{
			pm->rows += 1;
			continue;
		}
		if (facts->relam == BTREE_AM_OID)
			bytes = btree_item(facts, &item, pm);
		else
			bytes = other_item(facts, &item, pm);
		if (bytes < 0)
			return "invalid tuple";
		pm->packed += bytes;
	}
	if (all > pm->used)
		return "tuples overlap";
	/* with keys that span pages, merging can seem to cost space */
	pm->packed = Min(pm->packed, all);
	return NULL;
}

/*
 * Return the most bytes that were ever used of a page: between line pointers and tuples, the
 * longest run of zeros.  Deletions move tuples together (compactify_tuples()), and leave
 * bytes of them.
 */
static double
peak_of_page(Page page, double avail)
{
	PageHeader	ph = (PageHeader) page;
	int			longest = 0;
	int			run = 0;

	for (int at = MAXALIGN(ph->pd_lower); at + 8 <= ph->pd_upper; at += 8)
	{
		uint64		word;

		memcpy(&word, (char *) page + at, sizeof(word));
		run = word == 0 ? run + sizeof(word) : 0;
		longest = Max(longest, run);
	}
	return avail - longest;
}

/* Measure a page for the estimate of a rebuild of GiST or hash. */
static void
measure_rebuild(const IndexFacts *facts, Page page, uint16 flags, PageMeasure *pm)
{
	if (facts->relam == HASH_AM_OID && (flags & LH_BUCKET_PAGE) && pm->tuples > 0)
		pm->buckets = 1;
	if (facts->relam != GIST_AM_OID)
		return;
	pm->peak = peak_of_page(page, pm->avail);

	/*
	 * a full-page image of a crash or a standby has no bytes of a row that
	 * was deleted
	 */
	if ((flags & F_TUPLES_DELETED) && pm->peak <= pm->used + sizeof(uint64) + sizeof(ItemIdData))
		pm->peak = Max(pm->peak, GIST_DENSITY * pm->avail);
}

/*
 * Measure a private copy of a page.  Returns NULL, or the page's fault (a
 * fragment, not translated).  Never reads beyond the page.
 */
const char *
page_measure(const IndexFacts *facts, Page page, PageMeasure *pm)
{
	PageHeader	ph = (PageHeader) page;
	const Method *method = find_method(facts->relam);
	uint16		flags;

	Assert(method != NULL && method->min_tuple > 0);
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
	/* PageGetFreeSpace() reserves space for another line pointer */
	pm->used = pm->packed = pm->avail - PageGetFreeSpace(page);

	flags = page_flags(method, page);
	if (flags & method->meta)
		return "unexpected metapage";
	if (flags & method->empty)
		return NULL;
	pm->kind = (flags & method->leaf) ? PAGE_LEAF : PAGE_INTERNAL;
	if (facts->relam == GIN_AM_OID && (flags & GIN_LIST))
		pm->kind = PAGE_PENDING;
	else if (facts->relam == GIN_AM_OID && (flags & GIN_DATA) && pm->kind == PAGE_LEAF)
	{
		pm->kind = PAGE_POSTING;
		/* the rightmost page, most often the only page, counts for its tree */
		pm->tuples = ((GinPageOpaque) PageGetSpecialPointer(page))->rightlink == InvalidBlockNumber;
		if (pm->tuples > 0 && pm->used <= GinMaxItemSize)
		{
			pm->small = 1;
			pm->small_bytes = pm->used;
		}
	}
	if (pm->kind == PAGE_LEAF || pm->kind == PAGE_PENDING)
	{
		const char *problem = count_items(facts, method, page, pm);

		if (problem == NULL)
			measure_rebuild(facts, page, flags, pm);
		return problem;
	}
	return NULL;
}
