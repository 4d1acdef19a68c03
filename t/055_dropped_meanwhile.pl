# A table that is dropped while one of its indexes is being rebuilt: the DROP
# gets through, and the row says what has happened, not what the move has
# stumbled over.
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
CREATE INDEX other_1 ON other (i);
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
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('other', 'regress_fast', 'rebuild')"), 'moved', 'the next call works');
leftovers_ok($node, 'dropped meanwhile', within => 5);
done_testing();
