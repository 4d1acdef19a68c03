/*-------------------------------------------------------------------------
 *
 * lock_poll.c
 *	  Getting a lock without standing in its queue.
 *
 * A request that waits for a strong lock makes everybody who comes later wait
 * behind it, for as long as the slowest holder likes.  A tool that has all the
 * time in the world must not do that, so it asks conditionally, and sleeps in
 * between.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "job.h"
#include "lock_poll.h"

#define POLL_MS		50

static uint32 wait_event = 0;

int
lock_holders(const LOCKTAG *tag, LOCKMODE lockmode, int *pids, int maxpids)
{
	VirtualTransactionId *holders;
	int			nholders;
	int			n = 0;
	int			i;

	holders = GetLockConflicts(tag, lockmode, &nholders);
	for (i = 0; i < nholders && n < maxpids; i++)
	{
		PGPROC	   *proc = im_vxid_proc(holders[i]);

		pids[n++] = proc ? proc->pid : 0;
	}
	pfree(holders);
	return n;
}

void
lock_poll_relation(Oid relid, LOCKMODE lockmode, int wait_ms)
{
	TimestampTz start = GetCurrentTimestamp();
	LOCKTAG		tag;
	int			pids[IM_MAX_BLOCKERS];
	int			npids;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	while (!ConditionalLockRelationOid(relid, lockmode))
	{
		npids = lock_holders(&tag, lockmode, pids, IM_MAX_BLOCKERS);
		progress_blockers(pids, npids);
		if (wait_ms > 0 &&
			TimestampDifferenceExceeds(start, GetCurrentTimestamp(), wait_ms))
		{
			StringInfoData buf;
			int			i;

			initStringInfo(&buf);
			for (i = 0; i < npids; i++)
				appendStringInfo(&buf, i == 0 ? "%d" : ", %d", pids[i]);
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not obtain lock on relation with OID %u within index_mover.lock_wait", relid),
					 npids > 0 ? errdetail("It is held by: %s (0 is a prepared transaction).", buf.data) : 0));
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_MS, IM_WAIT_EVENT(wait_event, "IndexMoverLock"));
		ResetLatch(MyLatch);
		job_check_cancel();
	}
	progress_blockers(NULL, 0);
}
