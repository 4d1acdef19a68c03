/*-------------------------------------------------------------------------
 *
 * test_points.c
 *	  Places where a test build can be made to wait, fail or die, and switches
 *	  that make a copy wrong on purpose.
 *
 * index_mover.test_point is a list of name:action, separated by commas:
 *
 *	wait	until the advisory lock (0, 5959) is released, which the test
 *			takes exclusively before; interruptible
 *	wait2	the same with the advisory lock (0, 5960)
 *	hold	the same as wait, but without obeying a cancel of the job
 *	writes	until other transactions have written so often that a test's load
 *			has certainly changed what is being copied
 *	error	ERROR XX000
 *	late-error	the same once a cancel is pending, and has not been obeyed
 *	kill	SIGKILL to this process
 *	panic	abort()
 *	sleep	for 100 ms
 *	timeout	let lock_timeout run out here, as core does that grants a lock at that moment
 *	doze	until the postmaster is gone, without reacting to anything
 *
 * With name:number:action it is done when the process comes there for the n-th
 * time, as with the second of the files that move together.
 *
 * index_mover.test_mutation is a list of what to do wrong, so that the tests
 * can prove that the checks notice it.  tail, block-0 and sync leave out that
 * part of a copy; tail makes up blocks in its place, or none with short.
 *
 *	map-once		compare a table's visibility map once, before the lock, and
 *					not again
 *	log-once		do not log a block again after a checkpoint
 *	holes			leave every page's hole out of the WAL, whatever is in it
 *	lookup			take every block as it is on disk, also one in a buffer
 *	late-lsn		note the insert position after the blocks were read
 *	verify-all		compare everything under the lock
 *	log-truncate	log a change of the file that does not name blocks, after
 *	log-special		the bulk copy or, with under-lock, once the exclusive
 *					lock is granted; with once, only the first time
 *	overrun			read beyond a page that is measured, for
 *	underrun		AddressSanitizer
 *	other-storage	as if a relation's storage manager were not core's
 *	read-back		alter the block of the new file that is read back
 *	snapshot-guard	leave out the guard of a caller's snapshot
 *	show-lost		let the planner see the indexes of a lost device
 *	keep-lost		do not empty their files
 *	fail-lost		fail to list them
 *	resume-summaries	go on with a copy without what WAL summaries name, or
 *	resume-limit	without the length to which they say it was truncated
 *	resume-late		record the present position as that from which changes count
 *	resume-buffers	leave the file's pages in shared buffers
 *	resume-unflushed	write recorded blocks again before their WAL is flushed
 *
 * index_mover.test_mutation may also have limits, name:number, or name alone for -1:
 *
 *	catch-up		forget so many of the blocks that have changed, all with -1
 *	again			copy the last blocks directly, before an attempt, if more than so
 *					many are left
 *	busy			more changed blocks than these may be too many
 *	hopeless		give up if a copy was written so often
 *	hopeless-ms		give up if no fewer blocks were left for so many milliseconds
 *	slow-blocks		take the last blocks to need so many us each, at first
 *	slow-map		take a page of a visibility map to need so many us to compare
 *	no-direct		the flag for O_DIRECT; 0 as if the file system refused it
 *	no-background	no write in the background, with 0
 *	background-failed	take so many bytes for not written by it
 *	sync-blocks		let others pass after each fsync of so many blocks of a file
 *	record-wait		milliseconds for which a worker waits for a lock on a table of ours
 *	long-ago		submit a job as of so many microseconds ago
 *	looks			queue for the lock after so many looks
 *	parted			move nothing together once relations were parted so often
 *	near			while a holder stays, catch up once a second if more blocks have changed
 *	wait-part		a copy that waits catches up again after this part of its wait so far
 *	sample-ms		have the scheduler take a sample each so many milliseconds
 *	stats-age		take the statistics to be so many days old
 *	evidence		take this for the evidence of every tablespace but the default: 0 same,
 *					1 unknown, 2 lost
 *
 * index_mover.test_file_systems is a list of tablespace:device:free:total, what a
 * tablespace's file system says: its number, by which two are the same or not, and
 * bytes.  Device 0 is a directory that is missing.
 *
 * A look at the device of a tablespace hangs while there is a file "hang" in its location, and
 * the postmaster.
 *
 * index_mover.test_access_methods is a list of index access methods that a copy moves, too.
 *
 * index_mover.test_block_devices is a directory in place of /sys/dev/block, if not "";
 * index_mover.test_mounts a file in place of /proc/self/mountinfo.
 *
 * index_mover.test_damages is how often a page is measured with random damage
 * before it is measured; index_mover.test_seed is the seed of that damage.
 *
 * This file is empty unless compiled with -DINDEX_MOVER_TEST.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef INDEX_MOVER_TEST

#ifdef INDEX_MOVER_COVERAGE
#include <gcov.h>
#endif
#include <signal.h>
#include <unistd.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xloginsert.h"
#include "catalog/pg_control.h"
#include "catalog/pg_type_d.h"
#include "catalog/storage_xlog.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/array.h"
#include "utils/guc.h"
#include "utils/timeout.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "job.h"
#include "test_points.h"
#include "tier/tier_private.h"

#define WAIT2_LOCK		5960

/* see "writes" */
#define SO_MANY_WRITES	25

static char *test_points = NULL;
static char *test_mutations = NULL;
static char *test_file_systems = NULL;
static char *test_access_methods = NULL;
char	   *test_block_devices = NULL;
char	   *test_mounts = NULL;
int			test_damages = 0;
int			test_seed = 0;

static const struct
{
	const char *name;
	char	  **value;
}			strings[] =

{
	{"index_mover.test_point", &test_points},
	{"index_mover.test_mutation", &test_mutations},
	{"index_mover.test_file_systems", &test_file_systems},
	{"index_mover.test_block_devices", &test_block_devices},
	{"index_mover.test_mounts", &test_mounts},
	{"index_mover.test_access_methods", &test_access_methods},
};

static const struct
{
	const char *name;
	int		   *value;
}			numbers[] =

{
	{"index_mover.test_damages", &test_damages},
	{"index_mover.test_seed", &test_seed},
};

/* Define the settings; called by _PG_init() of a test build. */
void
test_points_define(void)
{
	for (int i = 0; i < lengthof(strings); i++)
		DefineCustomStringVariable(strings[i].name, "For tests.", NULL, strings[i].value, "",
								   PGC_SUSET, 0, NULL, NULL, NULL);
	for (int i = 0; i < lengthof(numbers); i++)
		DefineCustomIntVariable(numbers[i].name, "For tests.", NULL, numbers[i].value, 0,
								0, INT_MAX, PGC_SUSET, 0, NULL, NULL, NULL);
}

/*
 * Keep a worker's settings when it reads the configuration again, so that a
 * test can set them for the next worker.
 */
void
test_points_keep(void)
{
	for (int i = 0; i < lengthof(strings); i++)
		SetConfigOption(strings[i].name, pstrdup(*strings[i].value), PGC_SUSET, PGC_S_OVERRIDE);
}

/* Find "name:" in the list, or a whole "name"; return what follows. */
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

/*
 * Return whether a point, whose actions these are, has been reached as often as
 * they say, and move on to the action.  Counts for the points with a number only.
 */
static bool
is_time(const char *name, const char **found)
{
	static struct
	{
		const char *name;
		long		times;
	}			seen[8];
	char	   *end;
	long		wanted = strtol(*found, &end, 10);
	int			i = 0;

	if (*end != ':')
		return true;
	*found = end + 1;
	while (seen[i].name != NULL && strcmp(seen[i].name, name) != 0)
		if (++i == lengthof(seen))
			elog(ERROR, "too many test points with a number");
	seen[i].name = name;
	return ++seen[i].times == wanted;
}

/* Wait until the test releases its lock. */
static void
wait_for_test(const char *name, uint32 lock, bool obeys_cancel)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, lock, 2);
	elog(LOG, "test point \"%s\": waiting", name);
	while (LockAcquire(&tag, ShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		if (obeys_cancel)
			job_check_cancel();
	}
	elog(LOG, "test point \"%s\": going on", name);

	/*
	 * A test that stops us here again asks for its lock as soon as it reads that: it
	 * must have it before we come back.
	 */
	for (int i = 0; lock == WAIT2_LOCK && i < 50 && !LockHasWaiters(&tag, ShareLock, true); i++)
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
	LockRelease(&tag, ShareLock, true);
}

/* Wait until others have written; each writer gets a transaction ID. */
static void
wait_for_writes(void)
{
	TransactionId start = ReadNextTransactionId();

	while ((int32) (ReadNextTransactionId() - start) < SO_MANY_WRITES)
	{
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 PG_WAIT_EXTENSION);
		job_check_cancel();
	}
}

/*
 * In scripts/coverage, add this process's counts to the others', because a
 * killed process cannot do so at its end.
 */
static void
save_coverage(void)
{
#ifdef INDEX_MOVER_COVERAGE
	__gcov_dump();
	__gcov_reset();
#endif
}

/* Carry out the action of the setting for this point. */
void
test_point(const char *name)
{
	const char *found = find_in_list(test_points, name);

	if (found == NULL || !is_time(name, &found))
		return;
	save_coverage();
	if (is_action(found, "wait"))
		wait_for_test(name, 5959, true);
	else if (is_action(found, "wait2"))
		wait_for_test(name, WAIT2_LOCK, true);
	else if (is_action(found, "hold"))
		wait_for_test(name, 5959, false);
	else if (is_action(found, "writes"))
		wait_for_writes();
	else if (is_action(found, "error"))
		elog(ERROR, "test point \"%s\"", name);
	else if (is_action(found, "late-error"))
	{
		elog(LOG, "test point \"%s\": waiting", name);
		while (!QueryCancelPending)
			pg_usleep(1000L);
		elog(ERROR, "test point \"%s\"", name);
	}
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
	else if (is_action(found, "timeout"))
	{
		elog(LOG, "test point \"%s\": timeout", name);
		enable_timeout_after(LOCK_TIMEOUT, 1);
		while (!get_timeout_indicator(LOCK_TIMEOUT, false))
			pg_usleep(1000L);
		disable_timeout(LOCK_TIMEOUT, true);
	}
	else if (is_action(found, "doze"))
	{
		elog(LOG, "test point \"%s\": dozing", name);
		while (getppid() == PostmasterPid)
			pg_usleep(1000L);
	}
	else
		elog(ERROR, "test point \"%s\": unknown action \"%s\"", name, found);
}

/* As a device that does not answer: no signal ends it. */
void
test_hang(Oid tablespace)
{
	char		path[64];
	bool		told = false;

	if (test_limit("look-ms", 0) > 0)
	{
		elog(LOG, "tablespace %u is slow", tablespace);
		pg_usleep(test_limit("look-ms", 0) * 1000);
	}
	snprintf(path, sizeof(path), "pg_tblspc/%u/hang", tablespace);
	while (access(path, F_OK) == 0 && getppid() == PostmasterPid)
	{
		if (!told)
			elog(LOG, "tablespace %u hangs", tablespace);
		told = true;
		pg_usleep(10000L);
	}
}

/* Return whether to make this mutation. */
bool
test_mutation(const char *name)
{
	return find_in_list(test_mutations, name) != NULL;
}

/* Return whether a copy moves indexes of this access method, too. */
bool
test_copies(const char *access_method)
{
	return access_method != NULL && find_in_list(test_access_methods, access_method) != NULL;
}

/* Get what the setting says of a tablespace's file system; false if nothing. */
bool
test_file_system(Oid tablespace, int64 *device, int64 *free_bytes, int64 *total_bytes)
{
	/* outside of a transaction the name cannot be looked up */
	const char *found = *test_file_systems == '\0' || !IsTransactionState() ? NULL :
		find_in_list(test_file_systems, get_tablespace_name(tablespace));
	long long	numbers[3];

	if (found == NULL)
		return false;
	if (sscanf(found, "%lld:%lld:%lld", &numbers[0], &numbers[1], &numbers[2]) != 3)
		elog(ERROR, "index_mover.test_file_systems needs device:free:total");
	*device = numbers[0];
	*free_bytes = numbers[1];
	*total_bytes = numbers[2];
	return true;
}

/*
 * Log, if the mutations say so, that the file is truncated (to more blocks
 * than any file has, so that replay does nothing), or that something unknown
 * has happened to some file.
 */
void
test_log_special(const RelFileLocator *locator, bool under_lock)
{
	static bool logged = false;

	if (under_lock != test_mutation("under-lock") || (logged && test_mutation("once")))
		return;
	logged = true;
	if (test_mutation("log-truncate"))
	{
		xl_smgr_truncate record = {.blkno = MaxBlockNumber,.rlocator = *locator,
		.flags = SMGR_TRUNCATE_HEAP};

		XLogBeginInsert();
		XLogRegisterData((char *) &record, sizeof(record));
		(void) XLogInsert(RM_SMGR_ID, XLOG_SMGR_TRUNCATE | XLR_SPECIAL_REL_UPDATE);
	}
	if (test_mutation("log-special"))
	{
		char		nothing = 0;

		XLogBeginInsert();
		XLogRegisterData(&nothing, sizeof(nothing));
		(void) XLogInsert(RM_XLOG_ID, XLOG_NOOP | XLR_SPECIAL_REL_UPDATE);
	}
}

/*
 * Return the limit that the mutations have as name:number, without a number -1;
 * the usual one if they do not have it.
 */
int64
test_limit(const char *name, int64 usual)
{
	const char *found = find_in_list(test_mutations, name);

	if (found == NULL)
		return usual;
	return *found >= '0' && *found <= '9' ? strtoll(found, NULL, 10) : -1;
}

/* With the mutation tail, give a file the right length, with wrong contents. */
void
test_fill_tail(const RelFileLocator *locator, BlockNumber nblocks)
{
	SMgrRelation smgr = smgropen(*locator, INVALID_PROC_NUMBER);
	PGIOAlignedBlock zero = {0};

	if (!test_mutation("tail") || test_mutation("short"))
		return;
	for (BlockNumber block = smgrnblocks(smgr, MAIN_FORKNUM); block < nblocks; block++)
		smgrextend(smgr, MAIN_FORKNUM, block, zero.data, false);
}

PG_FUNCTION_INFO_V1(index_mover_test_ranking);

static Datum *
elements(FunctionCallInfo fcinfo, int argno, Oid type, int *n)
{
	Datum	   *result;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argno), type, type == BOOLOID ? 1 : 8, true,
					  type == BOOLOID ? TYPALIGN_CHAR : TYPALIGN_DOUBLE, &result, NULL, n);
	return result;
}

/*
 * index_mover_test_ranking(sizes bigint[], values float8[], residents boolean[],
 *		fixed boolean[], budget bigint) RETURNS int[]
 *
 * ranking_choose(); returns 0 = remains elsewhere, 1 = goes, 2 = stays, 3 = leaves.
 */
Datum
index_mover_test_ranking(PG_FUNCTION_ARGS)
{
	int			n;
	Datum	   *sizes = elements(fcinfo, 0, INT8OID, &n);
	Datum	   *values = elements(fcinfo, 1, FLOAT8OID, &n);
	Datum	   *residents = elements(fcinfo, 2, BOOLOID, &n);
	Datum	   *fixed = elements(fcinfo, 3, BOOLOID, &n);
	Candidate  *candidates = palloc0_array(Candidate, n);
	Heat	   *heats = palloc0_array(Heat, n);
	Datum	   *fates = palloc_array(Datum, n);

	for (int i = 0; i < n; i++)
	{
		candidates[i].size = DatumGetInt64(sizes[i]);
		candidates[i].value = DatumGetFloat8(values[i]);
		candidates[i].is_resident = DatumGetBool(residents[i]);
		candidates[i].is_fixed = DatumGetBool(fixed[i]);
		candidates[i].heat = &heats[i];
	}
	ranking_choose(candidates, n, PG_GETARG_INT64(4), NULL, NULL);
	for (int i = 0; i < n; i++)
		fates[candidates[i].heat - heats] =
			Int32GetDatum(candidates[i].is_chosen ? 1 + candidates[i].is_resident : 3 * candidates[i].is_resident);
	PG_RETURN_ARRAYTYPE_P(construct_array(fates, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

#endif							/* INDEX_MOVER_TEST */
