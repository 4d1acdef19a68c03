/*-------------------------------------------------------------------------
 *
 * evidence_private.h
 *	  Shared by evidence.c and the files evidence_*.c: the evidence of devices as it is on
 *	  record, and in shared memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_EVIDENCE_PRIVATE_H
#define IM_EVIDENCE_PRIVATE_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"

#include "device_marker.h"
#include "evidence.h"

/* evidence_record.c: the devices that this server knows, and the state file that has them on record */

#define STATE_FILE		"index_mover.evidence"

/*
 * Every recovery removes this file, and nothing copies it: see
 * DeleteAllExportedSnapshotFiles() and core's basebackup.c.
 */
#define RUNNING_FILE	"pg_snapshots/index_mover.running"
#define RUNNING_HEAD	"index_mover: no recovery has begun since this run of the server"

/* varsup.c logs the counter of OIDs ahead by so many */
#define OIDS_AHEAD		8192

/* Below this number are all files: while their end is not known */
#define ALL_FILES		((RelFileNumber) PG_UINT32_MAX)

/* Why a device is not known, or lost; the state file has the numbers */
typedef enum EvidenceReason
{
	REASON_NONE,
	REASON_FIRST_SEEN,
	REASON_COPIED_SERVER,
	REASON_UNWATCHED,
	REASON_NO_MARKER,
	REASON_COPIED,
	REASON_UNREADABLE,
	REASON_OTHER,
	REASON_RECOVERED_EMPTY,		/* from here on: lost */
	REASON_LEFT_BEHIND,
	REASON_SERVER_SET_BACK,
	REASON_RECOVERED_ELSEWHERE,
} EvidenceReason;

/*
 * A moment: a file from before it was lost, and a file from after it was not.  The counter of
 * OIDs, from which relfilenumbers come, is known to OIDS_AHEAD.
 */
typedef struct Horizon
{
	RelFileNumber below;		/* no higher number had been given to a file,
								 * unless the counter had gone round; 0:
								 * nothing is lost */
	RelFileNumber certain;		/* all lower numbers had been given; 0: the
								 * counter has gone back */
	TransactionId xid;			/* all transactions before it had ended */
} Horizon;

/*
 * A tablespace.  Written under both locks, and that of the device but for is_in_round,
 * told and the field certain of losses; is_refuted under AREA_LOCK only.  Read under either one.
 */
typedef struct KnownDevice
{
	Oid			tablespace;
	char		id[DEVICE_ID_SIZE]; /* "": it could not be marked */
	FileIdentity directory;		/* that of the server's version; inode 0:
								 * there was none */
	char		location[MAXPGPATH];

	Horizon		lost;			/* files from before it are lost, */
	Horizon		lost_unlogged;	/* files of unlogged relations from before
								 * this */
	RelFileNumber unknown_below;	/* files with a lower number are not known
									 * to be whole; 0 = all are */
	RelFileNumber vouched_from; /* lower files may not have been whole, once */
	RelFileNumber marked_below; /* the device had no file with a higher number
								 * when its marker was written last */
	EvidenceReason reason;		/* of the loss, else of the last verdict that
								 * was not "same" */
	uint32		marked;			/* the epoch that its marker has at least */
	uint32		written;		/* the highest of all markers; a device of
								 * ours with a lower one, but the expected
								 * one, was left behind */
	uint32		epoch;			/* the highest that a marker can have: it is
								 * on record before it is written */
	bool		was_empty;		/* its directory, at all looks */

	/* the last recovery that began without the device */
	XLogRecPtr	missed_checkpoint;	/* from where; 0 = there was none */
	bool		is_pending;		/* it began on an empty directory, and no look
								 * has followed its end */
	char		missed_id[DEVICE_ID_SIZE];	/* the expectation before it */
	uint32		missed_marked;
	Horizon		missed_lost;

	/* not on record */
	Horizon		seen;			/* the last look */
	bool		is_marked_anew; /* since marked_below was noted */
	bool		has_moved;		/* the directory was not that above */
	bool		is_here;		/* at the last look the marker and the
								 * directory were the same as above */
	bool		is_foreign;		/* another server uses the location */
	bool		is_away;		/* its directory was missing, or empty */
	int			mark_errno;		/* of the last attempt to write the marker */
	TimestampTz beaten;			/* when its marker was last to be written */
	double		look_began;		/* the last look that has ended, by
								 * clock_seconds() */
	double		look_ended;
	bool		could_empty;	/* when last saved: see can_empty() */
	bool		told;			/* the loss is in the log */
	bool		is_in_round;	/* the janitor's round looks at its files, */
	bool		is_refuted;		/* and not all are whole */
	uint32		doubts;			/* verdicts since the start by which files are
								 * unknown */
	bool		is_read;		/* it cannot be marked, and since the last of
								 * these a round has found all files whole */
} KnownDevice;

/* The contents of the state file, and of shared memory.  Written as the devices. */
typedef struct DeviceList
{
	char		run[DEVICE_ID_SIZE];	/* of the server */

	/* pg_control when the server has ended; all 0 = it runs, or has crashed */
	uint32		control_crc;
	int64		control_time;
	XLogRecPtr	control_checkpoint;

	RelFileNumber counter;		/* the highest counter of OIDs that was seen;
								 * ALL_FILES: it has gone back since */

	int			max_devices;
	int			ndevices;
	KnownDevice devices[FLEXIBLE_ARRAY_MEMBER];
} DeviceList;

extern const char *const evidence_reasons[];

extern List *evidence_list_tablespaces(void);
extern bool evidence_tablespace_exists(Oid tablespace);
extern Size evidence_list_size(int max_devices);
extern DeviceList *evidence_list_make(int max);
extern DeviceList *evidence_list_load(bool *is_ours);
extern bool evidence_list_save(const DeviceList *list);
extern KnownDevice *evidence_find_device(DeviceList *list, Oid tablespace);
extern KnownDevice *evidence_add_device(DeviceList *list, Oid tablespace);
extern void evidence_remove_devices(DeviceList *list, const List *tablespaces);

/* Return whether files of the device are lost. */
static inline bool
has_lost_files(const KnownDevice *device)
{
	return device->lost.below != 0 || device->lost_unlogged.below != 0;
}

/* Return whether some are lost, or unknown. */
static inline bool
is_doubtful(const KnownDevice *device)
{
	if (has_lost_files(device))
		return true;
	return device->unknown_below != 0 && (device->is_here || !device->is_read);
}

/* Return whether lost files are on the device that is there, and the verdict is final. */
static inline bool
can_empty(const KnownDevice *device)
{
	return has_lost_files(device) && device->is_here && !device->is_pending;
}

/* evidence_area.c: the same in shared memory, and its locks */

#define AREA_NAME		"index_mover evidence"

/* of the LWLocks, in this order; then that of each device */
#define CHANGE_LOCK		0
#define AREA_LOCK		1
#define NLOCKS			2

/* A device that is not looked at in this time hangs: the planner does not wait for it */
#define SLOW_LOOK_MS	1000

/* Databases of which it is known that all lost files are empty; into more, workers come each minute */
#define MOST_MET		1000

/* Tablespaces with lost files of such a database that are noted; if there are more, sessions search */
#define MOST_MET_IN		8

/* Databases in a tablespace of which it is known that files were read */
#define MOST_READ		256

/* A database all of whose lost files are empty, for these losses */
typedef struct MetDatabase
{
	Oid			database;
	uint32		losses;
	int			nindexes;		/* lost ones, one for each tablespace, */
	Oid			indexes[MOST_MET_IN];	/* and the first of these */
} MetDatabase;

/* A database's files in a tablespace with lower numbers are whole, for these doubts: they were read */
typedef struct ReadFiles
{
	Oid			database;
	Oid			tablespace;
	uint32		doubts;
	RelFileNumber below;
} ReadFiles;

typedef struct EvidenceArea
{
	pg_atomic_uint32 losses;	/* 0 = no file is lost; changes with each
								 * verdict, when one is taken back, when a
								 * device with lost files comes, and when a
								 * prepared transaction ends that may have had
								 * a lost index */
	uint32		nlosses;		/* since the start */
	pg_atomic_uint32 again_wanted;	/* 1: all are to meet the losses once more */
	pg_atomic_uint64 again_at;	/* when all were told so last, by clock_us();
								 * written under CHANGE_LOCK */
	Oid			counter_flushed;	/* to this number the WAL on disk has the
									 * counter of OIDs; under AREA_LOCK */
	RelFileNumber made_before;	/* files from before the server has started */
	int			janitor;		/* number of its process; -1 = none */
	pg_atomic_uint32 look_wanted;	/* 1: it is to look, since a tablespace
									 * was created or dropped, or the first
									 * loss was found */
	XLogRecPtr	running_from;	/* some moment after recovery, before a hash
								 * index was spoiled; under AREA_LOCK */
	bool		is_saved;		/* the state file has the same */
	bool		jobs_are_told;	/* the log says why jobs of before do not go
								 * on */
	MetDatabase met[MOST_MET];	/* under AREA_LOCK, as the next */
	int			next_met;		/* place */
	ReadFiles	read[MOST_READ];	/* likewise */
	int			next_read;
	DeviceList	list;
} EvidenceArea;

/*
 * Which tablespace has, or had last, the LWLock of this number.  Under AREA_LOCK.  There are as
 * many as devices, so one is free whenever a process begins to look.
 */
typedef struct DeviceLock
{
	Oid			tablespace;		/* InvalidOid: none */
	double		began;			/* its last look, by clock_seconds() */
} DeviceLock;

extern EvidenceArea *evidence_area;
extern DeviceLock *evidence_device_locks;	/* evidence_area->list.max_devices
											 * of them */

extern LWLock *evidence_lock(int lock);
extern LWLock *evidence_lock_device(Oid tablespace, bool waits);
extern bool evidence_recall(Oid tablespace, KnownDevice *device);
extern void evidence_publish(const KnownDevice *device);
extern List *evidence_list_devices(bool (*is_such) (const KnownDevice *device));
extern void evidence_wake_launcher(bool looks);
extern void evidence_save(void);

/* Return whether the counter of OIDs has gone back, so that no number tells which files are older. */
static inline bool
counter_went_back(const DeviceList *list)
{
	return list->counter == ALL_FILES;
}

/* evidence_verdict.c: the verdict of a look at a device, and its marker */

/* More arguments of a look at a device */
typedef struct Circumstances
{
	bool		at_start;		/* the postmaster's look */
	bool		beats;			/* markers are written again */
	bool		recovers;		/* recovery is about to begin, or under way */
	bool		has_crashed;	/* which is about to begin for that */
	bool		is_restored;	/* from a backup: pg_control does not say from
								 * where it begins */
	bool		is_trusted;		/* the state file is of this server */
	bool		is_watched;		/* no server has run without the library since */
	bool		is_standby;		/* it goes on with the WAL of another server */
	XLogRecPtr	checkpoint;		/* from which recovery is about to begin */
	Horizon		horizon;		/* recovery's begin, or this look */
	RelFileNumber below;		/* files from before this look, and files of
								 * which the WAL may not have all */
} Circumstances;

extern void evidence_trust_no_number(Circumstances *now);
extern bool evidence_has_expected(const KnownDevice *device, const DeviceLook *look);
extern bool evidence_note_beat(KnownDevice *device, const DeviceLook *look);
extern bool evidence_conclude(KnownDevice *device, bool is_known, const DeviceLook *look,
							  const Circumstances *now);
extern bool evidence_mark(KnownDevice *device, DeviceLook *look, const Circumstances *now);

/* evidence_start.c: the look before recovery */
extern bool evidence_is_preloaded;

/* evidence_look.c: looks while the server runs */
extern bool evidence_look_at(Oid tablespace, bool waits, bool beats);
extern bool evidence_look_for(Oid tablespace, KnownDevice *device);

#endif							/* IM_EVIDENCE_PRIVATE_H */
