/*-------------------------------------------------------------------------
 *
 * holders.c
 *	  Who holds back a move, and what to do about it, for its messages.
 *
 * In the words of move_blockers(), which is not asked: it could only be as
 * another role, who may see more than ours, and whoever owns its schema could
 * have another function in its place.  What is said of a session beyond its
 * process ID is only said to a role that could read it in pg_stat_activity.
 * Prepared transactions are no secret (pg_prepared_xacts).
 *
 * Locking: what looks at catalogs takes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "wait/blockers.h"
#include "compat.h"
#include "wait/holders.h"

/* more than that many aren't looked for */
#define MAX_DESCRIBED	3

char *
prepared_transaction_name(VirtualTransactionId vxid)
{
	MemoryContext context = CurrentMemoryContext;
	bool		more;
	TransactionId xid = TwoPhaseGetXidByVirtualXID(vxid, &more);
	Oid			types[1] = {XIDOID};
	Datum		values[1] = {TransactionIdGetDatum(xid)};
	char	   *result = NULL;

	if (!TransactionIdIsValid(xid))
		return NULL;
	SPI_connect();
	if (SPI_execute_with_args("SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE transaction OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, false, 1) == SPI_OK_SELECT &&
		SPI_processed == 1)
		result = MemoryContextStrdup(context,
									 SPI_getvalue(SPI_tuptable->vals[0],
												  SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return result;
}

/*
 * The transactions that have any lock on the relation; none without one.
 */
static VirtualTransactionId *
lock_holders(Oid relid, int *count)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return GetLockConflicts(&tag, AccessExclusiveLock, count);
}

/*
 * Append the prepared transactions among them.  Returns whether there are any.
 */
static bool
describe_prepared(StringInfo buf, Oid relid)
{
	int			count;
	VirtualTransactionId *vxids = lock_holders(relid, &count);
	bool		found = false;

	for (int i = 0; i < count; i++)
	{
		char	   *name = prepared_transaction_name(vxids[i]);
		char	   *literal;

		if (name == NULL)
			continue;
		literal = quote_literal_cstr(name);
		appendStringInfo(buf, "%sprepared transaction \"%s\" (COMMIT PREPARED %s; or ROLLBACK PREPARED %s;)",
						 found ? ", " : "", name, literal, literal);
		found = true;
	}
	return found;
}

static bool
holds_lock(PGPROC *proc, Oid relid)
{
	int			count;
	VirtualTransactionId *vxids = lock_holders(relid, &count);

	for (int i = 0; i < count; i++)
		if (proc != NULL && im_vxid_proc(vxids[i]) == proc &&
			PROC_LXID(proc) == vxids[i].localTransactionId)
			return true;
	return false;
}

/*
 * Append a session.  It may be that it has prepared the transaction that is
 * waited for, or has come after the one that has, and has nothing to do with it:
 * core knows transactions by the number of who has begun them.
 */
static void
describe_session(StringInfo buf, Oid relid, int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	PgBackendStatus *status;

	if (!holds_lock(proc, relid) && describe_prepared(buf, relid))
		return;
	appendStringInfo(buf, "process %d", pid);
	if (proc == NULL || !LocalTransactionIdIsValid(PROC_LXID(proc)) ||
		!(has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		  has_privs_of_role(GetUserId(), proc->roleId)))
		return;
	status = blockers_find(pid);
	if (status == NULL)
		return;
	if (status->st_state == STATE_IDLEINTRANSACTION ||
		status->st_state == STATE_IDLEINTRANSACTION_ABORTED)
		appendStringInfo(buf, " (end its transaction in the client, or SELECT pg_terminate_backend(%d);)", pid);
	else
		appendStringInfo(buf, " (wait for its end, or SELECT pg_cancel_backend(%d);)", pid);
}

void
holders_describe(StringInfo buf, Oid relid, const int *pids, int npids)
{
	bool		prepared_told = false;
	MemoryContext context = CurrentMemoryContext;

	if (npids == 0)
		return;
	if (!IsTransactionState())
		StartTransactionCommand();
	MemoryContextSwitchTo(context);
	PushActiveSnapshot(GetTransactionSnapshot());
	for (int i = 0; i < Min(npids, MAX_DESCRIBED); i++)
	{
		if (pids[i] == 0 && prepared_told)
			continue;
		appendStringInfoString(buf, i > 0 ? ", " : "");
		if (pids[i] != 0)
			describe_session(buf, relid, pids[i]);
		else
		{
			/* it may have ended by now */
			if (!describe_prepared(buf, relid))
				appendStringInfoString(buf, "a prepared transaction");
			prepared_told = true;
		}
	}
	PopActiveSnapshot();
	if (npids > MAX_DESCRIBED)
		appendStringInfo(buf, " and %d more", npids - MAX_DESCRIBED);
}
