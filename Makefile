# index_mover: online index relocation for PostgreSQL
EXTENSION = index_mover
MODULE_big = index_mover
PGFILEDESC = "index_mover - moves indexes to another tablespace while they are in use"

# Rows as in the picture in CONTRIBUTING.md ("Source layout"): a file
# includes headers of its own row or of lower rows only.
OBJS = \
	$(WIN32RES) \
	index_mover.o \
	index_report.o \
	src/again.o \
	src/bloat_sample.o \
	src/block_set.o \
	src/blockers.o \
	src/cached_blocks.o \
	src/carry_out.o \
	src/catalog.o \
	src/changed_blocks.o \
	src/cleanup.o \
	src/compare_blocks.o \
	src/copy_eta.o \
	src/copy_last.o \
	src/copy_locks.o \
	src/copy_methods.o \
	src/copy_rounds.o \
	src/copy_verify.o \
	src/file_copy.o \
	src/file_system.o \
	src/gin_pending.o \
	src/history.o \
	src/hold_back.o \
	src/holders.o \
	src/index_bloat.o \
	src/janitor.o \
	src/job.o \
	src/ledger.o \
	src/leftover_files.o \
	src/leftover_index.o \
	src/leftover_twin.o \
	src/move.o \
	src/move_copy.o \
	src/move_rebuild.o \
	src/other_databases.o \
	src/page_measure.o \
	src/plan.o \
	src/plan_checks.o \
	src/plan_estimate.o \
	src/rebuild_timer.o \
	src/rebuilt_size.o \
	src/record.o \
	src/relation_locks.o \
	src/replica_lag.o \
	src/report_relation.o \
	src/runner.o \
	src/settings.o \
	src/snapshot_guard.o \
	src/space.o \
	src/steer.o \
	src/submit.o \
	src/submit_queue.o \
	src/swap.o \
	src/tablespace_probe.o \
	src/throttle.o \
	src/wait_others.o \
	src/wal_ahead.o \
	src/watch.o \
	src/worker.o

# Pause points and switches that make a copy wrong: only for the tests.
ifneq (,$(findstring INDEX_MOVER_TEST,$(PG_CFLAGS)))
OBJS += src/test_points.o src/damaged_pages.o
endif

OUR_HEADERS = \
	src/again.h \
	src/bloat_sample.h \
	src/block_set.h \
	src/blockers.h \
	src/cached_blocks.h \
	src/carry_out.h \
	src/catalog.h \
	src/changed_blocks.h \
	src/cleanup.h \
	src/compare_blocks.h \
	src/compat.h \
	src/copy_methods.h \
	src/copy_state.h \
	src/file_copy.h \
	src/file_system.h \
	src/gin_pending.h \
	src/history.h \
	src/hold_back.h \
	src/holders.h \
	src/index_bloat.h \
	src/index_size.h \
	src/janitor.h \
	src/job.h \
	src/job_area.h \
	src/ledger.h \
	src/leftover_files.h \
	src/leftover_index.h \
	src/leftover_twin.h \
	src/move.h \
	src/move_rebuild.h \
	src/other_databases.h \
	src/page_measure.h \
	src/plan.h \
	src/plan_checks.h \
	src/plan_estimate.h \
	src/rebuild_timer.h \
	src/rebuilt_size.h \
	src/record.h \
	src/relation_locks.h \
	src/replica_lag.h \
	src/report_relation.h \
	src/settings.h \
	src/snapshot_guard.h \
	src/space.h \
	src/submit.h \
	src/swap.h \
	src/test_points.h \
	src/tablespace_probe.h \
	src/throttle.h \
	src/wait_others.h \
	src/wal_ahead.h \
	src/watch.h \
	src/worker.h

# The version is that of the control file; META.json and debian/changelog must
# agree, which scripts/test checks.
EXTVERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(if $(VPATH),$(VPATH),.)/$(EXTENSION).control)
DATA = $(EXTENSION)--$(EXTVERSION).sql

# The first ones make objects that others use; teardown drops them.
REGRESS = basic special copy partitioned names privileges bad_input jobs \
	plan plan_recheck \
	report_bloat report_rebuilt report_pending report_index report_recommend report_probe \
	teardown
# The first makes what the others need, the last drops it.
ISOLATION = iso_setup move_vs_dml move_vs_wide move_vs_ddl move_vs_move \
	move_index_vs_seq iso_teardown
TAP_TESTS ?= 1

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS tracks no header dependencies, and a VPATH build has no src/ folder yet.
override CPPFLAGS := -I$(if $(VPATH),$(VPATH),.)/src $(CPPFLAGS)
$(OBJS): $(OUR_HEADERS)
ifdef VPATH
$(shell mkdir -p src)
endif

# A release: what is committed, without what .gitattributes leaves out.
.PHONY: dist
dist:
	git archive --format=tar.gz --prefix=$(EXTENSION)-$(EXTVERSION)/ -o $(EXTENSION)-$(EXTVERSION).tar.gz HEAD

# For scripts/test: "make print-REGRESS" prints the list.
print-%:
	@echo $($*)
