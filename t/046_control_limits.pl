# More at the same time than there is room for: workers of jobs, and segments of
# shared memory.  One clean error each, nothing is left, and the next call works.
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
	FOR t IN 1 .. 4 LOOP
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
  FROM unnest('{one, many_1, many_2, many_3, many_4}'::regclass[]) t;
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
# Four jobs with eight workers each, that all wait for the time to swap.
foreach my $t (1 .. 4)
{
	sql("SELECT count(*) FROM move_indexes('many_$t', 'regress_fast', 'copy', wait => false, settings => '{\"max_workers\": 8, \"swap_after\": \"infinity\"}')");
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for time to swap'", 8 * $t, "the workers of job $t");
}
my ($out, $err) = move_one();
is($out, '', 'too many workers: no rows');
like($err, qr/ERROR:  55000: background worker of index_mover did not start or ended early\nDETAIL:  too many index_mover workers\n/,
	'too many workers: an error that says why') or diag $out;
is(sql('SELECT count(*) FROM index_mover_progress'), '32', 'too many workers: the others go on');
sql('SELECT cancel_move(job) FROM (SELECT DISTINCT job FROM index_mover_progress) j');
wait_for_no_worker($node);
is(sql("SELECT DISTINCT status FROM index_mover_history WHERE name LIKE 'many%'"), 'canceled',
	'too many workers: the others are canceled');
all_right($node, "many_$_", "too many workers, job $_", within => 5) foreach 1 .. 4;
next_call_ok('too many workers');

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
$node->append_conf('postgresql.conf', "dynamic_shared_memory_type = mmap\nmax_connections = 14\nmax_wal_senders = 0\nmax_worker_processes = 2\nautovacuum_max_workers = 1\n");
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
like($err, qr/ERROR:  53000: too many dynamic shared memory segments\nHINT:  You may need to increase "max_connections"\.\n/,
	'too many segments: an error that says what to raise');
$gate->run('SELECT pg_advisory_unlock(42)');
is(join(' ', map { $_->answer } @nests), join(' ', (50) x 7), 'too many segments: the queries come to their end');
$_->end foreach $gate, @nests;
next_call_ok('too many segments', restarted => 1);

done_testing();
