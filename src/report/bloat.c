/*-------------------------------------------------------------------------
 *
 * bloat.c
 *	  The share of an index that a rebuild would free, from a sample of it.
 *
 * The file is cut into equal parts, and a block is drawn at random from each; to read
 * all is to have a part for each block.  The 95 % interval is that of the delete-a-group
 * jackknife (Kott, 2001), which gives the variance of any smooth function of the totals,
 * here rebuilt_pages().  It is widened by 3 / n, because a sample of n blocks without a
 * deleted page does not prove that there are none.
 *
 * Blocks are read in file order, with prefetch, through a small ring of
 * buffers, to spare cache and disk.  Locks: the caller's on the index.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/hash.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "storage/lmgr.h"
#include "utils/float.h"
#include "utils/memutils.h"
#include "utils/spccache.h"
#include "utils/syscache.h"

#include "errors.h"
#include "file_system.h"
#include "job.h"
#include "report/report.h"
#include "report/report_private.h"

PG_FUNCTION_INFO_V1(index_mover_index_bloat);

/* Blocks that index_report() reads of each index */
#define REPORT_SAMPLE		400

/* Cost of a plan for each index: 80 reads a second are enough */
#define PLAN_SAMPLE			80
#define PLAN_MILLISECONDS	1000
#define PLAN_PREFETCH		1

#define GROUPS				40	/* of the jackknife */
#define MOST_KEPT			200 /* pages of GIN */
#define LEAST_WORKER_MEMORY (32 * 1024) /* kB, of a build */

typedef struct Bloat
{
	/* arguments */
	int			sample_pages;	/* the most blocks to read, at least 1 */
	double		deadline;		/* as clock_seconds(); 0 = none */
	bool		exact;			/* read all blocks; set if all were read */

	/* results; NaN = not known */
	BlockNumber pages;
	BlockNumber sampled_pages;	/* blocks read, metapage included */
	double		leaf_density;	/* 0 to 1 */
	double		ratio;
	double		low;
	double		high;

	/* in between */
	Relation	index;
	BufferAccessStrategy strategy;
	IndexFacts	facts;
	char	   *copy;			/* of the current block */
	BlockNumber first;			/* 1: block 0 is a metapage */
	BlockNumber population;		/* blocks from there on */
	BlockNumber nsample;		/* of these, to be read */
	uint64		seed;
	MemoryContext context;		/* of these copies; NULL = there are none */
	char	  **kept;			/* copies of GIN's pages of keys */
	int			nkept;
	PageTotals	totals;			/* of the index, or estimated */
	PageTotals	groups[GROUPS]; /* whose sum they are */
} Bloat;

/* Copy a block, to inspect it without a lock. */
static void
copy_block(Bloat *bloat, BlockNumber blkno)
{
	Buffer		buffer;

	CHECK_FOR_INTERRUPTS();
	buffer = ReadBufferExtended(bloat->index, MAIN_FORKNUM, blkno, RBM_NORMAL, bloat->strategy);
	buffer_copy_page(buffer, bloat->copy);
	bloat->sampled_pages++;
}

/* Read the metapage, which all access methods but GiST have. */
static void
read_metapage(Bloat *bloat)
{
	IndexFacts *facts = &bloat->facts;
	Page		page = (Page) bloat->copy;

	copy_block(bloat, 0);
	/* the index may grow meanwhile, but an old root stays in it */
	if (page_root(facts->relam, page, NULL) >= RelationGetNumberOfBlocks(bloat->index))
		report_corrupted(bloat->index, 0, "invalid metapage");
	if (facts->relam == BTREE_AM_OID)
		/* as in _bt_load(): a unique index is built without posting lists */
		facts->deduplicates = BTPageGetMeta(page)->btm_version == BTREE_VERSION &&
			BTPageGetMeta(page)->btm_allequalimage &&
			!bloat->index->rd_index->indisunique && BTGetDeduplicateItems(bloat->index);
	else if (facts->relam == HASH_AM_OID)
	{
		facts->hash_rows = HashPageGetMeta(page)->hashm_ntuples;
		if (!(facts->hash_rows >= 0 && facts->hash_rows < 1e15))
			report_corrupted(bloat->index, 0, "invalid metapage");
	}
}

/* Return the block of the sample, n from 0 on, the same each time. */
static BlockNumber
sample_block(const Bloat *bloat, BlockNumber n)
{
	uint64		start = (uint64) bloat->population * n / bloat->nsample;
	uint64		end = (uint64) bloat->population * (n + 1) / bloat->nsample;

	Assert(n < bloat->nsample && bloat->nsample <= bloat->population);
	return bloat->first + start + hash_bytes_uint32_extended(n, bloat->seed) % (end - start);
}

/* Keep a copy of the page, the n-th of the sample, if a build is to be carried out on it. */
static void
keep_page(Bloat *bloat, BlockNumber n, const PageMeasure *pm)
{
	BlockNumber step = bloat->nsample / MOST_KEPT + 1;
	MemoryContext oldcontext;

	if (bloat->facts.relam != GIN_AM_OID || pm->kind != PAGE_LEAF || n % step != 0 ||
		bloat->nkept == MOST_KEPT)
		return;
	if (bloat->context == NULL)
	{
		bloat->context = AllocSetContextCreate(CurrentMemoryContext, "pages of a GIN index",
											   ALLOCSET_DEFAULT_SIZES);
		bloat->kept = MemoryContextAlloc(bloat->context, MOST_KEPT * sizeof(char *));
	}
	oldcontext = MemoryContextSwitchTo(bloat->context);
	bloat->kept[bloat->nkept] = palloc_aligned(BLCKSZ, PG_IO_ALIGN_SIZE, 0);
	memcpy(bloat->kept[bloat->nkept++], bloat->copy, BLCKSZ);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Return whether a build of a GIN index sorts all keys: about, whether it has workers, as in
 * plan_create_index_workers(), which needs a lock on the table.
 */
static bool
sorts_all_keys(Relation index)
{
	HeapTuple	tuple;
	BlockNumber pages = 0;

	if (!IM_GIN_PARALLEL || max_parallel_maintenance_workers == 0 ||
		maintenance_work_mem < 2 * LEAST_WORKER_MEMORY)
		return false;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index->rd_index->indrelid));
	if (HeapTupleIsValid(tuple))
	{
		pages = ((Form_pg_class) GETSTRUCT(tuple))->relpages;
		ReleaseSysCache(tuple);
	}
	return pages > 0 && pages >= (BlockNumber) min_parallel_table_scan_size;
}

/* Carry out a build on the pages that were kept. */
static void
simulate_build(Bloat *bloat)
{
	MemoryContext oldcontext;

	if (bloat->nkept == 0)
		return;
	oldcontext = MemoryContextSwitchTo(bloat->context);
	bloat->facts.gin_density = rebuilt_gin_density(bloat->kept, bloat->nkept, &bloat->totals,
												   sorts_all_keys(bloat->index));
	MemoryContextSwitchTo(oldcontext);
}

/* Read the sample, and add up its figures; false after the deadline. */
static bool
read_sample(Bloat *bloat)
{
	Oid			tablespace = bloat->index->rd_rel->reltablespace;
	int			distance = get_tablespace_maintenance_io_concurrency(tablespace);
	double		weight = (double) bloat->population / Max(bloat->nsample, 1);
	BlockNumber ahead = 1;

	/* in a plan, clients' reads must not queue behind ours */
	if (bloat->deadline != 0)
		distance = Min(distance, PLAN_PREFETCH);
	for (BlockNumber n = 0; n < bloat->nsample; n++)
	{
		BlockNumber blkno = sample_block(bloat, n);
		PageMeasure pm;
		const char *problem;

		if (bloat->deadline != 0 && clock_seconds() >= bloat->deadline)
			return false;
		/* the operating system reads ahead by itself where all is read */
		if (!bloat->exact)
		{
			for (; ahead < bloat->nsample && ahead <= n + distance; ahead++)
				PrefetchBuffer(bloat->index, MAIN_FORKNUM, sample_block(bloat, ahead));
		}
		IM_POINT("measure");
		copy_block(bloat, blkno);
		IM_MEASURE_DAMAGED(&bloat->facts, bloat->copy, blkno);
		problem = page_measure(&bloat->facts, (Page) bloat->copy, &pm);
		if (problem)
			report_corrupted(bloat->index, blkno, problem);
		Assert(pm.kind < PAGE_KINDS && pm.packed <= pm.used && pm.used <= pm.avail);
		keep_page(bloat, n, &pm);
		page_measure_add(&bloat->totals.of[pm.kind], &pm, weight);
		page_measure_add(&bloat->groups[n % GROUPS].of[pm.kind], &pm, weight);
	}
	return true;
}

/* Return the bloat by the totals, for one of the sizes after a rebuild. */
static double
estimate(const Bloat *bloat, const PageTotals *totals, RebuiltSize size)
{
	return 1.0 - rebuilt_pages(&bloat->facts, totals, size) / bloat->pages;
}

/*
 * Return half the width of the 95 % interval around an estimate.  Its standard deviation
 * is that of the estimates without a group each.
 */
static double
half_interval(const Bloat *bloat, RebuiltSize size)
{
	int			ngroups = Min(GROUPS, bloat->nsample);
	double		without[GROUPS];
	double		mean = 0;
	double		variance = 0;

	/* a sample says more of a population that is finite */
	double		unseen = 1 - (double) bloat->nsample / bloat->population;

	if (bloat->exact)
		return 0;
	for (int i = 0; i < ngroups; i++)
	{
		PageTotals	t = {0};
		BlockNumber left_out = bloat->nsample / ngroups + (i < bloat->nsample % ngroups);
		double		scale = (double) bloat->nsample / (bloat->nsample - left_out);

		for (int kind = 0; kind < PAGE_KINDS; kind++)
		{
			page_measure_add(&t.of[kind], &bloat->totals.of[kind], scale);
			page_measure_add(&t.of[kind], &bloat->groups[i].of[kind], -scale);
		}
		without[i] = estimate(bloat, &t, size);
		mean += without[i] / ngroups;
	}
	for (int i = 0; i < ngroups; i++)
		variance += pow(without[i] - mean, 2) * (ngroups - 1) / ngroups * unseen;
	/* about Student's t */
	return (1.96 + 2.5 / (ngroups - 1)) * sqrt(variance) + 3.0 / bloat->nsample * unseen;
}

static double
ratio_within(double ratio)
{
	return Min(Max(ratio, 0), 1);
}

/*
 * Return the bloat by the number of rows that VACUUM has counted, which for uneven bloat
 * says more than a sample; NaN if there is none.  It may be outdated, or come from ANALYZE.
 */
static double
estimate_by_rows(const Bloat *bloat)
{
	PageTotals	totals = bloat->totals;
	PageMeasure *leaf = &totals.of[PAGE_LEAF];
	double		known = bloat->index->rd_rel->reltuples;

	if (bloat->facts.relam != BTREE_AM_OID || known <= 0 || leaf->rows <= 0)
		return get_float8_nan();
	leaf->packed *= known / leaf->rows;
	leaf->tuples *= known / leaf->rows;
	leaf->rows = known;
	return estimate(bloat, &totals, REBUILT_EXPECTED);
}

/*
 * Set the results from the totals.  Where the pages allow several sizes after a
 * rebuild, the interval extends from the lower bound for the largest size to the
 * upper one for the smallest size.
 */
static void
set_results(Bloat *bloat)
{
	const PageMeasure *leaf = &bloat->totals.of[PAGE_LEAF];
	const PageMeasure *posting = &bloat->totals.of[PAGE_POSTING];
	double		ratio = estimate(bloat, &bloat->totals, REBUILT_EXPECTED);
	double		smallest = estimate(bloat, &bloat->totals, REBUILT_SMALLEST);
	double		by_rows = estimate_by_rows(bloat);
	double		half = half_interval(bloat, REBUILT_EXPECTED);
	bool		is_certain = bloat->facts.relam == BTREE_AM_OID;

	/* the two are fractions of pages */
	double		rounding = is_certain ? 0 : 1.0 / bloat->pages;

	/* like avg_leaf_density of pgstatindex: without deleted pages */
	if (leaf->avail + posting->avail > 0)
		bloat->leaf_density = (leaf->used + posting->used) / (leaf->avail + posting->avail);
	bloat->low = ratio_within(estimate(bloat, &bloat->totals, REBUILT_LARGEST) -
							  half_interval(bloat, REBUILT_LARGEST) - rounding);
	bloat->high = ratio_within(smallest + half_interval(bloat, REBUILT_SMALLEST) + rounding);
	/* where the sample, by three standard deviations, does not contradict it */
	if (fabs(by_rows - ratio) <= 1.5 * half)
		ratio = by_rows;
	bloat->ratio = ratio_within(1 - ceil((1 - ratio) * bloat->pages - 1e-4) / bloat->pages);
	if (is_certain && bloat->exact)
		bloat->low = bloat->high = bloat->ratio;
	bloat->low = Min(bloat->low, bloat->ratio);
	bloat->high = Max(bloat->high, bloat->ratio);
}

/*
 * Measure an open, valid index.  All results are NaN if the deadline comes too soon,
 * for a sample of less than three blocks, and for an access method that is not known.
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
	bloat->copy = IM_GUARDED(copy.data);
	bloat->leaf_density = bloat->ratio = bloat->low = bloat->high = get_float8_nan();
	if (!page_measure_facts(index, &bloat->facts) || bloat->pages == 0)
		return;

	bloat->strategy = GetAccessStrategy(BAS_BULKREAD);
	bloat->first = bloat->facts.relam == GIST_AM_OID ? 0 : 1;
	if (bloat->first > 0)
		read_metapage(bloat);
	bloat->exact |= bloat->pages <= bloat->sample_pages;
	bloat->population = bloat->pages - bloat->first;
	bloat->nsample = bloat->exact ? bloat->population : bloat->sample_pages - bloat->first;
	bloat->seed = pg_prng_uint64(&pg_global_prng_state);
	if ((bloat->exact || bloat->sample_pages > 2) && read_sample(bloat))
	{
		simulate_build(bloat);
		set_results(bloat);
	}
	/* a plan measures many indexes in one memory context */
	if (bloat->context != NULL)
		MemoryContextDelete(bloat->context);
	FreeAccessStrategy(bloat->strategy);
}

/* Four decimals: more would be far below any sampling error, and too wide. */
static void
row_ratio(Row *row, int column, double ratio)
{
	row_float8(row, column, rint(ratio * 10000) / 10000);
}

/* Set the columns for the bloat and its bytes. */
static void
row_bloat(Row *row, int ratio, int bytes, const Bloat *bloat)
{
	row_ratio(row, ratio, bloat->ratio);
	if (!isnan(bloat->ratio))
		row_int64(row, bytes, rint(bloat->ratio * bloat->pages * BLCKSZ));
}

/*
 * index_bloat(index regclass, sample_pages int, exact boolean) RETURNS record
 *
 * Reads at most sample_pages blocks or, with exact, all of them.
 *
 * Locks: AccessShareLock on the index until the end.  EXECUTE:
 * pg_stat_scan_tables.  Errors: 22004 and 22023 arguments, 42704 no such
 * index, 42809 not an index, 0A000 other sessions' temporary indexes,
 * unlogged indexes on a standby, 55000 invalid index, XX001 and XX002 damage.
 */
Datum
index_mover_index_bloat(PG_FUNCTION_ARGS)
{
	Bloat		bloat = {0};
	Row			row;

	reject_null(fcinfo, 1, "sample_pages");
	if (PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sample_pages must be greater than zero")));
	bloat.sample_pages = PG_GETARG_INT32(1);
	reject_null(fcinfo, 2, "exact");
	bloat.exact = PG_GETARG_BOOL(2);
	reject_null(fcinfo, 0, "index");
	(void) report_run(PG_GETARG_OID(0), false, bloat_measure, &bloat);
	row_clear(&row);
	row_int64(&row, 1, bloat.pages);
	row_int64(&row, 2, bloat.sampled_pages);
	row_ratio(&row, 3, bloat.leaf_density);
	row_ratio(&row, 4, bloat.facts.fillfactor);
	row_bloat(&row, 5, 8, &bloat);
	row_ratio(&row, 6, bloat.low);
	row_ratio(&row, 7, bloat.high);
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
	const char *source;
	bool		measured = false;

	if (OidIsValid(index_oid))
		measured = report_run(index_oid, true, bloat_measure, &bloat);
	if (!measured || isnan(bloat.low))
	{
		row_text(row, column + 2, "not measured");
		return;
	}
	source = bloat.exact ? "every page" : psprintf("sample of %u pages", bloat.sampled_pages);
	if (bloat.high - bloat.low > 0.1)
		source = psprintf("%s: between %.2f and %.2f", source, bloat.low, bloat.high);
	row_bloat(row, column, column + 1, &bloat);
	row_text(row, column + 2, source);
}

/*
 * Estimate the bloat of one index for the planner, at little cost: the share that a rebuild
 * frees.  Returns false if that cannot be measured (access method, lock, validity, damage,
 * slow storage).
 *
 * Reads for a second at most, with AccessShareLock, without waiting for it.
 */
bool
bloat_estimate(Oid index_oid, double *ratio)
{
	Bloat		bloat = {
		.sample_pages = PLAN_SAMPLE,
		.deadline = clock_seconds() + PLAN_MILLISECONDS / 1000.0
	};
	bool		ok = report_run(index_oid, true, bloat_measure, &bloat);

	elog(DEBUG1, "estimated the bloat of index %u from %u blocks", index_oid, bloat.sampled_pages);
	*ratio = bloat.ratio;
	return ok && !isnan(*ratio);
}
