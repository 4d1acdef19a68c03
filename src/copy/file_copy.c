/*-------------------------------------------------------------------------
 *
 * file_copy.c
 *	  Copying blocks of one relation file to another while it is in use.
 *
 * What is copied is what the buffer manager gives under share lock, through a
 * small ring of buffers, so every block is one that was valid at some moment
 * between the call and the return.
 *
 * Assumption: nobody but us knows the new file, and the caller knows which blocks
 * of the old one change after they were copied (see changed_blocks.c), and has
 * them copied again.
 *
 * Two ways to write the new file:
 *
 * Directly (file_copy_range(), file_copy_set()): past the shared buffers, 1 MB
 * a write, logged as full pages in records of our own, with checksums set on
 * the private copy.  file_copy_sync() makes it durable.
 *
 * Through shared buffers (file_copy_through_buffer()), for the last blocks:
 * needs no fsync by us, because the checkpointer knows of it.  A block that
 * is in shared buffers must not be written directly: the buffer would be stale.
 * file_copy_sync() is the border: no direct write after it, which is checked,
 * unless file_copy_unsync() has emptied the buffers.
 *
 * Tricky points, beside that border:
 *
 * Log, then write: if a checkpoint starts between the two, a base backup can
 * begin behind the record and have read the file before the write; so the same
 * is done once more.  (A crash does no harm: the file is made durable before
 * anybody uses it.)
 *
 * Write-back: after each 1 MB the kernel is told to start writing it, and the
 * megabyte before must be on its way to the disk by then.  Without the first
 * the fsync at the end stalls everyone's commits for the time it takes to
 * write all of the file (a quarter of a second for 600 MB), without the second
 * the start itself can block for seconds.  It makes a copy faster, too.
 *
 * Read-ahead: each 1 MB of the old file is read with a plain read first, and
 * that is thrown away: storage with few operations per second delivers a
 * megabyte at the price of one block, whatever the kernel's read-ahead.
 *
 * wal_level = minimal: the blocks are not logged, and keep the LSN they have.
 * One with an LSN after the redo position of the copy's start is logged all the
 * same: its next change might not write a full page image (the LSN says that
 * there is one already), and a torn page could then not be repaired.
 *
 * The bound is that of the start, and never moves.  Redo positions move when a
 * checkpoint begins, but recovery starts at the last one that came to its end,
 * and restores a full page image whatever the LSN in the file.  So a block that
 * was logged once has to be logged each time it is written again, or recovery
 * would put the older contents over the newer; and that is so, because a page's
 * LSN only grows, and was above the bound then.  What was never logged by us has
 * an LSN not above the bound or any later redo position, and so its first
 * change after the swap writes a full page image: also if a checkpoint was under
 * way at the copy's start, and recovery begins before its redo position.  That
 * it finds no record of ours for the block is right: the file was made durable
 * with these contents.  (With full_page_writes off the same holds but for torn
 * pages, which is what that setting says.)
 *
 * File descriptors live no longer than a call: the file can be dropped as soon
 * as its owner lets go of his lock.
 *
 * Locks: the caller keeps the old file from being truncated, replaced or
 * dropped; he is in a transaction (which needs neither xid nor snapshot).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"
#include "storage/fd.h"
#include "storage/smgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "copy/block_set.h"
#include "copy/file_copy.h"
#include "test_points.h"

/* Pages in one WAL record, see log_newpages() */
#define PAGES_PER_RECORD	XLR_MAX_BLOCK_ID

/* Where the kernel can't be told to write a range back, sync after so much */
#define SYNC_BLOCKS			(16 * FILE_COPY_CHUNK)

struct FileCopy
{
	RelFileLocator from;
	RelFileLocator to;
	FileCopyRecord on_record;
	void	   *arg;
	BufferAccessStrategy ring;
	char	   *chunk;			/* FILE_COPY_CHUNK blocks, aligned for I/O */
	char	   *scratch;		/* the same, for what is thrown away */
	XLogRecPtr	last_record;	/* end of the last record that we wrote */
	XLogRecPtr	handed_over;	/* and of the last one but a megabyte */
	XLogRecPtr	redo_at_start;	/* see "wal_level = minimal" above */
	bool		synced;
	/* the blocks whose write-back was started last, in order */
	BlockNumber window[FILE_COPY_CHUNK];
	int			window_blocks;
	BlockNumber unsynced;		/* blocks, where there is no write-back */
};

/* The segment of the new file that is being written; path NULL = none. */
typedef struct OpenSegment
{
	BlockNumber number;
	int			fd;
	char	   *path;
} OpenSegment;

static void read_ahead(FileCopy *copy, ForkNumber fork,
					   BlockNumber first, BlockNumber nblocks);
static void read_block(FileCopy *copy, ForkNumber fork, BlockNumber block, char *page);
static void log_and_write(FileCopy *copy, ForkNumber fork,
						  const BlockNumber *blocks, int nblocks);
static void log_blocks(FileCopy *copy, ForkNumber fork, const BlockNumber *blocks,
					   int nblocks);
static void write_blocks(FileCopy *copy, OpenSegment *segment, ForkNumber fork,
						 BlockNumber first, BlockNumber nblocks, const char *data);
static void extend_file(FileCopy *copy, BlockNumber nblocks);
static void close_segment(OpenSegment *segment);
static void start_write_back(FileCopy *copy, const BlockNumber *blocks, int nblocks);
static int	open_segment(const RelFileLocator *locator, ForkNumber fork,
						 BlockNumber block, int flags, char **path);

/*
 * Prepare to copy from one relation file to another, in the current memory
 * context.  on_record is called for each WAL record that the copy writes.
 */
FileCopy *
file_copy_create(const RelFileLocator *from, const RelFileLocator *to,
				 FileCopyRecord on_record, void *arg)
{
	FileCopy   *copy = palloc0(sizeof(FileCopy));
	Size		size = (Size) FILE_COPY_CHUNK * BLCKSZ;

	copy->from = *from;
	copy->to = *to;
	copy->on_record = on_record;
	copy->arg = arg;
	copy->redo_at_start = GetRedoRecPtr();
	copy->ring = GetAccessStrategy(BAS_BULKREAD);
	copy->chunk = (char *) TYPEALIGN(4096, palloc(size + 4096));
	copy->scratch = palloc(size);
	return copy;
}

/* Forget the buffers' ring; the memory goes with its context. */
void
file_copy_free(FileCopy *copy)
{
	if (copy && copy->ring)
		FreeAccessStrategy(copy->ring);
	if (copy)
		copy->ring = NULL;
}

/*
 * Copy up to FILE_COPY_CHUNK blocks that follow each other and are in one
 * segment, writing directly.  Returns the insert position from before the
 * first one was read: changes logged before it are in the copy.
 */
XLogRecPtr
file_copy_range(FileCopy *copy, ForkNumber fork,
				BlockNumber first, BlockNumber nblocks)
{
	XLogRecPtr	lsn;
	BlockNumber blocks[FILE_COPY_CHUNK];

	Assert(nblocks <= FILE_COPY_CHUNK);

	read_ahead(copy, fork, first, nblocks);

	lsn = GetXLogInsertRecPtr();
	for (BlockNumber i = 0; i < nblocks; i++)
	{
		blocks[i] = first + i;
		read_block(copy, fork, first + i, copy->chunk + (Size) i * BLCKSZ);
	}
	log_and_write(copy, fork, blocks, nblocks);
	if (fork == MAIN_FORKNUM)
		start_write_back(copy, blocks, nblocks);
	return lsn;
}

/*
 * Copy the next blocks of a set, up to FILE_COPY_CHUNK of them from block
 * "from" on, writing directly.  Sets how many these were, and returns where to
 * go on, or InvalidBlockNumber after the last one.
 */
BlockNumber
file_copy_set(FileCopy *copy, const BlockSet *set, BlockNumber from, int *ncopied)
{
	BlockNumber blocks[FILE_COPY_CHUNK];
	int			nblocks = 0;

	while (nblocks < FILE_COPY_CHUNK &&
		   (from = block_set_next(set, from)) != InvalidBlockNumber)
	{
		blocks[nblocks] = from;
		read_block(copy, MAIN_FORKNUM, from, copy->chunk + (Size) nblocks * BLCKSZ);
		nblocks++;
		from++;
	}
	*ncopied = nblocks;
	if (nblocks == 0)
		return InvalidBlockNumber;

	log_and_write(copy, MAIN_FORKNUM, blocks, nblocks);
	start_write_back(copy, blocks, nblocks);
	return from;
}

/*
 * Make what was written directly durable, also the files' directory entries.
 * From here on file_copy_through_buffer() is the only way to write.
 */
void
file_copy_sync(FileCopy *copy)
{
	SMgrRelation smgr = smgropen(copy->to, INVALID_PROC_NUMBER);
	char	   *directory;

	smgrimmedsync(smgr, MAIN_FORKNUM);
	if (smgrexists(smgr, FSM_FORKNUM))
		smgrimmedsync(smgr, FSM_FORKNUM);

	/*
	 * Core leaves the entry of a new file to the file system's good will (a
	 * crash replays the file's creation); but here a checkpoint may have
	 * passed since, and then nothing is replayed.
	 */
	directory = relation_fork_path(copy->to, MAIN_FORKNUM);
	get_parent_directory(directory);
	fsync_fname(directory, true);
	/* this directory, too, may be as new as the file */
	get_parent_directory(directory);
	fsync_fname(directory, true);
	pfree(directory);

	copy->synced = true;
}

/*
 * Go back to writing directly: what shared buffers have of the new file is written
 * and forgotten.  Nobody else can bring it back, for nobody else knows the file; a
 * write of the checkpointer that is under way is waited for.
 */
void
file_copy_unsync(FileCopy *copy)
{
	SMgrRelation smgr = smgropen(copy->to, INVALID_PROC_NUMBER);

	FlushRelationsAllBuffers(&smgr, 1);
	DropRelationsAllBuffers(&smgr, 1);
	copy->synced = false;
}

/*
 * Make the copying of some blocks, and of block 0, through shared buffers
 * quick: have the new file as long as it is to be, and the blocks, old and new,
 * in shared buffers.  Copies nothing, and logs nothing.
 */
void
file_copy_prepare(FileCopy *copy, BlockNumber nblocks, const BlockSet *set)
{
	extend_file(copy, nblocks);
	for (BlockNumber block = 0;
		 block != InvalidBlockNumber && block < nblocks;
		 block = block_set_next(set, block + 1))
	{
		/* not by the ring: they are to stay */
		ReleaseBuffer(ReadBufferWithoutRelcache(copy->from, MAIN_FORKNUM, block,
												RBM_NORMAL, NULL, true));
		ReleaseBuffer(ReadBufferWithoutRelcache(copy->to, MAIN_FORKNUM, block,
												RBM_NORMAL, NULL, true));
	}
}

/*
 * Copy one block through shared buffers, always logged.  The new file is
 * extended as far as needed first, so that a later checkpoint syncs it.
 */
void
file_copy_through_buffer(FileCopy *copy, BlockNumber block)
{
	PGAlignedBlock page;
	Buffer		buffer;

	extend_file(copy, block + 1);
	read_block(copy, MAIN_FORKNUM, block, page.data);

	buffer = ReadBufferWithoutRelcache(copy->to, MAIN_FORKNUM, block,
									   RBM_ZERO_AND_LOCK, NULL, true);
	START_CRIT_SECTION();
	memcpy(BufferGetPage(buffer), page.data, BLCKSZ);
	MarkBufferDirty(buffer);
	copy->last_record = log_newpage_buffer(buffer, false);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

/* Extend the new file with zeros to so many blocks, if it is shorter. */
static void
extend_file(FileCopy *copy, BlockNumber nblocks)
{
	SMgrRelation smgr = smgropen(copy->to, INVALID_PROC_NUMBER);
	BlockNumber block = smgrnblocks(smgr, MAIN_FORKNUM);

	Assert(copy->synced);

	if (block < nblocks)
		memset(copy->chunk, 0, BLCKSZ);
	for (; block < nblocks; block++)
		smgrextend(smgr, MAIN_FORKNUM, block, copy->chunk, false);
}

/*
 * Flush our own WAL, all of it.
 */
void
file_copy_flush_wal(FileCopy *copy)
{
	if (!XLogRecPtrIsInvalid(copy->last_record))
		XLogFlush(copy->last_record);
	copy->last_record = InvalidXLogRecPtr;
	copy->handed_over = InvalidXLogRecPtr;
}

/*
 * Have the WAL writer flush what we have logged since the last call, and, with
 * "wait", wait until it has flushed what was logged before that.  Done after
 * each megabyte: the disk then works while we read the next one, and with
 * "wait" the clients' commits never have to wait for more than two megabytes
 * of ours.  If the WAL writer does not come to it, we flush it ourselves.
 */
void
file_copy_hand_over_wal(FileCopy *copy, bool wait)
{
	if (wait && !XLogRecPtrIsInvalid(copy->handed_over))
		XLogFlush(copy->handed_over);
	if (!XLogRecPtrIsInvalid(copy->last_record))
		XLogSetAsyncXactLSN(copy->last_record);
	copy->handed_over = copy->last_record;
}

/*
 * Read a range of the old file past the shared buffers and throw it away, so
 * that the kernel has it when the buffers ask.  Only a hint: errors are left
 * for the real read to report.
 */
static void
read_ahead(FileCopy *copy, ForkNumber fork, BlockNumber first, BlockNumber nblocks)
{
	int			fd = open_segment(&copy->from, fork, first, O_RDONLY | PG_BINARY, NULL);
	ssize_t		nread;

	if (fd < 0)
		return;
	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_PREFETCH);
	nread = pg_pread(fd, copy->scratch, (size_t) nblocks * BLCKSZ,
					 (off_t) (first % RELSEG_SIZE) * BLCKSZ);
	pgstat_report_wait_end();
	(void) nread;
	CloseTransientFile(fd);
}

/* Read one block of the old file as it is now. */
static void
read_block(FileCopy *copy, ForkNumber fork, BlockNumber block, char *page)
{
	Buffer		buffer;

	/*
	 * A page of the free space map may be torn or missing, and corrects
	 * itself: as core reads it.
	 */
	buffer = ReadBufferWithoutRelcache(copy->from, fork, block,
									   fork == FSM_FORKNUM ? RBM_ZERO_ON_ERROR : RBM_NORMAL,
									   copy->ring, true);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
}

/* Log the pages in copy->chunk, and write them to their places. */
static void
log_and_write(FileCopy *copy, ForkNumber fork, const BlockNumber *blocks,
			  int nblocks)
{
	OpenSegment segment = {0};
	XLogRecPtr	redo;

	do
	{
		redo = GetRedoRecPtr();
		log_blocks(copy, fork, blocks, nblocks);
		IM_POINT("copy-logged");

		/* neighbours at once */
		for (int i = 0, run; i < nblocks; i += run)
		{
			run = 1;
			while (i + run < nblocks &&
				   blocks[i + run] == blocks[i] + run &&
				   blocks[i + run] % RELSEG_SIZE != 0)
				run++;
			write_blocks(copy, &segment, fork, blocks[i], run,
						 copy->chunk + (Size) i * BLCKSZ);
		}
	} while (XLogIsNeeded() && GetRedoRecPtr() != redo && !IM_MUTATION("log-once"));
	close_segment(&segment);
}

/*
 * Log the pages in copy->chunk if they have to be, and set their checksums: also
 * where there are none.  That does no harm, and if they are switched on meanwhile
 * (PostgreSQL 19), nobody else will set those of the free space map, which is
 * copied once.
 */
static void
log_blocks(FileCopy *copy, ForkNumber fork, const BlockNumber *blocks, int nblocks)
{
	char	   *pages[PAGES_PER_RECORD];
	BlockNumber numbers[PAGES_PER_RECORD];
	bool		log_all = XLogIsNeeded();
	int			npages = 0;

	for (int i = 0; i < nblocks; i++)
	{
		char	   *page = copy->chunk + (Size) i * BLCKSZ;

		if (log_all || PageGetLSN((Page) page) > copy->redo_at_start)
		{
			pages[npages] = page;
			numbers[npages] = blocks[i];
			npages++;
		}
		if (npages == PAGES_PER_RECORD || (i == nblocks - 1 && npages > 0))
		{
			/* not more than one record, so its bounds are known */
			log_newpages(&copy->to, fork, npages, numbers, pages, false);
			copy->last_record = XactLastRecEnd;
			if (copy->on_record)
				copy->on_record(copy->arg, ProcLastRecPtr, XactLastRecEnd);
			npages = 0;
			IM_POINT("copy-logging");
		}
	}

	for (int i = 0; i < nblocks; i++)
	{
		char	   *page = copy->chunk + (Size) i * BLCKSZ;

		if (!PageIsNew((Page) page))
			((PageHeader) page)->pd_checksum = pg_checksum_page(page, blocks[i]);
	}
}

static void
close_segment(OpenSegment *segment)
{
	if (segment->path == NULL)
		return;
	CloseTransientFile(segment->fd);
	pfree(segment->path);
	segment->path = NULL;
}

/*
 * Write blocks that follow each other, within one segment, at their place in
 * the new file.  The caller goes through the file in order, so that a segment
 * is only begun when those before it are full, as md.c wants it; he calls
 * close_segment() at the end.
 */
static void
write_blocks(FileCopy *copy, OpenSegment *segment, ForkNumber fork,
			 BlockNumber first, BlockNumber nblocks, const char *data)
{
	off_t		offset = (off_t) (first % RELSEG_SIZE) * BLCKSZ;
	size_t		size = (size_t) nblocks * BLCKSZ;

	if (copy->synced)
		elog(ERROR, "direct write to a file whose blocks are in shared buffers");

	if (segment->path != NULL && segment->number != first / RELSEG_SIZE)
		close_segment(segment);
	if (segment->path == NULL)
	{
		/* the first segment exists since the file's creation */
		segment->number = first / RELSEG_SIZE;
		segment->fd = open_segment(&copy->to, fork, first,
								   O_RDWR | PG_BINARY | (first >= RELSEG_SIZE ? O_CREAT : 0),
								   &segment->path);
		if (segment->fd < 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", segment->path)));
	}

	while (size > 0)
	{
		ssize_t		written;

		errno = 0;
		pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_WRITE);
		written = pg_pwrite(segment->fd, data, size, offset);
		pgstat_report_wait_end();
		if (written <= 0)
		{
			bool		full;

			if (errno == EINTR)
				continue;
			/* if write didn't set errno, assume problem is no disk space */
			if (errno == 0)
				errno = ENOSPC;
			full = (errno == ENOSPC);
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not write file \"%s\": %m", segment->path),
					 full ? errhint("Check free disk space.") : 0));
		}
		data += written;
		size -= written;
		offset += written;
	}
}

#if defined(HAVE_SYNC_FILE_RANGE)
/* Call sync_file_range() for each segment that has some of these blocks. */
static void
write_back(FileCopy *copy, const BlockNumber *blocks, int nblocks, unsigned int flags)
{
	for (int i = 0, next; i < nblocks; i = next)
	{
		char	   *path;
		int			fd;

		for (next = i + 1; next < nblocks &&
			 blocks[next] / RELSEG_SIZE == blocks[i] / RELSEG_SIZE; next++)
			;
		fd = open_segment(&copy->to, MAIN_FORKNUM, blocks[i],
						  O_RDWR | PG_BINARY, &path);
		if (fd >= 0)
		{
			int			rc;

			/*
			 * An error must not be passed over: the kernel reports it once,
			 * and a later fsync would find nothing wrong.
			 */
			pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_FLUSH);
			rc = sync_file_range(fd, (off_t) (blocks[i] % RELSEG_SIZE) * BLCKSZ,
								 (off_t) (blocks[next - 1] + 1 - blocks[i]) * BLCKSZ,
								 flags);
			pgstat_report_wait_end();
			if (rc < 0 && errno != ENOSYS)
				ereport(ERROR,
						(errcode_for_file_access(),
						 errmsg("could not flush file \"%s\": %m", path)));
			CloseTransientFile(fd);
		}
		pfree(path);
	}
}
#endif

/*
 * Have the kernel start to write these blocks of the new file's main fork to disk
 * (and what is between them in a segment), and wait for those before.
 */
static void
start_write_back(FileCopy *copy, const BlockNumber *blocks, int nblocks)
{
	/* as core does: then nothing is to be on disk at any time */
	if (!enableFsync)
		return;

#if defined(HAVE_SYNC_FILE_RANGE)
	write_back(copy, blocks, nblocks, SYNC_FILE_RANGE_WRITE);
	write_back(copy, copy->window, copy->window_blocks,
			   SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
			   SYNC_FILE_RANGE_WAIT_AFTER);
	memcpy(copy->window, blocks, nblocks * sizeof(BlockNumber));
	copy->window_blocks = nblocks;
#else
	{
		SMgrRelation smgr = smgropen(copy->to, INVALID_PROC_NUMBER);
		BlockNumber count = blocks[nblocks - 1] + 1 - blocks[0];

		smgrwriteback(smgr, MAIN_FORKNUM, blocks[0], count);
		copy->unsynced += count;
		if (copy->unsynced >= SYNC_BLOCKS)
		{
			smgrimmedsync(smgr, MAIN_FORKNUM);
			copy->unsynced = 0;
		}
	}
#endif
}

/*
 * Open the segment of a relation file that holds a block, as a transient file.
 * Returns -1 with errno set if that fails.  *path is palloc'd.
 */
static int
open_segment(const RelFileLocator *locator, ForkNumber fork, BlockNumber block,
			 int flags, char **path)
{
	char	   *base = relation_fork_path(*locator, fork);
	char	   *name = base;
	int			fd;

	if (block >= RELSEG_SIZE)
	{
		name = psprintf("%s.%u", base, block / (BlockNumber) RELSEG_SIZE);
		pfree(base);
	}
	fd = OpenTransientFile(name, flags);
	if (path)
		*path = name;
	else
	{
		int			save_errno = errno;

		pfree(name);
		errno = save_errno;
	}
	return fd;
}
