/*-------------------------------------------------------------------------
 *
 * relation_report.c
 *	  What index_report(), which is SQL, asks about one relation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_am_d.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"

#include "file_system.h"
#include "relation_facts.h"
#include "report/report.h"
#include "report/report_private.h"

PG_FUNCTION_INFO_V1(index_mover_relation_report);
PG_FUNCTION_INFO_V1(index_mover_file_birth);

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
 * index_mover.relation_report(relation regclass, sample boolean) returns size,
 *		duplicate_of, bloat_ratio, bloat_bytes, bloat_source, pending_pages,
 *		pending_tuples, pending_bytes, pending_limit_bytes, is_spare, tablespace
 *
 * For index_report(), which must neither fail nor wait because of one relation:
 * NULL for what cannot be read, or is locked exclusively.  The size is that of its
 * main fork, and of its TOAST table's.  Bloat with "sample" only.  Locks:
 * AccessShareLock, for a moment, on an index until the end.  EXECUTE: pg_monitor.
 */
Datum
index_mover_relation_report(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Oid			duplicate = report_duplicate_of(relid);
	int64		size = -1;
	RelationFacts facts = {0};
	Row			row;

	row_clear(&row);
	if (relation_facts(relid, &facts) && ConditionalLockRelationOid(relid, AccessShareLock))
	{
		size = main_size(relid);
		if (size >= 0 && OidIsValid(facts.toast_oid))
			size += Max(main_size(facts.toast_oid), 0);
		UnlockRelationOid(relid, AccessShareLock);
	}
	row_int64(&row, 1, size);
	if (OidIsValid(duplicate))
		row_set(&row, 2, ObjectIdGetDatum(duplicate));
	bloat_report(PG_GETARG_BOOL(1) && facts.relkind == RELKIND_INDEX ? relid : InvalidOid, &row, 3);
	if (facts.relam == GIN_AM_OID)
		report_pending(relid, &row, 6);
	row_set(&row, 10, BoolGetDatum(report_is_spare(relid)));
	row_tablespace(&row, 11, facts.tablespace);
	return row_result(fcinfo, &row);
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
