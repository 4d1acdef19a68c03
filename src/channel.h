/*-------------------------------------------------------------------------
 *
 * channel.h
 *	  Between a process and the workers that it starts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CHANNEL_H
#define IM_CHANNEL_H

#include "postmaster/bgworker.h"
#include "storage/dsm.h"

/* the form of shared memory, and whether all processes agree on it */
extern Size channel_shmem_size(void);
extern void channel_layout_add(Size size);
extern void channel_check_library(void);
extern void channel_check_worker_library(bool has_ended);

/* in the process that starts a worker */
extern dsm_segment *channel_create(Size size);
extern void channel_describe(BackgroundWorker *worker, const char *type, const char *function);
extern BackgroundWorkerHandle *channel_start(BackgroundWorker *worker, const void *arguments,
											 Size size, int notify_pid);
extern BackgroundWorkerHandle *channel_start_task(BackgroundWorker *worker, const void *task,
												  Size size, dsm_segment **segment);
extern bool channel_worker_has_ended(BackgroundWorkerHandle *worker);

/* in the worker */
extern void channel_begin(void *arguments, Size size);
extern void channel_carry_out(Datum main_arg, void *task, Size size,
							  void (*work) (void *task));

#endif							/* IM_CHANNEL_H */
