/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The background worker that carries out a job.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WORKER_H
#define IM_WORKER_H

#include "job.h"
#include "postmaster/bgworker.h"

/*
 * Ask the postmaster for a worker of a job that has a slot.  Returns NULL if
 * there is no background worker slot.  runner: 0 for the first one, which asks
 * for the others.  notify_pid: whom to tell about its start and end, 0 = nobody.
 */
extern BackgroundWorkerHandle *worker_register(int slot, int64 job, int runner,
											   int notify_pid);

#endif							/* IM_WORKER_H */
