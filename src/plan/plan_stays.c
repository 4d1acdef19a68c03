/*-------------------------------------------------------------------------
 *
 * plan_stays.c
 *	  What a move of all of a tablespace leaves there, and why.
 *
 * DROP TABLESPACE wants the tablespace empty in all databases.  So a call that
 * empties it has a row, skipped, for each thing that this database's user
 * cannot move: other databases, system catalogs, temporary tables and files;
 * and for settings that name the tablespace, which DROP TABLESPACE does not
 * look at, and which would fail, or fill it again.
 *
 * Reads catalogs and directories only, without locks on users' relations.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/pg_type_d.h"
#include "commands/dbcommands.h"
#include "commands/tablespace.h"
#include "common/file_utils.h"
#include "common/relpath.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "compat.h"
#include "job.h"
#include "plan/plan.h"
#include "plan/plan_private.h"
#include "printed_command.h"

/* Return whether a directory has files; one that does not exist has none. */
static bool
has_files(const char *path)
{
	DIR		   *dir = AllocateDir(path);
	struct dirent *entry = NULL;

	while (dir != NULL && (entry = ReadDirExtended(dir, path, LOG)) != NULL)
		if (entry->d_name[0] != '.')
			break;
	if (dir != NULL)
		FreeDir(dir);
	return entry != NULL;
}

/*
 * Return the names of the other databases that have files in a tablespace, or
 * would make them there.
 */
List *
plan_other_databases(Oid tablespace)
{
	Relation	pg_database = table_open(DatabaseRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_database, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	List	   *names = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		char	   *path = GetDatabasePath(form->oid, tablespace);

		/* the directory stays after its last file has gone */
		if (form->oid != MyDatabaseId && has_files(path))
			names = lappend(names, pstrdup(NameStr(form->datname)));
		pfree(path);
	}
	systable_endscan(scan);
	table_close(pg_database, AccessShareLock);
	return names;
}

/* Make the row of something that stays. */
static MoveItem *
add_row(List **entries, char relkind, const char *name, Oid tablespace)
{
	PlanEntry  *entry = palloc0(sizeof(PlanEntry));
	MoveItem   *item = &entry->item;

	item->relkind = relkind;
	namestrcpy(&item->relname, name);
	item->from_tablespace = tablespace;
	item->method = METHOD_DEFAULT;
	item->size_before = item->size_after = -1;
	item->bytes_to_write = item->wal_bytes = item->sort_bytes = -1;
	item->fits = item->estimated = item->lock_time = -1;
	*entries = lappend(*entries, entry);
	return item;
}

/* Add this database's relations that no call can move. */
static void
add_relations(List **entries, Oid tablespace)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_class_reltablespace, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(tablespace == MyDatabaseTableSpace ? InvalidOid : tablespace));
	scan = systable_beginscan(pg_class, ClassTblspcRelfilenodeIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (isAnyTempNamespace(form->relnamespace) && RELKIND_HAS_STORAGE(form->relkind))
			(void) item_skip(add_row(entries, form->relkind, NameStr(form->relname), tablespace),
							 ERRCODE_FEATURE_NOT_SUPPORTED,
							 "It is temporary, and goes with its session.");
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);

	if (tablespace == MyDatabaseTableSpace)
		(void) item_skip(add_row(entries, ITEM_CATALOGS, "pg_catalog", tablespace),
						 ERRCODE_FEATURE_NOT_SUPPORTED,
						 "This is the default tablespace of the database; ALTER DATABASE ... SET TABLESPACE moves the rest, with no session connected.");
}

/* Return whether the value of a setting names a tablespace. */
static bool
names_tablespace(const char *value, const char *tablespace)
{
	List	   *names = NIL;
	ListCell   *lc;

	/* default_tablespace is a name as it is, temp_tablespaces a list */
	if (strcmp(value, tablespace) == 0)
		return true;
	if (SplitIdentifierString(pstrdup(value), ',', &names))
		foreach(lc, names)
			if (strcmp((char *) lfirst(lc), tablespace) == 0)
			return true;
	return false;
}

static const char *const setting_names[] = {"default_tablespace", "temp_tablespaces"};

/* Add one setting, of a role or a database or both, if it names the tablespace. */
static void
add_setting(List **entries, const char *assignment, Form_pg_db_role_setting form,
			Oid tablespace, const char *tablespace_name, bool *added)
{
	for (int i = 0; i < lengthof(setting_names); i++)
	{
		const char *name = setting_names[i];
		const char *database;
		const char *role;

		if (strncmp(assignment, name, strlen(name)) != 0 ||
			assignment[strlen(name)] != '=' ||
			!names_tablespace(assignment + strlen(name) + 1, tablespace_name))
			continue;
		database = OidIsValid(form->setdatabase) ? get_database_name(form->setdatabase) : NULL;
		role = OidIsValid(form->setrole) ? GetUserNameFromId(form->setrole, true) : NULL;
		(void) item_skip(add_row(entries, ITEM_SETTING, name, tablespace),
						 ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "It names the tablespace; to reset it: %s",
						 printed_command("reset_setting",
										 psprintf("%s %s%s%s",
												  role || !database ? "ROLE" : "DATABASE",
												  role ? quote_identifier(role) : database ? quote_identifier(database) : "ALL",
												  role && database ? " IN DATABASE " : "",
												  role && database ? quote_identifier(database) : ""), name));
		added[i] = true;
	}
}

/* Add the settings of roles and databases, and of the server. */
static void
add_settings(List **entries, Oid tablespace)
{
	Relation	rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	const char *name = get_tablespace_name(tablespace);
	bool		added[lengthof(setting_names)] = {false};

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		config = heap_getattr(tuple, Anum_pg_db_role_setting_setconfig,
										  RelationGetDescr(rel), &isnull);
		Datum	   *assignments;
		int			count;

		if (isnull)
			continue;
		deconstruct_array(DatumGetArrayTypeP(config), TEXTOID, -1, false, TYPALIGN_INT,
						  &assignments, NULL, &count);
		for (int i = 0; i < count; i++)
			if (name != NULL)
				add_setting(entries, TextDatumGetCString(assignments[i]),
							(Form_pg_db_role_setting) GETSTRUCT(tuple), tablespace, name, added);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	/*
	 * what a new session of this role would have is one of these, or the
	 * server's
	 */
	for (int i = 0; i < lengthof(setting_names); i++)
		if (!added[i] && name != NULL &&
			names_tablespace(GetConfigOptionResetString(setting_names[i]), name))
			(void) item_skip(add_row(entries, ITEM_SETTING, setting_names[i], tablespace),
							 ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
							 "It names the tablespace, in postgresql.conf or on the command line.");
}

/* Add to a plan a skipped row for each thing that stays in a tablespace. */
List *
plan_what_stays(List *entries, Oid tablespace, Oid to_tablespace)
{
	char	   *temp = NULL;
	ListCell   *lc;

	add_relations(&entries, tablespace);
	foreach(lc, plan_other_databases(tablespace))
		(void) item_skip(add_row(&entries, ITEM_DATABASE, lfirst(lc), tablespace),
						 ERRCODE_FEATURE_NOT_SUPPORTED,
						 "This database has files in the tablespace, too. Those that were removed go at the next checkpoint; to move the others, in that database: %s",
						 printed_command("evacuate", get_tablespace_name(tablespace),
										 get_tablespace_name(to_tablespace)));

	if (tablespace == DEFAULTTABLESPACE_OID)
		temp = psprintf("base/%s", PG_TEMP_FILES_DIR);
	else
		temp = psprintf("pg_tblspc/%u/%s/%s", tablespace, TABLESPACE_VERSION_DIRECTORY,
						PG_TEMP_FILES_DIR);
	if (has_files(temp))
		(void) item_skip(add_row(&entries, ITEM_FILES, PG_TEMP_FILES_DIR, tablespace),
						 ERRCODE_OBJECT_IN_USE,
						 "Queries have temporary files there, which go when they end.");
	add_settings(&entries, tablespace);
	return entries;
}
