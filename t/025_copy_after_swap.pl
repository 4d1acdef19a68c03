# The method copy after the swap: what was cached is cached again, and pause,
# DDL and cancel are obeyed while blocks are loaded and the old file is removed.  And
# what it says of itself and its limits: lock_time, memory, verify.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

# what is cached, the memory and lock_time are those of a move as it is by default
my $node = new_node('after_swap', verify => 0, conf => "checkpoint_timeout = 1h\nmax_wal_size = 2GB\nshared_buffers = 128MB");
$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_buffercache;
CREATE EXTENSION pg_prewarm;
CREATE TABLE after_swap (i int, s text) WITH (fillfactor = 80);
INSERT INTO after_swap SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 100000) g;
CREATE INDEX after_swap_s ON after_swap (s) TABLESPACE regress_slow;
CREATE TABLE seen_before (block bigint);
LOAD 'index_mover';
SQL
my $s;
my $gate;

sub elsewhere
{
	return $s->run("SELECT CASE t.spcname WHEN 'regress_slow' THEN 'regress_fast' ELSE 'regress_slow' END FROM pg_class c JOIN "
		. "pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'after_swap_s'::regclass");
}

# Start a move, and let it go to a point.
sub move_to_point
{
	my ($point, %settings) = @_;
	set_test_point($node, "$point:wait");
	$gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $to = elsewhere();
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	my $job = $s->run(
		"SELECT job FROM move_indexes('after_swap_s', '$to', method => 'copy', wait => false, settings => '{$json}')");
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	return ($job, $to);
}

# How often it has come to the point prewarm-step.
sub steps
{
	my ($log) = @_;
	return scalar(() = slurp_file($node->logfile, $log) =~ /test point "prewarm-step": waiting/g);
}

sub throttled_by { return $s->run("SELECT string_agg(throttled_by, ',') FROM index_mover_progress WHERE job = $_[0]"); }

# The index is where it was to be and right, and nothing is left.
sub all_right_in
{
	my ($to, $name) = @_;
	like(tablespace_of_index($node, 'after_swap'), qr/^after_swap_s: $to$/, "$name: moved");
	is($s->run('SELECT count(*) FROM index_mover.ledger'), '0', "$name: the ledger is empty");
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	$s->run("SELECT oracle.structure('after_swap_s')");
	return;
}

# ---- what was cached is cached again -------------------------------------------------
my $in_buffers = <<SQL;
FROM pg_buffercache b
WHERE b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND b.reltablespace = (SELECT oid FROM pg_tablespace WHERE spcname = '%s')
  AND b.relfilenode = %s AND b.relforknumber = 0
SQL
foreach my $prewarm ('on', 'off')
{
	# cold, but for some blocks of the index
	$s->end if $s;
	$node->restart;
	$s = IndexMover::Session->new($node);
	$s->run("SELECT pg_prewarm('after_swap_s', 'buffer', 'main', 100, 900), pg_prewarm('after_swap_s', 'buffer', 'main', 2000, 2100)");
	my $from = elsewhere() eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
	my $number = $s->run("SELECT pg_relation_filenode('after_swap_s')");
	my ($job, $to) = move_to_point('swapped', prewarm => $prewarm);
	$s->run('TRUNCATE seen_before');
	$s->run('INSERT INTO seen_before SELECT b.relblocknumber ' . sprintf($in_buffers, $from, $number));
	my $before = $s->run('SELECT count(*) FROM seen_before');
	my $total = $s->run("SELECT pg_relation_size('after_swap_s') / current_setting('block_size')::int");
	cmp_ok($before, '>=', 900, "prewarm $prewarm: $before of $total blocks were cached before the swap");
	cmp_ok($before, '<', $total / 2, "prewarm $prewarm: not all");
	$gate->end;
	$s->run("CALL wait_for_move($job)");
	set_test_point($node, '');
	$number = $s->run("SELECT pg_relation_filenode('after_swap_s')");
	my $missing = $s->run('SELECT count(*) FROM (SELECT block FROM seen_before EXCEPT SELECT b.relblocknumber '
		  . sprintf($in_buffers, $to, $number) . ') m');
	my $now = $s->run('SELECT count(*) ' . sprintf($in_buffers, $to, $number));
	if ($prewarm eq 'on')
	{
		is($missing, '0', 'prewarm on: each of them is cached after the move');
		cmp_ok($now, '<', $total / 2, "prewarm on: and not the whole index ($now)");
	}
	else
	{
		cmp_ok($missing, '>', 800, "prewarm off: they are not ($missing of $before)");
	}
	all_right_in($to, "prewarm $prewarm");
}

# of a small file each block is looked up
foreach my $mutation ('', 'lookup')
{
	$s->run('DROP TABLE IF EXISTS few; CREATE TABLE few AS SELECT generate_series(1, 30000) AS i; '
		  . 'CREATE INDEX few_i ON few (i) TABLESPACE regress_slow');
	$s->run('CHECKPOINT');
	$s->run("SELECT pg_prewarm('few_i', 'buffer', 'main', 3, 12)");
	set_tests($node, test_mutation => $mutation);
	is($s->run("SELECT status FROM move_indexes('few_i', 'regress_fast', method => 'copy')"), 'moved', "small, '$mutation': moved");
	set_tests($node);
	my $cached = "SELECT count(*) " . sprintf($in_buffers, 'regress_fast', $s->run("SELECT pg_relation_filenode('few_i')"))
		. ' AND relblocknumber BETWEEN 3 AND 12';
	is($s->run($cached), $mutation eq '' ? '10' : '0', "small, '$mutation': what is cached again");
}

# ---- pause ------------------------------------------------------------------------------
# Hold it at a point after the swap, pause it, and let it go on from the point.
foreach my $case ([ 'prewarm-step', 'while blocks are loaded' ], [ 'old-file-step', 'while the old file is removed' ])
{
	my ($point, $name) = @$case;
	$s->run("SELECT count(*) FROM pg_prewarm('after_swap_s')");
	my ($job, $to) = move_to_point($point);
	$s->run("SELECT pause_move($job)");
	set_test_point($node, '');
	$gate->end;
	poll_until($node, "SELECT string_agg(throttled_by, ',') FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
	pass("paused $name");
	is($s->run('SELECT count(*) FROM index_mover.ledger'), '1', "paused $name: the old file is not removed yet");
	# it stays as it is: the steps would have been done by the time of so many looks
	my $orphans = $s->run('SELECT sum(size) FROM oracle.files()');
	cmp_ok($orphans, '>', 0, "paused $name: $orphans bytes of it are there");
	my $changed = 0;
	foreach my $look (1 .. 20)
	{
		$changed++ if throttled_by($job) ne 'pause_move()';
	}
	is($changed, 0, "paused $name: it stays so");
	is($s->run('SELECT sum(size) FROM oracle.files()'), $orphans, "paused $name: and no more of it goes");
	is($s->run("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'index\\_mover%' AND (backend_xid IS NOT NULL OR "
		. "backend_xmin IS NOT NULL)"),
		'0', "paused $name: without a snapshot or a transaction ID");

	# no session waits for a move that is paused
	my $ddl = IndexMover::Session->new($node);
	$ddl->send("SET lock_timeout = '60s'; ALTER INDEX after_swap_s SET (fillfactor = 90); ALTER INDEX after_swap_s RESET (fillfactor)");
	$ddl->answer;
	is($ddl->errors, '', "paused $name: DDL passes");
	$ddl->end;
	poll_until($node, "SELECT string_agg(throttled_by, ',') FROM index_mover_progress WHERE job = $job", 'pause_move()',
		'the pause, after DDL');

	$s->run("SELECT resume_move($job)");
	$s->run("CALL wait_for_move($job)");
	is($s->run("SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "resumed $name: moved");
	all_right_in($to, "resumed $name");

	# and a cancel ends the pause, not the move, which has happened
	$s->run("SELECT count(*) FROM pg_prewarm('after_swap_s')");
	($job, $to) = move_to_point($point);
	$s->run("SELECT pause_move($job)");
	set_test_point($node, '');
	$gate->end;
	poll_until($node, "SELECT string_agg(throttled_by, ',') FROM index_mover_progress WHERE job = $job", 'pause_move()', 'the pause');
	$s->run("SELECT cancel_move($job)");
	$s->run("CALL wait_for_move($job)");
	is($s->run("SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "canceled $name: moved all the same");
	poll_until($node, 'SELECT count(*) FROM index_mover.ledger', '0', 'the removal');
	all_right_in($to, "canceled $name");
}

# ---- pg_cancel_backend() cancels the job, though the relation has moved -----------------------
# (the error of the cancel is caught, and only the loading or the removal ends)
$s->run('CREATE TABLE next_one AS SELECT * FROM after_swap; CREATE INDEX after_swap_next ON next_one (s, i) TABLESPACE regress_slow');
foreach my $point ('prewarm-step', 'old-file-step')
{
	my $move = "move_schema_indexes('public', '%s', method => 'copy', name_like => 'after\_swap\_%%'";
	my $to = elsewhere();
	my $from = $to eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	my $log;

	$s->run(sprintf "SELECT count(*) FROM $move)", $from);
	$s->run("SELECT pg_prewarm('after_swap_s'), pg_prewarm('after_swap_next')");
	set_test_point($node, "$point:wait");
	$gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	$log = -s $node->logfile;
	my $job = $s->run(sprintf "SELECT max(job) FROM $move, wait => false, settings => '{\"max_workers\": 1}')", $to);
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	is($s->run("SELECT pg_cancel_backend(pid) FROM index_mover_progress WHERE job = $job"), 't', "$point: the runner is canceled");
	set_test_point($node, '');
	$gate->end;
	$s->run("CALL wait_for_move($job, raise => false)");
	is($s->run("SELECT string_agg(status, ', ' ORDER BY started_at) FROM index_mover_history WHERE job = $job"), 'moved, canceled',
		"$point: and so is the rest of the job");
	leftovers_ok($node, "$point: pg_cancel_backend()", within => 5);
	files_ok($node, "$point: pg_cancel_backend()");
	$s->run("SELECT oracle.structure('after_swap_s')");
}
$s->run('DROP TABLE next_one');

# ---- a request to step back that comes too late ------------------------------------------------
# A session that waits for the caller of a move has kept it from the lock.  The runner is asked to
# step back, and gets the lock before it sees that: it has won the deadlock.
{
	my ($caller, $other) = map { IndexMover::Session->new($node) } 1, 2;
	my $to = elsewhere();
	my $log = -s $node->logfile;

	$s->run('CREATE TABLE one_row AS SELECT 1 AS one');
	$other->run('BEGIN; SAVEPOINT s; SELECT FROM after_swap LIMIT 1');
	set_tests($node, test_point => 'swap-asking:hold', test_mutation => 'looks:0');
	$gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	$caller->send("SELECT status, sqlstate FROM one_row, move_indexes('after_swap_s', '$to', method => 'copy')");
	$node->wait_for_log(qr/test point "swap-asking": waiting/, $log);
	is($s->run('SELECT blocked_by FROM index_mover_progress'), "{${\$other->pid}}", 'the copy waits');
	$other->send('LOCK TABLE one_row IN ACCESS EXCLUSIVE MODE');
	# the caller looks once a second
	sleep 3;
	$s->run("SELECT pg_cancel_backend(${\$other->pid})");
	$other->answer;
	$other->run('ROLLBACK TO s');
	$gate->end;
	is($caller->answer, 'moved|', 'asked to step back, and then free: moved');
	unlike($caller->errors, qr/WARNING/, 'asked to step back, and then free: it has won the deadlock');
	$other->run('ROLLBACK');
	$_->end foreach $caller, $other;
	set_tests($node);
	all_right_in($to, 'asked to step back, and then free');
	$s->run('DROP TABLE one_row');
}

# ---- DDL does not wait for the loading ---------------------------------------------------
{
	$s->run("SELECT count(*) FROM pg_prewarm('after_swap_s')");
	my $log = -s $node->logfile;
	my ($job, $to) = move_to_point('prewarm-step');
	$gate->end;
	$s->run("CALL wait_for_move($job)");
	cmp_ok(steps($log), '>', 5, 'all of the index is loaded in ' . steps($log) . ' steps');

	$log = -s $node->logfile;
	($job, $to) = move_to_point('prewarm-step');
	my $ddl = IndexMover::Session->new($node);
	$ddl->send('ALTER TABLE after_swap ADD COLUMN more int');
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE pid = $ddl->{pid} AND NOT granted", '1', 'DDL behind us');
	$gate->end;
	$ddl->answer;
	is($ddl->errors, '', 'DDL passes while blocks are loaded');
	$ddl->end;
	$s->run("CALL wait_for_move($job)");
	set_test_point($node, '');
	is(steps($log), 1, 'no more of them were loaded then');
	all_right_in($to, 'DDL while blocks are loaded');
}

# ---- lock_time is all of the time from the grant to the commit, and no more ---------------
sub move_small
{
	my (%settings) = @_;
	my $to = $s->run("SELECT CASE t.spcname WHEN 'regress_slow' THEN 'regress_fast' ELSE 'regress_slow' END FROM pg_class c JOIN "
		. "pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'small_i'::regclass");
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	return $s->run("SELECT job FROM move_indexes('small_i', '$to', method => 'copy', wait => false, settings => '{$json}')");
}

# Wait for its end; returns its lock_time in seconds.
sub lock_time
{
	my ($job) = @_;
	$s->run("CALL wait_for_move($job)");
	my ($status, $seconds) = split /\|/, $s->run("SELECT status, extract(epoch FROM lock_time) FROM index_mover_history WHERE job = $job");
	is($status, 'moved', 'a move for its lock_time');
	return $seconds;
}

$s->run(<<SQL);
CREATE TABLE small (i int);
INSERT INTO small SELECT generate_series(1, 30000);
CREATE INDEX small_i ON small (i) TABLESPACE regress_slow;
SQL
set_test_point($node, 'swap-locked:sleep');
cmp_ok(lock_time(move_small()), '>=', 0.09, 'lock_time has the tenth of a second after the grant');
set_test_point($node, 'swap-locked:sleep,swap-before-commit:sleep');
cmp_ok(lock_time(move_small()), '>=', 0.18, 'and the one before the commit');

# A second in the queue is none of it.  (A busy machine may lose one under the lock.)
my ($queued, $locked);
foreach my $try (1 .. 3)
{
	$gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my ($job, $holder) = queued_at($node, 'SELECT count(*) FROM small WHERE i = 1',
		sub { return move_small(lock_timeout => '2min', lock_wait => '0'); });
	$gate->end;
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE relation = 'small_i'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted",
		'1', 'the attempt');
	my $start = time;
	usleep(1_000_000);
	$queued = time - $start;
	$holder->run('COMMIT');
	$locked = lock_time($job);
	$holder->end;
	last if $locked < $queued;
}
cmp_ok($locked, '<', $queued, sprintf('lock_time, %.4f s, has nothing of the %.2f s in the queue', $locked, $queued));

# ---- memory does not grow with the number of changes ---------------------------------------
sub memory_of
{
	my ($pid) = @_;
	my $log = -s $node->logfile;
	$s->run("SELECT pg_log_backend_memory_contexts($pid)");
	$node->wait_for_log(qr/Grand total: \d+ bytes/, $log);
	my $total = 0;
	my $text = slurp_file($node->logfile, $log);
	$total += $1 while $text =~ /level: \d+; index_mover [^:\n]*: (\d+) total in/g;
	return $total;
}
{
	set_test_point($node, 'copy-end:wait,copy-synced:wait2');
	$gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $second = IndexMover::Session->new($node);
	$second->run('SELECT pg_advisory_lock(0, 5960)');
	my $log = -s $node->logfile;
	my $job = move_small(verify => 'on');
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
	my $pid = worker_pid($node);
	my $before = memory_of($pid);
	my $lsn = $s->run('SELECT pg_current_wal_lsn()');
	$s->run('UPDATE small SET i = i + 1') foreach 1 .. 3;
	my $changes = $s->run("SELECT pg_current_wal_lsn() - '$lsn'");
	$gate->end;
	$node->wait_for_log(qr/test point "copy-synced": waiting/, $log);
	my $after = memory_of($pid);
	cmp_ok($before, '>', 1_000_000, "memory of a copy: $before bytes, most of it its buffer of a megabyte");
	# beside these, WAL is read into buffers that are as large as the largest record
	my $most = 1_400_000 + 4 * 32 * block_size($node);
	cmp_ok($before, '<', $most, 'and no more than is documented');
	cmp_ok($after, '<', $most, "memory behind 180,000 changes ($changes bytes of WAL): $after bytes");
	$second->end;
	$s->run("CALL wait_for_move($job)");
	set_test_point($node, '');
	is($s->run("SELECT status, blocks_recopied > 10 FROM index_mover_history WHERE job = $job"), 'moved|t', 'they were all copied');
}

# ---- verify and hint bits of an index --------------------------------------------------------
{
	$s->run(<<SQL);
CREATE TABLE hashed (i int);
INSERT INTO hashed SELECT generate_series(1, 1000);
CREATE INDEX hash_i ON hashed USING hash (i) TABLESPACE regress_slow;
SQL
	set_test_point($node, 'copy-end:wait');
	$gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $job = $s->run("SELECT job FROM move_indexes('hash_i', 'regress_fast', method => 'copy', wait => false, settings => "
		. "'{\"verify\": true}')");
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
	$s->run('DELETE FROM hashed WHERE i = 500');
	# the row is dead for all transactions: the scan marks its index entry so
	$s->run('SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM hashed WHERE i = 500');
	set_test_point($node, '');
	$gate->end;
	$s->run("CALL wait_for_move($job, raise => false)");
	is($s->run("SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job"), 'moved||',
		'an entry marked dead while it is copied: verified');
}

# ---- what was copied through shared buffers ------------------------------------------------
# The next checkpoint writes it: a crash behind that restores none of it.
{
	my ($job, $to) = move_to_point('copy-synced');
	$s->run("UPDATE after_swap SET s = s || '.' WHERE i % 1000 = 1");
	set_test_point($node, '');
	$gate->end;
	$s->run("CALL wait_for_move($job)");
	$s->run('CHECKPOINT');
	$s->end;
	$node->stop('immediate');
	$node->start;
	$s = IndexMover::Session->new($node);
	all_right_in($to, 'crash behind the next checkpoint');
}

# ---------------------------------------------------------------------------
# Two workers whose last moves end at the same time, and both record the end of the job
# ---------------------------------------------------------------------------
{
	$s->run("CREATE TABLE $_ (i int); CREATE INDEX ${_}_i ON $_ (i) TABLESPACE regress_slow") foreach 'last_1', 'last_2';
	set_test_point($node, 'swapped:wait,history-close:wait2');
	my @gates = map { IndexMover::Session->new($node) } 1, 2;
	$gates[0]->run('SELECT pg_advisory_lock(0, 5959)');
	$gates[1]->run('SELECT pg_advisory_lock(0, 5960)');
	my $log = -s $node->logfile;
	my $job = $s->run(q{SELECT max(job) FROM move_schema_indexes('public', 'regress_fast', 'copy', wait => false, }
		. q{name_like => 'last%', settings => '{"max_workers": 2}')});
	foreach my $n (0, 1)
	{
		my $point = (qw(swapped history-close))[$n];
		$node->wait_for_log(qr/(?:test point "$point": waiting.*){2}/s, $log);
		$gates[$n]->end;
	}
	set_test_point($node, '');
	$s->run("CALL wait_for_move($job)");
	is($s->run("SELECT status, moved, total, percent FROM index_mover_jobs WHERE job = $job"), 'moved|2|2|100',
		'two last moves at once: both are in the totals of the job');
}

verdict_ok($node, 'after_swap', 'at the end', max_keys => 200, large => 1);
$s->end;
$node->stop;
done_testing();
