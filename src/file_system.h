/*-------------------------------------------------------------------------
 *
 * file_system.h
 *	  Files, file systems, and how large a relation is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_FILE_SYSTEM_H
#define IM_FILE_SYSTEM_H

#include "datatype/timestamp.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/rel.h"

#include "relation_facts.h"
#include "test_points.h"

typedef struct FileSystemFacts
{
	int64		free_bytes;		/* available to the server */
	int64		total_bytes;	/* 0 = not known, and neither are the free
								 * ones */
	int64		device;			/* the same number means the same free space */
} FileSystemFacts;

/* A directory's entry in the list of mounts */
typedef struct Mount
{
	char		type[32];		/* of the file system */
	char		source[MAXPGPATH];
	char		options[MAXPGPATH]; /* of the file system, not of the mount */
} Mount;

extern bool file_system_facts(Oid tablespace, FileSystemFacts *facts);
extern bool directory_facts(const char *directory, FileSystemFacts *facts);
extern bool directory_mount(const char *directory, Mount *mount);
extern const char *tablespace_hindrance(Oid tablespace);
extern const char *tablespace_name(Oid tablespace);
extern bool tablespace_is_missing(Oid tablespace);
extern void tablespace_make_directory(Oid tablespace);
extern const char *tablespace_lost_on_reboot(Oid tablespace);
extern const char *tablespace_loses_tables(Oid tablespace);
extern List *tablespaces_on_device(int64 device, Oid but_not);

extern void buffer_copy_page(Buffer buffer, char *page);
extern void file_drop_buffers(const RelFileLocator *locator, bool write);
extern BlockNumber file_blocks(const RelFileLocator *locator, ForkNumber fork);
extern char *relation_segment_path(const RelFileLocator *locator, ForkNumber fork,
								   BlockNumber block);

extern void mount_point_note(Oid tablespace);
extern void mount_point_check(Oid tablespace, bool force);

extern int	errcode_for_file_write(void);
extern char *size_text(int64 bytes);
extern TimestampTz file_birth(const RelationFacts *facts);
extern int64 relation_file_size(const RelFileLocator *locator);
extern int64 relation_main_size(const RelationFacts *facts);
extern int64 relation_files_size(Oid tablespace, RelFileNumber relfilenumber);
extern int64 relation_stored_size(Oid tablespace, RelFileNumber relfilenumber);

#endif							/* IM_FILE_SYSTEM_H */
