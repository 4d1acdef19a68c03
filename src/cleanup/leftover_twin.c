/*-------------------------------------------------------------------------
 *
 * leftover_twin.c
 *	  Is this valid index a leftover of ours, which somebody's DDL has repaired?
 *
 * Commands that write a table or all its indexes anew (TRUNCATE, CLUSTER, VACUUM
 * FULL, REINDEX TABLE, many forms of ALTER TABLE) don't ask whether an index is
 * valid: the unfinished index of an interrupted rebuild comes out as a valid
 * one, a duplicate that costs writers time for ever.  ALTER TABLE .. TYPE even
 * drops it and makes another one with its name.
 *
 * It is ours to remove as long as nobody can have begun to rely on it: it has
 * the name that REINDEX CONCURRENTLY has given it, its definition is that of the
 * index beside it, which is valid, and there is nothing that depends on it, no
 * constraint, clustering, replica identity or partitioned index above it.  It is
 * known by its OID.  Where that is gone it must have the very name that we have
 * made, and have been made by the same transaction as the index beside it; no
 * user makes two equal indexes at once, one of them called x_ccnew.
 *
 * Locking: none; everything comes from the system caches, so that whoever has
 * the table locked is not waited for.  The caller asks again under locks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "nodes/nodes.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "cleanup/leftover_twin.h"

bool
is_reindex_leftover_name(const char *name)
{
	int			len = strlen(name);

	while (len > 0 && name[len - 1] >= '0' && name[len - 1] <= '9')
		len--;
	return len > 6 && (strncmp(name + len - 6, "_ccnew", 6) == 0 ||
					   strncmp(name + len - 6, "_ccold", 6) == 0);
}

/*
 * Is this column of two catalog rows the same?  as_nodes: compare expressions,
 * which know at which place of which statement they were written.
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

/* Have two rows of a cache the same in the columns that make up an index? */
static bool
same_rows(int cache, HeapTuple a, HeapTuple b)
{
	Form_pg_index x;
	Form_pg_index y;

	switch (cache)
	{
		case RELOID:
			return ((Form_pg_class) GETSTRUCT(a))->relam == ((Form_pg_class) GETSTRUCT(b))->relam &&
				((Form_pg_class) GETSTRUCT(a))->relkind == ((Form_pg_class) GETSTRUCT(b))->relkind &&
				same_column(cache, a, b, Anum_pg_class_reloptions, false);
		case ATTNUM:
			/* parameters of operator classes */
			return same_column(cache, a, b, Anum_pg_attribute_attoptions, false);
		default:
			x = (Form_pg_index) GETSTRUCT(a);
			y = (Form_pg_index) GETSTRUCT(b);
			return x->indrelid == y->indrelid && x->indnatts == y->indnatts &&
				x->indnkeyatts == y->indnkeyatts && x->indisunique == y->indisunique &&
				x->indnullsnotdistinct == y->indnullsnotdistinct &&
				same_column(cache, a, b, Anum_pg_index_indkey, false) &&
				same_column(cache, a, b, Anum_pg_index_indcollation, false) &&
				same_column(cache, a, b, Anum_pg_index_indclass, false) &&
				same_column(cache, a, b, Anum_pg_index_indoption, false) &&
				same_column(cache, a, b, Anum_pg_index_indexprs, true) &&
				same_column(cache, a, b, Anum_pg_index_indpred, true);
	}
}

/*
 * The same for the rows with these keys, column being the second one if the
 * cache has two; false if one of the rows is not there.
 */
static bool
same_in(int cache, Oid a, Oid b, int16 column)
{
	HeapTuple	x = SearchSysCache(cache, ObjectIdGetDatum(a), Int16GetDatum(column), 0, 0);
	HeapTuple	y = SearchSysCache(cache, ObjectIdGetDatum(b), Int16GetDatum(column), 0, 0);
	bool		result = HeapTupleIsValid(x) && HeapTupleIsValid(y) &&
		same_rows(cache, x, y);

	if (HeapTupleIsValid(x))
		ReleaseSysCache(x);
	if (HeapTupleIsValid(y))
		ReleaseSysCache(y);
	return result;
}

/* Are two indexes made in the same way, name, tablespace and place apart? */
static bool
same_definition(Oid a, Oid b)
{
	HeapTuple	tuple;
	int			natts;
	int			n;

	if (!same_in(INDEXRELID, a, b, 0) || !same_in(RELOID, a, b, 0))
		return false;
	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(a));
	if (!HeapTupleIsValid(tuple))
		return false;
	natts = ((Form_pg_index) GETSTRUCT(tuple))->indnatts;
	ReleaseSysCache(tuple);
	for (n = 1; n <= natts; n++)
		if (!same_in(ATTNUM, a, b, n))
			return false;
	return true;
}

/* Does anything depend on this index? */
static bool
has_dependents(Oid index_oid)
{
	Relation	rel = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	bool		result;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(index_oid));
	scan = systable_beginscan(rel, DependReferenceIndexId, true, NULL, 2, keys);
	result = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Is it an index like any other, that nothing and nobody has a use for? */
static bool
is_used_by_nobody(Oid index_oid)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index_oid));
	Form_pg_index row;
	bool		plain;

	if (!HeapTupleIsValid(tuple))
		return false;
	row = (Form_pg_index) GETSTRUCT(tuple);
	plain = row->indisvalid && !row->indisprimary && !row->indisexclusion &&
		!row->indisclustered && !row->indisreplident;
	ReleaseSysCache(tuple);
	return plain && !get_rel_relispartition(index_oid) &&
		!OidIsValid(get_index_constraint(index_oid)) && !has_dependents(index_oid);
}

static bool
has_name(Oid relid, const char *name)
{
	char	   *real_name = get_rel_name(relid);

	return real_name != NULL && strcmp(real_name, name) == 0;
}

Oid
leftover_twin(const LedgerEntry *entry, Oid *keeper)
{
	Oid			twin = entry->new_index_oid;
	char	   *name;

	*keeper = entry->index_oid;
	if (entry->kind == LEDGER_INDEX && !has_name(twin, NameStr(entry->new_name)))
	{
		/* swapped already, so it is the old one that has such a name */
		twin = entry->index_oid;
		*keeper = entry->new_index_oid;
	}
	name = get_rel_name(twin);
	if (name != NULL && is_reindex_leftover_name(name) &&
		is_used_by_nobody(twin) && same_definition(twin, *keeper))
		return twin;
	return InvalidOid;
}

/* The transaction that has made an index, as its row in pg_index says. */
static TransactionId
made_by(Oid index_oid)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index_oid));
	TransactionId result = InvalidTransactionId;

	if (HeapTupleIsValid(tuple))
	{
		result = HeapTupleHeaderGetRawXmin(tuple->t_data);
		ReleaseSysCache(tuple);
	}
	return result;
}

Oid
leftover_twin_made_anew(const LedgerEntry *entry, Oid *keeper)
{
	Oid			twin = get_relname_relid(NameStr(entry->new_name),
										 get_rel_namespace(entry->heap_oid));
	Relation	pg_index;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	TransactionId xid = made_by(twin);

	*keeper = InvalidOid;
	if (!OidIsValid(twin) || !TransactionIdIsValid(xid) || !is_used_by_nobody(twin) ||
		!is_reindex_leftover_name(NameStr(entry->new_name)))
		return InvalidOid;

	ScanKeyInit(&key, Anum_pg_index_indrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(entry->heap_oid));
	pg_index = table_open(IndexRelationId, AccessShareLock);
	scan = systable_beginscan(pg_index, IndexIndrelidIndexId, true, NULL, 1, &key);
	while (!OidIsValid(*keeper) && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_index row = (Form_pg_index) GETSTRUCT(tuple);

		if (row->indexrelid != twin && row->indisvalid &&
			HeapTupleHeaderGetRawXmin(tuple->t_data) == xid &&
			same_definition(row->indexrelid, twin))
			*keeper = row->indexrelid;
	}
	systable_endscan(scan);
	table_close(pg_index, AccessShareLock);
	return OidIsValid(*keeper) ? twin : InvalidOid;
}
