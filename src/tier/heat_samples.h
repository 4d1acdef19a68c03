/*-------------------------------------------------------------------------
 *
 * heat_samples.h
 *	  The samples of heat, relation by relation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_HEAT_SAMPLES_H
#define IM_HEAT_SAMPLES_H

#include "storage/itemptr.h"

#include "tier/tier_private.h"

/* A row of index_mover.sample, or the counters of now */
typedef struct HeatSample
{
	TimestampTz taken_at;
	int64		counters[HEAT_COUNTERS];
	ItemPointerData tid;		/* of the row */
} HeatSample;

typedef struct SampleReader SampleReader;

extern SampleReader *samples_begin(const Heat *heats, int n, TimestampTz now, bool all,
								   int sort_memory);
extern int	samples_relations(const SampleReader *reader);
extern HeatSample *samples_read(SampleReader *reader, int number, int *n);
extern void samples_end(SampleReader *reader);

#endif							/* IM_HEAT_SAMPLES_H */
