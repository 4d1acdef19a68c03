/*-------------------------------------------------------------------------
 *
 * plan_checks.c
 *	  What a relation is, and whether the current user may move it now.
 *
 * The planner, without a lock, and later the runner, with the index locked,
 * check the same conditions (item_check).  These fail with a row, not with an
 * error: one index that cannot be moved must not stop the others.  Errors are
 * only for what the user named (plan_check_named_relation, the target).
 *
 * User relations are not locked.  Everything comes from the system caches; an
 * index that vanishes in between does not exist, which is no error.
 *
 * Tricky: plan_skip_locked() checks what *this* transaction has
 * locked.  That works only because nothing in the planner keeps a lock on a
 * user's relation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_tablespace.h"
#include "commands/extension.h"
#include "commands/tablespace.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "index_definition.h"
#include "job.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "plan/plan_private.h"
#include "printed_command.h"

/*
 * Fetch what the catalogs say about an index or a table; false if it does not
 * exist.
 */
bool
relation_facts(Oid relid, RelationFacts *facts)
{
	HeapTuple	tuple;
	Form_pg_index index_form;
	Form_pg_class class_form;
	char	   *schema_name;

	memset(facts, 0, sizeof(RelationFacts));
	facts->relid = relid;
	facts->heap_oid = relid;
	facts->valid = facts->live = true;

	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(relid));
	if (HeapTupleIsValid(tuple))
	{
		index_form = (Form_pg_index) GETSTRUCT(tuple);
		facts->heap_oid = index_form->indrelid;
		facts->valid = index_form->indisvalid;
		facts->live = index_form->indislive;
		ReleaseSysCache(tuple);
	}

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	if (!HeapTupleIsValid(tuple))
		return false;
	class_form = (Form_pg_class) GETSTRUCT(tuple);
	facts->relname = class_form->relname;
	facts->schema_oid = class_form->relnamespace;
	facts->relkind = class_form->relkind;
	facts->persistence = class_form->relpersistence;
	facts->tablespace = OidIsValid(class_form->reltablespace) ?
		class_form->reltablespace : MyDatabaseTableSpace;
	facts->relam = class_form->relam;
	facts->relfilenumber = class_form->relfilenode;
	facts->toast_oid = class_form->reltoastrelid;
	ReleaseSysCache(tuple);

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(facts->heap_oid));
	if (!HeapTupleIsValid(tuple))
		return false;
	class_form = (Form_pg_class) GETSTRUCT(tuple);
	facts->heap_name = class_form->relname;
	facts->heap_tablespace = OidIsValid(class_form->reltablespace) ?
		class_form->reltablespace : MyDatabaseTableSpace;
	facts->heap_relfilenumber = class_form->relfilenode;
	ReleaseSysCache(tuple);

	schema_name = get_namespace_name(facts->schema_oid);
	if (schema_name == NULL)
		return false;
	namestrcpy(&facts->schema_name, schema_name);
	pfree(schema_name);

	return true;
}

/*
 * Return the OIDs of what is kept where a table is: its TOAST table and the
 * indexes of that, also invalid ones, in the order in which core locks them.
 */
List *
parts_of_table(const RelationFacts *facts)
{
	if (!OidIsValid(facts->toast_oid))
		return NIL;
	return list_concat(list_make1_oid(facts->toast_oid), indexes_of_table(facts->toast_oid));
}

/*
 * Return the table of a TOAST table, or of an index of one; InvalidOid for any
 * other relation.  pg_class has the other direction only, without an index.
 */
Oid
table_of_toast(Oid relid)
{
	Oid			toast = relkind_is_index(get_rel_relkind(relid)) ?
		IndexGetRelation(relid, true) : relid;
	Oid			result = InvalidOid;
	Relation	pg_depend;
	ScanKeyData key[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	if (get_rel_relkind(toast) != RELKIND_TOASTVALUE)
		return InvalidOid;
	ScanKeyInit(&key[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&key[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(toast));
	pg_depend = table_open(DependRelationId, AccessShareLock);
	scan = systable_beginscan(pg_depend, DependDependerIndexId, true, NULL, 2, key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);

		if (form->deptype == DEPENDENCY_INTERNAL && form->refclassid == RelationRelationId)
			result = form->refobjid;
	}
	systable_endscan(scan);
	table_close(pg_depend, AccessShareLock);
	return result;
}

/* Return whether all that is kept where a table is is in this tablespace. */
bool
parts_are_in(const RelationFacts *facts, Oid tablespace)
{
	ListCell   *lc;

	foreach(lc, parts_of_table(facts))
	{
		RelationFacts part;

		if (relation_facts(lfirst_oid(lc), &part) && part.tablespace != tablespace)
			return false;
	}
	return true;
}

/*
 * Return the OIDs of the relations of this database whose pg_class rows are such.
 * No relation is locked: is_such() must know that a row may be outdated.
 */
List *
relations_such(bool (*is_such) (Form_pg_class form))
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 0, NULL);
	List	   *result = NIL;
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		CHECK_FOR_INTERRUPTS();
		if (is_such(form))
			result = lappend_oid(result, form->oid);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return result;
}

/*
 * Return whether a table, but a catalog, is in another tablespace than what TOAST
 * keeps of it.  Core never has them apart, and pg_upgrade --swap would lose the
 * values; an earlier version of ours could leave them so.
 */
bool
table_is_apart(Form_pg_class form)
{
	RelationFacts facts;

	return OidIsValid(form->reltoastrelid) && !IsCatalogRelationOid(form->oid) &&
		relation_facts(form->oid, &facts) && !parts_are_in(&facts, facts.tablespace);
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

static void
pg_attribute_printf(2, 0)
item_vsay(MoveItem *item, const char *fmt, va_list args)
{
	char		sentence[1024];
	int			used = strlen(item->detail);
	int			len;
	int			room;
	int			written;
	bool		clipped;

	written = vsnprintf(sentence, sizeof(sentence), fmt, args);
	if (used > 0 && used < IM_DETAIL_LEN - 1)
		item->detail[used++] = ' ';
	len = strlen(sentence);
	room = IM_DETAIL_LEN - 1 - used;
	clipped = written > len || len > room;
	/* half of a command must not be a command: it would do something else */
	if (clipped)
		len = pg_mbcliplen(sentence, len, Max(Min(len, room) - 3, 0));
	memcpy(item->detail + used, sentence, len);
	strlcpy(item->detail + used + len, clipped ? "..." : "", room - len + 1);
}

/* Append a sentence to the row's detail, clipped at a character boundary. */
void
item_say(MoveItem *item, const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	item_vsay(item, fmt, args);
	va_end(args);
}

/*
 * Skip the row, with the reason as its only detail, and return false.
 * sqlerrcode is 0 if nothing is wrong, but there is nothing to do.
 */
bool
item_skip(MoveItem *item, int sqlerrcode, const char *fmt,...)
{
	va_list		args;

	item->status = STATUS_SKIPPED;
	strlcpy(item->sqlstate, sqlerrcode ? unpack_sql_state(sqlerrcode) : "",
			sizeof(item->sqlstate));
	item->detail[0] = '\0';

	va_start(args, fmt);
	item_vsay(item, fmt, args);
	va_end(args);
	return false;
}

/*
 * Return core's command for the move of a relation.
 */
char *
item_core_command(const MoveItem *item)
{
	return printed_command("alter_relation",
						   relkind_is_index(item->relkind) ? "INDEX" :
						   item->relkind == RELKIND_MATVIEW ? "MATERIALIZED VIEW" : "TABLE",
						   quote_qualified_identifier(NameStr(item->schema_name),
													  NameStr(item->relname)),
						   get_tablespace_name(item->to_tablespace));
}

/*
 * Return whether this is a table of the extension itself.  A job writes to
 * them while it runs, so it cannot move them.
 */
bool
plan_is_own_table(Oid heap_oid)
{
	return get_rel_namespace(heap_oid) == extension_schema() ||
		getExtensionOfObject(RelationRelationId, heap_oid) == get_extension_oid("index_mover", true);
}

/*
 * Return whether the current user may use names in this schema, as REINDEX
 * does for the index.  No user has, or needs, that right for pg_toast.
 */
static bool
may_use_schema(Oid schema_oid)
{
	return IsToastNamespace(schema_oid) ||
		object_aclcheck(NamespaceRelationId, schema_oid, GetUserId(),
						ACL_USAGE) == ACLCHECK_OK;
}

/*
 * Return whether the current user may move this table's indexes: as its owner
 * or, from 17 on, with MAINTAIN.
 */
bool
plan_may_move(Oid heap_oid)
{
	return table_maintain_aclcheck(heap_oid, GetUserId()) == ACLCHECK_OK;
}

/* The same for the table itself, or its indexes: as ALTER TABLE, or REINDEX. */
static AclResult
check_may_move(Oid heap_oid, char relkind)
{
	if (relkind_is_index(relkind))
		return table_maintain_aclcheck(heap_oid, GetUserId());
	return object_ownercheck(RelationRelationId, heap_oid, GetUserId()) ?
		ACLCHECK_OK : ACLCHECK_NOT_OWNER;
}

/*
 * Check whether the current user may make files in a tablespace; as in core, the
 * database's default tablespace requires no right.
 */
static AclResult
target_aclcheck(Oid tablespace)
{
	return tablespace == MyDatabaseTableSpace ? ACLCHECK_OK :
		object_aclcheck(TableSpaceRelationId, tablespace, GetUserId(), ACL_CREATE);
}

/*
 * Check whether the current user can move this relation now, by whatever method.
 * If not, skip the row with the reason and return false.
 *
 * The caller has set item->to_tablespace, method and repair.
 */
bool
item_check(MoveItem *item, const RelationFacts *facts)
{
	const char *heap_name = NameStr(facts->heap_name);
	const char *to_name;
	AclResult	aclresult;

	aclresult = check_may_move(facts->heap_oid, facts->relkind);
	if (aclresult == ACLCHECK_NOT_OWNER)
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Must be owner of table \"%s\".", heap_name);
	if (aclresult != ACLCHECK_OK)
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Permission denied for table \"%s\".", heap_name);
	if (!may_use_schema(facts->schema_oid))
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Permission denied for schema \"%s\".",
						 NameStr(facts->schema_name));

	to_name = get_tablespace_name(item->to_tablespace);
	if (to_name == NULL)
		return item_skip(item, ERRCODE_UNDEFINED_OBJECT,
						 "The target tablespace was dropped.");
	if (target_aclcheck(item->to_tablespace) != ACLCHECK_OK)
		return item_skip(item, ERRCODE_INSUFFICIENT_PRIVILEGE,
						 "Permission denied for tablespace \"%s\".", to_name);

	if (IsToastNamespace(facts->schema_oid))
		return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
						 "It moves with the table that it belongs to.");

	if (plan_is_own_table(facts->heap_oid))
		return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
						 "The extension writes to this table during a move. Under an exclusive lock: %s",
						 item_core_command(item));

	if (facts->relkind == RELKIND_INDEX)
	{
		const char *command = printed_command("drop_index",
											  quote_qualified_identifier(NameStr(facts->schema_name),
																		 NameStr(facts->relname)));
		bool		leftover_name = is_reindex_leftover_name(NameStr(facts->relname));

		if ((!facts->valid || !facts->live || leftover_name) &&
			leftover_index_is_ours(item->relid))
			return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
							 "The index is that of a rebuild that is running, or was interrupted; in that case the next call for the table removes it, or: %s",
							 printed_command("cleanup"));
		if (!facts->live)
			return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
							 "The index is being dropped; if no session is at it any more: %s",
							 command);
		if (!facts->valid && !item->repair)
		{
			if (leftover_name)
				return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
								 "The index is not valid: it is what an interrupted REINDEX CONCURRENTLY leaves, or one that runs now; to remove a leftover: %s",
								 command);
			return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
							 "The index is not valid; to repair and move it, name it itself with method rebuild.");
		}
	}

	/* an invalid index is repaired in any tablespace */
	if (facts->tablespace == item->to_tablespace &&
		(facts->valid || !item->repair) && parts_are_in(facts, item->to_tablespace))
		return item_skip(item, 0,
						 facts->relkind == RELKIND_PARTITIONED_INDEX ?
						 "Indexes of new partitions are made in tablespace \"%s\" already." :
						 facts->relkind == RELKIND_PARTITIONED_TABLE ?
						 "New partitions are made in tablespace \"%s\" already." :
						 "Already in tablespace \"%s\".", to_name);

	if (recovery_needs_full_pages(item->relid))
		return item_skip(item, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 "full_page_writes is off, with which this server cannot recover from a crash after the file of a BRIN index was removed; switch it on, and CHECKPOINT, before the move.");

	return true;
}

/*
 * Return which methods can move an index or a table, regardless of the user and
 * of its tablespace.  access_methods is as for copy_can_move().  Takes no locks.
 */
void
movable_methods(Oid relid, const char *access_methods, bool *copy, bool *rebuild)
{
	RelationFacts facts;

	*copy = *rebuild = false;
	if (!relation_facts(relid, &facts) ||
		!(relkind_is_index(facts.relkind) || RELKIND_HAS_TABLE_AM(facts.relkind)) ||
		!facts.live ||
		facts.persistence == RELPERSISTENCE_TEMP ||
		IsCatalogRelationOid(facts.heap_oid) || plan_is_own_table(facts.heap_oid) ||
		OidIsValid(table_of_toast(relid)))
		return;
	/* the next move removes what an interrupted one has left */
	if (!facts.valid && leftover_index_is_ours(relid))
		return;
	if (recovery_needs_full_pages(relid))
		return;
	*copy = facts.valid && copy_can_move(relid, access_methods, NULL);
	*rebuild = relkind_is_index(facts.relkind) && rebuild_can_move(relid, NULL);
}

/* Return the OID of the named tablespace; ERROR 42704, with a hint. */
Oid
plan_tablespace(const char *name)
{
	Oid			result = get_tablespace_oid(name, true);

	if (!OidIsValid(result))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tablespace \"%s\" does not exist", name),
				 strchr(name, '"') != NULL ?
				 errhint("Tablespace names are given as in pg_tablespace, without double quotes.") : 0));
	return result;
}

/*
 * Look up and check the target tablespace of a move.  ERROR 42704 no such
 * tablespace; 22023 pg_global; 42501 no CREATE on it.
 */
Oid
plan_target_tablespace(const char *name)
{
	Oid			tablespace = plan_tablespace(name);
	AclResult	aclresult;

	if (tablespace == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only shared relations can be placed in pg_global tablespace")));

	aclresult = target_aclcheck(tablespace);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_TABLESPACE, name);
	return tablespace;
}

/*
 * Raise an error if the relation that the user named can never be moved, or
 * not by this user: 42809 kind, 42501, 0A000 catalogs and temporary tables.
 * For an index, its table is checked.
 */
void
plan_check_named_relation(Oid relid, char relkind, const char *relname,
						  const PlanRequest *request)
{
	bool		tables = request->tables;
	Oid			heap_oid = relid;
	Oid			schema_oid = get_rel_namespace(relid);
	Oid			table;
	AclResult	aclresult;

	switch (relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_MATVIEW:
		case RELKIND_TOASTVALUE:
		case RELKIND_PARTITIONED_TABLE:
			break;
		case RELKIND_INDEX:
		case RELKIND_PARTITIONED_INDEX:
			if (tables)
				ereport(ERROR,
						(errcode(ERRCODE_WRONG_OBJECT_TYPE),
						 errmsg("\"%s\" is not a table or materialized view", relname),
						 errdetail_relkind_not_supported(relkind),
						 errhint("To move an index: %s",
								 printed_command("move_indexes",
												 quote_qualified_identifier(get_namespace_name(schema_oid), relname),
												 get_tablespace_name(request->to_tablespace), "auto"))));
			heap_oid = IndexGetRelation(relid, true);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 tables ?
					 errmsg("\"%s\" is not a table or materialized view", relname) :
					 errmsg("cannot move indexes of relation \"%s\"", relname),
					 errdetail_relkind_not_supported(relkind)));
	}

	if (!OidIsValid(heap_oid) || !OidIsValid(schema_oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));

	if (!may_use_schema(schema_oid))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA,
					   get_namespace_name(schema_oid));

	aclresult = check_may_move(heap_oid, tables ? relkind : RELKIND_INDEX);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, get_relkind_objtype(relkind), relname);

	if (IsCatalogRelationOid(heap_oid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move system relation \"%s\"", relname)));

	/* pg_upgrade takes for granted that they are where their table is */
	if (OidIsValid(table = table_of_toast(relid)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move TOAST relation \"%s\" by itself", relname),
				 errdetail("A TOAST table and its index are where their table is."),
				 errhint("Move its table, \"%s\".", get_rel_name(table))));

	if (isOtherTempNamespace(schema_oid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move temporary tables of other sessions")));

	if (get_rel_persistence(heap_oid) == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move temporary tables"),
				 errdetail("A background worker makes the move, and it cannot access them."),
				 errhint("Use ALTER %s ... SET TABLESPACE.", tables ? "TABLE" : "INDEX")));
}

/*
 * Return a relation that this transaction or session has locked: a table, an
 * index of it, or a partitioned table above it; InvalidOid if there is none.
 */
static Oid
find_own_lock(Oid heap_oid)
{
	List	   *tables = list_make1_oid(heap_oid);
	ListCell   *lc;
	ListCell   *lc2;

	if (get_rel_relispartition(heap_oid))
		tables = list_concat(tables, get_partition_ancestors(heap_oid));
	foreach(lc, tables)
	{
		if (CheckRelationOidLockedByMe(lfirst_oid(lc), AccessShareLock, true))
			return lfirst_oid(lc);
		foreach(lc2, indexes_of_table(lfirst_oid(lc)))
			if (CheckRelationOidLockedByMe(lfirst_oid(lc2), AccessShareLock, true))
			return lfirst_oid(lc2);
	}
	return InvalidOid;
}

/*
 * For a caller that will wait inside its transaction: skip the planned
 * MoveItems for which it holds a lock on the table, on any index of it, or on a
 * partitioned table above it.  ERROR 55006 if these are all.
 *
 * Any mode counts, because a rebuild waits first for every writer and last
 * for every reader, and the swap of a copy for all that use the index.  The
 * deadlock detector does not see a latch wait, so this cannot be left to it.
 */
void
plan_skip_locked(const List *items)
{
	ListCell   *lc;
	List	   *seen = NIL;
	List	   *locked = NIL;	/* of MoveItem, and the relation of each */
	List	   *relids = NIL;
	int			planned = 0;

	foreach(lc, items)
	{
		MoveItem   *item = lfirst(lc);
		MoveItem   *last;
		Oid			relid;

		if (item->status != STATUS_PLANNED)
			continue;
		if (!OidIsValid(item->part_of))
			planned++;
		else if (locked != NIL &&
				 (last = llast(locked), last->relid == item->part_of || last->part_of == item->part_of))
			continue;			/* one is enough for the whole table */
		if (list_member_oid(seen, item->heap_oid))
			continue;
		CHECK_FOR_INTERRUPTS();
		relid = find_own_lock(item->heap_oid);
		if (OidIsValid(relid))
		{
			locked = lappend(locked, item);
			relids = lappend_oid(relids, relid);
		}
		else
			seen = lappend_oid(seen, item->heap_oid);
	}
	for (int i = 0; i < list_length(locked); i++)
	{
		MoveItem   *item = list_nth(locked, i);
		char	   *relname = get_rel_name(list_nth_oid(relids, i));

		if (list_length(locked) == planned)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("cannot move %s \"%s\" because the current transaction holds a lock on \"%s\"",
							relation_noun(item->relkind), NameStr(item->relname),
							relname ? relname : "?"),
					 errdetail("The move would wait for this transaction, and this transaction for the move."),
					 errhint("Call it first in a transaction of its own, or with wait => false.")));
		item_skip(item, ERRCODE_OBJECT_IN_USE, "The current transaction holds a lock on \"%s\".",
				  relname ? relname : "?");
	}
	list_free(seen);
}

/*
 * Repeat all checks in the runner after it has locked table and index.  If
 * the index cannot be moved any more (dropped, already in place, invalid, no
 * privilege ...), skip the row with the reason and return false; otherwise
 * update the row's names and source tablespace and return true.  began: the
 * work itself has begun; this affects only the wording.
 *
 * The caller is in a transaction.  The index is identified by
 * item->relid: a new index of the same name is another one.
 */
bool
plan_recheck(MoveItem *item, bool began)
{
	RelationFacts facts;
	NameData	old_schema = item->schema_name;
	NameData	old_name = item->relname;
	Oid			old_tablespace = item->from_tablespace;
	const char *when = began ? "while it was being moved" : "before its move began";
	char	   *reason;

	if (!relation_facts(item->relid, &facts) ||
		facts.heap_oid != item->heap_oid)
		return item_skip(item, ERRCODE_UNDEFINED_OBJECT,
						 item->heap_oid == item->relid ?
						 "Table \"%s\" was dropped %s." :
						 get_rel_name(item->heap_oid) == NULL ?
						 "Index \"%s\" was dropped with its table %s." :
						 "Index \"%s\" was dropped, or replaced by a new one, %s.",
						 NameStr(item->relname), when);

	item_fill(item, &facts);

	if (!item_check(item, &facts))
		return false;

	if (item->method == METHOD_COPY &&
		facts.persistence != RELPERSISTENCE_PERMANENT)
		return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
						 relkind_is_index(facts.relkind) ?
						 "The table was made unlogged %s; method rebuild can move its indexes." :
						 "The table was made unlogged %s.",
						 began ? "during the move" : "before the move began");
	if (item->method == METHOD_REBUILD &&
		!rebuild_can_move(item->relid, &reason))
		return item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
						 "Method rebuild cannot move the index: %s.", reason);

	if (strcmp(NameStr(old_name), NameStr(item->relname)) != 0 ||
		strcmp(NameStr(old_schema), NameStr(item->schema_name)) != 0)
		item_say(item, "When the move was planned, the %s was \"%s\".\"%s\".",
				 relation_noun(item->relkind), NameStr(old_schema), NameStr(old_name));
	if (old_tablespace != item->from_tablespace)
	{
		char	   *old = get_tablespace_name(old_tablespace);

		item_say(item, "When the move was planned, the %s was in tablespace \"%s\".",
				 relation_noun(item->relkind), old ? old : "?");
	}

	return true;
}
