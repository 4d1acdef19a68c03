/*-------------------------------------------------------------------------
 *
 * file_compression.h
 *	  Whether the file system of a tablespace compresses.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_FILE_COMPRESSION_H
#define IM_FILE_COMPRESSION_H

/* How new files of this database are compressed in a tablespace */
typedef struct FileCompression
{
	char		file_system[32];	/* its type, as in mount(8); "" = not
									 * known */
	char		algorithm[32];	/* as the file system writes it: "zstd:3";
								 * "none"; "" = not known */
	int			zstd_level;		/* 0 = not by zstd */
	bool		steady;			/* for good, also after data that does not get
								 * smaller; if not, it cannot be foretold what
								 * is stored */
} FileCompression;

extern void file_compression(Oid tablespace, FileCompression *result);
extern bool file_compression_is_steady(Oid tablespace);
extern bool file_compression_is_on(Oid tablespace);

#endif							/* IM_FILE_COMPRESSION_H */
