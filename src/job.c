/*-------------------------------------------------------------------------
 *
 * job.c
 *	  Jobs in shared memory: their slots, their segments, their flags.
 *
 * Assumption: the area is so small (20 kB) that it fits into the slack of the
 * main shared memory of 15 and 16, and nothing must be preloaded; from 17 on
 * it is a named DSM segment.  What grows with the number of indexes is in a
 * DSM segment per job.
 *
 * Locks: one LWLock guards all slots, for moments only.  A second one,
 * submit_lock, is held while a new job's tables are compared with those of
 * the other jobs, which requires mapping their segments.  Only submitters
 * take it, and always before the first.
 *
 * A job that has a slot has a runner, too: what jobs may have together is
 * counted when a slot is taken, and when a job asks for further runners.
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

#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"
#include "job_private.h"
#include "printed_command.h"
#include "test_points.h"

#define AREA_NAME			"index_mover"
#define START_TIMEOUT_MS	(5 * 60 * 1000)
#define MESSAGE_QUEUE_SIZE	((Size) 16384)

static JobArea *area = NULL;

static const char *const phase_names[] = {
	[PHASE_INITIALIZING] = "initializing",
	[PHASE_WAIT_START] = "waiting for lock to start",
	[PHASE_COPYING] = "copying blocks",
	[PHASE_CATCHING_UP] = "copying changed blocks",
	[PHASE_VERIFYING] = "verifying",
	[PHASE_WAIT_SWAP_TIME] = "waiting for time to swap",
	[PHASE_WAIT_SWAP_LOCK] = "waiting for lock to swap",
	[PHASE_SWAPPING] = "swapping",
	[PHASE_PREWARMING] = "prewarming",
	[PHASE_REMOVING_OLD_FILE] = "removing old file",
	[PHASE_WAIT_WRITERS] = "waiting for writers before build",
	[PHASE_WAIT_SNAPSHOTS] = "waiting for old snapshots",
	[PHASE_REBUILDING] = "initializing",	/* until core reports more */
	[PHASE_CLEANING_UP] = "cleaning up",
	[PHASE_GIVING_WAY] = "giving way",
	[PHASE_FREEZING] = "freezing",
};

static const char *const status_names[] = {
	[STATUS_PLANNED] = "planned",
	[STATUS_QUEUED] = "queued",
	[STATUS_RUNNING] = "running",
	[STATUS_PAUSED] = "paused",
	[STATUS_MOVED] = "moved",
	[STATUS_SKIPPED] = "skipped",
	[STATUS_FAILED] = "failed",
	[STATUS_CANCELED] = "canceled",
	[STATUS_INTERRUPTED] = "interrupted",
	[STATUS_REHEARSED] = "rehearsed",
};

static const char *const method_names[] = {
	[METHOD_AUTO] = "auto",
	[METHOD_COPY] = "copy",
	[METHOD_REBUILD] = "rebuild",
	[METHOD_DEFAULT] = "default",
};

/* Return the names that users see. */
const char *
method_name(MoveMethod method)
{
	return method_names[method];
}

const char *
status_name(MoveStatus status)
{
	return status_names[status];
}

/* Return the method or status of this name, which must be one of ours. */
MoveMethod
method_of_name(const char *name)
{
	for (int i = 0; i < lengthof(method_names); i++)
		if (strcmp(method_names[i], name) == 0)
			return (MoveMethod) i;
	return METHOD_AUTO;
}

MoveStatus
status_of_name(const char *name)
{
	for (int i = 0; i < lengthof(status_names); i++)
		if (strcmp(status_names[i], name) == 0)
			return (MoveStatus) i;
	return STATUS_FAILED;
}

/* Return the kind of what moves, as the column "kind" has it. */
const char *
relation_kind(char relkind, const char *schema_name)
{
	switch (relkind)
	{
		case RELKIND_PARTITIONED_INDEX:
		case RELKIND_PARTITIONED_TABLE:
			return "default";
		case RELKIND_INDEX:
			return strcmp(schema_name, "pg_toast") == 0 ? "toast index" : "index";
		case RELKIND_TOASTVALUE:
			return "toast";
		case ITEM_DATABASE:
			return "database";
		case ITEM_CATALOGS:
			return "system catalogs";
		case ITEM_FILES:
			return "temporary files";
		case ITEM_SETTING:
			return "setting";
		default:
			return "table";
	}
}

/* Return the word for what moves that messages have before its name. */
const char *
relation_noun(char relkind)
{
	switch (relkind)
	{
		case RELKIND_INDEX:
		case RELKIND_PARTITIONED_INDEX:
			return "index";
		case RELKIND_TOASTVALUE:
			return "TOAST table";
		case RELKIND_MATVIEW:
			return "materialized view";
		default:
			return "table";
	}
}

/* Return the word for a relation of this kind, see relation_kind(). */
const char *
kind_noun(const char *kind)
{
	if (strcmp(kind, "table") == 0)
		return relation_noun(RELKIND_RELATION);
	return relation_noun(strcmp(kind, "toast") == 0 ? RELKIND_TOASTVALUE : RELKIND_INDEX);
}

/*
 * Return the number of the last item that moves with item n: itself, or the
 * last of the items for the TOAST table of a table and the index of that, which
 * follow the table's.
 */
int
job_last_part(const JobShared *shared, int n)
{
	Oid			table = shared->items[n].relid;

	while (n + 1 < shared->nitems && shared->items[n + 1].part_of == table)
		n++;
	return n;
}

/*
 * Give the items that move with item n its outcome, which is theirs, too.
 * Return the number of the last one.
 */
int
job_parts_follow(JobShared *shared, int n)
{
	const MoveItem *table = &shared->items[n];
	int			last = job_last_part(shared, n);

	for (int i = n + 1; i <= last; i++)
	{
		MoveItem   *part = &shared->items[i];

		part->status = table->status;
		part->started_at = table->started_at;
		part->finished_at = table->finished_at;
		part->idle = table->idle;
		part->lock_time = table->lock_time;
		part->lock_attempts = table->lock_attempts;
		strlcpy(part->sqlstate, table->sqlstate, sizeof(part->sqlstate));
		/* a rehearsal tells of each file how its copy went */
		if (table->status != STATUS_REHEARSED)
			strlcpy(part->detail, table->detail, sizeof(part->detail));
	}
	return last;
}

/* Return the word for what a job moves, as many as they are. */
const char *
job_noun(const JobShared *shared)
{
	for (int i = 0; i < shared->nitems; i++)
		if (strcmp(relation_noun(shared->items[i].relkind), "index") != 0)
			return shared->nitems == 1 ? "relation" : "relations";
	return shared->nitems == 1 ? "index" : "indexes";
}

const char *
phase_name(MovePhase phase)
{
	return phase_names[phase];
}

static void
init_job_area(IM_AREA_INIT_ARGS)
{
	JobArea    *new_area = memset(ptr, 0, sizeof(JobArea));

	new_area->tranche = im_new_tranche_id(AREA_NAME);
	LWLockInitialize(&new_area->lock, new_area->tranche);
	LWLockInitialize(&new_area->submit_lock, new_area->tranche);
}

/* Reserve the area's memory, in a shmem_request_hook; see above. */
void
job_request_shmem(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(JobArea)));
}

/* Return the area; attaches it at the first use. */
JobArea *
job_area(void)
{
	if (area == NULL)
	{
		area = im_shared_area(AREA_NAME, sizeof(JobArea), init_job_area);
		im_register_tranche(area->tranche, AREA_NAME);
	}
	return area;
}

/* Return the job that a mapped segment holds. */
JobShared *
job_shared(dsm_segment *segment)
{
	return (JobShared *) dsm_segment_address(segment);
}

/* Return the size of the segment of such a job. */
Size
job_shared_size(int nitems, int nrunners)
{
	return MAXALIGN(offsetof(JobShared, items) + nitems * sizeof(MoveItem)) +
		nrunners * MESSAGE_QUEUE_SIZE;
}

/* Return the address and size of a runner's message queue. */
shm_mq *
job_queue(JobShared *shared, int runner, Size *size)
{
	*size = MESSAGE_QUEUE_SIZE;
	return (shm_mq *) ((char *) shared + shared->mq_offset +
					   runner * MESSAGE_QUEUE_SIZE);
}

/* Free a slot.  The caller holds the lock exclusively. */
void
job_free_slot_locked(JobSlot *slot)
{
	if (slot->segment != DSM_HANDLE_INVALID)
		dsm_unpin_segment(slot->segment);
	memset(slot, 0, sizeof(JobSlot));
}

/* Return the time at which a slot enters its new state. */
static TimestampTz
slot_time(void)
{
	TimestampTz now = GetCurrentTimestamp();

	return now - IM_LIMIT("long-ago", 0);
}

/* Return whether the postmaster failed to start the worker of this slot. */
static bool
is_lost(const JobSlot *slot, TimestampTz now)
{
	return slot->state == JOB_STARTING &&
		TimestampDifferenceExceeds(slot->since, now, START_TIMEOUT_MS);
}

/* Free the slots of lost jobs.  The caller holds the lock exclusively. */
static void
free_lost_locked(void)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < IM_MAX_JOBS; i++)
		if (is_lost(&area->jobs[i], now))
			job_free_slot_locked(&area->jobs[i]);
}

/* Call a function for each relation that a job of this database is to move. */
static void
for_each_item(void (*visit) (const JobSlot *slot, const MoveItem *item, void *arg), void *arg)
{
	JobSlot		jobs[IM_MAX_JOBS];

	(void) job_area();
	LWLockAcquire(&area->lock, LW_SHARED);
	memcpy(jobs, area->jobs, sizeof(jobs));
	LWLockRelease(&area->lock);

	for (int i = 0; i < IM_MAX_JOBS; i++)
	{
		dsm_segment *segment;
		bool		mapped;
		const JobShared *job;

		if (jobs[i].state == JOB_FREE || jobs[i].purpose != JOB_MOVE ||
			jobs[i].database != MyDatabaseId)
			continue;

		/* a job that this transaction has queued is mapped already */
		segment = dsm_find_mapping(jobs[i].segment);
		mapped = (segment != NULL);
		if (!mapped)
			segment = dsm_attach(jobs[i].segment);
		if (segment == NULL)
			continue;			/* it has just ended */
		job = job_shared(segment);
		for (int j = 0; j < job->nitems; j++)
			if (job->items[j].status != STATUS_SKIPPED)
				visit(&jobs[i], &job->items[j], arg);
		if (!mapped)
			dsm_detach(segment);
	}
}

static void
note_busy(const JobSlot *slot, const MoveItem *item, void *arg)
{
	BusyTable  *table = hash_search(arg, &item->heap_oid, HASH_ENTER, NULL);

	table->job = slot->job;
	table->pid = slot->runner_pid ? slot->runner_pid : slot->submitter_pid;
	table->cleaning_up = (slot->state == JOB_CLEANING_UP);
}

/* Return the tables of this database that jobs work on: a hash of BusyTable. */
HTAB *
job_busy_tables(void)
{
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(BusyTable),.hcxt = CurrentMemoryContext};
	HTAB	   *result = hash_create("index_mover busy tables", 64, &info,
									 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	for_each_item(note_busy, result);
	return result;
}

/* Bytes that leave a tablespace */
typedef struct Leaving
{
	Oid			tablespace;
	int64		bytes;
} Leaving;

static void
note_leaving(const JobSlot *slot, const MoveItem *item, void *arg)
{
	Leaving    *leaving = arg;

	if (item->from_tablespace == leaving->tablespace && item->to_tablespace != leaving->tablespace &&
		(item->status == STATUS_PLANNED || item->status == STATUS_QUEUED || item->status == STATUS_RUNNING))
		leaving->bytes += Max(item->size_before, 0);
}

/* Return the bytes that jobs of this database still have to move out of a tablespace. */
int64
job_bytes_leaving(Oid tablespace)
{
	Leaving		leaving = {tablespace};

	for_each_item(note_leaving, &leaving);
	return leaving.bytes;
}

/*
 * Raise ERROR 55006 if another job of this database works on a table of this
 * one.  The caller holds submit_lock, so that no job can be added in between.
 */
static void
check_tables_are_free(const JobShared *shared)
{
	HTAB	   *busy = job_busy_tables();

	for (int i = 0; i < shared->nitems; i++)
	{
		const MoveItem *item = &shared->items[i];
		const BusyTable *table = hash_search(busy, &item->heap_oid, HASH_FIND, NULL);

		if (table == NULL || item->status == STATUS_SKIPPED)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("relation \"%s\" is already being moved",
						NameStr(item->heap_name)),
				 table->cleaning_up ?
				 errdetail("Job " INT64_FORMAT " (process %d) has ended and is still cleaning up.",
						   table->job, table->pid) :
				 errdetail("It is being moved by job " INT64_FORMAT " (process %d).",
						   table->job, table->pid),
				 table->cleaning_up ?
				 errhint("See %s for what it waits for.", printed_command("progress")) :
				 errhint("Wait for its end, or stop it: %s",
						 printed_command("cancel_move", table->job))));
	}
	hash_destroy(busy);
}

/*
 * Return how many more runners the jobs of a role may have, which can be less
 * than none.  One role has half of them at most, whichever it is, and the last
 * ones are for superusers, as with superuser_reserved_connections.  Sets *most
 * to the limit that is reached first, and *of_role if that is the role's.  A
 * cleanup that no one has called counts for no role: InvalidOid.  The caller
 * holds the lock.
 */
static int
runners_left(Oid role, bool superuser, int *most, bool *of_role)
{
	int			used = 0;
	int			used_by_role = 0;
	int			all = Min(IM_MAX_RUNNERS, max_worker_processes);
	int			share = Max((all + 1) / 2, 1);

	all = Max(superuser ? all : all - IM_RESERVED_RUNNERS, 1);
	for (int i = 0; i < IM_MAX_JOBS; i++)
	{
		used += area->jobs[i].runners;
		if (area->jobs[i].role == role && area->jobs[i].job != CLEANUP_JOB)
			used_by_role += area->jobs[i].runners;
	}
	*of_role = (OidIsValid(role) && share - used_by_role < all - used);
	*most = *of_role ? share : all;
	return *most - (*of_role ? used_by_role : used);
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
	bool		of_role;
	int			most;
	int			left;

	(void) job_area();
	LWLockAcquire(&area->submit_lock, LW_EXCLUSIVE);
	/* first, because a lost job must not keep its tables */
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	free_lost_locked();
	LWLockRelease(&area->lock);
	if (purpose == JOB_MOVE)
		check_tables_are_free(shared);

	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	left = runners_left(called ? shared->role : InvalidOid, superuser, &most, &of_role);
	for (int i = 0; i < IM_MAX_JOBS && slot == NULL && left > 0; i++)
	{
		if (area->jobs[i].state != JOB_FREE)
			continue;
		slot = &area->jobs[i];
		/* the index, combined with a counter that rarely repeats */
		area->nuses = (area->nuses + 1) % (INT_MAX / IM_MAX_JOBS);
		shared->slot = area->nuses * IM_MAX_JOBS + i;
		*slot = (JobSlot)
		{
			.use = shared->slot,.state = state,.purpose = purpose,
				.job = shared->job,.database = shared->database,.role = shared->role,
				.superuser = superuser,.segment = segment,.submitter_pid = MyProcPid,
				.runners = 1,.since = slot_time()
		};
	}
	LWLockRelease(&area->lock);
	LWLockRelease(&area->submit_lock);

	if (slot != NULL)
		return NULL;
	return psprintf(of_role ? "One role can have %d workers at the same time." :
					superuser ? "%d workers can run at the same time." :
					"%d workers of roles without the SUPERUSER attribute can run at the same time.",
					most);
}

/*
 * Let a job have one more runner, unless it would be the last one that its role
 * can have: that is for another job.
 */
bool
job_more_runners(int slot, int64 job)
{
	JobSlot    *mine;
	bool		of_role;
	int			most;
	bool		result;

	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	mine = job_slot_locked(slot, job);
	result = mine != NULL &&
		runners_left(mine->role, mine->superuser, &most, &of_role) > 1;
	if (result)
		mine->runners++;
	LWLockRelease(&area->lock);
	return result;
}

/* Take back the one that job_more_runners() has let it have. */
void
job_no_more_runners(int slot, int64 job)
{
	JobSlot    *mine;

	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	if ((mine = job_slot_locked(slot, job)) != NULL)
		mine->runners--;
	LWLockRelease(&area->lock);
}

/* Return the job's slot, NULL if it is gone.  The caller holds the lock. */
JobSlot *
job_slot_locked(int slot, int64 job)
{
	JobSlot    *result = &area->jobs[slot % IM_MAX_JOBS];

	return (result->state != JOB_FREE && result->use == slot &&
			result->job == job) ? result : NULL;
}

/* Free a job's slot and unpin its segment.  No-op if it is already free. */
void
job_free_slot(int slot, int64 job)
{
	JobSlot    *mine;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	mine = job_slot_locked(slot, job);
	if (mine != NULL)
		job_free_slot_locked(mine);
	LWLockRelease(&area->lock);
}

/* Set the state of a slot.  Returns false if it is not this job's. */
bool
job_set_state(int slot, int64 job, JobState state)
{
	JobSlot    *mine;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	mine = job_slot_locked(slot, job);
	if (mine != NULL)
	{
		mine->state = state;
		/* the transaction that commits now may have been open for hours */
		mine->since = slot_time();
	}
	LWLockRelease(&area->lock);
	return mine != NULL;
}

/* Copy the slot.  Returns false if it is not this job's any more. */
bool
job_get_slot(int slot, int64 job, JobSlot *copy)
{
	JobSlot    *mine;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_SHARED);
	mine = job_slot_locked(slot, job);
	if (mine != NULL)
		*copy = *mine;
	LWLockRelease(&area->lock);
	return mine != NULL;
}

/* Find a job of this database by its number.  The caller holds the lock. */
static JobSlot *
find_locked(int64 job)
{
	for (int i = 0; i < IM_MAX_JOBS; i++)
		if (area->jobs[i].state != JOB_FREE && area->jobs[i].job == job &&
			area->jobs[i].database == MyDatabaseId)
			return &area->jobs[i];
	return NULL;
}

/*
 * Find a job of this database.  Returns false if there is none, or none any
 * more: frees the slot of one whose worker has not started for minutes.
 */
bool
job_find(int64 job, JobSlot *copy)
{
	JobSlot    *slot;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_SHARED);
	slot = find_locked(job);
	if (slot != NULL && is_lost(slot, GetCurrentTimestamp()))
	{
		/* a job reported as gone must not begin later */
		LWLockRelease(&area->lock);
		LWLockAcquire(&area->lock, LW_EXCLUSIVE);
		free_lost_locked();
		slot = find_locked(job);
	}
	if (slot != NULL)
		*copy = *slot;
	LWLockRelease(&area->lock);
	return slot != NULL;
}

/*
 * Copy the jobs of this database that move, and return how many.  copies has
 * IM_MAX_JOBS elements.
 */
int
job_read_slots(JobSlot *copies)
{
	int			n = 0;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_SHARED);
	for (int i = 0; i < IM_MAX_JOBS; i++)
		if (area->jobs[i].state != JOB_FREE && area->jobs[i].purpose == JOB_MOVE &&
			area->jobs[i].database == MyDatabaseId)
			copies[n++] = area->jobs[i];
	LWLockRelease(&area->lock);
	return n;
}

/*
 * Change settings of a running job, as the JSON object says.  Its runners
 * read them in their next job_check_cancel().  ERROR as SET: 22023, 42501.
 */
void
job_alter_settings(JobShared *shared, Jsonb *json)
{
	settings_alter(&shared->settings, &job_area()->lock, json);
	pg_atomic_fetch_add_u32(&shared->settings_version, 1);
}

/* Return whether this other process runs that job: its ledger rows are its. */
bool
runner_is_alive(int64 job, int pid)
{
	bool		result = false;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_SHARED);
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
		if (area->runners[i].in_use && area->runners[i].job == job &&
			area->runners[i].pid == pid && pid != MyProcPid)
			result = true;
	LWLockRelease(&area->lock);
	return result;
}

/*
 * Cancel a job of this database; false if it is not running (any more).  The
 * flag is for the runner's own loops, the signal for core's waits.
 */
bool
job_request_cancel(int64 job)
{
	JobSlot    *slot;
	bool		found;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	slot = find_locked(job);
	found = (slot != NULL && slot->state != JOB_CLEANING_UP);
	if (found)
	{
		slot->cancel = true;
		/* under the lock, so that the pid is still that runner's */
		for (int i = 0; i < IM_MAX_RUNNERS; i++)
			if (area->runners[i].in_use && area->runners[i].job == job &&
				area->runners[i].database == MyDatabaseId &&
				area->runners[i].pid != MyProcPid)
				kill(area->runners[i].pid, SIGINT);
	}
	LWLockRelease(&area->lock);
	return found;
}

/* Pause or resume a job of this database; false if it is not running. */
bool
job_request_pause(int64 job, bool pause)
{
	JobSlot    *slot;
	bool		found;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	slot = find_locked(job);
	found = (slot != NULL && slot->state != JOB_CLEANING_UP);
	if (found)
	{
		/* resuming a paused job does not also ask for the swap */
		if (!pause && !slot->pause)
			slot->swap_now = true;
		slot->pause = pause;
	}
	LWLockRelease(&area->lock);
	return found;
}

/* Copy the runner slots in use, IM_MAX_RUNNERS at most; return how many. */
int
job_read_runners(RunnerSlot *copies)
{
	int			n = 0;

	(void) job_area();
	LWLockAcquire(&area->lock, LW_SHARED);
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
		if (area->runners[i].in_use)
			copies[n++] = area->runners[i];
	LWLockRelease(&area->lock);
	return n;
}
