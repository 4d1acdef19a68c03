/*-------------------------------------------------------------------------
 *
 * rebuilt_size.c
 *	  How many pages an index would have after a rebuild.
 *
 * A build of btree follows fillfactor and the number of rows.  For the others there is
 * a size to expect, and a range: how even the buckets of hash become follows from how many
 * rows have the same code; a build of GIN is carried out in memory (rebuilt_gin.c); the
 * operator class decides where GiST splits a page, and it does so as before, so a build
 * leaves pages as full as these were before rows were deleted.
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
#define GIN_DENSITY			0.60	/* if nothing else is known */
#define GIN_MOST			0.92
#define GIN_POSTING_DENSITY	0.977
#define GIST_LEAST			0.36
#define GIST_MOST			1.0 /* a sorting build ignores fillfactor */
#define GIST_CHURNED		0.88	/* fuller than this no build leaves them */
#define GIST_PACKED			0.94	/* but one that sorts */

/* How far a build may be from the expected size, of 1 */
#define MARGIN				0.15
#define GIST_MARGIN			0.25

/* Add pages to a total, as if there were weight times as many. */
void
page_measure_add(PageMeasure *sum, const PageMeasure *pm, double weight)
{
	sum->count += weight * pm->count;
	sum->avail += weight * pm->avail;
	sum->used += weight * pm->used;
	sum->packed += weight * pm->packed;
	sum->rows += weight * pm->rows;
	sum->tuples += weight * pm->tuples;
	sum->peak += weight * pm->peak;
	sum->keys += weight * pm->keys;
	sum->buckets += weight * pm->buckets;
	sum->small += weight * pm->small;
	sum->small_bytes += weight * pm->small_bytes;
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
	per_page = (page_size - Max(left_free + (has_lists ? -0.5 : 0.5) * tuple, 1.5 * tuple)) / tuple;
	return tree_pages(t, leaf->tuples / Max(per_page, 1));
}

/*
 * Return the overflow pages of a bucket that gets this share of the rows: its rows come in
 * groups of the same code, the number of which has a Poisson distribution.
 */
static double
overflow_of_bucket(double rows, double group, double per_page)
{
	double		mean = rows / group;
	double		probability = exp(-mean);
	double		result = 0;

	/* exp() of more than that is not exact, and the bucket overflows anyway */
	if (mean > 700)
		return Max(rows / per_page - 0.5, 0);
	for (int groups = 1; groups < mean + 9 * sqrt(mean) + 9; groups++)
	{
		probability *= mean / groups;
		result += probability * Max(ceil(groups * group / per_page - 1e-9) - 1, 0);
	}
	return result;
}

/* Return the rows with the same hash code, on average. */
static double
rows_of_code(const PageMeasure *leaf)
{
	double		chain = leaf->count / Max(leaf->buckets, 1);

	/* on a page of a chain there are some of each */
	return leaf->keys > 0 ? 1 + (leaf->tuples / leaf->keys - 1) * Max(chain, 1) : 1;
}

/*
 * Return the overflow pages of a build that makes so many buckets.  Between powers of two,
 * some buckets get twice as many rows as others: the buckets that would be split next.
 */
static double
expected_overflow(const PageMeasure *leaf, double rows, double buckets, double per_page)
{
	double		power = exp2(floor(log2(buckets)));
	double		split = buckets - power;
	double		group = rows_of_code(leaf);

	return (power - split) * overflow_of_bucket(rows / power, group, per_page) +
		2 * split * overflow_of_bucket(rows / power / 2, group, per_page);
}

/*
 * A build fixes the number of buckets beforehand.  The largest size has as many overflow
 * pages as any distribution of the rows over the buckets can need.
 */
static double
rebuilt_hash(const IndexFacts *facts, const PageTotals *t, RebuiltSize size)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		tuple = sizeof(ItemIdData) + MAXALIGN(sizeof(IndexTupleData) + sizeof(uint32));

	/* the metapage's count has no sampling error, but includes dead tuples */
	double		rows = facts->hash_rows * (leaf->rows > 0 ? leaf->tuples / leaf->rows : 1);
	double		overflow;

	/* as in _hash_init_metabuffer(); _hash_doinsert() adds the last one */
	double		wanted = rows / Max(floor(facts->fillfactor * BLCKSZ / tuple), 10);
	double		buckets = wanted <= 2 ? 2 :
		_hash_get_totalbuckets(_hash_spareindex((uint32) ceil(Min(wanted, 1073741824.0))));

	overflow = expected_overflow(leaf, rows, buckets, floor(leaf_size(t) / tuple));
	if (size == REBUILT_SMALLEST)
		overflow *= 1 - MARGIN;
	else if (size == REBUILT_LARGEST)
		overflow = Min(overflow + MARGIN * buckets, Max(rows * tuple / leaf_size(t), overflow));

	/* one bitmap page serves 32,768 overflow pages */
	return buckets + overflow + 1 + floor(overflow / 32768);
}

/* Return a density, or one that is a margin away from it. */
static double
density_for(RebuiltSize size, double expected, double margin, double least, double most)
{
	double		density = Min(Max(expected, least), most);

	if (size == REBUILT_LARGEST)
		return Max(density * (1 - margin), least);
	if (size == REBUILT_SMALLEST)
		return Min(density * (1 + margin), most);
	return density;
}

/*
 * A posting tree has pages that are full, but for the last one.  A tree that has shrunk to
 * the size of a page of keys becomes a list there; a single page is all of its tree, if
 * trees have no other pages.  The keys of the pending list are as new as others: a key
 * that is there gets just one more row.
 */
static double
rebuilt_gin(const IndexFacts *facts, const PageTotals *t, RebuiltSize size)
{
	const PageMeasure *posting = &t->of[PAGE_POSTING];
	const PageMeasure *pending = &t->of[PAGE_PENDING];
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		single = Max(1 - (posting->count - posting->tuples) / Max(posting->tuples, 1), 0);
	double		trees = Max(posting->tuples - single * posting->small, 0);
	double		each = Max(posting->used - single * posting->small_bytes, 0) /
		Max(trees, 1) / GinDataPageMaxDataSize;
	double		pages = trees * Max(1, each / GIN_POSTING_DENSITY + 0.5 * Min(each, 1));
	double		keys = leaf->packed + single * posting->small_bytes;
	double		density = facts->gin_density > 0 ? facts->gin_density : GIN_DENSITY;
	double		rows = leaf->used + posting->used;

	if (pending->packed > 0)
		keys += pending->packed * leaf->tuples / Max(leaf->tuples + rows / 2, 1);
	density = density_for(size, density, MARGIN, GIN_LEAST, GIN_MOST);
	return tree_pages(t, Max(leaf_pages(t, keys, density), 1) + Min(pages, posting->count));
}

/* Pages that inserts and deletions have filled again and again say nothing of a build. */
static double
rebuilt_gist(const PageTotals *t, RebuiltSize size)
{
	const PageMeasure *leaf = &t->of[PAGE_LEAF];
	double		peak = leaf->avail > 0 ? leaf->peak / leaf->avail : GIST_DENSITY;

	if (peak > GIST_CHURNED && peak < GIST_PACKED)
		peak = GIST_DENSITY;
	peak = density_for(size, peak, GIST_MARGIN, GIST_LEAST, GIST_MOST);
	return tree_pages(t, leaf_pages(t, leaf->packed, peak));
}

/* Return the pages after a rebuild, of this size. */
double
rebuilt_pages(const IndexFacts *facts, const PageTotals *t, RebuiltSize size)
{
	switch (facts->relam)
	{
		case BTREE_AM_OID:
			return 1 + rebuilt_btree(facts, t);
		case HASH_AM_OID:
			return 1 + rebuilt_hash(facts, t, size);
		case GIN_AM_OID:
			return 1 + rebuilt_gin(facts, t, size);
		case GIST_AM_OID:
			return rebuilt_gist(t, size);
	}
	return get_float8_nan();
}
