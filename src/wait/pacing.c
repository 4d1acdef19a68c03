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

/* Look at pauses and standbys before a rebuild, which can then only be canceled.  Return whether to rest. */
bool
pacing_look(const MoveSettings *settings, int64 wal_bytes)
{
	if (job_pause_requested())
		return true;
	return replica_lag_look(settings, wal_bytes);
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
			why = &replica_lag_why;
			stands = replica_lag_look(settings, wal_at_once);
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
