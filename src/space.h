/*-------------------------------------------------------------------------
 *
 * space.h
 *	  Is there room for a move?
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SPACE_H
#define IM_SPACE_H

#include "job.h"

/*
 * ERROR 53100, with needed and free bytes in the detail, if the move would
 * leave less than min_free_space of the target's or pg_wal's file system.  In a
 * transaction; no locks.
 */
extern void space_check(const MoveItem *item, const MoveSettings *settings);

#endif							/* IM_SPACE_H */
