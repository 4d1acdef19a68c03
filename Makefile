# index_mover: online index relocation for PostgreSQL
EXTENSION = index_mover
MODULE_big = index_mover
PGFILEDESC = "index_mover - moves indexes to another tablespace while they are in use"

# Rows as in the picture in README.md ("How the source is laid out"): a file
# includes headers of its own row or of lower rows only.
OBJS = \
	$(WIN32RES) \
	index_mover.o \
	src/catalog.o \
	src/job.o \
	src/ledger.o \
	src/settings.o

OUR_HEADERS = \
	src/catalog.h \
	src/compat.h \
	src/job.h \
	src/ledger.h \
	src/move.h \
	src/plan.h \
	src/settings.h

DATA = index_mover--1.0.sql

REGRESS =
ISOLATION =
TAP_TESTS = 1

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# PGXS tracks no header dependencies, and a VPATH build has no src/ folder yet.
override CPPFLAGS := -I$(if $(VPATH),$(VPATH),.)/src $(CPPFLAGS)
$(OBJS): $(OUR_HEADERS)

# For scripts/test: "make print-REGRESS" prints the list.
print-%:
	@echo $($*)
