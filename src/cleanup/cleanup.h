/*-------------------------------------------------------------------------
 *
 * cleanup.h
 *	  Removing files and indexes that moves have left behind.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CLEANUP_H
#define IM_CLEANUP_H

#include "nodes/pg_list.h"

#include "cleanup/ledger.h"
#include "job.h"

/* A leftover of a dead job, as index_mover_cleanup() reports it */
typedef struct Leftover
{
	const char *kind;
	Oid			index_oid;		/* of an index; else 0 */
	int64		ledger_id;		/* of a file; an index may get another row */
	char	   *name;			/* index: qualified and quoted; file: path of
								 * the first segment */
	Oid			tablespace;		/* never 0 */
	int64		size;			/* bytes, all forks; -1 = no such file */
	int64		job;			/* of a file */
	TimestampTz keep_until;		/* a copy can go on from it; 0 = none can */
} Leftover;

extern bool leftovers_of_job(int64 job);
extern bool leftovers_remove(JobShared *shared, int max_wait_ms);
extern void leftovers_remove_of_table(const MoveContext *mc);
extern List *leftovers_tables(bool kept_too);
extern List *leftovers_list(void);

extern void leftover_file_drop_buffers(const RelFileLocator *locator);
extern void leftover_file_drop(const LedgerEntry *entry, bool file_exists);
extern void leftover_file_remove(const LedgerEntry *entry, bool paced,
								 void (*between_steps) (void));
extern void leftover_file_shorten(const RelFileLocator *locator, BlockNumber nblocks,
								  bool paced);
extern void leftover_files_remove(void (*between_steps) (void), bool kept_too);
extern bool leftover_file_is_kept(const LedgerEntry *entry);
extern LedgerEntry *leftover_kept_file(Oid relid, Oid tablespace);
extern int64 leftover_kept_bytes(const MoveItem *item);
extern bool leftover_file_is_dead(const LedgerEntry *entry);
extern Leftover *leftover_file_describe(const LedgerEntry *entry);

extern void leftover_indexes_remove(const MoveContext *mc, bool own, Oid only_heap,
									int max_wait_ms);
extern bool leftover_index_remove_unlisted(const MoveContext *mc, const LedgerEntry *listed,
										   int max_wait_ms);
extern bool leftover_index_is_ours(Oid index_oid);
extern bool leftover_index_is_dead(const LedgerEntry *entry);
extern Leftover *leftover_index_describe(const LedgerEntry *entry);
extern bool is_reindex_leftover_name(const char *name);

#endif							/* IM_CLEANUP_H */
