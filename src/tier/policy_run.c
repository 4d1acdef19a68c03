/*-------------------------------------------------------------------------
 *
 * policy_run.c
 *	  The last run of each policy: rows of index_mover.policy_run.
 *
 * The result of a run that has a job is the job's; the table has the others, and how many have
 * failed in a row.  No process waits for a row that another session writes.
 *
 * Tricky: so the record of a policy that is deleted meanwhile stays, and the next policy of that
 * name can be another role's.  Records are found by name and owner.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"

#include "history.h"
#include "job.h"
#include "own_tables.h"
#include "test_points.h"
#include "tier/tier_private.h"

#define RUN_TABLE	"policy_run"

/* Set the keys of the record of a policy, as its present owner's. */
static void
set_keys(const Policy *policy, ScanKeyData keys[2])
{
	keys[0] = extension_key(1, F_NAMEEQ, NameGetDatum(&policy->name));
	keys[1] = extension_key(2, F_OIDEQ, ObjectIdGetDatum(policy->owner));
}

/*
 * Delete the record of the last run of a policy, or of all (NULL).  One that another session is
 * replacing, in a transaction that may last, stays.
 */
void
policy_run_forget(const char *policy)
{
	ScanKeyData key = extension_key(1, F_NAMEEQ, CStringGetDatum(policy));
	ExtensionScan scan;

	extension_scan_begin(&scan, RUN_TABLE, policy != NULL ? 1 : 0, &key);
	while (extension_scan_next(&scan))
	{
		(void) extension_delete_free_row(RUN_TABLE, &scan.tuple->t_self);
	}
}

/*
 * Claim a policy for a run of the current transaction.  Returns false if another session
 * has it, or deletes it: it is not waited for, so that no role waits for another.
 *
 * Names with the same hash are easily found.  The owner is in the tag, so that a role
 * that holds the claim of such a policy of its own hinders no other role's.
 */
bool
policy_run_claim(const Policy *policy)
{
	const char *name = NameStr(policy->name);
	LOCKTAG		tag;
	PolicyRun	run;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, extension_relation(RUN_TABLE), policy->owner,
					   (uint16) hash_any((const unsigned char *) name, strlen(name)));
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	policy_run_read(policy, &run);
	return !run.is_being_deleted;
}

static const char *const run_results[] = {
	[RUN_JOB] = "job",
	[RUN_NOTHING] = "nothing to move",
	[RUN_WAITS] = "waits",
	[RUN_HINDERED] = "hindered",
	[RUN_FAILED] = "failed",
};

/* Return the word for a result, as monitors see it. */
const char *
policy_run_word(RunResult result)
{
	return run_results[result];
}

/*
 * Read the last run of a policy as of its owner, and which job has the rest of it; all is 0 if there
 * was none.
 */
void
policy_run_read(const Policy *policy, PolicyRun *run)
{
	ScanKeyData keys[2];
	ExtensionScan scan;
	const Datum *values = scan.row.values;

	memset(run, 0, sizeof(PolicyRun));
	set_keys(policy, keys);
	extension_scan_begin(&scan, RUN_TABLE, lengthof(keys), keys);
	while (extension_scan_next(&scan))
	{
		HeapTupleHeader header = scan.tuple->t_data;

		/* a row that is only locked is not deleted */
		run->is_being_deleted = !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
			!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header)) &&
			TransactionIdIsInProgress(HeapTupleHeaderGetUpdateXid(header));
		run->started_at = DatumGetTimestampTz(values[2]);
		run->job = DatumGetInt64(values[3]);
		run->failures = DatumGetInt32(values[4]);
		for (int i = 0; i < lengthof(run_results); i++)
		{
			if (!scan.row.nulls[5] && strcmp(TextDatumGetCString(values[5]), run_results[i]) == 0)
				run->result = i;
		}
		run->message = scan.row.nulls[6] ? NULL : TextDatumGetCString(values[6]);
		run->waits_for = scan.row.nulls[7] ? 0 : DatumGetInt64(values[7]);
		run->waits_since = scan.row.nulls[8] ? 0 : DatumGetTimestampTz(values[8]);
		run->in_trouble = DatumGetBool(values[9]);
	}
	if (run->job > 0)
		run->job = history_last_of_policy(NameStr(policy->name), run->job);
}

/* Return whether a job carries out a policy of this name and owner. */
static bool
is_own_job(const Policy *policy, int64 job)
{
	HistoryJob	entry;

	return history_read_job(job, &entry) && entry.role == policy->owner &&
		strcmp(NameStr(entry.terms.policy), NameStr(policy->name)) == 0;
}

/*
 * Record a run, which the caller has claimed: when it began, its result, its job, and why it
 * waits, is hindered or has failed.  Gets the run before.  Returns false, and leaves that on record,
 * if its job is at work and the run has none, or if it began later: a call that waits for its
 * jobs records them at its end.
 *
 * Another run may find such a job at work before.  It is put on record then, as the policy's own: to
 * wait for that is to wait for no other role.
 */
bool
policy_run_record(const Policy *policy, PolicyRun *run, PolicyRun *before)
{
	ScanKeyData keys[2];
	Row			row;
	char	   *why;

	policy_run_read(policy, before);
	if (run->job == 0 && policy_is_running(before))
		return false;
	if (before->started_at > run->started_at && !moment_is_ahead(before->started_at))
		return false;
	if (run->waits_for != 0 && is_own_job(policy, run->waits_for))
	{
		run->result = RUN_JOB;
		run->job = run->waits_for;
		run->waits_for = 0;
		run->message = NULL;
	}
	run->failures = policy_failures(before, &why);
	/* a wait ends no trouble */
	run->in_trouble = run->result == RUN_HINDERED || run->result == RUN_FAILED ||
		(run->result == RUN_WAITS && before->in_trouble);
	set_keys(policy, keys);
	(void) extension_delete(RUN_TABLE, lengthof(keys), keys);
	row_clear(&row);
	row_set(&row, 1, NameGetDatum(&policy->name));
	row_set(&row, 2, ObjectIdGetDatum(policy->owner));
	row_set(&row, 3, TimestampTzGetDatum(run->started_at));
	row_set(&row, 4, Int64GetDatum(run->job));
	row_set(&row, 5, Int32GetDatum(run->failures));
	row_text(&row, 6, run_results[run->result]);
	row_text(&row, 7, run->message);
	if (run->waits_for != 0)
	{
		run->waits_since = before->waits_since != 0 ? before->waits_since : run->started_at;
		row_set(&row, 8, Int64GetDatum(run->waits_for));
		row_time(&row, 9, run->waits_since);
	}
	row_set(&row, 10, BoolGetDatum(run->in_trouble));
	extension_insert(RUN_TABLE, &row);
	IM_POINT("policy-run");
	CommandCounterIncrement();
	return true;
}

/* Return whether a run has not ended: its job is there. */
bool
policy_is_running(const PolicyRun *run)
{
	JobSlot		slot;

	return run->job != 0 && job_find(run->job, &slot);
}

/* Return whether a run has waited for a job that has ended: the policy is due, then, at once. */
bool
policy_wait_is_over(const PolicyRun *run)
{
	JobSlot		slot;

	return run->result == RUN_WAITS && run->waits_for != 0 && !job_find(run->waits_for, &slot);
}

/*
 * Return how many runs of a policy have failed in a row, up to the last, and
 * why that has.  A run fails by itself, or if a move of it does; one that waits
 * has not come so far.
 */
int
policy_failures(const PolicyRun *run, char **why)
{
	*why = run->message != NULL ? run->message : "?";
	if (run->started_at == 0 || run->result == RUN_WAITS || policy_is_running(run))
		return run->failures;
	if (run->result == RUN_FAILED)
		return run->failures + 1;
	if (run->job == 0)
		return 0;
	foreach_ptr(const HistoryEntry, entry, history_read(run->job))
	{
		if (STATUS_IS_DONE(entry->status) || entry->status == STATUS_CANCELED)
			continue;
		if (entry->message != NULL && entry->status == STATUS_FAILED)
			*why = entry->message;
		return run->failures + 1;
	}
	return 0;
}
