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

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "errors.h"
#include "own_tables.h"
#include "tier/tier.h"
#include "tier/tier_private.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(index_mover_scheduler_time_zone);
PGDLLEXPORT void index_mover_scheduler_main(Datum arg);
PGDLLEXPORT void index_mover_scheduler_look_main(Datum arg);

#define LOOK_MS			60000	/* longest time between two looks */
#define NEXT_MS			1000	/* until the next policy of a role */
#define RESTART_S		60

static char *scheduler_databases = NULL;
static int	sample_interval = 10;

/* of the postmaster; "" = it has not registered the scheduler when it started */
static char server_time_zone[TZ_STRLEN_MAX + 1];

/* A database that is looked after; only the scheduler has it */
typedef struct Watched
{
	char	   *name;
	dsm_segment *answer;		/* of its workers: an int, ms to the next look */
	int64		next_look;		/* in ms of the scheduler's clock */
	int64		next_sample;
	BackgroundWorkerHandle *worker; /* NULL = none looks now */
	bool		missing;		/* it was said that there is no such database */
} Watched;

/* The arguments of a look */
typedef struct LookExtra
{
	Oid			database;
	NameData	name;			/* of it */
	bool		sample;
	int64		next;			/* in ms; set by the look */
} LookExtra;

/* Return the names of the databases, which the setting's check has accepted. */
static List *
database_names(void)
{
	List	   *result;

	(void) SplitIdentifierString(pstrdup(scheduler_databases), ',', &result);
	return result;
}

/*
 * index_mover.scheduler_time_zone() RETURNS text: the TimeZone that the server started
 * with, which windows count in, unless the database has another; NULL: the scheduler of
 * this server does not look into this database
 */
Datum
index_mover_scheduler_time_zone(PG_FUNCTION_ARGS)
{
	bool		looks = false;

	foreach_ptr(const char, name, database_names())
		looks |= strcmp(name, get_database_name(MyDatabaseId)) == 0;
	if (!looks || server_time_zone[0] == '\0' || RecoveryInProgress())
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(server_time_zone));
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
	strlcpy(server_time_zone, pg_get_timezone_name(session_timezone), sizeof(server_time_zone));
}

/* A look into a database */

static void
take_sample(void *arg)
{
	Interval	retention = {.day = 100};

	(void) DirectFunctionCall1(index_mover_take_index_sample, IntervalPGetDatum(&retention));
}

/*
 * Return for how many s the window of a policy is open still or, below 0, closed;
 * INT_MAX if it has none.  The time zone is the database's.
 */
static int
window_left(const Policy *policy, TimestampTz now)
{
	TimeADT		start = policy->window_start;
	TimeADT		end = policy->window_end;
	TimeADT		time = DatumGetTimeADT(DirectFunctionCall1(timestamptz_time, TimestampTzGetDatum(now)));
	bool		open = start < end ? time >= start && time < end : time >= start || time < end;
	TimeADT		change = open ? end : start;
	int			left = (change - time + (time < change ? 0 : USECS_PER_DAY)) / USECS_PER_SEC;

	return start < 0 ? INT_MAX : open ? left : -left - 1;
}

/* Start a policy if it is due, and return in how many ms to look at it again. */
static int64
look_at_policy(const Policy *policy, TimestampTz now)
{
	const char *name = NameStr(policy->name);
	PolicyRun	run;
	PolicyRun	before;
	TimestampTz due = now;
	char	   *why;
	int			left = window_left(policy, now);

	policy_run_read(name, &before);
	run = before;
	if (run.started_at != 0 && run.started_at <= now)
		due = moment_plus(run.started_at, policy->every);
	if (due > now)
		return (due - now) / 1000 + 1;
	if (left < 0)
		return -left * INT64CONST(1000);
	/* one at a time */
	if (!OidIsValid(policy->owner) || policy_is_running(&run))
		return LOOK_MS;
	/* of a role, too; this look keeps the lock, and its worker waits for that */
	if (!policy_lock(policy->owner, true))
		return NEXT_MS;
	/* who had it may have begun a run */
	policy_run_read(name, &run);
	if (run.started_at != before.started_at)
		return NEXT_MS;
	if (tier_run_start(policy, 0, DSM_HANDLE_INVALID, left < INT_MAX ? now + left * USECS_PER_SEC : 0) == NULL)
	{
		ereport(LOG,
				(errmsg("index_mover policy \"%s\" of database \"%s\" has to wait for a free background worker slot",
						name, get_database_name(MyDatabaseId)),
				 errhint("You may need to increase \"max_worker_processes\".")));
		return LOOK_MS / 4;
	}
	/* first, so that a worker that dies is not started again at once */
	run.failures = policy_failures(&run, &why);
	run.started_at = now;
	run.job = RUN_BEGUN;
	run.message = NULL;
	policy_run_write(name, &run);
	return (moment_plus(now, policy->every) - now) / 1000;
}

/* Take a sample, if it is due, and start the policies that are. */
static void
look(void *arg)
{
	LookExtra  *extra = arg;
	ErrorData  *error;
	TimestampTz now;
	List	   *policies;

	if (!extension_installed())
		return;
	(void) policy_lock_table(true);
	error = extra->sample ? errors_catch(take_sample, NULL) : NULL;
	if (error != NULL)
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not take a sample in database \"%s\": %s",
						NameStr(extra->name), error->message)));
	now = GetCurrentTimestamp();
	policies = policies_read(NULL, true);
	/* none of a role is always the first */
	for (int64 i = now; i < now + list_length(policies); i++)
	{
		const Policy *policy = list_nth(policies, (uint64) i % list_length(policies));

		if (policy->every != NULL)
			extra->next = Min(extra->next, look_at_policy(policy, now));
	}
	commit_locally();
}

void
index_mover_scheduler_look_main(Datum arg)
{
	LookExtra	extra;
	dsm_segment *segment;
	ErrorData  *error;

	memcpy(&extra, MyBgworkerEntry->bgw_extra, sizeof(extra));
	worker_unblock_signals();
	segment = dsm_attach(DatumGetUInt32(arg));
	if (segment == NULL)
		proc_exit(0);			/* the scheduler has gone */
	worker_connect_as(extra.database, BOOTSTRAP_SUPERUSERID);
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	error = errors_catch_in_transaction(look, &extra);
	if (error != NULL)
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("could not look into database \"%s\": %s", NameStr(extra.name), error->message)));
	extension_release();
	*(int *) dsm_segment_address(segment) = error != NULL ? LOOK_MS : (int) Max(extra.next, 1);
	proc_exit(0);
}

/* The scheduler */

/* ms on a clock that is not set back */
static int64
clock_ms(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MILLISEC(now);
}

/* Return the database, if it can be connected to; else say so once. */
static Oid
find_database(Watched *watched)
{
	Oid			result = InvalidOid;

	/* in no database there is neither a system cache nor an index */
	StartTransactionCommand();
	foreach_ptr(HeapTupleData, row, catalog_all(DatabaseRelationId))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(row);

		if (strcmp(NameStr(form->datname), watched->name) == 0 &&
			form->datallowconn && form->datconnlimit != DATCONNLIMIT_INVALID_DB)
			result = form->oid;
	}
	CommitTransactionCommand();
	if (!OidIsValid(result) && !watched->missing)
		ereport(LOG,
				(errmsg("database \"%s\" does not exist, or does not accept connections", watched->name),
				 errdetail("It is named in index_mover.scheduler_databases.")));
	watched->missing = !OidIsValid(result);
	return result;
}

/* Have a worker look into a database. */
static void
start_look(Watched *watched, int64 now)
{
	BackgroundWorker worker = {0};
	LookExtra	extra = {.database = find_database(watched),.next = LOOK_MS};

	watched->next_look = now + LOOK_MS;
	*(int *) dsm_segment_address(watched->answer) = LOOK_MS;	/* if it fails */
	if (!OidIsValid(extra.database))
		return;
	namestrcpy(&extra.name, watched->name);
	extra.sample = sample_interval > 0 && now >= watched->next_sample;
	snprintf(worker.bgw_name, BGW_MAXLEN, "index_mover scheduler in %s", watched->name);
	worker_describe(&worker, "index_mover scheduler", "index_mover_scheduler_look_main");
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(watched->answer));
	memcpy(worker.bgw_extra, &extra, sizeof(extra));
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &watched->worker))
		ereport(LOG,
				(errmsg("index_mover scheduler has to wait for a free background worker slot"),
				 errhint("You may need to increase \"max_worker_processes\".")));
	else if (extra.sample)
		watched->next_sample = now + (int64) sample_interval * 60000;
}

/* Return the databases that the setting names now, a List of Watched; each is due at once. */
static List *
read_databases(void)
{
	static List *all = NIL;		/* that were ever named */
	List	   *result = NIL;

	foreach_ptr(char, name, database_names())
	{
		Watched    *watched = NULL;

		foreach_ptr(Watched, known, all)
		{
			if (strcmp(known->name, name) == 0)
				watched = known;
		}
		if (watched == NULL)
		{
			watched = palloc0_object(Watched);
			watched->name = name;
			/* no resource owner: it lasts as long as the process */
			watched->answer = dsm_create(sizeof(int), 0);
			all = lappend(all, watched);
		}
		watched->next_look = 0;
		result = list_append_unique_ptr(result, watched);
	}
	return result;
}

void
index_mover_scheduler_main(Datum arg)
{
	List	   *databases;

	worker_unblock_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	databases = read_databases();

	for (;;)
	{
		int64		now = clock_ms();
		int64		next = now + LOOK_MS;

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			databases = read_databases();
		}
		foreach_ptr(Watched, watched, databases)
		{
			pid_t		pid;

			if (watched->worker != NULL && GetBackgroundWorkerPid(watched->worker, &pid) == BGWH_STOPPED)
			{
				pfree(watched->worker);
				watched->worker = NULL;
				watched->next_look = Min(watched->next_look, now + *(int *) dsm_segment_address(watched->answer));
			}
			else if (watched->worker == NULL && now >= watched->next_look)
				start_look(watched, now);
			if (watched->worker == NULL)
				next = Min(next, watched->next_look);
		}
		latch_nap(Max(next - clock_ms(), 1), "IndexMoverScheduler");
		CHECK_FOR_INTERRUPTS();
	}
}
