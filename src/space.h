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
 * ERROR 53100, with needed and free bytes in the detail, if the move, together
 * with those that run beside it, would leave less than min_free_space of the
 * target's or pg_wal's file system.  In a transaction; no locks.
 */
extern void space_check(const JobShared *job, const MoveItem *item,
						const MoveSettings *settings);

/*
 * The same for the next few MB, before each MB that is written.  With no
 * transaction open.
 */
extern void space_check_again(const MoveItem *item, const MoveSettings *settings);

#endif							/* IM_SPACE_H */
