/*-------------------------------------------------------------------------
 *
 * receivers.c
 *	  Receivers of WAL: core's arrays of WAL senders and replication slots.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"

#include "wait/wait.h"

/*
 * Return the next WAL sender that is in use, NULL after the last one.  *i is 0 at
 * first.  The caller reads its fields under its mutex, or one by one.
 */
WalSnd *
walsender_next(int *i)
{
	while (WalSndCtl != NULL && *i < max_wal_senders)
	{
		WalSnd	   *walsnd = &WalSndCtl->walsnds[(*i)++];

		if (*(volatile pid_t *) &walsnd->pid != 0)
			return walsnd;
	}
	return NULL;
}

/* As walsender_next(), of replication slots, under ReplicationSlotControlLock or in a signal handler. */
ReplicationSlot *
slot_next(int *i)
{
	while (*i < max_replication_slots)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[(*i)++];

		if (slot->in_use)
			return slot;
	}
	return NULL;
}
