/*-------------------------------------------------------------------------
 *
 * history.h
 *	  The history: every move of every job, behind the view
 *	  index_mover_history.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_HISTORY_H
#define IM_HISTORY_H

#include "job.h"

/* Both run inside the current transaction and need no privileges. */
extern void history_insert(const JobShared *job, int item);
extern void history_update(const JobShared *job, int item);

/*
 * What the history knows of a job: -1 unknown, else the number of its moves;
 * role is set to who submitted it, nfailed to those not moved.
 */
extern int	history_job(int64 job, Oid *role, int *nfailed);

#endif							/* IM_HISTORY_H */
