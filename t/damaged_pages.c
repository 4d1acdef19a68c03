/*-------------------------------------------------------------------------
 *
 * damaged_pages.c
 *	  Measuring pages with damage, in a test build.
 *
 * A part of the library, but of that of a test build only.  Each page is measured
 * index_mover.test_damages times with damage, which is random from
 * index_mover.test_seed, before it is measured as it is.  The copy of the page is
 * damaged, and neither buffers nor files.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/bufpage.h"

#include "report/report_private.h"
#include "test_points.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/*
 * Return a buffer in place of one for a page.  With AddressSanitizer all that a
 * line pointer can address around it is out of bounds.
 */
char *
test_guarded(char *page)
{
#ifdef __SANITIZE_ADDRESS__
	static PGIOAlignedBlock guarded[9];

	ASAN_POISON_MEMORY_REGION(guarded, 4 * BLCKSZ);
	ASAN_POISON_MEMORY_REGION(guarded + 5, 4 * BLCKSZ);
	return guarded[4].data;
#else
	return page;
#endif
}

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
	LocationIndex *const fields[] = {&ph->pd_lower, &ph->pd_upper, &ph->pd_special};
	int			lower = Min(Max(ph->pd_lower, SizeOfPageHeaderData + 4), BLCKSZ - 16);
	int			upper = Min(ph->pd_upper, BLCKSZ - 24);

	/* line pointers, tuples, the special space, anything */
	const int	from[] = {SizeOfPageHeaderData, upper, BLCKSZ - 16, SizeOfPageHeaderData};
	const int	to[] = {lower, BLCKSZ - 20, BLCKSZ, BLCKSZ};
	int			way = below(random, 8);
	int			area = way % lengthof(from);

	if (way < lengthof(fields))
		*fields[way] = below(random, 4) == 0 ? pg_prng_uint32(random) : below(random, BLCKSZ / 8) * 8;
	for (int times = below(random, 12); times >= 0; times--)
	{
		int			at = from[area] + below(random, (to[area] - from[area]) / 4) * 4;
		uint32		bits;

		memcpy(&bits, page + at, sizeof(bits));
		bits = below(random, 2) == 0 ? pg_prng_uint32(random) : bits ^ (1U << below(random, 32));
		memcpy(page + at, &bits, sizeof(bits));
	}
	if (way == 3)				/* of a torn write */
	{
		int			written = 512 * (1 + below(random, BLCKSZ / 512 - 1));

		memset(page + written, 0, BLCKSZ - written);
	}
}

/* Measure a page with damage: a fault or plausible numbers must be returned. */
void
test_measure_damaged(const IndexFacts *facts, char *page, BlockNumber blkno)
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
		if (page_measure(facts, (Page) page, &pm) != NULL)
			refused++;
		else if (!(pm.kind < PAGE_KINDS && pm.avail <= BLCKSZ && pm.used <= pm.avail &&
				   pm.packed >= 0 && pm.packed <= pm.used &&
				   pm.tuples >= 0 && pm.rows >= 0 && Max(pm.rows, pm.tuples) <= 1e6))
			elog(ERROR, "damage %d of block %u, with seed %d, is measured as nonsense: kind %d, "
				 "%g avail, %g used, %g packed, %g rows, %g tuples",
				 i, blkno, test_seed, pm.kind, pm.avail, pm.used, pm.packed, pm.rows, pm.tuples);
		memcpy(page, good.data, BLCKSZ);
	}
	if (test_damages > 0)
		elog(DEBUG1, "damaged pages: %d refused, %d measured", refused, test_damages - refused);
}
