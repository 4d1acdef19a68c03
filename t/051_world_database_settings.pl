# What a database sets for its sessions doesn't reach the worker: neither a role
# to be, which could have more or less rights than the job's own, nor timeouts,
# nor another encoding for messages.
use strict;
use warnings;
use utf8;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('database_settings');
my $TARGET = 'regress_fast';
my $name = "uu_\x{e9}";

$node->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_owner NOLOGIN;
CREATE ROLE regress_nobody LOGIN;
GRANT USAGE ON SCHEMA public TO regress_owner;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_owner;
GRANT CREATE ON TABLESPACE regress_fast TO regress_owner;
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 100);
CREATE INDEX t_i ON t (i);
ALTER TABLE t OWNER TO regress_owner;
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL

# a role with fewer rights than the job's
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET role = regress_nobody');
is($node->safe_psql('postgres',
		"SET ROLE regress_owner; SELECT status, detail FROM move_indexes('t', '$TARGET', 'rebuild')"),
	'moved|', 'a role in the settings of the database takes no rights away');

# and one with more: what the job's role has lost meanwhile is lost
$node->safe_psql('template1', 'ALTER DATABASE postgres SET role = ' . $node->safe_psql('template1', 'SELECT current_user'));
$node->safe_psql('postgres', <<'SQL');
SET ROLE regress_owner;
SELECT status FROM move_indexes('t', 'pg_default');
BEGIN;
SELECT status FROM move_indexes('t', 'regress_fast', wait => false);
RESET ROLE;
REVOKE CREATE ON TABLESPACE regress_fast FROM regress_owner;
COMMIT;
SQL
my $job = $node->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history');
$node->safe_psql('postgres', "CALL wait_for_move($job)");
is($node->safe_psql('postgres', "SELECT status, sqlstate, role FROM index_mover_history WHERE job = $job"),
	'skipped|42501|regress_owner', '... and gives none');

# everything else that could be in the way
$node->safe_psql('template1', <<'SQL');
ALTER DATABASE postgres RESET role;
ALTER DATABASE postgres SET statement_timeout = 1;
ALTER DATABASE postgres SET lock_timeout = 1;
ALTER DATABASE postgres SET idle_in_transaction_session_timeout = 1;
ALTER DATABASE postgres SET default_transaction_isolation = serializable;
ALTER DATABASE postgres SET default_transaction_read_only = on;
ALTER DATABASE postgres SET default_transaction_deferrable = on;
ALTER DATABASE postgres SET session_replication_role = replica;
ALTER DATABASE postgres SET search_path = nowhere;
ALTER DATABASE postgres SET default_tablespace = regress_slow;
ALTER DATABASE postgres SET track_activities = off;
ALTER DATABASE postgres SET row_security = off;
ALTER DATABASE postgres SET client_min_messages = error;
ALTER DATABASE postgres SET client_encoding = latin1;
SQL

# "é" is one byte in latin1, and "€" isn't there at all
my ($stdout, $stderr);
# (the limits of 1 ms are for the worker: this session has to get somewhere)
local $ENV{PGOPTIONS} = '-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0';
my $setup = <<SQL;
SET default_transaction_read_only = off; SET search_path = public; SET client_encoding = utf8;
SET client_min_messages = notice;
SQL
my $sql = $setup . <<SQL;
CREATE FUNCTION f(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \$\$
BEGIN
	IF pg_catalog.current_setting('session_replication_role') = 'origin' THEN	-- the worker
		RAISE NOTICE '\x{e9} \x{20ac}';
		IF i = 2 THEN RAISE EXCEPTION '\x{20ac} \x{e9}'; END IF;
	END IF;
	RETURN i;
END \$\$;
CREATE TABLE uu (i int);
INSERT INTO uu VALUES (1);
CREATE INDEX "$name" ON uu (f(i)) TABLESPACE regress_slow;
SELECT status, detail FROM move_indexes('uu', '$TARGET', 'rebuild');
SQL
utf8::encode($sql);
my $status = $node->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr);
utf8::decode($_) for ($stdout, $stderr);
is($status, 0, 'a move in a database with hostile settings');
is($stdout, 'moved|', '... moves');
like($stderr, qr/NOTICE:  \x{e9} \x{20ac}/, '... and its messages arrive');
$node->safe_psql('postgres', "$setup SELECT oracle.remember_keys('uu'), oracle.remember_metadata('uu')");

$sql = $setup . <<SQL;
INSERT INTO uu VALUES (2);
SELECT status, sqlstate, detail FROM move_indexes('uu', 'regress_slow', 'rebuild');
SQL
$status = $node->psql('postgres', $sql, stdout => \$stdout, stderr => \$stderr);
utf8::decode($_) for ($stdout, $stderr);
is($status, 0, 'a move that fails there');
is($stdout, "failed|P0001|\x{20ac} \x{e9}", '... tells so');
like($stderr, qr/WARNING:  index "+$name"+ was not moved\nDETAIL:  \x{20ac} \x{e9}/, '... and in a message');
delete $ENV{PGOPTIONS};
$node->safe_psql('template1', 'ALTER DATABASE postgres RESET ALL');
survived_ok($node, 't', 'database settings', "SELECT status FROM move_indexes('t', '$TARGET', 'rebuild')");
# (its function refuses 2 to who is no replica, as the sessions of the database were)
$node->safe_psql('postgres', 'DELETE FROM uu WHERE i = 2');
$node->safe_psql('postgres', 'VACUUM uu');
survived_ok($node, 'uu', 'messages', "SELECT status FROM move_indexes('uu', 'regress_slow', 'rebuild')");
done_testing();
