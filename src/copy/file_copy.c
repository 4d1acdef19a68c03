/*-------------------------------------------------------------------------
 *
 * file_copy.c
 *	  Copying blocks of one relation file to another while it is in use.
 *
 * Blocks are read from the buffer manager under share lock, through a small
 * ring of buffers; so every block copied was valid at some moment during the
 * call.
 *
 * Assumption: only we know the new file.  The caller knows which blocks of
 * the old one change after they were copied (see wal_changes.c), and has them
 * copied again.
 *
 * There are two ways to write the new file:
 *
 * Directly (file_copy_range(), file_copy_set()): bypassing shared buffers, in
 * writes of 1 MB, logged as full pages in records of our own, with checksums
 * set on the private copy.  file_copy_sync() makes it durable.
 *
 * Through shared buffers (file_copy_through_buffer()), for the last blocks:
 * needs no fsync by us, because the checkpointer does it.  A block in shared
 * buffers must not be written directly: the buffer would be stale.  So after
 * file_copy_sync() a direct write is an error, until file_copy_unsync() has
 * emptied the buffers.
 *
 * Tricky: log first, then write.  If a checkpoint starts in between, a base
 * backup can start after the record and read the file before the write; so
 * both are repeated.  (A crash does no harm: the file is made durable before
 * it is used.)
 *
 * Write-back: after each 1 MB, tell the kernel to start writing it, and wait
 * for the megabyte before.  Without the first, the fsync at the end stalls
 * all commits (a quarter of a second for 600 MB); without the second, the
 * start itself can block for seconds.  This makes a copy faster, too.
 *
 * Read-ahead: each 1 MB of the old file is first read with a plain read and
 * thrown away: storage with few operations per second delivers a megabyte at
 * the price of one block, however the kernel's read-ahead is set.
 *
 * Tricky: with wal_level = minimal, blocks are not logged, and keep their
 * LSN.  But a block with an LSN after the redo position of the copy's start
 * is logged: its next change might not write a full page image, because by
 * its LSN there is one already, and then a torn page could not be repaired.
 *
 * That bound never moves.  Recovery starts at the last completed checkpoint,
 * and restores a full page image whatever LSN the page in the file has.  So a
 * block that was logged once must be logged each time it is written again, or
 * recovery would replace the newer contents by the older.  It is, because a
 * page's LSN only grows, and was above the bound already.  A block never
 * logged by us has an LSN not above the bound or any later redo position, so
 * its first change after the swap writes a full page image, even if a
 * checkpoint was running at the copy's start and recovery starts before its
 * redo position.  Recovery needs no record of ours for the block: the file
 * was made durable with these contents.  (With full_page_writes off the same
 * holds except for torn pages.)
 *
 * No file descriptor outlives a call: the file can be dropped as soon as its
 * owner releases its lock.
 *
 * Locks: the caller keeps the old file from being truncated, replaced or
 * dropped, and is in a transaction, which needs neither xid nor snapshot.
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
#include "portability/instr_time.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/checksum.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#include "compat.h"
#include "copy/block_set.h"
#include "copy/file_copy.h"
#include "copy/wal_changes.h"
#include "test_points.h"

/* Pages in one WAL record, see log_newpages() */
#define PAGES_PER_RECORD	XLR_MAX_BLOCK_ID

/* Without sync_file_range(), sync after so many blocks */
#define SYNC_BLOCKS			(16 * FILE_COPY_CHUNK)

struct FileCopy
{
	RelFileLocator from;
	RelFileLocator to;
	ChangedBlocks *changes;		/* need not read our own records */
	BufferAccessStrategy ring;
	char	   *chunk;			/* FILE_COPY_CHUNK blocks, aligned for I/O */
	char	   *scratch;		/* the same, for read_ahead() */
	XLogRecPtr	last_record;	/* end of the last record that we wrote */
	XLogRecPtr	handed_over;	/* end of the last one handed over to the WAL
								 * writer */
	XLogRecPtr	redo_at_start;	/* see "wal_level = minimal" above */
	bool		synced;			/* no direct writes any more */
	int64		read_us;		/* see file_copy_reading() */
	int64		read_bytes;
	/* blocks of the last write-back, in order */
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

/*
 * Prepare to copy from one relation file to another, in the current memory
 * context.  *changes, which follows the old one, is told what to skip.
 */
FileCopy *
file_copy_create(const RelFileLocator *from, const RelFileLocator *to,
				 ChangedBlocks *changes)
{
	FileCopy   *copy = palloc0(sizeof(FileCopy));
	Size		size = (Size) FILE_COPY_CHUNK * BLCKSZ;

	copy->from = *from;
	copy->to = *to;
	copy->changes = changes;
	copy->redo_at_start = GetRedoRecPtr();
	copy->ring = GetAccessStrategy(BAS_BULKREAD);
	copy->chunk = (char *) TYPEALIGN(4096, palloc(size + 4096));
	copy->scratch = palloc(size);
	return copy;
}

/* Free the buffers' ring; the memory is freed with its context. */
void
file_copy_free(FileCopy *copy)
{
	if (copy == NULL || copy->ring == NULL)
		return;
	FreeAccessStrategy(copy->ring);
	copy->ring = NULL;
}

/*
 * Open the segment of a relation file that holds a block, as a transient
 * file.  Returns -1 with errno set if that fails.  *path is palloc'd.
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

/*
 * Read a range of the old file, bypassing shared buffers, and throw it away,
 * so that the kernel has it cached.  Errors are left to the real read.
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

static void
read_block(FileCopy *copy, ForkNumber fork, BlockNumber block, char *page)
{
	Buffer		buffer;

	/* as core does: the free space map corrects itself */
	buffer = ReadBufferWithoutRelcache(copy->from, fork, block,
									   fork == FSM_FORKNUM ? RBM_ZERO_ON_ERROR : RBM_NORMAL,
									   copy->ring, true);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(page, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
}

/* Count blocks of the old file as read since "start". */
static void
count_reading(FileCopy *copy, instr_time start, int nblocks)
{
	instr_time	took;

	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, start);
	copy->read_us += INSTR_TIME_GET_MICROSEC(took);
	copy->read_bytes += (int64) nblocks * BLCKSZ;
}

/* Return how long reading has taken since the last call, and its bytes. */
int64
file_copy_reading(FileCopy *copy, int64 *bytes)
{
	int64		us = copy->read_us;

	*bytes = copy->read_bytes;
	copy->read_us = copy->read_bytes = 0;
	return us;
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
 * Write consecutive blocks of one segment to the new file.  The caller goes
 * through the file in order, so that a segment is begun only when those
 * before it are full, as md.c requires, and calls close_segment() at the end.
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

/*
 * Log the pages in copy->chunk if needed, and set their checksums, even if
 * checksums are off.  That does no harm; and if they are switched on during
 * the copy (PostgreSQL 19), nothing else sets those of the free space map,
 * which is copied once.
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
			/* at most one record, so that its bounds are known */
			log_newpages(&copy->to, fork, npages, numbers, pages, false);
			copy->last_record = XactLastRecEnd;
			wal_changes_skip(copy->changes, ProcLastRecPtr, XactLastRecEnd);
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

		/* write consecutive blocks at once */
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

/* Extend the new file with zeros to this number of blocks. */
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
			 * Do not ignore an error: the kernel reports it only once, and a
			 * later fsync would succeed.
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
 * Have the kernel start to write these blocks of the new file's main fork to
 * disk, with all blocks between them in a segment, and wait for those of the
 * last call.
 */
static void
start_write_back(FileCopy *copy, const BlockNumber *blocks, int nblocks)
{
	/* as core does: then the user does not need anything to be on disk */
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
 * Copy up to FILE_COPY_CHUNK consecutive blocks of one segment, writing
 * directly.  Returns the insert position from before the first one was read:
 * changes logged before it are in the copy.
 */
XLogRecPtr
file_copy_range(FileCopy *copy, ForkNumber fork,
				BlockNumber first, BlockNumber nblocks)
{
	XLogRecPtr	lsn;
	BlockNumber blocks[FILE_COPY_CHUNK];
	instr_time	start;

	Assert(nblocks <= FILE_COPY_CHUNK);

	INSTR_TIME_SET_CURRENT(start);
	read_ahead(copy, fork, first, nblocks);

	lsn = GetXLogInsertRecPtr();
	for (BlockNumber i = 0; i < nblocks; i++)
	{
		blocks[i] = first + i;
		read_block(copy, fork, first + i, copy->chunk + (Size) i * BLCKSZ);
	}
	count_reading(copy, start, nblocks);
	log_and_write(copy, fork, blocks, nblocks);
	if (fork == MAIN_FORKNUM)
		start_write_back(copy, blocks, nblocks);
	return lsn;
}

/*
 * Copy the next blocks of a set, up to FILE_COPY_CHUNK of them from block
 * "from" on, writing directly.  Sets *ncopied, and returns where to continue,
 * or InvalidBlockNumber after the last one.
 */
BlockNumber
file_copy_set(FileCopy *copy, const BlockSet *set, BlockNumber from, int *ncopied)
{
	BlockNumber blocks[FILE_COPY_CHUNK];
	int			nblocks = 0;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	while (nblocks < FILE_COPY_CHUNK &&
		   (from = block_set_next(set, from)) != InvalidBlockNumber)
	{
		blocks[nblocks] = from;
		read_block(copy, MAIN_FORKNUM, from, copy->chunk + (Size) nblocks * BLCKSZ);
		nblocks++;
		from++;
	}
	count_reading(copy, start, nblocks);
	*ncopied = nblocks;
	if (nblocks == 0)
		return InvalidBlockNumber;

	log_and_write(copy, MAIN_FORKNUM, blocks, nblocks);
	start_write_back(copy, blocks, nblocks);
	return from;
}

/*
 * Make what was written directly durable, with the files' directory entries.
 * From here on, write only with file_copy_through_buffer().
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
	 * Core need not sync the entry of a new file, because a crash replays the
	 * file's creation; but here a checkpoint may have come since, and then
	 * nothing is replayed.
	 */
	directory = relation_fork_path(copy->to, MAIN_FORKNUM);
	get_parent_directory(directory);
	fsync_fname(directory, true);
	/* the directory may be as new as the file */
	get_parent_directory(directory);
	fsync_fname(directory, true);
	pfree(directory);

	copy->synced = true;
}

/*
 * Go back to writing directly: write the new file's buffers, after any write
 * of them by the checkpointer, and drop them.  No other process can read them
 * in again, because only we know the file.
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
 * Prepare for copying a set of blocks, and block 0, through shared buffers:
 * extend the new file to nblocks, and read these blocks, old and new.  Copies
 * nothing, and logs nothing.
 */
void
file_copy_prepare(FileCopy *copy, BlockNumber nblocks, const BlockSet *set)
{
	extend_file(copy, nblocks);
	for (BlockNumber block = 0;
		 block != InvalidBlockNumber && block < nblocks;
		 block = block_set_next(set, block + 1))
	{
		/* not by the ring, so that they stay */
		ReleaseBuffer(ReadBufferWithoutRelcache(copy->from, MAIN_FORKNUM, block,
												RBM_NORMAL, NULL, true));
		ReleaseBuffer(ReadBufferWithoutRelcache(copy->to, MAIN_FORKNUM, block,
												RBM_NORMAL, NULL, true));
	}
}

/*
 * Copy one block through shared buffers, always logged.  Extends the new file
 * first if needed, so that a later checkpoint syncs it.  Call
 * file_copy_sync() before.
 */
void
file_copy_through_buffer(FileCopy *copy, BlockNumber block)
{
	PGAlignedBlock page;
	Buffer		buffer;
	instr_time	start;

	extend_file(copy, block + 1);
	INSTR_TIME_SET_CURRENT(start);
	read_block(copy, MAIN_FORKNUM, block, page.data);
	count_reading(copy, start, 1);

	buffer = ReadBufferWithoutRelcache(copy->to, MAIN_FORKNUM, block,
									   RBM_ZERO_AND_LOCK, NULL, true);
	START_CRIT_SECTION();
	memcpy(BufferGetPage(buffer), page.data, BLCKSZ);
	MarkBufferDirty(buffer);
	copy->last_record = log_newpage_buffer(buffer, false);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

/* Flush all WAL that we have written. */
void
file_copy_flush_wal(FileCopy *copy)
{
	if (!XLogRecPtrIsInvalid(copy->last_record))
		XLogFlush(copy->last_record);
	copy->last_record = InvalidXLogRecPtr;
	copy->handed_over = InvalidXLogRecPtr;
}

/*
 * Have the WAL writer flush what we have logged since the last call; with
 * "wait", also flush what was logged before that, if need be here.  To be
 * called after each megabyte: the disk then works while we read the next one,
 * and with "wait" commits of other sessions never wait for more than two
 * megabytes of ours.
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
