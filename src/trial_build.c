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
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "catalog/storage.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "file_system.h"
#include "settings.h"
#include "trial_build.h"

bool
trial_build_wanted(Oid relam)
{
	return relam == GIST_AM_OID || relam == SPGIST_AM_OID || relam == BRIN_AM_OID;
}

/*
 * Return whether a file of that many bytes leaves what a move would leave.
 */
static bool
is_room(Oid tablespace, int64 bytes)
{
	FileSystemFacts facts;
	MoveSettings settings;

	settings_capture(&settings);
	return !file_system_facts(tablespace, &facts) ||
		bytes <= facts.free_bytes - (int64) (facts.total_bytes * settings.min_free_space);
}

/*
 * Return a file for a temporary relation, which a rollback removes.
 */
static RelFileLocator
create_file(Relation index, Oid tablespace)
{
	RelFileNumber number;
	RelFileLocator locator;

	/*
	 * A standby hands out no numbers, but has no temporary relations either:
	 * any number is free among the files that begin with this session's.
	 */
	if (RecoveryInProgress())
		number = index->rd_locator.relNumber;
	else
		number = GetNewRelFileNumber(tablespace, NULL, RELPERSISTENCE_TEMP);
	locator = make_locator(tablespace, MyDatabaseId, number);
	RelationCreateStorage(locator, RELPERSISTENCE_TEMP, true);
	return locator;
}

/*
 * Return a copy of the index's relcache entry, in the current memory context,
 * whose blocks are in that file.
 */
static Relation
copy_entry(Relation index, RelFileLocator locator)
{
	Relation	copy = palloc(sizeof(RelationData));
	int			nsupport = IndexRelationGetNumberOfAttributes(index) * index->rd_indam->amsupport;

	*copy = *index;
	copy->rd_locator = locator;
	copy->rd_smgr = NULL;
	copy->rd_backend = ProcNumberForTempRelations();
	copy->rd_islocaltemp = true;
	copy->pgstat_enabled = false;
	copy->pgstat_info = NULL;

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
 * Have the access method build the copy.
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
		/* before 17 the storage manager knows where the copy is */
		RelationCloseSmgr(copy);
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
	SMgrRelation file;
	BlockNumber pages;
	Oid			save_userid;
	int			save_sec_context;
	int			save_nestlevel;

	if (!OidIsValid(tablespace))
		tablespace = MyDatabaseTableSpace;
	if (!is_room(tablespace, RelationGetNumberOfBlocks(index) * (int64) BLCKSZ))
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

	/* now, and not with the transaction, which may do this for many indexes */
	file = smgropen(locator, ProcNumberForTempRelations());
	pages = smgrnblocks(file, MAIN_FORKNUM);
	smgrdounlinkall(&file, 1, false);
	smgrclose(file);

	AtEOXact_GUC(false, save_nestlevel);
	SetUserIdAndSecContext(save_userid, save_sec_context);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return pages;
}
