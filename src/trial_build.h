/*-------------------------------------------------------------------------
 *
 * trial_build.h
 *	  Build an index on trial, to see how large a rebuild makes it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TRIAL_BUILD_H
#define IM_TRIAL_BUILD_H

#include "utils/rel.h"

/* Does nothing but a build say how large indexes of this access method become? */
extern bool trial_build_wanted(Oid relam);

/*
 * Build the index anew, in temporary storage, from the rows of its table that
 * the transaction sees now, and return how many pages it has then.  Returns
 * InvalidBlockNumber, with a NOTICE, where there is no room for it, and for
 * those who may not REINDEX it.
 *
 * The caller has AccessShareLock on both.  Index expressions, the predicate
 * and the operator classes run as the table's owner, in a security-restricted
 * operation; their errors are passed on.
 */
extern BlockNumber trial_build_pages(Relation heap, Relation index);

#endif							/* IM_TRIAL_BUILD_H */
