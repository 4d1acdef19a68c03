/*-------------------------------------------------------------------------
 *
 * own_tables.h
 *	  The extension's own tables, and transactions that write only to them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_OWN_TABLES_H
#define IM_OWN_TABLES_H

#include "access/genam.h"
#include "access/sdir.h"
#include "storage/lock.h"
#include "utils/relcache.h"

#include "compat.h"
#include "row.h"

extern void extension_set_only(Oid extension);
extern Oid	extension_oid(void);
extern bool extension_installed(void);
extern bool extension_is_locked(void);
pg_noreturn extern void extension_missing(void);
extern bool extension_fits(const char *table, TupleDesc desc);
pg_noreturn extern void extension_other_version(const char *table);
extern bool extension_owns(Oid table);
extern Oid	extension_relation(const char *name);
extern Oid	extension_find_relation(const char *name);
extern int64 extension_nextval(const char *sequence, int64 after);
extern void extension_deform(HeapTuple tuple, TupleDesc desc, int natts,
							 Datum *values, bool *nulls);
extern void extension_insert(const char *table, Row *row);
extern bool extension_delete_row(const char *table, ItemPointer tid);
extern bool extension_delete_free_row(const char *table, ItemPointer tid);
extern bool extension_delete(const char *table, int nkeys, ScanKey keys);

/* A scan of a table of the extension */
typedef struct ExtensionScan
{
	Relation	rel;
	Relation	index;			/* NULL: in no order */
	ScanDirection direction;	/* forward, unless set otherwise */
	SysScanDesc scan;
	HeapTuple	tuple;			/* after extension_scan_next(), and its
								 * columns */
	Row			row;
} ExtensionScan;

extern ScanKeyData extension_key(AttrNumber column, RegProcedure equal, Datum value);
extern void extension_scan_begin(ExtensionScan *scan, const char *table, int nkeys, ScanKey keys);
extern void extension_scan_begin_index(ExtensionScan *scan, const char *table, const char *index,
									   int nkeys, ScanKey keys);
extern void extension_scan_begin_query(ExtensionScan *scan, const char *table, const char *index,
									   int nkeys, ScanKey keys);
extern bool extension_scan_next(ExtensionScan *scan);
extern void extension_scan_end(ExtensionScan *scan);

/* Results of extension_hold() */
typedef enum ExtensionHold
{
	EXTENSION_HELD,
	EXTENSION_BUSY,				/* another session has it locked; retry */
	EXTENSION_GONE,				/* it has been dropped */
} ExtensionHold;

extern ExtensionHold extension_hold(void);
extern void extension_lock_tag(LOCKTAG *tag);
extern void extension_release(void);
extern void commit_locally(void);
extern void set_commit(const char *value);

extern bool moment_is_ahead(TimestampTz moment);

#endif							/* IM_OWN_TABLES_H */
