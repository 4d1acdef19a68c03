/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of index_mover, and the copy of them that a job carries.
 *
 * A job runs in a background worker, which does not see the caller's SETs, so
 * the caller's effective values are captured when the job is submitted.  The
 * "settings" argument is applied as SET LOCAL would, by core's own routine and
 * so with the rights that SET needs; it exists because pg_cron runs one
 * statement per transaction, where nothing can be SET first.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/guc.h"
#include "utils/numeric.h"
#include "utils/varlena.h"

#include "settings.h"

static int	lock_timeout = 100;
static int	lock_wait = 10 * 60 * 1000;
static int	on_blocker = ON_BLOCKER_WAIT;
static int	on_failure = ON_FAILURE_ROW;
static bool give_way = true;
static bool pacing = true;
static int	max_rate = 0;
static int	max_replica_lag = 0;
static double min_free_space = 0.05;
static double rebuild_threshold = 0.3;
static int	max_workers = 2;
static int	order = ORDER_SMALLEST;
static bool verify = false;
static bool prewarm = true;
static char *copy_access_methods = NULL;
static char *swap_after = NULL;
static int	max_duration = 0;
static int	progress_interval = 5000;

static const struct config_enum_entry on_blocker_options[] = {
	{"wait", ON_BLOCKER_WAIT, false},
	{"fail", ON_BLOCKER_FAIL, false},
	{"cancel", ON_BLOCKER_CANCEL, false},
	{"terminate", ON_BLOCKER_TERMINATE, false},
	{NULL, 0, false}
};

static const struct config_enum_entry on_failure_options[] = {
	{"row", ON_FAILURE_ROW, false},
	{"error", ON_FAILURE_ERROR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry order_options[] = {
	{"smallest", ORDER_SMALLEST, false},
	{"hottest", ORDER_HOTTEST, false},
	{"name", ORDER_NAME, false},
	{NULL, 0, false}
};

/* All of them, in the order of the manual, and where a job keeps their values. */
typedef struct SettingPlace
{
	const char *name;
	Size		offset;
	Size		size;
} SettingPlace;

#define PLACE(field) \
	{#field, offsetof(MoveSettings, field), sizeof(((MoveSettings *) NULL)->field)}

static const SettingPlace places[] = {
	PLACE(lock_timeout),
	PLACE(lock_wait),
	PLACE(on_blocker),
	PLACE(on_failure),
	PLACE(give_way),
	PLACE(pacing),
	PLACE(max_rate),
	PLACE(max_replica_lag),
	PLACE(min_free_space),
	PLACE(rebuild_threshold),
	PLACE(max_workers),
	PLACE(order),
	PLACE(verify),
	PLACE(prewarm),
	PLACE(copy_access_methods),
	PLACE(swap_after),
	PLACE(max_duration),
	PLACE(progress_interval),
};

/*
 * A list of names; whether there are such access methods can't be looked up
 * here.  A job carries it in shared memory of fixed size.
 */
static bool
check_copy_access_methods(char **newval, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*newval);
	List	   *names;
	bool		is_list = SplitIdentifierString(copy, ',', &names);

	list_free(names);
	pfree(copy);
	if (!is_list)
	{
		GUC_check_errdetail("List syntax is invalid.");
		return false;
	}
	if (strlen(*newval) >= sizeof(((MoveSettings *) NULL)->copy_access_methods))
	{
		GUC_check_errdetail("The list is too long.");
		return false;
	}
	return true;
}

/*
 * The moment that a value of index_mover.swap_after means now: a time of day
 * means the next one.  0 = at once.  ERROR 22023 if it is no time.
 *
 * Not a check hook's work: these run outside of transactions as well, where
 * words like "tomorrow" and names of time zones have no meaning.
 */
static TimestampTz
swap_moment(const char *text)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz result = 0;
	bool		time_of_day;

	if (text[strspn(text, " ")] == '\0')
		return 0;
	time_of_day = strchr(text, ':') != NULL &&
		text[		strspn(text, " 0123456789:.")] == '\0' &&
		strspn(text +strspn(text, " "), "0123456789") <= 2;

	PG_TRY();
	{
		const char *full = time_of_day ? psprintf("today %s", text) : text;

		result = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in,
														 CStringGetDatum(full),
														 ObjectIdGetDatum(InvalidOid),
														 Int32GetDatum(-1)));
		if (time_of_day && result <= now)
			result = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in,
															 CStringGetDatum(psprintf("tomorrow %s", text)),
															 ObjectIdGetDatum(InvalidOid),
															 Int32GetDatum(-1)));
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(oldcxt);
		error = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						"index_mover.swap_after", text),
				 errdetail_internal("%s", error->message),
				 errhint("Give a time of day, a timestamp, or \"infinity\".")));
	}
	PG_END_TRY();
	return result;
}

/*
 * Define all settings.  Called once from _PG_init().
 */
void
settings_define(void)
{
	DefineCustomIntVariable("index_mover.lock_timeout",
							"Longest time that one attempt at the exclusive lock may stand in the lock queue.",
							"Others can wait behind the attempt that long. Must be shorter than deadlock_timeout to be of use.",
							&lock_timeout, 100, 1, 10 * 60 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("index_mover.lock_wait",
							"Longest time to keep trying to get a lock, or to wait for other transactions.",
							"0 waits for ever.",
							&lock_wait, 10 * 60 * 1000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("index_mover.on_blocker",
							 "What to do about sessions that are still in the way after index_mover.lock_wait.",
							 "\"wait\" has a copy keep trying; \"fail\" gives this index up; \"cancel\" and \"terminate\" signal the sessions that the calling role could signal itself.",
							 &on_blocker, ON_BLOCKER_WAIT, on_blocker_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("index_mover.on_failure",
							 "How an index that was not moved is reported.",
							 "\"row\" reports it in the result; \"error\" raises an error after the last index.",
							 &on_failure, ON_FAILURE_ROW, on_failure_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("index_mover.give_way",
							 "Whether a copy lets DDL pass that waits behind its locks.",
							 NULL,
							 &give_way, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("index_mover.pacing",
							 "Whether a copy slows itself down while clients feel it.",
							 "Off is as fast as the machine allows.",
							 &pacing, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("index_mover.max_rate",
							"Rate at which the copies of one job together may write, per second.",
							"0 is no limit.",
							&max_rate, 0, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("index_mover.max_replica_lag",
							"How far any standby or replication slot may be behind before a copy waits.",
							"0 is off.",
							&max_replica_lag, 0, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomRealVariable("index_mover.min_free_space",
							 "Share of a file system that must stay free.",
							 "Holds for the target tablespace, pg_wal, and the sort files of a rebuild.",
							 &min_free_space, 0.05, 0.0, 1.0,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomRealVariable("index_mover.rebuild_threshold",
							 "Bloat ratio above which method \"auto\" rebuilds an index.",
							 NULL,
							 &rebuild_threshold, 0.3, 0.0, 1.0,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("index_mover.max_workers",
							"Number of indexes that one call moves at the same time.",
							NULL,
							&max_workers, 2, 1, 8,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("index_mover.order",
							 "Which index of a job is moved first.",
							 NULL,
							 &order, ORDER_SMALLEST, order_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("index_mover.verify",
							 "Whether to compare every block of a copy with the original before the swap.",
							 NULL,
							 &verify, false, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("index_mover.prewarm",
							 "Whether to load the blocks of the new file that were in shared buffers before.",
							 NULL,
							 &prewarm, true, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("index_mover.copy_access_methods",
							   "Further index access methods that method \"copy\" may move.",
							   "Every change of such an index must be WAL-logged with block references.",
							   &copy_access_methods, "",
							   PGC_SUSET, GUC_LIST_INPUT,
							   check_copy_access_methods, NULL, NULL);
	DefineCustomStringVariable("index_mover.swap_after",
							   "Time before which a copy is not swapped in.",
							   "A time of day (the next one) or a timestamp; empty is at once; \"infinity\" is not before resume_move().",
							   &swap_after, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("index_mover.max_duration",
							"Time after which no further index of a job is started.",
							"0 is no limit.",
							&max_duration, 0, 0, INT_MAX / 1000,
							PGC_USERSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("index_mover.progress_interval",
							"Time between two progress messages to a waiting client.",
							"0 sends none.",
							&progress_interval, 5000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);

	MarkGUCPrefixReserved("index_mover");
}

/*
 * Fill *settings with the effective values of this backend.
 */
void
settings_capture(MoveSettings *settings)
{
	memset(settings, 0, sizeof(MoveSettings));
	settings->lock_timeout = lock_timeout;
	settings->lock_wait = lock_wait;
	settings->on_blocker = on_blocker;
	settings->on_failure = on_failure;
	settings->give_way = give_way;
	settings->pacing = pacing;
	settings->max_rate = max_rate;
	settings->max_replica_lag = max_replica_lag;
	settings->min_free_space = min_free_space;
	settings->rebuild_threshold = rebuild_threshold;
	settings->max_workers = max_workers;
	settings->order = order;
	settings->verify = verify;
	settings->prewarm = prewarm;
	settings->max_duration = max_duration;
	settings->progress_interval = progress_interval;
	strlcpy(settings->copy_access_methods, copy_access_methods,
			sizeof(settings->copy_access_methods));
	/* a job that only cleans up can be submitted outside of transactions */
	if (IsTransactionState())
		settings->swap_after = swap_moment(swap_after);
	settings->maintenance_work_mem = maintenance_work_mem;
	settings->max_parallel_maintenance_workers = max_parallel_maintenance_workers;
}

static char *
known_settings(void)
{
	StringInfoData buf;
	int			i;

	initStringInfo(&buf);
	for (i = 0; i < lengthof(places); i++)
		appendStringInfo(&buf, "%s%s", i > 0 ? ", " : "", places[i].name);
	return buf.data;
}

/* Find a setting by its name without prefix; ERROR 22023 if there is none. */
static const SettingPlace *
find_setting(const char *name)
{
	int			i;

	for (i = 0; i < lengthof(places); i++)
		if (strcmp(places[i].name, name) == 0)
			return &places[i];
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unrecognized setting \"%s\"", name),
			 errhint("Valid settings are: %s.", known_settings())));
	return NULL;				/* keep compiler quiet */
}

/* Set a setting to the end of the GUC nest level, with the rights of SET. */
static void
set_setting(const char *name, const char *value)
{
	(void) find_setting(name);
	(void) set_config_option(psprintf("index_mover.%s", name), value,
							 superuser() ? PGC_SUSET : PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* The text of a JSON scalar. */
static char *
setting_text(const char *name, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out,
													   NumericGetDatum(value->val.numeric)));
		case jbvBool:
			return pstrdup(value->val.boolean ? "on" : "off");
		default:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("value of setting \"%s\" must be a string, a number, or a boolean",
							name)));
	}
	return NULL;				/* keep compiler quiet */
}

/*
 * ERROR 22023 if there is no such setting, or a running job has no use for a
 * change of it any more.
 */
void
settings_check_alterable(const char *name)
{
	/*
	 * these have had their effect when the job begins, or belong to the
	 * caller
	 */
	static const char *const fixed[] = {"max_workers", "on_failure", "order"};
	int			i;

	(void) find_setting(name);
	for (i = 0; i < lengthof(fixed); i++)
		if (strcmp(fixed[i], name) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("setting \"%s\" of a job cannot be changed", name),
					 errhint("Cancel the job with cancel_move(), and submit the rest again.")));
}

/*
 * Change one setting of a running job, by its name without prefix.  ERROR as
 * SET: 22023, 42501.
 */
void
settings_alter(MoveSettings *settings, const char *name, const char *value)
{
	const SettingPlace *place = find_setting(name);
	int			nestlevel = NewGUCNestLevel();
	MoveSettings altered;

	/* core checks the value as SET does */
	set_setting(name, value);
	settings_capture(&altered);
	AtEOXact_GUC(true, nestlevel);

	memcpy((char *) settings + place->offset,
		   (char *) &altered + place->offset, place->size);
}

/*
 * Apply a job's "settings" argument as SET LOCAL would, with the same rights.
 * Returns a GUC nest level for AtEOXact_GUC(), or -1 where json is NULL.
 */
int
settings_apply_json(Jsonb *json)
{
	JsonbIterator *it;
	JsonbValue	value;
	JsonbIteratorToken token;
	int			nestlevel;
	char	   *name = NULL;

	if (json == NULL)
		return -1;

	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("settings must be a JSON object"),
				 errhint("For example: %s", "{\"max_rate\": \"50MB\"}")));

	nestlevel = NewGUCNestLevel();
	it = JsonbIteratorInit(&json->root);
	/* values are scalars, so nested containers reach setting_text() as such */
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
		{
			name = pnstrdup(value.val.string.val, value.val.string.len);
			(void) find_setting(name);
		}
		else if (token == WJB_VALUE)
			set_setting(name, setting_text(name, &value));
	}
	return nestlevel;
}
