/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every test of the server's version, spelt as in the newest core.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COMPAT_H
#define IM_COMPAT_H

#if PG_VERSION_NUM < 150000
#error index_mover needs PostgreSQL 15 or newer
#endif

#if PG_VERSION_NUM >= 160000
#include "storage/relfilelocator.h"
#else
#include "storage/relfilenode.h"

typedef Oid RelFileNumber;
typedef RelFileNode RelFileLocator;
#define RelFileNumberIsValid(n) OidIsValid(n)
#endif

#include "storage/lwlock.h"
#include "storage/shmem.h"

/*
 * A shared area of our own that needs no preloading.  Before 17 it is cut from
 * the slack of the main segment, as contrib/pg_prewarm does.
 */
#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#endif

static inline void *
im_shared_area(const char *name, Size size, void (*init) (void *ptr))
{
	bool		found;
	void	   *result;

#if PG_VERSION_NUM >= 170000
	result = GetNamedDSMSegment(name, size, init, &found);
#else
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	result = ShmemInitStruct(name, size, &found);
	if (!found)
		init(result);
	LWLockRelease(AddinShmemInitLock);
#endif
	return result;
}

static inline int
im_new_tranche_id(const char *name)
{
#if PG_VERSION_NUM >= 190000
	return LWLockNewTrancheId(name);
#else
	return LWLockNewTrancheId();
#endif
}

static inline void
im_register_tranche(int tranche, const char *name)
{
#if PG_VERSION_NUM < 190000
	LWLockRegisterTranche(tranche, name);
#endif
}

/* custom wait events came with 17 */
#if PG_VERSION_NUM >= 170000
#include "utils/wait_event.h"
#define IM_WAIT_EVENT(variable, name) \
	((variable) != 0 ? (variable) : ((variable) = WaitEventExtensionNew(name)))
#else
#define IM_WAIT_EVENT(variable, name) ((void) (variable), PG_WAIT_EXTENSION)
#endif

#include "storage/lock.h"
/*
 * libpq/libpq.h wants the headers of GSSAPI and OpenSSL, which the packages of
 * PostgreSQL's headers don't bring along.
 */
extern bool pq_check_connection(void);

/* LockHeldByMe() got a third argument with 17 */
#if PG_VERSION_NUM < 170000
#define LockHeldByMe(locktag, lockmode, orstronger) LockHeldByMe(locktag, lockmode)
#endif

/* what a runner needs to set a caller's latch */
#include "storage/proc.h"
static inline int
im_my_procno(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

/* the process behind a virtual transaction; NULL for a prepared one */
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
static inline PGPROC *
im_vxid_proc(VirtualTransactionId vxid)
{
#if PG_VERSION_NUM >= 170000
	return vxid.procNumber == INVALID_PROC_NUMBER ? NULL : ProcNumberGetProc(vxid.procNumber);
#else
	return vxid.backendId == InvalidBackendId ? NULL : BackendIdGetProc(vxid.backendId);
#endif
}

/* 16 renamed the way to look at another backend's status */
#include "utils/backend_status.h"
#if PG_VERSION_NUM < 160000
#define pgstat_get_local_beentry_by_index(n) pgstat_fetch_stat_local_beentry(n)
#endif

#endif							/* IM_COMPAT_H */
