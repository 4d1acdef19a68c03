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
#include "storage/block.h"

#include "compat.h"
#include "file_system.h"

/* ----------------------------------------------------------------
 *	heat.c: how much a relation is used, and how sure that is
 * ----------------------------------------------------------------
 */

/* One kind of use, as far as samples and statistics of this server tell */
typedef struct HeatUse
{
	TimestampTz last;			/* not after this moment, the last that was
								 * seen; 0 = none was seen */
	TimestampTz known_since;	/* before it nothing is known, except "last" */
} HeatUse;

/* A table, materialized view or index with a file, permanent or unlogged */
typedef struct Heat
{
	Oid			relid;
	Oid			table_oid;		/* of an index its table, else relid */
	NameData	name;
	Oid			schema_oid;
	Oid			owner;
	Oid			access_method;
	char		relkind;		/* RELKIND_RELATION, _MATVIEW or _INDEX */
	char		persistence;
	Oid			tablespace;		/* never 0: the database's default by its OID */
	RelFileNumber relfilenumber;
	Oid			toast_oid;		/* of a table; 0 = none */
	RelFileNumber toast_relfilenumber;
	bool		is_partition;
	bool		is_valid;		/* of an index: valid, ready and live */
	bool		is_unique;		/* an index that enforces something */
	bool		is_searched;	/* false: an index that no scan has used as
								 * long as the statistics go back */
	bool		of_extension;	/* it, or its table, belongs to an extension */

	/* rates of the last week's samples; without any, of the statistics */
	double		reads_per_second;	/* blocks read into shared buffers */
	double		wanted_per_second;	/* of these, as many as index scans and
									 * changes can have asked for */
	double		seconds;		/* the period */
	int			samples;		/* in it; 0 = the cumulative statistics */

	HeatUse		scans;			/* index scans, and sequential scans */
	HeatUse		index_scans;
	HeatUse		changes;		/* INSERT, UPDATE, DELETE; not VACUUM */
} Heat;

typedef struct HeatTable
{
	Heat	   *heats;			/* in the order of relid */
	int			n;
} HeatTable;

extern const HeatTable *heat_read(void);
extern const Heat *heat_of(const HeatTable *table, Oid relid);
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
	double		probed_ms;		/* of the last 90 days; NaN = not probed */
	double		read_ms;		/* probed, or else cost * 0.1 */
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

extern const PlaceTable *places_read(void);
extern const Place *place_of(const PlaceTable *table, Oid tablespace);
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
	Oid			home;			/* where it goes if it leaves the target */
	PlaceBasis	basis;
	bool		rebuilds;		/* its move is a rebuild, of "size" bytes */
	double		bloat_ratio;	/* NaN = not measured */
	double		bloat_at_least;
} Candidate;

extern void ranking_choose(Candidate *candidates, int n, int64 budget);

/* ----------------------------------------------------------------
 *	candidates.c: from heat and places to candidates for one target
 * ----------------------------------------------------------------
 */

/* Return whether a relation takes part; arg is the caller's. */
typedef bool (*CandidateFilter) (const Heat *heat, void *arg);

extern Candidate *candidates_collect(const HeatTable *heat, const PlaceTable *places,
									 Oid target, Oid home,
									 CandidateFilter filter, void *arg, int *n);

#endif							/* IM_TIER_PRIVATE_H */
