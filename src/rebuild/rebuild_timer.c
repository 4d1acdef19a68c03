/*-------------------------------------------------------------------------
 *
 * rebuild_timer.c
 *	  What has to be looked at while core's REINDEX runs.
 *
 * Inside of REINDEX CONCURRENTLY none of our code runs, but a timer does.  Its
 * handler looks at four things:
 *
 * - The replication slots.  Core writes its WAL as fast as it can.  A slot whose
 *   reader doesn't keep up, or goes away, would be invalidated by
 *   max_slot_wal_keep_size, and a standby that has lost its slot has to be built
 *   again; a rebuild can be done once more.  So the command is canceled in time.
 * - Whom core waits for.  It queues for the virtual transaction IDs of other
 *   transactions, one after the other.  When that is longer than lock_wait, the
 *   handler sends the signal that index_mover.on_blocker asks for.  The setting
 *   core knows, its own lock_timeout, must be longer than lock_wait then, see
 *   set_core_lock_timeout().
 * - Whether the session that waits for the job has asked to step back from this
 *   index.  Then the command is canceled.
 * - Whether core may report its wait.  Once deadlock_timeout is over, ProcSleep()
 *   reports the wait each time that the process is woken, and each tick of a
 *   timer wakes it.  So log_lock_waits is off, and the handler lifts it for one
 *   tick when the wait has lasted as long as deadlock_timeout is configured: core
 *   reports each wait once, as it would without us.
 *
 * Assumption: the end of WAL is where this process has written last.  One that
 * writes nothing is not what costs the slot; one that does is looked at often
 * enough for the reserve that replica_lag_slot_limit() leaves.  (Parallel workers
 * of a build scan and sort; it is the leader that writes the index.)  Other locks
 * that core takes inside of the command are not waited for by a virtual
 * transaction ID, and lock_timeout ends the command.
 *
 * Locking: none.  A signal handler may take neither a spinlock nor an LWLock:
 * the process may hold that very one.  So the fields of a slot, and PGPROC fields
 * of others, are read one by one, each a word.  A slot that is just being dropped
 * or made may be misread, and then costs a rebuild and nothing else; that a
 * session may be in its next transaction when the signal comes is as with
 * pg_terminate_backend(), only that we compare the virtual transaction ID right
 * before.
 *
 * Tricky: a signal handler may read shared memory and call kill(), and no more.
 * So which roles may be signaled is worked out before, from the catalog, and
 * whom it has signaled is told afterwards: at the next commit inside of core's
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
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "job.h"
#include "rebuild/rebuild.h"
#include "settings.h"
#include "wait/wait.h"

#define TICK_MS			10
#define HOLDER_TICKS	50		/* from one look at whom core waits for to the
								 * next */
#define MAX_SIGNALLED	64		/* for one index */

/* of two that wait for each other, we are the one to give up */
#define DEADLOCK_LOOK_MS	50

/* Who has written less since the last look only puts marks into the catalog. */
#define NEXT_TO_NOTHING		(1024 * 1024)

typedef struct Signalled
{
	int			pid;
	Oid			role;
	bool		terminate;
} Signalled;

static TimeoutId timer = MAX_TIMEOUTS;	/* not registered yet */

/* Read by the handler, and set while the timer is off. */
static const MoveSettings *settings = NULL; /* NULL: the timer is off */
static bool may_all;
static List *roles = NIL;		/* their OIDs, in TopMemoryContext */
static bool report_waits;		/* log_lock_waits and deadlock_timeout as they */
static int	deadlock_timeout;	/* are configured */

/* The handler's own. */
static unsigned int ticks;
static uint64 written_before;
static TimestampTz reported_wait;	/* when it began */

/* Written by the handler, in this order: an entry, the number of them. */
static Signalled signalled[MAX_SIGNALLED];
static volatile sig_atomic_t nsignalled;
static int	ntold;

/* Set by the handler: has it canceled the command?  The slot, if it is why. */
static volatile sig_atomic_t canceled = false;
static NameData slot_name;		/* "" = we were asked to step back */
static int64 slot_lag;

/*
 * Work out whose sessions the current user may signal.
 */
static void
collect_roles(void)
{
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;

	list_free(roles);
	roles = NIL;
	may_all = superuser();
	if (may_all)
		return;

	rel = table_open(AuthIdRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Oid			role = ((Form_pg_authid) GETSTRUCT(tuple))->oid;
		MemoryContext oldcxt;

		if (!blockers_may_signal(role))
			continue;
		oldcxt = MemoryContextSwitchTo(TopMemoryContext);
		roles = lappend_oid(roles, role);
		MemoryContextSwitchTo(oldcxt);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
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
		!TimestampDifferenceExceeds(since, GetCurrentTimestamp(), settings->lock_wait))
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

/* Signal whom core has waited for too long.  In the handler. */
static void
look_at_holder(void)
{
	PGPROC	   *holder;
	int			pid;
	int			i;

	if (!SIGNALS_BLOCKERS(settings) || settings->lock_wait == 0 ||
		nsignalled == MAX_SIGNALLED)
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
		!(may_all || list_member_oid(roles, holder->roleId)))
		return;

	signalled[nsignalled].pid = pid;
	signalled[nsignalled].role = holder->roleId;
	signalled[nsignalled].terminate = settings->on_blocker == ON_BLOCKER_TERMINATE;
	if (kill(pid, signalled[nsignalled].terminate ? SIGTERM : SIGINT) == 0)
		nsignalled++;
}

/* Cancel core's command.  In the handler. */
static void
cancel_command(void)
{
	canceled = true;
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* Cancel the command if it is about to cost a slot.  In the handler. */
static void
look_at_slots_in_handler(void)
{
	XLogRecPtr	end = ProcLastRecPtr;
	uint64		written = pgWalUsage.wal_bytes;
	int64		limit = replica_lag_slot_limit();
	int			i;

	if (limit < 0 || written - written_before < NEXT_TO_NOTHING)
		return;
	written_before = written;

	for (i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		XLogRecPtr	restart = slot->data.restart_lsn;

		if (!slot->in_use || XLogRecPtrIsInvalid(restart) || restart >= end ||
			im_slot_is_invalidated(slot) || (int64) (end - restart) <= limit)
			continue;
		slot_name = slot->data.name;
		slot_lag = end - restart;
		cancel_command();
		break;
	}
}

/*
 * Let core report a wait that has lasted for the configured deadlock_timeout, by
 * the wake-up that comes with this tick.  In the handler.
 */
static void
look_at_wait(void)
{
	TimestampTz since = pg_atomic_read_u64(&MyProc->waitStart);

	log_lock_waits = report_waits && since != 0 && since != reported_wait &&
		TimestampDifferenceExceeds(since, GetCurrentTimestamp(), deadlock_timeout);
	if (log_lock_waits)
		reported_wait = since;
}

/* The timer's handler. */
static void
look(void)
{
	int			save_errno = errno;

	if (settings != NULL)
	{
		if (!canceled)
			look_at_slots_in_handler();
		if (!canceled && runner_must_step_back())
			cancel_command();
		if (ticks++ % HOLDER_TICKS == 0)
			look_at_holder();
		look_at_wait();
	}
	errno = save_errno;
}

/*
 * From here to rebuild_timer_end(), signal those whom core's command waits for
 * longer than lock_wait, as on_blocker says; cancel it if it writes WAL that
 * max_slot_wal_keep_size would make some slot pay for, or if the caller asks to
 * step back; look for deadlocks early; and have each wait reported once, as
 * log_lock_waits and deadlock_timeout are configured.  In a transaction.
 */
void
rebuild_timer_begin(const MoveSettings *job_settings)
{
	collect_roles();
	nsignalled = 0;
	ntold = 0;
	canceled = false;
	slot_name.data[0] = '\0';
	ticks = 0;
	written_before = pgWalUsage.wal_bytes;
	reported_wait = 0;
	report_waits = log_lock_waits;
	deadlock_timeout = DeadlockTimeout;
	SetConfigOption("deadlock_timeout",
					psprintf("%d", Min(deadlock_timeout, DEADLOCK_LOOK_MS)),
					PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("log_lock_waits", "off", PGC_SUSET, PGC_S_SESSION);
	settings = job_settings;
	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, look);
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), TICK_MS),
						 TICK_MS);
}

/* Tell of those who were signaled since the last call.  In a transaction. */
void
rebuild_timer_tell(MoveItem *item)
{
	while (ntold < nsignalled)
	{
		const Signalled *one = &signalled[ntold++];

		blockers_note(item, one->pid, one->role, one->terminate, 0);
	}
}

void
rebuild_timer_end(void)
{
	if (settings == NULL)
		return;
	disable_timeout(timer, false);
	settings = NULL;
	if (proc_exit_inprogress)
		return;
	SetConfigOption("deadlock_timeout", psprintf("%d", deadlock_timeout),
					PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("log_lock_waits", report_waits ? "on" : "off",
					PGC_SUSET, PGC_S_SESSION);
	/* one that comes too late has nothing to cancel any more */
	if (canceled && !job_cancel_requested())
		QueryCancelPending = false;
	canceled = false;
}

/*
 * If this is the ERROR of our cancel, make it tell why: 53400 for a slot; 40P01
 * if we are to step back.  To be called before rebuild_timer_end().
 */
void
rebuild_timer_explain(ErrorData *edata, const MoveItem *item)
{
	/* who has canceled the job besides shall find it canceled */
	if (!canceled || edata->sqlerrcode != ERRCODE_QUERY_CANCELED ||
		job_cancel_requested())
		return;
	if (slot_name.data[0] == '\0')
	{
		/* the rest is what runner_check_step_back() says */
		edata->sqlerrcode = ERRCODE_T_R_DEADLOCK_DETECTED;
		return;
	}
	edata->sqlerrcode = ERRCODE_CONFIGURATION_LIMIT_EXCEEDED;
	edata->message = psprintf("gave up rebuilding index \"%s\", which would invalidate replication slot \"%s\"",
							  NameStr(item->index_name), NameStr(slot_name));
	edata->detail = psprintf("The slot was %lld MB behind, and max_slot_wal_keep_size is %d MB.",
							 (long long) (slot_lag / (1024 * 1024)),
							 max_slot_wal_keep_size_mb);
	edata->hint = pstrdup("Use method copy, which waits for slots, see that the slot is read, or raise max_slot_wal_keep_size.");
}
