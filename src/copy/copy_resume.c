/*-------------------------------------------------------------------------
 *
 * copy_resume.c
 *	  Method copy: recording how far a copy is, and going on after its end.
 *
 * src/README, "A copy that goes on", has the protocol, and why it is right, also on a
 * standby that was promoted.  Whatever is not certain begins the copy again.
 *
 * Tricky: the summaries begin and end at the redo positions of checkpoints.  A copy
 * asks for a checkpoint when it begins.  A copy that goes on does not: it reads the WAL
 * behind the last summary, as any copy does.
 *
 * proof/resume.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/timeline.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"
#include "storage/fd.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "cleanup/cleanup.h"
#include "copy/copy_private.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "report/report.h"

#ifdef IM_HAS_WAL_SUMMARIES
#include "common/blkreftable.h"
#include "postmaster/walsummarizer.h"

/* Record so often at least; more often where index_mover.resumable_size is less */
#define RECORD_BLOCKS		((BlockNumber) (1024 * 1024 * 1024 / BLCKSZ))

/* Keep the file so long after the last record; by default WAL summaries are kept for longer */
#define KEEP_US				(3 * USECS_PER_DAY)

/* Wait no longer for WAL summaries that do not get on */
#define SUMMARIES_WAIT_MS	(60 * 1000)
#define SUMMARIES_POLL_MS	100

/* While the WAL behind the summaries is read, a checkpoint may remove some of it */
#define MOST_TRIES			5

/* The range that read_summaries() reads: some WAL of a timeline. */
typedef struct SummarizedWal
{
	CopyFile   *file;			/* for which it is read */
	TimeLineID	timeline;
	XLogRecPtr	begin;
	XLogRecPtr	end;
	File		summary;		/* open; 0 = none */
} SummarizedWal;

/* Add to the list the blocks of the copied file that a summary names. */
static void
read_summary(SummarizedWal *wal, WalSummaryFile *summary)
{
	CopyFile   *file = wal->file;
	WalSummaryIO io = {.file = OpenWalSummaryFile(summary, false)};
	BlockRefTableReader *reader;
	RelFileLocator locator;
	ForkNumber	fork;
	BlockNumber limit;

	wal->summary = io.file;
	reader = CreateBlockRefTableReader(ReadWalSummary, &io, FilePathName(io.file),
									   ReportWalSummaryError, NULL);
	while (BlockRefTableReaderNextRelation(reader, &locator, &fork, &limit))
	{
		bool		is_ours = RelFileLocatorEquals(locator, file->from) && fork == MAIN_FORKNUM;
		bool		is_database = locator.relNumber == 0 && locator.dbOid == file->from.dbOid &&
			(locator.spcOid == file->from.spcOid || locator.spcOid == file->to.spcOid);
		bool		wanted = is_ours && !IM_MUTATION("resume-summaries");
		BlockNumber blocks[256];
		unsigned	nblocks;

		/* it was truncated, or all of the database's files there are others */
		if ((is_ours && !IM_MUTATION("resume-limit")) || is_database)
			file->copied = Min(file->copied, limit);
		while ((nblocks = BlockRefTableReaderGetBlocks(reader, blocks, lengthof(blocks))) > 0)
		{
			if (!wanted)
				continue;
			for (unsigned i = 0; i < nblocks; i++)
				block_set_add(file->todo, blocks[i]);
		}
		CHECK_FOR_INTERRUPTS();
	}
	DestroyBlockRefTableReader(reader);
	FileClose(io.file);
	wal->summary = 0;
}

/* Read all summaries of the range; ERROR if some of it is not summarized. */
static void
read_summaries(void *arg)
{
	SummarizedWal *wal = arg;
	List	   *files = GetWalSummaries(wal->timeline, wal->begin, wal->end);
	XLogRecPtr	missing;

	if (!WalSummariesAreComplete(files, wal->begin, wal->end, &missing))
		elog(ERROR, "there is no WAL summary from %X/%X on on timeline %u",
			 LSN_FORMAT_ARGS(Max(missing, wal->begin)), wal->timeline);
	foreach_ptr(WalSummaryFile, summary, files)
		read_summary(wal, summary);
}

/*
 * Wait until WAL is summarized up to the last checkpoint, on this timeline, and let
 * others pass meanwhile.  Sets *upto to where the summaries end, and a record starts.
 * Returns NULL, or why that is in vain.
 */
static const char *
wait_for_summaries(CopyFile *file, TimeLineID timeline, XLogRecPtr *upto)
{
	XLogRecPtr	last_pending = InvalidXLogRecPtr;
	double		since = clock_seconds();

	for (;;)
	{
		TimeLineID	summarized;
		XLogRecPtr	pending;
		int			pid;

		GetWalSummarizerState(&summarized, upto, &pending, &pid);
		if (!summarize_wal)
			return "summarize_wal is off";
		if (summarized == timeline && *upto >= GetRedoRecPtr())
			return NULL;
		if (pending != last_pending)
			since = clock_seconds();
		else if (clock_has_passed(since, SUMMARIES_WAIT_MS))
			return psprintf("WAL summarization is not progressing from %X/%X",
							LSN_FORMAT_ARGS(pending));
		last_pending = pending;
		WakeupWalSummarizer();
		throttle_rest(SUMMARIES_POLL_MS);
		if (!copy_let_others_pass(file->move))
			return file->move->why_ended;
	}
}

/*
 * Put onto the list the blocks that the summaries name from the recorded position to *upto,
 * where the summaries end on this timeline.  Returns NULL, or why they do not tell all.
 */
static const char *
find_changes(CopyFile *file, const LedgerEntry *entry, XLogRecPtr *upto)
{
	TimeLineID	timeline = GetWALInsertionTimeLine();
	const char *why = wait_for_summaries(file, timeline, upto);
	MemoryContext oldcontext = CurrentMemoryContext;

	if (why != NULL)
		return why;
	/* the WAL has all of it */
	if (entry->timeline == timeline && entry->changes_from >= *upto)
	{
		*upto = entry->changes_from;
		return NULL;
	}

	why = "what was copied is not in the history of this server";
	StartTransactionCommand();
	foreach_ptr(const TimeLineHistoryEntry, tle, readTimeLineHistory(timeline))
	{
		bool		first = tle->tli == entry->timeline;
		SummarizedWal wal = {file, tle->tli, tle->begin, tle->tli == timeline ? *upto : tle->end};
		ErrorData  *error = NULL;

		if (first)
		{
			if (entry->changes_from < wal.begin || entry->changes_from > wal.end)
				break;
			wal.begin = entry->changes_from;
		}
		if (wal.begin < wal.end)
			error = errors_catch(read_summaries, &wal);
		if (wal.summary > 0)
			FileClose(wal.summary);
		if (errors_was_canceled(error))
			ReThrowError(error);
		if (error != NULL || first)
		{
			why = error != NULL ? MemoryContextStrdup(oldcontext, error->message) : NULL;
			break;
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(oldcontext);
	return why;
}

/* Some blocks of the file that was kept */
typedef struct KeptBlocks
{
	CopyFile   *file;
	BlockNumber first;
	BlockNumber end;
} KeptBlocks;

/* Put each block that is empty, or not valid, onto the list.  For errors_catch(). */
static void
look_at_blocks(void *arg)
{
	const KeptBlocks *kept = arg;
	SMgrRelation smgr = smgropen(kept->file->to, INVALID_PROC_NUMBER);
	PGIOAlignedBlock page;

	for (BlockNumber block = kept->first; block < kept->end; block++)
	{
		/* step: look-at-pages */
		smgrread(smgr, MAIN_FORKNUM, block, page.data);
		if (PageIsNew((Page) page.data) || !im_page_is_verified(page.data, block) ||
			!page_is_of(kept->file->relam, page.data))
			block_set_add(kept->file->todo, block);
	}
}

/*
 * Look at all blocks that a row calls durable, and put each that is empty, or no page, onto
 * the list: a device that has lost a block has zeros, or something else, in its place.
 * Blocks that are empty in the old file, too, cost little.  Returns NULL, or why no block
 * may be trusted.
 */
static const char *
look_at_kept_file(CopyFile *file, const LedgerEntry *entry)
{
	SMgrRelation smgr = smgropen(file->to, INVALID_PROC_NUMBER);
	BlockNumber length = 0;
	const char *why = NULL;

	/* step: vouch */
	if (!evidence_vouches(entry->tablespace, entry->relfilenumber))
		return "it is not known whether the tablespace has kept that file";
	if (smgrexists(smgr, MAIN_FORKNUM))
		length = file_blocks(&file->to, MAIN_FORKNUM);
	if (length < entry->copied_blocks)
		return psprintf("the file that was kept has %u blocks instead of " INT64_FORMAT, length,
						entry->copied_blocks);
	/* recovery has used buffers, and no other process knows the file */
	StartTransactionCommand();
	/* step: drop-buffers-first */
	if (!IM_MUTATION("resume-buffers"))
		file_drop_buffers(&file->to, true);
	CommitTransactionCommand();
	for (BlockNumber block = 0; block < entry->copied_blocks; block += FILE_COPY_CHUNK)
	{
		KeptBlocks	kept = {file, block, Min(block + FILE_COPY_CHUNK, entry->copied_blocks)};
		ErrorData  *error;
		instr_time	start;

		job_check_cancel();
		(void) pacing_rest(file->move->settings, 0, &file->throttle, copy_let_others_pass,
						   file->move);
		if (file->move->end != COPY_GOES_ON)
			return file->move->why_ended;
		StartTransactionCommand();
		INSTR_TIME_SET_CURRENT(start);
		error = errors_catch(look_at_blocks, &kept);
		throttle_read(&file->throttle, elapsed_us(start), (int64) (kept.end - block) * BLCKSZ);
		if (errors_was_canceled(error))
			ReThrowError(error);
		if (error != NULL)
			why = MemoryContextStrdup(file->move->cxt, error->message);
		CommitTransactionCommand();
		if (why != NULL)
			return why;
	}
	return NULL;
}

/*
 * Find out which part of the file of a row may be trusted: set file->copied to its length,
 * file->todo to the blocks of it that may have changed, and file->changes.  Returns NULL,
 * or why nothing may be.
 */
static const char *
find_trusted(CopyFile *file, const LedgerEntry *entry)
{
	ChangesResult result = CHANGES_WAL_GONE;
	const char *why;
	bool		map_is_cut;

	if (entry->from_tablespace != file->from.spcOid ||
		entry->from_relfilenumber != file->from.relNumber)
		return "it has another file since";
	/* first, since the WAL is not kept meanwhile */
	why = look_at_kept_file(file, entry);
	if (why != NULL)
		return why;
	file->copied = entry->copied_blocks;
	for (int tries = 0; tries < MOST_TRIES && result == CHANGES_WAL_GONE; tries++)
	{
		XLogRecPtr	upto;

		wal_changes_end(file->changes);
		file->changes = NULL;
		why = find_changes(file, entry, &upto);
		if (why != NULL)
			return why;
		MemoryContextSwitchTo(file->move->cxt);
		file->changes = wal_changes_begin(&file->from, upto, file->direct);
		IM_POINT("resume-summaries");
		/* step: find-changes */
		result = wal_changes_read(file->changes, wal_changes_mark(), file->copied, false);
	}
	if (result != CHANGES_READ)
		return copy_changes_lost(result);

	/* blocks of zeros, by which it was extended, may be lost in a crash */
	file->copied = Min(file->copied, file_blocks(&file->from, MAIN_FORKNUM));
	map_is_cut = file_blocks(&file->from, VISIBILITYMAP_FORKNUM) <
		file_blocks(&file->to, VISIBILITYMAP_FORKNUM);
	if (file->copied == 0 || map_is_cut)
		return "its file was truncated, or created again";

	copy_take_changes(file);
	foreach_block(block, file->todo)
	{
		if (block >= file->copied)
			block_set_remove(file->todo, block);
	}
	/* its changes are not all in the WAL */
	block_set_add(file->todo, 0);
	return NULL;
}

/*
 * Let others pass while the file is removed, which may be large.  When the copy cannot go on
 * any more, nothing needs the locks.
 */
static void
while_removing(void *arg)
{
	CopyMove   *move = (CopyMove *) arg;

	job_check_cancel();
	if (move->end != COPY_GOES_ON)
		return;
	if (!copy_let_others_pass(move))
		copy_release_locks(move);
}

/*
 * Have a summary begin where this copy does, so that the creation of the file before,
 * or its load, is not taken for a change.  The checkpoint is spread as any; if it has to
 * wait for another checkpoint, do not wait for it.
 */
static bool
begin_summary(CopyFile *file)
{
	XLogRecPtr	redo = GetRedoRecPtr();

	RequestCheckpoint(0);
	for (int ms = 0; ms < 1000 && GetRedoRecPtr() == redo; ms += SUMMARIES_POLL_MS)
	{
		throttle_rest(SUMMARIES_POLL_MS);
		if (!copy_let_others_pass(file->move))
			return false;
	}
	return true;
}

/*
 * Go on from the file that an earlier copy has left, if there is such a file and it can be
 * trusted: set file->resume.goes_on.  If it cannot, it is removed, with a NOTICE.
 */
static bool
take_over_file(CopyFile *file)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	MoveItem   *item = file->item;
	LedgerEntry *entry;
	const char *why;

	/* all files of a move share a detail */
	const char *of_part = item == copy_item_of(file) ? "" :
		psprintf(" of %s \"%s\"", relation_noun(item->relkind), NameStr(item->relname));

	if (!copy_begin_with_ledger(file->move))
		return false;
	MemoryContextSwitchTo(file->move->cxt);
	entry = leftover_kept_file(file->relid, item->to_tablespace);
	if (entry != NULL)
	{
		if (ledger_row_claim_again(entry->id))
			file->claimed = entry->id;
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(oldcontext);
	if (entry == NULL)
		return true;
	file->to = make_locator(entry->tablespace, MyDatabaseId, entry->relfilenumber);
	if (file->claimed != 0)
		why = find_trusted(file, entry);
	else
		why = "the file that was kept is being removed";
	MemoryContextSwitchTo(oldcontext);
	if (file->move->end != COPY_GOES_ON)
		return false;
	if (why != NULL)
	{
		wal_changes_end(file->changes);
		file->changes = NULL;
		block_set_clear(file->todo);
		file->copied = 0;
		ereport(NOTICE,
				(errmsg("the copy of %s \"%s\" begins again", relation_noun(item->relkind),
						NameStr(item->relname)),
				 errdetail("It does not go on where job " INT64_FORMAT " has ended, because %s.",
						   entry->job, why)));
		item_say(copy_item_of(file), "The copy%s did not go on where job " INT64_FORMAT " had ended, because %s.",
				 of_part, entry->job, why);
		if (file->claimed != 0)
		{
			leftover_file_remove(entry, file->move->settings->pacing, while_removing, file->move);
			ledger_row_release(entry->id);
		}
		file->claimed = 0;
		return file->move->end == COPY_GOES_ON;
	}

	item_say(copy_item_of(file), "The copy%s went on where job " INT64_FORMAT " had ended, with %s of which %s had to be copied again.",
			 of_part, entry->job, size_text((int64) file->copied * BLCKSZ),
			 size_text(block_set_count(file->todo) * BLCKSZ));
	/* step: lower-row */
	/* in this order: the next step may leave less of the file */
	entry->copied_blocks = file->copied;
	entry->job = file->move->mc->job->job;
	entry->pid = MyProcPid;
	if (!copy_begin_with_ledger(file->move))
		return false;
	commit_locally();
	ledger_update(entry);
	CommitTransactionCommand();
	file->claimed = 0;
	file->new_file = *entry;
	file->new_file_made = true;
	file->resume.goes_on = true;
	IM_POINT("resume-recorded");
	return true;
}

/*
 * Before a copy: find out whether it is to record how far it is, and whether it can go
 * on from the file of an earlier copy.
 */
bool
copy_resume(CopyFile *file)
{
	const MoveSettings *settings = file->move->settings;
	int64		least = (int64) settings->resumable_size * 1024 / BLCKSZ;

	if (settings->resumable_size < 0 || settings->terms.rehearse)
		return true;
	if (!take_over_file(file))
		return false;
	if (!XLogIsNeeded() || file_blocks(&file->from, MAIN_FORKNUM) <= least)
		return true;
	file->resume.step = Min(RECORD_BLOCKS, Max(least, FILE_COPY_CHUNK));
	if (file->resume.goes_on || !summarize_wal || file->move->nfollowers > 0)
		return true;
	return begin_summary(file);
}

/* Prepare the file of an earlier copy, and for the records of this copy. */
void
copy_resume_begin(CopyFile *file)
{
	StartTransactionCommand();
	if (file->resume.goes_on)
	{
		/*
		 * In one step, which redo repeats after a crash: the row names
		 * nothing of the part that goes, a gigabyte unless F was truncated.
		 */
		/* step: cut */
		if (file_blocks(&file->to, MAIN_FORKNUM) > file->copied)
			leftover_file_shorten(&file->to, file->copied, file->move->settings->pacing);
		file_copy_record(file->copy, file->copied);
		file_copy_flush_first(file->copy);
	}
	else
	{
		file->new_file.changes_from = wal_changes_position(file->changes);
		file->new_file.timeline = GetWALInsertionTimeLine();
	}
	file->resume.due_at = file->copied + file->resume.step;
	CommitTransactionCommand();
	if (file->resume.goes_on)
		IM_POINT("resume-begins");
}

static void
update_row(void *entry)
{
	ledger_update(entry);
	IM_POINT("resume-record");
	/* a lock timeout that has met the grant would end the copy */
	CHECK_FOR_INTERRUPTS();
}

/*
 * If it is time, or all of the new file is durable, record how far the copy is.  Where
 * the row cannot be written, that is a WARNING, once, and the last record stands.
 */
void
copy_resume_record(CopyFile *file, bool synced)
{
	LedgerEntry entry = file->new_file;
	ErrorData  *error;

	if (file->resume.step == 0 || !summarize_wal)
		return;
	if (!synced && file->copied < file->resume.due_at)
		return;
	IM_POINT("resume-recording");
	entry.from_tablespace = file->from.spcOid;
	entry.from_relfilenumber = file->from.relNumber;
	entry.copied_blocks = file->copied;
	if (IM_MUTATION("resume-late"))
		entry.changes_from = GetXLogInsertRecPtr();
	entry.keep_until = GetCurrentTimestamp() + KEEP_US;

	StartTransactionCommand();
	commit_locally();
	file_copy_record(file->copy, file->copied);
	/* a session may have locked the ledger */
	LockTimeout = file->move->settings->lock_timeout;
	error = errors_catch(update_row, &entry);
	LockTimeout = 0;
	if (errors_was_canceled(error))
		ReThrowError(error);
	if (error != NULL && !file->move->so_far->told_of_record)
		ereport(WARNING,
				(errmsg("could not record how far the copy of %s \"%s\" is",
						relation_noun(file->item->relkind), NameStr(file->item->relname)),
				 errors_as_detail(error),
				 errhint("The copy goes on. A later copy would begin where the last record is.")));
	if (error != NULL)
		file->move->so_far->told_of_record = true;
	/* step: record */
	/* flushes the WAL of all changes in the new file, by others and by us */
	CommitTransactionCommand();
	file->resume.due_at = file->copied + file->resume.step;
	if (error == NULL)
		file->new_file = entry;
	IM_POINT("resume-recorded");
}

#endif							/* IM_HAS_WAL_SUMMARIES */
