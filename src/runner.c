/*-------------------------------------------------------------------------
 *
 * runner.c
 *	  A background worker as a runner of its job: its slot, budgets, flags.
 *
 * Assumption: a process is the runner of at most one job in its lifetime.  In
 * any other process most functions do nothing, so code that calls them can run
 * anywhere.
 *
 * Locks: the area's lock, for moments.
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
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "errors.h"
#include "runner_private.h"
#include "running_jobs.h"
#include "test_points.h"

#define MOST_OF_COMMAND		120 /* bytes that describe_command() shows */

#define STEP_BACK_WAIT_MS	5000	/* for a runner to notice that it is to */

/* see runner_private.h */
JobArea    *runner_area = NULL;
RunnerSlot *runner_mine = NULL;
JobSlot    *runner_my_job = NULL;
JobShared  *runner_my_shared = NULL;

/* see runner_works_on() */
static MoveItem *const *my_items = NULL;
static int	my_nitems = 0;

/* Our copy of the job's settings, and its version; see runner_settings(). */
static MoveSettings my_settings;
static uint32 my_version = PG_UINT32_MAX;	/* none yet */

static char my_name[2 * NAMEDATALEN + 40] = "cleanup";	/* for the server log */

/*
 * Return the settings of the job, always at the same address.  They change
 * only here and within job_check_cancel().
 */
const MoveSettings *
runner_settings(void)
{
	if (runner_my_job != NULL &&
		pg_atomic_read_u32(&runner_my_shared->settings_version) != my_version)
	{
		/* so that no change is half seen */
		LWLockAcquire(&runner_area->lock, LW_SHARED);
		my_version = pg_atomic_read_u32(&runner_my_shared->settings_version);
		my_settings = runner_my_shared->settings;
		LWLockRelease(&runner_area->lock);
	}
	return &my_settings;
}

/* Become a runner; false if the job has ended. */
bool
runner_attach(JobShared *shared, int number)
{
	Assert(runner_my_job == NULL && number < MAX_WORKERS);
	runner_area = job_area();
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	runner_my_job = job_slot_locked(shared->slot);
	if (runner_my_job != NULL)
	{
		for (int i = 0; i < IM_MAX_RUNNERS && runner_mine == NULL; i++)
		{
			if (!runner_area->runners[i].in_use)
				runner_mine = &runner_area->runners[i];
		}
		/* there is a slot for each that a job may have */
		Assert(runner_mine != NULL);
		memset(runner_mine, 0, sizeof(RunnerSlot));
		runner_mine->in_use = true;
		runner_mine->slot = shared->slot;
		runner_mine->number = number;
		runner_mine->pid = MyProcPid;
		runner_mine->caller_pid = shared->caller_pid;
		runner_mine->job = shared->job;
		runner_mine->database = shared->database;
		runner_mine->role = shared->role;
		runner_mine->wal_lag = -1;
		runner_mine->changed_per_second = -1;
		runner_mine->eta = -1;
		runner_mine->started_at = GetCurrentTimestamp();
		if (runner_my_job->runner_pid == 0)
			runner_my_job->runner_pid = MyProcPid;
		shared->numbers |= UINT32_C(1) << number;
		/* one that comes late finds it cleaning up */
		if (runner_my_job->state == JOB_STARTING)
			runner_my_job->state = JOB_RUNNING;
		shared->begun = true;
	}
	LWLockRelease(&runner_area->lock);

	if (runner_my_job == NULL)
		return false;
	progress_attach(runner_mine);
	runner_my_shared = shared;
	(void) runner_settings();
	return true;
}

/* Set the name of this runner in the server log. */
void
runner_set_name(const JobShared *shared, JobPurpose purpose)
{
	Assert(IsTransactionState());
	snprintf(my_name, sizeof(my_name), "%s (%s, by %s)",
			 purpose == JOB_MOVE ? psprintf("job " INT64_FORMAT, shared->job) : "cleanup",
			 get_database_name(shared->database),
			 GetUserNameFromId(shared->role, true));
}

const char *
runner_name(void)
{
	return my_name;
}

/* Return the number of our job; 0 if this is no runner of a move. */
int64
runner_job(void)
{
	return runner_my_job != NULL ? runner_my_job->job : CLEANUP_JOB;
}

/* Note that the current transaction writes to the history of our job. */
void
runner_note_record(void)
{
	uint64		xid = U64FromFullTransactionId(GetTopFullTransactionId());

	if (runner_mine == NULL)
		return;
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	runner_my_job->recorded_by[runner_mine->number] = xid;
	LWLockRelease(&runner_area->lock);
}

/* Return for how many runners of our job, our own among them, a condition is true. */
int
runner_count(bool (*condition) (const RunnerSlot *runner))
{
	int			result = 0;

	Assert(LWLockHeldByMe(&runner_area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		if (runner_is_ours(&runner_area->runners[i]) && condition(&runner_area->runners[i]))
			result++;
	}
	return result;
}

/* A condition for runner_count() */
bool
runner_is_another(const RunnerSlot *runner)
{
	return runner != runner_mine;
}

/* The same: it may still change a row. */
bool
runner_is_another_unfinished(const RunnerSlot *runner)
{
	return runner_is_another(runner) && !runner->rows_final;
}

/*
 * Return whether this process is a runner, or waits for one.  For the signal handler
 * of a runner, too, so without a lock.
 */
bool
runner_knows_pid(int pid)
{
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &job_area()->runners[i];

		if (runner->in_use && (runner->pid == pid || runner->caller_pid == pid))
			return true;
	}
	return false;
}

/* Return whether this process is a runner of our job.  Takes no lock, either. */
bool
runner_of_same_job(int pid)
{
	if (runner_mine == NULL || pid == 0)
		return false;
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		if (runner_is_ours(&runner_area->runners[i]) && runner_area->runners[i].pid == pid)
			return true;
	}
	return false;
}

/*
 * Use so much of a budget of the job, a token bucket; return the mark to wait for:
 * how many tokens all runners have used.  Time pays for tokens at a rate, and the
 * runner rests until its mark is paid, so the rate holds for the job.  It is kept in
 * tokens, not in time, so that a new rate holds for tokens used before, too.
 */
double
runner_use(JobBudget budget, double amount)
{
	double		mark;

	if (runner_my_shared == NULL)
		return 0;
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	mark = (runner_my_shared->accounts[budget].used += amount);
	LWLockRelease(&runner_area->lock);
	return mark;
}

/*
 * Return the milliseconds until the mark is paid, at so much a second; with rate
 * 0 all is paid at once.  To be called before each use, too: time in which
 * nothing is owed is not saved.
 */
double
runner_owes(JobBudget budget, double mark, double rate)
{
	JobAccount *account;
	instr_time	now;
	double		owed;

	if (runner_my_shared == NULL)
		return 0;
	account = &runner_my_shared->accounts[budget];
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
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
	owed = mark - account->paid;
	LWLockRelease(&runner_area->lock);
	return rate > 0 ? Max(owed, 0) * 1000 / rate : 0;
}

/* Return whether this is the only runner of its job. */
bool
runner_is_alone(void)
{
	bool		result;

	if (runner_mine == NULL)
		return false;
	LWLockAcquire(&runner_area->lock, LW_SHARED);
	result = runner_count(runner_is_another) == 0;
	LWLockRelease(&runner_area->lock);
	return result;
}

/* Note that all rows of the job are final.  A job that has ended is not paused. */
static void
begin_cleaning_up(void)
{
	Assert(LWLockHeldByMeInMode(&runner_area->lock, LW_EXCLUSIVE));
	runner_my_job->state = JOB_CLEANING_UP;
	runner_my_job->flags.pause = false;
}

/*
 * Stop being a runner; the last runner also frees the job's slot.  Return true if no
 * other runner can still change a row: the caller then has to publish the rows.
 */
bool
runner_detach(void)
{
	bool		last;
	bool		final;

	if (runner_mine == NULL)
		return false;
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	last = runner_count(runner_is_another) == 0;
	final = runner_count(runner_is_another_unfinished) == 0;
	memset(runner_mine, 0, sizeof(RunnerSlot));
	runner_my_job->runners--;
	if (last)
		job_free_slot_locked(runner_my_job);
	else if (final)
		begin_cleaning_up();
	LWLockRelease(&runner_area->lock);
	progress_attach(runner_mine = NULL);
	runner_my_job = NULL;
	return final;
}

/* Declare that this runner will change no row any more.  Returns as runner_detach(). */
bool
runner_finish_rows(void)
{
	bool		final;

	if (runner_mine == NULL)
		return false;
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	runner_mine->rows_final = true;
	final = runner_count(runner_is_another_unfinished) == 0;
	if (final)
		begin_cleaning_up();
	LWLockRelease(&runner_area->lock);
	return final;
}

/* Sleep until the latch is set, or the time is over.  The caller serves interrupts. */
void
latch_nap(long ms, const char *wait_event)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 IM_WAIT_EVENT(wait_event));
	ResetLatch(MyLatch);
}

/*
 * Cancel our job, as a user wants it who has canceled a query of ours: so it does not go on
 * after a restart, even if the server is just ending.  What another runner cancels because
 * it is terminated is no user's matter.
 */
void
runner_cancel(JobShared *shared)
{
	(void) job_request(shared->job, REQUEST_CANCEL);
	if (!job_keep_requested())
		(void) running_jobs_take(shared->database, shared->job);
}

/*
 * Where no ERROR is to be raised: a cancel of another process, as by pg_cancel_backend(), cancels
 * the job, also if its error was caught since, as after a swap and in a cleanup.  The signal of a
 * cancel of the job itself does so no second time: that would signal the other runners, which
 * would signal us.
 */
void
runner_take_cancel(JobShared *shared)
{
	bool		was_sent = errors_forget_cancel();

	if (was_sent && !job_cancel_requested())
		runner_cancel(shared);
}

/* Sleep between two items; a query cancel then cancels the job. */
void
runner_nap(JobShared *shared, int ms)
{
	latch_nap(ms, "IndexMoverPause");
	runner_take_cancel(shared);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Return the requests to our job; nothing if this is no runner.  Read without a
 * lock: each is a bool of its own.
 */
const JobFlags *
job_flags(void)
{
	static const JobFlags none = {false};

	return runner_my_job != NULL ? &runner_my_job->flags : &none;
}

/*
 * CHECK_FOR_INTERRUPTS(), plus ERROR 57014 after cancel_move() or the loss of
 * the waiting caller, and 40P01 when the waiting caller asks to step back.
 * Every loop of a runner calls this, so it also reads a changed configuration, and
 * exits when the postmaster is gone.
 */
void
job_check_cancel(void)
{
	if (runner_my_job != NULL && !PostmasterIsAlive())
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();
	/* a transaction keeps the settings that it began with */
	if (runner_my_job != NULL && ConfigReloadPending && !IsTransactionState())
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
	(void) runner_settings();
	if (job_flags()->cancel)
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceling move due to user request")));
	runner_check_step_back();
}

/* Set the items that this runner works on, or none.  They stay where they are. */
void
runner_works_on(MoveItem *const *items, int nitems)
{
	/* a signal handler reads them */
	my_nitems = 0;
	pg_compiler_barrier();
	my_items = items;
	pg_compiler_barrier();
	my_nitems = nitems;
}

/* Return whether the owner of the table has canceled an item, which has not moved yet. */
static bool
owner_has_canceled(void)
{
	for (int i = 0; i < my_nitems; i++)
	{
		if (my_items[i]->owner_cancels && my_items[i]->outcome.status == STATUS_RUNNING)
			return true;
	}
	return false;
}

/* Return whether a runner of another job of this database has just been asked to step back. */
static bool
another_steps_back(const RunnerSlot *seen)
{
	Assert(LWLockHeldByMe(&runner_area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &runner_area->runners[i];

		if (runner->in_use && runner->slot != seen->slot && runner->database == seen->database &&
			runner->step_back_for != 0 &&
			!clock_has_passed(runner->step_back_since, STEP_BACK_WAIT_MS))
			return true;
	}
	return false;
}

/* Return whether the copy of a runner's relation has been swapped: it waits for no lock any more. */
static bool
has_swapped(const RunnerSlot *runner)
{
	return runner->phase == PHASE_PREWARMING || runner->phase == PHASE_REMOVING_OLD_FILE;
}

/*
 * Ask a runner to give up its relation, because its move waits for a process
 * that waits for the calling session.  "seen" is a copy of the runner's slot.
 * Return false if that does not help: the runner is between two relations, or
 * was asked before and is still in the same wait.  Two callers can find the same deadlock, and
 * one of the two jobs is to go on: so the second caller looks again, and asks later.
 */
bool
runner_ask_to_step_back(const RunnerSlot *seen, int blocker)
{
	bool		helps = true;
	bool		is_second;
	bool		asked = false;

	runner_area = job_area();
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	is_second = another_steps_back(seen);
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		RunnerSlot *runner = &runner_area->runners[i];

		/* otherwise it has gone on, or ended */
		if (!runner->in_use || runner->pid != seen->pid || runner->slot != seen->slot ||
			runner->started_at != seen->started_at || has_swapped(runner))
			continue;
		if (!OidIsValid(runner->heap_oid))
			helps = is_second;
		else if (runner->step_back_for != 0)
			helps = !clock_has_passed(runner->step_back_since, STEP_BACK_WAIT_MS);
		else if (!is_second)
		{
			runner->step_back_for = blocker;
			runner->step_back_since = clock_seconds();
			asked = true;
		}
	}
	LWLockRelease(&runner_area->lock);
	if (asked)
		elog(DEBUG1, "asked process %d to step back for process %d", seen->pid, blocker);
	return helps;
}

/* Forget a request to step back, once the relation has moved, and its phase says so. */
void
runner_forget_step_back(void)
{
	if (runner_mine == NULL)
		return;
	Assert(has_swapped(runner_mine));
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	runner_mine->step_back_for = 0;
	LWLockRelease(&runner_area->lock);
}

/* Return whether to step back; for a signal handler, so without a lock. */
bool
runner_must_step_back(void)
{
	return (runner_mine != NULL && runner_mine->step_back_for != 0) || owner_has_canceled();
}

/*
 * Raise ERROR 40P01, once, if asked to step back, or 57014 if the owner of the table has
 * canceled its move.  See job_check_cancel().
 */
void
runner_check_step_back(void)
{
	int			blocker;

	if (!runner_must_step_back())
		return;
	if (owner_has_canceled())
	{
		/* the handling of the error may have to wait, too */
		my_nitems = 0;
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("canceling move due to request of the table's owner")));
	}
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	blocker = runner_mine->step_back_for;
	/* the handling of the error may have to wait, too */
	runner_mine->step_back_for = 0;
	LWLockRelease(&runner_area->lock);

	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail("The move waits, directly or indirectly, for process %d, which waits for the session that has called the move.",
					   blocker),
			 errdetail_log("The move waits, directly or indirectly, for process %d, which waits for the session that has called the move.%s",
						   blocker, describe_command(blocker))));
}

/*
 * Return the current or last command of a process, for the end of a DETAIL that only the
 * server log gets, as core's log of a deadlock has it: a row of the history is shown to owners
 * of tables and to members of other roles, and pg_stat_activity does not show them the
 * command.  "" if the process has ended.  Needs no transaction.
 */
const char *
describe_command(int pid)
{
	char		command[MOST_OF_COMMAND + 1] = {0};
	const char *activity;

	if (BackendPidGetProc(pid) == NULL)
		return "";
	activity = pgstat_get_backend_current_activity(pid, false);
	memcpy(command, activity, pg_mbcliplen(activity, strlen(activity), MOST_OF_COMMAND));
	for (char *p = command; *p != '\0'; p++)
	{
		if (*p == '\n' || *p == '\t')
			*p = ' ';
	}
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
	/* not counted, because an ERROR resets it */
	QueryCancelHoldoffCount = serve ? 0 : 1;
}
