/*-------------------------------------------------------------------------
 *
 * background_write.c
 *	  One write past the page cache that goes on while its caller does.
 *
 * By the system calls that io_submit(2) describes, for which the C library has
 * no functions, and which serve files opened with O_DIRECT only.  Where the
 * system does not have them, does not let us, or has no more of them to give
 * (fs.aio-max-nr), no write is started.
 *
 * Nothing here reports an error: a write that was not started, or did not write
 * all, is for the caller to write in the foreground, which says what is wrong.
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

struct BackgroundWrite
{
	unsigned long context;		/* the system's name for it; 0 = there is none */
	size_t		size;			/* of the write under way; 0 = there is none */
};

/* Prepare for one write at a time, in the current memory context. */
BackgroundWrite *
background_write_create(void)
{
	BackgroundWrite *write = palloc0(sizeof(BackgroundWrite));

#if defined(__linux__)
	if (IM_MUTATION("no-background") || syscall(SYS_io_setup, 1, &write->context) != 0)
		write->context = 0;
#endif
	return write;
}

/* End it, and wait for the write under way. */
void
background_write_free(BackgroundWrite *write)
{
#if defined(__linux__)
	if (write->context != 0)
		(void) syscall(SYS_io_destroy, write->context);
#endif
	write->context = 0;
	write->size = 0;
}

/*
 * Start to write, and return whether that worked.  The data, aligned for
 * O_DIRECT, must not change until background_write_finish(); the file may be
 * closed before.
 */
bool
background_write_start(BackgroundWrite *write, int fd, const char *data,
					   size_t size, off_t offset)
{
	Assert(write->size == 0);
#if defined(__linux__)
	if (write->context != 0)
	{
		struct iocb request = {
			.aio_lio_opcode = IOCB_CMD_PWRITE,
			.aio_fildes = fd,
			.aio_buf = (uintptr_t) data,
			.aio_nbytes = size,
			.aio_offset = offset
		};
		struct iocb *requests[1] = {&request};

		if (syscall(SYS_io_submit, write->context, 1, requests) == 1)
			write->size = size;
	}
#endif
	return write->size > 0;
}

/* Wait for the write under way, and return whether it has written all. */
bool
background_write_finish(BackgroundWrite *write)
{
	bool		complete = false;
#if defined(__linux__)
	struct io_event event;
	int			rc;

	Assert(write->size > 0);
	pgstat_report_wait_start(WAIT_EVENT_DATA_FILE_WRITE);
	do
		rc = syscall(SYS_io_getevents, write->context, 1, 1, &event, NULL);
	while (rc < 0 && errno == EINTR);
	pgstat_report_wait_end();
	complete = rc == 1 && event.res == (int64) write->size &&
		!IM_MUTATION("background-failed");
	/* wait in any case */
	if (rc != 1)
		background_write_free(write);
	write->size = 0;
#endif
	return complete;
}
