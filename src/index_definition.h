/*-------------------------------------------------------------------------
 *
 * index_definition.h
 *	  Which indexes a table has, and which of them are alike.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_INDEX_DEFINITION_H
#define IM_INDEX_DEFINITION_H

#include "nodes/pg_list.h"

extern List *indexes_of_table(Oid heap_oid);
extern bool index_same_definition(Oid a, Oid b, bool rules);
extern bool index_has_dependents(Oid index_oid);

#endif							/* IM_INDEX_DEFINITION_H */
