/*-------------------------------------------------------------------------
 *
 * mount_point.c
 *	  Below which mount point a tablespace is, and was.
 *
 * A server that starts before a file system is mounted finds an empty directory,
 * or none, and must not take the tablespace for lost.  So the mount point of what
 * is in order is noted, when a job begins to move something there, and when the
 * server starts.
 *
 * Limitation: a bind mount within one file system is not seen.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <sys/stat.h>

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_tablespace_d.h"
#include "utils/builtins.h"

#include "compat.h"
#include "file_system.h"
#include "own_tables.h"
#include "relation_facts.h"

/*
 * Return the mount point that the directory of a tablespace, whatever is in it, is
 * below; NULL if it does not exist.
 */
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

/* Find the row of a tablespace; return its mount point, or NULL. */
static char *
find_note(Relation rel, Oid tablespace, bool remove)
{
	char	   *result = NULL;

	foreach_ptr(HeapTupleData, row, catalog_all(RelationGetRelid(rel)))
	{
		bool		isnull;

		if (DatumGetObjectId(heap_getattr(row, 1, RelationGetDescr(rel), &isnull)) != tablespace)
			continue;
		result = TextDatumGetCString(heap_getattr(row, 2, RelationGetDescr(rel), &isnull));
		if (remove)
			(void) extension_delete(rel, row);
	}
	return result;
}

/* Return the mount point that was noted for a tablespace; NULL if none was. */
char *
mount_point_noted(Oid tablespace)
{
	Relation	rel = table_open(extension_relation("mount_point"), AccessShareLock);
	char	   *result = find_note(rel, tablespace, false);

	table_close(rel, AccessShareLock);
	return result;
}

/* Note the mount point of a tablespace that has its directory.  In a transaction. */
void
mount_point_note(Oid tablespace)
{
	char	   *now = tablespace_hindrance(tablespace) == NULL ? mount_point(tablespace) : NULL;
	char	   *before = now != NULL ? mount_point_noted(tablespace) : NULL;
	Datum		values[2] = {ObjectIdGetDatum(tablespace)};
	bool		nulls[2] = {false, false};
	Relation	rel;

	if (now == NULL || (before != NULL && strcmp(before, now) == 0))
		return;
	rel = extension_open("mount_point");
	(void) find_note(rel, tablespace, true);
	values[1] = CStringGetTextDatum(now);
	extension_insert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
	extension_close(rel);
}
