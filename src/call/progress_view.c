/*-------------------------------------------------------------------------
 *
 * progress_view.c
 *	  Watching jobs: the view index_mover_progress.
 *
 * The numbers come from the runners' slots and, while core's REINDEX runs, from the numbers that
 * core publishes in the worker's backend status entry.
 *
 * Every user sees that a job is running.  Only the job's role, the table's
 * owner and pg_read_all_stats see the relation and the numbers.
 *
 * Locks: the slots' LWLock briefly, and as pg_blocking_pids().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/progress.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "compat.h"
#include "history.h"
#include "row.h"
#include "wait/wait.h"

PG_FUNCTION_INFO_V1(index_mover_running);
PG_FUNCTION_INFO_V1(index_mover_alive);
PG_FUNCTION_INFO_V1(index_mover_is_ours);
PG_FUNCTION_INFO_V1(index_mover_check_relation);
PG_FUNCTION_INFO_V1(index_mover_check_job);

/* columns of index_mover.running(), as in the SQL script */
enum
{
	Anum_running_pid = 1,
	Anum_running_job,
	Anum_running_name,
	Anum_running_kind,
	Anum_running_table_name,
	Anum_running_method,
	Anum_running_phase,
	Anum_running_throttled_by,
	Anum_running_blocks_total,
	Anum_running_blocks_done,
	Anum_running_blocks_changed,
	Anum_running_bytes_per_second,
	Anum_running_eta,
	Anum_running_lock_attempts,
	Anum_running_blocked_by,
	Anum_running_wal_lag_bytes,
	Anum_running_started_at,
	Anum_running_blocked_since,
	Anum_running_rests_since,
	Anum_running_relation,
	Anum_running_rest,
	Anum_running_rest_slot
};

/* columns of index_mover.alive(), as in the SQL script */
enum
{
	Anum_alive_job = 1,
	Anum_alive_paused,
	Anum_alive_bytes_done,
	Anum_alive_paused_since,
	Anum_alive_cleaning_up
};

/* Phases of pg_stat_progress_create_index, see system_views.sql */
static const char *const core_phases[] = {
	[0] = "initializing",
	[PROGRESS_CREATEIDX_PHASE_WAIT_1] = "waiting for writers before build",
	[PROGRESS_CREATEIDX_PHASE_BUILD] = "building index",
	[PROGRESS_CREATEIDX_PHASE_WAIT_2] = "waiting for writers before validation",
	[PROGRESS_CREATEIDX_PHASE_VALIDATE_IDXSCAN] = "index validation: scanning index",
	[PROGRESS_CREATEIDX_PHASE_VALIDATE_SORT] = "index validation: sorting tuples",
	[PROGRESS_CREATEIDX_PHASE_VALIDATE_TABLESCAN] = "index validation: scanning table",
	[PROGRESS_CREATEIDX_PHASE_WAIT_3] = "waiting for old snapshots",
	[PROGRESS_CREATEIDX_PHASE_WAIT_4] = "waiting for readers before marking dead",
	[PROGRESS_CREATEIDX_PHASE_WAIT_5] = "waiting for readers before dropping",
};

/*
 * Return the phase of a runner.  If that is core's, put core's numbers of blocks
 * and the process that core waits for into the copy of its slot.
 */
static const char *
look_at_backend(RunnerSlot *runner)
{
	const PgBackendStatus *status = NULL;
	const int64 *params;
	int64		phase;

	if (runner->phase == PHASE_REBUILDING)
		status = blockers_find(runner->pid);
	if (status == NULL || status->st_progress_command != PROGRESS_COMMAND_CREATE_INDEX)
		return phase_name(runner->phase);
	params = status->st_progress_param;
	phase = params[PROGRESS_CREATEIDX_PHASE];
	runner->blocks_total = params[PROGRESS_SCAN_BLOCKS_TOTAL];
	runner->blocks_done = params[PROGRESS_SCAN_BLOCKS_DONE];
	if (runner->nblockers == 0 && params[PROGRESS_WAITFOR_CURRENT_PID] != 0)
	{
		runner->nblockers = 1;
		runner->blockers[0] = params[PROGRESS_WAITFOR_CURRENT_PID];
	}
	if (phase < 0 || phase >= lengthof(core_phases))
		return phase_name(runner->phase);
	return core_phases[phase];
}

/* Return whether the copy stands still until a user, a session, a standby or a slot lets it go on. */
static bool
rests_for_others(const RunnerSlot *runner)
{
	RestKind	kind = runner->rest.kind;

	return runner->phase == PHASE_WAIT_START || runner->phase == PHASE_WAIT_SWAP_LOCK ||
		runner->phase == PHASE_GIVING_WAY ||
		(kind != REST_NONE && kind != REST_RATE && kind != REST_READING);
}

/*
 * Return the seconds left, -1 if unknown, as for a rebuild: core reports the progress
 * of one phase, and a number for that would be taken for one for all of the rest.
 */
static double
seconds_left(const RunnerSlot *runner)
{
	if (runner->method != METHOD_COPY || runner->eta < 0 || rests_for_others(runner))
		return -1;
	return Max(runner->eta - (GetCurrentTimestamp() - runner->eta_at) / 1e6, 0);
}

/* Return whether the current user may see the relation of a runner. */
static bool
may_see_job(const RunnerSlot *runner)
{
	return call_may_see(runner->role) ||
		(SearchSysCacheExists1(RELOID, ObjectIdGetDatum(runner->heap_oid)) &&
		 object_ownercheck(RelationRelationId, runner->heap_oid, GetUserId()));
}

/* Tell the client the progress of each runner of a job that it may see. */
void
progress_view_notices(int64 job)
{
	RunnerSlot	runners[IM_MAX_RUNNERS];
	int			nrunners = job_read_runners(runners);

	for (int n = 0; n < nrunners; n++)
	{
		RunnerSlot *runner = &runners[n];
		double		left = seconds_left(runner);
		const char *phase;
		StringInfoData buf;

		if (runner->job != job || runner->database != MyDatabaseId ||
			!OidIsValid(runner->heap_oid) || !may_see_job(runner))
			continue;
		phase = look_at_backend(runner);

		initStringInfo(&buf);
		if (runner->blocks_total > 0)
			appendStringInfo(&buf, ", %.0f %%",
							 100.0 * runner->blocks_done / runner->blocks_total);
		/* the rate of the last block written is no news in a later phase */
		if (runner->bytes_per_second > 0 && !rests_for_others(runner) &&
			(runner->phase == PHASE_COPYING || runner->phase == PHASE_CATCHING_UP))
			appendStringInfo(&buf, ", %.1f MB/s", runner->bytes_per_second / 1048576.0);
		if (runner->changed_per_second > 0)
			appendStringInfo(&buf, ", " INT64_FORMAT " blocks/s change",
							 runner->changed_per_second);
		if (left >= 0)
			appendStringInfo(&buf, ", about %.0f s left", left);
		if (runner->rest.kind != REST_NONE)
			appendStringInfo(&buf, ", throttled by %s", runner->rest.shown);
		for (int i = 0; i < runner->nblockers; i++)
		{
			appendStringInfoString(&buf, i == 0 ? ", waits for " : ", ");
			if (runner->blockers[i] != 0)
				appendStringInfo(&buf, "process %d", runner->blockers[i]);
			else
				appendStringInfoString(&buf, "a prepared transaction");
		}

		ereport(NOTICE,
				(errmsg("%s \"%s\": %s%s", relation_noun(runner->relkind), NameStr(runner->relname),
						phase, buf.data)));
	}
}

/* Return the pids that a runner waits for. */
static Datum
blocked_by(const RunnerSlot *runner)
{
	Datum		pids[IM_MAX_BLOCKERS];

	if (runner->nblockers == 0)
		return DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(runner->pid));
	for (int i = 0; i < runner->nblockers; i++)
		pids[i] = Int32GetDatum(runner->blockers[i]);
	return PointerGetDatum(construct_array(pids, runner->nblockers, INT4OID, sizeof(int32),
										   true, TYPALIGN_INT));
}

/* Set the columns of the relation that a runner moves. */
static void
set_relation(Row *row, const RunnerSlot *runner)
{
	const char *schema = NameStr(runner->schema_name);

	row_text(row, Anum_running_name,
			 notices_name(runner->relid, schema, NameStr(runner->relname)));
	row_text(row, Anum_running_kind, relation_kind(runner->relkind, schema));
	row_text(row, Anum_running_table_name,
			 notices_name(runner->heap_oid, schema, NameStr(runner->heap_name)));
	row_text(row, Anum_running_method, method_name(runner->method));
	row_set(row, Anum_running_blocks_total, Int64GetDatum(runner->blocks_total));
	row_set(row, Anum_running_blocks_done, Int64GetDatum(runner->blocks_done));
	row_set(row, Anum_running_blocks_changed, Int64GetDatum(runner->blocks_changed));
	row_set(row, Anum_running_lock_attempts, Int64GetDatum(runner->lock_attempts));
	row_set(row, Anum_running_relation, ObjectIdGetDatum(runner->item_relid));
}

/* Set the columns that tell how a runner gets on, and why it rests or waits. */
static void
set_advance(Row *row, const RunnerSlot *runner)
{
	double		left = seconds_left(runner);

	row_text(row, Anum_running_throttled_by, runner->rest.shown);
	if (runner->bytes_per_second > 0 && !rests_for_others(runner))
		row_set(row, Anum_running_bytes_per_second, Int64GetDatum(runner->bytes_per_second));
	/* in hundredths of a second: smaller units are noise */
	if (left >= 0)
		row_interval(row, Anum_running_eta,
					 (int64) rint(left * 100) * (USECS_PER_SEC / 100));
	row_set(row, Anum_running_blocked_by, blocked_by(runner));
	row_int64(row, Anum_running_wal_lag_bytes, runner->wal_lag);
	row_time(row, Anum_running_started_at, runner->started_at);
	if (runner->blocked_at != 0 && clock_us() - runner->blocked_at <= IM_BLOCKED_GAP)
		row_set(row, Anum_running_blocked_since, TimestampTzGetDatum(runner->blocked_since));
	if (runner->rested_at != 0 && clock_us() - runner->rested_at <= IM_BLOCKED_GAP)
		row_set(row, Anum_running_rests_since, TimestampTzGetDatum(runner->rests_since));
	row_text(row, Anum_running_rest, progress_rest_word(runner->rest.kind));
	row_text(row, Anum_running_rest_slot, NameStr(runner->rest.slot));
}

/*
 * index_mover_running(OUT ...) RETURNS SETOF record
 *
 * Returns a row per runner of this database; rates in bytes per second.
 * Every user may call it; the columns that tell of the relation are
 * NULL where may_see_job() returns false.
 */
Datum
index_mover_running(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	RunnerSlot	runners[IM_MAX_RUNNERS];
	int			nrunners;

	InitMaterializedSRF(fcinfo, 0);
	nrunners = job_read_runners(runners);

	for (int i = 0; i < nrunners; i++)
	{
		RunnerSlot *runner = &runners[i];
		Row			row;

		if (runner->database != MyDatabaseId)
			continue;
		row_clear(&row);
		row_set(&row, Anum_running_pid, Int32GetDatum(runner->pid));
		row_set(&row, Anum_running_job, Int64GetDatum(runner->job));
		if (may_see_job(runner))
		{
			/* first: it puts core's numbers into the copy of the slot */
			row_text(&row, Anum_running_phase, look_at_backend(runner));
			/* a worker that only cleans up has no relation of its own */
			if (OidIsValid(runner->heap_oid))
				set_relation(&row, runner);
			set_advance(&row, runner);
		}
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/*
 * index_mover_alive(OUT job bigint, OUT paused boolean, OUT bytes_done bigint,
 *		OUT paused_since timestamptz, OUT cleaning_up boolean) RETURNS SETOF record
 *
 * Returns the jobs of this database that are queued or have a live worker, or had one
 * when the query's snapshot was taken; how many bytes of their relations, as planned,
 * are done; and whether all of them are, and leftovers are being removed.  For every user;
 * raises no errors.
 */
Datum
index_mover_alive(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	JobSlot		slots[IM_MAX_JOBS];
	int			count = job_read_slots(slots, GetActiveSnapshot());

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < count; i++)
	{
		Row			row;

		row_clear(&row);
		row_set(&row, Anum_alive_job, Int64GetDatum(slots[i].job));
		row_set(&row, Anum_alive_paused, BoolGetDatum(slots[i].flags.pause));
		row_set(&row, Anum_alive_bytes_done, Int64GetDatum(slots[i].bytes_done));
		if (slots[i].flags.pause)
			row_set(&row, Anum_alive_paused_since, TimestampTzGetDatum(slots[i].paused_at));
		row_set(&row, Anum_alive_cleaning_up,
				BoolGetDatum(slots[i].state == JOB_CLEANING_UP));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/*
 * index_mover_is_ours(pid int) RETURNS boolean
 *
 * For index_mover_blockers(): whether the process is a worker of a job, or waits
 * for its rows.
 */
Datum
index_mover_is_ours(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(runner_knows_pid(PG_GETARG_INT32(0)));
}

/*
 * index_mover.check_job(job bigint) RETURNS void
 *
 * For index_mover_explain(): ERROR 42704 if there never was such a job, or it has been
 * deleted from the history.
 */
Datum
index_mover_check_job(PG_FUNCTION_ARGS)
{
	int64		job = PG_GETARG_INT64(0);
	JobSlot		slot;
	HistoryJob	entry;

	if (job == CLEANUP_JOB || (!job_find(job, &slot) && !history_read_job(job, &entry)))
		call_no_such_job(job);
	PG_RETURN_VOID();
}

/*
 * index_mover.check_relation(relation regclass) RETURNS void
 *
 * For index_mover_blockers() and index_report(): ERROR 42P01 if there is no such
 * relation, 42809 if a move can have nothing to do with it.
 */
Datum
index_mover_check_relation(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	char		relkind = get_rel_relkind(relid);

	if (relkind == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (!relkind_is_index(relkind) && !RELKIND_HAS_TABLE_AM(relkind) &&
		relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table, materialized view, or index", get_rel_name(relid)),
				 errdetail_relkind_not_supported(relkind)));
	PG_RETURN_VOID();
}
