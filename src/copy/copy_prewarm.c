/*-------------------------------------------------------------------------
 *
 * copy_prewarm.c
 *	  Method copy: loading the blocks that were cached into the new file's
 *	  buffers (index_mover.prewarm).
 *
 * The old file's buffers tell which blocks are in use.  After the swap these
 * blocks are loaded from the new file.  A copy past the operating system's cache
 * has left none of them there, so before the swap they are read into that.
 *
 * Locks: those of copy_locks.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/spccache.h"

#include "cleanup/cleanup.h"
#include "copy/copy_private.h"

/* Blocks to ask for at once where reading is fast */
#define FAST_PREWARM		32

/*
 * Read some blocks of the new file, in a transaction of their own, as
 * cached_blocks_load() does.  *distance is -1 the first time.
 */
static BlockNumber
load_cached(CopyState *cs, const BlockSet *cached, BlockNumber from, int *distance,
			char *page)
{
	bool		paced = cs->mc->settings->pacing;
	int			usual;
	instr_time	start;
	instr_time	took;

	StartTransactionCommand();
	/* as core's commands that read scattered blocks, or all of a step */
	usual = get_tablespace_maintenance_io_concurrency(cs->to.spcOid);
	if (*distance < 0)
		*distance = paced ? usual : FILE_COPY_CHUNK;
	INSTR_TIME_SET_CURRENT(start);
	from = cached_blocks_load(&cs->to, cached, from, FILE_COPY_CHUNK, *distance, page);
	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, start);
	CommitTransactionCommand();
	if (paced)
	{
		/* nothing else stops us where the cache has the blocks */
		(void) sched_yield();
		/* on slow storage the reads of others would wait behind more of ours */
		if (usual > 0)
			*distance = INSTR_TIME_GET_MILLISEC(took) > FAST_READ_MS ? usual :
				Max(usual, FAST_PREWARM);
	}
	return from;
}

/* Return the set of blocks that the old file has in shared buffers. */
static BlockSet *
find_cached(CopyState *cs)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(cs->cxt);
	BlockSet   *cached = cached_blocks(&cs->from);

	MemoryContextSwitchTo(oldcontext);
	return cached;
}

/*
 * After a copy past the operating system's cache, and before the swap: bring
 * there the blocks that copy_prewarm() will load.  Else the clients and we
 * would read from the disk, at the same time, what the clients had in shared
 * buffers until then.
 */
CopyOutcome
copy_prepare_prewarm(CopyState *cs)
{
	MovePhase	phase = progress_phase(PHASE_PREWARMING);
	BlockSet   *cached = find_cached(cs);
	PGIOAlignedBlock page;
	BlockNumber block = 0;
	int			distance = -1;
	CopyOutcome outcome = GO_ON;

	while (block != InvalidBlockNumber &&
		   (outcome = copy_between_chunks(cs)) == GO_ON)
	{
		block = load_cached(cs, cached, block, &distance, page.data);
		IM_POINT("prewarm-read");
		if ((outcome = copy_keep_up(cs)) != GO_ON)
			break;
	}
	block_set_free(cached);

	/*
	 * what has changed meanwhile is no sign of fast writers, but may not cost
	 * more
	 */
	cs->losing_since = 0;
	progress_phase(phase);
	return outcome;
}

/*
 * Load the blocks of the new file that the old one had in shared buffers, in
 * short transactions.  Stop if another session waits for our locks: the rest
 * will be loaded when it is used.
 */
void
copy_prewarm(CopyState *cs)
{
	BlockSet   *cached;
	BlockNumber block = 0;
	int			distance = -1;

	cached = find_cached(cs);
	copy_eta(cs, PART_PREWARM, cs->copied, cs->copied - Min(block_set_count(cached), cs->copied));

	StartTransactionCommand();
	/* make the old buffers available for the new blocks */
	leftover_file_drop_buffers(&cs->from);
	CommitTransactionCommand();

	while (block != InvalidBlockNumber)
	{
		copy_rest_after_swap(cs);
		if (copy_is_in_the_way(cs))
			break;
		block = load_cached(cs, cached, block, &distance, NULL);
		IM_POINT("prewarm-step");
	}
	block_set_free(cached);
}
