/*-------------------------------------------------------------------------
 *
 * compressed_size.c
 *	  How much smaller a file system would make a relation, by a sample.
 *
 * A file system compresses 128 kB at a time (btrfs), or a record (ZFS), so single blocks
 * foretell nothing: the sample has runs of 16 neighboring blocks, one at random of each
 * part of the relation's main fork.  As on btrfs, whole sectors are stored, of
 * 4 kB, and a run that does not get smaller by a sector is stored as it is.  So is one whose
 * bytes are as if at random, without a try; also if it repeats them, which zstd would see.
 *
 * The functions that compress are those of the libraries that the server is linked to, found
 * by their names: a server can be built without them, and then the shares are not known.
 *
 * A run is read from the file, and over that its blocks that are in shared buffers, since
 * they may not be written yet.  So no damaged page raises an error, as ReadBuffer() would.
 *
 * Locks: AccessShareLock until the end of the call, which is not waited for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>

#include "access/relation.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "file_system.h"
#include "report/compressed_size.h"

#define RUN_BLOCKS		16
#define RUN_BYTES		(RUN_BLOCKS * BLCKSZ)
#define SECTOR			4096

/* Bits of information in a byte from which on btrfs does not try */
#define BITS_OF_RANDOM	(0.8 * 8)

/* The most that is stored is so many standard errors of the mean above the expectation, and */
#define STANDARD_ERRORS	3.0
/* so much for the metadata of the file system: up to 1.1 % were seen */
#define WITH_METADATA	1.02

typedef size_t (*ZstdFunction) (void *target, size_t room, const void *source, size_t size,
								int level);
typedef int (*Lz4Function) (const char *source, char *target, int size, int room);

/* The shares of the runs so far */
typedef struct Shares
{
	double		sum;
	double		squares;
} Shares;

/* Return the share that is stored of a run that was compressed to so many bytes. */
static double
stored_share(size_t bytes, size_t of)
{
	size_t		stored = TYPEALIGN(SECTOR, bytes);

	/*
	 * errors of lz4 are 0, of zstd larger than any size: the run is no
	 * smaller
	 */
	if (bytes == 0 || bytes > of || stored + SECTOR > of)
		return 1;
	return (double) stored / of;
}

/* Return whether bytes look random, by how often each of them is there. */
static bool
looks_random(const char *run, size_t size)
{
	uint32		counts[256] = {0};
	double		bits = 0;

	for (size_t i = 0; i < size; i++)
		counts[(uint8) run[i]]++;
	for (int byte = 0; byte < lengthof(counts); byte++)
	{
		double		share = (double) counts[byte] / size;

		if (share > 0)
			bits -= share * log2(share);
	}
	return bits >= BITS_OF_RANDOM;
}

static void
add_share(Shares *shares, double share)
{
	shares->sum += share;
	shares->squares += share * share;
}

/* Read a run of blocks.  Returns whether that was possible. */
static bool
read_run(Relation rel, BlockNumber first, int nblocks, char *run)
{
	char	   *path = relation_segment_path(&rel->rd_locator, MAIN_FORKNUM, first);
	int			fd = OpenTransientFile(path, O_RDONLY | PG_BINARY);
	off_t		offset = (off_t) (first % RELSEG_SIZE) * BLCKSZ;
	ssize_t		bytes;

	pfree(path);
	if (fd < 0)
		return false;
	bytes = pg_pread(fd, run, (size_t) nblocks * BLCKSZ, offset);
	CloseTransientFile(fd);
	for (int i = 0; i < nblocks; i++)
	{
		Buffer		buffer = PrefetchBuffer(rel, MAIN_FORKNUM, first + i).recent_buffer;
		bool		found = false;

		if (BufferIsValid(buffer))
			found = ReadRecentBuffer(rel->rd_locator, MAIN_FORKNUM, first + i, buffer);
		if (found)
			buffer_copy_page(buffer, run + i * BLCKSZ);
	}
	return bytes == (ssize_t) nblocks * BLCKSZ;
}

/* Set a share by the sums of a sample of so many runs out of all. */
static void
set_share(CompressedShare *share, const Shares *sums, int runs, BlockNumber all)
{
	double		mean = sums->sum / runs;
	double		variance = Max(sums->squares / runs - mean * mean, 0) / Max(runs - 1, 1);
	double		unread = 1 - (double) runs / all;
	double		error = STANDARD_ERRORS * sqrt(variance * unread);

	/*
	 * data that do not get smaller can be rare enough to be in no run: below
	 * 3 / runs of all, with a probability of 95 %
	 */
	error = Max(error, 3.0 / runs * (1 - mean) * unread);
	share->expected = mean;
	share->at_most = Min(WITH_METADATA * (mean + error), 1);
}

/*
 * Sample an open relation.  Returns false, and changes nothing, if it has no blocks, or a
 * run could not be read.
 */
static bool
sample(Relation rel, int runs, int zstd_level, CompressedShare *zstd, CompressedShare *lz4)
{
	ZstdFunction zstd_compress = (ZstdFunction) dlsym(RTLD_DEFAULT, "ZSTD_compress");
	Lz4Function lz4_compress = (Lz4Function) dlsym(RTLD_DEFAULT, "LZ4_compress_default");
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	BlockNumber all = Max(nblocks / RUN_BLOCKS, 1);
	int			in_run = Min(nblocks, RUN_BLOCKS);
	size_t		bytes = (size_t) in_run * BLCKSZ;
	char	   *run = palloc_aligned(RUN_BYTES, PG_IO_ALIGN_SIZE, 0);
	char	   *target = palloc(RUN_BYTES);
	Shares		of_zstd = {0};
	Shares		of_lz4 = {0};
	pg_prng_state state;

	if (nblocks == 0)
		return false;
	/* as long as the file does not change, each plan has to find the same */
	pg_prng_seed(&state, rel->rd_locator.relNumber);
	runs = Min(all, (BlockNumber) runs);
	for (int i = 0; i < runs; i++)
	{
		uint64		from = (uint64) all * i / runs;
		uint64		to = (uint64) all * (i + 1) / runs;
		BlockNumber at = pg_prng_uint64_range(&state, from, to - 1);

		CHECK_FOR_INTERRUPTS();
		if (!read_run(rel, at * RUN_BLOCKS, in_run, run))
			return false;
		if (looks_random(run, bytes))
		{
			add_share(&of_zstd, 1);
			add_share(&of_lz4, 1);
			continue;
		}
		if (zstd_compress != NULL)
			add_share(&of_zstd, stored_share(zstd_compress(target, bytes, run, bytes, zstd_level),
											 bytes));
		if (lz4_compress != NULL)
			add_share(&of_lz4, stored_share(lz4_compress(run, target, bytes, bytes), bytes));
	}
	if (zstd_compress != NULL)
		set_share(zstd, &of_zstd, runs, all);
	if (lz4_compress != NULL)
		set_share(lz4, &of_lz4, runs, all);
	return true;
}

/*
 * Estimate which share of the bytes of a relation a file system stores that compresses with
 * zstd at this level, or with lz4; NaN if the server has no such library.  Reads at most so
 * many runs.  Returns false if that is not possible: the relation is locked exclusively, was
 * dropped, is temporary, or has no blocks.
 */
bool
compressed_size_sample(Oid relation, int runs, int zstd_level,
					   CompressedShare *zstd, CompressedShare *lz4)
{
	Relation	rel;
	bool		done = false;

	zstd->expected = zstd->at_most = lz4->expected = lz4->at_most = NAN;
	if (!ConditionalLockRelationOid(relation, AccessShareLock))
		return false;
	rel = try_relation_open(relation, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(relation, AccessShareLock);
		return false;
	}
	if (RELKIND_HAS_STORAGE(rel->rd_rel->relkind) && !RelationUsesLocalBuffers(rel))
	{
		/* a plan samples many relations */
		MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "index_mover sample",
													  ALLOCSET_DEFAULT_SIZES);
		MemoryContext old = MemoryContextSwitchTo(context);

		done = sample(rel, runs, zstd_level, zstd, lz4);
		MemoryContextSwitchTo(old);
		MemoryContextDelete(context);
	}
	relation_close(rel, AccessShareLock);
	return done;
}
