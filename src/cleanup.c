/*-------------------------------------------------------------------------
 *
 * cleanup.c
 *	  Removing what moves have left behind: index_mover_cleanup().
 *
 * The ledger names it.  Invalid index entries (leftover_index.c) need waits and
 * transactions of their own, so all of it is done by a worker, whoever asks:
 * the function here, a move that is about to begin on the same table, or a
 * worker that was terminated and has asked for a successor.
 *
 * Locking: see leftover_index.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/tablespace.h"
#include "utils/tuplestore.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "carry_out.h"
#include "catalog.h"
#include "cleanup.h"
#include "compat.h"
#include "ledger.h"
#include "leftover_files.h"
#include "leftover_index.h"
#include "submit.h"
#include "throttle.h"

PG_FUNCTION_INFO_V1(index_mover_cleanup);

bool
cleanup_is_needed(int64 job)
{
	ListCell   *lc;

	foreach(lc, ledger_read())
		if (((LedgerEntry *) lfirst(lc))->job == job)
			return true;
	return false;
}

/* Between the steps of removing a large file. */
static void
rest(int ms)
{
	(void) throttle_rest(ms);
}

void
cleanup_run(JobShared *shared)
{
	bool		installed;

	/* the janitor asks in every database */
	StartTransactionCommand();
	installed = extension_installed();
	CommitTransactionCommand();
	if (!installed)
		return;

	progress_phase(PHASE_CLEANING_UP);
	(void) leftover_files_remove(rest);
	(void) leftover_indexes_remove(InvalidOid, 0, shared->settings.lock_wait);
}

void
cleanup_table(Oid heap_oid, int max_wait_ms)
{
	/* files of any table: that takes no lock, and they may be large */
	(void) leftover_files_remove(rest);
	(void) leftover_indexes_remove(heap_oid, 0, max_wait_ms);
}

static bool
file_is_listed(List *leftovers, int64 ledger_id)
{
	ListCell   *lc;

	foreach(lc, leftovers)
		if (((LeftoverFile *) lfirst(lc))->ledger_id == ledger_id)
			return true;
	return false;
}

static bool
is_listed(List *leftovers, Oid index_oid)
{
	ListCell   *lc;

	/* not by the ledger's row: a step on the way may have made a new one */
	foreach(lc, leftovers)
		if (((LeftoverIndex *) lfirst(lc))->index_oid == index_oid)
			return true;
	return false;
}

/*
 * index_mover_cleanup(dry_run boolean DEFAULT false, OUT kind text,
 *		OUT object text, OUT tablespace name, OUT size bigint, OUT action text)
 *		RETURNS SETOF record
 *
 * Removes what crashed or killed moves of this database have left behind, and
 * returns one row for each thing: size in bytes, action "remove" (dry_run),
 * "removed", or why it is still there.  Nothing that a move did not make is
 * touched.
 *
 * Locks: none in the calling session; in the worker ShareUpdateExclusiveLock on
 * table and index for moments.  Waits at most index_mover.lock_wait for
 * transactions that use the table.  EXECUTE is revoked from PUBLIC.
 * ERRORs: 22004 NULL, 25001 in a transaction block, 25006 in a read-only
 * transaction or during recovery, 42501 within a security-restricted operation,
 * 53000 no worker.
 */
Datum
index_mover_cleanup(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		dry_run;
	List	   *before;
	List	   *after = NIL;
	List	   *files;
	List	   *files_after = NIL;
	ListCell   *lc;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("dry_run must not be null")));
	dry_run = PG_GETARG_BOOL(0);
	/* an index expression may call us, in a worker that removes leftovers */
	check_moment("index_mover_cleanup()", true, false);
	if (!dry_run)
	{
		PreventCommandDuringRecovery("index_mover_cleanup()");
		PreventCommandIfReadOnly("index_mover_cleanup()");
		PreventInTransactionBlock(true, "index_mover_cleanup()");
	}

	InitMaterializedSRF(fcinfo, 0);
	before = leftover_indexes_list();
	files = leftover_files_list();
	if (!dry_run && (before != NIL || files != NIL))
	{
		MoveSettings settings;
		int64		job;

		settings_capture(&settings);
		(void) submit_and_wait(JOB_CLEANUP, NIL, &settings, &job);
		after = leftover_indexes_list();
		files_after = leftover_files_list();
	}

	foreach(lc, before)
	{
		const LeftoverIndex *leftover = lfirst(lc);
		char	   *tablespace = get_tablespace_name(leftover->tablespace);
		Datum		values[5];
		bool		nulls[5] = {0};

		values[0] = CStringGetTextDatum(leftover->duplicate ? "duplicate index" : "invalid index");
		values[1] = CStringGetTextDatum(leftover->name);
		nulls[2] = (tablespace == NULL);
		values[2] = tablespace == NULL ? (Datum) 0 :
			DirectFunctionCall1(namein, CStringGetDatum(tablespace));
		values[3] = Int64GetDatum(leftover->size);
		values[4] = CStringGetTextDatum(dry_run ? "remove" :
										is_listed(after, leftover->index_oid) ?
										"kept: its table is in use, try again later" : "removed");
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	foreach(lc, files)
	{
		const LeftoverFile *file = lfirst(lc);
		char	   *tablespace = get_tablespace_name(file->tablespace);
		Datum		values[5];
		bool		nulls[5] = {0};

		values[0] = CStringGetTextDatum(file->kind == LEDGER_NEW_FILE ?
										"unfinished copy" : "old file");
		values[1] = CStringGetTextDatum(file->name);
		nulls[2] = (tablespace == NULL);
		values[2] = tablespace == NULL ? (Datum) 0 :
			DirectFunctionCall1(namein, CStringGetDatum(tablespace));
		nulls[3] = (file->size < 0);
		values[3] = Int64GetDatum(file->size);
		if (file_is_listed(files_after, file->ledger_id))
			values[4] = CStringGetTextDatum("kept: could not be removed, see the server log");
		else if (file->size < 0)
			values[4] = CStringGetTextDatum(dry_run ? "forget: there is no such file of ours" :
											"forgotten: there is no such file of ours");
		else
			values[4] = CStringGetTextDatum(dry_run ? "remove" : "removed");
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
