/*-------------------------------------------------------------------------
 *
 * block_set.h
 *	  A set of block numbers of one relation file.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_BLOCK_SET_H
#define IM_BLOCK_SET_H

#include "storage/block.h"

typedef struct BlockSet BlockSet;

extern BlockSet *block_set_create(MemoryContext cxt);
extern void block_set_free(BlockSet *set);
extern void block_set_clear(BlockSet *set);
extern void block_set_add(BlockSet *set, BlockNumber block);
extern void block_set_remove(BlockSet *set, BlockNumber block);
extern bool block_set_has(const BlockSet *set, BlockNumber block);
extern int64 block_set_count(const BlockSet *set);
extern void block_set_add_all(BlockSet *set, const BlockSet *other);
extern BlockNumber block_set_next(const BlockSet *set, BlockNumber from);

/* Go through the members; removing the present one is allowed. */
#define foreach_block(block, set) \
	for (BlockNumber block = block_set_next(set, 0); block != InvalidBlockNumber; \
		 block = block_set_next(set, block + 1))

#endif							/* IM_BLOCK_SET_H */
