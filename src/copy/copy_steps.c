/*-------------------------------------------------------------------------
 *
 * copy_steps.c
 *	  The method copy: move a relation's file while the relation is in use.
 *
 * src/README has the protocol: "Protocol of a copy", "A table".  Here its steps follow
 * each other: for each file of a move, the largest first, up to the comparison
 * (copy_file()), and once for all files from then on (copy_once()).
 *
 * Tricky: only the ledger knows the new file, and after the swap the old one.  What an
 * ERROR leaves is removed by copy_cleanup(), what an exit leaves by our
 * before_shmem_exit callback, what a crash leaves by the next leftover_files_remove().
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
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "printed_command.h"

/* Starts after which a copy is given up */
#define MOST_STARTS			5

static CopyState *current = NULL;
static CopySoFar so_far;

/* Return the row of the file that is not in use, new or old. */
static LedgerEntry *
unused_file(CopyState *cs)
{
	return cs->first->stage == COPY_SWAPPED ? &cs->old_file : &cs->new_file;
}

/* Remove one file for remove_what_is_left(), if there is one. */
static void
remove_left_file(CopyState *cs)
{
	LedgerEntry *entry = unused_file(cs);
	MemoryContext oldcontext = CurrentMemoryContext;

	Assert(!IsTransactionState());
	if (entry->id == 0)
		return;
	PG_TRY();
	{
		if (ledger_row_claim_again(entry->id))
		{
			IM_POINT("left-file-drop");
			leftover_file_drop(entry, cs->new_file_made);
			ledger_row_release(entry->id);
		}
		entry->id = 0;
	}
	PG_CATCH();
	{
		ErrorData  *error = errors_take(oldcontext);

		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("could not remove a file that a move has left behind"),
				 errdetail_internal("%s", error->message),
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
remove_what_is_left(CopyState *cs, bool keep)
{
	if (!PostmasterIsAlive())
		proc_exit(1);
	foreach_file(f, cs)
	{
		file_copy_free(f->copy);
		f->copy = NULL;
		if (keep && f->new_file.copied_blocks > 0)
			f->new_file.id = 0;
		remove_left_file(f);
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
	CopyState  *cs = current;

	if (cs == NULL || !PostmasterIsAlive())
		return;
	current = NULL;
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	remove_what_is_left(cs, true);
}

/* Create the new file; its row in the ledger is flushed before it exists. */
static void
make_file(CopyState *cs)
{
	MoveItem   *item = cs->item;
	LedgerEntry entry = {.kind = LEDGER_NEW_FILE,.tablespace = item->to_tablespace,
		.heap_oid = cs->table,.relid = cs->relid,.job = cs->mc->job->job,
	.pid = MyProcPid,.made_at = GetCurrentTimestamp()};
	SMgrRelation smgr;

	Assert(!IsTransactionState() && cs->new_file.id == 0 && cs->first->locked);
	copy_begin_with_ledger(cs);
	commit_locally();
	entry.relfilenumber = GetNewRelFileNumber(item->to_tablespace, NULL,
											  RELPERSISTENCE_PERMANENT);
	/* step: ledger-row */
	ledger_insert(&entry);
	(void) ledger_row_claim(entry.id, true);
	CommitTransactionCommand();
	cs->new_file = entry;
	IM_POINT("copy-registered");

	cs->to = make_locator(item->to_tablespace, MyDatabaseId, entry.relfilenumber);
	StartTransactionCommand();
	smgr = smgropen(cs->to, INVALID_PROC_NUMBER);
	/* an existing file of that name would not be ours: an error */
	/* step: create-file */
	smgrcreate(smgr, MAIN_FORKNUM, false);
	cs->new_file_made = true;
	log_smgrcreate(&cs->to, MAIN_FORKNUM);
	CommitTransactionCommand();
	IM_POINT("copy-created");
}

/*
 * End a move or a rehearsal: load the blocks that were cached; remove the old files, or
 * the new ones, piece by piece, because commits would wait for the disk.  An error is
 * only a WARNING.
 */
static void
end_move(CopyState *cs)
{
	MoveItem   *item = cs->item;
	bool		moved = (cs->stage == COPY_SWAPPED);
	MemoryContext oldcontext = CurrentMemoryContext;

	Assert(!IsTransactionState() && (moved || item->status == STATUS_REHEARSED));
	PG_TRY();
	{
		if (moved)
		{
			IM_POINT("swapped");
			progress_phase(PHASE_PREWARMING);
			for (CopyState *f = cs; f != NULL; f = f->next)
				f->item->size_after = relation_file_size(f->in_place ? &f->from : &f->to);
			foreach_file(f, cs)
			{
				/* the swap has deleted its row */
				ledger_row_release(f->new_file.id);
				if (cs->settings->prewarm)
					copy_prewarm(f);
			}
			IM_POINT("prewarmed");
		}
		copy_release_locks(cs);

		progress_phase(moved ? PHASE_REMOVING_OLD_FILE : PHASE_CLEANING_UP);
		foreach_file(f, cs)
		{
			LedgerEntry *entry = unused_file(f);

			file_copy_free(f->copy);
			copy_eta(f, PHASE_REMOVING_OLD_FILE, f->copied, 0);
			leftover_file_remove(entry, cs->settings->pacing, copy_rest_after_swap, cs);
			ledger_row_release(entry->id);
			entry->id = 0;
		}
	}
	PG_CATCH();
	{
		ErrorData  *error = errors_take(oldcontext);
		int			elevel = errors_was_canceled(error) ? NOTICE : WARNING;

		cs->first->locked = false;
		if (moved)
			ereport(elevel,
					(errcode(error->sqlerrcode),
					 errmsg("%s \"%s\" was %s, but its old file not removed piece by piece",
							relation_noun(item->relkind), NameStr(item->relname),
							status_name(item->status)),
					 errdetail_internal("%s", error->message)));
		else
			ereport(elevel,
					(errcode(error->sqlerrcode),
					 errmsg("%s \"%s\" was %s, but its new file not removed piece by piece",
							relation_noun(item->relkind), NameStr(item->relname),
							status_name(item->status)),
					 errdetail_internal("%s", error->message)));

		/* so remove it at once */
		remove_what_is_left(cs, false);
	}
	PG_END_TRY();
}

/* End a rehearsal: the row says how the copy went, and who is in the way of its swap. */
static void
tell_rehearsal(CopyState *cs)
{
	MoveItem   *item = cs->item;
	double		seconds = (GetCurrentTimestamp() - cs->began_at) / 1e6;
	int			pids[WAIT_MAX_PIDS];
	int			count;
	VirtualTransactionId *holders;

	item->size_after = relation_file_size(&cs->to);
	StartTransactionCommand();
	item->detail[0] = '\0';		/* the plan's reasons */
	item_say(item, "Copied %s a second.",
			 size_text((int64) (item->size_after / Max(seconds, 0.001))));
	item_say(item, INT64_FORMAT " of " INT64_FORMAT " blocks changed meanwhile, %.0f a second.",
			 cs->changed_blocks, item->blocks_copied, cs->changed_blocks / Max(seconds, 0.001));
	if (cs->rounds > 0)
		item_say(item, "Rounds that copied changed blocks again: %d.", cs->rounds);
	if (copy_verifies(cs))
		item_say(item, "The copy was equal to the original.");
	holders = relation_lock_holders(cs->relid, AccessExclusiveLock, &count);
	if (virtual_transaction_pids(holders, count, pids, WAIT_MAX_PIDS) > 0)
		item_say(item, "In the way of the swap would have been: %s.",
				 blockers_describe(holders, count));
	CommitTransactionCommand();
}

/* Make the state of a relation's file, in the context of its move. */
static CopyState *
new_file(MemoryContext cxt, MoveContext *mc, MoveItem *item)
{
	CopyState  *cs = MemoryContextAllocZero(cxt, sizeof(CopyState));

	cs->first = cs;
	cs->cxt = cxt;
	cs->mc = mc;
	cs->item = item;
	cs->settings = mc->settings;
	cs->relid = item->relid;
	cs->table = item->heap_oid;
	cs->is_table = !relkind_is_index(item->relkind);
	return cs;
}

/* Find a table's TOAST table and its index, with their rows of the job, if it has any. */
static void
find_parts(CopyState *cs)
{
	RelationFacts facts;
	CopyState **end = &cs->next;
	List	   *parts = NIL;
	JobShared  *job = cs->mc->job;
	int			n = cs->item - job->items;
	int			last = job_last_part(job, n);

	StartTransactionCommand();
	if (cs->is_table && relation_facts(cs->relid, &facts))
		parts = parts_of_table(&facts);
	foreach_oid(part, parts)
	{
		MoveItem   *item;

		if (!relation_facts(part, &facts))
			continue;
		if (n < last)
			item = &job->items[++n];
		else
			item = MemoryContextAllocZero(cs->cxt, sizeof(MoveItem));
		item_fill(item, &facts);
		item->to_tablespace = cs->item->to_tablespace;
		*end = new_file(cs->cxt, cs->mc, item);
		(*end)->first = cs;
		(*end)->table = cs->table;
		end = &(*end)->next;
	}
	/* a TOAST table has more than one index after a REINDEX that has failed */
	cs->followers = MemoryContextAllocZero(cs->cxt,
										   (list_length(parts) + 2) * sizeof(ChangedBlocks *));
	CommitTransactionCommand();
}

/* Copy one file, as far as that goes without an exclusive lock. */
static void
copy_file(CopyState *cs)
{
	MemoryContext oldcontext;
	uint64		wal_before = pgWalUsage.wal_bytes;

	Assert(cs->first->stage == COPY_COPYING && cs->first->locked);
	Assert(!cs->in_place && cs->copy == NULL);
	progress_part(cs->item);
	cs->block_us = COPY_BLOCK_US;
	cs->began_at = GetCurrentTimestamp();
	cs->recopied_before = cs->item->blocks_recopied;
	if (cs->settings->prewarm)
		cs->eta.cached = copy_count_cached(cs);
	/* by default if both files would take a quarter of the cache */
	cs->direct = cs->settings->direct_io == SWITCH_AUTO ?
		file_blocks(&cs->from, MAIN_FORKNUM) > (BlockNumber) effective_cache_size / 8 :
		cs->settings->direct_io == SWITCH_ON;
	cs->todo = block_set_create(cs->cxt);
	copy_resume(cs);
	if (!cs->resumed)
		make_file(cs);

	oldcontext = MemoryContextSwitchTo(cs->cxt);
	if (!cs->resumed)
		cs->changes = wal_changes_begin(&cs->from, InvalidXLogRecPtr, cs->direct);
	cs->first->followers[cs->first->nfollowers++] = cs->changes;
	cs->copy = file_copy_create(&cs->from, &cs->to, cs->changes, cs->first->followers,
								cs->relam, cs->direct, cs->settings, &cs->throttle);
	cs->unverified = block_set_create(cs->cxt);
	MemoryContextSwitchTo(oldcontext);
	copy_resume_begin(cs);

	copy_rounds(cs, true);
	copy_resume_record(cs, true);
	IM_POINT("copy-synced");
	copy_free_space_map(cs);

	if (copy_verifies(cs))
	{
		/* blocks on the list would be left out */
		copy_todo_through_buffers(cs, PG_INT64_MAX);
		copy_verify_all(cs);
	}
	if (cs->settings->terms.rehearse)
	{
		copy_catch_up(cs);
		tell_rehearsal(cs);
	}
	cs->item->wal_written = pgWalUsage.wal_bytes - wal_before;
}

/* Return the largest file that is not copied yet, NULL if all are. */
static CopyState *
next_file(CopyState *cs)
{
	CopyState  *result = NULL;

	foreach_file(f, cs)
	{
		if (f->copy == NULL && (result == NULL || file_blocks(&f->from, MAIN_FORKNUM) >
								file_blocks(&result->from, MAIN_FORKNUM)))
			result = f;
	}
	return result;
}

/* Do everything from the locks to the removal of the old files. */
static void
copy_once(CopyState *cs)
{
	CopyState  *file;
	int64		blocks = 0;

	find_parts(cs);
	copy_wait_for_locks(cs);
	copy_check_relations(cs, true);
	while ((file = next_file(cs)) != NULL)
		copy_file(file);
	progress_part(cs->item);
	foreach_file(f, cs)
		blocks += f->copied;
	progress_blocks(blocks, blocks);
	if (cs->settings->terms.rehearse)
		cs->item->status = STATUS_REHEARSED;
	else
	{
		cs->stage = COPY_CATCHING_UP;
		copy_wait_for_swap_time(cs);
		/* if there is such a cache; and while outpaced, that would get worse */
		foreach_file(f, cs)
		{
			if (f->direct && im_data_open_flags() == 0 && cs->settings->prewarm && !f->outpaced)
				copy_prepare_prewarm(f);
		}
		/* changes since the rounds are no sign of fast writers */
		copy_is_not_outpaced(cs);
		copy_swap(cs);
	}
	end_move(cs);
}

/*
 * Move one relation by copying its file, with no transaction open; the outcome
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
	item->blocks_copied = 0;
	item->blocks_recopied = 0;
	item->lock_attempts = 0;

	for (int start = 1;; start++)
	{
		MemoryContext cxt = AllocSetContextCreate(TopMemoryContext, "index_mover copy",
												  ALLOCSET_DEFAULT_SIZES);
		CopyState  *cs = new_file(cxt, mc, item);
		ErrorData  *volatile again = NULL;

		if (start > 1)
			progress_phase(PHASE_INITIALIZING);
		cs->so_far = &so_far;
		current = cs;
		PG_TRY();
		{
			copy_once(cs);
		}
		PG_CATCH();
		{
			/* see copy_start_again(): no transaction is open */
			if (geterrcode() != ERRCODE_START_AGAIN)
				PG_RE_THROW();
			MemoryContextSwitchTo(oldcontext);
			again = CopyErrorData();
			FlushErrorState();
		}
		PG_END_TRY();
		MemoryContextSwitchTo(oldcontext);

		/* the row of a table shows the WAL of the move less that of its parts */
		item->wal_written = pgWalUsage.wal_bytes - wal_before;
		for (CopyState *f = cs->next; f != NULL; f = f->next)
			item->wal_written -= f->item->wal_written;
		if (!STATUS_IS_SUCCESS(item->status))
		{
			/* first, because others can wait for them */
			copy_release_locks(cs);
			foreach_file(f, cs)
			{
				file_copy_free(f->copy);
				if (f->claimed != 0)
					ledger_row_release(f->claimed);
				if (f->new_file.id == 0)
					continue;
				/* at its next turn the copy goes on from what is on record */
				if (!mc->gives_turn || f->new_file.copied_blocks == 0)
					leftover_file_drop(&f->new_file, f->new_file_made);
				ledger_row_release(f->new_file.id);
				f->new_file.id = 0;
			}
		}
		Assert(!cs->locked);
		forget_state();
		if (item->status != STATUS_RUNNING || mc->gives_turn)
			break;
		if (start == MOST_STARTS)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("gave up copying %s \"%s\" after %d starts",
							relation_noun(item->relkind), NameStr(item->relname),
							MOST_STARTS),
					 errdetail("The last time, %s.", again->message)));
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: starting the copy of %s \"%s\" again, because %s",
						runner_name(), relation_noun(item->relkind),
						NameStr(item->relname), again->message)));
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
	foreach_file(f, current)
	{
		if (unused_file(f)->id != 0)
			return;
	}
	forget_state();
}
