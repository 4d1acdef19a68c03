/*-------------------------------------------------------------------------
 *
 * result_rows.c
 *	  Have a plan carried out, and return its rows.
 *
 * A plan with nothing to move may have something to remove: a job that was
 * interrupted right after its last swap has left an old index, or a file.
 *
 * Tricky: the result is materialized, so that the move runs once and to its
 * end whatever LIMIT or cursor the call is in.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "commands/tablespace.h"
#include "funcapi.h"
#include "storage/proc.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "cleanup/cleanup.h"
#include "file_system.h"
#include "row.h"

#define LONG_WAIT_S		60.0	/* longer estimates are worth a NOTICE */

/* Put the row of a move, which is planned, or has its outcome.  job: 0 in a dry run. */
static void
put_row(ReturnSetInfo *rsinfo, const PlannedMove *move, int64 job)
{
	const MoveItem *item = &move->item;
	const MoveOutcome *outcome = &item->outcome;
	bool		planned = outcome->status == STATUS_PLANNED || outcome->status == STATUS_QUEUED;
	bool		has_method = item->method == METHOD_COPY || item->method == METHOD_REBUILD;
	int64		size = item->size_before;
	Row			row;

	row_clear(&row);
	if (job != 0)
		row_set(&row, 1, Int64GetDatum(job));
	row_text(&row, 2, item_name(item));
	row_text(&row, 3, relation_kind(item->relkind, NameStr(item->schema_name)));
	row_text(&row, 4, status_name(outcome->status));
	/* NULL without a file, or if the index is not moved */
	if (has_method)
		row_text(&row, 5, method_name(item->method));
	if (planned)
		size = item->bytes_to_write;
	else if (outcome->status == STATUS_MOVED)
		size = outcome->size_after;
	row_int64(&row, 6, size);
	/* in milliseconds, estimates from 0.1 s on in tenths of it; never zero */
	if (outcome->started_at != 0 && outcome->finished_at != 0)
		row_interval(&row, 7, (outcome->finished_at - outcome->started_at + 999) / 1000 * 1000);
	else if (move->estimated >= 0 && planned)
	{
		int			parts = move->estimated < 0.1 ? 1000 : 10;

		row_interval(&row, 7, (int64) ceil(move->estimated * parts) * (USECS_PER_SEC / parts));
	}
	if (item->method == METHOD_COPY)
		row_interval(&row, 8, outcome->lock_time);
	row_text(&row, 9, outcome->sqlstate);
	/* why this method was chosen is of interest in a plan only */
	if (outcome->status == STATUS_PLANNED && has_method)
	{
		StringInfoData message;

		initStringInfo(&message);
		if (outcome->detail[0] != '\0')
			appendStringInfo(&message, "%s ", outcome->detail);
		appendStringInfo(&message, "Writes %s of WAL.", size_text(Max(item->wal_bytes, 0)));
		if (move->fits)
			appendStringInfoString(&message, " There is enough free space.");
		row_text(&row, 10, message.data);
	}
	else if (outcome->status == STATUS_PLANNED || outcome->status == STATUS_SKIPPED ||
			 outcome->status == STATUS_REHEARSED || outcome->sqlstate[0] != '\0')
		row_text(&row, 10, outcome->detail);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
}

static void
notice_long_wait(const List *moves, const MoveSettings *settings)
{
	double		estimate = plan_seconds(moves, settings);
	const char *setting = "statement_timeout";
	int			timeout = StatementTimeout;

	if (TransactionTimeout > 0 && (timeout == 0 || TransactionTimeout < timeout))
	{
		setting = "transaction_timeout";
		timeout = TransactionTimeout;
	}
	/* only an estimate in a call: a timeout is worse */
	if (timeout > 0 && estimate * 1000 > timeout)
		ereport(NOTICE,
				(errmsg("the move takes about %.0f seconds, but %s is %d ms",
						ceil(estimate), setting, timeout),
				 errhint("The timeout cancels the move. Raise it, or use wait => false.")));
	else if (estimate > LONG_WAIT_S)
		ereport(NOTICE,
				(errmsg("the move takes about %s, and this session's snapshot holds back vacuum as long as it waits",
						notices_duration(estimate)),
				 errhint("Use wait => false; the procedure wait_for_move waits without a snapshot.")));
}

/* Tell the totals of a dry run. */
static void
notice_plan(const List *plan, const MoveSettings *settings)
{
	JobTotals	totals = {0};
	int64		wal = 0;
	const char *space = "";
	FileSystemFacts facts;

	foreach_ptr(const PlannedMove, move, plan)
	{
		const MoveItem *item = &move->item;

		if (item->outcome.status != STATUS_PLANNED)
			continue;
		job_totals_add(&totals, relkind_is_index(item->relkind), item->outcome.status,
					   item->bytes_to_write, item->from_tablespace, item->to_tablespace, -1);
		wal += Max(item->wal_bytes, 0);
	}
	if (OidIsValid(totals.tablespace) && file_system_facts(totals.tablespace, &facts) &&
		facts.total_bytes > 0)
		space = psprintf("; tablespace \"%s\" has %s free",
						 get_tablespace_name(totals.tablespace), size_text(facts.free_bytes));
	if (totals.total == 0)
		ereport(NOTICE, (errmsg("nothing is to be moved")));
	else if (totals.in_place)
		ereport(NOTICE,
				(errmsg("the plan is to rebuild %d %s: %s written, %s of WAL, about %s%s",
						totals.total, relations_noun(&totals),
						size_text(totals.size), size_text(wal),
						notices_duration(plan_seconds(plan, settings)), space)));
	else
		ereport(NOTICE,
				(errmsg("the plan is to move %d %s: %s written, %s of WAL, about %s%s",
						totals.total, relations_noun(&totals),
						size_text(totals.size), size_text(wal),
						notices_duration(plan_seconds(plan, settings)), space)));
}

/* Show a plan, and carry out nothing. */
static void
rows_of_dry_run(ReturnSetInfo *rsinfo, const List *plan, const MoveSettings *settings)
{
	foreach_ptr(const PlannedMove, move, plan)
	{
		put_row(rsinfo, move, 0);
	}
	if (settings->progress_interval > 0)
		notice_plan(plan, settings);
}

/*
 * Carry out a plan (of PlannedMove), and materialize a row of type
 * move_result for each item: first the skipped items, then the others, both in
 * the order of the plan.  ERRORs: as wait_for_rows(), submit_now() or
 * submit_at_commit(); 55000 with on_failure = error.
 */
void
result_rows_of_job(FunctionCallInfo fcinfo, List *plan, const MoveSettings *settings,
				   JobStart start)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		wait = start == JOB_IS_WAITED_FOR;
	bool		as_rows = (settings->on_failure == ON_FAILURE_ROW);
	bool		tells = (settings->progress_interval > 0);
	TimestampTz begin = GetCurrentTimestamp();
	JobSummary	summary = {.warn = as_rows};
	List	   *skipped = NIL;	/* PlannedMove */
	List	   *moves = NIL;
	List	   *items;

	if (rsinfo->setResult == NULL)
		InitMaterializedSRF(fcinfo, 0);
	submit_skip_busy(plan);
	summary.job = settings->terms.job;
	if (summary.job == 0)
		summary.job = history_next_job();
	foreach_ptr(PlannedMove, move, plan)
	{
		if (move->item.outcome.status == STATUS_SKIPPED)
		{
			skipped = lappend(skipped, move);
			continue;
		}
		/* copies get the outcome, since cleanup_call() looks at the plan */
		moves = lappend(moves, memcpy(palloc(sizeof(PlannedMove)), move, sizeof(PlannedMove)));
	}
	items = plan_items(moves);
	if (tells && items == NIL)
		notices_begin(&summary);

	if (wait && items != NIL)
	{
		notice_long_wait(moves, settings);
		wait_for_rows(summary.job, &summary, items, settings, NULL, NULL);
	}
	else if (start == JOB_STARTS_NOW && items != NIL)
		submit_now(summary.job, items, settings);
	else
	{
		/* first, see only_ours(): reading the ledger may write WAL */
		(void) leftovers_tables(false);
		/* a job without items is submitted, too: the rows show its number */
		submit_at_commit(summary.job, items, settings);
	}
	if (!wait)
	{
		foreach_ptr(PlannedMove, move, moves)
		{
			move->item.outcome.status = STATUS_QUEUED;
		}
	}
	foreach_ptr(const PlannedMove, move, list_concat(skipped, moves))
	{
		put_row(rsinfo, move, summary.job);
		if (move->item.outcome.status != STATUS_QUEUED)
			notices_item(&summary, &move->item, move->item.outcome.status);
	}
	if (tells)
		notices_end(&summary, (GetCurrentTimestamp() - begin) / 1e6);
	cleanup_call(plan, TERMS_ROLE(settings));
	notices_raise(&summary, wait && !as_rows ? ERROR : 0);
}

/* As result_rows_of_job(), of a call's plan; with dry_run show the plan.  The result of its SQL function. */
Datum
result_rows_of_call(FunctionCallInfo fcinfo, List *plan, const MoveCall *call)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	const MoveSettings *settings = &call->request.settings;

	if (rsinfo->setResult == NULL)
		InitMaterializedSRF(fcinfo, 0);
	if (call->dry_run)
		rows_of_dry_run(rsinfo, plan, settings);
	else if (call->request.waits)
		result_rows_of_job(fcinfo, plan, settings, JOB_IS_WAITED_FOR);
	else
		result_rows_of_job(fcinfo, plan, settings, JOB_STARTS_AT_COMMIT);
	return (Datum) 0;
}
