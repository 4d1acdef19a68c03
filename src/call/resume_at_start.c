/*-------------------------------------------------------------------------
 *
 * resume_at_start.c
 *	  The worker by which a job goes on that the end of the server has ended.
 *
 * The launcher (worker/launcher.c) starts one for each job, one after the other.  It connects as
 * the job's role, as the runners of the job did, queues the rest of its moves, and is gone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "call/call.h"
#include "channel.h"
#include "printed_command.h"
#include "test_points.h"
#include "worker/worker.h"

PGDLLEXPORT void index_mover_resume_main(Datum arg);

/* A job that is to go on */
typedef struct Resumption
{
	const RunningJob *job;
	char	   *database;		/* its name */
	int64		rest;			/* the job that goes on; 0: nothing is left,
								 * or an error has come */
	const char *why_not;		/* there is no such job any more, or NULL */
} Resumption;

/* In a transaction: let the job go on. */
static void
go_on(void *arg)
{
	Resumption *resumption = arg;
	RunningJob	rest = *resumption->job;

	resumption->database = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	resumption->rest = control_go_on(resumption->job, &resumption->why_not);
	if (resumption->rest == 0)
		return;
	/* before the other file is gone: the server may be stopped in between */
	rest.job = resumption->rest;
	rest.again = true;
	running_jobs_put(&rest);
}

/* Return whether the cause of this error is likely to go away by itself. */
static bool
is_passing(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_OBJECT_IN_USE ||
		ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_TRANSACTION_ROLLBACK;
}

/* Let the job go on, and tell of it. */
static ResumeEnd
resume_job(const RunningJob *job, int tries)
{
	Resumption	resumption = {.job = job};
	ErrorData  *error;

	error = errors_catch_in_transaction(go_on, &resumption);
	if (error != NULL && resumption.rest != 0)
		(void) running_jobs_take(job->database, resumption.rest);
	if (error != NULL)
	{
		/* without its file, a user was faster */
		if (!running_jobs_set_again(job->database, job->job))
			return RESUME_DONE;
	}
	if (error != NULL && error->sqlerrcode == ERRCODE_INSUFFICIENT_RESOURCES)
		return RESUME_WAITS;
	if (error != NULL && is_passing(error) && tries < RESUME_TRIES)
	{
		if (tries == 0)
			ereport(LOG,
					(errmsg("job " INT64_FORMAT " (%s): does not go on yet after the start of the server",
							job->job, resumption.database),
					 errors_as_detail(error)));
		return RESUME_HINDERED;
	}
	/* the note of a job that goes on is gone by now */
	if (resumption.why_not != NULL)
		running_jobs_forget(job, resumption.why_not);
	else if (error != NULL || resumption.rest == 0)
		(void) running_jobs_take(job->database, job->job);
	if (error != NULL)
		ereport(LOG,
				(errmsg("job " INT64_FORMAT " (%s): does not go on after the start of the server",
						job->job, resumption.database),
				 errors_as_detail(error),
				 errhint("To resume it: %s", printed_command("resume_move", job->job))));
	else if (resumption.rest != 0)
		ereport(LOG,
				(errmsg("job " INT64_FORMAT " (%s): goes on as job " INT64_FORMAT " after the start of the server",
						job->job, resumption.database, resumption.rest)));
	return RESUME_DONE;
}

/* Let the job of the task go on, and set the answer. */
static void
resume_by_task(void *arg)
{
	ResumeTask *task = arg;
	const RunningJob *job = &task->job;

	/*
	 * First, and durably: whatever makes the server crash from here on does
	 * so once.  Without the file, a user has steered the job meanwhile.
	 */
	task->end = RESUME_DONE;
	if (!running_jobs_set_again(job->database, job->job))
		return;
	/* for the lock on the database, too */
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	worker_connect_as(job->database, job->role);
	/* which has set it as runners have it */
	SetConfigOption("lock_timeout", "10s", PGC_SUSET, PGC_S_OVERRIDE);
	IM_POINT("job-taken");
	task->end = resume_job(job, task->tries);
}

void
index_mover_resume_main(Datum arg)
{
	ResumeTask	task;

	channel_carry_out(arg, &task, sizeof(task), resume_by_task);
}
