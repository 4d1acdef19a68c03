# Reading all files of a device that is not known: slowly, without being in the way, and once.
#
# Fault (storage): the marker of a device is gone, while its indexes are large; its location cannot be
#   written to; an index, or the database, is dropped while the janitor reads there
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Evidence;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my ($node, $location, $oid) = node_with_device('reads', conf => "index_mover.test_mutation = 'read-rest:200'\n");
sub value { my ($sql, $database) = @_; return $node->safe_psql($database // 'postgres', $sql); }

value('CREATE DATABASE dropped');
foreach my $database (qw(postgres dropped))
{
	value($_, $database) foreach 'CREATE TABLE t (id int)', 'INSERT INTO t SELECT generate_series(1, 500000)',
	  'CREATE INDEX t_1 ON t (id) TABLESPACE fast', 'CREATE INDEX t_2 ON t (id) TABLESPACE fast';
}
value('CREATE EXTENSION index_mover', 'dropped');

sub verdict { return verdict_on_record($node, $oid); }
sub forget
{
	my ($mode) = @_;
	$node->stop;
	unlink glob("$location/index_mover.*") or die $!;
	chmod $mode, $location or die $!;
	$node->start;
	return;
}
# The index that the janitor reads in a database, or nothing
sub reads
{
	my ($database) = @_;
	return value("SELECT string_agg(l.relation::regclass::text, ' ') FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.mode = 'AccessShareLock' AND l.relation IN (SELECT oid FROM pg_class WHERE relname LIKE 't\_%')
		  AND a.backend_type LIKE 'index\_mover%' AND l.database = (SELECT oid FROM pg_database WHERE datname = '$database')", $database);
}

# ---- not in the way ---------------------------------------------------------------------------------
forget(0700);
my $snapshots = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'index\\_mover%' AND backend_xmin IS NOT NULL";
my $index;
wait_until('it reads', sub { $index = reads('postgres') });
is(value($snapshots), 0, 'the janitor reads without a snapshot');
is($node->psql('postgres', "SET lock_timeout = '5s'; DROP INDEX $index"), 0, 'the index can be dropped meanwhile');
wait_until('it reads elsewhere', sub { reads('dropped') });
is(value($snapshots), 0, 'in another database, too');
is($node->psql('postgres', 'DROP DATABASE dropped'), 0, 'which can be dropped meanwhile');
value("ALTER SYSTEM SET index_mover.test_mutation = ''");
$node->restart;
wait_until('settled', sub { verdict() eq 'same' });
pass('in the end its device is known');

# ---- once ---------------------------------------------------------------------------------------------
forget(0500);
sub watches
{
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	return scalar(grep { /^\s*\d+\s+$postmaster\s.*index_mover device watch/ } `ps -eo pid,ppid,args`);
}
wait_until_watched($node);
wait_for_no_worker($node);
usleep(2_000_000);
is(verdict(), 'unknown', 'a location that cannot be written to: its device stays unknown');
like(value("SELECT kind FROM index_mover_check()"), qr/evidence missing/, 'index_mover_check() tells of the missing evidence');
my $looks = 0;
for (my $start = time; time - $start < 12; usleep(2_000))
{
	$looks++ if watches();
}
is($looks, 0, 'a device that stays unknown is not looked at again and again');
chmod 0700, $location or die $!;
done_testing();
