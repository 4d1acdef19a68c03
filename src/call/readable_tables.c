/*-------------------------------------------------------------------------
 *
 * readable_tables.c
 *	  Which tables of the extension can be read now, for index_mover_check().
 *
 * A monitor polls the check, so it must not wait without limit for a session that has locked
 * a table.  But a query waits for the locks of all tables that it names before it runs.  So
 * the part of the check that reads these tables is in SQL functions, which are planned when
 * they are called, and the check calls them only if the tables can be read.
 *
 * Locks: AccessShareLock on the tables that can be read until the end of the transaction, as
 * of any query.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "storage/lock.h"
#include "utils/tuplestore.h"

#include "own_tables.h"
#include "row.h"
#include "virtual_transactions.h"
#include "wait/wait.h"

PG_FUNCTION_INFO_V1(index_mover_readable_tables);

/* For the lock of a table: VACUUM may cut it for a moment */
#define LOCK_WAIT_MS	1000

/* The tables that the check reads; tier_policy is the business of policy_fault() */
static const char *const tables[] = {"ledger", "job_log", "move_log", "policy_run"};

/*
 * index_mover.readable_tables(OUT name text, OUT readable boolean, OUT locked_by int)
 *		RETURNS SETOF record
 *
 * For each table whether it could be locked for reading within a second, else also the
 * process that has locked it; NULL for a prepared transaction, and where another one only
 * waits for its lock.  EXECUTE: pg_monitor.
 */
Datum
index_mover_readable_tables(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(tables); i++)
	{
		Oid			relid = extension_relation(tables[i]);
		bool		readable = lock_relation_within(relid, AccessShareLock, LOCK_WAIT_MS, NULL);
		Row			row;

		row_clear(&row);
		row_text(&row, 1, tables[i]);
		row_set(&row, 2, BoolGetDatum(readable));
		if (!readable)
		{
			int			count;
			int			pid;
			VirtualTransactionId *holders = relation_lock_holders(relid, AccessShareLock, &count);

			if (virtual_transaction_pids(holders, count, &pid, 1) == 1 && pid != 0)
				row_set(&row, 3, Int32GetDatum(pid));
		}
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}
