/*-------------------------------------------------------------------------
 *
 * own_tables.h
 *	  The extension's own tables, and transactions that write only to them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_OWN_TABLES_H
#define IM_OWN_TABLES_H

#include "access/htup.h"
#include "utils/relcache.h"

extern bool extension_installed(void);	/* in this database */
extern Oid	extension_schema(void); /* ERROR 55000 if it is not installed here */
extern Oid	extension_relation(const char *name);	/* table, index, sequence */
extern Oid	extension_find_relation(const char *name);	/* or InvalidOid */
extern int64 extension_nextval(const char *sequence);
extern Relation extension_open(const char *name);
extern void extension_close(Relation rel);
extern void extension_insert(Relation rel, HeapTuple tuple);
extern bool extension_delete(Relation rel, HeapTuple tuple);	/* false: it was gone */

/*
 * Keep the extension's tables and sequences from being dropped, to the end of
 * the session or until extension_release().  In a transaction.  While a move
 * runs, DROP EXTENSION waits behind this: without the ledger nobody would know
 * what the move has made.  Every error lets go of these locks, with all others;
 * so ask for them again.
 */
typedef enum ExtensionHold
{
	EXTENSION_HELD,
	EXTENSION_BUSY,				/* somebody has *busy locked; ask again */
	EXTENSION_GONE,				/* it has been dropped */
} ExtensionHold;

extern ExtensionHold extension_hold(Oid *busy);
extern Oid	extension_held(int n);	/* the n-th of them; InvalidOid: no more */
extern void extension_release(void);
extern void commit_locally(void);
extern ErrorData *errors_take(MemoryContext context);
extern void set_commit(const char *value);

#endif							/* IM_OWN_TABLES_H */
