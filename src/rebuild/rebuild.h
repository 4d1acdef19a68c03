/*-------------------------------------------------------------------------
 *
 * rebuild.h
 *	  The method rebuild.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REBUILD_H
#define IM_REBUILD_H

#include "job.h"
#include "settings.h"

extern void rebuild_init(void);
extern void rebuild_timer_begin(const MoveSettings *job_settings, Oid insist_on);
extern void rebuild_timer_explain(ErrorData *edata, const MoveItem *item);
extern void rebuild_timer_end(void);

extern void move_by_rebuild(MoveContext *mc);
extern void rebuild_cleanup(MoveContext *mc, const List *tables);
extern void rebuild_find_out(MoveItem *item);

#endif							/* IM_REBUILD_H */
