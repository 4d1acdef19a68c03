# The extension where PostgreSQL's own directories do not have it
# (extension_control_path and dynamic_library_path, since 18): preloaded,
# with the janitor, and not; caller, workers and reports.
#
# Fault (replication): the files outside of PostgreSQL's own directories (18)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Basename qw(basename);
use File::Copy qw(copy);
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'extension_control_path came with PostgreSQL 18'
  unless `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 18;

# The server looks nowhere else: what is not ours is a link there.
my $elsewhere = "$PostgreSQL::Test::Utils::tmp_check/elsewhere";
chomp(my $share = `pg_config --sharedir`);
chomp(my $lib = `pg_config --pkglibdir`);
mkdir $_ or die "$_: $!" foreach $elsewhere, "$elsewhere/extension", "$elsewhere/lib";
my $dlsuffix = -f "$lib/index_mover.so" ? 'so' : 'dylib';
foreach my $file (glob("$share/extension/*.control"), glob("$share/extension/*.sql"), glob("$lib/*.$dlsuffix"))
{
	my $to = sprintf '%s/%s/%s', $elsewhere, $file =~ /\.$dlsuffix$/ ? 'lib' : 'extension', basename($file);
	if (basename($file) =~ /^index_mover\b/)
	{
		copy($file, $to) or die "$to: $!";
	}
	else
	{
		symlink $file, $to or die "$to: $!";
	}
}

my $node = new_node('elsewhere', conf => <<CONF);
extension_control_path = '$elsewhere'
dynamic_library_path = '$elsewhere/lib'
shared_preload_libraries = 'index_mover'
CONF
make_zoo($node, 'zoo', 500);
$node->safe_psql('postgres', <<SQL);
-- which cannot be copied
DROP INDEX zoo_bloom;
CREATE TABLE slow AS SELECT generate_series(1, 50000) i;
CREATE INDEX slow_i ON slow (i);
SELECT oracle.remember_keys('zoo'), oracle.remember_metadata('zoo');
SQL

# Where a process has the library from.
sub libraries_ok
{
	my ($pid, $expected, $name) = @_;
  SKIP:
	{
		skip 'needs /proc', 1 unless -r "/proc/$pid/maps";
		my %files = map { $_ => 1 } slurp_file("/proc/$pid/maps") =~ m{ (/\S*/index_mover\.\w+)$}mg;
		is(join(' ', sort keys %files), join(' ', map { "$elsewhere/lib/$_.so" } @$expected), "$name: libraries from there");
	}
	return;
}

sub moves_ok
{
	my ($name) = @_;
	my $session = IndexMover::Session->new($node);
	foreach my $method ('copy', 'rebuild')
	{
		is($session->run("SELECT DISTINCT status FROM move_indexes('zoo', 'regress_fast', '$method')"), 'moved', "$name: $method");
		is($session->run('SELECT DISTINCT status FROM undo_move((SELECT max(job) FROM index_mover_history))'), 'moved',
			"$name: $method undone");
	}
	is($session->run("SELECT DISTINCT status FROM move_table('zoo', 'regress_fast')"), 'moved', "$name: the table");
	is($session->run("SELECT DISTINCT status FROM move_table('zoo', 'pg_default')"), 'moved', "$name: and back");
	is($session->run("SELECT is_exact FROM index_bloat('zoo_pkey', exact => true)"), 't', "$name: a measurement");
	libraries_ok($session->pid, ['index_mover'], "$name: caller");
	$session->end;
	my $job = begin_job($node, 'slow_i', 'regress_fast', max_rate => '64kB');
	poll_until($node, "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'max_rate', 'a copy that takes its time');
	libraries_ok(worker_pid($node), ['index_mover'], "$name: worker");
	$node->safe_psql('postgres', "SELECT cancel_move($job)");
	wait_for_no_worker($node);
	all_right($node, 'zoo', $name);
	return;
}

moves_ok('preloaded');
leave_behind($node, 'postgres');
poll_until($node, 'SELECT count(*) FROM index_mover_cleanup(true)', '0', 'the janitor has removed everything');
files_ok($node, 'after the janitor');

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
moves_ok('not preloaded');
done_testing();
