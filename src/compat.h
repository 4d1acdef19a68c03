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
#define RelFileLocatorEquals(a, b) RelFileNodeEquals(a, b)
#define GetNewRelFileNumber(t, c, p) GetNewRelFileNode(t, c, p)
#define RelationMapFilenumberToOid(n, s) RelationMapFilenodeToOid(n, s)
#define DropRelationsAllBuffers(r, n) DropRelFileNodesAllBuffers(r, n)
#define spcOid spcNode
#define dbOid dbNode
#define relNumber relNode
#define rd_locator rd_node
#define rlocator rnode

/* wants storage/buf_internals.h, like its newer namesake */
#define BufTagMatchesRelFileLocator(tag, locator) \
	RelFileNodeEquals((tag)->rnode, *(locator))
#endif

#if PG_VERSION_NUM < 170000
#define INVALID_PROC_NUMBER InvalidBackendId
#define ProcNumberGetProc(n) BackendIdGetProc(n)
#define vxid_proc_number(v) ((v).backendId)
#define proc_lxid(p) ((p)->lxid)
#else
#define vxid_proc_number(v) ((v).procNumber)
#define proc_lxid(p) ((p)->vxid.lxid)
#endif

/* The path of a fork's first segment, palloc'd; wants common/relpath.h. */
#if PG_VERSION_NUM >= 180000
#define relation_fork_path(locator, fork) pstrdup(relpathperm(locator, fork).str)
#else
#define relation_fork_path(locator, fork) relpathperm(locator, fork)
#endif

#endif							/* IM_COMPAT_H */
