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

/* A relation of a job: the request, and the outcome */
typedef struct HistoryEntry
{
	Oid			relid;			/* by then, after a rebuild the new one;
								 * history_trace(): now, 0 = gone */
	Oid			heap_oid;
	char	   *relname;
	char	   *kind;			/* see relation_kind() */
	Oid			from_tablespace;
	Oid			to_tablespace;
	char	   *from_name;		/* their names by then; NULL = unknown */
	char	   *to_name;
	MoveMethod	requested;
	MoveMethod	method;
	MoveStatus	status;			/* never "interrupted" */
	double		worked;			/* seconds, without rests and waits; 0 =
								 * unknown */
	int64		size;			/* bytes, before the move */
	int64		lock_time;		/* microseconds; -1 = none */
	char	   *sqlstate;		/* NULL = none */
	char	   *message;		/* NULL = none */

	/* set by history_trace() */
	bool		moved;			/* also by a worker that was killed before it
								 * could say so */
	Oid			last_from;		/* of the last move or, if that was none, */
	Oid			last_to;		/* attempt; or both the place after it */
	List	   *movers;			/* of int64 *: the jobs that have moved it and
								 * were not undone, from this job on */
	int64		undone_by;		/* the job that took it back; 0 = none */
} HistoryEntry;

typedef struct HistoryJob
{
	Oid			role;			/* of the user that submitted the job */
	TimestampTz submitted_at;
	const char *settings;		/* settings that are not the default, JSON */
	JobTerms	terms;
} HistoryJob;

/* A move of a table, or of an index of it, that has ended well */
typedef struct TableMove
{
	Oid			relid;			/* after it */
	const char *relname;		/* by then */
	int64		job;
	TimestampTz moved_at;
	Oid			from_tablespace;
} TableMove;

extern List *history_moves_of_table(Oid table, TimestampTz since);
extern bool history_find_open_rebuild(Oid relid);
extern int64 history_next_job(void);
extern void history_insert_job(int64 job, const HistoryJob *entry);
extern void history_lock_job(int64 job);
extern bool history_acknowledge_job(int64 job);
extern bool history_alter_job(int64 job, const char *settings);
extern int64 history_last_of_policy(const char *policy, int64 job);
extern bool history_read_job(int64 job, HistoryJob *entry);
extern void history_insert(const JobShared *job, int item);
extern void history_update(const JobShared *job, int item);
extern void history_close_job(const JobShared *job);
#define ALL_JOBS_BACKWARD	INT64CONST(-1)	/* in place of a job */

extern List *history_read(int64 job);
extern void history_newest_jobs(bool of_role, Oid key_oid, bool (*add) (int64 job, void *arg),
								void *arg);
extern void history_newest_moves(bool (*look) (int64 job, Oid table, void *arg), void *arg);
extern void history_trace(int64 job, List *entries);
extern int	history_expire(TimestampTz before, bool dry_run);

#endif							/* IM_HISTORY_H */
