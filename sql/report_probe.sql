-- tablespace_probe(): the storage of a tablespace
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS index_mover CASCADE;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE "regress probe" LOCATION '';
DELETE FROM index_mover.probe;

SELECT random_read_ms > 0 AS random_read, abs(random_read_iops * random_read_ms - 1000) < 1 AS iops,
	   random_read_iops_deep > 0 AS deep, sequential_read_mb_s > 0 AS sequential, sync_write_ms > 0 AS sync_write,
	   free_bytes < total_bytes AS space, 'pg_default' = ANY (same_device_as) AS same_device,
	   'regress probe' = ANY (same_device_as) AS itself,
	   suggested_random_page_cost BETWEEN 1.1 AND 4 AS cost, suggested_effective_io_concurrency BETWEEN 1 AND 8 AS concurrency,
	   command ~ '^ALTER TABLESPACE "regress probe" SET \(random_page_cost = \d\.\d, effective_io_concurrency = \d+\);$' AS command
  FROM tablespace_probe('regress probe', '100 ms', 8);
-- the command works
SELECT command FROM tablespace_probe('regress probe', '50 ms', 8) \gset
:command
-- remembered for recommend_moves()
SELECT count(*) FROM index_mover.probe p JOIN pg_tablespace t ON t.oid = p.tablespace WHERE t.spcname = 'regress probe';
-- not where the transaction may not write
BEGIN READ ONLY;
SELECT random_read_ms > 0 AS works FROM tablespace_probe('regress probe', '50 ms');
COMMIT;
SELECT count(*) FROM index_mover.probe;
-- bounded in time, and interrupted at once
SELECT clock_timestamp() AS start \gset
SELECT random_read_ms > 0 AS works FROM tablespace_probe('regress probe', '0.4 s');
SELECT clock_timestamp() - :'start'::timestamptz < interval '20 s' AS bounded;
SET statement_timeout = 200;
SELECT * FROM tablespace_probe('regress probe', '30 s');
RESET statement_timeout;
-- leaves nothing
SELECT name FROM pg_tablespace t, pg_ls_tmpdir(t.oid) WHERE t.spcname = 'regress probe';

-- arguments and privileges
SELECT * FROM tablespace_probe('regress_nosuch');
SELECT * FROM tablespace_probe('pg_global');
SELECT * FROM tablespace_probe('regress probe', '0');
SELECT * FROM tablespace_probe('regress probe', '2 months');
SELECT * FROM tablespace_probe('regress probe', '-1 s');
SELECT * FROM tablespace_probe('regress probe', '1 s', 0);
SELECT * FROM tablespace_probe('regress probe', '1 s', 100000);
\set VERBOSITY sqlstate
SELECT * FROM tablespace_probe(NULL);
SELECT * FROM tablespace_probe('regress probe', NULL);
SELECT * FROM tablespace_probe('regress probe', '1 s', NULL);
CREATE ROLE regress_probe_monitor IN ROLE pg_monitor;
CREATE ROLE regress_probe_nobody;
GRANT CREATE ON TABLESPACE "regress probe" TO regress_probe_nobody;
SET ROLE regress_probe_nobody;
SELECT * FROM tablespace_probe('regress probe', '50 ms');
SET ROLE regress_probe_monitor;
\set VERBOSITY default
SELECT * FROM tablespace_probe('regress probe', '50 ms');
RESET ROLE;
GRANT CREATE ON TABLESPACE "regress probe" TO regress_probe_monitor;
SET ROLE regress_probe_monitor;
SELECT random_read_ms > 0 AS works FROM tablespace_probe('regress probe', '50 ms');
RESET ROLE;

DELETE FROM index_mover.probe;
DROP TABLESPACE "regress probe";
DROP ROLE regress_probe_monitor, regress_probe_nobody;
