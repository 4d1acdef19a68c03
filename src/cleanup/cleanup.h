/*-------------------------------------------------------------------------
 *
 * cleanup.h
 *	  The ledger, and removing files and indexes that moves have left behind.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_CLEANUP_H
#define IM_CLEANUP_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

#include "job.h"

/* ledger.c: files and indexes of moves that have no owner yet or any more */
typedef enum LedgerKind
{
	LEDGER_NEW_FILE = 'n',		/* file of a copy that is not swapped in yet */
	LEDGER_OLD_FILE = 'o',		/* file that a swap has put out of use */
	LEDGER_INDEX = 'i',			/* index made by a rebuild: old and new */
	LEDGER_DUPLICATE = 'd',		/* the same, after DDL has made both valid:
								 * the new one is out of use and to be removed */
} LedgerKind;

typedef struct LedgerEntry
{
	int64		id;
	char		kind;			/* LedgerKind */
	Oid			tablespace;		/* files */
	RelFileNumber relfilenumber;	/* files */
	Oid			heap_oid;
	Oid			relid;			/* the relation that is (or was) moved */
	Oid			new_index_oid;	/* LEDGER_INDEX: the _ccnew entry */
	int64		job;
	int			pid;			/* of the runner that made it */
	TimestampTz made_at;
	NameData	new_name;		/* of new_index, "" for files */
	Oid			database;		/* where the row was written */

	/*
	 * a new file from which a copy can go on has these, see
	 * copy/copy_resume.c
	 */
	Oid			from_tablespace;	/* the file that is copied */
	RelFileNumber from_relfilenumber;
	int64		copied_blocks;	/* durable; 0 = it cannot go on */
	XLogRecPtr	changes_from;	/* later changes are copied again */
	int64		timeline;		/* of changes_from */
	TimestampTz keep_until;
} LedgerEntry;

extern int64 ledger_new_id(void);
extern void ledger_insert(LedgerEntry *entry);
extern void ledger_update(LedgerEntry *entry);
extern void ledger_delete(int64 id);
extern bool ledger_exists(int64 id);
extern List *ledger_read(void);
extern List *ledger_read_within(int max_wait_ms);
extern List *ledger_read_all(List **foreign);
extern int64 ledger_adopt(const char *system);

extern bool ledger_row_claim(int64 id, bool wait);
extern bool ledger_row_claim_again(int64 id);
extern bool ledger_row_is_claimed(int64 id);
extern void ledger_row_release(int64 id);
#ifdef USE_ASSERT_CHECKING
extern bool ledger_row_is_ours(int64 id);
#endif

typedef enum LeftoverKind
{
	LEFTOVER_UNFINISHED_COPY,	/* a file that a copy has not finished */
	LEFTOVER_OLD_FILE,
	LEFTOVER_INVALID_INDEX,
	LEFTOVER_DUPLICATE_INDEX,
} LeftoverKind;

/* A leftover of a dead job, as index_mover_cleanup() reports it */
typedef struct Leftover
{
	LeftoverKind kind;
	Oid			index_oid;		/* of an index; else 0 */
	int64		ledger_id;		/* of a file; an index may get another row */
	char	   *name;			/* index: qualified and quoted; file: path of
								 * the first segment */
	Oid			tablespace;		/* never 0 */
	int64		size;			/* bytes, all forks; -1 = no such file */
	int64		job;			/* of a file */
	TimestampTz keep_until;		/* a copy can go on from it; 0 = none can */
} Leftover;

extern bool leftovers_of_runner(int64 job);
extern void leftovers_remove(JobShared *shared, int max_wait_ms);
extern List *leftovers_tables(bool kept_too);
extern List *leftovers_list(const List *rows);

extern void leftover_file_drop_buffers(const RelFileLocator *locator);
extern void leftover_file_drop(const LedgerEntry *entry, bool file_exists);
extern void leftover_file_remove(const LedgerEntry *entry, bool paced,
								 void (*between_steps) (void *arg), void *arg);
extern void leftover_file_shorten(const RelFileLocator *locator, BlockNumber nblocks,
								  bool paced);
extern void leftover_files_remove(bool kept_too);
extern void leftover_kept_files_remove(int64 job, Oid heap_oid, int max_wait_ms);
extern bool leftover_file_is_kept(const LedgerEntry *entry);
extern LedgerEntry *leftover_kept_file(Oid relid, Oid tablespace);
extern int64 leftover_kept_bytes(const MoveItem *item);
extern bool leftover_file_is_dead(const LedgerEntry *entry, const List *rows);
extern Leftover *leftover_file_describe(const LedgerEntry *entry);

extern void leftover_indexes_remove(const MoveContext *mc, bool own, const List *tables,
									int max_wait_ms);
extern bool leftover_index_remove(LedgerEntry *entry, const MoveContext *mc, bool own,
								  int max_wait_ms);
extern bool leftover_index_is_ours(Oid index_oid);
extern bool leftover_index_is_dead(const LedgerEntry *entry);
extern Leftover *leftover_index_describe(LedgerEntry *entry);
extern bool is_reindex_leftover_name(const char *name);

#endif							/* IM_CLEANUP_H */
