# The operating system's cache (direct_io): a copy that leaves it alone brings neither
# the old nor the new file there, but for what prewarm will load, nor leaves its WAL
# there, and takes nothing away, also where the file system refuses direct I/O; a small
# index is in it afterwards.
#
# Fault (storage): reads and writes past the page cache, where the file system refuses them,
#   and where a write in the background fails or cannot be had; the server with debug_io_direct,
#   and a server with assertions, which want each buffer aligned (also 039)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();
needs_test_points();
plan skip_all => 'needs fincore and dd' if system('fincore --version > /dev/null 2>&1 && dd --version > /dev/null 2>&1');

my $node = new_node('page_cache', verify => 0, extra => ['--data-checksums'], conf => <<CONF);
shared_buffers = 2MB
fsync = on
max_wal_size = 2GB
checkpoint_timeout = 1h
autovacuum = off
CONF
$node->safe_psql('postgres', <<SQL);
CREATE TABLE p (i int, s text) WITH (fillfactor = 80);
INSERT INTO p SELECT g, repeat(md5(g::text), 15) FROM generate_series(1, 25000) g;
CREATE INDEX p_s ON p (s) TABLESPACE regress_slow;
VACUUM ANALYZE p;
SELECT oracle.remember_keys('p'), oracle.remember_metadata('p');
SQL
my $size = $node->safe_psql('postgres', "SELECT pg_relation_size('p_s')");
cmp_ok($size, '>', 10 * 1024 * 1024, "the index has $size bytes");

sub file { return $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('p_s')") }

# The file that a move from this one makes.
sub new_file
{
	my ($old) = @_;
	my ($tablespace, $number) = split /\|/,
		$node->safe_psql('postgres', q{SELECT tablespace, relfilenumber FROM index_mover.ledger WHERE kind = 'n'});
	(my $new = $old) =~ s{pg_tblspc/\d+/(.*)/\d+$}{pg_tblspc/$tablespace/$1/$number} or die $old;
	return $new;
}

# The share of a file that is in the page cache.
sub cached
{
	my ($file) = @_;
	my ($out) = run_command([ 'fincore', '--bytes', '--noheadings', '--output', 'RES', $file ]);
	return sprintf '%.2f', $out / -s $file;
}

# Have only the first megabytes of a file in the page cache.
sub only_first
{
	my ($file, $megabytes) = @_;
	$node->safe_psql('postgres', 'CHECKPOINT');
	run_command([ 'dd', "of=$file", 'oflag=nocache', 'conv=notrunc,fdatasync', 'count=0' ]);
	return unless $megabytes;
	run_command([ 'dd', "if=$file", 'of=/dev/null', 'bs=1M', "count=$megabytes" ]);
	# (what the kernel has read ahead)
	run_command([ 'dd', "if=$file", 'of=/dev/null', 'bs=1M', "skip=$megabytes", 'iflag=nocache' ]);
	my $share = cached($file);
	cmp_ok($share, '<', 0.6, "$share of the file is cached");
	return;
}

# Bytes of WAL that are in the page cache, and how to have none there.
sub cached_wal
{
	my $bytes = 0;
	for my $segment (glob $node->data_dir . '/pg_wal/[0-9A-F]*')
	{
		my ($out) = run_command([ 'fincore', '--bytes', '--noheadings', '--output', 'RES', $segment ]);
		$bytes += $out;
	}
	return $bytes;
}

sub forget_wal
{
	run_command([ 'dd', "of=$_", 'oflag=nocache', 'conv=notrunc,fdatasync', 'count=0' ])
	  for glob $node->data_dir . '/pg_wal/[0-9A-F]*';
	return;
}

only_first(file(), 0);
plan skip_all => 'this file system has no page cache to leave' if cached(file()) > 0.1;

# What the kernel may read ahead at a time, as a share of the file.
my $device = (stat file())[0];
my $read_ahead = 0;
if (open my $fh, '<', sprintf '/sys/class/bdi/%d:%d/read_ahead_kb', $device >> 8 & 0xfff, $device & 0xff)
{
	$read_ahead = <$fh> * 1024 / $size;
}
note sprintf 'the kernel reads ahead %.2f of the file', $read_ahead;

my $to = 'regress_fast';
foreach my $case (
	[ 'off', '', '', 1 ],
	[ 'on', '', '', 0 ],
	[ 'on', '', 'no-direct:0', 0 ],
	[ 'auto', '8GB', '', 1 ],
	[ 'auto', '8MB', '', 0 ],
	[ 'on', '', 'no-background:0', 0 ],
	[ 'on', '', 'background-failed:1', 0 ])
{
	my ($direct_io, $cache_size, $mutation, $warm) = @$case;
	my $name = "direct_io = $direct_io" . ($cache_size && ", effective_cache_size = $cache_size") . ($mutation && ", $mutation");
	$node->safe_psql('postgres', $cache_size ? "ALTER SYSTEM SET effective_cache_size = '$cache_size'"
		: 'ALTER SYSTEM RESET effective_cache_size');
	$node->reload;
	set_tests($node, test_mutation => $mutation);
	my $old = file();
	only_first($old, 4);
	forget_wal();
	my $before = cached($old);
	my $quiet = $mutation ? 0.2 : 0.1;
	my $call = held_at($node, 'copy-half',
		"SELECT status, sqlstate FROM move_indexes('p_s', '$to', method => 'copy', settings => "
			. "'{\"direct_io\": \"$direct_io\", \"prewarm\": \"off\"}')",
		then => 'copy-end:wait2');
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5960)');
	my $log = -s $node->logfile;
	let_go($call);
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
	my $new = new_file($old);
	my %share = (old => cached($old), new => cached($new));
	note "$name: of the old file $before before, $share{old} after; of the new one $share{new}";
	if ($warm)
	{
		cmp_ok($share{new}, '>', 0.9, "$name: the new file is cached");
	}
	else
	{
		cmp_ok($share{new}, '<', $quiet, "$name: the new file is not cached");
		# the kernel reads ahead of the few blocks that it reads as core does, and once more
		cmp_ok($share{old}, '<', $before + ($mutation && $read_ahead > 0.05 ? 2 * $read_ahead : 0.1), "$name: no more of the old file is");
		cmp_ok($share{old}, '>', $before - 0.1, "$name: but what was");
	}
	# what changes is copied again in the usual way
	$node->safe_psql('postgres', "UPDATE p SET s = repeat(md5(s), 15) WHERE i % 50 = 7");
	$gate->end;
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", "$name: moved") or diag $err;
	my $wal = cached_wal();
	note "$name: $wal bytes of WAL are cached";
	cmp_ok($wal, $warm ? '>' : '<', $size / 2, "$name: its WAL is " . ($warm ? 'cached' : 'not cached'));
	set_tests($node);
	$to = $to eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
	files_ok($node, $name);
	verdict_ok($node, 'p', $name, max_keys => 50);
}
metadata_ok($node, 'p', 'after all that');

# The blocks that are loaded after the swap are in the page cache before it, and no
# others: or the clients would read them from the disk in between.
$node->safe_psql('postgres', 'SET client_min_messages = warning; CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm');
foreach my $prewarm ('off', 'on')
{
	my $name = "direct_io = on, prewarm = $prewarm";
	my $old = file();
	$node->safe_psql('postgres', "SELECT pg_prewarm('p_s', 'buffer', 'main', 200, 380)");
	only_first($old, 0);
	my $call = held_at($node, 'swap-asking',
		"SELECT status FROM move_indexes('p_s', '$to', method => 'copy', settings => "
			. "'{\"direct_io\": \"on\", \"prewarm\": \"$prewarm\"}')");
	my $new = new_file($old);
	my $buffers = $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_buffercache WHERE relfilenode = pg_relation_filenode('p_s') AND relforknumber = 0");
	my $cached = cached($new) * $size;
	note "$name: $buffers blocks in shared buffers, $cached bytes of the new file in the page cache";
	cmp_ok($buffers, '>', 20, "$name: $buffers blocks are in shared buffers");
	if ($prewarm eq 'on')
	{
		cmp_ok($cached, '>', $buffers * 8192 * 0.8, "$name: as many of the new file are in the page cache before the swap");
		cmp_ok($cached, '<', $size / 2, "$name: but not all of it");
	}
	else
	{
		my $kernel = $read_ahead > 0.05 ? 2 * $read_ahead * $size : 0;
		cmp_ok($cached, '<', $buffers * 8192 * 0.4 + $kernel, "$name: they are not in the page cache");
	}
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved\n", "$name: moved") or diag $err;
	verdict_ok($node, 'p', $name, max_keys => 50);
	$to = $to eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
}

# what a walsender or the archiver will read stays where it is read fast
my $walsender = IndexMover::Session->new($node, walsender => 1);
foreach my $reader ('a walsender', 'archiving')
{
	if ($reader eq 'archiving')
	{
		$walsender->end;
		$node->append_conf('postgresql.conf', "archive_mode = on\narchive_command = 'true'");
		$node->restart;
	}
	forget_wal();
	is($node->safe_psql('postgres',
		"SELECT status FROM move_indexes('p_s', '$to', method => 'copy', settings => '{\"direct_io\": \"on\"}')"),
		'moved', "with $reader: moved");
	cmp_ok(cached_wal(), '>', $size / 2, "with $reader: its WAL is cached");
	$to = $to eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
}

only_first(file(), 0);
my $row = $node->safe_psql('postgres',
	"SELECT status FROM move_indexes('p_s', '$to', method => 'copy', settings => "
		. "'{\"direct_io\": \"on\", \"verify\": \"on\", \"prewarm\": \"off\"}')");
is($row, 'moved', 'direct_io = on: moved, and each block compared');
cmp_ok(cached(file()), '<', 0.1, 'direct_io = on: the comparison has not brought the new file there');
$node->stop;
my ($out, $err) = run_command([ 'pg_checksums', '--check', '-D', $node->data_dir ]);
like($out, qr/^Bad checksums:\s+0$/m, 'all checksums are right') or diag $err;

done_testing();
