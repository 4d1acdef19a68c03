/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The history: every job and its moves, for the views index_mover_jobs and
 *	  index_mover_history.
 *
 * A row says "queued" or "running" until the runner writes more; the view turns
 * that into "interrupted" if the job has no live runner.
 *
 * All functions run in the caller's transaction and need no privileges.
 *
 * Locks: RowExclusiveLock on the table until the end of the transaction, and a
 * lock on a job's row, see lock_job().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "errors.h"
#include "history.h"
#include "job.h"
#include "own_tables.h"
#include "test_points.h"

#define JOB_TABLE		"job_log"
#define JOB_SEQUENCE	"job_seq"
#define MOVE_TABLE		"move_log"
#define LATEST_MOVES	500
#define ALTER_WAIT_MS	1000
#define ALTER_NAP_MS	10
#define CLOSE_WAIT_MS	1000

/* columns of job_log and move_log, as in the SQL script */
enum
{
	Anum_job_log_job = 1,
	Anum_job_log_role,
	Anum_job_log_submitted_at,
	Anum_job_log_settings,
	Anum_job_log_undo_of,
	Anum_job_log_policy,
	Anum_job_log_rehearse,
	Anum_job_log_freeze_first,
	Anum_job_log_status,		/* NULL: it has not ended; see
								 * history_close_job() */
	Anum_job_log_moved,
	Anum_job_log_total,
	Anum_job_log_size,
	Anum_job_log_size_done,
	Anum_job_log_longest_lock,
	Anum_job_log_tablespace,
	Anum_job_log_started_at,
	Anum_job_log_finished_at,
	Anum_job_log_acknowledged_at,
	Anum_job_log_rest_of
};

enum
{
	Anum_move_log_job = 1,
	Anum_move_log_item,
	Anum_move_log_relation,
	Anum_move_log_old_relation,
	Anum_move_log_relation_name,
	Anum_move_log_kind,
	Anum_move_log_table_oid,
	Anum_move_log_table_name,
	Anum_move_log_from_tablespace,
	Anum_move_log_to_tablespace,
	Anum_move_log_from_tablespace_oid,
	Anum_move_log_to_tablespace_oid,
	Anum_move_log_requested,
	Anum_move_log_method,
	Anum_move_log_status,
	Anum_move_log_size_before,
	Anum_move_log_size_after,
	Anum_move_log_started_at,
	Anum_move_log_finished_at,
	Anum_move_log_idle,
	Anum_move_log_lock_time,
	Anum_move_log_lock_attempts,
	Anum_move_log_blocks_copied,
	Anum_move_log_blocks_recopied,
	Anum_move_log_wal_bytes,
	Anum_move_log_sqlstate,
	Anum_move_log_message
};

/* Insert the row of an item in its current state. */
void
history_insert(const JobShared *job, int n)
{
	const MoveItem *item = &job->items[n];
	const MoveOutcome *outcome = &item->outcome;
	Row			row;

	IM_POINT("history-insert");
	row_clear(&row);
	row_set(&row, Anum_move_log_job, Int64GetDatum(job->job));
	row_set(&row, Anum_move_log_item, Int32GetDatum(n));
	row_set(&row, Anum_move_log_relation, ObjectIdGetDatum(item->relid));
	row_set(&row, Anum_move_log_old_relation, ObjectIdGetDatum(item->old_relid));
	row_set(&row, Anum_move_log_relation_name, CStringGetTextDatum(NameStr(item->relname)));
	row_text(&row, Anum_move_log_kind, relation_kind(item->relkind, NameStr(item->schema_name)));
	row_set(&row, Anum_move_log_table_oid, ObjectIdGetDatum(item->heap_oid));
	row_text(&row, Anum_move_log_table_name,
			 quote_qualified_identifier(NameStr(item->schema_name), NameStr(item->heap_name)));
	row_tablespace(&row, Anum_move_log_from_tablespace, item->from_tablespace);
	row_tablespace(&row, Anum_move_log_to_tablespace, item->to_tablespace);
	row_set(&row, Anum_move_log_from_tablespace_oid, ObjectIdGetDatum(item->from_tablespace));
	row_set(&row, Anum_move_log_to_tablespace_oid, ObjectIdGetDatum(item->to_tablespace));
	row_text(&row, Anum_move_log_requested, method_name(item->requested));
	row_text(&row, Anum_move_log_method, method_name(item->method));
	row_text(&row, Anum_move_log_status, status_name(outcome->status));
	row_int64(&row, Anum_move_log_size_before, item->size_before);
	row_int64(&row, Anum_move_log_size_after, outcome->size_after);
	row_time(&row, Anum_move_log_started_at, outcome->started_at);
	row_time(&row, Anum_move_log_finished_at, outcome->finished_at);
	row_int64(&row, Anum_move_log_idle, outcome->idle / 1000);
	row_interval(&row, Anum_move_log_lock_time, outcome->lock_time);
	row_int64(&row, Anum_move_log_lock_attempts, outcome->lock_attempts);
	row_int64(&row, Anum_move_log_blocks_copied, outcome->blocks_copied);
	row_int64(&row, Anum_move_log_blocks_recopied, outcome->blocks_recopied);
	row_int64(&row, Anum_move_log_wal_bytes, outcome->wal_written);
	row_text(&row, Anum_move_log_sqlstate, outcome->sqlstate);
	row_text(&row, Anum_move_log_message, outcome->detail);
	extension_insert(MOVE_TABLE, &row);
}

/* Return the key of a job's rows; the first column of both tables. */
static ScanKeyData
key_of_job(int64 job)
{
	return extension_key(1, F_INT8EQ, Int64GetDatum(job));
}

/* Return that of the rows of later jobs. */
static ScanKeyData
key_after(int64 job)
{
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(job));
	return key;
}

/* Begin a scan at the row of a job; false, and the scan has ended, if there is none. */
static bool
scan_job(ExtensionScan *scan, int64 job)
{
	ScanKeyData key = key_of_job(job);

	extension_scan_begin(scan, JOB_TABLE, 1, &key);
	return extension_scan_next(scan);
}

/*
 * Draw a number for a job, greater than all that the history has: the sequence is
 * unlogged, so a crash sets it back.  Assigns no transaction ID.
 */
int64
history_next_job(void)
{
	ScanKeyData key = key_after(0);
	ExtensionScan scan;
	int64		last = 0;

	extension_scan_begin(&scan, JOB_TABLE, 1, &key);
	scan.direction = BackwardScanDirection;
	if (extension_scan_next(&scan))
	{
		last = DatumGetInt64(scan.row.values[Anum_job_log_job - 1]);
		extension_scan_end(&scan);
	}
	return extension_nextval(JOB_SEQUENCE, last);
}

/*
 * Lock a job's row, as an object of the table, to the end of the transaction: in
 * ShareLock to close it or, to alter the job, in ExclusiveLock.  Returns false if
 * the lock is not available.
 */
static bool
lock_job(int64 job, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, extension_relation(JOB_TABLE),
					   (uint32) job, (uint16) (job >> 32));
	return LockAcquire(&tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Insert the row of a job.  Until the end of the transaction no other can alter the job, as it
 * would not find the row.
 */
void
history_insert_job(int64 job, const HistoryJob *entry)
{
	Row			row;

	(void) lock_job(job, ExclusiveLock);
	row_clear(&row);
	row_set(&row, Anum_job_log_job, Int64GetDatum(job));
	row_set(&row, Anum_job_log_role, ObjectIdGetDatum(entry->role));
	row_set(&row, Anum_job_log_submitted_at, TimestampTzGetDatum(entry->submitted_at));
	row_set(&row, Anum_job_log_settings,
			DirectFunctionCall1(jsonb_in, CStringGetDatum(entry->settings)));
	row_set(&row, Anum_job_log_undo_of, Int64GetDatum(entry->terms.undo_of));
	if (NameStr(entry->terms.policy)[0] != '\0')
		row_set(&row, Anum_job_log_policy, NameGetDatum(&entry->terms.policy));
	row_set(&row, Anum_job_log_rehearse, BoolGetDatum(entry->terms.rehearse));
	row_set(&row, Anum_job_log_freeze_first, BoolGetDatum(entry->terms.freeze_first));
	if (entry->terms.rest_of != 0)
		row_set(&row, Anum_job_log_rest_of, Int64GetDatum(entry->terms.rest_of));
	extension_insert(JOB_TABLE, &row);
}

/*
 * Let no other transaction alter this job until the end of ours.  ERROR 55P03 if the
 * transaction of another session that has submitted or altered it stays open.
 */
void
history_lock_job(int64 job)
{
	double		begin = clock_seconds();

	while (!lock_job(job, ExclusiveLock))
	{
		if (clock_has_passed(begin, ALTER_WAIT_MS))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not obtain lock on job " INT64_FORMAT, job),
					 errdetail("Another session has submitted or changed the job, and its transaction is still open.")));
		latch_nap(ALTER_NAP_MS, "IndexMoverRecord");
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Record a job's altered settings, after history_lock_job().  Returns false if the job has
 * ended: how it has done so stays on record.  It is no error if its row is gone.
 */
bool
history_alter_job(int64 job, const char *settings)
{
	ScanKeyData key = key_of_job(job);
	ExtensionScan scan;
	HistoryJob	entry;
	bool		ended;
	bool		deleted = false;

	if (!scan_job(&scan, job))
		return true;
	ended = !scan.row.nulls[Anum_job_log_status - 1];
	extension_scan_end(&scan);
	if (ended)
		return false;
	if (history_read_job(job, &entry))
		deleted = extension_delete(JOB_TABLE, 1, &key);
	if (deleted)
	{
		entry.settings = settings;
		history_insert_job(job, &entry);
	}
	/* a statement may do this twice */
	CommandCounterIncrement();
	return true;
}

/*
 * Record that a user knows how an ended job has ended.  Returns false if that was
 * on record, or its row is gone, or another transaction is just changing it.
 */
bool
history_acknowledge_job(int64 job)
{
	ExtensionScan scan;
	bool		done;

	history_lock_job(job);
	if (!scan_job(&scan, job))
		return false;
	done = scan.row.nulls[Anum_job_log_acknowledged_at - 1];
	if (done)
		done = extension_delete_row(JOB_TABLE, &scan.tuple->t_self);
	if (done)
	{
		row_set(&scan.row, Anum_job_log_acknowledged_at,
				TimestampTzGetDatum(GetCurrentTimestamp()));
		extension_insert(JOB_TABLE, &scan.row);
	}
	extension_scan_end(&scan);
	CommandCounterIncrement();
	return done;
}

/* Set the columns of a job's row that tell of its moves together. */
static void
sum_up(const JobShared *job, Row *row)
{
	static const int badness[] = {
		[STATUS_SKIPPED] = 0,[STATUS_REHEARSED] = 1,[STATUS_MOVED] = 2,
		[STATUS_CANCELED] = 3,[STATUS_FAILED] = 4
	};
	JobTotals	totals = job_totals(job->items, job->nitems);
	MoveStatus	worst = STATUS_SKIPPED;
	int64		size_done = 0;
	int64		longest_lock = -1;
	TimestampTz started_at = 0;
	TimestampTz finished_at = 0;

	for (int i = 0; i < job->nitems; i++)
	{
		const MoveOutcome *outcome = &job->items[i].outcome;

		if (badness[outcome->status] > badness[worst])
			worst = outcome->status;
		longest_lock = Max(longest_lock, outcome->lock_time);
		finished_at = Max(finished_at, outcome->finished_at);
		if (outcome->started_at == 0)
			continue;
		if (started_at == 0 || outcome->started_at < started_at)
			started_at = outcome->started_at;
		/* an item that was skipped when its turn came has nothing left to do */
		if (STATUS_IS_DONE(outcome->status))
			size_done += Max(job->items[i].size_before, 0);
	}
	row_text(row, Anum_job_log_status, status_name(worst));
	row_int64(row, Anum_job_log_size, totals.size);
	row_int64(row, Anum_job_log_size_done, size_done);
	row_set(row, Anum_job_log_moved, Int32GetDatum(totals.moved));
	row_set(row, Anum_job_log_total, Int32GetDatum(totals.total));
	row_interval(row, Anum_job_log_longest_lock, longest_lock);
	row_tablespace(row, Anum_job_log_tablespace, totals.tablespace);
	row_time(row, Anum_job_log_started_at, started_at);
	row_time(row, Anum_job_log_finished_at, finished_at);
}

/*
 * If all moves of a job have ended, keep their totals with the job, so that
 * index_mover_jobs need not read them; where this is left out, it does.  So it
 * is no error if the row is gone, and a lock is not waited for, nor, for more than a second,
 * the end of a transaction that has altered the job.
 */
void
history_close_job(const JobShared *job)
{
	ExtensionScan scan;
	double		begin = clock_seconds();
	bool		closed;

	/* from the end, where a job that runs has its queued items */
	for (int i = job->nitems - 1; i >= 0; i--)
	{
		if (job->items[i].outcome.status <= STATUS_RUNNING)
			return;
	}
	if (!ConditionalLockRelationOid(extension_relation(JOB_TABLE), RowExclusiveLock))
		return;
	if (!lock_job(job->job, ShareLock))
		return;
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());	/* before the scan */
	while (scan_job(&scan, job->job))
	{
		sum_up(job, &scan.row);
		IM_POINT("history-close");

		/*
		 * another runner, which may not have seen all of our outcome, may be
		 * first: it commits at once.  A user's transaction may not.
		 */
		closed = extension_delete_free_row(JOB_TABLE, &scan.tuple->t_self);
		if (closed)
			extension_insert(JOB_TABLE, &scan.row);
		extension_scan_end(&scan);
		if (closed || proc_exit_inprogress || clock_has_passed(begin, CLOSE_WAIT_MS))
			break;
		latch_nap(ALTER_NAP_MS, "IndexMoverRecord");
		CHECK_FOR_INTERRUPTS();
	}
	PopActiveSnapshot();
}

/*
 * Update the item's row.  It is no error if the row is gone: a user with that
 * right may delete it.  But ERROR 40001 if another transaction updates it now; the
 * caller retries.
 */
void
history_update(const JobShared *job, int n)
{
	ScanKeyData keys[] = {
		key_of_job(job->job),
		extension_key(Anum_move_log_item, F_INT4EQ, Int32GetDatum(n))
	};

	IM_POINT("history-update");
	if (extension_delete(MOVE_TABLE, lengthof(keys), keys))
		history_insert(job, n);
	runner_note_record();
}

/* Read the row of a job into *entry; returns false if there is none. */
bool
history_read_job(int64 job, HistoryJob *entry)
{
	ExtensionScan scan;
	const Datum *values = scan.row.values;
	Jsonb	   *settings;

	if (!scan_job(&scan, job))
		return false;
	settings = DatumGetJsonbP(values[Anum_job_log_settings - 1]);
	entry->role = DatumGetObjectId(values[Anum_job_log_role - 1]);
	entry->submitted_at = DatumGetTimestampTz(values[Anum_job_log_submitted_at - 1]);
	entry->settings = JsonbToCString(NULL, &settings->root, 0);
	memset(&entry->terms, 0, sizeof(JobTerms));
	entry->terms.undo_of = DatumGetInt64(values[Anum_job_log_undo_of - 1]);
	if (!scan.row.nulls[Anum_job_log_policy - 1])
		entry->terms.policy = *DatumGetName(values[Anum_job_log_policy - 1]);
	entry->terms.rehearse = DatumGetBool(values[Anum_job_log_rehearse - 1]);
	entry->terms.freeze_first = DatumGetBool(values[Anum_job_log_freeze_first - 1]);
	if (!scan.row.nulls[Anum_job_log_rest_of - 1])
		entry->terms.rest_of = DatumGetInt64(values[Anum_job_log_rest_of - 1]);
	extension_scan_end(&scan);
	return true;
}

/*
 * Return the last job that goes on with a policy's job, by resume_move(), or that job
 * itself; 0 if it was rolled back, and a crash gave its number to another.  The name alone
 * tells nothing of a later job: another policy can have had it before.
 */
int64
history_last_of_policy(const char *policy, int64 job)
{
	ExtensionScan scan;
	const Row  *row = &scan.row;
	ScanKeyData keys[2];
	HistoryJob	entry;
	int64		result = job;

	if (history_read_job(job, &entry) && strcmp(NameStr(entry.terms.policy), policy) != 0)
		return 0;
	/* rests have the policy's name, too */
	keys[0] = extension_key(Anum_job_log_policy, F_NAMEEQ, CStringGetDatum(policy));
	ScanKeyInit(&keys[1], Anum_job_log_job, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(job));
	extension_scan_begin_index(&scan, JOB_TABLE, "job_log_policy", lengthof(keys), keys);
	while (extension_scan_next(&scan))
	{
		if (!row->nulls[Anum_job_log_rest_of - 1] &&
			DatumGetInt64(row->values[Anum_job_log_rest_of - 1]) == job)
			result = DatumGetInt64(row->values[Anum_job_log_job - 1]);
	}
	return result;
}

static char *
log_text(const Row *row, int column)
{
	return row->nulls[column - 1] ? NULL : TextDatumGetCString(row->values[column - 1]);
}

static char *
log_name(const Row *row, int column)
{
	return row->nulls[column - 1] ? NULL : pstrdup(NameStr(*DatumGetName(row->values[column - 1])));
}

/*
 * Return the moves of a job in the order of its plan, NIL if it is unknown; or the
 * latest of ALL_JOBS_BACKWARD.
 */
List *
history_read(int64 job)
{
	List	   *result = NIL;
	bool		all = (job == ALL_JOBS_BACKWARD);
	ExtensionScan scan;
	const Row  *row = &scan.row;
	ScanKeyData key = all ? key_after(0) : key_of_job(job);

	extension_scan_begin(&scan, MOVE_TABLE, 1, &key);
	if (all)
		scan.direction = BackwardScanDirection;
	while (extension_scan_next(&scan))
	{
		HistoryEntry *entry = palloc0(sizeof(HistoryEntry));

		entry->relid = DatumGetObjectId(row->values[Anum_move_log_relation - 1]);
		entry->heap_oid = DatumGetObjectId(row->values[Anum_move_log_table_oid - 1]);
		entry->relname = log_text(row, Anum_move_log_relation_name);
		entry->kind = log_text(row, Anum_move_log_kind);
		entry->from_tablespace =
			DatumGetObjectId(row->values[Anum_move_log_from_tablespace_oid - 1]);
		entry->to_tablespace = DatumGetObjectId(row->values[Anum_move_log_to_tablespace_oid - 1]);
		entry->from_name = log_name(row, Anum_move_log_from_tablespace);
		entry->to_name = log_name(row, Anum_move_log_to_tablespace);
		entry->requested = method_of_name(log_text(row, Anum_move_log_requested));
		entry->method = method_of_name(log_text(row, Anum_move_log_method));
		entry->status = status_of_name(log_text(row, Anum_move_log_status));
		entry->size = row->nulls[Anum_move_log_size_before - 1] ? 0 :
			DatumGetInt64(row->values[Anum_move_log_size_before - 1]);
		/* a time without a size tells no speed */
		if (!row->nulls[Anum_move_log_started_at - 1] &&
			!row->nulls[Anum_move_log_finished_at - 1] &&
			!row->nulls[Anum_move_log_size_before - 1])
			entry->worked = (DatumGetTimestampTz(row->values[Anum_move_log_finished_at - 1]) -
							 DatumGetTimestampTz(row->values[Anum_move_log_started_at - 1])) / 1e6 -
				DatumGetInt64(row->values[Anum_move_log_idle - 1]) / 1e3;
		entry->lock_time = row->nulls[Anum_move_log_lock_time - 1] ? -1 :
			DatumGetIntervalP(row->values[Anum_move_log_lock_time - 1])->time;
		entry->sqlstate = log_text(row, Anum_move_log_sqlstate);
		entry->message = log_text(row, Anum_move_log_message);
		result = lappend(result, entry);
		if (all && list_length(result) == LATEST_MOVES)
		{
			extension_scan_end(&scan);
			break;
		}
	}
	return result;
}

/*
 * Call "add" for each job of a role, or for each move of a table and its indexes, from the
 * newest on, until it returns false.  The current query sees these rows.
 */
void
history_newest_jobs(bool of_role, Oid key_oid, bool (*add) (int64 job, void *arg), void *arg)
{
	ScanKeyData key = extension_key(of_role ? Anum_job_log_role : Anum_move_log_table_oid, F_OIDEQ,
									ObjectIdGetDatum(key_oid));
	AttrNumber	column = of_role ? Anum_job_log_job : Anum_move_log_job;
	ExtensionScan scan;

	if (of_role)
		extension_scan_begin_query(&scan, JOB_TABLE, "job_log_role", 1, &key);
	else
		extension_scan_begin_query(&scan, MOVE_TABLE, "move_log_table", 1, &key);
	scan.direction = BackwardScanDirection;
	while (extension_scan_next(&scan))
	{
		if (!add(DatumGetInt64(scan.row.values[column - 1]), arg))
		{
			extension_scan_end(&scan);
			break;
		}
	}
}

/*
 * Call "look" for the table and the job of each move that the current query sees, from the
 * newest on, until it returns false.
 */
void
history_newest_moves(bool (*look) (int64 job, Oid table, void *arg), void *arg)
{
	ScanKeyData key = key_after(0);
	ExtensionScan scan;
	const Datum *values = scan.row.values;

	extension_scan_begin_query(&scan, MOVE_TABLE, "move_log_pkey", 1, &key);
	scan.direction = BackwardScanDirection;
	while (extension_scan_next(&scan))
	{
		if (!look(DatumGetInt64(values[Anum_move_log_job - 1]),
				  DatumGetObjectId(values[Anum_move_log_table_oid - 1]), arg))
		{
			extension_scan_end(&scan);
			break;
		}
	}
}

/*
 * Return the relations of a table that were moved since a moment, and by which job: a List of
 * TableMove, the newest first.
 */
List *
history_moves_of_table(Oid table, TimestampTz since)
{
	List	   *result = NIL;
	ScanKeyData key = extension_key(Anum_move_log_table_oid, F_OIDEQ, ObjectIdGetDatum(table));
	ExtensionScan scan;
	const Row  *row = &scan.row;

	extension_scan_begin_index(&scan, MOVE_TABLE, "move_log_table", 1, &key);
	scan.direction = BackwardScanDirection;
	while (extension_scan_next(&scan))
	{
		TableMove  *move;

		CHECK_FOR_INTERRUPTS();
		if (row->nulls[Anum_move_log_finished_at - 1])
			continue;
		/* a table is in one job at a time, so all before are older */
		if (DatumGetTimestampTz(row->values[Anum_move_log_finished_at - 1]) <= since)
		{
			extension_scan_end(&scan);
			break;
		}
		if (status_of_name(log_text(row, Anum_move_log_status)) != STATUS_MOVED)
			continue;
		move = palloc_object(TableMove);
		move->relid = DatumGetObjectId(row->values[Anum_move_log_relation - 1]);
		move->relname = log_text(row, Anum_move_log_relation_name);
		move->job = DatumGetInt64(row->values[Anum_move_log_job - 1]);
		move->moved_at = DatumGetTimestampTz(row->values[Anum_move_log_finished_at - 1]);
		move->from_tablespace =
			DatumGetObjectId(row->values[Anum_move_log_from_tablespace_oid - 1]);
		result = lappend(result, move);
	}
	return result;
}

/*
 * Find out whether the last move of a relation that is on record is a rebuild that has not ended well: it
 * has failed, was canceled or interrupted, or goes on.
 */
bool
history_find_open_rebuild(Oid relid)
{
	ScanKeyData key = extension_key(Anum_move_log_relation, F_OIDEQ, ObjectIdGetDatum(relid));
	ExtensionScan scan;
	const Row  *row = &scan.row;
	bool		result = false;

	extension_scan_begin_index(&scan, MOVE_TABLE, "move_log_relation", 1, &key);
	scan.direction = BackwardScanDirection;
	if (extension_scan_next(&scan))
	{
		result = method_of_name(log_text(row, Anum_move_log_method)) == METHOD_REBUILD &&
			!STATUS_IS_SUCCESS(status_of_name(log_text(row, Anum_move_log_status)));
		extension_scan_end(&scan);
	}
	return result;
}

/*
 * Relations are followed by OID, because a relation can be renamed, and another one
 * get its name.  The row of a rebuild has the OIDs before and after.  Only where
 * neither exists any more (a rebuild that was not recorded, or not ours) is an
 * index found by its name.
 */

/* Note that a relation was moved or, if its worker was killed, may have been. */
static bool
note_move(HistoryEntry *entry, MoveStatus status, Oid from, Oid to)
{
	bool		moved = (status == STATUS_MOVED);

	if (status == STATUS_RUNNING)
		moved = get_rel_relkind(entry->relid) != '\0' && from != to &&
			tablespace_from_catalog(get_rel_tablespace(entry->relid)) == to;
	entry->last_from = moved ? to : from;
	entry->last_to = to;
	return moved;
}

/* Return the last entry for a relation; NULL if there is none. */
static HistoryEntry *
entry_for(List *entries, Oid relid)
{
	HistoryEntry *result = NULL;

	foreach_ptr(HistoryEntry, entry, entries)
		result = entry->relid == relid ? entry : result;
	return result;
}

/* Add a job to the movers of an entry. */
static void
add_mover(HistoryEntry *entry, int64 job)
{
	int64	   *copy = palloc(sizeof(int64));

	*copy = job;
	entry->movers = lappend(entry->movers, copy);
}

/* Keep the entries of a job up to date with all later jobs. */
static void
follow(int64 job, List *entries)
{
	ScanKeyData key = key_after(job);
	ExtensionScan scan;
	const Datum *values = scan.row.values;
	int64		mover = 0;
	HistoryJob	mover_row = {0};

	extension_scan_begin(&scan, MOVE_TABLE, 1, &key);
	while (extension_scan_next(&scan))
	{
		Oid			relid = DatumGetObjectId(values[Anum_move_log_relation - 1]);
		Oid			old_relid = DatumGetObjectId(values[Anum_move_log_old_relation - 1]);
		HistoryEntry *entry = entry_for(entries, old_relid);

		CHECK_FOR_INTERRUPTS();
		if (entry == NULL)
			entry = entry_for(entries, relid);
		if (entry == NULL)
			continue;
		entry->relid = relid;
		entry->relname = TextDatumGetCString(values[Anum_move_log_relation_name - 1]);
		if (!note_move(entry, status_of_name(TextDatumGetCString(values[Anum_move_log_status - 1])),
					   DatumGetObjectId(values[Anum_move_log_from_tablespace_oid - 1]),
					   DatumGetObjectId(values[Anum_move_log_to_tablespace_oid - 1])))
			continue;
		if (mover != DatumGetInt64(values[Anum_move_log_job - 1]))
		{
			mover = DatumGetInt64(values[Anum_move_log_job - 1]);
			if (!history_read_job(mover, &mover_row))
				mover_row.terms.undo_of = 0;
		}
		if (entry->movers != NIL && *(int64 *) llast(entry->movers) == mover_row.terms.undo_of)
		{
			entry->movers = list_delete_last(entry->movers);
			if (mover_row.terms.undo_of == job)
				entry->undone_by = mover;
		}
		else
			add_mover(entry, mover);
	}
}

/* Return whether the relation of an entry still exists. */
static bool
still_exists(const HistoryEntry *entry)
{
	return entry->relid == entry->heap_oid ? get_rel_relkind(entry->relid) != '\0' :
		IndexGetRelation(entry->relid, true) == entry->heap_oid;
}

/* Return the index of its name, on the same table, and in the tablespace where it was. */
static Oid
find_rebuilt(const HistoryEntry *entry)
{
	Oid			result = get_relname_relid(entry->relname, get_rel_namespace(entry->heap_oid));
	Oid			place;

	if (entry->relid == entry->heap_oid || !OidIsValid(result) ||
		IndexGetRelation(result, true) != entry->heap_oid)
		return InvalidOid;
	place = tablespace_from_catalog(get_rel_tablespace(result));
	return place == entry->last_from || place == entry->last_to ? result : InvalidOid;
}

/*
 * Find out for the entries of a job which relations they are now, and which jobs
 * have moved them.  Reads the later part of the history once, or twice if indexes
 * have to be found by name.
 */
void
history_trace(int64 job, List *entries)
{
	List	   *followed = entries;

	foreach_ptr(HistoryEntry, entry, entries)
	{
		add_mover(entry, job);
		(void) note_move(entry, entry->status, entry->from_tablespace, entry->to_tablespace);
	}
	for (int round = 0; followed != NIL && round < 2; round++)
	{
		List	   *found_by_name = NIL;

		follow(job, followed);
		foreach_ptr(HistoryEntry, entry, followed)
		{
			if (still_exists(entry))
				continue;
			entry->relid = InvalidOid;
			if (round == 0)
				entry->relid = find_rebuilt(entry);
			if (OidIsValid(entry->relid))
				found_by_name = lappend(found_by_name, entry);
		}
		followed = found_by_name;
	}
	foreach_ptr(HistoryEntry, entry, entries)
	{
		/* moved by no other job since, it is where this job has left it */
		if (list_length(entry->movers) == 1 && entry->undone_by == 0)
			entry->moved = note_move(entry, entry->status, entry->from_tablespace,
									 entry->to_tablespace);
		else
			entry->moved = (entry->status == STATUS_MOVED);
	}
}

/* Delete rows of the history.  ERROR 55P03 if another transaction is deleting one, which may last long. */
static void
expire_rows(const char *table, ScanKey key)
{
	ExtensionScan scan;

	extension_scan_begin(&scan, table, 1, key);
	while (extension_scan_next(&scan))
	{
		if (!extension_delete_free_row(table, &scan.tuple->t_self))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not obtain lock on row in relation \"%s\"", table)));
	}
}

/* For errors_catch(): delete all rows of a job, of this number. */
static void
expire_job(void *job)
{
	ScanKeyData key = key_of_job(*(int64 *) job);

	expire_rows(MOVE_TABLE, &key);
	expire_rows(JOB_TABLE, &key);
}

/*
 * Delete jobs that were submitted before this time and have ended, unless dry_run.
 * Returns how many.  One that cannot be deleted, because a user is changing its
 * rows, is a WARNING.
 */
int
history_expire(TimestampTz before, bool dry_run)
{
	ExtensionScan scan;
	int			result = 0;

	extension_scan_begin(&scan, JOB_TABLE, 0, NULL);
	while (extension_scan_next(&scan))
	{
		int64		job = DatumGetInt64(scan.row.values[Anum_job_log_job - 1]);
		JobSlot		slot;
		ErrorData  *error = NULL;

		if (DatumGetTimestampTz(scan.row.values[Anum_job_log_submitted_at - 1]) >= before ||
			job_find(job, &slot))
			continue;
		if (!dry_run)
			error = errors_catch(expire_job, &job);
		if (error == NULL)
			result++;
		else if (errors_was_canceled(error))
			ReThrowError(error);
		else
			ereport(WARNING,
					(errmsg("could not delete job " INT64_FORMAT " from the history", job),
					 errors_as_detail(error)));
	}
	CommandCounterIncrement();
	return result;
}
