# A cancel that hits the worker when it isn't moving anything, but puts on record
# what it does, cancels the job and not the worker; and a worker that can't even
# connect is an error of the call, not rows that say nothing.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $node = new_node('worker_odd_moments');
my $TARGET = 'regress_fast';

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 1000);
CREATE INDEX t_1 ON t (i);
CREATE INDEX t_2 ON t (i);
SQL

my $locker = $node->background_psql('postgres', on_error_stop => 0, timeout => 180);
my $caller = $node->background_psql('postgres', on_error_stop => 0, timeout => 180);

sub cancel_at_record
{
	my ($how, $name) = @_;

	$locker->query_safe('BEGIN; LOCK TABLE index_mover_move_log IN SHARE MODE');
	my $job = $caller->query_safe("SELECT max(job) FROM move_indexes('t', '$TARGET', wait => false)");
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover' AND wait_event_type = 'Lock'",
		'1', "$name: the worker waits to write the history");
	$node->safe_psql('postgres', $how->($job));
	sleep(0.5);
	$locker->query_safe('COMMIT');
	$caller->query("CALL wait_for_move($job)");
	like($caller->{stderr}, qr/WARNING:  2 of 2 indexes were not moved/, "$name: who waits is told");
	$caller->{stderr} = '';
	is($node->safe_psql('postgres', "SELECT index_name, status, sqlstate FROM index_mover_history WHERE job = $job ORDER BY 1"),
		"t_1|cancelled|57014\nt_2|cancelled|57014", "$name: the history tells the truth");
	wait_for_no_worker($node);
	leftovers_ok($node, $name, within => 5);
	return;
}

cancel_at_record(sub { "SELECT cancel_move($_[0])" }, 'cancel_move');
is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')"),
	'moved,moved', 'the next call succeeds');
$TARGET = 'regress_slow';
cancel_at_record(sub { 'SELECT cancel_move(job), pg_cancel_backend(pid) FROM index_mover_progress' }, 'both ways at once');

# A worker that can't connect to its database.
my ($stdout, $stderr);
$node->psql('postgres', <<SQL, stdout => \$stdout, stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'postgres';
SELECT status FROM move_indexes('t', '$TARGET');
UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'postgres';
SQL
is($stdout, '', 'a worker that cannot connect: no rows');
like($stderr, qr/ERROR:  55000: background worker of index_mover did not start/, '... an error');
like($stderr, qr/DETAIL:  .*postgres/, '... that says why');
unlike($stderr, qr/WARNING/, '... and nothing else');
$node->safe_psql('template1', "UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'postgres'");
is($node->safe_psql('postgres', "SELECT string_agg(status, ',') FROM move_indexes('t', '$TARGET')"),
	'moved,moved', 'the next call succeeds, too');
leftovers_ok($node, 'at the end', within => 5);

$locker->quit;
$caller->quit;
done_testing();
