/*-------------------------------------------------------------------------
 *
 * own_tables.c
 *	  Where this extension's own tables and sequences are, and how they change.
 *
 * They are in a schema of their own, index_mover, which the extension makes,
 * and are never found through a search path.  Lookups keep no locks; callers
 * open the relation with the lock they need.
 *
 * The rows are about this cluster, and core cannot exclude a table from a
 * publication FOR ALL TABLES.  A row that reached a clone would name files that
 * are not ours, and one that reached a server without the extension would stop
 * its subscription.  So the history and the ledger are not decoded: rows are
 * inserted with HEAP_INSERT_NO_LOGICAL, deleted without a replica identity, and
 * never updated.  Rows can still come by the initial copy of a subscription, or
 * because a user has changed our tables on the publisher: a trigger that fires
 * only for replication, index_mover_not_by_replication(), discards them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "own_tables.h"

/* Set synchronous_commit for the current transaction. */
void
set_commit(const char *value)
{
	Assert(IsTransactionState());
	(void) set_config_option("synchronous_commit", value, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/* The commit is not to wait for a synchronous standby with our locks held. */
void
commit_locally(void)
{
	set_commit("local");
}

PG_FUNCTION_INFO_V1(index_mover_not_by_replication);
PG_FUNCTION_INFO_V1(index_mover_revoke);

/*
 * Return the OID of the schema of the extension's own relations, InvalidOid
 * if the extension is not installed: then a schema of that name is not ours.
 */
static Oid
find_schema(void)
{
	if (!OidIsValid(get_extension_oid("index_mover", true)))
		return InvalidOid;
	return get_namespace_oid("index_mover", true);
}

bool
extension_installed(void)
{
	return OidIsValid(find_schema());
}

/* As find_schema(); ERROR 55000 if the extension is not installed. */
Oid
extension_schema(void)
{
	Oid			result = find_schema();

	if (!OidIsValid(result))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"%s\" is not installed in this database",
						"index_mover")));
	return result;
}

/*
 * Return whether this is a table of the extension itself.  A job writes to
 * them while it runs, so it cannot move them.
 */
bool
extension_owns(Oid table)
{
	return get_rel_namespace(table) == extension_schema() ||
		getExtensionOfObject(RelationRelationId, table) == get_extension_oid("index_mover", true);
}

/* As extension_find_relation(); ERROR 42P01 if it was dropped. */
Oid
extension_relation(const char *name)
{
	Oid			result = get_relname_relid(name, extension_schema());

	if (!OidIsValid(result))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"index_mover.%s\" of extension \"%s\" does not exist",
						name, "index_mover"),
				 errhint("Drop the extension and create it again.")));
	return result;
}

/* Draw a sequence's next value, whatever the user's privileges are. */
int64
extension_nextval(const char *sequence)
{
	return nextval_internal(extension_relation(sequence), false);
}

/*
 * The relations that DROP EXTENSION locks before it looks for dependents.
 * If one were missing here, DROP EXTENSION could hold it and wait for
 * another one, while we wait for it.
 */
static const char *const held_relations[] = {
	"ledger", "job_log", "move_log", "mount_point", "sample", "probe", "policy_run", "ledger_seq", "job_seq",
};

static LockRelId held[lengthof(held_relations)];

static bool is_held = false;

/* Return the OID of a relation of ours now, InvalidOid if it was dropped. */
Oid
extension_find_relation(const char *name)
{
	return get_relname_relid(name, find_schema());
}

/* Return whether the locks are still held: an error releases all of them or none. */
static bool
still_held(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, held[0].relId);
	return is_held && LockHeldByMe(&tag, AccessShareLock, false);
}

static void
release_first(int n)
{
	while (n-- > 0)
		UnlockRelationIdForSession(&held[n], AccessShareLock);
}

/*
 * Keep the extension's tables and sequences from being dropped until the end
 * of the session or extension_release().  While a move runs, DROP EXTENSION
 * waits for these locks, because only the ledger names the files of the move.
 * Every error releases them with all other locks; call this again then.
 */
ExtensionHold
extension_hold(Oid *busy)
{
	Assert(IsTransactionState());
	if (still_held())
		return EXTENSION_HELD;
	is_held = false;

	/*
	 * Do not wait for one while holding others: DROP EXTENSION, too, takes
	 * them one by one, in another order.
	 */
	for (int i = 0; i < lengthof(held_relations); i++)
	{
		Oid			relid = extension_find_relation(held_relations[i]);
		LOCKTAG		tag;

		if (!OidIsValid(relid))
		{
			release_first(i);
			return EXTENSION_GONE;
		}
		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		if (LockAcquire(&tag, AccessShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		{
			release_first(i);
			*busy = relid;
			return EXTENSION_BUSY;
		}
		held[i] = (LockRelId)
		{
			.relId = relid,.dbId = MyDatabaseId
		};

		/* it may have been dropped since the lookup */
		AcceptInvalidationMessages();
		if (extension_find_relation(held_relations[i]) != relid)
		{
			release_first(i + 1);
			return EXTENSION_GONE;
		}
	}
	is_held = true;
	return EXTENSION_HELD;
}

/* Return the n-th relation that is held, InvalidOid after the last. */
Oid
extension_held(int n)
{
	return is_held && n < lengthof(held_relations) ? held[n].relId : InvalidOid;
}

/* Release the locks of extension_hold(), if any. */
void
extension_release(void)
{
	if (still_held())
		release_first(lengthof(held));
	is_held = false;
}

/*
 * Open one of the extension's tables for changes in the caller's transaction.
 * The tables have TOAST tables, so until extension_close() there is an active
 * snapshot, even in a worker that has none of its own.
 */
Relation
extension_open(const char *name)
{
	Relation	rel = table_open(extension_relation(name), RowExclusiveLock);

	/* the first snapshot of a transaction has to precede any scan */
	PushActiveSnapshot(GetTransactionSnapshot());
	return rel;
}

/* Close a table after extension_open().  The lock stays. */
void
extension_close(Relation rel)
{
	PopActiveSnapshot();
	table_close(rel, NoLock);
}

/*
 * Take a row apart into as many columns as we know.  The table is that of another
 * version of the extension until ALTER EXTENSION UPDATE, or after it if the library
 * is older: columns that it lacks are NULL, and columns that we do not know are left out.
 */
void
extension_deform(HeapTuple tuple, TupleDesc desc, int natts, Datum *values, bool *nulls)
{
	for (int i = 0; i < natts; i++)
	{
		nulls[i] = true;
		values[i] = i < desc->natts ? heap_getattr(tuple, i + 1, desc, &nulls[i]) : (Datum) 0;
	}
}

/*
 * Insert a row of the columns that we know, without logical decoding; others of
 * the table are NULL.  Otherwise like CatalogTupleInsert(); the indexes have no
 * expressions or predicates.
 */
void
extension_insert(Relation rel, int natts, const Datum *values, const bool *nulls)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *all = palloc0_array(Datum, desc->natts);
	bool	   *is_null = palloc_array(bool, desc->natts);
	HeapTuple	tuple;
	CatalogIndexState indexes = CatalogOpenIndexes(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);

	for (int i = 0; i < desc->natts; i++)
	{
		is_null[i] = i >= natts || nulls[i];
		if (!is_null[i])
			all[i] = values[i];
	}
	tuple = heap_form_tuple(desc, all, is_null);
	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true) && ActiveSnapshotSet());
	heap_insert(rel, tuple, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
	ExecStoreHeapTuple(tuple, slot, false);
	for (int i = 0; i < indexes->ri_NumIndices; i++)
	{
		Relation	index = indexes->ri_IndexRelationDescs[i];
		IndexInfo  *info = indexes->ri_IndexRelationInfo[i];
		Datum		keys[INDEX_MAX_KEYS];
		bool		null_keys[INDEX_MAX_KEYS];

		if (!info->ii_ReadyForInserts)
			continue;
		FormIndexDatum(info, slot, NULL, keys, null_keys);
		(void) index_insert(index, keys, null_keys, &tuple->t_self, rel,
							index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
							false, info);
	}
	ExecDropSingleTupleTableSlot(slot);
	CatalogCloseIndexes(indexes);
	heap_freetuple(tuple);
	pfree(all);
	pfree(is_null);
}

/*
 * Delete a row without logical decoding.  Returns false if another transaction
 * has deleted it or is just doing so, an error of CatalogTupleDelete().
 */
bool
extension_delete(Relation rel, HeapTuple tuple)
{
	TM_FailureData failure;
	TM_Result	result = IM_HEAP_DELETE(rel, &tuple->t_self, &failure);

	Assert(CheckRelationLockedByMe(rel, RowExclusiveLock, true));
	/* we never update a row, but a user may do so by hand */
	if (result != TM_Ok && result != TM_Deleted)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update"),
				 errdetail("Another transaction has changed a row of table \"%s\".",
						   RelationGetRelationName(rel))));
	return result == TM_Ok;
}

/* Return a key for a scan: the value that a column has. */
ScanKeyData
extension_key(AttrNumber column, RegProcedure equal, Datum value)
{
	ScanKeyData key;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, equal, value);
	return key;
}

/* Begin a scan, in the order of the index if it has one. */
void
extension_scan_begin(ExtensionScan *scan, const char *table, const char *index,
					 int nkeys, ScanKey keys)
{
	scan->rel = table_open(extension_relation(table), AccessShareLock);
	scan->direction = ForwardScanDirection;
	scan->index = index ? index_open(extension_relation(index), AccessShareLock) : NULL;
	scan->scan = index ? systable_beginscan_ordered(scan->rel, scan->index, NULL, nkeys, keys) :
		systable_beginscan(scan->rel, InvalidOid, false, NULL, nkeys, keys);
}

/*
 * Get the next row, which is valid until the next call.  Returns false, and has
 * ended the scan, if there is none.
 */
bool
extension_scan_next(ExtensionScan *scan)
{
	scan->tuple = scan->index ? systable_getnext_ordered(scan->scan, scan->direction) :
		systable_getnext(scan->scan);
	if (!HeapTupleIsValid(scan->tuple))
	{
		extension_scan_end(scan);
		return false;
	}
	extension_deform(scan->tuple, RelationGetDescr(scan->rel), lengthof(scan->row.values),
					 scan->row.values, scan->row.nulls);
	return true;
}

void
extension_scan_end(ExtensionScan *scan)
{
	if (scan->index)
	{
		systable_endscan_ordered(scan->scan);
		index_close(scan->index, AccessShareLock);
	}
	else
		systable_endscan(scan->scan);
	table_close(scan->rel, AccessShareLock);
}

/* Delete the rows with these keys; returns whether there were any, see extension_delete(). */
bool
extension_delete_rows(const char *table, const char *index, int nkeys, ScanKey keys)
{
	Relation	rel = extension_open(table);
	ExtensionScan scan;
	bool		result = false;

	extension_scan_begin(&scan, table, index, nkeys, keys);
	while (extension_scan_next(&scan))
		result |= extension_delete(rel, scan.tuple);
	extension_close(rel);
	return result;
}

/*
 * index_mover_not_by_replication() RETURNS trigger
 *
 * Discard the row.  For a trigger BEFORE INSERT OR UPDATE OR DELETE, enabled
 * for session_replication_role = replica only, as in subscriptions' workers.
 * With an argument, a client's row is kept: users write the table, and a
 * restore may run in that role.
 */
Datum
index_mover_not_by_replication(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || data->tg_trigger->tgnargs == 0 ||
		MyBackendType == B_BG_WORKER)
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ?
						   data->tg_newtuple : data->tg_trigtuple);
}

/*
 * index_mover.revoke(grantee oid, class oid, object oid) RETURNS void
 *
 * Revoke all privileges on an object from a role, or from PUBLIC (0).  Only for
 * the SQL script of the extension, which drops it again.
 */
Datum
index_mover_revoke(PG_FUNCTION_ARGS)
{
	RemoveRoleFromObjectACL(PG_GETARG_OID(0), PG_GETARG_OID(1), PG_GETARG_OID(2));
	PG_RETURN_VOID();
}
