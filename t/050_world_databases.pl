# Job numbers come from a sequence in each database, so the same number means
# different jobs in different databases.  A worker that comes late, when its
# job is gone and another database's job of the same number has its place, must
# not take that for its own; and no session steers or sees a job of another database.
#
# Fault (processes): caller gone after `wait => false`; rollback; commit (also sql/jobs)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# room for two workers, besides the logical replication launcher
my $node = new_node('two_databases');
$node->append_conf('postgresql.conf', "max_worker_processes = 4\nlog_min_messages = debug1\n");
$node->restart;
my $TARGET = 'regress_fast';

$node->safe_psql('postgres', 'CREATE ROLE boss SUPERUSER');
$node->safe_psql('postgres', 'CREATE DATABASE other');
setup_database($node, 'other');
for my $database ('postgres', 'other')
{
	$node->safe_psql($database, <<'SQL');
CREATE TABLE t1 AS SELECT generate_series(1, 10) AS i;
CREATE INDEX ON t1 (i);
CREATE TABLE t2 AS SELECT generate_series(1, 10) AS i;
CREATE INDEX ON t2 (i);
CREATE TABLE t3 AS SELECT generate_series(1, 10) AS i;
CREATE INDEX ON t3 (i);
SELECT oracle.remember_keys(t), oracle.remember_metadata(t) FROM unnest('{t1, t2, t3}'::regclass[]) t;
SQL
}

my $first = $node->background_psql('postgres', on_error_stop => 0, timeout => 180);
my $second = $node->background_psql('other', on_error_stop => 0, timeout => 180);
$second->query_safe('SET client_min_messages = warning');
my $postmaster = $node->{_pid};

sub queue
{
	my ($table) = @_;
	return "SELECT max(job) FROM move_indexes('$table', '$TARGET', wait => false)";
}

# A parallel worker has a slot; the reserve does not count it, since such workers come and go.
my $parallel = IndexMover::Session->new($node);
my $force = $node->safe_psql('postgres', "SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')");
$parallel->run("SET $force = on");
$parallel->send('SELECT pg_sleep(300)');
poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'", '1', 'a parallel worker');

# The first two jobs get a worker, the third does not, so that the commit fails.
# The postmaster is asleep and starts the workers later.
$first->query_safe('BEGIN');
my @jobs = map { scalar $first->query(queue($_)) } ('t1', 't2');
# (one role cannot have three of three)
$first->query_safe('SET LOCAL ROLE boss');
push @jobs, scalar $first->query(queue('t3'));
kill 'STOP', $postmaster or die "cannot stop the postmaster: $!";
$first->query('COMMIT');
like($first->{stderr}, qr/could not register background process/, 'a commit without enough workers fails');
$first->{stderr} = '';

# meanwhile the other database's jobs of the same numbers take the same places
$second->query_safe('BEGIN');
my @others = map { scalar $second->query(queue($_)) } ('t1', 't2');
is_deeply(\@others, [ @jobs[0, 1] ], 'the jobs of both databases have the same numbers');

# a worker that has no job ends before anything but the server's log could show it
my $log = -s $node->logfile;
kill 'CONT', $postmaster;
$node->wait_for_log(qr/(?:background worker "index_mover[^"]*" \(PID \d+\) exited.*){2}/s, $log);
$first->query("SELECT cancel_move($jobs[0])");
like($first->{stderr}, qr/job $jobs[0] does not exist/, 'no session of the first database can cancel a job of the second');
$first->{stderr} = '';

$second->query('COMMIT');
is($second->{stderr}, '', 'the other database gets its workers');
$second->query("CALL wait_for_move($_)") for @others;
is($second->query('SELECT string_agg(DISTINCT status, \',\') || count(*) FROM index_mover_history'),
	'moved2', 'the jobs of the other database move');
is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_history'), '0', 'nothing of the first');
is($second->{stderr}, '', 'no warnings');
for my $database ('postgres', 'other')
{
	wait_for_no_worker($node, dbname => $database);
	all_right($node, $_, "database $database, $_", dbname => $database, within => 5) for 't1', 't2', 't3';
}

$first->quit;
$second->quit;

# the other database has files in a tablespace
sub plan_notice
{
	my (undef, undef, $err) = $node->psql('postgres',
		"SELECT count(*) FROM move_tablespace_indexes('$TARGET', 'regress_slow', dry_run => true)");
	return $err;
}
like(plan_notice(), qr/NOTICE:  tablespace "$TARGET" also has files of other databases\nDETAIL:  They belong to "other",/,
	'the other database is named');
survived_ok($node, $_, "at the end, $_", "SELECT status FROM move_indexes('$_', '$TARGET')") for 't1', 't3';
done_testing();
