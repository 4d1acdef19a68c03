/*-------------------------------------------------------------------------
 *
 * heat.c
 *	  How much each relation of this database is used on this server, from the
 *	  cumulative statistics and the samples of them.
 *
 * A row of index_mover.sample is what the counters of a relation were at a moment.
 * It is written only if they have changed, so at any moment the counters are those
 * of the last row at or before it; the moments themselves are rows of relation 0.
 * A rebuilt index has another OID, so rows are found by table and name.
 *
 * Of the last day all rows are kept, of the last week the last one of each hour, before
 * that the last one of each day, and for each relation.  A row at which a counter has
 * gone back, and the one before it, stay: without them a reset would not be seen.  What
 * is older than the retention is one row for each relation that there is: without it
 * nothing would be known of a relation that has been idle ever since.  No other code
 * writes these rows.
 *
 * A counter that went back was reset, and nothing is known of the use before that
 * step.  All were reset at heat_stats_since(), the last moment at which a counter can
 * have come back to the same value unseen.  So "no use" is said only of the time
 * since then, and since the relation was there: since its first sample, or since its
 * file was made.  From 16 on the statistics have the time of the last scan, too.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog_internal.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "own_tables.h"
#include "relation_facts.h"
#include "tier/tier_private.h"

#define RATE_DAYS		7		/* of the samples that rates are of */
#define RETENTION_DAYS	100

PG_FUNCTION_INFO_V1(index_mover_stats_since);
PG_FUNCTION_INFO_V1(index_mover_take_index_sample);

/* columns of index_mover.sample, as in the SQL script */
enum
{
	Anum_sample_taken_at = 1,
	Anum_sample_table_oid,
	Anum_sample_index_name,
	Anum_sample_counters,		/* the first */
	Natts_sample = Anum_sample_counters + HEAT_COUNTERS - 1
};

typedef struct HeatSample
{
	Oid			table_oid;		/* 0: the row says only that samples were
								 * taken at this moment */
	NameData	index_name;		/* "" = of the table itself */
	TimestampTz taken_at;
	int64		counters[HEAT_COUNTERS];
	ItemPointerData tid;
} HeatSample;

/* Compare the relations that two samples are of. */
static int
compare_sampled(const void *a, const void *b)
{
	const HeatSample *x = a;
	const HeatSample *y = b;

	if (x->table_oid != y->table_oid)
		return x->table_oid > y->table_oid ? 1 : -1;
	return strcmp(NameStr(x->index_name), NameStr(y->index_name));
}

static int
compare_samples(const void *a, const void *b)
{
	TimestampTz x = ((const HeatSample *) a)->taken_at;
	TimestampTz y = ((const HeatSample *) b)->taken_at;
	int			result = compare_sampled(a, b);

	return result != 0 ? result : (x > y) - (x < y);
}

/*
 * Return the samples, palloc'd: first the moments, then those of each relation
 * together, each in the order of time.
 */
static HeatSample *
read_samples(int *count)
{
	Size		room = 1024;
	HeatSample *samples = palloc_array(HeatSample, room);
	ExtensionScan scan;
	const Datum *values = scan.row.values;
	int			n = 0;

	extension_scan_begin(&scan, "sample", NULL, 0, NULL);
	while (extension_scan_next(&scan))
	{
		HeatSample *sample;

		if (n == room)
			samples = repalloc_huge(samples, (room *= 2) * sizeof(HeatSample));
		sample = &samples[n++];
		memset(sample, 0, sizeof(HeatSample));
		sample->taken_at = DatumGetTimestampTz(values[Anum_sample_taken_at - 1]);
		sample->table_oid = DatumGetObjectId(values[Anum_sample_table_oid - 1]);
		if (!scan.row.nulls[Anum_sample_index_name - 1])
			namestrcpy(&sample->index_name,
					   TextDatumGetCString(values[Anum_sample_index_name - 1]));
		for (int i = 0; i < HEAT_COUNTERS; i++)
			sample->counters[i] = DatumGetInt64(values[Anum_sample_counters - 1 + i]);
		sample->tid = scan.tuple->t_self;
	}
	qsort(samples, n, sizeof(HeatSample), compare_samples);
	*count = n;
	return samples;
}

/* Return when the last history file was written: by a promotion.  0: never. */
static TimestampTz
promoted_at(void)
{
	DIR		   *dir = AllocateDir(XLOGDIR);
	struct dirent *entry;
	TimestampTz result = 0;

	while ((entry = ReadDirExtended(dir, XLOGDIR, LOG)) != NULL)
	{
		char		path[MAXPGPATH];
		struct stat st;

		if (!IsTLHistoryFileName(entry->d_name))
			continue;
		snprintf(path, sizeof(path), XLOGDIR "/%s", entry->d_name);
		if (stat(path, &st) == 0)
			result = Max(result, time_t_to_timestamptz(st.st_mtime));
	}
	FreeDir(dir);
	return result;
}

/*
 * Return from when on the cumulative statistics tell of this server as it is: they
 * were reset; a crash has lost them, and has reset those of the background writer;
 * or a promotion has made another server of it.
 */
TimestampTz
heat_stats_since(void)
{
	PgStat_StatDBEntry *database = pgstat_fetch_stat_dbentry(MyDatabaseId);
	TimestampTz result = pgstat_fetch_stat_bgwriter()->stat_reset_timestamp;

	if (IM_LIMIT("stats-age", 0) > 0)
		return GetCurrentTimestamp() - IM_LIMIT("stats-age", 0) * USECS_PER_DAY;
	if (database != NULL)
		result = Max(result, database->stat_reset_timestamp);
	return Max(result, promoted_at());
}

/* index_mover.stats_since() RETURNS timestamptz: heat_stats_since() */
Datum
index_mover_stats_since(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(heat_stats_since());
}

/* Get the relation's counters, and the time of its last scan if it is known. */
static void
get_counters(Heat *heat)
{
	PgStat_StatTabEntry *stats = pgstat_fetch_stat_tabentry(heat->relid);
	int64	   *counters = heat->counters;

	if (stats == NULL)
		return;
	counters[HEAT_READ] = stats->blocks_fetched - stats->blocks_hit;
	heat->last_scan = IM_STAT_LASTSCAN(stats);
	if (heat->relkind == RELKIND_INDEX)
	{
		counters[HEAT_INDEX_SCANS] = stats->numscans;
		/* a scan reads a few pages on its way, and at most one for each entry */
		counters[HEAT_WANTED] = 4 * stats->numscans + stats->tuples_returned;
		heat->fetched = stats->tuples_fetched;
		return;
	}
	counters[HEAT_OTHER_SCANS] = stats->numscans;
	counters[HEAT_CHANGES] = stats->tuples_inserted + stats->tuples_updated + stats->tuples_deleted;
	/* of the table an index scan reads at most one page for each row */
	counters[HEAT_WANTED] += stats->tuples_fetched + counters[HEAT_CHANGES];
	heat->to_indexes = stats->tuples_inserted + stats->tuples_updated;
	heat->to_indexes_cold = heat->to_indexes - stats->tuples_hot_updated;
}

/* Let a table and its index have what the other one's counters say of it. */
static void
share_counters(Heat *table, Heat *index)
{
	index->counters[HEAT_WANTED] += table->to_indexes;
	index->counters[HEAT_CHANGES] = table->to_indexes_cold;
	table->counters[HEAT_WANTED] += index->fetched;
	table->counters[HEAT_INDEX_SCANS] += index->counters[HEAT_INDEX_SCANS];
	table->last_index_scan = Max(table->last_index_scan, index->last_scan);
}

static int
compare_relids(const void *a, const void *b)
{
	Oid			x = ((const Heat *) a)->relid;
	Oid			y = ((const Heat *) b)->relid;

	return (x > y) - (x < y);
}

/* Return the heat of a relation, NULL if it has none. */
Heat *
heat_of(const HeatTable *table, Oid relid)
{
	Heat		key = {.relid = relid};

	return bsearch(&key, table->heats, table->n, sizeof(Heat), compare_relids);
}

/* Return the bytes of the main fork, of a table with TOAST; 0 if unreadable. */
int64
heat_size(const Heat *heat)
{
	int64		result = relation_main_size(heat->tablespace, heat->relfilenumber);
	HeapTuple	toast = SearchSysCache1(RELOID, ObjectIdGetDatum(heat->toast_oid));

	if (HeapTupleIsValid(toast))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(toast);
		Oid			place = form->reltablespace;

		result += Max(relation_main_size(OidIsValid(place) ? place : MyDatabaseTableSpace,
										 form->relfilenode), 0);
		ReleaseSysCache(toast);
	}
	return Max(result, 0);
}

/* Read pg_class, and the statistics. */
static void
read_relations(HeatTable *table)
{
	List	   *rows = catalog_all(RelationRelationId);

	table->heats = palloc0_array(Heat, list_length(rows));
	foreach_ptr(HeapTupleData, row, rows)
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		Heat	   *heat = &table->heats[table->n];

		if (strchr("rmi", form->relkind) == NULL || form->oid < FirstNormalObjectId ||
			IsToastNamespace(form->relnamespace) || form->relpersistence == RELPERSISTENCE_TEMP)
			continue;
		table->n++;
		heat->relid = heat->table_oid = form->oid;
		heat->name = form->relname;
		heat->schema_oid = form->relnamespace;
		heat->relkind = form->relkind;
		heat->tablespace = tablespace_from_catalog(form->reltablespace);
		heat->relfilenumber = form->relfilenode;
		heat->toast_oid = form->reltoastrelid;
		heat->is_valid = heat->is_searched = true;
		get_counters(heat);
	}
	list_free_deep(rows);
	qsort(table->heats, table->n, sizeof(Heat), compare_relids);
}

/* Read pg_index, after the statistics of all relations. */
static void
read_indexes(const HeatTable *table)
{
	foreach_ptr(HeapTupleData, row, catalog_all(IndexRelationId))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(row);
		Heat	   *index = heat_of(table, form->indexrelid);
		Heat	   *heap = heat_of(table, form->indrelid);

		if (index == NULL || heap == NULL)
			continue;
		index->table_oid = form->indrelid;
		index->is_valid = form->indisvalid && form->indisready && form->indislive;
		index->is_searched = index->counters[HEAT_INDEX_SCANS] > 0 ||
			form->indisunique || form->indisexclusion;
		index->of_extension = heap->of_extension;
		share_counters(heap, index);
	}
}

/* Note the relations that are members of an extension, this one included. */
static void
read_extensions(const HeatTable *table)
{
	foreach_ptr(HeapTupleData, row, catalog_rows(DependRelationId, DependReferenceIndexId,
												 Anum_pg_depend_refclassid, ExtensionRelationId, 0, InvalidOid))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(row);
		Heat	   *heat = form->classid != RelationRelationId ||
			form->deptype != DEPENDENCY_EXTENSION ? NULL : heat_of(table, form->objid);

		if (heat != NULL)
			heat->of_extension = true;
	}
}

/* The facts that are the same for all relations */
typedef struct HeatContext
{
	TimestampTz now;
	TimestampTz stats_since;
	TimestampTz window;			/* the first moment of the last week */
	const HeatSample *moments;
	int			nmoments;
} HeatContext;

/* Take one more sample, or the counters of now, as evidence for one kind of use. */
static void
note_use(HeatUse *use, int64 count, int64 before, bool is_first, bool restarted, TimestampTz at,
		 TimestampTz stats_since)
{
	if (is_first)
		/* if none was counted, none since the counters began: 0 */
		use->known_since = count == 0 ? 0 : at;
	else if (restarted)
		use->known_since = stats_since;
	else if (count < before)
		use->known_since = at;
	if (!is_first && count > (restarted || count < before ? 0 : before))
		use->last = at;
}

/* The last scan of a kind, if the statistics have its time */
static void
note_last_scan(HeatUse *use, int64 count, TimestampTz last)
{
	if (count == 0 || last == 0)
		return;
	use->known_since = Min(use->known_since, last);
	use->last = Max(use->last, last);
}

/* Set rates and uses from a relation's samples and its counters of now. */
static void
judge(Heat *heat, const HeatSample *samples, int n, const HeatContext *context)
{
	HeatUse    *const uses[] = {&heat->scans, &heat->index_scans, &heat->changes};
	const int64 zero[HEAT_COUNTERS] = {0};
	const int64 *before = zero;
	TimestampTz before_at = 0;
	TimestampTz since = context->stats_since;
	TimestampTz start = n > 0 ? Max(context->window, samples[0].taken_at) : 0;
	double		read = 0;
	double		wanted = 0;

	for (int i = 0; i <= n; i++)
	{
		const int64 *counters = i < n ? samples[i].counters : heat->counters;
		TimestampTz at = i < n ? samples[i].taken_at : context->now;
		bool		restarted = before_at < since && at >= since;

#define USE(c, k) ((k) == 0 ? (c)[HEAT_INDEX_SCANS] + (c)[HEAT_OTHER_SCANS] : \
				   (k) == 1 ? (c)[HEAT_INDEX_SCANS] : (c)[HEAT_CHANGES])
		for (int k = 0; k < lengthof(uses); k++)
			note_use(uses[k], USE(counters, k), USE(before, k), i == 0, restarted, at, since);
#undef USE
		if (i > 0 && at > start)
		{
			const int64 *base = counters[HEAT_READ] < before[HEAT_READ] ? zero : before;
			double		blocks = counters[HEAT_READ] - base[HEAT_READ];

			read += blocks;
			/* it alone goes back when an index is dropped */
			wanted += Max(Min(blocks, counters[HEAT_WANTED] - base[HEAT_WANTED]), 0);
		}
		before = counters;
		before_at = at;
	}
	heat->is_sampled = n > 0 &&
		memcmp(samples[n - 1].counters, heat->counters, sizeof(heat->counters)) == 0;

	for (int i = context->nmoments; n > 0 && i > 0 && context->moments[i - 1].taken_at >= start; i--)
		heat->samples++;
	heat->seconds = (context->now - start) / (double) USECS_PER_SEC;
	if (heat->samples == 0 || heat->seconds <= 0)
	{
		heat->samples = 0;
		heat->seconds = Max((context->now - since) / (double) USECS_PER_SEC, 1);
		read = heat->counters[HEAT_READ];
		wanted = Min(read, heat->counters[HEAT_WANTED]);
	}
	heat->reads_per_second = read / heat->seconds;
	heat->wanted_per_second = wanted / heat->seconds;

	for (int k = 0; k < lengthof(uses); k++)
	{
		TimestampTz there = n > 0 ? samples[0].taken_at : context->now;

		if (uses[k]->known_since != 0)
			continue;
		if (there > since)
		{
			TimestampTz birth = file_birth(relation_file_path(MyDatabaseId, heat->tablespace,
															  heat->relfilenumber, MAIN_FORKNUM));

			if (birth != 0)
				there = Min(there, birth);
		}
		uses[k]->known_since = Max(there, since);
	}
	note_last_scan(&heat->index_scans, heat->counters[HEAT_INDEX_SCANS],
				   heat->relkind == RELKIND_INDEX ? heat->last_scan : heat->last_index_scan);
	note_last_scan(&heat->scans, heat->counters[HEAT_INDEX_SCANS] + heat->counters[HEAT_OTHER_SCANS],
				   Max(heat->last_scan, heat->last_index_scan));
	/* without counting, no use is known */
	for (int k = 0; k < lengthof(uses) && !pgstat_track_counts; k++)
		uses[k]->known_since = context->now;
}

/* Return the first of the samples of a relation, and their number. */
static const HeatSample *
samples_of(const Heat *heat, const HeatSample *samples, int n, int *count)
{
	HeatSample	key = {.table_oid = heat->table_oid};
	const HeatSample *first;

	if (heat->relkind == RELKIND_INDEX)
		key.index_name = heat->name;
	first = bsearch(&key, samples, n, sizeof(HeatSample), compare_sampled);
	*count = 0;
	if (first == NULL)
		return samples;
	while (first > samples && compare_sampled(first - 1, &key) == 0)
		first--;
	while (first + *count < samples + n && compare_sampled(first + *count, &key) == 0)
		(*count)++;
	return first;
}

/*
 * Return the heat of all permanent and unlogged tables, materialized views and
 * indexes of users in this database, palloc'd.  Takes AccessShareLock on
 * catalogs and own tables, and none that lasts.  Needs a snapshot.
 */
HeatTable *
heat_read(void)
{
	HeatTable  *table = palloc0_object(HeatTable);
	HeatContext context = {.now = GetCurrentTimestamp(),.stats_since = heat_stats_since()};
	int			n;
	HeatSample *samples = read_samples(&n);

	read_relations(table);
	read_extensions(table);
	read_indexes(table);

	context.window = context.now;
	context.moments = samples;
	for (; context.nmoments < n && !OidIsValid(samples[context.nmoments].table_oid); context.nmoments++)
	{
		table->last_moment = samples[context.nmoments].taken_at;
		if (table->last_moment > context.now - RATE_DAYS * USECS_PER_DAY)
			context.window = Min(context.window, table->last_moment);
	}
	for (int i = 0; i < table->n; i++)
	{
		int			count;
		const HeatSample *first = samples_of(&table->heats[i], samples, n, &count);

		CHECK_FOR_INTERRUPTS();
		judge(&table->heats[i], first, count, &context);
	}
	pfree(samples);
	return table;
}

/* Return what is known of the use of a relation, of the kinds that count. */
HeatUse
heat_use(const Heat *heat, IdleOf of)
{
	const HeatUse *scans = of == IDLE_OF_USE ? &heat->scans : &heat->index_scans;
	HeatUse		result = heat->changes;

	if (of != IDLE_OF_CHANGE)
	{
		result.last = Max(result.last, scans->last);
		result.known_since = Max(result.known_since, scans->known_since);
	}
	return result;
}

/* ----------------------------------------------------------------
 *	Taking samples, and keeping them few
 * ----------------------------------------------------------------
 */

static void
insert_sample(Relation rel, Oid table_oid, const char *index_name, TimestampTz at,
			  const int64 *counters)
{
	Datum		values[Natts_sample];
	bool		nulls[Natts_sample] = {0};

	values[Anum_sample_taken_at - 1] = TimestampTzGetDatum(at);
	values[Anum_sample_table_oid - 1] = ObjectIdGetDatum(table_oid);
	nulls[Anum_sample_index_name - 1] = index_name == NULL;
	values[Anum_sample_index_name - 1] = index_name == NULL ? (Datum) 0 :
		CStringGetTextDatum(index_name);
	for (int i = 0; i < HEAT_COUNTERS; i++)
		values[Anum_sample_counters - 1 + i] = Int64GetDatum(counters[i]);
	extension_insert(rel, Natts_sample, values, nulls);
}

/* Return the interval of time, of those of which one sample is kept, as a number. */
static int64
bucket(TimestampTz at, TimestampTz now)
{
	int64		length = at > now - USECS_PER_DAY ? 1 :
		at > now - 7 * USECS_PER_DAY ? USECS_PER_HOUR : USECS_PER_DAY;

	return at / length * length;
}

/* Return whether a counter has gone back from one sample to the next. */
static bool
went_back(const HeatSample *a, const HeatSample *b)
{
	for (int i = 0; i < HEAT_COUNTERS; i++)
		if (b->counters[i] < a->counters[i])
			return true;
	return false;
}

/* Delete the samples that are not needed any more. */
static void
thin_samples(Relation rel, const HeatTable *heats, TimestampTz now, TimestampTz oldest)
{
	int			n;
	HeatSample *samples = read_samples(&n);
	const HeatSample *kept = NULL;

	for (int i = 0; i < n; i++)
	{
		const HeatSample *sample = &samples[i];
		const HeatSample *next = i + 1 < n && compare_sampled(sample, sample + 1) == 0 ? sample + 1 : NULL;
		bool		is_old = sample->taken_at < oldest;
		bool		go;

		CHECK_FOR_INTERRUPTS();
		if (kept != NULL && compare_sampled(kept, sample) != 0)
			kept = NULL;
		if (next != NULL)
			go = is_old ? next->taken_at < oldest :
				bucket(sample->taken_at, now) == bucket(next->taken_at, now) &&
				!went_back(sample, next) && (kept == NULL || !went_back(kept, sample));
		else
			/* of a moment, or a relation that has gone */
			go = is_old && (!OidIsValid(sample->table_oid) ||
							heat_of(heats, sample->table_oid) == NULL);
		if (go)
		{
			HeapTupleData tuple = {.t_self = sample->tid};

			(void) extension_delete(rel, &tuple);
		}
		else
			kept = sample;
	}
	pfree(samples);
}

/*
 * Take a sample, and once an hour thin out the earlier ones; retention (NULL: 100
 * days) is how long more than one row of a relation is kept.  Returns the number of rows written,
 * without that of the moment.  Runs in the caller's transaction; RowExclusiveLock
 * on the table of samples until its end.
 */
int64
samples_take(const Interval *retention)
{
	HeatTable  *heats = heat_read();
	Relation	rel = extension_open("sample");
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz oldest = retention == NULL ? now - RETENTION_DAYS * USECS_PER_DAY :
		DatumGetTimestampTz(DirectFunctionCall2(timestamptz_mi_interval,
												TimestampTzGetDatum(now),
												IntervalPGetDatum(retention)));
	const int64 none[HEAT_COUNTERS] = {0};
	int64		rows = 0;

	if (heats->last_moment < now - now % USECS_PER_HOUR || oldest > now - USECS_PER_DAY)
		thin_samples(rel, heats, now, oldest);
	insert_sample(rel, InvalidOid, NULL, now, none);
	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];

		CHECK_FOR_INTERRUPTS();
		if (heat->is_sampled || heat->of_extension)
			continue;
		insert_sample(rel, heat->table_oid,
					  heat->relkind == RELKIND_INDEX ? NameStr(heat->name) : NULL,
					  now, heat->counters);
		rows++;
	}
	extension_close(rel);
	CommandCounterIncrement();
	return rows;
}

/*
 * take_index_sample(retention interval DEFAULT '100 days') RETURNS bigint
 *
 * samples_take().  EXECUTE: pg_monitor.  ERROR 25006 in recovery or a read-only
 * transaction.
 */
Datum
index_mover_take_index_sample(PG_FUNCTION_ARGS)
{
	PreventCommandIfReadOnly("take_index_sample()");
	PreventCommandDuringRecovery("take_index_sample()");
	PG_RETURN_INT64(samples_take(PG_GETARG_INTERVAL_P(0)));
}
