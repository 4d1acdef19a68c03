/*-------------------------------------------------------------------------
 *
 * space.c
 *	  Whether the free space suffices for a move.
 *
 * This is checked before each index, so that no move begins that cannot end,
 * and before each MB of a copy, because others write, too: a full file system
 * stops everything that writes to it, and a full pg_wal the server.
 *
 * Assumption: WAL is recycled after max_wal_size, including what pg_wal has
 * now, unless a replication slot or the archiver keeps all that the move
 * writes.
 *
 * Tricky: target, pg_wal and sort files often share a file system, and then
 * need free space at the same time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "commands/tablespace.h"
#include "storage/fd.h"

#include "cleanup/cleanup.h"
#include "file_system.h"
#include "job.h"
#include "plan/space.h"
#include "settings.h"
#include "wait/wait.h"

/* all moves together may write so much until the next check */
#define NEXT_BYTES		(4 * 1024 * 1024)

static bool
any_slot_in_use(void)
{
	int			i = 0;
	bool		result;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	result = slot_next(&i) != NULL;
	LWLockRelease(ReplicationSlotControlLock);
	return result;
}

/* Return the first need that exceeds the free space; NULL if none does. */
const SpaceNeed *
space_missing(const SpaceNeeds *needs)
{
	for (int i = 0; i < needs->n; i++)
	{
		if (needs->need[i].needed > needs->need[i].available - needs->need[i].reserved)
			return &needs->need[i];
	}
	return NULL;
}

/* Return the name of the first place of a need, in words. */
char *
space_place(const SpaceNeed *need)
{
	if (!OidIsValid(need->tablespace))
		return pstrdup("pg_wal");
	return psprintf("tablespace \"%s\"", tablespace_name(need->tablespace));
}

/* Raise ERROR 53100 if a need, of others too, exceeds the free space. */
static void
check_needs(const SpaceNeeds *needs, bool with_others)
{
	const SpaceNeed *need = space_missing(needs);

	if (need == NULL)
		return;
	if (!IsTransactionState())
		StartTransactionCommand();	/* to look up the name */
	if (with_others)
		ereport(ERROR,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("not enough free space in %s", space_place(need)),
				 errdetail("The move and the others that run now still need " INT64_FORMAT
						   " bytes, " INT64_FORMAT " bytes are free, of which " INT64_FORMAT
						   " must stay free.", need->needed, need->available, need->reserved),
				 errhint("Free some space, or lower index_mover.min_free_space.")));
	ereport(ERROR,
			(errcode(ERRCODE_DISK_FULL),
			 errmsg("not enough free space in %s", space_place(need)),
			 errdetail("The move needs " INT64_FORMAT " bytes, " INT64_FORMAT
					   " bytes are free, of which " INT64_FORMAT " must stay free.",
					   need->needed, need->available, need->reserved),
			 errhint("Free some space, or lower index_mover.min_free_space.")));
}

/* Return the bytes of the WAL files in pg_wal. */
static int64
wal_on_disk(void)
{
	DIR		   *dir = AllocateDir(XLOGDIR);
	struct dirent *entry;
	int64		result = 0;

	while ((entry = ReadDirExtended(dir, XLOGDIR, DEBUG1)) != NULL)
	{
		if (IsXLogFileName(entry->d_name))
			result += wal_segment_size;
	}
	FreeDir(dir);
	return result;
}

/* Add bytes to the need on the file system of a tablespace, or of pg_wal (InvalidOid). */
static void
add_need(SpaceNeeds *needs, Oid tablespace, const FileSystemFacts *facts, int64 bytes)
{
	SpaceNeed  *need = needs->need;

	while (need < needs->need + needs->n && need->device != facts->device)
		need++;
	if (bytes <= 0 || need == needs->need + SPACE_PLACES)
		return;
	if (need == needs->need + needs->n)
	{
		needs->n++;
		*need = (SpaceNeed)
		{
			tablespace, facts->device, 0, facts->free_bytes,
				settings_reserved(needs->rule, facts->total_bytes)
		};
	}
	need->needed += bytes;
}

/*
 * Collect the needs on the file systems of the target, of pg_wal and, if
 * anything is sorted on disk, of temp_tablespaces.
 */
void
space_needs(SpaceNeeds *needs, const FreeSpaceRule *rule, Oid target, int64 new_bytes,
			int64 sort_bytes, int64 wal_bytes)
{
	FileSystemFacts facts;

	Assert(IsTransactionState());
	needs->rule = rule;
	needs->n = 0;
	if (file_system_facts(target, &facts))
		add_need(needs, target, &facts, new_bytes);

	if (sort_bytes > 0)
	{
		Oid			places[SPACE_PLACES - 2];
		int			n;

		/* any of them may get the sort files: each must have the space */
		PrepareTempTablespaces();
		n = GetTempTablespaces(places, lengthof(places));
		if (n == 0)
			places[n++] = InvalidOid;
		for (int i = 0; i < n; i++)
		{
			Oid			place = tablespace_from_catalog(places[i]);

			if (file_system_facts(place, &facts))
				add_need(needs, place, &facts, sort_bytes);
		}
	}

	if (wal_bytes > 0 && directory_facts(XLOGDIR, &facts))
	{
		if (!XLogArchivingActive() && !any_slot_in_use())
			wal_bytes = Min(wal_bytes,
							(int64) max_wal_size_mb * 1024 * 1024 - wal_on_disk());
		add_need(needs, InvalidOid, &facts, wal_bytes);
	}
}

/*
 * Return the bytes that a move has still to write to its new file, which has no bloat after
 * a rebuild.
 */
static int64
left_to_write(const MoveItem *item)
{
	int64		size = space_to_copy(item);

	if (item->method == METHOD_REBUILD && item->bytes_to_write >= 0)
		size = item->bytes_to_write - Max(item->sort_bytes, 0);
	return Max(size - Max(item->outcome.blocks_copied * BLCKSZ, leftover_kept_bytes(item)), 0);
}

/*
 * Raise ERROR 53100 if the move, together with those that run at the same time, would
 * leave less than min_free_space of a file system that it writes to.
 */
void
space_check(const JobShared *job, const MoveItem *item,
			const MoveSettings *settings)
{
	int64		bytes = left_to_write(item);
	int64		others = 0;		/* files of this move, too */
	int64		others_sort = 0;
	int64		sort_bytes = 0;
	int64		wal_bytes = 0;
	bool		with_others = false;
	SpaceNeeds	needs;

	for (int i = 0; i < job->nitems; i++)
	{
		const MoveItem *other = &job->items[i];

		if (other == item || other->outcome.status != STATUS_RUNNING)
			continue;
		others += left_to_write(other);
		others_sort += Max(other->sort_bytes, 0);
		with_others |= other->part_of != item->relid;
	}

	if (item->method == METHOD_DEFAULT || bytes + others <= 0)
		return;
	if (item->sort_bytes > 0)
		sort_bytes = item->sort_bytes + others_sort;
	if (item->wal_bytes > 0)
		wal_bytes = Min(item->wal_bytes, bytes) + others;
	space_needs(&needs, &settings->min_free_space, item->to_tablespace, bytes + others,
				sort_bytes, wal_bytes);
	check_needs(&needs, with_others);
}

/* The same for the next few MB, at most what is left to write, before each MB is written. */
void
space_check_again(const MoveItem *item, const MoveSettings *settings)
{
	FileSystemFacts facts;
	SpaceNeeds	needs = {&settings->min_free_space};

	Assert(!IsTransactionState());
	if (file_system_facts(item->to_tablespace, &facts))
	{
		int64		left = space_to_copy(item) - item->outcome.blocks_copied * BLCKSZ;

		/* a file that is being copied may grow by a block at least */
		if (item->outcome.blocks_copied > 0)
			left = Max(left, BLCKSZ);
		add_need(&needs, item->to_tablespace, &facts, Min(NEXT_BYTES, Max(left, 0)));
	}
	if (item->wal_bytes > 0 && directory_facts(XLOGDIR, &facts))
		add_need(&needs, InvalidOid, &facts, Min(NEXT_BYTES, item->wal_bytes));
	check_needs(&needs, false);
}
