/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  Catching errors, so that a job or a loop goes on after it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_ERRORS_H
#define IM_ERRORS_H

#include "fmgr.h"

extern void errors_handle_cancel(void);
extern void errors_cancel_work(void);
extern bool errors_has_cancel_of_others(void);
extern bool errors_forget_cancel(void);
extern ErrorData *errors_copy(MemoryContext context);
extern ErrorData *errors_take(MemoryContext context);
extern ErrorData *errors_catch(void (*work) (void *arg), void *arg);
extern ErrorData *errors_catch_and_release(void (*work) (void *arg), void *arg);
extern ErrorData *errors_catch_in_transaction(void (*work) (void *arg), void *arg);
extern ErrorData *errors_catch_without_snapshot(void (*work) (void *arg), void *arg);
extern bool errors_was_canceled(const ErrorData *error);
extern bool errors_was_lock_timeout(const ErrorData *error);
extern bool errors_was_hindered(const ErrorData *error);
extern int	errors_repeat(const ErrorData *error);
extern int	errors_as_detail(const ErrorData *error);
extern void reject_null(FunctionCallInfo fcinfo, int n, const char *name);

#endif							/* IM_ERRORS_H */
