/*-------------------------------------------------------------------------
 *
 * lost_copy.c
 *	  Guard that keeps a lost file from a new number, under which it looks whole.
 *
 * What is known of a device goes by the numbers of files.  ALTER ... SET TABLESPACE copies a file as it
 * is, and gives the copy a new number: an old file would be in use again, and an emptied one would not be
 * named any more.  So it is refused, of indexes and tables; of an index that is not known to be whole, it
 * has a WARNING.  Whatever rebuilds an index makes it from the
 * table, and is welcome.  A rewrite of a table (VACUUM FULL, CLUSTER, forms of ALTER TABLE) is the way to
 * keep what is left of it, and has a WARNING.
 *
 * Assumption, from ATExecSetTableSpace() in commands/tablecmds.c and swap_relation_files() in
 * commands/cluster.c: they call the object access hook when the row of pg_class is changed, and
 * before CommandCounterIncrement().  So the cache has the old row, and a scan with SnapshotSelf finds the new
 * one.  The copy is made before that; its file goes with the transaction.
 *
 * Not seen: tools that write to pg_class, as pg_repack; it copies the rows of a table, not an index.
 *
 * Locks: the command has locked the relation exclusively.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/catalog.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "evidence.h"
#include "file_system.h"
#include "lost_copy.h"
#include "printed_command.h"
#include "relation_facts.h"
#include "ruins.h"

static object_access_hook_type prev_object_access_hook = NULL;

/* Return what to do with a relation whose file is lost, in place of the copy: a sentence. */
static const char *
cure_of(Form_pg_class old, Oid to_tablespace)
{
	Oid			from = tablespace_from_catalog(old->reltablespace);
	const char *name = quote_qualified_identifier(get_namespace_name(old->relnamespace),
												  NameStr(old->relname));

	if (old->relkind == RELKIND_INDEX && IsToastNamespace(old->relnamespace))
		return psprintf("To rebuild it first: %s", printed_command("heal", tablespace_name(from)));
	if (old->relkind == RELKIND_INDEX)
		return psprintf("To rebuild it there: %s",
						printed_command("reindex", tablespace_name(to_tablespace), name));
	if (old->relkind == RELKIND_MATVIEW)
		return "REFRESH MATERIALIZED VIEW makes it again.";
	if (old->relpersistence == RELPERSISTENCE_UNLOGGED && old->relkind == RELKIND_RELATION)
		return "No backup has what was in it. TRUNCATE makes it again, without rows.";
	return "Restore it from a backup. VACUUM FULL keeps what is left of it, in a new file.";
}

/* Return what is known of a lost file: a sentence. */
static const char *
loss_of_file(Form_pg_class old)
{
	Oid			tablespace = tablespace_from_catalog(old->reltablespace);
	RelFileLocator file = make_locator(tablespace, MyDatabaseId, old->relfilenode);
	const char *problem = ruins_problem(&file);

	if (problem != NULL)
		return psprintf("Damage was found in its old file: %s.", problem);
	return psprintf("The device of tablespace \"%s\" has lost changes of its old file.",
					tablespace_name(tablespace));
}

/*
 * The row of a relation whose file was lost has been changed.  If it has another file now, refuse or tell that.
 * REFRESH, which cannot be told from VACUUM FULL here, makes a materialized view again from its query.
 */
static void
check_lost(Form_pg_class old, Form_pg_class new)
{
	if (new->reltablespace != old->reltablespace)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot copy the lost file of %s \"%s\"",
						relation_noun(old->relkind), NameStr(old->relname)),
				 errdetail("%s", loss_of_file(old)),
				 errhint("%s", cure_of(old, tablespace_from_catalog(new->reltablespace)))));
	if (new->relfilenode != old->relfilenode && old->relkind == RELKIND_RELATION)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the new file of table \"%s\" has what was left of a lost file",
						NameStr(old->relname)),
				 errdetail("%s", loss_of_file(old)),
				 errhint("No later check names it. Compare it with a backup.")));
}

/* The same of an index whose file is not known to be whole. */
static void
check_unknown(Form_pg_class old, Form_pg_class new)
{
	if (new->reltablespace != old->reltablespace && old->relkind == RELKIND_INDEX)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the copied file of index \"%s\" is not known to be whole",
						NameStr(old->relname)),
				 errdetail("The server has not yet read all pages of the old file."),
				 errhint("No later check names it. %s",
						 cure_of(old, tablespace_from_catalog(new->reltablespace)))));
}

/* The row of a relation in pg_class has been changed: see what that means for its file. */
static void
check_altered(Oid relid)
{
	HeapTuple	row = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class old;
	Form_pg_class new;
	List	   *rows;
	bool		is_lost;

	if (!HeapTupleIsValid(row))
		return;
	old = (Form_pg_class) GETSTRUCT(row);
	is_lost = evidence_knows_lost(row);
	if (is_lost || evidence_doubts(tablespace_from_catalog(old->reltablespace), old->relfilenode))
	{
		/* REINDEX, too, changes the tablespace, but calls no hook */
		rows = catalog_rows_in(SnapshotSelf, RelationRelationId, ClassOidIndexId,
							   Anum_pg_class_oid, relid, 0, InvalidOid);

		/*
		 * some commands, such as ALTER SEQUENCE, call the hook without a
		 * change and without a lock: a row that another session is just
		 * changing may then be seen twice, or not at all
		 */
		if (list_length(rows) != 1)
		{
			ReleaseSysCache(row);
			return;
		}
		new = (Form_pg_class) GETSTRUCT((HeapTuple) linitial(rows));
		if (is_lost)
			check_lost(old, new);
		else
			check_unknown(old, new);
	}
	ReleaseSysCache(row);
}

/* Hook: an object was made, changed, or is dropped. */
static void
watch_copies(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);
	if (access == OAT_POST_ALTER && classId == RelationRelationId && subId == 0)
		check_altered(objectId);
}

/* Called by _PG_init(). */
void
lost_copy_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	prev_object_access_hook = object_access_hook;
	object_access_hook = watch_copies;
}
