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
copy_blocks_us(const CopyState *cs, int64 nblocks)
{
	return nblocks * cs->block_us;
}

bool
copy_fits_under_lock(const CopyState *cs, int64 nblocks)
{
	return copy_blocks_us(cs, nblocks) <= cs->settings->max_lock_time * INT64CONST(1000);
}

/* Return how long copying the rest of all files would take, in microseconds. */
int64
copy_last_us(const CopyState *cs)
{
	int64		result = 0;

	foreach_file(f, cs)
	{
		/* of one whose copy has not begun, nothing is known */
		if (f->changes != NULL)
			result += wal_changes_unread_us(f->changes) +
				copy_blocks_us(f, block_set_count(f->todo) + wal_changes_count(f->changes));
	}
	return result;
}

/* Return the time, in milliseconds, less rests for others: not those for max_rate. */
int64
copy_busy_ms(const CopyState *cs)
{
	return GetCurrentTimestamp() / 1000 - (pacing_rested_ms() - cs->throttle.rested_us / 1000);
}

/* Look at a round from here on. */
void
copy_begin_round(CopyState *cs)
{
	cs->eta.round_began = copy_busy_ms(cs);
	cs->eta.rate_rested_before = cs->throttle.rested_us;
	cs->eta.written_before = cs->item->blocks_copied + cs->item->blocks_recopied;
	cs->eta.changed_before = wal_changes_count(cs->changes);
	cs->eta.in_vain = false;
}

/*
 * After a piece of a round: if max_rate makes it so long that most of its blocks
 * have changed by its end, the next round is no shorter.  Then publish no end of the
 * move, and warn once.
 */
void
copy_look_at_round(CopyState *cs)
{
	const MoveSettings *settings = cs->settings;
	int64		done = cs->item->blocks_copied + cs->item->blocks_recopied - cs->eta.written_before;
	int64		changed = wal_changes_count(cs->changes);
	int64		ms = copy_busy_ms(cs) - cs->eta.round_began;

	/* a round takes the blocks that it copies from the set */
	cs->eta.changed_before = Min(cs->eta.changed_before, changed);
	changed -= cs->eta.changed_before;

	/* without the rests of pacing, those for max_rate would have been longer */
	cs->eta.in_vain = settings->max_rate > 0 && ms > LONG_ROUND_MS &&
		(cs->throttle.rested_us - cs->eta.rate_rested_before) / 1000 > ms / 2 &&
		done * BLCKSZ > settings->max_rate * INT64CONST(1024) * LONG_ROUND_MS / 2000 &&
		changed > done * MOST_CHANGED_IN_ROUND;
	if (!cs->eta.in_vain || cs->eta.told)
		return;
	cs->eta.told = true;
	ereport(WARNING,
			(errmsg("%s \"%s\" changes nearly as fast as max_rate lets it be copied",
					relation_noun(cs->item->relkind), NameStr(cs->item->relname)),
			 errdetail("Of %lld blocks that were copied, %lld have changed since.",
					   (long long) done, (long long) changed),
			 errhint("To raise it: %s",
					 printed_command("alter_move", cs->mc->job->job, "max_rate",
									 psprintf("%dMB", settings->max_rate / 1024 * 4 + 4)))));
}

/*
 * Publish the seconds left, of which so many are not the wait for the time of the
 * swap: none if that time may never come.
 */
void
copy_publish_eta(const CopyState *cs, double left)
{
	TimestampTz swap_after = cs->settings->swap_after;

	if (left >= 0 && swap_after > 0 && !cs->settings->terms.rehearse && !job_swap_now_requested())
		left = TIMESTAMP_IS_NOEND(swap_after) ? -1 :
			Max(left, (swap_after - GetCurrentTimestamp()) / 1e6);
	progress_eta(left);
}

/* Publish the time left when so many blocks of a part, a phase of work, are done, if it is known. */
void
copy_eta(CopyState *cs, MovePhase part, int64 total, int64 done)
{
	CopyEta    *eta = &cs->eta;
	int64		now = GetCurrentTimestamp() / 1000 - pacing_rested_ms();
	double		rate = cs->throttle.rate;
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

		share = (wal_changes_count(cs->changes) + block_set_count(cs->todo)) /
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
	if (part < PHASE_VERIFYING && copy_verifies(cs))
		read += total;
	if (part < PHASE_PREWARMING)
		read += Min(eta->cached, total);
	/* the other files of the move, if they have not begun */
	foreach_file(f, cs)
	{
		if (f->copy == NULL)
			written += Max(f->item->size_before, 0) / BLCKSZ;
	}

	if (eta->busy_rate <= 0 || (written > 0 && rate <= 0))
		return;
	left += read * BLCKSZ / eta->busy_rate;
	if (written > 0)
		left += written * BLCKSZ / rate;
	copy_publish_eta(cs, eta->in_vain ? -1 : left);
}

int64
copy_changes_left(const CopyState *cs)
{
	int64		result = 0;

	foreach_file(f, cs)
	{
		if (f->changes != NULL)
			result += wal_changes_count(f->changes) + block_set_count(f->todo);
	}
	return result;
}

/* Publish how many of the blocks copied so far change in a second. */
void
copy_change_rate(CopyState *cs)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		changes = copy_changes_left(cs);

	foreach_file(f, cs)
		changes += f->item->blocks_recopied;
	cs = cs->first;
	if (cs->eta.changes_at != 0)
	{
		int64		ms = TimestampDifferenceMilliseconds(cs->eta.changes_at, now);

		if (ms < SHORTEST_WINDOW_MS)
			return;
		progress_set(changed_per_second, Max(changes - cs->eta.changes, 0) * 1000 / ms);
	}
	cs->eta.changes_at = now;
	cs->eta.changes = changes;
}
