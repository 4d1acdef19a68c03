/*-------------------------------------------------------------------------
 *
 * leftover_files.c
 *	  Removing relation files that only the ledger knows.
 *
 * There are two kinds: a new file whose copy was not finished, and an old
 * file that a swap has put out of use.  When a file is left alone is in src/README,
 * "Protocol of the ledger".  ALTER INDEX .. SET TABLESPACE uses a file before a
 * pg_class row has its number, but that is from this cluster's OID counter, which
 * repeats a number of a row of ours only after four billion others.
 *
 * A large file is truncated first, piece by piece, because removing it at
 * once stalls every fsync until the file system has discarded the blocks.
 * Each step is that of core's RelationTruncate(), in the same order: log,
 * flush, drop the buffers, truncate.  So redo finds no block missing, and a
 * standby truncates in small steps, too.
 *
 * Tricky: this is not done in a critical section.  In core a failed
 * truncation is a PANIC, because the old contents of the blocks would be seen
 * again.  These blocks will never be read, and the storage that an index
 * leaves is likely to fail.  So a failure is an ERROR here, and the commit
 * removes the rest with the file; if the file system still refuses, that is a
 * WARNING.  Redo is stricter: if the server crashes before the next checkpoint
 * and the file system still refuses, it cannot start until that is repaired.
 *
 * proof/copy.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "access/xlogutils.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/storage.h"
#include "catalog/storage_xlog.h"
#include "common/relpath.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "own_tables.h"
#include "printed_command.h"
#include "wait/wait.h"

/*
 * Size of a truncation step.  Each is logged and flushed, and scans all buffer
 * headers, so a step is larger with very many buffers.
 */
#define STEP_BLOCKS			((BlockNumber) (16 * 1024 * 1024 / BLCKSZ))
#define LARGEST_STEP_BLOCKS	(4 * STEP_BLOCKS)
/* Size of a single truncation in the file system, see shorten_segment() */
#define PIECE_BLOCKS		((BlockNumber) (1024 * 1024 / BLCKSZ))

static RelFileLocator
entry_locator(const LedgerEntry *entry)
{
	/* a row written by hand may name pg_global */
	Oid			database = entry->tablespace == GLOBALTABLESPACE_OID ? InvalidOid : MyDatabaseId;

	return make_locator(entry->tablespace, database, entry->relfilenumber);
}

/* Return whether no relation owns a file, not even by a row that is not committed. */
static bool
is_removable(const RelFileLocator *locator)
{
	SnapshotData dirty;
	Relation	pg_class;
	bool		found = false;

	if (!OidIsValid(locator->spcOid) || locator->spcOid == GLOBALTABLESPACE_OID ||
		!RelFileNumberIsValid(locator->relNumber))
		return false;

	/* mapped relations have no number in pg_class */
	if (OidIsValid(RelationMapFilenumberToOid(locator->relNumber, false)))
		return false;

	InitDirtySnapshot(dirty);
	pg_class = table_open(RelationRelationId, AccessShareLock);
	/* twice: a scan may miss both versions of a row that is being updated */
	for (int look = 0; look < 2 && !found; look++)
	{
		ScanKeyData keys[] = {
			extension_key(Anum_pg_class_reltablespace, F_OIDEQ,
						  ObjectIdGetDatum(tablespace_in_catalog(locator->spcOid))),
			extension_key(Anum_pg_class_relfilenode, F_OIDEQ, ObjectIdGetDatum(locator->relNumber))
		};
		SysScanDesc scan = systable_beginscan(pg_class, ClassTblspcRelfilenodeIndexId, true,
											  &dirty, lengthof(keys), keys);

		found = HeapTupleIsValid(systable_getnext(scan));
		systable_endscan(scan);
	}
	table_close(pg_class, AccessShareLock);
	return !found;
}

/* Warn, and return true, if the tablespace's directory is missing, as when it is not mounted. */
static bool
warn_if_away(const RelFileLocator *locator)
{
	char	   *path = GetDatabasePath(locator->dbOid, locator->spcOid);

	/* the database's own directory in it is made with the first file */
	get_parent_directory(path);
	if (access(path, F_OK) == 0 || errno != ENOENT || get_tablespace_name(locator->spcOid) == NULL)
		return false;
	ereport(WARNING,
			(errcode(ERRCODE_UNDEFINED_FILE),
			 errmsg("could not remove a file that a move has left behind"),
			 errdetail("Directory \"%s\" does not exist.", path),
			 errhint("When it is there again, the next move removes the file, or: %s",
					 printed_command("cleanup"))));
	return true;
}

/*
 * Claim the tablespace's location.  Warn, and return false, if another server uses it: a server that
 * was restored from a backup on the same host has this ledger, but the file may be the other
 * server's by now.
 */
static bool
claim_location(const RelFileLocator *locator)
{
	bool		is_ours = evidence_claim(locator->spcOid);

	if (is_ours)
		return true;
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("did not remove file \"%s\", which a move has left behind",
					relation_fork_path(*locator, MAIN_FORKNUM)),
			 errdetail_internal("%s", evidence_reason(locator->spcOid)),
			 errhint("If no other server uses the location, remove the file \"%s\" there.", evidence_file_name())));
	return false;
}

static bool
is_file_row(const LedgerEntry *entry)
{
	return entry->kind == LEDGER_NEW_FILE || entry->kind == LEDGER_OLD_FILE;
}

/* Return, in a transaction, whether a copy may go on from the file of this row. */
bool
leftover_file_is_kept(const LedgerEntry *entry)
{
	RelFileLocator locator = entry_locator(entry);

	return entry->kind == LEDGER_NEW_FILE && entry->copied_blocks > 0 &&
		entry->database == MyDatabaseId && entry->keep_until > GetCurrentTimestamp() &&
		SearchSysCacheExists1(RELOID, ObjectIdGetDatum(entry->relid)) && is_removable(&locator);
}

/* Return, in a transaction, the row of that file for the copy of a relation, or NULL. */
LedgerEntry *
leftover_kept_file(Oid relid, Oid tablespace)
{
	foreach_ptr(LedgerEntry, entry, ledger_read())
	{
		if (entry->relid == relid && entry->tablespace == tablespace &&
			leftover_file_is_kept(entry))
			return entry;
	}
	return NULL;
}

/*
 * Return the bytes of the file from which the move of an item can go on: so much less
 * is needed.  A file of up to a megabyte is not looked for, because a job of 10,000
 * small relations would read the ledger, and its dead rows, for each of them.
 */
int64
leftover_kept_bytes(const MoveItem *item)
{
	LedgerEntry *entry = item->method != METHOD_COPY || item->size_before <= 1024 * 1024 ? NULL :
		leftover_kept_file(item->relid, item->to_tablespace);

	return entry != NULL ? (int64) entry->copied_blocks * BLCKSZ : 0;
}

/*
 * Return, in a transaction, whether a row is that of a file that no other process works
 * on, by this row or another of the ledger's rows: one written by hand may name the file of
 * a copy that is under way.
 */
bool
leftover_file_is_dead(const LedgerEntry *entry, const List *rows)
{
	if (!is_file_row(entry))
		return false;
	foreach_ptr(LedgerEntry, row, rows)
	{
		if (is_file_row(row) && row->tablespace == entry->tablespace &&
			row->relfilenumber == entry->relfilenumber && ledger_row_is_claimed(row->id))
			return false;
	}
	return true;
}

/*
 * Shorten the last segment of an unused file, which has no buffers any more,
 * towards nblocks, a megabyte at a time, and leave the last piece to
 * smgrtruncate().  A file system that discards freed blocks can take 0.2 ms for
 * a megabyte, in which the disk does nothing else: 16 at once would delay every
 * commit by 3 ms or more.
 */
static void
shorten_segment(const RelFileLocator *locator, BlockNumber old_nblocks, BlockNumber nblocks)
{
	BlockNumber first = (old_nblocks - 1) / RELSEG_SIZE * RELSEG_SIZE;
	char	   *path = relation_segment_path(locator, MAIN_FORKNUM, first);
	int			fd = OpenTransientFile(path, O_RDWR | PG_BINARY);

	/* smgrtruncate() raises the error */
	if (fd < 0)
		return;
	while (old_nblocks > Max(nblocks, first) + PIECE_BLOCKS)
	{
		old_nblocks -= PIECE_BLOCKS;
		if (ftruncate(fd, (off_t) (old_nblocks - first) * BLCKSZ) < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not truncate file \"%s\": %m", path)));
		/* see copy_keep_up() */
		(void) sched_yield();
	}
	CloseTransientFile(fd);
}

/*
 * Truncate the main fork of a file that no relation owns to nblocks, logged; see
 * the head of this file.  In small pieces if paced.
 */
void
leftover_file_shorten(const RelFileLocator *locator, BlockNumber nblocks, bool paced)
{
	SMgrRelation smgr = smgropen(*locator, INVALID_PROC_NUMBER);
	ForkNumber	fork = MAIN_FORKNUM;
	xl_smgr_truncate record = {nblocks, *locator, SMGR_TRUNCATE_HEAP};

	/* open the file before logging, as far as that can fail */
	BlockNumber old_nblocks = smgrnblocks(smgr, fork);

	/* the abort of a transaction lets checkpoints continue after an error */
	Assert(IsTransactionState());
	Assert(nblocks < old_nblocks);

	/* no checkpoint may come between the record and the truncation */
	Assert((MyProc->delayChkptFlags & (DELAY_CHKPT_START | DELAY_CHKPT_COMPLETE)) == 0);
	MyProc->delayChkptFlags |= DELAY_CHKPT_START | DELAY_CHKPT_COMPLETE;

	XLogBeginInsert();
	XLogRegisterData((char *) &record, sizeof(record));
	XLogFlush(XLogInsert(RM_SMGR_ID, XLOG_SMGR_TRUNCATE | XLR_SPECIAL_REL_UPDATE));
	if (paced)
		shorten_segment(locator, old_nblocks, nblocks);
	smgrtruncate(smgr, &fork, 1, &old_nblocks, &nblocks);

	MyProc->delayChkptFlags &= ~(DELAY_CHKPT_START | DELAY_CHKPT_COMPLETE);
}

/*
 * Remove the file of a ledger row, and the row, in a transaction of its own.  Does
 * nothing if the row is gone, because a swap or another cleanup has deleted it.
 * With file_exists = false only the row is removed: its maker has not created the
 * file, so a file of that name is not ours.  The row stays, with a WARNING, as long
 * as the tablespace's directory is missing, with which the file may come back; and file and
 * row, where another server uses the location.
 */
void
leftover_file_drop(const LedgerEntry *entry, bool file_exists)
{
	RelFileLocator locator = entry_locator(entry);
	bool		listed;
	bool		stays = false;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	commit_locally();
	Assert(ledger_row_is_ours(entry->id));

	/*
	 * DROP EXTENSION drops the ledger, but not the files it names.  If it
	 * does not succeed, or another session has locked the ledger, the next
	 * cleanup forgets the row.
	 */
	listed = extension_hold() == EXTENSION_HELD;
	if (listed)
		listed = ConditionalLockRelationOid(extension_relation("ledger"), RowExclusiveLock);
	file_exists &= (!listed || ledger_exists(entry->id)) && is_removable(&locator);
	if (file_exists && relation_file_size(&locator) < 0)
	{
		stays = warn_if_away(&locator);
		file_exists = false;
	}
	else if (file_exists)
	{
		file_exists = claim_location(&locator);
		stays = !file_exists;
	}
	if (file_exists)
	{
		Relation	rel = CreateFakeRelcacheEntry(locator);

		/* it is not pinned from 17 on, and RelationDropStorage() unpins */
		rel->rd_smgr = NULL;
		/* step: drop-file */
		RelationDropStorage(rel);	/* at commit */
		FreeFakeRelcacheEntry(rel);
	}
	if (listed && !stays)
		ledger_delete(entry->id);
	else if (!listed)
		(void) GetCurrentTransactionId();	/* files go with its commit record */
	CommitTransactionCommand();
}

/*
 * Drop the buffers of an old file in the current transaction.  They need not be
 * written: redo of changes to that file begins with page images.
 *
 * Without full_page_writes there are none.  Then a checkpoint that began before
 * the swap and ends now needs the buffers in the file, or redo would fail.  Our
 * last WAL record tells whether images were written up to the swap; a process
 * without one takes it that none were.  (Switching the setting on between a
 * change and the swap is not covered.)
 */
void
leftover_file_drop_buffers(const RelFileLocator *locator)
{
	XLogRecPtr	redo;
	bool		images;

	GetFullPageWriteInfo(&redo, &images);
	file_drop_buffers(locator, !images || !fullPageWrites);
}

/*
 * Remove an old file and its ledger row piece by piece, in transactions of
 * its own, and call between_steps() between them.  Both stay, with a WARNING, where
 * another server uses the location.
 */
void
leftover_file_remove(const LedgerEntry *entry, bool paced,
					 void (*between_steps) (void *arg), void *arg)
{
	RelFileLocator locator = entry_locator(entry);
	BlockNumber step = Min(Max(STEP_BLOCKS, NBuffers / 512), LARGEST_STEP_BLOCKS);
	BlockNumber nblocks = 0;
	bool		is_foreign = false;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	if (ledger_exists(entry->id) && is_removable(&locator) && relation_file_size(&locator) >= 0)
	{
		is_foreign = !claim_location(&locator);
		if (!is_foreign)
		{
			leftover_file_drop_buffers(&locator);
			nblocks = file_blocks(&locator, MAIN_FORKNUM);
		}
	}
	CommitTransactionCommand();
	if (is_foreign)
		return;
	IM_POINT("old-file-start");

	/* the commit that removes the file would discard the last step at once */
	while (nblocks > (paced ? PIECE_BLOCKS : step))
	{
		/* shorten_segment() does a segment, and smgrtruncate() the rest */
		nblocks = Max(nblocks > step ? nblocks - step : 0,
					  (nblocks - 1) / RELSEG_SIZE * RELSEG_SIZE);
		StartTransactionCommand();
		leftover_file_shorten(&locator, nblocks, paced);
		CommitTransactionCommand();
		IM_POINT("old-file-step");
		between_steps(arg);
	}

	IM_POINT("old-file-drop");
	between_steps(arg);
	leftover_file_drop(entry, true);
	IM_POINT("old-file-dropped");
}

/* Between the steps of removing a large file, obey cancel_move() and pause_move(). */
static void
between_steps(void *arg)
{
	throttle_rest(0);
	pacing_rest_while_paused();
}

/*
 * Remove the files of all rows that no process works on, with kept_too also files
 * from which a copy can go on.  A row without a file of ours is only deleted.  A
 * file that cannot be removed is a WARNING, and stays with its row.
 */
void
leftover_files_remove(bool kept_too)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ListCell   *cell;

	foreach(cell, ledger_read())
	{
		LedgerEntry *entry = lfirst(cell);

		if (!is_file_row(entry))
			continue;
		PG_TRY();
		{
			RelFileLocator locator = entry_locator(entry);
			bool		locked;
			bool		busy;
			bool		removes = false;

			StartTransactionCommand();
			locked = ledger_row_claim(entry->id, false);
			busy = !locked || !leftover_file_is_dead(entry, ledger_read()) ||
				(!kept_too && leftover_file_is_kept(entry));
			if (!busy && is_removable(&locator) && relation_file_size(&locator) >= 0)
				removes = evidence_claim(locator.spcOid);
			if (removes)
				ereport(LOG,
						(errhidecontext(true),
						 errmsg("%s: removing file \"%s\" (%s), left by job " INT64_FORMAT,
								runner_name(), relation_fork_path(locator, MAIN_FORKNUM),
								size_text(relation_file_size(&locator)), entry->job)));
			CommitTransactionCommand();
			if (!busy)
				leftover_file_remove(entry, true, between_steps, NULL);
			if (locked)
				ledger_row_release(entry->id);
		}
		PG_CATCH();
		{
			ErrorData  *error = errors_take(oldcontext);

			if (errors_was_canceled(error))
				ReThrowError(error);
			ereport(WARNING,
					(errmsg("could not remove a file that a move has left behind"),
					 errors_as_detail(error)));
		}
		PG_END_TRY();
		MemoryContextSwitchTo(oldcontext);
	}
}

/* Between the steps, where the job was canceled before: obey the end of the process only. */
static void
go_on_removing(void *arg)
{
	QueryCancelPending = false;
	CHECK_FOR_INTERRUPTS();
}

/*
 * Remove the files of a table from which copies of a job could go on, and no process works on.
 * ERROR 55P03 if a session keeps the ledger locked for max_wait_ms.
 */
void
leftover_kept_files_remove(int64 job, Oid heap_oid, int max_wait_ms)
{
	bool		held;

	/* a session that is dropping it has locked the ledger */
	StartTransactionCommand();
	held = extension_hold() == EXTENSION_HELD;
	CommitTransactionCommand();
	if (!held)
		return;
	foreach_ptr(LedgerEntry, entry, ledger_read_within(max_wait_ms))
	{
		bool		is_kept;

		if (entry->kind != LEDGER_NEW_FILE || entry->job != job || entry->heap_oid != heap_oid)
			continue;
		if (!ledger_row_claim(entry->id, false))
			continue;
		StartTransactionCommand();
		is_kept = leftover_file_is_kept(entry);
		CommitTransactionCommand();
		if (is_kept)
			leftover_file_remove(entry, false, go_on_removing, NULL);
		ledger_row_release(entry->id);
	}
}

/* Return the file of such a row; size -1: there is nothing of ours to remove. */
Leftover *
leftover_file_describe(const LedgerEntry *entry)
{
	RelFileLocator locator = entry_locator(entry);
	Leftover   *leftover = palloc0(sizeof(Leftover));

	leftover->kind = entry->kind == LEDGER_NEW_FILE ? LEFTOVER_UNFINISHED_COPY : LEFTOVER_OLD_FILE;
	leftover->ledger_id = entry->id;
	leftover->job = entry->job;
	leftover->keep_until = leftover_file_is_kept(entry) ? entry->keep_until : 0;
	leftover->tablespace = entry->tablespace;
	leftover->name = relation_fork_path(locator, MAIN_FORKNUM);
	leftover->size = is_removable(&locator) ? relation_file_size(&locator) : -1;
	return leftover;
}
