/*-------------------------------------------------------------------------
 *
 * key_units.c
 *	  The meaning of the key of a range partition: the moment at which a bound is.
 *
 * Dates and timestamps say it themselves.  Of an integer or a UUID the policy says it,
 * in words (key_unit) or by two numbers: nothing is guessed, and no user's code is
 * called.  A version 4 UUID as a bound, for example, would read as a moment of the past,
 * and hot rows would go to the cold disk.
 *
 * A bound is exclusive, so its moment is rounded up: no row is before its time.  A moment
 * that no timestamp can hold is an infinity; no bound raises an error.  Days, dates and
 * months begin at midnight in the time zone of the session, which is the owner's.
 *
 * Integers are computed as numeric: bigint keys times their rates have more digits than
 * 64 bits hold, and double precision would be off by minutes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/uuid.h"

#include "tier/tier_private.h"

#define EPOCH_DAYS		(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE)	/* of a timestamp's
																	 * zero, since 1970 */
#define EPOCH_SECONDS	(EPOCH_DAYS * INT64CONST(86400))

#define MOST_DIGITS		60		/* of a numeric in a text, with sign and point */

static const char *const unit_names[] = {
	[KEY_UNIT_SECONDS] = "seconds",
	[KEY_UNIT_MILLISECONDS] = "milliseconds",
	[KEY_UNIT_MICROSECONDS] = "microseconds",
	[KEY_UNIT_DAYS] = "days",
	[KEY_UNIT_YYYYMMDD] = "yyyymmdd",
	[KEY_UNIT_YYYYMM] = "yyyymm",
	[KEY_UNIT_UUID7] = "uuid7",
};

/* Return the unit of this name, which a CHECK constraint has accepted. */
KeyUnit
key_unit_named(const char *name)
{
	for (int i = KEY_UNIT_SECONDS; i < lengthof(unit_names); i++)
	{
		if (strcmp(unit_names[i], name) == 0)
			return i;
	}
	return KEY_UNIT_NONE;
}

static bool
is_number(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID || type == NUMERICOID;
}

/* Return the kind of a key of this type, which is no domain. */
KeyKind
key_kind(Oid type, const KeyMeaning *meaning)
{
	bool		has_unit;

	if (type == DATEOID || type == TIMESTAMPOID || type == TIMESTAMPTZOID)
		return KEY_TIME;
	if (type == UUIDOID)
		has_unit = meaning->unit == KEY_UNIT_UUID7;
	else if (is_number(type))
		has_unit = meaning->unit != KEY_UNIT_NONE && meaning->unit != KEY_UNIT_UUID7;
	else
		return KEY_OTHER;
	return has_unit ? KEY_WITH_UNIT : KEY_WITHOUT_UNIT;
}

/* Return why a policy cannot use a KEY_WITHOUT_UNIT. */
const char *
key_unit_hint(Oid type)
{
	if (type == UUIDOID)
		return "a key of UUIDs needs key_unit \"uuid7\", if they are of version 7";
	return "a key of numbers needs a key_unit, or key_zero and keys_per_second";
}

/* Return a numeric as its type prints it, up to MOST_DIGITS: it can have 147,000, and stands in reasons. */
static char *
numeric_text(Datum key)
{
	char	   *result = DatumGetCString(DirectFunctionCall1(numeric_out, key));

	if (strlen(result) > MOST_DIGITS)
		result = psprintf("%.*s...", MOST_DIGITS, result);
	return result;
}

/* Return a bound as its type prints it, of a numeric the first digits.  The caller has set DateStyle. */
char *
key_text(Oid type, Datum key)
{
	switch (type)
	{
		case DATEOID:
			return DatumGetCString(DirectFunctionCall1(date_out, key));
		case TIMESTAMPOID:
			return DatumGetCString(DirectFunctionCall1(timestamp_out, key));
		case TIMESTAMPTZOID:
			return DatumGetCString(DirectFunctionCall1(timestamptz_out, key));
		case INT2OID:
			return psprintf("%d", DatumGetInt16(key));
		case INT4OID:
			return psprintf("%d", DatumGetInt32(key));
		case INT8OID:
			return psprintf(INT64_FORMAT, DatumGetInt64(key));
		case NUMERICOID:
			return numeric_text(key);
		default:
			Assert(type == UUIDOID);
			return DatumGetCString(DirectFunctionCall1(uuid_out, key));
	}
}

/* Dates and timestamps */

/* Return when a day begins, which is counted from 2000 on. */
static TimestampTz
of_date(DateADT date)
{
	if (DATE_IS_NOBEGIN(date))
		return DT_NOBEGIN;
	/* dates go on for longer than timestamps */
	if (DATE_IS_NOEND(date) || date >= TIMESTAMP_END_JULIAN - POSTGRES_EPOCH_JDATE)
		return DT_NOEND;
	return moment_of_local(date * USECS_PER_DAY);
}

/* Numbers */

static Numeric
as_numeric(Oid type, Datum key)
{
	switch (type)
	{
		case INT2OID:
			return int64_to_numeric(DatumGetInt16(key));
		case INT4OID:
			return int64_to_numeric(DatumGetInt32(key));
		case INT8OID:
			return int64_to_numeric(DatumGetInt64(key));
		default:
			Assert(type == NUMERICOID);
			return DatumGetNumeric(key);
	}
}

static Numeric
compute(PGFunction function, Numeric a, Numeric b)
{
	return DatumGetNumeric(DirectFunctionCall2(function, NumericGetDatum(a), NumericGetDatum(b)));
}

/* NaN is the greatest */
static int
compare(Numeric a, Numeric b)
{
	return DatumGetInt32(DirectFunctionCall2(numeric_cmp, NumericGetDatum(a), NumericGetDatum(b)));
}

static Numeric
round_up(Numeric number)
{
	return DatumGetNumeric(DirectFunctionCall1(numeric_ceil, NumericGetDatum(number)));
}

static int64
as_int64(Numeric number)
{
	return DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(number)));
}

/*
 * Return the moment of a key that counts so many a second, and was "zero" in 1970.  The
 * constraints of tier_policy bound both numbers, and only keys in the range of timestamps
 * are divided, so nothing overflows.
 */
static TimestampTz
of_rate(Numeric key, Numeric zero, Numeric per_second)
{
	Numeric		first = int64_to_numeric(MIN_TIMESTAMP / USECS_PER_SEC + EPOCH_SECONDS);
	Numeric		end = int64_to_numeric(END_TIMESTAMP / USECS_PER_SEC + EPOCH_SECONDS - 1);
	Numeric		micros;

	if (compare(key, compute(numeric_add, zero, compute(numeric_mul, end, per_second))) >= 0)
		return DT_NOEND;
	if (compare(key, compute(numeric_add, zero, compute(numeric_mul, first, per_second))) < 0)
		return DT_NOBEGIN;
	micros = compute(numeric_mul, compute(numeric_sub, key, zero), int64_to_numeric(USECS_PER_SEC));
	micros = round_up(compute(numeric_div, micros, per_second));
	/* from 2000 on they are in the range of int64 */
	return as_int64(compute(numeric_sub, micros, int64_to_numeric(EPOCH_SECONDS * USECS_PER_SEC)));
}

static TimestampTz
of_days(Numeric days)
{
	if (compare(days, int64_to_numeric(TIMESTAMP_END_JULIAN - UNIX_EPOCH_JDATE)) >= 0)
		return DT_NOEND;
	if (compare(days, int64_to_numeric(-UNIX_EPOCH_JDATE)) < 0)
		return DT_NOBEGIN;
	return of_date(as_int64(round_up(days)) - EPOCH_DAYS);
}

/*
 * Get the moment of a date that is written as a number, of a month its first day.
 * Returns false if there is no such date.  Years have four digits: so dates are not
 * taken for months, nor months for dates.
 */
static bool
of_digits(Numeric key, bool has_day, TimestampTz *moment)
{
	int64		digits;
	int			year;
	int			month;
	int			day;

	if (compare(key, int64_to_numeric(0)) < 0 || compare(key, int64_to_numeric(99999999)) > 0 ||
		compare(key, round_up(key)) != 0)
		return false;
	digits = as_int64(key);
	if (!has_day)
		digits = digits * 100 + 1;
	year = digits / 10000;
	month = digits / 100 % 100;
	day = digits % 100;
	/* where ranges end, the thirteenth month is the next January */
	if (!has_day && month == MONTHS_PER_YEAR + 1)
	{
		year++;
		month = 1;
	}
	if (digits < 10000000 || digits > 99999999 || month < 1 || month > MONTHS_PER_YEAR ||
		day < 1 || day > day_tab[isleap(year)][month - 1])
		return false;
	*moment = of_date(date2j(year, month, day) - POSTGRES_EPOCH_JDATE);
	return true;
}

/*
 * Return the moment of a UUID of version 7, RFC 9562, 5.7: its first 48 bits count
 * milliseconds since 1970.  If it is not the first of its millisecond, others of that
 * are before it, so the millisecond has to end.
 */
static TimestampTz
of_uuid7(const pg_uuid_t *uuid)
{
	static const unsigned char first[] = {0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, 0};
	int64		millis = 0;

	for (int i = 0; i < 6; i++)
		millis = millis << 8 | uuid->data[i];
	if (memcmp(uuid->data + 6, first, sizeof(first)) > 0)
		millis++;
	return millis * 1000 - EPOCH_SECONDS * USECS_PER_SEC;
}

/*
 * Get the moment of a bound, exclusive, of a key that is KEY_TIME or KEY_WITH_UNIT.
 * Returns NULL, or why it has none.
 */
const char *
key_moment(Oid type, Datum key, const KeyMeaning *meaning, TimestampTz *moment)
{
	Numeric		number;

	switch (type)
	{
		case DATEOID:
			*moment = of_date(DatumGetDateADT(key));
			return NULL;
		case TIMESTAMPOID:
			*moment = moment_of_local(DatumGetTimestamp(key));
			return NULL;
		case TIMESTAMPTZOID:
			*moment = DatumGetTimestampTz(key);
			return NULL;
		case UUIDOID:
			*moment = of_uuid7(DatumGetUUIDP(key));
			return NULL;
	}
	number = as_numeric(type, key);
	switch (meaning->unit)
	{
		case KEY_UNIT_SECONDS:
			*moment = of_rate(number, int64_to_numeric(0), int64_to_numeric(1));
			break;
		case KEY_UNIT_MILLISECONDS:
			*moment = of_rate(number, int64_to_numeric(0), int64_to_numeric(1000));
			break;
		case KEY_UNIT_MICROSECONDS:
			*moment = of_rate(number, int64_to_numeric(0), int64_to_numeric(USECS_PER_SEC));
			break;
		case KEY_UNIT_RATE:
			*moment = of_rate(number, meaning->zero, meaning->per_second);
			break;
		case KEY_UNIT_DAYS:
			*moment = of_days(number);
			break;
		case KEY_UNIT_YYYYMMDD:
			if (!of_digits(number, true, moment))
				return "that is no date of the form yyyymmdd";
			break;
		case KEY_UNIT_YYYYMM:
			if (!of_digits(number, false, moment))
				return "that is no month of the form yyyymm";
			break;
		default:
			Assert(false);
	}
	return NULL;
}
