/*-------------------------------------------------------------------------
 *
 * mount_point.c
 *	  Below which mount point a tablespace is, and was.
 *
 * A server that starts before a file system is mounted must not take the
 * tablespace for lost.  So the mount point of a tablespace in order is noted, when a
 * job begins to move something there, and when the server starts.
 *
 * Limitation: a bind mount within one file system is not seen.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <sys/stat.h>

#include "catalog/pg_tablespace_d.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "compat.h"
#include "file_system.h"
#include "own_tables.h"
#include "relation_facts.h"

/* Return the mount point above the directory of a tablespace; NULL if that does not exist. */
char *
mount_point(Oid tablespace)
{
	char		directory[PATH_MAX];
	char		parent[PATH_MAX];
	struct stat here;
	struct stat above;

	if (realpath(tablespace == DEFAULTTABLESPACE_OID ? "base" : psprintf("pg_tblspc/%u", tablespace), directory) == NULL ||
		stat(directory, &here) != 0)
		return NULL;
	for (;;)
	{
		strlcpy(parent, directory, sizeof(parent));
		get_parent_directory(parent);
		if (strcmp(parent, directory) == 0 || parent[0] == '\0' ||
			stat(parent, &above) != 0 || above.st_dev != here.st_dev)
			return pstrdup(directory);
		strlcpy(directory, parent, sizeof(directory));
	}
}

/* Return the mount point that was noted for a tablespace; NULL if none was. */
char *
mount_point_noted(Oid tablespace)
{
	ScanKeyData key = extension_key(1, F_OIDEQ, ObjectIdGetDatum(tablespace));
	ExtensionScan scan;
	char	   *result = NULL;

	extension_scan_begin(&scan, "mount_point", 1, &key);
	while (extension_scan_next(&scan))
		result = TextDatumGetCString(scan.row.values[1]);
	return result;
}

/* Note the mount point of a tablespace that has its directory.  In a transaction. */
void
mount_point_note(Oid tablespace)
{
	char	   *now = tablespace_hindrance(tablespace) == NULL ? mount_point(tablespace) : NULL;
	char	   *before = now != NULL ? mount_point_noted(tablespace) : NULL;
	ScanKeyData key = extension_key(1, F_OIDEQ, ObjectIdGetDatum(tablespace));
	Row			row;

	if (now == NULL || (before != NULL && strcmp(before, now) == 0))
		return;
	(void) extension_delete("mount_point", 1, &key);
	row_clear(&row);
	row_set(&row, 1, ObjectIdGetDatum(tablespace));
	row_text(&row, 2, now);
	extension_insert("mount_point", &row);
}
