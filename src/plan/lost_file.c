/*-------------------------------------------------------------------------
 *
 * lost_file.c
 *	  Whether a relation's file is lost, or a ruin.
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
 * Assumption: the caller knows of errors that a lost file causes elsewhere; here
 * they are caught, in a subtransaction.
 *
 * Locks: AccessShareLock on the relation while pages are read, if it can be had at
 * once, which keeps its file; otherwise only the file's name and size are looked at.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/inval.h"

#include "compat.h"
#include "errors.h"
#include "file_system.h"
#include "plan/plan.h"
#include "report/report.h"

typedef struct LostFile
{
	RelFileLocator file;
	const RelationFacts *facts;
	bool		all_pages;
	const char *problem;		/* NULL = none */
} LostFile;

/* Return the bytes of a segment of a fork, -1 with errno if there is none to be seen. */
static int64
segment_size(const RelFileLocator *file, ForkNumber fork, unsigned int segment)
{
	char	   *path = relation_segment_path(file, fork, segment * (BlockNumber) RELSEG_SIZE);
	struct stat st;

	return stat(path, &st) == 0 ? (int64) st.st_size : -1;
}

/*
 * Look for the file and its segments: md.c takes a short one for the last.  As all
 * looks, returns what is wrong, or NULL.
 */
static const char *
look_at_segments(const LostFile *lost)
{
	int64		size = segment_size(&lost->file, MAIN_FORKNUM, 0);

	if (size < 0)
		return errno == ENOENT || errno == ENOTDIR ? "its file is missing" :
			psprintf("its file cannot be looked at: %m");
	if (size < BLCKSZ && relkind_is_index(lost->facts->relkind))
		return "its file is empty";
	for (unsigned int segment = 1; segment == 1 || size > 0 || segment <= lost->facts->pages / RELSEG_SIZE; segment++)
	{
		size = segment_size(&lost->file, MAIN_FORKNUM, segment);
		/* after it, because the file may grow */
		if (size > 0 && segment_size(&lost->file, MAIN_FORKNUM, segment - 1) != (int64) RELSEG_SIZE * BLCKSZ)
			return psprintf("segment %u of its file is missing or too short", segment - 1);
	}
	return lost->facts->persistence == RELPERSISTENCE_UNLOGGED &&
		segment_size(&lost->file, INIT_FORKNUM, 0) < 0 ? "its init fork is missing" : NULL;
}

/* Look at one page; set *root if it is the first. */
static const char *
look_at_page(const LostFile *lost, BlockNumber block, BlockNumber *root, BufferAccessStrategy ring)
{
	Buffer		buffer = ReadBufferWithoutRelcache(lost->file, MAIN_FORKNUM, block, RBM_NORMAL, ring,
												   lost->facts->persistence == RELPERSISTENCE_PERMANENT);
	Page		page = BufferGetPage(buffer);
	const char *problem = NULL;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (block == 0 && (*root = page_root(lost->facts->relam, page)) == InvalidBlockNumber)
		problem = "its first page is invalid";
	else if (block == 0 && *root >= file_blocks(&lost->file, MAIN_FORKNUM))
		problem = psprintf("its file ends before block %u, the root", *root);
	else if (PageIsNew(page) && (lost->all_pages || (block == *root && block > 0)))
		problem = psprintf("block %u is empty", block);
	else if (!page_is_of(lost->facts->relam, page))
		problem = psprintf("block %u is invalid", block);
	UnlockReleaseBuffer(buffer);
	return problem;
}

/* Look at the pages; called in a subtransaction. */
static void
look_at_pages(void *arg)
{
	LostFile   *lost = arg;

	/* core leaves zeros in tables, where nothing points to a page */
	bool		all_pages = lost->all_pages && relkind_is_index(lost->facts->relkind);
	BufferAccessStrategy ring = all_pages ? GetAccessStrategy(BAS_BULKREAD) : NULL;
	BlockNumber nblocks = file_blocks(&lost->file, MAIN_FORKNUM);
	BlockNumber root = 0;

	/* a crash empties unlogged relations */
	if (lost->all_pages && nblocks < lost->facts->pages &&
		lost->facts->persistence == RELPERSISTENCE_PERMANENT)
		lost->problem = psprintf("its file has %u pages, and had %u", nblocks, lost->facts->pages);
	for (BlockNumber block = 0; lost->problem == NULL && block < nblocks; block = all_pages ? block + 1 : root)
	{
		CHECK_FOR_INTERRUPTS();
		lost->problem = look_at_page(lost, block, &root, ring);
		if (!all_pages && block == root)
			break;
	}
}

/* Return whether a relation still has the file of its facts. */
static bool
has_file(const RelationFacts *facts)
{
	RelationFacts now;

	return relation_facts(facts->relid, &now) && now.relfilenumber == facts->relfilenumber;
}

/*
 * Return the damage to the file of a relation, a clause that is palloc'd or
 * constant; NULL if nothing is, or if it has none.  all_pages: see above.
 */
const char *
lost_file(const RelationFacts *facts, bool all_pages)
{
	LostFile	lost = {.facts = facts,.all_pages = all_pages};
	ErrorData  *error = NULL;
	int			category;

	if (!RelFileNumberIsValid(facts->relfilenumber) || !RELKIND_HAS_STORAGE(facts->relkind))
		return NULL;
	/* a standby has its init fork only */
	if (facts->persistence == RELPERSISTENCE_UNLOGGED && RecoveryInProgress())
		return NULL;

	lost.file = make_locator(facts->tablespace, MyDatabaseId, facts->relfilenumber);
	lost.problem = look_at_segments(&lost);
	if (lost.problem != NULL)
	{
		/* whoever drops or replaces it says so before the file is removed */
		AcceptInvalidationMessages();
		return has_file(facts) ? lost.problem : NULL;
	}
	if (ConditionalLockRelationOid(facts->relid, AccessShareLock))
	{
		/* it may have got another file before we had the lock */
		if (has_file(facts))
			error = errors_catch(look_at_pages, &lost);
		UnlockRelationOid(facts->relid, AccessShareLock);
	}
	if (error == NULL)
		return lost.problem;
	category = ERRCODE_TO_CATEGORY(error->sqlerrcode);
	/* of open(), EACCES and EISDIR are in the category of access rules */
	if (category != ERRCODE_INTERNAL_ERROR && category != ERRCODE_SYSTEM_ERROR &&
		category != ERRCODE_TO_CATEGORY(ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION))
		ReThrowError(error);
	return error->message;
}
