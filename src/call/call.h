/*-------------------------------------------------------------------------
 *
 * call.h
 *	  The caller's backend: checks, submission, waiting, rows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CALL_H
#define IM_CALL_H

#include "fmgr.h"
#include "nodes/pg_list.h"

#include "job.h"
#include "settings.h"

extern void check_moment(const char *function, bool dry_run, bool wait);
extern void prevent_in_transaction_block(const char *function, const char *hint);
extern void carry_out(FunctionCallInfo fcinfo, List *plan,
					  const MoveSettings *settings, bool dry_run, bool wait);
extern int64 again_rest(List *entries);
extern void watch_notice(const RunnerSlot *runner);

extern void submit_init(void);	/* from _PG_init() */
extern MoveItem *submit_and_wait(JobPurpose purpose, List *items,
								 const MoveSettings *settings, int64 *job);
extern int64 submit_at_commit(JobPurpose purpose, List *items,
							  const MoveSettings *settings);
extern bool submit_wait_for(int64 job);
extern int64 submit_next_job(void);
extern void cleanup_and_wait(const List *plan, const MoveSettings *settings);
extern void cleanup_at_commit(const List *plan, const MoveSettings *settings);
extern MoveMethod parse_method(const char *name);
extern void reject_null(FunctionCallInfo fcinfo, int n, const char *name);
extern int64 size_argument(FunctionCallInfo fcinfo, int n, const char *name);

#endif							/* IM_CALL_H */
