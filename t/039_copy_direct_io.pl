# A server that reads and writes past the page cache (debug_io_direct, since 16): each
# buffer in which we hand a page over is aligned.  What the copy of an index writes with
# plain writes is what the server reads, with writers in mid-copy and behind it; then a
# table with its TOAST table, maps and indexes, by both methods, there and back.
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
index_mover.test_access_methods = 'bloom'
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

make_zoo($node, 'zoo', 2000);
$node->safe_psql('postgres', <<SQL);
ALTER TABLE zoo ADD long text;
ALTER TABLE zoo ALTER long SET STORAGE EXTERNAL;
UPDATE zoo SET long = repeat(md5(id::text), 100) WHERE id % 20 = 0;
DELETE FROM zoo WHERE id % 7 = 0;
VACUUM ANALYZE zoo;
SELECT oracle.remember_keys('zoo'), oracle.remember_metadata('zoo');
SQL
my $forks = $node->safe_psql('postgres', <<SQL);
SELECT count(*) FROM pg_class c, unnest(ARRAY['main', 'fsm', 'vm']) fork
 WHERE pg_relation_size(c.oid, fork) > 0
   AND c.oid IN ('zoo'::regclass, (SELECT reltoastrelid FROM pg_class WHERE oid = 'zoo'::regclass))
SQL
is($forks, 6, 'the table and its TOAST table have both maps');

my @moves = (
	"move_table('zoo', 'regress_fast', indexes => true, settings => '{\"direct_io\": \"on\"}')",
	"move_table('zoo', 'regress_fast', indexes => true, settings => '{\"direct_io\": \"off\"}')",
	"move_indexes('zoo', 'regress_fast', 'rebuild')",
	"move_indexes('zoo', 'regress_fast', 'copy')");
# (without it, our own direct I/O reads blocks for the server's page cache)
foreach my $direct ('data', 'data,wal', '')
{
	$node->append_conf('postgresql.conf', "debug_io_direct = '$direct'");
	$node->restart;
	foreach my $move ($direct ? @moves : $moves[0])
	{
		my $name = "'$direct': $move";
		my ($job, $moved, $all) = split /\|/, $node->safe_psql('postgres',
			"SELECT max(job), count(*) FILTER (WHERE status = 'moved'), count(*) FROM $move");
		is($moved, $all, "$name: all moved");
		verdict_ok($node, 'zoo', $name);
		is($node->safe_psql('postgres', "SELECT DISTINCT status FROM undo_move($job)"), 'moved', "$name: undone");
		all_right($node, 'zoo', "$name, undone", no_metadata => $direct ne 'data');
	}
}

# What is on the disk, and, because each lookup would be a read of the disk, by
# way of the page cache and with room for all of it.
$node->append_conf('postgresql.conf', 'shared_buffers = 64MB');
$node->restart;
files_ok($node, 'after a restart');
verdict_ok($node, 'd', 'after a restart');
$node->stop;

my ($out, $err) = run_command([ 'pg_checksums', '--check', '-D', $node->data_dir ]);
like($out, qr/^Bad checksums:\s+0$/m, 'all checksums are right') or diag $err;

done_testing();
