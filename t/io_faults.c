/*
 * io_faults.c
 *	  LD_PRELOAD library for tests: makes calls on chosen files fail, wait, or write
 *	  less than they were asked to.
 *
 * The environment variable IO_FAULTS names a control file.  While there is one,
 * its line says what happens:
 *
 *	operation errno first times path
 *
 * operation is read, slow, write, short, fsync, close, truncate, writeback (sync_file_range), readdir
 * or open (counted only); the calls are counted, over all processes, whose file's name contains path; those
 * from number "first" on, "times" of them, fail with errno, or, if errno is 0,
 * are done 100 ms later.  For "short", errno is a number of bytes: a write of more
 * than that writes no more, and says so.  For "slow", errno is the milliseconds that a
 * megabyte takes to be read.  IO_FAULTS.count gets a byte for each call that was
 * counted, IO_FAULTS.fired one for each that failed.
 *
 * Only for Linux: the name of a file is taken from /proc.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* As open(), which is one of those below. */
static int
open_file(const char *path, int flags, mode_t mode)
{
	return (int) syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* Append a byte; returns how many there are now. */
static long
count_up(const char *control, const char *suffix)
{
	char		path[1024];
	struct stat st;
	int			fd;
	long		result = 0;

	snprintf(path, sizeof(path), "%s.%s", control, suffix);
	fd = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (fd < 0)
		return 0;
	if (syscall(SYS_write, fd, ".", 1) == 1 && fstat(fd, &st) == 0)
		result = st.st_size;
	syscall(SYS_close, fd);
	return result;
}

/* What is to happen to this call: 0, or the number that the line has. */
static int
fault(const char *operation, int fd)
{
	const char *control = getenv("IO_FAULTS");
	char		line[1024];
	char		wanted[32];
	char		path[512];
	char		link[64];
	char		name[1024];
	int			error;
	long		first;
	long		times;
	long		number;
	ssize_t		len;
	int			control_fd;
	int			save_errno = errno;

	if (control == NULL || (control_fd = open_file(control, O_RDONLY, 0)) < 0)
	{
		errno = save_errno;
		return 0;
	}
	len = syscall(SYS_read, control_fd, line, sizeof(line) - 1);
	syscall(SYS_close, control_fd);
	errno = save_errno;
	if (len <= 0)
		return 0;
	line[len] = '\0';
	if (sscanf(line, "%31s %d %ld %ld %511s", wanted, &error, &first, &times, path) != 5 ||
		strcmp(wanted, operation) != 0)
		return 0;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, name, sizeof(name) - 1);
	errno = save_errno;
	if (len <= 0)
		return 0;
	name[len] = '\0';
	if (strstr(name, path) == NULL)
		return 0;

	number = count_up(control, "count");
	errno = save_errno;
	if (number < first || number >= first + times)
		return 0;
	(void) count_up(control, "fired");
	errno = save_errno;
	if (error == 0)
	{
		struct timespec pause = {0, 100 * 1000 * 1000};

		nanosleep(&pause, NULL);
		errno = save_errno;
	}
	return error;
}

/* Read as slowly as it says; "before" of the calls below. */
static void
slow_down(int fd, size_t size)
{
	int			ms = fault("slow", fd);
	long		us = (long) (ms * 1000.0 * size / (1024 * 1024));
	struct timespec pause = {us / 1000000, us % 1000000 * 1000};

	if (ms > 0)
		nanosleep(&pause, NULL);
}

static size_t
size_of(const struct iovec *iov, int n)
{
	size_t		size = 0;

	for (int i = 0; i < n; i++)
		size += iov[i].iov_len;
	return size;
}

/* Of a write, what is written. */
static size_t
as_much_as(int fd, size_t size)
{
	int			most = fault("short", fd);

	return most > 0 && (size_t) most < size ? (size_t) most : size;
}

/* The same for a list of buffers; returns how many, "cut" is room for the last. */
static int
as_many_as(int fd, const struct iovec **iov, int n, struct iovec *cut)
{
	int			most = fault("short", fd);

	if (most > 0 && n > 0)
	{
		*cut = **iov;
		if ((size_t) most < cut->iov_len)
			cut->iov_len = most;
		*iov = cut;
		n = 1;
	}
	return n;
}

#define CALL(type, name, operation, parameters, before, arguments) \
type \
name parameters \
{ \
	static type (*real) parameters = NULL; \
	int			error = fault(operation, fd); \
\
	if (error != 0) \
	{ \
		errno = error; \
		return -1; \
	} \
	if (real == NULL) \
		real = (type (*) parameters) dlsym(RTLD_NEXT, #name); \
	before; \
	return real arguments; \
}

CALL(ssize_t, pread, "read", (int fd, void *buf, size_t size, off_t off), slow_down(fd, size), (fd, buf, size, off))
CALL(ssize_t, pread64, "read", (int fd, void *buf, size_t size, off64_t off), slow_down(fd, size), (fd, buf, size, off))
CALL(ssize_t, preadv, "read", (int fd, const struct iovec *iov, int n, off_t off), slow_down(fd, size_of(iov, n)), (fd, iov, n, off))
CALL(ssize_t, preadv64, "read", (int fd, const struct iovec *iov, int n, off64_t off), slow_down(fd, size_of(iov, n)), (fd, iov, n, off))
CALL(ssize_t, pwrite, "write", (int fd, const void *buf, size_t size, off_t off), size = as_much_as(fd, size), (fd, buf, size, off))
CALL(ssize_t, pwrite64, "write", (int fd, const void *buf, size_t size, off64_t off), size = as_much_as(fd, size), (fd, buf, size, off))
CALL(ssize_t, pwritev, "write", (int fd, const struct iovec *iov, int n, off_t off),
	 struct iovec cut; n = as_many_as(fd, &iov, n, &cut), (fd, iov, n, off))
CALL(ssize_t, pwritev64, "write", (int fd, const struct iovec *iov, int n, off64_t off),
	 struct iovec cut; n = as_many_as(fd, &iov, n, &cut), (fd, iov, n, off))
CALL(int, fsync, "fsync", (int fd), (void) 0, (fd))
CALL(int, close, "close", (int fd), (void) 0, (fd))
CALL(int, fdatasync, "fsync", (int fd), (void) 0, (fd))
CALL(int, ftruncate, "truncate", (int fd, off_t size), (void) 0, (fd, size))
CALL(int, ftruncate64, "truncate", (int fd, off64_t size), (void) 0, (fd, size))
CALL(int, sync_file_range, "writeback", (int fd, off64_t off, off64_t size, unsigned int flags), (void) 0, (fd, off, size, flags))

#define READDIR(type, name) \
struct type * \
name(DIR *dir) \
{ \
	static struct type *(*real) (DIR *dir) = NULL; \
	int			error = fault("readdir", dirfd(dir)); \
\
	if (error != 0) \
	{ \
		errno = error; \
		return NULL; \
	} \
	if (real == NULL) \
		real = (struct type *(*) (DIR *dir)) dlsym(RTLD_NEXT, #name); \
	return real(dir); \
}

READDIR(dirent, readdir)
READDIR(dirent64, readdir64)

/* A file has a name in /proc when it is open. */
#define OPEN(name) \
int \
name(const char *path, int flags, ...) \
{ \
	va_list		args; \
	mode_t		mode; \
	int			fd; \
\
	va_start(args, flags); \
	mode = flags & O_CREAT ? va_arg(args, mode_t) : 0; \
	va_end(args); \
	fd = open_file(path, flags, mode); \
	if (fd >= 0) \
		(void) fault("open", fd); \
	return fd; \
}

OPEN(open)
OPEN(open64)
