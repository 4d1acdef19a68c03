/*-------------------------------------------------------------------------
 *
 * index_report.c
 *	  The door for reports: the SQL functions that help to decide what to move.
 *
 * Only what has to read pages, files or devices is in C; index_report(),
 * recommend_moves() and move_blockers() are SQL in the extension's script, on
 * top of these.  Functions whose names start with index_mover_ are for them
 * and not for users.
 *
 * Everything here only reads the database (tablespace_probe() also writes a
 * temporary file), runs on a hot standby, and takes no lock but
 * AccessShareLock on the index it looks at, until the end of the call.
 * EXECUTE is revoked from PUBLIC in the script; that is the access check,
 * as for pgstattuple.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_am_d.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufpage.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "gin_pending.h"
#include "index_bloat.h"
#include "report_relation.h"

PG_FUNCTION_INFO_V1(index_mover_measure_bloat);
PG_FUNCTION_INFO_V1(index_mover_gin_pending_list);

/*
 * Return the OID argument argno, or raise 22004.
 */
static Oid
required_index(FunctionCallInfo fcinfo, int argno)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("index must not be null")));
	return PG_GETARG_OID(argno);
}

/*
 * Form the function's result row.
 */
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
	Relation	index = arg->quiet ? report_try_open(arg->index_oid, InvalidOid) :
		report_open(arg->index_oid, InvalidOid);

	if (index == NULL)
		return;
	index_bloat_measure(index, arg->sample_pages, arg->exact && arg->pages == NULL,
						arg->pages, &arg->be);
	arg->found = true;
	report_close(index);
}

/*
 * index_mover_measure_bloat(index regclass, sample_pages int, exact boolean,
 *		quiet boolean, exact_pages float8[]) returns the columns of
 * index_bloat(), which calls it.
 *
 * exact_pages is NULL or what pgstatindex says: leaf pages, internal pages,
 * average leaf density in percent.  Reads at most sample_pages blocks, or,
 * with exact and without exact_pages, all of them.
 *
 * Locks: AccessShareLock on the index until the end.  Quiet doesn't wait for
 * it and returns NULLs instead of errors.  EXECUTE: pg_stat_scan_tables.
 * Errors: 22004 and 22023 arguments, 42704 no such index, 42809 not an index,
 * 0A000 other sessions' temporary indexes, unlogged ones on a standby, 55000
 * invalid index, XX001 and XX002 damaged pages.
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
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("exact must not be null")));
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
	set_float8(values, nulls, 2, be->leaf_density);
	set_float8(values, nulls, 3, be->fillfactor);
	set_float8(values, nulls, 4, be->bloat_ratio);
	set_float8(values, nulls, 5, be->bloat_ratio_low);
	set_float8(values, nulls, 6, be->bloat_ratio_high);
	if (!isnan(be->bloat_ratio))
	{
		values[7] = Int64GetDatum((int64) rint(be->bloat_ratio * be->pages * BLCKSZ));
		values[8] = BoolGetDatum(be->exact);
		nulls[7] = nulls[8] = false;
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
	Relation	index = arg->quiet ? report_try_open(arg->index_oid, GIN_AM_OID) :
		report_open(arg->index_oid, GIN_AM_OID);

	if (index == NULL)
		return;
	gin_pending_read(index, &arg->pending);
	arg->found = true;
	report_close(index);
}

/*
 * gin_pending_list(index regclass) returns pending_pages, pending_tuples,
 *		pending_bytes, pending_limit_bytes, fastupdate, extra_pages_per_search
 * index_mover_try_gin_pending_list(index regclass, quiet boolean) the same,
 *		for index_report(): with quiet NULLs instead of errors and of waiting.
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
		/* every search reads the whole list before it looks at the tree */
		values[5] = Int64GetDatum(arg.pending.pages);
	}
	return result_row(fcinfo, values, nulls);
}
