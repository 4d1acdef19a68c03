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
#include "storage/pmsignal.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

#include "call/call.h"
#include "own_tables.h"
#include "tier/tier_private.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(index_mover_run_tier_policies);
PGDLLEXPORT void index_mover_tier_main(Datum arg);

#define QUEUE_SIZE		65536

StaticAssertDecl(sizeof(TierWorker) <= BGW_EXTRALEN, "TierWorker is too large");

/* The job that a policy is planned to be */
typedef struct PlannedJob
{
	MoveSettings settings;
	List	   *items;			/* NIL = nothing is to be moved */
} PlannedJob;

/* A policy in a call of run_tier_policies() */
typedef struct PolicyCall
{
	FunctionCallInfo fcinfo;
	const Policy *policy;
	List	   *claimed;		/* tables of the policies before */
} PolicyCall;

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

static TierWorker my_args;
static const char *volatile failure = NULL; /* of the run, if it ends now */
static TimeoutId end_timeout;

/* What it runs can catch the error of a cancel, but not this. */
static void
end_planning(void)
{
	failure = "it was planned for too long, and could not be canceled";
	kill(MyProcPid, SIGTERM);
}

/* An exit cannot be interrupted, so it does not wait for a session with the table locked. */
static void
record_failure(void *arg)
{
	if (!proc_exit_inprogress ||
		ConditionalLockRelationOid(extension_relation("policy_run"), RowExclusiveLock))
		policy_run_record(NameStr(my_args.name), 0, failure);
}

/* Exit callback: no PG_CATCH sees a FATAL.  Without a postmaster, exit at once. */
static void
end_at_exit(int code, Datum arg)
{
	AbortOutOfAnyTransaction();
	if (failure != NULL && PostmasterIsAlive())
		(void) errors_catch_in_transaction(record_failure, NULL);
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
	PlannedJob *job = arg;
	const char *name = NameStr(my_args.name);
	MoveSettings *settings = &job->settings;
	List	   *policies;
	const Policy *policy;
	bool		scheduled = my_args.segment == DSM_HANDLE_INVALID;

	MemoryContextSwitchTo(TopMemoryContext);
	(void) policy_lock_table(true, false);
	if (scheduled)				/* else the caller has the lock */
	{
		PolicyRun	record;

		(void) policy_lock(my_args.role, false);
		policy_run_read(name, &record);
		if (record.job != RUN_BEGUN)
		{
			failure = NULL;
			proc_exit(0);		/* another came first, or that has failed */
		}
	}
	policies = policies_read(name, false);
	policy = policies != NIL ? linitial(policies) : NULL;
	if (policy == NULL || policy->owner != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tier policy \"%s\" has changed", name)));
	enable_timeout_after(STATEMENT_TIMEOUT, PLAN_TIMEOUT_MS);
	enable_timeout_after(end_timeout, PLAN_END_MS);
	job->items = tier_plan_items(policy, settings);

	/* no relation begins after it, however long this took */
	if (my_args.window_end != 0)
	{
		int			left = (my_args.window_end - GetCurrentTimestamp()) / USECS_PER_SEC;
		char	   *json = psprintf("{\"max_duration\": %d}", left);

		if (left <= 0)
			job->items = NIL;
		else if (settings->max_duration == 0 || settings->max_duration > left)
			settings_alter(settings, DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json))));
	}
	settings->terms.role = GetUserId();
	settings->terms.job = job->items != NIL ? history_next_job() : 0;
	policy_run_record(name, settings->terms.job, NULL);
	if (job->items != NIL && scheduled)
		submit_at_commit(settings->terms.job, job->items, settings);
}

/* Run a policy, and hand the plan to the caller, if there is one. */
static void
run_policy(bool called)
{
	PlannedJob	job = {0};
	ErrorData  *error;
	int			tries = 0;

	failure = called ? NULL : RUN_DIED;
	/* its messages go to the caller, who writes them to the log */
	if (called)
		SetConfigOption("log_min_messages", "fatal", PGC_SUSET, PGC_S_OVERRIDE);
	end_timeout = RegisterTimeout(USER_TIMEOUT, end_planning);

	/* a relation that another job has taken since is a hindrance in the next */
	do
		error = errors_catch_in_transaction(carry_out, &job);
	while (error != NULL && error->sqlerrcode == ERRCODE_OBJECT_IN_USE && ++tries < 3);
	disable_all_timeouts(false);
	if (error != NULL)
	{
		failure = error->message;
		job.items = NIL;
		(void) errors_catch_in_transaction(record_failure, NULL);
		warn_of_error(NameStr(my_args.name), error);
	}
	failure = NULL;
	if (called)
	{
		StringInfoData message;

		pq_beginmessage(&message, 'D');
		pq_sendbytes(&message, (char *) &job.settings, sizeof(MoveSettings));
		foreach_ptr(const char, item, job.items)
			pq_sendbytes(&message, item, sizeof(MoveItem));
		pq_endmessage(&message);
	}
}

void
index_mover_tier_main(Datum arg)
{
	dsm_segment *segment = NULL;

	memcpy(&my_args, MyBgworkerEntry->bgw_extra, sizeof(my_args));
	worker_unblock_signals();
	if (my_args.segment != DSM_HANDLE_INVALID && (segment = dsm_attach(my_args.segment)) == NULL)
		proc_exit(0);			/* its caller, or the scheduler, has gone */
	if (segment != NULL && !my_args.looks)
	{
		shm_mq_set_sender(dsm_segment_address(segment), MyProc);
		pq_redirect_to_shm_mq(segment, shm_mq_attach(dsm_segment_address(segment), segment, NULL));
	}
	worker_connect_as(my_args.database, my_args.role);
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	before_shmem_exit(end_at_exit, (Datum) 0);
	if (my_args.looks)
	{
		tier_look(&my_args);
		*(int *) dsm_segment_address(segment) = my_args.next;
	}
	else
		run_policy(segment != NULL);
	proc_exit(0);
}

/* In the caller */

static void
terminate_worker(int code, Datum worker)
{
	TerminateBackgroundWorker((BackgroundWorkerHandle *) DatumGetPointer(worker));
}

/* Have a policy planned; ERROR if its worker ends without a plan. */
static PlannedJob *
plan_in_worker(const Policy *policy)
{
	dsm_segment *segment = dsm_create(QUEUE_SIZE, 0);
	shm_mq	   *queue = shm_mq_create(dsm_segment_address(segment), QUEUE_SIZE);
	TierWorker	worker_args = {.database = MyDatabaseId,.role = policy->owner,.name = policy->name,
	.segment = dsm_segment_handle(segment)};
	BackgroundWorkerHandle *worker;
	ErrorData	error = {0};
	StringInfoData plan;
	PlannedJob *result = palloc_object(PlannedJob);

	if (!OidIsValid(policy->owner))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("its owner is to be set again"),
				 errhint("Update the column \"owner\" of its row in tier_policy.")));
	initStringInfo(&plan);
	shm_mq_set_receiver(queue, MyProc);
	(void) policy_lock(policy->owner, false);
	worker = tier_worker_start(&worker_args, ERROR);
	/* also if this session is terminated: its worker may sleep */
	PG_ENSURE_ERROR_CLEANUP(terminate_worker, PointerGetDatum(worker));
	{
		relay_messages(shm_mq_attach(queue, segment, worker), false, &error, &plan);
	}
	PG_END_ENSURE_ERROR_CLEANUP(terminate_worker, PointerGetDatum(worker));
	UnlockDatabaseObject(AuthIdRelationId, policy->owner, 0, ExclusiveLock);
	dsm_detach(segment);
	if (plan.len == 0)
		worker_ended_early(&error);
	memcpy(&result->settings, plan.data, sizeof(MoveSettings));
	result->items = NIL;
	for (int at = sizeof(MoveSettings); at < plan.len; at += sizeof(MoveItem))
		result->items = lappend(result->items, memcpy(palloc_object(MoveItem), plan.data + at, sizeof(MoveItem)));
	return result;
}

/* In a subtransaction: plan a policy, and submit its job. */
static void
call_policy(void *arg)
{
	PolicyCall *call = arg;
	const PlannedJob *job = plan_in_worker(call->policy);
	List	   *items = NIL;
	List	   *tables = NIL;

	foreach_ptr(MoveItem, item, job->items)
	{
		/* a TOAST table goes with its table */
		Oid			table = OidIsValid(item->part_of) ? item->part_of : item->heap_oid;

		if (list_member_oid(call->claimed, table))
			continue;
		items = lappend(items, item);
		tables = lappend_oid(tables, table);
	}
	call->claimed = list_concat(call->claimed, tables);
	if (items != NIL)
		result_rows_of_plan(call->fcinfo, items, &job->settings, false, DatumGetBool(call->fcinfo->args[1].value));
	else if (job->items != NIL)
		ereport(NOTICE,
				(errmsg("policy \"%s\" moves nothing: %s", NameStr(call->policy->name),
						"other policies have its tables first")));
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
	PolicyCall	call = {.fcinfo = fcinfo};

	reject_null(fcinfo, 1, "wait");
	call_check_moment("run_tier_policies()", false, PG_GETARG_BOOL(1));
	/* not in a subtransaction, which would close its file */
	InitMaterializedSRF(fcinfo, 0);
	foreach_ptr(const Policy, policy, policies_read(PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0)), false))
	{
		ErrorData  *error;

		call.policy = policy;
		error = errors_catch(call_policy, &call);
		if (errors_was_canceled(error))
			ReThrowError(error);
		if (error != NULL)
			warn_of_error(NameStr(policy->name), error);
	}
	return (Datum) 0;
}
