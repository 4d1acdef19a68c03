/*-------------------------------------------------------------------------
 *
 * result_rows.c
 *	  Have a plan carried out, and return its rows.
 *
 * Assumption: the caller has made the plan in this very call; nothing is
 * locked, and the worker checks everything again.
 *
 * A plan with nothing to move may have something to remove: a job that was
 * interrupted right after its last swap has left all indexes where they
 * should be, and also an old index or its file.
 *
 * Tricky: the result is materialized, so that the move runs once and to its
 * end whatever LIMIT or cursor the call is in.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "commands/tablespace.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "job.h"
#include "settings.h"

#define LONG_WAIT_S		60.0	/* longer estimates are worth a NOTICE */

static Datum
interval_datum(int64 microseconds)
{
	Interval   *result = palloc0(sizeof(Interval));

	result->time = microseconds;
	return IntervalPGetDatum(result);
}

static void
put_row(ReturnSetInfo *rsinfo, const MoveItem *item, int64 job)
{
#define INDEX_MOVE_COLS 19
	Datum		values[INDEX_MOVE_COLS] = {0};
	bool		nulls[INDEX_MOVE_COLS];
	char	   *from = get_tablespace_name(item->from_tablespace);
	char	   *to = get_tablespace_name(item->to_tablespace);

	memset(nulls, true, sizeof(nulls));
#define SET(n, datum) (values[n] = (datum), nulls[n] = false)
#define SET_INT64(n, value) do { if ((value) >= 0) SET(n, Int64GetDatum(value)); } while (0)
	SET(0, ObjectIdGetDatum(item->index_oid));
	SET(1, CStringGetTextDatum(NameStr(item->index_name)));
	SET(2, ObjectIdGetDatum(item->heap_oid));
	if (from != NULL)
		SET(3, DirectFunctionCall1(namein, CStringGetDatum(from)));
	if (to != NULL)
		SET(4, DirectFunctionCall1(namein, CStringGetDatum(to)));
	/* NULL without a file, or if the index is not moved */
	if (item->method == METHOD_COPY || item->method == METHOD_REBUILD)
		SET(5, CStringGetTextDatum(method_name(item->method)));
	SET(6, CStringGetTextDatum(status_name(item->status)));
	SET_INT64(7, item->size_before);
	SET_INT64(8, item->size_after);
	SET_INT64(9, item->bytes_to_read);
	SET_INT64(10, item->bytes_to_write);
	SET_INT64(11, item->wal_bytes);
	if (item->fits >= 0)
		SET(12, BoolGetDatum(item->fits > 0));
	if (item->estimated >= 0)
		SET(13, interval_datum((int64) ceil(item->estimated * 10) * (USECS_PER_SEC / 10)));
	if (item->started_at != 0 && item->finished_at != 0)
		SET(14, interval_datum(item->finished_at - item->started_at));
	if (item->lock_time >= 0)
		SET(15, interval_datum(item->lock_time));
	if (job != 0 && item->status != STATUS_PLANNED)
		SET(16, Int64GetDatum(job));
	if (item->sqlstate[0] != '\0')
		SET(17, CStringGetTextDatum(item->sqlstate));
	if (item->detail[0] != '\0')
		SET(18, CStringGetTextDatum(item->detail));
#undef SET_INT64
#undef SET
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
notice_long_wait(List *items)
{
	double		estimate = 0;
	ListCell   *lc;
	int			timeout = StatementTimeout;
	const char *timeout_name = "statement_timeout";
	const char *transaction_timeout;

	foreach(lc, items)
	{
		const MoveItem *item = lfirst(lc);

		if (item->status == STATUS_PLANNED && item->estimated > 0)
			estimate += item->estimated;
	}

	/* by name, because it is new in 17 */
	transaction_timeout = GetConfigOption("transaction_timeout", true, false);
	if (transaction_timeout != NULL)
	{
		int			value = 0;

		if (parse_int(transaction_timeout, &value, GUC_UNIT_MS, NULL) &&
			value > 0 && (timeout == 0 || value < timeout))
		{
			timeout = value;
			timeout_name = "transaction_timeout";
		}
	}

	if (estimate > LONG_WAIT_S)
		ereport(NOTICE,
				(errmsg("the move takes about %.0f minutes, and this session's snapshot holds back vacuum as long as it waits",
						ceil(estimate / 60)),
				 errhint("Use wait => false, and CALL wait_for_move() to wait without a snapshot.")));
	if (timeout > 0 && estimate * 1000 > timeout)
		ereport(NOTICE,
				(errmsg("the move takes about %.0f seconds, but %s is %d ms",
						ceil(estimate), timeout_name, timeout),
				 errhint("The timeout cancels the move. Raise it, or use wait => false.")));
}

/*
 * Report what was not moved: one WARNING for each index, or, with on_failure
 * = error, one ERROR for all.
 */
static void
report_failures(const MoveItem *items, int nitems, const MoveSettings *settings)
{
	StringInfoData detail;
	int			nfailed = 0;

	initStringInfo(&detail);
	for (int i = 0; i < nitems; i++)
	{
		const MoveItem *item = &items[i];

		if (item->status == STATUS_MOVED || item->status == STATUS_SKIPPED)
			continue;
		nfailed++;
		if (settings->on_failure == ON_FAILURE_ROW)
			ereport(WARNING,
					(errcode(item->sqlstate[0] == '\0' ? ERRCODE_WARNING :
							 MAKE_SQLSTATE(item->sqlstate[0], item->sqlstate[1],
										   item->sqlstate[2], item->sqlstate[3],
										   item->sqlstate[4])),
					 errmsg("index \"%s\" was not moved: %s",
							NameStr(item->index_name), item->detail)));
		else
			appendStringInfo(&detail, "%sindex \"%s\": %s",
							 nfailed > 1 ? "\n" : "",
							 NameStr(item->index_name), item->detail);
	}
	if (nfailed > 0 && settings->on_failure == ON_FAILURE_ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("%d of %d indexes were not moved", nfailed, nitems),
				 errdetail_internal("%s", detail.data)));
}

/*
 * Carry out a plan (of MoveItem *), and materialize one row of type
 * index_move for each item: first the skipped ones, then the others, both in
 * the order of the plan.  ERRORs: those of wait_for_rows() or
 * submit_at_commit(); 55000 with on_failure = error.
 */
void
result_rows_of_plan(FunctionCallInfo fcinfo, List *plan, const MoveSettings *settings,
					bool dry_run, bool wait)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *job_items = NIL;
	MoveItem   *rows = NULL;
	ListCell   *lc;
	int64		job = 0;

	InitMaterializedSRF(fcinfo, 0);

	if (dry_run)
	{
		foreach(lc, plan)
			put_row(rsinfo, lfirst(lc), 0);
		return;
	}

	foreach(lc, plan)
	{
		MoveItem   *item = lfirst(lc);

		if (item->status == STATUS_SKIPPED)
			put_row(rsinfo, item, 0);
		else
			job_items = lappend(job_items, item);
	}

	if (wait)
	{
		if (job_items != NIL)
		{
			notice_long_wait(job_items);
			rows = wait_for_rows(JOB_MOVE, job_items, settings, &job);
			for (int i = 0; i < list_length(job_items); i++)
				put_row(rsinfo, &rows[i], job);
		}
		cleanup_call_and_wait(plan, settings);
		if (job_items != NIL)
			report_failures(rows, list_length(job_items), settings);
	}
	else
	{
		cleanup_call_at_commit(plan, settings);
		if (job_items == NIL)
			return;
		job = submit_at_commit(JOB_MOVE, job_items, settings);
		foreach(lc, job_items)
		{
			MoveItem   *item = lfirst(lc);

			item->status = STATUS_QUEUED;
			put_row(rsinfo, item, job);
		}
	}
}
