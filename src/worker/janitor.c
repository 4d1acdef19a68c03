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

#include "access/htup_details.h"
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
#include "utils/guc.h"
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
#define RETRY_MS	5000
/* for files that were kept until then */
#define AGAIN_MS	(24 * 60 * 60 * 1000)

static bool heal_at_start = false;
static uint32 wait_event = 0;

PGDLLEXPORT void index_mover_janitor_main(Datum arg);

/* Define the setting, and have the janitor started; to be called from _PG_init(). */
void
janitor_register(void)
{
	BackgroundWorker worker = {0};

	DefineCustomBoolVariable("index_mover.heal_at_start",
							 "Whether lost indexes are rebuilt when the server has started.",
							 "In tablespaces with nothing but indexes, where the library is preloaded. Otherwise a WARNING tells of them.",
							 &heal_at_start, false, PGC_SUSET, 0, NULL, NULL, NULL);
	if (!process_shared_preload_libraries_in_progress)
		return;
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

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	foreach_ptr(HeapTupleData, row, catalog_all(DatabaseRelationId))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(row);

		MemoryContextSwitchTo(context);
		if (database->datallowconn)
			result = lappend_oid(result, database->oid);
	}
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

/* A tablespace with nothing but indexes. */
typedef struct Look
{
	Oid			tablespace;
	List	   *lost;			/* MoveItem, to be rebuilt */
	MoveSettings settings;
	int64		job;			/* the number of the job that does so */
	int			told;			/* SQLSTATE of the last error; 0 = none */
}			Look;

/* Look for lost indexes, and tell of them, or prepare to heal the tablespace. */
static void
look_at(void *arg)
{
	Look	   *look = arg;
	PlanRequest request = {.scope = SCOPE_TABLESPACE,.indexes = true,.heal = true,
	.method = METHOD_REBUILD,.object = look->tablespace,.to_tablespace = look->tablespace};
	List	   *lost = NIL;
	ListCell   *lc;

	settings_capture(&request.settings);
	foreach(lc, plan_moves(&request))
		if (((MoveItem *) lfirst(lc))->status == STATUS_PLANNED)
		lost = lappend(lost, lfirst(lc));
	if (lost == NIL)
		mount_point_note(request.object);
	else if (heal_at_start)
	{
		plan_check_mounted(request.object, request.settings.heal_unmounted);
		tablespace_make_directory(request.object);
		look->lost = lost;
		look->settings = request.settings;
		look->job = extension_nextval("job_seq");
	}
	else
		ereport(WARNING,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg_plural("%d index in tablespace \"%s\" is lost", "%d indexes in tablespace \"%s\" are lost",
							   list_length(lost), list_length(lost), get_tablespace_name(request.object)),
				 errhint("To rebuild them, in database \"%s\": %s", get_database_name(MyDatabaseId),
						 printed_command("heal", get_tablespace_name(request.object)))));
}

/* Start the job that heals the tablespace. */
static void
start_job(void *arg)
{
	Look	   *look = arg;
	dsm_segment *segment;
	JobShared  *shared = job_launch_create(look->job, MyDatabaseId, GetUserId(), JOB_MOVE, JOB_STARTING,
										   look->lost, &look->settings, false, &segment);

	(void) job_launch_worker(shared->slot, look->job, false);
	dsm_detach(segment);
}

/* Do a step in a transaction.  Returns false after an error, which is a WARNING once. */
static bool
try_step(void (*step) (void *arg), Look * look)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *error;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	MemoryContextSwitchTo(context);
	error = errors_catch(step, look);
	if (error != NULL && error->sqlerrcode != look->told)
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("could not look for lost indexes: %s", error->message),
				 error->detail ? errdetail_internal("%s", error->detail) : 0,
				 error->hint ? errhint("%s", error->hint) : 0));
	look->told = error != NULL ? error->sqlerrcode : 0;
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return error == NULL;
}

/*
 * Look for lost indexes in this database, in the tablespaces in which there is
 * nothing else.  Called with no transaction open.  Waits until a job can start: others
 * may have all workers, or its tables, if several databases or devices are lost.
 */
void
janitor_look(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *tablespaces = NIL;
	List	   *others = list_make1_oid(InvalidOid);	/* the database's
														 * default */
	ListCell   *lc;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	foreach_ptr(HeapTupleData, row, extension_installed() ? catalog_all(RelationRelationId) : NIL)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		List	  **list = form->relkind == RELKIND_INDEX ? &tablespaces : &others;

		MemoryContextSwitchTo(context);
		if (RELKIND_HAS_STORAGE(form->relkind))
			*list = list_append_unique_oid(*list, form->reltablespace);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	foreach(lc, list_difference_oid(tablespaces, others))
	{
		Look		look = {.tablespace = lfirst_oid(lc)};

		if (!try_step(look_at, &look))
			continue;
		while (look.lost != NIL && !try_step(start_job, &look) &&
			   (look.told == ERRCODE_INSUFFICIENT_RESOURCES || look.told == ERRCODE_OBJECT_IN_USE))
			wait_a_while(RETRY_MS);
	}
}

/* Run a cleanup worker in each database. */
static void
visit_databases(void)
{
	ListCell   *lc;

	foreach(lc, list_databases())
	{
		BackgroundWorkerHandle *worker;
		pid_t		pid;

		while ((worker = job_launch_cleanup(lfirst_oid(lc), BOOTSTRAP_SUPERUSERID, MyProcPid)) == NULL)
			wait_a_while(RETRY_MS);
		while (GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
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
			wait_a_while(missing != 0 ? RETRY_MS : AGAIN_MS);
		while (missing_tablespaces() == missing &&
			   !TimestampDifferenceExceeds(visited, GetCurrentTimestamp(), AGAIN_MS));
	}
}
