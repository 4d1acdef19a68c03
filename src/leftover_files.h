/*-------------------------------------------------------------------------
 *
 * leftover_files.h
 *	  Removing relation files that only the ledger knows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_LEFTOVER_FILES_H
#define IM_LEFTOVER_FILES_H

#include "ledger.h"

typedef struct FileLeftover
{
	LedgerEntry entry;
	int64		size;			/* bytes of all forks; -1 = no such file */
	const char *action;			/* what was, or would be, done */
	bool		in_use;			/* by a live worker: left alone */
} FileLeftover;

extern void ledger_row_claim(int64 id);
extern void ledger_row_release(int64 id);
extern void leftover_file_drop(const LedgerEntry *entry, bool file_exists);
extern void leftover_file_remove(const LedgerEntry *entry,
								 void (*rest) (int ms));
extern List *leftover_files_cleanup(bool dry_run);

#endif							/* IM_LEFTOVER_FILES_H */
