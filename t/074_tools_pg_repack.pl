# pg_repack comes to the same table while a move is under way: it wants the table
# for itself for a moment, twice, and puts other files under the table and its
# indexes.  No row is lost, and nothing is left over.  It also waits for each virtual
# transaction that it has seen, by polling, while the move waits for it: a session that
# waits for the move must not keep both.  Only where pg_repack is installed beside the
# server.
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

chomp(my $bindir = `pg_config --bindir`);
plan skip_all => 'pg_repack is not installed' unless -x "$bindir/pg_repack";

my $node = new_node('repack');
my ($rc, $out, $err) = $node->psql('postgres', 'CREATE EXTENSION pg_repack');
plan skip_all => "pg_repack is not to be had: $err" if $rc != 0;

$node->safe_psql('postgres', <<SQL);
CREATE TABLE r (i int PRIMARY KEY, s text) WITH (fillfactor = 80, autovacuum_enabled = off);
INSERT INTO r SELECT g, md5(g::text) FROM generate_series(1, 30000) g;
CREATE INDEX r_s ON r (s) TABLESPACE regress_slow;
SELECT oracle.remember_keys('r');
SQL

# Start pg_repack; returns its handle and where its messages go.
sub start_repack
{
	my $messages = '';
	my $handle = IPC::Run::start([ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', 'postgres', @_ ],
		'<', \undef, '>&', \$messages, IPC::Run::timeout($IndexMover::Test::TIMEOUT));
	return ($handle, \$messages);
}

foreach my $case (
	# what the move does meanwhile: method, settings, phase in which it is met or what throttles it
	[ 'copy', '{"max_rate": "512kB"}', 'max_rate' ],
	[ 'copy', '{"swap_after": "infinity"}', 'waiting for time to swap' ],
	[ 'rebuild', '{}', 'waiting for old snapshots' ])
{
	my ($method, $settings, $phase) = @$case;
	foreach my $what ('table', 'index')
	{
		my $name = "$method, $phase, pg_repack of the $what";
		my $from = tablespace_of_index($node, 'r_s');
		my $to = other_place($from);
		my $old;
		if ($method eq 'rebuild')
		{
			$old = IndexMover::Session->new($node);
			$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
		}
		my $job = $node->safe_psql('postgres',
			"SELECT max(job) FROM move_indexes('r_s', '$to', method => '$method', wait => false, settings => '$settings')");
		poll_until($node, "SELECT coalesce(throttled_by, phase) FROM index_mover_progress WHERE job = $job", $phase, $name);
		# after five seconds it cancels who is in its way: as a rebuild and it wait for each other
		my ($handle, $messages) = start_repack('-T', 5, $what eq 'table' ? ('-t', 'r') : ('-i', 'r_s', '-s', $from));
		if ($old)
		{
			# it waits for the old snapshot, too, as soon as it has got past the rebuild
			poll_until($node, "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (query ~ 'virtualxid' OR "
				. "(query ~ 'repack|INDEX CONCURRENTLY' AND wait_event_type = 'Lock'))",
				't', "$name: pg_repack waits");
			$old->end;
		}
		# it does not look for indexes that others have replaced since it began
		my $ended = $handle->finish
			|| ($method eq 'rebuild' && $what eq 'table' && $$messages =~ /relation "repack\.index_\d+" does not exist/);
		ok($ended, "$name: pg_repack ends well, or with an error of its own") or diag $$messages;
		note $$messages;
		$node->safe_psql('postgres', "UPDATE r SET s = md5(s) WHERE i % 100 = 7; SELECT cancel_move($job) WHERE '$settings' ~ 'infinity'");
		wait_for_job_end($node, $job);
		my $row = $node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job");
		note "$name: $row";
		like($row, qr/^(moved\||failed\|(55006|55P03|42704)|canceled\|57014)/, "$name: a row that says what has come of it");
		$node->safe_psql('postgres', "SELECT oracle.remember_keys('r'), oracle.remember_metadata('r')");
		survived_ok($node, 'r', $name, "SELECT status FROM move_indexes('r_s', '" . elsewhere($node, 'r_s') . "', method => 'copy')",
			max_keys => 200);
	}
}

# ---- while a session waits for the move ----------------------------------------------
foreach my $how ('SELECT', 'CALL')
{
	my $name = "$how waits for the move";
	my $log = -s $node->logfile;
	my $move = q{move_table('r', '} . other_place(tablespace_of_index($node, 'r_s')) . q{', settings => '{"max_rate": "512kB"}'};
	my $call;
	if ($how eq 'SELECT') { $call = start_call($node, 'mover', "SELECT status, sqlstate FROM $move) WHERE kind = 'table'"); }
	else
	{
		my $job = $node->safe_psql('postgres', "SELECT max(job) FROM $move, wait => false)");
		$call = start_call($node, 'mover', "CALL wait_for_move($job, raise => false)");
	}
	poll_until($node, 'SELECT throttled_by FROM index_mover_progress', 'max_rate', $name);
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mover' AND query ~ 'move'", '1', "$name: it waits");
	my ($handle, $messages) = start_repack('-t', 'r', '--no-order');
	# what it waits for is none of a person's sessions
	my ($rc, $out, $err) = finish_call($call);
	is($rc, 0, "$name: and ends");
	ok($handle->finish, "$name: pg_repack ends well") or diag $$messages;
	note "$$messages\n$out\n$err";
	if ($how eq 'SELECT')
	{
		like($$messages, qr/Waiting for 1 transactions to finish/, "$name: pg_repack has waited for it");
		is($out, "failed|40P01\n", "$name: the move steps back");
		like($err, qr/NOTICE: .*seems to wait for this session/, "$name: and says why");
	}
	else { unlike($$messages, qr/Waiting for \d+ transactions/, "$name: pg_repack does not see it"); }
	wait_for_no_worker($node);
	survived_ok($node, 'r', $name, "SELECT status FROM move_indexes('r_s', '" . elsewhere($node, 'r_s') . "', method => 'copy')",
		max_keys => 200);
}
done_testing();
