/*-------------------------------------------------------------------------
 *
 * slot_watch.h
 *	  Giving a rebuild up before it would cost a replication slot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SLOT_WATCH_H
#define IM_SLOT_WATCH_H

#include "job.h"

/*
 * From here to slot_watch_end(), cancel what this process does if it writes WAL
 * that max_slot_wal_keep_size would make some slot pay for.
 */
extern void slot_watch_begin(void);
extern void slot_watch_end(void);

/*
 * If this is the ERROR of our cancel, make it tell why: 53400.  To be called
 * before slot_watch_end().
 */
extern void slot_watch_tell(ErrorData *edata, const MoveItem *item);

#endif							/* IM_SLOT_WATCH_H */
