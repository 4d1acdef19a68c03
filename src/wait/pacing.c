/*-------------------------------------------------------------------------
 *
 * pacing.c
 *	  How fast a move may go: rate limit and pause.
 *
 * The caller says what he has written and asks from time to time how long to
 * rest; he decides where in his work a rest does no harm (no transaction, no
 * buffer pinned), and what has to go on meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/latch.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "job.h"
#include "settings.h"
#include "wait/wait.h"

/* Rest no longer than this at once: the caller has to look around. */
#define LONGEST_REST_MS		200

/* Debts below this are left for the next time. */
#define SHORTEST_REST_MS	5

/* Who is furthest behind. */
typedef struct Laggard
{
	int64		bytes;			/* -1 = there is nobody */
	char		what[NAMEDATALEN + 32];
} Laggard;

#define LOOK_MS		100

/* One for all looks, so that the log tells of a lag once. */
static ReplicaLag lag;

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
 * early.  ERROR 57014 if the job is canceled; ends the process at once if the
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

/* ----------------------------------------------------------------
 *	How far standbys and replication slots are behind.
 *
 * A move writes as much WAL as its index is large, as fast as it can.  All of
 * it goes to every standby, and is kept for every slot, whether anybody reads
 * that or not.  So a move looks here before each MB, and waits while somebody is
 * further behind than index_mover.max_replica_lag allows; once it waits, until
 * the lag is below half of that, so that it doesn't stop and go.
 *
 * A slot that max_slot_wal_keep_size is about to invalidate counts whatever the
 * setting says: a standby that has lost its slot has to be built anew.  Who
 * writes much without looking again, as a rebuild does, waits also for a slot
 * that nobody reads and that this would invalidate; one whose reader falls back
 * later is what rebuild_timer.c is for.
 *
 * Assumption: a standby without a slot that is gone is nobody's; only slots
 * remember who is away.
 *
 * Locking: spinlocks of walsenders and slots, ReplicationSlotControlLock shared.
 * ----------------------------------------------------------------
 */

static void
note(Laggard *laggard, XLogRecPtr end, XLogRecPtr position,
	 const char *kind, const char *name)
{
	int64		bytes = end > position ? (int64) (end - position) : 0;

	if (bytes <= laggard->bytes)
		return;
	laggard->bytes = bytes;
	snprintf(laggard->what, sizeof(laggard->what), "%s %s", kind, name);
}

/* Connected standbys and other receivers of WAL: how far they have applied it. */
static void
look_at_walsenders(Laggard *laggard, XLogRecPtr end)
{
	int			i;

	if (WalSndCtl == NULL)
		return;
	for (i = 0; i < max_wal_senders; i++)
	{
		WalSnd	   *walsnd = &WalSndCtl->walsnds[i];
		int			pid;
		WalSndState state;
		XLogRecPtr	position;
		char		name[32];

		SpinLockAcquire(&walsnd->mutex);
		pid = walsnd->pid;
		state = walsnd->state;
		position = walsnd->apply;
		/* a mere receiver applies nothing, or doesn't even tell what it has */
		if (XLogRecPtrIsInvalid(position))
			position = walsnd->flush;
		if (XLogRecPtrIsInvalid(position))
			position = walsnd->sentPtr;
		SpinLockRelease(&walsnd->mutex);

		if (pid == 0 || XLogRecPtrIsInvalid(position) ||
			(state != WALSNDSTATE_CATCHUP && state != WALSNDSTATE_STREAMING))
			continue;
		snprintf(name, sizeof(name), "with process %d", pid);
		note(laggard, end, position, "the standby", name);
	}
}

/*
 * Slots, read or not.  *endangered becomes the one that keeps most, which
 * max_slot_wal_keep_size may invalidate; *unread that of those which nobody
 * reads at present.
 */
static void
look_at_slots(Laggard *laggard, Laggard *endangered, Laggard *unread, XLogRecPtr end)
{
	int			i;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		XLogRecPtr	restart;
		XLogRecPtr	confirmed;
		bool		lost;
		bool		is_read;
		NameData	name;

		if (!slot->in_use)
			continue;
		SpinLockAcquire(&slot->mutex);
		restart = slot->data.restart_lsn;
		confirmed = slot->data.confirmed_flush;
		lost = im_slot_is_invalidated(slot);
		is_read = im_slot_is_read(slot);
		name = slot->data.name;
		SpinLockRelease(&slot->mutex);

		if (lost || XLogRecPtrIsInvalid(restart))
			continue;			/* keeps nothing */
		note(endangered, end, restart, "replication slot", NameStr(name));
		if (!is_read)
			note(unread, end, restart, "replication slot", NameStr(name));
		/* what a logical one may read again is not behind */
		note(laggard, end, Max(restart, confirmed), "replication slot", NameStr(name));
	}
	LWLockRelease(ReplicationSlotControlLock);
}

/*
 * How far behind, in bytes, a slot may be before it has to be feared for; -1 =
 * slots are not invalidated.
 *
 * max_slot_wal_keep_size without what several moves, and others, may write until
 * the next look, and without the segments that checkpoints round by.  Mere
 * arithmetic: a signal handler calls it.
 */
int64
replica_lag_slot_limit(void)
{
	int64		keep;

	if (max_slot_wal_keep_size_mb < 0)
		return -1;
	keep = (int64) max_slot_wal_keep_size_mb * 1024 * 1024;
	return Max(keep - Max(keep / 4, 2 * (int64) wal_segment_size), keep / 2);
}

static bool
is_too_large(bool waiting, int64 bytes, int64 limit)
{
	return limit >= 0 && bytes > (waiting ? limit / 2 : limit);
}

/*
 * Is somebody so far behind that a move should wait?  Shows the lag in the
 * progress of the move.  Needs no transaction.
 */
bool
replica_lag_too_large(ReplicaLag *state, const MoveSettings *settings)
{
	XLogRecPtr	end = GetFlushRecPtr(NULL);
	int64		limit = settings->max_replica_lag > 0 ?
		(int64) settings->max_replica_lag * 1024 : -1;
	Laggard		laggard = {.bytes = -1};
	Laggard		endangered = {.bytes = -1};
	Laggard		unread = {.bytes = -1};
	const Laggard *reason = NULL;

	look_at_walsenders(&laggard, end);
	look_at_slots(&laggard, &endangered, &unread, end);
	progress_wal_lag(Max(laggard.bytes, endangered.bytes));

	if (is_too_large(state->waiting, laggard.bytes, limit))
		reason = &laggard;
	else if (is_too_large(state->waiting, endangered.bytes, replica_lag_slot_limit()))
		reason = &endangered;
	else if (state->at_once > 0 && unread.bytes >= 0 &&
			 is_too_large(false, unread.bytes + state->at_once, replica_lag_slot_limit()))
		reason = &unread;

	if (reason == &unread && !state->waiting)
		ereport(LOG,
				(errmsg("pausing index move: no process reads %s, which a rebuild would bring beyond max_slot_wal_keep_size",
						reason->what)));
	else if (reason != NULL && !state->waiting)
		ereport(LOG,
				(errmsg("pausing index move: %s is %lld bytes behind",
						reason->what, (long long) reason->bytes)));
	state->waiting = (reason != NULL);
	return state->waiting;
}

/*
 * Say who is furthest behind now: "the standby with process 17", "replication
 * slot x".  Palloc'd; NULL if there is nobody.  Needs no transaction.
 */
char *
replica_lag_worst(void)
{
	XLogRecPtr	end = GetFlushRecPtr(NULL);
	Laggard		laggard = {.bytes = -1};
	Laggard		endangered = {.bytes = -1};
	Laggard		unread = {.bytes = -1};

	look_at_walsenders(&laggard, end);
	look_at_slots(&laggard, &endangered, &unread, end);
	if (endangered.bytes > laggard.bytes)
		laggard = endangered;
	return laggard.bytes < 0 ? NULL : pstrdup(laggard.what);
}

/* ----------------------------------------------------------------
 *	Keeping a rebuild from beginning: pause, standbys that are behind.  And the
 *	  pause of whatever else has nothing in hand while it waits.
 *
 * Once core's REINDEX runs, nothing of ours can slow it down or stop it but a
 * cancel, and that would throw away what it has done.  So what a copy obeys at
 * each megabyte, a rebuild obeys before it begins, as late as possible: while
 * it waits for old transactions, and once more when it has its locks.
 *
 * Locking: the caller holds nothing.
 * ----------------------------------------------------------------
 */

/* Is there a reason to rest?  wal_bytes: what the rebuild will write. */
bool
pacing_is_held_back(const MoveSettings *settings, int64 wal_bytes)
{
	lag.at_once = wal_bytes;
	return job_pause_requested() || replica_lag_too_large(&lag, settings);
}

/*
 * Rest as long as there is a reason to: the job is paused, or, if these are
 * passed, a standby or a slot is too far behind, or more was written than
 * max_rate allows.  With no transaction open.
 *
 * Before each look, meanwhile() does what has to go on; it ends the rest by
 * returning false.  Without it, no lock is held that others could wait for.
 *
 * Returns for how many microseconds it has rested: what time limits are to be put
 * off by; 0 if there was no reason to.  ERROR 57014 if the job is canceled.
 */
int64
pacing_rest(const MoveSettings *settings, ReplicaLag *state, Throttle *throttle,
			bool (*meanwhile) (void *arg), void *arg)
{
	int			most_ms = meanwhile != NULL ? SHORT_REST_MS : LOOK_MS;
	TimestampTz start = 0;
	MovePhase	before = PHASE_INITIALIZING;

	while (meanwhile == NULL || meanwhile(arg))
	{
		int			ms = most_ms;
		bool		paused = job_pause_requested();
		MovePhase	old;

		if (!paused && !(state != NULL && replica_lag_too_large(state, settings)) &&
			(throttle == NULL || (ms = throttle_due(throttle, settings)) == 0))
			break;
		old = progress_phase(paused ? PHASE_PAUSED : PHASE_THROTTLED);
		if (start == 0)
		{
			start = GetCurrentTimestamp();
			before = old;
			/* what was looked up must not hold back vacuum */
			InvalidateCatalogSnapshot();
		}
		if (paused)
			progress_blockers(NULL, 0);
		(void) throttle_rest(Min(ms, most_ms));
	}
	if (start == 0)
		return 0;
	progress_phase(before);
	return Max(GetCurrentTimestamp() - start, 1);
}

/* Only for a pause, and with no lock held that others could wait for. */
int64
pacing_rest_while_paused(void)
{
	return pacing_rest(NULL, NULL, NULL, NULL, NULL);
}

/*
 * Rest as long as the job is paused, or a standby or a slot is too far behind.
 * With no transaction open and no lock held.  Returns false if there was no
 * reason to.
 */
bool
pacing_hold_back(const MoveSettings *settings, int64 wal_bytes)
{
	lag.at_once = wal_bytes;
	return pacing_rest(settings, &lag, NULL, NULL, NULL) > 0;
}
