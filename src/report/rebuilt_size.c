/*-------------------------------------------------------------------------
 *
 * rebuilt_size.c
 *	  How many pages an index would have after a rebuild.
 *
 * Bloat is what a rebuild would free, so this file computes for each access
 * method what its build makes of the bytes worth keeping.  For btree and hash
 * the build follows fillfactor and the number of rows.  For the others there
 * are two sizes, and the real one is in between: a GIN build depends on its
 * memory and on which rows have which keys; the operator class decides where
 * GiST and SP-GiST split a page; and the index does not tell which of BRIN's
 * summaries describe rows that are gone.
 *
 * Everything is smooth in the totals, not rounded to pages, so that the
 * sampling error can be computed by perturbing them (bloat.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/brin_tuple.h"
#include "access/gin_private.h"
#include "access/gist_private.h"
#include "access/hash.h"
#include "access/nbtree.h"
#include "access/spgist_private.h"
#include "catalog/pg_am_d.h"
#include "utils/float.h"

#include "report/report_private.h"

/*
 * How full fresh builds leave their pages: the extremes over operator classes
 * and data sets (docs/internals.md), with some margin.
 */
#define GIN_LEAST			0.35	/* pages of keys */
#define GIN_MOST			0.90
#define GIN_POSTING_DENSITY	0.977
#define GIST_LEAST			0.36
#define GIST_MOST			1.0 /* a sorting build ignores fillfactor */
#define SPGIST_LEAST		0.30
#define SPGIST_MOST			0.97

/* Add a page to the totals, as if there were weight such pages. */
void
page_totals_add(PageTotals *totals, const PageMeasure *pm, double weight)
{
	totals->count[pm->kind] += weight;
	totals->avail[pm->kind] += weight * pm->avail;
	totals->used[pm->kind] += weight * pm->used;
	totals->packed[pm->kind] += weight * pm->packed;
	totals->items[pm->kind] += weight * pm->items;
	totals->dead[pm->kind] += weight * pm->dead;
	totals->tuples[pm->kind] += weight * pm->tuples;
	totals->heavy[pm->kind] += weight * pm->heavy;
	totals->squares[pm->kind] += weight * pm->squares;
	totals->one_size[pm->kind] += weight * pm->one_size;
}

/*
 * Return the used share of the leaf pages, like avg_leaf_density of
 * pgstatindex: without deleted pages.  NaN without leaf pages.
 */
double
page_totals_density(const PageTotals *t)
{
	double		avail = t->avail[PAGE_LEAF] + t->avail[PAGE_OVERFLOW] +
		t->avail[PAGE_POSTING_LEAF] + t->avail[PAGE_POSTING_LAST];
	double		used = t->used[PAGE_LEAF] + t->used[PAGE_OVERFLOW] +
		t->used[PAGE_POSTING_LEAF] + t->used[PAGE_POSTING_LAST];

	return avail > 0 ? used / avail : get_float8_nan();
}

/* Set what a rebuild depends on, except what the metapage of hash says. */
void
rebuild_context_init(Relation index, RebuildContext *rc)
{
	memset(rc, 0, sizeof(*rc));
	rc->relam = index->rd_rel->relam;
	rc->hash_tuples = -1;
	rc->fillfactor = get_float8_nan();
	switch (rc->relam)
	{
		case BTREE_AM_OID:
			rc->fillfactor = BTGetFillFactor(index) / 100.0;
			break;
		case HASH_AM_OID:
			rc->fillfactor = HashGetFillFactor(index) / 100.0;
			break;
		case GIST_AM_OID:
			rc->fillfactor = (index->rd_options ?
							  ((GiSTOptions *) index->rd_options)->fillfactor :
							  GIST_DEFAULT_FILLFACTOR) / 100.0;
			break;
		case SPGIST_AM_OID:
			rc->fillfactor = SpGistGetFillFactor(index) / 100.0;
			break;
		case BRIN_AM_OID:
			/* a bitmap of two bits for each column, without values */
			rc->brin_least = sizeof(ItemIdData) +
				MAXALIGN(SizeOfBrinTuple + BITMAPLEN(2 * IndexRelationGetNumberOfAttributes(index)));
			break;
	}
}

/* Return the leaf pages that a build fills to this density with bytes. */
static double
leaf_pages(const PageTotals *t, double bytes, double density)
{
	double		count = t->count[PAGE_LEAF];
	double		page_size = count > 0 ? t->avail[PAGE_LEAF] / count : BLCKSZ;

	if (bytes <= 0)
		return 0;
	/* what is on one page now fits on one */
	if (count <= 1 && bytes <= t->packed[PAGE_LEAF])
		return 1;
	return Max(bytes / (density * page_size), 1);
}

/*
 * Return the internal pages above this many leaves, in proportion to the
 * current ones, because fan-out changes little.
 */
static double
internal_pages(const PageTotals *t, double leaves)
{
	double		now = t->count[PAGE_LEAF];

	if (leaves <= 1 || now <= 0)
		return 0;
	return Max(t->count[PAGE_INTERNAL] * leaves / now, 1);
}

static double
rebuilt_btree(const RebuildContext *rc, const PageTotals *t)
{
	double		pages = Max(t->count[PAGE_LEAF], 1);
	double		tuple_size = t->packed[PAGE_LEAF] / Max(t->tuples[PAGE_LEAF], 1);
	double		full = (1 - rc->fillfactor) * BLCKSZ;
	double		left_free;
	double		page_size;
	double		leaves;

	/*
	 * _bt_buildadd() closes a page with the tuple that exceeds the
	 * fillfactor, or when the next one does not fit.  The last tuple moves to
	 * the next page, and a high key remains: of the same size for a plain
	 * tuple, without the row pointers for a posting list.  At least one tuple
	 * remains, even with a low fillfactor.
	 */
	if (t->items[PAGE_LEAF] > 2 * t->tuples[PAGE_LEAF])
		left_free = Max(full - tuple_size / 2, tuple_size * 1.5);
	else
		left_free = Max(full - tuple_size / 2, tuple_size / 2);
	page_size = t->avail[PAGE_LEAF] / pages - left_free - t->heavy[PAGE_LEAF] / pages;
	leaves = t->packed[PAGE_LEAF] / Max(Max(page_size, tuple_size), 1);

	/* tuples of one size: count how many fit, which matters for large ones */
	if (t->one_size[PAGE_LEAF] >= 0.999 * pages && tuple_size > 0 &&
		t->items[PAGE_LEAF] <= 2 * t->tuples[PAGE_LEAF])
	{
		double		space = t->avail[PAGE_LEAF] / pages;

		leaves = t->tuples[PAGE_LEAF] /
			Max(Min(floor((space - full) / tuple_size), floor(space / tuple_size) - 1), 1);
	}
	if (leaves > 0 && leaves < 1)
		leaves = 1;
	return leaves + internal_pages(t, leaves);
}

/*
 * Return the expected number of pages of a hash bucket after its first, given
 * mean and standard deviation of its rows.
 */
static double
overflow_pages(double mean, double deviation, double capacity)
{
	double		pages = 0;

	for (int i = 1; i <= 20; i++)
		pages += 0.5 * erfc((i * capacity + 0.5 - mean) / (Max(deviation, 0.1) * M_SQRT2));
	return pages;
}

/*
 * A build fixes the number of buckets beforehand, in steps of a quarter of a
 * power of two.  In between, some buckets are split already and others have
 * twice as many rows, and overflow.
 */
static double
rebuilt_hash(const RebuildContext *rc, const PageTotals *t)
{
	double		capacity = (BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(HashPageOpaqueData))) /
		(sizeof(ItemIdData) + MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32)));
	double		rows = t->items[PAGE_LEAF] + t->items[PAGE_OVERFLOW];
	double		dead = t->dead[PAGE_LEAF] + t->dead[PAGE_OVERFLOW];
	double		heavy = t->heavy[PAGE_LEAF] + t->heavy[PAGE_OVERFLOW];
	double		squares = t->squares[PAGE_LEAF] + t->squares[PAGE_OVERFLOW];
	double		light_share = rows > 0 ? Max(1 - heavy / rows, 0) : 1;
	double		per_value = rows > heavy ? squares / (rows - heavy) : 1;
	double		overflow;
	double		wanted;
	double		buckets = 2;
	double		power = 2;
	double		unsplit;
	double		mean;

	/* the metapage's count has no sampling error */
	if (rc->hash_tuples >= 0 && rows + dead > 0)
		rows = rc->hash_tuples * rows / (rows + dead);

	/* as in _hash_init_metabuffer() */
	wanted = rows / Max(rc->hash_ffactor, 1);
	if (wanted > 2)
		buckets = _hash_get_totalbuckets(_hash_spareindex((uint32) Min(wanted, 1073741824.0)));
	while (power < buckets)
		power *= 2;
	unsplit = power - buckets;
	mean = rows * light_share / power;
	overflow = unsplit * overflow_pages(2 * mean, sqrt(2 * mean * per_value), capacity) +
		(buckets - unsplit) * overflow_pages(mean, sqrt(mean * per_value), capacity);
	/* rows of one value always share a bucket */
	overflow += Min(rows * (1 - light_share) / capacity, t->count[PAGE_OVERFLOW]);

	/* one bitmap page serves 32,768 overflow pages */
	return buckets + overflow + 1 + floor(overflow / 32768);
}

/* Return how many of the posting trees have more than one page. */
static double
gin_deep_trees(const PageTotals *t)
{
	return Min(t->count[PAGE_POSTING_INTERNAL], t->count[PAGE_POSTING_LAST]);
}

/*
 * Return how many posting trees a build turns into lists.  A short last page
 * does not prove a short tree: in a deep one it is short by chance.
 */
static double
gin_small_trees(const PageTotals *t)
{
	double		by_chance = gin_deep_trees(t) * GinMaxItemSize / GinDataPageMaxDataSize;

	return Max(t->tuples[PAGE_POSTING_LAST] - by_chance, 0);
}

/* Posting trees get rows in table order: all pages but the last are full. */
static double
rebuilt_gin(const RebuildContext *rc, const PageTotals *t)
{
	double		small = gin_small_trees(t);
	double		deep = gin_deep_trees(t);
	double		trees = t->count[PAGE_POSTING_LAST] - small;
	double		bytes = t->packed[PAGE_LEAF];
	double		leaves;
	double		posting = Max(trees - deep, 0);
	double		internal = t->count[PAGE_POSTING_INTERNAL];

	if (t->tuples[PAGE_POSTING_LAST] > 0)
		bytes += small * t->packed[PAGE_POSTING_LAST] / t->tuples[PAGE_POSTING_LAST];

	/* each key of the pending list may be just one more TID in a list */
	bytes += rc->smallest ? t->items[PAGE_PENDING] : t->packed[PAGE_PENDING];

	if (deep > 0)
	{
		double		last = t->used[PAGE_POSTING_LAST] / t->count[PAGE_POSTING_LAST];
		double		tree_bytes = t->packed[PAGE_POSTING_LEAF] / deep + last;
		double		full = tree_bytes / (GIN_POSTING_DENSITY * GinDataPageMaxDataSize);

		if (tree_bytes < GinMaxItemSize)
		{
			/* so short that a build makes lists of them */
			bytes += deep * tree_bytes;
			internal = 0;
		}
		else
		{
			posting += deep * Max(full + 0.5, 1);
			/* a tree of one page has no internal page */
			internal *= Min(full, 1);
		}
	}

	leaves = Max(leaf_pages(t, bytes, rc->smallest ? GIN_MOST : GIN_LEAST), 1);
	return leaves + internal_pages(t, leaves) + posting + internal;
}

static double
rebuilt_gist(const RebuildContext *rc, const PageTotals *t)
{
	double		density = rc->smallest ? GIST_MOST : GIST_LEAST;
	double		leaves = Max(leaf_pages(t, t->packed[PAGE_LEAF], density), 1);

	return leaves + internal_pages(t, leaves);
}

static double
rebuilt_spgist(const RebuildContext *rc, const PageTotals *t)
{
	double		leaves = leaf_pages(t, t->packed[PAGE_LEAF], rc->smallest ? SPGIST_MOST : SPGIST_LEAST);

	return leaves + t->count[PAGE_FIXED] +
		t->count[PAGE_INTERNAL] * (t->count[PAGE_LEAF] > 0 ? Min(leaves / t->count[PAGE_LEAF], 1) : 0);
}

/*
 * All ranges keep their summary, an empty one if their rows are gone.  A
 * summary is never split between pages.
 */
static double
rebuilt_brin(const RebuildContext *rc, const PageTotals *t)
{
	double		bytes = rc->smallest ? t->tuples[PAGE_LEAF] * rc->brin_least : t->packed[PAGE_LEAF];
	double		wasted = bytes / Max(t->tuples[PAGE_LEAF], 1) * t->count[PAGE_LEAF] / Max(t->avail[PAGE_LEAF], 1);

	return leaf_pages(t, Min(bytes, t->packed[PAGE_LEAF]), Max(1 - wasted, 0.5)) + t->count[PAGE_FIXED];
}

/*
 * Return the pages after a rebuild, with metapage: if there are two sizes,
 * the larger one, or the smaller one with rc->smallest.
 */
double
rebuilt_pages(const RebuildContext *rc, const PageTotals *t)
{
	switch (rc->relam)
	{
		case BTREE_AM_OID:
			return 1 + rebuilt_btree(rc, t);
		case HASH_AM_OID:
			return 1 + rebuilt_hash(rc, t);
		case GIN_AM_OID:
			return 1 + rebuilt_gin(rc, t);
		case GIST_AM_OID:
			return rebuilt_gist(rc, t);
		case SPGIST_AM_OID:
			return 1 + rebuilt_spgist(rc, t);
		case BRIN_AM_OID:
			return 1 + rebuilt_brin(rc, t);
	}
	return get_float8_nan();
}
