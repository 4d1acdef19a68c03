/*-------------------------------------------------------------------------
 *
 * leftover_indexes.c
 *	  Removing the indexes that our interrupted rebuilds have left.
 *
 * A canceled REINDEX CONCURRENTLY leaves an invalid index: the new one
 * (x_ccnew) before the swap, the old one (x_ccold) after it.  The ledger
 * names both by OID, so only ours are touched, whatever their names.
 *
 * The procedure is that of DROP INDEX CONCURRENTLY, with core's functions:
 * wait until no query uses the index; mark it dead; wait until no session has
 * it open; drop it.  Unlike there, no lock is held during the waits, and each
 * step, of milliseconds, takes its ShareUpdateExclusiveLock on table and index
 * without queueing.
 *
 * Tricky: between the steps DDL may drop or even repair (REINDEX) the index,
 * so each step looks again, under its locks, which index is to be removed.  A
 * repaired index that is a mere duplicate is put out of use first; queries may
 * have used it, so its ledger row is replaced by one of another kind.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/pg_index.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "errors.h"
#include "file_system.h"
#include "index_definition.h"
#include "printed_command.h"
#include "report/report.h"
#include "wait/wait.h"

#define UNLISTED	INT64CONST(0)	/* number of an entry without a ledger row */

/* The index that is to be removed for a ledger row */
typedef struct Victim
{
	Oid			index_oid;		/* 0 = nothing of ours is left */
	bool		in_doubt;		/* nor is it, but one is valid that may be in
								 * use */
	Oid			keeper;			/* of a duplicate: the index that stays */
	bool		valid;			/* a duplicate that queries may use */
	bool		dead;			/* not maintained any more */
	bool		never_valid;	/* cannot have been used by any query */
} Victim;

/* ----------------------------------------------------------------
 *	Leftovers that DDL has made valid
 *
 * Commands that rewrite a table or all its indexes (TRUNCATE, CLUSTER, VACUUM
 * FULL, REINDEX TABLE, many forms of ALTER TABLE) ignore whether an index is
 * valid.  So the unfinished index of an interrupted rebuild becomes a valid
 * duplicate, which costs writers time.  ALTER TABLE .. TYPE even drops it and
 * makes another one with its name.
 *
 * It is ours to remove as long as nothing can have begun to rely on it: it has
 * the name that REINDEX CONCURRENTLY gave it, the definition of the other index,
 * which is valid, and nothing depends on it.  It is identified by its OID or, if that
 * is gone, by its exact name, and by the transaction, which has made the other index,
 * too: no user makes two equal indexes at once and calls one of them x_ccnew.
 *
 * Everything comes from the system caches, so an exclusive lock on the table
 * does not block us.  The caller repeats the check under locks.
 * ----------------------------------------------------------------
 */

/* Return whether REINDEX CONCURRENTLY makes such names: x_ccnew, x_ccold1. */
bool
is_reindex_leftover_name(const char *name)
{
	int			len = strlen(name);

	while (len > 0 && name[len - 1] >= '0' && name[len - 1] <= '9')
		len--;
	return len > 6 && (strncmp(name + len - 6, "_ccnew", 6) == 0 ||
					   strncmp(name + len - 6, "_ccold", 6) == 0);
}

/*
 * Return which index of a ledger row, both of which are valid, is a leftover,
 * and so a mere duplicate of *keeper; InvalidOid if that is unclear.
 */
static Oid
leftover_twin(const LedgerEntry *entry, const RelationFacts *new_index,
			  const RelationFacts *old_index, Oid *keeper)
{
	/* after the swap the old index has such a name */
	bool		swapped = entry->kind == LEDGER_INDEX &&
		strcmp(NameStr(new_index->relname), NameStr(entry->new_name)) != 0;
	const RelationFacts *twin = swapped ? old_index : new_index;

	*keeper = swapped ? new_index->relid : old_index->relid;
	return is_reindex_leftover_name(NameStr(twin->relname)) && report_is_spare(twin->relid) &&
		index_same_definition(twin->relid, *keeper, true) ? twin->relid : InvalidOid;
}

/* Return whether one transaction has made the rows of two indexes in pg_index. */
static bool
made_together(Oid a, Oid b)
{
	HeapTuple	x = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(a));
	HeapTuple	y = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(b));

	return HeapTupleIsValid(x) && HeapTupleIsValid(y) &&
		HeapTupleHeaderGetRawXmin(x->t_data) == HeapTupleHeaderGetRawXmin(y->t_data);
}

/*
 * Return the index that ALTER TABLE .. TYPE has made in place of the leftover, a
 * mere duplicate of *keeper; InvalidOid if there is none.  Both of the row are gone.
 */
static Oid
leftover_twin_remade(const LedgerEntry *entry, Oid *keeper)
{
	Oid			twin = get_relname_relid(NameStr(entry->new_name),
										 get_rel_namespace(entry->heap_oid));
	RelationFacts facts;

	if (!OidIsValid(twin) || !report_is_spare(twin) || !is_reindex_leftover_name(NameStr(entry->new_name)))
		return InvalidOid;
	foreach_oid(other, indexes_of_table(entry->heap_oid))
	{
		*keeper = other;
		if (other != twin && relation_facts(other, &facts) && facts.valid &&
			made_together(other, twin) && index_same_definition(other, twin, true))
			return twin;
	}
	return InvalidOid;
}

/* ----------------------------------------------------------------
 *	Removing the index of a ledger row
 * ----------------------------------------------------------------
 */

/*
 * Find out, in a transaction, which index is to be removed for a ledger row; false
 * if there is none.
 */
static bool
find_victim(const LedgerEntry *entry, Victim *victim)
{
	RelationFacts new_index;
	RelationFacts old_index;
	bool		new_exists = relation_facts(entry->new_index_oid, &new_index) &&
		new_index.heap_oid == entry->heap_oid;
	bool		old_exists = relation_facts(entry->relid, &old_index) &&
		old_index.heap_oid == entry->heap_oid;

	memset(victim, 0, sizeof(Victim));
	if (new_exists && !new_index.valid)
	{
		/* not swapped in: ours, whether the old one exists or not */
		victim->index_oid = entry->new_index_oid;
		victim->dead = !new_index.live;
		victim->never_valid = (entry->kind == LEDGER_INDEX);
	}
	else if (new_exists && old_exists && !old_index.valid && entry->kind == LEDGER_INDEX)
	{
		victim->index_oid = entry->relid;
		victim->dead = !old_index.live;
	}
	else if (new_exists && !old_exists)
		/* moved and finished, unless it has its name of before the swap */
		victim->in_doubt = strcmp(NameStr(new_index.relname), NameStr(entry->new_name)) == 0;
	else if (new_exists || (!old_exists && entry->kind == LEDGER_INDEX))
	{
		victim->valid = true;
		if (!new_exists)
			victim->index_oid = leftover_twin_remade(entry, &victim->keeper);
		else if (old_index.valid)
			victim->index_oid = leftover_twin(entry, &new_index, &old_index, &victim->keeper);
		victim->in_doubt = new_exists && !OidIsValid(victim->index_oid);
	}
	return OidIsValid(victim->index_oid);
}

/* Return the quoted "schema.name" for messages, NULL if it is gone. */
static char *
qualified_name(Oid relid)
{
	RelationFacts facts;

	return !relation_facts(relid, &facts) ? NULL :
		quote_qualified_identifier(NameStr(facts.schema_name), NameStr(facts.relname));
}

static void
delete_row(const LedgerEntry *entry)
{
	if (entry->id != UNLISTED)
		ledger_delete(entry->id);
}

/*
 * Put a duplicate out of use for queries.  From the commit on the ledger says that
 * they may have used it: *entry becomes the row that replaces the old one.
 */
static void
clear_valid(LedgerEntry *entry, const Victim *victim)
{
	Assert(CheckRelationOidLockedByMe(victim->index_oid, ShareUpdateExclusiveLock, true));
	index_set_state_flags(victim->index_oid, INDEX_DROP_CLEAR_VALID);
	CacheInvalidateRelcacheByRelid(entry->heap_oid);
	delete_row(entry);
	entry->kind = LEDGER_DUPLICATE;
	entry->new_index_oid = victim->index_oid;
	entry->relid = victim->keeper;
	if (entry->id != UNLISTED)
		ledger_insert(entry);
}

/* Show in index_mover_progress the index that a cleanup works on. */
static void
show_leftover(Oid index_oid)
{
	RelationFacts facts;

	if (relation_facts(index_oid, &facts))
	{
		MoveItem	item = {.relid = facts.relid,.heap_oid = facts.heap_oid,.relname = facts.relname,
			.heap_name = facts.heap_name,.schema_name = facts.schema_name,.relkind = facts.relkind,
		.method = METHOD_REBUILD};

		progress_begin(&item);
		progress_phase(PHASE_CLEANING_UP);
	}
}

/*
 * Find out which index is to be removed for a ledger row.  If there is none, delete
 * the row, and return false.  show: the work is no part of a move.
 */
static bool
find_work(const LedgerEntry *entry, bool show, Victim *victim)
{
	Oid			shown = victim->index_oid;
	bool		found;

	StartTransactionCommand();
	found = find_victim(entry, victim);
	if (victim->in_doubt)
	{
		char	   *old_name = qualified_name(entry->relid);

		ereport(WARNING,
				(errmsg("index \"%s\" has been left by an interrupted move, but is valid now",
						qualified_name(entry->new_index_oid)),
				 old_name ? errdetail("It was meant to replace index \"%s\".", old_name) : 0,
				 errhint("Drop the one that is not needed.")));
	}
	if (!found)
		delete_row(entry);
	else if (show && victim->index_oid != shown)
		show_leftover(victim->index_oid);
	CommitTransactionCommand();
	return found;
}

/*
 * Take the next step, under the locks.  Returns whether it was the last one.  *unused
 * becomes false if queries may use the index, or have used it until now.
 */
static bool
take_step(LedgerEntry *entry, const Victim *victim, bool *unused)
{
	Victim		again;
	ObjectAddress object;
	bool		done = false;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!find_victim(entry, &again) || memcmp(&again, victim, sizeof(Victim)) != 0)
		*unused = false;
	else if (victim->valid)
	{
		clear_valid(entry, victim);
		*unused = false;
	}
	else if (!victim->dead)
		index_concurrently_set_dead(entry->heap_oid, victim->index_oid);
	else
	{
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: removing index \"%s\", left by job " INT64_FORMAT,
						runner_name(), qualified_name(victim->index_oid), entry->job)));
		ObjectAddressSet(object, RelationRelationId, victim->index_oid);
		performDeletion(&object, DROP_RESTRICT,
						PERFORM_DELETION_CONCURRENT_LOCK | PERFORM_DELETION_INTERNAL);
		delete_row(entry);
		done = true;
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	return done;
}

/*
 * Do all steps for one ledger row.  own: it is of our own job, which has just failed.
 * ERROR 55P03 after max_wait_ms.
 */
static void
remove_one(LedgerEntry *entry, const MoveContext *mc, bool own, int max_wait_ms)
{
	bool		begins = mc != NULL && !own;
	WaitLimits	limits = {.phase = PHASE_CLEANING_UP,.max_ms = max_wait_ms,.mc = mc,
	.cancellable = begins,.pausable = begins};
	Victim		victim = {0};
	bool		unused = false; /* we have waited for all users of the table */
	Oid			was_dead = InvalidOid;	/* the index was dead before that */
	bool		done = false;

	while (!done && find_work(entry, mc == NULL, &victim))
	{
		/*
		 * One that was never valid has not been used by a query, so writers
		 * need not maintain it any longer.  After some time it may have been
		 * repaired, and put out of use again.
		 */
		if (victim.dead ? was_dead != victim.index_oid :
			!victim.valid && !unused && !(victim.never_valid && own))
		{
			wait_for_lockers(entry->heap_oid, AccessExclusiveLock, &limits);
			unused = true;
			was_dead = victim.dead ? victim.index_oid : InvalidOid;
			continue;
		}
		/* who had the locks may have made it valid for a while */
		if (lock_table_and_index(entry->heap_oid, victim.index_oid, &limits))
			unused = false;
		else
			done = take_step(entry, &victim, &unused);
		unlock_table_and_index(entry->heap_oid, victim.index_oid);
	}
}

static bool
is_index_entry(const LedgerEntry *entry)
{
	return entry->kind == LEDGER_INDEX || entry->kind == LEDGER_DUPLICATE;
}

/* Return whether a ledger row is that of an index whose runner is not alive. */
bool
leftover_index_is_dead(const LedgerEntry *entry)
{
	return is_index_entry(entry) && !runner_is_alive(entry->job, entry->pid);
}

/*
 * Do all steps for one ledger row, and restore the session after an error.  Returns
 * whether they were done.  Unless a move begins, a cancel is ignored.
 */
static bool
try_to_remove(LedgerEntry *entry, const MoveContext *mc, bool own, int max_wait_ms)
{
	MemoryContext context = CurrentMemoryContext;
	bool		begins = mc != NULL && !own;
	ErrorData  *volatile error = NULL;

	Assert(!IsTransactionState());
	runner_serve_cancel(begins);
	PG_TRY();
	{
		remove_one(entry, mc, own, max_wait_ms);
	}
	PG_CATCH();
	{
		if (begins && geterrcode() == ERRCODE_QUERY_CANCELED)
			PG_RE_THROW();
		error = errors_take(context);
		progress_blockers(NULL, 0);
		/* not of a mere timeout */
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("could not remove index with OID %u or %u of table with OID %u, left by an interrupted move",
							entry->new_index_oid, entry->relid, entry->heap_oid),
					 errdetail("%s.", error->message),
					 errhint("The next move will try again, or: %s", printed_command("cleanup"))));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	if (!begins)
		QueryCancelPending = false;
	runner_serve_cancel(true);
	if (mc == NULL)
		progress_end(0);
	return error == NULL;
}

/*
 * Remove one leftover of this process after the extension and its ledger have been
 * dropped; false if it is to be tried again.
 */
bool
leftover_index_remove_unlisted(const MoveContext *mc, const LedgerEntry *listed, int max_wait_ms)
{
	LedgerEntry entry = *listed;

	entry.id = UNLISTED;
	return try_to_remove(&entry, mc, true, max_wait_ms);
}

/*
 * Remove the leftovers of this move's job (own), those on its table before it
 * begins or, without a move, those of all jobs that are not alive; only_heap, unless
 * InvalidOid, restricts this to one table.  Call this in a runner with no lock held.
 *
 * Waits at most max_wait_ms (0 = no limit) for the transactions that use each
 * table; an index that cannot be removed by then stays in the ledger.  A move that
 * begins has nothing to lose yet: so it obeys pause_move(), and a cancel is an ERROR.
 * The only other ERROR is termination.
 */
void
leftover_indexes_remove(const MoveContext *mc, bool own, Oid only_heap, int max_wait_ms)
{
	foreach_ptr(LedgerEntry, entry, ledger_read_apart())
	{
		if (leftover_index_is_dead(entry) &&
			(!OidIsValid(only_heap) || entry->heap_oid == only_heap) &&
			(!own || entry->job == mc->job->job))
			(void) try_to_remove(entry, mc, own, max_wait_ms);
	}
}

/* Return, in a transaction, whether an unfinished rebuild of ours made it. */
bool
leftover_index_is_ours(Oid index_oid)
{
	foreach_ptr(LedgerEntry, entry, ledger_read())
	{
		Victim		victim;

		if (is_index_entry(entry) && find_victim(entry, &victim) &&
			victim.index_oid == index_oid)
			return true;
	}
	return false;
}

/* Return, in a transaction, the index that a dead job has left by this row, or NULL. */
Leftover *
leftover_index_describe(const LedgerEntry *entry)
{
	Leftover   *leftover;
	RelationFacts facts;
	Victim		victim;

	if (!find_victim(entry, &victim) || !relation_facts(victim.index_oid, &facts))
		return NULL;

	leftover = palloc0(sizeof(Leftover));
	leftover->kind = victim.valid || entry->kind == LEDGER_DUPLICATE ? "duplicate index" : "invalid index";
	leftover->index_oid = victim.index_oid;
	leftover->name = qualified_name(victim.index_oid);
	leftover->tablespace = facts.tablespace;
	leftover->size = relation_files_size(facts.tablespace, facts.relfilenumber);
	return leftover;
}
