# A lock that is granted in the moment in which the wait for it ends otherwise: by
# lock_timeout, a cancel, or SIGTERM.  Core takes such a lock, and raises the error all the
# same.  At every lock that a move waits for, none may stay behind.
#
# The worker is stopped (SIGSTOP) while it stands in the queue.  Then the lock is released,
# and so granted, and the timeout passes, or the signal is sent.  When the worker goes on, it
# finds both.  The build with pause points counts its locks after each wait and relation, and
# a wrong number ends the server.
#
# The timeout and a cancel, or statement_timeout, can meet, too: core tells of the timeout only, and forgets the other.
#
# Fault (locks): a lock is granted as its wait ends by lock_timeout, a cancel, both, or SIGTERM: no
#   session lock stays behind; locks of the long phase, of the swap, of catalogs, of the ledger; lock_timeout
#   runs out as a lock is granted; a cancel meets the end of a piece of a long wait, or of lock_wait in a rebuild
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Tables;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my $node = new_node('lock_grants', conf => 'autovacuum = off');
my $s = IndexMover::Session->new($node);

$s->run(<<SQL);
CREATE TABLE wide (id int PRIMARY KEY, v int, big text) TABLESPACE regress_slow;
ALTER TABLE wide ALTER big SET STORAGE external;
INSERT INTO wide SELECT g, 0, repeat(md5(g::text), 100) FROM generate_series(1, 300) g;
CREATE TABLE next_one (id int) TABLESPACE regress_slow;
INSERT INTO next_one SELECT generate_series(1, 100);
CREATE TABLE parts (id int) PARTITION BY RANGE (id) TABLESPACE regress_slow;
CREATE INDEX parts_id ON parts (id);
SQL
my ($toast, $toast_index) = split /\|/,
	$s->run(q{SELECT reltoastrelid::regclass, i.indexrelid::regclass FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid }
		. q{WHERE c.oid = 'wide'::regclass});

sub place
{
	my ($what) = @_;
	return $s->run("SELECT coalesce((SELECT spcname FROM pg_tablespace t WHERE t.oid = reltablespace), 'default') FROM pg_class "
		. "WHERE oid = '$what'::regclass");
}

# Whether the worker stands in the queue of a lock, or has it.
sub lock_of
{
	my ($worker, $relation, $mode, $granted) = @_;
	return $s->run("SELECT count(*) > 0 FROM pg_locks WHERE pid = $worker AND relation = '$relation'::regclass AND mode = '$mode' AND "
		. ($granted ? '' : 'NOT ') . 'granted') eq 't';
}

# Stop the worker in the queue.
sub stop_in_queue
{
	my ($worker, $relation, $mode, $name) = @_;
	my $start = time;
	while (time - $start < $IndexMover::Test::TIMEOUT)
	{
		next unless lock_of($worker, $relation, $mode);
		kill 'STOP', $worker;
		usleep(10_000);
		return pass("$name: stopped in the queue") if lock_of($worker, $relation, $mode);
		kill 'CONT', $worker;
	}
	return fail("$name: stopped in the queue");
}

# The locks that a move waits for: who holds it before, the relation, the mode, and what moves.
# (VACUUM FULL of a TOAST table waits for a reader, and we for the VACUUM.)
my %locks = (
	'table' => [ 'BEGIN; LOCK TABLE wide IN ACCESS EXCLUSIVE MODE', 'wide', 'AccessShareLock', 'wide' ],
	'TOAST table' => [ "VACUUM FULL $toast", $toast, 'AccessShareLock', 'wide' ],
	'TOAST index' => [ "BEGIN; REINDEX INDEX $toast_index", $toast_index, 'ShareUpdateExclusiveLock', 'wide' ],
	'table of an index' => [ 'BEGIN; LOCK TABLE wide IN ACCESS EXCLUSIVE MODE', 'wide', 'AccessShareLock', 'wide_pkey' ],
	'index' => [ 'BEGIN; REINDEX INDEX wide_pkey', 'wide_pkey', 'ShareUpdateExclusiveLock', 'wide_pkey' ],
	'pg_class' => [ 'BEGIN; LOCK TABLE pg_class IN SHARE MODE', 'pg_class', 'RowExclusiveLock', 'wide' ],
	'pg_type' => [ 'BEGIN; LOCK TABLE pg_type IN SHARE MODE', 'pg_type', 'RowExclusiveLock', 'wide_pkey' ],
	'ledger' => [ 'BEGIN; LOCK TABLE index_mover.ledger IN SHARE MODE', 'index_mover.ledger', 'RowExclusiveLock', 'wide' ],
	'swap of a table' => [ 'BEGIN; SELECT id FROM wide LIMIT 1', 'wide', 'AccessExclusiveLock', 'wide' ],
	'swap of its TOAST table' => [ "BEGIN; SELECT count(*) FROM $toast", $toast, 'AccessExclusiveLock', 'wide' ],
	'swap of an index' => [ 'BEGIN; SELECT id FROM wide WHERE id = 1', 'wide_pkey', 'AccessExclusiveLock', 'wide_pkey' ],
	'partitioned table' => [ 'BEGIN; SELECT count(*) FROM parts', 'parts', 'AccessExclusiveLock', 'parts' ],
	'partitioned index' => [ q(BEGIN; COMMENT ON INDEX parts_id IS 'held'), 'parts_id', 'AccessExclusiveLock', 'parts_id' ]);

sub meet
{
	my ($lock, $event) = @_;
	my ($hold, $relation, $mode, $what) = @{ $locks{$lock} };
	my $name = "$lock, the grant and $event";
	my $at_swap = $lock =~ /pg_|swap/;
	my $to = place($what) eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	# (where a signal alone is to end the wait; but locks of the long phase have a timeout of their own)
	my $timeout = $event =~ /lock_timeout/ ? '700ms' : '10min';
	my $settings = qq('{"lock_timeout": "$timeout", "max_workers": "1"}');
	my $call = ($what =~ /_/ ? 'move_indexes' : 'move_table') . "('$what', '$to', wait => false, settings => $settings)";
	my ($gate, $holder, $reader) = map { IndexMover::Session->new($node) } 1 .. 3;

	# the worker is there, and its move comes to the lock when the gate opens
	my $point = $at_swap ? 'swap-ready' : 'locks-wanted';
	# and, if a lock stays behind, has ended neither
	my $second = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	$second->run('SELECT pg_advisory_lock(0, 5960)');
	set_tests($node, test_point => "$point:wait" . ($event eq 'lock_timeout' ? ',locks-released:wait2' : ''), test_mutation => 'looks:0');
	my $log = -s $node->logfile;
	my $job = $s->run("SELECT max(job) FROM $call");
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	my $worker = $s->run("SELECT pid FROM index_mover_progress WHERE job = $job");
	set_tests($node);
	if ($lock =~ /TOAST table/ && $hold =~ /VACUUM/)
	{
		$reader->run("BEGIN; SELECT count(*) FROM $toast");
		$holder->send($hold);
		poll_until($node, 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $holder->pid, '1', "$name: VACUUM waits");
	}
	else { $holder->run($hold); }
	$gate->run('SELECT pg_advisory_unlock(0, 5959)');

	stop_in_queue($worker, $relation, $mode, $name);
	if ($event =~ /piece/)
	{
		sleep 2;
		$s->run("SELECT pg_cancel_backend($worker)");
		kill 'CONT', $worker;
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job", '0', "$name: the end does not wait", timeout => 10);
		$_->end foreach $gate, $holder, $reader, $second;
		wait_for_job_end($node, $job);
		is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ',') FROM index_mover_history WHERE job = $job"),
			'canceled 57014', "$name: its end");
		return;
	}
	$lock =~ /TOAST table/ && $hold =~ /VACUUM/ ? $s->run('SELECT pg_cancel_backend(' . $holder->pid . ')') : $holder->run('COMMIT');
	poll_until($node, "SELECT count(*) > 0 FROM pg_locks WHERE pid = $worker AND relation = '$relation'::regclass AND mode = '$mode' "
		. 'AND granted', 't', "$name: granted");
	sleep 1 if $event =~ /lock_timeout/;
	$s->run("SELECT pg_cancel_backend($worker)") if $event =~ /cancel/;
	$s->run("SELECT pg_terminate_backend($worker)") if $event eq 'SIGTERM';
	kill 'CONT', $worker;
	$holder->answer, $reader->run('COMMIT') if $hold =~ /VACUUM/;

	if ($event eq 'lock_timeout')
	{
		$node->wait_for_log(qr/test point "locks-released": waiting/, $log);
		is($s->run("SELECT string_agg(relation::regclass || ' ' || mode, ', ') FROM pg_locks WHERE locktype = 'relation' "
			. "AND pid = $worker"), '', "$name: no lock when the relation has ended");
	}
	$second->end;
	wait_for_job_end($node, $job);
	is($s->run("SELECT string_agg(DISTINCT status, ',') FROM index_mover_history WHERE job = $job"),
		$event eq 'lock_timeout' ? 'moved' : 'canceled', "$name: its end");
	is($s->run("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'index_mover' AND "
		. "l.locktype = 'relation'"), '0', "$name: no lock of a worker at the end");
	$s->run('BEGIN; LOCK TABLE ' . ($what =~ s/_.*//r) . ' IN ACCESS EXCLUSIVE MODE NOWAIT; COMMIT');
	is($s->errors =~ /ERROR/ ? $s->errors : '', '', "$name: the table is free");
	$_->end foreach $gate, $holder, $reader;
	return;
}

foreach my $lock (sort keys %locks)
{
	foreach my $event (picked { $_ eq 'lock_timeout' || $lock =~ /^(?:table|TOAST index|swap of a table)$/ } "ends of the wait: $lock",
		'lock_timeout', 'cancel', 'lock_timeout and a cancel', 'SIGTERM')
	{
		meet($lock, $event);
	}
}

# a cancel, and the end of a piece of the time for which a swap queues, of many: the holder stays
meet($_, 'a cancel at the end of a piece') foreach picked { /^swap of a table$/ } 'swaps', 'swap of a table', 'swap of an index',
	'partitioned table';

# ---- the timeout runs out as the lock is granted, and core raises it later ----------------------
# (By this no job is canceled.)
foreach my $time (1, 2, 4, 8, 12, 16, 20)
{
	my $name = "lock $time, granted as lock_timeout runs out";
	my $to = place('wide') eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	my $log = -s $node->logfile;
	set_tests($node, test_point => "lock-granted:$time:timeout");
	my $job = $s->run("SELECT max(job) FROM move_table('wide', '$to', wait => false)");
	wait_for_job_end($node, $job);
	set_tests($node);
	like(slurp_file($node->logfile, $log), qr/test point "lock-granted": timeout/, "$name: so it was");
	is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate, message), ',') FROM index_mover_history "
		. "WHERE job = $job"), 'moved', "$name: it is moved");
}

# The same as the last row of a swap is changed: the attempt is in vain, and nothing is told of a table that has moved.
{
	my $to = place('wide') eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	my $log = -s $node->logfile;
	set_tests($node, test_point => 'swap-file-set:3:timeout');
	my $job = $s->run("SELECT max(job) FROM move_table('wide', '$to', wait => false)");
	wait_for_job_end($node, $job);
	set_tests($node);
	like(slurp_file($node->logfile, $log), qr/test point "swap-file-set": timeout/, 'lock_timeout runs out as the last row is changed');
	unlike(slurp_file($node->logfile, $log), qr/WARNING/, 'and there is no warning');
	is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate, message), ',') || ' ' || max(lock_attempts) "
		. "FROM index_mover_history WHERE job = $job"), 'moved 2', 'it is moved by the next attempt');
}

# ---- a holder that asks for more while a bid queues --------------------------------------------
# Core ends it at once if we hold a lock that excludes its next one: also after we stood in line behind a session that has gone.
foreach my $others (0, 1)
{
	my $name = 'a writer that creates an index during a bid' . ($others ? ', which stood in line' : '');
	my $to = place('next_one') eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	my ($holder, $other) = map { IndexMover::Session->new($node) } 1, 2;
	$holder->run('BEGIN; INSERT INTO next_one VALUES (0)');
	$other->send('BEGIN; LOCK TABLE next_one IN EXCLUSIVE MODE') if $others;
	poll_until($node, 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $other->pid, $others, "$name: the other waits");
	my $job = $s->run("SELECT max(job) FROM move_table('next_one', '$to', wait => false, "
		. q[settings => '{"lock_timeout": "20s", "max_workers": "1"}')]);
	my $queued = "SELECT count(*) FROM pg_locks l JOIN index_mover_progress p USING (pid) WHERE p.job = $job "
		. "AND l.relation = 'next_one'::regclass AND NOT l.granted AND l.mode = ";
	if ($others)
	{
		poll_until($node, "$queued 'ShareUpdateExclusiveLock'", '1', "$name: it stands in line");
		$s->run('SELECT pg_cancel_backend(' . $other->pid . ')');
		$other->answer;
	}
	poll_until($node, "$queued 'AccessExclusiveLock'", '1', "$name: it queues");
	$holder->run('CREATE INDEX ON next_one (id)');
	unlike($holder->errors, qr/ERROR/, "$name: no error");
	$holder->run('COMMIT');
	wait_for_job_end($node, $job);
	is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ',') FROM index_mover_history WHERE job = $job"),
		'moved', "$name: the table is moved");
	$_->end foreach $holder, $other;
}

# ---- a cancel and the end of lock_wait in REINDEX CONCURRENTLY -----------------------------------
{
	my $to = place('wide_pkey') eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	my ($gate, $holder) = map { IndexMover::Session->new($node) } 1 .. 2;
	my $log = -s $node->logfile;
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	set_tests($node, test_point => 'rebuild-entry-committed:wait');
	my $job = $s->run("SELECT max(job) FROM move_indexes('wide', '$to', method => 'rebuild', wait => false, "
		. q[settings => '{"lock_wait": "2s", "on_blocker": "fail"}')]);
	$node->wait_for_log(qr/test point "rebuild-entry-committed": waiting/, $log);
	my $worker = $s->run("SELECT pid FROM index_mover_progress WHERE job = $job");
	set_tests($node);
	$holder->run('BEGIN; LOCK TABLE wide IN ROW EXCLUSIVE MODE');
	$gate->end;
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE pid = $worker AND locktype = 'virtualxid' AND NOT granted", '1',
		'REINDEX CONCURRENTLY waits');
	kill 'STOP', $worker;
	sleep 3;
	$s->run("SELECT pg_cancel_backend($worker)");
	kill 'CONT', $worker;
	wait_for_job_end($node, $job);
	$holder->end;
	is($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ',') FROM index_mover_history WHERE job = $job"),
		'canceled 57014', 'REINDEX CONCURRENTLY, the end of lock_wait and a cancel: its end');
}

# A lock timeout that core keeps beyond a grant in REINDEX CONCURRENTLY is no cancel of the job.
{
	my $to = place('wide_pkey') eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	my ($gate, $holder) = map { IndexMover::Session->new($node) } 1 .. 2;
	my $log = -s $node->logfile;
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	set_tests($node, test_point => 'rebuild-entry-made:wait,rebuild-entry-committed:timeout');
	my $job = $s->run("SELECT max(job) FROM move_indexes('wide', '$to', method => 'rebuild', wait => false, "
		. q[settings => '{"lock_wait": "5s", "on_blocker": "fail"}')]);
	$node->wait_for_log(qr/test point "rebuild-entry-made": waiting/, $log);
	set_tests($node);
	$holder->run('BEGIN; LOCK TABLE wide IN ROW EXCLUSIVE MODE');
	$gate->end;
	wait_for_job_end($node, $job);
	$holder->end;
	like($s->run("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate, message), ',') FROM index_mover_history WHERE job = $job"),
		qr/^failed 55P03 canceling statement due to lock timeout/, 'REINDEX CONCURRENTLY, a lock timeout that core has kept');
}

# Nor is the cancel of a function that signals its own process a lock timeout.
{
	$s->run(<<'SQL');
CREATE FUNCTION own_cancel(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN
	IF (SELECT backend_type FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()) = 'index_mover' THEN
		PERFORM pg_catalog.pg_cancel_backend(pg_catalog.pg_backend_pid());
	END IF;
	RETURN i;
END$$;
CREATE INDEX own_cancel ON next_one (own_cancel(id)) TABLESPACE regress_slow;
SQL
	my $job = $s->run("SELECT max(job) FROM move_indexes('next_one', 'regress_fast', method => 'rebuild', wait => false)");
	wait_for_job_end($node, $job);
	like($s->run("SELECT string_agg(concat_ws(' ', sqlstate, message), ',') FROM index_mover_history WHERE job = $job"),
		qr/57014 canceling statement due to user request/, 'a function that cancels its own process: no lock timeout');
	$s->run('DROP INDEX own_cancel');
}

# ---- the same in a session's own call -------------------------------------------------------------
# (It locks four tables of ours, each for a second at most, and goes on with the next one.)
foreach my $event ('a cancel', 'statement_timeout', 'nothing else')
{
	my $name = "a session, lock_timeout and $event";
	my ($holder, $caller) = map { IndexMover::Session->new($node) } 1 .. 2;
	$holder->run('BEGIN; LOCK TABLE index_mover.job_log IN ACCESS EXCLUSIVE MODE');
	$caller->run("SET statement_timeout = '1500ms'") if $event eq 'statement_timeout';
	$caller->send(q{SELECT string_agg(name, ',') FROM index_mover.readable_tables() WHERE NOT readable});
	stop_in_queue($caller->pid, 'index_mover.job_log', 'AccessShareLock', $name);
	sleep 2;
	$s->run('SELECT pg_cancel_backend(' . $caller->pid . ')') if $event eq 'a cancel';
	kill 'CONT', $caller->pid;
	my $answer = $caller->answer;
	my %error = ('a cancel' => 'user request', 'statement_timeout' => 'statement timeout');
	is($answer, $error{$event} ? '' : 'job_log', "$name: its answer");
	like($caller->errors, qr/ERROR:  57014: canceling statement due to $error{$event}/, "$name: its error") if $error{$event};
	$caller->run('RESET statement_timeout');
	is($caller->run('SELECT 1'), '1', "$name: the next statement is not canceled");
	$_->end foreach $holder, $caller;
}
# a cancel at any moment of such calls, also before the first wait: the session's own limit is as it was
{
	my $caller = IndexMover::Session->new($node);
	foreach (1 .. 40)
	{
		$caller->send('DO $$BEGIN LOOP PERFORM * FROM index_mover.readable_tables(); END LOOP; END$$');
		usleep(50_000);
		$s->run('SELECT pg_cancel_backend(' . $caller->pid . ')');
		$caller->answer;
	}
	is($caller->run('SHOW lock_timeout'), '0', 'lock_timeout of a session is its own after 40 cancels');
	$caller->end;
}
unlike(slurp_file($node->logfile), qr/PANIC|TRAP/, 'each number of locks was right');
leftovers_ok($node, 'grants', within => 5);
files_ok($node, 'grants');
$s->end;
done_testing();
