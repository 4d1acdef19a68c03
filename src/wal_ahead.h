/*-------------------------------------------------------------------------
 *
 * wal_ahead.h
 *	  Making the next WAL segments before somebody has to wait for them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WAL_AHEAD_H
#define IM_WAL_AHEAD_H

extern void wal_ahead(void);

#endif							/* IM_WAL_AHEAD_H */
