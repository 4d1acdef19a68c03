/*-------------------------------------------------------------------------
 *
 * free_space.h
 *	  The space that must stay free on a file system, and the rest of a copy that sees less.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_FREE_SPACE_H
#define IM_FREE_SPACE_H

#include "file_system.h"
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
	int			n;
	SpaceNeed	need[SPACE_PLACES];
} SpaceNeeds;

/* The writes of a copy, and to where */
typedef struct SpaceWatch
{
	Oid			target;
	NameData	target_name;
	int64		wal_free;		/* see free_space_reserved() */

	/* until the next look */
	int64		bytes;			/* for the target */
	int64		wal_bytes;		/* for pg_wal; 0 = nothing is logged */
	double		limit_part;		/* of the limit that counts for them, 0 to 1 */
} SpaceWatch;

/* All moves together may write so much until the next look */
#define FREE_SPACE_NEXT		(4 * 1024 * 1024)

extern int64 free_space_reserved(const FreeSpaceRule *rule, const FileSystemFacts *facts,
								 int64 free_at_begin);
extern int64 free_space_for_wal(void);
extern bool free_space_is_freed(Oid from_tablespace, Oid to_tablespace);
extern void free_space_add(SpaceNeeds *needs, Oid tablespace, const FileSystemFacts *facts,
						   int64 reserved, int64 bytes);
extern const SpaceNeed *free_space_missing(const SpaceNeeds *needs);
extern int64 free_space_wal_on_disk(void);
extern char *free_space_wal_keeper(void);
extern bool free_space_look(const SpaceWatch *watch, const MoveSettings *settings,
							const RunnerRest **why);

#endif							/* IM_FREE_SPACE_H */
