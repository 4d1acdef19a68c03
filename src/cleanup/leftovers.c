/*-------------------------------------------------------------------------
 *
 * leftovers.c
 *	  Removing files and indexes that moves have left behind, in a worker.
 *
 * The removal of an invalid index needs waits and transactions of its own, so a
 * worker removes all leftovers, for index_mover_cleanup(), a move that begins on
 * the same table, a call that finds nothing to move there, or a worker that was
 * terminated and has asked for a successor.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "cleanup/cleanup.h"

/*
 * Return, in a transaction, whether the ledger has a row of this job that this process has
 * made, but for the files from which its copies can go on.  The other runners of the job
 * may be at work on the files that theirs name.
 */
bool
leftovers_of_runner(int64 job)
{
	foreach_ptr(LedgerEntry, entry, ledger_read())
	{
		if (entry->job == job && entry->pid == MyProcPid && !leftover_file_is_kept(entry))
			return true;
	}
	return false;
}

/*
 * Return, in a transaction, the tables that dead jobs have left something on,
 * or only a row in the ledger; with kept_too, also a file from which a copy can
 * go on.
 */
List *
leftovers_tables(bool kept_too)
{
	List	   *rows = ledger_read();
	List	   *result = NIL;

	foreach_ptr(LedgerEntry, entry, rows)
	{
		if (leftover_index_is_dead(entry) ||
			(leftover_file_is_dead(entry, rows) && (kept_too || !leftover_file_is_kept(entry))))
			result = list_append_unique_oid(result, entry->heap_oid);
	}
	return result;
}

/* Return, in a transaction, the leftovers of dead jobs that these rows of the ledger name. */
List *
leftovers_list(const List *rows)
{
	List	   *result = NIL;

	foreach_ptr(LedgerEntry, entry, rows)
	{
		Leftover   *leftover = NULL;

		if (leftover_index_is_dead(entry))
			leftover = leftover_index_describe(entry);
		else if (leftover_file_is_dead(entry, rows))
			leftover = leftover_file_describe(entry);
		if (leftover != NULL)
			result = lappend(result, leftover);
	}
	return result;
}

/*
 * Remove all leftovers that can be removed of the tables of the job's items, or
 * of all tables if it has none.  Waits at most max_wait_ms for the transactions
 * that use a table.  Call this in a runner.
 */
void
leftovers_remove(JobShared *shared, int max_wait_ms)
{
	/*
	 * a cleanup that was asked for also removes files from which copies can
	 * go on
	 */
	bool		kept_too = shared->job != CLEANUP_JOB && shared->nitems == 0;
	List	   *tables = NIL;

	Assert(!IsTransactionState());
	for (int i = 0; i < shared->nitems; i++)
		tables = lappend_oid(tables, shared->items[i].heap_oid);
	progress_phase(PHASE_CLEANING_UP);
	leftover_files_remove(kept_too);
	leftover_indexes_remove(NULL, false, tables, max_wait_ms);
}
