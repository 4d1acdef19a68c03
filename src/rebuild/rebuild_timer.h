/*-------------------------------------------------------------------------
 *
 * rebuild_timer.h
 *	  What has to be looked at while core's REINDEX runs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REBUILD_TIMER_H
#define IM_REBUILD_TIMER_H

#include "job.h"

/*
 * From here to rebuild_timer_end(), signal those whom core's command waits for
 * longer than lock_wait, as on_blocker says; cancel it if it writes WAL that
 * max_slot_wal_keep_size would make some slot pay for, or if the caller asks to
 * step back; look for deadlocks early; and have each wait reported once, as
 * log_lock_waits and deadlock_timeout are configured.  In a transaction.
 */
extern void rebuild_timer_begin(const MoveSettings *job_settings);

/* Tell of those who were signaled since the last call.  In a transaction. */
extern void rebuild_timer_tell(MoveItem *item);

/*
 * If this is the ERROR of our cancel, make it tell why: 53400 for a slot; 40P01
 * if we are to step back.  To be called before rebuild_timer_end().
 */
extern void rebuild_timer_explain(ErrorData *edata, const MoveItem *item);

extern void rebuild_timer_end(void);

#endif							/* IM_REBUILD_TIMER_H */
