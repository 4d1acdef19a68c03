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
 * What a move needs of one file system.  Places on the same file system are one
 * need: of what they need together.
 */
typedef struct SpaceNeed
{
	const char *what;			/* "tablespace "x"", "pg_wal"; the first place */
	int64		device;
	int64		needed;			/* bytes */
	int64		available;
	int64		total;
} SpaceNeed;

#define SPACE_PLACES	8		/* target, pg_wal, places of sort files */

typedef struct SpaceNeeds
{
	int			n;
	SpaceNeed	need[SPACE_PLACES];
} SpaceNeeds;

/*
 * Collect what is needed of the file systems of the target, of pg_wal and, if
 * there is something to be sorted on disk, of temp_tablespaces.  In a
 * transaction; no locks.
 */
extern void space_needs(SpaceNeeds *needs, Oid target, int64 new_bytes,
						int64 sort_bytes, int64 wal_bytes);

/* The first need for which there is no room; NULL if it all fits. */
extern const SpaceNeed *space_missing(const SpaceNeeds *needs, double min_free);

/*
 * ERROR 53100, with needed and free bytes in the detail, if the move, together
 * with those that run beside it, would leave less than min_free_space of a file
 * system that it writes to.  In a transaction; no locks.
 */
extern void space_check(const JobShared *job, const MoveItem *item,
						const MoveSettings *settings);

/*
 * The same for the next few MB, before each MB that is written.  With no
 * transaction open.
 */
extern void space_check_again(const MoveItem *item, const MoveSettings *settings);

#endif							/* IM_SPACE_H */
