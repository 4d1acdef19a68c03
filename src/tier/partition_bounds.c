/*-------------------------------------------------------------------------
 *
 * partition_bounds.c
 *	  The partitions with files below a relation, and where their ranges end.
 *
 * A bound is taken from the catalogs as it is stored, as a Datum of the key's
 * type: no text of it depends on settings, and no date is too late for a timestamp.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_type_d.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "tier/tier_private.h"

/* Return the kind of bound of this type: BOUND_NUMBER, BOUND_TIME, or BOUND_NONE. */
BoundKind
bound_kind(Oid type)
{
	return type == DATEOID || type == TIMESTAMPOID || type == TIMESTAMPTZOID ? BOUND_TIME :
		type == INT2OID || type == INT4OID || type == INT8OID ? BOUND_NUMBER : BOUND_NONE;
}

/*
 * Return a value of one of these types as a number, or as a TimestampTz: infinity, or
 * -infinity, if it is too late or too early for one.
 */
int64
bound_value(Oid type, Datum value)
{
	Timestamp	local;

	if (type != DATEOID && type != TIMESTAMPOID)
		return type == INT2OID ? DatumGetInt16(value) : type == INT4OID ? DatumGetInt32(value) : DatumGetInt64(value);
	local = type == TIMESTAMPOID ? DatumGetTimestamp(value) :
		DatumGetDateADT(value) >= TIMESTAMP_END_JULIAN - POSTGRES_EPOCH_JDATE ? DT_NOEND :
		DatumGetTimestamp(DirectFunctionCall1(date_timestamp, value));
	/* no time zone is a day off */
	return local < MIN_TIMESTAMP + USECS_PER_DAY ? DT_NOBEGIN :
		local >= END_TIMESTAMP - USECS_PER_DAY ? DT_NOEND :
		DatumGetTimestampTz(DirectFunctionCall1(timestamp_timestamptz, TimestampGetDatum(local)));
}

/*
 * Get the column of a partitioned table's key, and its type, if that is a range
 * of one date, timestamp or integer; else return NULL.
 */
static char *
range_column(Oid relid, Oid *type)
{
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(relid));
	AttrNumber	attnum = InvalidAttrNumber; /* or of an expression */

	if (HeapTupleIsValid(tuple))
	{
		Form_pg_partitioned_table form = (Form_pg_partitioned_table) GETSTRUCT(tuple);

		if (form->partstrat == PARTITION_STRATEGY_RANGE && form->partnatts == 1)
			attnum = form->partattrs.values[0];
		ReleaseSysCache(tuple);
	}
	if (OidIsValid(*type = get_atttype(relid, attnum)))
		*type = getBaseType(*type);
	return bound_kind(*type) == BOUND_NONE ? NULL : get_attname(relid, attnum, true);
}

/*
 * Set where the range of a partition ends, of a key of this column and type.  keep:
 * unless that above ends earlier, or it has no bound.
 */
static void
read_bound(Oid relid, const char *column, Oid type, bool keep, PartitionLeaf *leaf)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Datum		stored;
	bool		isnull = true;
	PartitionBoundSpec *spec = NULL;
	PartitionRangeDatum *upper;

	if (HeapTupleIsValid(tuple))
	{
		stored = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relpartbound, &isnull);
		spec = isnull ? NULL : castNode(PartitionBoundSpec, stringToNode(TextDatumGetCString(stored)));
		ReleaseSysCache(tuple);
	}
	if (spec == NULL || spec->strategy != PARTITION_STRATEGY_RANGE)
		return;					/* detached just now, and perhaps attached
								 * elsewhere */
	leaf->column = column;
	leaf->end.kind = bound_kind(type);
	upper = spec->is_default ? NULL : linitial_node(PartitionRangeDatum, spec->upperdatums);
	if (upper != NULL && upper->kind == PARTITION_RANGE_DATUM_VALUE)
	{
		Datum		value = castNode(Const, upper->value)->constvalue;
		int64		end = bound_value(type, value);

		if (keep && leaf->why_none == NULL && leaf->end.value < end)
			return;
		leaf->end.value = end;
		/* the caller has set DateStyle */
		leaf->text = leaf->end.kind == BOUND_NUMBER ? psprintf(INT64_FORMAT, leaf->end.value) :
			DatumGetCString(type == DATEOID ? DirectFunctionCall1(date_out, value) :
							type == TIMESTAMPOID ? DirectFunctionCall1(timestamp_out, value) :
							DirectFunctionCall1(timestamptz_out, value));
		leaf->why_none = NULL;
	}
	else if (!keep)				/* MINVALUE ends nothing that could have rows */
		leaf->why_none = upper == NULL ? "the default partition has no bound" : "the partition has no upper bound";
}

/*
 * Add the relations with files from this one down to a list of PartitionLeaf; above:
 * what counts so far.  The highest level that is a range of one date or timestamp
 * counts, or else integer, or a lower level of the same column, where a partition
 * without a bound ends as the level above.
 */
static List *
add_leaves(List *leaves, Oid relid, const PartitionLeaf *above)
{
	PartitionLeaf *leaf = palloc_object(PartitionLeaf);
	char		relkind = get_rel_relkind(relid);
	Oid			type = InvalidOid;
	char	   *column;
	bool		again;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	*leaf = *above;
	leaf->relid = relid;
	if (relkind == RELKIND_RELATION || relkind == RELKIND_MATVIEW)
		return lappend(leaves, leaf);
	if (relkind != RELKIND_PARTITIONED_TABLE)
		return leaves;

	column = range_column(relid, &type);
	again = column != NULL && above->column != NULL && strcmp(column, above->column) == 0;
	foreach_oid(child, find_inheritance_children(relid, NoLock))
	{
		*leaf = *above;
		if (column != NULL &&
			(above->column == NULL || again ||
			 (above->end.kind == BOUND_NUMBER && bound_kind(type) == BOUND_TIME)))
			read_bound(child, column, type, again, leaf);
		leaves = add_leaves(leaves, child, leaf);
	}
	return leaves;
}

/* Return the tables with files of a relation, or it, a List of PartitionLeaf, without locks. */
List *
partition_leaves(Oid relid)
{
	PartitionLeaf none = {.why_none = "it is in no range of dates, timestamps or integers"};

	return add_leaves(NIL, relid, &none);
}
