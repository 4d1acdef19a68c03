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

#include "access/genam.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xlog_internal.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "own_tables.h"
#include "tier/tier_private.h"

#define RATE_DAYS		7		/* of the samples that rates are of */

PG_FUNCTION_INFO_V1(index_mover_stats_since);

static int
compare_samples(const void *a, const void *b)
{
	const HeatSample *x = a;
	const HeatSample *y = b;
	int			result = (x->table_oid > y->table_oid) - (x->table_oid < y->table_oid);

	if (result == 0)
		result = strcmp(NameStr(x->index_name), NameStr(y->index_name));
	if (result == 0)
		result = (x->taken_at > y->taken_at) - (x->taken_at < y->taken_at);
	return result;
}

/*
 * Return the samples, palloc'd: first the moments, then those of each relation
 * together, each in the order of time.
 */
HeatSample *
heat_samples(Relation rel, int *count)
{
	Size		room = 1024;
	HeatSample *samples = palloc_array(HeatSample, room);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	int			n = 0;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[Natts_sample];
		bool		nulls[Natts_sample];
		HeatSample *sample;

		if (n == room)
			samples = repalloc_huge(samples, (room *= 2) * sizeof(HeatSample));
		sample = &samples[n++];
		memset(sample, 0, sizeof(HeatSample));
		extension_deform(tuple, RelationGetDescr(rel), Natts_sample, values, nulls);
		sample->taken_at = DatumGetTimestampTz(values[Anum_sample_taken_at - 1]);
		sample->table_oid = DatumGetObjectId(values[Anum_sample_table_oid - 1]);
		if (!nulls[Anum_sample_index_name - 1])
			namestrcpy(&sample->index_name,
					   TextDatumGetCString(values[Anum_sample_index_name - 1]));
		for (int i = 0; i < HEAT_COUNTERS; i++)
			sample->counters[i] = DatumGetInt64(values[Anum_sample_counters - 1 + i]);
		sample->tid = tuple->t_self;
	}
	systable_endscan(scan);
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

	IM_STATS_SINCE();
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

/* Return when the file was made, 0 if the file system does not tell. */
static TimestampTz
file_birth(const Heat *heat)
{
#ifdef STATX_BTIME
	char	   *path = relation_file_path(MyDatabaseId, heat->tablespace,
										  heat->relfilenumber, MAIN_FORKNUM);
	struct statx facts;
	int			failed = statx(AT_FDCWD, path, 0, STATX_BTIME, &facts);

	pfree(path);
	if (failed == 0 && (facts.stx_mask & STATX_BTIME) != 0)
		return time_t_to_timestamptz(facts.stx_btime.tv_sec);
#endif
	return 0;
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
	int64		result = relation_fork_size(heat->tablespace, heat->relfilenumber, MAIN_FORKNUM);
	HeapTuple	toast = SearchSysCache1(RELOID, ObjectIdGetDatum(heat->toast_oid));

	if (HeapTupleIsValid(toast))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(toast);
		Oid			place = form->reltablespace;

		result += Max(relation_fork_size(OidIsValid(place) ? place : MyDatabaseTableSpace,
										 form->relfilenode, MAIN_FORKNUM), 0);
		ReleaseSysCache(toast);
	}
	return Max(result, 0);
}

/* Read pg_class. */
static void
read_relations(HeatTable *table)
{
	int			room = 1024;
	Relation	rel = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	table->heats = palloc_array(Heat, room);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (strchr("rmi", form->relkind) == NULL || form->oid < FirstNormalObjectId || IsToastNamespace(form->relnamespace) ||
			form->relpersistence == RELPERSISTENCE_TEMP)
			continue;
		if (table->n == room)
			table->heats = repalloc_huge(table->heats, (room *= 2) * sizeof(Heat));
		table->heats[table->n++] = (Heat)
		{
			.relid = form->oid,
				.table_oid = form->oid,
				.name = form->relname,
				.schema_oid = form->relnamespace,
				.relkind = form->relkind,
				.persistence = form->relpersistence,
				.tablespace = OidIsValid(form->reltablespace) ?
				form->reltablespace : MyDatabaseTableSpace,
				.relfilenumber = form->relfilenode,
				.toast_oid = form->reltoastrelid,
				.is_valid = true,
				.is_searched = true,
		};
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	qsort(table->heats, table->n, sizeof(Heat), compare_relids);
}

/* Read pg_index, after the statistics of all relations. */
static void
read_indexes(const HeatTable *table)
{
	Relation	rel = table_open(IndexRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);
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
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/* Note the relations that are members of an extension, this one included. */
static void
read_extensions(const HeatTable *table)
{
	Relation	rel = table_open(DependRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(ExtensionRelationId));
	scan = systable_beginscan(rel, DependReferenceIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(tuple);
		Heat	   *heat = form->classid != RelationRelationId ||
			form->deptype != DEPENDENCY_EXTENSION ? NULL : heat_of(table, form->objid);

		if (heat != NULL)
			heat->of_extension = true;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
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
			TimestampTz birth = file_birth(heat);

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

/* Return the first of n samples that is not before the key. */
static int
first_sample(const HeatSample *samples, int n, const HeatSample *key)
{
	int			low = 0;

	while (low < n)
	{
		int			middle = low + (n - low) / 2;

		if (compare_samples(&samples[middle], key) < 0)
			low = middle + 1;
		else
			n = middle;
	}
	return low;
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
	Relation	rel = table_open(extension_relation("sample"), AccessShareLock);
	HeatContext context = {.now = GetCurrentTimestamp(),.stats_since = heat_stats_since()};
	int			n;
	HeatSample *samples = heat_samples(rel, &n);

	table_close(rel, AccessShareLock);
	read_relations(table);
	for (int i = 0; i < table->n; i++)
		get_counters(&table->heats[i]);
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
		Heat	   *heat = &table->heats[i];
		HeatSample	key = {.table_oid = heat->table_oid,.taken_at = PG_INT64_MIN};
		int			first;

		CHECK_FOR_INTERRUPTS();
		if (heat->relkind == RELKIND_INDEX)
			key.index_name = heat->name;
		first = first_sample(samples, n, &key);
		key.taken_at = PG_INT64_MAX;
		judge(heat, &samples[first], first_sample(samples, n, &key) - first, &context);
	}
	pfree(samples);
	return table;
}

/*
 * Answer whether the relation is idle since a moment.  Sets *moment to the last
 * use that was seen (0: none) or, if that is not known, since when there is
 * evidence.
 */
IdleAnswer
heat_idle(const Heat *heat, IdleOf of, TimestampTz since, TimestampTz *moment)
{
	const HeatUse *scans = of == IDLE_OF_USE ? &heat->scans : &heat->index_scans;
	TimestampTz last = heat->changes.last;
	TimestampTz known_since = heat->changes.known_since;

	if (of != IDLE_OF_CHANGE)
	{
		last = Max(last, scans->last);
		known_since = Max(known_since, scans->known_since);
	}
	*moment = last;
	if (last > since)
		return IDLE_NO;
	if (known_since <= since)
		return IDLE_YES;
	*moment = known_since;
	return IDLE_NOT_KNOWN;
}
