/*-------------------------------------------------------------------------
 *
 * evidence.c
 *	  The knowledge of this server about the device below a tablespace.
 *
 * Recovery makes files where they are missing, with zeros before the images of pages
 * that it has, so a file's contents do not tell whether it is whole.  A marker on the
 * device does, with what this server expects there, in a file of its data directory.
 * src/README, "Evidence for a device", has the verdicts and why they are right.
 *
 * The first look is the postmaster's, when it makes shared memory, before recovery.
 * Later looks see all that was mounted, created or dropped since.
 *
 * One rule: a device has lost something if it has missed a recovery, or if the server has gone
 * on with another device, or with a later state of it.  That is certain if recovery begins while
 * the tablespace's directory is empty, or if the epoch in the marker is not one that is on
 * record: it grows with each marker that is written, and with each recovery that begins without
 * the device.  It counts as certain if the server has crashed, and neither the marker nor the
 * directory is there.  Whatever else is odd makes the device unknown, and all pages are read.
 * A wrong "lost" empties files of indexes, so in doubt it is "unknown".
 *
 * A verdict is of files from before a horizon (is_lost()), because recovery makes whole
 * what was made after its begin.
 *
 * Locks, in this order: that of the device for a look at it, which may hang, as a network's
 * file system does.  Whoever waits for it can be canceled, and the planner gives up if that
 * look takes long; but if it looks itself, it waits as long as the device does.  Other devices
 * are not concerned.  CHANGE_LOCK for all that
 * changes what is known; no device is read or written under it.  AREA_LOCK, besides, for
 * the moment in which shared memory changes, and for readers.  The postmaster takes none:
 * it has no children then.
 *
 * proof/marker.pml and proof/resume.pml are models of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_control.h"
#include "catalog/pg_tablespace.h"
#include "common/controldata_utils.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "device_marker.h"
#include "evidence.h"
#include "job.h"
#include "relation_facts.h"
#include "running_jobs.h"
#include "test_points.h"

#define AREA_NAME		"index_mover evidence"
#define STATE_FILE		"index_mover.evidence"
#define STATE_HEAD		"index_mover: what this server expects on the devices of its tablespaces"

/*
 * Every recovery removes this file, and nothing copies it: see
 * DeleteAllExportedSnapshotFiles() and core's basebackup.c.
 */
#define RUNNING_FILE	"pg_snapshots/index_mover.running"
#define RUNNING_HEAD	"index_mover: no recovery has begun since this run of the server"

/* Tablespaces made while the server runs, beyond those that are there at its start */
#define SPARE_ENTRIES	64

/* varsup.c logs the counter of OIDs ahead by so many */
#define OIDS_AHEAD		8192

/* of the LWLocks, in this order; then one for each device */
#define CHANGE_LOCK		0
#define AREA_LOCK		1
#define NLOCKS			2

/* A device that is not looked at in this time hangs: the planner does not wait for it */
#define SLOW_LOOK_MS	1000

/*
 * A look that has found it there serves sessions that connect or plan for so many times as long as it
 * has taken: they spend no more than that part of the time with looks
 */
#define FRESH_LOOKS		20

/* Databases of which it is known that all lost files are empty; of more, sessions look by themselves */
#define MOST_MET		64

/* Databases in a tablespace of which it is known that files were read */
#define MOST_READ		256

/* A marker is written again after this time: a device set back to a state from before is told */
#define BEAT_MS			(60 * 60 * 1000)

/* To mark a location before a file there is removed: attempts, and a rest between two */
#define CLAIM_TRIES		4
#define CLAIM_NAP_US	50000

/* between two attempts to get the lock of a device */
#define DEVICE_NAP_MS	10

/* Below this number are all files: while their end is not known */
#define ALL_FILES		((RelFileNumber) PG_UINT32_MAX)

/* Why a device is not known, or lost; the state file has the numbers */
typedef enum EvidenceReason
{
	REASON_NONE,
	REASON_FIRST_SEEN,
	REASON_COPIED_SERVER,
	REASON_UNWATCHED,
	REASON_NO_MARKER,
	REASON_COPIED,
	REASON_UNREADABLE,
	REASON_OTHER,
	REASON_RECOVERED_EMPTY,		/* from here on: lost */
	REASON_LEFT_BEHIND,
	REASON_SERVER_SET_BACK,
	REASON_RECOVERED_ELSEWHERE,
} EvidenceReason;

static const char *const reasons[] = {
	[REASON_NONE] = NULL,
	[REASON_FIRST_SEEN] = "This server has not seen the tablespace's directory before.",
	[REASON_COPIED_SERVER] = "The data directory was copied, restored or rewound.",
	[REASON_UNWATCHED] = "The server has run without the library, or has crashed before the janitor was there.",
	[REASON_NO_MARKER] = "The marker file in the tablespace's location was missing.",
	[REASON_COPIED] = "The tablespace's files were copied.",
	[REASON_UNREADABLE] = "The tablespace's location, or the marker file in it, could not be read.",
	[REASON_RECOVERED_EMPTY] = "Recovery began while the tablespace's directory was empty.",
	[REASON_OTHER] = "The tablespace's location has the marker of another device.",
	[REASON_LEFT_BEHIND] = "The tablespace's device was away while the server went on without it, or is back at an earlier state.",
	[REASON_SERVER_SET_BACK] = "The data directory is back at an earlier state than the tablespace's device.",
	[REASON_RECOVERED_ELSEWHERE] = "Recovery began in another directory than the tablespace's, without the marker file.",
};

/*
 * A moment: a file from before it was lost, and one from after it was not.  The counter of
 * OIDs, from which relfilenumbers come, is known to OIDS_AHEAD.
 */
typedef struct Horizon
{
	RelFileNumber below;		/* no higher number had been given to a file;
								 * 0: nothing is lost */
	RelFileNumber certain;		/* all lower ones had been given */
	TransactionId xid;			/* all transactions before it had ended */
} Horizon;

/*
 * A tablespace.  Written under both locks, and that of the device but for is_in_round and
 * told; is_refuted under AREA_LOCK only.  Read under either one.
 */
typedef struct KnownDevice
{
	Oid			tablespace;
	char		id[DEVICE_ID_SIZE]; /* "": it could not be marked */
	FileIdentity directory;		/* that of the server's version; inode 0:
								 * there was none */
	char		location[MAXPGPATH];

	Horizon		lost;			/* files from before it are lost, */
	Horizon		lost_unlogged;	/* those of unlogged relations from before
								 * this */
	RelFileNumber unknown_below;	/* files with a lower number are not known
									 * to be whole; 0 = all are */
	RelFileNumber vouched_from; /* those were or were not whole, in the past */
	EvidenceReason reason;		/* of the loss, else of the last verdict that
								 * was not "same" */
	uint32		marked;			/* the epoch that its marker has at least */
	uint32		written;		/* the highest of all markers; a device of
								 * ours with a lower one, but the expected
								 * one, was left behind */
	uint32		epoch;			/* the highest that a marker can have: it is
								 * on record before it is written */
	bool		was_empty;		/* its directory, at all looks */

	/* the last recovery that began without the device */
	XLogRecPtr	missed_checkpoint;	/* from where; 0 = there was none */
	bool		is_pending;		/* it began on an empty directory, and nobody
								 * has looked since its end */
	char		missed_id[DEVICE_ID_SIZE];	/* the expectation before it */
	uint32		missed_marked;
	Horizon		missed_lost;

	/* not on record */
	Horizon		seen;			/* the last look */
	bool		has_moved;		/* the directory was not that above */
	bool		is_here;		/* at the last look the marker and the
								 * directory were those above */
	bool		is_foreign;		/* another server uses the location */
	bool		is_away;		/* there was no directory, or an empty one */
	int			mark_errno;		/* of the last attempt to write the marker */
	TimestampTz beaten;			/* when its marker was last to be written */
	double		look_began;		/* the last look that has ended, by
								 * clock_seconds() */
	double		look_ended;
	bool		could_empty;	/* when last saved: see can_empty() */
	bool		told;			/* the loss is in the log */
	bool		is_in_round;	/* the janitor's round looks at its files, */
	bool		is_refuted;		/* and not all are whole */
	uint32		doubts;			/* verdicts since the start by which files are
								 * unknown */
	bool		is_read;		/* it cannot be marked, and since the last of
								 * these a round has found all files whole */
} KnownDevice;

/* The contents of the state file, and of shared memory.  Written as the devices. */
typedef struct DeviceList
{
	char		run[DEVICE_ID_SIZE];	/* of the server */

	/* pg_control when the server has ended; all 0 = it runs, or has crashed */
	uint32		control_crc;
	int64		control_time;
	XLogRecPtr	control_checkpoint;

	int			max_devices;
	int			ndevices;
	KnownDevice devices[FLEXIBLE_ARRAY_MEMBER];
} DeviceList;

/* A database all of whose lost files are empty, for these losses */
typedef struct MetDatabase
{
	Oid			database;
	uint32		losses;
	bool		has_lost;		/* it has indexes of which the file is lost */
}			MetDatabase;

/* A database's files in a tablespace with lower numbers are whole, for these doubts: they were read */
typedef struct ReadFiles
{
	Oid			database;
	Oid			tablespace;
	uint32		doubts;
	RelFileNumber below;
} ReadFiles;

typedef struct EvidenceArea
{
	pg_atomic_uint32 losses;	/* 0 = no file is lost; changes with each
								 * verdict, when one is taken back, and when a
								 * device with lost files comes */
	uint32		nlosses;		/* since the start */
	RelFileNumber made_before;	/* files from before the server has started */
	int			janitor;		/* number of its process; -1 = none */
	pg_atomic_uint32 look_wanted;	/* 1: it is to look, since a tablespace
									 * was created or dropped */
	bool		is_saved;		/* the state file has the same */
	bool		jobs_are_told;	/* the log says why jobs of before do not go
								 * on */
	MetDatabase met[MOST_MET];	/* under AREA_LOCK, as the next */
	int			next_met;		/* place */
	ReadFiles	read[MOST_READ];	/* likewise */
	int			next_read;
	DeviceList	list;
} EvidenceArea;

/*
 * Which tablespace has, or had last, the LWLock of this number.  Under AREA_LOCK.  There are as
 * many as devices, so one is free whenever a process begins to look.
 */
typedef struct DeviceLock
{
	Oid			tablespace;		/* InvalidOid: none */
	double		began;			/* its last look, by clock_seconds() */
} DeviceLock;

/* More arguments of a look at a device */
typedef struct Circumstances
{
	bool		at_start;		/* the postmaster's look */
	bool		beats;			/* markers are written again */
	bool		recovers;		/* recovery is about to begin, or under way */
	bool		has_crashed;	/* which is about to begin for that */
	bool		is_restored;	/* from a backup: pg_control does not say from
								 * where it begins */
	bool		is_trusted;		/* the state file is of this server */
	bool		is_watched;		/* no server has run without the library since */
	XLogRecPtr	checkpoint;		/* from which recovery is about to begin */
	Horizon		horizon;		/* recovery's begin, or this look */
	RelFileNumber below;		/* files from before this look, and those of
								 * which the WAL may not have all */
} Circumstances;

static EvidenceArea *area = NULL;
static DeviceLock *device_locks = NULL; /* area->list.max_devices of them */
static bool is_preloaded = false;

/* in the postmaster: it has looked before, and so has seen all since */
static bool has_looked = false;

/* in a session */
static bool tablespaces_changed = false;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
static object_access_hook_type prev_object_access_hook = NULL;

static LWLock *
evidence_lock(int lock)
{
	return &GetNamedLWLockTranche(AREA_NAME)[lock].lock;
}

/* Return the tablespaces that pg_tblspc names. */
static List *
list_tablespaces(void)
{
	DIR		   *dir = AllocateDir("pg_tblspc");
	struct dirent *entry;
	List	   *result = NIL;

	while ((entry = ReadDirExtended(dir, "pg_tblspc", LOG)) != NULL)
	{
		if (OidIsValid(atooid(entry->d_name)))
			result = lappend_oid(result, atooid(entry->d_name));
	}
	FreeDir(dir);
	return result;
}

static Size
list_size(int max_devices)
{
	return offsetof(DeviceList, devices) + max_devices * sizeof(KnownDevice);
}

static Size
area_size(int max_devices)
{
	return offsetof(EvidenceArea, list) + list_size(max_devices);
}

static Size
locks_size(int max_devices)
{
	return max_devices * sizeof(DeviceLock);
}

/* ---- the state file ---- */

/* in place of nothing, which sscanf() does not read */
#define NOTHING		"-"

static const char *
id_text(const char *id)
{
	return id[0] ? id : NOTHING;
}

/* Read the line of a tablespace; return its length, 0 if it is none. */
static int
device_load(KnownDevice *device, const char *line)
{
	FileIdentity *directory = &device->directory;
	int			reason;
	int			was_empty;
	int			is_pending;
	int			length = 0;

	memset(device, 0, sizeof(*device));
	if (sscanf(line, "tablespace %u " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT
			   " %u %u %u %u %u %d %d %d " UINT64_FORMAT " %u %u %u"
			   " %u %u %u %u %u %u %u %32[0-9a-f-] %32[0-9a-f-] %1023[^\n]%n",
			   &device->tablespace, &directory->inode, &directory->birth, &directory->device,
			   &device->lost.below, &device->unknown_below, &device->vouched_from,
			   &device->lost.xid, &device->lost.certain, &reason,
			   &was_empty, &is_pending, &device->missed_checkpoint,
			   &device->missed_lost.below, &device->missed_lost.certain, &device->missed_lost.xid,
			   &device->lost_unlogged.below, &device->lost_unlogged.certain,
			   &device->lost_unlogged.xid,
			   &device->epoch, &device->written, &device->marked, &device->missed_marked,
			   device->id, device->missed_id, device->location, &length) != 26)
		return 0;
	if (line[length] != '\n' || reason < 0 || reason >= lengthof(reasons))
		return 0;
	device->reason = reason;
	device->was_empty = was_empty != 0;
	device->is_pending = is_pending != 0;
	if (strcmp(device->id, NOTHING) == 0)
		device->id[0] = '\0';
	if (strcmp(device->missed_id, NOTHING) == 0)
		device->missed_id[0] = '\0';
	if (strcmp(device->location, NOTHING) == 0)
		device->location[0] = '\0';
	return length + 1;
}

/* Write the state file; false with errno. */
static bool
list_save(const DeviceList *list)
{
	StringInfoData contents;
	ServerIdentity us;
	bool		result;

	server_identity(&us);
	initStringInfo(&contents);
	appendStringInfo(&contents,
					 "directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\nhost %s\npath %s\n",
					 us.directory.inode, us.directory.birth, us.directory.device, us.host, us.path);
	appendStringInfo(&contents, "run %s\ncontrol %u " INT64_FORMAT " " UINT64_FORMAT "\n",
					 list->run, list->control_crc, list->control_time, list->control_checkpoint);
	for (int i = 0; i < list->ndevices; i++)
	{
		const KnownDevice *device = &list->devices[i];
		const FileIdentity *directory = &device->directory;

		appendStringInfo(&contents, "tablespace %u " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT,
						 device->tablespace, directory->inode, directory->birth, directory->device);
		appendStringInfo(&contents, " %u %u %u %u %u %d",
						 device->lost.below, device->unknown_below, device->vouched_from,
						 device->lost.xid, device->lost.certain, device->reason);
		appendStringInfo(&contents, " %d %d " UINT64_FORMAT " %u %u %u",
						 device->was_empty, device->is_pending, device->missed_checkpoint,
						 device->missed_lost.below, device->missed_lost.certain,
						 device->missed_lost.xid);
		appendStringInfo(&contents, " %u %u %u",
						 device->lost_unlogged.below, device->lost_unlogged.certain,
						 device->lost_unlogged.xid);
		appendStringInfo(&contents, " %u %u %u %u %s %s",
						 device->epoch, device->written, device->marked, device->missed_marked,
						 id_text(device->id), id_text(device->missed_id));
		appendStringInfo(&contents, " %s\n", device->location[0] ? device->location : NOTHING);
	}
	appendStringInfoString(&contents, "end\n");
	result = own_file_write(STATE_FILE, STATE_HEAD, contents.data);
	pfree(contents.data);
	return result;
}

static DeviceList *
list_make(int max)
{
	DeviceList *list = palloc0(list_size(max));

	list->max_devices = max;
	return list;
}

/*
 * Read the state file, and set whether it is of this server, in this data directory; a copy
 * tells of another server.  NULL if there is none, or a part of one.
 */
static DeviceList *
list_load(bool *is_ours)
{
	const char *contents = own_file_read(STATE_FILE, STATE_HEAD, is_ours);
	DeviceList *list;
	ServerIdentity owner = {0};
	ServerIdentity us;
	int			max = 0;
	int			length = 0;

	if (contents == NULL)
		return NULL;
	/* each tablespace has a line */
	for (const char *next = contents; (next = strchr(next, '\n')) != NULL; next++)
		max++;
	list = list_make(max);
	if (sscanf(contents, "directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\n"
			   "host %63[^\n]\npath %1023[^\n]\n"
			   "run %32[0-9a-f]\ncontrol %u " INT64_FORMAT " " UINT64_FORMAT "\n%n",
			   &owner.directory.inode, &owner.directory.birth, &owner.directory.device,
			   owner.host, owner.path,
			   list->run, &list->control_crc, &list->control_time, &list->control_checkpoint,
			   &length) != 9)
		return NULL;
	server_identity(&us);
	if (!file_identity_equals(&owner.directory, &us.directory) || !server_is_us(&owner))
		*is_ours = false;
	for (contents += length; strcmp(contents, "end\n") != 0; contents += length)
	{
		length = device_load(&list->devices[list->ndevices], contents);
		if (length == 0)
			return NULL;
		list->ndevices++;
	}
	return list;
}

/* ---- verdicts ---- */

/* Return whether the device is there that is expected, and not an earlier state of it. */
static bool
has_expected(const KnownDevice *device, const DeviceLook *look)
{
	if (look->marker != MARKER_OURS || device->id[0] == '\0')
		return false;
	if (strcmp(look->id, device->id) != 0)
		return false;
	/* one with a higher epoch is from after what this server has on record */
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
 * state of the expected one: a copy, too, if it was made of one of these with its marker.
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
		/* one that could not be marked may be in use */
		if (device->id[0] == '\0')
			return false;
		return server_is_us(&look->owner) && look->epoch < device->written;
	}
	if (look->marker != MARKER_OURS || has_expected(device, look))
		return false;
	/* what was copied there since is of another age than the marker */
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
 * Return whether recovery after a crash is about to begin in another directory than the one that the
 * server was in, without the marker: in an older copy, perhaps, whose pages would look whole.  The
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
		if (device->was_empty && has_expected(device, look) && has_directory(device, look))
			return EVIDENCE_SAME;
		*reason = now->is_restored ? REASON_COPIED_SERVER : REASON_RECOVERED_EMPTY; /* step: recovers-empty */
	}
	/* nothing can be written there either, and it may be mounted late */
	else if (look->directory.inode == 0 && look->marker != MARKER_UNREADABLE)
		return EVIDENCE_SAME;
	else if (!is_known)
	{
		if (device->tablespace >= area->made_before && look->marker != MARKER_FOREIGN)
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
	else if (!has_expected(device, look) || !has_directory(device, look))
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
	/* one that has failed before a checkpoint is done again, from its begin */
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
	area->nlosses++;
}

/*
 * See whether the last recovery without the device has to be taken back.  Return whether
 * anything has changed.
 */
static bool
look_after_recovery(KnownDevice *device, const DeviceLook *look, const Circumstances *now)
{
	/*
	 * that recovery is over, also if another one begins from a later
	 * checkpoint
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
 * on record before.  So a device that is set back to an earlier state has a lower one.  Return
 * whether it is.
 */
static bool
note_beat(KnownDevice *device, const DeviceLook *look)
{
	/* nothing is changed on a device that is empty */
	if (look->is_in_place || look->is_empty || !has_expected(device, look))
		return false;
	device->epoch++;			/* step: note-beat */
	device->beaten = GetCurrentTimestamp();
	return true;
}

/* Write the marker of the expected device again.  If that fails, the one that is there serves. */
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
	device->written = Max(device->written, look->epoch);
	return true;
}

/*
 * Return whether the server goes on with a device that gets a number, so that what was there
 * before is left behind.  Nothing is changed in an empty directory; and if only the marker
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
 * The server goes on with a device that cannot be marked, so the expected one is left behind.
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
 * Return whether what is to be on record has changed.
 *
 * The verdict of the old marker about the device is on record before it is overwritten.
 */
static bool
mark(KnownDevice *device, DeviceLook *look, const Circumstances *now)
{
	uint32		epoch;

	if (!area->is_saved)
		return false;
	if (look->directory.inode == 0)
		return false;
	if (look->marker == MARKER_FOREIGN || look->marker == MARKER_UNREADABLE)
		return false;
	if (has_expected(device, look) && (look->is_empty || look->is_in_place))
	{
		device->mark_errno = 0; /* there is nothing to be written */
		/* but files may come into a new directory */
		if (!look->is_in_place && !device->is_pending && !names_directory(look))
			return beat(device, look, look->epoch);
		return false;
	}
	if (has_expected(device, look))
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
	device->beaten = GetCurrentTimestamp();
	if (!look->is_in_place)
		device_location(device->tablespace, device->location);
	device->is_here = has_expected(device, look);
	return true;
}

/* Return whether files of the device are lost. */
static bool
has_lost_files(const KnownDevice *device)
{
	return device->lost.below != 0 || device->lost_unlogged.below != 0;
}

/* Return whether some are lost, or unknown. */
static bool
is_doubtful(const KnownDevice *device)
{
	if (has_lost_files(device))
		return true;
	return device->unknown_below != 0 && (device->is_here || !device->is_read);
}

/* Let a loss be of all files from before this moment, too. */
static void
extend_loss(Horizon *lost, const Horizon *to)
{
	if (lost->below == 0 || TransactionIdPrecedes(lost->xid, to->xid))
		lost->xid = to->xid;
	lost->below = Max(lost->below, to->below);
	lost->certain = Max(lost->certain, to->certain);
}

/*
 * Return whether the device was unknown for this reason before, and has to be, as it cannot be
 * marked.  Such a verdict says nothing new of files that were read since the first one; but in
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
	extend_loss(&device->lost, to);
	if (!now->recovers || look->is_empty)
		extend_loss(&device->lost_unlogged, to);
	device->reason = reason;
	device->told = false;
	area->nlosses++;
}

/* Draw the conclusions from a look.  Return whether the state file has to be written. */
static bool
conclude(KnownDevice *device, bool is_known, const DeviceLook *look, const Circumstances *now)
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
		device->id[0] != '\0' && !has_expected(device, look))
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
	device->is_here = look->directory.inode != 0 && has_expected(device, look);
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
		if (note_beat(device, look))
			changed = true;
	}
	return changed;
}

/* Return the entry of a tablespace, or NULL. */
static KnownDevice *
known_device(DeviceList *list, Oid tablespace)
{
	for (int i = 0; i < list->ndevices; i++)
	{
		if (list->devices[i].tablespace == tablespace)
			return &list->devices[i];
	}
	return NULL;
}

/* Add an entry; NULL if there is no place. */
static KnownDevice *
add_device(DeviceList *list, Oid tablespace)
{
	KnownDevice *device;

	if (list->ndevices == list->max_devices)
		return NULL;
	device = &list->devices[list->ndevices++];
	memset(device, 0, sizeof(*device));
	device->tablespace = tablespace;
	return device;
}

/* Return whether pg_tblspc has a tablespace. */
static bool
tablespace_exists(Oid tablespace)
{
	char		path[MAXPGPATH];
	struct stat st;

	snprintf(path, sizeof(path), "pg_tblspc/%u", tablespace);
	return lstat(path, &st) == 0 || errno != ENOENT;
}

/* Return the tablespaces that were dropped, and remove their markers. */
static List *
unmark_dropped(const DeviceList *list)
{
	List	   *result = NIL;

	for (int i = 0; i < list->ndevices; i++)
	{
		const KnownDevice *device = &list->devices[i];

		if (tablespace_exists(device->tablespace))
			continue;
		result = lappend_oid(result, device->tablespace);
		if (device->location[0] != '\0')
			device_unmark(device->location, device->id);
	}
	return result;
}

/* Take these tablespaces off the list. */
static void
remove_devices(DeviceList *list, const List *tablespaces)
{
	int			kept = 0;

	for (int i = 0; i < list->ndevices; i++)
	{
		if (!list_member_oid(tablespaces, list->devices[i].tablespace))
			list->devices[kept++] = list->devices[i];
	}
	list->ndevices = kept;
}

/* Return whether lost files are on the device that is there, and the verdict is final. */
static bool
can_empty(const KnownDevice *device)
{
	return has_lost_files(device) && device->is_here && !device->is_pending;
}

/* Have the launcher look at the devices, and begin a round if that is due. */
static void
wake_launcher(void)
{
	/* it may end meanwhile */
	int			launcher = *(volatile int *) &area->janitor;

	pg_atomic_write_u32(&area->look_wanted, 1);
	if (launcher >= 0)
		SetLatch(&GetPGProcByNumber(launcher)->procLatch);
}

/* After a change: count, and write the state file.  Under CHANGE_LOCK. */
static void
area_save(void)
{
	bool		has_lost = false;
	uint32		losses = 0;

	for (int i = 0; i < area->list.ndevices; i++)
	{
		KnownDevice *device = &area->list.devices[i];

		if (has_lost_files(device))
			has_lost = true;
		if (can_empty(device) && !device->could_empty)
			area->nlosses++;
		device->could_empty = can_empty(device);
	}
	if (has_lost)
		losses = area->nlosses + 1;
	/* the janitor is to empty files */
	if (losses != 0 && losses != pg_atomic_read_u32(&area->losses))
		wake_launcher();
	pg_atomic_write_u32(&area->losses, losses);
	area->is_saved = list_save(&area->list);
	if (!area->is_saved)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", STATE_FILE)));
}

/* ---- the postmaster ---- */

/*
 * Forget what another server has known of its devices.  In a backup or a copy of it are old files
 * of a device that it has lost: that is kept, as it goes by numbers.
 */
static void
forget_devices(DeviceList *list)
{
	for (int i = 0; i < list->ndevices; i++)
	{
		KnownDevice *device = &list->devices[i];
		KnownDevice kept = {.tablespace = device->tablespace,.reason = device->reason,
		.lost = device->lost,.lost_unlogged = device->lost_unlogged};

		*device = kept;
	}
}

/* Return the tablespaces that pg_tblspc names, first those on the list. */
static List *
known_first(DeviceList *list)
{
	List	   *known = NIL;
	List	   *others = NIL;

	foreach_oid(tablespace, list_tablespaces())
	{
		if (known_device(list, tablespace) != NULL)
			known = lappend_oid(known, tablespace);
		else
			others = lappend_oid(others, tablespace);
	}
	return list_concat(known, others);
}

static bool
is_running(const char *run)
{
	bool		is_itself;
	char	   *contents = own_file_read(RUNNING_FILE, RUNNING_HEAD, &is_itself);

	return contents != NULL && is_itself && strcmp(contents, run) == 0;
}

static bool
file_exists(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0;
}

/* Return the moment at which the redo position of the last checkpoint was determined. */
static Horizon
horizon_of_checkpoint(const ControlFileData *control)
{
	const CheckPoint *checkpoint = &control->checkPointCopy;
	Horizon		result = {.below = checkpoint->nextOid};

	/* of a server that was shut down it is exact */
	result.certain = result.below;
	if (control->state != DB_SHUTDOWNED)
		result.certain -= Min(result.below, OIDS_AHEAD);
	/* at the end of a server there were no others */
	result.xid = XidFromFullTransactionId(checkpoint->nextXid);
	/* this one was looked up before the redo position was determined */
	if (TransactionIdIsValid(checkpoint->oldestActiveXid))
		result.xid = checkpoint->oldestActiveXid;

	/*
	 * with wal_level = minimal it is not known; rows that are frozen are from
	 * before
	 */
	else if (control->wal_level < WAL_LEVEL_REPLICA && control->state != DB_SHUTDOWNED)
		result.xid = checkpoint->oldestXid;
	return result;
}

/* Look before recovery does.  Files only, and no lock: the server has no other process. */
static void
look_before_recovery(void)
{
	bool		crc_ok;
	ControlFileData *control = get_controlfile(DataDir, &crc_ok);
	bool		is_ours;
	DeviceList *old = list_load(&is_ours);
	DeviceLook *looks = palloc0_array(DeviceLook, Max(area->list.max_devices, 1));
	int			nlooks = 0;
	bool		is_marked = false;
	bool		has_looked_before = has_looked;
	bool		is_standby = file_exists("standby.signal") || file_exists("recovery.signal");
	Circumstances now = {.at_start = true,.horizon = horizon_of_checkpoint(control)};

	/* step: look-before-recovery */
	has_looked = false;			/* until this is on record */

	/*
	 * What was created since the redo position has a higher number, and the
	 * WAL has all of it.  With wal_level = minimal it may not: then the end
	 * of recovery is waited for.
	 */
	now.below = control->wal_level >= WAL_LEVEL_REPLICA ? now.horizon.below : ALL_FILES;
	now.is_restored = file_exists("backup_label") || file_exists("tablespace_map");
	now.recovers = control->state != DB_SHUTDOWNED || now.is_restored || is_standby;
	now.has_crashed = control->state != DB_SHUTDOWNED &&
		control->state != DB_SHUTDOWNED_IN_RECOVERY;
	/* after a clean stop, the watch does that: the device may hang */
	now.beats = now.recovers;
	now.checkpoint = control->checkPoint;
	if (old == NULL)
	{
		old = list_make(0);
		is_ours = false;
	}
	now.is_trusted = is_ours && !now.is_restored && crc_ok;
	if (now.is_trusted)
		now.is_watched = has_looked_before || is_running(old->run) ||
			(old->control_time != 0 && old->control_crc == control->crc &&
			 old->control_time == control->time && old->control_checkpoint == control->checkPoint);
	else
		forget_devices(old);
	if (now.is_trusted)
		remove_devices(old, unmark_dropped(old));

	area->made_before = now.below;
	/* what is known comes first: places are few after a crash */
	foreach_oid(tablespace, known_first(old))
	{
		const KnownDevice *known = known_device(old, tablespace);
		KnownDevice *device = add_device(&area->list, tablespace);

		if (device == NULL)
			break;
		if (known != NULL)
			*device = *known;
		device_look(device->tablespace, &looks[nlooks]);
		(void) conclude(device, known != NULL && now.is_trusted, &looks[nlooks], &now);
		nlooks++;
	}
	device_id_make(area->list.run);
	running_jobs_begin(now.is_trusted && now.is_watched && !is_standby ? NULL :
					   "The data directory was copied, restored or rewound, or has run as a standby or without the library.",
					   control->state != DB_SHUTDOWNED, area->list.run);
	area_save();
	for (int i = 0; i < nlooks; i++)
	{
		if (mark(&area->list.devices[i], &looks[i], &now))
			is_marked = true;
	}
	if (is_marked)
		area_save();
	has_looked = area->is_saved;
	pfree(looks);
	pfree(old);
}

/* At the end of the postmaster: note how it leaves pg_control, which any start changes. */
static void
note_end(int code, Datum arg)
{
	bool		crc_ok;
	ControlFileData *control;
	DeviceList *list;
	bool		is_ours;

	/* a restart after a crash; or that of the postmaster */
	if (code != 0 || !area->is_saved)
		return;
	/* a process that was killed may have left the shared memory half changed */
	control = get_controlfile(DataDir, &crc_ok);
	list = list_load(&is_ours);
	if (list == NULL || !is_ours)
		return;
	if (!crc_ok)
		return;
	list->control_crc = control->crc;
	list->control_time = control->time;
	list->control_checkpoint = control->checkPoint;
	(void) list_save(list);
}

/* Tablespaces at the start, and some more; a restart after a crash has the same memory. */
static int	max_devices = 0;

static void
request_evidence_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	max_devices = list_length(list_tablespaces()) + SPARE_ENTRIES;
	RequestAddinShmemSpace(MAXALIGN(area_size(max_devices)));
	RequestAddinShmemSpace(MAXALIGN(locks_size(max_devices)));
	RequestNamedLWLockTranche(AREA_NAME, NLOCKS + max_devices);
}

static void
startup_shmem(void)
{
	MemoryContext context = CurrentMemoryContext;
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	area = ShmemInitStruct(AREA_NAME, area_size(max_devices), &found);
	device_locks = ShmemInitStruct(AREA_NAME " locks", locks_size(max_devices), &found);
	LWLockRelease(AddinShmemInitLock);
	if (found)
		return;
	memset(area, 0, area_size(max_devices));
	memset(device_locks, 0, locks_size(max_devices));
	pg_atomic_init_u32(&area->losses, 0);
	area->janitor = -1;
	pg_atomic_init_u32(&area->look_wanted, 0);
	area->list.max_devices = max_devices;
	/* single-user mode recovers, too, as pg_rewind has it do */
	if (IsBinaryUpgrade || IsBootstrapProcessingMode())
	{
		area->list.max_devices = 0;
		return;
	}
	/* a server that cannot look starts all the same */
	PG_TRY();
	{
		look_before_recovery();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		EmitErrorReport();
		FlushErrorState();
		area->list.ndevices = 0;
		area->list.max_devices = 0;
		running_jobs_begin("The server could not look at its devices at its start; the server log says why.",
						   true, "");
	}
	PG_END_TRY();
	on_shmem_exit(note_end, (Datum) 0);
	/* there is no launcher that does it */
	if (!IsPostmasterEnvironment)
		running_jobs_tell_forgotten();
}

/* ---- the running server ---- */

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

	result.certain = result.below - Min(result.below, OIDS_AHEAD);
	result.xid = GetOldestTransactionIdConsideredRunning();
	return result;
}

/*
 * Now that recovery has ended: files from before its end can be told.  And if the counter has
 * gone back, by four billion OIDs or pg_resetwal, no number says which files are older.
 */
static bool
narrow_all(KnownDevice *device, RelFileNumber next)
{
	bool		changed = narrow(&device->unknown_below, next);

	if (narrow(&device->vouched_from, next))
		changed = true;
	if (next < device->lost.certain)
	{
		device->lost.certain = 0;
		changed = true;
	}
	if (next < device->lost_unlogged.certain)
	{
		device->lost_unlogged.certain = 0;
		changed = true;
	}
	return changed;
}

/* ---- locks of devices ---- */

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
	for (int i = 0; i < area->list.max_devices && place < 0; i++)
	{
		if (device_locks[i].tablespace == tablespace)
			place = i;
	}
	if (place >= 0)
	{
		if (!LWLockConditionalAcquire(evidence_lock(NLOCKS + place), LW_EXCLUSIVE))
		{
			*began = device_locks[place].began;
			LWLockRelease(evidence_lock(AREA_LOCK));
			return NULL;
		}
	}
	/* any that is free */
	for (int i = 0; i < area->list.max_devices && place < 0; i++)
	{
		if (LWLockConditionalAcquire(evidence_lock(NLOCKS + i), LW_EXCLUSIVE))
			place = i;
	}
	if (place >= 0)
	{
		device_locks[place].tablespace = tablespace;
		device_locks[place].began = *began;
		lock = evidence_lock(NLOCKS + place);
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	return lock;
}

/*
 * Lock a device, and return the lock; without "waits", NULL if a process has it whose look takes
 * long.  Not with another lock of this file.
 */
static LWLock *
lock_device(Oid tablespace, bool waits)
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

/* ---- looks at devices ---- */

/* Get the entry of a tablespace; false if it has none. */
static bool
recall(Oid tablespace, KnownDevice *device)
{
	KnownDevice *found;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	found = known_device(&area->list, tablespace);
	if (found != NULL)
		*device = *found;
	LWLockRelease(evidence_lock(AREA_LOCK));
	return found != NULL;
}

/* Put all that is known of a device into shared memory.  Under CHANGE_LOCK. */
static void
publish(const KnownDevice *device)
{
	KnownDevice *entry;
	bool		is_refuted;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = known_device(&area->list, device->tablespace);
	if (entry == NULL)
		entry = add_device(&area->list, device->tablespace);
	is_refuted = entry->is_refuted;
	*entry = *device;
	entry->is_refuted = is_refuted;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* The same of what mark() has changed.  The rest may have changed since it was read. */
static void
publish_mark(const KnownDevice *device)
{
	KnownDevice *entry;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = known_device(&area->list, device->tablespace);
	memcpy(entry->id, device->id, sizeof(entry->id));
	memcpy(entry->location, device->location, sizeof(entry->location));
	entry->marked = device->marked;
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
	entry = known_device(&area->list, tablespace);
	if (entry != NULL)
		entry->is_in_round = false;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* Conclude from a look, and set *device to all that is known then.  Return false if there is no place for it. */
static bool
take_look(KnownDevice *device, const DeviceLook *look, const Circumstances *now)
{
	KnownDevice *entry;
	bool		is_known;
	bool		changed = false;

	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	if (!now->recovers)
		(void) narrow(&area->made_before, now->horizon.below);
	entry = known_device(&area->list, device->tablespace);
	is_known = entry != NULL;
	if (!is_known && area->list.ndevices == area->list.max_devices)
	{
		LWLockRelease(evidence_lock(CHANGE_LOCK));
		return false;
	}
	if (is_known)
		*device = *entry;
	if (!now->recovers)
		changed = narrow_all(device, now->horizon.below);
	if (conclude(device, is_known, look, now))
		changed = true;
	publish(device);
	if (changed || !area->is_saved)
		area_save();
	LWLockRelease(evidence_lock(CHANGE_LOCK));
	return true;
}

/*
 * Look at a tablespace.  Without "waits", not if a process has been looking at it for long: false
 * then.  With "beats", its marker is written again.  The moments are such that in doubt more files are
 * unknown, and fewer are lost.
 */
static bool
look_at_tablespace(Oid tablespace, bool waits, bool beats)
{
	Circumstances now = {.beats = beats,.is_trusted = true,.is_watched = true};
	KnownDevice device = {.tablespace = tablespace};
	double		asked = clock_seconds();
	LWLock	   *lock = lock_device(tablespace, waits);
	double		began = clock_seconds();
	DeviceLook	look;
	bool		is_marked;

	if (lock == NULL)
		return false;

	/*
	 * who has waited for the look of another process needs none if that began
	 * since
	 */
	if (!waits && recall(tablespace, &device) && device.look_began >= asked)
	{
		LWLockRelease(lock);
		return true;
	}
	/* it may have been dropped meanwhile */
	if (!tablespace_exists(tablespace))
	{
		LWLockRelease(lock);
		return true;
	}
	now.recovers = RecoveryInProgress();
	now.horizon = horizon_of_now();
	device_look(tablespace, &look);
	now.below = next_number();
	if (take_look(&device, &look, &now))
	{
		is_marked = mark(&device, &look, &now);
		device.look_began = began;
		device.look_ended = clock_seconds();
		LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
		/* it may have failed, too */
		publish_mark(&device);
		if (is_marked)
		{
			/* what a round has read was there before */
			leave_round(tablespace);
			area_save();
		}
		LWLockRelease(evidence_lock(CHANGE_LOCK));
	}
	LWLockRelease(lock);
	return true;
}

/* Take a tablespace that was dropped off the list, and remove its marker. */
static void
forget_dropped(Oid tablespace)
{
	LWLock	   *lock = lock_device(tablespace, true);
	KnownDevice device;

	if (recall(tablespace, &device) && device.location[0] != '\0')
		device_unmark(device.location, device.id);
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	remove_devices(&area->list, list_make1_oid(tablespace));
	LWLockRelease(evidence_lock(AREA_LOCK));
	area_save();
	LWLockRelease(evidence_lock(CHANGE_LOCK));
	LWLockRelease(lock);
}

/* Return the tablespaces that are on the list, or those of which is_such() is true. */
static List *
list_devices(bool (*is_such) (const KnownDevice *device))
{
	List	   *result = NIL;

	if (area == NULL)
		return NIL;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	for (int i = 0; i < area->list.ndevices; i++)
	{
		const KnownDevice *device = &area->list.devices[i];

		if (is_such == NULL || is_such(device))
			result = lappend_oid(result, device->tablespace);
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	return result;
}

/* Look at a tablespace, and get its entry; false if it has none. */
static bool
look_for(Oid tablespace, KnownDevice *device)
{
	if (area == NULL || area->list.max_devices == 0)
		return false;
	(void) look_at_tablespace(tablespace, true, false);
	return recall(tablespace, device);
}

/* the data directory is there, or there is no server */
static bool
is_in_data_directory(Oid tablespace)
{
	return tablespace == DEFAULTTABLESPACE_OID || tablespace == GLOBALTABLESPACE_OID;
}

/*
 * Return whether a row of a catalog was committed before a loss, for certain.  One that is
 * frozen may be from after it, too: its xmin stays.
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
	/* not one of those from the loss until now */
	return xmin - lost->xid >= ReadNextTransactionId() - lost->xid;
}

/*
 * Return whether this database had what it has in the tablespace before a loss, for certain.
 *
 * Files with numbers from before come later with a database that is copied: its OID, from the
 * same counter, is a later one.  And into the tablespace that ALTER DATABASE gives it, as its
 * default one only: then its row is a later one, as after any other change of that row.
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

/*
 * Return whether a file of this database is lost, by its number and the row of pg_class that
 * names it, or NULL.  It is if it is from before the loss for certain.  The counter is known
 * to OIDS_AHEAD; in that range the row of pg_class has to be from before.
 */
static bool
is_lost(const KnownDevice *device, RelFileNumber relfilenumber, HeapTuple row)
{
	const Horizon *lost = &device->lost;

	if (HeapTupleIsValid(row) &&
		((Form_pg_class) GETSTRUCT(row))->relpersistence == RELPERSISTENCE_UNLOGGED)
		lost = &device->lost_unlogged;
	if (relfilenumber >= lost->below || !database_is_from_before(device, lost))
		return false;
	return relfilenumber < lost->certain || is_from_before(row, lost);
}

/* The same by its number alone.  In a transaction. */
static bool
file_is_lost(const KnownDevice *device, RelFileNumber relfilenumber)
{
	HeapTuple	row;
	Oid			relid;
	bool		result;

	if (relfilenumber >= device->lost.below && relfilenumber >= device->lost_unlogged.below)
		return false;
	relid = RelidByRelfilenumber(tablespace_in_catalog(device->tablespace), relfilenumber);
	row = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	result = is_lost(device, relfilenumber, row);
	if (HeapTupleIsValid(row))
		ReleaseSysCache(row);
	return result;
}

/*
 * Return the verdict about the tablespace as a whole, looking at its device now.
 *
 * EVIDENCE_LOST: there may be files of permanent relations that are lost whatever their
 * pages look like; evidence_of_file() says which.  EVIDENCE_UNKNOWN: all pages of those
 * files have to be read.  EVIDENCE_SAME: the device is the one that it was; what single
 * files have lost is seen in the file system, or in a page or two.
 */
Evidence
evidence_of_tablespace(Oid tablespace)
{
	KnownDevice device;
	int			forced = IM_LIMIT("evidence", -1);

	if (is_in_data_directory(tablespace))
		return EVIDENCE_SAME;
	if (forced >= 0)
		return forced;
	if (!look_for(tablespace, &device))
		return EVIDENCE_UNKNOWN;
	if (device.lost.below != 0)
		return EVIDENCE_LOST;
	return device.unknown_below != 0 || !device.is_here ? EVIDENCE_UNKNOWN : EVIDENCE_SAME;
}

/*
 * The same of the file of one permanent relation, index or table.  One that was made
 * since the device was lost, or since it is known, is not concerned.  In a transaction.
 */
Evidence
evidence_of_file(Oid tablespace, RelFileNumber relfilenumber)
{
	KnownDevice device;
	int			forced = IM_LIMIT("evidence", -1);

	if (is_in_data_directory(tablespace))
		return EVIDENCE_SAME;
	if (forced >= 0)
		return forced;
	if (!look_for(tablespace, &device))
		return EVIDENCE_UNKNOWN;
	if (file_is_lost(&device, relfilenumber))
		return EVIDENCE_LOST;
	if (relfilenumber < device.lost.below || relfilenumber < device.unknown_below)
		return EVIDENCE_UNKNOWN;
	return device.is_here ? EVIDENCE_SAME : EVIDENCE_UNKNOWN;
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
	return look_for(tablespace, &device) && device.is_here && area->is_saved &&
		relfilenumber >= device.vouched_from;
}

/*
 * Return whether this server may remove files there: whether the location has its marker.
 * Without one, it gets one.
 */
bool
evidence_may_remove(Oid tablespace)
{
	KnownDevice device;
	DeviceLook	look;

	if (is_in_data_directory(tablespace))
		return true;
	/* the marker serves without shared memory, too */
	(void) look_for(tablespace, &device);
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
 * Return whether a loss of the tablespace's device would not be known: there is no
 * library in the postmaster, or no marker.
 */
bool
evidence_is_missing(Oid tablespace)
{
	KnownDevice device;
	DeviceLook	look;

	if (is_in_data_directory(tablespace))
		return false;
	device_look(tablespace, &look);
	if (look.is_in_place)
		return false;
	if (!look_for(tablespace, &device) || !area->is_saved)
		return true;
	/* perhaps its marker can be written again by now */
	if (device.mark_errno != 0)
	{
		(void) look_at_tablespace(tablespace, true, true);
		if (!recall(tablespace, &device))
			return true;
	}
	if (device.mark_errno != 0)
		return true;
	return !device.is_here && !device.is_away;
}

/* Return the milliseconds after which a marker is written again. */
int
evidence_beat_ms(void)
{
	return IM_LIMIT("beat-ms", BEAT_MS);
}

/* Return the name of the marker in a location. */
const char *
evidence_file_name(void)
{
	return MARKER_NAME;
}

/*
 * Return why evidence_of_tablespace() is not EVIDENCE_SAME, or evidence_may_remove() is
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
	if (!is_preloaded)
		return "The library is not in shared_preload_libraries.";
	if (area != NULL && !area->is_saved)
		return "The server log says why its state file could not be written.";
	if (!look_for(tablespace, &device))
		return "There was no place for this tablespace in shared memory; a restart makes it.";
	if (has_lost_files(&device))
		return reasons[device.reason];
	if (device.is_away)
		return "The tablespace's directory is missing; its file system may not be mounted.";
	if (device.mark_errno != 0)
	{
		errno = device.mark_errno;
		return psprintf("The marker file could not be written to the tablespace's location: %m.");
	}
	if (look.marker == MARKER_UNREADABLE)
		return reasons[REASON_UNREADABLE];
	if (device.unknown_below == 0 && device.is_here)
		return NULL;
	return reasons[device.reason];
}

/* Return a number that changes when files are lost, 0 if none is: one atomic read. */
uint32
evidence_losses(void)
{
	return area == NULL ? 0 : pg_atomic_read_u32(&area->losses);
}

/* Return whether lost files may be emptied as far as is known of their device. */
static bool
may_empty(Oid tablespace, KnownDevice *device)
{
	return recall(tablespace, device) && can_empty(device);
}

/*
 * Return whether lost files of this tablespace may be emptied: they are on its device, and
 * the verdict is final.
 */
bool
evidence_may_empty(Oid tablespace)
{
	KnownDevice device;

	if (!recall(tablespace, &device) || !has_lost_files(&device))
		return false;

	/*
	 * Another device may have come since the last look.  The planner asks: it
	 * does not wait if a look takes long.
	 */
	if (!look_at_tablespace(tablespace, false, false))
		return false;
	return may_empty(tablespace, &device);
}

/*
 * The same for a session that connects or plans, by a look of just now, of whatever process.  Of a
 * device whose last look has taken long, it is left to the janitor.
 */
bool
evidence_may_empty_lately(Oid tablespace)
{
	KnownDevice device;
	double		took;

	if (!recall(tablespace, &device) || !has_lost_files(&device))
		return false;
	took = device.look_ended - device.look_began;
	if (took * 1000 > SLOW_LOOK_MS)
		return false;
	if (clock_seconds() < device.look_ended + FRESH_LOOKS * took && may_empty(tablespace, &device))
		return true;
	/* it, or another one, may have come just now */
	return evidence_may_empty(tablespace);
}

/*
 * Return whether lost files of this tablespace can be emptied as far as is known, without a look at
 * its device.  When one comes that was away, evidence_losses() changes.
 */
bool
evidence_can_empty(Oid tablespace)
{
	KnownDevice device;

	return may_empty(tablespace, &device);
}

/*
 * Return whether all lost files of a database are known to be empty, or on devices that are away, for
 * these losses.  *has_lost becomes whether it had any then: nothing is lost of one that has been healed.
 */
bool
evidence_is_met(Oid database, uint32 losses, bool *has_lost)
{
	bool		result = false;

	*has_lost = false;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	for (int i = 0; i < MOST_MET; i++)
	{
		if (area->met[i].database == database && area->met[i].losses == losses)
		{
			result = true;
			*has_lost = area->met[i].has_lost;
		}
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
	return result;
}

/*
 * Return the entry for a note about this database: its own, else one that is free or out of date,
 * else the oldest.  Under AREA_LOCK.
 */
static MetDatabase *
place_for_met(uint32 losses)
{
	MetDatabase *result = NULL;

	for (int i = 0; i < MOST_MET; i++)
	{
		MetDatabase *entry = &area->met[i];

		if (entry->database == MyDatabaseId)
			return entry;
		if (result == NULL && entry->losses < losses)
			result = entry;
	}
	if (result != NULL)
		return result;
	result = &area->met[area->next_met];
	area->next_met = (area->next_met + 1) % MOST_MET;
	return result;
}

/* Note that those of this database are, and whether it has any. */
void
evidence_note_met(uint32 losses, bool has_lost)
{
	MetDatabase *entry;

	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = place_for_met(losses);
	/* another session may know of a later loss */
	if (entry->database != MyDatabaseId || entry->losses <= losses)
	{
		entry->database = MyDatabaseId;
		entry->losses = losses;
		entry->has_lost = has_lost;
	}
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/*
 * Return whether the file of a row of pg_class is known to be lost, without looking at the
 * device: one atomic read where nothing is.
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

	/* see lost_file() */
	if (form->relpersistence != RELPERSISTENCE_PERMANENT &&
		(form->relpersistence != RELPERSISTENCE_UNLOGGED || form->relkind != RELKIND_INDEX))
		return false;
	if (!recall(tablespace_from_catalog(form->reltablespace), &device))
		return false;
	return is_lost(&device, form->relfilenode, row);
}

/* The janitor is to look when a tablespace has been created or dropped. */
static void
note_tablespace(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);
	if (classId == TableSpaceRelationId && (access == OAT_POST_CREATE || access == OAT_DROP))
		tablespaces_changed = true;
}

static void
evidence_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT && tablespaces_changed && area != NULL)
		wake_launcher();
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		tablespaces_changed = false;
}

/* Return whether the janitor is to look at once; not again until the next time. */
bool
evidence_take_wish(void)
{
	if (area == NULL)
		return false;
	return pg_atomic_exchange_u32(&area->look_wanted, 0) != 0;
}

/* Called by _PG_init(). */
void
evidence_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	is_preloaded = true;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_evidence_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
	prev_object_access_hook = object_access_hook;
	object_access_hook = note_tablespace;
	RegisterXactCallback(evidence_xact_callback, NULL);
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
	area->janitor = -1;
}

/* Have this process told when a tablespace is created or dropped. */
void
evidence_watch(void)
{
	if (area == NULL || area->list.max_devices == 0)
		return;
	area->janitor = MyProcNumber;
	before_shmem_exit(stop_watching, (Datum) 0);
}

/* Say why jobs of before do not go on: once, also if the launcher starts again. */
void
evidence_tell_jobs(void)
{
	if (area == NULL || area->jobs_are_told)
		return;
	area->jobs_are_told = true;
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

	if (area == NULL || area->list.max_devices == 0 || is_noted || !area->is_saved)
		return;
	is_noted = own_file_write(RUNNING_FILE, RUNNING_HEAD, area->list.run);
	if (!is_noted && !told)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", RUNNING_FILE)));
	told = true;
}

/* ---- the watch of devices ---- */

/* Return whether the marker of a device was written long ago. */
static bool
beat_is_due(Oid tablespace)
{
	KnownDevice device;

	TimestampTz now = GetCurrentTimestamp();

	if (!recall(tablespace, &device))
		return false;
	/* the clock may have been set back */
	return device.beaten > now ||
		TimestampDifferenceExceeds(device.beaten, now, evidence_beat_ms());
}

/* Look at all devices, and tell of lost devices.  A device may hang. */
void
evidence_look(void)
{
	if (area == NULL || area->list.max_devices == 0)
		return;
	foreach_oid(tablespace, list_devices(NULL))
	{
		if (!tablespace_exists(tablespace))
			forget_dropped(tablespace);
	}
	foreach_oid(tablespace, list_tablespaces())
	{
		CHECK_FOR_INTERRUPTS();
		if (!PostmasterIsAlive())
			proc_exit(1);
		(void) look_at_tablespace(tablespace, true, beat_is_due(tablespace));
	}
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	for (int i = 0; i < area->list.ndevices; i++)
	{
		KnownDevice *device = &area->list.devices[i];

		/* of unlogged indexes the janitor tells, if there are some */
		if (device->lost.below == 0 || device->told || device->is_pending)
			continue;
		device->told = true;
		ereport(LOG,
				(errmsg("files of tablespace %u are lost", device->tablespace),
				 errdetail_internal("%s", reasons[device->reason])));
	}
	LWLockRelease(evidence_lock(CHANGE_LOCK));
}

/* Return the tablespaces of which something is lost. */
List *
evidence_lossy(void)
{
	return list_devices(has_lost_files);
}

/* Return the tablespaces of which something is lost, or unknown. */
List *
evidence_doubtful(void)
{
	return list_devices(is_doubtful);
}

/* Return whether a file is lost or unknown by its number, without looking at the device. */
bool
evidence_doubts(Oid tablespace, RelFileNumber relfilenumber)
{
	KnownDevice device;

	if (area == NULL || !recall(tablespace, &device))
		return false;
	return relfilenumber < device.lost.below || relfilenumber < device.lost_unlogged.below ||
		relfilenumber < device.unknown_below;
}

/* Begin a round through all databases, after which all that nobody has refuted is settled. */
void
evidence_begin_round(void)
{
	if (area == NULL)
		return;
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	for (int i = 0; i < area->list.ndevices; i++)
	{
		KnownDevice *device = &area->list.devices[i];

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

	if (area == NULL)
		return;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	device = known_device(&area->list, tablespace);
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
	device = known_device(&area->list, tablespace);
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

	return area != NULL && recall(tablespace, &device) ? device.doubts : 0;
}

/* Return the entry of this database in a tablespace, or NULL.  Under AREA_LOCK. */
static ReadFiles *
find_read(Oid tablespace)
{
	for (int i = 0; i < MOST_READ; i++)
	{
		if (area->read[i].database == MyDatabaseId && area->read[i].tablespace == tablespace)
			return &area->read[i];
	}
	return NULL;
}

/* Note that all files of this database in a tablespace with lower numbers are whole. */
void
evidence_note_read(Oid tablespace, RelFileNumber below, uint32 doubts)
{
	ReadFiles  *entry;

	if (area == NULL)
		return;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_EXCLUSIVE);
	entry = find_read(tablespace);
	/* another pass may have come further */
	if (entry != NULL && entry->doubts == doubts)
		below = Max(below, entry->below);
	if (entry == NULL)
	{
		entry = &area->read[area->next_read];
		area->next_read = (area->next_read + 1) % MOST_READ;
	}
	entry->database = MyDatabaseId;
	entry->tablespace = tablespace;
	entry->doubts = doubts;
	entry->below = below;
	LWLockRelease(evidence_lock(AREA_LOCK));
}

/* Return whether the janitor has to read a file: it is unknown, and was not read since. */
bool
evidence_is_to_read(Oid tablespace, RelFileNumber relfilenumber)
{
	const ReadFiles *entry;
	bool		was_read = false;

	if (!RelFileNumberIsValid(relfilenumber) ||
		evidence_of_file(tablespace, relfilenumber) != EVIDENCE_UNKNOWN || area == NULL)
		return false;
	LWLockAcquire(evidence_lock(AREA_LOCK), LW_SHARED);
	entry = find_read(tablespace);
	if (entry != NULL && relfilenumber < entry->below)
	{
		const KnownDevice *device = known_device(&area->list, tablespace);

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
	LWLock	   *lock = lock_device(tablespace, true);
	KnownDevice device;
	DeviceLook	look;

	if (!recall(tablespace, &device) || !device.is_in_round || device.is_refuted ||
		!device.is_here || device.is_pending)
	{
		note_round(tablespace);
		LWLockRelease(lock);
		return;
	}

	/*
	 * From now on the server writes to a device that has everything.  What
	 * was in its place before is left behind.
	 */
	device_look(tablespace, &look);
	if (!has_expected(&device, &look))
	{
		LWLockRelease(lock);
		return;
	}
	if (note_beat(&device, &look))
	{
		LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
		publish(&device);
		area_save();
		LWLockRelease(evidence_lock(CHANGE_LOCK));
		(void) mark(&device, &look, &now);	/* step: settle */
	}
	memset(&device.lost, 0, sizeof(Horizon));
	memset(&device.lost_unlogged, 0, sizeof(Horizon));
	device.unknown_below = 0;
	LWLockAcquire(evidence_lock(CHANGE_LOCK), LW_EXCLUSIVE);
	publish(&device);
	area->nlosses++;
	ereport(LOG,
			(errmsg("all indexes in tablespace %u are whole; from now on its device is known",
					tablespace)));
	area_save();
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
	if (area == NULL)
		return;
	foreach_oid(tablespace, evidence_doubtful())
	{
		settle_device(tablespace);
	}
}
