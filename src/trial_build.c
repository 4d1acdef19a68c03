/*-------------------------------------------------------------------------
 *
 * trial_build.c
 *	  Build an index on trial, to see how large a rebuild makes it.
 *
 * Where GiST and SP-GiST split a page is up to the operator class, which looks
 * at the values; no formula gives it, and a sample of the rows doesn't either
 * (docs/reports.md).  Which of BRIN's summaries describe rows that are gone
 * isn't in the index at all.  So this file has core do the build, with all rows,
 * in a file of a temporary relation: without WAL, without a row in any catalog,
 * in local buffers.  The access method is handed a copy of the index's relcache
 * entry that points to that file, much as CreateFakeRelcacheEntry() does it in
 * recovery.
 *
 * The file is removed at the end, by the transaction's abort where there is an
 * error, and by the server's next start where it crashes (RemovePgTempFiles()).
 *
 * The functions of the index run as the table's owner, with settings of the
 * caller's, and their errors may quote rows.  So the caller has to be somebody
 * who may REINDEX, which is the same in both respects.
 *
 * Locks: none but the caller's AccessShareLock on the table and the index.
 * Nobody else knows of the file.
 *
 * The tricky point is what the copy may share with the relcache's own entry:
 * only what an invalidation doesn't free or change, and nothing into which the
 * build caches what lives no longer than the copy.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/amapi.h"
#include "access/brin.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_tablespace_d.h"
#include "catalog/storage.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "file_system.h"
#include "rebuilt_size.h"
#include "settings.h"
#include "trial_build.h"

bool
trial_build_wanted(Oid relam)
{
	return relam == GIST_AM_OID || relam == SPGIST_AM_OID || relam == BRIN_AM_OID;
}

/*
 * Return how many bytes the build may take, with what it sorts or buffers in
 * files: more than the index has now if its options have changed since.
 */
static double
needed_bytes(Relation heap, Relation index)
{
	RebuildContext rc;

	/* a range has one summary, which fits on a page */
	if (index->rd_rel->relam == BRIN_AM_OID)
		return (RelationGetNumberOfBlocks(heap) / (double) BrinGetPagesPerRange(index) + 3) * BLCKSZ;
	rebuild_context_init(index, &rc);
	return 2.0 * RelationGetNumberOfBlocks(index) * BLCKSZ * Max(0.9 / rc.fillfactor, 1);
}

/*
 * Return whether so many bytes leave what a move would leave.
 */
static bool
is_room(Oid tablespace, double bytes)
{
	FileSystemFacts facts;
	MoveSettings settings;

	settings_capture(&settings);
	return !file_system_facts(tablespace, &facts) ||
		bytes <= facts.free_bytes - facts.total_bytes * settings.min_free_space;
}

/*
 * Return a file for a temporary relation, which a rollback removes.
 */
static RelFileLocator
create_file(Relation index, Oid tablespace)
{
	RelFileLocator locator = make_locator(tablespace, MyDatabaseId, index->rd_locator.relNumber);

	/*
	 * A standby hands out no numbers, but has no temporary relations either:
	 * any number is free among the files that begin with this session's, but
	 * for that of a build that has called us, or one that a crash has left.
	 */
	if (!RecoveryInProgress())
		locator.relNumber = GetNewRelFileNumber(tablespace, NULL, RELPERSISTENCE_TEMP);
	else
		while (smgrexists(smgropen(locator, ProcNumberForTempRelations()), MAIN_FORKNUM))
			locator.relNumber++;
	RelationCreateStorage(locator, RELPERSISTENCE_TEMP, true);
	return locator;
}

/*
 * Remove that file, now and not with the transaction, which may do this for
 * many indexes.
 */
static void
remove_file(RelFileLocator locator)
{
	SMgrRelation file = smgropen(locator, ProcNumberForTempRelations());

	smgrdounlinkall(&file, 1, false);
	smgrclose(file);

	/* what is to be done by a rollback is done */
	RelationPreserveStorage(locator, false);
}

/*
 * Return a copy of the index's relcache entry whose blocks are in that file.
 * All but the entry itself is in the current memory context.
 */
static Relation
copy_entry(Relation index, RelFileLocator locator)
{
	/* before 17 the storage manager writes to it when an abort closes the file */
	Relation	copy = MemoryContextAlloc(TopMemoryContext, sizeof(RelationData));
	int			nsupport = IndexRelationGetNumberOfAttributes(index) * index->rd_indam->amsupport;

	*copy = *index;
	copy->rd_locator = locator;
	copy->rd_smgr = NULL;
	copy->rd_backend = ProcNumberForTempRelations();
	copy->rd_islocaltemp = true;
	copy->pgstat_enabled = false;
	copy->pgstat_info = NULL;

	/* the free space map is extended under that lock, which writers want, too */
	copy->rd_lockInfo.lockRelId.relId = locator.relNumber;

	/* an invalidation replaces these */
	copy->rd_rel = palloc(CLASS_TUPLE_SIZE);
	memcpy(copy->rd_rel, index->rd_rel, CLASS_TUPLE_SIZE);
	copy->rd_rel->relpersistence = RELPERSISTENCE_TEMP;
	if (index->rd_options)
	{
		copy->rd_options = palloc(VARSIZE(index->rd_options));
		memcpy(copy->rd_options, index->rd_options, VARSIZE(index->rd_options));
	}

	/* what is looked up by way of the copy is kept with it */
	copy->rd_indexcxt = CurrentMemoryContext;
	copy->rd_supportinfo = palloc0(sizeof(FmgrInfo) * nsupport);
	copy->rd_opcoptions = NULL;
	copy->rd_amcache = NULL;
	return copy;
}

/*
 * Have the access method build the copy, and free that.
 */
static void
build(Relation heap, Relation index, Relation copy)
{
	IndexInfo  *info = BuildIndexInfo(index);

	/* as amcheck: rows by a snapshot, and no waiting for those in doubt */
	info->ii_Concurrent = true;
	info->ii_Unique = false;
	info->ii_ExclusionOps = NULL;
	info->ii_ExclusionProcs = NULL;
	info->ii_ExclusionStrats = NULL;
	PG_TRY();
	{
		index->rd_indam->ambuild(heap, copy, info);
	}
	PG_FINALLY();
	{
		RelationCloseSmgr(copy);
		pfree(copy);
	}
	PG_END_TRY();
}

BlockNumber
trial_build_pages(Relation heap, Relation index)
{
	Oid			tablespace = GetDefaultTablespace(RELPERSISTENCE_TEMP, false);
	MemoryContext context;
	MemoryContext oldcontext;
	RelFileLocator locator;
	BlockNumber pages;
	Oid			save_userid;
	int			save_sec_context;
	int			save_nestlevel;

	if (table_maintain_aclcheck(RelationGetRelid(heap), GetUserId()) != ACLCHECK_OK)
	{
		ereport(NOTICE,
				(errmsg("index \"%s\" is not built on trial", RelationGetRelationName(index)),
				 errdetail("Only those who may REINDEX it can have its functions called.")));
		return InvalidBlockNumber;
	}

	/* as fd.c has it for temporary files */
	if (!OidIsValid(tablespace) || tablespace == GLOBALTABLESPACE_OID)
		tablespace = MyDatabaseTableSpace;
	if (!is_room(tablespace, needed_bytes(heap, index)))
	{
		ereport(NOTICE,
				(errmsg("index \"%s\" is not built on trial", RelationGetRelationName(index)),
				 errdetail("There is not enough free space in tablespace \"%s\".",
						   get_tablespace_name(tablespace)),
				 errhint("Set temp_tablespaces to a tablespace with more room, or lower index_mover.min_free_space.")));
		return InvalidBlockNumber;
	}

	context = AllocSetContextCreate(CurrentMemoryContext, "index build on trial", ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);

	/* functions of the index run as they do in a build */
	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(heap->rd_rel->relowner,
						   save_sec_context | SECURITY_RESTRICTED_OPERATION);
	save_nestlevel = NewGUCNestLevel();
	RestrictSearchPath();

	locator = create_file(index, tablespace);
	build(heap, index, copy_entry(index, locator));
	pages = smgrnblocks(smgropen(locator, ProcNumberForTempRelations()), MAIN_FORKNUM);
	remove_file(locator);

	AtEOXact_GUC(false, save_nestlevel);
	SetUserIdAndSecContext(save_userid, save_sec_context);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return pages;
}
