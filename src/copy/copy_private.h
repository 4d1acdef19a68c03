/*-------------------------------------------------------------------------
 *
 * copy_private.h
 *	  Shared by the files of the method copy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COPY_PRIVATE_H
#define IM_COPY_PRIVATE_H

#include "storage/bufmgr.h"
#include "storage/itemptr.h"
#include "storage/lmgr.h"

#include "cleanup/cleanup.h"
#include "copy/block_set.h"
#include "copy/file_copy.h"
#include "copy/wal_changes.h"
#include "job.h"
#include "settings.h"
#include "test_points.h"
#include "wait/wait.h"

/* Of an ERROR that only move_by_copy() meets, see copy_start_again() */
#define ERRCODE_START_AGAIN	MAKE_SQLSTATE('I', 'M', '0', '0', '1')

typedef enum AttemptOutcome
{
	SWAPPED,
	LOCK_NOT_GRANTED,
	TOO_MUCH_LEFT,				/* to copy under the lock */
} AttemptOutcome;

/*
 * How far a move is.  In the stages from COPY_ASKING on other sessions may be waiting for
 * us, so work is left out that can be done earlier or later.
 */
typedef enum CopyStage
{
	COPY_COPYING,				/* one file after the other is copied, and
								 * compared */
	COPY_CATCHING_UP,			/* all files are; changed blocks are copied
								 * again until the locks can be had */
	COPY_ASKING,				/* an attempt: its transaction is open */
	COPY_LOCKED,				/* ... and has all exclusive locks */
	COPY_SWAPPED,				/* it is committed */
} CopyStage;

/* More changed blocks than these are copied directly */
#define COPY_FAR_TOO_MANY	2048

/* Time to copy a block in shared buffers, as a first guess */
#define COPY_BLOCK_US	IM_LIMIT("slow-blocks", 10)

/* Belongs to copy_budget.c */
typedef struct CopyEta
{
	MovePhase	part;
	int64		part_began;		/* ms, less rests; 0 = none yet */
	double		busy_rate;		/* bytes copied per second, without rests */
	int64		cached;			/* blocks to be loaded after the swap */
	TimestampTz changes_at;		/* when these were counted */
	int64		changes;
	int64		round_began;	/* copy_busy_ms() */
	int64		rate_rested_before; /* throttle.rested_us then */
	int64		written_before; /* blocks */
	int64		changed_before;
	bool		in_vain;		/* most of them have changed since */
	bool		told;
} CopyEta;

/* Of a move, through all starts of its copy */
typedef struct CopySoFar
{
	bool		began;			/* the first check found it movable */
	bool		told;			/* warned that lock_wait is over */
	bool		told_of_record; /* warned that a record has failed */
	int64		rested_us;		/* until swap_after: neither work nor a wait
								 * for others */
} CopySoFar;

/*
 * The copy of one file.  Those of a table, its TOAST table and the index of
 * that make one move: a list in the order in which their locks are taken, with
 * one swap for all of them.
 */
typedef struct CopyState
{
	struct CopyState *first;
	struct CopyState *next;

	/* of the whole move; in the first one only */
	CopySoFar  *so_far;
	CopyStage	stage;
	bool		locked;			/* the session has the locks of the long phase */
	ChangedBlocks **followers;	/* of all files; ends with NULL */
	int			nfollowers;
	Oid			ledger;			/* from the swap on */

	MemoryContext cxt;
	MoveContext *mc;			/* of the whole move */
	MoveItem   *item;			/* of this file */
	const MoveSettings *settings;
	Oid			relid;			/* an index, or a table of any kind */
	Oid			table;			/* of the move: its lock keeps out DDL */
	bool		is_table;
	bool		in_place;		/* in the target already: only locked */
	TimestampTz began_at;		/* the copy of this file */
	Buffer	   *map_buffers;	/* pages of the visibility map, as found last */
	BlockNumber map_blocks;
	ItemPointerData row;		/* of pg_class, when the swap changes it */
	RelFileLocator from;
	RelFileLocator to;
	Oid			relam;
	bool		direct;			/* past the operating system's cache */

	LedgerEntry new_file;		/* id 0 = no row */
	bool		resumed;		/* the copy goes on from an earlier one's file */
	bool		new_file_made;	/* by us; else one of that name is not ours */
	LedgerEntry old_file;		/* inserted by the swap */
	int64		claimed;		/* number of another row that we have claimed */

	Throttle	throttle;

	ChangedBlocks *changes;
	FileCopy   *copy;
	double		block_us;		/* to copy one through buffers, smoothed */
	int64		outpaced_since; /* copy_busy_ms(); no fewer blocks are left; 0
								 * = fewer */
	int64		recopied_before;	/* blocks, for which not to give up */
	bool		outpaced;		/* the writers are about as fast as we are */
	CopyEta		eta;
	BlockNumber copied;			/* blocks below are in the new file */
	BlockNumber record_step;	/* record after so many; 0 = never */
	BlockNumber record_at;		/* the next time */
	XLogRecPtr	taken_at;		/* new_file.changes_from after this round */
	BlockSet   *todo;			/* of these, the ones to be copied again */
	int64		changed_blocks; /* taken from the WAL so far */
	int			rounds;			/* of copying changed blocks again */
	BlockSet   *unverified;		/* copied since they were verified */
	bool		verifying;		/* keep "unverified" up to date */
	BlockNumber verified;		/* blocks from here on were never compared */
} CopyState;

/* Return this file, or the next one that is copied; NULL if there is none. */
static inline CopyState *
copied_file(CopyState *f)
{
	while (f != NULL && f->in_place)
		f = f->next;
	return f;
}

/* Go through the files of a move that are copied, in the order of their locks. */
#define foreach_file(f, cs) \
	for (CopyState *f = copied_file((cs)->first); f != NULL; f = copied_file(f->next))

/*
 * Return whether this copy is to be compared with the original; in any case if it went on,
 * since other servers, devices and times have had their hands in what it took over.
 */
static inline bool
copy_verifies(const CopyState *cs)
{
	int			verify = cs->settings->verify;

	return cs->resumed || verify == SWITCH_ON || (verify == SWITCH_AUTO && cs->is_table);
}

pg_noreturn extern void copy_start_again(const char *why);
extern const char *copy_changes_lost(ChangesResult result);
extern void copy_wait_for_locks(CopyState *cs);
extern void copy_release_locks(CopyState *cs);
extern void copy_check_locks(const CopyState *cs);
extern bool copy_gives_turn(CopyState *cs, TimestampTz waits_since);
extern void copy_check_relations(CopyState *cs, bool first);
extern bool copy_is_in_the_way(CopyState *cs);
extern void copy_rest_after_swap(void *arg);
extern void copy_prepare_prewarm(CopyState *cs);
extern void copy_prewarm(CopyState *cs);
extern int64 copy_count_cached(CopyState *cs);
extern void copy_create_maps(CopyState *cs);
extern void copy_free_space_map(CopyState *cs);
extern bool copy_visibility_map(CopyState *cs, int64 *most_us);
#ifdef IM_HAS_WAL_SUMMARIES
extern void copy_resume(CopyState *cs);
extern void copy_resume_begin(CopyState *cs);
extern void copy_resume_record(CopyState *cs, bool synced);
#else
#define copy_resume(cs) ((void) 0)
#define copy_resume_begin(cs) ((void) 0)
#define copy_resume_record(cs, synced) ((void) 0)
#endif
extern void copy_rounds(CopyState *cs, bool first_time);
extern bool copy_let_others_pass(void *arg);
extern void copy_begin_with_ledger(CopyState *cs);
extern void copy_between_chunks(CopyState *cs);
extern void copy_keep_up(CopyState *cs);
extern void copy_drain(CopyState *cs);
extern void copy_drain_to(CopyState *cs, XLogRecPtr upto);
extern int64 copy_changes_left(const CopyState *cs);
extern void copy_take_changes(CopyState *cs);
extern BlockNumber copy_take_tail(CopyState *cs);
extern int64 copy_busy_ms(const CopyState *cs);
extern void copy_begin_round(CopyState *cs);
extern void copy_look_at_round(CopyState *cs);
extern void copy_publish_eta(const CopyState *cs, double left);
extern void copy_eta(CopyState *cs, MovePhase part, int64 total, int64 done);
extern void copy_change_rate(CopyState *cs);
extern void copy_verify_all(CopyState *cs);
extern void copy_verify_rest(CopyState *cs, BlockNumber nblocks);
extern void copy_todo_through_buffers(CopyState *cs, int64 most);
extern void copy_wait_for_swap_time(CopyState *cs);
extern void copy_catch_up(CopyState *cs);
extern int64 copy_catch_up_interval(TimestampTz since);
extern void copy_stay_near(CopyState *cs);
extern AttemptOutcome copy_last_blocks(CopyState *cs, XLogRecPtr upto, int64 *most_us);
extern int64 copy_blocks_us(const CopyState *cs, int64 nblocks);
extern bool copy_fits_under_lock(const CopyState *cs, int64 nblocks);
extern int64 copy_last_us(const CopyState *cs);
extern void copy_is_not_outpaced(CopyState *cs);
extern void copy_check_hope(CopyState *cs);
extern void copy_swap(CopyState *cs);
extern void copy_lock_wait_is_over(CopyState *cs, const VirtualTransactionId *holders,
								   int nholders);

#endif							/* IM_COPY_PRIVATE_H */
