/*-------------------------------------------------------------------------
 *
 * partition_bounds.c
 *	  The partitions with files below a relation, and where their ranges end.
 *
 * A bound is taken from the catalogs as it is stored, as a Datum of the key's
 * type, and compared by core's functions: no text of it depends on settings, and
 * no date is too late for a timestamp.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_type_d.h"
#include "nodes/parsenodes.h"
#include "nodes/primnodes.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "tier/policy.h"

/* The range that counts for a relation, so far down the tree */
typedef struct Range
{
	char	   *column;			/* of the key; NULL = none yet */
	PartitionBound upper;
} Range;

bool
bound_is_number(const PartitionBound *bound)
{
	return bound->type == INT2OID || bound->type == INT4OID || bound->type == INT8OID;
}

/*
 * Get the column of a partitioned table's key, and its type, if that is a range
 * of one date, timestamp or integer; else return NULL.
 */
static char *
range_column(Oid relid, Oid *type)
{
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(relid));
	Form_pg_partitioned_table form;
	AttrNumber	attnum = InvalidAttrNumber;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	form = (Form_pg_partitioned_table) GETSTRUCT(tuple);
	if (form->partstrat == PARTITION_STRATEGY_RANGE && form->partnatts == 1)
		attnum = form->partattrs.values[0];
	ReleaseSysCache(tuple);
	/* 0 is an expression */
	if (attnum == InvalidAttrNumber)
		return NULL;

	*type = get_atttype(relid, attnum);
	switch (*type)
	{
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
			return get_attname(relid, attnum, true);
		default:
			return NULL;
	}
}

/* Get where the range of a partition ends; its table's key is of this type. */
static PartitionBound
upper_bound(Oid relid, Oid type)
{
	PartitionBound result = {.kind = BOUND_NONE};
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Datum		stored;
	bool		isnull = true;
	PartitionBoundSpec *spec;
	PartitionRangeDatum *upper;

	if (!HeapTupleIsValid(tuple))
		return result;
	stored = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_relpartbound, &isnull);
	if (!isnull)
	{
		spec = castNode(PartitionBoundSpec, stringToNode(TextDatumGetCString(stored)));
		result.type = type;
		if (spec->is_default)
			result.kind = BOUND_DEFAULT;
		else if (spec->strategy == PARTITION_STRATEGY_RANGE)
		{
			upper = linitial_node(PartitionRangeDatum, spec->upperdatums);
			/* MINVALUE ends nothing that could have rows */
			result.kind = upper->kind == PARTITION_RANGE_DATUM_VALUE ? BOUND_VALUE : BOUND_MAXVALUE;
			if (result.kind == BOUND_VALUE)
			{
				Const	   *value = castNode(Const, upper->value);

				result.value = datumCopy(value->constvalue, value->constbyval, value->constlen);
			}
		}
	}
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Add the relations with files from this one down to a list of PartitionLeaf.
 * The highest level that is a range of one date or timestamp counts, or else
 * integer, or a lower level of the same column, where a partition without a
 * bound ends as the level above.
 */
static List *
add_leaves(List *leaves, Oid relid, const Range *range)
{
	char		relkind = get_rel_relkind(relid);
	Oid			type = InvalidOid;
	char	   *column;
	bool		again;
	bool		counts;
	PartitionBound key = {.kind = BOUND_NONE};
	ListCell   *lc;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	if (relkind == RELKIND_RELATION || relkind == RELKIND_MATVIEW)
	{
		PartitionLeaf *leaf = palloc(sizeof(PartitionLeaf));

		leaf->relid = relid;
		leaf->upper = range->upper;
		return lappend(leaves, leaf);
	}
	if (relkind != RELKIND_PARTITIONED_TABLE)
		return leaves;

	column = range_column(relid, &type);
	key.type = type;
	again = column != NULL && range->column != NULL && strcmp(column, range->column) == 0;
	counts = column != NULL &&
		(range->column == NULL || again ||
		 (bound_is_number(&range->upper) && !bound_is_number(&key)));
	foreach(lc, find_inheritance_children(relid, NoLock))
	{
		Range		below = *range;

		if (counts)
		{
			PartitionBound upper = upper_bound(lfirst_oid(lc), type);

			below.column = column;
			if (upper.kind == BOUND_VALUE || !again)
				below.upper = upper;
		}
		leaves = add_leaves(leaves, lfirst_oid(lc), &below);
	}
	return leaves;
}

/*
 * Return the tables with files that a relation consists of, a List of
 * PartitionLeaf: itself, or its partitions of all levels.  Takes no locks.
 */
List *
partition_leaves(Oid relid)
{
	Range		range = {.upper = {.kind = BOUND_NONE}};

	return add_leaves(NIL, relid, &range);
}

/* Compare a bound of a date or timestamp with a moment: <0, 0, >0. */
int
bound_compare(const PartitionBound *bound, TimestampTz moment)
{
	switch (bound->type)
	{
		case DATEOID:
			return DatumGetInt32(DirectFunctionCall2(date_cmp_timestamptz, bound->value,
													 TimestampTzGetDatum(moment)));
		case TIMESTAMPOID:
			return DatumGetInt32(DirectFunctionCall2(timestamp_cmp_timestamptz, bound->value,
													 TimestampTzGetDatum(moment)));
		default:
			return timestamp_cmp_internal(DatumGetTimestampTz(bound->value), moment);
	}
}

/* The integer of a bound that is a number */
int64
bound_number(const PartitionBound *bound)
{
	return bound->type == INT2OID ? DatumGetInt16(bound->value) :
		bound->type == INT4OID ? DatumGetInt32(bound->value) : DatumGetInt64(bound->value);
}

/* The sort key of the bounds of one policy: microseconds, or the number */
double
bound_order(const PartitionBound *bound)
{
	if (bound->kind != BOUND_VALUE)
		return 0;
	if (bound_is_number(bound))
		return bound_number(bound);
	return bound->type == DATEOID ? (double) DatumGetDateADT(bound->value) * USECS_PER_DAY :
		(double) DatumGetTimestampTz(bound->value);
}

/* The bound as its type prints it; the caller has set DateStyle. */
char *
bound_text(const PartitionBound *bound)
{
	if (bound_is_number(bound))
		return psprintf(INT64_FORMAT, bound_number(bound));
	return DatumGetCString(bound->type == DATEOID ? DirectFunctionCall1(date_out, bound->value) :
						   bound->type == TIMESTAMPOID ? DirectFunctionCall1(timestamp_out, bound->value) :
						   DirectFunctionCall1(timestamptz_out, bound->value));
}
