/*-------------------------------------------------------------------------
 *
 * wal_ahead.h
 *	  Making the next WAL segments before somebody has to wait for them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_WAL_AHEAD_H
#define IM_WAL_AHEAD_H

/*
 * So much WAL may come between two calls without reaching a segment not made;
 * at least one segment
 */
#define WAL_AHEAD		(16 * 1024 * 1024)

extern void wal_ahead(void);

#endif							/* IM_WAL_AHEAD_H */
