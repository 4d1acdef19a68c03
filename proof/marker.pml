/*
 * marker.pml
 *	  A model of src/README, "Evidence for a device": what a server knows of the device below
 *	  a tablespace, by a number and an epoch on the device, and those on record.
 *
 * There is one index, and three devices that can be in its place: its own (0); a mount point
 * with nothing mounted, or a new disk (1); and a copy of what was in place, or a snapshot of its
 * blocks (2).
 *
 * Searches, each of all interleavings within its bounds:
 * search	-DENDS=2
 * search	-DENDS=1 -DFAILS=1 -DBEATS=1
 * deep		-DENDS=2 -DCHANGES=2 -DBEATS=1
 * deep		-DENDS=2 -DFAILS=1
 *
 * Safeguards.  Without any of them (-DWITHOUT_..) a claim falls.
 * without	epoch			a device that was left behind has a lower epoch	-DENDS=2
 * without	needed-nothing	what recovery has left empty it did not need	-DENDS=2
 * without	done-again		a recovery is done again, with the device	-DENDS=2
 * without	record-first	the verdict is on record before the marker is overwritten	-DENDS=2
 * without	grow			a marker that is written has a higher epoch than all before	-DENDS=2
 * without	beat			the marker of the expected device is written again	-DENDS=2
 * without	no-number		a marker that nobody recorded has no number	-DENDS=2
 * without	elsewhere		after a crash, another directory without a marker is lost	-DENDS=2
 */
#ifndef FAILS
#define FAILS		0			/* writes of a marker */
#endif
#ifndef BEATS
#define BEATS		0			/* while the server runs, besides that of the first look */
#endif
#ifndef CHANGES
#define CHANGES		1			/* of the index */
#endif
#ifndef ENDS
#define ENDS		2			/* stops, crashes and failed starts of the server, together */
#endif

#define NONE		255			/* in place of a number */
#define NUMBERS		12			/* that are given at most */

#define CLAIM(condition, words) if :: (condition) :: else -> printf(words); assert(false) fi

/* What a device has: of the index, nothing, a ruin that its pages tell, or a whole file */
mtype = { NO_DIRECTORY, EMPTY, RUIN, WHOLE };
/* Where the last recovery without the device began, if there was one */
mtype = { MISSED_NONE, MISSED_HERE, MISSED_BEFORE };
typedef Device {
	mtype has;
	bool complete;				/* with all changes */
	bool basis;					/* with all from before the redo position */
	bool replaced;				/* the server has gone on with another one */
	byte id, epoch;				/* its marker */
	bool is_copy;				/* it names another file */
	bool unproven				/* without a number, it has come after a crash */
}
Device device[3];
byte here;						/* the one in place */

/* What the server knows, in memory and on record */
typedef Knowledge {
	byte id, marked, written, epoch;
	bool lost, unknown, pending;
	byte missed_id, missed_marked;
	mtype missed;
	bool missed_lost
}
Knowledge known, record;

bool fresh;						/* no marker was written since device 2 was copied */
bool torn;						/* the number of a marker is not on record */
bool grew, is_beaten;			/* nor is its epoch; it is to be written */
bool unseen;					/* nobody has looked at what recovery has left empty */
byte beats = BEATS, fails = FAILS;
bool running, looked, recovers, dirty, watched = true, has_run;
byte ends, numbers = 1, changes;

#define D			device[here]
#define IS_EMPTY	(D.has == NO_DIRECTORY || D.has == EMPTY)
#define IS_OURS		(D.id != NONE && !D.is_copy)
#define IS_EXPECTED	(IS_OURS && D.id == known.id && D.epoch >= known.marked && D.epoch <= known.epoch)
#define IS_COPY_OF_OLDER	(D.is_copy && ((D.id == known.id && D.epoch < known.marked) || (D.id != known.id && known.id != NONE && D.epoch < known.written)))
#define IS_OLDER	((IS_OURS && D.epoch < known.written) || IS_COPY_OF_OLDER)

inline copy_knowledge(a, b)
{
	a.id = b.id; a.marked = b.marked; a.written = b.written; a.epoch = b.epoch; a.lost = b.lost; a.unknown = b.unknown; a.pending = b.pending;
	a.missed_id = b.missed_id; a.missed_marked = b.missed_marked; a.missed = b.missed; a.missed_lost = b.missed_lost
}

inline take_back()
{
	known.id = known.missed_id; known.marked = known.missed_marked; known.lost = known.missed_lost; known.missed_id = NONE; known.missed_marked = 0; known.missed = MISSED_NONE; known.pending = false;
	known.epoch++; known.written = known.epoch;	/* step: take-back */
	printf("the verdict is taken back\n")
}

inline note_before()
{
	if
	:: known.missed == MISSED_HERE
	:: else -> known.missed = MISSED_HERE; known.missed_id = known.id; known.missed_marked = known.marked;
		known.missed_lost = known.lost
	fi
}

/* at_start: the postmaster's look, before recovery */
inline conclude(at_start)
{
	if
	:: known.pending && (!(at_start && recovers) || known.missed != MISSED_HERE) ->
		known.pending = false;
#ifndef WITHOUT_NEEDED_NOTHING
		if
		:: IS_EMPTY && (known.id == NONE || known.id == known.missed_id) -> take_back()	/* step: needed-nothing */
		:: else
		fi
#endif
#ifndef WITHOUT_DONE_AGAIN
	:: at_start && recovers && known.missed == MISSED_HERE && D.id != NONE && D.id == known.missed_id &&
		D.epoch >= known.missed_marked && known.id != known.missed_id -> take_back()	/* step: done-again */
#endif
	:: else
	fi;
	lost = false; unknown = false; began_empty = false;
	if
	:: at_start && recovers && IS_EMPTY -> lost = true; began_empty = true	/* step: recovers-empty */
	:: else ->
		if
		:: D.has == NO_DIRECTORY
		:: D.has != NO_DIRECTORY && D.id == NONE ->
			if
#ifndef WITHOUT_ELSEWHERE
			:: at_start && recovers && watched && known.id != NONE -> lost = true	/* step: recovers-elsewhere */
#endif
			:: else -> unknown = true
			fi
#ifndef WITHOUT_EPOCH
		:: D.has != NO_DIRECTORY && D.id != NONE && !IS_EXPECTED && IS_OLDER -> lost = true	/* step: left-behind */
		:: D.has != NO_DIRECTORY && D.id != NONE && !IS_EXPECTED && !IS_OLDER -> unknown = true
#else
		:: D.has != NO_DIRECTORY && D.id != NONE && !IS_EXPECTED -> unknown = true
#endif
		:: D.has != NO_DIRECTORY && IS_EXPECTED && !watched -> unknown = true
		:: D.has != NO_DIRECTORY && IS_EXPECTED && watched
		fi
	fi;
	if :: began_empty -> note_before(); known.pending = true :: else fi;
	if
	:: at_start && recovers && (lost || unknown) && known.id != NONE && !IS_EXPECTED ->
		note_before(); known.id = NONE;		/* step: begin-without */
		/* else its marker grows */
		if :: IS_EMPTY -> known.epoch++; known.written = known.epoch :: else fi
	:: else
	fi;
	if :: lost -> known.lost = true; printf("the verdict is: lost\n") :: else fi;
	if :: unknown -> known.unknown = true; printf("the verdict is: unknown\n") :: else fi;
	lost = false; unknown = false; began_empty = false
}

inline write_marker(to)
{
	D.epoch = to; D.is_copy = false; known.id = D.id; known.marked = to; known.written = to;
	grew = !IS_EMPTY;
	printf("device %d gets number %d, epoch %d\n", here, D.id, D.epoch)
}

/* Before the marker of the expected device is written again, its epoch is on record */
inline note_beat(beats)
{
	if
#ifndef WITHOUT_BEAT
	:: beats && D.has != NO_DIRECTORY && IS_EXPECTED && !IS_EMPTY -> known.epoch++; is_beaten = true	/* step: note-beat */
#endif
	:: else
	fi
}

/* An empty device gets no higher epoch: nothing there can be changed */
inline mark(at_start)
{
	to = known.written;
	if
	:: D.has != NO_DIRECTORY && !IS_EXPECTED && !(known.pending && IS_EMPTY) && numbers < NUMBERS ->
		if
		:: !IS_EMPTY ->
#ifndef WITHOUT_GROW
			to = known.epoch;
			if :: IS_OURS && D.epoch > to -> to = D.epoch :: else fi;
			to++;					/* step: grow */
			known.epoch = to
#endif
		:: else
		fi;
		if
		:: D.id = numbers; numbers++; torn = true; write_marker(to)	/* step: mark */
		/* the marker cannot be written, and there is none of ours */
		:: fails > 0 && !IS_OURS -> fails--; printf("device %d cannot be marked\n", here);
			if :: !IS_EMPTY -> known.id = NONE; known.written = to; grew = true :: else fi
		fi
	:: is_beaten -> 
		if
		:: write_marker(known.epoch)		/* step: beat */
		:: fails > 0 && !fresh -> fails--; printf("the marker of device %d cannot be written\n", here)
		fi
	:: else
	fi;
	is_beaten = false; to = 0
}

/* The record has what the marker has.  The server goes on with this device, and no other */
inline save()
{
	copy_knowledge(record, known); torn = false;
	if :: grew -> leave_others(); grew = false; if :: here != 2 -> fresh = false :: else fi :: else fi
}

inline stop_server(is_crash)
{
	ends++; recovers = is_crash; running = false; looked = false;
	if
	:: recovers -> if :: dirty -> D.complete = false :: else fi
	:: else -> end_recovery()
	fi;
	copy_knowledge(known, record)
}

/* a checkpoint, too */
inline end_recovery()
{
	dirty = false;
	if :: known.missed == MISSED_HERE -> known.missed = MISSED_BEFORE :: else fi;
	if :: record.missed == MISSED_HERE -> record.missed = MISSED_BEFORE :: else fi;
	device[0].basis = device[0].complete; device[1].basis = device[1].complete; device[2].basis = device[2].complete
}

inline leave_others()
{
	for (i : 0 .. 2) { if :: i != here -> device[i].replaced = true :: else fi }
	i = 0
}

/* A snapshot of the blocks of the device in place */
inline take_snapshot()
{
	device[2].has = D.has; device[2].complete = D.complete && !dirty; device[2].basis = D.basis;
	device[2].replaced = D.replaced; device[2].id = D.id; device[2].epoch = D.epoch; device[2].is_copy = D.is_copy; fresh = true;
	printf("a snapshot of device %d is taken\n", here)
}

/* A look; a crash may come between its writes */
inline look(at_start, beats)
{
	atomic { conclude(at_start); note_beat(beats);
#ifdef WITHOUT_RECORD_FIRST
		mark(at_start)
#else
		copy_knowledge(record, known)
#endif
	};
	if
	:: atomic { ends < ENDS -> printf("the server crashes during a look\n"); is_beaten = false; stop_server(recovers || running) }; goto stopped
	:: true
	fi;
#ifndef WITHOUT_RECORD_FIRST
	atomic { mark(at_start) };
	if
	:: atomic { ends < ENDS -> printf("the server crashes after a mark\n"); grew = false; is_beaten = false; stop_server(recovers || running) }; goto stopped
	:: true
	fi;
#endif
	atomic { save(); watched = true }
}

active proctype Server()
{
	byte i;
	bool lost, unknown, began_empty;
	byte to;

	atomic {
		device[0].has = WHOLE; device[0].complete = true; device[0].basis = true; device[0].id = 0;
		device[1].has = NO_DIRECTORY; device[1].id = NONE;
		device[2].has = NO_DIRECTORY; device[2].id = NONE;
		known.missed_id = NONE; known.missed = MISSED_NONE;
		copy_knowledge(record, known)
	}

stopped:
	do
	/* ---- What can happen to a stopped server.  It does not leave a lost device, an empty one in
	doubt with which it has run, or one whose number is not on record. */
	:: atomic { !(has_run && record.unknown && IS_EMPTY) && !(has_run && record.id == NONE && !IS_EMPTY) && !(record.lost && (record.id != NONE || !IS_EMPTY)) && !torn ->
		if :: unseen -> leave_others(); unseen = false :: else fi;
		if
		:: here != 0 -> here = 0
		:: here != 1 -> here = 1
		/* a snapshot is told if a marker was written since */
		:: here != 2 && device[2].has != NO_DIRECTORY && (device[2].id != NONE || device[2].has != WHOLE) && (!fresh || device[2].complete || (recovers && device[2].basis)) -> here = 2
		/* and a copy without a number by the crash; nothing but its pages tells of one after a stop */
		:: here != 2 && device[2].id == NONE && device[2].has == WHOLE && (device[2].complete || (recovers && watched && record.id != NONE)) -> here = 2; D.unproven = recovers
		fi;
		has_run = false; printf("device %d is in place\n", here) }
	/* a copy is made of what lacks nothing */
	:: atomic { D.has == WHOLE && !D.is_copy && (D.complete || (recovers && D.basis)) && here != 2 ->
		device[2].has = D.has; device[2].complete = D.complete; device[2].basis = D.basis; device[2].replaced = D.replaced;
		device[2].id = D.id; device[2].epoch = D.epoch; device[2].is_copy = true; fresh = true;
		if :: true :: !(recovers && record.missed == MISSED_HERE) -> device[2].id = NONE; device[2].epoch = 0 fi;
		device[2].unproven = recovers && device[2].id == NONE;
		here = 2; has_run = false; printf("device 2 is in place, a copy\n") }
	:: atomic { D.is_copy && D.complete && !recovers ->
#ifdef WITHOUT_NO_NUMBER
		if :: numbers < NUMBERS -> D.id = numbers; numbers++ :: else -> D.id = NONE fi; D.epoch = 0;
#else
		D.id = NONE; D.epoch = 0;
#endif
		D.is_copy = false; watched = false; printf("a job without the library marks device %d\n", here) }
	:: atomic { D.has != NO_DIRECTORY && !(has_run && record.unknown && IS_EMPTY) -> D.id = NONE; D.epoch = 0; D.complete = false; D.basis = false; D.is_copy = false; D.unproven = false;
		if :: D.has = NO_DIRECTORY :: D.has = EMPTY fi;
		printf("device %d loses everything\n", here) }
	:: break
	od;

	/* ---- The server starts */
	printf("the server starts, %d\n", recovers);
	look(true, recovers);
	if
	:: atomic { recovers ->
		if
		:: dirty && D.basis -> D.has = WHOLE; D.complete = true
		:: dirty && !D.basis && IS_EMPTY -> D.has = RUIN
		:: else
		fi };
		if
		:: atomic { ends < ENDS -> ends++; printf("recovery fails\n"); D.complete = D.complete && !dirty; copy_knowledge(known, record) }; goto stopped
		:: atomic { true -> end_recovery(); recovers = false;
			if :: !IS_EMPTY -> leave_others() :: else -> unseen = true fi;
			printf("recovery ends\n") }
		fi
	:: else
	fi;
	running = true; has_run = true;

	do
	:: if :: !looked -> look(false, true) :: looked && beats > 0 -> beats--; look(false, true) :: looked -> look(false, false) fi;
		looked = true; unseen = false;
		atomic {
			CLAIM(!(known.lost && !known.pending && D.complete && !D.replaced && !D.unproven), "REFUTED what is lost was left behind, or is not whole\n");
			CLAIM(known.lost || D.has != WHOLE || D.complete, "REFUTED a whole file that lacks changes is lost\n") }
	:: atomic { looked && !known.lost && D.has == WHOLE && changes < CHANGES -> changes++; dirty = true;
		for (i : 0 .. 2) { if :: i != here -> device[i].complete = false :: else fi }
		i = 0; printf("the index changes\n") }
	:: atomic { dirty && !IS_EMPTY -> end_recovery(); printf("checkpoint\n") }
	:: atomic { looked && here != 2 && device[2].has == NO_DIRECTORY -> take_snapshot() }
	/* what is lost, or whose pages tell it, is rebuilt; no other device has that file */
	:: atomic { looked && IS_EXPECTED && (known.lost || D.has == RUIN || D.has == EMPTY) && D.has != NO_DIRECTORY -> known.lost = false; record.lost = false;
		for (i : 0 .. 2) { if :: i != here && device[i].has == WHOLE -> device[i].has = RUIN :: else fi;
			device[i].complete = false; device[i].basis = false }
		i = 0; D.has = WHOLE; D.complete = true; D.basis = true; D.replaced = false; D.unproven = false; printf("the index is rebuilt\n") }
	:: looked && known.unknown && !known.lost && D.has == WHOLE && IS_EXPECTED ->
		atomic { note_beat(true); copy_knowledge(record, known) };
		atomic { mark(false); printf("device %d was found whole\n", here) };	/* step: settle */
		if
		:: atomic { ends < ENDS -> printf("the server crashes\n"); grew = false; is_beaten = false; stop_server(true) }; goto stopped
		:: true
		fi;
		atomic { known.unknown = false; save(); D.replaced = false }
	:: atomic { ends < ENDS && looked && !dirty -> printf("the server stops\n"); stop_server(false) }; goto stopped
	:: atomic { ends < ENDS -> printf("the server crashes\n"); stop_server(true) }; goto stopped
	od
}
