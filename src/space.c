/*-------------------------------------------------------------------------
 *
 * space.c
 *	  Is there room for a move?
 *
 * Asked before each index, so that a move that can't end doesn't begin, and
 * before each MB of a copy, because others write, too: a full file system stops
 * everybody who writes to it, and a full pg_wal the server.
 *
 * Assumption: WAL is recycled after max_wal_size unless somebody keeps it, so
 * that much is enough where nobody does; a replication slot or the archiver may
 * keep all that the move writes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/statvfs.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "commands/tablespace.h"
#include "postmaster/pgarch.h"
#include "replication/slot.h"
#include "utils/guc.h"

#include "compat.h"
#include "file_system.h"
#include "plan_estimate.h"
#include "space.h"

static bool
tablespace_free_space(Oid tablespace, int64 *available, int64 *total)
{
	FileSystemFacts facts;

	if (!file_system_facts(tablespace, &facts))
		return false;
	*available = facts.free_bytes;
	*total = facts.total_bytes;
	return true;
}

/* What may be written, by all moves together, until the next look */
#define NEXT_BYTES		(4 * 1024 * 1024)

static bool
any_slot_in_use(void)
{
	bool		result = false;
	int			i;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
		if (ReplicationSlotCtl->replication_slots[i].in_use)
			result = true;
	LWLockRelease(ReplicationSlotControlLock);
	return result;
}

static bool
wal_free_space(int64 *available, int64 *total)
{
	struct statvfs vfs;

	if (statvfs(XLOGDIR, &vfs) != 0)
		return false;
	*available = (int64) vfs.f_bavail * vfs.f_frsize;
	*total = (int64) vfs.f_blocks * vfs.f_frsize;
	return true;
}

static bool
is_room(int64 needed, int64 available, int64 total, double min_free)
{
	return needed <= 0 || needed <= available - (int64) (total * min_free);
}

static void
report_no_room(const char *what, int64 needed, int64 available, int64 total,
			   double min_free)
{
	ereport(ERROR,
			(errcode(ERRCODE_DISK_FULL),
			 errmsg("not enough free space in %s", what),
			 errdetail("The move needs " INT64_FORMAT " bytes, " INT64_FORMAT
					   " bytes are free, of which " INT64_FORMAT " must stay free.",
					   needed, available, (int64) (total * min_free)),
			 errhint("Make room, or lower index_mover.min_free_space.")));
}

static char *
tablespace_words(Oid tablespace)
{
	char	   *name = get_tablespace_name(tablespace);

	return psprintf("tablespace \"%s\"", name ? name : "?");
}

/* Bytes that the other moves of the job still have to write to this place. */
static int64
still_to_write(const JobShared *job, const MoveItem *item)
{
	int64		result = 0;
	int			i;

	for (i = 0; i < job->nitems; i++)
	{
		const MoveItem *other = &job->items[i];

		if (other != item && other->status == STATUS_RUNNING &&
			other->to_tablespace == item->to_tablespace)
			result += Max(other->size_before - other->blocks_copied * BLCKSZ, 0);
	}
	return result;
}

void
space_check(const JobShared *job, const MoveItem *item,
			const MoveSettings *settings)
{
	int64		available;
	int64		total;
	int64		others = still_to_write(job, item);

	if (tablespace_free_space(item->to_tablespace, &available, &total) &&
		item->size_before > 0 &&
		!is_room(item->size_before + others, available, total, settings->min_free_space))
		report_no_room(tablespace_words(item->to_tablespace),
					   item->size_before + others, available, total,
					   settings->min_free_space);

	if (wal_free_space(&available, &total) && item->wal_bytes > 0)
	{
		int64		needed = item->wal_bytes + others;

		if (!XLogArchivingActive() && !any_slot_in_use())
			needed = Min(needed, (int64) max_wal_size_mb * 1024 * 1024);
		if (!is_room(needed, available, total, settings->min_free_space))
			report_no_room("pg_wal", needed, available, total,
						   settings->min_free_space);
	}
}

void
space_check_again(const MoveItem *item, const MoveSettings *settings)
{
	int64		available;
	int64		total;

	if (tablespace_free_space(item->to_tablespace, &available, &total) &&
		!is_room(NEXT_BYTES, available, total, settings->min_free_space))
	{
		StartTransactionCommand();	/* the catalog has the name */
		report_no_room(tablespace_words(item->to_tablespace), NEXT_BYTES,
					   available, total, settings->min_free_space);
	}
	if (item->wal_bytes > 0 && wal_free_space(&available, &total) &&
		!is_room(NEXT_BYTES, available, total, settings->min_free_space))
		report_no_room("pg_wal", NEXT_BYTES, available, total,
					   settings->min_free_space);
}
