/*-------------------------------------------------------------------------
 *
 * evidence_look.c
 *	  Looks at devices while the server runs.
 *
 * They see all that was mounted, created or dropped since the look before recovery.  A look takes the
 * lock of its device, and may hang as the device does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "evidence_private.h"
#include "job.h"
#include "test_points.h"

/* A marker is written again after this time: a device set back to a state from before is told */
#define BEAT_MS			(60 * 60 * 1000)

static RelFileNumber
next_number(void)
{
	RelFileNumber result;

	LWLockAcquire(OidGenLock, LW_SHARED);
	result = TransamVariables->nextOid;
	LWLockRelease(OidGenLock);
	return result;
}

/* Now that recovery has ended, files from before its end can be told. */
static bool
narrow(RelFileNumber *below, RelFileNumber next)
{
	if (*below != ALL_FILES)
		return false;
	*below = next;
	return true;
}

/* Return the present moment. */
static Horizon
horizon_of_now(void)
{
	Horizon		result = {.below = next_number()};

	/* on a standby the counter is ahead */
	result.certain = result.below;
	if (RecoveryInProgress())
		result.certain -= Min(result.below, OIDS_AHEAD);
	result.xid = GetOldestTransactionIdConsideredRunning();
	return result;
}

/* Now that recovery has ended, files from before its end can be told. */
static bool
narrow_all(KnownDevice *device, RelFileNumber next)
{
	bool		changed = narrow(&device->unknown_below, next);

	if (narrow(&device->vouched_from, next))
		changed = true;
	return changed;
}

/* The counter has gone back: no number proves that a file is from before a moment, or from after it. */
static bool
widen(RelFileNumber *below)
{
	if (*below == 0 || *below == ALL_FILES)
		return false;
	*below = ALL_FILES;
	return true;
}

/* The same for a loss: rows tell. */
static bool
widen_loss(Horizon *lost)
{
	bool		changed = widen(&lost->below);

	if (lost->certain != 0)
	{
		lost->certain = 0;
		changed = true;
	}
	return changed;
}

/* The same for all that is known of a device. */
static bool
widen_all(KnownDevice *device)
{
	bool		changed = widen(&device->unknown_below);

	if (widen(&device->vouched_from))
		changed = true;
	if (widen_loss(&device->lost))
		changed = true;
	if (widen_loss(&device->lost_unlogged))
		changed = true;
	return changed;
}

/*
 * Note the counter of OIDs as it was when the look began, which the WAL on disk has.  If it has gone back since
 * an earlier look, by four billion OIDs or pg_resetwal, that is noted for good.  Under CHANGE_LOCK.
 */
static void
note_counter(RelFileNumber counter)
{
	RelFileNumber next = next_number();

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	if (next < evidence_area->list.counter)
		evidence_area->list.counter = ALL_FILES;
	else
		evidence_area->list.counter = Max(evidence_area->list.counter, counter);
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* The same of the fields that evidence_mark() has changed.  Others may have changed since they were read. */
static void
publish_mark(const KnownDevice *device)
{
	KnownDevice *entry;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = evidence_find_device(&evidence_area->list, device->tablespace);
	memcpy(entry->id, device->id, sizeof(entry->id));
	memcpy(entry->location, device->location, sizeof(entry->location));
	entry->marked = device->marked;
	entry->marked_below = device->marked_below;
	entry->is_marked_anew = device->is_marked_anew;
	entry->written = device->written;
	entry->epoch = device->epoch;
	entry->beaten = device->beaten;
	entry->look_began = device->look_began;
	entry->look_ended = device->look_ended;
	entry->is_here = device->is_here;
	entry->mark_errno = device->mark_errno;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* The round that is under way settles nothing of this device.  Under CHANGE_LOCK. */
static void
leave_round(Oid tablespace)
{
	KnownDevice *entry;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = evidence_find_device(&evidence_area->list, tablespace);
	if (entry != NULL)
		entry->is_in_round = false;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/*
 * Files with numbers that have been given may go on record as lost.  So a crash must not set the counter
 * back: its last record has to be on disk.  That is ahead of many numbers, so it is rarely needed.  Not under
 * CHANGE_LOCK: an error here leaves all as it was.
 */
static void
flush_counter(void)
{
	char		nothing = 0;
	RelFileNumber logged;
	bool		is_flushed;

	Assert(!LWLockHeldByMe(evidence_lock(CHANGE_LOCK)));
	LWLockAcquire(OidGenLock, LW_SHARED);
	logged = TransamVariables->nextOid + TransamVariables->oidCount;
	LWLockRelease(OidGenLock);
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	is_flushed = evidence_area->counter_flushed == logged;
	LWLockRelease(evidence_lock(AREA_LOCK));
	if (is_flushed)
		return;
	XLogBeginInsert();
	XLogSetRecordFlags(XLOG_MARK_UNIMPORTANT);
	XLogRegisterData(&nothing, sizeof(nothing));
	XLogFlush(XLogInsert(RM_XLOG_ID, XLOG_NOOP));
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	evidence_area->counter_flushed = logged;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* Conclude from a look, and set *device to all that is known then.  Return false if there is no place for it. */
static bool
take_look(KnownDevice *device, const DeviceLook *look, Circumstances *now)
{
	KnownDevice *entry;
	bool		is_known;
	bool		went_back;
	bool		changed = false;

	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	if (!now->recovers)
		note_counter(now->horizon.below);
	went_back = counter_went_back(&evidence_area->list);
	if (went_back)
	{
		evidence_trust_no_number(now);
		evidence_area->made_before = ALL_FILES;
	}
	else if (!now->recovers)
		(void) narrow(&evidence_area->made_before, now->horizon.below);
	entry = evidence_find_device(&evidence_area->list, device->tablespace);
	is_known = entry != NULL;
	if (!is_known && evidence_area->list.ndevices == evidence_area->list.max_devices)
	{
		LWLockRelease(evidence_lock(CHANGE_LOCK));
		return false;
	}
	if (is_known)
		*device = *entry;
	if (went_back)
		changed = widen_all(device);
	else if (!now->recovers)
		changed = narrow_all(device, now->horizon.below);
	if (evidence_conclude(device, is_known, look, now))
		changed = true;
	evidence_publish(device);
	if (changed || !evidence_area->is_saved)
		evidence_save();
	LWLockRelease(evidence_lock(CHANGE_LOCK));
	return true;
}

/*
 * If the marker was written since that was noted, also before recovery, note below which number its files are.
 * During recovery the counter is ahead.  Return whether the record has to change.
 */
static bool
note_marked_below(KnownDevice *device, const Circumstances *now)
{
	if (!device->is_marked_anew || now->recovers)
		return false;
	device->marked_below = next_number();
	device->is_marked_anew = false;
	return true;
}

/*
 * Look at a tablespace.  Without "waits", not if a process has been looking at it for long: false
 * then.  With "beats", its marker is written again.  The moments are such that in doubt more files are
 * unknown, and fewer are lost.
 */
bool
evidence_look_at(Oid tablespace, bool waits, bool beats)
{
	Circumstances now = {.beats = beats,.is_trusted = true,.is_watched = true};
	KnownDevice device = {.tablespace = tablespace};
	double		asked = clock_seconds();
	LWLock	   *lock = evidence_lock_device(tablespace, waits);
	double		began = clock_seconds();
	DeviceLook	look;
	bool		is_marked;
	bool		notes;

	if (lock == NULL)
		return false;

	/*
	 * who has waited for the look of another process needs none if that began
	 * since
	 */
	if (!waits && evidence_recall(tablespace, &device) && device.look_began >= asked)
	{
		LWLockRelease(lock);
		return true;
	}
	/* it may have been dropped meanwhile */
	if (!evidence_tablespace_exists(tablespace))
	{
		LWLockRelease(lock);
		return true;
	}
	now.recovers = RecoveryInProgress();
	now.is_standby = now.recovers;
	now.horizon = horizon_of_now();
	/* a later look may have files from before this moment lost */
	if (!now.recovers)
		flush_counter();
	device_look(tablespace, &look);
	now.below = next_number();
	if (take_look(&device, &look, &now))
	{
		is_marked = evidence_mark(&device, &look, &now);
		notes = note_marked_below(&device, &now);
		device.look_began = began;
		device.look_ended = clock_seconds();
		LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
		/* it may have failed, too */
		publish_mark(&device);
		if (is_marked)
			/* a round has read the files of before */
			leave_round(tablespace);
		if (is_marked || notes)
			evidence_save();
		LWLockRelease(evidence_lock(CHANGE_LOCK));
	}
	LWLockRelease(lock);
	return true;
}

/* Look at a tablespace, and get its entry; false if it has none. */
bool
evidence_look_for(Oid tablespace, KnownDevice *device)
{
	if (evidence_area == NULL || evidence_area->list.max_devices == 0)
		return false;
	(void) evidence_look_at(tablespace, true, false);
	return evidence_recall(tablespace, device);
}

/* Take a tablespace that was dropped off the list, and remove its marker. */
static void
forget_dropped(Oid tablespace)
{
	LWLock	   *lock = evidence_lock_device(tablespace, true);
	KnownDevice device;

	if (evidence_recall(tablespace, &device) && device.location[0] != '\0')
		device_unmark(device.location, device.id);
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	evidence_remove_devices(&evidence_area->list, list_make1_oid(tablespace));
	LWLockRelease(evidence_lock(AREA_LOCK));
	evidence_save();
	LWLockRelease(evidence_lock(CHANGE_LOCK));
	LWLockRelease(lock);
}

/* Return the milliseconds after which a marker is written again. */
int
evidence_beat_ms(void)
{
	return IM_LIMIT("beat-ms", BEAT_MS);
}

/* Return whether the marker of a device was written long ago. */
static bool
beat_is_due(Oid tablespace)
{
	KnownDevice device;

	TimestampTz now = GetCurrentTimestamp();

	if (!evidence_recall(tablespace, &device))
		return false;
	/* the clock may have been set back */
	return device.beaten > now ||
		TimestampDifferenceExceeds(device.beaten, now, evidence_beat_ms());
}

/* Look at all devices, and tell of lost devices.  A device may hang. */
void
evidence_look(void)
{
	if (evidence_area == NULL || evidence_area->list.max_devices == 0)
		return;
	foreach_oid(tablespace, evidence_list_devices(NULL))
	{
		if (!evidence_tablespace_exists(tablespace))
			forget_dropped(tablespace);
	}
	foreach_oid(tablespace, evidence_list_tablespaces())
	{
		CHECK_FOR_INTERRUPTS();
		if (!PostmasterIsAlive())
			proc_exit(1);
		(void) evidence_look_at(tablespace, true, beat_is_due(tablespace));
	}
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	for (int i = 0; i < evidence_area->list.ndevices; i++)
	{
		KnownDevice *device = &evidence_area->list.devices[i];

		/* of unlogged indexes the janitor tells, if there are some */
		if (device->lost.below == 0 || device->told || device->is_pending)
			continue;
		device->told = true;
		ereport(LOG,
				(errmsg("files of tablespace %u are lost", device->tablespace),
				 errdetail_internal("%s", evidence_reasons[device->reason])));
	}
	LWLockRelease(evidence_lock(CHANGE_LOCK));
}
