/*-------------------------------------------------------------------------
 *
 * bloat_sample.h
 *	  Which blocks of an index to look at.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_BLOAT_SAMPLE_H
#define IM_BLOAT_SAMPLE_H

#include "report/page_measure.h"
#include "storage/bufmgr.h"

#define BLOAT_SAMPLE_DRAWS	4	/* blocks drawn from each stratum */
#define BLOAT_SAMPLE_FIRST	2	/* of them, in the first pass */

typedef struct SampledBlock
{
	BlockNumber blkno;
	int			stratum;		/* -1 = in the sample with certainty */
	int			draw;			/* number of the draw in its stratum */
	double		stratum_size;	/* in blocks */
	PageMeasure pm;				/* filled in by who reads the block */
} SampledBlock;

typedef struct BloatSample
{
	SampledBlock *blocks;		/* in the order in which to read them */
	int			nblocks;
	int			first_pass;		/* so many of them make the first pass */
	int			draws;			/* from each stratum, in both passes */
	int			nstrata;
	int			fsm_blocks_read;
} BloatSample;

/*
 * Draw at most n of the blocks 1 .. nblocks - 1 (n must be less than that),
 * pages of the free space map that are read for it included.  What it takes is in
 * the current memory context.
 */
extern void bloat_sample_draw(Relation index, BlockNumber nblocks, int n,
							  BufferAccessStrategy strategy, BloatSample *sample);

#endif							/* IM_BLOAT_SAMPLE_H */
