/*-------------------------------------------------------------------------
 *
 * slot_watch.c
 *	  Giving a rebuild up before it would cost a replication slot.
 *
 * Core's REINDEX writes its WAL as fast as it can, and nothing of ours runs
 * meanwhile that could hold it back.  A slot whose reader doesn't keep up, or
 * goes away, would be invalidated by max_slot_wal_keep_size, and a standby that
 * has lost its slot has to be built anew; a rebuild can be done once more.  So
 * a timer looks at the slots, and cancels the command in time.
 *
 * Assumption: the end of WAL is where this process has written last.  One that
 * writes nothing is not what costs the slot; one that does is looked at often
 * enough for the reserve that replica_lag_slot_limit() leaves.  (Parallel workers
 * of a build scan and sort; it is the leader who writes the index.)
 *
 * Locking: none.  A signal handler may take neither a spinlock nor an LWLock:
 * the process may hold that very one.  So the fields of a slot are read one by
 * one, each a word; a slot that is just being dropped or made may be misread,
 * and then costs a rebuild and nothing else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "storage/latch.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "replica_lag.h"
#include "slot_watch.h"

#define LOOK_INTERVAL_MS	10

/* Who has written less since the last look only puts marks into the catalog. */
#define NEXT_TO_NOTHING		(1024 * 1024)

static TimeoutId timer = MAX_TIMEOUTS;	/* not registered yet */
static volatile sig_atomic_t watching = false;
static uint64 written_before;

/* Set by the handler: the slot, and how far behind it was. */
static volatile sig_atomic_t cancelled = false;
static NameData slot_name;
static int64 slot_lag;

/* The timer's handler. */
static void
look(void)
{
	int			save_errno = errno;
	XLogRecPtr	end = ProcLastRecPtr;
	uint64		written = pgWalUsage.wal_bytes;
	int64		limit = replica_lag_slot_limit();
	int			i;

	if (!watching || cancelled || limit < 0 ||
		written - written_before < NEXT_TO_NOTHING)
		return;
	written_before = written;

	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		XLogRecPtr	restart = slot->data.restart_lsn;

		if (!slot->in_use || XLogRecPtrIsInvalid(restart) || restart >= end ||
			im_slot_is_invalidated(slot) || (int64) (end - restart) <= limit)
			continue;
		slot_name = slot->data.name;
		slot_lag = end - restart;
		cancelled = true;
		QueryCancelPending = true;
		InterruptPending = true;
		SetLatch(MyLatch);
		break;
	}
	errno = save_errno;
}

void
slot_watch_begin(void)
{
	cancelled = false;
	written_before = pgWalUsage.wal_bytes;
	watching = true;
	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, look);
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_INTERVAL_MS),
						 LOOK_INTERVAL_MS);
}

void
slot_watch_end(void)
{
	if (!watching)
		return;
	disable_timeout(timer, false);
	watching = false;
	/* one that comes too late has nothing to cancel any more */
	if (cancelled && !job_cancel_requested())
		QueryCancelPending = false;
	cancelled = false;
}

void
slot_watch_tell(ErrorData *edata, const MoveItem *item)
{
	/* who has cancelled the job besides shall find it cancelled */
	if (!cancelled || edata->sqlerrcode != ERRCODE_QUERY_CANCELED ||
		job_cancel_requested())
		return;
	edata->sqlerrcode = ERRCODE_CONFIGURATION_LIMIT_EXCEEDED;
	edata->message = psprintf("gave up rebuilding index \"%s\", which would invalidate replication slot \"%s\"",
							  NameStr(item->index_name), NameStr(slot_name));
	edata->detail = psprintf("The slot was %lld MB behind, and max_slot_wal_keep_size is %d MB.",
							 (long long) (slot_lag / (1024 * 1024)),
							 max_slot_wal_keep_size_mb);
	edata->hint = pstrdup("Use method copy, which waits for slots, see that the slot is read, or raise max_slot_wal_keep_size.");
}
