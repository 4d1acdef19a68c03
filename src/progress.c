/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  The progress of a runner, in its slot: index_mover_progress.
 *
 * In a process that is no runner all of these do nothing.
 *
 * Locks: the area's lock, for moments.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "job_private.h"

static RunnerSlot *mine = NULL;

/* rests and waits of the current item, from which estimates must not learn */
static int64 idle_us = 0;
static int64 phase_since = 0;	/* by clock_us() */

/* Show progress in this slot from now on; NULL: nowhere. */
void
progress_attach(RunnerSlot *slot)
{
	mine = slot;
}

/* Returns false if this is no runner. */
static bool
lock_slot(void)
{
	if (mine == NULL)
		return false;
	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	return true;
}

/* Show which part of a table is being copied. */
void
progress_part(const MoveItem *item)
{
	if (!lock_slot())
		return;
	mine->heap_oid = item->heap_oid;
	mine->relid = item->relid;
	mine->relname = item->relname;
	mine->relkind = item->relkind;
	mine->schema_name = item->schema_name;
	mine->heap_name = item->heap_name;
	mine->blocks_total = 0;
	mine->blocks_done = 0;
	LWLockRelease(&job_area()->lock);
}

/* Begin a relation: all fields of the slot from heap_oid on are of the last. */
void
progress_begin(const MoveItem *item)
{
	if (!lock_slot())
		return;
	memset(&mine->heap_oid, 0, sizeof(RunnerSlot) - offsetof(RunnerSlot, heap_oid));
	mine->item_relid = item->relid;
	mine->method = item->method;
	mine->changed_per_second = mine->wal_lag = -1;
	mine->eta = -1;
	mine->started_at = GetCurrentTimestamp();
	idle_us = 0;
	LWLockRelease(&job_area()->lock);
	progress_part(item);
}

/* End the relation, of which so many bytes are done: 0 if it has failed. */
void
progress_end(int64 bytes_done)
{
	JobSlot    *job;

	if (!lock_slot())
		return;
	if ((job = job_slot_locked(mine->slot)) != NULL)
		job->bytes_done += bytes_done;
	mine->bytes_done = 0;
	mine->heap_oid = InvalidOid;
	mine->relid = InvalidOid;
	mine->nwaits_for = 0;
	LWLockRelease(&job_area()->lock);
}

/* Return whether another session ends this phase, or the clock. */
static bool
is_wait(MovePhase phase)
{
	return phase == PHASE_WAIT_START || phase == PHASE_WAIT_SWAP_TIME ||
		phase == PHASE_WAIT_SWAP_LOCK || phase == PHASE_WAIT_WRITERS ||
		phase == PHASE_WAIT_SNAPSHOTS || phase == PHASE_GIVING_WAY;
}

/* The rests whose text does not change */
static const RunnerRest rest_none = {REST_NONE};
const RunnerRest rest_paused = {REST_PAUSE,.shown = "pause_move()"};
const RunnerRest rest_max_rate = {REST_RATE,.shown = "max_rate"};
const RunnerRest rest_slow_storage = {REST_READING,.shown = "slow storage"};

/* Publish a phase.  Return the previous phase, for the caller to restore. */
MovePhase
progress_phase(MovePhase phase)
{
	MovePhase	before;

	if (!lock_slot())
		return PHASE_INITIALIZING;
	before = mine->phase;
	if (is_wait(before))
		idle_us += clock_us() - phase_since;
	phase_since = clock_us();
	mine->phase = phase;
	mine->rest = rest_none;
	LWLockRelease(&job_area()->lock);
	return before;
}

/* Count a rest in a phase of work. */
void
progress_rested(int64 us)
{
	if (mine != NULL && !is_wait(mine->phase))
		idle_us += us;
}

/* Return the microseconds that the item has rested or waited, up to now. */
int64
progress_idle(void)
{
	return idle_us + (mine != NULL && is_wait(mine->phase) ? clock_us() - phase_since : 0);
}

static bool
is_same_rest(const RunnerRest *one, const RunnerRest *other)
{
	return one->kind == other->kind && strcmp(one->shown, other->shown) == 0 &&
		strcmp(NameStr(one->slot), NameStr(other->slot)) == 0;
}

/* Say why the runner rests; NULL if it does not any more. */
void
progress_throttled(const RunnerRest *rest)
{
	if (rest == NULL)
		rest = &rest_none;
	if (mine == NULL || is_same_rest(&mine->rest, rest))
		return;
	(void) lock_slot();
	mine->rest = *rest;
	LWLockRelease(&job_area()->lock);
}

/* Return the word of index_mover.running() for a rest. */
const char *
progress_rest_word(RestKind kind)
{
	static const char *const words[] = {
		[REST_NONE] = "",
		[REST_PAUSE] = "pause",
		[REST_RATE] = "rate",
		[REST_READING] = "reading",
		[REST_LAG] = "lag",
		[REST_SPACE] = "free space",
		[REST_CHECKPOINT] = "checkpoint",
		[REST_ARCHIVER] = "archiver",
	};

	return words[kind];
}

/* Note that the runner rests for a standby, a slot or free space, which can last without end. */
void
progress_rests_for_others(void)
{
	int64		now = clock_us();

	if (!lock_slot())
		return;
	/* between two rests it catches up */
	if (mine->rested_at == 0 || now - mine->rested_at > IM_BLOCKED_GAP)
		mine->rests_since = GetCurrentTimestamp();
	mine->rested_at = now;
	LWLockRelease(&job_area()->lock);
}

/* Set a number of the slot, by progress_set(). */
void
progress_set_number(Size offset, int64 value)
{
	if (!lock_slot())
		return;
	*(int64 *) ((char *) mine + offset) = value;
	LWLockRelease(&job_area()->lock);
}

void
progress_blocks(int64 total, int64 done)
{
	progress_set(blocks_total, total);
	progress_set(blocks_done, done);
}

/* Note how much of the whole relation is copied; a copy may begin again. */
void
progress_copied(int64 bytes)
{
	if (mine != NULL && bytes > mine->bytes_done)
		progress_set(bytes_done, bytes);
}

void
progress_eta(double seconds)
{
	if (!lock_slot())
		return;
	mine->eta = seconds;
	mine->eta_at = GetCurrentTimestamp();
	LWLockRelease(&job_area()->lock);
}

/* Publish the transactions for which the runner waits. */
void
progress_blockers(const VirtualTransactionId *vxids, int count)
{
	int64		now = clock_us();

	if (!lock_slot())
		return;
	mine->nwaits_for = Min(count, IM_MAX_BLOCKERS);
	for (int i = 0; i < mine->nwaits_for; i++)
		mine->waits_for[i] = vxids[i];
	if (count > 0)
	{
		/* a copy that waits catches up in between */
		if (mine->blocked_at == 0 || now - mine->blocked_at > IM_BLOCKED_GAP)
			mine->blocked_since = GetCurrentTimestamp();
		mine->blocked_at = now;
	}
	LWLockRelease(&job_area()->lock);
}
