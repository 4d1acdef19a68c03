/*-------------------------------------------------------------------------
 *
 * file_system.c
 *	  Facts of the operating system about the directories of tablespaces, and their files.
 *
 * Nothing is cached here: file systems are mounted and grown under a running
 * server.
 *
 * Two tablespaces with the same device share a file system, and so its space and its
 * speed.  Different devices do not prove different disks: two partitions or logical volumes
 * may share a disk.  A subvolume of btrfs and a dataset of ZFS has a device number of its
 * own, and the free space of all: there the source of the mount is the device, of ZFS its
 * pool.
 *
 * A server that starts before a file system is mounted must not take its tablespace
 * for lost.  So the mount point of a tablespace in order is noted, when a job begins
 * to move something there, and when the server starts.  A bind mount within one file
 * system is not seen.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "catalog/pg_tablespace.h"
#include "commands/tablespace.h"
#include "common/hashfn.h"
#include "common/relpath.h"
#include "common/string.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "evidence.h"
#include "file_system.h"
#include "own_tables.h"
#include "relation_facts.h"
#include "test_points.h"

/* linux/magic.h is not everywhere */
#define TMPFS_TYPE	0x01021994
#define RAMFS_TYPE	0x858458f6
#define BTRFS_TYPE	0x9123683e
#define ZFS_TYPE	0x2fc12fc1

/* Whether file systems of this type can share their free space */
#define FS_MAY_SHARE_SPACE(type) \
	((unsigned int) (type) == BTRFS_TYPE || (unsigned int) (type) == ZFS_TYPE)

/* Copy the page of a pinned buffer under its share lock, and release the buffer. */
void
buffer_copy_page(Buffer buffer, char *page)
{
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	/* others, too, may log hint bits under a share lock, and set the LSN */
	PageSetLSN((Page) page, BufferGetLSNAtomic(buffer));
	UnlockReleaseBuffer(buffer);
}

/*
 * Drop the buffers of a file, after writing them if so asked.  Also if it is missing:
 * core's DropRelationsAllBuffers() leaves them, and no checkpoint can write them.
 */
void
file_drop_buffers(const RelFileLocator *locator, bool write)
{
	SMgrRelation smgr = smgropen(*locator, INVALID_PROC_NUMBER);
	ForkNumber	forks[] = {MAIN_FORKNUM, FSM_FORKNUM, VISIBILITYMAP_FORKNUM, INIT_FORKNUM};
	BlockNumber first[lengthof(forks)] = {0};

	if (write)
		FlushRelationsAllBuffers(&smgr, 1);
	DropRelationBuffers(smgr, forks, lengthof(forks), first);
}

/* Return the number of blocks of a fork, 0 if it does not exist. */
BlockNumber
file_blocks(const RelFileLocator *locator, ForkNumber fork)
{
	SMgrRelation smgr = smgropen(*locator, INVALID_PROC_NUMBER);

	if (fork != MAIN_FORKNUM && !smgrexists(smgr, fork))
		return 0;
	return smgrnblocks(smgr, fork);
}

/* Return the directory of a tablespace, relative to the data directory, until the next call. */
static const char *
tablespace_directory(Oid tablespace)
{
	static char buffer[64];

	if (tablespace == DEFAULTTABLESPACE_OID)
		return "base";
	if (tablespace == GLOBALTABLESPACE_OID)
		return "global";
	/* an empty mount point in place of the tablespace is none */
	snprintf(buffer, sizeof(buffer), "pg_tblspc/%u/%s", tablespace, TABLESPACE_VERSION_DIRECTORY);
	return buffer;
}

/* Return why a tablespace cannot get files, in words that follow its name; else NULL. */
const char *
tablespace_hindrance(Oid tablespace)
{
	if (access(tablespace_directory(tablespace), W_OK | X_OK) == 0)
		return NULL;
	return errno == ENOENT || errno == ENOTDIR ? "is missing" :
		psprintf("cannot be written to: %m");
}

/* Return the name of a tablespace, "?" if it was dropped. */
const char *
tablespace_name(Oid tablespace)
{
	char	   *name = get_tablespace_name(tablespace);

	return name ? name : "?";
}

/* Return whether a tablespace has no directory of this server's version. */
bool
tablespace_is_missing(Oid tablespace)
{
	if (access(tablespace_directory(tablespace), F_OK) == 0)
		return false;
	return errno == ENOENT || errno == ENOTDIR;
}

/*
 * Make the directory of a tablespace, if it is missing.  ERROR by errno.
 *
 * Under the lock of DROP TABLESPACE, as TablespaceCreateDbspace(): made after that has
 * removed the directory, it would stay in the location.  Then there is no link either.
 */
void
tablespace_make_directory(Oid tablespace)
{
	const char *directory = tablespace_directory(tablespace);
	int			save_errno = 0;

	LWLockAcquire(TablespaceCreateLock, LW_EXCLUSIVE);
	if (MakePGDirectory(directory) < 0)
		save_errno = errno;
	LWLockRelease(TablespaceCreateLock);
	errno = save_errno;
	if (errno != 0 && errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m", directory)));
	/* a file that is made there now is on this device */
	(void) evidence_of_tablespace(tablespace);
}

/* Return the mount point above the directory of a tablespace; NULL if that does not exist. */
static char *
mount_point(Oid tablespace)
{
	char		directory[PATH_MAX];
	char		result[PATH_MAX];
	const char *link = "base";
	struct stat here;
	struct stat above;

	if (tablespace != DEFAULTTABLESPACE_OID)
		link = psprintf("pg_tblspc/%u", tablespace);
	if (realpath(link, directory) == NULL || stat(directory, &here) != 0)
		return NULL;
	for (;;)
	{
		strlcpy(result, directory, sizeof(result));
		get_parent_directory(directory);
		if (strcmp(directory, result) == 0)
			break;
		if (stat(directory, &above) != 0 || above.st_dev != here.st_dev)
			break;
	}
	return pstrdup(result);
}

/*
 * Return whether a tablespace is below the mount point that was noted, and both, NULL if
 * there is none.
 */
static bool
mount_point_is_noted(Oid tablespace, char **now, char **noted)
{
	ScanKeyData key = extension_key(1, F_OIDEQ, ObjectIdGetDatum(tablespace));
	ExtensionScan scan;

	*now = mount_point(tablespace);
	*noted = NULL;
	extension_scan_begin(&scan, "mount_point", 1, &key);
	while (extension_scan_next(&scan))
		*noted = TextDatumGetCString(scan.row.values[1]);
	return *now != NULL && *noted != NULL && strcmp(*now, *noted) == 0;
}

/* Note the mount point of a tablespace that has its directory.  In a transaction. */
void
mount_point_note(Oid tablespace)
{
	ScanKeyData key = extension_key(1, F_OIDEQ, ObjectIdGetDatum(tablespace));
	char	   *now;
	char	   *noted;
	Row			row;

	if (mount_point_is_noted(tablespace, &now, &noted) || now == NULL)
		return;
	if (tablespace_hindrance(tablespace) != NULL)
		return;
	(void) extension_delete("mount_point", 1, &key);
	row_clear(&row);
	row_set(&row, 1, ObjectIdGetDatum(tablespace));
	row_text(&row, 2, now);
	extension_insert("mount_point", &row);
}

/* Return the directory that CREATE TABLESPACE was given, palloc'd. */
static char *
location_of(Oid tablespace)
{
	char		target[MAXPGPATH];
	char	   *link = psprintf("pg_tblspc/%u", tablespace);
	ssize_t		length = readlink(link, target, sizeof(target) - 1);

	/* a tablespace below the data directory is no link */
	return length < 0 ? link : pnstrdup(target, length);
}

/*
 * Refuse to heal a tablespace whose file system seems to be not mounted yet: whose
 * directory does not exist, or is below another mount point than when it was last
 * seen.  ERROR 55000; with "force" a WARNING.
 */
void
mount_point_check(Oid tablespace, bool force)
{
	char	   *now;
	char	   *noted;

	if (mount_point_is_noted(tablespace, &now, &noted) || (now != NULL && noted == NULL))
		return;
	if (now == NULL)
		ereport(force ? WARNING : ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the file system of tablespace \"%s\" may not be mounted", get_tablespace_name(tablespace)),
				 errdetail("Its location \"%s\" does not exist.", location_of(tablespace)),
				 errhint("Mount it. If it is gone for good, make that directory.")));
	else
		ereport(force ? WARNING : ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the file system of tablespace \"%s\" may not be mounted", get_tablespace_name(tablespace)),
				 errdetail("Its location \"%s\" is below mount point \"%s\", and was below \"%s\" when it was last seen.",
						   location_of(tablespace), now, noted),
				 errhint("Mount it. If it is gone for good, use unmounted => true.")));
}

/*
 * Return the medium of a tablespace if a reboot or a stop of the machine loses its
 * files: "tmpfs", "ramfs", or the model of a cloud's local disk; else NULL.  A disk
 * below LVM, RAID or encryption is not seen.
 */
const char *
tablespace_lost_on_reboot(Oid tablespace)
{
	/*
	 * ephemeral disks of AWS, Azure, and Google; its network disks are
	 * "nvme_card-pd"
	 */
	static const char *const models[] = {"Amazon EC2 NVMe Instance Storage", "Microsoft NVMe Direct Disk",
	"nvme_card", "EphemeralDisk"};

	/* where sysfs has the model of a disk, and that of a partition */
	static const char *const places[] = {"device/model", "../device/model"};
	char		path[MAXPGPATH];
	const char *directory = tablespace_directory(tablespace);
	struct statfs fs;
	struct stat st;

	if (statfs(directory, &fs) != 0 || stat(directory, &st) != 0)
		return NULL;
	if ((unsigned int) fs.f_type == TMPFS_TYPE || (unsigned int) fs.f_type == RAMFS_TYPE)
		return (unsigned int) fs.f_type == TMPFS_TYPE ? "tmpfs" : "ramfs";
	for (int i = 0; i < lengthof(places); i++)
	{
		char		model[64] = "";
		FILE	   *file;

		snprintf(path, sizeof(path), "%s/%u:%u/%s", IM_BLOCK_DEVICES,
				 major(st.st_dev), minor(st.st_dev), places[i]);
		if ((file = AllocateFile(path, "r")) == NULL)
			continue;
		if (fgets(model, sizeof(model), file) == NULL)
			model[0] = '\0';
		FreeFile(file);
		for (int m = 0; m < lengthof(models); m++)
		{
			if (strncmp(model, models[m], strlen(models[m])) == 0 && strstr(model, "-pd") == NULL)
				return models[m];
		}
	}
	return NULL;
}

/*
 * Return the medium of a tablespace, as tablespace_lost_on_reboot(), if tables do not belong
 * there; NULL also where a reboot loses the whole server.
 */
const char *
tablespace_loses_tables(Oid tablespace)
{
	const char *medium = OidIsValid(tablespace) ? tablespace_lost_on_reboot(tablespace) : NULL;

	if (medium == NULL || tablespace_lost_on_reboot(DEFAULTTABLESPACE_OID) != NULL)
		return NULL;
	return medium;
}

/* Return the number of the mount that a directory is on; 0 = not known. */
static uint64
mount_number(const char *directory)
{
#ifdef STATX_MNT_ID
	struct statx st;

	if (statx(AT_FDCWD, directory, 0, STATX_MNT_ID, &st) == 0 && (st.stx_mask & STATX_MNT_ID) != 0)
		return st.stx_mnt_id;
#endif
	return 0;
}

/*
 * Find the mount of a directory in the list of mounts.  Returns whether it is there.
 *
 * By its number: on btrfs the device number of a file is not that of its mount.
 */
bool
directory_mount(const char *directory, Mount *mount)
{
	uint64		number = mount_number(directory);
	FILE	   *file;
	StringInfoData line;
	bool		found = false;

	if (number == 0)
		return false;
	file = AllocateFile(IM_MOUNTS, "r");
	if (file == NULL)
		return false;
	initStringInfo(&line);
	/* number ... - type source options */
	while (!found && pg_get_line_buf(file, &line))
	{
		char	   *at = strstr(line.data, " - ");
		char	   *rest = NULL;
		char	   *type;
		char	   *source;

		if (at == NULL || strtoul(line.data, NULL, 10) != number)
			continue;
		type = strtok_r(at + 3, " ", &rest);
		source = strtok_r(NULL, " ", &rest);
		if (type == NULL || source == NULL)
			continue;
		strlcpy(mount->type, type, sizeof(mount->type));
		strlcpy(mount->source, source, sizeof(mount->source));
		strlcpy(mount->options, rest, sizeof(mount->options));
		mount->options[strcspn(mount->options, "\n")] = '\0';
		found = true;
	}
	FreeFile(file);
	pfree(line.data);
	return found;
}

/* Return a number for the device of a mount if others share its free space; else 0. */
static int64
shared_device(const char *directory)
{
	Mount		mount;
	uint64		hash;

	if (!directory_mount(directory, &mount))
		return 0;
	if (strcmp(mount.type, "zfs") == 0)
		mount.source[strcspn(mount.source, "/")] = '\0';
	else if (strcmp(mount.type, "btrfs") != 0)
		return 0;
	hash = hash_bytes_extended((const unsigned char *) mount.source, strlen(mount.source), 0);
	/* greater than any device number */
	return (int64) ((hash >> 2) | (UINT64CONST(1) << 62));
}

/* Get the facts about the file system of a directory; false if unreadable. */
bool
directory_facts(const char *directory, FileSystemFacts *facts)
{
	struct statfs fs;
	struct stat st;

	if (stat(directory, &st) != 0 || statfs(directory, &fs) != 0)
		return false;
	facts->free_bytes = (int64) fs.f_bavail * fs.f_frsize;
	facts->total_bytes = (int64) fs.f_blocks * fs.f_frsize;
	facts->device = (int64) st.st_dev;

	/*
	 * else it is not worth to read the list of mounts before each megabyte of
	 * a copy
	 */
	if (IM_MAY_SHARE_SPACE(fs.f_type))
	{
		int64		shared = shared_device(directory);

		if (shared != 0)
			facts->device = shared;
	}
	return true;
}

/* As directory_facts(), of a tablespace. */
bool
file_system_facts(Oid tablespace, FileSystemFacts *facts)
{
	if (IM_FILE_SYSTEM(tablespace, &facts->device, &facts->free_bytes, &facts->total_bytes))
		return facts->device != 0;
	return directory_facts(tablespace_directory(tablespace), facts);
}

/* Return the names (char *) of the other tablespaces on the device. */
List *
tablespaces_on_device(int64 device, Oid but_not)
{
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, row, catalog_all(TableSpaceRelationId))
	{
		Form_pg_tablespace form = (Form_pg_tablespace) GETSTRUCT(row);
		FileSystemFacts facts;

		if (form->oid != but_not && form->oid != GLOBALTABLESPACE_OID &&
			file_system_facts(form->oid, &facts) && facts.device == device)
			result = lappend(result, NameStr(form->spcname));
	}
	return result;
}

/* Return the path, palloc'd, of a segment of a file whose first segment has this path. */
static char *
segment_path(const char *path, unsigned int segment)
{
	return segment == 0 ? pstrdup(path) : psprintf("%s.%u", path, segment);
}

/* Return the path, palloc'd, of the segment that holds a block. */
char *
relation_segment_path(const RelFileLocator *locator, ForkNumber fork, BlockNumber block)
{
	return segment_path(relation_fork_path(*locator, fork), block / (BlockNumber) RELSEG_SIZE);
}

/*
 * Return the bytes of all segments of a file whose first segment has this path; -1
 * if there is none, or a segment cannot be read.
 */
static int64
file_size(const char *path)
{
	int64		total = 0;
	struct stat st;

	for (unsigned int segment = 0;; segment++)
	{
		char	   *part = segment_path(path, segment);
		int			result = stat(part, &st);
		int			stat_errno = errno;

		pfree(part);
		/* for the caller, too */
		errno = stat_errno;
		if (result < 0)
			return segment > 0 && errno == ENOENT ? total : -1;
		total += st.st_size;
	}
}

/* Return the bytes of all forks of a file; -1 if a fork cannot be read. */
int64
relation_file_size(const RelFileLocator *locator)
{
	int64		total = 0;

	if (!RelFileNumberIsValid(locator->relNumber))
		return -1;
	for (ForkNumber fork = MAIN_FORKNUM; fork <= MAX_FORKNUM; fork++)
	{
		int64		size = file_size(relation_fork_path(*locator, fork));

		if (size < 0 && (fork == MAIN_FORKNUM || errno != ENOENT))
			return -1;
		total += Max(size, 0);
	}
	return total;
}

/* As relation_file_size(), of a relation of this database. */
int64
relation_files_size(Oid tablespace, RelFileNumber relfilenumber)
{
	RelFileLocator locator = make_locator(tablespace, MyDatabaseId, relfilenumber);

	return relation_file_size(&locator);
}

/*
 * Return the bytes that its file system stores of a relation of this database so far: fewer
 * where its files have holes, or are compressed.
 */
int64
relation_stored_size(Oid tablespace, RelFileNumber relfilenumber)
{
	RelFileLocator locator = make_locator(tablespace, MyDatabaseId, relfilenumber);
	int64		total = 0;

	for (ForkNumber fork = MAIN_FORKNUM; fork <= MAX_FORKNUM; fork++)
	{
		const char *path = relation_fork_path(locator, fork);
		struct stat st;

		for (unsigned int segment = 0; stat(segment_path(path, segment), &st) == 0; segment++)
			total += (int64) st.st_blocks * 512;
	}
	return total;
}

static char *
main_path(const RelationFacts *facts)
{
	return relation_file_path(facts->tablespace == GLOBALTABLESPACE_OID ? InvalidOid : MyDatabaseId,
							  facts->tablespace, facts->relfilenumber, MAIN_FORKNUM);
}

/* Return the bytes of a relation's main fork, of a table with TOAST; -1 if unreadable. */
int64
relation_main_size(const RelationFacts *facts)
{
	int64		result = file_size(main_path(facts));
	RelationFacts toast;

	if (result >= 0 && relation_facts(facts->toast_oid, &toast))
		result += Max(relation_main_size(&toast), 0);
	return result;
}

/* Return when its file was made, 0 if the file system or the platform does not tell. */
TimestampTz
file_birth(const RelationFacts *facts)
{
#ifdef STATX_BTIME
	struct statx st;

	if (statx(AT_FDCWD, main_path(facts), 0, STATX_BTIME, &st) != 0)
		return 0;
	if ((st.stx_mask & STATX_BTIME) != 0)
		return time_t_to_timestamptz(st.stx_btime.tv_sec);
#endif
	return 0;
}

/* Return a size in the words of pg_size_pretty(). */
char *
size_text(int64 bytes)
{
	return TextDatumGetCString(DirectFunctionCall1(pg_size_pretty, Int64GetDatum(bytes)));
}

/*
 * errcode_for_file_access() for writes, first in ereport(): a full quota is a
 * full disk, of which core does not know.
 */
int
errcode_for_file_write(void)
{
	if (errno != ENOSPC && errno != EDQUOT)
		return errcode_for_file_access();
	errhint("Check free disk space and quotas.");
	return errcode(ERRCODE_DISK_FULL);
}
