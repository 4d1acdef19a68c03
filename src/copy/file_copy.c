/*-------------------------------------------------------------------------
 *
 * file_copy.c
 *	  Copying blocks of a relation file to another while it is in use.
 *
 * Every block copied was valid at some moment during the call.  Which ones change
 * after that wal_changes.c knows, and the caller has them copied again.
 *
 * The new file, which only we know, is written in two ways.  Directly
 * (file_copy_range(), file_copy_set()): past shared buffers, up to 1 MB at once,
 * logged as full pages in records of our own, with checksums; file_copy_sync() makes
 * that durable.  Then, the last blocks, through shared buffers
 * (file_copy_through_buffer()): the checkpointer syncs them.  A block in shared
 * buffers must not be written directly, since the buffer would be stale: after
 * file_copy_sync() that is an error, until file_copy_unsync() has emptied the
 * buffers.
 *
 * Tricky: log first, then write.  If a checkpoint starts in between, a base
 * backup can start after the record and read the file before the write; so
 * both are repeated.
 *
 * Write-back: after each 1 MB, tell the kernel to start writing it, and wait
 * for the megabyte before.  Without the first, the fsync at the end stalls
 * all commits (a quarter of a second for 600 MB); without the second, the
 * start itself can block for seconds.
 *
 * Reading past the buffers: file_copy_range() reads 1 MB of the old file at once,
 * and takes from it the blocks that have no buffer.  So others' buffers are left
 * alone, and slow storage delivers a megabyte at the price of a block.  The order
 * is: note the insert position; look up which blocks have a buffer; read.  A block
 * that has one, or that is not valid, is read from its buffer afterwards.  No change
 * is missed:
 *
 *	- One whose record starts before the position was made in a buffer that
 *	  was pinned until the record was complete.  If there is no buffer at the
 *	  lookup, it was evicted in between, and an eviction writes before it
 *	  unmaps: the read has the change.
 *	- Who loads and changes the block after the lookup logs a record that
 *	  starts behind the position.  The caller has such blocks copied again,
 *	  and with that one whose write and our read have overlapped.  (If such a
 *	  write has hint bits only, the block is a mixture of valid pages that
 *	  differ in hint bits; with checksums, it is read again from its buffer.)
 *
 * Past the page cache (direct): the bulk of a large file is written with
 * O_DIRECT, and the old file is read with it where the page cache does not have
 * the whole megabyte; pages of others stay there, and copying into
 * fresh page cache is more than half of the cost of a copy.  A file system that
 * refuses O_DIRECT gets the same by giving up, behind the write-back, the pages that we have
 * brought in.  Rounds are buffered: their blocks are few, scattered, and in use.
 *
 * In the background: blocks are written with O_DIRECT while the next blocks
 * are read and logged, one write at a time, by the system calls of io_submit(2), for
 * which the C library has no functions.  (A copy of a btree of 769 MB took 1.53 s with
 * it and 1.79 s without when idle: bench/copy --ways paced,before.)  Only when the
 * write has ended is it known whether a checkpoint has begun since the pages were
 * logged, so they stay in a chunk of their own until then.  Before a round may log one
 * of them again, or the file is synced, the write has ended: or an older page could be
 * logged, and written, behind a newer one.
 *
 * Holes: the bytes between pd_lower and pd_upper of a page are logged only if
 * they have to be.
 *
 *	- A hole of zeros is left out: replay fills a hole with zeros.
 *	- A hole with garbage, which deletions leave, is left out where the access
 *	  method's own records say that the page is standard (REGBUF_STANDARD), so
 *	  that nothing in a hole survives its next full page image anyway: tables,
 *	  btree and GiST, but for block 0.  Our private copy then gets zeros there, too,
 *	  so the new file is the same here, on a standby, and after a crash.
 *	- The rest is logged whole.  BRIN's revmap keeps its contents behind
 *	  pd_lower; so do GIN's pages of before 9.4 and metapages of before 11, and
 *	  pages of access methods that we do not know may.
 *
 * Tricky: with wal_level = minimal, blocks are not logged, and keep their
 * LSN.  But a block with an LSN after the redo position of the copy's start
 * is logged: its next change might not write a full page image, because by
 * its LSN there is one already, and then a torn page could not be repaired.
 *
 * That bound never moves.  Recovery restores a full page image whatever LSN the page
 * in the file has.  So a block that was logged once must be logged each time it is
 * written again, or recovery would replace the newer contents by the older.  It is,
 * because a page's LSN only grows, and was above the bound already.  A block never
 * logged by us has an LSN not above the bound or any later redo position, so its
 * first change after the swap writes a full page image, even if a checkpoint was
 * running at the copy's start and recovery starts before its redo position.
 *
 * Locks: the caller keeps the old file from being truncated, replaced or
 * dropped, and is in a transaction, which needs neither xid nor snapshot.
 *
 * proof/copy.pml and proof/resume.pml are models of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <math.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "compat.h"
#include "copy/block_set.h"
#include "copy/file_copy.h"
#include "copy/wal_changes.h"
#include "file_system.h"
#include "report/report.h"
#include "test_points.h"

/* Pages in a WAL record */
#define PAGES_PER_RECORD	XLR_MAX_BLOCK_ID

/* While others write, log as many blocks at once as are flushed in about this time */
#define PIECE_US			1050
#define FLUSHES_SMOOTHED	8
/* ... in units of half a record */
#define PIECE_UNIT			(PAGES_PER_RECORD / 2)

/* For the tests, see test_points.c */
#define DIRECT_FLAG			IM_LIMIT("no-direct", PG_O_DIRECT)
/* The system refuses 0 */
#define WRITES_AT_ONCE		IM_LIMIT("no-background", 1)
#define NOT_WRITTEN			IM_LIMIT("background-failed", 0)
#define SYNCED_AT_ONCE		IM_LIMIT("sync-blocks", RELSEG_SIZE)

/* Consecutive blocks of the new file that are being written in the background. */
typedef struct UnderWay
{
	BlockNumber first;
	BlockNumber nblocks;		/* 0 = none are */
	char	   *data;
	XLogRecPtr	redo;			/* when they were logged */
} UnderWay;

/* Blocks that were logged at once, and handed over to the WAL writer. */
typedef struct LoggedPiece
{
	XLogRecPtr	end;			/* of its last record */
	instr_time	at;
	int			nblocks;
} LoggedPiece;

struct FileCopy
{
	RelFileLocator from;
	RelFileLocator to;
	ChangedBlocks *changes;		/* of the old file */
	ChangedBlocks *const *followers;	/* need not read our own records */
	const MoveSettings *settings;
	Throttle   *throttle;
	Oid			relam;			/* see read_block() */
	BufferAccessStrategy ring;
	char	   *chunk;			/* FILE_COPY_CHUNK blocks, aligned for I/O */
	char	   *other_chunk;	/* as many, which may be under way */
	UnderWay	under_way;
	XLogRecPtr	last_record;	/* end of the last record that we wrote */
	LoggedPiece piece;			/* the last piece */
	LoggedPiece piece_before;
	double		flush_us;		/* to flush a block's, at most, smoothed */
	FullTransactionId next_xid; /* at the last chunk */
	XLogRecPtr	redo_at_start;	/* see "wal_level = minimal" above */
	bool		direct;			/* see "Past the page cache" */
	bool		refused;		/* ... which the file system does not like */
	bool		standard_pages; /* garbage in holes need not be kept */
	bool		synced;			/* no direct writes any more */
	BlockNumber recorded;		/* WAL of blocks below is flushed first */
	BlockNumber durable;		/* blocks below were not written since */
	File		file;			/* an open segment of the new file; 0 = none
								 * is */
	BlockNumber file_number;
	bool		file_direct;
	BlockNumber sample;			/* last block that began a direct write */
	char	   *sample_page;	/* as written; see read_back() */
	/* blocks of the last write-back, in order */
	BlockNumber window[FILE_COPY_CHUNK];
	int			window_blocks;
};

/*
 * Prepare to copy from a relation file to another, in the current memory
 * context.  changes is told which blocks are copied; the followers, a list that ends
 * with NULL, to skip our own records; direct: leave the page cache alone.  The throttle
 * is told how long reading takes.  While it is in a hurry, writes wait for nothing, and
 * a file stays open.
 */
FileCopy *
file_copy_create(const RelFileLocator *from, const RelFileLocator *to,
				 ChangedBlocks *changes, ChangedBlocks *const *followers, Oid relam,
				 bool direct, const MoveSettings *settings, Throttle *throttle)
{
	FileCopy   *copy = palloc0(sizeof(FileCopy));
	Size		size = (Size) FILE_COPY_CHUNK * BLCKSZ;

	copy->from = *from;
	copy->to = *to;
	copy->changes = changes;
	copy->followers = followers;
	copy->settings = settings;
	copy->throttle = throttle;
	copy->relam = relam;
	copy->direct = direct;
	copy->refused = DIRECT_FLAG == 0;
	copy->next_xid = ReadNextFullTransactionId();
	copy->redo_at_start = GetRedoRecPtr();
	copy->flush_us = (double) PIECE_US / PAGES_PER_RECORD;
	copy->standard_pages = relam == BTREE_AM_OID || relam == GIST_AM_OID ||
		relam == HEAP_TABLE_AM_OID || IM_MUTATION("holes");
	copy->ring = GetAccessStrategy(BAS_BULKREAD);
	copy->chunk = palloc_aligned(size, PG_IO_ALIGN_SIZE, 0);
	copy->other_chunk = palloc_aligned(size, PG_IO_ALIGN_SIZE, 0);
	copy->sample = InvalidBlockNumber;
	copy->sample_page = palloc_aligned(BLCKSZ, PG_IO_ALIGN_SIZE, 0);
	return copy;
}

static off_t
segment_offset(BlockNumber block)
{
	return (off_t) (block % RELSEG_SIZE) * BLCKSZ;
}

/*
 * Close the segment after writes to it.  Some file systems (NFS) report a write that
 * failed at close().  It is reported to that of a duplicate, as an ERROR, since
 * FileClose() would make it a PANIC, and no session uses this file yet.
 */
static void
finish_segment(FileCopy *copy, int elevel)
{
	int			duplicate;

	if (copy->file <= 0)
		return;
	duplicate = dup(FileGetRawDesc(copy->file));
	if (duplicate >= 0)
	{
		if (close(duplicate) != 0)
			ereport(elevel,
					(errcode_for_file_write(),
					 errmsg("could not close file \"%s\": %m", FilePathName(copy->file))));
	}
	FileClose(copy->file);
	copy->file = 0;
}

/*
 * The system's name for our writes in the background, or 0.  It is kept until the
 * process exits: to give it back takes the kernel 40 ms (two RCU grace periods).
 */
static unsigned long aio_context = 0;

/* Wait for the write under way, if there is any, and return whether it has written all. */
static bool
wait_for_write(FileCopy *copy)
{
	int64		size = (int64) copy->under_way.nblocks * BLCKSZ;
	struct io_event event;
	int			rc;

	if (size == 0)
		return false;
	copy->under_way.nblocks = 0;
	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_WRITE);
	do
		rc = syscall(SYS_io_getevents, aio_context, 1, 1, &event, NULL);
	while (rc < 0 && errno == EINTR);
	pgstat_report_wait_end();
	if (rc == 1)
		return event.res == size + NOT_WRITTEN;
	/* wait in any case */
	(void) syscall(SYS_io_destroy, aio_context);
	aio_context = 0;
	return false;
}

/* End writes, and close the file, before it is dropped; the memory goes with its context. */
void
file_copy_free(FileCopy *copy)
{
	if (copy == NULL)
		return;
	(void) wait_for_write(copy);
	finish_segment(copy, DEBUG1);
}

/* Return whether a block of a file has a buffer at this moment. */
bool
file_has_buffer(const RelFileLocator *file, BlockNumber block)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *lock;
	bool		found;

	if (IM_MUTATION("lookup"))
		return false;
	InitBufferTag(&tag, file, MAIN_FORKNUM, block);
	hash = BufTableHashCode(&tag);
	lock = BufMappingPartitionLock(hash);
	LWLockAcquire(lock, LW_SHARED);
	found = BufTableLookup(&tag, hash) >= 0;
	LWLockRelease(lock);
	return found;
}

/* Return how much of a part of a file the page cache has, 1 if that cannot be told. */
static double
cached_share(int fd, off_t offset, size_t size)
{
	double		result = 1;
	unsigned char resident[(size_t) FILE_COPY_CHUNK * BLCKSZ / 4096];
	void	   *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, offset);

	if (map == MAP_FAILED)
		return result;
	if (mincore(map, size, resident) == 0)
	{
		size_t		npages = (size - 1) / sysconf(_SC_PAGESIZE) + 1;
		size_t		nresident = 0;

		for (size_t i = 0; i < npages; i++)
			nresident += resident[i] & 1;
		result = (double) nresident / npages;
	}
	(void) munmap(map, size);
	return result;
}

/* Open the segment of a file that holds a block; -1 if that does not work. */
static int
open_to_read(const RelFileLocator *file, BlockNumber block, int flags)
{
	char	   *path = relation_segment_path(file, MAIN_FORKNUM, block);
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY | flags);

	pfree(path);
	return fd;
}

/* Read a range past shared buffers; return how many blocks.  read_block() sees to errors. */
static BlockNumber
read_past_buffers(FileCopy *copy, BlockNumber first, BlockNumber nblocks)
{
	int			fd = open_to_read(&copy->from, first, im_data_open_flags());
	off_t		offset = segment_offset(first);
	size_t		size = (size_t) nblocks * BLCKSZ;
	double		cached = copy->direct && fd >= 0 && im_data_open_flags() == 0 ?
		cached_share(fd, offset, size) : 1;
	ssize_t		nread = -1;

	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_READ);
	if (cached < 1 && DIRECT_FLAG != 0)
	{
		int			direct_fd = open_to_read(&copy->from, first, DIRECT_FLAG);

		if (direct_fd >= 0)
		{
			nread = pg_pread(direct_fd, copy->chunk, size, offset);
			CloseTransientFile(direct_fd);
		}
	}
	if (nread < 0 && fd >= 0)
	{
		/* the kernel's read-ahead would look like others' cache next time */
		if (copy->direct)
			(void) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
		nread = pg_pread(fd, copy->chunk, size, offset);
		if (cached == 0)
			(void) posix_fadvise(fd, offset, size, POSIX_FADV_DONTNEED);
	}
	pgstat_report_wait_end();
	if (fd >= 0)
		CloseTransientFile(fd);
	return nread < 0 ? 0 : nread / BLCKSZ;
}

/*
 * Read a block of the old file from its buffer.  ERROR XX001 or XX002 if the page,
 * which is verified, is not of the access method: written with a new checksum,
 * the damage would be there for good.
 */
static void
read_block(FileCopy *copy, BlockNumber block, char *page)
{
	/* step: read-buffer */
	buffer_copy_page(ReadBufferWithoutRelcache(copy->from, MAIN_FORKNUM, block, RBM_NORMAL,
											   copy->ring, true),
					 page);
	if (!page_is_of(copy->relam, page))
	{
		bool		is_table = (copy->relam == HEAP_TABLE_AM_OID);

		ereport(ERROR,
				(errcode(is_table ? ERRCODE_DATA_CORRUPTED : ERRCODE_INDEX_CORRUPTED),
				 errmsg("invalid page in block %u of relation %s", block,
						relation_fork_path(copy->from, MAIN_FORKNUM))));
	}
}

/*
 * Have the kernel read blocks of a segment of both files, before they are read
 * through buffers, and no more blocks than these: by itself it would read ahead,
 * on some machines megabytes at a time, behind which the commits of others wait.
 * Return a bit for each file for file_copy_read_done().
 */
int
file_copy_read_ahead(const FileCopy *copy, BlockNumber first, BlockNumber nblocks)
{
	int			drop = 0;
	off_t		offset = segment_offset(first);
	off_t		size = (off_t) nblocks * BLCKSZ;

	if (nblocks == 0 || im_data_open_flags() != 0)
		return 0;
	for (int i = 0; i < 2; i++)
	{
		int			fd = open_to_read(i == 0 ? &copy->from : &copy->to, first, 0);
		double		cached;

		if (fd < 0)
			continue;
		cached = cached_share(fd, offset, size);
		if (cached < 1)
			(void) posix_fadvise(fd, offset, size, POSIX_FADV_WILLNEED);
		if (copy->direct && cached == 0)
			drop |= 1 << i;
		CloseTransientFile(fd);
	}
	return drop;
}

/* Give up in the page cache the blocks that were read ahead. */
void
file_copy_read_done(const FileCopy *copy, int drop, BlockNumber first, BlockNumber nblocks)
{
	for (int i = 0; i < 2; i++)
	{
		int			fd;

		if ((drop & (1 << i)) == 0)
			continue;
		fd = open_to_read(i == 0 ? &copy->from : &copy->to, first, 0);
		if (fd < 0)
			continue;
		(void) posix_fadvise(fd, segment_offset(first), (off_t) nblocks * BLCKSZ,
							 POSIX_FADV_DONTNEED);
		CloseTransientFile(fd);
	}
}

/* Open the segment of the new file that holds a block.  The first segment exists already. */
static void
open_segment(FileCopy *copy, BlockNumber block, bool direct)
{
	int			flags = O_RDWR | PG_BINARY | (block >= RELSEG_SIZE ? O_CREAT : 0);
	char	   *path;

	if (copy->file > 0 && copy->file_number == block / RELSEG_SIZE &&
		copy->file_direct == direct)
		return;
	finish_segment(copy, ERROR);

	path = relation_segment_path(&copy->to, MAIN_FORKNUM, block);
	copy->file = PathNameOpenFile(path, flags | (direct ? DIRECT_FLAG : 0));
	if (copy->file < 0 && direct)
	{
		direct = false;
		copy->refused = true;
		copy->file = PathNameOpenFile(path, flags);
	}
	if (copy->file < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	pfree(path);
	copy->file_number = block / RELSEG_SIZE;
	copy->file_direct = direct;
}

/* Remember a block that is written past the storage manager, for read_back(). */
static void
note_sample(FileCopy *copy, BlockNumber block, const char *page)
{
	copy->sample = block;
	memcpy(copy->sample_page, page, BLCKSZ);
}

/* Read a block that was written directly through the storage manager, and compare. */
static void
read_back(FileCopy *copy, SMgrRelation smgr)
{
	PGIOAlignedBlock page;

	if (copy->sample == InvalidBlockNumber)
		return;
	smgrread(smgr, MAIN_FORKNUM, copy->sample, page.data);
	if (IM_MUTATION("read-back"))
		page.data[BLCKSZ - 1] ^= 1;
	if (memcmp(page.data, copy->sample_page, BLCKSZ) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("block %u of file \"%s\" differs from what was written to it",
						copy->sample, relation_segment_path(&copy->to, MAIN_FORKNUM, copy->sample)),
				 errdetail("Nothing was moved. Either the storage has failed, or the server encrypts its files, which cannot be copied then.")));
	/* it may change in a buffer from now on */
	copy->sample = InvalidBlockNumber;
}

/*
 * Write consecutive blocks of a segment to the new file, whose segments are begun
 * in order, as md.c requires.  "direct" is a wish.
 */
static void
write_blocks(FileCopy *copy, BlockNumber first, BlockNumber nblocks,
			 const char *data, bool direct)
{
	off_t		offset = segment_offset(first);
	size_t		size = (size_t) nblocks * BLCKSZ;

	Assert(nblocks > 0 && first / RELSEG_SIZE == (first + nblocks - 1) / RELSEG_SIZE);
	if (copy->synced)
		elog(ERROR, "direct write to a file whose blocks are in shared buffers");

	open_segment(copy, first, direct);
	note_sample(copy, first, data);

	while (size > 0)
	{
		ssize_t		written = FileWrite(copy->file, (char *) data, size, offset,
										WAIT_EVENT_DATA_FILE_WRITE);

		if (written <= 0 && errno == EINVAL && copy->file_direct)
		{
			/* some do not refuse it before */
			copy->refused = true;
			open_segment(copy, first, false);
			continue;
		}
		if (written <= 0)
			ereport(ERROR,
					(errcode_for_file_write(),
					 errmsg("could not write file \"%s\": %m", FilePathName(copy->file))));
		data += written;
		size -= written;
		offset += written;
	}
}

/*
 * Return the flag with which to register a page whose hole need not be logged, 0 if
 * it must be, or has none.  Fills the hole with zeros, as replay will; see "Holes".
 */
static int
leave_out_hole(FileCopy *copy, BlockNumber block, char *page)
{
	/* as XLogRecordAssemble() finds it */
	uint16		lower = ((PageHeader) page)->pd_lower;
	uint16		upper = ((PageHeader) page)->pd_upper;

	if (lower < SizeOfPageHeaderData || upper <= lower || upper > BLCKSZ)
		return 0;
	/* all bytes are zero */
	if (page[lower] == 0 && memcmp(page + lower, page + lower + 1, upper - lower - 1) == 0)
		return REGBUF_STANDARD;
	if (!copy->standard_pages || block == 0)
		return 0;
	memset(page + lower, 0, upper - lower);
	return REGBUF_STANDARD;
}

/* Even if checksums are off: a tool that switches them on later does not know the new file. */
static void
set_checksum(Page page, BlockNumber block)
{
	if (!PageIsNew(page))
		((PageHeader) page)->pd_checksum = pg_checksum_page((char *) page, block);
}

/* Log these pages if needed (log_newpages() has one flag for all), and set their checksums. */
static void
log_blocks(FileCopy *copy, const BlockNumber *blocks, char *data, int nblocks)
{
	char	   *pages[PAGES_PER_RECORD];
	int			npages = 0;

	for (int i = 0; i < nblocks; i++)
	{
		char	   *page = data + (Size) i * BLCKSZ;
		XLogRecPtr	end;

		if (XLogIsNeeded() || PageGetLSN((Page) page) > copy->redo_at_start)
		{
			if (npages == 0)
			{
				XLogEnsureRecordSpace(PAGES_PER_RECORD - 1, 0);
				XLogBeginInsert();
			}
			XLogRegisterBlock(npages, &copy->to, MAIN_FORKNUM, blocks[i], page,
							  REGBUF_FORCE_IMAGE | leave_out_hole(copy, blocks[i], page));
			pages[npages++] = page;
		}
		if (npages == 0 || (npages < PAGES_PER_RECORD && i < nblocks - 1))
			continue;

		end = copy->last_record = XLogInsert(RM_XLOG_ID, XLOG_FPI);
		while (npages-- > 0)
		{
			/* an LSN would make a new page invalid */
			if (!PageIsNew((Page) pages[npages]))
				PageSetLSN((Page) pages[npages], end);
		}
		npages = 0;
		for (int n = 0; copy->followers[n] != NULL; n++)
			wal_changes_skip(copy->followers[n], ProcLastRecPtr, end);
		IM_POINT("copy-logging");
	}

	for (int i = 0; i < nblocks; i++)
		set_checksum((Page) (data + (Size) i * BLCKSZ), blocks[i]);
}

/* Call sync_file_range() for each segment that has some of these blocks. */
static void
write_back(FileCopy *copy, const BlockNumber *blocks, int nblocks, unsigned int flags)
{
	for (int i = 0, next; i < nblocks; i = next)
	{
		off_t		offset = segment_offset(blocks[i]);
		off_t		size;
		int			rc;

		for (next = i + 1; next < nblocks &&
			 blocks[next] / RELSEG_SIZE == blocks[i] / RELSEG_SIZE; next++)
			;
		size = segment_offset(blocks[next - 1]) + BLCKSZ - offset;
		open_segment(copy, blocks[i], copy->file_direct);

		/* the kernel reports an error only once: a later fsync would succeed */
		pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_FLUSH);
		rc = sync_file_range(FileGetRawDesc(copy->file), offset, size, flags);
		pgstat_report_wait_end();
		if (rc < 0 && errno != ENOSYS)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not flush file \"%s\": %m", FilePathName(copy->file))));
		if (copy->direct && copy->refused && (flags & SYNC_FILE_RANGE_WAIT_AFTER))
			(void) posix_fadvise(FileGetRawDesc(copy->file), offset, size, POSIX_FADV_DONTNEED);
	}
}

/*
 * Have the kernel start to write these blocks to disk, with all between them, and
 * wait for the blocks of the last call, unless in a hurry.
 */
static void
start_write_back(FileCopy *copy, const BlockNumber *blocks, int nblocks)
{
	if (!enableFsync)
		return;

	write_back(copy, blocks, nblocks, SYNC_FILE_RANGE_WRITE);
	if (!copy->throttle->hurry)
		write_back(copy, copy->window, copy->window_blocks,
				   SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
				   SYNC_FILE_RANGE_WAIT_AFTER);
	memcpy(copy->window, blocks, nblocks * sizeof(BlockNumber));
	copy->window_blocks = nblocks;
}

/*
 * Wait until the WAL of the piece before the last one is flushed, and take the
 * time.  If it was done already, that is an upper bound: only a shorter one counts.
 */
static void
wait_for_flush(FileCopy *copy)
{
	const LoggedPiece *piece = &copy->piece_before;
	bool		over;
	double		us;

	if (XLogRecPtrIsInvalid(piece->end))
		return;
	/* if there is no flush to wait for, we stop nowhere else */
	(void) sched_yield();
	over = GetFlushRecPtr(NULL) >= piece->end;
	XLogFlush(piece->end);
	us = (double) elapsed_us(piece->at) / piece->nblocks;
	if (!over || us < copy->flush_us)
		copy->flush_us += (Max(us, 1) - copy->flush_us) / FLUSHES_SMOOTHED;
}

/*
 * Start to write consecutive blocks of a segment in the background, and return
 * whether that worked: else they are written in the foreground, which says what is
 * wrong.  The file is extended before: a write that extends it would wait for its end.
 */
static bool
start_write(FileCopy *copy, BlockNumber first, BlockNumber nblocks, char *data,
			XLogRecPtr redo)
{
	off_t		offset = segment_offset(first);
	off_t		size = (off_t) nblocks * BLCKSZ;
	struct iocb request = {
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_buf = (uintptr_t) data,
		.aio_nbytes = size,
		.aio_offset = offset
	};
	struct iocb *requests[1] = {&request};

	Assert(copy->under_way.nblocks == 0);
	open_segment(copy, first, true);
	if (!copy->file_direct)
		return false;
	if (FileSize(copy->file) < offset + size)
	{
		if (FileTruncate(copy->file, offset + size, WAIT_EVENT_DATA_FILE_EXTEND) != 0)
			return false;
	}
	if (aio_context == 0)
	{
		if (syscall(SYS_io_setup, WRITES_AT_ONCE, &aio_context) != 0)
			aio_context = 0;
	}
	if (aio_context == 0)
		return false;
	request.aio_fildes = FileGetRawDesc(copy->file);
	if (syscall(SYS_io_submit, aio_context, 1, requests) != 1)
		return false;
	note_sample(copy, first, data);
	copy->under_way.first = first;
	copy->under_way.nblocks = nblocks;
	copy->under_way.data = data;
	copy->under_way.redo = redo;
	IM_POINT("copy-under-way");
	return true;
}

/* Return whether a checkpoint has begun since: then blocks that were logged are logged again. */
static bool
must_be_repeated(XLogRecPtr redo)
{
	/* step: repeat */
	return XLogIsNeeded() && GetRedoRecPtr() != redo && !IM_MUTATION("log-once");
}

static void log_and_write(FileCopy *copy, const BlockNumber *blocks, char *data,
						  int nblocks, bool direct, bool background);

/* Wait for the blocks under way, and log and write them again if need be. */
static void
finish_write(FileCopy *copy)
{
	UnderWay	under_way = copy->under_way;
	BlockNumber blocks[FILE_COPY_CHUNK];
	bool		written;

	if (under_way.nblocks == 0)
		return;
	written = wait_for_write(copy);
	if (written && !must_be_repeated(under_way.redo))
		return;
	for (BlockNumber i = 0; i < under_way.nblocks; i++)
		blocks[i] = under_way.first + i;
	log_and_write(copy, blocks, under_way.data, under_way.nblocks, true, false);
}

/*
 * Log pages, have the WAL writer flush that, and write them.  With "background", for
 * consecutive blocks, the write goes on, and the one before has ended.
 */
static void
log_and_write(FileCopy *copy, const BlockNumber *blocks, char *data,
			  int nblocks, bool direct, bool background)
{
	XLogRecPtr	redo;
	bool		under_way = false;

	do
	{
		redo = GetRedoRecPtr();
		/* step: log-first */
		log_blocks(copy, blocks, data, nblocks);
		XLogSetAsyncXactLSN(copy->last_record);
		copy->piece_before = copy->piece;
		copy->piece.end = copy->last_record;
		copy->piece.nblocks = nblocks;
		INSTR_TIME_SET_CURRENT(copy->piece.at);
		copy->durable = Min(copy->durable, blocks[0]);
		/* step: flush-first */
		/* see file_copy_record() */
		if (blocks[0] < copy->recorded && !IM_MUTATION("resume-unflushed"))
			XLogFlush(copy->last_record);
		IM_POINT("copy-logged");

		finish_write(copy);
		/* step: write-behind */
		if (background)
			under_way = start_write(copy, blocks[0], nblocks, data, redo);
		if (under_way)
			break;
		/* write consecutive blocks at once */
		for (int i = 0, run; i < nblocks; i += run)
		{
			run = 1;
			while (i + run < nblocks &&
				   blocks[i + run] == blocks[i] + run &&
				   blocks[i + run] % RELSEG_SIZE != 0)
				run++;
			write_blocks(copy, blocks[i], run, data + (Size) i * BLCKSZ, direct);
		}
	} while (must_be_repeated(redo));
}

/*
 * Log and write the pages in copy->chunk.  If paced, in pieces: one is logged when
 * the last but one is flushed.  The commit of another session waits for the flush of
 * all WAL before its own, so there should be little unflushed WAL of ours, but some,
 * so that the disk has work while we log.  A piece is the whole chunk while no other
 * session writes; else as much as is flushed in PIECE_US.
 */
static void
write_chunk(FileCopy *copy, const BlockNumber *blocks, int nblocks, bool direct)
{
	bool		hurry = copy->throttle->hurry;
	bool		paced = copy->settings->pacing && !hurry;
	FullTransactionId next_xid = ReadNextFullTransactionId();
	int			piece = nblocks;

	/* other sessions that write take transaction IDs */
	if (paced && !FullTransactionIdEquals(copy->next_xid, next_xid))
		piece = (int) Max(rint(PIECE_US / copy->flush_us / PIECE_UNIT), 2) * PIECE_UNIT;
	for (int i = 0; i < nblocks; i += piece)
	{
		if (paced)
			wait_for_flush(copy);
		log_and_write(copy, blocks + i, copy->chunk + (Size) i * BLCKSZ,
					  Min(piece, nblocks - i), direct, direct);
	}
	copy->next_xid = next_xid;
	/* the next chunk must not overwrite the pages under way */
	if (copy->under_way.nblocks > 0)
	{
		char	   *chunk = copy->chunk;

		copy->chunk = copy->other_chunk;
		copy->other_chunk = chunk;
	}
	start_write_back(copy, blocks, nblocks);
	if (!hurry)
		finish_segment(copy, ERROR);
}

/* Extend the new file with zeros to this number of blocks. */
void
file_copy_extend(FileCopy *copy, ForkNumber fork, BlockNumber nblocks)
{
	SMgrRelation smgr = smgropen(copy->to, INVALID_PROC_NUMBER);
	BlockNumber block = smgrnblocks(smgr, fork);

	Assert(copy->synced);
	if (block < nblocks)
		memset(copy->chunk, 0, BLCKSZ);
	for (; block < nblocks; block++)
		smgrextend(smgr, fork, block, copy->chunk, false);
}

/* Copy, directly, up to FILE_COPY_CHUNK consecutive blocks of a segment. */
void
file_copy_range(FileCopy *copy, BlockNumber first, BlockNumber nblocks)
{
	XLogRecPtr	lsn;
	BlockNumber blocks[FILE_COPY_CHUNK];
	bool		buffered[FILE_COPY_CHUNK];
	BlockNumber nbuffered = 0;
	BlockNumber nread = 0;
	instr_time	start;

	Assert(IsTransactionState() && !copy->synced && nblocks <= FILE_COPY_CHUNK);

	INSTR_TIME_SET_CURRENT(start);
	/* in this order, see "Reading past the buffers" */
	/* step: note-position */
	lsn = GetXLogInsertRecPtr();
	for (BlockNumber i = 0; i < nblocks; i++)
	{
		blocks[i] = first + i;
		/* step: lookup-buffer */
		buffered[i] = file_has_buffer(&copy->from, first + i);
		nbuffered += buffered[i];
	}
	/* a damaged page that is tolerated is reported by the buffer manager */
	if (nbuffered < nblocks && !ignore_checksum_failure)
		/* step: read-file */
		nread = read_past_buffers(copy, first, nblocks);
	IM_POINT("copy-read");

	for (BlockNumber i = 0; i < nblocks; i++)
	{
		char	   *page = copy->chunk + (Size) i * BLCKSZ;

		if (buffered[i] || i >= nread || !im_page_is_verified(page, first + i) ||
			!page_is_of(copy->relam, page))
			read_block(copy, first + i, page);
	}
	throttle_read(copy->throttle, elapsed_us(start), (int64) nblocks * BLCKSZ);
	write_chunk(copy, blocks, nblocks, copy->direct && !copy->refused);
	wal_changes_seen(copy->changes, first, nblocks, lsn, NULL);
}

/*
 * Copy, directly, up to FILE_COPY_CHUNK members of a set from block "from" on.  Sets
 * *ncopied, and returns where to continue, or InvalidBlockNumber after the last.
 */
BlockNumber
file_copy_set(FileCopy *copy, const BlockSet *set, BlockNumber from, int *ncopied)
{
	BlockNumber blocks[FILE_COPY_CHUNK];
	BlockNumber first = from;
	int			nblocks = 0;
	XLogRecPtr	lsn;
	instr_time	start;

	Assert(IsTransactionState() && !copy->synced);
	/* step: finish-write */
	/* a block under way must not be logged again after a newer copy of it */
	finish_write(copy);
	lsn = GetXLogInsertRecPtr();
	INSTR_TIME_SET_CURRENT(start);
	while (nblocks < FILE_COPY_CHUNK)
	{
		from = block_set_next(set, from);
		if (from == InvalidBlockNumber)
			break;
		blocks[nblocks] = from;
		read_block(copy, from, copy->chunk + (Size) nblocks * BLCKSZ);
		nblocks++;
		from++;
	}
	throttle_read(copy->throttle, elapsed_us(start), (int64) nblocks * BLCKSZ);
	IM_POINT("copy-read-again");
	if (nblocks > 0)
		write_chunk(copy, blocks, nblocks, false);
	wal_changes_seen(copy->changes, first, from - first, lsn, set);
	*ncopied = nblocks;
	return from;
}

/* Make the segment of a block durable.  A failure is an ERROR, see sync_blocks(). */
static void
sync_segment(FileCopy *copy, BlockNumber block)
{
	job_check_cancel();
	open_segment(copy, block, false);
	if (FileSync(copy->file, WAIT_EVENT_DATA_FILE_SYNC) != 0)
		ereport(ERROR,
				(errcode_for_file_write(),
				 errmsg("could not fsync file \"%s\": %m", FilePathName(copy->file))));
}

/*
 * Make the blocks from "first" to below nblocks durable, and the directory entries: core
 * replays the creation of a file; but here a checkpoint may have come since.  A failure
 * is an ERROR, no PANIC as elsewhere: the file, not in use yet, is removed.
 */
static void
sync_blocks(FileCopy *copy, BlockNumber first, BlockNumber nblocks)
{
	char	   *directory = relation_fork_path(copy->to, MAIN_FORKNUM);

	finish_write(copy);
	for (BlockNumber block = first; block < nblocks; block += RELSEG_SIZE - block % RELSEG_SIZE)
		sync_segment(copy, block);
	finish_segment(copy, ERROR);
	/* twice: the directory may be as new as the file */
	for (int i = 0; i < 2; i++)
	{
		get_parent_directory(directory);
		(void) fsync_fname_ext(directory, true, false, ERROR);
	}
	pfree(directory);
}

/*
 * Make blocks that were written directly durable, the segment that begins with "first", from 0
 * on.  Return with which block the next segment begins, to be called for that; after the last one
 * InvalidBlockNumber.  From then on, write through buffers only.
 */
BlockNumber
file_copy_sync(FileCopy *copy, BlockNumber first)
{
	SMgrRelation smgr = smgropen(copy->to, INVALID_PROC_NUMBER);
	BlockNumber nblocks = Max(smgrnblocks(smgr, MAIN_FORKNUM), 1);

	Assert(!copy->synced && first < nblocks);
	if (IM_MUTATION("sync"))
		nblocks = first = 0;
	else if (nblocks - first > SYNCED_AT_ONCE)
	{
		/* of the last block that was copied; none is copied from here on */
		finish_write(copy);
		sync_segment(copy, first);
		return first + SYNCED_AT_ONCE;
	}
	/* step: sync */
	sync_blocks(copy, first, nblocks);
	copy->synced = true;
	read_back(copy, smgr);
	return InvalidBlockNumber;
}

/*
 * Make the blocks below nblocks durable, for a record that says so: the segments
 * from the first block on that was written since the last record.  From here on, they
 * are written only when the WAL of that is flushed: see src/README, "A copy that goes
 * on", why pg_rewind needs that.
 */
void
file_copy_record(FileCopy *copy, BlockNumber nblocks)
{
	/* step: record-sync */
	sync_blocks(copy, copy->durable, nblocks);
	copy->recorded = Max(copy->recorded, nblocks);
	copy->durable = nblocks;
}

/*
 * Write each block only when the WAL of that is flushed: in a copy that goes on, since a row
 * of the past, which another history still has, may have named more blocks than ours.
 */
void
file_copy_flush_first(FileCopy *copy)
{
	copy->recorded = InvalidBlockNumber;
}

/* Go back to writing directly: write the new file's buffers, and drop them. */
void
file_copy_unsync(FileCopy *copy)
{
	/* step: drop-buffers */
	file_drop_buffers(&copy->to, true);
	copy->synced = false;
}

/*
 * Prepare for copying a set of blocks, and block 0, through shared buffers: extend
 * the new file to nblocks, and read these blocks, old and new.
 */
void
file_copy_prepare(FileCopy *copy, BlockNumber nblocks, const BlockSet *set)
{
	file_copy_extend(copy, MAIN_FORKNUM, nblocks);
	for (BlockNumber block = 0;
		 block != InvalidBlockNumber && block < nblocks;
		 block = block_set_next(set, block + 1))
	{
		/* not by the ring, so that they stay */
		for (int i = 0; i < 2; i++)
			ReleaseBuffer(ReadBufferWithoutRelcache(i == 0 ? copy->from : copy->to, MAIN_FORKNUM,
													block, RBM_NORMAL, NULL, true));
	}
}

/*
 * Replace a page of the new file, logged, in its buffer, which the caller has
 * locked exclusively.  "standard" as for log_newpage_buffer().
 */
void
file_copy_replace_page(FileCopy *copy, Buffer buffer, const char *page, bool standard)
{
	Assert(copy->synced && BufferIsValid(buffer));
	START_CRIT_SECTION();
	memcpy(BufferGetPage(buffer), page, BLCKSZ);
	MarkBufferDirty(buffer);
	copy->last_record = log_newpage_buffer(buffer, standard);
	END_CRIT_SECTION();
	set_checksum(BufferGetPage(buffer), BufferGetBlockNumber(buffer));
}

/* Copy a block, as it is from now on, through shared buffers, always logged. */
void
file_copy_through_buffer(FileCopy *copy, BlockNumber block)
{
	PGIOAlignedBlock page;
	Buffer		buffer;
	bool		standard;
	instr_time	start;

	wal_changes_forget(copy->changes, block);
	file_copy_extend(copy, MAIN_FORKNUM, block + 1);
	INSTR_TIME_SET_CURRENT(start);
	read_block(copy, block, page.data);
	throttle_read(copy->throttle, elapsed_us(start), BLCKSZ);
	standard = leave_out_hole(copy, block, page.data) != 0;

	buffer = ReadBufferWithoutRelcache(copy->to, MAIN_FORKNUM, block,
									   RBM_ZERO_AND_LOCK, NULL, true);
	/* step: through-buffer */
	file_copy_replace_page(copy, buffer, page.data, standard);
	UnlockReleaseBuffer(buffer);
}

void
file_copy_flush_wal(FileCopy *copy)
{
	XLogFlush(copy->last_record);
}
