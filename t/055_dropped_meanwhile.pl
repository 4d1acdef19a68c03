# A table that is dropped while one of its indexes is being rebuilt: the DROP
# gets through, and the row says what has happened, not what the move has
# stumbled over.  And a call for a table whose last job is still cleaning up.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('dropped');

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE d (i int);
INSERT INTO d SELECT generate_series(1, 1000);
CREATE INDEX d_1 ON d (i);
CREATE TABLE other (i int);
INSERT INTO other SELECT generate_series(1, 100);
CREATE INDEX other_1 ON other (i);
SELECT oracle.remember_keys('other'), oracle.remember_metadata('other');
SQL

# hold the rebuild up until the DROP stands behind it
my $writer = IndexMover::Session->new($node);
$writer->run('BEGIN; INSERT INTO d VALUES (0)');
my $job = $node->safe_psql('postgres', "SELECT DISTINCT job FROM move_indexes('d', 'regress_fast', 'rebuild', wait => false)");
poll_until($node, "SELECT count(*) = 1 FROM index_mover_progress WHERE job = $job AND phase = 'waiting for writers before build'", 't', 'the rebuild');
my $drop = start_call($node, 'dropper', 'DROP TABLE d');
poll_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'd'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted", 't', 'the DROP');
$writer->run('COMMIT');
my ($status, $out, $err) = finish_call($drop);
is($err, '', 'the table is dropped');
wait_for_no_worker($node);
like($node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job"),
	qr/^skipped\|42704\|.*dropped/, 'the row says so in plain words');
survived_ok($node, 'other', 'dropped meanwhile', "SELECT status FROM move_indexes('other', 'regress_fast', 'rebuild')");

# A job that was canceled while it built, and can't remove yet what it has made,
# because somebody reads the table: it is not free for another.
make_gate($node, 'gate', 42);
$node->safe_psql('postgres', <<'SQL');
CREATE INDEX other_gate ON other (gate(i));
SELECT oracle.remember_keys('other'), oracle.remember_metadata('other');
SQL
my $gate = IndexMover::Session->new($node);
$gate->run('SELECT pg_advisory_lock(42)');
$job = $node->safe_psql('postgres', "SELECT DISTINCT job FROM move_indexes('other_gate', 'regress_fast', 'rebuild', wait => false)");
poll_until($node, "SELECT count(*) = 1 FROM index_mover_progress WHERE job = $job AND phase = 'building index'", 't', 'the build');
$writer->run('BEGIN; SELECT count(*) FROM other');
$node->safe_psql('postgres', "SELECT cancel_move($job); CALL wait_for_move($job)");
($status, $out, $err) = $node->psql('postgres', "SELECT * FROM move_indexes('other_gate', 'regress_fast', 'rebuild', wait => false)",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($err, qr/55006: relation "other" is already being moved\n.*Job $job \(process \d+\) has ended and is still cleaning up\./, 'a job that is cleaning up');
$writer->run('COMMIT');
$gate->run('SELECT pg_advisory_unlock(42)');
survived_ok($node, 'other', 'canceled, then it is free', "SELECT status FROM move_indexes('other_gate', 'regress_fast', 'rebuild')");
done_testing();
