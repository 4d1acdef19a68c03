/*-------------------------------------------------------------------------
 *
 * tier_scheduler.c
 *	  Samples, and policies that are due, without anybody who calls.
 *
 * The postmaster starts one scheduler when recovery has ended: at a start, after a
 * crash, on a standby that is promoted.  It is connected to no database, so that
 * it is not in the way of DROP DATABASE, or CREATE DATABASE .. TEMPLATE, and looks
 * into each by a worker that takes a sample, starts the policies that are due, and
 * is gone, usually after some milliseconds.  This takes locks on the extension and
 * its tables only, and waits for one for 10 s at most.
 *
 * Tricky: the clock may be set back.  Looks go by a clock that cannot be, and a
 * last run in the future counts as none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "postmaster/interrupt.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "errors.h"
#include "own_tables.h"
#include "tier/tier.h"
#include "tier/tier_private.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(index_mover_next_run);
PGDLLEXPORT void index_mover_scheduler_main(Datum arg);

#define LOOK_MS			60000	/* longest time between two looks */
#define NEXT_MS			1000	/* until the next policy of a role */
#define RESTART_S		60

static char *scheduler_databases = NULL;
static int	sample_interval = 10;

static bool is_registered = false;	/* by the postmaster, when it started */

/* A database that is looked after; only the scheduler has it */
typedef struct Watched
{
	TierWorker	args;			/* of its workers; name: its own */
	int64		next_look;		/* in ms of the scheduler's clock */
	int64		next_sample;
	BackgroundWorkerHandle *worker; /* NULL = none looks now */
	dsm_segment *answer;		/* of that one, an int: args.next */
	bool		missing;		/* it was said that there is no such database */
} Watched;

/* Return the names of the databases, which the setting's check has accepted. */
static List *
database_names(void)
{
	List	   *result;

	(void) SplitIdentifierString(pstrdup(scheduler_databases), ',', &result);
	return result;
}

/* Define the settings, and have the scheduler started; to be called in _PG_init(). */
void
tier_scheduler_register(void)
{
	BackgroundWorker worker = {0};

	DefineCustomStringVariable("index_mover.scheduler_databases",
							   "Databases in which samples are taken, and tier policies carried out that are due.",
							   "The library must be preloaded. If the list is empty when the server starts, a change needs a restart.",
							   &scheduler_databases, "", PGC_SIGHUP, GUC_LIST_INPUT,
							   settings_check_list, NULL, NULL);
	DefineCustomIntVariable("index_mover.sample_interval",
							"Time between two samples of the scheduler.",
							"0 takes none.",
							&sample_interval, 10, 0, INT_MAX / 60000, PGC_SIGHUP, GUC_UNIT_MIN,
							NULL, NULL, NULL);
	if (!process_shared_preload_libraries_in_progress || scheduler_databases[0] == '\0')
		return;
	worker_describe(&worker, "index_mover scheduler", "index_mover_scheduler_main");
	worker.bgw_restart_time = RESTART_S;
	RegisterBackgroundWorker(&worker);
	is_registered = true;
}

/* When a policy is due */

/* Return the first moment after this one at which it is a time of day. */
static TimestampTz
next_time(TimestampTz after, TimeADT time)
{
	Datum		now = DirectFunctionCall1(timestamptz_timestamp, TimestampTzGetDatum(after));
	TimeADT		time_now = DatumGetTimeADT(DirectFunctionCall1(timestamp_time, now));
	Timestamp	result = DatumGetTimestamp(now) - time_now + time + (time > time_now ? 0 : USECS_PER_DAY);

	return DatumGetTimestampTz(DirectFunctionCall1(timestamp_timestamptz, TimestampGetDatum(result)));
}

/*
 * Return when a policy is to run, not before now: its last run began at that moment, 0 =
 * never, and it has a window unless start is -1.  *end: when this closes then; 0 = never.
 * All that by the session's time zone, which is to be the database's, whoever asks.
 */
static TimestampTz
next_run(TimestampTz last, const Interval *every, TimeADT window_start, TimeADT window_end,
		 TimestampTz now, TimestampTz *end)
{
	TimestampTz result = now;

	if (last != 0 && last <= now)
		result = Max(now, moment_plus(last, every));
	*end = window_start < 0 ? 0 : next_time(result, window_end);
	if (window_start >= 0 && *end > next_time(result, window_start))
	{
		result = next_time(result, window_start);
		*end = next_time(result, window_end);
	}
	return result;
}

/*
 * index_mover.next_run(started_at timestamptz, every interval, window_start time,
 * window_end time) RETURNS timestamptz: when the next run of such a policy begins at the
 * earliest; NULL: the scheduler of this server does not look into this database
 */
Datum
index_mover_next_run(PG_FUNCTION_ARGS)
{
	bool		looks = false;
	TimestampTz result;
	TimestampTz end;
	int			nestlevel;

	foreach_ptr(const char, name, database_names())
		looks |= strcmp(name, get_database_name(MyDatabaseId)) == 0;
	if (!looks || !is_registered || RecoveryInProgress() || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	nestlevel = NewGUCNestLevel();
	settings_begin_as(InvalidOid);
	result = next_run(PG_ARGISNULL(0) ? 0 : PG_GETARG_TIMESTAMPTZ(0), PG_GETARG_INTERVAL_P(1),
					  PG_ARGISNULL(2) ? -1 : PG_GETARG_TIMEADT(2), PG_ARGISNULL(3) ? -1 : PG_GETARG_TIMEADT(3),
					  GetCurrentTransactionStartTimestamp(), &end);
	AtEOXact_GUC(false, nestlevel);
	PG_RETURN_TIMESTAMPTZ(result);
}

/*
 * Ask for a worker.  If there is no free worker slot, ERROR or, with a lower elevel, NULL.
 * For a run of the scheduler it has to be committed that it has begun.
 */
BackgroundWorkerHandle *
tier_worker_start(const TierWorker *args, int elevel)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	snprintf(worker.bgw_name, BGW_MAXLEN, args->looks ? "index_mover scheduler in %s" : "index_mover policy %s",
			 NameStr(args->name));
	worker_describe(&worker, args->looks ? "index_mover scheduler" : "index_mover policy", "index_mover_tier_main");
	memcpy(worker.bgw_extra, args, sizeof(TierWorker));
	worker.bgw_notify_pid = MyProcPid;
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
		return handle;
	ereport(elevel,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 elevel >= ERROR ? errmsg("could not register background process") :
			 errmsg("%s has to wait for a free background worker slot", worker.bgw_name),
			 errhint("You may need to increase \"max_worker_processes\".")));
	return NULL;
}

/* A look into a database */

static void
take_sample(void *arg)
{
	Interval	retention = {.day = 100};

	(void) DirectFunctionCall1(index_mover_take_index_sample, IntervalPGetDatum(&retention));
}

/* Start a policy if it is due, and return in how many ms to look at it again. */
static int64
look_at_policy(const Policy *policy, TimestampTz now)
{
	const char *name = NameStr(policy->name);
	TierWorker	args = {.database = MyDatabaseId,.role = policy->owner,.name = policy->name};
	PolicyRun	run;
	PolicyRun	before;
	TimestampTz next;

	policy_run_read(name, &before);
	next = next_run(before.started_at, policy->every, policy->window_start, policy->window_end, now, &args.window_end);
	if (next > now)
		return (next - now) / 1000 + 1;
	/* one at a time */
	if (!OidIsValid(policy->owner) || before.is_being_deleted || policy_is_running(&before))
		return LOOK_MS;
	/* of a role, too; this look keeps the lock, and its worker waits for that */
	if (!policy_lock(policy->owner, true))
		return NEXT_MS;
	/* the session that had it may have begun a run */
	policy_run_read(name, &run);
	if (run.started_at != before.started_at)
		return NEXT_MS;
	if (tier_worker_start(&args, LOG) == NULL)
		return LOOK_MS / 4;
	/* first, so that a worker that dies is not started again at once */
	policy_run_record(name, RUN_BEGUN, NULL);
	return (moment_plus(now, policy->every) - now) / 1000;
}

/* Take a sample, if it is due, and start the policies that are. */
static void
look(void *arg)
{
	TierWorker *args = arg;
	ErrorData  *error;
	TimestampTz now;
	List	   *policies;

	args->next = LOOK_MS;
	if (!extension_installed())
		return;
	(void) policy_lock_table(true, false);
	error = args->sample ? errors_catch(take_sample, NULL) : NULL;
	if (error != NULL)
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not take a sample in database \"%s\": %s",
						NameStr(args->name), error->message)));
	(void) NewGUCNestLevel();	/* up to the end of the transaction */
	settings_begin_as(InvalidOid);
	now = GetCurrentTimestamp();
	policies = policies_read(NULL, true);
	/* none of a role is always the first */
	for (int64 i = now; i < now + list_length(policies); i++)
	{
		const Policy *policy = list_nth(policies, (uint64) i % list_length(policies));

		if (policy->enabled && policy->every != NULL)
			args->next = Min(args->next, look_at_policy(policy, now));
	}
}

/* In a worker: look into its database, and set args->next. */
void
tier_look(TierWorker *args)
{
	ErrorData  *error = errors_catch_in_transaction(look, args);

	if (error == NULL)
		return;
	args->next = LOOK_MS;
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("could not look into database \"%s\": %s", NameStr(args->name), error->message)));
}

/* The scheduler */

/*
 * Have a worker look into a database; if it cannot be connected to, say so once.  The
 * segment for the answer is there while the worker is: the server has few segments,
 * and scheduler_databases can name any number of databases, one after the other.
 */
static void
start_look(Watched *watched, int64 now)
{
	TierWorker *args = &watched->args;
	List	   *found = worker_databases(NameStr(args->name));

	Assert(watched->worker == NULL && watched->answer == NULL);
	watched->next_look = now + LOOK_MS;
	if (found == NIL && !watched->missing)
		ereport(LOG,
				(errmsg("database \"%s\" does not exist, or does not accept connections", NameStr(args->name)),
				 errdetail("It is named in index_mover.scheduler_databases.")));
	watched->missing = found == NIL;
	if (found == NIL)
		return;
	args->database = linitial_oid(found);
	list_free(found);
	/* no resource owner: it lasts until end_look() */
	watched->answer = dsm_create(sizeof(int), DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (watched->answer == NULL)
	{
		ereport(LOG,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not look into database \"%s\": %s", NameStr(args->name),
						"too many dynamic shared memory segments")));
		return;
	}
	*(int *) dsm_segment_address(watched->answer) = LOOK_MS;	/* if it fails */
	args->segment = dsm_segment_handle(watched->answer);
	args->sample = sample_interval > 0 && now >= watched->next_sample;
	watched->worker = tier_worker_start(args, LOG);
	if (watched->worker == NULL)
	{
		dsm_detach(watched->answer);
		watched->answer = NULL;
	}
	else if (args->sample)
		watched->next_sample = now + (int64) sample_interval * 60000;
}

/* If the worker that looks has ended, take its answer. */
static void
end_look(Watched *watched, int64 now)
{
	pid_t		pid;

	if (watched->worker == NULL || GetBackgroundWorkerPid(watched->worker, &pid) != BGWH_STOPPED)
		return;
	watched->next_look = Min(watched->next_look, now + *(int *) dsm_segment_address(watched->answer));
	dsm_detach(watched->answer);
	watched->answer = NULL;
	pfree(watched->worker);
	watched->worker = NULL;
}

static Watched *
find_watched(List *all, const char *name)
{
	foreach_ptr(Watched, watched, all)
	{
		if (strcmp(NameStr(watched->args.name), name) == 0)
			return watched;
	}
	return NULL;
}

/*
 * Return what is known of the databases that the setting names, which are to be looked
 * into at once.  A database that it does not name any more is kept until the worker
 * that looks into it has ended.
 */
static List *
watch_databases(List *before)
{
	static MemoryContext context = NULL;
	MemoryContext oldcontext;
	List	   *names;
	List	   *result = NIL;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "index_mover scheduler names", ALLOCSET_SMALL_SIZES);
	MemoryContextReset(context);
	oldcontext = MemoryContextSwitchTo(context);
	names = database_names();
	MemoryContextSwitchTo(oldcontext);

	foreach_ptr(const char, name, names)
	{
		Watched    *watched = find_watched(before, name);

		/* the list may have a name twice */
		if (find_watched(result, name) != NULL)
			continue;
		if (watched == NULL)
		{
			watched = palloc0_object(Watched);
			watched->args.role = BOOTSTRAP_SUPERUSERID;
			watched->args.looks = true;
			namestrcpy(&watched->args.name, name);
		}
		watched->next_look = 0;
		result = lappend(result, watched);
	}
	foreach_ptr(Watched, watched, before)
	{
		if (list_member_ptr(result, watched))
			continue;
		watched->next_look = PG_INT64_MAX;
		if (watched->worker != NULL)
			result = lappend(result, watched);
		else
			pfree(watched);
	}
	list_free(before);
	return result;
}

void
index_mover_scheduler_main(Datum arg)
{
	List	   *databases;		/* Watched */

	worker_unblock_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	MemoryContextSwitchTo(TopMemoryContext);
	databases = watch_databases(NIL);

	for (;;)
	{
		int64		now = clock_seconds() * 1000;
		int64		next = now + LOOK_MS;

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			databases = watch_databases(databases);
		}
		foreach_ptr(Watched, watched, databases)
		{
			end_look(watched, now);
			if (watched->worker == NULL && now >= watched->next_look)
				start_look(watched, now);
			if (watched->worker == NULL)
				next = Min(next, watched->next_look);
		}
		latch_nap(Max(next - clock_seconds() * 1000, 1), "IndexMoverScheduler");
		CHECK_FOR_INTERRUPTS();
	}
}
