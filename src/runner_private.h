/*-------------------------------------------------------------------------
 *
 * runner_private.h
 *	  This process as a runner, for runner.c, runner_claim.c and runner_bid.c only.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_RUNNER_PRIVATE_H
#define IM_RUNNER_PRIVATE_H

#include "job_private.h"

/* set by runner_attach(), the area also by runner_ask_to_step_back(); the others are NULL until then */
extern JobArea *runner_area;
extern RunnerSlot *runner_mine;
extern JobSlot *runner_my_job;
extern JobShared *runner_my_shared; /* stays after runner_detach() */

/* Return whether a slot is that of a runner of our job. */
static inline bool
runner_is_ours(const RunnerSlot *runner)
{
	return runner->in_use && runner->slot == runner_mine->slot;
}

extern int	runner_count(bool (*condition) (const RunnerSlot *runner));
extern bool runner_is_another(const RunnerSlot *runner);
extern bool runner_is_another_unfinished(const RunnerSlot *runner);

#endif							/* IM_RUNNER_PRIVATE_H */
