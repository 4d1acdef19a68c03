/*-------------------------------------------------------------------------
 *
 * job.h
 *	  Jobs: what one call of move_indexes() asked for, in shared memory.
 *
 * A *job* is one call; a *move* is one index of it (a MoveItem); a *runner* is
 * a background worker that carries out moves of one job, one after the other.
 *
 * Two places hold a job: a small slot in the main shared memory (JobSlot,
 * RunnerSlot: who runs, what phase; read by index_mover_progress), and a DSM
 * segment of its own (JobShared: settings, items, results, the queue for
 * notices), which the waiting caller keeps mapped until it has read the rows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_JOB_H
#define IM_JOB_H

#include "port/atomics.h"
#include "settings.h"
#include "storage/dsm.h"
#include "storage/latch.h"
#include "storage/shm_mq.h"

typedef enum MoveMethod
{
	METHOD_AUTO,				/* only as an argument, never in an item */
	METHOD_COPY,
	METHOD_REBUILD,
	METHOD_DEFAULT,				/* partitioned index: set its tablespace for
								 * new partitions, there is no file */
} MoveMethod;

typedef enum MoveStatus
{
	STATUS_PLANNED,
	STATUS_QUEUED,
	STATUS_RUNNING,
	STATUS_PAUSED,
	STATUS_MOVED,
	STATUS_SKIPPED,
	STATUS_FAILED,
	STATUS_CANCELLED,
	STATUS_INTERRUPTED,
} MoveStatus;

/* Keep in step with phase_names[] in job.c. */
typedef enum MovePhase
{
	PHASE_INITIALIZING,
	PHASE_WAIT_START,			/* waiting for lock to start */
	PHASE_COPYING,
	PHASE_CATCHING_UP,
	PHASE_VERIFYING,
	PHASE_WAIT_SWAP_TIME,
	PHASE_WAIT_SWAP_LOCK,
	PHASE_SWAPPING,
	PHASE_PREWARMING,
	PHASE_REMOVING_OLD_FILE,
	PHASE_WAIT_WRITERS,			/* before a rebuild */
	PHASE_WAIT_SNAPSHOTS,
	PHASE_REBUILDING,			/* shown in core's words while REINDEX runs */
	PHASE_CLEANING_UP,
	PHASE_PAUSED,
	PHASE_THROTTLED,
	PHASE_GIVING_WAY,
} MovePhase;

#define IM_DETAIL_LEN	512

/*
 * One index of a job: the plan's answer, then the result.  The planner fills
 * it in local memory, job_submit() copies it to shared memory, and from then
 * on only the runner that works on it writes it.  -1 is "not estimated" or
 * "not measured" and becomes NULL.
 */
typedef struct MoveItem
{
	Oid			index_oid;		/* the index; after a rebuild the new one */
	Oid			heap_oid;		/* its table */
	NameData	index_name;
	NameData	schema_name;	/* of index and table */
	NameData	heap_name;
	Oid			from_tablespace;	/* never 0: the database default by its OID */
	Oid			to_tablespace;
	MoveMethod	method;
	MoveStatus	status;
	bool		repair;			/* planner: an invalid index that was named
								 * itself: rebuild it, wherever it is */
	int64		size_before;	/* bytes, all forks */
	int64		size_after;
	int64		bytes_to_read;
	int64		bytes_to_write;
	int64		wal_bytes;
	int			fits;			/* 1 yes, 0 no, -1 unknown */
	double		estimated;		/* seconds */
	TimestampTz started_at;		/* 0 = not started */
	TimestampTz finished_at;
	int64		lock_time;		/* microseconds */
	int64		blocks_copied;
	int64		blocks_recopied;
	int64		lock_attempts;
	int64		wal_written;	/* bytes */
	char		sqlstate[6];	/* "" = none */
	char		detail[IM_DETAIL_LEN];
} MoveItem;

/* What the caller and the runner say to each other about the caller's snapshot. */
typedef enum CallerFlag
{
	CALLER_NORMAL,
	CALLER_ASKED_TO_HIDE,		/* runner -> caller */
	CALLER_HIDDEN,				/* caller -> runner: PROC_IN_SAFE_IC is set */
	CALLER_ASKED_TO_SHOW,		/* runner -> caller */
} CallerFlag;

/* The job's DSM segment. */
typedef struct JobShared
{
	int64		job;
	Oid			database;
	Oid			role;			/* set by the caller, constant */
	TimestampTz submitted_at;
	MoveSettings settings;		/* caller; alter_move() later, under slot lock */
	int			slot;			/* index of the JobSlot, constant */
	int			nitems;			/* constant */
	bool		caller_waits;	/* constant: move_indexes(wait => true) */
	int			caller_pid;		/* constant; 0 = nobody waits */
	int			caller_procno;	/* constant: for its latch */

	pg_atomic_uint32 caller_flag;	/* CallerFlag; both, by compare-exchange */
	pg_atomic_uint32 rows_final;	/* runner: items will not change any more */
	pg_atomic_uint32 runner_gone;	/* runner, on exit */

	Size		mq_offset;		/* shm_mq for messages, from segment start */
	MoveItem	items[FLEXIBLE_ARRAY_MEMBER];
} JobShared;

/* ---- submitting (in the caller's backend) ---- */

typedef struct JobHandle JobHandle;

/* ---- progress (in a runner; all are no-ops elsewhere) ---- */

extern void progress_begin(const MoveItem *item);
extern void progress_end(void);
extern MovePhase progress_phase(MovePhase phase);	/* returns the phase before */
extern void progress_blocks(int64 total, int64 done);
extern void progress_changed(int64 blocks_changed);
extern void progress_rate(int64 bytes_per_second);
extern void progress_wal_lag(int64 bytes);
extern void progress_lock_attempt(void);
extern void progress_blockers(const int *pids, int npids);

/*
 * CHECK_FOR_INTERRUPTS(), plus ERROR 57014 when cancel_move() or the loss of
 * the waiting caller asks for it.  Every loop of a runner calls this.
 */
extern void job_check_cancel(void);

/* true while pause_move() is in force for the runner's own job */
extern bool job_pause_requested(void);

extern const char *method_name(MoveMethod method);
extern const char *status_name(MoveStatus status);
extern const char *phase_name(MovePhase phase);

#endif							/* IM_JOB_H */
