/*-------------------------------------------------------------------------
 *
 * lost_copy.h
 *	  Guard that keeps a lost file from a new number, under which it looks whole.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LOST_COPY_H
#define IM_LOST_COPY_H

extern void lost_copy_init(void);

#endif							/* IM_LOST_COPY_H */
