# index_mover.resume_at_start: jobs that a stop or a crash of the server has ended go on, in order,
# as their roles, and once.  Not what a user has ended, nor an error, and nothing on another
# server: a standby, a base backup, a copy of the data directory.
#
# Fault (processes): the server is stopped, its postmaster killed, or a process of it, while jobs run, and again
#   while they go on; a job is canceled, paused or terminated before; its role lacks a privilege by then
# Fault (replication): the primary is stopped in mid-copy: the standby is promoted; a base backup, and a copy of the
#   data directory, are started
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(rmtree);
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my ($version) = `pg_config --version` =~ /PostgreSQL (\d+)/;
my $summarizes = $version >= 17 ? "summarize_wal = on\n" : '';
my $node = new_node('restart', streaming => 1, conf => $summarizes . <<CONF);
shared_preload_libraries = 'index_mover'
index_mover.resumable_size = 1MB
index_mover.max_workers = 1
log_min_messages = debug1
CONF
sub value { return $node->safe_psql('postgres', $_[0]); }
value(<<'SQL');
CREATE ROLE mover;
CREATE ROLE other IN ROLE mover;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO mover;
CREATE SCHEMA AUTHORIZATION mover;
GRANT EXECUTE ON FUNCTION move_indexes, resume_move, cancel_move TO mover;
SET ROLE mover;
CREATE TABLE mover.t (i int, j int, pad text) WITH (autovacuum_enabled = off);
INSERT INTO mover.t SELECT g, g, repeat('x', 100) FROM generate_series(1, 30000) g;
CREATE INDEX t_i ON mover.t (i) TABLESPACE regress_slow;
CREATE INDEX t_j ON mover.t (j) TABLESPACE regress_slow;
RESET ROLE;
CREATE TABLE u AS TABLE mover.t;
CREATE INDEX u_i ON u (i) TABLESPACE regress_slow;
SQL

# Begin a job of mover, or of a superuser, that copies for a minute and more; returns its number.
sub begin
{
	my ($table, %settings) = @_;
	my $name = delete $settings{role} // ($table eq 'u' ? 'none' : 'mover');
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	value("ALTER INDEX ${table}_i SET TABLESPACE regress_slow");
	my $job = value("SET ROLE $name; SELECT max(job) FROM move_indexes('$table', 'regress_fast', 'copy', wait => false, "
			. "settings => '{\"max_rate\": \"8kB\"" . ($json && ", $json") . "}')");
	copies($job);
	return $job;
}
sub copies
{
	my ($job, $on) = @_;
	my $query = "SELECT count(*) FROM index_mover_progress WHERE job = $job AND throttled_by = 'max_rate'";
	return poll_until($on // $node, $query, 1, "job $job");
}
sub finish
{
	foreach my $job (@_)
	{
		value("SELECT alter_move($job, 'max_rate', '0')");
		wait_for_job_end($node, $job);
		is(value("SELECT string_agg(DISTINCT status, ' ') FROM index_mover_history WHERE job = $job"), 'moved',
			"job $job moves all that was left");
	}
	wait_for_no_worker($node);
	return;
}

# The files that name jobs.
sub files
{
	my ($on) = @_;
	return join ' ', sort { $a <=> $b } map { /job\.\d+\.(\d+)$/ } glob(($on // $node)->data_dir . '/index_mover.job.*');
}

# What the server log says from here on of jobs that go on, or do not.
my $log = 0;
sub told
{
	my ($on) = @_;
	my $text = slurp_file(($on // $node)->logfile, $log);
	return join ', ', $text =~ /LOG: .*?(job \d+ \(postgres\): (?:goes on as job \d+|does not go on) after the start of the server)/g;
}

# The launcher has begun its work since then: it has read the files before the first cleanup.
sub launched { my ($on) = @_; return $on->wait_for_log(qr/unregistering background worker "index_mover cleanup"/, $log); }
sub start { $log = -s $node->logfile; return $node->start; }
sub kill_postmaster
{
	$node->kill9;
	$log = -s $node->logfile;
	# its processes end by and by
	for (1 .. 200)
	{
		return if $node->start(fail_ok => 1);
		$node->{_pid} = undef;
		select undef, undef, undef, 0.1;
	}
	die 'the server does not start';
}
sub goes_on_ok
{
	my ($name, %jobs) = @_;
	my $last = (sort { $a <=> $b } values %jobs)[-1];
	poll_until($node, "SELECT count(*) FROM index_mover_jobs WHERE job = $last", 1, $name);
	poll_until($node, 'SELECT ' . (join ' + ', map { "(SELECT count(*) FROM index_mover_progress WHERE job = $_)" } values %jobs),
		scalar keys %jobs, $name);
	my @lines = map { "job $_ (postgres): goes on as job $jobs{$_} after the start of the server" } sort { $a <=> $b } keys %jobs;
	is(told(), join(', ', @lines), "$name: go on, in order");
	return;
}

# No job goes on.
sub stays_ok
{
	my ($name, $on) = @_;
	$on //= $node;
	launched($on);
	wait_for_no_worker($on);
	is(told($on), '', "$name: nothing goes on");
	is($on->safe_psql('postgres', 'SELECT max(job) FROM index_mover_jobs'), $main::newest, "$name: no job is new");
	is(files($on), '', "$name: no file is left");
	return;
}
our $newest;
# Why a job does not go on, says the launcher.
sub reason_ok
{
	my ($job, $reason, $name, $on) = @_;
	return like(slurp_file(($on // $node)->logfile, $log),
		qr/LOG: .*job $job of database \d+ does not go on after the start of the server\n.*DETAIL:  $reason/, "$name: the log says why");
}
sub ended_ok
{
	my ($job, $name) = @_;
	return is(value("SELECT count(*) FROM index_mover_check('0 s') WHERE kind = 'ended job' AND object = 'job $job'"), 1,
		"$name: index_mover_check() says so");
}

# ---- off -----------------------------------------------------------------------------------
my $t = $newest = begin('mover.t');
is(files(), '', 'off: no file is written');
$node->stop;
start();
stays_ok('off');
ended_ok($t, 'off');

# ---- a fast stop; a second one; then a crash ------------------------------------------------
$node->append_conf('postgresql.conf', 'index_mover.resume_at_start = on');
$node->reload;
poll_until($node, 'SHOW index_mover.resume_at_start', 'on', 'the setting');
($t, my $u) = (begin('mover.t'), begin('u'));
is(files(), "$t $u", 'a file names each job that runs');
$node->stop;
is(files(), "$t $u", 'also when the server has stopped');
start();
goes_on_ok('stopped', $t => $u + 1, $u => $u + 2);
($t, $u) = ($u + 1, $u + 2);
is(value("SELECT string_agg(role::text, ' ' ORDER BY job) FROM index_mover_jobs WHERE job IN ($t, $u)"),
	'mover ' . value('SELECT CURRENT_USER'), 'as their roles');
like(value("SELECT settings FROM index_mover.job_log WHERE job = $t"), qr/"max_rate": "?8kB/, 'with their settings');
$node->restart;
$log = 0;
copies($u + 1);
copies($u + 2);
($t, $u) = ($u + 1, $u + 2);
ok(1, 'stopped again: they go on again');
$newest = $u;
$node->stop('immediate');
start();
stays_ok('a crash of what had gone on');
reason_ok($t, 'It had gone on before, and the server has crashed since\.', 'a crash of what had gone on');
ended_ok($t, 'a crash of what had gone on');
value("SELECT cancel_move($_)") foreach $t, $u;

# ---- all its settings: those that a superuser has given it, the time of day in its zone -------------
{
	local $ENV{PGOPTIONS} = '-c TimeZone=Asia/Tokyo';
	$t = begin('mover.t', swap_after => '02:00');
}
value("SELECT alter_move($t, name, value) FROM (VALUES ('max_replica_lag', '64MB'), ('lock_timeout', '50ms')) v(name, value)");
my $settings = value("SELECT settings FROM index_mover_jobs WHERE job = $t");
like($settings, qr/"swap_after": "02:00 Asia\/Tokyo"/, 'a time of day is on record with its zone');
value(q[ALTER ROLE CURRENT_USER SET index_mover.on_blocker = 'terminate']);
$node->stop;
start();
goes_on_ok('settings', $t => $t + 1);
is(value("SELECT settings FROM index_mover_jobs WHERE job = $t + 1"), $settings, 'as the job that it goes on with');
value(q[ALTER ROLE CURRENT_USER RESET index_mover.on_blocker]);
value("SELECT cancel_move($t + 1)");
wait_for_job_end($node, $t + 1);

# ---- a postmaster is killed; a job that had an error ----------------------------------------
$t = begin('mover.t');
kill_postmaster();
goes_on_ok('postmaster killed', $t => $t + 1);
finish($t + 1);
is(files(), '', 'a job that has ended has no file');

# its copy goes on, too, where a server can tell what has changed since
SKIP:
{
	skip 'WAL summaries came with PostgreSQL 17', 3 unless $summarizes;
	value('CREATE TABLE big AS SELECT generate_series(1, 200000) AS i; CREATE INDEX big_i ON big (i) TABLESPACE regress_slow');
	my $job = value("SELECT max(job) FROM move_indexes('big', 'regress_fast', 'copy', wait => false, "
			. q[settings => '{"max_rate": "1MB"}')]);
	poll_until($node, 'SELECT max(copied_blocks) > 128 FROM index_mover.ledger', 't', 'a copy that has recorded how far it is');
	kill_postmaster();
	goes_on_ok('a large copy', $job => $job + 1);
	finish($job + 1);
	like(value("SELECT message FROM index_mover_history WHERE job = $job + 1"), qr/went on where job $job had ended/,
		'the copy does not begin again');
	value('DROP TABLE big');
}

# ---- a crash while a job is taken up ----------------------------------------------------------
set_test_point($node, 'job-taken:kill');
$u = $newest = begin('u');
$node->stop;
$log = -s $node->logfile;
$node->start(fail_ok => 1);
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
wait_until_up($node);
slurp_file($node->logfile, $log) =~ /all server processes terminated; reinitializing/;
$log += $-[0];
stays_ok('a crash when the file is gone');
set_test_point($node, '');
ended_ok($u, 'a crash when the file is gone');

# ---- a process is killed: the server was not stopped -----------------------------------------
$log = -s $node->logfile;
$t = value("SELECT resume_move($u)");
copies($t);
kill 9, value("SELECT pid FROM index_mover_progress WHERE job = $t");
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
wait_until_up($node);
goes_on_ok('a killed process', $t => $t + 1);
value("SELECT cancel_move($t + 1)");
wait_for_job_end($node, $t + 1);

# ---- what an error has ended ------------------------------------------------------------------
value('ALTER INDEX mover.t_j SET TABLESPACE regress_slow');
$t = begin('mover.t');
$node->stop('immediate');
$node->append_conf('postgresql.conf', 'index_mover.resume_at_start = off');
start();
launched($node);
is(files(), '', 'off again: the file is gone');
reason_ok($t, 'index_mover\.resume_at_start is off\.', 'off again');
$node->append_conf('postgresql.conf', 'index_mover.resume_at_start = on');
$node->restart;
$t = value("SET ROLE mover; SELECT resume_move($t)");
copies($t);
value("UPDATE index_mover.move_log SET status = 'failed' WHERE job = $t AND relation_name = 't_j'");
$node->stop('immediate');
start();
goes_on_ok('beside an error', $t => $t + 1);
is(value("SELECT string_agg(name, ' ') FROM index_mover_history WHERE job = $t + 1"), 'mover.t_i', 'what has failed does not go on');
value("SELECT cancel_move($t + 1); SELECT cancel_move($t)");
wait_for_job_end($node, $t + 1);

# one of its relations cannot be moved any more
$t = begin('mover.t');
value("UPDATE index_mover.move_log SET to_tablespace_oid = 1 WHERE job = $t AND relation_name = 't_j'");
$node->stop('immediate');
start();
goes_on_ok('one of two', $t => $t + 1);
like(slurp_file($node->logfile, $log), joined(
	qr/LOG: .*job $t \(postgres\): not all relations go on after the start of the server\n/,
	qr/.*DETAIL:  index "mover\.t_j": Tablespace "regress_fast" does not exist any more/), 'one of two: which does not');
ended_ok($t, 'one of two');
value("SELECT cancel_move($t + 1); SELECT cancel_move($t)");
wait_for_job_end($node, $t + 1);

# ---- more jobs than there are workers for -----------------------------------------------------
($t, $u) = (begin('mover.t'), begin('u'));
$node->stop;
$node->append_conf('postgresql.conf', 'max_worker_processes = 4');
start();
$node->wait_for_log(qr/job (?:$t|$u) of database "[a-z]\w*" has to wait for a free background worker slot before it goes on/, $log);
poll_until($node, 'SELECT count(*) FROM index_mover_progress', 1, 'one of two jobs');
# of two roles; a cleanup may have had the slots when the first one was to go on
my ($first, $first_rest) = told() =~ /job (\d+) \(postgres\): goes on as job (\d+)/;
my $second = $first == $t ? $u : $t;
unlike(told(), qr/job $second /, 'one job waits');
like(files(), qr/\b$second\b/, 'and has its file');
value("SELECT cancel_move($first_rest)");
$node->wait_for_log(qr/job $second \(postgres\): goes on as job/, $log);
like(told(), qr/job $first .*job $second /, 'the other one goes on when there is a worker');
is(files(), value('SELECT max(job) FROM index_mover_jobs'), 'then only the new file is there');
value('SELECT cancel_move()');
wait_for_no_worker($node);
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;

# as many go on as a role can have
value(<<"SQL") foreach 2, 3;
SET ROLE mover;
CREATE TABLE mover.t$_ AS TABLE mover.t;
CREATE INDEX t$_\_i ON mover.t$_ (i) TABLESPACE regress_slow;
SQL
my @jobs = map { begin("mover.t$_") } '', 2, 3;
$node->stop;
start();
# one that has to wait for a slot, beside the server's first cleanups, may have drawn a number in vain
$node->wait_for_log(qr/job $jobs[2] \(postgres\): goes on as job/, $log);
my @rests = told() =~ /goes on as job (\d+)/g;
is(@rests, 3, 'three of a role');
goes_on_ok('three of a role', map { $jobs[$_] => $rests[$_] } 0 .. 2);
value('SELECT cancel_move()');
wait_for_no_worker($node);

# ---- while a job is taken up: a stop, users, and the end of the setting -------------------------
sub start_held
{
	start();
	return $node->wait_for_log(qr/test point "job-taken": waiting/, $log);
}
@jobs = map { begin($_) } 'mover.t', 'mover.t2', 'mover.t3', 'u';
$newest = $jobs[3];
set_test_point($node, 'job-taken:wait');
value(q[BEGIN; SELECT pg_advisory_xact_lock(0, 5959); PREPARE TRANSACTION 'holder']);
$node->stop;
start_held();
$node->stop;
is(files(), "@jobs", 'a stop while a job is taken up: it has its file');
start_held();
value("SELECT cancel_move($jobs[0])");
is(files(), "@jobs[1 .. 3]", 'canceled while it is taken up');
value("SELECT pause_move($jobs[1])");
is(files(), "@jobs[2 .. 3]", 'paused before it is taken up');
value('SET ROLE mover; SELECT cancel_move()');
is(files(), $jobs[3], 'all canceled that the role may control');
$node->append_conf('postgresql.conf', 'index_mover.resume_at_start = off');
$node->reload;
poll_until($node, 'SHOW index_mover.resume_at_start', 'off', 'the setting');
set_test_point($node, '');
value(q[ROLLBACK PREPARED 'holder']);
poll_until($node, "SELECT count(*) FROM pg_ls_dir('.') name WHERE name ~ '^index_mover\\.job\\.'", 0, 'no file');
stays_ok('steered while they are taken up');
$node->append_conf('postgresql.conf', 'index_mover.resume_at_start = on');
$node->reload;

# what users take up, or move back, does not go on; but it does if they have tried so in vain
sub stop_and_hold
{
	set_test_point($node, 'job-taken:wait');
	value(q[BEGIN; SELECT pg_advisory_xact_lock(0, 5959); PREPARE TRANSACTION 'holder']);
	$node->stop;
	return start_held();
}
sub let_resume
{
	set_test_point($node, '');
	return value(q[ROLLBACK PREPARED 'holder']);
}
@jobs = map { begin($_) } 'mover.t', 'u';
stop_and_hold();
value("BEGIN; SELECT $_; ROLLBACK") foreach "resume_move($jobs[0])", "undo_move($jobs[0], wait => false)";
isnt($node->psql('postgres', "SELECT undo_move($jobs[0], settings => '{\"max_rate\": \"fast\"}')"), 0, 'a call with an error');
value('REVOKE CREATE ON TABLESPACE regress_fast FROM mover');
is(value("SET ROLE mover; SELECT resume_move($jobs[0])"), '', 'a role that may not resume a job');
value('GRANT CREATE ON TABLESPACE regress_fast TO mover');
is(files(), "@jobs", 'taken up in vain: the jobs are to go on');
$t = value("SET ROLE mover; SELECT resume_move($jobs[0])");
copies($t);
is(files(), "$jobs[1] $t", 'resumed before it is taken up');
value("SELECT count(*) FROM undo_move($jobs[1])");
is(files(), $t, 'undone before it is taken up');
let_resume();
$node->wait_for_log(qr/unregistering background worker "index_mover resumption"/, $log);
value("SELECT cancel_move($t)");
wait_for_no_worker($node);
is(told(), '', 'taken up by users: nothing else goes on');

# ---- jobs that are hindered again and again starve no other ---------------------------------
value('CREATE DATABASE d1');
$node->safe_psql('d1', <<'SQL');
CREATE EXTENSION index_mover;
CREATE TABLE t WITH (autovacuum_enabled = off) AS SELECT i FROM generate_series(1, 30000) i;
CREATE INDEX t_i ON t (i) TABLESPACE regress_slow;
SQL
value("CREATE DATABASE $_ TEMPLATE d1") foreach qw(d2 d3);
foreach my $database (qw(d1 d2 d3))
{
	$node->safe_psql($database,
		q[SELECT FROM move_indexes('t', 'regress_fast', 'copy', wait => false, settings => '{"max_rate": "8kB"}')]);
	$node->poll_query_until($database, "SELECT throttled_by = 'max_rate' FROM index_mover_progress") or die $database;
	$node->safe_psql($database, "BEGIN; LOCK TABLE index_mover.job_log; PREPARE TRANSACTION '$database'") if $database ne 'd3';
}
$node->stop;
start();
$node->wait_for_log(qr/job 1 \(d3\): goes on as job/, $log);
my $said = slurp_file($node->logfile, $log);
like($said, qr/job 1 \($_\): does not go on yet/, "$_ is hindered") foreach qw(d1 d2);
unlike($said, qr/does not go on after/, 'and not given up, when another job goes on');
foreach my $database (qw(d1 d2))
{
	$node->safe_psql($database, "ROLLBACK PREPARED '$database'");
	$node->wait_for_log(qr/job 1 \($database\): goes on as job/, $log);
}
$node->safe_psql($_, 'SELECT cancel_move()') foreach qw(d1 d2 d3);
wait_for_no_worker($node);
value("DROP DATABASE $_") foreach qw(d1 d2 d3);

# a worker that ends early is no reason to give the job up
$t = begin('mover.t');
set_test_point($node, 'job-taken:1:error');
$node->stop;
start();
$node->wait_for_log(qr/ERROR: .*test point "job-taken"/, $log);
set_test_point($node, '');
goes_on_ok('after an early end', $t => $t + 1);
value('SELECT cancel_move()');
wait_for_no_worker($node);

# ---- what users have ended ------------------------------------------------------------------
# Of each job: what is done to it, and whether it goes on.
sub end_by
{
	my ($name, $how, $on, @options) = @_;
	my $job = $newest = begin('mover.t', @options);
	$how->($job);
	$node->stop('immediate');
	start();
	stays_ok($name) unless $on;
	reason_ok($job, 'It was paused\.', $name) if $name eq 'paused';
	return unless $on;
	goes_on_ok($name, $job => $job + 1);
	value("SELECT cancel_move($job + 1)");
	wait_for_job_end($node, $job + 1);
	return;
}
my $pause = sub { my ($job) = @_; value("SELECT pause_move($job)") };
end_by('canceled', sub { my ($job) = @_; value("SELECT cancel_move($job)") });
end_by('canceled, to go on', sub { my ($job) = @_; value("SELECT cancel_move($job, keep => true)") });
end_by('paused', $pause);
end_by('paused, and resumed', sub { my ($job) = @_; $pause->($job); value("SELECT resume_move($job)"); copies($job) }, 1);
# paused before it begins, and resumed just when its worker notes that
{
	my $session = IndexMover::Session->new($node);
	my $from = -s $node->logfile;
	value('ALTER INDEX mover.t_i SET TABLESPACE regress_slow');
	my $job = $session->run("BEGIN; SELECT max(job) FROM move_indexes('mover.t', 'regress_fast', 'copy', wait => false, "
		. q[settings => '{"max_rate": "8kB"}')]);
	$session->run("SELECT pause_move($job)");
	set_test_point($node, 'note-pause:wait');
	my $holder = IndexMover::Session->new($node);
	$holder->run('SELECT pg_advisory_lock(0, 5959)');
	$session->run('COMMIT');
	$node->wait_for_log(qr/test point "note-pause": waiting/, $from);
	set_test_point($node, '');
	# or the session would stand still there, too
	select(undef, undef, undef, 0.02) while $session->run('SHOW index_mover.test_point') ne '';
	$session->run("SELECT resume_move($job)");
	$_->end foreach $holder, $session;
	copies($job);
	my ($file) = glob($node->data_dir . "/index_mover.job.*.$job");
	like(slurp_file($file), qr/ paused 0$/m, 'resumed while its worker notes that it is paused: it is on file');
	value("SELECT cancel_move($job)");
	wait_for_job_end($node, $job);
}
end_by('terminated', sub {
	my ($job) = @_;
	value("SELECT pg_terminate_backend(pid) FROM index_mover_progress WHERE job = $job");
	wait_for_job_end($node, $job);
	is(files(), '', 'a job whose worker was terminated has no file');
});
end_by('canceled by the owner of its table',
	sub { my ($job) = @_; value("SET ROLE mover; SELECT cancel_move($job)") }, 0, role => 'other');
# a client is still there, and the server, which is to stop, waits for it and for the job
{
	my $job = $newest = begin('mover.t');
	my $session = IndexMover::Session->new($node);
	$log = -s $node->logfile;
	PostgreSQL::Test::Utils::system_or_bail('pg_ctl', '-D', $node->data_dir, '-m', 'smart', '--no-wait', 'stop');
	$node->wait_for_log(qr/received smart shutdown request/, $log);
	$session->run("SELECT pg_cancel_backend(pid) FROM index_mover_progress WHERE job = $job");
	for (1 .. 1000)
	{
		last if $session->run("SELECT count(*) FROM index_mover_jobs WHERE job = $job AND status = 'canceled'");
		select undef, undef, undef, 0.1;
	}
	is(files(), '', 'canceled during a smart shutdown: no file is left');
	$session->end;
	$node->wait_for_log(qr/database system is shut down/, $log);
	$node->{_pid} = undef;
	start();
	stays_ok('canceled during a smart shutdown');
}
# a call that waits: its client is told, and may call again
{
	my $call = start_call($node, 'waits', q[SELECT FROM move_indexes('u', 'regress_fast', 'copy', settings => '{"max_rate": "8kB"}')]);
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE throttled_by = 'max_rate'", 1, 'a call that waits');
	is(files(), '', 'a job for which a session waits has no file');
	$newest = value('SELECT max(job) FROM index_mover_jobs');
	$node->stop;
	finish_call($call);
	start();
	stays_ok('a call that waits');
}

# ---- what the role may not any more, and the time that is over ------------------------------------
foreach my $case (
	[ 'CREATE is revoked', 'REVOKE CREATE ON TABLESPACE regress_fast FROM mover', 'GRANT CREATE ON TABLESPACE regress_fast TO mover',
		qr/index "mover\.t_i": [^\n]*permission denied for tablespace/i ],
	[ 'EXECUTE is revoked', 'REVOKE EXECUTE ON FUNCTION resume_move FROM mover', 'GRANT EXECUTE ON FUNCTION resume_move TO mover',
		qr/permission denied for function resume_move/ ],
	[ 'the time is over', 'SELECT pg_sleep(1)', 'SELECT', qr/index_mover\.max_duration was over/, max_duration => '1s' ])
{
	my ($name, $before, $after, $reason, %settings) = @$case;
	my $job = $newest = begin('mover.t', %settings);
	value($before);
	$node->stop;
	start();
	$node->wait_for_log(qr/LOG: .*job $job \(postgres\): does not go on after the start of the server\n.*DETAIL:  $reason/, $log);
	$node->wait_for_log(qr/HINT:  To resume it: SELECT index_mover_call\.resume_move\($job\);/, $log);
	wait_for_no_worker($node);
	is(told(), "job $job (postgres): does not go on after the start of the server", "$name: one line");
	ended_ok($job, $name);
	is(files(), '', "$name: no file is left");
	value($after);
	value("SELECT cancel_move($job)");
}
$t = $newest = begin('mover.t', max_duration => '1h');
$node->stop;
start();
goes_on_ok('max_duration', $t => $t + 1);
like(value("SELECT settings->>'max_duration' FROM index_mover.job_log WHERE job = $t + 1"), qr/^(?:59|35)/,
	'the time goes on from the begin');
value("SELECT cancel_move($t + 1)");
wait_for_job_end($node, $t + 1);

# the clock was set back
$t = $newest = begin('mover.t', max_duration => '1h');
value("UPDATE index_mover.job_log SET submitted_at = submitted_at + interval '5 h' WHERE job = $t");
$node->stop;
start();
goes_on_ok('max_duration, clock set back', $t => $t + 1);
like(value("SELECT settings->>'max_duration' FROM index_mover.job_log WHERE job = $t + 1"), qr/^(?:59|35)/,
	'a clock that was set back gives no more time');
value("SELECT cancel_move($t + 1)");
wait_for_job_end($node, $t + 1);
$newest = $t + 1;

# its row is gone; or the extension, and another one has rows of the same number
$u = begin('u');
value("DELETE FROM index_mover.job_log WHERE job = $u");
$node->stop;
start();
stays_ok('without its row');
reason_ok($u, 'The history does not have it any more\.', 'without its row');
$u = $newest = begin('u');
stop_and_hold();
value(<<'SQL');
CREATE TABLE jobs AS TABLE index_mover.job_log;
CREATE TABLE moves AS TABLE index_mover.move_log;
DROP EXTENSION index_mover;
CREATE EXTENSION index_mover;
INSERT INTO index_mover.job_log TABLE jobs;
INSERT INTO index_mover.move_log TABLE moves;
GRANT EXECUTE ON FUNCTION move_indexes, resume_move, cancel_move TO mover;
SQL
let_resume();
stays_ok('another extension');
reason_ok($u, 'The extension was dropped\.', 'another extension');

# the role is gone
value('CREATE ROLE gone SUPERUSER');
$u = begin('u', role => 'gone');
value('DROP ROLE gone');
$node->stop;
start();
$node->wait_for_log(qr/job $u of database \d+ does not go on after the start of the server\n.*DETAIL:  Its role does not exist\./, $log);
is(files(), '', 'without its role: no file is left');
value("SELECT cancel_move($u)");

# ---- on other servers ---------------------------------------------------------------------
$t = $newest = begin('mover.t');
$node->backup('backup');
my ($backup, $standby, $copy) = map { PostgreSQL::Test::Cluster->new($_) } 'backup', 'standby', 'copy';
$backup->init_from_backup($node, 'backup');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
is(files($backup), $t, 'a base backup has the file');
$log = 0;
$backup->start;
stays_ok('a base backup', $backup);
reason_ok($t, 'The data directory was copied, restored or rewound', 'a base backup', $backup);
$backup->stop;
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
$node->stop;
rmtree($copy->data_dir);
mkdir $copy->basedir;
system('cp', '-a', $node->data_dir, $copy->data_dir) == 0 or die;
$copy->append_conf('postgresql.conf', 'port = ' . $copy->port);
is(files($copy), $t, 'a copy of the data directory has the file');
$log = -s $copy->logfile || 0;
$copy->start;
stays_ok('a copy of the data directory', $copy);
reason_ok($t, 'The data directory was copied, restored or rewound', 'a copy of the data directory', $copy);
if (faults('the launcher starts again'))
{
	my $launcher = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover launcher'";
	my $first = $copy->safe_psql('postgres', $launcher =~ s/count\(\*\)/pid/r);
	$copy->safe_psql('postgres', "SELECT pg_terminate_backend($first)");
	poll_until($copy, "$launcher AND pid <> $first AND wait_event IS NOT NULL", 1, 'another launcher');
	is(scalar(() = slurp_file($copy->logfile, $log) =~ /job $t of database/g), 1, 'another launcher does not say it again');
}
$copy->stop;
$log = 0;
$standby->promote;
poll_until($standby, 'SELECT pg_is_in_recovery()', 'f', 'promotion');
stays_ok('a promoted standby', $standby);
$log = -s $standby->logfile;
$standby->restart;
stays_ok('a promoted standby, started again', $standby);

# the old primary, as a standby of the new one for a moment
is(files(), $t, 'the old primary has the file');
$node->enable_streaming($standby);
start();
is(files(), '', 'not when it has begun as a standby');
$log = -s $node->logfile;
$node->promote;
poll_until($node, 'SELECT pg_is_in_recovery()', 'f', 'promotion');
stays_ok('an old primary that was a standby');

done_testing();
