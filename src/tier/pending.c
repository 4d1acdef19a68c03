/*-------------------------------------------------------------------------
 *
 * pending.c
 *	  Advice about the pending list of a GIN index, from how the index is used.
 *
 * A list that holds n pages saves n pages' worth of work when rows come in, and costs each
 * search n more reads.  While the list grows to its limit and is emptied, it is half as
 * long as its limit on average.  So with limit = 2 * (pages that come in) / (searches), the
 * searches of a day read as many pages of the list as the rows of a day fill.  A greater
 * limit costs the searches more than that.
 *
 * At the limit an insert empties the list, and its client waits.  Autovacuum does it before,
 * if it comes in time: by ANALYZE, too, which does not read the index as VACUUM does
 * (ginvacuumcleanup()).  It is to come when the list has half its greatest length, but
 * not more often than each ANALYZE_SECONDS: then the inserts have to do it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "postmaster/autovacuum.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "printed_command.h"
#include "report/report.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_pending_steps);

#define LEAST_LIMIT			(64 * 1024) /* of gin_pending_list_limit, bytes */
#define ANALYZE_SECONDS		600

/* When autovacuum analyzes a table */
typedef struct AnalyzeTrigger
{
	bool		enabled;		/* for this table */
	double		rows;			/* changed, from so many on */
} AnalyzeTrigger;

/* A list, its use, and the advice about it */
typedef struct PendingAdvice
{
	PendingList list;
	const Heat *heat;			/* of the index */
	const char *index;			/* names, qualified and quoted */
	const char *table;
	double		limit;			/* bytes, now or as advised */
	ArrayBuildState *steps;
} PendingAdvice;

/* Add a step: why, and the command. */
static void
add_step(PendingAdvice *advice, const char *why, const char *command)
{
	char	   *step = psprintf("%s: %s", why, command);

	advice->steps = accumArrayResult(advice->steps, CStringGetTextDatum(step), false, TEXTOID,
									 CurrentMemoryContext);
}

/* Return the bytes that a row takes in the list. */
static double
row_bytes(const PendingList *list)
{
	return (double) list->pages * BLCKSZ / Max(list->rows, 1);
}

/* Advise a limit, unless the present limit is hardly greater. */
static void
advise_limit(PendingAdvice *advice)
{
	const Heat *heat = advice->heat;
	double		bytes = heat->rates.changes_per_second * row_bytes(&advice->list);
	double		limit;
	char	   *why;

	if (heat->rates.scans_per_second <= 0 || bytes <= 0)
		return;
	limit = 1024 * ceil(Max(2 * bytes / heat->rates.scans_per_second, LEAST_LIMIT) / 1024);
	if (2 * limit > advice->list.limit)
		return;
	advice->limit = limit;
	why = psprintf("each day, %.0f pages come into the list and %.0f searches read it, so a limit of %.0f kB suffices in place of %lld kB",
				   rint(bytes * SECS_PER_DAY / BLCKSZ),
				   rint(heat->rates.scans_per_second * SECS_PER_DAY), limit / 1024,
				   (long long) advice->list.limit / 1024);
	add_step(advice, why, printed_command("pending_limit", advice->index, (int64) (limit / 1024)));
}

/* Read when autovacuum analyzes a table.  Returns false if it was dropped. */
static bool
read_trigger(Oid table_oid, AnalyzeTrigger *trigger)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(table_oid));
	const StdRdOptions *options;
	double		threshold = autovacuum_anl_thresh;
	double		scale = autovacuum_anl_scale;
	float4		rows;

	if (!HeapTupleIsValid(tuple))
	{
		table_close(catalog, AccessShareLock);
		return false;
	}
	options = (const StdRdOptions *) extractRelOptions(tuple, RelationGetDescr(catalog), NULL);
	rows = ((Form_pg_class) GETSTRUCT(tuple))->reltuples;
	trigger->enabled = true;
	if (options != NULL)
	{
		trigger->enabled = options->autovacuum.enabled;
		if (options->autovacuum.analyze_threshold >= 0)
			threshold = options->autovacuum.analyze_threshold;
		if (options->autovacuum.analyze_scale_factor >= 0)
			scale = options->autovacuum.analyze_scale_factor;
	}
	trigger->rows = threshold + scale * Max(rows, 0);
	ReleaseSysCache(tuple);
	table_close(catalog, AccessShareLock);
	return true;
}

/* Advise when autovacuum is to analyze the table, unless it does so in time or never can. */
static void
advise_autovacuum(PendingAdvice *advice)
{
	double		full = advice->limit / row_bytes(&advice->list);
	double		changes = advice->heat->rates.changes_per_second;
	double		wanted = ceil(Max(full / 2, changes * ANALYZE_SECONDS));
	char	   *minutes = psprintf("%.0f", wanted / changes / 60);
	char	   *rows = psprintf("%.0f rows are %.0f pages of the list", wanted,
								ceil(wanted * row_bytes(&advice->list) / BLCKSZ));
	AnalyzeTrigger trigger;

	if (changes <= 0 || wanted > full || wanted > PG_INT32_MAX)
		return;
	if (!read_trigger(advice->heat->facts.heap_oid, &trigger))
		return;
	if (!AutoVacuumingActive())
		add_step(advice, psprintf("%s, and autovacuum is off in this server, so run every %s minutes", rows, minutes),
				 printed_command("flush_pending", advice->index));
	else if (!trigger.enabled || trigger.rows > wanted)
		add_step(advice,
				 psprintf("%s, so autovacuum is to empty it then, about every %s minutes, before an insert has to", rows, minutes),
				 printed_command("pending_analyze", advice->table, (int64) wanted));
}

/* Return the heat of a relation, NULL if it has none. */
static const Heat *
find_heat(const HeatTable *heats, Oid relid)
{
	for (int i = 0; i < heats->n; i++)
	{
		if (heats->heats[i].facts.relid == relid)
			return &heats->heats[i];
	}
	return NULL;
}

/* Read the heat of all relations, once in a statement that asks for many of them. */
static const HeatTable *
read_heat_once(FmgrInfo *flinfo)
{
	/* a limit is for weeks, not for the heat of today */
	static const Interval half_life = {.day = 7};

	if (flinfo->fn_extra == NULL)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(flinfo->fn_mcxt);
		HeatTable  *heats = heat_read(work_mem);

		heat_weigh(heats, &half_life);
		flinfo->fn_extra = heats;
		MemoryContextSwitchTo(oldcontext);
	}
	return flinfo->fn_extra;
}

/*
 * index_mover.pending_steps(index regclass) RETURNS text[]
 *
 * Advice about a GIN index's pending list, in this order, each step with its command;
 * NULL for a short list, and for a list that report_pending_list() cannot read.  On a standby the
 * primary's use is not known, so there is only the first step.
 *
 * Locks: AccessShareLock on the index until the end.  EXECUTE: pg_stat_scan_tables.
 */
Datum
index_mover_pending_steps(PG_FUNCTION_ARGS)
{
	PendingAdvice advice = {0};
	Oid			relid = PG_GETARG_OID(0);
	RelationFacts facts = {0};
	char	   *why;

	if (!relation_facts(relid, &facts) || facts.relkind != RELKIND_INDEX ||
		facts.relam != GIN_AM_OID)
		PG_RETURN_NULL();
	if (!report_pending_list(relid, &advice.list))
		PG_RETURN_NULL();
	if (advice.list.pages < PENDING_LONG)
		PG_RETURN_NULL();
	advice.index = quote_qualified_identifier(NameStr(facts.schema_name), NameStr(facts.relname));
	advice.table = quote_qualified_identifier(NameStr(facts.schema_name), NameStr(facts.heap_name));
	advice.limit = advice.list.limit;
	if (RecoveryInProgress())
		why = psprintf("every search reads the %lld pages of the pending list; on the primary",
					   (long long) advice.list.pages);
	else
		why = psprintf("every search reads the %lld pages of the pending list",
					   (long long) advice.list.pages);
	add_step(&advice, why, printed_command("flush_pending", advice.index));
	if (advice.list.fastupdate && !RecoveryInProgress() &&
		facts.persistence != RELPERSISTENCE_TEMP)
	{
		advice.heat = find_heat(read_heat_once(fcinfo->flinfo), relid);
		if (advice.heat != NULL)
		{
			advise_limit(&advice);
			advise_autovacuum(&advice);
		}
	}
	PG_RETURN_DATUM(makeArrayResult(advice.steps, CurrentMemoryContext));
}
