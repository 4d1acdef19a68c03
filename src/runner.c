/*-------------------------------------------------------------------------
 *
 * runner.c
 *	  A background worker as a runner of its job: claims, progress, flags.
 *
 * Assumption: a process is the runner of at most one job in its lifetime.  In
 * any other process, the functions that report progress or read flags are
 * no-ops, so code that calls them can run anywhere.
 *
 * Locks: the area's lock, for moments.  The flags of the own job are read
 * without it: each is a bool of its own, and may be read late.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "job_private.h"

/* Show no more of a command than this. */
#define MOST_OF_COMMAND		120

/* Time for a runner to notice that it is to step back. */
#define STEP_BACK_WAIT_MS	5000

static uint32 wait_event = 0;
static JobArea *area = NULL;
static RunnerSlot *my_runner = NULL;
static JobSlot *my_job = NULL;

/* Our copy of the job's settings, and its version; see runner_settings(). */
static JobShared *my_shared = NULL;
static MoveSettings my_settings;
static uint32 my_version;

/* of the current item: rests and waits, from which estimates must not learn */
static int64 idle_us = 0;
static TimestampTz phase_since = 0;

static char my_name[2 * NAMEDATALEN + 40] = "cleanup";	/* for the server log */

/* Copy the job's settings under the lock, so that no change is half seen. */
static void
read_settings(void)
{
	LWLockAcquire(&area->lock, LW_SHARED);
	my_version = pg_atomic_read_u32(&my_shared->settings_version);
	my_settings = my_shared->settings;
	LWLockRelease(&area->lock);
}

/*
 * Return the settings of the job, always at the same address.  They change
 * only here and within job_check_cancel().
 */
const MoveSettings *
runner_settings(void)
{
	if (my_job != NULL &&
		pg_atomic_read_u32(&my_shared->settings_version) != my_version)
		read_settings();
	return &my_settings;
}

/* Become a runner; false if the job has ended. */
bool
runner_attach(JobShared *shared)
{
	area = job_area();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_job = job_slot_locked(shared->slot, shared->job);
	for (int i = 0; my_job != NULL && my_runner == NULL && i < IM_MAX_RUNNERS; i++)
		if (!area->runners[i].in_use)
			my_runner = &area->runners[i];
	if (my_job != NULL)
	{
		/* there is a slot for each that a job may have */
		Assert(my_runner != NULL);
		*my_runner = (RunnerSlot)
		{
			.in_use = true,.slot = shared->slot,.pid = MyProcPid,
				.caller_pid = shared->caller_pid,.job = shared->job,
				.database = shared->database,.role = shared->role,.wal_lag = -1,
				.changed_per_second = -1,.eta = -1,.started_at = GetCurrentTimestamp()
		};
		if (my_job->runner_pid == 0)
			my_job->runner_pid = MyProcPid;
		my_job->state = JOB_RUNNING;
		shared->begun = true;
	}
	LWLockRelease(&area->lock);

	if (my_job == NULL)
		return false;
	my_shared = shared;
	read_settings();
	return true;
}

/*
 * Set what the lines of this runner in the server log begin with.  In a
 * transaction.
 */
void
runner_set_name(const JobShared *shared, JobPurpose purpose)
{
	int			len = 0;

	if (purpose == JOB_MOVE)
		len = snprintf(my_name, sizeof(my_name), "job " INT64_FORMAT, shared->job);
	else
		len = snprintf(my_name, sizeof(my_name), "cleanup");
	snprintf(my_name + len, sizeof(my_name) - len, " (%s, by %s)",
			 get_database_name(shared->database),
			 GetUserNameFromId(shared->role, true));
}

const char *
runner_name(void)
{
	return my_name;
}

static bool
is_of_our_job(const RunnerSlot *runner)
{
	return runner->in_use && runner->slot == my_runner->slot &&
		runner->job == my_runner->job;
}

/*
 * Return whether another runner of this job is attached or, with at_work, one
 * that may still change a row.  The caller holds the lock.
 */
static bool
have_company(bool at_work)
{
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
		if (is_of_our_job(&area->runners[i]) && &area->runners[i] != my_runner &&
			!(at_work && area->runners[i].rows_final))
			return true;
	return false;
}

/*
 * Return whether this process is a runner, or waits for one.  Takes no lock,
 * since a signal handler calls it, so the answer may be slightly old.
 */
bool
runner_knows_pid(int pid)
{
	for (int i = 0; area != NULL && i < IM_MAX_RUNNERS; i++)
		if (area->runners[i].in_use &&
			(area->runners[i].pid == pid || area->runners[i].caller_pid == pid))
			return true;
	return false;
}

/* Return whether this process is a runner of our job; also without a lock. */
bool
runner_of_same_job(int pid)
{
	for (int i = 0; my_runner != NULL && pid != 0 && i < IM_MAX_RUNNERS; i++)
		if (is_of_our_job(&area->runners[i]) && area->runners[i].pid == pid)
			return true;
	return false;
}

/*
 * The budgets of a job.  A runner takes what it uses at once, and learns its
 * turn: how much all runners of the job had used by then.  Time pays it back
 * at a rate, and the runner rests until its turn is paid.  So the rate holds
 * for the job, a runner that needs nothing leaves it to the others, and those
 * that need more than there is take turns.  It is kept in what was used, not
 * in time, so that a new rate holds for what was used before, too.
 */

/* Use so much of a budget; return the turn to wait for. */
double
runner_use(JobBudget budget, double amount)
{
	double		turn;

	if (my_shared == NULL)
		return 0;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	turn = (my_shared->accounts[budget].used += amount);
	LWLockRelease(&area->lock);
	return turn;
}

/*
 * Return how much has to be paid until the turn has come, at so much a
 * second; with rate 0 all is paid at once.  To be called before each use, too:
 * time in which nothing is owed is not saved.
 */
double
runner_owes(JobBudget budget, double turn, double rate)
{
	JobAccount *account;
	instr_time	now;
	double		owed;

	if (my_shared == NULL)
		return 0;
	account = &my_shared->accounts[budget];
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	INSTR_TIME_SET_CURRENT(now);
	if (rate <= 0)
		account->paid = account->used;
	else if (!INSTR_TIME_IS_ZERO(account->paid_at))
	{
		instr_time	passed = now;

		INSTR_TIME_SUBTRACT(passed, account->paid_at);
		account->paid = Min(account->used,
							account->paid + INSTR_TIME_GET_DOUBLE(passed) * rate);
	}
	account->paid_at = now;
	owed = turn - account->paid;
	LWLockRelease(&area->lock);
	return Max(owed, 0);
}

/* Return whether this is the only runner of its job. */
bool
runner_is_alone(void)
{
	bool		result;

	if (my_runner == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_SHARED);
	result = !have_company(false);
	LWLockRelease(&area->lock);
	return result;
}

/*
 * Stop being a runner.  Return true if no other runner can still change a
 * row: the caller then has to publish the rows.  The last runner also frees
 * the job's slot.  No-op, and false, if not attached.
 */
bool
runner_detach(void)
{
	bool		last;
	bool		final;

	if (my_runner == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	last = !have_company(false);
	final = !have_company(true);
	memset(my_runner, 0, sizeof(RunnerSlot));
	my_job->runners--;
	if (last)
		job_free_slot_locked(my_job);
	else if (final)
		my_job->state = JOB_CLEANING_UP;
	LWLockRelease(&area->lock);
	my_runner = NULL;
	my_job = NULL;
	return final;
}

/*
 * Declare that this runner will change no row any more, and that no caller
 * needs to wait for the rest of its work.  Return true if that holds for all
 * others, too: the caller then has to publish the rows.
 */
bool
runner_rows_are_final(void)
{
	bool		final;

	if (my_runner == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_runner->rows_final = true;
	final = !have_company(true);
	if (final)
		my_job->state = JOB_CLEANING_UP;
	LWLockRelease(&area->lock);
	return final;
}

/*
 * Return whether this item may begin now.  Indexes of one table are rebuilt
 * one after the other, and not while one of them is copied, because a rebuild
 * waits for all transactions that use the table.  The default for new
 * partitions is set at the very end.  The caller holds the lock.
 */
static bool
may_begin(const JobShared *shared, const MoveItem *item)
{
	for (int i = 0; i < shared->nitems; i++)
	{
		const MoveItem *other = &shared->items[i];
		bool		running = (other->status == STATUS_RUNNING ||
							   other->status == STATUS_PAUSED);

		if (other == item)
			continue;
		if (item->method == METHOD_DEFAULT && other->method != METHOD_DEFAULT &&
			(running || other->status == STATUS_QUEUED))
			return false;
		if (running && other->heap_oid == item->heap_oid &&
			(item->method != METHOD_COPY || other->method != METHOD_COPY))
			return false;
	}
	return true;
}

/*
 * Claim the next item of the job, and set its status to running.  Return its
 * number, CLAIM_NONE if there is none, or CLAIM_LATER if the next one has to
 * wait for another runner.  With anything_left, claim any item that is still
 * queued, for a runner that is going to give it up.
 */
int
runner_claim(JobShared *shared, bool anything_left)
{
	int			result = CLAIM_NONE;

	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	for (int i = 0; i < shared->nitems; i++)
	{
		MoveItem   *item = &shared->items[i];

		if (item->status != STATUS_QUEUED)
			continue;
		if (anything_left || may_begin(shared, item))
		{
			item->status = STATUS_RUNNING;
			(void) job_parts_follow(shared, i);
			result = i;
			break;
		}
		result = CLAIM_LATER;
	}
	LWLockRelease(&area->lock);
	return result;
}

/* Sleep between two items; a query cancel then cancels the job. */
void
runner_nap(JobShared *shared, int ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, IM_WAIT_EVENT(wait_event, "IndexMoverPause"));
	ResetLatch(MyLatch);
	if (QueryCancelPending)		/* pg_cancel_backend() */
	{
		QueryCancelPending = false;
		(void) job_request_cancel(shared->job);
	}
	CHECK_FOR_INTERRUPTS();
}

/* Show which relation is being moved.  The caller holds the lock. */
static void
show_relation(const MoveItem *item)
{
	my_runner->heap_oid = item->heap_oid;
	my_runner->relid = item->relid;
	my_runner->relname = item->relname;
	my_runner->relkind = item->relkind;
	my_runner->schema_name = item->schema_name;
	my_runner->heap_name = item->heap_name;
}

/* Show which part of a table is being copied, within the same move. */
void
progress_part(const MoveItem *item)
{
	if (my_runner == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	show_relation(item);
	my_runner->blocks_total = 0;
	my_runner->blocks_done = 0;
	LWLockRelease(&area->lock);
}

void
progress_begin(const MoveItem *item)
{
	if (my_runner == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	show_relation(item);
	my_runner->method = item->method;
	my_runner->phase = PHASE_INITIALIZING;
	idle_us = 0;
	my_runner->throttled_by[0] = '\0';
	my_runner->blocks_total = 0;
	my_runner->blocks_done = 0;
	my_runner->blocks_changed = 0;
	my_runner->bytes_per_second = 0;
	my_runner->changed_per_second = -1;
	my_runner->eta = -1;
	my_runner->lock_attempts = 0;
	my_runner->wal_lag = -1;
	my_runner->nblockers = 0;
	my_runner->prepared[0] = '\0';
	my_runner->started_at = GetCurrentTimestamp();
	my_runner->step_back_for = 0;
	LWLockRelease(&area->lock);
}

void
progress_end(void)
{
	if (my_runner == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_runner->heap_oid = InvalidOid;
	my_runner->relid = InvalidOid;
	my_runner->nblockers = 0;
	LWLockRelease(&area->lock);
}

/* Return whether another session ends this phase, or the clock. */
static bool
is_wait(MovePhase phase)
{
	return phase == PHASE_WAIT_START || phase == PHASE_WAIT_SWAP_TIME ||
		phase == PHASE_WAIT_SWAP_LOCK || phase == PHASE_WAIT_WRITERS ||
		phase == PHASE_WAIT_SNAPSHOTS || phase == PHASE_GIVING_WAY;
}


/* Publish a phase.  Return the previous one, for the caller to restore. */
MovePhase
progress_phase(MovePhase phase)
{
	MovePhase	before = PHASE_INITIALIZING;

	if (my_runner == NULL)
		return before;
	if (is_wait(my_runner->phase))
		idle_us += GetCurrentTimestamp() - phase_since;
	phase_since = GetCurrentTimestamp();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	before = my_runner->phase;
	my_runner->phase = phase;
	my_runner->throttled_by[0] = '\0';
	LWLockRelease(&area->lock);
	return before;
}

/* Count a rest in a phase of work. */
void
progress_rested(int64 us)
{
	if (my_runner != NULL && !is_wait(my_runner->phase))
		idle_us += us;
}

/* Return the microseconds that the item has rested or waited, up to now. */
int64
progress_idle(void)
{
	return idle_us + (my_runner != NULL && is_wait(my_runner->phase) ?
					  GetCurrentTimestamp() - phase_since : 0);
}

/* Say why the runner rests; NULL if it does not any more. */
void
progress_throttled(const char *why)
{
	if (my_runner == NULL || strcmp(my_runner->throttled_by, why ? why : "") == 0)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	strlcpy(my_runner->throttled_by, why ? why : "", sizeof(my_runner->throttled_by));
	LWLockRelease(&area->lock);
}

/* Set one number of the runner's slot. */
#define PROGRESS_SET(field, value) \
	do { \
		if (my_runner != NULL) \
		{ \
			LWLockAcquire(&area->lock, LW_EXCLUSIVE); \
			my_runner->field = (value); \
			LWLockRelease(&area->lock); \
		} \
	} while (0)

void
progress_blocks(int64 total, int64 done)
{
	PROGRESS_SET(blocks_total, total);
	PROGRESS_SET(blocks_done, done);
}

void
progress_changed(int64 blocks_changed)
{
	PROGRESS_SET(blocks_changed, blocks_changed);
}

void
progress_rate(int64 bytes_per_second)
{
	PROGRESS_SET(bytes_per_second, bytes_per_second);
}

void
progress_change_rate(int64 blocks_per_second)
{
	PROGRESS_SET(changed_per_second, blocks_per_second);
}

void
progress_eta(double seconds)
{
	if (my_runner == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_runner->eta = seconds;
	my_runner->eta_at = GetCurrentTimestamp();
	LWLockRelease(&area->lock);
}

void
progress_wal_lag(int64 bytes)
{
	PROGRESS_SET(wal_lag, bytes);
}

void
progress_lock_attempt(void)
{
	PROGRESS_SET(lock_attempts, my_runner->lock_attempts + 1);
}

void
progress_blockers(const int *pids, int npids)
{
	TimestampTz now = GetCurrentTimestamp();

	if (my_runner == NULL)
		return;
	npids = Min(npids, IM_MAX_BLOCKERS);
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	if (npids > 0)
	{
		memcpy(my_runner->blockers, pids, npids * sizeof(int));
		/* a copy that waits catches up in between */
		if (now - my_runner->blocked_at > IM_BLOCKED_GAP)
			my_runner->blocked_since = now;
		my_runner->blocked_at = now;
	}
	my_runner->nblockers = npids;
	LWLockRelease(&area->lock);
}

void
progress_prepared(const char *name)
{
	if (my_runner == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	memset(my_runner->prepared, 0, IM_PREPARED_LEN);
	memcpy(my_runner->prepared, name,
		   pg_mbcliplen(name, strlen(name), IM_PREPARED_LEN - 1));
	LWLockRelease(&area->lock);
}

bool
job_cancel_requested(void)
{
	/* a bool that only ever turns true needs no lock to be read */
	return my_job != NULL && my_job->cancel;
}

bool
job_pause_requested(void)
{
	return my_job != NULL && my_job->pause;
}

/* Return whether resume_move() has said not to wait for swap_after. */
bool
job_swap_now_requested(void)
{
	return my_job != NULL && my_job->swap_now;
}

/*
 * CHECK_FOR_INTERRUPTS(), plus ERROR 57014 after cancel_move() or the loss of
 * the waiting caller, and 40P01 when the waiting caller asks to step back
 * from this index.
 *
 * Every loop of a runner calls this.  So it also reads a changed
 * configuration again, if no transaction is open.
 */
void
job_check_cancel(void)
{
	CHECK_FOR_INTERRUPTS();
	/* a transaction keeps the settings that it began with */
	if (my_job != NULL && ConfigReloadPending && !IsTransactionState())
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	(void) runner_settings();
	if (job_cancel_requested())
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceling move due to user request")));
	runner_check_step_back();
}

/*
 * Ask a runner to give up its index, because the index waits for a process
 * that waits for the calling session.  Called by the session that waits for
 * the job; "seen" is its copy of the runner's slot.  Return false if that
 * does not help: the runner is between two indexes, or was asked before and
 * is still in the same wait.
 */
bool
runner_ask_to_step_back(const RunnerSlot *seen, int blocker)
{
	JobArea    *shared_area = job_area();
	bool		helps = true;

	LWLockAcquire(&shared_area->lock, LW_EXCLUSIVE);
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		RunnerSlot *runner = &shared_area->runners[i];

		/* otherwise it has gone on, or ended */
		if (!runner->in_use || runner->pid != seen->pid || runner->slot != seen->slot ||
			runner->job != seen->job || runner->started_at != seen->started_at)
			continue;
		if (!OidIsValid(runner->heap_oid))
			helps = false;
		else if (runner->step_back_for != 0)
			helps = !TimestampDifferenceExceeds(runner->step_back_since,
												GetCurrentTimestamp(), STEP_BACK_WAIT_MS);
		else
		{
			runner->step_back_for = blocker;
			runner->step_back_since = GetCurrentTimestamp();
		}
	}
	LWLockRelease(&shared_area->lock);
	return helps;
}

/* Return whether to step back; for a signal handler, so without a lock. */
bool
runner_must_step_back(void)
{
	return my_runner != NULL && my_runner->step_back_for != 0;
}

/* Raise ERROR 40P01, once, if asked to step back.  See job_check_cancel(). */
void
runner_check_step_back(void)
{
	int			blocker;

	if (!runner_must_step_back())
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	blocker = my_runner->step_back_for;
	/* the handling of the error may have to wait, too */
	my_runner->step_back_for = 0;
	LWLockRelease(&area->lock);

	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("The move waits, directly or indirectly, for process %d, which waits for the session that has called the move.%s",
					   blocker, describe_command(blocker)),
			 errhint("Call it again when that process has ended, or use wait => false.")));
}

/*
 * Return the current or last command of a process, for the end of an error's
 * DETAIL; "" if the current user may not see it.  Needs no transaction.
 */
const char *
describe_command(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);
	char		command[MOST_OF_COMMAND + 1] = {0};
	const char *activity;

	if (proc == NULL ||
		(proc->roleId != GetUserId() &&
		 strcmp(GetConfigOption("is_superuser", false, false), "on") != 0))
		return "";
	activity = pgstat_get_backend_current_activity(pid, false);
	memcpy(command, activity, pg_mbcliplen(activity, strlen(activity), MOST_OF_COMMAND));
	for (char *p = command; *p != '\0'; p++)
		if (*p == '\n' || *p == '\t')
			*p = ' ';
	return psprintf(" Process %d: %s", pid, command);
}

/*
 * Set whether a cancel signal is an ERROR at once, as during a move, or kept
 * for later, as between two indexes, where it would end the runner before it
 * has recorded the outcome.
 */
void
runner_serve_cancel(bool serve)
{
	/* set, not counted, because an ERROR resets it */
	QueryCancelHoldoffCount = serve ? 0 : 1;
}
