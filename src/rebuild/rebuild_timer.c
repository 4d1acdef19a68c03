/*-------------------------------------------------------------------------
 *
 * rebuild_timer.c
 *	  Checks while core's REINDEX runs.
 *
 * Only hooks of ours, and the handler of a timer, run inside of REINDEX CONCURRENTLY.
 * The handler looks at
 *
 * - replication slots.  Core writes its WAL as fast as it can.  The command is canceled
 *   before max_slot_wal_keep_size invalidates a slot whose reader does not keep up:
 *   a standby that has lost its slot has to be rebuilt, while a move can be repeated;
 * - the transaction that core waits for.  After lock_wait, the handler sends the
 *   signal that index_mover.on_blocker asks for.  Where it heals, VACUUM and ANALYZE that
 *   wait for the table get it at once: one of both has to give up, and core would take us.
 *   Core's own lock_timeout is longer then, see set_core_lock_timeout(), and ends a wait for any other lock;
 * - the session that waits for the job, which may ask to step back.
 *
 * Assumption: the end of WAL is where this process has written last, and it is
 * checked often enough for the reserve of replica_lag_slot_limit().
 *
 * Locks: none, since the process may hold any when the handler runs.  So fields of
 * slots and PGPROCs are read one by one, each a word.  A slot that is just being
 * created or dropped may be misread, which costs a rebuild.
 *
 * Tricky: a signal handler may read shared memory and call kill(), and no more.
 * The roles that may be signaled are read before, and the signaled processes are
 * reported at the next commit, or at the end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "replication/walsender_private.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timeout.h"

#include "errors.h"
#include "rebuild/rebuild.h"
#include "wait/wait.h"

#define TICK_MS			10
#define HOLDER_TICKS	50		/* between two looks at the holder */

/* in a deadlock, we should give up */
#define DEADLOCK_LOOK_MS	50
/* unless others give up before, at a look at the holder */
#define DEADLOCK_INSIST_MS	(4 * HOLDER_TICKS * TICK_MS)

/* Less WAL than this since the last check only marks catalog changes. */
#define NEXT_TO_NOTHING		(1024 * 1024)

static TimeoutId timer = MAX_TIMEOUTS;	/* not registered yet */

/* Read by the handler, and set while the timer is off. */
static const MoveSettings *settings = NULL; /* NULL: the timer is off */
static Oid	insists_on = InvalidOid;	/* see WaitLimits */
static List *roles = NIL;		/* that may be signaled; in TopMemoryContext */

/* Used by the handler only. */
static unsigned int ticks;
static LOCK *waits_for;			/* the wait that it has seen last */
static TimestampTz waits_since; /* when that began */
static int64 seen_at;			/* and was seen first, by clock_us() */
static uint64 written_before;

/* Set by the handler when it cancels the command */
static volatile sig_atomic_t canceled = false;
static NameData slot_name;		/* the reason; "" = asked to step back */
static int64 slot_lag;

/* Collect the roles whose sessions the current user may signal. */
static void
collect_roles(void)
{
	list_free(roles);
	roles = NIL;
	foreach_ptr(HeapTupleData, row, catalog_all(AuthIdRelationId))
	{
		Oid			role = ((Form_pg_authid) GETSTRUCT(row))->oid;
		MemoryContext oldcontext;

		if (!blockers_may_signal(role))
			continue;
		oldcontext = MemoryContextSwitchTo(TopMemoryContext);
		roles = lappend_oid(roles, role);
		MemoryContextSwitchTo(oldcontext);
	}
}

static bool
is_walsender(int pid)
{
	WalSnd	   *walsnd;

	for (int i = 0; (walsnd = walsender_next(&i)) != NULL;)
	{
		if (walsnd->pid == pid)
			return true;
	}
	return false;
}

/*
 * Note since when core has waited, by the monotonic clock: waitStart only tells a wait from the
 * next.  In the handler.
 */
static void
note_wait(void)
{
	LOCK	   *lock = MyProc->waitLock;
	TimestampTz since = pg_atomic_read_u64(&MyProc->waitStart);

	if (lock == waits_for && since == waits_since)
		return;
	waits_for = lock;
	waits_since = since;
	seen_at = clock_us();
}

/* Signal a process that core has waited for longer than lock_wait.  In the handler. */
static void
look_at_holder(void)
{
	LOCK	   *lock = waits_for;
	LOCKTAG		tag;
	bool		is_over;

	if (lock == NULL || waits_since == 0)
		return;
	is_over = SIGNALS_BLOCKERS(settings) && settings->lock_wait > 0 &&
		clock_us() - seen_at > settings->lock_wait * INT64CONST(1000);
	if (!is_over && !OidIsValid(insists_on))
		return;
	/* others may clear waitLock, but only we set it: so the tag was valid */
	tag = lock->tag;
	if (*(LOCK *volatile *) &MyProc->waitLock != lock ||
		tag.locktag_type != LOCKTAG_VIRTUALTRANSACTION)
		return;

	for (uint32 i = 0; i < ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		int			pid = proc->pid;

		if (pid == 0 || PROC_LXID(proc) != tag.locktag_field2 ||
			PROC_VXID_NUMBER(proc) != tag.locktag_field1 ||
			proc->databaseId != MyDatabaseId || (proc->statusFlags & PROC_IS_AUTOVACUUM) ||
			is_walsender(pid) || !list_member_oid(roles, proc->roleId))
			continue;
		if (is_over)
			(void) blockers_kill(pid, proc->roleId, settings);
		else
			(void) blockers_cancel_maintenance(proc, insists_on, settings);
	}
}

/* Cancel core's command.  In the handler. */
static void
cancel_command(void)
{
	canceled = true;
	errors_cancel_work();
}

/* Cancel the command if it is about to cost a slot.  In the handler. */
static void
look_at_slots_in_handler(void)
{
	XLogRecPtr	end = ProcLastRecPtr;
	uint64		written = pgWalUsage.wal_bytes;
	int64		limit = replica_lag_slot_limit();
	ReplicationSlot *slot;

	if (limit < 0 || written - written_before < NEXT_TO_NOTHING)
		return;
	written_before = written;

	for (int i = 0; (slot = slot_next(&i)) != NULL;)
	{
		XLogRecPtr	restart = slot->data.restart_lsn;

		if (XLogRecPtrIsInvalid(restart) || restart >= end ||
			im_slot_is_invalidated(slot) || (int64) (end - restart) <= limit)
			continue;
		slot_name = slot->data.name;
		slot_lag = end - restart;
		cancel_command();
		break;
	}
}

static void
handle_timer(void)
{
	int			save_errno = errno;

	if (settings != NULL)
	{
		if (!canceled)
			look_at_slots_in_handler();
		if (!canceled && runner_must_step_back())
			cancel_command();
		note_wait();
		if (ticks++ % HOLDER_TICKS == 0)
			look_at_holder();
	}
	errno = save_errno;
}

/*
 * Begin to watch core's command, until rebuild_timer_end().  Deadlocks are
 * looked for early; waits are not logged, since each tick would log them again.
 * job_settings must remain valid.  insist_on: see WaitLimits.
 */
void
rebuild_timer_begin(const MoveSettings *job_settings, Oid insist_on)
{
	int			deadlock_ms = Min(DeadlockTimeout, DEADLOCK_LOOK_MS);

	if (OidIsValid(insist_on))
		deadlock_ms = DEADLOCK_INSIST_MS;
	Assert(IsTransactionState() && settings == NULL);
	collect_roles();
	blockers_forget();
	canceled = false;
	slot_name.data[0] = '\0';
	ticks = 0;
	waits_for = NULL;
	waits_since = 0;
	written_before = pgWalUsage.wal_bytes;
	SetConfigOption("deadlock_timeout", psprintf("%d", deadlock_ms),
					PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("log_lock_waits", "off", PGC_SUSET, PGC_S_SESSION);
	insists_on = insist_on;
	settings = job_settings;
	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, handle_timer);
	enable_timeout_every(timer,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), TICK_MS),
						 TICK_MS);
}

/* Undo rebuild_timer_begin().  No-op if the timer is off. */
void
rebuild_timer_end(void)
{
	if (settings == NULL)
		return;
	disable_timeout(timer, false);
	settings = NULL;
	if (proc_exit_inprogress)
		return;
	/* as configured */
	SetConfigOption("deadlock_timeout", NULL, PGC_SUSET, PGC_S_SESSION);
	SetConfigOption("log_lock_waits", NULL, PGC_SUSET, PGC_S_SESSION);

	/*
	 * a cancel of ours that comes too late must not cancel anything else; a
	 * user's is known all the same, see runner_take_cancel()
	 */
	if (canceled && !job_cancel_requested())
		(void) errors_forget_cancel();
	canceled = false;
}

/*
 * Make the ERROR of our own cancel tell the reason: 53400 for a slot, 40P01
 * if we are to step back for a session.  To be called before rebuild_timer_end().
 */
void
rebuild_timer_explain(ErrorData *edata, const MoveItem *item)
{
	/* if a user has canceled as well, that is the reason */
	if (!canceled || !errors_was_canceled(edata) || job_cancel_requested() ||
		errors_has_cancel_of_others())
		return;
	if (slot_name.data[0] == '\0')
	{
		/* the owner of the table has canceled it: a cancel */
		if (!item->owner_cancels)
			edata->sqlerrcode = ERRCODE_T_R_DEADLOCK_DETECTED;
		return;
	}
	edata->sqlerrcode = ERRCODE_CONFIGURATION_LIMIT_EXCEEDED;
	edata->message = psprintf("gave up rebuilding index \"%s\", which would invalidate replication slot \"%s\"",
							  NameStr(item->relname), NameStr(slot_name));
	edata->detail = psprintf("The slot was %lld MB behind, and max_slot_wal_keep_size is %d MB.",
							 (long long) (slot_lag / (1024 * 1024)),
							 max_slot_wal_keep_size_mb);
}
