/*-------------------------------------------------------------------------
 *
 * wal_changes.c
 *	  Which blocks of one relation file have changed, as the WAL tells.
 *
 * Reads the WAL from the moment of wal_changes_begin() on, and collects
 * the block numbers of every record's references to the main fork of one
 * relation file.  It knows nothing about what the caller does with them.
 *
 * Assumption: whoever changes a page holds its exclusive content lock from
 * before the change until after the record is inserted.  So a caller who notes
 * the insert position first and takes the page's share lock then, has seen
 * every change whose record starts before that position (the record's start is
 * reserved under the exclusive lock); see wal_changes_seen().  Changes that
 * are not in the WAL (hint bits, the metapage of SP-GiST, zero pages of an
 * extension) are not reported: the caller has to know of them.
 *
 * Tricky points:
 *
 * The target of a read is the end of a record of our own, flushed, and made
 * when the read starts.  Reading "until the end of WAL" would chase the tail
 * for ever under load, and the raw insert position can point past a page
 * header, where no record ends.
 *
 * Checkpoints remove WAL that is not read yet, of small segments within a
 * megabyte.  But a segment that is open can be read to its end even if it is
 * removed or recycled: a recycled one is renamed, and overwritten only when the
 * WAL gets there; its page addresses no longer fit then, and the record is not
 * valid.  So we keep open the segment that the last read has ended in and those
 * after it, also those to come, which wal_ahead() has made under their names:
 * WAL_AHEAD bytes, whatever the segments' size.  Who reads whenever
 * wal_changes_read_is_due() says so loses nothing to a checkpoint, however
 * fast.  If a segment is gone all the same, CHANGES_WAL_GONE says so, and nothing
 * collected may be relied upon.
 *
 * A replication slot would keep WAL for longer than that, but not only when that
 * is welcome: of a process that is stopped, or hangs in a write to storage that
 * does not answer, it would keep everything until pg_wal is full, and the server
 * down.  A copy that has to be started again is the lesser evil.  And where
 * max_slot_wal_keep_size bounds it, the checkpointer terminates the slot's owner.
 * It would also need wal_level and max_replication_slots that allow it, take
 * somebody's place among the slots, and be seen by those who watch them.
 *
 * Memory: one bit for each block of the file (see block_set.c), and WAL
 * decoding's own buffer, which is as large as the largest record (a record
 * with 32 full pages has 256 kB).
 *
 * Locks: none.  A transaction is not needed, except for what the caller's
 * check_interrupts function may need.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "catalog/pg_control.h"
#include "catalog/storage_xlog.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "copy/block_set.h"
#include "copy/wal_changes.h"
#include "test_points.h"

/* See wal_changes_read_is_due(). */
#define LEAST_UNREAD		(1024 * 1024)
#define READ_INTERVAL_MS	20

/* Segments open at the same time: of 1 MB, as much unread as there is ahead */
#define MOST_HELD			32

/* See wal_changes_unread_us(): bytes per microsecond */
#define FIRST_GUESS_OF_SPEED	100
#define SLOWEST_SPEED			5
#define ENOUGH_TO_MEASURE		(256 * 1024)

typedef struct SeenRange
{
	BlockNumber first;
	BlockNumber nblocks;
	XLogRecPtr	lsn;
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
	void		(*check_interrupts) (void);
	XLogReaderState *reader;
	HeldSegment held[MOST_HELD];	/* segment n at n % MOST_HELD */
	BlockSet   *set;
	SeenRange  *seen;			/* since the last read */
	int			nseen;
	int			maxseen;
	TimestampTz read_at;		/* the last time */
	double		speed;			/* of reading, bytes per microsecond */
	OwnRecord  *own;			/* in WAL order, since the last read */
	int			nown;
	int			maxown;
};

static int	read_page(XLogReaderState *reader, XLogRecPtr page, int wanted,
					  XLogRecPtr target, char *buf);
static void open_wal_segment(XLogReaderState *reader, XLogSegNo segno, TimeLineID *tli);
static bool segment_is_open(const XLogReaderState *reader, XLogRecPtr ptr);
static bool segment_is_held(const XLogReaderState *reader, XLogRecPtr ptr);
static void hold_segments(ChangedBlocks *changes);
static bool segment_is_gone(XLogRecPtr ptr);
static XLogRecPtr record_start(XLogRecPtr end);
static void skip_own_records(ChangedBlocks *changes, int *next);
static bool note_record(ChangedBlocks *changes, BlockNumber limit);
static bool already_seen(ChangedBlocks *changes, XLogRecPtr lsn, BlockNumber block);

static HeldSegment *
place_of(ChangedBlocks *changes, XLogSegNo segno)
{
	return &changes->held[segno % MOST_HELD];
}

/* Let go of a segment, closing it or not. */
static void
release_segment(HeldSegment *held, bool with_close)
{
	if (held->fd == 0)
		return;
	if (with_close)
		(void) close(held->fd);
	ReleaseExternalFD();
	held->fd = 0;
}

/* Close the WAL segments with the memory context, also after an error. */
static void
free_reader(void *arg)
{
	ChangedBlocks *changes = (ChangedBlocks *) arg;

	for (int i = 0; i < MOST_HELD; i++)
		release_segment(&changes->held[i], true);
	if (changes->reader)
	{
		if (changes->reader->seg.ws_file >= 0)
			wal_segment_close(changes->reader);
		changes->reader = NULL;
	}
}

/*
 * Start to follow the changes of a relation file's main fork.
 *
 * Every change whose record starts after this call will be reported.  Writes
 * and flushes a record that does nothing, to have a place to start from.
 * Allocated in a context of its own below the current one; end it with
 * wal_changes_end(), or by deleting or resetting that context.
 */
ChangedBlocks *
wal_changes_begin(const RelFileLocator *locator,
				  void (*check_interrupts) (void))
{
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext,
											  "index_mover changed blocks",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcxt = MemoryContextSwitchTo(cxt);
	ChangedBlocks *changes = palloc0(sizeof(ChangedBlocks));

	changes->cxt = cxt;
	changes->locator = *locator;
	changes->check_interrupts = check_interrupts;
	changes->set = block_set_create();
	changes->maxseen = 32;
	changes->seen = palloc(changes->maxseen * sizeof(SeenRange));
	changes->maxown = 128;
	changes->speed = FIRST_GUESS_OF_SPEED;
	changes->own = palloc(changes->maxown * sizeof(OwnRecord));

	changes->reader = XLogReaderAllocate(wal_segment_size, NULL,
										 XL_ROUTINE(.page_read = read_page,
													.segment_open = open_wal_segment,
													.segment_close = wal_segment_close),
										 changes);
	/* so it tells that there is not enough memory; not seen by any test */
	if (changes->reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	changes->on_reset.func = free_reader;
	changes->on_reset.arg = changes;
	MemoryContextRegisterResetCallback(cxt, &changes->on_reset);

	(void) wal_changes_mark();
	XLogBeginRead(changes->reader, ProcLastRecPtr);
	hold_segments(changes);

	MemoryContextSwitchTo(oldcxt);
	return changes;
}

/* Stop following, and free everything; NULL is allowed. */
void
wal_changes_end(ChangedBlocks *changes)
{
	if (changes)
		MemoryContextDelete(changes->cxt);
}

/*
 * Return a position that every change made so far is before, and that a read
 * can go up to: the end of a new record that does nothing, flushed to disk.
 */
XLogRecPtr
wal_changes_mark(void)
{
	char		nothing = 0;
	XLogRecPtr	end;

	XLogBeginInsert();
	XLogRegisterData(&nothing, sizeof(nothing));
	end = XLogInsert(RM_XLOG_ID, XLOG_NOOP);
	XLogFlush(end);
	return end;
}

/*
 * The caller has read these blocks under share lock after lsn was the insert
 * position: records that start before it are in what he has read.  Forgotten
 * after the next wal_changes_read(), whose target is later than any lsn.
 */
void
wal_changes_seen(ChangedBlocks *changes, BlockNumber first,
				 BlockNumber nblocks, XLogRecPtr lsn)
{
	if (changes->nseen == changes->maxseen)
	{
		changes->maxseen *= 2;
		changes->seen = repalloc(changes->seen,
								 changes->maxseen * sizeof(SeenRange));
	}
	changes->seen[changes->nseen].first = first;
	changes->seen[changes->nseen].nblocks = nblocks;
	changes->seen[changes->nseen].lsn = lsn;
	changes->nseen++;
}

/*
 * A record that the caller has written himself and need not be read.  To be
 * called in WAL order.  Not a duty, but reading half of one's own WAL again
 * costs a tenth of the time of a copy.
 */
void
wal_changes_skip(ChangedBlocks *changes, XLogRecPtr start, XLogRecPtr end)
{
	/* records that follow each other directly are one piece */
	if (changes->nown > 0 &&
		record_start(changes->own[changes->nown - 1].end) == start)
	{
		changes->own[changes->nown - 1].end = end;
		return;
	}
	if (changes->nown == changes->maxown)
	{
		changes->maxown *= 2;
		changes->own = repalloc(changes->own,
								changes->maxown * sizeof(OwnRecord));
	}
	changes->own[changes->nown].start = start;
	changes->own[changes->nown].end = end;
	changes->nown++;
}

/*
 * Should the WAL be read now, so that it isn't recycled unread?  What a copy
 * writes itself brings checkpoints about, and these remove what is older than
 * the segment in which they began: so never be behind by more than the open
 * segment, or a good part of max_wal_size; and don't stay in an older segment
 * for longer than the quickest checkpoint takes.
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
			TimestampDifferenceExceeds(changes->read_at, GetCurrentTimestamp(),
									   READ_INTERVAL_MS);
	return true;
}

/*
 * How many microseconds it will take to read what is unread, going by the
 * speed of the reads so far.
 */
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

/*
 * Hand over what was collected and go on with an empty set.  The caller frees
 * it with block_set_free(), or it goes with wal_changes_end().
 */
BlockSet *
wal_changes_take(ChangedBlocks *changes)
{
	BlockSet   *set = changes->set;
	MemoryContext oldcxt = MemoryContextSwitchTo(changes->cxt);

	changes->set = block_set_create();
	MemoryContextSwitchTo(oldcxt);
	return set;
}

/*
 * Read the WAL up to "upto", which wal_changes_mark() has returned, and add
 * the blocks below "limit" to the set: the caller will read those from limit
 * on later, and so after every change that is found now.
 *
 * ERROR 58P01 or 58030 if the WAL can't be read; if that is because a segment
 * is gone, the return value says so in nearly all cases.
 */
ChangesResult
wal_changes_read(ChangedBlocks *changes, XLogRecPtr upto, BlockNumber limit)
{
	XLogReaderState *reader = changes->reader;
	MemoryContext oldcxt = MemoryContextSwitchTo(changes->cxt);
	ChangesResult result = CHANGES_READ;
	int			next_own = 0;
	uint32		nrecords = 0;
	uint64		nbytes = 0;
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	for (;;)
	{
		char	   *problem = NULL;

		skip_own_records(changes, &next_own);
		if (reader->EndRecPtr >= upto)
			break;

		if ((++nrecords & 0x3ff) == 0)
		{
			MemoryContextSwitchTo(oldcxt);
			changes->check_interrupts();
			MemoryContextSwitchTo(changes->cxt);
		}

		if (XLogReadRecord(reader, &problem) == NULL)
		{
			if (segment_is_gone(reader->EndRecPtr))
			{
				/* or the next one: gone too, this one is older */
				result = CHANGES_WAL_GONE;
				break;
			}
			ereport(ERROR,
					(errcode(ERRCODE_IO_ERROR),
					 errmsg("could not read WAL at %X/%X: %s",
							LSN_FORMAT_ARGS(reader->EndRecPtr),
							problem ? problem : "unexpected end of WAL")));
		}

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
	changes->nseen = 0;
	changes->nown = 0;
	changes->read_at = GetCurrentTimestamp();
	hold_segments(changes);
	MemoryContextSwitchTo(oldcxt);
	return result;
}

/*
 * Give the reader one page, or as much of it as is flushed.  core's
 * read_local_xlog_page() would do, but waits for WAL that is not there yet in
 * a loop of its own, with a new interface in each version.
 */
static int
read_page(XLogReaderState *reader, XLogRecPtr page, int wanted,
		  XLogRecPtr target, char *buf)
{
	TimeLineID	tli;
	XLogRecPtr	flushed = GetFlushRecPtr(&tli);
	WALReadError problem;
	int			count;

	if (page + XLOG_BLCKSZ <= flushed)
		count = XLOG_BLCKSZ;
	else if (page + wanted > flushed)
		return -1;
	else
		count = flushed - page;

	if (!segment_is_open(reader, page) && !segment_is_held(reader, page) &&
		segment_is_gone(page))
		return -1;
	if (!WALRead(reader, buf, page, count, tli, &problem))
		WALReadRaiseError(&problem);
	return count;
}

/* Open the next segment for the reader: if we hold it, hand it over. */
static void
open_wal_segment(XLogReaderState *reader, XLogSegNo segno, TimeLineID *tli)
{
	HeldSegment *held = place_of((ChangedBlocks *) reader->private_data, segno);

	if (held->fd != 0 && held->segno == segno)
	{
		reader->seg.ws_file = held->fd;
		release_segment(held, false);
	}
	else
		wal_segment_open(reader, segno, tli);
}

static bool
segment_is_held(const XLogReaderState *reader, XLogRecPtr ptr)
{
	XLogSegNo	segno;
	HeldSegment *held;

	XLByteToSeg(ptr, segno, wal_segment_size);
	held = place_of((ChangedBlocks *) reader->private_data, segno);
	return held->fd != 0 && held->segno == segno;
}

/*
 * Open the segments from where the reader is to WAL_AHEAD bytes behind the end of
 * WAL, as far as they exist.  It is no error if that is not possible: it is only
 * for the case that a checkpoint comes.
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
		/* the reader has passed by: it would only take space on disk */
		if (changes->held[i].segno < first)
			release_segment(&changes->held[i], true);
	}
	for (XLogSegNo segno = first; segno <= Min(last, first + MOST_HELD - 1); segno++)
	{
		HeldSegment *held = place_of(changes, segno);
		char		path[MAXPGPATH];
		int			fd;

		if ((held->fd != 0 && held->segno == segno) ||
			(reader->seg.ws_file >= 0 && reader->seg.ws_segno == segno))
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

/* Is the segment that holds this position the one that the reader has open? */
static bool
segment_is_open(const XLogReaderState *reader, XLogRecPtr ptr)
{
	return reader->seg.ws_file >= 0 &&
		XLByteInSeg(ptr, reader->seg.ws_segno, wal_segment_size);
}

/* Has the segment that holds this position been removed or recycled? */
static bool
segment_is_gone(XLogRecPtr ptr)
{
	XLogSegNo	segment;
	char		path[MAXPGPATH];

	XLByteToSeg(ptr, segment, wal_segment_size);
	if (segment <= XLogGetLastRemovedSegno())
		return true;

	/*
	 * The counter above starts at zero with the server and is advanced just
	 * before a file goes.  At the very end of WAL the next segment need not
	 * exist yet, and its absence means nothing.
	 */
	if (ptr >= GetFlushRecPtr(NULL))
		return false;
	XLogFilePath(path, GetWALInsertionTimeLine(), segment, wal_segment_size);
	return access(path, F_OK) < 0 && errno == ENOENT;
}

/*
 * Where the record begins that follows one with this end: there, or, at the end
 * of a page, behind the next page's header.
 */
static XLogRecPtr
record_start(XLogRecPtr end)
{
	if (end % XLOG_BLCKSZ != 0)
		return end;
	return end + (XLogSegmentOffset(end, wal_segment_size) == 0 ?
				  SizeOfXLogLongPHD : SizeOfXLogShortPHD);
}

/*
 * Go on behind records of our own.  The reader stands at the end of the last
 * record, and has to be told where a record starts.
 */
static void
skip_own_records(ChangedBlocks *changes, int *next)
{
	XLogReaderState *reader = changes->reader;

	while (*next < changes->nown)
	{
		OwnRecord  *own = &changes->own[*next];
		XLogRecPtr	here = record_start(reader->EndRecPtr);

		if (here == own->start)
			XLogBeginRead(reader, record_start(own->end));
		else if (here < own->start)
			break;				/* others' records come first */
		(*next)++;
	}
}

/*
 * Add the blocks that the reader's current record refers to.  Returns false if
 * the record did something to the file that is more than changing blocks.
 */
static bool
note_record(ChangedBlocks *changes, BlockNumber limit)
{
	XLogReaderState *reader = changes->reader;
	RmgrId		rmid = XLogRecGetRmid(reader);
	uint8		info = XLogRecGetInfo(reader) & ~XLR_INFO_MASK;

	/*
	 * Records that change relation files in other ways than through their
	 * block references carry this flag.  The same cases as in pg_rewind's
	 * extractPageInfo(): what is known not to touch a file that somebody
	 * holds a lock on, is passed over; what is not known is not.
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
			 /* files dropped at the end of a transaction: not a locked one */ ;
		else
			return false;
	}

	/* A full image written because of a hint bit: hints need not be known. */
	if (rmid == RM_XLOG_ID && info == XLOG_FPI_FOR_HINT)
		return true;

	for (int id = 0; id <= XLogRecMaxBlockId(reader); id++)
	{
		RelFileLocator locator;
		ForkNumber	fork;
		BlockNumber block;

		if (!XLogRecGetBlockTagExtended(reader, id, &locator, &fork, &block, NULL))
			continue;
		if (fork != MAIN_FORKNUM ||
			!RelFileLocatorEquals(locator, changes->locator))
			continue;
		if (block < limit && !already_seen(changes, reader->ReadRecPtr, block))
			block_set_add(changes->set, block);
	}
	return true;
}

/* Has the caller read this block after that record was inserted? */
static bool
already_seen(ChangedBlocks *changes, XLogRecPtr lsn, BlockNumber block)
{
	for (int i = 0; i < changes->nseen; i++)
	{
		SeenRange  *seen = &changes->seen[i];

		if (block >= seen->first && block - seen->first < seen->nblocks)
			return lsn < seen->lsn;
	}
	return false;
}

/* ----------------------------------------------------------------
 *	Making the next WAL segments before somebody has to wait for them.
 *
 * When WAL gets to the end of a segment and there is none to go on with, core
 * makes one on the spot: whoever writes the WAL out fills 16 MB with zeros and
 * flushes them, and all who commit meanwhile wait for him.  A checkpoint leaves
 * segments of before to be used again, but a copy writes so much WAL that these
 * do not last.  So the copy makes segments ahead, in its own time, where nobody
 * waits for it; and under the exclusive lock there is always one to go on with.
 *
 * Who reads the WAL opens them as soon as they are there (changed_blocks.c).
 *
 * Assumption: XLogFileInit() may be called by any process at any time (core's
 * walreceiver and checkpointer do).  A segment that is there is left as it is.
 *
 * Locks: none, except what core takes for the moment of the renaming.
 *
 * Tricky point: a full disk is an ERROR here, which ends the move.  Met while
 * the WAL is written out it would be a PANIC.
 * ----------------------------------------------------------------
 */

/*
 * See to it that there is a segment after the current one, and that the next 16
 * MB of WAL have a place.  Cheap if that is so.
 */
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
