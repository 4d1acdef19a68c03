/*-------------------------------------------------------------------------
 *
 * own_tables.c
 *	  Where this extension's own tables and sequences are, and how they change.
 *
 * They are in a schema of their own, and are never found through a search path.
 * Lookups keep no locks.
 *
 * The rows are about this cluster, and core cannot exclude a table from a
 * publication FOR ALL TABLES.  A row that reached a clone would name files that
 * are not ours, and one that reached a server without the extension would stop
 * its subscription.  So rows are inserted with HEAP_INSERT_NO_LOGICAL, deleted
 * without a replica identity, and never updated, which SPI could not do.  Rows can
 * still come by the initial copy of a subscription, or because a user has changed
 * our tables on the publisher: a trigger that fires only for replication,
 * index_mover_not_by_replication(), discards them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/ipc.h"
#include "storage/itemid.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "job.h"
#include "own_tables.h"
#include "test_points.h"

#define EXTENSION	"index_mover"	/* and its schema */

/* A column of a table of ours, as the script makes it */
typedef struct OwnColumn
{
	Oid			type;
	bool		not_null;
} OwnColumn;

#define MAY_BE_NULL(type)	{type##OID, false}
#define NOT_NULL(type)		{type##OID, true}
#define COLUMNS_OF(columns)	.natts = lengthof(columns), .attributes = columns

static const OwnColumn ledger_columns[] = {
	NOT_NULL(INT8), NOT_NULL(TEXT), NOT_NULL(OID), NOT_NULL(CHAR), NOT_NULL(OID), NOT_NULL(OID),
	NOT_NULL(OID), NOT_NULL(OID), NOT_NULL(OID), NOT_NULL(INT8), NOT_NULL(INT4),
	NOT_NULL(TIMESTAMPTZ), NOT_NULL(NAME), NOT_NULL(OID), NOT_NULL(OID), NOT_NULL(INT8),
	NOT_NULL(PG_LSN), NOT_NULL(INT8), NOT_NULL(TIMESTAMPTZ),
};
static const OwnColumn job_columns[] = {
	NOT_NULL(INT8), NOT_NULL(OID), NOT_NULL(TIMESTAMPTZ), NOT_NULL(JSONB), NOT_NULL(INT8),
	MAY_BE_NULL(NAME), NOT_NULL(BOOL), NOT_NULL(BOOL), MAY_BE_NULL(TEXT), MAY_BE_NULL(INT4),
	MAY_BE_NULL(INT4), MAY_BE_NULL(INT8), MAY_BE_NULL(INT8), MAY_BE_NULL(INTERVAL),
	MAY_BE_NULL(NAME), MAY_BE_NULL(TIMESTAMPTZ), MAY_BE_NULL(TIMESTAMPTZ),
	MAY_BE_NULL(TIMESTAMPTZ), MAY_BE_NULL(INT8),
};
static const OwnColumn move_columns[] = {
	NOT_NULL(INT8), NOT_NULL(INT4), NOT_NULL(OID), NOT_NULL(OID), NOT_NULL(TEXT), NOT_NULL(TEXT),
	NOT_NULL(OID), NOT_NULL(TEXT), MAY_BE_NULL(NAME), MAY_BE_NULL(NAME), NOT_NULL(OID),
	NOT_NULL(OID), NOT_NULL(TEXT), NOT_NULL(TEXT), NOT_NULL(TEXT), MAY_BE_NULL(INT8),
	MAY_BE_NULL(INT8), MAY_BE_NULL(TIMESTAMPTZ), MAY_BE_NULL(TIMESTAMPTZ), MAY_BE_NULL(INT8),
	MAY_BE_NULL(INTERVAL), MAY_BE_NULL(INT8), MAY_BE_NULL(INT8), MAY_BE_NULL(INT8),
	MAY_BE_NULL(INT8), MAY_BE_NULL(TEXT), MAY_BE_NULL(TEXT),
};
static const OwnColumn mount_point_columns[] = {NOT_NULL(OID), NOT_NULL(TEXT)};
static const OwnColumn probe_columns[] = {
	NOT_NULL(TIMESTAMPTZ), NOT_NULL(OID), NOT_NULL(FLOAT8), MAY_BE_NULL(FLOAT8),
};
static const OwnColumn sample_columns[] = {
	NOT_NULL(TIMESTAMPTZ), NOT_NULL(OID), MAY_BE_NULL(TEXT), NOT_NULL(INT8), NOT_NULL(INT8),
	NOT_NULL(INT8), NOT_NULL(INT8), NOT_NULL(INT8), NOT_NULL(INT8),
};
static const OwnColumn policy_columns[] = {
	NOT_NULL(NAME), NOT_NULL(BOOL), MAY_BE_NULL(REGCLASS), MAY_BE_NULL(NAME), MAY_BE_NULL(NAME),
	NOT_NULL(NAME), NOT_NULL(TEXT), MAY_BE_NULL(INTERVAL), MAY_BE_NULL(TEXT),
	MAY_BE_NULL(NUMERIC), MAY_BE_NULL(NUMERIC), MAY_BE_NULL(INT8), MAY_BE_NULL(FLOAT8),
	MAY_BE_NULL(FLOAT8), NOT_NULL(BOOL), NOT_NULL(INTERVAL), NOT_NULL(INTERVAL),
	MAY_BE_NULL(INT8), MAY_BE_NULL(JSONB), MAY_BE_NULL(INTERVAL), NOT_NULL(TEXT),
	MAY_BE_NULL(INTERVAL), MAY_BE_NULL(TIME), MAY_BE_NULL(TIME), MAY_BE_NULL(NAME),
	MAY_BE_NULL(OID), MAY_BE_NULL(TIMESTAMPTZ),
};
static const OwnColumn run_columns[] = {
	NOT_NULL(NAME), NOT_NULL(OID), NOT_NULL(TIMESTAMPTZ), NOT_NULL(INT8), NOT_NULL(INT4),
	NOT_NULL(TEXT), MAY_BE_NULL(TEXT), MAY_BE_NULL(INT8), MAY_BE_NULL(TIMESTAMPTZ), NOT_NULL(BOOL),
};

static const struct
{
	const char *table;
	int			natts;
	const OwnColumn *attributes;
}			own_columns[] = {

	{
		"ledger", COLUMNS_OF(ledger_columns)
	},
	{
		"job_log", COLUMNS_OF(job_columns)
	},
	{
		"move_log", COLUMNS_OF(move_columns)
	},
	{
		"mount_point", COLUMNS_OF(mount_point_columns)
	},
	{
		"probe", COLUMNS_OF(probe_columns)
	},
	{
		"sample", COLUMNS_OF(sample_columns)
	},
	{
		"tier_policy", COLUMNS_OF(policy_columns)
	},
	{
		"policy_run", COLUMNS_OF(run_columns)
	},
};

/*
 * A worker waits so long for a lock on a table of ours, or for who is deleting a row, while it
 * keeps cancels for later
 */
#define RECORD_WAIT_MS	IM_LIMIT("record-wait", 20000)
/* and so long if it has been locked for all that time before */
#define RECORD_WAIT_AGAIN_MS	1000
#define LOCK_NAP_MS		10

PG_FUNCTION_INFO_V1(index_mover_not_by_replication);
PG_FUNCTION_INFO_V1(index_mover_execute);

/* The extension that extension_hold() has locked, or had when an error came. */
static Oid	held = InvalidOid;

/* The only one that there is for this process, see extension_set_only(); 0 = any */
static Oid	only = InvalidOid;

/* A table of ours whose lock lock_for_record() has not got: it waits no second time */
static Oid	locked_for_long = InvalidOid;

/* A transaction for whose row delete_row() has waited in vain: nor does that */
static TransactionId holds_for_long = InvalidTransactionId;

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

/*
 * Have this process know that extension only, whose tables have the rows of its job: another
 * one of the name, which was created since, is as good as none.
 */
void
extension_set_only(Oid extension)
{
	only = extension;
}

/* Return the OID of the extension, InvalidOid if it is not installed. */
Oid
extension_oid(void)
{
	Oid			result = get_extension_oid(EXTENSION, true);

	return !OidIsValid(only) || result == only ? result : InvalidOid;
}

bool
extension_installed(void)
{
	return OidIsValid(extension_oid());
}

/*
 * Return the OID of the schema of the extension's own relations, InvalidOid
 * if the extension is not installed: then a schema of that name is not ours.
 */
static Oid
find_schema(void)
{
	return extension_installed() ? get_namespace_oid(EXTENSION, true) : InvalidOid;
}

/* Raise ERROR 55000: the extension is not installed. */
void
extension_missing(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"%s\" is not installed in this database", EXTENSION)));
}

/* Return whether the last record was in vain because a session has locked a whole table of ours. */
bool
extension_is_locked(void)
{
	return OidIsValid(locked_for_long);
}

/* Return the schema, or extension_missing(). */
static Oid
extension_schema(void)
{
	Oid			result = find_schema();

	if (!OidIsValid(result))
		extension_missing();
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
		getExtensionOfObject(RelationRelationId, table) == extension_oid();
}

/* Return the OID of a relation of ours now, InvalidOid if it was dropped. */
Oid
extension_find_relation(const char *name)
{
	return get_relname_relid(name, find_schema());
}

/* As extension_find_relation(); ERROR 42P01 if it was dropped, 55000 as extension_schema(). */
Oid
extension_relation(const char *name)
{
	Oid			result = get_relname_relid(name, extension_schema());

	if (!OidIsValid(result))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"index_mover.%s\" of extension \"%s\" does not exist",
						name, EXTENSION),
				 errhint("Drop the extension and create it again.")));
	return result;
}

/* Set the tag of the lock that DROP EXTENSION takes before all others. */
void
extension_lock_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, ExtensionRelationId, held, 0);
}

/*
 * Lock the extension until the end of the session or extension_release(), so
 * that DROP EXTENSION waits while a move runs, because only the ledger names the
 * files of the move.  Does not wait.  Every error releases the lock with all
 * others; call this again then.
 */
ExtensionHold
extension_hold(void)
{
	LOCKTAG		tag;

	Assert(IsTransactionState());
	extension_lock_tag(&tag);
	if (OidIsValid(held) && LockHeldByMe(&tag, AccessShareLock, false))
		return EXTENSION_HELD;
	held = extension_oid();
	if (!OidIsValid(held))
		return EXTENSION_GONE;
	extension_lock_tag(&tag);
	if (LockAcquire(&tag, AccessShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		return EXTENSION_BUSY;

	/* it may have been dropped since the lookup */
	AcceptInvalidationMessages();
	if (extension_oid() == held)
		return EXTENSION_HELD;
	extension_release();
	return EXTENSION_GONE;
}

/* Release the lock of extension_hold(), if any. */
void
extension_release(void)
{
	LOCKTAG		tag;

	extension_lock_tag(&tag);
	if (OidIsValid(held) && LockHeldByMe(&tag, AccessShareLock, false))
		(void) LockRelease(&tag, AccessShareLock, true);
	held = InvalidOid;
}

/*
 * Return whether nothing can end a wait of core's but the end of what it waits for: in a worker
 * that keeps cancels for later, and in exit callbacks, where not even SIGTERM does.
 */
static bool
is_deaf(void)
{
	return proc_exit_inprogress || (MyBackendType == B_BG_WORKER && QueryCancelHoldoffCount > 0);
}

/* Nap while another session has a lock, or a row, that a record needs. */
static void
record_nap(void)
{
	(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LOCK_NAP_MS,
					 IM_WAIT_EVENT("IndexMoverRecord"));
	CHECK_FOR_INTERRUPTS();
}

/*
 * Lock a table of ours for a worker that keeps cancels for later, and has no other locks: no
 * session that has locked the table is waited for without limit, and none in each record of
 * the job.  ERROR 55P03.
 */
static void
lock_for_record(Oid table, const char *name, LOCKMODE mode)
{
	double		begin = clock_seconds();
	int64		wait_ms = RECORD_WAIT_MS;

	/* as VACUUM, which truncates the table, may have it by now */
	if (table == locked_for_long)
		wait_ms = Min(wait_ms, RECORD_WAIT_AGAIN_MS);

	while (!ConditionalLockRelationOid(table, mode))
	{
		if (clock_has_passed(begin, wait_ms))
		{
			locked_for_long = table;
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not obtain lock on relation \"%s.%s\"", EXTENSION, name)));
		}
		record_nap();
	}
	if (table == locked_for_long)
		locked_for_long = InvalidOid;
}

/*
 * Lock a table of the extension, and return its OID.  It may wait for DROP
 * EXTENSION: then look again.  ERRORs: as extension_relation(), lock_for_record().
 */
static Oid
lock_table(const char *name, LOCKMODE mode)
{
	Oid			result;

	do
	{
		result = extension_relation(name);
		if (is_deaf())
			lock_for_record(result, name, mode);
		else
			LockRelationOid(result, mode);
	} while (extension_relation(name) != result);
	return result;
}

/*
 * Return whether the columns of a table of ours, as far as it has them, are such as the script makes
 * them.  A superuser can change them, and a row with a NULL, or with a value of another type, where the
 * code expects none would crash the server.
 */
bool
extension_fits(const char *table, TupleDesc desc)
{
	for (int i = 0; i < lengthof(own_columns); i++)
	{
		int			natts = Min(own_columns[i].natts, desc->natts);

		if (strcmp(own_columns[i].table, table) != 0)
			continue;
		for (int column = 0; column < natts; column++)
		{
			const OwnColumn *own = &own_columns[i].attributes[column];
			Form_pg_attribute attribute = TupleDescAttr(desc, column);

			if (attribute->attisdropped || attribute->atttypid != own->type)
				return false;
			if (own->not_null && !im_is_not_null(desc, column))
				return false;
		}
		return true;
	}
	Assert(false);
	return false;
}

/*
 * Return whether a moment on record is in the future, so that the clock was ahead then.
 * Its event counts as none: it would hold until then.
 */
bool
moment_is_ahead(TimestampTz moment)
{
	return moment > GetCurrentTimestamp() + USECS_PER_MINUTE;
}

/* Raise ERROR 55000: a table does not have our columns. */
void
extension_other_version(const char *table)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" is of another version of extension \"%s\"", table, EXTENSION),
			 errhint("Drop the extension and create it again.")));
}

/* Lock and open a table of ours.  ERRORs: as lock_table(), extension_other_version(). */
static Relation
open_own(const char *name, LOCKMODE mode)
{
	Relation	result = table_open(lock_table(name, mode), NoLock);

	if (!extension_fits(name, RelationGetDescr(result)))
		extension_other_version(name);
	return result;
}

/*
 * Draw the next value, greater than that given, of an open sequence that is not WAL-logged;
 * 0 = nextval() has to see to it.  As nextval_internal() in sequence.c, but INCREMENT, MAXVALUE
 * and CACHE are not looked at.
 */
static int64
draw_unlogged(Relation sequence, int64 after)
{
	Buffer		buffer = ReadBuffer(sequence, 0);
	int64		result = 0;
	Page		page;
	ItemId		item = NULL;
	const Size	least = MAXALIGN(SizeofHeapTupleHeader) +
		offsetof(FormData_pg_sequence_data, is_called);

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(buffer);
	/* a damaged page is for nextval() to report */
	if (!PageIsNew(page) && PageGetSpecialSize(page) == MAXALIGN(sizeof(uint32)) &&
		PageGetMaxOffsetNumber(page) == FirstOffsetNumber)
		item = PageGetItemId(page, FirstOffsetNumber);
	if (item != NULL && ItemIdIsNormal(item) &&
		ItemIdGetLength(item) > least)
	{
		HeapTupleData tuple = {.t_data = (HeapTupleHeader) PageGetItem(page, item)};
		Form_pg_sequence_data data = (Form_pg_sequence_data) GETSTRUCT(&tuple);

		if (data->last_value > 0 && Max(data->last_value, after) < PG_INT64_MAX)
		{
			result = Max(data->last_value + (data->is_called ? 1 : 0), after + 1);
			data->last_value = result;
			data->is_called = true;
			data->log_cnt = 0;
			MarkBufferDirty(buffer);
		}
	}
	UnlockReleaseBuffer(buffer);
	return result;
}

/*
 * Draw a sequence's next value, greater than that given, whatever the user's privileges are.
 * Not by nextval() if the sequence is unlogged: it would change what lastval() returns to the
 * session, which only moves a table, and keep a lock until its transaction ends.
 */
int64
extension_nextval(const char *sequence, int64 after)
{
	Oid			relid = lock_table(sequence, RowExclusiveLock);
	Relation	rel = relation_open(relid, NoLock);
	int64		result = 0;

	PreventCommandIfReadOnly("nextval()");
	PreventCommandIfParallelMode("nextval()");
	if (rel->rd_rel->relkind == RELKIND_SEQUENCE && !RelationNeedsWAL(rel))
		result = draw_unlogged(rel, after);
	/* nextval() would have to wait for the same lock again */
	relation_close(rel, result > after ? RowExclusiveLock : NoLock);
	while (result <= after)
	{
		CHECK_FOR_INTERRUPTS();
		result = nextval_internal(relid, false);
	}
	return result;
}

/*
 * Open a table of the extension for changes in the caller's transaction.
 * The tables have TOAST tables, so until close_table() there is an active
 * snapshot, even in a worker that has none of its own.
 */
static Relation
open_table(const char *name)
{
	Relation	rel = open_own(name, RowExclusiveLock);

	/* the first snapshot of a transaction has to precede any scan */
	PushActiveSnapshot(GetTransactionSnapshot());
	return rel;
}

/* Close a table after open_table().  The lock stays. */
static void
close_table(Relation rel)
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
 * Refuse an index that a user has added, and whose entries we cannot make: expressions and
 * predicates are a user's code, which would run with the privileges of the job's role.
 */
static void
check_index(Relation rel, Relation index, const IndexInfo *info)
{
	if (info->ii_Expressions == NIL && info->ii_Predicate == NIL && info->ii_ExclusionOps == NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot write table \"%s.%s\" because of index \"%s\"",
					EXTENSION, RelationGetRelationName(rel), RelationGetRelationName(index)),
			 errdetail("There, no index can have an expression, a predicate, or an exclusion constraint."),
			 errhint("Drop the index.")));
}

/*
 * Make the tuple of a row: our columns are the first, and a user's are NULL.  Refuse a table
 * that a user has changed so that this does not fit.
 */
static HeapTuple
form_tuple(Relation rel, const Row *row)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc0_array(Datum, desc->natts);
	bool	   *nulls = palloc_array(bool, desc->natts);

	if (rel->rd_tableam != GetHeapamTableAmRoutine())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot write table \"%s.%s\" because its access method is not \"heap\"",
						EXTENSION, RelationGetRelationName(rel)),
				 errhint("Set its access method to heap.")));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		nulls[i] = i >= lengthof(row->nulls) || row->nulls[i];
		if (!nulls[i])
			values[i] = row->values[i];
		if (column->attnotnull && nulls[i] && !column->attisdropped)
			ereport(ERROR,
					(errcode(ERRCODE_NOT_NULL_VIOLATION),
					 errmsg("null value in column \"%s\" of relation \"%s\" violates not-null constraint",
							NameStr(column->attname), RelationGetRelationName(rel)),
					 errhint("The extension does not know this column: drop the constraint.")));
	}
	return heap_form_tuple(desc, values, nulls);
}

/*
 * Insert the entry of a row into an index.  Who cannot wait for a transaction that may have
 * inserted the same key takes it that it has.
 */
static void
insert_index_entry(Relation index, Datum *keys, bool *nulls, ItemPointer tid, Relation rel,
				   IndexInfo *info)
{
	IndexUniqueCheck check = UNIQUE_CHECK_NO;
	bool		is_unique;

	if (index->rd_index->indisunique)
		check = is_deaf() ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_YES;
	is_unique = index_insert(index, keys, nulls, tid, rel, check, false, info);
	if (check == UNIQUE_CHECK_PARTIAL && !is_unique)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("duplicate key value violates unique constraint \"%s\"",
						RelationGetRelationName(index)),
				 errdetail("The transaction that has inserted it may not have ended."),
				 errhint("End that transaction.")));
}

/*
 * Insert a row, without logical decoding; columns that we do not know are NULL.  Otherwise
 * like CatalogTupleInsert().  ERROR 55000, or 23502, if a user has changed the table, see
 * form_tuple() and check_index(): then no job begins, since it could not be recorded.
 */
void
extension_insert(const char *table, Row *row)
{
	Relation	rel = open_table(table);
	HeapTuple	tuple = form_tuple(rel, row);
	CatalogIndexState indexes = CatalogOpenIndexes(rel);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

	for (int i = 0; i < indexes->ri_NumIndices; i++)
		check_index(rel, indexes->ri_IndexRelationDescs[i], indexes->ri_IndexRelationInfo[i]);
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
		insert_index_entry(index, keys, null_keys, &tuple->t_self, rel, info);
	}
	ExecDropSingleTupleTableSlot(slot);
	CatalogCloseIndexes(indexes);
	heap_freetuple(tuple);
	close_table(rel);
}

/*
 * Delete a row without logical decoding; wait: for a transaction that is deleting it.
 * Returns false if another has deleted it, an error of CatalogTupleDelete(), or, without wait,
 * is just doing so.  ERROR 40001 if another has changed it, and 55P03 if it keeps a worker
 * waiting for RECORD_WAIT_MS.  An exit callback neither waits nor fails: the row stays.
 */
static bool
delete_row(const char *table, ItemPointer tid, bool wait)
{
	Relation	rel = open_table(table);
	double		begin = clock_seconds();
	TM_FailureData failure;
	TM_Result	result;

	for (;;)
	{
		result = IM_HEAP_DELETE(rel, tid, wait && !is_deaf(), &failure);
		if (result != TM_BeingModified || !wait || proc_exit_inprogress ||
			failure.xmax == holds_for_long)
			break;
		if (clock_has_passed(begin, RECORD_WAIT_MS))
		{
			holds_for_long = failure.xmax;
			break;
		}
		record_nap();
	}
	if (wait && result == TM_BeingModified && !proc_exit_inprogress)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on row in relation \"%s\"",
						RelationGetRelationName(rel))));

	/* we never update a row, but a user may do so by hand */
	if (result != TM_Ok && result != TM_Deleted && result != TM_BeingModified &&
		!proc_exit_inprogress)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent update"),
				 errdetail("Another transaction has changed a row of table \"%s\".",
						   RelationGetRelationName(rel))));
	close_table(rel);
	return result == TM_Ok;
}

/*
 * Delete a row.  Waits for a transaction that is deleting it, and returns false if it has; see
 * delete_row().
 */
bool
extension_delete_row(const char *table, ItemPointer tid)
{
	return delete_row(table, tid, true);
}

/*
 * Delete a row that nothing is lost with if it stays.  Does not wait: any role that may have
 * such rows deleted could hold up the others.  Returns false if a transaction is deleting it, too.
 */
bool
extension_delete_free_row(const char *table, ItemPointer tid)
{
	return delete_row(table, tid, false);
}

/* Return a key for a scan: the value that a column has. */
ScanKeyData
extension_key(AttrNumber column, RegProcedure equal, Datum value)
{
	ScanKeyData key;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, equal, value);
	return key;
}

/*
 * Begin a scan in the order of an index, for whose first columns the keys are.  Without a
 * snapshot, the rows that are there now.
 */
static void
begin_in_order(ExtensionScan *scan, const char *table, const char *index, Snapshot snapshot,
			   int nkeys, ScanKey keys)
{
	scan->rel = open_own(table, AccessShareLock);
	scan->direction = ForwardScanDirection;
	scan->index = index_open(extension_relation(index), AccessShareLock);
	scan->scan = systable_beginscan_ordered(scan->rel, scan->index, snapshot, nkeys, keys);
}

/*
 * Begin a scan of a table in the order of an index of ours, for a query: of the rows
 * that the query sees in the table, so that the answer fits the rows that it reads itself.
 */
void
extension_scan_begin_query(ExtensionScan *scan, const char *table, const char *index,
						   int nkeys, ScanKey keys)
{
	Assert(ActiveSnapshotSet());
	begin_in_order(scan, table, index, GetActiveSnapshot(), nkeys, keys);
}

/* Begin a scan of a table in the order of another index of ours than its primary key. */
void
extension_scan_begin_index(ExtensionScan *scan, const char *table, const char *index,
						   int nkeys, ScanKey keys)
{
	begin_in_order(scan, table, index, NULL, nkeys, keys);
}

/*
 * Begin a scan of a table: of all rows in no order or, with keys, in the order of
 * its primary key, whose first columns they are for.
 */
void
extension_scan_begin(ExtensionScan *scan, const char *table, int nkeys, ScanKey keys)
{
	if (nkeys > 0)
	{
		begin_in_order(scan, table, psprintf("%s_pkey", table), NULL, nkeys, keys);
		return;
	}
	scan->rel = open_own(table, AccessShareLock);
	scan->direction = ForwardScanDirection;
	scan->index = NULL;
	scan->scan = systable_beginscan(scan->rel, InvalidOid, false, NULL, 0, NULL);
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

/* Delete the rows with these keys; returns whether there were any, see extension_delete_row(). */
bool
extension_delete(const char *table, int nkeys, ScanKey keys)
{
	Relation	rel = open_table(table);
	ExtensionScan scan;
	bool		result = false;

	extension_scan_begin(&scan, table, nkeys, keys);
	while (extension_scan_next(&scan))
	{
		if (extension_delete_row(table, &scan.tuple->t_self))
			result = true;
	}
	close_table(rel);
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
 * index_mover.execute(command text) RETURNS void
 *
 * Execute commands.  Only for the SQL script of the extension, which drops it again.
 */
Datum
index_mover_execute(PG_FUNCTION_ARGS)
{
	Assert(creating_extension);
	SPI_connect();
	(void) SPI_execute(text_to_cstring(PG_GETARG_TEXT_PP(0)), false, 0);
	SPI_finish();
	PG_RETURN_VOID();
}
