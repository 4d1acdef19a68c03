/*-------------------------------------------------------------------------
 *
 * page_measure.h
 *	  What is on one page of an index: kind, bytes used, bytes worth keeping.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PAGE_MEASURE_H
#define IM_PAGE_MEASURE_H

#include "storage/bufpage.h"
#include "utils/rel.h"

typedef enum PageKind
{
	PAGE_FIXED,					/* meta, bitmap, revmap: a rebuild makes it too */
	PAGE_LEAF,					/* tuples that point to the table */
	PAGE_INTERNAL,				/* tuples that point to other pages */
	PAGE_OVERFLOW,				/* hash: continues a bucket */
	PAGE_POSTING_LEAF,			/* GIN: leaf of a posting tree */
	PAGE_POSTING_LAST,			/* GIN: rightmost or only leaf of one */
	PAGE_POSTING_INTERNAL,		/* GIN */
	PAGE_PENDING,				/* GIN: pending list */
	PAGE_EMPTY,					/* deleted, half-dead, unused or never used */
	PAGE_KINDS
} PageKind;

typedef struct PageMeasure
{
	PageKind	kind;
	double		avail;			/* bytes for tuples and line pointers */
	double		used;			/* of avail, counted as pgstatindex counts */
	double		packed;			/* of used, what a rebuild would write */
	double		items;			/* table rows pointed to, dead ones not counted */
	double		dead;			/* tuples marked dead */
	double		tuples;			/* tuples after the rebuild */
	double		heavy;			/* btree: bytes of the high key, not in packed
								 * hash: items whose value fills half a page */
	double		squares;		/* hash: squared rows per value, summed, of
								 * the values that aren't heavy */
	double		one_size;		/* btree: 1 = all tuples are of one size */
} PageMeasure;

/* What has to be known about the index as a whole to judge one page. */
typedef struct MeasureContext
{
	Oid			relam;
	bool		deduplicates;	/* btree: a rebuild makes posting lists */
} MeasureContext;

/* btree, hash, GIN, GiST, SP-GiST and BRIN */
extern bool page_measure_supports(Oid relam);

/*
 * Measure a private copy of a page.  Returns NULL, or what is wrong with the
 * page (a fragment, not translated).  Never reads beyond the page, whatever
 * is on it.
 */
extern const char *page_measure(const MeasureContext *mc, Page page,
								BlockNumber blkno, PageMeasure *pm);

#ifdef INDEX_MOVER_TEST
extern void test_measure_damaged(const MeasureContext *mc, char *page, BlockNumber blkno);
#define IM_MEASURE_DAMAGED(mc, page, blkno)	test_measure_damaged(mc, page, blkno)
#else
#define IM_MEASURE_DAMAGED(mc, page, blkno)	((void) 0)
#endif

#endif							/* IM_PAGE_MEASURE_H */
