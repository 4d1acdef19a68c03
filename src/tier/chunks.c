/*-------------------------------------------------------------------------
 *
 * chunks.c
 *	  Which table has the compressed data of a chunk of TimescaleDB.
 *
 * Its catalog table of chunks is read by the names of the columns, as far as a version
 * has them, and without a query.  Where it cannot be read, a chunk is a child by
 * inheritance like any other, and so the plan says.
 *
 * Locks: AccessShareLock on that table while it is read, which is not waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "relation_facts.h"
#include "tier/tier_private.h"
#include "timescaledb.h"

/* The columns of _timescaledb_catalog.chunk that are read */
enum
{
	CHUNK_ID,
	CHUNK_SCHEMA,
	CHUNK_TABLE,
	CHUNK_COMPRESSED,
	CHUNK_COLUMNS
};

static const struct
{
	const char *name;
	Oid			type;
}			chunk_columns[CHUNK_COLUMNS] = {
	[CHUNK_ID] = {"id", INT4OID},
	[CHUNK_SCHEMA] = {"schema_name", NAMEOID},
	[CHUNK_TABLE] = {"table_name", NAMEOID},
	[CHUNK_COMPRESSED] = {"compressed_chunk_id", INT4OID},
};

/* A row of that table */
typedef struct ChunkRow
{
	int32		id;				/* hash key */
	Oid			relid;			/* 0 = it was dropped */
	int32		compressed;		/* id; 0 = none */
} ChunkRow;

/* Find the numbers of the columns.  Returns the name of one that is missing, or NULL. */
static const char *
find_columns(TupleDesc desc, AttrNumber *numbers)
{
	for (int c = 0; c < CHUNK_COLUMNS; c++)
	{
		numbers[c] = InvalidAttrNumber;
		for (int i = 0; i < desc->natts; i++)
		{
			Form_pg_attribute column = TupleDescAttr(desc, i);

			if (!column->attisdropped && column->atttypid == chunk_columns[c].type &&
				namestrcmp(&column->attname, chunk_columns[c].name) == 0)
				numbers[c] = i + 1;
		}
		if (numbers[c] == InvalidAttrNumber)
			return chunk_columns[c].name;
	}
	return NULL;
}

/* Read a row into the hash of ChunkRow. */
static void
read_row(HTAB *rows, HeapTuple tuple, TupleDesc desc, const AttrNumber *numbers)
{
	Datum		values[CHUNK_COLUMNS];
	bool		nulls[CHUNK_COLUMNS];
	ChunkRow   *row;
	Oid			schema;
	int32		id;

	for (int c = 0; c < CHUNK_COLUMNS; c++)
		values[c] = heap_getattr(tuple, numbers[c], desc, &nulls[c]);
	if (nulls[CHUNK_ID] || nulls[CHUNK_SCHEMA] || nulls[CHUNK_TABLE])
		return;
	id = DatumGetInt32(values[CHUNK_ID]);
	schema = get_namespace_oid(NameStr(*DatumGetName(values[CHUNK_SCHEMA])), true);
	row = hash_search(rows, &id, HASH_ENTER, NULL);
	row->relid = InvalidOid;
	if (OidIsValid(schema))
		row->relid = get_relname_relid(NameStr(*DatumGetName(values[CHUNK_TABLE])), schema);
	row->compressed = nulls[CHUNK_COMPRESSED] ? 0 : DatumGetInt32(values[CHUNK_COMPRESSED]);
}

/* Turn the rows of the catalog into pairs, a hash of ChunkPair. */
static HTAB *
pairs_of(HTAB *rows)
{
	HASHCTL		info = {.keysize = sizeof(Oid),.entrysize = sizeof(ChunkPair),
	.hcxt = CurrentMemoryContext};
	HTAB	   *result = hash_create("index_mover chunks", 256, &info,
									 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	HASH_SEQ_STATUS status;
	const ChunkRow *row;

	hash_seq_init(&status, rows);
	while ((row = hash_seq_search(&status)) != NULL)
	{
		const ChunkRow *compressed = NULL;
		ChunkPair  *pair;

		if (row->compressed != 0 && OidIsValid(row->relid))
			compressed = hash_search(rows, &row->compressed, HASH_FIND, NULL);
		if (compressed == NULL || !OidIsValid(compressed->relid))
			continue;
		pair = hash_search(result, &row->relid, HASH_ENTER, NULL);
		pair->compressed = compressed->relid;
	}
	return result;
}

/*
 * Return the chunks that have compressed data, a hash of ChunkPair; NULL if the extension is
 * not there or, with *problem set, its catalog cannot be read.
 */
HTAB *
chunks_read(const char **problem)
{
	HASHCTL		info = {.keysize = sizeof(int32),.entrysize = sizeof(ChunkRow),
	.hcxt = CurrentMemoryContext};
	AttrNumber	numbers[CHUNK_COLUMNS];
	const char *missing;
	HTAB	   *rows;
	Relation	rel;
	Oid			table;

	*problem = NULL;
	if (!OidIsValid(get_extension_oid("timescaledb", true)))
		return NULL;
	table = timescaledb_catalog("chunk");
	if (!OidIsValid(table))
	{
		*problem = "timescaledb has no table of chunks that is known here";
		return NULL;
	}
	if (!ConditionalLockRelationOid(table, AccessShareLock))
	{
		*problem = "another session has locked timescaledb's table of chunks";
		return NULL;
	}
	rel = table_open(table, NoLock);
	missing = find_columns(RelationGetDescr(rel), numbers);
	rows = hash_create("index_mover chunk rows", 256, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	if (missing == NULL)
	{
		foreach_ptr(HeapTupleData, tuple, catalog_all(table))
		{
			read_row(rows, tuple, RelationGetDescr(rel), numbers);
		}
	}
	else
		*problem = psprintf("timescaledb's table of chunks has no column \"%s\" that is known here",
							missing);
	table_close(rel, AccessShareLock);
	return missing == NULL ? pairs_of(rows) : NULL;
}
