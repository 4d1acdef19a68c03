/*-------------------------------------------------------------------------
 *
 * hold_back.h
 *	  Keeping a rebuild from beginning, and what waits from going on.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_HOLD_BACK_H
#define IM_HOLD_BACK_H

#include "settings.h"

extern bool must_hold_back(const MoveSettings *settings, int64 wal_bytes);
extern bool hold_back(const MoveSettings *settings, int64 wal_bytes);

/*
 * Rest as long as the job is paused, with no transaction open and no lock held
 * that others could wait for.  Returns for how many microseconds: what the
 * caller's time limits are to be put off by.  ERROR 57014 if the job is
 * cancelled.
 */
extern int64 rest_while_paused(void);

#endif							/* IM_HOLD_BACK_H */
