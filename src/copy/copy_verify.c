/*-------------------------------------------------------------------------
 *
 * copy_verify.c
 *	  Method copy: comparing the copy with the original (index_mover.verify).
 *
 * Everything is compared while other sessions write; under the exclusive
 * lock, only blocks that were copied since.  But for LSN and checksum, which a copy
 * has its own of, only that may differ which changes without WAL: hint bits, dead line
 * pointers, unused space.  So pages are masked as for wal_consistency_checking.  Pages
 * of a table are masked less than by core's heap_mask(), which leaves out whether all rows
 * of a page are visible, and which kind of lock xmax is: both change only with WAL, so
 * mask_hints() keeps them.
 *
 * SP-GiST has another difference that is no damage.  It prepares an empty page,
 * new or used before, for a later insertion, without WAL (its redo initializes the
 * page) and without writing it.  So the copy, or the original after the buffer was
 * evicted, can have the older contents: zeros, or a page without tuples and with
 * other flags.  Nothing refers to such a page.
 *
 * Assumption: a block that differs is damaged, unless the WAL has a change of
 * it since it was copied.  Block 0 is the exception, see src/README.  Of access
 * methods that we do not know we cannot mask hint bits.  A difference in them is an
 * error all the same: only the user says that the changes are in the WAL, and to
 * copy such a block again would hide that this is not true.
 *
 * Tricky: changes that come during the comparison must stay in the set of
 * changes until they are checked here.  Without the AccessExclusiveLock, a difference
 * may be a change between the reading of the two pages.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/bufmask.h"
#include "access/htup_details.h"
#include "access/spgist_private.h"
#include "access/xact.h"
#include "access/xlog_internal.h"
#include "catalog/pg_am_d.h"
#include "storage/bufpage.h"

#include "copy/copy_private.h"
#include "plan/plan.h"
#include "file_system.h"

/*
 * Set to zero all that may change in the page of a table without WAL, whatever the
 * settings: a crash loses it, too.  HEAP_XMIN_FROZEN is both bits of xmin, and
 * is logged.  With replayed, also the bytes that replay makes otherwise, as core's
 * heap_mask() does: either page may be older than a crash or a promotion.
 */
static void
mask_hints(Page page, BlockNumber block, bool replayed)
{
	PageHeader	header = (PageHeader) page;

	header->pd_flags &= ~(PD_PAGE_FULL | PD_HAS_FREE_LINES);
	header->pd_prune_xid = InvalidTransactionId;
	/* file_copy.c leaves out the bytes between */
	if (header->pd_lower >= SizeOfPageHeaderData && header->pd_lower < header->pd_upper &&
		header->pd_upper <= BLCKSZ)
		memset((char *) page + header->pd_lower, 0, header->pd_upper - header->pd_lower);
	for (OffsetNumber n = FirstOffsetNumber; n <= PageGetMaxOffsetNumber(page); n++)
	{
		ItemId		item = PageGetItemId(page, n);
		HeapTupleHeader tuple;
		Size		length;

		/* a damaged page */
		if (!ItemIdIsNormal(item) || ItemIdGetLength(item) < SizeofHeapTupleHeader ||
			ItemIdGetOffset(item) + ItemIdGetLength(item) > BLCKSZ)
			continue;
		tuple = (HeapTupleHeader) PageGetItem(page, item);
		if (!HeapTupleHeaderXminFrozen(tuple))
			tuple->t_infomask &= ~(HEAP_XMIN_COMMITTED | HEAP_XMIN_INVALID);
		tuple->t_infomask &= ~(HEAP_XMAX_COMMITTED | HEAP_XMAX_INVALID);
		if (!replayed)
			continue;
		tuple->t_infomask &= ~HEAP_COMBOCID;
		tuple->t_choice.t_heap.t_field3.t_cid = 0;
		if (HeapTupleHeaderIsSpeculative(tuple))
			ItemPointerSet(&tuple->t_ctid, block, n);
		/* the bytes behind the row, up to the next row, are not in the WAL */
		length = Min(MAXALIGN(ItemIdGetLength(item)), BLCKSZ - ItemIdGetOffset(item));
		memset((char *) tuple + ItemIdGetLength(item), 0, length - ItemIdGetLength(item));
	}
}

/* Return the resource manager that can mask the pages of an access method. */
static RmgrId
page_rmgr(Oid access_method)
{
	static const struct
	{
		Oid			access_method;
		RmgrId		rmid;
	}			known[] = {
		{BTREE_AM_OID, RM_BTREE_ID}, {HASH_AM_OID, RM_HASH_ID}, {GIST_AM_OID, RM_GIST_ID},
		{GIN_AM_OID, RM_GIN_ID}, {SPGIST_AM_OID, RM_SPGIST_ID}, {BRIN_AM_OID, RM_BRIN_ID},
	};

	for (int i = 0; i < lengthof(known); i++)
	{
		if (known[i].access_method == access_method)
			return known[i].rmid;
	}
	return RM_GENERIC_ID;
}

/* Return whether a block of the main fork is the same in both files. */
static bool
is_same_block(const CopyFile *file, BlockNumber block, BufferAccessStrategy strategy)
{
	PGIOAlignedBlock pages[2];
	bool		empty[2];
	bool		is_new[2];
	RmgrData	rmgr;

	for (int i = 0; i < 2; i++)
	{
		buffer_copy_page(ReadBufferWithoutRelcache(i == 0 ? file->from : file->to,
												   MAIN_FORKNUM, block, RBM_NORMAL,
												   strategy, true),
						 pages[i].data);
		is_new[i] = PageIsNew((Page) pages[i].data);
		empty[i] = is_new[i] || PageIsEmpty((Page) pages[i].data);
		if (!is_new[i])
			mask_page_lsn_and_checksum((Page) pages[i].data);
	}
	if (memcmp(pages[0].data, pages[1].data, BLCKSZ) == 0)
		return true;
	if (file->relam == SPGIST_AM_OID && !SpGistBlockIsFixed(block) &&
		empty[0] && empty[1])
		return true;
	/* a page that a table was extended by is initialized without WAL */
	if (is_new[0] || is_new[1])
		return file->is_table && empty[0] && empty[1];
	rmgr = GetRmgr(page_rmgr(file->relam));
	for (int i = 0; i < 2; i++)
	{
		if (file->is_table)
			mask_hints((Page) pages[i].data, block, file->resume.goes_on);
		else if (rmgr.rm_mask != NULL)
			rmgr.rm_mask(pages[i].data, block);
	}
	return memcmp(pages[0].data, pages[1].data, BLCKSZ) == 0;
}

static bool
report_difference(CopyFile *file, BlockNumber block)
{
	bool		locked = (file->move->stage == COPY_LOCKED);

	/* to copy all of it again may help; the file is removed */
	if (file->resume.goes_on && !locked)
	{
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the file from which the copy of %s \"%s\" went on differs from the original in block %u",
						relation_noun(file->item->relkind), NameStr(file->item->relname), block),
				 errdetail("The copy begins again.")));
		item_say(copy_item_of(file), "It began again, because that file differed from the original in block %u.", block);
		return copy_start_again(file->move,
								"the file from which it went on differs from the original");
	}
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the copy of %s \"%s\" differs from the original in block %u",
					relation_noun(file->item->relkind), NameStr(file->item->relname), block),
			 errdetail("Nothing was moved.")));
}

/* Compare all that is copied.  A block that has changed since will be compared again. */
bool
copy_verify_all(CopyFile *file)
{
	MovePhase	phase = progress_phase(PHASE_VERIFYING);
	BufferAccessStrategy ring = GetAccessStrategy(BAS_BULKREAD);
	int			ahead = 0;

	Assert(!IsTransactionState() && file->move->stage == COPY_COPYING && !file->verify.begun);
	Assert(block_set_count(file->todo) == 0 && block_set_count(file->verify.unverified) == 0);
	file->verify.begun = true;

	for (BlockNumber begin = 0, end; begin < file->copied; begin = end)
	{
		int			next;
		instr_time	start;

		end = Min(begin + FILE_COPY_CHUNK, file->copied);
		if (!copy_between_chunks(file))
			return false;
		INSTR_TIME_SET_CURRENT(start);
		StartTransactionCommand();
		if (begin == 0)
			ahead = file_copy_read_ahead(file->copy, begin, end - begin);
		next = file_copy_read_ahead(file->copy, end, Min(FILE_COPY_CHUNK, file->copied - end));
		for (BlockNumber block = begin; block < end; block++)
		{
			if (!is_same_block(file, block, ring))
				block_set_add(file->verify.unverified, block);
		}
		file_copy_read_done(file->copy, ahead, begin, end - begin);
		ahead = next;
		CommitTransactionCommand();
		throttle_read(&file->throttle, elapsed_us(start), (int64) (end - begin) * BLCKSZ);
		progress_blocks(file->copied, end);
		copy_eta(file, PHASE_VERIFYING, file->copied, end);
		IM_POINT("copy-verifying");
		if (!copy_keep_up(file->move))
			return false;
	}

	file->verify.compared = file->copied;

	/* nothing was taken from the set of changes since the start */
	if (!copy_drain(file))
		return false;
	copy_take_changes(file);
	foreach_block(block, file->verify.unverified)
	{
		/* block 0 can change without WAL; it is copied under the lock */
		if (block == 0 || block_set_has(file->todo, block))
			continue;
		if (!report_difference(file, block))
			return false;
	}
	FreeAccessStrategy(ring);
	progress_phase(phase);
	return true;
}

/*
 * Compare the blocks below this one that were copied since they were compared, or
 * never were.  Under the lock a difference is an error, else such blocks stay in
 * verify.unverified.
 */
bool
copy_verify_rest(CopyFile *file, BlockNumber nblocks)
{
	bool		locked = (file->move->stage == COPY_LOCKED);
	int			count = 0;

	Assert(locked == IsTransactionState());
	Assert(!locked || CheckRelationOidLockedByMe(file->relid, AccessExclusiveLock, false));
	for (; file->verify.compared < nblocks; file->verify.compared++)
		block_set_add(file->verify.unverified, file->verify.compared);
	foreach_block(block, file->verify.unverified)
	{
		/* under the lock, the transaction is that of the swap */
		if (!locked)
		{
			if (count > 0 && count % FILE_COPY_CHUNK == 0)
				CommitTransactionCommand();
			if (count % FILE_COPY_CHUNK == 0)
			{
				if (!copy_between_chunks(file))
					return false;
				StartTransactionCommand();
			}
			count++;
		}
		if (is_same_block(file, block, NULL))
			block_set_remove(file->verify.unverified, block);
		else if (locked)
		{
			if (!report_difference(file, block))
				return false;
		}
	}
	if (count > 0)
		CommitTransactionCommand();
	return true;
}
