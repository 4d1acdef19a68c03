/*-------------------------------------------------------------------------
 *
 * lost_guard.c
 *	  Guard that keeps sessions from using the indexes of a lost device.
 *
 * A ruin with a valid first page makes GIN loop and SP-GiST crash the server; a whole file
 * of an earlier time makes any index give wrong answers, and lets duplicates pass.  So
 * until such an index is rebuilt,
 *
 *	- the planner does not see it.  get_relation_info() reads the first page of a btree
 *	  before a hook can take the index off the list, so the session's relcache entry
 *	  says before planning that the index is not valid.  The hook takes off what was
 *	  loaded again since.  A session has a list of the lost indexes of its database,
 *	  because a query can come to more tables than it names, and partitions that are
 *	  pruned are not to be locked;
 *	- everybody else (inserts, unique and exclusion checks, TOAST, COPY, the apply of
 *	  logical replication) gets an error: the file is emptied, and each access method
 *	  reads block 0 first.  Nothing of value is removed.  That is not logged, because the
 *	  file of a standby may be whole; recovery may fill it again, and the verdict stays.
 *
 * Each process empties the files before the first statement in a database: at the end of the
 * transaction in which InitPostgres() connects, which no other hook comes before.  What it could
 * not empty then, and a loss that is found later (a promotion, too: a standby empties no file),
 * it meets when a statement begins that writes, or is planned, and at no other time: not at the
 * end of a user's transaction, which has locks, and results that an error would undo.  All sessions
 * look at a device once a second at most, and not if it is slow: the janitor does it then.
 *
 * On a standby no file is emptied, because replay needs its blocks; nothing but queries,
 * and TOAST, reads indexes there.
 *
 * Recovery, at least that of a crashed primary that becomes a standby, fails at a record that
 * changes a page of an emptied file, unless an earlier one has an image of that page.  So the
 * WAL from the redo position on must have images of all pages, or nothing about the file.  The
 * second is so if writers were kept out since before a checkpoint began: the janitor does that
 * if full_page_writes is off, or was when the last checkpoint began.
 *
 * Locks: AccessExclusiveLock on an index while its file is emptied.  A session does not wait for
 * it, and meets its holder again when it plans; the janitor queues for moments.  Even the attempt
 * assigns a transaction ID, and tells standbys of the lock, so files that are empty already are
 * found without: by stat().  A session's transaction may last, and a standby keeps the lock to the
 * end of what has taken it: so that is a subtransaction, which is rolled back.  ShareLock before,
 * if the janitor requests a checkpoint: queries of the table go on, and writers wait until its
 * end.  While an index is marked, AccessShareLock, so that no session drops it then.  These two
 * are not waited for.  No device is looked at under a lock, but for the last look before a file is
 * emptied.
 *
 * Errors of a device (permissions, a file system that is read-only, I/O) are caught: they
 * must not fail the queries of all other tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/pathnodes.h"
#include "optimizer/planner.h"
#include "postmaster/bgwriter.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "job.h"
#include "lost_guard.h"
#include "own_tables.h"
#include "relation_facts.h"
#include "test_points.h"

/* A session that could not empty all files tries again after this time, and does not look for longer */
#define AGAIN_MS		1000

/* The janitor tries this often to lock an index, and queues for so long */
#define MOST_TRIES		IM_LIMIT("lost-tries", 20)
#define TRY_NAP_MS		50
#define QUEUE_TIME		"100ms"

/* An index whose file is to be emptied */
typedef struct LostIndex
{
	Oid			oid;
	RelFileLocator file;
	bool		queues;			/* its lock is queued for */
	bool		is_stopped;		/* ShareLock is held: there are no writers */
	bool		is_done;		/* it is empty, or not lost any more */
} LostIndex;

/* in a session: the losses for which all files of the database are empty */
static uint32 losses_met = 0;

/* in a session: the losses for which it has last tried in vain to empty files, and when */
static uint32 losses_failed = 0;
static TimestampTz failed_at = 0;

/* in a session: whether the transaction that connects it to its database has ended */
static bool is_connected = false;

/* in a session: the lost indexes of the database, and for which losses it is their list */
static List *lost_indexes = NIL;
static uint32 losses_listed = 0;

/* in a session: whether all of these are marked in its cache */
static bool are_marked = false;

static planner_hook_type prev_planner_hook = NULL;
static ExecutorStart_hook_type prev_ExecutorStart_hook = NULL;
static ProcessUtility_hook_type prev_ProcessUtility_hook = NULL;
static relation_info_hook_type prev_relation_info_hook = NULL;

/* Return whether the file of an index is known to be lost. */
static bool
index_is_lost(Oid index_oid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index_oid));
	bool		result;

	/* a hypothetical index of an extension */
	if (!HeapTupleIsValid(tuple))
		return false;
	result = evidence_knows_lost(tuple);
	ReleaseSysCache(tuple);
	return result;
}

/* Return the blocks of a lost index, which is open. */
static BlockNumber
blocks_of(Relation index)
{
	SMgrRelation smgr = RelationGetSmgr(index);

	/* not those of a file that this process has opened on another device */
	smgrrelease(smgr);
	return smgrexists(smgr, MAIN_FORKNUM) ? smgrnblocks(smgr, MAIN_FORKNUM) : 0;
}

/*
 * Empty the file of a lost index, unless another session has locked it, this one is
 * reading it, or its device is not there.  For errors_catch(); ERROR 55P03 if it has queued
 * for the lock.
 */
static void
empty_file(void *arg)
{
	LostIndex  *lost = arg;
	Relation	index;
	SMgrRelation smgr;
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber old_nblocks;
	BlockNumber nblocks = 0;

	if (lost->queues)
	{
		(void) set_config_option("lock_timeout", QUEUE_TIME, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
		LockRelationOid(lost->oid, AccessExclusiveLock);
	}
	else if (!ConditionalLockRelationOid(lost->oid, AccessExclusiveLock))
		return;
	/* it may be another file by now, or gone */
	if (!index_is_lost(lost->oid))
	{
		UnlockRelationOid(lost->oid, AccessExclusiveLock);
		lost->is_done = true;
		return;
	}
	index = index_open(lost->oid, NoLock);
	if (index->rd_refcnt == 1)
	{
		old_nblocks = blocks_of(index);
		lost->is_done = old_nblocks == 0;
		/* another device may have come since the locks were taken */
		if (old_nblocks > 0 && evidence_may_empty(index->rd_locator.spcOid))
		{
			smgr = RelationGetSmgr(index);
			file_drop_buffers(&index->rd_locator, false);
			smgrtruncate(smgr, &fork, 1, &old_nblocks, &nblocks);
			lost->is_done = true;
		}
	}
	index_close(index, AccessExclusiveLock);
}

/* Keep writers from a lost index that has pages, until the end of the transaction.  For errors_catch(). */
static void
stop_writers(void *arg)
{
	LostIndex  *lost = arg;
	Relation	index;

	if (!ConditionalLockRelationOid(lost->oid, ShareLock))
		return;
	if (index_is_lost(lost->oid))
	{
		index = index_open(lost->oid, NoLock);
		lost->is_done = blocks_of(index) == 0;
		index_close(index, NoLock);
		lost->is_stopped = !lost->is_done;
	}
	else
		lost->is_done = true;
	if (!lost->is_stopped)
		UnlockRelationOid(lost->oid, ShareLock);
}

/* For errors_catch(). */
static void
request_checkpoint(void *arg)
{
	RequestCheckpoint(CHECKPOINT_IMMEDIATE | CHECKPOINT_FORCE | CHECKPOINT_WAIT);
}

/* Return whether a step had no error.  One that ends the statement goes on. */
static bool
was_well(ErrorData *error, bool tells)
{
	if (error == NULL)
		return true;
	if (ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
		ReThrowError(error);
	if (tells)
		ereport(LOG,
				(errmsg("could not empty the files of lost indexes: %s", error->message),
				 errors_repeat(error)));
	FreeErrorData(error);
	return false;
}

static bool
succeeds(void (*step) (void *arg), void *arg, bool tells)
{
	return was_well(errors_catch(step, arg), tells);
}

/* Try to empty the file of a lost index; afterwards it is not locked, on standbys neither. */
static bool
try_to_empty(LostIndex *lost, bool tells)
{
	bool		result = was_well(errors_catch_and_release(empty_file, lost), tells);

	/* have that flushed soon */
	if (!XLogRecPtrIsInvalid(XactLastRecEnd))
		XLogSetAsyncXactLSN(XactLastRecEnd);
	return result;
}

/*
 * Return whether the WAL has an image of each page that was changed since the redo position.
 * (Switching full_page_writes off and on again between two checkpoints is not covered.)
 */
static bool
has_images(void)
{
	bool		crc_ok;
	ControlFileData *control;
	bool		result;

	if (!fullPageWrites)
		return false;
	LWLockAcquire(ControlFileLock, LW_SHARED);
	control = get_controlfile(DataDir, &crc_ok);
	LWLockRelease(ControlFileLock);
	result = crc_ok && control->checkPointCopy.fullPageWrites;
	pfree(control);
	return result;
}

/* Return the lost indexes (LostIndex) of this database. */
static List *
lost_of_database(void)
{
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, tuple, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);
		LostIndex  *lost;

		if (form->relkind != RELKIND_INDEX || form->oid < FirstNormalObjectId)
			continue;
		if (!evidence_knows_lost(tuple))
			continue;
		lost = palloc0_object(LostIndex);
		lost->oid = form->oid;
		lost->file.spcOid = tablespace_from_catalog(form->reltablespace);
		lost->file.dbOid = MyDatabaseId;
		lost->file.relNumber = form->relfilenode;
		result = lappend(result, lost);
	}
	return result;
}

/*
 * Find out of an index, on a device that is there, whether its file is empty already.  Returns
 * whether it is not.
 */
static bool
has_pages(LostIndex *lost, bool tells)
{
	const char *path = relation_segment_path(&lost->file, MAIN_FORKNUM, 0);
	struct stat st;

	if (stat(path, &st) == 0)
	{
		lost->is_done = st.st_size == 0;
		return !lost->is_done;
	}
	/* there is none, for as long as it is the index's */
	if (errno == ENOENT)
		lost->is_done = true;
	else if (tells)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not empty the files of lost indexes: could not stat file \"%s\": %m",
						path)));
	return false;
}

/*
 * Return those indexes whose devices are there, and whose files have pages.  Each device is
 * looked at once, and may hang: no lock is held.
 */
static List *
those_with_pages(const List *indexes, bool is_janitor)
{
	TimestampTz began = GetCurrentTimestamp();
	List	   *here = NIL;
	List	   *away = NIL;
	List	   *result = NIL;

	foreach_ptr(LostIndex, lost, indexes)
	{
		Oid			tablespace = lost->file.spcOid;

		if (!is_janitor && TimestampDifferenceExceeds(began, GetCurrentTimestamp(), AGAIN_MS))
			break;
		if (!list_member_oid(here, tablespace) && !list_member_oid(away, tablespace))
		{
			bool		may_empty = is_janitor ? evidence_may_empty(tablespace) :
				evidence_may_empty_lately(tablespace);

			if (may_empty)
				here = lappend_oid(here, tablespace);
			else
				away = lappend_oid(away, tablespace);
		}
		if (list_member_oid(here, tablespace) && has_pages(lost, is_janitor))
			result = lappend(result, lost);
	}
	return result;
}

/* Rest before another try: a query may be planned just now. */
static void
nap_between_tries(void)
{
	(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, TRY_NAP_MS,
					 IM_WAIT_EVENT("IndexMoverLost"));
	CHECK_FOR_INTERRUPTS();
}

/* Let writers go on again. */
static void
let_write(LostIndex *lost)
{
	UnlockRelationOid(lost->oid, ShareLock);
	lost->is_stopped = false;
}

/*
 * Empty lost indexes of which the WAL may have changes without images: behind a checkpoint,
 * since which no session has written to them.
 */
static void
empty_behind_checkpoint(List *indexes)
{
	bool		has_stopped = false;

	foreach_ptr(LostIndex, lost, indexes)
	{
		(void) succeeds(stop_writers, lost, true);
		if (lost->is_stopped)
			has_stopped = true;
	}
	if (has_stopped)
		has_stopped = succeeds(request_checkpoint, NULL, true);
	for (int try = 0; try < MOST_TRIES; try++)
	{
		if (!has_stopped)
			break;
		if (try > 0)
			nap_between_tries();
		has_stopped = false;
		foreach_ptr(LostIndex, lost, indexes)
		{
			if (!lost->is_stopped)
				continue;
			if (!try_to_empty(lost, true) || lost->is_done)
				let_write(lost);
			else
				has_stopped = true;
		}
	}
	foreach_ptr(LostIndex, lost, indexes)
	{
		if (lost->is_stopped)
			let_write(lost);
	}
}

/*
 * Empty lost indexes by the janitor.  Sessions whose plans are cached do not try again, and
 * would write to the old file: so it queues for the locks, for moments.
 */
static void
empty_by_queueing(List *indexes)
{
	for (int try = 0; try < MOST_TRIES; try++)
	{
		bool		is_done = true;

		if (try > 0)
			nap_between_tries();
		foreach_ptr(LostIndex, lost, indexes)
		{
			if (lost->is_done)
				continue;
			lost->queues = try > 0;
			(void) try_to_empty(lost, try == MOST_TRIES - 1);
			if (!lost->is_done)
				is_done = false;
		}
		if (is_done)
			break;
	}
}

/* Empty lost indexes that no other session has locked. */
static void
empty_unlocked(List *indexes)
{
	foreach_ptr(LostIndex, lost, indexes)
	{
		(void) try_to_empty(lost, false);
	}
}

/*
 * Empty the files of the lost indexes of this database.  In a transaction; by the janitor's
 * worker also if that takes a checkpoint, and an error is written to the server log.
 */
void
lost_guard_empty_files(bool is_janitor)
{
	uint32		losses = evidence_losses();
	TimestampTz now;
	List	   *indexes;
	List	   *full;
	bool		is_done = true;

	if (losses == 0 || losses == losses_met || RecoveryInProgress() || IsInParallelMode())
		return;
	if (IM_MUTATION("keep-lost"))
		return;
	now = GetCurrentTimestamp();
	if (!is_janitor && losses == losses_failed && now >= failed_at &&
		!TimestampDifferenceExceeds(failed_at, now, AGAIN_MS))
		return;
	indexes = lost_of_database();
	full = those_with_pages(indexes, is_janitor);
	if (full != NIL)
	{
		bool		images = has_images();

		if (images && is_janitor)
			empty_by_queueing(full);
		else if (images)
			empty_unlocked(full);
		else if (is_janitor)
			empty_behind_checkpoint(full);
	}
	foreach_ptr(LostIndex, lost, indexes)
	{
		if (!lost->is_done)
			is_done = false;
	}
	if (is_done)
	{
		losses_met = losses;
		return;
	}
	/* our own look may have found it once more, where it cannot go on record */
	losses_failed = evidence_losses();
	failed_at = GetCurrentTimestamp();
}

/* An entry of the cache may be loaded again. */
static void
note_invalidation(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || list_member_oid(lost_indexes, relid))
		are_marked = false;
}

/* List the lost indexes of this database, and forget the marks of indexes that are not lost any more. */
static void
list_lost(uint32 losses)
{
	MemoryContext context;
	List	   *rows = NIL;

	foreach_oid(index_oid, lost_indexes)
		RelationCacheInvalidateEntry(index_oid);
	/* plans that were made with, or without, some */
	ResetPlanCache();
	list_free(lost_indexes);
	lost_indexes = NIL;
	are_marked = false;
	if (losses != 0)
		rows = catalog_all(RelationRelationId);
	foreach_ptr(HeapTupleData, tuple, rows)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind != RELKIND_INDEX || form->oid < FirstNormalObjectId)
			continue;

		/*
		 * no query names a TOAST table, and access to values wants a valid
		 * index
		 */
		if (IsToastNamespace(form->relnamespace) || !evidence_knows_lost(tuple))
			continue;
		context = MemoryContextSwitchTo(TopMemoryContext);
		lost_indexes = lappend_oid(lost_indexes, form->oid);
		MemoryContextSwitchTo(context);
	}
	losses_listed = losses;
}

/* Have this session's relcache say of a lost index that it is not valid.  For errors_catch(). */
static void
mark_index(void *arg)
{
	Oid			index_oid = *(const Oid *) arg;
	Relation	index;

	if (!index_is_lost(index_oid))
		return;
	index = RelationIdGetRelation(index_oid);
	if (!RelationIsValid(index))
		return;
	index->rd_index->indisvalid = false;
	RelationClose(index);
}

/* The same of all lost indexes. */
static void
mark_indexes(void)
{
	/* an entry that is loaded again meanwhile is marked the next time */
	are_marked = true;
	foreach_oid(index_oid, lost_indexes)
	{
		/* who drops it could end between two reads of its catalog entries */
		if (ConditionalLockRelationOid(index_oid, AccessShareLock))
		{
			mark_index(&index_oid);
			UnlockRelationOid(index_oid, AccessShareLock);
		}
		/* it is just being emptied, or dropped */
		else if (IsInParallelMode())
			are_marked = false;
		else if (!succeeds(mark_index, &index_oid, false))
			are_marked = false;
	}
}

static PlannedStmt *
plan_without_lost(PLANNER_PARAMS)
{
	uint32		losses = IM_MUTATION("show-lost") ? 0 : evidence_losses();

	if (losses != 0)
		lost_guard_empty_files(false);
	/* statements that were planned before are planned again */
	if (losses != losses_listed)
		list_lost(losses);
	if (!are_marked)
		mark_indexes();
	if (prev_planner_hook)
		return prev_planner_hook(PLANNER_ARGS);
	return standard_planner(PLANNER_ARGS);
}

/* A statement that writes begins; its plan may be of before the loss was found. */
static void
write_without_lost(QueryDesc *query, int flags)
{
	if (evidence_losses() != 0 && !IM_MUTATION("show-lost") &&
		(query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE))
		lost_guard_empty_files(false);
	if (prev_ExecutorStart_hook)
		prev_ExecutorStart_hook(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

/* COPY FROM begins, which has no plan. */
static void
copy_without_lost(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				  ProcessUtilityContext context, ParamListInfo params,
				  QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	if (evidence_losses() != 0 && !IM_MUTATION("show-lost") &&
		IsA(pstmt->utilityStmt, CopyStmt) && ((CopyStmt *) pstmt->utilityStmt)->is_from)
		lost_guard_empty_files(false);
	if (prev_ProcessUtility_hook)
		prev_ProcessUtility_hook(pstmt, query, read_only_tree, context, params, environment, dest,
								 completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params, environment, dest,
								completion);
}

/*
 * The end of the transaction that connects a process to its database.  A login is not to wait
 * for a synchronous standby.  A parallel worker's leader has done it.
 */
static void
empty_when_connecting(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_COMMIT || is_connected || !OidIsValid(MyDatabaseId))
		return;
	is_connected = true;
	if (IsParallelWorker() || evidence_losses() == 0 || IM_MUTATION("show-lost"))
		return;
	/* a policy is not to hang with the device; the janitor does it by itself */
	if (process_is_worker())
		return;
	commit_locally();
	lost_guard_empty_files(false);
}

/* Take lost indexes off the planner's list. */
static void
hide_lost(RELATION_INFO_PARAMS)
{
	ListCell   *lc;

	if (prev_relation_info_hook)
		prev_relation_info_hook(RELATION_INFO_ARGS);
	if (evidence_losses() == 0 || IM_MUTATION("show-lost"))
		return;
	foreach(lc, rel->indexlist)
	{
		if (index_is_lost(lfirst_node(IndexOptInfo, lc)->indexoid))
			rel->indexlist = foreach_delete_current(rel->indexlist, lc);
	}
}

/* Called by _PG_init(). */
void
lost_guard_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	prev_planner_hook = planner_hook;
	planner_hook = plan_without_lost;
	prev_relation_info_hook = relation_info_hook;
	relation_info_hook = hide_lost;
	prev_ExecutorStart_hook = ExecutorStart_hook;
	ExecutorStart_hook = write_without_lost;
	prev_ProcessUtility_hook = ProcessUtility_hook;
	ProcessUtility_hook = copy_without_lost;
	CacheRegisterRelcacheCallback(note_invalidation, (Datum) 0);
	RegisterXactCallback(empty_when_connecting, NULL);
}
