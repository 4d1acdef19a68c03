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
extern void copy_cleanup(void);
extern int	copy_most_together(const MoveSettings *settings);

#endif							/* IM_COPY_H */
