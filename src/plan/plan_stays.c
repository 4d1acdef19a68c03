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

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_proc.h"
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
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "file_system.h"
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
			/* one statement with its setting, so that it can be run as it is */
			(void) item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
							 "It is a system catalog, which a superuser can move, under an exclusive lock: %s",
							 printed_command("do", psprintf("BEGIN SET LOCAL allow_system_table_mods = on; %s END",
															item_core_command(item))));
		}
	}
}

/* Add the catalogs, which are in the default tablespace of this database. */
static void
add_catalogs(List **entries, Oid tablespace, Oid to)
{
	bool		fills = has_files(GetDatabasePath(MyDatabaseId, to));
	char	   *command;

	foreach_ptr(const PlanEntry, entry, *entries)
		fills = fills || entry->item.status == STATUS_PLANNED;
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
 * Add a row if a setting's value names the tablespace: where it is set, in words and, if
 * "of" is not NULL, as the object of an ALTER after which it names the others only.
 */
static bool
add_setting(List **entries, Oid tablespace, int setting, const char *value,
			const char *words, const char *of)
{
	const char *name = setting_names[setting];
	const char *tablespace_name = get_tablespace_name(tablespace);
	bool		found = false;
	List	   *names = NIL;
	StringInfoData rest;

	initStringInfo(&rest);
	/* default_tablespace is a name as it is, temp_tablespaces a list */
	if (setting == 0)
		names = list_make1(unconstify(char *, value));
	else if (!SplitIdentifierString(pstrdup(value), ',', &names))
		return false;
	foreach_ptr(const char, other, names)
	{
		if (tablespace_name != NULL && strcmp(other, tablespace_name) == 0)
			found = true;
		else					/* '' is the database's, and no identifier */
			appendStringInfo(&rest, "%s%s", rest.len > 0 ? ", " : "",
							 *other ? quote_identifier(other) : "''");
	}
	if (found)
		(void) item_skip(add_row(entries, ITEM_SETTING, name, tablespace),
						 ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "It names the tablespace%s%s", words, of == NULL ? "" :
						 printed_command("alter_setting", of, rest.len > 0 ?
										 psprintf("SET %s TO %s", name, rest.data) : psprintf("RESET %s", name)));
	return found;
}

/* Add the settings of the server that a file of its configuration makes. */
static void
add_file_settings(List **entries, Oid tablespace, const char *file,
				  const char *words, const char *of, bool *added)
{
	ConfigVariable *head = NULL;
	ConfigVariable *tail = NULL;

	if (!ParseConfigFile(file, false, NULL, 0, 0, DEBUG2, &head, &tail))
		return;
	for (int i = 0; i < lengthof(setting_names); i++)
	{
		const char *value = NULL;

		/* the last one counts */
		for (ConfigVariable *variable = head; variable != NULL; variable = variable->next)
			if (variable->name != NULL && pg_strcasecmp(variable->name, setting_names[i]) == 0)
				value = variable->value;
		if (value != NULL && add_setting(entries, tablespace, i, value, words, of))
			added[i] = true;
	}
	FreeConfigVariables(head);
}

/* Return the object of an ALTER for the settings of a role or a database, or both. */
static char *
role_setting_of(Form_pg_db_role_setting form)
{
	const char *database = OidIsValid(form->setdatabase) ? get_database_name(form->setdatabase) : NULL;
	const char *role = OidIsValid(form->setrole) ? GetUserNameFromId(form->setrole, true) : NULL;

	return psprintf("%s %s%s%s", role || !database ? "ROLE" : "DATABASE",
					role ? quote_identifier(role) : database ? quote_identifier(database) : "ALL",
					role && database ? " IN DATABASE " : "",
					role && database ? quote_identifier(database) : "");
}

/* Add the settings of an object, as in its row of the catalog. */
static void
add_object_settings(List **entries, Oid tablespace, ArrayType *settings, const char *of, bool *added)
{
	Datum	   *assignments;
	int			count;

	deconstruct_array(settings, TEXTOID, -1, false, TYPALIGN_INT, &assignments, NULL, &count);
	for (int n = 0; n < count; n++)
	{
		char	   *name;
		char	   *value;

		ParseLongOption(TextDatumGetCString(assignments[n]), &name, &value);
		for (int i = 0; i < lengthof(setting_names); i++)
			if (strcmp(name, setting_names[i]) == 0 &&
				add_setting(entries, tablespace, i, value, ": ", of))
				added[i] = true;
	}
}

/* Add the settings of roles and databases, of functions, and of the server. */
static void
add_settings(List **entries, Oid tablespace)
{
	Relation	rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	bool		added[lengthof(setting_names)] = {false};

	foreach_ptr(HeapTupleData, row, catalog_all(DbRoleSettingRelationId))
	{
		bool		isnull;
		Datum		settings = heap_getattr(row, Anum_pg_db_role_setting_setconfig,
											RelationGetDescr(rel), &isnull);

		if (!isnull)
			add_object_settings(entries, tablespace, DatumGetArrayTypeP(settings),
								role_setting_of((Form_pg_db_role_setting) GETSTRUCT(row)), added);
	}
	table_close(rel, AccessShareLock);

	/* a function that sets one would fail */
	foreach_ptr(HeapTupleData, row, catalog_all(ProcedureRelationId))
	{
		bool		isnull;
		bool		of_function[lengthof(setting_names)];
		Datum		settings = SysCacheGetAttr(PROCOID, row, Anum_pg_proc_proconfig, &isnull);

		if (!isnull)
			add_object_settings(entries, tablespace, DatumGetArrayTypeP(settings),
								psprintf("ROUTINE %s", format_procedure_qualified(((Form_pg_proc) GETSTRUCT(row))->oid)),
								of_function);
	}

	add_file_settings(entries, tablespace, PG_AUTOCONF_FILENAME,
					  ", until the configuration is loaded again after: ", "SYSTEM", added);
	add_file_settings(entries, tablespace, ConfigFileName, ", in postgresql.conf.", NULL, added);

	/*
	 * a new session of this role would have one of these values, or the
	 * server's
	 */
	for (int i = 0; i < lengthof(setting_names); i++)
		if (!added[i])
			(void) add_setting(entries, tablespace, i, GetConfigOptionResetString(setting_names[i]),
							   ", on a command line, or in a file that has changed since it was loaded.", NULL);
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
	char		temp[MAXPGPATH];

	add_relations(&entries, tablespace, to);
	foreach_oid(database, plan_other_databases(tablespace))
		add_database(&entries, database, tablespace, to);

	TempTablespacePath(temp, tablespace);
	if (has_files(temp))
		(void) item_skip(add_row(&entries, ITEM_FILES, PG_TEMP_FILES_DIR, tablespace),
						 ERRCODE_OBJECT_IN_USE,
						 "Queries have temporary files there, which go when they end.");
	foreach_ptr(const Leftover, file, leftovers_list())
	{
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
