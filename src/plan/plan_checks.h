/*-------------------------------------------------------------------------
 *
 * plan_checks.h
 *	  What an index is, and whether the current user may move it now.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PLAN_CHECKS_H
#define IM_PLAN_CHECKS_H

#include "compat.h"
#include "job.h"
#include "nodes/pg_list.h"

/* What pg_class and pg_index say about an index; no lock behind it. */
typedef struct IndexFacts
{
	Oid			index_oid;
	Oid			heap_oid;
	Oid			schema_oid;
	NameData	index_name;
	NameData	schema_name;
	NameData	heap_name;
	char		relkind;		/* RELKIND_INDEX or RELKIND_PARTITIONED_INDEX */
	char		persistence;
	Oid			tablespace;		/* never 0: the database default by its OID */
	RelFileNumber relfilenumber;	/* 0: no storage, or mapped */
	Oid			heap_tablespace;	/* the same three of the table */
	RelFileNumber heap_relfilenumber;
	bool		valid;
	bool		live;
} IndexFacts;

extern bool index_facts(Oid index_oid, IndexFacts *facts);

extern void item_fill(MoveItem *item, const IndexFacts *facts);
extern void item_say(MoveItem *item, const char *fmt,...) pg_attribute_printf(2, 3);
extern void item_skip(MoveItem *item, int sqlerrcode, const char *fmt,...) pg_attribute_printf(3, 4);
extern bool item_check(MoveItem *item, const IndexFacts *facts);

/*
 * Say which methods can move an index, whoever asks and wherever it is now.
 * access_methods is as for copy_can_move().  No locks.
 */
extern void movable_methods(Oid index_oid, const char *access_methods,
							bool *copy, bool *rebuild);

extern void check_named_relation(Oid relid, char relkind, const char *relname);
extern void check_no_lock_held(const List *items);

#endif							/* IM_PLAN_CHECKS_H */
