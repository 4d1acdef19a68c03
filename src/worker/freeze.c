/*-------------------------------------------------------------------------
 *
 * freeze.c
 *	  VACUUM (FREEZE) of a table before it is copied (freeze_first => true).
 *
 * The visibility map goes along with a copy, so later vacuums, also against
 * wraparound, pass over the whole table.  Before the move they read from and
 * write to the storage that the table leaves.
 *
 * Locks: as VACUUM, ShareUpdateExclusiveLock, for which we do not queue: if it
 * cannot be had, the table is copied as it is.  The file is not truncated,
 * which would need AccessExclusiveLock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/vacuum.h"
#include "nodes/makefuncs.h"
#include "parser/parse_node.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "worker/worker.h"

/*
 * Vacuum and freeze the table of an item, with its TOAST table.  Returns with no
 * transaction open.  ERRORs: as VACUUM.
 */
void
freeze_table(const MoveItem *item)
{
	static MemoryContext context = NULL;
	MemoryContext oldcontext = CurrentMemoryContext;
	VacuumStmt *stmt;

	Assert(!IsTransactionState());
	if (item->relkind != RELKIND_RELATION && item->relkind != RELKIND_MATVIEW)
		return;
	progress_phase(PHASE_FREEZING);
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "index_mover freeze",
										ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(context);
	StartTransactionCommand();

	/* VACUUM ends this transaction, and this context outlives it */
	MemoryContextSwitchTo(context);
	PortalContext = context;
	stmt = makeNode(VacuumStmt);
	stmt->is_vacuumcmd = true;
	stmt->options = list_make3(makeDefElem("freeze", NULL, -1),
							   makeDefElem("skip_locked", NULL, -1),
							   makeDefElem("truncate", (Node *) makeString("false"), -1));
	stmt->rels = list_make1(makeVacuumRelation(NULL, item->relid, NIL));
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		ExecVacuum(make_parsestate(NULL), stmt, true);
		if (ActiveSnapshotSet())
			PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_FINALLY();
	{
		PortalContext = NULL;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcontext);
}
