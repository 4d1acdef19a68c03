/*
 * swap.pml
 *	  A model of src/README, "Protocol of the swap", and of the locks of the long phase
 *	  (copy_locks.c, copy_give_way.c): a table, its TOAST table and the index of that, or
 *	  three tables that are moved together; with -DTIME, of the rules that say when to ask
 *	  for the lock (swap_time.pml).
 *
 * Locks: a client's query takes S on what it uses, DDL takes X, in core's order (a query of
 * partitions takes them by their bounds: in another order, attempts are in vain); the long
 * phase has L, which conflicts with X only, and the swap X.  Who asks for what conflicts
 * with a request before it waits, too.
 *
 * Searches, each of all interleavings within its bounds, and more of them with --deep:
 * search
 * search	-DTIME
 * deep		-DQUERIES=3 -DATTEMPTS=3
 * deep		-DTIME -DCLIENTS=3 -DLONGEST=16
 *
 * Safeguards.  Without any of them (-DWITHOUT_..) a claim falls.
 * without	subtransaction	what is waited for is a lock of the transaction
 * without	give-way		DDL that waits behind the long phase passes
 * without	check-files		after that the files are looked at again
 * without	commit-in-vain	an attempt in vain commits, since an abort releases session locks
 * without	queue-first		nothing is queued for while an exclusive lock is held
 * without	one-commit		one commit for all files of a table
 * without	caller-look		a caller looks whether the job waits for it
 * without	other-look		a statement that waits for another's job looks whether that waits for it
 * without	bid			a bid comes whoever holds the lock	-DTIME
 * without	longest-rest	a rest has a bound	-DTIME
 * without	queue			a bid queues	-DTIME
 * without	lock-timeout	a bid queues for lock_timeout at most	-DTIME
 * without	window			the bids of a job's workers end together	-DTIME
 * without	gap				there is time between two of their windows	-DTIME
 */
#define CLAIM(condition, words) if :: (condition) :: else -> printf(words); assert(false) fi

#ifndef TIME

#ifndef QUERIES
#define QUERIES		2			/* of the client */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS	2			/* then it waits without end, as after lock_wait */
#endif
#define FILES		3			/* 0: table, 1: TOAST table, 2: its index */
#define NOBODY		0
#define WORKER		1
#define DDL			2

bool S[FILES], caller_S;		/* a client's; the caller's, of the table */
byte X[FILES];					/* who has the exclusive lock */
byte L_session[FILES];			/* counts of the worker's long locks */
bool L_transaction[FILES];
byte worker_waits, ddl_waits, client_waits;		/* for X, X, S of a file, plus 1 */
bool locked;					/* the stage says that the long phase has its locks */
byte file[FILES], copied[FILES];	/* which file pg_class names, which one was copied */
bool is_there[FILES];			/* it is in the target */
byte chunks;					/* copied while DDL waited behind us */
bool ended, step_back, caller_waits;
bool gate;						/* a lock that Alter's transaction has */

#define X_IS_FREE(f, me) ((X[f] == NOBODY || X[f] == me) && !S[f] && !(f == 0 && caller_S))
#define L_IS_FREE(f) (X[f] == NOBODY && ddl_waits != f + 1)
#define S_IS_FREE(f) (X[f] == NOBODY && ddl_waits != f + 1 && worker_waits != f + 1)
#define L_IS_HELD(f) (L_session[f] > 0 || L_transaction[f])

/* The locks held are those of the stage */
inline check_locks()
{
	for (i : 0 .. FILES - 1) {
		CLAIM(L_session[i] == locked && !L_transaction[i] && X[i] != WORKER, "REFUTED the locks held are those of the stage: none after a wait in vain, and after the end\n")
	}
	i = 0
}

inline release_all()
{
	for (i : 0 .. FILES - 1) {
		if :: L_session[i] > 0 -> L_session[i]-- :: else fi
	}
	i = 0; locked = false
}

/* copy_wait_for_locks() */
inline wait_for_locks()
{
	do
	:: f == FILES -> atomic { true; d_step {
		for (i : 0 .. FILES - 1) {
#ifndef WITHOUT_SUBTRANSACTION
			L_session[i]++;		/* step: keep-lock */
#endif
			L_transaction[i] = false
		}
		i = 0; f = 0; locked = true;
		printf("the worker has the locks of the long phase\n");
		check_locks()
		} };
		break
	:: f < FILES -> if
		:: atomic { L_IS_FREE(f) ->
#ifdef WITHOUT_SUBTRANSACTION
			L_session[f]++;
#else
			L_transaction[f] = true;
#endif
			printf("the worker is granted its lock on file %d\n", f); f++ }
		:: atomic { !L_IS_FREE(f) -> printf("the worker waits for its lock on file %d\n", f);
			if
			:: true -> printf("and gives up after lock_timeout\n")
			:: L_IS_FREE(f) -> f++
			:: true -> (L_IS_FREE(f)) -> printf("the grant and lock_timeout meet: core takes the lock, and raises the ERROR\n");
#ifdef WITHOUT_SUBTRANSACTION
				L_session[f]++		/* the abort of a subtransaction leaves it */
#endif
			fi;
			true;
			d_step {
			/* the abort of the subtransaction; then the transaction ends */
			for (i : 0 .. FILES - 1) {		/* step: lock-within */
#ifdef WITHOUT_SUBTRANSACTION
				if :: i < f -> L_session[i]-- :: else fi;
#endif
				L_transaction[i] = false
			}
			i = 0; f = 0;
			check_locks()
			} }
		fi
	od
}

inline copy_all()
{
	d_step { for (i : 0 .. FILES - 1) { copied[i] = file[i] } i = 0; printf("the worker copies the files\n") }
}

/* copy_let_others_pass() */
inline between_chunks()
{
#ifndef WITHOUT_GIVE_WAY
	if
	:: ddl_waits != 0 && L_IS_HELD(ddl_waits - 1) ->
		d_step { release_all(); printf("the worker gives way to DDL\n") }	/* step: give-way */
		wait_for_locks();
#ifndef WITHOUT_CHECK_FILES
		if
		:: copied[0] != file[0] || copied[1] != file[1] || copied[2] != file[2] -> copy_all()	/* step: check-files */
		:: else
		fi
#endif
	:: else
	fi
#else
	skip
#endif
	;
	atomic {
		if :: ddl_waits != 0 && L_IS_HELD(ddl_waits - 1) -> chunks++ :: else -> chunks = 0 fi;
		CLAIM(chunks <= 2, "REFUTED DDL that waits behind the long phase passes after a chunk or two\n")
	}
}

/* lock_files(): queue for one, before any other is held; ask for the others */
inline lock_files()
{
	worker_waits = 0;
	if
	:: X_IS_FREE(0, WORKER) -> skip
	:: !X_IS_FREE(0, WORKER) -> q = 1
	:: !X_IS_FREE(1, WORKER) -> q = 2
	:: !X_IS_FREE(2, WORKER) -> q = 3
	fi;
	do
	:: atomic { q > 0 -> worker_waits = q; printf("the worker queues for file %d\n", q - 1) }
		if
		:: atomic { X_IS_FREE(q - 1, WORKER) -> X[q - 1] = WORKER; worker_waits = 0; printf("and has it\n") }
		:: true -> atomic { worker_waits = 0; f = FILES + 1; printf("and gives up after lock_timeout\n") }
		fi;
		q = 0
	:: atomic { q == 0 && f < FILES && X_IS_FREE(f, WORKER) -> X[f] = WORKER; f++ }
#ifdef WITHOUT_QUEUE_FIRST
	:: q == 0 && f < FILES && !X_IS_FREE(f, WORKER) -> q = f + 1
#else
	:: q == 0 && f < FILES && !X_IS_FREE(f, WORKER) -> f = FILES + 1	/* step: queue-for-one */
#endif
	:: q == 0 && f >= FILES -> break
	od
}

active proctype Worker()
{
	byte f, i, q, attempts, n;

	wait_for_locks();
	copy_all();
	do
	:: n < 3 -> n++; between_chunks()
	:: n == 3 -> break
	od;
	do
	:: between_chunks();
		if
		:: attempts < ATTEMPTS -> attempts++
		:: attempts == ATTEMPTS ->
			/* rest until nobody holds them, DDL waits, or we are asked to step back */
			(step_back || ddl_waits != 0 || (X_IS_FREE(0, WORKER) && X_IS_FREE(1, WORKER) && X_IS_FREE(2, WORKER)))
		fi;
		if :: step_back -> break :: else fi;
		lock_files();
		if
		:: f == FILES ->
			d_step { for (i : 0 .. FILES - 1) { CLAIM(copied[i] == file[i], "REFUTED what was copied is the relation's file\n") } i = 0 }
#ifdef WITHOUT_ONE_COMMIT
			is_there[0] = true; is_there[1] = true; is_there[2] = true;
#else
			d_step { is_there[0] = true; is_there[1] = true; is_there[2] = true;	/* step: set-files */
				printf("one commit gives all their new files\n") }
#endif
			d_step { for (i : 0 .. FILES - 1) { X[i] = NOBODY } i = 0 };
			break
		:: else -> atomic {
			for (i : 0 .. FILES - 1) {		/* step: give-back */
				if :: X[i] == WORKER -> X[i] = NOBODY :: else fi;
#ifdef WITHOUT_COMMIT_IN_VAIN
				L_session[i] = 0
#endif
			}
			f = 0; i = 0;
			printf("the attempt was in vain\n");
			check_locks() }
		fi
	od;
	true;
	d_step { release_all(); printf("the worker releases its locks\n"); check_locks() }
	ended = true
}

/* A query takes the table, then what of TOAST it needs */
active proctype Client()
{
	byte n, r;

	do
	:: n < QUERIES -> n++;
		do
		:: r < FILES -> atomic { client_waits = r + 1; (S_IS_FREE(r)) -> S[r] = true; client_waits = 0; printf("a query locks file %d\n", r); r++ }
		:: r > 0 -> break
		od;
		if
		:: (!gate) -> skip		/* its transaction asks for it */
		:: true
		fi;
		d_step { S[0] = false; S[1] = false; S[2] = false; r = 0; printf("the query ends\n") }
	:: break
	od
}

/* DDL that gives the table, or TOAST, another file, and stays in the target of the move if it is there */
active proctype Ddl()
{
	byte r;

	if
	:: true ->
		do
		:: r < FILES -> atomic { ddl_waits = r + 1; printf("DDL asks for file %d\n", r) }
			atomic { X_IS_FREE(r, DDL) && !L_IS_HELD(r) -> X[r] = DDL; ddl_waits = 0; r++; printf("DDL has it\n") }
		:: r == FILES -> break
		od;
		true;
		d_step { file[0]++; file[1]++; file[2]++; X[0] = NOBODY; X[1] = NOBODY; X[2] = NOBODY; printf("DDL gives all new files, and ends\n") }
	:: true
	fi
}

/* The session that has asked for the move, in a transaction that has used the table */
active proctype Caller()
{
	if
	:: atomic { S_IS_FREE(0) -> caller_S = true; printf("the caller's transaction locks the table\n") }
		caller_waits = true;
		if
		:: ended
#ifndef WITHOUT_CALLER_LOOK
		:: atomic { !ended -> step_back = true; printf("the caller finds that the move waits for it\n") }	/* step: caller-look */
			(ended)
#endif
		fi;
		caller_S = false
	:: true
	fi
}

/* ALTER ... SET TABLESPACE of another session: an event trigger takes a lock, then it waits for the job */
active proctype Alter()
{
	if
	:: gate = true; printf("a trigger function of ALTER takes a lock\n");
		if
		:: ended
#ifndef WITHOUT_OTHER_LOOK
		:: atomic { !ended -> printf("the statement finds that the job waits for it, and fails\n") }	/* step: other-look */
#endif
		fi;
		gate = false
	:: true
	fi
}

active proctype Watch()
{
	do
	:: d_step { is_there[0] != is_there[1] || is_there[1] != is_there[2] ->
		CLAIM(false, "REFUTED T0: a table, its TOAST table and the index of that are in one tablespace\n") }
	:: d_step { worker_waits > 0 && client_waits > 0 && X[client_waits - 1] == WORKER ->
		CLAIM(false, "REFUTED Q4: nobody waits for a lock that we have while we wait for another\n") }
	:: d_step { caller_waits && caller_S && !ended && !step_back && timeout ->
		CLAIM(false, "REFUTED no cycle of waits without somebody who looks\n") }
	:: d_step { gate && !ended && timeout ->
		CLAIM(false, "REFUTED no cycle of waits of an ALTER without somebody who looks\n") }
	od
}

#else
#include "swap_time.pml"
#endif
