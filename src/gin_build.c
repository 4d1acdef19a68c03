/*-------------------------------------------------------------------------
 *
 * gin_build.c
 *	  How full a build of a GIN index leaves the pages of its keys.
 *
 * GIN's build collects keys and rows in memory until maintenance_work_mem is
 * used up, and inserts them in the order of the keys, batch after batch, into
 * an ordinary tree whose pages split in the middle.  So one batch leaves pages
 * half full; later batches add keys in between, and make posting lists longer
 * until they go to trees of their own and leave holes.  What comes out depends
 * on sizes and on which rows have which keys; no formula gives it.
 *
 * Hence this file does that build again, for the keys on the sampled pages, in
 * memory and with nothing but sizes: posting lists tell which rows a key has,
 * the order of the rows in the table tells in which batch each of them comes,
 * and the order of the keys is the order on the pages.  (That pages which don't
 * follow each other are put side by side makes no difference to sizes.)
 * Nothing of the keys is looked at but their length, so a damaged key can't do
 * harm, and every list is checked before it is followed.
 *
 * The table is cut into slices to find the batches; a batch is a number of
 * whole slices.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gin_private.h"
#include "access/itup.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "utils/float.h"
#include "utils/memutils.h"

#include "compat.h"
#include "gin_build.h"

/* a sample of more pages is thinned out */
#define MAX_PAGES		128
#define SLICES			128
#define NODES			2048	/* DEF_NENTRY in ginbulk.c */
/* of more posting trees the first ones serve for all */
#define MAX_TREES		400

#define ENTRY_SPACE \
	((int) (BLCKSZ - MAXALIGN(SizeOfPageHeaderData) - MAXALIGN(sizeof(GinPageOpaqueData))))
#define TUPLE_BYTES(size) ((int) (MAXALIGN(size) + sizeof(ItemIdData)))
#define LIST_HEADER		((int) offsetof(GinPostingList, bytes))
/* as in ginpostinglist.c, which doesn't publish it */
#define OFFSET_BITS		11

/* The rows of one key up to the end of one slice of the table. */
typedef struct KeyRows
{
	int			slice;
	int			rows;
	int			bytes;			/* of the varbyte-encoded list */
} KeyRows;

typedef struct BuildKey
{
	int			base;			/* bytes of its tuple without the list */
	bool		tree;			/* its rows are in a posting tree now */
	int			tree_items;		/* how many they are */
	int			tree_bytes;		/* and how long a list they would be */
	int			first;			/* in rows[] */
	int			nrows;			/* elements of rows[] */
	int			cursor;			/* of these, what the build has seen */
	int			batch_rows;		/* rows in this batch */
	int			size;			/* bytes on the page; 0 = not there yet */
} BuildKey;

/* A page of the tree that is built holds the keys from first up to the next. */
typedef struct BuildPage
{
	int			first;
	int			bytes;
	struct BuildPage *next;
} BuildPage;

struct GinBuild
{
	MemoryContext context;
	MemoryContext build_context;	/* of one gin_build_density() */
	bool		key_by_value;	/* a key costs the build no memory of its own */
	int			npages;
	int			stride;			/* of the pages that came, each so many-th */
	int64		seen;			/* pages that came */
	char	   *pages[MAX_PAGES];
	bool		nearly_full;	/* the last batch found takes most of the memory */
	int			ntrees;
	struct
	{
		double		items;
		double		bytes;
	}			trees[MAX_TREES];
	BlockNumber max_block;		/* of the table, seen in posting lists */

	BuildKey   *keys;
	int			nkeys;
	KeyRows    *rows;
	int			nrows;
	int			max_rows;
};

/* Called for each row of a posting list, with the bytes of the list so far. */
typedef void (*RowCallback) (GinBuild *gb, BlockNumber block, int bytes);

GinBuild *
gin_build_start(Relation index)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "GIN build",
												  ALLOCSET_DEFAULT_SIZES);
	GinBuild   *gb = MemoryContextAllocZero(context, sizeof(GinBuild));

	gb->context = context;
	gb->build_context = AllocSetContextCreate(context, "GIN build pages", ALLOCSET_DEFAULT_SIZES);
	gb->stride = 1;
	gb->key_by_value = RelationGetNumberOfAttributes(index) == 1 &&
		TupleDescAttr(RelationGetDescr(index), 0)->attbyval;
	return gb;
}

void
gin_build_end(GinBuild *gb)
{
	MemoryContextDelete(gb->context);
}

/*
 * Call back for each row of a compressed posting list in size bytes, none of
 * which is trusted.  Returns false where the list isn't one.
 */
static bool
walk_list(GinBuild *gb, const char *ptr, int size, int nitems, RowCallback callback)
{
	GinPostingList head;
	const unsigned char *bytes = (const unsigned char *) ptr + LIST_HEADER;
	uint64		value;
	int			at = 0;

	if (size < LIST_HEADER)
		return false;
	memcpy(&head, ptr, LIST_HEADER);
	if (head.nbytes > size - LIST_HEADER)
		return false;
	value = ((uint64) ItemPointerGetBlockNumberNoCheck(&head.first) << OFFSET_BITS) |
		ItemPointerGetOffsetNumberNoCheck(&head.first);
	callback(gb, (BlockNumber) (value >> OFFSET_BITS), 0);
	for (nitems--; at < head.nbytes; nitems--)
	{
		uint64		delta = 0;

		for (int shift = 0;; shift += 7)
		{
			if (at >= head.nbytes || shift > 42)
				return false;
			delta |= (uint64) (bytes[at] & 0x7F) << shift;
			if ((bytes[at++] & 0x80) == 0)
				break;
		}
		value += delta;
		if ((value >> OFFSET_BITS) > MaxBlockNumber)
			return false;
		callback(gb, (BlockNumber) (value >> OFFSET_BITS), at);
	}
	return nitems == 0;
}

/*
 * The same for a list from before 9.4, which the build will compress.
 */
static bool
walk_plain_list(GinBuild *gb, const char *ptr, int size, int nitems, RowCallback callback)
{
	if (nitems * (int) sizeof(ItemPointerData) > size)
		return false;
	for (int i = 0; i < nitems; i++)
	{
		ItemPointerData tid;

		memcpy(&tid, ptr + i * sizeof(tid), sizeof(tid));
		callback(gb, ItemPointerGetBlockNumberNoCheck(&tid), i * 2);
	}
	return true;
}

static void
note_block(GinBuild *gb, BlockNumber block, int bytes)
{
	gb->max_block = Max(gb->max_block, block);
}

/*
 * Walk the posting list of a tuple of len bytes.  Sets *base to the bytes
 * before the list.  Returns false where the tuple contradicts itself.
 */
static bool
walk_tuple(GinBuild *gb, IndexTuple itup, Size len, int *base, RowCallback callback)
{
	int			nitems = GinGetNPosting(itup);
	int			start;

	if (IndexTupleSize(itup) < sizeof(IndexTupleData) || IndexTupleSize(itup) > len)
		return false;
	*base = IndexTupleSize(itup);
	if (nitems == GIN_TREE_POSTING || nitems == 0)
		return true;
	if (GinGetPostingOffset(itup) < sizeof(IndexTupleData) ||
		GinGetPostingOffset(itup) > IndexTupleSize(itup))
		return false;
	start = GinGetPostingOffset(itup);
	*base = start;
	return GinItupIsCompressed(itup) ?
		walk_list(gb, (char *) itup + start, IndexTupleSize(itup) - start, nitems, callback) :
		walk_plain_list(gb, (char *) itup + start, IndexTupleSize(itup) - start, nitems, callback);
}

const char *
gin_build_add(GinBuild *gb, Page page)
{
	int			maxoff = PageGetMaxOffsetNumber(page);

	for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
	{
		ItemId		iid = PageGetItemId(page, off);
		int			base;

		if (!walk_tuple(gb, (IndexTuple) PageGetItem(page, iid), ItemIdGetLength(iid), &base, note_block))
			return "invalid posting list";
	}
	if (gb->seen++ % gb->stride != 0)
		return NULL;
	if (gb->npages == MAX_PAGES)
	{
		/* go on with half as many, twice as far from each other */
		for (int i = 0; i < MAX_PAGES; i++)
		{
			if (i % 2 != 0)
				pfree(gb->pages[i]);
			else
				gb->pages[i / 2] = gb->pages[i];
		}
		gb->npages /= 2;
		gb->stride *= 2;
	}
	gb->pages[gb->npages] = MemoryContextAlloc(gb->context, BLCKSZ);
	memcpy(gb->pages[gb->npages++], page, BLCKSZ);
	return NULL;
}

void
gin_build_add_tree(GinBuild *gb, double items, double list_bytes)
{
	if (gb->ntrees == MAX_TREES)
		return;
	gb->trees[gb->ntrees].items = items;
	gb->trees[gb->ntrees].bytes = list_bytes;
	gb->ntrees++;
}

/*
 * Note a row of the last key.
 */
static void
note_row(GinBuild *gb, BlockNumber block, int bytes)
{
	BuildKey   *key = &gb->keys[gb->nkeys - 1];
	int			slice = (int) ((uint64) block * SLICES / ((uint64) gb->max_block + 1));
	KeyRows    *last;

	/* before any pointer into the array is taken: this may move it */
	if (gb->nrows == gb->max_rows)
	{
		gb->max_rows *= 2;
		gb->rows = repalloc_huge(gb->rows, sizeof(KeyRows) * gb->max_rows);
	}
	last = key->nrows > 0 ? &gb->rows[gb->nrows - 1] : NULL;
	if (last == NULL || last->slice != slice)
	{
		gb->rows[gb->nrows].rows = last ? last->rows : 0;
		last = &gb->rows[gb->nrows++];
		last->slice = slice;
		key->nrows++;
	}
	last->rows++;
	last->bytes = bytes;
}

/*
 * Choose a posting tree for a key: which one it has would be one more page to
 * read, so those that were seen are dealt out in turn.
 */
static void
deal_tree(GinBuild *gb, BuildKey *key, int n, const GinTreeTotals *totals)
{
	double		items = 0;
	double		bytes = 0;
	double		share;

	key->tree = true;
	if (gb->ntrees > 0)
	{
		items = gb->trees[n % gb->ntrees].items;
		bytes = gb->trees[n % gb->ntrees].bytes;
	}
	share = totals->deep / Max(totals->trees, 1);
	if (floor((n + 1) * share) > floor(n * share))
	{
		items += totals->deep_items;
		bytes += totals->deep_bytes;
	}
	key->tree_items = (int) Min(Max(items, 1), 1e9);
	key->tree_bytes = (int) Min(Max(bytes, 0), 1e9);
}

/*
 * Fill keys[] and rows[] from the collected pages.
 */
static void
read_keys(GinBuild *gb, const GinTreeTotals *totals)
{
	int			max_keys = 0;
	int			ntrees = 0;

	for (int i = 0; i < gb->npages; i++)
		max_keys += PageGetMaxOffsetNumber((Page) gb->pages[i]);
	gb->keys = palloc0(sizeof(BuildKey) * Max(max_keys, 1));
	gb->max_rows = 1024;
	gb->rows = palloc(sizeof(KeyRows) * gb->max_rows);
	gb->nkeys = gb->nrows = 0;

	for (int i = 0; i < gb->npages; i++)
	{
		Page		page = (Page) gb->pages[i];
		int			maxoff = PageGetMaxOffsetNumber(page);

		for (OffsetNumber off = FirstOffsetNumber; off <= maxoff; off++)
		{
			ItemId		iid = PageGetItemId(page, off);
			IndexTuple	itup = (IndexTuple) PageGetItem(page, iid);
			BuildKey   *key = &gb->keys[gb->nkeys];

			if (GinGetNPosting(itup) == 0)
				continue;		/* a key without rows: the build won't see it */
			memset(key, 0, sizeof(*key));
			key->first = gb->nrows;
			gb->nkeys++;
			walk_tuple(gb, itup, ItemIdGetLength(iid), &key->base, note_row);
			if (GinIsPostingTree(itup))
				deal_tree(gb, key, ntrees++, totals);
		}
	}
}

/*
 * Advance a key to the end of that slice.  Sets the rows that it has by then
 * and the bytes of their list; returns whether it has got new ones.
 */
static bool
advance_key(GinBuild *gb, BuildKey *key, int slice, int *rows, int *bytes)
{
	int			before = key->cursor;

	if (key->tree)
	{
		/* where the rows of a tree are isn't known: everywhere */
		double		share = (slice + 1.0) / SLICES;

		*rows = Max((int) (key->tree_items * share), 1);
		*bytes = (int) (key->tree_bytes * share);
		key->cursor = *rows;
		return *rows > before;
	}
	while (key->cursor < key->nrows && gb->rows[key->first + key->cursor].slice <= slice)
		key->cursor++;
	if (key->cursor == 0)
	{
		*rows = *bytes = 0;
		return false;
	}
	*rows = gb->rows[key->first + key->cursor - 1].rows;
	*bytes = gb->rows[key->first + key->cursor - 1].bytes;
	return key->cursor > before;
}

/*
 * Return what palloc() takes for that many bytes.
 */
static double
chunk_bytes(double bytes)
{
	double		chunk = 8;

	if (bytes > 8192)
		return bytes + 2 * MEMORY_CHUNK_HEADER;
	while (chunk < bytes)
		chunk *= 2;
	return chunk + MEMORY_CHUNK_HEADER;
}

/*
 * Return the memory that the rows of a key take in a batch (ginbulk.c): an
 * array that doubles.
 */
static double
rows_memory(double rows)
{
	double		slots = 5;

	while (slots < rows)
		slots *= 2;
	return chunk_bytes(slots * sizeof(ItemPointerData));
}

/*
 * Return the memory that all posting trees of the index take in a batch from
 * after slice before to the end of slice.
 */
static double
trees_memory(const GinBuild *gb, const GinTreeTotals *totals, int before, int slice)
{
	double		share = (double) (slice - before) / SLICES;
	double		last_items = 0;
	double		memory = 0;

	for (int i = 0; i < gb->ntrees; i++)
	{
		last_items += gb->trees[i].items / gb->ntrees;
		memory += rows_memory(ceil(gb->trees[i].items * share)) / gb->ntrees;
	}
	return memory * Max(totals->trees - totals->deep, 0) +
		rows_memory(ceil((totals->deep_items + last_items) * share)) * totals->deep;
}

/*
 * Find the slices with which batches end.  Returns the number of batches.
 */
static int
find_batches(GinBuild *gb, double total_keys, double memory, const GinTreeTotals *totals,
			 int *batch_end)
{
	double		scale = Max(total_keys / Max(gb->nkeys, 1), 1);
	int			nbatches = 0;
	int			before = -1;
	int		   *rows_before = palloc0(sizeof(int) * Max(gb->nkeys, 1));

	gb->nearly_full = false;
	if (gin_build_sorts(gb->max_block + 1, memory))
	{
		batch_end[0] = SLICES - 1;
		return 1;
	}
	for (int i = 0; i < gb->nkeys; i++)
		gb->keys[i].cursor = 0;
	for (int slice = 0; slice < SLICES; slice++)
	{
		double		used = 0;
		double		nodes = 0;

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < gb->nkeys; i++)
		{
			BuildKey   *key = &gb->keys[i];
			int			rows;
			int			bytes;

			if (key->tree)
				continue;
			advance_key(gb, key, slice, &rows, &bytes);
			key->batch_rows = rows;
			if (rows == rows_before[i])
				continue;
			used += rows_memory(rows - rows_before[i]);
			if (!gb->key_by_value)
				used += chunk_bytes(Max(key->base - (int) sizeof(IndexTupleData), 1));
			nodes++;
		}
		nodes = ceil((nodes * scale + totals->trees) / NODES) * NODES;
		used = used * scale + nodes * sizeof(GinEntryAccumulator) +
			trees_memory(gb, totals, before, slice);
		gb->nearly_full = used > 0.9 * memory;
		if (used < memory && slice < SLICES - 1)
			continue;
		batch_end[nbatches++] = before = slice;
		for (int i = 0; i < gb->nkeys; i++)
			rows_before[i] = gb->keys[i].batch_rows;
	}
	pfree(rows_before);
	return nbatches;
}

/*
 * Split a page in the middle, as entrySplitPage() does.  keys[at] is of its
 * new size already.
 */
static void
split_page(GinBuild *gb, BuildPage *page, int end)
{
	BuildPage  *right = palloc(sizeof(BuildPage));
	int			total = 0;
	int			left = 0;
	int			i;

	for (i = page->first; i < end; i++)
		total += gb->keys[i].size;
	for (i = page->first; i < end && left <= total / 2; i++)
		left += gb->keys[i].size;
	right->first = i;
	right->bytes = total - left;
	right->next = page->next;
	page->bytes = left;
	page->next = right;
}

/*
 * Insert the keys batch by batch.  Returns how many pages they take, and sets
 * the bytes on them.
 */
static double
build_tree(GinBuild *gb, const int *batch_end, int nbatches, double *bytes)
{
	BuildPage  *root = palloc0(sizeof(BuildPage));
	BuildPage  *last = NULL;
	double		pages = 0;

	for (int i = 0; i < gb->nkeys; i++)
		gb->keys[i].cursor = gb->keys[i].size = 0;
	for (int batch = 0; batch < nbatches; batch++)
	{
		BuildPage  *page = root;

		for (int i = 0; i < gb->nkeys; i++)
		{
			BuildKey   *key = &gb->keys[i];
			int			before = key->size;
			int			rows;
			int			list;
			int			size;

			if ((i & 1023) == 0)
				CHECK_FOR_INTERRUPTS();
			if (!advance_key(gb, key, batch_end[batch], &rows, &list))
				continue;
			size = SHORTALIGN(key->base) + SHORTALIGN(LIST_HEADER + list);
			if (MAXALIGN(size) > GinMaxItemSize)
				size = key->base;	/* and a posting tree */
			key->size = TUPLE_BYTES(size);
			while (page->next && page->next->first <= i)
				page = page->next;
			page->bytes += key->size - before;
			if (page->bytes > ENTRY_SPACE)
				split_page(gb, page, page->next ? page->next->first : gb->nkeys);
		}
	}

	*bytes = 0;
	for (BuildPage *page = root; page; page = page->next)
	{
		*bytes += page->bytes;
		pages += 1;
		last = page;
	}

	/* the last page isn't full, which says nothing about a bigger index */
	if (pages > 1)
		pages += Min(last->bytes / ((*bytes - last->bytes) / (pages - 1)), 1) - 1;
	return pages;
}

double
gin_build_density(GinBuild *gb, double total_keys, double memory,
				  const GinTreeTotals *totals, double *spread)
{
	static const double factors[] = {1, 0.97, 1.03};
	MemoryContext oldcontext = MemoryContextSwitchTo(gb->build_context);
	int			batch_end[SLICES];
	double		bytes = 0;
	double		pages[lengthof(factors)];
	double		mean = 0;
	double		least;
	double		most;
	int			n;

	read_keys(gb, totals);

	/*
	 * When the last batch is small it depends on little whether there is one
	 * at all, and it matters: so take the middle of three guesses of what the
	 * memory is enough for.
	 */
	for (n = 0; n < lengthof(factors); n++)
	{
		int			nbatches = find_batches(gb, total_keys, memory * factors[n], totals, batch_end);

		pages[n] = build_tree(gb, batch_end, nbatches, &bytes);
		if (n == 0 && nbatches == 1 && !gb->nearly_full)
		{
			n++;
			break;
		}
	}
	least = most = pages[0];
	for (int i = 0; i < n; i++)
	{
		mean += pages[i] / n;
		least = Min(least, pages[i]);
		most = Max(most, pages[i]);
	}
	*spread = (most - least) / mean;

	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(gb->build_context);
	/* one page that isn't full says nothing of many */
	return mean > 1 ? bytes / (mean * ENTRY_SPACE) : get_float8_nan();
}
