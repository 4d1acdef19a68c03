/*-------------------------------------------------------------------------
 *
 * launcher_round.c
 *	  The launcher's rounds of cleanups.
 *
 * A round visits all databases, one after the other; launcher.c says when it begins.  It begins and
 * ends with an answer of the watch.
 *
 * Locks: none of its own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "evidence.h"
#include "test_points.h"
#include "worker/launcher_private.h"

/* while a device is not known, or files are lost: a user may have healed it */
#define DOUBTFUL_MS		(60 * 60 * 1000)

typedef enum RoundStage
{
	ROUND_TO_BEGIN,				/* when the watch answers */
	ROUND_VISITS,				/* in a pass: cleanups are due, or at work */
	ROUND_PASS_ENDS,			/* when the watch answers */
	ROUND_RESTS,				/* between two passes, or at its end */
} RoundStage;

/*
 * A round of cleanups.  A cleanup stops where a job cannot start yet; so after a first pass
 * through all databases the round has others, through the databases whose cleanups are to go on.
 */
typedef struct Round
{
	RoundStage	stage;
	int64		began;
	uint64		missing;		/* in the answer of the watch when it began */
	List	   *doubtful;		/* evidence_doubtful() when it began */
	List	   *databases;		/* that were to be visited so far */
	bool		is_first_pass;
	int			put_off;		/* cleanups that go on in the next pass */
	bool		is_complete;	/* all cleanups so far came to their end */
	bool		told;			/* that no worker was free, in this pass */
	int64		look_due;		/* at the devices, while it rests; NOT_DUE:
								 * the watch was asked */

	/* the last answer of the watch */
	bool		has_answer;		/* which launcher_round_serve() has not seen */
	uint64		missing_now;
} Round;

static Round current_round;

/*
 * Have all devices looked at from now on.  The answer of a worker that has begun before does not
 * count.
 */
void
launcher_round_ask_watch(bool settles)
{
	launcher_watch->watch.settles = settles;
	launcher_watch->due = 0;
	current_round.has_answer = false;
}

/* Take the answer of the watch. */
void
launcher_round_answer(uint64 missing)
{
	current_round.has_answer = true;
	current_round.missing_now = missing;
}

/*
 * Have all databases visited that the round has not listed yet, and return whether there are
 * some.  If something is lost or unknown, databases that accept no connections have files,
 * too, which a database that is made of such a template gets.
 */
static bool
visit_databases(int64 now)
{
	Round	   *round = &current_round;
	List	   *databases = launcher_list_databases(NULL, round->doubtful != NIL);

	databases = list_difference_oid(databases, round->databases);
	foreach_oid(database, databases)
	{
		Visit	   *visit = launcher_add_visit(VISIT_CLEANUP, Max(now, launcher_first_visits));
		MemoryContext oldcontext;

		visit->look.database = database;
		oldcontext = MemoryContextSwitchTo(launcher_context);
		round->databases = lappend_oid(round->databases, database);
		MemoryContextSwitchTo(oldcontext);
	}
	return databases != NIL;
}

/* Begin a round, after an answer of the watch: a cleanup of each database is due. */
static void
begin_cleanup_round(int64 now)
{
	Round	   *round = &current_round;
	MemoryContext oldcontext;
	List	   *before = list_copy(launcher_visits);

	/* cleanups of the last round that were to go on; none is at work */
	foreach_ptr(Visit, visit, before)
	{
		if (visit->kind == VISIT_CLEANUP)
			launcher_remove_visit(visit);
	}
	list_free(round->doubtful);
	list_free(round->databases);
	round->databases = NIL;
	round->began = now;
	round->missing = round->missing_now;
	oldcontext = MemoryContextSwitchTo(launcher_context);
	round->doubtful = evidence_doubtful();
	MemoryContextSwitchTo(oldcontext);
	evidence_begin_round();
	round->stage = ROUND_VISITS;
	round->is_first_pass = true;
	round->is_complete = true;
	round->told = false;
	(void) visit_databases(now);
}

/* Return the number of cleanups that are due in this pass; *put_off: that are in the next one. */
static int
count_cleanups(int *put_off)
{
	int			result = 0;

	*put_off = 0;
	foreach_ptr(const Visit, visit, launcher_visits)
	{
		if (visit->kind != VISIT_CLEANUP)
			continue;
		if (visit->due == NOT_DUE)
			(*put_off)++;
		else
			result++;
	}
	return result;
}

/* Have the cleanups of this pass wait; with put_off, only such as go on in the next pass. */
static void
delay_cleanups(int64 due, bool put_off)
{
	foreach_ptr(Visit, visit, launcher_visits)
	{
		if (visit->kind == VISIT_CLEANUP && (visit->due == NOT_DUE) == put_off)
			visit->due = due;
	}
}

/* Note when the devices are looked at next, while the round rests. */
static void
plan_next_look(int64 now)
{
	Round	   *round = &current_round;

	round->look_due = now + RETRY_MS;
	if (round->missing != 0 || evidence_doubtful() != NIL)
		return;
	round->look_due = Max(round->look_due, round->began + AGAIN_MS);
	/* the markers are written again */
	round->look_due = Min(round->look_due, now + evidence_beat_ms());
}

/* A pass has visited all its databases. */
static void
end_pass(int put_off)
{
	Round	   *round = &current_round;

	round->stage = ROUND_PASS_ENDS;
	round->put_off = put_off;
	launcher_round_ask_watch(round->is_first_pass && put_off == 0 && round->is_complete);
}

/* The watch has answered after a pass. */
static void
begin_to_rest(int64 now)
{
	Round	   *round = &current_round;
	bool		was_first = round->is_first_pass;

	round->is_first_pass = false;
	/* the healed indexes may be all that was in doubt */
	if (!was_first && round->put_off == 0)
	{
		begin_cleanup_round(now);
		return;
	}
	round->stage = ROUND_RESTS;
	round->told = false;
	plan_next_look(now);
	delay_cleanups(now + CLEANUP_AGAIN_MS, true);
}

/* Return whether another round is to begin, while this one rests. */
static bool
round_is_over(int64 now)
{
	const Round *round = &current_round;
	List	   *doubtful = evidence_doubtful();
	int64		again_ms = AGAIN_MS;

	if (doubtful != NIL)
		again_ms = DOUBTFUL_MS;
	if (round->missing_now != round->missing)
		return true;
	if (list_difference_oid(doubtful, round->doubtful) != NIL)
		return true;
	return now - round->began >= again_ms;
}

/* Go on with a round that rests; as launcher_round_serve(). */
static int64
serve_rest(int64 now, bool has_answer)
{
	Round	   *round = &current_round;
	bool		is_wanted;

	if (has_answer && round_is_over(now))
	{
		begin_cleanup_round(now);
		return NOT_DUE;
	}
	if (has_answer)
		plan_next_look(now);
	/* the latch was set for a new tablespace */
	is_wanted = evidence_take_wish();
	if (is_wanted || now >= round->look_due)
	{
		launcher_round_ask_watch(false);
		round->look_due = NOT_DUE;
	}
	/* is the next pass due? */
	foreach_ptr(const Visit, visit, launcher_visits)
	{
		if (visit->kind == VISIT_CLEANUP && visit->due <= now)
			round->stage = ROUND_VISITS;
	}
	return round->look_due;
}

/*
 * Go on with the round, when cleanups may have ended, or the watch has answered.  Returns when to
 * do so again, if no visit is due before.
 */
int64
launcher_round_serve(int64 now)
{
	Round	   *round = &current_round;
	bool		has_answer = round->has_answer;
	int			put_off;

	round->has_answer = false;
	switch (round->stage)
	{
		case ROUND_TO_BEGIN:
			if (has_answer)
				begin_cleanup_round(now);
			break;
		case ROUND_VISITS:

			/*
			 * a database that was made meanwhile may be a copy of one that
			 * was healed only later
			 */
			if (count_cleanups(&put_off) == 0)
			{
				if (!visit_databases(now))
					end_pass(put_off);
			}
			break;
		case ROUND_PASS_ENDS:
			if (has_answer)
				begin_to_rest(now);
			/* the latch may have been set meanwhile for a new tablespace */
			if (round->stage == ROUND_RESTS)
				return serve_rest(now, false);
			break;
		case ROUND_RESTS:
			return serve_rest(now, has_answer);
	}
	return round->stage == ROUND_RESTS ? round->look_due : NOT_DUE;
}

/* Start a cleanup; false, and all wait, if no worker is free. */
bool
launcher_round_start_cleanup(Visit *visit, int64 now)
{
	dsm_segment *segment;

	visit->worker = job_launch_look(&visit->look, &segment);
	if (visit->worker != NULL)
	{
		visit->answer = segment;
		return true;
	}
	if (!current_round.told)
		job_launch_warn();
	current_round.told = true;
	delay_cleanups(now + RETRY_MS, false);
	return false;
}

/* Take the result of a cleanup: it goes on in the next pass, or has ended. */
void
launcher_round_end_cleanup(Visit *visit, int64 now)
{
	const JobShared *answer = dsm_segment_address(visit->answer);

	visit->look = answer->look;
	launcher_forget_worker(visit);
	if (!visit->look.done)
		current_round.is_complete = false;
	visit->look.from = visit->look.stopped;
	visit->look.stopped = InvalidOid;
	if (OidIsValid(visit->look.from))
		visit->due = NOT_DUE;
	else
		launcher_remove_visit(visit);
}
