/*-------------------------------------------------------------------------
 *
 * snapshot_guard.c
 *	  Guard for the snapshots of sessions that wait for their job: they do
 *	  not block a rebuild, and are not used to read indexes that do not have
 *	  all their rows.
 *
 * The protocol, and why it is right, is in src/README, "Protocol of the caller's
 * snapshot".  A session is hidden for milliseconds only, so that CREATE INDEX
 * CONCURRENTLY and DETACH PARTITION .. FINALIZE of other sessions hardly ever pass
 * over it, too.  If they do: the planner's rule holds for all indexes, and a partition
 * that was detached in spite of the snapshot is an error 40001.  All waiting sessions
 * are hidden: two jobs would otherwise wait for each other's callers.  Parallel
 * workers, which plan the queries of functions, know by a setting.
 *
 * Locks: ProcArrayLock, exclusively and for moments, for the shared state, which so
 * agrees with the flags of the processes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "channel.h"
#include "compat.h"
#include "rebuild/snapshot_guard.h"
#include "relation_facts.h"
#include "settings.h"
#include "test_points.h"

#define AREA_NAME	"index_mover snapshot guard"
#define GUARD_GUC	"index_mover.hide_new_indexes"

/* Written under ProcArrayLock, held exclusively; a flag may be read without it. */
typedef struct GuardArea
{
	int			hiders;			/* runners that want callers hidden; by them */
	bool		waits[FLEXIBLE_ARRAY_MEMBER];	/* the process in this slot,
												 * for a job; by it */
} GuardArea;

static GuardArea *area = NULL;

/* in a session: the transaction in which it waits, or has waited */
static LocalTransactionId guarded_lxid = InvalidLocalTransactionId;
static bool waiting = false;

/* in a runner: it is counted as one of the hiders */
static bool hiding = false;

static relation_info_hook_type prev_relation_info_hook = NULL;

/* Return the size of the shared area, for a shmem_request_hook. */
Size
snapshot_guard_shmem_size(void)
{
	return MAXALIGN(offsetof(GuardArea, waits) + MaxBackends * sizeof(bool));
}

static void
init_guard_area(IM_AREA_INIT_ARGS)
{
	memset(ptr, 0, snapshot_guard_shmem_size());
}

static void
attach_area(void)
{
	bool		found;

	if (area == NULL)
		area = GetNamedDSMSegment(AREA_NAME, snapshot_guard_shmem_size(), init_guard_area,
								  &found, NULL);
}

/* Set the flag of the process in slot n, which is in the array of processes. */
static void
set_flag(int n)
{
	PGPROC	   *proc = GetPGProcByNumber(n);

	Assert(LWLockHeldByMeInMode(ProcArrayLock, LW_EXCLUSIVE));
	/* as core's set_indexsafe_procflags() */
	if (area->waits[n] && area->hiders > 0)
		proc->statusFlags |= PROC_IN_SAFE_IC;
	else
		proc->statusFlags &= ~PROC_IN_SAFE_IC;
	ProcGlobal->statusFlags[proc->pgxactoff] = proc->statusFlags;
}

/* Begin the guard, to the end of the transaction.  The setting is for parallel workers. */
static void
start_guard(void)
{
	guarded_lxid = PROC_LXID(MyProc);
	if (!hide_new_indexes)
		(void) set_config_option(GUARD_GUC, "on", PGC_SUSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, ERROR, false);
}

/* Begin a wait with a snapshot, before the job can start: runners may hide it. */
void
snapshot_guard_begin(void)
{
	int			n = GetNumberFromPGProc(MyProc);

	attach_area();
	Assert(n < MaxBackends && IsTransactionState());
	start_guard();
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	area->waits[n] = true;
	/* a runner may have asked before, and will not ask again */
	set_flag(n);
	LWLockRelease(ProcArrayLock);
	waiting = true;
}

/* End the wait.  If missed, the end of the transaction does it. */
void
snapshot_guard_end(void)
{
	int			n = GetNumberFromPGProc(MyProc);

	if (!waiting)
		return;
	waiting = false;
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	area->waits[n] = false;
	set_flag(n);
	LWLockRelease(ProcArrayLock);
}

static void
guard_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_ABORT)
		snapshot_guard_end();
	if (event == XACT_EVENT_ABORT)
		snapshot_guard_hide_callers(false);
}

/* Return whether an index is newer than the transaction's oldest snapshot. */
static bool
index_is_too_new(Oid index_oid)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index_oid));
	bool		result = false;

	/* hypothetical indexes of extensions have no row */
	if (HeapTupleIsValid(tuple))
	{
		result = !TransactionIdPrecedes(HeapTupleHeaderGetXmin(tuple->t_data),
										TransactionXmin);
		ReleaseSysCache(tuple);
	}
	return result;
}

/*
 * Raise ERROR 40001 if a partition that the active snapshot still sees as attached
 * has been detached: its rows would be missing.  (DROP waits for no snapshots.)
 */
static void
check_partitions(Oid parent)
{
	List	   *attached;
	List	   *rows;

	if (get_rel_relkind(parent) != RELKIND_PARTITIONED_TABLE || !ActiveSnapshotSet())
		return;
	attached = find_inheritance_children_extended(parent, false, NoLock, NULL, NULL);
	rows = catalog_rows_in(GetActiveSnapshot(), InheritsRelationId, InheritsParentIndexId,
						   Anum_pg_inherits_inhparent, parent, 0, InvalidOid);
	foreach_ptr(HeapTupleData, tuple, rows)
	{
		Form_pg_inherits row = (Form_pg_inherits) GETSTRUCT(tuple);

		if (!row->inhdetachpending &&
			SearchSysCacheExists1(RELOID, ObjectIdGetDatum(row->inhrelid)) &&
			!list_member_oid(attached, row->inhrelid))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not read \"%s\" with this transaction's snapshot",
							get_rel_name(parent)),
					 errdetail("Partition \"%s\" has been detached since, while the transaction waited for a move of indexes.",
							   get_rel_name(row->inhrelid)),
					 errhint("The transaction might succeed if retried.")));
	}
}

static void
guard_relation_info(RELATION_INFO_PARAMS)
{
	ListCell   *lc;

	if (prev_relation_info_hook)
		prev_relation_info_hook(RELATION_INFO_ARGS);

	if (!hide_new_indexes && guarded_lxid != PROC_LXID(MyProc))
		return;
	if (IM_MUTATION("snapshot-guard"))
		return;

	/* a function with a SET clause may have taken the setting back */
	if (!IsInParallelMode())
		start_guard();

	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *index = lfirst_node(IndexOptInfo, lc);

		if (index_is_too_new(index->indexoid))
		{
			rel->indexlist = foreach_delete_current(rel->indexlist, lc);

			/* replan a cached plan once the index may be used */
			root->glob->transientPlan = true;
		}
	}

	if (RELATION_INFO_INHPARENT && OidIsValid(RELATION_INFO_RELID))
		check_partitions(RELATION_INFO_RELID);
}

/* Install the hooks; called from _PG_init(). */
void
snapshot_guard_init(void)
{
	channel_layout_add(sizeof(GuardArea));
	prev_relation_info_hook = relation_info_hook;
	relation_info_hook = guard_relation_info;
	RegisterXactCallback(guard_xact_callback, NULL);
}

/* In a runner: return whether a process waits for a job, and so can be hidden. */
bool
snapshot_guard_waits_for_job(PGPROC *proc)
{
	int			n = GetNumberFromPGProc(proc);

	attach_area();
	/* auxiliary processes and prepared transactions come after the backends */
	return n < MaxBackends && area->waits[n];
}

/* Hide, or show, the snapshots of all sessions that wait, or begin to; an abort shows them. */
void
snapshot_guard_hide_callers(bool hide)
{
	if (hide == hiding)
		return;
	attach_area();
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	hiding = hide;
	area->hiders += hide ? 1 : -1;
	Assert(area->hiders >= 0);
	for (int n = 0; n < MaxBackends; n++)
	{
		if (area->waits[n])
			set_flag(n);
	}
	LWLockRelease(ProcArrayLock);
}
