# When the fast device is lost, with nothing but indexes on it: PostgreSQL's own way,
# after a clean shutdown and after a crash: the directory is created again, the server
# starts, and REINDEX brings back every index.  Our way is in t/087_lost_heal.pl.
#
# Fault (storage): a directory of a tablespace that is missing (an empty mount point), or
#   cannot be written to, in a plan
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(rmtree);
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $repair = <<'SQL';
SELECT format('REINDEX (TABLESPACE pg_default) INDEX %s', c.oid::regclass)
  FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace
 WHERE t.spcname = 'fast_storage' AND c.relkind = 'i' \gexec
SQL

my $node = new_node('lost', conf => "checkpoint_timeout = 1h\n");
my $location = PostgreSQL::Test::Utils::tempdir() . '/fast';
mkdir $location;
$node->safe_psql('postgres', "CREATE TABLESPACE fast_storage LOCATION '$location'");
my ($version_directory) = map { m{([^/]+)$} } glob("$location/PG_*");
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (id int PRIMARY KEY, v int, words tsvector);
INSERT INTO t SELECT g, g, to_tsvector('simple', 'a' || g % 100) FROM generate_series(1, 5000) g;
CREATE INDEX t_v ON t (v);
CREATE INDEX t_words ON t USING gin (words);
CREATE TABLE part (i int) PARTITION BY RANGE (i);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE INDEX part_i ON part (i);
INSERT INTO part SELECT generate_series(0, 99);
CREATE UNLOGGED TABLE unlogged (i int PRIMARY KEY);
SELECT oracle.remember_keys('t');
SQL

foreach my $end ('clean shutdown', 'crash')
{
	$node->safe_psql('postgres', 'INSERT INTO unlogged SELECT generate_series(1, 1000)');
	$node->safe_psql('postgres', "SELECT move_indexes('$_', 'fast_storage')") foreach 't', 'part', 'unlogged';
	$node->safe_psql('postgres', 'CHECKPOINT; UPDATE t SET v = v + 1 WHERE id % 10 = 0');
	$node->stop($end eq 'crash' ? 'immediate' : 'fast');

	# the device is replaced by an empty one
	rmtree($location);
	mkdir $location, 0700;
	mkdir "$location/$version_directory", 0700;
	$node->start;
	is($node->safe_psql('postgres', 'SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT 1'), '1',
		"$end: the server starts without the tablespace's files");
	isnt($node->psql('postgres', 'SELECT count(*) FROM t WHERE v = 5'), 0, "$end: the table cannot be used")
	  if $end ne 'crash';
	my ($out, $err);
	my $status = $node->psql('postgres', $repair, stdout => \$out, stderr => \$err, on_error_stop => 1);
	is($status, 0, "$end: the statements run") or diag($err);
	verdict_ok($node, 't', $end);
	verdict_ok($node, 'part_1', $end);
	# its index has lost the file that a crash would begin with, too
	is($node->safe_psql('postgres', 'SELECT count(*) FROM unlogged'), $end eq 'crash' ? '0' : '1000', "$end: an unlogged table");
	$node->safe_psql('postgres', 'INSERT INTO unlogged SELECT generate_series(5001, 6000)');
	verdict_ok($node, 'unlogged', $end);
	$node->safe_psql('postgres', 'TRUNCATE unlogged');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), '5000', "$end: every row is there");
	is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT status, ',') FROM move_indexes('t', 'fast_storage')"), 'moved',
		"$end: and the indexes can move to the new device");
	$node->safe_psql('postgres', "SELECT move_indexes('$_', 'regress_slow')") foreach 't', 'part', 'unlogged';
}
wait_for_no_worker($node);
files_ok($node, 'at the end');
leftovers_ok($node, 'at the end');

# ---- a plan says so, too: an empty mount point, a directory that others own ----------------------
my $plan = sub { $node->psql('postgres', "SELECT detail FROM move_indexes('t_v', 'fast_storage', dry_run => true)") };
chmod 0500, "$location/$version_directory";
my ($rc, $out, $err) = $plan->();
like($err, qr/WARNING:  1 of 1 planned moves would fail\nDETAIL:  The directory of .* cannot be written to: Permission denied\./,
	'a directory that cannot be written to');
unlike($out, qr/enough free space/, 'it does not fit');
chmod 0700, "$location/$version_directory";
rename "$location/$version_directory", "$location.away";
($rc, $out, $err) = $plan->();
like($err, qr/WARNING:  1 of 1 planned moves would fail\nDETAIL:  The directory of tablespace "fast_storage" is missing\./, 'no directory');
like($out, qr/The directory of tablespace "fast_storage" is missing\. Writes [^.]*\.$/, 'the row says so');
($rc, $out, $err) = $node->psql('postgres',
	"SELECT status, sqlstate FROM move_indexes('t_v', 'fast_storage', settings => '{\"on_failure\": \"row\"}')");
is($out, 'failed|58P01', 'the move fails');
like($err, qr/WARNING:  1 of 1 planned moves .*WARNING:  index "t_v" was not moved/s,
	'and is told so before');
rename "$location.away", "$location/$version_directory";
($rc, $out, $err) = $plan->();
like($out, qr/enough free space\.$/, 'and there again');
is($err =~ /WARNING/ ? $err : '', '', 'without a warning');
leftovers_ok($node, 'without a directory');

$node->stop;
done_testing();
