/*-------------------------------------------------------------------------
 *
 * tier_private.h
 *	  Shared by the parts of the placement: heat, places, the one ranking, tier
 *	  policies, their plans, and their runs.  Nothing here locks a user's
 *	  relation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIER_PRIVATE_H
#define IM_TIER_PRIVATE_H

#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "utils/date.h"
#include "utils/fmgrprotos.h"

#include "file_system.h"
#include "relation_facts.h"
#include "settings.h"

/* heat.c: how much a relation is used, and how sure that is */

extern TimestampTz moment_plus(TimestampTz moment, const Interval *interval);
extern TimestampTz moment_minus(TimestampTz moment, const Interval *interval);

/* The counters of a relation; the order is that of the table "sample" */
enum
{
	HEAT_READ,					/* blocks read into shared buffers */
	HEAT_WANTED,				/* the most that index scans and changes need */
	HEAT_INDEX_SCANS,			/* of a table those of all its indexes */
	HEAT_OTHER_SCANS,			/* of a table: sequential scans and the like */
	HEAT_CHANGES,				/* of rows; of an index entries made */
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

/* A table, materialized view or index with a file, permanent or unlogged */
typedef struct Heat
{
	RelationFacts facts;
	bool		of_extension;	/* it, or its table, belongs to an extension */

	/* rates of the last week's samples; without any, of the statistics */
	double		reads_per_second;	/* HEAT_READ */
	double		wanted_per_second;	/* HEAT_WANTED, as far as it was read */
	double		seconds;		/* the period */
	int			samples;		/* in it; 0 = the cumulative statistics */

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

typedef struct HeatSample HeatSample;

typedef struct HeatTable
{
	Heat	   *heats;			/* each table, and then its indexes */
	int			n;

	/* for heat.c */
	TimestampTz now;
	TimestampTz stats_since;
	TimestampTz samples_since;	/* those before are of another server */
	TimestampTz window;			/* the first moment of the last week */
	HeatSample *samples;		/* and the counters of now, in order */
	int			nsamples;
	int			nmoments;		/* of these, which come first */
} HeatTable;

extern HeatTable *heat_read(void);
extern PGDLLEXPORT Datum index_mover_take_index_sample(PG_FUNCTION_ARGS);

/* places.c: tablespaces */
typedef struct Place
{
	Oid			oid;
	NameData	name;
	double		cost;			/* random_page_cost */
	TimestampTz probed_at;		/* 0 = not in the last 90 days */
	double		read_ms;		/* as probed */
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

extern List *places_read(void);
extern Place *places_find(const List *places, Oid tablespace);
extern double place_difference(const Place *here, const Place *target, PlaceBasis *basis);

/* ranking.c: which relations are to be in a tablespace */

/* The relations that a policy is for */
typedef struct TierScope
{
	Oid			to;
	Oid			from;			/* 0 = any, of schema, too */
	Oid			schema;
	List	   *within;			/* OIDs of tables; NIL = any */
	bool		tables;
	bool		indexes;
	bool		residents;		/* also those in "to", which leave for "from" */
} TierScope;

typedef struct Candidate
{
	int64		size;			/* bytes in the target, now or then */
	double		value;			/* ms a second that it gains there, or loses */
	bool		is_resident;	/* it is in the target */
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
extern void ranking_choose(Candidate *candidates, int n, int64 budget, CandidateCheck can_move, void *arg);
extern bool scope_includes(const TierScope *scope, const Heat *heat);
extern Candidate *candidates_collect(const HeatTable *heats, const List *places,
									 const TierScope *scope, const MoveSettings *settings, int *n);

/* partition_bounds.c */
typedef enum BoundKind
{
	BOUND_NONE,
	BOUND_NUMBER,
	BOUND_TIME,
} BoundKind;

typedef struct Bound
{
	BoundKind	kind;
	int64		value;			/* the number, or a TimestampTz */
} Bound;

/* A table with a file, and where its range ends */
typedef struct PartitionLeaf
{
	Oid			relid;
	Bound		end;
	char	   *text;			/* the same as its type prints it */
	const char *why_none;		/* it has none; else NULL */
	const char *column;			/* of the key that counts; NULL = none does */
} PartitionLeaf;

extern List *partition_leaves(Oid relid);
extern BoundKind bound_kind(Oid type);
extern int64 bound_value(Oid type, Datum value);

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
	Oid			owner;			/* 0 = is to be set again */
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
	char	   *now_function;	/* NULL = now() */
	int64		budget;
	double		start_at;
	double		stop_at;
	bool		freeze_first;
	Interval   *min_stay;
	int64		max_bytes_per_run;	/* 0 = no limit */
	Interval   *every;			/* NULL = only when called */
	TimeADT		window_start;	/* -1 = at any time */
	TimeADT		window_end;
	Jsonb	   *settings;		/* NULL = none */
} Policy;

extern Oid	policy_lock_table(bool hold, bool noerror);
extern List *policies_read(const char *name, bool all);
extern void policy_check_target(const char *tablespace, bool tables);

#define RUN_BEGUN	INT64CONST(-1)	/* it is planned, or its worker has died */
#define RUN_DIED	"its worker, or the server, has ended early"
#define PLAN_TIMEOUT_MS	((int) IM_LIMIT("plan-ms", 5 * 60 * 1000))	/* a now_function can
																	 * sleep */
#define PLAN_END_MS		(PLAN_TIMEOUT_MS / 5 * 6)	/* or not let itself be
													 * canceled */
#define PLAN_GONE_MS	(PLAN_TIMEOUT_MS / 5 * 7)	/* its worker has died */

/* The last run of a policy: a row of index_mover.policy_run, in the order of its columns */
typedef struct PolicyRun
{
	TimestampTz started_at;		/* 0 = there was none */
	int64		job;			/* 0 = nothing to move; or RUN_BEGUN */
	int			failures;		/* runs before it that failed in a row */
	char	   *message;		/* error of the run itself; NULL = none */
	bool		is_being_deleted;	/* by a transaction that has not ended */
} PolicyRun;

extern bool policy_lock(Oid owner, bool nowait);
extern void policy_run_read(const char *policy, PolicyRun *run);
extern void policy_run_record(const char *policy, int64 job, const char *message);
extern bool policy_is_running(const PolicyRun *run);
extern int	policy_failures(const PolicyRun *run, char **why);

/* tier_plan.c, tier_run.c, tier_scheduler.c */

/* The arguments of a worker: it runs a policy, or looks into a database */
typedef struct TierWorker
{
	Oid			database;
	Oid			role;			/* owner of the policy */
	NameData	name;			/* of the policy, or of the database */
	bool		looks;
	dsm_handle	segment;		/* for a caller's queue, or a look's answer */

	/* of a run of the scheduler: after which no relation begins; 0 = none */
	TimestampTz window_end;

	/* of a look */
	bool		sample;			/* is due */
	int			next;			/* in ms; set by the look */
} TierWorker;

extern List *tier_plan_items(const Policy *policy, MoveSettings *settings);
extern BackgroundWorkerHandle *tier_worker_start(const TierWorker *args, int elevel);
extern void tier_look(TierWorker *args);

#endif							/* IM_TIER_PRIVATE_H */
