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
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "errors.h"

/* Whether another process has sent SIGINT, once or more, since QueryCancelPending was false */
static volatile sig_atomic_t was_sent_cancel = false;

/* The same, ever: PG_CATCH() can have taken the error of it */
static volatile sig_atomic_t was_ever_sent = false;

/* Whether the last cancel was of this process itself, by SIGINT: in a worker it is lock_timeout */
static volatile sig_atomic_t was_lock_timeout = false;

/*
 * In the handler of a signal: cancel this process's work, as core's StatementCancelHandler().  It
 * can interrupt handle_cancel(), and be interrupted by it: so it leaves alone what others have sent.
 */
void
errors_cancel_work(void)
{
	was_lock_timeout = false;
	if (!proc_exit_inprogress)
	{
		InterruptPending = true;
		QueryCancelPending = true;
	}
	SetLatch(MyLatch);
}

/* For SIGINT: core sends it for lock_timeout and statement_timeout from the process itself. */
static void
handle_cancel(int signo, siginfo_t *info, void *context)
{
	int			save_errno = errno;

	/* what was sent before has been raised */
	if (!QueryCancelPending)
		was_sent_cancel = false;
	if (info->si_pid != MyProcPid)
		was_sent_cancel = was_ever_sent = true;
	errors_cancel_work();
	/* a function of a user can signal its own process, too */
	was_lock_timeout = (info->si_pid == MyProcPid && get_timeout_indicator(LOCK_TIMEOUT, false));
	errno = save_errno;
}

/*
 * Tell a cancel by another process from lock_timeout, for which core sends the same signal to its
 * own process.  Of both together, ProcessInterrupts() reports the timeout only, and forgets the
 * cancel: then who catches the timeout, and goes on, would never hear of it.
 */
void
errors_handle_cancel(void)
{
	struct sigaction action = {.sa_sigaction = handle_cancel,.sa_flags = SA_SIGINFO | SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
}

/* Return whether another process has ever sent this one a cancel. */
bool
errors_has_cancel_of_others(void)
{
	return was_ever_sent;
}

/* Forget a pending cancel.  Return whether another process has ever sent one, pending or not. */
bool
errors_forget_cancel(void)
{
	QueryCancelPending = false;
	return was_ever_sent;
}

/*
 * If the error is a lock timeout in whose place core has forgotten a cancel, or statement_timeout
 * (is_late), make it the error of that.
 */
static void
tell_of_forgotten(ErrorData *error, bool is_late)
{
	if (!errors_was_lock_timeout(error) || !(was_sent_cancel || is_late))
		return;
	error->sqlerrcode = ERRCODE_QUERY_CANCELED;
	error->message_id = "canceling statement due to user request";
	if (!was_sent_cancel)
		error->message_id = "canceling statement due to statement timeout";
	error->message = pstrdup(_(error->message_id));
	/* it may also have come afterwards, and is raised once */
	QueryCancelPending = false;
}

/*
 * In a worker, which has no statement_timeout: core can keep a lock timeout although it has granted
 * the lock, and tell of it as a cancel at the next wait.  Make the error what it is.
 */
static void
tell_of_kept_timeout(ErrorData *error)
{
	if (MyBgworkerEntry == NULL || !was_lock_timeout || was_sent_cancel ||
		error->message_id == NULL || error->funcname == NULL ||
		strcmp(error->funcname, "ProcessInterrupts") != 0 ||
		strcmp(error->message_id, "canceling statement due to user request") != 0)
		return;
	error->sqlerrcode = ERRCODE_LOCK_NOT_AVAILABLE;
	error->message_id = "canceling statement due to lock timeout";
	error->message = pstrdup(_(error->message_id));
}

static ErrorData *
copy_error(MemoryContext context, bool is_late)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	tell_of_forgotten(error, is_late);
	tell_of_kept_timeout(error);
	return error;
}

/* In PG_CATCH() of a worker: return the error, palloc'd in context, which becomes current. */
ErrorData *
errors_copy(MemoryContext context)
{
	return copy_error(context, false);
}

/*
 * As errors_copy(), and end all transactions and release all locks, including
 * session locks, which survive the abort if no transaction was open.
 */
ErrorData *
errors_take(MemoryContext context)
{
	ErrorData  *error = errors_copy(context);

	/* core's errors, also from parallel workers, have it in %m only */
	if (error->sqlerrcode == ERRCODE_INTERNAL_ERROR &&
		strstr(error->message, strerror(EDQUOT)) != NULL)
	{
		error->sqlerrcode = ERRCODE_DISK_FULL;
		error->hint = pstrdup("Check free disk space and quotas.");
	}
	/* core has no SQLSTATE for a damaged file system, and more */
	else if (error->sqlerrcode == ERRCODE_INTERNAL_ERROR && error->saved_errno != 0 &&
			 strstr(error->message, strerror(error->saved_errno)) != NULL)
		error->sqlerrcode = ERRCODE_IO_ERROR;
	AbortOutOfAnyTransaction();
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);
	MemoryContextSwitchTo(context);
	return error;
}

/*
 * In a user session, handle cancels as a worker does until *before is restored, which was its
 * handler: a lock timeout may be caught.  A cancel that is pending now is raised, so that it does
 * not count as sent meanwhile.
 */
static void
watch_cancel(const struct sigaction *before)
{
	if (before->sa_sigaction == handle_cancel)
		return;
	CHECK_FOR_INTERRUPTS();
	errors_handle_cancel();
	was_sent_cancel = QueryCancelPending;
}

/* Run work(arg) in a subtransaction, which is kept if there is no error, or is rolled back. */
static ErrorData *
catch_in_subtransaction(void (*work) (void *arg), void *arg, bool keeps)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ResourceOwner oldowner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	struct sigaction before;
	bool		has_limit = get_timeout_active(STATEMENT_TIMEOUT);

	Assert(IsTransactionState());
	sigaction(SIGINT, NULL, &before);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(oldcontext);
	PG_TRY();
	{
		/* here: callers rely on no error that is not caught */
		watch_cancel(&before);
		work(arg);
		if (keeps)
			ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		error = copy_error(oldcontext, has_limit && !get_timeout_active(STATEMENT_TIMEOUT));
	}
	PG_END_TRY();
	sigaction(SIGINT, &before, NULL);
	/* an error of the rollback itself must not roll back the caller's, too */
	if (error != NULL || !keeps)
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(oldcontext);
	CurrentResourceOwner = oldowner;
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

/*
 * In ereport(): the SQLSTATE of another error, and its message as the detail.  As in core, see
 * ExecEvalJsonCoercionFinish(), the message stays as it is: no sentence, and in any language.
 */
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
