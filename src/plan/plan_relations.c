/*-------------------------------------------------------------------------
 *
 * plan_relations.c
 *	  Which relations a call moves, and in which order: a function for each kind of call.
 *
 * Each makes a list of rows, of moves and of relations that are skipped; the words of a row
 * are chosen in plan.c.  As ALTER INDEX ALL IN TABLESPACE, they pass over catalogs, shared
 * and temporary relations, but for a relation that the user has named, which is an error.
 *
 * Locks: on catalogs, each released at once.
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
#include "compat.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan_private.h"
#include "printed_command.h"

/*
 * Tell the user that tables which inherit from the named table, other than partitions,
 * such as a hypertable's chunks, stay, and how to move them.
 */
static void
notice_children(const RelationFacts *facts, Oid to_tablespace, PlanKinds kinds)
{
	const char *name = NameStr(facts->relname);
	const char *parent = quote_qualified_identifier(NameStr(facts->schema_name), name);
	const char *target = get_tablespace_name(to_tablespace);

	if (children_of(facts->relid, false) == NIL)
		return;
	if (kinds & PLAN_TABLES)
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
 * Tell the user that the shards of a table that Citus has distributed stay, with their
 * indexes, and how to move them, unless Citus has sent the call.
 */
static void
notice_shards(const List *entries, Oid to_tablespace, PlanKinds kinds)
{
	if (citus_has_sent_us())
		return;
	foreach_ptr(const PlannedMove, entry, entries)
	{
		const char *schema = quote_identifier(NameStr(entry->facts.schema_name));
		const char *target = get_tablespace_name(to_tablespace);
		const char *command;

		if (!citus_distributes(entry->facts.heap_oid))
			continue;
		if (kinds & PLAN_TABLES)
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
 * Return the partitions of these tables whose detachment is pending, with the partitions below
 * them: relation_and_below() leaves them out.
 */
static List *
pending_partitions(List *tables)
{
	List	   *result = NIL;

	foreach_oid(table, tables)
	{
		if (get_rel_relkind(table) != RELKIND_PARTITIONED_TABLE)
			continue;
		foreach_oid(child, children_of(table, true))
		{
			if (!list_member_oid(tables, child))
				result = list_concat(result, relation_and_below(child));
		}
	}
	return result;
}

/* ERROR 3F000 no such schema, 42501 no USAGE, 0A000 system or temporary schema. */
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
 * Return whether a filter selects a relation of this name and size in bytes.  One without
 * a file is never selected by size.
 */
static bool
is_picked(const NameData *name, int64 size, const PlanFilter *filter)
{
	return (filter->name_like == NULL || is_like(name, filter->name_like)) &&
		(filter->name_not_like == NULL || !is_like(name, filter->name_not_like)) &&
		(filter->min_size <= 0 || size >= filter->min_size) &&
		(filter->max_size <= 0 || size <= filter->max_size);
}

/* Add to a list the table, its indexes, or both. */
static List *
add_table(List *list, Oid table, PlanKinds kinds)
{
	if (kinds & PLAN_TABLES)
		list = lappend_oid(list, table);
	if (kinds & PLAN_INDEXES)
		list = list_concat(list, indexes_of_table(table));
	return list;
}

/*
 * Return the rows of these relations, without relations that a filter, if any, does
 * not select.  named: the relation that the user has named, or 0.
 */
static List *
plan_all(const List *relids, Oid named, const PlanFilter *filter, const PlanRequest *request)
{
	List	   *entries = NIL;

	foreach_oid(relid, relids)
	{
		PlannedMove *entry;

		CHECK_FOR_INTERRUPTS();
		entry = plan_entry_of(relid, request);
		if (entry == NULL)
			continue;
		if (filter != NULL && !is_picked(&entry->item.relname, entry->item.size_before, filter))
			continue;
		plan_decide(entry, request, relid == named);
		entries = lappend(entries, entry);
	}
	plan_notice_invalid_parts(entries);
	return entries;
}

/* Complete the plan of a call, and return it. */
static List *
complete_call(List *entries, PlanKinds kinds, const PlanRequest *request)
{
	if (entries == NIL && (kinds & PLAN_TABLES))
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("there is no table to move")));
	else if (entries == NIL)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("there is no index to move")));
	notice_shards(entries, request->to_tablespace, kinds);
	plan_complete(NULL, entries, request);
	return entries;
}

/*
 * The relation that the user has named: a table, a materialized view, or their indexes, or
 * an index; of a partitioned table or index all partitions.  ERRORs: as
 * plan_named_relation() and plan_complete().
 */
List *
plan_named(const PlanRequest *request, Oid relation, PlanKinds kinds)
{
	RelationFacts facts;
	List	   *named = list_make1_oid(relation);
	List	   *relids = NIL;
	List	   *detached = NIL;
	List	   *entries;

	Assert(IsTransactionState());
	plan_named_relation(relation, (kinds & PLAN_TABLES) != 0, &facts);
	if (RELKIND_HAS_PARTITIONS(facts.relkind))
		named = relation_and_below(relation);
	if (relkind_is_index(facts.relkind))
		relids = named;
	else
	{
		foreach_oid(table, named)
		{
			/* skip foreign tables, as REINDEX does */
			if (get_rel_relkind(table) != RELKIND_FOREIGN_TABLE)
				relids = add_table(relids, table, kinds);
		}
		foreach_oid(table, pending_partitions(named))
		{
			detached = add_table(detached, table, kinds);
		}
		if (!RELKIND_HAS_PARTITIONS(facts.relkind))
			notice_children(&facts, request->to_tablespace, kinds);
	}

	entries = plan_all(relids, relation, NULL, request);
	foreach_oid(relid, detached)
	{
		PlannedMove *entry = plan_pending(relid, request);

		if (entry != NULL)
			entries = lappend(entries, entry);
	}
	return complete_call(plan_in_order(entries), kinds, request);
}

/* Return whether a row of pg_class is that of a relation which users have made, and keep. */
static bool
is_users(const Form_pg_class form)
{
	return !form->relisshared && !isAnyTempNamespace(form->relnamespace) &&
		!IsCatalogNamespace(form->relnamespace) && !IsToastNamespace(form->relnamespace);
}

/* Return whether it is of a table or a materialized view, also if it is partitioned. */
static bool
is_tables(const Form_pg_class form)
{
	return RELKIND_HAS_TABLE_AM(form->relkind) || form->relkind == RELKIND_PARTITIONED_TABLE;
}

/* Return whether it is that of an index, and the table is not the extension's own. */
static bool
is_movable_index(const Form_pg_class form)
{
	return relkind_is_index(form->relkind) && !extension_owns(IndexGetRelation(form->oid, true));
}

static List *
rows_of_tablespace(Oid tablespace)
{
	return catalog_rows(RelationRelationId, ClassTblspcRelfilenodeIndexId,
						Anum_pg_class_reltablespace, tablespace_in_catalog(tablespace),
						0, InvalidOid);
}

/*
 * The tables of a schema that the request's filter selects, with their indexes or
 * without; or the indexes of that schema which the filter selects.  ERRORs: as
 * check_schema() and plan_complete().
 */
List *
plan_schema(const PlanRequest *request, Oid schema, PlanKinds kinds)
{
	const PlanFilter *filter = &request->filter;
	List	   *relids = NIL;
	List	   *entries;
	List	   *rows;

	Assert(IsTransactionState());
	check_schema(schema);
	rows = catalog_rows(RelationRelationId, InvalidOid,
						Anum_pg_class_relnamespace, schema, 0, InvalidOid);
	foreach_ptr(HeapTupleData, row, rows)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		RelationFacts facts;

		if (!is_users(form))
			continue;
		if (kinds == PLAN_INDEXES)
		{
			if (is_movable_index(form))
				relids = lappend_oid(relids, form->oid);
		}
		else if (is_tables(form) && !extension_owns(form->oid) &&
				 relation_facts(form->oid, &facts) &&
				 is_picked(&facts.relname,
						   relation_files_size(facts.tablespace, facts.relfilenumber), filter))
			relids = add_table(relids, form->oid, kinds);
	}

	/*
	 * an index that comes with its table is not asked for its own name and
	 * size
	 */
	if (kinds & PLAN_TABLES)
		filter = NULL;
	entries = plan_all(relids, InvalidOid, filter, request);
	return complete_call(plan_in_order(entries), kinds, request);
}

/*
 * The indexes in a tablespace that the request's filter selects.  ERRORs: as
 * plan_complete().
 */
List *
plan_tablespace_indexes(const PlanRequest *request, Oid tablespace)
{
	List	   *relids = NIL;
	List	   *entries;

	Assert(IsTransactionState());
	foreach_ptr(HeapTupleData, row, rows_of_tablespace(tablespace))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		if (is_users(form) && is_movable_index(form))
			relids = lappend_oid(relids, form->oid);
	}
	notice_other_databases(tablespace);
	entries = plan_all(relids, InvalidOid, &request->filter, request);
	return complete_call(plan_in_order(entries), PLAN_INDEXES, request);
}

/*
 * All tables and indexes in a tablespace, and a skipped row for each thing that stays
 * there.  ERRORs: as plan_complete().
 */
List *
plan_evacuation(const PlanRequest *request, Oid tablespace)
{
	List	   *relids = NIL;
	List	   *entries;

	Assert(IsTransactionState());
	foreach_ptr(HeapTupleData, row, rows_of_tablespace(tablespace))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		/* the extension's own tables have rows that say why they stay */
		if (is_users(form) && (is_tables(form) || relkind_is_index(form->relkind)))
			relids = lappend_oid(relids, form->oid);
	}
	entries = plan_in_order(plan_all(relids, InvalidOid, NULL, request));
	entries = plan_what_stays(entries, tablespace, request->to_tablespace);
	if (entries != NIL)
		return complete_call(entries, PLAN_BOTH, request);
	ereport(NOTICE,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg("no relation is left in tablespace \"%s\"", get_tablespace_name(tablespace))));
	return NIL;
}

/*
 * Look at the files of relations, and return whether there is a loss, or none has a file:
 * then an earlier job has healed all of them elsewhere.
 */
static bool
look_whether_to_heal(const List *relids, LostLook look)
{
	RelationFacts facts;
	bool		has_file = false;

	foreach_oid(relid, relids)
	{
		CHECK_FOR_INTERRUPTS();
		if (relation_facts(relid, &facts))
		{
			if (lost_file(&facts, look) != NULL)
				return true;
		}
		has_file |= RELKIND_HAS_STORAGE(get_rel_relkind(relid));
	}
	return !has_file;
}

/*
 * The lost relations in a tablespace; and, if it is to be left and something is lost,
 * or everything was healed elsewhere, its partitioned indexes, which say where indexes of
 * new partitions are made.  ERRORs: as plan_complete().
 */
List *
plan_healing(const PlanRequest *request, Oid tablespace)
{
	bool		leaves = request->to_tablespace != tablespace;
	LostLook	look = LOOK_QUICK;
	List	   *relids = NIL;
	List	   *entries = NIL;

	Assert(IsTransactionState());
	foreach_ptr(HeapTupleData, row, rows_of_tablespace(tablespace))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		if (form->relisshared || isAnyTempNamespace(form->relnamespace) ||
			IsCatalogNamespace(form->relnamespace) || IsCatalogRelationOid(form->oid))
			continue;
		if (RELKIND_HAS_STORAGE(form->relkind) ||
			(leaves && form->relkind == RELKIND_PARTITIONED_INDEX))
			relids = lappend_oid(relids, form->oid);
	}
	/* the findings are remembered */
	if (request->files_were_seen)
		look = LOOK_SPOTS;
	else if (look_whether_to_heal(relids, LOOK_SAMPLE))
		look = LOOK_LOSS_KNOWN;
	foreach_oid(relid, relids)
	{
		PlannedMove *entry;

		CHECK_FOR_INTERRUPTS();
		entry = plan_entry_of(relid, request);
		if (entry == NULL)
			continue;
		if (!RELKIND_HAS_PARTITIONS(entry->item.relkind))
		{
			if (lost_plan(entry, look, true))
				entries = lappend(entries, entry);
		}
		else if (look == LOOK_LOSS_KNOWN)
		{
			plan_decide(entry, request, false);
			entries = lappend(entries, entry);
		}
	}
	if (entries != NIL)
		return complete_call(plan_in_order(entries), PLAN_INDEXES, request);
	ereport(NOTICE,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg("nothing is lost in tablespace \"%s\"", get_tablespace_name(tablespace))));
	return NIL;
}

/*
 * This very relation, as part of a plan that plan_complete() completes; without messages.
 * NIL if it is gone.
 */
List *
plan_single(const PlanRequest *request, Oid relation)
{
	PlannedMove *entry;
	bool		heals = false;

	Assert(IsTransactionState());
	CHECK_FOR_INTERRUPTS();
	entry = plan_entry_of(relation, request);
	if (entry == NULL)
		return NIL;
	/* a move that is resumed may heal an index */
	if (request->method == METHOD_REBUILD && !RELKIND_HAS_PARTITIONS(entry->item.relkind))
		heals = lost_plan(entry, LOOK_SAMPLE, false);
	if (!heals)
		plan_decide(entry, request, true);
	return plan_in_order(list_make1(entry));
}
