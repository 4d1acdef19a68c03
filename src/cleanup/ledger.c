/*-------------------------------------------------------------------------
 *
 * ledger.c
 *	  The ledger: files and indexes of moves that have no owner yet or any more.
 *
 * The protocol is in src/README, "Protocol of the ledger".  Rows are not written
 * through SPI: some come from an object access hook in the middle of
 * index_create(), where the command counter must not be advanced and no
 * user-defined code may run.  Nor may the current user's privileges matter.
 *
 * A row that came here with the database, by CREATE DATABASE .. TEMPLATE, counts:
 * strategy file_copy copies the file, too, under the same number, and both
 * strategies copy an index entry under the same OID.
 *
 * Locks: RowExclusiveLock on the ledger until the end of the transaction for
 * writes, AccessShareLock during a read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/tupmacs.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "cleanup/cleanup.h"
#include "own_tables.h"
#include "wait/wait.h"

#define LEDGER_TABLE	"ledger"
#define LEDGER_SEQUENCE	"ledger_seq"

/* How often to retry for a row that others may only be reading */
#define CLAIM_TRIES			50
#define CLAIM_REST_MS		10

#define Anum_id					1
#define Anum_system_identifier	2

#define FIELD(name)	{offsetof(LedgerEntry, name), sizeof(((LedgerEntry *) NULL)->name)}

/* The field of each column of index_mover.ledger, as in the SQL script, of its type in C */
static const struct
{
	Size		offset;
	int			len;
}			fields[] = {

	FIELD(id),
	{0},						/* system_identifier */
	FIELD(database),
	FIELD(kind),
	FIELD(tablespace),
	FIELD(relfilenumber),
	FIELD(heap_oid),
	FIELD(relid),
	FIELD(new_index_oid),
	FIELD(job),
	FIELD(pid),
	FIELD(made_at),
	FIELD(new_name),
	FIELD(from_tablespace),
	FIELD(from_relfilenumber),
	FIELD(copied_blocks),
	FIELD(changes_from),
	FIELD(timeline),
	FIELD(keep_until),
};

/* The system_identifier of this cluster's rows */
#define THIS_SYSTEM		psprintf(UINT64_FORMAT, GetSystemIdentifier())

/*
 * Draw the number of a row that will be inserted later.  The loop is for
 * logical replication of sequences, which may have set ours back.
 */
int64
ledger_new_id(void)
{
	int64		result;

	do
		result = extension_nextval(LEDGER_SEQUENCE, 0);
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
	LedgerEntry copy;
	Row			row;

	Assert(IsTransactionState());
	if (entry->id == 0)
		entry->id = ledger_new_id();
	entry->made_at = GetCurrentTimestamp();

	copy = *entry;
	copy.database = MyDatabaseId;
	/* as in pg_class: the file moves with the database's default */
	copy.tablespace = tablespace_in_catalog(entry->tablespace);
	row_clear(&row);
	for (int i = 0; i < lengthof(fields); i++)
	{
		const char *field = (char *) &copy + fields[i].offset;

		if (i == Anum_system_identifier - 1)
			row_set(&row, i + 1, CStringGetTextDatum(THIS_SYSTEM));
		else
			row_set(&row, i + 1,
					fetch_att(field, fields[i].len <= sizeof(Datum), fields[i].len));
	}
	extension_insert(LEDGER_TABLE, &row);
}

/*
 * Delete a row in the current transaction.  It is no error if another
 * process, having finished the work, has deleted the row or is just doing so.
 */
void
ledger_delete(int64 id)
{
	ScanKeyData key = extension_key(Anum_id, F_INT8EQ, Int64GetDatum(id));

	(void) extension_delete(LEDGER_TABLE, 1, &key);
}

/* Replace a row by another with its number, in the current transaction. */
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
	ScanKeyData key = extension_key(Anum_id, F_INT8EQ, Int64GetDatum(id));
	ExtensionScan scan;
	bool		result = false;

	extension_scan_begin(&scan, LEDGER_TABLE, 1, &key);
	while (extension_scan_next(&scan))
		result = true;
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
 * Return the rows for ledger_read(), in a transaction, and add the system identifiers of the
 * rows of other clusters, one for each, to *foreign unless that is NULL.
 */
static List *
read_rows(List **foreign)
{
	ExtensionScan scan;
	const Datum *values = scan.row.values;
	char	   *system = THIS_SYSTEM;
	List	   *result = NIL;

	extension_scan_begin(&scan, LEDGER_TABLE, 0, NULL);
	while (extension_scan_next(&scan))
	{
		LedgerEntry *entry = palloc0(sizeof(LedgerEntry));
		char	   *row_system = TextDatumGetCString(values[Anum_system_identifier - 1]);

		for (int i = 0; i < lengthof(fields); i++)
		{
			void	   *field = (char *) entry + fields[i].offset;

			if (scan.row.nulls[i] || i == Anum_system_identifier - 1)
				continue;
			if (fields[i].len <= sizeof(Datum))
				store_att_byval(field, values[i], fields[i].len);
			else
				memcpy(field, DatumGetPointer(values[i]), fields[i].len);
		}
		entry->tablespace = tablespace_from_catalog(entry->tablespace);

		if (strcmp(row_system, system) != 0)
		{
			if (foreign != NULL)
				*foreign = lappend(*foreign, row_system);
		}
		else if (entry->database == MyDatabaseId || database_is_younger(entry->made_at))
			result = lappend(result, entry);
	}
	return result;
}

/*
 * Return all rows of this cluster that were written in this database, or came here
 * with it; none if the extension is not installed.  Without a transaction it is done
 * in one of its own.
 */
List *
ledger_read(void)
{
	MemoryContext context = CurrentMemoryContext;
	bool		apart = !IsTransactionState();
	List	   *result = NIL;

	if (apart)
		StartTransactionCommand();
	MemoryContextSwitchTo(context);
	if (extension_installed())
		result = read_rows(NULL);
	if (apart)
		CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

/*
 * The same, in a transaction of its own.  ERROR 55P03 if another session keeps the ledger
 * locked for longer than max_wait_ms; 0 = no limit.
 */
List *
ledger_read_within(int max_wait_ms)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *result;
	Oid			ledger;
	bool		is_free = true;

	Assert(!IsTransactionState());
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	ledger = extension_find_relation(LEDGER_TABLE);
	if (OidIsValid(ledger) && max_wait_ms > 0)
		is_free = lock_relation_within(ledger, AccessShareLock, max_wait_ms, NULL);
	if (!is_free)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not obtain lock on relation \"%s.%s\"", "index_mover", LEDGER_TABLE)));
	result = ledger_read();
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	return result;
}

/*
 * The same, in a transaction, and the system identifiers of the rows of other clusters, one
 * for each.
 */
List *
ledger_read_all(List **foreign)
{
	*foreign = NIL;
	return read_rows(foreign);
}

/*
 * Make the rows of another cluster, which this one has taken the place of, its own; returns
 * their number.
 */
int64
ledger_adopt(const char *system)
{
	ExtensionScan scan;
	int64		result = 0;

	extension_scan_begin(&scan, LEDGER_TABLE, 0, NULL);
	while (extension_scan_next(&scan))
	{
		if (strcmp(TextDatumGetCString(scan.row.values[Anum_system_identifier - 1]), system) != 0)
			continue;
		if (!extension_delete_row(LEDGER_TABLE, &scan.tuple->t_self))
			continue;
		row_set(&scan.row, Anum_system_identifier, CStringGetTextDatum(THIS_SYSTEM));
		extension_insert(LEDGER_TABLE, &scan.row);
		result++;
	}
	return result;
}

/* ----------------------------------------------------------------
 *	Locks on rows
 * ----------------------------------------------------------------
 */

/*
 * Return the lock tag of a ledger row: an object of the ledger table.  Outside
 * of a transaction, and after DROP EXTENSION, use the table's OID as last seen,
 * when the lock was taken.
 */
static LOCKTAG
row_tag(int64 id)
{
	static Oid	ledger = InvalidOid;
	Oid			found = IsTransactionState() ? extension_find_relation(LEDGER_TABLE) : InvalidOid;
	LOCKTAG		tag;

	if (OidIsValid(found))
		ledger = found;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ledger, (uint32) id, (uint16) (id >> 32));
	return tag;
}

#ifdef USE_ASSERT_CHECKING
/* Return whether this process has the row's number locked. */
bool
ledger_row_is_ours(int64 id)
{
	LOCKTAG		tag = row_tag(id);

	return LockHeldByMe(&tag, ExclusiveLock, false);
}
#endif

/*
 * Return whether another process works on the file of a row.  GetLockConflicts() does
 * not know of locks that are held between two transactions.
 */
bool
ledger_row_is_claimed(int64 id)
{
	LOCKTAG		tag = row_tag(id);

	if (LockAcquire(&tag, ShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	(void) LockRelease(&tag, ShareLock, true);
	return false;
}

/*
 * Lock a ledger row's number for the session; false if another process has it locked
 * and we do not wait.  Its maker does so before the row is committed, and keeps the
 * lock until the row is deleted.
 */
bool
ledger_row_claim(int64 id, bool wait)
{
	LOCKTAG		tag = row_tag(id);

	return LockAcquire(&tag, ExclusiveLock, true, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Lock the row's number again after an error has released all locks.  Does
 * not queue: a process that exits cannot be interrupted, and would block
 * commands that wait for an answer of all processes (DROP DATABASE).  False if
 * a process keeps the lock, since it is removing the file in our place.
 */
bool
ledger_row_claim_again(int64 id)
{
	for (int tries = 1; !ledger_row_claim(id, false); tries++)
	{
		if (tries == CLAIM_TRIES)
			return false;
		pg_usleep(CLAIM_REST_MS * 1000L);
	}
	return true;
}

/* Release the lock on a ledger row's number. */
void
ledger_row_release(int64 id)
{
	LOCKTAG		tag = row_tag(id);

	(void) LockRelease(&tag, ExclusiveLock, true);
}
