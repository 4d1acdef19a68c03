/*-------------------------------------------------------------------------
 *
 * tablespace_probe.c
 *	  The speed of a tablespace's storage.
 *
 * The probe reads and writes a file of its own, past the page cache with
 * O_DIRECT if the file system has it.  The depth test cannot use O_DIRECT,
 * because PostgreSQL keeps many reads in flight by announcing them
 * (posix_fadvise), which works through the page cache.  It reads each block
 * once, of a file that was never in the cache, so the cache does not help.
 *
 * The file is unlinked as soon as it is open, so no end (error, cancel, kill
 * -9, crash) leaves it behind.  Before that it has a name that the server
 * removes at start.  fd.c closes the descriptors at the end of the
 * transaction at the latest.
 *
 * Space: at most PROBE_MAX_BYTES and a tenth of the free space.  Time is
 * divided among the phases; only a slow single call can make it longer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/file_utils.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/fd.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "file_system.h"
#include "own_tables.h"
#include "report/report_private.h"

#define PROBE_MAX_BYTES		(INT64CONST(256) * 1024 * 1024)
#define PROBE_MIN_BYTES		(INT64CONST(4) * 1024 * 1024)
#define PROBE_CHUNK			(1024 * 1024)

typedef struct Probe
{
	char		path[MAXPGPATH];
	int			fd;				/* O_DIRECT, or the same as buffered_fd */
	int			buffered_fd;	/* through the page cache */
	bool		direct;
	int64		size;			/* bytes written */
	char	   *chunk;			/* aligned, PROBE_CHUNK bytes */
	uint32	   *order;			/* blocks of the file in random order */
	uint32		nblocks;
	uint32		next;			/* of order, not read yet */
	uint32		ahead;			/* of order, not announced yet */
	uint32		queue_depth;
	uint32		done;			/* by seconds_for_each() */
} Probe;

static double
now_seconds(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_DOUBLE(now);
}

/* Create the file, open it twice, and unlink it. */
static void
open_file(Probe *probe, Oid tablespace)
{
	char		directory[MAXPGPATH];
	int			flags = O_RDWR | O_CREAT | O_EXCL | PG_BINARY;

	TempTablespacePath(directory, tablespace);
	if (MakePGDirectory(directory) < 0 && errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_write(),
				 errmsg("could not create directory \"%s\": %m", directory)));
	snprintf(probe->path, sizeof(probe->path), "%s/%s.index_mover.%d",
			 directory, PG_TEMP_FILE_PREFIX, MyProcPid);
	(void) unlink(probe->path); /* left by a process with the same pid */

	probe->buffered_fd = OpenTransientFile(probe->path, flags);
	if (probe->buffered_fd < 0)
		ereport(ERROR,
				(errcode_for_file_write(),
				 errmsg("could not create file \"%s\": %m", probe->path)));
	probe->direct = false;
	probe->fd = probe->buffered_fd;
	if (PG_O_DIRECT != 0)
	{
		int			fd = OpenTransientFile(probe->path, O_RDWR | PG_BINARY | PG_O_DIRECT);

		/* tmpfs and others refuse it */
		if (fd >= 0)
		{
			probe->fd = fd;
			probe->direct = true;
		}
	}
	if (unlink(probe->path) < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", probe->path)));
}

static void
sync_file(const Probe *probe)
{
	/* not pg_fsync(): the disk is measured even if "fsync" is off */
	if (fdatasync(probe->fd) != 0)
		ereport(ERROR,
				(errcode_for_file_write(),
				 errmsg("could not fsync file \"%s\": %m", probe->path)));
}

static void
write_at(const Probe *probe, Size len, int64 offset)
{
	CHECK_FOR_INTERRUPTS();
	errno = 0;
	if (pg_pwrite(probe->fd, probe->chunk, len, offset) != len)
	{
		if (errno == 0)
			errno = ENOSPC;
		ereport(ERROR,
				(errcode_for_file_write(),
				 errmsg("could not write file \"%s\": %m", probe->path)));
	}
}

static void
read_at(const Probe *probe, int fd, Size len, int64 offset)
{
	CHECK_FOR_INTERRUPTS();
	errno = 0;
	if (pg_pread(fd, probe->chunk, len, offset) != len)
	{
		if (errno == 0)
			errno = EIO;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", probe->path)));
	}
}

/* Write the file until it is large enough or the time is over. */
static void
fill_file(Probe *probe, int64 max_bytes, double seconds)
{
	double		end = now_seconds() + seconds;

	/* contents that no storage can compress or deduplicate */
	for (Size i = 0; i < PROBE_CHUNK; i += sizeof(uint64))
		*(uint64 *) (probe->chunk + i) = pg_prng_uint64(&pg_global_prng_state);

	while (probe->size + PROBE_CHUNK <= max_bytes &&
		   (probe->size < PROBE_MIN_BYTES || now_seconds() < end))
	{
		*(uint64 *) probe->chunk = pg_prng_uint64(&pg_global_prng_state);
		write_at(probe, PROBE_CHUNK, probe->size);
		probe->size += PROBE_CHUNK;
	}
	sync_file(probe);
	drop_from_page_cache(probe->buffered_fd, 0, 0);

	probe->nblocks = probe->size / BLCKSZ;
	probe->order = palloc(probe->nblocks * sizeof(uint32));
	for (uint32 i = 0; i < probe->nblocks; i++)
	{
		uint32		j = pg_prng_uint64_range(&pg_global_prng_state, 0, i);

		probe->order[i] = probe->order[j];
		probe->order[j] = i;
	}
}

/*
 * Do some work for n = 0, 1, ..., at least and at most so often, else until the
 * time is over.  Returns the seconds for each time, which it counts in
 * probe->done.
 */
static double
seconds_for_each(Probe *probe, void (*work) (Probe *probe, uint32 n), uint32 least, uint32 most,
				 double seconds)
{
	double		start;

	Assert(most > 0);
	drop_from_page_cache(probe->buffered_fd, 0, 0);
	start = now_seconds();
	probe->done = 0;
	do
		work(probe, probe->done++);
	while (probe->done < most && (probe->done < least || now_seconds() < start + seconds));
	return Max((now_seconds() - start) / probe->done, 1e-9);
}

static void
write_and_sync(Probe *probe, uint32 n)
{
	write_at(probe, BLCKSZ, (int64) probe->order[n % probe->nblocks] * BLCKSZ);
	sync_file(probe);
}

static void
read_at_random(Probe *probe, uint32 n)
{
	read_at(probe, probe->fd, BLCKSZ, (int64) probe->order[n % probe->nblocks] * BLCKSZ);
}

/* The same with queue_depth reads announced ahead, of blocks not read before. */
static void
read_announced(Probe *probe, uint32 n)
{
	n += probe->next;
	for (; probe->ahead < probe->nblocks && probe->ahead < n + probe->queue_depth; probe->ahead++)
		(void) posix_fadvise(probe->buffered_fd, (off_t) probe->order[probe->ahead] * BLCKSZ,
							 BLCKSZ, POSIX_FADV_WILLNEED);
	read_at(probe, probe->buffered_fd, BLCKSZ, (int64) probe->order[n] * BLCKSZ);
}

static void
read_sequentially(Probe *probe, uint32 n)
{
	read_at(probe, probe->fd, PROBE_CHUNK, (int64) n * PROBE_CHUNK % probe->size);
}

/*
 * Measure for about this many seconds, with a temporary file in the tablespace
 * that is gone when this returns, fails or is canceled.  ERROR 53100 if
 * free_bytes is too small.
 */
void
tablespace_probe_run(Oid tablespace, double seconds, int queue_depth,
					 int64 free_bytes, ProbeResult *result)
{
	Probe	   *probe = palloc0(sizeof(Probe));
	int64		max_bytes = Min(PROBE_MAX_BYTES, free_bytes / 10);
	double		latency;

	if (max_bytes < PROBE_MIN_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("not enough free space for a probe"),
				 errdetail("The probe writes at least %lld bytes and uses at most a tenth of the free space, which is %lld bytes.",
						   (long long) PROBE_MIN_BYTES, (long long) free_bytes)));

	probe->chunk = palloc_aligned(PROBE_CHUNK, PG_IO_ALIGN_SIZE, 0);
	open_file(probe, tablespace);
	fill_file(probe, max_bytes, seconds * 0.25);

	result->direct_io = probe->direct;
	result->sync_write_ms = 1000 * seconds_for_each(probe, write_and_sync, 3, PG_UINT32_MAX, seconds * 0.15);
	/* without O_DIRECT each block can be read once; leave half of them */
	latency = seconds_for_each(probe, read_at_random, 4,
							   probe->direct ? PG_UINT32_MAX : Max(probe->nblocks / 2, 1), seconds * 0.25);
	result->random_read_ms = latency * 1000;
	result->random_read_iops = 1 / latency;
	probe->ahead = probe->next = probe->direct ? 0 : probe->done;
	probe->queue_depth = queue_depth;
	result->random_read_iops_deep = 1 / seconds_for_each(probe, read_announced, 4,
														 probe->nblocks - probe->next, seconds * 0.2);
	/* a chunk is a megabyte */
	result->sequential_read_mb_s = 1 / seconds_for_each(probe, read_sequentially, 1,
														probe->direct ? PG_UINT32_MAX : probe->size / PROBE_CHUNK,
														seconds * 0.15);

	if (probe->fd != probe->buffered_fd)
		CloseTransientFile(probe->fd);
	CloseTransientFile(probe->buffered_fd);
	pfree(probe->order);
}

/*
 * Return the random_page_cost to set, on the line between 4.0 for a disk of 8 ms
 * and 1.1 for flash of 0.1 ms, each with most pages cached.
 */
double
suggested_random_page_cost(const ProbeResult *result)
{
	double		cost = 1.1 + (result->random_read_ms - 0.1) * (4.0 - 1.1) / (8.0 - 0.1);

	return Min(Max(rint(cost * 10) / 10, 1.1), 4.0);
}

/*
 * Return the effective_io_concurrency to set, from the gain of several reads at
 * the same time.
 */
int
suggested_io_concurrency(const ProbeResult *result, int queue_depth)
{
	double		gain = result->random_read_iops_deep / result->random_read_iops;

	if (gain < 1.5)
		return 1;
	return (int) Min(rint(gain * 1.5), Min(Max(queue_depth, 1), 1000));
}

/* Store a result for recommend_moves() if the transaction may write. */
void
tablespace_probe_record(Oid tablespace, const ProbeResult *result)
{
	Relation	rel;
	HeapTuple	tuple;
	Datum		values[7];
	bool		nulls[7] = {false};

	if (RecoveryInProgress() || XactReadOnly)
		return;
	rel = table_open(extension_relation("probe"), RowExclusiveLock);
	values[0] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[1] = ObjectIdGetDatum(tablespace);
	values[2] = Float8GetDatum(result->random_read_ms);
	values[3] = Float8GetDatum(result->random_read_iops);
	values[4] = Float8GetDatum(result->random_read_iops_deep);
	values[5] = Float8GetDatum(result->sequential_read_mb_s);
	values[6] = Float8GetDatum(result->sync_write_ms);
	tuple = extension_form(RelationGetDescr(rel), lengthof(values), values, nulls);
	extension_insert(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}
