/*
 * swap_time.pml
 *	  When to ask for the exclusive lock, a part of swap.pml: the rules of
 *	  wait/attempts.c, in ticks of 50 ms.
 *
 * Two workers of a job, each of which wants the lock of its own partition.  The first one keeps
 * the rules; the other one bids at any moment at which "window" allows it.  Client 0 queries
 * both partitions, in this order, the others the first one alone.
 */
#ifndef CLIENTS
#define CLIENTS		2
#endif
#ifndef LONGEST
#define LONGEST		12			/* of a client's transactions, in ticks: 0.6 s */
#endif
#define LOCK_TIMEOUT	2
#define FIRST_REST	2
#define LONGEST_REST	20
#define REST_JITTER	4

byte left[CLIENTS];				/* ticks to the end of its transaction; 0: it waits */
byte at[CLIENTS];				/* it waits behind this worker, plus 1; at the second one it has the first lock */
byte waited[CLIENTS];			/* ticks */
byte queued[2];					/* a worker's: ticks for which it queues yet; 0: it rests */
byte window;					/* ticks to the end of that of the job */
bool gap;						/* it has ended in this tick */
byte rest = FIRST_REST, bids;	/* of the first worker: ticks to the next bid; the last rest */
byte since_bid;
bool stays, will_end, swapped;
bool late;						/* a bid of the first worker is due, and begins when "window" allows it */

#define IS_DUE		(late || rest == 0 || !holders)
#define HOLDS_FIRST(c)	(left[c] > 0 || at[c] == 2)
#ifndef WITHOUT_WINDOW
#define BID_TICKS	(window > 0 -> window : (gap -> 0 : LOCK_TIMEOUT))
#else
#define BID_TICKS	LOCK_TIMEOUT
#endif

/* A transaction of the client begins when its last one ends, or when we do not queue any more */
inline next_transaction(c)
{
	if
	:: left[c] = 1
	:: left[c] = 2
	:: left[c] = 3
	:: left[c] = LONGEST / 2
	:: left[c] = LONGEST
	fi
}

/* Its locks, in order */
inline lock_all(c)
{
	if
	:: queued[0] > 0 && at[c] != 2 -> left[c] = 0; at[c] = 1
	:: else ->
		if
		:: c == 0 && queued[1] > 0 -> left[c] = 0; at[c] = 2
		:: else -> at[c] = 0; next_transaction(c)
		fi
	fi;
	if
	:: at[c] > 0 -> waited[c]++;
		CLAIM(waited[c] <= LOCK_TIMEOUT, "REFUTED Q3: nobody waits behind the workers of a job for longer than lock_timeout\n")
	:: at[c] == 0 -> waited[c] = 0
	fi
}

inline begin_bid(w)
{
	queued[w] = BID_TICKS;		/* step: window */
	if
	:: window == 0 -> window = queued[w]; printf("worker %d begins a bid\n", w)
	:: window > 0 -> printf("worker %d joins it, for %d ticks\n", w, queued[w])
	fi
}

inline end_bid()
{
	if
#ifndef WITHOUT_LONGEST_REST
	:: bids >= 4 -> rest = LONGEST_REST		/* step: rest */
	:: bids < 4 -> rest = FIRST_REST << bids; bids++
#else
	:: bids < 6 -> rest = FIRST_REST << bids; bids++
	:: bids == 6 -> rest = 128
#endif
	fi;
	/* by chance longer; by "aim", "join" and "alone" shorter */
	if
	:: true
	:: rest = rest + REST_JITTER
	:: rest > FIRST_REST -> rest = FIRST_REST
	:: rest = 1
	fi
}

active proctype Clock()
{
	byte c;
	bool holders;

	atomic {
		do
		:: c < CLIENTS -> next_transaction(c); c++
		:: c == CLIENTS -> c = 0; break
		od
	}
	do
	:: atomic { !swapped ->
		/* the clients */
		holders = false; gap = false;
		do
		:: c < CLIENTS ->
			if
			:: left[c] > 1 -> left[c]--
			:: else -> lock_all(c)
			fi;
			holders = holders || HOLDS_FIRST(c);
			c++
		:: c == CLIENTS -> c = 0; break
		od;
		printf("a tick: the clients' transactions have %d and %d more\n", left[0], left[1]);

		/* the other worker, whose partition others may hold, goes on with the next one */
		if
		:: queued[1] > 0 && left[0] == 0 -> queued[1] = 0
		:: true
		fi;
		/* the first worker */
		if
		:: queued[0] > 0 && !holders -> swapped = true; printf("the lock is granted\n")
#ifndef WITHOUT_LOCK_TIMEOUT
		:: queued[0] > 0 && holders -> queued[0]--;		/* step: queue */
			if
			:: queued[0] == 0 ->
				CLAIM(!will_end, "REFUTED (b): if all holders end in the time of a bid, the lock is granted\n");
				printf("lock_timeout is over\n"); end_bid()
			:: else
			fi
#else
		:: queued[0] > 0 && holders
#endif
		:: queued[0] == 0
		fi;
#ifndef WITHOUT_LOCK_TIMEOUT
		if :: queued[1] > 0 -> queued[1]-- :: else fi;
#endif
		if
		:: window > 0 -> window--; gap = (window == 0)
		:: else
		fi;
#ifdef WITHOUT_GAP
		gap = false;
#endif
		if
		:: swapped || queued[0] > 0
		:: !swapped && queued[0] == 0 && IS_DUE && BID_TICKS > 0 ->
			late = false;
			/* stay: pg_dump or VACUUM is among the holders */
			if
			:: holders && !stays -> stays = true; since_bid = 0; rest = FIRST_REST		/* step: stay */
			:: true -> stays = false;
				since_bid = 0;
				will_end = true;
				do
				:: c < CLIENTS -> will_end = will_end && left[c] <= BID_TICKS && at[c] != 2; c++
				:: c == CLIENTS -> c = 0; break
				od;
#ifdef WITHOUT_QUEUE
				CLAIM(!will_end || !holders, "REFUTED (b): if all holders end in the time of a bid, the lock is granted\n");
				end_bid()
#else
				begin_bid(0)
#endif
			fi
		/* or, when it is due: before it begins it looks, and prepares an attempt */
		:: !swapped && queued[0] == 0 && (!IS_DUE || !late || BID_TICKS == 0) -> since_bid++;
			late = IS_DUE;
#ifdef WITHOUT_BID
			/* until 2026-11: who is seen at two looks is waited for, and the looks begin again */
			if :: left[0] > 3 || left[1] > 3 -> rest = FIRST_REST :: rest > 0 && left[0] <= 3 && left[1] <= 3 -> rest-- :: else fi;
#else
			if :: rest > 0 -> rest-- :: else fi;		/* step: bid */
#endif
			CLAIM(since_bid <= LONGEST_REST + REST_JITTER + 2, "REFUTED (a): a bid begins within 26 ticks of the last, whoever holds the lock\n")
		fi;
		if
		:: !swapped && queued[1] == 0 && BID_TICKS > 0 -> begin_bid(1)
		:: true
		fi }
	:: swapped -> break
	od
}
