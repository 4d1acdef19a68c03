# The postmaster is killed while a worker copies: at every step the worker is
# gone within a second after it was in no system call, and has done nothing more;
# above all it has not swapped.  The server can be started again, and the next
# cleanup finds what is left, for a standby, too.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Shutdown;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('postmaster', streaming => 1, conf => <<CONF);
checkpoint_timeout = 1h
max_wal_size = 2GB
wal_keep_size = 1GB
wal_retrieve_retry_interval = 100ms
CONF
$node->safe_psql('postgres', <<SQL);
CREATE TABLE orphan (i int, s text);
-- long keys: the index is to be large, and to be looked up quickly
ALTER TABLE orphan ALTER s SET STORAGE plain;
INSERT INTO orphan SELECT g, repeat(md5(g::text), 60) FROM generate_series(1, 8000) g;
CREATE INDEX orphan_s ON orphan (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('orphan'), oracle.remember_metadata('orphan');
LOAD 'index_mover';
SQL
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('orphan_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');

$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
$standby->start;

my $direct_io = 'auto';
sub move
{
	my $to = elsewhere($node, 'orphan_s');
	return "SELECT status FROM move_indexes('orphan_s', '$to', method => 'copy', settings => "
		. "'{\"verify\": \"on\", \"direct_io\": \"$direct_io\"}')";
}

# Wait until the worker dozes at the point, and kill the postmaster; then the server
# is started again.
sub kill_at
{
	my ($name, $point, $call, $log) = @_;
	$node->wait_for_log(qr/test point "$point": dozing/, $log);
	$call->{worker} = $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
	kill_postmaster($node, $call, $name);
	set_tests($node);
	return;
}

# Point; whether the swap is before it; further: what the test build is told besides,
# and at which point others write before, for what comes only then.
foreach my $case (
	picked { $_->[0] =~ /^(?:copy-half|swap-before-commit|old-file-step|copy-end)$/ } 'points',
	(map { [ $_, 0 ] } qw(copy-registered copy-created copy-logged copy-first copy-half)),
	(writes_directly() ? [ 'copy-under-way', 0, direct_io => 'on' ] : ()),
	[ 'copy-round', 0, written => 'copy-end' ],
	[ 'copy-before-sync', 0 ],
	[ 'copy-again', 0, mutation => 'again' ],
	[ 'copy-verifying', 0 ],
	[ 'copy-synced', 0 ],
	[ 'copy-buffered-round', 0, written => 'copy-synced' ],
	[ 'prewarm-read', 0, direct_io => 'on' ],
	(map { [ $_, 0 ] } qw(swap-asking swap-locked swap-block swap-copied swap-before-commit)),
	[ 'left-file-drop', 0, before => 'copy-half:error' ],
	(map { [ $_, 1 ] } qw(swapped prewarm-step prewarmed old-file-start old-file-step old-file-drop old-file-dropped)),
	# and once more, in the cleanup after that
	[ 'copy-end', 0, cleanup => 'old-file-step' ])
{
	my ($point, $swapped, %options) = @$case;
	$direct_io = $options{direct_io} || 'auto';
	my $name = $options{cleanup} ? "$point, then $options{cleanup} of index_mover_cleanup()" : $point;
	my $from = tablespace_of_index($node, 'orphan_s');
	my $to = other_place($from);
	$node->safe_psql('postgres', "UPDATE orphan SET s = md5(s) WHERE i % 500 = 7");
	my $log = -s $node->logfile;
	my $call;
	if ($options{written})
	{
		$call = held_at($node, $options{written}, move(), then => "$point:doze");
		$node->safe_psql('postgres', "UPDATE orphan SET s = md5(s) WHERE i % 10 = 3");
		let_go($call);
	}
	else
	{
		set_tests($node, test_point => join(',', $options{before} || (), "$point:doze"), test_mutation => $options{mutation} || '');
		$call = start_call($node, 'mover', move());
	}
	kill_at($name, $point, $call, $log);
	if ($options{cleanup})
	{
		set_test_point($node, "$options{cleanup}:doze");
		$log = -s $node->logfile;
		kill_at("$name, again", $options{cleanup},
			start_call($node, 'cleaner', 'SELECT * FROM index_mover_cleanup()'), $log);
	}
	is(tablespace_of_index($node, 'orphan_s'), $swapped ? $to : $from, "$name: where the index is");
	# (between left-file-drop and its commit, the removal does not ask for the postmaster)
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), $point eq 'old-file-dropped' ? '0' : '1',
		"$name: and nothing more was done") unless $point eq 'left-file-drop';
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	files_ok($node, $name);
	$node->wait_for_catchup($standby);
	files_ok($standby, "$name, standby");
	survived_ok($node, 'orphan', $name, move(), max_keys => 50, restarted => 1, count => 'postmaster killed in mid-copy');
	# the next case asks for the one worker there is
	wait_for_no_worker($node);
}
standby_ok($node, $standby, ['orphan'], 'at the end', max_keys => 200);

$_->stop foreach $standby, $node;
done_testing();
