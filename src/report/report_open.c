/*-------------------------------------------------------------------------
 *
 * report_open.c
 *	  The frame of a report: open an index, measure it, survive damage.
 *
 * The reports read pages of one index, so AccessShareLock on the index is
 * enough, as for pgstattuple's functions.  The table is not locked, because no
 * function of the index is called and no row is fetched.
 *
 * The errors are literally those of contrib/pgstattuple/pgstatindex.c, so
 * that scripts that handle them work with ours.  A report over all indexes of
 * a database must neither fail nor wait because of one of them: hence "quiet".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gin_private.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"

#include "errors.h"
#include "report/report_private.h"

/*
 * Check an open relation.  Returns false unless elevel is ERROR.  The access
 * method that a report requires is GIN.
 */
static bool
check_relation(Relation rel, Oid required_am, int elevel)
{
	const char *name = RelationGetRelationName(rel);

	Assert(!OidIsValid(required_am) || required_am == GIN_AM_OID);

	if (rel->rd_rel->relkind != RELKIND_INDEX)
		ereport(elevel,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 OidIsValid(required_am) ?
				 errmsg("relation \"%s\" is not a %s index", name, "GIN") :
				 errmsg("\"%s\" is not an index", name),
				 errdetail_relkind_not_supported(rel->rd_rel->relkind)));
	else if (OidIsValid(required_am) && rel->rd_rel->relam != required_am)
		ereport(elevel,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("relation \"%s\" is not a %s index", name, "GIN")));

	/* new pages are in the other session's local buffers */
	else if (RELATION_IS_OTHER_TEMP(rel))
		ereport(elevel,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary indexes of other sessions")));

	/* core's words in get_relation_info(): the relation has no file there */
	else if (!RelationIsPermanent(rel) && RecoveryInProgress())
		ereport(elevel,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot access temporary or unlogged relations during recovery")));

	/* an index that is not ready may have no valid page at all */
	else if (!rel->rd_index->indisvalid)
		ereport(elevel,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is not valid", name)));
	else
		return true;
	return false;
}

/*
 * Open an index for a report, with AccessShareLock.  Raises the errors of
 * pgstattuple's functions.  With quiet, as for a report over many indexes,
 * returns NULL instead of an error or of waiting for the lock.
 */
static Relation
open_index(Oid index_oid, Oid required_am, bool quiet)
{
	Relation	rel;

	if (!quiet)
		LockRelationOid(index_oid, AccessShareLock);
	else if (!ConditionalLockRelationOid(index_oid, AccessShareLock))
		return NULL;
	rel = try_relation_open(index_oid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(index_oid, AccessShareLock);
		if (!quiet)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("index with OID %u does not exist", index_oid)));
	}
	else if (!check_relation(rel, required_am, quiet ? DEBUG2 : ERROR))
	{
		relation_close(rel, AccessShareLock);
		rel = NULL;
	}
	return rel;
}

static void
run_report(void *arg)
{
	Report	   *report = arg;
	Relation	index = open_index(report->index_oid, report->required_am, report->quiet);

	report->measured = false;
	if (index == NULL)
		return;
	report->measure(index, report);
	report->measured = true;
	relation_close(index, AccessShareLock);
}

/*
 * Measure an index.  Returns false if it is quiet and fails because the index
 * cannot be opened, is locked or damaged, or has gone away; raises other errors.
 */
bool
report_run(Report *report)
{
	ErrorData  *error;

	if (!report->quiet)
	{
		run_report(report);
		return true;
	}
	error = errors_catch(run_report, report);
	if (error == NULL)
		return report->measured;
	if (error->sqlerrcode != ERRCODE_DATA_CORRUPTED && error->sqlerrcode != ERRCODE_INDEX_CORRUPTED &&
		error->sqlerrcode != ERRCODE_UNDEFINED_FILE && error->sqlerrcode != ERRCODE_UNDEFINED_OBJECT &&
		error->sqlerrcode != ERRCODE_IO_ERROR)
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/*
 * Read the length of an open, valid GIN index's pending list from the metapage,
 * for a PendingReport.  ERROR XX002 if damaged.
 */
void
gin_pending_measure(Relation index, Report *report)
{
	PendingReport *pending = (PendingReport *) report;
	Buffer		buffer;
	Page		page;
	GinMetaPageData meta;
	bool		valid;
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);

	Assert(index->rd_rel->relam == GIN_AM_OID);
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
