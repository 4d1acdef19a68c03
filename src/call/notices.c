/*-------------------------------------------------------------------------
 *
 * notices.c
 *	  The messages to a waiting client: a line when a job begins, a line when it
 *	  ends, and a line for each relation that was not moved.
 *
 * A waiting call has the job's items, wait_for_move() has its history; both
 * make a JobSummary of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "commands/tablespace.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "call/call.h"
#include "file_system.h"
#include "printed_command.h"

/*
 * Return the name of a relation as regclass prints it: of the relation of this name,
 * since core renames an index that it has rebuilt; else of the relation of this OID,
 * which has been renamed; or, if both are gone, the name that it had, qualified
 * unless its schema is in the search path.
 */
char *
notices_name(Oid relation, const char *schema, const char *name)
{
	Oid			namespace = get_namespace_oid(schema, true);
	Oid			path[64];
	Oid			named = OidIsValid(namespace) ? get_relname_relid(name, namespace) : InvalidOid;

	if (schema[0] == '\0')
		return pstrdup(name);	/* not a relation */
	if (OidIsValid(named))
		relation = named;
	if (get_rel_name(relation) == NULL)
	{
		/* fetch_search_path() would create the temporary schema */
		int			nschemas = fetch_search_path_array(path, lengthof(path));

		for (int i = 0; i < Min(nschemas, lengthof(path)); i++)
		{
			if (path[i] == namespace)
				schema = NULL;
		}
		return quote_qualified_identifier(schema, name);
	}
	return DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(relation)));
}

char *
notices_duration(double seconds)
{
	if (seconds < 100)
		return psprintf("%.1f s", seconds);
	if (seconds < 100 * 60)
		return psprintf("%.0f min", seconds / 60);
	return psprintf("%.1f h", seconds / 3600);
}

/* Return the tablespace in quotes, after a noun, or words for several of them. */
static const char *
target_words(const JobTotals *totals, const char *noun)
{
	const char *name = NULL;

	if (OidIsValid(totals->tablespace))
		name = get_tablespace_name(totals->tablespace);
	if (name == NULL)
		return "several tablespaces";
	return psprintf("%s\"%s\"", noun, name);
}

/* Send the line at the beginning of a job. */
void
notices_begin(const JobSummary *summary)
{
	const JobTotals *totals = &summary->totals;

	if (totals->total == 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": nothing is to be moved",
						summary->job)));
	else if (totals->in_place)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d %s, %s, to rebuild in %s",
						summary->job, totals->total, relations_noun(totals),
						size_text(totals->size), target_words(totals, "tablespace "))));
	else
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d %s, %s, to %s",
						summary->job, totals->total, relations_noun(totals),
						size_text(totals->size), target_words(totals, "tablespace "))));
}

/* Send the line at the end of a job that took so many seconds. */
void
notices_end(const JobSummary *summary, double seconds)
{
	const JobTotals *totals = &summary->totals;

	if (totals->rehearsed > 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": the move of %d of %d %s was rehearsed in %s, and nothing was moved",
						summary->job, totals->rehearsed, totals->total,
						relations_noun(totals), notices_duration(seconds))));
	else if (totals->total > 0 && totals->skipped == totals->total)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": everything was skipped", summary->job)));
	else if (totals->total > 0 && totals->in_place)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d of %d %s rebuilt in %s, %s in %s",
						summary->job, totals->moved, totals->total,
						relations_noun(totals), target_words(totals, ""),
						size_text(totals->size_moved), notices_duration(seconds))));
	else if (totals->total > 0 && totals->longest_lock == 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d of %d %s moved to %s, %s in %s",
						summary->job, totals->moved, totals->total,
						relations_noun(totals), target_words(totals, ""),
						size_text(totals->size_moved), notices_duration(seconds))));
	else if (totals->total > 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d of %d %s moved to %s, %s in %s, longest lock %.1f ms",
						summary->job, totals->moved, totals->total,
						relations_noun(totals), target_words(totals, ""),
						size_text(totals->size_moved), notices_duration(seconds),
						totals->longest_lock / 1000.0)));
}

/*
 * Note the outcome of a relation.  If it was not moved, tell so by a WARNING, or by a
 * line of the ERROR that notices_raise() raises; a table and its parts have one line.
 * name: NULL only counts it.
 */
void
notices_outcome(JobSummary *summary, MoveStatus status, bool is_part,
				const char *noun, const char *name,
				const char *sqlstate, const char *reason)
{
	int			code = ERRCODE_WARNING;

	if (sqlstate != NULL && sqlstate[0] != '\0')
		code = MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2], sqlstate[3], sqlstate[4]);
	if (status == STATUS_SKIPPED && !is_part && code == ERRCODE_INSUFFICIENT_PRIVILEGE)
		summary->denied++;
	if (STATUS_IS_DONE(status))
		return;
	summary->not_moved++;
	if (is_part || name == NULL)
		return;
	if (summary->warn && summary->totals.in_place)
		ereport(WARNING,
				(errcode(code),
				 errmsg("%s \"%s\" was not rebuilt", noun, name),
				 reason ? errdetail_internal("%s", reason) : 0));
	else if (summary->warn)
		ereport(WARNING,
				(errcode(code),
				 errmsg("%s \"%s\" was not moved", noun, name),
				 reason ? errdetail_internal("%s", reason) : 0));
	else
	{
		if (summary->failures.data == NULL)
			initStringInfo(&summary->failures);
		if (summary->failures.len > 0)
			appendStringInfoChar(&summary->failures, '\n');
		appendStringInfo(&summary->failures, "%s \"%s\": %s", noun, name,
						 reason ? reason : "not moved");
	}
}

/* As notices_outcome(), of an item with this status. */
void
notices_item(JobSummary *summary, const MoveItem *item, MoveStatus status)
{
	char	   *name = item_name(item);

	/* without quotes of its own, since the message has some */
	if (OidIsValid(item->relid) && strchr(name, '"') != NULL)
		name = psprintf("%s.%s", NameStr(item->schema_name), NameStr(item->relname));
	notices_outcome(summary, status, OidIsValid(item->part_of), relation_noun(item->relkind),
					name, item->outcome.sqlstate, item->outcome.detail);
}

/*
 * Tell how many relations were skipped because a privilege is missing, and, unless
 * elevel is 0, how many were not moved: ERROR 55000 or a WARNING.
 */
void
notices_raise(const JobSummary *summary, int elevel)
{
	int			total = summary->totals.total;
	const char *nouns = relations_noun(&summary->totals);

	if (summary->denied > 0)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg_plural("%d relation was skipped for lack of a privilege",
							   "%d relations were skipped for lack of a privilege",
							   summary->denied, summary->denied),
				 errdetail("Rows with status \"skipped\" and sqlstate 42501 say which, and what is missing.")));
	if (summary->not_moved == 0 || elevel == 0)
		return;
	if (elevel == ERROR)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_plural("%d of %d %s was not moved",
							   "%d of %d %s were not moved",
							   summary->not_moved, summary->not_moved, total, nouns),
				 summary->failures.len > 0 ?
				 errdetail_internal("%s", summary->failures.data) : 0,
				 errhint("To move the rest: %s", printed_command("resume_move", summary->job))));
	ereport(elevel,
			(errcode(ERRCODE_WARNING),
			 errmsg_plural("%d of %d %s was not moved",
						   "%d of %d %s were not moved",
						   summary->not_moved, summary->not_moved, total, nouns),
			 errhint("See job " INT64_FORMAT " in %s.", summary->job, printed_command("history"))));
}
