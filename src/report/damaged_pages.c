/*-------------------------------------------------------------------------
 *
 * damaged_pages.c
 *	  Measuring pages with damage, in a test build.
 *
 * Each page is measured index_mover.test_damages times with damage, which is
 * random from index_mover.test_seed, before it is measured as it is.  The copy
 * of the page is damaged, and neither buffers nor files.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef INDEX_MOVER_TEST

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/bufpage.h"

#include "report/report_private.h"
#include "test_points.h"

static int
below(pg_prng_state *random, int n)
{
	return (int) (pg_prng_uint32(random) % (uint32) n);
}

/* Damage a page, most often not so that its header alone would be refused. */
static void
damage(char *page, pg_prng_state *random)
{
	PageHeader	ph = (PageHeader) page;
	int			lower = Min(Max(ph->pd_lower, SizeOfPageHeaderData + sizeof(ItemIdData)), BLCKSZ - 16);
	int			upper = Min(ph->pd_upper, BLCKSZ - 24);
	const struct
	{
		int			from;
		int			bytes;
	}			areas[] = {
		{SizeOfPageHeaderData, lower - SizeOfPageHeaderData},	/* line pointers */
		{upper, BLCKSZ - 23 - upper},	/* tuples */
		{BLCKSZ - 16, 13},		/* the special space */
		{SizeOfPageHeaderData, BLCKSZ - SizeOfPageHeaderData - 4}
	};
	int			way = below(random, 8);
	int			area = way % lengthof(areas);

	if (way == 0)
		ph->pd_lower = below(random, 4) == 0 ? pg_prng_uint32(random) : below(random, BLCKSZ - 16);
	if (way == 1)
		ph->pd_upper = below(random, 4) == 0 ? pg_prng_uint32(random) : ph->pd_lower + below(random, 64);
	if (way == 2)
		ph->pd_special = below(random, 4) == 0 ? pg_prng_uint32(random) : BLCKSZ - 8 * below(random, 5);
	for (int times = below(random, 12); times >= 0; times--)
	{
		int			at = areas[area].from + below(random, areas[area].bytes) / 4 * 4;
		uint32		bits;

		memcpy(&bits, page + at, sizeof(bits));
		bits = below(random, 2) == 0 ? pg_prng_uint32(random) : bits ^ (1U << below(random, 32));
		memcpy(page + at, &bits, sizeof(bits));
	}
	if (way == 3)				/* of a torn write */
	{
		int			from = 512 * (1 + below(random, BLCKSZ / 512 - 1));

		memset(page + from, 0, BLCKSZ - from);
	}
}

/* Measure a page with damage: a fault or plausible numbers must be returned. */
void
test_measure_damaged(const MeasureContext *mc, char *page, BlockNumber blkno)
{
	PGIOAlignedBlock good;
	pg_prng_state random;
	int			refused = 0;

	if (test_mutation("overrun"))
		elog(LOG, "behind the page: %d", ((volatile char *) page)[BLCKSZ + 16383]);
	if (test_mutation("underrun"))
		elog(LOG, "before the page: %d", ((volatile char *) page)[-16383]);
	memcpy(good.data, page, BLCKSZ);
	pg_prng_seed(&random, ((uint64) test_seed << 32) + blkno);
	for (int i = 0; i < test_damages; i++)
	{
		PageMeasure pm;

		CHECK_FOR_INTERRUPTS();
		damage(page, &random);
		if (page_measure(mc, (Page) page, blkno, &pm) != NULL)
			refused++;
		else if (!(pm.kind < PAGE_KINDS &&
				   pm.avail >= 0 && pm.avail <= BLCKSZ &&
				   pm.used >= 0 && pm.used <= pm.avail &&
				   pm.packed >= 0 && pm.packed <= pm.used &&
				   pm.items >= 0 && pm.items <= 1e6 &&
				   pm.dead >= 0 && pm.dead <= BLCKSZ &&
				   pm.tuples >= 0 && pm.tuples <= 1e6 &&
				   pm.heavy >= 0 && pm.heavy <= BLCKSZ && pm.squares >= 0 && pm.squares <= 1e9))
			elog(ERROR, "damage %d of block %u, with seed %d, is measured as nonsense: kind %d, %g avail, %g used, %g packed, %g items, %g dead, %g tuples, %g heavy, %g squares",
				 i, blkno, test_seed, pm.kind, pm.avail, pm.used, pm.packed, pm.items, pm.dead, pm.tuples, pm.heavy, pm.squares);
		memcpy(page, good.data, BLCKSZ);
	}
	if (test_damages > 0)
		elog(DEBUG1, "damaged pages: %d refused, %d measured", refused, test_damages - refused);
}

#endif							/* INDEX_MOVER_TEST */
