# A streaming standby that is promoted in the middle of a copy, or after one has
# failed: at each step that leaves something else behind there; in the middle of a
# rebuild, after an index was dropped under its copy; and behind a rebuild's swap.
# The index is where it was or where it was to be, whole; what is left is on record,
# and is removed by who comes first: the janitor, a call of index_mover_cleanup(), or
# the next move.
#
# Fault (replication): promotion: file on record; made; in mid-copy, also begun again behind a
#   checkpoint; durable; under the lock; before its commit; after the swap; five times during the
#   old file's removal; after an error, one in its cleanup, a cancel, a termination, an immediate
#   shutdown, and crashes in mid-copy, before the swap's commit, behind it and during the old
#   file's removal; after DROP INDEX under a copy; in mid-rebuild, before its swap and behind it
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
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
wal_retrieve_retry_interval = 100ms
CONF
$primary->safe_psql('postgres', <<SQL);
CREATE TABLE crash (i int, s text);
-- long keys: the index is to be large, and to be looked up quickly
ALTER TABLE crash ALTER s SET STORAGE plain;
INSERT INTO crash SELECT g, repeat(md5(g::text), 60) FROM generate_series(1, 8000) g;
CREATE INDEX crash_s ON crash (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('crash'), oracle.remember_metadata('crash');
LOAD 'index_mover';
SQL
cmp_ok($primary->safe_psql('postgres', "SELECT pg_relation_size('crash_s')"),
	'>', 17 * 1024 * 1024, 'the old file is removed in more than one step');

sub move_to
{
	my ($to, $arguments) = @_;
	$arguments //= '';
	return "SELECT status FROM move_indexes('crash_s', '$to', method => 'copy', ${arguments}settings => '{\"pacing\": \"off\"}')";
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
	[ 'old-file-step', 'checkpoint', 1, 1, 1, 'call' ],
	[ 'old-file-drop', 'wait', 1, 1, 1, 'move' ],
	[ 'old-file-dropped', 'wait', 1, 0, 0, 'none' ],
	[ 'copy-half', 'error', 0, 0, 0, 'none' ],
	[ 'copy-half', 'error, and one in its cleanup', 0, 0, 0, 'none' ],
	[ 'copy-half', 'cancel', 0, 0, 0, 'none' ],
	[ 'copy-half', 'terminate', 0, 0, 0, 'none' ],
	[ 'copy-half', 'immediate shutdown', 0, 1, 1, 'call' ],
	[ 'copy-half', 'kill', 0, 1, 1, 'janitor' ],
	[ 'swap-before-commit', 'kill', 0, 1, 1, 'move' ],
	[ 'swapped', 'kill', 1, 1, 1, 'janitor' ],
	[ 'old-file-step', 'kill', 1, 1, 1, 'call' ]);

my $n = 0;
my %picked = map { $_ => 1 } 'copy-half checkpoint', 'swap-before-commit wait', 'old-file-step wait', 'copy-half kill';
foreach my $case (picked { $picked{"$_->[0] $_->[1]"} } 'promotions', @cases)
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

	my $from = tablespace_of_index($primary, 'crash_s');
	my $to = elsewhere($primary, 'crash_s');
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
			# where the first attempt to clean up was in vain, another worker makes the next
			poll_until($primary, 'SELECT count(*) FROM index_mover.ledger', '0', "$name: cleanup");
		}
		set_test_point($primary, '');
	}
	elsif ($what eq 'immediate shutdown')
	{
		finish_call(held_at($primary, $point, move_to($to, 'wait => false, '), prepared => 1));
		$primary->stop('immediate');
		$primary->start;
		$primary->safe_psql('postgres', "ROLLBACK PREPARED 'holder'");
	}
	else
	{
		$call = held_at($primary, $point, move_to($to));
		if ($what eq 'cancel' || $what eq 'terminate')
		{
			$primary->safe_psql('postgres', "SELECT pg_${what}_backend($call->{worker})");
			(undef, $row) = finish_call($call);
			is($row, "canceled\n", "$name: the move was canceled");
			# a successor of the one that was terminated, too
			poll_until($primary, 'SELECT count(*) FROM index_mover.ledger', '0', "$name: cleanup");
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
	is($other->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), $rows,
		"$name: what is on record");
	$other->promote;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
	if ($call)
	{
		let_go($call);
		finish_call($call) unless defined $row;
	}
	$primary->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()') if !$call;

	if ($who eq 'janitor')
	{
		poll_until($other, 'SELECT count(*) FROM index_mover.ledger', '0', 'the janitor after a promotion');
		# its commit shows before the files go with it
		poll_until($other, 'SELECT count(*) FROM oracle.files()', '0', 'the files that its commit removes');
	}
	elsif ($who eq 'call')
	{
		is($other->safe_psql('postgres', 'SELECT kind, action FROM index_mover_cleanup()'),
			$swapped ? 'old file|removed' : 'unfinished copy|removed',
			"$name: index_mover_cleanup() removes it");
	}
	is(tablespace_of_index($other, 'crash_s'), $swapped ? $to : $from, "$name: where the index is");
	files_ok($other, $name) unless $who eq 'move';
	$other->safe_psql('postgres', "SELECT oracle.bt_index_parent_check('crash_s', true, true)");
	is($other->safe_psql('postgres', move_to(elsewhere($other, 'crash_s'))), 'moved', "$name: the next move works");
	wait_for_no_worker($other);
	all_right($other, 'crash', "$name, after the next move", within => 5, max_keys => 300, restarted => 1);
	count_fault('promotion in mid-copy');
	$other->teardown_node;
	$other->clean_node;
}

# ---- an index dropped under its copy, and then a rebuild ------------------------------
{
	my $name = 'promoted in mid-rebuild';
	$primary->safe_psql('postgres', <<SQL);
CREATE TABLE gone (i int, s text);
INSERT INTO gone SELECT g, md5(g::text) FROM generate_series(1, 3000) g;
CREATE INDEX gone_s ON gone (s) TABLESPACE regress_slow;
CREATE TABLE built (i int PRIMARY KEY, s text);
INSERT INTO built SELECT g, md5(g::text) FROM generate_series(1, 3000) g;
CREATE INDEX built_s ON built (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('built'), oracle.remember_metadata('built');
SQL
	$primary->backup('built');
	my $other = PostgreSQL::Test::Cluster->new('standby_built');
	$other->init_from_backup($primary, 'built', has_streaming => 1);
	$other->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
	$other->start;

	my $call = held_at($primary, 'copy-half', "SELECT status, sqlstate FROM move_indexes('gone_s', 'regress_fast', method => 'copy')");
	my $session = IndexMover::Session->new($primary);
	$session->send('DROP INDEX gone_s');
	poll_until($primary, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $session->pid, 't', "$name: DROP INDEX waits");
	let_go($call);
	$session->answer;
	unlike($session->errors, qr/ERROR/, "$name: the index is dropped");
	$session->end;
	is((finish_call($call))[1], "skipped|42704\n", "$name: the copy of the dropped index");

	my $rebuild = "SELECT status FROM move_indexes('built_s', 'regress_fast', method => 'rebuild')";
	$call = held_at($primary, 'rebuild-entry-committed', $rebuild);
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
	$primary->wait_for_catchup($other);
	is($other->safe_psql('postgres', 'SELECT count(*) FROM pg_index WHERE NOT indisvalid'), '1',
		"$name: the standby has an index that is not valid");
	is($other->safe_psql('postgres', 'SELECT kind FROM index_mover.ledger'), 'i', "$name: it is on record");
	$other->promote;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
	let_go($call);
	is((finish_call($call))[1], "moved\n", "$name: the primary moves");

	like($other->safe_psql('postgres', 'SELECT kind, action FROM index_mover_cleanup()'), qr/^invalid index\|removed$/,
		"$name: index_mover_cleanup() removes it");
	is($other->safe_psql('postgres', "SELECT to_regclass('gone_s') IS NULL"), 't', "$name: the dropped index is dropped");
	survived_ok($other, 'built', $name, $rebuild, max_keys => 200, restarted => 1, count => 'promotion in mid-rebuild');
	verdict_ok($other, 'built', "$name, after the next move", max_keys => 200);
	$other->teardown_node;
	$other->clean_node;
}

# ---- a rebuild whose swap is done, while a reader has its old index still ---------------
{
	my $name = 'promoted behind the swap of a rebuild';
	my $other = PostgreSQL::Test::Cluster->new('standby_swapped');
	$other->init_from_backup($primary, 'built', has_streaming => 1);
	$other->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB");
	$other->start;

	my $reader = IndexMover::Session->new($primary);
	$reader->run('BEGIN; SELECT count(*) FROM built');
	my $call = start_call($primary, 'mover', "SELECT status FROM move_indexes('built_s', 'regress_slow', method => 'rebuild')");
	wait_for_phase($primary, 'waiting for readers before marking dead');
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
	$primary->wait_for_catchup($other);
	my $place = "SELECT c.relname, i.indisvalid, t.spcname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
	  . " JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE i.indrelid = 'built'::regclass ORDER BY 1";
	is($other->safe_psql('postgres', $place), "built_s|t|regress_slow\nbuilt_s_ccold|f|regress_fast",
		"$name: the standby has the new index, and the old one that is not valid");
	is($other->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '1', "$name: that is on record");
	$other->promote;
	poll_until($other, 'SELECT pg_is_in_recovery()', 'f', 'end of recovery');
	$reader->run('COMMIT');
	$reader->end;
	is((finish_call($call))[1], "moved\n", "$name: the primary moves");

	is($other->safe_psql('postgres', 'SELECT kind, action, object FROM index_mover_cleanup()'),
		'invalid index|removed|public.built_s_ccold', "$name: index_mover_cleanup() removes the old one");
	is($other->safe_psql('postgres', $place), 'built_s|t|regress_slow', "$name: the new one is there");
	survived_ok($other, 'built', $name, "SELECT status FROM move_indexes('built_s', 'regress_fast', method => 'rebuild')",
		max_keys => 200, restarted => 1, count => 'promotion in mid-rebuild');
	wait_for_no_worker($other);
	all_right($other, 'built', "$name, after the next move", within => 5, max_keys => 200, restarted => 1);
	$other->teardown_node;
	$other->clean_node;
}
wait_for_no_worker($primary);
leftovers_ok($primary, 'primary at the end', within => 5);
files_ok($primary, 'primary at the end');
verdict_ok($primary, 'crash', 'primary at the end', max_keys => 500);

$primary->stop;
done_testing();
