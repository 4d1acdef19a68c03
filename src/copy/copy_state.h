/*-------------------------------------------------------------------------
 *
 * copy_state.h
 *	  What the parts of the method copy share while one index is moved.
 *
 * Nothing outside of move_copy.c and copy_*.c includes this.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COPY_STATE_H
#define IM_COPY_STATE_H

#include "copy/changed_blocks.h"
#include "compat.h"
#include "copy/file_copy.h"
#include "cleanup/ledger.h"
#include "worker/move.h"
#include "wait/replica_lag.h"
#include "copy/swap.h"
#include "wait/throttle.h"

/* A rest no longer than this keeps the WAL from being recycled unread */
#define SHORT_REST_MS		20

typedef enum CopyOutcome
{
	GO_ON,
	START_AGAIN,				/* the copy is of no use; the file is new, or
								 * WAL is missing */
	NOT_MOVABLE,				/* plan_recheck() has said why */
} CopyOutcome;

/* The parts of the work, in their order, for copy_eta(). */
typedef enum CopyPart
{
	PART_COPY,
	PART_AGAIN,
	PART_VERIFY,
	PART_PREWARM,
	PART_REMOVE,
} CopyPart;

/* Belongs to copy_eta.c; set to zero at the start of a copy. */
typedef struct CopyEta
{
	CopyPart	part;
	TimestampTz part_began;		/* 0 = none yet */
	int64		rested_before;	/* cs->rested_ms then */
	double		busy_rate;		/* bytes copied per second, without rests */
	double		cached;			/* blocks to be loaded after the swap */
	TimestampTz changes_at;		/* when these were counted */
	int64		changes;
} CopyEta;

typedef struct CopyState
{
	MemoryContext cxt;
	MoveContext *mc;
	Oid			index;
	Oid			table;
	bool		locked;
	bool		began;			/* the first look found it movable */
	RelFileLocator from;
	RelFileLocator to;
	RmgrId		rmid;
	bool		opted_in;		/* its access method is one of
								 * index_mover.copy_access_methods */

	LedgerEntry new_file;		/* id 0 = no row */
	bool		new_file_made;	/* by us: else one of that name is not ours */
	LedgerEntry old_file;		/* the same, after the swap */

	ChangedBlocks *changes;
	FileCopy   *copy;
	Throttle	throttle;
	ReplicaLag	lag;
	bool		told;			/* that lock_wait is over and the copy goes on */
	int64		rested_ms;		/* because of a pause, a rate, a lag: no part of
								 * lock_wait */
	CopyEta		eta;
	BlockNumber copied;			/* blocks below are in the new file */
	BlockSet   *todo;			/* of these, the ones to be copied again */
	BlockSet   *unverified;		/* copied since they were verified */
	bool		verifying;		/* keep "unverified" up to date */
	const char *start_again;	/* why the copy has to be started again */
	CopyOutcome outcome;		/* of a callback that returns less */
} CopyState;

/* copy_locks.c */
extern void copy_check_interrupts(void);
extern CopyOutcome copy_wait_for_locks(CopyState *cs);
extern void copy_release_locks(CopyState *cs);
extern CopyOutcome copy_check_relation(CopyState *cs, bool first);
extern bool copy_is_in_the_way(CopyState *cs);
extern CopyOutcome copy_give_way(CopyState *cs);

/* copy_rounds.c */
extern CopyOutcome copy_rounds(CopyState *cs);
extern CopyOutcome copy_rounds_again(CopyState *cs);
extern CopyOutcome copy_free_space_map(CopyState *cs);
extern CopyOutcome copy_breathe(CopyState *cs);
extern CopyOutcome copy_keep_up(CopyState *cs);
extern CopyOutcome copy_drain(CopyState *cs);
extern void copy_take_changes(CopyState *cs);

/* copy_eta.c */
extern void copy_eta(CopyState *cs, CopyPart part, int64 total, int64 done);
extern void copy_change_rate(CopyState *cs);

/* copy_verify.c */
extern CopyOutcome copy_verify_all(CopyState *cs);
extern CopyOutcome copy_verify_rest(CopyState *cs);
extern void copy_verify_locked(CopyState *cs);

/* copy_last.c */
extern CopyOutcome copy_todo_through_buffers(CopyState *cs);
extern CopyOutcome copy_wait_for_swap_time(CopyState *cs);
extern bool copy_catch_up(void *arg);
extern bool copy_stay_near(void *arg);
extern LastBlocks copy_last_blocks(void *arg, int64 most_us);

#endif							/* IM_COPY_STATE_H */
