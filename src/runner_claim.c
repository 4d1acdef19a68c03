/*-------------------------------------------------------------------------
 *
 * runner_claim.c
 *	  Which item of the job a runner works on next, and with how many others.
 *
 * A runner claims items, gives them up for others that are ready, and queues them again.  It has
 * more runners started where the job lacks some.
 *
 * Locks: the area's lock, for moments; not while it asks whether relations are free.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "compat.h"
#include "runner_private.h"
#include "test_points.h"

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

/* Conditions for runner_count() */

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
	return runner_is_another(runner) && has_relation(runner) && !is_waiting(runner);
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
	Assert(LWLockHeldByMe(&runner_area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &runner_area->runners[i];

		if (runner_is_ours(runner) && runner != runner_mine && is_meant(runner) &&
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
	Assert(LWLockHeldByMe(&runner_area->lock));
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &runner_area->runners[i];

		for (int j = 0; j < runner->nitems && runner_is_ours(runner); j++)
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

	Assert(!LWLockHeldByMe(&runner_area->lock));
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

	Assert(LWLockHeldByMeInMode(&runner_area->lock, LW_EXCLUSIVE));
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

	Assert(LWLockHeldByMe(&runner_area->lock));
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

	if (runner_mine == NULL)
		return false;
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	number = free_number(shared);
	may_start = !shared->starting && number < shared->max_runners;
	if (may_start)
	{
		shared->starting = true;
		/* it may have come, and left again, before we go on */
		shared->numbers |= UINT32_C(1) << number;
	}
	LWLockRelease(&runner_area->lock);
	if (!may_start)
		return false;

	if (job_more_runners(runner_mine->slot))
		started = job_register_runner(runner_mine->slot, shared->job, number, 0) != NULL;
	if (!started)
		runner_leave_number(shared, number);
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	shared->starting = false;
	LWLockRelease(&runner_area->lock);
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

	if (runner_mine == NULL || !clock_has_passed(looked_at, MAKE_UP_MS))
		return;
	looked_at = clock_seconds();
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	wanted = !runner_my_shared->starting &&
		!runner_my_job->flags.pause && !runner_my_job->flags.cancel &&
		runner_my_job->runners < Min(runner_my_shared->max_runners,
									 runner_my_shared->settings.max_workers);
	if (wanted)
		wanted = count_ready(runner_my_shared, NULL, 1) > 0;
	LWLockRelease(&runner_area->lock);
	if (wanted)
		(void) runner_start_another(runner_my_shared);
}

/* Return whether there may be one more runner, since others only wait for locks. */
static bool
has_room(const JobShared *shared)
{
	return !shared->starting && free_number(shared) < shared->max_runners &&
		runner_my_job->runners - runner_count(is_waiting) < shared->settings.max_workers;
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

	if (runner_mine == NULL || shared->settings.max_workers == 1 || item->tight_space)
		return;
	LWLockAcquire(&runner_area->lock, LW_SHARED);
	wanted = has_room(shared);
	LWLockRelease(&runner_area->lock);
	if (!wanted)
		return;
	look_for_free(shared, FREE_LOOKS, is_free);
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	wanted = has_room(shared);
	if (wanted)
		wanted = count_ready(shared, item, 1) > 0;
	LWLockRelease(&runner_area->lock);
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
	return shared->caller_pid == 0 && runner_count(is_waiting) == 0 &&
		runner_count(runner_is_another_unfinished) >= shared->settings.max_workers;
}

/* Leave our number, and the job if it is known by our process, to other runners. */
static void
leave_to_others(JobShared *shared)
{
	runner_mine->rows_final = true;
	shared->numbers &= ~(UINT32_C(1) << runner_mine->number);
	if (runner_my_job->runner_pid != MyProcPid)
		return;
	for (int i = 0; i < IM_MAX_RUNNERS; i++)
	{
		const RunnerSlot *runner = &runner_area->runners[i];

		if (runner_is_ours(runner) && runner_is_another_unfinished(runner))
			runner_my_job->runner_pid = runner->pid;
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
		runner_count(is_another_at_work) < shared->settings.max_workers;
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
	if (runner_mine->rows_final)
		return CLAIM_NONE;
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	runner_mine->nitems = 0;
	result = find_next(shared, anything_left, &has_given);
	if (result == CLAIM_LATER && has_given && !anything_left)
	{
		LWLockRelease(&runner_area->lock);
		look_for_free(shared, shared->nitems, is_free);
		LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
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
		runner_mine->items[runner_mine->nitems++] = result;
		runner_mine->tight_space = shared->items[result].tight_space;
	}
	runner_mine->gives_turn = false;
	if (result == CLAIM_LATER && !anything_left && is_too_many(shared))
	{
		leave_to_others(shared);
		result = CLAIM_NONE;
	}
	LWLockRelease(&runner_area->lock);
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
	if (another_has_table(shared, item, runner_is_another))
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
	int			n = runner_mine->items[0];
	int			last = Min(n + TOGETHER_LOOKS, shared->nitems - 1);
	int			room = most - (job_last_part(shared, n) - n + 1);
	int64		bytes = ALL_TOGETHER_BYTES - job_size_with_parts(shared, n);

	Assert(runner_mine->nitems == 1 && most <= IM_MOST_TOGETHER);
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
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
		runner_mine->items[runner_mine->nitems++] = i;
	}
	memcpy(claimed, runner_mine->items, sizeof(runner_mine->items));
	LWLockRelease(&runner_area->lock);
	return runner_mine->nitems;
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
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	for (int i = 0; i < runner_mine->nitems; i++)
	{
		MoveItem   *item = &shared->items[runner_mine->items[i]];

		item->alone = true;
		if (runner_mine->gives_turn)
			item->turns = Max(item->turns, 1);
	}
	if (counts)
		shared->parted++;
	runner_mine->gives_turn = true;
	LWLockRelease(&runner_area->lock);
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

	if (runner_mine == NULL)
		return false;
	Assert(item->outcome.status == STATUS_RUNNING && !runner_mine->gives_turn);
	look_for_free(shared, FREE_LOOKS, is_free);
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	room = shared->settings.max_workers - runner_count(is_another_at_work);
	/* idle runners claim only so many, and leave room for this one */
	idle = Min(runner_count(is_idle), is_waiting(runner_mine) ? room : room - 1);
	claimed = count_ready(shared, item, idle);
	if (claimed + runner_count(gives_turn) < room)
	{
		/* some may be ready only when this item is queued */
		enough = runner_count(gives_turn) + claimed + 1;

		/* count the items that could begin if this item were queued */
		item->outcome.status = STATUS_QUEUED;
		item->turns++;
		runner_mine->gives_turn = count_ready(shared, item, enough) == enough;
		item->outcome.status = STATUS_RUNNING;
		if (!runner_mine->gives_turn)
			item->turns--;
	}
	LWLockRelease(&runner_area->lock);
	return runner_mine->gives_turn;
}

/* Queue an item again, with its parts; other runners leave it alone until progress_end(). */
void
runner_put_back(JobShared *shared, int n)
{
	MoveItem   *item = &shared->items[n];

	Assert(runner_mine->gives_turn && item->outcome.status == STATUS_RUNNING);
	LWLockAcquire(&runner_area->lock, LW_EXCLUSIVE);
	item->outcome.status = STATUS_QUEUED;
	item->outcome.started_at = 0;
	item->outcome.finished_at = 0;
	(void) job_parts_follow(shared, n);
	shared->first_queued = Min(shared->first_queued, n);
	shared->first_untried = Min(shared->first_untried, n);
	LWLockRelease(&runner_area->lock);
}
