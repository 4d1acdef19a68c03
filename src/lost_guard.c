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
 *	  says that the index is not valid, while a statement is planned: of the tables that it
 *	  names before, of those below a table when the hook is called for that.  The hook takes
 *	  off what was loaded again since.  At other times the entry is the catalog's: REINDEX
 *	  CONCURRENTLY would skip the index, and a partitioned index would become invalid for good;
 *	- every other command (inserts, unique and exclusion checks, TOAST, COPY, the apply of
 *	  logical replication) gets an error: the file is emptied, or the first page of a hash
 *	  index replaced, and each access method reads that first.  Nothing of value is removed.
 *	  That is not logged, because the file of a standby may be whole; recovery may fill it
 *	  again, and the verdict stays;
 *	- while another session's lock keeps a file that is to keep duplicates out from being emptied,
 *	  no transaction that has written to its table commits.  That is asked at the end of the transaction,
 *	  by its lock of the table: so it is asked of COPY, of partitions, and of the apply of logical
 *	  replication, too.  A DELETE is refused with them.
 *
 * Each process empties the files before the first statement in a database: at the end of the
 * transaction in which InitPostgres() connects.  No hook comes before that.  Files that it could not
 * empty then, and files whose loss is found later, it empties when a statement begins that writes, or
 * is planned.  (A promotion is such a moment, too: a standby empties no file.)  It does so at no other
 * time: a user's transaction that ends has locks, and results that an error would undo.  A session
 * looks at the devices of the database's lost indexes when it connects, and once a second while it
 * works, since an older device may come in place of another.  Slow looks are shared by sessions, and
 * left to a worker if a look takes a second.
 *
 * On a standby no file is emptied, because replay needs its blocks; nothing but queries,
 * and TOAST, reads indexes there.
 *
 * Recovery, at least that of a crashed primary that becomes a standby, fails at a record that
 * changes a page of an emptied file, unless an earlier record has an image of that page.  So the
 * WAL from the redo position on must have images of all pages, or nothing about the file.  It has
 * nothing if writers were kept out since before a checkpoint began: a worker does that if
 * full_page_writes is off, or was when the last checkpoint began.
 *
 * Locks: AccessExclusiveLock on an index while its file is emptied.  A session does not wait for
 * it, but tries again when it plans; the worker queues for moments.  Even the attempt assigns a
 * transaction ID, and tells standbys of the lock, so files that are empty already are found by
 * stat(), without a lock.  A session's transaction may last, and a standby keeps the lock to the end
 * of the transaction that has taken it: so a session takes it in a subtransaction, which is rolled
 * back.  A worker that requests a checkpoint takes ShareLock before: queries of the table go on, and
 * writers wait until the checkpoint ends.  An index is marked under AccessShareLock, so that no
 * session drops it then.  No process waits for these two.  No device is looked at under a lock, but
 * for the last look before a file is emptied.
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
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_control.h"
#include "catalog/pg_database.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "common/controldata_utils.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "optimizer/planner.h"
#include "partitioning/partdesc.h"
#include "postmaster/bgwriter.h"
#include "replication/logicalworker.h"
#include "storage/bufmgr.h"
#include "storage/checksum.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lwlock.h"
#include "storage/sinval.h"
#include "tcop/utility.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
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

/*
 * A session looks at devices for this time at most.  If it could not empty all files, it tries again
 * after this time, which is doubled with each try that is in vain.  Not while all that is missing is the
 * commit of rows, since no session is told of that.
 */
#define AGAIN_MS		1000
#define LONGEST_AGAIN_MS	60000

/* For how long the emptying worker queues for the lock of an index, at once and in all */
#define QUEUE_TIME		"100ms"
#define MOST_QUEUEING_MS	IM_LIMIT("lost-queueing", 10000)
#define TRY_NAP_MS		50

/* For how long it tries after a checkpoint: writers wait meanwhile */
#define MOST_STOPPED_MS	1000

/* After changes of this many relations, the tables that may have lost indexes are listed again */
#define MOST_CHANGED	1000

/* This many indexes share a checkpoint, and are locked meanwhile */
#define MOST_STOPPED	50

/* An index whose file is to be emptied */
typedef struct LostIndex
{
	Oid			oid;
	RelFileLocator file;
	bool		is_hash;		/* see spoil_first_page() */
	bool		queues;			/* its lock is queued for */
	bool		is_free;		/* the lock was granted a moment ago */
	bool		is_stopped;		/* ShareLock is held: there are no writers */
	bool		is_done;		/* the file is empty, or the index not lost
								 * any more, or its device is away */
} LostIndex;

/* in a session: the losses for which all files of the database are empty, or away */
static uint32 losses_met = 0;

/*
 * in a session: the tablespaces that lost indexes of the database had then, and when it last looked at their
 * devices
 */
static List *tablespaces_met = NIL;
static double looked_at = 0;	/* clock_seconds() */

/* in a session: the losses for which it has last tried in vain to empty files, and when */
static uint32 losses_failed = 0;
static double failed_at = 0;	/* clock_seconds() */
static int	again_ms = 0;		/* until the next try */

/*
 * in a session: the lost indexes (Oid) that keep duplicates out, and that were not known to be empty when it
 * last tried, or when it tried before in this transaction; and whether it has in this transaction
 */
static List *left_indexes = NIL;
static bool has_tried = false;

/* in a session: whether the transaction that connects it to its database has ended */
static bool is_connected = false;

/*
 * in a logical replication worker: the losses when it connected, or when it last listed lost indexes at the
 * end of a transaction
 */
static uint32 losses_applied = 0;

/* in a session: the losses for which statements that were planned before are planned again */
static uint32 losses_planned = 0;

/*
 * in a session: the tables that may have lost indexes (Oid); the losses for which they were listed; and
 * changes_missed at that moment.  The list has the table of each row of an index that pg_class had then, also of rows
 * that are not committed, or deleted; and each relation that the relcache was told of since.  So whatever
 * changes the indexes of a table, or their files, is seen as core sees it.
 */
static HTAB *tables_listed = NULL;
static uint32 losses_listed = 0;
static uint64 listed_at = 0;

/* in a session: relations that the relcache was told of since, of which some are listed already */
static Oid	changed[MOST_CHANGED];
static int	nchanged = 0;
static int	nchanged_listed = 0;
static uint64 changes_missed = 1;	/* times when changed[] was full, or all
									 * relations had changed */

/* An index that this session's relcache has as not valid, while a statement is planned */
typedef struct Mark
{
	Oid			index;
	uint64		plan;			/* the number of the call of the planner, */
	int			level;			/* and the level of its transaction */
} Mark;

/* in a session: the marks, those of an inner call of the planner last */
static List *marks = NIL;
static uint64 current_plan = 0; /* the innermost call; 0 = none */
static int	current_level = 0;	/* of the transaction in which it is */

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

	/* the planner may know a hypothetical index of another extension */
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

	/* this process may have opened the file on another device */
	smgrrelease(smgr);
	return smgrexists(smgr, MAIN_FORKNUM) ? smgrnblocks(smgr, MAIN_FORKNUM) : 0;
}

/* Lock a lost index.  Returns whether it is locked; ERROR 55P03 if it has queued for the lock in vain. */
static bool
lock_lost(const LostIndex *lost)
{
	if (!lost->queues)
		return ConditionalLockRelationOid(lost->oid, AccessExclusiveLock);
	(void) set_config_option("lock_timeout", QUEUE_TIME, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
	LockRelationOid(lost->oid, AccessExclusiveLock);
	return true;
}

/*
 * Look whether the first page of a hash index, which has a special space, is the one that
 * spoil_first_page() has put there since the last recovery.  Recovery may have the old page again, in
 * shared buffers at first.
 */
static bool
look_for_spoiled_page(const RelFileLocator *file)
{
	const char *path = relation_segment_path(file, MAIN_FORKNUM, 0);
	PGIOAlignedBlock page;
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	ssize_t		nread;

	if (fd < 0)
		return false;
	nread = pg_pread(fd, page.data, BLCKSZ, 0);
	CloseTransientFile(fd);
	return nread == BLCKSZ && ((PageHeader) page.data)->pd_special == BLCKSZ &&
		PageGetLSN(page.data) >= evidence_running_from();
}

/*
 * Have all sessions, and this one, forget their copies of the first page of a hash index.  Like core's
 * CacheInvalidateSmgr(), at once, because a file is no part of a transaction, and this one may be rolled
 * back.  The index is locked exclusively, so each session that uses it next has had the message.
 */
static void
forget_first_page(Relation index)
{
	SharedInvalidationMessage message = {0};

	message.rc.id = SHAREDINVALRELCACHE_ID;
	message.rc.dbId = MyDatabaseId;
	message.rc.relId = RelationGetRelid(index);
	SendSharedInvalidMessages(&message, 1);

	/*
	 * this session may have a lock on the index already, and get the message
	 * later
	 */
	if (index->rd_amcache != NULL)
		pfree(index->rd_amcache);
	index->rd_amcache = NULL;
}

/*
 * Put a page in place of the first page of a hash index that its access method, which reads that page
 * first, refuses.  All other pages stay: the WAL names pages of hash indexes without their images
 * (REGBUF_NO_IMAGE), and a recovery that begins before, also of a base backup, ends with PANIC if they
 * are not there.  Earlier records do not change this page, because of its LSN.  Buffers of other pages
 * stay, too: a session that has a copy of the first page can have VACUUM change them, and its WAL must
 * fit the pages that recovery makes.  The page is written to the file before it is put into the buffer,
 * which is not dirty: if the file cannot be written, no checkpoint fails.
 */
static void
spoil_first_page(Relation index)
{
	/* first, so that an earlier page of the kind does not count as this one */
	XLogRecPtr	running_from PG_USED_FOR_ASSERTS_ONLY = evidence_running_from();
	Buffer		buffer = ReadBufferExtended(index, MAIN_FORKNUM, 0, RBM_ZERO_AND_LOCK, NULL);
	XLogRecPtr	lsn = PageGetLSN(BufferGetPage(buffer));
	XLogRecPtr	flushed = GetFlushRecPtr(NULL);
	PGIOAlignedBlock page;

	/* it was not in memory, or has the LSN of another server's page */
	if (lsn < flushed || lsn > GetXLogInsertRecPtr())
		lsn = flushed;
	Assert(lsn >= running_from);
	PageInit(page.data, BLCKSZ, 0);
	PageSetLSN(page.data, lsn);
	((PageHeader) page.data)->pd_checksum = pg_checksum_page(page.data, 0);
	XLogFlush(lsn);
	smgrwrite(RelationGetSmgr(index), MAIN_FORKNUM, 0, page.data, false);
	memcpy(BufferGetPage(buffer), page.data, BLCKSZ);
	UnlockReleaseBuffer(buffer);
	forget_first_page(index);
}

/* Have each use of a lost index fail.  The index is open, and locked exclusively. */
static void
empty_or_spoil(Relation index, BlockNumber old_nblocks)
{
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber nblocks = 0;
	SMgrRelation smgr;

	if (index->rd_rel->relam == HASH_AM_OID)
	{
		spoil_first_page(index);
		return;
	}
	file_drop_buffers(&index->rd_locator, false);
	smgr = RelationGetSmgr(index);
	smgrtruncate(smgr, &fork, 1, &old_nblocks, &nblocks);
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
	BlockNumber old_nblocks;
	bool		may_empty = false;

	if (!lock_lost(lost))
		return;
	/* the index may have another file by now, or be gone */
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
		if (!lost->is_done)
			may_empty = evidence_confirm_loss(index->rd_locator.spcOid);
		if (may_empty)
		{
			empty_or_spoil(index, old_nblocks);
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
		if (!lost->is_done && lost->is_hash)
			lost->is_done = look_for_spoiled_page(&index->rd_locator);
		index_close(index, NoLock);
		lost->is_stopped = !lost->is_done;
	}
	else
		lost->is_done = true;
	if (!lost->is_stopped)
		UnlockRelationOid(lost->oid, ShareLock);
}

/* Request a checkpoint, and wait for it.  For errors_catch(). */
static void
request_checkpoint(void *arg)
{
	/* neither vacuum nor others are to wait for our snapshot of the catalog */
	InvalidateCatalogSnapshot();
	RequestCheckpoint(CHECKPOINT_IMMEDIATE | CHECKPOINT_FORCE | CHECKPOINT_WAIT);
}

/* Return whether a step had no error.  An error that ends the statement is raised again. */
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

	/* have the record that gives the lock back flushed soon */
	if (!XLogRecPtrIsInvalid(XactLastRecEnd))
		XLogSetAsyncXactLSN(XactLastRecEnd);
	return result;
}

/*
 * Return whether the WAL has an image of each page that was changed since the redo position, but for
 * pages of hash indexes that stay.
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

/* Return whether a row of pg_class is that of an index of users in one of these tablespaces. */
static bool
is_index_there(HeapTuple row, const List *tablespaces)
{
	Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

	return form->relkind == RELKIND_INDEX && form->oid >= FirstNormalObjectId &&
		list_member_oid(tablespaces, tablespace_from_catalog(form->reltablespace));
}

/* Return the lost indexes (LostIndex) of this database. */
static List *
lost_of_database(void)
{
	List	   *tablespaces = evidence_lossy();
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan;
	HeapTuple	row;
	List	   *result = NIL;
	List	   *lost_rows = NIL;
	bool		is_raised;

	/*
	 * its message comes after a transaction has ended, and may not have been
	 * accepted
	 */
	InvalidateCatalogSnapshot();
	scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 0, NULL);
	if (IM_MUTATION("fail-lost"))
		elog(ERROR, "could not list lost indexes");
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		LostIndex  *lost;

		if (!list_member_oid(tablespaces, tablespace_from_catalog(form->reltablespace)) ||
			!evidence_knows_lost(row))
			continue;
		lost_rows = lappend(lost_rows, heap_copytuple(row));
		if (!is_index_there(row, tablespaces))
			continue;
		lost = palloc0_object(LostIndex);
		lost->oid = form->oid;
		lost->file.spcOid = tablespace_from_catalog(form->reltablespace);
		lost->file.dbOid = MyDatabaseId;
		lost->file.relNumber = form->relfilenode;
		lost->is_hash = form->relam == HASH_AM_OID;
		result = lappend(result, lost);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	is_raised = evidence_keep_lost(lost_rows);
	list_free_deep(lost_rows);
	/* others are lost now, which are to be empty before the statement writes */
	if (is_raised)
		return lost_of_database();
	return result;
}

/*
 * Note whether the file of an index, on a device that is there, is empty already.  Returns
 * whether the file has pages.
 */
static bool
note_pages(LostIndex *lost, bool tells)
{
	const char *path = relation_segment_path(&lost->file, MAIN_FORKNUM, 0);
	struct stat st;

	if (stat(path, &st) == 0)
	{
		lost->is_done = st.st_size == 0;
		if (!lost->is_done && lost->is_hash)
			lost->is_done = look_for_spoiled_page(&lost->file);
		return !lost->is_done;
	}
	/* no file of this number can come while the index has it */
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
 * Return the indexes of the list whose devices are there, and whose files have pages.  Each device
 * is looked at once, and may hang: no lock is held.
 */
static List *
those_with_pages(const List *indexes, bool in_worker)
{
	double		began = clock_seconds();
	List	   *here = NIL;
	List	   *away = NIL;
	List	   *slow = NIL;
	List	   *result = NIL;

	foreach_ptr(LostIndex, lost, indexes)
	{
		Oid			tablespace = lost->file.spcOid;

		if (!in_worker && clock_has_passed(began, AGAIN_MS))
			break;
		if (!list_member_oid(here, tablespace) && !list_member_oid(away, tablespace) &&
			!list_member_oid(slow, tablespace))
		{
			bool		may_empty;

			if (in_worker)
				may_empty = evidence_confirm_loss(tablespace);
			else
				may_empty = evidence_confirm_loss_lately(tablespace);
			if (may_empty)
				here = lappend_oid(here, tablespace);
			else if (!evidence_can_empty(tablespace))
				away = lappend_oid(away, tablespace);
			else
				slow = lappend_oid(slow, tablespace);
		}
		/* nothing is to be done until the device comes */
		if (list_member_oid(away, tablespace))
			lost->is_done = true;
		if (list_member_oid(here, tablespace))
		{
			bool		has_pages = note_pages(lost, in_worker);

			if (has_pages)
				result = lappend(result, lost);
		}
	}
	return result;
}

/*
 * Return whether a transaction that is under way may bring back an index that may be lost: ours, or another
 * one that has made or replaced it.  The row of an index that another one has dropped is listed.
 */
static bool
has_uncommitted(void)
{
	List	   *tablespaces = evidence_lossy();

	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return true;
	foreach_oid(tablespace, evidence_uncommitted())
	{
		if (list_member_oid(tablespaces, tablespace))
			return true;
	}
	return false;
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
 * since which no session has written to them.  For errors_catch_without_snapshot().
 */
static void
empty_behind_checkpoint(void *arg)
{
	List	   *indexes = arg;
	bool		has_stopped = false;
	double		began;

	commit_locally();
	foreach_ptr(LostIndex, lost, indexes)
	{
		(void) succeeds(stop_writers, lost, true);
		if (lost->is_stopped)
			has_stopped = true;
	}
	if (has_stopped)
		has_stopped = succeeds(request_checkpoint, NULL, true);
	began = clock_seconds();
	for (int try = 0; has_stopped; try++)
	{
		if (try > 0)
			nap_between_tries();
		has_stopped = false;
		foreach_ptr(LostIndex, lost, indexes)
		{
			bool		succeeded;

			if (!lost->is_stopped || clock_has_passed(began, MOST_STOPPED_MS))
				continue;
			lost->queues = try > 0;
			succeeded = try_to_empty(lost, try == 0);
			/* in later tries, an error is only the timeout of the lock */
			if (lost->is_done || (!succeeded && try == 0))
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

/* Find out whether the lock of an index can be had.  For errors_catch_without_snapshot(). */
static void
look_whether_free(void *arg)
{
	LostIndex  *lost = arg;

	commit_locally();
	lost->is_free = lock_lost(lost);
}

/*
 * Return the indexes of the list whose locks are free.  A session that keeps a lock for long must not
 * have the worker stop writers, and request a checkpoint, again and again in vain.
 */
static List *
those_free(const List *indexes, bool tells)
{
	double		began = clock_seconds();
	List	   *result = NIL;

	foreach_ptr(LostIndex, lost, indexes)
	{
		lost->queues = false;
		(void) was_well(errors_catch_without_snapshot(look_whether_free, lost), tells);
		lost->queues = true;
		if (!lost->is_free && !clock_has_passed(began, MOST_QUEUEING_MS))
			(void) was_well(errors_catch_without_snapshot(look_whether_free, lost), false);
		if (lost->is_free)
			result = lappend(result, lost);
	}
	return result;
}

/* Empty the file of a lost index.  For errors_catch_without_snapshot(). */
static void
empty_alone(void *arg)
{
	commit_locally();
	/* full_page_writes may have been switched off meanwhile */
	if (has_images())
		empty_file(arg);
}

/*
 * Empty lost indexes by a worker, each try in a transaction of its own.  Sessions whose plans
 * are cached do not try again, and would write to the old file: so the worker queues for the locks,
 * for moments.
 */
static void
empty_by_queueing(List *indexes, bool tells)
{
	double		began = clock_seconds();
	bool		is_done = false;

	for (int try = 0; !is_done; try++)
	{
		if (try > 0)
			nap_between_tries();
		is_done = true;
		foreach_ptr(LostIndex, lost, indexes)
		{
			if (lost->is_done)
				continue;
			lost->queues = try > 0;
			if (lost->queues && clock_has_passed(began, MOST_QUEUEING_MS))
				return;
			(void) was_well(errors_catch_without_snapshot(empty_alone, lost), tells && try == 0);
			if (!lost->is_done)
				is_done = false;
		}
	}
}

/* Return whether files of these lost indexes are not known to be empty. */
static bool
are_left(const List *indexes)
{
	foreach_ptr(const LostIndex, lost, indexes)
	{
		if (!lost->is_done)
			return true;
	}
	return false;
}

/* Return the OID of a lost index of the list for each tablespace. */
static List *
one_for_each_tablespace(const List *indexes)
{
	List	   *tablespaces = NIL;
	List	   *result = NIL;

	foreach_ptr(const LostIndex, lost, indexes)
	{
		if (list_member_oid(tablespaces, lost->file.spcOid))
			continue;
		tablespaces = lappend_oid(tablespaces, lost->file.spcOid);
		result = lappend_oid(result, lost->oid);
	}
	return result;
}

/*
 * Get the tablespaces of indexes, one for each, that another process has noted.  Returns false if any is
 * not lost any more: then the others in its tablespace may not be either, and the device is not to be
 * looked at.
 */
static bool
find_tablespaces(const List *indexes, List **tablespaces)
{
	*tablespaces = NIL;
	foreach_oid(index_oid, indexes)
	{
		HeapTuple	row = SearchSysCache1(RELOID, ObjectIdGetDatum(index_oid));
		Oid			tablespace;
		bool		is_lost;

		if (!HeapTupleIsValid(row))
			return false;
		is_lost = evidence_knows_lost(row);
		tablespace = ((Form_pg_class) GETSTRUCT(row))->reltablespace;
		ReleaseSysCache(row);
		*tablespaces = lappend_oid(*tablespaces, tablespace_from_catalog(tablespace));
		if (!is_lost)
			return false;
	}
	return true;
}

/* Note where the lost indexes of this database are. */
static void
note_tablespaces(const List *tablespaces)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);

	list_free(tablespaces_met);
	tablespaces_met = list_copy(tablespaces);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * All lost files of this database were empty.  Look at their devices: an older one can have come in place
 * of what was there, and can be written to at once.  That changes evidence_losses().  No catalog is read
 * for that, and no device looked at of which all is healed, as it may hang.
 */
static void
look_again(void)
{
	List	   *indexes;

	if (tablespaces_met == NIL || !clock_has_passed(looked_at, AGAIN_MS))
		return;
	if (evidence_is_met(MyDatabaseId, losses_met, &indexes) && indexes == NIL)
	{
		note_tablespaces(NIL);
		return;
	}
	foreach_oid(tablespace, tablespaces_met)
		(void) evidence_confirm_loss_lately(tablespace);
	looked_at = clock_seconds();
}

/*
 * Return whether writers have to find duplicates, or conflicts, by an index.  The apply of logical replication
 * finds the rows that it changes by an index, too.
 */
static bool
index_keeps_out(Oid index_oid)
{
	HeapTuple	row = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index_oid));
	Form_pg_index form;
	bool		result;

	if (!HeapTupleIsValid(row))
		return false;
	form = (Form_pg_index) GETSTRUCT(row);
	result = form->indisready &&
		(form->indisunique || form->indisexclusion || IsLogicalWorker());
	ReleaseSysCache(row);
	return result;
}

/*
 * Note of these lost indexes those that are not known to be empty.  What was noted before in this
 * transaction stays: a statement may have looked for duplicates in the old file since.
 */
static void
note_left(const List *indexes)
{
	List	   *left = has_tried ? list_copy(left_indexes) : NIL;
	List	   *old = left_indexes;
	MemoryContext oldcontext;

	foreach_ptr(const LostIndex, lost, indexes)
	{
		if (!lost->is_done && index_keeps_out(lost->oid))
			left = list_append_unique_oid(left, lost->oid);
	}
	oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	left_indexes = list_copy(left);
	list_free(old);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Empty the files of the lost indexes of this database that no other session has locked.  In a
 * transaction.
 */
static void
empty_unlocked_files(void)
{
	uint32		losses;
	List	   *noted;
	List	   *tablespaces = NIL;
	List	   *indexes;
	List	   *full;
	bool		is_complete;

	evidence_serve_again();
	losses = evidence_losses();
	if (losses == 0 || RecoveryInProgress() || IsInParallelMode())
		return;
	if (IM_MUTATION("keep-lost"))
		return;

	/* all files were found to be empty: look at their devices, and list none */
	if (losses != losses_met && evidence_is_met(MyDatabaseId, losses, &noted) &&
		find_tablespaces(noted, &tablespaces))
	{
		note_tablespaces(tablespaces);
		losses_met = losses;
		looked_at = 0;
	}
	if (losses == losses_met)
	{
		look_again();
		losses = evidence_losses();
	}
	if (losses == 0 || losses == losses_met)
	{
		note_left(NIL);
		has_tried = true;
		return;
	}
	/* each device that comes changes the number of losses */
	if (losses == losses_failed && !clock_has_passed(failed_at, again_ms))
	{
		has_tried = true;
		return;
	}
	is_complete = !has_uncommitted();
	indexes = lost_of_database();
	full = those_with_pages(indexes, false);
	/* the tablespaces that another process has noted may be healed */
	tablespaces = NIL;
	foreach_ptr(const LostIndex, lost, indexes)
		tablespaces = list_append_unique_oid(tablespaces, lost->file.spcOid);
	note_tablespaces(tablespaces);
	looked_at = clock_seconds();
	if (full != NIL && has_images())
	{
		foreach_ptr(LostIndex, lost, full)
			(void) try_to_empty(lost, false);
	}
	note_left(indexes);
	has_tried = true;
	if (is_complete && !are_left(indexes))
	{
		losses_met = losses;
		evidence_note_met(losses, one_for_each_tablespace(indexes));
		return;
	}
	if (losses == losses_failed && are_left(indexes))
		again_ms = Min(again_ms * 2, LONGEST_AGAIN_MS);
	else
		again_ms = AGAIN_MS;

	/*
	 * our own look may have found the loss once more, where it cannot go on
	 * record
	 */
	losses_failed = evidence_losses();
	failed_at = clock_seconds();
}

/*
 * Empty the files, before a statement.  A logical replication worker does so only when it connects.  Later
 * the end of a subtransaction would advance its origin: if its transaction then fails, the publisher does
 * not send it again.
 */
void
lost_guard_empty_files(void)
{
	if (!IsLogicalWorker())
		empty_unlocked_files();
}

/* What the emptying worker does in a transaction */
typedef struct ListTask
{
	MemoryContext context;		/* of the list */
	List	   *indexes;		/* LostIndex */
	bool		is_complete;	/* no index is missing, but of later losses */
} ListTask;

/* List the lost indexes of the database.  For errors_catch_without_snapshot(). */
static void
list_in_worker(void *arg)
{
	ListTask   *task = arg;

	task->is_complete = !has_uncommitted();
	foreach_ptr(const LostIndex, lost, lost_of_database())
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(task->context);
		LostIndex  *copy = palloc_object(LostIndex);

		*copy = *lost;
		task->indexes = lappend(task->indexes, copy);
		MemoryContextSwitchTo(oldcontext);
	}
}

/*
 * Have all sessions plan statements again that they have planned with an index that is lost since.  For
 * errors_catch_without_snapshot().
 */
static void
have_planned_again(void *arg)
{
	foreach_ptr(const LostIndex, lost, (const List *) arg)
	{
		Oid			table = IndexGetRelation(lost->oid, true);

		if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(table)))
			CacheInvalidateRelcacheByRelid(table);
	}
}

/*
 * Empty the files of the lost indexes of this database by a worker, also if that takes a
 * checkpoint, and have sessions use no lost index by an earlier plan.  With is_again, an earlier
 * call has left files, and failures are not logged again.  No transaction is open: each try is one,
 * so that neither vacuum, nor a standby that has to know of each lock, waits long.  Returns whether
 * files are left, or may be: others have locked them, they could not be emptied, or their rows are not
 * committed.  ERROR if the list of files cannot be had.
 */
bool
lost_guard_empty_all(bool is_again)
{
	ListTask	task = {.context = CurrentMemoryContext};
	uint32		losses = evidence_losses();
	bool		tells = !is_again;
	List	   *full;
	List	   *others = NIL;
	ErrorData  *error;

	Assert(!IsTransactionState());
	if (losses == 0 || RecoveryInProgress() || IM_MUTATION("keep-lost"))
		return false;
	error = errors_catch_without_snapshot(list_in_worker, &task);
	if (error != NULL)
		ReThrowError(error);
	full = those_with_pages(task.indexes, true);
	(void) was_well(errors_catch_without_snapshot(have_planned_again,
												  is_again ? full : task.indexes), tells);
	if (full != NIL && has_images())
		empty_by_queueing(full, tells);
	else
		others = those_free(full, tells);
	for (int i = 0; i < list_length(others); i += MOST_STOPPED)
	{
		List	   *batch = list_truncate(list_copy_tail(others, i), MOST_STOPPED);

		(void) was_well(errors_catch_without_snapshot(empty_behind_checkpoint, batch), tells);
	}
	if (!task.is_complete || are_left(task.indexes))
		return true;
	evidence_note_met(losses, one_for_each_tablespace(task.indexes));
	return false;
}

/* ---- marks, while a statement is planned ---- */

/*
 * Callback of the relcache, which will load an entry again from the catalog: the entry has no mark any
 * more, and may have another file, or other indexes.  Called at any moment, so it allocates nothing.
 */
static void
note_invalidation(Datum arg, Oid relid)
{
	ListCell   *lc;

	if (!OidIsValid(relid) || nchanged == MOST_CHANGED)
		changes_missed++;
	else if (nchanged == 0 || changed[nchanged - 1] != relid)
		changed[nchanged++] = relid;
	foreach(lc, marks)
	{
		Mark	   *mark = lfirst(lc);

		if (OidIsValid(relid) && mark->index != relid)
			continue;
		marks = foreach_delete_current(marks, lc);
		pfree(mark);
	}
}

/*
 * Take off the marks of this plan.  Their entries were not loaded again, so no catalog is read; if a
 * catalog is read all the same, note_invalidation() finds no mark that is in use here.
 */
static void
unmark(uint64 plan)
{
	while (marks != NIL && ((const Mark *) llast(marks))->plan == plan)
	{
		Mark	   *mark = llast(marks);
		Oid			index_oid = mark->index;
		Relation	index;

		marks = list_delete_last(marks);
		pfree(mark);
		index = RelationIdGetRelation(index_oid);
		if (!RelationIsValid(index))
			continue;
		index->rd_index->indisvalid = true;
		RelationClose(index);
	}
}

/* Take off marks after an error: of all plans in (sub)transactions of this level and below. */
static void
forget_marks(int level)
{
	while (marks != NIL && ((const Mark *) llast(marks))->level >= level)
	{
		Mark	   *mark = llast(marks);
		Oid			index = mark->index;

		marks = list_delete_last(marks);
		pfree(mark);

		/*
		 * in a transaction that is aborted, the entry is not loaded again at
		 * once
		 */
		RelationCacheInvalidateEntry(index);
	}
}

/* Have this session's relcache say of a lost index that it is not valid.  For errors_catch(). */
static void
mark_index(void *arg)
{
	Oid			index_oid = *(const Oid *) arg;
	MemoryContext oldcontext;
	Relation	index;
	Mark	   *mark;

	if (!index_is_lost(index_oid))
		return;
	index = RelationIdGetRelation(index_oid);
	if (!RelationIsValid(index))
		return;
	/* core reads TOAST values by a valid index only */
	if (index->rd_index->indisvalid && !IsToastNamespace(index->rd_rel->relnamespace))
	{
		oldcontext = MemoryContextSwitchTo(TopMemoryContext);
		mark = palloc_object(Mark);
		mark->index = index_oid;
		mark->plan = current_plan;
		/* not the level here: succeeds() has a subtransaction */
		mark->level = current_level;
		marks = lappend(marks, mark);
		MemoryContextSwitchTo(oldcontext);
		index->rd_index->indisvalid = false;
	}
	RelationClose(index);
}

/* Mark the lost indexes of a table, which pg_index lists: no relcache entry of the table is needed. */
static void
mark_indexes_of(Oid table)
{
	if (table < FirstNormalObjectId || hash_search(tables_listed, &table, HASH_FIND, NULL) == NULL)
		return;
	foreach_oid(index_oid, indexes_of_table(table))
	{
		if (!index_is_lost(index_oid))
			continue;

		/*
		 * a session that drops it could end between two reads of its catalog
		 * entries
		 */
		if (ConditionalLockRelationOid(index_oid, AccessShareLock))
		{
			mark_index(&index_oid);
			UnlockRelationOid(index_oid, AccessShareLock);
		}
		/* it is just being emptied, or dropped */
		else if (!IsInParallelMode())
			(void) succeeds(mark_index, &index_oid, false);
	}
}

/* Mark the lost indexes of all tables. */
static void
mark_all(void)
{
	HASH_SEQ_STATUS scan;
	const Oid  *table;
	List	   *tables = NIL;

	hash_seq_init(&scan, tables_listed);
	while ((table = hash_seq_search(&scan)) != NULL)
		tables = lappend_oid(tables, *table);
	foreach_oid(oid, tables)
		mark_indexes_of(oid);
}

/* Return whether the planner may put the body of a function in its place, with other tables. */
static bool
may_be_inlined(const RangeTblEntry *rte)
{
	bool		result = false;

	foreach_ptr(const RangeTblFunction, function, rte->functions)
	{
		Oid			oid;
		HeapTuple	row;
		Form_pg_proc form;

		if (!IsA(function->funcexpr, FuncExpr))
			continue;
		/* functions of core read no tables of users */
		oid = ((const FuncExpr *) function->funcexpr)->funcid;
		if (oid < FirstNormalObjectId)
			continue;
		row = SearchSysCache1(PROCOID, ObjectIdGetDatum(oid));
		if (!HeapTupleIsValid(row))
			continue;
		form = (Form_pg_proc) GETSTRUCT(row);
		if (form->prolang == SQLlanguageId)
			result = true;
		/* its support function may do it, too */
		if (SUPPORT_INLINES_TABLES && OidIsValid(form->prosupport))
			result = true;
		ReleaseSysCache(row);
	}
	return result;
}

/*
 * Mark the lost indexes of the tables that a query names; hide_lost() marks those of the tables
 * below.  For query_tree_walker(); arg: whether all are to be marked.
 */
static bool
mark_named(Node *node, void *arg)
{
	Query	   *query = (Query *) node;

	if (node == NULL)
		return false;
	if (!IsA(node, Query))
		return expression_tree_walker(node, mark_named, arg);
	foreach_ptr(const RangeTblEntry, rte, query->rtable)
	{
		if (rte->rtekind == RTE_RELATION)
			mark_indexes_of(rte->relid);
		else if (rte->rtekind == RTE_FUNCTION && may_be_inlined(rte))
			*(bool *) arg = true;
	}
	return query_tree_walker(query, mark_named, arg, 0);
}

/* Mark the lost indexes of the tables below one that is being planned. */
static void
mark_below(Oid relid)
{
	Relation	parent;
	PartitionDesc partitions;
	List	   *others = NIL;

	if (!has_subclass(relid))
		return;
	parent = table_open(relid, NoLock);
	if (parent->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		partitions = RelationGetPartitionDesc(parent, true);
		for (int i = 0; i < partitions->nparts; i++)
			mark_indexes_of(partitions->oids[i]);
	}
	else
		others = relation_and_below(relid);
	table_close(parent, NoLock);
	foreach_oid(table, others)
		mark_indexes_of(table);
}

/* Put the table of an index onto a list, by any version of its row. */
static void
list_table_of(Oid index, HTAB *tables)
{
	Relation	pg_index = table_open(IndexRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&key, Anum_pg_index_indexrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(index));
	scan = systable_beginscan(pg_index, IndexRelidIndexId, true, SnapshotAny, 1, &key);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(row);

		(void) hash_search(tables, &form->indrelid, HASH_ENTER, NULL);
	}
	systable_endscan(scan);
	table_close(pg_index, AccessShareLock);
}

/*
 * List the tables of this database that may have lost indexes, by all versions of rows that pg_class has.
 * If it has none of such an index, other processes need not read it for these losses.
 */
static void
list_tables(uint32 losses)
{
	HASHCTL		control = {.keysize = sizeof(Oid),.entrysize = sizeof(Oid)};
	HTAB	   *tables = hash_create("tables with lost indexes", 64, &control, HASH_ELEM | HASH_BLOBS);
	List	   *tablespaces = evidence_lossy();

	/* with it no version is removed during the scan */
	Snapshot	snapshot = RegisterSnapshot(GetCatalogSnapshot(RelationRelationId));
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_class, InvalidOid, false, SnapshotAny, 0, NULL);
	HeapTuple	row;
	List	   *indexes = NIL;
	List	   *lost_rows = NIL;
	bool		has_none = true;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		if (!is_index_there(row, tablespaces) ||
			!evidence_doubts(tablespace_from_catalog(form->reltablespace), form->relfilenode))
			continue;
		has_none = false;
		if (evidence_knows_lost(row))
			lost_rows = lappend(lost_rows, heap_copytuple(row));
		if (!IsToastNamespace(form->relnamespace))
			indexes = lappend_oid(indexes, form->oid);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	/* on a standby, nothing else does so */
	(void) evidence_keep_lost(lost_rows);
	list_free_deep(lost_rows);
	foreach_oid(index, indexes)
		list_table_of(index, tables);
	UnregisterSnapshot(snapshot);
	/* an outer call of the planner can go on with the new list */
	if (tables_listed != NULL)
		hash_destroy(tables_listed);
	tables_listed = tables;
	if (has_none)
		evidence_note_met(losses, NIL);
}

/* Bring tables_listed up to date.  Returns whether it has any table. */
static bool
look_for_tables(uint32 losses)
{
	uint64		missed = changes_missed;

	if (losses_listed != losses || listed_at != missed)
	{
		nchanged = nchanged_listed = 0;
		/* in case that list_tables() fails */
		losses_listed = 0;
		list_tables(losses);
		losses_listed = losses;
		listed_at = missed;
	}
	for (; nchanged_listed < nchanged; nchanged_listed++)
		(void) hash_search(tables_listed, &changed[nchanged_listed], HASH_ENTER, NULL);
	return hash_get_num_entries(tables_listed) > 0;
}

/*
 * Return whether the database is known to have no lost index.  It gets none without a change of
 * evidence_losses(), but on a standby: replay can bring the row of a file that was copied there in part
 * before the loss (ALTER INDEX .. SET TABLESPACE).  Parallel workers, and sessions of a standby, empty no
 * files, and ask for what others have found.
 */
static bool
is_without_lost(uint32 losses)
{
	List	   *indexes;

	if (losses == losses_met)
		return tablespaces_met == NIL;
	return evidence_is_met(MyDatabaseId, losses, &indexes) && indexes == NIL;
}

static PlannedStmt *
plan_as_before(PLANNER_PARAMS)
{
	if (prev_planner_hook)
		return prev_planner_hook(PLANNER_ARGS);
	return standard_planner(PLANNER_ARGS);
}

/* Have marks belong to another call, which begins. */
static void
begin_marks(void)
{
	static uint64 last_plan = 0;

	current_plan = ++last_plan;
	current_level = GetCurrentTransactionNestLevel();
}

/* Plan with marks, which are there while a statement is planned, and no longer. */
static PlannedStmt *
plan_with_marks(PLANNER_PARAMS)
{
	uint64		outer_plan = current_plan;
	int			outer_level = current_level;
	uint64		plan;
	bool		all = false;
	PlannedStmt *result;

	begin_marks();
	plan = current_plan;
	PG_TRY();
	{
		(void) mark_named((Node *) parse, &all);
		if (all)
			mark_all();
		result = plan_as_before(PLANNER_ARGS);
	}
	PG_FINALLY();
	{
		current_plan = outer_plan;
		current_level = outer_level;
	}
	PG_END_TRY();
	unmark(plan);
	return result;
}

/* Look whether tables of this database may have lost indexes, and list them. */
static bool
list_lost(uint32 losses)
{
	if (losses == 0 || is_without_lost(losses))
		return false;
	return look_for_tables(losses);
}

static PlannedStmt *
plan_without_lost(PLANNER_PARAMS)
{
	uint32		losses = IM_MUTATION("show-lost") ? 0 : evidence_losses();
	bool		has_lost;

	if (losses != 0)
	{
		lost_guard_empty_files();
		losses = evidence_losses();
	}
	if (losses != losses_planned)
		ResetPlanCache();
	losses_planned = losses;
	has_lost = list_lost(losses);
	if (!has_lost)
		return plan_as_before(PLANNER_ARGS);
	return plan_with_marks(PLANNER_ARGS);
}

/* Hook: a statement that writes begins; its plan may be older than the loss. */
static void
write_without_lost(QueryDesc *query, int flags)
{
	if (evidence_losses() != 0 && !IM_MUTATION("show-lost") &&
		(query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE))
		lost_guard_empty_files();
	if (prev_ExecutorStart_hook)
		prev_ExecutorStart_hook(query, flags);
	else
		standard_ExecutorStart(query, flags);
}

/*
 * Return whether a statement without a plan may read or write files.
 */
static bool
may_use_files(const Node *stmt)
{
	return !IsA(stmt, TransactionStmt) && !IsA(stmt, VariableSetStmt) &&
		!IsA(stmt, VariableShowStmt);
}

static Oid
default_tablespace_of(Oid database)
{
	HeapTuple	row = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	Oid			result;

	if (!HeapTupleIsValid(row))
		return InvalidOid;
	result = ((Form_pg_database) GETSTRUCT(row))->dattablespace;
	ReleaseSysCache(row);
	return result;
}

/*
 * Look whether the directory of a database in a tablespace has files that may be lost, by their
 * numbers, and are not empty.
 */
static bool
look_for_doubtful_files(Oid database, Oid tablespace)
{
	const char *path = GetDatabasePath(database, tablespace);
	DIR		   *dir = AllocateDir(path);
	struct dirent *entry;
	bool		result = false;

	/* without the directory, nothing is copied */
	if (dir == NULL && errno == ENOENT)
		return false;
	while ((entry = ReadDir(dir, path)) != NULL)
	{
		struct stat st;

		/* the first segments of main forks have names of digits only */
		if (entry->d_name[strspn(entry->d_name, "0123456789")] != '\0')
			continue;
		if (!evidence_doubts(tablespace, atooid(entry->d_name)))
			continue;
		if (stat(psprintf("%s/%s", path, entry->d_name), &st) == 0)
			result = st.st_size > 0;
		else
			result = errno != ENOENT;
		if (result)
			break;
	}
	FreeDir(dir);
	return result;
}

/*
 * Refuse to copy the directories of a database, or that of its default tablespace, while lost files
 * there may have pages: in the copy their numbers prove nothing, and old pages look whole.
 */
static void
check_copied_database(const char *name, bool only_default)
{
	Oid			database = get_database_oid(name, true);
	List	   *indexes;

	if (!OidIsValid(database) || evidence_is_met(database, evidence_losses(), &indexes))
		return;
	foreach_oid(tablespace, evidence_lossy())
	{
		bool		has_doubtful;

		if (only_default && tablespace != default_tablespace_of(database))
			continue;
		has_doubtful = look_for_doubtful_files(database, tablespace);
		if (!has_doubtful)
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot copy database \"%s\" while it has files of lost indexes", name),
				 errdetail("The device of tablespace \"%s\" has lost changes of them, and they are not empty yet.",
						   tablespace_name(tablespace)),
				 errhint("Try again in a minute. If it accepts connections, connect to it once. If that does not help, heal the tablespace there; the server log says why files cannot be emptied.")));
	}
}

/* Refuse a statement that would copy such a database. */
static void
check_copied_databases(const Node *stmt)
{
	if (IsA(stmt, CreatedbStmt))
	{
		const char *template = "template1";

		foreach_ptr(DefElem, option, ((const CreatedbStmt *) stmt)->options)
		{
			if (strcmp(option->defname, "template") == 0 && option->arg != NULL)
				template = defGetString(option);
		}
		check_copied_database(template, false);
	}
	else if (IsA(stmt, AlterDatabaseStmt))
	{
		foreach_ptr(DefElem, option, ((const AlterDatabaseStmt *) stmt)->options)
		{
			if (strcmp(option->defname, "tablespace") == 0)
				check_copied_database(((const AlterDatabaseStmt *) stmt)->dbname, true);
		}
	}
}

/* Return whether a statement ends a prepared transaction. */
static bool
is_end_of_prepared(const Node *stmt)
{
	TransactionStmtKind kind;

	if (!IsA(stmt, TransactionStmt))
		return false;
	kind = ((const TransactionStmt *) stmt)->kind;
	return kind == TRANS_STMT_COMMIT_PREPARED || kind == TRANS_STMT_ROLLBACK_PREPARED;
}

/* Empty the files.  For errors_catch(). */
static void
empty_files_caught(void *arg)
{
	lost_guard_empty_files();
}

/*
 * A prepared transaction has ended.  It may have kept sessions from a lost index, or brought an index
 * back.  So this session empties files at once; but not if all files were found to be empty, which is not
 * said while a transaction may have such an index.  Others try again after a time that grows, so all are
 * told, once a second at most.
 */
static void
meet_again(void)
{
	uint32		losses = evidence_losses();
	List	   *indexes;

	if (losses == 0 || evidence_is_met(MyDatabaseId, losses, &indexes))
		return;
	evidence_want_again();
	losses_failed = 0;
	(void) succeeds(empty_files_caught, NULL, true);
}

/* Pass a statement to the next hook or to core. */
static void
utility_as_before(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				  ProcessUtilityContext context, ParamListInfo params,
				  QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	if (prev_ProcessUtility_hook)
		prev_ProcessUtility_hook(pstmt, query, read_only_tree, context, params, environment, dest,
								 completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params, environment, dest,
								completion);
}

/*
 * Carry out CLUSTER with marks on all lost indexes.  It asks the planner for the cheaper way without its
 * hook, and all indexes of the table are read for that.  It rebuilds marked indexes like all others.
 */
static void
cluster_with_marks(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				   ProcessUtilityContext context, ParamListInfo params,
				   QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	uint64		outer_plan = current_plan;
	int			outer_level = current_level;
	uint64		plan;

	begin_marks();
	plan = current_plan;
	PG_TRY();
	{
		mark_all();
		utility_as_before(pstmt, query, read_only_tree, context, params, environment, dest,
						  completion);
	}
	PG_FINALLY();
	{
		current_plan = outer_plan;
		current_level = outer_level;
	}
	PG_END_TRY();
	unmark(plan);
}

/* A statement without a plan begins. */
static void
utility_without_lost(PlannedStmt *pstmt, const char *query, bool read_only_tree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	bool		marks_lost = false;

	/* to be asked before: the statement may be freed */
	bool		ends_prepared = is_end_of_prepared(pstmt->utilityStmt);

	if (evidence_losses() != 0 && !IM_MUTATION("show-lost"))
	{
		if (may_use_files(pstmt->utilityStmt))
			lost_guard_empty_files();
		if (!RecoveryInProgress())
			check_copied_databases(pstmt->utilityStmt);
		if (IS_CLUSTER(pstmt->utilityStmt))
			marks_lost = list_lost(evidence_losses());
	}
	if (marks_lost)
		cluster_with_marks(pstmt, query, read_only_tree, context, params, environment, dest,
						   completion);
	else
		utility_as_before(pstmt, query, read_only_tree, context, params, environment, dest,
						  completion);
	if (ends_prepared)
		meet_again();
}

/*
 * Callback at the end of the transaction that connects a process to its database: empty the files.  A
 * login is not to wait for a synchronous standby.  A parallel worker does nothing, since its leader has
 * emptied the files.  An error would be FATAL here: for a client it is logged, and the first statement that
 * plans or writes tries again.  Other processes, such as the apply of logical replication and
 * autovacuum, have no such statement: they end, and come again.
 */
static void
empty_when_connecting(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_COMMIT || is_connected || !OidIsValid(MyDatabaseId))
		return;
	is_connected = true;
	if (IsParallelWorker() || evidence_losses() == 0 || IM_MUTATION("show-lost"))
		return;

	/*
	 * a policy is not to hang with the device; a worker of the launcher does
	 * it by itself
	 */
	if (process_is_worker())
		return;
	commit_locally();
	losses_applied = evidence_losses();
	/* single-user mode is for repairs, so an error must not end it */
	if (MyBackendType == B_BACKEND || !IsUnderPostmaster)
		(void) succeeds(empty_files_caught, NULL, true);
	else
		empty_unlocked_files();
}

/* Return whether this transaction has written to the table of an index, which locks the table until its end. */
static bool
has_written_to_table_of(Oid index_oid)
{
	Oid			table = IndexGetRelation(index_oid, true);

	return OidIsValid(table) && CheckRelationOidLockedByMe(table, RowExclusiveLock, false);
}

/*
 * A transaction of a logical replication worker ends.  If a loss was found since it connected, or since this
 * was asked, note all lost indexes, also those that are empty by now: the worker may have used old files.  The
 * error makes it connect again, and then it empties them.
 */
static void
note_found_since(void)
{
	uint32		losses = evidence_losses();

	if (losses == 0 || losses == losses_applied)
		return;
	has_tried = true;
	note_left(lost_of_database());
	losses_applied = losses;
}

/*
 * Refuse to commit what was written to a table while a lost index that keeps duplicates out was not
 * empty: another session had locked it, so the old file may have let a duplicate pass.
 */
static void
refuse_duplicates(void)
{
	if (IsLogicalWorker() && !IM_MUTATION("show-lost") &&
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		note_found_since();
	foreach_oid(index_oid, left_indexes)
	{
		/* it may be rebuilt by now, which looks for duplicates */
		if (!index_is_lost(index_oid) || !has_written_to_table_of(index_oid))
			continue;
		/* the next statement tries again at once */
		losses_failed = 0;
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("cannot commit changes of table \"%s\" without index \"%s\"",
						get_rel_name(IndexGetRelation(index_oid, false)),
						get_rel_name(index_oid)),
				 errdetail("The index is lost, and its old file could not be emptied before. It may have let duplicates pass."),
				 errhint("Rebuild the index with REINDEX, and then repeat the transaction.")));
	}
}

/* Callback: a transaction that has written ends. */
static void
check_at_end(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		refuse_duplicates();
	else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE ||
			 event == XACT_EVENT_ABORT)
		has_tried = false;
}

/* Callback: an error has ended a transaction, and all plans in it. */
static void
end_marks(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT || event == XACT_EVENT_PARALLEL_ABORT)
		forget_marks(0);
}

static void
end_inner_marks(SubXactEvent event, SubTransactionId sub, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		forget_marks(GetCurrentTransactionNestLevel());
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
	/* before core looks at the tables below */
	if (current_plan != 0 && OidIsValid(RELATION_INFO_RELID))
		mark_below(RELATION_INFO_RELID);
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
	ProcessUtility_hook = utility_without_lost;
	CacheRegisterRelcacheCallback(note_invalidation, (Datum) 0);
	RegisterXactCallback(empty_when_connecting, NULL);
	RegisterXactCallback(check_at_end, NULL);
	RegisterXactCallback(end_marks, NULL);
	RegisterSubXactCallback(end_inner_marks, NULL);
}
