/*-------------------------------------------------------------------------
 *
 * lost_file.c
 *	  Whether the file of a relation has lost something, by its device, and by damage that
 *	  is seen in it.
 *
 * A device that has lost files, or changes of them, loses all that it had: recovery makes
 * files of relations that the WAL names, with zeros where it has no image of a page, so a
 * file that exists proves little.  evidence.c has all that is known.  If nothing is,
 * or nothing was lost as a whole, the files tell.
 *
 * How a look decides (LostLook): a page of zeros, or a file that is shorter than when it
 * was counted, is a suspicion only.  Statistics can be imported, and a crash leaves
 * zeros where a file was extended.  Proof is a page that refers to a block that is
 * empty, or not there; see report/page_links.c.  So the looks that may not read all pages
 * read some, spread over the file, and the rest only if any of them is suspicious.  Of access
 * methods that page_links.c does not know, the suspicion has to do: all that a shorter file
 * costs is a rebuild.
 *
 * Whatever a look finds in pages, others that read fewer of them say, too (ruins.c).
 *
 * Locks, none of which is waited for: AccessShareLock on the relation while pages are read,
 * which keeps its file.  Without it only the file's name and size are looked at, and a file that
 * is unknown stays so (evidence_refute()).  ShareUpdateExclusiveLock on the table of an index that is not
 * valid, for a moment, if no session has it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "nodes/bitmapset.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/float.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "errors.h"
#include "evidence.h"
#include "file_system.h"
#include "plan/plan_private.h"
#include "report/report.h"
#include "ruins.h"

/* in a row, before a segment that there is */
#define MOST_MISSING	8

/* Pages of a file that a look reads at first, and at least as many in each segment */
#define SPOTS			16
#define SAMPLE			1024
#define SPOTS_OF_SEGMENT	2

/* Pages from one look at the clock to the next */
#define PAGES_OF_MOMENT	16

#define PAGES_OF_MEGABYTE	(1024 * 1024 / BLCKSZ)

/* A look at a file */
typedef struct LostFile
{
	RelFileLocator file;
	const RelationFacts *facts;
	LostLook	look;
	double		until;			/* LOOK_SPOTS reads more pages up to this
								 * clock_seconds(), up to as many as
								 * LOOK_SAMPLE */
	bool		has_read_all;	/* pages */
	bool		(*goes_on) (void *arg); /* asked after each megabyte that is
										 * read; NULL: true */
	void	   *goes_on_arg;
	BlockNumber nread;			/* pages so far, and of files before */
	bool		is_stopped;		/* it was not */
	BufferAccessStrategy ring;	/* NULL: few pages are read */
	BlockNumber nblocks;		/* when the look began */
	BlockNumber root;
	BlockNumber spare;			/* see page_root() */
	Bitmapset  *empty;			/* blocks of zeros */
	BlockNumber block;			/* whose references are being looked at */
	const char *problem;		/* NULL = none */
} LostFile;

/* Return the bytes of a segment of a fork, -1 with errno if there is none to be seen. */
static int64
segment_size(const LostFile *lost, ForkNumber fork, unsigned int segment)
{
	BlockNumber first = segment * (BlockNumber) RELSEG_SIZE;
	char	   *path = relation_segment_path(&lost->file, fork, first);
	struct stat st;

	return stat(path, &st) == 0 ? st.st_size : -1;
}

/* Look for a segment behind the end of the file: md.c ends at the first that is short. */
static void
look_for_segments(LostFile *lost)
{
	BlockNumber end = lost->nblocks / RELSEG_SIZE;
	BlockNumber last = Max(end, lost->facts->pages / RELSEG_SIZE) + MOST_MISSING;

	last = Min(last, MaxBlockNumber / RELSEG_SIZE);

	for (BlockNumber segment = end + 1; segment <= last; segment++)
	{
		/* asked again, because the file may have grown */
		if (segment_size(lost, MAIN_FORKNUM, segment) > 0 &&
			file_blocks(&lost->file, MAIN_FORKNUM) / RELSEG_SIZE < segment)
			lost->problem = psprintf("segment %u of its file is missing or too short", end);
	}
}

/*
 * Read a page through shared buffers, ERROR if it is not valid.  Returns whether it is one of
 * the access method, which a page of zeros may be, and no metapage but the first; else that is
 * the problem.
 */
static bool
look_at_page(LostFile *lost, BlockNumber block, char *page)
{
	bool		is_permanent = lost->facts->persistence == RELPERSISTENCE_PERMANENT;
	Buffer		buffer;

	CHECK_FOR_INTERRUPTS();
	lost->nread++;
	if (lost->goes_on != NULL && lost->nread % PAGES_OF_MEGABYTE == 0)
		lost->is_stopped = !lost->goes_on(lost->goes_on_arg);
	if (lost->is_stopped)
		return false;
	buffer = ReadBufferWithoutRelcache(lost->file, MAIN_FORKNUM, block, RBM_NORMAL, lost->ring,
									   is_permanent);
	buffer_copy_page(buffer, page);
	if (page_is_of(lost->facts->relam, page) &&
		(block == 0 || !page_is_meta(lost->facts->relam, page)))
		return true;
	lost->problem = psprintf("block %u is invalid", block);
	return false;
}

/* Look at the first page and the root. */
static void
look_at_root(LostFile *lost)
{
	bool		is_index = relkind_is_index(lost->facts->relkind);
	PGIOAlignedBlock page;

	if (lost->nblocks == 0)
		return;
	if (!look_at_page(lost, 0, page.data))
		return;
	lost->root = page_root(lost->facts->relam, page.data, &lost->spare);
	if (lost->root == InvalidBlockNumber)
		lost->problem = "its first page is invalid";
	else if (lost->root >= file_blocks(&lost->file, MAIN_FORKNUM))
		lost->problem = psprintf("its file ends before block %u, the root", lost->root);
	else
	{
		if (!look_at_page(lost, lost->root, page.data))
			return;
		/* of a table, a crash leaves zeros, too, and nothing points to them */
		if (PageIsNew(page.data) && (is_index || lost->look == LOOK_LOSS_KNOWN))
			lost->problem = psprintf("block %u is empty", lost->root);
	}
}

/* A page refers to this block. */
static void
look_at_link(BlockNumber block, void *arg)
{
	LostFile   *lost = arg;
	PGIOAlignedBlock page;

	if (lost->problem != NULL)
		return;

	/*
	 * the file, and the block, may have come to be since: before the
	 * reference to it did
	 */
	if (block >= lost->nblocks && block >= file_blocks(&lost->file, MAIN_FORKNUM))
		lost->problem = psprintf("its file ends before block %u, to which block %u refers", block, lost->block);
	else if (block < lost->nblocks && bms_is_member(block, lost->empty))
	{
		if (!look_at_page(lost, block, page.data))
			return;
		if (PageIsNew(page.data))
			lost->problem = psprintf("block %u, to which block %u refers, is empty", block, lost->block);
	}
}

/* Look at so many pages, up to a moment, and return whether one is suspicious. */
static bool
look_at_some(LostFile *lost, BlockNumber most, double until)
{
	BlockNumber step = Min(Max(lost->nblocks / most, 1), RELSEG_SIZE / SPOTS_OF_SEGMENT);
	PGIOAlignedBlock page;
	int			npages = 0;

	for (BlockNumber block = 0; block < lost->nblocks; block += step)
	{
		bool		is_spare = block > lost->root && block <= lost->spare;

		if (npages % PAGES_OF_MOMENT == 0 && clock_seconds() >= until)
			return false;
		npages++;
		if (!look_at_page(lost, block, page.data))
			return false;
		if (PageIsNew(page.data) && !is_spare)
			return true;

		/*
		 * relpages may be of a time before the file has grown, and been cut
		 * off
		 */
		lost->block = block;
		page_links(lost->facts->relam, page.data, look_at_link, lost);
		if (lost->problem != NULL)
			return false;
	}
	return false;
}

/* Look at some pages of an index, and return whether all have to be read. */
static bool
look_at_spots(LostFile *lost)
{
	bool		suspicious;

	/* a crash empties unlogged relations */
	if (lost->facts->persistence == RELPERSISTENCE_PERMANENT && lost->nblocks < lost->facts->pages)
		return true;
	if (lost->look == LOOK_SAMPLE)
		return look_at_some(lost, SAMPLE, get_float8_infinity());
	suspicious = look_at_some(lost, SPOTS, get_float8_infinity());
	if (!suspicious && lost->problem == NULL)
		suspicious = look_at_some(lost, SAMPLE, lost->until);
	return suspicious;
}

/* Read all pages of an index, note the pages of zeros, and look at references to them. */
static void
look_at_references(LostFile *lost)
{
	PGIOAlignedBlock page;

	for (BlockNumber block = 0; block < lost->nblocks && lost->problem == NULL; block++)
	{
		if (!look_at_page(lost, block, page.data))
			return;
		if (PageIsNew(page.data))
		{
			if (block <= PG_INT32_MAX)
				lost->empty = bms_add_member(lost->empty, block);
			continue;
		}
		lost->block = block;
		page_links(lost->facts->relam, page.data, look_at_link, lost);
	}
}

/* Follow GIN's pending list. */
static void
look_at_list(LostFile *lost)
{
	BlockNumber next = 0;
	PGIOAlignedBlock page;

	/* the list is not longer than the file, unless a page is damaged */
	for (BlockNumber n = 0; n <= lost->nblocks && lost->problem == NULL; n++)
	{
		lost->block = next;
		if (!look_at_page(lost, next, page.data))
			return;
		next = page_next_in_list(lost->facts->relam, page.data);
		if (next == InvalidBlockNumber)
			return;
		look_at_link(next, lost);
	}
}

/* Look at all pages of an index. */
static void
look_at_all(LostFile *lost)
{
	const RelationFacts *facts = lost->facts;

	lost->ring = GetAccessStrategy(BAS_BULKREAD);
	look_at_references(lost);
	if (lost->is_stopped)
		return;
	lost->has_read_all = true;
	if (lost->problem == NULL && !page_is_known(facts->relam))
	{
		if (facts->persistence == RELPERSISTENCE_PERMANENT && lost->nblocks < facts->pages)
			lost->problem = psprintf("its file has %u pages, and had %u", lost->nblocks, facts->pages);
		else if (lost->look == LOOK_LOSS_KNOWN && !bms_is_empty(lost->empty))
			lost->problem = psprintf("block %d is empty", bms_next_member(lost->empty, -1));
		return;
	}
	if (lost->problem == NULL)
		look_at_list(lost);
	/* pages of zeros behind the pages that refer to them are known by now */
	if (lost->problem == NULL && !bms_is_empty(lost->empty))
		look_at_references(lost);
}

/* Look at the pages of a file.  For errors_catch(). */
static void
look_at_pages(void *arg)
{
	LostFile   *lost = arg;

	lost->nblocks = file_blocks(&lost->file, MAIN_FORKNUM);
	look_for_segments(lost);
	if (lost->problem == NULL)
		look_at_root(lost);
	if (lost->problem != NULL || lost->look == LOOK_QUICK)
		return;
	if (!relkind_is_index(lost->facts->relkind))
		return;
	if (lost->look < LOOK_WHOLE)
	{
		if (!look_at_spots(lost))
			return;
		/* a monitor reads it once in a while */
		if (lost->look == LOOK_SPOTS && ruins_was_whole(&lost->file))
			return;
	}
	look_at_all(lost);
}

/* Remember the problem of a file. */
static void
note_problem(LostFile *lost, const char *problem)
{
	bool		is_new = ruins_note(&lost->file, problem);

	if (is_new)
		evidence_note_ruin(&lost->file);
}

/* Look at the pages of a file, which is locked, and remember the finding. */
static ErrorData *
look_and_remember(LostFile *lost)
{
	ErrorData  *error = errors_catch(look_at_pages, lost);

	if (error == NULL && lost->problem != NULL)
		note_problem(lost, lost->problem);
	else if (error == NULL && lost->has_read_all && !lost->is_stopped)
		(void) ruins_note(&lost->file, NULL);
	/* and not that a device has failed for a moment */
	else if (error != NULL && (error->sqlerrcode == ERRCODE_DATA_CORRUPTED ||
							   error->sqlerrcode == ERRCODE_INDEX_CORRUPTED))
		note_problem(lost, error->message);
	return error;
}

/* Return how thoroughly a file is looked at before it is copied: of a file that is not known to be whole, all pages. */
static LostLook
look_for_copy(const LostFile *lost, Evidence evidence)
{
	const RelationFacts *facts = lost->facts;

	if (evidence != EVIDENCE_UNKNOWN)
		return LOOK_QUICK;
	if (!evidence_look_if_unread(facts->tablespace, facts->relfilenumber, facts->relid))
		return LOOK_QUICK;
	return ruins_was_whole(&lost->file) ? LOOK_QUICK : LOOK_WHOLE;
}

/* The same as lost_file(), with the fields of *lost that the caller has set. */
static const char *
look_at_file(LostFile *lost)
{
	const RelationFacts *facts = lost->facts;
	LostLook	look = lost->look;
	Evidence	evidence = EVIDENCE_SAME;
	ErrorData  *error = NULL;
	RelationFacts now;
	const char *known = NULL;
	int64		size;
	bool		is_held = CheckRelationOidLockedByMe(facts->relid, AccessShareLock, true);
	bool		locked = false;
	bool		is_empty = false;
	bool		reads_again = false;
	bool		has_use = facts->valid || !relkind_is_index(facts->relkind);
	int			category;

	/* of an unlogged relation, a standby has the init fork only */
	if (!RelFileNumberIsValid(facts->relfilenumber) || !RELKIND_HAS_STORAGE(facts->relkind) ||
		(facts->persistence == RELPERSISTENCE_UNLOGGED && RecoveryInProgress()))
		return NULL;

	/*
	 * A recovery that ran without the device may have emptied an unlogged
	 * table, and not its index there, or the index, and not the table there
	 */
	evidence = evidence_of_file(facts->tablespace, facts->relfilenumber, facts->relid);
	if (has_use)
		known = ruins_problem(&lost->file);
	if (look == LOOK_UNKNOWN)
		look = lost->look = look_for_copy(lost, evidence);

	/*
	 * replay may have made a standby's file whole, by images of pages, and
	 * nothing but a look of this kind reads it there
	 */
	if (known != NULL && look == LOOK_SPOTS && RecoveryInProgress())
		reads_again = ruins_take_turn(&lost->file);
	if (reads_again)
		lost->look = LOOK_WHOLE;
	if ((evidence == EVIDENCE_UNKNOWN || known != NULL) && look == LOOK_SAMPLE)
		lost->look = LOOK_WHOLE;

	size = segment_size(lost, MAIN_FORKNUM, 0);
	if (size < 0 && (errno == ENOENT || errno == ENOTDIR))
		lost->problem = "its file is missing";
	else if (size < 0)
		lost->problem = psprintf("its file cannot be looked at: %m");
	else if (size < BLCKSZ && facts->ready && relkind_is_index(facts->relkind))
	{
		lost->problem = "its file is empty";
		is_empty = true;
	}
	else if (!has_use)

		/*
		 * a build that was interrupted leaves any pages, or none until
		 * writers have to use the index; they are not read
		 */
		lost->problem = NULL;
	else if (facts->persistence == RELPERSISTENCE_UNLOGGED &&
			 segment_size(lost, INIT_FORKNUM, 0) < 0)
		lost->problem = "its init fork is missing";
	else if (evidence == EVIDENCE_LOST)
		lost->problem = "its device has lost changes of it";
	else if (look <= LOOK_SPOTS && !reads_again)
		lost->problem = known;
	/* a session that waits for a lock would keep us from another one */
	if (lost->problem == NULL && has_use && is_held)
		locked = true;
	else if (lost->problem == NULL && has_use)
		locked = ConditionalLockRelationOid(facts->relid, AccessShareLock);
	/* whoever drops or replaces it says so before the file is removed */
	AcceptInvalidationMessages();
	if (!relation_facts(facts->relid, &now) || now.relfilenumber != facts->relfilenumber)
		lost->problem = NULL;
	/* a damaged file that was emptied before a restart */
	else if (is_empty && evidence == EVIDENCE_UNKNOWN && has_use)
		note_problem(lost, lost->problem);
	else if (locked)
	{
		/* no session is to wait for our snapshot of the catalog */
		if (lost->goes_on != NULL)
			InvalidateCatalogSnapshot();
		error = look_and_remember(lost);
	}
	else if (reads_again && lost->problem == NULL)
		lost->problem = known;
	/* it is not known, so the janitor's round settles nothing */
	else if (evidence == EVIDENCE_UNKNOWN && lost->problem == NULL && has_use)
	{
		lost->is_stopped = true;
		evidence_refute(facts->tablespace);
	}
	if (locked && !is_held)
		UnlockRelationOid(facts->relid, AccessShareLock);
	if (error == NULL)
		return lost->problem;
	category = ERRCODE_TO_CATEGORY(error->sqlerrcode);
	/* of open(), EACCES and EISDIR are in the category of access rules */
	if (category != ERRCODE_INTERNAL_ERROR && category != ERRCODE_SYSTEM_ERROR &&
		category != ERRCODE_TO_CATEGORY(ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION))
		ReThrowError(error);
	return error->message;
}

/* A look at the file of a relation begins. */
static LostFile
begin_look(const RelationFacts *facts, LostLook look)
{
	LostFile	result = {.facts = facts,.look = look};

	result.file = make_locator(facts->tablespace, MyDatabaseId, facts->relfilenumber);
	return result;
}

/*
 * Return the damage to the file of a relation, a clause that is palloc'd or
 * constant; NULL if nothing is, or if it has none.  An error that such damage causes is
 * caught, in a subtransaction.
 */
const char *
lost_file(const RelationFacts *facts, LostLook look)
{
	LostFile	lost = begin_look(facts, look);

	return look_at_file(&lost);
}

/* The same for monitors: LOOK_SPOTS, and up to LOOK_SAMPLE before this clock_seconds(). */
const char *
lost_file_until(const RelationFacts *facts, double until)
{
	LostFile	lost = begin_look(facts, LOOK_SPOTS);

	lost.until = until;
	return look_at_file(&lost);
}

/*
 * The same for the janitor, which asks after each megabyte whether to go on; *npages: those read so
 * far, of several files; *is_complete: whether the file was looked at as a whole.
 */
const char *
lost_file_slowly(const RelationFacts *facts, LostLook look,
				 bool (*goes_on) (void *arg), void *arg, BlockNumber *npages, bool *is_complete)
{
	LostFile	lost = begin_look(facts, look);
	const char *result;

	lost.until = get_float8_infinity();
	lost.goes_on = goes_on;
	lost.goes_on_arg = arg;
	lost.nread = *npages;
	result = look_at_file(&lost);
	*npages = lost.nread;
	*is_complete = !lost.is_stopped;
	return result;
}

/*
 * Look whether a session may be building an index that is not valid: until the transaction that makes it
 * valid, that session keeps a lock of its table that is taken here for a moment, and then has not ended.
 * Else the index is left over, and gets another file before it is valid.
 */
bool
lost_look_for_builder(const RelationFacts *facts)
{
	Relation	pg_index;
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	row;
	bool		result = false;

	/* a standby builds none */
	if (facts->valid || RecoveryInProgress())
		return false;
	if (!ConditionalLockRelationOid(facts->heap_oid, ShareUpdateExclusiveLock))
		return true;
	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_pg_index_indexrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(facts->relid));
	pg_index = table_open(IndexRelationId, AccessShareLock);
	scan = systable_beginscan(pg_index, IndexRelidIndexId, true, &dirty, 1, &key);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		if (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax) ||
			((Form_pg_index) GETSTRUCT(row))->indisvalid)
			result = true;
	}
	systable_endscan(scan);
	table_close(pg_index, AccessShareLock);
	UnlockRelationOid(facts->heap_oid, ShareUpdateExclusiveLock);
	return result;
}
