/*-------------------------------------------------------------------------
 *
 * evidence.c
 *	  What this server knows of the device below a tablespace.
 *
 * Recovery makes files where they are missing, with zeros before the images of pages
 * that it has, so a file's contents do not tell whether it is whole.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_tablespace_d.h"
#include "miscadmin.h"

#include "compat.h"
#include "evidence.h"
#include "test_points.h"

static bool is_preloaded = false;

/* Called by _PG_init(). */
void
evidence_init(void)
{
	is_preloaded = process_shared_preload_libraries_in_progress;
}

/*
 * Return what is to be thought of the tablespace as a whole, looking at its device now.
 *
 * EVIDENCE_LOST: there may be files of permanent relations that are lost whatever their
 * pages look like; evidence_of_file() says which.  EVIDENCE_UNKNOWN: all pages of those
 * files have to be read.  EVIDENCE_SAME: the device is the one that it was; what single
 * files have lost is seen in the file system, or in a page or two.
 */
Evidence
evidence_of_tablespace(Oid tablespace)
{
	/* the data directory is there, or there is no server */
	if (tablespace == DEFAULTTABLESPACE_OID || tablespace == GLOBALTABLESPACE_OID)
		return EVIDENCE_SAME;
	return IM_LIMIT("evidence", is_preloaded ? EVIDENCE_SAME : EVIDENCE_UNKNOWN);
}

/*
 * The same of the file of one permanent relation, index or table.  One that was made
 * since the device was lost, or since it is known, is not concerned.
 */
Evidence
evidence_of_file(Oid tablespace, RelFileNumber relfilenumber)
{
	return evidence_of_tablespace(tablespace);
}

/*
 * Return whether the device has had this file since it was made, whatever became of
 * others: whether a copy that was kept may be trusted.  Unlike EVIDENCE_SAME this cannot
 * come from reading pages.
 */
bool
evidence_vouches(Oid tablespace, RelFileNumber relfilenumber)
{
	return evidence_of_tablespace(tablespace) == EVIDENCE_SAME;
}

/*
 * Return whether this server may remove files there: whether no other server is known to
 * use the directory.
 */
bool
evidence_may_remove(Oid tablespace)
{
	return true;
}

/*
 * Return why evidence_of_tablespace() is not EVIDENCE_SAME, or evidence_may_remove() is
 * false: a sentence, constant or palloc'd; NULL if neither is so.
 */
const char *
evidence_reason(Oid tablespace)
{
	if (evidence_of_tablespace(tablespace) == EVIDENCE_SAME)
		return NULL;
	return is_preloaded ? "The device is not known." : "The library is not preloaded.";
}
