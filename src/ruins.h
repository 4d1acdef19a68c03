/*-------------------------------------------------------------------------
 *
 * ruins.h
 *	  The findings of thorough looks at the pages of files.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_RUINS_H
#define IM_RUINS_H

#include "compat.h"

extern void ruins_init(void);
extern bool ruins_note(const RelFileLocator *file, const char *problem);
extern char *ruins_problem(const RelFileLocator *file);
extern bool ruins_is_damaged(const RelFileLocator *file);
extern bool ruins_was_whole(const RelFileLocator *file);
extern bool ruins_take_turn(const RelFileLocator *file);

#endif							/* IM_RUINS_H */
