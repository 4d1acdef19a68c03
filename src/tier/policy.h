/*-------------------------------------------------------------------------
 *
 * policy.h
 *	  Tier policies: what they say, what they would move, and their runs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_POLICY_H
#define IM_POLICY_H

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "utils/date.h"
#include "utils/jsonb.h"

#include "settings.h"
#include "tier/tier_private.h"

/* ----------------------------------------------------------------
 *	partition_bounds.c
 * ----------------------------------------------------------------
 */
typedef enum BoundKind
{
	BOUND_NONE,					/* no range of a date, timestamp or integer */
	BOUND_DEFAULT,
	BOUND_MAXVALUE,
	BOUND_VALUE,
} BoundKind;

/* Where a range ends */
typedef struct PartitionBound
{
	BoundKind	kind;
	Oid			type;			/* of the key; 0 = BOUND_NONE */
	Datum		value;
} PartitionBound;

typedef struct PartitionLeaf
{
	Oid			relid;
	PartitionBound upper;
} PartitionLeaf;

extern List *partition_leaves(Oid relid);
extern bool bound_is_number(const PartitionBound *bound);
extern int	bound_compare(const PartitionBound *bound, TimestampTz moment);
extern int64 bound_number(const PartitionBound *bound);
extern double bound_order(const PartitionBound *bound);
extern char *bound_text(const PartitionBound *bound);

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
extern void policy_settings(const Policy *policy, MoveSettings *settings);
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
	char	   *sqlstate;		/* of the run itself; NULL = no error */
	char	   *message;
} PolicyRun;

extern void policy_run_read(const char *policy, PolicyRun *run);
extern void policy_run_write(const char *policy, const PolicyRun *run);
extern int	policy_failures(const PolicyRun *run, char **why);

/* ----------------------------------------------------------------
 *	tier_plan.c
 * ----------------------------------------------------------------
 */

/* The outcome of a policy for one relation, or the reason for none */
typedef struct TierRow
{
	Oid			relid;			/* 0 = the policy itself */
	bool		is_index;
	int64		size;			/* -1 = unknown */
	Oid			from_tablespace;	/* 0 = unknown */
	const char *to_tablespace;
	bool		moves;
	bool		refused;		/* though the policy wants it to move */
	char	   *reason;
	double		heat;			/* -1 = does not matter */
	double		estimated;		/* seconds; -1 = unknown */
	List	   *items;			/* MoveItems, if it moves */
} TierRow;

typedef struct TierPlan TierPlan;

extern TierPlan *tier_plan_begin(TimestampTz at);

/* A policy to plan: rows and its job's settings are set */
typedef struct PlanWork
{
	TierPlan   *plan;
	const Policy *policy;
	MoveSettings settings;
	List	   *rows;			/* of TierRow, in the order of the moves */
} PlanWork;

extern void tier_plan_policy(void *arg);

/* ----------------------------------------------------------------
 *	tier_run.c
 * ----------------------------------------------------------------
 */
extern void tier_hold_extension(void);
extern bool tier_run_start(Oid database, Oid owner, const char *policy);

#endif							/* IM_POLICY_H */
