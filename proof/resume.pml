/*
 * resume.pml
 *	  A model of src/README, "A copy that goes on": what may be taken over of a file that a
 *	  copy has left, on the server that has made it, on a standby that was promoted, on an
 *	  old primary after pg_rewind, and on a device that lost something.
 *
 * R1 is said of each block, so the model has one, b.  A version of it is a number; k is
 * whether it is below.  The WAL is a sequence of records, of each server its own.
 *
 * Searches, each of all interleavings within its bounds, and more of them with --deep:
 * search	-DCHANGES=1 -DENDS=2 -DRECORDS=6
 * deep		-DCHANGES=1 -DENDS=2 -DRECORDS=7
 * deep		-DCHANGES=2 -DENDS=2 -DRECORDS=7
 *
 * Safeguards.  Without any of them (-DWITHOUT_..) a claim falls.  resume-.. are switches of the
 * C, too (IM_MUTATION).
 * without	record-sync			what a row calls durable is synced before	-DLOSS=0
 * without	resume-late			changes count from where the list was taken, not from the row	-DLOSS=0
 * without	resume-summaries	what changed since is copied again	-DLOSS=0
 * without	resume-limit		what was cut off F since is not taken over	-DLOSS=0
 * without	resume-buffers		recovery's buffers of N are written and dropped first	-DLOSS=0
 * without	resume-unflushed	a record is flushed before its block below k is written	-DLOSS=0
 * without	flush-all			and, by a copy that goes on, before every block	-DLOSS=0
 * without	marker				a device without the marker vouches for nothing	-DLOSS=1 -DWITHOUT_ZEROS
 * without	look				a recovery that ran without the device is known afterwards	-DLOSS=2
 * without	zeros				a block of zeros counts as changed	-DLOSS=4
 */
#ifndef CHANGES
#define CHANGES		1			/* changes of b, on both servers together */
#endif
#ifndef ENDS
#define ENDS		2			/* kills of the copy and crashes of a server, together */
#endif
#ifndef RECORDS
#define RECORDS		6			/* in the WAL of a server */
#endif

#ifndef LOSS
#define LOSS		7			/* 1: all of a device, 2: what recovery did without it, 4: a block */
#endif

#define NONE		0			/* the file has no such block */
#define ZEROS		15			/* recovery has extended the file over it */
#define EMPTY		14			/* a page of zeros, by which F was extended */
#define FIRST		1			/* the version of b at first */

mtype = { CHANGE, CUT_F, IMAGE, CUT_N, ROW };
typedef Wal { mtype kind[RECORDS]; byte value[RECORDS]; byte length; byte flushed }
Wal wal[2];

/* What a server has: b of F by its WAL; of N in the kernel, on disk, and in a buffer */
byte F[2] = FIRST, N[2], N_disk[2], N_buffer[2];
bool row[2], row_covers[2];		/* the ledger's row: is b below k */
byte row_P[2];

/* Its copy */
bool running[2], resumed[2], done[2], listed[2], unread[2], newer[2], recorded[2], logged[2];
bool taking[2], cutting[2];
byte page[2], P[2], taken[2];

/* Evidence: the device has the marker that the server expects, for longer than it has N */
bool marker[2] = true, was_lost[2];

bool primary[2], standby[2];
byte fork_at, promotions;
bool rewound, named;
byte rewind_from;
byte versions = FIRST, changes, ends, losses;

#define CLAIM(condition, words) if :: (condition) :: else -> printf(words); assert(false) fi
#ifdef WITHOUT_MARKER
#define VOUCHES(x) true
#else
#define VOUCHES(x) (marker[x] && !was_lost[x])		/* step: vouch */
#endif
#define ACTS(x) (primary[x] && !(x == 1 && primary[0]))
#define IS_FULL(x) (wal[x].length == RECORDS)

inline append(x, k, v) { wal[x].kind[wal[x].length] = k; wal[x].value[wal[x].length] = v; wal[x].length++ }

/* Put the state of F and of the row to what the WAL says */
inline read_history(x)
{
	F[x] = FIRST; row[x] = false; row_covers[x] = false; row_P[x] = 0;
	for (i : 0 .. RECORDS - 1) {
		if
		:: i >= wal[x].length -> wal[x].kind[i] = 0; wal[x].value[i] = 0
		:: i < wal[x].length && wal[x].kind[i] == CHANGE -> F[x] = wal[x].value[i]
		:: i < wal[x].length && wal[x].kind[i] == CUT_F -> F[x] = NONE
		:: i < wal[x].length && wal[x].kind[i] == ROW ->
			row[x] = true; row_covers[x] = wal[x].value[i] / 16; row_P[x] = wal[x].value[i] % 16
		:: else
		fi
	}
	i = 0
}

/* xlogrecovery.c: images and truncations of N from a position on, into buffers */
inline replay_N(x, from)
{
	for (i : 0 .. RECORDS - 1) {
		if
		:: i >= from && i < wal[x].length && wal[x].kind[i] == IMAGE -> N_buffer[x] = wal[x].value[i]
		:: i >= from && i < wal[x].length && wal[x].kind[i] == CUT_N -> N_buffer[x] = NONE; N[x] = NONE; N_disk[x] = NONE
		:: else
		fi
	}
	i = 0
}

inline forget_copy(x)
{
	running[x] = false; resumed[x] = false; done[x] = false; listed[x] = false; unread[x] = false; newer[x] = false;
	recorded[x] = false; logged[x] = false; taking[x] = false; cutting[x] = false; page[x] = 0; P[x] = 0; taken[x] = 0
}

inline forget_server(x)
{
	forget_copy(x);
	primary[x] = false; wal[x].length = 0; wal[x].flushed = 0; N_buffer[x] = NONE;
	read_history(x)
}

/* Any position may be the redo position */
inline choose_redo(x)
{
	from = 0;
	do
	:: from < wal[x].length -> from++
	:: break
	od
}

/* The server x stops and starts again: what is not flushed, or synced, is lost or not */
inline crash(x)
{
	do
	:: wal[x].length > wal[x].flushed -> wal[x].length--
	:: break
	od;
	wal[x].flushed = wal[x].length;
	if
	:: N_buffer[x] == NONE -> N[x] = N_disk[x]
	:: N_buffer[x] == NONE -> N_disk[x] = N[x]
	:: else
	fi;
	forget_copy(x);
	if
	:: choose_redo(x); printf("server %d crashes\n", x);
		if
		:: N_buffer[x] != NONE -> N[x] = N_buffer[x]; N_disk[x] = N_buffer[x]	/* by a checkpoint, or again by replay */
		:: else
		fi
	:: losses == 0 && (LOSS & 1) -> losses++; printf("server %d crashes, and its device comes back empty\n", x);
		choose_redo(x);
		marker[x] = false; N[x] = NONE; N_disk[x] = NONE;
		if
		:: true				/* the file is not made again, or is too short */
		:: N[x] = ZEROS; N_disk[x] = ZEROS		/* an image of a later block extends it */
		fi
	:: losses == 0 && (LOSS & 2) && (N[x] != NONE || N_buffer[x] != NONE) -> losses++;
		printf("server %d crashes, and recovers while its device is not mounted\n", x);
		from = RECORDS;
		if :: N_buffer[x] != NONE -> N[x] = N_buffer[x]; N_disk[x] = N_buffer[x] :: true fi;
#ifndef WITHOUT_LOOK
		was_lost[x] = true	/* step: look-before-recovery */
#endif
	:: losses == 0 && (LOSS & 4) && (N[x] != NONE || N_buffer[x] != NONE) -> losses++; printf("server %d crashes, and its device has lost block b of N\n", x);
		choose_redo(x);
		N[x] = ZEROS; N_disk[x] = ZEROS
	fi;
	N_buffer[x] = NONE;
	d_step { replay_N(x, from); read_history(x); from = 0 }
}

/* A standby replays what the primary has flushed, up to any record */
inline replay_more(x, y)
{
	do
	:: wal[x].length < wal[y].length ->
		d_step {
			from = wal[x].length;
			if :: wal[y].flushed <= from -> wal[y].flushed = from + 1 :: else fi;
			wal[x].kind[from] = wal[y].kind[from]; wal[x].value[from] = wal[y].value[from];
			wal[x].length++; wal[x].flushed = wal[x].length;
			replay_N(x, from); from = 0
		}
	:: break
	od;
	true;
	d_step { read_history(x); printf("server %d replays %d records\n", x, wal[x].length) }
}

#define s _pid
#define o (1 - _pid)

active [2] proctype Server()
{
	byte i, from;
	bool changed, cut;

	do
	/* ---- Clients */
	:: atomic { ACTS(s) && !IS_FULL(s) && changes < CHANGES ->
		changes++; versions++; append(s, CHANGE, versions); F[s] = versions; unread[s] = running[s] || taking[s]; newer[s] = page[s] != 0;
		printf("server %d: b changes to version %d\n", s, versions) }
	:: atomic { ACTS(s) && !IS_FULL(s) && !running[s] && !taking[s] && row[s] && F[s] != NONE ->
		append(s, CUT_F, 0); wal[s].flushed = wal[s].length; F[s] = NONE;
		printf("server %d: VACUUM cuts F, and b is gone\n", s) }

	:: atomic { ACTS(s) && !running[s] && !taking[s] && F[s] == NONE && row[s] -> F[s] = EMPTY;
		printf("server %d: F is extended to b by zeros, without a record\n", s) }

	/* ---- The copy */
	:: atomic { running[s] && ACTS(s) && page[s] == 0 && F[s] != NONE && (!done[s] || listed[s]) ->
		newer[s] = false; page[s] = F[s]; printf("server %d: the copy reads version %d\n", s, page[s]) }
	:: atomic { running[s] && ACTS(s) && page[s] != 0 && !logged[s] && !IS_FULL(s) ->
		logged[s] = true; append(s, IMAGE, page[s]);
		printf("server %d: the copy logs version %d\n", s, page[s]);
		if
#ifndef WITHOUT_RESUME_UNFLUSHED
#ifdef WITHOUT_FLUSH_ALL
		:: recorded[s] ->
#else
		:: recorded[s] || resumed[s] ->
#endif
			wal[s].flushed = wal[s].length; printf("server %d: and flushes that\n", s)	/* step: flush-first */
#endif
		:: else
		fi }
	:: atomic { running[s] && ACTS(s) && logged[s] ->
		CLAIM(N_buffer[s] == NONE, "REFUTED a block of N is written directly only if it has no buffer\n");
		N[s] = page[s]; page[s] = 0; logged[s] = false; done[s] = true; listed[s] = false; unread[s] = newer[s]; newer[s] = false;
		printf("server %d: the copy writes b\n", s) }
	/* a round: the list is taken; copied; emptied */
	:: atomic { running[s] && ACTS(s) && page[s] == 0 && done[s] && !listed[s] && taken[s] == 0 && P[s] < wal[s].length ->
		wal[s].flushed = wal[s].length; listed[s] = unread[s]; unread[s] = false; taken[s] = wal[s].length + 1;	/* step: take-position */
		printf("server %d: the copy reads the WAL, and begins a round\n", s) }
	:: atomic { running[s] && ACTS(s) && page[s] == 0 && !listed[s] && taken[s] > 0 ->
		wal[s].flushed = wal[s].length; P[s] = taken[s] - 1; taken[s] = 0;		/* step: move-position */
		printf("server %d: the round ends, and changes count from its begin\n", s) }
	/* record: what was written is durable; then the row */
	:: atomic { running[s] && ACTS(s) && page[s] == 0 && !listed[s] && taken[s] == 0 && !IS_FULL(s) &&
			(row_covers[s] != done[s] || row_P[s] != P[s] || N_disk[s] != N[s]) ->
#ifndef WITHOUT_RECORD_SYNC
		N_disk[s] = N[s];		/* step: record-sync */
#endif
#ifdef WITHOUT_RESUME_LATE
		P[s] = wal[s].length;
#endif
		append(s, ROW, (done[s] -> 16 : 0) + P[s]); wal[s].flushed = wal[s].length;	/* step: record */
		row[s] = true; row_covers[s] = done[s]; row_P[s] = P[s]; recorded[s] = done[s];
		printf("server %d: the row is committed: %d blocks of one are durable, changes count from record %d on\n", s, done[s], P[s]) }
	:: atomic { running[s] && ACTS(s) && ends < ENDS -> ends++; forget_copy(s); printf("server %d: the copy is killed\n", s) }

	/* ---- Another copy takes over what may be trusted */
	:: atomic { ACTS(s) && !running[s] && !taking[s] && row[s] && (N[s] != NONE || N_buffer[s] != NONE) && VOUCHES(s) -> d_step {
		printf("server %d: a copy looks what it can take over\n", s);
		changed = false; cut = false;
		for (i : 0 .. RECORDS - 1) {
			if
			:: i >= row_P[s] && i < wal[s].length && wal[s].kind[i] == CHANGE -> changed = true
			:: i >= row_P[s] && i < wal[s].length && wal[s].kind[i] == CUT_F -> cut = true
			:: else
			fi
		}
		i = 0;
#ifdef WITHOUT_RESUME_SUMMARIES
		changed = false;	/* step: find-changes */
#endif
#ifdef WITHOUT_RESUME_LIMIT
		cut = false;
#endif
#ifndef WITHOUT_RESUME_BUFFERS
		if
		:: N_buffer[s] != NONE -> N[s] = N_buffer[s]; N_disk[s] = N[s]; N_buffer[s] = NONE	/* step: drop-buffers-first */
		:: else
		fi;
#endif
		if
#ifndef WITHOUT_ZEROS
		:: N[s] == ZEROS -> changed = true	/* step: look-at-pages */
#endif
		:: else
		fi;
		if
		:: row_covers[s] && !cut && !changed && F[s] != NONE ->
			CLAIM((N_buffer[s] != NONE -> N_buffer[s] : N[s]) == F[s], "REFUTED R1: what is taken over equals F\n")
		:: else
		fi;
		taking[s] = true; done[s] = row_covers[s] && !cut && F[s] != NONE; listed[s] = changed && done[s];
		cut = false; changed = false } }
	:: atomic { taking[s] && ACTS(s) && !cutting[s] && !IS_FULL(s) ->
		append(s, ROW, (done[s] -> 16 : 0) + row_P[s]); wal[s].flushed = wal[s].length;	/* step: lower-row */
		row_covers[s] = done[s]; cutting[s] = true;
		printf("server %d: the row is committed again: %d blocks of one\n", s, done[s]) }
	:: atomic { taking[s] && ACTS(s) && cutting[s] && (done[s] || !IS_FULL(s)) ->
		if
		:: !done[s] && N[s] != NONE -> append(s, CUT_N, 0); wal[s].flushed = wal[s].length;	/* step: cut */
			N[s] = NONE; N_disk[s] = NONE; N_buffer[s] = NONE; printf("server %d: N is cut, b is gone\n", s)
		:: else
		fi;
		taking[s] = false; cutting[s] = false; running[s] = true; resumed[s] = true; recorded[s] = done[s]; P[s] = row_P[s];
		printf("server %d: the copy goes on\n", s) }

	/* ---- Ends */
	:: atomic { ACTS(s) && ends < ENDS -> ends++; crash(s) }
	/* What a standby does before its promotion does not matter to others */
	:: atomic { standby[s] && primary[o] && promotions < 2 ->
		replay_more(s, o);
		if :: ends < ENDS && losses == 0 -> ends++; crash(s); replay_more(s, o) :: true fi;
		standby[s] = false; primary[s] = true; promotions++; fork_at = (rewound -> 0 : wal[s].length);
		if :: rewound -> forget_server(o); N[o] = NONE; N_disk[o] = NONE :: else fi;
		printf("server %d is promoted\n", s) }
	/*
	 * What the old primary does after the fork does not matter to the new one, which waits
	 * here.  Then it is stopped; and pg_rewind will copy what its WAL names from a
	 * checkpoint before the fork on.
	 */
	:: atomic { s == 0 && primary[0] && primary[1] ->
		if :: N_buffer[0] != NONE -> N[0] = N_buffer[0] :: else fi;
		N_disk[0] = N[0];
		from = 0;
		do
		:: from < fork_at -> from++
		:: break
		od;
		d_step {
			for (i : 0 .. RECORDS - 1) {
				named = named || (i >= from && i < wal[0].length && wal[0].kind[i] == IMAGE)
			}
			forget_server(0);
			rewind_from = from; from = 0; fork_at = 0;
			printf("server 0 is stopped\n")
		} }
	:: atomic { s == 0 && !primary[0] && !standby[0] && primary[1] && promotions == 1 -> d_step {
		if
		:: named || N[0] == NONE || (N_buffer[1] == NONE && N[1] == NONE) -> N[0] = (N_buffer[1] != NONE -> N_buffer[1] : N[1])
		:: else
		fi;
		named = false; N_disk[0] = N[0];
		for (i : 0 .. RECORDS - 1) { wal[0].kind[i] = wal[1].kind[i]; wal[0].value[i] = wal[1].value[i] }
		wal[0].length = wal[1].length; wal[1].flushed = wal[1].length; wal[0].flushed = wal[0].length;
		replay_N(0, rewind_from); read_history(0);
		rewind_from = 0; standby[0] = true; rewound = true;
		printf("server 0 is rewound, and is a standby\n")
		} }
	od
}

init
{
	atomic { primary[0] = true; standby[1] = true; running[0] = true }
}
