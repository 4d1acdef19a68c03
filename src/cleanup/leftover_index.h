/*-------------------------------------------------------------------------
 *
 * leftover_index.h
 *	  Removing the indexes that our interrupted rebuilds have left.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LEFTOVER_INDEX_H
#define IM_LEFTOVER_INDEX_H

#include "cleanup/ledger.h"
#include "nodes/pg_list.h"

/* What index_mover_cleanup() tells about one of them. */
typedef struct LeftoverIndex
{
	Oid			index_oid;
	bool		duplicate;		/* was repaired meanwhile by somebody's DDL */
	char	   *name;			/* qualified and quoted */
	Oid			tablespace;		/* never 0 */
	int64		size;			/* bytes, all forks */
} LeftoverIndex;

/*
 * Remove leftovers: those of one job (which may be the caller's own), or, with
 * job = 0, those of all jobs that aren't alive; only_heap, unless InvalidOid,
 * restricts it to one table.  show: index_mover_progress shows what is worked on,
 * because this is no part of a move.  Waits for transactions that use the table at
 * most max_wait_ms for each (0 = for ever); what can't be removed then stays in
 * the ledger.  Returns how many were removed.
 *
 * Without job and show it is the beginning of a move, which has nothing to lose
 * yet: then it obeys pause_move(), and a cancel is an ERROR.
 *
 * To be called with no transaction open and no lock held, in a runner.  No other
 * ERRORs but when terminated.
 */
extern int	leftover_indexes_remove(Oid only_heap, int64 job, int max_wait_ms,
									bool show);

/*
 * The same for one leftover of this process, the extension and its ledger having
 * been dropped meanwhile.  To be called until it returns true: there is nothing
 * left.
 */
extern bool leftover_index_remove_unlisted(const LedgerEntry *entry, int max_wait_ms);

/*
 * Is this index one that a rebuild of ours has made and not yet finished, or
 * has left behind?  Runs in the current transaction.
 */
extern bool leftover_index_is_ours(Oid index_oid);

/*
 * List, palloc'd, the leftovers of all jobs that aren't alive.  Runs in the
 * current transaction and changes nothing.
 */
extern List *leftover_indexes_list(void);

/*
 * The OIDs, without duplicates, of the tables that the ledger names in rows of
 * this kind of jobs that aren't alive, also where only the row is left.  Runs
 * in the current transaction.
 */
extern List *leftover_index_tables(void);

#endif							/* IM_LEFTOVER_INDEX_H */
