/*
 * swap_time.pml
 *	  When to ask for the exclusive lock, a part of swap.pml: the rules of
 *	  wait/attempts.c, in ticks of 50 ms.
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

byte left[CLIENTS];				/* ticks to the end of its transaction; 0: it waits behind us */
byte waited;					/* the longest of them */
byte rest = FIRST_REST, bids;	/* ticks to the next bid; the last rest */
byte queued;					/* ticks for which we have queued, plus 1; 0: we rest */
byte since_bid;
bool stays, will_end, swapped;
byte seen_again;				/* looks in a row that have found a holder again */

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

inline end_bid()
{
	queued = 0; waited = 0;
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
		holders = false;
		do
		:: c < CLIENTS && left[c] > 1 -> left[c]--; holders = true; c++
		:: c < CLIENTS && left[c] <= 1 && queued > 0 -> left[c] = 0; c++
		:: c < CLIENTS && left[c] <= 1 && queued == 0 -> next_transaction(c); holders = true; c++
		:: c == CLIENTS -> c = 0; break
		od;
		printf("a tick: the clients' transactions have %d and %d more\n", left[0], left[1]);

		/* the worker */
		if
		:: queued > 0 && !holders -> swapped = true; printf("the lock is granted\n")
		:: queued > 0 && holders ->
			waited++;
			CLAIM(waited <= LOCK_TIMEOUT, "REFUTED Q3: nobody waits behind us for longer than lock_timeout\n");
			if
#ifndef WITHOUT_LOCK_TIMEOUT
			:: queued == LOCK_TIMEOUT ->		/* step: queue */
				CLAIM(!will_end, "REFUTED (b): if all holders end within lock_timeout, the lock is granted\n");
				printf("lock_timeout is over\n"); end_bid()
			:: queued < LOCK_TIMEOUT -> queued++
#else
			:: true -> queued++
#endif
			fi
		:: queued == 0 && (rest == 0 || !holders) ->
			/* stay: pg_dump or VACUUM is among the holders */
			if
			:: holders && !stays -> stays = true; since_bid = 0; rest = FIRST_REST		/* step: stay */
			:: true -> stays = false;
				printf("an attempt begins\n");
				since_bid = 0;
				will_end = left[0] <= LOCK_TIMEOUT && left[1] <= LOCK_TIMEOUT && (CLIENTS < 3 || left[CLIENTS - 1] <= LOCK_TIMEOUT);
#ifdef WITHOUT_QUEUE
				CLAIM(!will_end || !holders, "REFUTED (b): if all holders end within lock_timeout, the lock is granted\n");
				end_bid()
#else
				queued = 1
#endif
			fi
		:: queued == 0 && rest > 0 && holders -> since_bid++;
#ifdef WITHOUT_BID
			/* until 2026-11: who is seen at two looks is waited for, and the looks begin again */
			if :: left[0] > 3 || left[1] > 3 -> rest = FIRST_REST :: else -> rest-- fi;
#else
			rest--;		/* step: bid */
#endif
			CLAIM(since_bid <= LONGEST_REST + REST_JITTER, "REFUTED (a): a bid begins within 24 ticks of the last, whoever holds the lock\n")
		fi }
	:: swapped -> break
	od
}
