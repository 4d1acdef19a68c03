/*-------------------------------------------------------------------------
 *
 * report.h
 *	  The reports, and what they know of pages, for the upper rooms.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REPORT_H
#define IM_REPORT_H

#include "storage/bufpage.h"

extern bool bloat_estimate(Oid index_oid, double *ratio);
extern bool page_is_of(Oid relam, const char *page);
extern BlockNumber page_root(Oid relam, Page page);

#endif							/* IM_REPORT_H */
