/*
 * utility_hook.c
 *	  Module for tests: a utility hook, as Citus has one, that does with a worker's
 *	  REINDEX what utility_hook.reindex says.
 *
 *	  pass		run it
 *	  swallow	end as if it had been run
 *	  repeat	run it twice
 *	  stay		run it without its tablespace
 *	  plain		run it without CONCURRENTLY
 *
 * It also has a setting of Citus's, and logs it with each REINDEX: where that is on,
 * Citus sends the command on to other nodes.  And it logs ALTER ... SET TABLESPACE.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "tcop/utility.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

static char *reindex = NULL;
static bool propagate = true;
static ProcessUtility_hook_type next_hook = NULL;

/* The options of a REINDEX without one of them. */
static List *
without(List *options, const char *name)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, options)
		if (strcmp(((DefElem *) lfirst(lc))->defname, name) != 0)
			result = lappend(result, lfirst(lc));
	return result;
}

static void
test_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			 ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	int			times = 1;

	if (IsA(pstmt->utilityStmt, ReindexStmt))
	{
		ReindexStmt *stmt = (ReindexStmt *) pstmt->utilityStmt;

		elog(LOG, "utility hook: %s, citus.enable_ddl_propagation is %s", queryString,
			 propagate ? "on" : "off");
		if (MyBgworkerEntry != NULL)
		{
			if (strcmp(reindex, "swallow") == 0)
				times = 0;
			else if (strcmp(reindex, "repeat") == 0)
				times = 2;
			else if (strcmp(reindex, "stay") == 0)
				stmt->params = without(stmt->params, "tablespace");
			else if (strcmp(reindex, "plain") == 0)
				stmt->params = without(stmt->params, "concurrently");
		}
	}

	if (IsA(pstmt->utilityStmt, AlterTableStmt) || IsA(pstmt->utilityStmt, AlterTableMoveAllStmt))
		elog(LOG, "utility hook: %s%s", queryString,
			 context == PROCESS_UTILITY_SUBCOMMAND ? ", as a subcommand" : "");

	for (int n = 1; n <= times; n++)
	{
		/* its transactions take away both */
		if (n > 1)
		{
			MemoryContextSwitchTo(PortalContext);
			PushActiveSnapshot(GetTransactionSnapshot());
		}
		if (next_hook)
			next_hook(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params,
									queryEnv, dest, qc);
	}
}

void
_PG_init(void)
{
	DefineCustomStringVariable("utility_hook.reindex", "What becomes of a worker's REINDEX.", NULL,
							   &reindex, "pass", PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("citus.enable_ddl_propagation", "Of Citus.", NULL,
							 &propagate, true, PGC_USERSET, 0, NULL, NULL, NULL);
	next_hook = ProcessUtility_hook;
	ProcessUtility_hook = test_utility;
}
