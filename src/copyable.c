/*-------------------------------------------------------------------------
 *
 * copyable.c
 *	  Which indexes the method copy can move.
 *
 * A copy learns from the WAL which blocks have changed meanwhile.  So the
 * access method must log every change with references to the blocks, or the
 * change must be one that may be lost (hint bits).  That is known of the
 * access methods of core and of bloom (generic WAL); of others the superuser
 * has to say it, with index_mover.copy_access_methods.
 *
 * Reads the catalogs only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "copyable.h"
#include "nodes/pg_list.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

static bool access_method_known(Oid access_method, const char *more);

/*
 * Can a copy move this index?  If not, *reason says why, in words that fit
 * behind "method copy cannot move this index: ".  more_access_methods is the
 * setting copy_access_methods.  An index that does not exist can't be moved.
 */
bool
copy_can_move(Oid index_oid, const char *more_access_methods, const char **reason)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(index_oid));
	Form_pg_class form;

	*reason = NULL;
	if (!HeapTupleIsValid(tuple))
		*reason = "it does not exist";
	else
	{
		form = (Form_pg_class) GETSTRUCT(tuple);
		if (form->relkind != RELKIND_INDEX)
			*reason = "it has no file of its own";
		else if (form->relpersistence == RELPERSISTENCE_UNLOGGED)
			*reason = "it is unlogged, so the WAL does not tell what changes meanwhile";
		else if (form->relpersistence != RELPERSISTENCE_PERMANENT)
			*reason = "it is temporary";
		else if (form->relfilenode == InvalidOid)
			*reason = "it is a mapped system index";
		else if (!access_method_known(form->relam, more_access_methods))
			*reason = "its access method is not known to log every change of a block (see index_mover.copy_access_methods)";
		ReleaseSysCache(tuple);
	}
	return *reason == NULL;
}

/* The resource manager that knows how to mask the pages of an access method. */
RmgrId
copy_resource_manager(Oid access_method)
{
	switch (access_method)
	{
		case BTREE_AM_OID:
			return RM_BTREE_ID;
		case HASH_AM_OID:
			return RM_HASH_ID;
		case GIST_AM_OID:
			return RM_GIST_ID;
		case GIN_AM_OID:
			return RM_GIN_ID;
		case SPGIST_AM_OID:
			return RM_SPGIST_ID;
		case BRIN_AM_OID:
			return RM_BRIN_ID;
		default:
			return RM_GENERIC_ID;
	}
}

/* Is the access method on our list, or on the superuser's? */
static bool
access_method_known(Oid access_method, const char *more)
{
	char	   *name;
	char	   *copy;
	List	   *names;
	ListCell   *cell;
	bool		found = false;

	switch (access_method)
	{
		case BTREE_AM_OID:
		case HASH_AM_OID:
		case GIST_AM_OID:
		case GIN_AM_OID:
		case SPGIST_AM_OID:
		case BRIN_AM_OID:
			return true;
		default:
			break;
	}

	name = get_am_name(access_method);
	if (name == NULL)
		return false;
	if (strcmp(name, "bloom") == 0)
		return true;
	if (more == NULL || *more == '\0')
		return false;

	copy = pstrdup(more);
	if (SplitIdentifierString(copy, ',', &names))
	{
		foreach(cell, names)
		{
			if (strcmp((char *) lfirst(cell), name) == 0)
				found = true;
		}
		list_free(names);
	}
	pfree(copy);
	return found;
}
