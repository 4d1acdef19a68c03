/*-------------------------------------------------------------------------
 *
 * relation_facts.c
 *	  Facts from the catalogs about an index or a table.
 *
 * User relations are not locked, and no lock is kept on a catalog.  A relation
 * that vanishes in between does not exist, which is no error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "relation_facts.h"

/* Fetch the facts about an index or a table; false if it does not exist. */
bool
relation_facts(Oid relid, RelationFacts *facts)
{
	HeapTuple	tuple;
	Form_pg_index index_form;
	Form_pg_class class_form;
	char	   *schema_name;

	Assert(IsTransactionState());
	memset(facts, 0, sizeof(RelationFacts));
	facts->relid = relid;
	facts->heap_oid = relid;
	facts->valid = facts->ready = facts->live = true;

	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(relid));
	if (HeapTupleIsValid(tuple))
	{
		index_form = (Form_pg_index) GETSTRUCT(tuple);
		facts->heap_oid = index_form->indrelid;
		facts->unique = index_form->indisunique;
		facts->exclusion = index_form->indisexclusion;
		facts->immediate = index_form->indimmediate;
		facts->primary = index_form->indisprimary;
		facts->replident = index_form->indisreplident;
		facts->valid = index_form->indisvalid;
		facts->ready = index_form->indisready;
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
	/* from 2^31 on it is negative there; a partitioned table has -1 */
	facts->pages = class_form->relpages == -1 ? 0 : (BlockNumber) class_form->relpages;
	facts->tablespace = tablespace_from_catalog(class_form->reltablespace);
	facts->relam = class_form->relam;
	facts->relfilenumber = class_form->relfilenode;
	facts->toast_oid = class_form->reltoastrelid;
	ReleaseSysCache(tuple);

	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(facts->heap_oid));
	if (!HeapTupleIsValid(tuple))
		return false;
	class_form = (Form_pg_class) GETSTRUCT(tuple);
	facts->heap_name = class_form->relname;
	facts->heap_tablespace = tablespace_from_catalog(class_form->reltablespace);
	facts->heap_relfilenumber = class_form->relfilenode;
	facts->identity = class_form->relreplident;
	ReleaseSysCache(tuple);

	schema_name = get_namespace_name(facts->schema_oid);
	if (schema_name == NULL)
		return false;
	namestrcpy(&facts->schema_name, schema_name);
	return true;
}

/*
 * Return the rows (HeapTuple, copied) of a catalog whose columns have these
 * OIDs; column 0 is none.  index: an index that begins with these columns, or 0.
 * snapshot: NULL as for systable_beginscan().
 */
List *
catalog_rows_in(Snapshot snapshot, Oid catalog, Oid index, AttrNumber column1, Oid key1,
				AttrNumber column2, Oid key2)
{
	Relation	rel = table_open(catalog, AccessShareLock);
	List	   *result = NIL;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	if (column1 != 0)
		ScanKeyInit(&keys[0], column1, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(key1));
	if (column2 != 0)
		ScanKeyInit(&keys[1], column2, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(key2));
	scan = systable_beginscan(rel, index, OidIsValid(index), snapshot,
							  (column1 != 0) + (column2 != 0), keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = lappend(result, heap_copytuple(tuple));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Return the OIDs of all indexes of a table, not of its partitions. */
List *
indexes_of_table(Oid heap_oid)
{
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, row, catalog_rows(IndexRelationId, IndexIndrelidIndexId,
												 Anum_pg_index_indrelid, heap_oid, 0, InvalidOid))
		result = lappend_oid(result, ((Form_pg_index) GETSTRUCT(row))->indexrelid);
	return result;
}

/* Return whether a relation is there, and has had children. */
static bool
has_had_children(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_class) GETSTRUCT(tuple))->relhassubclass;
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Return the partitions of a relation, or the tables that inherit from it, in the order of
 * their OIDs; with_pending: also partitions whose detachment is pending.  NIL if it is gone, where
 * core's find_inheritance_children(), which is for locked relations, raises XX000.
 */
List *
children_of(Oid relid, bool with_pending)
{
	List	   *result = NIL;

	if (!has_had_children(relid))
		return NIL;
	foreach_ptr(HeapTupleData, row, catalog_rows(InheritsRelationId, InheritsParentIndexId,
												 Anum_pg_inherits_inhparent, relid, 0, InvalidOid))
	{
		Form_pg_inherits form = (Form_pg_inherits) GETSTRUCT(row);

		if (with_pending || !form->inhdetachpending)
			result = lappend_oid(result, form->inhrelid);
	}
	list_sort(result, list_oid_cmp);
	return result;
}

/* Return a relation and all below it, each once, as find_all_inheritors(). */
List *
relation_and_below(Oid relid)
{
	List	   *result = list_make1_oid(relid);

	/* it grows meanwhile */
	foreach_oid(parent, result)
	{
		CHECK_FOR_INTERRUPTS();
		foreach_oid(child, children_of(parent, false))
		{
			/* a partition has a single parent */
			if (get_rel_relispartition(child) || !list_member_oid(result, child))
				result = lappend_oid(result, child);
		}
	}
	return result;
}

/* Return whether a relation is another, or is below it, by whatever way of many. */
bool
is_or_is_below(Oid relid, Oid other)
{
	List	   *above = list_make1_oid(relid);

	/* it grows meanwhile */
	foreach_oid(child, above)
	{
		CHECK_FOR_INTERRUPTS();
		if (child == other)
			return true;
		foreach_ptr(HeapTupleData, row,
					catalog_rows(InheritsRelationId, InheritsRelidSeqnoIndexId,
								 Anum_pg_inherits_inhrelid, child, 0, InvalidOid))
		{
			Form_pg_inherits form = (Form_pg_inherits) GETSTRUCT(row);

			if (!form->inhdetachpending)
				above = list_append_unique_oid(above, form->inhparent);
		}
	}
	return false;
}

/*
 * Return the table of which a table is a partition, 0 if it is none.  Core's
 * get_partition_parent() raises XX000 if it was detached just now.
 */
Oid
parent_of_partition(Oid relid)
{
	if (!get_rel_relispartition(relid))
		return InvalidOid;
	foreach_ptr(HeapTupleData, row, catalog_rows(InheritsRelationId, InheritsRelidSeqnoIndexId,
												 Anum_pg_inherits_inhrelid, relid, 0, InvalidOid))
		return ((Form_pg_inherits) GETSTRUCT(row))->inhparent;
	return InvalidOid;
}

/* Return the TOAST table of a table and its indexes, in the order in which core locks them. */
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

	if (get_rel_relkind(toast) != RELKIND_TOASTVALUE)
		return InvalidOid;
	foreach_ptr(HeapTupleData, row, catalog_rows(DependRelationId, DependDependerIndexId,
												 Anum_pg_depend_classid, RelationRelationId,
												 Anum_pg_depend_objid, toast))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(row);

		if (form->deptype == DEPENDENCY_INTERNAL && form->refclassid == RelationRelationId)
			result = form->refobjid;
	}
	return result;
}

/* Return whether the TOAST table and its indexes are in this tablespace. */
bool
parts_are_in(const RelationFacts *facts, Oid tablespace)
{
	foreach_oid(relid, parts_of_table(facts))
	{
		RelationFacts part;

		if (relation_facts(relid, &part) && part.tablespace != tablespace)
			return false;
	}
	return true;
}

/* Return the relations of this database whose pg_class rows, maybe outdated, are such. */
List *
relations_such(bool (*is_such) (Form_pg_class form))
{
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, row, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		CHECK_FOR_INTERRUPTS();
		if (is_such(form))
			result = lappend_oid(result, form->oid);
	}
	return result;
}

/* Return the word for a relation that messages have before its name. */
const char *
relation_noun(char relkind)
{
	switch (relkind)
	{
		case RELKIND_INDEX:
		case RELKIND_PARTITIONED_INDEX:
			return "index";
		case RELKIND_TOASTVALUE:
			return "TOAST table";
		case RELKIND_MATVIEW:
			return "materialized view";
		default:
			return "table";
	}
}
