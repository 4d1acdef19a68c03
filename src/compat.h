/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every test of the server's version, spelt as in the newest core.
 *
 * In blocks, newest version first, each with the changes of that version.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COMPAT_H
#define IM_COMPAT_H

#if PG_VERSION_NUM < 150000
#error index_mover needs PostgreSQL 15 or newer
#endif

#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "storage/sinvaladt.h"
#include "storage/smgr.h"
#include "utils/backend_status.h"
#if PG_VERSION_NUM >= 190000
#include "optimizer/pathnode.h"
#else
#include "optimizer/plancat.h"
#endif
#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#include "utils/wait_event.h"
#endif
#if PG_VERSION_NUM >= 160000
#include "storage/relfilelocator.h"
#else
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_tablespace.h"
#include "storage/relfilenode.h"
#include "utils/acl.h"
#include "utils/guc_tables.h"
#endif

/*
 * 19
 *
 * IM_HEAP_DELETE: heap_delete() for the current command, which is not decoded (before 19
 * only without a replica identity).
 * relation_info_hook: a hook that may change the planner's facts of a relation.
 * PLANNER_PARAMS: parameters of the planner's hook.
 * IS_CLUSTER: whether a statement is CLUSTER or, since 19, REPACK, which asks the planner, too.
 * SUPPORT_INLINES_TABLES: whether a function's support function may put a query in its place.
 * im_slot_is_read: whether a process uses this slot.  The caller includes
 * replication/slot.h and holds the slot's spinlock.
 * IM_STAT_RESET: when the statistics of a relation were reset, which other versions
 * do not keep.
 */
#if PG_VERSION_NUM >= 190000
#define IM_STAT_RESET(stats) ((stats)->stat_reset_time)
#define IM_AREA_INIT_ARGS	void *ptr, void *arg
#define LWLockRegisterTranche(tranche, name) ((void) 0)
#define CHECKPOINT_IMMEDIATE CHECKPOINT_FAST
#define IM_HEAP_DELETE(rel, tid, wait, failure) \
	heap_delete(rel, tid, GetCurrentCommandId(true), TABLE_DELETE_NO_LOGICAL, \
				InvalidSnapshot, wait, failure)
#define relation_info_hook		build_simple_rel_hook
#define relation_info_hook_type build_simple_rel_hook_type
#define RELATION_INFO_PARAMS	PlannerInfo *root, RelOptInfo *rel, RangeTblEntry *rte
#define RELATION_INFO_ARGS		root, rel, rte
#define RELATION_INFO_RELID		(rte->rtekind == RTE_RELATION ? rte->relid : InvalidOid)
#define RELATION_INFO_INHPARENT (rte->inh)
#define PLANNER_PARAMS	Query *parse, const char *query, int options, \
	ParamListInfo params, ExplainState *es
#define PLANNER_ARGS	parse, query, options, params, es
#define SUPPORT_INLINES_TABLES	true
#define IS_CLUSTER(node) IsA(node, RepackStmt)
#define im_slot_is_read(slot) ((slot)->active_proc != INVALID_PROC_NUMBER)
#else
#define IM_STAT_RESET(stats) ((TimestampTz) 0)
#define IM_AREA_INIT_ARGS	void *ptr
#define LWLockNewTrancheId(name) LWLockNewTrancheId()
#define IM_HEAP_DELETE(rel, tid, wait, failure) \
	heap_delete(rel, tid, GetCurrentCommandId(true), InvalidSnapshot, wait, failure, false)
#define relation_info_hook		get_relation_info_hook
#define relation_info_hook_type get_relation_info_hook_type
#define RELATION_INFO_PARAMS	PlannerInfo *root, Oid relid, bool inhparent, RelOptInfo *rel
#define RELATION_INFO_ARGS		root, relid, inhparent, rel
#define RELATION_INFO_RELID		relid
#define RELATION_INFO_INHPARENT inhparent
#define PLANNER_PARAMS	Query *parse, const char *query, int options, ParamListInfo params
#define PLANNER_ARGS	parse, query, options, params
#define SUPPORT_INLINES_TABLES	false
#define IS_CLUSTER(node) IsA(node, ClusterStmt)
#define im_slot_is_read(slot) ((slot)->active_pid != 0)
#endif

/*
 * 18
 *
 * relation_file_path: palloc'd; GetRelationPath() returns a struct since 18.
 * smgrtruncate: before 18 it gets the old lengths of the forks itself.
 * im_page_is_verified: PageIsVerified() that does not report or log anything.
 * IM_GIN_PARALLEL: whether workers can build GIN, which sorts all keys.
 * IM_IS_ENFORCED: whether a constraint is, of its row in pg_constraint.
 * im_is_not_null: whether no row has a NULL in a column, counted from 0, of a table in the relation
 * cache; NOT NULL may be NOT VALID since 18.
 */
#if PG_VERSION_NUM >= 180000
#define im_is_not_null(desc, column) \
	(TupleDescCompactAttr(desc, column)->attnullability == ATTNULLABLE_VALID)
#define IM_IS_ENFORCED(form) ((form)->conenforced)
#define IM_GIN_PARALLEL	true
#define relation_file_path(db, spc, num, fork) \
	pstrdup(GetRelationPath(db, spc, num, INVALID_PROC_NUMBER, fork).str)
#define im_page_is_verified(page, block) PageIsVerified(page, block, 0, &(bool) {false})
#else
/* stands before the declaration since 18 */
#define pg_noreturn pg_attribute_noreturn()
extern PGDLLIMPORT bool ignore_checksum_failure;
#define im_is_not_null(desc, column) (TupleDescAttr(desc, column)->attnotnull)
#define IM_IS_ENFORCED(form) true
#define IM_GIN_PARALLEL	false
#define relation_file_path(db, spc, num, fork) \
	GetRelationPath(db, spc, num, INVALID_PROC_NUMBER, fork)
#define im_page_is_verified(page, block) PageIsVerifiedExtended(page, block, 0)
#define PortalRun(portal, count, top, dest, altdest, qc) \
	PortalRun(portal, count, top, true, dest, altdest, qc)
#define smgrtruncate(smgr, forks, nforks, old_nblocks, nblocks) \
	((void) (old_nblocks), smgrtruncate(smgr, forks, nforks, nblocks))
#define WakeupWalSummarizer() SetWalSummarizerLatch()
#endif

/*
 * 17
 *
 * GetNamedDSMSegment: a shared area that needs no preloading.  Before 17 it is in
 * the slack of the main segment, as that of contrib/pg_prewarm.
 * WAL summaries came with 17; backup/walsummary.h is not installed.
 * REINDEX_SEARCH_PATH: from 17 on, core gives an index's functions the path of
 * workers, WORKER_SEARCH_PATH, itself, and runs event triggers, which see the path
 * that the role has in the database (NULL: reset).
 * table_maintain_aclcheck: the privilege that REINDEX requires: ownership of the
 * table, or since 17 the privilege MAINTAIN.
 */
#define WORKER_SEARCH_PATH	"pg_catalog, pg_temp"
#if PG_VERSION_NUM >= 170000
#if PG_VERSION_NUM < 190000
#define GetNamedDSMSegment(name, size, init, found, arg) GetNamedDSMSegment(name, size, init, found)
#endif
#define IM_WAIT_EVENT(name) WaitEventExtensionNew(name)

#define IM_HAS_WAL_SUMMARIES

typedef struct WalSummaryIO
{
	int			file;			/* File */
	off_t		filepos;
} WalSummaryIO;

typedef struct WalSummaryFile
{
	XLogRecPtr	start_lsn;
	XLogRecPtr	end_lsn;
	TimeLineID	tli;
} WalSummaryFile;

extern List *GetWalSummaries(TimeLineID tli, XLogRecPtr start_lsn, XLogRecPtr end_lsn);
extern bool WalSummariesAreComplete(List *wslist, XLogRecPtr start_lsn,
									XLogRecPtr end_lsn, XLogRecPtr *missing_lsn);
extern int	OpenWalSummaryFile(WalSummaryFile *ws, bool missing_ok);
extern int	ReadWalSummary(void *wal_summary_io, void *data, int length);
extern void ReportWalSummaryError(void *callback_arg, char *fmt,...) pg_attribute_printf(2, 3);

#define REINDEX_SEARCH_PATH NULL
#define VXID_PROC_NUMBER(vxid) ((vxid).procNumber)
#define PROC_LXID(proc) ((proc)->vxid.lxid)
#define PROC_VXID_NUMBER(proc) ((uint32) (proc)->vxid.procNumber)
#define table_maintain_aclcheck(relid, roleid) \
	pg_class_aclcheck(relid, roleid, ACL_MAINTAIN)
#else
#define TransactionTimeout 0
#define TransamVariables ShmemVariableCache
static inline void *
GetNamedDSMSegment(const char *name, size_t size, void (*init) (IM_AREA_INIT_ARGS),
				   bool *found, void *arg)
{
	void	   *result;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	result = ShmemInitStruct(name, size, found);
	if (!*found)
		init(result);
	LWLockRelease(AddinShmemInitLock);
	return result;
}

#define IM_WAIT_EVENT(name) PG_WAIT_EXTENSION
#define REINDEX_SEARCH_PATH WORKER_SEARCH_PATH
#define INVALID_PROC_NUMBER InvalidBackendId
#define MyProcNumber (MyProc->pgprocno)
#define LockHeldByMe(locktag, lockmode, orstronger) LockHeldByMe(locktag, lockmode)
#define ProcNumberGetProc(number) BackendIdGetProc(number)
#define VXID_PROC_NUMBER(vxid) ((vxid).backendId)
#define PROC_LXID(proc) ((proc)->lxid)
#define PROC_VXID_NUMBER(proc) ((uint32) (proc)->backendId)
#define table_maintain_aclcheck(relid, roleid) \
	(object_ownercheck(RelationRelationId, relid, roleid) ? \
	 ACLCHECK_OK : ACLCHECK_NOT_OWNER)
#define foreach_internal(type, pointer, var, lst, func) \
	for (type pointer var = 0, pointer var##__outerloop = (type pointer) 1; \
		 var##__outerloop; var##__outerloop = 0) \
		for (ForEachState var##__state = {(lst), 0}; \
			 (var##__state.l != NIL && var##__state.i < var##__state.l->length && \
			  (var = func(&var##__state.l->elements[var##__state.i]), true)); \
			 var##__state.i++)
#define foreach_ptr(type, var, lst) foreach_internal(type, *, var, lst, lfirst)
#define foreach_oid(var, lst) foreach_internal(Oid, , var, lst, lfirst_oid)
#endif
#ifndef GetNumberFromPGProc
#define GetNumberFromPGProc(proc) ((proc) - &ProcGlobal->allProcs[0])
#endif

/*
 * 16
 *
 * IM_STAT_LASTSCAN: the time of the last scan, which 15 does not keep.
 * im_data_open_flags: as core opens the files of relations.
 * im_slot_is_invalidated: as im_slot_is_read.
 * PGIOAlignedBlock, palloc_aligned: for direct I/O.  Before 16 the latter's is freed
 * with its memory context only.
 * BRIN_REDO_NEEDS_BUFFER: whether recovery crashes on the change of a BRIN index
 * whose file is gone; see recovery_needs_full_pages().  With assertions it always did.
 */
#if PG_VERSION_NUM >= 160000 || defined(USE_ASSERT_CHECKING)
#define BRIN_REDO_NEEDS_BUFFER	true
#else
#define BRIN_REDO_NEEDS_BUFFER	false
#endif

#if PG_VERSION_NUM >= 160000
#define IM_STAT_LASTSCAN(stats) ((stats)->lastscan)
#define im_can_set_role(member, role) member_can_set_role(member, role)
#define im_data_open_flags() ((io_direct_flags & IO_DIRECT_DATA) ? PG_O_DIRECT : 0)
#define im_slot_is_invalidated(slot) ((slot)->data.invalidated != RS_INVAL_NONE)
#else
typedef Oid RelFileNumber;
typedef RelFileNode RelFileLocator;
#define RelFileNumberIsValid(n) OidIsValid(n)
#define RelFileLocatorEquals(a, b) RelFileNodeEquals(a, b)
#define GetNewRelFileNumber(t, c, p) GetNewRelFileNode(t, c, p)
#define RelationMapFilenumberToOid(n, s) RelationMapFilenodeToOid(n, s)
#define pgstat_get_local_beentry_by_index(n) pgstat_fetch_stat_local_beentry(n)
#define DropRelationBuffers(r, f, n, b) DropRelFileNodeBuffers(r, f, n, b)
#define InitBufferTag(tag, locator, fork, block) INIT_BUFFERTAG(*(tag), *(locator), fork, block)
#define BufTagMatchesRelFileLocator(tag, locator) \
	RelFileNodeEquals((tag)->rnode, *(locator))
#define spcOid spcNode
#define dbOid dbNode
#define relNumber relNode
#define rd_locator rd_node
#define rlocator rnode

#define IM_STAT_LASTSCAN(stats) ((TimestampTz) 0)
#define im_can_set_role(member, role) is_member_of_role(member, role)
#define im_data_open_flags() 0
#ifdef O_DIRECT
#define PG_O_DIRECT O_DIRECT
#else
#define PG_O_DIRECT 0
#endif
#define im_slot_is_invalidated(slot) (!XLogRecPtrIsInvalid((slot)->data.invalidated_at))

#define PG_IO_ALIGN_SIZE 4096

typedef union PGIOAlignedBlock
{
#ifdef pg_attribute_aligned
	pg_attribute_aligned(PG_IO_ALIGN_SIZE)
#endif
	char		data[BLCKSZ];
	double		force_align_d;
	int64		force_align_i64;
} PGIOAlignedBlock;

#define palloc_aligned(size, alignto, flags) \
	((void *) TYPEALIGN(alignto, palloc((size) + (alignto))))

/* As core's of 16, for a setting that exists. */
static inline struct config_generic *
find_option(const char *name, bool create_placeholders, bool skip_errors, int elevel)
{
	struct config_generic **option = get_guc_variables();

	while (strcmp((*option)->name, name) != 0)
		option++;
	return *option;
}

/* only for the catalogs that this extension uses */
static inline bool
object_ownercheck(Oid classid, Oid objectid, Oid roleid)
{
	Assert(classid == RelationRelationId);
	return pg_class_ownercheck(objectid, roleid);
}

static inline AclResult
object_aclcheck(Oid classid, Oid objectid, Oid roleid, AclMode mode)
{
	if (classid == TableSpaceRelationId)
		return pg_tablespace_aclcheck(objectid, roleid, mode);
	if (classid == ProcedureRelationId)
		return pg_proc_aclcheck(objectid, roleid, mode);
	Assert(classid == NamespaceRelationId);
	return pg_namespace_aclcheck(objectid, roleid, mode);
}
#endif

/*
 * The first minor version whose REINDEX CONCURRENTLY keeps a deferrable unique
 * constraint deferrable.  Before, the new index failed correct transactions.
 */
#define REINDEX_KEEPS_DEFERRABLE_SINCE \
	(PG_VERSION_NUM >= 190000 ? 190000 : PG_VERSION_NUM >= 180000 ? 180006 : \
	 PG_VERSION_NUM >= 170000 ? 170011 : PG_VERSION_NUM >= 160000 ? 160015 : 150019)

/* libpq/libpq.h includes headers on which the packages of PostgreSQL's do not depend */
extern bool pq_check_connection(void);

/* datconnlimit when DROP DATABASE was interrupted; in core's header from 15.4 on */
#ifndef DATCONNLIMIT_INVALID_DB
#define DATCONNLIMIT_INVALID_DB -2
#endif

/* Return the process of a virtual transaction; NULL if it is prepared. */
static inline PGPROC *
im_vxid_proc(VirtualTransactionId vxid)
{
	return VXID_PROC_NUMBER(vxid) == INVALID_PROC_NUMBER ? NULL :
		ProcNumberGetProc(VXID_PROC_NUMBER(vxid));
}

/* Return the palloc'd path of a fork of a permanent relation's file. */
#define relation_fork_path(locator, fork) \
	relation_file_path((locator).dbOid, (locator).spcOid, (locator).relNumber, fork)

static inline RelFileLocator
make_locator(Oid spc, Oid db, RelFileNumber num)
{
	RelFileLocator result;

	result.spcOid = spc;
	result.dbOid = db;
	result.relNumber = num;
	return result;
}

#endif							/* IM_COMPAT_H */
