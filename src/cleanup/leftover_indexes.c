/*-------------------------------------------------------------------------
 *
 * leftover_indexes.c
 *	  Removing the indexes that our interrupted rebuilds have left.
 *
 * A canceled REINDEX CONCURRENTLY leaves an invalid index: the new index
 * (x_ccnew) before the swap, the old index (x_ccold) after it.  The ledger
 * names both by OID, so only ours are touched; their names tell which it is.
 *
 * The procedure is that of DROP INDEX CONCURRENTLY, with core's functions:
 * wait until no query uses the index; mark it dead; wait until no session has
 * it open; drop it.  Unlike there, no lock is held during the waits, and each
 * step, of milliseconds, takes its ShareUpdateExclusiveLock on table and index
 * without queueing.
 *
 * Tricky: between the steps DDL may drop or even repair (REINDEX) the index, so each
 * step looks again, under its locks, which index is to be removed.  A repaired index that
 * is a mere duplicate is put out of use first, and its ledger row becomes one of another
 * kind, because queries may have used it.
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

#define SHORTEST_WAIT_MS	1000	/* for each table, of many */

/* The index that is to be removed for a ledger row */
typedef struct Victim
{
	Oid			index_oid;		/* 0 = nothing of ours is left */
	bool		in_doubt;		/* nor is it, but one is valid that may be in
								 * use */
	bool		valid;			/* a duplicate that queries may use */
	bool		dead;			/* not maintained any more */
	bool		never_valid;	/* cannot have been used by any query */
} Victim;

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

/* Return whether two indexes are valid, and one transaction has made both so. */
static bool
made_together(Oid a, Oid b)
{
	HeapTuple	x = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(a));
	HeapTuple	y = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(b));

	return HeapTupleIsValid(x) && HeapTupleIsValid(y) &&
		((Form_pg_index) GETSTRUCT(x))->indisvalid && ((Form_pg_index) GETSTRUCT(y))->indisvalid &&
		HeapTupleHeaderGetRawXmin(x->t_data) == HeapTupleHeaderGetRawXmin(y->t_data);
}

/*
 * If both indexes of a row are gone, ALTER TABLE .. TYPE may have made others in
 * their place: two valid indexes of the same definition, made by one transaction, either
 * with the exact name of the unfinished index.  (No user makes two equal indexes at
 * once and calls either x_ccnew.)  Then have *entry name these.
 */
static bool
find_remade(LedgerEntry *entry)
{
	Oid			twin = get_relname_relid(NameStr(entry->new_name),
										 get_rel_namespace(entry->heap_oid));

	if (!OidIsValid(twin))
		return false;
	foreach_oid(other, indexes_of_table(entry->heap_oid))
	{
		if (other == twin || !made_together(other, twin) ||
			!index_same_definition(other, twin, true))
			continue;
		entry->new_index_oid = twin;
		entry->relid = other;
		return true;
	}
	return false;
}

static bool
get_index(const LedgerEntry *entry, Oid index_oid, RelationFacts *facts)
{
	return relation_facts(index_oid, facts) && facts->heap_oid == entry->heap_oid;
}

/*
 * Find out, in a transaction, which index is to be removed for a ledger row; false
 * if there is none.  Everything comes from the system caches, so an exclusive lock on
 * the table does not block us; the caller repeats this under locks.
 *
 * Commands that rewrite a table or all its indexes (TRUNCATE, CLUSTER, VACUUM FULL,
 * REINDEX TABLE, many forms of ALTER TABLE) ignore whether an index is valid.  So the
 * unfinished index of an interrupted rebuild becomes a valid duplicate, which costs
 * writers time.  It is ours to remove as long as nothing can have begun to rely on
 * it: it has the name that REINDEX CONCURRENTLY gave it, the definition of the other
 * index, which is valid, and nothing depends on it.
 */
static bool
find_victim(LedgerEntry *entry, Victim *victim)
{
	RelationFacts new_index;
	RelationFacts old_index;
	bool		new_exists = get_index(entry, entry->new_index_oid, &new_index);
	bool		old_exists = get_index(entry, entry->relid, &old_index);

	/* after the swap the old index has such a name */
	bool		swapped = new_exists &&
		strcmp(NameStr(new_index.relname), NameStr(entry->new_name)) != 0;
	const RelationFacts *twin = swapped ? &old_index : &new_index;
	const RelationFacts *keeper = swapped ? &new_index : &old_index;
	bool		old_is_spare;

	memset(victim, 0, sizeof(Victim));
	if (!new_exists && !old_exists)
	{
		if (!find_remade(entry))
			return false;
		return find_victim(entry, victim);
	}
	if (new_exists)
		old_is_spare = swapped && old_exists && !old_index.valid;
	else
		old_is_spare = entry->kind == LEDGER_DUPLICATE && !old_index.valid;

	if (old_is_spare)
	{
		/* by its name, since heal_tablespace() makes indexes in use invalid */
		if (is_reindex_leftover_name(NameStr(old_index.relname)))
			victim->index_oid = entry->relid;
		victim->dead = !old_index.live;
	}
	else if (!new_exists)
		return false;
	else if (!new_index.valid && !swapped)
	{
		/* not swapped in: ours, whether the old index exists or not */
		victim->index_oid = entry->new_index_oid;
		victim->dead = !new_index.live;
		victim->never_valid = (entry->kind == LEDGER_INDEX);
	}
	else if (!old_exists)
		/* moved and finished, unless it has its name of before the swap */
		victim->in_doubt = !swapped;
	else if (keeper->valid && is_reindex_leftover_name(NameStr(twin->relname)) &&
			 report_is_spare(twin->relid) &&
			 index_same_definition(twin->relid, keeper->relid, true))
	{
		victim->index_oid = twin->relid;
		victim->valid = true;
	}
	else
		victim->in_doubt = true;
	return OidIsValid(victim->index_oid);
}

/* Return "schema.name" for messages, NULL if it is gone. */
static char *
qualified_name(Oid relid)
{
	RelationFacts facts;

	return !relation_facts(relid, &facts) ? NULL :
		psprintf("%s.%s", NameStr(facts.schema_name), NameStr(facts.relname));
}

/*
 * Find out which index is to be removed for a ledger row.  If there is none, delete
 * the row, and return false.  show: in index_mover_progress, since it is no part of a
 * move.
 */
static bool
find_work(LedgerEntry *entry, bool show, Victim *victim)
{
	Oid			shown = victim->index_oid;
	RelationFacts facts;
	MoveItem	item = {.method = METHOD_REBUILD};
	bool		found;

	StartTransactionCommand();
	found = find_victim(entry, victim);
	if (victim->in_doubt)
	{
		char	   *old_name = qualified_name(entry->relid);

		ereport(WARNING,
				(errmsg("index \"%s\" has been left by an interrupted move, but was changed since",
						qualified_name(entry->new_index_oid)),
				 old_name ? errdetail("It was meant to replace index \"%s\".", old_name) : 0,
				 errhint("Drop the one that is not needed.")));
	}
	if (!found && entry->id != 0)
		ledger_delete(entry->id);
	if (show && found && victim->index_oid != shown && relation_facts(victim->index_oid, &facts))
	{
		item_fill(&item, &facts);
		progress_begin(&item);
		progress_phase(PHASE_CLEANING_UP);
	}
	CommitTransactionCommand();
	return found;
}

/*
 * Take the next step, under the locks.  Returns whether it was the last.  *unused
 * becomes false if queries may use the index, or have used it until now.
 */
static bool
take_step(LedgerEntry *entry, const Victim *victim, bool *unused)
{
	Victim		again;
	ObjectAddress object;
	bool		done = false;

	Assert(CheckRelationOidLockedByMe(victim->index_oid, ShareUpdateExclusiveLock, true));
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!find_victim(entry, &again) || memcmp(&again, victim, sizeof(Victim)) != 0)
		*unused = false;
	else if (victim->valid)
	{
		/* from the commit on, the row says that queries may have used it */
		index_set_state_flags(victim->index_oid, INDEX_DROP_CLEAR_VALID);
		CacheInvalidateRelcacheByRelid(entry->heap_oid);
		entry->kind = LEDGER_DUPLICATE;
		if (entry->id != 0)
			ledger_update(entry);
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
		if (entry->id != 0)
			ledger_delete(entry->id);
		done = true;
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
	return done;
}

/* Do leftover_index_remove(), but for its care of errors.  ERROR 55P03 after the limit. */
static void
remove_one(LedgerEntry *entry, bool own, WaitLimits *limits)
{
	Victim		victim = {0};
	bool		unused = false; /* we have waited for all users of the table */
	Oid			was_dead = InvalidOid;	/* the index was dead before that */
	bool		done = false;

	while (!done)
	{
		if (!find_work(entry, limits->mc == NULL, &victim))
			break;

		/*
		 * An index that was never valid has not been used by a query, so
		 * writers need not maintain it any longer.  After some time it may
		 * have been repaired, and put out of use again.
		 */
		if (victim.dead ? was_dead != victim.index_oid :
			!victim.valid && !unused && !(victim.never_valid && own))
		{
			wait_for_lockers(entry->heap_oid, AccessExclusiveLock, limits);
			unused = true;
			was_dead = victim.dead ? victim.index_oid : InvalidOid;
			continue;
		}
		/* the session that had the locks may have made it valid for a while */
		if (lock_table_and_index(entry->heap_oid, victim.index_oid, limits))
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
 * Remove the index that a ledger row names (or one that the extension has taken along, id 0),
 * and restore the session after an error.  Returns false if it is to be tried again.
 * own: it is of our own job, whose rebuild has just failed.  Otherwise as
 * leftover_indexes_remove().
 */
bool
leftover_index_remove(LedgerEntry *entry, const MoveContext *mc, bool own, int max_wait_ms)
{
	MemoryContext context = CurrentMemoryContext;

	/* when the move has ended, a cancel ends nothing any more */
	bool		goes_on = mc != NULL && mc->item->outcome.status == STATUS_RUNNING;
	WaitLimits	limits = {0};
	ErrorData  *volatile error = NULL;

	limits.phase = PHASE_CLEANING_UP;
	limits.max_ms = max_wait_ms;
	limits.mc = mc;
	limits.cancellable = goes_on;
	Assert(!IsTransactionState() && (own || mc == NULL || goes_on));
	runner_serve_cancel(goes_on);
	PG_TRY();
	{
		remove_one(entry, own, &limits);
	}
	PG_CATCH();
	{
		error = errors_take(context);
		if (goes_on && errors_was_canceled(error))
			ReThrowError(error);
		progress_blockers(NULL, 0);
		/* not of a mere timeout */
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ereport(WARNING,
					(errmsg("could not remove index with OID %u or %u of table with OID %u, left by an interrupted move",
							entry->new_index_oid, entry->relid, entry->heap_oid),
					 errors_as_detail(error),
					 errhint("The next move will try again, or: %s", printed_command("cleanup"))));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	if (mc == NULL)
		QueryCancelPending = false;
	else if (!goes_on)
		runner_take_cancel(mc->job);
	runner_serve_cancel(true);
	if (mc == NULL)
		progress_end(0);
	return error == NULL;
}

/*
 * Remove the leftovers of this move's job (own), the leftovers on its table before it
 * begins or, without a move, of all jobs that are not alive; "tables", unless
 * NIL, restricts this.  Call this in a runner with no lock held.
 *
 * Waits at most max_wait_ms (0 = no limit) for the transactions that use each
 * table; of our own job, for all of them together, and for a second at least for each.
 * An index that cannot be removed by then stays in the ledger.  A move that has not ended
 * obeys pause_move(), and a cancel is an ERROR.  The only others are termination and, of our
 * own job, 55P03 if a session keeps the ledger locked for max_wait_ms.
 */
void
leftover_indexes_remove(const MoveContext *mc, bool own, const List *tables, int max_wait_ms)
{
	int64		start = clock_us();

	/* a move that begins needs the ledger anyhow */
	List	   *rows = ledger_read_within(own ? max_wait_ms : 0);

	foreach_ptr(LedgerEntry, entry, rows)
	{
		int			left_ms = max_wait_ms;

		if (!leftover_index_is_dead(entry) ||
			(tables != NIL && !list_member_oid(tables, entry->heap_oid)) ||
			(own && entry->job != mc->job->job))
			continue;
		if (own && max_wait_ms > 0)
		{
			int64		waited_ms = (clock_us() - start) / 1000;

			left_ms = Max(max_wait_ms - waited_ms, Min(max_wait_ms, SHORTEST_WAIT_MS));
		}
		(void) leftover_index_remove(entry, mc, own, left_ms);
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
leftover_index_describe(LedgerEntry *entry)
{
	Leftover   *leftover;
	RelationFacts facts;
	Victim		victim;

	if (!find_victim(entry, &victim) || !relation_facts(victim.index_oid, &facts))
		return NULL;

	leftover = palloc0(sizeof(Leftover));
	if (victim.valid || entry->kind == LEDGER_DUPLICATE)
		leftover->kind = LEFTOVER_DUPLICATE_INDEX;
	else
		leftover->kind = LEFTOVER_INVALID_INDEX;
	leftover->index_oid = victim.index_oid;
	leftover->name = quote_qualified_identifier(NameStr(facts.schema_name), NameStr(facts.relname));
	leftover->tablespace = facts.tablespace;
	leftover->size = relation_files_size(facts.tablespace, facts.relfilenumber);
	return leftover;
}
