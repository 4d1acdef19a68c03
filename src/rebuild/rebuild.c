/*-------------------------------------------------------------------------
 *
 * rebuild.c
 *	  Method rebuild: core's REINDEX (TABLESPACE ..) INDEX CONCURRENTLY.
 *
 * Core's command is run as a client's statement: in a portal, at top level, with its
 * own text.  So event triggers (17) and other modules' hooks see it as a client's,
 * and SQL of theirs finds a snapshot.  We add:
 *
 * - Old writers and snapshots are waited for before the command begins, so
 *   that a cancel during that wait, often the longest part, leaves nothing.
 * - The command finds the index by its name, and a schema can be renamed in spite of
 *   our locks.  So an object-access hook checks the new index entry before its
 *   transaction commits, and writes the ledger row in that.
 * - Sessions that wait for a job are kept from blocking the command.
 *
 * Locks: ShareUpdateExclusiveLock on table and index for the session, taken
 * without queueing; then core's.
 *
 * Tricky: core commits inside the command, so memory that outlives that is in a
 * context of our own.  An error may come when the index is moved already.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "commands/progress.h"
#include "commands/tablespace.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/dest.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/backend_progress.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "errors.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "plan/space.h"
#include "rebuild/rebuild.h"
#include "rebuild/snapshot_guard.h"
#include "test_points.h"
#include "wait/wait.h"

/* Between attempts at the locks of plain REINDEX */
#define PLAIN_RETRY_MS		1000
/* see wait_and_lock() */
#define MAX_TRIES			3

typedef struct Rebuild
{
	bool		active;			/* core's command runs, and the hooks work */
	MoveContext *mc;
	LedgerEntry entry;			/* the hook adds the new index, and writes it */
} Rebuild;

static Rebuild rebuild;
static MemoryContext rebuild_context = NULL;
static object_access_hook_type prev_object_access_hook = NULL;

/* Return the table of an index, also if the current command makes it; InvalidOid: no index. */
static Oid
table_of_new_index(Oid index_oid)
{
	List	   *rows = catalog_rows_in(SnapshotSelf, IndexRelationId, IndexRelidIndexId,
									   Anum_pg_index_indexrelid, index_oid, 0, InvalidOid);

	if (rows == NIL)
		return InvalidOid;
	return ((Form_pg_index) GETSTRUCT((HeapTuple) linitial(rows)))->indrelid;
}

/* Return whether the entry that the hook has seen is in use. */
static bool
new_index_is_used(void)
{
	RelationFacts facts;

	/* another command can make it valid, but not swap it in */
	return OidIsValid(rebuild.entry.new_index_oid) &&
		relation_facts(rebuild.entry.new_index_oid, &facts) &&
		facts.heap_oid == rebuild.entry.heap_oid && facts.valid &&
		strcmp(NameStr(facts.relname), NameStr(rebuild.entry.new_name)) != 0;
}

/*
 * Check the new entry, and write it to the ledger.  Called in the middle of
 * index_create(): the command counter must not be advanced here.
 */
static void
rebuild_object_access(ObjectAccessType access, Oid classId, Oid objectId,
					  int subId, void *arg)
{
	const MoveItem *item;
	Oid			heap_oid;
	Relation	rel;
	FormData_pg_class class_form;

	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);

	if (!rebuild.active || access != OAT_POST_CREATE ||
		classId != RelationRelationId || subId != 0)
		return;
	heap_oid = table_of_new_index(objectId);
	if (!OidIsValid(heap_oid))
		return;
	rel = RelationIdGetRelation(objectId);
	class_form = *rel->rd_rel;
	RelationClose(rel);

	/* an event trigger of the command may create an index, too */
	if (!is_reindex_leftover_name(NameStr(class_form.relname)))
		return;

	item = rebuild.mc->item;
	if (heap_oid != rebuild.entry.heap_oid)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" was replaced by another one", NameStr(item->relname)),
				 errdetail("An index of another table has its name now, so its schema must have been renamed.")));
	if (class_form.reltablespace != tablespace_in_catalog(item->to_tablespace))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("tablespace with OID %u was renamed", item->to_tablespace),
				 errdetail("Another tablespace has its name now, or another module's utility hook has replaced the command.")));

	/* another module's utility hook repeats the command */
	if (new_index_is_used())
		ledger_delete(rebuild.entry.id);
	rebuild.entry.id = 0;
	rebuild.entry.new_index_oid = objectId;
	rebuild.entry.new_name = class_form.relname;
	ledger_insert(&rebuild.entry);
	IM_POINT("rebuild-entry-made");
}

/*
 * Return core's phase, from the progress that it publishes; -1 if not known.  The
 * end of a failed subtransaction, as where a function of the index has caught an
 * error, resets the command, but not its numbers.
 */
static int64
core_phase(void)
{
	if (MyBEEntry == NULL ||
		(MyBEEntry->st_progress_command != PROGRESS_COMMAND_INVALID &&
		 (MyBEEntry->st_progress_command != PROGRESS_COMMAND_CREATE_INDEX ||
		  MyBEEntry->st_progress_command_target != rebuild.entry.heap_oid)))
		return -1;
	return MyBEEntry->st_progress_param[PROGRESS_CREATEIDX_PHASE];
}

/*
 * Wait for old snapshots, but for snapshots of sessions that wait for jobs, which are
 * hidden, before core makes its list of sessions to wait for.  RecentXmin, of our
 * latest snapshot, is not below the xmin of validation's, which is core's limit.
 */
static void
before_core_waits(void)
{
	WaitLimits	limits = {0};

	limits.phase = PHASE_WAIT_SNAPSHOTS;
	limits.max_ms = LOCK_WAIT;
	limits.mc = rebuild.mc;
	limits.cancellable = true;
	/* all miss an index that is lost */
	if (rebuild.mc->item->heal)
		limits.insist_on = rebuild.entry.heap_oid;
	InvalidateCatalogSnapshot();
	/* with a snapshot of ours, another session could wait for us */
	Assert(!TransactionIdIsValid(MyProc->xmin));
	wait_for_snapshots(RecentXmin, snapshot_guard_waits_for_job, &limits);
	snapshot_guard_hide_callers(true);
	IM_POINT("caller-hidden");
}

/* Bound each of core's own waits; signaled blockers have some time to end. */
static void
set_core_lock_timeout(const MoveSettings *settings)
{
	int64		limit = settings->lock_wait;

	/* all that want the table stand behind us; rebuild_once() asks again */
	if (rebuild.mc->item->plain)
		limit = Min(settings->lock_timeout, QUEUE_PIECE_MS);
	else if (limit > 0 && SIGNALS_BLOCKERS(settings))
		limit += BLOCKER_GRACE_MS;
	SetConfigOption("lock_timeout", psprintf("%d", (int) Min(limit, INT_MAX)),
					PGC_SUSET, PGC_S_SESSION);
}

/* no phase has come between validation and the wait that follows */
#define WAIT_2	PROGRESS_CREATEIDX_PHASE_WAIT_2
StaticAssertDecl(PROGRESS_CREATEIDX_PHASE_VALIDATE_IDXSCAN == WAIT_2 + 1 &&
				 PROGRESS_CREATEIDX_PHASE_VALIDATE_SORT == WAIT_2 + 2 &&
				 PROGRESS_CREATEIDX_PHASE_VALIDATE_TABLESCAN == WAIT_2 + 3 &&
				 PROGRESS_CREATEIDX_PHASE_WAIT_3 == WAIT_2 + 4,
				 "rebuild_xact_callback() does not know the phases of REINDEX CONCURRENTLY");

static void
rebuild_xact_callback(XactEvent event, void *arg)
{
	int64		phase = core_phase();

	if (!rebuild.active)
		return;
	if (event == XACT_EVENT_COMMIT)
		IM_POINT(phase == 0 ? "rebuild-entry-committed" : "rebuild-step-committed");
	if (event != XACT_EVENT_PRE_COMMIT)
		return;

	elog(DEBUG1, "REINDEX CONCURRENTLY commits in phase %d", (int) phase);
	blockers_report(rebuild.mc->item);

	/* core leaves these behind, for core_waited_for() to misread */
	pgstat_progress_update_param(PROGRESS_WAITFOR_TOTAL, 0);
	pgstat_progress_update_param(PROGRESS_WAITFOR_DONE, 0);
	pgstat_progress_update_param(PROGRESS_WAITFOR_CURRENT_PID, 0);
	/* otherwise alter_move() is not seen while core's command runs */
	set_core_lock_timeout(runner_settings());
	if (phase > PROGRESS_CREATEIDX_PHASE_WAIT_2 && phase < PROGRESS_CREATEIDX_PHASE_WAIT_3)
		before_core_waits();
	else
		snapshot_guard_hide_callers(false);
}

/* Install the hooks that a runner needs; called from _PG_init(). */
void
rebuild_init(void)
{
	prev_object_access_hook = object_access_hook;
	object_access_hook = rebuild_object_access;
	RegisterXactCallback(rebuild_xact_callback, NULL);
}

static void
end_core_settings(void)
{
	SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("search_path", WORKER_SEARCH_PATH, PGC_SUSET, PGC_S_SESSION);
	rebuild_timer_end();
}

/*
 * Make sure that the index was made.  If our hook has not seen it, as without
 * CONCURRENTLY, it is the index of this name, with another file.
 */
static void
check_result(const MoveItem *item, RelFileNumber old_file)
{
	RelationFacts facts;
	bool		listed = OidIsValid(rebuild.entry.new_index_oid);
	bool		is_rebuilt;
	Oid			result;

	if (listed)
		result = rebuild.entry.new_index_oid;
	else
		result = get_relname_relid(NameStr(item->relname),
								   get_rel_namespace(rebuild.entry.heap_oid));
	is_rebuilt = relation_facts(result, &facts) && facts.heap_oid == rebuild.entry.heap_oid &&
		facts.valid && facts.tablespace == item->to_tablespace;
	if (is_rebuilt && facts.relfilenumber == old_file)
		is_rebuilt = false;
	if (is_rebuilt && listed)
		is_rebuilt = new_index_is_used();
	if (!is_rebuilt)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" was not rebuilt", NameStr(item->relname)),
				 errdetail("Another module's utility hook may have replaced the command.")));
	/* the old index is gone, so the new one is no leftover any more */
	if (listed)
		ledger_delete(rebuild.entry.id);
	rebuild.entry.new_index_oid = result;
}

static void
run_reindex(MoveContext *mc)
{
	MemoryContext caller_context = CurrentMemoryContext;
	char	   *tablespace;
	const char *options = "";
	char	   *text;
	RawStmt    *statement;
	List	   *plans;
	Portal		portal;
	QueryCompletion completion;
	RelationFacts old;
	RelFileLocator old_file;
	bool		is_lost;

	Assert(!IsTransactionState());
	Assert(CheckRelationOidLockedByMe(rebuild.entry.heap_oid, ShareUpdateExclusiveLock, false));
	Assert(CheckRelationOidLockedByMe(rebuild.entry.relid, ShareUpdateExclusiveLock, false));
	if (rebuild_context == NULL)
		rebuild_context = AllocSetContextCreate(TopMemoryContext,
												"index_mover rebuild",
												ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(rebuild_context);

	IM_POINT("rebuild-begins");
	/* seen by event triggers of core's command only */
	SetConfigOption("search_path", REINDEX_SEARCH_PATH, PGC_SUSET, PGC_S_SESSION);
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();

	tablespace = get_tablespace_name(mc->item->to_tablespace);
	if (tablespace == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tablespace with OID %u does not exist",
						mc->item->to_tablespace)));

	(void) relation_facts(rebuild.entry.relid, &old);
	old_file = make_locator(old.tablespace, MyDatabaseId, old.relfilenumber);
	is_lost = relation_file_size(&old_file) < 0;

	/* it outlives core's own commits, after which core still reads it */
	MemoryContextSwitchTo(rebuild_context);
	/* without TABLESPACE where it stays: TOAST's may have none */
	if (mc->item->from_tablespace != mc->item->to_tablespace)
		options = psprintf("(TABLESPACE %s) ", quote_identifier(tablespace));
	text = psprintf("REINDEX %sINDEX %s%s", options, mc->item->plain ? "" : "CONCURRENTLY ",
					quote_qualified_identifier(NameStr(mc->item->schema_name),
											   NameStr(mc->item->relname)));

	IM_POINT("rebuild-named");
	debug_query_string = text;

	pgstat_report_activity(STATE_RUNNING, text);
	progress_phase(PHASE_REBUILDING);

	statement = linitial_node(RawStmt, pg_parse_query(text));
	plans = pg_plan_queries(pg_analyze_and_rewrite_fixedparams(statement, text, NULL, 0, NULL),
							text, CURSOR_OPT_PARALLEL_OK, NULL);
	portal = CreatePortal("", true, true);
	portal->visible = false;
	PortalDefineQuery(portal, NULL, text, CMDTAG_REINDEX, plans, NULL);
	PortalStart(portal, NULL, 0, InvalidSnapshot);

	rebuild.active = true;
	(void) PortalRun(portal, FETCH_ALL, true, None_Receiver, None_Receiver, &completion);
	rebuild.active = false;
	PortalDrop(portal, false);
	debug_query_string = NULL;

	check_result(mc->item, old.relfilenumber);
	CommitTransactionCommand();
	/* there are some if it was lost while the server ran */
	if (is_lost)
		file_drop_buffers(&old_file, false);

	MemoryContextSwitchTo(caller_context);
	MemoryContextReset(rebuild_context);
}

/* Report the signaled sessions, and whether the new index has taken the place of the old one. */
static void
report_outcome(MoveItem *item)
{
	RelationFacts facts;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	blockers_report(item);
	if (new_index_is_used() && relation_facts(rebuild.entry.new_index_oid, &facts))
	{
		item->outcome.status = STATUS_MOVED;
		item->relid = facts.relid;
		item->outcome.size_after = relation_files_size(facts.tablespace, facts.relfilenumber);
	}
	CommitTransactionCommand();
}

/*
 * Before the abort: return the process for which core waited when its lock_timeout ran
 * out, 0 if it may be a prepared transaction, and -1 if it waited for no transaction.
 */
static int
core_waited_for(void)
{
	const int64 *progress;

	if (core_phase() < 0)
		return -1;
	progress = MyBEEntry->st_progress_param;
	if (progress[PROGRESS_WAITFOR_CURRENT_PID] == 0 &&
		progress[PROGRESS_WAITFOR_TOTAL] <= progress[PROGRESS_WAITFOR_DONE])
		return -1;
	return (int) progress[PROGRESS_WAITFOR_CURRENT_PID];
}

/*
 * Describe the transactions that core_waited_for().  Core knows a prepared transaction by the session
 * that began it, so any prepared transaction with a lock may be meant.
 */
static char *
describe_waited_for(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	int			count;
	VirtualTransactionId *vxids = relation_lock_holders(rebuild.entry.heap_oid, AccessExclusiveLock,
														&count);
	int			kept = 0;

	for (int i = 0; i < count; i++)
	{
		int			holder = virtual_transaction_pid(vxids[i]);

		if (holder == 0 || holder == pid)
			vxids[kept++] = vxids[i];
	}
	/* there is one more element, the terminator */
	if (kept == 0 && proc != NULL)
	{
		GET_VXID_FROM_PGPROC(vxids[0], *proc);
		kept = 1;
	}
	return blockers_describe(vxids, kept);
}

/*
 * If we were the deadlock's victim, and another process waits for a lock of ours,
 * report that process instead, and return true.  To be called before the abort releases the locks.
 */
static bool
tell_who_passes(ErrorData *edata)
{
	bool		is_extension = false;
	const char *command;
	int			pid = 0;

	if (edata->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
		return false;
	if (relation_lock_waiters(rebuild.entry.heap_oid, ShareUpdateExclusiveLock, &pid, 1) == 0 &&
		relation_lock_waiters(rebuild.entry.relid, ShareUpdateExclusiveLock, &pid, 1) == 0)
		is_extension = extension_lock_waiters(&pid, 1) > 0;
	if (pid == 0)
		return false;
	command = describe_command(pid);
	if (is_extension)
		edata->message = psprintf("gave way to process %d, which waits for a lock on the extension",
								  pid);
	else
		edata->message = psprintf("gave way to process %d, which waits for a lock on the table or the index",
								  pid);
	/* the command is for the log, the row is shown to the table's owner */
	edata->detail = NULL;
	edata->detail_log = *command != '\0' ? pstrdup(command + 1) : NULL;
	edata->sqlerrcode = ERRCODE_OBJECT_IN_USE;
	return true;
}

/* Abort after an ERROR, and find out how far the command came. */
static void
clean_up_after_error(MoveContext *mc)
{
	rebuild.active = false;
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	snapshot_guard_hide_callers(false);
	debug_query_string = NULL;
	end_core_settings();

	IM_POINT("rebuild-aborted");

	/* a second cancel must not prevent a true report */
	HOLD_INTERRUPTS();
	report_outcome(mc->item);
	RESUME_INTERRUPTS();
}

/*
 * Wait for old writers and snapshots, as core will, while nothing is held or made
 * yet, and then get the session locks.  If that took time, there are others, so wait
 * again, MAX_TRIES times.  A rebuild is also held back here, see pacing_hold_back().
 */
static void
wait_and_lock(const MoveContext *mc)
{
	WaitLimits	limits = {.max_ms = LOCK_WAIT,.mc = mc,.cancellable = true};

	Assert(!IsTransactionState());
	for (int tries = 1;; tries++)
	{
		bool		was_held_back = pacing_hold_back(mc->settings, mc->item->wal_bytes);
		bool		waited;

		if (was_held_back || tries == 1)
		{
			limits.since = 0;
			tries = 1;
		}
		if (mc->item->plain)
		{
			/* REINDEX waits for no session but the holders of its locks */
			limits.phase = PHASE_WAIT_START;
			(void) lock_table_and_index(rebuild.entry.heap_oid, rebuild.entry.relid, &limits);
			break;
		}
		limits.phase = PHASE_WAIT_WRITERS;
		wait_for_lockers(rebuild.entry.heap_oid, ShareLock, &limits);
		limits.phase = PHASE_WAIT_SNAPSHOTS;
		wait_for_snapshots(ReadNextTransactionId(), snapshot_guard_waits_for_job, &limits);

		limits.phase = PHASE_WAIT_START;
		waited = lock_table_and_index(rebuild.entry.heap_oid, rebuild.entry.relid, &limits);
		if (!waited || tries == MAX_TRIES)
		{
			bool		rests = pacing_look(mc->settings, mc->item->wal_bytes);

			if (!rests)
				break;
		}
		unlock_table_and_index(rebuild.entry.heap_oid, rebuild.entry.relid);
	}
}

/*
 * In PG_CATCH(): clean up, and raise the error again with its reason, unless the rebuild is to be
 * tried again: plain REINDEX after a timeout, and a lost index that gave way to a session.
 */
static void
take_rebuild_error(MoveContext *mc, double start, int64 rested_ms)
{
	const MoveItem *item = mc->item;
	int			waited_for = core_waited_for();
	int64		rested_since = pacing_rested_ms() - rested_ms;
	bool		passes;
	bool		again = false;
	ErrorData  *edata = errors_copy(TopMemoryContext);

	passes = tell_who_passes(edata);
	rebuild_timer_explain(edata, item);
	clean_up_after_error(mc);
	/* it raises the error that says why, unless the index has moved */
	if (edata->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED || item->owner_cancels)
		runner_check_step_back();
	if (edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE &&
		edata->detail == NULL && waited_for >= 0)
	{
		char	   *list = describe_waited_for(waited_for);

		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(TopMemoryContext);
		edata->detail = psprintf("It waited for %s.", list);
	}
	if (errors_was_lock_timeout(edata))
		again = item->plain;
	else if (passes)
		again = item->heal && item->outcome.status == STATUS_RUNNING;
	if (mc->settings->lock_wait > 0 &&
		clock_has_passed(start, mc->settings->lock_wait + rested_since))
		again = false;
	if (!again)
		ReThrowError(edata);
	FreeErrorData(edata);
}

/*
 * Do move_by_rebuild() once.  Returns false if it is to be done again, within lock_wait: plain
 * REINDEX asks for its locks again and again, and lets others pass between; and an index that
 * is lost is rebuilt again if that gave way to others.  That time is from start, when
 * pacing_rested_ms() was rested_ms.
 */
static bool
rebuild_once(MoveContext *mc, double start, int64 rested_ms)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	MoveItem   *item = mc->item;
	bool		again = false;
	uint64		wal_before = pgWalUsage.wal_bytes;
	bool		movable;

	memset(&rebuild, 0, sizeof(rebuild));
	rebuild.mc = mc;
	rebuild.entry.kind = LEDGER_INDEX;
	rebuild.entry.heap_oid = item->heap_oid;
	rebuild.entry.relid = item->relid;
	rebuild.entry.job = mc->job->job;
	rebuild.entry.pid = MyProcPid;
	wait_and_lock(mc);

	PG_TRY();
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		movable = plan_recheck(item, false);
		if (movable)
		{
			/* a long time may have passed since the last check */
			space_check(mc->job, item, mc->settings);
			/* its handler reads two words of them at the time of each tick */
			rebuild_timer_begin(&mc->job->settings, item->heal ? item->heap_oid : InvalidOid);
		}
		PopActiveSnapshot();
		CommitTransactionCommand();

		if (movable)
		{
			set_core_lock_timeout(mc->settings);
			run_reindex(mc);
			end_core_settings();
		}
	}
	PG_CATCH();
	{
		take_rebuild_error(mc, start, rested_ms);
		again = true;
		MemoryContextSwitchTo(oldcontext);
	}
	PG_END_TRY();
	if (again)
		return false;

	if (movable)
	{
		/* unless it was renamed just now to the name that it was made with */
		report_outcome(item);
		item->outcome.status = STATUS_MOVED;
		item->outcome.wal_written = pgWalUsage.wal_bytes - wal_before;
	}
	unlock_table_and_index(rebuild.entry.heap_oid, rebuild.entry.relid);
	return true;
}

/*
 * Move an index by a rebuild.  The caller is a background worker with the
 * job's role as its current user, with no transaction open and no lock held;
 * that also holds on return.  The outcome is committed, and in item->outcome: its
 * status is STATUS_MOVED, or STATUS_SKIPPED with a detail and a sqlstate.
 *
 * After an ERROR the index is where it was; unless the status is STATUS_MOVED
 * already, and only the old index could not be removed.  The caller then aborts the
 * transaction, releases all locks, and calls rebuild_cleanup().
 */
void
move_by_rebuild(MoveContext *mc)
{
	double		start = clock_seconds();
	int64		rested_ms = pacing_rested_ms();

	while (!rebuild_once(mc, start, rested_ms))
	{
		/* the new index that it was making */
		mc->max_wait_ms = mc->settings->lock_wait;
		if (!mc->item->plain)
			rebuild_cleanup(mc, list_make1_oid(mc->item->heap_oid));
		runner_nap(mc->job, PLAIN_RETRY_MS);
		job_check_cancel();
	}
}

/* Do move_find_out() for an item that this process was rebuilding. */
void
rebuild_find_out(MoveItem *item)
{
	rebuild.active = false;
	/* our state may be that of an index that was moved before */
	if (rebuild.entry.relid == item->relid)
		report_outcome(item);
}

/*
 * Remove the leftovers of this job's rebuilds, after an ERROR, as
 * leftover_indexes_remove(); "tables", unless NIL, restricts this.
 */
void
rebuild_cleanup(MoveContext *mc, const List *tables)
{
	bool		listed;

	Assert(!IsTransactionState());
	/* the ledger may be dropped, or be about to; see leftover_file_drop() */
	StartTransactionCommand();
	listed = extension_hold() == EXTENSION_HELD;
	CommitTransactionCommand();

	if (listed)
		leftover_indexes_remove(mc, true, tables, mc->max_wait_ms);
	else if (OidIsValid(rebuild.entry.new_index_oid))
	{
		rebuild.entry.id = 0;
		if (leftover_index_remove(&rebuild.entry, mc, true, mc->max_wait_ms))
			rebuild.entry.new_index_oid = InvalidOid;
	}
}
