/*-------------------------------------------------------------------------
 *
 * plan_estimate.h
 *	  What a move will read, write and take.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PLAN_ESTIMATE_H
#define IM_PLAN_ESTIMATE_H

#include "plan/plan.h"
#include "plan/plan_checks.h"

/* An item while it is planned. */
typedef struct PlanEntry
{
	MoveItem	item;			/* first: a list of entries is a list of items */
	IndexFacts	facts;
	double		bloat_ratio;	/* -1: not measured */
	int64		blocks_read;	/* since the statistics were reset */
} PlanEntry;

extern int64 relation_files_size(Oid tablespace, RelFileNumber relfilenumber);
extern void estimate_entries(List *entries, const PlanRequest *request);

/* Both are for whole plans: a List of MoveItem *, in order of execution. */
extern void estimate_room(List *items, const MoveSettings *settings);
extern void warn_if_archiver_fails(const List *items);

#endif							/* IM_PLAN_ESTIMATE_H */
