/*-------------------------------------------------------------------------
 *
 * copy.h
 *	  The method copy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COPY_H
#define IM_COPY_H

#include "job.h"

extern void move_by_copy(MoveContext *mc);
extern void copy_cleanup(MoveContext *mc, int max_wait_ms);

#endif							/* IM_COPY_H */
