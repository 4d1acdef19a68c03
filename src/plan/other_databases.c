/*-------------------------------------------------------------------------
 *
 * other_databases.c
 *	  What a tablespace holds that sessions of other databases must move.
 *
 * Who empties a tablespace wants to know that it will not be empty.  The files
 * there don't tell an index from a table, so the pg_class of each database that
 * has files in the tablespace is read, block by block, as CREATE DATABASE reads
 * that of its template (ScanSourceDatabasePgClass in dbcommands.c).
 *
 * Locks: the database, as a session of it would hold it, so that it is neither
 * dropped nor moved; then AccessShareLock on its pg_class, so that VACUUM
 * neither truncates nor rewrites it; both until it is read.  Neither is waited
 * for: what can't be had at once makes the number a lower bound.
 *
 * The tricky point: the horizon of other databases' VACUUM does not know our
 * snapshot, so row versions that are dead for everyone there may go while we
 * read.  Live ones stay, and they are what is counted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "commands/dbcommands.h"
#include "commands/tablespace.h"
#include "common/relpath.h"
#include "compat.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "plan/other_databases.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/smgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/relmapper.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/*
 * Is this an index that a move of the tablespace would move, in its database?
 */
static bool
counts(Form_pg_class form, Oid reltablespace)
{
	return form->relkind == RELKIND_INDEX &&
		form->reltablespace == reltablespace &&
		form->relpersistence != RELPERSISTENCE_TEMP &&
		!form->relisshared &&
		form->relnamespace != PG_CATALOG_NAMESPACE &&
		form->relnamespace != PG_TOAST_NAMESPACE;
}

/*
 * Count in one block of pg_class, which the caller has share-locked.
 */
static int
count_in_page(Buffer buf, Oid reltablespace, Snapshot snapshot)
{
	Page		page = BufferGetPage(buf);
	OffsetNumber maxoff;
	OffsetNumber offnum;
	int			count = 0;

	if (PageIsNew(page) || PageIsEmpty(page))
		return 0;

	maxoff = PageGetMaxOffsetNumber(page);
	for (offnum = FirstOffsetNumber; offnum <= maxoff;
		 offnum = OffsetNumberNext(offnum))
	{
		ItemId		itemid = PageGetItemId(page, offnum);
		HeapTupleData tuple;

		if (!ItemIdIsNormal(itemid))
			continue;
		ItemPointerSet(&tuple.t_self, BufferGetBlockNumber(buf), offnum);
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, itemid);
		tuple.t_len = ItemIdGetLength(itemid);
		tuple.t_tableOid = RelationRelationId;

		if (counts((Form_pg_class) GETSTRUCT(&tuple), reltablespace) &&
			HeapTupleSatisfiesVisibility(&tuple, snapshot, buf))
			count++;
	}

	return count;
}

/*
 * Count the indexes that a database has in a tablespace.  The caller holds the
 * locks described in the file head.
 */
static int
count_in_database(Oid database, Oid default_tablespace, Oid tablespace)
{
	Oid			reltablespace = tablespace == default_tablespace ?
		InvalidOid : tablespace;
	char	   *path = GetDatabasePath(database, default_tablespace);
	RelFileLocator locator;
	BlockNumber nblocks;
	BlockNumber block;
	BufferAccessStrategy strategy;
	Snapshot	snapshot;
	int			count = 0;

	locator = make_locator(default_tablespace, database,
						   RelationMapOidToFilenumberForDatabase(path, RelationRelationId));
	pfree(path);

	nblocks = smgrnblocks(smgropen(locator, INVALID_PROC_NUMBER), MAIN_FORKNUM);
	strategy = GetAccessStrategy(BAS_BULKREAD);
	snapshot = RegisterSnapshot(GetLatestSnapshot());

	for (block = 0; block < nblocks; block++)
	{
		Buffer		buf;

		CHECK_FOR_INTERRUPTS();
		buf = ReadBufferWithoutRelcache(locator, MAIN_FORKNUM, block,
										RBM_NORMAL, strategy, true);
		LockBuffer(buf, BUFFER_LOCK_SHARE);
		count += count_in_page(buf, reltablespace, snapshot);
		UnlockReleaseBuffer(buf);
	}

	UnregisterSnapshot(snapshot);
	FreeAccessStrategy(strategy);
	smgrclose(smgropen(locator, INVALID_PROC_NUMBER));

	return count;
}

/*
 * Lock the database and its pg_class, and count; -1 if a lock is not to be had
 * or the database is gone.
 */
static int
lock_and_count(Oid database, Oid tablespace)
{
	LOCKTAG		database_tag;
	LOCKTAG		class_tag;
	HeapTuple	tuple;
	int			count = -1;

	SET_LOCKTAG_OBJECT(database_tag, InvalidOid, DatabaseRelationId, database, 0);
	SET_LOCKTAG_RELATION(class_tag, database, RelationRelationId);

	if (LockAcquire(&database_tag, RowExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return -1;
	if (LockAcquire(&class_tag, AccessShareLock, false, true) != LOCKACQUIRE_NOT_AVAIL)
	{
		/* only now its place is certain */
		AcceptInvalidationMessages();
		tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
		if (HeapTupleIsValid(tuple))
		{
			Oid			default_tablespace = ((Form_pg_database) GETSTRUCT(tuple))->dattablespace;

			ReleaseSysCache(tuple);
			count = count_in_database(database, default_tablespace, tablespace);
		}
		LockRelease(&class_tag, AccessShareLock, false);
	}
	LockRelease(&database_tag, RowExclusiveLock, false);

	return count;
}

/*
 * Does the database have a folder in the tablespace?
 */
static bool
database_uses_tablespace(Oid database, Oid tablespace)
{
	char	   *path = GetDatabasePath(database, tablespace);
	struct stat st;
	bool		result = stat(path, &st) == 0;

	pfree(path);
	return result;
}

/*
 * Tell how many indexes of other databases are in the tablespace.
 */
void
notice_other_databases(Oid tablespace)
{
	Relation	pg_database;
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *databases = NIL;
	ListCell   *lc;
	StringInfoData names;
	int64		total = 0;
	int			ndatabases = 0;
	bool		complete = true;
	char	   *tablespace_name = get_tablespace_name(tablespace);

	pg_database = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(pg_database, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		Oid			database = form->oid;

		/* -2: a DROP DATABASE was interrupted, and files may be missing */
		if (database != MyDatabaseId && form->datconnlimit != -2 &&
			database_uses_tablespace(database, tablespace))
			databases = lappend_oid(databases, database);
	}
	systable_endscan(scan);
	table_close(pg_database, AccessShareLock);

	initStringInfo(&names);
	foreach(lc, databases)
	{
		int			count = lock_and_count(lfirst_oid(lc), tablespace);
		char	   *name;

		if (count < 0)
			complete = false;
		if (count <= 0)
			continue;
		total += count;
		ndatabases++;
		name = get_database_name(lfirst_oid(lc));
		appendStringInfo(&names, "%s\"%s\"", ndatabases > 1 ? ", " : "",
						 name ? name : "?");
	}

	if (total > 0)
		ereport(NOTICE,
				(errmsg("tablespace \"%s\" also holds indexes of other databases: %s%lld",
						tablespace_name ? tablespace_name : "?",
						complete ? "" : "at least ", (long long) total),
				 errdetail("They are in %s, and only a session there can move them.",
						   names.data)));
	else if (!complete)
		ereport(NOTICE,
				(errmsg("tablespace \"%s\" may hold indexes of other databases, which could not be counted",
						tablespace_name ? tablespace_name : "?")));
	pfree(names.data);
	list_free(databases);
}
