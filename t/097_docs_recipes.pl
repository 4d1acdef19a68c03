# The recipes of docs/guide.md that t/090 cannot run, since they need databases, mounts or a
# full disk of their own: the blocks are read from the guide, and their consequences are
# looked at.  A whole database on a new disk; the same name on another mount; a full disk;
# what the weekly report leaves in a dump; a policy for pg_partman's partitions.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $guide = slurp_file("$FindBin::RealBin/../docs/guide.md");

# The first block of code below a heading, with directories that exist in place of /mnt/..
sub recipe
{
	my ($heading) = @_;
	my ($block) = $guide =~ /^#+ \Q$heading\E\n.*?^```(?:text|sql)\n(.*?)^```/ms;
	BAIL_OUT("docs/guide.md has no recipe \"$heading\"") if !$block;
	$block =~ s{LOCATION '/[^']*'}{"LOCATION '" . PostgreSQL::Test::Utils::tempdir() . "'"}ge;
	return $block;
}

sub run_recipe
{
	my ($node, $db, $block) = @_;
	my $err;
	my $status = $node->psql($db, $block, on_error_stop => 1, stderr => \$err);
	is($status, 0, "the recipe runs: " . (split /\n/, $block)[0]) or diag($err);
	return;
}

my $node = new_node('recipes', extension => 0);
my $dir = PostgreSQL::Test::Utils::tempdir();
$node->safe_psql('postgres', "CREATE TABLESPACE fast_storage LOCATION '$dir'");
$node->safe_psql('postgres', 'CREATE DATABASE app');
setup_database($node, 'app');
$node->safe_psql('app', <<'SQL');
CREATE TABLE kept (id int PRIMARY KEY, note text);
INSERT INTO kept SELECT g, repeat('x', 200) FROM generate_series(1, 2000) g;
CREATE TABLE quick (id int PRIMARY KEY USING INDEX TABLESPACE fast_storage) TABLESPACE fast_storage;
INSERT INTO quick SELECT generate_series(1, 2000);
CREATE UNLOGGED TABLE fleeting AS SELECT generate_series(1, 2000) AS i;
SQL

# ---- a whole database ---------------------------------------------------------
run_recipe($node, 'app', recipe('A whole database on a new disk'));
is($node->safe_psql('postgres',
	"SELECT s.spcname FROM pg_database d JOIN pg_tablespace s ON s.oid = d.dattablespace WHERE datname = 'app'"),
	'new_disk_catalogs', 'its catalogs are on the new disk');
is($node->safe_psql('app', "SELECT tablespace FROM pg_tables WHERE tablename = 'kept'"), 'new_disk', 'and its tables');
is($node->safe_psql('app', "SELECT count(*), pg_relation_filepath('fleeting') ~ '^pg_tblspc/' FROM fleeting"), '2000|t',
	'and an unlogged table, which stayed at first');
is($node->safe_psql('app', <<'SQL'), '2000', 'and it has its rows');
SET enable_seqscan = off;
SELECT count(*) FROM kept WHERE id > 0;
SQL
is($node->safe_psql('postgres',
		"SELECT count(*) FROM pg_ls_dir('base') AS d(name) JOIN pg_database b ON b.oid::text = d.name WHERE b.datname = 'app'"),
	'0', 'and nothing on the old one');

# ---- the same name --------------------------------------------------------------
my $before = $node->safe_psql('app', "SELECT oid FROM pg_tablespace WHERE spcname = 'fast_storage'");
run_recipe($node, 'app', recipe('The same name on another mount'));
isnt($node->safe_psql('app', "SELECT oid FROM pg_tablespace WHERE spcname = 'fast_storage'"), $before, 'it is another tablespace');
is($node->safe_psql('app', "SELECT tablespace FROM pg_tables WHERE tablename = 'quick'"), 'fast_storage', 'of the same name');
opendir my $handle, $dir or die "$dir: $!";
# the marker of a device, which a server without the library preloaded leaves
is(join(' ', grep { !/^\.+$|^index_mover\.PG_/ } readdir $handle), '', 'and nothing is left on the old mount');
closedir $handle;

# ---- the report and a dump ---------------------------------------------------------
# a relation that is named in a report is gone when the dump is restored
my ($report) = $guide =~ /^(CREATE TABLE index_reports AS\s.*?;)$/ms;
my ($insert) = $guide =~ /'(INSERT INTO index_reports\s.*?)'\)/s;
BAIL_OUT('docs/guide.md keeps no reports') if !$report || !$insert;
$node->safe_psql('app', "$report\n$insert; DROP TABLE quick;");
my $dump = "$PostgreSQL::Test::Utils::tmp_check/reports.sql";
command_ok([ 'pg_dump', '-t', 'index_reports', '-f', $dump, '-d', $node->connstr('app') ], 'a dump of the reports');
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('elsewhere') ], 'can be restored');
is($node->safe_psql('elsewhere',
	"SELECT count(*) > 1 FROM index_reports r WHERE r::text LIKE '%quick_pkey%' OR r::text LIKE '%kept_pkey%'"),
	't', 'and names what is gone');

# ---- pg_partman ---------------------------------------------------------------------
# a policy finds its partitions by their bounds, and new ones come where the parent is
SKIP:
{
	my ($major) = $node->safe_psql('app', "SELECT default_version FROM pg_available_extensions WHERE name = 'pg_partman'") =~ /^(\d+)/;
	skip 'pg_partman is not installed', 4 unless $major;
	my ($type, $interval) = $major < 5 ? ('native', 'monthly') : ('range', '1 month');
	my $cheap = PostgreSQL::Test::Utils::tempdir();
	$node->safe_psql('postgres', "CREATE TABLESPACE cheap_storage LOCATION '$cheap'");
	$node->safe_psql('app', <<SQL);
CREATE SCHEMA partman;
CREATE EXTENSION pg_partman SCHEMA partman;
CREATE TABLE metrics (at timestamptz NOT NULL, value int) PARTITION BY RANGE (at) TABLESPACE fast_storage;
SELECT partman.create_parent(p_parent_table => 'public.metrics', p_control => 'at', p_type => '$type',
  p_interval => '$interval', p_start_partition => (now() - interval '8 months')::text);
INSERT INTO metrics SELECT now() - g * interval '1 day', g FROM generate_series(0, 200) g;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('old metrics', 'metrics', 'cheap_storage', '90 days');
SQL
	my $moved = $node->safe_psql('app', "SELECT count(*) FROM run_tier_policies('old metrics', wait => true) WHERE status = 'moved'");
	cmp_ok($moved, '>=', 4, 'a policy moves partitions of pg_partman');
	is($node->safe_psql('app', <<'SQL'), 't', 'those that are old');
SELECT max(m.at) < now() - interval '90 days'
  FROM metrics m JOIN pg_class c ON c.oid = m.tableoid JOIN pg_tablespace s ON s.oid = c.reltablespace
 WHERE s.spcname = 'cheap_storage';
SQL
	my $places = <<'SQL';
SELECT string_agg(DISTINCT s.spcname, ' ')
  FROM pg_class c LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace,
       (SELECT c.relname FROM metrics m JOIN pg_class c ON c.oid = m.tableoid ORDER BY m.at DESC LIMIT 1) present
 WHERE c.relkind = 'r' AND c.relname LIKE 'metrics\_p%' AND c.relname >= present.relname;
SQL
	is($node->safe_psql('app', $places), 'fast_storage', 'the present one, and those made in advance, are where the parent is');
	$node->safe_psql('app', <<SQL);
UPDATE partman.part_config SET premake = premake + 2 WHERE parent_table = 'public.metrics';
SELECT partman.run_maintenance('public.metrics');
SQL
	is($node->safe_psql('app', $places), 'fast_storage', 'and so are those that it makes afterwards');
}

# ---- a full disk ------------------------------------------------------------------
SKIP:
{
	my $small = $node->basedir . '/small';
	$node->stop;
	my $problem = start_with_file_system($node, $small, '60m');
	skip "cannot mount a small file system in a namespace of its own: $problem", 4 if $problem;
	my $block = recipe('A full disk');
	$node->safe_psql('postgres', "CREATE TABLESPACE slow_storage LOCATION '$small'");
	$node->safe_psql('app', <<'SQL');
CREATE TABLE cold (note text) TABLESPACE slow_storage;
INSERT INTO cold SELECT repeat('x', 1000) FROM generate_series(1, 20000);
CREATE TABLE hot (id int PRIMARY KEY, note text) TABLESPACE slow_storage;
INSERT INTO hot SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) g;
CHECKPOINT;
SQL
	# the disk is full: nothing more can be written there
	my ($status, undef, $err) = $node->psql('app', 'CREATE TABLE more TABLESPACE slow_storage AS SELECT * FROM hot');
	like($err, qr/No space left on device/, 'the disk is full');
	run_recipe($node, 'app', $block);
	is($node->safe_psql('app', "SELECT count(*) > 0 FROM pg_tables WHERE tablename IN ('hot', 'cold') AND tablespace = 'fast_storage'"),
		't', 'relations have left it');
	($status, undef, $err) = $node->psql('app', 'CREATE TABLE more TABLESPACE slow_storage AS SELECT * FROM hot LIMIT 1000');
	is($status, 0, 'and it can be written to') or diag($err);
}

$node->stop;
done_testing();
