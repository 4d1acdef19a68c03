# More at the same time than there is room for: workers of jobs, and segments of
# shared memory.  One clean error each, at the call, nothing is left, and the next
# call works.  A job that was accepted runs, and no role takes what others need.
#
# Fault (processes): more workers, or segments of shared memory, than there is room for; one
#   role, and all ordinary roles, at their limits: refused at the call, and others go on
# Fault (processes): parallel queries have the workers when a job begins: it gets them later
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

my $node = new_node('limits', conf => "max_worker_processes = 40\nmax_parallel_workers = 0\n");
$node->safe_psql('postgres', <<'SQL');
SET default_tablespace = regress_slow;
DO $$
BEGIN
	FOR t IN 1 .. 9 LOOP
		EXECUTE format('CREATE TABLE many_%s AS SELECT generate_series(1, 10) AS i', t);
		FOR i IN 1 .. 8 LOOP
			EXECUTE format('CREATE INDEX many_%s_%s ON many_%1$s (i)', t, i);
		END LOOP;
	END LOOP;
END $$;
CREATE TABLE one (i int);
INSERT INTO one SELECT generate_series(1, 1000);
CREATE INDEX one_i ON one (i);
SELECT oracle.remember_keys(t), oracle.remember_metadata(t)
  FROM pg_class c, CAST(c.oid AS regclass) t WHERE c.relkind = 'r' AND c.relname ~ '^(one|many_.)$';
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Move the index of "one" to and fro: returns the rows, and psql's messages.
my $to = 'regress_fast';

sub move { return "SELECT status FROM move_indexes('one', '$to')"; }

sub move_one
{
	my ($rc, $out, $err) = $node->psql('postgres', move(), extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return ($out, $err);
}

sub next_call_ok
{
	my ($name, %options) = @_;
	survived_ok($node, 'one', $name, move(), %options);
	$to = other_place($to);
	return;
}

# ---- workers --------------------------------------------------------------------
# Jobs of up to eight workers each, that all wait for the time to swap.  32 workers
# can run: 16 of one role, 29 of roles that are no superusers.
sql(<<'SQL');
CREATE ROLE regress_first;
CREATE ROLE regress_second;
GRANT CREATE ON TABLESPACE regress_fast TO regress_first, regress_second;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_first, regress_second;
SQL
my $running = 0;

sub submit
{
	my ($role, $t, $wait) = @_;
	sql("ALTER TABLE many_$t OWNER TO $role");
	return $node->psql('postgres', <<SQL, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
SET index_mover.max_workers = 8;
SET ROLE $role;
SELECT DISTINCT job FROM move_indexes('many_$t', 'regress_fast', 'copy', wait => $wait, settings => '{"swap_after": "infinity"}');
SQL
}

sub accepted_ok
{
	my ($role, $t, $workers) = @_;
	my ($rc, $job, $err) = submit($role, $t, 'false');
	is($rc, 0, "$role, table $t: accepted") or diag $err;
	$running += $workers;
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for time to swap'", $running,
		"$role, table $t: $workers workers");
	is(sql("SELECT count(*) FROM index_mover_progress WHERE job = $job"), $workers, "$role, table $t: its workers");
	return;
}

sub refused_ok
{
	my ($role, $t, $detail) = @_;
	foreach my $wait ('false', 'true')
	{
		my ($rc, $out, $err) = submit($role, $t, $wait);
		is($out, '', "$role, table $t, wait => $wait: no rows");
		like($err, joined(
			qr/ERROR:  53000: too many index_mover jobs\nDETAIL:  $detail\nHINT:  Wait until one has ended, or cancel one; see /,
			qr/index_mover_call\.index_mover_jobs\. You may need to increase "max_worker_processes"\.\n/),
			"$role, table $t, wait => $wait: refused at the call");
	}
	return;
}

accepted_ok('regress_first', 1, 8);
accepted_ok('regress_first', 2, 7);
accepted_ok('regress_first', 3, 1);
refused_ok('regress_first', 4, 'One role can have 16 workers at the same time\.');
accepted_ok('regress_second', 4, 8);
accepted_ok('regress_second', 5, 4);
accepted_ok('regress_second', 6, 1);
refused_ok('regress_second', 7, '29 workers of roles without the SUPERUSER attribute can run at the same time\.');
my ($out, $err) = move_one();
is($out, 'moved', 'a superuser meanwhile') or diag $err;
$to = other_place($to);
accepted_ok('postgres', 7, 2);
accepted_ok('postgres', 8, 1);
refused_ok('postgres', 9, '32 workers can run at the same time\.');
sql('SELECT cancel_move(job) FROM (SELECT DISTINCT job FROM index_mover_progress) j');
wait_for_no_worker($node);
is(sql("SELECT DISTINCT status FROM index_mover_history WHERE name LIKE 'many%'"), 'canceled',
	'too many workers: the others are canceled');
leftovers_ok($node, 'too many workers', within => 5);
verdict_ok($node, "many_$_", "too many workers, table $_") foreach 1 .. 9;
next_call_ok('too many workers');
$running = 0;
accepted_ok('regress_first', 9, 8);
sql('SELECT cancel_move()');
wait_for_no_worker($node);

# ---- the reserve with PostgreSQL's defaults ------------------------------------------
# Our launcher and that of logical replication have two of eight: for two roles are three.
$node->append_conf('postgresql.conf', <<CONF);
max_worker_processes = 8
shared_preload_libraries = 'index_mover'
index_mover.scheduler_databases = 'postgres'
CONF
$node->restart;
$running = 0;
# looks and cleanups come and go
my $busy = "SELECT string_agg(backend_type, ', ' ORDER BY backend_type) FROM pg_stat_activity "
	. "WHERE backend_type ~ 'index_mover|logical'";
poll_until($node, $busy, 'index_mover launcher, logical replication launcher', 'the workers of an idle server');
accepted_ok('regress_first', 1, 2);
accepted_ok('regress_second', 2, 1);
refused_ok($_, 3, '3 workers of roles without the SUPERUSER attribute can run at the same time\.')
  foreach 'regress_first', 'regress_second';
accepted_ok('postgres', 3, 2);
accepted_ok('postgres', 4, 1);
refused_ok('postgres', 5, '6 workers can run at the same time\.');
sql('SELECT cancel_move()');
wait_for_no_worker($node);
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");

# ---- workers that are free only later -----------------------------------------------
# Parallel queries have all but one when the job begins; then one of them ends.
$node->append_conf('postgresql.conf', "max_worker_processes = 8\nmax_parallel_workers = 8\n");
$node->restart;
{
	my $parallel = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'";
	my $end_one = "SELECT pg_terminate_backend(leader_pid) FROM pg_stat_activity WHERE backend_type = 'parallel worker' LIMIT 1";
	my $force = $node->pg_version < 16 ? 'force_parallel_mode' : 'debug_parallel_query';
	my @queries = map { IndexMover::Session->new($node) } 1 .. 8;
	my $log = -s $node->logfile;
	foreach my $query (@queries)
	{
		$query->send("SET $force = on; SELECT pg_sleep(1000)");
		poll_until($node, "SELECT wait_event FROM pg_stat_activity WHERE (leader_pid = @{[$query->pid]} OR pid = @{[$query->pid]}) "
			. "AND wait_event = 'PgSleep'", 'PgSleep', 'a query that sleeps');
	}
	my $count = sql($parallel);
	cmp_ok($count, '>', 5, "parallel queries have $count workers");
	sql($end_one);
	poll_until($node, $parallel, $count - 1, 'one is free');
	my $job = sql(q(SELECT max(job) FROM move_indexes('many_1', CASE WHEN (SELECT reltablespace FROM pg_class WHERE relname = 'many_1_1') =
		(SELECT oid FROM pg_tablespace WHERE spcname = 'regress_fast') THEN 'regress_slow'::name ELSE 'regress_fast' END, 'copy',
		wait => false, settings => '{"swap_after": "infinity", "max_workers": 2}')));
	my $workers = "SELECT count(*) FROM index_mover_progress WHERE job = $job AND phase = 'waiting for time to swap'";
	poll_until($node, $workers, 1, 'a job with one worker');
	$node->wait_for_log(qr/job $job \(.*\): moves 1 instead of 2 indexes at the same time, until more workers are free\n/, $log);
	sql($end_one);
	poll_until($node, $workers, 2, 'and with two, when another one is free');
	ok(1, 'a job gets the workers that it lacked when they are free');
	sql('SELECT cancel_move()');
	wait_for_no_worker($node);
	sql("SELECT pg_terminate_backend($_)") foreach map { $_->pid } @queries;
	$_->end foreach @queries;
}
$node->append_conf('postgresql.conf', "max_parallel_workers = 0\n");

# ---- segments of shared memory ----------------------------------------------------
# A parallel query takes one, and those that the functions it calls begin do, too;
# when there is none left they make do without.  The fewer connections the server
# has, the fewer segments.
sql(<<'SQL');
CREATE TABLE filler WITH (parallel_workers = 1) AS SELECT generate_series(1, 2000) AS i;
ANALYZE filler;
CREATE FUNCTION nested(n int) RETURNS int LANGUAGE plpgsql STABLE PARALLEL RESTRICTED AS $$
BEGIN
	IF n = 0 THEN
		PERFORM pg_advisory_lock_shared(42);
		RETURN 0;
	END IF;
	PERFORM nested(n - 1) FROM filler WHERE i = 1;
	RETURN n;
END $$;
SQL
$node->append_conf('postgresql.conf',
	"dynamic_shared_memory_type = mmap\nmax_connections = 14\nmax_wal_senders = 0\nmax_worker_processes = 2\nautovacuum_max_workers = 1\n");
$node->restart;
my $gate = IndexMover::Session->new($node);
$gate->run('SELECT pg_advisory_lock(42)');
my @nests;
foreach my $n (1 .. 7)
{
	push @nests, my $nest = IndexMover::Session->new($node);
	$nest->run('SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0');
	$nest->send('SELECT nested(50)');
	poll_until($node, 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $nest->pid, '1', "nested queries $n");
}
($out, $err) = move_one();
is($out, '', 'too many segments: no rows');
# (from 17 on it is core that may need the first one, for our shared area)
like($err, joined(
	qr/ERROR:  53000: too many dynamic shared memory /,
	qr/segments\n(?:HINT:  You may need to increase "max_connections"\.|LOCATION:  dsm_create)/),
	'too many segments: an error that says what to raise');
$gate->run('SELECT pg_advisory_unlock(42)');
is(join(' ', map { $_->answer } @nests), join(' ', (50) x 7), 'too many segments: the queries come to their end');
$_->end foreach $gate, @nests;
next_call_ok('too many segments', restarted => 1);

done_testing();
