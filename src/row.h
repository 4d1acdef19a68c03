/*-------------------------------------------------------------------------
 *
 * row.h
 *	  Values, or NULL, for the columns of a row.
 *
 * A row is all NULL after row_clear(); columns are numbered from 1 on.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_ROW_H
#define IM_ROW_H

#include "commands/tablespace.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

typedef struct Row
{
	Datum		values[32];
	bool		nulls[32];
} Row;

static inline void
row_clear(Row *row)
{
	memset(row->values, 0, sizeof(row->values));
	memset(row->nulls, true, sizeof(row->nulls));
}

static inline void
row_set(Row *row, int column, Datum value)
{
	Assert(column >= 1 && column <= lengthof(row->values));
	row->values[column - 1] = value;
	row->nulls[column - 1] = false;
}

/* NULL if the number is negative */
static inline void
row_int64(Row *row, int column, int64 value)
{
	if (value >= 0)
		row_set(row, column, Int64GetDatum(value));
}

/* NULL if the text is NULL or empty */
static inline void
row_text(Row *row, int column, const char *value)
{
	if (value != NULL && value[0] != '\0')
		row_set(row, column, CStringGetTextDatum(value));
}

/* NULL if the time is negative */
static inline void
row_interval(Row *row, int column, int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = microseconds;
	if (microseconds >= 0)
		row_set(row, column, IntervalPGetDatum(interval));
}

/* NULL if the time is 0 */
static inline void
row_time(Row *row, int column, TimestampTz value)
{
	if (value != 0)
		row_set(row, column, TimestampTzGetDatum(value));
}

/* the name of a tablespace; NULL if there is none of this OID */
static inline void
row_tablespace(Row *row, int column, Oid tablespace)
{
	char	   *name = get_tablespace_name(tablespace);

	if (name != NULL)
		row_set(row, column, DirectFunctionCall1(namein, CStringGetDatum(name)));
}

#endif							/* IM_ROW_H */
