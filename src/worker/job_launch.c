/*-------------------------------------------------------------------------
 *
 * job_launch.c
 *	  Creating a job: its segment, its slot, its first worker.
 *
 * A job without a slot or a worker fails, but an *optional* job, a cleanup that no
 * call asked for, is only not done.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "miscadmin.h"

#include "channel.h"
#include "compat.h"
#include "own_tables.h"
#include "printed_command.h"
#include "test_points.h"
#include "wait/free_space.h"
#include "worker/worker.h"

/* Warn that an optional job was given up. */
void
job_launch_warn(void)
{
	ereport(WARNING,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("could not start a job to remove what interrupted moves have left"),
			 errhint("The next call for the table will try again, or: %s",
					 printed_command("cleanup"))));
}

/*
 * Create the job's segment, and pin it until the end of the slot that this takes.
 * ERROR 53000 without a free segment or slot; but an optional job is given up, and
 * NULL returned.  Also the ERRORs of job_take_slot().
 */
JobShared *
job_launch_create(int64 job, Oid database, Oid role, JobPurpose purpose,
				  JobState state, List *items, const MoveSettings *settings,
				  bool waits, dsm_segment **segment)
{
	JobShared  *shared;
	int			n = 0;
	bool		optional = purpose == JOB_CLEANUP && !waits;
	const char *why_not;
	int			moves = 0;
	int			max_runners;

	/* a table is one move with its TOAST table */
	foreach_ptr(const MoveItem, item, items)
		moves += !OidIsValid(item->part_of);
	max_runners = 1;
	/* besides the runners at work, others wait for locks: runner_make_room() */
	if (purpose == JOB_MOVE && settings->max_workers > 1)
		max_runners = Max(1, Min(moves, IM_LIMIT("runners", MAX_WORKERS)));
	*segment = channel_create(job_shared_size(list_length(items), max_runners));
	if (*segment == NULL && optional)
		return NULL;
	if (*segment == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("too many dynamic shared memory segments"),
				 errhint("You may need to increase \"max_connections\".")));

	shared = dsm_segment_address(*segment);
	memset(shared, 0, offsetof(JobShared, items));
	shared->job = job;
	shared->database = database;
	shared->role = role;
	/* a cleanup can be of another database */
	if (purpose == JOB_MOVE)
		shared->extension = extension_oid();
	shared->submitted_at = GetCurrentTimestamp();
	shared->submitted_clock = clock_seconds();
	shared->settings = *settings;
	shared->nitems = list_length(items);
	shared->wal_free = free_space_for_wal();
	shared->max_runners = max_runners;
	shared->caller_pid = waits ? MyProcPid : 0;
	shared->caller_procno = MyProcNumber;
	pg_atomic_init_u32(&shared->rows_final, 0);
	pg_atomic_init_u32(&shared->end_logged, 0);
	pg_atomic_init_u32(&shared->extension_gone, 0);
	pg_atomic_init_u32(&shared->settings_version, 0);
	foreach_ptr(const MoveItem, item, items)
		shared->items[n++] = *item;

	why_not = job_take_slot(shared, dsm_segment_handle(*segment), purpose, state);
	if (why_not != NULL)
	{
		if (optional)
		{
			dsm_detach(*segment);
			return NULL;
		}
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("too many index_mover jobs"),
				 errdetail_internal("%s", why_not),
				 errhint("Wait until one has ended, or cancel one; see %s. You may need to increase \"max_worker_processes\".",
						 printed_command("jobs"))));
	}
	dsm_pin_segment(*segment);
	return shared;
}

/*
 * Have the postmaster start the job's first worker.  ERROR 53000 without a free
 * worker slot.
 */
BackgroundWorkerHandle *
job_launch_worker(int slot, int64 job)
{
	BackgroundWorkerHandle *handle = job_register_runner(slot, job, 0, MyProcPid);

	if (handle == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not register background process"),
				 errhint("You may need to increase \"max_worker_processes\".")));
	return handle;
}

/*
 * Start a worker that cleans up in a database, or the tables of these items only, and
 * returns no rows; notify_pid: as in job_register_runner().  Returns NULL if no segment, slot
 * or worker is free; else *segment is mapped.
 */
static BackgroundWorkerHandle *
start_cleanup_job(int64 job, Oid database, Oid role, List *items, const Look *look,
				  int notify_pid, dsm_segment **segment)
{
	JobShared  *shared;
	BackgroundWorkerHandle *worker;
	MoveSettings settings;

	settings_capture(&settings, NULL, false);
	shared = job_launch_create(job, database, role, JOB_CLEANUP, JOB_STARTING, items,
							   &settings, false, segment);
	if (shared == NULL)
		return NULL;
	if (look != NULL)
		shared->look = *look;
	worker = job_register_runner(shared->slot, job, 0, notify_pid);
	if (worker == NULL)
		dsm_detach(*segment);
	return worker;
}

/*
 * Start a worker that cleans up in a database, or the tables of these items only, and
 * returns no rows.  Returns false if no segment, slot or worker is free.  Needs no
 * transaction.
 */
bool
job_launch_cleanup(int64 job, Oid database, Oid role, List *items)
{
	dsm_segment *segment;

	if (start_cleanup_job(job, database, role, items, NULL, 0, &segment) == NULL)
		return false;
	dsm_detach(segment);
	return true;
}

/*
 * Start a cleanup of a database for the launcher, which also looks for lost indexes.  Its answer is
 * the look in *segment, a JobShared, which the caller detaches when the worker has ended.  Returns NULL
 * if no segment, slot or worker is free.
 */
BackgroundWorkerHandle *
job_launch_look(const Look *look, dsm_segment **segment)
{
	return start_cleanup_job(CLEANUP_JOB, look->database, BOOTSTRAP_SUPERUSERID, NIL, look,
							 MyProcPid, segment);
}
