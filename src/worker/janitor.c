/*-------------------------------------------------------------------------
 *
 * janitor.c
 *	  Automatic cleanup at server start, if the library is preloaded.
 *
 * Moves that a shutdown, a crash or a promotion has interrupted may have left
 * files or invalid indexes behind.  The janitor starts a cleanup worker in each
 * database, one after the other, because worker slots are scarce.
 *
 * These also look for indexes that are lost, in tablespaces with nothing else.
 *
 * Then it sleeps: after a crash, the postmaster starts a worker again only if
 * it was alive.  While the directory of a tablespace is missing, which may be on
 * a file system that is mounted late, it looks now and then whether it has come;
 * and once a day it does all of this again.
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
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/tablespace.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "errors.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"
#include "worker/worker.h"

#define RESTART_S	60
#define POLL_MS		100
#define MOUNT_POLL_MS	5000
/* for files that were kept until then */
#define AGAIN_MS	(24 * 60 * 60 * 1000)

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

/*
 * Return a number that changes when the directory of a tablespace comes; 0 if all are
 * there.  Without a database, pg_tablespace cannot be read.
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
		char	   *mount;

		if (!OidIsValid(tablespace) || tablespace_hindrance(tablespace) == NULL)
			continue;
		mount = mount_point(tablespace);
		result += tablespace + (mount ? (uint64) string_hash(mount, MAXPGPATH) << 32 : 0);
	}
	FreeDir(dir);
	return result;
}

/* Start a job for a plan; for the janitor's look. */
static void
start_job(List *items, const MoveSettings *settings)
{
	HTAB	   *busy = job_busy_tables();
	dsm_segment *segment;
	JobShared  *shared;
	ListCell   *lc;
	int64		job = extension_nextval("job_seq");

	/* a job is at it */
	foreach(lc, items)
		if (hash_search(busy, &((MoveItem *) lfirst(lc))->heap_oid, HASH_FIND, NULL) != NULL)
		return;
	shared = job_launch_create(job, MyDatabaseId, GetUserId(), JOB_MOVE, JOB_STARTING,
							   items, settings, false, &segment);
	(void) job_launch_worker(shared->slot, job, false);
	dsm_detach(segment);
}

/* Look at one tablespace with nothing but indexes: tell of lost ones, or heal it. */
static void
look_at(void *arg)
{
	PlanRequest request = {.scope = SCOPE_TABLESPACE,.indexes = true,.heal = true,
	.method = METHOD_REBUILD,.object = *(Oid *) arg,.to_tablespace = *(Oid *) arg};
	List	   *lost = NIL;
	ListCell   *lc;

	settings_capture(&request.settings);
	foreach(lc, plan_moves(&request))
		if (((MoveItem *) lfirst(lc))->status == STATUS_PLANNED)
		lost = lappend(lost, lfirst(lc));
	if (lost == NIL)
		mount_point_note(request.object);
	else if (request.settings.heal_at_start)
	{
		plan_check_mounted(request.object, request.settings.heal_unmounted);
		tablespace_make_directory(request.object);
		start_job(lost, &request.settings);
	}
	else
		ereport(WARNING,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg_plural("%d index in tablespace \"%s\" is lost", "%d indexes in tablespace \"%s\" are lost",
							   list_length(lost), list_length(lost), get_tablespace_name(request.object)),
				 errhint("To rebuild them, in database \"%s\": %s", get_database_name(MyDatabaseId),
						 printed_command("heal", get_tablespace_name(request.object)))));
}

/*
 * Look for lost indexes in this database, in the tablespaces in which there is
 * nothing else.  Called with no transaction open; an error is written to the log.
 */
void
janitor_look(void)
{
	Relation	pg_class;
	TableScanDesc scan;
	HeapTuple	tuple;
	List	   *tablespaces = NIL;
	List	   *others = list_make1_oid(InvalidOid);	/* the database's
														 * default */
	ListCell   *lc;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pg_class = table_open(RelationRelationId, AccessShareLock);
	scan = table_beginscan_catalog(pg_class, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind == RELKIND_INDEX)
			tablespaces = list_append_unique_oid(tablespaces, form->reltablespace);
		else if (RELKIND_HAS_STORAGE(form->relkind))
			others = list_append_unique_oid(others, form->reltablespace);
	}
	table_endscan(scan);
	table_close(pg_class, AccessShareLock);
	foreach(lc, extension_installed() ? list_difference_oid(tablespaces, others) : NIL)
	{
		ErrorData  *error = errors_catch(look_at, &lfirst_oid(lc));

		if (error != NULL)
			ereport(LOG,
					(errcode(error->sqlerrcode),
					 errmsg("could not look for lost indexes: %s", error->message),
					 error->detail ? errdetail_internal("%s", error->detail) : 0,
					 error->hint ? errhint("%s", error->hint) : 0));
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
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

/* Run a cleanup worker in each database. */
static void
visit_databases(void)
{
	ListCell   *lc;

	foreach(lc, list_databases())
	{
		BackgroundWorkerHandle *worker = job_launch_cleanup(lfirst_oid(lc), BOOTSTRAP_SUPERUSERID,
															MyProcPid);
		pid_t		pid;

		while (worker != NULL && GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
			wait_a_while(POLL_MS);
	}
}

void
index_mover_janitor_main(Datum arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	for (;;)
	{
		uint64		missing = missing_tablespaces();
		TimestampTz visited = GetCurrentTimestamp();

		visit_databases();
		do
			wait_a_while(missing != 0 ? MOUNT_POLL_MS : AGAIN_MS);
		while (missing_tablespaces() == missing &&
			   !TimestampDifferenceExceeds(visited, GetCurrentTimestamp(), AGAIN_MS));
	}
}
