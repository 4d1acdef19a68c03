/*-------------------------------------------------------------------------
 *
 * wait_for_rows.c
 *	  Running a job and waiting for its rows.
 *
 * wait_for_rows() starts a worker at once and waits on its latch, relaying
 * the worker's messages and reporting its progress; whatever ends the wait
 * early (a cancel, a timeout, the loss of the client) cancels the job.
 *
 * Locks: none is held while waiting.  But the caller's snapshot is, and a
 * rebuild would wait for it without end: see rebuild/snapshot_guard.c.
 *
 * Tricky: the deadlock detector cannot see a wait on a latch.  So once a
 * second we check whether a process that the worker waits for waits, also
 * indirectly, for us.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/tablespace.h"
#include "libpq/pqformat.h"
#include "libpq/pqmq.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "tcop/dest.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"

#include "call/call.h"
#include "citus.h"
#include "compat.h"
#include "job.h"
#include "printed_command.h"
#include "rebuild/snapshot_guard.h"
#include "settings.h"
#include "wait/wait.h"
#include "worker/worker.h"

#define LOOK_INTERVAL_MS	1000	/* between two checks for deadlock and
									 * client */
#define CANCEL_WAIT_MS		4000	/* for the end of the worker after a
									 * cancel */

typedef struct JobWait
{
	JobShared  *shared;
	BackgroundWorkerHandle *worker; /* the first one */
	shm_mq_handle **messages;	/* of each runner */
	ErrorData	worker_error;	/* last ERROR or FATAL of a worker; elevel 0 =
								 * none */
	bool		abandoned;
} JobWait;

static uint32 wait_event = 0;

static void
nap_for_rows(int ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, IM_WAIT_EVENT(wait_event, "IndexMoverWait"));
	ResetLatch(MyLatch);
}

static void
relay_messages(JobWait *wait)
{
	Size		nbytes;
	void	   *data;

	for (int i = 0; i < wait->shared->max_runners; i++)
		while (shm_mq_receive(wait->messages[i], &nbytes, &data, true) == SHM_MQ_SUCCESS)
		{
			StringInfoData msg;
			char		msgtype;
			ErrorData	edata;

			initStringInfo(&msg);
			appendBinaryStringInfo(&msg, data, nbytes);
			msgtype = pq_getmsgbyte(&msg);
			/* errors of moves are in the rows; other errors end the worker */
			if (msgtype == 'N' || msgtype == 'E')
				pq_parse_errornotice(&msg, &edata);
			if (msgtype == 'N')
				ThrowErrorData(&edata);
			else if (msgtype == 'E')
				wait->worker_error = edata;
			pfree(msg.data);
		}
}

/* Become the receiver of the messages of all runners. */
static void
attach_queues(JobWait *wait, dsm_segment *segment)
{
	wait->messages = palloc(sizeof(shm_mq_handle *) * wait->shared->max_runners);
	for (int i = 0; i < wait->shared->max_runners; i++)
	{
		Size		size;
		shm_mq	   *mq = job_queue(wait->shared, i, &size);

		mq = shm_mq_create(mq, size);
		shm_mq_set_receiver(mq, MyProc);
		wait->messages[i] = shm_mq_attach(mq, segment, NULL);
	}
}

/*
 * If a runner, the i-th, is one of the job, and waits for us or for the process that
 * waits for us behind a connection of Citus's, return whom it waits for, and *last,
 * the last process on the way there; else 0.
 */
static int
waits_for_us(int64 job, int behind_citus, const RunnerSlot *runners, int nrunners, int i, int *last)
{
	int			targets[2] = {MyProcPid, behind_citus};

	if (runners[i].job != job || runners[i].database != MyDatabaseId)
		return 0;
	return wait_find_deadlock(runners[i].pid, targets, runners, nrunners, last);
}

/*
 * If a process that a runner of the job waits for waits for us, directly or
 * not, have the runner step back from its relation: the others can still be
 * moved.  Where that does not help, raise the error that the deadlock detector
 * would raise if our wait were for a lock.
 */
static void
check_worker_deadlock(const JobShared *shared)
{
	int			behind_citus = citus_caller_pid();
	RunnerSlot	runners[IM_MAX_RUNNERS];
	int			nrunners = job_read_runners(runners);

	for (int i = 0; i < nrunners; i++)
	{
		int			blocker = 0;
		int			found = waits_for_us(shared->job, behind_citus, runners, nrunners, i, &blocker);

		if (found == 0)
			continue;
		if (found == behind_citus)
			blocker = found;
		else if (blocker == runners[i].pid)
			blocker = 0;
		if (blocker != 0 && runner_ask_to_step_back(&runners[i], blocker))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected"),
				 blocker == 0 ?
				 errdetail("The move waits for the session that has called it.") :
				 errdetail("The move waits, directly or indirectly, for process %d, which waits for the session that has called the move.",
						   blocker),
				 errhint("Call the move in a session that holds no locks, or use wait => false.")));
	}
}

/* Raise an error if a job waits for us. */
static void
check_job_waits_for_us(int64 job, int behind_citus)
{
	RunnerSlot	runners[IM_MAX_RUNNERS];
	int			nrunners = job_read_runners(runners);

	for (int i = 0; i < nrunners; i++)
	{
		int			last;
		int			found = waits_for_us(job, behind_citus, runners, nrunners, i, &last);

		if (found != 0)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected"),
					 errdetail("Job " INT64_FORMAT " waits for process %d, which waits for this session.",
							   job, found == MyProcPid ? last : found),
					 errhint("See %s and %s instead.",
							 printed_command("progress"), printed_command("history"))));
	}
}

/* Notice the loss of the client without sending it a message. */
static void
check_client(void)
{
	if (MyProcPort != NULL && whereToSendOutput == DestRemote &&
		!pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}

/* Return whether the first worker has ended, or never started. */
static bool
worker_has_stopped(const JobWait *wait)
{
	pid_t		pid;

	return GetBackgroundWorkerPid(wait->worker, &pid) == BGWH_STOPPED;
}

/* Cancel the job when the wait ends by ERROR or FATAL. */
static void
abandon_job(int code, Datum arg)
{
	JobWait    *wait = (JobWait *) DatumGetPointer(arg);
	JobShared  *shared = wait->shared;
	TimestampTz start = GetCurrentTimestamp();
	JobSlot		slot;

	if (wait->abandoned)
		return;
	wait->abandoned = true;
	(void) job_request(shared->job, REQUEST_CANCEL);
	snapshot_guard_end();

	/*
	 * The user's next command should find the table free.  Only briefly,
	 * because interrupts are not served here.
	 */
	while (!proc_exit_inprogress &&
		   job_get_slot(shared->slot, shared->job, &slot) &&
		   !TimestampDifferenceExceeds(start, GetCurrentTimestamp(), CANCEL_WAIT_MS))
	{
		/* a worker that never started will not free the slot */
		if (slot.state == JOB_STARTING && worker_has_stopped(wait))
			job_free_slot(shared->slot, shared->job);

		/* a worker that is starting missed the signal, but not the flag */
		nap_for_rows(10);
	}
}

/*
 * In PG_CATCH(), rethrow a cancel with the number of moves by then.  Ends the
 * job first, because a move may end until then.
 */
static void
rethrow_with_outcome(JobWait *wait, MemoryContext context)
{
	const JobShared *shared = wait->shared;
	ErrorData  *error;
	JobTotals	totals;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	if (error->sqlerrcode != ERRCODE_QUERY_CANCELED || error->detail != NULL)
		return;
	FlushErrorState();

	abandon_job(0, PointerGetDatum(wait));
	totals = job_totals(shared->items, shared->nitems);
	error->detail = psprintf(ngettext("%d of %d %s of job " INT64_FORMAT " has been moved.",
									  "%d of %d %s of job " INT64_FORMAT " have been moved.",
									  totals.total),
							 totals.moved, totals.total, relations_noun(&totals), shared->job);
	/* before that it is not in the history */
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
	TimestampTz last_look = GetCurrentTimestamp();
	TimestampTz last_notice = last_look;

	for (;;)
	{
		TimestampTz now;
		bool		stopped;

		CHECK_FOR_INTERRUPTS();

		/*
		 * In this order, since a worker that has stopped sends nothing more.
		 * If it has begun, one of the others may still be at work, or about
		 * to publish the rows although the slot is free already.
		 */
		stopped = worker_has_stopped(wait) && !shared->begun;
		relay_messages(wait);
		if (pg_atomic_read_u32(&shared->rows_final) != 0)
		{
			pg_read_barrier();
			relay_messages(wait);
			break;
		}
		if (stopped)
		{
			job_free_slot(shared->slot, shared->job);
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("background worker of index_mover did not start or ended early"),
					 wait->worker_error.elevel != 0 ?
					 errdetail_internal("%s", wait->worker_error.message) : 0,
					 errhint("See the server log for the reason.")));
		}

		now = GetCurrentTimestamp();
		if (TimestampDifferenceExceeds(last_look, now, LOOK_INTERVAL_MS))
		{
			check_client();
			check_worker_deadlock(shared);
			last_look = now;
		}
		if (shared->settings.progress_interval > 0 &&
			TimestampDifferenceExceeds(last_notice, now, shared->settings.progress_interval))
		{
			progress_view_notices(shared->job);
			last_notice = now;
		}

		nap_for_rows(LOOK_INTERVAL_MS);
	}
}

/* As collect_rows(), with the messages to the client of a move. */
static void
collect_rows_of_move(JobWait *wait, JobSummary *begin)
{
	MemoryContext oldcontext = CurrentMemoryContext;

	PG_TRY();
	{
		if (wait->shared->settings.progress_interval > 0)
			notices_begin(begin);
		collect_rows(wait);
		submit_job_has_begun(begin->job);
	}
	PG_CATCH();
	{
		if (wait->shared->begun)
			submit_job_has_begun(begin->job);
		rethrow_with_outcome(wait, oldcontext);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Run a job and wait for its rows, which are returned as a palloc'd copy.
 * For a JOB_CLEANUP with items, do nothing and return NULL if there is no
 * slot or no worker.
 *
 * ERRORs: 53000 no worker, no slot; 55006 a table is being moved; 40P01 the
 * job waits for a process that waits for us; 57014 and the like after canceling the job.
 */
MoveItem *
wait_for_rows(int64 job, JobPurpose purpose, List *items,
			  const MoveSettings *settings)
{
	JobWait		wait = {0};
	JobSummary	begin = {.job = job};
	dsm_segment *segment;
	MoveItem   *result;
	Size		size;

	/* first, because it may fail, which would cancel the job */
	if (items != NIL)
		begin.target = get_tablespace_name(((MoveItem *) linitial(items))->to_tablespace);

	wait.shared = job_launch_create(job, MyDatabaseId, TERMS_ROLE(settings), purpose,
									JOB_STARTING, items, settings, true, &segment);
	if (wait.shared == NULL)
		return NULL;
	begin.totals = job_totals(wait.shared->items, wait.shared->nitems);
	attach_queues(&wait, segment);

	/* before the job can start */
	snapshot_guard_begin();
	PG_TRY();
	{
		wait.worker = job_launch_worker(wait.shared->slot, wait.shared->job,
										job_launch_is_optional(job, purpose, items));
	}
	PG_CATCH();
	{
		snapshot_guard_end();
		job_free_slot(wait.shared->slot, wait.shared->job);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (wait.worker == NULL)
	{
		snapshot_guard_end();
		dsm_detach(segment);
		return NULL;
	}
	PG_ENSURE_ERROR_CLEANUP(abandon_job, PointerGetDatum(&wait));
	{
		if (purpose == JOB_MOVE)
			collect_rows_of_move(&wait, &begin);
		else
			collect_rows(&wait);
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_job, PointerGetDatum(&wait));
	snapshot_guard_end();

	size = sizeof(MoveItem) * wait.shared->nitems;
	result = palloc(Max(size, 1));
	memcpy(result, wait.shared->items, size);

	/* the worker tolerates that its messages have no receiver any more */
	dsm_detach(segment);

	/* the rows do not have the reason; a FATAL comes from SIGTERM */
	if (wait.worker_error.elevel == ERROR)
		ereport(WARNING,
				(errcode(wait.worker_error.sqlerrcode),
				 errmsg("background worker of index_mover ended early"),
				 errdetail_internal("%s", wait.worker_error.message)));
	return result;
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

/*
 * Wait until a job has ended, whichever session has submitted it, without
 * reading its rows; tell its progress.  Return false if there is no such job.
 *
 * To be called in a transaction that has only begun: no one needs to wait for
 * it, but programs that poll pg_locks would (see pollers.c), so it is not
 * shown meanwhile.  ERROR 40P01 if the job waits for this session all the same.
 */
bool
wait_for_job(int64 job)
{
	TimestampTz last_notice = GetCurrentTimestamp();
	TimestampTz last_look = last_notice;
	int			behind_citus = citus_caller_pid();
	MoveSettings settings;
	JobSlot		slot;
	bool		found = false;

	Assert(!ActiveSnapshotSet() && !TransactionIdIsValid(GetTopTransactionIdIfAny()));
	settings_capture(&settings);
	show_transaction(false);
	while (job_find(job, &slot) && slot.state != JOB_CLEANING_UP)
	{
		TimestampTz now = GetCurrentTimestamp();

		found = true;
		if (settings.progress_interval > 0 &&
			TimestampDifferenceExceeds(last_notice, now, settings.progress_interval))
		{
			progress_view_notices(job);
			last_notice = now;
		}
		if (TimestampDifferenceExceeds(last_look, now, LOOK_INTERVAL_MS))
		{
			check_job_waits_for_us(job, behind_citus);
			last_look = now;
		}
		/* a rebuild would wait for it */
		InvalidateCatalogSnapshot();
		nap_for_rows(100);
		CHECK_FOR_INTERRUPTS();
	}
	show_transaction(true);
	return found;
}
