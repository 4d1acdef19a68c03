/*-------------------------------------------------------------------------
 *
 * compare_blocks.h
 *	  Is a block of one relation file the same as in another?
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COMPARE_BLOCKS_H
#define IM_COMPARE_BLOCKS_H

#include "access/rmgr.h"
#include "copy/block_set.h"
#include "compat.h"
#include "storage/bufmgr.h"

extern RmgrId page_resource_manager(Oid access_method);
extern bool same_block(const RelFileLocator *one, const RelFileLocator *other,
					   BlockNumber block, RmgrId rmid,
					   BufferAccessStrategy strategy);

#endif							/* IM_COMPARE_BLOCKS_H */
