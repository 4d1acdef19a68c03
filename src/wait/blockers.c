/*-------------------------------------------------------------------------
 *
 * blockers.c
 *	  Signaling sessions that block a move, and describing them.
 *
 * A session is signaled only if the job's role could signal it with
 * pg_cancel_backend() and pg_terminate_backend().  Never signaled are prepared
 * transactions (they have no process), walsenders, autovacuum, our own workers,
 * and the sessions that wait for them.
 *
 * Autovacuum is canceled as core does it: core cancels an autovacuum for any
 * process that queues behind it for deadlock_timeout, unless it works against
 * wraparound.  We do not queue for that long.
 *
 * Between the check and the signal the session may have gone on to its next
 * transaction, as with pg_terminate_backend().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "printed_command.h"
#include "wait/wait.h"

#define MAX_SIGNALLED	64		/* for one index; then the move gives up */

/* Processes signaled for the current index. */
static int	signalled[MAX_SIGNALLED];
static int	nsignalled = 0;
static StringInfoData told;		/* in TopMemoryContext once used */

static MoveItem *current_item = NULL;
static const MoveSettings *current_settings = NULL;

/* Describe no more blockers than this. */
#define MAX_DESCRIBED	3

/* Return a backend's status, valid until the next call, or NULL. */
PgBackendStatus *
blockers_find(int pid)
{
	int			n;

	pgstat_clear_backend_activity_snapshot();
	n = pgstat_fetch_stat_numbackends();
	for (int i = 1; i <= n; i++)
	{
		LocalPgBackendStatus *local = pgstat_get_local_beentry_by_index(i);

		if (local != NULL && local->backendStatus.st_procpid == pid)
			return &local->backendStatus;
	}
	return NULL;
}

/* Return whether the current user may signal a role's sessions, as pg_signal_backend(). */
bool
blockers_may_signal(Oid role)
{
	Assert(IsTransactionState());
	if (superuser())
		return true;
	if (!OidIsValid(role) || superuser_arg(role))
		return false;
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND);
}

/*
 * Report a signaled session by a WARNING and, later, in the item's detail.
 * xact_start is the start of its transaction, 0 if not known.
 */
void
blockers_note(const MoveItem *item, int pid, Oid role, bool terminate,
			  TimestampTz xact_start)
{
	char	   *name = GetUserNameFromId(role, true);
	const char *verb = terminate ? "terminated" : "canceled";

	if (told.data == NULL)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&told);
		MemoryContextSwitchTo(oldcontext);
	}
	ereport(WARNING,
			(errmsg("%s process %d, which was in the way of moving %s \"%s\"",
					verb, pid, relation_noun(item->relkind), NameStr(item->relname)),
			 xact_start == 0 ?
			 errdetail("It was a session of role \"%s\".", name ? name : "?") :
			 errdetail("It was a session of role \"%s\"; its transaction had been open for %ld seconds.",
					   name ? name : "?",
					   TimestampDifferenceMilliseconds(xact_start, GetCurrentTimestamp()) / 1000)));
	appendStringInfo(&told, " It has %s process %d of role \"%s\".", verb, pid,
					 name ? name : "?");
}

/* Signal a process and report it; false if not allowed, or if gone. */
static bool
signal_one(const MoveItem *item, int pid, bool terminate)
{
	PGPROC	   *proc;
	PgBackendStatus *status;
	Oid			role;

	if (pid == 0 || pid == MyProcPid || runner_knows_pid(pid))
		return false;
	proc = BackendPidGetProc(pid);
	if (proc == NULL)
		return false;
	role = proc->roleId;
	status = blockers_find(pid);
	if (status == NULL ||
		(status->st_backendType != B_BACKEND && status->st_backendType != B_BG_WORKER) ||
		!blockers_may_signal(role))
		return false;
	if (kill(pid, terminate ? SIGTERM : SIGINT) != 0)
		return false;

	blockers_note(item, pid, role, terminate, status->st_xact_start_timestamp);
	return true;
}

/*
 * Set the item that blockers_item() returns, and for which the removal of
 * leftovers may signal blockers, until blockers_tell().
 */
void
blockers_begin(MoveItem *item, const MoveSettings *settings)
{
	current_item = item;
	current_settings = settings;
	nsignalled = 0;
	if (told.data != NULL)
		resetStringInfo(&told);
}

/* Return the current item and its settings; NULL if there is none. */
MoveItem *
blockers_item(const MoveSettings **settings)
{
	*settings = current_settings;
	return current_item;
}

/*
 * Signal these processes, as on_blocker says, after lock_wait.  Return how
 * many were signaled for the first time for this item; 0 means to give up.
 */
int
blockers_signal(MoveItem *item, const MoveSettings *settings,
				const int *pids, int npids)
{
	int			on_blocker = settings->on_blocker;
	bool		own_transaction = !IsTransactionState();
	MemoryContext oldcontext = CurrentMemoryContext;
	int			result = 0;

	if (!SIGNALS_BLOCKERS(settings))
		return 0;
	/* roles are in the catalog */
	if (own_transaction)
		StartTransactionCommand();
	for (int i = 0; i < npids; i++)
	{
		bool		known = false;

		for (int j = 0; j < nsignalled; j++)
			known = known || signalled[j] == pids[i];
		if (known || nsignalled == MAX_SIGNALLED ||
			!signal_one(item, pids[i], on_blocker == ON_BLOCKER_TERMINATE))
			continue;
		signalled[nsignalled++] = pids[i];
		result++;
	}
	if (own_transaction)
	{
		CommitTransactionCommand();
		MemoryContextSwitchTo(oldcontext);
	}
	return result;
}

/* End the item: add the signaled sessions to its detail. */
void
blockers_tell(MoveItem *item)
{
	if (told.len > 0)
	{
		size_t		used = strlen(item->detail);

		strlcpy(item->detail + used, told.data + (used == 0 ? 1 : 0),
				sizeof(item->detail) - used);
		/* the fixed length may have cut a multibyte character in two */
		item->detail[pg_mbcliplen(item->detail, strlen(item->detail),
								  sizeof(item->detail) - 1)] = '\0';
		resetStringInfo(&told);
	}
	nsignalled = 0;
	current_item = NULL;
	current_settings = NULL;
}

/* Cancel these processes if they are autovacuums, except against wraparound. */
void
blockers_cancel_autovacuum(const int *pids, int npids)
{
	for (int i = 0; i < npids; i++)
	{
		uint8		flags = process_flags(pids[i] == 0 ? NULL : BackendPidGetProc(pids[i]));

		if ((flags & PROC_IS_AUTOVACUUM) && !(flags & PROC_VACUUM_FOR_WRAPAROUND))
		{
			ereport(DEBUG1,
					(errmsg_internal("sending cancel to blocking autovacuum PID %d", pids[i])));

			/* no test covers this: we may signal any process of our server */
			if (kill(pids[i], SIGINT) < 0 && errno != ESRCH)
				ereport(WARNING,
						(errmsg("could not send signal to process %d: %m", pids[i])));
		}
	}
}

/*
 * Descriptions of blockers.  The words are those of index_mover_blockers(),
 * which cannot be called here: it would have to run as another role, which may
 * see more than ours, and the owner of its schema could have replaced it.
 * Details of a session beyond its process ID are given only to a role that
 * could read them in pg_stat_activity.  Prepared transactions are public.
 */

/* Return a prepared transaction's name, palloc'd; NULL if it has ended. */
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

/* Return the transactions that hold a lock on a relation or on its TOAST table. */
static VirtualTransactionId *
find_holders(Oid relid, int *count)
{
	VirtualTransactionId *vxids = relation_lock_holders(relid, AccessExclusiveLock, count);
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			toast;

	if (!HeapTupleIsValid(tuple))
		return vxids;
	toast = ((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid;
	ReleaseSysCache(tuple);
	if (OidIsValid(toast))
	{
		int			nmore;
		VirtualTransactionId *more = relation_lock_holders(toast, AccessExclusiveLock, &nmore);

		vxids = virtual_transactions_add(vxids, count, more, nmore);
	}
	return vxids;
}

/* Append the prepared transactions that hold a lock; false if none does. */
static bool
describe_prepared(StringInfo buf, Oid relid)
{
	int			count;
	VirtualTransactionId *vxids = find_holders(relid, &count);
	bool		found = false;

	for (int i = 0; i < count; i++)
	{
		char	   *name = prepared_transaction_name(vxids[i]);

		if (name == NULL)
			continue;
		appendStringInfo(buf, "%sprepared transaction \"%s\" (%s or %s)",
						 found ? ", " : "", name, printed_command("commit_prepared", name),
						 printed_command("rollback_prepared", name));
		found = true;
	}
	return found;
}

static bool
holds_lock(PGPROC *proc, Oid relid)
{
	int			count;
	VirtualTransactionId *vxids = find_holders(relid, &count);

	for (int i = 0; i < count; i++)
		if (proc != NULL && im_vxid_proc(vxids[i]) == proc &&
			PROC_LXID(proc) == vxids[i].localTransactionId)
			return true;
	return false;
}

/*
 * Append a session.  Core knows a prepared transaction by the virtual
 * transaction ID of the session that began it.  So a session without a lock
 * may be the one that has prepared the blocker, or a later one in the same
 * slot: describe the prepared transactions in that case.
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
		appendStringInfo(buf, " (end its transaction in the client, or %s)",
						 printed_command("terminate_backend", (int64) pid));
	else
		appendStringInfo(buf, " (wait for its end, or %s)",
						 printed_command("cancel_backend", (int64) pid));
}

/*
 * Describe these processes (0 = a prepared transaction), with the command to end
 * each in parentheses, in the words of index_mover_blockers().  relid is the
 * relation whose lock they hold, or InvalidOid.  The result is palloc'd.  May
 * leave a transaction open, for the error that is raised next.
 */
char *
blockers_describe(Oid relid, const int *pids, int npids)
{
	bool		prepared_told = false;
	MemoryContext context = CurrentMemoryContext;
	StringInfoData buf;

	if (npids == 0)
		return pstrdup("transactions that have just ended");
	initStringInfo(&buf);
	if (!IsTransactionState())
		StartTransactionCommand();
	MemoryContextSwitchTo(context);
	PushActiveSnapshot(GetTransactionSnapshot());
	for (int i = 0; i < Min(npids, MAX_DESCRIBED); i++)
	{
		if (pids[i] == 0 && prepared_told)
			continue;
		appendStringInfoString(&buf, i > 0 ? ", " : "");
		if (pids[i] != 0)
			describe_session(&buf, relid, pids[i]);
		else
		{
			/* it may have ended */
			if (!describe_prepared(&buf, relid))
				appendStringInfoString(&buf, "a prepared transaction");
			prepared_told = true;
		}
	}
	PopActiveSnapshot();
	if (npids > MAX_DESCRIBED)
		appendStringInfo(&buf, " and %d more", npids - MAX_DESCRIBED);
	return buf.data;
}
