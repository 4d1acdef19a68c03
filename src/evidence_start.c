/*-------------------------------------------------------------------------
 *
 * evidence_start.c
 *	  The look at all devices before recovery begins, and the note when the server ends.
 *
 * The first look is the postmaster's, when it makes shared memory, before recovery; so it is after
 * each crash.
 *
 * proof/resume.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_control.h"
#include "catalog/pg_database.h"
#include "catalog/pg_tablespace.h"
#include "catalog/storage.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "compat.h"
#include "evidence_private.h"
#include "running_jobs.h"

/* Tablespaces made while the server runs, beyond the tablespaces at its start */
#define SPARE_ENTRIES	64

bool		evidence_is_preloaded = false;

/* in the postmaster: it has looked before, and so has seen all since */
static bool has_looked = false;

/* in a session: a tablespace was made or dropped, or has its first file */
static bool tablespaces_changed = false;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
static object_access_hook_type prev_object_access_hook = NULL;

static Size
area_size(int max_devices)
{
	return offsetof(EvidenceArea, list) + evidence_list_size(max_devices);
}

static Size
locks_size(int max_devices)
{
	return max_devices * sizeof(DeviceLock);
}

/* Return the tablespaces that were dropped, and remove their markers. */
static List *
unmark_dropped(const DeviceList *list)
{
	List	   *result = NIL;

	for (int i = 0; i < list->ndevices; i++)
	{
		const KnownDevice *device = &list->devices[i];

		if (evidence_tablespace_exists(device->tablespace))
			continue;
		result = lappend_oid(result, device->tablespace);
		if (device->location[0] != '\0')
			device_unmark(device->location, device->id);
	}
	return result;
}

/*
 * Forget the devices as another server has known them.  In a backup or a copy of it are old files
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

/* Return the tablespaces that pg_tblspc names, first all that are on the list. */
static List *
known_first(DeviceList *list)
{
	List	   *known = NIL;
	List	   *others = NIL;

	foreach_oid(tablespace, evidence_list_tablespaces())
	{
		if (evidence_find_device(list, tablespace) != NULL)
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
	/* this number was looked up before the redo position was determined */
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
	DeviceList *old = evidence_list_load(&is_ours);
	DeviceLook *looks = palloc0_array(DeviceLook, Max(evidence_area->list.max_devices, 1));
	int			nlooks = 0;
	bool		is_marked = false;
	bool		has_looked_before = has_looked;
	bool		is_standby = file_exists("standby.signal") || file_exists("recovery.signal");
	Circumstances now = {.at_start = true,.horizon = horizon_of_checkpoint(control)};

	/* step: look-before-recovery */
	has_looked = false;			/* until this is on record */

	/*
	 * A file that was created since the redo position has a higher number,
	 * and the WAL has all of it.  With wal_level = minimal it may not: then
	 * the end of recovery is waited for.
	 */
	now.below = control->wal_level >= WAL_LEVEL_REPLICA ? now.horizon.below : ALL_FILES;
	now.is_restored = file_exists("backup_label") || file_exists("tablespace_map");
	now.recovers = control->state != DB_SHUTDOWNED || now.is_restored || is_standby;
	now.has_crashed = control->state != DB_SHUTDOWNED &&
		control->state != DB_SHUTDOWNED_IN_RECOVERY;
	/* after a clean stop, the watch does that: the device may hang */
	now.beats = now.recovers;
	now.checkpoint = control->checkPoint;
	now.is_standby = is_standby;
	if (old == NULL)
	{
		if (file_exists(STATE_FILE))
			ereport(LOG,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("invalid data in file \"%s\"", STATE_FILE),
					 errdetail("Losses that were known are forgotten; all pages of the tablespaces are read again.")));
		old = evidence_list_make(0);
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
		evidence_remove_devices(old, unmark_dropped(old));

	evidence_area->list.counter = old->counter;
	/* after a crash it may be behind, and the first look compares it */
	if (control->state == DB_SHUTDOWNED && now.horizon.below < old->counter)
		evidence_area->list.counter = ALL_FILES;
	if (counter_went_back(&evidence_area->list))
		evidence_trust_no_number(&now);
	evidence_area->made_before = now.below;
	/* known devices come first: places are few after a crash */
	foreach_oid(tablespace, known_first(old))
	{
		const KnownDevice *known = evidence_find_device(old, tablespace);
		KnownDevice *device = evidence_add_device(&evidence_area->list, tablespace);

		if (device == NULL)
			break;
		if (known != NULL)
			*device = *known;
		device_look(device->tablespace, &looks[nlooks]);
		(void) evidence_conclude(device, known != NULL && now.is_trusted, &looks[nlooks], &now);
		nlooks++;
	}
	device_id_make(evidence_area->list.run);
	running_jobs_begin(now.is_trusted && now.is_watched && !is_standby ? NULL :
					   "The data directory was copied, restored or rewound, or has run as a standby or without the library.",
					   control->state != DB_SHUTDOWNED, evidence_area->list.run);
	evidence_save();
	for (int i = 0; i < nlooks; i++)
	{
		if (evidence_mark(&evidence_area->list.devices[i], &looks[i], &now))
			is_marked = true;
	}
	if (is_marked)
		evidence_save();
	has_looked = evidence_area->is_saved;
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
	if (code != 0 || !evidence_area->is_saved)
		return;
	/* a process that was killed may have left the shared memory half changed */
	control = get_controlfile(DataDir, &crc_ok);
	list = evidence_list_load(&is_ours);
	if (list == NULL || !is_ours)
		return;
	if (!crc_ok)
		return;
	list->control_crc = control->crc;
	list->control_time = control->time;
	list->control_checkpoint = control->checkPoint;
	(void) evidence_list_save(list);
}

/* Tablespaces at the start, and some more; a restart after a crash has the same memory. */
static int	max_devices = 0;

static void
request_evidence_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	max_devices = list_length(evidence_list_tablespaces()) + SPARE_ENTRIES;
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
	evidence_area = ShmemInitStruct(AREA_NAME, area_size(max_devices), &found);
	evidence_device_locks = ShmemInitStruct(AREA_NAME " locks", locks_size(max_devices), &found);
	LWLockRelease(AddinShmemInitLock);
	if (found)
		return;
	memset(evidence_area, 0, area_size(max_devices));
	memset(evidence_device_locks, 0, locks_size(max_devices));
	pg_atomic_init_u32(&evidence_area->losses, 0);
	pg_atomic_init_u32(&evidence_area->again_wanted, 0);
	pg_atomic_init_u64(&evidence_area->again_at, 0);
	evidence_area->janitor = -1;
	pg_atomic_init_u32(&evidence_area->look_wanted, 0);
	evidence_area->list.max_devices = max_devices;
	/* single-user mode recovers, too, as pg_rewind has it do */
	if (IsBinaryUpgrade || IsBootstrapProcessingMode())
	{
		evidence_area->list.max_devices = 0;
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
		evidence_area->list.ndevices = 0;
		evidence_area->list.max_devices = 0;
		running_jobs_begin("The server could not look at its devices at its start; the server log says why.",
						   true, "");
	}
	PG_END_TRY();
	on_shmem_exit(note_end, (Datum) 0);
	/* there is no launcher that does it */
	if (!IsPostmasterEnvironment)
		running_jobs_tell_forgotten();
}

/* The janitor is to look when a tablespace has been created or dropped, or a database copied. */
static void
note_tablespace(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);
	if (classId == TableSpaceRelationId && (access == OAT_POST_CREATE || access == OAT_DROP))
		tablespaces_changed = true;
	/* its files can be the first ones there */
	if (classId == DatabaseRelationId && access != OAT_DROP)
		tablespaces_changed = true;
}

/* The janitor is to look when a file has come into a tablespace that was empty: recovery would make a ruin of it. */
void
evidence_note_file(Oid tablespace)
{
	KnownDevice device;

	if (evidence_area == NULL || !evidence_recall(tablespace, &device))
		return;
	if (device.was_empty)
		tablespaces_changed = true;
}

/* The same of all files that the transaction has made: an abort would remove them. */
static void
note_files(void)
{
	RelFileLocator *files;
	int			nfiles = smgrGetPendingDeletes(false, &files);

	for (int i = 0; i < nfiles; i++)
	{
		if (i == 0 || files[i].spcOid != files[i - 1].spcOid)
			evidence_note_file(files[i].spcOid);
	}
}

static void
evidence_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT)
		note_files();
	if (event == XACT_EVENT_COMMIT && tablespaces_changed && evidence_area != NULL)
		evidence_wake_launcher(true);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		tablespaces_changed = false;
}

/* Called by _PG_init(). */
void
evidence_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	evidence_is_preloaded = true;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_evidence_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
	prev_object_access_hook = object_access_hook;
	object_access_hook = note_tablespace;
	RegisterXactCallback(evidence_xact_callback, NULL);
}
