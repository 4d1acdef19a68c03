/*-------------------------------------------------------------------------
 *
 * tier_run.c
 *	  Carrying out a policy: planned in a worker's session of its owner, then a job
 *	  of the owner's.
 *
 * The worker hands its plan back to a caller, which submits the job, so that it
 * begins with the caller's commit, or the caller waits for its rows; for the
 * scheduler, it submits the job itself.  A policy that fails is a WARNING, of the call
 * or in the server log, and is on record in policy_run.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "libpq/pqformat.h"
#include "libpq/pqmq.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

#include "call/call.h"
#include "own_tables.h"
#include "tier/tier_private.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(index_mover_run_tier_policies);
PGDLLEXPORT void index_mover_policy_main(Datum arg);

#define QUEUE_SIZE		65536

/* The arguments of the worker of a policy */
typedef struct RunExtra
{
	Oid			database;
	Oid			owner;
	NameData	policy;
	int64		job;			/* number for the caller's job; 0 = the
								 * scheduler has begun the run, and the worker
								 * submits it */
	dsm_handle	queue;			/* to the caller */
	TimestampTz window_end;		/* after which no relation begins; 0 = none */
} RunExtra;

StaticAssertDecl(sizeof(RunExtra) <= BGW_EXTRALEN, "RunExtra is too large");

static void
warn_of_error(const char *policy, const ErrorData *error)
{
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("policy \"%s\" moves nothing: %s", policy, error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0));
}

/* In the worker */

/* A run of a policy */
typedef struct TierRun
{
	RunExtra	extra;			/* in the worker */
	PolicyRun	record;
	TimeoutId	end_timeout;
	FunctionCallInfo fcinfo;	/* in the caller */
	const Policy *policy;
	MoveSettings settings;		/* of the job, and its items */
	List	   *items;
} TierRun;

static volatile sig_atomic_t planning_ended = false;

/* What it runs can catch the error of a cancel, but not this. */
static void
end_planning(void)
{
	planning_ended = true;
	kill(MyProcPid, SIGTERM);
}

/* Record the run; its caller may have made the policy, and not committed. */
static void
record_run(void *arg)
{
	const TierRun *run = arg;

	(void) policy_lock_table(true);
	if (policies_read(NameStr(run->extra.policy), true) != NIL)
		policy_run_write(NameStr(run->extra.policy), &run->record);
	commit_locally();
}

/* Exit callback: record the FATAL of end_planning(), which no PG_CATCH sees. */
static void
record_end(int code, Datum arg)
{
	TierRun    *run = (TierRun *) DatumGetPointer(arg);

	if (!planning_ended)
		return;
	AbortOutOfAnyTransaction();
	run->record.job = 0;
	run->record.message = "it was planned for too long, and could not be canceled";
	(void) errors_catch_in_transaction(record_run, run);
	extension_release();
}

/*
 * Plan the policy as the current user, its owner, record the run, and for the
 * scheduler submit the job.  In a security-restricted operation here, too: before 17
 * the session's own user is a superuser (worker_connect_as()), and what the policy
 * runs must not become it.
 */
static void
carry_out(void *arg)
{
	TierRun    *run = arg;
	const RunExtra *extra = &run->extra;
	const char *name = NameStr(extra->policy);
	MoveSettings *settings = &run->settings;
	List	   *policies;
	const Policy *policy;
	bool		scheduled = extra->job == 0;
	List	   *items;
	char	   *why;

	MemoryContextSwitchTo(TopMemoryContext);
	(void) policy_lock_table(true);
	if (scheduled)				/* else the caller has the lock */
		(void) policy_lock(extra->owner, false);
	policy_run_read(name, &run->record);
	if (scheduled && run->record.job != RUN_BEGUN)
		proc_exit(0);			/* another came first, or that has failed */
	if (!scheduled)
	{
		run->record.failures = policy_failures(&run->record, &why);
		run->record.started_at = GetCurrentTimestamp();
	}
	run->record.message = NULL;
	policies = policies_read(name, false);
	policy = policies != NIL ? linitial(policies) : NULL;
	if (policy == NULL || policy->owner != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tier policy \"%s\" has changed", name)));
	enable_timeout_after(STATEMENT_TIMEOUT, PLAN_TIMEOUT_MS);
	enable_timeout_after(run->end_timeout, PLAN_END_MS);
	items = tier_plan_items(policy, settings);

	/* no relation begins after it, however long this took */
	if (extra->window_end != 0)
	{
		int			left = (extra->window_end - GetCurrentTimestamp()) / USECS_PER_SEC;
		char	   *json = psprintf("{\"max_duration\": %d}", left);

		if (left <= 0)
			items = NIL;
		else if (settings->max_duration == 0 || settings->max_duration > left)
			settings_alter(settings, DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json))));
	}
	settings->terms.role = GetUserId();
	settings->terms.job = extra->job;
	run->record.job = items == NIL ? 0 : scheduled ? history_next_job() : extra->job;
	policy_run_write(name, &run->record);
	if (items != NIL && scheduled)
		submit_at_commit(run->record.job, items, settings);
	run->items = items;
	commit_locally();
}

void
index_mover_policy_main(Datum arg)
{
	TierRun		run = {0};
	const RunExtra *extra = &run.extra;
	ErrorData  *error;
	int			tries = 0;

	memcpy(&run.extra, MyBgworkerEntry->bgw_extra, sizeof(RunExtra));
	worker_unblock_signals();
	if (extra->job != 0)
	{
		dsm_segment *segment = dsm_attach(extra->queue);
		shm_mq	   *queue;

		if (segment == NULL)
			proc_exit(0);		/* the caller has given up */
		queue = dsm_segment_address(segment);
		shm_mq_set_sender(queue, MyProc);
		pq_redirect_to_shm_mq(segment, shm_mq_attach(queue, segment, NULL));
	}
	worker_connect_as(extra->database, extra->owner);
	/* its messages go to the caller, who writes them to the log */
	if (extra->job != 0)
		SetConfigOption("log_min_messages", "fatal", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	run.end_timeout = RegisterTimeout(USER_TIMEOUT, end_planning);
	before_shmem_exit(record_end, PointerGetDatum(&run));

	/* a relation that another job has taken since is a hindrance in the next */
	do
		error = errors_catch_in_transaction(carry_out, &run);
	while (error != NULL && error->sqlerrcode == ERRCODE_OBJECT_IN_USE && ++tries < 3);
	disable_all_timeouts(false);
	planning_ended = false;
	if (error != NULL)
	{
		run.items = NIL;
		run.record.job = 0;
		run.record.message = error->message;
		if (run.record.started_at != 0)
			(void) errors_catch_in_transaction(record_run, &run);
		warn_of_error(NameStr(extra->policy), error);
	}
	extension_release();
	if (extra->job != 0)
	{
		StringInfoData message;

		pq_beginmessage(&message, 'D');
		pq_sendbytes(&message, (char *) &run.settings, sizeof(MoveSettings));
		foreach_ptr(const char, item, run.items)
			pq_sendbytes(&message, item, sizeof(MoveItem));
		pq_endmessage(&message);
	}
	proc_exit(0);
}

/* In the caller, and in the scheduler */

/*
 * Ask for the worker of a policy; NULL if there is no free worker slot.  Without a job
 * and a queue it has to be committed that the run has begun.
 */
BackgroundWorkerHandle *
tier_run_start(const Policy *policy, int64 job, dsm_handle queue, TimestampTz window_end)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;
	RunExtra	extra = {.database = MyDatabaseId,.owner = policy->owner,.policy = policy->name,
	.job = job,.queue = queue,.window_end = window_end};

	snprintf(worker.bgw_name, BGW_MAXLEN, "index_mover policy %s", NameStr(policy->name));
	worker_describe(&worker, "index_mover policy", "index_mover_policy_main");
	memcpy(worker.bgw_extra, &extra, sizeof(extra));
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : NULL;
}

/* Take the messages of the worker until it ends.  ERROR if it does so without a plan. */
static void
receive_plan(TierRun *run, shm_mq_handle *messages)
{
	Size		nbytes;
	void	   *data;
	bool		received = false;

	while (shm_mq_receive(messages, &nbytes, &data, false) == SHM_MQ_SUCCESS)
	{
		StringInfoData msg = {.data = data,.len = nbytes};
		ErrorData	error;
		char		type = pq_getmsgbyte(&msg);

		if (type == 'D')
		{
			received = true;
			pq_copymsgbytes(&msg, (char *) &run->settings, sizeof(MoveSettings));
			while (msg.cursor < msg.len)
			{
				MoveItem   *item = palloc_object(MoveItem);

				pq_copymsgbytes(&msg, (char *) item, sizeof(MoveItem));
				run->items = lappend(run->items, item);
			}
		}
		else if (type == 'N' || type == 'E')
		{
			pq_parse_errornotice(&msg, &error);
			error.elevel = Min(error.elevel, ERROR);
			/* or it ends early, which is on record */
			if (type == 'N' || error.sqlerrcode != ERRCODE_ADMIN_SHUTDOWN)
				ThrowErrorData(&error);
		}
	}
	if (!received)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("background worker of index_mover did not start or ended early"),
				 errhint("See the server log for the reason.")));
}

static void
terminate_worker(int code, Datum worker)
{
	TerminateBackgroundWorker((BackgroundWorkerHandle *) DatumGetPointer(worker));
}

static void
plan_in_worker(void *arg)
{
	TierRun    *run = arg;
	dsm_segment *segment = dsm_create(QUEUE_SIZE, 0);
	shm_mq	   *queue = shm_mq_create(dsm_segment_address(segment), QUEUE_SIZE);
	BackgroundWorkerHandle *worker;

	if (!OidIsValid(run->policy->owner))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("its owner is to be set again"),
				 errhint("Update the column \"owner\" of its row in tier_policy.")));
	shm_mq_set_receiver(queue, MyProc);
	(void) policy_lock(run->policy->owner, false);
	worker = tier_run_start(run->policy, history_next_job(), dsm_segment_handle(segment), 0);
	if (worker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not register background process"),
				 errhint("You may need to increase \"max_worker_processes\".")));
	/* also if this session is terminated: its worker may sleep */
	PG_ENSURE_ERROR_CLEANUP(terminate_worker, PointerGetDatum(worker));
	{
		receive_plan(run, shm_mq_attach(queue, segment, worker));
	}
	PG_END_ENSURE_ERROR_CLEANUP(terminate_worker, PointerGetDatum(worker));
	UnlockDatabaseObject(AuthIdRelationId, run->policy->owner, 0, ExclusiveLock);
	dsm_detach(segment);
}

static void
submit(void *arg)
{
	TierRun    *run = arg;

	result_rows_of_plan(run->fcinfo, run->items, &run->settings, false,
						DatumGetBool(run->fcinfo->args[1].value));
}

/* Run a step in a subtransaction; if it fails, WARN of its error, and return false. */
static bool
try_to(void (*step) (void *arg), TierRun *run)
{
	ErrorData  *error = errors_catch(step, run);

	if (errors_was_canceled(error))
		ReThrowError(error);
	if (error != NULL)
		warn_of_error(NameStr(run->policy->name), error);
	return error == NULL;
}

/*
 * run_tier_policies(policy_name name DEFAULT NULL, wait boolean DEFAULT false)
 *		RETURNS SETOF move_result
 *
 * Moves as tier_plan() says, in one job for each policy, which belongs to the
 * policy's owner.  A policy counts once it is committed.  EXECUTE is revoked from
 * PUBLIC.  ERRORs: those of call_check_moment(); 42704 no such policy.
 */
Datum
index_mover_run_tier_policies(PG_FUNCTION_ARGS)
{
	List	   *claimed = NIL;	/* tables of the policies before */

	reject_null(fcinfo, 1, "wait");
	call_check_moment("run_tier_policies()", false, PG_GETARG_BOOL(1));
	/* not in a subtransaction, which would close its file */
	InitMaterializedSRF(fcinfo, 0);
	foreach_ptr(const Policy, policy, policies_read(PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0)), false))
	{
		TierRun		run = {.fcinfo = fcinfo,.policy = policy};
		List	   *items = NIL;

		if (!try_to(plan_in_worker, &run) || run.items == NIL)
			continue;
		foreach_ptr(MoveItem, item, run.items)
		{
			/* a TOAST table goes with its table */
			if (!list_member_oid(claimed, OidIsValid(item->part_of) ? item->part_of : item->heap_oid))
				items = lappend(items, item);
		}
		foreach_ptr(const MoveItem, item, items)
			claimed = lappend_oid(claimed, item->heap_oid);
		run.items = items;
		if (items != NIL)
			(void) try_to(submit, &run);
		else
			ereport(NOTICE,
					(errmsg("policy \"%s\" moves nothing: %s", NameStr(policy->name),
							"other policies have its tables first")));
	}
	return (Datum) 0;
}
