/*-------------------------------------------------------------------------
 *
 * ruins.c
 *	  The findings of thorough looks at the pages of files.
 *
 * To read all pages of an index can take hours, so index_mover_check(), which monitors call, reads
 * some only.  It is to name the findings of heal_tablespace(), the janitor or an earlier check in
 * others, too.  They are kept here, in shared memory of a preloaded library, until the
 * file is read again, or for as long as it is the relation's.
 *
 * A file all of whose pages were read, and are whole, is here, too: suspicious pages of it, as
 * zeros that a crash has left, are not read again and again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"

#include "compat.h"
#include "job.h"
#include "ruins.h"
#include "test_points.h"

#define AREA_NAME		"index_mover ruins"
#define MOST_FILES		256		/* of more, those that are damaged, and the
								 * latest */
#define PROBLEM_SIZE	160
/* so long one counts as whole, and on a standby as damaged, without another look */
#define FRESH_MS		IM_LIMIT("fresh-ms", 60 * 60 * 1000)

typedef struct LookedAt
{
	RelFileLocator file;
	double		at;				/* clock_seconds(), which is never set back;
								 * 0: an entry that is not in use */
	char		problem[PROBLEM_SIZE];	/* "" = all its pages are whole */
} LookedAt;

static LookedAt *area = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static LWLock *
area_lock(void)
{
	return &GetNamedLWLockTranche(AREA_NAME)->lock;
}

static void
request_ruins_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(MAXALIGN(MOST_FILES * sizeof(LookedAt)));
	RequestNamedLWLockTranche(AREA_NAME, 1);
}

static void
startup_ruins(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	area = ShmemInitStruct(AREA_NAME, MOST_FILES * sizeof(LookedAt), &found);
	if (!found)
		memset(area, 0, MOST_FILES * sizeof(LookedAt));
	LWLockRelease(AddinShmemInitLock);
}

/* Called by _PG_init(). */
void
ruins_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_ruins_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_ruins;
}

/* Return the entry of a file, or NULL.  Under the lock. */
static LookedAt *
find(const RelFileLocator *file)
{
	for (int i = 0; i < MOST_FILES; i++)
	{
		if (area[i].at != 0 && RelFileLocatorEquals(area[i].file, *file))
			return &area[i];
	}
	return NULL;
}

/* Return whether an entry says that something is damaged, which nothing but a look can tell again. */
static bool
has_problem(const LookedAt *entry)
{
	return entry->at != 0 && entry->problem[0] != '\0';
}

/*
 * Return the entry that is the least loss: one that is free, else the oldest of a whole file, else
 * the oldest.  Under the lock.
 */
static LookedAt *
find_place(void)
{
	LookedAt   *result = &area[0];

	for (int i = 1; i < MOST_FILES; i++)
	{
		if (has_problem(&area[i]) == has_problem(result))
		{
			if (area[i].at < result->at)
				result = &area[i];
		}
		else if (has_problem(result))
			result = &area[i];
	}
	return result;
}

/* Copy a text to PROBLEM_SIZE bytes, if need be without its last characters. */
static void
copy_problem(char *to, const char *problem)
{
	int			length = pg_mbcliplen(problem, strlen(problem), PROBLEM_SIZE - 1);

	memcpy(to, problem, length);
	to[length] = '\0';
}

/*
 * Remember the problem of a file, a clause, or NULL: all its pages were read, and are whole.  Return whether
 * it has a problem, and none was known.
 */
bool
ruins_note(const RelFileLocator *file, const char *problem)
{
	LookedAt   *entry;
	bool		is_new;

	if (area == NULL)
		return false;
	LWLockAcquire(area_lock(), LW_EXCLUSIVE);
	entry = find(file);
	is_new = problem != NULL && (entry == NULL || !has_problem(entry));
	if (entry == NULL)
		entry = find_place();
	/* a whole file is not worth the damage of another one */
	if (problem != NULL || !has_problem(entry) || RelFileLocatorEquals(entry->file, *file))
	{
		entry->file = *file;
		entry->at = clock_seconds();
		copy_problem(entry->problem, problem != NULL ? problem : "");
	}
	LWLockRelease(area_lock());
	return is_new;
}

/* Return a copy of the entry of a file; its "at" is 0 if nothing is known. */
static LookedAt
known_of(const RelFileLocator *file)
{
	LookedAt	result = {0};
	const LookedAt *entry;

	if (area == NULL)
		return result;
	LWLockAcquire(area_lock(), LW_SHARED);
	entry = find(file);
	if (entry != NULL)
		result = *entry;
	LWLockRelease(area_lock());
	return result;
}

/* Return the problem that a file is known to have, palloc'd; NULL if none is known. */
char *
ruins_problem(const RelFileLocator *file)
{
	LookedAt	known = known_of(file);

	return has_problem(&known) ? pstrdup(known.problem) : NULL;
}

/* Return whether a file is known to have a problem. */
bool
ruins_is_damaged(const RelFileLocator *file)
{
	LookedAt	known = known_of(file);

	return has_problem(&known);
}

/* Return whether what is known of a file is of not long ago. */
static bool
is_fresh(const LookedAt *entry)
{
	return !clock_has_passed(entry->at, FRESH_MS);
}

/* Return whether all pages of a file were read not long ago, and were whole. */
bool
ruins_was_whole(const RelFileLocator *file)
{
	LookedAt	known = known_of(file);

	return known.at != 0 && !has_problem(&known) && is_fresh(&known);
}

/*
 * Return whether the problem that a file is known to have was found long ago: then it is the caller's turn
 * to read the file again, and no other caller's for FRESH_MS.  That look can be canceled, or take longer than a
 * monitor waits: so it must not be due at each call.
 */
bool
ruins_take_turn(const RelFileLocator *file)
{
	LookedAt   *entry;
	bool		result = false;

	if (area == NULL)
		return false;
	LWLockAcquire(area_lock(), LW_EXCLUSIVE);
	entry = find(file);
	if (entry != NULL && has_problem(entry) && !is_fresh(entry))
	{
		entry->at = clock_seconds();
		result = true;
	}
	LWLockRelease(area_lock());
	return result;
}
