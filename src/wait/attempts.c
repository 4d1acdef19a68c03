/*-------------------------------------------------------------------------
 *
 * attempts.c
 *	  When to ask for an exclusive lock that others hold, and when to queue for it.
 *
 * All sessions that want the relation stand behind an AccessExclusiveLock that waits.
 * src/README, "Protocol of the swap", has the rules, and why there are no others.  Their
 * names, in the comments of the functions that keep them, here and in copy_swap.c:
 *
 *	look	see who holds the lock, without queueing
 *	free	no session does: ask, without queueing
 *	bid		after a rest, whoever holds it: ask, and queue for lock_timeout
 *	line	but behind sessions that wait, first queue where neither readers nor writers wait
 *	stay	but not behind pg_dump, or whoever reads as it does, or VACUUM
 *	rest	how long to rest between two bids
 *	aim		a bid may come sooner, when the transactions behind us should end
 *	window	the bids of a job's runners end together
 *	join	and so a runner may make its bid sooner
 *	alone	a bid behind which no session has waited comes again soon
 *
 * Assumption: nothing that conflicts with AccessExclusiveLock is asked for while another
 * lock of the same kind is held, except without queueing.  The caller sees to that.  ("Line" holds
 * one, and gives it up before the bid queues.)
 *
 * Locks: none of its own.
 *
 * proof/swap.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "storage/lmgr.h"
#include "utils/guc.h"

#include "own_tables.h"
#include "test_points.h"
#include "wait/wait.h"

/* Rest between two looks; longer when the wait has lasted */
#define LOOK_MS				20
#define LATER_LOOK_MS		150
#define LATER_MS			60000

/* Looks before the first bid */
#define FIRST_LOOKS			5

/* Rest between two bids: at first, then doubled up to a second */
#define FIRST_REST_MS		100
#define REST_MS				1000
/* While a holder stays, this part of its age; after lock_wait the longest rest */
#define REST_PART_OF_AGE	20
#define LONGEST_REST_MS		20000
/* A rest is longer by up to this part, at random */
#define REST_JITTER			0.2

/* The same while no session has waited behind a bid */
#define ALONE_REST_MS		20
#define ALONE_JITTER		1

/* Once a session has waited behind a bid, none is joined so soon after the last one */
#define JOIN_REST_US		(250 * INT64CONST(1000))

/* Who has held a table for so long, and neither an index nor a lock of writers, reads all of it */
#define READER_US			(10 * USECS_PER_SEC)
/* The name pg_dump counts at once for this part of the wait, then from this age of a holder on */
#define NAME_WAIT_US		(3 * USECS_PER_SEC)
#define NAME_US				USECS_PER_SEC

/*
 * A bid stands in line no longer, unless lock_timeout is more.  The detector of deadlocks must not
 * end a transaction that waits for our session locks while we wait for its lock.
 */
#define LINE_MS				(Min(QUEUE_PIECE_MS, DeadlockTimeout) / 2)

void
attempts_begin(Attempts *attempts, const MoveContext *mc, Oid relid)
{
	memset(attempts, 0, sizeof(Attempts));
	attempts->limits.phase = PHASE_WAIT_SWAP_LOCK;
	attempts->limits.max_ms = LOCK_WAIT;
	attempts->limits.mc = mc;
	attempts->bid_ended = clock_us();
	wait_begin(&attempts->wait, NULL, &attempts->limits);
	attempts->wait.relid = relid;
	/* a copy gives way to a session that waits for it */
	attempts->wait.ignore_deadlocks = true;
}

/* Return whether a holder is there for longer than any rest between two bids but for its age. */
static bool
holder_stays(const Wait *wait)
{
	return wait->nholders > 0 &&
		clock_us() - wait->holders[0].since >= REST_MS * INT64CONST(1000);
}

/* rest: return the milliseconds from the end of a bid to the next. */
static int64
rest_ms(const Attempts *attempts)
{
	const Wait *wait = &attempts->wait;
	int64		ms = REST_MS;
	double		jitter = REST_JITTER;

	if (attempts->bids == 0)
		return attempts->hurry ? 0 : IM_LIMIT("looks", FIRST_LOOKS) * LOOK_MS;
	/* from then on it may go on without end: others must hardly notice */
	/* step: rest */
	if (wait_is_over(wait))
		return LONGEST_REST_MS;

	/*
	 * alone: no bid has cost any session anything; the next may meet the end
	 * of a transaction
	 */
	if (attempts->delays == 0 && !holder_stays(wait))
	{
		ms = ALONE_REST_MS;
		jitter = ALONE_JITTER;
	}
	else if (attempts->delays < 8)
		ms = Min(FIRST_REST_MS << Max(attempts->delays - 1, 0), REST_MS);
	if (wait->nholders > 0)
	{
		int64		age_ms = (clock_us() - wait->holders[0].since) / 1000;

		ms = Max(ms, Min(age_ms / REST_PART_OF_AGE, LONGEST_REST_MS));
	}
	/* a fixed rest could keep step with transactions of a fixed length */
	return (int64) (ms * (1 + jitter * attempts->chance));
}

/* Return the milliseconds to the next bid; not above 0: it is due. */
static int64
next_bid_ms(const Attempts *attempts)
{
	return rest_ms(attempts) - (clock_us() - attempts->bid_ended) / 1000;
}

/*
 * aim: return whether all holders, or all that the last bid has delayed, should end while
 * we queue, if they take as long as the last one that has ended.  Transactions of one length
 * that follow each other end together by and by: a bid delays all that end in it, so they
 * begin together, and the next one delays them again, with others that end a little later.
 */
static bool
holders_should_end(const Attempts *attempts)
{
	const Wait *wait = &attempts->wait;
	int64		half = attempts->limits.mc->settings->lock_timeout * INT64CONST(1000) / 2;
	int64		now = clock_us();
	bool		all = true;
	bool		delayed = true;
	int			ndelayed = 0;

	if (attempts->bids == 0 || wait->nholders == 0 || wait->lasted == 0 ||
		now - attempts->bid_ended < FIRST_REST_MS * 1000 ||
		now - wait->holders[0].since > wait->lasted + half || wait_is_over(wait))
		return false;
	for (int i = 0; i < wait->nholders; i++)
	{
		int64		since = wait->holders[i].since;
		int64		left = since + wait->lasted - now;
		bool		ends = left <= half && left >= -half;

		all = all && ends;
		if (virtual_transactions_have(attempts->delayed, attempts->ndelayed, wait->holders[i].vxid))
		{
			ndelayed++;
			delayed = delayed && ends;
		}
	}
	return all || (ndelayed > 0 && delayed);
}

/*
 * join: return whether another runner of the job has begun a bid since our last one, which is not
 * so near.  When a query of all partitions of a table ends, all that queue by then get their
 * locks.
 */
static bool
joins_bid(const Attempts *attempts, int64 began)
{
	if (began <= attempts->bid_ended)
		return false;
	if (attempts->delays > 0 && clock_us() - attempts->bid_ended < JOIN_REST_US)
		return false;
	return rest_ms(attempts) <= REST_MS * (1 + REST_JITTER);
}

/* bid: return whether it is time to ask for the lock, whoever holds it. */
bool
attempts_bid_is_due(const Attempts *attempts)
{
	/* step: bid */
	if (next_bid_ms(attempts) <= 0)
		return true;
	if (holders_should_end(attempts))
		return true;
	return joins_bid(attempts, runner_bid_began(attempts->limits.mc->settings->lock_timeout));
}

/*
 * Note who holds the lock now and did not before we queued for it: these have waited behind us.
 * An end of our wait has granted them their locks, if they can have them.
 */
static void
note_delayed(Attempts *attempts)
{
	int			count;
	VirtualTransactionId *holders = relation_lock_holders(attempts->queued_for, AccessExclusiveLock,
														  &count);

	for (int i = 0; i < count && attempts->ndelayed < WAIT_MAX_PIDS; i++)
	{
		if (!virtual_transactions_have(attempts->before, attempts->nbefore, holders[i]) &&
			!virtual_transactions_have(attempts->delayed, attempts->ndelayed, holders[i]))
			attempts->delayed[attempts->ndelayed++] = holders[i];
	}
	pfree(holders);
}

/* Note the end of a bid, with an attempt or, if attempts_note_barred() forbids it, without. */
void
attempts_end_bid(Attempts *attempts)
{
	if (!OidIsValid(attempts->queued_for))
		attempts->ndelayed = 0;
	else if (attempts->granted)
		note_delayed(attempts);
	attempts->queued_for = InvalidOid;
	if (attempts->ndelayed > 0 || holder_stays(&attempts->wait))
		attempts->delays++;
	attempts->bids++;
	attempts->bid_ended = clock_us();
	attempts->chance = pg_prng_double(&pg_global_prng_state);
}

/* Return how long to rest before the next look, which is no later than the next bid. */
int
attempts_nap_ms(const Attempts *attempts)
{
	int64		waited_ms = (clock_us() - attempts->limits.since) / 1000;
	int64		ms = waited_ms < LATER_MS ? LOOK_MS : LATER_LOOK_MS;
	int64		bid_ms = next_bid_ms(attempts);

	return bid_ms > 0 ? Min(ms, bid_ms) : ms;
}

/* Return whether a holder runs VACUUM, which keeps its locks to its end. */
static bool
is_vacuum(VirtualTransactionId vxid)
{
	PGPROC	   *proc = im_vxid_proc(vxid);

	return proc != NULL && PROC_LXID(proc) == vxid.localTransactionId &&
		(proc->statusFlags & (PROC_IN_VACUUM | PROC_IS_AUTOVACUUM)) != 0;
}

/* Return whether a holder says by its name that it is pg_dump. */
static bool
is_pg_dump(VirtualTransactionId vxid)
{
	int			pid = virtual_transaction_pid(vxid);
	const PgBackendStatus *status = pid > 0 ? blockers_find(pid) : NULL;

	return status != NULL && strncmp(status->st_appname, "pg_dump", 7) == 0;
}

/*
 * stay: note in "barred" whether a holder has to be waited for without queueing: VACUUM
 * and, of this table (0: of an index), readers of the whole table by design, as pg_dump.
 * Its other processes ask with NOWAIT, and would fail if we stood in the queue.
 *
 * Such a reader holds no lock of writers, as COPY .. FROM does, and none on the table's indexes,
 * which a query's planner locks.  But COPY .. TO of a moment, or a plan that was made before,
 * locks none of these either, and such transactions follow each other: so a reader has to stay,
 * unless it has the name.  Sessions of that name can follow each other, too: so after a while
 * each of them has to stay for a second.
 *
 * To be called outside of transactions; it has one of its own, for the catalog.
 */
void
attempts_note_barred(Attempts *attempts, Oid table)
{
	const Wait *wait = &attempts->wait;
	VirtualTransactionId *holders = NULL;
	VirtualTransactionId *users;
	int			nholders = 0;
	int			nusers;
	List	   *indexes;
	int64		now = clock_us();
	int64		name_us = now - attempts->limits.since < NAME_WAIT_US ? 0 : NAME_US;

	Assert(!IsTransactionState());
	/* step: stay */
	attempts->barred = false;
	for (int i = 0; i < wait->nholders; i++)
	{
		if (is_vacuum(wait->holders[i].vxid))
			attempts->barred = true;
	}
	if (attempts->barred || !OidIsValid(table) || wait->nholders == 0)
		return;

	StartTransactionCommand();
	holders = relation_lock_holders(table, AccessExclusiveLock, &nholders);
	users = relation_lock_holders(table, ShareLock, &nusers);
	indexes = indexes_of_table(table);
	foreach_oid(index, indexes)
	{
		int			count;
		VirtualTransactionId *more = relation_lock_holders(index, AccessExclusiveLock, &count);

		users = virtual_transactions_add(users, &nusers, more, count);
	}
	for (int i = 0; i < wait->nholders; i++)
	{
		const Holder *holder = &wait->holders[i];
		int64		age = now - holder->since;
		bool		stays = indexes != NIL && age > READER_US;

		if (virtual_transactions_have(holders, nholders, holder->vxid) &&
			!virtual_transactions_have(users, nusers, holder->vxid) &&
			(stays || (age >= name_us && is_pg_dump(holder->vxid))))
			attempts->barred = true;
	}
	CommitTransactionCommand();
}

/* stay: return whether a pg_dump has held a relation during the whole of a piece of a bid. */
static bool
pg_dump_has_stayed(const Attempts *attempts, Oid relid)
{
	bool		stayed = false;
	int			count;
	VirtualTransactionId *holders = relation_lock_holders(relid, AccessExclusiveLock, &count);

	for (int i = 0; i < count; i++)
	{
		if (virtual_transactions_have(attempts->before, attempts->nbefore, holders[i]) &&
			is_pg_dump(holders[i]))
			stayed = true;
	}
	pfree(holders);
	return stayed;
}

/*
 * Queue for a lock, of a bid or (attempts is NULL) of another kind, for timeout_ms in all, in
 * pieces of a second: in the queue we cannot see a pause, nor read WAL.  Between two pieces
 * keep_up() does the latter.  Others pass there, so a long timeout is several bids.
 */
static bool
queue(Attempts *attempts, Oid relid, LOCKMODE mode, int timeout_ms, instr_time *granted_at)
{
	/* step: queue */
	for (int left = timeout_ms; !job_pause_requested(); left -= QUEUE_PIECE_MS)
	{
		if (attempts != NULL)
		{
			int			count;
			VirtualTransactionId *holders = relation_lock_holders(relid, mode, &count);

			attempts->nbefore = Min(count, WAIT_MAX_PIDS);
			memcpy(attempts->before, holders, attempts->nbefore * sizeof(VirtualTransactionId));
		}
		if (lock_relation_within(relid, mode, Min(QUEUE_PIECE_MS, left), granted_at))
			return true;
		if (attempts != NULL)
			note_delayed(attempts);
		if (left <= QUEUE_PIECE_MS)
			return false;
		/* it can have been too young for attempts_note_barred() */
		if (attempts != NULL && pg_dump_has_stayed(attempts, relid))
			return false;
		if (attempts != NULL && attempts->keep_up != NULL)
		{
			if (!attempts->keep_up(attempts->keep_up_arg))
				return false;
		}
		IM_POINT("swap-queue-again");
	}
	return false;
}

/*
 * The catalogs whose rows are changed under the exclusive lock, and the others from which core may
 * have to build a relcache entry then: see utils/cache/relcache.c, of each version.
 */
static const Oid swap_catalogs[] = {
	AccessMethodRelationId, AccessMethodProcedureRelationId, AttrDefaultRelationId,
	AttributeRelationId, ConstraintRelationId, ExtensionRelationId, IndexRelationId,
	InheritsRelationId, NamespaceRelationId, OperatorClassRelationId, PolicyRelationId,
	ProcedureRelationId, RelationRelationId, RewriteRelationId, TriggerRelationId,
	TypeRelationId,
};

/*
 * Prepare a transaction for an attempt, so that under the exclusive lock it waits for no session
 * without limit, nor for a standby: lock the catalogs, and one more that it changes.  Return false
 * if a lock cannot be had within lock_timeout, or the job is paused.
 */
bool
attempts_prepare(const MoveSettings *settings, Oid catalog)
{
	int			timeout_ms = settings->lock_timeout;
	char		timeout[32];

	Assert(IsTransactionState());
	commit_locally();
	snprintf(timeout, sizeof(timeout), "%dms", timeout_ms);
	(void) set_config_option("lock_timeout", timeout, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	for (int i = 0; i < lengthof(swap_catalogs); i++)
	{
		if (!queue(NULL, swap_catalogs[i], RowExclusiveLock, timeout_ms, NULL))
			return false;
	}
	return queue(NULL, catalog, RowExclusiveLock, timeout_ms, NULL);
}

/*
 * line: lock a relation as VACUUM does, until ask_from_line().  Sessions that exclude each other,
 * as by LOCK TABLE .. IN EXCLUSIVE MODE, wait in the queue one after the other, and so stand ahead
 * of a bid for longer than lock_timeout.  Whoever comes behind us here waits for these sessions
 * anyway; readers and writers wait for none of us.  Return false if it was in vain.
 */
static bool
stand_in_line(Oid relid, int lock_timeout)
{
	int			timeout_ms = Max(Min(lock_timeout, QUEUE_PIECE_MS), LINE_MS);

	/* the WAL is not read meanwhile: no longer than a piece of a bid */
	return lock_relation_within(relid, ShareUpdateExclusiveLock, timeout_ms, NULL);
}

/*
 * Ask for the lock of a bid once we have stood in line, and give that lock up.  While we hold it,
 * core puts us ahead of the sessions that came behind us (ProcSleep() in storage/lmgr/proc.c).  But
 * we must not queue with it.  A holder that asks for more, as CREATE INDEX after INSERT, would get
 * the ERROR of a deadlock at once.  So holders are waited for without it.
 */
static bool
ask_from_line(Attempts *attempts, Oid relid, instr_time *granted_at)
{
	bool		granted = false;
	int			count;

	pfree(relation_lock_holders(relid, AccessExclusiveLock, &count));
	attempts->nbefore = 0;
	/* before 17 core does not put us ahead if we ask without queueing */
	if (count == 0)
		granted = lock_relation_within(relid, AccessExclusiveLock, 1, granted_at);
	UnlockRelationOid(relid, ShareUpdateExclusiveLock);
	return granted;
}

/*
 * Lock a relation in AccessExclusiveLock until the end of the transaction, queueing until the
 * window of the job's bids ends.  Return false, with nothing changed, if the lock was not granted
 * in that time, the job is paused or keep_up() returns false.  *granted_at: as
 * lock_relation_within().
 */
bool
attempts_queue_for_bid(Attempts *attempts, Oid relid, instr_time *granted_at)
{
	int			lock_timeout = attempts->limits.mc->settings->lock_timeout;
	bool		others_wait;
	bool		in_time = true;
	int			pid;
	int			ms;

	attempts->granted = false;
	attempts->ndelayed = 0;
	attempts->queued_for = relid;
	others_wait = relation_lock_waiters(relid, AccessExclusiveLock, &pid, 1) > 0;
	if (others_wait)
		in_time = stand_in_line(relid, lock_timeout);
	if (!in_time)
	{
		/* sessions can have waited behind us there: it was not alone */
		attempts->delays++;
		return false;
	}
	ms = runner_begin_bid(lock_timeout);
	if (others_wait)
		attempts->granted = ask_from_line(attempts, relid, granted_at);
	if (!attempts->granted)
		attempts->granted = queue(attempts, relid, AccessExclusiveLock, ms, granted_at);
	if (!attempts->granted)
		ereport(DEBUG1,
				(errmsg_internal("index_mover has queued for the exclusive lock on relation %u for %d ms in vain, and %d have waited behind it",
								 relid, ms, attempts->ndelayed)));
	return attempts->granted;
}
