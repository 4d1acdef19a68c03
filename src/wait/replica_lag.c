/*-------------------------------------------------------------------------
 *
 * replica_lag.c
 *	  Lag of standbys and replication slots.
 *
 * A move checks the lag before each MB, and waits while any is above
 * index_mover.max_replica_lag; then until it is below half of that, to avoid
 * frequent stops.  A slot that max_slot_wal_keep_size is about to invalidate
 * counts whatever the setting says, because a standby that has lost its slot has
 * to be rebuilt.  A rebuild, which writes much without checking again, also waits
 * for a slot that no process reads and that its WAL would invalidate;
 * rebuild_timer.c looks at the slots afterwards.
 *
 * The primary is not told that a standby is behind on purpose.  Such a one has
 * received the WAL, but while the move rests its replay stands still, or stays
 * behind by the same time.  A standby that replays as fast as it can catches up
 * meanwhile or, if others write too much for it, falls further behind.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "wait/wait.h"

/* How long a standby's replay stands, or stays as late; see replays_late() */
#define STANDS_MS			30000
#define STEADY_MS			60000

/* The receiver for which the move rests: the furthest behind, if too far */
typedef struct Laggard
{
	int64		most;			/* bytes by which any is behind, or -1 */
	int64		bytes;			/* by which this one is, or -1 */
	int			pid;			/* of a walsender; 0 = a slot */
	bool		unread;			/* only because of the WAL that is to come */
	int64		unreceived;		/* bytes that a standby has not flushed */
	XLogRecPtr	applied;
	TimeOffset	apply_lag;		/* -1 = unknown */
	NameData	slot;			/* "" = a walsender */
	char		what[NAMEDATALEN + 32];
} Laggard;

/* Whether the move of this process rests for a lag, until that is below half of the limit, and why */
static bool lag_rests = false;
RunnerRest	replica_lag_why = {REST_LAG};

/* A walsender of a standby whose replay is late on purpose */
typedef struct LateStandby
{
	int			pid;
	TimestampTz started;		/* another process may get the number */
} LateStandby;

static List *late = NIL;		/* of LateStandby, in TopMemoryContext */

static int64
bytes_behind(XLogRecPtr position, XLogRecPtr end)
{
	return end > position ? (int64) (end - position) : 0;
}

static bool
is_too_far(int64 bytes, int64 limit)
{
	return limit >= 0 && bytes > (lag_rests ? limit / 2 : limit);
}

/* Note a receiver; return whether it is too far behind, and the furthest so far. */
static bool
note_receiver(Laggard *laggard, int64 bytes, bool too_far, int pid, const char *slot)
{
	laggard->most = Max(laggard->most, bytes);
	if (!too_far || bytes <= laggard->bytes)
		return false;
	laggard->bytes = bytes;
	laggard->pid = pid;
	laggard->unread = false;
	namestrcpy(&laggard->slot, slot);
	snprintf(laggard->what, sizeof(laggard->what), "replication slot \"%s\"", slot);
	return true;
}

/*
 * Return whether this standby, for which the move rests, is late on purpose.
 * To be called for each check of the rest; "begins" for the first.
 */
static bool
replays_late(const Laggard *laggard, bool begins, int64 limit)
{
	static Laggard first;		/* as at "since" */
	static double since;
	double		now = clock_seconds();
	bool		same = !begins && laggard->pid == first.pid;
	bool		goes_on = laggard->applied != first.applied;
	bool		steady = false;

	if (same && now - since < (goes_on ? STEADY_MS : STANDS_MS) / 1000.0)
		return false;
	/* a standby at its limit would have got nearer, or further away */
	if (!goes_on)
		steady = true;
	else if (first.apply_lag >= 0 && laggard->apply_lag >= 0)
		steady = llabs((long long) (laggard->apply_lag - first.apply_lag)) <
			(now - since) * USECS_PER_SEC / 20;
	if (same && steady && laggard->unreceived <= limit / 2)
		return true;
	first = *laggard;
	since = now;
	return false;
}

/* Forget a late standby. */
static void
forget_late(LateStandby *standby)
{
	late = list_delete_ptr(late, standby);
	pfree(standby);
}

/* Return the late standby of this walsender; NULL if it is none, or was another process. */
static LateStandby *
find_late(int pid)
{
	ListCell   *lc;

	foreach(lc, late)
	{
		LateStandby *standby = lfirst(lc);
		PgBackendStatus *status;

		if (standby->pid != pid)
			continue;
		status = blockers_find(pid);
		if (status != NULL && status->st_proc_start_timestamp == standby->started)
			return standby;
		forget_late(standby);
		return NULL;
	}
	return NULL;
}

static void
look_at_walsenders(Laggard *laggard, XLogRecPtr end, int64 limit)
{
	WalSnd	   *walsnd;

	for (int i = 0; (walsnd = walsender_next(&i)) != NULL;)
	{
		LateStandby *standby;
		WalSnd		copy;
		XLogRecPtr	position;
		XLogRecPtr	flushed;
		int64		bytes;

		SpinLockAcquire(&walsnd->mutex);
		copy = *walsnd;
		SpinLockRelease(&walsnd->mutex);
		position = copy.apply;
		/* a receiver that applies nothing may not report its position */
		flushed = XLogRecPtrIsInvalid(copy.flush) ? copy.sentPtr : copy.flush;

		standby = find_late(copy.pid);
		if (standby != NULL && end <= position + Max(limit, 0) / 2)
			forget_late(standby);	/* no longer */
		else if (standby != NULL || XLogRecPtrIsInvalid(position))
			position = flushed;

		bytes = bytes_behind(position, end);
		if (copy.pid == 0 || XLogRecPtrIsInvalid(position) ||
			(copy.state != WALSNDSTATE_CATCHUP && copy.state != WALSNDSTATE_STREAMING))
			continue;
		if (note_receiver(laggard, bytes, is_too_far(bytes, limit), copy.pid, ""))
		{
			laggard->unreceived = bytes_behind(flushed, end);
			laggard->applied = position;
			laggard->apply_lag = copy.applyLag;
		}
	}
}

/*
 * Return how far behind, in bytes, a slot may be before it is in danger; -1
 * if slots are never invalidated: max_slot_wal_keep_size less a reserve for the
 * WAL that is written until the next check, and for the rounding to segments.
 * Arithmetic only, since a signal handler calls it.
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

/* Check slots, read or not, before so much WAL at once. */
static void
look_at_slots(Laggard *laggard, XLogRecPtr end, int64 limit, int64 at_once)
{
	ReplicationSlot *slot;
	int64		slot_limit = replica_lag_slot_limit();

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; (slot = slot_next(&i)) != NULL;)
	{
		ReplicationSlot copy;
		const char *name = NameStr(copy.data.name);
		int64		kept;
		int64		bytes;

		SpinLockAcquire(&slot->mutex);
		copy = *slot;
		SpinLockRelease(&slot->mutex);

		if (im_slot_is_invalidated(&copy) || XLogRecPtrIsInvalid(copy.data.restart_lsn))
			continue;			/* keeps nothing */
		kept = bytes_behind(copy.data.restart_lsn, end);
		/* a logical slot may read again, and is not behind by that */
		bytes = bytes_behind(Max(copy.data.restart_lsn, copy.data.confirmed_flush), end);
		(void) note_receiver(laggard, bytes, is_too_far(bytes, limit), 0, name);
		(void) note_receiver(laggard, kept, is_too_far(kept, slot_limit), 0, name);
		if (at_once > 0 && slot_limit >= 0 && !im_slot_is_read(&copy))
		{
			if (note_receiver(laggard, kept, kept + at_once > slot_limit, 0, name))
				laggard->unread = true;
		}
	}
	LWLockRelease(ReplicationSlotControlLock);
}

/*
 * Look how far receivers of WAL are behind, and show the lag in the progress.  Return whether
 * a move should rest before it writes so much WAL without another look (0 for a copy).
 */
bool
replica_lag_look(const MoveSettings *settings, int64 at_once)
{
	XLogRecPtr	end = GetFlushRecPtr(NULL);
	int64		limit = settings->max_replica_lag > 0 ?
		(int64) settings->max_replica_lag * 1024 : -1;
	Laggard		laggard = {.most = -1,.bytes = -1};

	look_at_walsenders(&laggard, end, limit);
	look_at_slots(&laggard, end, limit, at_once);
	progress_set(wal_lag, laggard.most);
	if (laggard.pid != 0)
	{
		PgBackendStatus *walsender = blockers_find(laggard.pid);

		snprintf(laggard.what, sizeof(laggard.what), "standby \"%s\"",
				 walsender != NULL ? walsender->st_appname : "");
		if (replays_late(&laggard, !lag_rests, limit))
		{
			MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
			LateStandby *standby = palloc0_object(LateStandby);

			standby->pid = laggard.pid;
			standby->started = walsender != NULL ? walsender->st_proc_start_timestamp : 0;
			late = lappend(late, standby);
			MemoryContextSwitchTo(oldcontext);
			ereport(LOG,
					(errhidecontext(true),
					 errmsg("%s: no longer resting for the replay of %s",
							runner_name(), laggard.what),
					 errdetail("It is late whether the move rests or not.")));
			return replica_lag_look(settings, at_once);
		}
	}
	if (laggard.bytes >= 0 && !lag_rests && laggard.unread)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: resting, because no process reads %s", runner_name(), laggard.what),
				 errdetail("A rebuild would bring it beyond max_slot_wal_keep_size.")));
	else if (laggard.bytes >= 0 && !lag_rests)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: resting, because %s is %lld bytes behind",
						runner_name(), laggard.what, (long long) laggard.bytes)));
	lag_rests = laggard.bytes >= 0;
	if (lag_rests)
	{
		replica_lag_why.slot = laggard.slot;
		snprintf(replica_lag_why.shown, sizeof(replica_lag_why.shown), "%s is %lld MB behind%s",
				 laggard.what, (long long) (laggard.bytes / (1024 * 1024)),
				 laggard.pid != 0 && laggard.unreceived <= limit / 2 ? " in replay" : "");
	}
	return lag_rests;
}
