/*-------------------------------------------------------------------------
 *
 * reports.c
 *	  SQL functions of the reports that read pages, files or devices.
 *
 * index_report() and index_mover_blockers() are SQL in the extension's script,
 * based on functions of the schema index_mover from here.
 *
 * All run on a hot standby and take no lock but AccessShareLock on the index
 * until the end of the call; only tablespace_probe() writes, a temporary file
 * and its result.  Access is checked by EXECUTE, which the script revokes from
 * PUBLIC, as for pgstattuple.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "access/htup_details.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_type_d.h"
#include "commands/tablespace.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "errors.h"
#include "file_system.h"
#include "printed_command.h"
#include "report/report.h"
#include "report/report_private.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(index_mover_index_bloat);
PG_FUNCTION_INFO_V1(index_mover_gin_pending_list);
PG_FUNCTION_INFO_V1(index_mover_try_size);
PG_FUNCTION_INFO_V1(index_mover_file_birth);
PG_FUNCTION_INFO_V1(index_mover_tablespace_probe);

#define PROBE_MAX_SECONDS	60

#define PROBE_MAX_DEPTH		1024

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

/* Measure the index in argument 0, unless that is null where it may be. */
static void
measure_argument(FunctionCallInfo fcinfo, Report *report)
{
	if (report->quiet && PG_ARGISNULL(0))
		return;
	reject_null(fcinfo, 0, "index");
	report->index_oid = PG_GETARG_OID(0);
	(void) report_run(report);
}

/*
 * index_bloat(index regclass, sample_pages int, exact boolean) returns pages,
 *		sampled_pages, leaf_density, fillfactor, bloat_ratio, bloat_ratio_low,
 *		bloat_ratio_high, bloat_bytes, exact
 * index_mover.try_bloat(index regclass, sample_pages int, exact boolean, quiet
 *		boolean) the same, for reports over many indexes: with quiet NULLs
 *		instead of errors and of waiting
 *
 * Reads at most sample_pages blocks or, with exact, all of them.
 *
 * Locks: AccessShareLock on the index until the end.  EXECUTE:
 * pg_stat_scan_tables.  Errors: 22004 and 22023 arguments, 42704 no such
 * index, 42809 not an index, 0A000 other sessions' temporary indexes,
 * unlogged ones on a standby, 55000 invalid index, XX001 and XX002 damage.
 */
Datum
index_mover_index_bloat(PG_FUNCTION_ARGS)
{
	BloatReport bloat = {.report = {.measure = bloat_measure}};
	Datum		values[9] = {0};
	bool		nulls[9];

	bloat.report.quiet = PG_NARGS() > 3 && !PG_ARGISNULL(3) && PG_GETARG_BOOL(3);
	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("sample_pages must be greater than zero")));
	bloat.sample_pages = PG_GETARG_INT32(1);
	reject_null(fcinfo, 2, "exact");
	bloat.exact = PG_GETARG_BOOL(2);
	measure_argument(fcinfo, &bloat.report);

	memset(nulls, !bloat.report.measured, sizeof(nulls));
	if (!bloat.report.measured)
		return result_row(fcinfo, values, nulls);
	values[0] = Int64GetDatum(bloat.pages);
	values[1] = Int64GetDatum(bloat.sampled_pages);
	set_ratio(values, nulls, 2, bloat.leaf_density);
	set_ratio(values, nulls, 3, bloat.fillfactor);
	set_ratio(values, nulls, 4, bloat.bloat_ratio);
	set_ratio(values, nulls, 5, bloat.bloat_ratio_low);
	set_ratio(values, nulls, 6, bloat.bloat_ratio_high);
	nulls[7] = isnan(bloat.bloat_ratio);
	if (!nulls[7])
		values[7] = Int64GetDatum((int64) rint(bloat.bloat_ratio * bloat.pages * BLCKSZ));
	values[8] = BoolGetDatum(bloat.exact);
	nulls[8] = isnan(bloat.bloat_ratio_low);
	return result_row(fcinfo, values, nulls);
}

/* Return the pages of a GIN index's pending list; -1 if it cannot be read. */
int64
report_pending_pages(Oid index_oid)
{
	PendingReport pending = {.report = {.measure = gin_pending_measure,.index_oid = index_oid,
	.required_am = GIN_AM_OID,.quiet = true}};

	return report_run(&pending.report) ? pending.pages : -1;
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
	PendingReport pending = {.report = {.measure = gin_pending_measure,.required_am = GIN_AM_OID}};
	Datum		values[6];
	bool		nulls[6];

	pending.report.quiet = PG_NARGS() > 1 && !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	measure_argument(fcinfo, &pending.report);
	memset(nulls, !pending.report.measured, sizeof(nulls));
	values[0] = Int64GetDatum(pending.pages);
	values[1] = Int64GetDatum(pending.tuples);
	values[2] = Int64GetDatum(pending.pages * BLCKSZ);
	values[3] = Int64GetDatum(pending.limit_bytes);
	values[4] = BoolGetDatum(pending.fastupdate);
	/* every search reads the whole list before the tree */
	values[5] = Int64GetDatum(pending.pages);
	return result_row(fcinfo, values, nulls);
}

/*
 * Return the path of a relation's first file, relative to the data directory;
 * NULL if the relation is gone or has none.  Takes no lock.
 */
static char *
file_path(Oid relid)
{
	LOCAL_FCINFO(call, 1);
	Datum		path;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = ObjectIdGetDatum(relid);
	call->args[0].isnull = false;
	path = pg_relation_filepath(call);
	return call->isnull ? NULL : TextDatumGetCString(path);
}

/*
 * index_mover.try_size(relation regclass) RETURNS bigint: bytes of its main fork,
 * and of that of its TOAST table
 *
 * For reports over many relations: NULL if the relation is gone, has no
 * storage, or is locked exclusively.  Locks: AccessShareLock, for a moment,
 * without waiting.  EXECUTE: pg_monitor.
 */
Datum
index_mover_try_size(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	int64		size = -1;
	char	   *path;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		PG_RETURN_NULL();
	path = file_path(relid);
	if (path != NULL)
		size = file_size(path);
	if (size >= 0)
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
		char	   *toast = NULL;

		if (HeapTupleIsValid(tuple))
		{
			toast = file_path(((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid);
			ReleaseSysCache(tuple);
		}
		if (toast != NULL)
			size += Max(file_size(toast), 0);
	}
	UnlockRelationOid(relid, AccessShareLock);
	if (size < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(size);
}

/*
 * index_mover.file_birth(relation regclass) RETURNS timestamptz: when its file
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
	char	   *path = file_path(PG_GETARG_OID(0));
	struct statx facts;

	if (path != NULL && statx(AT_FDCWD, path, 0, STATX_BTIME, &facts) == 0 &&
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
 *		lost_on_reboot text, remark text
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
	Datum		values[14];
	bool		nulls[14] = {false};
	double		cost;
	int			concurrency;
	const char *lost_on_reboot;

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
	lost_on_reboot = tablespace_lost_on_reboot(tablespace);
	initStringInfo(&remark);
	if (lost_on_reboot)
		appendStringInfo(&remark, "on %s: does not survive a reboot", lost_on_reboot);
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
	values[12] = CStringGetTextDatum(lost_on_reboot ? lost_on_reboot : "");
	nulls[12] = lost_on_reboot == NULL;
	values[13] = CStringGetTextDatum(remark.data);
	nulls[13] = remark.len == 0;
	return result_row(fcinfo, values, nulls);
}
