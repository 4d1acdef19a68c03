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

#include "row.h"

typedef enum PageKind
{
	PAGE_LEAF,					/* tuples that point to the table */
	PAGE_INTERNAL,				/* tuples that point to other pages; hash:
								 * bitmap, unused */
	PAGE_POSTING,				/* GIN: leaf of a posting tree */
	PAGE_PENDING,				/* GIN: pending list */
	PAGE_EMPTY,					/* deleted, half-dead, unused or never used */
	PAGE_KINDS
} PageKind;

/* The contents of a page or, as a total, of all pages of a kind */
typedef struct PageMeasure
{
	PageKind	kind;
	double		count;			/* pages: 1, or their number in a total */
	double		avail;			/* bytes for tuples and line pointers */
	double		used;			/* of avail, counted as pgstatindex counts */
	double		packed;			/* of used, written again by a rebuild */
	double		rows;			/* pointers to rows, also to dead rows */
	double		tuples;			/* after the rebuild; of GIN's posting trees:
								 * trees */
	double		peak;			/* GiST: the most that was ever used of avail */
	double		keys;			/* hash: different hash codes on the page */
	double		buckets;		/* hash: first pages of buckets that have rows */
	double		small;			/* GIN: ends of posting trees that fit into a
								 * page of keys, if they are all of the tree */
	double		small_bytes;
} PageMeasure;

/* Sums over an index's pages without the metapage, or estimates of them */
typedef struct PageTotals
{
	PageMeasure of[PAGE_KINDS];
} PageTotals;

/* Facts about the whole index, from pg_class, options and metapage */
typedef struct IndexFacts
{
	Oid			relam;
	double		fillfactor;		/* 0 to 1; NaN = the method has none */
	bool		deduplicates;	/* btree: a rebuild makes posting lists */
	double		hash_rows;
	double		gin_density;	/* of the pages of keys that a build makes; 0
								 * = not known */
} IndexFacts;

/* How full inserts leave the pages of GiST, if nothing else is known */
#define GIST_DENSITY		0.66

/* Sizes after a rebuild */
typedef enum RebuiltSize
{
	REBUILT_LARGEST,
	REBUILT_EXPECTED,
	REBUILT_SMALLEST
} RebuiltSize;

extern bool page_measure_facts(Relation index, IndexFacts *facts);
extern const char *page_measure(const IndexFacts *facts, Page page, PageMeasure *pm);

#ifdef INDEX_MOVER_TEST
extern void test_measure_damaged(const IndexFacts *facts, char *page, BlockNumber blkno);
extern char *test_guarded(char *page);
#define IM_MEASURE_DAMAGED(facts, page, blkno)	test_measure_damaged(facts, page, blkno)
#define IM_GUARDED(page)	test_guarded(page)
#else
#define IM_MEASURE_DAMAGED(facts, page, blkno)	((void) 0)
#define IM_GUARDED(page)	(page)
#endif

extern void page_measure_add(PageMeasure *sum, const PageMeasure *pm, double weight);
extern double rebuilt_pages(const IndexFacts *facts, const PageTotals *totals, RebuiltSize size);
extern double rebuilt_gin_density(char **pages, int npages, const PageTotals *totals,
								  bool in_one_batch);

extern bool report_run(Oid index_oid, bool quiet,
					   void (*measure) (Relation index, void *result), void *result);
extern void report_corrupted(Relation index, BlockNumber blkno, const char *problem);

extern void report_pending(Oid index_oid, Row *row, int column);
extern void bloat_report(Oid index_oid, Row *row, int column);
extern void row_float8(Row *row, int column, double value);
extern Datum row_result(FunctionCallInfo fcinfo, Row *row);

#endif							/* IM_REPORT_PRIVATE_H */
