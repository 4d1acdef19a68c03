/*-------------------------------------------------------------------------
 *
 * running_jobs.h
 *	  Files of this server that name the jobs that run: after its end
 *	  their rest goes on by index_mover.resume_at_start.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_RUNNING_JOBS_H
#define IM_RUNNING_JOBS_H

#include "nodes/pg_list.h"

typedef struct RunningJob
{
	Oid			database;
	int64		job;
	Oid			role;
	Oid			extension;		/* whose tables have its rows */
	bool		again;			/* it goes on itself with the rest of a job */
	bool		is_paused;
} RunningJob;

extern void running_jobs_begin(const char *why_none, bool has_crashed, const char *run);
extern void running_jobs_tell_forgotten(void);
extern void running_jobs_forget(const RunningJob *job, const char *why);
extern void running_jobs_put(const RunningJob *job);
extern bool running_jobs_set_again(Oid database, int64 job);
extern void running_jobs_set_paused(Oid database, int64 job, bool paused);
extern bool running_jobs_take(Oid database, int64 job);
extern void running_jobs_end(Oid database, int64 job);
extern List *running_jobs_of_before(void);

#endif							/* IM_RUNNING_JOBS_H */
