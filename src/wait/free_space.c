/*-------------------------------------------------------------------------
 *
 * free_space.c
 *	  The space that must stay free on a file system, and the rest of a copy that sees less.
 *
 * A full file system stops everything that writes to it, and a full pg_wal the server.  So a
 * copy looks before each MB at the file systems of pg_wal and of its target, which others
 * fill, too.  It rests as long as its next bytes would leave less than the limit.
 *
 * The limit is index_mover.min_free_space.  But a move away from the file system of pg_wal
 * frees that: there the limit is a third of the free space when the job began, if that is
 * less.  Else a disk that is nearly full could not be emptied, since each move writes WAL
 * before it removes a file.
 *
 * WAL needs space only where no segment is there for it.  A checkpoint renames most of the
 * segments that are not needed any more: pg_wal does not shrink, and its next WAL goes there.
 * So a rest for pg_wal asks for a checkpoint, spread as any, if old WAL can go by one; and
 * says who keeps the WAL otherwise.
 *
 * The rest is limited by index_mover.lock_wait, not counting the time until the end of the
 * first checkpoint that can help.  Where one rest was in vain, the next copies of this
 * process rest for such a checkpoint only, until there is free space again.
 *
 * A copy that only has to swap its files must go on, since that is what gives space.  The
 * caller says so by SpaceWatch.limit_part: which part of the limit counts for its next bytes.
 *
 * Assumption: all that write do not need more than the limit between two looks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogarchive.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"
#include "replication/slot.h"
#include "storage/fd.h"
#include "utils/builtins.h"

#include "compat.h"
#include "job.h"
#include "test_points.h"
#include "wait/free_space.h"
#include "wait/wait.h"

/* The limit of a move that frees the file system is no lower, but for a segment of WAL */
#define LEAST_RESERVED		IM_LIMIT("least-reserved", 64 * 1024 * 1024)

/* Between two looks of a rest */
#define LOOK_MS				200

/* The segments in pg_wal */
typedef struct WalFiles
{
	XLogSegNo	current;		/* into which WAL is inserted now */
	XLogSegNo	oldest;
	XLogSegNo	newest;			/* there for the next WAL; at least current */
	int64		bytes;			/* of all */
} WalFiles;

/* Who needs the oldest WAL, besides recovery */
typedef struct WalKeeper
{
	XLogSegNo	first;			/* the first segment; PG_UINT64_MAX = none */
	RestKind	kind;			/* of a rest for WAL that it keeps */
	NameData	slot;			/* "" = it is none */
	char		name[NAMEDATALEN + 32];
} WalKeeper;

/* The rest of this process; all is 0 while there is enough space */
typedef struct SpaceRest
{
	bool		is_short;
	bool		in_vain;		/* it has lasted for lock_wait */
	bool		is_kept;		/* WAL that no checkpoint removes */
	double		looked_at;		/* as clock_seconds() */
	double		waited;			/* seconds that count for lock_wait */
	XLogRecPtr	mark;			/* a checkpoint from here on can help */
	WalKeeper	keeper;
	RunnerRest	why;
} SpaceRest;

static SpaceRest rest;

/*
 * Return the bytes that a move must leave free of a file system.  free_at_begin: the bytes
 * free when its job began, if the move frees this file system, else -1.
 */
int64
free_space_reserved(const FreeSpaceRule *rule, const FileSystemFacts *facts, int64 free_at_begin)
{
	int64		result = settings_reserved(rule, facts->total_bytes);

	if (free_at_begin < 0)
		return result;
	return Min(result, Max(free_at_begin / 3, LEAST_RESERVED + wal_segment_size));
}

/* Return the bytes that are free on the file system of pg_wal, -1 if that is not known. */
int64
free_space_for_wal(void)
{
	FileSystemFacts wal;

	return directory_facts(XLOGDIR, &wal) && wal.total_bytes > 0 ? wal.free_bytes : -1;
}

/* Return whether a move from one tablespace to another frees the file system of pg_wal. */
bool
free_space_is_freed(Oid from_tablespace, Oid to_tablespace)
{
	FileSystemFacts wal;
	FileSystemFacts from;
	FileSystemFacts to;

	if (!directory_facts(XLOGDIR, &wal) || !file_system_facts(from_tablespace, &from) ||
		!file_system_facts(to_tablespace, &to))
		return false;
	return from.device == wal.device && to.device != wal.device;
}

/*
 * Add bytes to the need on the file system of a tablespace, or of pg_wal (InvalidOid).  One that
 * does not say how full it is has no need.
 */
void
free_space_add(SpaceNeeds *needs, Oid tablespace, const FileSystemFacts *facts,
			   int64 reserved, int64 bytes)
{
	SpaceNeed  *need = needs->need;

	while (need < needs->need + needs->n && need->device != facts->device)
		need++;
	if (bytes <= 0 || facts->total_bytes <= 0 || need == needs->need + SPACE_PLACES)
		return;
	if (need == needs->need + needs->n)
	{
		needs->n++;
		need->tablespace = tablespace;
		need->device = facts->device;
		need->needed = 0;
		need->available = facts->free_bytes;
		need->reserved = reserved;
	}
	need->needed += bytes;
	/* a dataset of a pool can have a quota */
	need->available = Min(need->available, facts->free_bytes);
}

/* Return the first need that exceeds the free space; NULL if none does. */
const SpaceNeed *
free_space_missing(const SpaceNeeds *needs)
{
	for (int i = 0; i < needs->n; i++)
	{
		if (needs->need[i].needed > needs->need[i].available - needs->need[i].reserved)
			return &needs->need[i];
	}
	return NULL;
}

/* Look at the segments in pg_wal. */
static void
look_at_wal_files(WalFiles *files)
{
	DIR		   *dir = AllocateDir(XLOGDIR);
	TimeLineID	timeline = RecoveryInProgress() ? 0 : GetWALInsertionTimeLine();
	struct dirent *entry;

	XLByteToSeg(GetXLogInsertRecPtr(), files->current, wal_segment_size);
	files->oldest = files->newest = files->current;
	files->bytes = 0;
	while ((entry = ReadDirExtended(dir, XLOGDIR, DEBUG1)) != NULL)
	{
		XLogSegNo	segment;
		TimeLineID	of;

		if (!IsXLogFileName(entry->d_name))
			continue;
		XLogFromFileName(entry->d_name, &of, &segment, wal_segment_size);
		files->bytes += wal_segment_size;
		files->oldest = Min(files->oldest, segment);
		if (of == timeline)
			files->newest = Max(files->newest, segment);
	}
	FreeDir(dir);
}

/* Return the bytes of the WAL files in pg_wal. */
int64
free_space_wal_on_disk(void)
{
	WalFiles	files;

	look_at_wal_files(&files);
	return files.bytes;
}

/* Note a keeper that needs WAL from a segment on, unless another one needs older WAL. */
static void
note_keeper(WalKeeper *keeper, XLogSegNo first, RestKind kind, const char *slot, const char *name)
{
	if (first >= keeper->first)
		return;
	keeper->first = first;
	keeper->kind = kind;
	namestrcpy(&keeper->slot, slot);
	strlcpy(keeper->name, name, sizeof(keeper->name));
}

static void
look_at_kept_slots(WalKeeper *keeper)
{
	ReplicationSlot *slot;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; (slot = slot_next(&i)) != NULL;)
	{
		ReplicationSlot copy;
		XLogSegNo	first;
		char		name[sizeof(keeper->name)];

		SpinLockAcquire(&slot->mutex);
		copy = *slot;
		SpinLockRelease(&slot->mutex);
		if (im_slot_is_invalidated(&copy) || XLogRecPtrIsInvalid(copy.data.restart_lsn))
			continue;
		XLByteToSeg(copy.data.restart_lsn, first, wal_segment_size);
		snprintf(name, sizeof(name), "replication slot \"%s\"", NameStr(copy.data.name));
		note_keeper(keeper, first, REST_SPACE, NameStr(copy.data.name), name);
	}
	LWLockRelease(ReplicationSlotControlLock);
}

/* Look which segments wait for the archiver. */
static void
look_at_archive(WalKeeper *keeper)
{
	const char *path = XLOGDIR "/archive_status";
	DIR		   *dir = AllocateDir(path);
	struct dirent *entry;

	while ((entry = ReadDirExtended(dir, path, DEBUG1)) != NULL)
	{
		char		name[XLOG_FNAME_LEN + 1];
		XLogSegNo	first;
		TimeLineID	of;

		strlcpy(name, entry->d_name, sizeof(name));
		if (!IsXLogFileName(name) || strcmp(entry->d_name + XLOG_FNAME_LEN, ".ready") != 0)
			continue;
		XLogFromFileName(name, &of, &first, wal_segment_size);
		note_keeper(keeper, first, REST_ARCHIVER, "", "the archiver");
	}
	FreeDir(dir);
}

/* Find the keeper that needs the oldest WAL, besides recovery. */
static void
find_keeper(WalKeeper *keeper, XLogSegNo current)
{
	XLogSegNo	kept;

	keeper->first = PG_UINT64_MAX;
	look_at_kept_slots(keeper);
	if (XLogArchivingActive())
		look_at_archive(keeper);
	if (wal_keep_size_mb <= 0)
		return;
	kept = (XLogSegNo) wal_keep_size_mb * 1024 * 1024 / wal_segment_size;
	note_keeper(keeper, current > kept ? current - kept : 1, REST_SPACE, "", "wal_keep_size");
}

/* Read where the last checkpoint that has ended began, and when.  False if that fails. */
static bool
read_last_checkpoint(XLogRecPtr *redo, pg_time_t *began)
{
	bool		crc_ok;
	ControlFileData *control = get_controlfile(DataDir, &crc_ok);

	*redo = control->checkPointCopy.redo;
	*began = control->checkPointCopy.time;
	pfree(control);
	return crc_ok;
}

/*
 * Return the name of the keeper of WAL that the last checkpoint would have removed; NULL if no WAL is
 * kept: then pg_wal does not grow by all that a move writes.
 */
char *
free_space_wal_keeper(void)
{
	WalFiles	files;
	WalKeeper	keeper;
	XLogRecPtr	redo;
	XLogSegNo	last;
	pg_time_t	began;

	if (RecoveryInProgress() || !read_last_checkpoint(&redo, &began))
		return NULL;
	XLByteToSeg(redo, last, wal_segment_size);
	look_at_wal_files(&files);
	find_keeper(&keeper, files.current);
	if (keeper.first >= last || keeper.first > files.oldest)
		return NULL;
	return pstrdup(keeper.name);
}

/* Ask for a checkpoint, if none is under way, or was begun or asked for lately. */
static void
ask_for_checkpoint(XLogRecPtr redo, pg_time_t began)
{
	static double asked = -1;	/* as clock_seconds() */
	double		now = clock_seconds();
	pg_time_t	ago = (pg_time_t) time(NULL) - began;
	int			pause = CheckPointTimeout / 5;

	/* if the clock was set back, it began long ago, for all we know */
	if (GetRedoRecPtr() != redo || (ago >= 0 && ago < pause) ||
		(asked >= 0 && now - asked < pause))
		return;
	asked = now;
	/* forced, since on a quiet server core would find nothing to do */
	RequestCheckpoint(CHECKPOINT_FORCE);
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: asks for a checkpoint, to have free space in pg_wal", runner_name())));
}

/*
 * In a rest for pg_wal: find out why it waits, and say so.  Returns whether that is a
 * checkpoint.
 */
static bool
look_at_wal(void)
{
	WalFiles	files;
	XLogRecPtr	redo;
	pg_time_t	began;
	bool		goes;			/* WAL, by a checkpoint */
	bool		was_kept = rest.is_kept;

	if (!read_last_checkpoint(&redo, &began))
		return false;
	look_at_wal_files(&files);
	find_keeper(&rest.keeper, files.current);
	goes = files.oldest < Min(rest.keeper.first, files.current);
	rest.is_kept = !goes && rest.keeper.first < files.current;
	/* WAL may have to go first that was kept until now */
	if (was_kept && !rest.is_kept)
		rest.mark = GetXLogInsertRecPtr();
	if (goes)
		ask_for_checkpoint(redo, began);
	memset(&rest.why, 0, sizeof(rest.why));
	rest.why.kind = REST_SPACE;
	if (rest.is_kept)
	{
		rest.why.kind = rest.keeper.kind;
		rest.why.slot = rest.keeper.slot;
		snprintf(rest.why.shown, sizeof(rest.why.shown), "free space in pg_wal: %s keeps WAL",
				 rest.keeper.name);
	}
	else if (goes && redo < rest.mark)
	{
		rest.why.kind = REST_CHECKPOINT;
		strlcpy(rest.why.shown, "free space in pg_wal: a checkpoint removes WAL",
				sizeof(rest.why.shown));
	}
	else
		strlcpy(rest.why.shown, "free space in pg_wal", sizeof(rest.why.shown));
	return goes && redo < rest.mark;
}

/* Return the bytes of the segments that are still to be made for so much WAL. */
static int64
segments_to_make(int64 wal_bytes)
{
	WalFiles	files;
	XLogSegNo	last;

	look_at_wal_files(&files);
	XLByteToSeg(GetXLogInsertRecPtr() + wal_bytes, last, wal_segment_size);
	if (last <= files.newest)
		return 0;
	return (int64) (last - files.newest) * wal_segment_size;
}

/* Collect the needs until the next look. */
static void
collect_next(SpaceNeeds *needs, const SpaceWatch *watch, const FreeSpaceRule *rule)
{
	FileSystemFacts wal;
	FileSystemFacts target;

	needs->n = 0;
	if (watch->wal_bytes > 0 && directory_facts(XLOGDIR, &wal))
	{
		int64		reserved = free_space_reserved(rule, &wal, watch->wal_free) *
			watch->limit_part;
		int64		bytes = watch->wal_bytes;

		/* to look into the directory takes longer */
		if (bytes + watch->bytes > wal.free_bytes - reserved)
			bytes = segments_to_make(bytes);
		free_space_add(needs, InvalidOid, &wal, reserved, bytes);
	}
	if (file_system_facts(watch->target, &target))
		free_space_add(needs, watch->target, &target,
					   free_space_reserved(rule, &target, -1) * watch->limit_part, watch->bytes);
}

/* The rest was in vain: ERROR 53100. */
pg_noreturn static void
give_up(const SpaceWatch *watch, const SpaceNeed *need)
{
	char	   *place = pstrdup("pg_wal");

	rest.in_vain = true;
	if (OidIsValid(need->tablespace))
		place = psprintf("tablespace \"%s\"", NameStr(watch->target_name));
	if (rest.is_kept && !OidIsValid(need->tablespace))
		ereport(ERROR,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("not enough free space in %s", place),
				 errdetail("The move needs " INT64_FORMAT " bytes, " INT64_FORMAT
						   " bytes are free, of which " INT64_FORMAT " must stay free, and %s keeps WAL.",
						   need->needed, need->available, need->reserved, rest.keeper.name),
				 errhint("Free some space, or see to it that this WAL is not needed any more.")));
	ereport(ERROR,
			(errcode(ERRCODE_DISK_FULL),
			 errmsg("not enough free space in %s", place),
			 errdetail("The move needs " INT64_FORMAT " bytes, " INT64_FORMAT
					   " bytes are free, of which " INT64_FORMAT " must stay free.",
					   need->needed, need->available, need->reserved),
			 errhint("Free some space, or lower index_mover.min_free_space.")));
}

/*
 * Look at the free space.  Return whether a copy has to rest, because its next bytes would leave too little of a file
 * system free, and why.  To be called again and again while it rests.  ERROR 53100 if it has
 * rested for lock_wait, or an earlier copy has.
 */
bool
free_space_look(const SpaceWatch *watch, const MoveSettings *settings, const RunnerRest **why)
{
	double		now = clock_seconds();
	SpaceNeeds	needs;
	const SpaceNeed *need;
	bool		hopes = false;	/* for a checkpoint */

	/* this says nothing of the space: a rest in vain stays one */
	if (watch->bytes <= 0 && watch->wal_bytes <= 0)
		return false;
	*why = &rest.why;
	if (rest.is_short && now - rest.looked_at < LOOK_MS / 1000.0)
		return true;
	collect_next(&needs, watch, &settings->min_free_space);
	need = free_space_missing(&needs);
	if (need == NULL)
	{
		bool		in_vain = rest.in_vain;

		memset(&rest, 0, sizeof(rest));
		/* the next copy has to keep the whole limit */
		rest.in_vain = in_vain && watch->limit_part < 1;
		return false;
	}
	if (!rest.is_short)
	{
		rest.looked_at = now;
		rest.mark = GetXLogInsertRecPtr();
	}
	/* before giving up, look again: a keeper of WAL may be gone */
	if (OidIsValid(need->tablespace))
	{
		memset(&rest.why, 0, sizeof(rest.why));
		rest.why.kind = REST_SPACE;
		snprintf(rest.why.shown, sizeof(rest.why.shown), "free space in tablespace \"%s\"",
				 NameStr(watch->target_name));
	}
	else
		hopes = look_at_wal();
	/* not the time of a pause */
	if (!hopes)
		rest.waited += Min(now - rest.looked_at, 1);
	if (settings->lock_wait == 0)
		strlcat(rest.why.shown, ", without limit", sizeof(rest.why.shown));
	else if (!hopes && (rest.in_vain || rest.waited * 1000 >= settings->lock_wait))
		give_up(watch, need);
	if (!rest.is_short)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: resting for %s", runner_name(), rest.why.shown),
				 errdetail(INT64_FORMAT " bytes are free, of which " INT64_FORMAT " must stay free.",
						   need->available, need->reserved)));
	rest.is_short = true;
	rest.looked_at = now;
	return true;
}
