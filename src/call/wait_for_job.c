/*-------------------------------------------------------------------------
 *
 * wait_for_job.c
 *	  Waiting for a job: wait_for_rows() for the job that a call starts, the procedure
 *	  wait_for_move() for any, and wait_for_other_job() for one that is in the way.
 *
 * Whatever ends the wait of wait_for_rows() early (a cancel, a timeout, the loss
 * of the client) cancels the job.  wait_for_move() commits first, so that it holds no
 * snapshot, nor back vacuum; hence it cannot run inside a transaction block.
 *
 * Tricky: the deadlock detector cannot see a wait on a latch, so we look for
 * deadlocks, see "The two processes" in src/README.  For others to see the wait of
 * wait_for_other_job(), the session holds a lock for which no session waits, see wait_tag().
 *
 * proof/swap.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "libpq/pqformat.h"
#include "libpq/pqmq.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "call/call.h"
#include "channel.h"
#include "citus.h"
#include "compat.h"
#include "errors.h"
#include "own_tables.h"
#include "printed_command.h"
#include "rebuild/snapshot_guard.h"
#include "virtual_transactions.h"
#include "wait/wait.h"
#include "worker/worker.h"

#define LOOK_INTERVAL_MS	1000	/* for deadlocks and the client */
#define CANCEL_WAIT_MS		4000	/* for the end of the worker */
#define OTHER_JOB_MS		100 /* until another session's job may have ended */

/* A session that waits for a job */
typedef struct JobWait
{
	int64		job;
	const MoveSettings *settings;	/* of the job, or of this session */
	int			behind_citus;	/* waits for us in Citus; 0 = none */
	Oid			lock_class;		/* of wait_tag(), for another session's job;
								 * else 0 */
	double		last_look;		/* by clock_seconds() */
	double		last_notice;

	/* set by the call that has started the job */
	JobShared  *shared;			/* else NULL */
	List	   *items;			/* of MoveItem; they get their outcome */
	bool		(*is_wanted) (void *arg);	/* else NULL; see wait_for_rows() */
	void	   *arg;			/* of that */
	BackgroundWorkerHandle *worker; /* the first; NULL = none yet */
	shm_mq_handle **messages;	/* of each runner */
	ErrorData	worker_error;	/* the last of a worker; elevel 0 = none */
} JobWait;

/* Who waits for whom */
typedef struct WaitGraph
{
	RunnerSlot *runners;		/* palloc'd.  A session that waits for a job
								 * of another session is the caller in a copy
								 * of each of its runners */
	int			nrunners;
	int			nreal;			/* of these, which come first: no copies */
} WaitGraph;

PG_FUNCTION_INFO_V1(index_mover_wait_for_move);

/* Take the messages of a worker that are there: raise its notices, and keep its last error. */
static void
relay_messages(shm_mq_handle *queue, ErrorData *error)
{
	Size		nbytes;
	void	   *message;

	while (shm_mq_receive(queue, &nbytes, &message, true) == SHM_MQ_SUCCESS)
	{
		StringInfoData msg = {.data = message,.len = nbytes};
		char		msgtype = pq_getmsgbyte(&msg);
		ErrorData	notice;

		/* errors of moves are in the rows; other errors end the worker */
		if (msgtype == 'E')
			pq_parse_errornotice(&msg, error);
		else if (msgtype == 'N')
		{
			pq_parse_errornotice(&msg, &notice);
			ThrowErrorData(&notice);
		}
	}
}

/* Raise ERROR 55000 for a worker without a result; error: its last, elevel 0 = none. */
pg_noreturn static void
worker_ended_early(const ErrorData *error)
{
	channel_check_worker_library(true);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("background worker of index_mover did not start or ended early"),
			 error->elevel != 0 ? errdetail_internal("%s", error->message) : 0,
			 errhint("See the server log for the reason.")));
}

static void
relay_all(JobWait *wait)
{
	for (int i = 0; i < wait->shared->max_runners; i++)
		relay_messages(wait->messages[i], &wait->worker_error);
}

/* Become the receiver of the messages of all runners. */
static void
attach_queues(JobWait *wait, dsm_segment *segment)
{
	wait->messages = palloc(sizeof(shm_mq_handle *) * wait->shared->max_runners);
	for (int i = 0; i < wait->shared->max_runners; i++)
	{
		shm_mq	   *mq = shm_mq_create(job_queue(wait->shared, i), JOB_QUEUE_SIZE);

		shm_mq_set_receiver(mq, MyProc);
		wait->messages[i] = shm_mq_attach(mq, segment, NULL);
	}
}

/* Raise the error of the deadlock detector for a job that is not ours; blocker: 0 = this session. */
pg_noreturn static void
other_job_waits_for_us(int64 job, int blocker)
{
	if (blocker == 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 errdetail("Job " INT64_FORMAT " waits for this session.", job),
				 errhint("See %s and %s instead.",
						 printed_command("progress"), printed_command("history"))));
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("Job " INT64_FORMAT " waits for process %d, which waits for this session.",
					   job, blocker),
			 errhint("See %s and %s instead.",
					 printed_command("progress"), printed_command("history"))));
}

/*
 * Return the tag of the lock that a session holds in AccessShareLock while it waits for a
 * job of another session.  No session waits for it: it shows the wait.  With job 0, of the lock of
 * a session that looks for deadlocks of such waits, in ExclusiveLock.
 */
static LOCKTAG
wait_tag(Oid class, int64 job)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, class, (uint32) job, (uint16) (job >> 32));
	return tag;
}

/* Add a session that waits as a caller does for this runner. */
static void
graph_add(WaitGraph *graph, int pid, RunnerSlot runner)
{
	runner.caller_pid = pid;
	graph->runners = repalloc_array(graph->runners, RunnerSlot, graph->nrunners + 1);
	graph->runners[graph->nrunners++] = runner;
}

/* Add a session that waits for a job of another session. */
static void
graph_add_wait(WaitGraph *graph, int pid, const JobSlot *slot)
{
	RunnerSlot	submitter = {.slot = -1,.pid = slot->submitter_pid};

	/* it starts when its submitter commits */
	if (slot->state == JOB_WAITING_FOR_COMMIT)
		graph_add(graph, pid, submitter);
	for (int i = 0; i < graph->nreal; i++)
	{
		const RunnerSlot *runner = &graph->runners[i];

		if (runner->job == slot->job && runner->database == MyDatabaseId &&
			runner->pid != pid)
			graph_add(graph, pid, *runner);
	}
}

/* Read the runners and, for a wait for another session's job, the other sessions that wait so. */
static WaitGraph
graph_read(const JobWait *wait)
{
	WaitGraph	result = {.runners = palloc_array(RunnerSlot, IM_MAX_RUNNERS)};
	JobSlot		slots[IM_MAX_JOBS];
	int			nslots;

	result.nreal = result.nrunners = job_read_runners(result.runners);
	if (!OidIsValid(wait->lock_class))
		return result;
	nslots = job_read_slots(slots, NULL);
	for (int i = 0; i < nslots; i++)
	{
		LOCKTAG		tag = wait_tag(wait->lock_class, slots[i].job);
		int			count;
		VirtualTransactionId *vxids = GetLockConflicts(&tag, AccessExclusiveLock, &count);

		for (int j = 0; j < count; j++)
		{
			int			pid = virtual_transaction_pid(vxids[j]);

			if (pid > 0)
				graph_add_wait(&result, pid, &slots[i]);
		}
		pfree(vxids);
	}
	return result;
}

/*
 * If a runner of the job waits for us, directly or not, have it step back from its
 * relation, if the job is ours.  Where that does not help, raise the error that the
 * deadlock detector would raise if our wait were for a lock.  A job that is to start at the
 * commit of another session waits for that one.
 */
static void
check_deadlock(const JobWait *wait, const WaitGraph *graph)
{
	const int	targets[2] = {MyProcPid, wait->behind_citus};
	const RunnerSlot *runners = graph->runners;
	int			nrunners = graph->nrunners;
	int			blocker;
	JobSlot		slot;

	for (int i = 0; i < graph->nreal; i++)
	{
		int			found;
		bool		steps_back = false;

		if (runners[i].job != wait->job || runners[i].database != MyDatabaseId)
			continue;
		/* step: caller-look */
		found = wait_find_deadlock(runners[i].pid, targets, runners, nrunners, &blocker);
		if (found == 0)
			continue;
		if (found != MyProcPid)
			blocker = found;
		if (wait->shared == NULL && blocker == runners[i].pid)
			other_job_waits_for_us(wait->job, 0);
		if (wait->shared == NULL)
			other_job_waits_for_us(wait->job, blocker);
		if (blocker != runners[i].pid)
			steps_back = runner_ask_to_step_back(&runners[i], blocker);
		if (!steps_back)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected"),
					 errdetail("The move waits, directly or indirectly, for the session that has called it."),
					 errhint("Call the move in a session that holds no locks, or use wait => false.")));
	}
	if (wait->shared != NULL || !job_find(wait->job, &slot) ||
		slot.state != JOB_WAITING_FOR_COMMIT)
		return;
	if (wait_find_deadlock(slot.submitter_pid, targets, runners, nrunners, &blocker) != 0)
		other_job_waits_for_us(wait->job, slot.submitter_pid);
}

/*
 * check_deadlock().  Of sessions that wait for jobs of each other one looks at a time, and
 * has the lock until its error has ended its wait: so one of them ends, and not all.
 */
static void
look_for_deadlock(const JobWait *wait)
{
	LOCKTAG		tag = wait_tag(wait->lock_class, 0);
	bool		waits_for_other = OidIsValid(wait->lock_class);
	LockAcquireResult acquired = LOCKACQUIRE_OK;
	WaitGraph	graph;

	if (waits_for_other)
		acquired = LockAcquire(&tag, ExclusiveLock, false, true);
	if (acquired == LOCKACQUIRE_NOT_AVAIL)
		return;
	graph = graph_read(wait);
	check_deadlock(wait, &graph);
	pfree(graph.runners);
	if (waits_for_other)
		LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Look for deadlocks and the client once a second, cancel a job that is not wanted any more,
 * tell the progress, and sleep.
 */
static void
look_and_nap(JobWait *wait, int ms)
{
	double		now = clock_seconds();

	if (clock_has_passed(wait->last_look, LOOK_INTERVAL_MS))
	{
		/* notice the loss of the client without sending it a message */
		if (MyProcPort != NULL && whereToSendOutput == DestRemote &&
			!pq_check_connection())
		{
			ClientConnectionLost = true;
			InterruptPending = true;
		}
		CHECK_FOR_INTERRUPTS();
		look_for_deadlock(wait);
		if (wait->is_wanted != NULL && !wait->is_wanted(wait->arg))
			(void) job_request(wait->job, REQUEST_CANCEL);
		wait->last_look = now;
	}
	if (wait->settings->progress_interval > 0 &&
		clock_has_passed(wait->last_notice, wait->settings->progress_interval))
	{
		MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
													  "index_mover notices", ALLOCSET_SMALL_SIZES);
		MemoryContext oldcontext = MemoryContextSwitchTo(context);

		progress_view_notices(wait->job);
		MemoryContextSwitchTo(oldcontext);
		MemoryContextDelete(context);
		wait->last_notice = now;
	}
	/* a rebuild would wait for it */
	InvalidateCatalogSnapshot();
	latch_nap(ms, "IndexMoverWait");
	CHECK_FOR_INTERRUPTS();
}

/* Give the caller's items their outcome, as it is by now. */
static void
copy_outcomes(const JobWait *wait)
{
	for (int i = 0; i < list_length(wait->items); i++)
		*(MoveItem *) list_nth(wait->items, i) = wait->shared->items[i];
}

/* Return whether the first worker has ended, or never started. */
static bool
worker_has_stopped(const JobWait *wait)
{
	return wait->worker == NULL || channel_worker_has_ended(wait->worker);
}

/* Return the totals of a job but for its sizes; tables count without their parts, as for an ALTER. */
static JobTotals
totals_without_parts(const JobShared *shared)
{
	JobTotals	totals = {0};

	for (int i = 0; i < shared->nitems; i++)
	{
		const MoveItem *item = &shared->items[i];

		if (OidIsValid(item->part_of))
			continue;
		totals.total++;
		totals.moved += (item->outcome.status == STATUS_MOVED);
		totals.has_tables |= !relkind_is_index(item->relkind);
	}
	return totals;
}

/*
 * Cancel the job when the wait ends by ERROR or FATAL, and rethrow a cancel with the
 * number of moves by then.
 */
static void
abandon_job(int code, Datum arg)
{
	JobWait    *wait = (JobWait *) DatumGetPointer(arg);
	JobShared  *shared = wait->shared;
	double		start = clock_seconds();
	ErrorData  *error;
	JobTotals	totals;
	JobSlot		slot;

	(void) job_request(shared->job, REQUEST_CANCEL);
	snapshot_guard_end();
	if (proc_exit_inprogress)
		return;

	/* the next command should find the table free; interrupts are not served */
	while (job_get_slot(shared->slot, &slot) &&
		   !clock_has_passed(start, CANCEL_WAIT_MS))
	{
		/* a worker that never started will not free the slot */
		if (slot.state == JOB_STARTING && worker_has_stopped(wait))
			job_lacks_runner(shared->slot);

		/* a worker that is starting missed the signal, but not the flag */
		latch_nap(10, "IndexMoverWait");
	}

	if (shared->nitems == 0)
		return;
	copy_outcomes(wait);
	/* before that it is not in the history */
	if (shared->begun)
		submit_note_job(shared->job);
	MemoryContextSwitchTo(TopTransactionContext);
	error = CopyErrorData();
	if (!errors_was_canceled(error) || error->detail != NULL)
		return;
	FlushErrorState();
	totals = totals_without_parts(shared);
	error->detail = psprintf(ngettext("%d of %d %s of job " INT64_FORMAT " has been moved.",
									  "%d of %d %s of job " INT64_FORMAT " have been moved.",
									  totals.total),
							 totals.moved, totals.total, relations_noun(&totals), shared->job);
	if (totals.moved < totals.total && shared->begun)
		error->hint = psprintf("To move the rest: %s",
							   printed_command("resume_move", shared->job));
	ReThrowError(error);
}

/* Wait until the job's rows are final. */
static void
collect_rows(JobWait *wait)
{
	JobShared  *shared = wait->shared;

	for (;;)
	{
		/*
		 * First, since a worker that has stopped sends nothing more.  If it
		 * has begun, another may still be about to publish the rows.
		 */
		bool		stopped = worker_has_stopped(wait) && !shared->begun;

		relay_all(wait);
		if (pg_atomic_read_u32(&shared->rows_final) != 0)
		{
			pg_read_barrier();
			relay_all(wait);
			return;
		}
		if (stopped)
		{
			job_lacks_runner(shared->slot);
			worker_ended_early(&wait->worker_error);
		}
		look_and_nap(wait, LOOK_INTERVAL_MS);
	}
}

/*
 * Run a job and wait for its end; the items of a move get their outcome, also before an
 * ERROR, and its summary is told when it begins.  A cleanup has none.  is_wanted(arg), unless
 * it is NULL, is called once a second; false cancels the job, whose end is waited for.
 *
 * ERRORs: 53000 no worker, no slot; 55006 a table is being moved; 40P01 the
 * job waits for a process that waits for us; 57014 and the like after canceling the job.
 */
void
wait_for_rows(int64 job, JobSummary *summary, List *items,
			  const MoveSettings *settings, bool (*is_wanted) (void *arg), void *arg)
{
	double		now = clock_seconds();

	/* first, because that may fail, which would cancel the job */
	JobWait		wait = {
		.job = job,
		.behind_citus = citus_caller_pid(),
		.last_look = now,
		.last_notice = now,
		.items = items,
		.is_wanted = is_wanted,
		.arg = arg,
	};
	dsm_segment *segment;

	wait.shared = job_launch_create(job, MyDatabaseId, TERMS_ROLE(settings),
									items != NIL ? JOB_MOVE : JOB_CLEANUP, JOB_STARTING, items,
									settings, true, &segment);
	/* alter_move() can change them */
	wait.settings = &wait.shared->settings;
	PG_ENSURE_ERROR_CLEANUP(abandon_job, PointerGetDatum(&wait));
	{
		attach_queues(&wait, segment);
		/* before the job can start */
		snapshot_guard_begin();
		wait.worker = job_launch_worker(wait.shared->slot, job);
		if (settings->terms.replaces != 0)
			(void) running_jobs_take(MyDatabaseId, settings->terms.replaces);
		if (items != NIL && settings->progress_interval > 0)
		{
			summary->totals = job_totals(wait.shared->items, wait.shared->nitems);
			notices_begin(summary);
		}
		collect_rows(&wait);
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_job, PointerGetDatum(&wait));
	snapshot_guard_end();

	if (items != NIL)
	{
		submit_note_job(job);
		summary->totals = job_totals(wait.shared->items, wait.shared->nitems);
		copy_outcomes(&wait);
	}

	/* the worker tolerates that its messages have no receiver any more */
	dsm_detach(segment);

	/* the rows do not have the reason; a FATAL comes from SIGTERM */
	if (wait.worker_error.elevel == ERROR)
		ereport(WARNING,
				(errcode(wait.worker_error.sqlerrcode),
				 errmsg("background worker of index_mover ended early"),
				 errdetail_internal("%s", wait.worker_error.message)));
}

/* What a session that waits for another job has been told */
typedef struct ToldOfJob
{
	bool		waits;
	bool		paused;
} ToldOfJob;

/* A wait that is shorter is not told */
#define SILENT_MS	1000

/* Tell, once in a wait, which job it is for, and whether that is paused. */
static void
tell_of_job(const JobSlot *slot, double since, ToldOfJob *told)
{
	if (slot->flags.pause && !told->paused)
	{
		told->paused = true;
		ereport(NOTICE,
				(errmsg("waiting for job " INT64_FORMAT ", which is paused", slot->job),
				 errhint("To resume it: %s", printed_command("resume_move", slot->job))));
	}
	else if (!told->waits && !told->paused && clock_has_passed(since, SILENT_MS))
	{
		told->waits = true;
		ereport(NOTICE,
				(errmsg("waiting for job " INT64_FORMAT ", which moves relations of the same table",
						slot->job),
				 errhint("See %s. To stop it: %s", printed_command("jobs"),
						 printed_command("cancel_move", slot->job))));
	}
}

/*
 * Wait until the job of another session has ended; but not beyond the deadline, by
 * clock_seconds(), if it is not 0.  Return whether the job has ended.  A NOTICE tells of it.
 * The caller holds no snapshot.  ERRORs: 40P01 the job waits for this session, for its lock
 * or its commit; 57014 and the like.
 */
bool
wait_for_other_job(int64 job, double deadline)
{
	MoveSettings settings = {0};	/* without messages of progress */
	JobWait		wait = {
		.job = job,
		.settings = &settings,
		.behind_citus = citus_caller_pid(),
		.lock_class = extension_relation("move_log"),
		.last_look = clock_seconds(),
	};
	LOCKTAG		tag = wait_tag(wait.lock_class, job);
	double		since = clock_seconds();
	ToldOfJob	told = {0};
	bool		is_late = false;
	JobSlot		slot;

	Assert(!ActiveSnapshotSet());
	(void) LockAcquire(&tag, AccessShareLock, false, false);
	while (job_find(job, &slot) && !is_late)
	{
		is_late = deadline != 0 && clock_seconds() >= deadline;
		tell_of_job(&slot, since, &told);
		/* step: other-look */
		if (!is_late)
			look_and_nap(&wait, OTHER_JOB_MS);
	}
	LockRelease(&tag, AccessShareLock, false);
	return !is_late;
}

/* Show in pg_locks and pg_stat_activity whether this session has a transaction. */
static void
show_transaction(bool show)
{
	VirtualTransactionId vxid;

	GET_VXID_FROM_PGPROC(vxid, *MyProc);
	if (show)
		VirtualXactLockTableInsert(vxid);
	else
		VirtualXactLockTableCleanup();
	pgstat_report_xact_timestamp(show ? GetCurrentTransactionStartTimestamp() : 0);
}

/* Error context callback: say that the job goes on without us. */
static void
add_cancel_hint(void *arg)
{
	if (geterrcode() == ERRCODE_QUERY_CANCELED)
	{
		errdetail("Job " INT64_FORMAT " goes on.", *(int64 *) arg);
		errhint("To stop it: %s", printed_command("cancel_move", *(int64 *) arg));
	}
}

/* Return the summary of a job's moves in the history.  may_see: with the names of failed moves */
static JobSummary
summarize(int64 job, bool may_see)
{
	JobSummary	summary = {.job = job};

	foreach_ptr(const HistoryEntry, move, history_read(job))
	{
		const char *name = may_see ? move->relname : NULL;
		const char *reason = move->message;

		if (move->sqlstate == NULL)
			reason = "the worker or the server ended before the outcome was recorded";
		job_totals_add(&summary.totals,
					   strcmp(move->kind, "table") != 0 && strcmp(move->kind, "toast") != 0,
					   move->status, move->size, move->from_tablespace, move->to_tablespace,
					   move->lock_time);
		notices_outcome(&summary, move->status, strncmp(move->kind, "toast", 5) == 0,
						kind_noun(move->kind), name, move->sqlstate, reason);
	}
	return summary;
}

/*
 * CALL wait_for_move(job bigint DEFAULT NULL, raise boolean DEFAULT true)
 *
 * Waits until a job has ended, whichever session has submitted it; NULL is
 * the last job of this session.  Sends the NOTICEs of a call that waits for
 * its move.  Interrupting the wait does not cancel the job.
 *
 * Privileges: EXECUTE; the names of relations that were not moved, and why, only for
 * members of the job's role and of pg_read_all_stats.  ERRORs: 25001 in a
 * transaction block or function; 42704 there never was such a job; 55000 NULL
 * without a job of this session; 55000 with raise, if a relation was not moved.
 */
Datum
index_mover_wait_for_move(PG_FUNCTION_ARGS)
{
	CallContext *context = (CallContext *) fcinfo->context;
	int64		job = PG_ARGISNULL(0) ? submit_last_job() : PG_GETARG_INT64(0);
	bool		raise = PG_GETARG_BOOL(1);
	MoveSettings settings;
	JobWait		wait = {.job = job,.settings = &settings,.behind_citus = citus_caller_pid()};
	JobSummary	summary;
	JobSlot		slot;
	HistoryJob	entry;
	bool		may_see;
	bool		was_running;
	bool		is_cleanup = false;
	ErrorContextCallback callback = {.callback = add_cancel_hint,.arg = &job};

	/* the history does not say whether the primary's job runs */
	PreventCommandDuringRecovery("wait_for_move()");
	reject_null(fcinfo, 1, "raise");

	if (context == NULL || !IsA(context, CallContext) || context->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", "wait_for_move()")));
	if (job == 0 && PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session has not submitted a job"),
				 errhint("Give the number of the job; see %s.", printed_command("jobs"))));
	settings_capture(&settings, NULL, false);

	/* commit also starts a job that this session has queued */
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	SPI_commit();

	was_running = job_find(job, &slot);
	if (was_running && settings.progress_interval > 0 && call_may_see(slot.role))
	{
		summary = summarize(job, false);
		/* the worker of a call that waits may not have recorded it yet */
		if (summary.totals.total > 0)
			notices_begin(&summary);
		/* no catalog snapshot while waiting */
		SPI_commit();
	}

	wait.last_look = wait.last_notice = clock_seconds();
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	/* no session needs to wait for it, but programs that poll pg_locks would */
	Assert(!ActiveSnapshotSet() && !TransactionIdIsValid(GetTopTransactionIdIfAny()));
	show_transaction(false);
	while (job_find(job, &slot))
	{
		if (slot.state == JOB_CLEANING_UP)
			break;
		was_running = true;
		is_cleanup = slot.purpose == JOB_CLEANUP;
		look_and_nap(&wait, OTHER_JOB_MS);
	}
	show_transaction(true);
	error_context_stack = callback.previous;
	SPI_finish();
	/* neither a job that was rolled back is recorded, nor a cleanup */
	if (!history_read_job(job, &entry))
	{
		if (is_cleanup)
			PG_RETURN_VOID();
		call_no_such_job(job);
	}
	may_see = call_may_see(entry.role);
	summary = summarize(job, may_see);
	if (was_running && settings.progress_interval > 0 && may_see)
		notices_end(&summary, (GetCurrentTimestamp() - entry.submitted_at) / 1e6);
	notices_raise(&summary, raise ? ERROR : WARNING);
	PG_RETURN_VOID();
}
