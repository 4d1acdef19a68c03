/*-------------------------------------------------------------------------
 *
 * tier.h
 *	  Placement: which relation belongs where.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TIER_H
#define IM_TIER_H

/* policy.c: tell the caller which policies would fill a tablespace again */
extern void policies_notice_target(Oid tablespace);

#endif							/* IM_TIER_H */
