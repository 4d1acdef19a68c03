/*
 * lost_writes.c
 *	  LD_PRELOAD library for tests: remembers what a power failure would lose.
 *
 * The environment variable LOST_WRITES names a directory.  For each relation file
 * that is written or truncated, <directory>/<inode>.undo gets what the file was
 * when it was last synced: in the first line its name and size, then for each
 * change "offset length" and the bytes that were there.  fsync of a file empties
 * its list.  When every process is dead, the test puts all that back.
 *
 * Assumption: only relation files matter (below base/ and pg_tblspc/); WAL, the
 * control file and directories are taken to be durable at once.  A change of a
 * file and its entry in the list happen under a lock on the list, and so do
 * fsync and the end of the list, so that no write is taken to be synced that
 * came too late.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) dlsym(RTLD_NEXT, name)

/* Open and lock the list of a file; -1 if the file is none of those. */
static int
lock_list(int fd, int flags, char *name, size_t name_size, struct stat *st)
{
	const char *directory = getenv("LOST_WRITES");
	char		path[1200];
	ssize_t		len;
	int			list;

	if (directory == NULL || fstat(fd, st) != 0 || !S_ISREG(st->st_mode))
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	len = readlink(path, name, name_size - 1);
	if (len <= 0)
		return -1;
	name[len] = '\0';
	if (strstr(name, "/base/") == NULL && strstr(name, "/pg_tblspc/") == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/%lu.undo", directory, (unsigned long) st->st_ino);
	list = open(path, O_RDWR | O_APPEND | flags, 0600);
	if (list < 0)
		return -1;
	while (flock(list, LOCK_EX) != 0 && errno == EINTR)
		;
	/* it may have grown while we waited */
	(void) fstat(fd, st);
	return list;
}

/* Put what is in a range of the file now into its list.  Returns the list, locked. */
static int
remember(int fd, off_t off, size_t size)
{
	char		name[1024];
	char		head[1100];
	struct stat st;
	struct stat list_st;
	int			save_errno = errno;
	int			list = lock_list(fd, O_CREAT, name, sizeof(name), &st);

	if (list >= 0)
	{
		size_t		old = off >= st.st_size ? 0 :
			st.st_size - off < (off_t) size ? (size_t) (st.st_size - off) : size;
		char	   *entry = malloc(old + 100);
		int			n = 0;

		if (fstat(list, &list_st) == 0 && list_st.st_size == 0)
		{
			n = snprintf(head, sizeof(head), "%s %ld\n", name, (long) st.st_size);
			(void) !syscall(SYS_write, list, head, n);
		}
		if (old > 0 && entry != NULL)
		{
			n = sprintf(entry, "%ld %ld\n", (long) off, (long) old);
			if (syscall(SYS_pread64, fd, entry + n, old, off) == (ssize_t) old)
				(void) !syscall(SYS_write, list, entry, n + old);
		}
		free(entry);
	}
	errno = save_errno;
	return list;
}

static void
unlock(int list)
{
	int			save_errno = errno;

	if (list >= 0)
		close(list);
	errno = save_errno;
}

static size_t
total(const struct iovec *iov, int n)
{
	size_t		size = 0;

	while (n-- > 0)
		size += iov[n].iov_len;
	return size;
}

#define CHANGE(type, name, parameters, arguments, from, size) \
type \
name parameters \
{ \
	type		(*real) parameters = REAL(#name); \
	int			list = remember(fd, from, size); \
	type		result = real arguments; \
\
	unlock(list); \
	return result; \
}

CHANGE(ssize_t, pwrite, (int fd, const void *buf, size_t size, off_t off), (fd, buf, size, off), off, size)
CHANGE(ssize_t, pwrite64, (int fd, const void *buf, size_t size, off64_t off), (fd, buf, size, off), off, size)
CHANGE(ssize_t, pwritev, (int fd, const struct iovec *iov, int n, off_t off), (fd, iov, n, off), off, total(iov, n))
CHANGE(ssize_t, pwritev64, (int fd, const struct iovec *iov, int n, off64_t off), (fd, iov, n, off), off, total(iov, n))
CHANGE(int, ftruncate, (int fd, off_t size), (fd, size), size, (size_t) 1 << 40)
CHANGE(int, ftruncate64, (int fd, off64_t size), (fd, size), size, (size_t) 1 << 40)

#define SYNC(name) \
int \
name(int fd) \
{ \
	int			(*real) (int) = REAL(#name); \
	char		path[1024]; \
	struct stat st; \
	int			save_errno = errno; \
	int			list = lock_list(fd, 0, path, sizeof(path), &st); \
	int			result; \
\
	errno = save_errno; \
	result = real(fd); \
	if (list >= 0 && result == 0) \
		(void) !syscall(SYS_ftruncate, list, 0); \
	unlock(list); \
	return result; \
}

SYNC(fsync)
SYNC(fdatasync)
