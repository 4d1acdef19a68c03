/*-------------------------------------------------------------------------
 *
 * test_points.c
 *	  Places where a test build can be made to wait, fail or die, and switches
 *	  that make a copy wrong on purpose.
 *
 * index_mover.test_point is a list of name:action, separated by commas:
 *
 *	wait	until nobody holds the advisory lock (0, 5959) any more (the test
 *			takes it exclusively before); interruptible
 *	error	ERROR XX000
 *	kill	SIGKILL to this process
 *	panic	abort()
 *	sleep	for 100 ms
 *
 * index_mover.test_mutation names what a copy leaves out, so that the checks
 * can be seen to notice: catch-up, one-block, tail, block-0.
 *
 * This file is empty unless compiled with -DINDEX_MOVER_TEST.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "test_points.h"

#ifdef INDEX_MOVER_TEST

#include <signal.h>

#include "job.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

static char *test_points = NULL;
static char *test_mutations = NULL;

/* Define the two settings; called by _PG_init of a test build. */
void
test_points_define(void)
{
	DefineCustomStringVariable("index_mover.test_point",
							   "What a test build does at which point.",
							   NULL, &test_points, "",
							   PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("index_mover.test_mutation",
							   "What a test build leaves out of a copy.",
							   NULL, &test_mutations, "",
							   PGC_SUSET, 0, NULL, NULL, NULL);
}

/* Find "name:" in the list, or "name" as a whole; returns what follows. */
static const char *
find_in_list(const char *list, const char *name)
{
	size_t		len = strlen(name);

	while (list && *list)
	{
		if (strncmp(list, name, len) == 0 &&
			(list[len] == ':' || list[len] == ',' || list[len] == '\0'))
			return list[len] == ':' ? list + len + 1 : list + len;
		list = strchr(list, ',');
		if (list)
			list++;
	}
	return NULL;
}

static bool
is_action(const char *found, const char *action)
{
	size_t		len = strlen(action);

	return strncmp(found, action, len) == 0 &&
		(found[len] == ',' || found[len] == '\0');
}

/* Wait until the test lets go of its lock. */
static void
wait_for_test(const char *name)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 5959, 2);
	elog(LOG, "test point \"%s\": waiting", name);
	for (;;)
	{
		if (LockAcquire(&tag, ShareLock, true, true) != LOCKACQUIRE_NOT_AVAIL)
		{
			LockRelease(&tag, ShareLock, true);
			break;
		}
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		job_check_cancel();
	}
	elog(LOG, "test point \"%s\": going on", name);
}

/* Do what the setting says for this point. */
void
test_point(const char *name)
{
	const char *found = find_in_list(test_points, name);

	if (found == NULL)
		return;
	if (is_action(found, "wait"))
		wait_for_test(name);
	else if (is_action(found, "error"))
		elog(ERROR, "test point \"%s\"", name);
	else if (is_action(found, "kill"))
	{
		elog(LOG, "test point \"%s\": killed", name);
		kill(MyProcPid, SIGKILL);
	}
	else if (is_action(found, "panic"))
		abort();
	else if (is_action(found, "sleep"))
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 100,
						 PG_WAIT_EXTENSION);
	else
		elog(ERROR, "test point \"%s\": unknown action \"%s\"", name, found);
}

/* Is this part of a copy to be left out? */
bool
test_mutation(const char *name)
{
	return find_in_list(test_mutations, name) != NULL;
}

#endif							/* INDEX_MOVER_TEST */
