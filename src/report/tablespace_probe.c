/*-------------------------------------------------------------------------
 *
 * tablespace_probe.c
 *	  The speed of a tablespace's storage, and by how much it would compress a relation.
 *
 * The probe reads and writes a file of its own, past the page cache with
 * O_DIRECT if the file system has it.  The depth test cannot use that, because
 * PostgreSQL keeps many reads in flight by announcing them (posix_fadvise),
 * which works through the page cache.  It reads each block once, of a file that
 * was never in the cache, so the cache does not help.
 *
 * The file is unlinked as soon as it is open, so no end (error, cancel, kill
 * -9, crash) leaves it behind.  Before that it has a name that the server
 * removes at start.  fd.c closes the descriptors with the transaction.
 *
 * Space: at most PROBE_MAX_BYTES and a tenth of the free space; PROBE_MIN_BYTES if that is
 * not known.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_type_d.h"
#include "common/file_utils.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "errors.h"
#include "file_compression.h"
#include "file_system.h"
#include "job.h"
#include "own_tables.h"
#include "printed_command.h"
#include "relation_facts.h"
#include "report/compressed_size.h"
#include "report/report_private.h"
#include "test_points.h"

PG_FUNCTION_INFO_V1(index_mover_tablespace_probe);
PG_FUNCTION_INFO_V1(index_mover_withdraw_probes);

#define PROBE_MAX_SECONDS	60
#define PROBE_MAX_DEPTH		1024
#define PROBE_MAX_BYTES		(INT64CONST(256) * 1024 * 1024)
#define PROBE_MIN_BYTES		(INT64CONST(4) * 1024 * 1024)
#define PROBE_CHUNK			(1024 * 1024)
/* Reads at a time from which a device should be faster than by one, and by how much */
#define PROBE_QUEUE			4
#define PROBE_QUEUE_GAIN	1.5

#define PROBES_KEPT			5	/* of each tablespace */

/* Results, in the order of the first columns */
enum
{
	RANDOM_READ_MS,
	RANDOM_READ_IOPS,			/* read after read */
	RANDOM_READ_IOPS_DEEP,		/* queue_depth at a time */
	SEQUENTIAL_READ_MB_S,
	SYNC_WRITE_MS,				/* a block, written and synced */
	PROBE_RESULTS
};

typedef struct Probe
{
	char		path[MAXPGPATH];
	int			fd;				/* O_DIRECT, or the same as buffered_fd */
	int			buffered_fd;	/* through the page cache */
	int64		size;			/* bytes written */
	char	   *chunk;			/* aligned, PROBE_CHUNK bytes */
	uint32		queue_depth;
	double		result[PROBE_RESULTS];
} Probe;

#define IS_DIRECT(probe)	((probe)->fd != (probe)->buffered_fd)

/* Raise the error of a call that was to do this with the file. */
static void
fail(const Probe *probe, const char *what)
{
	ereport(ERROR,
			(errcode_for_file_write(),
			 errmsg("could not %s file \"%s\": %m", what, probe->path)));
}

/*
 * Try to write and read the file, which is empty, past the page cache.  Return false if that is
 * refused.  Any other error comes again, and is raised then.
 */
static bool
try_direct(const Probe *probe)
{
	if (pg_pwrite(probe->fd, probe->chunk, PROBE_CHUNK, 0) < 0)
		return errno != EINVAL;
	if (pg_pwrite(probe->fd, probe->chunk, BLCKSZ, 0) < 0)
		return errno != EINVAL;
	if (pg_pread(probe->fd, probe->chunk, BLCKSZ, 0) < 0)
		return errno != EINVAL;
	return true;
}

/* Create the file, open it twice, and unlink it. */
static void
open_file(Probe *probe, Oid tablespace)
{
	char		directory[MAXPGPATH];

	TempTablespacePath(directory, tablespace);
	snprintf(probe->path, sizeof(probe->path), "%s/%s.index_mover.%d",
			 directory, PG_TEMP_FILE_PREFIX, MyProcPid);
	(void) unlink(probe->path); /* left by a process with the same pid */
	if (MakePGDirectory(directory) < 0)
	{
		if (errno != EEXIST)
			fail(probe, "create");
	}
	probe->buffered_fd = OpenTransientFile(probe->path, O_RDWR | O_CREAT | O_EXCL | PG_BINARY);
	if (probe->buffered_fd < 0)
		fail(probe, "create");
	/* some file systems refuse O_DIRECT here, others only when it is used */
	probe->fd = -1;
	if (PG_O_DIRECT != 0)
		probe->fd = OpenTransientFile(probe->path, O_RDWR | PG_BINARY | PG_O_DIRECT);
	if (probe->fd >= 0)
	{
		if (!try_direct(probe))
		{
			CloseTransientFile(probe->fd);
			probe->fd = -1;
		}
	}
	if (probe->fd < 0)
		probe->fd = probe->buffered_fd;
	if (unlink(probe->path) < 0)
		fail(probe, "remove");
}

static void
sync_file(const Probe *probe)
{
	/* not pg_fsync(): the disk is measured even if "fsync" is off */
	if (fdatasync(probe->fd) != 0)
		fail(probe, "fsync");
}

/* Write or read so many bytes of the chunk. */
static void
transfer(const Probe *probe, bool writes, int fd, Size len, int64 offset)
{
	ssize_t		done;

	CHECK_FOR_INTERRUPTS();
	errno = 0;
	if (writes)
		done = pg_pwrite(fd, probe->chunk, len, offset);
	else
		done = pg_pread(fd, probe->chunk, len, offset);
	if (done == len)
		return;
	if (errno == 0)
		errno = writes ? ENOSPC : EIO;
	fail(probe, writes ? "write" : "read");
}

/* Write the file until it is large enough or the time is over. */
static void
fill_file(Probe *probe, int64 max_bytes, double seconds)
{
	double		end = clock_seconds() + seconds;

	/* contents that no storage can compress or deduplicate */
	for (Size i = 0; i < PROBE_CHUNK; i += sizeof(uint64))
		*(uint64 *) (probe->chunk + i) = pg_prng_uint64(&pg_global_prng_state);

	while (probe->size + PROBE_CHUNK <= max_bytes &&
		   (probe->size < PROBE_MIN_BYTES || clock_seconds() < end))
	{
		*(uint64 *) probe->chunk = pg_prng_uint64(&pg_global_prng_state);
		transfer(probe, true, probe->fd, PROBE_CHUNK, probe->size);
		probe->size += PROBE_CHUNK;
	}
	sync_file(probe);
}

/* Return the place of a block, n from 0 on: all of them once, each far from the last. */
static off_t
random_block(const Probe *probe, uint32 n)
{
	uint64		blocks = probe->size / BLCKSZ;

	/*
	 * the step has no factor in common with a number of blocks that 16
	 * divides
	 */
	return n * (blocks / 8 * 5 + 1) % blocks * BLCKSZ;
}

/* The phases after the file is filled */
typedef struct Phase
{
	int			result;
	bool		per_second;		/* the result is a rate; else milliseconds */
	bool		writes;			/* and syncs; else reads */
	bool		announced;		/* queue_depth reads ahead */
	Size		size;			/* of each transfer: random blocks, or chunks
								 * in order */
	uint32		least;			/* transfers, also when its time is over */
	double		share;			/* of the time */
} Phase;

static const Phase phases[] = {
	{SYNC_WRITE_MS, false, true, false, BLCKSZ, 3, 0.15},
	{RANDOM_READ_MS, false, false, false, BLCKSZ, 4, 0.25},
	{RANDOM_READ_IOPS_DEEP, true, false, true, BLCKSZ, 4, 0.2},
	{SEQUENTIAL_READ_MB_S, true, false, false, PROBE_CHUNK, 1, 0.15},
};

static void
run_phase(Probe *probe, const Phase *phase, double seconds)
{
	/* no byte is to come from the page cache */
	bool		once = phase->announced || (!phase->writes && !IS_DIRECT(probe));
	uint32		most = once ? probe->size / phase->size : PG_UINT32_MAX;
	uint32		n = 0;
	uint32		ahead = 0;		/* announced so far */
	double		start;
	double		each;

	(void) posix_fadvise(probe->buffered_fd, 0, 0, POSIX_FADV_DONTNEED);
	start = clock_seconds();
	do
	{
		int64		at = (int64) n * PROBE_CHUNK % probe->size;
		int			fd = probe->fd;

		if (phase->size == BLCKSZ)
			at = random_block(probe, n);
		if (phase->announced)
		{
			fd = probe->buffered_fd;
			for (; ahead < Min(most, n + probe->queue_depth); ahead++)
				(void) posix_fadvise(fd, random_block(probe, ahead), BLCKSZ, POSIX_FADV_WILLNEED);
		}
		transfer(probe, phase->writes, fd, phase->size, at);
		if (phase->writes)
			sync_file(probe);
		n++;
	} while (n < most && (n < phase->least || clock_seconds() < start + seconds * phase->share));
	each = Max((clock_seconds() - start) / n, 1e-9);
	probe->result[phase->result] = phase->per_second ? 1 / each : 1000 * each;
}

/*
 * Measure for about this many seconds, longer only by a slow single call, with a
 * temporary file in the tablespace that is gone when this returns, fails or is
 * canceled.  ERROR 53100 if there is too little free space.
 */
static void
run_probe(Probe *probe, Oid tablespace, double seconds, const FileSystemFacts *facts)
{
	int64		max_bytes = Min(PROBE_MAX_BYTES, facts->free_bytes / 10);

	if (facts->total_bytes <= 0)
		max_bytes = PROBE_MIN_BYTES;
	if (max_bytes < PROBE_MIN_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("not enough free space for a probe"),
				 errdetail("The probe writes at least %lld bytes and uses at most a tenth of the free space, which is %lld bytes.",
						   (long long) PROBE_MIN_BYTES, (long long) facts->free_bytes)));

	probe->chunk = palloc_aligned(PROBE_CHUNK, PG_IO_ALIGN_SIZE, 0);
	open_file(probe, tablespace);
	fill_file(probe, max_bytes, seconds * 0.25);
	for (int i = 0; i < lengthof(phases); i++)
		run_phase(probe, &phases[i], seconds);
	probe->result[RANDOM_READ_IOPS] = 1000 / probe->result[RANDOM_READ_MS];
	if (IM_MUTATION("probe-one"))
		probe->result[RANDOM_READ_IOPS_DEEP] = probe->result[RANDOM_READ_IOPS];

	if (IS_DIRECT(probe))
		CloseTransientFile(probe->fd);
	CloseTransientFile(probe->buffered_fd);
}

/*
 * Remove the probes of a tablespace but the last ones, so that there is space for one more.  Those
 * of a clock that was ahead count for nothing, and go, too.
 * The caller holds a lock that keeps out other sessions that remove some.
 */
static void
remove_old_probes(Oid tablespace)
{
	TimestampTz latest[PROBES_KEPT];
	int			n = 0;
	ExtensionScan scan;

	/* the latest probes, the last first */
	extension_scan_begin(&scan, "probe", 0, NULL);
	while (extension_scan_next(&scan))
	{
		TimestampTz at = DatumGetTimestampTz(scan.row.values[0]);
		int			i = n;

		if (DatumGetObjectId(scan.row.values[1]) != tablespace || moment_is_ahead(at))
			continue;
		for (; i > 0 && latest[i - 1] < at; i--)
			latest[i] = latest[i - 1];
		latest[i] = at;
		n = Min(n + 1, PROBES_KEPT - 1);
	}
	extension_scan_begin(&scan, "probe", 0, NULL);
	while (extension_scan_next(&scan))
	{
		TimestampTz at = DatumGetTimestampTz(scan.row.values[0]);

		if (DatumGetObjectId(scan.row.values[1]) != tablespace)
			continue;
		/* another session may store the first one just now */
		if (moment_is_ahead(at) || (n > 0 && at < latest[n - 1]))
			(void) extension_delete_row("probe", &scan.tuple->t_self);
	}
}

/*
 * Store a result for recommend_moves(), with the results before, of which the median counts, if
 * the transaction may write.  Old results stay if we would have to wait for another session
 * that deletes some.
 */
static void
record_probe(Oid tablespace, const Probe *probe)
{
	Row			row;

	if (RecoveryInProgress() || XactReadOnly)
		return;
	if (ConditionalLockRelationOid(extension_relation("probe"), ShareUpdateExclusiveLock))
		remove_old_probes(tablespace);
	row_clear(&row);
	row_time(&row, 1, GetCurrentTimestamp());
	row_set(&row, 2, ObjectIdGetDatum(tablespace));
	row_float8(&row, 3, probe->result[RANDOM_READ_MS]);
	row_float8(&row, 4, 1000 / probe->result[RANDOM_READ_IOPS_DEEP]);
	extension_insert("probe", &row);
	CommandCounterIncrement();
}

/* Count the tables of this database in a tablespace that outlive their session. */
static int
tables_in(Oid tablespace)
{
	int			tables = 0;

	foreach_ptr(HeapTupleData, tuple,
				catalog_rows(RelationRelationId, ClassTblspcRelfilenodeIndexId,
							 Anum_pg_class_reltablespace, tablespace_in_catalog(tablespace),
							 0, InvalidOid))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if ((form->relkind == RELKIND_RELATION || form->relkind == RELKIND_MATVIEW) &&
			form->relpersistence != RELPERSISTENCE_TEMP)
			tables++;
	}
	return tables;
}

/*
 * Return why the place or its figures are doubtful; NULL if they are not.  A device
 * that is read through the page cache says nothing of its queue, and neither does one
 * read at a time.
 */
static char *
probe_remark(const Probe *probe, Oid tablespace, const char *lost_on_reboot)
{
	StringInfoData remark;
	int			tables;

	initStringInfo(&remark);
	if (lost_on_reboot != NULL)
		appendStringInfo(&remark, "on %s: does not survive a reboot", lost_on_reboot);
	if (tablespace_loses_tables(tablespace) != NULL)
	{
		tables = tables_in(tablespace);
		if (tables > 0)
			appendStringInfo(&remark, "; tables of this database there: %d", tables);
	}
	if (IS_DIRECT(probe) && probe->queue_depth >= PROBE_QUEUE &&
		probe->result[RANDOM_READ_IOPS_DEEP] < PROBE_QUEUE_GAIN * probe->result[RANDOM_READ_IOPS])
		appendStringInfo(&remark, "%sdoes not queue: %u reads at a time are no faster than one after the other",
						 remark.len > 0 ? "; " : "", probe->queue_depth);
	return remark.len > 0 ? remark.data : NULL;
}

/* Refuse a relation (or 0) that has no contents or never moves.  ERRORs 42P01, 42809, 0A000. */
static void
check_can_sample(Oid relation)
{
	char		relkind = OidIsValid(relation) ? get_rel_relkind(relation) : '\0';

	if (relkind == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	if (!RELKIND_HAS_TABLE_AM(relkind) && relkind != RELKIND_INDEX)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table, materialized view, or index", get_rel_name(relation)),
				 errdetail_relkind_not_supported(relkind)));
	if (IsCatalogRelationOid(relation))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move system relation \"%s\"", get_rel_name(relation))));
	if (get_rel_persistence(relation) == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move temporary relation \"%s\"", get_rel_name(relation))));
}

/* Set a column to the compression ratio of a share, rounded down; NaN: to NULL. */
static void
row_compression_ratio(Row *row, int column, double share)
{
	row_float8(row, column, floor(100 / share) / 100);
}

/*
 * Set six columns: the type of the tablespace's file system, how it compresses, and how much
 * to expect of a relation (or 0) with zstd and with lz4.
 */
static void
row_compression(Row *row, int column, Oid tablespace, Oid relation)
{
	FileCompression compression;
	CompressedShare zstd;
	CompressedShare lz4;
	int			level = 3;

	file_compression(tablespace, &compression);
	if (compression.file_system[0] != '\0')
		row_text(row, column, compression.file_system);
	if (compression.algorithm[0] != '\0')
		row_text(row, column + 1, compression.algorithm);
	if (compression.zstd_level != 0)
		level = compression.zstd_level;
	if (!OidIsValid(relation))
		return;
	if (!compressed_size_sample(relation, COMPRESSED_RUNS, level, &zstd, &lz4))
		return;
	row_compression_ratio(row, column + 2, zstd.expected);
	row_compression_ratio(row, column + 3, zstd.at_most);
	row_compression_ratio(row, column + 4, lz4.expected);
	row_compression_ratio(row, column + 5, lz4.at_most);
}

/*
 * Return the tablespace of a name, where the current user may make a probe, and withdraw
 * probes.  ERRORs: 42704 no such tablespace, 22023 pg_global, 42501 without CREATE on it.
 */
static Oid
check_may_probe(const char *name)
{
	Oid			tablespace = get_tablespace_oid(name, false);

	if (tablespace == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only shared relations can be placed in pg_global tablespace")));
	if (object_aclcheck(TableSpaceRelationId, tablespace, GetUserId(), ACL_CREATE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLESPACE, name);
	return tablespace;
}

/*
 * tablespace_probe(tablespace name, duration interval, queue_depth int, relation regclass)
 * RETURNS record
 *
 * Writes, reads and removes a temporary file in the tablespace, and stores
 * the result in index_mover.probe if the transaction may write, so that it runs
 * on a hot standby, too.  Then it samples the relation, unless that is NULL.  Locks:
 * RowExclusiveLock on that table until the end of the transaction, and
 * ShareUpdateExclusiveLock if that is free; AccessShareLock on the relation for the sample,
 * if that is free.
 *
 * EXECUTE: pg_monitor; and the caller needs CREATE on the tablespace (42501).
 * Errors: 22004 and 22023 arguments, 42704 no such tablespace, 42P01 no such relation,
 * 42809 one without contents, 0A000 a catalog or a temporary one, 22023 pg_global, 53100 less
 * than 40 MB free,
 * 58030 and others from the file system.
 */
Datum
index_mover_tablespace_probe(PG_FUNCTION_ARGS)
{
	Probe	   *probe = palloc0(sizeof(Probe));
	Oid			tablespace;
	char	   *name;
	Interval   *duration = PG_GETARG_INTERVAL_P(1);
	double		seconds;
	FileSystemFacts facts;
	ArrayBuildState *others = initArrayResult(NAMEOID, CurrentMemoryContext, false);
	const char *lost_on_reboot;
	double		cost;
	double		gain;
	int			concurrency;
	Row			row;

	reject_null(fcinfo, 0, "tablespace");
	reject_null(fcinfo, 1, "duration");
	reject_null(fcinfo, 2, "queue_depth");
	name = NameStr(*PG_GETARG_NAME(0));
	tablespace = check_may_probe(name);
	seconds = duration->time / (double) USECS_PER_SEC +
		(duration->day + duration->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY;
	if (!(seconds >= 0.01 && seconds <= PROBE_MAX_SECONDS))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("duration must be between %g and %d seconds", 0.01, PROBE_MAX_SECONDS)));
	if (PG_GETARG_INT32(2) < 1 || PG_GETARG_INT32(2) > PROBE_MAX_DEPTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("queue_depth must be between %d and %d", 1, PROBE_MAX_DEPTH)));
	probe->queue_depth = PG_GETARG_INT32(2);
	if (!PG_ARGISNULL(3))
		check_can_sample(PG_GETARG_OID(3));
	if (!file_system_facts(tablespace, &facts))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not look at the file system of tablespace \"%s\": %m", name)));

	run_probe(probe, tablespace, seconds, &facts);
	record_probe(tablespace, probe);

	/* on the line between 4.0 for a disk of 8 ms and 1.1 for flash of 0.1 ms */
	cost = 1.1 + (probe->result[RANDOM_READ_MS] - 0.1) * (4.0 - 1.1) / (8.0 - 0.1);
	cost = Min(Max(rint(cost * 10) / 10, 1.1), 4.0);
	/* from the gain of several reads at the same time */
	gain = probe->result[RANDOM_READ_IOPS_DEEP] / probe->result[RANDOM_READ_IOPS];
	concurrency = 1;
	if (gain >= PROBE_QUEUE_GAIN)
		concurrency = (int) Min(rint(gain * 1.5), Min(probe->queue_depth, 1000));
	lost_on_reboot = tablespace_lost_on_reboot(tablespace);

	row_clear(&row);
	/* four significant digits */
	for (int i = 0; i < PROBE_RESULTS; i++)
		row_float8(&row, i + 1, strtod(psprintf("%.4g", probe->result[i]), NULL));
	if (facts.total_bytes > 0)
	{
		row_int64(&row, 6, facts.free_bytes);
		row_int64(&row, 7, facts.total_bytes);
	}
	foreach_ptr(char, other, tablespaces_on_device(facts.device, tablespace))
		accumArrayResult(others, DirectFunctionCall1(namein, CStringGetDatum(other)), false,
						 NAMEOID, CurrentMemoryContext);
	row_set(&row, 8, makeArrayResult(others, CurrentMemoryContext));
	row_float8(&row, 9, cost);
	row_set(&row, 10, Int32GetDatum(concurrency));
	row_text(&row, 11, printed_command("tablespace_costs", name, psprintf("%.1f", cost), (int64) concurrency));
	row_set(&row, 12, BoolGetDatum(IS_DIRECT(probe)));
	row_text(&row, 13, lost_on_reboot);
	row_compression(&row, 14, tablespace, PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3));
	row_text(&row, 20, probe_remark(probe, tablespace, lost_on_reboot));
	return row_result(fcinfo, &row);
}

static void
put_withdrawn(const Row *probe, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Row			row;

	row_clear(&row);
	row_set(&row, 1, probe->values[0]);
	row_set(&row, 2, probe->values[2]);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
}

/*
 * withdraw_probes(tablespace name, since timestamptz) RETURNS SETOF record
 *
 * Removes the results of tablespace_probe() for a tablespace from a moment on, NULL: all, and
 * returns them.  Locks: ShareUpdateExclusiveLock on index_mover.probe until the end of the
 * transaction.  EXECUTE: pg_monitor; and the caller needs CREATE on the tablespace (42501).
 * Errors: 22004 NULL, 22023 pg_global, 42704 no such tablespace, 25006 on a standby and in a read-only
 * transaction.
 */
Datum
index_mover_withdraw_probes(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TimestampTz since = PG_ARGISNULL(1) ? DT_NOBEGIN : PG_GETARG_TIMESTAMPTZ(1);
	ExtensionScan scan;
	char	   *name;
	Oid			tablespace;

	reject_null(fcinfo, 0, "tablespace");
	name = NameStr(*PG_GETARG_NAME(0));
	tablespace = check_may_probe(name);
	PreventCommandDuringRecovery("withdraw_probes()");
	PreventCommandIfReadOnly("withdraw_probes()");
	InitMaterializedSRF(fcinfo, 0);
	LockRelationOid(extension_relation("probe"), ShareUpdateExclusiveLock);
	extension_scan_begin(&scan, "probe", 0, NULL);
	while (extension_scan_next(&scan))
	{
		if (DatumGetObjectId(scan.row.values[1]) != tablespace ||
			DatumGetTimestampTz(scan.row.values[0]) < since)
			continue;
		put_withdrawn(&scan.row, rsinfo);
		(void) extension_delete_row("probe", &scan.tuple->t_self);
	}
	return (Datum) 0;
}
