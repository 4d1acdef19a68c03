/*-------------------------------------------------------------------------
 *
 * tier_private.h
 *	  Shared by the parts of the placement: heat, places, the ranking, tier
 *	  policies, their plans, and their runs.  Nothing here locks a user's
 *	  relation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIER_PRIVATE_H
#define IM_TIER_PRIVATE_H

#include "nodes/pg_list.h"
#include "utils/date.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"

#include "file_system.h"
#include "relation_facts.h"
#include "settings.h"

/* moments.c: arithmetic without an error; a result out of range is an infinity */
extern TimestampTz moment_plus(TimestampTz moment, const Interval *interval);
extern TimestampTz moment_minus(TimestampTz moment, const Interval *interval);
extern Timestamp moment_local(TimestampTz moment);
extern TimestampTz moment_of_local(Timestamp local);
extern const char *moment_text(TimestampTz moment);

/* heat.c: how much a relation is used, and how sure that is */

/* kB: what sorts in memory needs no space on a disk that a policy is to empty */
#define HEAT_PLAN_MEMORY	Max(work_mem, maintenance_work_mem)

#define HOURLY_DAYS		7		/* so long samples of each hour are kept, and
								 * then of each day */

/* The counters of a relation; the order is that of the table "sample" */
enum
{
	HEAT_READ,					/* blocks read into shared buffers */
	HEAT_WANTED,				/* the most that index scans and changes need */
	HEAT_INDEX_SCANS,			/* of a table of all its indexes */
	HEAT_OTHER_SCANS,			/* of a table: sequential scans and the like */
	HEAT_CHANGES,				/* of rows; of an index entries made */
	HEAT_OVERLAPPED,			/* of a table the part of HEAT_WANTED by
								 * bitmap scans, which read several of its
								 * blocks at a time */
	HEAT_COUNTERS
};

/* Kinds of use; VACUUM is none */
typedef enum IdleOf
{
	IDLE_OF_USE,				/* scans of any kind, and changes */
	IDLE_OF_INDEX_USE,			/* index scans, and changes */
	IDLE_OF_CHANGE,
	IDLE_KINDS
} IdleOf;

/* Rates of the samples, weighted by a half-life; without samples, of the statistics */
typedef struct HeatRates
{
	double		reads_per_second;	/* HEAT_READ */
	double		wanted_per_second;	/* HEAT_WANTED, as far as it was read */
	double		scans_per_second;	/* HEAT_INDEX_SCANS */
	double		changes_per_second; /* HEAT_CHANGES */
	double		overlapped;		/* share of HEAT_OVERLAPPED in HEAT_WANTED */
	double		seconds;		/* the period */
	int			samples;		/* in it; 0 = the cumulative statistics */
} HeatRates;

/* A table, materialized view or index with a file, permanent or unlogged */
typedef struct Heat
{
	RelationFacts facts;
	bool		of_extension;	/* it, or its table, belongs to an extension */
	HeatRates	rates;			/* by the half-life of the last heat_weigh() */

	/*
	 * Of each kind the last that was seen, or the end of the step in which it
	 * was, 0 = none; and since when no other can have been unseen.
	 */
	TimestampTz last_use[IDLE_KINDS];
	TimestampTz known_since[IDLE_KINDS];
	TimestampTz reset_at;		/* a counter went back, or the sample after
								 * it; 0 = not seen */

	int64		counters[HEAT_COUNTERS];	/* of now */
	bool		is_searched;	/* by an index scan, as far as is known */
} Heat;

/* How many blocks of each relation were wanted in each part of a time up to now */
typedef struct HeatHistories
{
	TimestampTz begin;
	int			n;				/* parts */
	float	  **wanted;			/* of each relation in each part; NULL = none */
	MemoryContext context;		/* has all of it */
} HeatHistories;

typedef struct HeatTable
{
	Heat	   *heats;			/* each table, and then its indexes */
	int			n;

	/* for heat.c */
	TimestampTz now;
	TimestampTz stats_since;
	TimestampTz samples_since;	/* samples before are of another server */
	TimestampTz sampled_since;	/* first of these; DT_NOEND = there is none */
	int			sort_memory;	/* kB, for samples */
	MemoryContext context;		/* has all of it */
	double		half_life;		/* seconds, of the rates that are read */
	List	   *weighed;		/* of WeighedRates, the last ones */
	List	   *histories;		/* of HeatHistories, the last ones */
	MemoryContext reading;		/* of samples, empty when they were read */
	TimestampTz *moments;		/* of samples, while they are read */
	int			nmoments;
} HeatTable;

extern HeatTable *heat_read(int sort_memory);
extern void heat_weigh(HeatTable *table, const Interval *half_life);
extern const HeatHistories *heat_histories(HeatTable *table, TimestampTz begin, int n);
extern const Interval *heat_half_life_argument(FunctionCallInfo fcinfo, int n);
extern PGDLLEXPORT Datum index_mover_take_index_sample(PG_FUNCTION_ARGS);

/* places.c: tablespaces */
typedef struct Place
{
	Oid			oid;			/* 0 = a disk that is not there */
	NameData	name;
	double		cost;			/* random_page_cost */
	TimestampTz probed_at;		/* the last time; 0 = not in the last 90 days */
	double		read_ms;		/* as probed, the median */
	double		overlapped_ms;	/* the same of a read that a bitmap scan
								 * announces */
	bool		is_there;		/* its directory can be read, and has facts */
	FileSystemFacts facts;
} Place;

/* How a difference is known */
typedef enum PlaceBasis
{
	PLACE_SAME_DEVICE,
	PLACE_PROBED,
	PLACE_COSTS,				/* random_page_cost */
	PLACE_HEAT_ALONE,			/* neither probed, costs equal: counts as 1 ms */
} PlaceBasis;

extern List *places_unprobed(void);
extern List *places_read(void);
extern Place *places_named(const List *places, const char *name);
extern Place *places_find(const List *places, Oid tablespace);
extern double places_used(const List *places, Oid tablespace);
extern void places_move(List *places, Oid from, Oid to, int64 leaves, int64 arrives);
extern double place_difference(const Place *here, const Place *target, double overlapped,
							   PlaceBasis *basis);
extern double place_read_ms(const Place *place, const Place *target, double overlapped);
extern Place *place_imagine(double read_ms);

/* ranking.c: which relations are to be in a tablespace */

#define RANKING_STAYS	1.2		/* as many times as much must another gain to
								 * take the place of a resident */

/* The relations that a policy is for */
typedef struct TierScope
{
	Oid			to;				/* 0 = a disk that is not there */
	Oid			from;			/* 0 = any, of schema, too */
	Oid			schema;
	List	   *within;			/* OIDs of tables; NIL = any */
	bool		tables;
	bool		indexes;
	bool		residents;		/* also relations in "to", which leave for
								 * "from" */
} TierScope;

typedef struct Candidate
{
	int64		size;			/* bytes stored in the target, now or then */
	double		value;			/* ms a second that it gains there, or loses */
	bool		is_resident;	/* it is in the target */
	bool		is_sampled;		/* size is what the target stores */
	bool		is_fixed;		/* a resident that cannot leave */
	bool		is_chosen;		/* it is to be there: ranking_choose() */
	double		worth;			/* for ranking.c: value, as it counts */
	double		key;			/* to sort by */

	/* for the caller */
	const Heat *heat;
	Oid			to;				/* where it moves, if it does; 0 = nowhere */
	PlaceBasis	basis;			/* of the value */
	bool		rebuilds;		/* it moves by a rebuild, which leaves "size" */
	double		bloat;			/* share that this frees; NaN = not known */
	struct TierRow *row;		/* NULL = tier_plan.c has not planned it */
} Candidate;

#define CANDIDATE_MOVES(candidate) ((candidate)->is_chosen != (candidate)->is_resident)

typedef bool (*CandidateCheck) (Candidate *candidate, void *arg);
extern void ranking_choose(Candidate *candidates, int n, int64 budget,
						   CandidateCheck try_move, void *arg);
extern bool scope_includes(const TierScope *scope, const Heat *heat);
extern bool ranking_counts(const Heat *heat);
extern Candidate *candidates_collect(const HeatTable *heats, const List *places,
									 const TierScope *scope, const MoveSettings *settings, int *n);

/* key_units.c: the meaning of the keys of range partitions */

/* The words of a policy about integers and UUIDs */
typedef enum KeyUnit
{
	KEY_UNIT_NONE,
	KEY_UNIT_SECONDS,			/* since 1970, as the next three */
	KEY_UNIT_MILLISECONDS,
	KEY_UNIT_MICROSECONDS,
	KEY_UNIT_DAYS,
	KEY_UNIT_YYYYMMDD,
	KEY_UNIT_YYYYMM,
	KEY_UNIT_UUID7,				/* of RFC 9562 */
	KEY_UNIT_RATE,				/* key_zero and keys_per_second */
} KeyUnit;

typedef struct KeyMeaning
{
	KeyUnit		unit;
	Numeric		zero;			/* the key of 1970-01-01 UTC, of a rate */
	Numeric		per_second;
} KeyMeaning;

/* The kind of a partition key: of two levels the greater counts */
typedef enum KeyKind
{
	KEY_OTHER,					/* it is no time */
	KEY_WITHOUT_UNIT,			/* an integer or UUID: it needs a key_unit */
	KEY_WITH_UNIT,				/* the policy has its meaning */
	KEY_TIME,					/* a date or timestamp */
} KeyKind;

extern KeyUnit key_unit_named(const char *name);
extern KeyKind key_kind(Oid type, const KeyMeaning *meaning);
extern const char *key_unit_hint(Oid type);
extern const char *key_moment(Oid type, Datum key, const KeyMeaning *meaning, TimestampTz *moment);
extern char *key_text(Oid type, Datum key);

/* partition_bounds.c */

/* A table with a file, and where its range ends */
typedef struct PartitionLeaf
{
	Oid			relid;
	KeyKind		kind;			/* of the key that counts */
	bool		several;		/* columns have a key with the policy's unit */
	const char *column;			/* of that; NULL = none does */
	TimestampTz end;			/* exclusive; undefined if why_none is set */
	char	   *text;			/* of the bound, as its type prints it; NULL =
								 * it has none */
	const char *why_none;		/* the end is not known; else NULL */
} PartitionLeaf;

extern List *partition_leaves(Oid relid, const KeyMeaning *meaning);

/* policy.c */
typedef enum PolicyKind
{
	POLICY_OLDER_THAN,
	POLICY_IDLE_FOR,
	POLICY_BUDGET,
	POLICY_START_AT,
} PolicyKind;

/* A row of tier_policy */
typedef struct Policy
{
	NameData	name;
	NameData	owner_name;		/* "" = none */
	Oid			owner;			/* 0 = it has no valid owner */
	bool		is_visible;		/* to the current user */
	bool		enabled;
	PolicyKind	kind;
	Oid			relation;		/* 0 = any */
	char	   *schema;			/* NULL = any */
	char	   *from_tablespace;	/* NULL = any */
	Name		to_tablespace;
	bool		tables;			/* of parts */
	bool		indexes;
	Interval   *age;			/* older_than or idle_for */
	IdleOf		idle_of;
	KeyMeaning	key;			/* of integers and UUIDs, for older_than */
	char	   *now_function;	/* of a dump of 1.0.0: it is disabled; else
								 * NULL */
	int64		budget;
	double		start_at;
	double		stop_at;
	bool		freeze_first;
	Interval   *min_stay;
	Interval   *half_life;		/* of heat */
	int64		max_bytes_per_run;	/* 0 = no limit */
	Interval   *every;			/* NULL = only when called */
	TimeADT		window_start;	/* -1 = at any time */
	TimeADT		window_end;
	TimestampTz scheduled_since;	/* 0 = unknown */
	Jsonb	   *settings;		/* NULL = none */
} Policy;

/* Why policies are not carried out now */
typedef struct PolicyFault
{
	char	   *reason;			/* NULL = they are */
	char	   *command;		/* that mends it; NULL = there is none */
} PolicyFault;

/* policy_fault.c */
extern Oid	policy_table(void);
extern Oid	policy_lock_table(bool hold, bool noerror);
extern PolicyFault policy_fault(void);

/* policy.c */
extern bool policies_are_readable(Oid table);
extern List *policies_of_table(Oid table);
extern List *policies_read(const char *name, bool all);
extern char *policy_obstacle(const Policy *policy);
extern void policy_check_target(const char *tablespace, bool tables);

/* hindsight.c */
extern bool hindsight_is_better(HeatTable *heats, const TierScope *scope,
								const Policy *policy, Interval *half_life, double *more);

/* policy_conflict.c */

/* A file system that policies empty */
typedef struct PressureDevice
{
	int64		device;
	double		total;
	double		used;			/* with all that was planned before */
} PressureDevice;

/* Up to where other policies may fill a file system that a policy empties */
typedef struct PressureLimit
{
	const Policy *policy;		/* with start_at */
	Oid			from;			/* its tablespaces */
	Oid			to;
	Oid			schema;			/* of the relations that it is for; 0 = any */
	PressureDevice *device;		/* of "from" */
	double		share;			/* of its bytes that may be in use */
	bool		counted;		/* in the budget of the policy that is planned */
} PressureLimit;

/* The limits of a call */
typedef struct PressureLimits
{
	const List *places;
	List	   *devices;		/* of PressureDevice */
	List	   *limits;			/* of PressureLimit; limits of the same owner
								 * are in a row */
} PressureLimits;

extern PressureLimits *conflict_limits(const List *places);
extern const PressureLimit *conflict_find(const PressureLimits *limits, const Policy *policy,
										  const List *moves, bool with_counted);
extern void conflict_note_moves(PressureLimits *limits, const List *moves);
extern int64 conflict_budget(PressureLimits *limits, const Policy *policy,
							 const Candidate *candidates, int n, const Place *target,
							 HTAB *busy, const PressureLimit **found);

/* policy_run.c */

/* The result of a run of a policy, or of its plan */
typedef enum RunResult
{
	RUN_JOB,					/* its job says it */
	RUN_NOTHING,				/* nothing is to be moved */
	RUN_WAITS,					/* all that is to be moved waits for a later
								 * run */
	RUN_HINDERED,				/* nothing can be moved, although it should be */
	RUN_FAILED,					/* the plan, or the submission of the job */
} RunResult;

/* The last run of a policy: a row of index_mover.policy_run, in the order of its columns after the key */
typedef struct PolicyRun
{
	TimestampTz started_at;		/* 0 = there was none */
	int64		job;			/* 0 = it has none */
	int			failures;		/* runs before it that failed in a row */
	RunResult	result;
	char	   *message;		/* why, if it waits, is hindered or failed, or
								 * the next run goes on; else NULL */
	int64		waits_for;		/* job; 0 = none */
	TimestampTz waits_since;	/* for this job and jobs before; 0 = no job */
	bool		in_trouble;		/* it is hindered or has failed, or was so
								 * before it waited */
	bool		is_being_deleted;	/* by a transaction that has not ended */
} PolicyRun;

extern void policy_run_forget(const char *policy);
extern bool policy_run_claim(const Policy *policy);
extern const char *policy_run_word(RunResult result);
extern void policy_run_read(const Policy *policy, PolicyRun *run);
extern bool policy_run_record(const Policy *policy, PolicyRun *run, PolicyRun *before);
extern bool policy_is_running(const PolicyRun *run);
extern bool policy_wait_is_over(const PolicyRun *run);
extern int	policy_failures(const PolicyRun *run, char **why);

/* tier_plan.c, tier_run.c, tier_scheduler.c */
typedef struct TierPlan TierPlan;

/* A policy's plan: the relations to be moved, or why none is */
typedef struct PolicyPlan
{
	const Policy *policy;
	MoveSettings settings;
	List	   *items;			/* of PlannedMove; NIL = nothing */
	RunResult	result;
	const ErrorData *error;		/* of RUN_FAILED; else NULL */
	char	   *reason;			/* why it is hindered, or waits, or the next
								 * run goes on; else NULL */
	int64		waits_for;		/* job; 0 = none */
} PolicyPlan;

extern TierPlan *tier_plan_begin(TimestampTz at);
extern PolicyPlan *tier_plan_policy(TierPlan *plan, const Policy *policy);
extern void tier_run_scheduled(const Policy *policy, TimestampTz window_end);
extern bool tier_scheduler_looks(void);
extern TimestampTz tier_next_run(TimestampTz last, const Interval *every, TimeADT window_start,
								 TimeADT window_end, TimestampTz now, TimestampTz *end);

#endif							/* IM_TIER_PRIVATE_H */
