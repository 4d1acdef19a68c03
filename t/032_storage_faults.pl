# Storage that fails.  Moves by copying when reads, writes and fsyncs fail: the index
# stays right, nothing is left behind, here and on a standby, and the next move works;
# the same under a rebuild, whose blocks go through shared buffers; a target directory
# that goes away or cannot be written; damaged blocks of the source, with checksums and
# without; damaged WAL.  (The room on a real file system: t/031_copy_storage.pl; a
# machine that loses what was not synced: t/034_copy_lost_writes.pl.)
#
# Fault (storage): target full at the n-th write, also of a rebuild
# Fault (storage): writes, reads, write-back fail (EIO)
# Fault (storage): truncation of the old file fails: the index has moved, a WARNING
# Fault (storage): writes that write less than they were asked to (a copy goes on behind what
#   is written; a rebuild ends with PostgreSQL's own error)
# Fault (storage): pg_wal full: PostgreSQL panics, and stays down until there is room
# Fault (storage): fsync of the new file fails (no PANIC), also for lack of space
# Fault (storage): target's directory gone, or not writable (also 083)
# Fault (storage): damaged blocks of the source, with checksums and without (also 110)
# Fault (storage): slow writes; writers faster than the copy, to its giving up (also 041, 055)
# Fault (storage): writes, reads, fsync of a tablespace's probe fail: its error, no result
#   kept, no file left
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

needs_test_points();
my $library = preload_library('io_faults');
my $node = do
{
	local $ENV{LD_PRELOAD} = $library;
	# a rebuild has to write before its end
	new_node('io', streaming => 1, extra => [ '--data-checksums' ],
		conf => "checkpoint_timeout = 1h\nmax_wal_size = 1GB\nwal_keep_size = 1GB\nfsync = on\nshared_buffers = 4MB\nbgwriter_delay = 10s");
};
$node->safe_psql('postgres', <<SQL);
CREATE TABLE io (i int, s text);
-- long keys: the index is to be large, and to be looked up quickly
ALTER TABLE io ALTER s SET STORAGE plain;
INSERT INTO io SELECT g, repeat(md5(g::text), 60) FROM generate_series(1, 8000) g;
CREATE INDEX io_s ON io (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('io'), oracle.remember_metadata('io');
SQL
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('io_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');
# a standby whose own calls are left alone
$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB\nfsync = off");
$standby->start;
my %directory = map { split /\|/ } split /\n/,
  $node->safe_psql('postgres', "SELECT spcname, 'pg_tblspc/' || oid || '/' FROM pg_tablespace WHERE spcname LIKE 'regress%'");

sub survived
{
	my ($name, $method, $was_none) = @_;
	wait_for_no_worker($node);
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	survived_ok($node, 'io', $name, sprintf("SELECT status FROM move_indexes('io_s', '%s', method => '%s')", elsewhere($node, 'io_s'),
		$method),
		max_keys => 100, large => 1, restarted => 1, count => $was_none ? '' : "storage of a $method");
	return;
}

use constant { EIO => 5, EINVAL => 22, ENOSPC => 28, EUCLEAN => 117, EDQUOT => 122, ALWAYS => 1_000_000 };

# ---- a copy ---------------------------------------------------------------------------
# name, operation, errno or bytes, first, times, whose file, the row or 'down', moved,
# the WARNING
foreach my $case (
	picked { $_->[0] =~ /^(?:reading|.* full later|.* quota|.* damaged$|fsync of the target fails$|.* old file fails$|pg_wal)/ } 'failures',
	[ 'reading the source fails', 'read', EIO, 5, ALWAYS, 'from', 'failed|58030', 0 ],
	[ 'a write to the target fails', 'write', EIO, 3, ALWAYS, 'to', 'failed|58030', 0 ],
	[ 'the target is full at once', 'write', ENOSPC, 1, ALWAYS, 'to', 'failed|53100', 0 ],
	[ 'the file system of the target is damaged', 'write', EUCLEAN, 3, ALWAYS, 'to', 'failed|58030', 0 ],
	[ 'the target is full later', 'write', ENOSPC, 9, ALWAYS, 'to', 'failed|53100', 0 ],
	[ 'a quota of the target is full later', 'write', EDQUOT, 9, ALWAYS, 'to', 'failed|53100', 0 ],
	[ 'writing back fails for a quota', 'writeback', EDQUOT, 4, 1, 'to', 'failed|53100', 0 ],
	[ 'writing back fails', 'writeback', EIO, 4, 1, 'to', 'failed|58030', 0 ],
	[ 'closing the target fails for a quota', 'close', EDQUOT, 2, 1, 'to', 'failed|53100', 0 ],
	[ 'closing the target fails twice for a quota', 'close', EDQUOT, 2, 2, 'to', 'failed|53100', 0 ],
	[ 'fsync of the target fails', 'fsync', EIO, 1, 1, 'to', 'failed|58030', 0 ],
	[ 'fsync of the target fails for lack of space', 'fsync', ENOSPC, 1, 1, 'to', 'failed|53100', 0 ],
	# all of the old file goes at once then; if that fails too, with the next checkpoint
	[ 'truncating the old file fails', 'truncate', EIO, 1, 1, 'from', 'moved', 1,
		qr/could not remove the old file of index "io_s" piece by piece\nDETAIL:  could not truncate file/ ],
	[ 'truncating the old file fails each time', 'truncate', EIO, 1, ALWAYS, 'from', 'moved', 1,
		qr/could not remove the old file of index "io_s" piece by piece\nDETAIL:  could not truncate file/ ],
	[ 'writes to the target are short', 'short', 5000, 2, 20, 'to', 'moved', 1 ],
	[ 'pg_wal is full', 'write', ENOSPC, 20, ALWAYS, 'wal', 'down', 0 ],
	[ 'writes to the target are slow', 'write', 0, 1, 10, 'to', 'moved', 1 ])
{
	my ($name, $operation, $errno, $first, $times, $whose, $expected, $moved, $warning) = @$case;
	my $from = tablespace_of_index($node, 'io_s');
	my $to = other_place($from);

	# nothing in shared buffers, so that reading reads
	{
		local $ENV{LD_PRELOAD} = $library;
		$node->restart;
	}
	my $log = -s $node->logfile;
	# what there is to read, and changes in the WAL
	$node->safe_psql('postgres', 'UPDATE io SET s = md5(s) WHERE i % 100 = 7');
	break_calls($operation, $errno, $first, $times, $whose eq 'wal' ? '/pg_wal/' : $directory{ $whose eq 'from' ? $from : $to });
	my ($rc, $out, $err) = $node->psql('postgres',
		"SELECT status, nullif(sqlstate, '') FROM move_indexes('io_s', '$to', method => 'copy', settings => '{\"pacing\": \"off\"}')");
	# recovery cannot write either: the server stays down until there is room
	my $fired = $expected eq 'down' ? mend_full_wal($node, $log) : mend_calls();
	cmp_ok($fired, '>=', 1, "$name: it did $fired times");

	if ($expected eq 'down')
	{
		isnt($rc, 0, "$name: the caller loses its connection");
		ok($node->log_contains(qr/PANIC:  53100: could not write to /, $log), "$name: PostgreSQL panics") or diag $err;
	}
	else
	{
		like($out, qr/^\Q$expected\E/, "$name: the row") or diag $err;
		unlike(slurp_file($node->logfile, $log), qr/PANIC/, "$name: the server goes on");
		like($err, $warning, "$name: the WARNING") if $warning;
	}
	is(tablespace_of_index($node, 'io_s'), $moved ? $to : $from, "$name: where the index is");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->wait_for_catchup($standby);
	files_ok($standby, "$name, standby");
	my $next = elsewhere($node, 'io_s');
	survived_ok($node, 'io', $name,
		"SELECT status FROM move_indexes('io_s', '$next', method => 'copy', settings => '{\"pacing\": \"off\"}')",
		max_keys => 100, large => 1, restarted => 1);
	wait_for_no_worker($node);
	files_ok($node, "$name, after the next move");
	count_fault('storage of a copy');
}

# A probe of a tablespace whose storage fails says what could not be done, keeps
# no result, and leaves no file.
{
	local $ENV{LD_PRELOAD} = $library;
	$node->restart;
	my $directory = $node->data_dir . "/$directory{regress_fast}";
	foreach my $case ([ 'write', EIO, '58030', 'write' ], [ 'write', ENOSPC, '53100', 'write' ],
		[ 'write', EDQUOT, '53100', 'write' ], [ 'fsync', EDQUOT, '53100', 'fsync' ], [ 'short', 4096, '53100', 'write' ],
		[ 'fsync', EIO, '58030', 'fsync' ], [ 'read', EIO, '58030', 'read' ])
	{
		my ($operation, $errno, $sqlstate, $verb) = @$case;
		my $name = "probe, $operation, $errno";
		break_calls($operation, $errno, 2, ALWAYS, '.index_mover.');
		my ($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM tablespace_probe('regress_fast', '50 ms')",
			extra_params => [ '-v', 'VERBOSITY=verbose' ]);
		cmp_ok(mend_calls(), '>=', 1, "$name: it did");
		like($err, qr/ERROR:  $sqlstate: could not $verb file "\S*\.index_mover\.\d+": /, "$name: the error");
		like($err, qr/HINT:  Check free disk space and quotas\./, "$name: the hint") if $sqlstate eq '53100';
		is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.probe'), '0', "$name: no result is kept");
		is(join(' ', grep { -f } glob("$directory*/pgsql_tmp/*")), '', "$name: no file is left");
	}
	SKIP:
	{
		skip 'no O_DIRECT on this file system', 4 unless writes_directly();
		foreach my $operation (qw(write read))
		{
			break_calls($operation, EINVAL, 1, 1, '.index_mover.');
			is($node->safe_psql('postgres', "SELECT random_read_ms > 0, direct_io FROM tablespace_probe('regress_fast', '50 ms')"), 't|f',
				"a file system that takes O_DIRECT, and no direct $operation: a probe through the page cache");
			is(mend_calls(), 1, "no direct $operation: it did");
		}
		$node->safe_psql('postgres', 'DELETE FROM index_mover.probe');
	}
	is($node->safe_psql('postgres', "SELECT random_read_ms > 0 FROM tablespace_probe('regress_fast', '50 ms')"), 't',
		'the next probe works');
}

# What a killed worker has left cannot be removed either: that is said, it stays
# on record, and goes with the next cleanup.
{
	my $name = 'truncating what a killed worker has left fails';
	{
		local $ENV{LD_PRELOAD} = $library;
		$node->restart;
	}
	my $to = elsewhere($node, 'io_s');
	$node->safe_psql('postgres',
		"SELECT count(*) FROM move_indexes('io_s', '$to', method => 'copy', wait => false, settings => "
			. "'{\"swap_after\": \"infinity\", \"pacing\": \"off\"}')");
	my $worker = wait_for_phase($node, 'waiting for time to swap');
	my $log = -s $node->logfile;
	kill 'KILL', $worker;
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
	wait_until_up($node);
	break_calls('truncate', EIO, 1, ALWAYS, $directory{$to});
	my ($rc, $out, $err) = $node->psql('postgres', 'SELECT kind, action FROM index_mover_cleanup()',
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	cmp_ok(mend_calls(), '>=', 1, "$name: it did");
	is($out, 'unfinished copy|kept: could not be removed, see the server log', "$name: the row") or diag $err;
	ok($node->log_contains(qr/WARNING:  58030: could not remove a file that a move has left behind\n.*DETAIL:  could not truncate file/,
		$log), "$name: the WARNING");
	is($node->safe_psql('postgres', 'SELECT kind, action FROM index_mover_cleanup()'), 'unfinished copy|removed',
		"$name: the next cleanup removes it");
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
	my $next = elsewhere($node, 'io_s');
	survived_ok($node, 'io', $name,
		"SELECT status FROM move_indexes('io_s', '$next', method => 'copy', settings => '{\"pacing\": \"off\"}')",
		max_keys => 100, large => 1, restarted => 1, count => 'storage of a copy');
}
# Each megabyte is told to be written back, and, but for the first, waits for the one
# before: more calls than that, none of which fails here.
{
	{
		local $ENV{LD_PRELOAD} = $library;
		$node->restart;
	}
	my $to = elsewhere($node, 'io_s');
	my $megabytes = int($node->safe_psql('postgres', "SELECT pg_relation_size('io_s')") / (1024 * 1024));
	break_calls('writeback', EIO, 1_000_000, 1, $directory{$to});
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('io_s', '$to', method => 'copy')"), 'moved', 'writing back: moved');
	is(mend_calls(), 0, 'writing back: no call fails');
	cmp_ok(-s "$ENV{IO_FAULTS}.count" || 0, '>=', 2 * $megabytes - 1, "writing back: at each of $megabytes MB");

	# a server that has switched fsync off does not wait for a disk
	$node->safe_psql('postgres', $_) foreach 'ALTER SYSTEM SET fsync = off', 'SELECT pg_reload_conf()';
	poll_until($node, 'SHOW fsync', 'off', 'the new setting');
	$to = elsewhere($node, 'io_s');
	break_calls('writeback', EIO, 1, ALWAYS, $directory{$to});
	is($node->safe_psql('postgres', "SELECT status FROM move_indexes('io_s', '$to', method => 'copy')"), 'moved', 'fsync = off: moved');
	is(mend_calls(), 0, 'fsync = off: nothing is written back');
	$node->safe_psql('postgres', $_) foreach 'ALTER SYSTEM RESET fsync', 'SELECT pg_reload_conf()';
	poll_until($node, 'SHOW fsync', 'on', 'the old setting');
}
# An fsync that takes long, of one segment of many: DDL does not wait for the others.
{
	my $to = elsewhere($node, 'io_s');
	set_tests($node, test_mutation => 'sync-blocks:64');
	break_calls('fsync', 0, 1, ALWAYS, $directory{$to});
	my $job = begin_job($node, 'io_s', $to, verify => 'off');
	wait_until('an fsync of the copy', sub { calls_broken() > 1 });
	$node->safe_psql('postgres', 'ALTER INDEX io_s SET (fillfactor = 80)');
	my $before = calls_broken();
	wait_for_job_end($node, $job);
	my $segments = int($node->safe_psql('postgres', "SELECT pg_relation_size('io_s')") / (64 * 8192));
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"), 'moved', 'a slow fsync: moved');
	cmp_ok($before, '<', $segments - 10, "a slow fsync: DDL waits for some of $segments");
	mend_calls();
	set_tests($node);
	$node->safe_psql('postgres', 'ALTER INDEX io_s RESET (fillfactor)');
}
# What is copied again lies here and there in the file, which is not opened for each
# block.
{
	my $to = elsewhere($node, 'io_s');
	break_calls('open', 0, 1_000_000, 1, $directory{$to});
	my $job = begin_job($node, 'io_s', $to, max_rate => '4MB', verify => 'off');
	poll_until($node, "SELECT blocks_done > blocks_total / 2 FROM index_mover_progress WHERE job = $job", 't', 'half of the copy');
	$node->safe_psql('postgres', 'UPDATE io SET i = i WHERE i % 16 = 0');
	$node->safe_psql('postgres', "SELECT alter_move($job, 'max_rate', '0')");
	wait_for_job_end($node, $job);
	my ($status, $again) = split /\|/,
		$node->safe_psql('postgres', "SELECT status, blocks_recopied FROM index_mover_history WHERE job = $job");
	mend_calls();
	my $opened = -s "$ENV{IO_FAULTS}.count" || 0;
	is($status, 'moved', 'scattered blocks: moved');
	cmp_ok($again, '>', 300, 'scattered blocks: copied again');
	cmp_ok($opened, '>', 0, 'scattered blocks: files are opened');
	cmp_ok($opened, '<', $again / 2, "scattered blocks: but not for each of them: $opened times, $again blocks");
}

# ---- a rebuild ----------------------------------------------------------------
# name, operation, errno or bytes, first, times, whose file, the row
foreach my $case (
	picked { $_->[0] =~ /^(?:the target is full|the file system|a quota|fsync)/ } 'failures under a rebuild',
	[ 'a write to the target fails', 'write', EIO, 3, ALWAYS, 'to', 'failed|58030' ],
	[ 'the target is full', 'write', ENOSPC, 9, ALWAYS, 'to', 'failed|53100' ],
	[ 'the file system of the target is damaged', 'write', EUCLEAN, 9, ALWAYS, 'to', 'failed|58030' ],
	[ 'a quota of the target is full', 'write', EDQUOT, 9, ALWAYS, 'to', 'failed|53100' ],
	[ 'a read of the table fails', 'read', EIO, 5, ALWAYS, 'table', 'failed|58030' ],
	[ 'a write to the target is short', 'short', 5000, 3, 1, 'to', 'failed|53100' ],
	[ 'pg_wal is full', 'write', ENOSPC, 20, ALWAYS, 'wal', 'down' ],
	[ 'fsync of the target fails', 'fsync', EIO, 1, 1, 'to', 'crash' ])
{
	my ($name, $operation, $errno, $first, $times, $whose, $expected) = @$case;
	$name = "rebuild, $name";
	{
		local $ENV{LD_PRELOAD} = $library;
		$node->restart;
	}
	my ($from, $to) = (tablespace_of_index($node, 'io_s'), elsewhere($node, 'io_s'));
	my $path = $whose eq 'wal' ? '/pg_wal/' : $whose eq 'table' ? $node->safe_psql('postgres', "SELECT pg_relation_filepath('io')")
		: $directory{$to};
	my $log = -s $node->logfile;
	break_calls($operation, $errno, $first, $times, $path);
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate, detail FROM move_indexes('io_s', '$to', method => 'rebuild')");
	like($out, qr/: Disk quota exceeded: Check free disk space and quotas\.(?: Tablespace "\w+" is the target\.)?$/, "$name: the hint")
	  if $errno == EDQUOT;
	if ($expected eq 'down')
	{
		# recovery cannot write either: the server stays down until there is room
		mend_full_wal($node, $log);
		ok($node->log_contains(qr/PANIC:  53100: could not write to /, $log), "$name: PostgreSQL panics") or diag $err;
		is(tablespace_of_index($node, 'io_s'), $from, "$name: the index has stayed");
	}
	elsif ($expected eq 'crash')
	{
		# a rebuild leaves fsync to the next checkpoint, if it is not logged at once
		$node->psql('postgres', 'CHECKPOINT') if !calls_broken();
		mend_calls();
		$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
		wait_until_up($node);
	}
	else
	{
		like($out, qr/^\Q$expected\E/, "$name: the row") or diag $err;
		is(tablespace_of_index($node, 'io_s'), $from, "$name: the index has stayed");
	}
	my $fired = mend_calls();
	cmp_ok($fired, '>=', 1, "$name: it did $fired times");
	survived($name, 'rebuild');
}

# ---- the target's directory goes away, or cannot be written ------------------------
foreach my $how ('gone', 'read-only')
{
	foreach my $point (picked { $how eq ($_ eq 'copy-half' ? 'gone' : 'read-only') } "points with a target $how", 'copy-registered',
		'copy-half')
	{
		my $name = "target $how at $point";
		my ($from, $to) = (tablespace_of_index($node, 'io_s'), elsewhere($node, 'io_s'));
		my $dir = $node->data_dir . "/$directory{$to}";
		$dir =~ s{/$}{};
		my ($version) = glob("$dir/PG_*");
		my $call = held_at($node, $point, "SELECT status, sqlstate FROM move_indexes('io_s', '$to', method => 'copy')");
		my ($path) = $how eq 'gone' ? $version : glob("$version/*");
		my $mode = (stat $path)[2] & 07777;
		if ($how eq 'gone') { rename $path, "$path.away" or die $! }
		else { chmod 0500, $path or die $! }
		let_go($call);
		my ($rc, $out, $err) = finish_call($call);
		# a file that is open already stays writable: no fault, and not counted as one
		my $was_none = $how eq 'read-only' && $point eq 'copy-half';
		like($out, $was_none ? qr/^moved\|$/m : qr/^failed\|(58P01|42501|58030|25006)$/m, "$name: the row: $out") or diag $err;
		unlike($err, qr/PANIC|XX000/, "$name: no worse");
		if ($how eq 'gone')
		{
			rename "$path.away", $path or die $!;
		}
		else { chmod $mode, $path or die $! }
		survived($name, 'copy', $was_none);
	}
}

# ---- the target has a file of that number -------------------------------------------
{
	my $name = 'a file in the way';
	my ($from, $to) = (tablespace_of_index($node, 'io_s'), elsewhere($node, 'io_s'));
	my $call = held_at($node, 'copy-registered', "SELECT status, sqlstate, detail FROM move_indexes('io_s', '$to', method => 'copy')");
	my ($database, $number) = split /\|/,
		$node->safe_psql('postgres', "SELECT database, relfilenumber FROM index_mover.ledger WHERE kind = 'n'");
	my ($dir) = glob($node->data_dir . "/$directory{$to}PG_*/$database");
	append_to_file("$dir/$number", 'not ours');
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	like($out, qr/^failed\|58P02\|could not create file "\S*\/$number": File exists\b/m, "$name: the row") or diag $err;
	is(-s "$dir/$number", 8, "$name: it is not touched");
	unlink "$dir/$number";
	survived($name, 'copy');
}

# ---- damaged blocks of the source --------------------------------------------------
foreach my $checksums (1, 0)
{
	my $name = 'a damaged block of the source, ' . ($checksums ? 'with' : 'without') . ' checksums';
	my ($from, $to) = (tablespace_of_index($node, 'io_s'), elsewhere($node, 'io_s'));
	my $path = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('io_s')");
	my $page_size = block_size($node);
	$node->stop;
	system_or_bail('pg_checksums', '--disable', '-D', $node->data_dir) unless $checksums;
	open(my $fh, '+<:raw', $path) or die $!;
	seek($fh, 20 * $page_size + $page_size / 2, 0);
	print $fh "\xff" x 500;
	if (!$checksums)
	{
		# an impossible header
		seek($fh, 30 * $page_size, 0);
		print $fh "\xff" x 24;
	}
	close $fh;
	$node->start;
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate FROM move_indexes('io_s', '$to', method => 'copy')");
	is($out, 'failed|XX001', "$name: refused by copy") or diag $err;
	is(tablespace_of_index($node, 'io_s'), $from, "$name: the index has stayed");
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
	($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate FROM move_indexes('io_s', '$to', method => 'rebuild')");
	is($out, 'moved|', "$name: healed by rebuild") or diag $err;
	survived($name, 'copy');
}

# ---- without checksums ----------------------------------------------------------------
# Where a server can switch checksums on while a copy goes on, it knows nothing of the
# new file.  So all pages have them, also where there are none to be checked: those that
# are written past shared buffers, once, and block 0 and the visibility map, which are not.
{
	$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION pageinspect;
DELETE FROM io WHERE i % 4 <> 0;
VACUUM io;
SELECT txid_current();
VACUUM io;
SELECT oracle.remember_keys('io');
CREATE TABLE mapped AS SELECT generate_series(1, 5000) i;
VACUUM mapped;
SQL
	my $to = elsewhere($node, 'io_s');
	foreach my $move ("move_indexes('io_s', '$to', 'copy')", "move_table('mapped', '$to')")
	{
		is($node->safe_psql('postgres', "SELECT DISTINCT status FROM $move"), 'moved', "checksums: $move");
	}
	foreach my $fork ('io_s main', 'io_s fsm', 'mapped main', 'mapped fsm', 'mapped vm')
	{
		my ($relation, $name) = split / /, $fork;
		is($node->safe_psql('postgres', <<SQL), 't|t', "checksums: of each page of $fork");
SELECT count(*) > 0, bool_and(checksum <> 0 AND checksum = page_checksum(page, n::int))
  FROM generate_series(0, pg_relation_size('$relation', '$name') / current_setting('block_size')::int - 1) n,
       get_raw_page('$relation', '$name', n::int) page, page_header(page)
 WHERE (page_header(page)).upper > 0;
SQL
	}
}
verdict_ok($node, 'io', 'at the end', max_keys => 300);
standby_ok($node, $standby, ['io'], 'at the end', max_keys => 300);
# (what is damaged next would be sent to it)
$standby->stop;

# ---- damaged WAL, where it tells of the changes meanwhile --------------------------
{
	my $name = 'damaged WAL';
	my ($from, $to) = (tablespace_of_index($node, 'io_s'), elsewhere($node, 'io_s'));
	my $call = held_at($node, 'copy-half', "SELECT status, sqlstate, detail FROM move_indexes('io_s', '$to', method => 'copy')");
	$node->safe_psql('postgres', 'SELECT pg_switch_wal(); CREATE TABLE behind_the_switch ()');
	my ($segment, $offset) = split /\|/, $node->safe_psql('postgres', 'SELECT * FROM pg_walfile_name_offset(pg_current_wal_insert_lsn())');
	$node->safe_psql('postgres', "UPDATE io SET s = md5(s) WHERE i % 20 = 4");
	open(my $fh, '+<:raw', $node->data_dir . "/pg_wal/$segment") or die $!;
	# whole pages behind the one that the server may write again
	seek($fh, 8192 * (int($offset / 8192) + 2), 0);
	print $fh "\xff" x 16384;
	close $fh;
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	like($out, qr/^failed\|58030\|could not read WAL at/m, "$name: the row") or diag $err;
	is(tablespace_of_index($node, 'io_s'), $from, "$name: the index has stayed");
	# nothing may want to read it any more
	$node->safe_psql('postgres', 'CHECKPOINT');
	survived($name, 'copy');
}

$node->stop;
done_testing();
