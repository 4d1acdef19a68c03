# A cancel that hits the worker when it is not moving anything, but puts on record
# what it does, cancels the job and not the worker; killed or terminated there, it
# leaves nothing.  A worker that cannot even connect, or be loaded, is an error of the
# call, not rows that say nothing.  A job whose worker
# never comes at all is given up after minutes, but not because its transaction
# was open for that long.
#
# Fault (processes): the library is replaced while the server runs: an old session with a new worker,
#   and the reverse
# Fault (processes): worker dies before it begins, or cannot even be loaded; the caller waits,
#   or does not
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

needs_test_points();

my $node = new_node('worker_odd_moments');
my $TARGET = 'regress_fast';

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 1000);
CREATE INDEX t_1 ON t (i);
CREATE INDEX t_2 ON t (i);
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL

my $locker = IndexMover::Session->new($node);
my $caller = $node->background_psql('postgres', on_error_stop => 0, timeout => 180);

sub cancel_at_record
{
	my ($how, $name) = @_;

	# the lock is granted at the commit of the submission, which writes there, too
	my $job = $caller->query_safe("BEGIN; SELECT max(job) FROM move_indexes('t', '$TARGET', wait => false)");
	$locker->send('BEGIN; LOCK TABLE index_mover.move_log IN SHARE MODE');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $locker->pid, 't', "$name: the lock is queued");
	$caller->query_safe('COMMIT');
	$locker->answer;
	poll_until($node, "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'index_mover' AND wait_event_type = 'Extension'",
		't', "$name: the worker waits to write the history");
	my $worker = worker_pid($node);
	$node->safe_psql('postgres', $how->($job));
	let_process_take_signals($worker);
	$locker->run('COMMIT');
	$caller->query("CALL wait_for_move($job)");
	like($caller->{stderr}, qr/ERROR:  2 of 2 indexes were not moved/, "$name: who waits is told");
	$caller->{stderr} = '';
	is($node->safe_psql('postgres', "SELECT name, status, sqlstate FROM index_mover_history WHERE job = $job ORDER BY 1"),
		"t_1|canceled|57014\nt_2|canceled|57014", "$name: the history tells the truth");
	wait_for_no_worker($node);
	all_right($node, 't', $name, within => 5);
	return;
}

cancel_at_record(sub { "SELECT cancel_move($_[0])" }, 'cancel_move');
is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')"),
	'moved,moved', 'the next call succeeds');
$TARGET = 'regress_slow';
cancel_at_record(sub { 'SELECT cancel_move(job), pg_cancel_backend(pid) FROM index_mover_progress' }, 'both ways at once');

# Another error of the move comes before it is obeyed.
{
	my $log = -s $node->logfile;
	set_test_point($node, 'swap-ready:1:late-error');
	my $job = $node->safe_psql('postgres',
		qq(SELECT max(job) FROM move_indexes('t', '$TARGET', 'copy', wait => false, settings => '{"max_workers": 1}')));
	$node->wait_for_log(qr/test point "swap-ready": waiting/, $log);
	my $sent = $node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) FROM index_mover_progress WHERE job = $job");
	is($sent, 't', 'an error and a cancel');
	wait_for_no_worker($node);
	set_test_point($node, '');
	is($node->safe_psql('postgres', "SELECT name, status, sqlstate FROM index_mover_history WHERE job = $job ORDER BY 1"),
		"t_1|canceled|XX000\nt_2|canceled|57014", 'an error and a cancel: the next index is not moved');
	all_right($node, 't', 'an error and a cancel', within => 5);
}

# A worker that cannot connect to its database.
my ($stdout, $stderr);
$node->psql('postgres', <<SQL, stdout => \$stdout, stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'postgres';
SELECT status FROM move_indexes('t', '$TARGET');
UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'postgres';
SQL
is($stdout, '', 'a worker that cannot connect: no rows');
like($stderr, qr/ERROR:  55000: background worker of index_mover did not start/, 'a worker that cannot connect: an error');
like($stderr, qr/DETAIL:  .*postgres/, 'a worker that cannot connect: the error says why');
unlike($stderr, qr/WARNING/, 'a worker that cannot connect: no WARNING');
$node->safe_psql('template1', "UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'postgres'");
is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')"),
	'moved,moved', 'the next call succeeds, too');
all_right($node, 't', 'a worker that cannot connect', within => 5);

# The same for a job for which no session waits: it is on record since it was queued.
my $log_at = -s $node->logfile;
$node->psql('postgres', <<SQL, stdout => \$stdout, stderr => \$stderr);
BEGIN;
SELECT max(job) AS job FROM move_indexes('t', 'regress_fast', wait => false);
SELECT string_agg(status, ',') FROM index_mover_history h WHERE job = (SELECT max(job) FROM index_mover_history);
UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'postgres';
COMMIT;
SQL
like($stdout, qr/^(\d+)\nqueued,queued$/, 'a job is on record when it is queued');
my ($lost) = $stdout =~ /^(\d+)/;
# until then it may not have come
$node->wait_for_log(qr/FATAL: .*"postgres"/, $log_at);
my $gone = sub { $node->safe_psql('template1', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'index%'") eq 't' };
sleep(0.1) until $gone->();
$node->safe_psql('template1', "UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'postgres'");
poll_until($node, "SELECT string_agg(status, ',') FROM index_mover_history WHERE job = $lost", 'interrupted,interrupted',
	'its worker cannot connect: the history says that it is over');
($stdout, $stderr) = ('', '');
$node->psql('postgres', "CALL wait_for_move($lost, raise => false)", stdout => \$stdout, stderr => \$stderr);
like($stderr, qr/WARNING:  2 of 2 indexes were not moved/, 'and who waits for it is told');
my $resumed = $node->safe_psql('postgres', "SELECT resume_move($lost)");
cmp_ok($resumed, '>', $lost, 'it can be resumed');
wait_for_job_end($node, $resumed);
wait_for_no_worker($node);
is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM index_mover_history WHERE job > $lost"), 'moved,moved',
	'and is done then')
  or diag $node->safe_psql('postgres', 'SELECT * FROM index_mover_history');
$node->psql('postgres', "BEGIN; SELECT FROM move_indexes('t', 'regress_fast', wait => false); ROLLBACK", stdout => \$stdout);
is($node->safe_psql('postgres', "SELECT count(*) FROM index_mover_history WHERE status = 'queued'"), '0',
	'what was rolled back is not on record');
{
	my ($submitter, $waiter) = map { IndexMover::Session->new($node) } 1 .. 2;
	my $to = elsewhere($node, 't_1');
	my ($rolled_back) = $submitter->run("BEGIN; SELECT max(job) FROM move_indexes('t', '$to', wait => false)") =~ /(\d+)/;
	$waiter->send("CALL wait_for_move($rolled_back)");
	poll_until($node, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $waiter->pid, 'Extension', 'who waits for it');
	$submitter->run('ROLLBACK');
	$waiter->answer;
	like($waiter->errors, qr/ERROR:  42704: job $rolled_back does not exist/, 'a job that was rolled back: who has waited for it is told');
	$_->end foreach $submitter, $waiter;
}
all_right($node, 't', 'a job that was lost, and resumed', within => 5);

# ---- a worker that never comes ------------------------------------------------
# Its library cannot be loaded, so there is no worker to free the job's slot.  Returns
# what the session answers then.  meanwhile => a function that is called when the
# session has sent the command.
sub without_library
{
	my ($session, $sql, %options) = @_;
	my $log = -s $node->logfile;
	# from 18 on this path is searched for '$libdir/..', too, so the caller gets
	# hold of what it calls before
	$session->run("LOAD '\$libdir/index_mover'");
	$session->run("SELECT count(*) FROM move_indexes('t', '$TARGET', dry_run => true)");
	$node->safe_psql('postgres', "ALTER SYSTEM SET dynamic_library_path = '/nowhere'");
	$node->reload;
	poll_until($node, 'SHOW dynamic_library_path', '/nowhere', 'the new setting');
	kill 'STOP', $node->{_pid} or die "cannot stop the postmaster: $!" if $options{meanwhile};
	$session->send($sql);
	$options{meanwhile}->($log) if $options{meanwhile};
	my $answer = $session->answer;
	$node->wait_for_log(qr/could not access file "index_mover"/, $log);
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET dynamic_library_path');
	$node->reload;
	poll_until($node, 'SHOW dynamic_library_path', '$libdir', 'the old setting');
	return $answer;
}

sub lose_job
{
	my $session = IndexMover::Session->new($node);
	$session->run("LOAD '\$libdir/index_mover'; SET index_mover.test_mutation = 'long-ago:3600000000'");
	my $job = without_library($session, "SELECT max(job) FROM move_indexes('t', '$TARGET', wait => false)");
	die 'job was not queued: ' . $session->errors unless $job;
	$session->end;
	return $job;
}

$TARGET = elsewhere($node, 't_1');
my $never = lose_job();
($stdout, $stderr) = ('', '');
$node->psql('postgres', "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')", stdout => \$stdout, stderr => \$stderr);
is($stdout, 'moved,moved', 'a job whose worker never came does not keep its table') or diag $stderr;
is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM index_mover_history WHERE job = $never"),
	'interrupted,interrupted', 'a job whose worker never came: the history says so');
$TARGET = elsewhere($node, 't_1');
$never = lose_job();
is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM index_mover_history WHERE job = $never"),
	'interrupted,interrupted', 'the history says so, too, before there is another job');
$never = lose_job();
$node->psql('postgres', "SELECT cancel_move($never)", stdout => \$stdout, stderr => \$stderr);
is($stdout, '0', 'it is not there to be canceled');
like($stderr, qr/NOTICE:  job $never is not running/, 'a job that is not there to be canceled: a NOTICE');
$never = lose_job();
$node->psql('postgres', "SET statement_timeout = '60s'; CALL wait_for_move($never)", stderr => \$stderr);
like($stderr, qr/ERROR:  2 of 2 indexes were not moved/, 'nor does a session wait for it without end');
# who asks for a move and waits is told by the end of its worker, however it came about
{
	my $session = IndexMover::Session->new($node);
	my $rows = without_library($session, "SELECT status FROM move_indexes('t', '$TARGET')");
	is($rows, '', 'a waiting call whose worker never came: no rows');
	like($session->errors, qr/^ERROR:  55000: background worker of index_mover did not start or ended early$/m,
		'a waiting call whose worker never came: an error');
	like($session->errors, qr/^HINT:  See the server log for the reason\.$/m, 'a waiting call whose worker never came: where to look');
	is($session->run('SELECT count(*) FROM index_mover_progress'), '0', 'a waiting call whose worker never came: the job is over');
	$session->end;
}
# and so is who is canceled before he has noticed it: both are asleep, the postmaster
# until he waits, and he until the postmaster knows that the worker has ended
{
	my ($session, $observer) = map { IndexMover::Session->new($node) } 1 .. 2;
	my $waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $session->pid;
	my $rows = without_library($session, "SELECT status FROM move_indexes('t', '$TARGET')", meanwhile => sub {
		my ($log) = @_;
		sleep(0.02) until $observer->run($waits) eq 'Extension';
		kill 'STOP', $session->pid or die "cannot stop the caller: $!";
		kill 'CONT', $node->{_pid};
		$node->wait_for_log(qr/background worker "index_mover[^"]*" \(PID \d+\) exited with exit code 1/, $log);
		is($observer->run('SELECT pg_cancel_backend(' . $session->pid . ')'), 't', 'a waiting call whose worker never came is canceled');
		kill 'CONT', $session->pid;
	});
	is($rows, '', 'a waiting call that is canceled: no rows');
	like($session->errors, qr/^ERROR:  57014: canceling statement due to user request$/m, 'a waiting call that is canceled: an error');
	my $from = tablespace_of_index($node, 't');
	is($session->run("SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')"), 'moved,moved',
		'a waiting call that is canceled: its table is free');
	isnt(tablespace_of_index($node, 't'), $from, 'a waiting call that is canceled: its table is moved');
	$TARGET = elsewhere($node, 't_1');
	$_->end foreach $session, $observer;
}
survived_ok($node, 't', 'worker that never came', "SELECT status FROM move_indexes('t', '" . elsewhere($node, 't_1') . "')");
$TARGET = elsewhere($node, 't_1');

# A transaction that queues a job and is then open for long.  The postmaster is
# asleep, so that there is time for others to look before the worker comes.
{
	my ($slow, $other) = map { IndexMover::Session->new($node) } 1 .. 2;
	$node->safe_psql('postgres', 'CREATE TABLE u (i int); CREATE INDEX u_i ON u (i)');
	my $queued = $slow->run(
		"LOAD '\$libdir/index_mover'; SET index_mover.test_mutation = 'long-ago:3600000000'; BEGIN; SELECT max(job) FROM "
			. "move_indexes('t', '$TARGET', wait => false)");
	$slow->run('RESET index_mover.test_mutation');
	kill 'STOP', $node->{_pid} or die "cannot stop the postmaster: $!";
	$slow->send('COMMIT');
	$slow->answer;
	$other->send("BEGIN; SELECT count(*) FROM move_indexes('u', 'regress_fast', wait => false); ROLLBACK");
	$other->answer;
	kill 'CONT', $node->{_pid};
	is($other->errors, '', 'another job is queued before the worker of the first has come');
	$other->run("CALL wait_for_move($queued)");
	is($other->run("SELECT string_agg(status, ',') FROM index_mover_history WHERE job = $queued"), 'moved,moved',
		'a job that was queued long before the commit is done');
	$_->end foreach $slow, $other;
}

# It is not in the way once it is canceled, however long that transaction stays open.
{
	my ($slow, $other) = map { IndexMover::Session->new($node) } 1 .. 2;
	$TARGET = elsewhere($node, 't_1');
	my $queued = $slow->run("BEGIN; SELECT max(job) FROM move_indexes('t', '$TARGET', wait => false)");
	my $move = "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')";
	$other->send($move);
	$other->answer;
	like($other->errors, qr/^DETAIL:  Job $queued is to move it when the transaction of process ${\$slow->pid} commits\.$/m,
		'a job that waits for a commit has its table, and the ERROR says whose');
	is($other->run("SELECT cancel_move($queued)"), '1', 'a job that waits for a commit: it is canceled');
	is($other->run($move), 'moved,moved', 'a job that waits for a commit: the table is free once it is canceled');
	$slow->run('COMMIT');
	$other->send("CALL wait_for_move($queued)");
	$other->answer;
	is($other->run("SELECT string_agg(status, ',') FROM index_mover_history WHERE job = $queued"), 'canceled,canceled',
		'a canceled job whose transaction commits later stays canceled');
	is($other->run("SELECT count(*) FROM pg_class WHERE relname ~ '^t_' AND reltablespace = (SELECT oid FROM pg_tablespace"
			. " WHERE spcname = '$TARGET')"), 2, 'a canceled job whose transaction commits later moves nothing');
	$_->end foreach $slow, $other;
}

# ---- a history that cannot be written --------------------------------------------
# A session has locked it for long: the job ends all the same.
{
	my $session = IndexMover::Session->new($node);
	my $call;
	$TARGET = elsewhere($node, 't_1');
	$node->safe_psql('postgres', "LOAD 'index_mover'; ALTER SYSTEM SET index_mover.test_mutation = 'record-wait:1000'");
	$node->reload;
	$call = held_at($node, 'history-update', "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET', settings => "
		. q['{"max_workers": 1}')]);
	$session->run('BEGIN; LOCK TABLE index_mover.move_log');
	let_go($call);
	(undef, $stdout, $stderr) = finish_call($call);
	is($stdout, "moved,moved\n", 'a history that a session has locked: the job ends');
	like($stderr, qr/WARNING:  55P03: could not record the move of index "public\.t_1"\n/,
		'a history that a session has locked: a WARNING');
	like($stderr, qr/^(?:# )?DETAIL:  could not obtain lock on relation "index_mover\.move_log"/m,
		'a history that a session has locked: the WARNING says why');
	is(scalar(() = $stderr =~ /WARNING:/g), 1, 'a history that a session has locked: one WARNING for all that is not recorded');
	wait_for_no_worker($node);
	$session->run('COMMIT');
	$session->end;
	is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')"), 'skipped,skipped',
		'a history that a session has locked: all are moved');
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET index_mover.test_mutation');
	$node->reload;
}

$TARGET = elsewhere($node, 't_1');
sub move { return "SELECT name, status, sqlstate, detail FROM move_indexes('t', '$TARGET', 'copy', settings => "
	. "'{\"progress_interval\": 0}') ORDER BY 1" }
my $call = held_at($node, 'history-update', move());
$node->safe_psql('postgres', 'DELETE FROM index_mover.move_log');
let_go($call);
(undef, $stdout, $stderr) = finish_call($call);
is($stdout, "t_1|moved||\nt_2|moved||\n", 'the history may be deleted just when it is about to be written');
is($stderr, '', 'a history that is deleted: no WARNING');

$TARGET = elsewhere($node, 't_1');
set_test_point($node, 'history-update:error');
(undef, $stdout, $stderr) = finish_call(start_call($node, 'mover', move()));
is($stdout, "t_1|moved||\nt_2|moved||\n", 'an error of the history does not end the job');
my $not_recorded = qr/WARNING:  XX000: could not record the move of index "public\.(t_\d)"\nDETAIL:  test point "history-update"/;
my @warnings = sort $stderr =~ /$not_recorded/g;
is("@warnings", 't_1 t_1 t_2 t_2', 'an error of the history is told') or diag $stderr;

# The worker is terminated while it records what it has given up.
$TARGET = elsewhere($node, 't_1');
{
	my ($holder, $observer) = map { IndexMover::Session->new($node) } 1 .. 2;
	my $log = -s $node->logfile;
	$holder->run('SELECT pg_advisory_lock(0, 5960)');
	my $late = held_at($node, 'next-item', move() =~ s/": 0/": 0, "max_duration": "1s", "max_workers": 1/r,
		then => 'history-update:2:wait2');
	sleep(1.5);
	let_go($late);
	$node->wait_for_log(qr/test point "history-update": waiting/, $log);
	is($observer->run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'index_mover'"), 't',
		'what is given up is recorded in part');
	finish_call($late);
	$_->end foreach $holder, $observer;
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM index_mover_history
	WHERE job = (SELECT max(job) FROM index_mover_history)"), 'skipped,skipped', 'a worker that is terminated then records the rest');
}

$TARGET = elsewhere($node, 't_1');
set_test_point($node, '');
$node->safe_psql('postgres', 'ALTER TABLE index_mover.mount_point RENAME TO away');
(undef, $stdout, $stderr) = finish_call(start_call($node, 'mover', move()));
$node->safe_psql('postgres', 'ALTER TABLE index_mover.away RENAME TO mount_point');
is($stdout, "t_1|moved||\nt_2|moved||\n", 'nor does one of the noted mount points');
like($stderr, qr/WARNING:  42P01: could not note the mount points of the targets\nDETAIL:  relation "index_mover\.mount_point" /,
	'an error of the noted mount points is told');

$TARGET = elsewhere($node, 't_1');
{
	my $locker = IndexMover::Session->new($node);
	$locker->run('BEGIN; LOCK TABLE index_mover.mount_point');
	my $call = start_call($node, 'mover', move());
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'index_mover.mount_point'::regclass", '1',
		'the noted mount points are locked: the job waits');
	is($node->safe_psql('postgres', 'SELECT cancel_move()'), '1', 'it is canceled');
	(undef, $stdout, $stderr) = finish_call($call);
	is($stdout, join('', map { "t_$_|canceled|57014|the job was canceled\n" } 1, 2), 'locked mount points: the job is canceled, and ends');
	unlike($stderr, qr/mount points/, 'locked mount points: nothing is said of them');
	$locker->end;
}

$TARGET = elsewhere($node, 't_1');
set_test_point($node, 'history-insert:error');
(undef, $stdout, $stderr) = finish_call(start_call($node, 'mover', move()));
is($stdout, join('', map { "t_$_|failed|XX000|test point \"history-insert\"\n" } 1, 2),
	'a job that cannot be recorded moves nothing, and the rows say why') or diag $stderr;

set_test_point($node, 'next-item:error');
(undef, $stdout, $stderr) = finish_call(start_call($node, 'mover', move()));
is($stdout, join('', map { "t_$_|canceled|57P01|background worker was terminated\n" } 1, 2),
	'an error between two moves ends the job');
like($stderr, qr/WARNING:  XX000: background worker of index_mover ended early\nDETAIL:  test point "next-item"/,
	'an error between two moves is told');
set_test_point($node, '');
survived_ok($node, 't', 'history', "SELECT CASE count(*) WHEN 2 THEN 'moved' END FROM move_indexes('t', '$TARGET') WHERE status = 'moved'");

# A worker that is killed or terminated there has moved nothing yet, and left nothing.
$locker->end;
$caller->quit;
foreach my $point (qw(history-insert history-update next-item))
{
	foreach my $action (qw(kill terminate))
	{
		my $name = "$action at $point";
		# there shall be one worker, that of this move
		wait_for_no_worker($node);
		my $from = tablespace_of_index($node, 't');
		my $last = $node->safe_psql('postgres', 'SELECT coalesce(max(job), 0) FROM index_mover_history');
		$TARGET = elsewhere($node, 't_1');
		my $call = held_at($node, $point,
			"SELECT name, status, sqlstate, detail FROM move_indexes('t', '$TARGET', 'copy', settings => '{\"max_workers\": 1}') ORDER "
				. "BY 1");
		my $log = -s $node->logfile;
		if ($action eq 'kill')
		{
			kill('KILL', $call->{worker}) or die "cannot kill $call->{worker}: $!";
		}
		else
		{
			$node->safe_psql('postgres', "SELECT pg_terminate_backend($call->{worker})");
			# what it has to say at its end is said there, too
			if ($point eq 'history-update') { $node->wait_for_log(qr/test point "$point": waiting/, $log) }
			else { poll_process_is_gone($call->{worker}) }
		}
		let_go($call);
		(undef, $stdout, $stderr) = finish_call($call);
		if ($action eq 'kill')
		{
			wait_until_up($node);
			is($node->safe_psql('postgres', "SELECT name, status FROM index_mover_history WHERE job > $last ORDER BY 1"),
				$point eq 'history-insert' ? '' : "t_1|interrupted\nt_2|interrupted", "$name: the history has what was committed");
		}
		else
		{
			is($stdout, join('', map { "t_$_|canceled|57P01|background worker was terminated\n" } 1, 2), "$name: the rows") or diag $stderr;
		}
		is(tablespace_of_index($node, 't'), $from, "$name: where the indexes are");
		survived_ok($node, 't', $name,
			"SELECT CASE count(*) WHEN 2 THEN 'moved' END FROM move_indexes('t', '$TARGET', 'copy') WHERE status = 'moved'",
			max_keys => 100, restarted => 1, count => 'processes of a copy');
	}
}
$locker = IndexMover::Session->new($node);

# ---- the first worker has ended, and the slot is free, before the rows are final ----
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE two (i int, s text);
INSERT INTO two SELECT g, repeat(md5(g::text), 6) FROM generate_series(1, 6000) g;
CREATE INDEX two_s ON two (s) TABLESPACE regress_slow;
CREATE INDEX two_i ON two (i) TABLESPACE regress_slow;
SQL
foreach my $how ('goes on', 'is terminated', 'fails')
{
	my $name = "the last worker $how at its end";
	my $to = elsewhere($node, 'two_s');
	set_tests($node, test_point => 'job-ended:' . ($how eq 'fails' ? 'error' : 'wait'));
	$locker->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover',
		"SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM move_indexes('two', '$to', method => 'copy', "
		  . "settings => '{\"max_rate\": \"1MB\", \"max_workers\": 2}')");
	if ($how ne 'fails')
	{
		$node->wait_for_log(qr/test point "job-ended": waiting/, $log);
		# the caller looks each second
		sleep 2;
		$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'index_mover'")
			if $how eq 'is terminated';
	}
	$locker->run('SELECT pg_advisory_unlock(0, 5959)') unless $how eq 'is terminated';
	my (undef, $rows, $errors) = finish_call($call);
	$locker->run('SELECT pg_advisory_unlock(0, 5959)') if $how eq 'is terminated';
	is($rows, "two_i moved, two_s moved\n", "$name: the rows") or diag $errors;
	my %pids = map { $_ => 1 } slurp_file($node->logfile, $log) =~ /\[(\d+)\].*: moved index "public\.two_/g;
	is(scalar keys %pids, 2, "$name: there were two");
	ok($node->log_contains(qr/test point "job-ended"/, $log), "$name: it came there");
	set_tests($node);
	wait_for_no_worker($node);
}

# ---- terminated while a transaction keeps out writers of the history ----------------
{
	my $to = elsewhere($node, 'two_s');
	my $call = held_at($node, 'copy-half', "SELECT status FROM move_indexes('two_s', '$to', method => 'copy')");
	my $lock = IndexMover::Session->new($node);
	$lock->run('BEGIN; LOCK TABLE index_mover.move_log IN SHARE MODE');
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($call->{worker})");
	my $ended = $node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $call->{worker}");
	ok($ended, 'a worker that is terminated does not wait for who locks the history');
	$lock->run('ROLLBACK');
	$lock->end;
	let_go($call);
	finish_call($call);
	wait_for_no_worker($node);
	leftovers_ok($node, 'terminated beside a locked history', within => 10);
}

# ---- no worker is left to the role for the job that removes leftovers ------------
# A leftover by hand: an invalid index that the ledger names.  The table's other
# index is where it shall be, so that there is nothing else to do.
$node->safe_psql('postgres', <<'SQL');
CREATE INDEX u_left ON u (i);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'u_left'::regclass;
INSERT INTO index_mover.ledger
SELECT nextval('index_mover.ledger_seq'), system_identifier, d.oid, 'i', 0, 0, 'u'::regclass, 'u_i'::regclass, 'u_left'::regclass, 999999,
  0, now(), 'u_left'
  FROM pg_control_system(), pg_database d WHERE datname = current_database();
DO $$ BEGIN
	FOR i IN 1..4 LOOP
		EXECUTE format('CREATE TABLE many_%s (i int); CREATE INDEX many_%s_i ON many_%s (i)', i, i, i);
	END LOOP;
END $$;
SQL
$locker->run("BEGIN; SELECT count(*) FROM generate_series(1, 4) g, move_indexes(('many_' || g)::regclass, 'regress_fast', wait => false)");
for my $wait ('true', 'false')
{
	my $rc = $node->psql('postgres', "SELECT status FROM move_indexes('u_i', 'pg_default', wait => $wait)", stdout => \$stdout,
		stderr => \$stderr);
	is("$rc $stdout", '0 skipped', "no slot for a cleanup, wait => $wait: the call ends well");
	like($stderr, qr/^psql:<stdin>:1: WARNING:  could not start a job to remove what interrupted moves have left$/m,
		'no slot for a cleanup: a WARNING');
}
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'u_left'"), '1', 'what is left stays');
$locker->run('ROLLBACK');
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('u_i', 'pg_default')"), 'skipped', 'the next call');
leftovers_ok($node, 'the next call', within => 5);
files_ok($node, 'the next call');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname = 'u_left'"), '0', 'the next call removes what was left');

# Of all jobs above, whoever was the last of them to find the rows final.
{
	my $log = slurp_file($node->logfile);
	my %times;
	$times{$1}++ while $log =~ /\bjob (\d+)\b[^:]*: has ended, /g;
	cmp_ok(scalar keys %times, '>', 10, 'jobs have told that they have ended');
	is(join(' ', grep { $times{$_} > 1 } sort keys %times), '', 'jobs have told once that they have ended');
}

$locker->end;

# ---- ALTER ... SET TABLESPACE, before its job, and as that has just moved the table ------
{
	my ($holder, $caller) = map { IndexMover::Session->new($node) } 1 .. 2;
	$node->safe_psql('postgres', 'CREATE TABLE altered (i int) TABLESPACE regress_slow');
	$caller->run("LOAD 'index_mover'; SET index_mover.online_alter = on");
	foreach my $case (
		[ 'alter-job-ended', 'SET TABLESPACE regress_slow', 'altered', 'regress_slow',
			'55006: relation "altered" was moved to another tablespace in the meantime' ],
		[ 'alter-named', 'RENAME TO changed', 'changed', 'regress_slow', '42P01: relation "altered" does not exist' ],
		[ 'alter-job-ended', 'RENAME TO changed', 'changed', 'regress_fast', undef ])
	{
		my ($point, $change, $table, $place, $error) = @$case;
		my $log = -s $node->logfile;

		$holder->run('SELECT pg_advisory_lock(0, 5959)');
		$caller->run("SET index_mover.test_point = '$point:wait'");
		$caller->send('ALTER TABLE altered SET TABLESPACE regress_fast');
		$node->wait_for_log(qr/test point "$point": waiting/, $log);
		$node->safe_psql('postgres', "ALTER TABLE altered $change");
		$holder->run('SELECT pg_advisory_unlock(0, 5959)');
		$caller->answer;
		my ($said) = $caller->errors =~ /^ERROR:  (.*)/m;
		is($said, $error, "ALTER, $change at $point: the error");
		unlike($caller->errors, qr/WARNING/, "ALTER, $change at $point: no move stays");
		is($node->safe_psql('postgres', "SELECT spcname FROM pg_tablespace s JOIN pg_class c ON c.reltablespace = s.oid
			WHERE relname = '$table'"), $place, "ALTER, $change at $point: where it is");
		$node->safe_psql('postgres', 'ALTER TABLE changed RENAME TO altered') if $table eq 'changed';
	}
	# ALL: core gets what was left to it, and nothing that is in the tablespace since
	my $places = q(SELECT string_agg(relname || ' ' || coalesce(spcname, 'pg_default'), ', ' ORDER BY relname) FROM pg_class c
		LEFT JOIN pg_tablespace s ON s.oid = reltablespace WHERE relname IN ('altered', 'core_1', 'core_2', 'later'));
	$node->safe_psql('postgres', 'CREATE ROLE regress_all; GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_all;
		GRANT CREATE ON SCHEMA public TO regress_all; DROP TABLE altered');
	foreach my $case (
		[ 'a table that is moved back', 'ALTER TABLE altered SET TABLESPACE regress_slow',
			'55006: relation "altered" was moved to another tablespace in the meantime',
			'altered regress_slow, core_1 regress_slow, core_2 regress_slow' ],
		[ 'a new table', 'CREATE TABLE later (i int) TABLESPACE regress_slow', undef,
			'altered regress_fast, core_1 regress_fast, core_2 regress_fast, later regress_slow' ],
		[ 'one for core that is moved elsewhere', 'ALTER TABLE core_1 SET TABLESPACE pg_default', undef,
			'altered regress_fast, core_1 pg_default, core_2 regress_fast' ],
		[ 'one for core that is dropped', 'DROP TABLE core_1', undef, 'altered regress_fast, core_2 regress_fast' ],
		[ 'one for core that is being dropped', 'BEGIN; DROP TABLE core_1', undef, 'altered regress_fast, core_2 regress_fast' ],
		[ 'one for core whose owner changes', 'ALTER TABLE core_1 OWNER TO postgres', undef,
			'altered regress_fast, core_1 regress_slow, core_2 regress_fast' ])
	{
		my ($name, $change, $error, $after) = @$case;
		my $other = IndexMover::Session->new($node);
		my $log = -s $node->logfile;

		$node->safe_psql('postgres', 'SET ROLE regress_all; CREATE TABLE altered (i int) TABLESPACE regress_slow;
			CREATE TABLE stays (i int) TABLESPACE regress_slow;
			CREATE UNLOGGED TABLE core_1 (i int) TABLESPACE regress_slow; CREATE UNLOGGED TABLE core_2 (i int) TABLESPACE regress_slow');
		$holder->run('SELECT pg_advisory_lock(0, 5959)');
		$caller->run("SET index_mover.test_point = 'alter-job-ended:wait'");
		$caller->send('ALTER TABLE ALL IN TABLESPACE regress_slow OWNED BY regress_all SET TABLESPACE regress_fast');
		$node->wait_for_log(qr/test point "alter-job-ended": waiting/, $log);
		$other->run('SET ROLE regress_all') if $change =~ /^CREATE/;
		$other->run($change);
		$holder->run('SELECT pg_advisory_unlock(0, 5959)');
		if ($change =~ /^BEGIN/)
		{
			poll_until($node, 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $caller->pid, 1, "ALTER ALL, $name: the lock");
			$other->run('COMMIT');
		}
		$caller->answer;
		my ($said) = $caller->errors =~ /^ERROR:  (.*)/m;
		is($said, $error, "ALTER ALL, $name: the error");
		like($caller->errors, qr/WARNING:  .*job \d+ has moved 1 of 2 relations$/m, "ALTER ALL, $name: which moves stay") if $error;
		is($node->safe_psql('postgres', $places), $after, "ALTER ALL, $name: where all are");
		$node->safe_psql('postgres', 'DROP TABLE IF EXISTS altered, stays, core_1, core_2, later');
		$other->end;
	}
	$node->safe_psql('postgres', 'DROP OWNED BY regress_all; DROP ROLE regress_all');
	$_->end foreach $holder, $caller;
}

# ---- a job that ends while it is canceled ----------------------------------------------
# cancel_move() acknowledges a job that had ended before, and no other.
{
	$node->safe_psql('postgres', 'CREATE TABLE raced AS SELECT generate_series(1, 50000) i; CREATE INDEX raced_i ON raced (i)');
	my $job = begin_job($node, 'raced_i', 'regress_fast', max_rate => '64kB');
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'max_rate', 'a copy that takes its time');
	my $holder = IndexMover::Session->new($node);
	$holder->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $canceler = IndexMover::Session->new($node);
	$canceler->run("LOAD 'index_mover'; SET index_mover.test_point = 'job-found:wait'");
	$canceler->send("SELECT cancel_move($job)");
	$node->wait_for_log(qr/test point "job-found": waiting/, $log);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM index_mover_progress WHERE job = $job");
	wait_for_no_worker($node);
	$holder->run('SELECT pg_advisory_unlock(0, 5959)');
	is($canceler->answer, '0', 'a job that ends while it is canceled');
	like($canceler->errors, qr/NOTICE: .*job $job is not running/, 'a job that ends while it is canceled: a NOTICE');
	my $check = "SELECT count(*) FROM index_mover_check() WHERE kind = 'ended job' AND object = 'job $job'";
	is($node->safe_psql('postgres', $check), 1, 'a job that ends while it is canceled: it is still reported');
	is($canceler->run("RESET index_mover.test_point; SELECT cancel_move($job)"), '0', 'canceled again');
	is($node->safe_psql('postgres', $check), 0, 'a job that is canceled again after its end is acknowledged');

	# resumed: what it has left goes on, and its row keeps its end
	$job = begin_job($node, 'raced_i', 'regress_fast', max_rate => '64kB');
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'max_rate', 'a copy that takes its time');
	$holder->run('SELECT pg_advisory_lock(0, 5959)');
	$log = -s $node->logfile;
	$canceler->run("SET index_mover.test_point = 'job-found:wait'");
	$canceler->send("SELECT resume_move($job, '{\"max_rate\": \"0\"}')");
	$node->wait_for_log(qr/test point "job-found": waiting/, $log);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM index_mover_progress WHERE job = $job");
	wait_for_no_worker($node);
	$holder->run('SELECT pg_advisory_unlock(0, 5959)');
	my $rest = $canceler->answer;
	cmp_ok($rest, '>', $job, 'what a job has left that ends while it is resumed is another job');
	$canceler->run('RESET index_mover.test_point');
	wait_for_job_end($node, $rest);
	is($node->safe_psql('postgres', "SELECT string_agg(status, ' ' ORDER BY job) FROM index_mover_history WHERE job IN ($job, $rest)"),
		'canceled moved', 'what the job had left is moved by another job');
	$_->end foreach $holder, $canceler;
	$node->safe_psql('postgres', 'DROP TABLE raced');
}

# ---- a library that was replaced while the server runs ---------------------------------
# What processes share has another form in the new one: its number says so before anything
# of that is read (layout:1 is a library with that number).
{
	my $replaced = joined(qr/ERROR:  55000: the library of index_mover was replaced while the server runs\n/,
		qr/DETAIL:  Two versions of it are in use, and what they share is not the same \(\d+ and \d+\)\.\nHINT:  Restart the server\./);
	my $call = "SELECT status FROM move_indexes('u_i', 'regress_fast', dry_run => false)";
	my $layout = "LOAD 'index_mover'; SET index_mover.test_mutation = 'layout:1'";
	sub other_library_ok
	{
		my ($session, $sql, $name) = @_;
		$session->send($sql);
		is($session->answer, '', "$name: no rows");
		like($session->errors, $replaced, "$name: what happened, and what helps");
		return;
	}

	# the area is made by the session's library
	$node->restart;
	my $old = IndexMover::Session->new($node);
	$old->run($layout);
	my $lines = -s $node->logfile;
	other_library_ok($old, $call, 'an old session and its new worker');
	like(slurp_file($node->logfile, $lines), qr/the library of index_mover was replaced/, 'which says so in the server log');
	other_library_ok($old, "SELECT job FROM move_indexes('u_i', 'regress_fast', wait => false)", 'the next job, without a wait');
	my $new = IndexMover::Session->new($node);
	other_library_ok($new, $call, 'a new session');
	other_library_ok($new, 'SELECT job FROM index_mover_progress', 'a view');

	# the old package comes back: another file, and workers of the session's library
	chomp(my $library = `pg_config --pkglibdir`);
	$library .= '/index_mover.so';
	set_tests($node, test_mutation => 'layout:1');
	other_library_ok($old, $call, 'as long as the file is the one that was refused');
	chmod 0755, $library or die "$library: $!";
	is($old->run($call), 'moved', 'once the old library is back, its sessions move');
	is($old->run($call =~ s/regress_fast/pg_default/r), 'moved', 'once the old library is back, its sessions move back');
	set_tests($node);
	other_library_ok($old, $call, 'the new library once more');
	$_->end foreach $old, $new;

	# the reverse: an area that is of the worker's library
	$node->restart;
	$new = IndexMover::Session->new($node);
	is($new->run($call), 'moved', 'after a restart all is well');
	$new->end;
	$new = IndexMover::Session->new($node);
	$new->run($layout);
	other_library_ok($new, $call, 'a new session beside the old ones');
	$new->end;
	all_right($node, 't', 'libraries that were replaced', within => 5);
}
done_testing();
