/*-------------------------------------------------------------------------
 *
 * replica_lag.h
 *	  How far standbys and replication slots are behind.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_REPLICA_LAG_H
#define IM_REPLICA_LAG_H

#include "settings.h"

/* What a move remembers about it; set to zero at its start. */
typedef struct ReplicaLag
{
	bool		waiting;		/* until it is below half of the limit */
	int64		at_once;		/* bytes of WAL that will be written without
								 * another look; 0 for a copy */
} ReplicaLag;

/*
 * Say who is furthest behind now: "the standby with process 17", "replication
 * slot x".  Palloc'd; NULL if there is nobody.  Needs no transaction.
 */
extern char *replica_lag_worst(void);

/*
 * How far behind, in bytes, a slot may be before it has to be feared for; -1 =
 * slots are not invalidated.
 */
extern int64 replica_lag_slot_limit(void);

extern bool replica_lag_too_large(ReplicaLag *state, const MoveSettings *settings);

#endif							/* IM_REPLICA_LAG_H */
