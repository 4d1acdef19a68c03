/*-------------------------------------------------------------------------
 *
 * swap.h
 *	  The short exclusive step: give a relation its new file.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_SWAP_H
#define IM_SWAP_H

#include "compat.h"
#include "job.h"
#include "cleanup/ledger.h"
#include "settings.h"

typedef enum SwapResult
{
	SWAP_DONE,					/* and committed */
	SWAP_START_AGAIN,			/* the new file is of no use any more */
} SwapResult;

typedef enum LastBlocks
{
	LAST_BLOCKS_COPIED,			/* the files are equal now */
	LAST_BLOCKS_TOO_MANY,		/* it would take too long under the lock */
	LAST_BLOCKS_START_AGAIN,
} LastBlocks;

typedef struct Swap
{
	/* set by the caller */
	Oid			relid;			/* whose file is exchanged */
	Oid			table;			/* whose plans should know, locked by caller */
	RelFileLocator from;
	RelFileLocator to;
	int64		ledger_id;		/* of the row for the new file */
	LedgerEntry old_file;		/* the row for the old one, without id */
	const MoveSettings *settings;
	MoveItem   *item;			/* for which blockers are signalled */
	const int64 *rested_ms;		/* how long catch_up() has rested so far, which is
								 * no part of lock_wait */

	bool	   *told;			/* see swap_still_waiting() */

	/*
	 * catch_up: called with no transaction open, before each attempt; brings
	 * the new file near the old one, lets others pass.  stay_near: the same
	 * while there can be no attempt, or, in a transaction, in the queue: learns
	 * what has changed, and copies nothing.  Both return false if the copy has
	 * to be started again.  last_blocks: called under the exclusive lock; makes
	 * the files equal, or gives up if that would take longer than most_us
	 * microseconds.
	 */
	bool		(*catch_up) (void *arg);
	bool		(*stay_near) (void *arg);
	LastBlocks	(*last_blocks) (void *arg, int64 most_us);
	void	   *arg;

	/* results */
	int64		lock_attempts;
	int64		lock_time;		/* microseconds, from the grant to the commit */
} Swap;

extern SwapResult swap_when_possible(Swap *swap);
extern void swap_still_waiting(const MoveItem *item, Oid relid,
							   const MoveSettings *settings,
							   const int *pids, int npids, bool *told);
extern void commit_locally(void);

#endif							/* IM_SWAP_H */
