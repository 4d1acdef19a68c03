/*-------------------------------------------------------------------------
 *
 * space.h
 *	  Whether the free space suffices for a move.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SPACE_H
#define IM_SPACE_H

#include "job.h"
#include "settings.h"
#include "wait/free_space.h"

/* Return the bytes to copy: 0 of a part that is in place. */
static inline int64
space_to_copy(const MoveItem *item)
{
	return item->method == METHOD_COPY && item->from_tablespace == item->to_tablespace ?
		0 : Max(item->size_before, 0);
}

extern void space_needs(SpaceNeeds *needs, const FreeSpaceRule *rule, const MoveItem *item,
						int64 wal_free, int64 new_bytes, int64 sort_bytes, int64 wal_bytes);
extern char *space_place(const SpaceNeed *need);
extern void space_check(const JobShared *job, const MoveItem *item,
						const MoveSettings *settings);

#endif							/* IM_SPACE_H */
