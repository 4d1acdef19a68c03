/*-------------------------------------------------------------------------
 *
 * snapshot_guard.h
 *	  Guard for the snapshots of sessions that wait for their job.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SNAPSHOT_GUARD_H
#define IM_SNAPSHOT_GUARD_H

#include "storage/proc.h"

extern void snapshot_guard_init(void);	/* from _PG_init() */
extern Size snapshot_guard_shmem_size(void);	/* for a shmem_request_hook */
extern void snapshot_guard_begin(void);
extern void snapshot_guard_end(void);
extern bool snapshot_guard_waits_for_job(PGPROC *proc);
extern void snapshot_guard_hide_callers(bool hide);

#endif							/* IM_SNAPSHOT_GUARD_H */
