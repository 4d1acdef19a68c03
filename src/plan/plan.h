/*-------------------------------------------------------------------------
 *
 * plan.h
 *	  The plan: which relations move, in which order, by which method, and why.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PLAN_H
#define IM_PLAN_H

#include "utils/acl.h"

#include "job.h"
#include "plan/plan_request.h"
#include "settings.h"

/* How thoroughly the file of a relation is looked at, see plan/lost_file.c */
typedef enum LostLook
{
	LOOK_QUICK,					/* at the first page and the root; and the
								 * findings of other looks */
	LOOK_UNKNOWN,				/* at all pages of a file that is not known to
								 * be whole, else as LOOK_QUICK */
	LOOK_SPOTS,					/* at some pages more */
	LOOK_SAMPLE,				/* at about a thousand */
	LOOK_WHOLE,					/* at all pages */
	LOOK_LOSS_KNOWN,			/* ... and its device has lost something */
} LostLook;

/* A move as it is planned, in local memory; its item goes to the job */
typedef struct PlannedMove
{
	MoveItem	item;
	RelationFacts facts;
	double		bloat_ratio;	/* -1: not measured */
	double		estimated;		/* seconds; -1: not estimated */
	bool		fits;			/* there is free space for it */
	bool		sampled;		/* item.stored_share is set, or stays 1 */
	int64		rank;			/* position among the moves: smaller first */
	List	   *parts;			/* PlannedMove of its TOAST table and the
								 * index of that */
} PlannedMove;

/* The relations of a call, a list of PlannedMove each: see plan_relations.c */
extern List *plan_named(const PlanRequest *request, Oid relation, PlanKinds kinds);
extern List *plan_schema(const PlanRequest *request, Oid schema, PlanKinds kinds);
extern List *plan_tablespace_indexes(const PlanRequest *request, Oid tablespace);
extern List *plan_evacuation(const PlanRequest *request, Oid tablespace);
extern List *plan_healing(const PlanRequest *request, Oid tablespace);
extern List *plan_single(const PlanRequest *request, Oid relation);
extern void plan_skip_parts(const List *moves);
extern bool plan_has_moves(const List *moves);
extern List *plan_items(const List *moves);

/* For a plan in parts, each made by plan_single() */
typedef struct PlanParts PlanParts;
extern PlanParts *plan_parts_begin(void);
extern PlanParts *plan_parts_alone(const PlanParts *parts);
extern void plan_complete(PlanParts *parts, List *moves, const PlanRequest *request);
extern int64 plan_stored_bytes(const MoveItem *item);
extern double plan_seconds(const List *moves, const MoveSettings *settings);
extern Oid	plan_tablespace(Name name, bool is_target);
extern void lost_hide(JobShared *job);
extern bool plan_recheck(MoveItem *item, bool began);
extern AclResult plan_role_aclcheck(Oid role, Oid heap_oid, bool indexes);
extern bool plan_role_may_fill(Oid role, Oid tablespace);
extern AclResult plan_aclcheck(Oid heap_oid, bool indexes);
extern void movable_methods(Oid relid, bool *copy, bool *rebuild);
extern const char *copy_hindrance(const RelationFacts *facts);
extern const char *rebuild_hindrance(const RelationFacts *facts);
extern bool recovery_needs_full_pages(const RelationFacts *facts);

extern const char *leftover_command(const RelationFacts *facts);
extern const char *lost_problem(Oid relid, double until);
extern const char *lost_file(const RelationFacts *facts, LostLook look);
extern const char *lost_file_until(const RelationFacts *facts, double until);
extern const char *lost_file_slowly(const RelationFacts *facts, LostLook look,
									bool (*goes_on) (void *arg), void *arg, BlockNumber *npages,
									bool *is_complete);
extern void lost_look_at_files(Oid tablespace);
extern void lost_rest(double *read_from);

#endif							/* IM_PLAN_H */
