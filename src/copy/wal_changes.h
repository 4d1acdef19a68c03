/*-------------------------------------------------------------------------
 *
 * wal_changes.h
 *	  Which blocks of one relation file have changed, as the WAL tells.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WAL_CHANGES_H
#define IM_WAL_CHANGES_H

#include "access/xlogdefs.h"

#include "copy/block_set.h"
#include "test_points.h"

typedef struct ChangedBlocks ChangedBlocks;

typedef enum ChangesResult
{
	CHANGES_READ,				/* all of them, up to the target */
	CHANGES_FILE_REPLACED,		/* the file was truncated, or changed in a way
								 * that the WAL does not tell block by block */
	CHANGES_WAL_GONE,			/* a segment was removed before it was read */
} ChangesResult;

extern ChangedBlocks *changed_blocks_begin(const RelFileLocator *locator,
										   void (*check_interrupts) (void));
extern void changed_blocks_end(ChangedBlocks *changes);

extern XLogRecPtr changed_blocks_mark(void);
extern ChangesResult changed_blocks_read(ChangedBlocks *changes,
										 XLogRecPtr upto, BlockNumber limit);
extern void changed_blocks_seen(ChangedBlocks *changes, BlockNumber first,
								BlockNumber nblocks, XLogRecPtr lsn);
extern void changed_blocks_skip(ChangedBlocks *changes,
								XLogRecPtr start, XLogRecPtr end);
extern int64 changed_blocks_unread_us(const ChangedBlocks *changes);
extern bool changed_blocks_read_is_due(const ChangedBlocks *changes);
extern int64 changed_blocks_count(const ChangedBlocks *changes);
extern BlockSet *changed_blocks_take(ChangedBlocks *changes);

/*
 * So much WAL may come between two calls without reaching a segment not made;
 * at least one segment
 */
#define WAL_AHEAD		(16 * 1024 * 1024)

extern void wal_ahead(void);

#endif							/* IM_WAL_CHANGES_H */
