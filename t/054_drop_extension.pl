# DROP EXTENSION while a copy is running waits for the end of the job, and harms
# neither the job nor itself.  (A rebuild waits for old snapshots, so also for
# that of DROP EXTENSION: there the deadlock check ends one of them.)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('drop_extension');

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 150000);
CREATE INDEX t_1 ON t (i);
CREATE INDEX t_2 ON t (i);
CREATE INDEX t_3 ON t (i);
SQL

my $call = start_call($node, 'mover',
	"SELECT string_agg(DISTINCT status, ',') || count(*) FROM move_indexes('t', 'regress_fast', 'copy', settings => '{\"max_workers\": 2, \"max_rate\": \"3MB\", \"pacing\": false}')");
poll_until($node, "SELECT count(*) > 0 FROM index_mover_progress WHERE blocks_done > 0", 't', 'a copy is running');
my ($stdout, $stderr);
my $dropped = $node->psql('postgres', 'DROP EXTENSION index_mover', stdout => \$stdout, stderr => \$stderr, timeout => 180);
is($dropped, 0, 'the extension is dropped');
is($stderr, '', '... without an error');
my ($status, $out, $err) = finish_call($call);
chomp $out;
is($out, 'moved3', 'and all indexes have been moved');
is($err, '', '... without a warning');

$node->safe_psql('postgres', 'CREATE EXTENSION index_mover');
is($node->safe_psql('postgres', "SELECT DISTINCT status FROM move_indexes('t', 'regress_slow')"), 'moved',
	'made again, it works');
leftovers_ok($node, 'drop extension', within => 5);
done_testing();
