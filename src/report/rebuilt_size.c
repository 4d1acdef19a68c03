/*-------------------------------------------------------------------------
 *
 * rebuilt_size.c
 *	  How many pages an index would have after a rebuild.
 *
 * Each access method has a function that computes the size of a build from the
 * bytes worth keeping.  A build of btree and hash follows fillfactor and the
 * number of rows.  For the others there are two sizes, and the real one is in
 * between: a GIN build depends on its memory and on the keys of each row; the
 * operator class decides where GiST and SP-GiST split a page; and BRIN's
 * summaries do not tell whether their rows are gone.
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
	PageMeasure *sum = &totals->of[pm->kind];

	Assert(pm->kind < PAGE_KINDS && pm->packed <= pm->used && pm->used <= pm->avail);
	sum->count += weight * pm->count;
	sum->avail += weight * pm->avail;
	sum->used += weight * pm->used;
	sum->packed += weight * pm->packed;
	sum->items += weight * pm->items;
	sum->dead += weight * pm->dead;
	sum->tuples += weight * pm->tuples;
	sum->heavy += weight * pm->heavy;
	sum->squares += weight * pm->squares;
	sum->one_size += weight * pm->one_size;
}

/*
 * Return the used share of the leaf pages, like avg_leaf_density of
 * pgstatindex: without deleted pages.  NaN without leaf pages.
 */
double
page_totals_density(const PageTotals *t)
{
	double		avail = t->of[PAGE_LEAF].avail + t->of[PAGE_OVERFLOW].avail +
		t->of[PAGE_POSTING_LEAF].avail + t->of[PAGE_POSTING_LAST].avail;
	double		used = t->of[PAGE_LEAF].used + t->of[PAGE_OVERFLOW].used +
		t->of[PAGE_POSTING_LEAF].used + t->of[PAGE_POSTING_LAST].used;

	return avail > 0 ? used / avail : get_float8_nan();
}

/* Set all facts about a rebuild but those in the metapage of hash. */
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
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		count = leaf->count;
	double		page_size = count > 0 ? leaf->avail / count : BLCKSZ;

	if (bytes <= 0)
		return 0;
	/* the contents of one page fit on one */
	if (count <= 1 && bytes <= leaf->packed)
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
	double		now = t->of[PAGE_LEAF].count;

	if (leaves <= 1 || now <= 0)
		return 0;
	return Max(t->of[PAGE_INTERNAL].count * leaves / now, 1);
}

static double
rebuilt_btree(const RebuildContext *rc, const PageTotals *t)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		pages = Max(leaf->count, 1);
	double		tuple_size = leaf->packed / Max(leaf->tuples, 1);
	double		full = (1 - rc->fillfactor) * BLCKSZ;
	double		left_free;
	double		page_size;
	double		leaves;

	/*
	 * _bt_buildadd() closes a page with the tuple that exceeds the
	 * fillfactor, or before one that does not fit.  The last tuple moves to
	 * the next page, and leaves a high key: of its size, but without a
	 * posting list's row pointers.  At least one tuple stays, even with a low
	 * fillfactor.
	 */
	if (leaf->items > 2 * leaf->tuples)
		left_free = Max(full - tuple_size / 2, tuple_size * 1.5);
	else
		left_free = Max(full - tuple_size / 2, tuple_size / 2);
	page_size = leaf->avail / pages - left_free - leaf->heavy / pages;
	leaves = leaf->packed / Max(Max(page_size, tuple_size), 1);

	/* tuples of one size: count how many fit, which matters for large ones */
	if (leaf->one_size >= 0.999 * pages && tuple_size > 0 &&
		leaf->items <= 2 * leaf->tuples)
	{
		double		space = leaf->avail / pages;

		leaves = leaf->tuples /
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
 * power of two.  Between powers, buckets that are not split yet have twice as
 * many rows as the others, and overflow.
 */
static double
rebuilt_hash(const RebuildContext *rc, const PageTotals *t)
{
	double		capacity = (BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(HashPageOpaqueData))) /
		(sizeof(ItemIdData) + MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32)));
	double		rows = t->of[PAGE_LEAF].items + t->of[PAGE_OVERFLOW].items;
	double		dead = t->of[PAGE_LEAF].dead + t->of[PAGE_OVERFLOW].dead;
	double		heavy = t->of[PAGE_LEAF].heavy + t->of[PAGE_OVERFLOW].heavy;
	double		squares = t->of[PAGE_LEAF].squares + t->of[PAGE_OVERFLOW].squares;
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
	/* rows of one value have one bucket */
	overflow += Min(rows * (1 - light_share) / capacity, t->of[PAGE_OVERFLOW].count);

	/* one bitmap page serves 32,768 overflow pages */
	return buckets + overflow + 1 + floor(overflow / 32768);
}

/* Return how many of the posting trees have more than one page. */
static double
gin_deep_trees(const PageTotals *t)
{
	return Min(t->of[PAGE_POSTING_INTERNAL].count, t->of[PAGE_POSTING_LAST].count);
}

/*
 * Return how many posting trees a build turns into lists.  A short last page
 * does not prove a short tree: in a deep one it is short by chance.
 */
static double
gin_small_trees(const PageTotals *t)
{
	double		by_chance = gin_deep_trees(t) * GinMaxItemSize / GinDataPageMaxDataSize;

	return Max(t->of[PAGE_POSTING_LAST].tuples - by_chance, 0);
}

/* Posting trees get rows in table order: all pages but the last are full. */
static double
rebuilt_gin(const RebuildContext *rc, const PageTotals *t)
{
	double		small = gin_small_trees(t);
	double		deep = gin_deep_trees(t);
	double		trees = t->of[PAGE_POSTING_LAST].count - small;
	double		bytes = t->of[PAGE_LEAF].packed;
	double		leaves;
	double		posting = Max(trees - deep, 0);
	double		internal = t->of[PAGE_POSTING_INTERNAL].count;

	if (t->of[PAGE_POSTING_LAST].tuples > 0)
		bytes += small * t->of[PAGE_POSTING_LAST].packed / t->of[PAGE_POSTING_LAST].tuples;

	/* each key of the pending list may be just one more TID in a list */
	bytes += rc->smallest ? t->of[PAGE_PENDING].items : t->of[PAGE_PENDING].packed;

	if (deep > 0)
	{
		double		last = t->of[PAGE_POSTING_LAST].used / t->of[PAGE_POSTING_LAST].count;
		double		tree_bytes = t->of[PAGE_POSTING_LEAF].packed / deep + last;
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
	double		leaves = Max(leaf_pages(t, t->of[PAGE_LEAF].packed, density), 1);

	return leaves + internal_pages(t, leaves);
}

static double
rebuilt_spgist(const RebuildContext *rc, const PageTotals *t)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		leaves = leaf_pages(t, leaf->packed, rc->smallest ? SPGIST_MOST : SPGIST_LEAST);

	return leaves + t->of[PAGE_FIXED].count +
		t->of[PAGE_INTERNAL].count * (leaf->count > 0 ? Min(leaves / leaf->count, 1) : 0);
}

/* All ranges keep their summary, an empty one if their rows are gone. */
static double
rebuilt_brin(const RebuildContext *rc, const PageTotals *t)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		bytes = rc->smallest ? leaf->tuples * rc->brin_least : leaf->packed;
	double		wasted = bytes / Max(leaf->tuples, 1) * leaf->count / Max(leaf->avail, 1);

	return leaf_pages(t, Min(bytes, leaf->packed), Max(1 - wasted, 0.5)) + t->of[PAGE_FIXED].count;
}

/*
 * Return the pages after a rebuild, with metapage: of two sizes the larger one,
 * or with rc->smallest the smaller one.
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
