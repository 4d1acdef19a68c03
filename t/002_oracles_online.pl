# The oracles that watch while something goes on, or on another server, can fail
# too: each of them is shown something that is wrong.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Copy qw(copy);
use IndexMover::Probe;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::Builder;
use Test::More;
use Time::HiRes qw(usleep);

my $primary = new_node('primary', extension => 0, streaming => 1);
$primary->safe_psql('postgres', <<SQL);
CREATE TABLE felt (i int PRIMARY KEY, n int);
INSERT INTO felt SELECT g, 0 FROM generate_series(1, 100) g;
CREATE TABLE one (s text);
INSERT INTO one SELECT 'one ' || g FROM generate_series(1, 3000) g;
CREATE INDEX one_s ON one (s);
CREATE TABLE two (i int PRIMARY KEY, s text);
INSERT INTO two SELECT g, 'two ' || g FROM generate_series(1, 3000) g;
CREATE INDEX two_s ON two (s);
VACUUM ANALYZE;
SQL

# ---- what clients feel ------------------------------------------------------
my %statements = (
	read => 'SELECT n FROM felt WHERE i = 5',
	write => 'UPDATE felt SET n = n + 1 WHERE i = 7');
my $probe = IndexMover::Probe->new($primary, %statements);
my $s = IndexMover::Session->new($primary);
$s->run('BEGIN; LOCK TABLE felt IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(0.5); COMMIT');
poll_until($primary, 'SELECT n > 10 FROM felt WHERE i = 7', 't', 'writes of the probe');
my $written = $primary->safe_psql('postgres', 'SELECT n FROM felt WHERE i = 7');
my $felt = $probe->end;
cmp_ok($felt->{$_}{longest}, '>=', 0.45, "the $_ probe feels a lock of half a second: $felt->{$_}{longest} s") for qw(read write);
cmp_ok($felt->{read}{transactions}, '>', 0, 'the transactions of the read probe are counted');
cmp_ok($felt->{write}{transactions}, '>=', $written, 'the transactions of the write probe are counted');
is_deeply([ map { $felt->{$_}{errors} } qw(read write) ], [ {}, {} ], 'no errors when there are none');

# Only writers: a reader must not feel it.  What is compared is the same moment
# on the same machine, so its load does no harm.
$probe = IndexMover::Probe->new($primary, %statements);
$s->run('BEGIN; LOCK TABLE felt IN SHARE MODE; SELECT pg_sleep(1.5); COMMIT');
$felt = $probe->end;
cmp_ok($felt->{write}{longest}, '>=', 1.4, 'a lock against writers is felt by the writer');
cmp_ok($felt->{read}{longest}, '<', $felt->{write}{longest}, 'and not by the reader');

$probe = IndexMover::Probe->new($primary, %statements);
$s->run('ALTER TABLE felt RENAME n TO m');
poll_until($primary, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", '0', 'probes that have failed');
$felt = $probe->end;
$s->run('ALTER TABLE felt RENAME m TO n');
like(join(' ', keys %{ $felt->{$_}{errors} }), qr/column "n" does not exist/, "an error of the $_ probe is seen") for qw(read write);
$s->end;

# ---- the standby --------------------------------------------------------------
$primary->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'start', has_streaming => 1);
$standby->start;
standby_ok($primary, $standby, [ 'one', 'two' ], 'all well');

# Which assertions of standby_ok fail when they are shown this server; they are
# run in a Test::Builder of their own, so that this is no failure of the test.
sub what_it_sees
{
	my $outer = Test::More->builder;
	my $output = '';
	my $failed = '';
	{
		no warnings 'redefine';
		local *Test::Builder::ok = sub {
			my ($self, $right, $name) = @_;
			$failed .= "$name\n" unless $right;
			return $right;
		};
		local *Test::Builder::diag = sub { $output .= join '', @_[ 1 .. $#_ ]; return 0 };
		standby_ok($primary, $standby, [ 'one', 'two' ], 'damaged');
	}
	note $output;
	return $failed;
}

# Put an older file of an index in its place on the standby.
sub damage
{
	my ($relation, $change) = @_;
	my $path = $standby->data_dir . '/' . $primary->safe_psql('postgres', "SELECT pg_relation_filepath('$relation')");
	$standby->safe_psql('postgres', 'CHECKPOINT');
	$standby->stop;
	copy($path, "$path.kept") or die $!;
	$change->($path);
	$standby->start;
	my $failed = what_it_sees();
	$standby->stop;
	copy("$path.kept", $path) or die $!;
	unlink "$path.kept";
	$standby->start;
	return $failed;
}

my $page_size = block_size($primary);
my $zero = sub {
	my ($path) = @_;
	open(my $fh, '+<:raw', $path) or die $!;
	seek($fh, 2 * $page_size, 0);
	print $fh "\0" x $page_size;
	close $fh;
};
like(damage('one_s', $zero), qr/standby: the indexes of one$/m, 'a damaged index of the standby, the only one of its table, is seen');
like(damage('two_s', $zero), qr/standby: the indexes of two$/m, 'so is one of several');

# an index without the last changes: every page is well formed
$standby->safe_psql('postgres', 'CHECKPOINT');
my $path = $standby->data_dir . '/' . $primary->safe_psql('postgres', "SELECT pg_relation_filepath('one_s')");
$standby->stop;
copy($path, "$path.stale") or die $!;
$standby->start;
$primary->safe_psql('postgres', "DELETE FROM one WHERE s LIKE 'one 1%'; VACUUM one; INSERT INTO one SELECT 'new ' || g FROM generate_series(1, 1000) g; CHECKPOINT");
$primary->wait_for_catchup($standby);
like(damage('one_s', sub { copy("$_[0].stale", $_[0]) }), qr/standby: the indexes of one$/m, 'a stale index of the standby is seen');

$standby->stop;
append_to_file($standby->data_dir . '/base/5/4000000000', 'x');
$standby->start;
is($primary->safe_psql('postgres', "SELECT oid FROM pg_database WHERE datname = 'postgres'"), '5', 'the database is in base/5');
like(what_it_sees(), qr/standby: no orphaned/, 'an orphaned file of the standby is seen');
unlink $standby->data_dir . '/base/5/4000000000';

# rows that the standby has not: promoted behind the primary's back
standby_ok($primary, $standby, [ 'one', 'two' ], 'all well again');
like(damage('two', $zero), qr/standby: the rows of two$/m, 'rows that the standby has lost are seen');

$standby->stop;
$primary->stop;
done_testing();
