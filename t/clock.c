/*
 * clock.c
 *	  LD_PRELOAD library for tests: a clock that was set back.
 *
 * The environment variable CLOCK names a file.  While there is one, the time of the
 * day is that of an hour ago.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SET_BACK	3600

static time_t
set_back(time_t now)
{
	const char *file = getenv("CLOCK");

	return file != NULL && access(file, F_OK) == 0 ? now - SET_BACK : now;
}

int
gettimeofday(struct timeval *tv, void *tz)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	tv->tv_sec = set_back(now.tv_sec);
	tv->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *result)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	now.tv_sec = set_back(now.tv_sec);
	if (result != NULL)
		*result = now.tv_sec;
	return now.tv_sec;
}
