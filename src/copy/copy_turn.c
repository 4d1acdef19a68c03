/*-------------------------------------------------------------------------
 *
 * copy_turn.c
 *	  Method copy: a copy that waits for its lock gives its turn to another relation.
 *
 * With on_blocker = wait a copy waits without end, and a job has few runners.  So a
 * copy that has waited for long is given up while another relation of its job is ready,
 * and its own comes again when the others have had their turn.
 *
 * The rule, and why it needs no further runners: src/README, "Protocol of the swap".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"

#include "copy/copy_private.h"

#define SHORTEST_PATIENCE_MS	IM_LIMIT("patience", 5000)
#define MOST_DOUBLINGS			10

/*
 * Decide whether the copy, which has waited for a lock since then, gives its turn.  If so,
 * the caller is to end it by copy_start_again().  No transaction is open.
 */
bool
copy_gives_turn(CopyMove *move, TimestampTz waits_since)
{
	MoveItem   *item = move->item;
	TimestampTz now = GetCurrentTimestamp();
	int64		worked_ms = (waits_since - item->started_at - move->so_far->rested_us) / 1000;
	int64		patience_ms = Max(worked_ms, SHORTEST_PATIENCE_MS);

	Assert(!IsTransactionState());
	patience_ms <<= Min(item->turns, MOST_DOUBLINGS);
	if (move->settings->on_blocker != ON_BLOCKER_WAIT || job_pause_requested() ||
		now - waits_since < patience_ms * 1000)
		return false;
	if (!runner_give_turn(move->mc->job, item, relation_is_free))
		return false;
	move->mc->gives_turn = true;
	item->detail[0] = '\0';
	item_say(item, "It has waited %d s for its lock; other relations of the job are moved first.",
			 (int) ((now - waits_since) / USECS_PER_SEC));
	return true;
}
