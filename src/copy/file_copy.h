/*-------------------------------------------------------------------------
 *
 * file_copy.h
 *	  Copying blocks of a relation file to another while it is in use.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_FILE_COPY_H
#define IM_FILE_COPY_H

#include "access/xlogdefs.h"
#include "common/relpath.h"
#include "portability/instr_time.h"
#include "storage/buf.h"

#include "copy/block_set.h"
#include "copy/wal_changes.h"
#include "wait/wait.h"

/* Blocks copied at a time: 1 MB, a divisor of RELSEG_SIZE */
#define FILE_COPY_CHUNK	((BlockNumber) (1024 * 1024 / BLCKSZ))

typedef struct FileCopy FileCopy;

/* Return the microseconds since a time. */
static inline int64
elapsed_us(instr_time since)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, since);
	return INSTR_TIME_GET_MICROSEC(now);
}

extern FileCopy *file_copy_create(const RelFileLocator *from,
								  const RelFileLocator *to, ChangedBlocks *changes,
								  ChangedBlocks *const *followers, Oid relam,
								  bool direct, const MoveSettings *settings,
								  Throttle *throttle);
extern void file_copy_free(FileCopy *copy);

extern void file_copy_range(FileCopy *copy, BlockNumber first, BlockNumber nblocks);
extern BlockNumber file_copy_set(FileCopy *copy, const BlockSet *set, BlockNumber from,
								 int *ncopied);
extern BlockNumber file_copy_sync(FileCopy *copy, BlockNumber first);
extern void file_copy_flush_first(FileCopy *copy);
extern void file_copy_record(FileCopy *copy, BlockNumber nblocks);
extern void file_copy_unsync(FileCopy *copy);
extern void file_copy_extend(FileCopy *copy, ForkNumber fork, BlockNumber nblocks);
extern void file_copy_prepare(FileCopy *copy, BlockNumber nblocks,
							  const BlockSet *set);
extern void file_copy_through_buffer(FileCopy *copy, BlockNumber block);
extern void file_copy_replace_page(FileCopy *copy, Buffer buffer, const char *page,
								   bool standard);

extern int	file_copy_read_ahead(const FileCopy *copy, BlockNumber first, BlockNumber nblocks);
extern void file_copy_read_done(const FileCopy *copy, int drop,
								BlockNumber first, BlockNumber nblocks);

extern void file_copy_flush_wal(FileCopy *copy);

extern bool file_has_buffer(const RelFileLocator *file, BlockNumber block);

#endif							/* IM_FILE_COPY_H */
