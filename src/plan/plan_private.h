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
extern void plan_skip_locked(const List *moves);

extern PlannedMove *plan_new_entry(void);
extern void plan_refuse_temporary(Oid schema);
extern PlannedMove *plan_entry_of(Oid relid, const PlanRequest *request);
extern void plan_decide(PlannedMove *entry, const PlanRequest *request, bool is_named);
extern void plan_notice_invalid_parts(const List *entries);
extern PlannedMove *plan_pending(Oid relid, const PlanRequest *request);
extern List *plan_in_order(List *entries);
extern bool lost_plan(PlannedMove *entry, LostLook look, bool heals);
extern bool lost_look_for_builder(const RelationFacts *facts);
extern List *plan_other_databases(Oid tablespace);
extern List *plan_what_stays(List *entries, Oid tablespace, Oid to);

#endif							/* IM_PLAN_PRIVATE_H */
