/*-------------------------------------------------------------------------
 *
 * virtual_transactions.h
 *	  Transactions as GetLockConflicts() names them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_VIRTUAL_TRANSACTIONS_H
#define IM_VIRTUAL_TRANSACTIONS_H

#include "compat.h"

extern bool virtual_transactions_have(const VirtualTransactionId *vxids, int count,
									  VirtualTransactionId vxid);
extern VirtualTransactionId *virtual_transactions_add(VirtualTransactionId *vxids, int *count,
													  const VirtualTransactionId *more, int nmore);
extern VirtualTransactionId virtual_transaction_of_leader(VirtualTransactionId vxid);
extern TransactionId virtual_transaction_prepared(VirtualTransactionId vxid);
extern int	virtual_transaction_pid(VirtualTransactionId vxid);
extern int	virtual_transaction_pids(const VirtualTransactionId *vxids, int count,
									 int *pids, int maxpids);

#endif							/* IM_VIRTUAL_TRANSACTIONS_H */
