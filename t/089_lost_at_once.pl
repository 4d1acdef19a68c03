# What is known to be lost is emptied at once, in all databases: also while the janitor reads files of
# another device for long, or an index of another database is locked.
#
# Fault (storage): a device that was away in a crash comes back with whole, old files; that of other
#   indexes has lost its marker, and they are large; the databases of the lost indexes come later, and
#   accept no connections, or one is locked; no worker is free; an older copy of a device comes while the server runs
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $dir = PostgreSQL::Test::Utils::tempdir();
my %location = map { $_ => "$dir/$_" } qw(slow fast);
make_path(values %location);
my $node = new_node('at_once', conf => <<CONF);
shared_preload_libraries = 'index_mover'
checkpoint_timeout = 1h
autovacuum = off
max_prepared_transactions = 2
CONF
sub value { my ($sql, $database) = @_; return $node->safe_psql($database // 'postgres', $sql); }
sub setting { my ($text) = @_; return $node->append_conf('postgresql.conf', "index_mover.test_mutation = '$text'\n"); }

# The janitor reads a database for long; those that come later have the lost indexes.
my @databases = qw(later closed);
value("CREATE TABLESPACE $_ LOCATION '$location{$_}'") foreach sort keys %location;
value($_) foreach 'CREATE TABLE t (id int)', 'INSERT INTO t SELECT generate_series(1, 500000)',
  'CREATE INDEX t_id ON t (id) TABLESPACE slow';
foreach my $database (@databases)
{
	value("CREATE DATABASE $database");
	value($_, $database) foreach 'CREATE TABLE u (id int, a int[])',
	  'INSERT INTO u SELECT g, ARRAY[g, g + 1] FROM generate_series(1, 5000) g',
	  'CREATE INDEX u_a ON u USING gin (a) TABLESPACE fast';
}
my %file = map { $_ => $node->data_dir . '/' . value("SELECT pg_relation_filepath('u_a')", $_) } @databases;
my $reads = "SELECT count(*) > 0 FROM pg_locks WHERE mode = 'AccessShareLock' AND relation = 't_id'::regclass AND pid <> pg_backend_pid()";
my $from;
my $watched = $node->data_dir . '/pg_snapshots/index_mover.running';

# ---- at the start ------------------------------------------------------------------------------------
value('CHECKPOINT');
value('INSERT INTO u VALUES (6000, ARRAY[6000])', $_) foreach @databases;
value('ALTER DATABASE closed ALLOW_CONNECTIONS false');
$node->stop('immediate');
rename $location{fast}, "$location{fast}.away" or die $!;
make_path($location{fast});
setting('keep-lost');
$node->start;
wait_until('watched', sub { -e $watched });
$node->stop;
rmtree($location{fast});
rename "$location{fast}.away", $location{fast} or die $!;
unlink glob("$location{slow}/index_mover.*") or die $!;
setting('read-rest:20000');
ok(-s $file{$_}, "$_ has a lost index that is not empty") foreach @databases;
$node->start;
$node->poll_query_until('postgres', $reads) or die 'the janitor does not read';
wait_until("$_ is emptied", sub { -z $file{$_} }) foreach @databases;
is(value($reads), 't', 'all lost indexes are emptied while the janitor reads files of another device');

# ---- while the server runs ---------------------------------------------------------------------------
# An older copy of the device comes in its place.  A session of another database finds it.
sub lose_now
{
	my ($name, $slots, $later, $mutation) = @_;
	setting('');
	$node->reload;
	value('ALTER DATABASE closed ALLOW_CONNECTIONS true');
	value('REINDEX INDEX u_a', $_) foreach @databases;
	value('DROP TABLE IF EXISTS s; CREATE TABLE s (id int)');
	value('CREATE INDEX s_id ON s (id) TABLESPACE fast; CHECKPOINT');
	system("cp -a '$location{fast}' '$location{fast}.copy'") == 0 or die;
	$node->stop;
	unlink glob("$location{slow}/index_mover.*") or die $!;
	setting($mutation // 'read-rest:20000');
	$node->append_conf('postgresql.conf', "max_worker_processes = $slots\n");
	$node->start;
	value('INSERT INTO u VALUES (6000, ARRAY[6000])', $_) foreach @databases;
	$file{$_} = $node->data_dir . '/' . value("SELECT pg_relation_filepath('u_a')", $_) foreach @databases;
	value('INSERT INTO s VALUES (6000); ALTER DATABASE closed ALLOW_CONNECTIONS false');
	value($later, 'later') if $later;
	$from = -s $node->logfile;
	wait_until('watched', sub { -e $watched });
	$node->poll_query_until('postgres', $reads) or die 'the janitor does not read';
	rename $location{fast}, "$location{fast}.away" or die $!;
	rename "$location{fast}.copy", $location{fast} or die $!;
	rmtree("$location{fast}.away");
	ok(-s $file{$_}, "$name: the file of $_ is there") foreach @databases;
	value('SELECT count(*) FROM index_mover_check()');
	return;
}
lose_now('while the server runs', 8);
wait_until("$_ is emptied", sub { -z $file{$_} }) foreach @databases;
is(value($reads), 't', 'while the server runs: a lost index is emptied while the janitor reads files of another device');

# ---- one is locked -------------------------------------------------------------------------------------
# Its emptying queues for the lock, here for longer than it may.
lose_now('locked', 8, "BEGIN; SET LOCAL enable_seqscan = off; SELECT count(*) FROM u WHERE a @> ARRAY[7]; PREPARE TRANSACTION 'reader'",
	'read-rest:20000,lost-queueing:600000');
wait_until('closed is emptied', sub { -z $file{closed} });
ok(-s $file{later}, 'locked: a lost index is emptied while that of a database before is locked');
value("ROLLBACK PREPARED 'reader'", 'later');
wait_until('later is emptied', sub { -z $file{later} });

# ---- no worker is free ---------------------------------------------------------------------------------
# (the launchers and the janitor have them all)
lose_now('no worker', 3);
$node->wait_for_log(qr/the files of lost indexes of database "[a-z]\w*" are not emptied before there is a free/, $from);
ok(-s $file{later}, 'no worker is free: it has to wait');
value("SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
	WHERE relation = 't_id'::regclass AND pid <> pg_backend_pid()");
wait_until('later is emptied', sub { -z $file{later} });
pass('a worker is free: it is emptied');
done_testing();
