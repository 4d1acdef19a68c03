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
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "errors.h"
#include "own_tables.h"
#include "test_points.h"
#include "tier/tier.h"
#include "tier/tier_private.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(index_mover_scheduler_looks);
PGDLLEXPORT void index_mover_tier_main(Datum arg);
PGDLLEXPORT void index_mover_scheduler_main(Datum arg);

#define LOOK_MS			60000	/* longest time between two looks */
#define SAMPLE_MS		IM_LIMIT("sample-ms", 10 * 60000)	/* ... samples */
#define RESTART_S		60

static bool is_registered = false;	/* by the postmaster, when it started */

/* The arguments of a worker that looks into a database, and its answer */
typedef struct TierWorker
{
	Oid			database;
	NameData	name;			/* of the database */
	dsm_handle	segment;		/* for the answer, which is this struct */
	bool		sample;			/* is due */
	bool		failed_before;	/* the last look */

	/* the answer */
	bool		failed;
	int			next;			/* when to look again, in ms */
} TierWorker;

StaticAssertDecl(sizeof(TierWorker) <= BGW_EXTRALEN, "TierWorker is too large");

/* A database that is looked after; only the scheduler has it */
typedef struct Watched
{
	TierWorker	args;			/* of its workers; name: its own */
	int64		next_look;		/* in ms of the scheduler's clock */
	int64		next_sample;
	BackgroundWorkerHandle *worker; /* NULL = none looks now */
	dsm_segment *answer;		/* of that one, a TierWorker */
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

/* Have the scheduler started; to be called in _PG_init(), after the settings are defined. */
void
tier_scheduler_register(void)
{
	BackgroundWorker worker = {0};

	job_layout_add(sizeof(TierWorker));
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
	Timestamp	result = DatumGetTimestamp(now) - time_now + time;

	if (time <= time_now)
		result += USECS_PER_DAY;
	return DatumGetTimestampTz(DirectFunctionCall1(timestamp_timestamptz,
												   TimestampGetDatum(result)));
}

/*
 * Return when a policy is to run, not before now: its last run began at that moment, 0 =
 * never, and it has a window unless start is -1.  *end: when this closes then; 0 = never.
 * All that by the session's time zone, which is to be the database's, whoever asks.
 */
TimestampTz
tier_next_run(TimestampTz last, const Interval *every, TimeADT window_start, TimeADT window_end,
			  TimestampTz now, TimestampTz *end)
{
	TimestampTz result = now;

	*end = 0;
	if (last != 0 && last <= now)
		result = Max(now, moment_plus(last, every));
	if (window_start < 0)
		return result;
	*end = next_time(result, window_end);
	if (*end > next_time(result, window_start))
	{
		result = next_time(result, window_start);
		*end = next_time(result, window_end);
	}
	return result;
}

/* Return whether the scheduler of this server looks into this database. */
bool
tier_scheduler_looks(void)
{
	const char *here = get_database_name(MyDatabaseId);

	if (!is_registered || RecoveryInProgress() || here == NULL)
		return false;
	foreach_ptr(const char, name, database_names())
	{
		if (strcmp(name, here) == 0)
			return true;
	}
	return false;
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

	policy_run_read(NameStr(policy->name), &last);
	next = tier_next_run(last.started_at, policy->every, policy->window_start,
						 policy->window_end, now, &end);
	if (next > now)
		return (next - now) / 1000 + 1;
	/* one run at a time */
	if (last.is_being_deleted || policy_is_running(&last))
		return LOOK_MS;
	found = palloc_object(DuePolicy);
	found->policy = policy;
	found->window_end = end;
	*due = lappend(*due, found);
	return (moment_plus(now, policy->every) - now) / 1000;
}

/* What a look has found */
typedef struct DatabaseLook
{
	TierWorker *args;
	MemoryContext context;		/* of what outlives its transaction */
	List	   *due;			/* of DuePolicy */
} DatabaseLook;

/* Find the policies that are due. */
static void
find_due(void *arg)
{
	DatabaseLook *look = arg;
	TierWorker *args = look->args;
	TimestampTz now;
	List	   *policies;

	args->next = LOOK_MS;
	if (!extension_installed())
		return;
	(void) policy_lock_table(true, false);
	(void) NewGUCNestLevel();	/* up to the end of the transaction */
	settings_begin_as(InvalidOid);
	now = GetCurrentTimestamp();
	MemoryContextSwitchTo(look->context);
	policies = policies_read(NULL, false);

	/*
	 * each time in another order, so that no role's policies are always the
	 * first
	 */
	for (int i = 0; i < list_length(policies); i++)
	{
		const Policy *policy = list_nth(policies, (i + (uint64) now) % list_length(policies));

		if (policy->enabled && policy->every != NULL && OidIsValid(policy->owner))
			args->next = Min(args->next, look_at_policy(policy, now, &look->due));
	}
}

/* In a worker: look into its database, carry out the policies that are due, and set args->next. */
static void
look_into_database(TierWorker *args)
{
	DatabaseLook found = {.args = args,.context = CurrentMemoryContext};
	ErrorData  *error = NULL;

	if (args->sample)
		error = errors_catch_in_transaction(take_sample, NULL);
	if (error != NULL)
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not take a sample in database \"%s\": %s",
						NameStr(args->name), error->message)));
	error = errors_catch_in_transaction(find_due, &found);
	args->failed = error != NULL;
	if (error != NULL)
	{
		args->next = LOOK_MS;
		/* once, up to the next look that succeeds */
		ereport(args->failed_before ? DEBUG1 : LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not look into database \"%s\": %s", NameStr(args->name), error->message),
				 errors_detail(error),
				 errors_hint(error)));
		return;
	}
	foreach_ptr(const DuePolicy, due, found.due)
		tier_run_scheduled(due->policy, due->window_end);
}

/* Exit callback: the lock on the extension is the session's. */
static void
release_at_exit(int code, Datum arg)
{
	AbortOutOfAnyTransaction();
	extension_release();
}

void
index_mover_tier_main(Datum arg)
{
	TierWorker	args;
	dsm_segment *segment;

	job_check_library();
	memcpy(&args, MyBgworkerEntry->bgw_extra, sizeof(args));
	worker_unblock_signals();
	segment = dsm_attach(args.segment);
	if (segment == NULL)
		proc_exit(0);			/* the scheduler has gone */
	worker_connect_as(args.database, BOOTSTRAP_SUPERUSERID);
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	before_shmem_exit(release_at_exit, (Datum) 0);
	look_into_database(&args);
	memcpy(dsm_segment_address(segment), &args, sizeof(args));
	proc_exit(0);
}

/* Start a worker that looks; NULL if there is no free worker slot. */
static BackgroundWorkerHandle *
start_worker(const TierWorker *args)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	snprintf(worker.bgw_name, BGW_MAXLEN, "index_mover scheduler in %s", NameStr(args->name));
	worker_describe(&worker, "index_mover scheduler", "index_mover_tier_main");
	memcpy(worker.bgw_extra, args, sizeof(TierWorker));
	worker.bgw_notify_pid = MyProcPid;
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
		return handle;
	ereport(LOG,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("%s has to wait for a free background worker slot", worker.bgw_name),
			 errhint("You may need to increase \"max_worker_processes\".")));
	return NULL;
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
	watched->answer = dsm_create(sizeof(TierWorker), DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (watched->answer == NULL)
	{
		ereport(LOG,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not look into database \"%s\": %s", NameStr(args->name),
						"too many dynamic shared memory segments")));
		return;
	}
	/* if its worker dies */
	args->next = LOOK_MS;
	args->failed = args->failed_before;
	memcpy(dsm_segment_address(watched->answer), args, sizeof(TierWorker));
	args->segment = dsm_segment_handle(watched->answer);
	args->sample = now >= watched->next_sample;
	watched->worker = start_worker(args);
	if (watched->worker == NULL)
	{
		dsm_detach(watched->answer);
		watched->answer = NULL;
	}
	else if (args->sample)
		watched->next_sample = now + SAMPLE_MS;
}

/* If the worker that looks has ended, take its answer. */
static void
end_look(Watched *watched, int64 now)
{
	pid_t		pid;
	const TierWorker *answer;

	if (watched->worker == NULL || GetBackgroundWorkerPid(watched->worker, &pid) != BGWH_STOPPED)
		return;
	answer = dsm_segment_address(watched->answer);
	watched->args.failed_before = answer->failed;
	watched->next_look = Min(watched->next_look, now + answer->next);
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
