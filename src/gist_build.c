/*-------------------------------------------------------------------------
 *
 * gist_build.c
 *	  How full a build of a GiST index leaves its leaf pages.
 *
 * Where a page is split is up to the operator class, which looks at the values;
 * no formula gives it, and a sample of the rows doesn't either: integers come
 * out up to a third fuller or emptier, depending on how many they are.  So this
 * file does the build, with all rows, as gistbuild() does it: by insertion as
 * in gist.c, or where all operator classes can sort, as gistbuild.c does.
 * What is left out is what doesn't make a size: buffers, locks, WAL, and in
 * a sorted build the levels above the leaves.
 *
 * The pages are real ones in local memory, so that core's own functions can
 * choose, adjust and split.  Nothing that is on a page of the index itself is
 * shown to the operator classes: they take what they get on trust, and those
 * pages may be damaged.
 *
 * Locks: none but the caller's AccessShareLock on the table and the index.
 *
 * The tricky point is that a split moves downlinks to other pages.  Core finds
 * the parent of a page again by right links, here parents[] says it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/gist_private.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "optimizer/optimizer.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"

#include "compat.h"
#include "gist_build.h"

/* as in gistbuild.c, which doesn't publish it */
#define SORTED_BUILD_PAGES	4

typedef struct GistBuild
{
	Relation	index;
	GISTSTATE  *giststate;
	MemoryContext context;
	MemoryContext row_context;	/* of one insertion */
	Size		freespace;		/* left on each page, by fillfactor */

	/* insertions: by block number, 0 = the root */
	Page	   *pages;
	BlockNumber *parents;
	int			npages;
	int			room;			/* in both arrays */
	int			max_pages;
	bool		too_large;		/* the build was given up */

	/* sorted builds: the last pages, which are split together */
	Tuplesortstate *sort;
	Page		sorted_pages[SORTED_BUILD_PAGES];
	int			current_page;

	double		leaf_pages;
	double		leaf_bytes;		/* tuples and line pointers on them */
} GistBuild;

/*
 * Add an empty page.  Returns its number.
 */
static BlockNumber
new_page(GistBuild *gb, uint32 flags)
{
	if (gb->npages == gb->room)
	{
		gb->room *= 2;
		gb->pages = repalloc_huge(gb->pages, sizeof(Page) * gb->room);
		gb->parents = repalloc_huge(gb->parents, sizeof(BlockNumber) * gb->room);
	}
	gb->pages[gb->npages] = MemoryContextAlloc(gb->context, BLCKSZ);
	gb->parents[gb->npages] = InvalidBlockNumber;
	gistinitpage(gb->pages[gb->npages], flags);
	gb->too_large |= gb->npages >= gb->max_pages;
	return gb->npages++;
}

/*
 * Note that these tuples are on that page, if they are downlinks.
 */
static void
note_parent(GistBuild *gb, BlockNumber blkno, IndexTuple *itup, int ntup)
{
	if (GistPageIsLeaf(gb->pages[blkno]))
		return;
	for (int i = 0; i < ntup; i++)
		gb->parents[ItemPointerGetBlockNumber(&itup[i]->t_tid)] = blkno;
}

/*
 * Return the offset of the downlink to a page that isn't the root.
 */
static OffsetNumber
find_downlink(GistBuild *gb, BlockNumber child)
{
	Page		page = gb->pages[gb->parents[child]];
	OffsetNumber maxoff = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		IndexTuple	itup = (IndexTuple) PageGetItem(page, PageGetItemId(page, off));

		if (ItemPointerGetBlockNumber(&itup->t_tid) == child)
			return off;
	}
	elog(ERROR, "no downlink to page %u", child);
	return InvalidOffsetNumber;
}

static void
fill_page(GistBuild *gb, BlockNumber blkno, const SplitPageLayout *half)
{
	char	   *data = (char *) half->list;

	for (int i = 0; i < half->block.num; i++)
	{
		IndexTuple	itup = (IndexTuple) data;

		gistfillbuffer(gb->pages[blkno], &itup, 1, InvalidOffsetNumber);
		note_parent(gb, blkno, &itup, 1);
		data += IndexTupleSize(itup);
	}
}

/*
 * Put tuples on a page, in place of the one at oldoffnum if that is valid, and
 * split it where they don't fit (gistplacetopage(), gistfinishsplit()).
 * Returns whether it was split.
 */
static bool
insert_tuples(GistBuild *gb, BlockNumber blkno, IndexTuple *itup, int ntup,
			  OffsetNumber oldoffnum)
{
	Page		page = gb->pages[blkno];
	uint32		flags = GistPageIsLeaf(page) ? F_LEAF : 0;
	IndexTuple *tuples;
	int			ntuples;
	SplitPageLayout *halves;
	IndexTuple *downlinks;
	int			n = 0;

	check_stack_depth();
	if (!gistnospace(page, itup, ntup, oldoffnum, gb->freespace))
	{
		if (OffsetNumberIsValid(oldoffnum) && ntup == 1)
		{
			if (!PageIndexTupleOverwrite(page, oldoffnum, (void *) *itup, IndexTupleSize(*itup)))
				elog(ERROR, "could not replace a tuple of %zu bytes", IndexTupleSize(*itup));
		}
		else
		{
			if (OffsetNumberIsValid(oldoffnum))
				PageIndexTupleDelete(page, oldoffnum);
			gistfillbuffer(page, itup, ntup, InvalidOffsetNumber);
		}
		note_parent(gb, blkno, itup, ntup);
		return false;
	}

	tuples = gistextractpage(page, &ntuples);
	if (OffsetNumberIsValid(oldoffnum))
	{
		ntuples--;
		memmove(tuples + oldoffnum - 1, tuples + oldoffnum,
				sizeof(IndexTuple) * (ntuples - (oldoffnum - 1)));
	}
	tuples = gistjoinvector(tuples, &ntuples, itup, ntup);
	halves = gistSplit(gb->index, page, tuples, ntuples, gb->giststate);
	for (SplitPageLayout *half = halves; half; half = half->next)
		n++;
	downlinks = palloc(sizeof(IndexTuple) * n);

	/* the first half stays, but not that of the root; all are copies by now */
	n = 0;
	for (SplitPageLayout *half = halves; half; half = half->next)
	{
		BlockNumber target = blkno;

		if (half != halves || blkno == GIST_ROOT_BLKNO)
			target = new_page(gb, flags);
		else
			gistinitpage(page, flags);
		fill_page(gb, target, half);
		downlinks[n] = half->itup;
		ItemPointerSetBlockNumber(&downlinks[n]->t_tid, target);
		GistTupleSetValid(downlinks[n]);
		n++;
	}
	if (blkno == GIST_ROOT_BLKNO)
	{
		gistinitpage(page, 0);
		gistfillbuffer(page, downlinks, n, InvalidOffsetNumber);
		note_parent(gb, blkno, downlinks, n);
		return true;
	}

	/* from the right, as core does; the parent may be split by each of them */
	while (n > 2)
		insert_tuples(gb, gb->parents[blkno], &downlinks[--n], 1, InvalidOffsetNumber);
	insert_tuples(gb, gb->parents[blkno], downlinks, 2, find_downlink(gb, blkno));
	return true;
}

/*
 * Insert a row's tuple (gistdoinsert()).
 */
static void
insert_row(GistBuild *gb, IndexTuple itup)
{
	BlockNumber blkno = GIST_ROOT_BLKNO;

	while (!GistPageIsLeaf(gb->pages[blkno]))
	{
		Page		page = gb->pages[blkno];
		OffsetNumber off = gistchoose(gb->index, page, itup, gb->giststate);
		IndexTuple	downlink = (IndexTuple) PageGetItem(page, PageGetItemId(page, off));
		BlockNumber child = ItemPointerGetBlockNumber(&downlink->t_tid);
		IndexTuple	adjusted = gistgetadjusted(gb->index, downlink, itup, gb->giststate);

		/* after a split another page may be the better one */
		if (adjusted && insert_tuples(gb, blkno, &adjusted, 1, off))
			blkno = GIST_ROOT_BLKNO;
		else
			blkno = child;
	}
	insert_tuples(gb, blkno, &itup, 1, InvalidOffsetNumber);
}

/*
 * Note a leaf page that is finished.
 */
static void
count_leaf(GistBuild *gb, double tuple_bytes, int tuples)
{
	gb->leaf_pages++;
	/* page_measure.c counts room for one more line pointer as used */
	gb->leaf_bytes += tuple_bytes + (tuples + 1) * (double) sizeof(ItemIdData);
}

/*
 * Split what the last pages of a sorted build hold into final ones
 * (gist_indexsortbuild_levelstate_flush()).
 */
static void
flush_sorted(GistBuild *gb)
{
	int			ntuples;
	IndexTuple *tuples = gistextractpage(gb->sorted_pages[0], &ntuples);

	if (gb->current_page == 0)
	{
		double		bytes = 0;

		for (int i = 0; i < ntuples; i++)
			bytes += IndexTupleSize(tuples[i]);
		count_leaf(gb, bytes, ntuples);
		return;
	}
	for (int i = 1; i <= gb->current_page; i++)
	{
		int			n;
		IndexTuple *more = gistextractpage(gb->sorted_pages[i], &n);

		tuples = gistjoinvector(tuples, &ntuples, more, n);
	}
	for (SplitPageLayout *half = gistSplit(gb->index, gb->sorted_pages[0], tuples, ntuples, gb->giststate);
		 half; half = half->next)
		count_leaf(gb, half->lenlist, half->block.num);
	gb->current_page = 0;
}

/*
 * Make pages of the sorted rows (gist_indexsortbuild()).
 */
static void
build_sorted(GistBuild *gb)
{
	IndexTuple	itup;
	MemoryContext oldcontext = MemoryContextSwitchTo(gb->row_context);

	for (int i = 0; i < SORTED_BUILD_PAGES; i++)
		gb->sorted_pages[i] = MemoryContextAlloc(gb->context, BLCKSZ);
	gistinitpage(gb->sorted_pages[0], F_LEAF);
	while ((itup = tuplesort_getindextuple(gb->sort, true)) != NULL)
	{
		/* fillfactor is ignored here in core, too */
		if (PageGetFreeSpace(gb->sorted_pages[gb->current_page]) <
			IndexTupleSize(itup) + sizeof(ItemIdData))
		{
			CHECK_FOR_INTERRUPTS();
			if (gb->current_page + 1 == SORTED_BUILD_PAGES)
				flush_sorted(gb);
			else
				gb->current_page++;
			gistinitpage(gb->sorted_pages[gb->current_page], F_LEAF);
		}
		gistfillbuffer(gb->sorted_pages[gb->current_page], &itup, 1, InvalidOffsetNumber);
		MemoryContextReset(gb->row_context);
	}
	if (!PageIsEmpty(gb->sorted_pages[0]))
		flush_sorted(gb);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Take one row of the table (IndexBuildCallback).
 */
static void
build_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			   bool tuple_is_alive, void *state)
{
	GistBuild  *gb = state;
	MemoryContext oldcontext;

	CHECK_FOR_INTERRUPTS();
	if (gb->too_large)
		return;					/* the scan can't be ended from here */
	oldcontext = MemoryContextSwitchTo(gb->row_context);
	if (gb->sort)
	{
		Datum		compressed[INDEX_MAX_KEYS];

		gistCompressValues(gb->giststate, index, values, isnull, true, compressed);
		tuplesort_putindextuplevalues(gb->sort, index, tid, compressed, isnull);
	}
	else
	{
		IndexTuple	itup = gistFormTuple(gb->giststate, index, values, isnull, true);

		itup->t_tid = *tid;
		insert_row(gb, itup);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(gb->row_context);
}

/*
 * Hand all rows of the table that the active snapshot sees to build_callback().
 */
static void
scan_table(GistBuild *gb, Relation heap)
{
	IndexInfo  *info = BuildIndexInfo(gb->index);
	Snapshot	snapshot = RegisterSnapshot(GetActiveSnapshot());

	/* as amcheck: rows by the snapshot, and no waiting for those in doubt */
	info->ii_Concurrent = true;
	info->ii_Unique = false;
	info->ii_ExclusionOps = NULL;
	info->ii_ExclusionProcs = NULL;
	info->ii_ExclusionStrats = NULL;
	table_index_build_scan(heap, gb->index, info, false, false, build_callback, gb,
						   table_beginscan_strat(heap, snapshot, 0, NULL, true, false));
	UnregisterSnapshot(snapshot);
}

static void
count_leaves(GistBuild *gb)
{
	for (int i = 0; i < gb->npages; i++)
	{
		Page		page = gb->pages[i];
		OffsetNumber maxoff = PageGetMaxOffsetNumber(page);
		double		bytes = 0;

		if (!GistPageIsLeaf(page))
			continue;
		for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
			bytes += ItemIdGetLength(PageGetItemId(page, off));
		count_leaf(gb, bytes, maxoff);
	}
}

double
gist_build_density(Relation heap, Relation index, bool sorts, double memory)
{
	GiSTOptions *options = (GiSTOptions *) index->rd_options;
	MemoryContext context;
	MemoryContext oldcontext;
	GistBuild  *gb;
	double		density = get_float8_nan();
	Oid			save_userid;
	int			save_sec_context;
	int			save_nestlevel;

	/* a build with buffers inserts in another order */
	if (options && options->buffering_mode == GIST_OPTION_BUFFERING_ON)
		return density;

	context = AllocSetContextCreate(CurrentMemoryContext, "GiST build", ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	gb = palloc0(sizeof(GistBuild));
	gb->index = index;
	gb->context = context;
	gb->row_context = AllocSetContextCreate(context, "GiST build row", ALLOCSET_DEFAULT_SIZES);
	gb->freespace = BLCKSZ * (100 - (options ? options->fillfactor : GIST_DEFAULT_FILLFACTOR)) / 100;

	/* where it outgrows that cache, gistbuild() turns to buffers by itself */
	gb->max_pages = (int) Min(memory / BLCKSZ, effective_cache_size);

	/* functions of the index run as they do in a build */
	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(heap->rd_rel->relowner,
						   save_sec_context | SECURITY_RESTRICTED_OPERATION);
	save_nestlevel = NewGUCNestLevel();
	RestrictSearchPath();

	gb->giststate = initGISTstate(index);
	gb->giststate->tempCxt = gb->row_context;
	if (sorts)
	{
		gb->sort = tuplesort_begin_index_gist(heap, index, maintenance_work_mem, NULL, TUPLESORT_NONE);
		scan_table(gb, heap);
		tuplesort_performsort(gb->sort);
		build_sorted(gb);
		tuplesort_end(gb->sort);
	}
	else
	{
		gb->room = 64;
		gb->pages = palloc(sizeof(Page) * gb->room);
		gb->parents = palloc(sizeof(BlockNumber) * gb->room);
		new_page(gb, F_LEAF);
		scan_table(gb, heap);
		count_leaves(gb);
	}

	AtEOXact_GUC(false, save_nestlevel);
	SetUserIdAndSecContext(save_userid, save_sec_context);

	if (!gb->too_large && gb->leaf_bytes > 0)
		density = gb->leaf_bytes / (gb->leaf_pages * GiSTPageSize);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return density;
}
