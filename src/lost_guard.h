/*-------------------------------------------------------------------------
 *
 * lost_guard.h
 *	  Guard that keeps sessions from using the indexes of a lost device.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LOST_GUARD_H
#define IM_LOST_GUARD_H

extern void lost_guard_init(void);
extern void lost_guard_empty_files(void);
extern bool lost_guard_empty_all(bool is_again);

#endif							/* IM_LOST_GUARD_H */
