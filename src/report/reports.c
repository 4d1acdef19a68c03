/*-------------------------------------------------------------------------
 *
 * reports.c
 *	  The frame of the reports: open an index, measure it, survive damage; and
 *	  pending lists.
 *
 * Reports read pages of an index, so AccessShareLock on it until the end of the call is
 * enough, as for pgstattuple's functions: no function of the index is called and no row
 * is fetched.  All run on a hot standby.  Access is checked by EXECUTE.
 *
 * The errors are literally as in contrib/pgstattuple, for scripts that handle
 * them.  A report over all indexes must neither fail nor wait because of one of
 * them: hence "quiet".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gin_private.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_am_d.h"
#include "funcapi.h"
#include "storage/lmgr.h"

#include "errors.h"
#include "file_system.h"
#include "report/report.h"
#include "report/report_private.h"

PG_FUNCTION_INFO_V1(index_mover_pending_list);

/* The arguments of report_run() */
typedef struct Report
{
	Oid			index_oid;
	bool		quiet;
	void		(*measure) (Relation index, void *result);
	void	   *result;
} Report;

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

/* Read the facts of a pending list from a metapage.  ERROR XX001 or XX002 if it is damaged. */
static void
pending_measure(Relation index, void *result)
{
	PendingList *list = result;
	PGIOAlignedBlock copy;
	const GinMetaPageData *meta = GinPageGetMeta(copy.data);
	BlockNumber nblocks;

	buffer_copy_page(ReadBuffer(index, GIN_METAPAGE_BLKNO), copy.data);
	nblocks = RelationGetNumberOfBlocks(index);
	if (page_root(GIN_AM_OID, (Page) copy.data, NULL) >= nblocks ||
		meta->ginVersion < 0 || meta->ginVersion > GIN_CURRENT_VERSION ||
		meta->nPendingPages >= nblocks || meta->nPendingHeapTuples < 0)
		report_corrupted(index, GIN_METAPAGE_BLKNO, "invalid metapage");
	list->pages = meta->nPendingPages;
	list->rows = meta->nPendingHeapTuples;
	list->limit = GinGetPendingListCleanupSize(index) * INT64CONST(1024);
	list->fastupdate = GinGetUseFastUpdate(index);
}

/* Set four columns of a row: pages, rows, bytes, and the limit in bytes. */
static void
row_pending(Row *row, int column, const PendingList *list)
{
	row_int64(row, column, list->pages);
	row_int64(row, column + 1, list->rows);
	row_int64(row, column + 2, list->pages * BLCKSZ);
	row_int64(row, column + 3, list->limit);
}

/* Refuse a relation that cannot be measured. */
static void
check_relation(Relation rel, bool only_gin)
{
	const char *name = RelationGetRelationName(rel);

	if (only_gin && rel->rd_rel->relkind == RELKIND_INDEX && rel->rd_rel->relam != GIN_AM_OID)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" is not a %s index", name, "GIN")));
	if (only_gin && rel->rd_rel->relkind != RELKIND_INDEX)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" is not a %s index", name, "GIN"),
				 errdetail_relkind_not_supported(rel->rd_rel->relkind)));
	if (rel->rd_rel->relkind != RELKIND_INDEX)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an index", name),
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
	check_relation(index, report->measure == pending_measure);
	report->measure(index, report->result);
	relation_close(index, AccessShareLock);
}

/*
 * Measure an index, with AccessShareLock on it.  Raises the errors of pgstattuple's
 * functions.  With quiet, returns false in place of any error but a cancel, and does not
 * wait.
 */
bool
report_run(Oid index_oid, bool quiet, void (*measure) (Relation index, void *result), void *result)
{
	Report		report = {index_oid, quiet, measure, result};
	ErrorData  *error = NULL;

	if (quiet)
		error = errors_catch(run_report, &report);
	else
		run_report(&report);
	if (errors_was_canceled(error))
		ReThrowError(error);
	return error == NULL;
}

/* Read the facts of a GIN index's pending list.  Returns whether that was possible. */
bool
report_pending_list(Oid index_oid, PendingList *list)
{
	return report_run(index_oid, true, pending_measure, list);
}

/* Set four columns: the first of gin_pending_list(), or none if it cannot be read. */
void
report_pending(Oid index_oid, Row *row, int column)
{
	PendingList list;

	if (report_pending_list(index_oid, &list))
		row_pending(row, column, &list);
}

/*
 * index_mover.pending_list(index regclass) RETURNS record
 *
 * For gin_pending_list(), which is SQL.  Reads a page.  Locks: AccessShareLock on the
 * index until the end.  EXECUTE: pg_stat_scan_tables.  Errors: 22004, 42704 no such
 * index, 42809 not a GIN index, 0A000 other sessions' temporary indexes, unlogged indexes on
 * a standby, 55000 invalid index, XX001 and XX002 damaged metapage.
 */
Datum
index_mover_pending_list(PG_FUNCTION_ARGS)
{
	PendingList list;
	Row			row;

	reject_null(fcinfo, 0, "index");
	(void) report_run(PG_GETARG_OID(0), false, pending_measure, &list);
	row_clear(&row);
	row_pending(&row, 1, &list);
	row_set(&row, 5, BoolGetDatum(list.fastupdate));
	/* every search reads the whole list before the tree */
	row_int64(&row, 6, list.pages);
	return row_result(fcinfo, &row);
}
