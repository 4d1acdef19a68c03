/*-------------------------------------------------------------------------
 *
 * background_write.c
 *	  One write past the page cache that goes on while its caller does.
 *
 * By the system calls of io_submit(2), for which the C library has no functions, and
 * which serve files opened with O_DIRECT only.  Where the system does not have them,
 * does not let us, or has no more to give (fs.aio-max-nr), no write is started.  A
 * write that was not started, or did not write all, is for the caller to write in the
 * foreground, which says what is wrong.
 *
 * The context is kept until the process exits: to give it back takes the kernel
 * 40 ms (two RCU grace periods).
 *
 * What it gains: a default copy of a btree of 769 MB took 1.53 s with it and
 * 1.79 s without when idle, 3.16 and 3.19 s beside four writing clients (bench/copy
 * --ways paced,before, medians of 8 rounds, two processors).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#if defined(__linux__)
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "pgstat.h"

#include "copy/background_write.h"
#include "test_points.h"

/* The system refuses 0; both see test_points.c */
#define WRITES_AT_ONCE	IM_LIMIT("no-background", 1)
#define NOT_WRITTEN		IM_LIMIT("background-failed", 0)

#if defined(__linux__)
static unsigned long context = 0;	/* the system's name for it, or 0 */
static size_t under_way = 0;	/* size of the write; 0 = there is none */

/*
 * Start to write, and return whether that worked.  No write is under way.  The
 * data, aligned for O_DIRECT, must not change until background_write_finish();
 * the file may be closed before.
 */
bool
background_write_start(int fd, const char *data, size_t size, off_t offset)
{
	struct iocb request = {
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_fildes = fd,
		.aio_buf = (uintptr_t) data,
		.aio_nbytes = size,
		.aio_offset = offset
	};
	struct iocb *requests[1] = {&request};

	Assert(under_way == 0);
	if (context == 0 && syscall(SYS_io_setup, WRITES_AT_ONCE, &context) != 0)
		context = 0;
	if (context != 0 && syscall(SYS_io_submit, context, 1, requests) == 1)
		under_way = size;
	return under_way > 0;
}

/* Wait for the write under way, if there is one, and return whether it has written all. */
bool
background_write_finish(void)
{
	size_t		size = under_way;
	struct io_event event;
	int			rc;

	if (size == 0)
		return false;
	under_way = 0;
	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_WRITE);
	do
		rc = syscall(SYS_io_getevents, context, 1, 1, &event, NULL);
	while (rc < 0 && errno == EINTR);
	pgstat_report_wait_end();
	if (rc == 1)
		return event.res == (int64) size + NOT_WRITTEN;
	/* wait in any case */
	(void) syscall(SYS_io_destroy, context);
	context = 0;
	return false;
}
#endif
