/*-------------------------------------------------------------------------
 *
 * plan_private.h
 *	  Declarations that the parts of the planner share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PLAN_PRIVATE_H
#define IM_PLAN_PRIVATE_H

#include "job.h"
#include "plan/plan.h"

extern bool item_check(MoveItem *item, const RelationFacts *facts);
extern bool item_check_file(MoveItem *item, const RelationFacts *facts);
extern char *item_core_command(const MoveItem *item);

extern void plan_named_relation(Oid relation, bool is_table, RelationFacts *facts);
extern void plan_skip_locked(const List *items);

/* An item during planning */
typedef struct PlanEntry
{
	MoveItem	item;			/* first: a list of entries is a list of items */
	RelationFacts facts;
	double		bloat_ratio;	/* -1: not measured */
	int64		rank;			/* position among the moves: smaller first */
	List	   *parts;			/* PlanEntry of its TOAST table and the index
								 * of that */
} PlanEntry;

extern PlanEntry *plan_new_entry(void);
extern void plan_refuse_temporary(Oid schema);
extern PlanEntry *plan_entry_of(Oid relid, const PlanRequest *request);
extern void plan_decide(PlanEntry *entry, const PlanRequest *request, bool is_named);
extern void plan_notice_invalid_parts(const List *entries);
extern PlanEntry *plan_pending(Oid relid, const PlanRequest *request);
extern List *plan_in_order(List *entries);
extern bool lost_plan(PlanEntry *entry, LostLook look, bool heals);
extern List *plan_other_databases(Oid tablespace);
extern List *plan_what_stays(List *entries, Oid tablespace, Oid to);

#endif							/* IM_PLAN_PRIVATE_H */
