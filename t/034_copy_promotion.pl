# A streaming standby that is promoted in the middle of a copy, or after one has
# failed: at each step that leaves something else behind there.  The index is where
# it was or where it was to be, whole; what is left is on record, and is removed by
# who comes first: the janitor, a call of index_mover_cleanup(), or the next move.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $primary = new_node('primary', streaming => 1, conf => <<CONF);
wal_keep_size = 2GB
max_wal_size = 4GB
checkpoint_timeout = 1h
CONF
$primary->safe_psql('postgres', <<SQL);
CREATE TABLE crash (i int, s text);
-- long keys: the index is to be large, and to be looked up quickly
ALTER TABLE crash ALTER s SET STORAGE plain;
INSERT INTO crash SELECT g, repeat(md5(g::text), 37) FROM generate_series(1, 15000) g;
CREATE INDEX crash_s ON crash (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('crash');
LOAD 'index_mover';
SQL
cmp_ok($primary->safe_psql('postgres', "SELECT pg_relation_size('crash_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');

sub place
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		"SELECT t.spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'crash_s'::regclass");
}

sub elsewhere
{
	my ($node) = @_;
	return place($node) eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
}

sub move_to
{
	my ($to) = @_;
	return "SELECT status FROM move_indexes('crash_s', '$to', method => 'copy', settings => '{\"pacing\": \"off\"}')";
}

# Point; what is done to the move there; whether the swap is before it; what the
# standby then has: a file that no relation owns, rows of the ledger; who removes it,
# if there is anything.
my @cases = (
	[ 'copy-registered', 'wait', 0, 0, 1, 'janitor' ],
	[ 'copy-created', 'wait', 0, 1, 1, 'call' ],
	[ 'copy-half', 'wait', 0, 1, 1, 'janitor' ],
	[ 'copy-half', 'checkpoint', 0, 1, 1, 'move' ],
	[ 'copy-synced', 'wait', 0, 1, 1, 'call' ],
	[ 'swap-locked', 'wait', 0, 1, 1, 'move' ],
	[ 'swap-before-commit', 'wait', 0, 1, 1, 'call' ],
	[ 'swapped', 'wait', 1, 1, 1, 'call' ],
	[ 'old-file-start', 'wait', 1, 1, 1, 'janitor' ],
	[ 'old-file-step', 'wait', 1, 1, 1, 'janitor' ],
	[ 'old-file-drop', 'wait', 1, 1, 1, 'move' ],
	[ 'old-file-dropped', 'wait', 1, 0, 0, 'nobody' ],
	[ 'copy-half', 'error', 0, 0, 0, 'nobody' ],
	[ 'copy-half', 'error, and one in its clean-up', 0, 1, 1, 'call' ],
	[ 'copy-half', 'cancel', 0, 0, 0, 'nobody' ],
	[ 'copy-half', 'kill', 0, 1, 1, 'janitor' ]);

my $n = 0;
foreach my $case (@cases)
{
	my ($point, $what, $swapped, $files, $rows, $who) = @$case;
	my $name = "promoted at $point" . ($what eq 'wait' ? '' : ", $what");
	# what a standby would have to replay otherwise is more than a backup takes
	$primary->backup("backup$n") if $n % 4 == 0;
	my $other = PostgreSQL::Test::Cluster->new("standby$n");
	$other->init_from_backup($primary, 'backup' . ($n - $n % 4), has_streaming => 1);
	$other->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
	$other->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover'")
	  if $who eq 'janitor';
	$other->start;
	$n++;

	my $from = place($primary);
	my $to = elsewhere($primary);
	my ($call, $row);
	if ($what =~ /^error|^kill/)
	{
		my $log = -s $primary->logfile;
		set_test_point($primary, $what eq 'kill' ? "$point:kill"
			: "$point:error" . ($what eq 'error' ? '' : ',left-file-drop:error'));
		(undef, $row) = finish_call(start_call($primary, 'mover', move_to($to)));
		if ($what eq 'kill')
		{
			$primary->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
			wait_until_up($primary);
		}
		else
		{
			is($row, "failed\n", "$name: the move has failed");
		}
		set_test_point($primary, '');
	}
	else
	{
		$call = held_at($primary, $point, move_to($to));
		if ($what eq 'cancel')
		{
			$primary->safe_psql('postgres', "SELECT pg_cancel_backend($call->{worker})");
			(undef, $row) = finish_call($call);
			is($row, "cancelled\n", "$name: the move was cancelled");
		}
	}
	# what the move has logged last need not be flushed yet
	$primary->safe_psql('postgres', $what eq 'checkpoint' ? 'CHECKPOINT' : 'SELECT pg_switch_wal()');
	$primary->wait_for_catchup($other);
	if ($what eq 'checkpoint')
	{
		# what recovery begins with knows nothing of the copy's begin
		$other->safe_psql('postgres', 'CHECKPOINT');
		$other->stop('immediate');
		$other->start;
		$primary->wait_for_catchup($other);
	}

	is($other->safe_psql('postgres', 'SELECT (count(*) > 0)::int FROM oracle.files()'), $files,
		"$name: whether the standby has a file that no relation owns");
	is($other->safe_psql('postgres', 'SELECT count(*) FROM index_mover_ledger'), $rows,
		"$name: what is on record");
	$other->promote;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
	if ($call)
	{
		let_go($call);
		finish_call($call) if $what ne 'cancel';
	}
	$primary->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()') if !$call;

	if ($who eq 'janitor')
	{
		poll_until($other, 'SELECT count(*) FROM index_mover_ledger', '0', 'the janitor after a promotion');
		# its commit shows before the files go with it
		poll_until($other, 'SELECT count(*) FROM oracle.files()', '0', 'the files that its commit removes');
	}
	elsif ($who eq 'call')
	{
		is($other->safe_psql('postgres', 'SELECT kind, action FROM index_mover_cleanup()'),
			$swapped ? 'old file|removed' : 'unfinished copy|removed',
			"$name: index_mover_cleanup() removes it");
	}
	is(place($other), $swapped ? $to : $from, "$name: where the index is");
	files_ok($other, $name) unless $who eq 'move';
	$other->safe_psql('postgres', "SELECT oracle.bt_index_parent_check('crash_s', true, true)");
	is($other->safe_psql('postgres', move_to(elsewhere($other))), 'moved', "$name: the next move works");
	wait_for_no_worker($other);
	leftovers_ok($other, $name, within => 5);
	files_ok($other, "$name, after the next move");
	verdict_ok($other, 'crash', "$name, after the next move", max_keys => 500);
	$other->teardown_node;
	$other->clean_node;
}
wait_for_no_worker($primary);
leftovers_ok($primary, 'primary at the end', within => 5);
files_ok($primary, 'primary at the end');
verdict_ok($primary, 'crash', 'primary at the end', max_keys => 500);

$primary->stop;
done_testing();
