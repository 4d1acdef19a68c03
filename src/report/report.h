/*-------------------------------------------------------------------------
 *
 * report.h
 *	  The reports, for the planner.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REPORT_H
#define IM_REPORT_H

extern bool bloat_estimate(Oid index_oid, double *ratio);

#endif							/* IM_REPORT_H */
