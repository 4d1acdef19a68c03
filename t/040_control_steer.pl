# Steering running jobs: pause, resume, alter, cancel, the moment of the swap,
# undo, the limits of a job, several runners, and what a crash leaves to do.
#
# Fault (processes): one of many: its tablespace is gone, it is renamed, rebuilt, dropped and
#   made again, another role's, in a closed schema, busy in another job, locked by the caller;
#   its library is lost; its row of the history is being changed; its table is locked during a
#   cleanup (also sql/undo, sql/report_index)
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
use Time::HiRes qw(time usleep);

# the phases are those of a move as it is by default; with "verify" where it is said
my $node = new_node('steer', verify => 0, conf => <<CONF);
max_wal_size = 64MB
min_wal_size = 32MB
checkpoint_timeout = 1h
log_checkpoints = off
CONF

$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE TABLE st (i int, s text, n int) WITH (fillfactor = 80, autovacuum_enabled = off);
INSERT INTO st SELECT g, md5(g::text), g % 1000 FROM generate_series(1, 150000) g;
SET default_tablespace = regress_slow;
ALTER TABLE st ADD PRIMARY KEY (i);
CREATE INDEX st_s ON st (s);
CREATE INDEX st_n ON st (n);
SET default_tablespace = '';
CREATE TABLE small (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
INSERT INTO small SELECT generate_series(1, 100);
CREATE ROLE regress_steer_other;
GRANT EXECUTE ON FUNCTION move_indexes, pause_move, resume_move, alter_move, cancel_move, undo_move TO regress_steer_other;
CREATE TABLE others (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow);
ALTER TABLE others OWNER TO regress_steer_other;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_steer_other;
VACUUM ANALYZE st;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What became of a job: "name status" in the order of the names.
sub outcome
{
	my ($job) = @_;
	return sql("SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM index_mover_history WHERE job = $job");
}

# A setting of a job, as it is on record.
sub setting
{
	my ($job, $name) = @_;
	return sql("SELECT settings ->> '$name' FROM index_mover_jobs WHERE job = $job");
}

sub wait_for_blocks
{
	my ($job, $blocks) = @_;
	poll_until($node, "SELECT coalesce(max(blocks_done), 0) >= $blocks FROM index_mover_progress WHERE job = $job",
		't', "$blocks blocks of job $job");
	return;
}

# ---------------------------------------------------------------------------
# Pause and resume in mid-copy
# ---------------------------------------------------------------------------
my $job = begin_job($node, 'st_s', 'regress_fast', max_rate => '512kB', verify => 'on');
wait_for_blocks($job, 100);
my $pid = worker_pid($node);

is(sql("SET ROLE regress_steer_other; SELECT count(*) FROM index_mover_progress WHERE name IS NOT NULL"),
	'0', 'others do not see what a job works on');
my ($rc, $out, $err) = $node->psql('postgres', "SET ROLE regress_steer_other; SELECT pause_move($job)",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is(sqlstate_of($err), '42501', 'others may not pause it');

my $start = time;
is(sql("SELECT pause_move($job)"), '1', 'pause_move() by the owner of the job');
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
soon_ok(time - $start, 1, 'a copy pauses within a second');
my $done = sql("SELECT blocks_done FROM index_mover_progress WHERE job = $job");
is(sql("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR xact_start IS "
	. "NOT NULL)"),
	'0', 'a paused copy has no snapshot, no transaction ID and no transaction');

my $log = -s $node->logfile;
sql("DELETE FROM st WHERE i % 50 = 0");
(my $vacuum_rc, $out, $err) = $node->psql('postgres', "SET lock_timeout = '2s'; VACUUM (VERBOSE) st");
is($vacuum_rc, 0, 'VACUUM passes a paused copy');
like($err, qr/3000 removed, 147000 remain, 0 are dead but not yet removable/, 'and removes all dead rows');

# more WAL than is kept: only who follows it can go on
my $wal_start = sql('SELECT pg_current_wal_lsn()');
foreach my $n (1 .. 8)
{
	sql("UPDATE st SET s = md5(s), n = n + 1 WHERE i % 8 = $n - 1");
	sql('SELECT pg_switch_wal()');
	let_process_sleep($pid, 4);	# checkpoints of real servers take longer than that
	sql('CHECKPOINT');
}
cmp_ok(sql("SELECT pg_current_wal_lsn() - '$wal_start' > 100 * 1024 * 1024"), 'eq', 't', 'more WAL was written than max_wal_size keeps');
is(sql("SELECT blocks_done FROM index_mover_progress WHERE job = $job"), $done, 'the copy stood still meanwhile');
is(sql("SELECT count(*) FROM pg_ls_waldir() WHERE name = pg_walfile_name('$wal_start')"), '0', 'the WAL of the beginning is gone');

is(sql("SELECT alter_move($job, 'max_rate', '0')"), 't', 'alter_move of a paused job');
is(sql("SELECT resume_move($job)"), $job, 'resume_move() of a paused copy: the same job');
wait_for_job_end($node, $job);
is(outcome($job), 'st_s moved', 'the copy went on to its end');
is(tablespace_of_index($node, 'st_s'), 'regress_fast', 'the index is where it should be');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $log), qr/starting the copy of index/, 'what was done was kept');
all_right($node, 'st', 'pause and resume', no_metadata => 1, max_keys => 200, large => 1);

# ---------------------------------------------------------------------------
# alter_move of a running job; cancel of a paused one
# ---------------------------------------------------------------------------
$job = begin_job($node, 'st_s', 'regress_slow', max_rate => '16kB');
wait_for_blocks($job, 1);
foreach my $case (
	[ "alter_move($job, 'no_such', '1')", '22023' ],
	[ "alter_move($job, 'on_failure', 'error')", '22023' ],
	[ "alter_move($job, 'max_rate', 'fast')", '22023' ],
	[ "alter_move($job, NULL, '1')", '22004' ],
	(map { [ "resume_move($job, '$_')", '22023' ] } '1', '"max_rate"', 'null', '[]', '["max_rate", "0"]'),
	[ "undo_move($job)", '55006' ],
	[ 'alter_move(999999, \'max_rate\', \'1\')', '42704' ])
{
	my ($call, $state) = @$case;
	($rc, $out, $err) = $node->psql('postgres', "SELECT $call", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	is(sqlstate_of($err), $state, $call);
}
foreach my $call ("alter_move($job, 'max_rate', '32kB')", "resume_move($job, '{\"max_rate\": \"32kB\"}')")
{
	(undef, undef, $err) = $node->psql('postgres', "BEGIN READ ONLY; SELECT $call", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	my ($function) = $call =~ /^(\w+)/;
	like($err, qr/ERROR:  25006: cannot execute $function\(\) in a read-only transaction/,
		"$function() that writes, in a read-only transaction");
}
{
	my $open = IndexMover::Session->new($node);
	$open->run("BEGIN; SELECT alter_move($job, 'max_rate', '16kB')");
	foreach my $call ("alter_move($job, 'max_rate', '16kB')", "resume_move($job, '{\"max_rate\": \"16kB\"}')")
	{
		(undef, undef, $err) = $node->psql('postgres', "SELECT $call", extra_params => [ '-v', 'VERBOSITY=verbose' ], timeout => 60);
		like($err, qr/ERROR:  55P03: could not obtain lock on job $job\nDETAIL:  Another session has submitted or changed the job, and/,
			"another session has altered the job, and its transaction stays open: $call");
	}
	$open->end;

	# a job that has no row yet for others
	my $alter = "SELECT alter_move(%s, 'swap_after', 'infinity')";
	$open = IndexMover::Session->new($node);
	my $queued = $open->run("BEGIN; SELECT max(job) FROM move_indexes('small_pkey', 'regress_fast', 'copy', wait => false)");
	(undef, undef, $err) = $node->psql('postgres', sprintf($alter, $queued), extra_params => [ '-v', 'VERBOSITY=verbose' ],
		timeout => 60);
	like($err, qr/ERROR:  55P03: could not obtain lock on job $queued\n/,
		'another session has submitted the job, and its transaction is open');
	is($open->run(sprintf($alter, $queued)), 't', 'but that session can alter it');
	is($open->run("COMMIT; SELECT settings->>'swap_after' FROM index_mover_jobs WHERE job = $queued"), 'infinity', 'which is on record');
	poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $queued", 'waiting for time to swap', 'and obeyed');
	sql("SELECT cancel_move($queued)");
	wait_for_job_end($node, $queued);
	$open->end;
}
$start = time;
is(setting($job, 'max_rate'), '16kB', 'index_mover_jobs has the settings');
my $altering = IndexMover::Session->new($node);
is($altering->run("BEGIN; SELECT alter_move($job, 'max_rate', '100MB')"), 't', 'alter_move of a running job');
wait_for_job_end($node, $job);
soon_ok(time - $start, 8, 'the new rate holds at once, and the job ends before the transaction that has altered it');
is(outcome($job), 'st_s moved', 'the job with the new rate has moved the index');
$altering->run('COMMIT');
is(sql("SELECT concat_ws(' ', status, moved, total, percent) FROM index_mover_jobs WHERE job = $job"), 'moved 1 1 100',
	'its row then has its end');
is(setting($job, 'max_rate'), '100MB', 'alter_move changes them there');
is(setting($job, 'max_rate'), '100MB', 'and there they stay');

$job = begin_job($node, 'st_s', 'regress_fast', max_rate => '512kB');
wait_for_blocks($job, 1);
sql("SELECT pause_move($job)");
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
is(sql("SELECT cancel_move($job)"), '1', 'cancel_move of a paused job');
soon_ok(wait_for_job_end($node, $job), 2, 'it ends soon');
is(outcome($job), 'st_s canceled', 'the history says canceled');
is(tablespace_of_index($node, 'st_s'), 'regress_slow', 'the index is where it was');
leftovers_ok($node, 'canceled while paused', within => 2);
files_ok($node, 'canceled while paused');

# a failure in the background reaches the session that waits for it: psql's exit status
sql('CREATE TABLE never (i int); CREATE FUNCTION refuses(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1; CREATE INDEX never_i ON '
	. 'never (refuses(i)); INSERT INTO never VALUES (13)');
sql(q{CREATE OR REPLACE FUNCTION refuses(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$});
($rc, $out, $err) = finish_call(start_call($node, 'background', <<'SQL'));
SELECT count(*) FROM move_indexes('never', 'regress_fast', method => 'rebuild', wait => false, settings => '{"on_failure": "error"}');
CALL wait_for_move();
SELECT 'not reached';
SQL
is($rc, 3, 'wait_for_move raises: psql with ON_ERROR_STOP ends with status 3');
like($err, qr/ERROR:  55000: 1 of 1 index was not moved\nDETAIL:  index "never_i": not today/, 'and says why');
unlike($out, qr/not reached/, 'and stops there');
sql('DROP TABLE never; DROP FUNCTION refuses');

# who waits for long is told before, and once
my $waiter;
foreach my $case (
	[ '0', qr/NOTICE: .*the move takes about \d[\d.]* (?:s|min|h), and this session's snapshot holds back vacuum/, 'the snapshot' ],
	[ '60s', qr/NOTICE: .*the move takes about \d+ seconds, but statement_timeout is 60000 ms/, 'the timeout' ])
{
	my ($timeout, $notice, $what) = @$case;
	$waiter = start_call($node, 'waiter', <<"SQL");
SET statement_timeout = '$timeout';
SELECT * FROM move_indexes('st_s', 'regress_fast', method => 'copy', settings => '{"max_rate": "16kB"}')
SQL
	poll_until($node, 'SELECT max(blocks_done) > 0 FROM index_mover_progress', 't', 'the first block');
	is(sql('SELECT cancel_move()'), '1', "$what: cancel_move of a job for which a session waits");
	($rc, $out, $err) = finish_call($waiter);
	like($err, $notice, "a long move: $what");
	is(scalar(() = $err =~ /the move takes about/g), 1, "$what: one estimate");
	wait_for_no_worker($node);
}

# ---------------------------------------------------------------------------
# resume_move keeps the settings of a job, but for those that it is given
# ---------------------------------------------------------------------------
$job = begin_job($node, 'st_s', 'regress_fast', max_rate => '64kB', prewarm => 'off');
wait_for_blocks($job, 1);
is(sql("SELECT cancel_move($job)"), '1', 'cancel_move of a job with max_rate');
wait_for_job_end($node, $job);
is(sql("SELECT status, finished_at IS NOT NULL, settings - 'min_free_space' FROM index_mover_jobs WHERE job = $job"),
	'canceled|t|{"prewarm": "off", "max_rate": "64kB"}', 'index_mover_jobs says what it was');
my $rest = sql("SELECT resume_move($job)");
cmp_ok($rest, '>', $job, 'resume_move of a canceled job is another job');
is(sql("SELECT settings - 'min_free_space' FROM index_mover_jobs WHERE job = $rest"), '{"prewarm": "off", "max_rate": "64kB"}',
	'with the same settings');
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $rest", 'max_rate', 'the same rate');
pass('which it obeys');
is(sql("SELECT cancel_move($rest)"), '1', 'it is canceled, too');
wait_for_job_end($node, $rest);

$job = sql("SELECT resume_move($rest, '{\"max_rate\": \"32kB\", \"swap_after\": \"infinity\"}')");
is(sql("SELECT settings - 'min_free_space' FROM index_mover_jobs WHERE job = $job"),
	'{"prewarm": "off", "max_rate": "32kB", "swap_after": "infinity"}',
	'resume_move with settings: these change, and the others stay');
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'max_rate', 'the new rate');
is(sql("SELECT pause_move($job)"), '1', 'pause_move(): one job');
is(sql("SELECT status FROM index_mover_jobs WHERE job = $job"), 'paused', 'index_mover_jobs: paused');
is(sql("SELECT resume_move($job, '{\"max_rate\": \"0\", \"swap_after\": \"\"}')"), $job, 'resume_move of a paused job with settings');
is(sql("SELECT settings - 'min_free_space' FROM index_mover_jobs WHERE job = $job"), '{"prewarm": "off"}',
	'they are its settings from then on');
wait_for_job_end($node, $job);
is(outcome($job), 'st_s moved', 'it is moved');
is(sql("SELECT status, moved, total, percent, tablespace FROM index_mover_jobs WHERE job = $job"), 'moved|1|1|100|regress_fast',
	'index_mover_jobs: moved');
sql("SELECT count(*) FROM undo_move($job)");
is(tablespace_of_index($node, 'st_s'), 'regress_slow', 'and moved back');

# ---------------------------------------------------------------------------
# All jobs at once: those that the role may control
# ---------------------------------------------------------------------------
sub begin_others
{
	return sql(q{SET ROLE regress_steer_other; SELECT max(job) FROM move_indexes('others', 'regress_fast', method => 'copy', }
			. q{wait => false, settings => '{"swap_after": "infinity"}')});
}
my @jobs = (begin_job($node, 'small_pkey', 'regress_fast', swap_after => 'infinity'), begin_others());
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for time to swap'", '2', 'two jobs');
is(sql('SET ROLE regress_steer_other; SELECT pause_move()'), '1', 'pause_move of all: those of the role');
is(sql('SELECT job, status FROM index_mover_jobs LIMIT 2'), "$jobs[1]|paused\n$jobs[0]|running", 'the other goes on');
is(sql('SET ROLE regress_steer_other; SELECT cancel_move()'), '1', 'cancel_move of all: those of the role');
wait_for_job_end($node, $jobs[1]);
is(sql('SELECT job, status FROM index_mover_jobs LIMIT 2'), "$jobs[1]|canceled\n$jobs[0]|running", 'the other goes on');
$jobs[1] = begin_others();
is(sql('SELECT cancel_move()'), '2', 'cancel_move of all by a superuser');
wait_for_job_end($node, $_) foreach @jobs;
is(outcome($jobs[0]) . ', ' . outcome($jobs[1]), 'small_pkey canceled, others_pkey canceled', 'all are canceled');
is(sql('SELECT cancel_move()'), '0', 'cancel_move of none');

# ---------------------------------------------------------------------------
# A wait that is interrupted: what the client is told, and what the job does
# ---------------------------------------------------------------------------
$waiter = start_call($node, 'waiter',
	q{SELECT * FROM move_indexes('st', 'regress_fast', method => 'copy', settings => }
		. q{'{"max_rate": "1MB", "max_workers": 1}')});
poll_until($node, "SELECT count(*) > 0 FROM index_mover_history WHERE status = 'moved' AND job = (SELECT max(job) FROM "
	. "index_mover_history)", 't', 'the first index');
$job = sql('SELECT max(job) FROM index_mover_history');
sql("SELECT alter_move($job, 'max_rate', '64kB')");
sql('SELECT pg_cancel_backend(' . caller_pid($waiter) . ')');
($rc, $out, $err) = finish_call($waiter);
wait_for_job_end($node, $job);
my $moved = sql("SELECT count(*) FROM index_mover_history WHERE job = $job AND status = 'moved'");
cmp_ok($moved, '<', 3, 'a waiting call that is interrupted cancels its job');
like($err, joined(
	qr/ERROR:  57014: canceling statement due to user request\nDETAIL:  $moved of 3 indexes of job $job have been /,
	qr/moved\.\nHINT:  To move the rest: SELECT index_mover_call\.resume_move\($job\);\n/),
	'it says how much was moved, and how to go on');
$rest = sql("SELECT resume_move($job, '{\"max_rate\": \"64kB\"}')");
$waiter = start_call($node, 'waiter', "CALL wait_for_move($rest)");
poll_until($node, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . caller_pid($waiter), 'Extension',
	'a session that waits for the job');
sql('SELECT pg_cancel_backend(' . caller_pid($waiter) . ')');
($rc, $out, $err) = finish_call($waiter);
like($err, joined(
	qr/ERROR:  57014: canceling statement due to user request\nDETAIL:  Job $rest goes on\.\nHINT:  To stop it: SELECT /,
	qr/index_mover_call\.cancel_move\($rest\);\n/),
	'wait_for_move that is interrupted says that the job goes on');
is(sql("SELECT status FROM index_mover_jobs WHERE job = $rest"), 'running', 'and it does');
sql("SELECT alter_move($rest, 'max_rate', '0')");
sql("CALL wait_for_move($rest)");
is(tablespace_of_index($node, 'st'), "st_n: regress_fast\nst_pkey: regress_fast\nst_s: regress_fast", 'in the end, all is moved');
sql("SELECT count(*) FROM move_indexes('st', 'regress_slow', method => 'copy')");
leftovers_ok($node, 'interrupted waits', within => 5);
files_ok($node, 'interrupted waits');

# ---------------------------------------------------------------------------
# When to swap
# ---------------------------------------------------------------------------
my ($when, $place);
foreach my $seconds (3, 10, 30, 100)
{
	$when = sql("SELECT now() + interval '$seconds s'");
	$job = begin_job($node, 'small_pkey', 'regress_fast', swap_after => $when);
	poll_until($node, "SELECT coalesce(max(phase), 'ended') IN ('waiting for time to swap', 'ended') FROM index_mover_progress WHERE job "
		. "= $job", 't', 'swap_after');
	$place = tablespace_of_index($node, 'small_pkey');
	last if sql("SELECT now() < '$when'") eq 't';
	# not looked in time: once more, with more of it
	wait_for_job_end($node, $job);
	sql("SELECT undo_move($job)");
}
is($place, 'regress_slow', 'before its time the copy is not swapped in');
sql('INSERT INTO small SELECT generate_series(101, 5000)');
wait_for_job_end($node, $job);
is(outcome($job), 'small_pkey moved', 'it is at its time');
is(sql("SELECT finished_at >= '$when' AND finished_at < '$when'::timestamptz + interval '2 s' * $IndexMover::Test::SLACK FROM "
	. "index_mover_history WHERE job = $job"),
	't', 'neither sooner nor much later');
verdict_ok($node, 'small', 'swapped at its time');

# a time of day is the next one
$when = sql("SELECT to_char(now() - interval '1 min', 'HH24:MI')");
$job = begin_job($node, 'small_pkey', 'regress_slow', swap_after => $when);
poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job", 'waiting for time to swap', 'time of day');
usleep(300_000);
is(tablespace_of_index($node, 'small_pkey'), 'regress_fast', 'a time of day that is over today means tomorrow');
is(sql("SELECT eta BETWEEN '22 h' AND '25 h' FROM index_mover_progress WHERE job = $job"), 't', 'which is the time left');
# in the zone of the session that has said it, or in that which it names
{
	my $in = sub { my ($zone) = @_; return "SELECT to_char(now() AT TIME ZONE '$zone' + interval '2 h', 'HH24:MI')" };
	my $left = "SELECT eta BETWEEN '1 h 50 min' AND '2 h 1 min' FROM index_mover_progress WHERE job = $job";
	foreach my $zone ('Asia/Tokyo', '<-11>+11')
	{
		my $time = sql($in->($zone));
		is(sql("SET TimeZone = '$zone'; SELECT alter_move($job, 'swap_after', '$time')"), 't', "a time of day in $zone");
		is(setting($job, 'swap_after'), "$time $zone", 'is on record with it');
		poll_until($node, $left, 't', 'and counts there');
		sql("SET TimeZone = 'Europe/Berlin'; "
			. "SELECT alter_move($job, 'swap_after', 'infinity'), alter_move($job, 'swap_after', '$time $zone')");
		is(setting($job, 'swap_after'), "$time $zone", 'as if that was named');
		poll_until($node, $left, 't', 'and wherever that is said');
	}
	($rc, $out, $err) = $node->psql('postgres', "SELECT alter_move($job, 'swap_after', '02:00 Nowhere')",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	is(sqlstate_of($err), '22023', 'a zone that is none');
}
# pausing and resuming is not what it waits for
sql("SELECT pause_move($job)");
poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
sql("SELECT resume_move($job)");
poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job AND throttled_by IS NULL", 'waiting for time to swap',
	'after the pause');
sql("SELECT alter_move($job, 'swap_after', '')");
wait_for_job_end($node, $job);
is(outcome($job), 'small_pkey moved', 'alter_move ends the wait');

$job = begin_job($node, 'st_s', 'regress_fast', swap_after => 'infinity', verify => 'on');
poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job", 'waiting for time to swap', 'infinity');
sql("UPDATE st SET s = md5(s) WHERE i % 10 = 3");
is(tablespace_of_index($node, 'st_s'), 'regress_slow', 'infinity waits');
is(sql("SELECT p.eta IS NULL AND j.eta IS NULL FROM index_mover_progress p JOIN index_mover_jobs j USING (job) WHERE job = $job"), 't',
	'no time left is known');
($rc, $out, $err) = $node->psql('postgres', "SELECT resume_move($job, '{\"swap_after\": \"sometime\"}')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is(sqlstate_of($err), '22023', 'resume_move with what is no time');
is(sql("SELECT resume_move($job, '{\"swap_after\": \"tomorrow\"}')"), $job, 'resume_move with a new time');
usleep(1_500_000);
is(tablespace_of_index($node, 'st_s'), 'regress_slow', 'neither of them ends the wait');
is(sql("SELECT resume_move($job)"), $job, 'resume_move() while the job waits for swap_after');
wait_for_job_end($node, $job);
is(outcome($job), 'st_s moved', 'resume_move ends the wait');
verdict_ok($node, 'st', 'swapped by resume_move', max_keys => 200, large => 1);

# it is a setting as any: on record, and it can be set again
{
	sql('CREATE TABLE twice (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow, '
		. 'j int UNIQUE USING INDEX TABLESPACE regress_slow)');
	my $again = begin_job($node, 'twice', 'regress_fast', swap_after => 'infinity', max_workers => 1);
	my $waiting = "SELECT count(*) FROM index_mover_progress WHERE job = $again AND phase = 'waiting for time to swap'";
	poll_until($node, $waiting, 1, 'the first of two');
	is(setting($again, 'swap_after'), 'infinity', 'swap_after of two');
	# twice, as by a client that has lost its connection
	is(sql("SELECT resume_move($again), resume_move($again), alter_move($again, 'swap_after', 'infinity')"), "$again|$again|t",
		'resume_move, and alter_move back');
	poll_until($node, $waiting, 1, 'one of them waits again', timeout => 20);
	is(setting($again, 'swap_after'), 'infinity', 'swap_after of two, set again');
	is(sql("SELECT resume_move($again)"), $again, 'resume_move() a second time');
	wait_for_job_end($node, $again);
	is(sql("SELECT count(*) FROM index_mover_history WHERE job = $again AND status = 'moved'"), 2, 'both are moved');
	is(setting($again, 'swap_after'), '', 'and no swap_after is on record');
	sql('DROP TABLE twice');
}
($rc, $out, $err) = $node->psql('postgres',
	"SELECT * FROM move_indexes('st_s', 'regress_slow', settings => '{\"swap_after\": \"sometime\"}')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is(sqlstate_of($err), '22023', 'swap_after that is no time');

# ---------------------------------------------------------------------------
# undo_move, resume_move of what has ended
# ---------------------------------------------------------------------------
is(sql("SELECT name, status FROM undo_move($job, settings => '{\"swap_after\": \"\"}')"), 'st_s|moved',
	'undo_move, but not with all of its settings');
is(sql('SELECT name, from_tablespace, to_tablespace, status FROM index_mover_history ORDER BY job DESC LIMIT 1'),
	'st_s|regress_fast|regress_slow|moved', 'the history says from where to where');
is(sql("SELECT count(*) FROM undo_move($job) WHERE status = 'skipped'"), '1', 'twice: nothing to do');
($rc, $out, $err) = $node->psql('postgres', "SELECT resume_move($job)");
like($err, qr/NOTICE:  job $job has nothing left to do/, 'resume_move of a job that has ended');
is($out, '', 'returns NULL');

is(sql("SELECT cancel_move($job)"), '0', 'cancel_move: none');
foreach my $case (
	[ 'undo_move(NULL)', qr/22004: job must not be null/ ],
	[ "undo_move($job, NULL)", qr/22004: dry_run must not be null/ ],
	[ "undo_move($job, wait => NULL)", qr/22004: wait must not be null/ ],
	[ 'undo_move(999999)', qr/42704: job 999999 does not exist/ ],
	[ "undo_move($job)", qr/42501: permission denied to control job $job/, 'regress_steer_other' ],
	[ "cancel_move($job)", qr/42501: permission denied to control job $job/, 'regress_steer_other' ])
{
	my ($call, $message, $user) = @$case;
	($rc, $out, $err) = $node->psql('postgres', ($user ? "SET ROLE $user; " : '') . "SELECT $call",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($err, $message, $call);
}

# of what is gone
sql("CREATE TABLESPACE regress_gone LOCATION ''; CREATE TABLE gone (i int PRIMARY KEY USING INDEX TABLESPACE regress_gone, j int UNIQUE "
	. "USING INDEX TABLESPACE regress_gone)");
$job = begin_job($node, 'gone', 'regress_fast');
wait_for_job_end($node, $job);
is(outcome($job), 'gone_j_key moved, gone_pkey moved', 'moved out of a tablespace');
sql('DROP TABLESPACE regress_gone; ALTER TABLE gone DROP CONSTRAINT gone_j_key');
is(sql("SELECT name, status, sqlstate, detail FROM undo_move($job)"),
	'gone_pkey|skipped|42704|Tablespace "regress_gone" does not exist any more.',
	'undo_move to a tablespace that was dropped');
sql('ALTER TABLE gone DROP CONSTRAINT gone_pkey');
($rc, $out, $err) = $node->psql('postgres', "SELECT count(*) FROM undo_move($job)");
is("$rc $out", '0 0', 'undo_move of dropped indexes has nothing to do');
like($err, qr/NOTICE:  index "gone_$_" does not exist any more, skipping/, "and says so of gone_$_") foreach 'pkey', 'j_key';

# ---------------------------------------------------------------------------
# A job that has ended, and is still cleaning up: every function says so, and none changes how
# it has ended.  It was told to pause while core's REINDEX could not.
# ---------------------------------------------------------------------------
sql('CREATE TABLE held (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow, j int UNIQUE USING INDEX TABLESPACE regress_slow); '
	. 'INSERT INTO held SELECT g, g FROM generate_series(1, 100) g');
{
	my $name = 'still cleaning up';
	my $says = qr/job \d+(?: \(process \d+\))? has ended and is still cleaning up/i;
	my $reader = IndexMover::Session->new($node);
	$reader->run('BEGIN; SELECT count(*) FROM held');
	$job = begin_job($node, 'held', 'regress_fast', method => 'rebuild', lock_wait => '10min', max_workers => 1);
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND phase LIKE 'waiting for readers before%'", '1',
		"$name: the rebuild");
	is(sql("SELECT pause_move($job), cancel_move($job)"), '1|1', "$name: canceled while it rebuilds");
	sql("CALL wait_for_move($job, raise => false)");
	is(sql("SELECT string_agg(status, ' ' ORDER BY status) FROM index_mover_history WHERE job = $job"), 'canceled moved',
		"$name: one is moved, and one is left");
	is(sql("SELECT phase FROM index_mover_progress WHERE job = $job"), 'cleaning up', "$name: it is cleaning up");
	is(sql("SELECT status FROM index_mover.job_log WHERE job = $job"), 'canceled', "$name: its end is on record");
	is(sql("SELECT status, finished_at IS NOT NULL FROM index_mover_jobs WHERE job = $job"), 'canceled|t',
		"$name: index_mover_jobs says how it has ended");
	my $row = sql("SELECT j FROM index_mover.job_log j WHERE job = $job");
	foreach my $call ([ "alter_move($job, 'max_rate', '1MB')", 'f' ], [ "pause_move($job)", 0 ])
	{
		($rc, $out, $err) = $node->psql('postgres', "SELECT $call->[0]");
		is($out, $call->[1], "$name: $call->[0]");
		like($err, qr/NOTICE:  $says\nHINT:  See \S*index_mover_progress for what it waits for\./, "$name: a NOTICE says why not");
	}
	is(sql("SELECT j FROM index_mover.job_log j WHERE job = $job"), $row, "$name: its row stays as it is");
	is(sql("SELECT count(*) FROM index_mover_check('0 s') WHERE kind = 'paused job' OR detail LIKE '%interrupted%'"), 0,
		"$name: neither paused nor interrupted");
	($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate, detail FROM undo_move($job)");
	like($err, qr/ERROR:  relation "held" is already being moved\nDETAIL:  $says/i, "$name: undo_move says why not");
	($rc, $out, $err) = $node->psql('postgres', "SELECT resume_move($job)");
	like($err, qr/ERROR:  relation "held" is already being moved\nDETAIL:  $says/i, "$name: resume_move says why not");
	($rc, $out, $err) = $node->psql('postgres', "SELECT cancel_move($job)");
	is($out, 0, "$name: cancel_move");
	like($err, qr/NOTICE:  $says/, "$name: a NOTICE says why not");
	is(sql("SELECT acknowledged_at IS NOT NULL FROM index_mover.job_log WHERE job = $job"), 't', "$name: it acknowledges the end");
	$reader->run('COMMIT');
	$reader->end;
	wait_for_no_worker($node);
	my $then = sql("SELECT resume_move($job)");
	wait_for_job_end($node, $then);
	like(outcome($then), qr/^held_\w+ moved$/, "$name: resume_move afterwards");
	is(sql("SELECT status FROM undo_move($job)"), 'moved', "$name: undo_move afterwards");
}
leftovers_ok($node, 'still cleaning up', within => 5);
sql('DROP TABLE held');

# ---------------------------------------------------------------------------
# Cleanup: a job whose row another session changes, and an index whose table is locked,
# do not keep it from the others
# ---------------------------------------------------------------------------
my $other = IndexMover::Session->new($node);
my ($oldest) = sql('SELECT min(job) FROM index_mover.job_log');
sql("UPDATE index_mover.job_log SET submitted_at = submitted_at - interval '400 days' WHERE job <= $oldest + 1");
my $expired = sql("SELECT count(*) FROM index_mover.job_log WHERE job <= $oldest + 1") - 1;
$other->run("BEGIN; UPDATE index_mover.job_log SET settings = '{}' WHERE job = $oldest");
($rc, $out, $err) = $node->psql('postgres',
	"SET statement_timeout = '60s'; SELECT object FROM index_mover_cleanup() WHERE kind = 'history'");
is($out, "$expired job", 'cleanup: the other job is deleted') or diag $err;
like($err, qr/WARNING:  could not delete job $oldest from the history\nDETAIL:  could not obtain lock on row in relation "job_log"/,
	'cleanup: and a WARNING names the one that is not, which it does not wait for');
$other->run('COMMIT');
is(sql("SELECT count(*) FROM index_mover.job_log WHERE job <= $oldest + 1"), '1', 'cleanup: it is still there');

sql(<<'SQL');
CREATE TABLE locked (i int);
CREATE INDEX locked_i_ccnew ON locked (i);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'locked_i_ccnew'::regclass;
CREATE INDEX locked_i ON locked (i);
INSERT INTO index_mover.ledger
SELECT nextval('index_mover.ledger_seq'), system_identifier, d.oid, 'i', 0, 0, 'locked'::regclass, 'locked_i'::regclass,
  'locked_i_ccnew'::regclass, 999999, 0, now(), 'locked_i_ccnew'
  FROM pg_control_system(), pg_database d WHERE datname = current_database();
SQL
$other->run('BEGIN; DROP INDEX locked_i_ccnew');
is(sql("SET lock_timeout = '10s'; SELECT object, size > 0, action FROM index_mover_cleanup(dry_run => true) WHERE kind LIKE '%index'"),
	'public.locked_i_ccnew|t|remove',
	'cleanup: a plan does not wait for who has locked a leftover');
$other->run('ROLLBACK');
is(sql('SELECT object, size > 0, action FROM index_mover_cleanup() WHERE kind LIKE $$%index$$'), 'public.locked_i_ccnew|t|removed',
	'cleanup: and it is removed afterwards');
$other->end;
sql('DROP TABLE locked');

# ---------------------------------------------------------------------------
# max_duration
# ---------------------------------------------------------------------------
$job = begin_job($node, 'st', 'regress_fast', max_rate => '2MB', max_workers => 1, max_duration => '1s');
wait_for_job_end($node, $job);
is(outcome($job), 'st_n moved, st_pkey skipped, st_s skipped', 'max_duration: no further index is started');
like(sql("SELECT message FROM index_mover_history WHERE job = $job AND name = 'st_s'"), qr/max_duration was over/,
	'and the history says why');
sql("SELECT count(*) FROM undo_move($job)");

# ---------------------------------------------------------------------------
# Rebuilds pause between two indexes, and never run side by side on a table
# ---------------------------------------------------------------------------
my $writer = IndexMover::Session->new($node);
$writer->run('BEGIN; LOCK TABLE st IN ROW EXCLUSIVE MODE');
$job = begin_job($node, 'st', 'regress_fast', method => 'rebuild');
poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job AND name = 'st_n'", 'waiting for writers before build',
	'the writer');
is(sql("SELECT count(*) FROM index_mover_progress WHERE job = $job AND name IS NOT NULL"), '1', 'one rebuild of a table at a time');
sql("SELECT pause_move($job)");
poll_until($node, "SELECT bool_or(throttled_by = 'pause_move()' AND name = 'st_n') FROM index_mover_progress WHERE job = $job", 't',
	'the pause before the build');
$writer->run('COMMIT');
is(outcome($job), 'st_n paused, st_pkey paused, st_s paused', 'a rebuild that waits for writers pauses before it builds');
is(sql("SELECT count(*) FROM pg_class WHERE relname LIKE 'st%\\_ccnew'"), '0', 'and has made nothing');
sql("SELECT resume_move($job)");
my $together = 0;
while (sql("SELECT count(*) FROM index_mover_progress WHERE job = $job"))
{
	$together++ if sql("SELECT count(*) FROM index_mover_progress WHERE job = $job AND name IS NOT NULL AND phase <> 'initializing' AND "
		. "throttled_by IS NULL") > 1;
}
is($together, 0, 'no two rebuilds at the same time');
is(outcome($job), 'st_n moved, st_pkey moved, st_s moved', 'the rest was rebuilt after resume_move');
is(sql("SELECT count(*) FROM undo_move($job) WHERE status = 'moved' AND method = 'rebuild'"), '3',
	'undo_move of rebuilds, by the same method');

# Nor does a copy run beside the rebuild of another index of its table: the second
# worker goes on to the next table.
sql(<<'SQL');
CREATE SCHEMA mixed;
CREATE TABLE mixed.a (i int, r int4range, CONSTRAINT a_x EXCLUDE USING gist (r WITH &&)) WITH (autovacuum_enabled = off);
CREATE INDEX a_i ON mixed.a (i);
INSERT INTO mixed.a SELECT g, int4range(g, g + 1) FROM generate_series(1, 30000) g;
DELETE FROM mixed.a WHERE i % 10 > 0;
CREATE TABLE mixed.b (i int);
CREATE INDEX b_i ON mixed.b (i);
INSERT INTO mixed.b SELECT generate_series(1, 150000);
SQL
sql('VACUUM mixed.a');
$writer->run('BEGIN; LOCK TABLE mixed.a IN ROW EXCLUSIVE MODE');
$job = sql("SELECT max(job) FROM move_schema_indexes('mixed', 'regress_fast', wait => false)");
poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND name = 'mixed.b_i'", 'moved', 'the index of another table');
is(outcome($job), 'mixed.a_i running, mixed.a_x queued, mixed.b_i moved', 'no copy beside the rebuild of another index of its table');
$writer->run('COMMIT');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job", '0', 'the end of the job');
is(sql("SELECT string_agg(name || ' ' || method || ' ' || status, ', ' ORDER BY name) FROM index_mover_history WHERE job = $job"),
	'mixed.a_i rebuild moved, mixed.a_x copy moved, mixed.b_i copy moved', 'each was moved by its own method');
sql('DROP SCHEMA mixed CASCADE');

# one that builds goes on to its end; an index expression holds it in the middle
sql(<<'SQL');
CREATE FUNCTION gate(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_lock_shared(42);
	PERFORM pg_advisory_unlock_shared(42);
	RETURN i;
END $$;
CREATE TABLE gated (i int);
INSERT INTO gated SELECT generate_series(1, 20);
CREATE INDEX gated_a ON gated (gate(i)) TABLESPACE regress_slow;
CREATE INDEX gated_b ON gated (i) TABLESPACE regress_slow;
SQL
$writer->run('SELECT pg_advisory_lock(42)');
$job = begin_job($node, 'gated', 'regress_fast', method => 'rebuild');
poll_until($node, "SELECT bool_or(phase = 'building index' AND name = 'gated_a') FROM index_mover_progress WHERE job = $job", 't',
	'the build');
sql("SELECT pause_move($job)");
$writer->run('SELECT pg_advisory_unlock(42)');
poll_until($node, "SELECT bool_or(throttled_by = 'pause_move()' AND name = 'gated_b') FROM index_mover_progress WHERE job = $job", 't',
	'the pause between two rebuilds');
is(outcome($job), 'gated_a moved, gated_b paused', 'the rebuild that had begun has ended, the next has not begun');
sql("SELECT resume_move($job)");
wait_for_job_end($node, $job);
is(outcome($job), 'gated_a moved, gated_b moved', 'and is done after resume_move');

# how long a rebuild will take is not known, however far the scan of the table is
sql(<<'SQL');
CREATE FUNCTION late_gate(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF i = 2900 THEN
		PERFORM pg_advisory_lock_shared(42);
		PERFORM pg_advisory_unlock_shared(42);
	END IF;
	RETURN i;
END $$;
CREATE TABLE late (i int);
INSERT INTO late SELECT generate_series(1, 3000);
CREATE INDEX late_i ON late (late_gate(i)) TABLESPACE regress_slow;
SQL
$writer->run('SELECT pg_advisory_lock(42)');
$job = begin_job($node, 'late', 'regress_fast', method => 'rebuild');
poll_until($node, "SELECT phase = 'building index' AND blocks_done > 0 AND blocks_done < blocks_total FROM index_mover_progress WHERE "
	. "job = $job", 't', 'the build, well on its way');
is(sql("SELECT eta IS NULL FROM index_mover_progress WHERE job = $job"), 't', 'a rebuild does not say how long it will take');
$writer->run('SELECT pg_advisory_unlock(42)');
wait_for_job_end($node, $job);
is(outcome($job), 'late_i moved', 'it is moved');
$writer->end;

# ---------------------------------------------------------------------------
# Several runners
# ---------------------------------------------------------------------------
$job = begin_job($node, 'st', 'regress_fast', max_rate => '512kB', max_workers => 2, verify => 'on');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND phase = 'copying blocks' AND table_name = 'st'", '2',
	'two copies of one table');
pass('two indexes of one table are copied at the same time');
sql("UPDATE st SET s = md5(s), n = n - 1 WHERE i % 10 = 7");
sql("SELECT pause_move($job)");
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND throttled_by = 'pause_move()'", '2', 'the pause of both');
sql("SELECT alter_move($job, 'max_rate', '0'), resume_move($job)");
wait_for_job_end($node, $job);
is(outcome($job), 'st_n moved, st_pkey moved, st_s moved', 'all are moved');
all_right($node, 'st', 'two runners', no_metadata => 1, max_keys => 200, large => 1);

# one of two is terminated: the job ends
$job = begin_job($node, 'st', 'regress_slow', max_rate => '128kB', max_workers => 2);
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND blocks_done > 0", '2', 'two runners');
sql("SELECT pg_terminate_backend(max(pid)) FROM index_mover_progress WHERE job = $job");
soon_ok(wait_for_job_end($node, $job), 5, 'a terminated runner ends its job');
is(outcome($job), 'st_n canceled, st_pkey canceled, st_s canceled', 'the history says so of all indexes');
leftovers_ok($node, 'terminated runner', within => 5);
files_ok($node, 'terminated runner');

# ---------------------------------------------------------------------------
# Too few worker processes; a crash, and the janitor
# ---------------------------------------------------------------------------
# one is the launcher of logical replication, one is ours
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover'\nmax_worker_processes = 3");
$node->restart;
# the janitor looks into each database now
for (my $quiet = 0; $quiet < 10; $quiet++)
{
	$quiet = 0 if sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'");
	usleep(100_000);
}
($rc, $out, $err) = $node->psql('postgres',
	"SELECT count(*) FROM move_indexes('st', 'regress_slow', method => 'copy') WHERE status = 'moved'");
is($out, '3', 'with one worker process for two everything is moved');
like($err, qr/NOTICE:  moving 1 instead of 2 indexes at the same time/, 'and a NOTICE says what is missing');
# (the process of before is gone a moment before the postmaster knows)
for (1 .. 10 * $IndexMover::Test::TIMEOUT)
{
	($rc, $out, $err) = $node->psql('postgres', "SELECT string_agg(status, ' ') FROM move_table('st', 'regress_slow', rehearse => true)");
	last if $rc == 0;
	usleep(100_000);
}
is($out, 'rehearsed rehearsed rehearsed', 'a table and its TOAST table');
unlike($err, qr/instead of/, 'need one worker process');
for (1 .. 10 * $IndexMover::Test::TIMEOUT)
{
	last if eval { $job = begin_job($node, 'st', 'regress_fast', max_rate => '1MB', max_workers => 1); 1 };
	die $@ unless $@ =~ /could not register background process/;
	usleep(100_000);
}
($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM move_indexes('small', 'regress_fast')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is(sqlstate_of($err), '53000', 'no worker process at all');
like($err, qr/HINT:  .*You may need to increase "max_worker_processes"/, 'and the setting to raise');
poll_until($node, "SELECT count(*) FROM index_mover_history WHERE job = $job AND status = 'moved'", '1', 'the first index');
sql("SELECT alter_move($job, 'max_rate', '128kB')");
wait_for_blocks($job, 10);

$pid = worker_pid($node);
$log = -s $node->logfile;
kill 'KILL', $pid;
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
poll_until($node, "SELECT count(*) FROM index_mover.ledger", '0', 'the janitor');
pass('after a crash the janitor removes the leftovers without being asked');
is(outcome($job), 'st_n moved, st_pkey interrupted, st_s interrupted', 'the job is on record as interrupted');
wait_for_no_worker($node);
$node->safe_psql('postgres', 'CHECKPOINT');
files_ok($node, 'after the crash');
($rc, $out, $err) = $node->psql('postgres', "SELECT resume_move($job, '{\"max_rate\": \"0\"}')");
($rest) = $err =~ /the rest of job $job is job (\d+)/;
ok($rest, 'a NOTICE gives the number of the job with the rest');
is($out, $rest, 'resume_move of an interrupted job returns it, too');
$node->safe_psql('postgres', "CALL wait_for_move($rest)");
is(outcome($rest), 'st_pkey moved, st_s moved', 'it does only what was left');
is(tablespace_of_index($node, 'st'), "st_n: regress_fast\nst_pkey: regress_fast\nst_s: regress_fast", 'everything is where it should be');
all_right($node, 'st', 'after the crash', no_metadata => 1, max_keys => 200, within => 2, large => 1);

# Who has ended has its totals in its row, from C; from one that has none the view makes them in SQL
my $totals = 'SELECT job, status, moved, total, percent, size, longest_lock, tablespace, started_at, finished_at FROM index_mover_jobs '
	. 'WHERE finished_at IS NOT NULL';
my $of_rows = sql($totals);
like($of_rows, qr/\|$_\|/, "totals of jobs: one that was $_") foreach qw(moved failed canceled rehearsed);
is(sql("BEGIN; UPDATE index_mover.job_log SET (status, moved, total, size, size_done, longest_lock, tablespace, started_at, finished_at) = "
		. "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL); $totals; ROLLBACK"),
	$of_rows, 'the totals of a job are the same in C and in SQL');

done_testing();
