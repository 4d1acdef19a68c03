/*-------------------------------------------------------------------------
 *
 * policy_conflict.c
 *	  Policies that would work against each other.
 *
 * A policy with start_at empties a file system, and another fills it: each would go on
 * with a move that the other has just made.  So no policy moves in a relation that it would take
 * back from there, above a little less than start_at; see applies_to().  Such a limit counts only
 * for relations that its policy could move out: it covers them, and its owner may move them to
 * its target; see conflict_find().  Else any role could keep the others' out of a tablespace.
 *
 * Calls by hand are not held up; a NOTICE tells of the policy.
 *
 * Takes no locks but on tier_policy.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "commands/tablespace.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "history.h"
#include "plan/plan.h"
#include "row.h"
#include "tier/tier.h"
#include "tier/tier_private.h"

PG_FUNCTION_INFO_V1(index_mover_policy_conflicts);

/* Return whether a move between two tablespaces brings bytes to a file system from another. */
static bool
arrives(const List *places, Oid from_tablespace, Oid to_tablespace, int64 device)
{
	const Place *from = places_find(places, from_tablespace);
	const Place *to = places_find(places, to_tablespace);

	if (to == NULL || !to->is_there || to->facts.device != device)
		return false;
	return from == NULL || !from->is_there || from->facts.device != device;
}

/* Count bytes that come from one tablespace to another as used in the file system of that. */
static void
count_arriving(PressureLimits *limits, Oid from, Oid to, int64 bytes)
{
	foreach_ptr(PressureDevice, device, limits->devices)
	{
		if (arrives(limits->places, from, to, device->device))
			device->used += bytes;
	}
}

/* Count the bytes that jobs of this database still have to move. */
static void
count_jobs(PressureLimits *limits)
{
	JobSlot		slots[IM_MAX_JOBS];
	int			nslots = limits->devices != NIL ? job_read_slots(slots, NULL) : 0;

	for (int i = 0; i < nslots; i++)
	{
		foreach_ptr(const HistoryEntry, entry, history_read(slots[i].job))
		{
			if (entry->status == STATUS_QUEUED || entry->status == STATUS_RUNNING)
				count_arriving(limits, entry->from_tablespace, entry->to_tablespace, entry->size);
		}
	}
}

/* Return the entry of the file system of a place, which is made for the first that asks. */
static PressureDevice *
device_of(PressureLimits *limits, const Place *place)
{
	PressureDevice *result;

	foreach_ptr(PressureDevice, device, limits->devices)
	{
		if (device->device == place->facts.device)
			return device;
	}
	result = palloc_object(PressureDevice);
	result->device = place->facts.device;
	result->total = place->facts.total_bytes;
	result->used = place->facts.total_bytes - place->facts.free_bytes;
	limits->devices = lappend(limits->devices, result);
	return result;
}

/*
 * Add the limit of a policy with start_at, unless it can move nothing out: that takes another
 * file system, and CREATE on its tablespace.
 */
static void
add_limit(PressureLimits *limits, const Policy *policy)
{
	const Place *from = places_named(limits->places, policy->from_tablespace);
	const Place *to = places_named(limits->places, NameStr(*policy->to_tablespace));
	PressureLimit limit = {.policy = policy};
	PressureLimit *copy;

	if (from == NULL || to == NULL || !from->is_there || from->facts.total_bytes == 0)
		return;
	if (to->is_there && to->facts.device == from->facts.device)
		return;
	if (!plan_role_may_fill(policy->owner, to->oid))
		return;
	if (policy->schema != NULL)
	{
		limit.schema = get_namespace_oid(policy->schema, true);
		if (!OidIsValid(limit.schema))
			return;
	}
	limit.from = from->oid;
	limit.to = to->oid;
	limit.device = device_of(limits, from);
	limit.share = policy->start_at - (policy->start_at - policy->stop_at) / 10;
	copy = palloc_object(PressureLimit);
	*copy = limit;
	limits->limits = lappend(limits->limits, copy);
}

/* By owner, and of an owner in the order of the names. */
static int
compare_limits(const ListCell *a, const ListCell *b)
{
	const Policy *policy1 = ((const PressureLimit *) lfirst(a))->policy;
	const Policy *policy2 = ((const PressureLimit *) lfirst(b))->policy;

	if (policy1->owner != policy2->owner)
		return policy1->owner < policy2->owner ? -1 : 1;
	return strcmp(NameStr(policy1->name), NameStr(policy2->name));
}

/* Return the limits that these policies set. */
static PressureLimits *
limits_of(const List *policies, const List *places)
{
	PressureLimits *result = palloc0_object(PressureLimits);

	result->places = places;
	foreach_ptr(const Policy, policy, policies)
	{
		CHECK_FOR_INTERRUPTS();
		if (policy->kind == POLICY_START_AT && policy->enabled && policy_obstacle(policy) == NULL)
			add_limit(result, policy);
	}
	list_sort(result->limits, compare_limits);
	return result;
}

/*
 * Return the limits that policies with start_at set for policies that move relations in.
 * Relations that jobs are moving there count as there.
 */
PressureLimits *
conflict_limits(const List *places)
{
	PressureLimits *result = limits_of(policies_read(NULL, true), places);

	count_jobs(result);
	return result;
}

/*
 * Return whether a policy could move in again a relation that the policy of a limit moves
 * out.  In a chain of tiers none does: it takes relations from a single other tablespace only.
 */
static bool
applies_to(const PressureLimit *limit, const Policy *policy)
{
	if (limit->policy == policy || strcmp(NameStr(limit->policy->name), NameStr(policy->name)) == 0)
		return false;
	return policy->kind == POLICY_BUDGET || policy->from_tablespace == NULL ||
		strcmp(policy->from_tablespace, NameStr(*limit->policy->to_tablespace)) == 0;
}

/* Return whether a role may move a table or index, as far as privileges go. */
static bool
may_move(Oid role, Oid relid, Oid heap_oid)
{
	bool		may_all = superuser_arg(role);
	Oid			schema = get_rel_namespace(relid);

	/* they can have been dropped, which is an error in core */
	if (get_namespace_name(schema) == NULL || get_rel_relkind(heap_oid) == '\0')
		return false;
	if (may_all)
		return true;
	if (object_aclcheck(NamespaceRelationId, schema, role, ACL_USAGE) != ACLCHECK_OK)
		return false;
	return plan_role_aclcheck(role, heap_oid, relid != heap_oid) == ACLCHECK_OK;
}

/*
 * Return whether the policy of a limit could move a table or index out again: it covers it.
 * The caller has seen that its owner may move it.
 */
static bool
covers(const PressureLimit *limit, Oid relid, Oid heap_oid)
{
	const Policy *policy = limit->policy;
	bool		of_kind = relid == heap_oid ? policy->tables : policy->indexes;

	if (!of_kind)
		return false;
	if (policy->schema != NULL && get_rel_namespace(relid) != limit->schema)
		return false;
	return !OidIsValid(policy->relation) || is_or_is_below(heap_oid, policy->relation);
}

/* Return the bytes that planned moves bring to a file system from others. */
static int64
bytes_into(const PressureLimits *limits, const List *moves, int64 device)
{
	int64		result = 0;

	foreach_ptr(const PlannedMove, move, moves)
	{
		const MoveItem *item = &move->item;

		if (item->outcome.status == STATUS_PLANNED &&
			arrives(limits->places, item->from_tablespace, item->to_tablespace, device))
			result += plan_stored_bytes(item);
	}
	return result;
}

/* Return the relation that a planned move is for: a TOAST table, and its index, go with the table. */
static void
subject_of(const MoveItem *item, Oid *relid, Oid *heap_oid)
{
	*relid = item->relid;
	*heap_oid = item->heap_oid;
	if (OidIsValid(item->part_of))
		*relid = *heap_oid = item->part_of;
}

/* Return whether a limit concerns any of the relations that these moves bring. */
static bool
concerns_any(const PressureLimits *limits, const PressureLimit *limit, const List *moves)
{
	foreach_ptr(const PlannedMove, move, moves)
	{
		const MoveItem *item = &move->item;
		Oid			relid;
		Oid			heap_oid;

		if (item->outcome.status != STATUS_PLANNED ||
			!arrives(limits->places, item->from_tablespace, item->to_tablespace,
					 limit->device->device))
			continue;
		subject_of(item, &relid, &heap_oid);
		if (may_move(limit->policy->owner, relid, heap_oid) && covers(limit, relid, heap_oid))
			return true;
	}
	return false;
}

/* Return whether a role may move any of the relations of these moves. */
static bool
may_move_any(Oid role, const List *moves)
{
	foreach_ptr(const PlannedMove, move, moves)
	{
		Oid			relid;
		Oid			heap_oid;

		subject_of(&move->item, &relid, &heap_oid);
		if (may_move(role, relid, heap_oid))
			return true;
	}
	return false;
}

/*
 * Return whether these moves are of a resident that leaves the budget of a policy, and that
 * the policy of the limit does not bring back.  It may go: else no budget could shrink where
 * the tablespace behind it is full, too.
 */
static bool
leaves_budget(const PressureLimit *limit, const Policy *policy, const List *moves)
{
	const MoveItem *first = &((const PlannedMove *) linitial(moves))->item;

	return policy->kind == POLICY_BUDGET && first->from_tablespace != limit->to &&
		first->to_tablespace == get_tablespace_oid(policy->from_tablespace, true);
}

/*
 * Return the limit that a policy would exceed by these moves of a table or its indexes, or
 * NULL.  with_counted: also relations that count in its budget, see conflict_budget().
 *
 * Privileges are looked at first, once for an owner: the many policies of a role that may not
 * move these relations take next to no time.
 */
const PressureLimit *
conflict_find(const PressureLimits *limits, const Policy *policy, const List *moves,
			  bool with_counted)
{
	Oid			owner = InvalidOid;
	bool		may = false;	/* the owner */

	Assert(moves != NIL);
	foreach_ptr(const PressureLimit, limit, limits->limits)
	{
		const PressureDevice *device = limit->device;
		int64		bytes;

		if (limit->policy->owner != owner)
		{
			CHECK_FOR_INTERRUPTS();
			owner = limit->policy->owner;
			may = may_move_any(owner, moves);
		}
		if (!may || !applies_to(limit, policy) || (limit->counted && !with_counted) ||
			leaves_budget(limit, policy, moves))
			continue;
		bytes = bytes_into(limits, moves, device->device);
		if (bytes == 0 || device->used + bytes <= limit->share * device->total)
			continue;
		if (concerns_any(limits, limit, moves))
			return limit;
	}
	return NULL;
}

/* Note that these moves are planned, for the limits of the next. */
void
conflict_note_moves(PressureLimits *limits, const List *moves)
{
	foreach_ptr(const PlannedMove, move, moves)
	{
		const MoveItem *item = &move->item;

		if (item->outcome.status == STATUS_PLANNED)
			count_arriving(limits, item->from_tablespace, item->to_tablespace,
						   plan_stored_bytes(item));
	}
}

/* Return whether a role may move all that could move in. */
static bool
may_move_all(Oid role, const Candidate *candidates, int n)
{
	for (const Candidate *c = candidates; c < candidates + n; c++)
	{
		if (!c->is_resident && !may_move(role, c->heat->facts.relid, c->heat->facts.heap_oid))
			return false;
	}
	return true;
}

/* Return whether a limit covers all that could move in. */
static bool
covers_all(const PressureLimit *limit, const Candidate *candidates, int n)
{
	for (const Candidate *c = candidates; c < candidates + n; c++)
	{
		if (!c->is_resident && !covers(limit, c->heat->facts.relid, c->heat->facts.heap_oid))
			return false;
	}
	return true;
}

/*
 * Return how much of its budget a policy may use: the bytes of its residents, and bytes that may
 * still move in below a limit.  *found: the limit, NULL if it may use all.  A limit for only
 * some of the candidates does not count here, but for each of these.  busy: of BusyTable.
 */
int64
conflict_budget(PressureLimits *limits, const Policy *policy, const Candidate *candidates, int n,
				const Place *target, HTAB *busy, const PressureLimit **found)
{
	int64		residents = 0;
	int64		result = policy->budget;
	Oid			owner = InvalidOid;
	bool		may = false;	/* the owner */

	*found = NULL;
	if (target == NULL || !target->is_there)
		return result;
	for (const Candidate *c = candidates; c < candidates + n; c++)
	{
		const BusyTable *moving = hash_search(busy, &c->heat->facts.relid, HASH_FIND, NULL);

		/* device->used has all that a job moves in, too */
		if (c->is_resident || (moving != NULL && moving->to_tablespace == target->oid))
			residents += c->size;
	}
	foreach_ptr(PressureLimit, limit, limits->limits)
	{
		const PressureDevice *device = limit->device;
		double		free = limit->share * device->total - device->used;

		if (limit->policy->owner != owner)
		{
			CHECK_FOR_INTERRUPTS();
			owner = limit->policy->owner;
			may = may_move_all(owner, candidates, n);
		}
		limit->counted = may && target->facts.device == device->device &&
			applies_to(limit, policy) && covers_all(limit, candidates, n);
		if (!limit->counted || residents + Max(free, 0) >= result)
			continue;
		result = residents + (int64) Max(free, 0);
		*found = limit;
	}
	return result;
}

/*
 * Tell the caller of planned moves which policy, if it sees it, would move relations
 * out again.  The table of policies is not waited for.
 */
void
policies_notice_pressure(const List *moves)
{
	Oid			table = policy_table();
	bool		locked = false;
	List	   *policies = NIL;
	const PressureLimits *limits;

	if (OidIsValid(table))
		locked = ConditionalLockRelationOid(table, AccessShareLock);
	if (!locked)
		return;
	/* a move needs none of it */
	if (!policies_are_readable(table))
	{
		UnlockRelationOid(table, AccessShareLock);
		return;
	}
	foreach_ptr(Policy, policy, policies_of_table(table))
	{
		if (policy->is_visible)
			policies = lappend(policies, policy);
	}
	limits = limits_of(policies, places_unprobed());
	foreach_ptr(const PressureLimit, limit, limits->limits)
	{
		const PressureDevice *device = limit->device;
		int64		bytes = bytes_into(limits, moves, device->device);
		double		share = (device->used + bytes) / device->total;

		if (bytes > 0 && share >= limit->policy->start_at)
			ereport(NOTICE,
					(errmsg("tier policy \"%s\" moves relations out of tablespace \"%s\"",
							NameStr(limit->policy->name), limit->policy->from_tablespace),
					 errdetail("The file system would be %g%% full, and start_at is %g%%.",
							   rint(share * 1000) / 10, rint(limit->policy->start_at * 1000) / 10),
					 errhint("Disable it, or raise its start_at.")));
	}
}

/* Pairs of policies that contradict each other */

/* A direction in which a policy moves relations */
typedef struct Flow
{
	const char *from;			/* NULL = any tablespace but the other */
	const char *to;
} Flow;

/* Get the directions in which a policy moves relations, and return their number. */
static int
flows_of(const Policy *policy, Flow flows[2])
{
	flows[0].from = policy->from_tablespace;
	flows[0].to = NameStr(*policy->to_tablespace);
	if (policy->kind != POLICY_BUDGET)
		return 1;
	/* beyond a budget they go back */
	flows[1].from = flows[0].to;
	flows[1].to = flows[0].from;
	return 2;
}

/* Return whether relations that move in one direction move on in the other. */
static bool
leads_into(const Flow *flow, const Flow *next)
{
	if (next->from != NULL)
		return strcmp(next->from, flow->to) == 0;
	return strcmp(next->to, flow->to) != 0;
}

/* The tables of a relation that policies name, in the order of their OIDs */
typedef struct NamedTables
{
	Oid			relid;			/* hash key */
	List	   *tables;
} NamedTables;

/* Return the tables of the relation that a policy names, which are read once in a call. */
static const List *
named_tables(HTAB *named, const Policy *policy)
{
	bool		found;
	NamedTables *result = hash_search(named, &policy->relation, HASH_ENTER, &found);

	if (found)
		return result->tables;
	result->tables = NIL;
	foreach_oid(relid, relation_and_below(policy->relation))
	{
		if (RELKIND_HAS_STORAGE(get_rel_relkind(relid)))
			result->tables = lappend_oid(result->tables, relid);
	}
	list_sort(result->tables, list_oid_cmp);
	return result->tables;
}

/* Return whether a role may move a table, or its indexes, as far as the table's privileges go. */
static bool
may_move_some(const Policy *policy, Oid table)
{
	return get_rel_relkind(table) != '\0' &&
		plan_role_aclcheck(policy->owner, table, policy->indexes) == ACLCHECK_OK;
}

/* Return whether a policy can be for a table, as far as its schema and both owners' privileges go. */
static bool
may_cover(const Policy *policy, const Policy *other, Oid table)
{
	const char *schema;

	if (!may_move_some(policy, table) || !may_move_some(other, table))
		return false;
	if (policy->schema == NULL)
		return true;
	schema = get_namespace_name(get_rel_namespace(table));
	return schema != NULL && strcmp(schema, policy->schema) == 0;
}

/* Return whether a policy can be for any table that another names, and both owners may move it. */
static bool
covers_any(HTAB *named, const Policy *policy, const Policy *other)
{
	const List *own = NIL;
	int			i = 0;

	if (OidIsValid(policy->relation))
		own = named_tables(named, policy);
	foreach_oid(table, named_tables(named, other))
	{
		while (i < list_length(own) && list_nth_oid(own, i) < table)
			i++;
		if (OidIsValid(policy->relation) &&
			(i == list_length(own) || list_nth_oid(own, i) != table))
			continue;
		if (may_cover(policy, other, table))
			return true;
	}
	return false;
}

/*
 * Return whether two policies can be for the same relation.  Where neither names one, that
 * is so if one owner has the privileges of the other: of different roles neither may move
 * the other's, as a rule.
 */
static bool
scopes_overlap(HTAB *named, const Policy *a, const Policy *b)
{
	if (!(a->tables && b->tables) && !(a->indexes && b->indexes))
		return false;
	if (OidIsValid(a->relation))
		return covers_any(named, b, a);
	if (OidIsValid(b->relation))
		return covers_any(named, a, b);
	if (!has_privs_of_role(a->owner, b->owner) && !has_privs_of_role(b->owner, a->owner))
		return false;
	return a->schema == NULL || b->schema == NULL || strcmp(a->schema, b->schema) == 0;
}

/* Find a direction of a policy, and one of another policy, by which relations go to and fro. */
static bool
find_cycle(const Policy *policy, const Policy *other, Flow *own, Flow *back)
{
	Flow		flows[2];
	Flow		others[2];
	int			n = flows_of(policy, flows);
	int			nothers = flows_of(other, others);

	for (int i = 0; i < n; i++)
	{
		for (int j = 0; j < nothers; j++)
		{
			if (!leads_into(&others[j], &flows[i]) || !leads_into(&flows[i], &others[j]))
				continue;
			*own = flows[i];
			*back = others[j];
			return true;
		}
	}
	return false;
}

/* Return how a policy contradicts a policy before it, NULL if it does not. */
static char *
contradiction(HTAB *named, const Policy *policy, const Policy *other)
{
	Flow		own;
	Flow		back;

	if (policy->kind == POLICY_START_AT || other->kind == POLICY_START_AT)
		return NULL;
	if (!find_cycle(policy, other, &own, &back) || !scopes_overlap(named, policy, other))
		return NULL;
	return psprintf("policy \"%s\" moves relations to tablespace \"%s\", from where this one takes them to \"%s\"",
					NameStr(other->name), back.to, own.to);
}

/*
 * Return why the budget of a policy can never be used, NULL if it can.  A limit is for the
 * relations of a role only if the limit's owner has its privileges.
 */
static char *
vain_budget(HTAB *named, const Policy *policy, const PressureLimit *limit, const List *places)
{
	const Place *target = places_named(places, NameStr(*policy->to_tablespace));
	double		most = limit->share * limit->device->total;

	if (policy->kind != POLICY_BUDGET || policy->budget <= most)
		return NULL;
	if (target == NULL || !target->is_there || target->facts.device != limit->device->device)
		return NULL;
	if (!has_privs_of_role(limit->policy->owner, policy->owner) ||
		!scopes_overlap(named, policy, limit->policy))
		return NULL;
	return psprintf("policy \"%s\" leaves at most %s for its budget of %s",
					NameStr(limit->policy->name), size_text((int64) most),
					size_text(policy->budget));
}

static bool
same_text(const char *a, const char *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return strcmp(a, b) == 0;
}

/* Return whether policies move relations between the same tablespaces. */
static bool
have_same_flows(const Policy *a, const Policy *b)
{
	return (a->kind == POLICY_BUDGET) == (b->kind == POLICY_BUDGET) &&
		same_text(NameStr(*a->to_tablespace), NameStr(*b->to_tablespace)) &&
		same_text(a->from_tablespace, b->from_tablespace);
}

/* Return whether whatever contradicts one of two policies contradicts the other, too. */
static bool
are_alike(const Policy *a, const Policy *b)
{
	return a->owner == b->owner && a->relation == b->relation &&
		a->tables == b->tables && a->indexes == b->indexes &&
		have_same_flows(a, b) && same_text(a->schema, b->schema);
}

/*
 * Add a policy that can contradict later policies to the list of lists of them, of which each has the
 * same flows, unless one is there that is like it.
 */
static List *
add_other(List *groups, const Policy *policy)
{
	ListCell   *cell;

	if (policy->kind == POLICY_START_AT)
		return groups;
	foreach(cell, groups)
	{
		List	   *group = lfirst(cell);

		if (!have_same_flows(linitial(group), policy))
			continue;
		foreach_ptr(const Policy, other, group)
		{
			CHECK_FOR_INTERRUPTS();
			if (are_alike(other, policy))
				return groups;
		}
		lfirst(cell) = lappend(group, (void *) policy);
		return groups;
	}
	return lappend(groups, list_make1((void *) policy));
}

/*
 * Return how a policy contradicts one of others, or cannot use its budget; NULL if neither.  Of
 * policies that move relations elsewhere, which may be thousands, only the first is looked at.
 */
static char *
first_conflict(HTAB *named, const Policy *policy, const List *groups,
			   const PressureLimits *limits)
{
	foreach_ptr(const List, group, groups)
	{
		Flow		own;
		Flow		back;

		if (!find_cycle(policy, linitial(group), &own, &back))
			continue;
		foreach_ptr(const Policy, other, group)
		{
			char	   *result;

			CHECK_FOR_INTERRUPTS();
			result = contradiction(named, policy, other);
			if (result != NULL)
				return result;
		}
	}
	foreach_ptr(const PressureLimit, limit, limits->limits)
	{
		char	   *result;

		CHECK_FOR_INTERRUPTS();
		result = vain_budget(named, policy, limit, limits->places);
		if (result != NULL)
			return result;
	}
	return NULL;
}

/*
 * index_mover.policy_conflicts(OUT policy name, OUT detail text) RETURNS SETOF record
 *
 * The enabled policies that contradict another, or whose budget another keeps from being used:
 * of each a row, which tells of the first.  None while another session has locked
 * tier_policy.  EXECUTE: pg_monitor.
 */
Datum
index_mover_policy_conflicts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			table = policy_lock_table(false, true);
	HASHCTL		info = {0};
	HTAB	   *named;
	List	   *policies = NIL;
	List	   *others = NIL;	/* of lists of Policy: before, and of many
								 * that are alike one */
	const PressureLimits *limits;

	InitMaterializedSRF(fcinfo, 0);
	if (!OidIsValid(table))
		return (Datum) 0;
	foreach_ptr(Policy, policy, policies_of_table(table))
	{
		if (policy->enabled && policy_obstacle(policy) == NULL)
			policies = lappend(policies, policy);
	}
	limits = limits_of(policies, places_unprobed());
	info.keysize = sizeof(Oid);
	info.entrysize = sizeof(NamedTables);
	info.hcxt = CurrentMemoryContext;
	named = hash_create("index_mover named tables", 64, &info,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	foreach_ptr(const Policy, policy, policies)
	{
		const char *detail = first_conflict(named, policy, others, limits);
		Row			row;

		others = add_other(others, policy);
		if (detail == NULL)
			continue;
		row_clear(&row);
		row_set(&row, 1, NameGetDatum(&policy->name));
		row_text(&row, 2, detail);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}
