/*-------------------------------------------------------------------------
 *
 * history.h
 *	  The history: every move of every job, for view index_mover_history.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_HISTORY_H
#define IM_HISTORY_H

#include "job.h"

extern void history_insert(const JobShared *job, int item);
extern void history_update(const JobShared *job, int item);
extern bool history_exists(int64 job);

/* What a job was to do with one index, and what became of it */
typedef struct HistoryEntry
{
	Oid			index_oid;		/* after a rebuild the new one */
	Oid			heap_oid;
	char	   *index_name;
	Oid			from_tablespace;
	Oid			to_tablespace;
	char	   *method;			/* as shown */
	char	   *status;			/* as shown, but never "interrupted" */
	Oid			role;			/* of the user that submitted the job */
} HistoryEntry;

extern List *history_read(int64 job);

#endif							/* IM_HISTORY_H */
