/*-------------------------------------------------------------------------
 *
 * report_relation.h
 *	  Open an index for a report.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REPORT_RELATION_H
#define IM_REPORT_RELATION_H

#include "utils/rel.h"

/*
 * Open an index that a report is to read, with AccessShareLock, or raise the
 * error that pgstattuple's functions raise.  required_am is InvalidOid, or
 * the only access method that will do.  Close with report_close().
 */
extern Relation report_open(Oid index_oid, Oid required_am);

/*
 * The same for a report over many indexes: returns NULL where report_open()
 * would raise an error or have to wait for a lock.
 */
extern Relation report_try_open(Oid index_oid, Oid required_am);

extern void report_close(Relation rel);

/* Bytes of the main fork of any relation; false where report_try_open() gives up. */
extern bool report_try_size(Oid relid, int64 *size);

/*
 * Run callback(arg) in a subtransaction.  Returns false where it failed
 * because the index is damaged or went away; other errors are passed on.
 * Whatever callback has opened is closed then.
 */
typedef void (*ReportCallback) (void *arg);
extern bool report_survive(ReportCallback callback, void *arg);

#endif							/* IM_REPORT_RELATION_H */
