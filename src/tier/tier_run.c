/*-------------------------------------------------------------------------
 *
 * tier_run.c
 *	  Carrying out policies: each is planned in this session as its owner, and becomes
 *	  a job of the owner's.
 *
 * A call plans all its policies, then submits all jobs, then waits for the jobs of its own
 * role, and records all runs at its end: no role waits for another one's plan or job, and the
 * call has no transaction ID and holds no claim while it waits.  For the scheduler, a worker that looks
 * into a database plans the policies that are due, each in a transaction
 * of its own.  No user's code runs in a plan, so none of them can sleep, nor go on.
 *
 * How a run ends is on record in policy_run.  A line in the server log tells when that
 * changes, but for numbers, and not in each run.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/timeout.h"

#include "call/call.h"
#include "own_tables.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_run_tier_policies);

#define PLAN_TIMEOUT_MS	(5 * 60 * 1000) /* of a policy: the next of another
										 * role waits for it */
#define MAX_TRIES		3		/* of a plan whose relations other jobs take */

/* A policy in a call of run_tier_policies() */
typedef struct PolicyCall
{
	FunctionCallInfo fcinfo;
	PolicyPlan *plan;
	PolicyRun	run;
	JobStart	start;
} PolicyCall;

/* A policy that is due, in a worker of the scheduler */
typedef struct ScheduledRun
{
	const Policy *policy;
	TimestampTz window_end;		/* after which no relation begins; 0 = none */
	PolicyRun	run;
} ScheduledRun;

/* On record */

/* Return whether two messages are the same but for numbers: percentages, sizes, jobs. */
static bool
say_the_same(const char *a, const char *b)
{
	static const char *const numbers = "0123456789.";

	while (*a != '\0' && *a == *b)
	{
		a += 1 + strspn(a + 1, numbers);
		b += 1 + strspn(b + 1, numbers);
	}
	return *a == *b;
}

static bool
is_same_trouble(const PolicyRun *run, const PolicyRun *before)
{
	return run->result == before->result && run->message != NULL && before->message != NULL &&
		say_the_same(run->message, before->message);
}

/* Write changes since the run before, which a wait is not, to the server log. */
static void
log_change(const char *policy, const PolicyRun *run, const PolicyRun *before)
{
	if (run->in_trouble ? is_same_trouble(run, before) : !before->in_trouble)
		return;
	switch (run->result)
	{
		case RUN_FAILED:
			ereport(LOG,
					(errmsg("tier policy \"%s\" has failed", policy),
					 errdetail_internal("%s", run->message)));
			break;
		case RUN_HINDERED:
			ereport(LOG,
					(errmsg("tier policy \"%s\" is hindered", policy),
					 errdetail_internal("%s", run->message)));
			break;
		case RUN_JOB:
		case RUN_NOTHING:
			ereport(LOG,
					(errmsg("tier policy \"%s\" is well again", policy)));
			break;
		case RUN_WAITS:
			break;
	}
}

/*
 * Lock the table of policies, and return whether a policy was deleted, or is another role's by now;
 * false if another session has locked the table.
 */
static bool
look_whether_gone(const Policy *before)
{
	if (!OidIsValid(policy_lock_table(false, true)))
		return false;
	foreach_ptr(const Policy, policy, policies_read(NameStr(before->name), true))
	{
		if (policy->owner == before->owner)
			return false;
	}
	return true;
}

/* Record a run, if no other session does so now, and tell of changes. */
static void
record(const Policy *policy, PolicyRun *run)
{
	PolicyRun	before;
	bool		claimed = policy_run_claim(policy);

	/*
	 * a session that deletes the policy, or has locked its table, is not
	 * waited for
	 */
	if (!claimed)
		return;
	if (look_whether_gone(policy))
		return;
	if (policy_run_record(policy, run, &before))
		log_change(NameStr(policy->name), run, &before);
}

/* Begin the record of a run: all that the plan knows. */
static PolicyRun
run_of_plan(const PolicyPlan *plan)
{
	PolicyRun	result = {.started_at = GetCurrentTimestamp(),.result = plan->result};

	if (plan->error != NULL)
		result.message = plan->error->message;
	else
		result.message = plan->reason;
	result.waits_for = plan->waits_for;
	return result;
}

/* Draw the number of the job of a plan; it is quiet about moves that have failed in the run before, too. */
static void
draw_job(PolicyPlan *plan, PolicyRun *run)
{
	PolicyRun	before;
	char	   *why;

	policy_run_read(plan->policy, &before);
	plan->settings.terms.quiet = before.result == RUN_JOB && policy_failures(&before, &why) > 0;
	plan->settings.terms.job = run->job = history_next_job();
}

/* run_tier_policies() */

static void
record_call(void *arg)
{
	PolicyCall *call = arg;

	record(call->plan->policy, &call->run);
}

/* In a subtransaction: submit the job of a policy, or tell why there is none. */
static void
call_policy(void *arg)
{
	PolicyCall *call = arg;
	PolicyPlan *plan = call->plan;

	if (plan->items != NIL)
	{
		draw_job(plan, &call->run);
		result_rows_of_job(call->fcinfo, plan->items, &plan->settings, call->start);
	}
	else if (plan->reason != NULL)
		ereport(NOTICE,
				(errmsg("policy \"%s\" moves nothing: %s", NameStr(plan->policy->name), plan->reason)));
}

/*
 * Carry out a planned policy.  An error is a WARNING, so that the others are carried out.
 * Returns the run, which the caller records.
 */
static PolicyCall *
run_planned(FunctionCallInfo fcinfo, PolicyPlan *plan, JobStart start)
{
	const char *name = NameStr(plan->policy->name);
	PolicyCall *call = palloc0_object(PolicyCall);
	const ErrorData *error = plan->error;

	call->fcinfo = fcinfo;
	call->plan = plan;
	call->run = run_of_plan(plan);
	call->start = start;
	if (error == NULL)
	{
		error = errors_catch(call_policy, call);
		if (errors_was_canceled(error))
			ReThrowError((ErrorData *) error);
	}
	if (error != NULL)
	{
		/* a job that was waited for has the reason, with on_failure = error */
		if (start != JOB_IS_WAITED_FOR || call->run.job == 0 || submit_last_job() != call->run.job)
		{
			call->run.result = RUN_FAILED;
			call->run.job = 0;
			call->run.message = error->message;
		}
		/* the server log has it from log_change() */
		ereport(WARNING_CLIENT_ONLY,
				(errmsg("policy \"%s\" moves nothing: %s", name, error->message),
				 errors_repeat(error)));
	}
	return call;
}

/*
 * run_tier_policies(policy_name name DEFAULT NULL, wait boolean DEFAULT false)
 *		RETURNS SETOF move_result
 *
 * Moves as tier_plan() says, in a job for each policy, which belongs to the
 * policy's owner.  With wait, jobs of other roles than the current user begin at once,
 * and are not waited for.  EXECUTE is revoked from PUBLIC.  ERRORs: as
 * call_check_moment(); 42704 no such policy; 55P03 a lock; 55000 a foreign trigger.
 */
Datum
index_mover_run_tier_policies(PG_FUNCTION_ARGS)
{
	bool		wait = PG_GETARG_BOOL(1);
	const char *name = PG_ARGISNULL(0) ? NULL : NameStr(*PG_GETARG_NAME(0));
	List	   *policies;
	List	   *plans = NIL;
	List	   *calls = NIL;
	TierPlan   *plan;
	int			nestlevel;

	reject_null(fcinfo, 1, "wait");
	call_check_moment("run_tier_policies()", false, wait);
	/* not in a subtransaction, which would close its file */
	InitMaterializedSRF(fcinfo, 0);

	nestlevel = NewGUCNestLevel();
	/* another session can have locked an own table */
	if (LockTimeout == 0 || LockTimeout > 10000)
		settings_set_here("lock_timeout", "10s", PGC_USERSET, ERROR);
	plan = tier_plan_begin(GetCurrentTransactionStartTimestamp());
	policies = policies_read(name, false);
	foreach_ptr(const Policy, policy, policies)
	{
		bool		may_run = true;

		/* it had a now_function */
		if (!policy->enabled)
			continue;
		/* a call that waits may take hours, and claims it for the record only */
		if (!wait)
			may_run = policy_run_claim(policy);
		if (may_run)
			plans = lappend(plans, tier_plan_policy(plan, policy));
		else
			ereport(NOTICE,
					(errmsg("another session carries out policy \"%s\"", NameStr(policy->name))));
	}
	AtEOXact_GUC(false, nestlevel);

	foreach_ptr(PolicyPlan, planned, plans)
	{
		if (!wait)
			calls = lappend(calls, run_planned(fcinfo, planned, JOB_STARTS_AT_COMMIT));
		else if (planned->policy->owner != GetUserId())
			calls = lappend(calls, run_planned(fcinfo, planned, JOB_STARTS_NOW));
	}
	foreach_ptr(PolicyPlan, planned, plans)
	{
		if (wait && planned->policy->owner == GetUserId())
			calls = lappend(calls, run_planned(fcinfo, planned, JOB_IS_WAITED_FOR));
	}

	/*
	 * not before a wait: a record has a transaction ID, and keeps others from
	 * its policy
	 */
	foreach_ptr(PolicyCall, call, calls)
	{
		submit_own(record_call, call);
	}
	return (Datum) 0;
}

/* For the scheduler */

static void
record_scheduled(void *arg)
{
	ScheduledRun *scheduled = arg;

	(void) policy_lock_table(true, false);
	record(scheduled->policy, &scheduled->run);
}

/* Have no relation begin after the end of the window, however long the plan took. */
static void
apply_window(PolicyPlan *plan, TimestampTz window_end)
{
	int64		left = (window_end - GetCurrentTimestamp()) / USECS_PER_SEC;
	char	   *json;
	Datum		changes;

	if (window_end == 0 || plan->items == NIL)
		return;
	if (left <= 0)
	{
		plan->items = NIL;
		plan->result = RUN_HINDERED;
		plan->reason = pstrdup("its window ended before its plan was made");
	}
	else if (plan->settings.max_duration == 0 || plan->settings.max_duration > left)
	{
		json = psprintf("{\"max_duration\": " INT64_FORMAT "}", left);
		changes = DirectFunctionCall1(jsonb_in, CStringGetDatum(json));
		settings_alter(&plan->settings, DatumGetJsonbP(changes));
	}
}

/*
 * Find a policy again, which was due; NULL if it has changed so that it may not be, or none is
 * carried out any more.
 */
static const Policy *
find_again(const Policy *before)
{
	if (policy_fault().reason != NULL)
		return NULL;
	foreach_ptr(const Policy, policy, policies_read(NameStr(before->name), true))
	{
		if (policy->enabled && policy->every != NULL &&
			OidIsValid(policy->owner) && policy->owner == before->owner)
			return policy;
	}
	return NULL;
}

/* In a transaction: plan a policy, record the run, and submit its job. */
static void
run_scheduled(void *arg)
{
	ScheduledRun *scheduled = arg;
	const Policy *policy;
	PolicyPlan *plan;

	/* dropped since the look began */
	if (!extension_installed())
		return;
	(void) policy_lock_table(true, false);
	policy = find_again(scheduled->policy);
	if (policy == NULL)
		return;
	if (!policy_run_claim(policy))
		return;
	enable_timeout_after(STATEMENT_TIMEOUT, PLAN_TIMEOUT_MS);
	plan = tier_plan_policy(tier_plan_begin(GetCurrentTransactionStartTimestamp()), policy);
	disable_timeout(STATEMENT_TIMEOUT, false);
	apply_window(plan, scheduled->window_end);
	scheduled->run = run_of_plan(plan);
	if (plan->items != NIL)
	{
		draw_job(plan, &scheduled->run);
		submit_at_commit(scheduled->run.job, plan_items(plan->items), &plan->settings);
	}
	record(policy, &scheduled->run);
}

/*
 * In a worker of the scheduler, outside a transaction: carry out a policy that is due, which
 * may have changed since.  window_end: after which no relation begins; 0 = none.
 */
void
tier_run_scheduled(const Policy *policy, TimestampTz window_end)
{
	ScheduledRun scheduled = {.policy = policy,.window_end = window_end};
	ErrorData  *error = NULL;

	for (int try = 0; try < MAX_TRIES; try++)
	{
		error = errors_catch_in_transaction(run_scheduled, &scheduled);

		/*
		 * a relation that another job has taken since is a hindrance in the
		 * next plan
		 */
		if (error == NULL || error->sqlerrcode != ERRCODE_OBJECT_IN_USE)
			break;
	}
	disable_all_timeouts(false);
	if (error == NULL)
		return;
	memset(&scheduled.run, 0, sizeof(PolicyRun));
	scheduled.run.started_at = GetCurrentTimestamp();
	scheduled.run.result = RUN_FAILED;
	scheduled.run.message = error->message;
	error = errors_catch_in_transaction(record_scheduled, &scheduled);
	if (error != NULL)
		ereport(LOG,
				(errmsg("could not record the run of tier policy \"%s\"", NameStr(policy->name)),
				 errors_as_detail(error)));
}
