# Logical replication FOR ALL TABLES.  What the extension's tables say is about one
# cluster only, and a physical clone that was promoted cannot be told from its origin
# by the system identifier: a row of the ledger that came there would name a file
# that another server may be writing.  So no row comes, neither from what is
# decoded, nor by the first copy, nor what was written in SQL; and a subscriber
# without the extension goes on.
#
# Fault (security): rows of the ledger and the history by logical replication `FOR ALL TABLES`,
#   to a clone with the same system identifier and to a subscriber without the extension
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $origin = new_node('origin', streaming => 1, conf => "wal_level = logical");
$origin->safe_psql('postgres', <<SQL);
CREATE TABLE t (i int PRIMARY KEY, s text);
INSERT INTO t SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 5000) g;
CREATE INDEX t_s ON t (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL

sub move_ok
{
	my ($method, $name) = @_;
	is($origin->safe_psql('postgres', "SELECT status FROM move_indexes('t_s', '" . elsewhere($origin, 't_s') . "', '$method')"),
		'moved', "$name: $method");
	return;
}
move_ok('copy', 'before the clone is made');

$origin->backup('clone');
my $clone = PostgreSQL::Test::Cluster->new('clone');
$clone->init_from_backup($origin, 'clone', has_streaming => 1);
$clone->start;
$origin->wait_for_catchup($clone);
$clone->promote;
poll_until($clone, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
my $system = 'SELECT system_identifier FROM pg_control_system()';
is($clone->safe_psql('postgres', $system), $origin->safe_psql('postgres', $system), 'the clone has the same system identifier');
my $from_origin = 'host=' . $origin->host . ' port=' . $origin->port;

# ---- what moves write ----------------------------------------------------------------
$origin->safe_psql('postgres', <<SQL);
CREATE PUBLICATION everything FOR ALL TABLES;
SELECT pg_create_logical_replication_slot('everything', 'pgoutput');
SQL
$clone->safe_psql('postgres',
	"CREATE SUBSCRIPTION everything CONNECTION '$from_origin dbname=postgres' PUBLICATION everything WITH (create_slot = false, "
		. "copy_data = false)");
my $history = 'SELECT job, item, status FROM index_mover.move_log UNION ALL SELECT job, NULL, NULL FROM index_mover.job_log ORDER BY 1, 2';
my $before = $clone->safe_psql('postgres', $history);

move_ok('copy', 'publication of all tables');
move_ok('rebuild', 'publication of all tables');
my $log = -s $origin->logfile;
set_test_point($origin, 'copy-half:kill');
finish_call(start_call($origin, 'mover', "SELECT status FROM move_indexes('t_s', '" . elsewhere($origin, 't_s') . "', 'copy')"));
$origin->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
wait_until_up($origin);
set_test_point($origin, '');
my ($kind, $left, $action) = split /\|/, $origin->safe_psql('postgres', 'SELECT kind, object, action FROM index_mover_cleanup(true)');
is("$kind, $action", 'unfinished copy, remove', 'the origin has a leftover');
# a session writes a file of that number there, and no pg_class row says so yet
append_to_file($clone->data_dir . "/$left", 'x' x block_size($clone));

sub nothing_came
{
	my ($name) = @_;
	$origin->safe_psql('postgres', 'INSERT INTO t SELECT max(i) + 1, NULL FROM t');
	$origin->wait_for_catchup('everything');
	is($clone->safe_psql('postgres', 'SELECT max(i) FROM t'), $origin->safe_psql('postgres', 'SELECT max(i) FROM t'),
		"$name: other changes arrive");
	is($clone->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '0', "$name: the clone's ledger");
	is($clone->safe_psql('postgres', $history), $before, "$name: the clone's history");
	is($clone->safe_psql('postgres', 'SELECT count(*) FROM tier_policy'), '0', "$name: the clone's policies");
	is($clone->safe_psql('postgres', 'SELECT count(*) FROM index_mover.sample'), '0', "$name: the clone's samples");
	foreach my $dry_run ('true', 'false')
	{
		is($clone->safe_psql('postgres', "SELECT * FROM index_mover_cleanup($dry_run)"), '', "$name: nothing to remove, dry run $dry_run");
	}
	is(-s $clone->data_dir . "/$left", block_size($clone), "$name: the clone's file");
	return;
}
nothing_came('a killed move on the publisher');

# ---- what a superuser writes, and what is deleted in SQL --------------------------------
$origin->safe_psql('postgres', <<SQL);
INSERT INTO index_mover.ledger
SELECT id + 1000000, system_identifier, database, kind, tablespace, relfilenumber, table_oid, relation, new_index, job, pid, made_at
  FROM index_mover.ledger;
INSERT INTO index_mover.job_log
SELECT job + 1000000, role, submitted_at, settings, undo_of, policy, rehearse, freeze_first FROM index_mover.job_log;
INSERT INTO index_mover.move_log
SELECT (jsonb_populate_record(l, jsonb_build_object('job', l.job + 1000000))).* FROM index_mover.move_log l;
SELECT take_index_sample();
CREATE TEMP TABLE long_ago AS SELECT * FROM index_mover.sample;
UPDATE long_ago SET taken_at = date_trunc('day', taken_at) - interval '20 days';
INSERT INTO index_mover.sample TABLE long_ago;
UPDATE long_ago SET taken_at = taken_at + interval '1 h';
INSERT INTO index_mover.sample TABLE long_ago;
SELECT take_index_sample('0');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('old', 't', 'regress_fast', '1 year');
SQL
nothing_came('rows written in SQL');
is($origin->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '2', 'rows written in SQL: the origin has them');
my ($rc, undef, $error) = $origin->psql('postgres', 'DELETE FROM index_mover.move_log WHERE job > 1000000');
like($error, qr/cannot delete from table "move_log" because it does not have a replica identity/,
	'the history, while its deletions are published');
$origin->safe_psql('postgres', <<SQL);
ALTER TABLE index_mover.job_log REPLICA IDENTITY FULL;
DELETE FROM index_mover.job_log WHERE job > 1000000;
ALTER TABLE index_mover.job_log REPLICA IDENTITY NOTHING;
ALTER TABLE index_mover.move_log REPLICA IDENTITY FULL;
DELETE FROM index_mover.move_log WHERE job > 1000000;
ALTER TABLE index_mover.move_log REPLICA IDENTITY NOTHING;
SQL
nothing_came('a history deleted in SQL');

# ---- the first copy ----------------------------------------------------------------------
$origin->safe_psql('postgres',
	'CREATE PUBLICATION ours FOR TABLE index_mover.ledger, index_mover.job_log, index_mover.move_log, index_mover.sample, tier_policy');
$clone->safe_psql('postgres', "CREATE SUBSCRIPTION ours CONNECTION '$from_origin dbname=postgres' PUBLICATION ours");
poll_until($clone, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel JOIN pg_subscription s ON s.oid = srsubid WHERE subname = "
	. "'ours'",
	't', 'the first copy');
nothing_came('first copy');
$clone->safe_psql('postgres', 'DROP SUBSCRIPTION ours');

# ---- the origin's own --------------------------------------------------------------------
$origin->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
is($origin->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '0', 'the origin removes its leftover');
ok(!-s $origin->data_dir . "/$left", 'the origin removes the file of its leftover');
nothing_came('cleanup on the publisher');
$clone->safe_psql('postgres', 'DROP SUBSCRIPTION everything');
unlink $clone->data_dir . "/$left";

# ---- sequences that replication has set back --------------------------------------------------
my $jobs = 'SELECT count(*), count(DISTINCT job) FROM index_mover.move_log';
$origin->safe_psql('postgres', "SELECT setval('index_mover.job_seq', 1, false), setval('index_mover.ledger_seq', 1, false)");
move_ok($_, 'sequences set back') foreach 'copy', 'rebuild';
my ($rows, $numbers) = split /\|/, $origin->safe_psql('postgres', $jobs);
is($numbers, $rows, 'every job has a number of its own');

all_right($origin, 't', 'replication of all tables');

# ---- a subscriber without the extension, which was there before the publisher had it ------------
$origin->safe_psql('postgres', 'CREATE DATABASE publisher');
$origin->safe_psql('publisher', <<SQL);
CREATE TABLE u (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
CREATE PUBLICATION all_of_it FOR ALL TABLES;
SELECT pg_create_logical_replication_slot('bare', 'pgoutput');
SQL
$clone->safe_psql('postgres', 'CREATE DATABASE bare');
$clone->safe_psql('bare', <<SQL);
CREATE TABLE u (i int PRIMARY KEY);
CREATE SUBSCRIPTION bare CONNECTION '$from_origin dbname=publisher' PUBLICATION all_of_it WITH (create_slot = false);
SQL
$origin->safe_psql('publisher', <<SQL);
CREATE EXTENSION index_mover CASCADE;
INSERT INTO u SELECT generate_series(1, 1000);
SQL
foreach my $method ('copy', 'rebuild')
{
	is($origin->safe_psql('publisher', "SELECT status FROM move_indexes('u', '" . ($method eq 'copy' ? 'regress_fast' : 'regress_slow')
		. "', '$method')"),
		'moved', "subscriber without the extension: $method");
}
$origin->safe_psql('publisher', 'INSERT INTO u VALUES (1001)');
$origin->wait_for_catchup('bare');
is($clone->safe_psql('bare', 'SELECT count(*) FROM u'), '1001', 'subscriber without the extension: changes arrive');
unlike(slurp_file($clone->logfile), qr/logical replication target relation/,
	'subscriber without the extension: nothing that it did not understand');
$clone->safe_psql('bare', 'DROP SUBSCRIPTION bare');

$clone->stop;
$origin->stop;
done_testing();
