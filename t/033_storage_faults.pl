# Storage that fails under a rebuild, whose blocks go through shared buffers; a
# target directory that goes away or can't be written; damaged blocks of the
# source, with checksums and without.  (Storage that fails under a copy: t/031
# and t/032; a machine that loses what was not synced: t/034.)
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
use Time::HiRes qw(time usleep);

needs_test_points();
my $library = preload_library('io_faults');

my $node = do
{
	local $ENV{LD_PRELOAD} = $library;
	new_node('io', extra => [ '--data-checksums' ],
		conf => "checkpoint_timeout = 1h\nmax_wal_size = 1GB\nfsync = on\nshared_buffers = 4MB\nbgwriter_delay = 10s");
};
$node->safe_psql('postgres', <<SQL);
CREATE TABLE st (i int, s text);
INSERT INTO st SELECT g, repeat(md5(g::text), 3) FROM generate_series(1, 60000) g;
CREATE INDEX st_s ON st (s) TABLESPACE regress_slow;
VACUUM ANALYZE st;
SELECT oracle.remember_keys('st'), oracle.remember_metadata('st');
SQL
my %folder = map { split /\|/ } split /\n/,
  $node->safe_psql('postgres', "SELECT spcname, 'pg_tblspc/' || oid || '/' FROM pg_tablespace WHERE spcname LIKE 'regress%'");

sub survived
{
	my ($name, $method, $was_none) = @_;
	wait_for_no_worker($node);
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	survived_ok($node, 'st', $name, sprintf("SELECT status FROM move_indexes('st_s', '%s', method => '%s')", elsewhere($node, 'st_s'), $method),
		max_keys => 100, restarted => 1, count => $was_none ? '' : "storage of a $method");
	return;
}

use constant { EIO => 5, ENOSPC => 28, ALWAYS => 1_000_000 };

# ---- a rebuild ----------------------------------------------------------------
# name, operation, errno or bytes, first, times, whose file, the row
foreach my $case (
	picked { $_->[0] =~ /^(?:the target is full|fsync)/ } 'failures under a rebuild',
	[ 'a write to the target fails', 'write', EIO, 3, ALWAYS, 'to', 'failed|58030' ],
	[ 'the target is full', 'write', ENOSPC, 9, ALWAYS, 'to', 'failed|53100' ],
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
	my ($from, $to) = (tablespace_of_index($node, 'st_s'), elsewhere($node, 'st_s'));
	my $path = $whose eq 'wal' ? '/pg_wal/' : $whose eq 'table' ? $node->safe_psql('postgres', "SELECT pg_relation_filepath('st')") : $folder{$to};
	my $log = -s $node->logfile;
	break_calls($operation, $errno, $first, $times, $path);
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate FROM move_indexes('st_s', '$to', method => 'rebuild')");
	if ($expected eq 'down')
	{
		# recovery can't write either: the server stays down until there is room
		mend_full_wal($node, $log);
		ok($node->log_contains(qr/PANIC:  53100: could not write to /, $log), "$name: PostgreSQL panics") or diag $err;
		is(tablespace_of_index($node, 'st_s'), $from, "$name: the index has stayed");
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
		is($out, $expected, "$name: the row") or diag $err;
		is(tablespace_of_index($node, 'st_s'), $from, "$name: the index has stayed");
	}
	my $fired = mend_calls();
	cmp_ok($fired, '>=', 1, "$name: it did $fired times");
	survived($name, 'rebuild');
}

# ---- the target's directory goes away, or can't be written ------------------------
foreach my $how ('gone', 'read-only')
{
	foreach my $point (picked { $how eq ($_ eq 'copy-half' ? 'gone' : 'read-only') } "points with a target $how", 'copy-registered', 'copy-half')
	{
		my $name = "target $how at $point";
		my ($from, $to) = (tablespace_of_index($node, 'st_s'), elsewhere($node, 'st_s'));
		my $dir = $node->data_dir . "/$folder{$to}";
		$dir =~ s{/$}{};
		my ($version) = glob("$dir/PG_*");
		my $call = held_at($node, $point, "SELECT status, sqlstate FROM move_indexes('st_s', '$to', method => 'copy')");
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
	my ($from, $to) = (tablespace_of_index($node, 'st_s'), elsewhere($node, 'st_s'));
	my $call = held_at($node, 'copy-registered', "SELECT status, sqlstate, detail FROM move_indexes('st_s', '$to', method => 'copy')");
	my ($database, $number) = split /\|/, $node->safe_psql('postgres', "SELECT database, relfilenumber FROM index_mover_ledger WHERE kind = 'n'");
	my ($dir) = glob($node->data_dir . "/$folder{$to}PG_*/$database");
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
	my ($from, $to) = (tablespace_of_index($node, 'st_s'), elsewhere($node, 'st_s'));
	my $path = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('st_s')");
	my $page_size = block_size($node);
	$node->stop;
	system_or_bail('pg_checksums', '--disable', '-D', $node->data_dir) unless $checksums;
	open(my $fh, '+<:raw', $path) or die $!;
	seek($fh, 20 * $page_size + $page_size / 2, 0);
	print $fh "\xff" x 500;
	if (!$checksums)
	{
		# a header that can't be
		seek($fh, 30 * $page_size, 0);
		print $fh "\xff" x 24;
	}
	close $fh;
	$node->start;
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate FROM move_indexes('st_s', '$to', method => 'copy')");
	is($out, 'failed|XX001', "$name: refused by copy") or diag $err;
	is(tablespace_of_index($node, 'st_s'), $from, "$name: the index has stayed");
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
	($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate FROM move_indexes('st_s', '$to', method => 'rebuild')");
	is($out, 'moved|', "$name: healed by rebuild") or diag $err;
	survived($name, 'copy');
}

# ---- damaged WAL, where it tells of the changes meanwhile --------------------------
{
	my $name = 'damaged WAL';
	my ($from, $to) = (tablespace_of_index($node, 'st_s'), elsewhere($node, 'st_s'));
	my $call = held_at($node, 'copy-half', "SELECT status, sqlstate, detail FROM move_indexes('st_s', '$to', method => 'copy')");
	$node->safe_psql('postgres', 'SELECT pg_switch_wal(); CREATE TABLE behind_the_switch ()');
	my ($segment, $offset) = split /\|/, $node->safe_psql('postgres', 'SELECT * FROM pg_walfile_name_offset(pg_current_wal_insert_lsn())');
	$node->safe_psql('postgres', "UPDATE st SET s = md5(s) WHERE i % 50 = 3");
	open(my $fh, '+<:raw', $node->data_dir . "/pg_wal/$segment") or die $!;
	# whole pages behind the one that the server may write again
	seek($fh, 8192 * (int($offset / 8192) + 2), 0);
	print $fh "\xff" x 16384;
	close $fh;
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	like($out, qr/^failed\|58030\|could not read WAL at/m, "$name: the row") or diag $err;
	is(tablespace_of_index($node, 'st_s'), $from, "$name: the index has stayed");
	# nothing may want to read it any more
	$node->safe_psql('postgres', 'CHECKPOINT');
	survived($name, 'copy');
}

$node->stop;
done_testing();
