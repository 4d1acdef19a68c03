/*-------------------------------------------------------------------------
 *
 * partition_bounds.c
 *	  The partitions with files below a relation, and where their ranges end.
 *
 * A bound is taken from the catalogs as it is stored, as a Datum of the key's
 * type: no text of it depends on settings, and no function of a type or an operator
 * class is called.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_partitioned_table.h"
#include "commands/defrem.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "tier/tier_private.h"

/* The key of a partitioned table */
typedef struct RangeKey
{
	char	   *column;
	Oid			type;			/* no domain */
	KeyKind		kind;
} RangeKey;

/*
 * Get the key of a partitioned table.  Its kind is KEY_OTHER unless that is a range of
 * one column, in the usual order of its type: by an operator class of a user's, ranges
 * may end where they begin.
 */
static RangeKey
range_key(Oid relid, const KeyMeaning *meaning)
{
	RangeKey	result = {.kind = KEY_OTHER};
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(relid));
	AttrNumber	attnum = InvalidAttrNumber; /* or of an expression */
	Oid			operator_class = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_partitioned_table form = (Form_pg_partitioned_table) GETSTRUCT(tuple);
		bool		isnull;
		Datum		classes = SysCacheGetAttr(PARTRELID, tuple,
											  Anum_pg_partitioned_table_partclass, &isnull);

		if (form->partstrat == PARTITION_STRATEGY_RANGE && form->partnatts == 1 && !isnull)
		{
			attnum = form->partattrs.values[0];
			operator_class = ((oidvector *) DatumGetPointer(classes))->values[0];
		}
		ReleaseSysCache(tuple);
	}
	if (attnum == InvalidAttrNumber)
		return result;
	result.type = get_atttype(relid, attnum);
	if (!OidIsValid(result.type))
		return result;
	result.type = getBaseType(result.type);
	result.column = get_attname(relid, attnum, true);
	if (result.column != NULL && operator_class == GetDefaultOpClass(result.type, BTREE_AM_OID))
		result.kind = key_kind(result.type, meaning);
	return result;
}

/* Return the stored bound of a partition, NULL unless it is in a range. */
static const PartitionBoundSpec *
stored_bound(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	PartitionBoundSpec *result = NULL;
	Datum		stored;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	stored = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relpartbound, &isnull);
	if (!isnull)
		result = castNode(PartitionBoundSpec, stringToNode(TextDatumGetCString(stored)));
	ReleaseSysCache(tuple);
	if (result != NULL && result->strategy != PARTITION_STRATEGY_RANGE)
		return NULL;
	return result;
}

/* Set where a range with this upper bound ends. */
static void
set_end(PartitionLeaf *leaf, const RangeKey *key, const KeyMeaning *meaning, Datum bound)
{
	leaf->text = key_text(key->type, bound);
	if (key->kind == KEY_WITHOUT_UNIT)
		leaf->why_none = key_unit_hint(key->type);
	else
		leaf->why_none = key_moment(key->type, bound, meaning, &leaf->end);
}

/*
 * Set where the range of a partition ends.  same_column: the level above is a range of
 * the same column; then it counts if it ends earlier, or this one has no bound.
 */
static void
read_bound(Oid relid, const RangeKey *key, const KeyMeaning *meaning, bool same_column,
		   PartitionLeaf *leaf)
{
	const PartitionBoundSpec *spec = stored_bound(relid);
	const PartitionLeaf above = *leaf;
	PartitionRangeDatum *upper;

	/* detached just now, and perhaps attached elsewhere */
	if (spec == NULL)
		return;
	leaf->column = key->column;
	leaf->kind = key->kind;
	upper = spec->is_default ? NULL : linitial_node(PartitionRangeDatum, spec->upperdatums);
	if (upper != NULL && upper->kind == PARTITION_RANGE_DATUM_VALUE)
	{
		set_end(leaf, key, meaning, castNode(Const, upper->value)->constvalue);
		if (same_column && above.why_none == NULL &&
			(leaf->why_none != NULL || above.end < leaf->end))
			*leaf = above;
	}
	else if (!same_column)
	{
		leaf->text = NULL;
		/* MINVALUE ends nothing that could have rows */
		leaf->why_none = upper == NULL ? "the default partition has no bound" :
			"the partition has no upper bound";
	}
}

/*
 * Add the relations with files from this one down to a list of PartitionLeaf; above:
 * what counts so far.  The highest level counts of those of whose keys most is known
 * (KeyKind), or a lower level of the same column.
 */
static List *
add_leaves(List *leaves, Oid relid, const KeyMeaning *meaning, const PartitionLeaf *above)
{
	PartitionLeaf *leaf = palloc_object(PartitionLeaf);
	char		relkind = get_rel_relkind(relid);
	RangeKey	key;
	bool		same_column;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	*leaf = *above;
	leaf->relid = relid;
	if (relkind == RELKIND_RELATION || relkind == RELKIND_MATVIEW)
		return lappend(leaves, leaf);
	if (relkind != RELKIND_PARTITIONED_TABLE)
		return leaves;

	key = range_key(relid, meaning);
	same_column = key.kind != KEY_OTHER && key.kind == above->kind &&
		strcmp(key.column, above->column) == 0;
	foreach_oid(child, find_inheritance_children(relid, NoLock))
	{
		*leaf = *above;
		if (same_column || key.kind > above->kind)
			read_bound(child, &key, meaning, same_column, leaf);
		leaves = add_leaves(leaves, child, meaning, leaf);
	}
	return leaves;
}

/* Return the tables with files of a relation, or it, a List of PartitionLeaf, without locks. */
List *
partition_leaves(Oid relid, const KeyMeaning *meaning)
{
	PartitionLeaf none = {
		.kind = KEY_OTHER,
		.why_none = "it is in no range of dates, timestamps, numbers or UUIDs",
	};

	return add_leaves(NIL, relid, meaning, &none);
}
