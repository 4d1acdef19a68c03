/*-------------------------------------------------------------------------
 *
 * device_watch.c
 *	  A worker that the launcher has started looks at the devices of all tablespaces.
 *
 * A device can hang: a look at a network's file system may not return for hours, and no
 * signal ends it.  So neither the launcher nor a session does that for others.  It ends with its
 * launcher, or the postmaster, as soon as the device answers.
 *
 * It takes no part in the barriers of procsignal.c, which DROP DATABASE and DROP TABLESPACE,
 * and their replay on a standby, have all processes pass: it has no files of relations open.
 * So it does without BackgroundWorkerInitializeConnection(), and can read no catalog.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "miscadmin.h"
#include "storage/fd.h"

#include "channel.h"
#include "compat.h"
#include "evidence.h"
#include "file_system.h"
#include "worker/worker.h"

PGDLLEXPORT void index_mover_watch_main(Datum arg);

/*
 * Return a number that changes when the directory of a tablespace comes, or a file
 * system is mounted there; 0 if all are there.  Without a database, pg_tablespace
 * cannot be read.
 */
static uint64
missing_tablespaces(void)
{
	DIR		   *dir = AllocateDir("pg_tblspc");
	struct dirent *entry;
	uint64		result = 0;

	while ((entry = ReadDirExtended(dir, "pg_tblspc", LOG)) != NULL)
	{
		Oid			tablespace = atooid(entry->d_name);
		char		path[MAXPGPATH];
		struct stat st;

		if (!OidIsValid(tablespace) || tablespace_hindrance(tablespace) == NULL)
			continue;
		snprintf(path, sizeof(path), "pg_tblspc/%s", entry->d_name);
		result += 1;
		if (stat(path, &st) == 0)
			result += (uint64) st.st_dev << 32;
	}
	FreeDir(dir);
	return result;
}

/* Look at all devices, and set the answer. */
static void
look_at_devices(void *arg)
{
	WatchTask  *task = arg;

	if (task->settles)
		evidence_settle();
	evidence_look();
	CHECK_FOR_INTERRUPTS();
	task->missing = missing_tablespaces();
	task->done = true;
}

void
index_mover_watch_main(Datum arg)
{
	WatchTask	task;

	channel_carry_out(arg, &task, sizeof(task), look_at_devices);
}
