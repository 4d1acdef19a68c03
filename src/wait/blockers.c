/*-------------------------------------------------------------------------
 *
 * blockers.c
 *	  Signaling sessions that block a move, and describing them.
 *
 * A session is signaled only if the job's role could signal it with
 * pg_cancel_backend() and pg_terminate_backend().  Never signaled are prepared
 * transactions (they have no process), walsenders, our own workers, and the
 * sessions that wait for them.  A session is signaled only while the transaction that
 * was found in the way still is its own: that is looked at just before the signal.
 *
 * Autovacuum is canceled as by core for any process that queues behind it for
 * deadlock_timeout, unless it works against wraparound.  We do not queue so long.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "printed_command.h"
#include "wait/wait.h"

#define MAX_SIGNALED	64		/* for an item; then the move gives up */

/* The processes signaled for the current item; a signal handler adds to them, too. */
static struct
{
	int			pid;
	Oid			role;
	bool		terminate;
}			signaled[MAX_SIGNALED];
static volatile sig_atomic_t nsignaled = 0;
static int	nreported = 0;
static char told[2 * IM_DETAIL_LEN];	/* more than item_say() says of it */

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

/* Let the processes that were signaled and reported be signaled again. */
void
blockers_forget(void)
{
	nsignaled = nreported = 0;
}

/* Begin an item. */
void
blockers_begin(void)
{
	blockers_forget();
	told[0] = '\0';
}

/*
 * Signal a process, as on_blocker says, and note it for blockers_report().  Returns
 * false if it was signaled before, is ours or our caller, or is gone.  A signal
 * handler may call it; so the caller has checked for others that must not be signaled.
 */
bool
blockers_kill(int pid, Oid role, const MoveSettings *settings)
{
	bool		terminate = settings->on_blocker == ON_BLOCKER_TERMINATE;

	for (int i = 0; i < nsignaled; i++)
	{
		if (signaled[i].pid == pid)
			return false;
	}
	if (pid == 0 || pid == MyProcPid || runner_knows_pid(pid) || nsignaled == MAX_SIGNALED)
		return false;
	if (kill(pid, terminate ? SIGTERM : SIGINT) != 0)
		return false;
	signaled[nsignaled].pid = pid;
	signaled[nsignaled].role = role;
	signaled[nsignaled].terminate = terminate;
	nsignaled++;
	return true;
}

/*
 * Signal a process that waits for the lock of VACUUM and ANALYZE on a table, to carry out one of
 * these, each time.  Returns false if it does something else.  A signal handler may call
 * it; so the caller has checked for others that must not be signaled.
 */
bool
blockers_cancel_maintenance(const PGPROC *proc, Oid table, const MoveSettings *settings)
{
	/* the array of these has the order of virtual transactions */
	const PgBackendStatus *status = MyBEEntry +
		((int) PROC_VXID_NUMBER(proc) - (int) PROC_VXID_NUMBER(MyProc));
	const LOCK *lock = proc->waitLock;
	int			pid = proc->pid;
	LOCKTAG		tag;

	/*
	 * the memory of a lock stays a lock; a wait that has just ended is
	 * signaled in vain
	 */
	SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
	if (lock == NULL || proc->waitLockMode != ShareUpdateExclusiveLock ||
		memcmp(&lock->tag, &tag, sizeof(LOCKTAG)) != 0)
		return false;
	if (status->st_procpid != pid || runner_knows_pid(pid) ||
		(pg_strncasecmp(status->st_activity_raw, "vacuum", strlen("vacuum")) != 0 &&
		 pg_strncasecmp(status->st_activity_raw, "analyze", strlen("analyze")) != 0))
		return false;
	/* a session is reported once, although its next command is canceled, too */
	if (!blockers_kill(pid, proc->roleId, settings))
		(void) kill(pid, SIGINT);
	return true;
}

/* Report the sessions signaled since the last call by a WARNING and, later, in the item's detail. */
void
blockers_report(const MoveItem *item)
{
	Assert(IsTransactionState());
	for (; nreported < nsignaled; nreported++)
	{
		int			pid = signaled[nreported].pid;
		const char *name = GetUserNameFromId(signaled[nreported].role, true);
		char	   *sentence;
		int			used;

		if (name == NULL)
			name = "?";
		if (signaled[nreported].terminate)
		{
			ereport(WARNING,
					(errmsg("terminated process %d, which was in the way of moving %s \"%s\"",
							pid, relation_noun(item->relkind), NameStr(item->relname)),
					 errdetail("It was a session of role \"%s\".", name)));
			sentence = psprintf("It has terminated process %d of role \"%s\".", pid, name);
		}
		else
		{
			ereport(WARNING,
					(errmsg("canceled process %d, which was in the way of moving %s \"%s\"",
							pid, relation_noun(item->relkind), NameStr(item->relname)),
					 errdetail("It was a session of role \"%s\".", name)));
			sentence = psprintf("It has canceled process %d of role \"%s\".", pid, name);
		}
		used = strlen(told);
		if (used > 0)
			snprintf(told + used, sizeof(told) - used, " %s", sentence);
		else
			strlcpy(told, sentence, sizeof(told));
	}
}

/*
 * Signal the processes of these transactions, as on_blocker says, after lock_wait.  Return
 * whether any was signaled for the first time for this item; else the move gives up.
 */
bool
blockers_signal(const MoveItem *item, const MoveSettings *settings,
				const VirtualTransactionId *vxids, int count)
{
	bool		own_transaction = !IsTransactionState();
	MemoryContext oldcontext = CurrentMemoryContext;
	bool		result = false;

	if (!SIGNALS_BLOCKERS(settings))
		return false;
	/* roles are in the catalog */
	if (own_transaction)
		StartTransactionCommand();
	for (int i = 0; i < count; i++)
	{
		int			pid = virtual_transaction_pid(vxids[i]);
		PGPROC	   *proc = pid > 0 ? BackendPidGetProc(pid) : NULL;
		Oid			role = proc == NULL ? InvalidOid : proc->roleId;
		PgBackendStatus *status = proc == NULL ? NULL : blockers_find(pid);

		if (status == NULL ||
			(status->st_backendType != B_BACKEND && status->st_backendType != B_BG_WORKER) ||
			!blockers_may_signal(role))
			continue;
		/* it may have gone on to its next transaction meanwhile */
		if (virtual_transaction_pid(vxids[i]) != pid)
			continue;
		if (blockers_kill(pid, role, settings))
			result = true;
	}
	blockers_report(item);
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
	if (told[0] != '\0')
		item_say(item, "%s", told);
}

/*
 * Cancel these processes if all are autovacuums, except against wraparound.  Not as long
 * as another stays, maybe for hours: then no autovacuum of the table would end.
 */
void
blockers_cancel_autovacuum(const int *pids, int npids)
{
	for (int i = 0; i < npids; i++)
	{
		PGPROC	   *proc = BackendPidGetProc(pids[i]);	/* NULL for 0 */
		uint8		flags = proc == NULL ? 0 : proc->statusFlags;

		if (!(flags & PROC_IS_AUTOVACUUM) || (flags & PROC_VACUUM_FOR_WRAPAROUND))
			return;
	}
	for (int i = 0; i < npids; i++)
	{
		ereport(DEBUG1,
				(errmsg_internal("sending cancel to blocking autovacuum PID %d", pids[i])));
		(void) kill(pids[i], SIGINT);
	}
}

/* Return how to end a session's transaction, for people, palloc'd. */
static char *
session_action(int pid, bool is_idle, bool is_autovacuum)
{
	if (is_idle)
		return psprintf("end its transaction in the client, or %s",
						printed_command("terminate_backend", (int64) pid));
	/* else its work is lost; against wraparound, it comes again at once */
	if (is_autovacuum)
		return pstrdup("wait for its end");
	return psprintf("wait for its end, or %s", printed_command("cancel_backend", (int64) pid));
}

PG_FUNCTION_INFO_V1(index_mover_session_action);

/*
 * index_mover.session_action(pid int, state text, backend_type text) RETURNS text
 *
 * The same for index_mover_blockers(), of a row of pg_stat_activity.  Touches no session.
 */
Datum
index_mover_session_action(PG_FUNCTION_ARGS)
{
	bool		is_idle = !PG_ARGISNULL(1) &&
		strncmp(TextDatumGetCString(PG_GETARG_DATUM(1)), "idle in transaction", 19) == 0;
	bool		is_autovacuum = !PG_ARGISNULL(2) &&
		strcmp(TextDatumGetCString(PG_GETARG_DATUM(2)), "autovacuum worker") == 0;

	PG_RETURN_TEXT_P(cstring_to_text(session_action(PG_GETARG_INT32(0), is_idle, is_autovacuum)));
}

/*
 * Descriptions of blockers.  Not by index_mover_blockers(), which would run
 * as another role, and may see more than ours.  Prepared transactions are public.
 */

/* Return a prepared transaction's name, palloc'd; NULL if it has ended. */
static char *
prepared_transaction_name(VirtualTransactionId vxid)
{
	MemoryContext context = CurrentMemoryContext;
	TransactionId xid = virtual_transaction_prepared(vxid);
	Oid			type = XIDOID;
	Datum		value = TransactionIdGetDatum(xid);
	int			ret;
	char	   *result = NULL;

	if (!TransactionIdIsValid(xid))
		return NULL;
	/* not the transaction's snapshot, which a caller could keep to its end */
	PushActiveSnapshot(GetCatalogSnapshot(InvalidOid));
	SPI_connect();
	ret = SPI_execute_with_args("SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE transaction OPERATOR(pg_catalog.=) $1",
								1, &type, &value, NULL, true, 1);
	if (ret == SPI_OK_SELECT && SPI_processed == 1)
		result = MemoryContextStrdup(context, SPI_getvalue(SPI_tuptable->vals[0],
														   SPI_tuptable->tupdesc, 1));
	SPI_finish();
	PopActiveSnapshot();
	return result;
}

/* Append a session, with the command to end its transaction if pg_stat_activity shows that. */
static void
describe_session(StringInfo buf, int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	PgBackendStatus *status;
	bool		is_idle;

	appendStringInfo(buf, "process %d", pid);
	if (proc == NULL || !LocalTransactionIdIsValid(PROC_LXID(proc)))
		return;
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) &&
		!has_privs_of_role(GetUserId(), proc->roleId))
		return;
	status = blockers_find(pid);
	if (status == NULL)
		return;
	is_idle = status->st_state == STATE_IDLEINTRANSACTION ||
		status->st_state == STATE_IDLEINTRANSACTION_ABORTED;
	appendStringInfo(buf, " (%s)",
					 session_action(pid, is_idle, status->st_backendType == B_AUTOVAC_WORKER));
}

/*
 * Describe these transactions, with the command to end each in parentheses, palloc'd.
 * May leave a transaction open, for the error that is raised next.
 */
char *
blockers_describe(const VirtualTransactionId *vxids, int count)
{
	MemoryContext context = CurrentMemoryContext;
	int			described = 0;
	int			more = 0;
	StringInfoData buf;

	initStringInfo(&buf);
	if (!IsTransactionState())
		StartTransactionCommand();
	MemoryContextSwitchTo(context);
	for (int i = 0; i < count; i++)
	{
		int			pid = virtual_transaction_pid(vxids[i]);
		char	   *name = pid == 0 ? prepared_transaction_name(vxids[i]) : NULL;

		if (pid < 0 || (pid == 0 && name == NULL))
			continue;			/* it has ended */
		if (described == MAX_DESCRIBED)
		{
			more++;
			continue;
		}
		appendStringInfoString(&buf, described++ > 0 ? ", " : "");
		if (pid > 0)
			describe_session(&buf, pid);
		else
			appendStringInfo(&buf, "prepared transaction \"%s\" (%s or %s)", name,
							 printed_command("commit_prepared", name),
							 printed_command("rollback_prepared", name));
	}
	if (described == 0)
		appendStringInfoString(&buf, "transactions that have just ended");
	if (more > 0)
		appendStringInfo(&buf, " and %d more", more);
	return buf.data;
}
