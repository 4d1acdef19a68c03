/*-------------------------------------------------------------------------
 *
 * settings_of_role.c
 *	  The settings with which a new session of a role begins.
 *
 * The launcher's workers, and policies, run with the settings of other sessions than their own.
 *
 * Locks: AccessShareLock on catalogs, for moments.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "catalog/pg_db_role_setting.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/guc_tables.h"
#include "utils/rel.h"

#include "compat.h"
#include "relation_facts.h"
#include "settings.h"

/*
 * Return the settings of a configuration file; the last of a name counts.  No message, which
 * could quote a secret.
 */
List *
settings_in_file(const char *file)
{
	ConfigVariable *head = NULL;
	ConfigVariable *tail = NULL;
	List	   *result = NIL;

	if (!ParseConfigFile(file, true, NULL, 0, 0, 0, &head, &tail))
		return NIL;
	for (; head != NULL; head = head->next)
	{
		Node	   *value;

		if (head->name == NULL || head->value == NULL)
			continue;
		value = (Node *) makeString(head->value);
		result = lappend(result, makeDefElem(head->name, value, -1));
	}
	return result;
}

/* Return the settings in a column of a catalog's row, as of ALTER ROLE .. SET. */
List *
settings_in_row(HeapTuple row, Oid catalog, AttrNumber column)
{
	Relation	rel = table_open(catalog, AccessShareLock);
	bool		isnull;
	Datum		settings = heap_getattr(row, column, RelationGetDescr(rel), &isnull);

	table_close(rel, AccessShareLock);
	return isnull ? NIL : untransformRelOptions(settings);
}

/* The settings of core that a plan, or a job, obeys, and their defaults */
static const char *const of_core[][2] = {
	{"TimeZone", "GMT"}, {"IntervalStyle", "postgres"},
	{"maintenance_work_mem", "64MB"}, {"max_parallel_maintenance_workers", "2"},
};

#define NSETTINGS		(settings_count() + (int) lengthof(of_core))

/* Return the name of setting n: first ours, then core's. */
static const char *
stored_name(int n)
{
	if (n < settings_count())
		return settings_name(n);
	return of_core[n - settings_count()][0];
}

static const char *
stored_default(int n)
{
	if (n < settings_count())
		return settings_default(n);
	return of_core[n - settings_count()][1];
}

/* Set the settings of this list that are index_mover's, or in of_core[]. */
static void
set_stored(List *stored)
{
	foreach_ptr(const DefElem, one, stored)
	{
		for (int i = 0; i < NSETTINGS; i++)
		{
			if (pg_strcasecmp(one->defname, stored_name(i)) == 0 && one->arg != NULL)
				settings_set_here(stored_name(i), strVal(one->arg), PGC_SUSET, DEBUG1);
		}
	}
}

/*
 * Set all settings, for the GUC nest level, to the values with which a new session of this
 * role, 0 = of any, begins in this database, whatever the own session has.  As in core's
 * process_settings(), privileges were checked when they were stored, and wrong values
 * are ignored.
 */
void
settings_begin_as(Oid role)
{
	/* the last value of a setting counts */
	const Oid	places[][2] = {{InvalidOid, InvalidOid}, {MyDatabaseId, InvalidOid},
	{InvalidOid, role}, {MyDatabaseId, role}};

	for (int i = 0; i < NSETTINGS; i++)
		settings_set_here(stored_name(i), stored_default(i), PGC_SUSET, DEBUG1);
	set_stored(settings_in_file(ConfigFileName));
	set_stored(settings_in_file(PG_AUTOCONF_FILENAME));
	/* the server's value, unless this session's role or client hides it */
	for (int i = 0; i < NSETTINGS; i++)
	{
		if (find_option(stored_name(i), false, true, 0)->reset_source <= PGC_S_ARGV)
			settings_set_here(stored_name(i), NULL, PGC_SUSET, DEBUG1);
	}
	for (int i = 0; i < lengthof(places); i++)
	{
		List	   *rows = catalog_rows(DbRoleSettingRelationId, DbRoleSettingDatidRolidIndexId,
										Anum_pg_db_role_setting_setdatabase, places[i][0],
										Anum_pg_db_role_setting_setrole, places[i][1]);

		foreach_ptr(HeapTupleData, row, rows)
			set_stored(settings_in_row(row, DbRoleSettingRelationId,
									   Anum_pg_db_role_setting_setconfig));
	}
}
