/*-------------------------------------------------------------------------
 *
 * heat.c
 *	  How much each relation of this database is used on this server, from the
 *	  cumulative statistics and the samples of them.
 *
 * A row of index_mover.sample has the counters of a relation at a moment, if
 * they had changed; the moments themselves are rows of relation 0.  They are read relation by
 * relation (heat_samples.c), so only a relation's are in memory, for each half-life again.  The rates by
 * each half-life are kept, so policies that take turns with theirs cost no more readings.
 *
 * Rates are means in which a block that was read counts half as much for each half-life
 * since: work that has begun shows soon, and work that has ended is forgotten as soon.
 *
 * Of the last hour all rows are kept, of the last day the last row of each minute, of the
 * last week of each hour, before that of each day, and of what is older than the retention the last of each
 * relation that there is: it may have been idle ever since.
 *
 * Nothing is known of the use before the first sample of a relation, nor before a
 * counter went back: it was reset, or it is another index of the same name.  A counter
 * that was reset and has passed its old value before the next row that is kept was
 * used in between.  What is from the future, by a clock that was ahead, counts as none, and its
 * samples are deleted.  All were reset at stats_since(), the last moment at which one can
 * have come back to the same value.  From 16 on the statistics have the time of the
 * last scan, too.  Samples that another server has taken, before a failover, do not
 * count: its counters are not from this server.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>
#include <sys/stat.h>

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/dependency.h"
#include "funcapi.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/tuplestore.h"

#include "own_tables.h"
#include "tier/heat_samples.h"
#include "tier/tier_private.h"

#define HALF_LIVES		10		/* older reads do not count in rates */
#define HALF_LIFE_HOURS	12		/* by default, see bench/tiers */
#define MOST_SAMPLES	240		/* in an hour */
#define MOST_WEIGHED	16		/* half-lives of which rates are kept */
#define MOST_HISTORIES	4		/* are kept; 1.3 kB for each relation */

PG_FUNCTION_INFO_V1(index_mover_stats_since);
PG_FUNCTION_INFO_V1(index_mover_relation_heat);
PG_FUNCTION_INFO_V1(index_mover_take_index_sample);

/*
 * Return from when on the samples are of this server, not of the primary before it: a
 * promotion writes the history of its timeline.  On a standby none is.
 */
static TimestampTz
samples_since(void)
{
	char		history[MAXPGPATH];
	struct stat st;

	if (RecoveryInProgress())
		return DT_NOEND;
	TLHistoryFilePath(history, GetWALInsertionTimeLine());
	return stat(history, &st) == 0 ? time_t_to_timestamptz(st.st_mtime) : DT_NOBEGIN;
}

/*
 * Return from when on the cumulative statistics tell of this server: they were reset;
 * a crash has lost them, and has reset the counters of the background writer; the database
 * was made; or a promotion.
 */
static TimestampTz
stats_since(void)
{
	PgStat_StatDBEntry *database = pgstat_fetch_stat_dbentry(MyDatabaseId);
	TimestampTz result = pgstat_fetch_stat_bgwriter()->stat_reset_timestamp;
	struct stat st;

	if (IM_LIMIT("stats-age", 0) > 0)
		return GetCurrentTimestamp() - IM_LIMIT("stats-age", 0) * USECS_PER_DAY;
	if (database != NULL)
		result = Max(result, database->stat_reset_timestamp);
	/* core sets none for the copy of a template */
	if (stat(psprintf("%s/PG_VERSION", DatabasePath), &st) == 0)
		result = Max(result, time_t_to_timestamptz(st.st_mtime));
	return RecoveryInProgress() ? result : Max(result, samples_since());
}

/* index_mover.stats_since() RETURNS timestamptz */
Datum
index_mover_stats_since(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(stats_since());
}

/* Return the statistics of a relation, or zeros. */
static const PgStat_StatTabEntry *
stats_of(Oid relid)
{
	static const PgStat_StatTabEntry none = {0};
	const PgStat_StatTabEntry *stats = pgstat_fetch_stat_tabentry(relid);

	return stats != NULL ? stats : &none;
}

/* Return when a relation was scanned last, 0 if that is not known. */
static TimestampTz
last_scan(const PgStat_StatTabEntry *stats)
{
	TimestampTz result = IM_STAT_LASTSCAN(stats);

	return moment_is_ahead(result) ? 0 : result;
}

static bool
is_table(Form_pg_class form)
{
	return (form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW) &&
		form->oid >= FirstNormalObjectId && form->relpersistence != RELPERSISTENCE_TEMP;
}

/* Read the relations and their statistics: each table, and then its indexes. */
static void
read_relations(HeatTable *table)
{
	List	   *tables = relations_such(is_table);
	List	   *relids = NIL;
	Heat	   *heap = NULL;

	list_sort(tables, list_oid_cmp);
	foreach_oid(relid, tables)
	{
		CHECK_FOR_INTERRUPTS();
		relids = list_concat(lappend_oid(relids, relid), indexes_of_table(relid));
	}
	table->heats = palloc_extended(list_length(relids) * sizeof(Heat) + 1,
								   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	foreach_oid(relid, relids)
	{
		Heat	   *heat = &table->heats[table->n];
		const PgStat_StatTabEntry *stats = stats_of(relid);
		const PgStat_StatTabEntry *heap_stats;
		int64		entries;

		if (!relation_facts(relid, &heat->facts))
			continue;
		if (heat->facts.heap_oid == relid)
			heap = heat;
		else if (heap == NULL || heap->facts.relid != heat->facts.heap_oid)
			continue;			/* its table has gone */
		table->n++;
		heat->reset_at = IM_STAT_RESET(stats);
		heat->counters[HEAT_READ] = stats->blocks_fetched - stats->blocks_hit;
		if (heat == heap)
		{
			heat->of_extension = OidIsValid(getExtensionOfObject(RelationRelationId, relid));
			heat->last_use[IDLE_OF_USE] = last_scan(stats);
			/* TABLESAMPLE counts rows only */
			heat->counters[HEAT_OTHER_SCANS] = stats->numscans + stats->tuples_returned;
			heat->counters[HEAT_CHANGES] = stats->tuples_inserted + stats->tuples_updated +
				stats->tuples_deleted;
			/* an index scan reads at most a page of the table for each row */
			heat->counters[HEAT_WANTED] = stats->tuples_fetched + heat->counters[HEAT_CHANGES];
			/* for the table itself, core counts the rows of bitmap scans only */
			heat->counters[HEAT_OVERLAPPED] = stats->tuples_fetched;
			continue;
		}
		heap_stats = stats_of(heap->facts.relid);
		entries = heap_stats->tuples_inserted + heap_stats->tuples_updated;
		heat->of_extension = heap->of_extension;
		for (IdleOf of = IDLE_OF_USE; of <= IDLE_OF_INDEX_USE; of++)
		{
			heat->last_use[of] = last_scan(stats);
			heap->last_use[of] = Max(heap->last_use[of], heat->last_use[of]);
		}
		heat->counters[HEAT_INDEX_SCANS] = stats->numscans;

		/*
		 * a scan reads a few pages on its way, and at most a page for each
		 * entry
		 */
		heat->counters[HEAT_WANTED] = 4 * stats->numscans + stats->tuples_returned + entries;
		heat->counters[HEAT_CHANGES] = entries - heap_stats->tuples_hot_updated;
		heap->counters[HEAT_INDEX_SCANS] += stats->numscans;
		heap->counters[HEAT_WANTED] += stats->tuples_fetched;
	}
}

/* Set the uses of a relation from its samples, the last of now. */
static void
judge_use(Heat *heat, const HeatSample *samples, int n, const HeatTable *table)
{
	/* counts as use: a counter for this kind, and all before */
	static const IdleOf narrowest[] = {
		[HEAT_INDEX_SCANS] = IDLE_OF_INDEX_USE,
		[HEAT_OTHER_SCANS] = IDLE_OF_USE,
		[HEAT_CHANGES] = IDLE_OF_CHANGE,
	};

	/* nothing was counted before */
	TimestampTz since = pgstat_track_counts ? table->stats_since : table->now;

	for (IdleOf of = 0; of < IDLE_KINDS; of++)
		heat->known_since[of] = Max(samples[0].taken_at, since);
	for (int i = 0; i < n; i++)
		heat->is_searched |= samples[i].counters[HEAT_INDEX_SCANS] > 0;
	for (int i = 1; i < n; i++)
	{
		TimestampTz at = samples[i].taken_at;
		const int64 *now = samples[i].counters;
		const int64 *before = samples[i - 1].counters;
		bool		reset = now[HEAT_READ] < before[HEAT_READ];
		bool		all_reset = samples[i - 1].taken_at < since && at >= since;

		/*
		 * each by itself: an index that is dropped takes its scans from the
		 * table's
		 */
		for (int c = HEAT_INDEX_SCANS; c <= HEAT_CHANGES; c++)
		{
			int64		step = now[c] - (all_reset ? 0 : before[c]);

			for (IdleOf of = 0; of <= narrowest[c]; of++)
			{
				/*
				 * its counters were reset, or it is another index of the same
				 * name
				 */
				if (step < 0 || (reset && !all_reset))
				{
					heat->known_since[of] = Max(heat->known_since[of], at);
					heat->reset_at = Max(heat->reset_at, at);
				}
				if (step > 0 || (step < 0 && now[c] > 0))
					heat->last_use[of] = Max(heat->last_use[of], at);
			}
		}
	}
}

/* Return the number of moments before this one: of samples, which all relations have. */
static int
moments_before(const HeatTable *table, TimestampTz at)
{
	int			low = 0;
	int			high = table->nmoments;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (table->moments[middle] < at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Return how much a time counts: its seconds, half of them for each half-life since. */
static double
weight_of(const HeatTable *table, TimestampTz from, TimestampTz to)
{
	double		half_life = table->half_life * USECS_PER_SEC;
	double		lives_from = (table->now - from) / half_life;
	double		lives_to = (table->now - to) / half_life;

	Assert(from < to && to <= table->now);
	return table->half_life / M_LN2 * (exp2(-lives_to) - exp2(-lives_from));
}

/*
 * Return when the step to a sample of a relation began: a row is written at the first
 * moment at which the counters have changed, so not before the moment before it.
 */
static TimestampTz
step_begin(const HeatTable *table, const HeatSample *sample)
{
	TimestampTz result = sample[-1].taken_at;
	int			n = moments_before(table, sample->taken_at);

	if (n > 0)
		result = Max(result, table->moments[n - 1]);
	return Min(result, sample->taken_at - 1);
}

/*
 * Return by how much a counter has grown since the sample before.  A reset is seen by the blocks that were
 * read, which do not go back otherwise: then all counters began again.
 */
static int64
step_of(const HeatSample *sample, int counter)
{
	const int64 *now = sample->counters;
	const int64 *before = sample[-1].counters;
	bool		reset = now[HEAT_READ] < before[HEAT_READ];

	/* another counter alone goes back when an index is dropped */
	return Max(now[counter] - (reset ? 0 : before[counter]), 0);
}

/* Return the blocks that were read since the sample before, as far as index scans and changes need them. */
static int64
wanted_since_before(const HeatSample *sample)
{
	return Min(step_of(sample, HEAT_READ), step_of(sample, HEAT_WANTED));
}

/* Add blocks to the parts of a time in which they were wanted, to each its share; lengths in microseconds. */
static void
spread_blocks(double blocks, double from, double to, double length, int n, float *parts)
{
	int			first = Max(from / length, 0);
	int			last = Min(to / length, n - 1);

	for (int part = first; part <= last; part++)
	{
		double		starts = Max(part * length, from);
		double		ends = Min((part + 1) * length, to);

		parts[part] += blocks * Max(ends - starts, 0) / (to - from);
	}
}

/* Set the rates of a relation of which there are no samples: those of the statistics. */
static void
judge_without_samples(Heat *heat, const HeatTable *table)
{
	double		read = heat->counters[HEAT_READ];
	double		wanted = heat->counters[HEAT_WANTED];

	heat->rates.samples = 0;
	heat->rates.seconds = Max((table->now - table->stats_since) / (double) USECS_PER_SEC, 1);
	heat->rates.reads_per_second = read / heat->rates.seconds;
	heat->rates.wanted_per_second = Min(read, wanted) / heat->rates.seconds;
	heat->rates.scans_per_second = heat->counters[HEAT_INDEX_SCANS] / heat->rates.seconds;
	heat->rates.changes_per_second = heat->counters[HEAT_CHANGES] / heat->rates.seconds;
	heat->rates.overlapped = heat->counters[HEAT_OVERLAPPED] / Max(wanted, 1);
}

/* Set the rates of a relation since a moment, or since its first sample. */
static void
judge_rates(Heat *heat, const HeatSample *samples, int n, const HeatTable *table, TimestampTz since)
{
	TimestampTz start = Max(since, samples[0].taken_at);
	double		read = 0;
	double		wanted = 0;
	double		scans = 0;
	double		changes = 0;
	double		most = 0;		/* HEAT_WANTED */
	double		overlapped = 0;
	double		weight;

	if (n < 2 || start >= table->now)
	{
		judge_without_samples(heat, table);
		return;
	}
	heat->rates.samples = Max(table->nmoments - moments_before(table, start), 1);
	heat->rates.seconds = (table->now - start) / (double) USECS_PER_SEC;
	for (int i = 1; i < n; i++)
	{
		const HeatSample *sample = &samples[i];
		TimestampTz at = sample->taken_at;
		TimestampTz begin;
		double		share;		/* of the step that counts */

		if (at <= start)
			continue;
		begin = step_begin(table, sample);
		share = weight_of(table, Max(begin, start), at) / ((at - begin) / (double) USECS_PER_SEC);
		read += step_of(sample, HEAT_READ) * share;
		wanted += wanted_since_before(sample) * share;
		scans += step_of(sample, HEAT_INDEX_SCANS) * share;
		changes += step_of(sample, HEAT_CHANGES) * share;
		most += step_of(sample, HEAT_WANTED) * share;
		overlapped += Min(step_of(sample, HEAT_OVERLAPPED), step_of(sample, HEAT_WANTED)) * share;
	}
	weight = weight_of(table, start, table->now);
	heat->rates.reads_per_second = read / weight;
	heat->rates.wanted_per_second = wanted / weight;
	heat->rates.scans_per_second = scans / weight;
	heat->rates.changes_per_second = changes / weight;
	heat->rates.overlapped = most > 0 ? overlapped / most : 0;
}

/* Readings of all samples */

/* Looks at the samples of a relation, of which the last is that of now */
typedef void (*SampleVisitor) (const HeatTable *table, Heat *heat, const HeatSample *samples, int n,
							   void *arg);

/* Return the counters of now, as a sample. */
static HeatSample
sample_of_now(const HeatTable *table, const Heat *heat)
{
	HeatSample	result = {.taken_at = table->now};

	memcpy(result.counters, heat->counters, sizeof(result.counters));
	return result;
}

/* Keep the moments at which samples were taken, which are the first that a reader has. */
static void
read_moments(HeatTable *table, SampleReader *reader)
{
	const HeatSample *samples = samples_read(reader, 0, &table->nmoments);

	table->moments = palloc_array(TimestampTz, table->nmoments + 1);
	table->sampled_since = DT_NOEND;
	for (int i = table->nmoments - 1; i >= 0; i--)
	{
		table->moments[i] = samples[i].taken_at;
		if (samples[i].taken_at >= table->samples_since)
			table->sampled_since = samples[i].taken_at;
	}
}

/*
 * Read the samples of all relations, and have them looked at.  Samples that were taken after the
 * counters of now were read are passed over.
 */
static void
visit_samples(HeatTable *table, SampleVisitor visit, void *arg)
{
	MemoryContext oldcontext;
	SampleReader *reader;

	/* left by a reading that an error has ended */
	MemoryContextReset(table->reading);
	oldcontext = MemoryContextSwitchTo(table->reading);
	reader = samples_begin(table->heats, table->n, table->now, false, table->sort_memory);
	read_moments(table, reader);
	MemoryContextSwitchTo(oldcontext);
	for (int i = 0; i < table->n; i++)
	{
		Heat	   *heat = &table->heats[i];
		int			n;
		int			first = 0;
		HeatSample *samples = samples_read(reader, i + 1, &n);

		CHECK_FOR_INTERRUPTS();
		samples[n] = sample_of_now(table, heat);
		/* leave out samples that another server has taken */
		while (first < n && samples[first].taken_at < table->samples_since)
			first++;
		visit(table, heat, &samples[first], n + 1 - first, arg);
	}
	samples_end(reader);
	MemoryContextReset(table->reading);
	table->moments = NULL;
}

/* Set the use and the rates of a relation.  arg: since when samples count for these. */
static void
judge(const HeatTable *table, Heat *heat, const HeatSample *samples, int n, void *arg)
{
	const TimestampTz *since = arg;

	judge_use(heat, samples, n, table);
	judge_rates(heat, samples, n, table, *since);
}

/* The rates of all relations by a half-life */
typedef struct WeighedRates
{
	double		half_life;		/* seconds */
	HeatRates	rates[FLEXIBLE_ARRAY_MEMBER];
} WeighedRates;

/* Return the rates by a half-life, NULL if they are not kept. */
static const WeighedRates *
find_weighed(const HeatTable *table, double half_life)
{
	foreach_ptr(const WeighedRates, weighed, table->weighed)
	{
		if (weighed->half_life == half_life)
			return weighed;
	}
	return NULL;
}

/* Keep the rates of all relations, which are by a half-life. */
static void
keep_weighed(HeatTable *table, double half_life)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(table->context);
	Size		size = offsetof(WeighedRates, rates) + table->n * sizeof(HeatRates);
	WeighedRates *weighed = palloc_extended(size, MCXT_ALLOC_HUGE);

	weighed->half_life = half_life;
	for (int i = 0; i < table->n; i++)
		weighed->rates[i] = table->heats[i].rates;
	if (list_length(table->weighed) == MOST_WEIGHED)
	{
		pfree(linitial(table->weighed));
		table->weighed = list_delete_first(table->weighed);
	}
	table->weighed = lappend(table->weighed, weighed);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Set the use of all relations, and their rates by a half-life; NULL: that of policies by default.  Reads the
 * samples, unless the rates are kept.
 */
void
heat_weigh(HeatTable *table, const Interval *half_life)
{
	static const Interval usual = {.time = HALF_LIFE_HOURS * USECS_PER_HOUR};
	const Interval *life = half_life != NULL ? half_life : &usual;
	double		seconds = (table->now - moment_minus(table->now, life)) / (double) USECS_PER_SEC;
	const WeighedRates *weighed;
	TimestampTz since;

	/* a month less 30 days may be less than nothing */
	seconds = Max(seconds, SECS_PER_MINUTE);
	weighed = find_weighed(table, seconds);
	if (weighed != NULL)
	{
		for (int i = 0; i < table->n; i++)
			table->heats[i].rates = weighed->rates[i];
		return;
	}
	table->half_life = seconds;
	since = table->now - (TimestampTz) Min(seconds * HALF_LIVES, 1e11) * USECS_PER_SEC;
	visit_samples(table, judge, &since);
	/* not before all are read: an error leaves some with other rates */
	keep_weighed(table, seconds);
}

/* Keep the history of a relation that was wanted. */
static void
keep_history(const HeatTable *table, Heat *heat, const HeatSample *samples, int n, void *arg)
{
	const HeatHistories *histories = arg;
	TimestampTz begin = histories->begin;
	double		length = (table->now - begin) / (double) histories->n;
	float	   *wanted = NULL;

	for (const HeatSample *sample = samples + 1; sample < samples + n; sample++)
	{
		int64		blocks = wanted_since_before(sample);

		if (sample->taken_at <= begin || blocks == 0)
			continue;
		if (wanted == NULL)
			wanted = MemoryContextAllocZero(histories->context, histories->n * sizeof(float));
		spread_blocks(blocks, step_begin(table, sample) - begin, sample->taken_at - begin, length,
					  histories->n, wanted);
	}
	histories->wanted[heat - table->heats] = wanted;
}

/* Return the histories of a time in so many parts, NULL if they are not kept. */
static const HeatHistories *
find_histories(const HeatTable *table, TimestampTz begin, int n)
{
	foreach_ptr(const HeatHistories, histories, table->histories)
	{
		if (histories->begin == begin && histories->n == n)
			return histories;
	}
	return NULL;
}

/* Keep histories as long as the table. */
static void
keep_histories(HeatTable *table, HeatHistories *histories)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(table->context);

	if (list_length(table->histories) == MOST_HISTORIES)
	{
		HeatHistories *oldest = linitial(table->histories);

		table->histories = list_delete_first(table->histories);
		MemoryContextDelete(oldest->context);
	}
	table->histories = lappend(table->histories, histories);
	MemoryContextSetParent(histories->context, table->context);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Return how many blocks of each relation were wanted in each of n parts of the time from a moment
 * to now.  Reads the samples, unless these histories are kept.  The result is valid until the next call.
 */
const HeatHistories *
heat_histories(HeatTable *table, TimestampTz begin, int n)
{
	const HeatHistories *kept = find_histories(table, begin, n);
	HeatHistories *histories;
	MemoryContext context;

	Assert(begin < table->now && n > 0);
	if (kept != NULL)
		return kept;

	/*
	 * Until all are read, an error deletes it with its subtransaction. Chunks
	 * of other contexts are powers of two, and the history of a relation is
	 * often 1.3 kB.
	 */
	context = GenerationContextCreate(CurTransactionContext, "index_mover histories of heat",
									  ALLOCSET_DEFAULT_SIZES);
	histories = MemoryContextAllocZero(context, sizeof(HeatHistories));
	histories->context = context;
	histories->begin = begin;
	histories->n = n;
	histories->wanted = MemoryContextAllocExtended(context, table->n * sizeof(float *) + 1,
												   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	visit_samples(table, keep_history, histories);
	keep_histories(table, histories);
	return histories;
}

/*
 * Return all permanent and unlogged tables, materialized views and indexes of users in this
 * database, without their heat: see heat_weigh().  No lock lasts.  Needs a snapshot.  sort_memory: kB.
 *
 * The counters are of now, so the caller's snapshot of statistics is cleared, as by
 * pg_stat_clear_snapshot().
 */
HeatTable *
heat_read(int sort_memory)
{
	HeatTable  *table = palloc0_object(HeatTable);

	/*
	 * Counters that this transaction has looked at before would be less than
	 * those of a sample that another session has taken since: as after a
	 * reset.
	 */
	pgstat_clear_snapshot();
	table->sort_memory = sort_memory;
	table->context = CurrentMemoryContext;
	table->now = GetCurrentTimestamp();
	table->stats_since = stats_since();
	table->samples_since = samples_since();
	table->reading = AllocSetContextCreate(CurrentMemoryContext, "index_mover reading of samples",
										   ALLOCSET_SMALL_SIZES);
	read_relations(table);
	return table;
}

/* Return the argument half_life, NULL if it is NULL.  ERROR 22023 if it is out of range. */
const Interval *
heat_half_life_argument(FunctionCallInfo fcinfo, int n)
{
	Interval	least = {.time = USECS_PER_MINUTE};
	Interval	most = {.month = 10 * MONTHS_PER_YEAR};
	const Interval *half_life;
	Datum		value;
	Datum		order_of_least;
	Datum		order_of_most;

	if (PG_NARGS() <= n || PG_ARGISNULL(n))
		return NULL;
	value = PG_GETARG_DATUM(n);
	half_life = DatumGetIntervalP(value);
	order_of_least = DirectFunctionCall2(interval_cmp, value, IntervalPGetDatum(&least));
	order_of_most = DirectFunctionCall2(interval_cmp, value, IntervalPGetDatum(&most));
	/* no part of it is negative either, as in tier_policy */
	if (DatumGetInt32(order_of_least) < 0 || DatumGetInt32(order_of_most) > 0 ||
		half_life->month < 0 || half_life->day < 0 || half_life->time < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be from a minute to 10 years", "half_life")));
	return half_life;
}

/*
 * relation_heat(half_life interval) RETURNS SETOF record
 * index_mover.relation_heat() RETURNS SETOF record
 *
 * How much each relation is used.  half_life: NULL, or none: that of policies by default.
 * No lock lasts.  Clears the snapshot of statistics, see heat_read().  EXECUTE: pg_monitor.  ERROR
 * 22023 half_life.
 */
Datum
index_mover_relation_heat(PG_FUNCTION_ARGS)
{
	const Interval *half_life = heat_half_life_argument(fcinfo, 0);
	HeatTable  *heats = heat_read(work_mem);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	heat_weigh(heats, half_life);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];
		Row			row;

		if (heat->of_extension)
			continue;
		row_clear(&row);
		row_set(&row, 1, ObjectIdGetDatum(heat->facts.relid));
		row_text(&row, 2, heat->facts.relkind == RELKIND_INDEX ? "index" : "table");
		row_tablespace(&row, 3, heat->facts.tablespace);
		row_int64(&row, 4, relation_main_size(&heat->facts));
		row_set(&row, 5, Float8GetDatum(heat->rates.reads_per_second));
		row_set(&row, 6, Float8GetDatum(heat->rates.wanted_per_second));
		row_interval(&row, 7, (int64) rint(heat->rates.seconds) * USECS_PER_SEC);
		row_int64(&row, 8, heat->rates.samples);
		for (IdleOf of = 0; of < IDLE_KINDS; of++)
			row_time(&row, 9 + of, heat->last_use[of]);
		row_time(&row, 12, heat->known_since[IDLE_OF_USE]);
		row_time(&row, 13, heat->reset_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/* Taking samples, and keeping them few */

/* Insert a sample of a relation; NULL: that it was taken. */
static void
insert_sample(const HeatSample *sample, const RelationFacts *facts)
{
	Row			row;

	row_clear(&row);
	row_set(&row, 1, TimestampTzGetDatum(sample->taken_at));
	row_set(&row, 2, ObjectIdGetDatum(facts != NULL ? facts->heap_oid : InvalidOid));
	if (facts != NULL && facts->relkind == RELKIND_INDEX)
		row_text(&row, 3, NameStr(facts->relname));
	for (int i = 0; i < HEAT_COUNTERS; i++)
		row_set(&row, 4 + i, Int64GetDatum(sample->counters[i]));
	extension_insert("sample", &row);
}

/* Return the time of which a single sample of a relation is kept, if it is of this age. */
static int64
interval_of_samples(int64 age)
{
	if (age < USECS_PER_HOUR)
		return 1;
	if (age < USECS_PER_DAY)
		return USECS_PER_MINUTE;
	if (age < HOURLY_DAYS * USECS_PER_DAY)
		return USECS_PER_HOUR;
	return USECS_PER_DAY;
}

/* Return whether counters are less than in a sample before. */
static bool
counters_go_back(const HeatSample *sample, const HeatSample *before)
{
	return sample->counters[HEAT_INDEX_SCANS] < before->counters[HEAT_INDEX_SCANS] ||
		sample->counters[HEAT_READ] < before->counters[HEAT_READ];
}

/*
 * Delete those of n samples of a relation that are not needed any more.  exists: the next sample is that
 * of now; else the relation has gone, or they are moments.
 */
static void
thin_samples(HeatSample *samples, int n, bool exists, const HeatTable *table,
			 TimestampTz oldest)
{
	bool		goes_back = false;	/* to the next sample: an index was
									 * dropped */

	for (int i = 0; i < n; i++)
	{
		HeatSample *sample = &samples[i];
		bool		went_back = goes_back;
		int64		interval = interval_of_samples(table->now - sample->taken_at);
		bool		is_last = i + 1 == n;
		bool		go;

		CHECK_FOR_INTERRUPTS();
		goes_back = !is_last && counters_go_back(&sample[1], sample);
		if (sample->taken_at < oldest)
			go = is_last ? !exists : sample[1].taken_at < oldest;
		else if (is_last || goes_back || went_back)
			go = false;
		else
			go = sample->taken_at / interval == sample[1].taken_at / interval;
		if (go)
			(void) extension_delete_free_row("sample", &sample->tid);
	}
}

/* Delete the samples that are from the future, or of no moment at all. */
static void
delete_odd_samples(void)
{
	ExtensionScan scan;

	extension_scan_begin(&scan, "sample", 0, NULL);
	while (extension_scan_next(&scan))
	{
		TimestampTz taken_at = DatumGetTimestampTz(scan.row.values[0]);

		if (moment_is_ahead(taken_at) || TIMESTAMP_NOT_FINITE(taken_at))
			(void) extension_delete_free_row("sample", &scan.tuple->t_self);
	}
}

/* Return whether a sample of a relation is needed after n others: its counters have changed since the last. */
static bool
wants_sample_after(const HeatTable *table, const Heat *heat, const HeatSample *samples, int n)
{
	if (heat->of_extension)
		return false;
	return n == 0 || samples[n - 1].taken_at < table->samples_since ||
		memcmp(heat->counters, samples[n - 1].counters, sizeof(heat->counters)) != 0;
}

/* Take a sample of all relations; returns the number of rows written, without that of the moment. */
static int64
record_sample(const Interval *retention)
{
	HeatTable  *table = heat_read(HEAT_PLAN_MEMORY);
	SampleReader *reader = samples_begin(table->heats, table->n, table->now, true,
										 table->sort_memory);
	HeatSample	moment = {0};
	TimestampTz oldest;
	int64		rows = 0;
	int			n;
	HeatSample *moments = samples_read(reader, 0, &n);

	if (n >= MOST_SAMPLES && moments[n - MOST_SAMPLES].taken_at > table->now - USECS_PER_HOUR)
	{
		samples_end(reader);
		ereport(NOTICE,
				(errmsg("no sample was taken, since the last hour has %d", MOST_SAMPLES)));
		return 0;
	}
	oldest = moment_minus(table->now, retention);
	oldest = Min(oldest, table->now - HOURLY_DAYS * USECS_PER_DAY);
	thin_samples(moments, n, false, table, oldest);
	delete_odd_samples();
	/* after the counters were read: whatever they tell of was before */
	moment.taken_at = GetCurrentTimestamp();
	insert_sample(&moment, NULL);
	for (int number = 1; number < samples_relations(reader); number++)
	{
		bool		exists = number <= table->n;
		HeatSample *samples = samples_read(reader, number, &n);

		CHECK_FOR_INTERRUPTS();
		thin_samples(samples, n, exists, table, oldest);
		if (exists)
		{
			const Heat *heat = &table->heats[number - 1];
			HeatSample	sample = sample_of_now(table, heat);

			if (!wants_sample_after(table, heat, samples, n))
				continue;
			sample.taken_at = moment.taken_at;
			insert_sample(&sample, &heat->facts);
			rows++;
		}
	}
	samples_end(reader);
	CommandCounterIncrement();
	return rows;
}

/*
 * take_index_sample(retention interval DEFAULT '100 days') RETURNS bigint
 *
 * retention is how long more than a row of a relation is kept.  Returns the number
 * of rows written, without that of the moment.  RowExclusiveLock on the table of
 * samples until the end of the transaction.  EXECUTE: pg_monitor.  ERRORs: 25006 in
 * recovery or a read-only transaction; 22023 a negative retention.
 *
 * The samples are for all roles, so no caller can fill the table, nor take from others the
 * week that rates are of.
 *
 * Two samples that are taken at once could be written in another order than their counters were
 * read: as if these went back.  So a call has a lock of its own, which ends with the call, not with
 * the transaction: that may be kept open, and counters only grow.  No other process takes that lock.
 */
Datum
index_mover_take_index_sample(PG_FUNCTION_ARGS)
{
	Interval	none = {0};
	LOCKTAG		tag;
	Oid			relid;
	Datum		order;
	int64		rows;

	PreventCommandDuringRecovery("take_index_sample()");
	PreventCommandIfReadOnly("take_index_sample()");
	order = DirectFunctionCall2(interval_cmp, PG_GETARG_DATUM(0), IntervalPGetDatum(&none));
	if (DatumGetInt32(order) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", "retention")));
	relid = extension_relation("sample");
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationRelationId, relid, 1);
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
	{
		ereport(NOTICE,
				(errmsg("no sample was taken, since another session takes one")));
		PG_RETURN_INT64(0);
	}

	/*
	 * nothing may move the rows until the outdated rows are deleted by their
	 * TIDs
	 */
	LockRelationOid(relid, RowExclusiveLock);
	rows = record_sample(PG_GETARG_INTERVAL_P(0));
	(void) LockRelease(&tag, ExclusiveLock, false);
	PG_RETURN_INT64(rows);
}
