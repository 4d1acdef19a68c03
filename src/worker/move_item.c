/*-------------------------------------------------------------------------
 *
 * move_item.c
 *	  A relation from start to end: the frame around the methods.
 *
 * move_item() makes an error of a method a row, and leaves the session without
 * transaction and locks.  The leftovers of a failed move are removed by
 * move_cleanup(), when the outcome is on record.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/tablespace.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_node.h"
#include "storage/lmgr.h"
#include "utils/backend_progress.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "cleanup/cleanup.h"
#include "copy/copy.h"
#include "errors.h"
#include "file_compression.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "plan/space.h"
#include "printed_command.h"
#include "rebuild/rebuild.h"
#include "test_points.h"
#include "wait/wait.h"
#include "worker/worker.h"

/*
 * After a skip, if the index is gone and another one of the table has its name, as
 * after REINDEX CONCURRENTLY, make that the item's and return true.
 */
static bool
find_successor(MoveItem *item)
{
	RelationFacts facts;
	Oid			index_oid;
	bool		found;

	if (item->outcome.status != STATUS_SKIPPED)
		return false;
	StartTransactionCommand();
	index_oid = get_relname_relid(NameStr(item->relname),
								  get_rel_namespace(item->heap_oid));
	found = !relation_facts(item->relid, &facts) &&
		relation_facts(index_oid, &facts) && facts.heap_oid == item->heap_oid;
	CommitTransactionCommand();
	if (!found)
		return false;
	item->relid = index_oid;
	item->outcome.status = STATUS_RUNNING;
	item->outcome.sqlstate[0] = '\0';
	item->outcome.detail[0] = '\0';
	progress_begin(item);
	return true;
}

/*
 * VACUUM (FREEZE) the table of an item, with its TOAST table, before it is copied
 * (freeze_first => true).  The visibility map goes along with a copy, so later
 * vacuums, also against wraparound, pass over the whole table.
 *
 * Locks: as VACUUM, ShareUpdateExclusiveLock, for which we do not queue: if it
 * cannot be had, the table is copied as it is.  The file is not truncated,
 * which would need AccessExclusiveLock.
 */
static void
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
	PushActiveSnapshot(GetTransactionSnapshot());
	ExecVacuum(make_parsestate(NULL), stmt, true);
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(oldcontext);
}

/* For the server log: after the move, a failing lookup would hide its outcome */
static NameData from_name;
static NameData to_name;

static void
move_with_preparation(MoveContext *mc)
{
	List	   *tables = NIL;
	bool		again;

	for (int i = 0; i < mc->nitems; i++)
		tables = lappend_oid(tables, mc->items[i]->heap_oid);
	/* files of any table: their removal takes no lock on the table */
	leftover_files_remove(false);
	leftover_indexes_remove(mc, false, tables, mc->settings->lock_wait);

	StartTransactionCommand();
	/* an error of the removal has released the extension */
	if (extension_hold() != EXTENSION_HELD)
		extension_missing();
	namestrcpy(&from_name, tablespace_name(mc->item->from_tablespace));
	namestrcpy(&to_name, tablespace_name(mc->item->to_tablespace));
	for (int i = 0; i < mc->nitems; i++)
	{
		MoveItem   *item = mc->items[i];

		/* the file system can be mounted in another way since the plan */
		if (item->stored_share < 1 && !file_compression_is_steady(item->to_tablespace))
			item->stored_share = 1;
		space_check(mc->job, item, mc->settings);
	}
	CommitTransactionCommand();

	if (mc->settings->terms.freeze_first && !mc->settings->terms.rehearse)
	{
		/* a VACUUM that runs can be neither paused nor slowed down */
		(void) pacing_hold_back(mc->settings, 0);
		freeze_table(mc->item);
	}
	Assert(mc->item->method != METHOD_AUTO);
	do
	{
		again = false;
		if (mc->item->method == METHOD_REBUILD)
			move_by_rebuild(mc);
		else if (mc->item->method == METHOD_COPY)
			move_by_copy(mc);
		else
			move_default(mc);
		if (mc->nitems == 1)
			again = find_successor(mc->item);
	} while (again);
}

/* Remove the files and indexes that the item has left. */
static void
clean_up(MoveContext *mc)
{
	progress_phase(PHASE_CLEANING_UP);
	if (mc->item->method == METHOD_REBUILD)
		rebuild_cleanup(mc, list_make1_oid(mc->item->heap_oid));
	else if (mc->item->method == METHOD_COPY)
		copy_cleanup();

	/*
	 * after a cancel, the copy of a move that has given its turn does not go
	 * on
	 */
	if (mc->item->turns > 0 && mc->item->outcome.was_canceled && !job_keep_requested())
		leftover_kept_files_remove(mc->job->job, mc->item->heap_oid, mc->max_wait_ms);
}

/* Remove the files and indexes that all items of this process have left. */
static void
clean_up_rest(MoveContext *mc)
{
	progress_phase(PHASE_CLEANING_UP);
	copy_cleanup();
	rebuild_cleanup(mc, NIL);
}

/*
 * Work on an item.  Never throws: returns the error that has ended the work, or
 * NULL.  After an error interrupts are held off; the caller resumes them.
 */
static ErrorData *
try_item(MoveContext *mc, void (*work) (MoveContext *mc))
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	Assert(!IsTransactionState());
	PG_TRY();
	{
		runner_serve_cancel(true);
		blockers_begin();
		work(mc);
		runner_serve_cancel(false);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		runner_serve_cancel(false);
		error = errors_take(context);
		progress_blockers(NULL, 0);
		pgstat_progress_end_command();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	/* the work may have caught its error, and gone on */
	runner_take_cancel(mc->job);
	check_relation_locks(0);
	IM_POINT("locks-released");
	return error;
}

/*
 * Write the outcome of an item to the server log; with the part of the error, if not NULL, that is for
 * the log only.
 */
static void
log_outcome(const MoveItem *item, const ErrorData *error)
{
	const MoveOutcome *outcome = &item->outcome;
	const char *noun = relation_noun(item->relkind);
	double		seconds = (outcome->finished_at - outcome->started_at) / 1e6;
	const char *lock = "";
	const char *sqlstate = "";
	const char *detail = outcome->detail;

	if (error != NULL && error->detail_log != NULL)
		detail = psprintf("%s: %s", error->message, error->detail_log);
	if (item->method == METHOD_COPY)
		lock = psprintf(", lock %.1f ms", outcome->lock_time / 1000.0);
	if (outcome->sqlstate[0] != '\0')
		sqlstate = psprintf(", SQLSTATE %s", outcome->sqlstate);
	if (outcome->status == STATUS_MOVED)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: moved %s \"%s.%s\" (%s) from tablespace \"%s\" to \"%s\" by %s in %.2f s%s",
						runner_name(), noun, NameStr(item->schema_name), NameStr(item->relname),
						size_text(outcome->size_after), NameStr(from_name), NameStr(to_name),
						method_name(item->method), seconds, lock)));
	else if (outcome->status == STATUS_REHEARSED)
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: rehearsed the move of %s \"%s.%s\" (%s) from tablespace \"%s\" to \"%s\" in %.2f s",
						runner_name(), noun, NameStr(item->schema_name), NameStr(item->relname),
						size_text(outcome->size_after), NameStr(from_name), NameStr(to_name),
						seconds),
				 errdetail_internal("%s", outcome->detail)));
	else
		ereport(TERMS_LOG(runner_settings()),
				(errhidecontext(true),
				 errmsg("%s: did not move %s \"%s.%s\" (%s%s)",
						runner_name(), noun, NameStr(item->schema_name), NameStr(item->relname),
						status_name(outcome->status), sqlstate),
				 detail[0] != '\0' ? errdetail_internal("%s", detail) : 0));
}

/*
 * Name the target tablespace in the outcome of an error that tells of a file in it: core
 * and we name files by the OID of their tablespace, and if that was dropped, core says that
 * it could not create a directory.
 */
static void
tell_of_target(MoveItem *item, const ErrorData *error)
{
	bool		is_gone = false;

	if (item->outcome.status != STATUS_FAILED)
		return;
	if (error->sqlerrcode == ERRCODE_DISK_FULL && NameStr(to_name)[0] != '\0')
	{
		/* our own check of the free space names the place itself */
		if (strstr(error->message, "pg_tblspc/") != NULL)
			item_say(item, "Tablespace \"%s\" is the target.", NameStr(to_name));
	}
	else if (error->sqlerrcode == ERRCODE_UNDEFINED_FILE)
	{
		StartTransactionCommand();
		is_gone = get_tablespace_name(item->to_tablespace) == NULL;
		CommitTransactionCommand();
	}
	if (is_gone)
		outcome_end(&item->outcome, STATUS_FAILED, unpack_sql_state(ERRCODE_UNDEFINED_OBJECT),
					"The target tablespace was dropped.");
}

/*
 * Give up several items that were to be moved together, because of an error or (NULL) since
 * their copy does not go on.  Whatever it was, each has an outcome of its own when they are
 * moved one after the other; only a cancel of the job ends that, too.
 */
static MoveEnd
part_items(const MoveContext *mc, const ErrorData *error)
{
	bool		by_owner = false;

	for (int i = 0; i < mc->nitems; i++)
	{
		MoveOutcome *outcome = &mc->items[i]->outcome;

		by_owner = by_owner || mc->items[i]->owner_cancels;
		outcome->status = STATUS_RUNNING;
		outcome->sqlstate[0] = '\0';
		outcome->detail[0] = '\0';
		outcome->lock_time = mc->item->outcome.lock_time;
		outcome->lock_attempts = mc->item->outcome.lock_attempts;
		blockers_tell(mc->items[i]);
	}
	if (!job_cancel_requested())
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: moves %d relations one after the other, and not together",
						runner_name(), mc->nitems),
				 error != NULL ? errors_as_detail(error) :
				 errdetail("The copy of one of them has ended, because %s.", mc->why_ended)));
	runner_part(mc->job, !by_owner && !mc->was_locked);
	return MOVE_PARTED;
}

/*
 * Move some items, all or none of them, and put the outcome into them.  There is no outcome if an
 * item gives its turn to another relation, or anything goes wrong with several.  Never throws.
 */
MoveEnd
move_items(JobShared *job, MoveItem **items, int nitems)
{
	MoveItem   *item = items[0];
	MoveContext mc = {0};
	MoveOutcome *outcome = &item->outcome;
	ErrorData  *error;

	mc.job = job;
	mc.item = item;
	mc.items = items;
	mc.nitems = nitems;
	mc.settings = runner_settings();
	mc.began = clock_us();
	mc.rested_before = pacing_rested_ms();
	for (int i = 0; i < nitems; i++)
	{
		Assert(items[i]->outcome.status == STATUS_RUNNING);
		items[i]->outcome.sqlstate[0] = '\0';
		items[i]->outcome.was_canceled = false;
		/* blockers of attempts together count, too */
		if (!items[i]->alone)
		{
			items[i]->outcome.lock_time = -1;
			items[i]->outcome.lock_attempts = 0;
		}
		items[i]->outcome.size_after = -1;
	}

	error = try_item(&mc, move_with_preparation);
	if (nitems > 1 && outcome->status != STATUS_MOVED)
	{
		MoveEnd		end = part_items(&mc, error);

		if (error != NULL)
			RESUME_INTERRUPTS();
		return end;
	}
	if (error == NULL && mc.gives_turn)
	{
		ereport(NOTICE,
				(errmsg("%s \"%s\" gives its turn to other relations of the job",
						relation_noun(item->relkind), NameStr(item->relname)),
				 errdetail_internal("%s", outcome->detail)));
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: puts off %s \"%s.%s\"", runner_name(), relation_noun(item->relkind),
						NameStr(item->schema_name), NameStr(item->relname)),
				 errdetail_internal("%s", outcome->detail)));
		return MOVE_GIVES_TURN;
	}
	/* a copy has set the time of its swap */
	if (outcome->finished_at == 0)
	{
		outcome->finished_at = GetCurrentTimestamp();
		outcome->idle = progress_idle();
	}
	if (error != NULL)
	{
		outcome_take_error(job, item, error);
		tell_of_target(item, error);
		RESUME_INTERRUPTS();
	}

	/*
	 * the job's role had the privilege when it asked for the move: that is
	 * left to do
	 */
	else if (outcome->status == STATUS_SKIPPED &&
			 strcmp(outcome->sqlstate, unpack_sql_state(ERRCODE_INSUFFICIENT_PRIVILEGE)) == 0)
		outcome->status = STATUS_FAILED;
	for (int i = 0; i < nitems; i++)
	{
		blockers_tell(items[i]);
		log_outcome(items[i], error);
	}
	return MOVE_ENDED;
}

/* When the process ends in the middle of an item, set its status if it has moved. */
void
move_find_out(MoveItem *item)
{
	RelationFacts facts;

	Assert(!IsTransactionState());
	/* in any other status the move has ended, and only the record is missing */
	if (item->outcome.status != STATUS_RUNNING)
		return;
	if (item->method == METHOD_REBUILD)
	{
		rebuild_find_out(item);
		return;
	}

	StartTransactionCommand();
	if (relation_facts(item->relid, &facts) && facts.tablespace == item->to_tablespace &&
		parts_are_in(&facts, item->to_tablespace))
		item->outcome.status = STATUS_MOVED;
	CommitTransactionCommand();
}

/* Carry out a cleanup, which waits for max_wait_ms at most.  Never throws. */
static void
try_cleanup(JobShared *job, MoveItem *item, int max_wait_ms, void (*cleanup) (MoveContext *mc))
{
	MoveContext mc = {.job = job,.item = item,.settings = runner_settings()};
	ErrorData  *error;

	mc.max_wait_ms = max_wait_ms;
	error = try_item(&mc, cleanup);
	if (error == NULL)
		return;
	/* LOG, since an ERROR would tell the caller that the worker ends */
	error->elevel = LOG;
	ThrowErrorData(error);
	RESUME_INTERRUPTS();
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: leftovers of a move of %s \"%s.%s\" could not be removed yet",
					runner_name(), relation_noun(item->relkind),
					NameStr(item->schema_name), NameStr(item->relname)),
			 errhint("The next move of the table removes them, or: %s",
					 printed_command("cleanup"))));
}

/* Remove the leftovers of a failed or canceled item.  Never throws. */
void
move_cleanup(JobShared *job, MoveItem *item, int max_wait_ms)
{
	try_cleanup(job, item, max_wait_ms, clean_up);
}

/*
 * Remove the leftovers of all items of this process, one of which is "item".  It waits for
 * lock_wait at most, in all.  Never throws.
 */
void
move_cleanup_rest(JobShared *job, MoveItem *item)
{
	try_cleanup(job, item, runner_settings()->lock_wait, clean_up_rest);
}
