/*-------------------------------------------------------------------------
 *
 * move_worker.c
 *	  The background worker that carries out a job.
 *
 * It connects to the job's database as the job's role, with settings of its
 * own that override ALTER ROLE and ALTER DATABASE, and moves one item after the
 * other.  An item that fails does not stop the others.
 *
 * Locks: between two items only AccessShareLock on the extension, so that DROP
 * EXTENSION waits for the end of the job.
 *
 * Tricky: SIGTERM can end the process at any place.  The exit callback then
 * records that (in a transaction of its own, as RemoveTempRelationsCallback()
 * does), and asks for a successor that removes the leftovers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/pqmq.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/pmsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"
#include "utils/ps_status.h"

#include "channel.h"
#include "cleanup/cleanup.h"
#include "compat.h"
#include "copy/copy.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "history.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"
#include "rebuild/rebuild.h"
#include "running_jobs.h"
#include "test_points.h"
#include "wait/wait.h"
#include "worker/worker.h"

#define COMMIT_POLL_MS	20
#define PAUSE_POLL_MS	200
#define DROP_WAIT_MS	60000
#define LEDGER_WAIT_MS	10000
#define QUICK_CLEANUP_MS	1000
#define RECORD_AT_ONCE	1000

/* The state of this process */
typedef struct MoveWorker
{
	int			slot;			/* the job's, from the postmaster */
	int			number;			/* among the job's runners; the first has 0 */
	JobShared  *shared;			/* the job; NULL until its segment is attached */
	bool		is_move;		/* the job moves relations; else it is a
								 * cleanup */
	bool		is_attached;	/* this process has become a runner of the job */
	bool		is_done;		/* worker_exit() has nothing left to do, and
								 * free_slot_at_exit() only publishes rows
								 * that are due */
	bool		rows_are_due;	/* all rows of the job are final, and are not
								 * published yet */

	/* the items that are being moved: their numbers, and themselves */
	int			ncurrent;
	int			current[IM_MOST_TOGETHER];
	MoveItem   *current_items[IM_MOST_TOGETHER];

	/* items that were given up before their move, and are to be recorded */
	int			given_up;		/* the first; -1 = there are none */
	int			last_given_up;

	int			cleanup_due;	/* an item whose move has left something; -1 =
								 * none has */
} MoveWorker;

static MoveWorker worker = {.given_up = -1,.cleanup_due = -1};

PGDLLEXPORT void index_mover_worker_main(Datum arg);

/*
 * Wait for the commit of the transaction that has queued the job.  Returns
 * false if it was rolled back, or the job given up.
 */
static bool
wait_for_commit(JobSlot *copy)
{
	for (;;)
	{
		bool		found = job_get_slot(worker.slot, copy);

		if (!found || copy->state != JOB_WAITING_FOR_COMMIT)
			return found;
		latch_nap(COMMIT_POLL_MS, "IndexMoverCommit");
		CHECK_FOR_INTERRUPTS();
	}
}

static void
set_worker_option(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Settings that are made for ordinary sessions, and that could stop, delay or redirect
 * a move.  t/051_world_database_settings.pl says why all others may stay.
 */
static const struct
{
	const char *name;
	const char *value;
}			worker_settings[] = {
	{"allow_system_table_mods", "off"},
	{"citus.enable_ddl_propagation", "off"},	/* not to all nodes */
	{"client_min_messages", "notice"},
	{"commit_delay", "0"},		/* the commit of a swap holds its lock */
	{"default_tablespace", ""},
	{"default_transaction_deferrable", "off"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"exit_on_error", "off"},
	{"idle_in_transaction_session_timeout", "0"},
	{"idle_session_timeout", "0"},
	{"ignore_checksum_failure", "off"},
	{"lock_timeout", "0"},
	{"row_security", "on"},
	{"session_replication_role", "origin"},
	{"statement_timeout", "0"},
	{"synchronous_commit", "local"},	/* a wait would keep its locks */
	{"track_activities", "on"}, /* core_phase() reads published progress */
	{"transaction_timeout", "0"},	/* 17 and later */
	{"zero_damaged_pages", "off"},
};

/*
 * Settings that any role may set and that make an error, or a timeout, end the process.  Functions of
 * indexes may not set them in a worker: with one index, its owner would end the whole job of others.
 */
static const char *const fatal_settings[] = {"exit_on_error", "transaction_timeout"};

/* Apply the settings above, whatever postgresql.conf and the role have; once in a process. */
void
worker_apply_settings(void)
{
	for (int i = 0; i < lengthof(worker_settings); i++)
	{
		if (GetConfigOption(worker_settings[i].name, true, false) != NULL)
			set_worker_option(worker_settings[i].name, worker_settings[i].value);
	}
	for (int i = 0; i < lengthof(fatal_settings); i++)
	{
		if (GetConfigOption(fatal_settings[i], true, false) != NULL)
			find_option(fatal_settings[i], false, false, ERROR)->context = PGC_INTERNAL;
	}

	/* not PGC_S_OVERRIDE, to which a reset would lead */
	SetConfigOption("search_path", WORKER_SEARCH_PATH, PGC_SUSET, PGC_S_SESSION);

	/* the waiting caller's backend converts the messages */
	set_worker_option("client_encoding", GetDatabaseEncodingName());
}

static void
log_start(const JobShared *shared)
{
	JobTotals	totals = job_totals(shared->items, shared->nitems);
	const char *noun = relations_noun(&totals);

	if (shared->settings.terms.rehearse)
		ereport(TERMS_LOG(&shared->settings),
				(errhidecontext(true),
				 errmsg("%s: begins to rehearse the move of %d %s, %s",
						runner_name(), totals.total, noun, size_text(totals.size))));
	else
		ereport(TERMS_LOG(&shared->settings),
				(errhidecontext(true),
				 errmsg("%s: begins to move %d %s, %s",
						runner_name(), totals.total, noun, size_text(totals.size))));
}

/* Write the end of the job to the server log; for its last runner. */
static void
log_end(const JobShared *shared)
{
	JobTotals	totals = job_totals(shared->items, shared->nitems);
	const char *noun = relations_noun(&totals);
	double		seconds = (GetCurrentTimestamp() - shared->submitted_at) / 1e6;

	/* a rehearsal has no exclusive lock */
	if (shared->settings.terms.rehearse)
		ereport(TERMS_LOG(&shared->settings),
				(errhidecontext(true),
				 errmsg("%s: has ended, %d of %d %s rehearsed in %.1f s",
						runner_name(), totals.rehearsed, totals.total, noun, seconds)));
	else if (totals.longest_lock != 0)
		ereport(TERMS_LOG(&shared->settings),
				(errhidecontext(true),
				 errmsg("%s: has ended, %d of %d %s moved in %.1f s, longest lock %.1f ms",
						runner_name(), totals.moved, totals.total, noun, seconds,
						totals.longest_lock / 1000.0)));
	else
		ereport(TERMS_LOG(&shared->settings),
				(errhidecontext(true),
				 errmsg("%s: has ended, %d of %d %s moved in %.1f s",
						runner_name(), totals.moved, totals.total, noun, seconds)));
}

/*
 * Connect to a database as a role, also if it may not log in, with the settings
 * of workers.  Before 17, connect as the bootstrap superuser and set the session's user,
 * so that neither RESET ROLE nor an error leads back to that.  If the database has a
 * setting for role, core has applied it without a check; so reset it.  It has applied one for
 * session_authorization before 17 only: a connection with a user of its own overrides that.
 */
void
worker_connect_as(Oid database, Oid role)
{
#ifdef BGWORKER_BYPASS_ROLELOGINCHECK
	BackgroundWorkerInitializeConnectionByOid(database, role,
											  BGWORKER_BYPASS_ALLOWCONN |
											  BGWORKER_BYPASS_ROLELOGINCHECK);
#else
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);
	set_worker_option("role", "none");
	StartTransactionCommand();
	SetSessionAuthorization(role, superuser_arg(role));
	CommitTransactionCommand();
	/* core compares this role to decide which users may signal us */
	MyProc->roleId = role;
#endif
	set_worker_option("role", "none");
	worker_apply_settings();
	pgstat_report_appname("index_mover");
}

/* Tell the waiting caller that the rows will not change any more. */
static void
publish_rows(JobShared *shared)
{
	worker.rows_are_due = false;
	if (worker.is_move)
		running_jobs_end(shared->database, shared->job);
	pg_write_barrier();
	pg_atomic_write_u32(&shared->rows_final, 1);
	if (shared->caller_pid != 0)
		SetLatch(&GetPGProcByNumber(shared->caller_procno)->procLatch);
}

/*
 * Stop being a runner.  The last runner that could change a row publishes them, after
 * the line in the server log; if that fails, free_slot_at_exit() does.
 */
static void
stop_running(JobShared *shared)
{
	if (runner_detach())
		worker.rows_are_due = true;
	if (!worker.rows_are_due)
		return;
	IM_POINT("job-ended");
	if (worker.is_move)
	{
		if (pg_atomic_exchange_u32(&shared->end_logged, 1) == 0)
			log_end(shared);
	}
	publish_rows(shared);
}

static void
record_given_up(JobShared *shared)
{
	if (worker.given_up >= 0)
		outcome_record(shared, worker.given_up, worker.last_given_up);
	worker.given_up = -1;
}

/* Cancel all items that no runner has claimed, or skip them for a reason. */
static void
give_up_rest(JobShared *shared, const char *why_skipped)
{
	int			n;

	while ((n = runner_claim(shared, true, NULL)) >= 0)
	{
		MoveItem   *item = &shared->items[n];

		if (why_skipped == NULL)
			outcome_take_cancel(shared, &item->outcome);
		else if (item->turns > 0)
			outcome_end(&item->outcome, STATUS_SKIPPED, "",
						"its lock could not be had before index_mover.max_duration was over");
		else if (item->alone)
			outcome_end(&item->outcome, STATUS_SKIPPED, "",
						"not finished: index_mover.max_duration was over");
		else
			outcome_end(&item->outcome, STATUS_SKIPPED, "", why_skipped);

		/* another runner may have claimed some in between */
		if (worker.given_up >= 0 &&
			(n != worker.last_given_up + 1 || n - worker.given_up >= RECORD_AT_ONCE))
			record_given_up(shared);
		if (worker.given_up < 0)
			worker.given_up = n;
		worker.last_given_up = job_parts_follow(shared, n);
	}
	record_given_up(shared);

	/* for copies that had given their turn; after max_duration they go on */
	if (why_skipped != NULL)
		return;
	/* the signal of the cancel has done its work */
	QueryCancelPending = false;
	for (int i = 0; i < shared->nitems; i++)
	{
		if (shared->items[i].turns > 0 && shared->items[i].outcome.status == STATUS_CANCELED)
			move_cleanup(shared, &shared->items[i], QUICK_CLEANUP_MS);
	}
}

static void
note_termination(MoveItem *item)
{
	outcome_end(&item->outcome, STATUS_CANCELED, "57P01", "background worker was terminated");
}

static void
item_terminated(JobShared *shared, int n, bool recordable)
{
	int			last;

	note_termination(&shared->items[n]);
	last = job_parts_follow(shared, n);
	if (!recordable)
		return;
	for (; n <= last; n++)
		history_update(shared, n);
}

/* Ask for a worker that removes leftovers of this runner. */
static void
start_successor(const JobShared *shared)
{
	if (!job_launch_cleanup(CLEANUP_JOB, shared->database, shared->role, NIL))
		job_launch_warn();
}

/* Exit callback: record the outcome; free_slot_at_exit() does the rest. */
static void
worker_exit(int code, Datum arg)
{
	JobShared  *shared = worker.shared;
	bool		held;
	bool		recordable = false;
	bool		leftovers = false;
	int			n;

	/* its handler uses the segment, which is unmapped soon */
	rebuild_timer_end();

	/*
	 * Always, and in this order: outside of transactions core's own callbacks
	 * do not release session-level locks, which would outlive the process.
	 */
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	if (worker.is_done)
		return;

	/* without a postmaster, exit at once: we would block its restart */
	if (!PostmasterIsAlive())
		return;

	/*
	 * end the other runners of the job, too, but not the files from which
	 * their copies can go on
	 */
	if (shared->nitems > 0)
		(void) job_request(shared->job, REQUEST_CANCEL_AND_KEEP);

	for (int i = 0; i < worker.ncurrent; i++)
		move_find_out(&shared->items[worker.current[i]]);
	StartTransactionCommand();

	/*
	 * Wait neither for a DROP EXTENSION that has waited for us nor for a
	 * session that has locked the history or the ledger, because we cannot be
	 * interrupted here.
	 */
	held = (extension_hold() == EXTENSION_HELD);
	if (held)
		recordable = ConditionalLockRelationOid(extension_relation("move_log"), RowExclusiveLock);
	for (int i = 0; i < worker.ncurrent; i++)
		item_terminated(shared, worker.current[i], recordable);
	worker.ncurrent = 0;
	if (recordable && worker.given_up >= 0)
	{
		for (n = worker.given_up; n <= worker.last_given_up; n++)
			history_update(shared, n);
	}
	while ((n = runner_claim(shared, true, NULL)) >= 0)
		item_terminated(shared, n, recordable);
	if (recordable)
		history_close_job(shared);
	if (held && shared->nitems > 0)
	{
		/* if the ledger is locked, the successor finds out */
		if (ConditionalLockRelationOid(extension_relation("ledger"), AccessShareLock))
			leftovers = leftovers_of_runner(shared->job);
		else
			leftovers = true;
	}
	CommitTransactionCommand();
	extension_release();

	stop_running(shared);
	if (leftovers)
		start_successor(shared);
}

/*
 * Exit callback, the last of ours: free the slot and end the caller's wait, even
 * if worker_exit() has failed.  If the first worker could not start, there are no
 * rows: the caller raises the error that we have sent.
 */
static void
free_slot_at_exit(int code, Datum arg)
{
	if (worker.rows_are_due)
		publish_rows(worker.shared);
	if (worker.is_done)
		return;
	if (!worker.is_attached)
	{
		/* where a session waits, its queue cannot be another's */
		if (worker.shared != NULL && worker.shared->caller_pid == 0)
			runner_leave_number(worker.shared, worker.number);
		job_lacks_runner(worker.slot);
		return;
	}
	for (int n = 0; n < worker.shared->nitems && runner_is_alone(); n++)
	{
		MoveItem   *item = &worker.shared->items[n];

		if (item->outcome.status <= STATUS_RUNNING)
			note_termination(item);
		n = job_parts_follow(worker.shared, n);
	}
	if (runner_detach())
		publish_rows(worker.shared);
}

static void
show_activity(const MoveItem *item)
{
	char	   *text = psprintf("moving %s %s.%s (%s)", relation_noun(item->relkind),
								NameStr(item->schema_name),
								NameStr(item->relname), method_name(item->method));

	debug_query_string = NULL;
	pgstat_report_activity(STATE_RUNNING, text);
	set_ps_display(text);
}

/* A runner's look for its leftovers */
typedef struct LeftoverLook
{
	int64		job;
	bool		found;			/* there are some, or it is not known */
} LeftoverLook;

/*
 * Look, for errors_catch_in_transaction().  A session that has locked the ledger, or is dropping
 * the extension, is not waited for: other relations are queued.
 */
static void
look_for_leftovers(void *arg)
{
	LeftoverLook *look = arg;
	Oid			ledger;

	if (extension_hold() != EXTENSION_HELD)
		return;
	ledger = extension_find_relation("ledger");
	if (!OidIsValid(ledger))
		return;
	if (ConditionalLockRelationOid(ledger, AccessShareLock))
		look->found = leftovers_of_runner(look->job);
}

/* Look for leftovers of this runner.  Return whether there are, or may be, some to be removed. */
static bool
look_for_own_leftovers(JobShared *shared)
{
	LeftoverLook look = {.job = shared->job,.found = true};
	ErrorData  *error;

	if (outcome_extension_is_gone(shared))
		return true;
	error = errors_catch_in_transaction(look_for_leftovers, &look);
	if (error == NULL)
		return look.found;
	runner_serve_cancel(false);
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: could not look for leftovers of its moves", runner_name()),
			 errors_as_detail(error)));
	/* the next item needs the extension held */
	(void) outcome_hold_extension(shared);
	return true;
}

/* Return the first item that is still to be moved, or NULL. */
static const MoveItem *
first_queued(const JobShared *shared)
{
	for (int i = shared->first_queued; i < shared->nitems; i++)
	{
		if (shared->items[i].outcome.status == STATUS_QUEUED)
			return &shared->items[i];
	}
	return NULL;
}

/* Between two items, wait while the job is paused, and show the next item. */
static void
wait_while_paused(JobShared *shared)
{
	const MoveItem *next = first_queued(shared);

	if (next == NULL || !job_pause_requested() || job_cancel_requested())
		return;
	/* without the extension, no session could end the pause */
	if (!outcome_hold_extension(shared))
		return;
	progress_begin(next);
	progress_throttled(&rest_paused);
	while (job_pause_requested() && !job_cancel_requested())
	{
		pacing_tell_of_drop("is paused");
		runner_nap(shared, PAUSE_POLL_MS);
	}
	progress_end(0);
}

static void
start_other_runners(JobShared *shared)
{
	int			n = 1;
	int			wanted = Min(shared->max_runners, shared->settings.max_workers);
	JobTotals	totals = job_totals(shared->items, shared->nitems);

	for (; n < wanted; n++)
	{
		if (!runner_start_another(shared))
			break;
	}
	if (n >= wanted)
		return;
	if (shared->caller_pid != 0)
		ereport(NOTICE,
				(errmsg("moving %d instead of %d %s at the same time", n,
						wanted, relations_noun(&totals)),
				 errhint("You may need to increase \"max_worker_processes\".")));
	else
		ereport(TERMS_LOG(&shared->settings),
				(errhidecontext(true),
				 errmsg("%s: moves %d instead of %d %s at the same time, until more workers are free",
						runner_name(), n, wanted, relations_noun(&totals)),
				 errhint("You may need to increase \"max_worker_processes\".")));
}

/* Record all items that are being moved; items that follow each other are recorded together. */
static void
record_current(JobShared *shared)
{
	int			first = worker.current[0];
	int			last = job_parts_follow(shared, worker.current[0]);

	for (int i = 1; i < worker.ncurrent; i++)
	{
		if (worker.current[i] != last + 1)
		{
			outcome_record(shared, first, last);
			first = worker.current[i];
		}
		last = job_parts_follow(shared, worker.current[i]);
	}
	outcome_record(shared, first, last);
}

/* Queue all items again that are being moved, but for items whose owner does not want it. */
static void
put_back_current(JobShared *shared, MoveEnd end)
{
	for (int i = 0; i < worker.ncurrent; i++)
	{
		if (end == MOVE_PARTED && worker.current_items[i]->owner_cancels)
			outcome_take_owners_cancel(&worker.current_items[i]->outcome);
		else
			runner_put_back(shared, worker.current[i]);
	}
	IM_POINT("put-back");
	record_current(shared);
	worker.ncurrent = 0;
	progress_end(0);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Remove the leftovers of a move of this process; the relations that are queued do not wait long. */
static void
clean_up_after(JobShared *shared, int n)
{
	bool		is_left;

	move_cleanup(shared, &shared->items[n], QUICK_CLEANUP_MS);
	is_left = look_for_own_leftovers(shared);
	if (is_left)
		worker.cleanup_due = n;
}

/*
 * Move a claimed item, perhaps together with others that it claims now, record the outcome, and
 * clean up.
 */
static void
run_item(JobShared *shared, int n)
{
	MoveItem   *item = &shared->items[n];
	MoveOutcome *outcome = &item->outcome;
	bool		canceled;
	MoveEnd		end = MOVE_ENDED;
	int			nmoved;
	int			most;
	int64		size = 0;

	Assert(worker.ncurrent == 0 && n >= 0 && n < shared->nitems);
	worker.current[0] = n;
	worker.ncurrent = 1;
	most = copy_most_together(runner_settings());
	if (most > 1)
		worker.ncurrent = runner_claim_more(shared, most, worker.current);
	for (int i = 0; i < worker.ncurrent; i++)
	{
		worker.current_items[i] = &shared->items[worker.current[i]];
		worker.current_items[i]->outcome.started_at = GetCurrentTimestamp();
	}
	record_current(shared);
	show_activity(item);
	progress_begin(item);

	if (outcome_extension_is_gone(shared) || job_cancel_requested())
	{
		for (int i = 0; i < worker.ncurrent; i++)
			outcome_take_cancel(shared, &worker.current_items[i]->outcome);
	}
	else if (worker.ncurrent == 1 && item->owner_cancels)
		outcome_take_owners_cancel(outcome);
	else
	{
		runner_works_on(worker.current_items, worker.ncurrent);
		end = move_items(shared, worker.current_items, worker.ncurrent);
		runner_works_on(NULL, 0);
	}
	if (end == MOVE_PARTED)
	{
		/* an error has released it */
		(void) outcome_hold_extension(shared);
		clean_up_after(shared, n);
	}
	if (end != MOVE_ENDED)
	{
		put_back_current(shared, end);
		return;
	}

	record_current(shared);
	nmoved = worker.ncurrent;
	worker.ncurrent = 0;
	/* a cancel after the swap does not undo the move */
	canceled = (outcome->status == STATUS_CANCELED || job_cancel_requested() ||
				outcome_extension_is_gone(shared));

	/* an index dropped during its move is skipped, and may leave something */
	if (canceled || !STATUS_IS_SUCCESS(outcome->status) || outcome->sqlstate[0] != '\0')
	{
		if (canceled)
		{
			runner_cancel(shared);
			give_up_rest(shared, NULL);
		}
		clean_up_after(shared, n);
	}
	if (STATUS_IS_DONE(outcome->status))
	{
		for (int i = 0; i < nmoved; i++)
			size += job_size_with_parts(shared, worker.current[i]);
	}
	progress_end(size);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * When no relation is left to claim, remove all that the quick cleanups have left, within
 * lock_wait.
 * Returns whether something is left even so.
 */
static bool
clean_up_at_end(JobShared *shared)
{
	const MoveItem *item;
	bool		is_final;
	bool		is_left;

	if (worker.cleanup_due < 0)
		return false;
	item = &shared->items[worker.cleanup_due];
	/* the caller need not wait for it */
	is_final = runner_finish_rows();
	if (is_final)
		publish_rows(shared);
	show_activity(item);
	progress_begin(item);
	move_cleanup_rest(shared, &shared->items[worker.cleanup_due]);
	progress_end(0);
	pgstat_report_activity(STATE_IDLE, NULL);
	if (outcome_extension_is_gone(shared))
		return false;
	is_left = look_for_own_leftovers(shared);
	if (!is_left)
		return false;
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: could not remove yet what its moves have left", runner_name()),
			 errhint("A cleanup tries it again, and the next move of the table. To call one: %s",
					 printed_command("cleanup"))));
	return true;
}

/* Note below which mount points the job's targets are, and mark their devices as this server's. */
static void
note_targets(void *shared)
{
	const JobShared *job = shared;

	for (int i = 0; i < job->nitems; i++)
	{
		Oid			target = job->items[i].to_tablespace;

		if (i > 0 && target == job->items[i - 1].to_tablespace)
			continue;
		CHECK_FOR_INTERRUPTS();
		mount_point_note(target);
		(void) evidence_claim(target);
	}
}

/* Have a job for which no session waits go on if the server ends it. */
static void
note_running(const JobShared *shared)
{
	bool		is_canceled = false;
	RunningJob	job = {0};

	job.database = shared->database;
	job.job = shared->job;
	job.role = shared->role;
	job.extension = shared->extension;
	job.again = shared->settings.terms.at_start;
	running_jobs_put(&job);
	/* a session that has steered the job before has not found the file */
	if (job_pause_requested())
		running_jobs_set_paused(job.database, job.job, true);
	for (int i = 0; i < shared->nitems; i++)
	{
		if (shared->items[i].owner_cancels)
			is_canceled = true;
	}
	if (is_canceled || job_cancel_requested())
		(void) running_jobs_take(job.database, job.job);
}

/* Do the work of a job before its first move; no error keeps it from moving. */
static void
begin_job(JobShared *shared)
{
	ErrorData  *error;

	if (resume_at_start && shared->caller_pid == 0 && !shared->settings.terms.heals)
		note_running(shared);
	log_start(shared);
	/* a device can hang, and another session can have locked the table */
	runner_serve_cancel(true);
	error = errors_catch_in_transaction(note_targets, shared);
	/* an error that was caught has reset it, too */
	runner_serve_cancel(false);
	runner_take_cancel(shared);
	/* another job that begins now may be first */
	if (error != NULL && error->sqlerrcode != ERRCODE_UNIQUE_VIOLATION &&
		!job_cancel_requested())
		ereport(WARNING,
				(errmsg("could not note the mount points of the targets"),
				 errors_as_detail(error)));
	lost_hide(shared);
	start_other_runners(shared);
}

static void
run_moves(JobShared *shared, bool first)
{
	MemoryContext item_context = AllocSetContextCreate(TopMemoryContext, "index_mover item",
													   ALLOCSET_DEFAULT_SIZES);
	bool		recorded = true;
	bool		put_off;

	if (first && !shared->recorded)
		recorded = outcome_record_all(shared);
	if (first && recorded)
	{
		if (outcome_hold_extension(shared))
			begin_job(shared);
	}
	while (recorded)
	{
		MemoryContext oldcontext;
		int			n;

		IM_POINT("next-item");
		wait_while_paused(shared);
		runner_make_up();
		if (job_cancel_requested())
		{
			give_up_rest(shared, NULL);
			break;
		}
		if (runner_settings()->max_duration > 0 &&
			clock_has_passed(shared->submitted_clock, runner_settings()->max_duration * 1000))
		{
			give_up_rest(shared, "not started: index_mover.max_duration was over");
			break;
		}

		n = runner_claim(shared, false, relation_is_free);
		if (n == CLAIM_NONE)
			break;
		if (n == CLAIM_LATER)
		{
			runner_nap(shared, PAUSE_POLL_MS);
			continue;
		}
		oldcontext = MemoryContextSwitchTo(item_context);
		run_item(shared, n);
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(item_context);
	}

	put_off = clean_up_at_end(shared);

	/* in this order: a caller that sees the rows may drop anything at once */
	extension_release();
	worker.is_done = true;
	stop_running(shared);
	if (put_off)
		start_successor(shared);
}

/*
 * Hold the extension for a moment.  Return false if a session is dropping it, and so has locked the
 * ledger, perhaps for long.
 */
static bool
try_extension(void)
{
	bool		result;

	StartTransactionCommand();
	result = extension_hold() != EXTENSION_BUSY;
	CommitTransactionCommand();
	return result;
}

/*
 * Wait until no session is dropping the extension.  Return false if that takes longer than
 * a minute: no job is to take a worker for as long as a transaction of others stays open.
 */
static bool
wait_for_extension(void)
{
	double		start = clock_seconds();

	for (;;)
	{
		bool		is_free = try_extension();

		if (is_free)
			return true;
		if (clock_has_passed(start, DROP_WAIT_MS))
			return false;

		/*
		 * a cleanup is no job that a cancel would cancel: it ends by the
		 * ERROR
		 */
		latch_nap(PAUSE_POLL_MS, "IndexMoverPause");
		job_check_cancel();
	}
}

/*
 * Remove leftovers, unless a session has locked the ledger for long: cleanups of other
 * databases, and the look for lost indexes, are not to wait for it.
 */
static void
remove_leftovers(JobShared *shared)
{
	bool		is_free = true;
	Oid			ledger;

	StartTransactionCommand();
	/* the extension may not be in this database */
	ledger = extension_find_relation("ledger");
	if (OidIsValid(ledger))
		is_free = lock_relation_within(ledger, RowExclusiveLock, LEDGER_WAIT_MS, NULL);
	CommitTransactionCommand();
	if (is_free)
		leftovers_remove(shared, runner_settings()->lock_wait);
	else
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not look for leftovers of moves"),
				 errdetail("Another session has locked the table \"index_mover.ledger\".")));
}

static void
run_cleanup(JobShared *shared)
{
	Look	   *look = OidIsValid(shared->look.database) ? &shared->look : NULL;

	runner_serve_cancel(true);
	if (wait_for_extension())
		remove_leftovers(shared);
	if (look != NULL)
	{
		/*
		 * it may wait for long, and DROP EXTENSION need not wait with it
		 */
		extension_release();
		janitor_look(look);
	}
	worker.is_done = true;
	stop_running(shared);
}

/* Error context callback: name job, database and role in the server log. */
static void
add_job_name(void *arg)
{
	errcontext("%s", runner_name());
}

static ErrorContextCallback name_job = {.callback = add_job_name};

void
index_mover_worker_main(Datum arg)
{
	JobSlot		job;
	dsm_segment *segment;
	JobShared  *shared;

	channel_begin(&worker.number, sizeof(worker.number));
	worker.slot = DatumGetInt32(arg);

	/* first, so that the slot is always freed */
	before_shmem_exit(free_slot_at_exit, (Datum) 0);

	if (!wait_for_commit(&job))
		proc_exit(0);

	/* no resource owner here: the mapping lasts as long as the process */
	segment = dsm_attach(job.segment);
	if (segment == NULL)
		proc_exit(0);			/* the submitter has given up */
	worker.shared = shared = dsm_segment_address(segment);
	extension_set_only(shared->extension);

	/* before connecting, so that a waiting caller learns why that fails */
	if (shared->caller_pid != 0)
	{
		shm_mq	   *mq = job_queue(shared, worker.number);

		shm_mq_set_sender(mq, MyProc);
		pq_redirect_to_shm_mq(segment, shm_mq_attach(mq, segment, NULL));
	}
	runner_serve_cancel(false);
	worker_connect_as(job.database, job.role);
	/* core's settings, which alter_move() does not change */
	set_worker_option("maintenance_work_mem", psprintf("%d", shared->settings.maintenance_work_mem));
	set_worker_option("max_parallel_maintenance_workers",
					  psprintf("%d", shared->settings.max_parallel_maintenance_workers));
	set_worker_option("temp_file_limit", psprintf("%d", shared->settings.temp_file_limit));
	IM_KEEP_POINTS();
	StartTransactionCommand();
	worker.is_move = (job.purpose == JOB_MOVE);
	runner_set_name(shared, job.purpose);
	name_job.previous = error_context_stack;
	error_context_stack = &name_job;
	CommitTransactionCommand();

	worker.is_attached = runner_attach(shared, worker.number);
	/* unless other runners have finished the job */
	worker.is_done = !worker.is_attached;
	if (worker.is_done)
		proc_exit(0);
	before_shmem_exit(worker_exit, (Datum) 0);

	if (job.purpose == JOB_CLEANUP)
		run_cleanup(shared);
	else
		run_moves(shared, worker.number == 0);

	proc_exit(0);
}
