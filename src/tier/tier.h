/*-------------------------------------------------------------------------
 *
 * tier.h
 *	  Placement: which relation belongs where.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIER_H
#define IM_TIER_H

#include "nodes/pg_list.h"

/* policy.c: tell the caller which policies would fill a tablespace again */
extern void policies_notice_target(Oid tablespace);

/* policy_conflict.c: tell the caller which policies would move relations out again */
extern void policies_notice_pressure(const List *moves);

#endif							/* IM_TIER_H */
