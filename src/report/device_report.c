/*-------------------------------------------------------------------------
 *
 * device_report.c
 *	  Tablespaces of this database whose devices are lost, another server's, or not known
 *	  by evidence: rows of index_mover_check().
 *
 * Locks: none.  A tablespace that is dropped meanwhile has no row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "commands/tablespace.h"
#include "common/relpath.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/tuplestore.h"

#include "evidence.h"
#include "file_system.h"
#include "printed_command.h"
#include "relation_facts.h"
#include "row.h"

PG_FUNCTION_INFO_V1(index_mover_device_problems);

/* Add a row: the fault, the tablespace, why, and a command against it, or NULL. */
static void
put_device(ReturnSetInfo *rsinfo, const char *kind, Oid tablespace, const char *why,
		   const char *command)
{
	Row			row;

	row_clear(&row);
	row_text(&row, 1, kind);
	row_tablespace(&row, 2, tablespace);
	row_text(&row, 3, why);
	row_text(&row, 4, command);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
}

/* Add the row of a tablespace in which this database has relations, if any. */
static void
put_problem(ReturnSetInfo *rsinfo, Oid tablespace, bool has_lost)
{
	char	   *name = get_tablespace_name(tablespace);
	bool		is_ours;

	if (name == NULL)
		return;
	is_ours = evidence_claim(tablespace);
	if (!is_ours && evidence_is_foreign(tablespace))
		put_device(rsinfo, "foreign device", tablespace, evidence_reason(tablespace), NULL);
	else if (has_lost)
		put_device(rsinfo, "lost device", tablespace, evidence_reason(tablespace),
				   RecoveryInProgress() ? NULL : printed_command("heal", name));
	else
	{
		bool		is_known = evidence_ensure(tablespace);

		if (!is_known)
			put_device(rsinfo, "evidence missing", tablespace, evidence_reason(tablespace), NULL);
	}
}

/*
 * index_mover.device_problems(OUT kind text, OUT tablespace name, OUT detail text,
 *		OUT command text) RETURNS SETOF record
 *
 * A row for each tablespace in which this database has relations, if its device lacks
 * changes of their files, has another server's marker, or cannot be told from another.
 * Looks at the devices.
 *
 * Privileges: EXECUTE is granted to pg_monitor.
 */
Datum
index_mover_device_problems(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *tablespaces = NIL;
	List	   *lost = NIL;

	InitMaterializedSRF(fcinfo, 0);
	foreach_ptr(HeapTupleData, tuple, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);
		Oid			tablespace = tablespace_from_catalog(form->reltablespace);

		if (!RELKIND_HAS_STORAGE(form->relkind) || form->relpersistence == RELPERSISTENCE_TEMP)
			continue;
		tablespaces = list_append_unique_oid(tablespaces, tablespace);
		if (evidence_knows_lost(tuple))
			lost = list_append_unique_oid(lost, tablespace);
	}
	foreach_oid(tablespace, tablespaces)
		put_problem(rsinfo, tablespace, list_member_oid(lost, tablespace));
	foreach_ptr(HeapTupleData, tuple, catalog_all(TableSpaceRelationId))
	{
		Oid			tablespace = ((Form_pg_tablespace) GETSTRUCT(tuple))->oid;
		const char *detail;
		const char *command = NULL;

		/* put_problem() has told of missing tablespaces that have relations */
		if (!tablespace_is_missing(tablespace) || list_member_oid(tablespaces, tablespace))
			continue;
		if (!RecoveryInProgress())
		{
			detail = "The directory of this server's version is missing, so temporary files cannot be made there.";
			command = printed_command("heal", tablespace_name(tablespace));
		}
		else
			detail = psprintf("The directory of this server's version is missing, so temporary files cannot be made there. On a standby it has to be made by hand: \"pg_tblspc/%u/%s\".",
							  tablespace, TABLESPACE_VERSION_DIRECTORY);
		put_device(rsinfo, "missing directory", tablespace, detail, command);
	}
	return (Datum) 0;
}
