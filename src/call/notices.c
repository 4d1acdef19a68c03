/*-------------------------------------------------------------------------
 *
 * notices.c
 *	  What a waiting client is told: a line when a job begins and one when it
 *	  ends, and what was not moved.
 *
 * A waiting call has the job's items, wait_for_move() has its history; both
 * make a JobSummary of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/tablespace.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "call/call.h"
#include "file_system.h"
#include "job.h"
#include "printed_command.h"

/*
 * Return the name of a relation as regclass prints it: of the one of this name,
 * since core renames an index that it has rebuilt; else of the one of this OID,
 * which has been renamed; or, if both are gone, the name that it had, qualified
 * unless its schema is in the search path.
 */
char *
notices_name(Oid relation, const char *schema, const char *name)
{
	Oid			namespace = get_namespace_oid(schema, true);
	Oid			named = OidIsValid(namespace) ? get_relname_relid(name, namespace) : InvalidOid;
	char	   *relname;

	if (schema[0] == '\0')
		return pstrdup(name);	/* not a relation */
	if (OidIsValid(named))
		relation = named;
	relname = get_rel_name(relation);
	if (relname == NULL)
		return quote_qualified_identifier(list_member_oid(fetch_search_path(true), namespace) ?
										  NULL : schema, name);
	return quote_qualified_identifier(RelationIsVisible(relation) ? NULL :
									  get_namespace_name(get_rel_namespace(relation)),
									  relname);
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

/* Add a relation of this kind, see relation_kind(), to the summary. */
void
summary_add(JobSummary *summary, MoveStatus status, const char *kind,
			int64 size, Oid to_tablespace, int64 lock_time)
{
	if (strcmp(kind, "table") == 0 || strcmp(kind, "toast") == 0)
		summary->has_tables = true;
	if (summary->total++ == 0)
	{
		summary->tablespace = to_tablespace;
		if (summary->target == NULL)
			summary->target = get_tablespace_name(to_tablespace);
	}
	else if (summary->tablespace != to_tablespace)
		summary->tablespace = InvalidOid;
	summary->size += Max(size, 0);
	if (status == STATUS_REHEARSED)
		summary->rehearsed++;
	if (status == STATUS_MOVED)
	{
		summary->moved++;
		summary->size_moved += Max(size, 0);
		summary->longest_lock = Max(summary->longest_lock, lock_time);
	}
}

/* Return the word for what the job moves, as many as they are. */
const char *
summary_noun(const JobSummary *summary)
{
	if (summary->has_tables)
		return summary->total == 1 ? "relation" : "relations";
	return summary->total == 1 ? "index" : "indexes";
}

/* Return the tablespace in quotes, or words for several of them. */
static const char *
target_words(const JobSummary *summary)
{
	return OidIsValid(summary->tablespace) && summary->target != NULL ?
		psprintf("\"%s\"", summary->target) : "several";
}

/* Send the line at the beginning of a job. */
void
notices_begin(const JobSummary *summary)
{
	if (summary->total == 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": nothing is to be moved",
						summary->job)));
	else
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d %s, %s, to tablespace %s",
						summary->job, summary->total, summary_noun(summary),
						size_text(summary->size), target_words(summary))));
}

/* Send the line at the end of a job that took so many seconds. */
void
notices_end(const JobSummary *summary, double seconds)
{
	if (summary->total == 0)
		return;
	if (summary->rehearsed > 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": the move of %d of %d %s was rehearsed in %s, and nothing was moved",
						summary->job, summary->rehearsed, summary->total,
						summary_noun(summary), notices_duration(seconds))));
	else if (summary->longest_lock > 0)
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d of %d %s moved to %s, %s in %s, longest lock %.1f ms",
						summary->job, summary->moved,
						summary->total, summary_noun(summary), target_words(summary),
						size_text(summary->size_moved),
						notices_duration(seconds),
						summary->longest_lock / 1000.0)));
	else
		ereport(NOTICE,
				(errmsg("job " INT64_FORMAT ": %d of %d %s moved to %s, %s in %s",
						summary->job, summary->moved,
						summary->total, summary_noun(summary), target_words(summary),
						size_text(summary->size_moved),
						notices_duration(seconds))));
}

/*
 * Note what was not moved: with on_failure = row a WARNING, else a line of the
 * ERROR that notices_raise() raises.
 */
void
notices_failure(JobSummary *summary, const char *noun, const char *name,
				const char *sqlstate, const char *reason, bool warn)
{
	summary->not_moved++;
	if (warn)
		ereport(WARNING,
				(errcode(sqlstate == NULL || sqlstate[0] == '\0' ? ERRCODE_WARNING :
						 MAKE_SQLSTATE(sqlstate[0], sqlstate[1], sqlstate[2],
									   sqlstate[3], sqlstate[4])),
				 errmsg("%s \"%s\" was not moved", noun, name),
				 reason ? errdetail_internal("%s", reason) : 0));
	else
	{
		if (summary->failures.data == NULL)
			initStringInfo(&summary->failures);
		appendStringInfo(&summary->failures, "%s%s \"%s\": %s",
						 summary->failures.len > 0 ? "\n" : "", noun, name,
						 reason ? reason : "not moved");
	}
}

/* Raise ERROR 55000 if something was not moved. */
void
notices_raise(const JobSummary *summary)
{
	if (summary->not_moved > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_plural("%d of %d %s was not moved",
							   "%d of %d %s were not moved",
							   summary->total, summary->not_moved, summary->total,
							   summary_noun(summary)),
				 summary->failures.len > 0 ?
				 errdetail_internal("%s", summary->failures.data) : 0,
				 errhint("To move the rest: %s",
						 printed_command("resume_move", summary->job))));
}
