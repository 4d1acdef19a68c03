# index_mover: indexes and tables of PostgreSQL move to another tablespace while in use
EXTENSION = index_mover
MODULE_big = index_mover
PGFILEDESC = "index_mover - moves indexes and tables to another tablespace while they are in use"

# By room, upper first (src/README): a room uses rooms below it only.
OBJS = \
	$(WIN32RES) \
	index_mover.o \
	src/tier/key_units.o src/tier/moments.o src/tier/partition_bounds.o \
	src/tier/policy.o src/tier/policy_conflict.o src/tier/policy_fault.o src/tier/policy_run.o src/tier/policy_status.o \
	src/tier/tier_decision.o \
	src/tier/tier_plan.o \
	src/tier/tier_run.o \
	src/tier/tier_scheduler.o \
	src/tier/tier_wish.o \
	src/tier/heat.o \
	src/tier/heat_samples.o \
	src/tier/hindsight.o \
	src/tier/pending.o \
	src/tier/places.o \
	src/tier/ranking.o \
	src/call/call_checks.o \
	src/call/cleanup_call.o \
	src/call/control.o \
	src/call/notices.o \
	src/call/online_alter.o \
	src/call/progress_view.o \
	src/call/readable_tables.o \
	src/call/result_rows.o \
	src/call/resume_at_start.o \
	src/call/submit.o \
	src/call/visible_jobs.o \
	src/call/wait_for_job.o \
	src/worker/device_watch.o \
	src/worker/emptying.o \
	src/worker/janitor.o \
	src/worker/job_launch.o \
	src/worker/launcher.o \
	src/worker/launcher_round.o \
	src/worker/launcher_visits.o \
	src/worker/move_default.o \
	src/worker/move_item.o \
	src/worker/move_worker.o \
	src/worker/outcome.o \
	src/copy/block_set.o \
	src/copy/copy_changes.o \
	src/copy/copy_eta.o \
	src/copy/copy_give_way.o \
	src/copy/copy_last.o \
	src/copy/copy_locks.o \
	src/copy/copy_maps.o \
	src/copy/copy_prewarm.o \
	src/copy/copy_resume.o \
	src/copy/copy_rounds.o \
	src/copy/copy_steps.o \
	src/copy/copy_swap.o \
	src/copy/copy_verify.o \
	src/copy/file_copy.o \
	src/copy/wal_changes.o \
	src/rebuild/rebuild.o \
	src/rebuild/rebuild_timer.o \
	src/rebuild/snapshot_guard.o \
	src/plan/lost.o \
	src/plan/lost_file.o \
	src/plan/lost_files.o \
	src/plan/plan.o \
	src/plan/plan_checks.o \
	src/plan/plan_estimate.o \
	src/plan/plan_methods.o \
	src/plan/plan_relations.o \
	src/plan/plan_stays.o \
	src/plan/space.o \
	src/cleanup/ledger.o \
	src/cleanup/leftover_files.o \
	src/cleanup/leftover_indexes.o \
	src/cleanup/leftovers.o \
	src/wait/attempts.o \
	src/wait/blockers.o \
	src/wait/free_space.o \
	src/wait/pacing.o \
	src/wait/pollers.o \
	src/wait/receivers.o \
	src/wait/relation_locks.o \
	src/wait/replica_lag.o \
	src/wait/turn.o \
	src/wait/wait_others.o \
	src/report/bloat.o \
	src/report/compressed_size.o \
	src/report/device_report.o \
	src/report/duplicates.o \
	src/report/page_links.o \
	src/report/page_measure.o \
	src/report/rebuilt_gin.o \
	src/report/rebuilt_size.o \
	src/report/relation_report.o \
	src/report/reports.o \
	src/report/tablespace_probe.o \
	src/channel.o \
	src/citus.o \
	src/device_marker.o \
	src/errors.o \
	src/evidence.o src/evidence_area.o src/evidence_look.o src/evidence_record.o src/evidence_round.o \
	src/evidence_start.o src/evidence_verdict.o \
	src/file_compression.o \
	src/file_system.o \
	src/history.o \
	src/index_definition.o \
	src/job.o \
	src/job_item.o \
	src/lost_copy.o \
	src/lost_guard.o \
	src/own_tables.o \
	src/printed_command.o \
	src/progress.o \
	src/relation_facts.o \
	src/ruins.o \
	src/runner.o \
	src/runner_bid.o \
	src/runner_claim.o \
	src/running_jobs.o \
	src/settings.o \
	src/settings_of_role.o \
	src/timescaledb.o \
	src/virtual_transactions.o

# Pause points and switches that make a copy wrong: only for the tests.
ifneq (,$(findstring INDEX_MOVER_TEST,$(PG_CFLAGS)))
OBJS += t/test_points.o t/damaged_pages.o
endif

# The version is that of the control file, of a release that of META.json; what
# else names them must agree, which scripts/release check looks at.
EXTVERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(if $(VPATH),$(VPATH),.)/$(EXTENSION).control)
DATA = $(notdir $(wildcard $(if $(VPATH),$(VPATH),.)/$(EXTENSION)--*.sql))

# The first ones make objects that others use; teardown drops them.
REGRESS = basic special copy table partitioned names privileges bad_input jobs \
	surface plan plan_recheck toast undo \
	report_bloat report_samples report_rebuilt report_pending report_index report_probe \
	teardown
# How good the estimates are: scripts/test leaves these to PG_TEST_EXTRA=faults.
REGRESS_FAULTS = report_samples report_rebuilt
# The first makes what the others need, the last drops it.
ISOLATION = iso_setup move_vs_dml move_vs_wide move_vs_ddl move_vs_move \
	move_index_vs_seq iso_teardown
TAP_TESTS ?= 1

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)

# Any running server will do for the others, but the TAP tests start servers of
# their own, with PostgreSQL's Perl modules.
ifneq (,$(and $(TAP_TESTS),$(filter installcheck,$(MAKECMDGOALS))))
no_tap := $(shell test `id -u` != 0 || echo root cannot start a server.; \
	perl -MTest::More -MIPC::Run -e 1 2> /dev/null || echo Perl has no IPC::Run.; \
	test -f $(dir $(PGXS))../../src/test/perl/PostgreSQL/Test/Cluster.pm || echo $(PG_CONFIG) has no PostgreSQL::Test.)
ifneq (,$(no_tap))
$(info No TAP tests: $(no_tap))
override TAP_TESTS =
endif
endif
include $(PGXS)

# Each copy is compared with the original, the disk may be nearly full, and a query that
# moves also reads the history.
installcheck: export PGOPTIONS += -c index_mover.verify=on -c index_mover.min_free_space=0 \
	-c default_transaction_isolation=read\ committed

# PGXS tracks no header dependencies, and a VPATH build has no src/ directory yet.
override CPPFLAGS := -I$(if $(VPATH),$(VPATH),.)/src $(CPPFLAGS)
$(OBJS): $(wildcard $(addprefix $(if $(VPATH),$(VPATH),.)/src/,*.h */*.h))
ifdef VPATH
$(shell mkdir -p $(sort $(dir $(OBJS))))
endif

# A release: what is committed, without what .gitattributes leaves out.  The same
# commit makes the same bytes.  PGXN takes the .zip.
DIST = $(EXTENSION)-$(shell sed -n '/"meta-spec"/q; s/^   "version": "\(.*\)",$$/\1/p' META.json)
.PHONY: dist
dist:
	git -c tar.umask=0022 archive --format=tar --prefix=$(DIST)/ HEAD | gzip -n -9 > $(DIST).tar.gz
	TZ=UTC git archive --format=zip --prefix=$(DIST)/ -o $(DIST).zip HEAD

# For scripts/test: "make print-REGRESS" prints the list.
print-%:
	@echo $($*)
