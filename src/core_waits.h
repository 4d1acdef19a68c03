/*-------------------------------------------------------------------------
 *
 * core_waits.h
 *	  index_mover.on_blocker while it is core that waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CORE_WAITS_H
#define IM_CORE_WAITS_H

#include "job.h"

/*
 * From here to core_waits_end(), signal those whom core's command waits for
 * longer than lock_wait.  In a transaction.
 */
extern void core_waits_begin(const MoveSettings *settings);

/* Tell of those who were signalled since the last call.  In a transaction. */
extern void core_waits_tell(MoveItem *item);

extern void core_waits_end(void);

#endif							/* IM_CORE_WAITS_H */
