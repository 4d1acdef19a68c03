/*-------------------------------------------------------------------------
 *
 * record.h
 *	  What a worker puts on record of its items, between two of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_RECORD_H
#define IM_RECORD_H

#include "job.h"

extern bool record_all(JobShared *shared);
extern void record_item(JobShared *shared, int n);

/* Has the extension been dropped under us?  Then there is nothing left to do. */
extern bool record_extension_is_gone(void);

#endif							/* IM_RECORD_H */
