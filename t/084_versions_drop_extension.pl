# DROP EXTENSION while a copy is running waits for the end of the job, and harms
# neither the job nor itself.  A rebuild waits for old snapshots, so also for that
# of DROP EXTENSION: there the job gives way.  Nothing is left behind then, though
# the ledger is gone; nor is it if a copy is canceled while DROP EXTENSION waits.
# That it waits for a job that waits for a user or a time is in the log.
# A worker that is terminated then ends, though that transaction stays open; and so does a
# job that is canceled.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_node('drop_extension');

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 150000);
CREATE INDEX t_1 ON t (i);
CREATE INDEX t_2 ON t (i);
CREATE INDEX t_3 ON t (i);
SELECT oracle.remember_metadata('t');
SQL

my $call = start_call($node, 'mover',
	"SELECT string_agg(DISTINCT status, ',') || count(*) FROM move_indexes('t', 'regress_fast', 'copy', settings => "
		. "'{\"max_workers\": 2, \"max_rate\": \"3MB\", \"pacing\": false}')");
poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE blocks_done > 0", 't', 'a copy is running');
my ($stdout, $stderr);
my $dropped = $node->psql('postgres', 'DROP EXTENSION index_mover', stdout => \$stdout, stderr => \$stderr, timeout => 180);
is($dropped, 0, 'the extension is dropped');
is($stderr, '', 'the extension is dropped without an error');
my ($status, $out, $err) = finish_call($call);
chomp $out;
is($out, 'moved3', 'and all indexes have been moved');
unlike($err, qr/WARNING|ERROR/, 'DROP EXTENSION while indexes move: no warning for the moves');

$node->safe_psql('postgres', 'CREATE EXTENSION index_mover');
is($node->safe_psql('postgres', "SELECT DISTINCT status FROM move_indexes('t', 'regress_slow')"), 'moved',
	'made again, it works');
leftovers_ok($node, 'drop extension', within => 5);
files_ok($node, 'drop extension');

# ---- a rebuild ------------------------------------------------------------
make_gate($node, 'gate', 42);
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE g (i int);
INSERT INTO g SELECT generate_series(1, 100);
CREATE INDEX g_1 ON g (gate(i));
CREATE INDEX g_2 ON g (i) WHERE i > 0;
CREATE TABLE other (i int);
SELECT oracle.remember_metadata('g');
SQL
my ($builder, $reader, $holder, $dropper) = map { IndexMover::Session->new($node) } 1 .. 4;
$builder->run('SELECT pg_advisory_lock(42)');
$call = start_call($node, 'rebuilder',
	"SELECT name, status, sqlstate, detail FROM move_indexes('g', 'regress_fast', 'rebuild', settings => "
		. "'{\"max_workers\": 1}')");
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'building index'", '1', 'a rebuild is running');
$reader->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM other');
$builder->run('SELECT pg_advisory_unlock(42)');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for old snapshots'", '1', 'it waits');
$holder->run('BEGIN; LOCK TABLE g IN ACCESS SHARE MODE');
$dropper->send('DROP EXTENSION index_mover');
poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $dropper->pid, 't', 'DROP EXTENSION waits');
$reader->run('COMMIT');
$dropper->answer;
is($dropper->errors, '', 'rebuild: the extension is dropped');
($status, $out, $err) = finish_call($call);
like($out, joined(
	qr/^g_1\|failed\|55006\|gave way to process \d+, which waits for a lock on the extension\n/,
	qr/g_2\|canceled\|55000\|the extension was dropped$/),
	'rebuild: the rows say so') or diag $err;
my $indexes = "SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE "
	. "i.indrelid = 'g'::regclass";
is($node->safe_psql('postgres', $indexes), 'g_1 g_1_ccnew g_2', 'rebuild: the unfinished index is there as long as the table is in use');
$holder->run('COMMIT');
poll_until($node, $indexes, 'g_1 g_2', 'rebuild: the removal of the unfinished index', timeout => 20);
wait_for_no_worker($node);
$_->end foreach $builder, $reader, $holder, $dropper;
$node->safe_psql('postgres', 'CREATE EXTENSION index_mover');
leftovers_ok($node, 'rebuild, extension dropped', within => 5);
files_ok($node, 'rebuild, extension dropped');
is($node->safe_psql('postgres', "SELECT count(*) FROM move_indexes('g', 'regress_fast', 'rebuild') WHERE status = 'moved'"), '2',
	'rebuild: made again, it works');
metadata_ok($node, 'g', 'rebuild, extension dropped');
verdict_ok($node, 'g', 'rebuild, extension dropped');

# ---- a job that is paused, or waits for the time of its swap --------------------
# in the middle of a copy, between two, and before the first: the log says why DROP EXTENSION waits
foreach my $where ('in mid-copy', 'between two rebuilds', 'before its swap', 'before its first copy')
{
	my ($table, $method) = $where eq 'between two rebuilds' ? ('g', 'rebuild') : ('t', 'copy');
	my $paused = $where ne 'before its swap';
	my $does = $paused ? 'is paused' : 'waits for the time of its swap';
	my $to = $node->safe_psql('postgres', "SELECT CASE WHEN reltablespace = 0 THEN 'regress_fast' ELSE 'pg_default' END "
		. "FROM pg_class WHERE relname = '${table}_1'");
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(42)');
	my $early = $where eq 'before its first copy';
	# a session that pauses at once is nearly always there before the worker
	my $session = IndexMover::Session->new($node);
	my $job = $early ? $session->run("SELECT min(job) FROM move_indexes('t', '$to', 'copy', wait => false, settings => "
			. q['{"max_workers": 1, "max_rate": "100kB"}')])
	  : begin_job($node, $table, $to, method => $method, max_workers => 1, pacing => 'off',
		$paused ? (max_rate => '100kB') : (swap_after => 'infinity'));
	$session->run('SELECT pause_move()') if $early;
	$session->end;
	poll_until($node, q{SELECT count(*) > 0 FROM index_mover_progress WHERE phase IN ('copying blocks', 'building index',
		'waiting for time to swap')}, 't', "$where: it runs") if !$early;
	$node->safe_psql('postgres', "SELECT pause_move($job)") if $paused && !$early;
	$gate->end;
	poll_until($node, 'SELECT throttled_by FROM index_mover_progress', 'pause_move()', "$where: paused") if $paused;
	my $log = -s $node->logfile;
	$dropper = IndexMover::Session->new($node);
	$dropper->send('DROP EXTENSION index_mover');
	my $pid = $dropper->pid;
	$node->wait_for_log(joined(
		qr/job $job \([^)]*\): process $pid waits for the end of this job, which $does\n.*DETAIL:  The job has locked the extension\. /,
		qr/Process $pid: DROP EXTENSION index_mover;?\n/,
		qr/.*HINT:  Resume .*SELECT index_mover_call\.cancel_move\($job\);/), $log);
	pass("$where: the log says why DROP EXTENSION waits");
	is(scalar(() = slurp_file($node->logfile, $log) =~ /which $does/g), 1, "$where: once");
	$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . worker_pid($node) . ')');
	$dropper->answer;
	is($dropper->errors, '', "$where: with the job canceled, the extension is dropped");
	wait_for_no_worker($node);
	files_ok($node, "paused $where, extension dropped");
	$dropper->end;
	$node->safe_psql('postgres', 'CREATE EXTENSION index_mover');
}

# ---- a copy that is canceled ---------------------------------------------
# Without a caller who waits, DROP EXTENSION goes through before the worker gets
# to its cleanup.
foreach my $wait ('true', 'false')
{
	my $name = "canceled copy, wait => $wait";
	$call = start_call($node, "copier_$wait",
		"SELECT status, sqlstate FROM move_indexes('t', 'regress_fast', 'copy', wait => $wait, settings => "
			. "'{\"max_workers\": 1, \"max_rate\": \"100kB\", \"pacing\": false}')");
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE blocks_done > 0", 't', 'a copy is running');
	my $worker = worker_pid($node);
	$dropper = IndexMover::Session->new($node);
	$dropper->send('DROP EXTENSION index_mover');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $dropper->pid, 't', 'DROP EXTENSION waits');
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($worker)");
	$dropper->answer;
	is($dropper->errors, '', "$name: the extension is dropped");
	($status, $out, $err) = finish_call($call);
	if ($wait eq 'true')
	{
		like($out, qr/^canceled\|57014\n(canceled\|(57014|55000)\n?){2}$/, "$name: the rows say so") or diag $err;
	}
	wait_for_no_worker($node);
	files_ok($node, "$name, extension dropped");
	$dropper->end;
	$node->safe_psql('postgres', 'CREATE EXTENSION index_mover');
}
is($node->safe_psql('postgres', "SELECT DISTINCT status FROM move_indexes('t', 'regress_fast')"), 'moved',
	'canceled copy: made again, it works');
leftovers_ok($node, 'canceled copy, extension dropped', within => 5);
files_ok($node, 'canceled copy, extension dropped');

# ---- a worker that is terminated --------------------------------------------
$call = start_call($node, 'copier',
	"SELECT status, sqlstate FROM move_indexes('t', 'regress_slow', 'copy', settings => "
		. "'{\"max_workers\": 1, \"max_rate\": \"100kB\", \"pacing\": false}')");
poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE blocks_done > 0", 't', 'a copy is running');
my $worker = worker_pid($node);
$dropper = IndexMover::Session->new($node);
$dropper->send('BEGIN; DROP EXTENSION index_mover');
poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $dropper->pid, 't', 'DROP EXTENSION waits');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
$dropper->answer;
is($dropper->errors, '', 'terminated worker: the extension is dropped, but not for good');
($status, $out, $err) = finish_call($call);
is($out, "canceled|57P01\n" x 3, 'terminated worker: the caller has his rows') or diag $err;
poll_process_is_gone($worker);
ok(process_is_gone($worker), 'terminated worker: it is gone');
is($dropper->run("SELECT count(*) FROM pg_extension WHERE extname = 'index_mover'"), '0',
	'terminated worker: the transaction that drops is still open');
$dropper->run('ROLLBACK');
$dropper->end;
is($node->safe_psql('postgres', 'SELECT DISTINCT status FROM index_mover_history WHERE job = (SELECT max(job) FROM index_mover_history)'),
	'interrupted', 'terminated worker: the history');
is($node->safe_psql('postgres', "SELECT DISTINCT status FROM move_indexes('t', 'regress_slow')"), 'moved',
	'terminated worker: the next call works');
leftovers_ok($node, 'terminated worker', within => 5);
files_ok($node, 'terminated worker');

# ---- a job that is canceled while that transaction stays open -------------------
# Its first copy fails, which releases the extension, and DROP EXTENSION gets it.
{
	$holder = IndexMover::Session->new($node);
	$holder->run('BEGIN; SELECT count(*) FROM t');
	my $session = IndexMover::Session->new($node);
	my $job = $session->run("SELECT min(job) FROM move_indexes('t', 'regress_fast', 'copy', wait => false, settings => "
		. q['{"max_workers": 1, "lock_wait": "5s", "on_blocker": "fail"}')]);
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", '1', 'a copy waits');
	$worker = worker_pid($node);
	my $log = -s $node->logfile;
	$dropper = IndexMover::Session->new($node);
	$dropper->send('BEGIN; DROP EXTENSION index_mover');
	$dropper->answer;
	is($dropper->errors, '', 'canceled job: the extension is dropped, but not for good');
	is($session->run("SELECT cancel_move($job)"), '1', 'canceled job: the worker is told');
	$node->wait_for_log(qr/job $job .*: did not record how its moves have ended/, $log);
	poll_process_is_gone($worker);
	ok(process_is_gone($worker), 'canceled job: it is gone');
	is($dropper->run("SELECT count(*) FROM pg_extension WHERE extname = 'index_mover'"), '0',
		'canceled job: the transaction that drops is still open');
	$dropper->run('ROLLBACK');
	$_->end foreach $dropper, $holder, $session;
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', "SELECT DISTINCT status FROM index_mover_history WHERE job = $job"), 'interrupted',
		'canceled job: the history');
	leftovers_ok($node, 'canceled job', within => 5);
	files_ok($node, 'canceled job');
}

# ---- another extension of the name is there at once ------------------------------------------
# As above; the job is none of its, so it ends.
{
	$node->safe_psql('postgres', "SELECT FROM move_indexes('t', 'regress_slow')");
	my $places = "SELECT DISTINCT spcname FROM pg_class c JOIN pg_tablespace s ON s.oid = reltablespace WHERE relname ~ '^t_'";
	$holder = IndexMover::Session->new($node);
	$holder->run('BEGIN; SELECT count(*) FROM t');
	$node->safe_psql('postgres', "SELECT FROM move_indexes('t', 'regress_fast', 'copy', wait => false, settings => "
			. q['{"max_workers": 1, "lock_wait": "5s", "on_blocker": "fail"}')]);
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", '1', 'a copy waits');
	$dropper = IndexMover::Session->new($node);
	$dropper->run('BEGIN; DROP EXTENSION index_mover; CREATE EXTENSION index_mover');
	$holder->run('COMMIT');
	$dropper->run('COMMIT');
	$_->end foreach $dropper, $holder;
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', $places), 'regress_slow', 'another extension: the job moves nothing any more');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_history'), 0, 'another extension: it has no row of the job');
	is($node->safe_psql('postgres', "SELECT DISTINCT status FROM move_indexes('t', 'regress_fast')"), 'moved',
		'another extension: the next call works');
	$node->safe_psql('postgres', "SELECT FROM move_indexes('t', 'regress_slow')");
	leftovers_ok($node, 'another extension', within => 5);
	files_ok($node, 'another extension');
}

# ---- a worker that begins when caller and extension are gone --------------------
# It cannot connect as long as a session has pg_database locked, and no other
# can, either.
{
	my ($gate, $caller, $looker) = map { IndexMover::Session->new($node) } 1 .. 3;
	$dropper = IndexMover::Session->new($node);
	my $wait_for = sub {
		my ($condition, $what) = @_;
		my $start = time;
		until ($looker->run("SELECT count(*) > 0 FROM pg_locks WHERE $condition") eq 't')
		{
			die "gave up waiting for $what" if time - $start > $IndexMover::Test::TIMEOUT;
			usleep(40_000);
		}
	};
	my $log = -s $node->logfile;
	$gate->run('BEGIN; LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE');
	$caller->send("SELECT status FROM move_indexes('t', 'regress_fast')");
	$wait_for->("NOT granted AND relation = 'pg_database'::regclass", 'the worker');
	$looker->run('SELECT pg_terminate_backend(' . $caller->pid . ')');
	$dropper->run('DROP EXTENSION index_mover');
	$gate->run('COMMIT');
	$node->wait_for_log(joined(
		qr/LOG:  55000: job \d+ \(postgres, by [^)]*\): could not record the job\n.*DETAIL:  extension "index_mover" is /,
		qr/not installed in this database/), $log);
	pass('caller and extension gone: the worker says why it does nothing');
	wait_for_no_worker($node);
	$_->end foreach $gate, $looker, $dropper;
	$node->safe_psql('postgres', 'CREATE EXTENSION index_mover');
	leftovers_ok($node, 'caller and extension gone', within => 5);
	files_ok($node, 'caller and extension gone');
	is($node->safe_psql('postgres', "SELECT DISTINCT status FROM move_indexes('t', 'regress_fast')"), 'moved',
		'caller and extension gone: the next call works');
}
all_right($node, 't', 'all of them', within => 5);

# ---- a cleanup that is canceled while it waits for such a transaction ------
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover'");
$node->safe_psql('postgres', "BEGIN; DROP EXTENSION index_mover; PREPARE TRANSACTION 'dropped'");
{
	my $log = -s $node->logfile;
	$node->restart;
	# (15 and 16 have no names for waits of extensions)
	my $cleanup = q{FROM pg_stat_activity WHERE backend_type = 'index_mover' AND datname = 'postgres' }
	  . q{AND wait_event IN ('IndexMoverPause', 'Extension')};
	poll_until($node, "SELECT count(*) $cleanup", '1', 'a cleanup waits for the transaction that drops the extension');
	$node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) $cleanup");
	$node->wait_for_log(qr/ERROR:  57014: canceling statement due to user request/, $log);
	pass('its cancel is obeyed');
	$node->safe_psql('postgres', "ROLLBACK PREPARED 'dropped'");
	wait_for_no_worker($node);
}

# ---- a function that a user has made without the extension -----------------
my $type = $node->safe_psql('postgres',
	"SELECT string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum) FROM pg_attribute WHERE "
		. "attrelid = 'move_result'::regclass");
my $function = $node->safe_psql('postgres', "SELECT pg_get_functiondef('move_indexes'::regproc)");
$node->safe_psql('postgres', 'CREATE DATABASE without_it TEMPLATE template0');
$node->safe_psql('without_it', "CREATE TYPE move_result AS ($type); $function; CREATE TABLE t (i int PRIMARY KEY)");
($status, $out, $err) = $node->psql('without_it', "SELECT status FROM move_indexes('t', 'regress_fast')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is($out, '', 'without the extension: no rows');
like($err, qr/ERROR:  55000: extension "index_mover" is not installed in this database\n/, 'without the extension: a clean error');
done_testing();
