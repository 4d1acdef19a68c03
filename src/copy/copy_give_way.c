/*-------------------------------------------------------------------------
 *
 * copy_give_way.c
 *	  Method copy: giving way to others between two pieces of work.
 *
 * DDL that waits behind the locks of the long phase gets them: we release them, queue
 * behind it, and look whether the files are the same.  All other rests, for a pause,
 * max_rate, slow storage or a standby, end when such DDL comes, too.
 *
 * proof/swap.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "copy/copy_private.h"
#include "own_tables.h"
#include "plan/space.h"

/* Give way to DDL that waits behind our locks: release them, queue again, check the files. */
static bool
give_way(CopyMove *move)
{
	MovePhase	phase = progress_phase(PHASE_GIVING_WAY);

	/* step: give-way */
	move->gave_way = true;
	copy_release_locks(move);
	IM_POINT("gave-way");
	throttle_rest(5);
	if (!copy_wait_for_locks(move))
		return false;
	if (!copy_check_relations(move, false))
		return false;
	/* VACUUM may have truncated a table: do not ask for blocks that are gone */
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file->changes == NULL)
			continue;
		if (!copy_drain(file))
			return false;
	}
	progress_phase(phase);
	return true;
}

/* For pacing_rest(): take a cancel.  Return whether to go on resting. */
static bool
take_cancel(void *arg)
{
	CopyMove   *move = (CopyMove *) arg;

	job_check_cancel();
	return !copy_is_in_the_way(move);
}

/* After the swap, rest while the job is paused, unless a session waits for our locks. */
void
copy_rest_after_swap(void *arg)
{
	(void) pacing_rest(NULL, 0, NULL, take_cancel, arg);
}

/*
 * Give way to others, and keep up with the WAL.  For pacing_rest(), too: by false it ends the
 * rest, and the caller looks at move->end.
 */
bool
copy_let_others_pass(void *arg)
{
	CopyMove   *move = (CopyMove *) arg;

	Assert(move->end == COPY_GOES_ON);
	if (copy_is_in_the_way(move))
	{
		if (!give_way(move))
			return false;
	}
	return copy_keep_up(move);
}

/*
 * Begin a transaction that writes to the ledger.  As long as a session has locked that,
 * give way to others, and keep up with the WAL.
 */
bool
copy_begin_with_ledger(CopyMove *move)
{
	for (;;)
	{
		job_check_cancel();
		if (!copy_let_others_pass(move))
			return false;
		StartTransactionCommand();
		if (lock_relation_within(extension_relation("ledger"), RowExclusiveLock,
								 move->settings->lock_timeout, NULL))
			return true;
		CommitTransactionCommand();
	}
}

/*
 * Note the bytes that the next piece of work writes, at most the rest of the file; and which
 * part of the limit of free space counts for them.
 *
 * While a finished copy waits for its swap, half of the limit counts for changed blocks.  None
 * counts if they are so few that they are left for the swap: it writes next to nothing, and
 * is what gives space.
 */
static void
expect_bytes(CopyFile *file)
{
	const MoveItem *item = file->item;
	int64		left = space_to_copy(item) - item->outcome.blocks_copied * BLCKSZ;
	int64		left_wal = item->wal_bytes;
	double		limit_part = 1;

	/* a file that is being copied may grow by a block at least */
	if (item->outcome.blocks_copied > 0)
		left = Max(left, BLCKSZ);
	if (file->move->stage == COPY_CATCHING_UP)
	{
		int64		changed = block_set_count(file->todo) + wal_changes_count(file->changes);

		left = changed * BLCKSZ;
		left_wal = Min(left_wal, left);
		limit_part = changed <= COPY_VERY_FEW ? 0 : 0.5;
	}
	file->space.bytes = Min(FREE_SPACE_NEXT, Max(left, 0));
	file->space.wal_bytes = 0;
	if (item->wal_bytes > 0)
		file->space.wal_bytes = Min(FREE_SPACE_NEXT, left_wal) + Max(WAL_AHEAD, wal_segment_size);
	file->space.limit_part = limit_part;
}

/*
 * To be called between two pieces of work: obey a cancel, give way to others,
 * rest for a pause, for max_rate, for slow storage, for a standby or for free space, and keep
 * up with the WAL.  ERROR 53100 if there has been no free space for the next piece for long.
 */
bool
copy_between_chunks(CopyFile *file)
{
	CopyMove   *move = file->move;
	int64		began = clock_us() / 1000 - pacing_rested_ms();
	int64		changed = wal_changes_count(file->changes);

	Assert(!IsTransactionState() && move->stage < COPY_ASKING);
	job_check_cancel();
	expect_bytes(file);
	(void) pacing_rest(move->settings, 0, &file->throttle, copy_let_others_pass, move);
	if (move->end != COPY_GOES_ON)
		return false;
	wal_ahead();
	if (!file->throttle.rested && !move->gave_way)
		return true;
	/* the writers have not outpaced us while we waited behind DDL */
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyPace   *pace = &move->files[i].pace;

		if (pace->outpaced_since != 0)
			pace->outpaced_since += clock_us() / 1000 - pacing_rested_ms() - began;
	}
	if (!copy_drain(file))
		return false;
	file->throttle.rested = false;
	move->gave_way = false;
	/* a round is not judged by blocks that change during rests for others */
	changed = wal_changes_count(file->changes) - changed;
	file->pace.changed_before += changed;
	file->pace.written_before = Min(file->pace.written_before + changed,
									copy_blocks_written(file));
	return true;
}
