/*-------------------------------------------------------------------------
 *
 * timescaledb.c
 *	  TimescaleDB: its catalog, and which tables are its own.
 *
 * Nothing here needs TimescaleDB: its catalog tables are looked up by name, and must
 * belong to the extension.  Their columns are read by name, too.
 *
 * Locks: AccessShareLock on a catalog table while it is read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "relation_facts.h"
#include "timescaledb.h"

/*
 * Return a catalog table of TimescaleDB; 0 if the extension is not there, or has no such
 * table.
 */
Oid
timescaledb_catalog(const char *name)
{
	Oid			extension = get_extension_oid("timescaledb", true);
	Oid			schema = get_namespace_oid("_timescaledb_catalog", true);
	Oid			table = InvalidOid;

	if (!OidIsValid(extension) || !OidIsValid(schema))
		return InvalidOid;
	table = get_relname_relid(name, schema);
	if (!OidIsValid(table) || getExtensionOfObject(RelationRelationId, table) != extension ||
		get_rel_relkind(table) != RELKIND_RELATION)
		return InvalidOid;
	return table;
}

/* Return the number of a column of type name; 0 = there is none. */
static AttrNumber
name_column(TupleDesc desc, const char *name)
{
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		if (!column->attisdropped && column->atttypid == NAMEOID &&
			namestrcmp(&column->attname, name) == 0)
			return i + 1;
	}
	return InvalidAttrNumber;
}

/*
 * Return whether a catalog table of TimescaleDB has a row with the name of a relation; true,
 * too, if the table is not of a shape that is known here.
 */
static bool
catalog_has(const char *catalog, const char *schema_name, const char *relname)
{
	Oid			table = timescaledb_catalog(catalog);
	Relation	rel;
	TupleDesc	desc;
	AttrNumber	schema_column;
	AttrNumber	name;
	bool		found = false;

	if (!OidIsValid(table))
		return true;
	rel = try_table_open(table, AccessShareLock);
	if (rel == NULL)
		return true;
	desc = RelationGetDescr(rel);
	schema_column = name_column(desc, "schema_name");
	name = name_column(desc, "table_name");
	if (schema_column == InvalidAttrNumber || name == InvalidAttrNumber)
	{
		table_close(rel, AccessShareLock);
		return true;
	}
	foreach_ptr(HeapTupleData, tuple, catalog_all(table))
	{
		bool		no_schema;
		bool		no_name;
		Datum		its_schema = heap_getattr(tuple, schema_column, desc, &no_schema);
		Datum		its_name = heap_getattr(tuple, name, desc, &no_name);

		if (!no_schema && !no_name &&
			namestrcmp(DatumGetName(its_schema), schema_name) == 0 &&
			namestrcmp(DatumGetName(its_name), relname) == 0)
			found = true;
	}
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * Return whether a table is a hypertable or a chunk, of which TimescaleDB carries out some
 * statements by itself; true, too, if its catalog cannot be read.
 */
bool
timescaledb_has(Oid relid)
{
	const char *schema_name = get_namespace_name(get_rel_namespace(relid));
	const char *relname = get_rel_name(relid);

	if (!OidIsValid(get_extension_oid("timescaledb", true)) || schema_name == NULL ||
		relname == NULL)
		return false;
	return catalog_has("hypertable", schema_name, relname) ||
		catalog_has("chunk", schema_name, relname);
}
