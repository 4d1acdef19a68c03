/*-------------------------------------------------------------------------
 *
 * compressed_size.h
 *	  How much smaller a file system would make a relation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_COMPRESSED_SIZE_H
#define IM_COMPRESSED_SIZE_H

/* Runs of neighboring blocks in a sample, at most */
#define COMPRESSED_RUNS		200

/* The share of its bytes that is stored of a relation; NaN = not known */
typedef struct CompressedShare
{
	double		expected;
	double		at_most;
} CompressedShare;

extern bool compressed_size_sample(Oid relation, int runs, int zstd_level,
								   CompressedShare *zstd, CompressedShare *lz4);

#endif							/* IM_COMPRESSED_SIZE_H */
