/*-------------------------------------------------------------------------
 *
 * submit.h
 *	  The caller's side of a job: create it, start it, wait for it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SUBMIT_H
#define IM_SUBMIT_H

#include "job.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"

extern void submit_init(void);	/* from _PG_init() */

/*
 * Run a job and wait for its rows, which are returned as a palloc'd copy.  A
 * JOB_CLEANUP with items is not done, and NULL returned, if there is no slot or
 * no worker.
 * ERRORs: 53000 no worker, no slot; 55006 a table is being moved; 40P01 what
 * the job waits for waits for us; 57014 and the like after cancelling the job.
 */
extern MoveItem *submit_and_wait(JobPurpose purpose, List *items,
								 const MoveSettings *settings, int64 *job);

/*
 * Start a worker that cleans up in a database; nobody waits for its rows.
 * Returns NULL if there is none to be had.  Needs no transaction, so that an
 * exit callback can call it.  notify_pid: as in worker_register().
 */
extern BackgroundWorkerHandle *submit_cleanup(Oid database, Oid role,
											  int notify_pid);

/*
 * Queue a job that starts when this transaction commits, and is forgotten if
 * it doesn't.  Returns the job's number; 0 for a JOB_CLEANUP with items that is
 * not done for want of a slot.
 */
extern int64 submit_at_commit(JobPurpose purpose, List *items,
							  const MoveSettings *settings);

/*
 * Wait, without looking at its rows, until a job submitted by anybody has
 * ended.  Returns false if there is no such job running.
 */
extern bool submit_wait_for(int64 job);

/*
 * Between submit.c and submit_queue.c: draw a number; create a job, with a
 * pinned segment and a slot; start its first worker.  For want of one NULL is
 * given back only if the job is optional, a clean-up that comes with a call for
 * something else.
 */
extern int64 submit_next_job(void);
extern JobShared *submit_create_job(int64 job, Oid database, Oid role,
									JobPurpose purpose, JobState state,
									List *items, const MoveSettings *settings,
									bool waits, dsm_segment **segment);
extern BackgroundWorkerHandle *submit_register_worker(int slot, int64 job,
													  bool optional);
extern bool submit_is_optional(JobPurpose purpose, const List *items);

#endif							/* IM_SUBMIT_H */
