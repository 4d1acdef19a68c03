/*-------------------------------------------------------------------------
 *
 * tablespace_probe.h
 *	  How fast the storage of a tablespace is.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TABLESPACE_PROBE_H
#define IM_TABLESPACE_PROBE_H

#include "datatype/timestamp.h"

/* NaN = could not be measured */
typedef struct ProbeResult
{
	double		random_read_ms;
	double		random_read_iops;	/* one read after the other */
	double		random_read_iops_deep;	/* queue_depth at a time */
	double		sequential_read_mb_s;
	double		sync_write_ms;	/* one block, written and synced */
	bool		direct_io;		/* false: the page cache may have helped */
} ProbeResult;

/*
 * Measure for about that many seconds.  Writes a temporary file into the
 * tablespace, at most 256 MB and a tenth of free_bytes, which is gone when
 * this returns, fails or is cancelled.  ERROR 53100 where there is no room.
 */
extern void tablespace_probe_run(Oid tablespace, double seconds, int queue_depth,
								 int64 free_bytes, ProbeResult *result);

extern double suggested_random_page_cost(const ProbeResult *result);
extern int	suggested_io_concurrency(const ProbeResult *result, int queue_depth);

/*
 * Remember a result for recommend_moves(), where the transaction may write.
 */
extern void tablespace_probe_record(Oid tablespace, const ProbeResult *result);

#endif							/* IM_TABLESPACE_PROBE_H */
