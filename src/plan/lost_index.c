/*-------------------------------------------------------------------------
 *
 * lost_index.c
 *	  How heal_tablespace() treats a relation whose file is lost.
 *
 * An index is rebuilt from its table.  Until then it is hidden from the planner,
 * so that reads work at once, by pg_index.indisvalid alone: what else
 * index_set_state_flags() clears would be lost for good.
 *
 *	- One that enforces a constraint stays ready: an insert, which would have to
 *	  look into the missing file, fails, and no duplicate gets in.
 *	- Another one is made not ready as well, so that writes work.
 *	- A replica identity is not hidden where WAL is decoded, which would go on
 *	  without the old keys; nor is an index of a TOAST table, which REINDEX
 *	  would refuse then.  These are rebuilt first.
 *
 * A table is only named.
 *
 * Locks: while a row of pg_index changes, AccessShareLock on the table and
 * ShareUpdateExclusiveLock on the index, which keep out whatever drops or replaces
 * it, but neither reads, nor writes, nor VACUUM.  One that cannot be had at once is
 * not waited for: that index is seen until it is rebuilt.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_index.h"
#include "commands/tablespace.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "errors.h"
#include "file_system.h"
#include "plan/plan_private.h"

/* First the planner's order, then the counts of blocks */
#define RANK_OF_CLASS	(INT64CONST(1) << 56)

/* Return whether decoding takes the old keys of a table's rows from an index. */
static bool
is_decoded(const RelationFacts *facts)
{
	/* an unlogged table is not decoded */
	return XLogLogicalInfoActive() && facts->persistence == RELPERSISTENCE_PERMANENT &&
		((facts->identity == REPLICA_IDENTITY_DEFAULT && facts->primary) ||
		 (facts->identity == REPLICA_IDENTITY_INDEX && facts->replident));
}

/* Decide how a lost index is rebuilt, and say it. */
static void
lost_index_decide(PlanEntry *entry, const char *lost)
{
	MoveItem   *item = &entry->item;
	PgStat_StatTabEntry *stats = pgstat_fetch_stat_tabentry(item->relid);
	bool		is_toast = IsToastNamespace(entry->facts.schema_oid);
	bool		enforces = entry->facts.unique || entry->facts.exclusion;

	item->hide = !is_toast && !is_decoded(&entry->facts);
	item->plain = !is_toast && rebuild_hindrance(&entry->facts) != NULL;
	entry->rank = (item->hide ? enforces ? 1 : 2 : 0) * RANK_OF_CLASS -
		(stats ? Min(stats->blocks_fetched, RANK_OF_CLASS - 1) : 0);

	item_say(item, "Lost: %s.", lost);
	if (is_toast)
		item_say(item, "Rebuilt first and where it is: until then no value of the TOAST table can be read.");
	else if (!item->hide)
		item_say(item, "Rebuilt first: it is the replica identity, and must stay in use; until then what uses it fails.");
	else if (enforces)
		item_say(item, "From the start of the job until it is rebuilt, queries do without it, pg_dump leaves it out, and these fail: inserts, updates that are not HOT, ON CONFLICT on it (42P10), VACUUM of the table.");
	else
		item_say(item, "From the start of the job until it is rebuilt, queries and writes do without it, and pg_dump leaves it out.");
	if (item->plain)
		item_say(item, "REINDEX CONCURRENTLY cannot rebuild it: while REINDEX does, its table is not written, and queries of it wait.");
	/* foreign keys, for example */
	foreach_ptr(HeapTupleData, row, catalog_rows(DependRelationId, DependReferenceIndexId,
												 Anum_pg_depend_refclassid, RelationRelationId,
												 Anum_pg_depend_refobjid, item->relid))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(row);
		ObjectAddress address = {form->classid, form->objid, form->objsubid};
		char	   *name = form->deptype == DEPENDENCY_NORMAL ? getObjectDescription(&address, true) : NULL;

		if (name != NULL)
			item_say(item, "Needed by %s.", name);
	}
}

/* Complete the row of a relation, planned or skipped, if it is lost; else return false. */
bool
plan_lost(PlanEntry *entry, const PlanRequest *request)
{
	MoveItem   *item = &entry->item;
	bool		all_pages = request->all_pages;
	const char *lost = lost_file(&entry->facts, all_pages);
	const char *lost_table;
	RelationFacts heap;

	/* its file may have come back since it was hidden */
	if (lost == NULL && request->heal && !entry->facts.valid)
		lost = "it is not valid";
	if (lost == NULL)
		return false;
	item->heal = true;
	item->size_before = (int64) entry->facts.pages * BLCKSZ;
	if (!item_check_file(item, &entry->facts))
		return true;
	if (!relkind_is_index(item->relkind))
		item_skip(item, ERRCODE_DATA_CORRUPTED, item->relkind == RELKIND_MATVIEW ?
				  "Lost: %s. REFRESH MATERIALIZED VIEW makes it again." :
				  entry->facts.persistence == RELPERSISTENCE_UNLOGGED && item->relkind == RELKIND_RELATION ?
				  "Lost: %s. No backup has what was in it; TRUNCATE makes it again, without rows." :
				  "Lost: %s. It cannot be made again: restore it from a backup, or promote a standby that has it.", lost);
	else if (relation_facts(item->heap_oid, &heap) &&
			 (lost_table = lost_file(&heap, all_pages && heap.tablespace == entry->facts.tablespace)) != NULL)
		item_skip(item, ERRCODE_DATA_CORRUPTED, "Its table is lost: %s.", lost_table);
	else
	{
		if (IsToastNamespace(entry->facts.schema_oid))
			item->to_tablespace = entry->facts.tablespace;
		if (item_check(item, &entry->facts))
			lost_index_decide(entry, lost);
	}
	return true;
}

/*
 * Refuse to heal a tablespace whose file system seems to be not mounted yet: whose
 * directory does not exist, or is below another mount point than when it was last
 * seen.  With "force" or in a dry run, warn.  ERROR 55000.
 */
void
plan_check_mounted(Oid tablespace, bool force)
{
	char	   *before = mount_point_noted(tablespace);
	char	   *now = mount_point(tablespace);

	if (now != NULL && (before == NULL || strcmp(before, now) == 0))
		return;
	ereport(force ? WARNING : ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the file system of tablespace \"%s\" may not be mounted", get_tablespace_name(tablespace)),
			 now == NULL ? errdetail("Its directory does not exist.") :
			 errdetail("Its directory is below mount point \"%s\", and was below \"%s\" when it was last seen.", now, before),
			 force ? 0 :
			 errhint("Mount it. If it is gone for good, make its directory, and set index_mover.heal_unmounted.")));
}

/* Hide one index, if it is still lost and valid. */
static void
lost_index_hide(void *arg)
{
	MoveItem   *item = arg;
	RelationFacts facts;
	Relation	pg_index;
	HeapTuple	tuple;
	Form_pg_index form;

	if (!ConditionalLockRelationOid(item->heap_oid, AccessShareLock) ||
		!ConditionalLockRelationOid(item->relid, ShareUpdateExclusiveLock))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another session has locked it")));
	if (!relation_facts(item->relid, &facts) || !facts.valid || !facts.live ||
		facts.heap_oid != item->heap_oid || plan_aclcheck(facts.heap_oid, true) != ACLCHECK_OK ||
		lost_file(&facts, true) == NULL)
		return;
	pg_index = table_open(IndexRelationId, RowExclusiveLock);
	tuple = SearchSysCacheCopy1(INDEXRELID, ObjectIdGetDatum(item->relid));
	Assert(HeapTupleIsValid(tuple));	/* it is locked */
	form = (Form_pg_index) GETSTRUCT(tuple);
	form->indisvalid = false;
	/* what it enforces, it must go on to enforce */
	form->indisready = form->indisready && (facts.unique || facts.exclusion);
	CatalogTupleUpdate(pg_index, &tuple->t_self, tuple);
	/* plans, and the list of the table's indexes */
	CacheInvalidateRelcacheByRelid(item->heap_oid);
	table_close(pg_index, RowExclusiveLock);
}

/*
 * Hide the lost indexes of a job, each in a transaction of its own.  Called by its
 * first runner, with no transaction open; one that cannot be hidden is a WARNING.
 */
void
lost_indexes_hide(JobShared *job)
{
	/* the runner gives up the items of a job that was canceled */
	for (int i = 0; i < job->nitems && !job_cancel_requested(); i++)
	{
		ErrorData  *error;

		if (!job->items[i].hide || job->items[i].status != STATUS_QUEUED)
			continue;
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		error = errors_catch(lost_index_hide, &job->items[i]);
		if (error != NULL)
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("could not hide index \"%s\"", NameStr(job->items[i].relname)),
					 errdetail_internal("%s", error->message)));
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
}
