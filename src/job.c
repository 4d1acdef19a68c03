/*-------------------------------------------------------------------------
 *
 * job.c
 *	  Jobs in shared memory: their slots, their segments, their flags.
 *
 * Assumption: the area is so small (22 kB) that it fits into the slack of the
 * main shared memory of 15 and 16, and nothing must be preloaded; from 17 on
 * it is a named DSM segment.
 *
 * Locks: an LWLock guards all slots, for moments only.  A second LWLock,
 * submit_lock, is held while a new job's tables are compared with the tables of
 * the other jobs, which requires mapping their segments.  Only submitters
 * take it, and always before the first.
 *
 * Tricky: a slot is freed by its last runner, even when that exits with
 * FATAL.  But the postmaster may fail to start the worker.  So a slot that
 * has been JOB_STARTING for minutes is freed by the next process that looks
 * for a job or submits one; a worker that starts after all exits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "channel.h"
#include "compat.h"
#include "job_private.h"
#include "printed_command.h"
#include "test_points.h"

#define AREA_NAME			"index_mover"
#define START_TIMEOUT_MS	(5 * 60 * 1000)

static JobArea *area = NULL;

static void
init_job_area(IM_AREA_INIT_ARGS)
{
	JobArea    *new_area = memset(ptr, 0, sizeof(JobArea));

	new_area->tranche = LWLockNewTrancheId(AREA_NAME);
	LWLockInitialize(&new_area->lock, new_area->tranche);
	LWLockInitialize(&new_area->submit_lock, new_area->tranche);
}

/* Reserve the area's memory, in a shmem_request_hook. */
void
job_request_shmem(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(JobArea)) + channel_shmem_size());
}

/* Count the memory that jobs share; to be called by _PG_init(). */
void
job_init(void)
{
	channel_layout_add(sizeof(JobArea));
	channel_layout_add(sizeof(JobSlot));
	channel_layout_add(sizeof(RunnerSlot));
	channel_layout_add(sizeof(JobShared));
	channel_layout_add(sizeof(MoveItem));
	channel_layout_add(sizeof(MoveSettings));
}

/* Return the area; attaches it at the first use. */
JobArea *
job_area(void)
{
	bool		found;

	if (area == NULL)
	{
		channel_check_library();
		area = GetNamedDSMSegment(AREA_NAME, sizeof(JobArea), init_job_area, &found, NULL);
		LWLockRegisterTranche(area->tranche, AREA_NAME);
	}
	return area;
}

/*
 * Map the segment of a job; NULL if it has just ended.  *mapped: it was mapped
 * before, because this transaction has queued the job, or this is its worker; the
 * caller does not detach it then.
 */
dsm_segment *
job_map_segment(const JobSlot *slot, bool *mapped)
{
	dsm_segment *segment = dsm_find_mapping(slot->segment);

	*mapped = (segment != NULL);
	if (segment == NULL)
		segment = dsm_attach(slot->segment);
	return segment;
}

/* Return the size of the segment of such a job: the queues for messages are at its end. */
Size
job_shared_size(int nitems, int nrunners)
{
	return MAXALIGN(offsetof(JobShared, items) + nitems * sizeof(MoveItem)) +
		nrunners * JOB_QUEUE_SIZE;
}

/* Return the address of a runner's message queue. */
shm_mq *
job_queue(JobShared *shared, int runner)
{
	return (shm_mq *) ((char *) shared + job_shared_size(shared->nitems, runner));
}

/* Free a slot.  The fields that has_ended_since() reads stay, as do job, database and bytes_done. */
void
job_free_slot_locked(JobSlot *slot)
{
	Assert(LWLockHeldByMeInMode(&area->lock, LW_EXCLUSIVE));
	if (slot->segment != DSM_HANDLE_INVALID)
		dsm_unpin_segment(slot->segment);
	slot->segment = DSM_HANDLE_INVALID;
	slot->state = JOB_FREE;
	slot->runners = 0;
}

/*
 * Return whether the snapshot does not see the last record of one of the runners
 * of a job that has ended: there it has not.
 */
static bool
has_ended_since(const JobSlot *slot, Snapshot snapshot)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

	if (snapshot == NULL)
		return false;
	for (int i = 0; i < MAX_WORKERS; i++)
	{
		if (slot->recorded_by[i] != 0 && next - slot->recorded_by[i] < PG_INT32_MAX &&
			XidInMVCCSnapshot((TransactionId) slot->recorded_by[i], snapshot))
			return true;
	}
	return false;
}

/* Free the slots of lost jobs, whose worker the postmaster failed to start. */
static void
free_lost(void)
{
	double		now = clock_seconds();

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IM_MAX_JOBS; i++)
	{
		if (area->jobs[i].state == JOB_STARTING &&
			now - area->jobs[i].since_clock > START_TIMEOUT_MS / 1000.0)
			job_free_slot_locked(&area->jobs[i]);
	}
	LWLockRelease(&area->lock);
}

static BusyTable *
add_busy(HTAB *busy, Oid relid, const JobSlot *job)
{
	bool		found;
	BusyTable  *result = hash_search(busy, &relid, HASH_ENTER, &found);

	if (!found)
		result->to_tablespace = InvalidOid;
	result->job = job->job;
	result->pid = job->runner_pid ? job->runner_pid : job->submitter_pid;
	result->cleaning_up = (job->state == JOB_CLEANING_UP);
	result->waits_for_commit = (job->state == JOB_WAITING_FOR_COMMIT);
	return result;
}

/*
 * Return whether a job has been canceled before a runner has come.  It moves nothing, but
 * the transaction that has queued it may stay open for hours.
 */
static bool
ends_before_start(const JobSlot *job)
{
	if (job->state != JOB_WAITING_FOR_COMMIT && job->state != JOB_STARTING)
		return false;
	return job->flags.cancel;
}

/*
 * Return whether the owner of its table has canceled an item that waits for a runner.  No
 * runner touches the table of that any more: run_item() only ends it, which may take hours.
 */
static bool
is_given_up(const MoveItem *item)
{
	bool		result;

	if (!item->owner_cancels)
		return false;

	/*
	 * under the lock, since runner_give_turn() queues a running item for a
	 * moment
	 */
	LWLockAcquire(&area->lock, LW_SHARED);
	result = item->outcome.status == STATUS_QUEUED;
	LWLockRelease(&area->lock);
	return result;
}

/* Return a hash of the tables of this database that jobs work on, and their indexes. */
HTAB *
job_busy_tables(void)
{
	HASHCTL		info = {0};
	HTAB	   *result;
	JobSlot		jobs[IM_MAX_JOBS];
	int			njobs = job_read_slots(jobs, NULL);

	info.keysize = sizeof(Oid);
	info.entrysize = sizeof(BusyTable);
	info.hcxt = CurrentMemoryContext;
	result = hash_create("index_mover busy tables", 64, &info,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	for (int i = 0; i < njobs; i++)
	{
		bool		mapped;
		dsm_segment *segment;
		const JobShared *job;

		if (ends_before_start(&jobs[i]))
			continue;
		segment = job_map_segment(&jobs[i], &mapped);
		if (segment == NULL)
			continue;			/* it has just ended */
		job = dsm_segment_address(segment);
		for (int j = 0; j < job->nitems; j++)
		{
			const MoveItem *item = &job->items[j];

			if (item->outcome.status == STATUS_SKIPPED)
				continue;
			if (is_given_up(item))
			{
				/* its parts go with it */
				j = job_last_part(job, j);
				continue;
			}
			add_busy(result, item->heap_oid, &jobs[i]);
			add_busy(result, item->relid, &jobs[i])->to_tablespace = item->to_tablespace;
		}
		if (!mapped)
			dsm_detach(segment);
	}
	return result;
}

/* Raise ERROR 55006, because another job works on the table of this item. */
void
job_refuse_busy(const MoveItem *item, const BusyTable *table)
{
	if (table->cleaning_up)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("relation \"%s\" is already being moved",
						NameStr(item->heap_name)),
				 errdetail("Job " INT64_FORMAT " (process %d) has ended and is still cleaning up.",
						   table->job, table->pid),
				 errhint("See %s for what it waits for.", printed_command("progress"))));
	if (table->waits_for_commit)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("relation \"%s\" is already being moved",
						NameStr(item->heap_name)),
				 errdetail("Job " INT64_FORMAT " is to move it when the transaction of process %d commits.",
						   table->job, table->pid),
				 errhint("End that transaction, or stop the job: %s",
						 printed_command("cancel_move", table->job))));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("relation \"%s\" is already being moved",
					NameStr(item->heap_name)),
			 errdetail("It is being moved by job " INT64_FORMAT " (process %d).",
					   table->job, table->pid),
			 errhint("Wait for its end, or stop it: %s",
					 printed_command("cancel_move", table->job))));
}

/* Raise ERROR 55006 if another job of this database works on a table of this job. */
static void
check_tables_are_free(const JobShared *shared)
{
	HTAB	   *busy = job_busy_tables();

	/* so that no job can be added in between */
	Assert(LWLockHeldByMe(&area->submit_lock));
	for (int i = 0; i < shared->nitems; i++)
	{
		const MoveItem *item = &shared->items[i];
		const BusyTable *table = hash_search(busy, &item->heap_oid, HASH_FIND, NULL);

		if (table != NULL && item->outcome.status != STATUS_SKIPPED)
			job_refuse_busy(item, table);
	}
	hash_destroy(busy);
}

/*
 * Return how many background workers run that are neither runners nor, since these
 * come and go, resumptions and parallel workers: our launcher and its looks, the launcher of logical
 * replication, workers of other extensions.  Core does not tell how many of its slots are
 * in use; one whose worker is to start again, after a crash of it, is not seen.
 */
static int
count_other_workers(void)
{
	int			result = 0;

	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		const PGPROC *proc = &ProcGlobal->allProcs[i];
		const char *type = NULL;

		if (proc->procgloballist == &ProcGlobal->bgworkerFreeProcs && proc->pid != 0)
			type = GetBackgroundWorkerTypeByPid(proc->pid);
		if (type != NULL && strcmp(type, RUNNER_TYPE) != 0 && strcmp(type, RESUMPTION_TYPE) != 0 &&
			strcmp(type, "parallel worker") != 0)
			result++;
	}
	return result;
}

/*
 * Return how many more runners the jobs of a role may have, and why there are no
 * more.  A role has half of them at most, whichever it is, and the last slots that
 * other workers leave are for superusers, as with superuser_reserved_connections.  A
 * cleanup that no session has called counts for no role: InvalidOid.
 */
static int
runners_left(Oid role, bool superuser, int others, char **why)
{
	int			used = 0;
	int			used_by_role = 0;
	int			all = Min(IM_MAX_RUNNERS, max_worker_processes - others);
	int			share = Max((Min(IM_MAX_RUNNERS, max_worker_processes) + 1) / 2, 1);

	Assert(LWLockHeldByMe(&area->lock));
	all = Max(superuser ? all : all - IM_RESERVED_RUNNERS, 1);
	for (int i = 0; i < IM_MAX_JOBS; i++)
	{
		used += area->jobs[i].runners;
		if (area->jobs[i].role == role && area->jobs[i].job != CLEANUP_JOB)
			used_by_role += area->jobs[i].runners;
	}
	if (OidIsValid(role) && share - used_by_role < all - used)
	{
		*why = psprintf("One role can have %d workers at the same time.", share);
		return share - used_by_role;
	}
	if (superuser && all == 1)
		*why = pstrdup("1 worker can run at the same time.");
	else if (superuser)
		*why = psprintf("%d workers can run at the same time.", all);
	else if (all == 1)
		*why = pstrdup("1 worker of roles without the SUPERUSER attribute can run at the same time.");
	else
		*why = psprintf("%d workers of roles without the SUPERUSER attribute can run at the same time.",
						all);
	return all - used;
}

/* Return whether a job of a role would get a worker, besides the worker that asks for it. */
bool
job_has_room(Oid role)
{
	bool		superuser = superuser_arg(role);
	int			others = count_other_workers();
	int			used = 0;
	char	   *why;
	int			left;

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IM_MAX_JOBS; i++)
		used += area->jobs[i].runners;
	left = runners_left(role, superuser, others, &why);
	LWLockRelease(&area->lock);
	return left > 0 && others + used + 2 <= max_worker_processes;
}

/*
 * Take a free slot for the job that *shared describes, and its segment; sets
 * shared->slot.  Returns NULL or, if there is none, the reason.  ERROR 55006 if
 * one of its tables is already being moved.
 */
char *
job_take_slot(JobShared *shared, dsm_handle segment, JobPurpose purpose,
			  JobState state)
{
	JobSlot    *slot = NULL;
	bool		called = (shared->job != CLEANUP_JOB);
	bool		superuser = !called || superuser_arg(shared->role);
	char	   *why;
	int			left;
	int			others = count_other_workers();

	(void) job_area();
	LWLockAcquire(&area->submit_lock, LW_EXCLUSIVE);
	/* first, because a lost job must not keep its tables */
	free_lost();
	if (purpose == JOB_MOVE)
		check_tables_are_free(shared);

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	left = runners_left(called ? shared->role : InvalidOid, superuser, others, &why);
	for (int n = 0; n < IM_MAX_JOBS && slot == NULL; n++)
	{
		/* a slot that has been free for long, see has_ended_since() */
		int			i = (area->nuses + 1 + n) % IM_MAX_JOBS;

		if (left <= 0)
			break;
		if (area->jobs[i].state != JOB_FREE)
			continue;
		slot = &area->jobs[i];
		/* the index, and a counter that repeats after 67 million uses */
		area->nuses = (area->nuses + 1) % (INT_MAX / IM_MAX_JOBS);
		shared->slot = area->nuses * IM_MAX_JOBS + i;
		memset(slot, 0, sizeof(JobSlot));
		slot->use = shared->slot;
		slot->state = state;
		slot->purpose = purpose;
		slot->job = shared->job;
		slot->database = shared->database;
		slot->role = shared->role;
		slot->superuser = superuser;
		slot->segment = segment;
		slot->submitter_pid = MyProcPid;
		slot->runners = 1;
		slot->since = GetCurrentTimestamp() - IM_LIMIT("long-ago", 0);
		slot->since_clock = clock_seconds() - IM_LIMIT("long-ago", 0) / 1000000.0;
	}
	LWLockRelease(&area->lock);
	LWLockRelease(&area->submit_lock);

	return slot != NULL ? NULL : why;
}

/* Return the job's slot, NULL if it is gone.  The caller holds the lock. */
JobSlot *
job_slot_locked(int slot)
{
	JobSlot    *result = &area->jobs[slot % IM_MAX_JOBS];

	Assert(LWLockHeldByMe(&area->lock));
	return result->state != JOB_FREE && result->use == slot ? result : NULL;
}

/*
 * Let a job have another runner, unless it would be the last runner that its role
 * can have: that is for another job.
 */
bool
job_more_runners(int slot)
{
	JobSlot    *mine;
	char	   *why;
	bool		result = false;
	int			others = count_other_workers();

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	mine = job_slot_locked(slot);
	if (mine != NULL)
	{
		result = runners_left(mine->role, mine->superuser, others, &why) > 1;
		pfree(why);
	}
	if (result)
		mine->runners++;
	LWLockRelease(&area->lock);
	return result;
}

/*
 * Note that a runner does not start.  If it was the only runner, free the slot, and
 * unpin its segment.  No-op if it is already free.
 */
void
job_lacks_runner(int slot)
{
	JobSlot    *mine;

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	mine = job_slot_locked(slot);
	if (mine != NULL)
	{
		mine->runners--;
		if (mine->runners <= 0)
			job_free_slot_locked(mine);
	}
	LWLockRelease(&area->lock);
}

/*
 * Ask the postmaster for a worker of a job that has a slot.  Returns NULL if
 * there is no free worker slot; then the job's may be free, too.  runner: 0 for the first,
 * which asks for the others.  notify_pid: the process to signal at its start and end, or 0.
 */
BackgroundWorkerHandle *
job_register_runner(int slot, int64 job, int runner, int notify_pid)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	Assert(runner >= 0 && runner < IM_MAX_RUNNERS);

	if (job == CLEANUP_JOB)
		strlcpy(worker.bgw_name, "index_mover cleanup", BGW_MAXLEN);
	else
		snprintf(worker.bgw_name, BGW_MAXLEN, "index_mover job " INT64_FORMAT, job);
	/* a failed job is not retried without the user's knowledge */
	channel_describe(&worker, RUNNER_TYPE, "index_mover_worker_main");
	worker.bgw_main_arg = Int32GetDatum(slot);
	handle = channel_start(&worker, &runner, sizeof(runner), notify_pid);
	if (handle == NULL)
		job_lacks_runner(slot);
	return handle;
}

/* Note that the postmaster is asked for the worker of a job that waited for COMMIT. */
void
job_set_starting(int slot)
{
	JobSlot    *mine;

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	if ((mine = job_slot_locked(slot)) != NULL)
	{
		mine->state = JOB_STARTING;
		/* the transaction that commits now may have been open for hours */
		mine->since = GetCurrentTimestamp() - IM_LIMIT("long-ago", 0);
		mine->since_clock = clock_seconds() - IM_LIMIT("long-ago", 0) / 1000000.0;
	}
	LWLockRelease(&area->lock);
}

/* Copy a job's slot; false if it has ended. */
bool
job_get_slot(int slot, JobSlot *copy)
{
	JobSlot    *mine;

	LWLockAcquire(&job_area()->lock, LW_SHARED);
	if ((mine = job_slot_locked(slot)) != NULL)
		*copy = *mine;
	LWLockRelease(&area->lock);
	return mine != NULL;
}

/* Find a job of this database by its number. */
static JobSlot *
find_locked(int64 job)
{
	Assert(LWLockHeldByMe(&area->lock));
	for (int i = 0; i < IM_MAX_JOBS; i++)
	{
		if (area->jobs[i].state != JOB_FREE && area->jobs[i].job == job &&
			area->jobs[i].database == MyDatabaseId)
			return &area->jobs[i];
	}
	return NULL;
}

/* Return whether this process is one of our background workers. */
bool
process_is_worker(void)
{
	return MyBgworkerEntry != NULL &&
		strcmp(MyBgworkerEntry->bgw_library_name, "index_mover") == 0;
}

/* Copy the slot of a job of this database; false if there is none, or none any more. */
bool
job_find(int64 job, JobSlot *copy)
{
	JobSlot    *slot;

	/* a job reported as gone must not begin later */
	free_lost();
	LWLockAcquire(&job_area()->lock, LW_SHARED);
	if ((slot = find_locked(job)) != NULL)
		*copy = *slot;
	LWLockRelease(&area->lock);
	return slot != NULL;
}

/*
 * Copy the jobs of this database that move, and return how many.  copies has
 * IM_MAX_JOBS elements; their bytes_done include running moves.
 * snapshot: if not NULL, also jobs that has_ended_since() it, in state JOB_FREE.
 */
int
job_read_slots(JobSlot *copies, Snapshot snapshot)
{
	int			n = 0;

	free_lost();
	LWLockAcquire(&job_area()->lock, LW_SHARED);
	for (int i = 0; i < IM_MAX_JOBS; i++)
	{
		const JobSlot *slot = &area->jobs[i];

		if (slot->database != MyDatabaseId || slot->purpose != JOB_MOVE ||
			(slot->state == JOB_FREE && !has_ended_since(slot, snapshot)))
			continue;
		copies[n] = *slot;
		for (int j = 0; j < IM_MAX_RUNNERS; j++)
		{
			if (area->runners[j].in_use && area->runners[j].slot == slot->use)
				copies[n].bytes_done += area->runners[j].bytes_done;
		}
		n++;
	}
	LWLockRelease(&area->lock);
	return n;
}

/*
 * Change settings of a running job, as the JSON object says, after
 * history_lock_job().  Its runners read them in their next job_check_cancel().
 * ERROR as SET: 22023, 42501.
 */
void
job_alter_settings(JobShared *shared, Jsonb *json)
{
	MoveSettings altered = shared->settings;

	settings_alter(&altered, json);
	/* other processes must not see half of it */
	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	shared->settings = altered;
	LWLockRelease(&job_area()->lock);
	pg_atomic_fetch_add_u32(&shared->settings_version, 1);
}

/* Return whether this other process runs that job: its ledger rows are its. */
bool
runner_is_alive(int64 job, int pid)
{
	RunnerSlot	runners[IM_MAX_RUNNERS];
	int			n = job_read_runners(runners);

	while (n-- > 0)
	{
		if (runners[n].job == job && runners[n].pid == pid && pid != MyProcPid)
			return true;
	}
	return false;
}

/* Have a job of this database canceled, paused or resumed; false if it does not run. */
bool
job_request(int64 job, JobRequest request)
{
	JobSlot    *slot;
	bool		found;

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	slot = find_locked(job);
	found = (slot != NULL && slot->state != JOB_CLEANING_UP);
	if (found && (request == REQUEST_CANCEL || request == REQUEST_CANCEL_AND_KEEP))
	{
		/* the first cancel counts */
		if (!slot->flags.cancel)
			slot->flags.keep = (request == REQUEST_CANCEL_AND_KEEP);
		/* the flag is for the runner's own loops, the signal for core's waits */
		slot->flags.cancel = true;
		/* under the lock, so that the pid is still that runner's */
		for (int i = 0; i < IM_MAX_RUNNERS; i++)
		{
			if (area->runners[i].in_use && area->runners[i].job == job &&
				area->runners[i].database == MyDatabaseId &&
				area->runners[i].pid != MyProcPid)
				kill(area->runners[i].pid, SIGINT);
		}
	}
	else if (found)
	{
		if (!slot->flags.pause)
			slot->paused_at = GetCurrentTimestamp();
		slot->flags.pause = (request == REQUEST_PAUSE);
	}
	LWLockRelease(&area->lock);
	return found;
}

/*
 * Have an item of a job canceled for the owner of its table; the job goes on.  Its runner
 * looks at the flag, and no signal is sent, which could meet the next item.  False if the
 * item has ended.
 */
bool
job_cancel_item(JobShared *shared, int n)
{
	MoveItem   *item = &shared->items[n];
	bool		result;

	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	result = item->outcome.status == STATUS_QUEUED || item->outcome.status == STATUS_RUNNING;
	if (result)
		item->owner_cancels = true;
	LWLockRelease(&area->lock);
	return result;
}

/* Copy the runner slots in use, IM_MAX_RUNNERS at most; return how many. */
int
job_read_runners(RunnerSlot *copies)
{
	int			n = 0;

	LWLockAcquire(&job_area()->lock, LW_SHARED);
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		if (area->runners[i].in_use)
			copies[n++] = area->runners[i];
	}
	LWLockRelease(&area->lock);
	for (int i = 0; i < n; i++)
		copies[i].nblockers = virtual_transaction_pids(copies[i].waits_for, copies[i].nwaits_for,
													   copies[i].blockers, IM_MAX_BLOCKERS);
	return n;
}
