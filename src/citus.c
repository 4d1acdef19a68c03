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

#include "access/htup_details.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "citus.h"
#include "relation_facts.h"

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
	{
		if (strncmp(application_name, prefixes[i], strlen(prefixes[i])) == 0)
			return strtoull(application_name + strlen(prefixes[i]), NULL, 10);
	}
	return 0;
}

/*
 * Return the rows of a catalog of Citus whose first column is this number, or all
 * if it is 0; none if there is no such table, or its first columns are not of the
 * type.
 */
static List *
citus_rows(const char *name, int ncolumns, Oid type, uint32 first)
{
	Oid			catalog = get_relname_relid(name, PG_CATALOG_NAMESPACE);

	if (get_rel_relkind(catalog) != RELKIND_RELATION)
		return NIL;
	for (int i = 1; i <= ncolumns; i++)
	{
		if (get_atttype(catalog, i) != type)
			return NIL;
	}
	return catalog_rows(catalog, InvalidOid, first != 0 ? 1 : 0, first, 0, InvalidOid);
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
	uint64		gpid = caller_gpid();

	if (gpid < PIDS_OF_NODE)
		return 0;
	foreach_ptr(HeapTupleData, ours, citus_rows("pg_dist_local_group", 1, INT4OID, 0))
	{
		uint32		number = gpid / PIDS_OF_NODE;

		foreach_ptr(HeapTupleData, node, citus_rows("pg_dist_node", 2, INT4OID, number))
		{
			if (!heap_attisnull(ours, 1, NULL) && !heap_attisnull(node, 2, NULL) &&
				((int32 *) GETSTRUCT(node))[1] == ((int32 *) GETSTRUCT(ours))[0])
				return (int) (gpid % PIDS_OF_NODE);
		}
	}
	return 0;
}

/* Return whether the table's rows are in shards, which are other tables. */
bool
citus_distributes(Oid relid)
{
	return citus_rows("pg_dist_partition", 1, REGCLASSOID, relid) != NIL;
}
