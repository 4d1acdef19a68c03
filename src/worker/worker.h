/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The background workers that carry out jobs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WORKER_H
#define IM_WORKER_H

#include "postmaster/bgworker.h"

#include "job.h"
#include "running_jobs.h"
#include "settings.h"

#define LOOK_MS			60000	/* longest time between two looks of the
								 * scheduler */
/* between two passes of a round; a cleanup may read all pages of relations that are not lost */
#define CLEANUP_AGAIN_MS	IM_LIMIT("look-again", 20000)

/*
 * The arguments of a worker that looks into a database for the scheduler, and its
 * answer: launcher.c has it started, tier_scheduler.c carries it out.
 */
typedef struct LookTask
{
	Oid			database;
	NameData	name;			/* of the database */
	bool		sample;			/* is due */
	bool		failed_before;	/* the last look */
	Oid			last_owner;		/* of the policy that was begun last; 0 = none */

	/* the answer, with the new last_owner */
	bool		failed;
	int			next;			/* when to look again, in ms */
} LookTask;

/* The end of a try to have a job go on */
typedef enum ResumeEnd
{
	RESUME_HINDERED,			/* by a lock, say; or the worker had no end */
	RESUME_WAITS,				/* no worker is free for it */
	RESUME_DONE,
} ResumeEnd;

/* A hindered job is tried this often, 5 s apart: about 5 minutes, and 10 s more for each lock */
#define RESUME_TRIES	60

/*
 * The arguments of a worker that has a job of before the start go on, and its answer: launcher.c has it
 * started, call/resume_at_start.c carries it out.
 */
typedef struct ResumeTask
{
	RunningJob	job;
	int			tries;			/* that were hindered */

	/* the answer */
	ResumeEnd	end;
} ResumeTask;

/*
 * The arguments of a worker that looks at all devices, and its answer: launcher.c has it
 * started, device_watch.c carries it out.
 */
typedef struct WatchTask
{
	bool		settles;		/* a round has found all files whole, but for
								 * devices that were refuted */

	/* the answer */
	bool		done;
	uint64		missing;		/* changes when the directory of a tablespace
								 * comes, or a file system is mounted there; 0
								 * if all are there */
} WatchTask;

/*
 * The arguments of a worker that empties the files of the lost indexes of a database, and its
 * answer: launcher.c has it started, emptying.c carries it out.
 */
typedef struct EmptyTask
{
	Oid			database;
	bool		is_again;		/* an earlier one was done, and has left files */

	/* the answer */
	bool		done;
	bool		left_files;		/* which it could not empty */
} EmptyTask;

extern bool job_launch_cleanup(int64 job, Oid database, Oid role, List *items);
extern BackgroundWorkerHandle *job_launch_look(const Look *look, dsm_segment **segment);
extern void job_launch_warn(void);
extern JobShared *job_launch_create(int64 job, Oid database, Oid role,
									JobPurpose purpose, JobState state,
									List *items, const MoveSettings *settings,
									bool waits, dsm_segment **segment);
extern BackgroundWorkerHandle *job_launch_worker(int slot, int64 job);

extern void worker_apply_settings(void);
extern void worker_connect_as(Oid database, Oid role);

/* The end of the move of some items */
typedef enum MoveEnd
{
	MOVE_ENDED,					/* with an outcome */
	MOVE_GIVES_TURN,			/* to others: nothing is left to clean up */
	MOVE_PARTED,				/* they are moved one after the other */
} MoveEnd;

extern MoveEnd move_items(JobShared *job, MoveItem **items, int nitems);
extern void move_default(MoveContext *mc);
extern void outcome_take_error(JobShared *shared, MoveItem *item, ErrorData *edata);
extern void outcome_take_cancel(JobShared *shared, MoveOutcome *outcome);
extern void outcome_take_owners_cancel(MoveOutcome *outcome);
extern void outcome_end(MoveOutcome *outcome, MoveStatus status, const char *sqlstate,
						const char *detail);
extern void move_find_out(MoveItem *item);
extern void move_cleanup(JobShared *job, MoveItem *item, int max_wait_ms);
extern void move_cleanup_rest(JobShared *job, MoveItem *item);

extern bool outcome_record_all(JobShared *shared);
extern void outcome_record(JobShared *shared, int first, int last);
extern bool outcome_extension_is_gone(JobShared *shared);
extern bool outcome_hold_extension(JobShared *shared);

extern void launcher_register(void);
extern bool launcher_looks_into(const char *database);
extern void janitor_look(Look *look);

#endif							/* IM_WORKER_H */
