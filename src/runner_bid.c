/*-------------------------------------------------------------------------
 *
 * runner_bid.c
 *	  The windows in which a job's runners queue for their exclusive locks.
 *
 * Locks: the area's lock, for moments.
 *
 * proof/swap.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "runner_private.h"
#include "test_points.h"

/* Between two windows of bids; what is left of a window is no shorter, nor worth a bid */
#define BID_GAP_MS			IM_LIMIT("bid-gap", 20)

/*
 * window: return for how many microseconds from now on no bid may begin: shortly before the end of
 * a window, where none is worth while, and until shortly after it.  So a query of all partitions of
 * a table waits behind all runners of the job at the same time, not behind one after the other;
 * and it has time between two windows to lock all of them.
 */
static int64
no_bid_us(int timeout_ms, int64 now)
{
	int64		left_us = runner_my_shared->bid_ends - now;
	int64		gap_us = BID_GAP_MS * INT64CONST(1000);

	Assert(LWLockHeldByMe(&runner_area->lock));
	if (left_us >= Min(gap_us, timeout_ms * INT64CONST(500)) || left_us <= -gap_us)
		return 0;
	return left_us + gap_us;
}

/* Return when the window has begun, by clock_us(), that a bid could join now; 0 = there is none. */
int64
runner_bid_began(int timeout_ms)
{
	int64		now = clock_us();
	int64		began = 0;

	if (runner_my_shared == NULL)
		return 0;
	LWLockAcquire(&runner_area->lock, LW_SHARED);
	if (runner_my_shared->bid_ends > now && no_bid_us(timeout_ms, now) == 0)
		began = runner_my_shared->bid_began;
	LWLockRelease(&runner_area->lock);
	return began;
}

/*
 * Begin a bid, just before we queue for an exclusive lock, and return for how many milliseconds it
 * may queue: for the rest of the window of another runner's bid or, if none runs, for timeout_ms.
 * Then it begins a window, and tells the other runners of the job, so that all that wait for a
 * lock queue at the same time.
 *
 * Who comes too late for a window waits here for the next one, to be there when that opens.  That
 * takes two BID_GAP_MS at most, and we have no lock yet but those of attempts_prepare().
 */
int
runner_begin_bid(int timeout_ms)
{
	int			pids[IM_MAX_RUNNERS];
	int			n = 0;
	int64		now;
	int64		wait_us;
	int64		left_us;

	if (runner_my_shared == NULL)
		return timeout_ms;
	/* step: window */
	for (;;)
	{
		LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
		now = clock_us();
		wait_us = no_bid_us(timeout_ms, now);
		if (wait_us <= 0)
			break;
		LWLockRelease(&runner_area->lock);
		latch_nap((wait_us + 999) / 1000, "IndexMoverWaitOthers");
	}
	if (runner_my_shared->bid_ends <= now)
	{
		runner_my_shared->bid_began = now;
		runner_my_shared->bid_ends = now + timeout_ms * INT64CONST(1000);
		for (int i = 0; i < IM_MAX_RUNNERS; i++)
		{
			if (runner_is_ours(&runner_area->runners[i]) && &runner_area->runners[i] != runner_mine)
				pids[n++] = runner_area->runners[i].pid;
		}
	}
	left_us = runner_my_shared->bid_ends - now;
	LWLockRelease(&runner_area->lock);
	for (int i = 0; i < n; i++)
	{
		PGPROC	   *proc = BackendPidGetProc(pids[i]);

		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	/* it may be longer than ours, after alter_move() */
	return Min((left_us + 999) / 1000, timeout_ms);
}
