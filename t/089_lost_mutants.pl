# The guards of a lost device, taken away one at a time: each time an old index gives a wrong
# answer, or lets a duplicate pass, that t/089_lost_evidence.pl would see.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

needs_test_points();

my ($node, $location) = node_with_device('mutants', conf => "max_prepared_transactions = 5\nautovacuum = off\n");
sub value { return $node->safe_psql('postgres', $_[0]); }

value(<<'SQL');
CREATE TABLE t (id int);
INSERT INTO t SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast;
SQL

# A device that was away while recovery replayed what it lacks.
value('CHECKPOINT');
value('INSERT INTO t SELECT generate_series(5001, 5100)');
$node->stop('immediate');
rename $location, "$location.away" or die $!;
make_path($location);
$node->append_conf('postgresql.conf', "index_mover.test_mutation = 'show-lost,keep-lost'");
$node->start;
wait_for_no_worker($node);
$node->stop;
rmtree($location);
rename "$location.away", $location or die $!;
$node->start;
wait_for_no_worker($node);

my $look_up = 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 5050';
my $duplicate = 'INSERT INTO t VALUES (5050)';
is(value($look_up), 0, 'neither hidden nor emptied: a wrong answer');
is($node->psql('postgres', $duplicate), 0, 'and a duplicate gets in');
value("DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE id = 5050)");

$node->append_conf('postgresql.conf', "index_mover.test_mutation = 'keep-lost'");
$node->restart;
wait_for_no_worker($node);
is(value($look_up), 1, 'hidden: the right answer');
is($node->psql('postgres', $duplicate), 0, 'but a duplicate gets in');

# ---- prepared transactions, while files cannot be emptied --------------------------------------------------
# Each end may bring an index back.  All sessions are told, and list pg_class then: once a second at most.
my $scans = "SELECT seq_scan FROM pg_stat_sys_tables WHERE relid = 'pg_class'::regclass";
my $scans_before = value($scans);
my $began = time;
my $prepared = "BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'; SELECT count(*) FROM t WHERE id = 1;\n";
value($prepared x 300);
my $took = time - $began;
my $listed = value($scans) - $scans_before;
cmp_ok($listed, '<', 10 * ($took + 3), "300 prepared transactions have tables listed again a few times a second")
  or diag("$listed times in $took s");
value("DELETE FROM t WHERE ctid = (SELECT max(ctid) FROM t WHERE id = 5050)");

$node->append_conf('postgresql.conf', "index_mover.test_mutation = 'show-lost'");
$node->restart;
wait_for_no_worker($node);
isnt($node->psql('postgres', $look_up), 0, 'emptied: no answer');
isnt($node->psql('postgres', $duplicate), 0, 'and no duplicate');

$node->append_conf('postgresql.conf', "index_mover.test_mutation = ''");
$node->restart;
is(value($look_up), 1, 'both: the right answer');
isnt($node->psql('postgres', $duplicate), 0, 'and no duplicate');
is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast')"), 'moved', 'the lost index is healed');
is(value($look_up), 1, 'healed: the right answer');
like(value("SET enable_seqscan = off; EXPLAIN SELECT count(*) FROM t WHERE id = 5050"), qr/t_id/, 'by the index');
isnt($node->psql('postgres', $duplicate), 0, 'healed: no duplicate');
done_testing();
