/*-------------------------------------------------------------------------
 *
 * file_system.h
 *	  What the operating system knows of the place where a tablespace is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_FILE_SYSTEM_H
#define IM_FILE_SYSTEM_H

typedef struct FileSystemFacts
{
	int64		free_bytes;		/* available to the server */
	int64		total_bytes;
	int64		device;			/* the same number = the same file system */
	const char *lost_on_reboot; /* "tmpfs", "ramfs", or NULL */
} FileSystemFacts;

/* false where the directory can't be looked at; needs no privileges */
extern bool file_system_facts(Oid tablespace, FileSystemFacts *facts);

/* the same for a folder, given as a path */
extern bool folder_facts(const char *folder, FileSystemFacts *facts);

/* names of the other tablespaces on that device; a palloc'd List of char * */
extern List *tablespaces_on_device(int64 device, Oid but_not);

#endif							/* IM_FILE_SYSTEM_H */
