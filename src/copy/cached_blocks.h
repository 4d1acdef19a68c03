/*-------------------------------------------------------------------------
 *
 * cached_blocks.h
 *	  Which blocks of a relation file are in shared buffers, and loading them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CACHED_BLOCKS_H
#define IM_CACHED_BLOCKS_H

#include "copy/block_set.h"
#include "compat.h"

/* About how many blocks that will be, from a sample of the buffers; no locks. */
extern double cached_blocks_estimate(const RelFileLocator *locator);

extern BlockSet *cached_blocks(const RelFileLocator *locator);
extern BlockNumber load_blocks(const RelFileLocator *locator, const BlockSet *set,
							   BlockNumber from, int most);

#endif							/* IM_CACHED_BLOCKS_H */
