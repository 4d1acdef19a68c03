/*-------------------------------------------------------------------------
 *
 * partition_bounds.c
 *	  The partitions with files below a relation, and where their ranges end.
 *
 * A bound is taken from the catalogs as it is stored, a constant with its type: no text of
 * it depends on settings, and no function of a type or an operator class is called.
 *
 * A child by inheritance has the range that its CHECK constraints say, as partitions had
 * before version 10 and chunks of TimescaleDB have: comparisons of a column with
 * constants by core's operators.  The expressions are read, and never evaluated.  A constraint that
 * is NOT ENFORCED, NOT VALID, or NO INHERIT, need not hold, or not for the tables below.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/transam.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_partitioned_table.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "nodes/nodeFuncs.h"
#include "nodes/parsenodes.h"
#include "nodes/primnodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "relation_facts.h"
#include "test_points.h"
#include "tier/tier_private.h"

/* The key of a partitioned table */
typedef struct RangeKey
{
	char	   *column;
	Oid			type;			/* no domain */
	KeyKind		kind;
} RangeKey;

/*
 * Return the type that a domain is over, or the type itself; 0 if it is gone, where core's
 * getBaseType() raises XX000.
 */
static Oid
base_type(Oid type)
{
	while (OidIsValid(type))
	{
		HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
		Form_pg_type form;
		bool		is_domain;
		Oid			base;

		if (!HeapTupleIsValid(tuple))
			break;
		form = (Form_pg_type) GETSTRUCT(tuple);
		is_domain = form->typtype == TYPTYPE_DOMAIN;
		base = form->typbasetype;
		ReleaseSysCache(tuple);
		if (!is_domain)
			return type;
		type = base;
	}
	return InvalidOid;
}

/*
 * Get the key of a partitioned table.  Its kind is KEY_OTHER unless that is a range of
 * a column, in the usual order of its type: by an operator class of a user's, ranges
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
	result.type = base_type(get_atttype(relid, attnum));
	if (!OidIsValid(result.type))
		return result;
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

/* Set where a range with this upper bound ends, which is of the key's type. */
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
 * the same column; then it counts if it ends earlier, or this has no bound.
 */
static void
read_bound(Oid relid, const RangeKey *key, const KeyMeaning *meaning, bool same_column,
		   PartitionLeaf *leaf)
{
	const PartitionLeaf above = *leaf;
	const PartitionBoundSpec *spec;
	PartitionRangeDatum *upper = NULL;
	const Const *bound = NULL;

	IM_POINT("partition-bound");
	spec = stored_bound(relid);
	if (spec != NULL && !spec->is_default)
		upper = linitial_node(PartitionRangeDatum, spec->upperdatums);
	if (upper != NULL && upper->kind == PARTITION_RANGE_DATUM_VALUE)
		bound = castNode(Const, upper->value);

	/*
	 * Detached just now, and perhaps attached elsewhere: nothing is locked,
	 * so only the type that is stored with the bound says what it is.
	 */
	if (spec == NULL || (bound != NULL && base_type(bound->consttype) != key->type))
		return;
	leaf->column = key->column;
	leaf->kind = key->kind;
	if (bound != NULL)
	{
		set_end(leaf, key, meaning, bound->constvalue);
		if (same_column && above.why_none == NULL &&
			(leaf->why_none != NULL || above.end < leaf->end))
			*leaf = above;
	}
	else if (!same_column)
	{
		leaf->text = NULL;
		/* MINVALUE ends nothing that could have rows */
		leaf->why_none = spec->is_default ? "the default partition has no bound" :
			"the partition has no upper bound";
	}
}

/* CHECK constraints */

/* Where the rows of a table end by its constraints */
typedef struct CheckEnds
{
	Oid			relid;
	const KeyMeaning *meaning;
	PartitionLeaf *leaf;
	const char *why_not;		/* why the constraint being read is ignored */
	const char *ignored;		/* why one with an end was; NULL = none was */
	bool		several;		/* columns, of which as much is known */
} CheckEnds;

/* Return how long a key lasts, in microseconds, or more: at least a day. */
static int64
length_of_key(const KeyMeaning *meaning)
{
	double		micros;

	if (meaning->unit == KEY_UNIT_YYYYMM)
		return 31 * USECS_PER_DAY;
	if (meaning->unit != KEY_UNIT_RATE)
		return USECS_PER_DAY;
	micros = USECS_PER_SEC /
		DatumGetFloat8(DirectFunctionCall1(numeric_float8, NumericGetDatum(meaning->per_second)));
	if (!(micros < (double) (END_TIMESTAMP / 2)))
		return END_TIMESTAMP / 2;
	return Max((int64) ceil(micros), USECS_PER_DAY);
}

/*
 * Take an upper bound of a column: of several bounds of a column the first end, of several
 * columns the bound of which most is known.
 */
static void
take_end(CheckEnds *ends, const Var *var, const Const *bound, bool inclusive)
{
	PartitionLeaf *leaf = ends->leaf;
	RangeKey	key = {.type = base_type(bound->consttype)};
	PartitionLeaf found = *leaf;
	bool		same_column;

	key.kind = key_kind(key.type, ends->meaning);
	key.column = get_attname(ends->relid, var->varattno, true);
	if (key.kind == KEY_OTHER || bound->constisnull || key.column == NULL)
		return;
	if (ends->why_not != NULL)
	{
		ends->ignored = ends->why_not;
		return;
	}
	same_column = leaf->column != NULL && strcmp(leaf->column, key.column) == 0;
	if (!same_column && key.kind < leaf->kind)
		return;
	if (!same_column)
		ends->several = leaf->kind == key.kind;
	found.column = key.column;
	found.kind = key.kind;
	found.why_none = NULL;
	set_end(&found, &key, ends->meaning, bound->constvalue);
	if (inclusive && found.why_none == NULL && !TIMESTAMP_NOT_FINITE(found.end))
	{
		int64		lasts = length_of_key(ends->meaning);

		if (found.end < END_TIMESTAMP - lasts)
			found.end += lasts;
		else
			found.end = DT_NOEND;
	}
	if (same_column && leaf->why_none == NULL &&
		(found.why_none != NULL || leaf->end <= found.end))
		return;
	*leaf = found;
}

/* Return the strategy of an operator of core's by which a type is sorted, 0 if it is none. */
static int
strategy_of(Oid operator, Oid type)
{
	Oid			operator_class = InvalidOid;

	if (operator < FirstUnpinnedObjectId && OidIsValid(type))
		operator_class = GetDefaultOpClass(type, BTREE_AM_OID);
	if (!OidIsValid(operator_class))
		return 0;
	return get_op_opfamily_strategy(operator, get_opclass_family(operator_class));
}

/* Take the upper bounds in a condition: a comparison, or several with AND. */
static void
read_condition(CheckEnds *ends, Node *node)
{
	OpExpr	   *comparison;
	Node	   *left;
	Node	   *right;
	bool		turned;
	int			strategy;

	check_stack_depth();
	if (is_andclause(node))
	{
		foreach_ptr(Node, part, ((BoolExpr *) node)->args)
		{
			read_condition(ends, part);
		}
		return;
	}
	if (!IsA(node, OpExpr) || list_length(((OpExpr *) node)->args) != 2)
		return;
	comparison = (OpExpr *) node;
	left = strip_implicit_coercions(linitial(comparison->args));
	right = strip_implicit_coercions(lsecond(comparison->args));
	turned = IsA(left, Const);
	if (turned)
	{
		Node	   *other = left;

		left = right;
		right = other;
	}
	if (!IsA(left, Var) || !IsA(right, Const))
		return;
	strategy = strategy_of(comparison->opno, base_type(((Var *) left)->vartype));
	if (strategy == (turned ? BTGreaterStrategyNumber : BTLessStrategyNumber))
		take_end(ends, (Var *) left, (Const *) right, false);
	else if (strategy == (turned ? BTGreaterEqualStrategyNumber : BTLessEqualStrategyNumber) ||
			 strategy == BTEqualStrategyNumber)
		take_end(ends, (Var *) left, (Const *) right, true);
}

static PartitionLeaf
no_range(const char *why)
{
	PartitionLeaf result = {.kind = KEY_OTHER,.why_none = why};

	return result;
}

/*
 * Return why a CHECK constraint does not tell where rows end, NULL if it does.  A constraint
 * that is NOT ENFORCED is not validated, either.
 */
static const char *
why_check_is_ignored(Form_pg_constraint form)
{
	if (!IM_IS_ENFORCED(form))
		return "the CHECK constraint of its range is NOT ENFORCED";
	if (!form->convalidated)
		return "the CHECK constraint of its range is NOT VALID";
	if (form->connoinherit)
		return "the CHECK constraint of its range is NO INHERIT";
	return NULL;
}

/* Set where the rows of a child by inheritance end, by its CHECK constraints. */
static void
read_checks(Oid relid, const KeyMeaning *meaning, PartitionLeaf *leaf)
{
	CheckEnds	ends = {.relid = relid,.meaning = meaning,.leaf = leaf};

	*leaf = no_range("no CHECK constraint says where its rows end");
	foreach_ptr(HeapTupleData, row,
				catalog_rows(ConstraintRelationId, ConstraintRelidTypidNameIndexId,
							 Anum_pg_constraint_conrelid, relid, 0, InvalidOid))
	{
		Form_pg_constraint form = (Form_pg_constraint) GETSTRUCT(row);
		Datum		condition;
		bool		isnull;

		if (form->contype != CONSTRAINT_CHECK)
			continue;
		condition = SysCacheGetAttr(CONSTROID, row, Anum_pg_constraint_conbin, &isnull);
		ends.why_not = why_check_is_ignored(form);
		if (!isnull)
			read_condition(&ends, stringToNode(TextDatumGetCString(condition)));
	}
	if (ends.several)
		*leaf = no_range("its CHECK constraints end the ranges of several columns");
	else if (leaf->kind == KEY_OTHER && ends.ignored != NULL)
		leaf->why_none = ends.ignored;
}

static bool
has_leaf(const List *leaves, Oid relid)
{
	foreach_ptr(const PartitionLeaf, leaf, leaves)
	{
		if (leaf->relid == relid)
			return true;
	}
	return false;
}

/*
 * Add the relations with files from this down to a list of PartitionLeaf; above:
 * the bound that counts so far.  The highest level counts of those of whose keys most is known
 * (KeyKind), or a lower level of the same column.  Two columns whose keys have the policy's
 * unit have no end: the policy does not say which one it means.
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
	if (relkind == RELKIND_MATVIEW)
		return lappend(leaves, leaf);
	if (relkind == RELKIND_RELATION)
	{
		List	   *children = children_of(relid, false);

		leaves = lappend(leaves, leaf);
		if (children != NIL && leaf->why_none != NULL)
		{
			/* as a partition without a bound */
			leaf->kind = KEY_TIME;
			leaf->text = NULL;
			leaf->why_none = "it is the parent of the tables with ranges";
		}
		foreach_oid(child, children)
		{
			PartitionLeaf range;

			/* it may have several parents */
			if (has_leaf(leaves, child))
				continue;
			read_checks(child, meaning, &range);
			leaves = add_leaves(leaves, child, meaning, &range);
		}
		return leaves;
	}
	if (relkind != RELKIND_PARTITIONED_TABLE)
		return leaves;

	key = range_key(relid, meaning);
	same_column = key.kind != KEY_OTHER && key.kind == above->kind &&
		strcmp(key.column, above->column) == 0;
	foreach_oid(child, children_of(relid, false))
	{
		*leaf = *above;
		if (!same_column && key.kind == KEY_WITH_UNIT &&
			(above->kind == KEY_WITH_UNIT || above->several))
		{
			*leaf = no_range("keys of several columns end its ranges");
			leaf->several = true;
		}
		else if (same_column || key.kind > above->kind)
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
