/*-------------------------------------------------------------------------
 *
 * watch.h
 *	  Telling how far a running move is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WATCH_H
#define IM_WATCH_H

#include "job.h"

/* Send a NOTICE with phase, percent, rate and time left. */
extern void watch_notice(const RunnerSlot *runner);

#endif							/* IM_WATCH_H */
