/*-------------------------------------------------------------------------
 *
 * index_definition.c
 *	  Which indexes are alike.
 *
 * Reads only catalogs, and takes no lock on the indexes or their table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "nodes/nodes.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/syscache.h"

#include "index_definition.h"
#include "relation_facts.h"

/*
 * Compare a column of two catalog rows.  as_nodes: compare expressions,
 * whose text contains their location in the statement.
 */
static bool
same_column(int cache, HeapTuple a, HeapTuple b, AttrNumber column, bool as_nodes)
{
	bool		a_null;
	bool		b_null;
	Datum		a_value = SysCacheGetAttr(cache, a, column, &a_null);
	Datum		b_value = SysCacheGetAttr(cache, b, column, &b_null);

	if (a_null || b_null)
		return a_null && b_null;
	if (as_nodes)
		return equal(stringToNode(TextDatumGetCString(a_value)),
					 stringToNode(TextDatumGetCString(b_value)));
	return datumIsEqual(PointerGetDatum(PG_DETOAST_DATUM(a_value)),
						PointerGetDatum(PG_DETOAST_DATUM(b_value)), false, -1);
}

/* a further column may define an index, too */
StaticAssertDecl(Natts_pg_index == 21, "same_rows() does not know all columns of pg_index");

/*
 * Compare two rows of a cache in the columns that define an index, also in the rules that it
 * enforces.
 */
static bool
same_rows(int cache, HeapTuple a, HeapTuple b, bool rules)
{
	Form_pg_class class_a;
	Form_pg_class class_b;
	Form_pg_index x;
	Form_pg_index y;

	switch (cache)
	{
		case RELOID:
			class_a = (Form_pg_class) GETSTRUCT(a);
			class_b = (Form_pg_class) GETSTRUCT(b);
			return class_a->relam == class_b->relam && class_a->relkind == class_b->relkind &&
				same_column(cache, a, b, Anum_pg_class_reloptions, false);
		case ATTNUM:
			/* parameters of operator classes */
			return same_column(cache, a, b, Anum_pg_attribute_attoptions, false);
		case CONSTROID:
			return same_column(cache, a, b, Anum_pg_constraint_conexclop, false);
		default:
			x = (Form_pg_index) GETSTRUCT(a);
			y = (Form_pg_index) GETSTRUCT(b);
			if (rules && (x->indisunique != y->indisunique ||
						  x->indnullsnotdistinct != y->indnullsnotdistinct))
				return false;
			return x->indrelid == y->indrelid && x->indnatts == y->indnatts &&
				x->indnkeyatts == y->indnkeyatts &&
				same_column(cache, a, b, Anum_pg_index_indkey, false) &&
				same_column(cache, a, b, Anum_pg_index_indcollation, false) &&
				same_column(cache, a, b, Anum_pg_index_indclass, false) &&
				same_column(cache, a, b, Anum_pg_index_indoption, false) &&
				same_column(cache, a, b, Anum_pg_index_indexprs, true) &&
				same_column(cache, a, b, Anum_pg_index_indpred, true);
	}
}

/*
 * Compare two rows of a cache by their keys; column is the second key if the
 * cache has two.  Returns false if a row does not exist.
 */
static bool
same_in(int cache, Oid a, Oid b, int16 column, bool rules)
{
	HeapTuple	x = SearchSysCache(cache, ObjectIdGetDatum(a), Int16GetDatum(column), 0, 0);
	HeapTuple	y = SearchSysCache(cache, ObjectIdGetDatum(b), Int16GetDatum(column), 0, 0);
	bool		result = HeapTupleIsValid(x) && HeapTupleIsValid(y) &&
		same_rows(cache, x, y, rules);

	if (HeapTupleIsValid(x))
		ReleaseSysCache(x);
	if (HeapTupleIsValid(y))
		ReleaseSysCache(y);
	return result;
}

/*
 * Return whether two indexes of a table are equal except for name and
 * tablespace and, without rules, for the constraints that they enforce.
 */
bool
index_same_definition(Oid a, Oid b, bool rules)
{
	int			n = 1;

	if (!same_in(INDEXRELID, a, b, 0, rules) || !same_in(RELOID, a, b, 0, rules))
		return false;
	for (; SearchSysCacheExists2(ATTNUM, ObjectIdGetDatum(a), Int16GetDatum(n)); n++)
	{
		if (!same_in(ATTNUM, a, b, n, rules))
			return false;
	}
	return n > 1;
}

/* Return whether two constraints, of which b is an exclusion constraint, exclude by the same operators. */
bool
index_same_exclusion(Oid a, Oid b)
{
	return same_in(CONSTROID, a, b, 0, true);
}

/* Return whether another object depends on the index: a foreign key, for example. */
bool
index_has_dependents(Oid index_oid)
{
	return catalog_rows(DependRelationId, DependReferenceIndexId,
						Anum_pg_depend_refclassid, RelationRelationId,
						Anum_pg_depend_refobjid, index_oid) != NIL;
}
