/*-------------------------------------------------------------------------
 *
 * plan_checks.c
 *	  Whether the current user may move a relation now.
 *
 * The planner, without a lock, and later the runner, with the relation locked,
 * check the same conditions (item_check).  These fail with a row, not with an
 * error: a relation that cannot be moved must not stop the others.  Errors
 * are only for the relation and the tablespace that the user names.
 *
 * Tricky: plan_skip_locked() looks at the locks of *this* transaction.  That
 * works only because nothing in the planner keeps a lock on a user's relation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_tablespace.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan_private.h"
#include "printed_command.h"

/* Return an entry without a relation: nothing is known, measured or estimated. */
PlannedMove *
plan_new_entry(void)
{
	PlannedMove *entry = palloc0(sizeof(PlannedMove));
	MoveItem   *item = &entry->item;

	item->size_before = item->outcome.size_after = item->bytes_to_write = -1;
	item->wal_bytes = item->sort_bytes = item->outcome.lock_time = -1;
	item->stored_share = 1;
	entry->estimated = entry->bloat_ratio = -1;
	return entry;
}

/* Return core's command for the move of a relation. */
char *
item_core_command(const MoveItem *item)
{
	const char *kind = "TABLE";

	if (relkind_is_index(item->relkind))
		kind = "INDEX";
	else if (item->relkind == RELKIND_MATVIEW)
		kind = "MATERIALIZED VIEW";
	return printed_command("alter_relation", kind,
						   quote_qualified_identifier(NameStr(item->schema_name),
													  NameStr(item->relname)),
						   get_tablespace_name(item->to_tablespace));
}

/* Return whether the current user may use names in this schema, as REINDEX does. */
static bool
may_use_schema(Oid schema_oid, bool by_name)
{
	/* users do not have that right for pg_toast, and only REINDEX needs it */
	return (IsToastNamespace(schema_oid) && !by_name) ||
		object_aclcheck(NamespaceRelationId, schema_oid, GetUserId(), ACL_USAGE) == ACLCHECK_OK;
}

/*
 * Check whether a role may move a table, as ALTER TABLE does, or its indexes, as
 * REINDEX.
 */
AclResult
plan_role_aclcheck(Oid role, Oid heap_oid, bool indexes)
{
	if (indexes)
		return table_maintain_aclcheck(heap_oid, role);
	return object_ownercheck(RelationRelationId, heap_oid, role) ?
		ACLCHECK_OK : ACLCHECK_NOT_OWNER;
}

/* As plan_role_aclcheck(), for the current user. */
AclResult
plan_aclcheck(Oid heap_oid, bool indexes)
{
	return plan_role_aclcheck(GetUserId(), heap_oid, indexes);
}

/*
 * Return whether a role may make files in a tablespace; as in core, the database's default
 * tablespace requires no right.  False if it was dropped, which is an error in core.
 */
bool
plan_role_may_fill(Oid role, Oid tablespace)
{
	if (tablespace == MyDatabaseTableSpace)
		return true;
	return SearchSysCacheExists1(TABLESPACEOID, ObjectIdGetDatum(tablespace)) &&
		object_aclcheck(TableSpaceRelationId, tablespace, role, ACL_CREATE) == ACLCHECK_OK;
}

/* As plan_role_may_fill(), for the current user. */
static bool
may_fill_tablespace(Oid tablespace)
{
	return plan_role_may_fill(GetUserId(), tablespace);
}

/*
 * Skip the row and return false if the server cannot open the relation's file, unless
 * it is missing: when core drops it, an error would be a PANIC.
 */
bool
item_check_file(MoveItem *item, const RelationFacts *facts)
{
	RelFileLocator file = make_locator(facts->tablespace, MyDatabaseId, facts->relfilenumber);

	if (!RelFileNumberIsValid(facts->relfilenumber) ||
		access(relation_segment_path(&file, MAIN_FORKNUM, 0), R_OK | W_OK) == 0 ||
		errno == ENOENT || errno == ENOTDIR)
		return true;
	/* not 42501, which the caller takes for a privilege in the database */
	return item_skip(item, ERRCODE_IO_ERROR, "The server cannot open its file: %s.", strerror(errno));
}

/* Check an index: can it be moved as it is?  As item_check(). */
static bool
item_check_index(MoveItem *item, const RelationFacts *facts, const char *to_name)
{
	const char *name = quote_qualified_identifier(NameStr(facts->schema_name),
												  NameStr(facts->relname));
	const char *command = printed_command("drop_index", name);
	bool		leftover_name = is_reindex_leftover_name(NameStr(facts->relname));

	if ((!facts->valid || !facts->live || leftover_name) &&
		leftover_index_is_ours(item->relid))
		return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "The index is that of a rebuild that is running, or was interrupted. Then the next call for the table removes it, or: %s",
						 printed_command("cleanup"));
	if (!facts->live)
		return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "The index is being dropped. If no session is at it any more: %s",
						 command);
	if (!facts->valid && !item->repair && leftover_name)
		return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "The index is not valid: an interrupted REINDEX CONCURRENTLY has left it, or one runs now. To remove a leftover: %s",
						 command);
	if (!facts->valid && !item->repair && !item->heal)
	{
		if (rebuild_hindrance(facts) != NULL)
			command = printed_command("reindex", to_name, name);
		else
			command = printed_command("move_indexes", name, to_name, "rebuild");
		return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "The index is not valid. To repair and move it: %s", command);
	}
	return true;
}

/*
 * Check whether the current user can move this relation now, by whatever method.
 * If not, skip the row with the reason and return false.  The caller has set the
 * item's to_tablespace, method, repair and heal.
 */
bool
item_check(MoveItem *item, const RelationFacts *facts)
{
	/* first, since it fails if the table is known to be dropped */
	bool		maintains = relkind_is_index(facts->relkind) && !item->as_owner;
	AclResult	aclresult = plan_aclcheck(facts->heap_oid, maintains);
	const char *to_name = get_tablespace_name(item->to_tablespace);

	if (aclresult == ACLCHECK_NOT_OWNER)
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Must be owner of table \"%s\".", NameStr(facts->heap_name));
	if (aclresult != ACLCHECK_OK)
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Permission denied for table \"%s\".", NameStr(facts->heap_name));
	if (!item->as_owner && !may_use_schema(facts->schema_oid, item->heal))
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Permission denied for schema \"%s\".",
						 NameStr(facts->schema_name));
	if (to_name == NULL)
		return item_skip(item, ERRCODE_UNDEFINED_OBJECT,
						 "The target tablespace was dropped.");
	if (!(item->heal && facts->tablespace == item->to_tablespace) &&
		!may_fill_tablespace(item->to_tablespace))
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Permission denied for tablespace \"%s\".", to_name);

	if (IsToastNamespace(facts->schema_oid) && !item->heal)
		return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
						 "It moves with the table that it belongs to.");

	if (extension_owns(facts->heap_oid))
		return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
						 "The extension writes to this table during a move. Under an exclusive lock: %s",
						 item_core_command(item));

	if (facts->relkind == RELKIND_INDEX)
	{
		if (!item_check_index(item, facts, to_name))
			return false;
	}

	/* an invalid index is repaired in any tablespace */
	if (facts->tablespace == item->to_tablespace && !item->heal &&
		(facts->valid || !item->repair) && parts_are_in(facts, item->to_tablespace))
	{
		if (facts->relkind == RELKIND_PARTITIONED_INDEX)
			return item_skip(item, 0, "Indexes of new partitions are made in tablespace \"%s\" already.", to_name);
		if (facts->relkind == RELKIND_PARTITIONED_TABLE)
			return item_skip(item, 0, "New partitions are made in tablespace \"%s\" already.", to_name);
		return item_skip(item, 0, "Already in tablespace \"%s\".", to_name);
	}

	if (!item_check_file(item, facts))
		return false;
	if (recovery_needs_full_pages(facts))
	{
		item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE, "full_page_writes is off.");
		item_say(item, "So this server could not recover from a crash after the file of a BRIN index was removed.");
		item_say(item, "Switch it on, and CHECKPOINT, before the move.");
		return false;
	}

	return true;
}

/*
 * Look up a tablespace that relations are to leave, or to be healed in, or check the
 * target of a move.  ERROR 42704 no such tablespace; 22023 pg_global; 42501 no CREATE
 * on the target.
 */
Oid
plan_tablespace(Name name, bool is_target)
{
	Oid			tablespace = get_tablespace_oid(NameStr(*name), false);

	if (tablespace == GLOBALTABLESPACE_OID && is_target)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only shared relations can be placed in pg_global tablespace")));
	if (tablespace == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot move relations in to or out of pg_global tablespace")));
	if (is_target && !may_fill_tablespace(tablespace))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLESPACE, NameStr(*name));
	return tablespace;
}

/* Raise ERROR 0A000 if a schema is that of temporary tables. */
void
plan_refuse_temporary(Oid schema)
{
	if (isAnyTempNamespace(schema))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move temporary tables"),
				 errdetail("A background worker makes the move, and it cannot access them."),
				 errhint("The session that has made them can set their tablespace.")));
}

/*
 * Get the facts of the relation that the user has named, as a table, or an index or that
 * of which the indexes are.  ERRORs if it can never be moved, or not by this user: 42P01, 42809 kind, 42501, 0A000 catalogs, temporary
 * tables, TOAST.
 */
void
plan_named_relation(Oid relation, bool is_table, RelationFacts *facts)
{
	char	   *name;
	bool		has_table;
	Oid			table;
	AclResult	aclresult;

	if (!relation_facts(relation, facts))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	name = NameStr(facts->relname);
	has_table = RELKIND_HAS_TABLE_AM(facts->relkind) || facts->relkind == RELKIND_PARTITIONED_TABLE;

	if (is_table && !has_table)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table or materialized view", name),
				 errdetail_relkind_not_supported(facts->relkind)));
	if (!has_table && !relkind_is_index(facts->relkind))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot move indexes of relation \"%s\"", name),
				 errdetail_relkind_not_supported(facts->relkind)));

	if (!may_use_schema(facts->schema_oid, false))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, NameStr(facts->schema_name));
	aclresult = plan_aclcheck(facts->heap_oid, !is_table);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, get_relkind_objtype(facts->relkind), name);

	if (IsCatalogRelationOid(facts->heap_oid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move system relation \"%s\"", name)));
	/* pg_upgrade takes for granted that they are where their table is */
	table = table_of_toast(facts->relid);
	if (OidIsValid(table))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move TOAST relation \"%s\" by itself", name),
				 errdetail("A TOAST table and its index are where their table is."),
				 errhint("Move its table, \"%s\".", get_rel_name(table))));
	plan_refuse_temporary(facts->schema_oid);
}

/* Skip the TOAST table, and the index of that, of each skipped table for its reason. */
void
plan_skip_parts(const List *moves)
{
	const MoveItem *table = NULL;

	foreach_ptr(PlannedMove, move, moves)
	{
		MoveItem   *item = &move->item;

		/* parts come after their table */
		if (!OidIsValid(item->part_of))
			table = item;
		else if (table->outcome.status == STATUS_SKIPPED)
		{
			item->outcome = table->outcome;
			item->method = table->method;
		}
	}
}

/* Return whether a plan has anything to move. */
bool
plan_has_moves(const List *moves)
{
	foreach_ptr(const PlannedMove, move, moves)
	{
		if (move->item.outcome.status == STATUS_PLANNED)
			return true;
	}
	return false;
}

/* Return the items of these moves, in their order; not copies. */
List *
plan_items(const List *moves)
{
	List	   *result = NIL;

	foreach_ptr(PlannedMove, move, moves)
	{
		result = lappend(result, &move->item);
	}
	return result;
}

/*
 * Return the name of a relation that this transaction or session has locked: a
 * table, its TOAST table, an index of these, or a partitioned table above it; NULL if
 * there is none.
 */
static char *
name_of_own_lock(Oid heap_oid)
{
	RelationFacts facts;
	List	   *relids = list_make1_oid(heap_oid);

	if (get_rel_relispartition(heap_oid))
		relids = list_concat(relids, get_partition_ancestors(heap_oid));
	foreach_oid(table, list_copy(relids))
		relids = list_concat(relids, indexes_of_table(table));
	if (relation_facts(heap_oid, &facts))
		relids = list_concat(relids, parts_of_table(&facts));
	foreach_oid(relid, relids)
	{
		if (CheckRelationOidLockedByMe(relid, AccessShareLock, true))
			return get_rel_name(relid);
	}
	return NULL;
}

/*
 * For a caller that will wait inside its transaction: skip the planned moves that
 * would wait for its locks.  ERROR 55006 if these are all.
 *
 * Any mode counts, because a rebuild waits first for every writer and last
 * for every reader, and the swap of a copy for all that use the index.  The
 * deadlock detector does not see a latch wait, so this cannot be left to it.
 */
void
plan_skip_locked(const List *moves)
{
	MoveItem   *first = NULL;

	foreach_ptr(PlannedMove, move, moves)
	{
		MoveItem   *item = &move->item;
		char	   *relname = NULL;

		if (item->outcome.status == STATUS_PLANNED)
			relname = name_of_own_lock(item->heap_oid);
		CHECK_FOR_INTERRUPTS();
		if (relname == NULL)
			continue;
		item_skip(item, ERRCODE_OBJECT_IN_USE,
				  "The current transaction holds a lock on \"%s\".", relname);
		if (first == NULL)
			first = item;
	}
	plan_skip_parts(moves);
	if (first != NULL && !plan_has_moves(moves))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("cannot move %s \"%s\" because the current transaction holds a lock on \"%s\"",
						relation_noun(first->relkind), NameStr(first->relname),
						name_of_own_lock(first->heap_oid)),
				 errdetail("The move would wait for this transaction, and this transaction for the move."),
				 errhint("Call it first in a transaction of its own, or with wait => false.")));
}
