/*-------------------------------------------------------------------------
 *
 * rebuilt_size.c
 *	  How many pages an index would have after a rebuild.
 *
 * A build of btree and hash follows fillfactor and the number of rows.  For the
 * others there are two sizes, and the real one is in between: a GIN build depends
 * on its memory and on the keys of each row; the operator class decides where GiST
 * and SP-GiST split a page; and BRIN's summaries do not tell whether their rows are
 * gone.
 *
 * Everything is smooth in the totals, not rounded to pages, so that the
 * sampling error can be computed by perturbing them (bloat.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gin_private.h"
#include "access/hash.h"
#include "access/itup.h"
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
/* of BRIN: a bitmap of two bits for each column, without values */
#define EMPTY_SUMMARY		(sizeof(ItemIdData) + MAXALIGN(1))

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
	sum->rows += weight * pm->rows;
	sum->tuples += weight * pm->tuples;
	sum->heavy += weight * pm->heavy;
	sum->squares += weight * pm->squares;
	sum->one_size += weight * pm->one_size;
}

/* Return the bytes for tuples of a leaf page. */
static double
leaf_size(const PageTotals *t)
{
	return t->of[PAGE_LEAF].count > 0.5 ? t->of[PAGE_LEAF].avail / t->of[PAGE_LEAF].count : BLCKSZ;
}

/* Return the leaf pages that a build fills to this density with bytes. */
static double
leaf_pages(const PageTotals *t, double bytes, double density)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];

	if (bytes <= 0)
		return 0;
	/* the contents of one page fit on one */
	if (leaf->count <= 1 && bytes <= leaf->packed)
		return 1;
	return Max(bytes / (density * leaf_size(t)), 1);
}

/*
 * Return the pages of a tree with this many leaves: with as many internal ones
 * for each leaf as now, because fan-out changes little.
 */
static double
tree_pages(const PageTotals *t, double leaves)
{
	double		now = t->of[PAGE_LEAF].count + t->of[PAGE_POSTING].count;

	if (leaves <= 1)
		return 1;
	return leaves + Max(t->of[PAGE_INTERNAL].count * leaves / Max(now, 1), 1);
}

static double
rebuilt_btree(const IndexFacts *facts, const PageTotals *t)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		page_size = leaf_size(t);
	double		tuple = leaf->packed / Max(leaf->tuples, 1);
	double		left_free = (1 - facts->fillfactor) * BLCKSZ;
	bool		has_lists = leaf->rows > 2 * leaf->tuples;
	double		per_page;

	if (leaf->tuples <= 0)
		return 0;

	/*
	 * _bt_buildadd() closes a page with the tuple that exceeds the
	 * fillfactor, or before one that does not fit.  The last tuple moves to
	 * the next page, and leaves a high key without row pointers, for which
	 * the page is filled further.  At least one tuple stays.
	 */
	if (leaf->one_size >= 0.999 * leaf->count && !has_lists)
		per_page = Min(floor((page_size - left_free) / tuple), floor(page_size / tuple) - 1);
	else
		per_page = (page_size - Max(left_free + (has_lists ? -0.5 : 0.5) * tuple, 1.5 * tuple)) / tuple;
	return tree_pages(t, leaf->tuples / Max(per_page, 1));
}

/* Return the expected pages of a hash bucket after its first. */
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
rebuilt_hash(const IndexFacts *facts, const PageTotals *t)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		capacity = (BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(HashPageOpaqueData))) /
		(sizeof(ItemIdData) + MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32)));

	/* the metapage's count has no sampling error, but includes dead tuples */
	double		rows = facts->hash_rows * (leaf->rows > 0 ? leaf->tuples / leaf->rows : 1);
	double		heavy_share = leaf->heavy / Max(leaf->tuples, 1);
	double		per_value = leaf->squares / Max(leaf->tuples - leaf->heavy, 1);
	double		wanted = rows / Max(facts->hash_ffactor, 1);
	double		buckets = 2;
	double		power = 2;
	double		unsplit;
	double		mean;
	double		overflow;

	/* as in _hash_init_metabuffer() */
	if (wanted > 2)
		buckets = _hash_get_totalbuckets(_hash_spareindex((uint32) Min(wanted, 1073741824.0)));
	while (power < buckets)
		power *= 2;
	unsplit = power - buckets;
	mean = rows * (1 - heavy_share) / power;
	overflow = unsplit * overflow_pages(2 * mean, sqrt(2 * mean * per_value), capacity) +
		(buckets - unsplit) * overflow_pages(mean, sqrt(mean * per_value), capacity);
	/* rows of one value have one bucket */
	overflow += rows * heavy_share / capacity;

	/* one bitmap page serves 32,768 overflow pages */
	return buckets + overflow + 1 + floor(overflow / 32768);
}

/*
 * The larger size has a page that is not full for each posting tree, and as many
 * pages of trees as now at most; the smaller one has neither these nor the keys
 * of the pending list, each of which may be just one more TID in a list.
 */
static double
rebuilt_gin(const PageTotals *t, bool smaller)
{
	const PageMeasure *posting = &t->of[PAGE_POSTING];
	double		keys = t->of[PAGE_LEAF].packed + (smaller ? 0 : t->of[PAGE_PENDING].packed);
	double		trees = posting->used / GinDataPageMaxDataSize;

	if (!smaller)
		trees = Min(trees / GIN_POSTING_DENSITY + posting->tuples, posting->count);
	return tree_pages(t, Max(leaf_pages(t, keys, smaller ? GIN_MOST : GIN_LEAST), 1) + trees);
}

/* All ranges keep their summary, an empty one if their rows are gone. */
static double
rebuilt_brin(const PageTotals *t, bool smaller)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		summary = leaf->packed / Max(leaf->tuples, 1);

	if (smaller)
		summary = Min(summary, EMPTY_SUMMARY);
	return leaf_pages(t, summary * leaf->tuples, Max(1 - summary / leaf_size(t), 0.5)) +
		t->of[PAGE_FIXED].count;
}

/* Return the pages after a rebuild: of two sizes the smaller or the larger one. */
double
rebuilt_pages(const IndexFacts *facts, const PageTotals *t, bool smaller)
{
	double		packed = t->of[PAGE_LEAF].packed;

	switch (facts->relam)
	{
		case BTREE_AM_OID:
			return 1 + rebuilt_btree(facts, t);
		case HASH_AM_OID:
			return 1 + rebuilt_hash(facts, t);
		case GIN_AM_OID:
			return 1 + rebuilt_gin(t, smaller);
		case GIST_AM_OID:
			return tree_pages(t, leaf_pages(t, packed, smaller ? GIST_MOST : GIST_LEAST));
		case SPGIST_AM_OID:
			packed = leaf_pages(t, packed, smaller ? SPGIST_MOST : SPGIST_LEAST);
			return 1 + t->of[PAGE_FIXED].count + packed +
				t->of[PAGE_INTERNAL].count * Min(packed / Max(t->of[PAGE_LEAF].count, 1), 1);
		case BRIN_AM_OID:
			return 1 + rebuilt_brin(t, smaller);
	}
	return get_float8_nan();
}
