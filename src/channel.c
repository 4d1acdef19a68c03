/*-------------------------------------------------------------------------
 *
 * channel.c
 *	  Between a process and the workers that it starts: the arguments, a segment that
 *	  both share, and the agreement on its contents.
 *
 * Where the library is not preloaded, a package can replace it while the server runs: then
 * old sessions have the old one, and their workers the new one.  So whoever uses memory that
 * processes share (the area of job.c, a job's segment, the arguments and answers of workers)
 * compares the number of its own library, a chain of the sizes of all that, with that of the
 * one that has made the area, before it reads anything else.  Hence any two that have come
 * past the check agree.
 *
 * A worker that has ended, however, is told by its handle; its answer stays in the segment as
 * long as who has started it keeps that mapped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include "common/hashfn.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"

#include "channel.h"
#include "compat.h"
#include "errors.h"
#include "test_points.h"

#define LAYOUT_NAME			"index_mover layout"

/* To be incremented with a change of shared memory that no size shows */
#define LAYOUT_VERSION		1

/* In shared memory.  All else there may have any form; this struct never changes. */
typedef struct LayoutNote
{
	uint32		layout;			/* constant */
	pg_atomic_uint32 refused;	/* the number of a worker that had another
								 * one; 0 = the last worker had not */
	pg_atomic_uint64 refused_file;	/* its library, see library_file() */
} LayoutNote;

static uint32 layout = LAYOUT_VERSION;

static LayoutNote *layout_note = NULL;

/* Return how much of the main shared memory this file needs. */
Size
channel_shmem_size(void)
{
	return MAXALIGN(sizeof(LayoutNote));
}

/* Count the size of something that processes share; in _PG_init(), always in this order. */
void
channel_layout_add(Size size)
{
	layout = layout * 31 + (uint32) size;
}

static uint32
my_layout(void)
{
	return layout + IM_LIMIT("layout", 0);
}

static void
init_layout(IM_AREA_INIT_ARGS)
{
	LayoutNote *note = ptr;

	note->layout = my_layout();
	pg_atomic_init_u32(&note->refused, 0);
	pg_atomic_init_u64(&note->refused_file, 0);
}

/*
 * Return a number for the file that is now where our library was loaded from, which a new
 * process loads; 0 if there is none.
 */
static uint64
library_file(void)
{
	Dl_info		info;
	struct stat st;
	uint64		identity[4];

	if (dladdr(&layout, &info) == 0 || stat(info.dli_fname, &st) != 0)
		return 0;
	identity[0] = st.st_dev;
	identity[1] = st.st_ino;
	identity[2] = st.st_ctime;
	identity[3] = st.st_size;
	return hash_bytes_extended((unsigned char *) identity, sizeof(identity), 0);
}

/* Raise ERROR 55000, since two versions of the library are in use. */
static void
refuse_replaced(uint32 one, uint32 other)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the library of index_mover was replaced while the server runs"),
			 errdetail("Two versions of it are in use, and what they share is not the same (%u and %u).",
					   one, other),
			 errhint("Restart the server.")));
}

static void
attach_layout_note(void)
{
	bool		found;

	layout_note = GetNamedDSMSegment(LAYOUT_NAME, sizeof(LayoutNote), init_layout, &found, NULL);
}

/* Compare our library with that which has made the area.  ERROR 55000 if they differ. */
void
channel_check_library(void)
{
	attach_layout_note();
	if (layout_note->layout != my_layout())
		refuse_replaced(layout_note->layout, my_layout());
}

/*
 * Raise ERROR 55000 if the last worker had another library than we have.  Called by
 * whoever starts workers, before, and if one has ended early.  Before, another file in the
 * place of that library gets a worker to try it: the package of ours may be back.
 */
void
channel_check_worker_library(bool has_ended)
{
	uint32		refused;

	channel_check_library();
	refused = pg_atomic_read_u32(&layout_note->refused);
	if (refused == 0)
		return;
	if (has_ended || pg_atomic_read_u64(&layout_note->refused_file) == library_file())
		refuse_replaced(layout_note->layout, refused);
}

/* Create a segment to share with workers; NULL if there is none left.  ERRORs as above. */
dsm_segment *
channel_create(Size size)
{
	channel_check_worker_library(false);
	return dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
}

/* Fill in the fields that our background workers have in common.  name: as type, if empty. */
void
channel_describe(BackgroundWorker *worker, const char *type, const char *function)
{
	if (worker->bgw_name[0] == '\0')
		strlcpy(worker->bgw_name, type, BGW_MAXLEN);
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "index_mover", sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
}

/*
 * Ask the postmaster for a worker, which was described.  Returns NULL if there is no free
 * worker slot.  notify_pid: the process to signal at its start and end, or 0.
 */
BackgroundWorkerHandle *
channel_start(BackgroundWorker *worker, const void *arguments, Size size, int notify_pid)
{
	BackgroundWorkerHandle *handle;

	Assert(size <= BGW_EXTRALEN);
	if (size > 0)
		memcpy(worker->bgw_extra, arguments, size);
	worker->bgw_notify_pid = notify_pid;
	if (RegisterDynamicBackgroundWorker(worker, &handle))
		return handle;
	return NULL;
}

/*
 * Ask the postmaster for a worker that carries out a task, in a segment that both share; the
 * main function of the worker is channel_carry_out().  Returns NULL if there is no free segment,
 * *segment is NULL then, or no free worker slot.  The caller detaches the segment, which has the
 * answer when the worker has ended; without a resource owner it lasts until then.
 */
BackgroundWorkerHandle *
channel_start_task(BackgroundWorker *worker, const void *task, Size size, dsm_segment **segment)
{
	*segment = channel_create(size);
	if (*segment == NULL)
		return NULL;
	memcpy(dsm_segment_address(*segment), task, size);
	worker->bgw_main_arg = UInt32GetDatum(dsm_segment_handle(*segment));
	return channel_start(worker, NULL, 0, MyProcPid);
}

/* Return whether a worker has ended, or the postmaster could not start it. */
bool
channel_worker_has_ended(BackgroundWorkerHandle *worker)
{
	pid_t		pid;

	return GetBackgroundWorkerPid(worker, &pid) == BGWH_STOPPED;
}

/* SIGTERM ends a worker as a session, at the next CHECK_FOR_INTERRUPTS(). */
static void
handle_signals(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	errors_handle_cancel();
	BackgroundWorkerUnblockSignals();
}

/*
 * The first thing that a worker does: check that it has the library of its starter, even
 * before it reads its arguments, and be ready for signals.
 */
void
channel_begin(void *arguments, Size size)
{
	attach_layout_note();
	if (layout_note->layout != my_layout())
	{
		pg_atomic_write_u64(&layout_note->refused_file, library_file());
		pg_atomic_write_u32(&layout_note->refused, my_layout());
		refuse_replaced(layout_note->layout, my_layout());
	}
	pg_atomic_write_u32(&layout_note->refused, 0);
	if (size > 0)
		memcpy(arguments, MyBgworkerEntry->bgw_extra, size);
	handle_signals();
}

/*
 * The whole of a worker that channel_start_task() has asked for: work on a copy of the task, which
 * becomes the answer.  If the worker fails, the answer is the task as it was.  main_arg: the
 * argument of the worker's main function.
 */
void
channel_carry_out(Datum main_arg, void *task, Size size, void (*work) (void *task))
{
	dsm_segment *segment;

	channel_begin(NULL, 0);
	/* no resource owner here: the mapping lasts as long as the process */
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		return;					/* the starter has gone */
	memcpy(task, dsm_segment_address(segment), size);
	work(task);
	memcpy(dsm_segment_address(segment), task, size);
}
