/*-------------------------------------------------------------------------
 *
 * copy_budget.c
 *	  Method copy: how long the last blocks take under the lock, how long the
 *	  move will take, and whether a round gets anywhere.
 *
 * The time left of a move includes all parts to come, but no waits for locks: writing,
 * at the published rate, which includes rests; only reading (verify, prewarm), at the
 * rate of copying without rests, which reads and writes each block once.  Changes to
 * come are estimated from the changes so far: only copied blocks can change, so their
 * number grows with the square of the blocks copied.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "copy/copy_private.h"
#include "printed_command.h"

/* Bytes of the old file removed per second */
#define REMOVE_RATE			(1024.0 * 1024.0 * 1024.0)

/* Highest share of changed blocks to estimate with: at 1 there is no end */
#define MOST_SHARE_CHANGED	0.9

#define SHORTEST_WINDOW_MS	1000

/* A round that is this long, less rests for others, tells whether it makes progress */
#define LONG_ROUND_MS		(5 * 1000)
#define MOST_CHANGED_IN_ROUND	0.75

/* Return how long copying so many blocks takes, in microseconds. */
int64
copy_blocks_us(const CopyFile *file, int64 nblocks)
{
	return nblocks * file->pace.block_us;
}

bool
copy_fits_under_lock(const CopyFile *file, int64 nblocks)
{
	int64		most_us = file->move->settings->max_lock_time * INT64CONST(1000);

	return copy_blocks_us(file, nblocks) <= most_us;
}

/* Return how long copying the rest of all files would take, in microseconds. */
int64
copy_last_us(const CopyMove *move)
{
	int64		result = 0;

	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];
		int64		nblocks;

		if (file->changes == NULL)
			continue;			/* its copy has not begun: nothing is known */
		nblocks = block_set_count(file->todo) + wal_changes_count(file->changes);
		result += wal_changes_unread_us(file->changes) + copy_blocks_us(file, nblocks);
	}
	return result;
}

/* Return the time, in milliseconds, less rests for others: not those for max_rate. */
int64
copy_busy_ms(const CopyFile *file)
{
	return GetCurrentTimestamp() / 1000 - (pacing_rested_ms() - file->throttle.rested_us / 1000);
}

/* Look at a round from here on. */
void
copy_begin_round(CopyFile *file)
{
	file->pace.round_began = copy_busy_ms(file);
	file->pace.rate_rested_before = file->throttle.rested_us;
	file->pace.written_before = file->item->blocks_copied + file->item->blocks_recopied;
	file->pace.changed_before = wal_changes_count(file->changes);
	file->pace.in_vain = false;
}

/*
 * After a piece of a round: if max_rate makes it so long that most of its blocks
 * have changed by its end, the next round is no shorter.  Then publish no end of the
 * move, and warn once.
 */
void
copy_look_at_round(CopyFile *file)
{
	const MoveSettings *settings = file->move->settings;
	CopyPace   *pace = &file->pace;
	int64		written = file->item->blocks_copied + file->item->blocks_recopied;
	int64		done = written - pace->written_before;
	int64		changed = wal_changes_count(file->changes);
	int64		ms = copy_busy_ms(file) - pace->round_began;

	/* a round takes the blocks that it copies from the set */
	pace->changed_before = Min(pace->changed_before, changed);
	changed -= pace->changed_before;

	/* without the rests of pacing, those for max_rate would have been longer */
	pace->in_vain = settings->max_rate > 0 && ms > LONG_ROUND_MS &&
		(file->throttle.rested_us - pace->rate_rested_before) / 1000 > ms / 2 &&
		done * BLCKSZ > settings->max_rate * INT64CONST(1024) * LONG_ROUND_MS / 2000 &&
		changed > done * MOST_CHANGED_IN_ROUND;
	if (!pace->in_vain || pace->told)
		return;
	pace->told = true;
	ereport(WARNING,
			(errmsg("%s \"%s\" changes nearly as fast as max_rate lets it be copied",
					relation_noun(file->item->relkind), NameStr(file->item->relname)),
			 errdetail("Of %lld blocks that were copied, %lld have changed since.",
					   (long long) done, (long long) changed),
			 errhint("To raise it: %s",
					 printed_command("alter_move", file->move->mc->job->job, "max_rate",
									 psprintf("%dMB", settings->max_rate / 1024 * 4 + 4)))));
}

/*
 * Publish the seconds left, of which so many are not the wait for the time of the
 * swap: none if that time may never come.
 */
void
copy_publish_eta(const CopyMove *move, double left)
{
	TimestampTz swap_after = move->settings->swap_after;

	if (left >= 0 && swap_after > 0 && !move->settings->terms.rehearse &&
		!job_swap_now_requested())
		left = TIMESTAMP_IS_NOEND(swap_after) ? -1 :
			Max(left, (swap_after - GetCurrentTimestamp()) / 1e6);
	progress_eta(left);
}

/* Publish the time left when so many blocks of a part, a phase of work, are done, if it is known. */
void
copy_eta(CopyFile *file, MovePhase part, int64 total, int64 done)
{
	CopyMove   *move = file->move;
	CopyEta    *eta = &file->eta;
	int64		now = GetCurrentTimestamp() / 1000 - pacing_rested_ms();
	double		rate = file->throttle.rate;
	double		busy;			/* seconds of this part */
	double		written = 0;	/* blocks to come */
	double		read = 0;
	double		left;

	if (eta->part != part || eta->part_began == 0)
	{
		eta->part = part;
		eta->part_began = now;
	}
	if (total <= 0 || (done <= 0 && (part == PHASE_COPYING || part == PHASE_VERIFYING)))
		return;
	busy = Max(now - eta->part_began, 1) / 1000.0;
	left = total * BLCKSZ / REMOVE_RATE;

	if (part == PHASE_COPYING)
	{
		/* the share of copied blocks that change, again and again */
		double		share = (double) done / total;

		share = (wal_changes_count(file->changes) + block_set_count(file->todo)) /
			(share * share) / total;
		share = Min(share, MOST_SHARE_CHANGED);
		written = total - done + total * share / (1 - share);
		eta->busy_rate = done * BLCKSZ / busy;
	}
	else if (part == PHASE_CATCHING_UP)
		written = total - done;
	else if (part == PHASE_VERIFYING)
		left += busy * (total - done) / done;
	else if (part == PHASE_PREWARMING)
		read = total - done;
	if (part < PHASE_VERIFYING && copy_verifies(file))
		read += total;
	if (part < PHASE_PREWARMING)
		read += Min(eta->cached, total);
	/* the other files of the move, if they have not begun */
	for (int i = 0; i < move->nfiles; i++)
	{
		if (move->files[i].copy == NULL)
			written += Max(move->files[i].item->size_before, 0) / BLCKSZ;
	}

	if (eta->busy_rate <= 0 || (written > 0 && rate <= 0))
		return;
	left += read * BLCKSZ / eta->busy_rate;
	if (written > 0)
		left += written * BLCKSZ / rate;
	copy_publish_eta(move, file->pace.in_vain ? -1 : left);
}

int64
copy_changes_left(const CopyMove *move)
{
	int64		result = 0;

	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (file->changes != NULL)
			result += wal_changes_count(file->changes) + block_set_count(file->todo);
	}
	return result;
}

/* Publish how many of the blocks copied so far change in a second. */
void
copy_change_rate(CopyMove *move)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		changes = copy_changes_left(move);

	for (int i = 0; i < move->nfiles; i++)
		changes += move->files[i].item->blocks_recopied;
	if (move->changes_at != 0)
	{
		int64		ms = TimestampDifferenceMilliseconds(move->changes_at, now);

		if (ms < SHORTEST_WINDOW_MS)
			return;
		progress_set(changed_per_second, Max(changes - move->changes, 0) * 1000 / ms);
	}
	move->changes_at = now;
	move->changes = changes;
}
