# The snapshot of a session that waits for its rebuild: it must neither be
# waited for (that would have no end) nor be used to read an index that was
# built without regard to it.
#
# Fault (processes): the waiting caller stands still
# Fault (locks): caller holds a snapshot, or a lock (also sql/bad_input)
# Fault (transactions): old snapshots (also 015, 023, specs/move_index_vs_seq)
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

my $node = new_node('snapshot');
my $here = 'regress_slow';
my $parallel = $node->safe_psql('postgres', 'SHOW server_version_num') >= 160000
  ? 'debug_parallel_query' : 'force_parallel_mode';

# by_index, by_seq: dynamic SQL, planned when it runs, under the snapshot of the
# statement that calls.  cached(): a cached plan.
make_gate($node, 'gate', 42);
$node->safe_psql('postgres', <<"SQL");
CREATE TABLE gated (i int);
INSERT INTO gated VALUES (1);
CREATE INDEX gated_i ON gated (gate(i)) TABLESPACE regress_slow;
CREATE TABLE other (i int);
CREATE TABLE one_row AS SELECT 1 AS i;
CREATE FUNCTION make_h() RETURNS void LANGUAGE sql AS \$\$
	TRUNCATE h;
	INSERT INTO h SELECT 7, g FROM generate_series(1, 1000) g;
	INSERT INTO h SELECT 8, g FROM generate_series(1, 100000) g;
\$\$ SET check_function_bodies = off;
CREATE TABLE h (k int, v int);
SELECT make_h();
CREATE INDEX h_k ON h (k) TABLESPACE regress_slow;
ANALYZE h;
CREATE FUNCTION run(query text) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS \$\$
DECLARE
	result text;
BEGIN
	EXECUTE query INTO result;
	RETURN result;
END \$\$;
CREATE FUNCTION by_index() RETURNS bigint LANGUAGE plpgsql STABLE PARALLEL SAFE
	SET enable_seqscan = off AS \$\$
DECLARE
	result bigint;
BEGIN
	EXECUTE 'SELECT count(*) FROM h WHERE k = 7' INTO result;
	RETURN result;
END \$\$;
CREATE FUNCTION by_seq() RETURNS bigint LANGUAGE plpgsql STABLE PARALLEL SAFE
	SET enable_indexscan = off SET enable_indexonlyscan = off SET enable_bitmapscan = off AS \$\$
DECLARE
	result bigint;
BEGIN
	EXECUTE 'SELECT count(*) FROM h WHERE k = 7' INTO result;
	RETURN result;
END \$\$;
CREATE FUNCTION cached() RETURNS bigint LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS \$\$
DECLARE
	result bigint;
	key int := 7;
BEGIN
	SELECT count(*) INTO result FROM h WHERE k = key;
	RETURN result;
END \$\$;
CREATE FUNCTION in_parallel_worker() RETURNS text LANGUAGE plpgsql STABLE SET $parallel = on AS \$\$
DECLARE
	result text;
BEGIN
	EXECUTE 'SELECT by_index() || '' '' || by_seq() || '' ''
		|| run(''SELECT current_setting(''''is_superuser'''') IS NOT NULL'') FROM one_row'
		INTO result;
	RETURN result;
END \$\$;
CREATE FUNCTION plan_of(query text) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	line text;
	result text := '';
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
		result := result || line || ';';
	END LOOP;
	RETURN result;
END \$\$;
CREATE FUNCTION plan_of_parallel() RETURNS text LANGUAGE sql SET $parallel = on AS
	\$\$ SELECT plan_of('SELECT by_index() FROM one_row') \$\$;
SQL

# Run a statement that takes its snapshot, waits for advisory lock 41, moves
# h_k, and then reads h with that same snapshot; meanwhile the 1000 rows that
# it must see are deleted.
my $n = 0;

sub move_and_read
{
	my ($name, $what, %options) = @_;
	my $to = other_place($here);
	$node->safe_psql('postgres', 'SELECT make_h(); VACUUM h');
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(41)');

	my $session = $options{session} || IndexMover::Session->new($node);
	$session->send(<<SQL);
WITH started AS MATERIALIZED (SELECT pg_advisory_lock_shared(41) IS NULL AS x),
	 moved AS MATERIALIZED (SELECT string_agg(status, ' ') AS status FROM started, move_indexes('h', '$to', 'rebuild') WHERE x IS NOT NULL)
SELECT status, $what FROM moved WHERE status IS NOT NULL
SQL
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 41 AND NOT granted", '1', $name);
	$node->safe_psql('postgres', 'DELETE FROM h WHERE k = 7');
	$node->safe_psql('postgres', 'VACUUM h');
	$gate->run('SELECT pg_advisory_unlock(41)');
	$gate->end;
	my $answer = $session->answer;
	my $errors = $session->errors;
	$session->run('SELECT pg_advisory_unlock_all()');
	$here = $to if $answer =~ /^moved/;
	diag $errors if $answer eq '';
	$session->end unless $options{session};
	return ($answer, $errors);
}

# ---- the statement's own old snapshot -------------------------------------
my ($answer, $errors) = move_and_read('stable function', 'by_index(), by_seq()');
is($answer, 'moved|1000|1000', 'old snapshot: by index and by sequential scan') or diag $errors;

($answer) = move_and_read('plan', "plan_of('SELECT FROM h WHERE k = 7')");
like($answer, qr/^moved\|Seq Scan/, 'old snapshot: the new index is not used');
like($node->safe_psql('postgres', 'EXPLAIN SELECT FROM h WHERE k = 7'), qr/Index/,
	'a new snapshot: it is');

for my $level ('repeatable read', 'serializable')
{
	my $session = IndexMover::Session->new($node);
	$session->run("SET default_transaction_isolation = '$level'");
	($answer, $errors) = move_and_read($level, 'by_index(), by_seq()', session => $session);
	is($answer, 'moved|1000|1000', "$level: by index and by sequential scan") or diag $errors;
	like($session->run('EXPLAIN SELECT FROM h WHERE k = 7'), qr/Index/,
		"$level: the next transaction uses the index");
	$session->end;
}

# ---- a cached plan ----------------------------------------------------------
{
	my $session = IndexMover::Session->new($node);
	$session->run("LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET "
		. "client_min_messages = log");
	$session->run('SELECT cached()') for 1 .. 3;
	like($session->errors, qr/Index (Only )?Scan using h_k/, 'cached plan: uses the index before');
	($answer, $errors) = move_and_read('cached', 'cached(), by_seq()', session => $session);
	is($answer, 'moved|1000|1000', 'cached plan: right after the move') or diag $errors;
	$session->run('SELECT cached()');
	like($session->errors, qr/Index (Only )?Scan using h_k/, 'cached plan: uses the index again in the next transaction');
	is($session->run('SELECT cached()'), '0', 'cached plan: with a new snapshot');
	$session->end;
}

# ---- parallel workers -------------------------------------------------------
($answer, $errors) = move_and_read('parallel', 'in_parallel_worker(), plan_of_parallel()');
like($answer, qr/^moved\|1000 1000 true\|.*Gather/, 'in a parallel worker: by index and by sequential scan') or diag $errors;

# ---- after the wait nothing sticks to the session --------------------------
{
	my $session = IndexMover::Session->new($node);
	move_and_read('sticky', 'by_index()', session => $session);
	$session->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other');
	my $builder = IndexMover::Session->new($node);
	$builder->send('CREATE INDEX CONCURRENTLY other_i ON other (i)');
	poll_until($node, "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase = 'waiting for old snapshots' AND "
		. "current_locker_pid = " . $session->pid,
		'1', 'CREATE INDEX CONCURRENTLY waits for the session');
	pass('after the wait, the session is waited for as any other');
	is($session->run('SHOW index_mover.hide_new_indexes'), 'off', 'and its setting is back');
	$session->run('COMMIT');
	$builder->answer;
	$_->end foreach $session, $builder;
	$node->safe_psql('postgres', 'DROP INDEX other_i');
}

# ---- other sessions during the wait ----------------------------------------
{
	my $gate = IndexMover::Session->new($node);
	my $caller = IndexMover::Session->new($node);
	my $builder = IndexMover::Session->new($node);
	my $to = other_place($here);
	$node->safe_psql('postgres', 'SELECT make_h(); DROP INDEX h_k');

	$gate->run('SELECT pg_advisory_lock(42)');
	$caller->send("WITH moved AS MATERIALIZED (SELECT string_agg(status, ' ') AS status FROM move_indexes('gated', 'regress_fast', "
		. "'rebuild')) SELECT status, by_index(), by_seq() FROM moved WHERE status IS NOT NULL");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1');

	$node->safe_psql('postgres', 'DELETE FROM h WHERE k = 7');
	$builder->send('CREATE INDEX CONCURRENTLY h_k ON h (k) TABLESPACE regress_slow');
	poll_until($node, "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase = 'waiting for old snapshots' AND "
		. "current_locker_pid = " . $caller->pid, '1');
	pass('CREATE INDEX CONCURRENTLY waits for the waiting caller');
	$gate->run('SELECT pg_advisory_unlock(42)');
	is($caller->answer, 'moved|1000|1000', 'and what the caller reads is right') or diag $caller->errors;
	$builder->answer;
	is($node->safe_psql('postgres', "SELECT indisvalid FROM pg_index WHERE indexrelid = 'h_k'::regclass"),
		't', 'it ends when the caller has ended');
	$here = 'regress_slow';

	# DETACH .. FINALIZE waits for the caller's snapshot too, but while it has
	# one itself, for which the rebuild has to wait: one of the two must go.
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE parent (i int) PARTITION BY LIST (i);
CREATE TABLE part1 PARTITION OF parent FOR VALUES IN (1);
CREATE TABLE part2 PARTITION OF parent FOR VALUES IN (2);
INSERT INTO parent SELECT 1 + g % 2 FROM generate_series(1, 20) g;
SQL
	my $detacher = IndexMover::Session->new($node);
	my $reader = IndexMover::Session->new($node);
	$reader->run('BEGIN; SELECT count(*) FROM parent');
	$detacher->send('ALTER TABLE parent DETACH PARTITION part2 CONCURRENTLY');
	poll_until($node, 'SELECT ' . $detacher->pid . ' IN (SELECT pid FROM pg_locks WHERE NOT granted)', 't');
	$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $detacher->pid . ')');
	$detacher->answer;
	$reader->run('COMMIT');

	$gate->run('SELECT pg_advisory_lock(42)');
	$caller->send("SELECT status, sqlstate FROM move_indexes('gated', 'regress_slow', 'rebuild')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1');
	$detacher->send('ALTER TABLE parent DETACH PARTITION part2 FINALIZE');
	poll_until($node, 'SELECT ' . $caller->pid . ' = ANY (pg_blocking_pids(' . $detacher->pid . '))', 't');
	pass('DETACH FINALIZE waits for the waiting caller');
	my $start = time;
	$gate->run('SELECT pg_advisory_unlock(42)');
	# the caller and the worker both look, each once a second
	my $row = $caller->answer;
	is($row, 'failed|40P01', 'the move that it waits for, and that would wait for it, steps back')
	  or diag $caller->errors;
	soon_ok(time - $start, 6, 'within seconds');
	$detacher->answer;
	unlike($detacher->errors, qr/ERROR/, 'and DETACH FINALIZE goes on');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM parent'), '10', 'to its end');
	wait_for_no_worker($node);
	$_->end foreach $gate, $caller, $builder, $detacher, $reader;
}

# ---- the guard by itself ----------------------------------------------------
# What if a session has not waited for us?  A plain CREATE INDEX never does.
{
	my $session = IndexMover::Session->new($node);
	$session->run("LOAD 'index_mover'");
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE guarded (k int);
INSERT INTO guarded SELECT g FROM generate_series(1, 10000) g;
ANALYZE guarded;
CREATE TABLE whole (i int) PARTITION BY LIST (i);
CREATE TABLE whole1 PARTITION OF whole FOR VALUES IN (1);
CREATE TABLE whole2 PARTITION OF whole FOR VALUES IN (2);
CREATE TABLE whole3 PARTITION OF whole FOR VALUES IN (3);
SQL
	my $explain = 'EXPLAIN (COSTS OFF) SELECT FROM guarded WHERE k = 1';
	$session->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other; SET LOCAL index_mover.hide_new_indexes = on');
	$node->safe_psql('postgres', 'CREATE INDEX guarded_k ON guarded (k); ANALYZE guarded');
	like($session->run($explain), qr/Seq Scan/, 'an index newer than the snapshot is hidden');
	like($node->safe_psql('postgres', $explain), qr/guarded_k/, 'from this transaction only');
	$session->run('SELECT count(*) FROM whole');
	$session->run('COMMIT');
	like($session->run($explain), qr/guarded_k/, 'and not from the next');

	$session->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other; SET LOCAL index_mover.hide_new_indexes = on');
	$node->safe_psql('postgres', 'DROP TABLE whole3');
	is($session->run('SELECT count(*) FROM whole'), '0', 'a partition that was dropped is no concern of the guard');
	$session->run('COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other; SET LOCAL index_mover.hide_new_indexes = on');
	$node->safe_psql('postgres', 'ALTER TABLE whole DETACH PARTITION whole2');
	$session->send('SELECT count(*) FROM whole');
	$session->answer;
	is(sqlstate_of($session->errors), '40001', 'a partition that was detached since is an error');
	$session->run('ROLLBACK');
	$session->run('SELECT count(*) FROM whole');
	$session->end;

	my ($rc, $out, $err) = $node->psql('postgres',
		"SET client_min_messages = error; LOAD 'index_mover'; CREATE ROLE regress_outsider; SET ROLE regress_outsider; SET "
			. "index_mover.hide_new_indexes = on",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	is(sqlstate_of($err), '42501', 'the setting is for superusers');
}

# ---- two jobs at a time, each with a waiting caller -------------------------
{
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE pair1 AS SELECT g AS i FROM generate_series(1, 100) g;
CREATE TABLE pair2 AS SELECT g AS i FROM generate_series(1, 100) g;
CREATE INDEX pair1_i ON pair1 (i) TABLESPACE regress_slow;
CREATE INDEX pair2_i ON pair2 (i) TABLESPACE regress_slow;
SQL
	my @pair = map { IndexMover::Session->new($node) } 1 .. 2;
	my $rounds = 50;
	my %seen;
	my $start = time;
	for my $round (1 .. $rounds)
	{
		my $to = $round % 2 ? 'regress_fast' : 'regress_slow';
		$pair[$_]->send('SELECT status FROM move_indexes(\'pair' . ($_ + 1) . "', '$to', 'rebuild')") for 0, 1;
		$seen{ $pair[$_]->answer || sqlstate_of($pair[$_]->errors) }++ for 0, 1;
	}
	is(join(' ', map { "$_=$seen{$_}" } sort keys %seen), 'moved=' . 2 * $rounds,
		"$rounds rounds of two callers on two tables") or diag $pair[0]->errors . $pair[1]->errors;
	soon_ok(time - $start, $rounds, 'without waiting for each other');

	# the same table: one of them is told at once
	%seen = ();
	my $slowest = 0;
	for my $round (1 .. 200)
	{
		my $to = $round % 2 ? 'regress_fast' : 'regress_slow';
		my $begin = time;
		$pair[$_]->send("SELECT coalesce(string_agg(status, ' '), 'none') FROM move_indexes('pair1', '$to', 'rebuild')") for 0, 1;
		$seen{ $pair[$_]->answer || sqlstate_of($pair[$_]->errors) }++ for 0, 1;
		$slowest = time - $begin if time - $begin > $slowest;
	}
	note join(' ', map { "$_=$seen{$_}" } sort keys %seen);
	# a call may see the other's old index for a moment: a second row
	is_deeply([ grep { !/^(moved|skipped|55006)( skipped)?$/ } keys %seen ], [],
		'200 rounds of two callers on one table: moved, or 55006');
	soon_ok($slowest, 5, 'no round takes long');
	$_->end foreach @pair;
}

# ---- deadlocks that the lock manager cannot see --------------------------------
{
	my $caller = IndexMover::Session->new($node);
	my $second = IndexMover::Session->new($node);
	my $to = elsewhere($node, 'pair1_i');

	# second uses pair1 and waits for a lock of the caller's; so do others, who wait
	# for no session.  The caller finds it, for the worker looks much later.
	my ($first, $third) = map { IndexMover::Session->new($node) } 1 .. 2;
	$node->safe_psql('postgres', "ALTER SYSTEM SET deadlock_timeout = '1h'");
	$node->reload;
	poll_until($node, 'SHOW deadlock_timeout', '1h', 'the new setting');
	$_->run('BEGIN; LOCK TABLE pair1 IN ROW EXCLUSIVE MODE') foreach $first, $second, $third;
	$caller->send("SELECT status, sqlstate FROM one_row, move_indexes('pair1', '$to', 'rebuild')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for writers before build'", '1');
	my $start = time;
	$second->send('LOCK TABLE one_row IN ACCESS EXCLUSIVE MODE');
	my $row = $caller->answer;
	my $whom = $second->pid;
	is($row, 'failed|40P01', 'who waits for the caller is waited for: 40P01') or diag $caller->errors;
	like($caller->errors,
		joined(
			qr/WARNING:  40P01: index "pair1_i" was not moved\nDETAIL:  .*: The move waits, directly or indirectly, for /,
			qr/process $whom, which waits for the session that has called the move\.$/m),
		'the waiting caller is named');
	soon_ok(time - $start, 6, 'within seconds');
	$_->end foreach $first, $third;
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET deadlock_timeout');
	$node->reload;
	poll_until($node, 'SHOW deadlock_timeout', '1s', 'the old setting');
	$second->answer;
	unlike($second->errors, qr/ERROR/, 'and the other goes on');
	$second->run('ROLLBACK');

	# second has an old snapshot, found after validation, and waits for a lock of ours
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	$caller->send("SELECT status, sqlstate FROM move_indexes('gated', 'regress_slow', 'rebuild')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1');
	$second->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other');
	$second->send('ALTER TABLE gated ADD COLUMN j int');
	poll_until($node, 'SELECT cardinality(pg_blocking_pids(' . $second->pid . ')) > 0', 't');
	$gate->run('SELECT pg_advisory_unlock(42)');
	$start = time;
	is($caller->answer, 'failed|55006', 'who waits for our lock is waited for: the rebuild gives way') or diag $caller->errors;
	soon_ok(time - $start, 6, 'within seconds');
	$second->answer;
	unlike($second->errors, qr/ERROR/, 'and the other goes on');
	$second->run('COMMIT');
	poll_until($node, "SELECT count(*) FROM pg_index WHERE indrelid = 'gated'::regclass", '1', 'removal of the leftover');
	pass('and the leftover is gone');
	$_->end foreach $caller, $second, $gate;
	wait_for_no_worker($node);
}

# ---- lock_wait ----------------------------------------------------------------
{
	my $second = IndexMover::Session->new($node);
	my $pid = $second->pid;
	$second->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other');
	my $row = $node->safe_psql('postgres',
		"SET client_min_messages = error; SET index_mover.lock_wait = '500ms'; SELECT status, sqlstate, detail FROM "
			. "move_indexes('gated', 'regress_slow', 'rebuild')");
	like($row, qr/^failed\|55P03\|.*snapshot.*process $pid\b/s, 'lock_wait: gives up, and says for whom it has waited');
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_index WHERE indrelid = 'gated'::regclass"), '1', 'lock_wait: nothing is left');
	$second->run('COMMIT');

	# in core's own wait, after the swap
	my $gate = IndexMover::Session->new($node);
	my $caller = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	$caller->send("SET index_mover.lock_wait = '6s'; SELECT status, sqlstate, detail FROM move_indexes('gated', 'regress_slow', "
		. "'rebuild')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1');
	$second->run('BEGIN; LOCK TABLE gated IN ACCESS SHARE MODE');
	$gate->run('SELECT pg_advisory_unlock(42)');
	like($caller->answer, qr/^moved\|55P03\|.*It waited for process $pid\b/,
		'lock_wait after the swap: moved, and for whom the removal of the old index waits');
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_index WHERE indrelid = 'gated'::regclass"), '2',
		'the old index is still there');
	$second->run('COMMIT');
	poll_until($node, "SELECT count(*) FROM pg_index WHERE indrelid = 'gated'::regclass", '1', 'removal of the old index', timeout => 5);
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('gated', 'regress_fast', 'rebuild')"), 'moved', 'and back');
	$_->end foreach $second, $gate, $caller;
}

# ---- a caller that stands still ---------------------------------------------------
{
	my ($caller, $gate, $looker) = map { IndexMover::Session->new($node) } 1 .. 3;
	my $pid = $caller->pid;
	$gate->run('SELECT pg_advisory_lock(42)');
	$caller->send("SET index_mover.lock_wait = '500ms'; SELECT status, sqlstate, detail FROM move_indexes('gated', 'regress_slow', "
		. "'rebuild')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1');
	# not while it holds a lock that all sessions need
	my $start = time;
	while (1)
	{
		kill 'STOP', $pid;
		last if $looker->run("SELECT wait_event_type FROM pg_stat_get_activity($pid)") eq 'Extension';
		kill 'CONT', $pid;
		die 'the caller does not wait' if time - $start > $IndexMover::Test::TIMEOUT;
		usleep(10_000);
	}
	$gate->run('SELECT pg_advisory_unlock(42)');
	poll_until($node, "SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1", 'moved', 'the rebuild goes on');
	kill 'CONT', $pid;
	is($caller->answer, 'moved||', 'a caller that stands still is not in the way') or diag $caller->errors;
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('gated', 'regress_fast', 'rebuild')"), 'moved',
		'a caller that stands still: moved back');
	$_->end foreach $caller, $gate, $looker;
}

# ---- without a snapshot ---------------------------------------------------------
{
	my $gate = IndexMover::Session->new($node);
	my $caller = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	my $job = $caller->run("SELECT job FROM move_indexes('gated', 'regress_slow', 'rebuild', wait => false)");
	$caller->send("CALL wait_for_move($job)");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1');
	poll_until($node, "SELECT wait_event_type || backend_type FROM pg_stat_activity WHERE state = 'active' AND pid = " . $caller->pid,
		'Extensionclient backend');
	is($node->safe_psql('postgres', 'SELECT backend_xmin IS NULL AND backend_xid IS NULL FROM pg_stat_activity WHERE pid = '
		. $caller->pid),
		't', 'CALL wait_for_move() waits without a snapshot');
	$gate->run('SELECT pg_advisory_unlock(42)');
	$caller->answer;
	unlike($caller->errors, qr/ERROR/, 'and returns');
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"), 'moved', 'when the job is done');
	$_->end foreach $gate, $caller;
}

# ---- a deadlock with a caller that stands still ------------------------------------
# It does not look itself, so its runner has to.
{
	$node->safe_psql('postgres', 'CREATE TABLE still (i int); CREATE INDEX still_i ON still (i)');
	my ($caller, $writer) = map { IndexMover::Session->new($node) } 1, 2;
	$writer->run('BEGIN; INSERT INTO still VALUES (0)');
	$caller->run('SELECT pg_advisory_lock(77)');
	$caller->send(q{SELECT status, sqlstate FROM move_indexes('still', 'regress_fast', 'rebuild')});
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase LIKE 'waiting for writers%'", '1', 'it waits for the writer');
	kill 'STOP', $caller->pid;
	$writer->send('SELECT pg_advisory_lock(77)');
	poll_until($node, q{SELECT sqlstate FROM index_mover_history WHERE name = 'still_i'}, '40P01', 'the runner finds the deadlock');
	kill 'CONT', $caller->pid;
	is($caller->answer, 'failed|40P01', 'and its caller learns of it');
	$caller->run('SELECT pg_advisory_unlock(77)');
	$writer->answer;
	$writer->run('ROLLBACK');
	$_->end foreach $caller, $writer;
	$node->safe_psql('postgres', 'DROP TABLE still');
}

# ---- a cancel that meets a deadlock ------------------------------------------------
# The worker stands still until it has both, the request to step back and the user's signal.
{
	my ($caller, $gate) = map { IndexMover::Session->new($node) } 1, 2;
	my $to = elsewhere($node, 'gated_i');
	$gate->run('SELECT pg_advisory_lock(42)');
	$gate->run('BEGIN');
	my $log = -s $node->logfile;
	$caller->run('SET log_min_messages = debug1');
	$caller->send("SELECT status, sqlstate FROM one_row, move_indexes('gated', '$to', 'rebuild')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1');
	my $worker = worker_pid($node);
	poll_until($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $worker", 'Lock', 'the worker waits');
	kill 'STOP', $worker;
	$gate->send('LOCK TABLE one_row IN ACCESS EXCLUSIVE MODE');
	# the caller looks once a second, and gives up five seconds after its request
	$node->wait_for_log(qr/asked process $worker to step back/, $log);
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($worker)");
	kill 'CONT', $worker;
	is($caller->answer, 'canceled|57014', 'a cancel that meets a step back is a cancel') or diag $caller->errors;
	$gate->answer;
	$gate->run('ROLLBACK');
	$_->end foreach $caller, $gate;
	wait_for_no_worker($node);
}

# ---- the phases of this version's REINDEX CONCURRENTLY ----------------------------
# Callers hide at the commit that ends validation (4 to 6), right before core makes its
# list (7); see before_core_waits().
{
	my $log = -s $node->logfile;
	is($node->safe_psql('postgres', <<'SQL'), 'moved', 'a rebuild that logs its phases');
ALTER SYSTEM SET log_min_messages = debug1;
SELECT pg_reload_conf() \g /dev/null
SELECT status FROM move_indexes('h_k', 'regress_fast', 'rebuild');
ALTER SYSTEM RESET log_min_messages;
SELECT pg_reload_conf() \g /dev/null
SQL
	my @phases = slurp_file($node->logfile, $log) =~ /REINDEX CONCURRENTLY commits in phase (-?\d+)$/mg;
	is("@phases", '0 1 2 3 6 7 7 8 9', 'its commits are in the order that rebuild.c expects');
}

leftovers_ok($node, 'in the end');
files_ok($node, 'in the end');
done_testing();
