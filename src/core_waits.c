/*-------------------------------------------------------------------------
 *
 * core_waits.c
 *	  index_mover.on_blocker while it is core that waits.
 *
 * Inside of REINDEX CONCURRENTLY it is core that waits for other transactions,
 * by queueing for their virtual transaction IDs one after the other, and none
 * of our code runs meanwhile.  But a timer does: its handler looks whom this
 * process waits for, and since when, and when that is longer than lock_wait it
 * sends the signal that on_blocker asks for.  The setting core knows, its own
 * lock_timeout, must be longer than lock_wait then, see
 * set_core_lock_timeout().
 *
 * Assumption: whoever else is in the way (for locks that core takes inside of
 * the command) is not waited for by his virtual transaction ID, and lock_timeout
 * ends the command.
 *
 * Locking: none.  PGPROC fields of others are read without ProcArrayLock, each
 * a word of its own; that the session may be in its next transaction when the
 * signal comes is as with pg_terminate_backend(), only that we compare the
 * virtual transaction ID right before.
 *
 * Tricky: a signal handler may read shared memory and call kill(), and no more.
 * So which roles may be signalled is worked out before, from the catalog, and
 * whom it has signalled is told afterwards: at the next commit inside of core's
 * command, or after its end.  A prepared transaction is waited for by its
 * transaction ID, so it is never taken for the session that has prepared it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "blockers.h"
#include "compat.h"
#include "core_waits.h"

#define LOOK_INTERVAL_MS	500
#define MAX_SIGNALLED		64	/* for one index */

typedef struct Signalled
{
	int			pid;
	Oid			role;
	bool		terminate;
} Signalled;

/* Read by the handler, and set while the timer is off. */
static const MoveSettings *watched = NULL;
static bool may_all;
static Oid *roles = NULL;		/* sorted, in TopMemoryContext */
static int	nroles;

/* Written by the handler, in this order: an entry, the number of them. */
static Signalled signalled[MAX_SIGNALLED];
static volatile sig_atomic_t nsignalled;
static int	ntold;

static TimeoutId timer = MAX_TIMEOUTS;	/* not registered yet */

static int
compare_oids(const void *a, const void *b)
{
	Oid			oid1 = *(const Oid *) a;
	Oid			oid2 = *(const Oid *) b;

	return oid1 < oid2 ? -1 : oid1 > oid2 ? 1 : 0;
}

/*
 * Work out whose sessions the current user may signal.
 */
static void
collect_roles(void)
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;
	int			max = 64;

	if (roles != NULL)
		pfree(roles);
	roles = NULL;
	nroles = 0;
	may_all = superuser();
	if (may_all)
		return;

	roles = MemoryContextAlloc(TopMemoryContext, max * sizeof(Oid));
	rel = table_open(AuthIdRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			role = ((Form_pg_authid) GETSTRUCT(tuple))->oid;

		if (!blockers_may_signal(role))
			continue;
		if (nroles == max)
		{
			max *= 2;
			roles = repalloc(roles, max * sizeof(Oid));
		}
		roles[nroles++] = role;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	qsort(roles, nroles, sizeof(Oid), compare_oids);
}

static bool
is_walsender(int pid)
{
	int			i;

	for (i = 0; WalSndCtl != NULL && i < max_wal_senders; i++)
		if (WalSndCtl->walsnds[i].pid == pid)
			return true;
	return false;
}

/*
 * The transaction that this process waits for, if it has waited longer than
 * lock_wait, and may be signalled.  In the handler.
 */
static PGPROC *
find_holder(void)
{
	LOCK	   *lock = MyProc->waitLock;
	LOCKTAG		tag;
	TimestampTz since;
	uint32		i;

	/* others may clear waitLock, but only we set it: then it was valid */
	if (lock == NULL)
		return NULL;
	tag = lock->tag;
	if (*(LOCK *volatile *) &MyProc->waitLock != lock ||
		tag.locktag_type != LOCKTAG_VIRTUALTRANSACTION)
		return NULL;
	since = pg_atomic_read_u64(&MyProc->waitStart);
	if (since == 0 ||
		!TimestampDifferenceExceeds(since, GetCurrentTimestamp(), watched->lock_wait))
		return NULL;

	for (i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];

		if (proc->pid != 0 && PROC_LXID(proc) == tag.locktag_field2 &&
			PROC_VXID_NUMBER(proc) == tag.locktag_field1)
			return proc;
	}
	return NULL;
}

/* The timer's handler. */
static void
look(void)
{
	int			save_errno = errno;
	PGPROC	   *holder;
	int			pid;
	int			i;

	if (watched == NULL || !SIGNALS_BLOCKERS(watched) ||
		watched->lock_wait == 0 || nsignalled == MAX_SIGNALLED)
		return;

	holder = find_holder();
	if (holder == NULL)
		return;
	pid = holder->pid;
	for (i = 0; i < nsignalled; i++)
		if (signalled[i].pid == pid)
			return;
	if (pid == 0 || pid == MyProcPid || holder->databaseId != MyDatabaseId ||
		(holder->statusFlags & PROC_IS_AUTOVACUUM) || is_walsender(pid) ||
		runner_knows_pid(pid) ||
		!(may_all || bsearch(&holder->roleId, roles, nroles, sizeof(Oid), compare_oids)))
		return;

	signalled[nsignalled].pid = pid;
	signalled[nsignalled].role = holder->roleId;
	signalled[nsignalled].terminate = watched->on_blocker == ON_BLOCKER_TERMINATE;
	if (kill(pid, signalled[nsignalled].terminate ? SIGTERM : SIGINT) == 0)
		nsignalled++;
	errno = save_errno;
}

void
core_waits_begin(const MoveSettings *settings)
{
	collect_roles();
	nsignalled = 0;
	ntold = 0;
	watched = settings;
	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, look);
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_INTERVAL_MS),
						 LOOK_INTERVAL_MS);
}

void
core_waits_tell(MoveItem *item)
{
	while (ntold < nsignalled)
	{
		const Signalled *one = &signalled[ntold++];

		blockers_note(item, one->pid, one->role, one->terminate, 0);
	}
}

void
core_waits_end(void)
{
	if (watched == NULL)
		return;
	disable_timeout(timer, false);
	watched = NULL;
}
