/*-------------------------------------------------------------------------
 *
 * policy_status.c
 *	  The status of policies, for monitors.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "printed_command.h"
#include "row.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_policy_status);

/* Return the command that mends an obstacle, NULL if it is to be judged. */
static char *
obstacle_command(const Policy *policy)
{
	const char *schema = get_namespace_name(get_rel_namespace(policy_table()));

	if (policy->now_function != NULL || schema == NULL ||
		!OidIsValid(get_role_oid(NameStr(policy->owner_name), true)))
		return NULL;
	return printed_command("set_owner", quote_qualified_identifier(schema, "tier_policy"),
						   NameStr(policy->owner_name), NameStr(policy->name));
}

static void
put_status(ReturnSetInfo *rsinfo, const Policy *policy)
{
	char	   *obstacle = policy_obstacle(policy);
	bool		is_due = policy->enabled && policy->every != NULL;
	PolicyRun	run;
	TimestampTz next = 0;
	TimestampTz due = 0;
	TimestampTz since;
	TimestampTz end;
	Row			row;

	policy_run_read(policy, &run);
	if (is_due && obstacle == NULL && tier_scheduler_looks())
		next = tier_next_run(policy_wait_is_over(&run) ? 0 : run.started_at, policy->every,
							 policy->window_start, policy->window_end,
							 GetCurrentTransactionStartTimestamp(), &end);
	since = Max(run.started_at, policy->scheduled_since);
	if (next != 0 && since != 0)
		due = tier_next_run(run.started_at, policy->every, policy->window_start,
							policy->window_end, since, &end);
	row_clear(&row);
	row_set(&row, 1, NameGetDatum(&policy->name));
	if (NameStr(policy->owner_name)[0] != '\0')
		row_set(&row, 2, NameGetDatum(&policy->owner_name));
	row_time(&row, 3, run.started_at);
	if (run.job > 0)
		row_set(&row, 4, Int64GetDatum(run.job));
	if (obstacle != NULL)
	{
		row_text(&row, 5, policy_run_word(RUN_FAILED));
		row_text(&row, 6, obstacle);
		row_text(&row, 10, obstacle_command(policy));
	}
	else if (run.started_at != 0 && run.result != RUN_JOB)
	{
		row_text(&row, 5, policy_run_word(run.result));
		row_text(&row, 6, run.message);
	}
	row_time(&row, 7, next);
	if (is_due)
		row_set(&row, 8, BoolGetDatum(next != 0));
	row_set(&row, 9, BoolGetDatum(policy->enabled));
	row_time(&row, 11, due);
	if (run.waits_for != 0)
		row_set(&row, 12, Int64GetDatum(run.waits_for));
	row_time(&row, 13, run.waits_since);
	row_set(&row, 14, BoolGetDatum(policy->now_function != NULL));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
}

/*
 * index_mover.policy_status(OUT policy name, OUT owner name, OUT last_run timestamptz, OUT job bigint,
 *		OUT result text, OUT message text, OUT next_run timestamptz, OUT scheduled boolean,
 *		OUT enabled boolean, OUT command text, OUT due timestamptz, OUT waits_for bigint,
 *		OUT waits_since timestamptz, OUT has_function boolean) RETURNS SETOF record
 *
 * For the view tier_policy_status, where the job says the result if it is NULL here:
 * of the policies of roles whose privileges the current user has, and for pg_monitor of all.
 * due: when the run after the last one, or the first, was to begin.  waits_for: the job that the last
 * run has found at work on all that it was to move.  has_function: it is not carried out,
 * since it had a now_function in 1.0.0.
 * If another session has locked tier_policy for more than a second, a row that says so.
 */
Datum
index_mover_policy_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			table = policy_lock_table(false, true);
	bool		sees_all = has_privs_of_role(GetUserId(), ROLE_PG_MONITOR);
	int			nestlevel = NewGUCNestLevel();

	InitMaterializedSRF(fcinfo, 0);
	if (!OidIsValid(table))
	{
		Row			row;

		row_clear(&row);
		row_text(&row, 6, "could not obtain lock on table \"tier_policy\"");
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
		AtEOXact_GUC(false, nestlevel);
		return (Datum) 0;
	}
	/* windows are in the time zone of the database */
	settings_begin_as(InvalidOid);
	foreach_ptr(const Policy, policy, policies_of_table(table))
	{
		if (sees_all || policy->is_visible)
			put_status(rsinfo, policy);
	}
	AtEOXact_GUC(false, nestlevel);
	return (Datum) 0;
}
