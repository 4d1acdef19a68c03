/*-------------------------------------------------------------------------
 *
 * leftover_twin.h
 *	  Is this valid index a leftover of ours, which somebody's DDL has repaired?
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LEFTOVER_TWIN_H
#define IM_LEFTOVER_TWIN_H

#include "cleanup/ledger.h"

/*
 * The ledger row names two indexes that are both valid (new_index_oid valid and
 * index_oid valid), or, of kind LEDGER_DUPLICATE, one that is valid again.
 * Returns the one that is a leftover, and so a mere duplicate of *keeper;
 * InvalidOid if neither can be said to be.
 */
extern Oid	leftover_twin(const LedgerEntry *entry, Oid *keeper);

/*
 * Neither index of the row exists any more.  If a command that makes all
 * indexes of a column anew (ALTER TABLE .. TYPE) has done so with the leftover,
 * too, return that new one, which is a mere duplicate of *keeper; else
 * InvalidOid.
 */
extern Oid	leftover_twin_made_anew(const LedgerEntry *entry, Oid *keeper);

/* Does it look like what REINDEX CONCURRENTLY makes: "x_ccnew", "x_ccold1"? */
extern bool is_reindex_leftover_name(const char *name);

#endif							/* IM_LEFTOVER_TWIN_H */
