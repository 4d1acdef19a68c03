/*-------------------------------------------------------------------------
 *
 * heat_samples.c
 *	  Reading the samples of heat, relation by relation.
 *
 * The table of samples is in the order in which they were taken, with holes that were filled later.  A
 * relation that is always in use has hundreds of them.  So they are sorted by relation and time, in
 * memory and temporary files, and only those of one relation are in memory at a time.  An index on
 * the table would do as well, and would have to be written with each sample.
 *
 * A rebuilt index has another OID, so rows are found by table and name.
 *
 * Temporary files are in temp_tablespaces, as of any sort.  They are not limited: no user's setting may
 * make a plan fail.  temp_tablespaces itself cannot be set for a while: when core takes such a value
 * back, the rest of the transaction has none (assign_temp_tablespaces()).
 *
 * Takes no lock but on the table of samples, while it is scanned.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"

#include "own_tables.h"
#include "tier/heat_samples.h"

/* Columns of the tuples that are sorted */
enum
{
	SORTED_NUMBER = 1,			/* of the relation */
	SORTED_TAKEN_AT,
	SORTED_COUNTERS,
	SORTED_TID = SORTED_COUNTERS + HEAT_COUNTERS
};

typedef struct SampleKey
{
	Oid			table_oid;
	NameData	index_name;		/* "" = of the table itself */
} SampleKey;

typedef struct NumberedRelation
{
	SampleKey	key;			/* hash key */
	int			number;
} NumberedRelation;

struct SampleReader
{
	MemoryContext context;		/* has all of it */
	HTAB	   *relations;		/* of NumberedRelation */
	int			nrelations;		/* with number 0, the moments */
	Tuplesortstate *sort;
	TupleTableSlot *next;		/* empty = all are read */
	HeatSample *samples;		/* of the relation that was read last */
	Size		room;
};

/* Return the entry of a relation; NULL if it has none, unless it is to be entered, as the next number. */
static NumberedRelation *
find_relation(SampleReader *reader, Oid table_oid, const char *index_name, bool enter)
{
	NumberedRelation *result;
	SampleKey	key = {.table_oid = table_oid};
	bool		found;

	namestrcpy(&key.index_name, index_name);
	result = hash_search(reader->relations, &key, enter ? HASH_ENTER : HASH_FIND, &found);
	if (enter && !found)
		result->number = reader->nrelations++;
	return result;
}

static TupleDesc
sorted_columns(void)
{
	List	   *names = NIL;
	List	   *types = NIL;
	List	   *typmods = NIL;
	List	   *collations = NIL;

	for (int column = SORTED_NUMBER; column <= SORTED_TID; column++)
	{
		Oid			type = INT8OID;

		if (column == SORTED_NUMBER)
			type = INT4OID;
		else if (column == SORTED_TID)
			type = TIDOID;
		names = lappend(names, makeString("sorted"));
		types = lappend_oid(types, type);
		typmods = lappend_int(typmods, -1);
		collations = lappend_oid(collations, InvalidOid);
	}
	return BuildDescFromLists(names, types, typmods, collations);
}

/* Return the number of the relation of a row, -1 if it is not asked for. */
static int
number_of_row(SampleReader *reader, const Row *row, bool all)
{
	const NumberedRelation *relation;
	Oid			table_oid = DatumGetObjectId(row->values[1]);
	char		name[NAMEDATALEN] = "";

	if (!OidIsValid(table_oid))
		return 0;
	if (!row->nulls[2])
		text_to_cstring_buffer(DatumGetTextPP(row->values[2]), name, sizeof(name));
	relation = find_relation(reader, table_oid, name, all);
	return relation != NULL ? relation->number : -1;
}

/* Scan the table, and give to the sort the rows up to a moment. */
static void
scan_samples(SampleReader *reader, TupleDesc columns, TimestampTz now, bool all)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(columns, &TTSOpsVirtual);
	Datum	   *values = slot->tts_values;
	MemoryContext row_context = AllocSetContextCreate(reader->context, "index_mover sample",
													  ALLOCSET_SMALL_SIZES);
	ExtensionScan scan;

	memset(slot->tts_isnull, false, SORTED_TID * sizeof(bool));
	extension_scan_begin(&scan, "sample", 0, NULL);
	while (extension_scan_next(&scan))
	{
		TimestampTz taken_at = DatumGetTimestampTz(scan.row.values[0]);
		MemoryContext oldcontext;
		int			number;

		CHECK_FOR_INTERRUPTS();
		if (taken_at > now || TIMESTAMP_NOT_FINITE(taken_at))
			continue;
		MemoryContextReset(row_context);
		oldcontext = MemoryContextSwitchTo(row_context);
		number = number_of_row(reader, &scan.row, all);
		MemoryContextSwitchTo(oldcontext);
		if (number < 0)
			continue;
		ExecClearTuple(slot);
		values[SORTED_NUMBER - 1] = Int32GetDatum(number);
		values[SORTED_TAKEN_AT - 1] = Int64GetDatum(taken_at);
		for (int i = 0; i < HEAT_COUNTERS; i++)
			values[SORTED_COUNTERS - 1 + i] = scan.row.values[3 + i];
		values[SORTED_TID - 1] = PointerGetDatum(&scan.tuple->t_self);
		ExecStoreVirtualTuple(slot);
		tuplesort_puttupleslot(reader->sort, slot);
	}
	ExecDropSingleTupleTableSlot(slot);
}

/* Get the next row of the sort. */
static void
get_next(SampleReader *reader)
{
	(void) tuplesort_gettupleslot(reader->sort, true, false, reader->next, NULL);
	if (!TupIsNull(reader->next))
		slot_getallattrs(reader->next);
}

/*
 * Read and sort the samples up to a moment of these relations, and the moments.  all: of relations,
 * too, that have gone, whose numbers come after.  sort_memory: kB.  The caller ends the reader; after
 * an error it deletes the current context.
 */
SampleReader *
samples_begin(const Heat *heats, int n, TimestampTz now, bool all, int sort_memory)
{
	/* the last one so that each reading has the same order */
	static AttrNumber keys[] = {SORTED_NUMBER, SORTED_TAKEN_AT, SORTED_TID};
	static Oid	operators[] = {Int4LessOperator, Int8LessOperator, TIDLessOperator};
	static Oid	collations[] = {InvalidOid, InvalidOid, InvalidOid};
	static bool nulls_first[] = {false, false, false};
	HASHCTL		info = {.keysize = sizeof(SampleKey),.entrysize = sizeof(NumberedRelation)};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "index_mover samples",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	SampleReader *reader = palloc0_object(SampleReader);
	TupleDesc	columns = sorted_columns();
	int			nestlevel = NewGUCNestLevel();

	reader->context = info.hcxt = context;
	reader->relations = hash_create("index_mover relations of samples", Max(n, 64), &info,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	reader->nrelations = 1;
	for (const Heat *heat = heats; heat < heats + n; heat++)
	{
		bool		is_index = heat->facts.relkind == RELKIND_INDEX;
		const char *name = is_index ? NameStr(heat->facts.relname) : "";

		reader->nrelations = heat - heats + 1;
		(void) find_relation(reader, heat->facts.heap_oid, name, true);
	}
	reader->nrelations = n + 1;
	reader->room = 64;
	reader->samples = palloc_array(HeatSample, reader->room);
	reader->next = MakeSingleTupleTableSlot(columns, &TTSOpsMinimalTuple);

	settings_set_here("temp_file_limit", "-1", PGC_SUSET, ERROR);
	reader->sort = tuplesort_begin_heap(columns, lengthof(keys), keys, operators, collations,
										nulls_first, sort_memory, NULL, TUPLESORT_NONE);
	scan_samples(reader, columns, now, all);
	tuplesort_performsort(reader->sort);
	AtEOXact_GUC(true, nestlevel);
	get_next(reader);
	MemoryContextSwitchTo(oldcontext);
	return reader;
}

/* Return how many numbers there are: 0 are the moments, then the relations. */
int
samples_relations(const SampleReader *reader)
{
	return reader->nrelations;
}

/*
 * Read the samples of the relation of a number, in order of time.  Numbers are asked for one after the
 * other.  The result has room for one sample more, and is valid until the next call.
 */
HeatSample *
samples_read(SampleReader *reader, int number, int *n)
{
	*n = 0;
	while (!TupIsNull(reader->next))
	{
		const Datum *values = reader->next->tts_values;
		HeatSample *sample = &reader->samples[*n];

		if (DatumGetInt32(values[SORTED_NUMBER - 1]) != number)
			break;
		CHECK_FOR_INTERRUPTS();
		sample->taken_at = DatumGetInt64(values[SORTED_TAKEN_AT - 1]);
		for (int i = 0; i < HEAT_COUNTERS; i++)
			sample->counters[i] = DatumGetInt64(values[SORTED_COUNTERS - 1 + i]);
		sample->tid = *(const ItemPointerData *) DatumGetPointer(values[SORTED_TID - 1]);
		if (++*n == reader->room)
			reader->samples = repalloc_huge(reader->samples,
											(reader->room *= 2) * sizeof(HeatSample));
		get_next(reader);
	}
	Assert(TupIsNull(reader->next) ||
		   DatumGetInt32(reader->next->tts_values[SORTED_NUMBER - 1]) > number);
	return reader->samples;
}

/* Free a reader, and its temporary files. */
void
samples_end(SampleReader *reader)
{
	tuplesort_end(reader->sort);
	MemoryContextDelete(reader->context);
}
