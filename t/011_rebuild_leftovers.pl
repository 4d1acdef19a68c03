# A rebuild that is canceled, in each of its phases: before core's catalog
# entry exists nothing is left; later the leftover is removed as soon as no session
# uses the table any more, and until then no session stands behind us.  And what a
# killed worker leaves is removed by the next call: ours, and only ours.
#
# Fault (processes): worker killed, in each phase, at each pause point, while it writes the
#   history, between two indexes, and while it removes what a failed copy has made (also 015,
#   010, 021, 048)
# Fault (locks): names that core's leftovers or ours would have (also sql/names)
# Fault (locks): a table stays in use, whose old index is left, while others of its job are queued
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

my $HOLD = faults() ? 10 : 1;		# seconds a blocker stays after the cancel

my $node = new_node('leftovers');

# An index whose build waits while a session holds advisory lock 42.
make_gate($node, 'gate', 42);
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE lt (id int, v int);
INSERT INTO lt SELECT g, g FROM generate_series(1, 50) g;
SET default_tablespace = regress_slow;
CREATE INDEX lt_gate ON lt (gate(v)) WITH (fillfactor = 90);
CREATE TABLE other (i int);
SELECT oracle.remember_keys('lt'), oracle.remember_metadata('lt');
SQL

my $indexes = "SELECT string_agg(c.relname || CASE WHEN i.indisvalid THEN '' ELSE '!' END, ' ' ORDER BY c.relname)"
  . " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 'lt'::regclass";
my $here = 'regress_slow';

sub wait_blocked_in
{
	my ($phase, $name) = @_;
	poll_until($node,
		"SELECT count(*) FROM index_mover_progress WHERE phase = '$phase' AND cardinality(blocked_by) > 0",
		'1', "$name: phase \"$phase\" with a session to wait for");
	return worker_pid($node);
}

# Ways to bring the rebuild to a stop.  Each takes the call and two sessions,
# and returns when the worker waits in the phase, and a closure that lets go of
# whatever it waits for.
my %way = (
	'waiting for writers before build (ours)' => {
		before => sub { $_[0]->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE') },
		phase  => 'waiting for writers before build',
		left   => 'lt_gate' },
	'waiting for old snapshots (ours)' => {
		before => sub { $_[0]->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM other') },
		phase  => 'waiting for old snapshots',
		left   => 'lt_gate' },
	'waiting for lock to start' => {
		before => sub { $_[0]->run('BEGIN; ALTER INDEX lt_gate SET (fillfactor = 90)') },
		phase  => 'waiting for lock to start',
		left   => 'lt_gate' },
	'initializing' => {
		before => sub { $_[0]->run('BEGIN; LOCK TABLE pg_depend IN SHARE MODE') },
		phase  => 'initializing',
		left   => 'lt_gate' },
	'waiting for writers before build (core)' => {
		before => sub { $_[1]->run('BEGIN; LOCK TABLE pg_depend IN SHARE MODE') },
		then   => sub {
			wait_blocked_in('initializing', 'core');
			$_[0]->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE');
			$_[1]->run('COMMIT');
		},
		phase => 'waiting for writers before build',
		left  => 'lt_gate lt_gate_ccnew!' },
	'building index' => {
		before => sub { $_[0]->run('SELECT pg_advisory_lock(42)') },
		phase  => 'building index',
		free   => sub { $_[0]->run('SELECT pg_advisory_unlock(42)') },
		left   => 'lt_gate lt_gate_ccnew!',
		gone_at_once => 1 },
	'waiting for writers before validation' => {
		while_building => sub { $_[0]->run('BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE') },
		phase => 'waiting for writers before validation',
		left  => 'lt_gate lt_gate_ccnew!' },
	'waiting for old snapshots (validated)' => {
		while_building => sub { $_[0]->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM other') },
		phase => 'waiting for old snapshots',
		left  => 'lt_gate lt_gate_ccnew!',
		gone_at_once => 1 },
	'waiting for readers before marking dead' => {
		while_building => sub { $_[0]->run('BEGIN; LOCK TABLE lt IN ACCESS SHARE MODE') },
		phase => 'waiting for readers before marking dead',
		left  => 'lt_gate lt_gate_ccold!',
		moved => 1 },
	'waiting for readers before dropping' => {
		while_building => sub { $_[1]->run('BEGIN; LOCK TABLE lt IN ACCESS SHARE MODE') },
		then => sub {
			my ($session, $first) = @_;
			wait_blocked_in('waiting for readers before marking dead', 'dropping');
			my $catalog = IndexMover::Session->new($node);
			$catalog->run('BEGIN; LOCK TABLE pg_index IN SHARE MODE');
			$first->run('COMMIT');
			poll_until($node, "SELECT count(*) FROM pg_locks WHERE relation = 'pg_index'::regclass AND NOT granted", '1');
			$session->run('BEGIN; LOCK TABLE lt IN ACCESS SHARE MODE');
			$catalog->run('COMMIT');
			$catalog->end;
		},
		phase => 'waiting for readers before dropping',
		left  => 'lt_gate lt_gate_ccold!',
		moved => 1 },
);

# Ways to cancel it: SQL to run elsewhere.  What the caller then gets: its own
# error, or its row.
my %cancel = (
	'pg_cancel_backend(caller)' => { sql => 'SELECT pg_cancel_backend(%CALLER%)', state => '57014' },
	'pg_terminate_backend(caller)' => { sql => 'SELECT pg_terminate_backend(%CALLER%)', state => '57P01' },
	'pg_cancel_backend(worker)' => { sql => 'SELECT pg_cancel_backend(%WORKER%)', row => 'canceled|57014' },
	'pg_terminate_backend(worker)' => { sql => 'SELECT pg_terminate_backend(%WORKER%)', row => 'canceled|57P01' },
	'cancel_move()' => { sql => 'SELECT cancel_move(job) FROM index_mover_progress', row => 'canceled|57014' },
	'statement_timeout' => { timeout => 1, state => '57014' },
);

my $calls = 0;
# How long it took at most until a worker stood where it was to be canceled: a
# busy machine must get there before the timeout strikes.
my $longest_setup = 0;

sub try_cancel
{
	my ($where, $how) = @_;
	my $way = $way{$where};
	my $cancel = $cancel{$how};
	my $name = "$where, $how";
	my $to = other_place($here);

	my $session = IndexMover::Session->new($node);
	my $helper = IndexMover::Session->new($node);
	my $builder = IndexMover::Session->new($node);

	$way->{before}->($session, $helper) if $way->{before};
	$builder->run('SELECT pg_advisory_lock(42)') if $way->{while_building};

	my $timeout = $cancel->{timeout} ? 10 + int(3 * $longest_setup) : 0;
	my $setup = time;
	my $call = start_call($node, 'call' . ++$calls,
		($timeout ? "SET statement_timeout = '${timeout}s'; " : '') . "SELECT status, sqlstate FROM move_indexes('lt', '$to', 'rebuild')");
	my $caller = caller_pid($call);

	if ($way->{while_building})
	{
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1', "$name: build");
		$way->{while_building}->($session, $helper);
		$builder->run('SELECT pg_advisory_unlock(42)');
	}
	$way->{then}->($session, $helper) if $way->{then};
	my $worker = wait_blocked_in($way->{phase}, $name);
	pass("$name: the worker is in that phase");

	$setup = time - $setup;
	$longest_setup = $setup if $setup > $longest_setup;
	if ($cancel->{sql})
	{
		my $sql = $cancel->{sql};
		$sql =~ s/%CALLER%/$caller/;
		$sql =~ s/%WORKER%/$worker/;
		$node->safe_psql('postgres', $sql);
	}
	my ($status, $out, $err, $waited) = finish_call($call);
	$waited -= $timeout;
	soon_ok($waited, 5, "$name: the call returns within 5 s");
	if ($cancel->{state})
	{
		is(sqlstate_of($err), $cancel->{state}, "$name: the caller's error");
	}
	else
	{
		my $row = $cancel->{row};
		$row =~ s/^canceled/moved/ if $way->{moved};
		is($out, "$row\n", "$name: the caller's row") or diag $err;
	}

	# while whoever was in the way still is
	my $left = $node->safe_psql('postgres', $indexes);
	if ($way->{left} !~ /!/ || $way->{gone_at_once})
	{
		poll_until($node, $indexes, 'lt_gate', "$name: gone at once", timeout => 5);
		$left = $node->safe_psql('postgres', $indexes);
		is($left, 'lt_gate', "$name: nothing is left");
	}
	else
	{
		is($left, $way->{left}, "$name: the leftover, while its table is in use");
	}
	my $until = time + $HOLD;
	if ($left =~ /!/)
	{
		# a second cancel does not stop the cleaning up
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'cleaning up' AND cardinality(blocked_by) > 0",
			'1', "$name: cleaning up", timeout => 5);
		$node->safe_psql('postgres', 'SELECT pg_cancel_backend(pid) FROM index_mover_progress');
	}
	my $harm = 0;
	while (time < $until && $where !~ /lock to start|initializing/)
	{
		my ($rc, undef, $problem) = $node->psql('postgres',
			'SET lock_timeout = 5000; BEGIN; LOCK TABLE lt IN ROW EXCLUSIVE MODE; LOCK TABLE lt IN SHARE UPDATE EXCLUSIVE MODE; ROLLBACK');
		$harm++, diag $problem if $rc;
		usleep(200_000);
	}
	is($harm, 0, "$name: no session waits behind us");

	if ($way->{free}) { $way->{free}->($session) }
	else { $session->run('COMMIT') }
	my $released = time;
	poll_until($node, $indexes, 'lt_gate', "$name: removal", timeout => 10);
	soon_ok(time - $released, 5, "$name: nothing is left within 5 s after that");
	$_->end foreach $session, $helper, $builder;

	$here = $to if $way->{moved};
	is(tablespace_of_index($node, 'lt'), "lt_gate: $here", "$name: the index is where it should be");
	$to = other_place($here);
	survived_ok($node, 'lt', $name, "SELECT status FROM move_indexes('lt', '$to', 'rebuild')");
	$here = $to;
	return;
}

# Every phase, with one way to cancel each; then every way in the phase that
# leaves most.
my @how = sort keys %cancel;
my $n = 0;
for my $where (sort keys %way)
{
	my $how = $how[ $n++ % @how ];
	try_cancel($where, $how);
}
if (faults('each way to cancel in the phase that leaves most'))
{
	try_cancel('waiting for writers before validation', $_) foreach @how;
}

# ---- two workers, one of them with something to clean up -------------------
# Whoever of them is the last to know his rows must let the caller go.
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA two;
CREATE TABLE two.a (v int);
CREATE TABLE two.b (v int);
INSERT INTO two.a SELECT generate_series(1, 10);
INSERT INTO two.b SELECT generate_series(1, 10);
CREATE INDEX a_gate ON two.a (gate(v));
CREATE INDEX b_gate ON two.b (gate(v));
SQL
{
	my ($builder, $holder, $writer) = map { IndexMover::Session->new($node) } 1 .. 3;
	$builder->run('SELECT pg_advisory_lock(42)');
	$writer->run('BEGIN; LOCK TABLE two.b IN ROW EXCLUSIVE MODE');
	my $call = start_call($node, 'two', "SELECT status, sqlstate FROM move_schema_indexes('two', 'regress_fast', 'rebuild')");
	poll_until($node, "SELECT string_agg(phase, ', ' ORDER BY phase) FROM index_mover_progress",
		'building index, waiting for writers before build', 'two workers: one builds, the other waits for a writer');
	$holder->run('BEGIN; LOCK TABLE two.a, two.b IN ACCESS SHARE MODE');
	$node->safe_psql('postgres', 'SELECT cancel_move(job) FROM index_mover_progress LIMIT 1');
	my ($status, $out, $err, $waited) = finish_call($call);
	is($out, "canceled|57014\ncanceled|57014\n", 'two workers: both indexes are canceled');
	cmp_ok($waited, '<', 5, 'two workers: the call returns within 5 s');
	poll_until($node, "SELECT string_agg(phase, ', ') FROM index_mover_progress", 'cleaning up', 'two workers: one is still cleaning up');
	$holder->run('COMMIT');
	$builder->run('SELECT pg_advisory_unlock(42)');
	$_->end foreach $builder, $holder, $writer;
	wait_for_no_worker($node);
	leftovers_ok($node, 'two workers');
	$node->safe_psql('postgres', 'DROP SCHEMA two CASCADE');
}

# ---- kill -9 ---------------------------------------------------------------
# Beside it a stranger's leftover of the same kind, with the name that ours
# would have: core's own REINDEX, canceled.
my $gate = IndexMover::Session->new($node);
my $stranger = IndexMover::Session->new($node);
$gate->run('SELECT pg_advisory_lock(42)');
$stranger->send('REINDEX INDEX CONCURRENTLY lt_gate');
poll_until($node, "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase LIKE 'building index%'", '1');
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $stranger->pid . ')');
$stranger->answer;
$gate->run('SELECT pg_advisory_unlock(42)');
$_->end foreach $gate, $stranger;
is($node->safe_psql('postgres', $indexes), 'lt_gate lt_gate_ccnew!', "core's own leftover is there");
my $foreign = $node->safe_psql('postgres', "SELECT 'lt_gate_ccnew'::regclass::oid");
$node->safe_psql('postgres', "SELECT oracle.remember_metadata('lt')");

sub kill_worker
{
	my ($where) = @_;
	my $way = $way{$where};
	my $to = other_place($here);
	my $session = IndexMover::Session->new($node);
	my $helper = IndexMover::Session->new($node);
	my $builder = IndexMover::Session->new($node);

	$way->{before}->($session, $helper) if $way->{before};
	$builder->run('SELECT pg_advisory_lock(42)') if $way->{while_building};
	my $call = start_call($node, 'call' . ++$calls, "SELECT status FROM move_indexes('lt_gate', '$to', 'rebuild')");
	if ($way->{while_building})
	{
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1', "$where: build");
		$way->{while_building}->($session, $helper);
		$builder->run('SELECT pg_advisory_unlock(42)');
	}
	$way->{then}->($session, $helper) if $way->{then};
	my $worker = wait_blocked_in($way->{phase}, $where);
	my $job = $node->safe_psql('postgres', 'SELECT job FROM index_mover_progress');

	kill 'KILL', $worker;
	finish_call($call);
	$_->end foreach $session, $helper, $builder;
	wait_until_up($node);
	$here = $to if $way->{moved};
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"),
		'interrupted', "kill -9, $where: the history tells");
	return;
}

my %left_by = (
	'waiting for writers before build (core)' => 1,
	'building index' => 1,
	'waiting for old snapshots (validated)' => 1,
	'waiting for readers before marking dead' => 1,
	'waiting for readers before dropping' => 1);

# Before that commit there is no entry; but the file that core has made for it,
# still empty, is what any CREATE leaves when it is killed: so that comes last.
for my $where (sort(keys %left_by), 'initializing')
{
	my $name = "kill -9, $where";
	if ($where eq 'initializing')
	{
		$node->safe_psql('postgres', 'CHECKPOINT');
		files_ok($node, 'after all kills with a leftover');
		$left_by{$where} = 0;
	}
	kill_worker($where);

	my $list = $node->safe_psql('postgres', 'SELECT kind, tablespace, action, object FROM index_mover_cleanup(true)');
	is(scalar(split /\n/, $list), $left_by{$where}, "$name: what index_mover_cleanup() would remove") or diag $list;
	unlike($list, qr/lt_gate_ccnew$/m, "$name: not the stranger's");
	is($node->safe_psql('postgres', "SELECT array_length(string_to_array(($indexes), ' '), 1)"),
		2 + $left_by{$where}, "$name: dry_run removes nothing");

	is($node->safe_psql('postgres',
		"SELECT count(*) FROM move_indexes('lt', '$here', 'rebuild', dry_run => true) WHERE detail LIKE '%rebuild that is running, or "
			. "was interrupted%'"),
		$left_by{$where}, "$name: the plan tells ours from the stranger's");

	if ($where =~ /building|dead/)
	{
		like($node->safe_psql('postgres', 'SELECT action FROM index_mover_cleanup()'), qr/^removed$/,
			"$name: index_mover_cleanup() removes it");
		is($node->safe_psql('postgres', $indexes), 'lt_gate lt_gate_ccnew!', "$name: and only it");
		is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()'), '0', "$name: once");
	}
	my $to = other_place($here);
	is($node->safe_psql('postgres', "SELECT name, status FROM move_indexes('lt', '$to', 'rebuild') WHERE status <> 'skipped'"),
		'lt_gate|moved', "$name: the next call moves");
	$here = $to;
	is($node->safe_psql('postgres', $indexes), 'lt_gate lt_gate_ccnew!', "$name: ours is removed, the stranger's not");
	is($node->safe_psql('postgres',
		"SELECT i.indexrelid, i.indisvalid, t.spcname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid LEFT JOIN pg_tablespace t "
			. "ON t.oid = c.reltablespace WHERE c.relname = 'lt_gate_ccnew'"),
		"$foreign|f|" . ($node->safe_psql('postgres',
			"SELECT spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = reltablespace WHERE c.oid = $foreign")),
		"$name: it is the same, neither repaired nor moved");
	metadata_ok($node, 'lt', $name, restarted => 1);
	verdict_ok($node, 'lt', $name);
}
$node->safe_psql('postgres', "DROP INDEX lt_gate_ccnew; SELECT oracle.remember_metadata('lt')");

# Nothing to move, something to remove, and a session that uses the table: a caller that
# waits for nothing else is not kept, and the worker goes on alone.
kill_worker('waiting for readers before marking dead');
$node->adjust_conf('postgresql.conf', 'max_worker_processes', '0');
$node->restart;
for my $wait ('true', 'false')
{
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT status FROM move_indexes('lt_gate', '$here', wait => $wait)");
	is("$rc $out", '0 skipped', "no worker to be had, wait => $wait: the call ends well");
	like($err, qr/WARNING:  could not start a job to remove what interrupted moves have left/,
		"no worker to be had, wait => $wait: with a warning");
}
$node->adjust_conf('postgresql.conf', 'max_worker_processes', '8');
$node->restart;
my $reader = IndexMover::Session->new($node);
$reader->run('BEGIN; LOCK TABLE lt IN ACCESS SHARE MODE');
is($node->safe_psql('postgres', "SELECT DISTINCT m.status FROM lt, move_indexes('lt_gate', '$here') m"),
	'skipped', 'a call that finds nothing to move returns while the table is in use, also by itself');
wait_blocked_in('cleaning up', 'nothing to move');
is($node->safe_psql('postgres', $indexes), 'lt_gate lt_gate_ccold!', 'what is left is still there');
$reader->run('COMMIT');
$reader->end;
poll_until($node, $indexes, 'lt_gate', 'removal when no session uses the table any more');
wait_for_no_worker($node);
leftovers_ok($node, 'after all kills');
metadata_ok($node, 'lt', 'after all kills', restarted => 1);

# Two finish the same work: the row of the ledger goes while the cleanup is
# about to delete it, which core calls "tuple concurrently deleted" (XX000).  The cleanup
# looks for that again and again, and does not queue.
kill_worker('waiting for readers before marking dead');
my $rival = IndexMover::Session->new($node);
$rival->run('BEGIN; DELETE FROM index_mover.ledger');
my $cleanup = start_call($node, 'rival', 'SELECT action FROM index_mover_cleanup()');
poll_until($node, "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.mode = 'RowExclusiveLock' AND "
	. "l.relation = 'index_mover.ledger'::regclass AND a.backend_type = 'index_mover' AND a.wait_event_type = 'Extension'",
	'1', 'a cleanup waits for who deletes its row');
$rival->run('COMMIT');
$rival->end;
my ($status, $out, $err) = finish_call($cleanup);
is("$status $out$err", "0 removed\n", 'a row that goes meanwhile is no error');
wait_for_no_worker($node);
is($node->safe_psql('postgres', $indexes), 'lt_gate', 'and the leftover goes all the same');
leftovers_ok($node, 'after the rival');
verdict_ok($node, 'lt', 'after the rival');
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('lt', '" . other_place($here) . "', 'rebuild')"), 'moved',
	'the next call moves');

# ---- a leftover that cannot be removed yet, and the other relations of its job -----------
# They do not wait for its cleanup, and the job does not for longer than lock_wait.
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA queued;
SELECT format('CREATE TABLE queued.t%s AS SELECT generate_series(1, 10) AS v', n) FROM generate_series(1, 3) n \gexec
SELECT format('CREATE INDEX t%s_x ON queued.t%1$s (gate(v))', n) FROM generate_series(1, 3) n \gexec
SQL
{
	my $s = IndexMover::Session->new($node);
	my ($holder, $builder) = map { IndexMover::Session->new($node) } 1 .. 2;
	my $built = "SELECT name FROM index_mover_progress WHERE phase = 'building index'";
	my $states = "SELECT string_agg(concat_ws(' ', name, status, sqlstate), ', ' ORDER BY name) FROM index_mover_history WHERE job =";
	$s->run('SET client_min_messages = warning');
	my %to = ('lock_wait' => 'regress_fast', 'a cancel of the cleanup' => 'regress_slow', 'cancel_move()' => 'pg_default');
	foreach my $end ('lock_wait', 'a cancel of the cleanup', 'cancel_move()')
	{
		my $to = $to{$end};
		my $log = -s $node->logfile;
		$builder->run('SELECT pg_advisory_lock(42)');
		my $job = $s->run("SELECT max(job) FROM move_schema_indexes('queued', '$to', 'rebuild', wait => false, "
			. q[settings => '{"lock_wait": "2s", "on_blocker": "fail", "max_workers": 1}')]);
		poll_until($node, $built, 'queued.t1_x', "$end: the first is built");
		$holder->run('BEGIN; SELECT count(*) FROM queued.t1');
		$builder->run('SELECT pg_advisory_unlock(42)');
		if ($end eq 'lock_wait')
		{
			poll_until($node, "$states $job", 'queued.t1_x moved 55P03, queued.t2_x moved, queued.t3_x moved',
				'the others are moved while the old index of the first is in use');
		}
		elsif ($end =~ /cleanup/)
		{
			my $cancel = "SELECT pg_cancel_backend(pid) FROM index_mover_progress WHERE job = $job AND phase = 'cleaning up'";
			my $start = time;
			my $sent;
			usleep(5_000) until $sent = $s->run($cancel) eq 't' or time - $start > $IndexMover::Test::TIMEOUT;
			ok($sent, "$end of the first");
			poll_until($node, "$states $job", 'queued.t1_x moved 55P03, queued.t2_x canceled 57014, queued.t3_x canceled 57014',
				"$end ends the others");
		}
		else
		{
			# (the gate is asked for each row)
			poll_until($node, $built, '', "$end: the first is ready");
			$builder->run('SELECT pg_advisory_lock(42)');
			poll_until($node, $built, 'queued.t2_x', "$end: the second is built");
			is($s->run("SELECT cancel_move($job)"), '1', 'a cancel, while something is left of the first');
			poll_until($node, "$states $job", 'queued.t1_x moved 55P03, queued.t2_x canceled 57014, queued.t3_x canceled 57014',
				'ends the others');
		}
		$s->run("CALL wait_for_move($job, raise => false)");
		pass("$end: the job has ended for whoever waits");
		$node->wait_for_log(qr/job $job .*: could not remove yet what its moves have left/, $log);
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job", '0', "$end: and its worker has ended, too");
		is($s->run('SELECT count(*) FROM index_mover.ledger'), '1', "$end: the old index is on record");
		is($s->run('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $holder->pid . " AND state = 'idle in transaction'"), '1',
			"$end: all the time its table was in use");
		$holder->run('COMMIT');
		$builder->run('SELECT pg_advisory_unlock_all()');
		wait_for_no_worker($node);
		leftovers_ok($node, "$end, and a cleanup", within => 10);
	}
	$_->end for $s, $holder, $builder;
}

# An old index that DDL has made valid again is not ours any more when a foreign key
# depends on it; of two unique ones core takes the older.
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE keyed (i int);
CREATE UNIQUE INDEX keyed_i_ccold ON keyed (i);
CREATE UNIQUE INDEX keyed_i ON keyed (i);
CREATE TABLE refers (i int REFERENCES keyed (i));
INSERT INTO index_mover.ledger
SELECT nextval('index_mover.ledger_seq'), system_identifier, d.oid, 'i', 0, 0, 'keyed'::regclass, 'keyed_i_ccold'::regclass,
  'keyed_i'::regclass, 999999, 0, now(), 'keyed_i_ccnew'
  FROM pg_control_system(), pg_database d WHERE datname = current_database();
SQL
is($node->safe_psql('postgres',
	"SELECT refobjid::regclass FROM pg_depend WHERE classid = 'pg_constraint'::regclass AND refobjid IN (SELECT indexrelid FROM pg_index "
		. "WHERE indrelid = 'keyed'::regclass)"),
	'keyed_i_ccold', 'a foreign key depends on the older index');
is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()'), '0', 'nothing of it is to be removed');
is($node->safe_psql('postgres',
	"SELECT string_agg(indexrelid::regclass || ' ' || indisvalid, ', ' ORDER BY indexrelid) FROM pg_index WHERE indrelid = "
		. "'keyed'::regclass"),
	'keyed_i_ccold true, keyed_i true', 'and both are valid as before');
is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '0', 'the row is forgotten');

# An old index that a cleanup has made invalid goes although the new one was dropped;
# an index that heal_tablespace() has hidden stays, whatever the row of a killed rebuild says.
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE outlived (i int, j int);
CREATE INDEX outlived_i_ccold ON outlived (i);
CREATE INDEX outlived_j ON outlived (j);
CREATE INDEX outlived_new ON outlived (j);
UPDATE pg_index SET indisvalid = false WHERE indexrelid IN ('outlived_i_ccold'::regclass, 'outlived_j'::regclass);
INSERT INTO index_mover.ledger
SELECT nextval('index_mover.ledger_seq'), system_identifier, d.oid, kind, 0, 0, 'outlived'::regclass, old, new, 999999, 0, now(), name
  FROM pg_control_system(), pg_database d, (VALUES ('d'::"char", 'outlived_i_ccold'::regclass, 99999999::oid, 'outlived_i_ccnew'),
  ('i', 'outlived_new', 'outlived_j'::regclass, 'outlived_j_ccnew'), ('d', 'outlived_j', 'outlived_new'::regclass, 'x_ccnew'))
  v(kind, old, new, name)
 WHERE datname = current_database();
SQL
$node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()');
is($node->safe_psql('postgres',
	"SELECT string_agg(indexrelid::regclass::text, ', ' ORDER BY indexrelid) FROM pg_index WHERE indrelid = 'outlived'::regclass"),
	'outlived_j, outlived_new', 'by their names');
is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '0', 'and the rows are forgotten');
done_testing();
