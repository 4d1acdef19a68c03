/*-------------------------------------------------------------------------
 *
 * move_rebuild.h
 *	  Method rebuild; move_by_rebuild() and rebuild_cleanup() are in move.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_MOVE_REBUILD_H
#define IM_MOVE_REBUILD_H

#include "worker/move.h"

/* Install the hooks that a runner needs; called from _PG_init(). */
extern void move_rebuild_init(void);

#endif							/* IM_MOVE_REBUILD_H */
