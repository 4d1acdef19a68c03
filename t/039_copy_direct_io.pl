# The method copy where the server reads and writes past the page cache
# (debug_io_direct, since 16): what the copy writes with plain writes is what
# the server reads, with writers in mid-copy and behind it.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
plan skip_all => 'debug_io_direct came with PostgreSQL 16'
  unless `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 16;

plan skip_all => 'no O_DIRECT on this file system' unless writes_directly();

my $node = new_node('direct_io', extra => ['--data-checksums'], conf => <<CONF);
debug_io_direct = 'data,wal,wal_init'
shared_buffers = 2MB
max_wal_size = 1GB
checkpoint_timeout = 1h
CONF
is($node->safe_psql('postgres', 'SHOW debug_io_direct'), 'data,wal,wal_init', 'direct I/O is on');
$node->safe_psql('postgres', <<SQL);
CREATE TABLE d (i int, s text) WITH (fillfactor = 80);
INSERT INTO d SELECT g, md5(g::text) FROM generate_series(1, 60000) g;
CREATE INDEX d_s ON d (s) TABLESPACE regress_slow;
VACUUM ANALYZE d;
SELECT oracle.remember_metadata('d');
SQL
my $buffers = $node->safe_psql('postgres', 'SELECT setting::int FROM pg_settings WHERE name = \'shared_buffers\'');
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('d_s') / current_setting('block_size')::int"), '>', $buffers,
	'the index is larger than the cache');

foreach my $to ('regress_fast', 'regress_slow')
{
	my $call = held_at($node, 'copy-half',
		"SELECT method, status, sqlstate FROM move_indexes('d_s', '$to', method => 'copy', settings => '{\"verify\": true}')");
	# all over the index, and longer than it was
	$node->safe_psql('postgres', "UPDATE d SET s = md5(s) WHERE i % 40 = 0");
	$node->safe_psql('postgres', "INSERT INTO d SELECT g, md5(g::text) FROM generate_series(60001, 63000) g");
	let_go($call);
	my ($rc, $out, $err) = finish_call($call);
	is($out, "copy|moved|\n", "to $to: moved, and each block compared") or diag $err;
	leftovers_ok($node, "to $to");
	files_ok($node, "to $to");
	metadata_ok($node, 'd', "to $to");
	is($node->psql('postgres', "SELECT oracle.structure('d_s')"), 0, "to $to: amcheck, with all rows of the table");
}

# What is on the disk, and, because each look-up would be a read of the disk, by
# way of the page cache and with room for all of it.
$node->append_conf('postgresql.conf', "debug_io_direct = ''\nshared_buffers = 64MB");
$node->restart;
files_ok($node, 'after a restart');
verdict_ok($node, 'd', 'after a restart');
$node->stop;

my ($out, $err) = run_command([ 'pg_checksums', '--check', '-D', $node->data_dir ]);
like($out, qr/^Bad checksums:\s+0$/m, 'all checksums are right') or diag $err;

done_testing();
