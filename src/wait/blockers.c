/*-------------------------------------------------------------------------
 *
 * blockers.c
 *	  Signalling those who stand in the way of a move.
 *
 * Who may be signalled is who the job's role could signal with
 * pg_cancel_backend() and pg_terminate_backend(): its own sessions and those of
 * roles that it is a member of, with pg_signal_backend those of all but
 * superusers, as a superuser all.  Never: prepared transactions (there is no
 * process), walsenders, autovacuum, our own workers, and the sessions that wait
 * for them.
 *
 * An autovacuum is another matter: core cancels it for anybody who queues
 * behind it for deadlock_timeout, unless it works against wraparound.  We don't
 * queue for that long, so we do as core would.
 *
 * Locking: none.  Between the look and the signal the session may have gone on
 * to its next transaction, as with pg_terminate_backend().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "wait/blockers.h"
#include "compat.h"

#define MAX_SIGNALLED	64		/* for one index; then we give up */

/* Who was signalled for the index that is being moved. */
static int	signalled[MAX_SIGNALLED];
static int	nsignalled = 0;
static StringInfoData told;		/* in TopMemoryContext once used */

static MoveItem *current_item = NULL;
static const MoveSettings *current_settings = NULL;

PgBackendStatus *
blockers_find(int pid)
{
	int			n;
	int			i;

	pgstat_clear_backend_activity_snapshot();
	n = pgstat_fetch_stat_numbackends();
	for (i = 1; i <= n; i++)
	{
		LocalPgBackendStatus *local = pgstat_get_local_beentry_by_index(i);

		if (local != NULL && local->backendStatus.st_procpid == pid)
			return &local->backendStatus;
	}
	return NULL;
}

/* A worker of ours, or a session that waits for one? */
static bool
is_ours(int pid)
{
	RunnerSlot	runners[IM_MAX_RUNNERS];
	int			nrunners = job_read_runners(runners);
	int			i;

	for (i = 0; i < nrunners; i++)
		if (runners[i].pid == pid || runners[i].caller_pid == pid)
			return true;
	return pid == MyProcPid;
}

/* The rule of pg_signal_backend(). */
bool
blockers_may_signal(Oid role)
{
	if (superuser())
		return true;
	if (!OidIsValid(role) || superuser_arg(role))
		return false;
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_SIGNAL_BACKEND);
}

void
blockers_note(const MoveItem *item, int pid, Oid role, bool terminate,
			  TimestampTz xact_start)
{
	char	   *name = GetUserNameFromId(role, true);
	const char *verb = terminate ? "terminated" : "cancelled";

	if (told.data == NULL)
	{
		MemoryContext oldcxt = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&told);
		MemoryContextSwitchTo(oldcxt);
	}
	ereport(WARNING,
			(errmsg("%s process %d, which was in the way of moving index \"%s\"",
					verb, pid, NameStr(item->index_name)),
			 xact_start == 0 ?
			 errdetail("It was a session of role \"%s\".", name ? name : "?") :
			 errdetail("It was a session of role \"%s\"; its transaction had been open for %ld seconds.",
					   name ? name : "?",
					   TimestampDifferenceMilliseconds(xact_start, GetCurrentTimestamp()) / 1000)));
	appendStringInfo(&told, " It has %s process %d of role \"%s\".", verb, pid,
					 name ? name : "?");
}

/* Signal one, and say so.  Returns false if it may not be, or is gone. */
static bool
signal_one(const MoveItem *item, int pid, bool terminate)
{
	PGPROC	   *proc;
	PgBackendStatus *status;
	Oid			role;

	if (pid == 0 || is_ours(pid))
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

void
blockers_begin(MoveItem *item, const MoveSettings *settings)
{
	current_item = item;
	current_settings = settings;
	nsignalled = 0;
	if (told.data != NULL)
		resetStringInfo(&told);
}

MoveItem *
blockers_item(const MoveSettings **settings)
{
	*settings = current_settings;
	return current_item;
}

int
blockers_signal(MoveItem *item, const MoveSettings *settings,
				const int *pids, int npids)
{
	int			on_blocker = settings->on_blocker;
	bool		own_transaction = !IsTransactionState();
	MemoryContext oldcxt = CurrentMemoryContext;
	int			result = 0;

	if (!SIGNALS_BLOCKERS(settings))
		return 0;
	/* roles are looked up in the catalog */
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
		MemoryContextSwitchTo(oldcxt);
	}
	return result;
}

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

void
blockers_cancel_autovacuum(const int *pids, int npids)
{
	for (int i = 0; i < npids; i++)
	{
		PGPROC	   *proc = pids[i] == 0 ? NULL : BackendPidGetProc(pids[i]);
		uint8		flags;

		if (proc == NULL)
			continue;
		LWLockAcquire(ProcArrayLock, LW_SHARED);
		flags = ProcGlobal->statusFlags[proc->pgxactoff];
		LWLockRelease(ProcArrayLock);

		if ((flags & PROC_IS_AUTOVACUUM) && !(flags & PROC_VACUUM_FOR_WRAPAROUND))
		{
			ereport(DEBUG1,
					(errmsg_internal("sending cancel to blocking autovacuum PID %d", pids[i])));
			/* we may signal any process of our server: not seen by any test */
			if (kill(pids[i], SIGINT) < 0 && errno != ESRCH)
				ereport(WARNING,
						(errmsg("could not send signal to process %d: %m", pids[i])));
		}
	}
}
