/*-------------------------------------------------------------------------
 *
 * bloat_sample.c
 *	  Which blocks of an index to look at.
 *
 * The design is stratified random sampling: the file is cut into equal parts,
 * the strata, and four blocks are drawn at random from each.  Blocks that the
 * free space map calls free form strata of their own, since nearly all of them
 * are empty: without that, an index in which every other page is deleted would
 * need four times the sample.  The map only decides where to look more
 * closely; what counts is what is found on the page, so a stale map costs
 * precision and never truth.
 *
 * The blocks come in two passes, the first two of each stratum and then the
 * others, because most indexes are so evenly filled that half of the sample
 * says enough, and on a disk every block is an arm's move.  Each pass is in
 * the order of the file.
 *
 * Only pages of the free space map are read here, and they count as blocks
 * read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_am_d.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/fsm_internals.h"
#include "storage/smgr.h"

#include "report/bloat_sample.h"

/* the share of the sample that may go into reading the free space map */
#define FSM_SHARE		10
/* the most blocks to look at among those that the map calls free */
#define FREE_SAMPLE		40
/* category from which on the map calls a block free (RecordFreeIndexPage) */
#define FSM_FREE_CAT	250

/*
 * Copy a block of the free space map.  A damaged one counts as empty, as in
 * core: the map is only a hint.
 */
static void
read_fsm_block(Relation index, BlockNumber blkno, BufferAccessStrategy strategy, char *copy)
{
	Buffer		buffer;

	CHECK_FOR_INTERRUPTS();
	buffer = ReadBufferExtended(index, FSM_FORKNUM, blkno, RBM_ZERO_ON_ERROR, strategy);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(copy, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
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
 * free, from the start of blocks[], and the others, from its end.  Returns false, having read nothing, where the map
 * doesn't exist, is too big to be worth it, or means something else.
 */
static bool
split_by_fsm(Relation index, BlockNumber nblocks, int max_fsm_blocks,
			 BufferAccessStrategy strategy, int *blocks_read,
			 BlockNumber *blocks, BlockNumber *nfree, BlockNumber *nother)
{
	BlockNumber fsm_size;
	PGAlignedBlock copy;
	BlockNumber slots = (nblocks - 1) / SlotsPerFSMPage + 1;

	*nfree = *nother = 0;
	if (index->rd_rel->relam == HASH_AM_OID || slots > max_fsm_blocks)
		return false;
	if (!smgrexists(RelationGetSmgr(index), FSM_FORKNUM))
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
			read_fsm_block(index, fsm_block, strategy, copy.data);
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
 * Draw n of the nframe blocks of a frame, DRAWS from each of equal parts.
 * frame is NULL for the blocks 1 .. nframe.
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
			SampledBlock *s = &sample->blocks[sample->nblocks++];

			s->blkno = frame ? frame[i] : i + 1;
			s->stratum = -1;
			s->stratum_size = 1;
		}
		return;
	}
	for (int part = 0; part < parts; part++)
	{
		uint64		start = (uint64) nframe * part / parts;
		uint64		end = (uint64) nframe * (part + 1) / parts;
		uint64		drawn[BLOAT_SAMPLE_DRAWS];

		for (int i = 0; i < draws; i++)
		{
			SampledBlock *s = &sample->blocks[sample->nblocks++];
			bool		again;

			do
			{
				drawn[i] = pg_prng_uint64_range(&pg_global_prng_state, start, end - 1);
				again = false;
				for (int j = 0; j < i; j++)
					again |= drawn[j] == drawn[i];
			} while (again);
			s->blkno = frame ? frame[drawn[i]] : drawn[i] + 1;
			s->stratum = sample->nstrata;
			s->draw = i;
			s->stratum_size = end - start;
		}
		sample->nstrata++;
	}
}

/*
 * Order by pass, then by block.
 */
static int
compare_blocks(const void *a, const void *b)
{
	const SampledBlock *x = a;
	const SampledBlock *y = b;
	bool		x_second = x->draw >= BLOAT_SAMPLE_FIRST;
	bool		y_second = y->draw >= BLOAT_SAMPLE_FIRST;

	if (x_second != y_second)
		return x_second ? 1 : -1;
	return x->blkno < y->blkno ? -1 : (x->blkno > y->blkno ? 1 : 0);
}

void
bloat_sample_draw(Relation index, BlockNumber nblocks, int n,
				  BufferAccessStrategy strategy, BloatSample *sample)
{
	BlockNumber population = nblocks - 1;
	BlockNumber *blocks = NULL;
	BlockNumber nfree = 0;
	BlockNumber nother = 0;
	int			max_fsm = n / FSM_SHARE;

	Assert(n >= 0 && n < population);
	memset(sample, 0, sizeof(*sample));
	/* of an index of terabytes these are more than palloc() gives */
	sample->blocks = palloc_extended(sizeof(SampledBlock) * (Size) Max(n, 1),
									 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	/* a tiny sample can't have strata of four */
	sample->draws = n >= 2 * BLOAT_SAMPLE_DRAWS ? BLOAT_SAMPLE_DRAWS : Max(Min(n, BLOAT_SAMPLE_FIRST), 1);

	if ((population + 1) / SlotsPerFSMPage < max_fsm &&
		population <= work_mem * (Size) 1024 / 4 / sizeof(BlockNumber))
	{
		blocks = palloc_extended(sizeof(BlockNumber) * (Size) population, MCXT_ALLOC_HUGE);
		if (split_by_fsm(index, nblocks, max_fsm, strategy, &sample->fsm_blocks_read,
						 blocks, &nfree, &nother))
			n -= sample->fsm_blocks_read;
		else
			nfree = nother = 0;
	}

	if (nfree == 0)
		draw_blocks(sample, NULL, population, n);
	else
	{
		int			n_free = (int) ((double) n * nfree / population);

		n_free = Min(Max(n_free, BLOAT_SAMPLE_DRAWS), FREE_SAMPLE);
		if (nother < n - n_free)
			n_free = n - nother;
		draw_blocks(sample, blocks, nfree, n_free);
		draw_blocks(sample, blocks + nfree, nother, n - n_free);
	}
	qsort(sample->blocks, sample->nblocks, sizeof(SampledBlock), compare_blocks);
	while (sample->first_pass < sample->nblocks &&
		   sample->blocks[sample->first_pass].draw < BLOAT_SAMPLE_FIRST)
		sample->first_pass++;
}
