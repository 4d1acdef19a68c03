/*-------------------------------------------------------------------------
 *
 * duplicates.c
 *	  Which index is needed, and which can stand in for another: one that the
 *	  same queries can use, and that enforces no less.
 *
 * Reads only catalogs, and takes no lock on the indexes or their table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/pg_index.h"
#include "nodes/nodes.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "index_definition.h"
#include "relation_facts.h"
#include "report/report.h"

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
	bool		keep[KEEP_REASONS];
	List	   *nodes;			/* expressions and predicate, or NULL */
} Worth;

/* Get why an index is to be kept; false if there is no valid reason. */
static bool
get_worth(Oid index_oid, Worth *worth)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index_oid));
	Form_pg_index form;
	bool		valid;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		return false;
	worth->nodes = NIL;
	for (AttrNumber column = Anum_pg_index_indexprs; column <= Anum_pg_index_indpred; column++)
	{
		Datum		value = SysCacheGetAttr(INDEXRELID, tuple, column, &isnull);

		void	   *node = isnull ? NULL : stringToNode(TextDatumGetCString(value));

		worth->nodes = lappend(worth->nodes, node);
	}
	form = (Form_pg_index) GETSTRUCT(tuple);
	worth->oid = index_oid;
	worth->table_oid = form->indrelid;
	worth->constraint = get_index_constraint(index_oid);
	valid = form->indisvalid;
	worth->keep[KEEP_UNIQUE] = form->indisunique;
	worth->keep[KEEP_EXCLUSION] = form->indisexclusion;
	worth->keep[KEEP_AT_ONCE] = form->indimmediate && (form->indisunique || form->indisexclusion);
	worth->keep[KEEP_NULLS_TOO] = form->indnullsnotdistinct || form->indisprimary;
	worth->keep[KEEP_NEEDED] = form->indisclustered || form->indisprimary || form->indisreplident ||
		get_rel_relispartition(index_oid) || index_has_dependents(index_oid);
	worth->keep[KEEP_CONSTRAINT] = OidIsValid(worth->constraint);
	ReleaseSysCache(tuple);
	return valid;
}

/* Return whether it is a valid index that no constraint or other object relies on. */
bool
report_is_spare(Oid index_oid)
{
	Worth		worth;

	return get_worth(index_oid, &worth) && !worth.keep[KEEP_EXCLUSION] &&
		!worth.keep[KEEP_NEEDED] && !worth.keep[KEEP_CONSTRAINT];
}

/* Indexes that are to be kept come first. */
static int
compare_worth(const ListCell *a, const ListCell *b)
{
	const Worth *x = lfirst(a);
	const Worth *y = lfirst(b);
	int			order = memcmp(y->keep, x->keep, sizeof(x->keep));

	if (order != 0)
		return order;
	return x->oid < y->oid ? -1 : 1;
}

/* Return whether "a" enforces no less than "b". */
static bool
enforces_as_much(const Worth *a, const Worth *b)
{
	return a->keep[KEEP_UNIQUE] >= b->keep[KEEP_UNIQUE] &&
		a->keep[KEEP_AT_ONCE] >= b->keep[KEEP_AT_ONCE] &&
		a->keep[KEEP_NULLS_TOO] >= b->keep[KEEP_NULLS_TOO] &&
		(!b->keep[KEEP_EXCLUSION] || index_same_exclusion(a->constraint, b->constraint));
}

/*
 * Return the index that can stand in for it, which then is the index to drop;
 * InvalidOid if there is none.  *worths is first NIL, and then of the table asked for
 * last, in the context: a table can have a thousand indexes, and all may be asked for.
 */
Oid
report_duplicate_of(Oid index_oid, List **worths, MemoryContext context)
{
	Worth		mine;

	if (!get_worth(index_oid, &mine) || mine.keep[KEEP_NEEDED])
		return InvalidOid;
	if (*worths == NIL || ((Worth *) linitial(*worths))->table_oid != mine.table_oid)
	{
		list_free_deep(*worths);
		*worths = NIL;
		foreach_oid(oid, indexes_of_table(mine.table_oid))
		{
			MemoryContext oldcontext = MemoryContextSwitchTo(context);
			Worth	   *worth = palloc_object(Worth);

			if (get_worth(oid, worth))
				*worths = lappend(*worths, worth);
			MemoryContextSwitchTo(oldcontext);
		}
		list_sort(*worths, compare_worth);
	}
	foreach_ptr(const Worth, other, *worths)
	{
		if (other->oid == index_oid)
			break;
		if (enforces_as_much(other, &mine) && equal(other->nodes, mine.nodes) &&
			index_same_definition(other->oid, index_oid, false))
			return other->oid;
	}
	return InvalidOid;
}
