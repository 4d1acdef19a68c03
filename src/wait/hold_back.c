/*-------------------------------------------------------------------------
 *
 * hold_back.c
 *	  Keeping a rebuild from beginning: pause, standbys that are behind.  And the
 *	  pause of whatever else has nothing in hand while it waits.
 *
 * Once core's REINDEX runs, nothing of ours can slow it down or stop it but a
 * cancel, and that would throw away what it has done.  So what a copy obeys at
 * each megabyte, a rebuild obeys before it begins, as late as possible: while
 * it waits for old transactions, and once more when it has its locks.
 *
 * Locking: the caller holds nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "wait/hold_back.h"
#include "job.h"
#include "wait/replica_lag.h"
#include "wait/throttle.h"

#define LOOK_MS		100

/* One for all looks, so that the log tells of a lag once. */
static ReplicaLag lag;

/* Is there a reason to rest?  wal_bytes: what the rebuild will write. */
bool
must_hold_back(const MoveSettings *settings, int64 wal_bytes)
{
	lag.at_once = wal_bytes;
	return job_pause_requested() || replica_lag_too_large(&lag, settings);
}

/*
 * Rest as long as the job is paused, or a standby or a slot is too far behind.
 * With no transaction open and no lock held.  Returns false if there was no
 * reason to.
 */
bool
hold_back(const MoveSettings *settings, int64 wal_bytes)
{
	bool		rested = false;
	MovePhase	before = PHASE_INITIALIZING;

	lag.at_once = wal_bytes;
	for (;; (void) throttle_rest(LOOK_MS))
	{
		MovePhase	phase;
		MovePhase	old;

		if (job_pause_requested())
			phase = PHASE_PAUSED;
		else if (replica_lag_too_large(&lag, settings))
			phase = PHASE_THROTTLED;
		else
			break;
		old = progress_phase(phase);
		if (!rested)
		{
			before = old;
			progress_blockers(NULL, 0);
		}
		rested = true;
	}
	if (rested)
		progress_phase(before);
	return rested;
}

int64
rest_while_paused(void)
{
	TimestampTz start = GetCurrentTimestamp();
	MovePhase	before;

	if (!job_pause_requested())
		return 0;
	/* what was looked up must not hold back anybody's vacuum */
	InvalidateCatalogSnapshot();
	before = progress_phase(PHASE_PAUSED);
	progress_blockers(NULL, 0);
	while (job_pause_requested())
		(void) throttle_rest(LOOK_MS);
	progress_phase(before);
	return GetCurrentTimestamp() - start;
}
