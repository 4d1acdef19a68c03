/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  Catching errors, so that a job or a loop goes on after it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "errors.h"

/* Whether another process has sent SIGINT, once or more, since QueryCancelPending was false */
static volatile sig_atomic_t was_sent_cancel = false;

/* As core's StatementCancelHandler(), and note a signal that is not our own. */
static void
handle_cancel(int signo, siginfo_t *info, void *context)
{
	int			save_errno = errno;

	/* what was sent before has been raised */
	if (!QueryCancelPending)
		was_sent_cancel = false;
	if (info->si_pid != MyProcPid)
		was_sent_cancel = true;
	if (!proc_exit_inprogress)
	{
		InterruptPending = true;
		QueryCancelPending = true;
	}
	SetLatch(MyLatch);
	errno = save_errno;
}

/*
 * In a worker, tell a cancel by another process from lock_timeout, for which core sends the same
 * signal to its own process.  Of both together, ProcessInterrupts() reports the timeout only, and
 * forgets the cancel: then who catches the timeout, and goes on, would never hear of it.
 */
void
errors_handle_cancel(void)
{
	struct sigaction action = {.sa_sigaction = handle_cancel,.sa_flags = SA_SIGINFO | SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
}

/*
 * Return whether the error is a lock timeout in whose place core has forgotten a cancel.  False
 * where errors_handle_cancel() was not called.
 */
bool
errors_has_met_cancel(const ErrorData *error)
{
	return errors_was_lock_timeout(error) && was_sent_cancel;
}

/* When an error is caught, have the next CHECK_FOR_INTERRUPTS() raise a cancel that it met. */
void
errors_keep_cancel(const ErrorData *error)
{
	if (!errors_has_met_cancel(error))
		return;
	QueryCancelPending = true;
	InterruptPending = true;

	/*
	 * a wait for a lock sleeps first, and its own timeout would be told in
	 * place of the cancel
	 */
	SetLatch(MyLatch);
}

/*
 * Take the error in PG_CATCH() of a worker, and end all transactions and
 * release all locks, including session locks, which survive the abort if no
 * transaction was open.  Returns the error, palloc'd in context, which
 * becomes current.
 */
ErrorData *
errors_take(MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	/* core's errors, also from parallel workers, have it in %m only */
	if (error->sqlerrcode == ERRCODE_INTERNAL_ERROR &&
		strstr(error->message, strerror(EDQUOT)) != NULL)
	{
		error->sqlerrcode = ERRCODE_DISK_FULL;
		error->hint = pstrdup("Check free disk space and quotas.");
	}
	/* nor does core know of a damaged file system, and more */
	else if (error->sqlerrcode == ERRCODE_INTERNAL_ERROR && error->saved_errno != 0 &&
			 strstr(error->message, strerror(error->saved_errno)) != NULL)
		error->sqlerrcode = ERRCODE_IO_ERROR;
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	MemoryContextSwitchTo(context);
	return error;
}

/* Run work(arg) in a subtransaction, which is kept if there is no error, or is rolled back. */
static ErrorData *
catch_in_subtransaction(void (*work) (void *arg), void *arg, bool keeps)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ResourceOwner oldowner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	Assert(IsTransactionState());
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(oldcontext);
	PG_TRY();
	{
		work(arg);
		if (keeps)
			ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(oldcontext);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	/* an error of the rollback itself must not roll back the caller's, too */
	if (error != NULL || !keeps)
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(oldcontext);
	CurrentResourceOwner = oldowner;
	if (error != NULL)
		errors_keep_cancel(error);
	return error;
}

/*
 * Run work(arg) in a subtransaction.  Returns NULL or, after its rollback, the
 * error, palloc'd in the current context.  Needs no transaction ID, so it works
 * on a standby.
 */
ErrorData *
errors_catch(void (*work) (void *arg), void *arg)
{
	return catch_in_subtransaction(work, arg, true);
}

/* As errors_catch(), but the subtransaction is rolled back in any case: with its locks, also on standbys. */
ErrorData *
errors_catch_and_release(void (*work) (void *arg), void *arg)
{
	return catch_in_subtransaction(work, arg, false);
}

/* As errors_catch(), in a transaction of its own; also the error of its commit. */
static ErrorData *
catch_in_transaction(void (*work) (void *arg), void *arg, bool has_snapshot)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		StartTransactionCommand();
		if (has_snapshot)
			PushActiveSnapshot(GetTransactionSnapshot());
		work(arg);
		if (has_snapshot)
			PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		error = errors_take(oldcontext);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcontext);
	if (error != NULL)
		errors_keep_cancel(error);
	return error;
}

ErrorData *
errors_catch_in_transaction(void (*work) (void *arg), void *arg)
{
	return catch_in_transaction(work, arg, true);
}

/* As errors_catch_in_transaction(), without a snapshot, for which neither VACUUM nor CREATE INDEX CONCURRENTLY has to wait. */
ErrorData *
errors_catch_without_snapshot(void (*work) (void *arg), void *arg)
{
	return catch_in_transaction(work, arg, false);
}

/*
 * Return whether the error, or NULL, is a cancel of the statement or of the move.  Functions
 * of users can raise the same SQLSTATE, and must not stop other work by it.
 */
bool
errors_was_canceled(const ErrorData *error)
{
	if (error == NULL || error->sqlerrcode != ERRCODE_QUERY_CANCELED || error->funcname == NULL)
		return false;
	return strcmp(error->funcname, "ProcessInterrupts") == 0 ||
		strcmp(error->funcname, "job_check_cancel") == 0 ||
		strcmp(error->funcname, "runner_check_step_back") == 0;
}

/* Return whether core's lock_timeout has run out; functions of users can raise its SQLSTATE. */
bool
errors_was_lock_timeout(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE && error->funcname != NULL &&
		strcmp(error->funcname, "ProcessInterrupts") == 0;
}

/* Return whether the error is that another transaction was in the way for lock_timeout. */
bool
errors_was_hindered(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
}

/* In ereport() that repeats the message of another error: its SQLSTATE, detail and hint. */
int
errors_repeat(const ErrorData *error)
{
	errcode(error->sqlerrcode);
	if (error->detail != NULL)
		errdetail_internal("%s", error->detail);
	if (error->hint != NULL)
		errhint("%s", error->hint);
	return 0;
}

/* In ereport(): the SQLSTATE of another error, and its message as the detail. */
int
errors_as_detail(const ErrorData *error)
{
	errcode(error->sqlerrcode);
	return errdetail_internal("%s", error->message);
}

/* Refuse NULL as argument n of a function, with ERROR 22004. */
void
reject_null(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}
