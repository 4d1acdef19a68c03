-- The last test: nothing of the others is left, so the tablespaces and the
-- extension can be dropped.
SELECT * FROM oracle.leftovers();
SELECT * FROM oracle.files();
SET client_min_messages = warning;
DROP SCHEMA oracle CASCADE;
RESET client_min_messages;
DROP EXTENSION index_mover;
DROP TABLESPACE regress_slow;
DROP TABLESPACE regress_fast;
