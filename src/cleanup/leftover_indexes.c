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
 * it open; drop it.  Unlike there, no lock is held during the waits, and the
 * two steps, of milliseconds, lock without queueing: no session has to queue
 * behind us.
 *
 * Locks: only ShareUpdateExclusiveLock on table and index, in each step.
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
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "cleanup/ledger.h"
#include "errors.h"
#include "file_system.h"
#include "index_definition.h"
#include "job.h"
#include "own_tables.h"
#include "printed_command.h"
#include "wait/wait.h"

#define UNLISTED	INT64CONST(0)	/* number of an entry without a ledger row */

typedef enum Verdict
{
	FORGET,						/* nothing of ours is left */
	FORGET_VALID,				/* valid now, and possibly in use */
	REMOVE,
} Verdict;

/* The index that is to be removed for a ledger row */
typedef struct Victim
{
	Oid			index_oid;		/* 0 = nothing */
	Oid			keeper;			/* of a duplicate: the index that stays */
	bool		valid;			/* a duplicate that queries may use */
	bool		dead;			/* not maintained any more */
	bool		never_valid;	/* cannot have been used by any query */
} Victim;

/*
 * Copy the fixed part of the row in pg_index, and the transaction that made
 * the index (xmin); false if it does not exist.
 */
static bool
index_row(Oid index_oid, FormData_pg_index *row, TransactionId *xmin)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index_oid));

	if (!HeapTupleIsValid(tuple))
		return false;
	memcpy(row, GETSTRUCT(tuple), offsetof(FormData_pg_index, indkey));
	if (xmin)
		*xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	ReleaseSysCache(tuple);
	return true;
}

static bool
has_name(Oid relid, const char *name)
{
	char	   *real_name = get_rel_name(relid);

	return real_name != NULL && strcmp(real_name, name) == 0;
}

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
 * which is valid, and no constraint, clustering, replica identity, partitioned
 * index or other object depends on it.  It is identified by its OID.  If that is
 * gone, it must have the exact name of the index that we made, and the same
 * transaction must have made the other index: no user makes two equal indexes
 * at once and calls one of them x_ccnew.
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

/* Return whether it is a plain valid index that no object depends on. */
static bool
is_unused(Oid index_oid)
{
	FormData_pg_index row;

	return index_row(index_oid, &row, NULL) &&
		row.indisvalid && !row.indisprimary && !row.indisexclusion &&
		!row.indisclustered && !row.indisreplident && !get_rel_relispartition(index_oid) &&
		!OidIsValid(get_index_constraint(index_oid)) && !index_has_dependents(index_oid);
}

/*
 * Return which index of a ledger row, both of which are valid, is a leftover,
 * and so a mere duplicate of *keeper; InvalidOid if that is unclear.
 */
static Oid
leftover_twin(const LedgerEntry *entry, Oid *keeper)
{
	Oid			twin = entry->new_index_oid;
	char	   *name;

	*keeper = entry->relid;
	if (entry->kind == LEDGER_INDEX && !has_name(twin, NameStr(entry->new_name)))
	{
		/* already swapped, so the old index has such a name */
		twin = entry->relid;
		*keeper = entry->new_index_oid;
	}
	name = get_rel_name(twin);
	if (name != NULL && is_reindex_leftover_name(name) &&
		is_unused(twin) && index_same_definition(twin, *keeper, true))
		return twin;
	return InvalidOid;
}

/*
 * Return the index that ALTER TABLE .. TYPE has made in place of the
 * leftover, a mere duplicate of *keeper; InvalidOid if there is none.
 * Neither index of the row exists any more.
 */
static Oid
leftover_twin_remade(const LedgerEntry *entry, Oid *keeper)
{
	Oid			twin = get_relname_relid(NameStr(entry->new_name),
										 get_rel_namespace(entry->heap_oid));
	FormData_pg_index row;
	TransactionId xmin;
	TransactionId other_xmin;
	ListCell   *lc;

	if (!OidIsValid(twin) || !index_row(twin, &row, &xmin) || !is_unused(twin) ||
		!is_reindex_leftover_name(NameStr(entry->new_name)))
		return InvalidOid;
	foreach(lc, indexes_of_table(entry->heap_oid))
	{
		*keeper = lfirst_oid(lc);
		if (*keeper != twin && index_row(*keeper, &row, &other_xmin) &&
			row.indisvalid && other_xmin == xmin && index_same_definition(*keeper, twin, true))
			return twin;
	}
	return InvalidOid;
}

/* ----------------------------------------------------------------
 *	Removing the index of a ledger row
 * ----------------------------------------------------------------
 */

/* Find out, in a transaction, which index is to be removed for a ledger row. */
static Verdict
find_victim(const LedgerEntry *entry, Victim *victim)
{
	FormData_pg_index new_index;
	FormData_pg_index old_index;
	bool		new_exists = index_row(entry->new_index_oid, &new_index, NULL) &&
		new_index.indrelid == entry->heap_oid;
	bool		old_exists = index_row(entry->relid, &old_index, NULL) &&
		old_index.indrelid == entry->heap_oid;

	memset(victim, 0, sizeof(Victim));

	if (!new_exists && !old_exists && entry->kind == LEDGER_INDEX)
	{
		victim->index_oid = leftover_twin_remade(entry, &victim->keeper);
		victim->valid = true;
		return OidIsValid(victim->index_oid) ? REMOVE : FORGET;
	}
	if (!new_exists)
		return FORGET;
	if (!new_index.indisvalid)
	{
		/* not swapped in: ours, whether the old one exists or not */
		victim->index_oid = entry->new_index_oid;
		victim->dead = !new_index.indislive;
		victim->never_valid = (entry->kind == LEDGER_INDEX);
		return REMOVE;
	}
	if (!old_exists)
	{
		/* moved and finished, unless it has its name of before the swap */
		return has_name(entry->new_index_oid, NameStr(entry->new_name)) ? FORGET_VALID : FORGET;
	}
	if (!old_index.indisvalid && entry->kind == LEDGER_INDEX)
	{
		victim->index_oid = entry->relid;
		victim->dead = !old_index.indislive;
		return REMOVE;
	}
	if (old_index.indisvalid)
		victim->index_oid = leftover_twin(entry, &victim->keeper);
	victim->valid = true;
	return OidIsValid(victim->index_oid) ? REMOVE : FORGET_VALID;
}

/* Return the quoted "schema.name" for messages, NULL if it is gone. */
static char *
qualified_name(Oid relid)
{
	char	   *name = get_rel_name(relid);
	char	   *schema = get_namespace_name(get_rel_namespace(relid));

	if (name == NULL || schema == NULL)
		return NULL;
	return quote_qualified_identifier(schema, name);
}

/* Lock table and index until the end of the transaction, without waiting. */
static bool
lock_now(Oid heap_oid, Oid index_oid)
{
	return ConditionalLockRelationOid(heap_oid, ShareUpdateExclusiveLock) &&
		ConditionalLockRelationOid(index_oid, ShareUpdateExclusiveLock);
}

typedef enum Step
{
	STEP_DONE,					/* the row is gone */
	STEP_CLEARED,				/* out of use for queries now */
	STEP_WAIT_UNUSED,			/* wait for all users of the table, then retry */
	STEP_WAIT_LOCK,				/* the lock is not available now */
} Step;

static void
delete_row(const LedgerEntry *entry)
{
	if (entry->id != UNLISTED)
		ledger_delete(entry->id);
}

/*
 * Put a duplicate out of use for queries, as the first step of core's DROP
 * INDEX CONCURRENTLY does.  From the commit on the ledger says that queries
 * may have used it: *entry becomes the row that replaces the old one.
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

static void
drop_index(Oid index_oid)
{
	ObjectAddress object;

	Assert(CheckRelationOidLockedByMe(index_oid, ShareUpdateExclusiveLock, true));
	ObjectAddressSet(object, RelationRelationId, index_oid);
	performDeletion(&object, DROP_RESTRICT,
					PERFORM_DELETION_CONCURRENT_LOCK | PERFORM_DELETION_INTERNAL);
}

/*
 * Take one step for one ledger row, in a transaction of its own.  own: the row
 * is of our own job, which has just failed.  unused: since the last step the
 * caller has waited for all users of the table.  *victim_out is set to the index
 * to remove.  *marked is the index that this process knew to be dead before the
 * last wait.
 */
static Step
one_step(LedgerEntry *entry, bool own, bool unused, Oid *victim_out, Oid *marked)
{
	Verdict		verdict;
	Step		result = STEP_DONE;
	Victim		victim;
	Victim		again;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());

	verdict = find_victim(entry, &victim);
	if (verdict == FORGET_VALID)
	{
		char	   *old_name = qualified_name(entry->relid);

		ereport(WARNING,
				(errmsg("index \"%s\" has been left by an interrupted move, but is valid now",
						qualified_name(entry->new_index_oid)),
				 old_name ? errdetail("It was meant to replace index \"%s\".", old_name) : 0,
				 errhint("Drop the one that is not needed.")));
	}

	/*
	 * An index that was never valid has not been used by a query, so it can
	 * be marked dead right away, and writers need not maintain it any longer.
	 * After some time it may have been repaired, and put out of use again.
	 */
	if (verdict != REMOVE)
		delete_row(entry);
	else if (!victim.valid && !victim.dead && !unused &&
			 !(victim.never_valid && own))
		result = STEP_WAIT_UNUSED;
	else if (victim.dead && *marked != victim.index_oid)
	{
		/* marked by a process that may have died before its wait */
		*marked = victim.index_oid;
		result = STEP_WAIT_UNUSED;
	}
	else if (!lock_now(entry->heap_oid, victim.index_oid) ||
			 find_victim(entry, &again) != REMOVE ||
			 memcmp(&again, &victim, sizeof(Victim)) != 0)
	{
		/* not available, or the state has changed until we had the locks */
		result = STEP_WAIT_LOCK;
	}
	else if (victim.valid)
	{
		clear_valid(entry, &victim);
		*marked = InvalidOid;
		result = STEP_CLEARED;
	}
	else if (!victim.dead)
	{
		index_concurrently_set_dead(entry->heap_oid, victim.index_oid);
		*marked = victim.index_oid;
		result = STEP_WAIT_UNUSED;
	}
	else
	{
		ereport(LOG,
				(errhidecontext(true),
				 errmsg("%s: removing index \"%s\", left by job " INT64_FORMAT,
						runner_name(), qualified_name(victim.index_oid), entry->job)));
		drop_index(victim.index_oid);
		delete_row(entry);
	}

	*victim_out = victim.index_oid;
	PopActiveSnapshot();
	CommitTransactionCommand();
	return result;
}

/* Show in index_mover_progress the index that a cleanup works on. */
static void
show_leftover(const LedgerEntry *entry)
{
	MoveItem	item = {0};
	Victim		victim;

	StartTransactionCommand();
	if (find_victim(entry, &victim) == REMOVE)
	{
		char	   *name = get_rel_name(victim.index_oid);
		char	   *heap_name = get_rel_name(entry->heap_oid);
		char	   *schema = get_namespace_name(get_rel_namespace(victim.index_oid));

		item.relid = victim.index_oid;
		item.heap_oid = entry->heap_oid;
		namestrcpy(&item.relname, name ? name : "");
		namestrcpy(&item.heap_name, heap_name ? heap_name : "");
		namestrcpy(&item.schema_name, schema ? schema : "");
		item.method = METHOD_REBUILD;
		item.status = STATUS_RUNNING;
		item.started_at = GetCurrentTimestamp();
		progress_begin(&item);
		progress_phase(PHASE_CLEANING_UP);
	}
	CommitTransactionCommand();
}

/*
 * Do all steps for one ledger row.  ERROR 55P03 after max_wait_ms.  begins:
 * waits obey pause_move() and cancel.
 */
static void
remove_one(LedgerEntry *entry, bool own, bool begins, int max_wait_ms)
{
	WaitLimits	limits = {0};
	Oid			victim;
	Oid			marked = InvalidOid;
	bool		unused = false;

	limits.phase = PHASE_CLEANING_UP;
	limits.deadline = wait_deadline(max_wait_ms);
	limits.item = blockers_item(&limits.settings);
	limits.signal_at = limits.item ? wait_deadline(limits.settings->lock_wait) : 0;
	limits.caller_pid = 0;
	limits.cancellable = begins;
	limits.pausable = begins;

	for (;;)
	{
		switch (one_step(entry, own, unused, &victim, &marked))
		{
			case STEP_DONE:
				return;
			case STEP_CLEARED:
				/* queries have used it until now */
				unused = false;
				break;
			case STEP_WAIT_UNUSED:
				wait_for_lockers(entry->heap_oid, AccessExclusiveLock, &limits);
				unused = true;
				break;
			case STEP_WAIT_LOCK:

				/*
				 * Only probe the locks here: these are session locks, and the
				 * step takes transaction locks.
				 */
				lock_table_and_index(entry->heap_oid, victim, &limits);
				unlock_table_and_index(entry->heap_oid, victim);
				/* the previous holder may have made it valid for a while */
				unused = false;
				break;
		}
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
 * Restore the session after an error, and warn unless it was only a timeout.
 * Returns true for a cancel.
 */
static bool
take_error(const LedgerEntry *entry, MemoryContext context)
{
	ErrorData  *edata = errors_take(context);

	progress_blockers(NULL, 0);

	if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
		return true;
	if (edata->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ereport(WARNING,
				(errcode(edata->sqlerrcode),
				 errmsg("could not remove index with OID %u or %u of table with OID %u, left by an interrupted move",
						entry->new_index_oid, entry->relid, entry->heap_oid),
				 errdetail("%s.", edata->message),
				 errhint("The next move will try again, or: %s", printed_command("cleanup"))));
	return false;
}

/*
 * Do all steps for one ledger row, and restore the session after an error.
 * Returns whether they were done.  Unless a move begins, a cancel only repeats
 * them: the move was canceled before, and another cancel may come.
 */
static bool
try_to_remove(LedgerEntry *entry, bool own, bool begins, bool show, int max_wait_ms)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;
	volatile bool again = true;

	Assert(!IsTransactionState());
	while (again)
	{
		again = false;
		PG_TRY();
		{
			if (show)
				show_leftover(entry);
			remove_one(entry, own, begins, max_wait_ms);
			done = true;
		}
		PG_CATCH();
		{
			if (begins && geterrcode() == ERRCODE_QUERY_CANCELED)
				PG_RE_THROW();
			again = take_error(entry, context);
		}
		PG_END_TRY();
		MemoryContextSwitchTo(context);
		if (show)
			progress_end(0);
	}
	return done;
}

/*
 * Remove one leftover of this process after the extension and its ledger have
 * been dropped.  Returns false if it is to be tried again.
 */
bool
leftover_index_remove_unlisted(const LedgerEntry *listed, int max_wait_ms)
{
	LedgerEntry entry = *listed;

	entry.id = UNLISTED;
	return try_to_remove(&entry, false, false, false, max_wait_ms);
}

/*
 * Remove the leftovers of one job (possibly the caller's own) or, with job =
 * 0, of all jobs that are not alive.  only_heap, unless InvalidOid, restricts
 * it to one table.
 *
 * Waits at most max_wait_ms (0 = no limit) for the transactions that use each
 * table; an index that cannot be removed by then stays in the ledger.  show:
 * show this work, which is no part of a move, in index_mover_progress.  Without
 * job and show a move begins, which has nothing to lose yet: so it obeys
 * pause_move(), and a cancel is an ERROR.  The only other ERROR is termination.
 *
 * Call this in a runner with no lock held.
 */
void
leftover_indexes_remove(Oid only_heap, int64 job, int max_wait_ms, bool show)
{
	ListCell   *lc;

	foreach(lc, ledger_read_apart())
	{
		LedgerEntry *entry = lfirst(lc);

		if (leftover_index_is_dead(entry) &&
			(!OidIsValid(only_heap) || entry->heap_oid == only_heap) &&
			(job == 0 || entry->job == job))
			(void) try_to_remove(entry, job != 0, job == 0 && !show, show, max_wait_ms);
	}
}

/* Return, in a transaction, whether an unfinished rebuild of ours made it. */
bool
leftover_index_is_ours(Oid index_oid)
{
	ListCell   *lc;

	foreach(lc, ledger_read())
	{
		const LedgerEntry *entry = lfirst(lc);
		Victim		victim;

		if (is_index_entry(entry) && find_victim(entry, &victim) == REMOVE &&
			victim.index_oid == index_oid)
			return true;
	}
	return false;
}

/*
 * Return, in a transaction, the index that a dead job has left by this row; NULL
 * if there is none.  Waits for no lock.
 */
Leftover *
leftover_index_describe(const LedgerEntry *entry)
{
	Leftover   *leftover;
	HeapTuple	tuple;
	Form_pg_class form;
	Victim		victim;

	if (find_victim(entry, &victim) != REMOVE)
		return NULL;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(victim.index_oid));
	if (!HeapTupleIsValid(tuple))
		return NULL;
	form = (Form_pg_class) GETSTRUCT(tuple);

	leftover = palloc0(sizeof(Leftover));
	leftover->kind = victim.valid || entry->kind == LEDGER_DUPLICATE ? "duplicate index" : "invalid index";
	leftover->index_oid = victim.index_oid;
	leftover->name = qualified_name(victim.index_oid);
	leftover->tablespace = OidIsValid(form->reltablespace) ?
		form->reltablespace : MyDatabaseTableSpace;
	leftover->size = relation_files_size(leftover->tablespace, form->relfilenode);
	ReleaseSysCache(tuple);
	return leftover;
}
