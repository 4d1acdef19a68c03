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

/* What a job was to do with one index, and what became of it */
typedef struct HistoryEntry
{
	Oid			relid;			/* after a rebuild the new one */
	Oid			heap_oid;
	char	   *relname;
	char	   *kind;			/* see relation_kind() */
	Oid			from_tablespace;
	Oid			to_tablespace;
	MoveMethod	requested;
	MoveStatus	status;			/* never "interrupted" */
	int64		size;			/* bytes, before the move */
	int64		lock_time;		/* microseconds; -1 = none */
	char	   *sqlstate;		/* NULL = none */
	char	   *message;		/* NULL = none */
} HistoryEntry;

typedef struct HistoryJob
{
	Oid			role;			/* of the user that submitted the job */
	TimestampTz submitted_at;
	char	   *settings;		/* those that are not the default, JSON */
} HistoryJob;

extern void history_insert_job(int64 job, Oid role, TimestampTz submitted_at,
							   const char *settings);
extern void history_alter_job(int64 job, const char *settings);
extern bool history_read_job(int64 job, HistoryJob *entry);
extern void history_insert(const JobShared *job, int item);
extern void history_update(const JobShared *job, int item);
extern List *history_read(int64 job);
extern int64 history_moved_since(int64 job, const HistoryEntry *entry);
extern int	history_expire(TimestampTz before, bool dry_run);

#endif							/* IM_HISTORY_H */
