/*-------------------------------------------------------------------------
 *
 * printed_command.c
 *	  The commands that messages and reports tell people to run.
 *
 * Who runs a command that we print may be a superuser, and others may create
 * functions in the schema that the extension is in.  No call by a name in that
 * schema is safe from them: even if every argument has its exact type, a function
 * with another argument, with a default, makes the call ambiguous (FuncnameGetCandidates()).
 * So a command names functions and views of the schema index_mover_call, in which
 * only the extension's owner creates anything, and no two have the same name.
 *
 * A command is a single statement, and does not depend on search_path.
 *
 * Locks: none; needs no transaction, and so may be called for any message.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "printed_command.h"

#define MAX_ARGUMENTS	3		/* of a command */

/* %L literal, %I identifier, %d int64, %s SQL text that the caller has quoted */
static const struct
{
	const char *name;
	const char *format;
}			commands[] = {
	{"adopt_ledger", "SELECT index_mover.adopt_ledger(%L);"},
	{"alter_move", "SELECT index_mover_call.alter_move(%d, %L, %L);"},
	{"blockers", "SELECT * FROM index_mover_call.index_mover_blockers;"},
	{"cancel_move", "SELECT index_mover_call.cancel_move(%d);"},
	{"cleanup", "SELECT * FROM index_mover_call.index_mover_cleanup();"},
	{"evacuate", "SELECT * FROM index_mover_call.evacuate_tablespace(%L, %L);"},
	{"heal", "SELECT * FROM index_mover_call.heal_tablespace(%L);"},
	{"history", "index_mover_call.index_mover_history"},
	{"jobs", "index_mover_call.index_mover_jobs"},
	{"move_children", "SELECT m.* FROM (SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid WHERE i.inhparent OPERATOR(pg_catalog.=) %L::pg_catalog.regclass AND c.relkind OPERATOR(pg_catalog.<>) 'f' AND c.relpersistence OPERATOR(pg_catalog.<>) 't' OFFSET 0) c, index_mover_call.move_indexes(c.inhrelid, %L) m;"},
	{"move_child_tables", "SELECT m.* FROM (SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid WHERE i.inhparent OPERATOR(pg_catalog.=) %L::pg_catalog.regclass AND c.relkind OPERATOR(pg_catalog.<>) 'f' AND c.relpersistence OPERATOR(pg_catalog.<>) 't' OFFSET 0) c, index_mover_call.move_table(c.inhrelid, %L) m;"},
	{"move_indexes", "SELECT * FROM index_mover_call.move_indexes(%L, %L, %L);"},
	{"move_table", "SELECT * FROM index_mover_call.move_table(%L, %L);"},
	{"on_all_nodes", "SELECT * FROM pg_catalog.run_command_on_all_nodes(%L);"},
	{"probe", "SELECT * FROM index_mover_call.tablespace_probe(%L);"},
	{"progress", "index_mover_call.index_mover_progress"},
	{"queue_index", "SELECT * FROM index_mover_call.move_indexes(%L, %L, 'copy', wait => false);"},
	{"queue_table", "SELECT * FROM index_mover_call.move_table(%L, %L, wait => false);"},
	{"queue_schema_indexes", "SELECT pg_catalog.max(job) FROM index_mover_call.move_schema_indexes(%L, %L, wait => false)"},
	{"queue_schema_tables", "SELECT pg_catalog.max(job) FROM index_mover_call.move_schema_tables(%L, %L, wait => false)"},
	{"resume_move", "SELECT index_mover_call.resume_move(%d);"},
	{"undo_move", "SELECT * FROM index_mover_call.undo_move(%d);"},

	{"alter_database", "ALTER DATABASE %I SET TABLESPACE %I;"},
	{"alter_relation", "ALTER %s %s SET TABLESPACE %I;"},
	{"alter_setting", "ALTER %s %s;"},
	{"archiver", "SELECT * FROM pg_catalog.pg_stat_archiver;"},
	{"cancel_backend", "SELECT pg_catalog.pg_cancel_backend(%d);"},
	{"checkpoint", "CHECKPOINT;"},
	{"commit_prepared", "COMMIT PREPARED %L;"},
	{"create_replica_trigger", "CREATE TRIGGER not_by_replication BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION index_mover.not_by_replication('by clients');"},
	{"create_trigger", "CREATE TRIGGER %s ON %s FOR EACH %s();"},
	{"do", "DO %L;"},
	{"detach_finalize", "ALTER TABLE %s DETACH PARTITION %s FINALIZE;"},
	{"drop", "DROP %s %s;"},
	{"drop_index", "DROP INDEX CONCURRENTLY %s;"},
	{"drop_rule", "DROP RULE %I ON %s;"},
	{"drop_slot", "SELECT pg_catalog.pg_drop_replication_slot(%L);"},
	{"drop_trigger", "DROP TRIGGER %I ON %s;"},
	{"enable_trigger", "ALTER TABLE %s ENABLE %s TRIGGER %I;"},
	{"flush_pending", "SELECT pg_catalog.gin_clean_pending_list(%L);"},
	{"no_inherit", "ALTER TABLE %s NO INHERIT %s;"},
	{"pending_analyze", "ALTER TABLE %s SET (autovacuum_enabled = on, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = %d);"},
	{"pending_limit", "ALTER INDEX %s SET (gin_pending_list_limit = %d);"},
	{"reindex", "REINDEX (TABLESPACE %I) INDEX %s;"},
	{"rollback_prepared", "ROLLBACK PREPARED %L;"},
	{"set_owner", "UPDATE %s SET owner = %L WHERE name OPERATOR(pg_catalog.=) %L;"},
	{"terminate_backend", "SELECT pg_catalog.pg_terminate_backend(%d);"},
	{"tablespace_costs", "ALTER TABLESPACE %I SET (random_page_cost = %s, effective_io_concurrency = %d);"},
};

static const char *
find_format(const char *name)
{
	for (int i = 0; i < lengthof(commands); i++)
	{
		if (strcmp(commands[i].name, name) == 0)
			return commands[i].format;
	}
	ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg_internal("unknown command \"%s\"", name));
	return NULL;				/* keep compiler quiet */
}

/* Return a command with these arguments, palloc'd. */
static char *
put_in(const char *format, const char **arguments, int count)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (const char *p = format; *p; p++)
	{
		if (*p != '%')
		{
			appendStringInfoChar(&buf, *p);
			continue;
		}
		if (count-- == 0)
			ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg_internal("an argument of \"%s\" is missing", format));
		p++;
		if (*p == 'L')
			appendStringInfoString(&buf, quote_literal_cstr(*arguments));
		else if (*p == 'I')
			appendStringInfoString(&buf, quote_identifier(*arguments));
		else
			appendStringInfoString(&buf, *arguments);
		arguments++;
	}
	return buf.data;
}

/* Return a command, palloc'd.  Its arguments: an int64 for each %d of its text, else a char *. */
char *
printed_command(const char *name,...)
{
	const char *format = find_format(name);
	const char *arguments[MAX_ARGUMENTS];
	int			count = 0;
	va_list		args;

	va_start(args, name);
	for (const char *p = strchr(format, '%'); p != NULL; p = strchr(p + 1, '%'))
	{
		const char *argument = p[1] == 'd' ? psprintf(INT64_FORMAT, va_arg(args, int64)) :
			va_arg(args, char *);

		Assert(count < MAX_ARGUMENTS);
		/* NULL is the name of an object that was dropped just now */
		arguments[count++] = argument ? argument : "";
	}
	va_end(args);
	return put_in(format, arguments, count);
}

PG_FUNCTION_INFO_V1(index_mover_printed_command);

/*
 * index_mover.printed_command(name text, VARIADIC arguments text[]) RETURNS text
 *
 * The same for reports and views; of a number its text.
 */
Datum
index_mover_printed_command(PG_FUNCTION_ARGS)
{
	Datum	   *elements;
	const char *arguments[MAX_ARGUMENTS];
	int			count;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, NULL, &count);
	count = Min(count, MAX_ARGUMENTS);
	for (int i = 0; i < count; i++)
		arguments[i] = TextDatumGetCString(elements[i]);
	PG_RETURN_TEXT_P(cstring_to_text(put_in(find_format(text_to_cstring(PG_GETARG_TEXT_PP(0))),
											arguments, count)));
}
