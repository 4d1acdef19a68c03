/*-------------------------------------------------------------------------
 *
 * holders.h
 *	  Who holds back a move, and what to do about it, for its messages.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_HOLDERS_H
#define IM_HOLDERS_H

#include "lib/stringinfo.h"
#include "storage/lock.h"

/*
 * Append who these processes are (0 = a prepared transaction), and in brackets
 * what can be done about them, as move_blockers() says it.  relid is the relation
 * whose lock they hold, or InvalidOid.
 *
 * For those who are about to raise an error: may leave a transaction open.
 */
extern void holders_describe(StringInfo buf, Oid relid, const int *pids, int npids);

/*
 * The name of a prepared transaction, palloc'd; NULL if it has ended.  Runs in a
 * transaction.
 */
extern char *prepared_transaction_name(VirtualTransactionId vxid);

#endif							/* IM_HOLDERS_H */
