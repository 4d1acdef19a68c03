/*-------------------------------------------------------------------------
 *
 * cleanup.h
 *	  Removing what moves have left behind.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CLEANUP_H
#define IM_CLEANUP_H

#include "nodes/pg_list.h"

#include "cleanup/ledger.h"
#include "job.h"
#include "test_points.h"

extern bool leftovers_of_job(int64 job);
extern bool leftovers_remove(JobShared *shared, int max_wait_ms);
extern void leftovers_remove_of_table(Oid heap_oid, int max_wait_ms);

/* a file, as index_mover_cleanup() reports it */
typedef struct LeftoverFile
{
	int64		ledger_id;
	LedgerKind	kind;
	Oid			heap_oid;		/* the table of the index it was for */
	char	   *name;			/* path of the first segment */
	Oid			tablespace;
	int64		size;			/* bytes of all forks; -1 = no such file */
} LeftoverFile;

extern void ledger_row_claim(int64 id);
extern bool ledger_row_claim_again(int64 id);
extern void ledger_row_release(int64 id);
extern void leftover_file_drop_buffers(const RelFileLocator *locator);
extern void leftover_file_drop(const LedgerEntry *entry, bool file_exists);
extern void leftover_file_remove(const LedgerEntry *entry, bool paced,
								 void (*between_steps) (void));
extern void leftover_files_remove(void (*between_steps) (void));
extern List *leftover_files_list(void);

/* an index, as index_mover_cleanup() reports it */
typedef struct LeftoverIndex
{
	Oid			index_oid;
	bool		duplicate;		/* has been made valid by DDL since */
	char	   *name;			/* qualified and quoted */
	Oid			tablespace;		/* never 0 */
	int64		size;			/* bytes, all forks */
} LeftoverIndex;

extern int	leftover_indexes_remove(Oid only_heap, int64 job, int max_wait_ms,
									bool show);
extern bool leftover_index_remove_unlisted(const LedgerEntry *entry, int max_wait_ms);
extern bool leftover_index_is_ours(Oid index_oid);
extern List *leftover_indexes_list(void);
extern List *leftover_index_tables(void);
extern bool is_reindex_leftover_name(const char *name);
extern List *leftovers_tables(void);

#endif							/* IM_CLEANUP_H */
