/*-------------------------------------------------------------------------
 *
 * copy_steps.c
 *	  The method copy: move a relation's file while the relation is in use.
 *
 * src/README has the protocol: "Protocol of a copy", "A table".  Here its steps follow
 * each other: for each file of a move, the largest first, up to the comparison
 * (copy_file()), and once for all files from then on (copy_once()).
 *
 * Tricky: only the ledger knows the new file, and after the swap the old file.  After an
 * ERROR they are removed by copy_cleanup(), after an exit by our before_shmem_exit
 * callback, after a crash by the next leftover_files_remove().
 * After the swap's commit no error may reach the caller: the move has happened.
 *
 * proof/copy.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "catalog/storage_xlog.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"

#include "cleanup/cleanup.h"
#include "copy/copy.h"
#include "copy/copy_private.h"
#include "errors.h"
#include "file_compression.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"

/* Starts after which a copy is given up */
#define MOST_STARTS			5

static CopyMove *current = NULL;
static CopySoFar so_far;

/* Return the row of the file that is not in use, new or old. */
static LedgerEntry *
unused_file(CopyFile *file)
{
	return file->move->stage == COPY_SWAPPED ? &file->old_file : &file->new_file;
}

/* Remove the file that is not in use, if there is any, for remove_what_is_left(). */
static void
remove_left_file(CopyFile *file)
{
	LedgerEntry *entry = unused_file(file);
	MemoryContext oldcontext = CurrentMemoryContext;

	Assert(!IsTransactionState());
	if (entry->id == 0)
		return;
	PG_TRY();
	{
		if (ledger_row_claim_again(entry->id))
		{
			IM_POINT("left-file-drop");
			leftover_file_drop(entry, file->new_file_made);
			ledger_row_release(entry->id);
		}
		entry->id = 0;
	}
	PG_CATCH();
	{
		ErrorData  *error = errors_take(oldcontext);

		ereport(WARNING,
				(errmsg("could not remove a file that a move has left behind"),
				 errors_as_detail(error),
				 errhint("Later, call: %s", printed_command("cleanup"))));
	}
	PG_END_TRY();
}

/*
 * Remove our files, new or old, at once; with keep, no new file from which a copy can
 * go on.  Raises no error: a file that cannot be removed stays in the ledger.  (In
 * cleanup_at_exit() every ERROR is FATAL, and ends this function; the exit goes on.)
 * Nothing if the postmaster is gone, which may be the reason for the error.
 */
static void
remove_what_is_left(CopyMove *move, bool keep)
{
	if (!PostmasterIsAlive())
		proc_exit(1);
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		file_copy_free(file->copy);
		file->copy = NULL;
		if (keep && file->new_file.copied_blocks > 0)
			file->new_file.id = 0;
		remove_left_file(file);
	}
}

/* Free the state of a move, whose locks are released; its ledger rows stay. */
static void
forget_state(void)
{
	if (current != NULL)
		MemoryContextDelete(current->cxt);
	current = NULL;
}

/* Exit callback: clean up after a FATAL error, which no PG_CATCH sees. */
static void
cleanup_at_exit(int code, Datum arg)
{
	CopyMove   *move = current;

	if (move == NULL || !PostmasterIsAlive())
		return;
	current = NULL;
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	remove_what_is_left(move, true);
}

/* Create the new file; its row in the ledger is flushed before it exists. */
static bool
make_file(CopyFile *file)
{
	MoveItem   *item = file->item;
	LedgerEntry entry = {
		.kind = LEDGER_NEW_FILE,
		.tablespace = item->to_tablespace,
		.heap_oid = file->table,
		.relid = file->relid,
		.job = file->move->mc->job->job,
		.pid = MyProcPid,
		.made_at = GetCurrentTimestamp(),
	};
	SMgrRelation smgr;

	Assert(!IsTransactionState() && file->new_file.id == 0 && file->move->has_locks);
	if (!copy_begin_with_ledger(file->move))
		return false;
	commit_locally();
	entry.relfilenumber = GetNewRelFileNumber(item->to_tablespace, NULL,
											  RELPERSISTENCE_PERMANENT);
	/* step: ledger-row */
	ledger_insert(&entry);
	(void) ledger_row_claim(entry.id, true);
	CommitTransactionCommand();
	file->new_file = entry;
	IM_POINT("copy-registered");

	file->to = make_locator(item->to_tablespace, MyDatabaseId, entry.relfilenumber);
	StartTransactionCommand();
	smgr = smgropen(file->to, INVALID_PROC_NUMBER);
	/* an existing file of that name would not be ours: an error */
	/* step: create-file */
	smgrcreate(smgr, MAIN_FORKNUM, false);
	file->new_file_made = true;
	log_smgrcreate(&file->to, MAIN_FORKNUM);
	CommitTransactionCommand();
	IM_POINT("copy-created");
	return true;
}

/* Return whether a relation that moves is in the target already, and is only locked. */
static bool
is_in_place(const CopyRelation *relation)
{
	return relation->file.spcOid == relation->item->to_tablespace;
}

/* After the swap, note how large the relations are now. */
static void
note_sizes(const CopyMove *move)
{
	for (int i = 0; i < move->nrelations; i++)
	{
		const CopyRelation *relation = &move->relations[i];

		if (relation->item != NULL && is_in_place(relation))
			relation->item->outcome.size_after = relation_file_size(&relation->file);
	}
	for (int i = 0; i < move->nfiles; i++)
		move->files[i].item->outcome.size_after = relation_file_size(&move->files[i].to);
}

/*
 * End a move or a rehearsal: load the blocks that were cached; remove the old files, or
 * the new files, piece by piece, because commits would wait for the disk.  An error is
 * only a WARNING.
 */
static void
end_move(CopyMove *move)
{
	MoveItem   *item = move->item;
	bool		moved = (move->stage == COPY_SWAPPED);
	MemoryContext oldcontext = CurrentMemoryContext;

	Assert(!IsTransactionState() && (moved || item->outcome.status == STATUS_REHEARSED));
	PG_TRY();
	{
		if (moved)
		{
			IM_POINT("swapped");
			progress_phase(PHASE_PREWARMING);
			/* it has won the deadlock */
			runner_forget_step_back();
			note_sizes(move);
			for (int i = 0; i < move->nfiles; i++)
			{
				CopyFile   *file = &move->files[i];

				/* the swap has deleted its row */
				ledger_row_release(file->new_file.id);
				if (move->settings->prewarm)
					copy_prewarm(file);
			}
			IM_POINT("prewarmed");
		}
		copy_release_locks(move);

		progress_phase(moved ? PHASE_REMOVING_OLD_FILE : PHASE_CLEANING_UP);
		for (int i = 0; i < move->nfiles; i++)
		{
			CopyFile   *file = &move->files[i];
			LedgerEntry *entry = unused_file(file);

			file_copy_free(file->copy);
			copy_eta(file, PHASE_REMOVING_OLD_FILE, file->copied, 0);
			leftover_file_remove(entry, move->settings->pacing, copy_rest_after_swap, move);
			ledger_row_release(entry->id);
			entry->id = 0;
		}
	}
	PG_CATCH();
	{
		ErrorData  *error = errors_take(oldcontext);
		int			elevel = errors_was_canceled(error) ? NOTICE : WARNING;

		move->has_locks = false;
		if (moved)
			ereport(elevel,
					(errmsg("could not remove the old file of %s \"%s\" piece by piece",
							relation_noun(item->relkind), NameStr(item->relname)),
					 errors_as_detail(error)));
		else
			ereport(elevel,
					(errmsg("could not remove the new file of %s \"%s\" piece by piece",
							relation_noun(item->relkind), NameStr(item->relname)),
					 errors_as_detail(error)));

		/* so remove it at once */
		remove_what_is_left(move, false);
	}
	PG_END_TRY();
}

/* End a rehearsal: the row says how the copy went, and which sessions are in the way of its swap. */
static void
tell_rehearsal(CopyFile *file)
{
	MoveItem   *item = file->item;
	double		seconds = (GetCurrentTimestamp() - file->began_at) / 1e6;
	int			pids[WAIT_MAX_PIDS];
	int			count;
	VirtualTransactionId *holders;

	item->outcome.size_after = relation_file_size(&file->to);
	StartTransactionCommand();
	item->outcome.detail[0] = '\0'; /* the plan's reasons */
	item_say(item, "Copied %s a second.",
			 size_text((int64) (item->outcome.size_after / Max(seconds, 0.001))));
	item_say(item, INT64_FORMAT " of " INT64_FORMAT " blocks changed meanwhile, %.0f a second.",
			 file->changed_blocks, item->outcome.blocks_copied,
			 file->changed_blocks / Max(seconds, 0.001));
	if (file->pace.rounds > 0)
		item_say(item, "Rounds that copied changed blocks again: %d.", file->pace.rounds);
	if (copy_verifies(file))
		item_say(item, "The copy was equal to the original.");
	holders = relation_lock_holders(file->relid, AccessExclusiveLock, &count);
	if (virtual_transaction_pids(holders, count, pids, WAIT_MAX_PIDS) > 0)
		item_say(item, "In the way of the swap would have been: %s.",
				 blockers_describe(holders, count));
	CommitTransactionCommand();
}

/* By their tables, then by themselves */
static int
compare_items(const void *a, const void *b)
{
	const MoveItem *item1 = *(MoveItem *const *) a;
	const MoveItem *item2 = *(MoveItem *const *) b;

	if (item1->heap_oid != item2->heap_oid)
		return item1->heap_oid < item2->heap_oid ? -1 : 1;
	return item1->relid < item2->relid ? -1 : 1;
}

/* Make the state of a move, in a context of its own. */
static CopyMove *
new_move(MoveContext *mc)
{
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext, "index_mover copy",
											  ALLOCSET_DEFAULT_SIZES);
	CopyMove   *move = MemoryContextAllocZero(cxt, sizeof(CopyMove));

	move->cxt = cxt;
	move->mc = mc;
	move->item = mc->item;
	move->settings = mc->settings;
	move->so_far = &so_far;

	/* whoever locks several of them does so in this order, as a rule */
	move->nitems = mc->nitems;
	move->items = MemoryContextAlloc(cxt, mc->nitems * sizeof(MoveItem *));
	memcpy(move->items, mc->items, mc->nitems * sizeof(MoveItem *));
	qsort(move->items, move->nitems, sizeof(MoveItem *), compare_items);
	return move;
}

/* Add a relation of a table; item is NULL if it does not move. */
static void
add_relation(CopyMove *move, Oid table, Oid relid, LOCKMODE lock, MoveItem *item)
{
	CopyRelation *relation = &move->relations[move->nrelations];

	/* the table of several indexes is locked once */
	for (int i = 0; i < move->nrelations; i++)
	{
		if (move->relations[i].relid == relid)
			return;
	}
	move->nrelations++;
	relation->table = table;
	relation->relid = relid;
	relation->lock = lock;
	relation->item = item;
}

/* Return the TOAST table of the table that moves, and the index of that; or none. */
static List *
parts_of_item(const MoveItem *item)
{
	RelationFacts facts;

	if (relkind_is_index(item->relkind) || !relation_facts(item->relid, &facts))
		return NIL;
	return parts_of_table(&facts);
}

/*
 * Add the relations of an item that are locked: the table, and the index that moves, or the
 * table's TOAST table and the index of that, with their rows of the job, if it has any.
 */
static void
add_relations_of(CopyMove *move, MoveItem *item, const List *parts)
{
	JobShared  *job = move->mc->job;
	int			n = item - job->items;
	int			last = job_last_part(job, n);
	RelationFacts facts;

	add_relation(move, item->heap_oid, item->heap_oid, AccessShareLock,
				 relkind_is_index(item->relkind) ? NULL : item);
	if (relkind_is_index(item->relkind))
		add_relation(move, item->heap_oid, item->relid, ShareUpdateExclusiveLock, item);
	foreach_oid(part, parts)
	{
		MoveItem   *of_part;

		if (!relation_facts(part, &facts))
			continue;
		if (n < last)
			of_part = &job->items[++n];
		else
			of_part = MemoryContextAllocZero(move->cxt, sizeof(MoveItem));
		item_fill(of_part, &facts);
		of_part->to_tablespace = item->to_tablespace;
		add_relation(move, item->relid, part,
					 relkind_is_index(facts.relkind) ? ShareUpdateExclusiveLock : AccessShareLock,
					 of_part);
	}
}

/* Find the relations that are locked. */
static void
find_relations(CopyMove *move)
{
	List	   *parts[IM_MOST_TOGETHER];
	int			most = 0;

	StartTransactionCommand();
	for (int i = 0; i < move->nitems; i++)
	{
		parts[i] = parts_of_item(move->items[i]);

		/*
		 * a TOAST table has more than one index after a REINDEX that has
		 * failed
		 */
		most += list_length(parts[i]) + 2;
	}
	move->relations = MemoryContextAllocZero(move->cxt, most * sizeof(CopyRelation));
	move->followers = MemoryContextAllocZero(move->cxt, most * sizeof(ChangedBlocks *));
	for (int i = 0; i < move->nitems; i++)
		add_relations_of(move, move->items[i], parts[i]);
	CommitTransactionCommand();
}

/* Prepare the copies of the relations that are not in the target already. */
static void
prepare_files(CopyMove *move)
{
	move->files = MemoryContextAllocZero(move->cxt, move->nrelations * sizeof(CopyFile));
	for (int i = 0; i < move->nrelations; i++)
	{
		const CopyRelation *relation = &move->relations[i];
		CopyFile   *file;

		if (relation->item == NULL || is_in_place(relation))
			continue;
		file = &move->files[move->nfiles++];
		file->move = move;
		file->item = relation->item;
		file->table = relation->table;
		file->relid = relation->relid;
		file->relam = relation->relam;
		file->is_table = !relkind_is_index(relation->item->relkind);
		file->from = relation->file;
	}
	Assert(move->nfiles > 0);
}

/* Have the rests of a copy watch the free space. */
static void
watch_space(CopyFile *file)
{
	const MoveItem *item = file->move->item;

	StartTransactionCommand();
	file->space.target = item->to_tablespace;
	namestrcpy(&file->space.target_name, tablespace_name(item->to_tablespace));
	file->space.wal_free = -1;
	if (free_space_is_freed(item->from_tablespace, item->to_tablespace))
		file->space.wal_free = file->move->mc->job->wal_free;
	CommitTransactionCommand();
	file->throttle.space = &file->space;
}

/*
 * Return whether to go past the page cache: by default if both files would take a quarter of
 * it, but not to where that keeps the new file from being compressed.
 */
static bool
writes_directly(const CopyFile *file)
{
	AutoSwitch	direct_io = file->move->settings->direct_io;

	if (direct_io != SWITCH_AUTO)
		return direct_io == SWITCH_ON;
	return file_blocks(&file->from, MAIN_FORKNUM) > (BlockNumber) effective_cache_size / 8 &&
		!file_compression_is_on(file->move->item->to_tablespace);
}

/* Copy a file, as far as that goes without an exclusive lock. */
static bool
copy_file(CopyFile *file)
{
	MemoryContext oldcontext;
	uint64		wal_before = pgWalUsage.wal_bytes;

	Assert(file->move->stage == COPY_COPYING && file->move->has_locks);
	Assert(file->copy == NULL);
	progress_part(file->item);
	watch_space(file);
	file->pace.block_us = COPY_BLOCK_US;
	file->began_at = GetCurrentTimestamp();
	file->pace.recopied_before = file->item->outcome.blocks_recopied;
	if (file->move->settings->prewarm)
		file->eta.cached = copy_count_cached(file);
	file->direct = writes_directly(file);
	file->todo = block_set_create(file->move->cxt);
	if (!copy_resume(file))
		return false;
	if (!file->resume.goes_on)
	{
		if (!make_file(file))
			return false;
	}

	oldcontext = MemoryContextSwitchTo(file->move->cxt);
	if (!file->resume.goes_on)
		file->changes = wal_changes_begin(&file->from, InvalidXLogRecPtr, file->direct);
	file->move->followers[file->move->nfollowers++] = file->changes;
	file->copy = file_copy_create(&file->from, &file->to, file->changes, file->move->followers,
								  file->relam, file->direct, file->move->settings, &file->throttle);
	file->verify.unverified = block_set_create(file->move->cxt);
	MemoryContextSwitchTo(oldcontext);
	copy_resume_begin(file);

	if (!copy_rounds(file, true))
		return false;
	copy_resume_record(file, true);
	IM_POINT("copy-synced");
	if (!copy_free_space_map(file))
		return false;

	if (copy_verifies(file))
	{
		/* blocks on the list would be left out */
		if (!copy_todo_through_buffers(file, PG_INT64_MAX))
			return false;
		if (!copy_verify_all(file))
			return false;
	}
	if (file->move->settings->terms.rehearse)
	{
		if (!copy_catch_up(file->move))
			return false;
		tell_rehearsal(file);
	}
	file->item->outcome.wal_written = pgWalUsage.wal_bytes - wal_before;
	return true;
}

/* Return the largest file that is not copied yet, NULL if all are. */
static CopyFile *
next_file(CopyMove *move)
{
	CopyFile   *result = NULL;
	BlockNumber largest = 0;

	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];
		BlockNumber nblocks;

		if (file->copy != NULL)
			continue;
		nblocks = file_blocks(&file->from, MAIN_FORKNUM);
		if (result == NULL || nblocks > largest)
		{
			result = file;
			largest = nblocks;
		}
	}
	return result;
}

/* Wait for the time of the swap, and swap the files. */
static bool
swap_files(CopyMove *move)
{
	move->stage = COPY_CATCHING_UP;
	if (!copy_wait_for_swap_time(move))
		return false;
	/* if there is such a cache; and while outpaced, that would get worse */
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		if (!file->direct || im_data_open_flags() != 0 || !move->settings->prewarm ||
			file->pace.outpaced)
			continue;
		if (!copy_prepare_prewarm(file))
			return false;
	}
	/* changes since the rounds are no sign of fast writers */
	copy_reset_pace(move);
	return copy_swap(move);
}

/*
 * Do everything from the locks to the swap, after which no error may pass.  Returns false if
 * the copy has ended before: see copy_end().
 */
static bool
copy_once(CopyMove *move)
{
	CopyFile   *file;
	int64		blocks = 0;

	find_relations(move);
	if (!copy_wait_for_locks(move))
		return false;
	if (!copy_check_relations(move, true))
		return false;
	prepare_files(move);
	while ((file = next_file(move)) != NULL)
	{
		if (!copy_file(file))
			return false;
	}
	progress_part(move->item);
	for (int i = 0; i < move->nfiles; i++)
		blocks += move->files[i].copied;
	progress_blocks(blocks, blocks);
	if (!move->settings->terms.rehearse)
		return swap_files(move);
	move->item->outcome.status = STATUS_REHEARSED;
	return true;
}

/* Give up the locks and the files of a copy that has not swapped them. */
static void
abandon_copy(CopyMove *move)
{
	/* first, because others can wait for them */
	copy_release_locks(move);
	for (int i = 0; i < move->nfiles; i++)
	{
		CopyFile   *file = &move->files[i];

		file_copy_free(file->copy);
		if (file->claimed != 0)
			ledger_row_release(file->claimed);
		if (file->new_file.id == 0)
			continue;
		/* at its next turn the copy goes on from its record */
		if (!move->mc->gives_turn || file->new_file.copied_blocks == 0)
			leftover_file_drop(&file->new_file, file->new_file_made);
		ledger_row_release(file->new_file.id);
		file->new_file.id = 0;
	}
}

/* Tell that a copy is started again, or give up after too many starts. */
static void
tell_of_start(const MoveItem *item, int start, const char *why)
{
	if (start == MOST_STARTS)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("gave up copying %s \"%s\" after %d starts",
						relation_noun(item->relkind), NameStr(item->relname),
						MOST_STARTS),
				 errdetail("The last time, %s.", why)));
	ereport(LOG,
			(errhidecontext(true),
			 errmsg("%s: starting the copy of %s \"%s\" again, because %s",
					runner_name(), relation_noun(item->relkind),
					NameStr(item->relname), why)));
}

/*
 * Move a relation by copying its file, with no transaction open; the outcome
 * is in mc->item.  After an ERROR, which has not moved it, the caller must call
 * copy_cleanup().
 */
void
move_by_copy(MoveContext *mc)
{
	static bool registered = false;
	MoveItem   *item = mc->item;
	uint64		wal_before = pgWalUsage.wal_bytes;
	MemoryContext oldcontext = CurrentMemoryContext;

	Assert(!IsTransactionState());
	if (!registered)
		before_shmem_exit(cleanup_at_exit, (Datum) 0);
	registered = true;

	forget_state();
	memset(&so_far, 0, sizeof(so_far));
	for (int i = 0; i < mc->nitems; i++)
	{
		MoveOutcome *outcome = &mc->items[i]->outcome;

		outcome->blocks_copied = 0;
		outcome->blocks_recopied = 0;
	}

	for (int start = 1;; start++)
	{
		CopyMove   *move = new_move(mc);
		bool		finished;
		CopyEnd		end;

		if (start > 1)
		{
			progress_phase(PHASE_INITIALIZING);
			/* forget blockers of the wait that has ended with another start */
			progress_blockers(NULL, 0);
		}
		current = move;
		finished = copy_once(move);
		if (finished)
			end_move(move);
		end = move->end;
		mc->why_ended = move->why_ended;
		Assert(finished == (end == COPY_GOES_ON) && !IsTransactionState());
		MemoryContextSwitchTo(oldcontext);

		/* the row of a table shows the WAL of the move less that of its parts */
		item->outcome.wal_written = pgWalUsage.wal_bytes - wal_before;
		for (int i = 0; i < move->nrelations; i++)
		{
			const MoveItem *part = move->relations[i].item;

			if (part != NULL && part != item)
				item->outcome.wal_written -= part->outcome.wal_written;
		}
		if (!STATUS_IS_SUCCESS(item->outcome.status))
			abandon_copy(move);
		Assert(!move->has_locks);
		forget_state();

		switch (end)
		{
			case COPY_GOES_ON:
			case COPY_SKIPPED:
			case COPY_TURN:
			case COPY_PART:
				return;
			case COPY_AGAIN:
				break;
		}
		Assert(item->outcome.status == STATUS_RUNNING && mc->nitems == 1);
		tell_of_start(item, start, mc->why_ended);
	}
}

/* Clean up after an ERROR.  To drop a file that only the ledger knows needs no lock. */
void
copy_cleanup(void)
{
	Assert(!IsTransactionState());
	if (current == NULL)
		return;
	remove_what_is_left(current, job_keep_requested());
	/* else keep it for another call */
	for (int i = 0; i < current->nfiles; i++)
	{
		CopyFile   *file = &current->files[i];

		if (unused_file(file)->id != 0)
			return;
	}
	forget_state();
}
