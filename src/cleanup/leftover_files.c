/*-------------------------------------------------------------------------
 *
 * leftover_files.c
 *	  Removing relation files that only the ledger knows.
 *
 * Two kinds: a new file whose copy was not finished, and an old file that a
 * swap has put out of use.  In both cases no pg_class row names the file, so
 * no lock on a relation is needed, or would help; what has to be excluded is
 * that the worker whose file it is still works on it.  Whoever makes a ledger
 * row therefore holds a lock on the row's number (ledger_row_claim()) for as
 * long as it lives, and a removal takes the same lock first.
 *
 * What a row says is not believed: the file is left alone if any pg_class row
 * has its number, also one that is being inserted or deleted by a transaction
 * still running, if the relation map has it, or if somebody holds the lock of
 * another row that names it.  (Another database's file has
 * another path; ledger_read() does not give rows of other databases anyway.)  A
 * file may be in use before any pg_class row has its number: ALTER INDEX .. SET
 * TABLESPACE writes that row last.  Such a file can't have the number of one of our
 * rows, because all rows were written by this cluster (see catalog.c), with numbers
 * drawn from its OID counter, which gives none out again before four billion others.
 *
 * The file goes by the drop list of the transaction that deletes the ledger
 * row: so the commit record carries it, and standbys remove it too.
 *
 * Truncation first, piece by piece, because removing a large file in one call
 * stalls everybody's fsync for as long as the file system needs to discard its
 * blocks.  Each step does what core's RelationTruncate() does, in its order: it
 * logs, flushes, drops the buffers, and only then truncates, so that redo finds
 * no block missing and a standby goes gently too.  A crash between two steps
 * leaves a shorter file.
 *
 * But not in a critical section: in core a truncation that fails is a PANIC,
 * because the old contents of the blocks would be seen again.  Nobody will ever
 * look at these, and the storage one moves away from is the one to fail.  So it
 * is an ERROR: the rest goes at once, with the commit that removes the file,
 * which takes no more than a WARNING if the file system still refuses.  That a
 * standby has truncated more by then does no harm.  Redo knows no such mercy: if
 * the server crashes before the next checkpoint, and the file system still
 * refuses, it can't start until that is mended.  (To truncate without a record
 * would be worse: recovery would miss blocks that older records change.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "access/xlogutils.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/storage.h"
#include "catalog/storage_xlog.h"
#include "commands/tablespace.h"
#include "common/relpath.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/smgr.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"

#include "cleanup/cleanup.h"
#include "cleanup/ledger.h"
#include "compat.h"
#include "file_system.h"
#include "own_tables.h"
#include "test_points.h"

/*
 * How much to truncate in a step: 16 MB stall others for about 5 ms.  Each
 * step looks at all buffer headers, so it is more where there are very many.
 */
#define STEP_BLOCKS			((BlockNumber) (16 * 1024 * 1024 / BLCKSZ))
#define LARGEST_STEP_BLOCKS	(4 * STEP_BLOCKS)
#define STEP_REST_MS		10
/* How often to ask again for a row that others may only be looking at */
#define CLAIM_TRIES			50
#define CLAIM_REST_MS		10
/* Page header and alignment, which pgWalUsage does not count */
#define OWN_WAL_SLACK		128

static void set_row_tag(LOCKTAG *tag, int64 id);
static RelFileLocator entry_locator(const LedgerEntry *entry);
static bool is_file_row(const LedgerEntry *entry);
static bool is_named_by_others(const LedgerEntry *entry);
static bool is_removable(const RelFileLocator *locator);
static int64 file_size(const RelFileLocator *locator);
static bool directory_is_away(const RelFileLocator *locator);
static void put_on_drop_list(const RelFileLocator *locator);
static void shorten_file(const RelFileLocator *locator, BlockNumber nblocks);

/*
 * Lock a ledger row's number for the session.  Its maker does so before the
 * row is committed, and keeps the lock until the row is deleted.
 */
void
ledger_row_claim(int64 id)
{
	LOCKTAG		tag;

	set_row_tag(&tag, id);
	(void) LockAcquire(&tag, ExclusiveLock, true, false);
}

/*
 * The same for one who had that lock, and has lost it with all others by an
 * error.  Does not queue: a process that exits can't be interrupted, and keeps
 * everybody waiting who wants all processes to answer (DROP DATABASE).  Who only
 * looks at the row has it for moments; who has it for longer is removing the file
 * in our place, and then false is returned.
 */
bool
ledger_row_claim_again(int64 id)
{
	LOCKTAG		tag;

	set_row_tag(&tag, id);
	for (int i = 0; i < CLAIM_TRIES; i++)
	{
		if (i > 0)
			pg_usleep(CLAIM_REST_MS * 1000L);
		if (LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL)
			return true;
	}
	return false;
}

/* Give the lock on a ledger row's number back. */
void
ledger_row_release(int64 id)
{
	LOCKTAG		tag;

	set_row_tag(&tag, id);
	(void) LockRelease(&tag, ExclusiveLock, true);
}

/*
 * Remove the file of a ledger row and the row, at once, when the current
 * transaction commits.  Nothing happens if the row is gone (a swap or somebody
 * else's clean-up has taken it away).  With file_exists = false only the row
 * goes: its maker never got to create the file, and one of that name would be
 * somebody else's.  The row stays, with a WARNING, as long as the tablespace's
 * folder is not there: the file may come back with it.
 *
 * The caller holds the row's lock, and is in a transaction.
 */
void
leftover_file_drop(const LedgerEntry *entry, bool file_exists)
{
	RelFileLocator locator = entry_locator(entry);
	Oid			busy;
	bool		listed = extension_hold(&busy) == EXTENSION_HELD;

	/*
	 * Who drops the extension drops the ledger, but not what it speaks of. If
	 * he only wanted to, the row is forgotten at the next look.
	 */
	if (listed && !ledger_exists(entry->id))
		return;
	if (file_exists && is_removable(&locator))
	{
		if (file_size(&locator) >= 0)
			put_on_drop_list(&locator);
		else if (directory_is_away(&locator))
			return;
	}
	if (listed)
		ledger_delete(entry->id);
	else
		(void) GetCurrentTransactionId();	/* files go with its commit record */
}

/*
 * Drop the buffers of an old file.  Nobody will read them, and nobody need write
 * them: what a crash makes recovery redo in that file begins with an image of the
 * page.  Without full_page_writes it doesn't, and then a checkpoint that began
 * before the swap, and ends now, counts on what is in the buffers: redo would
 * stumble over what the file has instead.  What counts is whether images were
 * written up to the swap, which our last WAL record has seen; a process that has
 * written none sees that none were.  (Who switches the setting on between a
 * change and the swap is not covered.)
 *
 * The caller is in a transaction.
 */
void
leftover_file_drop_buffers(const RelFileLocator *locator)
{
	SMgrRelation smgr = smgropen(*locator, INVALID_PROC_NUMBER);
	XLogRecPtr	redo;
	bool		images;

	GetFullPageWriteInfo(&redo, &images);
	if (!images || !fullPageWrites)
		FlushRelationsAllBuffers(&smgr, 1);
	DropRelationsAllBuffers(&smgr, 1);
}

/*
 * Remove an old file and its ledger row piece by piece, in transactions of its
 * own, calling rest() between them, outside of any transaction; with 0 if nobody
 * else has written WAL meanwhile, because then nobody waits for a flush.
 *
 * Called with no transaction open, and the row's lock held for the session.
 */
void
leftover_file_remove(const LedgerEntry *entry, void (*rest) (int ms))
{
	RelFileLocator locator = entry_locator(entry);
	BlockNumber step = Min(Max(STEP_BLOCKS, NBuffers / 512), LARGEST_STEP_BLOCKS);
	BlockNumber nblocks = 0;
	bool		removable;

	StartTransactionCommand();
	removable = ledger_exists(entry->id) && is_removable(&locator) &&
		file_size(&locator) >= 0;
	if (removable)
	{
		leftover_file_drop_buffers(&locator);
		nblocks = file_blocks(&locator, MAIN_FORKNUM);
	}
	CommitTransactionCommand();
	IM_POINT("old-file-start");

	while (nblocks > step)
	{
		XLogRecPtr	start = GetXLogInsertRecPtr();
		uint64		own = pgWalUsage.wal_bytes;

		nblocks -= step;
		StartTransactionCommand();
		shorten_file(&locator, nblocks);
		CommitTransactionCommand();
		IM_POINT("old-file-step");
		own = pgWalUsage.wal_bytes - own + OWN_WAL_SLACK;
		rest(GetXLogInsertRecPtr() - start > own ? STEP_REST_MS : 0);
	}

	IM_POINT("old-file-drop");
	rest(0);
	StartTransactionCommand();
	commit_locally();
	leftover_file_drop(entry, true);
	CommitTransactionCommand();
	IM_POINT("old-file-dropped");
}

/*
 * Remove the files of all rows of this database's ledger that nobody works on.
 * Rows whose file has an owner, or does not exist, are deleted; that alone is
 * never a reason to touch a file.
 *
 * To be called with no transaction open, in a worker.  What can't be removed
 * is a WARNING, and stays in the ledger.
 */
void
leftover_files_remove(void (*rest) (int ms))
{
	MemoryContext oldcxt = CurrentMemoryContext;
	List	   *entries;
	ListCell   *cell;

	StartTransactionCommand();
	MemoryContextSwitchTo(oldcxt);
	entries = ledger_read();
	CommitTransactionCommand();
	MemoryContextSwitchTo(oldcxt);

	foreach(cell, entries)
	{
		LedgerEntry *entry = (LedgerEntry *) lfirst(cell);

		if (!is_file_row(entry))
			continue;

		PG_TRY();
		{
			LOCKTAG		tag;
			bool		free;

			StartTransactionCommand();
			set_row_tag(&tag, entry->id);
			free = LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
			if (free && is_named_by_others(entry))
			{
				LockRelease(&tag, ExclusiveLock, true);
				free = false;
			}
			CommitTransactionCommand();
			if (free)
			{
				leftover_file_remove(entry, rest);
				ledger_row_release(entry->id);
			}
		}
		PG_CATCH();
		{
			ErrorData  *error;

			if (geterrcode() == ERRCODE_QUERY_CANCELED)
				PG_RE_THROW();
			error = errors_take(oldcxt);
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("could not remove a file that a move has left behind: %s",
							error->message)));
			FreeErrorData(error);
		}
		PG_END_TRY();
		MemoryContextSwitchTo(oldcxt);
	}
}

/*
 * List the file rows of this database's ledger that nobody works on, as a
 * palloc'd List of LeftoverFile *.  In the current transaction; changes
 * nothing.  A row that names a relation's own file, or none, is listed with
 * size -1: there is nothing of ours to remove.
 */
List *
leftover_files_list(void)
{
	List	   *found = NIL;
	ListCell   *cell;

	foreach(cell, ledger_read())
	{
		LedgerEntry *entry = (LedgerEntry *) lfirst(cell);
		RelFileLocator locator = entry_locator(entry);
		LeftoverFile *leftover;
		LOCKTAG		tag;

		if (!is_file_row(entry))
			continue;
		set_row_tag(&tag, entry->id);
		if (LockAcquire(&tag, ShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
			continue;
		LockRelease(&tag, ShareLock, true);
		if (is_named_by_others(entry))
			continue;

		leftover = palloc0(sizeof(LeftoverFile));
		leftover->ledger_id = entry->id;
		leftover->kind = entry->kind;
		leftover->heap_oid = entry->heap_oid;
		leftover->tablespace = entry->tablespace;
		leftover->name = relation_fork_path(locator, MAIN_FORKNUM);
		leftover->size = is_removable(&locator) ? file_size(&locator) : -1;
		found = lappend(found, leftover);
	}
	return found;
}

/* Is this a row about a file? */
static bool
is_file_row(const LedgerEntry *entry)
{
	return entry->kind == LEDGER_NEW_FILE || entry->kind == LEDGER_OLD_FILE;
}

/*
 * Does somebody work on the file of this row by another row?  Nothing of ours
 * makes two rows for a file; a row that somebody has written by hand may name
 * the file of a copy that is under way.
 */
static bool
is_named_by_others(const LedgerEntry *entry)
{
	ListCell   *cell;

	foreach(cell, ledger_read())
	{
		LedgerEntry *other = (LedgerEntry *) lfirst(cell);
		LOCKTAG		tag;

		if (other->id == entry->id || !is_file_row(other) ||
			other->tablespace != entry->tablespace ||
			other->relfilenumber != entry->relfilenumber)
			continue;
		set_row_tag(&tag, other->id);
		if (LockAcquire(&tag, ShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
			return true;
		LockRelease(&tag, ShareLock, true);
	}
	return false;
}

/*
 * The lock tag of a ledger row: an object of the ledger table.  Outside of a
 * transaction, and when the table has been dropped, its OID is that of the last
 * time it was seen: who releases a lock has taken it before, and who removes a
 * file after DROP EXTENSION has worked on it before.
 */
static void
set_row_tag(LOCKTAG *tag, int64 id)
{
	static Oid	ledger = InvalidOid;
	Oid			found = IsTransactionState() ?
		extension_find_relation("index_mover_ledger") : InvalidOid;

	if (OidIsValid(found))
		ledger = found;
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, ledger,
					   (uint32) id, (uint16) (id >> 32));
}

static RelFileLocator
entry_locator(const LedgerEntry *entry)
{
	RelFileLocator locator;

	locator.spcOid = entry->tablespace;
	/* no row of ours names pg_global, but one that somebody has made up may */
	locator.dbOid = entry->tablespace == GLOBALTABLESPACE_OID ? InvalidOid : MyDatabaseId;
	locator.relNumber = entry->relfilenumber;
	return locator;
}

/*
 * May a file be removed?  Not if any relation of this database owns it, also
 * by a row that a running transaction is inserting or has deleted.
 */
static bool
is_removable(const RelFileLocator *locator)
{
	SnapshotData dirty;
	Relation	pg_class;
	ScanKeyData key[2];
	bool		found = false;

	if (!OidIsValid(locator->spcOid) || locator->spcOid == GLOBALTABLESPACE_OID ||
		!RelFileNumberIsValid(locator->relNumber))
		return false;

	/* mapped relations have no number in pg_class */
	if (OidIsValid(RelationMapFilenumberToOid(locator->relNumber, false)))
		return false;

	InitDirtySnapshot(dirty);
	pg_class = table_open(RelationRelationId, AccessShareLock);
	/* twice: a row that is updated in mid-scan may be missed in both versions */
	for (int look = 0; look < 2 && !found; look++)
	{
		SysScanDesc scan;

		ScanKeyInit(&key[0], Anum_pg_class_reltablespace,
					BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(locator->spcOid == MyDatabaseTableSpace ?
									 InvalidOid : locator->spcOid));
		ScanKeyInit(&key[1], Anum_pg_class_relfilenode,
					BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(locator->relNumber));
		scan = systable_beginscan(pg_class, ClassTblspcRelfilenodeIndexId, true,
								  &dirty, 2, key);
		found = HeapTupleIsValid(systable_getnext(scan));
		systable_endscan(scan);
	}
	table_close(pg_class, AccessShareLock);
	return !found;
}

/* Bytes of all forks, -1 if there is no main fork. */
static int64
file_size(const RelFileLocator *locator)
{
	int64		size = 0;

	for (ForkNumber fork = MAIN_FORKNUM; fork <= MAX_FORKNUM; fork++)
	{
		char	   *base = relation_fork_path(*locator, fork);

		for (uint32 segment = 0;; segment++)
		{
			char	   *path = segment == 0 ? pstrdup(base) :
				psprintf("%s.%u", base, segment);
			struct stat st;
			int			rc = stat(path, &st);

			pfree(path);
			if (rc < 0)
			{
				if (fork == MAIN_FORKNUM && segment == 0)
					return -1;
				break;
			}
			size += st.st_size;
		}
		pfree(base);
	}
	return size;
}

/*
 * Is the folder missing that CREATE TABLESPACE has made, as when the file system
 * is not mounted?  Then says so.  (This database's own folder in it is made with
 * the first file.)
 */
static bool
directory_is_away(const RelFileLocator *locator)
{
	char	   *path = GetDatabasePath(locator->dbOid, locator->spcOid);
	struct stat st;

	get_parent_directory(path);
	if (stat(path, &st) == 0 || errno != ENOENT ||
		get_tablespace_name(locator->spcOid) == NULL)
		return false;
	ereport(WARNING,
			(errcode(ERRCODE_UNDEFINED_FILE),
			 errmsg("could not remove a file that a move has left behind: %s",
					psprintf("directory \"%s\" does not exist", path)),
			 errhint("When it is there again, the next move or index_mover_cleanup() removes the file.")));
	return true;
}

/* Have the current transaction's commit remove a file. */
static void
put_on_drop_list(const RelFileLocator *locator)
{
	Relation	rel = CreateFakeRelcacheEntry(*locator);

	RelationDropStorage(rel);
	FreeFakeRelcacheEntry(rel);
}

/*
 * Cut the main fork of a file that nobody uses any more down to so many blocks,
 * logged; see the head of this file.  The caller is in a transaction, whose
 * abort lets checkpoints go on if this fails.
 */
static void
shorten_file(const RelFileLocator *locator, BlockNumber nblocks)
{
	SMgrRelation smgr = smgropen(*locator, INVALID_PROC_NUMBER);
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber old_nblocks;
	xl_smgr_truncate record;

	/* as far as opening the file can fail, let it do so before it is logged */
	old_nblocks = smgrnblocks(smgr, fork);

	memset(&record, 0, sizeof(record));
	record.blkno = nblocks;
	record.rlocator = *locator;
	record.flags = SMGR_TRUNCATE_HEAP;

	/* no checkpoint may come between the record and the truncation */
	Assert((MyProc->delayChkptFlags & (DELAY_CHKPT_START | DELAY_CHKPT_COMPLETE)) == 0);
	MyProc->delayChkptFlags |= DELAY_CHKPT_START | DELAY_CHKPT_COMPLETE;

	XLogBeginInsert();
	XLogRegisterData((char *) &record, sizeof(record));
	XLogFlush(XLogInsert(RM_SMGR_ID, XLOG_SMGR_TRUNCATE | XLR_SPECIAL_REL_UPDATE));
	smgrtruncate(smgr, &fork, 1, &old_nblocks, &nblocks);

	MyProc->delayChkptFlags &= ~(DELAY_CHKPT_START | DELAY_CHKPT_COMPLETE);
}
