/*-------------------------------------------------------------------------
 *
 * report_private.h
 *	  Types and functions that the files of the reports share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REPORT_PRIVATE_H
#define IM_REPORT_PRIVATE_H

#include "datatype/timestamp.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

typedef enum PageKind
{
	PAGE_FIXED,					/* meta, bitmap, revmap: also made by a
								 * rebuild */
	PAGE_LEAF,					/* tuples that point to the table */
	PAGE_INTERNAL,				/* tuples that point to other pages */
	PAGE_OVERFLOW,				/* hash: continues a bucket */
	PAGE_POSTING_LEAF,			/* GIN: leaf of a posting tree */
	PAGE_POSTING_LAST,			/* GIN: its rightmost or only leaf */
	PAGE_POSTING_INTERNAL,		/* GIN */
	PAGE_PENDING,				/* GIN: pending list */
	PAGE_EMPTY,					/* deleted, half-dead, unused or never used */
	PAGE_KINDS
} PageKind;

/* The contents of one page or, as a total, of all pages of one kind */
typedef struct PageMeasure
{
	PageKind	kind;
	double		count;			/* pages: 1, or their number in a total */
	double		avail;			/* bytes for tuples and line pointers */
	double		used;			/* of avail, counted as pgstatindex counts */
	double		packed;			/* of used, written again by a rebuild */
	double		items;			/* table rows pointed to, without dead ones */
	double		dead;			/* tuples marked dead */
	double		tuples;			/* tuples after the rebuild */
	double		heavy;			/* btree: bytes of the high key, not in packed
								 * hash: items whose value fills half a page */
	double		squares;		/* hash: sum of squared rows per value, of
								 * values that are not heavy */
	double		one_size;		/* btree: 1 = all tuples are of one size */
} PageMeasure;

/* Sums over an index's pages without the metapage, or estimates of them */
typedef struct PageTotals
{
	PageMeasure of[PAGE_KINDS];
} PageTotals;

/* Facts about the whole index, for page_measure() */
typedef struct MeasureContext
{
	Oid			relam;
	bool		deduplicates;	/* btree: a rebuild makes posting lists */
} MeasureContext;

extern bool page_measure_supports(Oid relam);
extern const char *page_measure(const MeasureContext *mc, Page page,
								BlockNumber blkno, PageMeasure *pm);

#ifdef INDEX_MOVER_TEST
extern void test_measure_damaged(const MeasureContext *mc, char *page, BlockNumber blkno);
#define IM_MEASURE_DAMAGED(mc, page, blkno)	test_measure_damaged(mc, page, blkno)
#else
#define IM_MEASURE_DAMAGED(mc, page, blkno)	((void) 0)
#endif

/* Facts about a rebuild that are not on the pages */
typedef struct RebuildContext
{
	Oid			relam;
	double		fillfactor;		/* 0 to 1; NaN = the method has none */
	double		hash_tuples;	/* hash: from the metapage, -1 = unknown */
	int			hash_ffactor;	/* hash: intended tuples per bucket */
	double		brin_least;		/* BRIN: bytes of an empty summary, with line
								 * pointer */
	bool		smallest;		/* of two possible sizes, the smaller one */
} RebuildContext;

extern void rebuild_context_init(Relation index, RebuildContext *rc);
extern void page_totals_add(PageTotals *totals, const PageMeasure *pm, double weight);
extern double page_totals_density(const PageTotals *totals);
extern double rebuilt_pages(const RebuildContext *rc, const PageTotals *totals);

/*
 * A measurement of one index, at the start of a larger struct for the arguments
 * and the results of measure().
 */
typedef struct Report
{
	Oid			index_oid;
	Oid			required_am;	/* access method; InvalidOid = any */
	bool		quiet;			/* no errors because of the index, no waiting */
	void		(*measure) (Relation index, struct Report *report);
	bool		measured;		/* set by report_run() */
} Report;

extern bool report_run(Report *report);

typedef struct BloatReport
{
	Report		report;
	int			sample_pages;	/* the most blocks to read, at least 1 */
	TimestampTz deadline;		/* 0 = none */
	bool		exact;			/* read all blocks; set if all were read */

	/* results; NaN = not known */
	int64		pages;
	int64		sampled_pages;	/* blocks read, metapage and FSM included */
	double		leaf_density;	/* 0 to 1 */
	double		fillfactor;		/* of a rebuild, 0 to 1 */
	double		bloat_ratio;	/* NaN also if only the interval is known */
	double		bloat_ratio_low;
	double		bloat_ratio_high;
} BloatReport;

extern void bloat_measure(Relation index, Report *report);

typedef struct PendingReport
{
	Report		report;
	int64		pages;
	int64		tuples;			/* heap rows waiting in the list */
	int64		limit_bytes;	/* size at which an insert flushes it */
	bool		fastupdate;
} PendingReport;

extern void gin_pending_measure(Relation index, Report *report);

typedef struct ProbeResult
{
	double		random_read_ms;
	double		random_read_iops;	/* one read after the other */
	double		random_read_iops_deep;	/* queue_depth at a time */
	double		sequential_read_mb_s;
	double		sync_write_ms;	/* one block, written and synced */
	bool		direct_io;		/* false: the page cache may have helped */
} ProbeResult;

extern void tablespace_probe_run(Oid tablespace, double seconds, int queue_depth,
								 int64 free_bytes, ProbeResult *result);

extern double suggested_random_page_cost(const ProbeResult *result);
extern int	suggested_io_concurrency(const ProbeResult *result, int queue_depth);
extern void tablespace_probe_record(Oid tablespace, const ProbeResult *result);

#endif							/* IM_REPORT_PRIVATE_H */
