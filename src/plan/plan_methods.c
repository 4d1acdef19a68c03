/*-------------------------------------------------------------------------
 *
 * plan_methods.c
 *	  Which relations the methods copy and rebuild are able to move.
 *
 * Copy follows the WAL to learn which blocks change while it copies them.  That
 * assumes that each change is logged in a record that names the block: a property
 * of the access method, so there is a list.  Rebuild is core's REINDEX
 * CONCURRENTLY and has core's limits.
 *
 * Facts may be outdated if the caller does not hold a lock on the relation;
 * plan_recheck() repeats the checks of facts that can change.
 *
 * An access method is identified by its handler function, not by its name:
 * any name is available to a user who may create an access method.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/smgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "test_points.h"

/* For the tests, see test_points.c */
#define OTHER_STORAGE	IM_MUTATION("other-storage")

/*
 * Libraries and handlers of extensions that log each change of a block by generic
 * WAL records, and a whole build by page images (t/027_copy_access_methods.pl).  bloom
 * and RUM would do, too: no user has asked for them.
 */
static const char *const extension_handlers[] = {
	"$libdir/vector hnswhandler",
	"$libdir/vector ivfflathandler",
};

static Oid
handler_of(Oid am)
{
	HeapTuple	tuple = SearchSysCache1(AMOID, ObjectIdGetDatum(am));
	Oid			handler = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		handler = ((Form_pg_am) GETSTRUCT(tuple))->amhandler;
		ReleaseSysCache(tuple);
	}
	return handler;
}

/* Return whether the WAL names the block of every change by this method. */
static bool
access_method_is_copyable(Oid am, const char *am_name)
{
	Oid			handler = handler_of(am);
	char	   *library;
	char	   *function;

	switch (handler)
	{
		case InvalidOid:
			return false;
		case F_BTHANDLER:
		case F_HASHHANDLER:
		case F_GISTHANDLER:
		case F_GINHANDLER:
		case F_SPGHANDLER:
		case F_BRINHANDLER:
		case F_HEAP_TABLEAM_HANDLER:
			return true;
		default:
			if (!SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(handler)))
				return false;	/* just dropped */
			fmgr_symbol(handler, &library, &function);
			if (library != NULL)
			{
				char	   *symbol = psprintf("%s %s", library, function);

				for (int i = 0; i < lengthof(extension_handlers); i++)
				{
					if (strcmp(extension_handlers[i], symbol) == 0)
						return true;
				}
			}
			return IM_COPIES(am_name);
	}
}

/*
 * Return why method copy cannot move this relation, a clause ("the index is
 * unlogged, ..."); NULL if it can.  Needs no locks or privileges.
 */
const char *
copy_hindrance(const RelationFacts *facts)
{
	const char *noun = relation_noun(facts->relkind);
	bool		is_index = relkind_is_index(facts->relkind);
	char	   *am_name = get_am_name(facts->relam);
	RelFileLocator file = make_locator(facts->tablespace, MyDatabaseId, facts->relfilenumber);

	if (facts->persistence == RELPERSISTENCE_UNLOGGED)
		return psprintf("the %s is unlogged, so no WAL tells which of its blocks change", noun);
	if (facts->persistence != RELPERSISTENCE_PERMANENT)
		return psprintf("the %s is temporary", noun);
	if (!access_method_is_copyable(facts->relam, am_name))
	{
		if (am_name == NULL)
			am_name = "?";
		if (is_index)
			return psprintf("access method \"%s\" is not known to name every changed block in the WAL",
							am_name);
		return psprintf("table access method \"%s\" is not \"heap\"", am_name);
	}
	if (OTHER_STORAGE || (RelFileNumberIsValid(file.relNumber) &&
						  smgropen(file, INVALID_PROC_NUMBER)->smgr_which != 0))
		return psprintf("the storage manager of the %s is not PostgreSQL's own, and may encrypt what a copy reads and writes past it",
						noun);
	return NULL;
}

/*
 * Return why core's REINDEX INDEX CONCURRENTLY (TABLESPACE ...) cannot move this
 * index.  Otherwise as copy_hindrance().
 */
const char *
rebuild_hindrance(const RelationFacts *facts)
{
	if (facts->exclusion)
		return "REINDEX CONCURRENTLY does not support exclusion constraints";
	if (IsToastNamespace(facts->schema_oid))
		return "REINDEX cannot move the indexes of TOAST tables";
	if (facts->unique && !facts->immediate &&
		strtol(GetConfigOption("server_version_num", false, false),
			   NULL, 10) < REINDEX_KEEPS_DEFERRABLE_SINCE)
		return psprintf("while REINDEX CONCURRENTLY runs, this server (%s) would enforce the deferrable constraint at once, which a later minor version has cured",
						GetConfigOption("server_version", false, false));
	return NULL;
}

/*
 * Return whether a crash after the move of this index would be fatal, because
 * full_page_writes is off.
 *
 * A move removes a file that WAL since the last checkpoint has changed, as do DROP
 * INDEX and REINDEX.  Recovery skips changes of missing blocks that are no full images,
 * but brin_xlog_insert_update() asks for the block number of the buffer it has not got.
 * Since 16, where GetBufferDescriptor() takes an unsigned number, that is a segmentation
 * fault, again at each start.  We see only the current setting, not the one since the
 * checkpoint.
 */
bool
recovery_needs_full_pages(const RelationFacts *facts)
{
	return BRIN_REDO_NEEDS_BUFFER && !fullPageWrites && facts->relkind == RELKIND_INDEX &&
		facts->persistence == RELPERSISTENCE_PERMANENT && handler_of(facts->relam) == F_BRINHANDLER;
}

/*
 * Return which methods can move an index or a table, by the same checks as a move,
 * regardless of the user and of its tablespace.
 */
void
movable_methods(Oid relid, bool *copy, bool *rebuild)
{
	RelationFacts facts;
	bool		can = relation_facts(relid, &facts) &&
		(relkind_is_index(facts.relkind) || RELKIND_HAS_TABLE_AM(facts.relkind)) &&
		facts.live && facts.persistence != RELPERSISTENCE_TEMP &&
		!IsCatalogRelationOid(facts.heap_oid) && !extension_owns(facts.heap_oid) &&
		!OidIsValid(table_of_toast(relid)) &&
	/* the next move removes the leftovers of an interrupted move */
		(facts.valid || !leftover_index_is_ours(relid)) &&
		!recovery_needs_full_pages(&facts);

	*copy = can && facts.valid && copy_hindrance(&facts) == NULL;
	*rebuild = can && relkind_is_index(facts.relkind) && rebuild_hindrance(&facts) == NULL;
}

PG_FUNCTION_INFO_V1(index_mover_movable_methods);

/*
 * index_mover_movable_methods(relation regclass) returns text[]
 *
 * For index_report(): movable_methods().  EXECUTE: pg_monitor.
 */
Datum
index_mover_movable_methods(PG_FUNCTION_ARGS)
{
	Datum		names[2];
	int			n = 0;
	bool		copy;
	bool		rebuild;

	movable_methods(PG_GETARG_OID(0), &copy, &rebuild);
	if (copy)
		names[n++] = CStringGetTextDatum("copy");
	if (rebuild)
		names[n++] = CStringGetTextDatum("rebuild");
	PG_RETURN_ARRAYTYPE_P(construct_array(names, n, TEXTOID, -1, false, TYPALIGN_INT));
}
