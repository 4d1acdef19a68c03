/*-------------------------------------------------------------------------
 *
 * hold_back.h
 *	  Keeping a rebuild from beginning.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_HOLD_BACK_H
#define IM_HOLD_BACK_H

#include "settings.h"

extern bool must_hold_back(const MoveSettings *settings, int64 wal_bytes);
extern bool hold_back(const MoveSettings *settings, int64 wal_bytes);

#endif							/* IM_HOLD_BACK_H */
