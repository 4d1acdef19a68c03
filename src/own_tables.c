/*-------------------------------------------------------------------------
 *
 * own_tables.c
 *	  Where this extension's own tables and sequences are, and how they change.
 *
 * The extension may live in any schema, so its relations are found through
 * pg_extension and never through a search path.  No locks are kept; callers
 * open what they are given with the lock they need.
 *
 * What the tables say is about this cluster, and core can't keep a table out of
 * a publication FOR ALL TABLES.  A row that came to a clone of this cluster (whose
 * system identifier is the same) would name files there that are somebody
 * else's, and one that came to a server without the extension would stop its
 * subscription.  So the history and the ledger are not decoded: rows are inserted
 * with HEAP_INSERT_NO_LOGICAL, and deleted without a replica identity, which the
 * SQL script has taken from them; an update would be decoded, and is a deletion
 * and an insertion here.  What comes to our tables all the same, by the first copy
 * of a subscription or because somebody has changed them in SQL on the publisher,
 * is thrown away by a trigger that fires for replication only,
 * index_mover_not_by_replication().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "commands/sequence.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/pmsignal.h"
#include "utils/fmgroids.h"
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
	(void) set_config_option("synchronous_commit", value, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Let the current transaction's commit be flushed here and not wait for a
 * synchronous standby.  Every transaction of ours that holds a lock does that.
 */
void
commit_locally(void)
{
	set_commit("local");
}

PG_FUNCTION_INFO_V1(index_mover_not_by_replication);

/*
 * Return the OID of the schema that holds the extension, InvalidOid if it isn't
 * installed.  (core's get_extension_schema() is static before 16.)
 */
static Oid
find_schema(void)
{
	Relation	rel;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	Oid			result = InvalidOid;

	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyInit(&key,
				Anum_pg_extension_extname,
				BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("index_mover"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		result = ((Form_pg_extension) GETSTRUCT(tuple))->extnamespace;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

bool
extension_installed(void)
{
	return OidIsValid(find_schema());
}

/*
 * Return the OID of the schema that holds the extension.
 *
 * ERROR 55000 if the extension isn't installed in this database: a worker can
 * find that after DROP EXTENSION.
 */
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
 * Return the OID of one of the extension's own relations.
 */
Oid
extension_relation(const char *name)
{
	Oid			result = get_relname_relid(name, extension_schema());

	if (!OidIsValid(result))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" of extension \"%s\" does not exist",
						name, "index_mover"),
				 errhint("Drop the extension and create it again.")));
	return result;
}

/*
 * Draw the next value of one of the extension's own sequences, whatever the
 * privileges of the current user.
 */
int64
extension_nextval(const char *sequence)
{
	return nextval_internal(extension_relation(sequence), false);
}

/*
 * What DROP EXTENSION locks before it looks at dependents; if one of them were
 * left out, it could hold that one, wait for another, and we for it.
 */
static const char *const held_relations[] = {
	"index_mover_ledger", "index_mover_move_log",
	"index_mover_ledger_seq", "index_mover_job_seq",
};

static LockRelId held[lengthof(held_relations)];

static bool is_held = false;

/* The OID of a relation of ours as of now, InvalidOid if it has been dropped. */
Oid
extension_find_relation(const char *name)
{
	Oid			schema = find_schema();

	return OidIsValid(schema) ? get_relname_relid(name, schema) : InvalidOid;
}

/* Let go of the first n of them. */
static void
let_go(int n)
{
	while (n-- > 0)
		UnlockRelationIdForSession(&held[n], AccessShareLock);
}

ExtensionHold
extension_hold(Oid *busy)
{
	int			i;

	if (is_held)
	{
		LOCKTAG		tag;

		/* an error lets go of all or, as here, of none */
		SET_LOCKTAG_RELATION(tag, MyDatabaseId, held[0].relId);
		if (LockHeldByMe(&tag, AccessShareLock, false))
			return EXTENSION_HELD;
		is_held = false;
	}

	/*
	 * Don't wait for one while holding others: DROP EXTENSION takes them one
	 * after the other, too, in an order of its own.
	 */
	for (i = 0; i < lengthof(held_relations); i++)
	{
		Oid			relid = extension_find_relation(held_relations[i]);
		LOCKTAG		tag;

		if (!OidIsValid(relid))
		{
			let_go(i);
			return EXTENSION_GONE;
		}
		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		if (LockAcquire(&tag, AccessShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		{
			let_go(i);
			*busy = relid;
			return EXTENSION_BUSY;
		}
		held[i].dbId = MyDatabaseId;
		held[i].relId = relid;

		/* it may have been dropped since we looked */
		AcceptInvalidationMessages();
		if (extension_find_relation(held_relations[i]) != relid)
		{
			let_go(i + 1);
			return EXTENSION_GONE;
		}
	}
	is_held = true;
	return EXTENSION_HELD;
}

Oid
extension_held(int n)
{
	return is_held && n < lengthof(held_relations) ? held[n].relId : InvalidOid;
}

void
extension_release(void)
{
	int			i;
	LOCKTAG		tag;

	if (!is_held)
		return;
	is_held = false;
	for (i = 0; i < lengthof(held_relations); i++)
	{
		SET_LOCKTAG_RELATION(tag, held[i].dbId, held[i].relId);
		/* an error may have released it with all other session locks */
		if (LockHeldByMe(&tag, AccessShareLock, false))
			UnlockRelationIdForSession(&held[i], AccessShareLock);
	}
}

/*
 * Open one of the extension's tables to change it, in the caller's transaction,
 * and close it.  They have TOAST tables, so in between there is an active
 * snapshot, also in a worker that has none of its own.
 */
Relation
extension_open(const char *name)
{
	Relation	rel = table_open(extension_relation(name), RowExclusiveLock);

	/* before any scan: the first snapshot of a transaction has to come first */
	PushActiveSnapshot(GetTransactionSnapshot());
	return rel;
}

void
extension_close(Relation rel)
{
	PopActiveSnapshot();
	table_close(rel, NoLock);
}

/*
 * Change one of them, so that logical decoding does not see it.  There is no
 * update: it would be decoded.
 *
 * Like CatalogTupleInsert(), but not decoded.  There are no expressions in the
 * indexes, nor predicates.
 */
void
extension_insert(Relation rel, HeapTuple tuple)
{
	CatalogIndexState indexes = CatalogOpenIndexes(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

	heap_insert(rel, tuple, GetCurrentCommandId(true), HEAP_INSERT_NO_LOGICAL, NULL);
	ExecStoreHeapTuple(tuple, slot, false);
	for (int i = 0; i < indexes->ri_NumIndices; i++)
	{
		Relation	index = indexes->ri_IndexRelationDescs[i];
		IndexInfo  *info = indexes->ri_IndexRelationInfo[i];
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		if (!info->ii_ReadyForInserts)
			continue;
		FormIndexDatum(info, slot, NULL, values, nulls);
		(void) index_insert(index, values, nulls, &tuple->t_self, rel,
							index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
							false, info);
	}
	ExecDropSingleTupleTableSlot(slot);
	CatalogCloseIndexes(indexes);
}

/*
 * Delete a row; false if it is gone already, or goes at this very moment.
 * simple_heap_delete(), and so CatalogTupleDelete(), would make an error of the
 * latter.
 */
bool
extension_delete(Relation rel, HeapTuple tuple)
{
	TM_FailureData failure;
	TM_Result	result = IM_HEAP_DELETE(rel, &tuple->t_self, &failure);

	/* nothing of ours updates a row; somebody may, by hand */
	if (result != TM_Ok && result != TM_Deleted)
		elog(ERROR, "unexpected result %d of deleting a row of \"%s\"",
			 (int) result, RelationGetRelationName(rel));
	return result == TM_Ok;
}

/*
 * index_mover_not_by_replication() RETURNS trigger
 *
 * Nothing happens to the row.  For a trigger BEFORE INSERT OR UPDATE OR DELETE,
 * enabled for session_replication_role = replica only, as which the workers of
 * subscriptions run.  No locks, no errors.
 */
Datum
index_mover_not_by_replication(PG_FUNCTION_ARGS)
{
	return PointerGetDatum(NULL);
}
