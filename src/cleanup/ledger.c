/*-------------------------------------------------------------------------
 *
 * ledger.c
 *	  The ledger: files and indexes of moves that have no owner yet or any more.
 *
 * Rows are written with the catalog's own routines, not through SPI.  One of
 * them is written from an object access hook in the middle of index_create(),
 * where the command counter must not be advanced and no user-defined code may
 * run.  Nor may the current user's privileges matter.
 *
 * A row carries the system identifier and the database's OID.  ledger_read()
 * passes over a row that came here by pg_upgrade, because it names files of
 * another cluster.  A row that came here with the database, by CREATE
 * DATABASE .. TEMPLATE, counts: strategy file_copy copies the file, too, under
 * the same number, and both strategies copy an index entry under the same OID.
 * A physical clone has the same identifier and, of each row, the file; rows
 * written later do not get there (own_tables.c).
 *
 * Locks: RowExclusiveLock on the ledger until the end of the transaction for
 * writes, AccessShareLock during a read.  A worker that may still work on a
 * row's file holds a session lock on the row's number.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/pg_lsn.h"
#include "utils/rel.h"

#include "cleanup/ledger.h"
#include "own_tables.h"

#define LEDGER_TABLE	"ledger"
#define LEDGER_PKEY		"ledger_pkey"
#define LEDGER_SEQUENCE	"ledger_seq"

/* How often to retry for a row that others may only be reading */
#define CLAIM_TRIES			50
#define CLAIM_REST_MS		10

/* columns of index_mover.ledger, as in the SQL script */
enum
{
	Anum_id = 1,
	Anum_system_identifier,
	Anum_database,
	Anum_kind,
	Anum_tablespace,
	Anum_relfilenumber,
	Anum_table_oid,
	Anum_relation,
	Anum_new_index,
	Anum_job,
	Anum_pid,
	Anum_made_at,
	Anum_new_name,
	Anum_from_tablespace,
	Anum_from_relfilenumber,
	Anum_copied_blocks,
	Anum_changes_from,
	Anum_timeline,
	Anum_keep_until,
	Natts_ledger = Anum_keep_until
};

static char *
this_system(void)
{
	return psprintf(UINT64_FORMAT, GetSystemIdentifier());
}

/* Begin a scan for one row.  The caller ends it and closes the table. */
static SysScanDesc
begin_scan_by_id(Relation rel, int64 id, ScanKey key)
{
	ScanKeyInit(key, Anum_id, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(id));
	return systable_beginscan(rel, extension_relation(LEDGER_PKEY), true,
							  NULL, 1, key);
}

/*
 * Draw the number of a row that will be inserted later.  The loop is for
 * logical replication of sequences, which may have set ours back.
 */
int64
ledger_new_id(void)
{
	int64		result;

	do
		result = extension_nextval(LEDGER_SEQUENCE);
	while (ledger_exists(result));
	return result;
}

/*
 * Insert a row in the current transaction.  Sets entry->made_at, and
 * entry->id unless that is a number drawn before.
 */
void
ledger_insert(LedgerEntry *entry)
{
	Relation	rel = extension_open(LEDGER_TABLE);
	Datum		values[Natts_ledger];
	bool		nulls[Natts_ledger] = {0};
	HeapTuple	tuple;

	Assert(IsTransactionState());
	if (entry->id == 0)
		entry->id = ledger_new_id();
	entry->made_at = GetCurrentTimestamp();

	values[Anum_id - 1] = Int64GetDatum(entry->id);
	values[Anum_system_identifier - 1] = CStringGetTextDatum(this_system());
	values[Anum_database - 1] = ObjectIdGetDatum(MyDatabaseId);
	values[Anum_kind - 1] = CharGetDatum((char) entry->kind);

	/* as in pg_class: the file moves with the database's default */
	values[Anum_tablespace - 1] =
		ObjectIdGetDatum(entry->tablespace == MyDatabaseTableSpace ? InvalidOid : entry->tablespace);
	values[Anum_relfilenumber - 1] = ObjectIdGetDatum(entry->relfilenumber);
	values[Anum_table_oid - 1] = ObjectIdGetDatum(entry->heap_oid);
	values[Anum_relation - 1] = ObjectIdGetDatum(entry->relid);
	values[Anum_new_index - 1] = ObjectIdGetDatum(entry->new_index_oid);
	values[Anum_job - 1] = Int64GetDatum(entry->job);
	values[Anum_pid - 1] = Int32GetDatum(entry->pid);
	values[Anum_made_at - 1] = TimestampTzGetDatum(entry->made_at);
	values[Anum_new_name - 1] = NameGetDatum(&entry->new_name);
	values[Anum_from_tablespace - 1] = ObjectIdGetDatum(entry->from_tablespace);
	values[Anum_from_relfilenumber - 1] = ObjectIdGetDatum(entry->from_relfilenumber);
	values[Anum_copied_blocks - 1] = Int64GetDatum(entry->copied_blocks);
	values[Anum_changes_from - 1] = LSNGetDatum(entry->changes_from);
	values[Anum_timeline - 1] = Int64GetDatum(entry->timeline);
	values[Anum_keep_until - 1] = TimestampTzGetDatum(entry->keep_until);

	tuple = extension_form(RelationGetDescr(rel), Natts_ledger, values, nulls);
	extension_insert(rel, tuple);
	heap_freetuple(tuple);

	extension_close(rel);
}

/*
 * Delete a row in the current transaction.  It is no error if another
 * process, having finished the work, has deleted the row or is just doing so.
 */
void
ledger_delete(int64 id)
{
	Relation	rel = extension_open(LEDGER_TABLE);
	ScanKeyData key;
	SysScanDesc scan = begin_scan_by_id(rel, id, &key);
	HeapTuple	tuple = systable_getnext(scan);

	if (HeapTupleIsValid(tuple))
		(void) extension_delete(rel, tuple);

	systable_endscan(scan);
	extension_close(rel);
}

/* Replace a row by one with its number, in the current transaction. */
void
ledger_update(LedgerEntry *entry)
{
	ledger_delete(entry->id);
	ledger_insert(entry);
}

/* Return whether the row still exists. */
bool
ledger_exists(int64 id)
{
	Relation	rel = table_open(extension_relation(LEDGER_TABLE), AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan = begin_scan_by_id(rel, id, &key);
	bool		result = HeapTupleIsValid(systable_getnext(scan));

	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/* Return whether this database was made, or copied elsewhere, after a time. */
static bool
database_is_younger(TimestampTz when)
{
	char	   *path = psprintf("%s/PG_VERSION", DatabasePath);
	struct stat st;

	/* a file's time may be in whole seconds */
	return stat(path, &st) == 0 && when < time_t_to_timestamptz(st.st_mtime + 1);
}

/*
 * Return, in a transaction, all rows of this cluster that were written in this
 * database, or came here with it.
 */
List *
ledger_read(void)
{
	Relation	rel = table_open(extension_relation(LEDGER_TABLE), AccessShareLock);
	TupleDesc	desc = RelationGetDescr(rel);
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *result = NIL;
	char	   *system = this_system();

	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[Natts_ledger];
		bool		nulls[Natts_ledger];
		LedgerEntry *entry;

		extension_deform(tuple, desc, Natts_ledger, values, nulls);

		if (strcmp(TextDatumGetCString(values[Anum_system_identifier - 1]), system) != 0 ||
			(DatumGetObjectId(values[Anum_database - 1]) != MyDatabaseId &&
			 !database_is_younger(DatumGetTimestampTz(values[Anum_made_at - 1]))))
			continue;

		entry = palloc0(sizeof(LedgerEntry));
		entry->id = DatumGetInt64(values[Anum_id - 1]);
		entry->kind = (LedgerKind) DatumGetChar(values[Anum_kind - 1]);
		entry->tablespace = DatumGetObjectId(values[Anum_tablespace - 1]);
		if (!OidIsValid(entry->tablespace))
			entry->tablespace = MyDatabaseTableSpace;
		entry->relfilenumber = DatumGetObjectId(values[Anum_relfilenumber - 1]);
		entry->heap_oid = DatumGetObjectId(values[Anum_table_oid - 1]);
		entry->relid = DatumGetObjectId(values[Anum_relation - 1]);
		entry->new_index_oid = DatumGetObjectId(values[Anum_new_index - 1]);
		entry->job = DatumGetInt64(values[Anum_job - 1]);
		entry->pid = DatumGetInt32(values[Anum_pid - 1]);
		entry->made_at = DatumGetTimestampTz(values[Anum_made_at - 1]);
		entry->new_name = *DatumGetName(values[Anum_new_name - 1]);
		entry->database = DatumGetObjectId(values[Anum_database - 1]);
		entry->from_tablespace = DatumGetObjectId(values[Anum_from_tablespace - 1]);
		entry->from_relfilenumber = DatumGetObjectId(values[Anum_from_relfilenumber - 1]);
		entry->copied_blocks = DatumGetInt64(values[Anum_copied_blocks - 1]);
		entry->changes_from = DatumGetLSN(values[Anum_changes_from - 1]);
		entry->timeline = DatumGetInt64(values[Anum_timeline - 1]);
		entry->keep_until = DatumGetTimestampTz(values[Anum_keep_until - 1]);
		result = lappend(result, entry);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	return result;
}

/* The same in a transaction of its own. */
List *
ledger_read_apart(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *result;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	result = ledger_read();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

/* ----------------------------------------------------------------
 *	Locks on rows
 * ----------------------------------------------------------------
 */

/*
 * Set the lock tag of a ledger row: an object of the ledger table.  Outside
 * of a transaction, and after DROP EXTENSION, use the table's OID as last seen,
 * when the lock was taken.
 */
static void
set_row_tag(LOCKTAG *tag, int64 id)
{
	static Oid	ledger = InvalidOid;
	Oid			found = IsTransactionState() ?
		extension_find_relation("ledger") : InvalidOid;

	if (OidIsValid(found))
		ledger = found;
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, ledger,
					   (uint32) id, (uint16) (id >> 32));
}

static bool
lock_row(int64 id, LOCKMODE mode, bool wait)
{
	LOCKTAG		tag;

	set_row_tag(&tag, id);
	return LockAcquire(&tag, mode, true, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_row(int64 id, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_row_tag(&tag, id);
	(void) LockRelease(&tag, mode, true);
}

#ifdef USE_ASSERT_CHECKING
/* Return whether this process has the row's number locked. */
bool
ledger_row_is_ours(int64 id)
{
	LOCKTAG		tag;

	set_row_tag(&tag, id);
	return LockHeldByMe(&tag, ExclusiveLock, false);
}
#endif

/* Return whether another process works on the file of a row. */
bool
ledger_row_is_claimed(int64 id)
{
	if (!lock_row(id, ShareLock, false))
		return true;
	unlock_row(id, ShareLock);
	return false;
}

/*
 * Lock a ledger row's number for the session.  Its maker does so before the
 * row is committed, and keeps the lock until the row is deleted.
 */
void
ledger_row_claim(int64 id)
{
	(void) lock_row(id, ExclusiveLock, true);
}

/*
 * Lock the row's number again after an error has released all locks.  Does
 * not queue: a process that exits cannot be interrupted, and would block
 * commands that wait for an answer of all processes (DROP DATABASE).  A process
 * that inspects the row has the lock for moments; false if one keeps it longer,
 * since it is removing the file in our place.
 */
bool
ledger_row_claim_again(int64 id)
{
	for (int tries = 1; !lock_row(id, ExclusiveLock, false); tries++)
	{
		if (tries == CLAIM_TRIES)
			return false;
		pg_usleep(CLAIM_REST_MS * 1000L);
	}
	return true;
}

/* Lock the row's number for the session unless another process has it locked. */
bool
ledger_row_try(int64 id)
{
	return lock_row(id, ExclusiveLock, false);
}

/* Release the lock on a ledger row's number. */
void
ledger_row_release(int64 id)
{
	unlock_row(id, ExclusiveLock);
}
