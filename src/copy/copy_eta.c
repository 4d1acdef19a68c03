/*-------------------------------------------------------------------------
 *
 * copy_eta.c
 *	  Method copy: when the move will end, and how fast its blocks change, as
 *	  index_mover_progress shows it.
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

/* Bytes of the old file removed per second */
#define REMOVE_RATE			(1024.0 * 1024.0 * 1024.0)

/* Highest share of changed blocks to estimate with: at 1 there is no end */
#define MOST_SHARE_CHANGED	0.9

#define SHORTEST_WINDOW_MS	1000

/*
 * Publish the seconds left, of which so many are not the wait for the time of the
 * swap: none if that time may never come.
 */
void
copy_publish_eta(const CopyMove *move, double left)
{
	TimestampTz swap_after = move->settings->swap_after;

	if (left >= 0 && swap_after > 0 && !move->settings->terms.rehearse)
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
	int64		now = clock_us() / 1000 - pacing_rested_ms();
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
		changes += move->files[i].item->outcome.blocks_recopied;
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
