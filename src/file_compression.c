/*-------------------------------------------------------------------------
 *
 * file_compression.c
 *	  Whether the file system of a tablespace compresses, and by what.
 *
 * The type of a file system and its options are read from the list of mounts, by the
 * number of the mount.  (The device number does not do: on btrfs that of a file is not
 * that of its mount.)  On btrfs, a flag or a property of the directory, which new files
 * inherit, comes before the mount option.  So we look at the directory of this database
 * where it exists.  The level is always that of the mount option.
 *
 * Tricky: with the mount option "compress" alone, btrfs gives compression up for a whole file,
 * which is 1 GB here, once a write of it did not get smaller.  That is easily a single block
 * written back alone.  Not so with "compress-force", or a property.
 *
 * Not known: what ZFS, and file systems below others (NFS, overlay, FUSE) do.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/string.h"
#include "miscadmin.h"
#include "storage/fd.h"

#include "file_compression.h"
#include "test_points.h"

/* if btrfs is not told a level */
#define BTRFS_ZSTD_LEVEL	3

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
 * Find the type of the file system of a directory, and its options, in the list of mounts.
 * Returns whether it is there; both are palloc'd.
 */
static bool
find_mount(const char *directory, char **type, char **options)
{
	uint64		number = mount_number(directory);
	FILE	   *file = number == 0 ? NULL : AllocateFile(IM_MOUNTS, "r");
	StringInfoData line;
	bool		found = false;

	if (file == NULL)
		return false;
	initStringInfo(&line);
	/* number ... - type source options */
	while (!found && pg_get_line_buf(file, &line))
	{
		char	   *at = strstr(line.data, " - ");
		char	   *rest = NULL;
		char	   *name;

		if (at == NULL || strtoul(line.data, NULL, 10) != number)
			continue;
		name = strtok_r(at + 3, " ", &rest);
		if (name == NULL || strtok_r(NULL, " ", &rest) == NULL)
			continue;
		*type = pstrdup(name);
		*options = pstrdup(rest);
		(*options)[strcspn(*options, "\n")] = '\0';
		found = true;
	}
	FreeFile(file);
	return found;
}

/* Get the flags of a directory, as lsattr(1) shows them; 0 if there are none. */
static int
directory_flags(const char *directory)
{
	int			fd = OpenTransientFile(directory, O_RDONLY | O_DIRECTORY);
	int			flags = 0;

	if (fd < 0)
		return 0;
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0)
		flags = 0;
	CloseTransientFile(fd);
	return flags;
}

/*
 * Set the algorithm of a mount by its options; "none" if they name none.  Returns whether it
 * compresses at all, by an option or a property: btrfs does not without checksums.
 */
static bool
set_by_options(FileCompression * result, char *options)
{
	char	   *rest = NULL;
	bool		compresses = true;

	strcpy(result->algorithm, "none");
	for (char *option = strtok_r(options, ",", &rest); option != NULL;
		 option = strtok_r(NULL, ",", &rest))
	{
		if (strcmp(option, "nodatasum") == 0 || strcmp(option, "nodatacow") == 0)
			compresses = false;
		else if (strncmp(option, "compress=", 9) == 0 ||
				 strncmp(option, "compress-force=", 15) == 0)
		{
			strlcpy(result->algorithm, strchr(option, '=') + 1, sizeof(result->algorithm));
			result->steady = strncmp(option, "compress-force=", 15) == 0;
		}
	}
	return compresses;
}

/* Return the level of an algorithm as in "zstd:9"; else the usual one. */
static int
level_of(const char *algorithm, int usual)
{
	const char *colon = strchr(algorithm, ':');

	return colon == NULL ? usual : atoi(colon + 1);
}

static void
set_of_btrfs(FileCompression * result, const char *directory, char *options)
{
	int			flags = directory_flags(directory);
	char		property[sizeof(result->algorithm)];
	ssize_t		len = getxattr(directory, "btrfs.compression", property, sizeof(property) - 1);
	bool		compresses = set_by_options(result, options);
	int			level = level_of(result->algorithm, BTRFS_ZSTD_LEVEL);

	if (!compresses || (flags & (FS_NOCOW_FL | FS_NOCOMP_FL)) != 0)
		strcpy(result->algorithm, "none");
	else if (len > 0)
	{
		property[len] = '\0';
		strlcpy(result->algorithm, property, sizeof(result->algorithm));
		result->steady = true;
	}
	else if ((flags & FS_COMPR_FL) != 0 && strcmp(result->algorithm, "none") == 0)
		strcpy(result->algorithm, "zlib");
	if (strncmp(result->algorithm, "zstd", 4) == 0)
		result->zstd_level = level_of(result->algorithm, level);
}

/* Find out by what new files of this database are compressed in a tablespace. */
void
file_compression(Oid tablespace, FileCompression * result)
{
	static const char *const never[] = {"ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs"};
	char	   *directory = GetDatabasePath(MyDatabaseId, tablespace);
	char	   *type;
	char	   *options;

	memset(result, 0, sizeof(*result));
	/* core makes it with the first relation there */
	if (access(directory, F_OK) != 0)
		get_parent_directory(directory);
	if (!find_mount(directory, &type, &options))
		return;
	strlcpy(result->file_system, type, sizeof(result->file_system));
	if (strcmp(type, "btrfs") == 0)
		set_of_btrfs(result, directory, options);
	for (int i = 0; i < lengthof(never); i++)
	{
		if (strcmp(type, never[i]) == 0)
			strcpy(result->algorithm, "none");
	}
}

/* Return whether it can still be foretold what zstd stores of new files of this database. */
bool
file_compression_is_steady(Oid tablespace)
{
	FileCompression compression;

	file_compression(tablespace, &compression);
	return compression.zstd_level != 0 && compression.steady;
}

/* Return whether new files of this database are known to be compressed in a tablespace. */
bool
file_compression_is_on(Oid tablespace)
{
	FileCompression compression;

	file_compression(tablespace, &compression);
	return compression.algorithm[0] != '\0' && strcmp(compression.algorithm, "none") != 0;
}
