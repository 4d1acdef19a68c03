/*-------------------------------------------------------------------------
 *
 * plan_request.h
 *	  How a call wants its relations moved.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PLAN_REQUEST_H
#define IM_PLAN_REQUEST_H

#include "job.h"
#include "settings.h"

/* Which relations of a table, a schema or a tablespace; flags */
typedef enum PlanKinds
{
	PLAN_INDEXES = 1,
	PLAN_TABLES = 2,			/* each with its TOAST table */
	PLAN_BOTH = 3,
} PlanKinds;

/* Which of the relations of a schema or a tablespace: by LIKE patterns and bytes */
typedef struct PlanFilter
{
	text	   *name_like;		/* NULL = any */
	text	   *name_not_like;	/* NULL = none */
	int64		min_size;		/* 0 = any */
	int64		max_size;		/* 0 = any */
} PlanFilter;

typedef struct PlanRequest
{
	MoveMethod	method;			/* METHOD_AUTO, _COPY or _REBUILD */
	Oid			to_tablespace;
	Oid			index_tablespace;	/* of indexes; 0 = to_tablespace */
	bool		waits;			/* the caller will wait inside its transaction */
	bool		as_owner;		/* see MoveItem */
	bool		files_were_seen;	/* to heal: by lost_look_at_files() */
	PlanFilter	filter;
	MoveSettings settings;
} PlanRequest;

#endif							/* IM_PLAN_REQUEST_H */
