/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings of index_mover, and the copy of them that a job carries.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SETTINGS_H
#define IM_SETTINGS_H

#include "storage/lwlock.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

typedef enum OnBlocker
{
	ON_BLOCKER_WAIT,
	ON_BLOCKER_FAIL,
	ON_BLOCKER_CANCEL,
	ON_BLOCKER_TERMINATE,
} OnBlocker;

typedef enum OnFailure
{
	ON_FAILURE_ROW,
	ON_FAILURE_ERROR,
} OnFailure;

typedef enum MoveOrder
{
	ORDER_SMALLEST,
	ORDER_HOTTEST,
	ORDER_NAME,
} MoveOrder;

/*
 * The caller's effective values when a job is submitted.  In the job's shared
 * memory, so without pointers.
 */
typedef struct MoveSettings
{
	int			lock_timeout;	/* ms */
	int			lock_wait;		/* ms; 0 = without limit */
	int			on_blocker;		/* OnBlocker */
	int			on_failure;		/* OnFailure */
	bool		give_way;
	bool		pacing;
	int			max_rate;		/* kB/s; 0 = no limit */
	int			max_replica_lag;	/* kB; 0 = off */
	double		min_free_space; /* share of the file system */
	double		rebuild_threshold;	/* bloat ratio */
	int			max_workers;
	int			order;			/* MoveOrder */
	bool		verify;
	bool		prewarm;
	int			max_duration;	/* s; 0 = no limit */
	int			progress_interval;	/* ms; 0 = none */
	char		copy_access_methods[256];
	TimestampTz swap_after;		/* 0 = at once */

	/* core's settings that a rebuild obeys */
	int			maintenance_work_mem;	/* kB */
	int			max_parallel_maintenance_workers;
} MoveSettings;

/* whether to signal sessions that still block after lock_wait */
#define SIGNALS_BLOCKERS(settings) \
	((settings)->on_blocker == ON_BLOCKER_CANCEL || \
	 (settings)->on_blocker == ON_BLOCKER_TERMINATE)

extern void settings_define(void);
extern void settings_capture(MoveSettings *result);
extern int	settings_apply_json(Jsonb *json);
extern void settings_check_alterable(const char *name);
extern void settings_alter(MoveSettings *result, LWLock *lock,
						   const char *name, const char *value);

#endif							/* IM_SETTINGS_H */
