/*-------------------------------------------------------------------------
 *
 * job.h
 *	  Jobs, which calls submit, in shared memory.
 *
 * A job is in two places.  A small slot in the main shared memory (JobSlot,
 * RunnerSlot) tells which move is in which phase, for index_mover_progress.  A DSM
 * segment of its own (JobShared) is kept mapped by a waiting caller until it has
 * read the rows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_JOB_H
#define IM_JOB_H

#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/dsm.h"
#include "storage/latch.h"
#include "storage/shm_mq.h"
#include "utils/hsearch.h"
#include "utils/snapshot.h"

#include "relation_facts.h"
#include "settings.h"
#include "virtual_transactions.h"

typedef enum MoveMethod
{
	METHOD_AUTO,				/* only as an argument, never in an item */
	METHOD_COPY,
	METHOD_REBUILD,
	METHOD_DEFAULT,				/* partitioned index or table: set the
								 * tablespace for new partitions; there is no
								 * file */
} MoveMethod;

typedef enum MoveStatus
{
	STATUS_PLANNED,
	STATUS_QUEUED,
	STATUS_RUNNING,
	STATUS_MOVED,
	STATUS_SKIPPED,
	STATUS_FAILED,
	STATUS_CANCELED,
	STATUS_REHEARSED,			/* a copy was made, and discarded */
} MoveStatus;

#define STATUS_IS_SUCCESS(status) \
	((status) == STATUS_MOVED || (status) == STATUS_REHEARSED)
/* nothing is left to do */
#define STATUS_IS_DONE(status)	(STATUS_IS_SUCCESS(status) || (status) == STATUS_SKIPPED)

/* Keep in step with phase_names[] in job_item.c. */
typedef enum MovePhase
{
	PHASE_INITIALIZING,
	PHASE_WAIT_START,
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
	PHASE_GIVING_WAY,
	PHASE_FREEZING,				/* before the copy of a table */
} MovePhase;

#define IM_DETAIL_LEN	512

/*
 * The outcome of a move: of a row of a plan, why it is skipped or how it is to be moved.
 * -1 is "not measured", and becomes NULL.  In a job, its runner writes it.
 */
typedef struct MoveOutcome
{
	MoveStatus	status;
	char		sqlstate[6];	/* "" = none */
	bool		was_canceled;	/* with its job, or by its owner; not by an
								 * error that has the SQLSTATE only */
	char		detail[IM_DETAIL_LEN];
	TimestampTz started_at;		/* 0 = not started */
	TimestampTz finished_at;
	int64		idle;			/* microseconds of rests and waits in between */
	int64		size_after;		/* bytes, all forks */
	int64		lock_time;		/* microseconds */
	int64		lock_attempts;
	int64		blocks_copied;
	int64		blocks_recopied;
	int64		wal_written;	/* bytes */
} MoveOutcome;

/*
 * A relation of a job.  The planner fills it in local memory.  Only runners of its job write to
 * the copy in shared memory, but for owner_cancels, which a session sets.  -1 means "not estimated", and becomes NULL.
 */
typedef struct MoveItem
{
	Oid			relid;			/* table or index; after a rebuild the new
								 * index */
	Oid			old_relid;		/* the same before the move */
	Oid			heap_oid;		/* the index's table; the same for a table */
	Oid			part_of;		/* of a TOAST table and its index: the table
								 * with which it moves, a few items before;
								 * else 0 */
	Oid			parent;			/* the table of which the table is a
								 * partition, when it was planned; else 0 */
	NameData	relname;
	NameData	schema_name;	/* of the relation, and of its table */
	NameData	heap_name;
	char		relkind;
	Oid			from_tablespace;	/* never 0: the database default by its
									 * OID */
	Oid			to_tablespace;
	MoveMethod	requested;		/* by the caller */
	MoveMethod	method;

	/* by the planner */
	bool		repair;			/* an invalid index that the user named is
								 * rebuilt in any tablespace */
	bool		heal;			/* its file is lost */
	bool		hide;			/* lost, and hidden until it is rebuilt */
	bool		plain;			/* lost, and rebuilt by REINDEX without
								 * CONCURRENTLY */
	int64		size_before;	/* bytes, all forks */
	int64		bytes_to_write;
	int64		wal_bytes;
	int64		sort_bytes;		/* of a rebuild's sort files */
	bool		tight_space;	/* the file system of its old and its new file
								 * has room for max_workers such moves only */
	double		stored_share;	/* of the bytes that a copy writes: how many
								 * the target stores of them at most, 1 if it
								 * does not compress; only the space counts */

	int			turns;			/* that it has given to other relations, while
								 * it waited; by its runner */
	bool		alone;			/* it was parted from others; likewise */
	bool		owner_cancels;	/* only ever turns true: by a session of the
								 * table's owner, under the area's lock */
	bool		by_name;		/* a rename ends its move; by the caller, see
								 * online_alter.c */
	bool		as_owner;		/* needs the ownership that core's ALTER
								 * needs, and no other privilege of the
								 * relation */
	MoveOutcome outcome;
} MoveItem;

/* The relations of a job or a plan, together */
typedef struct JobTotals
{
	int			total;
	int			moved;
	int			rehearsed;
	int			skipped;
	bool		has_tables;		/* not only indexes */
	int64		size;			/* bytes */
	int64		size_moved;
	Oid			tablespace;		/* the target; 0 = several */
	bool		in_place;		/* rebuilt where they are */
	int64		longest_lock;	/* microseconds */
} JobTotals;

/* Budgets that the runners of a job share, see runner_use(); under the area's lock */
typedef enum JobBudget
{
	BUDGET_WRITING,				/* bytes; max_rate */
	BUDGET_READING,				/* seconds of slow reading; max_read_share */
} JobBudget;

#define IM_BUDGETS		2

typedef struct JobAccount
{
	double		used;			/* in all */
	double		paid;			/* of this, by the time that has passed */
	instr_time	paid_at;
} JobAccount;

/* A look for lost indexes in a database: the arguments of janitor_look(), and its answer */
typedef struct Look
{
	Oid			database;
	Oid			from;			/* the first tablespace to look at */
	int			jobs;			/* times at which it has begun some */
	double		again_at;		/* it begins none before clock_seconds() */

	/* the answer, besides these */
	Oid			stopped;		/* before this tablespace; 0 = at the end */
	bool		done;			/* it came to the end */
} Look;

/* The job's DSM segment. */
typedef struct JobShared
{
	int64		job;
	Oid			database;
	Oid			role;			/* set by the caller, constant */
	Oid			extension;		/* whose tables have its rows; constant, 0 of
								 * a cleanup */
	TimestampTz submitted_at;
	double		submitted_clock;	/* the same, as clock_seconds() */
	MoveSettings settings;		/* submitter; alter_move() later, under the
								 * area's lock.  Runners: runner_settings() */
	pg_atomic_uint32 settings_version;	/* incremented with each change */
	int			slot;			/* of the job, see JobSlot; constant */
	int			nitems;			/* constant */
	int64		wal_free;		/* bytes free for pg_wal at first, -1 =
								 * unknown; constant */
	int			first_queued;	/* no item before is queued; under the area's
								 * lock */
	int			first_untried;	/* no item before is queued and has had no
								 * turn; likewise */
	bool		recorded;		/* constant: the submitter has inserted the
								 * rows */
	int			caller_pid;		/* constant; 0 = no caller waits */
	int			caller_procno;	/* constant: for its latch */

	bool		begun;			/* a runner has attached, under the area's
								 * lock: one of them will set rows_final */
	pg_atomic_uint32 rows_final;	/* by the last runner that could change an
									 * item */
	pg_atomic_uint32 end_logged;	/* by the first runner that found them
									 * final */
	pg_atomic_uint32 extension_gone;	/* dropped, so a runner cancels the
										 * job */
	int			max_runners;	/* constant: how many there may be, with
								 * runners that wait for a lock */
	uint32		numbers;		/* a bit for each number that a runner has;
								 * under the area's lock */
	bool		starting;		/* one is just being started; likewise */
	int			parted;			/* how often relations that were moved
								 * together were parted; likewise */
	JobAccount	accounts[IM_BUDGETS];
	int64		bid_began;		/* the window of the runners' bids, by
								 * clock_us(), see runner_begin_bid(); under
								 * the area's lock */
	int64		bid_ends;
	Look		look;			/* that a cleanup ends with, for the launcher;
								 * database 0 = none.  By its runner */

	/* behind the items, a queue for messages for each runner: job_queue() */
	MoveItem	items[FLEXIBLE_ARRAY_MEMBER];
} JobShared;

#define IM_MAX_JOBS		32		/* at the same time, in the whole cluster */
#define IM_MAX_RUNNERS	32		/* each job has at least a runner */
#define IM_RESERVED_RUNNERS 3	/* for superusers */
#define RESUMPTION_TYPE	"index_mover resumption"
#define RUNNER_TYPE		"index_mover"	/* bgw_type of a runner, shown in
										 * pg_stat_activity */
#define JOB_QUEUE_SIZE	((Size) 16384)	/* bytes, for messages of a runner */
#define IM_MAX_BLOCKERS	8		/* transactions published; there may be more */
#define IM_MOST_TOGETHER 16		/* relations that a runner moves together,
								 * with their parts */

typedef enum JobPurpose
{
	JOB_MOVE,
	JOB_CLEANUP,				/* remove all that the ledger lists, or for
								 * the tables of the (skipped) items */
} JobPurpose;

#define IM_BLOCKED_GAP	(60 * USECS_PER_SEC)

/* Why a runner rests */
typedef enum RestKind
{
	REST_NONE,
	REST_PAUSE,					/* until resume_move() */
	REST_RATE,					/* max_rate */
	REST_READING,				/* max_read_share */
	REST_LAG,					/* of a standby or a slot */
	REST_SPACE,					/* free space */
	REST_CHECKPOINT,			/* ... that a checkpoint brings */
	REST_ARCHIVER,				/* ... that the archiver keeps */
} RestKind;

typedef struct RunnerRest
{
	RestKind	kind;
	NameData	slot;			/* that is behind, or keeps WAL; "" = none */
	char		shown[128];		/* as index_mover_progress shows it */
} RunnerRest;

#define CLEANUP_JOB		INT64CONST(0)	/* job number of cleanups without a
										 * call */

typedef enum JobState
{
	JOB_FREE,
	JOB_WAITING_FOR_COMMIT,		/* wait => false in a transaction block */
	JOB_STARTING,				/* the postmaster has been asked for a worker */
	JOB_RUNNING,
	JOB_CLEANING_UP,			/* rows are final, leftovers are being removed */
} JobState;

/* Requests of sessions that control a job to its runners */
typedef struct JobFlags
{
	bool		cancel;			/* only ever turns true */
	bool		keep;			/* ... and the file to go on from stays */
	bool		pause;
} JobFlags;

/*
 * A job in the main shared memory.  All fields are protected by the area's
 * lock.  The submitter fills them, the job's runners change state and
 * runner_pid, and sessions that control the job its flags.
 *
 * Everywhere else "int slot" is not the slot's index but the number of this use of
 * it, which must not direct a late worker to the job of another database.
 */
typedef struct JobSlot
{
	JobState	state;
	JobPurpose	purpose;
	int			use;			/* "int slot" of this use */
	int64		job;
	Oid			database;
	Oid			role;
	bool		superuser;		/* the role, at submission */
	dsm_handle	segment;		/* pinned until the slot is freed */
	int			submitter_pid;
	int			runner_pid;		/* of the first runner that is there; 0 = not
								 * started yet */
	int			runners;		/* that it has, or may still get */
	JobFlags	flags;
	int64		bytes_done;		/* of relations that have ended; by runners */
	uint64		recorded_by[MAX_WORKERS];	/* the last transaction of each
											 * runner that has written to the
											 * history; kept when it is free */
	TimestampTz since;			/* of submission or, once committed, of being
								 * JOB_STARTING */
	double		since_clock;	/* the same, as clock_seconds() */
	TimestampTz paused_at;		/* if flags.pause */
} JobSlot;

/* A runner and its relation.  The runner writes it under the area's lock. */
typedef struct RunnerSlot
{
	bool		in_use;
	int			slot;			/* of its job */
	int			number;			/* in that; 0 = the first runner */
	int			pid;
	int			caller_pid;		/* waits for this runner's job; 0 = none */
	bool		rows_final;		/* it only cleans up from now on */
	int			nitems;			/* that it has claimed last, and not ended */
	int			items[IM_MOST_TOGETHER];	/* the numbers of these */
	bool		tight_space;	/* that of the item */
	bool		gives_turn;		/* it gives up its relation for another one,
								 * which it has not claimed yet */
	int64		job;
	Oid			database;
	Oid			role;
	TimestampTz blocked_since;	/* gaps of less than IM_BLOCKED_GAP aside */
	int64		blocked_at;		/* when there were blockers last, by
								 * clock_us(); 0 = never */
	TimestampTz rests_since;	/* for a standby, a slot or free space; gaps
								 * as above */
	int64		rested_at;		/* when it rested so last, by clock_us(); 0 =
								 * never */
	/* the rest is of its relation: progress_begin() clears it */
	Oid			heap_oid;		/* 0 = between two relations */
	Oid			item_relid;		/* of the item; a table's part is below */
	Oid			relid;
	NameData	relname;
	NameData	schema_name;
	NameData	heap_name;
	char		relkind;
	MoveMethod	method;
	MovePhase	phase;
	RunnerRest	rest;
	int64		blocks_total;
	int64		blocks_done;
	int64		blocks_changed;
	int64		bytes_done;		/* of its relation; never decreases */
	int64		bytes_per_second;
	int64		changed_per_second; /* blocks; -1 = unknown */
	double		eta;			/* seconds from eta_at on; -1 = unknown */
	TimestampTz eta_at;
	int64		lock_attempts;
	int64		wal_lag;
	int			nwaits_for;
	VirtualTransactionId waits_for[IM_MAX_BLOCKERS];
	/* its processes that have not ended; set in copies of the slot only */
	int			nblockers;
	int			blockers[IM_MAX_BLOCKERS];	/* 0 = a prepared transaction */
	TimestampTz started_at;
	int			step_back_for;	/* process that the item must not wait for; 0
								 * = none.  Also written by the session that
								 * waits for the job */
	double		step_back_since;	/* by clock_seconds() */
} RunnerSlot;

/* A table or index that a job works on */
typedef struct BusyTable
{
	Oid			relid;			/* hash key: a table or, for to_tablespace, an
								 * index */
	int64		job;
	int			pid;
	bool		cleaning_up;
	bool		waits_for_commit;	/* for that of the transaction that has
									 * queued it */
	Oid			to_tablespace;	/* of the relation itself; 0 = not known */
} BusyTable;

typedef enum JobRequest
{
	REQUEST_CANCEL,
	REQUEST_CANCEL_AND_KEEP,	/* the files from which copies can go on */
	REQUEST_PAUSE,
	REQUEST_RESUME,
} JobRequest;

extern void job_request_shmem(void);
extern void job_init(void);
extern HTAB *job_busy_tables(void);
pg_noreturn extern void job_refuse_busy(const MoveItem *item, const BusyTable *table);
extern char *job_take_slot(JobShared *shared, dsm_handle segment,
						   JobPurpose purpose, JobState state);
extern bool job_has_room(Oid role);
extern bool job_more_runners(int slot);
extern void job_lacks_runner(int slot);
extern BackgroundWorkerHandle *job_register_runner(int slot, int64 job, int runner,
												   int notify_pid);
extern void job_set_starting(int slot);
extern bool job_get_slot(int slot, JobSlot *copy);
extern bool job_find(int64 job, JobSlot *copy);
extern int	job_read_slots(JobSlot *copies, Snapshot snapshot);
extern bool job_request(int64 job, JobRequest request);
extern bool job_cancel_item(JobShared *shared, int n);
extern int	job_read_runners(RunnerSlot *copies);
extern dsm_segment *job_map_segment(const JobSlot *slot, bool *mapped);
extern void job_alter_settings(JobShared *shared, Jsonb *json);
extern Size job_shared_size(int nitems, int nrunners);
extern int	job_last_part(const JobShared *shared, int n);
extern int64 job_size_with_parts(const JobShared *shared, int n);
extern int	job_parts_follow(JobShared *shared, int n);
extern shm_mq *job_queue(JobShared *shared, int runner);
extern bool runner_is_alive(int64 job, int pid);
extern void latch_nap(long ms, const char *wait_event);

/* Return the seconds on a clock that is not set back. */
static inline double
clock_seconds(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_DOUBLE(now);
}

/* As clock_seconds(), in microseconds */
static inline int64
clock_us(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_MICROSEC(now);
}

/* Return whether so many milliseconds have passed since then, by clock_seconds(). */
static inline bool
clock_has_passed(double since, int64 ms)
{
	return (clock_seconds() - since) * 1000 >= ms;
}

extern bool process_is_worker(void);

/* in a runner */

extern bool runner_attach(JobShared *shared, int number);
extern const MoveSettings *runner_settings(void);
extern bool runner_detach(void);
extern void runner_set_name(const JobShared *shared, JobPurpose purpose);
extern const char *runner_name(void);
extern int64 runner_job(void);
extern void runner_note_record(void);
extern bool runner_knows_pid(int pid);
extern void runner_cancel(JobShared *shared);
extern void runner_take_cancel(JobShared *shared);
extern void runner_nap(JobShared *shared, int ms);
extern bool runner_of_same_job(int pid);
extern double runner_use(JobBudget budget, double amount);
extern double runner_owes(JobBudget budget, double mark, double rate);
extern bool runner_is_alone(void);
extern int64 runner_bid_began(int timeout_ms);
extern int	runner_begin_bid(int timeout_ms);
extern bool runner_finish_rows(void);

/* Results of runner_claim() other than the number of an item */
#define CLAIM_NONE	(-1)
#define CLAIM_LATER	(-2)
typedef bool (*RelationCheck) (const MoveItem *item);
extern int	runner_claim(JobShared *shared, bool anything_left, RelationCheck is_free);
extern int	runner_claim_more(JobShared *shared, int most, int claimed[IM_MOST_TOGETHER]);
extern void runner_part(JobShared *shared, bool counts);
extern bool runner_start_another(JobShared *shared);
extern void runner_leave_number(JobShared *shared, int number);
extern void runner_make_up(void);
extern void runner_make_room(JobShared *shared, const MoveItem *item,
							 RelationCheck is_free);
extern bool runner_give_turn(JobShared *shared, MoveItem *item, RelationCheck is_free);
extern void runner_put_back(JobShared *shared, int n);
extern void runner_works_on(MoveItem *const *items, int nitems);

/* progress of a runner (progress.c); no-ops elsewhere */

/* a number of its slot */
#define progress_set(field, value) \
	(StaticAssertExpr(sizeof(((RunnerSlot *) NULL)->field) == sizeof(int64), #field), \
	 progress_set_number(offsetof(RunnerSlot, field), value))

extern void progress_set_number(Size offset, int64 value);
extern void progress_begin(const MoveItem *item);
extern void progress_part(const MoveItem *item);
extern void progress_end(int64 bytes_done);
extern MovePhase progress_phase(MovePhase phase);	/* returns the old phase */
extern void progress_rested(int64 us);
extern int64 progress_idle(void);
extern void progress_rests_for_others(void);
extern void progress_throttled(const RunnerRest *rest); /* NULL: it goes on */
extern const char *progress_rest_word(RestKind kind);
extern const RunnerRest rest_paused;
extern const RunnerRest rest_max_rate;
extern const RunnerRest rest_slow_storage;
extern void progress_blocks(int64 total, int64 done);
extern void progress_copied(int64 bytes);
extern void progress_eta(double seconds);	/* of the whole relation, from now */
extern void progress_blockers(const VirtualTransactionId *vxids, int count);

extern const JobFlags *job_flags(void);
#define job_cancel_requested()		(job_flags()->cancel)
#define job_keep_requested()		(job_flags()->keep)
#define job_pause_requested()		(job_flags()->pause)
extern void job_check_cancel(void);
extern void runner_serve_cancel(bool serve);
extern bool runner_ask_to_step_back(const RunnerSlot *seen, int blocker);
extern bool runner_must_step_back(void);
extern void runner_forget_step_back(void);
extern void runner_check_step_back(void);
extern const char *describe_command(int pid);

extern const char *method_name(MoveMethod method);
extern MoveMethod method_of_name(const char *name);
extern MoveStatus status_of_name(const char *name);

/* In place of a relkind, for things that stay in an evacuated tablespace */
#define ITEM_DATABASE	'D'
#define ITEM_CATALOGS	'C'
#define ITEM_FILES		'F'
#define ITEM_COPY		'K'
#define ITEM_OLD_FILE	'O'
#define ITEM_SETTING	'G'

extern const char *relation_kind(char relkind, const char *schema_name);
extern const char *kind_noun(const char *kind);
extern void item_fill(MoveItem *item, const RelationFacts *facts);
extern void item_say(MoveItem *item, const char *fmt,...) pg_attribute_printf(2, 3);
extern bool item_skip(MoveItem *item, int sqlerrcode, const char *fmt,...)
			pg_attribute_printf(3, 4);
extern const char *relations_noun(const JobTotals *totals);
extern void job_totals_add(JobTotals *totals, bool is_index, MoveStatus status, int64 size,
						   Oid from_tablespace, Oid to_tablespace, int64 lock_time);
extern JobTotals job_totals(const MoveItem *items, int nitems);
extern const char *status_name(MoveStatus status);
extern const char *phase_name(MovePhase phase);

/* The argument of the methods: an item in a runner */
typedef struct MoveContext
{
	JobShared  *job;
	MoveItem   *item;
	MoveItem  **items;			/* all that it moves together, "item" first */
	int			nitems;
	const MoveSettings *settings;	/* runner_settings() */
	int			max_wait_ms;	/* of a cleanup; 0 = no limit */
	int64		began;			/* by clock_us() */
	int64		rested_before;	/* pacing_rested_ms() then */
	bool		gives_turn;		/* the move was given up: its items are queued
								 * again */
	const char *why_ended;		/* why the copy has ended without its swap */
	bool		was_locked;		/* ... of several relations: another session
								 * has locked one of them */
} MoveContext;

#endif							/* IM_JOB_H */
