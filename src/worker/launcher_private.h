/*-------------------------------------------------------------------------
 *
 * launcher_private.h
 *	  The launcher's list of visits, for launcher.c, launcher_visits.c and launcher_round.c only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LAUNCHER_PRIVATE_H
#define IM_LAUNCHER_PRIVATE_H

#include "storage/dsm.h"

#include "worker/worker.h"

/* between two tries to get a worker slot, and two looks for a directory or a device that is missing */
#define RETRY_MS		5000
/* between two rounds: files that were kept may be removable by then */
#define AGAIN_MS		(24 * 60 * 60 * 1000)
#define NOT_DUE			PG_INT64_MAX

typedef enum VisitKind
{
	VISIT_WATCH,
	VISIT_CLEANUP,
	VISIT_EMPTY,
	VISIT_RESUME,
	VISIT_LOOK,
} VisitKind;

/* A visit to a database, or to all devices; only the launcher has it */
typedef struct Visit
{
	VisitKind	kind;
	int64		due;			/* ms, as clock_ms(); NOT_DUE: not asked for,
								 * not in this pass of the round, or not named
								 * any more */
	MemoryContext context;		/* of its worker; NULL = there is none now */
	BackgroundWorkerHandle *worker;
	int64		began;			/* when it was started */
	dsm_segment *answer;		/* of the worker: of the watch a WatchTask, of
								 * a cleanup a JobShared, else the task */
	bool		told;			/* that no worker was free */

	/* only a watch has this field */
	WatchTask	watch;

	/* only a cleanup */
	Look		look;

	/* only an emptying */
	EmptyTask	empty;

	/* only a resumption */
	ResumeTask	resume;

	/* only a look has these fields */
	LookTask	task;			/* of its workers; name: its own */
	int64		next_sample;
	bool		is_missing;		/* it was said that there is no such database */
} Visit;

/* launcher_visits.c */
extern int64 launcher_first_visits;
extern MemoryContext launcher_context;
extern List *launcher_visits;
extern Visit *launcher_watch;

extern List *launcher_list_databases(const char *name, bool closed_too);
extern Visit *launcher_add_visit(VisitKind kind, int64 due);
extern void launcher_remove_visit(Visit *visit);
extern void launcher_forget_worker(Visit *visit);

/* launcher_round.c */
extern void launcher_round_ask_watch(bool settles);
extern void launcher_round_answer(uint64 missing);
extern int64 launcher_round_serve(int64 now);
extern bool launcher_round_start_cleanup(Visit *visit, int64 now);
extern void launcher_round_end_cleanup(Visit *visit, int64 now);

#endif							/* IM_LAUNCHER_PRIVATE_H */
