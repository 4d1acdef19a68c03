/*-------------------------------------------------------------------------
 *
 * relation_locks.c
 *	  Locks that outlive a transaction, with time limits, and their waiters
 *	  and holders.
 *
 * The abort of any top-level transaction releases session locks, too.  So
 * failure to get a lock in time must abort no more than a subtransaction.
 *
 * proof/swap.pml is a model of this protocol.
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
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "errors.h"
#include "own_tables.h"
#include "test_points.h"
#include "wait/wait.h"

typedef struct LockWork
{
	Oid			relid;
	LOCKMODE	mode;
	instr_time *granted_at;
} LockWork;

static void
lock_relation(void *arg)
{
	LockWork   *work = arg;

	LockRelationOid(work->relid, work->mode);
	IM_POINT("lock-granted");
	/* core can grant the lock and keep the timeout for later */
	CHECK_FOR_INTERRUPTS();
	if (work->granted_at != NULL)
		INSTR_TIME_SET_CURRENT(*work->granted_at);
}

/*
 * Lock a relation of this database until the end of the transaction, queueing for at most
 * timeout_ms.  Return false, with nothing changed, if the lock was not granted in that
 * time or the deadlock detector has ended the wait.  *granted_at, unless NULL, is set to
 * the time of the grant.
 *
 * The grant can meet the timeout, a cancel or the end of the process: then core takes the
 * lock, and raises the ERROR all the same (LockErrorCleanup() in storage/lmgr/proc.c).  So
 * a session lock is never waited for: it would belong to no resource owner, and no abort
 * of the subtransaction would release it.
 *
 * The caller must end its transaction soon: a request for an AccessExclusiveLock
 * assigns an xid even if it fails.
 */
bool
lock_relation_within(Oid relid, LOCKMODE mode, int timeout_ms, instr_time *granted_at)
{
	LockWork	work = {relid, mode, granted_at};
	bool		held PG_USED_FOR_ASSERTS_ONLY = CheckRelationOidLockedByMe(relid, mode, false);
	int			lock_timeout = LockTimeout;
	ErrorData  *error;

	Assert(IsTransactionState());
	LockTimeout = timeout_ms;
	/* step: lock-within */
	error = errors_catch(lock_relation, &work);
	LockTimeout = lock_timeout;
	if (error == NULL)
		return true;
	Assert(CheckRelationOidLockedByMe(relid, mode, false) == held);
	if (!errors_was_hindered(error))
		ReThrowError(error);
	FreeErrorData(error);
	return false;
}

/* Keep a lock of this transaction for the session, too; that waits for no session, and cannot fail. */
void
keep_relation_lock(Oid relid, LOCKMODE mode)
{
	LockRelId	id = {.dbId = MyDatabaseId,.relId = relid};

	Assert(CheckRelationOidLockedByMe(relid, mode, false));
	LockRelationIdForSession(&id, mode);
}

/* Release a session lock. */
void
unlock_relation_for_session(Oid relid, LOCKMODE mode)
{
	LockRelId	id = {.dbId = MyDatabaseId,.relId = relid};

	Assert(CheckRelationOidLockedByMe(relid, mode, false));
	UnlockRelationIdForSession(&id, mode);
}

#if defined(USE_ASSERT_CHECKING) || defined(INDEX_MOVER_TEST)
/*
 * Check that this process, which has no transaction open, has session locks on so many
 * relations.  A lock that a wait in vain has left would stay until the process ends, and
 * every DDL of the relation would wait for the rest of the job.
 */
void
check_relation_locks(int expected)
{
	LockData   *locks = GetLockStatusData();
	List	   *relids = NIL;

	Assert(!IsTransactionState());
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		/*
		 * It can be there twice: on the fast path, and in the table of locks
		 * if another session has put it there meanwhile.
		 */
		if (lock->pid == MyProcPid && lock->holdMask != 0 &&
			lock->locktag.locktag_type == LOCKTAG_RELATION)
			relids = list_append_unique_oid(relids, lock->locktag.locktag_field2);
	}
	pfree(locks->locks);
	pfree(locks);
	if (list_length(relids) != expected)
		elog(PANIC, "locks on %d relations are held in place of %d", list_length(relids), expected);
	list_free(relids);
}
#endif

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

/*
 * Return whether no other process holds any lock on a relation, nor one on the table of an
 * index that keeps all others out.  Needs no transaction.
 */
bool
relation_is_free(const MoveItem *item)
{
	int			count;
	int			heap_count = 0;

	pfree(relation_lock_holders(item->relid, AccessExclusiveLock, &count));
	if (item->heap_oid != item->relid)
		pfree(relation_lock_holders(item->heap_oid, AccessShareLock, &heap_count));
	return count == 0 && heap_count == 0;
}

/*
 * Return, without queueing, the transactions that hold a conflicting lock, palloc'd.  A parallel
 * worker counts as its leader: it comes and goes in the leader's transaction, and passes who
 * stands in the queue.
 */
VirtualTransactionId *
relation_lock_holders(Oid relid, LOCKMODE wanted, int *count)
{
	LOCKTAG		tag;
	VirtualTransactionId *vxids;
	int			kept = 0;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	vxids = GetLockConflicts(&tag, wanted, count);
	for (int i = 0; i < *count; i++)
	{
		VirtualTransactionId vxid = virtual_transaction_of_leader(vxids[i]);

		if (!virtual_transactions_have(vxids, kept, vxid))
			vxids[kept++] = vxid;
	}
	*count = kept;
	return vxids;
}

/* Return where the row of a relation is in pg_class; invalid if it was dropped. */
ItemPointerData
relation_row_position(Oid relid)
{
	HeapTuple	tuple;
	ItemPointerData position;

	AcceptInvalidationMessages();
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	ItemPointerSetInvalid(&position);
	if (HeapTupleIsValid(tuple))
	{
		position = tuple->t_self;
		ReleaseSysCache(tuple);
	}
	return position;
}

/*
 * Return whether another transaction has changed the row since then.  Core's "tuple concurrently
 * updated", which our update then has raised, is an internal error.
 */
bool
relation_row_has_moved(Oid relid, const ItemPointerData *since)
{
	ItemPointerData now = relation_row_position(relid);

	return memcmp(since, &now, sizeof(now)) != 0;
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
	/* else the process may have gone on to its next transaction meanwhile */
	if (proc == NULL || BackendXidGetPid(xid) != proc->pid)
	{
		/* prepared, as GetLockConflicts() has it; or it has just ended */
		SetInvalidVirtualTransactionId(*vxid);
		vxid->localTransactionId = xid;
	}
	return true;
}
