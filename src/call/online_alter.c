/*-------------------------------------------------------------------------
 *
 * online_alter.c
 *	  ALTER ... SET TABLESPACE, carried out as a move: the ProcessUtility hook.
 *
 * With index_mover.online_alter, a job moves relations that core would copy under an
 * exclusive lock.  A relation that a job cannot move is left to core, with a NOTICE, or
 * refused.  Checks of names, kinds and owners, and their errors, are core's.
 *
 * Assumption, from ProcessUtilitySlow() in tcop/utility.c: core fires event triggers
 * unless the context is PROCESS_UTILITY_SUBCOMMAND.  So the job can run between
 * ddl_command_start and ddl_command_end: we fire both, and call the next hook in between.
 * It gets the same text and tag, with nothing left to do: core's own statement would ask
 * for the exclusive lock only to find the relation in place.
 *
 * Locks: none, nor a snapshot, while the job runs; none afterwards.  (A trigger function at
 * ddl_command_start may take some; then its transaction is not ours to end.)  Only
 * what ALL IN TABLESPACE leaves to core is locked, after the job.
 *
 * Tricky: the active snapshot is the portal's.  It is released, and taken again, as
 * in a COMMIT of a procedure (spi.c).
 *
 * Whatever fails after the job cannot undo it: not an event trigger, nor the COMMIT.  So the
 * abort of the transaction tells of it, whoever has caused it, see tell_of_abort().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "commands/event_trigger.h"
#include "commands/extension.h"
#include "commands/tablecmds.h"
#include "commands/tablespace.h"
#include "commands/user.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/cmdtag.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "call/call.h"
#include "citus.h"
#include "errors.h"
#include "file_system.h"
#include "own_tables.h"
#include "printed_command.h"
#include "relation_facts.h"
#include "settings.h"
#include "test_points.h"
#include "timescaledb.h"

/* A statement on its way through the hook: the arguments of ProcessUtility() */
typedef struct Statement
{
	PlannedStmt *pstmt;
	const char *query;
	bool		read_only_tree;
	ParamListInfo params;
	QueryEnvironment *environment;
	DestReceiver *dest;
	QueryCompletion *completion;
} Statement;

/* Why a statement is not carried out online */
typedef struct Hindrance
{
	int			sqlstate;
	const char *reason;			/* a sentence; NULL = nothing */
	const char *hint;			/* what to do; NULL = nothing helps */
	bool		no_files;		/* of a partitioned relation, which has none */
} Hindrance;

static ProcessUtility_hook_type prev_ProcessUtility_hook = NULL;

/*
 * Relations that the job of this transaction has moved, and an abort would not undo.  0 moved: none,
 * or an ERROR has said so.
 */
typedef struct StayingMoves
{
	int64		job;
	int			moved;
	int			total;
} StayingMoves;

static StayingMoves staying = {0};

/* pgaudit's hook is called by ours, and would not see a statement that we pass on as a subcommand */
static bool pgaudit_is_below = false;

/* Pass a statement to the next hook or to core. */
static void
pass_on(const Statement *statement, PlannedStmt *pstmt, ProcessUtilityContext context)
{
	ProcessUtility_hook_type next = prev_ProcessUtility_hook;

	if (next == NULL)
		next = standard_ProcessUtility;
	next(pstmt, statement->query, statement->read_only_tree, context, statement->params,
		 statement->environment, statement->dest, statement->completion);
}

/* Return whether a statement sets the tablespace of relations that have files, or could. */
static bool
sets_tablespace(Node *node)
{
	AlterTableStmt *stmt = (AlterTableStmt *) node;

	if (IsA(node, AlterTableMoveAllStmt))
		return true;
	if (!IsA(node, AlterTableStmt))
		return false;
	if (stmt->objtype != OBJECT_TABLE && stmt->objtype != OBJECT_INDEX &&
		stmt->objtype != OBJECT_MATVIEW)
		return false;
	foreach_ptr(AlterTableCmd, cmd, stmt->cmds)
	{
		if (cmd->subtype == AT_SetTableSpace)
			return true;
	}
	return false;
}

/*
 * Return whether this process may start a job for a statement.  Not workers, of core's
 * or of ours, so that no move waits for another; nor where no job can run: then core
 * says why.
 */
static bool
may_start_job(void)
{
	return IsUnderPostmaster && !IsBinaryUpgrade && !process_is_worker() && !IsLogicalWorker() &&
		!IsInParallelMode() && !RecoveryInProgress() && !XactReadOnly;
}

/* Return the name of the statement, as in its command tag. */
static const char *
statement_name(const Statement *statement)
{
	return GetCommandTagName(CreateCommandTag(statement->pstmt->utilityStmt));
}

/* Return whether an SQLSTATE is that of a relation whose file is lost. */
static bool
is_of_lost(int sqlstate)
{
	return sqlstate == ERRCODE_INDEX_CORRUPTED || sqlstate == ERRCODE_DATA_CORRUPTED;
}

/*
 * Tell that core carries out the statement under an exclusive lock; or raise an ERROR: with "require", and
 * for a file that is lost, which core would copy as it is.
 */
static void
tell_hindrance(const Statement *statement, const Hindrance *hindrance)
{
	if (online_alter == ONLINE_ALTER_REQUIRE || is_of_lost(hindrance->sqlstate))
		ereport(ERROR,
				(errcode(hindrance->sqlstate),
				 errmsg("%s ... SET TABLESPACE cannot be carried out online",
						statement_name(statement)),
				 errdetail_internal("%s", hindrance->reason),
				 hindrance->hint == NULL ? 0 : errhint("%s", hindrance->hint)));
	if (hindrance->no_files)
		ereport(NOTICE,
				(errmsg("%s ... SET TABLESPACE is not carried out online",
						statement_name(statement)),
				 errdetail_internal("%s It queues for an exclusive lock.",
									hindrance->reason)));
	else
		ereport(NOTICE,
				(errmsg("%s ... SET TABLESPACE is not carried out online",
						statement_name(statement)),
				 errdetail_internal("%s An exclusive lock is held while the files are copied.",
									hindrance->reason)));
}

/* Return whether core sets the tablespace of such a relation; a partitioned relation has a default. */
static bool
is_movable_kind(char relkind)
{
	if (relkind == RELKIND_SEQUENCE)
		return false;
	return RELKIND_HAS_STORAGE(relkind) || RELKIND_HAS_PARTITIONS(relkind);
}

/*
 * Return the relation of ALTER TABLE, INDEX or MATERIALIZED VIEW name, if core would set its
 * tablespace for this user; else 0: then core has nothing to do, or an error.
 */
static Oid
relation_to_set(const AlterTableStmt *stmt, RelationFacts *facts)
{
	Oid			relid = RangeVarGetRelid(stmt->relation, NoLock, true);

	if (!OidIsValid(relid) || !relation_facts(relid, facts) ||
		!is_movable_kind(facts->relkind) ||
		!object_ownercheck(RelationRelationId, relid, GetUserId()))
		return InvalidOid;
	foreach_ptr(AlterTableCmd, cmd, stmt->cmds)
	{
		if (cmd->subtype == AT_SetTableSpace &&
			get_tablespace_oid(cmd->name, true) != facts->tablespace)
			return relid;
	}
	return InvalidOid;
}

/* Return a hint with the call that moves a relation in a transaction block, too. */
static const char *
hint_of_call(const RelationFacts *facts, const AlterTableStmt *stmt)
{
	const AlterTableCmd *cmd = linitial(stmt->cmds);
	const char *name = quote_qualified_identifier(NameStr(facts->schema_name),
												  NameStr(facts->relname));

	if (list_length(stmt->cmds) > 1)
		return "Send SET TABLESPACE as a statement of its own, outside of a transaction block.";
	if (relkind_is_index(facts->relkind))
		return psprintf("Use %s", printed_command("queue_index", name, cmd->name));
	return psprintf("Use %s", printed_command("queue_table", name, cmd->name));
}

/* Return why a statement is not carried out online, whatever its relations are. */
static Hindrance
hindrance_of_statement(const Statement *statement, ProcessUtilityContext context)
{
	Node	   *node = statement->pstmt->utilityStmt;
	Hindrance	result = {ERRCODE_FEATURE_NOT_SUPPORTED, NULL, NULL};

	if (!extension_installed())
	{
		result.sqlstate = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
		result.reason = "Extension index_mover is not installed in this database.";
	}
	else if (IsInTransactionBlock(true))
	{
		result.sqlstate = ERRCODE_ACTIVE_SQL_TRANSACTION;
		result.reason = "It is executed in a transaction block.";
		result.hint = "Send it on its own, outside of a transaction block.";
	}
	else if (context != PROCESS_UTILITY_TOPLEVEL || ActivePortal == NULL ||
			 !ActiveSnapshotSet() || ActivePortal->portalSnapshot != GetActiveSnapshot())
	{
		result.sqlstate = ERRCODE_ACTIVE_SQL_TRANSACTION;
		result.reason = "It is executed from a function.";
		result.hint = "Send it on its own, outside of a transaction block.";
	}
	else if (IsolationUsesXactSnapshot())
	{
		result.reason = "Its isolation level keeps one snapshot until the end.";
		result.hint = "Set default_transaction_isolation to \"read committed\".";
	}
	else if (IsA(node, AlterTableStmt) && list_length(((AlterTableStmt *) node)->cmds) > 1)
	{
		result.reason = "It has several subcommands.";
		result.hint = "Send SET TABLESPACE as a statement of its own.";
	}
	else if (IsA(node, AlterTableMoveAllStmt) && ((AlterTableMoveAllStmt *) node)->nowait)
	{
		result.reason = "It has NOWAIT.";
		result.hint = "Use lock_timeout in place of NOWAIT.";
	}
	else if (pgaudit_is_below)
		result.reason = "pgaudit would not see it: index_mover must be loaded before pgaudit.";
	return result;
}

/* Return a hint with the call that moves an index that cannot be copied; NULL = none does. */
static const char *
hint_of_rebuild(const RelationFacts *facts, Oid tablespace)
{
	const char *name = quote_qualified_identifier(NameStr(facts->schema_name),
												  NameStr(facts->relname));

	if (facts->relkind != RELKIND_INDEX || rebuild_hindrance(facts) != NULL)
		return NULL;
	return psprintf("To build another index there: %s",
					printed_command("move_indexes", name, tablespace_name(tablespace), "rebuild"));
}

/* Return why a relation is not moved to a tablespace by a job. */
static Hindrance
hindrance_of_relation(const RelationFacts *facts, Oid tablespace)
{
	const char *name = NameStr(facts->relname);
	Hindrance	result = {ERRCODE_FEATURE_NOT_SUPPORTED, NULL, NULL};
	const char *reason;

	if (facts->persistence == RELPERSISTENCE_TEMP)
		result.reason = psprintf("\"%s\" is temporary.", name);
	else if (IsCatalogRelationOid(facts->heap_oid) || IsToastNamespace(facts->schema_oid))
		result.reason = psprintf("\"%s\" is a system relation.", name);
	else if (extension_owns(facts->heap_oid))
		result.reason = psprintf("Extension index_mover writes to \"%s\" during a move.", name);
	else if (RELKIND_HAS_STORAGE(facts->relkind))
	{
		reason = copy_hindrance(facts);
		if (reason != NULL)
		{
			result.reason = psprintf("\"%s\" cannot be copied: %s.", name, reason);
			result.hint = hint_of_rebuild(facts, tablespace);
		}
	}
	return result;
}

/* The plan of a job, and its outcome */
typedef struct AlterJob
{
	List	   *relids;			/* that are to be moved */
	List	   *left_out;		/* that core moves after the job, of ALL IN
								 * TABLESPACE */
	RangeVar   *name;			/* of the one that is; NULL = of ALL IN
								 * TABLESPACE */
	bool		renamed;		/* the name is no longer that relation's */
	PlanRequest request;
	List	   *plan;			/* of PlannedMove */
	List	   *items;			/* of MoveItem, in the plan, that the job
								 * moves */
	JobSummary	summary;
	bool		told_hindrance; /* a NOTICE has named the relations that are
								 * left to core */
} AlterJob;

/* Set a setting of the job that begins, whoever may set it in the session. */
static void
set_for_job(const char *name, const char *value)
{
	settings_set_here(name, value, PGC_SUSET, ERROR);
}

/*
 * Begin the job of a statement: its settings are those of the session but for a few, which
 * are on record, too, so that resume_move() has the same.
 */
static void
job_begin(AlterJob *job, Oid tablespace)
{
	int			nestlevel = NewGUCNestLevel();

	memset(job, 0, sizeof(AlterJob));
	job->request.method = METHOD_COPY;
	job->request.to_tablespace = tablespace;
	job->request.waits = true;
	job->request.as_owner = true;

	/* core's statement has an end, too */
	set_for_job("index_mover.max_duration", "0");
	set_for_job("index_mover.swap_after", "");
	/* lock_timeout limits the whole wait, as it does with core's statement */
	if (LockTimeout > 0)
	{
		set_for_job("index_mover.on_blocker", "fail");
		set_for_job("index_mover.lock_wait", psprintf("%d", LockTimeout));
	}
	else
		set_for_job("index_mover.on_blocker", "wait");
	settings_capture(&job->request.settings, NULL, true);
	AtEOXact_GUC(true, nestlevel);

	if (LockTimeout > 0)
		job->request.settings.lock_timeout = Min(job->request.settings.lock_timeout, LockTimeout);
	job->request.settings.progress_interval = 0;
}

/* For errors_catch(): make the plan. */
static void
plan_job(void *arg)
{
	AlterJob   *job = arg;

	foreach_oid(relid, job->relids)
	{
		job->plan = list_concat(job->plan, plan_single(&job->request, relid));
	}
	plan_complete(NULL, job->plan, &job->request);
}

/* Return the number of relations, without parts of tables, that the job has moved. */
static int
count_moved(const AlterJob *job)
{
	int			result = 0;

	foreach_ptr(const MoveItem, item, job->items)
	{
		if (!OidIsValid(item->part_of) && item->outcome.status == STATUS_MOVED)
			result++;
	}
	return result;
}

/*
 * Return the SQLSTATE in an item as ereport() takes it.  It has none if its job was given less
 * time, by alter_move(), and has not begun with it.
 */
static int
sqlstate_of_item(const MoveItem *item)
{
	const char *state = item->outcome.sqlstate;

	if (state[0] == '\0')
		return ERRCODE_QUERY_CANCELED;
	return MAKE_SQLSTATE(state[0], state[1], state[2], state[3], state[4]);
}

/*
 * Raise an ERROR for the first relation that the job has not moved, with its SQLSTATE; but
 * not for a relation that was dropped or renamed: core's statement, too, looks its name up again.
 */
static void
check_moved(AlterJob *job)
{
	foreach_ptr(const MoveItem, item, job->items)
	{
		RelationFacts facts;

		if (item->outcome.status == STATUS_MOVED || !relation_facts(item->relid, &facts))
			continue;
		/* another session has moved it there */
		if (item->outcome.sqlstate[0] == '\0' && facts.tablespace == item->to_tablespace)
			continue;
		/* plan_recheck() skips it; an error of a move can have any SQLSTATE */
		if (item->by_name && item->outcome.status == STATUS_SKIPPED &&
			sqlstate_of_item(item) == ERRCODE_UNDEFINED_TABLE)
			job->renamed = true;
		if (job->renamed)
			continue;
		if (list_length(job->relids) == 1)
			ereport(ERROR,
					(errcode(sqlstate_of_item(item)),
					 errmsg("could not move %s \"%s\" to tablespace \"%s\"",
							relation_noun(item->relkind), NameStr(item->relname),
							tablespace_name(item->to_tablespace)),
					 errdetail_internal("%s", item->outcome.detail)));
		staying.moved = 0;
		ereport(ERROR,
				(errcode(sqlstate_of_item(item)),
				 errmsg("could not move %s \"%s\" to tablespace \"%s\"",
						relation_noun(item->relkind), NameStr(item->relname),
						tablespace_name(item->to_tablespace)),
				 errdetail("Job " INT64_FORMAT " has moved %d of %d relations, which stay moved. Of this one: %s",
						   job->summary.job, count_moved(job), list_length(job->relids),
						   item->outcome.detail),
				 errhint("To move the rest: %s",
						 printed_command("resume_move", job->summary.job))));
	}
}

/* Return the number of relations, without parts of tables, that are where the job has moved them. */
static int
count_in_place(const AlterJob *job)
{
	int			result = 0;

	foreach_ptr(const MoveItem, item, job->items)
	{
		RelationFacts facts;

		if (OidIsValid(item->part_of) || item->outcome.status != STATUS_MOVED)
			continue;
		if (relation_facts(item->relid, &facts) && facts.tablespace == item->to_tablespace)
			result++;
	}
	return result;
}

/*
 * Raise ERROR 55006 for a relation that is not in the tablespace, although the job has moved
 * it, or found it there; not if it was dropped.
 */
static void
check_in_place(const AlterJob *job, Oid relid)
{
	RelationFacts facts;

	if (!relation_facts(relid, &facts) || facts.tablespace == job->request.to_tablespace)
		return;
	/* the abort tells of relations that stay in the target only */
	if (staying.moved > 0)
		staying.moved = count_in_place(job);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("relation \"%s\" was moved to another tablespace in the meantime",
					NameStr(facts.relname))));
}

/*
 * For wait_for_rows(): look up the name of the statement again, until it is another relation's.
 * Return whether it still names the relation.  The runner sees only changes under a lock: neither
 * another name of the schema nor another relation, earlier in search_path.  ERROR 42501 as core's,
 * of a schema.
 */
static bool
look_up_again(void *arg)
{
	AlterJob   *job = arg;

	if (!job->renamed)
	{
		/* names are looked up without a lock, which would do this */
		AcceptInvalidationMessages();
		job->renamed = RangeVarGetRelid(job->name, NoLock, true) != linitial_oid(job->relids);
	}
	return !job->renamed;
}

/* For errors_catch(): wait for the job, without a snapshot. */
static void
run_job(void *arg)
{
	AlterJob   *job = arg;

	wait_for_rows(job->summary.job, &job->summary, job->items, &job->request.settings,
				  job->name != NULL ? look_up_again : NULL, job);
}

/* Note in *hindrance that an error has kept the job from its begin. */
static void
note_error(Hindrance *hindrance, const ErrorData *error)
{
	hindrance->sqlstate = error->sqlerrcode;
	hindrance->reason = psprintf("No job can begin: %s.", error->message);
	hindrance->hint = error->hint;
}

/* Return how many items of the plan are to be moved. */
static int
count_planned(const AlterJob *job)
{
	int			result = 0;

	foreach_ptr(const PlannedMove, move, job->plan)
	{
		if (move->item.outcome.status == STATUS_PLANNED)
			result++;
	}
	return result;
}

/* For errors_catch(): skip the tables that other jobs work on. */
static void
skip_busy(void *arg)
{
	submit_skip_busy(((AlterJob *) arg)->plan);
}

/* The outcome of an attempt to run the job */
typedef enum Attempt
{
	ATTEMPT_DONE,
	ATTEMPT_HINDERED,			/* nothing was done */
	ATTEMPT_BUSY,				/* another job works on a table of it */
} Attempt;

/*
 * Plan the job.  ATTEMPT_HINDERED if this transaction holds a lock in the way of all its
 * moves.  *hindrance is also set for the first relation that the plan leaves out, or is lost.
 */
static Attempt
job_plan(AlterJob *job, Hindrance *hindrance)
{
	ErrorData  *error;
	int			planned;

	job->plan = NIL;
	job->items = NIL;
	error = errors_catch(plan_job, job);
	if (error != NULL && error->sqlerrcode != ERRCODE_OBJECT_IN_USE)
		ReThrowError(error);
	if (error != NULL)
	{
		note_error(hindrance, error);
		return ATTEMPT_HINDERED;
	}
	foreach_ptr(const PlannedMove, move, job->plan)
	{
		const MoveItem *item = &move->item;

		if (item->outcome.status == STATUS_SKIPPED && item->outcome.sqlstate[0] != '\0' &&
			(hindrance->reason == NULL || is_of_lost(sqlstate_of_item(item))))
		{
			hindrance->sqlstate = sqlstate_of_item(item);
			hindrance->reason = psprintf("\"%s\": %s", NameStr(item->relname),
										 item->outcome.detail);
		}
	}
	planned = count_planned(job);
	error = errors_catch(skip_busy, job);
	if (error != NULL && error->sqlerrcode != ERRCODE_OBJECT_IN_USE)
		ReThrowError(error);
	if (error != NULL || count_planned(job) < planned)
		return ATTEMPT_BUSY;
	foreach_ptr(PlannedMove, move, job->plan)
	{
		if (move->item.outcome.status == STATUS_PLANNED)
			job->items = lappend(job->items, &move->item);
	}
	return ATTEMPT_DONE;
}

/* Note the moves of the job.  error: that has ended the wait for it, or NULL. */
static void
note_staying(const AlterJob *job, const ErrorData *error)
{
	staying.job = job->summary.job;
	staying.moved = count_moved(job);
	staying.total = list_length(job->relids);

	/*
	 * the DETAIL of a cancel says it, see abandon_job(); one that came later
	 * has none
	 */
	if (errors_was_canceled(error) && error->detail != NULL)
		staying.moved = 0;
}

/* At the end of a transaction: if it is an abort, tell of the moves that stay. */
static void
tell_of_abort(XactEvent event, void *arg)
{
	const StayingMoves moves = staying;

	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT)
		return;
	staying.moved = 0;
	if (event == XACT_EVENT_ABORT && moves.moved > 0)
		ereport(WARNING,
				(errmsg("the statement has failed, but job " INT64_FORMAT " has moved %d of %d relations",
						moves.job, moves.moved, moves.total),
				 errhint("To move them back: %s", printed_command("undo_move", moves.job))));
}

/*
 * Run the job, if it has anything to move.  ATTEMPT_HINDERED if it cannot begin, as without a
 * free worker.  Whatever ends it later is an ERROR.
 */
static Attempt
job_run(AlterJob *job, Hindrance *hindrance)
{
	ErrorData  *error;

	if (job->items == NIL)
		return ATTEMPT_DONE;

	/*
	 * cannot fail here; in a pipeline, the statement is committed before the
	 * next one
	 */
	PreventInTransactionBlock(true, "ALTER ... SET TABLESPACE");
	job->summary.job = history_next_job();
	ForgetPortalSnapshots();
	error = errors_catch(run_job, job);
	note_staying(job, error);
	EnsurePortalSnapshotExists();
	IM_POINT("alter-job-ended");
	/* the worker has changed the catalogs, and no lock was taken since */
	AcceptInvalidationMessages();
	if (error == NULL)
	{
		check_moved(job);
		return ATTEMPT_DONE;
	}
	if (submit_last_job() == job->summary.job ||
		ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED)
		ReThrowError(error);
	if (error->sqlerrcode == ERRCODE_OBJECT_IN_USE)
		return ATTEMPT_BUSY;
	note_error(hindrance, error);
	job->told_hindrance = false;
	return ATTEMPT_HINDERED;
}

/* Return another job that works on a table of the statement; 0 = none. */
static int64
find_other_job(const AlterJob *job)
{
	HTAB	   *busy = job_busy_tables();
	const BusyTable *table = NULL;
	int64		result = 0;

	foreach_oid(relid, job->relids)
	{
		RelationFacts facts;

		if (relation_facts(relid, &facts))
			table = hash_search(busy, &facts.heap_oid, HASH_FIND, NULL);
		if (table != NULL)
		{
			result = table->job;
			break;
		}
	}
	hash_destroy(busy);
	return result;
}

/* Before the next look for a job that the statement waits for */
#define BUSY_NAP_MS		100

/*
 * Wait until no other job works on the tables of the statement, without a snapshot.  *since:
 * when the first such wait has begun; 0 = this is it.  ERROR 55P03 when lock_timeout has
 * passed since then; else those of wait_for_other_job().
 */
static void
wait_for_other_jobs(const AlterJob *job, double *since)
{
	double		deadline = 0;
	int64		other;

	if (*since == 0)
		*since = clock_seconds();
	if (LockTimeout > 0)
		deadline = *since + LockTimeout / 1000.0;
	ForgetPortalSnapshots();
	/* a job that works on a part of a table only is not found */
	latch_nap(BUSY_NAP_MS, "IndexMoverWait");
	CHECK_FOR_INTERRUPTS();
	other = find_other_job(job);
	for (;;)
	{
		bool		is_late = deadline != 0 && clock_seconds() >= deadline;

		if (other != 0)
			is_late = !wait_for_other_job(other, deadline);
		if (is_late)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("canceling statement due to lock timeout"),
					 errdetail("Another job moves a table of the statement; see %s.",
							   printed_command("jobs"))));
		if (other == 0)
			break;
		other = find_other_job(job);
	}
	EnsurePortalSnapshotExists();
	/* names are looked up without a lock, which would do this */
	AcceptInvalidationMessages();
}

/* Plan and run the job of ALTER ... ALL IN TABLESPACE, as job_carry_out(). */
static Attempt
job_carry_out_all(const Statement *statement, AlterJob *job, Hindrance *hindrance)
{
	Attempt		attempt = job_plan(job, hindrance);

	if (attempt != ATTEMPT_DONE)
		return attempt;
	/* the relations that are left to core are told before the job */
	if (hindrance->reason != NULL && job->items != NIL && !job->told_hindrance)
	{
		tell_hindrance(statement, hindrance);
		job->told_hindrance = true;
	}
	return job_run(job, hindrance);
}

/* Plan and run the job of one relation.  ATTEMPT_HINDERED also if the plan leaves it out. */
static Attempt
job_carry_out(AlterJob *job, Hindrance *hindrance)
{
	Attempt		attempt = job_plan(job, hindrance);
	bool		has_name;

	if (attempt != ATTEMPT_DONE)
		return attempt;
	if (hindrance->reason != NULL)
		return ATTEMPT_HINDERED;
	foreach_ptr(MoveItem, item, job->items)
		item->by_name = true;
	/* the plan has the names of now, with which the runner compares */
	has_name = look_up_again(job);
	if (!has_name)
		return ATTEMPT_DONE;
	return job_run(job, hindrance);
}

/*
 * Look up the tablespace of a statement.  ERRORs as in core: 42704; 42501 no CREATE on
 * it, unless it is the database's default; 22023 pg_global.
 */
static Oid
target_of_statement(const char *name)
{
	Oid			tablespace = get_tablespace_oid(name, false);

	if (tablespace != MyDatabaseTableSpace &&
		object_aclcheck(TableSpaceRelationId, tablespace, GetUserId(), ACL_CREATE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLESPACE, name);
	if (tablespace == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only shared relations can be placed in pg_global tablespace")));
	return tablespace;
}

/* Return the subcommand SET TABLESPACE. */
static AlterTableCmd *
set_tablespace(const char *tablespace)
{
	AlterTableCmd *cmd = makeNode(AlterTableCmd);

	cmd->subtype = AT_SetTableSpace;
	cmd->name = pstrdup(tablespace);
	return cmd;
}

/* Tell event triggers that a relation was moved, as ALTER TABLE does. */
static void
collect_moved(Node *stmt, const char *tablespace, Oid relid)
{
	Node	   *cmd = (Node *) set_tablespace(tablespace);

	EventTriggerAlterTableStart(stmt);
	EventTriggerAlterTableRelid(relid);
	EventTriggerCollectAlterTableSubcmd(cmd, InvalidObjectAddress);
	EventTriggerAlterTableEnd();
}

/*
 * Call the next hook for a statement with nothing left to do.  Core's statement would take
 * the exclusive lock all the same; a move from a tablespace to itself takes none.
 */
static void
pass_on_nothing(const Statement *statement, ObjectType objtype)
{
	AlterTableMoveAllStmt *nothing = makeNode(AlterTableMoveAllStmt);
	PlannedStmt *pstmt = copyObject(statement->pstmt);

	/*
	 * Citus, whose hook is below ours, warns of any ALL IN TABLESPACE, and of
	 * no other statement
	 */
	if (IsA(statement->pstmt->utilityStmt, AlterTableStmt) &&
		OidIsValid(get_extension_oid("citus", true)))
		return;
	/* it always exists, and needs no privilege */
	nothing->orig_tablespacename = get_tablespace_name(MyDatabaseTableSpace);
	nothing->new_tablespacename = nothing->orig_tablespacename;
	nothing->objtype = objtype;
	pstmt->utilityStmt = (Node *) nothing;
	pass_on(statement, pstmt, PROCESS_UTILITY_SUBCOMMAND);
}

/* Jobs that a statement begins, one after the other, for relations that others rename or drop */
#define MOST_RENAMES	5

/* Carry out ALTER TABLE, INDEX or MATERIALIZED VIEW name SET TABLESPACE. */
static void
alter_one(const Statement *statement, AlterJob *job)
{
	AlterTableStmt *stmt = (AlterTableStmt *) statement->pstmt->utilityStmt;
	AlterTableCmd *cmd = linitial(stmt->cmds);
	double		since = 0;
	int			renames = 0;
	Hindrance	hindrance;
	RelationFacts facts;
	Oid			relid;

	/*
	 * Like core, which looks a name up again once it has waited for the lock:
	 * by now it can be that of another relation, or of none.
	 */
	for (;;)
	{
		Attempt		attempt;

		/*
		 * core's checks of name, kind and owner, and its errors; the name is
		 * the session's
		 */
		relid = AlterTableLookupRelation(stmt, NoLock);
		if (!OidIsValid(relid) || !relation_facts(relid, &facts) ||
			!is_movable_kind(facts.relkind))
		{
			/* core refuses it */
			pass_on(statement, statement->pstmt, PROCESS_UTILITY_SUBCOMMAND);
			return;
		}
		job_begin(job, target_of_statement(cmd->name));
		job->relids = list_make1_oid(relid);
		job->name = stmt->relation;
		IM_POINT("alter-named");
		memset(&hindrance, 0, sizeof(hindrance));
		if (facts.tablespace == job->request.to_tablespace)
			break;
		hindrance = hindrance_of_relation(&facts, job->request.to_tablespace);
		if (hindrance.reason != NULL)
			break;
		attempt = job_carry_out(job, &hindrance);
		if (attempt == ATTEMPT_HINDERED)
			break;
		if (attempt == ATTEMPT_BUSY)
			wait_for_other_jobs(job, &since);
		else if (count_moved(job) > 0 || (!job->renamed && get_rel_name(relid) != NULL))
			break;
		/* else it was dropped or renamed before it was moved */
		if (attempt == ATTEMPT_DONE)
		{
			since = 0;
			renames++;
		}
		if (renames == MOST_RENAMES)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("relation \"%s\" was renamed or dropped %d times in the meantime",
							stmt->relation->relname, renames)));
	}
	if (hindrance.reason != NULL)
	{
		hindrance.no_files = !RELKIND_HAS_STORAGE(facts.relkind);
		tell_hindrance(statement, &hindrance);
		pass_on(statement, statement->pstmt, PROCESS_UTILITY_SUBCOMMAND);
		return;
	}

	/*
	 * it can be the successor of an index that REINDEX CONCURRENTLY has
	 * dropped
	 */
	if (job->items != NIL)
		relid = ((const MoveItem *) linitial(job->items))->relid;
	if (relation_facts(relid, &facts))
	{
		check_in_place(job, relid);
		collect_moved((Node *) stmt, cmd->name, relid);
		InvokeObjectPostAlterHook(RelationRelationId, relid, 0);
	}
	pass_on_nothing(statement, stmt->objtype);
}

/* Return whether ALTER ... ALL IN TABLESPACE is about a relation, as AlterTableMoveAll(). */
static bool
is_one_of_all(const AlterTableMoveAllStmt *stmt, List *roles, Form_pg_class form)
{
	char		relkind = form->relkind;

	if (IsCatalogNamespace(form->relnamespace) || form->relisshared ||
		isAnyTempNamespace(form->relnamespace) || IsToastNamespace(form->relnamespace))
		return false;
	if (roles != NIL && !list_member_oid(roles, form->relowner))
		return false;
	if (stmt->objtype == OBJECT_INDEX)
		return relkind_is_index(relkind);
	if (stmt->objtype == OBJECT_MATVIEW)
		return relkind == RELKIND_MATVIEW;
	return relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE;
}

/* Return the rows of pg_class of a tablespace that the statement is about, in core's order. */
static List *
rows_of_all(const AlterTableMoveAllStmt *stmt, List *roles, Oid from)
{
	List	   *rows = catalog_rows(RelationRelationId, InvalidOid,
									Anum_pg_class_reltablespace, tablespace_in_catalog(from),
									0, InvalidOid);
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, row, rows)
	{
		if (is_one_of_all(stmt, roles, (Form_pg_class) GETSTRUCT(row)))
			result = lappend(result, row);
	}
	return result;
}

/* ERROR 42501, as core's, for a relation that the user does not own. */
static void
check_owner(Form_pg_class form)
{
	if (!object_ownercheck(RelationRelationId, form->oid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(form->relkind),
					   NameStr(form->relname));
}

/*
 * Put the relations that ALTER ... ALL IN TABLESPACE is about into the job: those that it can
 * move, and those that are left to core.  *hindrance tells of the first of these.
 */
static void
find_all(const AlterTableMoveAllStmt *stmt, List *roles, Oid from, AlterJob *job,
		 Hindrance *hindrance)
{
	foreach_ptr(HeapTupleData, row, rows_of_all(stmt, roles, from))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		RelationFacts facts;
		Hindrance	its;

		check_owner(form);
		if (!relation_facts(form->oid, &facts))
			continue;
		its = hindrance_of_relation(&facts, job->request.to_tablespace);
		if (its.reason == NULL)
		{
			job->relids = lappend_oid(job->relids, form->oid);
			continue;
		}
		job->left_out = lappend_oid(job->left_out, form->oid);
		if (hindrance->reason == NULL)
			*hindrance = its;
	}
}

/* Tell, in core's words, that the tablespace has no relation that the statement is about. */
static void
tell_of_none(Oid tablespace)
{
	const char *name = tablespace_name(tablespace);

	if (tablespace == MyDatabaseTableSpace)
		name = "(database default)";
	ereport(NOTICE,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg("no matching relations in tablespace \"%s\" found", name)));
}

/* Leave to core the relations that the plan leaves out, with a reason. */
static void
leave_out_skipped(AlterJob *job)
{
	foreach_ptr(const PlannedMove, move, job->plan)
	{
		const MoveItem *item = &move->item;

		if (!OidIsValid(item->part_of) && item->outcome.status == STATUS_SKIPPED &&
			item->outcome.sqlstate[0] != '\0')
			job->left_out = lappend_oid(job->left_out, item->relid);
	}
}

/* Tell event triggers and hooks of what the job has moved; ERROR if one of it is not in place. */
static void
tell_of_moved(AlterTableMoveAllStmt *stmt, const AlterJob *job)
{
	foreach_ptr(const MoveItem, item, job->items)
	{
		if (OidIsValid(item->part_of) || get_rel_name(item->relid) == NULL)
			continue;
		check_in_place(job, item->relid);
		if (item->outcome.status != STATUS_MOVED)
			continue;
		collect_moved((Node *) stmt, stmt->new_tablespacename, item->relid);
		InvokeObjectPostAlterHook(RelationRelationId, item->relid, 0);
	}
}

/*
 * Return whether a relation that is left to core is in the tablespace still, and the statement is
 * about it.  ERROR 42501 if the user does not own it any more.
 */
static bool
is_still_left(const AlterTableMoveAllStmt *stmt, List *roles, Oid from, Oid relid)
{
	HeapTuple	row = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		result;

	if (!HeapTupleIsValid(row))
		return false;
	form = (Form_pg_class) GETSTRUCT(row);
	result = form->reltablespace == tablespace_in_catalog(from) &&
		is_one_of_all(stmt, roles, form);
	if (result)
		check_owner(form);
	ReleaseSysCache(row);
	return result;
}

/*
 * Have core move the relations that are left to it, as AlterTableMoveAll(): all locks first.
 * Not by another ALL IN TABLESPACE, which would copy under the lock whatever the tablespace
 * has by now.
 */
static void
alter_left_out(AlterTableMoveAllStmt *stmt, List *roles, Oid from, const AlterJob *job)
{
	List	   *cmds = list_make1(set_tablespace(tablespace_name(job->request.to_tablespace)));
	List	   *locked = NIL;

	foreach_oid(relid, job->left_out)
	{
		if (!is_still_left(stmt, roles, from, relid))
			continue;
		LockRelationOid(relid, AccessExclusiveLock);
		locked = lappend_oid(locked, relid);
	}
	foreach_oid(relid, locked)
	{
		RelationFacts facts;

		/* while its lock, or another, was waited for */
		if (!relation_facts(relid, &facts) || facts.tablespace != from)
			continue;
		EventTriggerAlterTableStart((Node *) stmt);
		AlterTableInternal(relid, cmds, false);
		EventTriggerAlterTableEnd();
	}
}

/*
 * Carry out ALTER ... ALL IN TABLESPACE: a job moves all that it can, core the rest.  Core
 * takes all locks first, and moves all or nothing; here, relations that the job
 * has moved before an error stay moved.
 */
static void
alter_all(const Statement *statement, AlterJob *job)
{
	AlterTableMoveAllStmt *stmt = (AlterTableMoveAllStmt *) statement->pstmt->utilityStmt;
	List	   *roles = roleSpecsToIds(stmt->roles);
	Oid			from = get_tablespace_oid(stmt->orig_tablespacename, false);
	Oid			to = get_tablespace_oid(stmt->new_tablespacename, false);
	double		since = 0;
	Attempt		attempt = ATTEMPT_DONE;
	Hindrance	left_out = {0};
	Hindrance	hindrance;
	MemoryContext context;

	if (from == to || from == GLOBALTABLESPACE_OID || to == GLOBALTABLESPACE_OID)
	{
		/* nothing to do, or core's error */
		pass_on(statement, statement->pstmt, PROCESS_UTILITY_SUBCOMMAND);
		return;
	}
	job_begin(job, target_of_statement(stmt->new_tablespacename));
	find_all(stmt, roles, from, job, &left_out);
	if (job->relids == NIL && job->left_out == NIL)
		tell_of_none(from);
	hindrance = left_out;
	context = AllocSetContextCreate(CurrentMemoryContext, "index_mover plan",
									ALLOCSET_DEFAULT_SIZES);
	while (job->relids != NIL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(context);

		attempt = job_carry_out_all(statement, job, &hindrance);
		MemoryContextSwitchTo(old_context);
		if (attempt != ATTEMPT_BUSY)
			break;
		/* a plan of many relations is large, and is made again and again */
		hindrance = left_out;
		job->plan = NIL;
		job->items = NIL;
		MemoryContextReset(context);
		wait_for_other_jobs(job, &since);
	}
	if (attempt == ATTEMPT_HINDERED)
	{
		/* no job has begun */
		job->items = NIL;
		job->left_out = list_concat(job->left_out, job->relids);
	}
	else
		leave_out_skipped(job);
	tell_of_moved(stmt, job);
	if (hindrance.reason != NULL && !job->told_hindrance)
		tell_hindrance(statement, &hindrance);
	alter_left_out(stmt, roles, from, job);
	pass_on_nothing(statement, stmt->objtype);
}

/* Carry out a statement online, and fire the event triggers, as ProcessUtilitySlow(). */
static void
alter_online(const Statement *statement)
{
	Node	   *node = statement->pstmt->utilityStmt;
	AlterJob	job = {0};
	bool		ends_query = EventTriggerBeginCompleteQuery();

	PG_TRY();
	{
		EventTriggerDDLCommandStart(node);
		if (IsA(node, AlterTableStmt))
			alter_one(statement, &job);
		else
			alter_all(statement, &job);
		EventTriggerSQLDrop(node);
		EventTriggerDDLCommandEnd(node);
	}
	PG_FINALLY();
	{
		if (ends_query)
			EventTriggerEndCompleteQuery();
	}
	PG_END_TRY();
}

/* Return whether the statement is about a table of Citus, which carries it out on all nodes. */
static bool
is_for_citus(const AlterTableStmt *stmt)
{
	RelationFacts facts;
	Oid			relid;

	if (!IsA(stmt, AlterTableStmt) || !OidIsValid(get_extension_oid("citus", true)))
		return false;
	relid = RangeVarGetRelid(stmt->relation, NoLock, true);
	return OidIsValid(relid) && relation_facts(relid, &facts) && citus_distributes(facts.heap_oid);
}

/*
 * Return whether TimescaleDB carries out the statement, by its own hook: of hypertables, of
 * chunks, whose compressed data is in another table, and of continuous aggregates, which are
 * views.
 */
static bool
is_for_timescaledb(const AlterTableStmt *stmt)
{
	Oid			relid;

	if (!IsA(stmt, AlterTableStmt) || !OidIsValid(get_extension_oid("timescaledb", true)))
		return false;
	relid = RangeVarGetRelid(stmt->relation, NoLock, true);
	if (!OidIsValid(relid))
		return false;
	return get_rel_relkind(relid) == RELKIND_VIEW || timescaledb_has(relid);
}

/*
 * Tell, before core carries out the whole statement, why it does; not if there is nothing to
 * copy nor, with "on", in a database without the extension.
 */
static void
tell_left_to_core(const Statement *statement, Hindrance *hindrance)
{
	AlterTableStmt *stmt = (AlterTableStmt *) statement->pstmt->utilityStmt;
	RelationFacts facts;

	if (online_alter == ONLINE_ALTER_ON &&
		hindrance->sqlstate == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE)
		return;
	if (IsA(stmt, AlterTableStmt))
	{
		if (!OidIsValid(relation_to_set(stmt, &facts)))
			return;
		hindrance->no_files = !RELKIND_HAS_STORAGE(facts.relkind);
		if (hindrance->sqlstate == ERRCODE_ACTIVE_SQL_TRANSACTION)
			hindrance->hint = hint_of_call(&facts, stmt);
	}
	tell_hindrance(statement, hindrance);
}

/* The hook */
static void
online_alter_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Statement	statement = {pstmt, queryString, readOnlyTree, params, queryEnv, dest, qc};
	Hindrance	hindrance;

	if (online_alter == ONLINE_ALTER_OFF || context == PROCESS_UTILITY_SUBCOMMAND ||
		!sets_tablespace(pstmt->utilityStmt) || !may_start_job())
	{
		pass_on(&statement, pstmt, context);
		return;
	}
	hindrance = hindrance_of_statement(&statement, context);
	if (hindrance.reason == NULL && is_for_timescaledb((AlterTableStmt *) pstmt->utilityStmt))
		hindrance.reason = "TimescaleDB carries it out for its hypertables and chunks.";
	if (hindrance.reason == NULL && !is_for_citus((AlterTableStmt *) pstmt->utilityStmt))
	{
		alter_online(&statement);
		return;
	}
	if (hindrance.reason != NULL)
		tell_left_to_core(&statement, &hindrance);
	pass_on(&statement, pstmt, context);
}

/* Install the hook, in _PG_init(). */
void
online_alter_init(void)
{
	int			flags = GetConfigOptionFlags("pgaudit.log", true);

	/* its setting exists, and is more than a line in the configuration */
	pgaudit_is_below = flags != 0 && (flags & GUC_CUSTOM_PLACEHOLDER) == 0;
	RegisterXactCallback(tell_of_abort, NULL);
	prev_ProcessUtility_hook = ProcessUtility_hook;
	ProcessUtility_hook = online_alter_utility;
}
