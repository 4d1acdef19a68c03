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
#include "settings.h"

typedef enum PlanScope
{
	SCOPE_RELATION,				/* object = table, matview, partitioned table
								 * or index */
	SCOPE_ONE,					/* the same, but this very relation only, as
								 * part of a plan that plan_complete()
								 * completes */
	SCOPE_SCHEMA,				/* object = schema */
	SCOPE_TABLESPACE,			/* object = source tablespace */
} PlanScope;

/* How thoroughly the file of a relation is looked at, see plan/lost_file.c */
typedef enum LostLook
{
	LOOK_QUICK,					/* at the first page and the root */
	LOOK_SPOTS,					/* at some pages more */
	LOOK_SAMPLE,				/* at about a thousand */
	LOOK_WHOLE,					/* at all pages */
	LOOK_LOSS_KNOWN,			/* ... and its device has lost something */
} LostLook;

typedef struct PlanRequest
{
	PlanScope	scope;
	Oid			object;
	bool		tables;			/* tables, each with its TOAST table */
	bool		indexes;		/* their indexes */
	bool		evacuate;		/* with rows for things that stay there */
	bool		heal;			/* only indexes lost in the tablespace */
	bool		unmounted;		/* even if its file system may not be mounted */
	LostLook	look;			/* set by plan_moves() */
	Oid			to_tablespace;
	Oid			index_tablespace;	/* for these; 0 = to_tablespace */
	MoveMethod	method;			/* METHOD_AUTO, _COPY or _REBUILD */
	bool		waits;			/* the caller will wait inside its transaction */
	bool		dry_run;
	/* select by LIKE patterns and bytes */
	text	   *name_like;		/* NULL = any */
	text	   *name_not_like;	/* NULL = none */
	int64		min_size;		/* 0 = any */
	int64		max_size;		/* 0 = any */

	MoveSettings settings;
} PlanRequest;

extern List *plan_moves(PlanRequest *request);
extern void plan_skip_parts(const List *items);
extern bool plan_has_moves(const List *items);

/* For a plan in parts, of requests for one relation each */
typedef struct PlanParts PlanParts;
extern PlanParts *plan_parts_begin(void);
extern PlanParts *plan_parts_alone(const PlanParts *parts);
extern void plan_complete(PlanParts *parts, List *items, const PlanRequest *request);
extern double plan_seconds(const List *items, const MoveSettings *settings);
extern Oid	plan_tablespace(Name name, bool is_target);
extern void lost_hide(JobShared *job);
extern bool plan_recheck(MoveItem *item, bool began);
extern AclResult plan_aclcheck(Oid heap_oid, bool indexes);
extern void movable_methods(Oid relid, bool *copy, bool *rebuild);
extern const char *copy_hindrance(const RelationFacts *facts);
extern const char *rebuild_hindrance(const RelationFacts *facts);
extern bool recovery_needs_full_pages(const RelationFacts *facts);

/* The need of a move on one file system: the sum over the places on it. */
typedef struct SpaceNeed
{
	Oid			tablespace;		/* the first place; 0 = pg_wal */
	int64		device;
	int64		needed;			/* bytes */
	int64		available;
	int64		reserved;		/* of these, by min_free_space */
} SpaceNeed;

#define SPACE_PLACES	8		/* target, pg_wal, places of sort files */

typedef struct SpaceNeeds
{
	const FreeSpaceRule *rule;
	int			n;
	SpaceNeed	need[SPACE_PLACES];
} SpaceNeeds;

/* Return the bytes to copy: 0 of a part that is in place. */
static inline int64
space_to_copy(const MoveItem *item)
{
	return item->method == METHOD_COPY && item->from_tablespace == item->to_tablespace ?
		0 : Max(item->size_before, 0);
}

extern void space_needs(SpaceNeeds *needs, const FreeSpaceRule *rule, Oid target,
						int64 new_bytes, int64 sort_bytes, int64 wal_bytes);
extern char *space_place(const SpaceNeed *need);
extern const SpaceNeed *space_missing(const SpaceNeeds *needs);
extern void space_check(const JobShared *job, const MoveItem *item,
						const MoveSettings *settings);
extern void space_check_again(const MoveItem *item, const MoveSettings *settings);

extern const char *lost_file(const RelationFacts *facts, LostLook look);

#endif							/* IM_PLAN_H */
