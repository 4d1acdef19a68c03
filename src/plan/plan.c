/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  The plan: which relations move, in which order, by which method, and why.
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

/*
 * Tell the user that tables that inherit from the named one, other than
 * partitions, such as a hypertable's chunks, stay, and how to move them.
 */
static void
notice_children(const RelationFacts *facts, const PlanRequest *request)
{
	const char *name = NameStr(facts->relname);
	const char *parent = quote_qualified_identifier(NameStr(facts->schema_name), name);
	const char *target = get_tablespace_name(request->to_tablespace);

	if (find_inheritance_children(facts->relid, NoLock) == NIL)
		return;
	if (request->tables)
		ereport(NOTICE,
				(errmsg("tables that inherit from \"%s\" are not moved", name),
				 errhint("To move them: %s",
						 printed_command("move_child_tables", parent, target))));
	else
		ereport(NOTICE,
				(errmsg("indexes of tables that inherit from \"%s\" are not moved", name),
				 errhint("To move them: %s",
						 printed_command("move_children", parent, target))));
}

/*
 * Tell the user that a table that Citus has distributed and its indexes are not
 * those of its shards, and how to move these, unless Citus has sent the call.
 */
static void
notice_shards(const List *entries, const PlanRequest *request)
{
	if (citus_has_sent_us())
		return;
	foreach_ptr(const PlanEntry, entry, entries)
	{
		const char *schema = quote_identifier(NameStr(entry->facts.schema_name));
		const char *target = get_tablespace_name(request->to_tablespace);
		const char *command;

		if (!citus_distributes(entry->facts.heap_oid))
			continue;
		if (request->tables)
			command = printed_command("queue_schema_tables", schema, target);
		else
			command = printed_command("queue_schema_indexes", schema, target);
		ereport(NOTICE,
				(errmsg("table \"%s\" is distributed by Citus, and its shards are not moved with it",
						NameStr(entry->facts.heap_name)),
				 errhint("To move the shards, too: %s", printed_command("on_all_nodes", command))));
		return;
	}
}

static bool
is_like(const NameData *name, text *pattern)
{
	return DatumGetBool(DirectFunctionCall2Coll(namelike, C_COLLATION_OID,
												NameGetDatum(name),
												PointerGetDatum(pattern)));
}

/*
 * Return whether the request selects a relation of this name and size in bytes; if
 * not, it gets no row.  One without a file is never selected by size.
 */
static bool
is_picked(const NameData *name, int64 size, const PlanRequest *request)
{
	return (request->name_like == NULL || is_like(name, request->name_like)) &&
		(request->name_not_like == NULL || !is_like(name, request->name_not_like)) &&
		(request->min_size <= 0 || size >= request->min_size) &&
		(request->max_size <= 0 || size <= request->max_size);
}

/* Add to a list the table, its indexes, or both, as requested. */
static List *
add_table(List *list, Oid table, const PlanRequest *request)
{
	if (request->tables)
		list = lappend_oid(list, table);
	if (request->indexes)
		list = list_concat(list, indexes_of_table(table));
	return list;
}

/*
 * Return the partitions of these tables whose detachment is pending, with those below
 * them: find_all_inheritors() leaves them out.
 */
static List *
pending_partitions(List *tables)
{
	List	   *result = NIL;

	foreach_oid(table, tables)
	{
		List	   *children;

		if (get_rel_relkind(table) != RELKIND_PARTITIONED_TABLE)
			continue;
		children = find_inheritance_children_extended(table, false, NoLock, NULL, NULL);
		foreach_oid(child, children)
		{
			if (!list_member_oid(tables, child))
				result = list_concat(result, find_all_inheritors(child, NoLock, NULL));
		}
	}
	return result;
}

/*
 * Return the relations to move of the relation that the user has named; *pending: those
 * of partitions that are being detached from it.
 */
static List *
relations_of_named(const PlanRequest *request, List **pending)
{
	RelationFacts facts;
	List	   *named;
	List	   *relids = NIL;
	List	   *left_out = NIL;

	plan_named_relation(request, &facts);
	named = RELKIND_HAS_PARTITIONS(facts.relkind) ?
		find_all_inheritors(facts.relid, NoLock, NULL) : list_make1_oid(facts.relid);
	if (relkind_is_index(facts.relkind))
		return named;
	foreach_oid(table, named)
	{
		/* skip foreign tables, as REINDEX does */
		if (get_rel_relkind(table) != RELKIND_FOREIGN_TABLE)
			relids = add_table(relids, table, request);
	}
	foreach_oid(table, pending_partitions(named))
	{
		left_out = add_table(left_out, table, request);
	}
	*pending = left_out;
	if (!RELKIND_HAS_PARTITIONS(facts.relkind))
		notice_children(&facts, request);
	return relids;
}

/* Return whether the request for a schema or a tablespace is about this one. */
static bool
is_wanted(const Form_pg_class form, const PlanRequest *request)
{
	bool		is_index = relkind_is_index(form->relkind);
	Oid			table = form->oid;

	if (form->relisshared || isAnyTempNamespace(form->relnamespace))
		return false;
	/* if it is to be left, where the indexes of new partitions are made, too */
	if (request->heal)
	{
		if (IsCatalogNamespace(form->relnamespace) || IsCatalogRelationOid(form->oid))
			return false;
		return RELKIND_HAS_STORAGE(form->relkind) ||
			(form->relkind == RELKIND_PARTITIONED_INDEX &&
			 request->object != request->to_tablespace);
	}

	if (IsCatalogNamespace(form->relnamespace) || IsToastNamespace(form->relnamespace))
		return false;
	if (is_index)
	{
		/* of a schema, an index comes with its table */
		if (!request->indexes || (request->tables && request->scope == SCOPE_SCHEMA))
			return false;
		table = IndexGetRelation(form->oid, true);
	}
	else if (!request->tables || !(RELKIND_HAS_TABLE_AM(form->relkind) ||
								   form->relkind == RELKIND_PARTITIONED_TABLE))
		return false;
	return request->evacuate || !extension_owns(table);
}

/* ERROR 3F000 no such schema, 42501 no USAGE, 0A000 system or temporary one. */
static void
check_schema(Oid schema)
{
	char	   *name = get_namespace_name(schema);

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_SCHEMA),
				 errmsg("schema with OID %u does not exist", schema)));
	if (object_aclcheck(NamespaceRelationId, schema, GetUserId(), ACL_USAGE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, name);
	if (IsCatalogNamespace(schema) || IsToastNamespace(schema))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move system relations"),
				 errdetail("Schema \"%s\" is a system schema.", name)));
	plan_refuse_temporary(schema);
}

/* Tell who wants to empty a tablespace which other databases have files there. */
static void
notice_other_databases(Oid tablespace)
{
	StringInfoData names;

	initStringInfo(&names);
	foreach_ptr(HeapTupleData, row, plan_other_databases(tablespace))
		appendStringInfo(&names, "%s\"%s\"", names.len > 0 ? ", " : "",
						 NameStr(((Form_pg_database) GETSTRUCT(row))->datname));
	if (names.len > 0)
		ereport(NOTICE,
				(errmsg("tablespace \"%s\" also has files of other databases",
						tablespace_name(tablespace)),
				 errdetail("They belong to %s, and only a session there can move them.",
						   names.data)));
}

/*
 * Return the relations to move of a schema or of a tablespace.  As ALTER INDEX ALL
 * IN TABLESPACE, passes over catalogs, shared and temporary relations.
 */
static List *
relations_in(const PlanRequest *request)
{
	bool		in_schema = request->scope == SCOPE_SCHEMA;
	Oid			object = request->object;
	List	   *relids = NIL;

	List	   *rows;

	if (in_schema)
		rows = catalog_rows(RelationRelationId, InvalidOid,
							Anum_pg_class_relnamespace, object, 0, InvalidOid);
	else
		rows = catalog_rows(RelationRelationId, ClassTblspcRelfilenodeIndexId,
							Anum_pg_class_reltablespace, tablespace_in_catalog(object),
							0, InvalidOid);
	foreach_ptr(HeapTupleData, row, rows)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		RelationFacts facts;

		if (!is_wanted(form, request))
			continue;
		if (!request->tables || !in_schema)
			relids = lappend_oid(relids, form->oid);
		else if (relation_facts(form->oid, &facts) &&
				 is_picked(&facts.relname,
						   relation_files_size(facts.tablespace, facts.relfilenumber),
						   request))
			relids = add_table(relids, form->oid, request);
	}
	return relids;
}

/* Choose the method of an index that both methods can move, or only copy can, and say why. */
static void
choose_by_bloat(PlanEntry *entry, const MoveSettings *settings, const char *no_rebuild)
{
	MoveItem   *item = &entry->item;
	double		threshold = settings->rebuild_threshold;

	item->method = METHOD_COPY;
	if (item->size_before <= SMALL_INDEX)
		item_say(item, "Copy, because the index is small (at most 128 kB).");
	else if (!bloat_estimate(item->relid, &entry->bloat_ratio, NULL))
	{
		entry->bloat_ratio = -1;
		item_say(item, "Copy; its bloat could not be measured.");
	}
	else if (entry->bloat_ratio <= threshold)
		item_say(item, "Copy, because the estimated bloat of %.2f is not above rebuild_threshold (%.2f).",
				 entry->bloat_ratio, threshold);
	else if (no_rebuild != NULL)
		item_say(item, "Copy, although the estimated bloat of %.2f is above rebuild_threshold (%.2f), because rebuild cannot move it: %s.",
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
choose_method(PlanEntry *entry, const PlanRequest *request)
{
	MoveItem   *item = &entry->item;
	bool		is_index = relkind_is_index(item->relkind);
	const char *no_copy = copy_hindrance(&entry->facts);
	const char *no_rebuild = is_index ? rebuild_hindrance(&entry->facts) : NULL;
	const char *lost = NULL;
	int			code = ERRCODE_FEATURE_NOT_SUPPORTED;

	if (no_copy == NULL && request->method != METHOD_REBUILD)
		lost = lost_file(&entry->facts, LOOK_QUICK);
	if (lost != NULL)
	{
		no_copy = lost;
		code = is_index ? ERRCODE_INDEX_CORRUPTED : ERRCODE_DATA_CORRUPTED;
	}
	item->method = is_index ? request->method : METHOD_COPY;
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
		choose_by_bloat(entry, &request->settings, no_rebuild);
}

/* Make the row of one relation, without a decision; NULL if it is gone. */
static PlanEntry *
new_entry(Oid relid, Oid to_tablespace, MoveMethod method)
{
	PlanEntry  *entry = plan_new_entry();
	MoveItem   *item = &entry->item;

	if (!relation_facts(relid, &entry->facts))
		return NULL;
	item_fill(item, &entry->facts);
	item->old_relid = relid;
	item->to_tablespace = to_tablespace;
	item->status = STATUS_PLANNED;
	item->requested = item->method = method;
	item->size_before = relation_files_size(entry->facts.tablespace,
											entry->facts.relfilenumber);
	return entry;
}

/*
 * Look at a part of a table that is to be moved, as the copy will do: the table is
 * skipped if its TOAST table, or the index of that, is lost.  An index that is not
 * valid is no hindrance, but is not passed over in silence.
 */
static void
plan_part(PlanEntry *entry, PlanEntry *part, const PlanRequest *request)
{
	MoveItem   *item = &part->item;
	const char *lost = lost_file(&part->facts, LOOK_QUICK);
	const char *name;
	const char *command;

	if (lost != NULL)
	{
		int			code = ERRCODE_DATA_CORRUPTED;

		if (relkind_is_index(item->relkind))
			code = ERRCODE_INDEX_CORRUPTED;
		item_skip(&entry->item, code, "The %s \"%s\" cannot be copied: %s.",
				  relation_noun(item->relkind), NameStr(item->relname), lost);
		return;
	}
	if (part->facts.valid)
		return;
	name = quote_qualified_identifier(NameStr(item->schema_name), NameStr(item->relname));
	if (leftover_index_is_ours(item->relid))
		command = printed_command("cleanup");
	else
		command = printed_command("drop_index", name);
	item_say(item, "The index is not valid: an interrupted REINDEX CONCURRENTLY has left it, or one runs now. It moves with its table. To remove a leftover, as a superuser: %s",
			 command);
	/* a policy's plan has no reader */
	if (request->scope != SCOPE_ONE)
		ereport(NOTICE,
				(errmsg("index \"%s\" of the TOAST table of \"%s\" is not valid, and moves with it",
						NameStr(item->relname), NameStr(entry->item.relname)),
				 errdetail("An interrupted REINDEX CONCURRENTLY has left it, or one runs now."),
				 errhint("To remove a leftover, as a superuser: %s", command)));
}

/* Make the row of one relation; NULL if it is gone or not selected. */
static PlanEntry *
plan_relation(Oid relid, const PlanRequest *request)
{
	bool		is_index = relkind_is_index(get_rel_relkind(relid));
	PlanEntry  *entry = new_entry(relid, OidIsValid(request->index_tablespace) && is_index ?
								  request->index_tablespace : request->to_tablespace,
								  request->method);
	const MoveSettings *settings = &request->settings;
	MoveItem   *item;

	if (entry == NULL)
		return NULL;
	item = &entry->item;

	if (RELKIND_HAS_PARTITIONS(item->relkind))
	{
		if (request->heal && request->look < LOOK_LOSS_KNOWN)
			return NULL;
		item->method = METHOD_DEFAULT;
		item->size_before = 0;
	}
	else if (request->heal || (request->scope == SCOPE_ONE && request->method == METHOD_REBUILD))
	{
		if (lost_plan(entry, request))
			return entry;
		if (request->heal)
			return NULL;
	}

	/* else its table was picked */
	if (!request->tables && !is_picked(&item->relname, item->size_before, request))
		return NULL;
	entry->rank = item->size_before;

	/* only an index that the user names can be repaired */
	item->repair = !entry->facts.valid && item->method == METHOD_REBUILD &&
		(request->scope == SCOPE_RELATION || request->scope == SCOPE_ONE) &&
		request->object == relid;

	if (item_check(item, &entry->facts))
	{
		if (item->method != METHOD_DEFAULT)
			choose_method(entry, request);
		else if (is_index)
			item_say(item, "A partitioned index has no file; only the default for the indexes of new partitions is set.");
		else
			item_say(item, "A partitioned table has no file; only the default for new partitions is set.");
		if (item->repair && item->status == STATUS_PLANNED)
			item_say(item, "The index is not valid; the rebuild repairs it.");
	}
	if (item->status == STATUS_PLANNED && settings->terms.rehearse)
	{
		if (item->method == METHOD_REBUILD)
			item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED, "A rebuild cannot be rehearsed.");
		else if (item->method != METHOD_COPY)
			item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED, "There is nothing to rehearse.");
	}
	else if (item->status == STATUS_PLANNED && item->method == METHOD_REBUILD &&
			 (settings->max_rate > 0 || settings->swap_after > 0))
		item_say(item, "A rebuild obeys neither max_rate nor swap_after.");

	/* the TOAST table and the index of that go with it */
	foreach_oid(oid, parts_of_table(&entry->facts))
	{
		PlanEntry  *part = new_entry(oid, item->to_tablespace, METHOD_COPY);

		if (part == NULL)
			continue;
		part->item.part_of = relid;
		entry->parts = lappend(entry->parts, part);
		if (item->status == STATUS_PLANNED)
			plan_part(entry, part, request);
	}
	return entry;
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
static PlanEntry *
plan_pending(Oid relid, const PlanRequest *request)
{
	PlanEntry  *entry = new_entry(relid, request->to_tablespace, request->method);
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

/*
 * Return whether a look at their files finds one lost, or none has a file: then an
 * earlier job has healed all of them elsewhere.
 */
static bool
may_heal(const List *relids, LostLook look)
{
	RelationFacts facts;
	bool		has_file = false;

	foreach_oid(relid, relids)
	{
		CHECK_FOR_INTERRUPTS();
		if (relation_facts(relid, &facts) && lost_file(&facts, look) != NULL)
			return true;
		has_file |= RELKIND_HAS_STORAGE(get_rel_relkind(relid));
	}
	return !has_file;
}

/* Moves with a file come first, then the defaults, then the skipped rows. */
static int
entry_class(const PlanEntry *entry)
{
	if (entry->item.status != STATUS_PLANNED)
		return 2;
	return entry->item.method == METHOD_DEFAULT ? 1 : 0;
}

static int
compare_entries(const ListCell *a, const ListCell *b)
{
	const PlanEntry *entry1 = (const PlanEntry *) lfirst(a);
	const PlanEntry *entry2 = (const PlanEntry *) lfirst(b);
	int			result = entry_class(entry1) - entry_class(entry2);

	if (result == 0 && entry1->rank != entry2->rank)
		result = entry1->rank < entry2->rank ? -1 : 1;
	if (result == 0)
		result = strcmp(NameStr(entry1->item.relname), NameStr(entry2->item.relname));
	if (result == 0)
		result = strcmp(NameStr(entry1->item.schema_name), NameStr(entry2->item.schema_name));
	return result;
}

/* Tell the user that a request has found no relation. */
static void
notice_nothing(const PlanRequest *request)
{
	const char *name = get_tablespace_name(request->object);

	if (request->heal)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("nothing is lost in tablespace \"%s\"", name)));
	else if (request->evacuate)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("no relation is left in tablespace \"%s\"", name)));
	else if (request->tables)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("there is no table to move")));
	else
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("there is no index to move")));
}

/*
 * Make the plan: a List of MoveItem *, palloc'd, in the order of execution.
 * STATUS_PLANNED items are to be moved; STATUS_SKIPPED ones carry sqlstate and
 * detail.  ERRORs: those of plan_named_relation(), check_schema(), plan_complete().
 */
List *
plan_moves(PlanRequest *request)
{
	List	   *relids;
	List	   *pending = NIL;
	List	   *tables = NIL;	/* and indexes; without their parts */
	List	   *entries = NIL;

	Assert(IsTransactionState());
	if (request->scope == SCOPE_SCHEMA)
		check_schema(request->object);
	if (request->scope == SCOPE_ONE)
	{
		/* its row tells errors */
		relids = list_make1_oid(request->object);
		request->tables = !relkind_is_index(get_rel_relkind(request->object));
	}
	else if (request->scope == SCOPE_RELATION)
		relids = relations_of_named(request, &pending);
	else
		relids = relations_in(request);
	if (request->scope == SCOPE_TABLESPACE && !request->evacuate && !request->heal)
		notice_other_databases(request->object);

	/* what is resumed may be an index to be healed */
	request->look = request->scope == SCOPE_ONE ? LOOK_SAMPLE : LOOK_QUICK;
	if (request->heal && may_heal(relids, LOOK_SAMPLE))
		request->look = LOOK_LOSS_KNOWN;
	foreach_oid(relid, relids)
	{
		PlanEntry  *entry;

		CHECK_FOR_INTERRUPTS();
		entry = plan_relation(relid, request);
		if (entry != NULL)
			tables = lappend(tables, entry);
	}

	foreach_oid(relid, pending)
	{
		PlanEntry  *entry = plan_pending(relid, request);

		if (entry != NULL)
			tables = lappend(tables, entry);
	}

	list_sort(tables, compare_entries);
	foreach_ptr(PlanEntry, table, tables)
		entries = list_concat(lappend(entries, table), table->parts);
	if (request->evacuate)
		entries = plan_what_stays(entries, request->object, request->to_tablespace);
	if (entries == NIL)
		notice_nothing(request);
	if (request->scope != SCOPE_ONE)
	{
		notice_shards(entries, request);
		plan_complete(NULL, entries, request);
	}
	return entries;
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
	/* by OID: a new index of the same name is another one */
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

	item_fill(item, &facts);

	if (!item_check(item, &facts))
		return false;
	if (item->heal && facts.valid && lost_file(&facts, LOOK_LOSS_KNOWN) == NULL)
		return item_skip(item, 0, "Another command has rebuilt it already.");

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
