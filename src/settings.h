/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings of index_mover, and the copy of them that a job carries.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SETTINGS_H
#define IM_SETTINGS_H

#include "access/htup.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

typedef enum OnBlocker
{
	ON_BLOCKER_WAIT,
	ON_BLOCKER_FAIL,
	ON_BLOCKER_CANCEL,
	ON_BLOCKER_TERMINATE,
} OnBlocker;

#define DEFAULT_MAX_LOCK_TIME	10	/* ms */
#define MAX_WORKERS				8	/* of a job */

typedef enum OnFailure
{
	ON_FAILURE_ROW,
	ON_FAILURE_ERROR,
} OnFailure;

typedef enum AutoSwitch
{
	SWITCH_AUTO,
	SWITCH_OFF,
	SWITCH_ON,
} AutoSwitch;

typedef enum OnlineAlter
{
	ONLINE_ALTER_OFF,
	ONLINE_ALTER_ON,
	ONLINE_ALTER_REQUIRE,
} OnlineAlter;

/* How much of a file system must stay free: the smaller of the two. */
typedef struct FreeSpaceRule
{
	double		share;			/* of the file system; -1 = not given */
	int64		bytes;			/* -1 = not given */
} FreeSpaceRule;

#define IM_SETTINGS_LEN	2048

/* The arguments of a call, not settings, that its job carries */
typedef struct JobTerms
{
	int64		undo_of;		/* the job that is taken back; 0 = none */
	int64		rest_of;		/* the first of the jobs that it goes on with,
								 * by resume_move(); 0 = none */
	NameData	policy;			/* the tier policy; "" = none */
	bool		rehearse;		/* discard a copy, complete and verified */
	bool		freeze_first;	/* VACUUM (FREEZE) a table before its copy */

	/* not on record; 0 = the current user, and the next number */
	bool		quiet;			/* a failure is no news: LOG becomes DEBUG1 */
	bool		at_start;		/* goes on with a job that the server has
								 * ended */
	bool		heals;			/* the janitor begins it again itself */
	Oid			role;			/* whose job it is */
	int64		job;			/* a number that was drawn for it */
	int64		replaces;		/* an ended job that does not go on by itself
								 * when this one is accepted; 0 = none */
} JobTerms;

/* whose job it is that the current user submits */
#define TERMS_ROLE(settings) \
	(OidIsValid((settings)->terms.role) ? (settings)->terms.role : GetUserId())

/* level of the lines in the server log that tell how its moves go */
#define TERMS_LOG(settings) ((settings)->terms.quiet ? DEBUG1 : LOG)

/* The caller's effective values when a job is submitted; in shared memory */
typedef struct MoveSettings
{
	int			lock_timeout;	/* ms */
	int			max_lock_time;	/* ms */
	int			lock_wait;		/* ms; 0 = without limit */
	int			on_blocker;		/* OnBlocker */
	int			on_failure;		/* OnFailure */
	bool		pacing;
	double		max_read_share; /* of slow storage; 1 = no limit */
	int			max_rate;		/* kB/s; 0 = no limit */
	int			max_replica_lag;	/* kB; 0 = off */
	FreeSpaceRule min_free_space;
	double		rebuild_threshold;	/* bloat ratio */
	int			max_workers;
	int			verify;			/* AutoSwitch: auto is for tables */
	bool		prewarm;
	int			direct_io;		/* AutoSwitch: auto is for large files */
	int			max_duration;	/* s; 0 = no limit */
	int			progress_interval;	/* ms; 0 = none */
	int			resumable_size; /* kB; -1 = never */
	TimestampTz swap_after;		/* 0 = at once */

	/* core's settings that a rebuild obeys */
	int			maintenance_work_mem;	/* kB */
	int			max_parallel_maintenance_workers;
	int			temp_file_limit;	/* kB; -1 = none */

	JobTerms	terms;

	/* settings that are not the default, a JSON object; see settings_load() */
	char		not_default[IM_SETTINGS_LEN];
} MoveSettings;

/* whether to signal sessions that still block after lock_wait */
#define SIGNALS_BLOCKERS(settings) \
	((settings)->on_blocker == ON_BLOCKER_CANCEL || \
	 (settings)->on_blocker == ON_BLOCKER_TERMINATE)

/* Settings that no job carries */
extern char *scheduler_databases;	/* a list of names */
extern int	online_alter;		/* OnlineAlter */
extern bool heal_at_start;
extern bool resume_at_start;
extern int	history_retention;	/* minutes; 0 = without limit */
extern bool hide_new_indexes;	/* by rebuild/snapshot_guard.c */

extern void settings_define(void);
extern void settings_set_here(const char *name, const char *value, GucContext context, int elevel);
extern void settings_capture(MoveSettings *result, Jsonb *json, bool swaps);
extern void settings_load(MoveSettings *result, const char *recorded, Jsonb *json,
						  bool trusted, const char *but_not);
extern int64 settings_reserved(const FreeSpaceRule *rule, int64 total);
extern void settings_check_object(Jsonb *json);
extern bool settings_names(Jsonb *json, const char *name);
extern void settings_check_alterable(int64 job, Jsonb *json);
extern void settings_alter(MoveSettings *result, Jsonb *json);
extern int	settings_count(void);
extern const char *settings_name(int n);
extern const char *settings_default(int n);

/* settings_of_role.c */
extern List *settings_in_file(const char *file);
extern List *settings_in_row(HeapTuple row, Oid catalog, AttrNumber column);
extern void settings_begin_as(Oid role);

#endif							/* IM_SETTINGS_H */
