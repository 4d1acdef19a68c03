/*-------------------------------------------------------------------------
 *
 * job_item.c
 *	  The items of a job: names of their fields, parts, details, totals.
 *
 * Locks: none of its own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "mb/pg_wchar.h"

#include "job.h"

static const char *const phase_names[] = {
	[PHASE_INITIALIZING] = "initializing",
	[PHASE_WAIT_START] = "waiting for lock to start",
	[PHASE_COPYING] = "copying blocks",
	[PHASE_CATCHING_UP] = "copying changed blocks",
	[PHASE_VERIFYING] = "verifying",
	[PHASE_WAIT_SWAP_TIME] = "waiting for time to swap",
	[PHASE_WAIT_SWAP_LOCK] = "waiting for lock to swap",
	[PHASE_SWAPPING] = "swapping",
	[PHASE_PREWARMING] = "prewarming",
	[PHASE_REMOVING_OLD_FILE] = "removing old file",
	[PHASE_WAIT_WRITERS] = "waiting for writers before build",
	[PHASE_WAIT_SNAPSHOTS] = "waiting for old snapshots",
	[PHASE_REBUILDING] = "initializing",	/* until core reports more */
	[PHASE_CLEANING_UP] = "cleaning up",
	[PHASE_GIVING_WAY] = "giving way",
	[PHASE_FREEZING] = "freezing",
};

static const char *const status_names[] = {
	[STATUS_PLANNED] = "planned",
	[STATUS_QUEUED] = "queued",
	[STATUS_RUNNING] = "running",
	[STATUS_MOVED] = "moved",
	[STATUS_SKIPPED] = "skipped",
	[STATUS_FAILED] = "failed",
	[STATUS_CANCELED] = "canceled",
	[STATUS_REHEARSED] = "rehearsed",
};

static const char *const method_names[] = {
	[METHOD_AUTO] = "auto",
	[METHOD_COPY] = "copy",
	[METHOD_REBUILD] = "rebuild",
	[METHOD_DEFAULT] = "default",
};

const char *
method_name(MoveMethod method)
{
	return method_names[method];
}

const char *
status_name(MoveStatus status)
{
	return status_names[status];
}

const char *
phase_name(MovePhase phase)
{
	return phase_names[phase];
}

/*
 * Return the number of a name in an array.  ERROR 22P02 if it is not there: a later
 * version has written it, or a superuser.
 */
static int
number_of_name(const char *name, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (strcmp(names[i], name) == 0)
			return i;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
			 errmsg("unrecognized word in the history: \"%s\"", name),
			 errhint("The history may come from a later version of the extension.")));
}

MoveMethod
method_of_name(const char *name)
{
	return (MoveMethod) number_of_name(name, method_names, lengthof(method_names));
}

MoveStatus
status_of_name(const char *name)
{
	return (MoveStatus) number_of_name(name, status_names, lengthof(status_names));
}

/* Return the kind of a relation, as the column "kind" has it. */
const char *
relation_kind(char relkind, const char *schema_name)
{
	switch (relkind)
	{
		case RELKIND_PARTITIONED_INDEX:
		case RELKIND_PARTITIONED_TABLE:
			return "default";
		case RELKIND_INDEX:
			return strcmp(schema_name, "pg_toast") == 0 ? "toast index" : "index";
		case RELKIND_TOASTVALUE:
			return "toast";
		case ITEM_DATABASE:
			return "database";
		case ITEM_CATALOGS:
			return "system catalogs";
		case ITEM_FILES:
			return "temporary files";
		case ITEM_COPY:
			return "unfinished copy";
		case ITEM_OLD_FILE:
			return "old file";
		case ITEM_SETTING:
			return "setting";
		default:
			return "table";
	}
}

/* Return the word for a relation of this kind, see relation_kind(). */
const char *
kind_noun(const char *kind)
{
	if (strcmp(kind, "table") == 0)
		return relation_noun(RELKIND_RELATION);
	if (strcmp(kind, "toast") == 0)
		return relation_noun(RELKIND_TOASTVALUE);
	return relation_noun(RELKIND_INDEX);
}

/* Return the number of the last item that moves with item n, see MoveItem.part_of. */
int
job_last_part(const JobShared *shared, int n)
{
	Oid			table = shared->items[n].relid;

	while (n + 1 < shared->nitems && shared->items[n + 1].part_of == table)
		n++;
	return n;
}

/* Return the bytes of an item and its parts. */
int64
job_size_with_parts(const JobShared *shared, int n)
{
	int			last = job_last_part(shared, n);
	int64		size = 0;

	for (int i = n; i <= last; i++)
		size += Max(shared->items[i].size_before, 0);
	return size;
}

/*
 * Give the items that move with item n its outcome, which is theirs, too.
 * Return the number of the last item.
 */
int
job_parts_follow(JobShared *shared, int n)
{
	const MoveOutcome *outcome = &shared->items[n].outcome;
	int			last = job_last_part(shared, n);

	for (int i = n + 1; i <= last; i++)
	{
		MoveOutcome *part = &shared->items[i].outcome;

		Assert(shared->items[i].part_of == shared->items[n].relid);
		part->status = outcome->status;
		part->started_at = outcome->started_at;
		part->finished_at = outcome->finished_at;
		part->idle = outcome->idle;
		part->lock_time = outcome->lock_time;
		part->lock_attempts = outcome->lock_attempts;
		strlcpy(part->sqlstate, outcome->sqlstate, sizeof(part->sqlstate));
		/* a rehearsal tells of each file how its copy went */
		if (outcome->status != STATUS_REHEARSED)
			strlcpy(part->detail, outcome->detail, sizeof(part->detail));
	}
	return last;
}

/* Copy names and tablespace of the relation to its row. */
void
item_fill(MoveItem *item, const RelationFacts *facts)
{
	item->relid = facts->relid;
	item->heap_oid = facts->heap_oid;
	item->relname = facts->relname;
	item->schema_name = facts->schema_name;
	item->heap_name = facts->heap_name;
	item->relkind = facts->relkind;
	item->from_tablespace = facts->tablespace;
}

/* Append a sentence to the row's detail, clipped at a character boundary. */
void
item_say(MoveItem *item, const char *fmt,...)
{
	char	   *detail = item->outcome.detail;
	char		sentence[1024];
	int			used = strlen(detail);
	int			len;
	int			room;
	int			written;
	bool		clipped;
	va_list		args;

	va_start(args, fmt);
	written = vsnprintf(sentence, sizeof(sentence), fmt, args);
	va_end(args);
	if (used > 0 && used < IM_DETAIL_LEN - 1)
		detail[used++] = ' ';
	len = strlen(sentence);
	room = IM_DETAIL_LEN - 1 - used;
	clipped = written > len || len > room;
	/* half of a command must not be a command: it would do something else */
	if (clipped)
		len = pg_mbcliplen(sentence, len, Max(Min(len, room) - 3, 0));
	memcpy(detail + used, sentence, len);
	strlcpy(detail + used + len, clipped ? "..." : "", room - len + 1);
}

/*
 * Skip the row, with the reason as its only detail, and return false.
 * sqlerrcode is 0 if nothing is wrong, but there is nothing to do.
 */
bool
item_skip(MoveItem *item, int sqlerrcode, const char *fmt,...)
{
	MoveOutcome *outcome = &item->outcome;
	char		reason[1024];
	va_list		args;

	va_start(args, fmt);
	(void) vsnprintf(reason, sizeof(reason), fmt, args);
	va_end(args);
	outcome->status = STATUS_SKIPPED;
	strlcpy(outcome->sqlstate, sqlerrcode ? unpack_sql_state(sqlerrcode) : "",
			sizeof(outcome->sqlstate));
	outcome->detail[0] = '\0';
	item_say(item, "%s", reason);
	return false;
}

/* Add a relation to the totals. */
void
job_totals_add(JobTotals *totals, bool is_index, MoveStatus status, int64 size,
			   Oid from_tablespace, Oid to_tablespace, int64 lock_time)
{
	size = Max(size, 0);
	totals->in_place = (totals->total == 0 || totals->in_place) && from_tablespace == to_tablespace;
	if (totals->total++ == 0)
		totals->tablespace = to_tablespace;
	else if (totals->tablespace != to_tablespace)
		totals->tablespace = InvalidOid;
	totals->has_tables |= !is_index;
	totals->size += size;
	totals->rehearsed += (status == STATUS_REHEARSED);
	totals->skipped += (status == STATUS_SKIPPED);
	if (status == STATUS_MOVED)
	{
		totals->moved++;
		totals->size_moved += size;
		totals->longest_lock = Max(totals->longest_lock, lock_time);
	}
}

/* Return the totals of a job. */
JobTotals
job_totals(const MoveItem *items, int nitems)
{
	JobTotals	totals = {0};

	for (int i = 0; i < nitems; i++)
		job_totals_add(&totals, relkind_is_index(items[i].relkind), items[i].outcome.status,
					   items[i].size_before, items[i].from_tablespace, items[i].to_tablespace,
					   items[i].outcome.lock_time);
	return totals;
}

/* Return the word for these relations, as many as they are. */
const char *
relations_noun(const JobTotals *totals)
{
	if (totals->has_tables)
		return totals->total == 1 ? "relation" : "relations";
	return totals->total == 1 ? "index" : "indexes";
}
