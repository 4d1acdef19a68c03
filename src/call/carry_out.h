/*-------------------------------------------------------------------------
 *
 * carry_out.h
 *	  Have a plan carried out, and return its rows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CARRY_OUT_H
#define IM_CARRY_OUT_H

#include "fmgr.h"
#include "nodes/pg_list.h"
#include "settings.h"

/*
 * ERROR where the named function can't work at this moment: 42501 within a
 * security-restricted operation; and unless dry_run 25006 in a read-only
 * transaction or during recovery, and with wait 25001 in a transaction block.
 */
extern void check_moment(const char *function, bool dry_run, bool wait);

/*
 * ERROR 25001 with this hint, if the named function is called in a transaction
 * block, a subtransaction or a pipeline (core's checks and core's messages,
 * which have none).
 */
extern void prevent_in_transaction_block(const char *function, const char *hint);

/*
 * Carry out a plan (a List of MoveItem *) and materialize one row of type
 * index_move for each item: first what is not moved, then the rest in the
 * order of the plan.  ERRORs: those of submit.h; 55000 with on_failure = error.
 */
extern void carry_out(FunctionCallInfo fcinfo, List *plan,
					  const MoveSettings *settings, bool dry_run, bool wait);

#endif							/* IM_CARRY_OUT_H */
