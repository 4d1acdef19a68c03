/*-------------------------------------------------------------------------
 *
 * tier_scheduler.c
 *	  Samples, and policies that are due, without a caller.
 *
 * The launcher (worker/launcher.c) has a worker look into each database that
 * index_mover.scheduler_databases names, at least once a minute.  It takes a sample,
 * starts the policies that are due, and is gone, usually after some milliseconds.  This
 * takes locks on the extension and its tables only, and waits for each for 10 s at most.
 *
 * Tricky: the clock may be set back.  A last run in the future counts as none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "channel.h"
#include "errors.h"
#include "own_tables.h"
#include "tier/tier_private.h"
#include "worker/worker.h"

/* a look begins no further policy after so long */
#define LOOK_LASTS_S	10

PG_FUNCTION_INFO_V1(index_mover_scheduler_looks);
PGDLLEXPORT void index_mover_look_main(Datum arg);

/* When a policy is due */

/* Return the time of day that clocks show. */
static TimeADT
time_of_day(Timestamp local)
{
	TimeADT		result = local % USECS_PER_DAY;

	return result < 0 ? result + USECS_PER_DAY : result;
}

/* Return the first moment after this at which clocks show this or later: they go forward over it. */
static TimestampTz
first_beyond(TimestampTz after, TimestampTz beyond, Timestamp local)
{
	while (beyond - after > 1)
	{
		TimestampTz middle = after + (beyond - after) / 2;

		if (moment_local(middle) >= local)
			beyond = middle;
		else
			after = middle;
	}
	return beyond;
}

/* Return the first moment after this at which it is a time of day, or clocks go forward over it. */
static TimestampTz
next_time(TimestampTz after, TimeADT time)
{
	Timestamp	now = moment_local(after);
	Timestamp	local;
	TimestampTz result;

	if (TIMESTAMP_NOT_FINITE(now))
		return now;
	local = now - time_of_day(now) + time;
	if (local <= now)
		local += USECS_PER_DAY;
	result = moment_of_local(local);
	if (TIMESTAMP_NOT_FINITE(result) || moment_local(result) == local)
		return result;
	return first_beyond(after, result, local);
}

/* Return whether a window is open at a moment: by the clock alone, which may go forward or back. */
static bool
is_open(TimeADT start, TimeADT end, TimestampTz at)
{
	TimeADT		time = time_of_day(moment_local(at));

	if (start < end)
		return time >= start && time < end;
	return time >= start || time < end;
}

/* Return when clocks last showed a time of day, at this moment or before. */
static TimestampTz
last_time(TimestampTz at, TimeADT time)
{
	Timestamp	now = moment_local(at);
	Timestamp	local;

	if (TIMESTAMP_NOT_FINITE(now))
		return now;
	local = now - time_of_day(now) + time;
	if (local > now)
		local -= USECS_PER_DAY;
	return moment_of_local(local);
}

/*
 * Return when a policy is to run, not before now: its last run began at that moment, 0 =
 * never, and it has a window unless start is -1.  *end: when this closes then; 0 = never.
 * All that by the session's time zone, which is to be the database's, whoever asks.
 *
 * In a window that has opened since the last run it is due when that opens.  Else each run would
 * be later in its window than the run before, by the time until the scheduler looks.
 */
TimestampTz
tier_next_run(TimestampTz last, const Interval *every, TimeADT window_start, TimeADT window_end,
			  TimestampTz now, TimestampTz *end)
{
	TimestampTz result = now;

	*end = 0;
	if (last != 0 && last <= now)
	{
		TimestampTz due = moment_plus(last, every);

		if (window_start >= 0 && is_open(window_start, window_end, due))
		{
			TimestampTz opens = last_time(due, window_start);

			if (opens > last)
				due = Min(due, opens);
		}
		result = Max(now, due);
	}
	if (window_start < 0)
		return result;
	/* on a day on which clocks go forward over all of it, it does not open */
	for (int days = 0; days <= 2; days++)
	{
		if (is_open(window_start, window_end, result))
			break;
		result = next_time(result, window_start);
	}
	*end = next_time(result, window_end);
	return result;
}

/* Return whether the scheduler of this server looks into this database. */
bool
tier_scheduler_looks(void)
{
	const char *here = get_database_name(MyDatabaseId);

	return here != NULL && launcher_looks_into(here);
}

/* index_mover.scheduler_looks() RETURNS boolean: whether the scheduler looks into this database */
Datum
index_mover_scheduler_looks(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(tier_scheduler_looks());
}

/* A look into a database */

/* Take a sample, if the extension is installed, and is not being dropped. */
static void
take_sample(void *arg)
{
	Interval	retention = {.day = 100};

	if (extension_hold() != EXTENSION_HELD)
		return;
	(void) DirectFunctionCall1(index_mover_take_index_sample, IntervalPGetDatum(&retention));
}

/* A policy that is due */
typedef struct DuePolicy
{
	const Policy *policy;
	TimestampTz window_end;		/* after which no relation begins; 0 = none */
	TimestampTz last;			/* when its last run began, or from when on it
								 * was to run */
	int			turn;			/* how many of its owner's policies are before
								 * it */
	uint32		place;			/* of its owner in each turn */
} DuePolicy;

/*
 * If a policy is due, add it to the list.  Returns in how many ms to look at it again.
 */
static int64
look_at_policy(const Policy *policy, TimestampTz now, List **due)
{
	DuePolicy  *found;
	PolicyRun	last;
	TimestampTz next;
	TimestampTz end;

	policy_run_read(policy, &last);
	next = tier_next_run(policy_wait_is_over(&last) ? 0 : last.started_at, policy->every,
						 policy->window_start, policy->window_end, now, &end);
	if (next > now)
		return (next - now) / 1000 + 1;
	/* a run at a time */
	if (last.is_being_deleted || policy_is_running(&last))
		return LOOK_MS;
	found = palloc0_object(DuePolicy);
	found->policy = policy;
	found->window_end = end;
	found->last = last.started_at != 0 ? last.started_at : policy->scheduled_since;
	*due = lappend(*due, found);
	return (moment_plus(now, policy->every) - now) / 1000;
}

/* The result of a look */
typedef struct DatabaseLook
{
	LookTask   *task;
	MemoryContext context;		/* of all that outlives its transaction */
	List	   *due;			/* of DuePolicy */
} DatabaseLook;

/* By owner, and of an owner by the last run. */
static int
compare_owners(const ListCell *a, const ListCell *b)
{
	const DuePolicy *due1 = lfirst(a);
	const DuePolicy *due2 = lfirst(b);

	if (due1->policy->owner != due2->policy->owner)
		return due1->policy->owner < due2->policy->owner ? -1 : 1;
	return (due1->last > due2->last) - (due1->last < due2->last);
}

static int
compare_turns(const ListCell *a, const ListCell *b)
{
	const DuePolicy *due1 = lfirst(a);
	const DuePolicy *due2 = lfirst(b);

	if (due1->turn != due2->turn)
		return due1->turn < due2->turn ? -1 : 1;
	return (due1->place > due2->place) - (due1->place < due2->place);
}

/*
 * Put policies that are due into the order in which they are carried out: one of each owner, then
 * another of each, so that no role's many policies keep the others' waiting.  Owners come in the
 * order of their OIDs, as in a ring, behind the one who was the last in the look before.  Not in that
 * of runs, which a role deletes with its policies.  Of an owner the policy comes first whose last run
 * is the oldest.
 */
static void
order_due(List *due, Oid last_owner)
{
	const DuePolicy *before = NULL;

	list_sort(due, compare_owners);
	foreach_ptr(DuePolicy, policy, due)
	{
		/* modulo 2^32 */
		policy->place = policy->policy->owner - last_owner - 1;
		if (before != NULL && before->policy->owner == policy->policy->owner)
			policy->turn = before->turn + 1;
		before = policy;
	}
	list_sort(due, compare_turns);
}

/* Find the policies that are due. */
static void
find_due(void *arg)
{
	DatabaseLook *look = arg;
	LookTask   *task = look->task;
	TimestampTz now;
	List	   *policies;

	task->next = LOOK_MS;
	if (!extension_installed())
		return;
	(void) policy_lock_table(true, false);
	(void) NewGUCNestLevel();	/* up to the end of the transaction */
	settings_begin_as(InvalidOid);
	now = GetCurrentTimestamp();
	MemoryContextSwitchTo(look->context);
	policies = policies_read(NULL, false);
	foreach_ptr(const Policy, policy, policies)
	{
		if (policy->enabled && policy->every != NULL && OidIsValid(policy->owner))
			task->next = Min(task->next, look_at_policy(policy, now, &look->due));
	}
	order_due(look->due, task->last_owner);
}

/* Exit callback: the lock on the extension is the session's. */
static void
release_at_exit(int code, Datum arg)
{
	AbortOutOfAnyTransaction();
	extension_release();
}

/* Look into the database, carry out the policies that are due, and set the answer. */
static void
look_into_database(void *arg)
{
	LookTask   *task = arg;
	DatabaseLook found = {.task = task,.context = CurrentMemoryContext};
	double		end;
	ErrorData  *error = NULL;

	worker_connect_as(task->database, BOOTSTRAP_SUPERUSERID);
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	before_shmem_exit(release_at_exit, (Datum) 0);
	end = clock_seconds() + LOOK_LASTS_S;
	if (task->sample)
		error = errors_catch_in_transaction(take_sample, NULL);
	if (error != NULL)
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not take a sample in database \"%s\": %s",
						NameStr(task->name), error->message)));
	error = errors_catch_in_transaction(find_due, &found);
	task->failed = error != NULL;
	if (error != NULL)
	{
		task->next = LOOK_MS;
		/* once, up to the next look that succeeds */
		ereport(task->failed_before ? DEBUG1 : LOG,
				(errmsg("could not look into database \"%s\": %s", NameStr(task->name), error->message),
				 errors_repeat(error)));
		return;
	}
	foreach_ptr(const DuePolicy, due, found.due)
	{
		/* DROP EXTENSION need not wait for the next */
		extension_release();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (!launcher_looks_into(NameStr(task->name)))
			break;

		/*
		 * the next look begins at once, and finds the policies that are due
		 * by then
		 */
		if (clock_seconds() > end)
		{
			task->next = 0;
			break;
		}
		task->last_owner = due->policy->owner;
		tier_run_scheduled(due->policy, due->window_end);
	}
}

void
index_mover_look_main(Datum arg)
{
	LookTask	task;

	channel_carry_out(arg, &task, sizeof(task), look_into_database);
}
