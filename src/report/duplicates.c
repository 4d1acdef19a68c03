/*-------------------------------------------------------------------------
 *
 * duplicates.c
 *	  Which index can stand in for another one.
 *
 * An index that the same queries can use, and that enforces no less.  Of two that are
 * alike the greater one is to be kept: the one that enforces more, that others rely
 * on, the constraint, the older one.
 *
 * Reads only catalogs, and takes no lock on the indexes or their table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "index_definition.h"
#include "relation_facts.h"
#include "report/report.h"

PG_FUNCTION_INFO_V1(index_mover_duplicate_of);

/* Reasons to keep an index, the strongest first */
enum
{
	KEEP_UNIQUE,
	KEEP_EXCLUSION,
	KEEP_AT_ONCE,				/* not deferrable */
	KEEP_NULLS_TOO,				/* NULLS NOT DISTINCT, or no nulls */
	KEEP_NEEDED,
	KEEP_CONSTRAINT,
	KEEP_REASONS
};

typedef struct Worth
{
	Oid			oid;
	Oid			table_oid;
	Oid			constraint;
	bool		valid;
	bool		keep[KEEP_REASONS];
} Worth;

/* Get why an index is to be kept; false if it does not exist. */
static bool
get_worth(Oid index_oid, Worth *worth)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index_oid));
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	worth->oid = index_oid;
	worth->table_oid = form->indrelid;
	worth->constraint = get_index_constraint(index_oid);
	worth->valid = form->indisvalid;
	worth->keep[KEEP_UNIQUE] = form->indisunique;
	worth->keep[KEEP_EXCLUSION] = form->indisexclusion;
	worth->keep[KEEP_AT_ONCE] = form->indimmediate && (form->indisunique || form->indisexclusion);
	worth->keep[KEEP_NULLS_TOO] = form->indnullsnotdistinct || form->indisprimary;
	worth->keep[KEEP_NEEDED] = form->indisclustered || form->indisprimary || form->indisreplident ||
		get_rel_relispartition(index_oid) || index_has_dependents(index_oid);
	worth->keep[KEEP_CONSTRAINT] = OidIsValid(worth->constraint);
	ReleaseSysCache(tuple);
	return true;
}

/* Return whether a is to be kept rather than b. */
static bool
is_kept_before(const Worth *a, const Worth *b)
{
	int			order = memcmp(a->keep, b->keep, sizeof(a->keep));

	return order != 0 ? order > 0 : a->oid < b->oid;
}

/* Return whether two constraints exclude by the same operators. */
static bool
same_exclusion(Oid a, Oid b)
{
	HeapTuple	x = SearchSysCache1(CONSTROID, ObjectIdGetDatum(a));
	HeapTuple	y = SearchSysCache1(CONSTROID, ObjectIdGetDatum(b));
	bool		result = false;

	if (HeapTupleIsValid(x) && HeapTupleIsValid(y))
	{
		bool		x_null;
		bool		y_null;
		Datum		x_operators = SysCacheGetAttr(CONSTROID, x, Anum_pg_constraint_conexclop, &x_null);
		Datum		y_operators = SysCacheGetAttr(CONSTROID, y, Anum_pg_constraint_conexclop, &y_null);

		result = !x_null && !y_null &&
			datumIsEqual(PointerGetDatum(DatumGetArrayTypeP(x_operators)),
						 PointerGetDatum(DatumGetArrayTypeP(y_operators)), false, -1);
	}
	if (HeapTupleIsValid(x))
		ReleaseSysCache(x);
	if (HeapTupleIsValid(y))
		ReleaseSysCache(y);
	return result;
}

/* Return whether "a" enforces no less than "b". */
static bool
enforces_as_much(const Worth *a, const Worth *b)
{
	return a->keep[KEEP_UNIQUE] >= b->keep[KEEP_UNIQUE] &&
		a->keep[KEEP_AT_ONCE] >= b->keep[KEEP_AT_ONCE] &&
		a->keep[KEEP_NULLS_TOO] >= b->keep[KEEP_NULLS_TOO] &&
		(!b->keep[KEEP_EXCLUSION] || same_exclusion(a->constraint, b->constraint));
}

/*
 * Return the index that can stand in for this one, which then is the one to drop;
 * InvalidOid if there is none.
 */
Oid
report_duplicate_of(Oid index_oid)
{
	Worth		mine;
	Worth		best = {InvalidOid};
	ListCell   *lc;

	if (!get_worth(index_oid, &mine) || !mine.valid || mine.keep[KEEP_NEEDED])
		return InvalidOid;
	foreach(lc, indexes_of_table(mine.table_oid))
	{
		Worth		other;

		if (lfirst_oid(lc) != index_oid && index_same_definition(lfirst_oid(lc), index_oid, false) &&
			get_worth(lfirst_oid(lc), &other) && other.valid &&
			is_kept_before(&other, &mine) && enforces_as_much(&other, &mine) &&
			(!OidIsValid(best.oid) || is_kept_before(&other, &best)))
			best = other;
	}
	return best.oid;
}

/*
 * index_mover.duplicate_of(index regclass) RETURNS regclass
 *
 * report_duplicate_of(), NULL for none.  EXECUTE: pg_monitor.
 */
Datum
index_mover_duplicate_of(PG_FUNCTION_ARGS)
{
	Oid			result = report_duplicate_of(PG_GETARG_OID(0));

	if (!OidIsValid(result))
		PG_RETURN_NULL();
	PG_RETURN_OID(result);
}
