# A file system that compresses: tablespace_probe() says so, and foretells the ratio of a relation
# by a sample; a plan counts what is stored, at most, and the worker does, too; writes past
# the page cache, which may not be compressed, are off.  And which file systems share their free
# space.  The list of mounts is made up here; a real btrfs is in bench/compressed.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Call;
use IndexMover::Session;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('compressed', verify => 0, conf => <<CONF);
autovacuum = off
shared_buffers = 4MB
index_mover.min_free_space = 0
CONF
sub sql { return $node->safe_psql('postgres', $_[0]); }

# Have the file system of the server be of this type, with these options.  (In a chroot, the list
# of mounts does not have it.)
opendir my $directory, $node->data_dir or die $!;
my ($number) = slurp_file('/proc/self/fdinfo/' . fileno $directory) =~ /^mnt_id:\s+(\d+)/m or die 'no number of a mount';
my $mounts = $node->basedir . '/mounts';
sub mounted
{
	my ($type, $options) = @_;
	unlink $mounts;
	append_to_file($mounts, "${number}1 1 0:1 / /other rw - ext4 source rw\n"
			. "$number 1 0:2 / / rw,noatime master:1 - $type source $options\n");
	return;
}
sql("LOAD 'index_mover'; ALTER SYSTEM SET index_mover.test_mounts = '$mounts'");
$node->reload;
mounted('btrfs', 'rw');
is(sql("SELECT file_system FROM tablespace_probe('regress_fast', '10 ms')"), 'btrfs', 'the mount of a tablespace is found');

foreach my $case (
	[ 'btrfs', 'rw,compress=zstd:3,discard=async', 'zstd:3' ],
	[ 'btrfs', 'rw,compress-force=zstd:9,subvol=/', 'zstd:9' ],
	[ 'btrfs', 'rw,compress=lzo', 'lzo' ],
	[ 'btrfs', 'rw,space_cache=v2', 'none' ],
	[ 'btrfs', 'rw,nodatasum,compress=zstd:3', 'none' ],
	[ 'btrfs', 'rw,compress-force=zstd:3,nodatacow', 'none' ],
	[ 'ext4', 'rw,compress=zstd:3', 'none' ],
	[ 'zfs', 'rw,xattr', '' ])
{
	my ($type, $options, $expected) = @$case;
	mounted($type, $options);
	is(sql("SELECT file_system, coalesce(compression, ''), zstd_ratio FROM tablespace_probe('regress_fast', '10 ms')"),
		"$type|$expected|", "$type with $options");
}
sql("ALTER SYSTEM SET index_mover.test_mounts = '/nonexistent'");
$node->reload;
ok($node->poll_query_until('postgres', "SELECT file_system IS NULL AND compression IS NULL FROM tablespace_probe('regress_fast', '10 ms')"),
	'no list of mounts');
sql("ALTER SYSTEM SET index_mover.test_mounts = '$mounts'");
$node->reload;

# ---- the ratio -----------------------------------------------------------------
# (what has not been written yet counts, too)
sql(<<'SQL');
CREATE TABLE empty (i int);
CREATE TABLE tiny AS SELECT 1 AS i;
CREATE TABLE words AS SELECT g AS i, repeat('the same words, again and again ', 20) AS w FROM generate_series(1, 30000) g;
CREATE TABLE noise (b bytea);
ALTER TABLE noise ALTER b SET STORAGE PLAIN;
INSERT INTO noise SELECT decode(string_agg(md5(g::text || i), ''), 'hex')
  FROM generate_series(1, 20000) g, generate_series(1, 60) i GROUP BY g;
CREATE TABLE repeated (b bytea);
ALTER TABLE repeated ALTER b SET STORAGE PLAIN;
INSERT INTO repeated SELECT b FROM generate_series(1, 20000), (SELECT b FROM noise LIMIT 1) n;
SQL
mounted('btrfs', 'rw,compress=zstd:3');
sub ratio
{
	my ($relation, $columns) = @_;
	return sql("SELECT $columns FROM tablespace_probe('regress_fast', '10 ms', relation => '$relation')");
}
my $libraries = `ldd '@{[ $node->config_data('--bindir') ]}/postgres'`;
my $without = $libraries =~ /libzstd/ && $libraries =~ /liblz4/ ? '' : 'the server is built without zstd or lz4';
SKIP:
{
	skip $without, 6 if $without;
	is(ratio('words', 'zstd_ratio > 10, zstd_ratio_at_least BETWEEN 10 AND zstd_ratio, lz4_ratio_at_least BETWEEN 10 AND lz4_ratio'),
		't|t|t', 'words get smaller');
	is(ratio('noise', 'zstd_ratio, zstd_ratio_at_least, lz4_ratio, lz4_ratio_at_least'), '1|1|1|1', 'noise does not');
	is(ratio('repeated', 'zstd_ratio, lz4_ratio'), '1|1', 'nor does what btrfs takes for noise');
	is(ratio('tiny', 'zstd_ratio, lz4_ratio'), '2|2', 'a single block is stored in a sector');
	is(ratio('empty', 'zstd_ratio, zstd_ratio_at_least, lz4_ratio, lz4_ratio_at_least'), '|||', 'an empty table: not known');
	my $locker = IndexMover::Session->new($node);
	$locker->run('BEGIN; LOCK words');
	is(ratio('words', 'zstd_ratio, lz4_ratio'), '|', 'a relation that is locked is not waited for');
	$locker->end;
}

# ---- the plan, and the worker ----------------------------------------------------
sub free { return "SET index_mover.test_file_systems = 'regress_fast:9:$_[0]:10000000000'; "; }
my %size = map { $_ => sql("SELECT pg_table_size('$_')") } qw(words noise);
sub plan_of
{
	my ($table, $free) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "LOAD 'index_mover'; " . free($free)
		. "SELECT detail FROM move_table('$table', 'regress_fast', dry_run => true) WHERE name = '$table'");
	return "$out $err";
}
my $counted = qr/Needs \d+ kB of free space, because btrfs compresses\. By a sample, zstd:3 makes it at least (\d+\.\d\d) times smaller\b/;
mounted('btrfs', 'rw,compress-force=zstd:3');
SKIP:
{
	skip $without, 2 if $without;
	like(plan_of('words', $size{words} / 2), joined('^', $counted, '.* There is enough free space\.'),
		'half of what is written is free: the plan counts a sample');
	my ($least) = plan_of('words', $size{words} / 2) =~ $counted;
	cmp_ok(1 / $least - 1 / ratio('words', 'zstd_ratio'), '>', 0.02, 'and that blocks can be other than the runs, which are alike');
}
unlike(plan_of('words', $size{words} * 10), qr/compresses/, 'ten times what is written is free: no sample');
like(plan_of('noise', $size{noise} / 2), qr/Does not fit: /, 'noise does not fit');
foreach my $case ([ 'btrfs', 'rw,compress=lzo' ], [ 'btrfs', 'rw' ], [ 'zfs', 'rw' ])
{
	my ($type, $options) = @$case;
	mounted($type, $options);
	like(plan_of('words', $size{words} / 2), qr/^Does not fit: /, "nor do words, $type with $options");
}
mounted('btrfs', 'rw,compress=zstd:3');
like(plan_of('words', $size{words} / 2),
	qr/^Compression does not count: with the mount option "compress", btrfs can give it up for a whole file\. Does not fit: /,
	'nor where compression can end for a file');
mounted('btrfs', 'rw,compress-force=zstd:3');
foreach my $case ([ 'noise', 'failed|53100' ], [ 'words', $without ? 'failed|53100' : 'moved|' ])
{
	my ($table, $expected) = @$case;
	my $free = int($size{$table} / 2);
	sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:9:$free:10000000000'");
	is(sql("SET client_min_messages = error; SELECT status, sqlstate FROM move_table('$table', 'regress_fast') WHERE name = '$table'"),
		$expected, "$table of twice the free space");
}
# its WAL is not compressed: an archiver keeps it, on the same file system
SKIP:
{
	skip $without, 3 if $without;
	# that of the source of the mount, as file_system.c makes it
	my $device = sql("SELECT ((hashtextextended('source', 0) >> 2) & ((1::bigint << 62) - 1)) | (1::bigint << 62)");
	my $move = "SET client_min_messages = error; SELECT status, sqlstate FROM move_table('words', 'regress_slow') WHERE name = 'words'";
	sql("SELECT pg_create_physical_replication_slot('keeps', true)");
	sql('CREATE TABLE more AS SELECT * FROM noise; CHECKPOINT');
	foreach my $case ([ 0.7, 'failed|53100' ], [ 1.4, 'moved|' ])
	{
		my ($times, $expected) = @$case;
		my $free = int($size{words} * $times);
		sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_slow:$device:$free:10000000000'");
		is(sql($move), $expected, "$times times its size is free for its WAL, too");
	}
	sql("SELECT pg_drop_replication_slot('keeps')");
	# what the plan has foretold is so no longer
	my $free = int($size{words} / 2);
	sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:9:$free:10000000000'");
	my $call = held_at($node, 'next-item', $move =~ s/slow/fast/r);
	mounted('btrfs', 'rw');
	let_go($call);
	my ($rc, $out) = finish_call($call);
	is($out, "failed|53100\n", 'mounted without compression since the plan');
	mounted('btrfs', 'rw,compress-force=zstd:3');
}
# by a copy only: a rebuild has other contents
sql("CREATE INDEX words_i ON words (w, i) TABLESPACE regress_slow");
my $index = sql("SELECT pg_relation_size('words_i')");
sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:9:" . int($index / 2) . ":10000000000'");
is(sql("SET client_min_messages = error; SELECT method, detail ~ 'btrfs compresses', detail ~ 'Does not fit'
	FROM (VALUES ('copy'), ('rebuild')) v (m), move_indexes('words_i', 'regress_fast', method => m, dry_run => true)"),
	$without ? "copy|f|t\nrebuild|f|t" : "copy|t|f\nrebuild|f|t", 'a copy counts the sample, a rebuild does not');
sql('ALTER DATABASE postgres RESET index_mover.test_file_systems');
files_ok($node, 'after that');

# ---- the budget of a policy, and of recommend_moves() ------------------------------
# (heat is in the table of samples; the words get more than ten times smaller)
own_devices($node);
mounted('btrfs', 'rw,compress-force=zstd:3');
sql(<<'SQL');
SET client_min_messages = error;
SELECT FROM move_table('words', 'regress_slow');
SELECT FROM move_table('noise', 'regress_slow');
CREATE TABLE words2 TABLESPACE regress_slow AS SELECT * FROM words;
ALTER TABLESPACE regress_fast SET (random_page_cost = 1.1);
INSERT INTO index_mover.sample SELECT clock_timestamp() - interval '1 hour', 0, NULL, 0;
INSERT INTO index_mover.sample SELECT (SELECT max(taken_at) FROM index_mover.sample), c, NULL, -w, -w
  FROM (VALUES ('words'::regclass, 4000000), ('words2', 3000000), ('noise', 40000)) v (c, w);
INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, budget, min_stay)
  VALUES ('budget', 'public', 'regress_slow', 'regress_fast', 'table', 1, '0');
SQL
sub within
{
	my ($budget) = @_;
	sql("UPDATE tier_policy SET budget = $budget");
	return sql("SELECT string_agg(relation::text, ' ' ORDER BY relation::text) FROM tier_plan('budget') WHERE moves")
	  . '|'
	  . sql("SELECT string_agg(table_name::text, ' ' ORDER BY table_name::text) FROM recommend_moves('regress_fast', $budget)"
		  . " WHERE index IS NULL AND table_name::text ~ '^(words|noise)'");
}
my $main = sql("SELECT pg_relation_size('words')");
is(within(int($main * 0.4)), $without ? '|' : 'words words2|words words2', 'a budget counts what is stored of two tables');
is(within(int(sql("SELECT pg_relation_size('noise')") * 0.9)), $without ? '|' : 'words words2|words words2', 'noise counts in full');
mounted('btrfs', 'rw');
is(within(int($main * 0.4)), '|', 'nor does a table that is not compressed fit');
sql('DELETE FROM tier_policy; ALTER TABLESPACE regress_fast RESET (random_page_cost)');
own_devices($node, 'off');

# ---- past the page cache ----------------------------------------------------------
SKIP:
{
	skip 'needs fincore', 3 if system('fincore --version > /dev/null 2>&1');
	skip 'no O_DIRECT on this file system', 3 unless writes_directly();
	sql("ALTER SYSTEM SET effective_cache_size = '8MB'");
	$node->reload;
	foreach my $case ([ 'btrfs', 'rw', 0 ], [ 'btrfs', 'rw,compress=lzo', 1 ], [ 'zfs', 'rw', 0 ])
	{
		my ($type, $options, $cached) = @$case;
		mounted($type, $options);
		sql("SELECT FROM move_table('noise', 'regress_slow');
			SELECT FROM move_table('noise', 'regress_fast', settings => '{\"verify\": \"off\"}')");
		my $file = $node->data_dir . '/' . sql("SELECT pg_relation_filepath('noise')");
		my ($out) = run_command([ 'fincore', '--bytes', '--noheadings', '--output', 'RES', $file ]);
		my $share = $out / -s $file;
		cmp_ok($cached ? $share : 1 - $share, '>', 0.8, "direct_io = auto, $type with $options: " . ($cached ? 'off' : 'on'));
	}
}

like(($node->psql('postgres', "CREATE TEMP TABLE passing AS SELECT 1; SELECT FROM tablespace_probe('regress_fast', '10 ms', relation => "
	. "'passing')"))[2], qr/ERROR:  cannot move temporary relation "passing"/, 'a relation that never moves');

# ---- free space that file systems share --------------------------------------------
$node->stop;
my $other = $node->basedir . '/other';
my $problem = start_with_file_system($node, $other, '64m');
SKIP:
{
	skip "cannot mount a small file system in a namespace of its own: $problem", 6 if $problem;
	sql("CREATE TABLESPACE regress_other LOCATION '$other'");
	# the numbers of the mounts, in the namespace of the server
	my $program = "for d in . $other; do exec 3< \$d; sed -n s/^mnt_id:.//p /proc/self/fdinfo/3; done";
	sql("CREATE TABLE number (n int); COPY number FROM PROGRAM '$program'");
	my ($here, $there) = split /\n/, sql('SELECT n FROM number ORDER BY ctid');
	foreach my $case (
		[ 'zfs pool/data', 'zfs pool/cold', 't' ],
		[ 'zfs pool', 'zfs pool/cold', 't' ],
		[ 'zfs pool/data', 'zfs tank/data', 'f' ],
		[ 'btrfs /dev/sdx', 'btrfs /dev/sdx', 't' ],
		[ 'btrfs /dev/sdx', 'btrfs /dev/sdy', 'f' ],
		[ 'tmpfs none', 'tmpfs none', 'f' ])
	{
		my ($one, $two, $expected) = @$case;
		unlink $mounts;
		append_to_file($mounts, "$here 1 0:2 / / rw - $one rw\n$there 1 0:3 / /other rw - $two rw\n");
		is(sql("SELECT 'regress_fast' = ANY (same_device_as) FROM tablespace_probe('regress_other', '10 ms')"), $expected,
			"whether $one and $two share their free space");
	}
	sql('DROP TABLESPACE regress_other');
}
$node->stop;
done_testing();
