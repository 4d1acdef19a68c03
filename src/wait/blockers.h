/*-------------------------------------------------------------------------
 *
 * blockers.h
 *	  Signalling those who stand in the way of a move.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_BLOCKERS_H
#define IM_BLOCKERS_H

#include "job.h"
#include "utils/backend_status.h"

/* How long those who were signalled may take to let go */
#define BLOCKER_GRACE_MS	5000

/*
 * From here to the next blockers_tell(), leftovers are removed for this item:
 * who is in the way of that is found by blockers_item().
 */
extern void blockers_begin(MoveItem *item, const MoveSettings *settings);

/* That item and its settings; NULL if there is none. */
extern MoveItem *blockers_item(const MoveSettings **settings);

/*
 * index_mover.lock_wait is over: cancel or terminate those of these processes
 * that may be, as index_mover.on_blocker says.  Returns how many were signalled
 * for the first time by this item; 0 = give up.  In a transaction or not.
 */
extern int	blockers_signal(MoveItem *item, const MoveSettings *settings,
							const int *pids, int npids);

/*
 * What is published about a backend; NULL if there is none.  Valid until the
 * next call.
 */
extern PgBackendStatus *blockers_find(int pid);

/* May the current user signal sessions of this role?  In a transaction. */
extern bool blockers_may_signal(Oid role);

/*
 * Say, as a WARNING and in the item's detail, that a session was signalled.
 * xact_start: of its transaction, 0 = not known.  In a transaction.
 */
extern void blockers_note(const MoveItem *item, int pid, Oid role,
						  bool terminate, TimestampTz xact_start);

/* The item ends: add to its detail who was signalled for it. */
extern void blockers_tell(MoveItem *item);

/* Cancel the autovacuums among these, but none against wraparound. */
extern void blockers_cancel_autovacuum(const int *pids, int npids);

#endif							/* IM_BLOCKERS_H */
