# A copy that is killed, terminated, canceled or fails at every step: the index
# is where it was or where it was to be, whole, and nothing is left behind, here
# and on a standby.
#
# Fault (storage): what is left over cannot be removed: a WARNING, and it stays on record (also
#   032, 018)
# Fault (replication): files of a standby after each fault of a copy (also 022, 032)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

needs_test_points();

my $node = new_node('copy_crash', streaming => 1, conf => <<CONF);
checkpoint_timeout = 1h
max_wal_size = 4GB
wal_keep_size = 1GB
wal_retrieve_retry_interval = 100ms
CONF
# A large index is what takes the time here, and only its old file has to be: it gets
# large when that is the subject.
my ($rows, $large) = (3000, 10500);
$node->safe_psql('postgres', <<SQL);
CREATE TABLE crash (i int, s text) WITH (fillfactor = 80);
ALTER TABLE crash ALTER s SET STORAGE external;
INSERT INTO crash SELECT g, repeat(md5(g::text), 50) FROM generate_series(1, $rows) g;
CREATE INDEX crash_s ON crash (s) TABLESPACE regress_slow;
-- what a call moves that comes after a fault
CREATE INDEX crash_next ON crash (i) TABLESPACE regress_slow WHERE i <= 500;
SELECT oracle.remember_keys('crash'), oracle.remember_metadata('crash');
LOAD 'index_mover';
SQL

$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
$standby->start;

my @before_swap = qw(copy-registered copy-created copy-logged copy-under-way copy-first copy-half copy-end copy-round
  copy-before-sync copy-synced copy-again copy-verifying copy-buffered-round prewarm-read
  swap-asking swap-locked swap-block swap-copied swap-before-commit);
my @after_swap = qw(swapped prewarm-step prewarmed old-file-start old-file-step old-file-drop old-file-dropped);
# those under the exclusive lock
my %exclusive = map { $_ => 1 } qw(swap-locked swap-block swap-copied swap-before-commit);
# one of each class: the file is on record, made, in mid-copy, durable, under the lock,
# committed, the old file half gone
my %class = map { $_ => 1 } qw(copy-registered copy-created copy-half copy-synced swap-before-commit swapped old-file-step);
# what comes only if others have written since an earlier point
my %written = ('copy-round' => 'copy-end', 'copy-buffered-round' => 'copy-synced');
# those of the whole job, of a rebuild, and of what is done when a copy has failed
my %elsewhere = (
	(map { $_ => 't/048_control_worker_odd_moments.pl' } qw(history-insert history-update next-item job-ended job-found
		alter-named alter-job-ended)),
	(map { $_ => 't/010_rebuild_faults.pl' } qw(rebuild-begins rebuild-named rebuild-entry-made rebuild-entry-committed
		rebuild-step-committed caller-hidden)),
	'copy-logging' => 't/036_copy_backup.pl', (map { $_ => 't/112_exact_changes.pl' } qw(copy-read copy-read-again)),
		'swap-given-back' => 't/030_copy_standby.pl', 'swap-queue-again' => 't/043_control_low_priority.pl',
	'rebuild-aborted' => 't/055_world_ddl.pl', 'swap-ready' => 't/055_world_ddl.pl',
	(map { $_ => 't/117_exact_resume.pl' } qw(resume-recording resume-record resume-recorded resume-summaries resume-begins)),
	(map { $_ => 't/100_table_crash.pl' } qw(swap-file-locked swap-file-set)),
	(map { $_ => 't/102_table_holders.pl' } qw(swap-row swap-map default-row default-set)),
		'gave-way' => 't/114_exact_table_changes.pl', (map { $_ => 't/105_table_lock_grants.pl' } qw(locks-wanted locks-released)),
	'put-back' => 't/108_table_turns.pl', 'measure' => 't/062_reports_measuring.pl',
	'policy-run' => 't/122_tier_policies.pl', 'partition-bound' => 't/120_tier_plan.pl',
	(map { $_ => 't/126_control_restart.pl' } qw(job-taken note-pause)),
	'visible-jobs' => 't/079_tools_monitoring.pl', 'history-close' => 't/025_copy_after_swap.pl',
	'lock-granted' => 't/105_table_lock_grants.pl', 'left-file-drop' => 'the end of this file');
{
	my %in_source;
	foreach my $file (glob "$FindBin::RealBin/../src/*.c $FindBin::RealBin/../src/*/*.c")
	{
		my $text = slurp_file($file);
		while ($text =~ /IM_POINT\(([^;]*)\);/g)
		{
			my $names = $1;
			$in_source{$1} = 1 while $names =~ /"([^"]+)"/g;
		}
	}
	is_deeply([ sort keys %in_source ], [ sort @before_swap, @after_swap, keys %elsewhere ], 'every pause point has its tests');
}

sub server_is_up
{
	wait_until_up($node);
	return;
}

# All rows without using one way to get at them.
sub all_rows
{
	my ($without) = @_;
	return $node->safe_psql('postgres', "SET enable_sort = off; SET enable_$without = off; "
		. 'SELECT count(*), sum(hashtextextended(ctid::text || s, 0)) FROM (SELECT ctid, s FROM crash ORDER BY s OFFSET 0) r');
}

# What must hold afterwards, whatever was done.
sub check_all
{
	my ($name, $expected) = @_;
	is(tablespace_of_index($node, 'crash_s'), $expected, "$name: the index is in $expected");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'),
		'0', "$name: the ledger is empty");
	$node->safe_psql('postgres', 'CHECKPOINT');
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	$node->wait_for_catchup($standby);
	files_ok($standby, "$name, standby");
	my ($rc, $out, $err) = $node->psql('postgres',
		"SELECT oracle.bt_index_parent_check('crash_s', true, true)");
	is($rc, 0, "$name: amcheck") or diag $err;
	# all keys, each asked for, where the server has crashed (by default once in each
	# class); elsewhere all rows in the order of the index, which takes a tenth of the time
	if ($name =~ /^at the end/ || $name =~ /^kill at ([\w-]+)/ && (faults() || $class{$1})) { verdict_ok($node, 'crash', $name,
		max_keys => 500) }
	else { is(all_rows('seqscan = off; SET enable_bitmapscan'), all_rows('indexscan'), "$name: the rows by the index, and by a scan") }
	metadata_ok($node, 'crash', $name, restarted => 1);
	return;
}

# The bytes of a file, all its segments.
sub size_of_file
{
	my ($path) = @_;
	my $size = 0;
	$size += -s $_ foreach grep { -e } $path, glob("$path.*");
	return $size;
}

# The next call, to which nothing happens; and the fault is counted.
my $next = 'regress_fast';

sub next_call_ok
{
	my ($name, $kind) = @_;
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('crash_next', '$next', method => 'copy')"),
		'moved', "$name: the next call works");
	$next = other_place($next);
	count_fault($kind);
	# who asks for a worker means the one of the next fault
	wait_for_no_worker($node);
	return;
}

# A kill at each of them; by default the others at one of each class.
sub each_action_at
{
	my (@points) = @_;
	foreach my $action (qw(kill error terminate cancel))
	{
		fault_at($action, $_) foreach picked { $action eq 'kill' || $class{$_} } 'points, but for kills', @points;
	}
	return;
}

sub fault_at
{
	my ($action, $point) = @_;
	my $name = "$action at $point";
	my $from = tablespace_of_index($node, 'crash_s');
	my $to = other_place($from);
	my $swapped = grep { $_ eq $point } @after_swap;
	my $paused = $action eq 'terminate' || $action eq 'cancel';

	set_tests($node, test_point => "$point:" . ($paused ? 'wait' : $action),
		test_mutation => $point eq 'copy-again' ? 'again' : '');
	my $blocker;
	if ($paused)
	{
		$blocker = $node->background_psql('postgres');
		$blocker->query_safe('SELECT pg_advisory_lock(0, ' . ($written{$point} ? 5960 : 5959) . ')');
	}
	# rows change meanwhile
	$node->safe_psql('postgres', "UPDATE crash SET s = md5(s) WHERE i % 100 = 7");
	my $log = -s $node->logfile;
	my ($file, $size);
	if ($point eq 'old-file-step')
	{
		$file = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('crash_s')");
		$size = size_of_file($file);
	}
	my $sql = "SELECT status, sqlstate FROM move_indexes('crash_s', '$to', method => 'copy', settings => '{\"verify\": \"on\""
		. ($point =~ /^(?:copy-under-way|prewarm-read)$/ ? ', "direct_io": "on"' : '') . "}')";
	my $call;
	if ($written{$point})
	{
		$call = held_at($node, $written{$point}, $sql, then => "$point:" . ($paused ? 'wait2' : $action));
		$node->safe_psql('postgres', "UPDATE crash SET s = md5(s) WHERE i % 10 = 3");
		let_go($call);
	}
	else
	{
		$call = start_call($node, 'mover', $sql);
	}
	if ($paused)
	{
		$node->wait_for_log(qr/test point "$point": waiting/, $log);
		my $pid = $node->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
		my $locks = "SELECT count(*) FROM pg_locks WHERE pid = $pid AND relation IN ('crash_s'::regclass, 'crash'::regclass)"
		  . " AND mode = 'AccessExclusiveLock'";
		is($node->safe_psql('postgres', $locks), $exclusive{$point} ? 1 : 0,
			"$name: " . ($exclusive{$point} ? 'with' : 'without') . ' the exclusive lock, on the index only');
		if ($file)
		{
			is($size - size_of_file($file), 16 * 1024 * 1024, "$name: the old file is shorter by 16 MB");
			# its record was flushed before that
			$node->wait_for_catchup($standby);
			my $there = $standby->data_dir . substr($file, length $node->data_dir);
			is(size_of_file($there), size_of_file($file), "$name: so it is on the standby");
		}
		$node->safe_psql('postgres',
			$action eq 'cancel' ? "SELECT pg_cancel_backend($pid)" : "SELECT pg_terminate_backend($pid)");
	}
	my ($rc, $out, $err) = finish_call($call);
	note "$name: $out $err";
	if ($action eq 'kill')
	{
		server_is_up();
	}
	else
	{
		chomp $out;
		my %expected = $swapped
		  ? (error => qr/^moved\|/, cancel => qr/^moved\|/, terminate => qr/^moved\|/)
		  : (error => qr/^failed\|XX000/, cancel => qr/^canceled\|57014/, terminate => qr/^canceled\|57P01/);
		like($out, $expected{$action}, "$name: the row");
	}
	ok($node->log_contains(qr/test point "$point"/, $log), "$name: it came there")
	  if $swapped || $paused || $action eq 'kill';
	$blocker->quit if $blocker;
	set_tests($node);
	if ($action ne 'kill')
	{
		# without being asked
		poll_until($node, 'SELECT count(*) FROM index_mover.ledger', '0',
			"$name: cleanup", timeout => 10);
	}
	elsif ($swapped)
	{
		# nothing is left to move, but something to remove
		is($node->safe_psql('postgres', "SELECT status FROM move_indexes('crash_s', '$to')"),
			'skipped', "$name: the next call has nothing to move");
		poll_until($node, 'SELECT count(*) FROM index_mover.ledger', '0', "$name: and has what is left removed", timeout => 10);
	}
	check_all($name, $swapped ? $to : $from);
	next_call_ok($name, "copy, worker: $action");
	return;
}

each_action_at(grep { $_ ne 'old-file-step' && ($_ ne 'copy-under-way' || writes_directly()) } @before_swap, @after_swap);

# Only if it is large the old file is removed in more than one step.
$node->safe_psql('postgres', "INSERT INTO crash SELECT g, repeat(md5(g::text), 50) FROM generate_series($rows + 1, $large) g");
$node->safe_psql('postgres', "SELECT oracle.remember_keys('crash')");
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('crash_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');
each_action_at('old-file-step');

# a copy that fails, and so does the removal of what it has made
my $from = tablespace_of_index($node, 'crash_s');
my $to = other_place($from);
set_test_point($node, 'copy-half:error,left-file-drop:error');
my ($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate FROM move_indexes('crash_s', '$to', method => 'copy')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is($out, 'failed|XX000', 'error in the removal, too: the row');
like($err, joined(
	qr/WARNING:  XX000: could not remove a file that a move has left behind\nDETAIL:  test point /,
	qr/"left-file-drop"\nHINT:  Later, call: SELECT \* FROM index_mover_call\.index_mover_cleanup\(\);/),
	'error in the removal, too: the WARNING');
set_test_point($node, '');
check_all('error in the removal, too', $from);
next_call_ok('error in the removal, too', 'copy, worker: error');

# the same, but there the worker is killed, terminated or canceled
foreach my $action (qw(kill terminate cancel))
{
	my $name = "$action in the removal, after an error";
	my $call = held_at($node, 'left-file-drop', "SELECT status, sqlstate FROM move_indexes('crash_s', '$to', method => 'copy')",
		then => 'copy-half:error');
	is($node->safe_psql('postgres', 'SELECT kind FROM index_mover.ledger'), 'n', "$name: the file is on record");
	my $log = -s $node->logfile;
	if ($action eq 'kill')
	{
		kill('KILL', $call->{worker}) or die "cannot kill $call->{worker}: $!";
	}
	else
	{
		$node->safe_psql('postgres',
			$action eq 'cancel' ? "SELECT pg_cancel_backend($call->{worker})" : "SELECT pg_terminate_backend($call->{worker})");
		# it tries once more: behind the failed move, or at its exit
		$node->wait_for_log(qr/test point "left-file-drop": waiting/, $log);
	}
	let_go($call);
	($rc, $out, $err) = finish_call($call);
	if ($action eq 'kill') { server_is_up() }
	else { is($out, "failed|XX000\n", "$name: the row") or diag $err }
	set_test_point($node, '');
	if ($action ne 'kill')
	{
		# without being asked
		poll_until($node, 'SELECT count(*) FROM index_mover.ledger', '0', "$name: cleanup", timeout => 10);
	}
	check_all($name, $from);
	next_call_ok($name, "copy, worker: $action");
}

# Killed behind a checkpoint: no WAL that recovery reads tells that there is a file.
foreach my $point ('copy-half', 'old-file-step')
{
	my $name = "kill at $point, behind a checkpoint";
	my $call = held_at($node, $point, "SELECT status FROM move_indexes('crash_s', '$to', method => 'copy')");
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	kill('KILL', $call->{worker}) or die "cannot kill $call->{worker}: $!";
	let_go($call);
	finish_call($call);
	server_is_up();
	check_all($name, $point eq 'copy-half' ? $from : $to);
	next_call_ok($name, 'copy, worker: kill');
}
($from, $to) = ($to, $from);

# ---- a copy never is far ahead of the flush of its WAL ----------------------------
# The WAL writer is asleep, or it would flush meanwhile; and who begins a new segment,
# or reads eight megabytes of WAL, flushes what is before.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE paced (s text);
ALTER TABLE paced ALTER s SET STORAGE external;
INSERT INTO paced SELECT repeat(md5(g::text), 50) FROM generate_series(1, 4500) g;
CREATE INDEX paced_s ON paced (s) TABLESPACE regress_slow;
SQL
$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
{
	# not where it holds a lock that others need
	my $writer = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	my $asleep = '';
	foreach my $try (1 .. 100)
	{
		poll_until($node, "SELECT wait_event FROM pg_stat_activity WHERE pid = $writer", 'WalWriterMain',
			'a WAL writer with nothing to do');
		kill('STOP', $writer) or die "cannot stop $writer: $!";
		usleep(1000) until slurp_file("/proc/$writer/stat") =~ /\) T /;
		$asleep = $node->safe_psql('postgres', "SELECT wait_event FROM pg_stat_activity WHERE pid = $writer");
		last if $asleep eq 'WalWriterMain';
		kill('CONT', $writer);
		usleep(20_000);
	}
	is($asleep, 'WalWriterMain', 'the WAL writer is asleep');
	my $call = held_at($node, 'copy-half',
		"SELECT status FROM move_indexes('paced', 'regress_fast', method => 'copy', settings => '{\"pacing\": true}')");
	my ($ahead, $copied) = split /\|/, $node->safe_psql('postgres', <<SQL);
SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn(), blocks_done * current_setting('block_size')::int
  FROM index_mover_progress
SQL
	kill('CONT', $writer);
	cmp_ok($copied, '>', 4 * 1024 * 1024, "$copied bytes are copied and logged");
	cmp_ok($ahead, '<', 2 * 1024 * 1024, "$ahead bytes of WAL are not flushed");
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved\n", 'a copy beside a WAL writer that sleeps: moved') or diag $err;
}
$node->safe_psql('postgres', 'DROP TABLE paced');

# and it works again
is( $node->safe_psql('postgres', "SELECT status FROM move_indexes('crash_s', '$to', method => 'copy')"),
	'moved', 'the move works after all that');
check_all('at the end', $to);
# for a standby, which cannot hide an index to ask the other
$node->safe_psql('postgres', 'DROP INDEX crash_next');
standby_ok($node, $standby, ['crash'], 'at the end', max_keys => 200);

done_testing();
