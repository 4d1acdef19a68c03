/*-------------------------------------------------------------------------
 *
 * plan_estimate.c
 *	  How much a move will read and write, and how long it takes.
 *
 * Sizes are those of the files that pg_class names.  No relation is opened,
 * so planning never waits for a lock.  If a file vanishes in between
 * (TRUNCATE, REINDEX) the size is unknown, which is no error.
 *
 * Time is estimated from past moves of the same method in this database: a
 * small one tells the fixed cost of a move, a large one the rate;
 * without them, from SECONDS_PER_* and the low rates DEFAULT_*.  That of a copy
 * also from a megabyte that is read here from each tablespace, because it
 * rests where that is slow, and past moves may be from another one.
 *
 * Tricky: a moved index frees its old file.  So within one file system only
 * the moves that run at the same time need free space, otherwise all do.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_am.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "cleanup/cleanup.h"
#include "file_system.h"
#include "own_tables.h"
#include "plan/plan_private.h"
#include "wait/wait.h"

#define MB						(1024.0 * 1024.0)

/*
 * Bytes per second without experience: a third to a half of the rates measured
 * on two cores and one fast disk under load.
 */
#define DEFAULT_COPY_RATE		(50 * MB)
#define DEFAULT_BTREE_RATE		(15 * MB)
#define DEFAULT_OTHER_RATE		(5 * MB)
#define DEFAULT_SCAN_RATE		(100 * MB)	/* a rebuild's heap scans */

/* of each move: locks, commits, syncs; 4 to 17 ms on two cores and a fast disk */
#define SECONDS_PER_COPY		0.008
#define SECONDS_PER_REBUILD		0.01
#define SECONDS_PER_JOB			0.2 /* the start of its workers */

/* how much of the log of past moves to read */
#define EXPERIENCE_MOVES		20	/* large ones */
#define EXPERIENCE_ROWS			500
#define EXPERIENCE_MIN_SIZE		(8 * MB)	/* smaller ones tell no rate */
#define EXPERIENCE_MAX_SMALL	(1 * MB)	/* not much but SECONDS_PER_* */
#define EXPERIENCE_MIN_SMALL	5	/* so many, because one may have waited */

/* The sums of past moves by one method */
typedef struct Experience
{
	int			moves;			/* large ones */
	double		bytes;
	double		seconds;
	int			small_moves;
	double		small_seconds;
} Experience;

/*
 * Sum up the latest successful moves by copy (experience[0]) and by rebuild
 * (experience[1]).
 *
 * Reads the log of moves without a check of privileges on it: nothing but
 * averages leaves this file.
 */
static void
read_experience(Experience experience[2])
{
	static const char *const names[] = {"method", "status", "size_before", "started_at", "finished_at", "idle"};
	Oid			log_oid = extension_relation("move_log");
	Relation	log = table_open(log_oid, AccessShareLock);
	Relation	pkey = index_open(extension_relation("move_log_pkey"),
								  AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	int			rows = 0;

	/* backward, for the latest jobs */
	scan = systable_beginscan_ordered(log, pkey, NULL, 0, NULL);
	while (rows++ < EXPERIENCE_ROWS &&
		   HeapTupleIsValid(tuple = systable_getnext_ordered(scan, BackwardScanDirection)))
	{
		Datum		columns[lengthof(names)];
		bool		isnull = false;
		MoveMethod	method;
		Experience *e;
		int64		size;
		double		elapsed;

		for (int n = 0; n < lengthof(names) && !isnull; n++)
			columns[n] = heap_getattr(tuple, get_attnum(log_oid, names[n]),
									  RelationGetDescr(log), &isnull);
		if (isnull ||
			status_of_name(TextDatumGetCString(columns[1])) != STATUS_MOVED)
			continue;
		method = method_of_name(TextDatumGetCString(columns[0]));
		if (method != METHOD_COPY && method != METHOD_REBUILD)
			continue;
		e = &experience[method == METHOD_REBUILD];

		size = DatumGetInt64(columns[2]);
		/* of work only: the next move may not rest or wait */
		elapsed = (DatumGetTimestampTz(columns[4]) - DatumGetTimestampTz(columns[3])) /
			(double) USECS_PER_SEC - DatumGetInt64(columns[5]) / 1000.0;
		if (elapsed <= 0)
			continue;
		if (size >= EXPERIENCE_MIN_SIZE && e->moves < EXPERIENCE_MOVES)
		{
			e->moves++;
			e->bytes += size;
			e->seconds += elapsed;
		}
		else if (size <= EXPERIENCE_MAX_SMALL)
		{
			e->small_moves++;
			e->small_seconds += elapsed;
		}
	}
	systable_endscan_ordered(scan);
	index_close(pkey, AccessShareLock);
	table_close(log, AccessShareLock);
}

/* Return the fixed cost of a move, in seconds. */
static double
seconds_per_move(const Experience *e, double by_default)
{
	return e->small_moves >= EXPERIENCE_MIN_SMALL ?
		e->small_seconds / e->small_moves : by_default;
}

/* The speed of a tablespace, measured once in a plan */
typedef struct SourceSpace
{
	Oid			tablespace;
	double		read_ms;		/* of a megabyte; 0 = unknown */
} SourceSpace;

/* Return the ms that a megabyte of a relation takes to be read, 0 if unknown. */
static double
source_read_ms(List **sources, const PlanEntry *entry)
{
	SourceSpace *source;

	/* a small one tells nothing, and costs no time */
	if (entry->item.size_before < EXPERIENCE_MIN_SIZE)
		return 0;
	foreach_ptr(const SourceSpace, known, *sources)
	{
		if (known->tablespace == entry->facts.tablespace)
			return known->read_ms;
	}
	source = palloc(sizeof(SourceSpace));
	source->tablespace = entry->facts.tablespace;
	source->read_ms = relation_read_ms(entry->facts.tablespace,
									   entry->facts.relfilenumber);
	*sources = lappend(*sources, source);
	return source->read_ms;
}

/* Fill in bytes and seconds of a copy; read_ms: as of source_read_ms(). */
static void
estimate_copy(MoveItem *item, const MoveSettings *settings, const Experience *e, double read_ms)
{
	double		mb = space_to_copy(item) / MB;
	double		per_move = seconds_per_move(e, SECONDS_PER_COPY);

	item->bytes_to_write = space_to_copy(item);
	item->estimated = per_move + mb * MB / (e->moves > 0 ? e->bytes / e->seconds : DEFAULT_COPY_RATE);
	if (read_ms > FAST_READ_MS)
	{
		bool		rests = settings->pacing && settings->max_read_share < 1;

		if (rests)
			item_say(item, "Reading takes %.0f ms/MB, so it rests, to take no more than max_read_share (%g) of the storage.",
					 read_ms, settings->max_read_share);
		item->estimated = Max(item->estimated,
							  per_move + mb * read_ms / 1000 / (rests ? settings->max_read_share : 1));
	}
	if (settings->max_rate > 0)
		item->estimated = Max(item->estimated, mb * 1024 / settings->max_rate);
}

/* The same of a rebuild. */
static void
estimate_rebuild(PlanEntry *entry, const MoveSettings *settings, const Experience *e)
{
	MoveItem   *item = &entry->item;
	int64		size = space_to_copy(item);
	int64		new_size = size * (1.0 - Min(Max(entry->bloat_ratio, 0), 1.0));

	item->bytes_to_write = new_size;
	item->sort_bytes = 0;
	/* a sort that does not fit in memory writes its input once more */
	if (new_size / 1024 > settings->maintenance_work_mem)
	{
		item->sort_bytes = new_size;
		item->bytes_to_write += new_size;
	}
	item->estimated = seconds_per_move(e, SECONDS_PER_REBUILD);
	if (e->moves > 0)
		item->estimated += size / (e->bytes / e->seconds);
	else
		item->estimated += 2.0 * Max(relation_files_size(entry->facts.heap_tablespace,
														 entry->facts.heap_relfilenumber), 0) / DEFAULT_SCAN_RATE +
			new_size / (entry->facts.relam == BTREE_AM_OID ? DEFAULT_BTREE_RATE : DEFAULT_OTHER_RATE);
}

/* Return the bytes still to be made of the new file; sort files go to temp_tablespaces. */
static int64
new_file_size(const MoveItem *item)
{
	int64		kept = item->method == METHOD_COPY ?
		leftover_kept_bytes(item) : 0;

	return Max(item->bytes_to_write - Max(item->sort_bytes, 0) - kept, 0);
}

/* Add a number to the nlargest largest ones, which are sorted downwards. */
static void
keep_largest(int64 *largest, int nlargest, int64 number)
{
	for (int i = 0; i < nlargest; i++)
		if (number > largest[i])
		{
			int64		swap = largest[i];

			largest[i] = number;
			number = swap;
		}
}

static int64
sum_of(const int64 *numbers, int n)
{
	return n == 0 ? 0 : numbers[n - 1] + sum_of(numbers, n - 1);
}

/* The space that moves use on one file system */
typedef struct TargetSpace
{
	int64		device;
	int64		kept;			/* permanently, by the moves before */
	int64		largest[MAX_WORKERS];	/* of moves that keep nothing, and can
										 * run at the same time */
} TargetSpace;

/* The state of a plan that is made in parts */
struct PlanParts
{
	Experience	experience[2];
	List	   *sources;		/* of SourceSpace */
	List	   *targets;		/* of TargetSpace */
	int			nlargest;
	int64		largest_all[MAX_WORKERS];	/* of concurrent moves to any
											 * target: WAL, */
	int64		largest_sort[MAX_WORKERS];	/* sort files */
	bool		warned;			/* of a directory; or it is not to be warned */
};

/* Begin a plan of plan_moves() requests that are parts of it. */
PlanParts *
plan_parts_begin(const MoveSettings *settings)
{
	PlanParts  *parts = palloc0(sizeof(PlanParts));

	read_experience(parts->experience);
	parts->nlargest = Max(settings->max_workers - 1, 0);
	return parts;
}

static TargetSpace *
find_free_space(List **targets, int64 device)
{
	TargetSpace *target;

	foreach_ptr(TargetSpace, known, *targets)
	{
		if (known->device == device)
			return known;
	}
	target = palloc0(sizeof(TargetSpace));
	target->device = device;
	*targets = lappend(*targets, target);
	return target;
}

/*
 * Return whether the directories of a planned move serve; if not, say so in its
 * row, and in a WARNING unless *warned is set, and set that.
 */
static bool
check_directories(MoveItem *item, bool *warned)
{
	Oid			tablespace = item->to_tablespace;
	const char *hindrance = tablespace_hindrance(tablespace);

	/* a rebuild does not read the old file */
	if (hindrance == NULL && item->method == METHOD_COPY && item->size_before < 0)
	{
		tablespace = item->from_tablespace;
		hindrance = tablespace_hindrance(tablespace);
	}
	/* what heal_tablespace() lacks, it makes */
	if (hindrance == NULL || (item->heal && tablespace == item->from_tablespace))
		return true;
	item->fits = false;
	item_say(item, "The directory of tablespace \"%s\" %s.", tablespace_name(tablespace), hindrance);
	if (!*warned)
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_FILE),
				 errmsg("the directory of tablespace \"%s\" %s", tablespace_name(tablespace), hindrance)));
	*warned = true;
	return false;
}

/*
 * Set for a planned move, and for what moves with it, whether there is free
 * space: for the new files, their WAL and sort files, together with the largest
 * moves that can run at the same time, and what those before have kept.  With
 * reserve, it is one of those from now on.  Returns what is missing, if anything.
 */
static const SpaceNeed *
take_space(PlanParts *parts, PlanEntry *entry, const MoveSettings *settings,
		   bool reserve, SpaceNeeds *needs)
{
	MoveItem   *item = &entry->item;
	int64		size = new_file_size(item);
	int64		wal_bytes = Max(item->wal_bytes, 0);
	int			n = parts->nlargest;
	FileSystemFacts facts;
	FileSystemFacts source;
	TargetSpace *target;
	const SpaceNeed *missing;

	if (!check_directories(item, &parts->warned) || item->size_before < 0 ||
		!file_system_facts(item->to_tablespace, &facts))
		return NULL;
	/* all files of a table are there twice until its swap */
	foreach_ptr(const MoveItem, part, entry->parts)
	{
		size += new_file_size(part);
		wal_bytes += Max(part->wal_bytes, 0);
	}
	target = find_free_space(&parts->targets, facts.device);

	space_needs(needs, item->to_tablespace,
				target->kept + sum_of(target->largest, n) + size,
				item->sort_bytes > 0 ? item->sort_bytes + sum_of(parts->largest_sort, n) : 0,
				wal_bytes > 0 ? wal_bytes + sum_of(parts->largest_all, n) : 0);
	missing = size == 0 ? NULL : space_missing(needs, &settings->min_free_space);
	item->fits = missing == NULL;
	foreach_ptr(MoveItem, part, entry->parts)
		part->fits = item->fits;
	if (missing != NULL && !reserve)
		return missing;

	keep_largest(parts->largest_all, n, size);
	keep_largest(parts->largest_sort, n, Max(item->sort_bytes, 0));
	if (file_system_facts(item->from_tablespace, &source) &&
		source.device == facts.device)
		keep_largest(target->largest, n, size);
	else
		target->kept += size;
	return missing;
}

/*
 * Set for each planned move, in order of execution, whether there is free space for
 * it.  In a whole plan, what has none is a WARNING, and so is a missing directory;
 * in a part of a plan such a move is skipped.
 */
void
plan_estimate_space(PlanParts *parts, List *entries, const MoveSettings *settings, bool skip)
{
	int			planned = 0;
	int			too_large = 0;
	char	   *first_reason = NULL;

	parts->warned = skip;		/* the caller has its own words */
	foreach_ptr(PlanEntry, entry, entries)
	{
		MoveItem   *item = &entry->item;
		SpaceNeeds	needs;
		const SpaceNeed *missing;
		char	   *reason;

		if (item->status != STATUS_PLANNED || item->method == METHOD_DEFAULT ||
			OidIsValid(item->part_of))
			continue;
		planned++;
		if (skip)
			item->detail[0] = '\0';
		missing = take_space(parts, entry, settings, !skip, &needs);
		if (skip && missing != NULL)
			item_skip(item, ERRCODE_DISK_FULL, "Tablespace \"%s\" has no space for it.",
					  get_tablespace_name(item->to_tablespace));
		else if (skip && item->fits == 0)	/* it has said which directory
											 * serves not */
			item_skip(item, ERRCODE_UNDEFINED_FILE, "%s", pstrdup(item->detail));
		if (skip || missing == NULL)
			continue;
		reason = psprintf("%s needs %s; %s free, %s reserved by index_mover.min_free_space.",
						  space_place(missing), size_text(missing->needed),
						  size_text(missing->available),
						  size_text(settings_reserved(&settings->min_free_space,
													  missing->total)));
		item_say(item, "Does not fit: %s", reason);
		if (too_large++ == 0)
			first_reason = reason;
		foreach_ptr(MoveItem, part, entry->parts)
			item_say(part, "Does not fit, with its table.");
	}

	if (too_large > 0)
		ereport(WARNING,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("not enough free space for %d of %d planned moves",
						too_large, planned),
				 errdetail("Does not fit: %s", first_reason)));
}

/* entries: in order of execution, size_before, method, bloat_ratio set. */
void
plan_estimate_entries(PlanParts *parts, List *entries, const PlanRequest *request)
{
	foreach_ptr(PlanEntry, entry, entries)
	{
		MoveItem   *item = &entry->item;
		int			pid;

		if (item->status != STATUS_PLANNED)
			continue;
		if (item->method == METHOD_DEFAULT)
			item->bytes_to_write = item->wal_bytes = item->estimated = 0;
		else if (item->size_before >= 0)
		{
			if (item->method == METHOD_COPY)
				estimate_copy(item, &request->settings, &parts->experience[0],
							  source_read_ms(&parts->sources, entry));
			else
				estimate_rebuild(entry, &request->settings, &parts->experience[1]);

			/*
			 * the new file is logged page by page, except with wal_level
			 * minimal
			 */
			item->wal_bytes = !XLogIsNeeded() || entry->facts.persistence != RELPERSISTENCE_PERMANENT ? 0 :
				item->bytes_to_write - Max(item->sort_bytes, 0);
		}
		/* the swap would have to wait for it */
		if (request->dry_run && item->method == METHOD_COPY &&
			(pid = relation_vacuum_pid(item->heap_oid)) != 0)
			item_say(item, "VACUUM of the table is running (process %d); the swap can only come after it.",
					 pid);
	}
}

/*
 * Return the seconds that the planned moves of a job take.  Workers share the
 * small ones; large ones wait for the storage, or for max_rate, which all share.
 */
double
plan_seconds(const List *items, const MoveSettings *settings)
{
	int			sharing = settings->max_rate > 0 ? 1 : settings->max_workers;
	double		seconds = 0;

	foreach_ptr(const MoveItem, item, items)
	{
		if (item->status == STATUS_PLANNED && item->estimated > 0)
			seconds += item->estimated / (item->size_before < EXPERIENCE_MIN_SIZE ? sharing : 1);
	}
	return seconds > 0 ? SECONDS_PER_JOB + seconds : 0;
}

/* Warn of tables that are to be moved to where a reboot loses them. */
void
plan_warn_lost_on_reboot(const List *items)
{
	const char *medium;

	foreach_ptr(const MoveItem, item, items)
	{
		if (item->status != STATUS_PLANNED || !RELKIND_HAS_TABLE_AM(item->relkind) ||
			(medium = tablespace_lost_on_reboot(item->to_tablespace)) == NULL)
			continue;
		ereport(WARNING,
				(errmsg("a reboot loses tables in tablespace \"%s\", which is on %s",
						get_tablespace_name(item->to_tablespace), medium),
				 errhint("Put only indexes there, which can be made again from their tables.")));
		return;
	}
}

/* Warn if WAL will be written while the archiver fails: pg_wal keeps it. */
void
plan_warn_archiver(const List *items)
{
	PgStat_ArchiverStats *stats = pgstat_fetch_stat_archiver();
	int64		wal_bytes = 0;

	foreach_ptr(const MoveItem, item, items)
	{
		if (item->status == STATUS_PLANNED && item->wal_bytes > 0)
			wal_bytes += item->wal_bytes;
	}
	if (XLogArchivingActive() && wal_bytes > 0 &&
		stats->last_failed_timestamp > stats->last_archived_timestamp)
		ereport(WARNING,
				(errmsg("the WAL archiver is failing"),
				 errdetail("The last attempt to archive a WAL file failed at %s (%s). The move adds about %lld MB to pg_wal, which stay there until archiving succeeds.",
						   timestamptz_to_str(stats->last_failed_timestamp),
						   stats->last_failed_wal,
						   (long long) (wal_bytes / (1024 * 1024) + 1))));
}
