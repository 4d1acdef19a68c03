/*-------------------------------------------------------------------------
 *
 * device_marker.c
 *	  The file by which the device below a tablespace is told from others.
 *
 * It is in the tablespace's location, beside the directory of the server's version:
 * within that it would be in base backups, and DROP TABLESPACE would refuse.  It has the
 * version in its name, because two clusters may share a location, as they do after
 * pg_upgrade.  In it are a random number, by which the device is known, its epoch
 * (evidence_verdict.c), the server that wrote it, its own inode and birth time, and the same of the
 * directory beside it.  A marker that a program has copied (rsync, a restored backup) names
 * another file, and beside a directory that was copied it names another directory.  A
 * session of a server without the library in its postmaster writes no number: it would be on
 * no record.  Such a marker says only whose the location is.
 *
 * A tablespace in place has no marker: DROP TABLESPACE removes that directory, which must
 * be empty.  It is in the data directory, so the birth of its directory serves.
 *
 * Assumption: of two servers that use a location, the second finds the marker of
 * the first.  If both write at the same moment, the last has it.
 *
 * Called by the postmaster, too, before recovery.  Failures are results.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_perm.h"
#include "common/relpath.h"
#include "lib/stringinfo.h"
#include "storage/fd.h"

#include "device_marker.h"
#include "test_points.h"

#define MARKER_HEAD		"index_mover knows this device by this file; do not copy or remove it"

/* in place of a number */
#define NO_NUMBER		"00000000000000000000000000000000"

/* Set the identity of the file that fstatat() finds by these arguments; false with errno. */
static bool
identify(int fd, const char *name, int flags, FileIdentity *identity)
{
	struct stat st;
#ifdef STATX_BTIME
	struct statx stx;
#endif

	memset(identity, 0, sizeof(*identity));
	if (fstatat(fd, name, &st, flags) != 0)
		return false;
	identity->inode = st.st_ino;
	identity->device = st.st_dev;
#ifdef STATX_BTIME
	if (statx(fd, name, flags, STATX_BTIME, &stx) != 0 || (stx.stx_mask & STATX_BTIME) == 0)
		return true;
	identity->birth = (int64) stx.stx_btime.tv_sec * INT64CONST(1000000000) + stx.stx_btime.tv_nsec;
#endif
	return true;
}

/* Set the identity of a file or directory; false with errno, and inode 0. */
bool
file_identity(const char *path, FileIdentity *identity)
{
	return identify(AT_FDCWD, path, 0, identity);
}

/*
 * Return whether two identities are of the same file.  A reboot may number devices again; a
 * new file system repeats inodes, but no birth.
 */
bool
file_identity_equals(const FileIdentity *a, const FileIdentity *b)
{
	if (a->inode == 0 || a->inode != b->inode || a->birth != b->birth)
		return false;
	return a->birth != 0 || a->device == b->device;
}

/* Set the identity of this server; the current directory is its data directory, and stays. */
void
server_identity(ServerIdentity *server)
{
	static ServerIdentity us;
	char		path[PATH_MAX] = "";

	if (us.directory.inode != 0)
	{
		*server = us;
		return;
	}
	memset(server, 0, sizeof(*server));
	(void) file_identity(".", &server->directory);
	if (gethostname(server->host, sizeof(server->host) - 1) != 0 || server->host[0] == '\0')
		strlcpy(server->host, "?", sizeof(server->host));
	if (realpath(".", path) != NULL)
		strlcpy(server->path, path, sizeof(server->path));
	us = *server;
}

/*
 * Return whether a server is this one, or on this host and gone: its data directory was
 * moved, or removed, or another one is at its path now, as after a restore.  The clone of
 * a file system has the inodes and births of the original, which then still is there.
 */
bool
server_is_us(const ServerIdentity *server)
{
	ServerIdentity us;
	FileIdentity now;

	server_identity(&us);
	if (!file_identity_equals(&server->directory, &us.directory) &&
		strcmp(server->host, us.host) != 0)
		return false;
	if (strcmp(server->path, us.path) == 0)
		return true;
	if (!file_identity(server->path, &now))
		return errno == ENOENT || errno == ENOTDIR;
	return !file_identity_equals(&server->directory, &now);
}

/* Make a number that no other device has. */
void
device_id_make(char *id)
{
	uint8		bytes[(DEVICE_ID_SIZE - 1) / 2];

	if (!pg_strong_random(bytes, sizeof(bytes)))
		elog(ERROR, "could not generate random values");
	for (int i = 0; i < lengthof(bytes); i++)
		snprintf(id + 2 * i, 3, "%02x", bytes[i]);
}

/*
 * Set the kind of the directory of the server's version, and whether it is empty.  A directory that
 * cannot be looked at, by its permissions or an error of the device, is not; and a marker
 * beside it would prove nothing.
 */
static void
look_at_directory(Oid tablespace, DeviceLook *look)
{
	char		path[MAXPGPATH];
	DIR		   *dir;
	struct dirent *entry;

	snprintf(path, sizeof(path), "pg_tblspc/%u/%s", tablespace, TABLESPACE_VERSION_DIRECTORY);
	if (!file_identity(path, &look->directory))
	{
		look->is_empty = errno == ENOENT || errno == ENOTDIR;
		if (!look->is_empty)
			look->marker = MARKER_UNREADABLE;
		return;
	}
	dir = AllocateDir(path);
	if (dir == NULL)
		return;
	look->is_empty = true;
	/* not ReadDir(), whose message may change errno */
	errno = 0;
	while ((entry = readdir(dir)) != NULL)
	{
		if (strspn(entry->d_name, "0123456789") != strlen(entry->d_name))
			continue;
		look->is_empty = false;
		break;
	}
	if (look->is_empty && errno != 0)
	{
		look->is_empty = false;
		look->marker = MARKER_UNREADABLE;
	}
	FreeDir(dir);
}

/* Return a path, palloc'd, as it stands in such a file: without a newline. */
char *
line_of_path(const char *path)
{
	StringInfoData line;

	initStringInfo(&line);
	for (; *path != '\0'; path++)
	{
		if (*path == '\n')
			appendStringInfoString(&line, "\\n");
		else if (*path == '\\')
			appendStringInfoString(&line, "\\\\");
		else
			appendStringInfoChar(&line, *path);
	}
	return line.data;
}

/* Set a path, of MAXPGPATH bytes, to what line_of_path() was given.  An earlier build has not changed it. */
void
path_of_line(const char *line, char *path)
{
	const char *end = path + MAXPGPATH - 1;

	for (; *line != '\0' && path < end; line++)
	{
		if (line[0] == '\\' && line[1] == 'n')
		{
			*path++ = '\n';
			line++;
		}
		else
		{
			if (line[0] == '\\' && line[1] == '\\')
				line++;
			*path++ = *line;
		}
	}
	*path = '\0';
}

/*
 * Write a file that names itself: its head, its own identity, and then the body.
 * Durable, in place of an older marker.  False with errno; nothing is reported.
 */
bool
own_file_write(const char *path, const char *head, const char *body)
{
	char		temporary[MAXPGPATH];
	StringInfoData whole;
	FileIdentity itself;
	int			fd;
	int			save_errno = 0;

	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	fd = OpenTransientFile(temporary, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	if (fd < 0)
		return false;
	initStringInfo(&whole);
	if (!identify(fd, "", AT_EMPTY_PATH, &itself))
		save_errno = errno;
	appendStringInfo(&whole, "%s\nfile " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\n%s",
					 head, itself.inode, itself.birth, itself.device, body);
	if (save_errno == 0)
	{
		errno = 0;
		if (write(fd, whole.data, whole.len) != whole.len)
		{
			/* as core: a short write is a full disk */
			save_errno = errno != 0 ? errno : ENOSPC;
		}
	}
	pfree(whole.data);
	if (CloseTransientFile(fd) != 0)
		save_errno = errno;
	if (save_errno == 0)
	{
		if (durable_rename(temporary, path, DEBUG1) != 0)
			save_errno = errno;
	}
	if (save_errno != 0)
		(void) unlink(temporary);
	errno = save_errno;
	return save_errno == 0;
}

/*
 * Read such a file: return the body, palloc'd, and set whether the file still is the
 * one that it names.  NULL with errno, 0 if it is no such file.
 */
char *
own_file_read(const char *path, const char *head, bool *is_itself)
{
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	StringInfoData contents;
	FileIdentity itself;
	FileIdentity named;
	char		chunk[8192];
	ssize_t		got;
	int			begin = 0;
	bool		known;

	if (fd < 0)
		return NULL;
	initStringInfo(&contents);
	errno = 0;
	while ((got = read(fd, chunk, sizeof(chunk))) > 0)
		appendBinaryStringInfo(&contents, chunk, got);
	known = got == 0;
	if (known)
		known = identify(fd, "", AT_EMPTY_PATH, &itself);
	(void) CloseTransientFile(fd);
	if (known)
		errno = 0;
	if (!known || strncmp(contents.data, head, strlen(head)) != 0 ||
		sscanf(contents.data + strlen(head), "\nfile " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\n%n",
			   &named.inode, &named.birth, &named.device, &begin) != 3 || begin == 0)
	{
		int			save_errno = errno;

		pfree(contents.data);
		errno = save_errno;
		return NULL;
	}
	*is_itself = file_identity_equals(&itself, &named);
	begin += strlen(head);
	memmove(contents.data, contents.data + begin, contents.len - begin + 1);
	return contents.data;
}

/* Set the path of the marker in a directory. */
static void
marker_path(char *path, const char *directory)
{
	snprintf(path, MAXPGPATH, "%s/%s", directory, MARKER_NAME);
}

/* A marker of an earlier build names no directory: that beside it, unless it came after the marker. */
static void
assume_beside(const char *path, DeviceLook *look)
{
	FileIdentity marker;

	if (file_identity(path, &marker) &&
		(marker.birth == 0 || look->directory.birth <= marker.birth))
		look->beside = look->directory;
}

/* The fields of a marker of an earlier build: all but the directory beside it */
#define LEAST_FIELDS	7

/* Read the contents of a marker, and return how many of its fields are there. */
static int
read_fields(const char *contents, DeviceLook *look)
{
	ServerIdentity *owner = &look->owner;
	FileIdentity *beside = &look->beside;
	char		line[PATH_LINE_SIZE] = "";
	int			result;

	result = sscanf(contents, "device %32[0-9a-f] %u\n"
					"directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\n"
					"host %63[^\n]\npath %2047[^\n]\n"
					"beside " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT,
					look->id, &look->epoch,
					&owner->directory.inode, &owner->directory.birth, &owner->directory.device,
					owner->host, line,
					&beside->inode, &beside->birth, &beside->device);
	path_of_line(line, owner->path);
	return result;
}

/* Set the contents of a marker; it is of no use if they cannot be read. */
static void
look_at_marker(const char *directory, DeviceLook *look)
{
	char		path[MAXPGPATH];
	bool		is_itself;
	int			nfields = 0;
	char	   *contents;

	marker_path(path, directory);
	contents = own_file_read(path, MARKER_HEAD, &is_itself);
	look->has_marker_file = contents != NULL || (errno != ENOENT && errno != ENOTDIR);
	if (contents != NULL)
		nfields = read_fields(contents, look);
	else if (errno == ENOENT || errno == ENOTDIR || errno == 0)
		look->marker = MARKER_NONE;
	else
		look->marker = MARKER_UNREADABLE;

	if (nfields < LEAST_FIELDS)
		look->id[0] = '\0';
	else if (!is_itself)
		look->marker = MARKER_COPY;
	else
		look->marker = server_is_us(&look->owner) ? MARKER_OURS : MARKER_FOREIGN;
	if (nfields == LEAST_FIELDS)
		assume_beside(path, look);
	if (strcmp(look->id, NO_NUMBER) == 0)
		look->id[0] = '\0';
	if (contents != NULL)
		pfree(contents);
}

/* Look at the location of a tablespace now.  May take as long as the device hangs. */
void
device_look(Oid tablespace, DeviceLook *look)
{
	char		path[MAXPGPATH];
	struct stat st;

	memset(look, 0, sizeof(*look));
	IM_HANG(tablespace);
	look_at_directory(tablespace, look);
	snprintf(path, sizeof(path), "pg_tblspc/%u", tablespace);
	look->is_in_place = lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
	if (look->marker == MARKER_UNREADABLE)
		return;
	if (!look->is_in_place)
		look_at_marker(path, look);
	else if (look->directory.inode != 0)
	{
		look->marker = MARKER_OURS;
		look->has_marker_file = true;
		snprintf(look->id, sizeof(look->id), "%016llx%016llx",
				 (unsigned long long) look->directory.inode,
				 (unsigned long long) look->directory.birth);
	}
}

/* Write a marker with this number beside the directory in look, and set it there.  False with errno. */
static bool
write_marker(Oid tablespace, const char *id, uint32 epoch, DeviceLook *look)
{
	char		directory[MAXPGPATH];
	char		path[MAXPGPATH];
	ServerIdentity us;
	char	   *contents;
	bool		done;

	Assert(look->marker != MARKER_FOREIGN && look->marker != MARKER_UNREADABLE);
	server_identity(&us);
	snprintf(directory, sizeof(directory), "pg_tblspc/%u", tablespace);
	marker_path(path, directory);
	contents = psprintf("device %s %u\n"
						"directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\n"
						"host %s\npath %s\n"
						"beside " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\n",
						id, epoch,
						us.directory.inode, us.directory.birth, us.directory.device,
						us.host, line_of_path(us.path),
						look->directory.inode, look->directory.birth, look->directory.device);
	done = own_file_write(path, MARKER_HEAD, contents);
	pfree(contents);
	if (done)
	{
		look->marker = MARKER_OURS;
		look->beside = look->directory;
	}
	return done;
}

/*
 * Mark the device as this server's, by a new number, and set it in look, which is of
 * just now.  The caller records the number.  False with errno.
 */
bool
device_mark(Oid tablespace, uint32 epoch, DeviceLook *look)
{
	char		id[DEVICE_ID_SIZE];

	if (look->is_in_place)
		return true;
	device_id_make(id);
	if (!write_marker(tablespace, id, epoch, look))
		return false;
	memcpy(look->id, id, sizeof(id));
	look->epoch = epoch;
	return true;
}

/* Write the marker again, which is this server's, with another epoch.  False with errno. */
bool
device_mark_again(Oid tablespace, uint32 epoch, DeviceLook *look)
{
	char		id[DEVICE_ID_SIZE];

	Assert(look->marker == MARKER_OURS && look->id[0] != '\0' && !look->is_in_place);
	memcpy(id, look->id, sizeof(id));
	if (!write_marker(tablespace, id, epoch, look))
		return false;
	look->epoch = epoch;
	return true;
}

/* Mark the device as this server's, without a number: it would be on no record. */
bool
device_claim(Oid tablespace, DeviceLook *look)
{
	if (look->is_in_place)
		return true;
	if (!write_marker(tablespace, NO_NUMBER, 0, look))
		return false;
	look->id[0] = '\0';
	look->epoch = 0;
	return true;
}

/*
 * Set the directory, outside of the data directory, to which a tablespace's link leads; ""
 * if it cannot be found.
 */
void
device_location(Oid tablespace, char *location)
{
	char		link[MAXPGPATH];
	char		path[PATH_MAX];

	snprintf(link, sizeof(link), "pg_tblspc/%u", tablespace);
	location[0] = '\0';
	if (realpath(link, path) != NULL && strlen(path) < MAXPGPATH)
		strlcpy(location, path, MAXPGPATH);
}

/* Remove the marker with this number from the directory of a dropped tablespace. */
void
device_unmark(const char *location, const char *id)
{
	char		path[MAXPGPATH];
	DeviceLook	look = {0};

	look_at_marker(location, &look);
	marker_path(path, location);
	if (look.marker != MARKER_OURS || strcmp(look.id, id) != 0)
		return;
	if (unlink(path) != 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
}
