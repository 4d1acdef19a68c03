/*-------------------------------------------------------------------------
 *
 * emptying.c
 *	  The worker that empties the files of the lost indexes of a database.
 *
 * The launcher starts one for each database, one after the other, whenever something new is lost,
 * and again where files are left.  It waits for no cleanup, since one can read a device for hours:
 * meanwhile clients would use the old files.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"

#include "channel.h"
#include "errors.h"
#include "lost_guard.h"
#include "worker/worker.h"

PGDLLEXPORT void index_mover_empty_main(Datum arg);

/* Empty the files of the lost indexes of the database, and set the answer. */
static void
empty_files(void *arg)
{
	EmptyTask  *task = arg;
	MemoryContext context = CurrentMemoryContext;

	worker_connect_as(task->database, BOOTSTRAP_SUPERUSERID);
	PG_TRY();
	{
		task->left_files = lost_guard_empty_all(task->is_again);
		task->done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error = errors_take(context);

		ereport(LOG,
				(errmsg("could not empty the files of lost indexes: %s", error->message),
				 errors_repeat(error)));
	}
	PG_END_TRY();
}

void
index_mover_empty_main(Datum arg)
{
	EmptyTask	task;

	channel_carry_out(arg, &task, sizeof(task), empty_files);
}
