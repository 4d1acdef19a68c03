/*-------------------------------------------------------------------------
 *
 * pacing.c
 *	  The speed of a move: rate limit, slow storage, lag of replicas, free space, pause.
 *
 * The caller counts the bytes that it reads and writes, and calls pacing_rest()
 * where a rest does no harm: no transaction is open, no buffer pinned.  It passes
 * a function for the work that has to go on during a rest.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "replication/slot.h"
#include "utils/builtins.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "printed_command.h"
#include "wait/free_space.h"
#include "wait/wait.h"

/* Longest rest at once: the caller has to check for other things, too. */
#define LONGEST_REST_MS		200

/* Shorter rests are put off. */
#define SHORTEST_REST_MS	5

/* The time of reading is that of the last so many megabytes. */
#define SMOOTH_READ_MB		8

/* Look for lags so often. */
#define LOOK_MS				100

/* How long a standby's replay stands, or stays as late; see replays_late() */
#define STANDS_MS			30000
#define STEADY_MS			60000

/* The receiver for which the move rests: the furthest behind, if too far */
typedef struct Laggard
{
	int64		most;			/* bytes by which any is behind, or -1 */
	int64		bytes;			/* by which this one is, or -1 */
	int			pid;			/* of a walsender; 0 = a slot */
	bool		unread;			/* only because of the WAL that is to come */
	int64		unreceived;		/* bytes that a standby has not flushed */
	XLogRecPtr	applied;
	TimeOffset	apply_lag;		/* -1 = unknown */
	NameData	slot;			/* "" = a walsender */
	char		what[NAMEDATALEN + 32];
} Laggard;

/* Whether the move rests for a lag, until that is below half of the limit, and why */
static bool lag_rests = false;
static RunnerRest lag_why = {REST_LAG};

/* A walsender of a standby whose replay is late on purpose */
typedef struct LateStandby
{
	int			pid;
	TimestampTz started;		/* another process may get the number */
} LateStandby;

static List *late = NIL;		/* of them, in TopMemoryContext */

/* in this process, see pacing_rested_ms() */
static int64 rested_us = 0;

/* Count bytes as written, and update the rate that progress shows. */
void
throttle_written(Throttle *throttle, int64 bytes)
{
	instr_time	now;
	instr_time	passed;

	throttle->write_mark = runner_use(BUDGET_WRITING, bytes);

	INSTR_TIME_SET_CURRENT(now);
	if (INSTR_TIME_IS_ZERO(throttle->shown))
	{
		/* the time that these bytes have taken is not known */
		throttle->shown = now;
		return;
	}
	throttle->bytes += bytes;
	passed = now;
	INSTR_TIME_SUBTRACT(passed, throttle->shown);
	if (INSTR_TIME_GET_DOUBLE(passed) >= 0.5)
	{
		double		rate = throttle->bytes / INSTR_TIME_GET_DOUBLE(passed);

		/* smoothed, so that the time left does not jump */
		throttle->rate = throttle->rate > 0 ? (throttle->rate + rate) / 2 : rate;
		progress_set(bytes_per_second, (int64) throttle->rate);
		throttle->bytes = 0;
		throttle->shown = now;
	}
}

/*
 * Count bytes as read in so many microseconds.  A rest is owed only where reading
 * is slow in the mean of some megabytes: a cache is fast, and a process that has
 * to wait for a processor now and then has not found slow storage.
 */
void
throttle_read(Throttle *throttle, int64 us, int64 bytes)
{
	double		share = Min(bytes / (SMOOTH_READ_MB * 1024.0 * 1024.0), 1);

	throttle->read_ms = throttle->read_ms * (1 - share) + us / 1000.0 / SMOOTH_READ_MB;
	if (throttle->read_ms > FAST_READ_MS && !throttle->hurry)
		throttle->read_mark = runner_use(BUDGET_READING, us / 1000000.0);
}

/* Return how many milliseconds to rest now, at most a piece of a long rest, and set *why. */
static int
throttle_due(Throttle *throttle, const MoveSettings *settings, const RunnerRest **why)
{
	double		share = settings->pacing && settings->max_read_share < 1 ?
		settings->max_read_share : 0;
	double		ms = runner_owes(BUDGET_WRITING, throttle->write_mark,
								 settings->max_rate * 1024.0);
	double		reading_ms = throttle->hurry ? 0 :
		runner_owes(BUDGET_READING, throttle->read_mark, share);

	*why = reading_ms > ms ? &rest_slow_storage : &rest_max_rate;
	ms = Max(ms, reading_ms);
	return ms < SHORTEST_REST_MS ? 0 : (int) Min(ms, LONGEST_REST_MS);
}

/* Rest, or until the latch is set.  ERROR 57014 if the job is canceled. */
void
throttle_rest(int ms)
{
	Assert(!IsTransactionState());
	latch_nap(ms, "IndexMoverPause");
	job_check_cancel();
}

/*
 * Lag of standbys and replication slots.
 *
 * A move checks the lag before each MB, and waits while any is above
 * index_mover.max_replica_lag; then until it is below half of that, to avoid
 * frequent stops.  A slot that max_slot_wal_keep_size is about to invalidate
 * counts whatever the setting says, because a standby that has lost its slot has
 * to be rebuilt.  A rebuild, which writes much without checking again, also waits
 * for a slot that no process reads and that its WAL would invalidate;
 * rebuild_timer.c looks at the slots afterwards.
 *
 * The primary is not told that a standby is behind on purpose.  Such a one has
 * received the WAL, but while the move rests its replay stands still, or stays
 * behind by the same time.  A standby that replays as fast as it can catches up
 * meanwhile or, if others write too much for it, falls further behind.
 */

static int64
bytes_behind(XLogRecPtr position, XLogRecPtr end)
{
	return end > position ? (int64) (end - position) : 0;
}

static bool
is_too_far(int64 bytes, int64 limit)
{
	return limit >= 0 && bytes > (lag_rests ? limit / 2 : limit);
}

/* Note a receiver; return whether it is too far behind, and the furthest so far. */
static bool
note_receiver(Laggard *laggard, int64 bytes, bool too_far, int pid, const char *slot)
{
	laggard->most = Max(laggard->most, bytes);
	if (!too_far || bytes <= laggard->bytes)
		return false;
	laggard->bytes = bytes;
	laggard->pid = pid;
	laggard->unread = false;
	namestrcpy(&laggard->slot, slot);
	snprintf(laggard->what, sizeof(laggard->what), "replication slot \"%s\"", slot);
	return true;
}

/*
 * Return whether this standby, for which the move rests, is late on purpose.
 * To be called for each check of the rest; "begins" for the first.
 */
static bool
replays_late(const Laggard *laggard, bool begins, int64 limit)
{
	static Laggard first;		/* as at "since" */
	static double since;
	double		now = clock_seconds();
	bool		same = !begins && laggard->pid == first.pid;
	bool		goes_on = laggard->applied != first.applied;
	bool		steady = false;

	if (same && now - since < (goes_on ? STEADY_MS : STANDS_MS) / 1000.0)
		return false;
	/* a standby at its limit would have got nearer, or further away */
	if (!goes_on)
		steady = true;
	else if (first.apply_lag >= 0 && laggard->apply_lag >= 0)
		steady = llabs((long long) (laggard->apply_lag - first.apply_lag)) <
			(now - since) * USECS_PER_SEC / 20;
	if (same && steady && laggard->unreceived <= limit / 2)
		return true;
	first = *laggard;
	since = now;
	return false;
}

/* Forget a late standby. */
static void
forget_late(LateStandby *standby)
{
	late = list_delete_ptr(late, standby);
	pfree(standby);
}

/* Return the late standby of this walsender; NULL if it is none, or was another process. */
static LateStandby *
find_late(int pid)
{
	ListCell   *lc;

	foreach(lc, late)
	{
		LateStandby *standby = lfirst(lc);
		PgBackendStatus *status;

		if (standby->pid != pid)
			continue;
		status = blockers_find(pid);
		if (status != NULL && status->st_proc_start_timestamp == standby->started)
			return standby;
		forget_late(standby);
		return NULL;
	}
	return NULL;
}

static void
look_at_walsenders(Laggard *laggard, XLogRecPtr end, int64 limit)
{
	WalSnd	   *walsnd;

	for (int i = 0; (walsnd = walsender_next(&i)) != NULL;)
	{
		LateStandby *standby;
		WalSnd		copy;
		XLogRecPtr	position;
		XLogRecPtr	flushed;
		int64		bytes;

		SpinLockAcquire(&walsnd->mutex);
		copy = *walsnd;
		SpinLockRelease(&walsnd->mutex);
		position = copy.apply;
		/* a receiver that applies nothing may not report its position */
		flushed = XLogRecPtrIsInvalid(copy.flush) ? copy.sentPtr : copy.flush;

		standby = find_late(copy.pid);
		if (standby != NULL && end <= position + Max(limit, 0) / 2)
			forget_late(standby);	/* no longer */
		else if (standby != NULL || XLogRecPtrIsInvalid(position))
			position = flushed;

		bytes = bytes_behind(position, end);
		if (copy.pid == 0 || XLogRecPtrIsInvalid(position) ||
			(copy.state != WALSNDSTATE_CATCHUP && copy.state != WALSNDSTATE_STREAMING))
			continue;
		if (note_receiver(laggard, bytes, is_too_far(bytes, limit), copy.pid, ""))
		{
			laggard->unreceived = bytes_behind(flushed, end);
			laggard->applied = position;
			laggard->apply_lag = copy.applyLag;
		}
	}
}

/*
 * Return how far behind, in bytes, a slot may be before it is in danger; -1
 * if slots are never invalidated: max_slot_wal_keep_size less a reserve for the
 * WAL that is written until the next check, and for the rounding to segments.
 * Arithmetic only, since a signal handler calls it.
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

/* Check slots, read or not, before so much WAL at once. */
static void
look_at_slots(Laggard *laggard, XLogRecPtr end, int64 limit, int64 at_once)
{
	ReplicationSlot *slot;
	int64		slot_limit = replica_lag_slot_limit();

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; (slot = slot_next(&i)) != NULL;)
	{
		ReplicationSlot copy;
		const char *name = NameStr(copy.data.name);
		int64		kept;
		int64		bytes;

		SpinLockAcquire(&slot->mutex);
		copy = *slot;
		SpinLockRelease(&slot->mutex);

		if (im_slot_is_invalidated(&copy) || XLogRecPtrIsInvalid(copy.data.restart_lsn))
			continue;			/* keeps nothing */
		kept = bytes_behind(copy.data.restart_lsn, end);
		/* a logical slot may read again, and is not behind by that */
		bytes = bytes_behind(Max(copy.data.restart_lsn, copy.data.confirmed_flush), end);
		(void) note_receiver(laggard, bytes, is_too_far(bytes, limit), 0, name);
		(void) note_receiver(laggard, kept, is_too_far(kept, slot_limit), 0, name);
		if (at_once > 0 && slot_limit >= 0 && !im_slot_is_read(&copy))
		{
			if (note_receiver(laggard, kept, kept + at_once > slot_limit, 0, name))
				laggard->unread = true;
		}
	}
	LWLockRelease(ReplicationSlotControlLock);
}

/*
 * Look how far receivers of WAL are behind, and show the lag in the progress.  Return whether
 * a move should rest before it writes so much WAL without another look (0 for a copy).
 */
static bool
look_at_replica_lag(const MoveSettings *settings, int64 at_once)
{
	XLogRecPtr	end = GetFlushRecPtr(NULL);
	int64		limit = settings->max_replica_lag > 0 ?
		(int64) settings->max_replica_lag * 1024 : -1;
	Laggard		laggard = {.most = -1,.bytes = -1};

	look_at_walsenders(&laggard, end, limit);
	look_at_slots(&laggard, end, limit, at_once);
	progress_set(wal_lag, laggard.most);
	if (laggard.pid != 0)
	{
		PgBackendStatus *walsender = blockers_find(laggard.pid);

		snprintf(laggard.what, sizeof(laggard.what), "standby \"%s\"",
				 walsender != NULL ? walsender->st_appname : "");
		if (replays_late(&laggard, !lag_rests, limit))
		{
			MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
			LateStandby *standby = palloc0_object(LateStandby);

			standby->pid = laggard.pid;
			standby->started = walsender != NULL ? walsender->st_proc_start_timestamp : 0;
			late = lappend(late, standby);
			MemoryContextSwitchTo(oldcontext);
			ereport(LOG,
					(errhidecontext(true),
					 errmsg("%s: no longer resting for the replay of %s",
							runner_name(), laggard.what),
					 errdetail("It is late whether the move rests or not.")));
			return look_at_replica_lag(settings, at_once);
		}
	}
	if (laggard.bytes >= 0 && !lag_rests && laggard.unread)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: resting, because no process reads %s", runner_name(), laggard.what),
				 errdetail("A rebuild would bring it beyond max_slot_wal_keep_size.")));
	else if (laggard.bytes >= 0 && !lag_rests)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: resting, because %s is %lld bytes behind",
						runner_name(), laggard.what, (long long) laggard.bytes)));
	lag_rests = laggard.bytes >= 0;
	if (lag_rests)
	{
		lag_why.slot = laggard.slot;
		snprintf(lag_why.shown, sizeof(lag_why.shown), "%s is %lld MB behind%s",
				 laggard.what, (long long) (laggard.bytes / (1024 * 1024)),
				 laggard.pid != 0 && laggard.unreceived <= limit / 2 ? " in replay" : "");
	}
	return lag_rests;
}

/* Look at pauses and standbys before a rebuild, which can then only be canceled.  Return whether to rest. */
bool
pacing_look(const MoveSettings *settings, int64 wal_bytes)
{
	if (job_pause_requested())
		return true;
	return look_at_replica_lag(settings, wal_bytes);
}

/*
 * In a job that waits for a user or a time, tell the server log of a DROP EXTENSION
 * that waits for it, which would do so without end, and not say why.
 */
void
pacing_tell_of_drop(const char *job_does)
{
	static int	told = 0;
	int			pid;

	if (extension_lock_waiters(&pid, 1) == 0 || pid == told)
		return;
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: process %d waits for the end of this job, which %s",
					runner_name(), pid, job_does),
			 errdetail("The job has locked the extension.%s", describe_command(pid)),
			 errhint("Resume the job, or cancel it: %s",
					 printed_command("cancel_move", runner_job()))));
	told = pid;
}

/* Return the microseconds since a moment of clock_seconds(). */
static int64
us_since(double moment)
{
	return (int64) ((clock_seconds() - moment) * USECS_PER_SEC);
}

/*
 * Rest as long as the job is paused; with settings, as long as a standby or a slot
 * is too far behind for so much WAL at once; with throttle, as long as there is too
 * little free space for the next bytes, or more was written than max_rate allows, or read
 * than max_read_share.  Return whether there was a reason to.  ERROR 57014 if the job is
 * canceled; 53100 as free_space_look().
 *
 * keep_up() is called before each check, for the work that has to go on; it
 * ends the rest by returning false, or by an ERROR.  Without it, the caller must hold no lock
 * that others could wait for.
 */
bool
pacing_rest(const MoveSettings *settings, int64 wal_at_once, Throttle *throttle,
			bool (*keep_up) (void *arg), void *arg)
{
	int			most_ms = keep_up != NULL ? SHORT_REST_MS : LOOK_MS;
	double		start = -1;		/* as clock_seconds(); -1 = it has not rested */
	int64		idle = 0;
	int64		rested_before = 0;

	Assert(!IsTransactionState());
	runner_make_up();
	for (;;)
	{
		int			ms = most_ms;
		const RunnerRest *why = &rest_paused;
		bool		paused;
		bool		stands;		/* until others let it go on */
		double		iteration;

		if (keep_up != NULL)
		{
			if (!keep_up(arg))
				break;
		}
		paused = job_pause_requested();
		stands = paused;
		if (!stands && settings != NULL)
		{
			why = &lag_why;
			stands = look_at_replica_lag(settings, wal_at_once);
		}
		if (!stands && throttle != NULL && throttle->space != NULL)
			stands = free_space_look(throttle->space, settings, &why);
		if (!stands)
			ms = throttle != NULL ? throttle_due(throttle, settings, &why) : 0;
		if (ms == 0)
			break;
		progress_throttled(why);
		if (stands && !paused)
			progress_rests_for_others();
		if (start < 0)
		{
			start = clock_seconds();
			/* keep_up() may have rested before */
			rested_before = rested_us;
			idle = progress_idle();
			/* catalog snapshots must not hold back vacuum */
			InvalidateCatalogSnapshot();
		}
		if (paused)
		{
			progress_blockers(NULL, 0);
			pacing_tell_of_drop("is paused");
		}
		iteration = clock_seconds();
		throttle_rest(Min(ms, most_ms));
		if (throttle != NULL && stands)
			throttle->rested = true;
		if (!stands && why->kind == REST_RATE)
			throttle->rested_us += us_since(iteration);
		/* where keep_up() has given way, that is counted already */
		progress_rested(us_since(start) - (progress_idle() - idle));
		rested_us = rested_before + us_since(start);
	}
	/* a throttled copy rests after each piece: show that until it does not */
	if (start < 0 || throttle == NULL)
		progress_throttled(NULL);
	return start >= 0;
}

/* Return how long this process has rested: such time is no part of time limits. */
int64
pacing_rested_ms(void)
{
	return rested_us / 1000;
}

/* Rest as long as the job is paused, with no lock that others could want. */
void
pacing_rest_while_paused(void)
{
	(void) pacing_rest(NULL, 0, NULL, NULL, NULL);
}

/* Rest as long as pacing_look() says so, with no lock held; false if not at all. */
bool
pacing_hold_back(const MoveSettings *settings, int64 wal_bytes)
{
	return pacing_rest(settings, wal_bytes, NULL, NULL, NULL);
}
