/*-------------------------------------------------------------------------
 *
 * turn.c
 *	  A move that waits for its lock gives its turn to another relation of its job.
 *
 * With on_blocker = wait a copy, or the change of a partitioned relation, waits without end,
 * and a job has few runners.  So a move that has waited for long is given up while another
 * relation of its job is ready, and its own comes again when the others have had their turn.
 *
 * The rule, and why it needs no further runners: src/README, "Protocol of the swap".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "test_points.h"
#include "wait/wait.h"

#define SHORTEST_PATIENCE_MS	IM_LIMIT("patience", 5000)
#define MOST_DOUBLINGS			10

/*
 * G1: return whether the move has waited for a lock as long as it has worked before, or as it has
 * patience.  rested_us: how much of the time before the wait was no work.
 */
bool
turn_is_due(const MoveContext *mc, const WaitLimits *limits, int64 rested_us)
{
	int64		worked_us = limits->since - mc->began - rested_us;

	/* a pause in between, or a rest for a standby, is no wait for the lock */
	int64		waited_ms = (clock_us() - wait_began(limits)) / 1000;
	int64		patience_ms = Max(worked_us / 1000, SHORTEST_PATIENCE_MS);

	patience_ms <<= Min(mc->item->turns, MOST_DOUBLINGS);
	return waited_ms >= patience_ms;
}

/*
 * Give the turn of a move, which waits for a lock, if it is due and another relation is ready.
 * Return whether it is given: then the caller is to end the move without an outcome.
 * rested_us: as of turn_is_due().  No transaction is open.
 */
bool
turn_give(MoveContext *mc, const WaitLimits *limits, int64 rested_us)
{
	MoveItem   *item = mc->item;

	Assert(!IsTransactionState());
	if (mc->settings->on_blocker != ON_BLOCKER_WAIT || job_pause_requested() ||
		!turn_is_due(mc, limits, rested_us))
		return false;
	if (!runner_give_turn(mc->job, item, relation_is_free))
		return false;
	mc->gives_turn = true;
	item->outcome.detail[0] = '\0';
	item_say(item, "It has waited %d s for its lock; other relations of the job are moved first.",
			 (int) ((clock_us() - wait_began(limits)) / USECS_PER_SEC));
	return true;
}
