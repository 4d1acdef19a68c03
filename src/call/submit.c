/*-------------------------------------------------------------------------
 *
 * submit.c
 *	  Jobs that start when the caller's transaction commits; drawing job numbers.
 *
 * submit_at_commit() puts the job on record in the caller's transaction, registers
 * the worker in the PRE_COMMIT callback, where a failure can still be an error,
 * and lets it go in the COMMIT callback.
 *
 * Assumption: all of it is done by the backend whose transaction it is; the
 * callbacks are registered when the library is loaded.
 *
 * Locking: none, but those of the history table's insertions.
 *
 * Tricky: a commit that writes nothing but our numbers and records must not wait
 * for a synchronous standby, see commit_numbers_locally().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "call/call.h"
#include "history.h"
#include "job.h"
#include "own_tables.h"
#include "settings.h"
#include "worker/worker.h"

#define JOB_SEQUENCE		"index_mover_job_seq"

/* A job of this transaction that starts at its commit. */
typedef struct QueuedJob
{
	int64		job;
	int			slot;
	SubTransactionId subid;		/* forgotten if this one aborts */
	bool		optional;		/* the transaction commits also without it */
	BackgroundWorkerHandle *worker; /* NULL = not registered yet */
} QueuedJob;

static List *queued_jobs = NIL; /* of QueuedJob *, in TopMemoryContext */

/*
 * Where the WAL of this transaction ended when it had only drawn job numbers, and
 * recorded jobs.
 */
static XLogRecPtr only_numbers_upto = InvalidXLogRecPtr;

/*
 * Between submit.c and submit_queue.c: draw a number; create a job, with a
 * pinned segment and a slot; start its first worker.  For want of one NULL is
 * given back only if the job is optional, a clean-up that comes with a call for
 * something else.
 *
 * Draw a job's number that the history doesn't have: who replicates sequences
 * may have set ours back.  That may write WAL and assign an xid, so that the
 * caller's commit would wait for a synchronous standby, for nothing: see
 * commit_numbers_locally().
 */
int64
submit_next_job(void)
{
	bool		only_numbers = !TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		(!XLogRecPtrIsInvalid(only_numbers_upto) &&
		 only_numbers_upto == XactLastRecEnd);
	int64		result;

	do
		result = extension_nextval(JOB_SEQUENCE);
	while (history_exists(result));
	only_numbers_upto = only_numbers ? XactLastRecEnd : InvalidXLogRecPtr;
	return result;
}

/*
 * Before the commit of a transaction that has drawn job numbers and written
 * nothing else: it need not wait for a synchronous standby.  If one is stopped,
 * the move would end, but never the call.
 */
static void
commit_numbers_locally(void)
{
	if (!XLogRecPtrIsInvalid(only_numbers_upto) &&
		only_numbers_upto == XactLastRecEnd &&
		synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH)
		(void) set_config_option("synchronous_commit", "local", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Queue a job that starts when this transaction commits, and is forgotten if
 * it doesn't.  Returns the job's number; 0 for a JOB_CLEANUP with items that is
 * not done for want of a slot.
 */
int64
submit_at_commit(JobPurpose purpose, List *items, const MoveSettings *settings)
{
	dsm_segment *segment;
	JobShared  *shared;
	QueuedJob  *queued;
	MemoryContext oldcontext;
	bool		only_ours;
	int			i;

	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	queued = palloc0(sizeof(QueuedJob));
	queued_jobs = lappend(queued_jobs, queued);
	MemoryContextSwitchTo(oldcontext);
	queued->subid = GetCurrentSubTransactionId();

	/* the segment is pinned: our own mapping may go with the resource owner */
	shared = job_launch_create(submit_next_job(), MyDatabaseId, GetUserId(),
							   purpose, JOB_WAITING_FOR_COMMIT, items, settings,
							   false, &segment);
	if (shared == NULL)
		return 0;				/* nor has the entry a job */
	queued->slot = shared->slot;
	queued->job = shared->job;
	queued->optional = job_launch_is_optional(purpose, items);

	/*
	 * On record from here on: a worker that never starts can't do it.  A
	 * commit that writes nothing else still waits for no standby.
	 */
	only_ours = !XLogRecPtrIsInvalid(only_numbers_upto);
	shared->recorded = true;
	for (i = 0; i < shared->nitems && purpose == JOB_MOVE; i++)
	{
		shared->items[i].status = STATUS_QUEUED;
		history_insert(shared, i);
	}
	if (only_ours)
		only_numbers_upto = XactLastRecEnd;
	dsm_detach(segment);
	return queued->job;
}

static void
forget_queued_jobs(void)
{
	list_free_deep(queued_jobs);
	queued_jobs = NIL;
}

static void
xact_callback(XactEvent event, void *arg)
{
	ListCell   *lc;

	if (event == XACT_EVENT_PRE_COMMIT)
		commit_numbers_locally();
	else if (event != XACT_EVENT_PRE_PREPARE)
		only_numbers_upto = InvalidXLogRecPtr;

	if (queued_jobs == NIL)
		return;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			foreach(lc, queued_jobs)
			{
				QueuedJob  *queued = lfirst(lc);

				if (queued->job != 0)
					queued->worker = job_launch_worker(queued->slot, queued->job,
													   queued->optional);
			}
			break;
		case XACT_EVENT_COMMIT:
			foreach(lc, queued_jobs)
			{
				QueuedJob  *queued = lfirst(lc);

				if (queued->job != 0)
					(void) job_set_state(queued->slot, queued->job, JOB_STARTING);
			}
			forget_queued_jobs();
			break;
		case XACT_EVENT_ABORT:
			/* a worker that is registered already finds its slot gone */
			foreach(lc, queued_jobs)
			{
				QueuedJob  *queued = lfirst(lc);

				if (queued->job != 0)
					job_free_slot(queued->slot, queued->job);
			}
			forget_queued_jobs();
			break;
		case XACT_EVENT_PRE_PREPARE:
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has queued moves of indexes")));
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	ListCell   *lc;

	foreach(lc, queued_jobs)
	{
		QueuedJob  *queued = lfirst(lc);

		if (queued->subid != mySubid)
			continue;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			queued->subid = parentSubid;
		else if (event == SUBXACT_EVENT_ABORT_SUB)
		{
			if (queued->job != 0)
				job_free_slot(queued->slot, queued->job);
			queued_jobs = foreach_delete_current(queued_jobs, lc);
			pfree(queued);
		}
	}
}

void
submit_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
