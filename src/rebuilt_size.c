/*-------------------------------------------------------------------------
 *
 * rebuilt_size.c
 *	  How many pages an index would have after a rebuild.
 *
 * Bloat is what a rebuild would give back, so this file says for each access
 * method what its build makes of the bytes that are worth keeping.  Where the
 * build follows fillfactor (btree) or the number of rows (hash) that is
 * arithmetic; for GIN the build is tried (gin_build.c).  GiST and SP-GiST pages
 * end up as full as the operator class splits them: where that is known from
 * fresh builds it is used, and elsewhere only its bounds are.  (A build with
 * the rows of the table says more: trial_build.c.)
 *
 * Everything here is smooth in the totals, not rounded to pages, so that the
 * sampling error can be computed by perturbing them (index_bloat.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gin_private.h"
#include "access/gist_private.h"
#include "access/hash.h"
#include "access/nbtree.h"
#include "access/spgist_private.h"
#include "catalog/pg_am_d.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/float.h"
#include "utils/lsyscache.h"

#include "rebuilt_size.h"

/*
 * How full fresh builds leave their pages: medians over operator classes and
 * data sets (docs/reports.md).
 */
#define GIN_HALF_FULL		0.507	/* entry pages, one batch */
#define GIN_POSTING_DENSITY	0.977
#define GIST_POINTS			0.668
#define GIST_IN_ORDER		0.453
#define GIST_INSERTED		0.61	/* and from .. to .. */
#define GIST_LEAST			0.38
#define GIST_MOST			0.95
#define GIST_MOST_SORTED	1.0		/* a build that sorts ignores fillfactor */
#define SPGIST_USUAL		0.75	/* live tuples, and from .. to .. */
#define SPGIST_LEAST		0.30
#define SPGIST_MOST			0.97

/* pg_opfamily.oid of GiST's point_ops */
#define GIST_POINT_FAMILY	1029

#define GIN_ENTRY_SPACE \
	(BLCKSZ - MAXALIGN(SizeOfPageHeaderData) - MAXALIGN(sizeof(GinPageOpaqueData)))

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
	totals->in_order[pm->kind] += weight * pm->in_order;
}

/*
 * Return the share of the leaf pages' space that is in use, as pgstatindex's
 * avg_leaf_density: deleted pages don't count.  NaN without leaf pages.
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

/*
 * Return whether a build of this GiST index sorts, as gistbuild() decides.
 */
static bool
gist_build_sorts(Relation index)
{
	GiSTOptions *options = (GiSTOptions *) index->rd_options;

	if (options && options->buffering_mode == GIST_OPTION_BUFFERING_ON)
		return false;
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
	{
		if (!OidIsValid(index_getprocid(index, i + 1, GIST_SORTSUPPORT_PROC)))
			return false;
	}
	return true;
}

/*
 * Return whether the only column is of points, with core's own operator class.
 */
static bool
gist_has_points(Relation index)
{
	return index->rd_opfamily[0] == GIST_POINT_FAMILY &&
		IndexRelationGetNumberOfKeyAttributes(index) == 1;
}

void
rebuild_context_init(Relation index, RebuildContext *rc)
{
	memset(rc, 0, sizeof(*rc));
	rc->relam = index->rd_rel->relam;
	rc->hash_tuples = -1;
	rc->build_memory = maintenance_work_mem * 1024.0;
	rc->gin_density = get_float8_nan();
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
			rc->gist_sorted = gist_build_sorts(index);
			rc->gist_points = rc->gist_sorted && gist_has_points(index);
			break;
		case SPGIST_AM_OID:
			rc->fillfactor = SpGistGetFillFactor(index) / 100.0;
			break;
		default:
			rc->fillfactor = get_float8_nan();
			break;
	}
}

/*
 * Return the pages that a build fills with the packed bytes of one kind of
 * page, if it leaves that many bytes of each free.
 */
static double
filled_pages(const PageTotals *t, PageKind kind, double left_free)
{
	double		page_size;

	if (t->count[kind] <= 0 || t->packed[kind] <= 0)
		return 0;
	page_size = t->avail[kind] / t->count[kind];
	return t->packed[kind] / Max(page_size - left_free, 0.25 * page_size);
}

/*
 * Return the internal pages above that many leaves, from how many there are
 * above the leaves now: fan-out changes little.
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
	 * _bt_buildadd() closes a page with the tuple that takes it over the
	 * fillfactor, or when the next one doesn't fit.  The last tuple then goes
	 * to the next page and a high key stays: of the same size for a plain
	 * tuple, without the row pointers for a posting list.  One tuple at least
	 * stays, however low the fillfactor.
	 */
	if (t->items[PAGE_LEAF] > 2 * t->tuples[PAGE_LEAF])
		left_free = Max(full - tuple_size / 2, tuple_size * 1.5);
	else
		left_free = Max(full - tuple_size / 2, tuple_size / 2);
	page_size = t->avail[PAGE_LEAF] / pages - left_free - t->heavy[PAGE_LEAF] / pages;
	leaves = t->packed[PAGE_LEAF] / Max(Max(page_size, tuple_size), 1);

	/* where all tuples are of one size, so many fit: matters for large ones */
	if (t->in_order[PAGE_LEAF] >= 0.999 * pages && tuple_size > 0 &&
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
 * Return how many pages a hash bucket is expected to have beyond its first,
 * if it gets mean rows with that standard deviation.
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

	/* as _hash_init_metabuffer() chooses it */
	wanted = rows / Max(rc->hash_ffactor, 1);
	if (wanted > 2)
		buckets = _hash_get_totalbuckets(_hash_spareindex((uint32) Min(wanted, 1073741824.0)));
	while (power < buckets)
		power *= 2;
	unsplit = power - buckets;
	mean = rows * light_share / power;
	overflow = unsplit * overflow_pages(2 * mean, sqrt(2 * mean * per_value), capacity) +
		(buckets - unsplit) * overflow_pages(mean, sqrt(mean * per_value), capacity);
	/* rows of one value share a bucket however many there are */
	overflow += Min(rows * (1 - light_share) / capacity, t->count[PAGE_OVERFLOW]);

	/* one bitmap page serves 32,768 overflow pages */
	return buckets + overflow + 1 + floor(overflow / 32768);
}

/*
 * Return how many of the posting trees have more than one page.
 */
static double
gin_deep_trees(const PageTotals *t)
{
	return Min(t->count[PAGE_POSTING_INTERNAL], t->count[PAGE_POSTING_LAST]);
}

/*
 * Return how many posting trees a build makes lists of.  A short last page
 * isn't always a short tree: of the deep ones it is short by chance.
 */
static double
gin_small_trees(const PageTotals *t)
{
	double		by_chance = gin_deep_trees(t) * GinMaxItemSize / GinDataPageMaxDataSize;

	return Max(t->tuples[PAGE_POSTING_LAST] - by_chance, 0);
}

void
rebuilt_gin_trees(const PageTotals *t, GinTreeTotals *trees)
{
	trees->trees = t->count[PAGE_POSTING_LAST];
	trees->deep = gin_deep_trees(t);
	trees->deep_items = t->items[PAGE_POSTING_LEAF] / Max(trees->deep, 1);
	trees->deep_bytes = t->packed[PAGE_POSTING_LEAF] / Max(trees->deep, 1);
}

/*
 * The tree of keys is as full as a build on trial has left it (gin_build.c).
 * Posting trees get their rows in the order of the table, and have full pages
 * but for the last.
 */
static double
rebuilt_gin(const RebuildContext *rc, const PageTotals *t)
{
	double		small = gin_small_trees(t);
	double		deep = gin_deep_trees(t);
	double		trees = t->count[PAGE_POSTING_LAST] - small;
	double		bytes = t->packed[PAGE_LEAF];
	double		items = t->items[PAGE_LEAF] + t->items[PAGE_POSTING_LEAF] + t->items[PAGE_POSTING_LAST];
	double		all_bytes = t->packed[PAGE_LEAF] + t->packed[PAGE_POSTING_LEAF] + t->used[PAGE_POSTING_LAST];
	double		leaves;
	double		posting = Max(trees - deep, 0);
	double		internal = t->count[PAGE_POSTING_INTERNAL];

	if (t->tuples[PAGE_POSTING_LAST] > 0)
		bytes += small * t->packed[PAGE_POSTING_LAST] / t->tuples[PAGE_POSTING_LAST];

	/* what waits in the pending list will take as much as what doesn't */
	if (items > 0)
		bytes += t->items[PAGE_PENDING] * Min(all_bytes / items, t->packed[PAGE_PENDING] / Max(t->items[PAGE_PENDING], 1));
	else
		bytes += t->packed[PAGE_PENDING];

	if (deep > 0)
	{
		double		last = t->used[PAGE_POSTING_LAST] / t->count[PAGE_POSTING_LAST];
		double		tree_bytes = t->packed[PAGE_POSTING_LEAF] / deep + last;
		double		full = tree_bytes / (GIN_POSTING_DENSITY * GinDataPageMaxDataSize);

		if (tree_bytes < GinMaxItemSize)
		{
			/* they have become so short that a build makes lists of them */
			bytes += deep * tree_bytes;
			internal = 0;
		}
		else
		{
			posting += deep * Max(full + 0.5, 1);
			/* a tree of one page has no other */
			internal *= Min(full, 1);
		}
	}

	leaves = Max(bytes / ((isnan(rc->gin_density) ? GIN_HALF_FULL : rc->gin_density) * GIN_ENTRY_SPACE), 1);
	return leaves + internal_pages(t, leaves) + posting + internal;
}

/*
 * GiST builds of points sort, and pages come out equally full whatever the
 * points.  Rows that come in the order of the index leave pages as they were
 * split.  Else it is the operator class that says where to split, looking at
 * the values, and which can't be asked about what is on the pages: what it is
 * given is taken on trust by most operator classes, and pages that may be
 * damaged can't be trusted.
 */
static bool
gist_density(const RebuildContext *rc, const PageTotals *t, double *density)
{
	if (rc->gist_points)
		*density = GIST_POINTS;
	else if (!rc->gist_sorted && t->in_order[PAGE_LEAF] > 0.9 * t->count[PAGE_LEAF])
		*density = GIST_IN_ORDER;
	else
	{
		*density = GIST_INSERTED;
		return false;
	}

	/* fuller than they can be: so it is something else */
	return t->packed[PAGE_LEAF] <= (*density + 0.1) * t->avail[PAGE_LEAF];
}

bool
rebuilt_density_unknown(const RebuildContext *rc, const PageTotals *t,
						double *least, double *most)
{
	double		density;

	if (rc->relam == GIST_AM_OID)
	{
		*least = GIST_LEAST;
		*most = rc->gist_sorted ? GIST_MOST_SORTED : GIST_MOST;
		return t->count[PAGE_LEAF] > 1 && !gist_density(rc, t, &density);
	}
	*least = SPGIST_LEAST;
	*most = SPGIST_MOST;
	return rc->relam == SPGIST_AM_OID && t->count[PAGE_LEAF] > 0;
}

static double
rebuilt_gist(const RebuildContext *rc, const PageTotals *t)
{
	double		density;
	double		leaves;

	gist_density(rc, t, &density);
	if (rc->tried_density > 0)
		density = rc->tried_density;
	leaves = filled_pages(t, PAGE_LEAF, (1 - density) * t->avail[PAGE_LEAF] / Max(t->count[PAGE_LEAF], 1));
	leaves = Max(leaves, 1);
	return leaves + internal_pages(t, leaves);
}

static double
rebuilt_spgist(const RebuildContext *rc, const PageTotals *t)
{
	double		density = rc->tried_density > 0 ? rc->tried_density : SPGIST_USUAL;
	double		leaves = filled_pages(t, PAGE_LEAF, (1 - density) * t->avail[PAGE_LEAF] / Max(t->count[PAGE_LEAF], 1));

	return leaves + t->count[PAGE_FIXED] +
		t->count[PAGE_INTERNAL] * (t->count[PAGE_LEAF] > 0 ? Min(leaves / t->count[PAGE_LEAF], 1) : 0);
}

static double
rebuilt_brin(const RebuildContext *rc, const PageTotals *t)
{
	double		pages = filled_pages(t, PAGE_LEAF, 0);

	if (pages > 0)
		pages = Max(pages, 1);
	return pages + t->count[PAGE_FIXED];
}

/*
 * Return the pages, metapage included.
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
