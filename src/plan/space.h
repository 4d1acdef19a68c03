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

/* The need of a move on one file system: the sum over the places on it. */
typedef struct SpaceNeed
{
	Oid			tablespace;		/* the first place; 0 = pg_wal */
	int64		device;
	int64		needed;			/* bytes */
	int64		available;
	int64		reserved;		/* of these, by min_free_space */
} SpaceNeed;

#define SPACE_PLACES	8		/* target, pg_wal, places of sort files */

typedef struct SpaceNeeds
{
	const FreeSpaceRule *rule;
	int			n;
	SpaceNeed	need[SPACE_PLACES];
} SpaceNeeds;

/* Return the bytes to copy: 0 of a part that is in place. */
static inline int64
space_to_copy(const MoveItem *item)
{
	return item->method == METHOD_COPY && item->from_tablespace == item->to_tablespace ?
		0 : Max(item->size_before, 0);
}

extern void space_needs(SpaceNeeds *needs, const FreeSpaceRule *rule, Oid target,
						int64 new_bytes, int64 sort_bytes, int64 wal_bytes);
extern char *space_place(const SpaceNeed *need);
extern const SpaceNeed *space_missing(const SpaceNeeds *needs);
extern void space_check(const JobShared *job, const MoveItem *item,
						const MoveSettings *settings);
extern void space_check_again(const MoveItem *item, const MoveSettings *settings);

#endif							/* IM_SPACE_H */
