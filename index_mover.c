/*-------------------------------------------------------------------------
 *
 * index_mover.c
 *	  Move indexes to another tablespace while they are in use: the SQL
 *	  functions that move.
 *
 * The words used everywhere: a *move* is one index on its way, a *job* is what
 * one call asked for, a *method* is how an index is moved (copy: its blocks,
 * rebuild: core's REINDEX CONCURRENTLY), the *swap* is the moment when the new
 * file takes the old one's place, *catch-up* is copying blocks again that have
 * changed since they were copied.
 *
 * The functions here check arguments and the right moment, have a plan made
 * (plan.c), hand it on as a job (submit.c) and return its rows.
 *
 * Locking: nothing is locked in the caller's session when the wait begins; the
 * planner releases what it takes.
 *
 * Tricky: the result is materialized, so that the move runs once and to its
 * end whatever LIMIT or cursor the call is in.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "catalog/pg_namespace.h"
#include "commands/tablespace.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "history.h"
#include "move_rebuild.h"
#include "plan.h"
#include "settings.h"
#include "snapshot_guard.h"
#include "submit.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(index_mover_move_indexes);
PG_FUNCTION_INFO_V1(index_mover_move_schema_indexes);
PG_FUNCTION_INFO_V1(index_mover_move_tablespace_indexes);
PG_FUNCTION_INFO_V1(index_mover_wait_for_move);

PGDLLEXPORT void _PG_init(void);

/* positions of the arguments that the three functions share */
enum
{
	ARG_OBJECT,
	ARG_TABLESPACE,
	ARG_METHOD,
	ARG_DRY_RUN,
	ARG_WAIT,
	ARG_SETTINGS,
};

#define LONG_WAIT_S		60.0	/* tell a waiting caller from here on */

static shmem_request_hook_type prev_shmem_request_hook = NULL;

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	job_request_shmem();
	RequestAddinShmemSpace(snapshot_guard_shmem_size());
}

void
_PG_init(void)
{
	settings_define();
	submit_init();
	snapshot_guard_init();
	move_rebuild_init();

	/* without preloading, the slack of the main segment serves */
	if (process_shared_preload_libraries_in_progress)
	{
		prev_shmem_request_hook = shmem_request_hook;
		shmem_request_hook = request_shmem;
	}
}

/* ---------------------------------------------------------------------
 * Arguments
 * ---------------------------------------------------------------------
 */

static void
reject_null(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

static MoveMethod
parse_method(const char *name)
{
	if (pg_strcasecmp(name, "auto") == 0)
		return METHOD_AUTO;
	if (pg_strcasecmp(name, "copy") == 0)
		return METHOD_COPY;
	if (pg_strcasecmp(name, "rebuild") == 0)
		return METHOD_REBUILD;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid method: \"%s\"", name),
			 errhint("Valid methods are \"auto\", \"copy\", and \"rebuild\".")));
	return METHOD_AUTO;			/* keep compiler quiet */
}

/*
 * Refuse what can't work at this moment: see the error list of
 * index_mover_move_indexes().
 */
static void
check_moment(const char *function, bool dry_run, bool wait)
{
	/* e.g. an index expression that calls us */
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot execute %s within security-restricted operation",
						function)));
	if (dry_run)
		return;
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	if (wait)
		PreventInTransactionBlock(true, psprintf("%s with wait => true", function));
}

/* ---------------------------------------------------------------------
 * Rows
 * ---------------------------------------------------------------------
 */

static Datum
interval_datum(int64 microseconds)
{
	Interval   *result = palloc0(sizeof(Interval));

	result->time = microseconds;
	return IntervalPGetDatum(result);
}

/* Add one row of type index_move to the result. */
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
	if (item->method != METHOD_DEFAULT)
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
		SET(13, interval_datum((int64) (item->estimated * USECS_PER_SEC)));
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

/*
 * Tell a caller who is going to wait for long what that means.
 */
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

	/* a string, because it came with 17 */
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
 * Report what was not moved: a WARNING each, or, with on_failure = error, one
 * ERROR with all of them.
 */
static void
report_failures(const MoveItem *items, int nitems, const MoveSettings *settings)
{
	StringInfoData detail;
	int			nfailed = 0;
	int			i;

	initStringInfo(&detail);
	for (i = 0; i < nitems; i++)
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

/* ---------------------------------------------------------------------
 * Moving
 * ---------------------------------------------------------------------
 */

/*
 * The common part of the three functions: plan, carry out, return rows.
 * request: scope and object are set.
 */
static Datum
move(FunctionCallInfo fcinfo, const char *function, PlanRequest *request,
	 const char *tablespace)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		dry_run = PG_GETARG_BOOL(ARG_DRY_RUN);
	bool		wait = PG_GETARG_BOOL(ARG_WAIT);
	List	   *plan;
	List	   *job_items = NIL;
	ListCell   *lc;
	int64		job = 0;
	int			nestlevel;

	check_moment(function, dry_run, wait);

	nestlevel = settings_apply_json(PG_ARGISNULL(ARG_SETTINGS) ? NULL :
									PG_GETARG_JSONB_P(ARG_SETTINGS));
	settings_capture(&request->settings);
	if (nestlevel >= 0)
		AtEOXact_GUC(true, nestlevel);

	request->method = parse_method(text_to_cstring(PG_GETARG_TEXT_PP(ARG_METHOD)));
	request->waits = wait && !dry_run;
	request->dry_run = dry_run;
	request->to_tablespace = plan_target_tablespace(tablespace);
	plan = plan_moves(request);

	InitMaterializedSRF(fcinfo, 0);

	foreach(lc, plan)
		if (((MoveItem *) lfirst(lc))->status != STATUS_SKIPPED)
			job_items = lappend(job_items, lfirst(lc));

	/* first what is not moved, then what is, in the order of the plan */
	if (!dry_run && job_items != NIL)
	{
		foreach(lc, plan)
			if (((MoveItem *) lfirst(lc))->status == STATUS_SKIPPED)
				put_row(rsinfo, lfirst(lc), 0);

		if (wait)
		{
			MoveItem   *rows;
			int			i;

			notice_long_wait(job_items);
			rows = submit_and_wait(JOB_MOVE, job_items, &request->settings, &job);
			for (i = 0; i < list_length(job_items); i++)
				put_row(rsinfo, &rows[i], job);
			report_failures(rows, list_length(job_items), &request->settings);
		}
		else
		{
			job = submit_at_commit(job_items, &request->settings);
			foreach(lc, job_items)
			{
				MoveItem   *item = lfirst(lc);

				item->status = STATUS_QUEUED;
				put_row(rsinfo, item, job);
			}
		}
	}
	else
		foreach(lc, plan)
			put_row(rsinfo, lfirst(lc), 0);

	return (Datum) 0;
}

static void
check_common_arguments(FunctionCallInfo fcinfo, const char *object,
					   const char *tablespace)
{
	reject_null(fcinfo, ARG_OBJECT, object);
	reject_null(fcinfo, ARG_TABLESPACE, tablespace);
	reject_null(fcinfo, ARG_METHOD, "method");
	reject_null(fcinfo, ARG_DRY_RUN, "dry_run");
	reject_null(fcinfo, ARG_WAIT, "wait");
}

/*
 * move_indexes(relation regclass, tablespace name, method text DEFAULT 'auto',
 *				dry_run boolean DEFAULT false, wait boolean DEFAULT true,
 *				settings jsonb DEFAULT NULL) RETURNS SETOF index_move
 *
 * Moves every index of a table, materialized view, partitioned table or TOAST
 * table, or one index, to a tablespace.  Returns one row per index; sizes in
 * bytes.
 *
 * Locks: in the calling session none that outlasts the planning.  The worker
 * takes ShareUpdateExclusiveLock on table and index while it rebuilds an index
 * (to the end of that index), see move_rebuild.c; a copy AccessShareLock on the
 * table and ShareUpdateExclusiveLock on the index, and AccessExclusiveLock on
 * the index for the swap, see swap.c.
 *
 * Who: owners of the table (from 17 on also with MAINTAIN on it) who have
 * CREATE on the tablespace; EXECUTE is revoked from PUBLIC.
 *
 * ERRORs: 22004 an argument is NULL; 22023 method, setting, or pg_global;
 * 25001 wait => true in a transaction block; 25006 read-only transaction or
 * recovery; 40P01 what the move waits for waits for this session; 42501; 42704
 * tablespace; 42809 wrong kind of relation; 0A000 system catalogs, temporary
 * tables; 53000 no worker or no slot; 55006 the table is being moved, or this
 * transaction holds a lock on it; 55000 on_failure = error; 57014 cancelled.
 */
Datum
index_mover_move_indexes(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_RELATION};

	check_common_arguments(fcinfo, "relation", "tablespace");
	request.object = PG_GETARG_OID(ARG_OBJECT);
	return move(fcinfo, "move_indexes()", &request,
				NameStr(*PG_GETARG_NAME(ARG_TABLESPACE)));
}

/*
 * move_schema_indexes(schema regnamespace, tablespace name, ...)
 *		RETURNS SETOF index_move
 *
 * As move_indexes() for every table of a schema.  What the caller may not move
 * is a row "skipped" with 42501.
 */
Datum
index_mover_move_schema_indexes(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_SCHEMA};

	check_common_arguments(fcinfo, "schema", "tablespace");
	request.object = PG_GETARG_OID(ARG_OBJECT);
	if (!SearchSysCacheExists1(NAMESPACEOID, ObjectIdGetDatum(request.object)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_SCHEMA),
				 errmsg("schema with OID %u does not exist", request.object)));
	return move(fcinfo, "move_schema_indexes()", &request,
				NameStr(*PG_GETARG_NAME(ARG_TABLESPACE)));
}

/*
 * move_tablespace_indexes(from_tablespace name, to_tablespace name, ...)
 *		RETURNS SETOF index_move
 *
 * As move_indexes() for every index of this database that is in
 * from_tablespace.  What the caller may not move is a row "skipped" with 42501.
 */
Datum
index_mover_move_tablespace_indexes(PG_FUNCTION_ARGS)
{
	PlanRequest request = {.scope = SCOPE_TABLESPACE};

	check_common_arguments(fcinfo, "from_tablespace", "to_tablespace");
	request.object = get_tablespace_oid(NameStr(*PG_GETARG_NAME(ARG_OBJECT)), false);
	return move(fcinfo, "move_tablespace_indexes()", &request,
				NameStr(*PG_GETARG_NAME(ARG_TABLESPACE)));
}

/*
 * CALL wait_for_move(job bigint)
 *
 * Waits until the job has ended, whoever has submitted it.  Commits first, so
 * that the wait holds no snapshot and vacuum goes on; hence not inside a
 * transaction block.  Interrupting the wait leaves the job running: that is
 * what cancel_move() is for.  A WARNING says how many indexes were not moved.
 *
 * No locks.  Whoever may execute it.  ERRORs: 22004 NULL, 25001 in a
 * transaction block or function, 42704 there never was such a job.
 */
Datum
index_mover_wait_for_move(PG_FUNCTION_ARGS)
{
	CallContext *context = (CallContext *) fcinfo->context;
	int64		job;
	Oid			role;
	int			nitems;
	int			nfailed;
	bool		was_running;

	reject_null(fcinfo, 0, "job");
	job = PG_GETARG_INT64(0);

	if (context == NULL || !IsA(context, CallContext) || context->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", "wait_for_move()")));

	/* a job queued in this very session has been committed by now */
	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	SPI_commit();
	was_running = submit_wait_for(job);
	SPI_finish();

	PushActiveSnapshot(GetTransactionSnapshot());
	nitems = history_job(job, &role, &nfailed);
	PopActiveSnapshot();
	if (nitems < 0)
	{
		if (!was_running)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("job " INT64_FORMAT " does not exist", job),
					 errhint("See index_mover_progress and index_mover_history.")));
	}
	else if (nfailed > 0)
		ereport(WARNING,
				(errmsg("%d of %d indexes were not moved", nfailed, nitems),
				 errhint("See index_mover_history for job " INT64_FORMAT ".", job)));
	PG_RETURN_VOID();
}
