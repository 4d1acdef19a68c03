# Moves by copying when storage, WAL or the server let them down: a full target,
# recycled WAL, little WAL, crashes with and without a checkpoint, a dead
# postmaster.  (A source that goes away, and the ledger: t/028_copy_ledger.pl.)
#
# A standby is looked at, too, but not where WAL has to be recycled as soon as the
# copy's own checkpoints allow it (a standby might want it still, and who keeps WAL
# for that keeps it for the copy), nor with wal_level = minimal, which none can follow.
#
# Fault (storage): target full: a small file system
# Fault (storage): WAL recycled under a copy that stands still (also 040)
# Fault (replication): wal_level = minimal: a crash after a copy, also while a checkpoint is
#   under way, and after a rebuild
# Fault (replication): checkpoints and crashes in mid-copy, and between swap and removal, with
#   and without full_page_writes (also 034)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Shutdown;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('storage',
	streaming => 1,
	extra => [ '--data-checksums', '--wal-segsize=4' ],
	conf => <<CONF);
checkpoint_timeout = 1h
min_wal_size = 8MB
max_wal_size = 1GB
CONF
# a large index, and a large table, without many rows
$node->safe_psql('postgres', <<SQL);
CREATE TABLE store (i int, s text) WITH (fillfactor = 20);
INSERT INTO store SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 22500) g;
CREATE INDEX store_s ON store (s) WITH (fillfactor = 22) TABLESPACE regress_slow;
CREATE TABLE small (i int, s text) WITH (fillfactor = 80);
INSERT INTO small SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 20000) g;
CREATE INDEX small_s ON small (s) TABLESPACE regress_slow;
SELECT oracle.remember_metadata('store'), oracle.remember_metadata('small');
CREATE TABLE other (s text);
LOAD 'index_mover';
SQL
my $size = $node->safe_psql('postgres', "SELECT pg_relation_size('store_s')");
my $page_size = block_size($node);
cmp_ok($size, '>', 17 * 1024 * 1024, 'the old file is removed in more than one step');

# ---- a file system that has space for the new index, and for its sort files, but not both
foreach my $case ([ 'one file system', 1, 1.5, 'f' ], [ 'one file system', 1, 3, 't' ], [ 'two', 2, 1.5, 't' ])
{
	my ($name, $device, $times, $fits) = @$case;
	my $free = int($size * $times);
	is($node->safe_psql('postgres', <<SQL), $fits, "$name with $times times the size of the index: whether it fits");
SET index_mover.test_file_systems = 'regress_fast:1:$free:$free,regress_slow:$device:$free:$free';
SET index_mover.min_free_space = 0;
SET temp_tablespaces = regress_slow;
SET maintenance_work_mem = '1MB';
SET client_min_messages = error;
SELECT detail !~ 'Does not fit' FROM move_indexes('store_s', 'regress_fast', 'rebuild', dry_run => true);
SQL
}

# ---- sort files count once on a file system, however many of temp_tablespaces are there
foreach my $case ([ 1.5, 'f' ], [ 2.5, 't' ])
{
	my ($times, $fits) = @$case;
	my $free = int($size * $times);
	is($node->safe_psql('postgres', <<SQL), $fits, "two of temp_tablespaces and the target on one file system, $times times the size");
SET index_mover.test_file_systems = 'regress_fast:1:$free:$free,regress_slow:1:$free:$free';
SET index_mover.min_free_space = 0;
SET temp_tablespaces = regress_slow, regress_fast;
SET maintenance_work_mem = '1MB';
SET client_min_messages = error;
SELECT detail !~ 'Does not fit' FROM move_indexes('store_s', 'regress_fast', 'rebuild', dry_run => true);
SQL
}

# ---- a file system that does not say how full it is
$node->safe_psql('postgres', "ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:1:0:0'");
is($node->safe_psql('postgres', "SELECT detail !~ 'Does not fit' FROM move_indexes('small_s', 'regress_fast', 'copy', dry_run => true)"),
	't', 'it does not say how full it is: the plan');
is($node->safe_psql('postgres', "SELECT status, sqlstate FROM move_indexes('small_s', 'regress_fast', 'copy')"), 'moved|',
	'it does not say how full it is: the move');
is($node->safe_psql('postgres', "SELECT random_read_ms > 0, free_bytes, total_bytes FROM tablespace_probe('regress_fast', '10 ms')"),
	't||', 'it does not say how full it is: a probe');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET index_mover.test_file_systems');
$node->safe_psql('postgres', "SELECT FROM move_indexes('small_s', 'regress_slow')");

# ---- and for one of two moves at the same time: the message counts both
{
	my $free = $size + $node->safe_psql('postgres', "SELECT pg_relation_size('small_s') / 10");
	$node->safe_psql('postgres', "ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:1:$free:$free'");
	like($node->safe_psql('postgres', <<SQL),
SELECT string_agg(status, ',' ORDER BY status), string_agg(detail, '') FILTER (WHERE status = 'failed')
  FROM move_schema_indexes('public', 'regress_fast', method => 'copy', settings =>
    '{"max_workers": 2, "max_rate": "8MB", "min_free_space": 0, "pacing": "off"}') WHERE status <> 'skipped'
SQL
		qr/^failed,moved\|not enough free .*: The move and the others that run now still need \d+ bytes, $free bytes are free, /,
		'two moves, and space for one: the message counts both');
	$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET index_mover.test_file_systems');
	$node->safe_psql('postgres', "SELECT FROM move_schema_indexes('public', 'regress_slow')");
}

# ---------------------------------------------------------------------------
# Helpers
# ---------------------------------------------------------------------------
# as long as there is one
my $standby;

# Start a move and let it go to a pause point.  What is to happen at a later one
# is said now: a worker keeps its points.
sub move_to_point
{
	my ($point, $index, $to, $later) = @_;
	return held_at($node, $point,
		"SELECT status, sqlstate FROM move_indexes('$index', '$to', method => 'copy', settings => '{\"pacing\": \"off\"}')",
		$later ? (then => $later) : ());
}

# Switch full_page_writes, and see it in force: a checkpoint records it.
sub full_page_writes
{
	my ($value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET full_page_writes = $value");
	$node->reload;
	poll_until($node, 'CHECKPOINT; SELECT full_page_writes FROM pg_control_checkpoint()',
		$value eq 'on' ? 't' : 'f', "full_page_writes $value");
	return;
}

# Let it go on, and return its row.
sub finish_move
{
	my ($call) = @_;
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	chomp $out;
	note $err if $err;
	return $out;
}

# The server is gone, or is about to go: forget the sessions.
sub forget_move
{
	my ($call) = @_;
	let_go($call);
	finish_call($call);
	return;
}

# Begin a checkpoint that has hours of time, of which each dirty buffer gets a tenth
# of a second.  Returns how long the log was before.
sub begin_slow_checkpoint
{
	my $log = -s $node->logfile;
	$node->append_conf('postgresql.conf', 'max_wal_size = 8MB');
	$node->reload;
	poll_until($node, 'SHOW max_wal_size', '8MB', 'max_wal_size');
	$node->safe_psql('postgres', 'INSERT INTO other VALUES (1); SELECT pg_switch_wal()');
	$node->wait_for_log(qr/checkpoint starting: wal/, $log);
	$node->append_conf('postgresql.conf', 'max_wal_size = 1GB');
	$node->reload;
	poll_until($node, 'SHOW max_wal_size', '1GB', 'max_wal_size, again');
	# It reads that only when it takes a nap, and takes none while it lags behind what
	# was logged: so before any more is, one that has begun since is to be seen.
	my $checkpointer = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
	my $naps = "SELECT wait_event FROM pg_stat_activity WHERE pid = $checkpointer";
	poll_until($node, $naps, 'CheckpointWriteDelay', 'the checkpoint to be slow');
	let_process_sleep($checkpointer, 2);
	poll_until($node, $naps, 'CheckpointWriteDelay', 'the checkpoint to be slow from now on');
	return $log;
}

sub check_all
{
	my ($name, $table, $expected, %options) = @_;
	arrived_ok($node, $table, "${table}_s", $expected, $name, standby => $standby, large => $table ne 'ranges' && $name !~ /^recycled/,
		metadata => $table ne 'ranges', %options);
	return;
}

sub next_move_ok
{
	my ($name, $table) = @_;
	my $to = elsewhere($node, "${table}_s");
	is( $node->safe_psql('postgres',
			"SELECT status FROM move_indexes('${table}_s', '$to', method => 'copy', settings => '{\"pacing\": \"off\"}')"),
		'moved', "$name: the next move works");
	check_all("$name, after the next move", $table, $to);
	return;
}

# ---------------------------------------------------------------------------
# A storage manager that is not core's, or that is not all there is
# ---------------------------------------------------------------------------
set_tests($node, test_mutation => 'other-storage');
foreach my $call ("move_table('small', 'regress_fast')", "move_table('small', 'regress_fast', dry_run => true)",
	"move_indexes('small', 'regress_fast', method => 'copy')")
{
	like($node->safe_psql('postgres', "SELECT status, sqlstate, detail FROM $call LIMIT 1"),
		qr/^skipped\|0A000\|.*: the storage manager of the (table|index) is not PostgreSQL's own, and may encrypt /,
		"another storage manager: $call");
}
is($node->safe_psql('postgres', "SELECT status, method FROM move_indexes('small', 'regress_fast')"), 'moved|rebuild',
	'another storage manager: a rebuild goes through it');
set_tests($node, test_mutation => 'read-back');
foreach my $call ("move_table('small', 'regress_fast')", "move_indexes('store_s', 'regress_fast', method => 'copy')")
{
	like($node->safe_psql('postgres', "SELECT status, sqlstate, detail FROM $call LIMIT 1"),
		qr/^failed\|XX001\|block \d+ of file ".*" differs from what was written to it/, "a block is read back otherwise: $call");
	leftovers_ok($node, "a block is read back otherwise: $call", within => 5);
}
set_tests($node);
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('small_s', 'regress_slow')"), 'moved', 'and with neither: moved');
files_ok($node, 'after storage managers');

# ---------------------------------------------------------------------------
# WAL is recycled under a copy that stands still
# ---------------------------------------------------------------------------
my $log = -s $node->logfile;
my $to = elsewhere($node, 'store_s');
my $call = move_to_point('copy-half', 'store_s', $to);
$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 125 = 7");
for (1 .. 8)
{
	$node->safe_psql('postgres', 'INSERT INTO other VALUES (1)');
	$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
	$node->safe_psql('postgres', 'CHECKPOINT');
}
is(finish_move($call), 'moved|', 'the copy is made again after WAL was recycled');
ok($node->log_contains(qr/starting the copy of index "store_s" again, because WAL that tells its changes was removed/, $log),
	'and the log says so');
check_all('recycled WAL', 'store', $to);

# while it waits for the lock, it keeps up
my $blocker = IndexMover::Session->new($node);
$blocker->run('BEGIN; LOCK TABLE store IN ACCESS SHARE MODE; SET enable_seqscan = off');
$blocker->run("SELECT count(*) FROM store WHERE s = 'x'");
$log = -s $node->logfile;
$to = elsewhere($node, 'store_s');
$call = start_call($node, 'mover', "SELECT status FROM move_indexes('store_s', '$to', method => 'copy')");
my $waiter = wait_for_phase($node, 'waiting for lock to swap');
for (1 .. 8)
{
	$node->safe_psql('postgres', 'INSERT INTO other VALUES (1)');
	let_process_sleep($waiter, 4);
	$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
	$node->safe_psql('postgres', 'CHECKPOINT');
}
$blocker->end;
my ($rc, $out, $err) = finish_call($call);
like($out, qr/^moved$/m, 'WAL that goes while the copy waits for the lock') or diag $err;
ok(!$node->log_contains(qr/starting the copy of index "store_s" again/, $log),
	'has been read before');
check_all('waited long', 'store', $to);

# the copy's own WAL brings checkpoints about
$node->append_conf('postgresql.conf', 'max_wal_size = 8MB');
$node->reload;
$log = -s $node->logfile;
$to = elsewhere($node, 'store_s');
is( $node->safe_psql('postgres',
		"SELECT status FROM move_indexes('store_s', '$to', method => 'copy', settings => '{\"max_rate\": \"20MB\"}')"),
	'moved', 'a small max_wal_size');
ok(!$node->log_contains(qr/starting the copy of index "store_s" again/, $log),
	'the copy reads its WAL before it is recycled');
check_all('small max_wal_size', 'store', $to);
$node->append_conf('postgresql.conf', 'max_wal_size = 1GB');
$node->reload;

# From here on WAL is kept, and a standby has it all.
$node->append_conf('postgresql.conf', 'wal_keep_size = 1GB');
$node->reload;
$node->backup('early');
$standby = PostgreSQL::Test::Cluster->new('early_standby');
$standby->init_from_backup($node, 'early', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB\nwal_retrieve_retry_interval = 100ms");
$standby->start;

# ---------------------------------------------------------------------------
# How much WAL a move writes, on a server that does nothing else
# ---------------------------------------------------------------------------
$to = elsewhere($node, 'store_s');
$node->safe_psql('postgres', 'CHECKPOINT');
my $before = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
is( $node->safe_psql('postgres', "SELECT status FROM move_indexes('store_s', '$to', method => 'copy')"),
	'moved', 'WAL of a move: moved');
my ($wal, $blocks) = split /\|/, $node->safe_psql('postgres', <<SQL);
SELECT pg_current_wal_insert_lsn() - '$before', blocks_copied + blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1
SQL
note "WAL of the move: $wal bytes, blocks copied: ", $blocks * $page_size, ' bytes';
# (block 0, the metapage, is copied twice)
my $full = $blocks * $page_size - $node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pageinspect;
SELECT sum(upper - lower)
  FROM generate_series(0, pg_relation_size('store_s') / $page_size - 1) b, page_header(get_raw_page('store_s', b::int)) WHERE upper > lower
SQL
# beside the blocks, whole pages of the catalogs and of the ledger, as below
cmp_ok($wal, '>=', $full - $page_size, 'WAL of a move: the blocks without their holes');
cmp_ok($wal, '<', 1.03 * $full + 32 * $page_size, 'WAL of a move: and little beside them');
cmp_ok($blocks * $page_size, '<', 1.01 * $node->safe_psql('postgres', "SELECT pg_relation_size('store_s')"),
	'WAL of a move: hardly a block was copied twice');
check_all('WAL of a move', 'store', $to, look_up => 1);

# ---------------------------------------------------------------------------
# The postmaster is killed
# ---------------------------------------------------------------------------
foreach my $what ('copying', 'waiting')
{
	my $from = tablespace_of_index($node, 'store_s');
	$to = elsewhere($node, 'store_s');
	my $blocker;
	if ($what eq 'waiting')
	{
		$blocker = IndexMover::Session->new($node);
		$blocker->run("BEGIN; LOCK TABLE store IN ACCESS SHARE MODE; SET enable_seqscan = off; SELECT count(*) FROM store WHERE s = 'x'");
	}
	my $settings = $what eq 'copying' ? '{"max_rate": "1MB"}' : '{}';
	$call = start_call($node, 'mover',
		"SELECT status FROM move_indexes('store_s', '$to', method => 'copy', settings => '$settings')");
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE "
		. ($what eq 'copying' ? "throttled_by = 'max_rate'" : "phase = 'waiting for lock to swap'"), 't', $what);
	$call->{worker} = worker_pid($node);
	kill_postmaster($node, $call, "postmaster killed while $what");
	$blocker->end if $blocker;
	check_all("postmaster killed while $what", 'store', $from);
}

# ---------------------------------------------------------------------------
# Immediate shutdown behind a checkpoint, torn pages not repaired
# ---------------------------------------------------------------------------
$node->append_conf('postgresql.conf', 'full_page_writes = off');
$node->restart;
foreach my $point ('copy-half', 'old-file-step')
{
	my $from = tablespace_of_index($node, 'store_s');
	$to = elsewhere($node, 'store_s');
	$call = move_to_point($point, 'store_s', $to);
	$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 125 = 8");
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 125 = 9");
	$node->stop('immediate');
	forget_move($call);
	$node->start;
	check_all("crash at $point, behind a checkpoint, full_page_writes off", 'store',
		$point eq 'copy-half' ? $from : $to, look_up => $point eq 'old-file-step');
}
next_move_ok('full_page_writes off', 'store');

# BRIN: where it cannot be redone without full pages, it is not moved; where it can,
# or with full pages, a crash after its move is survived.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE ranges (i int, s text) WITH (fillfactor = 20);
CREATE INDEX ranges_s ON ranges USING brin (i) WITH (pages_per_range = 1) TABLESPACE regress_slow;
INSERT INTO ranges SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g;
SELECT brin_summarize_new_values('ranges_s');
SQL
if ($node->pg_version >= 16 || $node->safe_psql('postgres', 'SHOW debug_assertions') eq 'on')
{
	foreach my $method ('auto', 'copy', 'rebuild')
	{
		is( $node->safe_psql('postgres',
				"SELECT status, sqlstate, detail FROM move_indexes('ranges', 'regress_fast', method => '$method')"),
			'skipped|55000|full_page_writes is off. So this server could not recover from a crash after the file of a BRIN index '
				. 'was removed. Switch it on, and CHECKPOINT, before the move.',
			"BRIN stays where it is while full_page_writes is off: $method");
	}
	is($node->safe_psql('postgres', q(SELECT movable FROM index_report('ranges_s'))), '{}', 'and is reported as not movable');
	is(tablespace_of_index($node, 'ranges_s'), 'regress_slow', 'it is where it was');

	full_page_writes('on');
	$call = move_to_point('copy-end', 'ranges_s', 'regress_fast');
	full_page_writes('off');
	is(finish_move($call), 'failed|55000', 'nor is it swapped if that is switched off in mid-copy');
	like($node->safe_psql('postgres', 'SELECT message FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		qr/^full_page_writes was switched off while BRIN index "ranges_s" was being moved/, 'which is why');
	is(tablespace_of_index($node, 'ranges_s'), 'regress_slow', 'it is where it was, again');
	full_page_writes('on');
}
foreach my $method ('copy', 'rebuild')
{
	$to = elsewhere($node, 'ranges_s');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', <<SQL);
INSERT INTO ranges SELECT g, repeat('x', 100) FROM generate_series(1, 200) g;
SELECT brin_summarize_new_values('ranges_s');
SQL
	is( $node->safe_psql('postgres', "SELECT status FROM move_indexes('ranges', '$to', method => '$method')"),
		'moved', "BRIN is moved by $method");
	wait_for_no_worker($node);
	$node->stop('immediate');
	$node->start;
	check_all("BRIN, crash after its $method", 'ranges', $to);
}
$node->safe_psql('postgres', 'DROP TABLE ranges');

# A checkpoint that has begun before the swap and ends behind the removal of the
# old file's buffers, then a crash: recovery starts where it has begun, and redoes
# what was done to the old file since then, on what that file then had.  (The
# setting is switched off when the copy is under way already.)
{
	full_page_writes('on');
	my $second = IndexMover::Session->new($node);
	$second->run('SELECT pg_advisory_lock(0, 5960)');
	$to = elsewhere($node, 'store_s');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$call = move_to_point('copy-end', 'store_s', $to, 'old-file-start:wait2');
	full_page_writes('off');
	$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 5 = 4");
	begin_slow_checkpoint();
	$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 5 = 0");
	my $log = -s $node->logfile;
	let_go($call);
	$node->wait_for_log(qr/test point "old-file-start": waiting/, $log);
	ok(!$node->log_contains(qr/checkpoint complete/, $log), 'full_page_writes off: the checkpoint is still under way');
	# quickly now
	$node->append_conf('postgresql.conf', "max_wal_size = 8MB\ncheckpoint_timeout = 30s");
	$node->reload;
	$node->wait_for_log(qr/checkpoint complete/, $log);
	$node->stop('immediate');
	$second->end;
	finish_call($call);
	$node->append_conf('postgresql.conf', "max_wal_size = 1GB\ncheckpoint_timeout = 1h");
	$node->start;
	set_test_point($node, '');
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET full_page_writes');
	check_all('full_page_writes off, crash behind a checkpoint that had begun before the swap', 'store', $to, look_up => 1);
}

# ---------------------------------------------------------------------------
# wal_level = minimal
# ---------------------------------------------------------------------------
$standby->stop;
undef $standby;
$node->append_conf('postgresql.conf',
	"wal_level = minimal\nmax_wal_senders = 0\nfull_page_writes = on");
$node->restart;
$to = elsewhere($node, 'store_s');
$node->safe_psql('postgres', 'CHECKPOINT');
$before = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
is( $node->safe_psql('postgres',
		"SELECT status FROM move_indexes('store_s', '$to', method => 'copy')"),
	'moved', 'wal_level = minimal: moved');
$wal = $node->safe_psql('postgres', "SELECT pg_current_wal_insert_lsn() - '$before'");
note "WAL of the move: $wal bytes, index: $size bytes";
# what there is comes from pages of the catalogs and of the ledger, and block 0
cmp_ok($wal, '<', 32 * $page_size, 'wal_level = minimal: the blocks are not logged');
$node->stop('immediate');
$node->start;
check_all('wal_level = minimal, crash after the move', 'store', $to);

# Blocks that have changed since the last checkpoint are logged: the next change
# would bring no image of the page.
$to = elsewhere($node, 'store_s');
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 125 = 16");
(my $changed, $full) = split /\|/, $node->safe_psql('postgres', <<SQL);
SELECT count(*), sum($page_size - (upper - lower))
  FROM pg_control_checkpoint(), generate_series(0, pg_relation_size('store_s') / $page_size - 1) b,
    page_header(get_raw_page('store_s', b::int))
 WHERE lsn > redo_lsn
SQL
$before = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
is( $node->safe_psql('postgres',
		"SELECT status FROM move_indexes('store_s', '$to', method => 'copy')"),
	'moved', 'wal_level = minimal, changed blocks: moved');
$wal = $node->safe_psql('postgres', "SELECT pg_current_wal_insert_lsn() - '$before'");
note "WAL of the move: $wal bytes, $changed blocks have changed";
cmp_ok($changed, '>', 50, 'wal_level = minimal: there are changed blocks');
cmp_ok($wal, '>=', $full, 'wal_level = minimal: these are logged');
cmp_ok($wal, '<', 1.03 * $full + 32 * $page_size, 'wal_level = minimal: and no others');
$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 125 = 17");
$node->stop('immediate');
$node->start;
check_all('wal_level = minimal, changed blocks, crash after the move', 'store', $to);

$to = elsewhere($node, 'store_s');
$log = -s $node->logfile;
$call = move_to_point('copy-end', 'store_s', $to, 'swapped:kill');
$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 125 = 10");
forget_move($call);
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
poll_until($node, 'SELECT 1', '1', 'the server after a crash');
set_test_point($node, '');
check_all('wal_level = minimal, crash right after the swap', 'store', $to);
$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 125 = 11");
$node->stop('immediate');
$node->start;
check_all('wal_level = minimal, changed, crash', 'store', $to);

# A change that comes between the look at the WAL's end and the copying of what was
# read, and whose record begins exactly there: it is copied again.  The heap's record
# comes before, for the index has to wait for its function's value; and as the copy
# logs nothing, no other process has a record in between.
make_gate($node, 'slowly', 43);
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_walinspect;
CREATE TABLE exactly (i int);
INSERT INTO exactly SELECT 2 * g FROM generate_series(1, 15000) g;
CREATE INDEX exactly_i ON exactly (slowly(i)) TABLESPACE regress_slow;
VACUUM ANALYZE exactly;
SELECT oracle.remember_keys('exactly');
SQL
{
	my $name = 'a record that begins where the WAL ended';
	cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('exactly_i')"), '<', 128 * $page_size,
		"$name: all blocks are read at once");
	$to = elsewhere($node, 'exactly_i');
	my ($gate, $writer) = map { IndexMover::Session->new($node) } 1 .. 2;
	$gate->run('SELECT pg_advisory_lock(43)');
	$writer->send('INSERT INTO exactly VALUES (15001)');
	poll_until($node, "SELECT wait_event FROM pg_stat_activity WHERE pid = " . $writer->pid, 'advisory',
		"$name: the heap has its row, the index not yet");
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $start = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	$call = move_to_point('copy-logged', 'exactly_i', $to);
	$gate->run('SELECT pg_advisory_unlock(43)');
	$writer->answer;
	is($writer->errors, '', "$name: the row is inserted");
	$_->end foreach $gate, $writer;
	# what the move itself has written last is the record that it reads the WAL up to
	my $number = $node->safe_psql('postgres', "SELECT pg_relation_filenode('exactly_i')");
	is($node->safe_psql('postgres', <<SQL), 'NOOP', "$name: nothing else was logged between");
SELECT before.record_type
  FROM pg_get_wal_records_info('$start', pg_current_wal_flush_lsn()) after
  JOIN pg_get_wal_records_info('$start', pg_current_wal_flush_lsn()) before ON before.start_lsn = after.prev_lsn
 WHERE after.resource_manager = 'Btree' AND after.block_ref LIKE '%/$number %'
SQL
	is(finish_move($call), 'moved|', "$name: moved");
	verdict_ok($node, 'exactly', $name, max_keys => 100);
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM exactly WHERE slowly(i) = 15001"),
		'1', "$name: the row is found by the index");
	$node->safe_psql('postgres', 'DROP TABLE exactly');
}

# A checkpoint that has begun, and does not come to its end: recovery starts at
# the one before.  What was logged since then is restored, whatever the file has.
$to = elsewhere($node, 'store_s');
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 5 = 2");
$call = move_to_point('copy-end', 'store_s', $to, 'swapped:kill');
# more blocks than are left for the shared buffers
$node->safe_psql('postgres', "UPDATE store SET s = md5(s) WHERE i % 10 = 3");
$log = begin_slow_checkpoint();
forget_move($call);
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
ok(!$node->log_contains(qr/checkpoint complete: .*all server processes terminated/s, $log),
	'wal_level = minimal, crash during a checkpoint: it did not come to its end');
poll_until($node, 'SELECT 1', '1', 'the server after a crash');
set_test_point($node, '');
check_all('wal_level = minimal, crash during a checkpoint', 'store', $to);

# And by a rebuild, whose file core has to keep.
$to = elsewhere($node, 'small_s');
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('small_s', '$to', method => 'rebuild')"),
	'moved', 'wal_level = minimal, rebuild: moved');
wait_for_no_worker($node);
$node->stop('immediate');
$node->start;
check_all('wal_level = minimal, crash after a rebuild', 'small', $to);
$node->append_conf('postgresql.conf', "wal_level = replica\nmax_wal_senders = 10");
$node->restart;

# ---------------------------------------------------------------------------
# DROP TABLESPACE, and checksums on disk
# ---------------------------------------------------------------------------
$node->safe_psql('postgres', 'ALTER TABLE small SET TABLESPACE regress_slow; ALTER TABLE small SET TABLESPACE pg_default');
foreach my $table ('store', 'small')
{
	$node->safe_psql('postgres',
		"SELECT status FROM move_indexes('${table}_s', 'pg_default', method => 'copy')");
}
$node->safe_psql('postgres', 'DROP TABLESPACE regress_slow; DROP TABLESPACE regress_fast');
ok(1, 'nothing is left in the tablespaces: they can be dropped');
$node->stop('fast');
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'checksums on disk are valid');

# ---------------------------------------------------------------------------
# The target is full.  A file system of a few megabytes, in a mount namespace of
# the server's own, so that this needs no privileges.
# ---------------------------------------------------------------------------
SKIP:
{
	my $full = $node->basedir . '/full';
	mkdir $full;
	my @private = (
		'unshare', '--user', '--map-user=' . $>, '--map-group=' . (split / /, $))[0],
		'--keep-caps', '--mount');
	my ($mounted, $why);
	eval {
		$mounted = IPC::Run::run([ @private, 'mount', '-t', 'tmpfs', '-o', 'size=24m', 'full', $full ],
			'>&', \$why);
	};
	skip 'cannot mount a small file system in a namespace of its own: ' . ($why || $@), 1
	  unless $mounted;

	# for the standby; and the reserve is what it is for users
	$node->append_conf('postgresql.conf', "wal_keep_size = 1GB\nindex_mover.min_free_space = '5%'\nindex_mover.lock_wait = '500ms'");

	# pg_ctl's children stay in the namespace
	local $ENV{PGDATA} = $node->data_dir;
	IPC::Run::run(
		[
			@private, 'sh', '-c',
			'mount -t tmpfs -o size=24m full "$1" && chmod 700 "$1" && exec pg_ctl -w -s -l "$2" start',
			'sh', $full, $node->logfile
		]) or die 'server does not start in a namespace';
	$node->_update_pid(1);
	# outside of the namespace the same directory is another one, and a standby has it
	$node->backup('full');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'full', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
	$standby->start;
	my $both_files_ok = sub {
		my ($name) = @_;
		files_ok($node, $name);
		$node->wait_for_catchup($standby);
		files_ok($standby, "$name, standby");
	};
	$node->safe_psql('postgres', "CREATE TABLESPACE regress_full LOCATION '$full'");
	my $used = sub {
		return $node->safe_psql('postgres', "SELECT pg_tablespace_size('regress_full')");
	};

	($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM tablespace_probe('regress_full', '50 ms')",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($err, qr/53100: not enough free space for a probe/, 'no probe of a small file system');

	$node->safe_psql('postgres', <<SQL);
CREATE TABLE large (i int, s text);
INSERT INTO large SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 130000) g;
CREATE INDEX large_s ON large (s);
SQL
	my $log = -s $node->logfile;
	is( $node->safe_psql('postgres',
			"SELECT status, sqlstate FROM move_indexes('large_s', 'regress_full', method => 'copy')"),
		'failed|53100', 'what does not fit is not begun');
	cmp_ok($used->(), '<', $page_size, 'and leaves nothing');

	# and it fits, but another takes the space
	$call = move_to_point('copy-half', 'small_s', 'regress_full');
	$node->psql('postgres', "COPY (SELECT 1) TO PROGRAM 'dd if=/dev/zero of=$full/fill bs=64k 2>/dev/null || true'");
	my $row = finish_move($call);
	is($row, 'failed|53100', 'a full file system in the middle of a copy');
	wait_for_no_worker($node);
	# the directory itself counts for some bytes
	cmp_ok($used->(), '<', $page_size, 'and all that it had copied is gone');
	$both_files_ok->('full');
	leftovers_ok($node, 'full', within => 5);
	verdict_ok($node, 'small', 'full', max_keys => 300);
	is($node->safe_psql('postgres', "SELECT reltablespace FROM pg_class WHERE relname = 'small_s'"),
		'0', 'the index is where it was');
	$node->safe_psql('postgres', "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; rm $full/fill'");
	is( $node->safe_psql('postgres',
			"SELECT status FROM move_indexes('small_s', 'regress_full', method => 'copy')"),
		'moved', 'with room it works');
	verdict_ok($node, 'small', 'moved to the small file system', max_keys => 300);
	is( $node->safe_psql('postgres',
			"SELECT status FROM move_indexes('small_s', 'pg_default', method => 'copy')"),
		'moved', 'and back');
	$both_files_ok->('small file system');

	# what is moved back counts together, however it was planned
	my @two = map { "small_s$_" } 1, 2;
	$node->safe_psql('postgres', "CREATE TABLE $_ AS TABLE small; CREATE INDEX ${_}_i ON $_ (s) TABLESPACE regress_full") foreach @two;
	my $each = $node->safe_psql('postgres', "SELECT pg_relation_size('small_s1_i')");
	my $job = $node->safe_psql('postgres',
		"SELECT max(job) FROM move_tablespace_indexes('regress_full', 'pg_default', 'copy')");
	my $fits = sub {
		my ($out) = $node->safe_psql('postgres', "SELECT coalesce(detail, '') !~ 'Does not fit: ' FROM undo_move($job, dry_run => true)");
		return join ' ', split /\n/, $out;
	};
	is($fits->(), 't t', 'undo_move: both find room');
	# all but the reserve and one and a half of them
	my $reserve = int(0.05 * 24 * 1024);
	my $fill = 24 * 1024 - $reserve - int(1.5 * $each / 1024);
	$node->psql('postgres', "COPY (SELECT 1) TO PROGRAM 'dd if=/dev/zero of=$full/fill bs=1k count=$fill 2>/dev/null'");
	is($fits->(), 't f', 'undo_move: one after the other does not');
	# nor does one beside the other, which has not written anything yet
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	set_test_point($node, 'copy-created:wait');
	my $undo = $node->safe_psql('postgres', "SELECT max(job) FROM undo_move($job, wait => false)");
	poll_until($node, "SELECT count(*) > 0 FROM index_mover_history WHERE job = $undo AND sqlstate = '53100'",
		't', 'two copies at the same time: not both');
	pass('undo_move: one beside the other does not');
	set_test_point($node, '');
	$gate->end;
	wait_for_no_worker($node);
	$node->safe_psql('postgres', "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; rm $full/fill'");
	$node->safe_psql('postgres', 'DROP TABLE small_s1, small_s2');

	# a rebuild needs as much as its plan says, not as the bloated index has
	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE bloated WITH (autovacuum_enabled = off) AS SELECT g AS i FROM generate_series(1, 500000) g;
CREATE INDEX bloated_i ON bloated (i);
DELETE FROM bloated WHERE i % 10 <> 0;
SQL
	$node->safe_psql('postgres', 'VACUUM ANALYZE bloated');
	cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('bloated_i')"), '>', 8 << 20, 'the index to be rebuilt is bloated');
	$fill = 24 * 1024 - $reserve - 4 * 1024;
	$node->psql('postgres', "COPY (SELECT 1) TO PROGRAM 'dd if=/dev/zero of=$full/fill bs=1k count=$fill 2>/dev/null'");
	foreach my $dry_run ('true', 'false')
	{
		is( $node->safe_psql('postgres', "SELECT method, status, coalesce(detail, '') ~ 'Does not fit' FROM "
				. "move_indexes('bloated_i', 'regress_full', dry_run => $dry_run)"),
			$dry_run eq 'true' ? 'rebuild|planned|f' : 'rebuild|moved|f', "a rebuild that fits, dry_run => $dry_run");
	}
	$node->safe_psql('postgres', "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; rm $full/fill'");
	$node->safe_psql('postgres', 'DROP TABLE bloated');
	$node->safe_psql('postgres', 'DROP TABLESPACE regress_full');
	ok(1, 'the tablespace can be dropped');
	$both_files_ok->('the tablespace is gone');
	$standby->stop;
	$node->stop('fast');

	# the same with pg_wal, where it has a file system of its own: of what there is,
	# the server needs the file that ends with the checkpoint of the shutdown
	$node->append_conf('postgresql.conf', "max_wal_size = 16MB\nwal_keep_size = 0\ncheckpoint_timeout = 30s");
	my ($control) = run_command([ 'pg_controldata', $node->data_dir ]);
	my ($last) = $control =~ /^Latest checkpoint's REDO WAL file:\s+(\w+)$/m;
	IPC::Run::run(
		[
			@private, 'sh', '-c',
			'mount -t tmpfs -o size=96m wal "$1" && chmod 700 "$1" && mkdir "$1/archive_status" && cp -a "$PGDATA/pg_wal/$3" "$1" && '
				. 'mount --bind "$1" "$PGDATA/pg_wal" && exec pg_ctl -w -s -l "$2" start',
			'sh', $full, $node->logfile, $last
		]) or die 'server does not start with a pg_wal of its own';
	$node->_update_pid(1);
	my $from = tablespace_of_index($node, 'small_s');
	$node->safe_psql('postgres', "CREATE TABLESPACE regress_fast LOCATION ''");
	$call = move_to_point('copy-half', 'small_s', 'regress_fast');
	# the reserve is 4.8 MB
	$node->safe_psql('postgres',
		q{COPY (SELECT 1) TO PROGRAM 'dd if=/dev/zero of=pg_wal/fill bs=1k count=$(($(df -k --output=avail pg_wal | tail -1) - 8000)) }
			. q{2>/dev/null'});
	$log = -s $node->logfile;
	is(finish_move($call), 'failed|53100', 'pg_wal is full in the middle of a copy');
	like($node->safe_psql('postgres', 'SELECT message FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		qr/^not enough free space in pg_wal: The move needs \d+ bytes, \d+ bytes are free, of which \d+ must stay free\.$/,
		'pg_wal is full: the message');
	wait_for_no_worker($node);
	leftovers_ok($node, 'pg_wal is full', within => 5);
	files_ok($node, 'pg_wal is full');
	is(tablespace_of_index($node, 'small_s'), $from, 'pg_wal is full: the index is where it was');
	unlike(slurp_file($node->logfile, $log), qr/PANIC/, 'pg_wal is full: the server goes on');
	$node->safe_psql('postgres', q{COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; rm pg_wal/fill'});
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('small_s', 'regress_fast', method => 'copy')"),
		'moved', 'pg_wal with free space: the next call works');
	verdict_ok($node, 'small', 'pg_wal with free space', max_keys => 300);
	# its WAL goes with the namespace
	$node->stop('immediate');
}

done_testing();
