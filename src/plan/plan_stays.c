/*-------------------------------------------------------------------------
 *
 * plan_stays.c
 *	  Rows for the things that an evacuation leaves in a tablespace, and why.
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
#include "catalog/pg_shdepend.h"
#include "catalog/pg_tablespace.h"
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
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "file_system.h"
#include "job.h"
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
 * Return the OIDs of the other databases that have files in a tablespace, or
 * in which something without a file names it.
 */
List *
plan_other_databases(Oid tablespace)
{
	List	   *depend = NIL;
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, row, catalog_rows(SharedDependRelationId, SharedDependReferenceIndexId,
												 Anum_pg_shdepend_refclassid, TableSpaceRelationId,
												 Anum_pg_shdepend_refobjid, tablespace))
		depend = lappend_oid(depend, ((Form_pg_shdepend) GETSTRUCT(row))->dbid);
	foreach_ptr(HeapTupleData, row, catalog_all(DatabaseRelationId))
	{
		Oid			database = ((Form_pg_database) GETSTRUCT(row))->oid;

		/* the directory stays after its last file has gone */
		if (database != MyDatabaseId &&
			(list_member_oid(depend, database) || has_files(GetDatabasePath(database, tablespace))))
			result = lappend_oid(result, database);
	}
	return result;
}

/*
 * Return core's command that moves all that is in the default tablespace of a
 * database elsewhere: to "to" rather than to pg_default, and to that rather than
 * to another one; NULL if there is none.  Core wants no files of the database
 * there, so it must not be "filled".
 */
static char *
alter_database_command(Oid database, Oid from, Oid to, Oid filled)
{
	char	   *name = get_database_name(database);
	char	   *best = NULL;
	int			best_rank = 0;

	foreach_ptr(HeapTupleData, row, catalog_all(TableSpaceRelationId))
	{
		Form_pg_tablespace form = (Form_pg_tablespace) GETSTRUCT(row);
		int			rank = form->oid == to ? 3 : form->oid == DEFAULTTABLESPACE_OID ? 2 : 1;

		if (rank > best_rank && form->oid != from && form->oid != filled &&
			form->oid != GLOBALTABLESPACE_OID && tablespace_hindrance(form->oid) == NULL &&
			!has_files(GetDatabasePath(database, form->oid)))
		{
			best_rank = rank;
			best = NameStr(form->spcname);
		}
	}
	return best == NULL || name == NULL ? NULL :
		printed_command("alter_database", name, best);
}

/* Make the row of something that stays. */
static MoveItem *
add_row(List **entries, char relkind, const char *name, Oid tablespace)
{
	PlanEntry  *entry = plan_new_entry();
	MoveItem   *item = &entry->item;

	item->relkind = relkind;
	namestrcpy(&item->relname, name);
	item->from_tablespace = tablespace;
	item->method = METHOD_DEFAULT;
	*entries = lappend(*entries, entry);
	return item;
}

/*
 * Return core's command that moves a system catalog, which only a superuser may
 * do.  One statement with its setting, so that it can be run as it is.
 */
static char *
alter_catalog_command(const MoveItem *item)
{
	return printed_command("do", psprintf("BEGIN SET LOCAL allow_system_table_mods = on; %s END",
										  item_core_command(item)));
}

/* Add this database's relations that no call can move. */
static void
add_relations(List **entries, Oid tablespace, Oid to)
{
	foreach_ptr(HeapTupleData, row, catalog_rows(RelationRelationId, ClassTblspcRelfilenodeIndexId,
												 Anum_pg_class_reltablespace, tablespace_in_catalog(tablespace),
												 0, InvalidOid))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		if (isAnyTempNamespace(form->relnamespace) && RELKIND_HAS_STORAGE(form->relkind))
			(void) item_skip(add_row(entries, form->relkind, NameStr(form->relname), tablespace),
							 ERRCODE_FEATURE_NOT_SUPPORTED,
							 "It is temporary, and goes with its session.");
		else if (IsCatalogNamespace(form->relnamespace) && tablespace != MyDatabaseTableSpace &&
				 RELKIND_HAS_STORAGE(form->relkind))
		{
			MoveItem   *item = add_row(entries, form->relkind, NameStr(form->relname), tablespace);

			namestrcpy(&item->schema_name, "pg_catalog");
			item->to_tablespace = to;
			(void) item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
							 "It is a system catalog, which a superuser can move, under an exclusive lock: %s",
							 alter_catalog_command(item));
		}
	}
}

/* Add the catalogs, which are in the default tablespace of this database. */
static void
add_catalogs(List **entries, Oid tablespace, Oid to)
{
	bool		fills = has_files(GetDatabasePath(MyDatabaseId, to));
	char	   *command;
	ListCell   *lc;

	foreach(lc, *entries)
		if (((PlanEntry *) lfirst(lc))->item.status == STATUS_PLANNED)
		fills = true;
	command = alter_database_command(MyDatabaseId, tablespace, to, fills ? to : InvalidOid);
	(void) item_skip(add_row(entries, ITEM_CATALOGS, "pg_catalog", tablespace),
					 ERRCODE_FEATURE_NOT_SUPPORTED,
					 "This is the default tablespace of the database: its system catalogs, large objects and sequences stay. %s%s",
					 command != NULL ? "From another database, with no session connected to this one: " :
					 "Core can move them only to a tablespace without files of this database, and there is none.",
					 command != NULL ? command : "");
}

static const char *const setting_names[] = {"default_tablespace", "temp_tablespaces"};

/*
 * Return whether the value of setting_names[i] names a tablespace, and set
 * *action to a change after which it names the others only.
 */
static bool
names_tablespace(int i, const char *value, const char *tablespace, char **action)
{
	StringInfoData rest;
	bool		found = false;
	List	   *names = NIL;
	ListCell   *lc;
	char	   *name;

	*action = psprintf("RESET %s", setting_names[i]);
	/* default_tablespace is a name as it is, temp_tablespaces a list */
	if (i == 0)
		return strcmp(value, tablespace) == 0;
	if (!SplitIdentifierString(pstrdup(value), ',', &names))
		return false;
	initStringInfo(&rest);
	foreach(lc, names)
	{
		name = lfirst(lc);
		if (strcmp(name, tablespace) == 0)
			found = true;
		else					/* '' is the database's, and no identifier */
			appendStringInfo(&rest, "%s%s", rest.len > 0 ? ", " : "",
							 *name ? quote_identifier(name) : "''");
	}
	if (rest.len > 0)
		*action = psprintf("SET %s TO %s", setting_names[i], rest.data);
	return found;
}

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
		char	   *action;

		if (strncmp(assignment, name, strlen(name)) != 0 ||
			assignment[strlen(name)] != '=' ||
			!names_tablespace(i, assignment + strlen(name) + 1, tablespace_name, &action))
			continue;
		database = OidIsValid(form->setdatabase) ? get_database_name(form->setdatabase) : NULL;
		role = OidIsValid(form->setrole) ? GetUserNameFromId(form->setrole, true) : NULL;
		(void) item_skip(add_row(entries, ITEM_SETTING, name, tablespace),
						 ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "It names the tablespace: %s",
						 printed_command("alter_setting",
										 psprintf("%s %s%s%s",
												  role || !database ? "ROLE" : "DATABASE",
												  role ? quote_identifier(role) : database ? quote_identifier(database) : "ALL",
												  role && database ? " IN DATABASE " : "",
												  role && database ? quote_identifier(database) : ""), action));
		added[i] = true;
	}
}

/* Add the settings of the server that a file of its configuration makes. */
static void
add_file_settings(List **entries, Oid tablespace, const char *tablespace_name,
				  const char *file, bool by_command, bool *added)
{
	ConfigVariable *head = NULL;
	ConfigVariable *tail = NULL;

	if (!ParseConfigFile(file, false, NULL, 0, 0, DEBUG2, &head, &tail))
		return;
	for (int i = 0; i < lengthof(setting_names); i++)
	{
		const char *value = NULL;
		char	   *action;

		/* the last one counts */
		for (ConfigVariable *variable = head; variable != NULL; variable = variable->next)
			if (variable->name != NULL && pg_strcasecmp(variable->name, setting_names[i]) == 0)
				value = variable->value;
		if (value == NULL || !names_tablespace(i, value, tablespace_name, &action))
			continue;
		(void) item_skip(add_row(entries, ITEM_SETTING, setting_names[i], tablespace),
						 ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "It names the tablespace%s%s",
						 by_command ? ", until the configuration is loaded again after: " : ", in postgresql.conf.",
						 by_command ? printed_command("alter_setting", "SYSTEM", action) : "");
		added[i] = true;
	}
	FreeConfigVariables(head);
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
	char	   *action;

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

	if (name == NULL)
		return;
	add_file_settings(entries, tablespace, name, PG_AUTOCONF_FILENAME, true, added);
	add_file_settings(entries, tablespace, name, ConfigFileName, false, added);

	/*
	 * a new session of this role would have one of these values, or the
	 * server's
	 */
	for (int i = 0; i < lengthof(setting_names); i++)
		if (!added[i] &&
			names_tablespace(i, GetConfigOptionResetString(setting_names[i]), name, &action))
			(void) item_skip(add_row(entries, ITEM_SETTING, setting_names[i], tablespace),
							 ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
							 "It names the tablespace, on a command line, or in a file that has changed since it was loaded.");
}

/* Add another database that uses a tablespace. */
static void
add_database(List **entries, Oid database, Oid tablespace, Oid to)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	Form_pg_database form;
	MoveItem   *item;
	char	   *command;

	if (!HeapTupleIsValid(tuple))
		return;					/* dropped in the meantime */
	form = (Form_pg_database) GETSTRUCT(tuple);
	item = add_row(entries, ITEM_DATABASE, NameStr(form->datname), tablespace);
	(void) item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
					 "This database has files in the tablespace, too. Those that were removed go at the next checkpoint; to move the others, in that database: %s",
					 printed_command("evacuate", get_tablespace_name(tablespace),
									 get_tablespace_name(to)));
	if (form->dattablespace == tablespace &&
		(command = alter_database_command(database, tablespace, to, InvalidOid)) != NULL)
		item_say(item, "Or, with no session connected to it: %s", command);
	ReleaseSysCache(tuple);
}

/*
 * Add to a plan that moves all of a tablespace to another one a skipped row for
 * each thing that stays, with commands that core accepts after the moves, in the
 * order of the rows.
 */
List *
plan_what_stays(List *entries, Oid tablespace, Oid to)
{
	char	   *temp = NULL;
	ListCell   *lc;

	add_relations(&entries, tablespace, to);
	foreach(lc, plan_other_databases(tablespace))
		add_database(&entries, lfirst_oid(lc), tablespace, to);

	if (tablespace == DEFAULTTABLESPACE_OID)
		temp = psprintf("base/%s", PG_TEMP_FILES_DIR);
	else
		temp = psprintf("pg_tblspc/%u/%s/%s", tablespace, TABLESPACE_VERSION_DIRECTORY,
						PG_TEMP_FILES_DIR);
	if (has_files(temp))
		(void) item_skip(add_row(&entries, ITEM_FILES, PG_TEMP_FILES_DIR, tablespace),
						 ERRCODE_OBJECT_IN_USE,
						 "Queries have temporary files there, which go when they end.");
	foreach(lc, leftovers_list())
	{
		const Leftover *file = lfirst(lc);

		if (file->keep_until != 0 && file->tablespace == tablespace)
			(void) item_skip(add_row(&entries, ITEM_COPY, file->name, tablespace),
							 ERRCODE_OBJECT_IN_USE,
							 "It is kept until %s, so that job " INT64_FORMAT " can go on. To remove it: %s",
							 timestamptz_to_str(file->keep_until), file->job,
							 printed_command("cleanup"));
	}
	add_settings(&entries, tablespace);
	if (tablespace == MyDatabaseTableSpace)
		add_catalogs(&entries, tablespace, to);
	return entries;
}
