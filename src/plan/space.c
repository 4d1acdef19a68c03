/*-------------------------------------------------------------------------
 *
 * space.c
 *	  Whether the free space suffices for a move.
 *
 * This is checked before each relation, so that no move begins that cannot end.  That others
 * write meanwhile is seen by wait/free_space.c.
 *
 * Assumption: WAL is recycled after max_wal_size, including the WAL that pg_wal has
 * now, unless a replication slot or the archiver already keeps the WAL that the last checkpoint
 * would have removed: then it keeps all that the move writes.
 *
 * Tricky: target, pg_wal and sort files often share a file system, and then
 * need free space at the same time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_am_d.h"
#include "commands/tablespace.h"
#include "common/file_utils.h"
#include "storage/fd.h"
#include "storage/lwlock.h"

#include "cleanup/cleanup.h"
#include "file_system.h"
#include "job.h"
#include "plan/space.h"
#include "relation_facts.h"
#include "settings.h"
#include "wait/wait.h"

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
	const SpaceNeed *need = free_space_missing(needs);

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

static bool
is_seen(int64 device, const int64 *seen, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (seen[i] == device)
			return true;
	}
	return false;
}

/*
 * Collect the needs of a move on the file systems of its target, of pg_wal and, if
 * anything is sorted on disk, of temp_tablespaces.  wal_free: the bytes free for pg_wal when
 * its job began.
 *
 * A copy rests where pg_wal has too little space; so it needs space for its WAL only where
 * a slot, the archiver or wal_keep_size keeps that.
 */
void
space_needs(SpaceNeeds *needs, const FreeSpaceRule *rule, const MoveItem *item,
			int64 wal_free, int64 new_bytes, int64 sort_bytes, int64 wal_bytes)
{
	FileSystemFacts wal = {.device = -1};
	FileSystemFacts facts;
	SpaceNeeds	without_wal;
	Oid			target = item->to_tablespace;
	int64		reserved = 0;	/* of pg_wal's file system */

	Assert(IsTransactionState());
	needs->n = 0;
	if (directory_facts(XLOGDIR, &wal))
		reserved = free_space_reserved(rule, &wal,
									   free_space_is_freed(item->from_tablespace, target) ?
									   wal_free : -1);
	if (file_system_facts(target, &facts))
		free_space_add(needs, target, &facts, free_space_reserved(rule, &facts, -1), new_bytes);

	if (sort_bytes > 0)
	{
		Oid			places[SPACE_PLACES - 2];
		int			n;

		int64		seen[SPACE_PLACES];
		int			nseen = 0;

		/* any of them may get the sort files: each device must have the space */
		PrepareTempTablespaces();
		n = GetTempTablespaces(places, lengthof(places));
		if (n == 0)
			places[n++] = InvalidOid;
		for (int i = 0; i < n; i++)
		{
			Oid			place = tablespace_from_catalog(places[i]);

			if (!file_system_facts(place, &facts) || is_seen(facts.device, seen, nseen))
				continue;
			seen[nseen++] = facts.device;
			free_space_add(needs, place, &facts, facts.device == wal.device ?
						   reserved : free_space_reserved(rule, &facts, -1), sort_bytes);
		}
	}

	if (wal_bytes <= 0 || wal.device < 0)
		return;
	without_wal = *needs;
	free_space_add(needs, InvalidOid, &wal, reserved, wal_bytes);
	/* to look for keepers of WAL takes long */
	if (free_space_missing(needs) == NULL || free_space_missing(&without_wal) != NULL ||
		free_space_wal_keeper() != NULL)
		return;
	/* a rebuild cannot rest when one of these gets behind later */
	if (item->method != METHOD_COPY && (XLogArchivingActive() || any_slot_in_use()))
		return;
	*needs = without_wal;
	if (item->method != METHOD_COPY)
		free_space_add(needs, InvalidOid, &wal, reserved,
					   Min(wal_bytes, (int64) max_wal_size_mb * 1024 * 1024 -
						   free_space_wal_on_disk()));
}

/* The files that a rebuild that runs has stored so far */
typedef struct Built
{
	int64		bytes;			/* of the new index */
	int64		sort_bytes;		/* of its sort files, also if they are removed
								 * again */
} Built;

/* Return the bytes that are stored of a directory's files whose names begin so. */
static int64
stored_of_directory(const char *path, const char *prefix)
{
	DIR		   *dir = AllocateDir(path);
	struct dirent *entry;
	int64		result = 0;

	while ((entry = ReadDirExtended(dir, path, DEBUG1)) != NULL)
	{
		char	   *file = psprintf("%s/%s", path, entry->d_name);
		struct stat st;

		if (entry->d_name[0] == '.' || strncmp(entry->d_name, prefix, strlen(prefix)) != 0 ||
			lstat(file, &st) != 0)
			continue;
		/* workers share files in a directory of their leader */
		result += S_ISDIR(st.st_mode) ? stored_of_directory(file, "") : (int64) st.st_blocks * 512;
	}
	if (dir != NULL)
		FreeDir(dir);
	return result;
}

/* Return the bytes that are stored of the temporary files of a process. */
static int64
stored_for_sort(int pid)
{
	char	   *prefix = psprintf("%s%d.", PG_TEMP_FILE_PREFIX, pid);
	Oid			places[SPACE_PLACES];
	int64		result = 0;
	int			n;

	PrepareTempTablespaces();
	n = GetTempTablespaces(places, lengthof(places));
	if (n == 0)
		places[n++] = InvalidOid;
	for (int i = 0; i < n; i++)
	{
		char		path[MAXPGPATH];

		TempTablespacePath(path, tablespace_from_catalog(places[i]));
		result += stored_of_directory(path, prefix);
	}
	return result;
}

/* Get how much a rebuild of this job has stored, by the ledger's rows. */
static void
find_built(const MoveItem *item, int64 job, const List *rows, Built *built)
{
	memset(built, 0, sizeof(*built));
	foreach_ptr(const LedgerEntry, entry, rows)
	{
		RelationFacts facts;

		if (entry->kind != LEDGER_INDEX || entry->job != job || entry->relid != item->relid ||
			!relation_facts(entry->new_index_oid, &facts))
			continue;
		built->bytes = relation_stored_size(facts.tablespace, facts.relfilenumber);
		built->sort_bytes = stored_for_sort(entry->pid);
		/* a btree is written when all is sorted */
		if (facts.relam == BTREE_AM_OID && built->bytes > BLCKSZ)
			built->sort_bytes = item->sort_bytes;
	}
}

/*
 * Return the bytes that a move will still write of the new file, which has no bloat after a
 * rebuild.
 */
static int64
left_to_write(const MoveItem *item, int64 built)
{
	int64		size = space_to_copy(item);

	if (item->method == METHOD_REBUILD && item->bytes_to_write >= 0)
		size = item->bytes_to_write - Max(item->sort_bytes, 0) - built;
	return Max(size - Max(item->outcome.blocks_copied * BLCKSZ, leftover_kept_bytes(item)), 0);
}

/*
 * Return how many of these bytes the target stores.  The old file tells only of a copy how
 * much the target compresses it.
 */
static int64
left_to_store(const MoveItem *item, int64 built)
{
	int64		size = left_to_write(item, built);

	return item->method == METHOD_COPY ? size * item->stored_share : size;
}

/*
 * Raise ERROR 53100 if the move, together with the moves that run at the same time, would
 * leave less than min_free_space of a file system that it writes to.
 */
void
space_check(const JobShared *job, const MoveItem *item,
			const MoveSettings *settings)
{
	int64		bytes = left_to_write(item, 0);
	int64		stored = left_to_store(item, 0);
	int64		others = 0;		/* files of this move, too */
	int64		others_stored = 0;
	int64		others_sort = 0;
	int64		sort_bytes = 0;
	int64		wal_bytes = 0;
	bool		with_others = false;
	List	   *rows = NIL;
	SpaceNeeds	needs;

	for (int i = 0; i < job->nitems; i++)
	{
		const MoveItem *other = &job->items[i];
		Built		built = {0};

		if (other == item || other->outcome.status != STATUS_RUNNING)
			continue;
		/* not for small ones, as leftover_kept_bytes() */
		if (other->method == METHOD_REBUILD && other->bytes_to_write > 1024 * 1024)
		{
			if (rows == NIL)
				rows = ledger_read();
			find_built(other, job->job, rows, &built);
		}
		others += left_to_write(other, built.bytes);
		others_stored += left_to_store(other, built.bytes);
		others_sort += Max(other->sort_bytes - built.sort_bytes, 0);
		with_others |= other->part_of != item->relid;
	}

	if (item->method == METHOD_DEFAULT || bytes + others <= 0)
		return;
	if (item->sort_bytes > 0)
		sort_bytes = item->sort_bytes + others_sort;
	/* the WAL has each block in full, however small the target stores it */
	if (item->wal_bytes > 0)
		wal_bytes = Min(item->wal_bytes, bytes) + others;
	space_needs(&needs, &settings->min_free_space, item, job->wal_free, stored + others_stored,
				sort_bytes, wal_bytes);
	check_needs(&needs, with_others);
}
