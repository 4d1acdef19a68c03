/*-------------------------------------------------------------------------
 *
 * launcher_visits.c
 *	  The list of the launcher's visits, and the databases that can be visited.
 *
 * Locks: AccessShareLock on pg_database, for a moment.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "own_tables.h"
#include "worker/launcher_private.h"

int64		launcher_first_visits = 0;	/* before, no look and no cleanup
										 * begins */
MemoryContext launcher_context;
List	   *launcher_visits = NIL;	/* of Visit */
Visit	   *launcher_watch;		/* the only visit of its kind, always on the
								 * list */

/* List the databases that accept connections, with closed_too also the others; or that of this name. */
List *
launcher_list_databases(const char *name, bool closed_too)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *result = NIL;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	foreach_ptr(HeapTupleData, row, catalog_all(DatabaseRelationId))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(row);

		MemoryContextSwitchTo(context);
		if ((database->datallowconn || closed_too) &&
			database->datconnlimit != DATCONNLIMIT_INVALID_DB &&
			(name == NULL || strcmp(NameStr(database->datname), name) == 0))
			result = lappend_oid(result, database->oid);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

Visit *
launcher_add_visit(VisitKind kind, int64 due)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(launcher_context);
	Visit	   *visit = palloc0_object(Visit);

	visit->kind = kind;
	visit->due = due;
	launcher_visits = lappend(launcher_visits, visit);
	MemoryContextSwitchTo(oldcontext);
	return visit;
}

/* Take a visit out of the list, which is not to be in a loop through it. */
void
launcher_remove_visit(Visit *visit)
{
	Assert(visit->context == NULL && visit->answer == NULL);
	launcher_visits = list_delete_ptr(launcher_visits, visit);
	pfree(visit);
}

/* The worker of a visit is gone, or was none. */
void
launcher_forget_worker(Visit *visit)
{
	if (visit->answer != NULL)
		dsm_detach(visit->answer);
	visit->answer = NULL;
	visit->worker = NULL;
	MemoryContextDelete(visit->context);
	visit->context = NULL;
}
