/*-------------------------------------------------------------------------
 *
 * reports.c
 *	  The door for reports: the SQL functions that help to decide what to move.
 *
 * Only what has to read pages, files or devices is in C; index_report() and
 * index_mover_blockers() are SQL in the extension's script, based on these
 * functions.  Those named index_mover_* are for them and not for users.
 *
 * Everything here only reads the database, except that tablespace_probe()
 * writes a temporary file, runs on a hot standby, and takes no lock but
 * AccessShareLock on the index until the end of the call.  The access check
 * is that the script revokes EXECUTE from PUBLIC, as for pgstattuple.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_type_d.h"
#include "commands/tablespace.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufpage.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "file_system.h"
#include "printed_command.h"
#include "report/report.h"
#include "report/report_private.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(index_mover_measure_bloat);
PG_FUNCTION_INFO_V1(index_mover_gin_pending_list);
PG_FUNCTION_INFO_V1(index_mover_try_size);
PG_FUNCTION_INFO_V1(index_mover_file_birth);
PG_FUNCTION_INFO_V1(index_mover_tablespace_probe);
PG_FUNCTION_INFO_V1(index_mover_tablespace_facts);

#define PROBE_MAX_SECONDS	60

#define PROBE_MAX_DEPTH		1024

/* Raise ERROR 22004 if the argument is null. */
static void
reject_null(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

/* Return the OID argument argno, ERROR 22004 if it is null. */
static Oid
required_index(FunctionCallInfo fcinfo, int argno)
{
	reject_null(fcinfo, argno, "index");
	return PG_GETARG_OID(argno);
}

static Datum
result_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls));
}

static void
set_float8(Datum *values, bool *nulls, int column, double value)
{
	values[column] = Float8GetDatum(value);
	nulls[column] = isnan(value);
}

/* Four decimals: more would be far below any sampling error, and too wide. */
static void
set_ratio(Datum *values, bool *nulls, int column, double ratio)
{
	set_float8(values, nulls, column, rint(ratio * 10000) / 10000);
}

/* Set a measured value to four significant digits. */
static void
set_measured(Datum *values, bool *nulls, int column, double value)
{
	int			excess = value > 0 ? (int) floor(log10(value)) - 3 : 0;
	double		power = pow(10, abs(excess));

	/* only whole powers of ten, because these are exact, unlike 0.01 */
	if (!isnan(value))
		value = excess > 0 ? rint(value / power) * power : rint(value * power) / power;
	set_float8(values, nulls, column, value);
}

typedef struct BloatArg
{
	Oid			index_oid;
	int			sample_pages;
	bool		exact;
	bool		quiet;
	ExactPages *pages;
	bool		found;
	BloatEstimate be;
} BloatArg;

static void
bloat_callback(void *argptr)
{
	BloatArg   *arg = argptr;
	Relation	index = report_open(arg->index_oid, InvalidOid, arg->quiet);

	if (index)
	{
		bloat_measure(index, arg->sample_pages,
					  arg->exact && arg->pages == NULL, arg->pages, 0, &arg->be);
		arg->found = true;
		index_close(index, AccessShareLock);
	}
}

/*
 * index_mover_measure_bloat(index regclass, sample_pages int, exact boolean,
 *		quiet boolean, exact_pages float8[]) returns the columns of
 *		index_bloat(), which calls it.
 *
 * exact_pages is NULL or the result of pgstatindex: leaf pages, internal
 * pages, average leaf density in percent.  Reads at most sample_pages blocks,
 * or, with exact and without exact_pages, all of them.
 *
 * Locks: AccessShareLock on the index until the end.  With quiet it does not
 * wait for it, and returns NULLs instead of errors.  EXECUTE:
 * pg_stat_scan_tables.  Errors: 22004 and 22023 arguments, 42704 no such
 * index, 42809 not an index, 0A000 other sessions' temporary indexes,
 * unlogged ones on a standby, 55000 invalid index, XX001 and XX002 damage.
 */
Datum
index_mover_measure_bloat(PG_FUNCTION_ARGS)
{
	BloatArg	arg = {0};
	ExactPages	pages;
	Datum		values[9] = {0};
	bool		nulls[9];
	BloatEstimate *be = &arg.be;

	arg.quiet = !PG_ARGISNULL(3) && PG_GETARG_BOOL(3);
	if (arg.quiet && PG_ARGISNULL(0))
		PG_RETURN_NULL();
	arg.index_oid = required_index(fcinfo, 0);
	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sample_pages must be greater than zero")));
	arg.sample_pages = PG_GETARG_INT32(1);
	reject_null(fcinfo, 2, "exact");
	arg.exact = PG_GETARG_BOOL(2);
	if (!PG_ARGISNULL(4))
	{
		ArrayType  *array = PG_GETARG_ARRAYTYPE_P(4);
		float8	   *numbers = (float8 *) ARR_DATA_PTR(array);

		if (ARR_NDIM(array) != 1 || ARR_DIMS(array)[0] != 3 || ARR_HASNULL(array) ||
			ARR_ELEMTYPE(array) != FLOAT8OID)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("exact_pages must have three elements")));
		pages.leaf_pages = numbers[0];
		pages.internal_pages = numbers[1];
		pages.leaf_density = numbers[2] / 100.0;
		arg.pages = &pages;
	}

	memset(nulls, true, sizeof(nulls));
	if (!arg.quiet)
		bloat_callback(&arg);
	else if (!report_survive(bloat_callback, &arg))
		arg.found = false;
	if (!arg.found)
		return result_row(fcinfo, values, nulls);

	values[0] = Int64GetDatum(be->pages);
	values[1] = Int64GetDatum(be->sampled_pages);
	nulls[0] = nulls[1] = false;
	set_ratio(values, nulls, 2, be->leaf_density);
	set_ratio(values, nulls, 3, be->fillfactor);
	set_ratio(values, nulls, 4, be->bloat_ratio);
	set_ratio(values, nulls, 5, be->bloat_ratio_low);
	set_ratio(values, nulls, 6, be->bloat_ratio_high);
	if (!isnan(be->bloat_ratio))
	{
		values[7] = Int64GetDatum((int64) rint(be->bloat_ratio * be->pages * BLCKSZ));
		nulls[7] = false;
	}
	if (!isnan(be->bloat_ratio_low))
	{
		values[8] = BoolGetDatum(be->exact);
		nulls[8] = false;
	}
	return result_row(fcinfo, values, nulls);
}

typedef struct PendingArg
{
	Oid			index_oid;
	bool		quiet;
	bool		found;
	GinPending	pending;
} PendingArg;

static void
pending_callback(void *argptr)
{
	PendingArg *arg = argptr;
	Relation	index = report_open(arg->index_oid, GIN_AM_OID, arg->quiet);

	if (index == NULL)
		return;
	gin_pending_read(index, &arg->pending);
	arg->found = true;
	index_close(index, AccessShareLock);
}

/* Return the pages of a GIN index's pending list; -1 if there is none to be read. */
int64
report_pending_pages(Oid index_oid)
{
	PendingArg	arg = {.index_oid = index_oid,.quiet = true};

	return report_survive(pending_callback, &arg) && arg.found ? arg.pending.pages : -1;
}

/*
 * gin_pending_list(index regclass) returns pending_pages, pending_tuples,
 *		pending_bytes, pending_limit_bytes, fastupdate, extra_pages_per_search
 * index_mover_try_gin_pending_list(index regclass, quiet boolean) the same,
 *		for index_report(): with quiet NULLs instead of errors and of waiting
 *
 * Reads one page.  Locks: AccessShareLock on the index until the end.
 * EXECUTE: pg_stat_scan_tables.  Errors: 22004, 42704 no such index, 42809
 * not a GIN index, 0A000 other sessions' temporary indexes, unlogged ones on
 * a standby, 55000 invalid index, XX001 and XX002 damaged metapage.
 */
Datum
index_mover_gin_pending_list(PG_FUNCTION_ARGS)
{
	PendingArg	arg = {0};
	Datum		values[6] = {0};
	bool		nulls[6];

	arg.quiet = PG_NARGS() > 1 && !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	if (arg.quiet && PG_ARGISNULL(0))
		PG_RETURN_NULL();
	arg.index_oid = required_index(fcinfo, 0);
	if (!arg.quiet)
		pending_callback(&arg);
	else if (!report_survive(pending_callback, &arg))
		arg.found = false;

	memset(nulls, !arg.found, sizeof(nulls));
	if (arg.found)
	{
		values[0] = Int64GetDatum(arg.pending.pages);
		values[1] = Int64GetDatum(arg.pending.tuples);
		values[2] = Int64GetDatum(arg.pending.pages * BLCKSZ);
		values[3] = Int64GetDatum(arg.pending.limit_bytes);
		values[4] = BoolGetDatum(arg.pending.fastupdate);
		/* every search reads the whole list before the tree */
		values[5] = Int64GetDatum(arg.pending.pages);
	}
	return result_row(fcinfo, values, nulls);
}

/*
 * index_mover_try_size(relation regclass) returns bigint: bytes of main fork
 *
 * For reports over many relations: NULL if the relation is gone, has no
 * storage, or is locked exclusively.  Locks: AccessShareLock until the end of
 * the call, without waiting.  EXECUTE: pg_monitor.
 */
Datum
index_mover_try_size(PG_FUNCTION_ARGS)
{
	int64		size;

	if (!report_try_size(PG_GETARG_OID(0), &size))
		PG_RETURN_NULL();
	PG_RETURN_INT64(size);
}

/*
 * index_mover.file_birth(relation regclass) returns timestamptz: when its file
 * was made
 *
 * An index is not younger than its file, which a move or REINDEX makes again.
 * NULL if the file system or the platform does not tell, the relation is gone, or
 * has no file.  Takes no lock.  EXECUTE: pg_monitor.
 */
Datum
index_mover_file_birth(PG_FUNCTION_ARGS)
{
#ifdef STATX_BTIME
	LOCAL_FCINFO(path_call, 1);
	Datum		path;
	struct statx facts;

	InitFunctionCallInfoData(*path_call, NULL, 1, InvalidOid, NULL, NULL);
	path_call->args[0].value = PG_GETARG_DATUM(0);
	path_call->args[0].isnull = false;
	path = pg_relation_filepath(path_call);
	if (!path_call->isnull &&
		statx(AT_FDCWD, TextDatumGetCString(path), 0, STATX_BTIME, &facts) == 0 &&
		(facts.stx_mask & STATX_BTIME) != 0)
		PG_RETURN_TIMESTAMPTZ(time_t_to_timestamptz(facts.stx_btime.tv_sec));
#endif
	PG_RETURN_NULL();
}

/* Return the OID of the tablespace in argument argno, ERROR 22004 or 42704. */
static Oid
required_tablespace(FunctionCallInfo fcinfo, int argno)
{
	reject_null(fcinfo, argno, "tablespace");
	return get_tablespace_oid(NameStr(*PG_GETARG_NAME(argno)), false);
}

/*
 * index_mover_tablespace_facts(tablespace name) returns tablespace_oid oid,
 *		free_bytes bigint, reserved_bytes bigint, device bigint,
 *		lost_on_reboot text, total_bytes bigint
 *
 * For recommend_moves() and tier_plan().  NULLs for what the file system does
 * not tell.  EXECUTE: pg_monitor.  Errors: 22004, 42704 no such tablespace.
 */
Datum
index_mover_tablespace_facts(PG_FUNCTION_ARGS)
{
	Oid			tablespace = required_tablespace(fcinfo, 0);
	MoveSettings settings;
	FileSystemFacts facts;
	Datum		values[6] = {0};
	bool		nulls[6] = {false, true, true, true, true, true};

	values[0] = ObjectIdGetDatum(tablespace);
	if (file_system_facts(tablespace, &facts))
	{
		values[1] = Int64GetDatum(facts.free_bytes);
		settings_capture(&settings);
		values[2] = Int64GetDatum(settings_reserved(&settings.min_free_space, facts.total_bytes));
		values[3] = Int64GetDatum(facts.device);
		values[5] = Int64GetDatum(facts.total_bytes);
		nulls[1] = nulls[2] = nulls[3] = nulls[5] = false;
		if (facts.lost_on_reboot)
		{
			values[4] = CStringGetTextDatum(facts.lost_on_reboot);
			nulls[4] = false;
		}
	}
	return result_row(fcinfo, values, nulls);
}

static Datum
name_array(List *names)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(list_length(names), 1));
	int			n = 0;
	ListCell   *lc;

	foreach(lc, names)
		elements[n++] = DirectFunctionCall1(namein, CStringGetDatum((char *) lfirst(lc)));
	return PointerGetDatum(construct_array(elements, n, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR));
}

/* Return the duration in seconds, ERROR 22004 or 22023. */
static double
probe_duration(FunctionCallInfo fcinfo, int argno)
{
	Interval   *interval;
	double		seconds;

	reject_null(fcinfo, argno, "duration");
	interval = PG_GETARG_INTERVAL_P(argno);
	seconds = interval->time / (double) USECS_PER_SEC +
		(interval->day + interval->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY;
	if (!(seconds >= 0.01 && seconds <= PROBE_MAX_SECONDS))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("duration must be between %g and %d seconds", 0.01, PROBE_MAX_SECONDS)));
	return seconds;
}

/*
 * tablespace_probe(tablespace name, duration interval, queue_depth int)
 *		returns random_read_ms, random_read_iops, random_read_iops_deep,
 *		sequential_read_mb_s, sync_write_ms, free_bytes, total_bytes,
 *		same_device_as name[], suggested_random_page_cost,
 *		suggested_effective_io_concurrency, command text, direct_io boolean,
 *		remark text
 *
 * Writes, reads and removes a temporary file in the tablespace, and stores
 * the result in index_mover.probe if the transaction may write.  Locks:
 * RowExclusiveLock on that table until the end of the transaction.
 *
 * EXECUTE: pg_monitor; and the caller needs CREATE on the tablespace (42501).
 * Errors: 22004 and 22023 arguments, 42704 no such tablespace, 22023
 * pg_global, 53100 less than 40 MB free, 58030 and others from the file
 * system.
 */
Datum
index_mover_tablespace_probe(PG_FUNCTION_ARGS)
{
	Oid			tablespace = required_tablespace(fcinfo, 0);
	double		seconds = probe_duration(fcinfo, 1);
	char	   *name = get_tablespace_name(tablespace);
	int			queue_depth;
	AclResult	aclresult;
	FileSystemFacts facts;
	ProbeResult result;
	StringInfoData remark;
	Datum		values[13];
	bool		nulls[13] = {false};
	double		cost;
	int			concurrency;

	reject_null(fcinfo, 2, "queue_depth");
	queue_depth = PG_GETARG_INT32(2);
	if (queue_depth < 1 || queue_depth > PROBE_MAX_DEPTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("queue_depth must be between %d and %d", 1, PROBE_MAX_DEPTH)));
	if (tablespace == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only shared relations can be placed in pg_global tablespace")));
	aclresult = object_aclcheck(TableSpaceRelationId, tablespace, GetUserId(), ACL_CREATE);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_TABLESPACE, name);
	if (!file_system_facts(tablespace, &facts))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not look at the file system of tablespace \"%s\": %m", name)));

	tablespace_probe_run(tablespace, seconds, queue_depth, facts.free_bytes, &result);
	tablespace_probe_record(tablespace, &result);

	cost = suggested_random_page_cost(&result);
	concurrency = suggested_io_concurrency(&result, queue_depth);
	initStringInfo(&remark);
	if (facts.lost_on_reboot)
		appendStringInfo(&remark, "on %s: does not survive a reboot", facts.lost_on_reboot);
	if (!result.direct_io)
		appendStringInfo(&remark, "%sthe file system has no direct I/O: the page cache may have helped",
						 remark.len > 0 ? "; " : "");

	set_measured(values, nulls, 0, result.random_read_ms);
	set_measured(values, nulls, 1, result.random_read_iops);
	set_measured(values, nulls, 2, result.random_read_iops_deep);
	set_measured(values, nulls, 3, result.sequential_read_mb_s);
	set_measured(values, nulls, 4, result.sync_write_ms);
	values[5] = Int64GetDatum(facts.free_bytes);
	values[6] = Int64GetDatum(facts.total_bytes);
	values[7] = name_array(tablespaces_on_device(facts.device, tablespace));
	values[8] = Float8GetDatum(cost);
	values[9] = Int32GetDatum(concurrency);
	values[10] = CStringGetTextDatum(printed_command("tablespace_costs", name, psprintf("%.1f", cost),
													 (int64) concurrency));
	values[11] = BoolGetDatum(result.direct_io);
	values[12] = CStringGetTextDatum(remark.data);
	nulls[12] = remark.len == 0;
	return result_row(fcinfo, values, nulls);
}
