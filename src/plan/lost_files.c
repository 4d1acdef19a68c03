/*-------------------------------------------------------------------------
 *
 * lost_files.c
 *	  The janitor looks at the files of a tablespace, and reads all pages where the device is not
 *	  known.
 *
 * That can be terabytes.  So it reads no faster than a copy may (max_read_share), each file in a
 * transaction of its own without a snapshot, and gives way: an index for which another session
 * waits is left for the next round, and whoever drops or copies the database has it end.  Files that
 * were read, and are whole, are not read again for the same doubt.
 *
 * ruins.c has the findings: so the plan that follows reads few pages.
 *
 * Locks: as lost_file(); ShareUpdateExclusiveLock on the table of an index that is not valid, for a
 * moment, if no session has it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "errors.h"
#include "evidence.h"
#include "job.h"
#include "own_tables.h"
#include "plan/plan_private.h"
#include "ruins.h"
#include "test_points.h"
#include "wait/wait.h"

/* Between two looks at who waits */
#define LOOK_MS			100

/* At once, so that others are seen */
#define LONGEST_REST_MS	200

typedef struct FileToRead
{
	Oid			relid;
	RelFileNumber number;
	bool		is_unknown;		/* all of its pages are to be read */
	bool		loss_is_known;	/* its device has lost something since it was
								 * made, or may have */
} FileToRead;

typedef struct Reading
{
	Oid			tablespace;
	MemoryContext context;		/* of the list */
	List	   *files;			/* FileToRead, by number */
	const FileToRead *file;		/* that is being read */
	bool		is_again;		/* unknown files are read once more: damage of
								 * another was found */
	bool		is_whole;		/* this one is */
	bool		is_complete;	/* no file that is not on the list, or was not
								 * read, can come into use later */
	bool		has_damage;		/* pages of one have some that was not known */
	BlockNumber npages;			/* that were read, of all files */
	double		looked;			/* for others, clock_seconds() */
	double		read_from;		/* since when it reads */
} Reading;

static int
compare_file_numbers(const ListCell *a, const ListCell *b)
{
	RelFileNumber one = ((const FileToRead *) lfirst(a))->number;
	RelFileNumber other = ((const FileToRead *) lfirst(b))->number;

	if (one == other)
		return 0;
	return one < other ? -1 : 1;
}

/* Return whether a relation has a file that can be lost, unknown, or whole. */
static bool
has_file_to_read(Form_pg_class form)
{
	return RELKIND_HAS_STORAGE(form->relkind) && !form->relisshared &&
		form->relpersistence != RELPERSISTENCE_TEMP && RelFileNumberIsValid(form->relfilenode) &&
		!IsCatalogNamespace(form->relnamespace) && !IsCatalogRelationOid(form->oid);
}

/* List the files.  For errors_catch_without_snapshot(). */
static void
list_to_read(void *arg)
{
	Reading    *reading = arg;

	/* a transaction that commits from here on is on the list */
	reading->is_complete = !list_member_oid(evidence_uncommitted(), reading->tablespace);
	foreach_ptr(HeapTupleData, row, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		MemoryContext oldcontext;
		FileToRead *file;

		if (!has_file_to_read(form))
			continue;
		if (tablespace_from_catalog(form->reltablespace) != reading->tablespace)
			continue;
		oldcontext = MemoryContextSwitchTo(reading->context);
		file = palloc_object(FileToRead);
		file->relid = form->oid;
		file->number = form->relfilenode;
		file->is_unknown = evidence_look_if_unread(reading->tablespace, file->number, file->relid);
		file->loss_is_known = evidence_loss_may_concern(reading->tablespace, file->number,
														file->relid);
		reading->files = lappend(reading->files, file);
		MemoryContextSwitchTo(oldcontext);
	}
}

/*
 * Return whether a session holds, or waits for, a lock with which none may connect to this
 * database: it is to be dropped, or copied.
 */
static bool
database_is_wanted(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	if (LockAcquire(&tag, RowExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, RowExclusiveLock, false);
	return false;
}

/* ERROR 55006 if another session wants the database. */
static void
check_database(void)
{
	if (database_is_wanted())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("another session drops, moves or copies the database"),
				 errhint("A later cleanup reads the rest.")));
}

/* A megabyte was read since *read_from: rest as a copy does, and set *read_from. */
void
lost_rest(double *read_from)
{
	const MoveSettings *settings = runner_settings();
	double		ms = (clock_seconds() - *read_from) * 1000;
	double		share = settings->pacing ? settings->max_read_share : 1;
	long		rest_ms = IM_LIMIT("read-rest", 0);

	if (ms > FAST_READ_MS && share < 1)
		rest_ms = (long) Min(ms * (1 - share) / share, LONGEST_REST_MS);
	if (rest_ms > 0)
		latch_nap(rest_ms, "IndexMoverPause");
	*read_from = clock_seconds();
}

/*
 * A megabyte was read, of one file or of several: rest as a copy does.  Return whether to go on,
 * ERROR if another session wants the database.
 */
static bool
rest_and_go_on(void *arg)
{
	Reading    *reading = arg;
	int			pid;

	lost_rest(&reading->read_from);
	CHECK_FOR_INTERRUPTS();
	if (clock_has_passed(reading->looked, LOOK_MS))
	{
		check_database();
		if (relation_lock_waiters(reading->file->relid, AccessShareLock, &pid, 1) > 0)
			return false;
		reading->looked = clock_seconds();
	}
	reading->read_from = clock_seconds();
	return true;
}

/* Read a file.  For errors_catch_without_snapshot(). */
static void
read_slowly(void *arg)
{
	Reading    *reading = arg;
	LostLook	look = reading->file->is_unknown ? LOOK_WHOLE : LOOK_SPOTS;
	RelationFacts facts;
	RelFileLocator locator;
	bool		may_be_built = false;
	bool		was_known;

	reading->is_whole = true;
	if (clock_has_passed(reading->looked, LOOK_MS))
	{
		check_database();
		reading->looked = clock_seconds();
	}
	if (!relation_facts(reading->file->relid, &facts) || facts.tablespace != reading->tablespace)
		return;
	/* it is not read, and may be valid when the plan looks at it, or later */
	if (relkind_is_index(facts.relkind))
		may_be_built = lost_look_for_builder(&facts);
	if (may_be_built)
	{
		reading->is_complete = false;
		evidence_refute(reading->tablespace);
	}
	locator = make_locator(facts.tablespace, MyDatabaseId, facts.relfilenumber);
	was_known = ruins_problem(&locator) != NULL;

	/*
	 * where a file has lost something, less is a proof for the others of its
	 * time
	 */
	if (reading->file->is_unknown && (reading->file->loss_is_known || reading->is_again))
		look = LOOK_LOSS_KNOWN;
	if (lost_file_slowly(&facts, look, rest_and_go_on, reading, &reading->npages,
						 &reading->is_whole) == NULL)
		return;
	reading->is_whole = false;
	if (ruins_problem(&locator) == NULL)
		return;
	if (!was_known && !reading->file->loss_is_known)
		reading->has_damage = true;
}

/* Read all files of the list, and note as what they are known then. */
static void
read_all(Reading *reading, uint32 doubts)
{
	bool		is_whole = true;

	foreach_ptr(const FileToRead, file, reading->files)
	{
		ErrorData  *error;

		/* what is known of a file was proved without the damage of others */
		if (reading->is_again && !file->is_unknown)
			continue;
		reading->file = file;
		error = errors_catch_without_snapshot(read_slowly, reading);
		if (error != NULL)
			ReThrowError(error);
		if (!reading->is_whole)
		{
			is_whole = false;
			evidence_refute(reading->tablespace);
		}
		/* those with lower numbers are whole, too */
		if (is_whole && reading->is_complete)
			evidence_note_read(reading->tablespace, file->number + 1, doubts);
	}
}

/*
 * Look at all files of this database in a tablespace, with no transaction open.  ERROR if that does
 * not come to an end.
 */
void
lost_look_at_files(Oid tablespace)
{
	Reading		reading = {.tablespace = tablespace,.context = CurrentMemoryContext};
	uint32		doubts = evidence_doubts_so_far(tablespace);
	ErrorData  *error;

	Assert(!IsTransactionState());
	error = errors_catch_without_snapshot(list_to_read, &reading);
	if (error != NULL)
		ReThrowError(error);
	list_sort(reading.files, compare_file_numbers);
	reading.read_from = reading.looked = clock_seconds();
	read_all(&reading, doubts);
	if (!reading.has_damage)
		return;
	reading.is_again = true;
	read_all(&reading, doubts);
}
