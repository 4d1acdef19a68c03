/*-------------------------------------------------------------------------
 *
 * relation_locks.h
 *	  Locks that outlive a transaction, with time limits, and their waiters
 *	  and holders.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_RELATION_LOCKS_H
#define IM_RELATION_LOCKS_H

#include "portability/instr_time.h"
#include "storage/lock.h"

extern bool lock_relation_within(Oid relid, LOCKMODE mode, bool for_session,
								 int timeout_ms, instr_time *granted_at);
extern void unlock_relation_for_session(Oid relid, LOCKMODE mode);
extern int	relation_lock_waiters(Oid relid, LOCKMODE held, int *pids, int maxpids);
extern VirtualTransactionId *relation_lock_holders(Oid relid, LOCKMODE wanted,
												   int *count);
extern int	relation_vacuum_pid(Oid relid);
extern int	virtual_transaction_pids(const VirtualTransactionId *vxids, int count,
									 int *pids, int maxpids);

#endif							/* IM_RELATION_LOCKS_H */
