/*-------------------------------------------------------------------------
 *
 * snapshot_guard.h
 *	  The snapshot of a session that waits for its job: out of a rebuild's
 *	  way while that must be, and never used to read what it would misread.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SNAPSHOT_GUARD_H
#define IM_SNAPSHOT_GUARD_H

#include "storage/proc.h"
#include "utils/timestamp.h"

extern void snapshot_guard_init(void);	/* from _PG_init() */
extern Size snapshot_guard_shmem_size(void);	/* for a shmem_request_hook */
extern void snapshot_guard_begin(void);
extern void snapshot_guard_answer(void);
extern void snapshot_guard_end(void);
extern bool snapshot_guard_waits_for_job(PGPROC *proc);
extern void snapshot_guard_hide_callers(TimestampTz deadline);
extern void snapshot_guard_show_callers(void);

#endif							/* IM_SNAPSHOT_GUARD_H */
