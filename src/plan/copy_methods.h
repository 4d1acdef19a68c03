/*-------------------------------------------------------------------------
 *
 * copy_methods.h
 *	  Which indexes the methods copy and rebuild are able to move.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COPY_METHODS_H
#define IM_COPY_METHODS_H

/*
 * Both look at catalogs only, take no lock on the index or its table, and
 * need no privilege.  *reason, if not NULL, becomes a palloc'd clause ("the
 * index is unlogged, ...") when the answer is false, NULL when it is true.
 *
 * access_methods: a job's or the session's copy_access_methods.
 */
extern bool copy_can_move(Oid index_oid, const char *access_methods,
						  char **reason);
extern bool rebuild_can_move(Oid index_oid, char **reason);

/*
 * Must the index stay where it is for as long as full_page_writes is off, which
 * it is now?  Looks at catalogs only, without locks or privileges.
 */
extern bool recovery_needs_full_pages(Oid index_oid);

#endif							/* IM_COPY_METHODS_H */
