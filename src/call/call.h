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

extern void call_check_moment(const char *function, bool dry_run, bool wait);
extern void call_prevent_in_block(const char *function, const char *hint);
extern void result_rows_of_plan(FunctionCallInfo fcinfo, List *plan,
								const MoveSettings *settings, bool dry_run, bool wait);
extern int64 control_queue_rest(List *entries);
extern void progress_view_notice(const RunnerSlot *runner);

extern void submit_init(void);
extern MoveItem *wait_for_rows(JobPurpose purpose, List *items,
							   const MoveSettings *settings, int64 *job);
extern int64 submit_at_commit(JobPurpose purpose, List *items,
							  const MoveSettings *settings);
extern bool wait_for_job(int64 job);
extern int64 submit_next_job(void);
extern void cleanup_call_and_wait(const List *plan, const MoveSettings *settings);
extern void cleanup_call_at_commit(const List *plan, const MoveSettings *settings);
extern MoveMethod call_parse_method(const char *name);
extern void call_reject_null(FunctionCallInfo fcinfo, int n, const char *name);
extern int64 call_size_argument(FunctionCallInfo fcinfo, int n, const char *name);

#endif							/* IM_CALL_H */
