/*-------------------------------------------------------------------------
 *
 * compare_blocks.c
 *	  Is a block of one relation file the same as in another?
 *
 * LSN and checksum are ignored: a copy has its own.  If that is not enough,
 * both sides are masked as wal_consistency_checking masks them, with the
 * function of the access method's resource manager, which leaves out what may
 * change without WAL: hint bits, dead line pointers, unused space.
 *
 * One difference more is none: SP-GiST prepares an empty page in a buffer, new
 * or used before, and leaves it for a later insertion, without WAL (its redo
 * makes the page anew) and without writing it.  So the copy, or the original
 * after the buffer was given up, can have what was there before: zeros, or a
 * page without tuples and with other flags.  Nothing refers to such a page.
 *
 * Locks: both files must be kept from being truncated or dropped.  Each page
 * is read under share lock, one after the other: if the files are in use, a
 * difference may be a change that came between.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/bufmask.h"
#include "access/spgist_private.h"
#include "access/xlog_internal.h"
#include "catalog/pg_am_d.h"
#include "copy/compare_blocks.h"
#include "storage/bufpage.h"

/* The resource manager that knows how to mask the pages of an access method. */
RmgrId
page_resource_manager(Oid access_method)
{
	switch (access_method)
	{
		case BTREE_AM_OID:
			return RM_BTREE_ID;
		case HASH_AM_OID:
			return RM_HASH_ID;
		case GIST_AM_OID:
			return RM_GIST_ID;
		case GIN_AM_OID:
			return RM_GIN_ID;
		case SPGIST_AM_OID:
			return RM_SPGIST_ID;
		case BRIN_AM_OID:
			return RM_BRIN_ID;
		default:
			return RM_GENERIC_ID;
	}
}

/* Read a page as it is now. */
static void
get_page(const RelFileLocator *locator, BlockNumber block,
		 BufferAccessStrategy strategy, char *page)
{
	Buffer		buffer = ReadBufferWithoutRelcache(*locator, MAIN_FORKNUM, block,
												   RBM_NORMAL, strategy, true);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
}

/* Compare one block of the main forks; rmid says whose pages these are. */
bool
same_block(const RelFileLocator *one, const RelFileLocator *other,
		   BlockNumber block, RmgrId rmid, BufferAccessStrategy strategy)
{
	PGAlignedBlock pages[2];
	bool		empty[2];
	bool		is_new[2];
	RmgrData	rmgr;

	get_page(one, block, strategy, pages[0].data);
	get_page(other, block, strategy, pages[1].data);

	for (int i = 0; i < 2; i++)
	{
		is_new[i] = PageIsNew((Page) pages[i].data);
		empty[i] = is_new[i] || PageIsEmpty((Page) pages[i].data);
		if (!is_new[i])
			mask_page_lsn_and_checksum((Page) pages[i].data);
	}
	if (memcmp(pages[0].data, pages[1].data, BLCKSZ) == 0)
		return true;
	if (rmid == RM_SPGIST_ID && !SpGistBlockIsFixed(block) &&
		empty[0] && empty[1])
		return true;
	if (is_new[0] || is_new[1])
		return false;

	rmgr = GetRmgr(rmid);
	if (rmgr.rm_mask == NULL)
		return false;
	rmgr.rm_mask(pages[0].data, block);
	rmgr.rm_mask(pages[1].data, block);
	return memcmp(pages[0].data, pages[1].data, BLCKSZ) == 0;
}
