# The oracles that watch while something goes on, or on another server, can fail
# too: each of them is shown something that is wrong.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Copy qw(copy);
use IO::Handle;
use IndexMover::Pages;
use IndexMover::Processes;
use IndexMover::Probe;
use IndexMover::Programs;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::Builder;
use Test::More;
use Time::HiRes qw(usleep);

needs_faults();

my $primary = new_node('primary', extension => 0, streaming => 1);
$primary->safe_psql('postgres', <<SQL);
CREATE EXTENSION pageinspect;
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

# Only writers: a reader must not feel it.  A busy machine may keep the reader for
# seconds, so the lock is then held for longer than that.
foreach my $seconds (1.5, 6, 24)
{
	$probe = IndexMover::Probe->new($primary, %statements);
	$s->run("BEGIN; LOCK TABLE felt IN SHARE MODE; SELECT pg_sleep($seconds); COMMIT");
	$felt = $probe->end;
	last if $felt->{read}{longest} < $felt->{write}{longest};
}
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
same_pages_ok($primary, $standby, 'one_s', 'all well');
amcheck_ok($_, 'all well, ' . $_->name) foreach $primary, $standby;
backup_ok($primary, 'start', 'all well');

# Which assertions of standby_ok, or of another oracle, fail when they are shown
# what is wrong; they are run in a Test::Builder of their own, so that this is no
# failure of the test.
sub what_it_sees
{
	my ($look) = @_;
	$look ||= sub { standby_ok($primary, $standby, [ 'one', 'two' ], 'damaged') };
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
		$look->();
	}
	note $output;
	return $failed;
}

# Put an older file of an index in its place on the standby.
sub damage
{
	my ($relation, $change, $look) = @_;
	my $path = $standby->data_dir . '/' . $primary->safe_psql('postgres', "SELECT pg_relation_filepath('$relation')");
	$standby->safe_psql('postgres', 'CHECKPOINT');
	$standby->stop;
	copy($path, "$path.kept") or die $!;
	$change->($path);
	$standby->start;
	my $failed = what_it_sees($look);
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

# the same index, block by block, and its server, by PostgreSQL's own program
like(damage('one_s', $zero, sub { same_pages_ok($primary, $standby, 'one_s', 'damaged') }), qr/damaged: the same pages$/m,
	"a page that differs from the primary's is seen");
SKIP:
{
	# in front of another segment PostgreSQL does not read a part of one
	skip 'the index has several segments in this build', 1
	  if -e $standby->data_dir . '/' . $primary->safe_psql('postgres', "SELECT pg_relation_filepath('one_s')") . '.1';
	my $half = sub { truncate($_[0], $page_size * 2) or die $! };
	like(damage('one_s', $half, sub { same_pages_ok($primary, $standby, 'one_s', 'damaged') }), qr/damaged: the same pages$/m,
		'so is a part that is missing');
}
SKIP:
{
	skip 'pg_amcheck is not installed', 1 unless has_program('pg_amcheck');
	like(damage('one_s', $zero, sub { amcheck_ok($standby, 'damaged') }), qr/damaged: pg_amcheck$/m, 'pg_amcheck sees a damaged index');
}

# a backup of which a file has another byte, is shorter, or is missing
SKIP:
{
	skip 'pg_verifybackup is not installed', 4 unless has_program('pg_verifybackup');
	my $look = sub { backup_ok($primary, 'start', 'damaged') };
	my $file = $primary->backup_dir . '/start/' . $primary->safe_psql('postgres', "SELECT pg_relation_filepath('two_s')");
	my $size = -s $file;
	open(my $fh, '+<:raw', $file) or die "$file: $!";
	seek($fh, $size - 100, 0);
	read($fh, my $byte, 1);
	foreach my $change (chr(ord($byte) ^ 1), $byte)
	{
		seek($fh, $size - 100, 0);
		print $fh $change;
		$fh->flush;
		is(what_it_sees($look), $change eq $byte ? '' : "damaged: pg_verifybackup\n", $change eq $byte ? 'the backup is as before'
			: 'another byte in a backup is seen');
	}
	close $fh;
	truncate($file, $size - 1) or die $!;
	is(what_it_sees($look), "damaged: pg_verifybackup\n", 'a file that is too short is seen');
	unlink $file;
	is(what_it_sees($look), "damaged: pg_verifybackup\n", 'a file that is missing is seen');
}

# an index without the last changes: every page is well formed
$standby->safe_psql('postgres', 'CHECKPOINT');
my $path = $standby->data_dir . '/' . $primary->safe_psql('postgres', "SELECT pg_relation_filepath('one_s')");
$standby->stop;
copy($path, "$path.stale") or die $!;
$standby->start;
$primary->safe_psql('postgres',
	"DELETE FROM one WHERE s LIKE 'one 1%'; VACUUM one; INSERT INTO one SELECT 'new ' || g FROM generate_series(1, 1000) g; CHECKPOINT");
$primary->wait_for_catchup($standby);
like(damage('one_s', sub { copy("$_[0].stale", $_[0]) }), qr/standby: the indexes of one$/m, 'a stale index of the standby is seen');

# A page that differs when it is replayed: it is put back to before a change that
# recovery does not come by any more, so the next one of the same page is redone on it.
# No full page may heal it, neither of a change nor of a hint bit: those are set.
{
	my $path = $standby->data_dir . '/';
	my $look = sub { my %options = @_; what_it_sees(sub { replayed_pages_ok($primary, $standby, 'damaged', %options) }) };
	my $checkpoint_both = sub {
		$primary->safe_psql('postgres', 'SELECT count(*) FROM compared; CHECKPOINT');
		$primary->wait_for_catchup($standby);
		$standby->safe_psql('postgres', 'CHECKPOINT');
	};
	$primary->safe_psql('postgres', 'ALTER SYSTEM SET full_page_writes = off');
	$primary->reload;
	poll_until($primary, 'CHECKPOINT; SELECT full_page_writes FROM pg_control_checkpoint()', 'f', 'full_page_writes off');
	$primary->safe_psql('postgres', 'CREATE TABLE compared (i int); INSERT INTO compared SELECT generate_series(1, 9)');
	$path .= $primary->safe_psql('postgres', "SELECT pg_relation_filepath('compared')");
	$checkpoint_both->();
	copy($path, "$path.stale") or die $!;
	$primary->safe_psql('postgres', "DELETE FROM compared WHERE ctid = '(0,1)'");
	$checkpoint_both->();
	like($look->(), qr/damaged: each page the same/, 'that no page is compared when it is replayed is seen');

	$primary->safe_psql('postgres', q{ALTER SYSTEM SET wal_consistency_checking = 'all'});
	$primary->reload;
	poll_until($primary, 'SHOW wal_consistency_checking', 'all', 'wal_consistency_checking');
	$primary->safe_psql('postgres', 'UPDATE felt SET n = n + 1');
	replayed_pages_ok($primary, $standby, 'all well');

	$standby->stop;
	copy($path, "$path.kept") or die $!;
	copy("$path.stale", $path) or die $!;
	$standby->start;
	my $log = -s $standby->logfile;
	$primary->safe_psql('postgres', "DELETE FROM compared WHERE ctid = '(0,2)'");
	wait_until_down($standby);
	like($look->(from => $log), qr/damaged: each page the same/, 'a page that differs when it is replayed is seen');

	copy("$path.kept", $path) or die $!;
	unlink "$path.kept", "$path.stale";
	$log = -s $standby->logfile;
	$standby->start;
	replayed_pages_ok($primary, $standby, 'all well again', from => $log);
	$primary->safe_psql('postgres', 'DROP TABLE compared; ALTER SYSTEM RESET wal_consistency_checking');
	$primary->safe_psql('postgres', 'ALTER SYSTEM RESET full_page_writes');
	$primary->reload;
	poll_until($primary, 'CHECKPOINT; SELECT full_page_writes FROM pg_control_checkpoint()', 't', 'full_page_writes on');
}

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
