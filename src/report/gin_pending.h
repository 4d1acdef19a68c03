/*-------------------------------------------------------------------------
 *
 * gin_pending.h
 *	  How long the pending list of a GIN index is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_GIN_PENDING_H
#define IM_GIN_PENDING_H

#include "utils/rel.h"

typedef struct GinPending
{
	int64		pages;
	int64		tuples;			/* heap rows waiting in the list */
	int64		limit_bytes;	/* size at which an insert flushes it */
	bool		fastupdate;
} GinPending;

/* The caller must have opened a valid GIN index.  ERROR XX002. */
extern void gin_pending_read(Relation index, GinPending *pending);

#endif							/* IM_GIN_PENDING_H */
