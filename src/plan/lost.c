/*-------------------------------------------------------------------------
 *
 * lost.c
 *	  Relations whose files are lost or ruins, and how heal_tablespace() treats them.
 *
 * lost_file.c finds them.  Who finds a ruin must not copy it, and an index can be made
 * again from its table.
 *
 * Until a lost index is rebuilt, it is hidden from the planner, so that reads work
 * at once, by pg_index.indisvalid alone: all else that index_set_state_flags() clears
 * would be lost for good.
 *
 *	- An index that enforces a constraint stays ready: an insert, which would have to
 *	  look into the missing file, fails, and no duplicate gets in.
 *	- Another index is made not ready as well, so that writes work.
 *	- A replica identity is not hidden where WAL is decoded, which would go on
 *	  without the old keys; nor is an index of a TOAST table, which REINDEX
 *	  would refuse then.  These are rebuilt first.
 *
 * Locks, none of which is waited for: as lost_file(), and lost_look_for_builder(); while a row of pg_index
 * changes, AccessShareLock on the table and ShareUpdateExclusiveLock on the index, which
 * keep out whatever drops or replaces it, but neither reads, nor writes, nor VACUUM; without
 * them it is not hidden.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "cleanup/cleanup.h"
#include "compat.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "history.h"
#include "own_tables.h"
#include "plan/plan_private.h"

/* The order of rebuilds; within a class, the most used first */
typedef enum LostClass
{
	LOST_IN_USE,				/* it is not hidden */
	LOST_ENFORCES,				/* writes fail without it */
	LOST_ELSE,
} LostClass;

#define RANK_OF_CLASS	(INT64CONST(1) << 56)

static const char *const not_valid = "it is not valid";

/* Return whether decoding takes old keys from an index, but not of an unlogged table. */
static bool
is_decoded_by(const RelationFacts *facts)
{
	if (!XLogLogicalInfoActive() || facts->persistence != RELPERSISTENCE_PERMANENT)
		return false;
	if (facts->identity == REPLICA_IDENTITY_DEFAULT)
		return facts->primary;
	return facts->identity == REPLICA_IDENTITY_INDEX && facts->replident;
}

/* Decide whether and how a lost index is rebuilt, and say it. */
static void
lost_index_decide(PlannedMove *entry, const char *lost)
{
	MoveItem   *item = &entry->item;
	const RelationFacts *facts = &entry->facts;
	PgStat_StatTabEntry *stats = pgstat_fetch_stat_tabentry(item->relid);
	bool		is_toast = IsToastNamespace(facts->schema_oid);
	LostClass	class = LOST_ELSE;
	bool		may_be_built = false;

	/* CREATE INDEX CONCURRENTLY makes the file first */
	if (relation_main_size(facts) >= 0)
		may_be_built = lost_look_for_builder(facts);
	if (may_be_built)
	{
		item_skip(item, ERRCODE_OBJECT_IN_USE, "It is not valid: another session may be building it.");
		return;
	}
	item->hide = !is_toast && !is_decoded_by(facts);
	item->plain = !is_toast && rebuild_hindrance(facts) != NULL;
	if (!item->hide)
		class = LOST_IN_USE;
	else if (facts->unique || facts->exclusion)
		class = LOST_ENFORCES;
	entry->rank = class * RANK_OF_CLASS;
	if (stats != NULL)
		entry->rank -= Min(stats->blocks_fetched, RANK_OF_CLASS - 1);

	item_say(item, "Lost: %s.", lost);
	if (is_toast)
		item_say(item, "Rebuilt first and where it is: until then no value of the TOAST table can be read.");
	else if (class == LOST_IN_USE)
		item_say(item, "Rebuilt first: it is the replica identity, and must stay in use; until then what uses it fails.");
	else if (class == LOST_ENFORCES)
	{
		item_say(item, "From the start of the job until it is rebuilt, queries do without it, and pg_dump leaves it out.");
		item_say(item, "Meanwhile inserts, updates that are not HOT, ON CONFLICT on it (42P10), and VACUUM of the table fail.");
	}
	else
		item_say(item, "From the start of the job until it is rebuilt, queries and writes do without it, and pg_dump leaves it out.");
	if (item->plain)
		item_say(item, "REINDEX CONCURRENTLY cannot rebuild it. While REINDEX does, no session can write to its table, and queries of it wait.");
	foreach_oid(foreign_key, get_index_ref_constraints(item->relid))
	{
		ObjectAddress address = {ConstraintRelationId, foreign_key, 0};
		char	   *name = getObjectDescription(&address, true);

		if (name != NULL)
			item_say(item, "Needed by %s.", name);
	}
}

/* Skip a table, or a TOAST table, and say how it can be made again, if it can. */
static void
lost_table_skip(MoveItem *item, const RelationFacts *facts, const char *lost)
{
	Oid			owner = table_of_toast(item->relid);
	char		relkind = OidIsValid(owner) ? get_rel_relkind(owner) : item->relkind;

	if (relkind == RELKIND_MATVIEW)
		item_skip(item, ERRCODE_DATA_CORRUPTED, "Lost: %s. REFRESH MATERIALIZED VIEW makes it again.", lost);
	else if (facts->persistence == RELPERSISTENCE_UNLOGGED && relkind == RELKIND_RELATION)
		item_skip(item, ERRCODE_DATA_CORRUPTED,
				  "Lost: %s. No backup has what was in it; TRUNCATE makes it again, without rows.", lost);
	else
		item_skip(item, ERRCODE_DATA_CORRUPTED,
				  "Lost: %s. It cannot be made again: restore it from a backup, or promote a standby that has it.", lost);
	if (OidIsValid(owner))
		item_say(item, "It belongs to \"%s\".", get_rel_name(owner));
}

/* Return the damage to the table of an index, as lost_file(). */
static const char *
lost_table_of(const RelationFacts *facts, LostLook look)
{
	RelationFacts heap;

	if (!relation_facts(facts->heap_oid, &heap))
		return NULL;
	/* it may be on another device, which has lost nothing */
	return lost_file(&heap, heap.tablespace == facts->tablespace ? look : LOOK_QUICK);
}

/*
 * Complete the row of a relation, planned or skipped, if it is lost; else return false.
 * heals: an index that is not valid counts as lost.
 */
bool
lost_plan(PlannedMove *entry, LostLook look, bool heals)
{
	MoveItem   *item = &entry->item;
	const RelationFacts *facts = &entry->facts;
	const char *lost = lost_file(facts, look);
	const char *lost_table;

	/* its file may have come back since it was hidden */
	if (lost == NULL && heals && !facts->valid)
		lost = not_valid;
	if (lost == NULL)
		return false;
	item->heal = true;
	item->size_before = (int64) facts->pages * BLCKSZ;
	if (IsToastNamespace(facts->schema_oid))
		item->to_tablespace = facts->tablespace;
	if (!item_check_file(item, facts))
		return true;
	if (!relkind_is_index(item->relkind))
		lost_table_skip(item, facts, lost);
	else if ((lost_table = lost_table_of(facts, look)) != NULL)
		item_skip(item, ERRCODE_DATA_CORRUPTED, "Its table is lost: %s.", lost_table);
	else if (item_check(item, facts))
		lost_index_decide(entry, lost);
	return true;
}

/*
 * Look whether an index that is not valid is a matter of heal_tablespace(): its device has lost it, or a
 * job has hidden it, and has not rebuilt it.  Else another command has left it, or is making or dropping
 * it.  An index that enforces something is hidden ready.
 */
static bool
look_if_to_heal(const RelationFacts *facts)
{
	if (!facts->live || is_reindex_leftover_name(NameStr(facts->relname)))
		return false;
	if (evidence_of_file(facts->tablespace, facts->relfilenumber, facts->relid) == EVIDENCE_LOST)
		return true;
	if (!facts->ready && (facts->unique || facts->exclusion))
		return false;
	return history_find_open_rebuild(facts->relid);
}

/*
 * Return the damage to a relation for monitors, as lost_file_until(), or that it is an index that is not
 * valid until heal_tablespace() rebuilds it.
 */
const char *
lost_problem(Oid relid, double until)
{
	RelationFacts facts;
	const char *lost;

	if (!relation_facts(relid, &facts))
		return NULL;
	lost = lost_file_until(&facts, until);
	if (lost != NULL || facts.valid || RecoveryInProgress())
		return lost;
	if (!look_if_to_heal(&facts))
		return NULL;
	/* a session may have made it valid, or dropped it, meanwhile */
	AcceptInvalidationMessages();
	if (!relation_facts(relid, &facts) || facts.valid || !facts.live)
		return NULL;
	return not_valid;
}

/* Hide an index, if it is still lost and valid. */
static void
lost_index_hide(void *arg)
{
	MoveItem   *item = arg;
	RelationFacts facts;
	Relation	pg_index;
	HeapTuple	tuple;
	Form_pg_index form;
	bool		is_locked;

	/* the transaction ends with an error, and releases its locks */
	is_locked = extension_hold() == EXTENSION_HELD;
	if (is_locked)
		is_locked = ConditionalLockRelationOid(item->heap_oid, AccessShareLock);
	if (is_locked)
		is_locked = ConditionalLockRelationOid(item->relid, ShareUpdateExclusiveLock);
	if (!is_locked)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another session has locked it"),
				 errhint("Heal the tablespace again when it is free.")));
	if (!relation_facts(item->relid, &facts) || !facts.valid || !facts.live ||
		facts.heap_oid != item->heap_oid || plan_aclcheck(facts.heap_oid, true) != ACLCHECK_OK)
		return;
	if (lost_file(&facts, LOOK_LOSS_KNOWN) == NULL)
		return;
	pg_index = table_open(IndexRelationId, RowExclusiveLock);
	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(item->relid));
	Assert(HeapTupleIsValid(tuple));	/* it is locked */
	form = (Form_pg_index) GETSTRUCT(tuple);
	form->indisvalid = false;
	/* a constraint that it enforces, it must go on to enforce */
	form->indisready = form->indisready && (facts.unique || facts.exclusion);
	CatalogTupleUpdate(pg_index, &tuple->t_self, tuple);
	/* plans, and the list of the table's indexes */
	CacheInvalidateRelcacheByRelid(item->heap_oid);
	table_close(pg_index, RowExclusiveLock);
}

/*
 * Hide the lost indexes of a job, each in a transaction of its own.  Called by its
 * first runner, with no transaction open; an index that cannot be hidden is a WARNING.
 */
void
lost_hide(JobShared *job)
{
	/* the runner gives up the items of a job that was canceled */
	for (int i = 0; i < job->nitems && !job_cancel_requested(); i++)
	{
		ErrorData  *error;

		if (!job->items[i].hide || job->items[i].outcome.status != STATUS_QUEUED)
			continue;
		error = errors_catch_in_transaction(lost_index_hide, &job->items[i]);
		runner_serve_cancel(false);
		if (error != NULL)
			ereport(WARNING,
					(errmsg("could not hide index \"%s\"", NameStr(job->items[i].relname)),
					 errors_as_detail(error)));
	}
}
