# Another session's REINDEX CONCURRENTLY or CREATE INDEX CONCURRENTLY, while a session
# waits for its move: in the end they wait for that session's snapshot, so an index
# that waits for a lock of theirs cannot be moved by this call.  It steps back, and
# says for whom; the others are moved.  An index that such a command has replaced is
# found by its name.  The same with a program that waits for that session by polling.
#
# Fault (locks): another session's `REINDEX CONCURRENTLY` or `CREATE INDEX CONCURRENTLY`, which
#   waits for the caller in the end; a program that waits for the caller by polling; an index
#   that it has replaced; the server log while core waits (also specs/move_vs_ddl)
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
use Time::HiRes qw(usleep);

my $node = new_node('concurrently', conf => "log_lock_waits = on\n");
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA s;
CREATE TABLE s.busy (i int PRIMARY KEY, v int);
CREATE TABLE s.quiet (i int PRIMARY KEY, v int);
INSERT INTO s.busy SELECT g, g FROM generate_series(1, 1000) g;
INSERT INTO s.quiet SELECT g, g FROM generate_series(1, 1000) g;
CREATE INDEX busy_v ON s.busy (v);
CREATE INDEX quiet_v ON s.quiet (v);
SELECT oracle.remember_keys('s.busy'), oracle.remember_metadata('s.busy');
SELECT oracle.remember_keys('s.quiet'), oracle.remember_metadata('s.quiet');
SQL

my ($writer, $other, $caller) = map { IndexMover::Session->new($node) } 1 .. 3;
my $pid = $other->pid;
my ($from, $to) = ('regress_slow', 'regress_fast');

# The one that has to step back first: while another is rebuilt, the caller hides.
my $one_by_one = '{"max_workers": 1}';

# All indexes are where each case begins.
sub back
{
	my $not = $node->safe_psql('postgres',
		"SELECT count(*) FROM move_schema_indexes('s', '$from', method => 'copy') WHERE status NOT IN ('moved', 'skipped')");
	is($not, '0', 'all can be moved now');
	return;
}

# The other's command begins, and waits for a writer.
sub start_other
{
	my ($command) = @_;
	$writer->run('BEGIN; UPDATE s.busy SET v = v WHERE i = 1');
	$other->send($command);
	poll_until($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid", 'Lock', "$command: begins");
	return;
}

# It is what a runner waits for; then it may go on, and waits for the caller.
sub let_it_meet
{
	my ($name) = @_;
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE $pid = ANY (blocked_by)", 't', "$name: the move waits for it");
	$writer->run('COMMIT');
	return;
}

sub other_is_done
{
	my ($name) = @_;
	$other->answer;
	is($other->errors, '', "$name: the other's command is done");
	wait_for_no_worker($node);
	return;
}

foreach my $case (
	[ 'copy', 'REINDEX TABLE CONCURRENTLY s.busy', 's\.busy' ],
	[ 'rebuild', 'REINDEX TABLE CONCURRENTLY s.busy', 's\.busy' ],
	[ 'rebuild', 'CREATE INDEX CONCURRENTLY busy_new ON s.busy (v, i)', 's\.busy' ],
	# what pg_repack does with the indexes of a table, but for its last lock
	[ 'copy', 'CREATE INDEX CONCURRENTLY busy_new ON s.busy (v, i)', '' ])
{
	my ($method, $command, $stays) = @$case;
	my $name = "$method, $command";
	$node->safe_psql('postgres', 'DROP INDEX IF EXISTS s.busy_new');
	back();
	my $since = -s $node->logfile;
	start_other($command);
	$caller->send("SELECT name, status, sqlstate, detail FROM move_schema_indexes('s', '$to', method => '$method', settings => "
		. "'$one_by_one') WHERE status <> 'skipped' ORDER BY 1");
	if ($stays) { let_it_meet($name); }
	else
	{
		poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE table_name = 's.busy'", 't', "$name: the job");
		$writer->run('COMMIT');
	}
	my @rows = split /\n/, $caller->answer;
	my $log = slurp_file($node->logfile, $since);
	unlike($caller->errors, qr/ERROR/, "$name: the call itself goes on");
	is(scalar(@rows), 4, "$name: all are told of") or diag "@rows", $caller->errors;
	foreach my $row (@rows)
	{
		my ($index, $status, $sqlstate, $detail) = split /\|/, $row;
		if ($stays && $index =~ /^$stays/)
		{
			is("$status $sqlstate", 'failed 40P01', "$name: $index steps back");
			like($detail, qr/^deadlock detected: The move waits\b.* for process $pid, which waits\b[^:]*\.$/,
				'the move that steps back names the process');
			like($log, qr/DETAIL:  \Q$detail Process $pid: $command\E;$/m, 'the server log has the command of the process');
			is(tablespace_of_index($node, $index), $from, 'a move that stepped back: its index is where it was');
			like($caller->errors, qr/WARNING:  40P01: index "$index" was not moved\nDETAIL:  deadlock detected: The move waits/,
				'a move that stepped back: a WARNING');
			is($node->safe_psql('postgres',
				"SELECT status, sqlstate, message FROM index_mover_history WHERE name = '$index' ORDER BY job DESC LIMIT 1"),
				"failed|40P01|$detail", 'a move that stepped back is on record');
		}
		else
		{
			is($status, 'moved', "$name: $index is moved");
		}
	}
	other_is_done($name);
	leftovers_ok($node, $name, within => 5);
}

# ---- with on_failure = error it counts ----------------------------------------
{
	my $name = 'on_failure = error';
	back();
	start_other('REINDEX INDEX CONCURRENTLY s.busy_v');
	$caller->send("SET index_mover.on_failure = error; SELECT * FROM move_indexes('s.busy_v', '$to', method => 'copy')");
	let_it_meet($name);
	$caller->answer;
	like($caller->errors, qr/ERROR:  55000: 1 of 1 index was not moved\nDETAIL:  index "s\.busy_v": deadlock detected/, "$name: it counts");
	$caller->run('RESET index_mover.on_failure');
	other_is_done($name);
}

# ---- two callers in one deadlock -----------------------------------------------------------------
# Each reads the table whose index the other moves, and both find that in the same second: one
# of the moves steps back, not both.  The runners stand still meanwhile, and each caller looks twice.
{
	my $name = 'two callers';
	my @callers = map { IndexMover::Session->new($node) } 1, 2;
	$node->safe_psql('postgres', "CREATE TABLE cross$_ AS SELECT 1 AS i; CREATE INDEX cross${_}_i ON cross$_ (i)") foreach 1, 2;
	foreach my $i (1, 2)
	{
		$callers[ $i - 1 ]->send("SELECT status, sqlstate FROM cross${\(3 - $i)}, move_indexes('cross$i', '$to', method => 'copy')");
	}
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for lock to swap' AND cardinality(blocked_by) = 1",
		'2', "$name: both wait");
	my @runners = split /\n/, $node->safe_psql('postgres', 'SELECT pid FROM index_mover_progress');
	kill 'STOP', @runners;
	sleep 3;
	kill 'CONT', @runners;
	is(join(', ', sort map { $_->answer } @callers), 'failed|40P01, moved|', "$name: one of the moves steps back");
	$_->end foreach @callers;
	wait_for_no_worker($node);
	$node->safe_psql('postgres', 'DROP TABLE cross1, cross2');
	leftovers_ok($node, $name, within => 5);
}

# ---- a wait of core's, inside of a rebuild; what that leaves is removed later ---------
{
	my $name = 'core waits';
	make_gate($node, 'gate', 42);
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE one_row AS SELECT 1 AS one;
CREATE SCHEMA c;
CREATE TABLE c.gated AS SELECT 1 AS i;
CREATE INDEX a_gated ON c.gated (gate(i));
CREATE INDEX b_gated ON c.gated (i);
SQL
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	$caller->send("SELECT name, status, sqlstate FROM one_row, move_schema_indexes('c', '$to', method => 'rebuild', settings => "
		. "'$one_by_one')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1', "$name: it builds");
	$other->run('BEGIN; LOCK TABLE c.gated IN ROW EXCLUSIVE MODE');
	$gate->run('SELECT pg_advisory_unlock(42)');
	poll_until($node, "SELECT phase FROM index_mover_progress WHERE $pid = ANY (pg_blocking_pids(pid))",
		'waiting for writers before validation', "$name: for the other");
	$other->send('LOCK TABLE one_row IN ACCESS EXCLUSIVE MODE');
	is($caller->answer, "c.a_gated|failed|40P01\nc.b_gated|failed|40P01", "$name: both step back") or diag $caller->errors;
	like($caller->errors,
		joined(
			qr/WARNING:  40P01: index "c\.a_gated" was not moved\nDETAIL:  deadlock detected: The move waits, directly or /,
			qr/indirectly, for process $pid, which waits for the session that has called the move\.$/m), "$name: and says for whom");
	$other->answer;
	is($other->errors, '', "$name: the other goes on");
	$other->run('COMMIT');
	leftovers_ok($node, $name, within => 20);
	$gate->end;
}

# ---- no caller waits: the move waits to the other's end, and moves what it has made ------
foreach my $method ('copy', 'rebuild')
{
	my $name = "replaced, $method";
	back();
	my $old = $node->safe_psql('postgres', "SELECT 's.busy_v'::regclass::oid");
	start_other('REINDEX INDEX CONCURRENTLY s.busy_v');
	my $job = $node->safe_psql('postgres', "SELECT max(job) FROM move_indexes('s.busy_v', '$to', method => '$method', wait => false)");
	let_it_meet($name);
	other_is_done($name);
	is($node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job"), 'moved||',
		"$name: it is moved");
	is(tablespace_of_index($node, 's.busy_v'), $to, "$name: really");
	isnt($node->safe_psql('postgres', "SELECT 's.busy_v'::regclass::oid"), $old, "$name: it is another one by now");
	is($node->safe_psql('postgres', "SELECT name, status FROM undo_move($job)"), 's.busy_v|moved', "$name: and is on record as that");
	leftovers_ok($node, $name, within => 5);
}

# ---- the server log, while core waits inside of a rebuild ----------------------------
# For an advisory lock, and for a transaction: neither is reported at each tick.
{
	my $name = 'log_lock_waits';
	$node->safe_psql('postgres', 'CREATE TABLE logged AS SELECT 1 AS i; CREATE INDEX logged_gate ON logged (gate(i))');
	my $log_from = -s $node->logfile;
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	my $call = start_call($node, 'logged', "SELECT status FROM move_indexes('logged_gate', '$to', method => 'rebuild')");
	my $seconds = "FROM pg_locks l JOIN index_mover_progress p USING (pid) WHERE NOT l.granted AND l.waitstart < now() - interval '4 s'";
	poll_until($node, "SELECT locktype $seconds", 'advisory', "$name: core waits");
	my $worker = worker_pid($node);
	$writer->run('BEGIN; INSERT INTO s.quiet VALUES (0); LOCK TABLE logged IN ROW EXCLUSIVE MODE');
	$gate->run('SELECT pg_advisory_unlock(42)');
	poll_until($node, "SELECT locktype $seconds", 'virtualxid', "$name: core waits again");
	$writer->run('ROLLBACK');
	my (undef, $out) = finish_call($call);
	is($out, "moved\n", "$name: and goes on");
	my @reports = slurp_file($node->logfile, $log_from) =~ /process $worker still waiting for (.*) after/g;
	is(scalar(@reports), 0, "$name: waits are not reported") or diag join "\n", @reports[0 .. 5];
	$gate->end;
}

# ---- a program that waits for the caller by polling, with a lock that the move wants ---
# (pg_repack is one: t/074)
$node->safe_psql('postgres', <<SQL);
CREATE TABLE polled (i int);
INSERT INTO polled SELECT generate_series(1, 1000);
CREATE INDEX polled_i ON polled (i) TABLESPACE $from;
SQL

# Two connections of one program, made at the same moment
sub connect_program
{
	for (;;)
	{
		my @program = map { IndexMover::Session->new($node, name => 'program') } 1 .. 2;
		my $pids = join ', ', map { $_->pid } @program;
		return @program if $node->safe_psql('postgres',
			"SELECT max(backend_start) - min(backend_start) < interval '1.5 s' FROM pg_stat_activity WHERE pid IN ($pids)") eq 't';
		$_->end foreach @program;
	}
}

# A copy that waits for its time to swap, and the caller for it, by SELECT or by CALL
sub wait_by
{
	my ($how) = @_;
	my $move = "move_indexes('polled_i', '" . elsewhere($node, 'polled_i')
		. q{', method => 'copy', settings => '{"swap_after": "infinity"}'};
	my $job;
	if ($how eq 'SELECT') { $caller->send("SELECT status, sqlstate FROM $move)"); }
	else { $job = $node->safe_psql('postgres', "SELECT max(job) FROM $move, wait => false)"); }
	poll_until($node, 'SELECT phase FROM index_mover_progress', 'waiting for time to swap', "$how: the copy");
	return $node->safe_psql('postgres', 'SELECT job FROM index_mover_progress') if $how eq 'SELECT';
	$caller->send("CALL wait_for_move($job)");
	poll_until($node, 'SELECT state FROM pg_stat_activity WHERE pid = ' . $caller->pid, 'active', "$how: the caller");
	return $job;
}

# It is to swap now, and meets a holder of the table.
sub meet
{
	my ($job, $holder, $name) = @_;
	$node->safe_psql('postgres', "SELECT alter_move($job, 'swap_after', '')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE ${\$holder->pid} = ANY (blocked_by)", '1',
		"$name: the move waits for the holder");
	return;
}

my %source = (
	locks => "pg_locks WHERE locktype = 'virtualxid' AND pid = " . $caller->pid,
	activity => "pg_stat_activity WHERE xact_start < now() AND pid = " . $caller->pid,
	state => "PG_CATALOG.PG_STAT_ACTIVITY WHERE state = 'active' AND pid = " . $caller->pid);
foreach my $case (
	# who waits, what is polled, by which connection, in a loop of which side
	[ 'SELECT', 'locks', 'other', 'client' ], [ 'SELECT', 'activity', 'same', 'server' ], [ 'SELECT', 'state', 'other', 'server' ],
	[ 'CALL', 'locks', 'other', 'client' ], [ 'CALL', 'activity', 'same', 'client' ],
	[ 'CALL', 'state', 'same', 'client' ], [ 'CALL', 'state', 'other', 'server' ])
{
	my ($how, $source, $connection, $loop) = @$case;
	my $name = "$how, polled: $source, from the $connection connection, by the $loop";
	my $job = wait_by($how);
	my @program = connect_program();
	my $poller = $program[$connection eq 'same' ? 0 : 1];
	# (its transaction is younger than the caller's statement)
	$program[0]->run('BEGIN; SELECT count(*) FROM polled');
	meet($job, $program[0], $name);
	my $start = time;
	if ($loop eq 'server')
	{
		$poller->run("DO \$\$ BEGIN WHILE EXISTS (SELECT FROM $source{$source}) LOOP PERFORM pg_stat_clear_snapshot(), pg_sleep(0.1); "
			. "END LOOP; END \$\$");
	}
	else
	{
		while ($poller->run("SELECT count(*) || pg_stat_clear_snapshot()::text FROM $source{$source}") ne '0')
		{
			die "$name: no end" if time - $start > $IndexMover::Test::TIMEOUT;
			usleep(200_000);
		}
	}
	soon_ok(time - $start, 10, "$name: ends soon");
	$program[0]->run('COMMIT');
	my $row = $caller->answer;
	wait_for_job_end($node, $job);
	my ($status, $message) = split /\|/, $node->safe_psql('postgres', "SELECT status, message FROM index_mover_history WHERE job = $job");
	if ($how eq 'SELECT')
	{
		is($row, 'failed|40P01', "$name: the move steps back");
		like($message, joined(
			qr/^deadlock detected: The move waits, directly or indirectly, for process ${\$program[0]->pid}, which waits for /,
			qr/the session that has called the move\./), 'the move that steps back says for whom');
		like($caller->errors,
			qr/NOTICE: .*process ${\$program[0]->pid} seems to wait for this session\nDETAIL: .*rocess ${\$poller->pid} .*keeps reading/,
				'the move that steps back tells of the session that polls');
	}
	else
	{
		is($status, 'moved', "$name: the job goes on");
		my $error = $caller->errors =~ /ERROR: +(.*)\nDETAIL: +(.*)/ ? "$1: $2" : '';
		is($error, $source eq 'state'
			? "40P01: deadlock detected: Job $job waits for process ${\$program[0]->pid}, which waits for this session." : '',
				"$name: the caller");
	}
	$_->end foreach @program;
	leftovers_ok($node, $name, within => 5);
}

# Who looks on is none of them: another program; one whose transaction was there
# before the call; a person who looks once.
{
	my $name = 'others look on';
	my ($before, $sibling) = connect_program();
	$before->run('BEGIN; SELECT count(*) FROM polled');
	my $job = wait_by('SELECT');
	my ($holder, $monitor) = (IndexMover::Session->new($node, name => 'psql'), IndexMover::Session->new($node, name => 'monitor'));
	$holder->run('BEGIN; SELECT count(*) FROM polled');
	meet($job, $holder, $name);
	$_->send("DO \$\$ BEGIN WHILE EXISTS (SELECT FROM $source{locks}) LOOP PERFORM pg_sleep(0.1); END LOOP; END \$\$") foreach $sibling,
		$monitor;
	$holder->run("SELECT count(*) FROM $source{locks}");
	my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
	poll_until($node, "SELECT clock_timestamp() > timestamptz '$since' + interval '9 s'", 't',
		"$name: longer than it takes to see who polls");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE ${\$holder->pid} = ANY (blocked_by)", '1',
		"$name: waited for all the same");
	$_->run('COMMIT') foreach $holder, $before;
	is($caller->answer, 'moved|', "$name: moved in the end") or diag $caller->errors;
	unlike($caller->errors, qr/seems to wait/, "$name: no one is suspected");
	$_->answer foreach $sibling, $monitor;
	$_->end foreach $before, $sibling, $holder, $monitor;
}

verdict_ok($node, 's.busy', 'in the end');
verdict_ok($node, 's.quiet', 'in the end');
$_->end foreach $writer, $other, $caller;
$node->stop;
done_testing();
