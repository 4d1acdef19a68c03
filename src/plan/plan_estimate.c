/*-------------------------------------------------------------------------
 *
 * plan_estimate.c
 *	  How much a move will read and write, and how long it takes.
 *
 * Sizes are of the files that pg_class names.  No relation is opened but for a sample, and then
 * only if its lock is free: planning never waits for a lock.  The size of a file that vanishes is
 * unknown.
 *
 * Time is estimated from past moves of the same method in this database: a
 * small move tells the fixed cost, a large move the rate; without them,
 * from the constants below.  That a copy rests where reading is slow is not known.
 * Access methods differ in how long a build takes, vector indexes a hundred times: so the
 * last rebuild of the same index tells more, and counts first.
 *
 * On a file system that compresses, a copy that would take a considerable part of the free
 * space counts by a sample of its relation: by the most that the sample says, and a part for
 * blocks that change meanwhile.  A rebuild counts in full, since its new file has other contents.
 *
 * Tricky: a move frees its old file.  So within a file system only the moves that
 * run at the same time need free space, otherwise all do.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/pg_am.h"
#include "catalog/pg_tablespace_d.h"
#include "commands/defrem.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/timestamp.h"

#include "cleanup/cleanup.h"
#include "file_compression.h"
#include "file_system.h"
#include "history.h"
#include "plan/plan_private.h"
#include "plan/space.h"
#include "report/compressed_size.h"
#include "wait/wait.h"

#define MB						(1024.0 * 1024.0)

/*
 * Bytes per second without experience: a third to a half of the rates measured
 * on two cores and a fast disk under load.
 */
#define DEFAULT_COPY_RATE		(50 * MB)
#define DEFAULT_BTREE_RATE		(15 * MB)
#define DEFAULT_OTHER_RATE		(5 * MB)
#define DEFAULT_IVFFLAT_RATE	(5 * MB)	/* bench/vector: 14 */
#define DEFAULT_EXTENSION_RATE	(0.5 * MB)	/* hnsw: 0.4 to 1.8, if it fits
											 * into memory */
#define DEFAULT_SCAN_RATE		(100 * MB)	/* a rebuild's heap scans */

/* each move has locks, commits and syncs: 4 to 17 ms on two cores and a fast disk */
#define SECONDS_PER_COPY		0.008
#define SECONDS_PER_REBUILD		0.01
#define SECONDS_PER_JOB			0.2 /* the start of its workers */

/*
 * No compression counts while a plan takes up to an eighth of the free space, and for small
 * files: it would not be worth the reads.  Of each relation 8 MB are read, which takes some 30
 * ms, and all samples of a plan end after two seconds.
 */
#define PART_WITHOUT_SAMPLE		(1.0 / 8)
#define SIZE_WITHOUT_SAMPLE		(1 * MB)
#define RUNS_OF_PLAN			64
#define MILLISECONDS_OF_SAMPLES	2000

/*
 * Blocks that change before the swap are written to new places, while btrfs keeps their space
 * in a compressed extent: after a tenth of them, 5 % of the raw size were seen.
 */
#define SHARE_OF_CHANGES		0.1

/* from the latest moves */
#define EXPERIENCE_MOVES		20	/* large moves */
#define EXPERIENCE_MIN_SIZE		(8 * MB)	/* smaller moves tell no rate */
#define EXPERIENCE_MAX_SMALL	(1 * MB)	/* not much but SECONDS_PER_* */
#define EXPERIENCE_MIN_SMALL	5	/* so many, because a move may have waited */

/* Figures from the latest moves by a method */
typedef struct Experience
{
	int			small;			/* their number */
	double		small_seconds;
	int			large;
	double		seconds;
	double		bytes;
} Experience;

/* Facts about a file system, for a plan */
typedef struct Device
{
	int64		device;
	int64		used;			/* bytes, by the moves before */
	int64		beside[MAX_WORKERS];	/* by the latest moves within it */
	int			nbeside;
	int64		largest;		/* by a move within it */
} Device;

/* How a target compresses */
typedef struct TargetCompression
{
	Oid			tablespace;
	FileCompression compression;
} TargetCompression;

/* The samples of a plan, and of the plans that are made from it to be thrown away */
typedef struct PlanSamples
{
	List	   *targets;		/* of TargetCompression */
	int64		milliseconds;	/* that they took so far */
} PlanSamples;

/* The state of a plan that is made in parts */
struct PlanParts
{
	Experience	experience[METHOD_DEFAULT + 1];
	List	   *rebuilds;		/* of HistoryEntry *, rebuilds that have
								 * moved, the last first */
	List	   *devices;		/* of Device */
	PlanSamples *samples;
};

/*
 * Begin a plan that plan_single() makes the parts of.  Reads the history
 * without a check of privileges on it: nothing but averages leaves this file.
 */
PlanParts *
plan_parts_begin(void)
{
	PlanParts  *parts = palloc0(sizeof(PlanParts));

	parts->samples = palloc0(sizeof(PlanSamples));
	foreach_ptr(const HistoryEntry, move, history_read(ALL_JOBS_BACKWARD))
	{
		Experience *e = &parts->experience[move->method];

		if (move->status != STATUS_MOVED || move->worked <= 0)
			continue;
		if (move->method == METHOD_REBUILD && move->size > 0)
			parts->rebuilds = lappend(parts->rebuilds, unconstify(HistoryEntry *, move));
		if (move->size >= EXPERIENCE_MIN_SIZE && e->large < EXPERIENCE_MOVES)
		{
			e->large++;
			e->bytes += move->size;
			e->seconds += move->worked;
		}
		else if (move->size <= EXPERIENCE_MAX_SMALL)
		{
			e->small++;
			e->small_seconds += move->worked;
		}
	}
	return parts;
}

/* Return the same with nothing used. */
PlanParts *
plan_parts_alone(const PlanParts *parts)
{
	PlanParts  *result = memcpy(palloc(sizeof(PlanParts)), parts, sizeof(PlanParts));

	result->devices = NIL;
	return result;
}

/* Return the seconds that a move of any size takes. */
static double
seconds_per_move(const Experience *e, double usual)
{
	return e->small >= EXPERIENCE_MIN_SMALL ? e->small_seconds / e->small : usual;
}

static Device *
find_device(PlanParts *parts, int64 device)
{
	Device	   *result;

	foreach_ptr(Device, known, parts->devices)
	{
		if (known->device == device)
			return known;
	}
	result = palloc0(sizeof(Device));
	result->device = device;
	parts->devices = lappend(parts->devices, result);
	return result;
}

/* Fill in bytes and seconds of a copy. */
static void
estimate_copy(PlanParts *parts, PlannedMove *move, const MoveSettings *settings)
{
	MoveItem   *item = &move->item;
	const Experience *e = &parts->experience[METHOD_COPY];
	double		rate = DEFAULT_COPY_RATE;

	item->bytes_to_write = space_to_copy(item);
	if (e->large > 0)
		rate = e->bytes / e->seconds;
	move->estimated = seconds_per_move(e, SECONDS_PER_COPY) + item->bytes_to_write / rate;
	if (settings->max_rate > 0)
		move->estimated = Max(move->estimated, item->bytes_to_write / 1024.0 / settings->max_rate);
}

/* Return the last rebuild of this index, by its name and table; NULL if there is none. */
static const HistoryEntry *
last_rebuild(const PlanParts *parts, const PlannedMove *move)
{
	foreach_ptr(const HistoryEntry, entry, parts->rebuilds)
	{
		if (entry->heap_oid == move->facts.heap_oid &&
			strcmp(entry->relname, NameStr(move->facts.relname)) == 0)
			return entry;
	}
	return NULL;
}

/* Return the bytes of an index that is to be rebuilt; of a lost index, the bytes that it had. */
static int64
size_to_rebuild(const PlannedMove *move)
{
	if (move->item.heal)
		return (int64) move->facts.pages * BLCKSZ;
	return space_to_copy(&move->item);
}

/* Return whether an access method is pgvector's ivfflat, by its name: the estimate needs no more. */
static bool
is_ivfflat(Oid am)
{
	const char *name = get_am_name(am);

	return name != NULL && strcmp(name, "ivfflat") == 0;
}

/* Fill in bytes and seconds of a rebuild. */
static void
estimate_rebuild(PlanParts *parts, PlannedMove *move, const MoveSettings *settings)
{
	MoveItem   *item = &move->item;
	const Experience *e = &parts->experience[METHOD_REBUILD];
	const HistoryEntry *last = last_rebuild(parts, move);
	bool		of_extension = move->facts.relam >= FirstNormalObjectId;
	int64		size = size_to_rebuild(move);
	int64		new_size = size * (1.0 - Min(Max(move->bloat_ratio, 0), 1.0));

	item->bytes_to_write = new_size;
	item->sort_bytes = 0;
	/* a sort that does not fit in memory writes its input once more */
	if (new_size / 1024 > settings->maintenance_work_mem)
	{
		item->sort_bytes = new_size;
		item->bytes_to_write += new_size;
	}
	move->estimated = seconds_per_move(e, SECONDS_PER_REBUILD);
	if (last != NULL)
		move->estimated = Max(move->estimated, last->worked * size / last->size);
	else if (e->large > 0 && !of_extension)
		move->estimated += size * e->seconds / e->bytes;
	else
	{
		int64		heap_size = relation_files_size(move->facts.heap_tablespace,
													move->facts.heap_relfilenumber);
		double		rate = DEFAULT_OTHER_RATE;

		if (move->facts.relam == BTREE_AM_OID)
			rate = DEFAULT_BTREE_RATE;
		else if (is_ivfflat(move->facts.relam))
			rate = DEFAULT_IVFFLAT_RATE;
		else if (of_extension)
			rate = DEFAULT_EXTENSION_RATE;
		/* it is scanned twice */
		move->estimated += 2.0 * Max(heap_size, 0) / DEFAULT_SCAN_RATE + new_size / rate;
	}
}

/* Return the bytes still to be made of the new file; sort files go to temp_tablespaces. */
static int64
new_file_size(const MoveItem *item)
{
	return Max(item->bytes_to_write - Max(item->sort_bytes, 0) - leftover_kept_bytes(item), 0);
}

/* Return how a target compresses: its list of mounts is read once in a plan. */
static const FileCompression *
target_compression(PlanSamples *samples, Oid tablespace)
{
	TargetCompression *result;

	foreach_ptr(const TargetCompression, known, samples->targets)
	{
		if (known->tablespace == tablespace)
			return &known->compression;
	}
	result = palloc(sizeof(TargetCompression));
	result->tablespace = tablespace;
	file_compression(tablespace, &result->compression);
	samples->targets = lappend(samples->targets, result);
	return &result->compression;
}

/*
 * Set how much of a relation a target stores that compresses by zstd, by a sample, and say so.
 * If the plan has it from before, it stays.
 */
static void
count_compressed(PlanSamples *samples, PlannedMove *move, const FileCompression *compression)
{
	MoveItem   *item = &move->item;
	TimestampTz start = GetCurrentTimestamp();
	CompressedShare zstd;
	CompressedShare lz4;
	bool		known;

	if (move->sampled || item->method != METHOD_COPY || new_file_size(item) < SIZE_WITHOUT_SAMPLE)
		return;
	move->sampled = true;
	if (!compression->steady)
	{
		item_say(item, "Compression does not count: with the mount option \"compress\", %s can give it up for a whole file.",
				 compression->file_system);
		return;
	}
	if (samples->milliseconds >= MILLISECONDS_OF_SAMPLES)
	{
		item_say(item, "Compression does not count: the samples of the plan have taken %d seconds.",
				 MILLISECONDS_OF_SAMPLES / 1000);
		return;
	}
	known = compressed_size_sample(item->relid, RUNS_OF_PLAN, compression->zstd_level, &zstd, &lz4);
	samples->milliseconds += TimestampDifferenceMilliseconds(start, GetCurrentTimestamp());
	if (!known || isnan(zstd.at_most) || zstd.at_most + SHARE_OF_CHANGES >= 1)
		return;
	item->stored_share = zstd.at_most + SHARE_OF_CHANGES;
	item_say(item, "Needs %s of free space, because %s compresses. By a sample, %s makes it at least %.2f times smaller. A tenth of its size is added for changes.",
			 size_text(new_file_size(item) * item->stored_share), compression->file_system,
			 compression->algorithm, 1 / zstd.at_most);
}

/*
 * Return the bytes that the new files of a planned move and its parts take: all files of a table
 * are there twice until its swap.  used: by the moves before.
 */
static int64
stored_size(PlanParts *parts, PlannedMove *move, const FileSystemFacts *target, int64 used)
{
	const FileCompression *compression;
	int64		result = new_file_size(&move->item);
	double		stored;

	foreach_ptr(const PlannedMove, part, move->parts)
		result += new_file_size(&part->item);
	if (target->total_bytes <= 0 ||
		used + result <= target->free_bytes * PART_WITHOUT_SAMPLE)
		return result;
	compression = target_compression(parts->samples, move->item.to_tablespace);
	if (compression->zstd_level == 0)
		return result;
	count_compressed(parts->samples, move, compression);
	stored = new_file_size(&move->item) * move->item.stored_share;
	foreach_ptr(PlannedMove, part, move->parts)
	{
		count_compressed(parts->samples, part, compression);
		stored += new_file_size(&part->item) * part->item.stored_share;
	}
	return stored;
}

/* Return the bytes that the target stores of a move that is planned, as far as the plan has sampled it. */
int64
plan_stored_bytes(const MoveItem *item)
{
	int64		size = Max(item->size_before, 0);

	return item->method == METHOD_COPY ? size * item->stored_share : size;
}

/* Return the fault of the directory of the target, or of the source; else NULL. */
static char *
directory_hindrance(const MoveItem *item)
{
	Oid			tablespace = item->to_tablespace;
	const char *hindrance = tablespace_hindrance(tablespace);

	/* a rebuild does not read the old file */
	if (hindrance == NULL && item->method == METHOD_COPY && item->size_before < 0)
	{
		tablespace = item->from_tablespace;
		hindrance = tablespace_hindrance(tablespace);
	}
	if (hindrance == NULL)
		return NULL;
	/* heal_tablespace() makes the directory */
	if (item->heal && tablespace == item->from_tablespace)
		return NULL;
	return psprintf("The directory of tablespace \"%s\" %s.", tablespace_name(tablespace), hindrance);
}

/* Note that a move uses space on the device of its target: for good, or until its old file is gone. */
static void
note_space(Device *device, MoveItem *item, const FileSystemFacts *target, int64 size)
{
	FileSystemFacts source;

	if (file_system_facts(item->from_tablespace, &source) && source.device == target->device)
	{
		device->beside[device->nbeside++ % MAX_WORKERS] = size;
		device->largest = Max(device->largest, size);
		item->tight_space = true;
	}
	else
		device->used += size;
}

/*
 * Return why there is not enough free space for a planned move and its parts:
 * for the new files, their WAL and sort files, and the moves before.  If there
 * is (NULL), or with "always", the moves behind it find its space used.
 */
static char *
take_space(PlanParts *parts, PlannedMove *move, const MoveSettings *settings, bool always)
{
	MoveItem   *item = &move->item;
	int64		size;
	int64		wal_bytes = item->wal_bytes;
	int64		beside = 0;
	FileSystemFacts target;
	Device	   *device;
	SpaceNeeds	needs;
	const SpaceNeed *need = NULL;

	if (item->size_before < 0 || !file_system_facts(item->to_tablespace, &target))
		return NULL;
	foreach_ptr(const PlannedMove, part, move->parts)
	{
		wal_bytes += Max(part->item.wal_bytes, 0);
	}

	device = find_device(parts, target.device);
	/* others that run at the same time have not given back their old files */
	for (int i = 1; i < settings->max_workers; i++)
		beside += device->beside[(device->nbeside + MAX_WORKERS - i) % MAX_WORKERS];
	size = stored_size(parts, move, &target, device->used + beside);
	space_needs(&needs, &settings->min_free_space, item, free_space_for_wal(),
				device->used + beside + size, item->sort_bytes, wal_bytes);
	if (size != 0)
		need = free_space_missing(&needs);
	move->fits = need == NULL;
	foreach_ptr(PlannedMove, part, move->parts)
	{
		part->fits = move->fits;
	}
	/* else it is left out */
	if (move->fits || always)
		note_space(device, item, &target, size);
	if (move->fits)
		return NULL;
	return psprintf("Does not fit: %s needs %s; %s free, %s reserved by index_mover.min_free_space.",
					space_place(need), size_text(need->needed),
					size_text(need->available), size_text(need->reserved));
}

/*
 * Note of the moves within a file system whether it has room for all the runners that a job can
 * have, each with the largest relation: then runners that wait for their locks need not count.
 * To be called when all moves of the job are known.
 */
static void
note_tight_space(PlanParts *parts, List *moves, const MoveSettings *settings)
{
	foreach_ptr(PlannedMove, move, moves)
	{
		MoveItem   *item = &move->item;
		FileSystemFacts target;
		Device	   *device;
		SpaceNeeds	needs;

		if (!item->tight_space || !file_system_facts(item->to_tablespace, &target))
			continue;
		device = find_device(parts, target.device);
		space_needs(&needs, &settings->min_free_space, item, free_space_for_wal(),
					device->used + MAX_WORKERS * device->largest, item->sort_bytes,
					MAX_WORKERS * Max(item->wal_bytes, 0));
		item->tight_space = free_space_missing(&needs) != NULL;
	}
}

/*
 * Say of each planned move, in order of execution, if there is no free space for it,
 * or no directory.  In a whole plan there is a WARNING, too; in a part of a plan such
 * a move is skipped.
 */
static void
estimate_space(PlanParts *parts, List *moves, const MoveSettings *settings, bool skip)
{
	int			planned = 0;
	int			in_vain = 0;
	char	   *first_reason = NULL;
	int			first_code = 0;

	foreach_ptr(PlannedMove, move, moves)
	{
		MoveItem   *item = &move->item;
		char	   *hindrance;
		char	   *reason;
		int			code;

		if (item->outcome.status != STATUS_PLANNED || item->method == METHOD_DEFAULT ||
			OidIsValid(item->part_of))
			continue;
		planned++;
		hindrance = directory_hindrance(item);
		if (hindrance != NULL)
		{
			reason = hindrance;
			code = ERRCODE_UNDEFINED_FILE;
		}
		else
		{
			reason = take_space(parts, move, settings, !skip);
			code = ERRCODE_DISK_FULL;
		}
		if (reason == NULL)
			continue;
		if (skip && hindrance != NULL)
			item_skip(item, code, "%s", hindrance);
		else if (skip)
			item_skip(item, code, "Tablespace \"%s\" has no space for it.",
					  tablespace_name(item->to_tablespace));
		else
			item_say(item, "%s", reason);
		if (in_vain++ == 0)
		{
			first_reason = reason;
			first_code = code;
		}
	}

	if (in_vain > 0 && !skip)
		ereport(WARNING,
				(errcode(first_code),
				 errmsg("%d of %d planned moves would fail", in_vain, planned),
				 errdetail_internal("%s", first_reason)));
}

/* Estimate a planned move, but for its space. */
static void
estimate_move(PlanParts *parts, PlannedMove *move, const MoveSettings *settings)
{
	MoveItem   *item = &move->item;

	if (item->method == METHOD_DEFAULT)
		item->bytes_to_write = item->wal_bytes = move->estimated = 0;
	else if (item->size_before >= 0)
	{
		if (item->method == METHOD_COPY)
			estimate_copy(parts, move, settings);
		else
			estimate_rebuild(parts, move, settings);

		/* the new file is logged page by page, except with wal_level minimal */
		item->wal_bytes = 0;
		if (XLogIsNeeded() && move->facts.persistence == RELPERSISTENCE_PERMANENT)
			item->wal_bytes = item->bytes_to_write - Max(item->sort_bytes, 0);
	}
}

/*
 * Return the seconds that the planned moves of a job take.  Workers share the
 * small moves; large moves wait for the storage, or for max_rate, which all share.
 */
double
plan_seconds(const List *moves, const MoveSettings *settings)
{
	int			sharing = settings->max_rate > 0 ? 1 : settings->max_workers;
	double		seconds = 0;

	foreach_ptr(const PlannedMove, move, moves)
	{
		if (move->item.outcome.status != STATUS_PLANNED || move->estimated <= 0)
			continue;
		if (move->item.size_before < EXPERIENCE_MIN_SIZE)
			seconds += move->estimated / sharing;
		else
			seconds += move->estimated;
	}
	return seconds > 0 ? SECONDS_PER_JOB + seconds : 0;
}

/*
 * Warn of tables that are to be moved to where a reboot loses them, and if WAL will
 * be written while the archiver fails: pg_wal keeps it.
 */
static void
warn_of_risks(const List *moves)
{
	PgStat_ArchiverStats *archiver = pgstat_fetch_stat_archiver();
	const char *medium = NULL;
	int64		wal_bytes = 0;

	foreach_ptr(const PlannedMove, move, moves)
	{
		const MoveItem *item = &move->item;

		if (item->outcome.status != STATUS_PLANNED)
			continue;
		wal_bytes += Max(item->wal_bytes, 0);
		/* in the target of a partitioned table, new partitions are made */
		if (medium != NULL ||
			!(RELKIND_HAS_TABLE_AM(item->relkind) || item->relkind == RELKIND_PARTITIONED_TABLE))
			continue;
		medium = tablespace_loses_tables(item->to_tablespace);
		if (medium != NULL)
			ereport(WARNING,
					(errmsg("a reboot loses tables in tablespace \"%s\", which is on %s",
							get_tablespace_name(item->to_tablespace), medium),
					 errhint("Put only indexes there, which can be made again from their tables.")));
	}
	if (XLogArchivingActive() && wal_bytes > 0 &&
		archiver->last_failed_timestamp > archiver->last_archived_timestamp)
		ereport(WARNING,
				(errmsg("the WAL archiver is failing"),
				 errdetail("The last attempt to archive a WAL file failed at %s (%s). The move adds about %lld MB to pg_wal, which stay there until archiving succeeds.",
						   timestamptz_to_str(archiver->last_failed_timestamp),
						   archiver->last_failed_wal,
						   (long long) (wal_bytes / (1024 * 1024) + 1))));
}

/*
 * Complete a plan, which the functions of plan_relations.c but plan_single() have done: skip
 * the tables that this transaction has locked (ERROR 55006 if these are
 * all), estimate each move and whether the free space suffices, and warn of risks.
 *
 * parts: from plan_parts_begin(), if this is a part of a larger plan.  Then a
 * move is skipped for which the parts before leave no space, and there are no WARNINGs.
 */
void
plan_complete(PlanParts *parts, List *moves, const PlanRequest *request)
{
	bool		is_part = parts != NULL;

	plan_skip_parts(moves);
	if (request->waits)
		plan_skip_locked(moves);
	if (!is_part)
		parts = plan_parts_begin();
	foreach_ptr(PlannedMove, move, moves)
	{
		if (move->item.outcome.status == STATUS_PLANNED)
			estimate_move(parts, move, &request->settings);
	}
	estimate_space(parts, moves, &request->settings, is_part);
	if (!is_part)
	{
		note_tight_space(parts, moves, &request->settings);
		warn_of_risks(moves);
	}
	plan_skip_parts(moves);
}
