-- Names that must be quoted, clipped, or not believed.
-- Fault (security): names that are SQL
\getenv abs_srcdir PG_ABS_SRCDIR
\set setup :abs_srcdir '/sql/include/setup.sql'
\set ECHO none
\i :setup
\set ECHO all
CREATE SCHEMA "Schema ""with"" quotes";
SET search_path = "Schema ""with"" quotes", public;
CREATE TABLE "table; DROP TABLE x; --" (id int, "column %s ""x""" text) WITH (autovacuum_enabled = false);
INSERT INTO "table; DROP TABLE x; --" SELECT g, 't' || g FROM generate_series(1, 100) g;
CREATE INDEX "UPPER" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "a""b" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "with space" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "'; DROP TABLE x; --" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "new
line" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "%s%n%d" ON "table; DROP TABLE x; --" ("column %s ""x""");
CREATE INDEX "select" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "pg_temp.x" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "..." ON "table; DROP TABLE x; --" (id);
-- 63 bytes, also where the last characters have several bytes
CREATE INDEX x2345678901234567890123456789012345678901234567890123456789_63b ON "table; DROP TABLE x; --" (id);
CREATE INDEX x2345678901234567890123456789012345678901234567890123456789_63c ON "table; DROP TABLE x; --" (id);
DO $$ BEGIN
	IF getdatabaseencoding() = 'UTF8' THEN
		EXECUTE format('CREATE INDEX %I ON "table; DROP TABLE x; --" (id)', repeat(chr(228), 31) || 'x');
	ELSE
		EXECUTE format('CREATE INDEX %I ON "table; DROP TABLE x; --" (id)', repeat('y', 63));
	END IF;
END $$;
-- names that core's rebuild would choose are taken already
CREATE INDEX "UPPER_ccnew" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "UPPER_ccold" ON "table; DROP TABLE x; --" (id);
CREATE INDEX "UPPER_ccnew1" ON "table; DROP TABLE x; --" (id);
-- a relation of the same name in pg_temp and in a schema that comes first
CREATE SCHEMA other;
CREATE TABLE other.o (id int);
CREATE INDEX "UPPER" ON other.o (id);
SET search_path = other, "Schema ""with"" quotes", public;
CREATE TEMP TABLE pg_class (oid oid);
SELECT oracle.remember_metadata('"table; DROP TABLE x; --"');
SELECT status, count(*) FROM move_indexes('"table; DROP TABLE x; --"', 'regress_fast', method => 'rebuild') GROUP BY 1;
SELECT * FROM oracle.metadata_changes('"table; DROP TABLE x; --"');
SELECT oracle.verdict('"table; DROP TABLE x; --"');
SELECT c.reltablespace FROM pg_catalog.pg_class c WHERE c.oid = 'other."UPPER"'::regclass;
-- names in the rows and in the history
SELECT name FROM move_indexes('"a""b"', 'regress_slow', method => 'rebuild');
SELECT name, table_name, status FROM index_mover_history ORDER BY job DESC, started_at DESC LIMIT 1;
SELECT name, method, detail FROM move_indexes('"new
line"', 'regress_fast', method => 'rebuild');
-- a tablespace to quote
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE "regress ""fast"" %s" LOCATION '';
SELECT r.* FROM move_indexes('"%s%n%d"', 'regress "fast" %s', method => 'rebuild') m, oracle.rows(m) r;
SELECT r.* FROM move_tablespace_indexes('regress "fast" %s', 'regress_fast', method => 'rebuild') m, oracle.rows(m) r;
DROP TABLESPACE "regress ""fast"" %s";
DROP TABLE pg_temp.pg_class;
-- the catalogs still say ..._ccnew of those that were called so before
SELECT kind, count(*) FROM oracle.leftovers() GROUP BY 1;
SET client_min_messages = warning;
DROP SCHEMA "Schema ""with"" quotes", other CASCADE;
SELECT * FROM oracle.leftovers();
