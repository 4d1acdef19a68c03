/*-------------------------------------------------------------------------
 *
 * timescaledb.c
 *	  TimescaleDB: which tables are its own, and which have a chunk's compressed data.
 *
 * Nothing here needs TimescaleDB: its catalog tables are looked up by name, must belong
 * to the extension, and are read by the names and types of their columns, without a query.
 * Two shapes are known (sql/pre_install/tables.sql of TimescaleDB): until 2.28, table
 * chunk has names of tables, and the number of the chunk with the compressed data; from
 * 2.29 on it has OIDs, and compression_settings has the pairs.
 *
 * Locks: AccessShareLock on a catalog table while it is read, which is not waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "relation_facts.h"
#include "timescaledb.h"

#define MOST_COLUMNS	4

/* A column that is read */
typedef struct CatalogColumn
{
	const char *name;
	Oid			type;
} CatalogColumn;

/* A row; only with values of all columns that are read, but the last one can be null */
typedef struct CatalogRow
{
	Datum		values[MOST_COLUMNS];
	bool		last_is_null;
} CatalogRow;

static const CatalogColumn hypertable_names[] = {
	{"schema_name", NAMEOID},
	{"table_name", NAMEOID},
};

/* until 2.28 */
static const CatalogColumn chunk_names[] = {
	{"schema_name", NAMEOID},
	{"table_name", NAMEOID},
	{"id", INT4OID},
	{"compressed_chunk_id", INT4OID},
};

/* from 2.29 on */
static const CatalogColumn chunk_oids[] = {
	{"relid", REGCLASSOID},
};
static const CatalogColumn compressed_oids[] = {
	{"relid", REGCLASSOID},
	{"compress_relid", REGCLASSOID},
};

/* Find the numbers of the columns.  Return the name of one that is missing, or NULL. */
static const char *
find_columns(TupleDesc desc, const CatalogColumn *columns, int ncolumns, AttrNumber *numbers)
{
	for (int c = 0; c < ncolumns; c++)
	{
		numbers[c] = InvalidAttrNumber;
		for (int i = 0; i < desc->natts; i++)
		{
			Form_pg_attribute column = TupleDescAttr(desc, i);

			if (!column->attisdropped && column->atttypid == columns[c].type &&
				namestrcmp(&column->attname, columns[c].name) == 0)
				numbers[c] = i + 1;
		}
		if (numbers[c] == InvalidAttrNumber)
			return columns[c].name;
	}
	return NULL;
}

/* Return a catalog table of the extension; 0 if it has none of this name. */
static Oid
catalog_table(const char *name)
{
	Oid			extension = get_extension_oid("timescaledb", true);
	Oid			schema = get_namespace_oid("_timescaledb_catalog", true);
	Oid			table = InvalidOid;

	if (OidIsValid(schema))
		table = get_relname_relid(name, schema);
	if (!OidIsValid(table) || getExtensionOfObject(RelationRelationId, table) != extension ||
		get_rel_relkind(table) != RELKIND_RELATION)
		return InvalidOid;
	return table;
}

/*
 * Read columns of all rows of a catalog table into *rows, a list of CatalogRow.  Return why
 * that is not possible, as a clause, or NULL.
 */
static const char *
read_catalog(const char *name, const CatalogColumn *columns, int ncolumns, List **rows)
{
	Oid			table = catalog_table(name);
	AttrNumber	numbers[MOST_COLUMNS];
	const char *missing;
	Relation	rel;

	Assert(ncolumns <= MOST_COLUMNS);
	*rows = NIL;
	if (!OidIsValid(table))
		return psprintf("timescaledb has no table \"%s\" that is known here", name);
	if (!ConditionalLockRelationOid(table, AccessShareLock))
		return psprintf("another session has locked timescaledb's table \"%s\"", name);
	rel = try_table_open(table, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(table, AccessShareLock);
		return psprintf("timescaledb has no table \"%s\" that is known here", name);
	}
	missing = find_columns(RelationGetDescr(rel), columns, ncolumns, numbers);
	if (missing == NULL)
	{
		foreach_ptr(HeapTupleData, tuple, catalog_all(table))
		{
			CatalogRow *row = palloc0(sizeof(CatalogRow));
			bool		complete = true;

			for (int c = 0; c < ncolumns; c++)
			{
				bool		is_null;

				row->values[c] = heap_getattr(tuple, numbers[c], RelationGetDescr(rel), &is_null);
				if (is_null && c == ncolumns - 1)
					row->last_is_null = true;
				else if (is_null)
					complete = false;
			}
			if (complete)
				*rows = lappend(*rows, row);
		}
	}
	table_close(rel, AccessShareLock);
	if (missing == NULL)
		return NULL;
	return psprintf("timescaledb's table \"%s\" has no column \"%s\" that is known here", name,
					missing);
}

/* Return the table whose schema and name a row begins with; 0 if it was dropped. */
static Oid
table_of_names(const CatalogRow *row)
{
	Oid			schema = get_namespace_oid(NameStr(*DatumGetName(row->values[0])), true);

	if (!OidIsValid(schema))
		return InvalidOid;
	return get_relname_relid(NameStr(*DatumGetName(row->values[1])), schema);
}

static HTAB *
make_hash(const char *name, Size keysize, Size entrysize)
{
	HASHCTL		info = {.keysize = keysize,.entrysize = entrysize,.hcxt = CurrentMemoryContext};

	return hash_create(name, 256, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
add_pair(HTAB *pairs, Oid chunk, Oid compressed)
{
	ChunkPair  *pair;

	if (!OidIsValid(chunk) || !OidIsValid(compressed))
		return;
	pair = hash_search(pairs, &chunk, HASH_ENTER, NULL);
	pair->compressed = compressed;
}

/* A chunk by its number, until 2.28 */
typedef struct NumberedChunk
{
	int32		id;				/* hash key */
	Oid			relid;			/* 0 = it was dropped */
} NumberedChunk;

/* Add the pairs of chunks that rows of chunk_names[] have. */
static void
add_numbered(HTAB *pairs, List *rows)
{
	HTAB	   *chunks = make_hash("index_mover chunk rows", sizeof(int32),
								   sizeof(NumberedChunk));

	foreach_ptr(CatalogRow, row, rows)
	{
		int32		id = DatumGetInt32(row->values[2]);
		NumberedChunk *chunk = hash_search(chunks, &id, HASH_ENTER, NULL);

		chunk->relid = table_of_names(row);
	}
	foreach_ptr(CatalogRow, row, rows)
	{
		int32		id = DatumGetInt32(row->values[3]);
		const NumberedChunk *compressed;

		if (row->last_is_null)
			continue;
		compressed = hash_search(chunks, &id, HASH_FIND, NULL);
		if (compressed != NULL)
			add_pair(pairs, table_of_names(row), compressed->relid);
	}
	hash_destroy(chunks);
}

/*
 * Return the chunks that have compressed data, a hash of ChunkPair; NULL if the extension is
 * not there or, with *problem set to a clause, its catalog cannot be read.
 */
HTAB *
timescaledb_chunk_pairs(const char **problem)
{
	HTAB	   *result;
	List	   *rows;

	*problem = NULL;
	if (!OidIsValid(get_extension_oid("timescaledb", true)))
		return NULL;
	result = make_hash("index_mover chunks", sizeof(Oid), sizeof(ChunkPair));
	if (read_catalog("chunk", chunk_oids, lengthof(chunk_oids), &rows) == NULL)
	{
		*problem = read_catalog("compression_settings", compressed_oids,
								lengthof(compressed_oids), &rows);
		foreach_ptr(CatalogRow, row, rows)
		{
			if (!row->last_is_null)
				add_pair(result, DatumGetObjectId(row->values[0]),
						 DatumGetObjectId(row->values[1]));
		}
	}
	else
	{
		*problem = read_catalog("chunk", chunk_names, lengthof(chunk_names), &rows);
		add_numbered(result, rows);
	}
	return *problem == NULL ? result : NULL;
}

/* Return whether any of the rows begins with the schema and the name of a table. */
static bool
rows_have_name(List *rows, const char *schema, const char *relname)
{
	foreach_ptr(CatalogRow, row, rows)
	{
		if (namestrcmp(DatumGetName(row->values[0]), schema) == 0 &&
			namestrcmp(DatumGetName(row->values[1]), relname) == 0)
			return true;
	}
	return false;
}

/* Return whether any of the rows has a table in its column. */
static bool
rows_have_oid(List *rows, int column, Oid relid)
{
	foreach_ptr(CatalogRow, row, rows)
	{
		if (!row->last_is_null && DatumGetObjectId(row->values[column]) == relid)
			return true;
	}
	return false;
}

/*
 * Return whether TimescaleDB carries out some statements of a relation by itself: it is a
 * hypertable or an index of one, a chunk, or the compressed data of one; true, too, if its
 * catalog cannot be read.
 */
bool
timescaledb_has(Oid relid)
{
	bool		is_index = relkind_is_index(get_rel_relkind(relid));
	Oid			heap_oid = is_index ? IndexGetRelation(relid, true) : relid;
	const char *schema = get_namespace_name(get_rel_namespace(heap_oid));
	const char *relname = get_rel_name(heap_oid);
	List	   *rows;

	if (!OidIsValid(get_extension_oid("timescaledb", true)) || schema == NULL || relname == NULL)
		return false;
	if (read_catalog("hypertable", hypertable_names, lengthof(hypertable_names), &rows) != NULL)
		return true;
	if (rows_have_name(rows, schema, relname))
		return true;
	/* it does nothing more for an index of a chunk than core */
	if (is_index)
		return false;
	if (read_catalog("chunk", chunk_names, lengthof(chunk_names), &rows) == NULL)
		return rows_have_name(rows, schema, relname);
	if (read_catalog("chunk", chunk_oids, lengthof(chunk_oids), &rows) != NULL)
		return true;
	if (rows_have_oid(rows, 0, relid))
		return true;
	if (read_catalog("compression_settings", compressed_oids, lengthof(compressed_oids),
					 &rows) != NULL)
		return true;
	return rows_have_oid(rows, 1, relid);
}
