# pg_repack comes to the same table while a move is under way: it wants the table
# for itself for a moment, twice, and puts other files under the table and its
# indexes.  No row is lost, and nothing is left over.  Only where pg_repack is
# installed beside the server.
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

# Start pg_repack; returns its handle and where its messages go.  After five seconds
# it cancels who is in its way: as a rebuild and it wait for each other.
sub start_repack
{
	my $messages = '';
	my $handle = IPC::Run::start([ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', 'postgres', '-T', 5, @_ ],
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
		my ($handle, $messages) = start_repack($what eq 'table' ? ('-t', 'r') : ('-i', 'r_s', '-s', $from));
		if ($old)
		{
			# it waits for the old snapshot, too, as soon as it has got past the rebuild
			poll_until($node, "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (query ~ 'virtualxid' OR (query ~ 'repack|INDEX CONCURRENTLY' AND wait_event_type = 'Lock'))",
				't', "$name: pg_repack waits");
			$old->end;
		}
		# it does not look for indexes that others have replaced since it began
		my $ended = $handle->finish || ($method eq 'rebuild' && $what eq 'table' && $$messages =~ /relation "repack\.index_\d+" does not exist/);
		ok($ended, "$name: pg_repack ends well, or with an error of its own") or diag $$messages;
		note $$messages;
		$node->safe_psql('postgres', "UPDATE r SET s = md5(s) WHERE i % 100 = 7; SELECT cancel_move($job) WHERE '$settings' ~ 'infinity'");
		wait_for_job_end($node, $job);
		my $row = $node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job");
		note "$name: $row";
		like($row, qr/^(moved\||failed\|(55006|55P03|42704)|canceled\|57014)/, "$name: a row that says what has come of it");
		$node->safe_psql('postgres', "SELECT oracle.remember_keys('r'), oracle.remember_metadata('r')");
		survived_ok($node, 'r', $name, "SELECT status FROM move_indexes('r_s', '" . elsewhere($node, 'r_s') . "', method => 'copy')", max_keys => 200);
	}
}
done_testing();
