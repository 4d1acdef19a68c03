/*-------------------------------------------------------------------------
 *
 * device_marker.h
 *	  The file by which the device below a tablespace is told from others.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_DEVICE_MARKER_H
#define IM_DEVICE_MARKER_H

#include "common/relpath.h"

#include "compat.h"

/* in a tablespace's location */
#define MARKER_NAME		"index_mover." TABLESPACE_VERSION_DIRECTORY

/* Tells a file from a copy of it */
typedef struct FileIdentity
{
	uint64		inode;			/* 0: there is no file */
	int64		birth;			/* in nanoseconds since 1970; 0: the file
								 * system does not tell */
	uint64		device;			/* counts only without a birth */
} FileIdentity;

/* A server, by its data directory */
typedef struct ServerIdentity
{
	FileIdentity directory;
	char		host[64];
	char		path[MAXPGPATH];
} ServerIdentity;

/* For a path as it stands in a file: line_of_path() */
#define PATH_LINE_SIZE	(2 * MAXPGPATH)

/* 16 random bytes in hexadecimal digits */
#define DEVICE_ID_SIZE	33

typedef enum MarkerState
{
	MARKER_NONE,
	MARKER_OURS,				/* of this server, or of a server that is gone */
	MARKER_COPY,				/* a program has copied the file, maybe with
								 * all around it */
	MARKER_FOREIGN,				/* of another server */
	MARKER_UNREADABLE,
} MarkerState;

/* A look at a tablespace's location */
typedef struct DeviceLook
{
	MarkerState marker;
	bool		has_marker_file;	/* which may be damaged */
	char		id[DEVICE_ID_SIZE]; /* "" if there is no marker, or none with
									 * a number */
	uint32		epoch;			/* as the marker says */
	FileIdentity beside;		/* the directory as the marker names it */
	ServerIdentity owner;		/* as the marker says */
	FileIdentity directory;		/* that of the server's version */
	bool		is_empty;		/* no directory of a database is in it */
	bool		is_in_place;	/* within the data directory: no marker */
} DeviceLook;

extern bool file_identity(const char *path, FileIdentity *identity);
extern bool file_identity_equals(const FileIdentity *a, const FileIdentity *b);
extern bool own_file_write(const char *path, const char *head, const char *body);
extern char *own_file_read(const char *path, const char *head, bool *is_itself);
extern char *line_of_path(const char *path);
extern void path_of_line(const char *line, char *path);
extern void server_identity(ServerIdentity *server);
extern bool server_is_us(const ServerIdentity *server);
extern void device_id_make(char *id);

extern void device_look(Oid tablespace, DeviceLook *look);
extern bool device_mark(Oid tablespace, uint32 epoch, DeviceLook *look);
extern bool device_mark_again(Oid tablespace, uint32 epoch, DeviceLook *look);
extern bool device_claim(Oid tablespace, DeviceLook *look);
extern void device_location(Oid tablespace, char *location);
extern void device_unmark(const char *location, const char *id);

#endif							/* IM_DEVICE_MARKER_H */
