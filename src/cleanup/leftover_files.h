/*-------------------------------------------------------------------------
 *
 * leftover_files.h
 *	  Removing relation files that only the ledger knows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LEFTOVER_FILES_H
#define IM_LEFTOVER_FILES_H

#include "cleanup/ledger.h"

/* What index_mover_cleanup() tells about one of them. */
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
extern void leftover_file_remove(const LedgerEntry *entry,
								 void (*rest) (int ms));
extern void leftover_files_remove(void (*rest) (int ms));
extern List *leftover_files_list(void);

#endif							/* IM_LEFTOVER_FILES_H */
