/*-------------------------------------------------------------------------
 *
 * moments.c
 *	  Moments and intervals, without an error for any of them.
 *
 * Users give intervals, and core raises 22008 if a sum is out of range.  Here that is
 * an infinity, which compares as it should: nothing is older than 300,000 years.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "utils/timestamp.h"

#include "tier/tier_private.h"

/* core's sums stay in range, whatever the length of the months, and the time zone */
#define MARGIN	(400.0 * DAYS_PER_YEAR * USECS_PER_DAY)

/*
 * Return 1 or -1 if a sum, or a part of it in core's order, is too late or too early
 * for core, else 0.
 */
static int
out_of_range(TimestampTz moment, const Interval *interval, int sign)
{
	const double parts[] = {
		interval->month * (DAYS_PER_YEAR / MONTHS_PER_YEAR) * USECS_PER_DAY,
		(double) interval->day * USECS_PER_DAY,
		(double) interval->time,
	};
	double		sum = moment;

	for (int i = 0; i < lengthof(parts); i++)
	{
		sum += sign * parts[i];
		if (sum > END_TIMESTAMP - MARGIN)
			return 1;
		if (sum < MIN_TIMESTAMP + MARGIN)
			return -1;
	}
	return 0;
}

static TimestampTz
shift(TimestampTz moment, const Interval *interval, int sign)
{
	PGFunction	function = sign > 0 ? timestamptz_pl_interval : timestamptz_mi_interval;
	int			beyond;

	if (TIMESTAMP_NOT_FINITE(moment))
		return moment;
	beyond = out_of_range(moment, interval, sign);
	if (beyond > 0)
		return DT_NOEND;
	if (beyond < 0)
		return DT_NOBEGIN;
	return DatumGetTimestampTz(DirectFunctionCall2(function, TimestampTzGetDatum(moment),
												   IntervalPGetDatum(interval)));
}

TimestampTz
moment_plus(TimestampTz moment, const Interval *interval)
{
	return shift(moment, interval, 1);
}

TimestampTz
moment_minus(TimestampTz moment, const Interval *interval)
{
	return shift(moment, interval, -1);
}

/* Return the time of clocks at a moment, by the session's time zone; an infinity if it is none. */
Timestamp
moment_local(TimestampTz moment)
{
	/* no time zone is a day off */
	if (moment < MIN_TIMESTAMP + USECS_PER_DAY)
		return DT_NOBEGIN;
	if (moment >= END_TIMESTAMP - USECS_PER_DAY)
		return DT_NOEND;
	return DatumGetTimestamp(DirectFunctionCall1(timestamptz_timestamp,
												 TimestampTzGetDatum(moment)));
}

/* Return the moment at which clocks show this, an infinity if it is none. */
TimestampTz
moment_of_local(Timestamp local)
{
	if (local < MIN_TIMESTAMP + USECS_PER_DAY)
		return DT_NOBEGIN;
	if (local >= END_TIMESTAMP - USECS_PER_DAY)
		return DT_NOEND;
	return DatumGetTimestampTz(DirectFunctionCall1(timestamp_timestamptz,
												   TimestampGetDatum(local)));
}

/* Return a moment as text, to the second.  The caller has set DateStyle. */
const char *
moment_text(TimestampTz moment)
{
	if (!TIMESTAMP_NOT_FINITE(moment))
		moment = (TimestampTz) floor(moment / 1e6) * USECS_PER_SEC;
	return pstrdup(timestamptz_to_str(moment));
}
