# A copy that is killed, terminated, cancelled or fails at every step: the index
# is where it was or where it was to be, whole, and nothing is left behind, here
# and on a standby.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

needs_test_points();

my $node = new_node('copy_crash', streaming => 1, conf => <<CONF);
checkpoint_timeout = 1h
max_wal_size = 4GB
wal_keep_size = 1GB
wal_retrieve_retry_interval = 100ms
CONF
$node->safe_psql('postgres', <<SQL);
CREATE TABLE crash (i int, s text) WITH (fillfactor = 80);
INSERT INTO crash SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 95000) g;
CREATE INDEX crash_s ON crash (s) TABLESPACE regress_slow;
LOAD 'index_mover';
SQL
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('crash_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');

$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
$standby->start;

my @before_swap = qw(copy-registered copy-created copy-logged copy-first copy-half copy-end
  copy-before-sync copy-synced copy-again copy-verifying swap-asking swap-locked swap-block swap-copied swap-before-commit);
my @after_swap = qw(swapped prewarm-step prewarmed old-file-start old-file-step old-file-drop old-file-dropped);
# here it is only killed, or fails
my %inner = map { $_ => 1 } qw(copy-logged copy-verifying swap-block prewarm-step);

sub place
{
	return $node->safe_psql('postgres',
		"SELECT coalesce(t.spcname, 'default') FROM pg_class c LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'crash_s'::regclass");
}

sub server_is_up
{
	wait_until_up($node);
	return;
}

# What must hold afterwards, whatever was done.
sub check_all
{
	my ($name, $expected) = @_;
	is(place(), $expected, "$name: the index is in $expected");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_ledger'),
		'0', "$name: the ledger is empty");
	$node->safe_psql('postgres', 'CHECKPOINT');
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	$node->wait_for_catchup($standby);
	files_ok($standby, "$name, standby");
	my ($rc, $out, $err) = $node->psql('postgres',
		"SELECT oracle.bt_index_parent_check('crash_s', true, true)");
	is($rc, 0, "$name: amcheck") or diag $err;
	return;
}

foreach my $action (qw(kill error terminate cancel))
{
	foreach my $point (@before_swap, @after_swap)
	{
		my $name = "$action at $point";
		my $from = place();
		my $to = $from eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
		my $swapped = grep { $_ eq $point } @after_swap;
		my $paused = $action eq 'terminate' || $action eq 'cancel';
		next if $paused && $inner{$point};

		set_tests($node, test_point => "$point:" . ($paused ? 'wait' : $action),
			test_mutation => $point eq 'copy-again' ? 'again' : '');
		my $blocker;
		if ($paused)
		{
			$blocker = $node->background_psql('postgres');
			$blocker->query_safe('SELECT pg_advisory_lock(0, 5959)');
		}
		# rows change meanwhile
		$node->safe_psql('postgres', "UPDATE crash SET s = md5(s) WHERE i % 1000 = 7");
		my $log = -s $node->logfile;
		my $call = start_call($node, 'mover',
			"SELECT status, sqlstate FROM move_indexes('crash_s', '$to', method => 'copy', settings => '{\"verify\": \"on\"}')");
		if ($paused)
		{
			$node->wait_for_log(qr/test point "$point": waiting/, $log);
			my $pid = $node->safe_psql('postgres',
				"SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
			$node->safe_psql('postgres',
				$action eq 'cancel' ? "SELECT pg_cancel_backend($pid)" : "SELECT pg_terminate_backend($pid)");
		}
		my ($rc, $out, $err) = finish_call($call);
		note "$name: $out $err";
		if ($action eq 'kill')
		{
			server_is_up();
		}
		else
		{
			chomp $out;
			my %expected = $swapped
			  ? (error => qr/^moved\|/, cancel => qr/^moved\|/, terminate => qr/^moved\|/)
			  : (error => qr/^failed\|XX000/, cancel => qr/^cancelled\|57014/, terminate => qr/^cancelled\|57P01/);
			like($out, $expected{$action}, "$name: the row");
		}
		$blocker->quit if $blocker;
		set_tests($node);
		if ($action ne 'kill')
		{
			# without being asked
			poll_until($node, 'SELECT count(*) FROM index_mover_ledger', '0',
				"$name: clean-up", timeout => 10);
		}
		elsif ($swapped)
		{
			# nothing is left to move, but something to remove
			is($node->safe_psql('postgres', "SELECT status FROM move_indexes('crash_s', '$to')"),
				'skipped', "$name: the next call has nothing to move");
			is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_ledger'),
				'0', "$name: and removes what is left");
		}
		check_all($name, $swapped ? $to : $from);
	}
}

# a copy that fails, and so does the removal of what it has made
my $from = place();
my $to = $from eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
set_test_point($node, 'copy-half:error,left-file-drop:error');
my ($rc, $out, $err) = $node->psql('postgres', "SELECT status, sqlstate FROM move_indexes('crash_s', '$to', method => 'copy')",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
is($out, 'failed|XX000', 'error in the removal, too: the row');
like($err, qr/WARNING:  XX000: could not remove a file that a move has left behind: test point "left-file-drop"\nHINT:  Call index_mover_cleanup\(\) later\./,
	'error in the removal, too: the WARNING');
set_test_point($node, '');
check_all('error in the removal, too', $from);

# and it works again
is( $node->safe_psql('postgres', "SELECT status FROM move_indexes('crash_s', '$to', method => 'copy')"),
	'moved', 'the move works after all that');
check_all('at the end', $to);
standby_ok($node, $standby, ['crash'], 'at the end', max_keys => 200);

done_testing();
