/*-------------------------------------------------------------------------
 *
 * tier_plan_private.h
 *	  The plan of policies while it is made: for tier_plan.c, tier_wish.c and tier_decision.c only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIER_PLAN_PRIVATE_H
#define IM_TIER_PLAN_PRIVATE_H

#include "plan/plan.h"
#include "tier/tier_private.h"

/* When a wish is granted, within its turn by its order */
typedef enum TierTurn
{
	TURN_POLICY,				/* about the policy itself */
	TURN_LEAVES,				/* a resident that the budget has no place for */
	TURN_NORMAL,
	TURN_DECIDED,				/* it has no order, and does not move */
	TURN_FAILED_LATELY,			/* so that it keeps no others out */
} TierTurn;

/* The wish of a policy for a relation, or, with relid 0, a row about itself */
typedef struct TierWish
{
	Oid			relid;
	Oid			to;				/* tablespace */
	Oid			with;			/* a table that goes with it, and before; 0 =
								 * none */
	const char *why;			/* it is wanted there; NULL = it is not */
	TierTurn	turn;
	double		order;			/* smaller first */
	double		heat;			/* -1 = does not matter */
} TierWish;

typedef enum TierVerdict
{
	VERDICT_NONE,				/* not looked at, or nothing is to be done */
	VERDICT_MOVES,
	VERDICT_STAYS,				/* as it is meant to be */
	VERDICT_WAITS,				/* until it moves in a later run */
	VERDICT_HINDERED,			/* until a user does something about it */
} TierVerdict;

/* Why a relation does not move; reason_clause() has the words */
typedef enum TierReasonCode
{
	REASON_NONE,				/* it moves */
	REASON_SAID,				/* as the text says: of an error, of a bound,
								 * or of a policy */
	REASON_ITEM,				/* the planner of moves skips it; text: its
								 * sentences */
	REASON_EARLIER_POLICY,		/* text: its name, NULL if it is another
								 * role's */
	REASON_JOB_AT_WORK,
	REASON_MOVED_LATELY,		/* by a job, within min_stay */
	REASON_MOVED_OUT,			/* by the job of a policy with start_at,
								 * within its min_stay */
	REASON_PRESSURE,			/* it would exceed the limit of such a policy */
	REASON_TOO_LARGE,			/* for max_bytes_per_run */
	REASON_NO_SPACE_YET,		/* of the budget, until others have moved out */
	REASON_LATER_RUN,			/* by max_bytes_per_run */
} TierReasonCode;

typedef struct TierReason
{
	TierReasonCode code;
	int64		job;			/* where the code is of a job */
	const PressureLimit *limit; /* where the code is of a limit */
	const char *text;
} TierReason;

typedef struct TierDecision
{
	TierVerdict verdict;
	TierReason	reason;
} TierDecision;

/* A row of the plan */
typedef struct TierRow
{
	TierWish	wish;
	TierDecision decision;
	Oid			table_oid;		/* of an index its table, else relid */
	bool		is_busy;		/* a job, or another policy, has its table */
	int64		size;			/* of the items; -1 = unknown */
	List	   *items;			/* of PlannedMove; NIL = not planned, or
								 * nothing to do */
} TierRow;

/* A policy while it is planned */
typedef struct PolicyWork
{
	const Policy *policy;
	PlanRequest request;		/* of a relation; has the job's settings */
	TierRow    *row;			/* of that */
	TierScope	scope;
	List	   *rows;			/* of TierRow */
	HTAB	   *moved;			/* of MovedTable; NULL = none is read yet */
	const char *pressure;		/* why relations have to leave; NULL = they do
								 * not have to */
	double		excess;			/* bytes that have to */
	char	   *goes_on;		/* why the next run goes on with that; NULL =
								 * it does so only if it has to begin again */
} PolicyWork;

/* A table that a policy wants, and how much was moved of it lately */
typedef struct MovedTable
{
	Oid			relid;			/* hash key */
	List	   *moves;			/* of TableMove, within the longest min_stay
								 * that counts */
} MovedTable;

/* A table of which a policy before, in this call, moves something */
typedef struct CoveredTable
{
	Oid			relid;			/* hash key */
	const Policy *policy;
} CoveredTable;

/* The plan of all policies of a call */
struct TierPlan
{
	TimestampTz now;			/* or the moment that is planned for */
	HeatTable  *heat;			/* NULL = not read yet; by the half-life of
								 * the policy that is planned */
	MemoryContext heat_context; /* has it */
	int			sort_memory;	/* kB, for its samples: the caller's */
	List	   *places;			/* as they are, or will be after the rows
								 * before */
	HTAB	   *busy;			/* of BusyTable */
	HTAB	   *covered;		/* of CoveredTable */
	PressureLimits *limits;
	HTAB	   *chunks;			/* of ChunkPair; NULL = none are known */
	const char *chunk_problem;	/* why; NULL = there is no timescaledb */
	PlanParts  *parts;			/* used space goes on from policy to policy */
	PolicyWork *work;			/* on the policy that is planned */
};

/* tier_decision.c */
extern void tier_row_decide(TierRow *row, TierVerdict verdict, const char *words);
extern TierRow *tier_row_new(TierWish wish);
extern void tier_row_say(PolicyWork *work, TierVerdict verdict, const char *text);
extern TierRow *tier_row_want(PolicyWork *work, Oid relid, const char *why,
							  double order, double heat);
extern const char *tier_limit_clause(const Policy *policy, const PressureLimit *limit);
extern const char *tier_row_reason(const Policy *policy, const TierRow *row);
extern void tier_decide_row(TierPlan *plan, TierRow *row);
extern void tier_decide_all(TierPlan *plan);

/* tier_wish.c */
extern void tier_wish_by_age(TierPlan *plan);
extern void tier_wish_by_idleness(TierPlan *plan);
extern void tier_wish_by_heat(TierPlan *plan);
extern void tier_wish_by_pressure(TierPlan *plan);

#endif							/* IM_TIER_PLAN_PRIVATE_H */
