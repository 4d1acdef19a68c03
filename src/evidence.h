/*-------------------------------------------------------------------------
 *
 * evidence.h
 *	  The knowledge of this server about the device below a tablespace: is it the one that has
 *	  all that was written there, and does it belong to this server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_EVIDENCE_H
#define IM_EVIDENCE_H

#include "access/htup.h"
#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

#include "compat.h"

/* The verdict of the device about files of permanent relations, in order of severity */
typedef enum Evidence
{
	EVIDENCE_SAME,				/* it has all that was written there */
	EVIDENCE_UNKNOWN,			/* nothing: all pages have to be read */
	EVIDENCE_LOST,				/* it lacks changes of files */
} Evidence;

/* evidence.c: questions about a device, or a file there */
extern Evidence evidence_of_tablespace(Oid tablespace);
extern Evidence evidence_of_file(Oid tablespace, RelFileNumber relfilenumber, Oid relid);
extern bool evidence_vouches(Oid tablespace, RelFileNumber relfilenumber);
extern bool evidence_claim(Oid tablespace);
extern bool evidence_is_foreign(Oid tablespace);
extern bool evidence_ensure(Oid tablespace);
extern const char *evidence_reason(Oid tablespace);
extern const char *evidence_file_name(void);
extern uint32 evidence_losses(void);
extern bool evidence_confirm_loss(Oid tablespace);
extern bool evidence_confirm_loss_lately(Oid tablespace);
extern bool evidence_can_empty(Oid tablespace);
extern bool evidence_knows_lost(HeapTuple row);
extern bool evidence_keep_lost(const List *rows);
extern void evidence_note_ruin(const RelFileLocator *file);

/* evidence_round.c: findings on devices, without a wait for a device */
extern bool evidence_is_met(Oid database, uint32 losses, List **indexes);
extern void evidence_note_met(uint32 losses, const List *indexes);
extern XLogRecPtr evidence_running_from(void);
extern bool evidence_take_wish(void);
extern void evidence_watch(void);
extern void evidence_tell_jobs(void);
extern void evidence_note_running(void);
extern List *evidence_lossy(void);
extern List *evidence_doubtful(void);
extern bool evidence_loss_may_concern(Oid tablespace, RelFileNumber relfilenumber, Oid relid);
extern bool evidence_doubts(Oid tablespace, RelFileNumber relfilenumber);
extern List *evidence_uncommitted(void);
extern void evidence_begin_round(void);
extern void evidence_refute(Oid tablespace);
extern uint32 evidence_doubts_so_far(Oid tablespace);
extern void evidence_note_read(Oid tablespace, RelFileNumber below, uint32 doubts);
extern bool evidence_look_if_unread(Oid tablespace, RelFileNumber relfilenumber, Oid relid);

/* evidence_area.c */
extern void evidence_meet_again(void);
extern void evidence_want_again(void);
extern void evidence_serve_again(void);

/* for the launcher's watch of devices, which waits for them */
extern void evidence_settle(void);

/* evidence_look.c */
extern int	evidence_beat_ms(void);
extern void evidence_look(void);

/* evidence_start.c */
extern void evidence_note_file(Oid tablespace);
extern void evidence_init(void);

#endif							/* IM_EVIDENCE_H */
