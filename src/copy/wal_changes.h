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

typedef struct ChangedBlocks ChangedBlocks;

typedef enum ChangesResult
{
	CHANGES_READ,				/* all of them, up to the target */
	CHANGES_FILE_REPLACED,		/* or changed in ways that name no blocks */
	CHANGES_WAL_GONE,			/* a segment was removed before it was read */
} ChangesResult;

extern ChangedBlocks *wal_changes_begin(const RelFileLocator *locator, XLogRecPtr from,
										bool direct);
extern void wal_changes_end(ChangedBlocks *changes);

extern XLogRecPtr wal_changes_mark(void);
extern XLogRecPtr wal_changes_position(const ChangedBlocks *changes);
extern ChangesResult wal_changes_read(ChangedBlocks *changes,
									  XLogRecPtr upto, BlockNumber limit, bool locked);
extern void wal_changes_seen(ChangedBlocks *changes, BlockNumber first,
							 BlockNumber nblocks, XLogRecPtr lsn, const BlockSet *only);
extern void wal_changes_forget(ChangedBlocks *changes, BlockNumber block);
extern void wal_changes_skip(ChangedBlocks *changes,
							 XLogRecPtr start, XLogRecPtr end);
extern int64 wal_changes_unread_us(const ChangedBlocks *changes);
extern bool wal_changes_read_is_due(const ChangedBlocks *changes);
extern int64 wal_changes_count(const ChangedBlocks *changes);
extern BlockSet *wal_changes_take(ChangedBlocks *changes);

/* wal_ahead() makes segments for this many bytes of WAL, at least one */
#define WAL_AHEAD		(16 * 1024 * 1024)

extern void wal_ahead(void);

#endif							/* IM_WAL_CHANGES_H */
