/*-------------------------------------------------------------------------
 *
 * samples.c
 *	  Take samples of the cumulative statistics, and keep them few.
 *
 * What a row is, is in the head of heat.c.  Of samples of the last day all rows
 * are kept, of the last week the last one of each hour, before that the last one
 * of each day, and for each relation.  A row at which a counter has gone back, and
 * the one before it, stay: without them a reset would not be seen.  What is older
 * than the retention is one row for each relation that there is: without it nothing
 * would be known of a relation that has been idle ever since.
 *
 * Rows are written as all rows of own tables (own_tables.c), by nobody else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "own_tables.h"
#include "tier/tier.h"
#include "tier/tier_private.h"

#define RETENTION_DAYS	100

PG_FUNCTION_INFO_V1(index_mover_take_index_sample);

static void
insert_sample(Relation rel, Oid table_oid, const char *index_name, TimestampTz at,
			  const int64 *counters)
{
	Datum		values[Natts_sample];
	bool		nulls[Natts_sample] = {0};
	HeapTuple	tuple;

	values[Anum_sample_taken_at - 1] = TimestampTzGetDatum(at);
	values[Anum_sample_table_oid - 1] = ObjectIdGetDatum(table_oid);
	nulls[Anum_sample_index_name - 1] = index_name == NULL;
	values[Anum_sample_index_name - 1] = index_name == NULL ? (Datum) 0 :
		CStringGetTextDatum(index_name);
	for (int i = 0; i < HEAT_COUNTERS; i++)
		values[Anum_sample_counters - 1 + i] = Int64GetDatum(counters[i]);
	tuple = extension_form(RelationGetDescr(rel), Natts_sample, values, nulls);
	extension_insert(rel, tuple);
	heap_freetuple(tuple);
}

/* Return the interval of time, of those of which one sample is kept, as a number. */
static int64
bucket(TimestampTz at, TimestampTz now)
{
	int64		length = at > now - USECS_PER_DAY ? 1 :
		at > now - 7 * USECS_PER_DAY ? USECS_PER_HOUR : USECS_PER_DAY;

	return at / length * length;
}

static bool
same_relation(const HeatSample *a, const HeatSample *b)
{
	return a->table_oid == b->table_oid &&
		strcmp(NameStr(a->index_name), NameStr(b->index_name)) == 0;
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
	HeatSample *samples = heat_samples(rel, &n);
	const HeatSample *kept = NULL;

	for (int i = 0; i < n; i++)
	{
		const HeatSample *sample = &samples[i];
		const HeatSample *next = i + 1 < n && same_relation(sample, sample + 1) ? sample + 1 : NULL;
		bool		is_old = sample->taken_at < oldest;
		bool		go;

		if (kept != NULL && !same_relation(kept, sample))
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
