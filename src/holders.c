/*-------------------------------------------------------------------------
 *
 * holders.c
 *	  Who holds back a move, and what to do about it, for its messages.
 *
 * move_blockers() knows, and is asked: so a move that gives up says the same
 * as who looks for himself.  It is for pg_monitor, and shows of sessions what
 * not everybody may see; so it is asked as the bootstrap superuser, and what is
 * said of a session beyond its process ID is only said to who could read it in
 * pg_stat_activity.  Prepared transactions are no secret (pg_prepared_xacts).
 *
 * Locking: what the query takes on catalogs.  It runs in a subtransaction: if
 * it fails, the bare process IDs have to do.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "catalog.h"
#include "holders.h"

/* more than that many aren't looked for */
#define MAX_DESCRIBED	3

/* The columns of the query. */
enum
{
	COL_KIND = 1,
	COL_PID,
	COL_NAME,
	COL_HOLDS_BACK,
	COL_ACTION
};

/* May the role see what a session does? */
static bool
may_see(Oid role, int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	return has_privs_of_role(role, ROLE_PG_READ_ALL_STATS) ||
		(proc != NULL && has_privs_of_role(role, proc->roleId));
}

static char *
column(uint64 row, int col)
{
	return SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, col);
}

/*
 * Append the prepared transactions that move_blockers() has found: those with
 * locks on the relation, if it was asked for one.
 */
static void
describe_prepared(StringInfo buf, Oid relid)
{
	bool		found = false;

	for (uint64 row = 0; row < SPI_processed; row++)
	{
		if (strcmp(column(row, COL_KIND), "prepared transaction") != 0 ||
			(OidIsValid(relid) &&
			 strncmp(column(row, COL_HOLDS_BACK), "locks on", 8) != 0))
			continue;
		appendStringInfo(buf, "%sprepared transaction \"%s\" (%s)", found ? ", " : "",
						 column(row, COL_NAME), column(row, COL_ACTION));
		found = true;
	}
	if (!found)
		appendStringInfoString(buf, "a prepared transaction");
}

/*
 * Append a session.  It may be that it has prepared the transaction that is
 * waited for, and has nothing to do with it any more: core knows transactions
 * by the number of who has begun them.
 */
static void
describe_session(StringInfo buf, Oid role, Oid relid, int pid)
{
	char	   *action = NULL;
	bool		prepared = false;

	for (uint64 row = 0; row < SPI_processed; row++)
	{
		char	   *found = column(row, COL_PID);

		if (found != NULL && atoi(found) == pid)
			action = column(row, COL_ACTION);
		if (strcmp(column(row, COL_KIND), "prepared transaction") == 0 &&
			strncmp(column(row, COL_HOLDS_BACK), "locks on", 8) == 0)
			prepared = true;
	}
	if (action == NULL && prepared)
	{
		describe_prepared(buf, relid);
		return;
	}
	appendStringInfo(buf, "process %d", pid);
	if (action != NULL && may_see(role, pid))
		appendStringInfo(buf, " (%s)", action);
}

/*
 * Ask move_blockers() in the current subtransaction.
 */
static void
ask(StringInfo buf, Oid relid, const int *pids, int npids)
{
	Oid			role = GetUserId();
	Oid			argtypes[1] = {REGCLASSOID};
	Datum		args[1] = {ObjectIdGetDatum(relid)};
	char		nulls[1] = {OidIsValid(relid) ? ' ' : 'n'};
	char	   *query = psprintf("SELECT kind, pid, name, holds_back, action FROM %s.move_blockers($1)",
								 quote_identifier(get_namespace_name(extension_schema())));
	bool		prepared_told = false;
	Oid			save_userid;
	int			save_context;
	StringInfoData text;

	/* must outlive SPI's memory */
	initStringInfo(&text);

	GetUserIdAndSecContext(&save_userid, &save_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   save_context | SECURITY_LOCAL_USERID_CHANGE);
	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute_with_args(query, 1, argtypes, args, nulls, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "move_blockers() cannot be asked");
	for (int i = 0; i < Min(npids, MAX_DESCRIBED); i++)
	{
		if (pids[i] == 0 && prepared_told)
			continue;
		appendStringInfoString(&text, text.len > 0 ? ", " : "");
		if (pids[i] == 0)
		{
			describe_prepared(&text, relid);
			prepared_told = true;
		}
		else
			describe_session(&text, role, relid, pids[i]);
	}
	PopActiveSnapshot();
	SPI_finish();
	SetUserIdAndSecContext(save_userid, save_context);
	appendStringInfoString(buf, text.data);
}

/*
 * Append the process IDs and nothing more.
 */
static void
describe_plainly(StringInfo buf, const int *pids, int npids)
{
	for (int i = 0; i < Min(npids, MAX_DESCRIBED); i++)
	{
		appendStringInfoString(buf, i > 0 ? ", " : "");
		if (pids[i] == 0)
			appendStringInfoString(buf, "a prepared transaction");
		else
			appendStringInfo(buf, "process %d", pids[i]);
	}
}

void
holders_describe(StringInfo buf, Oid relid, const int *pids, int npids)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ResourceOwner oldowner;
	int			before = buf->len;

	if (npids == 0)
		return;
	if (!IsTransactionState())
		StartTransactionCommand();
	oldowner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(oldcontext);
	PG_TRY();
	{
		ask(buf, relid, pids, npids);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(oldcontext);
		edata = CopyErrorData();
		if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED ||
			edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		buf->len = before;
		buf->data[before] = '\0';
		describe_plainly(buf, pids, npids);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcontext);
	CurrentResourceOwner = oldowner;
	if (npids > MAX_DESCRIBED)
		appendStringInfo(buf, " and %d more", npids - MAX_DESCRIBED);
}
