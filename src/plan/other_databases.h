/*-------------------------------------------------------------------------
 *
 * other_databases.h
 *	  What a tablespace holds that sessions of other databases must move.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_OTHER_DATABASES_H
#define IM_OTHER_DATABASES_H

/* NOTICE with the number of indexes of other databases, if there are any */
extern void notice_other_databases(Oid tablespace);

#endif							/* IM_OTHER_DATABASES_H */
