/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of index_mover, and the copy of them that a job carries.
 *
 * A job's worker does not see the caller's SETs, so the caller's effective
 * values are captured when the job is submitted.  Settings that are not the default
 * are recorded in its row of the job log, as a JSON object in the words of SHOW,
 * so that a later resume_move() or undo_move() works with the same settings.
 *
 * A job's setting is added in two places: a field of MoveSettings, and a row of settings[].
 * src/README, "Settings", says for each who needs it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "optimizer/optimizer.h"
#include "pgtime.h"
#include "utils/builtins.h"
#include "utils/guc_tables.h"
#include "utils/json.h"
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "errors.h"
#include "printed_command.h"
#include "relation_facts.h"
#include "settings.h"

static const struct config_enum_entry on_blocker_options[] = {
	{"wait", ON_BLOCKER_WAIT, false},
	{"fail", ON_BLOCKER_FAIL, false},
	{"cancel", ON_BLOCKER_CANCEL, false},
	{"terminate", ON_BLOCKER_TERMINATE, false},
	{NULL, 0, false}
};

static const struct config_enum_entry online_alter_options[] = {
	{"off", ONLINE_ALTER_OFF, false},
	{"on", ONLINE_ALTER_ON, false},
	{"require", ONLINE_ALTER_REQUIRE, false},
	{NULL, 0, false}
};

static const struct config_enum_entry on_failure_options[] = {
	{"row", ON_FAILURE_ROW, false},
	{"error", ON_FAILURE_ERROR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry auto_switch_options[] = {
	{"auto", SWITCH_AUTO, false},
	{"off", SWITCH_OFF, false},
	{"on", SWITCH_ON, false},
	{"false", SWITCH_OFF, true},
	{"true", SWITCH_ON, true},
	{"no", SWITCH_OFF, true},
	{"yes", SWITCH_ON, true},
	{"0", SWITCH_OFF, true},
	{"1", SWITCH_ON, true},
	{NULL, 0, false}
};

/* the values of this session; strings are converted at capture */
static MoveSettings session;
static char *min_free_space = NULL;
static char *swap_after = NULL;

/* settings that no job carries, see settings.h */
char	   *scheduler_databases = NULL;
int			online_alter = ONLINE_ALTER_OFF;
bool		heal_at_start = false;
bool		resume_at_start = false;
int			history_retention = 0;
bool		hide_new_indexes = false;

static bool check_list(char **newval, void **extra, GucSource source);
static bool check_min_free_space(char **newval, void **extra, GucSource source);

typedef struct Setting
{
	const char *name;
	enum config_type type;
	Size		offset;			/* in MoveSettings, if it is a job's */
	Size		size;
	void	   *variable;		/* NULL = in "session" */
	double		boot;			/* also of an enum or boolean */
	double		min;
	double		max;
	const struct config_enum_entry *options;
	GucStringCheckHook check;
	const char *boot_string;
	GucContext	context;
	int			flags;
	const char *short_desc;
	const char *long_desc;
} Setting;

#define PREFIX		"index_mover."
#define PLACE(field, type) \
	PREFIX #field, type, offsetof(MoveSettings, field), sizeof(((MoveSettings *) NULL)->field)
#define BOOL_SETTING(field, boot, ...) \
	{PLACE(field, PGC_BOOL), NULL, boot, 0, 0, NULL, NULL, NULL, __VA_ARGS__}
#define INT_SETTING(field, boot, min, max, ...) \
	{PLACE(field, PGC_INT), NULL, boot, min, max, NULL, NULL, NULL, __VA_ARGS__}
#define REAL_SETTING(field, boot, min, max, ...) \
	{PLACE(field, PGC_REAL), NULL, boot, min, max, NULL, NULL, NULL, __VA_ARGS__}
#define ENUM_SETTING(field, options, boot, ...) \
	{PLACE(field, PGC_ENUM), NULL, boot, 0, 0, options, NULL, NULL, __VA_ARGS__}
#define STRING_SETTING(field, check, boot, ...) \
	{PLACE(field, PGC_STRING), &field, 0, 0, 0, NULL, check, boot, __VA_ARGS__}

/* All settings of a job, in the order of the manual: first the settings that most users meet */
static const Setting settings[] = {
	INT_SETTING(max_rate, 0, 0, INT_MAX, PGC_USERSET, GUC_UNIT_KB,
				"Rate at which the copies of one job together may write, per second.",
				"0 is no limit."),
	INT_SETTING(max_workers, 2, 1, MAX_WORKERS, PGC_SUSET, 0,
				"Number of relations that one call moves at the same time.",
				NULL),
	INT_SETTING(max_replica_lag, 0, 0, INT_MAX, PGC_SUSET, GUC_UNIT_KB,
				"How far any standby or replication slot may be behind before a copy waits.",
				"0 is off."),
	INT_SETTING(lock_timeout, 100, 1, 10 * 60 * 1000, PGC_SUSET, GUC_UNIT_MS,
				"Longest time that one attempt at the exclusive lock may stand in the lock queue.",
				"Others can wait behind the attempt that long. Must be shorter than deadlock_timeout to be of use."),
	INT_SETTING(lock_wait, 10 * 60 * 1000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS,
				"Longest time to keep trying to get a lock, or to wait for other transactions.",
				"0 waits without limit."),
	ENUM_SETTING(on_blocker, on_blocker_options, ON_BLOCKER_WAIT, PGC_SUSET, 0,
				 "What to do about sessions that are still in the way after index_mover.lock_wait.",
				 "\"wait\" has a copy keep trying; \"fail\" gives this relation up; \"cancel\" and \"terminate\" signal the sessions that the calling role could signal itself."),
	STRING_SETTING(swap_after, NULL, "", PGC_USERSET, 0,
				   "Time before which a copy is not swapped in.",
				   "A time of day (the next one) or a timestamp; empty is at once; \"infinity\" is not before resume_move()."),
	INT_SETTING(max_duration, 0, 0, INT_MAX / 1000, PGC_USERSET, GUC_UNIT_S,
				"Time after which no further relation of a job is started.",
				"0 is no limit."),
	STRING_SETTING(min_free_space, check_min_free_space, "5%, 10GB", PGC_SUSET, 0,
				   "How much of a file system must stay free.",
				   "A share (\"5%\"), a size (\"10GB\"), or both, of which the smaller counts. Holds for the target tablespace, pg_wal, and the sort files of a rebuild."),
	REAL_SETTING(rebuild_threshold, 0.3, 0.0, 1.0, PGC_USERSET, 0,
				 "Bloat ratio above which method \"auto\" rebuilds an index.",
				 NULL),

	/* rarely needed */
	BOOL_SETTING(pacing, true, PGC_USERSET, 0,
				 "Whether a copy slows itself down while clients feel it.",
				 "Off is as fast as the machine allows."),
	REAL_SETTING(max_read_share, 0.5, 0.01, 1.0, PGC_USERSET, 0,
				 "Share of slow storage that the copies of one job together may take for reading.",
				 "Obeyed with index_mover.pacing where a megabyte takes more than 5 ms to be read. 1 is no limit."),
	INT_SETTING(max_lock_time, DEFAULT_MAX_LOCK_TIME, 1, 10 * 60 * 1000, PGC_SUSET, GUC_UNIT_MS,
				"Longest time that a swap may hold the exclusive lock to copy the last blocks.",
				"Larger values let a copy of a very busy relation end."),
	ENUM_SETTING(verify, auto_switch_options, SWITCH_AUTO, PGC_USERSET, 0,
				 "Whether to compare every block of a copy with the original before the swap.",
				 "\"auto\" does it for tables, and not for indexes, which could be rebuilt."),
	BOOL_SETTING(prewarm, true, PGC_USERSET, 0,
				 "Whether to load the blocks of the new file that were in shared buffers before.",
				 NULL),
	ENUM_SETTING(direct_io, auto_switch_options, SWITCH_AUTO, PGC_USERSET, 0,
				 "Whether a copy reads and writes past the operating system's cache.",
				 "\"auto\" does so for a relation larger than an eighth of effective_cache_size, unless the target compresses."),
	INT_SETTING(resumable_size, 10 * 1024 * 1024, -1, INT_MAX, PGC_SUSET, GUC_UNIT_KB,
				"Size above which a copy records how far it is, so that it can go on after its end.",
				"Needs summarize_wal, and so PostgreSQL 17. -1 is never."),
	ENUM_SETTING(on_failure, on_failure_options, ON_FAILURE_ROW, PGC_USERSET, 0,
				 "How a relation that was not moved is reported.",
				 "\"row\" reports it in the result; \"error\" raises an error after the last relation."),
	INT_SETTING(progress_interval, 5000, 0, INT_MAX, PGC_USERSET, GUC_UNIT_MS,
				"Time between two progress messages to a waiting client.",
				"0 sends none, neither at the start nor at the end."),
};

/* All others */
static const Setting server_settings[] = {
	{
		.name = PREFIX "scheduler_databases",.type = PGC_STRING,.variable = &scheduler_databases,
		.check = check_list,.boot_string = "",.context = PGC_SIGHUP,.flags = GUC_LIST_INPUT,
		.short_desc = "Databases in which samples are taken, and tier policies carried out that are due.",
		.long_desc = "The library must be preloaded.",
	},
	{
		.name = PREFIX "online_alter",.type = PGC_ENUM,.variable = &online_alter,
		.boot = ONLINE_ALTER_OFF,.options = online_alter_options,.context = PGC_SUSET,
		.short_desc = "Whether ALTER ... SET TABLESPACE is carried out online.",
		.long_desc = "\"on\" leaves to core what cannot be, with a NOTICE; \"require\" refuses it.",
	},
	{
		.name = PREFIX "heal_at_start",.type = PGC_BOOL,.variable = &heal_at_start,
		.context = PGC_SUSET,
		.short_desc = "Whether lost indexes are rebuilt when the server has started.",
		.long_desc = "In tablespaces with nothing but indexes, where the library is preloaded. Otherwise a WARNING tells of them.",
	},
	{
		.name = PREFIX "resume_at_start",.type = PGC_BOOL,.variable = &resume_at_start,
		.context = PGC_SIGHUP,
		.short_desc = "Whether jobs that the end of the server has ended go on when it has started again.",
		.long_desc = "Jobs for which no session waits, where the library is preloaded. Not after a promotion, and not in a copy of the server.",
	},
	{
		.name = PREFIX "history_retention",.type = PGC_INT,.variable = &history_retention,
		.boot = 365 * 24 * 60,.max = INT_MAX,.context = PGC_SUSET,.flags = GUC_UNIT_MIN,
		.short_desc = "Time after which index_mover_cleanup() deletes a job from the history.",
		.long_desc = "0 keeps all.",
	},
	{
		/* not for users, see rebuild/snapshot_guard.c */
		.name = PREFIX "hide_new_indexes",.type = PGC_BOOL,.variable = &hide_new_indexes,
		.context = PGC_SUSET,
		.flags = GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE | GUC_NO_RESET_ALL,
		.short_desc = "Hides indexes that are newer than the transaction's snapshot from the planner.",
		.long_desc = "Set by index_mover itself until the end of a transaction that has waited for a move.",
	},
};

/* The check hook of a list of names; whether there are such cannot be looked up here. */
static bool
check_list(char **newval, void **extra, GucSource source)
{
	List	   *names;

	if (SplitIdentifierString(pstrdup(*newval), ',', &names))
		return true;
	GUC_check_errdetail("List syntax is invalid.");
	return false;
}

/* Parse a percentage, a size with its unit, or both. */
static bool
parse_free_space(const char *text, FreeSpaceRule *rule)
{
	char	   *rest = pstrdup(text);
	char	   *part;

	rule->share = -1;
	rule->bytes = -1;
	while ((part = strsep(&rest, ",")) != NULL)
	{
		char	   *end;
		double		number;
		int			kb;

		part += strspn(part, " ");
		errno = 0;
		number = strtod(part, &end);
		if (end == part || errno != 0)
			return false;
		end += strspn(end, " ");
		if (*end == '%' && end[1 + strspn(end + 1, " ")] == '\0' &&
			number >= 0 && number <= 100 && rule->share < 0)
			rule->share = number / 100;
		else if ((*end != '\0' || number == 0) && rule->bytes < 0 &&
				 parse_int(part, &kb, GUC_UNIT_KB, NULL) && kb >= 0)
			rule->bytes = (int64) kb * 1024;
		else
			return false;
	}
	return true;
}

static bool
check_min_free_space(char **newval, void **extra, GucSource source)
{
	FreeSpaceRule rule;

	if (parse_free_space(*newval, &rule))
		return true;
	GUC_check_errhint("Give a share of the file system (\"5%%\"), a size (\"10GB\"), or both (\"5%%, 10GB\"), of which the smaller counts.");
	return false;
}

/* Return the bytes that the rule reserves of a file system of this size. */
int64
settings_reserved(const FreeSpaceRule *rule, int64 total)
{
	int64		share = (int64) (total * rule->share);

	if (rule->bytes < 0)
		return share;
	return rule->share < 0 ? rule->bytes : Min(share, rule->bytes);
}

/*
 * Return the words behind a time of day that index_mover.swap_after begins with: its zone, or "";
 * NULL if that is no time of day, but a moment.
 */
static const char *
zone_of_time(const char *value)
{
	const char *zone;
	size_t		digits;

	value += strspn(value, " ");
	digits = strspn(value, "0123456789");
	if ((digits != 1 && digits != 2) || value[digits] != ':')
		return NULL;
	zone = value + strspn(value, "0123456789:.");
	zone += strspn(zone, " ");
	if (*zone == '\0')
		return zone;
	/* a zone without a name, as SHOW TimeZone has it, is in angle brackets */
	if (!isalpha((unsigned char) *zone) && *zone != '<')
		return NULL;
	return strchr(zone, ' ') == NULL && pg_tzset(zone) != NULL ? zone : NULL;
}

/* Return the moment of a time; of a time of day, on this day in the session's zone. */
static TimestampTz
parse_time(const char *day, const char *text, const char *zone)
{
	char	   *time = zone == NULL ? pstrdup(text) : pnstrdup(text, zone - text);

	return DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in,
												   CStringGetDatum(psprintf("%s%s", day, time)),
												   ObjectIdGetDatum(InvalidOid),
												   Int32GetDatum(-1)));
}

/* For errors_catch(): the moment of index_mover.swap_after; a time of day is the next. */
static void
find_swap_moment(void *moment)
{
	const char *zone = zone_of_time(swap_after);
	int			nestlevel = NewGUCNestLevel();
	TimestampTz result;

	/* days, too, begin at another time there */
	if (zone != NULL && *zone != '\0')
		settings_set_here("TimeZone", zone, PGC_USERSET, ERROR);
	result = parse_time(zone != NULL ? "today " : "", swap_after, zone);
	if (zone != NULL && result <= GetCurrentTimestamp())
		result = parse_time("tomorrow ", swap_after, zone);
	AtEOXact_GUC(true, nestlevel);
	*(TimestampTz *) moment = result;
}

/*
 * Return the time that index_mover.swap_after means now; 0 is at once.  ERROR
 * 22023 if it is no time.  A check hook also runs outside of transactions, where
 * words like "tomorrow" and names of time zones have no meaning.
 */
static TimestampTz
swap_moment(void)
{
	TimestampTz result = 0;
	ErrorData  *error;

	if (swap_after[strspn(swap_after, " ")] == '\0')
		return 0;
	error = errors_catch(find_swap_moment, &result);
	if (error != NULL && ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_DATA_EXCEPTION)
		ReThrowError(error);
	if (error != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						"index_mover.swap_after", swap_after),
				 errdetail_internal("%s", error->message),
				 errhint("Give a time of day, a timestamp, or \"infinity\".")));
	return result;
}

static void
define_setting(const Setting *s)
{
	void	   *place = s->variable;

	if (place == NULL)
		place = (char *) &session + s->offset;
	switch (s->type)
	{
#define DEFINE(type, check, ...) \
	DefineCustom##type##Variable(s->name, s->short_desc, s->long_desc, __VA_ARGS__, \
								 s->context, s->flags, check, NULL, NULL)
		case PGC_BOOL:
			DEFINE(Bool, NULL, place, s->boot != 0);
			break;
		case PGC_INT:
			DEFINE(Int, NULL, place, (int) s->boot, (int) s->min, (int) s->max);
			break;
		case PGC_REAL:
			DEFINE(Real, NULL, place, s->boot, s->min, s->max);
			break;
		case PGC_ENUM:
			DEFINE(Enum, NULL, place, (int) s->boot, s->options);
			break;
		case PGC_STRING:
			DEFINE(String, s->check, place, s->boot_string);
			break;
	}
}

/* Define all settings, in _PG_init(). */
void
settings_define(void)
{
	for (int i = 0; i < lengthof(settings); i++)
		define_setting(&settings[i]);
	for (int i = 0; i < lengthof(server_settings); i++)
		define_setting(&server_settings[i]);
	MarkGUCPrefixReserved("index_mover");
}

/* Return the default of a setting, as SET would take it and GetConfigOption() returns it. */
static const char *
default_text(const Setting *s)
{
	switch (s->type)
	{
		case PGC_BOOL:
			return s->boot != 0 ? "on" : "off";
		case PGC_ENUM:
			for (const struct config_enum_entry *e = s->options; e->name != NULL; e++)
			{
				if (e->val == (int) s->boot)
					return e->name;
			}
			return NULL;
		case PGC_STRING:
			return s->boot_string;
		default:
			return psprintf("%.15g", s->boot);
	}
}

/* Return index_mover.swap_after as it is recorded: a time of day is each time the next, in its zone. */
static const char *
describe_swap_after(TimestampTz moment)
{
	const char *zone = zone_of_time(swap_after);

	if (zone == NULL)
		return timestamptz_to_str(moment);
	if (*zone != '\0')
		return swap_after;
	return psprintf("%s %s", swap_after, pg_get_timezone_name(session_timezone));
}

/* Write the settings that are not the default as a JSON object. */
static void
describe_settings(MoveSettings *result)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '{');
	for (int i = 0; i < lengthof(settings); i++)
	{
		const Setting *s = &settings[i];

		if (strcmp(GetConfigOption(s->name, false, false), default_text(s)) == 0 ||
			(s->variable == &swap_after && result->swap_after == 0))
			continue;
		appendStringInfo(&buf, "%s\"%s\": ", buf.len > 1 ? ", " : "",
						 s->name + strlen(PREFIX));

		if (s->variable == &swap_after)
			escape_json(&buf, describe_swap_after(result->swap_after));
		else
			escape_json(&buf, GetConfigOptionByName(s->name, NULL, false));
	}
	appendStringInfoChar(&buf, '}');
	if (buf.len >= IM_SETTINGS_LEN)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the settings of the job are too long")));
	strlcpy(result->not_default, buf.data, IM_SETTINGS_LEN);
}

/* Find a setting by its name without prefix; ERROR 22023 if there is none. */
static const Setting *
find_setting(const char *name)
{
	StringInfoData known;

	initStringInfo(&known);
	for (int i = 0; i < lengthof(settings); i++)
	{
		if (strcmp(settings[i].name + strlen(PREFIX), name) == 0)
			return &settings[i];
		appendStringInfo(&known, "%s%s", i > 0 ? ", " : "", settings[i].name + strlen(PREFIX));
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unrecognized setting \"%s\"", name),
			 errhint("Valid settings are: %s.", known.data)));
	return NULL;				/* keep compiler quiet */
}

static char *
setting_text(const Setting *setting, const JsonbValue *value)
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
							setting->name + strlen(PREFIX))));
	}
	return NULL;				/* keep compiler quiet */
}

/* Raise ERROR 22023 unless the JSON value is an object: no other function here takes another. */
void
settings_check_object(Jsonb *json)
{
	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("settings must be a JSON object"),
				 errhint("For example: %s", "{\"max_rate\": \"50MB\"}")));
}

/* Set a setting, also of core, for the GUC nest level; NULL resets it. */
void
settings_set_here(const char *name, const char *value, GucContext context, int elevel)
{
	(void) set_config_option(name, value, context, PGC_S_SESSION, GUC_ACTION_SAVE, true,
							 elevel, false);
}

/* Set the settings of a JSON object for the GUC nest level, with the privileges of SET. */
static void
apply_json(Jsonb *json)
{
	JsonbIterator *it;
	JsonbValue	value;
	JsonbIteratorToken token;
	const Setting *setting = NULL;

	if (json == NULL)
		return;
	settings_check_object(json);
	it = JsonbIteratorInit(&json->root);
	/* values are scalars, so nested containers reach setting_text() as such */
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			setting = find_setting(pnstrdup(value.val.string.val, value.val.string.len));
		else if (token == WJB_VALUE)
			settings_set_here(setting->name, setting_text(setting, &value),
							  superuser() ? PGC_SUSET : PGC_USERSET, ERROR);
	}
}

/* Return whether the JSON object names a setting, without its prefix. */
bool
settings_names(Jsonb *json, const char *name)
{
	return getKeyJsonValueFromContainer(&json->root, name, strlen(name), NULL) != NULL;
}

/* Raise ERROR 22023 for a setting that is not known, or that a running job ignores. */
void
settings_check_alterable(int64 job, Jsonb *json)
{
	/* these matter only when the job begins, or to the caller */
	static const char *const fixed[] = {"max_workers", "on_failure"};
	int			nestlevel = NewGUCNestLevel();

	apply_json(json);
	AtEOXact_GUC(true, nestlevel);
	for (int i = 0; i < lengthof(fixed); i++)
	{
		if (settings_names(json, fixed[i]))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("setting \"%s\" of a job cannot be changed", fixed[i]),
					 errhint("Submit the rest again, after: %s",
							 printed_command("cancel_move", job))));
	}
}

/*
 * Fill *result with the effective values of this backend, with a call's
 * "settings" argument, which may be NULL, applied like SET LOCAL.  Unless it swaps
 * something, a wrong index_mover.swap_after does not matter, nor a transaction.
 */
void
settings_capture(MoveSettings *result, Jsonb *json, bool swaps)
{
	int			nestlevel = NewGUCNestLevel();

	apply_json(json);
	*result = session;
	(void) parse_free_space(min_free_space, &result->min_free_space);
	if (swaps)
		result->swap_after = swap_moment();
	else
		result->swap_after = 0;
	result->maintenance_work_mem = maintenance_work_mem;
	result->max_parallel_maintenance_workers = max_parallel_maintenance_workers;
	result->temp_file_limit = temp_file_limit;
	if (IsTransactionState())
		describe_settings(result);
	else
		strlcpy(result->not_default, "{}", sizeof(result->not_default));
	AtEOXact_GUC(true, nestlevel);
}

/*
 * As settings_capture(), but from the settings that were recorded for an
 * earlier job, except the setting but_not.  A setting that only a superuser may set is a superuser's
 * policy, which may have changed since: unless trusted, these settings are the session's.
 */
void
settings_load(MoveSettings *result, const char *recorded, Jsonb *json,
			  bool trusted, const char *but_not)
{
	Jsonb	   *object = DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
															CStringGetDatum(recorded)));
	int			nestlevel = NewGUCNestLevel();

	/* a superuser can write anything there */
	settings_check_object(object);
	for (int i = 0; i < lengthof(settings); i++)
	{
		const char *name = settings[i].name + strlen(PREFIX);
		JsonbValue *value = getKeyJsonValueFromContainer(&object->root, name,
														 strlen(name), NULL);
		const char *text;

		if (settings[i].context == PGC_SUSET && !trusted)
			continue;
		if (but_not != NULL && strcmp(name, but_not) == 0)
			value = NULL;
		if (value != NULL)
			text = setting_text(&settings[i], value);

		else
			text = default_text(&settings[i]);

		settings_set_here(settings[i].name, text, PGC_SUSET, ERROR);
	}
	settings_capture(result, json, true);
	AtEOXact_GUC(true, nestlevel);
}

/*
 * Change settings of *result, and its description, as the JSON object says.  ERRORs as of
 * SET: 22023, 42501.
 */
void
settings_alter(MoveSettings *result, Jsonb *json)
{
	MoveSettings altered;

	settings_load(&altered, result->not_default, json, true, NULL);
	for (int i = 0; i < lengthof(settings); i++)
	{
		if (settings_names(json, settings[i].name + strlen(PREFIX)))
			memcpy((char *) result + settings[i].offset,
				   (char *) &altered + settings[i].offset, settings[i].size);
	}
	strlcpy(result->not_default, altered.not_default, IM_SETTINGS_LEN);
}

/* Return the number of a job's settings. */
int
settings_count(void)
{
	return lengthof(settings);
}

/* Return the name of setting n of a job. */
const char *
settings_name(int n)
{
	return settings[n].name;
}

/* Return the default of setting n of a job, as SET would take it. */
const char *
settings_default(int n)
{
	return default_text(&settings[n]);
}
