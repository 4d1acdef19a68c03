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
 *	free	nobody does: ask, without queueing
 *	turn	after a rest, whoever holds it: ask, and queue for lock_timeout
 *	stay	but not behind a reader of the whole table, or VACUUM
 *	rest	how long to rest between two turns
 *
 * Assumption: nothing that conflicts with AccessExclusiveLock is asked for while another
 * lock of the same kind is held, except without queueing.  The caller sees to that.
 *
 * Locks: none of its own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"

#include "test_points.h"
#include "wait/wait.h"

/* Looks before the first turn, and rests between them */
#define FIRST_LOOKS			5
#define FIRST_LOOKS_MS		20
/* Rest between two looks from then on */
#define LOOK_AGAIN_MS		150

/* Rest between two turns: longer by so much each time, up to a second */
#define REST_STEP_MS		100
#define REST_MS				1000
/* While a holder stays, this part of its age; after lock_wait the longest rest */
#define REST_PART_OF_AGE	20
#define LONGEST_REST_MS		20000
/* A rest is longer or shorter by up to this part, at random */
#define REST_JITTER			0.2

/* A session that has held a table for so long, and none of its indexes, reads the whole table */
#define READER_US			(10 * USECS_PER_SEC)

void
attempts_begin(Attempts *attempts, const MoveContext *mc, Oid relid)
{
	memset(attempts, 0, sizeof(Attempts));
	attempts->limits.phase = PHASE_WAIT_SWAP_LOCK;
	attempts->limits.max_ms = LOCK_WAIT;
	attempts->limits.mc = mc;
	attempts->turn_ended = GetCurrentTimestamp();
	wait_begin(&attempts->wait, NULL, &attempts->limits);
	attempts->wait.relid = relid;
	/* a session that waits for us is given way to, or must not be waited for */
	attempts->wait.ignore_deadlocks = mc->settings->give_way;
}

/* rest: return the milliseconds from the end of a turn to the next one. */
static int64
rest_ms(const Attempts *attempts)
{
	const Wait *wait = &attempts->wait;
	int64		ms;

	if (attempts->turns == 0)
		return attempts->hurry ? 0 : IM_LIMIT("looks", FIRST_LOOKS) * FIRST_LOOKS_MS;
	/* from then on it may go on without end: others must hardly notice */
	if (wait_is_over(wait))
		return LONGEST_REST_MS;

	ms = Min(attempts->turns * REST_STEP_MS, REST_MS);
	if (wait->nholders > 0)
	{
		int64		age_ms = (GetCurrentTimestamp() - wait->holders[0].since) / 1000;

		ms = Max(ms, Min(age_ms / REST_PART_OF_AGE, LONGEST_REST_MS));
	}
	/* a fixed rest could keep step with transactions of a fixed length */
	return (int64) (ms * attempts->jitter);
}

/* Return the milliseconds to the next turn; not above 0: it is due. */
static int64
next_turn_ms(const Attempts *attempts)
{
	return rest_ms(attempts) - (GetCurrentTimestamp() - attempts->turn_ended) / 1000;
}

/* turn: return whether it is time to ask for the lock, whoever holds it. */
bool
attempts_turn_is_due(const Attempts *attempts)
{
	return next_turn_ms(attempts) <= 0;
}

/* Note the end of a turn, with an attempt or, if attempts_may_queue() forbids it, without. */
void
attempts_end_turn(Attempts *attempts)
{
	attempts->turns++;
	attempts->turn_ended = GetCurrentTimestamp();
	attempts->jitter = 1 - REST_JITTER + 2 * REST_JITTER * pg_prng_double(&pg_global_prng_state);
}

/* Return how long to rest before the next look. */
int
attempts_nap_ms(const Attempts *attempts)
{
	int64		look_ms = attempts->turns == 0 ? FIRST_LOOKS_MS : LOOK_AGAIN_MS;

	return (int) Max(Min(look_ms, next_turn_ms(attempts)), FIRST_LOOKS_MS);
}

/* Return whether a holder runs VACUUM, which keeps its locks to its end. */
static bool
is_vacuum(VirtualTransactionId vxid)
{
	PGPROC	   *proc = im_vxid_proc(vxid);

	return proc != NULL && PROC_LXID(proc) == vxid.localTransactionId &&
		(proc->statusFlags & (PROC_IN_VACUUM | PROC_IS_AUTOVACUUM)) != 0;
}

/* Return whether a command has one of the words with which a reader takes a whole table. */
static bool
takes_whole_table(const char *command)
{
	for (const char *p = command; *p != '\0'; p++)
	{
		if (pg_strncasecmp(p, "copy ", 5) == 0 || pg_strncasecmp(p, "lock table ", 11) == 0)
			return true;
	}
	return false;
}

/* Return whether a holder says, by its name or its command, that it reads the whole table. */
static bool
says_reader(const Holder *holder)
{
	int			pid = virtual_transaction_pid(holder->vxid);
	const PgBackendStatus *status = pid > 0 ? blockers_find(pid) : NULL;

	return status != NULL && (strncmp(status->st_appname, "pg_dump", 7) == 0 ||
							  takes_whole_table(status->st_activity_raw));
}

/*
 * stay: return whether none of the holders has to be waited for without queueing: VACUUM
 * and, of this table (0: of an index), readers of the whole table by design, as pg_dump.
 * Its other processes ask with NOWAIT, and would fail if we stood in the queue.
 *
 * Such a reader holds none of the table's indexes, which a query's planner locks.  But a
 * plan that was made before locks none either, so a reader has to say so, or to stay.
 *
 * To be called outside of transactions; it has one of its own, for the catalog.
 */
bool
attempts_may_queue(Attempts *attempts, Oid table)
{
	const Wait *wait = &attempts->wait;
	VirtualTransactionId *holders = NULL;
	VirtualTransactionId *users = NULL;
	int			nholders = 0;
	int			nusers = 0;
	List	   *indexes;

	Assert(!IsTransactionState());
	attempts->barred = false;
	for (int i = 0; i < wait->nholders; i++)
	{
		if (is_vacuum(wait->holders[i].vxid))
			attempts->barred = true;
	}
	if (attempts->barred || !OidIsValid(table) || wait->nholders == 0)
		return !attempts->barred;

	StartTransactionCommand();
	holders = relation_lock_holders(table, AccessExclusiveLock, &nholders);
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
		bool		stays = indexes != NIL && GetCurrentTimestamp() - holder->since > READER_US;

		if (virtual_transactions_have(holders, nholders, holder->vxid) &&
			!virtual_transactions_have(users, nusers, holder->vxid) &&
			(stays || says_reader(holder)))
			attempts->barred = true;
	}
	CommitTransactionCommand();
	return !attempts->barred;
}
