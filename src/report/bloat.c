/*-------------------------------------------------------------------------
 *
 * bloat.c
 *	  The share of an index that a rebuild would free, from a sample of it.
 *
 * The file is cut into equal parts, the strata, and two blocks are drawn at
 * random from each.  The 95 % interval is that of the stratified jackknife, which
 * gives the variance of any smooth function of the totals, here rebuilt_pages().
 * It is widened by 3 / n, because a sample of n blocks without a deleted one does
 * not prove that there are none.
 *
 * Blocks are read in file order, with prefetch, through a small ring of
 * buffers, to spare cache and disk.  Locks: the caller's on the index.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gist_private.h"
#include "access/hash.h"
#include "access/nbtree.h"
#include "access/spgist_private.h"
#include "catalog/pg_am_d.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/float.h"
#include "utils/memutils.h"
#include "utils/spccache.h"

#include "errors.h"
#include "file_system.h"
#include "report/report.h"
#include "report/report_private.h"

PG_FUNCTION_INFO_V1(index_mover_index_bloat);

/* Blocks that index_report() reads of each index */
#define REPORT_SAMPLE		400

/* Cost of a plan for each index: 80 reads a second are enough */
#define PLAN_SAMPLE			80
#define PLAN_MILLISECONDS	1000
#define PLAN_PREFETCH		1

typedef struct SampledBlock
{
	BlockNumber blkno;
	double		weight;			/* blocks that it represents */
	PageMeasure pm;				/* filled in by the reader of the block */
} SampledBlock;

typedef struct Bloat
{
	/* arguments */
	int			sample_pages;	/* the most blocks to read, at least 1 */
	TimestampTz deadline;		/* 0 = none */
	bool		exact;			/* read all blocks; set if all were read */

	/* results; NaN = not known */
	BlockNumber pages;
	BlockNumber sampled_pages;	/* blocks read, metapage included */
	double		leaf_density;	/* 0 to 1 */
	double		ratio;			/* NaN also if only the interval is known */
	double		low;
	double		high;

	/* in between */
	Relation	index;
	BufferAccessStrategy strategy;
	IndexFacts	facts;
	char	   *copy;			/* of the current block */
	PageTotals	totals;			/* of the index, or estimated */
	SampledBlock *sample;		/* in file order, two of each stratum */
	int			nsample;		/* 0 if every block is read */
} Bloat;

/* Copy a block, to inspect it without a lock. */
static void
copy_block(Bloat *bloat, BlockNumber blkno)
{
	CHECK_FOR_INTERRUPTS();
	buffer_copy_page(ReadBufferExtended(bloat->index, MAIN_FORKNUM, blkno, RBM_NORMAL, bloat->strategy),
					 bloat->copy);
	bloat->sampled_pages++;
}

static void
measure_block(Bloat *bloat, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem;

	IM_POINT("measure");
	copy_block(bloat, blkno);
	IM_MEASURE_DAMAGED(&bloat->facts, bloat->copy, blkno);
	problem = page_measure(&bloat->facts, (Page) bloat->copy, blkno, pm);
	if (problem)
		report_corrupted(bloat->index, blkno, problem);
}

/* Return the fillfactor of an index in percent, NaN if its method has none. */
static double
get_fillfactor(Relation index)
{
	switch (index->rd_rel->relam)
	{
		case BTREE_AM_OID:
			return BTGetFillFactor(index);
		case HASH_AM_OID:
			return HashGetFillFactor(index);
		case GIST_AM_OID:
			return index->rd_options ?
				((GiSTOptions *) index->rd_options)->fillfactor : GIST_DEFAULT_FILLFACTOR;
		case SPGIST_AM_OID:
			return SpGistGetFillFactor(index);
	}
	return get_float8_nan();
}

/*
 * Read block 0, which is always in the sample: the root in GiST, which is added
 * to the totals, and the metapage of all other access methods.
 */
static void
read_first_block(Bloat *bloat)
{
	IndexFacts *facts = &bloat->facts;
	Page		page = (Page) bloat->copy;

	if (facts->relam == GIST_AM_OID)
	{
		PageMeasure pm;

		measure_block(bloat, 0, &pm);
		page_totals_add(&bloat->totals, &pm, 1);
		return;
	}
	copy_block(bloat, 0);
	if (page_root(facts->relam, page) == InvalidBlockNumber)
		report_corrupted(bloat->index, 0, "invalid metapage");
	if (facts->relam == BTREE_AM_OID)
		/* as in _bt_load(): a unique index is built without posting lists */
		facts->deduplicates = BTPageGetMeta(page)->btm_version == BTREE_VERSION &&
			BTPageGetMeta(page)->btm_allequalimage &&
			!bloat->index->rd_index->indisunique && BTGetDeduplicateItems(bloat->index);
	else if (facts->relam == HASH_AM_OID)
	{
		HashMetaPage meta = HashPageGetMeta(page);

		if (!(meta->hashm_ntuples >= 0 && meta->hashm_ntuples < 1e15))
			report_corrupted(bloat->index, 0, "invalid metapage");
		facts->hash_rows = meta->hashm_ntuples;
		facts->hash_ffactor = meta->hashm_ffactor;
	}
}

/* Draw at most n, but not all, of the blocks 1 .. nblocks - 1. */
static void
draw_sample(Bloat *bloat, int n)
{
	BlockNumber population = bloat->pages - 1;
	uint32		strata = n / 2;

	Assert(n >= 0 && n < population);
	bloat->nsample = 2 * strata;
	/* an index of terabytes needs more than palloc() allows */
	bloat->sample = palloc_extended(sizeof(SampledBlock) * (Size) Max(bloat->nsample, 1),
									MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (uint32 i = 0; i < strata; i++)
	{
		uint64		start = (uint64) population * i / strata + 1;
		uint64		end = (uint64) population * (i + 1) / strata;
		uint64		first = pg_prng_uint64_range(&pg_global_prng_state, start, end);
		uint64		second = pg_prng_uint64_range(&pg_global_prng_state, start, end - 1);

		if (second >= first)
			second++;
		bloat->sample[2 * i].blkno = Min(first, second);
		bloat->sample[2 * i + 1].blkno = Max(first, second);
		bloat->sample[2 * i].weight = bloat->sample[2 * i + 1].weight = (end - start + 1) / 2.0;
	}
}

/*
 * Add all blocks but the first to the totals, or those of the sample by their
 * weights; false after the deadline.
 */
static bool
add_blocks(Bloat *bloat)
{
	int			distance = get_tablespace_maintenance_io_concurrency(bloat->index->rd_rel->reltablespace);
	BlockNumber n = bloat->nsample > 0 ? bloat->nsample : bloat->pages - 1;
	BlockNumber ahead = 1;

	/* in a plan, clients' reads must not queue behind ours */
	if (bloat->deadline != 0)
		distance = Min(distance, PLAN_PREFETCH);
	for (BlockNumber i = 0; i < n; i++)
	{
		SampledBlock all = {.blkno = i + 1,.weight = 1};
		SampledBlock *block = bloat->nsample > 0 ? &bloat->sample[i] : &all;

		if (bloat->deadline != 0 && GetCurrentTimestamp() >= bloat->deadline)
			return false;
		/* the operating system reads ahead by itself where all is read */
		for (; bloat->nsample > 0 && ahead < n && ahead <= i + distance; ahead++)
			PrefetchBuffer(bloat->index, MAIN_FORKNUM, bloat->sample[ahead].blkno);
		measure_block(bloat, block->blkno, &block->pm);
		page_totals_add(&bloat->totals, &block->pm, block->weight);
	}
	return true;
}

/* What is computed from the totals */
typedef enum Estimate
{
	BLOAT_IF_LARGER,			/* of the two sizes after a rebuild */
	BLOAT_IF_SMALLER,
	LEAF_ROWS,
} Estimate;

static double
estimate(const Bloat *bloat, const PageTotals *totals, Estimate what)
{
	if (what == LEAF_ROWS)
		return totals->of[PAGE_LEAF].rows;
	return 1.0 - rebuilt_pages(&bloat->facts, totals, what == BLOAT_IF_SMALLER) / bloat->pages;
}

/*
 * Return the standard deviation of an estimate, by the jackknife: in each stratum
 * leave out one block, then the other, and give its weight to the one that stays.
 */
static double
deviation(const Bloat *bloat, Estimate what)
{
	double		variance = 0;

	for (int i = 0; i < bloat->nsample; i += 2)
	{
		const SampledBlock *pair = &bloat->sample[i];
		double		without[2];

		for (int j = 0; j < 2; j++)
		{
			PageTotals	t = bloat->totals;

			page_totals_add(&t, &pair[j].pm, -pair->weight);
			page_totals_add(&t, &pair[1 - j].pm, pair->weight);
			without[j] = estimate(bloat, &t, what);
		}
		/* of a finite population a sample says more */
		variance += (1 - 1 / pair->weight) * pow((without[0] - without[1]) / 2, 2);
	}
	return sqrt(variance);
}

/* Return half the width of the 95 % interval around an estimate. */
static double
half_interval(const Bloat *bloat, Estimate what)
{
	if (bloat->nsample == 0)
		return 0;
	return (1.96 + 4.8 / bloat->nsample) * deviation(bloat, what) + /* about Student's t */
		3.0 / bloat->nsample * (1 - (double) bloat->nsample / bloat->pages);
}

static double
ratio_within(double ratio)
{
	return Min(Max(ratio, 0), 1);
}

/*
 * Improve the totals of a sample by the number of row pointers that VACUUM has
 * counted, which for uneven bloat says more than a sample.  It may be outdated,
 * or come from ANALYZE, so use it only where the sample does not contradict it,
 * and not for the interval.  (A hash index counts its rows itself.)
 */
static void
refine_totals(Bloat *bloat)
{
	PageMeasure *leaf = &bloat->totals.of[PAGE_LEAF];
	double		known = bloat->index->rd_rel->reltuples;

	if (bloat->facts.relam == BTREE_AM_OID && known > 0 && leaf->rows > 0 &&
		fabs(leaf->rows - known) <= 3 * deviation(bloat, LEAF_ROWS))
	{
		leaf->packed *= known / leaf->rows;
		leaf->tuples *= known / leaf->rows;
		leaf->rows = known;
	}
}

/*
 * Set the results from the totals.  Where the pages allow two sizes after a
 * rebuild, the interval extends from the lower bound for the larger size to the
 * upper one for the smaller size.
 */
static void
set_results(Bloat *bloat)
{
	const PageMeasure *leaf = &bloat->totals.of[PAGE_LEAF];
	const PageMeasure *posting = &bloat->totals.of[PAGE_POSTING];
	double		page = 1.0 / bloat->pages;
	double		larger = estimate(bloat, &bloat->totals, BLOAT_IF_LARGER);
	double		smaller = estimate(bloat, &bloat->totals, BLOAT_IF_SMALLER);
	bool		two_sizes = smaller > larger;

	/* they are fractions of pages */
	double		rounding = two_sizes ? page : 0;
	double		rebuilt;

	/* like avg_leaf_density of pgstatindex: without deleted pages */
	if (leaf->avail + posting->avail > 0)
		bloat->leaf_density = (leaf->used + posting->used) / (leaf->avail + posting->avail);
	bloat->low = ratio_within(larger - half_interval(bloat, BLOAT_IF_LARGER) - rounding);
	bloat->high = ratio_within(smaller + half_interval(bloat, BLOAT_IF_SMALLER) + rounding);
	if (two_sizes)
		return;
	refine_totals(bloat);
	rebuilt = rebuilt_pages(&bloat->facts, &bloat->totals, false);
	rebuilt = bloat->facts.relam == HASH_AM_OID ? rint(rebuilt) : ceil(rebuilt - 1e-4);
	bloat->ratio = ratio_within(1 - rebuilt * page);
	bloat->low = bloat->exact ? bloat->ratio : Min(bloat->low, bloat->ratio);
	bloat->high = bloat->exact ? bloat->ratio : Max(bloat->high, bloat->ratio);
}

/*
 * Measure an open, valid index.  All results are NaN if the deadline comes too soon,
 * for a sample of less than two blocks, and for an access method that is not known.
 * ERROR XX001 or XX002 for damaged pages.
 */
static void
bloat_measure(Relation index, void *result)
{
	static PGIOAlignedBlock copy;
	Bloat	   *bloat = result;

	Assert(CheckRelationLockedByMe(index, AccessShareLock, true));
	Assert(bloat->sample_pages > 0);
	bloat->index = index;
	bloat->pages = RelationGetNumberOfBlocks(index);
	bloat->strategy = GetAccessStrategy(BAS_BULKREAD);
	bloat->copy = IM_GUARDED(copy.data);
	bloat->leaf_density = bloat->ratio = bloat->low = bloat->high = get_float8_nan();
	bloat->facts.relam = index->rd_rel->relam;
	bloat->facts.fillfactor = get_fillfactor(index) / 100;
	if (!page_measure_supports(bloat->facts.relam) || bloat->pages == 0)
		return;

	read_first_block(bloat);
	bloat->exact |= bloat->pages <= bloat->sample_pages;
	if (!bloat->exact)
		draw_sample(bloat, bloat->sample_pages - 1);
	if ((bloat->exact || bloat->nsample > 0) && add_blocks(bloat))
		set_results(bloat);
}

/* Four decimals: more would be far below any sampling error, and too wide. */
static void
row_ratio(Row *row, int column, double ratio)
{
	row_float8(row, column, rint(ratio * 10000) / 10000);
}

static int64
bloat_bytes(const Bloat *bloat)
{
	return rint(bloat->ratio * bloat->pages * BLCKSZ);
}

/*
 * index_bloat(index regclass, sample_pages int, exact boolean) returns pages,
 *		sampled_pages, leaf_density, fillfactor, bloat_ratio, bloat_ratio_low,
 *		bloat_ratio_high, bloat_bytes, exact
 *
 * Reads at most sample_pages blocks or, with exact, all of them.
 *
 * Locks: AccessShareLock on the index until the end.  EXECUTE:
 * pg_stat_scan_tables.  Errors: 22004 and 22023 arguments, 42704 no such
 * index, 42809 not an index, 0A000 other sessions' temporary indexes,
 * unlogged ones on a standby, 55000 invalid index, XX001 and XX002 damage.
 */
Datum
index_mover_index_bloat(PG_FUNCTION_ARGS)
{
	Bloat		bloat = {0};
	Row			row;

	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sample_pages must be greater than zero")));
	bloat.sample_pages = PG_GETARG_INT32(1);
	reject_null(fcinfo, 2, "exact");
	bloat.exact = PG_GETARG_BOOL(2);
	reject_null(fcinfo, 0, "index");
	(void) report_run(PG_GETARG_OID(0), false, false, bloat_measure, &bloat);
	row_clear(&row);
	row_int64(&row, 1, bloat.pages);
	row_int64(&row, 2, bloat.sampled_pages);
	row_ratio(&row, 3, bloat.leaf_density);
	row_ratio(&row, 4, bloat.facts.fillfactor);
	row_ratio(&row, 5, bloat.ratio);
	row_ratio(&row, 6, bloat.low);
	row_ratio(&row, 7, bloat.high);
	if (!isnan(bloat.ratio))
		row_int64(&row, 8, bloat_bytes(&bloat));
	if (!isnan(bloat.low))
		row_set(&row, 9, BoolGetDatum(bloat.exact));
	return row_result(fcinfo, &row);
}

/*
 * Set three columns of index_report() for an index, or none: the bloat, its bytes,
 * and how that was measured.
 */
void
bloat_report(Oid index_oid, Row *row, int column)
{
	Bloat		bloat = {.sample_pages = REPORT_SAMPLE};
	const char *source = "every page";

	if (!OidIsValid(index_oid) || !report_run(index_oid, false, true, bloat_measure, &bloat) ||
		isnan(bloat.low))
		source = "not measured";
	else
	{
		if (!bloat.exact)
			source = psprintf("sample of %u pages", bloat.sampled_pages);
		if (isnan(bloat.ratio))
			source = psprintf("%s: between %.2f and %.2f", source, bloat.low, bloat.high);
		else
			row_int64(row, column + 1, bloat_bytes(&bloat));
		row_ratio(row, column, bloat.ratio);
	}
	row_text(row, column + 2, source);
}

/*
 * Estimate the bloat of one index for the planner, at little cost.  Sets the
 * share that a rebuild frees, or at least frees if only an interval is known, in
 * which case *is_least, if not NULL, is set.  Returns false if that cannot be
 * measured (access method, lock, validity, damage, slow storage).
 *
 * Reads for a second at most, with AccessShareLock, without waiting for it.
 */
bool
bloat_estimate(Oid index_oid, double *ratio, bool *is_least)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "bloat estimate",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	Bloat		bloat = {
		.sample_pages = PLAN_SAMPLE,
		.deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PLAN_MILLISECONDS)
	};
	bool		ok = report_run(index_oid, false, true, bloat_measure, &bloat);

	MemoryContextSwitchTo(oldcontext);
	/* nothing was freed before, so this is all that it used */
	elog(DEBUG1, "estimated the bloat of index %u from %lld blocks in %lld bytes of memory",
		 index_oid, (long long) bloat.sampled_pages, (long long) MemoryContextMemAllocated(context, true));
	MemoryContextDelete(context);
	*ratio = isnan(bloat.ratio) ? bloat.low : bloat.ratio;
	if (is_least != NULL)
		*is_least = isnan(bloat.ratio);
	return ok && !isnan(*ratio);
}
