/*-------------------------------------------------------------------------
 *
 * meanwhile.h
 *	  What has become of an index while a move of it failed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_MEANWHILE_H
#define IM_MEANWHILE_H

#include "plan_checks.h"

/* An index before its move. */
typedef struct IndexBefore
{
	bool		exists;
	IndexFacts	facts;
	uint32		options;		/* hash of its storage parameters */
} IndexBefore;

/* Both are called with no transaction open and no lock held. */
extern void meanwhile_begin(IndexBefore *before, Oid index_oid);

/*
 * Complete the row of a failed move: if somebody has dropped, renamed, moved,
 * rewritten or altered the index since, say that.  Rows that haven't failed are
 * left alone.
 */
extern void meanwhile_tell(MoveItem *item, const IndexBefore *before);

#endif							/* IM_MEANWHILE_H */
