/*-------------------------------------------------------------------------
 *
 * evidence_verdict.c
 *	  The verdict of a look at a device about its files, and the marker that it gets.
 *
 * One rule: a device has lost something if it has missed a recovery, or if the server has gone
 * on with another device, or with a later state of it.  That is certain if recovery begins while
 * the tablespace's directory is empty, or if the epoch in the marker is not one that is on
 * record: it grows with each marker that is written, and with each recovery that begins without
 * the device.  It counts as certain if the server has crashed, and neither the marker nor the
 * directory is there.  Whatever else is odd makes the device unknown, and all pages are read.
 * A wrong "lost" empties files of indexes, so in doubt it is "unknown".
 *
 * evidence_conclude() is called under CHANGE_LOCK, evidence_mark() under the lock of the device.  The
 * postmaster calls them without a lock.
 *
 * proof/marker.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "utils/timestamp.h"

#include "evidence_private.h"

/* Let all files be of before this moment, perhaps: the counter of OIDs has gone back, and rows decide. */
void
evidence_trust_no_number(Circumstances *now)
{
	now->horizon.below = ALL_FILES;
	now->horizon.certain = 0;
	now->below = ALL_FILES;
}

/* Return whether the device is there that is expected, and not an earlier state of it. */
bool
evidence_has_expected(const KnownDevice *device, const DeviceLook *look)
{
	if (look->marker != MARKER_OURS || device->id[0] == '\0')
		return false;
	if (strcmp(look->id, device->id) != 0)
		return false;
	/* a device with a higher epoch is of a later time than the record */
	return look->epoch >= device->marked && look->epoch <= device->epoch;
}

/* Return whether the marker was written beside the directory that is there. */
static bool
names_directory(const DeviceLook *look)
{
	return file_identity_equals(&look->beside, &look->directory);
}

/*
 * Return whether another device is there, with which the server has been before, or an earlier
 * state of the expected device: a copy of these, too, if it has the marker.
 */
static bool
has_older(const KnownDevice *device, const DeviceLook *look)
{
	if (look->is_in_place || look->id[0] == '\0')
		return false;
	if (look->marker == MARKER_COPY)
	{
		if (strcmp(look->id, device->id) == 0)
			return look->epoch < device->marked;
		/* a device that could not be marked may be in use */
		if (device->id[0] == '\0')
			return false;
		return server_is_us(&look->owner) && look->epoch < device->written;
	}
	if (look->marker != MARKER_OURS || evidence_has_expected(device, look))
		return false;
	/* files that were copied there since are of another age than the marker */
	return names_directory(look) && look->epoch < device->written;
}

/* Return whether it is the same directory, too. */
static bool
has_directory(const KnownDevice *device, const DeviceLook *look)
{
	if (device->directory.inode == 0)
		return true;
	return file_identity_equals(&look->directory, &device->directory);
}

/*
 * Return whether recovery after a crash is about to begin in another directory than the server
 * was in, without the marker: in an older copy, perhaps, whose pages would look whole.  The
 * same directory is known by its birth; inodes are used again.
 */
static bool
recovers_elsewhere(const KnownDevice *device, const DeviceLook *look, const Circumstances *now)
{
	if (!now->at_start || !now->has_crashed || now->is_restored || !now->is_watched)
		return false;
	if (look->has_marker_file || device->id[0] == '\0' || device->directory.inode == 0)
		return false;
	return look->directory.birth == 0 || !has_directory(device, look);
}

/*
 * Decide by a look about files from before it, and why.  The table in
 * src/README has the cases in this order.
 */
static Evidence
verdict_on(const KnownDevice *device, bool is_known, const DeviceLook *look,
		   const Circumstances *now, EvidenceReason *reason)
{
	bool		has_number = look->marker != MARKER_NONE && look->id[0] != '\0';

	*reason = REASON_NONE;

	/* recovery makes again whatever it needs there */
	if (now->at_start && now->recovers && look->is_empty)
	{
		/* as it was before */
		if (device->was_empty && evidence_has_expected(device, look) && has_directory(device, look))
			return EVIDENCE_SAME;
		*reason = now->is_restored ? REASON_COPIED_SERVER : REASON_RECOVERED_EMPTY; /* step: recovers-empty */
	}
	/* nothing can be written there either, and it may be mounted late */
	else if (look->directory.inode == 0 && look->marker != MARKER_UNREADABLE)
		return EVIDENCE_SAME;
	else if (!is_known)
	{
		if (device->tablespace >= evidence_area->made_before && look->marker != MARKER_FOREIGN)
			return EVIDENCE_SAME;
		*reason = now->is_trusted ? REASON_FIRST_SEEN : REASON_COPIED_SERVER;
	}
	else if (look->marker == MARKER_UNREADABLE)
		*reason = REASON_UNREADABLE;
	else if (recovers_elsewhere(device, look, now))
		*reason = REASON_RECOVERED_ELSEWHERE;	/* step: recovers-elsewhere */
	else if (!has_number)
		*reason = REASON_NO_MARKER;
	else if (has_older(device, look))
		*reason = REASON_LEFT_BEHIND;	/* step: left-behind */
	else if (device->id[0] == '\0')
		*reason = REASON_NO_MARKER;
	else if (strcmp(look->id, device->id) != 0)
		*reason = look->is_in_place ? REASON_COPIED : REASON_OTHER;
	else if (look->marker == MARKER_OURS && look->epoch > device->epoch &&
			 has_directory(device, look))
		*reason = REASON_SERVER_SET_BACK;	/* its epoch was on record before */
	else if (!evidence_has_expected(device, look) || !has_directory(device, look))
		*reason = REASON_COPIED;
	else if (!now->is_watched)
		*reason = REASON_UNWATCHED;
	else
		return EVIDENCE_SAME;
	return *reason >= REASON_RECOVERED_EMPTY ? EVIDENCE_LOST : EVIDENCE_UNKNOWN;
}

/* Note all that was known before a recovery that begins, or goes on, as nothing should be lost. */
static void
note_before(KnownDevice *device, const Circumstances *now)
{
	/*
	 * a recovery that has failed before a checkpoint is done again, from its
	 * begin
	 */
	if (now->at_start && device->missed_checkpoint == now->checkpoint)
		return;
	device->missed_checkpoint = now->at_start ? now->checkpoint : InvalidXLogRecPtr;
	memcpy(device->missed_id, device->id, sizeof(device->id));
	device->missed_marked = device->marked;
	device->missed_lost = device->lost;
}

/* That recovery has needed nothing there, or is done again with the device. */
static void
take_back(KnownDevice *device)
{
	memcpy(device->id, device->missed_id, sizeof(device->id));
	device->marked = device->missed_marked;
	/* a device that was marked meanwhile is left behind */
	device->written = ++device->epoch;	/* step: take-back */
	device->lost = device->missed_lost;
	device->missed_checkpoint = InvalidXLogRecPtr;
	evidence_area->nlosses++;
}

/*
 * See whether the last recovery without the device has to be taken back.  Return whether
 * anything has changed.
 */
static bool
look_after_recovery(KnownDevice *device, const DeviceLook *look, const Circumstances *now)
{
	/*
	 * that recovery is over, also if the next begins from a later checkpoint
	 */
	if (device->is_pending &&
		(!now->recovers || (now->at_start && device->missed_checkpoint != now->checkpoint)))
	{
		device->is_pending = false;
		/* it has made all that it needs there */
		if (look->is_empty && (device->id[0] == '\0' || strcmp(device->id, device->missed_id) == 0))
			take_back(device);	/* step: needed-nothing */
		return true;
	}
	if (!now->at_start || !now->recovers || device->missed_checkpoint == InvalidXLogRecPtr)
		return false;
	/* the device was not away: its directory was empty */
	if (strcmp(device->id, device->missed_id) == 0)
		return false;

	/*
	 * it has not come to a checkpoint, and all of it is done again, maybe on
	 * a copy
	 */
	if (device->missed_checkpoint != now->checkpoint)
		return false;
	if (look->marker != MARKER_OURS && look->marker != MARKER_COPY)
		return false;
	if (look->id[0] == '\0' || strcmp(look->id, device->missed_id) != 0)
		return false;
	if (look->epoch < device->missed_marked)
		return false;
	take_back(device);			/* step: done-again */
	device->is_pending = false;
	return true;
}

/*
 * Return whether the marker of the expected device is to be written again: it is time, or it names
 * another directory.  If that could not be written, it waits for its time.
 */
static bool
is_to_beat(const KnownDevice *device, const DeviceLook *look, const Circumstances *now)
{
	return now->beats || (!names_directory(look) && device->mark_errno == 0);
}

/*
 * If the marker of the expected device is to be written again, give it a higher epoch, which is
 * on record before.  So a device that is set back to an earlier state has a lower epoch.
 * Return whether it is.
 */
bool
evidence_note_beat(KnownDevice *device, const DeviceLook *look)
{
	/* nothing is changed on a device that is empty */
	if (look->is_in_place || look->is_empty || !evidence_has_expected(device, look))
		return false;
	device->epoch++;			/* step: note-beat */
	device->beaten = GetCurrentTimestamp();
	return true;
}

/* Write the marker of the expected device again.  If that fails, the present marker serves. */
static bool
beat(KnownDevice *device, DeviceLook *look, uint32 epoch)
{
	device->mark_errno = 0;
	if (!device_mark_again(device->tablespace, epoch, look))
	{
		device->mark_errno = errno;
		return false;
	}
	device->marked = look->epoch;	/* step: beat */
	device->is_marked_anew = true;
	device->written = Max(device->written, look->epoch);
	return true;
}

/*
 * Return whether the server goes on with a device that gets a number, so that the device
 * before it is left behind.  Nothing is changed in an empty directory; and if only the marker
 * is gone, the device is the same.
 */
static bool
goes_on_with(const KnownDevice *device, const DeviceLook *look)
{
	if (look->is_empty)
		return false;
	return look->marker != MARKER_NONE || device->has_moved;
}

/*
 * The server goes on with a device that cannot be marked, so the expected device is left behind.
 * Return whether that is new.
 */
static bool
leave_expected(KnownDevice *device, const DeviceLook *look, const Circumstances *now, uint32 epoch)
{
	if (!goes_on_with(device, look))
		return false;
	/* recovery begins without it, or it was expected until now */
	if (!now->at_start && device->id[0] == '\0')
		return false;
	device->id[0] = '\0';
	device->epoch = epoch;
	device->written = epoch;
	return true;
}

/*
 * Mark the device, unless it is marked, or another server's.  With beats, it is marked again.
 * Return whether the record has to change.
 *
 * The verdict of the old marker about the device is on record before it is overwritten.
 */
bool
evidence_mark(KnownDevice *device, DeviceLook *look, const Circumstances *now)
{
	uint32		epoch;

	if (!evidence_area->is_saved)
		return false;
	if (look->directory.inode == 0)
		return false;
	if (look->marker == MARKER_FOREIGN || look->marker == MARKER_UNREADABLE)
		return false;
	if (evidence_has_expected(device, look) && (look->is_empty || look->is_in_place))
	{
		device->mark_errno = 0; /* there is nothing to be written */
		/* but files may come into a new directory */
		if (!look->is_in_place && !device->is_pending && !names_directory(look))
			return beat(device, look, look->epoch);
		return false;
	}
	if (evidence_has_expected(device, look))
	{
		if (!is_to_beat(device, look, now))
			return false;
		return beat(device, look, device->epoch);
	}
	/* recovery may need nothing there, and the device come back */
	if (device->is_pending && look->is_empty)
		return false;
	device->mark_errno = 0;
	epoch = device->written;
	if (goes_on_with(device, look))
	{
		epoch = device->epoch;
		if (look->marker == MARKER_OURS)
			epoch = Max(epoch, look->epoch);
		epoch++;				/* step: grow */
	}
	if (!device_mark(device->tablespace, epoch, look))	/* step: mark */
	{
		device->mark_errno = errno;
		/* its own number serves: the verdict is on record */
		if (look->marker != MARKER_OURS || look->id[0] == '\0')
			return leave_expected(device, look, now, epoch);
	}
	memcpy(device->id, look->id, sizeof(device->id));
	device->epoch = Max(device->epoch, epoch);
	device->written = epoch;
	device->marked = look->epoch;
	device->is_marked_anew = true;
	device->beaten = GetCurrentTimestamp();
	if (!look->is_in_place)
		device_location(device->tablespace, device->location);
	device->is_here = evidence_has_expected(device, look);
	return true;
}

/* Let a loss be of all files from before this moment, too. */
static void
extend_loss(Horizon *lost, const Horizon *to)
{
	if (lost->below == 0 || TransactionIdPrecedes(lost->xid, to->xid))
		lost->xid = to->xid;
	lost->below = Max(lost->below, to->below);
	if (to->certain == 0)
		lost->certain = 0;
	else
		lost->certain = Max(lost->certain, to->certain);
}

/*
 * Return the moment of a loss, with all lower numbers certain that the device may have in whole files.  Pages
 * of an earlier state are valid, so nothing but the number tells that they are old.
 *
 * An earlier state of a device has files from before its last marker; later numbers are missing there,
 * which recovery and the pages tell.  A copy without a marker, and a device of a later time than the
 * data directory, can have all numbers.  A standby is given files with numbers up to the counter, which
 * is ahead there, after the loss, too.
 */
static Horizon
horizon_of_loss(const KnownDevice *device, EvidenceReason reason, const Horizon *to,
				const Circumstances *now)
{
	Horizon		result = *to;

	/* no number is certain */
	if (result.certain == 0 || now->is_standby)
		return result;
	if (reason == REASON_LEFT_BEHIND)
		result.certain = Max(result.certain, Min(device->marked_below, result.below));
	else if (reason == REASON_SERVER_SET_BACK || reason == REASON_RECOVERED_ELSEWHERE)
		result.certain = result.below;
	return result;
}

/*
 * Return whether the device was unknown for this reason before, and has to be, as it cannot be
 * marked.  Such a verdict says nothing new of files that were read since the first verdict; but in
 * another directory there may be other files.
 */
static bool
is_old_doubt(const KnownDevice *device, const DeviceLook *look, EvidenceReason reason,
			 const Circumstances *now)
{
	if (device->unknown_below == 0 || device->reason != reason || !has_directory(device, look))
		return false;
	if (device->id[0] == '\0')
		return true;
	/* its marker is gone, and could not be written again */
	return !now->at_start && device->mark_errno != 0;
}

/* Return whether a verdict says more than what is on record. */
static bool
is_news(const KnownDevice *device, const DeviceLook *look, Evidence verdict, EvidenceReason reason,
		const Circumstances *now)
{
	if (verdict == EVIDENCE_LOST || device->unknown_below == 0 || device->reason != reason)
		return true;
	/* without a number on record a start has the same verdict */
	if (device->id[0] == '\0')
		return false;
	return !is_old_doubt(device, look, reason, now) || now->below > device->unknown_below;
}

/* Put a verdict that is not "same" on record. */
static void
condemn(KnownDevice *device, const DeviceLook *look, Evidence verdict, EvidenceReason reason,
		bool was_pending, const Circumstances *now)
{
	const Horizon *to = now->at_start || was_pending ? &now->horizon : &device->seen;
	Horizon		lost = horizon_of_loss(device, reason, to, now);
	bool		is_old = is_old_doubt(device, look, reason, now);

	if (verdict != EVIDENCE_UNKNOWN || !is_old)
		device->is_in_round = false;
	device->vouched_from = Max(device->vouched_from, now->below);
	if (verdict == EVIDENCE_UNKNOWN)
	{
		if (!is_old)
		{
			device->doubts++;
			device->is_read = false;
		}
		device->unknown_below = Max(device->unknown_below, now->below);
		if (!has_lost_files(device))
			device->reason = reason;
		return;
	}

	/*
	 * A file that was made on a device that has come back since the last look
	 * is whole.  But if recovery has not been looked at, the device has
	 * missed all of it.
	 */
	extend_loss(&device->lost, &lost);
	if (!now->recovers || look->is_empty)
		extend_loss(&device->lost_unlogged, &lost);
	device->reason = reason;
	device->told = false;
	evidence_area->nlosses++;
}

/* Draw the conclusions from a look.  Return whether the state file has to be written. */
bool
evidence_conclude(KnownDevice *device, bool is_known, const DeviceLook *look,
				  const Circumstances *now)
{
	Evidence	verdict;
	EvidenceReason reason;
	bool		was_pending = device->is_pending;
	bool		was_here = device->is_here;
	bool		changed = !is_known;
	bool		is_empty;

	if (look_after_recovery(device, look, now))
		changed = true;
	verdict = verdict_on(device, is_known, look, now, &reason);
	if (reason == REASON_RECOVERED_EMPTY)
	{
		note_before(device, now);
		device->is_pending = true;
	}
	/* recovery empties the unlogged relations that are there at its begin */
	if (now->recovers && !look->is_empty && device->lost_unlogged.below != 0)
	{
		memset(&device->lost_unlogged, 0, sizeof(Horizon));
		changed = true;
	}
	if (now->recovers && verdict != EVIDENCE_SAME && look->marker != MARKER_UNREADABLE &&
		device->id[0] != '\0' && !evidence_has_expected(device, look))
	{
		note_before(device, now);
		device->id[0] = '\0';	/* step: begin-without */

		/*
		 * else it grows with the number that the device gets before recovery
		 * begins
		 */
		if (!now->at_start || look->is_empty || look->marker == MARKER_FOREIGN)
			device->written = ++device->epoch;
	}
	if (verdict != EVIDENCE_SAME)
	{
		if (is_news(device, look, verdict, reason, now))
			changed = true;
		condemn(device, look, verdict, reason, was_pending, now);
	}
	device->is_foreign = look->marker == MARKER_FOREIGN;
	device->is_away = look->directory.inode == 0;
	if (look->directory.inode == 0 && verdict == EVIDENCE_LOST)
		memset(&device->directory, 0, sizeof(FileIdentity));
	else if (look->directory.inode != 0)
	{
		device->has_moved = !file_identity_equals(&look->directory, &device->directory);
		device->directory = look->directory;
		if (device->has_moved)
			changed = true;
	}
	device->is_here = look->directory.inode != 0 && evidence_has_expected(device, look);
	/* sessions are told */
	if (has_lost_files(device) && device->is_here != was_here)
		changed = true;

	/*
	 * If it has become empty, its files may be lost: of those recovery makes
	 * ruins.
	 */
	is_empty = look->directory.inode != 0 && look->is_empty;
	if (device->was_empty && !is_empty)
	{
		device->was_empty = false;
		changed = true;
	}
	else if (is_empty && !is_known)
	{
		device->was_empty = true;
		changed = true;
	}
	device->seen = now->horizon;
	if (is_to_beat(device, look, now))
	{
		if (evidence_note_beat(device, look))
			changed = true;
	}
	return changed;
}
