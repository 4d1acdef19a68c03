/*-------------------------------------------------------------------------
 *
 * replica_lag.c
 *	  How far standbys and replication slots are behind.
 *
 * A move writes as much WAL as its index is large, as fast as it can.  All of
 * it goes to every standby, and is kept for every slot, whether anybody reads
 * that or not.  So a move looks here before each MB, and waits while somebody is
 * further behind than index_mover.max_replica_lag allows; once it waits, until
 * the lag is below half of that, so that it doesn't stop and go.
 *
 * A slot that max_slot_wal_keep_size is about to invalidate counts whatever the
 * setting says: a standby that has lost its slot has to be built anew.  Who
 * writes much without looking again, as a rebuild does, waits also for a slot
 * that nobody reads and that this would invalidate; one whose reader falls back
 * later is what rebuild_timer.c is for.
 *
 * Assumption: a standby without a slot that is gone is nobody's; only slots
 * remember who is away.
 *
 * Locking: spinlocks of walsenders and slots, ReplicationSlotControlLock shared.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"

#include "compat.h"
#include "job.h"
#include "wait/replica_lag.h"

/* Who is furthest behind. */
typedef struct Laggard
{
	int64		bytes;			/* -1 = there is nobody */
	char		what[NAMEDATALEN + 32];
} Laggard;

static void
note(Laggard *laggard, XLogRecPtr end, XLogRecPtr position,
	 const char *kind, const char *name)
{
	int64		bytes = end > position ? (int64) (end - position) : 0;

	if (bytes <= laggard->bytes)
		return;
	laggard->bytes = bytes;
	snprintf(laggard->what, sizeof(laggard->what), "%s %s", kind, name);
}

/* Connected standbys and other receivers of WAL: how far they have applied it. */
static void
look_at_walsenders(Laggard *laggard, XLogRecPtr end)
{
	int			i;

	if (WalSndCtl == NULL)
		return;
	for (i = 0; i < max_wal_senders; i++)
	{
		WalSnd	   *walsnd = &WalSndCtl->walsnds[i];
		int			pid;
		WalSndState state;
		XLogRecPtr	position;
		char		name[32];

		SpinLockAcquire(&walsnd->mutex);
		pid = walsnd->pid;
		state = walsnd->state;
		position = walsnd->apply;
		/* a mere receiver applies nothing, or doesn't even tell what it has */
		if (XLogRecPtrIsInvalid(position))
			position = walsnd->flush;
		if (XLogRecPtrIsInvalid(position))
			position = walsnd->sentPtr;
		SpinLockRelease(&walsnd->mutex);

		if (pid == 0 || XLogRecPtrIsInvalid(position) ||
			(state != WALSNDSTATE_CATCHUP && state != WALSNDSTATE_STREAMING))
			continue;
		snprintf(name, sizeof(name), "with process %d", pid);
		note(laggard, end, position, "the standby", name);
	}
}

/*
 * Slots, read or not.  *endangered becomes the one that keeps most, which
 * max_slot_wal_keep_size may invalidate; *unread that of those which nobody
 * reads at present.
 */
static void
look_at_slots(Laggard *laggard, Laggard *endangered, Laggard *unread, XLogRecPtr end)
{
	int			i;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		XLogRecPtr	restart;
		XLogRecPtr	confirmed;
		bool		lost;
		bool		is_read;
		NameData	name;

		if (!slot->in_use)
			continue;
		SpinLockAcquire(&slot->mutex);
		restart = slot->data.restart_lsn;
		confirmed = slot->data.confirmed_flush;
		lost = im_slot_is_invalidated(slot);
		is_read = im_slot_is_read(slot);
		name = slot->data.name;
		SpinLockRelease(&slot->mutex);

		if (lost || XLogRecPtrIsInvalid(restart))
			continue;			/* keeps nothing */
		note(endangered, end, restart, "replication slot", NameStr(name));
		if (!is_read)
			note(unread, end, restart, "replication slot", NameStr(name));
		/* what a logical one may read again is not behind */
		note(laggard, end, Max(restart, confirmed), "replication slot", NameStr(name));
	}
	LWLockRelease(ReplicationSlotControlLock);
}

/*
 * max_slot_wal_keep_size without what several moves, and others, may write until
 * the next look, and without the segments that checkpoints round by.  Mere
 * arithmetic: a signal handler calls it.
 */
int64
replica_lag_slot_limit(void)
{
	int64		keep;

	if (max_slot_wal_keep_size_mb < 0)
		return -1;
	keep = (int64) max_slot_wal_keep_size_mb * 1024 * 1024;
	return Max(keep - Max(keep / 4, 2 * (int64) wal_segment_size), keep / 2);
}

static bool
is_too_large(bool waiting, int64 bytes, int64 limit)
{
	return limit >= 0 && bytes > (waiting ? limit / 2 : limit);
}

/*
 * Is somebody so far behind that a move should wait?  Shows the lag in the
 * progress of the move.  Needs no transaction.
 */
bool
replica_lag_too_large(ReplicaLag *state, const MoveSettings *settings)
{
	XLogRecPtr	end = GetFlushRecPtr(NULL);
	int64		limit = settings->max_replica_lag > 0 ?
		(int64) settings->max_replica_lag * 1024 : -1;
	Laggard		laggard = {.bytes = -1};
	Laggard		endangered = {.bytes = -1};
	Laggard		unread = {.bytes = -1};
	const Laggard *reason = NULL;

	look_at_walsenders(&laggard, end);
	look_at_slots(&laggard, &endangered, &unread, end);
	progress_wal_lag(Max(laggard.bytes, endangered.bytes));

	if (is_too_large(state->waiting, laggard.bytes, limit))
		reason = &laggard;
	else if (is_too_large(state->waiting, endangered.bytes, replica_lag_slot_limit()))
		reason = &endangered;
	else if (state->at_once > 0 && unread.bytes >= 0 &&
			 is_too_large(false, unread.bytes + state->at_once, replica_lag_slot_limit()))
		reason = &unread;

	if (reason == &unread && !state->waiting)
		ereport(LOG,
				(errmsg("index_mover waits, because nobody reads %s, which a rebuild would bring beyond max_slot_wal_keep_size",
						reason->what)));
	else if (reason != NULL && !state->waiting)
		ereport(LOG,
				(errmsg("index_mover waits, because %s is %lld bytes behind",
						reason->what, (long long) reason->bytes)));
	state->waiting = (reason != NULL);
	return state->waiting;
}

char *
replica_lag_worst(void)
{
	XLogRecPtr	end = GetFlushRecPtr(NULL);
	Laggard		laggard = {.bytes = -1};
	Laggard		endangered = {.bytes = -1};
	Laggard		unread = {.bytes = -1};

	look_at_walsenders(&laggard, end);
	look_at_slots(&laggard, &endangered, &unread, end);
	if (endangered.bytes > laggard.bytes)
		laggard = endangered;
	return laggard.bytes < 0 ? NULL : pstrdup(laggard.what);
}
