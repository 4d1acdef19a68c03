# The moment in which the snapshot of a waiting caller is hidden, held open with a
# pause point: other sessions' CREATE INDEX CONCURRENTLY and DETACH .. FINALIZE
# then pass over the caller, and the guard must keep it from wrong answers.
# And a worker killed at the very commit that creates the index entry.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my $node = new_node('guard');
my $to = 'regress_fast';

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE moved (i int);
INSERT INTO moved SELECT generate_series(1, 100);
CREATE INDEX moved_i ON moved (i) TABLESPACE regress_slow;
CREATE TABLE h (k int, v int);
CREATE FUNCTION make_h() RETURNS void LANGUAGE sql AS $$
	TRUNCATE h;
	INSERT INTO h SELECT 7, g FROM generate_series(1, 1000) g;
	INSERT INTO h SELECT 8, g FROM generate_series(1, 100000) g;
$$;
CREATE FUNCTION run(query text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
	result text;
BEGIN
	EXECUTE query INTO result;
	RETURN result;
END $$;
CREATE FUNCTION by_index() RETURNS bigint LANGUAGE plpgsql STABLE
	SET enable_seqscan = off AS $$
DECLARE
	result bigint;
BEGIN
	EXECUTE 'SELECT count(*) FROM h WHERE k = 7' INTO result;
	RETURN result;
END $$;
CREATE FUNCTION by_seq() RETURNS bigint LANGUAGE plpgsql STABLE
	SET enable_indexscan = off SET enable_indexonlyscan = off SET enable_bitmapscan = off AS $$
DECLARE
	result bigint;
BEGIN
	EXECUTE 'SELECT count(*) FROM h WHERE k = 7' INTO result;
	RETURN result;
END $$;
SQL

# Move moved_i, and while the caller's snapshot is hidden, do $meanwhile; then the
# caller's statement reads $what.
sub while_hidden
{
	my ($what, $meanwhile, %options) = @_;
	my $gate = IndexMover::Session->new($node);
	my $caller = IndexMover::Session->new($node);
	my $offset = -s $node->logfile;

	set_test_point($node, 'caller-hidden:wait');
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	$caller->run("LOAD 'index_mover'; SET index_mover.test_mutation = 'snapshot-guard'") if $options{without_guard};
	$caller->send(<<SQL);
WITH m AS MATERIALIZED (SELECT string_agg(status, ' ') AS status FROM move_indexes('moved', '$to', 'rebuild'))
SELECT status, $what FROM m WHERE status IS NOT NULL
SQL
	$node->wait_for_log(qr/test point "caller-hidden": waiting/, $offset);
	$meanwhile->();
	ok(!$caller->has_answered, 'the caller is still waiting');
	$gate->run('SELECT pg_advisory_unlock(0, 5959)');
	my $answer = $caller->answer;
	my $errors = $caller->errors;
	set_test_point($node, '');
	$_->end foreach $gate, $caller;
	wait_for_no_worker($node);
	like(tablespace_of_index($node, 'moved'), qr/: $to$/, 'the index is moved');
	$to = other_place($to);
	return ($answer, $errors);
}

sub build_concurrently
{
	my $start = time;
	$node->safe_psql('postgres', 'DELETE FROM h WHERE k = 7');
	$node->safe_psql('postgres', 'CREATE INDEX CONCURRENTLY h_k ON h (k)');
	soon_ok(time - $start, 10, 'CREATE INDEX CONCURRENTLY does not wait for the hidden caller');
	return;
}

# ---- a caller that begins to wait when the others are hidden already ---------
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE second (i int);
INSERT INTO second SELECT generate_series(1, 100);
CREATE INDEX second_i ON second (i) TABLESPACE regress_slow;
SQL
	my ($old, $gate, $first, $second) = map { IndexMover::Session->new($node) } 1 .. 4;
	# new snapshots are as old as this, also those taken after the build
	$old->run('BEGIN; SELECT pg_current_xact_id()');
	$gate->run('SELECT pg_advisory_lock(0, 5959), pg_advisory_lock(0, 5960)');
	my $offset = -s $node->logfile;
	set_test_point($node, 'caller-hidden:wait');
	$first->send(qq(SELECT status FROM move_indexes('moved', '$to', 'rebuild', settings => '{"lock_wait": "1min"}')));
	$node->wait_for_log(qr/test point "caller-hidden": waiting/, $offset);
	set_test_point($node, 'copy-end:wait2');
	$second->send("SELECT status FROM move_indexes('second', 'regress_fast', 'copy')");
	$node->wait_for_log(qr/test point "copy-end": waiting/, $offset);
	$gate->run('SELECT pg_advisory_unlock(0, 5959)');
	is($first->answer, 'moved', 'a rebuild does not wait for a caller that has begun to wait in its last moments');
	ok(!$second->has_answered, 'who waits for another job still');
	$gate->run('SELECT pg_advisory_unlock(0, 5960)');
	is($second->answer, 'moved', 'and whose index is moved, too');
	set_test_point($node, '');
	$_->end foreach $old, $gate, $first, $second;
	wait_for_no_worker($node);
	$to = other_place($to);
}

# ---- CREATE INDEX CONCURRENTLY ----------------------------------------------
for my $without (1, 0)
{
	my $name = $without ? 'without the guard' : 'with the guard';
	$node->safe_psql('postgres', 'DROP INDEX IF EXISTS h_k; SELECT make_h()');
	my ($answer, $errors) = while_hidden('by_index(), by_seq()', \&build_concurrently, without_guard => $without);
	is($answer, $without ? 'moved|0|1000' : 'moved|1000|1000', "$name: by index and by sequential scan") or diag $errors;
}

# ---- DETACH PARTITION .. FINALIZE --------------------------------------------
for my $without (1, 0)
{
	my $name = $without ? 'without the guard' : 'with the guard';
	$node->safe_psql('postgres', <<'SQL');
SET client_min_messages = warning;
DROP TABLE IF EXISTS parent, part2;
CREATE TABLE parent (i int) PARTITION BY LIST (i);
CREATE TABLE part1 PARTITION OF parent FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF parent FOR VALUES IN (2);
INSERT INTO parent SELECT 1 + g % 2 FROM generate_series(1, 20) g;
SQL
	my ($answer, $errors) = while_hidden("run('SELECT count(*) FROM parent')", sub {
		my $detacher = IndexMover::Session->new($node);
		my $reader = IndexMover::Session->new($node);
		$reader->run('BEGIN; SELECT count(*) FROM parent');
		$detacher->send('ALTER TABLE parent DETACH PARTITION part2 CONCURRENTLY');
		poll_until($node, 'SELECT ' . $detacher->pid . ' IN (SELECT pid FROM pg_locks WHERE NOT granted)', 't');
		$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $detacher->pid . ')');
		$detacher->answer;
		$reader->run('COMMIT');
		$detacher->run('ALTER TABLE parent DETACH PARTITION part2 FINALIZE');
		pass('DETACH FINALIZE does not wait for the hidden caller');
		$_->end foreach $detacher, $reader;
	}, without_guard => $without);
	if ($without)
	{
		is($answer, 'moved|10', "$name: half of the rows that the snapshot has are missing") or diag $errors;
	}
	else
	{
		is(sqlstate_of($errors), '40001', "$name: an error rather than half of the rows") or diag $answer;
		like($errors, qr/part2/, "$name: which names the partition");
	}
}

# ---- the caller's own index, without the guard ----------------------------------
{
	my $session = IndexMover::Session->new($node);
	my $gate = IndexMover::Session->new($node);
	$node->safe_psql('postgres', 'SELECT make_h(); REINDEX INDEX h_k; ALTER INDEX h_k SET TABLESPACE regress_slow');
	$gate->run('SELECT pg_advisory_lock(41)');
	$session->run("LOAD 'index_mover'; SET index_mover.test_mutation = 'snapshot-guard'");
	$session->send(<<'SQL');
WITH started AS MATERIALIZED (SELECT pg_advisory_lock_shared(41) IS NULL AS x),
	 m AS MATERIALIZED (SELECT string_agg(status, ' ') AS status FROM started, move_indexes('h', 'regress_fast', 'rebuild')
	 	WHERE x IS NOT NULL)
SELECT status, by_index(), by_seq() FROM m WHERE status IS NOT NULL
SQL
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 41 AND NOT granted", '1');
	$node->safe_psql('postgres', 'DELETE FROM h WHERE k = 7');
	$gate->run('SELECT pg_advisory_unlock(41)');
	is($session->answer, 'moved|0|1000', 'without the guard, the new index would miss rows that the old snapshot has')
	  or diag $session->errors;
	$_->end foreach $session, $gate;
}

# ---- kill -9 around the commit that creates the entry ----------------------------
for my $point ('rebuild-entry-made', 'rebuild-entry-committed', 'rebuild-step-committed', 'caller-hidden')
{
	my $left = $point eq 'rebuild-entry-made' ? 0 : 1;
	set_test_point($node, "$point:kill");
	my ($rc) = $node->psql('postgres', "SELECT * FROM move_indexes('moved', '$to', 'rebuild')");
	isnt($rc, 0, "killed at $point");
	wait_until_up($node);
	set_test_point($node, '');
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_index WHERE indrelid = 'moved'::regclass"), 1 + $left, "$point: entries left");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup(true)'), $left, "$point: index_mover_cleanup() knows");
	is($node->safe_psql('postgres', "SELECT string_agg(status, ' ') FROM move_indexes('moved', '$to', 'rebuild') WHERE name = 'moved_i'"),
		'moved', "$point: the next call moves");
	leftovers_ok($node, $point, within => 5);
	$to = other_place($to);
}

done_testing();
