/*-------------------------------------------------------------------------
 *
 * lock_poll.h
 *	  Getting a lock without standing in its queue.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LOCK_POLL_H
#define IM_LOCK_POLL_H

#include "storage/lock.h"

/*
 * Take a lock on a relation to the end of the transaction, by asking again and
 * again rather than by queueing, so that nobody has to wait behind us.  The
 * pids of who holds it are published while we wait.  wait_ms: how long to try,
 * 0 = for ever.  ERROR 55P03 naming the holders when the time is over.
 */
extern void lock_poll_relation(Oid relid, LOCKMODE lockmode, int wait_ms);

/* pids of those who hold a conflicting lock, 0 for prepared transactions */
extern int	lock_holders(const LOCKTAG *tag, LOCKMODE lockmode, int *pids, int maxpids);

#endif							/* IM_LOCK_POLL_H */
