/*-------------------------------------------------------------------------
 *
 * relation_report.c
 *	  Facts about a relation for index_report(), which is SQL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_am_d.h"
#include "fmgr.h"

#include "file_system.h"
#include "relation_facts.h"
#include "report/report.h"
#include "report/report_private.h"

PG_FUNCTION_INFO_V1(index_mover_relation_report);

/*
 * index_mover.relation_report(relation regclass, sample boolean) RETURNS record
 *
 * For index_report(), which must neither fail nor wait because of a single relation:
 * NULL for facts that cannot be read or, of an index's pages, is locked exclusively.  The size
 * is that of its main fork, and of its TOAST table's; bloat with "sample" only.  Its file
 * was made at file_birth (NULL: the file system or the platform does not tell), by a move
 * or REINDEX, too, so an index is not younger.
 *
 * Locks: AccessShareLock on an index until the end.  EXECUTE: pg_monitor.
 */
Datum
index_mover_relation_report(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Oid			duplicate = report_duplicate_of(relid, (List **) &fcinfo->flinfo->fn_extra,
												fcinfo->flinfo->fn_mcxt);
	RelationFacts facts = {0};
	Row			row;

	row_clear(&row);
	if (relation_facts(relid, &facts) && facts.persistence != RELPERSISTENCE_TEMP)
	{
		row_int64(&row, 1, relation_main_size(&facts));
		row_time(&row, 12, file_birth(&facts));
	}
	if (OidIsValid(duplicate))
		row_set(&row, 2, ObjectIdGetDatum(duplicate));
	bloat_report(PG_GETARG_BOOL(1) && facts.relkind == RELKIND_INDEX ? relid : InvalidOid, &row, 3);
	if (facts.relam == GIN_AM_OID)
		report_pending(relid, &row, 6);
	row_set(&row, 10, BoolGetDatum(report_is_spare(relid)));
	row_tablespace(&row, 11, facts.tablespace);
	return row_result(fcinfo, &row);
}
