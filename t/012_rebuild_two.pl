# Two rebuilds of one job whose indexes have expressions: core makes each wait
# for the other's snapshot, however long that takes.  lock_wait is for others.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $LOCK_WAIT = 5;		# seconds; a writer who leaves at once is waited for in it, too

my $node = new_node('two_rebuilds');
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION gate(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	-- not by waiting for a lock: lock_wait ends that
	WHILE NOT pg_try_advisory_lock_shared(42) LOOP
		PERFORM pg_sleep(0.05);
	END LOOP;
	PERFORM pg_advisory_unlock_shared(42);
	RETURN i;
END $$;
CREATE SCHEMA two;
CREATE TABLE two.a (v int);
CREATE TABLE two.b (v int);
INSERT INTO two.a SELECT generate_series(1, 10);
INSERT INTO two.b SELECT generate_series(1, 10);
CREATE INDEX a_gate ON two.a (gate(v));
CREATE INDEX b_gate ON two.b (gate(v));
SQL

my ($builder, $writer) = map { IndexMover::Session->new($node) } 1 .. 2;
$builder->run('SELECT pg_advisory_lock(42)');
$writer->run('BEGIN; LOCK TABLE two.b IN ROW EXCLUSIVE MODE');
my $call = start_call($node, 'two',
	"SELECT name, status, sqlstate FROM move_schema_indexes('two', 'regress_fast', 'rebuild',"
	  . " settings => '{\"lock_wait\": \"${LOCK_WAIT}s\"}') ORDER BY 1");
my $phases = "SELECT string_agg(phase, ', ' ORDER BY phase) FROM index_mover_progress";
poll_until($node, $phases, 'building index, waiting for writers before build', 'one builds, the other waits for a writer');
$writer->run('COMMIT');
poll_until($node, $phases, 'building index, waiting for old snapshots', 'then for the one who builds');
is($node->safe_psql('postgres',
	"SELECT a.blocked_by = ARRAY[b.pid] FROM index_mover_progress a, index_mover_progress b WHERE a.phase LIKE 'waiting%' AND b.phase "
		. "LIKE 'building%'"),
	't', 'and says so');
sleep $LOCK_WAIT + 2;
is($node->safe_psql('postgres', $phases), 'building index, waiting for old snapshots', 'it still waits after lock_wait');
$builder->run('SELECT pg_advisory_unlock(42)');
my ($status, $out, $err) = finish_call($call);
is($out, "two.a_gate|moved|\ntwo.b_gate|moved|\n", 'both are moved') or diag $err;
$_->end foreach $builder, $writer;
leftovers_ok($node, 'two rebuilds', within => 5);
done_testing();
