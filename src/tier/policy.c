/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  Rows of tier_policy: reading them, whose they are, and their last runs.
 *
 * A policy is carried out as its owner: a name together with the OID that it had
 * when a role set it that may SET ROLE to it.  If the two do not fit together, because
 * the role was dropped and created again, or renamed, or the row comes from another
 * cluster, the policy does nothing until its owner is set again.  So no restore makes
 * a superuser the owner of a policy that another role has written.
 *
 * Rows are read here without a check of privileges on the table, and the same
 * ones are seen as with its row security.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_tablespace_d.h"
#include "commands/extension.h"
#include "commands/tablespace.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"

#include "history.h"
#include "own_tables.h"
#include "test_points.h"
#include "tier/tier.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_tier_policy_check);

#define RUN_TABLE	"policy_run"

/* Columns of tier_policy; the script makes them so. */
#define COLUMNS \
	name, enabled, relation, schema, from_tablespace, to_tablespace, parts, older_than, now_function, \
	budget, start_at, stop_at, freeze_first, min_stay, max_bytes_per_run, settings, idle_for, idle_of, \
	every, window_start, window_end, owner, owner_oid

/* A row that was taken apart */
typedef struct PolicyRow
{
	struct
	{
		Datum		COLUMNS;
	}			value;
	struct
	{
		bool		COLUMNS;
	}			null;
} PolicyRow;

#define ANUM(column)	((int) (offsetof(PolicyRow, null.column) - offsetof(PolicyRow, null)) + 1)
#define VALUE_OR(column, type, none)	(row.null.column ? (none) : DatumGet##type(row.value.column))
#define NAME(column)	(row.null.column ? NULL : pstrdup(NameStr(*DatumGetName(row.value.column))))
#define IS(column, word)	(strcmp(TextDatumGetCString(row.value.column), word) == 0)
#define INTERVAL(column) \
	(row.null.column ? NULL : DatumGetIntervalP(datumCopy(row.value.column, false, sizeof(Interval))))

static PolicyRow
deform(HeapTuple tuple, TupleDesc desc)
{
	PolicyRow	row;

	extension_deform(tuple, desc, sizeof(row.null), (Datum *) &row.value, (bool *) &row.null);
	return row;
}

static Policy *
read_policy(HeapTuple tuple, TupleDesc desc)
{
	Policy	   *policy = palloc0(sizeof(Policy));
	PolicyRow	row = deform(tuple, desc);
	Oid			owner = row.null.owner ? InvalidOid : get_role_oid(NAME(owner), true);

	policy->name = *DatumGetName(row.value.name);
	if (OidIsValid(owner) && owner == VALUE_OR(owner_oid, ObjectId, InvalidOid))
		policy->owner = owner;
	policy->is_visible = superuser() || (OidIsValid(owner) && has_privs_of_role(GetUserId(), owner));
	policy->enabled = DatumGetBool(row.value.enabled);
	policy->kind = !row.null.older_than ? POLICY_OLDER_THAN : !row.null.idle_for ? POLICY_IDLE_FOR :
		!row.null.budget ? POLICY_BUDGET : POLICY_START_AT;
	policy->relation = VALUE_OR(relation, ObjectId, InvalidOid);
	policy->schema = NAME(schema);
	policy->from_tablespace = NAME(from_tablespace);
	policy->to_tablespace = DatumGetName(datumCopy(row.value.to_tablespace, false, NAMEDATALEN));
	policy->tables = !IS(parts, "indexes");
	policy->indexes = !IS(parts, "table");
	policy->age = policy->kind == POLICY_OLDER_THAN ? INTERVAL(older_than) : INTERVAL(idle_for);
	policy->idle_of = IS(idle_of, "change") ? IDLE_OF_CHANGE :
		IS(idle_of, "index use") ? IDLE_OF_INDEX_USE : IDLE_OF_USE;
	policy->now_function = row.null.now_function ? NULL : TextDatumGetCString(row.value.now_function);
	policy->budget = VALUE_OR(budget, Int64, 0);
	policy->start_at = VALUE_OR(start_at, Float8, 0);
	policy->stop_at = VALUE_OR(stop_at, Float8, 0);
	policy->freeze_first = DatumGetBool(row.value.freeze_first);
	policy->min_stay = INTERVAL(min_stay);
	policy->max_bytes_per_run = VALUE_OR(max_bytes_per_run, Int64, 0);
	policy->every = INTERVAL(every);
	policy->window_start = VALUE_OR(window_start, TimeADT, -1);
	policy->window_end = VALUE_OR(window_end, TimeADT, -1);
	policy->settings = row.null.settings ? NULL : DatumGetJsonbPCopy(row.value.settings);
	return policy;
}

static int
compare_policies(const ListCell *a, const ListCell *b)
{
	return strcmp(NameStr(((const Policy *) lfirst(a))->name), NameStr(((const Policy *) lfirst(b))->name));
}

/*
 * Lock tier_policy and, with hold, the extension, so that DROP EXTENSION waits.
 * Returns the table.  Does not wait: a role that may only delete its own policies can
 * lock it for long.  Then ERROR 55P03 or, with noerror, 0.
 */
Oid
policy_lock_table(bool hold, bool noerror)
{
	bool		held = !hold || extension_hold() == EXTENSION_HELD;
	Oid			table = InvalidOid;

	/* it is in the extension's schema */
	foreach_ptr(HeapTupleData, row, catalog_rows(ExtensionRelationId, ExtensionOidIndexId, Anum_pg_extension_oid,
												 get_extension_oid("index_mover", true), 0, InvalidOid))
		table = get_relname_relid("tier_policy", ((Form_pg_extension) GETSTRUCT(row))->extnamespace);
	if (held && OidIsValid(table) && ConditionalLockRelationOid(table, AccessShareLock))
		return table;
	if (!noerror)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on the tables of extension \"%s\"", "index_mover"),
				 errdetail("Another session has locked the extension, or table \"%s\".", "tier_policy")));
	return InvalidOid;
}

/*
 * Return the policies that are enabled, in the order of their names, or the one of
 * this name: of the roles whose privileges the current user has.  ERROR 42704 if there
 * is none of this name, enabled or not.  all: of all roles, and the disabled ones, without
 * this error.
 */
List *
policies_read(const char *name, bool all)
{
	Relation	rel = table_open(policy_lock_table(false, false), NoLock);
	List	   *result = NIL;
	bool		found = false;

	foreach_ptr(HeapTupleData, tuple, catalog_all(RelationGetRelid(rel)))
	{
		Policy	   *policy = read_policy(tuple, RelationGetDescr(rel));

		if ((name != NULL && strcmp(name, NameStr(policy->name)) != 0) ||
			(!all && !policy->is_visible))
			continue;
		found = true;
		if (all || policy->enabled)
			result = lappend(result, policy);
		else if (name != NULL)
			ereport(NOTICE,
					(errmsg("tier policy \"%s\" is disabled", name)));
	}
	table_close(rel, AccessShareLock);
	if (name != NULL && !found && !all)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tier policy \"%s\" does not exist", name)));
	list_sort(result, compare_policies);
	return result;
}

/* Tell the caller which policies that it sees would fill an emptied tablespace again. */
void
policies_notice_target(Oid tablespace)
{
	const char *target = tablespace_name(tablespace);

	/* this tells of a policy, and needs none */
	if (!OidIsValid(policy_lock_table(false, true)))
		return;
	foreach_ptr(const Policy, policy, policies_read(NULL, false))
	{
		if (strcmp(NameStr(*policy->to_tablespace), target) == 0 ||
			(policy->kind == POLICY_BUDGET && strcmp(policy->from_tablespace, target) == 0))
			ereport(NOTICE,
					(errmsg("tier policy \"%s\" moves relations to tablespace \"%s\"", NameStr(policy->name), target),
					 errhint("It would fill the tablespace again. Disable it, or change its tablespaces.")));
	}
}

/* ERROR 55000 if a reboot loses the tables that a policy moves to this tablespace. */
void
policy_check_target(const char *tablespace, bool tables)
{
	Oid			oid = tablespace != NULL ? get_tablespace_oid(tablespace, true) : InvalidOid;
	const char *medium = tables ? tablespace_loses_tables(oid) : NULL;

	if (medium != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("a reboot loses tables in tablespace \"%s\", which is on %s", tablespace, medium),
				 errhint("Move only indexes there: set parts to \"indexes\".")));
}

/* The trigger of tier_policy */

/*
 * Return the owner to be set for a row.  given: the OID that comes with the name,
 * as in a dump; 0 = none.  ERROR 42501 unless the current user may SET ROLE to
 * the owner; 42704 if there is no such role, but for a superuser who inserts, whose
 * restore must not fail.  The result is 0 if the owner is to be set again.
 */
static Oid
check_owner(const char *owner, Oid given, bool update)
{
	Oid			role = get_role_oid(owner, superuser() && !update);

	if (OidIsValid(role) && !im_can_set_role(GetUserId(), role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be able to SET ROLE \"%s\"", owner)));

	/*
	 * With its OID it comes from a dump.  In another cluster another role can
	 * have both, and must not be a superuser then; but the bootstrap
	 * superuser is what it was.
	 */
	if (OidIsValid(given) &&
		(given != role || (superuser_arg(role) && role != BOOTSTRAP_SUPERUSERID)))
		return InvalidOid;
	return role;
}

/* Return the full name of a function, as text; the same if there is none: the plan says so. */
static Datum
full_name(Datum name)
{
	LOCAL_FCINFO(call, 1);
	Datum		function;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = name;
	call->args[0].isnull = false;
	function = strchr(TextDatumGetCString(name), '(') ? to_regprocedure(call) : (Datum) 0;
	return function == (Datum) 0 ? name : CStringGetTextDatum(format_procedure_qualified(DatumGetObjectId(function)));
}

/* Delete the record of the last run of a policy, or of all (NULL). */
static void
forget_runs(const char *policy)
{
	ScanKeyData key = extension_key(1, F_NAMEEQ, CStringGetDatum(policy));

	(void) extension_delete(RUN_TABLE, policy != NULL ? 1 : 0, &key);
}

/*
 * index_mover_tier_policy_check() RETURNS trigger, of tier_policy, BEFORE INSERT
 * OR UPDATE OR DELETE FOR EACH ROW, and BEFORE TRUNCATE
 *
 * Sets owner_oid; owner, if NULL, to the current user; and the full name of
 * now_function, as the search_path finds it now.  Checks the settings.
 * ERROR 42501, 42704 owner; 22023, 42501 settings.
 */
Datum
index_mover_tier_policy_check(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	PolicyRow	row;
	bool		update;
	bool		new_owner;
	bool		is_restored;

	if (!CALLED_AS_TRIGGER(fcinfo))
		return PointerGetDatum(NULL);
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
	{
		forget_runs(NULL);
		return PointerGetDatum(NULL);
	}
	desc = RelationGetDescr(data->tg_relation);
	update = TRIGGER_FIRED_BY_UPDATE(data->tg_event);
#define IS_SET(column) \
	(!update || bms_is_member(ANUM(column) - FirstLowInvalidHeapAttributeNumber, data->tg_updatedcols))
	row = deform(data->tg_trigtuple, desc);
	if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
	{
		forget_runs(NAME(name));
		return PointerGetDatum(data->tg_trigtuple);
	}
	if (update)
	{
		const char *old_name = NAME(name);

		/* row security asks this, too, but some roles bypass it */
		if (!has_privs_of_role(GetUserId(), row.null.owner ? InvalidOid : get_role_oid(NAME(owner), true)))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for tier policy \"%s\"", old_name)));
		row = deform(data->tg_newtuple, desc);
		if (row.null.name || namestrcmp(DatumGetName(row.value.name), old_name) != 0)
			forget_runs(old_name);
	}
	new_owner = IS_SET(owner) || IS_SET(owner_oid);
	is_restored = !update && !row.null.owner_oid;
	if (new_owner)
	{
		Oid			role = row.null.owner ? GetUserId() :
			check_owner(NAME(owner), is_restored ? DatumGetObjectId(row.value.owner_oid) : InvalidOid, update);

		if (row.null.owner)
			row.value.owner = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(role, false)));
		row.value.owner_oid = ObjectIdGetDatum(role);
		row.null.owner = false;
		row.null.owner_oid = !OidIsValid(role);
	}
	if (IS_SET(now_function) && !row.null.now_function)
		row.value.now_function = full_name(row.value.now_function);
	if ((IS_SET(settings) || new_owner) && !row.null.settings && !row.null.owner_oid)
	{
		MoveSettings settings;
		Oid			caller;
		int			context;

		GetUserIdAndSecContext(&caller, &context);
		SetUserIdAndSecContext(DatumGetObjectId(row.value.owner_oid), context | SECURITY_RESTRICTED_OPERATION);
		settings_capture(&settings, DatumGetJsonbP(row.value.settings), true);
		SetUserIdAndSecContext(caller, context);
	}
	/* a restore must not fail: then the plan says so */
	if (!is_restored && (IS_SET(to_tablespace) || IS_SET(from_tablespace) || IS_SET(parts)))
	{
		bool		tables = row.null.parts || !IS(parts, "indexes");

		policy_check_target(NAME(to_tablespace), tables);
		if (!row.null.budget)
			policy_check_target(NAME(from_tablespace), tables);
	}
	{
		int			columns[] = {ANUM(now_function), ANUM(owner), ANUM(owner_oid)};
		Datum		values[] = {row.value.now_function, row.value.owner, row.value.owner_oid};
		bool		nulls[] = {row.null.now_function, row.null.owner, row.null.owner_oid};

		return PointerGetDatum(heap_modify_tuple_by_cols(update ? data->tg_newtuple : data->tg_trigtuple, desc,
														 lengthof(columns), columns, values, nulls));
	}
}

/* The last run */

/*
 * Wait until no other session plans a policy of this role, for the rest of the
 * transaction: a now_function can sleep, and no role is to take all worker slots so.
 * With nowait, returns false instead, also if this session has the lock.
 */
bool
policy_lock(Oid owner, bool nowait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, AuthIdRelationId, owner, 0);
	return LockAcquire(&tag, ExclusiveLock, false, nowait) == LOCKACQUIRE_OK;
}

/* Read the last run of a policy, and which job has the rest of it; all is 0 if there was none. */
void
policy_run_read(const char *policy, PolicyRun *run)
{
	ScanKeyData key = extension_key(1, F_NAMEEQ, CStringGetDatum(policy));
	ExtensionScan scan;
	const Datum *values = scan.row.values;

	memset(run, 0, sizeof(PolicyRun));
	extension_scan_begin(&scan, RUN_TABLE, 1, &key);
	while (extension_scan_next(&scan))
	{
		/* SELECT .. FOR UPDATE, which sets xmax, too, deletes nothing */
		run->is_being_deleted = !HEAP_XMAX_IS_LOCKED_ONLY(scan.tuple->t_data->t_infomask) &&
			TransactionIdIsInProgress(HeapTupleHeaderGetUpdateXid(scan.tuple->t_data));
		run->started_at = DatumGetTimestampTz(values[1]);
		run->job = DatumGetInt64(values[2]);
		if (run->job > 0)
			run->job = history_last_of_policy(policy, run->job);
		run->failures = DatumGetInt32(values[3]);
		if (!scan.row.nulls[4])
			run->message = TextDatumGetCString(values[4]);
	}
}

/*
 * Record that a run begins (RUN_BEGUN), or has ended: its job, 0 = none, and why it has
 * failed.  Not of a policy that is not there: the caller has not committed it, or
 * another session deletes it, which is not waited for.
 */
void
policy_run_record(const char *policy, int64 job, const char *message)
{
	Row			row;
	PolicyRun	before;
	char	   *why;

	/* a run as the owner before may end at this moment */
	LockDatabaseObject(extension_relation(RUN_TABLE),
					   hash_any((const unsigned char *) policy, strlen(policy)), 0, ExclusiveLock);
	policy_run_read(policy, &before);
	if (before.is_being_deleted || (OidIsValid(policy_lock_table(false, true)) && policies_read(policy, true) == NIL))
		return;
	forget_runs(policy);
	row_clear(&row);
	row_set(&row, 1, DirectFunctionCall1(namein, CStringGetDatum(policy)));
	row_set(&row, 2, TimestampTzGetDatum(MyStartTimestamp));
	row_set(&row, 3, Int64GetDatum(job));
	row_set(&row, 4, Int32GetDatum(policy_failures(&before, &why)));
	row_text(&row, 5, message);
	extension_insert(RUN_TABLE, &row);
	IM_POINT("policy-run");
	CommandCounterIncrement();
}

/* Return whether a run has not ended: it is planned, or its job is there. */
bool
policy_is_running(const PolicyRun *run)
{
	JobSlot		slot;
	int64		age = GetCurrentTimestamp() - run->started_at;

	return run->job == RUN_BEGUN ? age >= 0 && age < PLAN_GONE_MS * INT64CONST(1000) :
		run->job != 0 && job_find(run->job, &slot);
}

/*
 * Return how many runs of a policy have failed in a row, up to the last one, and
 * why that has.  A run fails by itself, or if one of its moves does.
 */
int
policy_failures(const PolicyRun *run, char **why)
{
	/* why those before have failed was overwritten */
	*why = run->message != NULL ? run->message : "?";
	if (run->started_at == 0 || policy_is_running(run))
		return run->failures;
	if (run->message == NULL)
		*why = RUN_DIED;
	if (run->message != NULL || run->job == RUN_BEGUN)
		return run->failures + 1;
	foreach_ptr(const HistoryEntry, entry, run->job != 0 ? history_read(run->job) : NIL)
	{
		if (STATUS_IS_DONE(entry->status) || entry->status == STATUS_CANCELED)
			continue;
		if (entry->message != NULL && entry->status == STATUS_FAILED)
			*why = entry->message;
		return run->failures + 1;
	}
	return 0;
}
