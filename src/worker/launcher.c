/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The process that is there as long as the server, if the library is preloaded.
 *
 * As the launcher of autovacuum, it has a list of visits, due at some moment, and starts a short
 * worker for each that is due:
 *
 *	- The watch looks at the devices of all tablespaces (device_watch.c), on a standby, too.  There
 *	  is nothing else before the promotion.
 *	- A cleanup, of a database, removes leftovers of moves that a shutdown, a crash or a promotion has
 *	  interrupted, and looks for indexes that are lost (janitor.c).  Each round visits all
 *	  databases, one after the other, because worker slots are scarce.  A round begins when
 *	  the server has started, once a day, and when a directory of a tablespace that was
 *	  missing, maybe on a file system that is mounted late, has come.  It begins and ends
 *	  with an answer of the watch: so while a device hangs, no cleanup begins, but the
 *	  launcher goes on.
 *	- An emptying, of a database, empties the files of lost indexes (lost_guard.c).  Whenever
 *	  something new is lost, all databases are due, one after the other: no cleanup is waited
 *	  for, which can read for hours, nor a watch or an emptying that takes long.  Where files are
 *	  left, as other sessions had locked them, it comes again; and, each minute, into databases
 *	  made since.
 *	- A resumption, of a job that the end of the server has ended, has its rest go on
 *	  (call/resume_at_start.c); with index_mover.resume_at_start, once, one after the other.
 *	- A look, into each database that index_mover.scheduler_databases names, takes a
 *	  sample, and starts the policies that are due (tier_scheduler.c).
 *
 * The launcher is connected to no database, so that it is not in the way of DROP DATABASE,
 * or CREATE DATABASE .. TEMPLATE.  After a crash, the postmaster starts a worker again only
 * if it was alive: so it sleeps, and does not end.
 *
 * Where a device is not known, or lost, the round looks at all files; if all are whole in every
 * database, the matter is settled.
 *
 * Tricky: all times of visits go by a clock that cannot be set back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "channel.h"
#include "compat.h"
#include "errors.h"
#include "evidence.h"
#include "own_tables.h"
#include "test_points.h"
#include "worker/launcher_private.h"

#define RESTART_S		60
/* on a standby: between two looks whether recovery has ended; and at the devices, which take a process */
#define STANDBY_MS		1000
#define STANDBY_LOOK_MS	10000
/* from the start of a watch to emptyings: a device that hangs holds up the watch, and no such worker */
#define WATCH_MS		1000
/* an emptying that takes longer keeps no others waiting */
#define SLOW_EMPTYING_MS	10000
/*
 * Looks and cleanups may be why the server crashes.  If it crashes so soon after its start, they wait
 * so long; a worker that is in the postmaster's list would wait for its bgw_restart_time.
 */
#define SOON_CRASH_MS	20000
#define AFTER_CRASH_MS	10000
/* while files of lost indexes of a database are not empty */
#define EMPTY_AGAIN_MS	IM_LIMIT("empty-again", 60 * 1000)
#define SAMPLE_MS		IM_LIMIT("sample-ms", 10 * 60000)	/* between two samples */

static bool is_preloaded = false;

/* Of the postmaster, which its children have from it */
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
static int64 started_at = 0;	/* clock_ms() of the last start, or restart
								 * after a crash; 0 = none yet */
static bool has_crashed_soon = false;	/* the start before the last */

PGDLLEXPORT void index_mover_launcher_main(Datum arg);

/*
 * The losses for which emptyings of all databases were due last, and until when later losses wait.  The
 * wait is doubled each time that others have come by its end.
 */
static uint32 losses_met = 0;	/* evidence_losses() */
static int64 losses_met_until = 0;
static int64 losses_met_ms = RETRY_MS;

/* when emptyings of databases are due next whose lost files are not known to be empty */
static int64 unmet_due = 0;

static int64
clock_ms(void)
{
	return (int64) (clock_seconds() * 1000);
}

/* The server starts, or starts again after a crash. */
static void
note_start(void)
{
	int64		now = clock_ms();

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	has_crashed_soon = started_at != 0 && now < started_at + SOON_CRASH_MS;
	started_at = now;
}

/* Have the launcher started; to be called from _PG_init(), after settings_define(). */
void
launcher_register(void)
{
	BackgroundWorker worker = {0};

	channel_layout_add(sizeof(LookTask));
	channel_layout_add(sizeof(WatchTask));
	channel_layout_add(sizeof(ResumeTask));
	channel_layout_add(sizeof(EmptyTask));
	/* pg_upgrade restores databases that have no clients yet */
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	is_preloaded = true;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = note_start;
	channel_describe(&worker, "index_mover launcher", "index_mover_launcher_main");
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = RESTART_S;
	RegisterBackgroundWorker(&worker);
}

/* Sleep until the latch is set, or the time is over. */
static void
launcher_nap(int64 ms)
{
	Assert(!IsTransactionState());
	latch_nap(Max(ms, 1), "IndexMoverLauncher");
	CHECK_FOR_INTERRUPTS();
}

/* Read the configuration again, if this was asked for.  Returns whether it was. */
static bool
reload_configuration(void)
{
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}

/* Return the name of a database for a message; its OID in digits if it was dropped. */
static const char *
database_text(Oid database)
{
	MemoryContext context = CurrentMemoryContext;
	const char *name;
	char	   *result;

	StartTransactionCommand();
	name = get_database_name(database);
	if (name != NULL)
		result = MemoryContextStrdup(context, name);
	else
		result = MemoryContextStrdup(context, psprintf("%u", database));
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

/* ---- the watch ---- */

/* Start a look at the devices; false if that is not possible now. */
static bool
start_watch(Visit *visit, int64 now)
{
	BackgroundWorker worker = {0};

	visit->due = now + RETRY_MS;
	channel_describe(&worker, "index_mover device watch", "index_mover_watch_main");
	/* on a standby, too */
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	visit->worker = channel_start_task(&worker, &visit->watch, sizeof(WatchTask), &visit->answer);
	/* the round waits for this look */
	if (visit->worker == NULL && !visit->told && !RecoveryInProgress())
		job_launch_warn();
	if (visit->worker == NULL && !visit->told)
		ereport(LOG,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("the look at the devices of tablespaces has to wait for a free background worker slot"),
				 errhint("You may need to increase \"max_worker_processes\".")));
	visit->told = visit->worker == NULL;
	if (visit->worker == NULL)
		return false;
	visit->due = NOT_DUE;
	return true;
}

/* Take the answer of the watch, unless it was asked again meanwhile. */
static void
end_watch(Visit *visit, int64 now)
{
	WatchTask	answer = *(const WatchTask *) dsm_segment_address(visit->answer);

	launcher_forget_worker(visit);
	if (visit->due != NOT_DUE)
		return;
	if (!answer.done)
	{
		visit->due = now + RESTART_S * 1000;
		return;
	}
	launcher_round_answer(answer.missing);
	evidence_note_running();
}

/* The launcher ends: so does its watch, as soon as no device keeps it. */
static void
stop_watch(int code, Datum arg)
{
	if (launcher_watch->worker != NULL)
		TerminateBackgroundWorker(launcher_watch->worker);
}

/* ---- looks ---- */

/* Return the names of the databases, which the setting's check has accepted. */
static List *
database_names(void)
{
	List	   *result;

	(void) SplitIdentifierString(pstrdup(scheduler_databases), ',', &result);
	return result;
}

/* Return whether the launcher of this server looks into the database of this name. */
bool
launcher_looks_into(const char *database)
{
	if (!is_preloaded || RecoveryInProgress())
		return false;
	foreach_ptr(const char, name, database_names())
	{
		if (strcmp(name, database) == 0)
			return true;
	}
	return false;
}

static Visit *
find_look(const char *name)
{
	foreach_ptr(Visit, visit, launcher_visits)
	{
		if (visit->kind == VISIT_LOOK && strcmp(NameStr(visit->task.name), name) == 0)
			return visit;
	}
	return NULL;
}

/*
 * Have a look into each database that the setting names, at once but for launcher_first_visits.  The look
 * into one that it does not name any more stays until its worker has ended.
 */
static void
schedule_looks(void)
{
	foreach_ptr(Visit, visit, launcher_visits)
	{
		if (visit->kind == VISIT_LOOK)
			visit->due = NOT_DUE;
	}
	/* the list may have a name twice */
	foreach_ptr(const char, name, database_names())
	{
		Visit	   *visit = find_look(name);

		if (visit == NULL)
		{
			visit = launcher_add_visit(VISIT_LOOK, 0);
			namestrcpy(&visit->task.name, name);
		}
		visit->due = launcher_first_visits;
	}
}

/* Ask the postmaster for a worker that looks; false if there is no free segment or worker slot. */
static bool
start_look_worker(Visit *visit)
{
	LookTask   *task = &visit->task;
	BackgroundWorker worker = {0};

	snprintf(worker.bgw_name, BGW_MAXLEN, "index_mover scheduler in %s", NameStr(task->name));
	channel_describe(&worker, "index_mover scheduler", "index_mover_look_main");
	visit->worker = channel_start_task(&worker, task, sizeof(LookTask), &visit->answer);
	if (visit->answer == NULL)
		ereport(LOG,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not look into database \"%s\": too many dynamic shared memory segments",
						NameStr(task->name))));
	else if (visit->worker == NULL)
		ereport(LOG,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("the look into database \"%s\" has to wait for a free background worker slot",
						NameStr(task->name)),
				 errhint("You may need to increase \"max_worker_processes\".")));
	return visit->worker != NULL;
}

/*
 * Start a look; false if that is not possible now.  If the database cannot be connected to, say
 * so once.  The segment for the answer is there while the worker is: the server has few
 * segments, and scheduler_databases can name any number of databases, one after the other.
 */
static bool
start_look(Visit *visit, int64 now)
{
	LookTask   *task = &visit->task;
	List	   *found = launcher_list_databases(NameStr(task->name), false);

	visit->due = now + LOOK_MS;
	if (found == NIL && !visit->is_missing)
		ereport(LOG,
				(errmsg("database \"%s\" does not exist, or does not accept connections", NameStr(task->name)),
				 errdetail("It is named in index_mover.scheduler_databases.")));
	visit->is_missing = found == NIL;
	if (found == NIL)
		return false;
	task->database = linitial_oid(found);
	Assert(visit->answer == NULL);
	/* if its worker dies */
	task->next = LOOK_MS;
	task->failed = task->failed_before;
	task->sample = now >= visit->next_sample;
	if (!start_look_worker(visit))
		return false;
	if (task->sample)
		visit->next_sample = now + SAMPLE_MS;
	return true;
}

/* Take the answer of a look. */
static void
end_look(Visit *visit, int64 now)
{
	const LookTask *answer = dsm_segment_address(visit->answer);

	visit->task.failed_before = answer->failed;
	visit->task.last_owner = answer->last_owner;
	/* a reload of the configuration, or a name that is gone, has set it */
	if (visit->due != NOT_DUE)
		visit->due = Min(visit->due, now + answer->next);
	launcher_forget_worker(visit);
}

/* ---- emptyings ---- */

/* Return the emptying of a database, or NULL. */
static Visit *
find_emptying(Oid database)
{
	foreach_ptr(Visit, visit, launcher_visits)
	{
		if (visit->kind == VISIT_EMPTY && visit->empty.database == database)
			return visit;
	}
	return NULL;
}

/*
 * Have the lost files of a database emptied at once; one that is at work may have come too early.  One that
 * waits keeps its turn: else it would be behind one that is due again and again.
 */
static void
schedule_emptying(Oid database, int64 now)
{
	Visit	   *found = find_emptying(database);

	if (found == NULL)
		found = launcher_add_visit(VISIT_EMPTY, now);
	found->empty.database = database;
	found->empty.is_again = false;
	/* before cleanups that are due now: slots of workers are scarce */
	found->due = Min(found->due, now - 1);
}

/*
 * Return until when an emptying could be the first that looks at a device, and would hang with it, in a
 * database that could not be dropped then.
 */
static int64
watch_is_new_until(int64 now)
{
	if (launcher_watch->context != NULL)
		return launcher_watch->began + WATCH_MS;
	/* it is about to begin */
	return launcher_watch->due <= now ? now + WATCH_MS : now;
}

/*
 * Have the lost files of databases emptied: of all if something new is lost, else, each minute, of those of
 * which it is not known that all are empty, as copies made since.  Databases that accept no connections have
 * some, too, and cannot be copied before.  Returns when to do so again: of a device that cannot be marked, each
 * look finds the loss once more.
 */
static int64
schedule_emptyings(int64 now)
{
	uint32		losses;
	bool		is_new;
	int64		due;

	evidence_serve_again();
	losses = evidence_losses();
	is_new = losses != losses_met;
	due = is_new ? losses_met_until : unmet_due;
	if (losses == 0)
		return NOT_DUE;
	due = Max(due, watch_is_new_until(now));
	if (now < due)
		return due;
	if (is_new)
	{
		losses_met = losses;
		if (now < losses_met_until + RETRY_MS)
			losses_met_ms = Min(losses_met_ms * 2, EMPTY_AGAIN_MS);
		else
			losses_met_ms = RETRY_MS;
		losses_met_until = now + losses_met_ms;
	}
	unmet_due = now + EMPTY_AGAIN_MS;
	foreach_oid(database, launcher_list_databases(NULL, true))
	{
		List	   *indexes;

		if (!is_new && find_emptying(database) != NULL)
			continue;
		if (is_new || !evidence_is_met(database, losses, &indexes))
			schedule_emptying(database, now);
	}
	return unmet_due;
}

/* Put all emptyings off, as no worker is free for this one, and say so once. */
static void
await_worker_for_emptying(Visit *visit, int64 now)
{
	if (!visit->told)
		ereport(LOG,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("the files of lost indexes of database \"%s\" are not emptied before there is a free background worker slot",
						database_text(visit->empty.database)),
				 errhint("You may need to increase \"max_worker_processes\".")));
	visit->told = true;
	foreach_ptr(Visit, other, launcher_visits)
	{
		if (other->kind == VISIT_EMPTY && other->due < now + RETRY_MS)
			other->due = now + RETRY_MS;
	}
}

/* Start an emptying; false if no worker is free, or never again, as the database was dropped. */
static bool
start_emptying(Visit *visit, int64 now)
{
	EmptyTask  *task = &visit->empty;
	BackgroundWorker worker = {0};

	if (!list_member_oid(launcher_list_databases(NULL, true), task->database))
	{
		visit->due = NOT_DUE;
		return false;
	}
	channel_describe(&worker, "index_mover emptying", "index_mover_empty_main");
	visit->worker = channel_start_task(&worker, task, sizeof(EmptyTask), &visit->answer);
	if (visit->worker == NULL)
	{
		await_worker_for_emptying(visit, now);
		return false;
	}
	visit->due = NOT_DUE;
	visit->told = false;
	return true;
}

/* Take the answer of an emptying. */
static void
end_emptying(Visit *visit, int64 now)
{
	EmptyTask	answer = *(const EmptyTask *) dsm_segment_address(visit->answer);

	launcher_forget_worker(visit);
	/* something was lost meanwhile */
	if (visit->due != NOT_DUE)
		return;
	if (answer.done)
		visit->empty.is_again = true;
	if (!answer.done || answer.left_files)
		visit->due = now + EMPTY_AGAIN_MS;
}

/* ---- resumptions ---- */

/* Have the jobs go on that the end of the server has ended; or forget them. */
static void
schedule_resumptions(int64 now)
{
	foreach_ptr(const RunningJob, job, running_jobs_of_before())
	{
		if (resume_at_start)
			launcher_add_visit(VISIT_RESUME, now)->resume.job = *job;
		else
			running_jobs_forget(job, "index_mover.resume_at_start is off.");
	}
}

/* Return why a job cannot go on, or NULL, and set whether it would get a worker now. */
static const char *
why_not_resume(const RunningJob *job, bool *has_room)
{
	MemoryContext context = CurrentMemoryContext;
	bool		has_role;

	/* it can be switched off since the start */
	if (!resume_at_start)
		return "index_mover.resume_at_start is off.";
	if (!list_member_oid(launcher_list_databases(NULL, false), job->database))
		return "Its database does not exist, or does not accept connections.";
	StartTransactionCommand();
	has_role = SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(job->role));
	*has_room = has_role && job_has_room(job->role);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return has_role ? NULL : "Its role does not exist.";
}

/* Note that a job does not go on yet, nor a later one of its role. */
static void
put_off_resumption(Visit *visit, int64 now)
{
	visit->due = now + RETRY_MS;
	foreach_ptr(Visit, other, launcher_visits)
	{
		if (other->kind == VISIT_RESUME && other->due < visit->due &&
			other->resume.job.database == visit->resume.job.database &&
			other->resume.job.role == visit->resume.job.role)
			other->due = visit->due;
	}
}

/* Put a job off, as no worker is free, and say so once. */
static void
await_worker(Visit *visit, int64 now)
{
	put_off_resumption(visit, now);
	if (!visit->told)
		ereport(LOG,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("job " INT64_FORMAT " of database \"%s\" has to wait for a free background worker slot before it goes on",
						visit->resume.job.job, database_text(visit->resume.job.database)),
				 errhint("You may need to increase \"max_worker_processes\".")));
	visit->told = true;
}

/* Have a job go on; false if that is not possible now, or never: then the visit is not due any more. */
static bool
start_resumption(Visit *visit, int64 now)
{
	ResumeTask *task = &visit->resume;
	const RunningJob *job = &task->job;
	bool		has_room = false;
	const char *why_not;
	BackgroundWorker worker = {0};

	why_not = why_not_resume(job, &has_room);
	if (why_not != NULL)
	{
		visit->due = NOT_DUE;
		running_jobs_forget(job, why_not);
		return false;
	}
	channel_describe(&worker, RESUMPTION_TYPE, "index_mover_resume_main");
	if (has_room)
		visit->worker = channel_start_task(&worker, task, sizeof(ResumeTask), &visit->answer);
	if (visit->worker == NULL)
		await_worker(visit, now);
	else
		visit->due = NOT_DUE;
	return visit->worker != NULL;
}

/* Take the answer of a resumption. */
static void
end_resumption(Visit *visit, int64 now)
{
	ResumeTask	answer = *(const ResumeTask *) dsm_segment_address(visit->answer);

	launcher_forget_worker(visit);
	if (answer.end == RESUME_WAITS)
		await_worker(visit, now);
	else if (answer.end == RESUME_HINDERED && visit->resume.tries < RESUME_TRIES)
	{
		visit->resume.tries++;
		put_off_resumption(visit, now);
	}
	else if (answer.end == RESUME_HINDERED)
		running_jobs_forget(&answer.job, "The worker that was to resume it has ended early.");
}

/* ---- visits of all kinds ---- */

typedef struct VisitMeans
{
	bool		(*start) (Visit *visit, int64 now); /* false: no worker was
													 * started */
	void		(*end) (Visit *visit, int64 now);	/* the worker has ended */
	bool		is_single;		/* a visit waits for others of its kind */
	bool		is_passing;		/* it is removed when it is not due any more;
								 * the watch stays, and a round removes its
								 * cleanups */
} VisitMeans;

static const VisitMeans visit_means[] = {
	[VISIT_WATCH] = {start_watch, end_watch, false, false},
	[VISIT_CLEANUP] = {launcher_round_start_cleanup, launcher_round_end_cleanup, true, false},
	[VISIT_EMPTY] = {start_emptying, end_emptying, true, true},
	[VISIT_RESUME] = {start_resumption, end_resumption, true, true},
	[VISIT_LOOK] = {start_look, end_look, false, true},
};

/* Take the answers of the workers that have ended, and forget visits that are not to be made again. */
static void
end_visits(int64 now)
{
	foreach_ptr(Visit, visit, list_copy(launcher_visits))
	{
		const VisitMeans *means = &visit_means[visit->kind];

		if (visit->context != NULL)
		{
			if (!channel_worker_has_ended(visit->worker))
				continue;
			means->end(visit, now);
		}
		/* the end of a cleanup may have removed its visit */
		if (means->is_passing && visit->due == NOT_DUE)
			launcher_remove_visit(visit);
	}
}

/*
 * Start a worker for a visit that is due, if that is possible now.  An error is written to the
 * server log: it must not keep the launcher from its other visits, and from its watch.
 */
static void
start_visit(Visit *visit, int64 now)
{
	MemoryContext oldcontext;
	volatile bool started = false;

	Assert(visit->context == NULL);
	visit->context = AllocSetContextCreate(launcher_context, "index_mover visit",
										   ALLOCSET_SMALL_SIZES);
	oldcontext = MemoryContextSwitchTo(visit->context);
	PG_TRY();
	{
		started = visit_means[visit->kind].start(visit, now);
	}
	PG_CATCH();
	{
		EmitErrorReport();
		(void) errors_take(visit->context);
		visit->due = now + RESTART_S * 1000;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcontext);
	visit->began = now;
	if (!started)
		launcher_forget_worker(visit);
}

/*
 * Return whether a visit, which no worker makes, has to wait for one of its kind.  Not for an emptying
 * that takes long: it waits for sessions, or a device hangs, which other emptyings do not wait for.
 */
static bool
waits_for_turn(const Visit *visit, int64 now)
{
	if (!visit_means[visit->kind].is_single)
		return false;
	foreach_ptr(const Visit, other, launcher_visits)
	{
		if (other->kind != visit->kind || other->context == NULL)
			continue;
		if (other->kind != VISIT_EMPTY || now < other->began + SLOW_EMPTYING_MS)
			return true;
	}
	return false;
}

/*
 * Return the visit that is to be made next, or NULL: the longest due, so that visits that
 * are soon due again starve no other.
 */
static Visit *
next_visit(int64 now)
{
	Visit	   *result = NULL;

	foreach_ptr(Visit, visit, launcher_visits)
	{
		if (visit->context == NULL && visit->due <= now && !waits_for_turn(visit, now) &&
			(result == NULL || visit->due < result->due))
			result = visit;
	}
	return result;
}

/*
 * Start the visits that are due, as far as waits_for_turn() lets them begin.  Returns when the
 * next visit is due.
 */
static int64
start_visits(int64 now)
{
	int64		result = NOT_DUE;
	Visit	   *next;

	while ((next = next_visit(now)) != NULL)
		start_visit(next, now);
	foreach_ptr(const Visit, visit, launcher_visits)
	{
		if (visit->context == NULL)
		{
			if (!waits_for_turn(visit, now))
				result = Min(result, visit->due);
			continue;
		}
		/* its end sets our latch; this is in case that it does not */
		result = Min(result, now + LOOK_MS);
		if (visit_means[visit->kind].is_single)
			result = Min(result, now + RETRY_MS);
	}
	return result;
}

void
index_mover_launcher_main(Datum arg)
{
	MemoryContext context;		/* of all that a turn of the loop needs */

	channel_begin(NULL, 0);
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	/*
	 * a transaction that is serializable and deferrable waits for others, see
	 * autovacuum.c
	 */
	worker_apply_settings();
	launcher_context = AllocSetContextCreate(TopMemoryContext, "index_mover launcher",
											 ALLOCSET_DEFAULT_SIZES);
	context = AllocSetContextCreate(TopMemoryContext, "index_mover launcher, one turn",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);

	evidence_tell_jobs();
	evidence_watch();
	launcher_watch = launcher_add_visit(VISIT_WATCH, 0);
	before_shmem_exit(stop_watch, (Datum) 0);
	while (RecoveryInProgress())
	{
		int64		now = clock_ms();

		end_visits(now);
		if (launcher_watch->context == NULL)
		{
			if (evidence_take_wish())
				launcher_watch->due = now;
			else if (launcher_watch->due == NOT_DUE)
				launcher_watch->due = now + STANDBY_LOOK_MS;
		}
		(void) start_visits(now);
		launcher_nap(STANDBY_MS);
		(void) reload_configuration();
		MemoryContextReset(context);
	}
	if (has_crashed_soon)
	{
		ereport(LOG,
				(errmsg("the launcher visits no database for %d seconds", AFTER_CRASH_MS / 1000),
				 errdetail("The server has crashed soon after its start.")));
		launcher_first_visits = clock_ms() + AFTER_CRASH_MS;
	}
	launcher_round_ask_watch(false);
	schedule_resumptions(clock_ms());
	schedule_looks();
	for (;;)
	{
		int64		now = clock_ms();
		int64		next_emptyings;
		int64		next_round;
		int64		next_visit;

		if (reload_configuration())
			schedule_looks();
		end_visits(now);
		next_round = launcher_round_serve(now);
		/* behind it, which asks the watch */
		next_emptyings = schedule_emptyings(now);
		next_visit = start_visits(now);
		next_round = Min(next_round, now + AGAIN_MS);
		launcher_nap(Min(Min(next_emptyings, next_round), next_visit) - clock_ms());
		MemoryContextReset(context);
	}
}
