/*-------------------------------------------------------------------------
 *
 * submit.c
 *	  Jobs that start when the caller's transaction commits.
 *
 * submit_at_commit() records the job in the caller's transaction.  The
 * PRE_COMMIT callback, which can still fail, registers the worker; the COMMIT
 * callback starts its work.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "utils/memutils.h"

#include "call/call.h"
#include "own_tables.h"
#include "worker/worker.h"

/* A job of this transaction that is on record, and starts, from its commit on. */
typedef struct QueuedJob
{
	int64		job;
	bool		starts;			/* else there is nothing to move */
	int			slot;
	int64		replaces;		/* as in JobTerms */
	bool		at_start;		/* likewise */
	SubTransactionId subid;		/* in which it was queued */
} QueuedJob;

static List *queued_jobs = NIL; /* of QueuedJob *, in TopMemoryContext */

static int64 last_job = 0;		/* of this session, not queued */

/*
 * End of this transaction's WAL while it has only recorded jobs.  Its
 * commit must not wait for a synchronous standby: if that is stopped, the move
 * would end, but the call would not; and jobs are altered when a standby is in trouble.
 */
static XLogRecPtr only_ours_upto = InvalidXLogRecPtr;

/* Return whether the transaction has written nothing else so far. */
static bool
only_ours(void)
{
	return !TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		(!XLogRecPtrIsInvalid(only_ours_upto) && only_ours_upto == XactLastRecEnd);
}

/* Return the number of this session's last job that moves; 0 if none. */
int64
submit_last_job(void)
{
	return queued_jobs != NIL ? ((QueuedJob *) llast(queued_jobs))->job : last_job;
}

/* Note that a job has begun for which the caller waits. */
void
submit_note_job(int64 job)
{
	last_job = job;
}

/* Return the job that works on an item's table, or moves it from where it is to be; or NULL. */
static const BusyTable *
find_busy(HTAB *busy, const MoveItem *item)
{
	const BusyTable *result;

	if (item->outcome.status == STATUS_PLANNED)
		return hash_search(busy, &item->heap_oid, HASH_FIND, NULL);
	if (item->outcome.sqlstate[0] != '\0')
		return NULL;
	result = hash_search(busy, &item->relid, HASH_FIND, NULL);
	return result != NULL && OidIsValid(result->to_tablespace) &&
		result->to_tablespace != item->to_tablespace ? result : NULL;
}

/*
 * Skip the moves of a plan whose tables other jobs work on.  ERROR 55006 if
 * these are all.
 */
void
submit_skip_busy(List *plan)
{
	HTAB	   *busy = job_busy_tables();
	const MoveItem *first = NULL;
	const BusyTable *works_on_first = NULL;

	foreach_ptr(PlannedMove, move, plan)
	{
		MoveItem   *item = &move->item;
		const BusyTable *table = NULL;

		/* a TOAST table goes with its table */
		if (!OidIsValid(item->part_of))
			table = find_busy(busy, item);
		if (table == NULL)
			continue;
		if (first == NULL)
		{
			first = item;
			works_on_first = table;
		}
		if (table->cleaning_up)
			item_skip(item, ERRCODE_OBJECT_IN_USE,
					  "Job " INT64_FORMAT " has ended and is still cleaning up table \"%s\".",
					  table->job, NameStr(item->heap_name));
		else
			item_skip(item, ERRCODE_OBJECT_IN_USE,
					  "Job " INT64_FORMAT " is moving table \"%s\", or indexes of it.",
					  table->job, NameStr(item->heap_name));
	}
	plan_skip_parts(plan);
	if (first != NULL && !plan_has_moves(plan))
		job_refuse_busy(first, works_on_first);
	hash_destroy(busy);
}

/*
 * Queue a job that starts when this transaction commits, and is forgotten if
 * it aborts; a job without items is only recorded.  ERRORs: as
 * job_launch_create(); at commit as job_launch_worker().
 */
void
submit_at_commit(int64 job, List *items, const MoveSettings *settings)
{
	HistoryJob	entry = {TERMS_ROLE(settings), GetCurrentTimestamp(), settings->not_default,
	settings->terms};
	dsm_segment *segment;
	JobShared  *shared = NULL;
	QueuedJob  *queued = MemoryContextAllocZero(TopMemoryContext, sizeof(QueuedJob));
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	bool		ours = only_ours();

	queued->job = job;
	queued->replaces = settings->terms.replaces;
	queued->at_start = settings->terms.at_start;
	queued->subid = GetCurrentSubTransactionId();
	queued_jobs = lappend(queued_jobs, queued);
	MemoryContextSwitchTo(oldcontext);
	if (items != NIL)
	{
		/* the segment is pinned, so it outlives our mapping */
		shared = job_launch_create(job, MyDatabaseId, entry.role, JOB_MOVE,
								   JOB_WAITING_FOR_COMMIT, items, settings, false,
								   &segment);
		queued->slot = shared->slot;
		queued->starts = true;
	}

	/* here, because a worker that never starts cannot do so */
	history_insert_job(job, &entry);
	if (shared != NULL)
	{
		shared->recorded = true;
		for (int i = 0; i < shared->nitems; i++)
		{
			shared->items[i].outcome.status = STATUS_QUEUED;
			history_insert(shared, i);
		}
		dsm_detach(segment);
	}
	only_ours_upto = ours ? XactLastRecEnd : InvalidXLogRecPtr;
}

/* Start a job at once, for which no session waits, and which does not end with this transaction. */
void
submit_now(int64 job, List *items, const MoveSettings *settings)
{
	dsm_segment *segment;
	JobShared  *shared = job_launch_create(job, MyDatabaseId, TERMS_ROLE(settings), JOB_MOVE,
										   JOB_STARTING, items, settings, false, &segment);

	(void) job_launch_worker(shared->slot, job);
	dsm_detach(segment);
}

/* Have rows of our own tables written, for which no commit waits, see only_ours_upto. */
void
submit_own(void (*write) (void *arg), void *arg)
{
	bool		ours = only_ours();

	write(arg);
	only_ours_upto = ours ? XactLastRecEnd : InvalidXLogRecPtr;
}

/* Record altered settings of a job; returns false if it has ended. */
bool
submit_alter_job(int64 job, const char *settings)
{
	bool		ours = only_ours();
	bool		result = history_alter_job(job, settings);

	only_ours_upto = ours ? XactLastRecEnd : InvalidXLogRecPtr;
	return result;
}

/*
 * Have no ended job go on by itself that another one replaces.  ERROR 55000 if the server
 * was to have it go on, and a user was faster.
 */
static void
replace_ended(const QueuedJob *queued)
{
	bool		taken = false;

	if (queued->replaces != 0)
		taken = running_jobs_take(MyDatabaseId, queued->replaces);
	if (queued->at_start && !taken)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_internal("a user has steered job " INT64_FORMAT, queued->replaces)));
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT && !XLogRecPtrIsInvalid(only_ours_upto) &&
		only_ours_upto == XactLastRecEnd &&
		synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		commit_locally();
	else if (event != XACT_EVENT_PRE_COMMIT && event != XACT_EVENT_PRE_PREPARE)
		only_ours_upto = InvalidXLogRecPtr;

	foreach_ptr(QueuedJob, queued, queued_jobs)
	{
		if (event == XACT_EVENT_COMMIT)
			last_job = queued->job;
		if (!queued->starts)
			continue;
		if (event == XACT_EVENT_PRE_COMMIT)
			(void) job_launch_worker(queued->slot, queued->job);
		else if (event == XACT_EVENT_COMMIT)
			job_set_starting(queued->slot);
		else if (event == XACT_EVENT_ABORT)
			/* a worker that is already registered finds its slot gone */
			job_lacks_runner(queued->slot);
		else if (event == XACT_EVENT_PRE_PREPARE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has queued moves")));
	}

	/*
	 * A job that goes on by itself fails if a user has steered it.  Another
	 * one replaces the ended job for certain, since nothing can fail any
	 * more; if the server stops before, the tables are found busy, or moved.
	 */
	foreach_ptr(const QueuedJob, queued, queued_jobs)
	{
		XactEvent	moment = XACT_EVENT_COMMIT;

		if (queued->at_start)
			moment = XACT_EVENT_PRE_COMMIT;
		if (event == moment)
			replace_ended(queued);
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		list_free_deep(queued_jobs);
		queued_jobs = NIL;
	}
}

/* Forget the jobs that a subtransaction, or a subtransaction of it, has queued. */
static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	ListCell   *lc;

	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	foreach(lc, queued_jobs)
	{
		QueuedJob  *queued = lfirst(lc);

		/*
		 * subtransactions within it have higher numbers, and none is open
		 * after it
		 */
		if (queued->subid < mySubid)
			continue;
		if (queued->starts)
			job_lacks_runner(queued->slot);
		queued_jobs = foreach_delete_current(queued_jobs, lc);
		pfree(queued);
	}
}

/* Register the callbacks; to be called when the library is loaded. */
void
submit_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
