# Two rebuilds of one job whose indexes have expressions: core makes each wait
# for the other's snapshot, however long that takes.  lock_wait is for others.
# And two on a file system that has space for both, but once only.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Storage;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $LOCK_WAIT = 5;		# seconds; a writer who leaves at once is waited for in it, too

my $node = new_node('two_rebuilds');
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION gate(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	-- not by waiting for a lock: lock_wait ends that
	WHILE NOT pg_try_advisory_lock_shared(42) LOOP
		PERFORM pg_sleep(0.05);
	END LOOP;
	PERFORM pg_advisory_unlock_shared(42);
	RETURN i;
END $$;
CREATE SCHEMA two;
CREATE TABLE two.a (v int);
CREATE TABLE two.b (v int);
INSERT INTO two.a SELECT generate_series(1, 10);
INSERT INTO two.b SELECT generate_series(1, 10);
CREATE INDEX a_gate ON two.a (gate(v));
CREATE INDEX b_gate ON two.b (gate(v));
SQL

my ($builder, $writer) = map { IndexMover::Session->new($node) } 1 .. 2;
$builder->run('SELECT pg_advisory_lock(42)');
$writer->run('BEGIN; LOCK TABLE two.b IN ROW EXCLUSIVE MODE');
my $call = start_call($node, 'two',
	"SELECT name, status, sqlstate FROM move_schema_indexes('two', 'regress_fast', 'rebuild',"
	  . " settings => '{\"lock_wait\": \"${LOCK_WAIT}s\"}') ORDER BY 1");
my $phases = "SELECT string_agg(phase, ', ' ORDER BY phase) FROM index_mover_progress";
poll_until($node, $phases, 'building index, waiting for writers before build', 'one builds, the other waits for a writer');
$writer->run('COMMIT');
poll_until($node, $phases, 'building index, waiting for old snapshots', 'then for the one who builds');
is($node->safe_psql('postgres',
	"SELECT a.blocked_by = ARRAY[b.pid] FROM index_mover_progress a, index_mover_progress b WHERE a.phase LIKE 'waiting%' AND b.phase "
		. "LIKE 'building%'"),
	't', 'and says so');
sleep $LOCK_WAIT + 2;
is($node->safe_psql('postgres', $phases), 'building index, waiting for old snapshots', 'it still waits after lock_wait');
$builder->run('SELECT pg_advisory_unlock(42)');
my ($status, $out, $err) = finish_call($call);
is($out, "two.a_gate|moved|\ntwo.b_gate|moved|\n", 'both are moved') or diag $err;
$_->end foreach $builder, $writer;
leftovers_ok($node, 'two rebuilds', within => 5);

# ---------------------------------------------------------------------------
# What the one has written already takes no more space
# ---------------------------------------------------------------------------
SKIP:
{
	$node->stop;
	my $small = $node->basedir . '/small';
	my $problem = start_with_file_system($node, $small, '150m');
	skip "cannot mount a small file system in a namespace of its own: $problem", 4 if $problem;
	$node->safe_psql('postgres', <<"SQL");
CREATE TABLESPACE regress_small LOCATION '$small';
ALTER DATABASE postgres SET temp_tablespaces = regress_small;
CREATE SCHEMA large;
CREATE TABLE large.a AS SELECT g AS v, repeat(md5(g::text), 10) AS s FROM generate_series(1, 60000) g;
CREATE TABLE large.b AS SELECT * FROM large.a;
CREATE INDEX a_gate ON large.a ((CASE WHEN v = 60000 THEN gate(v) ELSE v END), s);
CREATE INDEX b_i ON large.b (v, s);
SQL
	my $size = $node->safe_psql('postgres', "SELECT pg_relation_size('large.a_gate')");
	cmp_ok($size, '>', 16 << 20, 'they are large');
	# what is left beside both indexes and the sort files of both is less than one of them
	my $fill = (150 << 20) - int(4.5 * $size);
	$node->safe_psql('postgres', "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; head -c $fill /dev/zero > $small/fill'");
	foreach my $case ([ 'sorts', 'building index, waiting for writers before build' ],
		[ 'is built', 'waiting for writers before build, waiting for writers before validation' ])
	{
		my ($name, $expected) = @$case;
		($builder, $writer) = map { IndexMover::Session->new($node) } 1 .. 2;
		my $other = IndexMover::Session->new($node);
		$builder->run('SELECT pg_advisory_lock(42)');
		$writer->run('BEGIN; LOCK TABLE large.b IN ROW EXCLUSIVE MODE');
		$call = start_call($node, 'large', "SET maintenance_work_mem = '1MB'; "
			. "SELECT name, status, sqlstate FROM move_schema_indexes('large', 'regress_small', 'rebuild', "
			. q{settings => '{"max_workers": 2, "min_free_space": 0}') ORDER BY 1});
		poll_until($node, $phases, 'building index, waiting for writers before build', "one builds, the other waits");
		poll_until($node, "SELECT coalesce(sum(size), 0) > $size / 2 FROM pg_tablespace t, pg_ls_tmpdir(t.oid) "
			. "WHERE spcname = 'regress_small'", 't', 'the one sorts');
		if ($name eq 'is built')
		{
			$other->run('BEGIN; LOCK TABLE large.a IN ROW EXCLUSIVE MODE');
			$builder->run('SELECT pg_advisory_unlock(42)');
		}
		poll_until($node, $phases, $expected, "the one $name");
		$writer->run('COMMIT');
		poll_until($node, "SELECT count(*) = 0 FROM index_mover_progress WHERE phase = 'waiting for writers before build'", 't',
			"the other goes on while the one $name");
		$other->run('COMMIT') if $name eq 'is built';
		$builder->end;
		($status, $out, $err) = finish_call($call);
		is($out, "large.a_gate|moved|\nlarge.b_i|moved|\n", "the one $name: its files count once") or diag $err;
		$_->end foreach $writer, $other;
		$node->safe_psql('postgres', "SELECT count(*) FROM move_schema_indexes('large', 'pg_default')");
	}
	leftovers_ok($node, 'files that count once', within => 5);
	$node->safe_psql('postgres', $_) foreach 'ALTER DATABASE postgres RESET temp_tablespaces', 'DROP TABLESPACE regress_small';
}
$node->stop;
done_testing();
