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

#include "access/htup_details.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_shdepend.h"
#include "catalog/pg_tablespace.h"
#include "commands/dbcommands.h"
#include "commands/tablespace.h"
#include "common/file_utils.h"	/* PG_TEMP_FILES_DIR, from 16 on */
#include "common/relpath.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/varlena.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "file_system.h"
#include "plan/plan_private.h"
#include "printed_command.h"

/* Return whether a directory has files; if it does not exist, it has none. */
static bool
has_files(const char *path)
{
	/* 2 = only such as begin with a dot */
	return pg_check_dir(path) > 2;
}

/*
 * Return the rows of the other databases that have files in a tablespace, or in which
 * something without a file names it.
 */
List *
plan_other_databases(Oid tablespace)
{
	List	   *depend = NIL;
	List	   *result = NIL;

	List	   *rows = catalog_rows(SharedDependRelationId, SharedDependReferenceIndexId,
									Anum_pg_shdepend_refclassid, TableSpaceRelationId,
									Anum_pg_shdepend_refobjid, tablespace);

	foreach_ptr(HeapTupleData, row, rows)
		depend = lappend_oid(depend, ((Form_pg_shdepend) GETSTRUCT(row))->dbid);
	foreach_ptr(HeapTupleData, row, catalog_all(DatabaseRelationId))
	{
		Oid			database = ((Form_pg_database) GETSTRUCT(row))->oid;

		/* the directory stays after its last file has gone */
		if (database != MyDatabaseId &&
			(list_member_oid(depend, database) || has_files(GetDatabasePath(database, tablespace))))
			result = lappend(result, row);
	}
	return result;
}

/*
 * Return core's command that moves all that is in a database's default tablespace
 * elsewhere: to "to", else to pg_default, else to any other; NULL if there is none.
 * Core wants no files of the database there, so it must not be "filled".
 */
static char *
alter_database_command(Oid database, Oid from, Oid to, Oid filled)
{
	char	   *name = get_database_name(database);
	List	   *tablespaces = list_make2_oid(to, DEFAULTTABLESPACE_OID);

	foreach_ptr(HeapTupleData, row, catalog_all(TableSpaceRelationId))
		tablespaces = lappend_oid(tablespaces, ((Form_pg_tablespace) GETSTRUCT(row))->oid);
	foreach_oid(oid, tablespaces)
	{
		if (name != NULL && oid != from && oid != filled && oid != GLOBALTABLESPACE_OID &&
			tablespace_hindrance(oid) == NULL && !has_files(GetDatabasePath(database, oid)))
			return printed_command("alter_database", name, get_tablespace_name(oid));
	}
	return NULL;
}

static const char *const setting_names[] = {"default_tablespace", "temp_tablespaces"};

/* A plan that evacuates a tablespace, and the rest that stays there */
typedef struct Stays
{
	List	   *entries;
	Oid			tablespace;
	Oid			to;
} Stays;

/* Add the row of something that stays. */
static MoveItem *
add_row(Stays *stays, char relkind, const char *name)
{
	PlannedMove *entry = plan_new_entry();
	MoveItem   *item = &entry->item;

	item->relkind = relkind;
	namestrcpy(&item->relname, name);
	item->from_tablespace = stays->tablespace;
	item->to_tablespace = stays->to;
	item->method = METHOD_DEFAULT;
	stays->entries = lappend(stays->entries, entry);
	return item;
}

/*
 * Skip a temporary relation, and say when it goes: at the end of its session, or, if a
 * crash has ended that, when autovacuum or another session drops it.
 */
static void
skip_temporary(MoveItem *item, Form_pg_class form)
{
	Oid			dropped = form->oid;
	char	   *schema;
	char	   *name;

	if (OidIsValid(table_of_toast(form->oid)))
		dropped = table_of_toast(form->oid);
	else if (relkind_is_index(form->relkind))
		dropped = IndexGetRelation(form->oid, true);
	/* a process says only where its tables are, not their TOAST tables */
	if (checkTempNamespaceStatus(get_rel_namespace(dropped)) != TEMP_NAMESPACE_IDLE)
	{
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED, "It is temporary, and goes with its session.");
		return;
	}
	schema = get_namespace_name(get_rel_namespace(dropped));
	name = get_rel_name(dropped);
	if (schema == NULL || name == NULL)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED, "It is temporary, and was dropped just now.");
	else
	{
		const char *kind = form->relkind == RELKIND_SEQUENCE ? "SEQUENCE" : "TABLE";

		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "It is temporary, of a session that has ended without dropping it. Autovacuum drops it, or a superuser: %s",
				  printed_command("drop", kind, quote_qualified_identifier(schema, name)));
	}
}

/* Add this database's relations that no call can move. */
static void
add_relations(Stays *stays)
{
	Oid			tablespace = tablespace_in_catalog(stays->tablespace);
	List	   *rows = catalog_rows(RelationRelationId, ClassTblspcRelfilenodeIndexId,
									Anum_pg_class_reltablespace, tablespace, 0, InvalidOid);

	foreach_ptr(HeapTupleData, row, rows)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		if (!RELKIND_HAS_STORAGE(form->relkind))
			continue;
		if (isAnyTempNamespace(form->relnamespace))
			skip_temporary(add_row(stays, form->relkind, NameStr(form->relname)), form);
		else if (IsCatalogNamespace(form->relnamespace) &&
				 stays->tablespace != MyDatabaseTableSpace)
		{
			MoveItem   *item = add_row(stays, form->relkind, NameStr(form->relname));

			namestrcpy(&item->schema_name, "pg_catalog");
			/* a statement with its setting, so that it can be run as it is */
			item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
					  "It is a system catalog, which a superuser can move, under an exclusive lock: %s",
					  printed_command("do", psprintf("BEGIN SET LOCAL allow_system_table_mods = on; %s END",
													 item_core_command(item))));
		}
	}
}

/* Add the catalogs, which are in the default tablespace of this database. */
static void
add_catalogs(Stays *stays)
{
	bool		fills = has_files(GetDatabasePath(MyDatabaseId, stays->to)) ||
		plan_has_moves(stays->entries);
	char	   *command = alter_database_command(MyDatabaseId, stays->tablespace, stays->to,
												 fills ? stays->to : InvalidOid);
	MoveItem   *item = add_row(stays, ITEM_CATALOGS, "pg_catalog");

	item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
			  "This is the default tablespace of the database: its system catalogs, large objects and sequences stay.");
	if (command != NULL)
		item_say(item, "From another database, with no session connected to this one: %s", command);
	else
		item_say(item, "PostgreSQL can move them only to a tablespace without files of this database, and there is none.");
}

/*
 * Add a row if a setting's value names the tablespace: where it is set, in words and, if
 * "of" is not NULL, as the object of an ALTER after which it names the others only.
 */
static void
add_setting(Stays *stays, const char *name, const char *value, const char *words, const char *of)
{
	const char *tablespace = get_tablespace_name(stays->tablespace);
	bool		found = false;
	List	   *names = NIL;
	const char *command = "";
	StringInfoData rest;

	initStringInfo(&rest);
	/* default_tablespace is a name as it is, temp_tablespaces a list */
	if (strcmp(name, "default_tablespace") == 0)
		names = list_make1(unconstify(char *, value));
	else
		(void) SplitIdentifierString(pstrdup(value), ',', &names);
	foreach_ptr(const char, other, names)
	{
		if (tablespace != NULL && strcmp(other, tablespace) == 0)
			found = true;
		else
		{
			if (rest.len > 0)
				appendStringInfoString(&rest, ", ");
			/* '' is the database's, and no identifier */
			appendStringInfoString(&rest, *other ? quote_identifier(other) : "''");
		}
	}
	if (!found)
		return;
	if (of != NULL && rest.len > 0)
		command = printed_command("alter_setting", of, psprintf("SET %s TO %s", name, rest.data));
	else if (of != NULL)
		command = printed_command("alter_setting", of, psprintf("RESET %s", name));
	item_skip(add_row(stays, ITEM_SETTING, name), ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			  "It names the tablespace%s%s", words, command);
}

/* Add the settings in this list whose value names the tablespace. */
static void
add_settings(Stays *stays, List *settings, const char *words, const char *of)
{
	for (int i = 0; i < lengthof(setting_names); i++)
	{
		const char *value = NULL;

		/* the last setting counts */
		foreach_ptr(const DefElem, setting, settings)
		{
			if (pg_strcasecmp(setting->defname, setting_names[i]) == 0 && setting->arg != NULL)
				value = strVal(setting->arg);
		}
		if (value != NULL)
			add_setting(stays, setting_names[i], value, words, of);
	}
}

/* Return a role, a database or both as the object of an ALTER. */
static char *
role_setting(HeapTuple row)
{
	Form_pg_db_role_setting form = (Form_pg_db_role_setting) GETSTRUCT(row);
	const char *database = NULL;
	const char *role = NULL;

	if (OidIsValid(form->setdatabase))
		database = get_database_name(form->setdatabase);
	if (OidIsValid(form->setrole))
		role = GetUserNameFromId(form->setrole, true);
	if (role != NULL && database != NULL)
		return psprintf("ROLE %s IN DATABASE %s", quote_identifier(role), quote_identifier(database));
	if (role != NULL)
		return psprintf("ROLE %s", quote_identifier(role));
	if (database != NULL)
		return psprintf("DATABASE %s", quote_identifier(database));
	return pstrdup("ROLE ALL");
}

/* As role_setting(), of a function. */
static char *
function_setting(HeapTuple row)
{
	return psprintf("ROUTINE %s", format_procedure_qualified(((Form_pg_proc) GETSTRUCT(row))->oid));
}

/* Add the settings in a column of a catalog, whose rows are these objects of an ALTER. */
static void
add_catalog_settings(Stays *stays, Oid catalog, AttrNumber column, char *(*object) (HeapTuple row))
{
	foreach_ptr(HeapTupleData, row, catalog_all(catalog))
	{
		List	   *settings = settings_in_row(row, catalog, column);

		if (settings != NIL)
			add_settings(stays, settings, ": ", object(row));
	}
}

/* Add another database that uses the tablespace. */
static void
add_database(Stays *stays, Form_pg_database form)
{
	MoveItem   *item = add_row(stays, ITEM_DATABASE, NameStr(form->datname));
	bool		is_open = form->datallowconn && form->datconnlimit != DATCONNLIMIT_INVALID_DB;
	char	   *command;

	if (is_open)
	{
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "This database has files in the tablespace, too.");
		item_say(item, "Files of moved or dropped relations go at the next checkpoint.");
		item_say(item, "To move the others, in that database, with the extension created in it: %s",
				 printed_command("evacuate", get_tablespace_name(stays->tablespace),
								 get_tablespace_name(stays->to)));
	}
	else
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "This database has files in the tablespace, too. It accepts no connections, in which they could be moved.");
	if (form->dattablespace != stays->tablespace)
		return;
	command = alter_database_command(form->oid, stays->tablespace, stays->to, InvalidOid);
	if (command != NULL)
		item_say(item, "Or, with no session connected to it: %s", command);
}

/* Add the row of a file that a job has left. */
static void
skip_leftover(Stays *stays, const Leftover *file)
{
	char		kind = file->kind == LEFTOVER_UNFINISHED_COPY ? ITEM_COPY : ITEM_OLD_FILE;
	MoveItem   *item = add_row(stays, kind, file->name);

	if (file->keep_until == 0)
		item_skip(item, ERRCODE_OBJECT_IN_USE,
				  "Job " INT64_FORMAT " has left it. To remove it: %s",
				  file->job, printed_command("cleanup"));
	else
		item_skip(item, ERRCODE_OBJECT_IN_USE,
				  "Job " INT64_FORMAT " has left it, and can go on from it until %s. To remove it: %s",
				  file->job, timestamptz_to_str(file->keep_until), printed_command("cleanup"));
}

/*
 * Add to a plan that evacuates a tablespace a skipped row for each thing that stays,
 * with commands that core accepts after the moves, in the order of the rows.
 */
List *
plan_what_stays(List *entries, Oid tablespace, Oid to)
{
	Stays		stays = {entries, tablespace, to};
	List	   *files = NIL;
	char		temp[MAXPGPATH];

	add_relations(&stays);
	foreach_ptr(HeapTupleData, row, plan_other_databases(tablespace))
		add_database(&stays, (Form_pg_database) GETSTRUCT(row));

	TempTablespacePath(temp, tablespace);
	if (has_files(temp))
		item_skip(add_row(&stays, ITEM_FILES, PG_TEMP_FILES_DIR), ERRCODE_OBJECT_IN_USE,
				  "Queries have temporary files there, which go when they end.");
	/* a standby cannot lock a row of the ledger */
	if (!RecoveryInProgress())
		files = leftovers_list(ledger_read());
	foreach_ptr(const Leftover, file, files)
	{
		/* a move removes files that are not kept */
		if (file->tablespace == tablespace && !OidIsValid(file->index_oid) && file->size >= 0 &&
			(file->keep_until != 0 || !plan_has_moves(entries)))
			skip_leftover(&stays, file);
	}
	add_catalog_settings(&stays, DbRoleSettingRelationId, Anum_pg_db_role_setting_setconfig,
						 role_setting);
	add_catalog_settings(&stays, ProcedureRelationId, Anum_pg_proc_proconfig, function_setting);
	add_settings(&stays, settings_in_file(PG_AUTOCONF_FILENAME),
				 ", until the configuration is loaded again after: ", "SYSTEM");
	add_settings(&stays, settings_in_file(ConfigFileName), ", in postgresql.conf.", NULL);
	if (tablespace == MyDatabaseTableSpace)
		add_catalogs(&stays);
	return stays.entries;
}
