/*-------------------------------------------------------------------------
 *
 * file_compression.c
 *	  Whether the file system of a tablespace compresses, and with which algorithm.
 *
 * The type of a file system and its options are read from the list of mounts.  On btrfs, a
 * flag or a property of the directory, which new files inherit, comes before the mount option.
 * So we look at the directory of this database where it exists.  The level is always that of
 * the mount option.
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
#include <sys/xattr.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"

#include "file_compression.h"
#include "file_system.h"

/* if btrfs is not told a level */
#define BTRFS_ZSTD_LEVEL	3

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
set_by_options(FileCompression *result, char *options)
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
set_of_btrfs(FileCompression *result, const char *directory, char *options)
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

/* Find out by which algorithm new files of this database are compressed in a tablespace. */
void
file_compression(Oid tablespace, FileCompression *result)
{
	static const char *const never[] = {"ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs"};
	char	   *directory = GetDatabasePath(MyDatabaseId, tablespace);
	Mount		mount;

	memset(result, 0, sizeof(*result));
	/* core makes it with the first relation there */
	if (access(directory, F_OK) != 0)
		get_parent_directory(directory);
	if (!directory_mount(directory, &mount))
		return;
	strlcpy(result->file_system, mount.type, sizeof(result->file_system));
	if (strcmp(mount.type, "btrfs") == 0)
		set_of_btrfs(result, directory, mount.options);
	for (int i = 0; i < lengthof(never); i++)
	{
		if (strcmp(mount.type, never[i]) == 0)
			strcpy(result->algorithm, "none");
	}
}

/* Return whether it can still be foretold how much zstd stores of new files of this database. */
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
