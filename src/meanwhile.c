/*-------------------------------------------------------------------------
 *
 * meanwhile.c
 *	  What has become of an index while a move of it failed.
 *
 * A rebuild gives way to whoever wants to lock the table exclusively: it ends
 * with an error, and only then the other goes on.  The error tells nothing of
 * what he has done, so we look at the catalogs before and after.
 *
 * Assumption: most of those who were waiting need little time once they may go
 * on, so a look for a second is enough.  Who takes longer is not waited for: the
 * row then says that he hasn't finished.
 *
 * No locks: everything comes from the system caches.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/tablespace.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "meanwhile.h"

/* How often, and how far apart, to look what the one has done that we let pass. */
#define LOOKS			20
#define LOOK_MS			50

static uint32 wait_event = 0;

/* Fill in what the catalogs say now.  Runs in a transaction. */
static void
look_at(IndexBefore *index, Oid index_oid)
{
	HeapTuple	tuple;
	Datum		options;
	bool		isnull;

	memset(index, 0, sizeof(IndexBefore));
	index->exists = index_facts(index_oid, &index->facts);
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index_oid));
	if (!HeapTupleIsValid(tuple))
		return;
	options = SysCacheGetAttr(RELOID, tuple, Anum_pg_class_reloptions, &isnull);
	if (!isnull)
	{
		struct varlena *value = PG_DETOAST_DATUM(options);

		index->options = hash_bytes((unsigned char *) VARDATA(value),
									VARSIZE(value) - VARHDRSZ);
	}
	ReleaseSysCache(tuple);
}

void
meanwhile_begin(IndexBefore *before, Oid index_oid)
{
	StartTransactionCommand();
	look_at(before, index_oid);
	CommitTransactionCommand();
}

/* The row of an index that is gone.  Runs in a transaction. */
static void
say_dropped(MoveItem *item, const IndexFacts *facts)
{
	Oid			namesake = get_relname_relid(NameStr(facts->index_name), facts->schema_oid);

	if (get_rel_name(item->heap_oid) == NULL)
		item_skip(item, ERRCODE_UNDEFINED_OBJECT,
				  "The index was dropped with its table while it was being moved.");
	else if (OidIsValid(namesake))
		item_skip(item, ERRCODE_UNDEFINED_OBJECT,
				  "The index was dropped while it was being moved; another one has its name now.");
	else
		item_skip(item, ERRCODE_UNDEFINED_OBJECT,
				  "The index was dropped while it was being moved.");
}

/*
 * Add to the row what is different now; true if there was something.  Runs in a
 * transaction.
 */
static bool
say_changes(MoveItem *item, const IndexBefore *before, const IndexBefore *now)
{
	bool		found = false;

	if (strcmp(NameStr(before->facts.index_name), NameStr(now->facts.index_name)) != 0 ||
		strcmp(NameStr(before->facts.schema_name), NameStr(now->facts.schema_name)) != 0)
	{
		item_say(item, "Meanwhile the index was renamed to %s.",
				 quote_qualified_identifier(NameStr(now->facts.schema_name),
											NameStr(now->facts.index_name)));
		found = true;
	}
	if (before->facts.tablespace != now->facts.tablespace)
	{
		const char *name = get_tablespace_name(now->facts.tablespace);

		item_say(item, "Meanwhile another command has moved the index to tablespace \"%s\".",
				 name ? name : "?");
		found = true;
	}
	else if (before->facts.relfilenumber != now->facts.relfilenumber)
	{
		item_say(item, "Meanwhile another command has made the index anew, as REINDEX, TRUNCATE, CLUSTER, VACUUM FULL and some forms of ALTER TABLE do.");
		found = true;
	}
	if (before->options != now->options)
	{
		item_say(item, "Meanwhile the storage parameters of the index were changed.");
		found = true;
	}
	return found;
}

void
meanwhile_tell(MoveItem *item, const IndexBefore *before)
{
	bool		gave_way = strcmp(item->sqlstate, "55006") == 0;
	int			looks = gave_way || strcmp(item->sqlstate, "40P01") == 0 ? LOOKS : 1;
	bool		found = false;

	if (item->status != STATUS_FAILED || !before->exists)
		return;
	while (!found && looks-- > 0)
	{
		IndexBefore now;

		StartTransactionCommand();
		look_at(&now, item->index_oid);
		if (!now.exists)
		{
			say_dropped(item, &before->facts);
			found = true;
		}
		/* what CONCURRENTLY drops is invalid, and renamed, shortly before */
		else if (now.facts.valid || looks == 0)
			found = say_changes(item, before, &now);
		CommitTransactionCommand();
		if (!found && looks > 0)
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 LOOK_MS, IM_WAIT_EVENT(wait_event, "IndexMoverMeanwhile"));
			ResetLatch(MyLatch);
		}
	}
	if (gave_way && !found)
		item_say(item, "That process has not done yet what it wants to do, or it does not change the index.");
}
