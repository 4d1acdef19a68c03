/*-------------------------------------------------------------------------
 *
 * evidence_record.c
 *	  The state file: the devices that this server expects below its tablespaces.
 *
 * The file names itself and the data directory.  So a copy of it, or of the data directory, is
 * known for that.  It is replaced as a whole, and has the same as shared memory but for the
 * last fields of KnownDevice.
 *
 * The postmaster writes the file at its start and at its end, other processes under CHANGE_LOCK.
 * A list is in local memory or in shared memory: see evidence_area.c for the locks of the latter.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/xlogdefs.h"
#include "lib/stringinfo.h"
#include "storage/fd.h"

#include "evidence_private.h"

#define STATE_HEAD		"index_mover: what this server expects on the devices of its tablespaces"

const char *const evidence_reasons[] = {
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

/* Return the tablespaces that pg_tblspc names. */
List *
evidence_list_tablespaces(void)
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

/* Return whether pg_tblspc has a tablespace. */
bool
evidence_tablespace_exists(Oid tablespace)
{
	char		path[MAXPGPATH];
	struct stat st;

	snprintf(path, sizeof(path), "pg_tblspc/%u", tablespace);
	return lstat(path, &st) == 0 || errno != ENOENT;
}

Size
evidence_list_size(int max_devices)
{
	return offsetof(DeviceList, devices) + max_devices * sizeof(KnownDevice);
}

/* in place of nothing, which sscanf() does not read */
#define NOTHING		"-"

static const char *
id_text(const char *id)
{
	return id[0] ? id : NOTHING;
}

/*
 * Read the line of a tablespace; return its length, 0 if it is none.  An earlier version of the library has
 * written no marked_below.
 */
static int
device_load(KnownDevice *device, const char *line, bool has_marked_below)
{
	FileIdentity *directory = &device->directory;
	int			reason;
	int			was_empty;
	int			is_pending;
	int			length = 0;
	int			more = 0;
	char		location[PATH_LINE_SIZE];

	memset(device, 0, sizeof(*device));
	if (sscanf(line, "tablespace %u " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT
			   " %u %u %u %u %u %d %d %d " UINT64_FORMAT " %u %u %u"
			   " %u %u %u %u %u %u %u%n",
			   &device->tablespace, &directory->inode, &directory->birth, &directory->device,
			   &device->lost.below, &device->unknown_below, &device->vouched_from,
			   &device->lost.xid, &device->lost.certain, &reason,
			   &was_empty, &is_pending, &device->missed_checkpoint,
			   &device->missed_lost.below, &device->missed_lost.certain, &device->missed_lost.xid,
			   &device->lost_unlogged.below, &device->lost_unlogged.certain,
			   &device->lost_unlogged.xid,
			   &device->epoch, &device->written, &device->marked, &device->missed_marked,
			   &length) != 23)
		return 0;
	if (has_marked_below)
	{
		if (sscanf(line + length, " %u%n", &device->marked_below, &more) != 1)
			return 0;
		length += more;
	}
	if (sscanf(line + length, " %32[0-9a-f-] %32[0-9a-f-] %2047[^\n]%n",
			   device->id, device->missed_id, location, &more) != 3)
		return 0;
	length += more;
	if (line[length] != '\n' || reason < 0 || reason >= lengthof(evidence_reasons))
		return 0;
	device->reason = reason;
	device->was_empty = was_empty != 0;
	device->is_pending = is_pending != 0;
	if (strcmp(device->id, NOTHING) == 0)
		device->id[0] = '\0';
	if (strcmp(device->missed_id, NOTHING) == 0)
		device->missed_id[0] = '\0';
	if (strcmp(location, NOTHING) != 0)
		path_of_line(location, device->location);
	return length + 1;
}

/* Write the state file; false with errno. */
bool
evidence_list_save(const DeviceList *list)
{
	StringInfoData contents;
	ServerIdentity us;
	bool		result;

	server_identity(&us);
	initStringInfo(&contents);
	appendStringInfo(&contents,
					 "directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\nhost %s\npath %s\n",
					 us.directory.inode, us.directory.birth, us.directory.device, us.host,
					 line_of_path(us.path));
	appendStringInfo(&contents, "run %s\ncontrol %u " INT64_FORMAT " " UINT64_FORMAT "\ncounter %u\n",
					 list->run, list->control_crc, list->control_time, list->control_checkpoint,
					 list->counter);
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
		appendStringInfo(&contents, " %u %u %u %u %u %s %s",
						 device->epoch, device->written, device->marked, device->missed_marked,
						 device->marked_below,
						 id_text(device->id), id_text(device->missed_id));
		appendStringInfo(&contents, " %s\n",
						 device->location[0] ? line_of_path(device->location) : NOTHING);
	}
	appendStringInfoString(&contents, "end\n");
	result = own_file_write(STATE_FILE, STATE_HEAD, contents.data);
	pfree(contents.data);
	return result;
}

DeviceList *
evidence_list_make(int max)
{
	DeviceList *list = palloc0(evidence_list_size(max));

	list->max_devices = max;
	return list;
}

/*
 * Read the state file, and set whether it is of this server, in this data directory; a copy
 * tells of another server.  NULL if there is none, or a part of a file.
 */
DeviceList *
evidence_list_load(bool *is_ours)
{
	const char *contents = own_file_read(STATE_FILE, STATE_HEAD, is_ours);
	DeviceList *list;
	ServerIdentity owner = {0};
	ServerIdentity us;
	int			max = 0;
	int			length = 0;
	int			more = 0;
	bool		has_counter;
	char		path[PATH_LINE_SIZE];

	if (contents == NULL)
		return NULL;
	/* each tablespace has a line */
	for (const char *next = contents; (next = strchr(next, '\n')) != NULL; next++)
		max++;
	list = evidence_list_make(max);
	if (sscanf(contents, "directory " UINT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT "\n"
			   "host %63[^\n]\npath %2047[^\n]\n"
			   "run %32[0-9a-f]\ncontrol %u " INT64_FORMAT " " UINT64_FORMAT "\n%n",
			   &owner.directory.inode, &owner.directory.birth, &owner.directory.device,
			   owner.host, path,
			   list->run, &list->control_crc, &list->control_time, &list->control_checkpoint,
			   &length) != 9)
		return NULL;
	/* the version that wrote no marked_below wrote no counter either */
	has_counter = sscanf(contents + length, "counter %u\n%n", &list->counter, &more) == 1;
	length += more;
	path_of_line(path, owner.path);
	server_identity(&us);
	if (!file_identity_equals(&owner.directory, &us.directory) || !server_is_us(&owner))
		*is_ours = false;
	for (contents += length; strcmp(contents, "end\n") != 0; contents += length)
	{
		length = device_load(&list->devices[list->ndevices], contents,
							 has_counter);
		if (length == 0)
			return NULL;
		list->ndevices++;
	}
	return list;
}

/* Return the entry of a tablespace, or NULL. */
KnownDevice *
evidence_find_device(DeviceList *list, Oid tablespace)
{
	for (int i = 0; i < list->ndevices; i++)
	{
		if (list->devices[i].tablespace == tablespace)
			return &list->devices[i];
	}
	return NULL;
}

/* Add an entry; NULL if there is no place. */
KnownDevice *
evidence_add_device(DeviceList *list, Oid tablespace)
{
	KnownDevice *device;

	if (list->ndevices == list->max_devices)
		return NULL;
	device = &list->devices[list->ndevices++];
	memset(device, 0, sizeof(*device));
	device->tablespace = tablespace;
	return device;
}

/* Take these tablespaces off the list. */
void
evidence_remove_devices(DeviceList *list, const List *tablespaces)
{
	int			kept = 0;

	for (int i = 0; i < list->ndevices; i++)
	{
		if (!list_member_oid(tablespaces, list->devices[i].tablespace))
			list->devices[kept++] = list->devices[i];
	}
	list->ndevices = kept;
}
