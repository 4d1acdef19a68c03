/*-------------------------------------------------------------------------
 *
 * ledger.h
 *	  The ledger: files and indexes of moves that have no owner yet or any more.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LEDGER_H
#define IM_LEDGER_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"
#include "utils/timestamp.h"

#include "compat.h"

typedef enum LedgerKind
{
	LEDGER_NEW_FILE = 'n',		/* file of a copy that is not swapped in yet */
	LEDGER_OLD_FILE = 'o',		/* file that a swap has put out of use */
	LEDGER_INDEX = 'i',			/* index made by a rebuild: old and new */
	LEDGER_DUPLICATE = 'd',		/* the same, after DDL has made both valid:
								 * the new one is out of use and to be removed */
} LedgerKind;

typedef struct LedgerEntry
{
	int64		id;
	char		kind;			/* LedgerKind */
	Oid			tablespace;		/* files */
	RelFileNumber relfilenumber;	/* files */
	Oid			heap_oid;
	Oid			relid;			/* the relation that is (or was) moved */
	Oid			new_index_oid;	/* LEDGER_INDEX: the _ccnew entry */
	int64		job;
	int			pid;			/* of the runner that made it */
	TimestampTz made_at;
	NameData	new_name;		/* of new_index, "" for files */
	Oid			database;		/* where the row was written */

	/* of a new file from which a copy can go on; see copy/copy_resume.c */
	Oid			from_tablespace;	/* the file that is copied */
	RelFileNumber from_relfilenumber;
	int64		copied_blocks;	/* durable; 0 = it cannot go on */
	XLogRecPtr	changes_from;	/* what has changed since is copied again */
	int64		timeline;		/* of changes_from */
	TimestampTz keep_until;
} LedgerEntry;

extern int64 ledger_new_id(void);
extern void ledger_insert(LedgerEntry *entry);
extern void ledger_update(LedgerEntry *entry);
extern void ledger_delete(int64 id);
extern bool ledger_exists(int64 id);
extern List *ledger_read(void);
extern List *ledger_read_apart(void);

extern void ledger_row_claim(int64 id);
extern bool ledger_row_claim_again(int64 id);
extern bool ledger_row_try(int64 id);
extern bool ledger_row_is_claimed(int64 id);
extern void ledger_row_release(int64 id);
#ifdef USE_ASSERT_CHECKING
extern bool ledger_row_is_ours(int64 id);
#endif

#endif							/* IM_LEDGER_H */
