/*-------------------------------------------------------------------------
 *
 * running_jobs.c
 *	  Files of this server that name the jobs that run: after its end
 *	  their rest goes on by index_mover.resume_at_start.
 *
 * The history cannot say which jobs this server has ended: a standby, a base backup and a copy
 * of the data directory have it, too.  So each job has a file in the data directory from its
 * begin to its end.  It names itself, the host, and the run of the server, as the state file of
 * evidence_record.c does.  The postmaster removes these files, before it starts recovery, unless
 * evidence_start.c has seen that this start follows the end of the last run, and nothing else.
 * src/README, "Jobs that go on after a restart", says why a job does so once.
 *
 * No lock: a file is written by its runner, and later by sessions that steer the job; each
 * of these looks again, when it has written, whether the job still runs.
 *
 * Failures are lines in the server log: then the job does not go on.  So is why a job does not.
 * The postmaster may find that before the server has a log, so the launcher says it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"

#include "compat.h"
#include "device_marker.h"
#include "job.h"
#include "running_jobs.h"
#include "test_points.h"

#define FILE_NAME		"index_mover.job.%u." INT64_FORMAT
#define FILE_HEAD		"index_mover: this server runs this job"

/* set by the postmaster, for its children; "": this server cannot tell which run was before */
static char current_run[DEVICE_ID_SIZE] = "";

/* A job of before that does not go on */
typedef struct ForgottenJob
{
	RunningJob	job;
	const char *why;
} ForgottenJob;

static List *forgotten = NIL;	/* likewise set by the postmaster */

static void
job_path(char *path, Oid database, int64 job)
{
	snprintf(path, MAXPGPATH, FILE_NAME, database, job);
}

/* Set the job that a file names by its own name; false if it is no more than begun. */
static bool
job_of_path(const char *path, RunningJob *job)
{
	int			length = 0;

	return sscanf(path, FILE_NAME "%n", &job->database, &job->job, &length) == 2 &&
		path[length] == '\0';
}

/* Read the file of a job, and set the run that wrote it; false if it is none of this server. */
static bool
read_file(const char *path, RunningJob *job, char *run)
{
	char		host[sizeof(((ServerIdentity *) NULL)->host)];
	ServerIdentity us;
	bool		is_itself;
	int			again;
	int			paused;
	char	   *contents;
	bool		valid;

	contents = own_file_read(path, FILE_HEAD, &is_itself);
	if (contents == NULL)
		return false;
	valid = is_itself && sscanf(contents, "run %32[0-9a-f]\nhost %63[^\n]\nrole %u extension %u again %d paused %d\n",
								run, host, &job->role, &job->extension, &again, &paused) == 6;
	pfree(contents);
	if (!valid)
		return false;
	job->again = again != 0;
	job->is_paused = paused != 0;
	server_identity(&us);
	/* the clone of a machine has all else */
	return strcmp(host, us.host) == 0;
}

/* Return the names of the files, also of some that are no more than begun. */
static List *
list_files(void)
{
	DIR		   *dir = AllocateDir(".");
	struct dirent *entry;
	List	   *result = NIL;

	while ((entry = ReadDirExtended(dir, ".", LOG)) != NULL)
	{
		if (strncmp(entry->d_name, FILE_NAME, strcspn(FILE_NAME, "%")) == 0)
			result = lappend(result, pstrdup(entry->d_name));
	}
	FreeDir(dir);
	return result;
}

/*
 * Return why the job of a file does not go on after this start, or NULL, and set the job.
 * why_none: why none does, or NULL.
 */
static const char *
why_forgotten(const char *path, const char *why_none, bool has_crashed, RunningJob *job)
{
	char		ended_run[DEVICE_ID_SIZE];
	bool		is_ours = read_file(path, job, ended_run);

	if (why_none != NULL)
		return why_none;
	if (!is_ours)
		return "The host had another name, or the file that names the job is damaged, or of an earlier version.";
	if (job->is_paused)
		return "It was paused.";
	if (job->again && has_crashed)
		return "It had gone on before, and the server has crashed since.";
	return NULL;
}

static void
add_forgotten(const RunningJob *job, const char *why)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	ForgottenJob *it = palloc_object(ForgottenJob);

	it->job = *job;
	it->why = why;
	forgotten = lappend(forgotten, it);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * In the postmaster, before it starts recovery: a run of the server begins, which has this
 * number.  Forget all jobs if there is a reason why none goes on: the run does not go on where the
 * last one has ended; jobs that were paused, whose pause has ended; and after a crash jobs that
 * had gone on after another end, as one of these may be why the server crashes.
 */
void
running_jobs_begin(const char *why_none, bool has_crashed, const char *run)
{
	strlcpy(current_run, run, sizeof(current_run));
	list_free_deep(forgotten);
	forgotten = NIL;
	foreach_ptr(const char, path, list_files())
	{
		RunningJob	job;
		bool		names_job = job_of_path(path, &job);
		const char *why = NULL;

		if (names_job)
			why = why_forgotten(path, why_none, has_crashed, &job);
		if (why != NULL)
			add_forgotten(&job, why);
		if (why != NULL || !names_job)
			(void) durable_unlink(path, LOG);
	}
}

/* Write to the server log why a job does not go on. */
static void
tell(const RunningJob *job, const char *why)
{
	ereport(LOG,
			(errmsg("job " INT64_FORMAT " of database %u does not go on after the start of the server",
					job->job, job->database),
			 errdetail_internal("%s", why)));
}

/* Tell so of all jobs that the postmaster has forgotten. */
void
running_jobs_tell_forgotten(void)
{
	foreach_ptr(const ForgottenJob, it, forgotten)
		tell(&it->job, it->why);
}

/* Have a job of before not go on, and say why, unless a user has just ended it. */
void
running_jobs_forget(const RunningJob *job, const char *why)
{
	if (running_jobs_take(job->database, job->job))
		tell(job, why);
}

/* Write the file of a job, durably. */
void
running_jobs_put(const RunningJob *job)
{
	char		path[MAXPGPATH];
	ServerIdentity us;
	char	   *contents;

	if (current_run[0] == '\0')
		return;
	job_path(path, job->database, job->job);
	server_identity(&us);
	contents = psprintf("run %s\nhost %s\nrole %u extension %u again %d paused %d\n", current_run,
						us.host, job->role, job->extension, job->again, job->is_paused);
	if (!own_file_write(path, FILE_HEAD, contents))
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", path)));
	pfree(contents);
}

/*
 * Set a flag in the file of a job, durably, and in its place: a file that is removed meanwhile
 * must not come back.  Returns false if there is none, or it cannot be written.
 */
static bool
write_flag(Oid database, int64 job, const char *name, bool value)
{
	char		path[MAXPGPATH];
	char		contents[1024];
	ssize_t		length;
	const char *flag;
	bool		done = false;
	bool		closed;
	int			save_errno;
	int			fd;

	job_path(path, database, job);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		return false;
	length = read(fd, contents, sizeof(contents) - 1);
	contents[Max(length, 0)] = '\0';
	flag = strstr(contents, name);
	/* it was damaged, or could not be read */
	if (flag == NULL && length >= 0)
		errno = EINVAL;
	else if (flag != NULL)
		done = pg_pwrite(fd, value ? "1" : "0", 1, flag - contents + strlen(name)) == 1;
	if (done)
		done = pg_fsync(fd) == 0;
	save_errno = errno;
	closed = CloseTransientFile(fd) == 0;
	if (!closed && done)
	{
		save_errno = errno;
		done = false;
	}
	errno = save_errno;
	if (!done)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", path)));
	return done;
}

/* Note that a job is to go on: after a crash it does not do so again.  False if it has no file. */
bool
running_jobs_set_again(Oid database, int64 job)
{
	return write_flag(database, job, " again ", true);
}

/*
 * Note that a job is paused, or not any more.  Others may have it paused or resumed, and write
 * the file, before we do: so again, until the file is right.
 */
void
running_jobs_set_paused(Oid database, int64 job, bool paused)
{
	JobSlot		slot;

	for (;;)
	{
		IM_POINT("note-pause");
		(void) write_flag(database, job, " paused ", paused);
		if (!job_find(job, &slot) || slot.flags.pause == paused)
			break;
		paused = slot.flags.pause;
	}
}

/* Remove the file of a job, durably.  Return whether there was one, and is none now. */
bool
running_jobs_take(Oid database, int64 job)
{
	char		path[MAXPGPATH];

	job_path(path, database, job);
	if (access(path, F_OK) != 0)
		return false;
	return durable_unlink(path, LOG) == 0;
}

/* Return whether this server is about to end, by the word that the postmaster writes before it signals its children. */
static bool
server_ends(void)
{
	FILE	   *file;
	char		line[MAXPGPATH] = "";
	bool		result = false;

	if (!PostmasterIsAlive())
		return true;
	file = AllocateFile("postmaster.pid", PG_BINARY_R);
	if (file == NULL)
		return false;
	for (int i = 1; i <= LOCK_FILE_LINE_PM_STATUS; i++)
	{
		if (fgets(line, sizeof(line), file) == NULL)
			line[0] = '\0';
	}
	if (strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0)
		result = true;
	FreeFile(file);
	return result;
}

/* A job has ended, unless it is the server that ends it. */
void
running_jobs_end(Oid database, int64 job)
{
	if (!server_ends())
		(void) running_jobs_take(database, job);
}

static int
compare_jobs(const ListCell *a, const ListCell *b)
{
	const RunningJob *one = lfirst(a);
	const RunningJob *other = lfirst(b);

	if (one->database != other->database)
		return one->database < other->database ? -1 : 1;
	return one->job < other->job ? -1 : 1;
}

/* Return the jobs (RunningJob) that ran when the server ended, of each database by number. */
List *
running_jobs_of_before(void)
{
	List	   *result = NIL;

	foreach_ptr(const char, path, list_files())
	{
		RunningJob *job = palloc0_object(RunningJob);
		char		run[DEVICE_ID_SIZE];

		if (!job_of_path(path, job))
			continue;
		if (!read_file(path, job, run))
			continue;
		/* a job of this run may have begun */
		if (strcmp(run, current_run) != 0)
			result = lappend(result, job);
	}
	list_sort(result, compare_jobs);
	return result;
}
