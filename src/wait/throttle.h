/*-------------------------------------------------------------------------
 *
 * throttle.h
 *	  How fast a move may go: rate limit and pause.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_THROTTLE_H
#define IM_THROTTLE_H

#include "portability/instr_time.h"
#include "settings.h"

/* One per move; set to zero at its start. */
typedef struct Throttle
{
	instr_time	last;			/* when "owed" was last brought up to date */
	double		owed;			/* bytes that were written too early */
	int64		bytes;			/* since the rate was last shown */
	double		rate;			/* bytes per second, as shown */
	instr_time	shown;
} Throttle;

extern void throttle_written(Throttle *throttle, int64 bytes);
extern int	throttle_due(Throttle *throttle, const MoveSettings *settings);
extern bool throttle_rest(int ms);

#endif							/* IM_THROTTLE_H */
