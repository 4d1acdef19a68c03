# The postmaster is killed while a worker copies: at every step the worker is
# gone within a second after it was in no system call, and has done nothing more;
# above all it has not swapped.  The server can be started again, and the next
# clean-up finds what is left, for a standby, too.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my $node = new_node('postmaster', streaming => 1, conf => "checkpoint_timeout = 1h\nmax_wal_size = 2GB\nwal_keep_size = 1GB");
$node->safe_psql('postgres', <<SQL);
CREATE TABLE orphan (i int, s text) WITH (fillfactor = 80);
INSERT INTO orphan SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 90000) g;
CREATE INDEX orphan_s ON orphan (s) TABLESPACE regress_slow;
LOAD 'index_mover';
SQL
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('orphan_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');

$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
$standby->start;

sub place
{
	return $node->safe_psql('postgres',
		"SELECT t.spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'orphan_s'::regclass");
}

foreach my $case (
	(map { [ $_, 0 ] } qw(copy-created copy-first copy-half copy-before-sync copy-verifying swap-asking swap-locked swap-copied swap-before-commit)),
	(map { [ $_, 1 ] } qw(swapped prewarm-step old-file-step old-file-drop)))
{
	my ($point, $swapped) = @$case;
	my $from = place();
	my $to = $from eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
	$node->safe_psql('postgres', "UPDATE orphan SET s = md5(s) WHERE i % 500 = 7");
	set_test_point($node, "$point:doze");
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover',
		"SELECT status FROM move_indexes('orphan_s', '$to', method => 'copy', settings => '{\"verify\": \"on\"}')");
	my $worker = wait_for_phase($node, '%');
	$node->wait_for_log(qr/test point "$point": dozing/, $log);
	my $start = time;
	my $postmaster = $node->{_pid};
	$node->kill9;
	usleep(5_000) while !process_is_gone($worker) && time - $start < $IndexMover::Test::TIMEOUT;
	my $seconds = time - $start;
	soon_ok($seconds, 1, "$point: the worker is gone");
	finish_call($call);

	# the other processes end likewise
	my $started = 0;
	foreach my $try (1 .. 200)
	{
		last if $started = $node->start(fail_ok => 1);
		$node->{_pid} = undef;
		usleep(100_000);
	}
	ok($started, "$point: the server starts again");
	set_test_point($node, '');
	is(place(), $swapped ? $to : $from, "$point: where the index is");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_ledger'), '1',
		"$point: and nothing more was done");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	files_ok($node, $point);
	leftovers_ok($node, $point, within => 5);
	$node->wait_for_catchup($standby);
	files_ok($standby, "$point, standby");
	$node->safe_psql('postgres', "SELECT oracle.structure('orphan_s')");
}
verdict_ok($node, 'orphan', 'at the end', max_keys => 200);
my $to = place() eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('orphan_s', '$to', method => 'copy')"),
	'moved', 'the move works after all that');
files_ok($node, 'at the end');
standby_ok($node, $standby, ['orphan'], 'at the end', max_keys => 200);

$_->stop foreach $standby, $node;
done_testing();
