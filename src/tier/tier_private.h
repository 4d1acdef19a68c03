/*-------------------------------------------------------------------------
 *
 * tier_private.h
 *	  What the parts of the placement share: heat, places, and the one ranking.
 *
 * Nothing here takes a lock on a user's relation: all is read from the catalogs,
 * the cumulative statistics, the samples and the file system, in the caller's
 * transaction and memory context.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIER_PRIVATE_H
#define IM_TIER_PRIVATE_H

#include "access/htup_details.h"
#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

#include "compat.h"
#include "file_system.h"

/* ----------------------------------------------------------------
 *	heat.c: how much a relation is used, and how sure that is
 * ----------------------------------------------------------------
 */

/* The counters of a relation; the order is that of the table "sample" */
enum
{
	HEAT_READ,					/* blocks read into shared buffers */
	HEAT_WANTED,				/* as many as index scans and changes can have
								 * asked for: VACUUM and pg_dump read, too */
	HEAT_INDEX_SCANS,			/* of a table those of all its indexes */
	HEAT_OTHER_SCANS,			/* of a table: sequential scans and the like */
	HEAT_CHANGES,				/* rows inserted, updated, deleted; of an
								 * index entries made */
	HEAT_COUNTERS
};

/* columns of index_mover.sample, as in the SQL script */
enum
{
	Anum_sample_taken_at = 1,
	Anum_sample_table_oid,
	Anum_sample_index_name,
	Anum_sample_counters,		/* the first */
	Natts_sample = Anum_sample_counters + HEAT_COUNTERS - 1
};

typedef struct HeatSample
{
	Oid			table_oid;		/* 0: the row says only that samples were
								 * taken at this moment */
	NameData	index_name;		/* "" = of the table itself */
	TimestampTz taken_at;
	int64		counters[HEAT_COUNTERS];
	ItemPointerData tid;
} HeatSample;

extern HeatSample *heat_samples(Relation rel, int *count);

/* One kind of use, as far as samples and statistics of this server tell */
typedef struct HeatUse
{
	TimestampTz last;			/* the last that was seen, or the end of the
								 * step in which it was; 0 = none was seen */
	TimestampTz known_since;	/* since then no other can have been unseen */
} HeatUse;

/* A table, materialized view or index with a file, permanent or unlogged */
typedef struct Heat
{
	Oid			relid;
	Oid			table_oid;		/* of an index its table, else relid */
	NameData	name;
	Oid			schema_oid;
	char		relkind;		/* RELKIND_RELATION, _MATVIEW or _INDEX */
	char		persistence;
	Oid			tablespace;		/* never 0: the database's default by its OID */
	RelFileNumber relfilenumber;
	Oid			toast_oid;		/* of a table; 0 = none */
	bool		is_valid;		/* of an index: valid, ready and live */
	bool		is_searched;	/* false: an index that enforces nothing, and
								 * no scan has used as far back as the
								 * statistics go */
	bool		of_extension;	/* it, or its table, belongs to an extension */

	/* rates of the last week's samples; without any, of the statistics */
	double		reads_per_second;	/* HEAT_READ */
	double		wanted_per_second;	/* HEAT_WANTED, as far as it was read */
	double		seconds;		/* the period */
	int			samples;		/* in it; 0 = the cumulative statistics */

	HeatUse		scans;			/* of any kind */
	HeatUse		index_scans;
	HeatUse		changes;		/* INSERT, UPDATE, DELETE; not VACUUM */

	/* for heat.c and samples.c */
	int64		counters[HEAT_COUNTERS];	/* of now */
	bool		is_sampled;		/* the last sample has the same */
	int64		fetched;		/* of an index: rows of the table */
	int64		to_indexes;		/* of a table: entries that its indexes took */
	int64		to_indexes_cold;	/* the same without HOT updates */
	TimestampTz last_scan;		/* 0 = none, or not known before 16 */
	TimestampTz last_index_scan;	/* of a table: the last of its indexes */
} Heat;

typedef struct HeatTable
{
	Heat	   *heats;			/* in the order of relid */
	int			n;
	TimestampTz last_moment;	/* of the last sample; 0 = there is none */
} HeatTable;

extern TimestampTz heat_stats_since(void);
extern HeatTable *heat_read(void);
extern Heat *heat_of(const HeatTable *table, Oid relid);
extern int64 heat_size(const Heat *heat);

typedef enum IdleOf
{
	IDLE_OF_USE,				/* no scan of any kind, no change */
	IDLE_OF_INDEX_USE,			/* no index scan, no change */
	IDLE_OF_CHANGE,				/* no change */
} IdleOf;

typedef enum IdleAnswer
{
	IDLE_YES,
	IDLE_NO,
	IDLE_NOT_KNOWN,				/* the evidence does not reach back so far */
} IdleAnswer;

extern IdleAnswer heat_idle(const Heat *heat, IdleOf of, TimestampTz since, TimestampTz *moment);

/* ----------------------------------------------------------------
 *	places.c: tablespaces
 * ----------------------------------------------------------------
 */
typedef struct Place
{
	Oid			oid;
	NameData	name;
	double		cost;			/* random_page_cost */
	TimestampTz probed_at;		/* 0 = not in the last 90 days */
	double		read_ms;		/* as probed, or else by cost */
	bool		is_there;		/* false: facts are all zero, its directory
								 * cannot be read */
	FileSystemFacts facts;
	int64		reserved;		/* bytes, by index_mover.min_free_space */
} Place;

typedef struct PlaceTable
{
	Place	   *places;			/* without pg_global */
	int			n;
} PlaceTable;

/* How a difference is known */
typedef enum PlaceBasis
{
	PLACE_SAME_DEVICE,
	PLACE_PROBED,
	PLACE_COSTS,				/* random_page_cost */
	PLACE_HEAT_ALONE,			/* neither probed, costs equal: counts as 1 ms */
} PlaceBasis;

extern PlaceTable *places_read(void);
extern Place *places_find(const PlaceTable *table, Oid tablespace);
extern double place_difference(const Place *here, const Place *target, PlaceBasis *basis);

/* ----------------------------------------------------------------
 *	ranking.c: who goes, who stays, who leaves; knows only this
 * ----------------------------------------------------------------
 */
#define RANKING_MIN_HEAT	0.01	/* blocks wanted a second: below it
									 * nothing moves in */
#define RANKING_STAYS		1.2 /* as many times as much must another gain to
								 * take the place of a resident */

typedef enum CandidateFate
{
	CANDIDATE_REMAINS,			/* is not in the target, and does not go there */
	CANDIDATE_GOES,
	CANDIDATE_STAYS,			/* is in the target, and stays there */
	CANDIDATE_LEAVES,
} CandidateFate;

typedef struct Candidate
{
	int64		size;			/* bytes that it has, or would have, in the
								 * target */
	double		value;			/* ms a second that it gains there; below 0:
								 * it would be faster elsewhere */
	bool		is_resident;	/* it is in the target */
	bool		is_fixed;		/* a resident that has no other place */
	CandidateFate fate;			/* set by ranking_choose() */

	/* for the caller */
	const Heat *heat;
	Oid			home;			/* of a resident: where it goes if it leaves */
	PlaceBasis	basis;			/* of the value */
	bool		may_copy;
	bool		may_rebuild;
	bool		rebuilds;		/* it moves by a rebuild, which leaves "size" */
	double		bloat;			/* share that this frees; NaN = not measured */
	bool		bloat_is_least; /* it frees this at least */
} Candidate;

extern void ranking_choose(Candidate *candidates, int n, int64 budget);

/* ----------------------------------------------------------------
 *	candidates.c: from heat and places to candidates for one target
 * ----------------------------------------------------------------
 */

/* Return whether a relation takes part; arg is the caller's. */
typedef bool (*CandidateFilter) (const Heat *heat, void *arg);

extern Candidate *candidates_collect(const HeatTable *heats, const PlaceTable *places,
									 Oid target, Oid home,
									 CandidateFilter filter, void *arg, int *n);

#endif							/* IM_TIER_PRIVATE_H */
