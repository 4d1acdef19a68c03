/*-------------------------------------------------------------------------
 *
 * tier_run.c
 *	  Carrying out a policy: planned in a worker's session of its owner, then a job
 *	  of the owner's.
 *
 * Whoever calls run_tier_policies(), and the scheduler, only starts a worker for
 * each policy.  What a policy makes run, such as its now_function, runs there with
 * its owner's privileges and settings, and leaves nothing behind in the caller's
 * session.  The worker hands its plan back to a caller, which submits the job, so
 * that it begins with the caller's commit, or the caller waits for its rows; for
 * the scheduler, it submits the job itself.
 *
 * A policy that fails is a WARNING, of the call or in the server log, and is on
 * record in policy_run.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "libpq/pqformat.h"
#include "libpq/pqmq.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "compat.h"
#include "own_tables.h"
#include "tier/policy.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(index_mover_run_tier_policies);
PGDLLEXPORT void index_mover_policy_main(Datum arg);

#define QUEUE_SIZE		65536
#define PLAN_TIMEOUT_MS	(5 * 60 * 1000) /* a now_function can sleep */

static uint32 wait_event = 0;

/* The arguments of the worker of a policy */
typedef struct RunExtra
{
	Oid			database;
	Oid			owner;
	NameData	policy;
	int64		job;			/* number for the caller's job; 0 = the worker
								 * submits it */
	dsm_handle	queue;
} RunExtra;

StaticAssertDecl(sizeof(RunExtra) <= BGW_EXTRALEN, "RunExtra is too large");

/* The head of the worker's answer, before the items */
typedef struct RunPlan
{
	MoveSettings settings;
	int			nitems;
} RunPlan;

/* ----------------------------------------------------------------
 *	In the worker
 * ----------------------------------------------------------------
 */

static void
add_policy_name(void *arg)
{
	const RunExtra *extra = arg;

	errcontext("index_mover policy \"%s\"", NameStr(extra->policy));
}

/*
 * Hold the extension's tables, so that no DROP EXTENSION waits for one while
 * another one is waited for here.  ERROR 55P03 if one is locked, or gone.
 */
void
tier_hold_extension(void)
{
	Oid			busy;

	if (extension_hold(&busy) != EXTENSION_HELD ||
		!ConditionalLockRelationOid(policy_table(), AccessShareLock))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on the tables of extension \"%s\"", "index_mover")));
}

/* Tell why nothing moves, if the policy wants something to. */
static void
notice_refused(const PlanWork *work)
{
	const TierRow *first = NULL;
	int			n = 0;
	ListCell   *lc;

	foreach(lc, work->rows)
	{
		const TierRow *row = lfirst(lc);

		if (!row->refused)
			continue;
		if (n++ == 0)
			first = row;
	}
	if (n > 0)
		ereport(NOTICE,
				(errmsg("policy \"%s\" moves nothing: %s%s", NameStr(work->policy->name),
						!OidIsValid(first->relid) ? "" :
						psprintf("%s: ", DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(first->relid)))),
						first->reason),
				 n > 1 ? errdetail("The plan has %d reasons.", n) : 0));
}

/*
 * Plan the policy as the current user, its owner: return the items to move.  In a
 * security-restricted operation here, too: before 17 the session's own user is a
 * superuser (worker_connect_as()), and what the policy runs must not become it.
 */
static List *
plan_items(const RunExtra *extra, bool scheduled, MoveSettings *settings)
{
	List	   *policies = policies_read(NameStr(extra->policy), false);
	PlanWork	work = {tier_plan_begin(0), policies != NIL ? linitial(policies) : NULL};
	List	   *items = NIL;
	bool		has_window;
	int			left;
	ListCell   *lc;

	if (work.policy == NULL || work.policy->owner != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tier policy \"%s\" has changed", NameStr(extra->policy))));
	/* no further relation begins after the end of the window */
	has_window = scheduled && policy_window(work.policy, GetCurrentTimestamp(), &left);
	if (has_window)
		SetConfigOption("index_mover.max_duration", psprintf("%d", Max(left, 1)), PGC_SUSET, PGC_S_SESSION);
	enable_timeout_after(STATEMENT_TIMEOUT, PLAN_TIMEOUT_MS);
	policy_as_owner(work.policy->owner, tier_plan_policy, &work);
	disable_timeout(STATEMENT_TIMEOUT, false);
	*settings = work.settings;
	foreach(lc, work.rows)
		items = list_concat(items, ((const TierRow *) lfirst(lc))->items);
	if (items == NIL)
		notice_refused(&work);

	/* whatever the policy's settings say */
	if (has_window && (settings->max_duration == 0 || settings->max_duration > left))
		settings->max_duration = Max(left, 1);
	return items;
}

/* Record a run, which has submitted a job, or has failed. */
static void
record_run(const RunExtra *extra, int64 job, const ErrorData *error)
{
	PolicyRun	run;
	char	   *why;

	policy_run_read(NameStr(extra->policy), &run);
	run = (PolicyRun)
	{
		.started_at = GetCurrentTimestamp(),.job = job,.failures = policy_failures(&run, &why)
	};
	if (error != NULL)
	{
		run.sqlstate = unpack_sql_state(error->sqlerrcode);
		run.message = error->message;
	}
	policy_run_write(NameStr(extra->policy), &run);
}

/*
 * Carry out the policy, or hand back its plan, in a transaction of its own; or
 * record that it has failed.
 */
static List *
carry_out(const RunExtra *extra, RunPlan *result, const ErrorData *error)
{
	List	   *items = NIL;
	int64		job = extra->job;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	tier_hold_extension();
	MemoryContextSwitchTo(TopMemoryContext);
	if (error == NULL)
	{
		items = plan_items(extra, job == 0, &result->settings);
		result->settings.terms.role = GetUserId();
		result->settings.terms.job = job;
		result->nitems = list_length(items);
		if (items != NIL && job == 0)
			job = submit_next_job();
	}
	record_run(extra, items == NIL ? 0 : job, error);
	if (items != NIL && extra->job == 0)
		submit_at_commit(job, JOB_MOVE, items, &result->settings);
	commit_locally();
	PopActiveSnapshot();
	CommitTransactionCommand();
	extension_release();
	return items;
}

void
index_mover_policy_main(Datum arg)
{
	MemoryContext context = TopMemoryContext;
	RunExtra	extra;
	RunPlan		result;
	List	   *volatile items = NIL;
	ErrorData  *volatile error = NULL;
	ErrorContextCallback name_policy = {.callback = add_policy_name,.arg = &extra};
	StringInfoData message;
	ListCell   *lc;

	memcpy(&extra, MyBgworkerEntry->bgw_extra, sizeof(extra));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	if (extra.queue != DSM_HANDLE_INVALID)
	{
		dsm_segment *segment = dsm_attach(extra.queue);
		shm_mq	   *queue;

		if (segment == NULL)
			proc_exit(0);		/* the caller has given up */
		queue = dsm_segment_address(segment);
		shm_mq_set_sender(queue, MyProc);
		pq_redirect_to_shm_mq(segment, shm_mq_attach(queue, segment, NULL));
	}
	worker_connect_as(extra.database, extra.owner);
	worker_apply_settings();
	/* what it says goes to the caller, who writes it to the log */
	if (extra.queue != DSM_HANDLE_INVALID)
		SetConfigOption("log_min_messages", "fatal", PGC_SUSET, PGC_S_OVERRIDE);
	pgstat_report_appname("index_mover");
	name_policy.previous = error_context_stack;
	error_context_stack = &name_policy;

	PG_TRY();
	{
		items = carry_out(&extra, &result, NULL);
	}
	PG_CATCH();
	{
		error = errors_take(context);
	}
	PG_END_TRY();
	if (error != NULL)
	{
		disable_all_timeouts(false);
		/* if the tables are locked, that is the error */
		(void) carry_out(&extra, &result, error);
		result.nitems = 0;
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("policy \"%s\" moves nothing: %s", NameStr(extra.policy), error->message),
				 error->detail ? errdetail_internal("%s", error->detail) : 0,
				 error->hint ? errhint("%s", error->hint) : 0));
	}
	if (extra.queue != DSM_HANDLE_INVALID)
	{
		pq_beginmessage(&message, 'D');
		pq_sendbytes(&message, (char *) &result, sizeof(result));
		foreach(lc, items)
			pq_sendbytes(&message, lfirst(lc), sizeof(MoveItem));
		pq_endmessage(&message);
	}
	proc_exit(0);
}

/* ----------------------------------------------------------------
 *	In the caller, and in the scheduler
 * ----------------------------------------------------------------
 */

/* Ask for the worker of a policy; NULL if there is no free worker slot. */
static BackgroundWorkerHandle *
start_worker(Oid database, Oid owner, const char *policy, int64 job, dsm_handle queue)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;
	RunExtra	extra = {.database = database,.owner = owner,.job = job,.queue = queue};

	namestrcpy(&extra.policy, policy);
	snprintf(worker.bgw_name, BGW_MAXLEN, "index_mover policy %s", policy);
	worker_describe(&worker, "index_mover policy", "index_mover_policy_main");
	memcpy(worker.bgw_extra, &extra, sizeof(extra));
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : NULL;
}

/* Have a policy carried out by itself; false if there is no free worker slot. */
bool
tier_run_start(Oid database, Oid owner, const char *policy)
{
	return start_worker(database, owner, policy, 0, DSM_HANDLE_INVALID) != NULL;
}

/* A policy that a caller has planned in a worker */
typedef struct CallRun
{
	FunctionCallInfo fcinfo;
	bool		wait;
	const Policy *policy;
	MoveSettings settings;
	List	   *items;
} CallRun;

/* Take the messages of the worker until it ends.  ERROR if that was an error. */
static void
receive_plan(CallRun *run, shm_mq_handle *messages)
{
	ErrorData	failure = {0};
	bool		received = false;

	for (;;)
	{
		Size		nbytes;
		void	   *data;
		shm_mq_result result = shm_mq_receive(messages, &nbytes, &data, true);
		char		type = result == SHM_MQ_SUCCESS ? *(char *) data : '\0';
		StringInfoData msg;

		CHECK_FOR_INTERRUPTS();
		if (result == SHM_MQ_DETACHED)
			break;
		if (result == SHM_MQ_WOULD_BLOCK)
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, 0,
							 IM_WAIT_EVENT(wait_event, "IndexMoverPolicy"));
			ResetLatch(MyLatch);
			continue;
		}
		initStringInfo(&msg);
		appendBinaryStringInfo(&msg, (char *) data + 1, nbytes - 1);
		if (type == 'D')
		{
			RunPlan		received_plan;

			pq_copymsgbytes(&msg, (char *) &received_plan, sizeof(received_plan));
			run->settings = received_plan.settings;
			received = true;
			for (int i = 0; i < received_plan.nitems; i++)
			{
				MoveItem   *item = palloc(sizeof(MoveItem));

				pq_copymsgbytes(&msg, (char *) item, sizeof(MoveItem));
				run->items = lappend(run->items, item);
			}
		}
		else if (type == 'N' || type == 'E')
		{
			ErrorData	edata;

			pq_parse_errornotice(&msg, &edata);
			if (type == 'E')
				failure = edata;
			else
				ThrowErrorData(&edata);
		}
	}
	if (received)
		return;
	if (failure.elevel == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("background worker of index_mover did not start or ended early"),
				 errhint("See the server log for the reason.")));
	failure.elevel = ERROR;
	ThrowErrorData(&failure);
}

static void
plan_in_worker(void *arg)
{
	CallRun    *run = arg;
	dsm_segment *segment = dsm_create(QUEUE_SIZE, 0);
	shm_mq	   *queue = shm_mq_create(dsm_segment_address(segment), QUEUE_SIZE);
	BackgroundWorkerHandle *worker;

	shm_mq_set_receiver(queue, MyProc);
	worker = start_worker(MyDatabaseId, run->policy->owner, NameStr(run->policy->name),
						  submit_next_job(), dsm_segment_handle(segment));
	if (worker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not register background process"),
				 errhint("You may need to increase \"max_worker_processes\".")));
	PG_TRY();
	{
		receive_plan(run, shm_mq_attach(queue, segment, worker));
	}
	PG_CATCH();
	{
		TerminateBackgroundWorker(worker);
		PG_RE_THROW();
	}
	PG_END_TRY();
	dsm_detach(segment);
}

static void
submit(void *arg)
{
	CallRun    *run = arg;

	result_rows_of_plan(run->fcinfo, run->items, &run->settings, false, run->wait);
}

/*
 * Run a step of a policy in a subtransaction.  If it fails, raise its error as a
 * WARNING, and return false.
 */
static bool
try_to(void (*step) (void *arg), CallRun *run)
{
	ErrorData  *error = errors_catch(step, run);

	if (error == NULL)
		return true;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("policy \"%s\" moves nothing: %s", NameStr(run->policy->name), error->message),
			 error->detail ? errdetail_internal("%s", error->detail) : 0,
			 error->hint ? errhint("%s", error->hint) : 0));
	return false;
}

/*
 * run_tier_policies(policy_name name DEFAULT NULL, wait boolean DEFAULT false)
 *		RETURNS SETOF move_result
 *
 * Moves what tier_plan() says, in one job for each policy, which belongs to the
 * policy's owner: of one policy, or of all of the roles whose privileges the
 * caller has.  A policy counts once it is committed.  One that fails is a WARNING,
 * and the others are carried out.
 *
 * EXECUTE is revoked from PUBLIC.  ERRORs: those of move_table() that concern the
 * moment of the call; 42704 no such policy.
 */
Datum
index_mover_run_tier_policies(PG_FUNCTION_ARGS)
{
	List	   *runs = NIL;
	List	   *claimed = NIL;	/* tables of the policies before */
	ListCell   *lc;
	ListCell   *lc2;
	bool		wait;

	reject_null(fcinfo, 1, "wait");
	wait = PG_GETARG_BOOL(1);
	call_check_moment("run_tier_policies()", false, wait);
	/* not in a subtransaction, which would close its file */
	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, policies_read(PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0)), false))
	{
		CallRun    *run = palloc0(sizeof(CallRun));

		run->fcinfo = fcinfo;
		run->wait = wait;
		run->policy = lfirst(lc);
		if (!OidIsValid(run->policy->owner))
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("policy \"%s\" moves nothing: %s", NameStr(run->policy->name),
							"its owner is to be set again")));
		else if (try_to(plan_in_worker, run) && run->items != NIL)
			runs = lappend(runs, run);
	}
	/* all are planned before the first of them moves, as by tier_plan() */
	foreach(lc, runs)
	{
		CallRun    *run = lfirst(lc);

		foreach(lc2, run->items)
			if (list_member_oid(claimed, ((MoveItem *) lfirst(lc2))->heap_oid))
			run->items = foreach_delete_current(run->items, lc2);
		foreach(lc2, run->items)
			claimed = lappend_oid(claimed, ((MoveItem *) lfirst(lc2))->heap_oid);
		if (run->items != NIL)
			(void) try_to(submit, run);
		else
			ereport(NOTICE,
					(errmsg("policy \"%s\" moves nothing: %s", NameStr(run->policy->name),
							"other policies have its tables first")));
	}
	return (Datum) 0;
}
