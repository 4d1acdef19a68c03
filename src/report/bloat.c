/*-------------------------------------------------------------------------
 *
 * bloat.c
 *	  The share of an index that a rebuild would free, from a sample of it.
 *
 * The sample is a stratified random one in two passes ("Drawing the sample"
 * below).  The interval after the first pass decides whether the second is
 * worth its time.
 *
 * The 95 % interval is that of the stratified jackknife, which gives the
 * variance of any smooth function of the totals, here rebuilt_pages().  It is
 * widened like Wilson's, because a sample without a deleted page does not
 * prove that there are none.
 *
 * Blocks are read in file order, with prefetch, through a small ring of
 * buffers, to spare cache and disk.  Locks: the caller's AccessShareLock on
 * the index, and a share lock on one buffer while it is copied.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/hash.h"
#include "access/nbtree.h"
#include "catalog/pg_am_d.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fsm_internals.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/float.h"
#include "utils/memutils.h"
#include "utils/spccache.h"

#include "file_system.h"
#include "report/report.h"
#include "report/report_private.h"
#include "test_points.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* read the second pass if the interval is wider than this to either side */
#define GOOD_ENOUGH		0.02

/* Cost of a plan for each index: 80 reads a second complete the first pass */
#define PLAN_SAMPLE			160
#define PLAN_MILLISECONDS	1000
#define PLAN_PREFETCH		1

#define SAMPLE_DRAWS	4		/* blocks drawn from each stratum */
#define SAMPLE_FIRST	2		/* of them, in the first pass */

typedef struct SampledBlock
{
	BlockNumber blkno;
	int			stratum;		/* -1 = in the sample with certainty */
	int			draw;			/* number of the draw in its stratum */
	double		stratum_size;	/* in blocks */
	PageMeasure pm;				/* filled in by the reader of the block */
} SampledBlock;

typedef struct BloatSample
{
	SampledBlock *blocks;		/* in the order of reading */
	int			nblocks;
	int			first_pass;		/* number of blocks in the first pass */
	int			draws;			/* from each stratum, in both passes */
	int			nstrata;
	int			fsm_blocks_read;
} BloatSample;

typedef struct BloatScan
{
	Relation	index;
	BlockNumber nblocks;
	int64		blocks_read;
	TimestampTz deadline;		/* 0 = none */
	BufferAccessStrategy strategy;
	MeasureContext mc;
	RebuildContext rc;
	double		known_rows;		/* reltuples; <= 0 = unknown */
	char	   *copy;			/* of the current block */

	BloatSample sample;
	int			draws;			/* read so far from each stratum */
} BloatScan;

#define FSM_SHARE		10		/* one in so many of the sample may be a block
								 * of the free space map */
#define FREE_SAMPLE		40		/* most blocks to sample of those that are
								 * free by the map */
#define FSM_FREE_CAT	250		/* category of a free block, or more
								 * (RecordFreeIndexPage) */

static void
report_corrupted(Relation index, BlockNumber blkno, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" contains corrupted page at block %u",
					RelationGetRelationName(index), blkno),
			 errdetail_internal("The page cannot be read: %s.", problem)));
}

/*
 * Return the buffer for the copy of a block.  With AddressSanitizer all that a
 * line pointer can address around it is out of bounds.
 */
static char *
copy_buffer(void)
{
#ifdef __SANITIZE_ADDRESS__
	static PGIOAlignedBlock guarded[9];

	ASAN_POISON_MEMORY_REGION(guarded, 4 * BLCKSZ);
	ASAN_POISON_MEMORY_REGION(guarded + 5, 4 * BLCKSZ);
	return guarded[4].data;
#else
	static PGIOAlignedBlock copy;

	return copy.data;
#endif
}

/* Copy a block, to inspect it without a lock. */
static void
copy_block(Relation index, ForkNumber fork, BlockNumber blkno, ReadBufferMode mode,
		   BufferAccessStrategy strategy, char *copy)
{
	CHECK_FOR_INTERRUPTS();
	buffer_copy_page(ReadBufferExtended(index, fork, blkno, mode, strategy), copy);
}

static void
read_main_block(BloatScan *scan, BlockNumber blkno)
{
	copy_block(scan->index, MAIN_FORKNUM, blkno, RBM_NORMAL, scan->strategy, scan->copy);
	scan->blocks_read++;
}

static void
measure_block(BloatScan *scan, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem;

	IM_POINT("measure");
	read_main_block(scan, blkno);
	IM_MEASURE_DAMAGED(&scan->mc, scan->copy, blkno);
	problem = page_measure(&scan->mc, (Page) scan->copy, blkno, pm);
	if (problem)
		report_corrupted(scan->index, blkno, problem);
}

/*
 * Read block 0, which is always in the sample: the root in GiST, which is added
 * to the totals, and the metapage of all other access methods.
 */
static void
read_first_block(BloatScan *scan, PageTotals *totals)
{
	Page		page = (Page) scan->copy;
	PageHeader	ph = (PageHeader) page;

	if (scan->mc.relam == GIST_AM_OID)
	{
		PageMeasure pm;

		measure_block(scan, 0, &pm);
		page_totals_add(totals, &pm, 1);
		return;
	}

	read_main_block(scan, 0);
	if (PageIsNew(page) || ph->pd_lower > BLCKSZ || ph->pd_special > BLCKSZ)
		report_corrupted(scan->index, 0, "invalid metapage");
	if (scan->mc.relam == BTREE_AM_OID)
	{
		BTMetaPageData *meta = BTPageGetMeta(page);

		if (meta->btm_magic != BTREE_MAGIC)
			report_corrupted(scan->index, 0, "invalid metapage");
		/* as in _bt_load(): a unique index is built without posting lists */
		scan->mc.deduplicates = meta->btm_version == BTREE_VERSION &&
			meta->btm_allequalimage &&
			!scan->index->rd_index->indisunique &&
			BTGetDeduplicateItems(scan->index);
	}
	else if (scan->mc.relam == HASH_AM_OID)
	{
		HashMetaPage meta = HashPageGetMeta(page);

		if (meta->hashm_magic != HASH_MAGIC)
			report_corrupted(scan->index, 0, "invalid metapage");
		if (meta->hashm_ntuples >= 0 && meta->hashm_ntuples < 1e15)
			scan->rc.hash_tuples = meta->hashm_ntuples;
		scan->rc.hash_ffactor = meta->hashm_ffactor;
	}
}

/* ----------------------------------------------------------------
 *	Drawing the sample
 *
 * The file is cut into equal parts, the strata, and four blocks are drawn at
 * random from each.  Blocks that are free by the free space map form strata of
 * their own, because nearly all of them are empty: otherwise an index in which
 * every other page is deleted would need four times the sample.  All measures
 * come from the pages, so a stale map costs precision only.
 *
 * The first pass reads two blocks of each stratum, the second the others, both
 * in file order.  Most indexes are so evenly filled that half of the sample is
 * enough, and on a disk every block costs a seek.
 * ----------------------------------------------------------------
 */

/*
 * Return the block of the free space map for a leaf page of it, counted from 0:
 * fsm_logical_to_physical() of freespace.c, with FSM_TREE_DEPTH.
 */
static BlockNumber
fsm_leaf_block(BlockNumber slot)
{
	int			depth = SlotsPerFSMPage >= 1626 ? 3 : 4;
	BlockNumber blocks = 0;

	for (int level = 0; level < depth; level++)
	{
		blocks += slot + 1;
		slot /= SlotsPerFSMPage;
	}
	return blocks - 1;
}

/*
 * Divide the blocks 1 .. nblocks - 1: put free ones, by the free space map, at
 * the start of blocks[], and the others at its end.  Returns false without
 * reading if the map is missing, too big, or has another meaning.
 */
static bool
split_by_fsm(Relation index, BlockNumber nblocks, int max_fsm_blocks,
			 BufferAccessStrategy strategy, int *blocks_read,
			 BlockNumber *blocks, BlockNumber *nfree, BlockNumber *nother)
{
	BlockNumber fsm_size;
	PGIOAlignedBlock copy;
	BlockNumber slots = (nblocks - 1) / SlotsPerFSMPage + 1;

	if (index->rd_rel->relam == HASH_AM_OID || slots > max_fsm_blocks ||
		!smgrexists(RelationGetSmgr(index), FSM_FORKNUM))
		return false;
	fsm_size = smgrnblocks(RelationGetSmgr(index), FSM_FORKNUM);

	for (BlockNumber slot = 0; slot < slots; slot++)
	{
		BlockNumber fsm_block = fsm_leaf_block(slot);
		BlockNumber first = slot * SlotsPerFSMPage;
		bool		known = fsm_block < fsm_size;
		FSMPage		fsm = (FSMPage) PageGetContents((Page) copy.data);

		if (known)
		{
			/* a damaged block is empty, as in core: the map is only a hint */
			copy_block(index, FSM_FORKNUM, fsm_block, RBM_ZERO_ON_ERROR, strategy, copy.data);
			(*blocks_read)++;
		}
		for (int i = 0; i < SlotsPerFSMPage; i++)
		{
			BlockNumber blkno = first + i;

			if (blkno == 0)
				continue;
			if (blkno >= nblocks)
				break;
			if (known && fsm->fp_nodes[NonLeafNodesPerPage + i] >= FSM_FREE_CAT)
				blocks[(*nfree)++] = blkno;
			else
				blocks[nblocks - 2 - (*nother)++] = blkno;
		}
	}
	return true;
}

/*
 * Draw n of nframe blocks, sample->draws from each of equal parts.  The blocks
 * are in frame[]; they are 1 .. nframe if that is NULL.
 */
static void
draw_blocks(BloatSample *sample, const BlockNumber *frame, BlockNumber nframe, int n)
{
	int			draws = sample->draws;
	int			parts = n / draws;

	if (n >= nframe)
	{
		for (BlockNumber i = 0; i < nframe; i++)
		{
			BlockNumber blkno = frame ? frame[i] : i + 1;

			sample->blocks[sample->nblocks++] = (SampledBlock)
			{
				blkno, -1, 0, 1
			};
		}
		return;
	}
	for (int part = 0; part < parts; part++)
	{
		uint64		start = (uint64) nframe * part / parts;
		uint64		end = (uint64) nframe * (part + 1) / parts;
		uint64		drawn[SAMPLE_DRAWS];

		for (int i = 0; i < draws; i++)
		{
			BlockNumber blkno;
			bool		again;

			do
			{
				drawn[i] = pg_prng_uint64_range(&pg_global_prng_state, start, end - 1);
				again = false;
				for (int j = 0; j < i; j++)
					again |= drawn[j] == drawn[i];
			} while (again);
			blkno = frame ? frame[drawn[i]] : drawn[i] + 1;
			sample->blocks[sample->nblocks++] =
				(SampledBlock)
			{
				blkno, sample->nstrata, i, end - start
			};
		}
		sample->nstrata++;
	}
}

/* Order by pass, then by block. */
static int
compare_blocks(const void *a, const void *b)
{
	const SampledBlock *x = a;
	const SampledBlock *y = b;
	int			passes = (x->draw >= SAMPLE_FIRST) - (y->draw >= SAMPLE_FIRST);

	return passes != 0 ? passes : (x->blkno > y->blkno) - (x->blkno < y->blkno);
}

/*
 * Draw less than all of the blocks 1 .. nblocks - 1: at most n, minus the pages
 * of the free space map that this reads.
 */
static void
draw_sample(Relation index, BlockNumber nblocks, int n,
			BufferAccessStrategy strategy, BloatSample *sample)
{
	BlockNumber population = nblocks - 1;
	BlockNumber *blocks = NULL;
	BlockNumber nfree = 0;
	BlockNumber nother = 0;
	int			max_fsm = n / FSM_SHARE;

	Assert(n >= 0 && n < population);
	memset(sample, 0, sizeof(*sample));
	/* an index of terabytes needs more than palloc() allows */
	sample->blocks = palloc_extended(sizeof(SampledBlock) * (Size) Max(n, 1),
									 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	/* a tiny sample cannot have strata of four */
	sample->draws = n >= 2 * SAMPLE_DRAWS ? SAMPLE_DRAWS : Max(Min(n, SAMPLE_FIRST), 1);

	if ((population + 1) / SlotsPerFSMPage < max_fsm &&
		population <= work_mem * (Size) 1024 / 4 / sizeof(BlockNumber))
	{
		blocks = palloc_extended(sizeof(BlockNumber) * (Size) population, MCXT_ALLOC_HUGE);
		if (split_by_fsm(index, nblocks, max_fsm, strategy, &sample->fsm_blocks_read,
						 blocks, &nfree, &nother))
			n -= sample->fsm_blocks_read;
	}

	if (nfree == 0)
		draw_blocks(sample, NULL, population, n);
	else
	{
		int			n_free = (int) ((double) n * nfree / population);

		n_free = Min(Max(n_free, SAMPLE_DRAWS), FREE_SAMPLE);
		if (nother < n - n_free)
			n_free = n - nother;
		draw_blocks(sample, blocks, nfree, n_free);
		draw_blocks(sample, blocks + nfree, nother, n - n_free);
	}
	qsort(sample->blocks, sample->nblocks, sizeof(SampledBlock), compare_blocks);
	while (sample->first_pass < sample->nblocks &&
		   sample->blocks[sample->first_pass].draw < SAMPLE_FIRST)
		sample->first_pass++;
}

/* ----------------------------------------------------------------
 *	Reading and judging it
 * ----------------------------------------------------------------
 */

static bool
is_late(const BloatScan *scan)
{
	return scan->deadline != 0 && GetCurrentTimestamp() >= scan->deadline;
}

/* Read blocks from .. to - 1 of the sample; false after the deadline. */
static bool
read_sample(BloatScan *scan, int from, int to)
{
	SampledBlock *blocks = scan->sample.blocks;
	int			distance = get_tablespace_maintenance_io_concurrency(scan->index->rd_rel->reltablespace);
	int			ahead = from;

	/* in a plan, clients' reads must not queue behind ours */
	if (scan->deadline != 0)
		distance = Min(distance, PLAN_PREFETCH);
	for (int i = from; i < to; i++)
	{
		if (is_late(scan))
			return false;
		for (; distance > 0 && ahead < to && ahead <= i + distance; ahead++)
			if (ahead > i)
				PrefetchBuffer(scan->index, MAIN_FORKNUM, blocks[ahead].blkno);
		measure_block(scan, blocks[i].blkno, &blocks[i].pm);
	}
	return true;
}

/* Return how many blocks a sampled one represents, of all read so far. */
static double
block_weight(const BloatScan *scan, const SampledBlock *s)
{
	Assert(s->stratum < 0 || s->draw < scan->draws);
	return s->stratum < 0 ? 1 : s->stratum_size / scan->draws;
}

/* Numbers computed from the totals */
enum
{
	BLOAT,
	ROWS,						/* row pointers on the leaf pages */
	DENSITY,					/* used share of the leaf pages */
	DENSITY_BY_ROWS,			/* the same, based on known_rows */
	NESTIMATES
};

/* Their values, or sampling variances */
typedef struct Estimates
{
	double		value[NESTIMATES];
} Estimates;

/* The result of a sample */
typedef struct Findings
{
	Estimates	estimates;
	Estimates	variance;
	double		low;			/* the interval of the bloat ratio */
	double		high;
	double		error;			/* its width, as far as the sample is to blame */
	bool		two_sizes;		/* the pages allow two sizes after a rebuild */
} Findings;

static void
compute_estimates(const BloatScan *scan, const PageTotals *t, Estimates *est)
{
	est->value[BLOAT] = 1.0 - rebuilt_pages(&scan->rc, t) / scan->nblocks;
	est->value[ROWS] = t->of[PAGE_LEAF].items + t->of[PAGE_LEAF].dead;
	est->value[DENSITY] = page_totals_density(t);
	est->value[DENSITY_BY_ROWS] = est->value[ROWS] > 0 && scan->known_rows > 0 ?
		est->value[DENSITY] * scan->known_rows / est->value[ROWS] : est->value[DENSITY];
}

/*
 * Compute the variance of the estimates: in each stratum, leave out one block at
 * a time, and give its weight to the others.
 */
static void
jackknife_variance(BloatScan *scan, const PageTotals *totals, Estimates *variance)
{
	int			m = scan->draws;
	SampledBlock **strata = palloc(sizeof(SampledBlock *) * scan->sample.nstrata * SAMPLE_DRAWS);

	memset(variance, 0, sizeof(*variance));
	for (int i = 0; i < scan->sample.nblocks; i++)
	{
		SampledBlock *s = &scan->sample.blocks[i];

		if (s->stratum >= 0)
			strata[s->stratum * SAMPLE_DRAWS + s->draw] = s;
	}
	for (int stratum = 0; m > 1 && stratum < scan->sample.nstrata; stratum++)
	{
		SampledBlock **blocks = strata + stratum * SAMPLE_DRAWS;
		double		weight = block_weight(scan, blocks[0]);
		double		unread = 1.0 - m / blocks[0]->stratum_size;
		Estimates	without[SAMPLE_DRAWS];
		Estimates	mean = {0};

		for (int j = 0; j < m; j++)
		{
			PageTotals	t = *totals;

			for (int k = 0; k < m; k++)
				page_totals_add(&t, &blocks[k]->pm, k == j ? -weight : weight / (m - 1));
			compute_estimates(scan, &t, &without[j]);
			for (int n = 0; n < NESTIMATES; n++)
				mean.value[n] += without[j].value[n] / m;
		}
		for (int j = 0; j < m; j++)
			for (int n = 0; n < NESTIMATES; n++)
				variance->value[n] += unread * (m - 1) / m *
					(without[j].value[n] - mean.value[n]) * (without[j].value[n] - mean.value[n]);
	}
	pfree(strata);
}

/* Set the 95 % interval around the ratio that the sample gives. */
static void
set_interval(const BloatScan *scan, double ratio, double variance, double *low_out, double *high_out)
{
	int			draws = scan->draws * scan->sample.nstrata;
	double		z = 1.96 + 2.4 / Max(draws - scan->sample.nstrata, 1);	/* about Student's t */
	double		stands_for = 0;
	double		low = ratio;
	double		high = ratio;

	for (int i = 0; i < scan->sample.nblocks; i++)
		if (scan->sample.blocks[i].stratum >= 0 && scan->sample.blocks[i].draw == 0)
			stands_for += scan->sample.blocks[i].stratum_size;
	if (draws > 0)
	{
		double		share = stands_for / scan->nblocks;

		/* of a finite population a sample says more */
		double		n = draws / Max(1.0 - draws / stands_for, 1e-6) / (share * share);
		double		center = (ratio + z * z / (2 * n)) / (1 + z * z / n);
		double		half = z * sqrt(variance + z * z / (4 * n * n));

		/* Wilson's, but not narrower to one side than to the other */
		low = Min(ratio, center) - half;
		high = Max(ratio, center) + half;
	}
	*low_out = Min(Max(low, 0), 1);
	*high_out = Min(Max(high, 0), 1);
}

/*
 * Improve the estimates by the number of row pointers that VACUUM has counted,
 * which for uneven bloat says more than a sample.  It may be outdated, or come
 * from ANALYZE, so use it only where the sample does not contradict it, and not
 * for the interval.
 */
static void
refine_estimates(BloatScan *scan, const PageTotals *totals, Findings *found)
{
	Estimates  *est = &found->estimates;
	const Estimates *variance = &found->variance;
	PageTotals	t = *totals;
	double		scale;

	if (scan->known_rows <= 0 || est->value[ROWS] <= 0 ||
		fabs(est->value[ROWS] - scan->known_rows) > 3 * sqrt(variance->value[ROWS]))
		return;
	scale = scan->known_rows / est->value[ROWS];
	if (variance->value[DENSITY_BY_ROWS] < variance->value[DENSITY])
		est->value[DENSITY] = Min(est->value[DENSITY_BY_ROWS], 1);
	t.of[PAGE_LEAF].packed *= scale;
	t.of[PAGE_LEAF].tuples *= scale;
	t.of[PAGE_LEAF].items *= scale;
	est->value[BLOAT] = 1.0 - rebuilt_pages(&scan->rc, &t) / scan->nblocks;
}

/*
 * Compute estimates, variance and interval from the totals.  Where the pages
 * allow two sizes after a rebuild, the estimates are for the larger size, and the
 * interval extends from its lower to the smaller size's upper bound.
 */
static void
judge_sample(BloatScan *scan, const PageTotals *totals, Findings *found)
{
	Estimates	smaller;
	Estimates	its_variance;
	double		page = 1.0 / scan->nblocks;
	double		low;

	scan->rc.smallest = false;
	compute_estimates(scan, totals, &found->estimates);
	jackknife_variance(scan, totals, &found->variance);
	set_interval(scan, found->estimates.value[BLOAT], found->variance.value[BLOAT], &found->low, &found->high);
	found->error = found->high - found->low;

	scan->rc.smallest = true;
	compute_estimates(scan, totals, &smaller);
	jackknife_variance(scan, totals, &its_variance);
	scan->rc.smallest = false;
	found->two_sizes = smaller.value[BLOAT] > found->estimates.value[BLOAT];
	if (!found->two_sizes)
		return;
	set_interval(scan, smaller.value[BLOAT], its_variance.value[BLOAT], &low, &found->high);

	/* the results are fractions of pages */
	found->low = Max(found->low - page, 0);
	found->high = Min(found->high + page, 1);
}

/* Read every block but the first; false after the deadline. */
static bool
measure_all(BloatScan *scan, PageTotals *totals, Findings *found)
{
	for (BlockNumber blkno = 1; blkno < scan->nblocks; blkno++)
	{
		PageMeasure pm;

		if (is_late(scan))
			return false;
		measure_block(scan, blkno, &pm);
		page_totals_add(totals, &pm, 1);
	}
	judge_sample(scan, totals, found);
	return true;
}

/*
 * Read a sample of at most n blocks in one pass or two.  Returns false if it is
 * empty, or the first pass did not end before the deadline; without the second,
 * the result is less precise.
 */
static bool
measure_sample(BloatScan *scan, int n, PageTotals *totals, Findings *found)
{
	PageTotals	first_block = *totals;
	BloatSample *sample = &scan->sample;

	draw_sample(scan->index, scan->nblocks, n, scan->strategy, sample);
	scan->blocks_read += sample->fsm_blocks_read;
	for (int from = 0, to = sample->first_pass; to > 0; from = to, to = sample->nblocks)
	{
		if (!read_sample(scan, from, to))
			return from > 0;
		scan->draws = to < sample->nblocks ? SAMPLE_FIRST : sample->draws;
		*totals = first_block;
		for (int i = 0; i < to; i++)
			page_totals_add(totals, &sample->blocks[i].pm, block_weight(scan, &sample->blocks[i]));
		judge_sample(scan, totals, found);
		if (to == sample->nblocks || found->error <= 2 * GOOD_ENOUGH)
			return true;
	}
	return false;
}

static void
set_results(const BloatScan *scan, const Findings *found, BloatReport *bloat)
{
	double		ratio = found->estimates.value[BLOAT];
	double		rebuilt = (1.0 - ratio) * scan->nblocks;

	bloat->leaf_density = found->estimates.value[DENSITY];
	bloat->bloat_ratio_low = found->low;
	bloat->bloat_ratio_high = found->high;
	if (found->two_sizes)
		return;
	/* fractions of pages served the interval only */
	rebuilt = scan->mc.relam == HASH_AM_OID ? rint(rebuilt) : ceil(rebuilt - 1e-4);
	ratio = Min(Max(1.0 - rebuilt / scan->nblocks, 0), 1);
	bloat->bloat_ratio = ratio;
	bloat->bloat_ratio_low = bloat->exact ? ratio : Min(found->low, ratio);
	bloat->bloat_ratio_high = bloat->exact ? ratio : Max(found->high, ratio);
}

/*
 * Measure an open, valid index, for a BloatReport.  Allocates in the current
 * memory context, which the caller deletes.
 *
 * At the deadline the blocks read so far must suffice; if they are too few, all
 * results are NaN, as for an access method that is not known.  ERROR XX001 or
 * XX002 for damaged pages.
 */
void
bloat_measure(Relation index, Report *report)
{
	BloatReport *bloat = (BloatReport *) report;
	BloatScan  *scan = palloc0(sizeof(BloatScan));
	PageTotals	totals = {0};
	Findings	found;
	bool		enough;

	Assert(CheckRelationLockedByMe(index, AccessShareLock, true));
	Assert(bloat->sample_pages > 0);
	scan->index = index;
	scan->nblocks = RelationGetNumberOfBlocks(index);
	scan->strategy = GetAccessStrategy(BAS_BULKREAD);
	scan->copy = copy_buffer();
	scan->deadline = bloat->deadline;
	scan->mc.relam = index->rd_rel->relam;
	if (scan->mc.relam == BTREE_AM_OID || scan->mc.relam == GIST_AM_OID ||
		scan->mc.relam == SPGIST_AM_OID)
		scan->known_rows = index->rd_rel->reltuples;

	bloat->pages = scan->nblocks;
	bloat->sampled_pages = 0;
	bloat->leaf_density = bloat->fillfactor = get_float8_nan();
	bloat->bloat_ratio = bloat->bloat_ratio_low = bloat->bloat_ratio_high = get_float8_nan();
	if (!page_measure_supports(scan->mc.relam) || scan->nblocks == 0)
		return;

	rebuild_context_init(index, &scan->rc);
	bloat->fillfactor = scan->rc.fillfactor;
	read_first_block(scan, &totals);
	bloat->exact |= scan->nblocks <= bloat->sample_pages;
	enough = bloat->exact ? measure_all(scan, &totals, &found) :
		measure_sample(scan, bloat->sample_pages - 1, &totals, &found);
	bloat->sampled_pages = scan->blocks_read;
	if (!enough)
		return;
	if (!bloat->exact)
		refine_estimates(scan, &totals, &found);
	set_results(scan, &found, bloat);
}

/*
 * Estimate the bloat of one index for the planner, at little cost.  Sets the
 * share that a rebuild frees, or at least frees if only an interval is known, in
 * which case *is_least, if not NULL, is set.
 * Returns false if that cannot be measured (access method, lock, validity,
 * damage, slow storage).
 *
 * Reads for a second at most, and uses less memory than work_mem.  Holds
 * AccessShareLock for that time, without waiting for it.
 */
bool
bloat_estimate(Oid index_oid, double *ratio, bool *is_least)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "bloat estimate",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	BloatReport bloat = {
		.report = {.index_oid = index_oid,.quiet = true,.measure = bloat_measure},
		.sample_pages = PLAN_SAMPLE,
		.deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PLAN_MILLISECONDS)
	};
	bool		ok = report_run(&bloat.report);

	MemoryContextSwitchTo(oldcontext);
	/* nothing was freed before, so this is all that it used */
	elog(DEBUG1, "estimated the bloat of index %u from %lld blocks in %lld bytes of memory",
		 index_oid, (long long) bloat.sampled_pages, (long long) MemoryContextMemAllocated(context, true));
	MemoryContextDelete(context);
	*ratio = isnan(bloat.bloat_ratio) ? bloat.bloat_ratio_low : bloat.bloat_ratio;
	if (is_least != NULL)
		*is_least = isnan(bloat.bloat_ratio);
	return ok && !isnan(*ratio);
}
