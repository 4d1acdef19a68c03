/*-------------------------------------------------------------------------
 *
 * report.h
 *	  Bloat, pending lists, duplicates and facts about pages, for upper rooms.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REPORT_H
#define IM_REPORT_H

#include "nodes/pg_list.h"
#include "storage/bufpage.h"

/* A pending list of so many pages is long enough to be worth emptying */
#define PENDING_LONG		16

/* The pending list of a GIN index */
typedef struct PendingList
{
	int64		pages;
	int64		rows;
	int64		limit;			/* bytes, from which on an insert empties it */
	bool		fastupdate;
} PendingList;

/* Called with a block that a page refers to */
typedef void (*PageLinkFunction) (BlockNumber block, void *arg);

extern bool page_is_of(Oid relam, const char *page);
extern bool page_is_meta(Oid relam, Page page);
extern bool page_is_known(Oid relam);
extern BlockNumber page_root(Oid relam, Page page, BlockNumber *spare);
extern void page_links(Oid relam, Page page, PageLinkFunction found, void *arg);
extern BlockNumber page_next_in_list(Oid relam, Page page);
extern bool bloat_estimate(Oid index_oid, double *ratio);
extern bool report_pending_list(Oid index_oid, PendingList *list);
extern bool report_is_spare(Oid index_oid);
extern Oid	report_duplicate_of(Oid index_oid, List **worths, MemoryContext context);

#endif							/* IM_REPORT_H */
