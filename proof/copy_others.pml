/*
 * copy_others.pml
 *	  What others do while a copy is under way, a part of copy.pml: writers, evictions,
 *	  checkpoints, a base backup, a crash.  All of it may happen at any time.
 */
inline load(b) { if :: has_buffer[b] :: else -> has_buffer[b] = true; F_buf[b] = F_disk[b] fi }

/* The block that a process of Block() is about; declared first, they have pids 0 and 1 */
#define b _pid

active [B] proctype Block()
{
	do
	/* bufmgr.c: content lock exclusive; change; XLogInsert(); release */
	:: d_step { !committed && !locked && b < F_length && !changing[b] && !writing[b] && nchanges < CHANGES ->
		load(b); nchanges++; changing[b] = true; F_buf[b]++; dirty[b] = true;
		printf("a writer locks block %d, and changes it\n", b + 1) }
	:: d_step { changing[b] -> unread[b] = true; newer[b] = true; changing[b] = false;
		printf("a writer inserts the record of block %d, and releases it\n", b + 1) }
	/* bufmgr.c: an eviction writes before it unmaps */
	:: d_step { has_buffer[b] && dirty[b] && !changing[b] && !writing[b] -> writing[b] = true;
		printf("the write of the buffer of block %d begins\n", b + 1) }
	:: d_step { writing[b] -> writing[b] = false; F_disk[b] = F_buf[b]; dirty[b] = false;
		printf("the write of the buffer of block %d ends\n", b + 1) }
	:: d_step { !committed && has_buffer[b] && !dirty[b] && !changing[b] -> has_buffer[b] = false; F_buf[b] = 0;
		printf("the buffer of block %d is evicted\n", b + 1) }
	/* the new file's buffers */
	:: d_step { N_buffer[b] && N_dirty[b] -> N_disk[b] = N_buf[b]; N_dirty[b] = false; must_write[b] = false;
		N_synced[b] = false; N_request[b] = true; printf("a buffer of block %d of N is written\n", b + 1) }
	:: backup == 1 && !backup_has[b] -> atomic { backup_has[b] = true;
		if
		:: backup_page[b] = N_disk[b]
		:: under_way == b + 1 -> backup_page[b] = under_way_page
		:: under_way == b + 1 -> backup_page[b] = TORN
		fi;
		printf("the backup reads block %d of N\n", b + 1) }
	od
}
#undef b

active proctype Others()
{
	byte i;

	do
	/* smgrextend(): zeros, without a record */
	:: d_step { !committed && !locked && F_length < B -> has_buffer[F_length] = true; F_buf[F_length] = ZEROS; F_length++;
		printf("F is extended by block %d\n", F_length) }
	/* xlog.c, CreateCheckPoint(): redo position; buffers; fsyncs; pg_control */
	:: d_step { !checkpoint && checkpoints < CHECKPOINTS ->
		checkpoint = true; checkpoints++; redo_moved = true; redo_moved_behind = true;
		for (i : 0 .. B - 1) { image_begun[i] = false; must_write[i] = N_dirty[i] }
		printf("a checkpoint begins: the redo position moves\n") }
	:: checkpoint && !must_write[0] && !must_write[1] -> atomic {
		checkpoint = false;
		if
		:: backup < BACKUPS -> d_step { backup = 1; image_backup[0] = image_begun[0]; image_backup[1] = image_begun[1];
			printf("a base backup begins with the checkpoint that ends\n") }
		:: true -> printf("the checkpoint ends\n")
		fi;
		d_step {
			for (i : 0 .. B - 1) {
				image_redo[i] = image_begun[i]; image_begun[i] = false;
				if :: N_request[i] -> N_synced[i] = true; N_request[i] = false :: else fi
			}
			i = 0
		} }
	:: d_step { backup == 1 && backup_has[0] && backup_has[1] -> backup = 2; backup_has[0] = false; backup_has[1] = false; printf("the backup is complete\n") }
#ifdef WITHOUT_CLAIM
	/* the janitor, leftover_files_remove(): a row that no process works on */
	:: d_step { file_exists && row_new == 2 && !committed -> file_exists = false; row_new = 0;
		printf("the janitor removes N by its row\n") }
#endif
	od
}

/* ---- What holds in every state: a crash here, or a restored backup, would have it so */

inline recovered(b)
{
	if
	:: b < F_length && image_redo[b] -> CLAIM(N_image[b] == F_disk[b], "REFUTED after a crash N is whole\n")
	:: b < F_length && !image_redo[b] ->
		CLAIM(N_synced[b] && N_disk[b] == F_disk[b], "REFUTED after a crash N is whole\n")
	:: else
	fi;
	if
	:: b < F_length && backup == 2 ->
		CLAIM((image_backup[b] -> N_image[b] : backup_page[b]) == F_disk[b], "REFUTED a restored backup has N whole\n")
	:: else
	fi
}

active proctype Crash()
{
	do
	:: d_step { committed -> recovered(0); recovered(1);
		CLAIM(!old_exists || row_old == 2, "REFUTED no file without a row of the ledger or of pg_class\n") }
	:: d_step { !committed && file_exists ->
		CLAIM(row_new == 2, "REFUTED no file without a row of the ledger or of pg_class\n") }
	od
}
