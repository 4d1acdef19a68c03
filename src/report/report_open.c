/*-------------------------------------------------------------------------
 *
 * report_open.c
 *	  Open an index for a report.
 *
 * The reports read pages of one index, so AccessShareLock on the index is
 * enough, as for pgstattuple's functions; it is held to the end of the call.
 * The table isn't locked, because no function of the index is called and no
 * row is fetched.
 *
 * The errors are those of contrib/pgstattuple/pgstatindex.c, word for word,
 * so that scripts that know them know ours.  A report over all indexes of a
 * database must neither fail nor wait because of one of them: for that there
 * is report_try_open(), and report_survive() for damage found while reading.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "report/report_private.h"

/*
 * Return the name of an access method as pgstatindex.c spells it.
 */
static const char *
access_method_label(Oid am)
{
	switch (am)
	{
		case GIN_AM_OID:
			return "GIN";
		case BTREE_AM_OID:
			return "btree";
		case HASH_AM_OID:
			return "hash";
	}
	return "suitable";
}

/*
 * Check an open relation.  Returns false instead of an error where quiet.
 */
static bool
check_relation(Relation rel, Oid required_am, bool quiet)
{
	if (rel->rd_rel->relkind != RELKIND_INDEX)
	{
		if (quiet)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 OidIsValid(required_am) ?
				 errmsg("relation \"%s\" is not a %s index",
						RelationGetRelationName(rel), access_method_label(required_am)) :
				 errmsg("\"%s\" is not an index", RelationGetRelationName(rel)),
				 errdetail_relkind_not_supported(rel->rd_rel->relkind)));
	}
	if (OidIsValid(required_am) && rel->rd_rel->relam != required_am)
	{
		if (quiet)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" is not a %s index",
						RelationGetRelationName(rel), access_method_label(required_am))));
	}

	/* its newest pages are in the local buffers of its session */
	if (RELATION_IS_OTHER_TEMP(rel))
	{
		if (quiet)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary indexes of other sessions")));
	}

	/* core's words in get_relation_info(): such a relation has no file there */
	if (!RelationIsPermanent(rel) && RecoveryInProgress())
	{
		if (quiet)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary or unlogged relations during recovery")));
	}

	/* an index that isn't ready may have no valid page at all */
	if (!rel->rd_index->indisvalid)
	{
		if (quiet)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid", RelationGetRelationName(rel))));
	}
	return true;
}

/*
 * Open an index that a report is to read, with AccessShareLock, or raise the
 * error that pgstattuple's functions raise.  required_am is InvalidOid, or
 * the only access method that will do.  Close with report_close().
 */
Relation
report_open(Oid index_oid, Oid required_am)
{
	Relation	rel = try_relation_open(index_oid, AccessShareLock);

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("index with OID %u does not exist", index_oid)));
	(void) check_relation(rel, required_am, false);
	return rel;
}

/*
 * The same for a report over many indexes: returns NULL where report_open()
 * would raise an error or have to wait for a lock.
 */
Relation
report_try_open(Oid index_oid, Oid required_am)
{
	Relation	rel;

	if (!ConditionalLockRelationOid(index_oid, AccessShareLock))
		return NULL;
	rel = try_relation_open(index_oid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(index_oid, AccessShareLock);
		return NULL;
	}
	if (!check_relation(rel, required_am, true))
	{
		relation_close(rel, AccessShareLock);
		return NULL;
	}
	return rel;
}

/* Bytes of the main fork of any relation; false where report_try_open() gives up. */
bool
report_try_size(Oid relid, int64 *size)
{
	Relation	rel;
	bool		result = false;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return false;
	rel = try_relation_open(relid, NoLock);
	if (rel != NULL)
	{
		if (RELKIND_HAS_STORAGE(rel->rd_rel->relkind) &&
			smgrexists(RelationGetSmgr(rel), MAIN_FORKNUM))
		{
			*size = smgrnblocks(RelationGetSmgr(rel), MAIN_FORKNUM) * (int64) BLCKSZ;
			result = true;
		}
		relation_close(rel, NoLock);
	}
	UnlockRelationOid(relid, AccessShareLock);
	return result;
}

void
report_close(Relation rel)
{
	relation_close(rel, AccessShareLock);
}

bool
report_survive(ReportCallback callback, void *arg)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ResourceOwner oldowner = CurrentResourceOwner;
	volatile bool ok = true;

	/* needs no transaction id, so it works on a standby */
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(oldcontext);

	PG_TRY();
	{
		callback(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(oldcontext);
		edata = CopyErrorData();
		switch (edata->sqlerrcode)
		{
			case ERRCODE_DATA_CORRUPTED:
			case ERRCODE_INDEX_CORRUPTED:
			case ERRCODE_UNDEFINED_FILE:
			case ERRCODE_UNDEFINED_OBJECT:
			case ERRCODE_IO_ERROR:
				break;
			default:
				PG_RE_THROW();
		}
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		FreeErrorData(edata);
		ok = false;
	}
	PG_END_TRY();

	MemoryContextSwitchTo(oldcontext);
	CurrentResourceOwner = oldowner;
	return ok;
}

/* ----------------------------------------------------------------
 *	How long the pending list of a GIN index is.
 *
 * The metapage has the counts, so one page is read whatever the size.
 * Assumption: every search reads the whole list, page by page, before it
 * looks at the tree (ginGetBitmap calls scanPendingInsert first), so the pages
 * of the list are what a search pays on top of its own.
 *
 * The metapage is read under a share lock and copied; nobody waits for us
 * longer than that.
 * ----------------------------------------------------------------
 */

/* The caller must have opened a valid GIN index.  ERROR XX002. */
void
gin_pending_read(Relation index, GinPending *pending)
{
	Buffer		buffer;
	Page		page;
	GinMetaPageData meta;
	bool		valid;
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);

	if (nblocks == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" has no metapage", RelationGetRelationName(index))));

	buffer = ReadBuffer(index, GIN_METAPAGE_BLKNO);
	LockBuffer(buffer, GIN_SHARE);
	page = BufferGetPage(buffer);
	memcpy(&meta, GinPageGetMeta(page), sizeof(meta));
	valid = !PageIsNew(page) &&
		((PageHeader) page)->pd_special == BLCKSZ - MAXALIGN(sizeof(GinPageOpaqueData)) &&
		(GinPageGetOpaque(page)->flags & GIN_META) != 0;
	UnlockReleaseBuffer(buffer);

	if (!valid || meta.ginVersion < 0 || meta.ginVersion > GIN_CURRENT_VERSION ||
		meta.nPendingPages >= nblocks || meta.nPendingHeapTuples < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" contains corrupted page at block %u",
						RelationGetRelationName(index), GIN_METAPAGE_BLKNO)));

	pending->pages = meta.nPendingPages;
	pending->tuples = meta.nPendingHeapTuples;
	pending->limit_bytes = GinGetPendingListCleanupSize(index) * INT64CONST(1024);
	pending->fastupdate = GinGetUseFastUpdate(index);
}
