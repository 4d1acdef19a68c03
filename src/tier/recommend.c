/*-------------------------------------------------------------------------
 *
 * recommend.c
 *	  The SQL functions that show heat, and advise by it.
 *
 * Both only read, take no lock on a relation but AccessShareLock, without waiting,
 * on an index whose pages they read, and work on a hot standby.  The access check
 * is that the script revokes EXECUTE from PUBLIC.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_tablespace_d.h"
#include "funcapi.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "errors.h"
#include "printed_command.h"
#include "report/report.h"
#include "row.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_relation_heat);
PG_FUNCTION_INFO_V1(index_mover_recommend_moves);

#define PENDING_PAGES	16		/* from so many on to be flushed first */

/* Set a column to a number as SQL's round(value, 4). */
static void
row_rounded(Row *row, int column, double value)
{
	row_set(row, column, Float8GetDatum(rint(value * 10000) / 10000 + 0.0));
}

/* Return seconds in the words of an interval. */
static char *
seconds_text(double seconds)
{
	Interval	interval = {.time = (int64) seconds * USECS_PER_SEC};

	return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(&interval)));
}

/*
 * index_mover.relation_heat(OUT relation regclass, kind text, tablespace name,
 *		size bigint, reads_per_second float8, heat float8, period interval,
 *		samples bigint, last_use timestamptz, last_index_use timestamptz,
 *		last_change timestamptz, known_since timestamptz) RETURNS SETOF record
 *
 * For the view relation_heat.  EXECUTE: pg_monitor.
 */
Datum
index_mover_relation_heat(PG_FUNCTION_ARGS)
{
	HeatTable  *heats = heat_read();
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];
		Row			row;

		if (heat->of_extension)
			continue;
		row_clear(&row);
		row_set(&row, 1, ObjectIdGetDatum(heat->relid));
		row_text(&row, 2, heat->relkind == RELKIND_INDEX ? "index" : "table");
		row_tablespace(&row, 3, heat->tablespace);
		row_int64(&row, 4, heat_size(heat));
		row_set(&row, 5, Float8GetDatum(heat->reads_per_second));
		row_set(&row, 6, Float8GetDatum(heat->wanted_per_second));
		row_interval(&row, 7, (int64) rint(heat->seconds) * USECS_PER_SEC);
		row_int64(&row, 8, heat->samples);
		row_time(&row, 9, heat_use(heat, IDLE_OF_USE).last);
		row_time(&row, 10, heat_use(heat, IDLE_OF_INDEX_USE).last);
		row_time(&row, 11, heat->changes.last);
		row_time(&row, 12, heat_use(heat, IDLE_OF_USE).known_since);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

/* A call of recommend_moves() */
typedef struct Advice
{
	const PlaceTable *places;
	const Place *target;
	Candidate  *candidates;
	int			n;
	int64		budget;
	bool		any_goes;
} Advice;

/* First the relations that have to leave, then by gain. */
static int
compare_gain(const void *a, const void *b)
{
	const Candidate *x = *(Candidate *const *) a;
	const Candidate *y = *(Candidate *const *) b;
	double		x_gain = x->is_resident ? -x->value : x->value;
	double		y_gain = y->is_resident ? -y->value : y->value;

	if (x->is_resident != y->is_resident)
		return x->is_resident ? -1 : 1;
	return x_gain != y_gain ? (x_gain > y_gain ? -1 : 1) : (x > y) - (x < y);
}

/* Return the reason of a row: why it leaves, what it goes by, and warnings. */
static char *
reason_text(const Advice *advice, const Candidate *candidate, const char *name, int64 pending)
{
	static const char *const basis[] = {
		[PLACE_SAME_DEVICE] = "both tablespaces are on the same device, where reads take as long",
		[PLACE_PROBED] = "read times as probed",
		[PLACE_COSTS] = "read times assumed from random_page_cost",
		[PLACE_HEAT_ALONE] = "read times not known, as if 1 ms longer",
	};
	const Heat *heat = candidate->heat;
	bool		leaves = candidate->is_resident;
	Oid			duplicate = report_duplicate_of(heat->relid);
	const char *lost_on_reboot;
	StringInfoData buf;

	initStringInfo(&buf);
	if (leaves && candidate->value < 0)
		appendStringInfo(&buf, "reads are faster in %s; ", get_tablespace_name(candidate->home));
	else if (leaves && advice->any_goes)
		appendStringInfoString(&buf, "makes room for what gains more; ");
	else if (leaves)
		appendStringInfo(&buf, "does not fit into the budget of %lld bytes; ", (long long) advice->budget);
	appendStringInfo(&buf, "%.3f block reads per second, %.3f of them for index scans and changes (",
					 heat->reads_per_second, heat->wanted_per_second);
	if (heat->samples == 0)
		appendStringInfoString(&buf, "cumulative statistics, no samples");
	else if (heat->samples == 1)
		appendStringInfo(&buf, "a sample over %s", seconds_text(heat->seconds));
	else
		appendStringInfo(&buf, "%d samples over %s", heat->samples, seconds_text(heat->seconds));
	appendStringInfo(&buf, "), %s", basis[candidate->basis]);
	if (candidate->rebuilds && !isnan(candidate->bloat))
		appendStringInfo(&buf, "; a rebuild gives back %s%.2f of it",
						 candidate->bloat_is_least ? "at least " : "", candidate->bloat);
	if (pending >= PENDING_PAGES && !leaves)
		appendStringInfo(&buf, "; every search reads the %lld pages of its pending list: flush it first: %s",
						 (long long) pending, printed_command("flush_pending", name));
	if (OidIsValid(duplicate))
		appendStringInfo(&buf, "; warning: duplicate of %s",
						 DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(duplicate))));
	if (!leaves && (lost_on_reboot = tablespace_lost_on_reboot(advice->target->oid)) != NULL)
		appendStringInfo(&buf, "; warning: %s is on %s and does not survive a reboot",
						 NameStr(advice->target->name), lost_on_reboot);
	if (heat->seconds < SECS_PER_HOUR)
		appendStringInfo(&buf, "; warning: the statistics cover only %s", seconds_text(heat->seconds));
	return buf.data;
}

static void
put_advice(ReturnSetInfo *rsinfo, const Advice *advice, const Candidate *candidate, int rank)
{
	const Heat *heat = candidate->heat;
	bool		is_index = heat->relkind == RELKIND_INDEX;
	char	   *name = quote_qualified_identifier(get_namespace_name(heat->schema_oid), NameStr(heat->name));
	const char *method = candidate->rebuilds ? "rebuild" : "copy";
	Oid			to = candidate->is_resident ? candidate->home : advice->target->oid;
	int64		pending = is_index ? report_pending_pages(heat->relid) : -1;
	Row			row;

	row_clear(&row);
	row_set(&row, 1, Int32GetDatum(rank));
	if (is_index)
		row_set(&row, 2, ObjectIdGetDatum(heat->relid));
	row_set(&row, 3, ObjectIdGetDatum(heat->table_oid));
	row_text(&row, 4, method);
	row_tablespace(&row, 5, heat->tablespace);
	row_tablespace(&row, 6, to);
	row_int64(&row, 7, heat_size(heat));
	row_int64(&row, 8, candidate->size);
	row_rounded(&row, 9, heat->reads_per_second);
	row_rounded(&row, 10, candidate->is_resident ? -candidate->value : candidate->value);
	if (!isnan(candidate->bloat) && !candidate->bloat_is_least)
		row_set(&row, 11, Float8GetDatum(candidate->bloat));
	row_int64(&row, 12, pending);
	row_text(&row, 13, reason_text(advice, candidate, name, pending));
	row_text(&row, 14, is_index ? printed_command("move_indexes", name, tablespace_name(to), method) :
			 printed_command("move_table", name, tablespace_name(to)));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
}

/* Say why there is no row. */
static void
say_nothing_gained(const Advice *advice)
{
	const Place *target = advice->target;
	StringInfoData same_device;
	bool		all_same = true;
	bool		any_slower = false;
	bool		any_gains = false;
	char	   *why;

	initStringInfo(&same_device);
	for (int i = 0; i < advice->places->n; i++)
	{
		const Place *place = &advice->places->places[i];
		PlaceBasis	basis;

		any_slower |= place_difference(place, target, &basis) > 0;
		all_same &= basis == PLACE_SAME_DEVICE;
		if (basis == PLACE_SAME_DEVICE && place != target)
			appendStringInfo(&same_device, "%s\"%s\"", same_device.len > 0 ? ", " : "", NameStr(place->name));
	}
	for (int i = 0; i < advice->n; i++)
		any_gains |= !advice->candidates[i].is_resident;
	if (!target->is_there)
		why = psprintf("the directory of tablespace \"%s\" is missing", NameStr(target->name));
	else if (all_same)
		why = psprintf("all tablespaces are on the same device as \"%s\"", NameStr(target->name));
	else if (!any_slower)
		why = psprintf("no tablespace is known to be slower than \"%s\"%s; set its and the others' random_page_cost, or run for it and the others: %s",
					   NameStr(target->name),
					   same_device.len > 0 ? psprintf(" (on the same device: %s)", same_device.data) : "",
					   printed_command("probe", NameStr(target->name)));
	else if (!any_gains)
		why = psprintf("index scans and changes want no relation in a slower tablespace than \"%s\" more than %g blocks a second",
					   NameStr(target->name), RANKING_MIN_HEAT);
	else
		why = psprintf("no relation that would gain fits into %lld bytes, or those in \"%s\" gain more",
					   (long long) advice->budget, NameStr(target->name));
	ereport(NOTICE, (errmsg("nothing to gain: %s", why)));
}

/*
 * recommend_moves(tablespace name, budget bigint) RETURNS SETOF record
 *
 * Returns a row for what should leave the tablespace, then for what should go
 * there, the greatest gain first; no row and a NOTICE if nothing gains.  budget:
 * bytes, those of the residents included; NULL: what they take up, and what is
 * free but for index_mover.min_free_space.  EXECUTE: pg_monitor.  Errors: 22004,
 * 22023 a negative budget, 42704 no such tablespace.
 */
Datum
index_mover_recommend_moves(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Advice		advice = {.places = places_read()};
	MoveSettings settings;
	Candidate **order;
	Oid			tablespace;
	int			count = 0;

	reject_null(fcinfo, 0, "tablespace");
	tablespace = get_tablespace_oid(NameStr(*PG_GETARG_NAME(0)), false);
	if (tablespace == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only shared relations can be placed in pg_global tablespace")));
	if (!PG_ARGISNULL(1) && PG_GETARG_INT64(1) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("budget must not be negative")));
	advice.target = places_find(advice.places, tablespace);
	InitMaterializedSRF(fcinfo, 0);
	settings_capture_here(&settings);
	advice.candidates = candidates_collect(heat_read(), advice.places, tablespace, InvalidOid, &settings, NULL, NULL, &advice.n);
	if (!PG_ARGISNULL(1))
		advice.budget = PG_GETARG_INT64(1);
	else
	{
		advice.budget = advice.target->facts.free_bytes -
			settings_reserved(&settings.min_free_space, advice.target->facts.total_bytes);
		for (int i = 0; i < advice.n; i++)
			if (advice.candidates[i].is_resident)
				advice.budget += advice.candidates[i].size;
	}
	if (!advice.target->is_there)
		advice.budget = 0;
	advice.budget = Max(advice.budget, 0);
	ranking_choose(advice.candidates, advice.n, advice.budget);

	order = palloc_array(Candidate *, Max(advice.n, 1));
	for (int i = 0; i < advice.n; i++)
	{
		Candidate  *candidate = &advice.candidates[i];

		advice.any_goes |= candidate->fate == CANDIDATE_GOES;
		if (candidate->fate == CANDIDATE_GOES || candidate->fate == CANDIDATE_LEAVES)
			order[count++] = candidate;
	}
	qsort(order, count, sizeof(Candidate *), compare_gain);
	for (int i = 0; i < count; i++)
		put_advice(rsinfo, &advice, order[i], i + 1);
	if (count == 0)
		say_nothing_gained(&advice);
	return (Datum) 0;
}
