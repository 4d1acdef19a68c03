/*-------------------------------------------------------------------------
 *
 * cleanup_call.c
 *	  index_mover_cleanup(), and the cleanup that other calls include.
 *
 * The removal needs waits and transactions of its own, so a worker does it
 * (cleanup/leftovers.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "commands/tablespace.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "cleanup/cleanup.h"
#include "file_system.h"
#include "own_tables.h"
#include "printed_command.h"
#include "row.h"
#include "test_points.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(index_mover_cleanup);
PG_FUNCTION_INFO_V1(index_mover_problems);
PG_FUNCTION_INFO_V1(index_mover_adopt_ledger);

/* A check reads further pages of indexes for so long */
#define MORE_PAGES_MS	IM_LIMIT("check-ms", 25)

/*
 * Remove the leftovers of dead jobs on tables of a plan (of PlannedMove)
 * that have nothing to move, since a job that moves does it itself, and whose indexes
 * the current user may move.  By a job of its own, for which no session waits.  None while
 * another session has locked the ledger: the call has its rows.
 */
void
cleanup_call(const List *plan, Oid role)
{
	List	   *tables;
	List	   *items = NIL;

	/*
	 * a DROP EXTENSION may have ended the job: the call has its rows then,
	 * too
	 */
	if (!extension_installed())
		return;
	if (!ConditionalLockRelationOid(extension_relation("ledger"), AccessShareLock))
		return;
	tables = leftovers_tables(false);
	if (tables == NIL)
		return;
	foreach_ptr(const PlannedMove, move, plan)
	{
		if (move->item.outcome.status != STATUS_SKIPPED)
			tables = list_delete_oid(tables, move->item.heap_oid);
	}
	foreach_ptr(PlannedMove, move, plan)
	{
		MoveItem   *item = &move->item;

		if (!list_member_oid(tables, item->heap_oid) ||
			get_rel_relkind(item->heap_oid) == '\0' ||
			plan_aclcheck(item->heap_oid, true) != ACLCHECK_OK)
			continue;
		/* an item for each table */
		tables = list_delete_oid(tables, item->heap_oid);
		items = lappend(items, item);
	}
	if (items == NIL)
		return;
	if (!job_launch_cleanup(history_next_job(), MyDatabaseId, role, items))
		job_launch_warn();
}

/* Return the words for a kind of leftovers; for files the same as in a plan. */
static const char *
kind_name(LeftoverKind kind)
{
	switch (kind)
	{
		case LEFTOVER_UNFINISHED_COPY:
			return relation_kind(ITEM_COPY, "");
		case LEFTOVER_OLD_FILE:
			return relation_kind(ITEM_OLD_FILE, "");
		case LEFTOVER_INVALID_INDEX:
			return "invalid index";
		case LEFTOVER_DUPLICATE_INDEX:
			return "duplicate index";
	}
	pg_unreachable();
}

/* Return the action on a leftover, which still exists if "kept". */
static const char *
action_name(const Leftover *leftover, bool dry_run, bool kept)
{
	bool		is_index = OidIsValid(leftover->index_oid);

	if (kept)
		return is_index ? "kept: its table is in use, try again later" :
			"kept: could not be removed, see the server log";
	if (!is_index && leftover->size < 0)
		return dry_run ? "forget: there is no such file of ours" :
			"forgotten: there is no such file of ours";
	if (dry_run && leftover->keep_until != 0)
		return psprintf("remove; otherwise kept until %s, for: %s",
						timestamptz_to_str(leftover->keep_until),
						printed_command("resume_move", leftover->job));
	return dry_run ? "remove" : "removed";
}

/*
 * Add a row to the result; tablespace 0 and size -1 are NULL.  Only
 * index_mover.problems() has columns for the command, and for until when a file is kept.
 */
static void
put_leftover(ReturnSetInfo *rsinfo, const char *kind, const char *object, Oid tablespace,
			 int64 size, const char *action, const char *command, const char *kept_until)
{
	Row			row;

	row_clear(&row);
	row_text(&row, 1, kind);
	row_text(&row, 2, object);
	row_tablespace(&row, 3, tablespace);
	row_int64(&row, 4, size);
	row_text(&row, 5, action);
	row_text(&row, 6, command);
	row_text(&row, 7, kept_until);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
}

/* Add the rows of leftovers, of which "after" are left. */
static void
put_leftovers(ReturnSetInfo *rsinfo, const List *before, const List *after, bool dry_run)
{
	foreach_ptr(const Leftover, leftover, before)
	{
		const char *command = printed_command("cleanup");
		const char *kept_until = NULL;
		bool		kept = false;

		foreach_ptr(const Leftover, other, after)
		{
			if (other->index_oid == leftover->index_oid &&
				other->ledger_id == leftover->ledger_id)
				kept = true;
		}
		if (leftover->keep_until != 0)
		{
			command = printed_command("resume_move", leftover->job);
			/* a file that is gone is not kept */
			if (leftover->size >= 0)
				kept_until = pstrdup(timestamptz_to_str(leftover->keep_until));
		}
		put_leftover(rsinfo, kind_name(leftover->kind), leftover->name, leftover->tablespace,
					 leftover->size, action_name(leftover, dry_run, kept), command, kept_until);
	}
}

/*
 * index_mover_cleanup(dry_run boolean DEFAULT false, OUT kind text,
 *		OUT object text, OUT tablespace name, OUT size bigint,
 *		OUT action text) RETURNS SETOF record
 *
 * Removes files and indexes that crashed or killed moves of this database have left
 * behind, and touches nothing that a move did not make.  Returns a row for each object:
 * size in bytes, action "remove" (dry_run), "removed", or why it still exists.
 * Also deletes jobs from the history that are older than
 * index_mover.history_retention.
 *
 * Locks: only in the worker, which takes ShareUpdateExclusiveLock on table
 * and index briefly.  It waits at most index_mover.lock_wait for transactions
 * that use the table.  EXECUTE is revoked from PUBLIC.
 *
 * ERRORs: 22004 NULL; 25001 in a transaction block; 25006 in a read-only
 * transaction or during recovery; 42501 within a security-restricted
 * operation; 53000 no worker.
 */
Datum
index_mover_cleanup(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		dry_run = PG_GETARG_BOOL(0);
	List	   *before;
	List	   *after = NIL;
	int			expired = 0;
	TimestampTz oldest;
	MoveSettings settings;

	reject_null(fcinfo, 0, "dry_run");
	/* an index expression may call this in a worker that removes leftovers */
	call_check_moment("index_mover_cleanup()", dry_run, false);
	/* a standby does not know which jobs are still running on the primary */
	PreventCommandDuringRecovery("index_mover_cleanup()");
	if (!dry_run)
		call_check_block("index_mover_cleanup()", false);

	InitMaterializedSRF(fcinfo, 0);
	settings_capture(&settings, NULL, false);
	before = leftovers_list(ledger_read());
	/* do so even if only rows of the ledger are left */
	if (!dry_run && leftovers_tables(true) != NIL)
	{
		wait_for_rows(history_next_job(), NULL, NIL, &settings, NULL, NULL);
		after = leftovers_list(ledger_read());
	}
	put_leftovers(rsinfo, before, after, dry_run);
	if (history_retention != 0)
	{
		oldest = GetCurrentTimestamp() - history_retention * USECS_PER_MINUTE;
		expired = history_expire(oldest, dry_run);
	}
	if (expired > 0)
	{
		const char *jobs = expired == 1 ? "job" : "jobs";
		const char *action = dry_run ? "delete" : "deleted";

		put_leftover(rsinfo, "history", psprintf("%d %s", expired, jobs), InvalidOid, -1,
					 psprintf("%s: older than index_mover.history_retention", action), NULL, NULL);
	}
	return (Datum) 0;
}

/*
 * Return whether to look if a relation's file is lost.  Devices are lost with the
 * tablespaces on them, so elsewhere a file that exists is not looked into.  The
 * tablespace may be the database's.
 */
static bool
may_be_lost(Form_pg_class form)
{
	RelationFacts facts;

	return form->relpersistence != RELPERSISTENCE_TEMP && RelFileNumberIsValid(form->relfilenode) &&
		relation_facts(form->oid, &facts) &&
		(facts.tablespace >= FirstNormalObjectId || relation_main_size(&facts) < 0);
}

/*
 * Add a row for each other cluster whose moves have left rows in the ledger: nothing removes
 * what these name, nor goes on from it, since the files may be of a cluster that still
 * runs.
 */
static void
put_foreign_rows(ReturnSetInfo *rsinfo, List *systems)
{
	while (systems != NIL)
	{
		char	   *system = linitial(systems);
		List	   *others = NIL;
		int			count;

		foreach_ptr(char, other, systems)
		{
			if (strcmp(other, system) != 0)
				others = lappend(others, other);
		}
		count = list_length(systems) - list_length(others);
		put_leftover(rsinfo, "rows of another cluster", "index_mover.ledger", InvalidOid, -1,
					 psprintf("%d left by moves of the cluster with the system identifier %s, before pg_upgrade or pg_createsubscriber",
							  count, system),
					 printed_command("adopt_ledger", system), NULL);
		systems = others;
	}
}

/* Return the command that mends a relation whose file is lost, or NULL. */
static const char *
mending_command(const RelationFacts *facts)
{
	if (RecoveryInProgress() || IsCatalogRelationOid(facts->relid))
		return NULL;
	/* heal_tablespace() leaves it to its builder, or to be dropped */
	if (!facts->valid && (!facts->live || is_reindex_leftover_name(NameStr(facts->relname))))
		return leftover_command(facts);
	return printed_command("heal", tablespace_name(facts->tablespace));
}

/*
 * Add a row for each relation whose file is lost.  heal_tablespace() reads more pages of each
 * index: so as many are read here, as long as that takes no longer than a monitor may.  Where it
 * does, each call begins at another relation, and the next calls name the findings of this call, too.
 */
static void
put_lost_files(ReturnSetInfo *rsinfo)
{
	List	   *relids = relations_such(may_be_lost);
	int			n = list_length(relids);
	const char **lost = palloc0_array(const char *, n + 1);
	double		until = clock_seconds() + MORE_PAGES_MS / 1000.0;
	uint64		first = pg_prng_uint64_range(&pg_global_prng_state, 0, n);
	RelationFacts facts;

	for (int i = 0; i < n; i++)
	{
		int			at = (first + i) % n;

		CHECK_FOR_INTERRUPTS();
		lost[at] = lost_problem(list_nth_oid(relids, at), until);
	}
	for (int i = 0; i < n; i++)
	{
		Oid			relid = list_nth_oid(relids, i);

		if (lost[i] != NULL && relation_facts(relid, &facts))
			put_leftover(rsinfo, "lost file",
						 quote_qualified_identifier(NameStr(facts.schema_name),
													NameStr(facts.relname)),
						 facts.tablespace, -1, lost[i], mending_command(&facts), NULL);
	}
}

/*
 * index_mover.problems(lost boolean, OUT kind text, OUT object text, OUT tablespace name,
 *		OUT size bigint, OUT action text, OUT command text) RETURNS SETOF record
 *
 * For index_mover_check().  With lost: relations whose files are lost (command NULL where
 * heal_tablespace() does nothing: for system catalogs, on a standby).  Else the rows of
 * index_mover_cleanup(dry_run => true), but for the history, and rows of the ledger that are
 * another cluster's; none on a standby, which does not know which jobs are still running on
 * the primary.
 */
Datum
index_mover_problems(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (PG_GETARG_BOOL(0))
		put_lost_files(rsinfo);
	else if (!RecoveryInProgress())
	{
		List	   *foreign;

		put_leftovers(rsinfo, leftovers_list(ledger_read_all(&foreign)), NIL, true);
		put_foreign_rows(rsinfo, foreign);
	}
	return (Datum) 0;
}

/*
 * index_mover.adopt_ledger(system_identifier text) RETURNS bigint
 *
 * Makes the rows of the ledger that the cluster with this system identifier has left this
 * cluster's own, so that index_mover_cleanup() removes the files that they name; returns their
 * number.  Not granted to any role: if that cluster still runs, the files are in use.
 *
 * Locks: RowExclusiveLock on the ledger.  ERRORs: 25006 in a read-only transaction or
 * during recovery.
 */
Datum
index_mover_adopt_ledger(PG_FUNCTION_ARGS)
{
	PreventCommandDuringRecovery("adopt_ledger()");
	PreventCommandIfReadOnly("adopt_ledger()");
	PG_RETURN_INT64(ledger_adopt(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}
