/*-------------------------------------------------------------------------
 *
 * evidence_round.c
 *	  Findings of the launcher, the janitor and sessions on devices, and their notes.
 *
 * A round of the janitor looks at the files of all databases.  A device whose files are all
 * whole, or replaced, is settled: from then on it is known.  Sessions note of their database
 * whether all lost files are empty.
 *
 * proof/marker.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "evidence_private.h"
#include "relation_facts.h"
#include "running_jobs.h"

/*
 * Return whether all lost files of a database are known to be empty, or on devices that are away, for
 * these losses.  *indexes become some, one in each tablespace that had lost files then, with InvalidOid if
 * there were more; NIL if there were none: nothing is lost of a database that has been healed.
 */
bool
evidence_is_met(Oid database, uint32 losses, List **indexes)
{
	MetDatabase met = {0};

	*indexes = NIL;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	for (int i = 0; i < MOST_MET; i++)
	{
		if (evidence_area->met[i].database == database && evidence_area->met[i].losses == losses)
			met = evidence_area->met[i];
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	for (int i = 0; i < Min(met.nindexes, MOST_MET_IN); i++)
		*indexes = lappend_oid(*indexes, met.indexes[i]);
	if (met.nindexes > MOST_MET_IN)
		*indexes = lappend_oid(*indexes, InvalidOid);
	return met.database == database;
}

/*
 * Return the entry for a note about this database: its own, else an entry that is free or out of date,
 * else the oldest.  Under AREA_LOCK.
 */
static MetDatabase *
place_for_met(uint32 losses)
{
	MetDatabase *result = NULL;

	for (int i = 0; i < MOST_MET; i++)
	{
		MetDatabase *entry = &evidence_area->met[i];

		if (entry->database == MyDatabaseId)
			return entry;
		if (result == NULL && entry->losses < losses)
			result = entry;
	}
	if (result != NULL)
		return result;
	result = &evidence_area->met[evidence_area->next_met];
	evidence_area->next_met = (evidence_area->next_met + 1) % MOST_MET;
	return result;
}

/* Note that all lost files of this database are empty, or away: of these indexes, one for each tablespace. */
void
evidence_note_met(uint32 losses, const List *indexes)
{
	MetDatabase *entry;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = place_for_met(losses);
	/* another session may know of a later loss */
	if (entry->database != MyDatabaseId || entry->losses <= losses)
	{
		entry->database = MyDatabaseId;
		entry->losses = losses;
		entry->nindexes = list_length(indexes);
		for (int i = 0; i < Min(entry->nindexes, MOST_MET_IN); i++)
			entry->indexes[i] = list_nth_oid(indexes, i);
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/*
 * Return a moment in the WAL since the last recovery, the same each time: that of the first call.  Not
 * during recovery.
 */
XLogRecPtr
evidence_running_from(void)
{
	XLogRecPtr	result;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	if (XLogRecPtrIsInvalid(evidence_area->running_from))
		evidence_area->running_from = GetFlushRecPtr(NULL);
	result = evidence_area->running_from;
	LWLockRelease(evidence_lock(AREA_LOCK));
	return result;
}

/* Return whether the janitor is to look at once; not again until the next time. */
bool
evidence_take_wish(void)
{
	if (evidence_area == NULL)
		return false;
	return pg_atomic_exchange_u32(&evidence_area->look_wanted, 0) != 0;
}

/* ---- the launcher ---- */

/* whether it has written RUNNING_FILE */
static bool is_noted = false;

static void
stop_watching(int code, Datum arg)
{
	/* a postmaster that is gone has not shut down */
	if (PostmasterIsAlive())
		(void) unlink(RUNNING_FILE);
	evidence_area->janitor = -1;
}

/* Have this process told when a tablespace is created or dropped. */
void
evidence_watch(void)
{
	if (evidence_area == NULL || evidence_area->list.max_devices == 0)
		return;
	evidence_area->janitor = MyProcNumber;
	before_shmem_exit(stop_watching, (Datum) 0);
}

/* Say why jobs of before do not go on: once, also if the launcher starts again. */
void
evidence_tell_jobs(void)
{
	if (evidence_area == NULL || evidence_area->jobs_are_told)
		return;
	evidence_area->jobs_are_told = true;
	running_jobs_tell_forgotten();
}

/*
 * All devices have been looked at since the start: from here on a crash can be told, because
 * the next recovery removes a file.  By the process that removes it at its end, and no other.
 */
void
evidence_note_running(void)
{
	static bool told = false;

	if (evidence_area == NULL || evidence_area->list.max_devices == 0 || is_noted ||
		!evidence_area->is_saved)
		return;
	is_noted = own_file_write(RUNNING_FILE, RUNNING_HEAD, evidence_area->list.run);
	if (!is_noted && !told)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", RUNNING_FILE)));
	told = true;
}

/* ---- rounds ---- */

/* Return the tablespaces of which something is lost. */
List *
evidence_lossy(void)
{
	return evidence_list_devices(has_lost_files);
}

/* Return the tablespaces of which something is lost, or unknown. */
List *
evidence_doubtful(void)
{
	return evidence_list_devices(is_doubtful);
}

/* Return whether a file is lost or unknown by its number, without looking at the device. */
bool
evidence_doubts(Oid tablespace, RelFileNumber relfilenumber)
{
	KnownDevice device;

	if (evidence_area == NULL || !evidence_recall(tablespace, &device))
		return false;
	return relfilenumber < device.lost.below || relfilenumber < device.lost_unlogged.below ||
		relfilenumber < device.unknown_below;
}

/*
 * Return the tablespaces in which this database has a file that is lost or unknown by its number, and that a
 * row of pg_class names which is not committed: of a transaction that was prepared before a crash, say.  Whoever
 * lists files asks before: what is committed after this is on the list.
 */
List *
evidence_uncommitted(void)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SnapshotData dirty;
	SysScanDesc scan;
	HeapTuple	row;
	List	   *result = NIL;

	InitDirtySnapshot(dirty);
	scan = systable_beginscan(pg_class, InvalidOid, false, &dirty, 0, NULL);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		Oid			tablespace = tablespace_from_catalog(form->reltablespace);

		if (TransactionIdIsValid(dirty.xmin) && RELKIND_HAS_STORAGE(form->relkind) &&
			form->relpersistence != RELPERSISTENCE_TEMP &&
			RelFileNumberIsValid(form->relfilenode) &&
			evidence_doubts(tablespace, form->relfilenode))
			result = list_append_unique_oid(result, tablespace);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return result;
}

/* Begin a round through all databases, after which a device is settled unless it was refuted. */
void
evidence_begin_round(void)
{
	if (evidence_area == NULL)
		return;
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	for (int i = 0; i < evidence_area->list.ndevices; i++)
	{
		KnownDevice *device = &evidence_area->list.devices[i];

		device->is_refuted = false;
		device->is_in_round = is_doubtful(device);
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	LWLockRelease(evidence_lock(CHANGE_LOCK));
}

/* In a worker of the round: this database has files there that are lost, or could not be looked at. */
void
evidence_refute(Oid tablespace)
{
	KnownDevice *device;

	if (evidence_area == NULL)
		return;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	device = evidence_find_device(&evidence_area->list, tablespace);
	if (device != NULL)
		device->is_refuted = true;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* Of a device that cannot be marked, the round has found all files whole: they are not read again. */
static void
note_round(Oid tablespace)
{
	KnownDevice *device;

	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	device = evidence_find_device(&evidence_area->list, tablespace);
	if (device != NULL && device->is_in_round && !device->is_refuted && !device->is_here &&
		!device->is_pending && !has_lost_files(device))
		device->is_read = true;
	LWLockRelease(evidence_lock(AREA_LOCK));
	LWLockRelease(evidence_lock(CHANGE_LOCK));
}

/* Return a number that changes with each verdict by which files of a tablespace are unknown. */
uint32
evidence_doubts_so_far(Oid tablespace)
{
	KnownDevice device;

	return evidence_area != NULL && evidence_recall(tablespace, &device) ? device.doubts : 0;
}

/* Return the entry of this database in a tablespace, or NULL.  Under AREA_LOCK. */
static ReadFiles *
find_read(Oid tablespace)
{
	for (int i = 0; i < MOST_READ; i++)
	{
		if (evidence_area->read[i].database == MyDatabaseId &&
			evidence_area->read[i].tablespace == tablespace)
			return &evidence_area->read[i];
	}
	return NULL;
}

/* Note that all files of this database in a tablespace with lower numbers are whole. */
void
evidence_note_read(Oid tablespace, RelFileNumber below, uint32 doubts)
{
	ReadFiles  *entry;

	if (evidence_area == NULL)
		return;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = find_read(tablespace);
	/* another pass may have come further */
	if (entry != NULL && entry->doubts == doubts)
		below = Max(below, entry->below);
	if (entry == NULL)
	{
		entry = &evidence_area->read[evidence_area->next_read];
		evidence_area->next_read = (evidence_area->next_read + 1) % MOST_READ;
	}
	entry->database = MyDatabaseId;
	entry->tablespace = tablespace;
	entry->doubts = doubts;
	entry->below = below;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* Look whether the janitor has to read a file: it is unknown, and was not read since. */
bool
evidence_look_if_unread(Oid tablespace, RelFileNumber relfilenumber, Oid relid)
{
	const ReadFiles *entry;
	bool		was_read = false;

	if (evidence_area == NULL || !RelFileNumberIsValid(relfilenumber))
		return false;
	if (evidence_of_file(tablespace, relfilenumber, relid) != EVIDENCE_UNKNOWN)
		return false;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	entry = find_read(tablespace);
	if (entry != NULL && relfilenumber < entry->below)
	{
		const KnownDevice *device = evidence_find_device(&evidence_area->list, tablespace);

		was_read = device != NULL && device->doubts == entry->doubts;
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	return !was_read;
}

/*
 * The round has found all files of a device from before whole, or replaced.  Nothing is said
 * of a device of which something new is known since it began.
 */
static void
settle_device(Oid tablespace)
{
	Circumstances now = {.beats = true};
	LWLock	   *lock = evidence_lock_device(tablespace, true);
	KnownDevice device;
	DeviceLook	look;

	if (!evidence_recall(tablespace, &device) || !device.is_in_round || device.is_refuted ||
		!device.is_here || device.is_pending)
	{
		note_round(tablespace);
		LWLockRelease(lock);
		return;
	}

	/*
	 * From now on the server writes to a device that has everything.  A
	 * device that was in its place before is left behind.
	 */
	device_look(tablespace, &look);
	if (!evidence_has_expected(&device, &look))
	{
		LWLockRelease(lock);
		return;
	}
	if (evidence_note_beat(&device, &look))
	{
		LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
		evidence_publish(&device);
		evidence_save();
		LWLockRelease(evidence_lock(CHANGE_LOCK));
		(void) evidence_mark(&device, &look, &now); /* step: settle */
	}
	memset(&device.lost, 0, sizeof(Horizon));
	memset(&device.lost_unlogged, 0, sizeof(Horizon));
	device.unknown_below = 0;
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	evidence_publish(&device);
	evidence_area->nlosses++;
	ereport(LOG,
			(errmsg("all indexes in tablespace %u are whole; from now on its device is known",
					tablespace)));
	evidence_save();
	LWLockRelease(evidence_lock(CHANGE_LOCK));
	LWLockRelease(lock);
}

/*
 * The round has found all files from before whole, or replaced, in every database: there
 * is nothing more to be known of them.
 */
void
evidence_settle(void)
{
	if (evidence_area == NULL)
		return;
	foreach_oid(tablespace, evidence_doubtful())
	{
		settle_device(tablespace);
	}
}
