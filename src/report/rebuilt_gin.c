/*-------------------------------------------------------------------------
 *
 * rebuilt_gin.c
 *	  How full a build of a GIN index leaves its pages of keys.
 *
 * A build collects keys and rows up to maintenance_work_mem (ginBuildCallback()), inserts
 * these in the order of keys, and goes on with the next rows.  A page that is full is
 * split in the middle (entrySplitPage()).  So one batch leaves pages half full; a second one
 * fills them up or splits them again.  The result depends on the keys, and on which rows
 * each has.  The sampled pages tell both, so that the build can be carried out on them,
 * in memory, as if they were the whole index: pages of keys do not influence others.
 *
 * Rows are all that are in the pages: where a row is in the table says in which batch it
 * comes.  Of a posting tree only the key is known; it counts with the average number of
 * rows, spread evenly: so each batch has some for it.
 *
 * Tricky: nothing on a page is trusted, not even after page_measure().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/gin_private.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"

#include "report/report_private.h"

#define OFFSET_BITS		11		/* of a row in a list: ginpostinglist.c */
#define POSITIONS		65536	/* of rows in the table */
#define BINS			1024	/* of blocks, to make them positions */
#define MOST_ROWS		1000000 /* looked at */
#define MOST_BATCHES	4096

/* Bytes of a page for tuples and line pointers */
#define PAGE_BYTES \
	(BLCKSZ - SizeOfPageHeaderData - MAXALIGN(sizeof(GinPageOpaqueData)))

/* A key of the sampled pages, in the order of the pages */
typedef struct GinKey
{
	double		memory;			/* in a batch, but for its rows */
	int			bytes;			/* of its tuple without rows */
	int			first;			/* of its rows */
	int			nrows;
	bool		is_tree;

	/* the state of the key in the build so far */
	double		list;			/* bytes of its list; of a tree, too, until it
								 * is one */
	int			size;			/* of its tuple on the page; 0 = not there */
} GinKey;

/* A row of a key */
typedef struct GinRow
{
	BlockNumber block;
	uint16		position;		/* in the table */
	uint8		bytes;			/* in the list */
} GinRow;

/* A page of the build: keys from one on, up to the keys of the next page */
typedef struct GinBuiltPage
{
	int			first;
	int			used;
	int			next;			/* -1 = none */
} GinBuiltPage;

/* A key that a batch has rows for, which the pages tell: no tree */
typedef struct GinEvent
{
	int			key;
	float		list;			/* bytes that come to its list */
} GinEvent;

typedef struct GinBuild
{
	GinKey	   *keys;
	int			nkeys;
	GinRow	   *rows;
	int			nrows;
	int			max_rows;
	double		tree_rows;		/* on average */
	double		tree_bytes;
	int		   *lists;			/* keys of trees that are still lists */
	int			nlists;
	double		scale;			/* index to sample */
	int			nbatches;
	double		batches;		/* the last one is not full */
	GinBuiltPage *pages;
	int			npages;
} GinBuild;

/* Return the bytes of a varbyte number (ginpostinglist.c), 0 if it does not end there. */
static int
decode_varbyte(const uint8 *from, const uint8 *end, uint64 *value)
{
	*value = 0;
	for (int i = 0; i < 7 && from + i < end; i++)
	{
		*value |= (uint64) (from[i] & 0x7F) << (7 * i);
		if ((from[i] & 0x80) == 0)
			return i + 1;
	}
	return 0;
}

static void
keep_row(GinBuild *build, BlockNumber block, int bytes)
{
	GinRow	   *row;

	if (build->nrows == build->max_rows)
	{
		build->max_rows *= 2;
		build->rows = repalloc_huge(build->rows, build->max_rows * sizeof(GinRow));
	}
	row = &build->rows[build->nrows++];
	memset(row, 0, sizeof(GinRow));
	row->block = block;
	row->bytes = bytes;
}

/* Add the rows of a tuple of a page of keys, as far as they can be read. */
static void
add_rows(GinBuild *build, const char *tuple, Size length)
{
	IndexTuple	itup = (IndexTuple) tuple;
	Size		at = GinGetPostingOffset(itup);
	int			count = GinGetNPosting(itup);
	const Size	header = offsetof(GinPostingList, bytes);

	if (at >= length)
		return;
	if (!GinItupIsCompressed(itup))
	{
		for (int i = 0; i < count && at + (i + 1) * sizeof(ItemPointerData) <= length; i++)
		{
			ItemPointerData tid;

			memcpy(&tid, tuple + at + i * sizeof(tid), sizeof(tid));
			keep_row(build, ItemPointerGetBlockNumberNoCheck(&tid), i == 0 ? header : 2);
		}
	}
	else if (at + header <= length)
	{
		GinPostingList list;
		const uint8 *from = (const uint8 *) tuple + at + header;
		const uint8 *end;
		uint64		value;

		memcpy(&list, tuple + at, header);
		end = Min(from + list.nbytes, (const uint8 *) tuple + length);
		value = (uint64) ItemPointerGetBlockNumberNoCheck(&list.first) << OFFSET_BITS |
			ItemPointerGetOffsetNumberNoCheck(&list.first);
		keep_row(build, ItemPointerGetBlockNumberNoCheck(&list.first), header);
		while (from < end)
		{
			uint64		step;
			int			bytes = decode_varbyte(from, end, &step);

			if (bytes == 0)
				break;
			value += step;
			from += bytes;
			keep_row(build, value >> OFFSET_BITS, bytes);
		}
	}
}

/* Add the keys of a page that page_measure() has accepted. */
static void
add_keys(GinBuild *build, Page page)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);

	for (OffsetNumber offset = FirstOffsetNumber; offset <= last; offset++)
	{
		ItemId		item = PageGetItemId(page, offset);
		IndexTuple	itup = (IndexTuple) PageGetItem(page, item);
		GinKey	   *key = &build->keys[build->nkeys];
		Size		length = ItemIdGetLength(item);
		Size		bytes = length;

		if (!GinIsPostingTree(itup))
			bytes = Min(GinGetPostingOffset(itup), length);
		memset(key, 0, sizeof(GinKey));
		key->bytes = bytes;
		key->first = build->nrows;
		key->is_tree = GinIsPostingTree(itup);
		if (!key->is_tree)
			add_rows(build, (char *) itup, length);
		key->nrows = build->nrows - key->first;
		/* GinEntryAccumulator, and a copy of the key with its chunk's header */
		key->memory = 64 + 16 + (bytes > sizeof(IndexTupleData) + sizeof(Datum) ?
								 pg_nextpower2_32(bytes) : 0);
		if (key->is_tree || key->nrows > 0)
			build->nkeys++;
	}
}

/* Return where a block is among the bins, below BINS; of a damaged page it may be any. */
static double
bin_of(BlockNumber block, double width)
{
	return Min(block / width, BINS - 0.001);
}

/* Set the positions of all rows in the table: the share of rows that are before them. */
static void
set_positions(GinBuild *build)
{
	double		before[BINS + 1] = {0};
	BlockNumber highest = 0;
	double		width;

	for (int i = 0; i < build->nrows; i++)
	{
		if (build->rows[i].block != InvalidBlockNumber)
			highest = Max(highest, build->rows[i].block);
	}
	width = (highest + 1.0) / BINS;
	for (int i = 0; i < build->nrows; i++)
		before[(int) bin_of(build->rows[i].block, width) + 1]++;
	for (int i = 1; i <= BINS; i++)
		before[i] += before[i - 1];
	for (int i = 0; i < build->nrows; i++)
	{
		double		bin = bin_of(build->rows[i].block, width);
		int			whole = (int) bin;
		double		rows = before[whole] + (bin - whole) * (before[whole + 1] - before[whole]);

		build->rows[i].position = Min(rows / build->nrows * POSITIONS, POSITIONS - 1);
	}
}

/* Return the memory of so many rows of a key in a batch: an array that is doubled. */
static double
memory_of_rows(double nrows)
{
	return 16 + 32 * exp2(ceil(log2(Max(nrows, 5) / 5)));
}

/* Return the batch of a position. */
static int
batch_of(const GinBuild *build, double position)
{
	return Min((int) (position / POSITIONS * build->batches), build->nbatches - 1);
}

/* Return the rows of a key from one on that are in the same batch. */
static int
rows_together(const GinBuild *build, const GinKey *key, int from)
{
	int			batch = batch_of(build, build->rows[from].position);
	int			n = 1;

	while (from + n < key->first + key->nrows &&
		   batch_of(build, build->rows[from + n].position) == batch)
		n++;
	return n;
}

/* Return the memory that a batch takes on average. */
static double
memory_of_batch(const GinBuild *build)
{
	double		result = 0;

	for (const GinKey *key = build->keys; key < build->keys + build->nkeys; key++)
	{
		CHECK_FOR_INTERRUPTS();
		if (key->is_tree)
			result += build->nbatches *
				(key->memory + memory_of_rows(build->tree_rows / build->batches));
		for (int i = key->first; i < key->first + key->nrows;)
		{
			int			n = rows_together(build, key, i);

			result += key->memory + memory_of_rows(n);
			i += n;
		}
	}
	return result * build->scale / build->batches;
}

static void
set_batches(GinBuild *build, double batches)
{
	build->batches = Min(Max(batches, 1), MOST_BATCHES);
	build->nbatches = (int) ceil(build->batches - 0.01);
}

/* Find the number of batches whose memory is as much as a build may use. */
static void
find_batches(GinBuild *build)
{
	double		allowed = maintenance_work_mem * 1024.0;

	set_batches(build, 1);
	for (int i = 0; i < 5; i++)
	{
		double		needed = memory_of_batch(build);

		if (build->batches == 1 && needed <= allowed)
			break;
		set_batches(build, build->batches * needed / allowed);
	}
}

/* Return the bytes of a key's tuple with its list, without if that becomes a tree. */
static int
tuple_size(const GinKey *key)
{
	double		size = key->list > 0 ? SHORTALIGN((int) key->bytes) + key->list : key->bytes;

	return MAXALIGN((int) (size > GinMaxItemSize ? key->bytes : size)) + sizeof(ItemIdData);
}

/* Split a full page: its left half gets the first keys, as in entrySplitPage(). */
static void
split_page(GinBuild *build, int page, int end)
{
	GinBuiltPage *left = &build->pages[page];
	GinBuiltPage *right = &build->pages[build->npages];
	int			total = left->used;
	int			used = 0;
	int			key = left->first;

	while (key < end && used <= total / 2)
		used += build->keys[key++].size;
	Assert(key > left->first && key < end);
	right->first = key;
	right->used = total - used;
	right->next = left->next;
	left->used = used;
	left->next = build->npages++;
}

/* Insert a key, with bytes of its list, on its page or a page behind. */
static int
insert_key(GinBuild *build, int page, int number, double list)
{
	GinKey	   *key = &build->keys[number];
	GinBuiltPage *p;
	int			next;
	int			before = key->size;

	while (build->pages[page].next >= 0 &&
		   build->pages[build->pages[page].next].first <= number)
		page = build->pages[page].next;
	p = &build->pages[page];
	next = p->next;
	key->list += list;
	key->size = tuple_size(key);
	p->used += key->size - before;
	if (p->used + sizeof(ItemIdData) > PAGE_BYTES)
		split_page(build, page, next >= 0 ? build->pages[next].first : build->nkeys);
	return page;
}

/* Insert the keys of a batch, with events or of trees, each with its rows. */
static void
insert_batch(GinBuild *build, const GinEvent *events, int nevents)
{
	const GinEvent *end = events + nevents;
	double		tree_list = build->tree_bytes / build->nbatches;
	int			page = 0;
	int			kept = 0;

	/* both are in the order of keys */
	for (int i = 0; i < build->nlists || events < end;)
	{
		CHECK_FOR_INTERRUPTS();
		if (i == build->nlists || (events < end && events->key < build->lists[i]))
		{
			page = insert_key(build, page, events->key, events->list);
			events++;
		}
		else
		{
			int			number = build->lists[i++];

			page = insert_key(build, page, number, tree_list);
			/* the tuple of a tree does not change any more */
			if (build->keys[number].list <= GinMaxItemSize)
				build->lists[kept++] = number;
		}
	}
	build->nlists = kept;
}

/* Call found() for each batch that the pages have rows of a key for. */
static void
each_event(const GinBuild *build, int number, void (*found) (int batch, GinEvent event, void *arg),
		   void *arg)
{
	const GinKey *key = &build->keys[number];

	CHECK_FOR_INTERRUPTS();
	for (int i = key->first; i < key->first + key->nrows;)
	{
		int			n = rows_together(build, key, i);
		int			batch = batch_of(build, build->rows[i].position);
		GinEvent	event = {number, 0};

		for (int row = i; row < i + n; row++)
			event.list += build->rows[row].bytes;
		found(batch, event, arg);
		i += n;
	}
}

/* The events of all batches, in the order of batches */
typedef struct GinEvents
{
	int		   *ends;			/* of each batch */
	GinEvent   *events;
} GinEvents;

static void
count_event(int batch, GinEvent event, void *arg)
{
	((GinEvents *) arg)->ends[batch + 1]++;
}

static void
put_event(int batch, GinEvent event, void *arg)
{
	GinEvents  *events = arg;

	events->events[events->ends[batch]++] = event;
}

/* Carry out the build, and return the pages that it makes. */
static int
carry_out(GinBuild *build)
{
	GinEvents	events = {palloc0_array(int, build->nbatches + 2)};
	int			begin = 0;

	build->lists = palloc_array(int, build->nkeys);
	for (int i = 0; i < build->nkeys; i++)
	{
		if (build->keys[i].is_tree)
			build->lists[build->nlists++] = i;
		each_event(build, i, count_event, &events);
	}
	for (int i = 1; i <= build->nbatches; i++)
		events.ends[i] += events.ends[i - 1];
	events.events = palloc_extended(Max(events.ends[build->nbatches], 1) * sizeof(GinEvent),
									MCXT_ALLOC_HUGE);
	for (int i = 0; i < build->nkeys; i++)
		each_event(build, i, put_event, &events);

	/*
	 * A key is on one page, and a split page has one key at least: no tuple
	 * takes more than a third of a page (page_measure()).
	 */
	build->pages = palloc_array(GinBuiltPage, build->nkeys + 2);
	build->pages[0].first = 0;
	build->pages[0].used = 0;
	build->pages[0].next = -1;
	build->npages = 1;
	for (int i = 0; i < build->nbatches; i++)
	{
		insert_batch(build, events.events + begin, events.ends[i] - begin);
		begin = events.ends[i];
	}
	pfree(build->lists);
	pfree(events.ends);
	pfree(events.events);
	pfree(build->pages);
	return build->npages;
}

/*
 * Return how full a build leaves the pages of keys, from 0 to 1, by copies of such pages that
 * page_measure() has accepted, and the totals of the index; 0 if they have no keys.
 */
double
rebuilt_gin_density(char **pages, int npages, const PageTotals *totals, bool in_one_batch)
{
	GinBuild	build = {.max_rows = 4096};
	const PageMeasure *posting = &totals->of[PAGE_POSTING];
	int			used_pages = 0;
	int			nkeys = 0;
	double		bytes = 0;
	double		result = 0;

	for (int i = 0; i < npages; i++)
		nkeys += PageGetMaxOffsetNumber((Page) pages[i]);
	build.keys = palloc_extended((nkeys + 1) * sizeof(GinKey), MCXT_ALLOC_HUGE);
	build.rows = palloc_array(GinRow, build.max_rows);
	for (; used_pages < npages && build.nrows < MOST_ROWS; used_pages++)
		add_keys(&build, (Page) pages[used_pages]);
	if (build.nkeys > 0)
	{
		/* a row takes about a byte and a half */
		build.tree_bytes = posting->used / Max(posting->tuples, 1);
		build.tree_rows = build.tree_bytes / 1.5;
		build.scale = Max(totals->of[PAGE_LEAF].count / used_pages, 1);
		set_positions(&build);
		if (in_one_batch)
			set_batches(&build, 1);
		else
			find_batches(&build);
		result = carry_out(&build);
		for (int i = 0; i < build.nkeys; i++)
			bytes += build.keys[i].size;
		result = bytes / (result * PAGE_BYTES);
		elog(DEBUG1, "simulated a build of %d keys with %d rows in %.1f batches: density %.3f",
			 build.nkeys, build.nrows, build.batches, result);
	}
	pfree(build.keys);
	pfree(build.rows);
	return result;
}
