/*-------------------------------------------------------------------------
 *
 * snapshot_guard.c
 *	  Guard for the snapshots of sessions that wait for their job: they do
 *	  not block a rebuild, and are not used to read indexes that do not have
 *	  all their rows.
 *
 * The protocol, and why it is right, is in src/README, "Protocol of the caller's
 * snapshot".  A session hides by PROC_IN_SAFE_IC for milliseconds, for which the
 * runner has waited for all other sessions (rebuild.c).  So CREATE INDEX
 * CONCURRENTLY and DETACH PARTITION .. FINALIZE of other sessions hardly ever
 * pass over it, too.
 *
 * All waiting sessions hide, not only that of the rebuild's own job: two jobs
 * would otherwise wait for each other's callers.
 *
 * The planner's rule holds for all indexes, because of the commands of other
 * sessions; and for parallel workers, which plan the queries of the functions
 * they run, through a setting that travels with the others.  A partition that
 * was detached in spite of the snapshot is an error 40001.
 *
 * Locks: none for the shared state, which is one word per process (see
 * below), changed by atomic operations only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "job.h"
#include "rebuild/snapshot_guard.h"
#include "test_points.h"

#define AREA_NAME	"index_mover snapshot guard"
#define GUARD_GUC	"index_mover.hide_new_indexes"
#define NAP_MS		5

/* For the tests, see test_points.c */
#define UNGUARDED	IM_MUTATION("snapshot-guard")

/*
 * words[n] belongs to the process in slot n.  The process sets and clears the
 * two flags; runners count themselves in and out.  The session clears HIDDEN
 * only by a compare-exchange that finds the count at 0, so a runner that
 * counts itself in and finds HIDDEN set can rely on it.
 */
#define WORD_WAITS		((uint32) 0x80000000)	/* waits for a job */
#define WORD_HIDDEN		((uint32) 0x40000000)	/* PROC_IN_SAFE_IC is set */
#define WORD_COUNT		((uint32) 0x3FFFFFFF)	/* runners that want it hidden */

typedef struct GuardArea
{
	int			nwords;			/* constant */
	pg_atomic_uint32 words[FLEXIBLE_ARRAY_MEMBER];
} GuardArea;

static GuardArea *area = NULL;

/* in a session: the transaction in which it has hidden */
static LocalTransactionId guarded_lxid = InvalidLocalTransactionId;
static bool waiting = false;

/* the setting, in the session or a parallel worker of it */
static bool hide_new_indexes = false;

/* in a runner: the words in which it is counted */
static int *hidden_procs = NULL;
static int	nhidden = 0;

static relation_info_hook_type prev_relation_info_hook = NULL;

static void guard_relation_info(RELATION_INFO_PARAMS);
static void guard_xact_callback(XactEvent event, void *arg);

/* Return the size of the shared area, for a shmem_request_hook. */
Size
snapshot_guard_shmem_size(void)
{
	return MAXALIGN(offsetof(GuardArea, words) + MaxBackends * sizeof(pg_atomic_uint32));
}

static void
init_guard_area(IM_AREA_INIT_ARGS)
{
	GuardArea  *new_area = ptr;

	new_area->nwords = MaxBackends;
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u32(&new_area->words[i], 0);
}

static void
attach_area(void)
{
	if (area == NULL)
		area = im_shared_area(AREA_NAME, snapshot_guard_shmem_size(), init_guard_area);
}

static pg_atomic_uint32 *
word_of(PGPROC *proc)
{
	int			n = GetNumberFromPGProc(proc);

	/* auxiliary processes and prepared transactions come after the backends */
	return n < area->nwords ? &area->words[n] : NULL;
}

/* in the waiting session */

/* Define the setting and install the hooks; called from _PG_init(). */
void
snapshot_guard_init(void)
{
	DefineCustomBoolVariable(GUARD_GUC,
							 "Hides indexes that are newer than the transaction's snapshot from the planner.",
							 "Set by index_mover itself until the end of a transaction that has waited for a rebuild.",
							 &hide_new_indexes,
							 false,
							 PGC_SUSET,
							 GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE | GUC_NO_RESET_ALL,
							 NULL, NULL, NULL);

	prev_relation_info_hook = relation_info_hook;
	relation_info_hook = guard_relation_info;
	RegisterXactCallback(guard_xact_callback, NULL);
}

static void
set_own_flag(bool on)
{
	/* as core's set_indexsafe_procflags() */
	LWLockAcquire(ProcArrayLock, LW_EXCLUSIVE);
	if (on)
		MyProc->statusFlags |= PROC_IN_SAFE_IC;
	else
		MyProc->statusFlags &= ~PROC_IN_SAFE_IC;
	ProcGlobal->statusFlags[MyProc->pgxactoff] = MyProc->statusFlags;
	LWLockRelease(ProcArrayLock);
}

/*
 * Begin the guard, which lasts to the end of the transaction.  The setting is
 * for parallel workers; as after SET LOCAL, it is reset at the end.
 */
static void
start_guard(void)
{
	if (guarded_lxid != PROC_LXID(MyProc) || !hide_new_indexes)
		(void) set_config_option(GUARD_GUC, "on", PGC_SUSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, ERROR, false);
	guarded_lxid = PROC_LXID(MyProc);
}

/*
 * Begin a wait for a job with a snapshot.  To be called before the job can
 * start; the caller then calls snapshot_guard_answer() each time the latch is
 * set, and snapshot_guard_end() when the wait ends.
 */
void
snapshot_guard_begin(void)
{
	attach_area();
	Assert(word_of(MyProc) != NULL && IsTransactionState());
	pg_atomic_fetch_or_u32(word_of(MyProc), WORD_WAITS);
	waiting = true;
	/* a runner may have asked before, and will not ask again */
	snapshot_guard_answer();
}

/* Hide or show the snapshot, as runners ask.  No-op outside of a wait. */
void
snapshot_guard_answer(void)
{
	pg_atomic_uint32 *word;
	uint32		value;

	if (!waiting)
		return;
	word = word_of(MyProc);

	for (;;)
	{
		value = pg_atomic_read_u32(word);

		if ((value & WORD_COUNT) > 0 && !(value & WORD_HIDDEN))
		{
			Assert(IsTransactionState());
			start_guard();
			set_own_flag(true);
			pg_atomic_fetch_or_u32(word, WORD_HIDDEN);
		}
		else if ((value & WORD_COUNT) == 0 && (value & WORD_HIDDEN))
		{
			if (pg_atomic_compare_exchange_u32(word, &value, value & ~WORD_HIDDEN))
				set_own_flag(false);
		}
		else
			break;
	}
}

/* End the wait.  If missed, the end of the transaction does it. */
void
snapshot_guard_end(void)
{
	if (!waiting)
		return;
	waiting = false;
	if (pg_atomic_fetch_and_u32(word_of(MyProc), ~(WORD_WAITS | WORD_HIDDEN)) & WORD_HIDDEN)
		set_own_flag(false);
}

static void
guard_xact_callback(XactEvent event, void *arg)
{
	if (waiting && (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_ABORT))
		snapshot_guard_end();
	if (nhidden > 0 && event == XACT_EVENT_ABORT)
		snapshot_guard_show_callers();
}

/* in the planner */

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

static bool
is_partition_of(Relation inherits, Oid relid, Oid parent)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result = false;

	ScanKeyInit(&key, Anum_pg_inherits_inhrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(inherits, InheritsRelidSeqnoIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		if (((Form_pg_inherits) GETSTRUCT(tuple))->inhparent == parent)
			result = true;
	systable_endscan(scan);
	return result;
}

/*
 * Raise ERROR 40001 if a partition that the active snapshot still sees as
 * attached has been detached: its rows would be missing from the query's
 * result.  A partition that was dropped does not matter here: DROP waits for
 * no snapshots.
 */
static void
check_partitions(Oid parent)
{
	Relation	inherits;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (get_rel_relkind(parent) != RELKIND_PARTITIONED_TABLE || !ActiveSnapshotSet())
		return;

	inherits = table_open(InheritsRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(parent));
	scan = systable_beginscan(inherits, InheritsParentIndexId, true,
							  GetActiveSnapshot(), 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits row = (Form_pg_inherits) GETSTRUCT(tuple);

		if (!row->inhdetachpending &&
			SearchSysCacheExists1(RELOID, ObjectIdGetDatum(row->inhrelid)) &&
			!is_partition_of(inherits, row->inhrelid, parent))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not read \"%s\" with this transaction's snapshot",
							get_rel_name(parent)),
					 errdetail("Partition \"%s\" has been detached since, while the transaction waited for a move of indexes.",
							   get_rel_name(row->inhrelid)),
					 errhint("The transaction might succeed if retried.")));
	}
	systable_endscan(scan);
	table_close(inherits, AccessShareLock);
}

static void
guard_relation_info(RELATION_INFO_PARAMS)
{
	ListCell   *lc;

	if (prev_relation_info_hook)
		prev_relation_info_hook(RELATION_INFO_ARGS);

	if (!hide_new_indexes &&
		(guarded_lxid == InvalidLocalTransactionId ||
		 guarded_lxid != PROC_LXID(MyProc)))
		return;
	if (UNGUARDED)
		return;

	/* a function with a SET clause may have taken the setting back */
	if (!hide_new_indexes && !IsInParallelMode())
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

/* in a runner */

/* Return whether a process waits for a job, and so will hide when asked. */
bool
snapshot_guard_waits_for_job(PGPROC *proc)
{
	pg_atomic_uint32 *word;

	attach_area();
	word = word_of(proc);
	return word != NULL && (pg_atomic_read_u32(word) & WORD_WAITS) != 0;
}

/*
 * Make every session of this database that waits for a job hide its snapshot,
 * and return when all have.  The caller undoes it by
 * snapshot_guard_show_callers(); an abort does so, too.  ERROR 55P03 if a
 * session does not answer before the deadline (0 = none).
 */
void
snapshot_guard_hide_callers(TimestampTz deadline)
{
	static uint32 wait_event = 0;

	attach_area();
	Assert(nhidden == 0);
	if (hidden_procs == NULL)
		hidden_procs = MemoryContextAlloc(TopMemoryContext, sizeof(int) * area->nwords);

	/*
	 * Ask all of them first, then wait for all.  Processes that do not wait
	 * for a job are asked, too: they may begin to before core makes its list.
	 */
	for (int i = 0; i < area->nwords; i++)
	{
		PGPROC	   *proc = GetPGProcByNumber(i);

		if (proc->pid != 0 && OidIsValid(proc->databaseId) && proc->databaseId != MyDatabaseId)
			continue;

		hidden_procs[nhidden++] = i;
		if (pg_atomic_fetch_add_u32(&area->words[i], 1) & WORD_WAITS)
			SetLatch(&proc->procLatch);
	}

	for (int i = 0; i < nhidden; i++)
	{
		pg_atomic_uint32 *word = &area->words[hidden_procs[i]];
		PGPROC	   *proc = GetPGProcByNumber(hidden_procs[i]);

		/* a session that no longer waits will end its statement */
		while ((pg_atomic_read_u32(word) & (WORD_WAITS | WORD_HIDDEN)) == WORD_WAITS)
		{
			if (deadline != 0 && GetCurrentTimestamp() >= deadline)
				ereport(ERROR,
						(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						 errmsg("gave up waiting for process %d, which waits for a move",
								proc->pid),
						 errdetail("The process did not respond; its client might not be reading messages.")));
			SetLatch(&proc->procLatch);
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 NAP_MS, IM_WAIT_EVENT(wait_event, "IndexMoverHideCaller"));
			ResetLatch(MyLatch);
			job_check_cancel();
		}
	}
}

/* Let sessions show their snapshots again.  Safe to call at any time. */
void
snapshot_guard_show_callers(void)
{
	while (nhidden > 0)
	{
		int			n = hidden_procs[--nhidden];

		Assert((pg_atomic_read_u32(&area->words[n]) & WORD_COUNT) > 0);
		if (pg_atomic_fetch_sub_u32(&area->words[n], 1) & WORD_WAITS)
			SetLatch(&GetPGProcByNumber(n)->procLatch);
	}
}
