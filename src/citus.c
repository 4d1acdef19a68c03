/*-------------------------------------------------------------------------
 *
 * citus.c
 *	  Citus: where its calls come from, and which tables have shards.
 *
 * Nothing here needs Citus: its catalogs are looked up by name in pg_catalog,
 * where only a superuser can make a table, and read as tables of that shape
 * only.
 *
 * Locks: AccessShareLock on a catalog of Citus while it is read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "citus.h"

/* Of a global process ID, the rest is the process ID. */
#define PIDS_OF_NODE	UINT64CONST(10000000000)

/*
 * Return the global process ID of the session behind the connection of Citus's
 * that this session is; 0 if it is none.
 */
static uint64
caller_gpid(void)
{
	static const char *const prefixes[] = {"citus_run_command gpid=", "citus_internal gpid="};

	for (int i = 0; i < lengthof(prefixes); i++)
		if (strncmp(application_name, prefixes[i], strlen(prefixes[i])) == 0)
			return strtoull(application_name + strlen(prefixes[i]), NULL, 10);
	return 0;
}

/*
 * Read the first ncolumns (at most two) columns of a row of a catalog of Citus,
 * which must be of these types: the row whose first column is *first, or any row
 * if that is NULL.  Returns false if there is no such catalog or row.
 */
static bool
read_catalog(const char *name, const Oid *types, int ncolumns, const Datum *first,
			 Datum *values)
{
	Oid			oid = get_relname_relid(name, PG_CATALOG_NAMESPACE);
	Relation	rel = OidIsValid(oid) ? try_table_open(oid, AccessShareLock) : NULL;
	TupleDesc	desc;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	if (rel == NULL)
		return false;
	desc = RelationGetDescr(rel);
	for (int i = 0; i < ncolumns; i++)
		if (rel->rd_rel->relkind != RELKIND_RELATION || i >= desc->natts ||
			TupleDescAttr(desc, i)->atttypid != types[i])
		{
			table_close(rel, AccessShareLock);
			return false;
		}

	if (first != NULL)
		ScanKeyInit(&key, 1, BTEqualStrategyNumber,
					types[0] == INT4OID ? F_INT4EQ : F_OIDEQ, *first);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, first != NULL ? 1 : 0, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull[2] = {false, false};

		for (int i = 0; i < ncolumns; i++)
			values[i] = heap_getattr(tuple, i + 1, desc, &isnull[i]);
		found = !isnull[0] && !isnull[1];
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Return whether Citus has made this connection, from a node to a node. */
bool
citus_has_sent_us(void)
{
	return caller_gpid() != 0;
}

/*
 * Return the process of this server that has sent the command of this session
 * through a connection of Citus's, and waits for its end; 0 if there is none, or
 * if it is on another node.
 */
int
citus_caller_pid(void)
{
	static const Oid int4s[] = {INT4OID, INT4OID};
	uint64		gpid = caller_gpid();
	Datum		our_group;
	Datum		node[2];
	Datum		node_id = Int32GetDatum((int32) (gpid / PIDS_OF_NODE));

	if (gpid == 0 ||
		!read_catalog("pg_dist_local_group", int4s, 1, NULL, &our_group) ||
		!read_catalog("pg_dist_node", int4s, 2, &node_id, node) ||
		DatumGetInt32(node[1]) != DatumGetInt32(our_group))
		return 0;
	return (int) (gpid % PIDS_OF_NODE);
}

/* Return whether the table's rows are in shards, which are other tables. */
bool
citus_distributes(Oid relid)
{
	static const Oid regclass[] = {REGCLASSOID};
	Datum		key = ObjectIdGetDatum(relid);
	Datum		found;

	return read_catalog("pg_dist_partition", regclass, 1, &key, &found);
}
