/*-------------------------------------------------------------------------
 *
 * throttle.c
 *	  How fast a move may go: rate limit and pause.
 *
 * The caller says what he has written and asks from time to time how long to
 * rest; he decides where in his work a rest does no harm (no transaction, no
 * buffer pinned), and what has to go on meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "job.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "wait/throttle.h"
#include "utils/wait_event.h"

/* Rest no longer than this at once: the caller has to look around. */
#define LONGEST_REST_MS		200

/* Debts below this are left for the next time. */
#define SHORTEST_REST_MS	5

/*
 * Bring what is owed up to date.  In bytes, not in seconds, so that a new rate
 * holds for what was written at the old one, too.
 */
static void
settle(Throttle *throttle, double max_rate)
{
	instr_time	now;
	instr_time	passed;

	INSTR_TIME_SET_CURRENT(now);
	if (!INSTR_TIME_IS_ZERO(throttle->last))
	{
		passed = now;
		INSTR_TIME_SUBTRACT(passed, throttle->last);
		throttle->owed -= INSTR_TIME_GET_DOUBLE(passed) * max_rate * 1024.0;
	}
	/* time that was not used is not saved up for a burst */
	if (throttle->owed < 0 || max_rate <= 0)
		throttle->owed = 0;
	throttle->last = now;
}

/* So many bytes were written.  Also keeps the rate that progress shows. */
void
throttle_written(Throttle *throttle, int64 bytes)
{
	instr_time	now;
	instr_time	passed;

	throttle->owed += bytes;

	INSTR_TIME_SET_CURRENT(now);
	if (INSTR_TIME_IS_ZERO(throttle->shown))
	{
		/* these have taken time that we don't know */
		throttle->shown = now;
		return;
	}
	throttle->bytes += bytes;
	passed = now;
	INSTR_TIME_SUBTRACT(passed, throttle->shown);
	if (INSTR_TIME_GET_DOUBLE(passed) >= 0.5)
	{
		double		rate = throttle->bytes / INSTR_TIME_GET_DOUBLE(passed);

		/* smoothed, so that the time left doesn't jump */
		throttle->rate = throttle->rate > 0 ? (throttle->rate + rate) / 2 : rate;
		progress_rate((int64) throttle->rate);
		throttle->bytes = 0;
		throttle->shown = now;
	}
}

/*
 * How many milliseconds to rest now, 0 = go on.  To be called after each
 * throttle_written(); a long rest is given out in pieces.
 */
int
throttle_due(Throttle *throttle, const MoveSettings *settings)
{
	/* the limit is the job's: each of its runners has a share */
	double		max_rate = settings->max_rate / (double) runner_count();
	double		ms;

	settle(throttle, max_rate);
	if (max_rate <= 0)
		return 0;
	ms = throttle->owed * 1000 / (max_rate * 1024.0);
	return ms < SHORTEST_REST_MS ? 0 : (int) Min(ms, LONGEST_REST_MS);
}

/*
 * Rest, interruptibly, with no transaction open.  Returns false if woken up
 * early.  ERROR 57014 if the job is cancelled; ends the process at once if the
 * postmaster is gone.
 */
bool
throttle_rest(int ms)
{
	int			rc;

	rc = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				   ms, PG_WAIT_EXTENSION);
	if (rc & WL_LATCH_SET)
		ResetLatch(MyLatch);
	job_check_cancel();
	return !(rc & WL_LATCH_SET);
}
