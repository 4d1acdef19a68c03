/*-------------------------------------------------------------------------
 *
 * background_write.h
 *	  One write past the page cache that goes on while its caller does.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_BACKGROUND_WRITE_H
#define IM_BACKGROUND_WRITE_H

#if defined(__linux__)
extern bool background_write_start(int fd, const char *data, size_t size, off_t offset);
extern bool background_write_finish(void);
#else
#define background_write_start(fd, data, size, offset)	false
#define background_write_finish()	false
#endif

#endif							/* IM_BACKGROUND_WRITE_H */
