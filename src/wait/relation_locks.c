/*-------------------------------------------------------------------------
 *
 * relation_locks.c
 *	  Locks that outlive a transaction, with time limits, and their waiters
 *	  and holders.
 *
 * The abort of any top-level transaction releases session locks, too.  So
 * failure to get a lock in time must abort no more than a subtransaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/genam.h"
#include "access/subtrans.h"
#include "access/table.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"

#include "errors.h"
#include "own_tables.h"
#include "wait/wait.h"

typedef struct LockWork
{
	Oid			relid;
	LOCKMODE	mode;
	bool		for_session;
	instr_time *granted_at;
} LockWork;

static void
lock_relation(void *arg)
{
	LockWork   *work = arg;
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, work->relid);
	(void) LockAcquire(&tag, work->mode, work->for_session, false);
	if (work->granted_at != NULL)
		INSTR_TIME_SET_CURRENT(*work->granted_at);
	/* as LockRelationOid() does */
	AcceptInvalidationMessages();
}

/*
 * Lock a relation of this database, queueing for at most timeout_ms, until the end
 * of the transaction or, with for_session, of the session.  Return false, with
 * nothing changed, if the lock was not granted in that time or the deadlock detector
 * has ended the wait.  *granted_at, unless NULL, is set to the time of the grant.
 *
 * The caller must end its transaction soon: a request for an AccessExclusiveLock
 * assigns an xid even if it fails.
 */
bool
lock_relation_within(Oid relid, LOCKMODE mode, bool for_session, int timeout_ms,
					 instr_time *granted_at)
{
	LockWork	work = {relid, mode, for_session, granted_at};
	int			lock_timeout = LockTimeout;
	ErrorData  *error;

	Assert(IsTransactionState());
	LockTimeout = timeout_ms;
	error = errors_catch(lock_relation, &work);
	LockTimeout = lock_timeout;
	if (error == NULL)
		return true;
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
		error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/* Release a session lock. */
void
unlock_relation_for_session(Oid relid, LOCKMODE mode)
{
	LockRelId	id = {.dbId = MyDatabaseId,.relId = relid};

	Assert(CheckRelationOidLockedByMe(relid, mode, false));
	UnlockRelationIdForSession(&id, mode);
}

/*
 * Find the processes that wait for a lock on a relation, or for that of extension_hold()
 * if relid is 0, that conflicts with the mode "held".  Return their number, at most
 * maxpids.  (Core's LockHasWaitersRelation() must not be asked about a lock on the fast
 * path.)
 */
int
relation_lock_waiters(Oid relid, LOCKMODE held, int *pids, int maxpids)
{
	LOCKTAG		tag;
	LWLock	   *partition;
	int			count = 0;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	if (!OidIsValid(relid))
		extension_lock_tag(&tag);
	partition = LockHashPartitionLock(LockTagHashCode(&tag));
	/* if another partition's lock changes under us, its tag is read in vain */
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

/* Return, without queueing, the transactions that hold a conflicting lock, palloc'd. */
VirtualTransactionId *
relation_lock_holders(Oid relid, LOCKMODE wanted, int *count)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	return GetLockConflicts(&tag, wanted, count);
}

static bool
is_in_list(VirtualTransactionId vxid, const VirtualTransactionId *vxids, int count)
{
	for (int i = 0; i < count; i++)
		if (VirtualTransactionIdEquals(vxids[i], vxid))
			return true;
	return false;
}

/* Add transactions to a palloc'd list, or to NULL, unless they are in it; return the list. */
VirtualTransactionId *
virtual_transactions_add(VirtualTransactionId *vxids, int *count,
						 const VirtualTransactionId *more, int nmore)
{
	vxids = vxids ? repalloc(vxids, sizeof(VirtualTransactionId) * (*count + nmore + 1)) :
		palloc(sizeof(VirtualTransactionId) * (nmore + 1));
	for (int i = 0; i < nmore; i++)
		if (!is_in_list(more[i], vxids, *count))
			vxids[(*count)++] = more[i];
	return vxids;
}

/* Remove from a list the transactions that are not in others.  Return the new length. */
int
virtual_transactions_common(VirtualTransactionId *vxids, int count,
							const VirtualTransactionId *others, int nothers)
{
	int			kept = 0;

	for (int i = 0; i < count; i++)
		if (is_in_list(vxids[i], others, nothers))
			vxids[kept++] = vxids[i];
	return kept;
}

/* Find the transaction that is changing a pg_class row, as GRANT does without a lock. */
bool
relation_row_changer(Oid relid, VirtualTransactionId *vxid)
{
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	TransactionId xid = InvalidTransactionId;
	SnapshotData dirty;
	SysScanDesc scan;
	ScanKeyData key;
	PGPROC	   *proc;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(pg_class, ClassOidIndexId, true, &dirty, 1, &key);
	while (!TransactionIdIsValid(xid) && HeapTupleIsValid(systable_getnext(scan)))
		xid = TransactionIdIsValid(dirty.xmax) ? dirty.xmax : dirty.xmin;
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);

	if (!TransactionIdIsValid(xid))
		return false;
	xid = SubTransGetTopmostTransaction(xid);
	proc = BackendPidGetProc(BackendXidGetPid(xid));
	if (proc != NULL)
		GET_VXID_FROM_PGPROC(*vxid, *proc);
	else
	{
		/* prepared, as GetLockConflicts() has it; or it has just ended */
		SetInvalidVirtualTransactionId(*vxid);
		vxid->localTransactionId = xid;
	}
	return true;
}

/* Return the transaction ID of a prepared transaction; invalid if it is none, or has ended. */
TransactionId
virtual_transaction_prepared(VirtualTransactionId vxid)
{
	bool		have_more;

	/* after a restart it is known by that only */
	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return TransactionIdIsInProgress(vxid.localTransactionId) ?
			vxid.localTransactionId : InvalidTransactionId;
	return TwoPhaseGetXidByVirtualXID(vxid, &have_more);
}

/* Return a transaction's process; 0 if it is prepared, -1 if it has ended. */
int
virtual_transaction_pid(VirtualTransactionId vxid)
{
	PGPROC	   *proc = im_vxid_proc(vxid);

	if (proc != NULL && PROC_LXID(proc) == vxid.localTransactionId)
		return proc->pid;
	return TransactionIdIsValid(virtual_transaction_prepared(vxid)) ? 0 : -1;
}

/* Set pids[], of at most maxpids, to those that are not -1; return their number. */
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
