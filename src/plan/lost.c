/*-------------------------------------------------------------------------
 *
 * lost.c
 *	  Relations whose files are lost or ruins, and how heal_tablespace() treats them.
 *
 * A device that comes back empty leaves relations without files.  Then recovery
 * from a crash makes files of those that the WAL names, with zeros where it has no
 * image of a page; so a file that exists proves little.  Who finds a ruin here must
 * not copy it, and an index can be made again from its table.
 *
 * A look costs two pages.  With "all pages", what is known to be on a device that
 * has lost something is read whole: a page of zeros may be the remains of another
 * page, and a file that is shorter than when it was counted has lost its end.
 *
 * Until a lost index is rebuilt, it is hidden from the planner, so that reads work
 * at once, by pg_index.indisvalid alone: what else index_set_state_flags() clears
 * would be lost for good.
 *
 *	- One that enforces a constraint stays ready: an insert, which would have to
 *	  look into the missing file, fails, and no duplicate gets in.
 *	- Another one is made not ready as well, so that writes work.
 *	- A replica identity is not hidden where WAL is decoded, which would go on
 *	  without the old keys; nor is an index of a TOAST table, which REINDEX
 *	  would refuse then.  These are rebuilt first.
 *
 * Locks, none of which is waited for.  AccessShareLock on a relation while pages are
 * read, which keeps its file; without it only the file's name and size are looked
 * at.  While a row of pg_index changes, AccessShareLock on the table and
 * ShareUpdateExclusiveLock on the index, which keep out whatever drops or replaces
 * it, but neither reads, nor writes, nor VACUUM; without them it is not hidden.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

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
#include "utils/backend_status.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "errors.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan_private.h"
#include "report/report.h"

/* in a row, before a segment that there is */
#define MOST_MISSING	8
/* First the planner's order, then the counts of blocks */
#define RANK_OF_CLASS	(INT64CONST(1) << 56)

typedef struct LostFile
{
	RelFileLocator file;
	const RelationFacts *facts;
	bool		all_pages;
	const char *problem;		/* NULL = none */
} LostFile;

/* Return the bytes of a segment of a fork, -1 with errno if there is none to be seen. */
static int64
segment_size(const LostFile *lost, ForkNumber fork, unsigned int segment)
{
	struct stat st;

	return stat(relation_segment_path(&lost->file, fork, segment * (BlockNumber) RELSEG_SIZE), &st) == 0 ? st.st_size : -1;
}

/* Look at the first page and the root, or at all pages.  For errors_catch(). */
static void
look_at_pages(void *arg)
{
	LostFile   *lost = arg;
	const RelationFacts *facts = lost->facts;

	/* core leaves zeros in tables, where nothing points to a page */
	bool		all_pages = lost->all_pages && relkind_is_index(facts->relkind);
	BufferAccessStrategy ring = all_pages ? GetAccessStrategy(BAS_BULKREAD) : NULL;
	BlockNumber nblocks = file_blocks(&lost->file, MAIN_FORKNUM);
	BlockNumber end = nblocks / RELSEG_SIZE;
	BlockNumber root = 0;
	BlockNumber spare = 0;
	PGIOAlignedBlock copy;

	/*
	 * a crash empties unlogged relations; statistics of tables can come from
	 * a dump, or from before a failover
	 */
	if (all_pages && facts->persistence == RELPERSISTENCE_PERMANENT && nblocks < facts->pages)
		lost->problem = psprintf("its file has %u pages, and had %u", nblocks, facts->pages);
	/* md.c ends at a short one; asked again, because the file may have grown */
	for (BlockNumber segment = end + 1; segment <= Max(end, facts->pages / RELSEG_SIZE) + MOST_MISSING; segment++)
		if (segment_size(lost, MAIN_FORKNUM, segment) > 0 && file_blocks(&lost->file, MAIN_FORKNUM) / RELSEG_SIZE < segment)
			lost->problem = psprintf("segment %u of its file is missing or too short", end);
	for (BlockNumber block = 0; lost->problem == NULL && block < nblocks;
		 block = all_pages ? block + 1 : block == root ? nblocks : root)
	{
		CHECK_FOR_INTERRUPTS();
		buffer_copy_page(ReadBufferWithoutRelcache(lost->file, MAIN_FORKNUM, block, RBM_NORMAL, ring,
												   facts->persistence == RELPERSISTENCE_PERMANENT), copy.data);
		if (block == 0 && (root = page_root(facts->relam, copy.data, &spare)) == InvalidBlockNumber)
			lost->problem = "its first page is invalid";
		else if (block == 0 && root >= file_blocks(&lost->file, MAIN_FORKNUM))
			lost->problem = psprintf("its file ends before block %u, the root", root);
		else if (PageIsNew(copy.data) && (lost->all_pages ? block <= root || block > spare :
										  block == root && relkind_is_index(facts->relkind)))
			lost->problem = psprintf("block %u is empty", block);
		else if (!page_is_of(facts->relam, copy.data))
			lost->problem = psprintf("block %u is invalid", block);
	}
}

/*
 * Return the damage to the file of a relation, a clause that is palloc'd or
 * constant; NULL if nothing is, or if it has none.  all_pages: see above.  An error
 * that such damage causes is caught, in a subtransaction.
 */
const char *
lost_file(const RelationFacts *facts, bool all_pages)
{
	LostFile	lost = {make_locator(facts->tablespace, MyDatabaseId, facts->relfilenumber), facts, all_pages};
	ErrorData  *error = NULL;
	RelationFacts now;
	int64		size;
	bool		locked;
	int			category;

	/* of an unlogged relation, a standby has the init fork only */
	if (!RelFileNumberIsValid(facts->relfilenumber) || !RELKIND_HAS_STORAGE(facts->relkind) ||
		(facts->persistence == RELPERSISTENCE_UNLOGGED && RecoveryInProgress()))
		return NULL;

	size = segment_size(&lost, MAIN_FORKNUM, 0);
	if (size < 0)
		lost.problem = errno == ENOENT || errno == ENOTDIR ? "its file is missing" :
			psprintf("its file cannot be looked at: %m");
	else if (size < BLCKSZ && relkind_is_index(facts->relkind))
		lost.problem = "its file is empty";
	else if (facts->persistence == RELPERSISTENCE_UNLOGGED && segment_size(&lost, INIT_FORKNUM, 0) < 0)
		lost.problem = "its init fork is missing";
	locked = lost.problem == NULL && ConditionalLockRelationOid(facts->relid, AccessShareLock);
	/* whoever drops or replaces it says so before the file is removed */
	AcceptInvalidationMessages();
	if (!relation_facts(facts->relid, &now) || now.relfilenumber != facts->relfilenumber)
		lost.problem = NULL;
	else if (locked)
		error = errors_catch(look_at_pages, &lost);
	if (locked)
		UnlockRelationOid(facts->relid, AccessShareLock);
	if (error == NULL)
		return lost.problem;
	category = ERRCODE_TO_CATEGORY(error->sqlerrcode);
	/* of open(), EACCES and EISDIR are in the category of access rules */
	if (category != ERRCODE_INTERNAL_ERROR && category != ERRCODE_SYSTEM_ERROR &&
		category != ERRCODE_TO_CATEGORY(ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION))
		ReThrowError(error);
	return error->message;
}

/* Decide whether and how a lost index is rebuilt, and say it. */
static void
lost_index_decide(PlanEntry *entry, const char *lost)
{
	MoveItem   *item = &entry->item;
	const RelationFacts *facts = &entry->facts;
	PgStat_StatTabEntry *stats = pgstat_fetch_stat_tabentry(item->relid);
	bool		is_toast = IsToastNamespace(facts->schema_oid);
	bool		enforces = facts->unique || facts->exclusion;

	/* decoding takes old keys from it, but not of an unlogged table */
	bool		is_decoded = XLogLogicalInfoActive() && facts->persistence == RELPERSISTENCE_PERMANENT &&
		(facts->identity == REPLICA_IDENTITY_DEFAULT ? facts->primary :
		 facts->identity == REPLICA_IDENTITY_INDEX && facts->replident);

	/* CREATE INDEX CONCURRENTLY makes the file first */
	for (int i = 1; !facts->valid && relation_main_size(facts) >= 0 && i <= pgstat_fetch_stat_numbackends(); i++)
	{
		const PgBackendStatus *status = &pgstat_get_local_beentry_by_index(i)->backendStatus;

		if (status->st_progress_command == PROGRESS_COMMAND_CREATE_INDEX && status->st_databaseid == MyDatabaseId &&
			status->st_progress_command_target == facts->heap_oid)
		{
			item_skip(item, ERRCODE_OBJECT_IN_USE, "It is not valid: another session is building an index of its table, maybe this one.");
			return;
		}
	}
	item->hide = !is_toast && !is_decoded;
	item->plain = !is_toast && rebuild_hindrance(facts) != NULL;
	entry->rank = (item->hide ? enforces ? 1 : 2 : 0) * RANK_OF_CLASS -
		(stats ? Min(stats->blocks_fetched, RANK_OF_CLASS - 1) : 0);

	item_say(item, "Lost: %s.", lost);
	item_say(item, is_toast ? "Rebuilt first and where it is: until then no value of the TOAST table can be read." :
			 !item->hide ? "Rebuilt first: it is the replica identity, and must stay in use; until then what uses it fails." :
			 enforces ? "From the start of the job until it is rebuilt, queries do without it, pg_dump leaves it out, and these fail: inserts, updates that are not HOT, ON CONFLICT on it (42P10), VACUUM of the table." :
			 "From the start of the job until it is rebuilt, queries and writes do without it, and pg_dump leaves it out.");
	if (item->plain)
		item_say(item, "REINDEX CONCURRENTLY cannot rebuild it: while REINDEX does, no session can write to its table, and queries of it wait.");
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

	item_skip(item, ERRCODE_DATA_CORRUPTED, relkind == RELKIND_MATVIEW ?
			  "Lost: %s. REFRESH MATERIALIZED VIEW makes it again." :
			  facts->persistence == RELPERSISTENCE_UNLOGGED && relkind == RELKIND_RELATION ?
			  "Lost: %s. No backup has what was in it; TRUNCATE makes it again, without rows." :
			  "Lost: %s. It cannot be made again: restore it from a backup, or promote a standby that has it.", lost);
	if (OidIsValid(owner))
		item_say(item, "It belongs to \"%s\".", get_rel_name(owner));
}

/* Complete the row of a relation, planned or skipped, if it is lost; else return false. */
bool
lost_plan(PlanEntry *entry, const PlanRequest *request)
{
	MoveItem   *item = &entry->item;
	const RelationFacts *facts = &entry->facts;
	const char *lost = lost_file(facts, request->all_pages);
	RelationFacts heap;
	const char *lost_table;

	/* its file may have come back since it was hidden */
	if (lost == NULL && request->heal && !facts->valid)
		lost = "it is not valid";
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
	else if (relation_facts(item->heap_oid, &heap) &&
			 (lost_table = lost_file(&heap, request->all_pages && heap.tablespace == facts->tablespace)) != NULL)
		item_skip(item, ERRCODE_DATA_CORRUPTED, "Its table is lost: %s.", lost_table);
	else if (item_check(item, facts))
		lost_index_decide(entry, lost);
	return true;
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

	if (extension_hold() != EXTENSION_HELD || !ConditionalLockRelationOid(item->heap_oid, AccessShareLock) ||
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
lost_hide(JobShared *job)
{
	/* the runner gives up the items of a job that was canceled */
	for (int i = 0; i < job->nitems && !job_cancel_requested(); i++)
	{
		ErrorData  *error;

		if (!job->items[i].hide || job->items[i].status != STATUS_QUEUED)
			continue;
		error = errors_catch_in_transaction(lost_index_hide, &job->items[i]);
		runner_serve_cancel(false);
		if (error != NULL)
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("could not hide index \"%s\"", NameStr(job->items[i].relname)),
					 errdetail_internal("%s", error->message)));
	}
}
