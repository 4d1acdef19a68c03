/*-------------------------------------------------------------------------
 *
 * evidence.c
 *	  What this server knows of the device below a tablespace.
 *
 * Recovery makes files where they are missing, with zeros before the images of pages
 * that it has, so a file's contents do not tell whether it is whole.  A marker on the
 * device does, with what this server expects there, in a file of its data directory.
 * src/README, "Evidence for a device", has the verdicts and why they are right.
 *
 * The first look is the postmaster's, when it makes shared memory, before recovery.
 * Later looks see what was mounted, created or dropped since.
 *
 * A verdict is of files below a relfilenumber.  Those numbers come from the counter of
 * OIDs, which grows: what has a higher number was made later.  (After four billion of
 * them, when it begins again, files made later are taken to be from before.)
 *
 * Locks: one LWLock, for looks and changes; the planner asks without it whether
 * anything is lost.  The postmaster takes none: it has no children then.
 *
 * proof/resume.pml is a model of this protocol.
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
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "device_marker.h"
#include "evidence.h"
#include "relation_facts.h"
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
	REASON_RECOVERED_EMPTY,		/* from here on: lost */
	REASON_RECOVERED_WITHOUT,
	REASON_OTHER,
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
	[REASON_RECOVERED_WITHOUT] = "Recovery began while the marker file in the tablespace's location was missing.",
	[REASON_OTHER] = "The tablespace's location has the marker of another device.",
};

/* A tablespace.  Written under the lock, but for the postmaster's look. */
typedef struct KnownDevice
{
	Oid			tablespace;
	char		id[DEVICE_ID_SIZE]; /* "": it could not be marked */
	FileIdentity directory;		/* that of the server's version; inode 0:
								 * there was none */
	char		location[MAXPGPATH];

	/* files with a lower number: */
	RelFileNumber lost_below;	/* are lost; 0 = none is */
	RelFileNumber unknown_below;	/* are not known to be whole; 0 = all are */
	RelFileNumber vouched_from; /* were or were not whole, in the past */

	/*
	 * of a loss on a standby: where the counter was, its checkpoint tells to
	 * OIDS_AHEAD.  A file that a row of pg_class from this transaction on
	 * names may be from after the loss; 0 = of a primary
	 */
	TransactionId lost_xid;
	EvidenceReason reason;		/* of the last verdict that was not "same" */
	RelFileNumber lost_before;	/* what lost_below was, before a recovery that
								 * may not have needed any file there */
	XLogRecPtr	lost_checkpoint;	/* from which that recovery began, if
									 * there was no directory; else 0 */

	/* not on record */
	bool		is_retractable; /* that recovery has not ended, or nobody has
								 * looked since */
	bool		is_here;		/* at the last look the marker and the
								 * directory were those above */
	bool		is_foreign;		/* another server uses the location */
	bool		is_away;		/* there was no directory, or an empty one */
	int			mark_errno;		/* of the last attempt to write the marker */
	bool		told;			/* the loss is in the log */
	bool		is_in_round;	/* the janitor's round looks at its files, */
	bool		is_refuted;		/* and not all are whole */
} KnownDevice;

/* What the state file has, and shared memory.  Written as the devices. */
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

typedef struct EvidenceArea
{
	pg_atomic_uint32 losses;	/* 0 = no file is lost; changes with each loss */
	uint32		nlosses;		/* since the start */
	RelFileNumber made_before;	/* files from before the server has started */
	int			janitor;		/* number of its process; -1 = none */
	bool		is_saved;		/* the state file has what is here */
	DeviceList	list;
} EvidenceArea;

/* What a look at a device has to know besides */
typedef struct Circumstances
{
	bool		at_start;		/* the postmaster's look */
	bool		recovers;		/* recovery is about to begin, or under way */
	bool		is_trusted;		/* the state file is of this server */
	bool		is_watched;		/* no server has run without the library since */
	XLogRecPtr	checkpoint;		/* from which recovery is about to begin */
	RelFileNumber below;		/* files from before this look */
	TransactionId standby_xid;	/* the next transaction; 0: on a primary */
} Circumstances;

static EvidenceArea *area = NULL;
static bool is_preloaded = false;

/* in the postmaster: it has looked before, and so has seen all since */
static bool has_looked = false;

/* in a session */
static bool tablespaces_changed = false;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
static object_access_hook_type prev_object_access_hook = NULL;

static LWLock *
area_lock(void)
{
	return &GetNamedLWLockTranche(AREA_NAME)->lock;
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

/* ---- the state file ---- */

/* Write the state file; false with errno. */
static bool
list_save(const DeviceList *list)
{
	StringInfoData contents;
	ServerIdentity us;
	bool		result;

	server_identity(&us);
	initStringInfo(&contents);
	appendStringInfo(&contents, "directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\nhost %s\npath %s\n",
					 us.directory.inode, us.directory.birth, us.directory.device, us.host, us.path);
	appendStringInfo(&contents, "run %s\ncontrol %u " INT64_FORMAT " " UINT64_FORMAT "\n",
					 list->run, list->control_crc, list->control_time, list->control_checkpoint);
	for (int i = 0; i < list->ndevices; i++)
	{
		const KnownDevice *device = &list->devices[i];
		const FileIdentity *directory = &device->directory;

		appendStringInfo(&contents, "tablespace %u " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT,
						 device->tablespace, directory->inode, directory->birth, directory->device);
		appendStringInfo(&contents, " %u %u %u %u %d", device->lost_below, device->unknown_below,
						 device->vouched_from, device->lost_xid, device->reason);
		appendStringInfo(&contents, " %u " UINT64_FORMAT, device->lost_before, device->lost_checkpoint);
		/* "-" in place of nothing, which sscanf() does not read */
		appendStringInfo(&contents, " %s", device->id[0] ? device->id : "-");
		appendStringInfo(&contents, " %s\n", device->location[0] ? device->location : "-");
	}
	appendStringInfoString(&contents, "end\n");
	result = own_file_write(STATE_FILE, STATE_HEAD, contents.data);
	pfree(contents.data);
	return result;
}

/* Read the state file; false if there is none of this server, in this data directory. */
static bool
list_load(DeviceList *list)
{
	bool		is_itself;
	const char *contents = own_file_read(STATE_FILE, STATE_HEAD, &is_itself);
	ServerIdentity owner = {0};
	ServerIdentity us;
	int			length = 0;

	list->ndevices = 0;
	if (contents == NULL || !is_itself ||
		sscanf(contents, "directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\nhost %63[^\n]\npath %1023[^\n]\n"
			   "run %32[0-9a-f]\ncontrol %u " INT64_FORMAT " " UINT64_FORMAT "\n%n",
			   &owner.directory.inode, &owner.directory.birth, &owner.directory.device,
			   owner.host, owner.path, list->run, &list->control_crc, &list->control_time, &list->control_checkpoint, &length) != 9)
		return false;
	server_identity(&us);
	if (!file_identity_equals(&owner.directory, &us.directory) || !server_is_us(&owner))
		return false;
	for (contents += length; strcmp(contents, "end\n") != 0; contents += length)
	{
		KnownDevice *device = &list->devices[list->ndevices];
		FileIdentity *directory = &device->directory;
		int			reason;

		if (list->ndevices == list->max_devices)
			return false;
		memset(device, 0, sizeof(*device));
		length = 0;
		if (sscanf(contents, "tablespace %u " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT
				   " %u %u %u %u %d %u " UINT64_FORMAT " %32[0-9a-f-] %1023[^\n]%n", &device->tablespace,
				   &directory->inode, &directory->birth, &directory->device,
				   &device->lost_below, &device->unknown_below, &device->vouched_from,
				   &device->lost_xid, &reason, &device->lost_before, &device->lost_checkpoint,
				   device->id, device->location, &length) != 13)
			return false;
		if (contents[length] != '\n')
			return false;
		if (strcmp(device->id, "-") == 0)
			device->id[0] = '\0';
		if (strcmp(device->location, "-") == 0)
			device->location[0] = '\0';
		if (reason < 0 || reason >= lengthof(reasons))
			return false;
		device->reason = reason;
		list->ndevices++;
		length++;
	}
	return true;
}

/* ---- verdicts ---- */

/*
 * Decide by a look what is to be thought of files from before it, and why.  The table in
 * src/README has the cases in this order.
 */
static Evidence
verdict_on(const KnownDevice *device, bool is_known, const DeviceLook *look,
		   const Circumstances *now, EvidenceReason *reason)
{
	bool		is_expected = device->id[0] != '\0';

	*reason = REASON_NONE;

	/* recovery makes again whatever it needs there */
	if (now->at_start && now->recovers && look->is_empty)
	{
		*reason = REASON_RECOVERED_EMPTY;
		return EVIDENCE_LOST;
	}
	/* nothing can be written there either, and it may be mounted late */
	if (look->directory.inode == 0 && look->marker != MARKER_UNREADABLE)
		return EVIDENCE_SAME;
	if (!is_known)
	{
		if (device->tablespace >= area->made_before && look->marker != MARKER_FOREIGN)
			return EVIDENCE_SAME;
		*reason = now->is_trusted ? REASON_FIRST_SEEN : REASON_COPIED_SERVER;
		return EVIDENCE_UNKNOWN;
	}
	if (look->marker == MARKER_UNREADABLE)
		*reason = REASON_UNREADABLE;
	else if (look->marker == MARKER_NONE && is_expected && now->recovers)
		*reason = REASON_RECOVERED_WITHOUT;
	else if (look->marker == MARKER_NONE || !is_expected)
		*reason = REASON_NO_MARKER;
	else if (strcmp(look->id, device->id) != 0)
		*reason = look->is_in_place ? REASON_COPIED : REASON_OTHER;
	else if (look->marker != MARKER_OURS)
		*reason = REASON_COPIED;
	else if (device->directory.inode != 0 &&
			 !file_identity_equals(&look->directory, &device->directory))
		*reason = REASON_COPIED;
	else if (!now->is_watched)
		*reason = REASON_UNWATCHED;
	else
		return EVIDENCE_SAME;
	return *reason >= REASON_RECOVERED_EMPTY ? EVIDENCE_LOST : EVIDENCE_UNKNOWN;
}

/* Mark the device, unless it is marked, or another server's.  Return whether its number is new. */
static bool
mark(KnownDevice *device, DeviceLook *look)
{
	if (look->directory.inode == 0)
		return false;
	if (look->marker == MARKER_FOREIGN || look->marker == MARKER_UNREADABLE)
		return false;
	if (look->marker == MARKER_OURS && strcmp(look->id, device->id) == 0)
		return false;
	device->mark_errno = 0;
	if (!device_mark(device->tablespace, look))
	{
		device->mark_errno = errno;
		return false;
	}
	memcpy(device->id, look->id, sizeof(device->id));
	if (!look->is_in_place)
		device_location(device->tablespace, device->location);
	return true;
}

/* Look at a device, and draw the conclusions.  Return whether the state file has to be written. */
static bool
look_at_device(KnownDevice *device, bool is_known, const Circumstances *now)
{
	DeviceLook	look;
	Evidence	verdict;
	EvidenceReason reason;
	bool		changed = !is_known;

	device_look(device->tablespace, &look);
	if (device->is_retractable && !now->recovers)
	{
		/* what it needs there, it has made */
		if (look.is_empty)
			device->lost_below = device->lost_before;
		device->is_retractable = false;
		changed = true;
	}
	if (now->at_start && now->recovers && device->lost_checkpoint != InvalidXLogRecPtr &&
		device->lost_checkpoint == now->checkpoint &&
		look.marker == MARKER_OURS && strcmp(look.id, device->id) == 0)
	{
		/*
		 * a recovery without the device has not come to a checkpoint; all of
		 * it is done again, on the device
		 */
		device->lost_below = device->lost_before;
		device->lost_checkpoint = InvalidXLogRecPtr;
		changed = true;
	}
	verdict = verdict_on(device, is_known, &look, now, &reason);
	if (verdict != EVIDENCE_SAME)
	{
		device->is_in_round = false;
		if (verdict == EVIDENCE_LOST)
		{
			device->is_retractable = reason == REASON_RECOVERED_EMPTY;

			/*
			 * at the second start in a row, what was lost before the first
			 * one
			 */
			if (device->lost_checkpoint == InvalidXLogRecPtr ||
				device->lost_checkpoint != now->checkpoint)
				device->lost_before = device->lost_below;
			device->lost_checkpoint = InvalidXLogRecPtr;
			if (now->at_start && look.directory.inode == 0)
				device->lost_checkpoint = now->checkpoint;
			device->lost_below = Max(device->lost_below, now->below);
			device->lost_xid = now->standby_xid;
			device->told = false;
			area->nlosses++;
		}
		else
			device->unknown_below = Max(device->unknown_below, now->below);
		device->vouched_from = Max(device->vouched_from, now->below);
		device->reason = reason;
		changed = true;
	}
	device->is_foreign = look.marker == MARKER_FOREIGN;
	device->is_away = look.directory.inode == 0;
	if (mark(device, &look))
		changed = true;
	if (look.directory.inode == 0 && verdict == EVIDENCE_LOST)
		memset(&device->directory, 0, sizeof(FileIdentity));
	else if (look.directory.inode != 0 && !file_identity_equals(&look.directory, &device->directory))
	{
		device->directory = look.directory;
		changed = true;
	}
	device->is_here = look.directory.inode != 0 && look.marker == MARKER_OURS &&
		strcmp(look.id, device->id) == 0;
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

/* Forget tablespaces that were dropped, and remove their markers; false if there are none. */
static bool
forget_dropped(DeviceList *list)
{
	int			kept = 0;
	bool		result;

	for (int i = 0; i < list->ndevices; i++)
	{
		if (tablespace_exists(list->devices[i].tablespace))
			list->devices[kept++] = list->devices[i];
		else if (list->devices[i].location[0] != '\0')
			device_unmark(list->devices[i].location, list->devices[i].id);
	}
	result = kept < list->ndevices;
	list->ndevices = kept;
	return result;
}

/* After a change: count, and write the state file. */
static void
area_save(void)
{
	bool		has_lost = false;

	for (int i = 0; i < area->list.ndevices; i++)
	{
		if (area->list.devices[i].lost_below != 0)
			has_lost = true;
	}
	pg_atomic_write_u32(&area->losses, has_lost ? area->nlosses + 1 : 0);
	area->is_saved = list_save(&area->list);
	if (!area->is_saved)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", STATE_FILE)));
}

/* ---- the postmaster ---- */

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

/* Look before recovery does.  Files only, and no lock: the server has no other process. */
static void
look_before_recovery(void)
{
	bool		crc_ok;
	ControlFileData *control = get_controlfile(DataDir, &crc_ok);
	DeviceList *old = palloc0(list_size(area->list.max_devices));
	bool		is_restored = file_exists("backup_label") || file_exists("tablespace_map");
	Circumstances now = {.at_start = true};

	/* step: look-before-recovery */

	/*
	 * What was created since the redo position has a higher number, and the
	 * WAL has all of it.  With wal_level = minimal it may not: then the end
	 * of recovery is waited for.
	 */
	now.below = control->wal_level >= WAL_LEVEL_REPLICA ? control->checkPointCopy.nextOid : ALL_FILES;
	if (file_exists("standby.signal") || file_exists("recovery.signal"))
		now.standby_xid = XidFromFullTransactionId(control->checkPointCopy.nextXid);
	now.recovers = control->state != DB_SHUTDOWNED || is_restored || now.standby_xid != 0;
	now.checkpoint = control->checkPoint;
	old->max_devices = area->list.max_devices;
	now.is_trusted = list_load(old);
	if (is_restored || !crc_ok)
		now.is_trusted = false;
	if (now.is_trusted)
		now.is_watched = has_looked || is_running(old->run) ||
			(old->control_time != 0 && old->control_crc == control->crc &&
			 old->control_time == control->time && old->control_checkpoint == control->checkPoint);
	else
		old->ndevices = 0;
	(void) forget_dropped(old);

	area->made_before = now.below;
	foreach_oid(tablespace, list_tablespaces())
	{
		KnownDevice *known = known_device(old, tablespace);
		KnownDevice *device = add_device(&area->list, tablespace);

		if (device == NULL)
			break;
		if (known != NULL)
			*device = *known;
		(void) look_at_device(device, known != NULL, &now);
	}
	device_id_make(area->list.run);
	area_save();
	has_looked = true;
	pfree(old);
}

/* At the end of the postmaster: note how it leaves pg_control, which any start changes. */
static void
note_end(int code, Datum arg)
{
	bool		crc_ok;
	ControlFileData *control;
	DeviceList *list;

	/* a restart after a crash; or that of the postmaster */
	if (code != 0 || !area->is_saved)
		return;
	/* a process that was killed may have left the shared memory half changed */
	list = palloc0(list_size(area->list.max_devices));
	list->max_devices = area->list.max_devices;
	control = get_controlfile(DataDir, &crc_ok);
	if (!list_load(list))
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
	RequestNamedLWLockTranche(AREA_NAME, 1);
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
	LWLockRelease(AddinShmemInitLock);
	if (found)
		return;
	memset(area, 0, area_size(max_devices));
	pg_atomic_init_u32(&area->losses, 0);
	area->janitor = -1;
	area->list.max_devices = max_devices;
	if (!IsPostmasterEnvironment || IsBinaryUpgrade)
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
	}
	PG_END_TRY();
	on_shmem_exit(note_end, (Datum) 0);
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

/* Look at one tablespace, or with InvalidOid at all that there are. */
static void
look_again(Oid only)
{
	Circumstances now = {.recovers = RecoveryInProgress(),.is_trusted = true,.is_watched = true};
	bool		changed = false;
	List	   *tablespaces;

	if (OidIsValid(only))
		tablespaces = list_make1_oid(only);
	else
		tablespaces = list_tablespaces();
	LWLockAcquire(area_lock(), LW_EXCLUSIVE);
	now.below = next_number();
	if (now.recovers)
		now.standby_xid = ReadNextTransactionId();
	if (!OidIsValid(only))
		changed = forget_dropped(&area->list);
	if (!now.recovers)
		(void) narrow(&area->made_before, now.below);
	foreach_oid(tablespace, tablespaces)
	{
		KnownDevice *device = known_device(&area->list, tablespace);
		bool		is_known = device != NULL;

		if (!tablespace_exists(tablespace))
			continue;
		if (!is_known)
			device = add_device(&area->list, tablespace);
		if (device == NULL)
			break;
		if (!now.recovers)
		{
			if (narrow(&device->lost_below, now.below))
				changed = true;
			if (narrow(&device->unknown_below, now.below))
				changed = true;
			if (narrow(&device->vouched_from, now.below))
				changed = true;
		}
		if (look_at_device(device, is_known, &now))
			changed = true;
	}
	if (changed || !area->is_saved)
		area_save();
	LWLockRelease(area_lock());
	list_free(tablespaces);
}

/* Look at a tablespace, and get its entry; false if it has none. */
static bool
look_for(Oid tablespace, KnownDevice *device)
{
	KnownDevice *found;

	if (area == NULL || area->list.max_devices == 0)
		return false;
	look_again(tablespace);
	LWLockAcquire(area_lock(), LW_SHARED);
	found = known_device(&area->list, tablespace);
	if (found != NULL)
		*device = *found;
	LWLockRelease(area_lock());
	return found != NULL;
}

/* the data directory is there, or there is no server */
static bool
is_in_data_directory(Oid tablespace)
{
	return tablespace == DEFAULTTABLESPACE_OID || tablespace == GLOBALTABLESPACE_OID;
}

/* Return whether a file is lost, by its number, and the row of pg_class that names it, or NULL. */
static bool
is_lost(const KnownDevice *device, RelFileNumber relfilenumber, HeapTuple row)
{
	if (relfilenumber >= device->lost_below)
		return false;
	if (row == NULL || device->lost_xid == InvalidTransactionId ||
		relfilenumber < device->lost_below - Min(device->lost_below, OIDS_AHEAD))
		return true;
	return TransactionIdPrecedes(HeapTupleHeaderGetXmin(row->t_data), device->lost_xid);
}

/* The same by its number alone. */
static bool
file_is_lost(const KnownDevice *device, RelFileNumber relfilenumber)
{
	HeapTuple	row = NULL;
	bool		result;

	if (device->lost_xid != InvalidTransactionId)
	{
		Oid			relid = RelidByRelfilenumber(tablespace_in_catalog(device->tablespace), relfilenumber);

		row = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	}
	result = is_lost(device, relfilenumber, row);
	if (HeapTupleIsValid(row))
		ReleaseSysCache(row);
	return result;
}

/*
 * Return what is to be thought of the tablespace as a whole, looking at its device now.
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
	if (device.lost_below != 0)
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
	if (relfilenumber < device.lost_below && file_is_lost(&device, relfilenumber))
		return EVIDENCE_LOST;
	if (relfilenumber < device.lost_below)
		return EVIDENCE_UNKNOWN;
	return relfilenumber < device.unknown_below || !device.is_here ? EVIDENCE_UNKNOWN : EVIDENCE_SAME;
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
	device_look(tablespace, &look);
	if (look.directory.inode == 0)
		return true;
	if (look.marker == MARKER_NONE || look.marker == MARKER_COPY)
		(void) device_mark(tablespace, &look);
	return look.marker == MARKER_OURS;
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
	return !device.is_here && !device.is_away;
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
	if (device.lost_below == 0 && device.is_away)
		return "The tablespace's directory is missing; its file system may not be mounted.";
	if (device.mark_errno != 0)
	{
		errno = device.mark_errno;
		return psprintf("The marker file could not be written to the tablespace's location: %m.");
	}
	if (look.marker == MARKER_UNREADABLE)
		return reasons[REASON_UNREADABLE];
	if (device.lost_below == 0 && device.unknown_below == 0 && device.is_here)
		return NULL;
	return reasons[device.reason];
}

/* Return a number that changes when files are lost, 0 if none is: one atomic read. */
uint32
evidence_losses(void)
{
	return area == NULL ? 0 : pg_atomic_read_u32(&area->losses);
}

/*
 * Return whether lost files of this tablespace may be emptied: they are on its device, and
 * the verdict is final.
 */
bool
evidence_may_empty(Oid tablespace)
{
	KnownDevice device;

	return look_for(tablespace, &device) && device.is_here && !device.is_retractable;
}

/*
 * Return whether the file of a row of pg_class is known to be lost, without looking at the
 * device: one atomic read where nothing is.
 */
bool
evidence_knows_lost(HeapTuple row)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
	KnownDevice *device;
	bool		result;

	if (evidence_losses() == 0)
		return false;
	if (!RelFileNumberIsValid(form->relfilenode) || form->relpersistence != RELPERSISTENCE_PERMANENT)
		return false;
	LWLockAcquire(area_lock(), LW_SHARED);
	device = known_device(&area->list, tablespace_from_catalog(form->reltablespace));
	result = device != NULL && is_lost(device, form->relfilenode, row);
	LWLockRelease(area_lock());
	return result;
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
	if (event == XACT_EVENT_COMMIT && tablespaces_changed && area != NULL && area->janitor >= 0)
		SetLatch(&GetPGProcByNumber(area->janitor)->procLatch);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		tablespaces_changed = false;
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

/* ---- the janitor ---- */

static void
stop_watching(int code, Datum arg)
{
	/* a postmaster that is gone has not shut down */
	if (PostmasterIsAlive())
		(void) unlink(RUNNING_FILE);
	area->janitor = -1;
}

/* Begin to watch: from here on a crash can be told, because the next recovery removes a file. */
void
evidence_watch(void)
{
	if (area == NULL || area->list.max_devices == 0)
		return;
	area->janitor = MyProcNumber;
	before_shmem_exit(stop_watching, (Datum) 0);
	if (!area->is_saved)
		return;
	if (!own_file_write(RUNNING_FILE, RUNNING_HEAD, area->list.run))
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", RUNNING_FILE)));
}

/* Look at all devices, and tell of those that are lost. */
void
evidence_look(void)
{
	if (area == NULL || area->list.max_devices == 0)
		return;
	look_again(InvalidOid);
	LWLockAcquire(area_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < area->list.ndevices; i++)
	{
		KnownDevice *device = &area->list.devices[i];

		if (device->lost_below == 0 || device->told || device->is_retractable)
			continue;
		device->told = true;
		ereport(LOG,
				(errmsg("files of tablespace %u are lost", device->tablespace),
				 errdetail_internal("%s", reasons[device->reason])));
	}
	LWLockRelease(area_lock());
}

/* Return the tablespaces of which something is lost, or unknown. */
List *
evidence_doubtful(void)
{
	List	   *result = NIL;

	if (area == NULL)
		return NIL;
	LWLockAcquire(area_lock(), LW_SHARED);
	for (int i = 0; i < area->list.ndevices; i++)
	{
		KnownDevice *device = &area->list.devices[i];

		if (device->lost_below != 0 || device->unknown_below != 0)
			result = lappend_oid(result, device->tablespace);
	}
	LWLockRelease(area_lock());
	return result;
}

/* Begin a round through all databases, after which what nobody has refuted is settled. */
void
evidence_begin_round(void)
{
	if (area == NULL)
		return;
	LWLockAcquire(area_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < area->list.ndevices; i++)
	{
		KnownDevice *device = &area->list.devices[i];

		device->is_refuted = false;
		device->is_in_round = device->lost_below != 0 || device->unknown_below != 0;
	}
	LWLockRelease(area_lock());
}

/* In a worker of the round: this database has files there that are lost. */
void
evidence_refute(Oid tablespace)
{
	KnownDevice *device;

	if (area == NULL)
		return;
	LWLockAcquire(area_lock(), LW_EXCLUSIVE);
	device = known_device(&area->list, tablespace);
	if (device != NULL)
		device->is_refuted = true;
	LWLockRelease(area_lock());
}

/*
 * The round has found all files from before whole, or replaced, in every database: there
 * is nothing more to be known of them.
 */
void
evidence_settle(void)
{
	bool		changed = false;

	if (area == NULL)
		return;
	LWLockAcquire(area_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < area->list.ndevices; i++)
	{
		KnownDevice *device = &area->list.devices[i];

		if (!device->is_in_round || device->is_refuted || !device->is_here || device->is_retractable)
			continue;
		device->lost_below = 0;
		device->unknown_below = 0;
		changed = true;
		ereport(LOG,
				(errmsg("all indexes in tablespace %u are whole; from now on its device is known", device->tablespace)));
	}
	if (changed)
		area_save();
	LWLockRelease(area_lock());
}
