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
#include "wait/free_space.h"
#include "wait/wait.h"

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

/* Whether a copy has ended without its swap, and what comes next */
typedef enum CopyEnd
{
	COPY_GOES_ON,				/* it has not, or it has succeeded */
	COPY_AGAIN,					/* move_by_copy() starts it again */
	COPY_SKIPPED,				/* the row of a relation says why */
	COPY_TURN,					/* the move gives its turn to another relation */
	COPY_PART,					/* its relations are moved one after the other */
} CopyEnd;

/* The outcome of an attempt to swap the files */
typedef enum AttemptOutcome
{
	SWAPPED,
	LOCK_NOT_GRANTED,
	TOO_MUCH_LEFT,				/* to copy under the lock */
	CANNOT_GO_ON,				/* see copy_end() */
} AttemptOutcome;

/* More changed blocks than these are copied directly */
#define COPY_FAR_TOO_MANY	2048

/* So few changed blocks are left for the swap, and are copied under its lock */
#define COPY_VERY_FEW		16

/* Blocks that are copied through buffers in a transaction */
#define COPY_BUFFERED_BATCH	64

/* Time to copy a block in shared buffers, as a first guess */
#define COPY_BLOCK_US	IM_LIMIT("slow-blocks", 10)

/* When the move will end; belongs to copy_eta.c */
typedef struct CopyEta
{
	MovePhase	part;
	int64		part_began;		/* ms, less rests; 0 = none yet */
	double		busy_rate;		/* bytes copied per second, without rests */
	int64		cached;			/* blocks to be loaded after the swap */
} CopyEta;

/* How fast a copy is, beside the writers of the relation; belongs to copy_rounds.c */
typedef struct CopyPace
{
	double		block_us;		/* to copy a block through buffers, smoothed */
	int			rounds;			/* of copying changed blocks again */

	/* over all rounds */
	bool		outpaced;		/* the writers are about as fast as we are */
	int64		outpaced_since; /* busy_ms(); no fewer blocks are left; 0 =
								 * fewer */
	int64		recopied_before;	/* blocks, for which not to give up */

	/* since the beginning of this round */
	int64		round_began;	/* busy_ms() */
	int64		rate_rested_before; /* throttle.rested_us then */
	int64		written_before; /* blocks */
	int64		changed_before;
	bool		in_vain;		/* most of its blocks have changed since */
	bool		told;
} CopyPace;

/* The comparison of a copy with the original; belongs to copy_verify.c */
typedef struct CopyVerify
{
	bool		begun;			/* keep "unverified" up to date */
	BlockSet   *unverified;		/* blocks copied since they were compared */
	BlockNumber compared;		/* blocks from here on were never compared */
} CopyVerify;

/* How a copy records how far it is; belongs to copy_resume.c */
typedef struct CopyResume
{
	bool		goes_on;		/* from the file of an earlier copy */
	BlockNumber step;			/* record after so many blocks; 0 = never */
	BlockNumber due_at;			/* the next time */
} CopyResume;

/* The copy of a file */
typedef struct CopyFile
{
	struct CopyMove *move;
	MoveItem   *item;
	Oid			table;			/* as of a CopyRelation */
	Oid			relid;			/* an index, or a table of any kind */
	Oid			relam;
	bool		is_table;
	TimestampTz began_at;

	/* the files, and their rows of the ledger */
	RelFileLocator from;
	RelFileLocator to;
	LedgerEntry new_file;		/* id 0 = no row */
	bool		new_file_made;	/* by us; else a file of that name is not ours */
	LedgerEntry old_file;		/* inserted by the swap */
	int64		claimed;		/* number of another row that we have claimed */
	ItemPointerData row;		/* of pg_class, when the swap changes it */

	/* reading and writing */
	FileCopy   *copy;			/* NULL: it has not begun, or has ended */
	Throttle	throttle;
	SpaceWatch	space;			/* for the throttle */
	bool		direct;			/* past the operating system's cache */
	BlockNumber copied;			/* blocks below are in the new file */
	Buffer	   *map_buffers;	/* pages of the visibility map, as found last */
	BlockNumber map_blocks;

	/* changes by others */
	ChangedBlocks *changes;		/* NULL: they are not followed */
	BlockSet   *todo;			/* blocks below "copied" to be copied again */
	XLogRecPtr	taken_at;		/* new_file.changes_from after this round */
	int64		changed_blocks; /* taken from the WAL so far */

	CopyPace	pace;
	CopyVerify	verify;
	CopyResume	resume;
	CopyEta		eta;
} CopyFile;

/* A relation that is locked as long as the files are copied */
typedef struct CopyRelation
{
	Oid			table;			/* to which it belongs, or which it is */
	Oid			relid;
	LOCKMODE	lock;
	MoveItem   *item;			/* NULL: the table of an index, which stays */
	Oid			relam;
	RelFileLocator file;		/* when the copy began */
} CopyRelation;

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
 * The copy of a move: of an index, or of a table with its TOAST table and the index of
 * that; or of several such, small ones.  All are swapped together.
 */
typedef struct CopyMove
{
	MemoryContext cxt;
	MoveContext *mc;
	MoveItem   *item;			/* of the index or the table; the first one */
	MoveItem  **items;			/* all, by the OIDs of their tables */
	int			nitems;
	int			in_vain;		/* attempts with a lock, or too much left */
	bool		uneven;			/* at the last look, some were in use for long */
	const MoveSettings *settings;
	CopySoFar  *so_far;
	CopyStage	stage;
	CopyEnd		end;
	const char *why_ended;		/* NULL = it goes on */

	/* each table, with the others that move; locked in this order */
	CopyRelation *relations;
	int			nrelations;
	bool		has_locks;		/* the session has them */
	bool		gave_way;		/* released them for others, since this was
								 * reset */

	/* the relations whose files are copied: they are not in the target yet */
	CopyFile   *files;
	int			nfiles;
	ChangedBlocks **followers;	/* of all files; ends with NULL */
	int			nfollowers;

	Oid			ledger;			/* set by the swap */
	TimestampTz changes_at;		/* when the changes of all files were counted */
	int64		changes;
} CopyMove;

/*
 * Return whether this copy is to be compared with the original; in any case if it went on,
 * since other servers, devices and times have had their hands in the blocks that it took over.
 */
static inline bool
copy_verifies(const CopyFile *file)
{
	int			verify = file->move->settings->verify;

	return file->resume.goes_on || verify == SWITCH_ON ||
		(verify == SWITCH_AUTO && file->is_table);
}

/* Return the blocks of a file that were written so far, each as often as it was. */
static inline int64
copy_blocks_written(const CopyFile *file)
{
	return file->item->outcome.blocks_copied + file->item->outcome.blocks_recopied;
}

/* Return the item that a file is moved with: its index, or its table. */
static inline MoveItem *
copy_item_of(const CopyFile *file)
{
	const CopyMove *move = file->move;

	for (int i = 0; i < move->nitems; i++)
	{
		if (move->items[i]->relid == file->relid || move->items[i]->relid == file->table)
			return move->items[i];
	}
	return move->item;
}

/*
 * A function that is declared with pg_nodiscard returns whether the copy can go on.  If not,
 * copy_end() has said why: the caller ends all that it has begun, its transaction most of all,
 * and returns false in its turn.
 */

/*
 * Have move_by_copy() end the copy, for a reason that is a constant.  Returns false, which the
 * caller hands on.  This is no ERROR, because an abort would release all session locks.
 */
pg_nodiscard static inline bool
copy_end(CopyMove *move, CopyEnd end, const char *why)
{
	Assert(end != COPY_GOES_ON && why != NULL);
	move->end = end;
	move->why_ended = why;
	return false;
}

/* Have the copy started again; several relations are moved one after the other then. */
pg_nodiscard static inline bool
copy_start_again(CopyMove *move, const char *why)
{
	return copy_end(move, move->nitems > 1 ? COPY_PART : COPY_AGAIN, why);
}

/* copy_locks.c */
pg_nodiscard extern bool copy_wait_for_locks(CopyMove *move);
extern void copy_release_locks(CopyMove *move);
extern bool copy_is_in_the_way(CopyMove *move);
extern void copy_check_locks(const CopyMove *move);
pg_nodiscard extern bool copy_check_relations(CopyMove *move, bool first);
extern void copy_warn_or_give_up(CopyMove *move, const Wait *wait);

/* copy_give_way.c */
pg_nodiscard extern bool copy_let_others_pass(void *arg);
pg_nodiscard extern bool copy_between_chunks(CopyFile *file);
pg_nodiscard extern bool copy_begin_with_ledger(CopyMove *move);
extern void copy_rest_after_swap(void *arg);

/* copy_changes.c */
extern const char *copy_changes_lost(ChangesResult result);
pg_nodiscard extern bool copy_drain_to(CopyFile *file, XLogRecPtr upto);
pg_nodiscard extern bool copy_drain(CopyFile *file);
extern XLogRecPtr copy_drain_mark(const CopyMove *move);
pg_nodiscard extern bool copy_keep_up(CopyMove *move);
extern void copy_take_changes(CopyFile *file);
extern BlockNumber copy_take_tail(CopyFile *file);

/* copy_resume.c */
#ifdef IM_HAS_WAL_SUMMARIES
pg_nodiscard extern bool copy_resume(CopyFile *file);
extern void copy_resume_begin(CopyFile *file);
extern void copy_resume_record(CopyFile *file, bool synced);
#else
#define copy_resume(file) (true)
#define copy_resume_begin(file) ((void) 0)
#define copy_resume_record(file, synced) ((void) 0)
#endif

/* copy_rounds.c, copy_eta.c */
pg_nodiscard extern bool copy_rounds(CopyFile *file, bool first_time);
pg_nodiscard extern bool copy_catch_up(CopyMove *move);
extern int64 copy_catch_up_interval(int64 since);
pg_nodiscard extern bool copy_stay_near(CopyMove *move);
pg_nodiscard extern bool copy_wait_for_swap_time(CopyMove *move);
extern void copy_reset_pace(CopyMove *move);
extern void copy_check_hope(CopyMove *move);
extern void copy_eta(CopyFile *file, MovePhase part, int64 total, int64 done);
extern void copy_publish_eta(const CopyMove *move, double left);
extern int64 copy_changes_left(const CopyMove *move);
extern void copy_change_rate(CopyMove *move);

/* copy_verify.c */
pg_nodiscard extern bool copy_verify_all(CopyFile *file);
pg_nodiscard extern bool copy_verify_rest(CopyFile *file, BlockNumber nblocks);

/* copy_maps.c */
extern void copy_create_maps(CopyFile *file);
pg_nodiscard extern bool copy_free_space_map(CopyFile *file);
extern bool copy_visibility_map(CopyFile *file, int64 *most_us);

/* copy_prewarm.c */
pg_nodiscard extern bool copy_prepare_prewarm(CopyFile *file);
extern void copy_prewarm(CopyFile *file);
extern int64 copy_count_cached(CopyFile *file);

/* copy_last.c, copy_swap.c */
pg_nodiscard extern bool copy_todo_through_buffers(CopyFile *file, int64 most);
extern AttemptOutcome copy_last_blocks(CopyFile *file, XLogRecPtr upto, int64 *most_us);
extern int64 copy_blocks_us(const CopyFile *file, int64 nblocks);
extern bool copy_fits_under_lock(const CopyFile *file, int64 nblocks);
extern int64 copy_last_us(const CopyMove *move);
pg_nodiscard extern bool copy_swap(CopyMove *move);

#endif							/* IM_COPY_PRIVATE_H */
