/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  The plan of a relation: whether it moves, by which method, and why.
 *
 * A plan is a list of rows.  A relation that cannot be moved has the reason in
 * its row; errors are for the call as a whole.  The plan is made without
 * locks, so it can be outdated when a runner comes to an item: plan_recheck()
 * repeats the checks then.
 *
 * Locks: on catalogs, each released at once, and on an index while its bloat
 * is measured, if available.  So planning never waits for a user's lock, and
 * a caller that waits for the move holds none because of it.
 *
 * Tricky: a partitioned index or table has no file, but it determines where
 * future partitions, or their indexes, are made.  It is an item of its own
 * (METHOD_DEFAULT) after all others, so that a job canceled half-way has not
 * redirected new partitions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_database.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_tablespace.h"
#include "commands/tablespace.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"

#include "citus.h"
#include "cleanup/cleanup.h"
#include "compat.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan_private.h"
#include "printed_command.h"
#include "report/report.h"

#define SMALL_INDEX		(128 * 1024)	/* auto does not rebuild up to here */

/* Choose the method of an index that both methods can move, or only copy can, and say why. */
static void
choose_by_bloat(PlannedMove *entry, const MoveSettings *settings, const char *no_rebuild)
{
	MoveItem   *item = &entry->item;
	double		threshold = settings->rebuild_threshold;

	item->method = METHOD_COPY;
	if (item->size_before <= SMALL_INDEX)
		item_say(item, "Copy, because the index is small (at most 128 kB).");
	else if (!bloat_estimate(item->relid, &entry->bloat_ratio))
	{
		entry->bloat_ratio = -1;
		item_say(item, "Copy; its bloat could not be measured.");
	}
	else if (entry->bloat_ratio <= threshold)
		item_say(item, "Copy, because the estimated bloat of %.2f is not above rebuild_threshold (%.2f).",
				 entry->bloat_ratio, threshold);
	else if (no_rebuild != NULL)
		item_say(item, "Copy, although the estimated bloat of %.2f is above rebuild_threshold (%.2f). Rebuild cannot move it: %s.",
				 entry->bloat_ratio, threshold, no_rebuild);
	else
	{
		item->method = METHOD_REBUILD;
		item_say(item, "Rebuild, because the estimated bloat of %.2f is above rebuild_threshold (%.2f).",
				 entry->bloat_ratio, threshold);
	}
}

/* Set the method of a row that should be moved, and why, or skip the row. */
static void
choose_method(PlannedMove *entry, MoveMethod requested, const MoveSettings *settings)
{
	MoveItem   *item = &entry->item;
	bool		is_index = relkind_is_index(item->relkind);
	const char *no_copy = copy_hindrance(&entry->facts);
	const char *no_rebuild = is_index ? rebuild_hindrance(&entry->facts) : NULL;
	const char *lost = NULL;
	int			code = ERRCODE_FEATURE_NOT_SUPPORTED;

	if (no_copy == NULL && requested != METHOD_REBUILD)
		lost = lost_file(&entry->facts, LOOK_QUICK);
	if (lost != NULL)
	{
		no_copy = lost;
		code = is_index ? ERRCODE_INDEX_CORRUPTED : ERRCODE_DATA_CORRUPTED;
	}
	item->method = is_index ? requested : METHOD_COPY;
	if (!is_index && lost != NULL)
		item_skip(item, code, "It cannot be copied: %s.", lost);
	else if (!is_index && no_copy != NULL)
		item_skip(item, code, "It cannot be copied: %s. Under an exclusive lock: %s",
				  no_copy, item_core_command(item));
	else if (no_copy != NULL && no_rebuild != NULL)
		item_skip(item, code,
				  "Method copy cannot move it: %s. Method rebuild cannot: %s. Under an exclusive lock: %s",
				  no_copy, no_rebuild, item_core_command(item));
	else if (item->method == METHOD_COPY && no_copy != NULL)
		item_skip(item, code, "Method copy cannot move it: %s. Method rebuild can.", no_copy);
	else if (item->method == METHOD_REBUILD && no_rebuild != NULL)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "Method rebuild cannot move it: %s. Method copy can.", no_rebuild);
	else if (item->method == METHOD_AUTO && no_copy != NULL)
	{
		item->method = METHOD_REBUILD;
		item_say(item, "Rebuild, because copy cannot move it: %s.", no_copy);
	}
	else if (item->method == METHOD_AUTO)
		choose_by_bloat(entry, settings, no_rebuild);
}

/* Make the row of a relation, without a decision; NULL if it is gone. */
static PlannedMove *
new_entry(Oid relid, Oid to_tablespace, MoveMethod method)
{
	PlannedMove *entry = plan_new_entry();
	MoveItem   *item = &entry->item;

	if (!relation_facts(relid, &entry->facts))
		return NULL;
	item_fill(item, &entry->facts);
	item->old_relid = relid;
	item->to_tablespace = to_tablespace;
	item->outcome.status = STATUS_PLANNED;
	item->requested = item->method = method;
	item->parent = parent_of_partition(item->heap_oid);
	item->size_before = relation_files_size(entry->facts.tablespace,
											entry->facts.relfilenumber);
	return entry;
}

/* Return the command that removes a leftover of REINDEX CONCURRENTLY. */
const char *
leftover_command(const RelationFacts *facts)
{
	if (leftover_index_is_ours(facts->relid))
		return printed_command("cleanup");
	return printed_command("drop_index",
						   quote_qualified_identifier(NameStr(facts->schema_name),
													  NameStr(facts->relname)));
}

/*
 * Look at a part of a table that is to be moved, as the copy will do: the table is
 * skipped if its TOAST table, or the index of that, is lost.  An index that is not
 * valid is no hindrance, but is not passed over in silence.
 */
static void
plan_part(PlannedMove *entry, PlannedMove *part)
{
	MoveItem   *item = &part->item;
	const char *lost = lost_file(&part->facts, LOOK_QUICK);
	int			code = ERRCODE_DATA_CORRUPTED;

	if (relkind_is_index(item->relkind))
		code = ERRCODE_INDEX_CORRUPTED;
	if (lost != NULL)
		item_skip(&entry->item, code, "The %s \"%s\" cannot be copied: %s.",
				  relation_noun(item->relkind), NameStr(item->relname), lost);
	else if (!part->facts.valid)
	{
		item_say(item, "The index is not valid: an interrupted REINDEX CONCURRENTLY has left it, or one runs now.");
		item_say(item, "It moves with its table. To remove a leftover, as a superuser: %s",
				 leftover_command(&part->facts));
	}
}

/*
 * Tell the user of each index of a TOAST table that is not valid, and moves with its
 * table.  A policy's plan has no reader.
 */
void
plan_notice_invalid_parts(const List *entries)
{
	foreach_ptr(const PlannedMove, entry, entries)
	{
		if (entry->item.outcome.status != STATUS_PLANNED)
			continue;
		foreach_ptr(const PlannedMove, part, entry->parts)
		{
			if (part->facts.valid)
				continue;
			ereport(NOTICE,
					(errmsg("index \"%s\" of the TOAST table of \"%s\" is not valid, and moves with it",
							NameStr(part->item.relname), NameStr(entry->item.relname)),
					 errdetail("An interrupted REINDEX CONCURRENTLY has left it, or one runs now."),
					 errhint("To remove a leftover, as a superuser: %s",
							 leftover_command(&part->facts))));
		}
	}
}

/* Make the row that a request has for a relation, without a decision; NULL if it is gone. */
PlannedMove *
plan_entry_of(Oid relid, const PlanRequest *request)
{
	Oid			target = request->to_tablespace;
	PlannedMove *entry;

	if (OidIsValid(request->index_tablespace) && relkind_is_index(get_rel_relkind(relid)))
		target = request->index_tablespace;
	entry = new_entry(relid, target, request->method);
	if (entry == NULL)
		return NULL;
	entry->item.as_owner = request->as_owner;
	if (!RELKIND_HAS_PARTITIONS(entry->item.relkind))
		return entry;
	entry->item.method = METHOD_DEFAULT;
	entry->item.size_before = 0;
	return entry;
}

/* Say of a planned move that a rehearsal, or a rebuild, leaves something out. */
static void
apply_settings(MoveItem *item, const MoveSettings *settings)
{
	if (settings->terms.rehearse && item->method == METHOD_REBUILD)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED, "A rebuild cannot be rehearsed.");
	else if (settings->terms.rehearse && item->method != METHOD_COPY)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED, "There is nothing to rehearse.");
	else if (item->method == METHOD_REBUILD &&
			 (settings->max_rate > 0 || settings->swap_after > 0))
		item_say(item, "A rebuild obeys neither max_rate nor swap_after.");
}

/*
 * Decide whether and how the relation of a row moves, and say it, or skip the row; add
 * the rows of its parts.  is_named: the user has named this very relation.
 */
void
plan_decide(PlannedMove *entry, const PlanRequest *request, bool is_named)
{
	MoveItem   *item = &entry->item;

	entry->rank = item->size_before;
	/* only an index that the user names can be repaired */
	item->repair = is_named && !entry->facts.valid && item->method == METHOD_REBUILD;

	if (item_check(item, &entry->facts))
	{
		if (item->method != METHOD_DEFAULT)
			choose_method(entry, request->method, &request->settings);
		else if (relkind_is_index(item->relkind))
			item_say(item, "A partitioned index has no file; only the default for the indexes of new partitions is set.");
		else
			item_say(item, "A partitioned table has no file; only the default for new partitions is set.");
		if (item->repair && item->outcome.status == STATUS_PLANNED)
			item_say(item, "The index is not valid; the rebuild repairs it.");
	}
	if (item->outcome.status == STATUS_PLANNED)
		apply_settings(item, &request->settings);

	/* the TOAST table and the index of that go with it */
	foreach_oid(oid, parts_of_table(&entry->facts))
	{
		PlannedMove *part = new_entry(oid, item->to_tablespace, METHOD_COPY);

		if (part == NULL)
			continue;
		part->item.part_of = item->relid;
		entry->parts = lappend(entry->parts, part);
		if (item->outcome.status == STATUS_PLANNED)
			plan_part(entry, part);
	}
}

static char *
name_in_command(Oid relid)
{
	char	   *schema = get_namespace_name(get_rel_namespace(relid));
	char	   *name = get_rel_name(relid);

	/* dropped just now */
	if (schema == NULL || name == NULL)
		return pstrdup("");
	return quote_qualified_identifier(schema, name);
}

/* Make the skipped row of a partition whose detachment is pending, or of its index. */
PlannedMove *
plan_pending(Oid relid, const PlanRequest *request)
{
	PlannedMove *entry = new_entry(relid, request->to_tablespace, request->method);
	Oid			partition;
	Oid			parent;

	if (entry == NULL)
		return NULL;
	if (RELKIND_HAS_PARTITIONS(entry->item.relkind))
		entry->item.method = METHOD_DEFAULT;
	/* it, or a partition above it; the top has none pending */
	partition = entry->facts.heap_oid;
	while (get_rel_relispartition(partition) && !PartitionHasPendingDetach(partition))
		partition = get_partition_parent(partition, true);
	if (!get_rel_relispartition(partition))
		return NULL;			/* detached just now */
	parent = get_partition_parent(partition, true);
	item_skip(&entry->item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
			  "Its partition is being detached, or that was interrupted. To end it, and then move the table by its own name: %s",
			  printed_command("detach_finalize", name_in_command(parent), name_in_command(partition)));
	return entry;
}

/* Moves with a file come first, then the defaults, then the skipped rows. */
static int
entry_class(const PlannedMove *entry)
{
	if (entry->item.outcome.status != STATUS_PLANNED)
		return 2;
	return entry->item.method == METHOD_DEFAULT ? 1 : 0;
}

static int
compare_entries(const ListCell *a, const ListCell *b)
{
	const PlannedMove *entry1 = (const PlannedMove *) lfirst(a);
	const PlannedMove *entry2 = (const PlannedMove *) lfirst(b);
	int			result = entry_class(entry1) - entry_class(entry2);

	if (result == 0 && entry1->rank != entry2->rank)
		result = entry1->rank < entry2->rank ? -1 : 1;
	if (result == 0)
		result = strcmp(NameStr(entry1->item.relname), NameStr(entry2->item.relname));
	if (result == 0)
		result = strcmp(NameStr(entry1->item.schema_name), NameStr(entry2->item.schema_name));
	return result;
}

/* Return the rows in the order of execution, each with its parts behind it. */
List *
plan_in_order(List *entries)
{
	List	   *result = NIL;

	list_sort(entries, compare_entries);
	foreach_ptr(PlannedMove, entry, entries)
		result = list_concat(lappend(result, entry), entry->parts);
	return result;
}

/*
 * Repeat all checks in the runner after it has locked the relation.  If that cannot
 * be moved any more, skip the row with the reason and return false; otherwise update
 * its names and source tablespace.  began: for the wording, the work has begun.
 */
bool
plan_recheck(MoveItem *item, bool began)
{
	RelationFacts facts;
	const char *when = began ? "while it was being moved" : "before its move began";
	const char *hindrance;

	Assert(IsTransactionState());
	/* by OID: a new index of the same name is another index */
	if (!relation_facts(item->relid, &facts) ||
		facts.heap_oid != item->heap_oid)
	{
		if (item->heap_oid == item->relid)
			return item_skip(item, ERRCODE_UNDEFINED_OBJECT,
							 "Table \"%s\" was dropped %s.", NameStr(item->relname), when);
		if (get_rel_name(item->heap_oid) == NULL)
			return item_skip(item, ERRCODE_UNDEFINED_OBJECT,
							 "Index \"%s\" was dropped with its table %s.",
							 NameStr(item->relname), when);
		return item_skip(item, ERRCODE_UNDEFINED_OBJECT,
						 "Index \"%s\" was dropped, or replaced by a new one, %s.",
						 NameStr(item->relname), when);
	}

	/* core's ALTER, too, looks its name up again once it has the lock */
	if (item->by_name && (strcmp(NameStr(facts.relname), NameStr(item->relname)) != 0 ||
						  strcmp(NameStr(facts.schema_name), NameStr(item->schema_name)) != 0))
		return item_skip(item, ERRCODE_UNDEFINED_TABLE, "It was renamed to \"%s.%s\" %s.",
						 NameStr(facts.schema_name), NameStr(facts.relname), when);

	item_fill(item, &facts);

	if (!item_check(item, &facts))
		return false;
	if (item->heal && facts.valid)
	{
		if (lost_file(&facts, LOOK_LOSS_KNOWN) == NULL)
			return item_skip(item, 0, "Another command has rebuilt it already.");
	}

	if (item->method == METHOD_COPY &&
		facts.persistence != RELPERSISTENCE_PERMANENT)
		return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
						 "The table was made unlogged %s.", when);
	/* ADD CONSTRAINT USING INDEX can have made it deferrable */
	if (item->method == METHOD_REBUILD && !item->heal)
	{
		hindrance = rebuild_hindrance(&facts);
		if (hindrance != NULL)
			return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
							 "Method rebuild cannot move the index: %s.", hindrance);
	}
	return true;
}
