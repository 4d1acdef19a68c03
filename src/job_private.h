/*-------------------------------------------------------------------------
 *
 * job_private.h
 *	  The shared area, for job.c, progress.c and the files of runners only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_JOB_PRIVATE_H
#define IM_JOB_PRIVATE_H

#include "job.h"

typedef struct JobArea
{
	int			tranche;		/* before 17: allocated once per cluster start */
	LWLock		lock;
	LWLock		submit_lock;
	uint32		nuses;			/* uses of slots so far */
	JobSlot		jobs[IM_MAX_JOBS];
	RunnerSlot	runners[IM_MAX_RUNNERS];
} JobArea;

extern JobArea *job_area(void);
extern JobSlot *job_slot_locked(int slot);
extern void job_free_slot_locked(JobSlot *slot);
extern void progress_attach(RunnerSlot *slot);

#endif							/* IM_JOB_PRIVATE_H */
