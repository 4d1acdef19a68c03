/*-------------------------------------------------------------------------
 *
 * evidence_area.c
 *	  The evidence of devices in shared memory, and its locks.
 *
 * Locks, in this order: that of the device for a look at it, which may hang, as a network's
 * file system does.  Whoever waits for it can be canceled, and the planner gives up if that
 * look takes long; but if it looks itself, it waits as long as the device does.  Other devices
 * are not concerned.  CHANGE_LOCK for each change of the evidence; no device is read or
 * written under it.  AREA_LOCK, besides, for the moment in which shared memory changes, and for
 * readers.  The postmaster takes none: it has no children then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "evidence_private.h"
#include "job.h"

/* between two attempts to get the lock of a device */
#define DEVICE_NAP_MS	10

/* between two ends of prepared transactions of which all processes are told */
#define AGAIN_MS		1000

EvidenceArea *evidence_area = NULL;
DeviceLock *evidence_device_locks = NULL;

LWLock *
evidence_lock(int lock)
{
	return &GetNamedLWLockTranche(AREA_NAME)[lock].lock;
}

/*
 * Wake the launcher, which has files emptied if others are lost; with "looks", have it look at the
 * devices, and begin a round if that is due.
 */
void
evidence_wake_launcher(bool looks)
{
	/* it may end meanwhile */
	int			launcher = *(volatile int *) &evidence_area->janitor;

	if (looks)
		pg_atomic_write_u32(&evidence_area->look_wanted, 1);
	if (launcher >= 0)
		SetLatch(&GetPGProcByNumber(launcher)->procLatch);
}

/* Publish evidence_losses(), after a change of what it counts.  Under CHANGE_LOCK. */
static void
publish_losses(void)
{
	bool		has_lost = false;
	uint32		losses = 0;
	uint32		losses_before = pg_atomic_read_u32(&evidence_area->losses);

	for (int i = 0; i < evidence_area->list.ndevices; i++)
	{
		KnownDevice *device = &evidence_area->list.devices[i];

		if (has_lost_files(device))
			has_lost = true;
		if (can_empty(device) && !device->could_empty)
			evidence_area->nlosses++;
		device->could_empty = can_empty(device);
	}
	if (has_lost)
		losses = evidence_area->nlosses + 1;
	pg_atomic_write_u32(&evidence_area->losses, losses);

	/*
	 * The launcher reads the number as soon as it wakes.  While something is
	 * lost, it looks at the devices every few seconds anyway; where a loss
	 * cannot go on record, each look finds it once more, and is no reason for
	 * the next.
	 */
	if (losses != 0 && losses != losses_before)
		evidence_wake_launcher(losses_before == 0);
}

/* Have all processes meet the losses once more: a lost index may have come back. */
void
evidence_meet_again(void)
{
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	evidence_area->nlosses++;
	publish_losses();
	LWLockRelease(evidence_lock(CHANGE_LOCK));
}

static bool
again_is_due(void)
{
	return clock_us() - (int64) pg_atomic_read_u64(&evidence_area->again_at) >= AGAIN_MS * 1000;
}

/* Have evidence_serve_again() called to have all processes meet the losses once more. */
void
evidence_want_again(void)
{
	pg_atomic_write_u32(&evidence_area->again_wanted, 1);
}

/*
 * If that is wanted, have all processes meet the losses once more: not more than once in AGAIN_MS, as each
 * session plans all its statements again then.  Sessions and the launcher call this, so none is forgotten.
 */
void
evidence_serve_again(void)
{
	bool		is_due;

	if (evidence_area == NULL || pg_atomic_read_u32(&evidence_area->again_wanted) == 0 ||
		!again_is_due())
		return;
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	/* another process may have done it */
	is_due = again_is_due();
	if (is_due)
	{
		pg_atomic_write_u64(&evidence_area->again_at, clock_us());
		pg_atomic_write_u32(&evidence_area->again_wanted, 0);
	}
	LWLockRelease(evidence_lock(CHANGE_LOCK));
	if (is_due)
		evidence_meet_again();
}

/* After a change: count, and write the state file.  Under CHANGE_LOCK. */
void
evidence_save(void)
{
	publish_losses();
	evidence_area->is_saved = evidence_list_save(&evidence_area->list);
	if (!evidence_area->is_saved)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", STATE_FILE)));
}

/*
 * Take the lock of a device if it is free, else return NULL.  *began: when the look began
 * for which another process has it.
 */
static LWLock *
try_to_lock_device(Oid tablespace, double *began)
{
	int			place = -1;
	LWLock	   *lock = NULL;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	*began = clock_seconds();
	for (int i = 0; i < evidence_area->list.max_devices && place < 0; i++)
	{
		if (evidence_device_locks[i].tablespace == tablespace)
			place = i;
	}
	if (place >= 0)
	{
		if (!LWLockConditionalAcquire(evidence_lock(NLOCKS + place), LW_EXCLUSIVE))
		{
			*began = evidence_device_locks[place].began;
			LWLockRelease(evidence_lock(AREA_LOCK));
			return NULL;
		}
	}
	/* any that is free */
	for (int i = 0; i < evidence_area->list.max_devices && place < 0; i++)
	{
		if (LWLockConditionalAcquire(evidence_lock(NLOCKS + i), LW_EXCLUSIVE))
			place = i;
	}
	if (place >= 0)
	{
		evidence_device_locks[place].tablespace = tablespace;
		evidence_device_locks[place].began = *began;
		lock = evidence_lock(NLOCKS + place);
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	return lock;
}

/*
 * Lock a device, and return the lock; without "waits", NULL if a process has it whose look takes
 * long.  Not with another lock of this file.
 */
LWLock *
evidence_lock_device(Oid tablespace, bool waits)
{
	double		began;
	LWLock	   *lock;

	Assert(!LWLockHeldByMe(evidence_lock(CHANGE_LOCK)));
	Assert(!LWLockHeldByMe(evidence_lock(AREA_LOCK)));
	while ((lock = try_to_lock_device(tablespace, &began)) == NULL)
	{
		if (!waits && clock_has_passed(began, SLOW_LOOK_MS))
			return NULL;
		/* not our latch: the caller may wait for that */
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, DEVICE_NAP_MS,
						 IM_WAIT_EVENT("IndexMoverDevice"));
		CHECK_FOR_INTERRUPTS();
	}
	return lock;
}

/* Get the entry of a tablespace; false if it has none. */
bool
evidence_recall(Oid tablespace, KnownDevice *device)
{
	KnownDevice *found;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	found = evidence_find_device(&evidence_area->list, tablespace);
	if (found != NULL)
		*device = *found;
	LWLockRelease(evidence_lock(AREA_LOCK));
	return found != NULL;
}

/* Put all that is known of a device into shared memory.  Under CHANGE_LOCK. */
void
evidence_publish(const KnownDevice *device)
{
	KnownDevice *entry;
	bool		is_refuted;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = evidence_find_device(&evidence_area->list, device->tablespace);
	if (entry == NULL)
		entry = evidence_add_device(&evidence_area->list, device->tablespace);
	is_refuted = entry->is_refuted;
	*entry = *device;
	entry->is_refuted = is_refuted;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* Return the tablespaces that are on the list: all, or all of which is_such() is true. */
List *
evidence_list_devices(bool (*is_such) (const KnownDevice *device))
{
	List	   *result = NIL;

	if (evidence_area == NULL)
		return NIL;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	for (int i = 0; i < evidence_area->list.ndevices; i++)
	{
		const KnownDevice *device = &evidence_area->list.devices[i];

		if (is_such == NULL || is_such(device))
			result = lappend_oid(result, device->tablespace);
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	return result;
}
