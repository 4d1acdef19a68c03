/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  Rows of tier_policy: reading them, and whose they are.
 *
 * A policy is carried out as its owner: a name together with the OID that it had
 * when a role set it that may SET ROLE to it.  If the two do not fit together, because
 * the role was dropped and created again, or renamed, or the row comes from another
 * cluster, the policy does nothing until its owner is set again.  So no restore makes
 * a superuser the owner of a policy that another role has written.
 *
 * A trigger fills in the owner before a row is written, and another looks after it: no other
 * trigger can change the row in between.  Whoever holds TRIGGER on a table runs code as
 * each role that writes it, and can write anything as a superuser; so while the table
 * has a trigger or rule that is not ours, or lacks any of ours, no policy is carried out
 * (policy_fault.c).
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
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_tablespace_d.h"
#include "commands/extension.h"
#include "commands/tablespace.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "own_tables.h"
#include "tier/tier.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_tier_policy_check);

/* Columns of tier_policy; the script makes them so. */
#define COLUMNS \
	name, enabled, relation, schema, from_tablespace, to_tablespace, parts, older_than, key_unit, \
	key_zero, keys_per_second, budget, start_at, stop_at, freeze_first, min_stay, half_life, \
	max_bytes_per_run, settings, idle_for, idle_of, every, window_start, window_end, owner, \
	owner_oid, scheduled_since

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

#define STRING_OF(...) #__VA_ARGS__
#define NAMES_OF(...) STRING_OF(__VA_ARGS__)
#define COLUMN_NAMES NAMES_OF(COLUMNS)
#define NCOLUMNS	((int) sizeof(((PolicyRow *) 0)->null))
#define ANUM(column)	((int) (offsetof(PolicyRow, null.column) - offsetof(PolicyRow, null)) + 1)
#define VALUE_OR(column, type, none) \
	(row.null.column ? (none) : DatumGet##type(row.value.column))
#define NAME(column)	(row.null.column ? NULL : pstrdup(NameStr(*DatumGetName(row.value.column))))
#define IS(column, word)	(strcmp(TextDatumGetCString(row.value.column), word) == 0)
#define INTERVAL(column) \
	(row.null.column ? NULL : \
	 DatumGetIntervalP(datumCopy(row.value.column, false, sizeof(Interval))))

/*
 * Return whether the table has our columns: it is of another version of the extension if
 * only the library was replaced, or pg_upgrade has brought it.
 */
static bool
has_columns(TupleDesc desc)
{
	bool		result;
	StringInfoData names;

	initStringInfo(&names);
	for (int i = 0; i < Min(desc->natts, NCOLUMNS); i++)
	{
		if (i > 0)
			appendStringInfoString(&names, ", ");
		appendStringInfoString(&names, NameStr(TupleDescAttr(desc, i)->attname));
	}
	result = strcmp(names.data, COLUMN_NAMES) == 0 && extension_fits("tier_policy", desc);
	pfree(names.data);
	return result;
}

/* ERROR 55000 unless it has. */
static void
require_columns(TupleDesc desc)
{
	if (!has_columns(desc))
		extension_other_version("tier_policy");
}

/* Return whether policies_of_table() can read the table, which is locked. */
bool
policies_are_readable(Oid table)
{
	Relation	rel = table_open(table, NoLock);
	bool		result = has_columns(RelationGetDescr(rel));

	table_close(rel, NoLock);
	return result;
}

static PolicyRow
deform(HeapTuple tuple, TupleDesc desc)
{
	PolicyRow	row;

	extension_deform(tuple, desc, NCOLUMNS, (Datum *) &row.value, (bool *) &row.null);
	return row;
}

/*
 * Return the text of the column now_function, palloc'd, NULL if there is none: 1.0.0 had
 * it, and who restores a dump of that adds it for the time being.
 */
static char *
now_function(HeapTuple tuple, TupleDesc desc)
{
	for (int i = NCOLUMNS; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);
		bool		isnull;
		Datum		value;

		if (column->attisdropped || column->atttypid != TEXTOID ||
			namestrcmp(&column->attname, "now_function") != 0)
			continue;
		value = heap_getattr(tuple, i + 1, desc, &isnull);
		return isnull ? NULL : TextDatumGetCString(value);
	}
	return NULL;
}

static PolicyKind
kind_of(const PolicyRow *row)
{
	if (!row->null.older_than)
		return POLICY_OLDER_THAN;
	if (!row->null.idle_for)
		return POLICY_IDLE_FOR;
	if (!row->null.budget)
		return POLICY_BUDGET;
	return POLICY_START_AT;
}

static IdleOf
idle_of(const char *word)
{
	if (strcmp(word, "change") == 0)
		return IDLE_OF_CHANGE;
	if (strcmp(word, "index use") == 0)
		return IDLE_OF_INDEX_USE;
	return IDLE_OF_USE;
}

static KeyMeaning
key_meaning(const PolicyRow *row)
{
	KeyMeaning	result = {.unit = KEY_UNIT_NONE};

	if (!row->null.key_unit)
		result.unit = key_unit_named(TextDatumGetCString(row->value.key_unit));
	else if (!row->null.key_zero && !row->null.keys_per_second)
	{
		result.unit = KEY_UNIT_RATE;
		result.zero = DatumGetNumericCopy(row->value.key_zero);
		result.per_second = DatumGetNumericCopy(row->value.keys_per_second);
	}
	return result;
}

/*
 * Return from when on the scheduler counts, 0 if the row does not say it.  Who may write rows may
 * write a moment in the future, or one before there was any scheduler.
 */
static TimestampTz
scheduled_since(const PolicyRow *row)
{
	TimestampTz result = row->null.scheduled_since ? 0 :
		DatumGetTimestampTz(row->value.scheduled_since);

	return result < 0 || moment_is_ahead(result) ? 0 : result;
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
	policy->is_visible = superuser() ||
		(OidIsValid(owner) && has_privs_of_role(GetUserId(), owner));
	policy->enabled = DatumGetBool(row.value.enabled);
	policy->kind = kind_of(&row);
	policy->relation = VALUE_OR(relation, ObjectId, InvalidOid);
	policy->schema = NAME(schema);
	policy->from_tablespace = NAME(from_tablespace);
	/* a constraint was dropped: then no tablespace has the name */
	if (policy->from_tablespace == NULL &&
		(policy->kind == POLICY_BUDGET || policy->kind == POLICY_START_AT))
		policy->from_tablespace = pstrdup("");
	policy->to_tablespace = DatumGetName(datumCopy(row.value.to_tablespace, false, NAMEDATALEN));
	policy->tables = !IS(parts, "indexes");
	policy->indexes = !IS(parts, "table");
	policy->age = policy->kind == POLICY_OLDER_THAN ? INTERVAL(older_than) : INTERVAL(idle_for);
	policy->idle_of = idle_of(TextDatumGetCString(row.value.idle_of));
	policy->key = key_meaning(&row);
	policy->now_function = now_function(tuple, desc);
	policy->budget = VALUE_OR(budget, Int64, 0);
	policy->start_at = VALUE_OR(start_at, Float8, 0);
	policy->stop_at = VALUE_OR(stop_at, Float8, 0);
	policy->freeze_first = DatumGetBool(row.value.freeze_first);
	policy->min_stay = INTERVAL(min_stay);
	policy->half_life = INTERVAL(half_life);
	policy->max_bytes_per_run = VALUE_OR(max_bytes_per_run, Int64, 0);
	policy->every = INTERVAL(every);
	policy->window_start = VALUE_OR(window_start, TimeADT, -1);
	policy->window_end = VALUE_OR(window_end, TimeADT, -1);
	policy->scheduled_since = scheduled_since(&row);
	policy->settings = row.null.settings ? NULL : DatumGetJsonbPCopy(row.value.settings);
	if (!row.null.owner)
		policy->owner_name = *DatumGetName(row.value.owner);
	return policy;
}

static int
compare_policies(const ListCell *a, const ListCell *b)
{
	const Policy *policy1 = lfirst(a);
	const Policy *policy2 = lfirst(b);

	return strcmp(NameStr(policy1->name), NameStr(policy2->name));
}

/* Return the rows of tier_policy, which is locked, in the order of their names. */
List *
policies_of_table(Oid table)
{
	Relation	rel = table_open(table, NoLock);
	List	   *result = NIL;

	require_columns(RelationGetDescr(rel));
	foreach_ptr(HeapTupleData, tuple, catalog_all(table))
		result = lappend(result, read_policy(tuple, RelationGetDescr(rel)));
	table_close(rel, AccessShareLock);
	list_sort(result, compare_policies);
	return result;
}

/*
 * Return the policies that are enabled, in the order of their names, or the one of
 * this name: of the roles whose privileges the current user has.  ERROR 42704 if there
 * is none of this name, enabled or not; 55000 if none is carried out.  all: of all roles,
 * and the disabled ones, without these errors.
 */
List *
policies_read(const char *name, bool all)
{
	Oid			table = policy_lock_table(false, false);
	PolicyFault fault = policy_fault();
	List	   *result = NIL;
	bool		found = false;

	if (!all && fault.reason != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no tier policy is carried out"),
				 errdetail_internal("%s", fault.reason),
				 errhint("To mend this: %s", fault.command)));
	foreach_ptr(Policy, policy, policies_of_table(table))
	{
		if (name != NULL && strcmp(name, NameStr(policy->name)) != 0)
			continue;
		if (!all && !policy->is_visible)
			continue;
		found = true;
		/* a policy that had a now_function tells so in the plan */
		if (all || policy->enabled || policy->now_function != NULL)
			result = lappend(result, policy);
		if (!all && name != NULL && !policy->enabled)
			ereport(NOTICE,
					(errmsg("tier policy \"%s\" is disabled", name)));
	}
	if (name != NULL && !found && !all)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tier policy \"%s\" does not exist", name)));
	return result;
}

/* Tell the caller which policies that it sees would fill an emptied tablespace again. */
void
policies_notice_target(Oid tablespace)
{
	const char *target = tablespace_name(tablespace);

	Oid			table = policy_lock_table(false, true);

	/* this tells of a policy, and needs none */
	if (!OidIsValid(table) || !policies_are_readable(table))
		return;
	foreach_ptr(const Policy, policy, policies_of_table(table))
	{
		if (!policy->enabled || !policy->is_visible)
			continue;
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

/* Why a policy fails whatever it plans; NULL: it does not. */
char *
policy_obstacle(const Policy *policy)
{
	if (policy->now_function != NULL)
		return psprintf("it is disabled: now_function \"%s\" is called no more", policy->now_function);
	if (!OidIsValid(policy->owner))
		return "the policy has no valid owner";
	return NULL;
}

/* The triggers of tier_policy */

/* ERROR 42501 unless the current user may SET ROLE to a role; if there is none, only a superuser may. */
static void
require_set_role(Oid role, const char *name)
{
	bool		may = OidIsValid(role) ? im_can_set_role(GetUserId(), role) : superuser();

	if (!may)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be able to SET ROLE \"%s\"", name)));
}

/* As require_set_role(), for the owner that a row names.  Row security asks this, too, but some roles bypass it. */
static void
require_owner(const PolicyRow *row)
{
	const char *owner = row->null.owner ? "" : NameStr(*DatumGetName(row->value.owner));

	require_set_role(row->null.owner ? InvalidOid : get_role_oid(owner, true), owner);
}

/*
 * Return the owner to be set for a row.  given: the OID that comes with the name,
 * as in a dump; 0 = none.  ERROR 42501 as require_set_role(), 42704 if there is no such role,
 * but for a superuser who inserts, whose restore must not fail.  The result is 0 if the
 * policy has no valid owner.
 */
static Oid
find_owner(const char *owner, Oid given, bool update)
{
	Oid			role = get_role_oid(owner, superuser() && !update);

	require_set_role(role, owner);

	/*
	 * With its OID it comes from a dump.  In another cluster another role can
	 * have both, and must not be a superuser then; but the bootstrap
	 * superuser is the same.
	 */
	if (OidIsValid(given) &&
		(given != role || (superuser_arg(role) && role != BOOTSTRAP_SUPERUSERID)))
		return InvalidOid;
	return role;
}

/* Check the settings of a row as for its owner. */
static void
check_settings(const PolicyRow *row)
{
	MoveSettings settings;
	Oid			caller;
	int			context;

	GetUserIdAndSecContext(&caller, &context);
	SetUserIdAndSecContext(DatumGetObjectId(row->value.owner_oid),
						   context | SECURITY_RESTRICTED_OPERATION);
	settings_capture(&settings, DatumGetJsonbP(row->value.settings), true);
	SetUserIdAndSecContext(caller, context);
}

/*
 * Disable a policy that comes from a dump of 1.0.0 with a function: the meaning of its key
 * is to be said in another way, and now() in its place would move young relations.
 */
static void
refuse_function(HeapTuple tuple, TupleDesc desc, PolicyRow *row, bool update)
{
	if (now_function(tuple, desc) == NULL || !DatumGetBool(row->value.enabled))
		return;
	if (update)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("tier policy \"%s\" has a now_function", NameStr(*DatumGetName(row->value.name))),
				 errdetail("No function is called any more."),
				 errhint("Set key_unit, or key_zero and keys_per_second, and set now_function to NULL.")));
	row->value.enabled = BoolGetDatum(false);
}

/*
 * Set min_stay by the kind of a policy, unless it is said.  Of other choices, bench/tiers
 * --choices tells how well a budget follows hot sets.
 */
static void
default_min_stay(PolicyRow *row)
{
	Interval   *stay;

	if (!row->null.min_stay)
		return;
	stay = palloc0_object(Interval);
	stay->day = row->null.budget ? 7 : 1;
	row->value.min_stay = IntervalPGetDatum(stay);
	row->null.min_stay = false;
}

/*
 * Before a row is written: set its owner, owner_oid, min_stay and scheduled_since, and check
 * the rest of it.
 */
static HeapTuple
before_row(const TriggerData *data)
{
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	bool		update = TRIGGER_FIRED_BY_UPDATE(data->tg_event);
	HeapTuple	tuple = update ? data->tg_newtuple : data->tg_trigtuple;
	PolicyRow	row = deform(tuple, desc);
	bool		is_restored = !update && !row.null.owner_oid;
	bool		new_owner;
	bool		is_scheduled = false;

#define IS_SET(column) \
	(!update || bms_is_member(ANUM(column) - FirstLowInvalidHeapAttributeNumber, \
							  data->tg_updatedcols))

	new_owner = IS_SET(owner) || IS_SET(owner_oid);
	if (new_owner)
	{
		Oid			given = is_restored ? DatumGetObjectId(row.value.owner_oid) : InvalidOid;
		Oid			role = GetUserId();

		if (row.null.owner)
			row.value.owner = DirectFunctionCall1(namein,
												  CStringGetDatum(GetUserNameFromId(role, false)));
		else
			role = find_owner(NAME(owner), given, update);
		row.value.owner_oid = ObjectIdGetDatum(role);
		row.null.owner = false;
		row.null.owner_oid = !OidIsValid(role);
	}
	refuse_function(tuple, desc, &row, update);
	default_min_stay(&row);
	if (new_owner || IS_SET(enabled) || IS_SET(every) || IS_SET(window_start) || IS_SET(window_end))
		is_scheduled = true;
	if (!is_scheduled)
	{
		PolicyRow	before = deform(data->tg_trigtuple, desc);

		row.value.scheduled_since = before.value.scheduled_since;
		row.null.scheduled_since = before.null.scheduled_since;
	}
	else if (!is_restored || scheduled_since(&row) == 0)
	{
		row.value.scheduled_since = TimestampTzGetDatum(GetCurrentTimestamp());
		row.null.scheduled_since = false;
	}
	if ((IS_SET(settings) || new_owner) && !row.null.settings && !row.null.owner_oid)
		check_settings(&row);
	/* a restore must not fail: then the plan says so */
	if (!is_restored && (IS_SET(to_tablespace) || IS_SET(from_tablespace) || IS_SET(parts)))
	{
		bool		tables = row.null.parts || !IS(parts, "indexes");

		policy_check_target(NAME(to_tablespace), tables);
		if (!row.null.budget)
			policy_check_target(NAME(from_tablespace), tables);
	}
	{
		int			columns[] = {
			ANUM(enabled), ANUM(owner), ANUM(owner_oid), ANUM(min_stay), ANUM(scheduled_since)
		};
		Datum		values[] = {
			row.value.enabled, row.value.owner, row.value.owner_oid, row.value.min_stay,
			row.value.scheduled_since
		};
		bool		nulls[] = {
			row.null.enabled, row.null.owner, row.null.owner_oid, row.null.min_stay,
			row.null.scheduled_since
		};

		return heap_modify_tuple_by_cols(tuple, desc, lengthof(columns), columns, values, nulls);
	}
}

/* After a row was written, as it is now: may the current user do so? */
static void
after_row(const TriggerData *data)
{
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	PolicyRow	row = deform(data->tg_trigtuple, desc);
	PolicyRow	new_row;

	require_owner(&row);
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
		return;
	if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
	{
		policy_run_forget(NAME(name));
		return;
	}
	new_row = deform(data->tg_newtuple, desc);
	require_owner(&new_row);
	if (namestrcmp(DatumGetName(row.value.name), NameStr(*DatumGetName(new_row.value.name))) != 0)
		policy_run_forget(NAME(name));
}

/*
 * index_mover.tier_policy_check() RETURNS trigger, of tier_policy: BEFORE INSERT OR
 * UPDATE and AFTER INSERT OR UPDATE OR DELETE, FOR EACH ROW, and BEFORE TRUNCATE
 *
 * Sets owner_oid, and owner, if NULL, to the current user.  Checks the settings, and
 * that the current user may SET ROLE to the owner before and after the change.
 * ERROR 42501, 42704 owner; 22023, 42501 settings; 55000 target; 39P01 another use.
 */
Datum
index_mover_tier_policy_check(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager", "tier_policy_check")));
	if (RelationGetRelid(data->tg_relation) != policy_table())
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired for table \"%s\"", "tier_policy_check", "tier_policy")));
	require_columns(RelationGetDescr(data->tg_relation));
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
	{
		LockRelationOid(RelationGetRelid(data->tg_relation), AccessShareLock);
		foreach_ptr(const Policy, policy, policies_of_table(RelationGetRelid(data->tg_relation)))
		{
			const char *owner = NameStr(policy->owner_name);

			require_set_role(get_role_oid(owner, true), owner);
		}
		policy_run_forget(NULL);
		return PointerGetDatum(NULL);
	}
	if (!TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired for row", "tier_policy_check")));
	if (TRIGGER_FIRED_AFTER(data->tg_event))
	{
		after_row(data);
		return PointerGetDatum(NULL);
	}
	if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
		return PointerGetDatum(data->tg_trigtuple);
	return PointerGetDatum(before_row(data));
}
