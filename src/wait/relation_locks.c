/*-------------------------------------------------------------------------
 *
 * relation_locks.c
 *	  Locks that outlive a transaction, with time limits, and who is behind
 *	  and before us.
 *
 * A long operation that must not hold back vacuum works in a chain of short
 * transactions, and so holds its locks for the session.  Session locks go with
 * the session, with unlock_relation_for_session(), or with the abort of any
 * top-level transaction: hence a lock that could not be had in time must not
 * abort more than a subtransaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/resowner.h"

#include "compat.h"
#include "wait/relation_locks.h"

/*
 * Lock a relation of this database, standing in the queue for at most
 * timeout_ms.  Returns false if that was not enough, or if the deadlock
 * detector took us out of the queue; nothing has changed then.
 *
 * The caller is in a transaction, and must end it soon: asking for an
 * AccessExclusiveLock gives it an xid even if it fails.  The lock goes at the
 * end of the transaction or, with for_session, with the session.  *granted_at,
 * unless NULL, is when we had it: what is done here afterwards, others wait for.
 */
bool
lock_relation_within(Oid relid, LOCKMODE mode, bool for_session, int timeout_ms,
					 instr_time *granted_at)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	ResourceOwner oldowner = CurrentResourceOwner;
	volatile bool locked = true;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(oldcxt);

	PG_TRY();
	{
		LOCKTAG		tag;
		int			nestlevel = NewGUCNestLevel();
		char		value[32];

		snprintf(value, sizeof(value), "%dms", timeout_ms);
		(void) set_config_option("lock_timeout", value, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
		(void) LockAcquire(&tag, mode, for_session, false);
		if (granted_at != NULL)
			INSTR_TIME_SET_CURRENT(*granted_at);
		/* as LockRelationOid() does: now we want to know what has changed */
		AcceptInvalidationMessages();

		AtEOXact_GUC(false, nestlevel);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(oldcxt);
		error = CopyErrorData();
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
			PG_RE_THROW();

		FlushErrorState();
		FreeErrorData(error);
		RollbackAndReleaseCurrentSubTransaction();
		locked = false;
	}
	PG_END_TRY();

	MemoryContextSwitchTo(oldcxt);
	CurrentResourceOwner = oldowner;
	return locked;
}

/* Give back a session lock. */
void
unlock_relation_for_session(Oid relid, LOCKMODE mode)
{
	LockRelId	id;

	id.dbId = MyDatabaseId;
	id.relId = relid;
	UnlockRelationIdForSession(&id, mode);
}

/*
 * Does anybody wait for a lock on this relation that conflicts with the one
 * that we hold?  Returns how many (not more than maxpids), and who.
 *
 * core's LockHasWaitersRelation() would do, but must not be asked for a lock
 * that was taken on the fast path, as an AccessShareLock is.
 */
int
relation_lock_waiters(Oid relid, LOCKMODE held, int *pids, int maxpids)
{
	LOCKTAG		tag;
	LWLock	   *partition;
	int			count = 0;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	partition = LockHashPartitionLock(LockTagHashCode(&tag));

	/*
	 * Nobody begins or ends to wait for this lock while we hold its
	 * partition. Another lock that somebody waits for may change under us;
	 * but it is another one, and to read its tag in vain is all that can
	 * happen.
	 */
	LWLockAcquire(partition, LW_SHARED);
	for (uint32 i = 0; i < ProcGlobal->allProcCount && count < maxpids; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		LOCK	   *lock = proc->waitLock;

		if (lock != NULL && proc != MyProc && proc->pid != 0 &&
			memcmp(&lock->tag, &tag, sizeof(LOCKTAG)) == 0 &&
			DoLockModesConflict(proc->waitLockMode, held))
			pids[count++] = proc->pid;
	}
	LWLockRelease(partition);
	return count;
}

/*
 * Who holds a lock on this relation that would make us wait for ours?  A look,
 * without standing in the queue.  Returns a palloc'd array.
 */
VirtualTransactionId *
relation_lock_holders(Oid relid, LOCKMODE wanted, int *count)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return GetLockConflicts(&tag, wanted, count);
}

/*
 * The process that runs a VACUUM of this table, which keeps its locks on the
 * indexes to its end; 0 if there is none.  An autovacuum does not count, for it is
 * asked to give up; unless it works against wraparound.
 */
int
relation_vacuum_pid(Oid relid)
{
	int			count;
	VirtualTransactionId *holders = relation_lock_holders(relid, ShareUpdateExclusiveLock,
														  &count);
	int			pid = 0;

	for (int i = 0; i < count && pid == 0; i++)
	{
		PGPROC	   *proc = im_vxid_proc(holders[i]);
		uint8		flags;

		if (proc == NULL)
			continue;
		LWLockAcquire(ProcArrayLock, LW_SHARED);
		flags = ProcGlobal->statusFlags[proc->pgxactoff];
		LWLockRelease(ProcArrayLock);
		if ((flags & PROC_IN_VACUUM) &&
			!((flags & PROC_IS_AUTOVACUUM) && !(flags & PROC_VACUUM_FOR_WRAPAROUND)))
			pid = proc->pid;
	}
	pfree(holders);
	return pid;
}

/*
 * The process that runs a transaction; 0 for a prepared one, which keeps the
 * number that it had in the session that has prepared it; -1 if it has ended.
 */
static int
virtual_transaction_pid(VirtualTransactionId vxid)
{
	PGPROC	   *proc = im_vxid_proc(vxid);
	bool		have_more;

	if (proc != NULL && PROC_LXID(proc) == vxid.localTransactionId)
		return proc->pid;
	/* one that was restored after a restart has no number but its xid */
	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return TransactionIdIsInProgress(vxid.localTransactionId) ? 0 : -1;
	return TransactionIdIsValid(TwoPhaseGetXidByVirtualXID(vxid, &have_more)) ? 0 : -1;
}

/*
 * The backends that run these transactions, not more than maxpids of them.  A
 * prepared transaction has none, and counts as pid 0; one that has ended
 * meanwhile does not count.
 */
int
virtual_transaction_pids(const VirtualTransactionId *vxids, int count,
						 int *pids, int maxpids)
{
	int			npids = 0;

	for (int i = 0; i < count && npids < maxpids; i++)
	{
		int			pid = virtual_transaction_pid(vxids[i]);

		if (pid >= 0)
			pids[npids++] = pid;
	}
	return npids;
}
