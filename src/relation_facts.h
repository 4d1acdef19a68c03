/*-------------------------------------------------------------------------
 *
 * relation_facts.h
 *	  Facts from the catalogs about an index or a table.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_RELATION_FACTS_H
#define IM_RELATION_FACTS_H

#include "access/htup.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"

#include "compat.h"

/*
 * The rows of an index, or a table, in pg_class and pg_index; a table is its own
 * heap here.  Read without a lock.
 */
typedef struct RelationFacts
{
	Oid			relid;			/* the relation itself */
	Oid			heap_oid;
	Oid			schema_oid;
	NameData	relname;
	NameData	schema_name;
	NameData	heap_name;
	char		relkind;
	char		persistence;
	BlockNumber pages;			/* of the main fork, when they were counted */
	Oid			relam;
	Oid			tablespace;		/* never 0: the database default by its OID */
	RelFileNumber relfilenumber;	/* 0: no storage, or mapped */
	Oid			heap_tablespace;	/* the same three of the table */
	RelFileNumber heap_relfilenumber;
	Oid			toast_oid;		/* of a table; 0: it has none */
	char		identity;		/* of the table: pg_class.relreplident */
	/* columns of pg_index, if it is an index */
	bool		unique;
	bool		exclusion;
	bool		immediate;
	bool		primary;
	bool		replident;
	bool		valid;			/* also of a table */
	bool		ready;			/* also of a table */
	bool		live;
} RelationFacts;

/* an index, also if it is partitioned, as opposed to a table of any kind */
#define relkind_is_index(relkind) \
	((relkind) == RELKIND_INDEX || (relkind) == RELKIND_PARTITIONED_INDEX)

/* The catalogs have 0 for the default tablespace of the database. */
static inline Oid
tablespace_from_catalog(Oid tablespace)
{
	return OidIsValid(tablespace) ? tablespace : MyDatabaseTableSpace;
}

static inline Oid
tablespace_in_catalog(Oid tablespace)
{
	return tablespace == MyDatabaseTableSpace ? InvalidOid : tablespace;
}

extern bool relation_facts(Oid relid, RelationFacts *facts);
extern List *catalog_rows_in(Snapshot snapshot, Oid catalog,
							 Oid index, AttrNumber column1, Oid key1,
							 AttrNumber column2, Oid key2);
#define catalog_rows(...) catalog_rows_in(NULL, __VA_ARGS__)

/* all rows of a catalog */
#define catalog_all(catalog) catalog_rows(catalog, InvalidOid, 0, InvalidOid, 0, InvalidOid)

extern List *indexes_of_table(Oid heap_oid);
extern List *children_of(Oid relid, bool with_pending);
extern List *relation_and_below(Oid relid);
extern bool is_or_is_below(Oid relid, Oid other);
extern Oid	parent_of_partition(Oid relid);
extern List *parts_of_table(const RelationFacts *facts);
extern bool parts_are_in(const RelationFacts *facts, Oid tablespace);
extern Oid	table_of_toast(Oid relid);
extern List *relations_such(bool (*is_such) (Form_pg_class form));
extern const char *relation_noun(char relkind);

#endif							/* IM_RELATION_FACTS_H */
