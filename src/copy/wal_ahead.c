/*-------------------------------------------------------------------------
 *
 * wal_ahead.c
 *	  Making the next WAL segments before somebody has to wait for them.
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
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "copy/wal_ahead.h"

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
