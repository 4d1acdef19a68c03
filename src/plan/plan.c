/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  Which indexes to move, in which order, by which method, and why.
 *
 * A plan is a list of rows.  What prevents the move of one index is told in
 * its row; errors are for the call as a whole.  The plan is made without
 * locks, so it can be outdated when a runner comes to an item: plan_recheck()
 * repeats the checks then.
 *
 * Locks: on catalogs, each released at once, and on an index while its bloat
 * is measured, if available.  So planning never waits for a user's lock, and
 * a caller that waits for the move holds none because of it.
 *
 * Tricky: a partitioned index has no file, but it determines where the
 * indexes of future partitions are made.  It is an item of its own
 * (METHOD_DEFAULT) after all others, so that a job canceled half-way has not
 * redirected new partitions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_database.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_tablespace.h"
#include "commands/tablespace.h"
#include "common/relpath.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "citus.h"
#include "cleanup/cleanup.h"
#include "compat.h"
#include "file_system.h"
#include "job.h"
#include "own_tables.h"
#include "plan/plan.h"
#include "plan/plan_private.h"
#include "report/report.h"
#include "settings.h"

#define SMALL_INDEX		(128 * 1024)	/* auto does not rebuild up to here */


/*
 * Tell the user that tables that inherit from the named one, other than
 * partitions, such as a hypertable's chunks, stay, and how to move them.
 */
static void
notice_children(Oid relid, const char *relname, Oid to_tablespace)
{
	int			children = list_length(find_all_inheritors(relid, NoLock, NULL)) - 1;
	char	   *tablespace = get_tablespace_name(to_tablespace);

	if (children <= 0 || tablespace == NULL)
		return;
	ereport(NOTICE,
			(errmsg_plural("indexes of %d table that inherits from \"%s\" are not moved",
						   "indexes of %d tables that inherit from \"%s\" are not moved",
						   children, children, relname),
			 errhint("To move them, use SELECT m.* FROM pg_inherits, move_indexes(inhrelid, %s) m WHERE inhparent = %s::regclass.",
					 quote_literal_cstr(tablespace),
					 quote_literal_cstr(quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
																   relname)))));
}

/*
 * Tell the user that the indexes of a table that Citus has distributed are not
 * those of its shards, and how to move these, unless Citus has sent the call.
 */
static void
notice_shards(const List *entries, Oid to_tablespace)
{
	char	   *tablespace = get_tablespace_name(to_tablespace);
	ListCell   *lc;

	if (tablespace == NULL || citus_has_sent_us())
		return;
	foreach(lc, entries)
	{
		const IndexFacts *facts = &((const PlanEntry *) lfirst(lc))->facts;

		if (!citus_distributes(facts->heap_oid))
			continue;
		ereport(NOTICE,
				(errmsg("table \"%s\" is distributed by Citus, and its shards are not moved with it",
						NameStr(facts->heap_name)),
				 errhint("To move the shards, too, use SELECT * FROM pg_catalog.run_command_on_all_nodes(%s).",
						 quote_literal_cstr(psprintf("SELECT max(job) FROM move_schema_indexes(%s, %s, wait => false)",
													 quote_literal_cstr(NameStr(facts->schema_name)),
													 quote_literal_cstr(tablespace))))));
		return;
	}
}

/* Return the indexes of a table or index that the user has named. */
static List *
indexes_of_relation(Oid relid, Oid to_tablespace)
{
	List	   *indexes = NIL;
	char		relkind = get_rel_relkind(relid);
	char	   *relname = get_rel_name(relid);
	ListCell   *lc;

	if (relkind == '\0' || relname == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));

	plan_check_named_relation(relid, relkind, relname);

	switch (relkind)
	{
		case RELKIND_INDEX:
			return list_make1_oid(relid);

		case RELKIND_PARTITIONED_INDEX:
			return find_all_inheritors(relid, NoLock, NULL);

		case RELKIND_PARTITIONED_TABLE:
			foreach(lc, find_all_inheritors(relid, NoLock, NULL))
			{
				/* skip foreign tables and the like, as REINDEX does */
				relkind = get_rel_relkind(lfirst_oid(lc));
				if (relkind == RELKIND_RELATION ||
					relkind == RELKIND_PARTITIONED_TABLE)
					indexes = list_concat(indexes, indexes_of_table(lfirst_oid(lc)));
			}
			break;

		default:
			indexes = indexes_of_table(relid);
			notice_children(relid, relname, to_tablespace);
			break;
	}

	if (indexes == NIL)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("table \"%s\" has no indexes to move", relname)));

	return indexes;
}

/*
 * Return the indexes of a schema or of a tablespace, whichever is valid.
 * Passes over what ALTER INDEX ALL IN TABLESPACE passes over: catalogs,
 * shared and temporary relations, TOAST.
 */
static List *
indexes_in(Oid schema, Oid tablespace)
{
	Oid			own = extension_schema();
	List	   *indexes = NIL;
	Relation	pg_class = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	if (OidIsValid(schema))
	{
		ScanKeyInit(&key, Anum_pg_class_relnamespace, BTEqualStrategyNumber,
					F_OIDEQ, ObjectIdGetDatum(schema));
		scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 1, &key);
	}
	else
	{
		/* the database's default tablespace is stored as 0 */
		ScanKeyInit(&key, Anum_pg_class_reltablespace, BTEqualStrategyNumber,
					F_OIDEQ,
					ObjectIdGetDatum(tablespace == MyDatabaseTableSpace ?
									 InvalidOid : tablespace));
		scan = systable_beginscan(pg_class, ClassTblspcRelfilenodeIndexId, true,
								  NULL, 1, &key);
	}

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if ((form->relkind == RELKIND_INDEX ||
			 form->relkind == RELKIND_PARTITIONED_INDEX) &&
			!form->relisshared &&
			!IsCatalogNamespace(form->relnamespace) &&
			!isAnyTempNamespace(form->relnamespace) &&
			!IsToastNamespace(form->relnamespace) &&
			form->relnamespace != own)
			indexes = lappend_oid(indexes, form->oid);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);

	return indexes;
}

/* ERROR 3F000 no such schema, 42501 no USAGE, 0A000 system or temporary one. */
static List *
indexes_of_schema(Oid schema)
{
	char	   *name = get_namespace_name(schema);
	AclResult	aclresult;
	List	   *indexes;

	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_SCHEMA),
				 errmsg("schema with OID %u does not exist", schema)));

	aclresult = object_aclcheck(NamespaceRelationId, schema, GetUserId(),
								ACL_USAGE);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_SCHEMA, name);

	if (IsCatalogNamespace(schema) || IsToastNamespace(schema))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move system relations"),
				 errdetail("Schema \"%s\" is the system's.", name)));
	if (isOtherTempNamespace(schema))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move temporary tables of other sessions")));
	if (isAnyTempNamespace(schema))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot move temporary tables"),
				 errdetail("A background worker makes the move, and it cannot access them.")));

	indexes = indexes_in(schema, InvalidOid);
	if (indexes == NIL)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("no matching relations in schema \"%s\" found", name)));

	return indexes;
}

/*
 * Tell which other databases have files in the tablespace.  A user that wants
 * to empty it should know; only a session there can move these files.
 */
static void
notice_other_databases(Oid tablespace)
{
	Relation	pg_database = table_open(DatabaseRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(pg_database, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	StringInfoData names;

	initStringInfo(&names);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		char	   *path = GetDatabasePath(form->oid, tablespace);
		DIR		   *dir = AllocateDir(path);
		struct dirent *entry = NULL;

		/* the directory stays after its last file has gone */
		while (dir != NULL && (entry = ReadDirExtended(dir, path, LOG)) != NULL)
			if (entry->d_name[0] != '.')
				break;
		if (dir != NULL)
			FreeDir(dir);
		if (entry != NULL && form->oid != MyDatabaseId && !form->datistemplate)
			appendStringInfo(&names, "%s\"%s\"", names.len > 0 ? ", " : "",
							 NameStr(form->datname));
		pfree(path);
	}
	systable_endscan(scan);
	table_close(pg_database, AccessShareLock);

	if (names.len > 0)
		ereport(NOTICE,
				(errmsg("tablespace \"%s\" also has files of other databases",
						get_tablespace_name(tablespace)),
				 errdetail("They belong to %s, and only a session there can move them.",
						   names.data)));
	pfree(names.data);
}

/* ERROR 42704 no such tablespace, 22023 pg_global. */
static List *
indexes_of_tablespace(Oid tablespace)
{
	char	   *name = get_tablespace_name(tablespace);
	List	   *indexes;

	/* dropped since the caller looked up its name: no test sees this */
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("tablespace with OID %u does not exist", tablespace)));
	if (tablespace == GLOBALTABLESPACE_OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot move relations in to or out of pg_global tablespace")));

	indexes = indexes_in(InvalidOid, tablespace);
	if (indexes == NIL)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("no matching relations in tablespace \"%s\" found", name)));
	notice_other_databases(tablespace);

	return indexes;
}

/*
 * Measure bloat unless table or index is locked exclusively, because a plan
 * must not wait.  The measuring code then locks them again without blocking.
 */
static bool
measure_bloat(const IndexFacts *facts, double *ratio)
{
	bool		result = false;

	if (!ConditionalLockRelationOid(facts->heap_oid, AccessShareLock))
		return false;
	if (ConditionalLockRelationOid(facts->index_oid, AccessShareLock))
	{
		/* it may have been dropped before we had the lock */
		if (SearchSysCacheExists1(INDEXRELID, ObjectIdGetDatum(facts->index_oid)))
			result = bloat_estimate(facts->index_oid, ratio);
		UnlockRelationOid(facts->index_oid, AccessShareLock);
	}
	UnlockRelationOid(facts->heap_oid, AccessShareLock);

	return result;
}

/* Set the method of a row that should be moved, and why, or skip the row. */
static void
choose_method(PlanEntry *entry, const PlanRequest *request)
{
	MoveItem   *item = &entry->item;
	const MoveSettings *settings = &request->settings;
	char	   *copy_reason;
	char	   *rebuild_reason;
	bool		can_copy = copy_can_move(item->index_oid,
										 settings->copy_access_methods,
										 &copy_reason);
	bool		can_rebuild = rebuild_can_move(item->index_oid, &rebuild_reason);

	item->method = request->method;
	if (!can_copy && !can_rebuild)
	{
		bool		copy_first = item->method != METHOD_REBUILD;

		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "Method %s cannot move it: %s. Method %s cannot: %s.",
				  copy_first ? "copy" : "rebuild", copy_first ? copy_reason : rebuild_reason,
				  copy_first ? "rebuild" : "copy", copy_first ? rebuild_reason : copy_reason);
	}
	else if (item->method == METHOD_COPY && !can_copy)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "Method copy cannot move it: %s. Method rebuild can.",
				  copy_reason);
	else if (item->method == METHOD_REBUILD && !can_rebuild)
		item_skip(item, ERRCODE_FEATURE_NOT_SUPPORTED,
				  "Method rebuild cannot move it: %s. Method copy can.",
				  rebuild_reason);
	else if (item->method != METHOD_AUTO)
		return;
	else if (!can_copy)
	{
		item->method = METHOD_REBUILD;
		item_say(item, "Rebuild, because copy cannot move it: %s.",
				 copy_reason);
	}
	else
	{
		item->method = METHOD_COPY;
		if (item->size_before <= SMALL_INDEX)
			item_say(item, "Copy, because the index is small (at most 128 kB).");
		else if (!measure_bloat(&entry->facts, &entry->bloat_ratio))
		{
			entry->bloat_ratio = -1;
			item_say(item, "Copy; its bloat could not be measured.");
		}
		else if (entry->bloat_ratio <= settings->rebuild_threshold)
			item_say(item, "Copy, because the estimated bloat of %.2f is not above rebuild_threshold (%.2f).",
					 entry->bloat_ratio, settings->rebuild_threshold);
		else if (!can_rebuild)
			item_say(item, "Copy, although the estimated bloat of %.2f is above rebuild_threshold (%.2f), because rebuild cannot move it: %s.",
					 entry->bloat_ratio, settings->rebuild_threshold, rebuild_reason);
		else
		{
			item->method = METHOD_REBUILD;
			item_say(item, "Rebuild, because the estimated bloat of %.2f is above rebuild_threshold (%.2f).",
					 entry->bloat_ratio, settings->rebuild_threshold);
		}
	}
}

/* Say which settings of a copy do not apply to a rebuild that has begun. */
static void
say_what_rebuild_ignores(MoveItem *item, const MoveSettings *settings)
{
	StringInfoData names;

	if (item->method != METHOD_REBUILD || item->status != STATUS_PLANNED)
		return;
	initStringInfo(&names);
	if (settings->max_rate > 0)
		appendStringInfoString(&names, ", max_rate");
	if (settings->swap_after > 0)
		appendStringInfoString(&names, ", swap_after");
	if (names.len > 0)
		item_say(item, "A rebuild does not obey: %s.", names.data + 2);
	if (settings->max_replica_lag > 0)
		item_say(item, "A rebuild waits for standbys before it builds, and not from then on.");
	pfree(names.data);
}

static bool
is_like(const MoveItem *item, text *pattern)
{
	return DatumGetBool(DirectFunctionCall2Coll(namelike, C_COLLATION_OID,
												NameGetDatum(&item->index_name),
												PointerGetDatum(pattern)));
}

/*
 * Return whether the request selects the index; if not, it gets no row.  An
 * index without a file, or of unknown size, is never selected by size.
 */
static bool
is_picked(const MoveItem *item, const PlanRequest *request)
{
	return (request->name_like == NULL || is_like(item, request->name_like)) &&
		(request->name_not_like == NULL || !is_like(item, request->name_not_like)) &&
		(request->min_size <= 0 || item->size_before >= request->min_size) &&
		(request->max_size <= 0 || item->size_before <= request->max_size);
}

/* Make the row of one index; NULL if it is gone or not selected. */
static PlanEntry *
plan_index(Oid index_oid, const PlanRequest *request)
{
	PlanEntry  *entry = palloc0(sizeof(PlanEntry));
	MoveItem   *item = &entry->item;
	PgStat_StatTabEntry *stats;

	if (!index_facts(index_oid, &entry->facts))
		return NULL;

	item_fill(item, &entry->facts);
	item->to_tablespace = request->to_tablespace;
	item->status = STATUS_PLANNED;
	item->requested = request->method;
	item->size_before = item->size_after = -1;
	item->bytes_to_write = -1;
	item->wal_bytes = item->sort_bytes = -1;
	item->fits = item->estimated = item->lock_time = -1;
	entry->bloat_ratio = -1;

	if (entry->facts.relkind == RELKIND_PARTITIONED_INDEX)
	{
		item->method = METHOD_DEFAULT;
		item->size_before = 0;
		if (!is_picked(item, request))
			return NULL;
		if (item_check(item, &entry->facts))
			item_say(item, "A partitioned index has no file; only the default for the indexes of new partitions is set.");
		return entry;
	}

	item->method = request->method;
	item->size_before = relation_files_size(entry->facts.tablespace,
											entry->facts.relfilenumber);
	if (!is_picked(item, request))
		return NULL;
	stats = pgstat_fetch_stat_tabentry(index_oid);
	if (request->settings.order == ORDER_HOTTEST)
		entry->rank = stats ? stats->blocks_hit - stats->blocks_fetched : 0;
	else if (request->settings.order != ORDER_NAME)
		entry->rank = item->size_before;

	/* only what the user names, which excludes TOAST's, can be repaired */
	item->repair = !entry->facts.valid &&
		request->scope == SCOPE_RELATION &&
		request->object == index_oid &&
		request->method == METHOD_REBUILD;

	if (item_check(item, &entry->facts))
	{
		choose_method(entry, request);
		if (item->repair && item->status == STATUS_PLANNED)
			item_say(item, "The index is not valid; the rebuild repairs it.");
		say_what_rebuild_ignores(item, &request->settings);
	}

	return entry;
}

/* Moves with a file come first, then the defaults, then the skipped rows. */
static int
entry_class(const PlanEntry *entry)
{
	if (entry->item.status != STATUS_PLANNED)
		return 2;
	return entry->item.method == METHOD_DEFAULT ? 1 : 0;
}

static int
compare_entries(const ListCell *a, const ListCell *b)
{
	const PlanEntry *entry1 = (const PlanEntry *) lfirst(a);
	const PlanEntry *entry2 = (const PlanEntry *) lfirst(b);
	int			result = entry_class(entry1) - entry_class(entry2);

	if (result == 0 && entry1->rank != entry2->rank)
		result = entry1->rank < entry2->rank ? -1 : 1;
	if (result == 0)
		result = strcmp(NameStr(entry1->item.index_name),
						NameStr(entry2->item.index_name));
	if (result == 0)
		result = strcmp(NameStr(entry1->item.schema_name),
						NameStr(entry2->item.schema_name));
	return result;
}

/*
 * Make the plan: a List of MoveItem *, palloc'd in the current context, in
 * the order of execution.  STATUS_PLANNED items are to be moved;
 * STATUS_SKIPPED ones carry sqlstate and detail.  Reads catalogs only, and
 * releases every lock it takes.
 *
 * ERROR 42809 wrong kind of relation, 0A000 catalogs and temporary tables,
 * 42501, 55006 the caller's transaction holds a lock on what would be moved.
 * The latter is checked last, when it is known what would be moved.
 */
List *
plan_moves(const PlanRequest *request)
{
	List	   *indexes = NIL;
	List	   *entries = NIL;
	ListCell   *lc;

	switch (request->scope)
	{
		case SCOPE_RELATION:
			indexes = indexes_of_relation(request->object, request->to_tablespace);
			break;
		case SCOPE_SCHEMA:
			indexes = indexes_of_schema(request->object);
			break;
		case SCOPE_TABLESPACE:
			indexes = indexes_of_tablespace(request->object);
			break;
	}

	foreach(lc, indexes)
	{
		PlanEntry  *entry;

		CHECK_FOR_INTERRUPTS();
		entry = plan_index(lfirst_oid(lc), request);
		if (entry != NULL)
			entries = lappend(entries, entry);
	}
	if (indexes != NIL && entries == NIL)
		ereport(NOTICE,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("no index is left to move")));
	list_free(indexes);

	list_sort(entries, compare_entries);
	if (!request->part)
		notice_shards(entries, request->to_tablespace);

	if (request->waits && !request->dry_run)
		plan_check_no_lock_held(entries);

	plan_estimate_entries(entries, request);
	if (!request->part)
		plan_complete(entries, &request->settings);

	return entries;
}

/*
 * Fill in for each MoveItem of a plan, in order of execution, whether the
 * free space suffices, and warn of a failing archiver.  plan_moves() has done
 * so unless the request is part of a larger plan.
 */
void
plan_complete(List *items, const MoveSettings *settings)
{
	plan_estimate_space(items, settings);
	plan_warn_archiver(items);
}
