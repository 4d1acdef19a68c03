/*-------------------------------------------------------------------------
 *
 * catalog.h
 *	  Where this extension's own tables and sequences are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CATALOG_H
#define IM_CATALOG_H

extern Oid	extension_schema(void); /* ERROR 55000 if it is not installed here */
extern Oid	extension_relation(const char *name);	/* table, index, sequence */
extern int64 extension_nextval(const char *sequence);

#endif							/* IM_CATALOG_H */
