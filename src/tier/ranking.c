/*-------------------------------------------------------------------------
 *
 * ranking.c
 *	  Which relations belong into a tablespace: the ranking, for policies with
 *	  a budget and for recommend_moves(), which is such a policy for all relations.
 *
 * Which set of them has the greatest value is the 0/1 knapsack problem.  Taking the
 * greatest value per byte first, and passing over relations that do not fit, or else
 * beginning with the most valuable of all that fit, whichever gets more, is at
 * least half of the possible value (Martello and Toth, Knapsack Problems, 1990, 2.4),
 * and nearly all of it where each is small.
 *
 * A resident counts RANKING_STAYS times, so that nothing goes to and fro, and a
 * little even without value, so that it stays while there is space.
 *
 * A budget is of the bytes that the target stores: where that compresses, by samples.
 *
 * Value = blocks a second that index scans and changes want, times what a read
 * takes longer elsewhere.  Left out are relations that no method can move there.  An index that
 * enforces nothing, and that no search has used as far back as statistics and samples
 * go, has no value: it is written only, and better dropped than moved.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_am_d.h"
#include "catalog/pg_tablespace_d.h"
#include "funcapi.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "call/call.h"
#include "file_compression.h"
#include "printed_command.h"
#include "report/compressed_size.h"
#include "report/report.h"
#include "row.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_recommend_moves);

/* columns of recommend_moves(), as in the SQL script */
enum
{
	Anum_advice_rank = 1,
	Anum_advice_index,
	Anum_advice_table_name,
	Anum_advice_method,
	Anum_advice_from_tablespace,
	Anum_advice_to_tablespace,
	Anum_advice_size,
	Anum_advice_size_after,
	Anum_advice_reads_per_second,
	Anum_advice_gain_ms_per_second,
	Anum_advice_bloat_ratio,
	Anum_advice_pending_pages,
	Anum_advice_reason,
	Anum_advice_command,
	Anum_advice_remains_ms_per_second,
	Anum_advice_gain_per_price
};

#define RANKING_MIN_HEAT	0.01	/* blocks wanted a second: below it
									 * nothing moves in */
#define LEAST_WORTH		1e-9	/* of a resident */
#define BYTES_PER_GB	(1024.0 * 1024 * 1024)
#define BLOAT_MEASURED	50		/* so many of the most promising */
#define RUNS_OF_RANKING	32		/* of a sample */
#define SECONDS_OF_SAMPLES	2
#define SIZE_WITHOUT_SAMPLE	(1024 * 1024)

/* The greatest key first. */
static int
compare_keys(const void *a, const void *b)
{
	const Candidate *x = a;
	const Candidate *y = b;

	if (x->key != y->key)
		return x->key > y->key ? -1 : 1;
	return (x->heat > y->heat) - (x->heat < y->heat);
}

/* Return whether a candidate is in the target already, or can move there; this may plan its move. */
static bool
try_place(Candidate *candidate, CandidateCheck try_move, void *arg)
{
	if (candidate->is_resident || try_move == NULL)
		return true;
	return try_move(candidate, arg);
}

/* Choose a candidate, if it is worth it and fits into the rest of the budget. */
static void
try_candidate(Candidate *candidate, int64 *budget, double *worth,
			  CandidateCheck try_move, void *arg)
{
	candidate->is_chosen = candidate->is_fixed;
	if (candidate->worth <= 0 || candidate->size > *budget)
		return;
	if (!try_place(candidate, try_move, arg))
		return;
	candidate->is_chosen = true;
	*worth += candidate->worth;
	*budget -= candidate->size;
}

/* Fill the budget in this order, after a candidate (or NULL).  Returns the worth of the chosen. */
static double
fill(Candidate *candidates, int n, Candidate *first, int64 budget,
	 CandidateCheck try_move, void *arg)
{
	double		result = 0;

	if (first != NULL)
		try_candidate(first, &budget, &result, try_move, arg);
	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		if (c != first)
			try_candidate(c, &budget, &result, try_move, arg);
	}
	return result;
}

/* Return the weight of a candidate: a resident counts more, so that nothing goes to and fro. */
static double
worth_of(const Candidate *candidate)
{
	if (candidate->is_fixed || candidate->value < 0)
		return 0;
	if (!candidate->is_resident)
		return candidate->value;
	return candidate->value * RANKING_STAYS + LEAST_WORTH;
}

/*
 * Choose which candidates are to be in the target, of which they may take up budget.
 * Of relations elsewhere only such as can move, which is asked if it matters (NULL: all).
 * Brings them into another order.
 */
void
ranking_choose(Candidate *candidates, int n, int64 budget, CandidateCheck try_move, void *arg)
{
	Candidate  *best = NULL;
	double		by_density;

	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		if (c->is_fixed)
			budget -= c->size;
		c->worth = worth_of(c);
		c->key = c->worth / Max(c->size, 1);
	}
	qsort(candidates, n, sizeof(Candidate), compare_keys);
	by_density = fill(candidates, n, NULL, budget, try_move, arg);
	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		if (c->size > budget || (best != NULL && c->worth <= best->worth))
			continue;
		if (try_place(c, try_move, arg))
			best = c;
	}
	/* the most valuable one first, unless that is worth no more in all */
	if (best != NULL)
	{
		double		by_worth = fill(candidates, n, best, budget, try_move, arg);

		if (by_worth <= by_density)
			(void) fill(candidates, n, NULL, budget, try_move, arg);
	}
}

/* From heat and places to candidates for a target */

/* Return where a resident of the target goes if it leaves it, 0 if nowhere. */
static Oid
home_of(const RelationFacts *facts, Oid target)
{
	if (facts->heap_tablespace != target)
		return facts->heap_tablespace;
	if (MyDatabaseTableSpace != target)
		return MyDatabaseTableSpace;
	return target != DEFAULTTABLESPACE_OID ? DEFAULTTABLESPACE_OID : InvalidOid;
}

/* Measure the bloat where it matters: a bloated index is rebuilt, and is smaller then. */
static void
candidates_measure_bloat(Candidate *candidates, int n, double threshold)
{
	qsort(candidates, n, sizeof(Candidate), compare_keys);
	for (Candidate *c = candidates; c < candidates + Min(n, BLOAT_MEASURED) && c->key > 0; c++)
	{
		double		bloat;

		CHECK_FOR_INTERRUPTS();
		if (!bloat_estimate(c->heat->facts.relid, &bloat))
			continue;
		c->bloat = bloat;
		c->rebuilds |= bloat > threshold;
		if (c->rebuilds)
			c->size = ceil(c->size * (1 - bloat));
	}
}

/* Return whether the bytes stored of a candidate are asked of a sample.  A rebuild has other contents. */
static bool
wants_sample(const Candidate *candidate)
{
	return !candidate->rebuilds && candidate->size >= SIZE_WITHOUT_SAMPLE;
}

/*
 * Sample the candidates that are in the target, or the candidates that are not, until a moment; return how
 * many were.  *shares becomes the sum of their shares.
 */
static int
sample_stored(Candidate *candidates, int n, bool residents, int zstd_level, double until,
			  double *shares)
{
	int			nsampled = 0;

	*shares = 0;
	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		CompressedShare zstd;
		CompressedShare lz4;

		CHECK_FOR_INTERRUPTS();
		if (clock_seconds() > until)
			break;
		if (c->is_resident != residents || !wants_sample(c))
			continue;
		c->is_sampled = compressed_size_sample(c->heat->facts.relid, RUNS_OF_RANKING, zstd_level,
											   &zstd, &lz4);
		if (c->is_sampled)
			c->is_sampled = !isnan(zstd.at_most);
		if (!c->is_sampled)
			continue;
		c->size = Max(ceil(c->size * zstd.at_most), 1);
		*shares += zstd.at_most;
		nsampled++;
	}
	return nsampled;
}

/*
 * Count what the target stores of candidates, at most, if it compresses: the budget is of that.  Candidates
 * with the greatest value per byte are sampled first, and residents before all others: if the
 * time did not suffice, they would leave, and come again with the next plan.  So the rest of them
 * count as much as the mean, and the rest of the others in full.
 */
static void
candidates_measure_stored(Candidate *candidates, int n, Oid target)
{
	double		until = clock_seconds() + SECONDS_OF_SAMPLES;
	double		shares;
	int			nsampled;
	FileCompression compression;

	if (!OidIsValid(target))
		return;
	file_compression(target, &compression);
	if (compression.zstd_level == 0 || !compression.steady)
		return;
	for (Candidate *c = candidates; c < candidates + n; c++)
		c->key = c->value / Max(c->size, 1);
	qsort(candidates, n, sizeof(Candidate), compare_keys);

	nsampled = sample_stored(candidates, n, true, compression.zstd_level, until, &shares);
	if (nsampled > 0)
	{
		for (Candidate *c = candidates; c < candidates + n; c++)
		{
			if (c->is_resident && wants_sample(c) && !c->is_sampled)
				c->size = Max(ceil(c->size * shares / nsampled), 1);
		}
	}
	(void) sample_stored(candidates, n, false, compression.zstd_level, until, &shares);
}

/* Return whether a relation is among these.  Relations of extensions are theirs to move. */
bool
scope_includes(const TierScope *scope, const Heat *heat)
{
	const RelationFacts *facts = &heat->facts;
	bool		of_place;
	bool		of_kind = scope->tables;

	if (facts->tablespace == scope->to)
		of_place = scope->residents;
	else
		of_place = !OidIsValid(scope->from) || facts->tablespace == scope->from;
	if (facts->relkind == RELKIND_INDEX)
		of_kind = scope->indexes && facts->valid && facts->live;
	return of_place && !heat->of_extension && of_kind &&
		(!OidIsValid(scope->schema) || facts->schema_oid == scope->schema) &&
		(scope->within == NIL || list_member_oid(scope->within, facts->heap_oid));
}

/* Return whether reads of a relation are of value: not of an index that is written only. */
bool
ranking_counts(const Heat *heat)
{
	const RelationFacts *facts = &heat->facts;

	return facts->relkind != RELKIND_INDEX || facts->unique || facts->exclusion ||
		heat->is_searched;
}

/*
 * Return the candidates for the target of a scope, palloc'd, and their number: its
 * residents, and relations that would gain there, moved with these settings.  Residents leave
 * for scope->from or, if it is 0, an index for its table's tablespace, a table for
 * the database's.  Locks: AccessShareLock, without waiting, on each index whose
 * bloat is measured, for as long as this takes.
 */
Candidate *
candidates_collect(const HeatTable *heats, const List *places, const TierScope *scope,
				   const MoveSettings *settings, int *n)
{
	Candidate  *candidates = palloc_array(Candidate, Max(heats->n, 1));
	const Place *there = places_find(places, scope->to);
	bool		loses_tables = tablespace_loses_tables(scope->to) != NULL;

	*n = 0;
	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];
		const RelationFacts *facts = &heat->facts;
		Candidate	candidate = {.heat = heat,.to = scope->to,.bloat = get_float8_nan()};
		const Place *elsewhere;
		bool		is_table = !relkind_is_index(facts->relkind);
		bool		may_copy;
		bool		may_rebuild;

		CHECK_FOR_INTERRUPTS();
		if (!scope_includes(scope, heat))
			continue;
		candidate.is_resident = facts->tablespace == scope->to;
		/* no index can make a table again */
		if (is_table && loses_tables && !candidate.is_resident)
			continue;
		if (candidate.is_resident)
			candidate.to = OidIsValid(scope->from) ? scope->from : home_of(facts, scope->to);
		elsewhere = places_find(places, candidate.is_resident ? candidate.to : facts->tablespace);
		if (there != NULL && elsewhere != NULL)
		{
			double		difference = place_difference(elsewhere, there, heat->rates.overlapped,
													  &candidate.basis);

			if (heat->rates.wanted_per_second >= RANKING_MIN_HEAT && ranking_counts(heat))
				candidate.value = heat->rates.wanted_per_second * difference;
		}
		if (!candidate.is_resident && candidate.value <= 0)
			continue;
		movable_methods(facts->relid, &may_copy, &may_rebuild);
		candidate.is_fixed = (candidate.is_resident && !OidIsValid(candidate.to)) ||
			!(may_copy || may_rebuild) ||
			(is_table && candidate.is_resident && tablespace_loses_tables(candidate.to) != NULL);
		candidate.rebuilds = !may_copy;
		candidate.size = relation_main_size(facts);
		if (may_rebuild && !candidate.is_resident)
			candidate.key = candidate.value / Max(candidate.size, 1);
		if (candidate.size > 0 && (candidate.is_resident || !candidate.is_fixed))
			candidates[(*n)++] = candidate;
	}
	candidates_measure_bloat(candidates, *n, settings->rebuild_threshold);
	candidates_measure_stored(candidates, *n, scope->to);
	return candidates;
}

/* recommend_moves() */

/* A call of it */
typedef struct Advice
{
	ReturnSetInfo *rsinfo;
	const Place *target;
	int64		budget;
	double		price_per_gb;	/* NaN = not known */
	double		remains;		/* ms a second of waiting, after the last row */
	int			rank;			/* of the last row */
	List	   *worths;			/* for report_duplicate_of() */
} Advice;

/* Return the reason of a row: why it leaves, the evidence, and warnings. */
static char *
reason_text(Advice *advice, const Candidate *candidate, const char *name, int64 pending)
{
	static const char *const basis[] = {
		[PLACE_SAME_DEVICE] = "both tablespaces are on the same device, where reads take as long",
		[PLACE_PROBED] = "read times as probed",
		[PLACE_COSTS] = "read times assumed from random_page_cost",
		[PLACE_HEAT_ALONE] = "read times not known, as if 1 ms longer",
	};
	const Heat *heat = candidate->heat;
	bool		leaves = candidate->is_resident;
	Oid			duplicate = report_duplicate_of(heat->facts.relid, &advice->worths,
												CurrentMemoryContext);
	const char *lost_on_reboot = NULL;
	StringInfoData buf;

	if (!leaves && OidIsValid(candidate->to))
		lost_on_reboot = tablespace_lost_on_reboot(candidate->to);
	initStringInfo(&buf);
	if (leaves && candidate->value < 0)
		appendStringInfo(&buf, "reads are faster in %s; ", tablespace_name(candidate->to));
	else if (leaves)
		appendStringInfo(&buf, "does not fit into the budget of %lld bytes; ", (long long) advice->budget);
	appendStringInfo(&buf, "%.3f block reads per second, %.3f of them for index scans and changes (",
					 heat->rates.reads_per_second, heat->rates.wanted_per_second);
	if (heat->rates.samples == 0)
		appendStringInfoString(&buf, "cumulative statistics, no samples");
	else
		appendStringInfo(&buf, "%d %s over %s", heat->rates.samples, heat->rates.samples == 1 ? "sample" : "samples",
						 notices_duration(heat->rates.seconds));
	appendStringInfo(&buf, "), %s", basis[candidate->basis]);
	if (candidate->basis == PLACE_PROBED && heat->rates.overlapped >= 0.01)
		appendStringInfo(&buf, "; %.0f%% of the rows by bitmap scans, whose reads overlap",
						 100 * heat->rates.overlapped);
	if (OidIsValid(duplicate))
		appendStringInfo(&buf, "; warning: duplicate of %s",
						 DatumGetCString(DirectFunctionCall1(regclassout,
															 ObjectIdGetDatum(duplicate))));
	if (lost_on_reboot != NULL)
		appendStringInfo(&buf, "; warning: %s is on %s and does not survive a reboot",
						 NameStr(advice->target->name), lost_on_reboot);
	if (heat->rates.seconds < SECS_PER_HOUR)
		appendStringInfo(&buf, "; warning: the statistics cover only %s", notices_duration(heat->rates.seconds));
	/* last, because a command ends with a semicolon */
	if (pending >= PENDING_LONG && !leaves)
		appendStringInfo(&buf, "; every search reads the %lld pages of its pending list: flush it first: %s",
						 (long long) pending, printed_command("flush_pending", name));
	return buf.data;
}

static void
put_advice(Advice *advice, const Candidate *candidate)
{
	const Heat *heat = candidate->heat;
	const RelationFacts *facts = &heat->facts;
	bool		is_index = facts->relkind == RELKIND_INDEX;
	char	   *name = quote_qualified_identifier(NameStr(facts->schema_name),
												  NameStr(facts->relname));
	const char *method = candidate->rebuilds ? "rebuild" : "copy";
	const char *to = NULL;
	PendingList list;
	int64		pending = -1;
	Row			row;

	if (facts->relam == GIN_AM_OID)
	{
		if (report_pending_list(facts->relid, &list))
			pending = list.pages;
	}
	row_clear(&row);
	advice->rank++;
	row_set(&row, Anum_advice_rank, Int32GetDatum(advice->rank));
	if (is_index)
		row_set(&row, Anum_advice_index, ObjectIdGetDatum(facts->relid));
	row_set(&row, Anum_advice_table_name, ObjectIdGetDatum(facts->heap_oid));
	row_text(&row, Anum_advice_method, method);
	row_tablespace(&row, Anum_advice_from_tablespace, facts->tablespace);
	row_tablespace(&row, Anum_advice_to_tablespace, candidate->to);
	row_int64(&row, Anum_advice_size, relation_main_size(facts));
	row_int64(&row, Anum_advice_size_after, candidate->size);
	row_set(&row, Anum_advice_reads_per_second, Float8GetDatum(heat->rates.reads_per_second));
	row_set(&row, Anum_advice_gain_ms_per_second, Float8GetDatum(candidate->key));
	if (!isnan(candidate->bloat))
		row_set(&row, Anum_advice_bloat_ratio, Float8GetDatum(candidate->bloat));
	row_int64(&row, Anum_advice_pending_pages, pending);
	row_text(&row, Anum_advice_reason, reason_text(advice, candidate, name, pending));
	if (OidIsValid(candidate->to))
		to = tablespace_name(candidate->to);
	if (to != NULL && is_index)
		row_text(&row, Anum_advice_command,
				 printed_command("move_indexes", name, to, method));
	else if (to != NULL)
		row_text(&row, Anum_advice_command, printed_command("move_table", name, to));
	advice->remains -= candidate->key;
	row_set(&row, Anum_advice_remains_ms_per_second, Float8GetDatum(Max(advice->remains, 0)));
	if (advice->price_per_gb > 0)
	{
		double		price = candidate->size / BYTES_PER_GB * advice->price_per_gb;

		row_set(&row, Anum_advice_gain_per_price, Float8GetDatum(candidate->key / price));
	}
	tuplestore_putvalues(advice->rsinfo->setResult, advice->rsinfo->setDesc, row.values, row.nulls);
}

/* Say why there is no row. */
static void
say_nothing_gained(const Advice *advice, const List *places)
{
	const char *target = NameStr(advice->target->name);
	bool		any_slower = false;
	bool		any_elsewhere = false;
	PlaceBasis	basis;

	foreach_ptr(const Place, place, places)
	{
		any_slower |= place_difference(place, advice->target, 0, &basis) > 0;
		any_elsewhere |= basis != PLACE_SAME_DEVICE;
	}
	if (!OidIsValid(advice->target->oid))
		ereport(NOTICE,
				(errmsg("nothing to gain from a disk whose reads take %g ms", advice->target->read_ms),
				 errdetail("No relation in a slower tablespace is wanted more than %g blocks a second by index scans and changes, and fits into %lld bytes.",
						   RANKING_MIN_HEAT, (long long) advice->budget)));
	else if (!advice->target->is_there)
		ereport(NOTICE,
				(errmsg("nothing to gain: the directory of tablespace \"%s\" is missing", target)));
	else if (advice->budget == 0 && advice->target->facts.total_bytes <= 0)
		ereport(NOTICE,
				(errmsg("nothing to gain without a budget: the file system of \"%s\" does not say how full it is", target)));
	else if (!any_elsewhere)
		ereport(NOTICE,
				(errmsg("nothing to gain: all tablespaces are on the same device as \"%s\"", target)));
	else if (!any_slower)
		ereport(NOTICE,
				(errmsg("nothing to gain: no tablespace on another device is known to be slower than \"%s\"", target),
				 errhint("Set random_page_cost of it and of the others, or run for it and for the others: %s",
						 printed_command("probe", target))));
	else
		ereport(NOTICE,
				(errmsg("nothing to gain: no relation in a slower tablespace is worth a place in \"%s\"", target),
				 errdetail("None is wanted more than %g blocks a second by index scans and changes, fits into %lld bytes, and gains more than the relations there.",
						   RANKING_MIN_HEAT, (long long) advice->budget)));
}

/* Return the ms a second that index scans and changes wait for blocks now. */
static double
waiting_now(const HeatTable *heats, const List *places, const Place *target)
{
	double		result = 0;

	for (int i = 0; i < heats->n; i++)
	{
		const Heat *heat = &heats->heats[i];
		const Place *place = places_find(places, heat->facts.tablespace);

		if (place != NULL && !heat->of_extension)
			result += heat->rates.wanted_per_second *
				place_read_ms(place, target, heat->rates.overlapped);
	}
	return result;
}

/* Return an argument that must be a positive number; NaN for NULL. */
static double
positive_argument(FunctionCallInfo fcinfo, int number, const char *name)
{
	double		value;

	if (PG_ARGISNULL(number))
		return get_float8_nan();
	value = PG_GETARG_FLOAT8(number);
	if (!(value > 0) || isinf(value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be greater than zero", name)));
	return value;
}

/* Return the disk that is not there, and is to be judged in place of a tablespace. */
static Place *
imagined_target(FunctionCallInfo fcinfo, double read_ms)
{
	if (!PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("tablespace and random_read_ms cannot be used together")));
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("budget must not be null"),
				 errhint("With random_read_ms, budget is the size of the disk.")));
	return place_imagine(read_ms);
}

/*
 * recommend_moves(tablespace name, budget bigint, half_life interval, random_read_ms float8,
 *		price_per_gb float8) RETURNS SETOF record
 *
 * budget: bytes, with the residents; NULL: their size, and the free
 * space but for index_mover.min_free_space.  With random_read_ms, for a disk that is not
 * there, and has no name.  Only reads, takes only the locks of
 * candidates_collect(), and works on a hot standby.  EXECUTE: pg_monitor.  ERRORs:
 * as plan_tablespace(); 22004, 22023 an argument.
 */
Datum
index_mover_recommend_moves(PG_FUNCTION_ARGS)
{
	Advice		advice = {(ReturnSetInfo *) fcinfo->resultinfo};
	TierScope	scope = {.tables = true,.indexes = true,.residents = true};
	double		read_ms = positive_argument(fcinfo, 3, "random_read_ms");
	HeatTable  *heats;
	List	   *places;
	Candidate  *candidates;
	Place	   *imagined = NULL;
	int			n;
	MoveSettings settings;
	const Interval *half_life;

	half_life = heat_half_life_argument(fcinfo, 2);
	advice.price_per_gb = positive_argument(fcinfo, 4, "price_per_gb");
	if (!isnan(read_ms))
		imagined = imagined_target(fcinfo, read_ms);
	else
	{
		reject_null(fcinfo, 0, "tablespace");
		scope.to = plan_tablespace(PG_GETARG_NAME(0), false);
	}
	if (!PG_ARGISNULL(1) && PG_GETARG_INT64(1) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("budget must not be negative")));
	places = places_read();
	if (imagined != NULL)
		places = lappend(places, imagined);
	advice.target = places_find(places, scope.to);
	if (advice.target == NULL)	/* dropped meanwhile */
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tablespace \"%s\" does not exist", NameStr(*PG_GETARG_NAME(0)))));
	InitMaterializedSRF(fcinfo, 0);
	settings_capture(&settings, NULL, false);
	heats = heat_read(work_mem);
	heat_weigh(heats, half_life);
	candidates = candidates_collect(heats, places, &scope, &settings, &n);
	advice.remains = waiting_now(heats, places, advice.target);
	advice.budget = !PG_ARGISNULL(1) ? PG_GETARG_INT64(1) : advice.target->facts.free_bytes -
		settings_reserved(&settings.min_free_space, advice.target->facts.total_bytes);
	for (Candidate *c = candidates; c < candidates + n; c++)
	{
		if (PG_ARGISNULL(1) && c->is_resident)
			advice.budget += c->size;
	}
	advice.budget = advice.target->is_there || imagined != NULL ? Max(advice.budget, 0) : 0;
	ranking_choose(candidates, n, advice.budget, NULL, NULL);

	/* the gains of the moves; first the relations that have to leave */
	for (Candidate *c = candidates; c < candidates + n; c++)
		c->key = c->is_resident ? 0 - c->value : c->value;
	qsort(candidates, n, sizeof(Candidate), compare_keys);
	for (int leaves = 1; leaves >= 0; leaves--)
	{
		for (const Candidate *c = candidates; c < candidates + n; c++)
		{
			if (CANDIDATE_MOVES(c) && c->is_resident == leaves)
				put_advice(&advice, c);
		}
	}
	if (advice.rank == 0)
		say_nothing_gained(&advice, places);
	return (Datum) 0;
}
