/*-------------------------------------------------------------------------
 *
 * ledger.h
 *	  The ledger: what a move has made and not yet handed over or removed.
 *
 * A row is committed no later than the thing it names exists, and is deleted
 * in the transaction that hands the thing over or drops it.  So after a crash
 * at any moment the ledger names everything of ours that has no owner.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LEDGER_H
#define IM_LEDGER_H

#include "nodes/pg_list.h"
#include "utils/timestamp.h"

#include "compat.h"

typedef enum LedgerKind
{
	LEDGER_NEW_FILE = 'n',		/* file of a copy that is not swapped in yet */
	LEDGER_OLD_FILE = 'o',		/* file that a swap has put out of use */
	LEDGER_INDEX = 'i',			/* index entry made by a rebuild: old and new */
	LEDGER_DUPLICATE = 'd',		/* the same, after DDL has made both valid:
								 * new_index is out of use and has to be
								 * removed */
} LedgerKind;

typedef struct LedgerEntry
{
	int64		id;
	LedgerKind	kind;
	Oid			tablespace;		/* files */
	RelFileNumber relfilenumber;	/* files */
	Oid			heap_oid;
	Oid			relid;			/* the relation that is (or was) moved */
	Oid			new_index_oid;	/* LEDGER_INDEX: the _ccnew entry */
	int64		job;
	int			pid;			/* of the runner that made it */
	TimestampTz made_at;
	NameData	new_name;		/* of new_index, "" for files */
} LedgerEntry;

extern int64 ledger_new_id(void);
extern void ledger_insert(LedgerEntry *entry);
extern void ledger_delete(int64 id);
extern bool ledger_exists(int64 id);
extern List *ledger_read(void);
extern List *ledger_read_apart(void);

extern void ledger_row_claim(int64 id);
extern bool ledger_row_claim_again(int64 id);
extern bool ledger_row_try(int64 id);
extern bool ledger_row_is_claimed(int64 id);
extern void ledger_row_release(int64 id);

#endif							/* IM_LEDGER_H */
