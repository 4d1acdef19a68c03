/*-------------------------------------------------------------------------
 *
 * call.h
 *	  The caller's backend: checks, submission, waiting, notices, rows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CALL_H
#define IM_CALL_H

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "utils/jsonb.h"

#include "errors.h"
#include "history.h"
#include "job.h"
#include "plan/plan.h"
#include "running_jobs.h"
#include "settings.h"

/* A job as its client is told of it */
typedef struct JobSummary
{
	int64		job;
	JobTotals	totals;
	int			not_moved;		/* failed, canceled, interrupted */
	int			denied;			/* skipped, because a privilege is missing */
	bool		warn;			/* of each failure; else the ERROR has them */
	StringInfoData failures;
} JobSummary;

/* The arguments of a function that moves */
typedef struct MoveCall
{
	PlanKinds	kinds;			/* of the function; the argument "indexes"
								 * adds them */
	const char *source;			/* name of the argument that is
								 * from_tablespace */
	Oid			relation;
	Oid			schema;
	Oid			from_tablespace;
	bool		unmounted;
	bool		dry_run;
	PlanRequest request;
} MoveCall;

extern void call_check_block(const char *function, bool has_wait);
extern void call_check_moment(const char *function, bool dry_run, bool wait);
extern void call_arguments(FunctionCallInfo fcinfo, MoveCall *call);
extern Jsonb *call_settings_argument(FunctionCallInfo fcinfo, int n);
extern bool call_may_see(Oid role);
pg_noreturn extern void call_no_such_job(int64 job);

/* When a job starts */
typedef enum JobStart
{
	JOB_STARTS_AT_COMMIT,
	JOB_STARTS_NOW,				/* and no session waits for it */
	JOB_IS_WAITED_FOR,
} JobStart;

extern void result_rows_of_job(FunctionCallInfo fcinfo, List *plan,
							   const MoveSettings *settings, JobStart start);
extern Datum result_rows_of_call(FunctionCallInfo fcinfo, List *plan, const MoveCall *call);
extern void progress_view_notices(int64 job);

extern char *notices_name(Oid relation, const char *schema, const char *name);
#define item_name(item) \
	notices_name((item)->relid, NameStr((item)->schema_name), NameStr((item)->relname))
extern char *notices_duration(double seconds);
extern void notices_begin(const JobSummary *summary);
extern void notices_end(const JobSummary *summary, double seconds);
extern void notices_outcome(JobSummary *summary, MoveStatus status, bool is_part,
							const char *noun, const char *name,
							const char *sqlstate, const char *reason);
extern void notices_item(JobSummary *summary, const MoveItem *item, MoveStatus status);
extern void notices_raise(const JobSummary *summary, int elevel);

extern int64 control_go_on(const RunningJob *before, const char **why_not);

extern void submit_init(void);
extern int64 submit_last_job(void);
extern void submit_note_job(int64 job);
extern void submit_own(void (*write) (void *arg), void *arg);
extern void submit_now(int64 job, List *items, const MoveSettings *settings);
extern bool submit_alter_job(int64 job, const char *settings);
extern void submit_skip_busy(List *plan);
extern void submit_at_commit(int64 job, List *items, const MoveSettings *settings);
extern void wait_for_rows(int64 job, JobSummary *summary, List *items,
						  const MoveSettings *settings, bool (*is_wanted) (void *arg), void *arg);
extern bool wait_for_other_job(int64 job, double deadline);
extern void online_alter_init(void);
extern void cleanup_call(const List *plan, Oid role);

#endif							/* IM_CALL_H */
