/*-------------------------------------------------------------------------
 *
 * janitor.c
 *	  Automatic cleanup at server start, if the library is preloaded.
 *
 * Moves that a shutdown, a crash or a promotion has interrupted may have left
 * files or invalid indexes behind.  The janitor starts a cleanup worker in each
 * database, one after the other, because worker slots are scarce.
 *
 * Then it sleeps: after a crash, the postmaster starts a worker again only if
 * it was alive.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "worker/worker.h"

#define RESTART_S	60
#define POLL_MS		100

static uint32 wait_event = 0;

PGDLLEXPORT void index_mover_janitor_main(Datum arg);

/* Register the janitor; to be called from _PG_init(), while preloading. */
void
janitor_register(void)
{
	BackgroundWorker worker = {0};

	worker_describe(&worker, "index_mover janitor", "index_mover_janitor_main");
	worker.bgw_restart_time = RESTART_S;
	RegisterBackgroundWorker(&worker);
}

/* List the databases that allow connections, in the current context. */
static List *
list_databases(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *result = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);

		MemoryContextSwitchTo(context);
		if (database->datallowconn)
			result = lappend_oid(result, database->oid);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

static void
wait_a_while(long timeout_ms)
{
	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout_ms >= 0 ? WL_TIMEOUT : 0),
					 timeout_ms,
					 IM_WAIT_EVENT(wait_event, "IndexMoverJanitor"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

void
index_mover_janitor_main(Datum arg)
{
	ListCell   *lc;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	foreach(lc, list_databases())
	{
		BackgroundWorkerHandle *worker = job_launch_cleanup(lfirst_oid(lc), BOOTSTRAP_SUPERUSERID,
															MyProcPid);
		pid_t		pid;

		while (worker != NULL && GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
			wait_a_while(POLL_MS);
	}
	for (;;)
		wait_a_while(-1);
}
