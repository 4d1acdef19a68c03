/*-------------------------------------------------------------------------
 *
 * tier_private.h
 *	  What the parts of the placement share: heat, places, the one ranking, tier
 *	  policies, what they would move, and their runs.
 *
 * Nothing here takes a lock on a user's relation: all is read from the catalogs,
 * the cumulative statistics, the samples and the file system, in the caller's
 * transaction and memory context.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIER_PRIVATE_H
#define IM_TIER_PRIVATE_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "storage/itemptr.h"
#include "utils/date.h"
#include "utils/hsearch.h"
#include "utils/jsonb.h"
#include "utils/relcache.h"

#include "compat.h"
#include "file_system.h"
#include "settings.h"

/* ----------------------------------------------------------------
 *	heat.c: how much a relation is used, and how sure that is
 * ----------------------------------------------------------------
 */

/* The counters of a relation; the order is that of the table "sample" */
enum
{
	HEAT_READ,					/* blocks read into shared buffers */
	HEAT_WANTED,				/* as many as index scans and changes can have
								 * asked for: VACUUM and pg_dump read, too */
	HEAT_INDEX_SCANS,			/* of a table those of all its indexes */
	HEAT_OTHER_SCANS,			/* of a table: sequential scans and the like */
	HEAT_CHANGES,				/* rows inserted, updated, deleted; of an
								 * index entries made */
	HEAT_COUNTERS
};

/* One kind of use, as far as samples and statistics of this server tell */
typedef struct HeatUse
{
	TimestampTz last;			/* the last that was seen, or the end of the
								 * step in which it was; 0 = none was seen */
	TimestampTz known_since;	/* since then no other can have been unseen */
} HeatUse;

/* A table, materialized view or index with a file, permanent or unlogged */
typedef struct Heat
{
	Oid			relid;
	Oid			table_oid;		/* of an index its table, else relid */
	NameData	name;
	Oid			schema_oid;
	char		relkind;		/* RELKIND_RELATION, _MATVIEW or _INDEX */
	Oid			tablespace;		/* never 0: the database's default by its OID */
	RelFileNumber relfilenumber;
	Oid			toast_oid;		/* of a table; 0 = none */
	bool		is_valid;		/* of an index: valid, ready and live */
	bool		is_searched;	/* false: an index that enforces nothing, and
								 * no scan has used as far back as the
								 * statistics go */
	bool		of_extension;	/* it, or its table, belongs to an extension */

	/* rates of the last week's samples; without any, of the statistics */
	double		reads_per_second;	/* HEAT_READ */
	double		wanted_per_second;	/* HEAT_WANTED, as far as it was read */
	double		seconds;		/* the period */
	int			samples;		/* in it; 0 = the cumulative statistics */

	HeatUse		scans;			/* of any kind */
	HeatUse		index_scans;
	HeatUse		changes;		/* INSERT, UPDATE, DELETE; not VACUUM */

	/* for heat.c */
	int64		counters[HEAT_COUNTERS];	/* of now */
	bool		is_sampled;		/* the last sample has the same */
	int64		fetched;		/* of an index: rows of the table */
	int64		to_indexes;		/* of a table: entries that its indexes took */
	int64		to_indexes_cold;	/* the same without HOT updates */
	TimestampTz last_scan;		/* 0 = none, or not known before 16 */
	TimestampTz last_index_scan;	/* of a table: the last of its indexes */
} Heat;

typedef struct HeatTable
{
	Heat	   *heats;			/* in the order of relid */
	int			n;
	TimestampTz last_moment;	/* of the last sample; 0 = there is none */
} HeatTable;

extern TimestampTz heat_stats_since(void);
extern HeatTable *heat_read(void);
extern Heat *heat_of(const HeatTable *table, Oid relid);
extern int64 heat_size(const Heat *heat);
extern int64 samples_take(const Interval *retention);

typedef enum IdleOf
{
	IDLE_OF_USE,				/* no scan of any kind, no change */
	IDLE_OF_INDEX_USE,			/* no index scan, no change */
	IDLE_OF_CHANGE,				/* no change */
} IdleOf;

extern HeatUse heat_use(const Heat *heat, IdleOf of);

/* ----------------------------------------------------------------
 *	places.c: tablespaces
 * ----------------------------------------------------------------
 */
typedef struct Place
{
	Oid			oid;
	NameData	name;
	double		cost;			/* random_page_cost */
	TimestampTz probed_at;		/* 0 = not in the last 90 days */
	double		read_ms;		/* as probed, or else by cost */
	bool		is_there;		/* false: facts are all zero, its directory
								 * cannot be read */
	FileSystemFacts facts;
} Place;

typedef struct PlaceTable
{
	Place	   *places;			/* without pg_global */
	int			n;
} PlaceTable;

/* How a difference is known */
typedef enum PlaceBasis
{
	PLACE_SAME_DEVICE,
	PLACE_PROBED,
	PLACE_COSTS,				/* random_page_cost */
	PLACE_HEAT_ALONE,			/* neither probed, costs equal: counts as 1 ms */
} PlaceBasis;

extern PlaceTable *places_read(void);
extern Place *places_find(const PlaceTable *table, Oid tablespace);
extern double place_difference(const Place *here, const Place *target, PlaceBasis *basis);

/* ----------------------------------------------------------------
 *	ranking.c: who goes, who stays, who leaves; knows only this
 * ----------------------------------------------------------------
 */
#define RANKING_MIN_HEAT	0.01	/* blocks wanted a second: below it
									 * nothing moves in */
#define RANKING_STAYS		1.2 /* as many times as much must another gain to
								 * take the place of a resident */

typedef enum CandidateFate
{
	CANDIDATE_REMAINS,			/* is not in the target, and does not go there */
	CANDIDATE_GOES,
	CANDIDATE_STAYS,			/* is in the target, and stays there */
	CANDIDATE_LEAVES,
} CandidateFate;

typedef struct Candidate
{
	int64		size;			/* bytes that it has, or would have, in the
								 * target */
	double		value;			/* ms a second that it gains there; below 0:
								 * it would be faster elsewhere */
	bool		is_resident;	/* it is in the target */
	bool		is_fixed;		/* a resident that has no other place */
	CandidateFate fate;			/* set by ranking_choose() */

	/* for the caller */
	const Heat *heat;
	Oid			home;			/* of a resident: where it goes if it leaves */
	PlaceBasis	basis;			/* of the value */
	bool		may_copy;
	bool		may_rebuild;
	bool		rebuilds;		/* it moves by a rebuild, which leaves "size" */
	double		bloat;			/* share that this frees; NaN = not measured */
	bool		bloat_is_least; /* it frees this at least */
} Candidate;

extern void ranking_choose(Candidate *candidates, int n, int64 budget);

/* Return whether a relation takes part; arg is the caller's. */
typedef bool (*CandidateFilter) (const Heat *heat, void *arg);

extern Candidate *candidates_collect(const HeatTable *heats, const PlaceTable *places,
									 Oid target, Oid home, const MoveSettings *settings,
									 CandidateFilter filter, void *arg, int *n);

/* ----------------------------------------------------------------
 *	partition_bounds.c
 * ----------------------------------------------------------------
 */
typedef enum BoundKind
{
	BOUND_NONE,					/* no range of a date, timestamp or integer */
	BOUND_DEFAULT,
	BOUND_MAXVALUE,
	BOUND_NUMBER,
	BOUND_TIME,
} BoundKind;

/* A table with a file, and where its range ends */
typedef struct PartitionLeaf
{
	Oid			relid;
	BoundKind	kind;
	int64		end;			/* the number, or a TimestampTz */
	char	   *text;			/* the same as its type prints it; NULL = none */
} PartitionLeaf;

extern List *partition_leaves(Oid relid);
extern BoundKind bound_kind(Oid type);
extern int64 bound_value(Oid type, Datum value);

/* ----------------------------------------------------------------
 *	policy.c
 * ----------------------------------------------------------------
 */
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
	bool		enabled;
	PolicyKind	kind;
	Oid			relation;		/* 0 = any */
	char	   *schema;			/* NULL = any */
	char	   *from_tablespace;	/* NULL = any */
	char	   *to_tablespace;
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
	TimeADT		window_end;		/* -1 = without end */
	Jsonb	   *settings;		/* NULL = none */
} Policy;

extern Oid	policy_table(void);
extern List *policies_read(const char *name, bool all);
extern void policy_check_target(const char *tablespace, bool tables);
extern void policy_as_owner(Oid owner, void (*work) (void *arg), void *arg);
extern Oid	policy_function(const char *name);
extern bool policy_window(const Policy *policy, TimestampTz now, int *seconds);

/* The last run of a policy: a row of index_mover.policy_run */
typedef struct PolicyRun
{
	TimestampTz started_at;		/* 0 = there was none */
	int64		job;			/* 0 = nothing to move */
	int			failures;		/* runs in a row that have failed, without
								 * this one's job */
	char	   *message;		/* error of the run itself; NULL = none */
} PolicyRun;

extern bool policy_lock(Oid owner, bool nowait);
extern void policy_unlock(Oid owner);
extern void policy_run_read(const char *policy, PolicyRun *run);
extern void policy_run_write(const char *policy, const PolicyRun *run);
extern int	policy_failures(const PolicyRun *run, char **why);

/* ----------------------------------------------------------------
 *	tier_plan.c
 * ----------------------------------------------------------------
 */

/* The outcome of a policy for one relation, or, with relid 0, about itself */
typedef struct TierRow
{
	Oid			relid;
	Oid			table_oid;		/* of an index its table, else relid */
	bool		is_index;
	Oid			from;			/* tablespaces; 0 = unknown */
	Oid			to;
	int64		size;			/* -1 = unknown */
	char	   *why;			/* it is wanted there; NULL = it is not */
	char	   *hindrance;		/* NULL = it moves */
	bool		is_usual;		/* without a bound, as it is meant to be */
	double		order;			/* smaller first */
	double		heat;			/* -1 = does not matter */
	double		estimated;		/* seconds */
	List	   *items;			/* of MoveItem */
} TierRow;

typedef struct TierPlan TierPlan;

extern TierPlan *tier_plan_begin(TimestampTz at);
extern char *tier_reason(const TierRow *row);

/* A policy to plan, of which the caller sets the first two */
typedef struct PlanWork
{
	TierPlan   *plan;
	const Policy *policy;
	MoveSettings settings;		/* of its job */
	List	   *rows;			/* of TierRow, in the order of the moves */
	Oid			to;
	Oid			from;			/* 0 = any, of schema, too */
	Oid			schema;
	List	   *tables;			/* of OIDs: within these; NIL = any */
	HTAB	   *moved;			/* within min_stay */
	int64		so_far;			/* bytes of this run */
} PlanWork;

extern void tier_plan_policy(void *arg);

/* ----------------------------------------------------------------
 *	tier_run.c
 * ----------------------------------------------------------------
 */
extern void tier_hold_extension(void);
extern bool tier_run_start(Oid database, Oid owner, const char *policy, TimestampTz last,
						   TimestampTz window_end);

#endif							/* IM_TIER_PRIVATE_H */
