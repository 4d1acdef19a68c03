/*-------------------------------------------------------------------------
 *
 * evidence.c
 *	  The knowledge of this server about the device below a tablespace.
 *
 * Recovery makes files where they are missing, with zeros before the images of pages
 * that it has, so a file's contents do not tell whether it is whole.  A marker on the
 * device does, with a file of the data directory that says which marker this server expects.
 * src/README, "Evidence for a device", has the verdicts and why they are right.
 *
 * A verdict is of files from before a horizon (is_lost()), because recovery makes whole
 * each file that was made after its begin.
 *
 * This file answers questions about devices and files.  evidence_record.c has the state file,
 * evidence_area.c shared memory and the locks, evidence_verdict.c the verdicts, evidence_start.c the
 * look before recovery, evidence_look.c the later looks, and evidence_round.c the findings of
 * the launcher and the janitor.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "miscadmin.h"
#include "utils/syscache.h"

#include "compat.h"
#include "evidence_private.h"
#include "job.h"
#include "relation_facts.h"
#include "ruins.h"
#include "test_points.h"

/*
 * A look that has found it there serves sessions that connect or plan for so many times as long as it
 * has taken: they spend no more than that part of the time with looks
 */
#define FRESH_LOOKS		20

/* To mark a location before a file there is removed: attempts, and a rest between two */
#define CLAIM_TRIES		4
#define CLAIM_NAP_US	50000

/* the data directory is there, or there is no server */
static bool
is_in_data_directory(Oid tablespace)
{
	return tablespace == DEFAULTTABLESPACE_OID || tablespace == GLOBALTABLESPACE_OID;
}

/*
 * Return whether a row of a catalog was committed before a loss, for certain.  A frozen
 * row may be from after it, too: its xmin stays.
 */
static bool
is_from_before(HeapTuple row, const Horizon *lost)
{
	TransactionId xmin;

	if (!HeapTupleIsValid(row))
		return false;
	xmin = HeapTupleHeaderGetRawXmin(row->t_data);
	if (!TransactionIdIsNormal(xmin))
		return true;
	/* not a transaction from the loss until now */
	return xmin - lost->xid >= ReadNextTransactionId() - lost->xid;
}

/*
 * Return whether this database had its files in the tablespace before a loss, for certain.
 *
 * Files with numbers from before come later with a database that is copied: its OID, from the
 * same counter, is later.  (CREATE DATABASE .. OID can give it a lower one.  But what it has in a
 * tablespace that is not its default, its template had there, with the same numbers.  So that was lost,
 * too, unless a standby has replayed the copy page by page: then a whole index is rebuilt in vain.)  And into the tablespace that ALTER DATABASE gives it, as its default
 * only: then its row is later, as after any other change of that row.
 */
static bool
database_is_from_before(const KnownDevice *device, const Horizon *lost)
{
	HeapTuple	row;
	bool		result;

	if (MyDatabaseId < lost->certain && device->tablespace != MyDatabaseTableSpace)
		return true;
	row = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	result = is_from_before(row, lost);
	if (HeapTupleIsValid(row))
		ReleaseSysCache(row);
	return result;
}

/* Return the loss of a device that concerns the relation of a row of pg_class, or of none. */
static Horizon *
loss_of(KnownDevice *device, HeapTuple row)
{
	if (HeapTupleIsValid(row) &&
		((Form_pg_class) GETSTRUCT(row))->relpersistence == RELPERSISTENCE_UNLOGGED)
		return &device->lost_unlogged;
	return &device->lost;
}

/*
 * Return whether a file of this database is lost, by its number and the row of pg_class that
 * names it, or NULL.  It is if it is from before the loss for certain.  The counter is known
 * to OIDS_AHEAD; in that range the row of pg_class has to be from before.  So it has to of a higher number,
 * which is of an earlier time, too, if the counter has gone round.
 */
static bool
is_lost(KnownDevice *device, RelFileNumber relfilenumber, HeapTuple row)
{
	const Horizon *lost = loss_of(device, row);

	if (lost->below == 0 || !database_is_from_before(device, lost))
		return false;
	return relfilenumber < lost->certain || is_from_before(row, lost);
}

/* The same of the file that a relation has, or had just now.  In a transaction. */
static bool
file_is_lost(KnownDevice *device, RelFileNumber relfilenumber, Oid relid)
{
	HeapTuple	row;
	bool		result;

	if (!has_lost_files(device))
		return false;
	row = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	result = is_lost(device, relfilenumber, row);
	if (HeapTupleIsValid(row))
		ReleaseSysCache(row);
	return result;
}

/*
 * Look at the device of a tablespace, and set *device.  Returns false if none is known; then sets *verdict,
 * which is that of all its files.
 */
static bool
look_for_device(Oid tablespace, KnownDevice *device, Evidence *verdict)
{
	int			forced = IM_LIMIT("evidence", -1);

	*verdict = EVIDENCE_UNKNOWN;
	if (is_in_data_directory(tablespace))
		*verdict = EVIDENCE_SAME;
	else if (forced >= 0)
		*verdict = forced;
	else
		return evidence_look_for(tablespace, device);
	return false;
}

/*
 * Return the verdict about the tablespace as a whole, looking at its device now.
 *
 * EVIDENCE_LOST: there may be files of permanent relations that are lost whatever their
 * pages look like; evidence_of_file() says which.  EVIDENCE_UNKNOWN: all pages of these
 * files have to be read.  EVIDENCE_SAME: the device is the same as before; losses of single
 * files are seen in the file system, or in a page or two.
 */
Evidence
evidence_of_tablespace(Oid tablespace)
{
	KnownDevice device;
	Evidence	verdict;

	if (!look_for_device(tablespace, &device, &verdict))
		return verdict;
	if (device.lost.below != 0)
		return EVIDENCE_LOST;
	return device.unknown_below != 0 || !device.is_here ? EVIDENCE_UNKNOWN : EVIDENCE_SAME;
}

/*
 * The same of the file of one permanent relation, index or table.  A file that was made
 * since the device was lost, or since it is known, is not concerned.  In a transaction.
 */
Evidence
evidence_of_file(Oid tablespace, RelFileNumber relfilenumber, Oid relid)
{
	KnownDevice device;
	Evidence	verdict;

	if (!look_for_device(tablespace, &device, &verdict))
		return verdict;
	if (file_is_lost(&device, relfilenumber, relid))
		return EVIDENCE_LOST;
	if (relfilenumber < device.lost.below || relfilenumber < device.unknown_below)
		return EVIDENCE_UNKNOWN;
	return device.is_here ? EVIDENCE_SAME : EVIDENCE_UNKNOWN;
}

/*
 * Return whether a loss of the device may concern the file of a relation: by its number or its row, the
 * file may be from before.  No device is looked at.  In a transaction.
 */
bool
evidence_loss_may_concern(Oid tablespace, RelFileNumber relfilenumber, Oid relid)
{
	KnownDevice device;
	const Horizon *lost;
	HeapTuple	row;
	bool		result;

	if (evidence_area == NULL || !evidence_recall(tablespace, &device) ||
		!has_lost_files(&device))
		return false;
	row = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	lost = loss_of(&device, row);
	/* the counter of numbers may have gone round */
	result = lost->below != 0 && (relfilenumber < lost->below || is_from_before(row, lost));
	if (HeapTupleIsValid(row))
		ReleaseSysCache(row);
	return result;
}

/*
 * Return whether the device has had this file since it was made, whatever became of
 * others: whether a copy that was kept may be trusted.  Unlike EVIDENCE_SAME this cannot
 * come from reading pages.
 */
bool
evidence_vouches(Oid tablespace, RelFileNumber relfilenumber)
{
	KnownDevice device;
	int			forced = IM_LIMIT("evidence", -1);

	if (is_in_data_directory(tablespace))
		return true;
	if (forced >= 0)
		return forced == EVIDENCE_SAME;
	if (!evidence_look_for(tablespace, &device))
		return false;
	return device.is_here && evidence_area->is_saved && relfilenumber >= device.vouched_from;
}

/*
 * Claim the tablespace's location for this server: it gets a marker if it has none.  Return whether
 * it has the marker of this server, which may remove files there then.
 */
bool
evidence_claim(Oid tablespace)
{
	KnownDevice device;
	DeviceLook	look;

	if (is_in_data_directory(tablespace))
		return true;
	/* the marker serves without shared memory, too */
	(void) evidence_look_for(tablespace, &device);
	for (int tries = 1;; tries++)
	{
		device_look(tablespace, &look);
		if (look.directory.inode == 0)
			return true;
		if (look.marker == MARKER_NONE || look.marker == MARKER_COPY)
			(void) device_claim(tablespace, &look);
		if (look.marker == MARKER_OURS)
			return true;
		/* another runner may be writing it, too, in the same place */
		if (look.marker == MARKER_FOREIGN || tries == CLAIM_TRIES)
			return false;
		pg_usleep(CLAIM_NAP_US);
	}
}

/* Return whether another server uses the tablespace's location. */
bool
evidence_is_foreign(Oid tablespace)
{
	DeviceLook	look;

	if (is_in_data_directory(tablespace))
		return false;
	device_look(tablespace, &look);
	return look.marker == MARKER_FOREIGN;
}

/*
 * Look at the tablespace's device, and mark it again if that has failed.  Return whether a loss of it
 * would be known: there is a library in the postmaster, and a marker.
 */
bool
evidence_ensure(Oid tablespace)
{
	KnownDevice device;
	DeviceLook	look;

	if (is_in_data_directory(tablespace))
		return true;
	device_look(tablespace, &look);
	if (look.is_in_place)
		return true;
	if (!evidence_look_for(tablespace, &device))
		return false;
	if (!evidence_area->is_saved)
		return false;
	/* perhaps its marker can be written again by now */
	if (device.mark_errno != 0)
	{
		(void) evidence_look_at(tablespace, true, true);
		if (!evidence_recall(tablespace, &device))
			return false;
	}
	if (device.mark_errno != 0)
		return false;
	return device.is_here || device.is_away;
}

/* Return the name of the marker in a location. */
const char *
evidence_file_name(void)
{
	return MARKER_NAME;
}

/*
 * Return why evidence_of_tablespace() is not EVIDENCE_SAME, or evidence_claim() is
 * false: a sentence, constant or palloc'd; NULL if neither is so.
 */
const char *
evidence_reason(Oid tablespace)
{
	KnownDevice device;
	DeviceLook	look;

	if (is_in_data_directory(tablespace))
		return NULL;
	device_look(tablespace, &look);
	if (look.marker == MARKER_FOREIGN)
		return psprintf("Another server uses the tablespace's location, with data directory \"%s\" on host \"%s\".",
						look.owner.path, look.owner.host);
	if (!evidence_is_preloaded)
		return "The library is not in shared_preload_libraries.";
	if (evidence_area != NULL && !evidence_area->is_saved)
		return "The server log says why its state file could not be written.";
	if (!evidence_look_for(tablespace, &device))
		return "There was no place for this tablespace in shared memory; a restart makes it.";
	if (has_lost_files(&device))
		return evidence_reasons[device.reason];
	if (device.is_away)
		return "The tablespace's directory is missing; its file system may not be mounted.";
	if (device.mark_errno != 0)
	{
		errno = device.mark_errno;
		return psprintf("The marker file could not be written to the tablespace's location: %m.");
	}
	if (look.marker == MARKER_UNREADABLE)
		return evidence_reasons[REASON_UNREADABLE];
	if (device.unknown_below == 0 && device.is_here)
		return NULL;
	return evidence_reasons[device.reason];
}

/* Return a number that changes when files are lost, 0 if none is: one atomic read. */
uint32
evidence_losses(void)
{
	return evidence_area == NULL ? 0 : pg_atomic_read_u32(&evidence_area->losses);
}

/* Return whether lost files may be emptied as far as is known of their device. */
static bool
may_empty(Oid tablespace, KnownDevice *device)
{
	return evidence_recall(tablespace, device) && can_empty(device);
}

/*
 * Look at a tablespace's device, and return whether its lost files may be emptied: they are on
 * that device, and the verdict is final.
 */
bool
evidence_confirm_loss(Oid tablespace)
{
	KnownDevice device;

	if (evidence_area == NULL || !evidence_recall(tablespace, &device) ||
		!has_lost_files(&device))
		return false;

	/*
	 * Another device may have come since the last look.  The planner asks: it
	 * does not wait if a look takes long.
	 */
	if (!evidence_look_at(tablespace, false, false))
		return false;
	return may_empty(tablespace, &device);
}

/*
 * The same for a session that connects or plans, by a look of just now, of whatever process.  Of a
 * device whose last look has taken long, it is left to the janitor.
 */
bool
evidence_confirm_loss_lately(Oid tablespace)
{
	KnownDevice device;
	double		took;

	if (evidence_area == NULL || !evidence_recall(tablespace, &device) ||
		!has_lost_files(&device))
		return false;
	took = device.look_ended - device.look_began;
	if (took * 1000 > SLOW_LOOK_MS)
		return false;
	if (clock_seconds() < device.look_ended + FRESH_LOOKS * took && may_empty(tablespace, &device))
		return true;
	/* it, or another device, may have come just now */
	return evidence_confirm_loss(tablespace);
}

/*
 * Return whether lost files of this tablespace can be emptied as far as is known, without a look at
 * its device.  When a device comes that was away, evidence_losses() changes.
 */
bool
evidence_can_empty(Oid tablespace)
{
	KnownDevice device;

	return may_empty(tablespace, &device);
}

/* Return whether a file of this database is a ruin, and may be from before a loss of its device. */
static bool
is_ruin(KnownDevice *device, RelFileNumber relfilenumber, HeapTuple row)
{
	RelFileLocator file = {device->tablespace, MyDatabaseId, relfilenumber};

	return relfilenumber < loss_of(device, row)->below && ruins_is_damaged(&file);
}

/*
 * Return whether the file of a row of pg_class is known to be lost, without looking at the
 * device: one atomic read where nothing is.  So is a file in which damage was found, although neither its
 * number nor its row proves that it is from before the loss.  That says nothing of other files.
 */
bool
evidence_knows_lost(HeapTuple row)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
	KnownDevice device;

	if (evidence_losses() == 0)
		return false;
	if (!RelFileNumberIsValid(form->relfilenode))
		return false;

	if (form->relpersistence == RELPERSISTENCE_TEMP)
		return false;
	if (!evidence_recall(tablespace_from_catalog(form->reltablespace), &device))
		return false;
	return is_lost(&device, form->relfilenode, row) || is_ruin(&device, form->relfilenode, row);
}

/* Before a loss, the counter had given this number: so all lower numbers, too, unless it has gone back. */
static void
raise_certain(Horizon *lost, Oid given)
{
	if (lost->certain != 0 && given < lost->below)
		lost->certain = Max(lost->certain, given + 1);
}

static bool
horizon_equals(const Horizon *a, const Horizon *b)
{
	return a->below == b->below && a->certain == b->certain && a->xid == b->xid;
}

/*
 * Put the losses of a device on record, which were raised, unless they have changed since they were as
 * before.  Then more files are lost, so all processes meet the losses once more.  Return whether it is so.
 */
static bool
publish_raised(const KnownDevice *before, const KnownDevice *raised)
{
	KnownDevice device;
	bool		result = false;

	if (horizon_equals(&before->lost, &raised->lost) &&
		horizon_equals(&before->lost_unlogged, &raised->lost_unlogged))
		return false;
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	if (evidence_recall(before->tablespace, &device))
		result = horizon_equals(&device.lost, &before->lost) &&
			horizon_equals(&device.lost_unlogged, &before->lost_unlogged);
	if (result)
	{
		device.lost = raised->lost;
		device.lost_unlogged = raised->lost_unlogged;
		evidence_publish(&device);
		evidence_save();
	}
	LWLockRelease(evidence_lock(CHANGE_LOCK));
	if (result)
		evidence_meet_again();
	return result;
}

/*
 * Have files of this database stay lost when their rows of pg_class, which are from before the loss,
 * change, or that of the database: the numbers in such rows had been given before, too.  Return whether
 * more files may be lost now than when the rows were listed.
 *
 * The OID of the database is no such proof: CREATE DATABASE .. OID takes any.
 */
bool
evidence_keep_lost(const List *rows)
{
	bool		result = false;

	if (rows == NIL)
		return false;
	foreach_oid(tablespace, evidence_list_devices(has_lost_files))
	{
		KnownDevice before;
		KnownDevice raised;
		bool		is_raised;

		if (!evidence_recall(tablespace, &before))
			continue;
		raised = before;
		foreach_ptr(HeapTupleData, row, rows)
		{
			Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

			if (tablespace_from_catalog(form->reltablespace) == tablespace &&
				is_lost(&before, form->relfilenode, row))
				raise_certain(loss_of(&raised, row), form->relfilenode);
		}
		is_raised = publish_raised(&before, &raised);
		if (is_raised)
			result = true;
	}
	return result;
}

/*
 * Pages of a file of this database were found to be damaged, which was not known.  If it may be from before a loss,
 * it is lost, see evidence_knows_lost(), and all processes are told.
 */
void
evidence_note_ruin(const RelFileLocator *file)
{
	KnownDevice device;

	if (evidence_losses() == 0 || !evidence_recall(file->spcOid, &device))
		return;
	if (file->relNumber < device.lost.below || file->relNumber < device.lost_unlogged.below)
		evidence_meet_again();
}
