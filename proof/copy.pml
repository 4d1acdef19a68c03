/*
 * copy.pml
 *	  A model of a copy: src/README, "Protocol of a copy", "Protocol of the swap" (the
 *	  part under the lock) and "Protocol of the ledger".  proof/README.md says which C
 *	  function does each step, what is left out, and why that is enough.
 *
 * A page is the number of its logged changes.  Positions in the WAL are not kept, but
 * what the protocol asks of them: is there a change of this block that has not been
 * read (unread), one since the position was noted (newer), an image since the redo
 * position (image_*).  So the searches end.
 *
 * Searches, each of all interleavings within its bounds, and more of them with --deep:
 * search	-DCHANGES=2 -DCHECKPOINTS=2
 * search	-DCHANGES=1 -DCHECKPOINTS=2 -DBACKUPS=1
 * deep		-DCHANGES=3 -DCHECKPOINTS=1
 * deep		-DCHANGES=2 -DCHECKPOINTS=2 -DBACKUPS=1
 *
 * Safeguards.  Without any of them (-DWITHOUT_..) a claim falls.  late-lsn, lookup, sync, tail,
 * block-0 and log-once are switches of the C, too (IM_MUTATION).
 * without	late-lsn		the position is noted before the page is read
 * without	lookup			who has a buffer is read from there
 * without	tail			all beyond the copied length is copied under the lock
 * without	block-0			block 0 is copied under the lock
 * without	last-read		the WAL is read to its end under the lock
 * without	lock			the swap has the exclusive lock
 * without	log				what is written to N is logged
 * without	log-once		what was logged before a checkpoint began is logged and written again	-DBACKUPS=1
 * without	finish-write	a write in the background ends before a round
 * without	unsync			the buffers of N are written and dropped before direct writes
 * without	sync			N is synced before the swap
 * without	ledger-first	a row of the ledger comes before the file
 * without	ledger-flush	that row is flushed
 * without	claim			a row that a process works on is left alone
 * without	old-row			one commit record for pg_class and for the row of F
 * without	drop-list		one commit record for the row and the removal of F
 */
#ifndef CHANGES
#define CHANGES		1			/* logged changes of F, of both blocks together */
#endif
#ifndef CHECKPOINTS
#define CHECKPOINTS	1			/* that begin */
#endif
#ifndef BACKUPS
#define BACKUPS		0			/* 1: one may be that of a base backup */
#endif
#define B			2			/* blocks 1 and 2 of F; block 0 is apart */
#define NONE		0			/* no page */
#define ZEROS		1			/* an empty one: its first contents */
#define TORN		15			/* a mixture of two pages */

/* The old file, F: its buffers, and the kernel's pages.  A field that means nothing is 0. */
byte F_buf[B], F_disk[B] = ZEROS, F_length = 1;
bool has_buffer[B], dirty[B], writing[B];
bool changing[B];				/* the exclusive content lock is held, the page has changed */
bool block_0_differs;			/* it changes without a record, as SP-GiST's metapage */
byte nchanges;

/* The new file, N: the kernel's pages, buffers, and what recovery would make of it */
byte N_disk[B], N_buf[B], N_image[B];	/* N_image: the last one in the WAL */
bool N_synced[B], N_buffer[B], N_dirty[B], N_request[B];
bool image_redo[B], image_begun[B], image_backup[B];	/* since the redo position of .. */

/* What the copy knows */
bool unread[B], newer[B], set[B], todo[B];
byte copied;

byte checkpoints;
bool checkpoint;				/* one is under way */
bool redo_moved = true, redo_moved_behind = true;	/* since the page in hand, and that under way, was logged */
bool must_write[B];				/* dirty when it began */
byte backup;					/* 1: under way, 2: complete */
byte backup_page[B];
bool backup_has[B];

byte under_way, under_way_page;	/* a write in the background, of block - 1 */
bool locked, committed, file_exists, old_exists = true;
byte row_new, row_old;			/* of the ledger: 1 committed, 2 flushed, too */

#define CLAIM(condition, words) if :: (condition) :: else -> printf(words); assert(false) fi
#define CURRENT(b) (has_buffer[b] -> F_buf[b] : F_disk[b])

#include "copy_others.pml"

/* ---- The copy */

inline image(b, page)
{
	N_image[b] = page;
	image_redo[b] = true; image_begun[b] = checkpoint; image_backup[b] = backup > 0;
	printf("the copy logs version %d of block %d\n", page, b + 1)
}

inline write(b, page)
{
	N_disk[b] = page; N_synced[b] = false;
	printf("the copy writes version %d of block %d\n", page, b + 1)
}

/* finish_write(): pages under way are logged and written again if a checkpoint has begun */
inline finish_write()
{
	do
	:: atomic { under_way != 0 ->
		write(under_way - 1, under_way_page);
		if
#ifndef WITHOUT_LOG_ONCE
		:: redo_moved_behind -> redo_moved_behind = false; image(under_way - 1, under_way_page)
#endif
		:: else -> under_way = 0; under_way_page = 0; redo_moved_behind = true
		fi }
	:: under_way == 0 -> break
	od
}

/* log_and_write(): log first; what is under way ends; then write; again if redo has moved */
inline log_and_write(b, background)
{
	do
	:: d_step { redo_moved = false;	/* step: log-first */
#ifndef WITHOUT_LOG
		image(b, page)
#endif
		}
		finish_write();
		if
		:: background -> d_step { under_way = b + 1; under_way_page = page; redo_moved_behind = redo_moved;	/* step: write-behind */
			printf("the write of block %d is under way\n", b + 1) }
			break
		:: !background -> d_step { write(b, page) }
			if
#ifndef WITHOUT_LOG_ONCE
			:: redo_moved		/* step: repeat */
#endif
			:: else -> break
			fi
		fi
	od;
	redo_moved = true
}

/* A block of F by its buffer, under the share lock */
inline read_block(b)
{
	atomic { !changing[b] -> d_step { load(b); page = F_buf[b];	/* step: read-buffer */
		printf("the copy reads block %d from its buffer: version %d\n", b + 1, page) } }
}

inline note_position(b)
{
	atomic { true; d_step { newer[b] = false; printf("the copy notes the position for block %d\n", b + 1) } }	/* step: note-position */
}

/* wal_changes_seen(): changes from before the position noted need not be read */
inline seen(b)
{
#ifdef WITHOUT_LATE_LSN
	newer[b] = false;
#endif
	unread[b] = newer[b]; newer[b] = false; page = 0;
	printf("block %d counts as copied\n", b + 1)
}

/* file_copy_range(), of one block */
inline copy_range(b)
{
	note_position(b);
	d_step { buffered = has_buffer[b];	/* step: lookup-buffer */
#ifdef WITHOUT_LOOKUP
		buffered = false;
#endif
		printf("the copy looks whether block %d has a buffer\n", b + 1) }
	if
	:: buffered -> read_block(b)
	:: else -> atomic {
		if
		:: page = F_disk[b]				/* step: read-file */
		:: writing[b] -> page = F_buf[b]
		:: writing[b] -> page = TORN	/* the buffer had a change, or it would not be written */
		fi;
		printf("the copy reads block %d from the file: version %d\n", b + 1, page) }
	fi;
	buffered = false;
	log_and_write(b, true);
	atomic { true; d_step { seen(b); copied++ } }
}

/* file_copy_set(), of one block on the list */
inline copy_set(b)
{
#ifndef WITHOUT_FINISH_WRITE
	finish_write();		/* step: finish-write */
#endif
	note_position(b);
	read_block(b);
	log_and_write(b, false);
	atomic { true; d_step { seen(b); set[b] = false } }
}

/* copy_drain(): read the WAL to its end; blocks from the copied length on are copied later */
inline drain()
{
	atomic { true; d_step {
		for (i : 0 .. B - 1) { set[i] = (set[i] || unread[i]) && i < copied; unread[i] = false }	/* step: read-wal */
		i = 0;
		printf("the copy reads the WAL\n")
	} }
}

/* The same, and copy_take_changes() */
inline drain_and_take()
{
	atomic { true; d_step {
		for (i : 0 .. B - 1) {
			todo[i] = todo[i] || ((set[i] || unread[i]) && i < copied);		/* step: take-changes */
			set[i] = false; unread[i] = false
		}
		i = 0;
		printf("the copy reads the WAL, and takes the changes onto its list\n")
	} }
}

/* A round, and the list is emptied when all on it is copied */
inline round()
{
	do
	:: i < B && todo[i] -> copy_set(i); i++
	:: i < B && !todo[i] -> i++
	:: i == B -> i = 0; break
	od;
	drain();
	atomic { true; d_step { todo[0] = false; todo[1] = false; printf("the list is emptied\n") } }	/* step: empty-list */
}

/* file_copy_sync() */
inline sync()
{
	finish_write();
	atomic { true; d_step {
#ifndef WITHOUT_SYNC
		N_synced[0] = true; N_synced[1] = true;		/* step: sync */
#endif
		printf("the copy syncs N\n")
	} }
}

/* file_copy_through_buffer(): forget, read F, replace N's page in its buffer, logged */
inline through_buffer(b)
{
	d_step { set[b] = false } read_block(b);
	d_step { N_buffer[b] = true; N_buf[b] = page; N_dirty[b] = true;	/* step: through-buffer */
		image(b, page); page = 0; todo[b] = false }
}

inline todo_through_buffers()
{
	do
	:: i < B && todo[i] -> through_buffer(i); i++
	:: i < B && !todo[i] -> i++
	:: i == B -> i = 0; break
	od
}

inline take_tail()
{
#ifdef WITHOUT_TAIL
	skip
#else
	atomic { true; d_step {
		do
		:: copied < F_length -> todo[copied] = true; copied++		/* step: take-tail */
		:: else -> break
		od
	} }
#endif
}

/* file_copy_unsync(): the new file's buffers are written, and dropped */
inline unsync()
{
	atomic { true; d_step {
#ifndef WITHOUT_UNSYNC
		for (i : 0 .. B - 1) {		/* step: drop-buffers */
			if
			:: N_dirty[i] -> N_disk[i] = N_buf[i]; N_synced[i] = false; N_request[i] = true; N_dirty[i] = false; must_write[i] = false
			:: else
			fi;
			N_buffer[i] = false; N_buf[i] = 0
		}
		i = 0;
#endif
		printf("the copy drops the buffers of N\n")
	} }
}

active proctype Copy()
{
	byte page, i;
	bool buffered, again;

	/* make_file(): a row of the ledger, committed and flushed, before what it names */
#ifdef WITHOUT_LEDGER_FIRST
	file_exists = true;
	printf("N is created\n");
#endif
#ifdef WITHOUT_LEDGER_FLUSH
	row_new = 1;
#else
	row_new = 2;	/* step: ledger-row */
#endif
	printf("the row of N is committed\n");
#ifndef WITHOUT_LEDGER_FIRST
	file_exists = true;		/* step: create-file */
	printf("N is created\n");
#endif

	/* copy_blocks(): all blocks below the length of now */
	do
	:: copied < F_length -> copy_range(copied);
		if
		:: drain()	/* copy_keep_up() */
		:: true
		fi
	:: copied == F_length -> break
	:: copied > 0 -> break
	od;
	drain_and_take();
	do
	:: todo[0] || todo[1] -> round(); drain_and_take()
	:: break
	od;
	sync();

	/* catch_up(), and attempts of the swap */
	do
	:: drain_and_take(); take_tail();
		todo_through_buffers();
		if
		:: !again && nchanges > 0 -> again = true;		/* copy_rounds(cs, false) */
			unsync();
			drain_and_take();
			round(); drain_and_take();
			sync()
		:: true
		fi;
		atomic {
#ifndef WITHOUT_LOCK
			!changing[0] && !changing[1] ->
#endif
			locked = true; block_0_differs = true;		/* step: lock */
			printf("the copy has the exclusive lock\n") }
#ifndef WITHOUT_LAST_READ
		drain_and_take();	/* step: last-read */
#endif
		take_tail();
#ifndef WITHOUT_BLOCK_0
		block_0_differs = false;	/* step: block-0 */
#endif
		todo_through_buffers();
		if
		:: true -> break
		:: nchanges < CHANGES -> locked = false; block_0_differs = false; printf("the lock is given back\n")
		fi
	od;

	/* one commit record: pg_class, the ledger's rows of both files */
	atomic { true; d_step {
		CLAIM(file_exists, "REFUTED the file that pg_class names exists\n");
		CLAIM(!block_0_differs, "REFUTED at the commit record N equals F: block 0\n");
		for (i : 0 .. B - 1) {
			if
			:: i < F_length ->
				page = CURRENT(i);
				CLAIM((N_buffer[i] -> N_buf[i] : N_disk[i]) == page, "REFUTED at the commit record N equals F\n");
				CLAIM(N_image[i] == page, "REFUTED a standby that replays the commit record has N equal to F\n");
				F_disk[i] = page
			:: else
			fi;
			has_buffer[i] = false; F_buf[i] = 0; dirty[i] = false; writing[i] = false;
			unread[i] = false; newer[i] = false
		}
		i = 0; page = 0;
		committed = true; row_new = 0;	/* step: commit */
#ifndef WITHOUT_OLD_ROW
		row_old = 2;
#endif
		printf("the commit record: pg_class names N\n")
	} }
#ifdef WITHOUT_OLD_ROW
	row_old = 2;
#endif
	/* leftover_file_drop(): the row and the file go with one commit record */
#ifdef WITHOUT_DROP_LIST
	row_old = 0;
	printf("the row of F is deleted\n");
	old_exists = false
#else
	d_step { row_old = 0; old_exists = false; printf("F and its row are removed\n") }	/* step: drop-file */
#endif
}
