/*-------------------------------------------------------------------------
 *
 * test_points.h
 *	  Places where a test build can be made to wait, fail or die, and switches
 *	  that make a copy wrong on purpose.  Nothing of it is in a normal build.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_TEST_POINTS_H
#define IM_TEST_POINTS_H

#include "compat.h"

#ifdef INDEX_MOVER_TEST

extern void test_points_define(void);
extern void test_points_keep(void);
extern void test_point(const char *name);
extern void test_hang(Oid tablespace);
extern bool test_mutation(const char *name);
extern bool test_copies(const char *access_method);
extern int64 test_limit(const char *name, int64 usual);
extern void test_log_special(const RelFileLocator *locator, bool under_lock);
extern void test_fill_tail(const RelFileLocator *locator, BlockNumber nblocks);
extern bool test_file_system(Oid tablespace, int64 *device, int64 *free_bytes,
							 int64 *total_bytes);
extern int	test_damages;
extern int	test_seed;
extern char *test_block_devices;
extern char *test_mounts;

#define IM_KEEP_POINTS()	test_points_keep()
#define IM_POINT(name)		test_point(name)
#define IM_HANG(tablespace)	test_hang(tablespace)
#define IM_MUTATION(name)	test_mutation(name)
#define IM_LIMIT(name, usual)	test_limit(name, usual)
#define IM_COPIES(access_method)	test_copies(access_method)
#define IM_LOG_SPECIAL(locator, under_lock)	test_log_special(locator, under_lock)
#define IM_FILL_TAIL(locator, nblocks)	test_fill_tail(locator, nblocks)
#define IM_FILE_SYSTEM(tablespace, device, free, total) \
	test_file_system(tablespace, device, free, total)
#define IM_BLOCK_DEVICES	(*test_block_devices ? test_block_devices : "/sys/dev/block")
#define IM_MOUNTS		(*test_mounts ? test_mounts : "/proc/self/mountinfo")
/* a list that a test has made up says of which type a file system is */
#define IM_MAY_SHARE_SPACE(type)	(*test_mounts || FS_MAY_SHARE_SPACE(type))

#else

#define IM_KEEP_POINTS()	((void) 0)
#define IM_POINT(name)		((void) 0)
#define IM_HANG(tablespace)	((void) 0)
#define IM_MUTATION(name)	false
#define IM_LIMIT(name, usual)	(usual)
#define IM_COPIES(access_method)	false
#define IM_LOG_SPECIAL(locator, under_lock)	((void) 0)
#define IM_FILL_TAIL(locator, nblocks)	((void) 0)
#define IM_FILE_SYSTEM(tablespace, device, free, total)	false
#define IM_BLOCK_DEVICES	"/sys/dev/block"
#define IM_MOUNTS		"/proc/self/mountinfo"
#define IM_MAY_SHARE_SPACE(type)	FS_MAY_SHARE_SPACE(type)

#endif

#endif							/* IM_TEST_POINTS_H */
