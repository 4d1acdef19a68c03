/*-------------------------------------------------------------------------
 *
 * runner.c
 *	  A background worker as a runner of its job: claims, budgets, flags.
 *
 * Assumption: a process is the runner of at most one job in its lifetime.  In
 * any other process most functions do nothing, so code that calls them can run
 * anywhere.
 *
 * Locks: the area's lock, for moments.
 *
 * proof/swap.pml is a model of this protocol.
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
#include "job_private.h"
#include "running_jobs.h"
#include "test_points.h"

#define MOST_OF_COMMAND		120 /* bytes that describe_command() shows */

/* Between two windows of bids; what is left of a window is no shorter, nor worth a bid */
#define BID_GAP_MS			IM_LIMIT("bid-gap", 20)

/* What is moved together is small, and once it was parted so often, nothing is */
#define TOGETHER_BYTES		(16 * INT64CONST(1024) * 1024)
#define ALL_TOGETHER_BYTES	(4 * TOGETHER_BYTES)
#define MOST_PARTED			IM_LIMIT("parted", 4)
/* The next one may be one of so many items */
#define TOGETHER_LOOKS		1000

/* How many items that are free a runner knows, and at how many others it looks at once */
#define MAX_FREE			(2 * MAX_WORKERS)
#define FREE_LOOKS			8

#define MAKE_UP_MS			5000	/* between two looks for a worker that the
									 * job lacks */

#define STEP_BACK_WAIT_MS	5000	/* for a runner to notice that it is to */

static JobArea *area = NULL;
static RunnerSlot *my_runner = NULL;
static JobSlot *my_job = NULL;
static MoveItem *const *my_items = NULL;
static int	my_nitems = 0;

/* Our copy of the job's settings, and its version; see runner_settings(). */
static JobShared *my_shared = NULL;
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
	if (my_job != NULL && pg_atomic_read_u32(&my_shared->settings_version) != my_version)
	{
		/* so that no change is half seen */
		LWLockAcquire(&area->lock, LW_SHARED);
		my_version = pg_atomic_read_u32(&my_shared->settings_version);
		my_settings = my_shared->settings;
		LWLockRelease(&area->lock);
	}
	return &my_settings;
}

/* Become a runner; false if the job has ended. */
bool
runner_attach(JobShared *shared, int number)
{
	Assert(my_job == NULL && number < MAX_WORKERS);
	area = job_area();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_job = job_slot_locked(shared->slot);
	if (my_job != NULL)
	{
		for (int i = 0; i < IM_MAX_RUNNERS && my_runner == NULL; i++)
		{
			if (!area->runners[i].in_use)
				my_runner = &area->runners[i];
		}
		/* there is a slot for each that a job may have */
		Assert(my_runner != NULL);
		memset(my_runner, 0, sizeof(RunnerSlot));
		my_runner->in_use = true;
		my_runner->slot = shared->slot;
		my_runner->number = number;
		my_runner->pid = MyProcPid;
		my_runner->caller_pid = shared->caller_pid;
		my_runner->job = shared->job;
		my_runner->database = shared->database;
		my_runner->role = shared->role;
		my_runner->wal_lag = -1;
		my_runner->changed_per_second = -1;
		my_runner->eta = -1;
		my_runner->started_at = GetCurrentTimestamp();
		if (my_job->runner_pid == 0)
			my_job->runner_pid = MyProcPid;
		shared->numbers |= UINT32_C(1) << number;
		/* one that comes late finds it cleaning up */
		if (my_job->state == JOB_STARTING)
			my_job->state = JOB_RUNNING;
		shared->begun = true;
	}
	LWLockRelease(&area->lock);

	if (my_job == NULL)
		return false;
	progress_attach(my_runner);
	my_shared = shared;
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
	return my_job != NULL ? my_job->job : CLEANUP_JOB;
}

/* Note that the current transaction writes to the history of our job. */
void
runner_note_record(void)
{
	uint64		xid = U64FromFullTransactionId(GetTopFullTransactionId());

	if (my_runner == NULL)
		return;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_job->recorded_by[my_runner->number] = xid;
	LWLockRelease(&area->lock);
}

static bool
is_of_our_job(const RunnerSlot *runner)
{
	return runner->in_use && runner->slot == my_runner->slot;
}

/* Return for how many runners of our job, our own among them, a condition is true. */
static int
count_runners(bool (*condition) (const RunnerSlot *runner))
{
	int			result = 0;

	Assert(LWLockHeldByMe(&area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		if (is_of_our_job(&area->runners[i]) && condition(&area->runners[i]))
			result++;
	}
	return result;
}

/* Conditions for count_runners() */

static bool
is_another(const RunnerSlot *runner)
{
	return runner != my_runner;
}

/* It may still change a row. */
static bool
is_another_unfinished(const RunnerSlot *runner)
{
	return is_another(runner) && !runner->rows_final;
}

/* It gives up an item, and has not claimed another item. */
static bool
gives_turn(const RunnerSlot *runner)
{
	return runner->gives_turn;
}

/* It has begun, and has no relation: it claims the next one. */
static bool
is_idle(const RunnerSlot *runner)
{
	return runner->nitems == 0 && !runner->rows_final;
}

/* Between its claim and progress_begin() a runner may wait for the extension. */
static bool
has_relation(const RunnerSlot *runner)
{
	return runner->nitems > 0 && OidIsValid(runner->heap_oid);
}

/* Its copy waits for the lock of its swap, and that makes room for another relation. */
static bool
is_waiting(const RunnerSlot *runner)
{
	return has_relation(runner) && runner->phase == PHASE_WAIT_SWAP_LOCK && !runner->tight_space;
}

/* It works on a relation, and does not only wait for its lock. */
static bool
is_another_at_work(const RunnerSlot *runner)
{
	return is_another(runner) && has_relation(runner) && !is_waiting(runner);
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
	if (my_runner == NULL || pid == 0)
		return false;
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		if (is_of_our_job(&area->runners[i]) && area->runners[i].pid == pid)
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

	if (my_shared == NULL)
		return 0;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	mark = (my_shared->accounts[budget].used += amount);
	LWLockRelease(&area->lock);
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
	owed = mark - account->paid;
	LWLockRelease(&area->lock);
	return rate > 0 ? Max(owed, 0) * 1000 / rate : 0;
}

/*
 * window: return for how many microseconds from now on no bid may begin: shortly before the end of
 * a window, where none is worth while, and until shortly after it.  So a query of all partitions of
 * a table waits behind all runners of the job at the same time, not behind one after the other;
 * and it has time between two windows to lock all of them.
 */
static int64
no_bid_us(int timeout_ms, int64 now)
{
	int64		left_us = my_shared->bid_ends - now;
	int64		gap_us = BID_GAP_MS * INT64CONST(1000);

	Assert(LWLockHeldByMe(&area->lock));
	if (left_us >= Min(gap_us, timeout_ms * INT64CONST(500)) || left_us <= -gap_us)
		return 0;
	return left_us + gap_us;
}

/* Return when the window has begun, by clock_us(), that a bid could join now; 0 = there is none. */
int64
runner_bid_began(int timeout_ms)
{
	int64		now = clock_us();
	int64		began = 0;

	if (my_shared == NULL)
		return 0;
	LWLockAcquire(&area->lock, LW_SHARED);
	if (my_shared->bid_ends > now && no_bid_us(timeout_ms, now) == 0)
		began = my_shared->bid_began;
	LWLockRelease(&area->lock);
	return began;
}

/*
 * Begin a bid, just before we queue for an exclusive lock, and return for how many milliseconds it
 * may queue: for the rest of the window of another runner's bid or, if none runs, for timeout_ms.
 * Then it begins a window, and tells the other runners of the job, so that all that wait for a
 * lock queue at the same time.
 *
 * Who comes too late for a window waits here for the next one, to be there when that opens.  That
 * takes two BID_GAP_MS at most, and we have no lock yet but those of attempts_prepare().
 */
int
runner_begin_bid(int timeout_ms)
{
	int			pids[IM_MAX_RUNNERS];
	int			n = 0;
	int64		now;
	int64		wait_us;
	int64		left_us;

	if (my_shared == NULL)
		return timeout_ms;
	/* step: window */
	for (;;)
	{
		LWLockAcquire(&area->lock, LW_EXCLUSIVE);
		now = clock_us();
		wait_us = no_bid_us(timeout_ms, now);
		if (wait_us <= 0)
			break;
		LWLockRelease(&area->lock);
		latch_nap((wait_us + 999) / 1000, "IndexMoverWaitOthers");
	}
	if (my_shared->bid_ends <= now)
	{
		my_shared->bid_began = now;
		my_shared->bid_ends = now + timeout_ms * INT64CONST(1000);
		for (int i = 0; i < IM_MAX_RUNNERS; i++)
		{
			if (is_of_our_job(&area->runners[i]) && &area->runners[i] != my_runner)
				pids[n++] = area->runners[i].pid;
		}
	}
	left_us = my_shared->bid_ends - now;
	LWLockRelease(&area->lock);
	for (int i = 0; i < n; i++)
	{
		PGPROC	   *proc = BackendPidGetProc(pids[i]);

		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
	/* it may be longer than ours, after alter_move() */
	return Min((left_us + 999) / 1000, timeout_ms);
}

/* Return whether this is the only runner of its job. */
bool
runner_is_alone(void)
{
	bool		result;

	if (my_runner == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_SHARED);
	result = count_runners(is_another) == 0;
	LWLockRelease(&area->lock);
	return result;
}

/* Note that all rows of the job are final.  A job that has ended is not paused. */
static void
begin_cleaning_up(void)
{
	Assert(LWLockHeldByMeInMode(&area->lock, LW_EXCLUSIVE));
	my_job->state = JOB_CLEANING_UP;
	my_job->flags.pause = false;
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

	if (my_runner == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	last = count_runners(is_another) == 0;
	final = count_runners(is_another_unfinished) == 0;
	memset(my_runner, 0, sizeof(RunnerSlot));
	my_job->runners--;
	if (last)
		job_free_slot_locked(my_job);
	else if (final)
		begin_cleaning_up();
	LWLockRelease(&area->lock);
	progress_attach(my_runner = NULL);
	my_job = NULL;
	return final;
}

/* Declare that this runner will change no row any more.  Returns as runner_detach(). */
bool
runner_finish_rows(void)
{
	bool		final;

	if (my_runner == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_runner->rows_final = true;
	final = count_runners(is_another_unfinished) == 0;
	if (final)
		begin_cleaning_up();
	LWLockRelease(&area->lock);
	return final;
}

/* Return whether a runner has claimed an item of this table. */
static bool
has_item_of_table(const JobShared *shared, const RunnerSlot *runner, Oid table)
{
	for (int i = 0; i < runner->nitems; i++)
	{
		if (shared->items[runner->items[i]].heap_oid == table)
			return true;
	}
	return false;
}

/* Return whether another runner of the job, of this kind, has an item of this one's table. */
static bool
another_has_table(const JobShared *shared, const MoveItem *item,
				  bool (*is_meant) (const RunnerSlot *runner))
{
	Assert(LWLockHeldByMe(&area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &area->runners[i];

		if (is_of_our_job(runner) && runner != my_runner && is_meant(runner) &&
			has_item_of_table(shared, runner, item->heap_oid))
			return true;
	}
	return false;
}

/* Return whether another runner of the job is just giving up a relation of this table. */
static bool
is_being_put_back(const JobShared *shared, const MoveItem *item)
{
	return another_has_table(shared, item, gives_turn);
}

/* Return whether a runner moves relations together. */
static bool
moves_together(const RunnerSlot *runner)
{
	return runner->nitems > 1;
}

/* Return whether an item, not a part of one, is queued and has had no turn. */
static bool
is_untried(const MoveItem *item)
{
	return item->outcome.status == STATUS_QUEUED && item->turns == 0 && !OidIsValid(item->part_of);
}

/* Return whether an item is queued, and has given its turn. */
static bool
is_put_back(const MoveItem *item)
{
	return item->outcome.status == STATUS_QUEUED && item->turns > 0 && !OidIsValid(item->part_of);
}

/* Return whether an item has to wait for this one, on which a runner works, or for a part of it. */
static bool
has_to_wait_for(const JobShared *shared, const MoveItem *item, int first)
{
	int			last = job_last_part(shared, first);

	for (int i = first; i <= last; i++)
	{
		const MoveItem *other = &shared->items[i];

		if (other == item || other->outcome.status != STATUS_RUNNING)
			continue;
		/* a part goes with its table */
		if (item->method == METHOD_DEFAULT && other->method != METHOD_DEFAULT &&
			other->turns == 0 && i == first)
			return true;
		if (other->heap_oid == item->heap_oid &&
			(item->method != METHOD_COPY || other->method != METHOD_COPY))
			return true;
	}
	return false;
}

/*
 * Return whether this item may begin now.  Indexes of a table are rebuilt
 * one after the other, and not while any of them is copied, because a rebuild
 * waits for all transactions that use the table.  Nor does one begin whose table is being
 * moved together with others, or an index of it.  The default for new
 * partitions is set at the very end, but for relations that have given their turn.
 */
static bool
may_begin(const JobShared *shared, const MoveItem *item)
{
	Assert(LWLockHeldByMe(&area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &area->runners[i];

		for (int j = 0; j < runner->nitems && is_of_our_job(runner); j++)
		{
			if (has_to_wait_for(shared, item, runner->items[j]))
				return false;
		}
	}
	if (item->method == METHOD_DEFAULT)
	{
		for (int i = shared->first_untried; i < shared->nitems; i++)
		{
			if (shared->items[i].method != METHOD_DEFAULT && is_untried(&shared->items[i]))
				return false;
		}
	}
	/* its locks would be in the way of all the others */
	if (another_has_table(shared, item, moves_together))
		return false;
	return !is_being_put_back(shared, item);
}

/*
 * Numbers of items that have given their turn, and that no session had locked at our last look.
 * A look reads the lock table, so it takes no lock of the area: clients may stand behind that.
 */
static int	free_items[MAX_FREE];
static int	nfree = 0;
static int	next_look = 0;

static bool
was_free(int n)
{
	for (int i = 0; i < nfree; i++)
	{
		if (free_items[i] == n)
			return true;
	}
	return false;
}

/*
 * Look again at those that were free, and at so many others, in turn.  What a runner claims
 * meanwhile, the caller sees under the area's lock.
 */
static void
look_for_free(const JobShared *shared, int most, RelationCheck is_free)
{
	int			kept = 0;

	Assert(!LWLockHeldByMe(&area->lock));
	for (int i = 0; i < nfree; i++)
	{
		const MoveItem *item = &shared->items[free_items[i]];

		if (is_put_back(item) && is_free(item))
			free_items[kept++] = free_items[i];
	}
	nfree = kept;
	for (int i = 0; i < shared->nitems && most > 0 && nfree < MAX_FREE; i++)
	{
		int			n = next_look++ % shared->nitems;

		next_look %= shared->nitems;
		if (!is_put_back(&shared->items[n]) || was_free(n))
			continue;
		most--;
		if (is_free(&shared->items[n]))
			free_items[nfree++] = n;
	}
}

/*
 * Return how many items of the job are ready, except one; "most" are enough.  Ready is what may
 * begin, and has had no turn or was free at our last look.
 */
static int
count_ready(JobShared *shared, const MoveItem *except, int most)
{
	int			result = 0;

	Assert(LWLockHeldByMeInMode(&area->lock, LW_EXCLUSIVE));
	while (shared->first_untried < shared->nitems &&
		   !is_untried(&shared->items[shared->first_untried]))
		shared->first_untried++;
	for (int i = shared->first_untried; i < shared->nitems && result < most; i++)
	{
		const MoveItem *item = &shared->items[i];

		if (item != except && is_untried(item) && may_begin(shared, item))
			result++;
	}
	for (int i = 0; i < nfree && result < most; i++)
	{
		const MoveItem *item = &shared->items[free_items[i]];

		if (item != except && is_put_back(item) && may_begin(shared, item))
			result++;
	}
	return result;
}

/*
 * Return the lowest number that no runner of the job has; max_runners if all are taken.  Not
 * 0: that is the one that begins the job, and it begins once.
 */
static int
free_number(const JobShared *shared)
{
	int			result = 1;

	Assert(LWLockHeldByMe(&area->lock));
	while (result < shared->max_runners && (shared->numbers & (UINT32_C(1) << result)) != 0)
		result++;
	return result;
}

/*
 * Have the postmaster start one more runner of the job.  Return false if there is no room
 * for it, or another one is just being started.
 */
bool
runner_start_another(JobShared *shared)
{
	int			number;
	bool		may_start;
	bool		started = false;

	if (my_runner == NULL)
		return false;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	number = free_number(shared);
	may_start = !shared->starting && number < shared->max_runners;
	if (may_start)
	{
		shared->starting = true;
		/* it may have come, and left again, before we go on */
		shared->numbers |= UINT32_C(1) << number;
	}
	LWLockRelease(&area->lock);
	if (!may_start)
		return false;

	if (job_more_runners(my_runner->slot))
		started = job_register_runner(my_runner->slot, shared->job, number, 0) != NULL;
	if (!started)
		runner_leave_number(shared, number);
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	shared->starting = false;
	LWLockRelease(&area->lock);
	return started;
}

/* Leave the number of a runner that has not begun to others. */
void
runner_leave_number(JobShared *shared, int number)
{
	LWLockAcquire(&job_area()->lock, LW_EXCLUSIVE);
	shared->numbers &= ~(UINT32_C(1) << number);
	LWLockRelease(&job_area()->lock);
}

/*
 * Have a runner started that our job lacks, because no worker was free when it began:
 * parallel queries take workers, and leave them.  To be called between two items and by copies,
 * often.
 */
void
runner_make_up(void)
{
	static double looked_at = 0;
	bool		wanted;

	if (my_runner == NULL || !clock_has_passed(looked_at, MAKE_UP_MS))
		return;
	looked_at = clock_seconds();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	wanted = !my_shared->starting && !my_job->flags.pause && !my_job->flags.cancel &&
		my_job->runners < Min(my_shared->max_runners, my_shared->settings.max_workers);
	if (wanted)
		wanted = count_ready(my_shared, NULL, 1) > 0;
	LWLockRelease(&area->lock);
	if (wanted)
		(void) runner_start_another(my_shared);
}

/* Return whether there may be one more runner, since others only wait for locks. */
static bool
has_room(const JobShared *shared)
{
	return !shared->starting && free_number(shared) < shared->max_runners &&
		my_job->runners - count_runners(is_waiting) < shared->settings.max_workers;
}

/*
 * room: the copy of our item waits for its lock.  If fewer than max_workers of the job's
 * runners do anything else, and a relation is ready, have one more started for it.  With
 * max_workers = 1 the relations are moved one after the other.
 */
void
runner_make_room(JobShared *shared, const MoveItem *item, RelationCheck is_free)
{
	bool		wanted;

	if (my_runner == NULL || shared->settings.max_workers == 1 || item->tight_space)
		return;
	LWLockAcquire(&area->lock, LW_SHARED);
	wanted = has_room(shared);
	LWLockRelease(&area->lock);
	if (!wanted)
		return;
	look_for_free(shared, FREE_LOOKS, is_free);
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	wanted = has_room(shared);
	if (wanted)
		wanted = count_ready(shared, item, 1) > 0;
	LWLockRelease(&area->lock);
	if (wanted)
		(void) runner_start_another(shared);
}

/*
 * Return whether this runner, which has nothing to do now, ends before its job.  It was
 * started for a relation while a copy waited (runner_make_room()), or has taken the place of
 * one that was; now no copy waits, and max_workers others are there for what is left.  Not if
 * a session waits for the job: each runner has a queue of its own to it, and another runner
 * could not use that again.
 */
static bool
is_too_many(const JobShared *shared)
{
	return shared->caller_pid == 0 && count_runners(is_waiting) == 0 &&
		count_runners(is_another_unfinished) >= shared->settings.max_workers;
}

/* Leave our number, and the job if it is known by our process, to other runners. */
static void
leave_to_others(JobShared *shared)
{
	my_runner->rows_final = true;
	shared->numbers &= ~(UINT32_C(1) << my_runner->number);
	if (my_job->runner_pid != MyProcPid)
		return;
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &area->runners[i];

		if (is_of_our_job(runner) && is_another_unfinished(runner))
			my_job->runner_pid = runner->pid;
	}
}

/*
 * Return the number of the item that has given its turn, and is to come again next: of those
 * that were free at our last look or, if none was, of all, the one that has given the fewest
 * turns; or CLAIM_NONE.
 */
static int
find_put_back(const JobShared *shared)
{
	int			result = CLAIM_NONE;
	bool		result_is_free = false;

	for (int i = shared->first_queued; i < shared->nitems; i++)
	{
		const MoveItem *item = &shared->items[i];
		bool		is_free;

		if (!is_put_back(item))
			continue;
		is_free = was_free(i);
		if (result != CLAIM_NONE && is_free == result_is_free &&
			item->turns >= shared->items[result].turns)
			continue;
		if (result != CLAIM_NONE && result_is_free && !is_free)
			continue;
		if (!may_begin(shared, item))
			continue;
		result = i;
		result_is_free = is_free;
	}
	return result;
}

/*
 * Return the number of the next item to claim, not one that has given its turn unless
 * anything_left; CLAIM_NONE if nothing is queued, else CLAIM_LATER.  *has_given: one that has is
 * queued, and could be claimed.
 */
static int
find_next(JobShared *shared, bool anything_left, bool *has_given)
{
	bool		room = anything_left ||
		count_runners(is_another_at_work) < shared->settings.max_workers;
	int			result = CLAIM_NONE;

	*has_given = false;
	for (int i = shared->first_queued; i < shared->nitems; i++)
	{
		const MoveItem *item = &shared->items[i];

		if (item->outcome.status != STATUS_QUEUED)
		{
			if (i == shared->first_queued)
				shared->first_queued++;
			continue;
		}
		/* that is claimed with its table */
		if (OidIsValid(item->part_of))
			continue;
		result = CLAIM_LATER;
		if (!room)
			break;
		if (anything_left && !is_being_put_back(shared, item))
			return i;
		if (!anything_left && item->turns == 0 && may_begin(shared, item))
			return i;
		if (item->turns > 0)
			*has_given = true;
	}
	return result;
}

/*
 * Claim the next item of the job, and set its status to running.  Return its
 * number, CLAIM_NONE if there is none, or CLAIM_LATER if the next one has to
 * wait for another runner.  Items that have given their turn come after the others;
 * is_free() says whether no other process has a lock that is in their way.  With anything_left,
 * claim any item that is still queued, for a runner that is going to give it up; but one that
 * another runner is putting back is left to that, or its "queued" could come last on record.
 * Else it is CLAIM_LATER while max_workers runners are at work; and CLAIM_NONE for a runner
 * that is one too many, and is to end.
 */
int
runner_claim(JobShared *shared, bool anything_left, RelationCheck is_free)
{
	int			result;
	bool		has_given;

	/* an item that is queued again, it leaves to the others */
	if (my_runner->rows_final)
		return CLAIM_NONE;
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_runner->nitems = 0;
	result = find_next(shared, anything_left, &has_given);
	if (result == CLAIM_LATER && has_given && !anything_left)
	{
		LWLockRelease(&area->lock);
		look_for_free(shared, shared->nitems, is_free);
		LWLockAcquire(&area->lock, LW_EXCLUSIVE);
		/* others have claimed and queued items meanwhile */
		result = find_next(shared, anything_left, &has_given);
	}
	if (result == CLAIM_LATER && has_given && !anything_left)
	{
		int			put_back = find_put_back(shared);

		if (put_back != CLAIM_NONE)
			result = put_back;
	}
	if (result >= 0)
	{
		shared->items[result].outcome.status = STATUS_RUNNING;
		(void) job_parts_follow(shared, result);
		my_runner->items[my_runner->nitems++] = result;
		my_runner->tight_space = shared->items[result].tight_space;
	}
	my_runner->gives_turn = false;
	if (result == CLAIM_LATER && !anything_left && is_too_many(shared))
	{
		leave_to_others(shared);
		result = CLAIM_NONE;
	}
	LWLockRelease(&area->lock);
	return result;
}

/* Return whether an item may be moved together with others. */
static bool
may_go_along(const JobShared *shared, const MoveItem *item)
{
	const JobTerms *terms = &shared->settings.terms;

	if (terms->rehearse || terms->freeze_first || item->method != METHOD_COPY)
		return false;
	if (!OidIsValid(item->parent) || item->turns > 0 || item->alone || item->tight_space ||
		item->owner_cancels)
		return false;
	if (another_has_table(shared, item, is_another))
		return false;
	return job_size_with_parts(shared, item - shared->items) <= TOGETHER_BYTES;
}

/* Return whether an item may be claimed, to be moved together with this one. */
static bool
goes_with(const JobShared *shared, const MoveItem *item, const MoveItem *first)
{
	if (item->parent != first->parent || item->relkind != first->relkind)
		return false;
	if (item->from_tablespace != first->from_tablespace ||
		item->to_tablespace != first->to_tablespace)
		return false;
	return is_untried(item) && may_go_along(shared, item) && may_begin(shared, item);
}

/*
 * together: claim more items, to be moved together with the one that is claimed: partitions of the
 * table to which its table belongs, or their indexes; so many, with their parts.  Sets claimed[]
 * to all of this runner; returns how many.
 */
int
runner_claim_more(JobShared *shared, int most, int claimed[IM_MOST_TOGETHER])
{
	int			n = my_runner->items[0];
	int			last = Min(n + TOGETHER_LOOKS, shared->nitems - 1);
	int			room = most - (job_last_part(shared, n) - n + 1);
	int64		bytes = ALL_TOGETHER_BYTES - job_size_with_parts(shared, n);

	Assert(my_runner->nitems == 1 && most <= IM_MOST_TOGETHER);
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	if (shared->parted >= MOST_PARTED || !may_go_along(shared, &shared->items[n]))
		last = n;
	for (int i = n + 1; i <= last; i++)
	{
		if (!goes_with(shared, &shared->items[i], &shared->items[n]))
			continue;
		room -= job_last_part(shared, i) - i + 1;
		bytes -= job_size_with_parts(shared, i);
		if (room < 0 || bytes < 0)
			break;
		shared->items[i].outcome.status = STATUS_RUNNING;
		(void) job_parts_follow(shared, i);
		my_runner->items[my_runner->nitems++] = i;
	}
	memcpy(claimed, my_runner->items, sizeof(my_runner->items));
	LWLockRelease(&area->lock);
	return my_runner->nitems;
}

/*
 * part: give up all items of this runner, which were to be moved together: each is moved alone.
 * They keep their places, unless they give their turn.  "Counts": neither a user's request nor a
 * lock of another session was the reason, which other relations need not meet.
 * The caller is to clean up, and to call runner_put_back().
 */
void
runner_part(JobShared *shared, bool counts)
{
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	for (int i = 0; i < my_runner->nitems; i++)
	{
		MoveItem   *item = &shared->items[my_runner->items[i]];

		item->alone = true;
		if (my_runner->gives_turn)
			item->turns = Max(item->turns, 1);
	}
	if (counts)
		shared->parted++;
	my_runner->gives_turn = true;
	LWLockRelease(&area->lock);
}

/*
 * Decide whether this runner gives up its item, which waits, for another relation of
 * the job that is ready: it may begin and, if it has given its turn before, is free now.
 * As many runners as there are such relations do so, less those that idle runners are about
 * to claim: they claim none while max_workers are at work.  And none does so while so many
 * others are, or will be with the idle ones.  If true, the caller is to clean
 * up, and to call runner_put_back().
 */
bool
runner_give_turn(JobShared *shared, MoveItem *item, RelationCheck is_free)
{
	int			room;
	int			idle;
	int			claimed;
	int			enough;

	if (my_runner == NULL)
		return false;
	Assert(item->outcome.status == STATUS_RUNNING && !my_runner->gives_turn);
	look_for_free(shared, FREE_LOOKS, is_free);
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	room = shared->settings.max_workers - count_runners(is_another_at_work);
	/* idle runners claim only so many, and leave room for this one */
	idle = Min(count_runners(is_idle), is_waiting(my_runner) ? room : room - 1);
	claimed = count_ready(shared, item, idle);
	if (claimed + count_runners(gives_turn) < room)
	{
		/* some may be ready only when this item is queued */
		enough = count_runners(gives_turn) + claimed + 1;

		/* count the items that could begin if this item were queued */
		item->outcome.status = STATUS_QUEUED;
		item->turns++;
		my_runner->gives_turn = count_ready(shared, item, enough) == enough;
		item->outcome.status = STATUS_RUNNING;
		if (!my_runner->gives_turn)
			item->turns--;
	}
	LWLockRelease(&area->lock);
	return my_runner->gives_turn;
}

/* Queue an item again, with its parts; other runners leave it alone until progress_end(). */
void
runner_put_back(JobShared *shared, int n)
{
	MoveItem   *item = &shared->items[n];

	Assert(my_runner->gives_turn && item->outcome.status == STATUS_RUNNING);
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	item->outcome.status = STATUS_QUEUED;
	item->outcome.started_at = 0;
	item->outcome.finished_at = 0;
	(void) job_parts_follow(shared, n);
	shared->first_queued = Min(shared->first_queued, n);
	shared->first_untried = Min(shared->first_untried, n);
	LWLockRelease(&area->lock);
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

	return my_job != NULL ? &my_job->flags : &none;
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
	if (my_job != NULL && !PostmasterIsAlive())
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();
	/* a transaction keeps the settings that it began with */
	if (my_job != NULL && ConfigReloadPending && !IsTransactionState())
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
	Assert(LWLockHeldByMe(&area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &area->runners[i];

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

	area = job_area();
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	is_second = another_steps_back(seen);
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		RunnerSlot *runner = &area->runners[i];

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
		}
	}
	LWLockRelease(&area->lock);
	return helps;
}

/* Forget a request to step back, once the relation has moved, and its phase says so. */
void
runner_forget_step_back(void)
{
	if (my_runner == NULL)
		return;
	Assert(has_swapped(my_runner));
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	my_runner->step_back_for = 0;
	LWLockRelease(&area->lock);
}

/* Return whether to step back; for a signal handler, so without a lock. */
bool
runner_must_step_back(void)
{
	return (my_runner != NULL && my_runner->step_back_for != 0) || owner_has_canceled();
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
	LWLockAcquire(&area->lock, LW_EXCLUSIVE);
	blocker = my_runner->step_back_for;
	/* the handling of the error may have to wait, too */
	my_runner->step_back_for = 0;
	LWLockRelease(&area->lock);

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
