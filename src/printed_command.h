/*-------------------------------------------------------------------------
 *
 * printed_command.h
 *	  The commands that messages and reports tell people to run.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IM_PRINTED_COMMAND_H
#define IM_PRINTED_COMMAND_H

extern char *printed_command(const char *name,...);

#endif							/* IM_PRINTED_COMMAND_H */
