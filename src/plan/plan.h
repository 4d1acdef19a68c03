/*-------------------------------------------------------------------------
 *
 * plan.h
 *	  Which indexes to move, in which order, by which method, and why.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PLAN_H
#define IM_PLAN_H

#include "job.h"

typedef enum PlanScope
{
	SCOPE_RELATION,				/* object = table, matview, partitioned table,
								 * TOAST table or index */
	SCOPE_SCHEMA,				/* object = schema */
	SCOPE_TABLESPACE,			/* object = source tablespace */
} PlanScope;

typedef struct PlanRequest
{
	PlanScope	scope;
	Oid			object;
	Oid			to_tablespace;
	MoveMethod	method;			/* METHOD_AUTO, _COPY or _REBUILD */
	bool		waits;			/* the caller will wait inside its transaction */
	bool		dry_run;
	bool		part;			/* of a plan that plan_complete() completes */
	/* only these, of a schema or tablespace: LIKE patterns, bytes */
	text	   *name_like;		/* NULL = any */
	text	   *name_not_like;	/* NULL = none */
	int64		min_size;		/* 0 = any */
	int64		max_size;		/* 0 = any */

	MoveSettings settings;
} PlanRequest;

/*
 * Make the plan: a List of MoveItem *, palloc'd in the current context, in the
 * order of execution.  STATUS_PLANNED items are to be moved; STATUS_SKIPPED
 * ones carry sqlstate and detail.  Reads catalogs only, and releases every
 * lock it took.  ERRORs are those of the manual: 42809 wrong kind of relation,
 * 0A000 catalogs and temporary tables, 42501, 55006 the caller's transaction
 * holds a lock on what would be moved.
 */
extern List *plan_moves(const PlanRequest *request);

/*
 * Say of each item of a plan, in order of execution, whether there will be room
 * for it, and warn of an archiver that fails.  plan_moves() does that itself,
 * but for what is part of a larger plan.  items: of MoveItem.
 */
extern void plan_complete(List *items, const MoveSettings *settings);

/* Look up and check the target: 42704, 22023 (pg_global), 42501. */
extern Oid	plan_target_tablespace(const char *name);

/*
 * Checked again by the runner after it has locked table and index: fills
 * item->status/sqlstate/detail and returns false if the index can't be moved
 * any more (dropped, already in place, invalid, no privilege ...); otherwise
 * refreshes the item's names and source tablespace and returns true.  began: the
 * work itself has begun already; only the words depend on it.
 */
extern bool plan_recheck(MoveItem *item, bool began);

/* true if the current user may move this table's indexes: owner, or (17+) MAINTAIN */
extern bool plan_may_move(Oid heap_oid);

/*
 * Measures the share of an index that a rebuild would give back; false if it
 * can't.  Must release the locks it takes.  Set by _PG_init(); without it,
 * "auto" does not look at bloat.
 */
typedef bool (*plan_estimate_bloat_hook_type) (Oid index_oid, double *ratio);
extern plan_estimate_bloat_hook_type plan_estimate_bloat_hook;

#endif							/* IM_PLAN_H */
