/*-------------------------------------------------------------------------
 *
 * virtual_transactions.c
 *	  Transactions as GetLockConflicts() names them: by virtual transaction ID,
 *	  prepared ones by transaction ID.
 *
 * A process goes on to its next transaction, which may be innocent of its
 * last.  So a wait keeps the IDs, and they become processes only at the moment at
 * which a process is named or signaled.
 *
 * Locks: ProcArrayLock and TwoPhaseStateLock, for moments.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "storage/procarray.h"

#include "virtual_transactions.h"

/* Return whether a transaction is in a list. */
bool
virtual_transactions_have(const VirtualTransactionId *vxids, int count, VirtualTransactionId vxid)
{
	for (int i = 0; i < count; i++)
	{
		if (VirtualTransactionIdEquals(vxids[i], vxid))
			return true;
	}
	return false;
}

/* Add transactions to a palloc'd list, or to NULL, unless they are in it; return the list. */
VirtualTransactionId *
virtual_transactions_add(VirtualTransactionId *vxids, int *count,
						 const VirtualTransactionId *more, int nmore)
{
	if (vxids != NULL)
		vxids = repalloc(vxids, sizeof(VirtualTransactionId) * (*count + nmore + 1));
	else
		vxids = palloc(sizeof(VirtualTransactionId) * (nmore + 1));
	for (int i = 0; i < nmore; i++)
	{
		if (!virtual_transactions_have(vxids, *count, more[i]))
			vxids[(*count)++] = more[i];
	}
	return vxids;
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

/* Return the transaction of a parallel worker's leader; of any other process, its own. */
VirtualTransactionId
virtual_transaction_of_leader(VirtualTransactionId vxid)
{
	PGPROC	   *proc = im_vxid_proc(vxid);
	PGPROC	   *leader = proc == NULL ? NULL : proc->lockGroupLeader;
	VirtualTransactionId result;

	if (leader == NULL || leader == proc || PROC_LXID(proc) != vxid.localTransactionId)
		return vxid;
	GET_VXID_FROM_PGPROC(result, *leader);
	return VirtualTransactionIdIsValid(result) ? result : vxid;
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

/* Set pids[], of at most maxpids, to the PIDs that are not -1; return their number. */
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
