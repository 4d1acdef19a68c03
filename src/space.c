/*-------------------------------------------------------------------------
 *
 * space.c
 *	  Is there room for a move?
 *
 * Asked before each index, so that a move that can't end doesn't begin: a full
 * file system stops everybody who writes to it, and a full pg_wal the server.
 *
 * Assumption: WAL is recycled after max_wal_size unless somebody keeps it, so
 * that much is enough where nobody does; a replication slot or the archiver may
 * keep all that the move writes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/statvfs.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "commands/tablespace.h"
#include "postmaster/pgarch.h"
#include "replication/slot.h"
#include "utils/guc.h"

#include "compat.h"
#include "plan_estimate.h"
#include "space.h"

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

static void
require(const char *what, int64 needed, int64 available, int64 total,
		double min_free)
{
	int64		reserve = (int64) (total * min_free);

	if (needed <= 0 || needed <= available - reserve)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_DISK_FULL),
			 errmsg("not enough free space in %s", what),
			 errdetail("The move needs " INT64_FORMAT " bytes, " INT64_FORMAT
					   " bytes are free, of which " INT64_FORMAT " must stay free.",
					   needed, available, reserve),
			 errhint("Make room, or lower index_mover.min_free_space.")));
}

void
space_check(const MoveItem *item, const MoveSettings *settings)
{
	int64		available;
	int64		total;
	struct statvfs vfs;

	if (tablespace_free_space(item->to_tablespace, &available, &total))
	{
		char	   *name = get_tablespace_name(item->to_tablespace);

		require(psprintf("tablespace \"%s\"", name ? name : "?"),
				item->size_before, available, total, settings->min_free_space);
	}

	if (statvfs(XLOGDIR, &vfs) == 0)
	{
		int64		needed = item->wal_bytes;

		if (!XLogArchivingActive() && !any_slot_in_use())
			needed = Min(needed, (int64) max_wal_size_mb * 1024 * 1024);
		require("pg_wal", needed, (int64) vfs.f_bavail * vfs.f_frsize,
				(int64) vfs.f_blocks * vfs.f_frsize, settings->min_free_space);
	}
}
