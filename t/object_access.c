/*
 * object_access.c
 *	  Module for tests: an object access hook beside ours, as sepgsql has one.
 *
 * It logs what it is told of relations, for whom, and refuses what
 * object_access.refuse says: what background workers create, alter or drop.  With
 * object_access.pass_on = off it keeps it from whoever was there before.
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

static char *refuse = NULL;
static bool pass_on = true;
static object_access_hook_type next_hook = NULL;

static void
test_object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id,
				   void *arg)
{
	const char *what;
	const char *name = NULL;
	bool		internal;

	if (next_hook && pass_on)
		next_hook(access, class_id, object_id, sub_id, arg);
	if (class_id != RelationRelationId || sub_id != 0)
		return;

	switch (access)
	{
		case OAT_POST_CREATE:
			/* its name is not to be seen yet */
			what = "create";
			internal = ((ObjectAccessPostCreate *) arg)->is_internal;
			break;
		case OAT_POST_ALTER:
			what = "alter";
			internal = ((ObjectAccessPostAlter *) arg)->is_internal;
			name = get_rel_name(object_id);
			break;
		case OAT_DROP:
			what = "drop";
			internal = (((ObjectAccessDrop *) arg)->dropflags & PERFORM_DELETION_INTERNAL) != 0;
			name = get_rel_name(object_id);
			break;
		default:
			return;
	}
	elog(LOG, "object access: %s %s by %s%s", what, name ? name : "something",
		 GetUserNameFromId(GetUserId(), false), internal ? ", internal" : "");
	if (MyBgworkerEntry != NULL && strcmp(what, refuse) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("no role may %s relations today", what)));
}

void
_PG_init(void)
{
	DefineCustomStringVariable("object_access.refuse", "What is refused.", NULL,
							   &refuse, "", PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("object_access.pass_on", "Call the hook that was there.", NULL,
							 &pass_on, true, PGC_SUSET, 0, NULL, NULL, NULL);
	next_hook = object_access_hook;
	object_access_hook = test_object_access;
}
