# index_bloat(.., exact => true) builds an index on trial in a file of a
# temporary relation: nothing is left of that however it ends, and nothing that
# others do meanwhile gets into it.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('primary', streaming => 1, conf => 'max_prepared_transactions = 5');

# In a session that wants it the function waits for an advisory lock, so that a
# build stands still.
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION gate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF $1 = 500 AND current_setting('regress.gate', true) = 'on' THEN PERFORM pg_advisory_xact_lock_shared(4711); END IF;
	RETURN $1;
END $$;
CREATE TABLE t (id int, s text);
INSERT INTO t SELECT g, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX t_gist ON t USING gist (point(id, gate(id)));
CREATE INDEX t_spgist ON t USING spgist (s);
CREATE INDEX t_brin ON t USING brin (s) WITH (pages_per_range = 1);
SQL

# The files of temporary relations; nobody has any here.
sub temporary_files
{
	my ($server) = @_;
	my @folders = glob($server->data_dir . '/base/* ' . $server->data_dir . '/pg_tblspc/*/*/*');
	return grep { m{/t\d+_\d+[^/]*$} } map { glob "$_/*" } @folders;
}

my $exact = q(SELECT (1 - bloat_ratio) * pages = pages FROM index_bloat('t_gist', exact => true));

# A session that stands still in the middle of a build.
sub building
{
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(4711)');
	my $builder = IndexMover::Session->new($node);
	$builder->run('SET regress.gate = on');
	$builder->send($exact);
	$node->poll_query_until('postgres',
		'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = \'advisory\' AND pid = ' . $builder->pid)
	  or die 'the build did not come to the gate';
	return ($gate, $builder);
}

# ---------------------------------------------------------------------------
# Ends
# ---------------------------------------------------------------------------

foreach my $way (qw(cancel terminate kill))
{
	my ($gate, $builder) = building();
	my $pid = $builder->pid;
	cmp_ok(scalar(temporary_files($node)), '>', 0, "$way: there is a file");
	if ($way eq 'cancel')
	{
		$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
		$builder->answer;
		like($builder->errors, qr/57014/, 'cancelled');
		is($builder->run('SELECT 1'), '1', 'and can go on');
	}
	elsif ($way eq 'terminate')
	{
		is($node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 60000)"), 't', 'terminated');
	}
	else
	{
		my $log = -s $node->logfile;
		kill 'KILL', $pid;
		$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
		wait_until_up($node);
	}
	is(join(' ', temporary_files($node)), '', "$way: nothing is left");
	eval { $_->end } foreach ($gate, $builder);
}

# ---------------------------------------------------------------------------
# What others do meanwhile
# ---------------------------------------------------------------------------

{
	my ($gate, $builder) = building();
	my $writer = IndexMover::Session->new($node);
	$writer->run('INSERT INTO t SELECT g, md5(g::text) FROM generate_series(20001, 40000) g WHERE g <> 500');
	$writer->run('ALTER INDEX t_gist SET (fillfactor = 10)');
	$writer->run('ANALYZE t');
	$writer->run("COMMENT ON INDEX t_gist IS 'changed'");
	$gate->run('SELECT pg_advisory_unlock(4711)');
	$builder->answer;
	is($builder->errors, '', 'a build is not disturbed by DDL, ANALYZE and rows beside it');
	is(join(' ', temporary_files($node)), '', 'and leaves nothing');
	$writer->run('ALTER INDEX t_gist RESET (fillfactor)');
	$writer->run('DELETE FROM t WHERE id > 20000');
	$writer->run('VACUUM t');
	$writer->run('REINDEX TABLE t');
	$_->end foreach ($gate, $builder, $writer);
}

# A file of its own for each of two sessions, none in the way of a third's
# writes: the free space map is extended under a lock.
{
	my ($gate, $builder) = building();
	$node->safe_psql('postgres', 'SET lock_timeout = 60000; INSERT INTO t SELECT g, md5(g::text) FROM generate_series(20001, 30000) g');
	is($node->safe_psql('postgres', q(SELECT count(*) FROM unnest('{t_spgist,t_brin}'::regclass[]) i, LATERAL index_bloat(i, exact => true) WHERE bloat_ratio IS NOT NULL)),
		'2', 'two builds at the same time');
	$gate->end;
	$builder->answer;
	$builder->end;
	$node->safe_psql('postgres', 'DELETE FROM t WHERE id > 20000; REINDEX TABLE t');
}

# ---------------------------------------------------------------------------
# Transactions
# ---------------------------------------------------------------------------

my $twice = q(SELECT count(*) FROM generate_series(1, 2), unnest('{t_gist,t_spgist,t_brin}'::regclass[]) i,
	LATERAL index_bloat(i, exact => true) b WHERE round((1 - b.bloat_ratio) * b.pages) BETWEEN 0.7 * b.pages AND b.pages);
my %ends = (
	COMMIT => "BEGIN; $twice; COMMIT",
	ROLLBACK => "BEGIN; $twice; ROLLBACK",
	'ROLLBACK TO' => "BEGIN; SAVEPOINT s; $twice; ROLLBACK TO s; COMMIT",
	'RELEASE' => "BEGIN; SAVEPOINT s; $twice; RELEASE s; ROLLBACK",
	'read only' => "BEGIN READ ONLY ISOLATION LEVEL SERIALIZABLE; $twice; COMMIT");
is($node->safe_psql('postgres', $ends{$_}), '6', $_) foreach sort keys %ends;
is($node->safe_psql('postgres', "BEGIN; $twice; PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'"), '6', 'PREPARE TRANSACTION');
is($node->safe_psql('postgres', "CREATE TEMP TABLE mine AS SELECT * FROM t; CREATE INDEX mine_s ON mine USING spgist (s); BEGIN; $twice; ROLLBACK; SELECT count(*) FROM mine"),
	"6\n20000", 'beside temporary tables');
# that session drops its table when it ends, which psql doesn't wait for
poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()", '0', 'the end of that session');
is(join(' ', temporary_files($node)), '', 'nothing is left');

# where a sort or a table of its own would be put, but for what is all clusters'
is($node->safe_psql('postgres', "SET temp_tablespaces = 'pg_global'; $twice"), '6', "not in pg_global");
is($node->safe_psql('postgres', "SET temp_tablespaces = 'regress_fast'; $twice"), '6', 'in temp_tablespaces');
is(join(' ', temporary_files($node)), '', 'nothing is left there');

# ---------------------------------------------------------------------------
# A hot standby
# ---------------------------------------------------------------------------

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', $ends{$_}), '6', "standby: $_") foreach grep { $_ !~ /only/ } sort keys %ends;
is(join(' ', temporary_files($standby)), '', 'standby: nothing is left');
$standby->stop;

$node->stop('immediate');
done_testing();
