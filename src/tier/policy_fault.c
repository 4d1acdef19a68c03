/*-------------------------------------------------------------------------
 *
 * policy_fault.c
 *	  Why policies are not carried out, whoever's they are.
 *
 * Whoever holds TRIGGER on tier_policy runs code as each role that writes it, and could have
 * a superuser write anything.  So nothing is carried out while the table has a trigger,
 * a rule or a child that is not ours, or lacks a trigger of ours, as after pg_restore
 * --disable-triggers.  Nor while a session has locked the table: it is not waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_rewrite.h"
#include "catalog/pg_trigger.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "job.h"
#include "own_tables.h"
#include "printed_command.h"
#include "row.h"
#include "tier/tier_private.h"
#include "wait/wait.h"

PG_FUNCTION_INFO_V1(index_mover_policy_fault);

/* for a lock of tier_policy, in ms */
#define LOCK_WAIT_MS	1000
#define LOCK_NAP_MS		20

/* Return the OID of tier_policy, in whatever schema it is by now; InvalidOid if there is none. */
Oid
policy_table(void)
{
	Oid			extension = get_extension_oid("index_mover", true);

	foreach_ptr(HeapTupleData, row, catalog_rows(DependRelationId, DependReferenceIndexId,
												 Anum_pg_depend_refclassid, ExtensionRelationId,
												 Anum_pg_depend_refobjid, extension))
	{
		Form_pg_depend form = (Form_pg_depend) GETSTRUCT(row);
		const char *name = NULL;

		if (form->classid == RelationRelationId && form->deptype == DEPENDENCY_EXTENSION)
			name = get_rel_name(form->objid);
		if (name != NULL && strcmp(name, "tier_policy") == 0)
			return form->objid;
	}
	return InvalidOid;
}

/*
 * Lock tier_policy.  Waits for a moment, once in a statement: VACUUM may cut it.  Returns
 * false if another session keeps it.
 */
static bool
lock_for_reading(Oid table)
{
	static TimestampTz in_vain = -1;	/* a statement's start */
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	for (int waited = 0; !ConditionalLockRelationOid(table, AccessShareLock); waited += LOCK_NAP_MS)
	{
		if (waited >= LOCK_WAIT_MS || in_vain == statement)
		{
			in_vain = statement;
			return false;
		}
		latch_nap(LOCK_NAP_MS, "IndexMoverWait");
		CHECK_FOR_INTERRUPTS();
	}
	return true;
}

/*
 * Lock tier_policy and, with hold, the extension, so that DROP EXTENSION waits.
 * Returns the table.  Waits for a second at most: a role that may only delete its own
 * policies can lock it for long.  Then ERROR 55P03 or, with noerror, 0.
 */
Oid
policy_lock_table(bool hold, bool noerror)
{
	bool		held = true;
	Oid			table;
	bool		locked = false;

	if (hold)
		held = extension_hold() == EXTENSION_HELD;
	table = policy_table();
	if (held && OidIsValid(table))
		locked = lock_for_reading(table);
	if (locked)
		return table;
	if (held && !OidIsValid(table) && !noerror)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s\" of extension \"%s\" does not exist", "tier_policy", "index_mover")));
	if (!noerror)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on the tables of extension \"%s\"", "index_mover"),
				 errdetail("Another session has locked the extension, or table \"%s\".", "tier_policy")));
	return InvalidOid;
}

/* Why policies are not carried out */

/* The triggers of tier_policy, as the script makes them */
static const struct
{
	const char *name;
	const char *function;
	char		enabled;		/* as in pg_trigger */
	const char *state;			/* the same for ALTER TABLE */
	const char *fires;			/* when; NULL = it has a command of its own */
	const char *calls;			/* for each row or statement, and the function */
}			own_triggers[] = {

	{
		"not_by_replication", "not_by_replication", TRIGGER_FIRES_ON_REPLICA, "REPLICA"
	},
	{
		"tier_policy_check", "tier_policy_check", TRIGGER_FIRES_ALWAYS, "ALWAYS",
		"BEFORE INSERT OR UPDATE",
		"ROW EXECUTE FUNCTION index_mover.tier_policy_check"
	},
	{
		"tier_policy_owner", "tier_policy_check", TRIGGER_FIRES_ALWAYS, "ALWAYS",
		"AFTER INSERT OR UPDATE OR DELETE",
		"ROW EXECUTE FUNCTION index_mover.tier_policy_check"
	},
	{
		"tier_policy_truncate", "tier_policy_check", TRIGGER_FIRES_ALWAYS, "ALWAYS",
		"BEFORE TRUNCATE",
		"STATEMENT EXECUTE FUNCTION index_mover.tier_policy_check"
	},
};

/* Return the number of a trigger in own_triggers, -1 if it is another's. */
static int
own_trigger(Form_pg_trigger form)
{
	if (get_func_namespace(form->tgfoid) != get_namespace_oid("index_mover", true))
		return -1;
	for (int i = 0; i < lengthof(own_triggers); i++)
	{
		if (namestrcmp(&form->tgname, own_triggers[i].name) == 0 &&
			strcmp(get_func_name(form->tgfoid), own_triggers[i].function) == 0)
			return i;
	}
	return -1;
}

/* Say that a trigger of own_triggers is not there.  It is made first, and then enabled. */
static PolicyFault
missing_trigger(int n, const char *table_name)
{
	const char *trigger = own_triggers[n].name;
	PolicyFault result = {NULL};

	result.reason = psprintf("Trigger \"%s\" of table \"tier_policy\" is missing.", trigger);
	if (own_triggers[n].fires == NULL)
		result.command = printed_command("create_replica_trigger", table_name);
	else
		result.command = printed_command("create_trigger",
										 psprintf("%s %s", trigger, own_triggers[n].fires),
										 table_name, own_triggers[n].calls);
	return result;
}

/*
 * Look for a trigger that is not ours, and for a trigger of ours that is not there, or does not
 * fire.  Who holds TRIGGER can replace a trigger of ours: when that is dropped, ours is missing.
 */
static PolicyFault
trigger_fault(Oid table, const char *name)
{
	PolicyFault result = {NULL};
	bool		found[lengthof(own_triggers)] = {false};
	bool		fires[lengthof(own_triggers)] = {false};

	foreach_ptr(HeapTupleData, row, catalog_rows(TriggerRelationId, TriggerRelidNameIndexId,
												 Anum_pg_trigger_tgrelid, table, 0, InvalidOid))
	{
		Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(row);
		int			own = own_trigger(form);

		/* foreign keys' */
		if (form->tgisinternal)
			continue;
		if (own < 0)
		{
			result.reason = psprintf("Trigger \"%s\" on table \"tier_policy\" is not of index_mover.",
									 NameStr(form->tgname));
			result.command = printed_command("drop_trigger", NameStr(form->tgname), name);
			return result;
		}
		found[own] = true;
		fires[own] = form->tgenabled == own_triggers[own].enabled;
	}
	for (int i = 0; i < lengthof(own_triggers); i++)
	{
		if (fires[i])
			continue;
		if (!found[i])
			return missing_trigger(i, name);
		result.reason = psprintf("Trigger \"%s\" of table \"tier_policy\" is not enabled as it must be.",
								 own_triggers[i].name);
		result.command = printed_command("enable_trigger", name, own_triggers[i].state,
										 own_triggers[i].name);
		return result;
	}
	return result;
}

/* Return why no policy is carried out now, whoever's. */
PolicyFault
policy_fault(void)
{
	Oid			table = policy_table();
	char	   *name;
	PolicyFault result = {NULL};

	if (!OidIsValid(table))
	{
		if (OidIsValid(get_extension_oid("index_mover", true)))
			result.reason = "The extension has no table \"tier_policy\" any more.";
		return result;
	}
	name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)), "tier_policy");
	foreach_ptr(HeapTupleData, row, catalog_rows(RewriteRelationId, RewriteRelRulenameIndexId,
												 Anum_pg_rewrite_ev_class, table, 0, InvalidOid))
	{
		Form_pg_rewrite form = (Form_pg_rewrite) GETSTRUCT(row);

		result.reason = psprintf("Rule \"%s\" on table \"tier_policy\" is not of index_mover.",
								 NameStr(form->rulename));
		result.command = printed_command("drop_rule", NameStr(form->rulename), name);
		return result;
	}
	/* their rows look like policies, and no trigger of ours sees them */
	foreach_oid(child, children_of(table, true))
	{
		const char *child_name = get_rel_name(child);
		const char *schema = get_namespace_name(get_rel_namespace(child));

		if (child_name == NULL || schema == NULL)
			continue;
		result.reason = psprintf("Table \"%s\" inherits from table \"tier_policy\".", child_name);
		result.command = printed_command("no_inherit",
										 quote_qualified_identifier(schema, child_name), name);
		return result;
	}
	return trigger_fault(table, name);
}

/* Say which session keeps tier_policy, or the extension, locked. */
static PolicyFault
lock_fault(void)
{
	PolicyFault result = {.reason = "Another session has locked the extension, or table \"tier_policy\"."};
	LOCKTAG		tag;
	int			count;
	int			pid;
	VirtualTransactionId *holders;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, policy_table());
	holders = GetLockConflicts(&tag, AccessShareLock, &count);
	if (virtual_transaction_pids(holders, count, &pid, 1) == 1 && pid != 0)
	{
		result.reason = psprintf("Process %d has locked table \"tier_policy\".", pid);
		result.command = printed_command("terminate_backend", (int64) pid);
	}
	return result;
}

/*
 * index_mover.policy_fault(OUT reason text, OUT command text) RETURNS SETOF record
 *
 * Why no policy is carried out: at most a row.  Waits a second at most if another session
 * has locked tier_policy, which is such a reason.  EXECUTE: pg_monitor.
 */
Datum
index_mover_policy_fault(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			table = policy_lock_table(false, true);
	PolicyFault fault = policy_fault();
	Row			row;

	InitMaterializedSRF(fcinfo, 0);
	if (OidIsValid(table))
		UnlockRelationOid(table, AccessShareLock);
	else if (OidIsValid(policy_table()))
		fault = lock_fault();
	if (fault.reason == NULL)
		return (Datum) 0;
	row_clear(&row);
	row_text(&row, 1, fault.reason);
	row_text(&row, 2, fault.command);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	return (Datum) 0;
}
