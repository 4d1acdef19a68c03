/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The history: every move of every job, for view index_mover_history.
 *
 * The runner writes a row in transactions of its own, so that a failed,
 * canceled or killed move is recorded, and in C, so that no user can forge a
 * row.  A row says "queued" or "running" until the runner writes more; the
 * view turns that into "interrupted" if the job has no live runner.
 *
 * All functions run in the caller's transaction and need no privileges.
 *
 * Locks: RowExclusiveLock on the table until the end of the transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "commands/tablespace.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "history.h"
#include "job.h"
#include "own_tables.h"
#include "test_points.h"

#define HISTORY_TABLE	"index_mover_move_log"
#define HISTORY_PKEY	"index_mover_move_log_pkey"

/* columns of index_mover_move_log, as in the SQL script */
enum
{
	Anum_job = 1,
	Anum_item,
	Anum_index,
	Anum_index_name,
	Anum_relation,
	Anum_relation_name,
	Anum_from_tablespace,
	Anum_to_tablespace,
	Anum_from_tablespace_oid,
	Anum_to_tablespace_oid,
	Anum_method,
	Anum_status,
	Anum_size_before,
	Anum_size_after,
	Anum_submitted_at,
	Anum_started_at,
	Anum_finished_at,
	Anum_lock_time,
	Anum_lock_attempts,
	Anum_blocks_copied,
	Anum_blocks_recopied,
	Anum_wal_bytes,
	Anum_sqlstate,
	Anum_message,
	Anum_role,
	Natts_history = Anum_role
};

static void
put_int64(Datum *values, bool *nulls, int attnum, int64 value)
{
	nulls[attnum - 1] = (value < 0);
	values[attnum - 1] = Int64GetDatum(value);
}

static void
put_timestamp(Datum *values, bool *nulls, int attnum, TimestampTz value)
{
	nulls[attnum - 1] = (value == 0);
	values[attnum - 1] = TimestampTzGetDatum(value);
}

static void
put_text(Datum *values, bool *nulls, int attnum, const char *value)
{
	nulls[attnum - 1] = (value == NULL || value[0] == '\0');
	values[attnum - 1] = nulls[attnum - 1] ? (Datum) 0 : CStringGetTextDatum(value);
}

static void
put_tablespace(Datum *values, bool *nulls, int attnum, Oid tablespace)
{
	char	   *name = get_tablespace_name(tablespace);

	nulls[attnum - 1] = (name == NULL);
	values[attnum - 1] = (Datum) 0;
	if (name != NULL)
		values[attnum - 1] = DirectFunctionCall1(namein, CStringGetDatum(name));
}

/* Form the row of one item in its current state. */
static void
form_values(const JobShared *job, int n, Datum *values, bool *nulls)
{
	const MoveItem *item = &job->items[n];

	memset(nulls, 0, sizeof(bool) * Natts_history);
	values[Anum_job - 1] = Int64GetDatum(job->job);
	values[Anum_item - 1] = Int32GetDatum(n);
	values[Anum_index - 1] = ObjectIdGetDatum(item->index_oid);
	values[Anum_index_name - 1] = CStringGetTextDatum(NameStr(item->index_name));
	values[Anum_relation - 1] = ObjectIdGetDatum(item->heap_oid);
	values[Anum_relation_name - 1] =
		CStringGetTextDatum(quote_qualified_identifier(NameStr(item->schema_name),
													   NameStr(item->heap_name)));
	put_tablespace(values, nulls, Anum_from_tablespace, item->from_tablespace);
	put_tablespace(values, nulls, Anum_to_tablespace, item->to_tablespace);
	values[Anum_from_tablespace_oid - 1] = ObjectIdGetDatum(item->from_tablespace);
	values[Anum_to_tablespace_oid - 1] = ObjectIdGetDatum(item->to_tablespace);
	values[Anum_method - 1] = CStringGetTextDatum(method_name(item->method));
	values[Anum_status - 1] = CStringGetTextDatum(status_name(item->status));
	put_int64(values, nulls, Anum_size_before, item->size_before);
	put_int64(values, nulls, Anum_size_after, item->size_after);
	values[Anum_submitted_at - 1] = TimestampTzGetDatum(job->submitted_at);
	put_timestamp(values, nulls, Anum_started_at, item->started_at);
	put_timestamp(values, nulls, Anum_finished_at, item->finished_at);
	nulls[Anum_lock_time - 1] = (item->lock_time < 0);
	if (item->lock_time >= 0)
	{
		Interval   *lock_time = palloc0(sizeof(Interval));

		lock_time->time = item->lock_time;
		values[Anum_lock_time - 1] = IntervalPGetDatum(lock_time);
	}
	put_int64(values, nulls, Anum_lock_attempts, item->lock_attempts);
	put_int64(values, nulls, Anum_blocks_copied, item->blocks_copied);
	put_int64(values, nulls, Anum_blocks_recopied, item->blocks_recopied);
	put_int64(values, nulls, Anum_wal_bytes, item->wal_written);
	put_text(values, nulls, Anum_sqlstate, item->sqlstate);
	put_text(values, nulls, Anum_message, item->detail);
	values[Anum_role - 1] = ObjectIdGetDatum(job->role);
}

/* Insert the item's row. */
void
history_insert(const JobShared *job, int n)
{
	Relation	rel = extension_open(HISTORY_TABLE);
	Datum		values[Natts_history];
	bool		nulls[Natts_history];
	HeapTuple	tuple;

	form_values(job, n, values, nulls);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	IM_POINT("history-insert");
	extension_insert(rel, tuple);
	heap_freetuple(tuple);
	extension_close(rel);
}

/*
 * Update the item's row.  It is no error if the row is gone: a user with that
 * right may delete it at any time.  But ERROR XX000 if another transaction
 * updates it now; the caller retries.
 */
void
history_update(const JobShared *job, int n)
{
	Relation	rel = extension_open(HISTORY_TABLE);
	ScanKeyData key[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key[0], Anum_job, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(job->job));
	ScanKeyInit(&key[1], Anum_item, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(n));
	scan = systable_beginscan(rel, extension_relation(HISTORY_PKEY), true,
							  NULL, 2, key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum		values[Natts_history];
		bool		nulls[Natts_history];
		HeapTuple	newtuple;

		form_values(job, n, values, nulls);
		newtuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
		IM_POINT("history-update");
		if (extension_delete(rel, tuple))
			extension_insert(rel, newtuple);
		heap_freetuple(newtuple);
	}
	systable_endscan(scan);
	extension_close(rel);
}

/* Return whether there is a row of this job. */
bool
history_exists(int64 job)
{
	Relation	rel = table_open(extension_relation(HISTORY_TABLE), AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	bool		result;

	ScanKeyInit(&key, Anum_job, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(job));
	scan = systable_beginscan(rel, extension_relation(HISTORY_PKEY), true,
							  NULL, 1, &key);
	result = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Return the rows of one job in the order of its plan; NIL: unknown job. */
List *
history_read(int64 job)
{
	Relation	rel = table_open(extension_relation(HISTORY_TABLE), AccessShareLock);
	ScanKeyData key;
	Relation	pkey = index_open(extension_relation(HISTORY_PKEY), AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *result = NIL;

	ScanKeyInit(&key, Anum_job, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(job));
	scan = systable_beginscan_ordered(rel, pkey, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		Datum		values[Natts_history];
		bool		nulls[Natts_history];
		HistoryEntry *entry = palloc0(sizeof(HistoryEntry));

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		entry->index_oid = DatumGetObjectId(values[Anum_index - 1]);
		entry->heap_oid = DatumGetObjectId(values[Anum_relation - 1]);
		entry->index_name = TextDatumGetCString(values[Anum_index_name - 1]);
		entry->from_tablespace = DatumGetObjectId(values[Anum_from_tablespace_oid - 1]);
		entry->to_tablespace = DatumGetObjectId(values[Anum_to_tablespace_oid - 1]);
		entry->method = TextDatumGetCString(values[Anum_method - 1]);
		entry->status = TextDatumGetCString(values[Anum_status - 1]);
		entry->role = DatumGetObjectId(values[Anum_role - 1]);
		result = lappend(result, entry);
	}
	systable_endscan_ordered(scan);
	index_close(pkey, AccessShareLock);
	table_close(rel, AccessShareLock);

	return result;
}
