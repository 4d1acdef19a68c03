/*-------------------------------------------------------------------------
 *
 * background_write.h
 *	  One write past the page cache that goes on while its caller does.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_BACKGROUND_WRITE_H
#define IM_BACKGROUND_WRITE_H

extern bool background_write_start(int fd, const char *data, size_t size, off_t offset);
extern bool background_write_finish(void);

#endif							/* IM_BACKGROUND_WRITE_H */
