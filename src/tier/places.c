/*-------------------------------------------------------------------------
 *
 * places.c
 *	  The tablespaces: how long a read takes there, and how much space there is.
 *
 * A read takes as long as the median of the probes says that tablespace_probe() has kept
 * of the last 90 days, or else as random_page_cost, of which a unit stands for 0.1 ms.  Bitmap
 * scans read several blocks of the table at a time, so each takes less where the device has a
 * queue.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "catalog/pg_tablespace.h"
#include "utils/spccache.h"
#include "utils/timestamp.h"

#include "own_tables.h"
#include "tier/tier_private.h"

#define PROBE_DAYS			90	/* so long a probe counts */
#define MS_OF_COST			0.1 /* that random_page_cost = 1 stands for */
#define DIFFERENCE_UNKNOWN	1.0 /* ms; so that heat alone decides */

/* A row of the table of probes */
typedef struct ProbeRow
{
	TimestampTz at;
	Oid			tablespace;
	double		read_ms;
	double		deep_ms;		/* each of many reads at a time; NaN = not
								 * known */
} ProbeRow;

Place *
places_find(const List *places, Oid tablespace)
{
	foreach_ptr(Place, place, places)
	{
		if (place->oid == tablespace)
			return place;
	}
	return NULL;
}

/* Return the tablespace of this name, NULL if there is none, or it is NULL. */
Place *
places_named(const List *places, const char *name)
{
	foreach_ptr(Place, place, places)
	{
		if (name != NULL && strcmp(NameStr(place->name), name) == 0)
			return place;
	}
	return NULL;
}

static int
compare_numbers(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* Return the median of numbers, of which there is at least one.  Brings them into order. */
static double
median(double *numbers, int n)
{
	Assert(n > 0);
	qsort(numbers, n, sizeof(double), compare_numbers);
	return (numbers[(n - 1) / 2] + numbers[n / 2]) / 2;
}

/*
 * Set how long each of the reads takes that a scan announces: as many at a time as
 * effective_io_concurrency, and no shorter than of a deep queue.
 */
static void
set_overlapped(Place *place, double deep_ms)
{
	int			at_a_time = get_tablespace_io_concurrency(place->oid);

	place->overlapped_ms = Max(place->read_ms / Max(at_a_time, 1), Min(deep_ms, place->read_ms));
}

/* Set the times that the probes of a place that count have measured. */
static void
set_probed(Place *place, const ProbeRow *probes, int n, TimestampTz oldest)
{
	double	   *read_ms = palloc_array(double, n + 1);
	double	   *deep_ms = palloc_array(double, n + 1);
	int			count = 0;
	int			deep_count = 0;

	for (const ProbeRow *probe = probes; probe < probes + n; probe++)
	{
		if (probe->tablespace != place->oid || probe->at <= oldest)
			continue;
		read_ms[count++] = probe->read_ms;
		if (!isnan(probe->deep_ms))
			deep_ms[deep_count++] = probe->deep_ms;
		place->probed_at = Max(place->probed_at, probe->at);
	}
	if (count > 0)
		place->read_ms = place->overlapped_ms = median(read_ms, count);
	if (deep_count > 0)
		set_overlapped(place, median(deep_ms, deep_count));
	pfree(read_ms);
	pfree(deep_ms);
}

/*
 * Return all tablespaces but pg_global, a List of Place, without their probes: these need a
 * lock on a table of ours.
 */
List *
places_unprobed(void)
{
	List	   *result = NIL;

	foreach_ptr(HeapTupleData, row, catalog_all(TableSpaceRelationId))
	{
		Form_pg_tablespace form = (Form_pg_tablespace) GETSTRUCT(row);
		Place	   *place = palloc0_object(Place);

		if (form->oid == GLOBALTABLESPACE_OID)
			continue;
		place->oid = form->oid;
		place->name = form->spcname;
		get_tablespace_page_costs(form->oid, &place->cost, NULL);
		place->is_there = file_system_facts(form->oid, &place->facts);
		result = lappend(result, place);
	}
	return result;
}

/* As places_unprobed(), with their probes. */
List *
places_read(void)
{
	TimestampTz oldest = GetCurrentTimestamp() - PROBE_DAYS * USECS_PER_DAY;
	List	   *result = places_unprobed();
	int			room = 16;
	int			n = 0;
	ProbeRow   *probes = palloc_array(ProbeRow, room);
	ExtensionScan scan;
	const Datum *values = scan.row.values;

	extension_scan_begin(&scan, "probe", 0, NULL);
	while (extension_scan_next(&scan))
	{
		ProbeRow   *probe;

		if (moment_is_ahead(DatumGetTimestampTz(values[0])))
			continue;
		if (n == room)
			probes = repalloc_array(probes, ProbeRow, room *= 2);
		probe = &probes[n++];
		probe->at = DatumGetTimestampTz(values[0]);
		probe->tablespace = DatumGetObjectId(values[1]);
		probe->read_ms = DatumGetFloat8(values[2]);
		probe->deep_ms = NAN;
		if (!scan.row.nulls[3])
			probe->deep_ms = DatumGetFloat8(values[3]);
	}
	foreach_ptr(Place, place, result)
		set_probed(place, probes, n, oldest);
	return result;
}

/* Return the share of a tablespace's file system that is in use, -1 if it does not say. */
double
places_used(const List *places, Oid tablespace)
{
	const Place *place = places_find(places, tablespace);

	if (place == NULL || !place->is_there || place->facts.total_bytes <= 0)
		return -1;
	return 1 - place->facts.free_bytes / (double) place->facts.total_bytes;
}

/* Count bytes as moved, for places_used(): how many leave, and how many are stored. */
void
places_move(List *places, Oid from, Oid to, int64 leaves, int64 arrives)
{
	const Place *source = places_find(places, from);
	const Place *target = places_find(places, to);

	if (source == NULL || target == NULL || source->facts.device == target->facts.device)
		return;
	foreach_ptr(Place, place, places)
	{
		if (place->facts.device == source->facts.device)
			place->facts.free_bytes += leaves;
		else if (place->facts.device == target->facts.device)
			place->facts.free_bytes -= arrives;
	}
}

/*
 * Return how many ms longer a read takes here than in the target, of which this share overlaps
 * others.  On the same device it takes as long, whatever two probes of it have said.
 */
double
place_difference(const Place *here, const Place *target, double overlapped, PlaceBasis *basis)
{
	bool		same = here->oid == target->oid;

	if (here->is_there && target->is_there)
		same = here->facts.device == target->facts.device;
	if (same)
	{
		*basis = PLACE_SAME_DEVICE;
		return 0;
	}
	if (here->probed_at != 0 && target->probed_at != 0)
	{
		*basis = PLACE_PROBED;
		return place_read_ms(here, target, overlapped) - place_read_ms(target, here, overlapped);
	}
	if (here->probed_at == 0 && target->probed_at == 0 && here->cost == target->cost)
	{
		*basis = PLACE_HEAT_ALONE;
		return DIFFERENCE_UNKNOWN;
	}
	*basis = PLACE_COSTS;
	return (here->cost - target->cost) * MS_OF_COST;
}

/* Return how many ms a read takes in a place, as place_difference() counts it. */
double
place_read_ms(const Place *place, const Place *target, double overlapped)
{
	if (place->probed_at != 0 && target->probed_at != 0)
		return place->read_ms * (1 - overlapped) + place->overlapped_ms * overlapped;
	return place->cost * MS_OF_COST;
}

/* Return the place of a disk that is not there, whose reads take so long; palloc'd. */
Place *
place_imagine(double read_ms)
{
	Place	   *place = palloc0_object(Place);

	place->read_ms = place->overlapped_ms = read_ms;
	place->cost = read_ms / MS_OF_COST;
	place->probed_at = GetCurrentTimestamp();
	return place;
}
