# A rebuild that is killed, terminated, canceled or fails at each of its pause
# points: all of them are before the swap, so the index is where it was, whole, and
# nothing is left behind; what the unfinished one has left goes without anybody's
# help, or after a kill with the next clean-up.  (In its phases, by every way to
# cancel, and with others in the way: t/010_rebuild_cancel.pl, t/011_rebuild_leftovers.pl.)  Then
# the server is shut down there, and the postmaster killed.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Session;
use IndexMover::Shutdown;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('rebuild_crash');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE rc (i int PRIMARY KEY, s text) WITH (fillfactor = 80);
INSERT INTO rc SELECT g, md5(g::text) FROM generate_series(1, 3000) g;
CREATE INDEX rc_s ON rc (s) TABLESPACE regress_slow;
COMMENT ON INDEX rc_s IS 'stays';
SELECT oracle.remember_keys('rc'), oracle.remember_metadata('rc');
SQL

# Behind a commit nothing may fail any more: there, an error would be PostgreSQL's
# PANIC, and a cancel waits for the next moment at which it can be obeyed.
my %committing = map { $_ => 1 } qw(rebuild-entry-committed rebuild-step-committed);
my @points = (qw(rebuild-begins rebuild-named rebuild-entry-made caller-hidden), sort keys %committing);

my %class = map { $_ => 1 } qw(rebuild-begins rebuild-entry-made rebuild-step-committed);
foreach my $action (qw(kill error terminate cancel))
{
	foreach my $point (picked { $action eq 'kill' || $class{$_} } 'points, but for kills', @points)
	{
		next if $action eq 'error' && $committing{$point};
		my $name = "$action at $point";
		my $from = tablespace_of_index($node, 'rc_s');
		my $to = other_place($from);
		my $move = "FROM move_indexes('rc_s', '$to', method => 'rebuild')";
		$node->safe_psql('postgres', 'UPDATE rc SET s = md5(s) WHERE i % 50 = 7');
		my ($rc, $out, $err);
		if ($action eq 'kill' || $action eq 'error')
		{
			set_test_point($node, "$point:$action");
			my $log = -s $node->logfile;
			my $call = start_call($node, 'mover', "SELECT status, sqlstate $move");
			(undef, $out, $err) = finish_call($call);
			wait_until_up($node) if $action eq 'kill';
			ok($node->log_contains($action eq 'kill' ? qr/was terminated by signal 9/ : qr/test point "$point"/, $log), "$name: it was so");
			set_test_point($node, '');
		}
		else
		{
			my $call = held_at($node, $point, "SELECT status, sqlstate $move");
			is($node->safe_psql('postgres', "SELECT pg_${action}_backend($call->{worker})"), 't', "$name: it was so");
			let_go($call);
			(undef, $out, $err) = finish_call($call);
		}
		chomp $out;
		my %row = (error => 'failed|XX000', terminate => 'canceled|57P01', cancel => 'canceled|57014');
		is($out, $row{$action}, "$name: the row") or diag $err if $row{$action};
		is(tablespace_of_index($node, 'rc_s'), $from, "$name: the index is where it was");
		if ($action eq 'kill')
		{
			wait_for_no_worker($node);
			# before the commit of its entry there is nothing to remove
			my $left = $committing{$point} || $point eq 'caller-hidden' ? 1 : 0;
			is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()'), $left, "$name: what index_mover_cleanup() removes");
			# core's own empty file, see "Figures" in docs/reliability.md
			my ($problem, $path, $size) = split /\|/, $node->safe_psql('postgres', 'SELECT * FROM oracle.files()');
			unlink $node->data_dir . "/$path" if $point eq 'rebuild-entry-made' && defined $size && "$problem $size" eq 'orphan 0';
			files_ok($node, $name);
			leftovers_ok($node, $name, within => 5);
			metadata_ok($node, 'rc', $name, restarted => 1);
			verdict_ok($node, 'rc', $name, max_keys => 200);
			is($node->safe_psql('postgres', "SELECT status $move"), 'moved', "$name: the next call works");
		}
		else
		{
			survived_ok($node, 'rc', $name, "SELECT status $move", max_keys => 200, restarted => 1);
		}
		count_fault("rebuild, worker: $action");
	}
}

# ---- the postmaster is killed ------------------------------------------------------
# Its worker may come to the end of the command, or to a wait, where it ends: the
# index is in one place or the other.
foreach my $point (picked { $_ eq 'rebuild-entry-committed' } 'points where the postmaster is killed', @points)
{
	my $name = "postmaster killed at $point";
	my $to = elsewhere($node, 'rc_s');
	$node->safe_psql('postgres', 'UPDATE rc SET s = md5(s) WHERE i % 50 = 7');
	set_test_point($node, "$point:doze");
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', "SELECT status, sqlstate FROM move_indexes('rc_s', '$to', method => 'rebuild')");
	$node->wait_for_log(qr/test point "$point": dozing/, $log);
	$call->{worker} = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
	kill_postmaster($node, $call, $name);
	set_test_point($node, '');
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	my $next = elsewhere($node, 'rc_s');
	survived_ok($node, 'rc', $name, "SELECT status FROM move_indexes('rc_s', '$next', method => 'rebuild')",
		max_keys => 50, restarted => 1, count => 'postmaster killed in mid-rebuild');
	wait_for_no_worker($node);
}

# ---- the server is shut down ---------------------------------------------------------
foreach my $case (
	picked { $_->[1] =~ /begins|entry-committed|hidden/ } 'shutdowns',
	[ 'fast', 'rebuild-begins' ],
	[ 'smart', 'rebuild-named' ],
	[ 'fast', 'rebuild-entry-made' ],
	[ 'immediate', 'rebuild-entry-committed' ],
	[ 'immediate', 'rebuild-step-committed' ],
	[ 'smart', 'caller-hidden' ])
{
	my ($mode, $point) = @$case;
	my $name = "$mode shutdown at $point";
	my $from = tablespace_of_index($node, 'rc_s');
	my $to = other_place($from);
	my $call = held_at($node, $point, "SELECT count(*) FROM move_indexes('rc_s', '$to', method => 'rebuild', wait => false)", prepared => 1);
	finish_call($call);
	soon_ok(shut_down($node, $mode), 10, "$name: it ends");
	ok(process_is_gone($call->{worker}), "$name: no worker is left");
	$node->start;
	$node->safe_psql('postgres', "ROLLBACK PREPARED 'holder'");
	is(tablespace_of_index($node, 'rc_s'), $from, "$name: the index is where it was");
	is($node->safe_psql('postgres', 'SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		$mode eq 'immediate' ? 'interrupted' : 'canceled', "$name: the history");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	survived_ok($node, 'rc', $name, "SELECT status FROM move_indexes('rc_s', '$to', method => 'rebuild')",
		max_keys => 50, restarted => 1, count => 'server shut down in mid-rebuild');
	wait_for_no_worker($node);
}

$node->stop;
done_testing();
