/*-------------------------------------------------------------------------
 *
 * janitor.c
 *	  Automatic cleanup at server start, if the library is preloaded.
 *
 * Moves that a shutdown, a crash or a promotion has interrupted may have left
 * files or invalid indexes behind.  The janitor starts a cleanup worker in each
 * database, one after the other, because worker slots are scarce.  These also look
 * for indexes that are lost, in tablespaces with nothing else.
 *
 * Then it sleeps: after a crash, the postmaster starts a worker again only if
 * it was alive.  While the directory of a tablespace is missing, which may be on
 * a file system that is mounted late, it looks now and then whether it has come;
 * and once a day it does all of this again.
 *
 * It also watches the devices of the tablespaces, on a standby, too: see evidence.c.  Where
 * one is not known, or lost, the round through the databases looks at all files there; if
 * all are whole in every database, the matter is settled.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_tablespace.h"
#include "commands/dbcommands.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "history.h"
#include "lost_guard.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"
#include "test_points.h"
#include "worker/worker.h"

#define RESTART_S	60
#define POLL_MS		100
/* on a standby: for the end of recovery */
#define STANDBY_MS	1000
#define RETRY_MS	5000
/* a look may read all pages of relations that are not lost */
#define LOOK_AGAIN_MS	IM_LIMIT("look-again", 20000)
/* after jobs that heal: doubled each time, this often */
#define MOST_DOUBLINGS	8
/* for files that were kept until then */
#define AGAIN_MS	(24 * 60 * 60 * 1000)
/* while a device is not known, or files are lost: a user may have healed it */
#define DOUBTFUL_MS	(60 * 60 * 1000)


PGDLLEXPORT void index_mover_janitor_main(Datum arg);

/* Have the janitor started; to be called from _PG_init(). */
void
janitor_register(void)
{
	BackgroundWorker worker = {0};

	if (!process_shared_preload_libraries_in_progress)
		return;
	worker_describe(&worker, "index_mover janitor", "index_mover_janitor_main");
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = RESTART_S;
	RegisterBackgroundWorker(&worker);
}

/* List the databases that accept connections, or the one of this name. */
List *
worker_databases(const char *name)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *result = NIL;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	foreach_ptr(HeapTupleData, row, catalog_all(DatabaseRelationId))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(row);

		MemoryContextSwitchTo(context);
		if (database->datallowconn && database->datconnlimit != DATCONNLIMIT_INVALID_DB &&
			(name == NULL || strcmp(NameStr(database->datname), name) == 0))
			result = lappend_oid(result, database->oid);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

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
		char		path[MAXPGPATH];
		struct stat st;

		if (!OidIsValid(atooid(entry->d_name)) || tablespace_hindrance(atooid(entry->d_name)) == NULL)
			continue;
		snprintf(path, sizeof(path), "pg_tblspc/%s", entry->d_name);
		result += 1 + (stat(path, &st) == 0 ? (uint64) st.st_dev << 32 : 0);
	}
	FreeDir(dir);
	return result;
}

/* To be called outside of transactions. */
static void
wait_a_while(long timeout_ms)
{
	Assert(!IsTransactionState());
	latch_nap(timeout_ms, "IndexMoverJanitor");
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* A tablespace to look at; with nothing but indexes, what is lost there may be rebuilt. */
typedef struct LookAt
{
	Oid			tablespace;
	bool		has_tables;
	bool		healing;		/* set: a job has begun, or has to wait */
} LookAt;

/*
 * Make the directory of a tablespace in which this database has nothing, if it came back empty:
 * temporary files are to be there.  To make it does no harm to what other databases have.
 */
static void
look_at_unused(void *arg)
{
	Oid			tablespace = *(const Oid *) arg;

	if (tablespace_hindrance(tablespace) == NULL)
		mount_point_note(tablespace);
	else if (tablespace_is_missing(tablespace) && evidence_may_remove(tablespace))
	{
		mount_point_check(tablespace, false);
		tablespace_make_directory(tablespace);
		ereport(LOG,
				(errmsg("made the directory of tablespace \"%s\"", tablespace_name(tablespace)),
				 errdetail("It was missing, so there could be no temporary files.")));
	}
}

/* Look at these tablespaces.  A file system that may not be mounted is looked at again when it is. */
static void
look_at_all_unused(List *tablespaces)
{
	foreach_oid(tablespace, tablespaces)
	{
		ErrorData  *error = errors_catch_in_transaction(look_at_unused, &tablespace);

		if (error != NULL)
			ereport(LOG,
					(errcode(error->sqlerrcode),
					 errmsg("could not make the directory of a tablespace: %s", error->message),
					 error->detail ? errdetail_internal("%s", error->detail) : 0));
	}
}

/* Tell of the lost indexes of a tablespace, or start a job that rebuilds them. */
static void
look_at(void *arg)
{
	LookAt	   *what = arg;
	Oid			tablespace = what->tablespace;
	bool		heals = heal_at_start && !what->has_tables && evidence_may_remove(tablespace);
	char	   *name = get_tablespace_name(tablespace);
	PlanRequest request = {.scope = SCOPE_TABLESPACE,.indexes = true,.heal = true,
	.method = METHOD_REBUILD,.object = tablespace,.to_tablespace = tablespace};
	List	   *lost = NIL;
	List	   *plan;
	HTAB	   *busy = job_busy_tables();

	settings_capture(&request.settings, NULL, false);
	plan = plan_moves(&request);
	foreach_ptr(MoveItem, item, plan)
	{
		/* a job may be at it; a job of ours waits for that one's end */
		if (item->status == STATUS_PLANNED &&
			(heals || hash_search(busy, &item->relid, HASH_FIND, NULL) == NULL))
			lost = lappend(lost, item);
	}
	if (plan != NIL)
		evidence_refute(tablespace);
	if (!plan_has_moves(plan))
		mount_point_note(tablespace);
	else if (heals && GetCurrentTimestamp() < job_look()->again_at)
		what->healing = true;
	else if (heals)
	{
		dsm_segment *segment;
		JobShared  *shared;

		mount_point_check(tablespace, false);
		tablespace_make_directory(tablespace);
		shared = job_launch_create(history_next_job(), MyDatabaseId, GetUserId(), JOB_MOVE, JOB_STARTING,
								   lost, &request.settings, false, &segment);
		(void) job_launch_worker(shared->slot, shared->job);
		dsm_detach(segment);
		what->healing = true;
	}
	else if (lost != NIL)
		ereport(WARNING,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg_plural("%d index in tablespace \"%s\" is lost", "%d indexes in tablespace \"%s\" are lost",
							   list_length(lost), list_length(lost), name),
				 errhint("To rebuild them, in database \"%s\": %s", get_database_name(MyDatabaseId),
						 printed_command("heal", name))));
}

/*
 * Look for lost indexes in this database, in the tablespaces in which there is
 * nothing else, or whose device is not known.  Called with no transaction open.  Stops where a job cannot start yet:
 * other jobs may have all workers, or its tables, if several databases or devices are
 * lost.  The janitor goes on from there, and meanwhile the session is not in the way.
 */
void
janitor_look(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *tablespaces = NIL;
	List	   *others = list_make1_oid(MyDatabaseTableSpace);
	List	   *unused = NIL;
	Look	   *look = job_look();
	bool		healing = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	lost_guard_empty_files();
	foreach_ptr(HeapTupleData, row, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		List	  **list = form->relkind == RELKIND_INDEX ? &tablespaces : &others;

		/*
		 * what a session that crashed has left of temporary ones is nothing
		 * to keep
		 */
		if (!RELKIND_HAS_STORAGE(form->relkind) || form->relpersistence == RELPERSISTENCE_TEMP)
			continue;
		MemoryContextSwitchTo(context);
		*list = list_append_unique_oid(*list, tablespace_from_catalog(form->reltablespace));
		if (evidence_knows_lost(row))
			evidence_refute(tablespace_from_catalog(form->reltablespace));
	}
	MemoryContextSwitchTo(context);
	foreach_ptr(HeapTupleData, row, catalog_all(TableSpaceRelationId))
	{
		Oid			tablespace = ((Form_pg_tablespace) GETSTRUCT(row))->oid;

		MemoryContextSwitchTo(context);
		if (tablespace >= FirstNormalObjectId && !list_member_oid(tablespaces, tablespace) &&
			!list_member_oid(others, tablespace))
			unused = lappend_oid(unused, tablespace);
	}
	MemoryContextSwitchTo(context);
	tablespaces = list_difference_oid(tablespaces, others);
	foreach_oid(tablespace, evidence_doubtful())
	{
		if (list_member_oid(others, tablespace))
			tablespaces = list_append_unique_oid(tablespaces, tablespace);
	}
	if (!extension_installed())
		tablespaces = unused = NIL;
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	list_sort(tablespaces, list_oid_cmp);
	look_at_all_unused(unused);
	foreach_oid(tablespace, tablespaces)
	{
		LookAt		what = {tablespace, list_member_oid(others, tablespace)};
		ErrorData  *error = NULL;
		bool		later;

		if (tablespace >= look->from)
			error = errors_catch_in_transaction(look_at, &what);
		later = error != NULL && (error->sqlerrcode == ERRCODE_OBJECT_IN_USE ||
								  error->sqlerrcode == ERRCODE_INSUFFICIENT_RESOURCES);
		if (error != NULL)
			evidence_refute(tablespace);

		if (error != NULL && (!later || tablespace != look->from))
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("could not look for lost indexes: %s", error->message),
					 error->detail ? errdetail_internal("%s", error->detail) : 0,
					 error->hint ? errhint("%s", error->hint) : 0));

		/*
		 * the janitor sees to it that a job has no failures, or begins
		 * another one
		 */
		if ((later || what.healing) && !OidIsValid(look->stopped))
			look->stopped = tablespace;
		healing |= what.healing;
		if (later)
			break;
	}
	if (healing && GetCurrentTimestamp() >= look->again_at)
		look->again_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 (int64) LOOK_AGAIN_MS << Min(look->jobs++, MOST_DOUBLINGS));
	look->done = true;
}

/* Return a list of looks, one for each database. */
static List *
first_looks(void)
{
	List	   *result = NIL;

	foreach_oid(database, worker_databases(NULL))
	{
		Look	   *look = palloc0_object(Look);

		look->database = database;
		result = lappend(result, look);
	}
	return result;
}

/*
 * Run a cleanup worker for each of these looks, and return those that are to go on.  If all
 * came to their end, *complete stays.
 */
static List *
visit_databases(const List *looks, bool *complete)
{
	List	   *put_off = NIL;
	bool		told = false;

	foreach_ptr(Look, look, looks)
	{
		BackgroundWorkerHandle *worker;
		pid_t		pid;

		*job_look() = *look;
		while ((worker = job_launch_cleanup(CLEANUP_JOB, look->database, BOOTSTRAP_SUPERUSERID, NIL, MyProcPid)) == NULL)
		{
			if (!told)
				job_launch_warn();
			told = true;
			wait_a_while(RETRY_MS);
		}
		while (GetBackgroundWorkerPid(worker, &pid) != BGWH_STOPPED)
			wait_a_while(POLL_MS);
		*look = *job_look();
		look->from = look->stopped;
		look->stopped = InvalidOid;
		*complete &= job_look()->done;
		if (OidIsValid(look->from))
			put_off = lappend(put_off, look);
	}
	return put_off;
}

void
index_mover_janitor_main(Datum arg)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext, "index_mover janitor", ALLOCSET_SMALL_SIZES);

	worker_unblock_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	MemoryContextSwitchTo(context);
	evidence_watch();
	while (RecoveryInProgress())
	{
		evidence_look();
		wait_a_while(STANDBY_MS);
	}
	for (;;)
	{
		uint64		missing = missing_tablespaces();
		TimestampTz visited = GetCurrentTimestamp();
		bool		complete = true;
		bool		is_over = false;
		List	   *doubtful;
		List	   *put_off;

		evidence_look();
		doubtful = evidence_doubtful();
		evidence_begin_round();
		put_off = visit_databases(first_looks(), &complete);
		if (complete && put_off == NIL)
			evidence_settle();

		/* what set the latch meanwhile may have been a new tablespace */
		evidence_look();
		while (!is_over)
		{
			List	   *now = evidence_doubtful();
			int			again_ms = now != NIL ? DOUBTFUL_MS : AGAIN_MS;

			if (put_off != NIL)
				wait_a_while(LOOK_AGAIN_MS);
			else if (missing != 0 || now != NIL)
				wait_a_while(RETRY_MS);
			else
				wait_a_while(AGAIN_MS);
			/* what is healed may be all that was in doubt */
			is_over = put_off != NIL;
			put_off = visit_databases(put_off, &complete);
			evidence_look();
			is_over = (is_over && put_off == NIL) || missing_tablespaces() != missing ||
				list_difference_oid(evidence_doubtful(), doubtful) != NIL ||
				TimestampDifferenceExceeds(visited, GetCurrentTimestamp(), again_ms);
		}
		MemoryContextReset(context);
	}
}
