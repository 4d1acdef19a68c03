/*-------------------------------------------------------------------------
 *
 * janitor.h
 *	  Cleaning up without being asked, where the library is preloaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_JANITOR_H
#define IM_JANITOR_H

extern void janitor_register(void); /* from _PG_init(), while preloading */

#endif							/* IM_JANITOR_H */
