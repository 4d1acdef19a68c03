/*-------------------------------------------------------------------------
 *
 * block_set.c
 *	  A set of block numbers of one relation file.
 *
 * A set has one Bitmapset for each RELSEG_SIZE blocks.  So it costs at most
 * one bit for each block up to the largest member (16 kB per GB of the file),
 * and allows every block number, which a single Bitmapset does not.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "nodes/bitmapset.h"
#include "utils/memutils.h"

#include "copy/block_set.h"

#define BLOCKS_PER_PART ((BlockNumber) RELSEG_SIZE)

struct BlockSet
{
	MemoryContext cxt;
	Bitmapset **parts;
	BlockNumber nparts;
	int64		count;
};

BlockSet *
block_set_create(MemoryContext cxt)
{
	BlockSet   *set = MemoryContextAllocZero(cxt, sizeof(BlockSet));

	set->cxt = cxt;
	return set;
}

void
block_set_clear(BlockSet *set)
{
	for (BlockNumber i = 0; i < set->nparts; i++)
	{
		bms_free(set->parts[i]);
		set->parts[i] = NULL;
	}
	set->count = 0;
}

void
block_set_free(BlockSet *set)
{
	block_set_clear(set);
	if (set->parts)
		pfree(set->parts);
	pfree(set);
}

/* Add a block; no effect if it is a member already. */
void
block_set_add(BlockSet *set, BlockNumber block)
{
	BlockNumber part = block / BLOCKS_PER_PART;
	int			member = block % BLOCKS_PER_PART;
	MemoryContext oldcontext;

	Assert(block != InvalidBlockNumber);
	if (part < set->nparts && bms_is_member(member, set->parts[part]))
		return;

	oldcontext = MemoryContextSwitchTo(set->cxt);
	if (part >= set->nparts)
	{
		BlockNumber nparts = Max(part + 1, Max(4, set->nparts * 2));
		Size		size = nparts * sizeof(Bitmapset *);

		if (set->parts == NULL)
			set->parts = palloc(size);
		else
			set->parts = repalloc(set->parts, size);
		memset(set->parts + set->nparts, 0, (nparts - set->nparts) * sizeof(Bitmapset *));
		set->nparts = nparts;
	}
	set->parts[part] = bms_add_member(set->parts[part], member);
	set->count++;
	MemoryContextSwitchTo(oldcontext);
}

/* Remove a block; no effect if it is not a member. */
void
block_set_remove(BlockSet *set, BlockNumber block)
{
	BlockNumber part = block / BLOCKS_PER_PART;
	int			member = block % BLOCKS_PER_PART;

	if (!block_set_has(set, block))
		return;
	set->parts[part] = bms_del_member(set->parts[part], member);
	set->count--;
}

bool
block_set_has(const BlockSet *set, BlockNumber block)
{
	BlockNumber part = block / BLOCKS_PER_PART;

	return part < set->nparts &&
		bms_is_member(block % BLOCKS_PER_PART, set->parts[part]);
}

int64
block_set_count(const BlockSet *set)
{
	return set->count;
}

void
block_set_add_all(BlockSet *set, const BlockSet *other)
{
	foreach_block(block, other)
		block_set_add(set, block);
}

/* Return the first member >= from, or InvalidBlockNumber, which is never a member. */
BlockNumber
block_set_next(const BlockSet *set, BlockNumber from)
{
	int			member = (int) (from % BLOCKS_PER_PART) - 1;

	for (BlockNumber part = from / BLOCKS_PER_PART; part < set->nparts; part++)
	{
		/* the -1 of an empty part comes back as -2 */
		member = bms_next_member(set->parts[part], member);
		if (member >= 0)
			return part * BLOCKS_PER_PART + member;
		member = -1;
	}
	return InvalidBlockNumber;
}
