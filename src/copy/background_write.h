/*-------------------------------------------------------------------------
 *
 * background_write.h
 *	  One write past the page cache that goes on while its caller does.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_BACKGROUND_WRITE_H
#define IM_BACKGROUND_WRITE_H

typedef struct BackgroundWrite BackgroundWrite;

extern BackgroundWrite *background_write_create(void);
extern void background_write_free(BackgroundWrite *write);

extern bool background_write_start(BackgroundWrite *write, int fd,
								   const char *data, size_t size, off_t offset);
extern bool background_write_finish(BackgroundWrite *write);

#endif							/* IM_BACKGROUND_WRITE_H */
