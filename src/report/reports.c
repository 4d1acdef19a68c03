/*-------------------------------------------------------------------------
 *
 * reports.c
 *	  SQL functions of the reports that read pages or files, and their frame:
 *	  open an index, measure it, survive damage.
 *
 * index_report() and index_mover_blockers() are SQL in the extension's script,
 * based on functions of the schema index_mover from here.
 *
 * The reports read pages of one index, so AccessShareLock on the index until the
 * end of the call is enough, as for pgstattuple's functions.  The table is not
 * locked, because no function of the index is called and no row is fetched.  All
 * run on a hot standby.  Access is checked by EXECUTE, which the script revokes
 * from PUBLIC, as for pgstattuple.
 *
 * The errors are literally those of contrib/pgstattuple/pgstatindex.c, so
 * that scripts that handle them work with ours.  A report over all indexes of
 * a database must neither fail nor wait because of one of them: hence "quiet".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "access/gin_private.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_am_d.h"
#include "fmgr.h"
#include "funcapi.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

#include "errors.h"
#include "file_system.h"
#include "relation_facts.h"
#include "report/report.h"
#include "report/report_private.h"

PG_FUNCTION_INFO_V1(index_mover_gin_pending_list);
PG_FUNCTION_INFO_V1(index_mover_try_size);
PG_FUNCTION_INFO_V1(index_mover_file_birth);

typedef struct PendingReport
{
	Report		report;
	int64		pages;
	int64		tuples;			/* heap rows waiting in the list */
	int64		limit_bytes;	/* size at which an insert flushes it */
	bool		fastupdate;
} PendingReport;

/* Set a column to a number, or to NULL for NaN. */
void
row_float8(Row *row, int column, double value)
{
	if (!isnan(value))
		row_set(row, column, Float8GetDatum(value));
}

/* Return a row as the result of a function. */
Datum
row_result(FunctionCallInfo fcinfo, Row *row)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), row->values, row->nulls));
}

/* Raise ERROR XX002 for a damaged page. */
void
report_corrupted(Relation index, BlockNumber blkno, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" contains corrupted page at block %u",
					RelationGetRelationName(index), blkno),
			 errdetail_internal("The page cannot be read: %s.", problem)));
}

/* Refuse a relation that cannot be measured; required_am is GIN or none. */
static void
check_relation(Relation rel, Oid required_am)
{
	const char *name = RelationGetRelationName(rel);

	Assert(!OidIsValid(required_am) || required_am == GIN_AM_OID);

	if (rel->rd_rel->relkind != RELKIND_INDEX ||
		(OidIsValid(required_am) && rel->rd_rel->relam != required_am))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 OidIsValid(required_am) ?
				 errmsg("relation \"%s\" is not a %s index", name, "GIN") :
				 errmsg("\"%s\" is not an index", name),
				 rel->rd_rel->relkind == RELKIND_INDEX ? 0 :
				 errdetail_relkind_not_supported(rel->rd_rel->relkind)));

	/* new pages are in the other session's local buffers */
	if (RELATION_IS_OTHER_TEMP(rel))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary indexes of other sessions")));

	/* core's words in get_relation_info(): the relation has no file there */
	if (!RelationIsPermanent(rel) && RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary or unlogged relations during recovery")));

	/* an index that is not ready may have no valid page at all */
	if (!rel->rd_index->indisvalid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid", name)));
}

static void
run_report(void *arg)
{
	Report	   *report = arg;
	Relation	index;

	if (!report->quiet)
		LockRelationOid(report->index_oid, AccessShareLock);
	else if (!ConditionalLockRelationOid(report->index_oid, AccessShareLock))
		ereport(ERROR, errcode(ERRCODE_LOCK_NOT_AVAILABLE));
	index = try_relation_open(report->index_oid, NoLock);
	if (index == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("index with OID %u does not exist", report->index_oid)));
	check_relation(index, report->required_am);
	report->measure(index, report);
	relation_close(index, AccessShareLock);
}

/* Return whether an error tells of the index that was to be measured. */
static bool
is_of_index(int code)
{
	return code == ERRCODE_DATA_CORRUPTED || code == ERRCODE_INDEX_CORRUPTED ||
		code == ERRCODE_UNDEFINED_FILE || code == ERRCODE_IO_ERROR ||
		code == ERRCODE_INSUFFICIENT_PRIVILEGE ||	/* of the server, on the
													 * file */
		code == ERRCODE_UNDEFINED_OBJECT || code == ERRCODE_WRONG_OBJECT_TYPE ||
		code == ERRCODE_FEATURE_NOT_SUPPORTED || code == ERRCODE_LOCK_NOT_AVAILABLE ||
		code == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
}

/*
 * Measure an index, with AccessShareLock on it.  Raises the errors of
 * pgstattuple's functions.  With quiet, as for a report over many indexes,
 * returns false if the index cannot be opened, is locked or damaged, or has gone
 * away, and does not wait; raises other errors.
 */
bool
report_run(Report *report)
{
	ErrorData  *error = NULL;

	if (report->quiet)
		error = errors_catch(run_report, report);
	else
		run_report(report);
	if (error != NULL && !is_of_index(error->sqlerrcode))
		ReThrowError(error);
	return error == NULL;
}

/* The same for the index in argument 0, which may be NULL for a quiet report. */
bool
report_run_argument(FunctionCallInfo fcinfo, Report *report)
{
	if (report->quiet && PG_ARGISNULL(0))
		return false;
	reject_null(fcinfo, 0, "index");
	report->index_oid = PG_GETARG_OID(0);
	return report_run(report);
}

/*
 * Read the length of an open, valid GIN index's pending list from the metapage,
 * for a PendingReport.  ERROR XX002 if damaged.
 */
static void
gin_pending_measure(Relation index, Report *report)
{
	PendingReport *pending = (PendingReport *) report;
	Buffer		buffer;
	Page		page;
	GinMetaPageData meta;
	bool		valid;
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);

	Assert(index->rd_rel->relam == GIN_AM_OID);
	if (nblocks == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" has no metapage", RelationGetRelationName(index))));

	buffer = ReadBuffer(index, GIN_METAPAGE_BLKNO);
	LockBuffer(buffer, GIN_SHARE);
	page = BufferGetPage(buffer);
	memcpy(&meta, GinPageGetMeta(page), sizeof(meta));
	valid = page_root(GIN_AM_OID, page) != InvalidBlockNumber;
	UnlockReleaseBuffer(buffer);

	if (!valid || meta.ginVersion < 0 || meta.ginVersion > GIN_CURRENT_VERSION ||
		meta.nPendingPages >= nblocks || meta.nPendingHeapTuples < 0)
		report_corrupted(index, GIN_METAPAGE_BLKNO, "invalid metapage");

	pending->pages = meta.nPendingPages;
	pending->tuples = meta.nPendingHeapTuples;
	pending->limit_bytes = GinGetPendingListCleanupSize(index) * INT64CONST(1024);
	pending->fastupdate = GinGetUseFastUpdate(index);
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
	Row			row;

	pending.report.quiet = PG_NARGS() > 1 && !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	row_clear(&row);
	if (!report_run_argument(fcinfo, &pending.report))
		return row_result(fcinfo, &row);
	row_int64(&row, 1, pending.pages);
	row_int64(&row, 2, pending.tuples);
	row_int64(&row, 3, pending.pages * BLCKSZ);
	row_int64(&row, 4, pending.limit_bytes);
	row_set(&row, 5, BoolGetDatum(pending.fastupdate));
	/* every search reads the whole list before the tree */
	row_int64(&row, 6, pending.pages);
	return row_result(fcinfo, &row);
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

/* Return the bytes of a relation's main fork, -1 if it has none. */
static int64
main_size(Oid relid)
{
	char	   *path = file_path(relid);

	return path != NULL ? file_size(path) : -1;
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
	int64		size;
	RelationFacts facts;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		PG_RETURN_NULL();
	size = main_size(relid);
	if (size >= 0 && relation_facts(relid, &facts) && OidIsValid(facts.toast_oid))
		size += Max(main_size(facts.toast_oid), 0);
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
	char	   *path = file_path(PG_GETARG_OID(0));
	TimestampTz birth = path != NULL ? file_birth(path) : 0;

	if (birth == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(birth);
}
