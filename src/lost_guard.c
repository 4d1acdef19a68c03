/*-------------------------------------------------------------------------
 *
 * lost_guard.c
 *	  Guard that keeps sessions from using the indexes of a lost device.
 *
 * A ruin with a valid first page makes GIN loop and SP-GiST crash the server; a whole file
 * of an earlier time makes any index give wrong answers, and lets duplicates pass.  So
 * until such an index is rebuilt,
 *
 *	- the planner does not see it.  get_relation_info() reads the first page of a btree
 *	  before a hook can take the index off the list, so the session's relcache entry
 *	  says before planning that the index is not valid.  The hook takes off what was
 *	  loaded again since.  A session has a list of the lost indexes of its database,
 *	  because a query can come to more tables than it names, and partitions that are
 *	  pruned are not to be locked;
 *	- everybody else (inserts, unique and exclusion checks, TOAST, COPY, the apply of
 *	  logical replication) gets an error: the file is emptied, and each access method
 *	  reads block 0 first.  Nothing of value is removed.  That is not logged, because the
 *	  file of a standby may be whole; recovery may fill it again, and the verdict stays.
 *
 * On a standby no file is emptied, because replay needs its blocks; nothing but queries,
 * and TOAST, reads indexes there.  Nor without full_page_writes, when recovery would need
 * them.
 *
 * Locks: AccessExclusiveLock on an index while its file is emptied, not waited for: who
 * holds it is met again by the next query.  None while an index is marked: it is only
 * the session's own cache entry.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "nodes/pathnodes.h"
#include "optimizer/planner.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "evidence.h"
#include "file_system.h"
#include "lost_guard.h"
#include "relation_facts.h"
#include "test_points.h"

/* in a session: the losses for which all files of the database are empty */
static uint32 losses_met = 0;

/* in a session: the lost indexes of the database, and for which losses it is their list */
static List *lost_indexes = NIL;
static uint32 losses_listed = 0;

/* in a session: whether all of these are marked in its cache */
static bool are_marked = false;

static planner_hook_type prev_planner_hook = NULL;
static relation_info_hook_type prev_relation_info_hook = NULL;

/* Return whether the file of an index is known to be lost. */
static bool
index_is_lost(Oid index_oid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index_oid));
	bool		result;

	/* a hypothetical index of an extension */
	if (!HeapTupleIsValid(tuple))
		return false;
	result = evidence_knows_lost(tuple);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Empty the file of a lost index.  Returns false if another session has locked it, this
 * one is reading it, or its device is not there.
 */
static bool
empty_file(Oid index_oid)
{
	Relation	index;
	SMgrRelation smgr;
	ForkNumber	fork = MAIN_FORKNUM;
	BlockNumber old_nblocks;
	BlockNumber nblocks = 0;
	bool		is_free;

	if (!ConditionalLockRelationOid(index_oid, AccessExclusiveLock))
		return false;
	/* it may be another file by now, or gone */
	if (!index_is_lost(index_oid))
	{
		UnlockRelationOid(index_oid, AccessExclusiveLock);
		return true;
	}
	index = index_open(index_oid, NoLock);
	is_free = index->rd_refcnt == 1;
	smgr = RelationGetSmgr(index);
	if (is_free && smgrexists(smgr, fork))
	{
		old_nblocks = smgrnblocks(smgr, fork);
		/* another device may have come */
		if (old_nblocks > 0 && !evidence_may_empty(index->rd_locator.spcOid))
			is_free = false;
		else if (old_nblocks > 0)
		{
			file_drop_buffers(&index->rd_locator, false);
			smgrtruncate(smgr, &fork, 1, &old_nblocks, &nblocks);
		}
	}
	index_close(index, AccessExclusiveLock);
	return is_free;
}

/*
 * Empty the files of the lost indexes of this database.  Called in a transaction, before
 * a session's first query since the loss, and by the janitor's worker.
 */
void
lost_guard_empty_files(void)
{
	uint32		losses = evidence_losses();
	bool		done = true;

	if (losses == losses_met || RecoveryInProgress() || IsInParallelMode())
		return;
	if (!fullPageWrites || IM_MUTATION("keep-lost"))
		return;
	foreach_ptr(HeapTupleData, tuple, catalog_all(RelationRelationId))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind != RELKIND_INDEX || form->oid < FirstNormalObjectId)
			continue;
		if (!evidence_knows_lost(tuple))
			continue;
		if (!empty_file(form->oid))
			done = false;
	}
	if (done)
		losses_met = losses;
}

/* An entry of the cache may be loaded again. */
static void
note_invalidation(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || list_member_oid(lost_indexes, relid))
		are_marked = false;
}

/* List the lost indexes of this database, and forget the marks of indexes that are not lost any more. */
static void
list_lost(uint32 losses)
{
	MemoryContext context;
	List	   *rows = NIL;

	foreach_oid(index_oid, lost_indexes)
		RelationCacheInvalidateEntry(index_oid);
	/* plans that were made with, or without, some */
	ResetPlanCache();
	list_free(lost_indexes);
	lost_indexes = NIL;
	are_marked = false;
	if (losses != 0)
		rows = catalog_all(RelationRelationId);
	foreach_ptr(HeapTupleData, tuple, rows)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind != RELKIND_INDEX || form->oid < FirstNormalObjectId)
			continue;

		/*
		 * no query names a TOAST table, and access to values wants a valid
		 * index
		 */
		if (IsToastNamespace(form->relnamespace) || !evidence_knows_lost(tuple))
			continue;
		context = MemoryContextSwitchTo(TopMemoryContext);
		lost_indexes = lappend_oid(lost_indexes, form->oid);
		MemoryContextSwitchTo(context);
	}
	losses_listed = losses;
}

/* Have this session's relcache say of the lost indexes that they are not valid. */
static void
mark_indexes(void)
{
	/* an entry that is loaded again meanwhile is marked the next time */
	are_marked = true;
	foreach_oid(index_oid, lost_indexes)
	{
		Relation	index;

		if (!index_is_lost(index_oid))
			continue;
		index = RelationIdGetRelation(index_oid);
		if (!RelationIsValid(index))
			continue;
		index->rd_index->indisvalid = false;
		RelationClose(index);
	}
}

static PlannedStmt *
plan_without_lost(PLANNER_PARAMS)
{
	uint32		losses = IM_MUTATION("show-lost") ? 0 : evidence_losses();

	if (losses != 0)
		lost_guard_empty_files();
	if (losses != losses_listed)
		list_lost(losses);
	if (!are_marked)
		mark_indexes();
	if (prev_planner_hook)
		return prev_planner_hook(PLANNER_ARGS);
	return standard_planner(PLANNER_ARGS);
}

/* Take lost indexes off the planner's list. */
static void
hide_lost(RELATION_INFO_PARAMS)
{
	ListCell   *lc;

	if (prev_relation_info_hook)
		prev_relation_info_hook(RELATION_INFO_ARGS);
	if (evidence_losses() == 0 || IM_MUTATION("show-lost"))
		return;
	foreach(lc, rel->indexlist)
	{
		if (index_is_lost(lfirst_node(IndexOptInfo, lc)->indexoid))
			rel->indexlist = foreach_delete_current(rel->indexlist, lc);
	}
}

/* Called by _PG_init(). */
void
lost_guard_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	prev_planner_hook = planner_hook;
	planner_hook = plan_without_lost;
	prev_relation_info_hook = relation_info_hook;
	relation_info_hook = hide_lost;
	CacheRegisterRelcacheCallback(note_invalidation, (Datum) 0);
}
