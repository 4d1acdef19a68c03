/*-------------------------------------------------------------------------
 *
 * again.h
 *	  Jobs made of what the history says of an earlier one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_AGAIN_H
#define IM_AGAIN_H

#include "nodes/pg_list.h"

/*
 * Queue, for the commit of this transaction, a job for what the job of these
 * HistoryEntry was to move and has not moved.  Returns its number, 0 if
 * nothing is left to do.
 */
extern int64 again_rest(List *entries);

#endif							/* IM_AGAIN_H */
