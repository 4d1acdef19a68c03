/*-------------------------------------------------------------------------
 *
 * citus.h
 *	  Citus: where its calls come from, and which tables have shards.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CITUS_H
#define IM_CITUS_H

extern bool citus_has_sent_us(void);
extern int	citus_caller_pid(void);
extern bool citus_distributes(Oid relid);

#endif							/* IM_CITUS_H */
