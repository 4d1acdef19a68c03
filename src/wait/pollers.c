/*-------------------------------------------------------------------------
 *
 * pollers.c
 *	  Sessions that wait for ours by looking at it again and again.
 *
 * When a program that polls is taken to wait for us, and why, is in
 * src/README, "The two processes".  Of two sessions, the one that holds the lock
 * must have been idle in transaction since a moment after our transaction began: a
 * list made before does not have us.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/formatting.h"

#include "wait/wait.h"

/* A session polls that has executed so often, at most this far apart */
#define EXECUTIONS		5
#define SHORTEST_GAP_MS	500
#define LONGEST_GAP_MS	15000

/* The connections of a program are made within this time. */
#define CONNECTING_MS	2000

/* A session that may be polling. */
typedef struct Poller
{
	int			pid;
	TimestampTz execution;		/* the start of the last that was counted */
	double		seen_at;		/* by clock_seconds() */
	int			executions;
} Poller;

#define MAX_POLLERS		64

static Poller pollers[MAX_POLLERS];

/* Return whether a query reads a view or a function of other transactions. */
static bool
reads_transactions(const char *query)
{
	static const char *const sources[] = {
		"pg_locks", "pg_lock_status", "pg_blocking_pids", "pg_stat_activity",
		"pg_stat_get_activity", "pg_stat_get_backend", "snapshot_xmin"
	};
	char	   *lower = asc_tolower(query, strlen(query));

	for (int i = 0; i < lengthof(sources); i++)
	{
		if (strstr(lower, sources[i]) != NULL)
			return true;
	}
	return false;
}

/* Count the last execution of a session.  Return whether it polls. */
static bool
count_execution(const PgBackendStatus *session)
{
	Poller	   *poller = &pollers[0];

	if (!reads_transactions(session->st_activity_raw))
		return false;

	/* its own entry, or the oldest */
	for (int i = 0; i < MAX_POLLERS && poller->pid != session->st_procpid; i++)
	{
		if (pollers[i].pid == session->st_procpid || pollers[i].seen_at < poller->seen_at)
			poller = &pollers[i];
	}
	if (poller->pid != session->st_procpid ||
		clock_has_passed(poller->seen_at, LONGEST_GAP_MS))
	{
		memset(poller, 0, sizeof(Poller));
		poller->pid = session->st_procpid;
	}

	/* a query that goes on and on may be a loop */
	if (poller->execution != session->st_activity_start_timestamp ||
		(session->st_state == STATE_RUNNING &&
		 clock_has_passed(poller->seen_at, SHORTEST_GAP_MS)))
	{
		poller->execution = session->st_activity_start_timestamp;
		poller->seen_at = clock_seconds();
		poller->executions++;
	}
	return poller->executions >= EXECUTIONS;
}

static bool
is_one_program(const PgBackendStatus *a, const PgBackendStatus *b)
{
	return a->st_userid == b->st_userid &&
		strcmp(a->st_appname, b->st_appname) == 0 &&
		!TimestampDifferenceExceeds(Min(a->st_proc_start_timestamp, b->st_proc_start_timestamp),
									Max(a->st_proc_start_timestamp, b->st_proc_start_timestamp),
									CONNECTING_MS);
}

/*
 * Find out whether a process that holds a lock that our job waits for seems to wait
 * for this session, and tell if so.  To be called about once a second, since it counts
 * executions.
 */
bool
poller_find_wait(int pid)
{
	TimestampTz since = MyBEEntry->st_xact_start_timestamp;
	const PgBackendStatus *holder = blockers_find(pid);
	const PgBackendStatus *found = NULL;
	int			n = pgstat_fetch_stat_numbackends();
	bool		polls;

	/* wait_for_job() shows no transaction */
	if (since == 0)
		since = MyBEEntry->st_activity_start_timestamp;
	if (holder == NULL)
		return false;
	polls = count_execution(holder);
	if (polls)
		found = holder;
	else if (holder->st_state == STATE_IDLEINTRANSACTION &&
			 holder->st_state_start_timestamp >= since)
	{
		for (int i = 1; i <= n; i++)
		{
			const PgBackendStatus *other = &pgstat_get_local_beentry_by_index(i)->backendStatus;

			if (other == holder || other->st_procpid == MyProcPid || !is_one_program(holder, other))
				continue;
			polls = count_execution(other);
			if (polls)
				found = other;
		}
	}
	if (found != NULL)
		ereport(NOTICE,
				(errmsg("process %d seems to wait for this session", pid),
				 errdetail("Process %d of the same program keeps reading pg_locks or the like.",
						   found->st_procpid)));
	return found != NULL;
}
