/*-------------------------------------------------------------------------
 *
 * gist_build.h
 *	  How full a build of a GiST index leaves its leaf pages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_GIST_BUILD_H
#define IM_GIST_BUILD_H

#include "utils/rel.h"

/*
 * Build the index anew, in memory, from the rows of its table that the active
 * snapshot sees, and return the share of the leaf pages' space that is in use
 * then.  NaN where that can't be told: the build would take more than memory
 * bytes, or buffers its insertions, or there are no rows.  sorts says whether
 * a build of this index sorts.
 *
 * The caller has AccessShareLock on both.  Index expressions, the predicate
 * and the operator classes run as the table's owner, in a security-restricted
 * operation; their errors are passed on.
 */
extern double gist_build_density(Relation heap, Relation index, bool sorts, double memory);

#endif							/* IM_GIST_BUILD_H */
