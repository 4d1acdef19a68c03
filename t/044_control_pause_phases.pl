# pause_move() is obeyed in every phase of a copy: it says so, keeps no vacuum
# waiting, and goes on from there.  (Under the exclusive lock of
# the swap it goes on to the end of that first.)
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

needs_faults();
needs_test_points();

# the phases are those of a move as it is by default; with "verify" where it is said
my $node = new_node('pause_phases', verify => 0, conf => "max_wal_size = 128MB\n");
$node->safe_psql('postgres', <<SQL);
CREATE TABLE pp (i int, s text) WITH (autovacuum_enabled = off);
INSERT INTO pp SELECT g, md5(g::text) FROM generate_series(1, 40000) g;
CREATE INDEX pp_s ON pp (s) WITH (fillfactor = 10) TABLESPACE regress_slow;
VACUUM ANALYZE pp;
CREATE TABLE pp_dead (i int) WITH (autovacuum_enabled = off);
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

cmp_ok(sql("SELECT pg_relation_size('pp_s')"), '>', 18 * 1024 * 1024, 'the old file is removed in more than one step');

my $gate = IndexMover::Session->new($node);

sub begin_move
{
	my (%settings) = @_;
	return begin_job($node, 'pp_s', elsewhere($node, 'pp_s'), %settings);
}

sub wait_for_state
{
	my ($job, $phase) = @_;
	poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job AND throttled_by IS NULL", $phase, "phase \"$phase\"");
	return;
}

sub wait_for_rest
{
	my ($job, $why) = @_;
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", $why, "a rest because of $why");
	return;
}

sub wait_in_queue
{
	my ($relation, $mode, $name) = @_;
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = '$mode' AND relation = '$relation'::regclass", '1',
		$name);
	return;
}

# Expect the job to say that it is paused, in the end, and to be in no session's way then.
sub paused_ok
{
	my ($job, $name) = @_;
	wait_for_rest($job, 'pause_move()');
	pass("$name: paused");
	is(sql("SELECT eta IS NULL AND blocked_by = '{}' FROM index_mover_progress WHERE job = $job"), 't',
		"$name: it waits for no session, and for no known time");
	is(sql("SELECT status FROM index_mover_history WHERE job = $job"), 'paused', "$name: the history says so");
	is(sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT "
		. "NULL)"),
		'0', "$name: no snapshot, no transaction ID");
	sql('INSERT INTO pp_dead SELECT generate_series(1, 100); DELETE FROM pp_dead');
	my ($rc, $out, $err) = $node->psql('postgres', "VACUUM (VERBOSE) pp_dead; SET lock_timeout = '60s'; VACUUM pp");
	is($rc, 0, "$name: VACUUM of the table passes");
	like($err, qr/100 removed, 0 remain, 0 are dead but not yet removable/, "$name: dead rows are removed elsewhere");
	return;
}

sub resume_ok
{
	my ($job, $name) = @_;
	is(sql("SELECT alter_move($job, 'max_rate', '0') AND resume_move($job) = $job"), 't', "$name: resume_move");
	wait_for_job_end($node, $job);
	is(sql("SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "$name: moved");
	return;
}

# ---------------------------------------------------------------------------
# Way given during a pause: the time in which nothing was done counts once
# ---------------------------------------------------------------------------
{
	my $job = begin_move(max_rate => '1MB');
	poll_until($node, "SELECT coalesce(max(blocks_done), 0) > 0 FROM index_mover_progress WHERE job = $job", 't', 'the copy to begin');
	sql("SELECT pause_move($job)");
	wait_for_rest($job, 'pause_move()');
	my $holder = IndexMover::Session->new($node);
	$holder->run('BEGIN; ALTER TABLE pp ADD COLUMN more int');
	poll_until($node, "SELECT phase LIKE 'waiting for lock%' FROM index_mover_progress WHERE job = $job", 't', 'the copy to wait for DDL');
	$holder->run('SELECT pg_sleep(3); ROLLBACK');
	$holder->end;
	resume_ok($job, 'way given during a pause');
	is(sql("SELECT idle BETWEEN 2000 AND 1000 * extract(epoch FROM finished_at - started_at) FROM index_mover.move_log WHERE job = $job"),
		't', 'way given during a pause: counted once')
			or diag sql("SELECT idle, finished_at - started_at FROM index_mover.move_log WHERE job = $job");
}

# ---------------------------------------------------------------------------
# At places in the code: held there, told to pause, let go
# ---------------------------------------------------------------------------
my $log;

foreach my $case (
	[ 'copy-registered', {} ],
	[ 'copy-first', {} ],
	[ 'copy-half', {} ],
	[ 'copy-round', { changes => 1 } ],
	[ 'copy-before-sync', {} ],
	[ 'copy-synced', {} ],
	[ 'copy-verifying', { verify => 1 } ],
	[ 'swap-locked', { swapped => 1 } ],
	[ 'swapped', { swapped => 1 } ],
	[ 'prewarmed', { swapped => 1 } ],
	[ 'old-file-step', { swapped => 1 } ])
{
	my ($point, $case) = @$case;
	my $before = tablespace_of_index($node, 'pp_s');
	my %settings;
	$settings{verify} = 'on' if $case->{verify};
	$settings{max_rate} = '4MB' if $case->{changes};
	# something for prewarming to do
	sql("SELECT count(*) FROM (SELECT /* all of it */ s FROM pp ORDER BY s) q") if $case->{swapped};

	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	set_test_point($node, "$point:wait");
	$log = -s $node->logfile;
	my $job = begin_move(%settings);
	if ($case->{changes})
	{
		poll_until($node, "SELECT blocks_done > 256 FROM index_mover_progress WHERE job = $job", 't', 'some blocks');
		sql("UPDATE pp SET s = md5(s) WHERE i % 4 = 0");
		sql("SELECT alter_move($job, 'max_rate', '0')");
	}
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	sql("SELECT pause_move($job)");
	$gate->run('SELECT pg_advisory_unlock(0, 5959)');
	paused_ok($job, $point);
	my $after = tablespace_of_index($node, 'pp_s');
	if ($case->{swapped})
	{
		isnt($after, $before, "$point: the index is moved already");
		is(sql('SELECT count(*) FROM index_mover.ledger'), '1', "$point: the old file is still there");
	}
	else
	{
		is($after, $before, "$point: the index is where it was");
	}
	set_test_point($node, '');
	resume_ok($job, $point);
	isnt(tablespace_of_index($node, 'pp_s'), $before, "$point: the index is where it should be");
}
all_right($node, 'pp', 'paused at places', no_metadata => 1, max_keys => 200, within => 5);

# ---------------------------------------------------------------------------
# While it waits
# ---------------------------------------------------------------------------
my $other = IndexMover::Session->new($node);
my $job;

# for its locks, at the start
$other->run('BEGIN; LOCK TABLE pp IN ACCESS EXCLUSIVE MODE');
$job = begin_move();
wait_for_state($job, 'waiting for lock to start');
sql("SELECT pause_move($job)");
wait_for_rest($job, 'pause_move()');
$other->run('COMMIT');
paused_ok($job, 'waiting for lock to start');
is(sql("SELECT blocks_done FROM index_mover_progress WHERE job = $job"), '0', 'and nothing was begun');
resume_ok($job, 'waiting for lock to start');

# for DDL that it has let pass
$job = begin_move(max_rate => '1MB');
poll_until($node, "SELECT blocks_done > 0 FROM index_mover_progress WHERE job = $job", 't', 'the copy');
$log = -s $node->logfile;
$other->run('BEGIN; ALTER TABLE pp ADD COLUMN x int');
poll_until($node, "SELECT phase IN ('giving way', 'waiting for lock to start') FROM index_mover_progress WHERE job = $job", 't',
	'the copy that gives way');
sql("SELECT pause_move($job)");
wait_for_rest($job, 'pause_move()');
pass('pauses when it waits behind DDL');
$other->run('COMMIT');
paused_ok($job, 'giving way');
resume_ok($job, 'giving way');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $log), qr/starting the copy of index/, 'what was done was kept');

# because of a rate
$job = begin_move(max_rate => '64kB');
wait_for_rest($job, 'max_rate');
sql("SELECT pause_move($job)");
paused_ok($job, 'max_rate');
resume_ok($job, 'max_rate');

# for its time
$job = begin_move(swap_after => 'infinity');
wait_for_state($job, 'waiting for time to swap');
sql("SELECT pause_move($job)");
paused_ok($job, 'waiting for time to swap');
is(sql("SELECT phase FROM index_mover_progress WHERE job = $job"), 'waiting for time to swap',
	'waiting for time to swap: it stays in that phase');
sql("SELECT resume_move($job)");
wait_for_state($job, 'waiting for time to swap');
sql("SELECT alter_move($job, 'swap_after', '')");
wait_for_job_end($node, $job);

# for the exclusive lock; the time of the pause is no part of lock_wait
$other->run("BEGIN; SELECT count(*) FROM pp WHERE s = 'x'");
$job = begin_move(lock_wait => 0, on_blocker => 'fail');
poll_until($node, "SELECT phase = 'waiting for lock to swap' AND blocked_by = ARRAY[" . $other->pid
	. "] FROM index_mover_progress WHERE job = $job", 't', 'the wait for the lock');
sql("SELECT pause_move($job)");
paused_ok($job, 'waiting for lock to swap');
sql("SELECT alter_move($job, 'lock_wait', '4s')");
my $paused = sql('SELECT clock_timestamp()');
usleep(4_200_000);
my $resumed = sql('SELECT clock_timestamp()');
sql("SELECT resume_move($job)");
poll_until($node, "SELECT status || ' ' || sqlstate FROM index_mover_history WHERE job = $job", 'failed 55P03', 'the end of lock_wait');
cmp_ok(sql("SELECT extract(epoch FROM finished_at - started_at - ('$resumed'::timestamptz - '$paused')) FROM index_mover_history WHERE "
	. "job = $job"), '>', 4, 'the time of the pause is no part of lock_wait');
$other->run('COMMIT');
wait_for_job_end($node, $job);
all_right($node, 'pp', 'at the end', no_metadata => 1, max_keys => 200, within => 5);

# in the queue for a lock of the swap, for as long as lock_timeout says: it leaves the queue, and
# does not swap when the others end
foreach my $case (
	[ "SELECT count(*) FROM pp WHERE s = 'x'", 'pp_s', 'AccessExclusiveLock' ],
	[ 'LOCK TABLE pg_policy IN SHARE MODE', 'pg_policy', 'RowExclusiveLock' ])
{
	my ($sql, $relation, $mode) = @$case;
	my $name = "in the queue for $relation";
	my $before = tablespace_of_index($node, 'pp_s');
	$other->run("BEGIN; $sql");
	$job = begin_move(lock_wait => 0, lock_timeout => '10min');
	wait_in_queue($relation, $mode, $name);
	sql("SELECT pause_move($job)");
	paused_ok($job, $name);
	$other->run('COMMIT');
	paused_ok($job, "$name, whose holder has ended");
	is(tablespace_of_index($node, 'pp_s'), $before, "$name: not swapped");
	resume_ok($job, $name);
}

# the same for a partitioned table
{
	my $name = 'in the queue for a partitioned table';
	my $place = "SELECT coalesce((SELECT spcname FROM pg_tablespace t WHERE t.oid = reltablespace), '') FROM pg_class WHERE relname = 'pt'";
	sql('CREATE TABLE pt (i int) PARTITION BY RANGE (i)');
	$other->run('BEGIN; SELECT count(*) FROM pt');
	$job = sql("SELECT max(job) FROM move_table('pt', 'regress_fast', wait => false, settings => "
		. '\'{"lock_wait": "0", "lock_timeout": "10min"}\')');
	wait_in_queue('pt', 'AccessExclusiveLock', $name);
	sql("SELECT pause_move($job)");
	wait_for_rest($job, 'pause_move()');
	is(sql('SELECT count(*) FROM pg_locks WHERE NOT granted'), '0', "$name: it leaves the queue");
	$other->run('COMMIT');
	paused_ok($job, $name);
	is(sql($place), '', "$name: nothing is set while it is paused");
	resume_ok($job, $name);
	is(sql($place), 'regress_fast', "$name: it is afterwards");
}

# for the lock on a partitioned index, whose default for new partitions is set
sql('CREATE TABLE pd (i int) PARTITION BY RANGE (i); CREATE INDEX pd_i ON pd (i) TABLESPACE regress_slow');
$other->run('BEGIN; LOCK TABLE ONLY pd IN ACCESS EXCLUSIVE MODE');
$job = sql("SELECT max(job) FROM move_indexes('pd', 'regress_fast', wait => false, settings => '{\"lock_wait\": \"0\"}')");
poll_until($node, "SELECT phase = 'waiting for lock to swap' AND blocked_by = ARRAY[" . $other->pid
	. "] FROM index_mover_progress WHERE job = $job", 't', 'the wait for a partitioned index');
sql("SELECT pause_move($job)");
wait_for_rest($job, 'pause_move()');
$other->run('COMMIT');
paused_ok($job, 'partitioned index');
is(tablespace_of_index($node, 'pd_i'), 'regress_slow', 'partitioned index: nothing is set while it is paused');
resume_ok($job, 'partitioned index');
is(tablespace_of_index($node, 'pd_i'), 'regress_fast', 'partitioned index: it is afterwards');
$gate->end;
$other->end;

# for those who use a table on which an earlier move has left something
leave_behind($node, 'postgres');
$other = IndexMover::Session->new($node);
$other->run('BEGIN; LOCK TABLE behind_rebuild IN ROW EXCLUSIVE MODE');
my $left = "SELECT count(*) FROM pg_class WHERE relname = 'behind_rebuild_i_ccnew'";
foreach my $how ('cancel', 'pause')
{
	$job = sql("SELECT max(job) FROM move_indexes('behind_rebuild', 'regress_fast', method => 'copy', wait => false, settings => "
		. "'{\"lock_wait\": \"0\"}')");
	poll_until($node, "SELECT phase = 'cleaning up' AND blocked_by = ARRAY[" . $other->pid . "] FROM index_mover_progress WHERE job = $job",
		't', "$how: cleaning up before the move");
	sql("SELECT ${how}_move($job)");
	if ($how eq 'cancel')
	{
		wait_for_job_end($node, $job);
		is(sql("SELECT status || ' ' || sqlstate FROM index_mover_history WHERE job = $job"), 'canceled 57014',
			'a cancel while it cleans up ends it');
		next;
	}
	wait_for_rest($job, 'pause_move()');
	$other->run('COMMIT');
	paused_ok($job, 'cleaning up before the move');
	is(sql($left), '1', 'cleaning up before the move: and goes no further');
	resume_ok($job, 'cleaning up before the move');
	is(sql($left), '0', 'cleaning up before the move: done after it');
}
leftovers_ok($node, 'cleaned up before a move', within => 5);
$other->end;

done_testing();
