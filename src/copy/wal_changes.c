/*-------------------------------------------------------------------------
 *
 * wal_changes.c
 *	  Which blocks of one relation file have changed, as the WAL tells.
 *
 * Reads the WAL, and collects the blocks of the main fork of one relation file that
 * its records name.  Changes that are not in the WAL (hint bits, the metapage of
 * SP-GiST, zero pages of a relation extension) are the caller's to know.  Why no other
 * is missed is in src/README, "Protocol of a copy".
 *
 * A change is forgotten when the caller copies the block again: its record
 * starts before the position that is noted for the copy.  A record that is read
 * later, but starts before that position, is passed over.  A round copies a list of
 * blocks, with others between them, which must not count as seen: so the list
 * itself is remembered until the next read.
 *
 * Tricky: the target of a read is the end of a record of our own, written and
 * flushed when the read starts.  Under load, reading "until the end of WAL"
 * would never end, and the raw insert position can be behind a page header,
 * where no record ends.
 *
 * Tricky: checkpoints remove WAL that is not read yet, with small segments
 * within a megabyte.  So we keep open the segment in which the last read has
 * ended and those after it, including future ones, which wal_ahead() has made
 * under their names: WAL_AHEAD bytes, whatever the size of segments.  A recycled
 * segment is overwritten only when the WAL gets there; then its page addresses
 * do not fit.  If a segment is gone all the same, the result is
 * CHANGES_WAL_GONE, and nothing collected may be relied upon.
 *
 * Why not a replication slot: for a process that is stopped, or hangs in a
 * write, it would keep WAL until pg_wal is full and the server is down; or, where
 * max_slot_wal_keep_size limits it, the checkpointer terminates its owner.  To start
 * a copy again is the lesser evil.  A slot also needs settings that allow it, takes
 * one from others, and appears in their monitoring.
 *
 * wal_ahead() makes the next WAL segments before any process has to wait for
 * them: else the process that writes the WAL fills 16 MB with zeros and flushes
 * them, and all that commit in that time wait for it.  A full disk is an ERROR
 * here, which ends the move; while the WAL is written out, it would be a PANIC.
 *
 * Past the page cache: core writes the WAL through it, and that of a copy is
 * about as large as the relation.  Where the copy is to leave the cache alone, a
 * segment that has been read is given up there, as XLogFileClose() does with
 * wal_level = minimal; but not while the archiver or a walsender still has to
 * read it, nor under the exclusive lock, which would be held for longer.
 *
 * No transaction is needed.
 *
 * proof/copy.pml is a model of this protocol.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "catalog/pg_control.h"
#include "catalog/storage_xlog.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "replication/walsender_private.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "copy/block_set.h"
#include "copy/wal_changes.h"
#include "file_system.h"
#include "job.h"
#include "test_points.h"
#include "wait/wait.h"

/* See wal_changes_read_is_due(). */
#define LEAST_UNREAD		(1024 * 1024)
#define READ_INTERVAL_MS	20

/* Segments open at the same time: with 1 MB each, twice WAL_AHEAD */
#define MOST_HELD			32

/* Of a segment, give up so much at a time in the page cache */
#define GIVE_UP_BYTES		(1024 * 1024)

/* See wal_changes_unread_us(): bytes per microsecond */
#define FIRST_GUESS_OF_SPEED	100
#define SLOWEST_SPEED			5
#define ENOUGH_TO_MEASURE		(256 * 1024)

typedef struct SeenRange
{
	BlockNumber first;
	BlockNumber nblocks;
	XLogRecPtr	lsn;
	const BlockSet *only;		/* of these, its members; NULL = all */
} SeenRange;

typedef struct OwnRecord
{
	XLogRecPtr	start;
	XLogRecPtr	end;
} OwnRecord;

typedef struct HeldSegment
{
	XLogSegNo	segno;
	int			fd;				/* 0 = none */
} HeldSegment;

struct ChangedBlocks
{
	MemoryContext cxt;
	MemoryContextCallback on_reset;
	RelFileLocator locator;
	bool		direct;			/* leave the page cache alone */
	bool		locked;			/* ... but others may be waiting for us */
	XLogReaderState *reader;
	HeldSegment held[MOST_HELD];	/* segment n at n % MOST_HELD */
	BlockSet   *set;
	StringInfoData seen;		/* of SeenRange, since the last read */
	StringInfoData own;			/* of OwnRecord, the same, in WAL order */
	double		read_at;		/* the last time, by clock_seconds() */
	double		speed;			/* of reading, bytes per microsecond */
};

static HeldSegment *
place_of(ChangedBlocks *changes, XLogSegNo segno)
{
	return &changes->held[segno % MOST_HELD];
}

/* Return whether the reader has this segment open, or we hold it for it. */
static bool
segment_is_open(const XLogReaderState *reader, XLogSegNo segno)
{
	HeldSegment *held = place_of((ChangedBlocks *) reader->private_data, segno);

	return (held->fd != 0 && held->segno == segno) ||
		(reader->seg.ws_file >= 0 && reader->seg.ws_segno == segno);
}

/* Return whether the archiver, or a walsender, will read this segment. */
static bool
others_will_read(XLogSegNo segno)
{
	XLogRecPtr	end;
	WalSnd	   *walsnd;

	if (XLogArchivingActive())
		return true;
	XLogSegNoOffsetToRecPtr(segno + 1, 0, wal_segment_size, end);
	for (int i = 0; (walsnd = walsender_next(&i)) != NULL;)
	{
		bool		will_read;

		SpinLockAcquire(&walsnd->mutex);
		will_read = walsnd->pid != 0 && walsnd->sentPtr < end;
		SpinLockRelease(&walsnd->mutex);
		if (will_read)
			return true;
	}
	return false;
}

/*
 * Close a segment, and see "Past the page cache" above.  In pieces: commits would
 * wait for this processor while the kernel gives up all of it at once, for up to
 * 2 ms.  Larger units of the kernel remain, and are given up last.
 */
static void
close_wal_file(const ChangedBlocks *changes, int fd, XLogSegNo segno)
{
	if (changes->direct && !changes->locked && !others_will_read(segno))
	{
		for (off_t offset = 0; offset < wal_segment_size; offset += GIVE_UP_BYTES)
		{
			(void) posix_fadvise(fd, offset, GIVE_UP_BYTES, POSIX_FADV_DONTNEED);
			(void) sched_yield();
		}
		(void) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
	(void) close(fd);
}

/* Release a segment; without with_close, its descriptor stays open. */
static void
release_segment(const ChangedBlocks *changes, HeldSegment *held, bool with_close)
{
	if (held->fd == 0)
		return;
	if (with_close)
		close_wal_file(changes, held->fd, held->segno);
	ReleaseExternalFD();
	held->fd = 0;
}

static void
close_wal_segment(XLogReaderState *reader)
{
	close_wal_file((ChangedBlocks *) reader->private_data, reader->seg.ws_file,
				   reader->seg.ws_segno);
	reader->seg.ws_file = -1;
}

/* Memory context callback: close the WAL segments, also after an error. */
static void
free_reader(void *arg)
{
	ChangedBlocks *changes = (ChangedBlocks *) arg;

	for (int i = 0; i < MOST_HELD; i++)
		release_segment(changes, &changes->held[i], true);
	if (changes->reader)
	{
		if (changes->reader->seg.ws_file >= 0)
			close_wal_segment(changes->reader);
		changes->reader = NULL;
	}
}

/*
 * Return the start of the record that follows one with this end: the same
 * position, or, at the end of a page, that after the next page's header.
 */
static XLogRecPtr
record_start(XLogRecPtr end)
{
	if (end % XLOG_BLCKSZ != 0)
		return end;
	return end + (XLogSegmentOffset(end, wal_segment_size) == 0 ?
				  SizeOfXLogLongPHD : SizeOfXLogShortPHD);
}

/* Return whether this position's segment was removed or recycled. */
static bool
segment_is_gone(XLogRecPtr ptr)
{
	XLogSegNo	segment;
	char		path[MAXPGPATH];

	XLByteToSeg(ptr, segment, wal_segment_size);
	/* the counter is zero at server start, and advanced before a removal */
	if (segment <= XLogGetLastRemovedSegno())
		return true;

	/* at the end of WAL, the next segment need not exist yet */
	if (ptr >= GetFlushRecPtr(NULL))
		return false;
	XLogFilePath(path, GetWALInsertionTimeLine(), segment, wal_segment_size);
	return access(path, F_OK) < 0 && errno == ENOENT;
}

/*
 * Give the reader one page, or as much of it as is flushed.  Core's
 * read_local_xlog_page() would wait for more.
 */
static int
read_page(XLogReaderState *reader, XLogRecPtr page, int wanted,
		  XLogRecPtr target, char *buf)
{
	TimeLineID	tli;
	XLogRecPtr	flushed = GetFlushRecPtr(&tli);
	WALReadError problem;
	XLogSegNo	segno;
	int			count;

	if (page + XLOG_BLCKSZ <= flushed)
		count = XLOG_BLCKSZ;
	else if (page + wanted > flushed)
		return -1;
	else
		count = flushed - page;

	XLByteToSeg(page, segno, wal_segment_size);
	if (!segment_is_open(reader, segno) && segment_is_gone(page))
		return -1;
	if (!WALRead(reader, buf, page, count, tli, &problem))
		WALReadRaiseError(&problem);
	return count;
}

/* Open the next segment for the reader, or hand over the segment that we hold. */
static void
open_wal_segment(XLogReaderState *reader, XLogSegNo segno, TimeLineID *tli)
{
	ChangedBlocks *changes = (ChangedBlocks *) reader->private_data;
	HeldSegment *held = place_of(changes, segno);

	if (held->fd != 0 && held->segno == segno)
	{
		reader->seg.ws_file = held->fd;
		release_segment(changes, held, false);
	}
	else
		wal_segment_open(reader, segno, tli);
}

/*
 * Open the segments from the reader's position to WAL_AHEAD bytes after the end of
 * WAL, if they exist.  A failure is no error: only a checkpoint makes them needed.
 */
static void
hold_segments(ChangedBlocks *changes)
{
	XLogReaderState *reader = changes->reader;
	TimeLineID	tli = GetWALInsertionTimeLine();
	XLogSegNo	first;
	XLogSegNo	last;

	XLByteToSeg(reader->EndRecPtr, first, wal_segment_size);
	XLByteToSeg(GetXLogInsertRecPtr() + WAL_AHEAD, last, wal_segment_size);
	for (int i = 0; i < MOST_HELD; i++)
	{
		/* has been read: it would only keep its disk space in use */
		if (changes->held[i].segno < first)
			release_segment(changes, &changes->held[i], true);
	}
	for (XLogSegNo segno = first; segno <= Min(last, first + MOST_HELD - 1); segno++)
	{
		HeldSegment *held = place_of(changes, segno);
		char		path[MAXPGPATH];
		int			fd;

		if (segment_is_open(reader, segno))
			continue;
		XLogFilePath(path, tli, segno, wal_segment_size);
		if (!AcquireExternalFD())
			break;
		fd = BasicOpenFile(path, O_RDONLY | PG_BINARY);
		if (fd < 0)
		{
			ReleaseExternalFD();
			break;
		}
		held->fd = fd;
		held->segno = segno;
	}
}

/* Skip records of our own.  The reader must be told where a record starts. */
static void
skip_own_records(ChangedBlocks *changes, int *next)
{
	XLogReaderState *reader = changes->reader;

	while (*next < changes->own.len / sizeof(OwnRecord))
	{
		OwnRecord  *own = (OwnRecord *) changes->own.data + *next;
		XLogRecPtr	here = record_start(reader->EndRecPtr);

		if (here == own->start)
			XLogBeginRead(reader, record_start(own->end));
		else if (here < own->start)
			break;				/* others' records come first */
		(*next)++;
	}
}

/* Return whether the caller has read this block after that record. */
static bool
already_seen(ChangedBlocks *changes, XLogRecPtr lsn, BlockNumber block)
{
	for (int i = 0; i < changes->seen.len / sizeof(SeenRange); i++)
	{
		SeenRange  *seen = (SeenRange *) changes->seen.data + i;

		if (block >= seen->first && block - seen->first < seen->nblocks &&
			(seen->only == NULL || block_set_has(seen->only, block)))
			return lsn < seen->lsn;
	}
	return false;
}

/*
 * Add the blocks that the reader's current record refers to.  Returns false
 * if the record may have changed the file in other ways than by these blocks.
 */
static bool
note_record(ChangedBlocks *changes, BlockNumber limit)
{
	XLogReaderState *reader = changes->reader;
	RmgrId		rmid = XLogRecGetRmid(reader);
	uint8		info = XLogRecGetInfo(reader) & ~XLR_INFO_MASK;

	/*
	 * These change files in other ways than by their block references.  As
	 * pg_rewind's extractPageInfo(), ignore only records that are known not
	 * to change a locked relation's.
	 */
	if (XLogRecGetInfo(reader) & XLR_SPECIAL_REL_UPDATE)
	{
		if (rmid == RM_SMGR_ID && info == XLOG_SMGR_TRUNCATE)
		{
			xl_smgr_truncate *truncate = (xl_smgr_truncate *) XLogRecGetData(reader);

			if (RelFileLocatorEquals(truncate->rlocator, changes->locator))
				return false;
		}
		else if (rmid == RM_SMGR_ID && info == XLOG_SMGR_CREATE)
			 /* another file, or another fork */ ;
		else if (rmid == RM_DBASE_ID)
			 /* another database: we are connected to this one */ ;
		else if (rmid == RM_XACT_ID)
			 /* files dropped at commit or abort: no locked file */ ;
		else
			return false;
	}

	/* hints need not be copied */
	if (rmid == RM_XLOG_ID && info == XLOG_FPI_FOR_HINT)
		return true;

	for (int id = 0; id <= XLogRecMaxBlockId(reader); id++)
	{
		RelFileLocator locator;
		ForkNumber	fork;
		BlockNumber block;

		if (!XLogRecGetBlockTagExtended(reader, id, &locator, &fork, &block, NULL))
			continue;
		if (fork == MAIN_FORKNUM && block < limit &&
			RelFileLocatorEquals(locator, changes->locator) &&
			!already_seen(changes, reader->ReadRecPtr, block))
			block_set_add(changes->set, block);
	}
	return true;
}

/*
 * Start to follow the changes of a relation file's main fork: those whose record
 * starts at or after this position, where one starts and from which on the WAL is
 * kept until this call has it open; or, with InvalidXLogRecPtr, after this call.  Until
 * wal_changes_end(), or the end of the current context.  With "direct", segments that
 * were read are given up in the page cache.
 */
ChangedBlocks *
wal_changes_begin(const RelFileLocator *locator, XLogRecPtr from, bool direct)
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "index_mover changed blocks",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(cxt);
	ChangedBlocks *changes = palloc0(sizeof(ChangedBlocks));

	changes->cxt = cxt;
	changes->locator = *locator;
	changes->direct = direct;
	changes->set = block_set_create(cxt);
	initStringInfo(&changes->seen);
	initStringInfo(&changes->own);
	changes->speed = FIRST_GUESS_OF_SPEED;

	changes->reader = XLogReaderAllocate(wal_segment_size, NULL,
										 XL_ROUTINE(.page_read = read_page,
													.segment_open = open_wal_segment,
													.segment_close = close_wal_segment),
										 changes);
	/* it returns NULL if out of memory; no test covers this */
	if (changes->reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	changes->on_reset.func = free_reader;
	changes->on_reset.arg = changes;
	MemoryContextRegisterResetCallback(cxt, &changes->on_reset);

	if (XLogRecPtrIsInvalid(from))
	{
		(void) wal_changes_mark();
		from = ProcLastRecPtr;
	}
	XLogBeginRead(changes->reader, from);
	hold_segments(changes);

	MemoryContextSwitchTo(oldcontext);
	return changes;
}

/* Stop to follow the changes, and free everything; NULL is allowed. */
void
wal_changes_end(ChangedBlocks *changes)
{
	if (changes)
		MemoryContextDelete(changes->cxt);
}

/*
 * Return a position after every change so far: the end of a flushed record, a new one
 * unless there is none after the last mark.  A copy that waits for hours on an idle
 * server must not fill a segment for each archive_timeout.
 */
XLogRecPtr
wal_changes_mark(void)
{
	static XLogRecPtr end = InvalidXLogRecPtr;
	char		nothing = 0;

	if (GetXLogInsertRecPtr() == end)
		return end;
	XLogBeginInsert();
	XLogSetRecordFlags(XLOG_MARK_UNIMPORTANT);
	XLogRegisterData(&nothing, sizeof(nothing));
	end = XLogInsert(RM_XLOG_ID, XLOG_NOOP);
	XLogFlush(end);
	return end;
}

/* Return the position up to which the WAL was read: no record before it is missing. */
XLogRecPtr
wal_changes_position(const ChangedBlocks *changes)
{
	return changes->reader->EndRecPtr;
}

/*
 * Note that the caller has read these blocks, or those of them that are in the set
 * "only", each under share lock, after lsn was the insert position, so with all records
 * that start before it; blocks in "only" have all changes so far.  Forgotten after the
 * next wal_changes_read(), whose target is later than any lsn, and until which the
 * caller keeps the set as it is.
 */
void
wal_changes_seen(ChangedBlocks *changes, BlockNumber first, BlockNumber nblocks,
				 XLogRecPtr lsn, const BlockSet *only)
{
	SeenRange	range = {first, nblocks, lsn, only};
	BlockNumber block = only ? block_set_next(only, first) : InvalidBlockNumber;

	for (; block < first + nblocks; block = block_set_next(only, block + 1))
		block_set_remove(changes->set, block);
	if (IM_MUTATION("late-lsn"))
		range.lsn = GetXLogInsertRecPtr();
	appendBinaryStringInfo(&changes->seen, (char *) &range, sizeof(range));
}

/* The caller will read this block from now on: it need not be copied again for changes so far. */
void
wal_changes_forget(ChangedBlocks *changes, BlockNumber block)
{
	block_set_remove(changes->set, block);
}

/*
 * Note a record of the caller's own, in WAL order, that need not be read: to read half
 * of them would cost a tenth of the time of a copy.
 */
void
wal_changes_skip(ChangedBlocks *changes, XLogRecPtr start, XLogRecPtr end)
{
	OwnRecord	record = {start, end};
	OwnRecord  *last = changes->own.len == 0 ? NULL :
		(OwnRecord *) (changes->own.data + changes->own.len) - 1;
	bool		adjacent = false;

	Assert(start < end && (last == NULL || last->end <= start));
	if (last != NULL)
		adjacent = (record_start(last->end) == start);
	if (adjacent)
		last->end = end;
	else
		appendBinaryStringInfo(&changes->own, (char *) &record, sizeof(record));
}

/*
 * Return whether the WAL must be read now, before a checkpoint removes it.  So never
 * fall behind by more than the open segment, or a good part of max_wal_size, and do
 * not stay in an older segment for longer than the fastest checkpoint takes.
 */
bool
wal_changes_read_is_due(const ChangedBlocks *changes)
{
	XLogRecPtr	here = changes->reader->EndRecPtr;
	XLogRecPtr	end = GetXLogInsertRecPtr();
	uint64		most = Min((uint64) max_wal_size_mb * 1024 * 1024 / 8,
						   (uint64) wal_segment_size / 2);

	if (end < here + Max(most, LEAST_UNREAD))
		return here / wal_segment_size != end / wal_segment_size &&
			clock_has_passed(changes->read_at, READ_INTERVAL_MS);
	return true;
}

/* Estimate how many microseconds it will take to read the rest. */
int64
wal_changes_unread_us(const ChangedBlocks *changes)
{
	XLogRecPtr	here = changes->reader->EndRecPtr;
	XLogRecPtr	end = GetXLogInsertRecPtr();

	return end > here ? (int64) ((end - here) / changes->speed) : 0;
}

int64
wal_changes_count(const ChangedBlocks *changes)
{
	return block_set_count(changes->set);
}

/* Return the set of changes, which the caller frees, and continue with an empty one. */
BlockSet *
wal_changes_take(ChangedBlocks *changes)
{
	BlockSet   *set = changes->set;

	changes->set = block_set_create(changes->cxt);
	return set;
}

/*
 * Read the WAL up to "upto", which wal_changes_mark() has returned, and add
 * the blocks below "limit" to the set: the caller will read the others later.
 * With "locked", all is left that need not be done now.
 *
 * ERRORs: 58P01 or 58030 if the WAL cannot be read; but if a segment is gone,
 * in nearly all cases the result is CHANGES_WAL_GONE.
 */
ChangesResult
wal_changes_read(ChangedBlocks *changes, XLogRecPtr upto, BlockNumber limit,
				 bool locked)
{
	XLogReaderState *reader = changes->reader;
	MemoryContext oldcontext = MemoryContextSwitchTo(changes->cxt);
	ChangesResult result = CHANGES_READ;
	int			next_own = 0;
	uint32		nrecords = 0;
	uint64		nbytes = 0;
	instr_time	start;

	/* step: read-wal */
	Assert(upto <= GetFlushRecPtr(NULL));
	changes->locked = locked;
	INSTR_TIME_SET_CURRENT(start);
	for (;;)
	{
		char	   *problem = NULL;

		skip_own_records(changes, &next_own);
		if (reader->EndRecPtr >= upto)
			break;

		if ((++nrecords & 0x3ff) == 0)
			job_check_cancel();

		if (XLogReadRecord(reader, &problem) == NULL)
		{
			if (segment_is_gone(reader->EndRecPtr))
			{
				/* if the next segment is gone, so is this one, which is older */
				result = CHANGES_WAL_GONE;
				break;
			}
			if (problem == NULL)
				problem = "unexpected end of WAL";
			ereport(ERROR,
					(errcode(ERRCODE_IO_ERROR),
					 errmsg("could not read WAL at %X/%X: %s",
							LSN_FORMAT_ARGS(reader->EndRecPtr), problem)));
		}

		Assert(reader->EndRecPtr > reader->ReadRecPtr);
		nbytes += reader->EndRecPtr - reader->ReadRecPtr;
		if (!note_record(changes, limit))
		{
			result = CHANGES_FILE_REPLACED;
			break;
		}
	}

	if (nbytes >= ENOUGH_TO_MEASURE)
	{
		instr_time	took;

		INSTR_TIME_SET_CURRENT(took);
		INSTR_TIME_SUBTRACT(took, start);
		changes->speed = Max((changes->speed +
							  nbytes / (INSTR_TIME_GET_DOUBLE(took) * 1000000 + 1)) / 2,
							 SLOWEST_SPEED);
	}
	Assert(result != CHANGES_READ || reader->EndRecPtr >= upto);
	resetStringInfo(&changes->seen);
	resetStringInfo(&changes->own);
	changes->read_at = clock_seconds();
	hold_segments(changes);
	changes->locked = false;
	MemoryContextSwitchTo(oldcontext);
	return result;
}

/* Make WAL segments for the next WAL_AHEAD bytes, at least one.  Cheap if they exist. */
void
wal_ahead(void)
{
	static XLogSegNo made = 0;
	XLogRecPtr	here = GetXLogInsertRecPtr();
	XLogSegNo	segment;
	XLogSegNo	last;

	XLByteToSeg(here, segment, wal_segment_size);
	XLByteToSeg(here + Max(WAL_AHEAD, wal_segment_size), last, wal_segment_size);
	for (segment = Max(segment, made) + 1; segment <= last; segment++)
	{
		(void) close(XLogFileInit(segment, GetWALInsertionTimeLine()));
		made = segment;
	}
}
