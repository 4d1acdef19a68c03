/*-------------------------------------------------------------------------
 *
 * index_definition.h
 *	  Which indexes are alike.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_INDEX_DEFINITION_H
#define IM_INDEX_DEFINITION_H

extern bool index_same_definition(Oid a, Oid b, bool rules);
extern bool index_same_exclusion(Oid a, Oid b);
extern bool index_has_dependents(Oid index_oid);

#endif							/* IM_INDEX_DEFINITION_H */
