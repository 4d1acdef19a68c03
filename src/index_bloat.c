/*-------------------------------------------------------------------------
 *
 * index_bloat.c
 *	  How much of an index a rebuild would give back, from a sample of it.
 *
 * The design is stratified random sampling: the file is cut into equal parts
 * and two blocks are drawn at random from each.  Blocks that the free space
 * map calls free form strata of their own, since nearly all of them are empty:
 * without that, an index in which every other page is deleted would need four
 * times the sample.  The map only decides where to look more closely; what
 * counts is what is found on the page, so a stale map costs precision and
 * never truth.
 *
 * The 95 % interval follows from that design: with two blocks in each stratum
 * the paired jackknife (drop one, double the other) gives an unbiased variance
 * for any smooth function of the totals, here rebuilt_pages().  It is widened
 * as Wilson's interval is, because a sample without a single deleted page
 * doesn't prove that there are none.
 *
 * Blocks are read in the order of the file, with prefetch, through a small
 * ring of buffers, so that neither the cache nor the disk arm suffers.  Locks:
 * the caller's AccessShareLock on the index, and a share lock on one buffer
 * for as long as it takes to copy it.
 *
 * The tricky point is the limit on blocks read: the metapage and the pages of
 * the free space map count too.
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
#include "storage/smgr.h"
#include "utils/float.h"
#include "utils/spccache.h"

#include "index_bloat.h"
#include "rebuilt_size.h"
#include "report_relation.h"

/* the share of the sample that may go into reading the free space map */
#define FSM_SHARE		10
/* the most blocks to look at among those that the map calls free */
#define FREE_SAMPLE		40
/* category from which on the map calls a block free (RecordFreeIndexPage) */
#define FSM_FREE_CAT	250

typedef struct SampledBlock
{
	BlockNumber blkno;
	int			stratum;		/* -1 = in the sample with certainty */
	double		weight;			/* blocks it stands for */
	PageMeasure pm;
} SampledBlock;

typedef struct BloatScan
{
	Relation	index;
	BlockNumber nblocks;
	int64		blocks_read;
	BufferAccessStrategy strategy;
	MeasureContext mc;
	RebuildContext rc;
	double		known_rows;		/* reltuples; <= 0 = unknown */
	PGAlignedBlock copy;

	SampledBlock *sample;
	int			nsample;
	int			nstrata;
} BloatScan;

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
 * Copy a block into scan->copy, so that it can be looked at without a lock.
 */
static void
copy_block(BloatScan *scan, ForkNumber fork, BlockNumber blkno)
{
	Buffer		buffer;

	CHECK_FOR_INTERRUPTS();
	buffer = ReadBufferExtended(scan->index, fork, blkno,
								fork == FSM_FORKNUM ? RBM_ZERO_ON_ERROR : RBM_NORMAL,
								scan->strategy);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(scan->copy.data, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	scan->blocks_read++;
}

static void
measure_block(BloatScan *scan, BlockNumber blkno, PageMeasure *pm)
{
	const char *problem;

	copy_block(scan, MAIN_FORKNUM, blkno);
	problem = page_measure(&scan->mc, (Page) scan->copy.data, blkno, pm);
	if (problem)
		report_corrupted(scan->index, blkno, problem);
}

/*
 * Read block 0, which is always in the sample.  GiST has its root there, the
 * others their metapage.  Adds it to the totals where it is no metapage.
 */
static void
read_first_block(BloatScan *scan, PageTotals *totals)
{
	Page		page = (Page) scan->copy.data;
	PageHeader	ph = (PageHeader) page;

	if (scan->mc.relam == GIST_AM_OID)
	{
		PageMeasure pm;

		measure_block(scan, 0, &pm);
		page_totals_add(totals, &pm, 1);
		return;
	}

	copy_block(scan, MAIN_FORKNUM, 0);
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

/*
 * Return the block of the free space map that says how full the blocks from
 * slot * SlotsPerFSMPage on are.  (fsm_logical_to_physical() in freespace.c,
 * for the lowest level; the depth is FSM_TREE_DEPTH there.)
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
 * Sort the blocks 1 .. nblocks - 1 into those that the free space map calls
 * free and the others.  Returns false, having read nothing, where the map
 * doesn't exist, is too big to be worth it, or means something else.
 */
static bool
split_by_fsm(BloatScan *scan, int max_fsm_blocks,
			 BlockNumber *free_blocks, BlockNumber *nfree,
			 BlockNumber *other_blocks, BlockNumber *nother)
{
	BlockNumber fsm_size;
	BlockNumber slots = (scan->nblocks - 1) / SlotsPerFSMPage + 1;

	*nfree = *nother = 0;
	if (scan->mc.relam == HASH_AM_OID || slots > max_fsm_blocks)
		return false;
	if (!smgrexists(RelationGetSmgr(scan->index), FSM_FORKNUM))
		return false;
	fsm_size = smgrnblocks(RelationGetSmgr(scan->index), FSM_FORKNUM);

	for (BlockNumber slot = 0; slot < slots; slot++)
	{
		BlockNumber fsm_block = fsm_leaf_block(slot);
		BlockNumber first = slot * SlotsPerFSMPage;
		bool		known = fsm_block < fsm_size;
		FSMPage		fsm = (FSMPage) PageGetContents((Page) scan->copy.data);

		if (known)
			copy_block(scan, FSM_FORKNUM, fsm_block);
		for (int i = 0; i < SlotsPerFSMPage; i++)
		{
			BlockNumber blkno = first + i;

			if (blkno == 0)
				continue;
			if (blkno >= scan->nblocks)
				break;
			if (known && fsm->fp_nodes[NonLeafNodesPerPage + i] >= FSM_FREE_CAT)
				free_blocks[(*nfree)++] = blkno;
			else
				other_blocks[(*nother)++] = blkno;
		}
	}
	return true;
}

/*
 * Draw n of the nframe blocks of a frame: two at random from each of n / 2
 * equal parts.  frame is NULL for the blocks 1 .. nframe.
 */
static void
draw_blocks(BloatScan *scan, const BlockNumber *frame, BlockNumber nframe, int n)
{
	int			parts = n / 2;

	if (n >= nframe)
	{
		for (BlockNumber i = 0; i < nframe; i++)
		{
			SampledBlock *s = &scan->sample[scan->nsample++];

			s->blkno = frame ? frame[i] : i + 1;
			s->stratum = -1;
			s->weight = 1;
		}
		return;
	}
	for (int part = 0; part < parts; part++)
	{
		uint64		start = (uint64) nframe * part / parts;
		uint64		end = (uint64) nframe * (part + 1) / parts;
		uint64		first = pg_prng_uint64_range(&pg_global_prng_state, start, end - 1);
		uint64		second = pg_prng_uint64_range(&pg_global_prng_state, start, end - 2);

		if (second >= first)
			second++;
		for (int i = 0; i < 2; i++)
		{
			SampledBlock *s = &scan->sample[scan->nsample++];
			uint64		pos = i == 0 ? first : second;

			s->blkno = frame ? frame[pos] : pos + 1;
			s->stratum = scan->nstrata;
			s->weight = (end - start) / 2.0;
		}
		scan->nstrata++;
	}
}

static int
compare_blkno(const void *a, const void *b)
{
	BlockNumber x = ((const SampledBlock *) a)->blkno;
	BlockNumber y = ((const SampledBlock *) b)->blkno;

	return x < y ? -1 : (x > y ? 1 : 0);
}

/*
 * Choose the blocks to read besides block 0, at most n of them.
 */
static void
choose_sample(BloatScan *scan, int n)
{
	BlockNumber population = scan->nblocks - 1;
	BlockNumber *free_blocks = NULL;
	BlockNumber *other_blocks = NULL;
	BlockNumber nfree = 0;
	BlockNumber nother = 0;
	int			max_fsm = n / FSM_SHARE;

	scan->sample = palloc0(sizeof(SampledBlock) * (Size) n);
	if ((population + 1) / SlotsPerFSMPage < max_fsm)
	{
		free_blocks = palloc(sizeof(BlockNumber) * (Size) population);
		other_blocks = palloc(sizeof(BlockNumber) * (Size) population);
		if (split_by_fsm(scan, max_fsm, free_blocks, &nfree, other_blocks, &nother))
			n -= scan->blocks_read - 1;
		else
			nfree = nother = 0;
	}

	if (nfree == 0)
		draw_blocks(scan, NULL, population, n);
	else
	{
		int			n_free = (int) ((double) n * nfree / population);

		n_free = Min(Max(n_free, 2), FREE_SAMPLE);
		if (nother < n - n_free)
			n_free = n - nother;
		draw_blocks(scan, free_blocks, nfree, n_free);
		draw_blocks(scan, other_blocks, nother, n - n_free);
	}
	if (free_blocks)
	{
		pfree(free_blocks);
		pfree(other_blocks);
	}
	qsort(scan->sample, scan->nsample, sizeof(SampledBlock), compare_blkno);
}

/*
 * Read the chosen blocks, some ahead of need.
 */
static void
read_sample(BloatScan *scan)
{
	int			distance = get_tablespace_maintenance_io_concurrency(scan->index->rd_rel->reltablespace);
	int			ahead = 0;

	for (int i = 0; i < scan->nsample; i++)
	{
		for (; distance > 0 && ahead < scan->nsample && ahead <= i + distance; ahead++)
		{
			if (ahead > i)
				PrefetchBuffer(scan->index, MAIN_FORKNUM, scan->sample[ahead].blkno);
		}
		measure_block(scan, scan->sample[i].blkno, &scan->sample[i].pm);
	}
}

/*
 * Replace the estimated page counts by what pgstatindex has counted.
 */
static void
apply_exact(PageTotals *t, const ExactPages *pages)
{
	double		avail = t->count[PAGE_LEAF] > 0 ? t->avail[PAGE_LEAF] / t->count[PAGE_LEAF] :
		BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(BTPageOpaqueData));
	double		used = isnan(pages->leaf_density) ? 0 : pages->leaf_pages * avail * pages->leaf_density;
	double		scale = t->used[PAGE_LEAF] > 0 ? used / t->used[PAGE_LEAF] : 0;

	if (scale == 0)
		t->packed[PAGE_LEAF] = used;
	t->packed[PAGE_LEAF] *= scale;
	t->tuples[PAGE_LEAF] *= scale;
	t->used[PAGE_LEAF] = used;
	t->avail[PAGE_LEAF] = pages->leaf_pages * avail;
	t->count[PAGE_LEAF] = pages->leaf_pages;
	t->count[PAGE_INTERNAL] = pages->internal_pages;
}

/* What is computed from the totals, and its sampling variance. */
typedef struct Estimates
{
	double		bloat;
	double		rows;			/* row pointers on the leaf pages */
	double		density;		/* of the leaf pages: used / space */
	double		density_by_rows;	/* the same by way of known_rows */
} Estimates;

static void
compute_estimates(const BloatScan *scan, const PageTotals *totals,
				  const ExactPages *pages, Estimates *est)
{
	PageTotals	t = *totals;

	if (pages)
		apply_exact(&t, pages);
	est->bloat = 1.0 - rebuilt_pages(&scan->rc, &t) / scan->nblocks;
	est->rows = t.items[PAGE_LEAF] + t.dead[PAGE_LEAF];
	est->density = page_totals_density(&t);
	est->density_by_rows = est->rows > 0 && scan->known_rows > 0 ?
		est->density * scan->known_rows / est->rows : est->density;
}

/*
 * Compute the variance of the estimates under the sampling design: in each
 * stratum let each of the two blocks stand for both in turn.
 */
static void
jackknife_variance(BloatScan *scan, const PageTotals *totals,
				   const ExactPages *pages, Estimates *variance)
{
	SampledBlock **first = palloc0(sizeof(SampledBlock *) * Max(scan->nstrata, 1));

	memset(variance, 0, sizeof(*variance));
	for (int i = 0; i < scan->nsample; i++)
	{
		SampledBlock *a;
		SampledBlock *b = &scan->sample[i];
		PageTotals	t;
		Estimates	with_a;
		Estimates	with_b;
		double		unread;

		if (b->stratum < 0)
			continue;
		a = first[b->stratum];
		if (a == NULL)
		{
			first[b->stratum] = b;
			continue;
		}
		t = *totals;
		page_totals_add(&t, &a->pm, a->weight);
		page_totals_add(&t, &b->pm, -b->weight);
		compute_estimates(scan, &t, pages, &with_a);
		t = *totals;
		page_totals_add(&t, &a->pm, -a->weight);
		page_totals_add(&t, &b->pm, b->weight);
		compute_estimates(scan, &t, pages, &with_b);

		/* 1 / weight is the share of the stratum's blocks that were read */
		unread = (1.0 - 1.0 / a->weight) / 4.0;
#define ADD_VARIANCE(what) \
		variance->what += unread * (with_a.what - with_b.what) * (with_a.what - with_b.what)
		ADD_VARIANCE(bloat);
		ADD_VARIANCE(rows);
		ADD_VARIANCE(density);
		ADD_VARIANCE(density_by_rows);
#undef ADD_VARIANCE
	}
	pfree(first);
}

/*
 * Fill in the 95 % interval around the ratio that the sample alone gives.
 */
static void
set_interval(BloatScan *scan, BloatEstimate *be, double ratio, double variance)
{
	double		z = 1.96 + 2.4 / Max(scan->nstrata, 1);		/* about Student's t */
	double		sampled = 0;
	double		stands_for = 0;
	double		low = ratio;
	double		high = ratio;

	for (int i = 0; i < scan->nsample; i++)
	{
		if (scan->sample[i].stratum >= 0)
		{
			sampled += 1;
			stands_for += scan->sample[i].weight;
		}
	}
	if (sampled > 0)
	{
		double		share = stands_for / scan->nblocks;

		/* the finite population makes the sample worth more */
		double		n = sampled / Max(1.0 - sampled / stands_for, 1e-6) / (share * share);
		double		center = (ratio + z * z / (2 * n)) / (1 + z * z / n);
		double		half = z * sqrt(variance + z * z / (4 * n * n));

		/* Wilson's, but never narrower on one side than on the other */
		low = Min(ratio, center) - half;
		high = Max(ratio, center) + half;
	}
	be->bloat_ratio_low = Min(Max(low, 0), 1);
	be->bloat_ratio_high = Min(Max(high, 0), 1);
}

/*
 * Choose the point estimates.  VACUUM counts an index's row pointers, and for
 * uneven bloat that number says more than a sample can; but it may be out of
 * date, or come from ANALYZE.  So it is used only where the sample doesn't
 * contradict it, and only for the point: the interval stays the sample's.
 */
static void
refine_estimates(BloatScan *scan, const PageTotals *totals,
				 const Estimates *variance, Estimates *est)
{
	PageTotals	t = *totals;
	double		scale;

	if (scan->known_rows <= 0 || est->rows <= 0 ||
		fabs(est->rows - scan->known_rows) > 3 * sqrt(variance->rows))
		return;
	scale = scan->known_rows / est->rows;
	if (variance->density_by_rows < variance->density)
		est->density = Min(est->density_by_rows, 1);
	t.packed[PAGE_LEAF] *= scale;
	t.tuples[PAGE_LEAF] *= scale;
	t.items[PAGE_LEAF] *= scale;
	est->bloat = 1.0 - rebuilt_pages(&scan->rc, &t) / scan->nblocks;
}

void
index_bloat_measure(Relation index, int sample_pages, bool full,
					const ExactPages *pages, BloatEstimate *be)
{
	BloatScan  *scan = palloc0(sizeof(BloatScan));
	PageTotals	totals = {0};
	Estimates	est;
	Estimates	variance = {0};
	double		sample_ratio;

	scan->index = index;
	scan->nblocks = RelationGetNumberOfBlocks(index);
	scan->strategy = GetAccessStrategy(BAS_BULKREAD);
	scan->mc.relam = index->rd_rel->relam;
	if (scan->mc.relam == BTREE_AM_OID || scan->mc.relam == GIST_AM_OID ||
		scan->mc.relam == SPGIST_AM_OID)
		scan->known_rows = index->rd_rel->reltuples;

	be->pages = scan->nblocks;
	be->sampled_pages = 0;
	be->leaf_density = be->fillfactor = get_float8_nan();
	be->bloat_ratio = be->bloat_ratio_low = be->bloat_ratio_high = get_float8_nan();
	be->exact = false;
	if (!page_measure_supports(scan->mc.relam) || scan->nblocks == 0)
		return;

	rebuild_context_init(index, &scan->rc);
	be->fillfactor = scan->rc.fillfactor;
	read_first_block(scan, &totals);
	if (full || scan->nblocks <= sample_pages)
	{
		PageMeasure pm;

		for (BlockNumber blkno = 1; blkno < scan->nblocks; blkno++)
		{
			measure_block(scan, blkno, &pm);
			page_totals_add(&totals, &pm, 1);
		}
		pages = NULL;
		be->exact = true;
	}
	else
	{
		choose_sample(scan, sample_pages - 1);
		read_sample(scan);
		for (int i = 0; i < scan->nsample; i++)
			page_totals_add(&totals, &scan->sample[i].pm, scan->sample[i].weight);
		be->exact = pages != NULL;
	}

	compute_estimates(scan, &totals, pages, &est);
	sample_ratio = est.bloat;
	if (scan->nstrata > 0)
	{
		jackknife_variance(scan, &totals, pages, &variance);
		if (pages == NULL)
			refine_estimates(scan, &totals, &variance, &est);
	}

	be->sampled_pages = pages ? be->pages : scan->blocks_read;
	be->leaf_density = pages ? pages->leaf_density : est.density;
	be->bloat_ratio = Min(Max(est.bloat, 0), 1);
	if (be->exact)
		be->bloat_ratio_low = be->bloat_ratio_high = be->bloat_ratio;
	else
	{
		set_interval(scan, be, sample_ratio, variance.bloat);
		be->bloat_ratio_low = Min(be->bloat_ratio_low, be->bloat_ratio);
		be->bloat_ratio_high = Max(be->bloat_ratio_high, be->bloat_ratio);
	}

	if (scan->sample)
		pfree(scan->sample);
	FreeAccessStrategy(scan->strategy);
	pfree(scan);
}

/* ---- for the planner ---- */

typedef struct EstimateArg
{
	Oid			index_oid;
	double		ratio;
} EstimateArg;

static void
estimate_callback(void *argptr)
{
	EstimateArg *arg = argptr;
	Relation	index = report_try_open(arg->index_oid, InvalidOid);
	BloatEstimate be;

	if (index == NULL)
		return;
	index_bloat_measure(index, BLOAT_DEFAULT_SAMPLE, false, NULL, &be);
	arg->ratio = be.bloat_ratio;
	report_close(index);
}

bool
estimate_bloat(Oid index_oid, double *ratio)
{
	EstimateArg arg;

	arg.index_oid = index_oid;
	arg.ratio = get_float8_nan();
	if (!report_survive(estimate_callback, &arg) || isnan(arg.ratio))
		return false;
	*ratio = arg.ratio;
	return true;
}
