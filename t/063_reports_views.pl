# What monitors poll costs what it shows: the newest rows of index_mover_history and
# index_mover_jobs, and the queries of deploy/, read as many blocks of a history of 130,000
# moves as of one of 1,000, whatever an old snapshot keeps of the ledger, as a superuser, as a
# monitor, and as a role that sees the moves of its tables: all moves, a few, or none.
#
# Fault (transactions): a long history, and dead rows of the ledger that an old snapshot keeps, under the views of monitors
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $MANY = 130_000;

# JIT as a user has it
my $node = new_node('views', conf => 'jit = on');
my $sql = sub { return $node->safe_psql('postgres', @_); };
$sql->('CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor; CREATE ROLE regress_owner LOGIN');
$sql->('CREATE ROLE regress_few LOGIN; CREATE ROLE regress_outsider LOGIN');
$sql->('CREATE TABLE mine (i int PRIMARY KEY); ALTER TABLE mine OWNER TO regress_owner');
$sql->('CREATE TABLE few (i int PRIMARY KEY); ALTER TABLE few OWNER TO regress_few');

# Each job has a move, and one of a hundred fails; one was an hour after another, and the
# last ended an hour ago.  The table "few" has one move in 10,000.
sub lengthen_history
{
	my ($from, $to) = @_;
	$sql->(<<SQL);
INSERT INTO index_mover.job_log (job, role, submitted_at, settings, undo_of, rehearse, freeze_first, status, moved, total,
		size, size_done, tablespace, started_at, finished_at)
	SELECT g, 10, at, '{}', 0, false, false, status, (status = 'moved')::int, 1, 8192, 8192, 'regress_fast', at, at
	  FROM generate_series($from, $to) g, LATERAL (SELECT now() - ($MANY + 1 - g) * interval '1 hour',
												   CASE WHEN g % 100 = 0 THEN 'failed' ELSE 'moved' END) s(at, status);
INSERT INTO index_mover.move_log (job, item, relation, old_relation, relation_name, kind, table_oid, table_name,
		from_tablespace, to_tablespace, from_tablespace_oid, to_tablespace_oid, requested, method, status, size_before, size_after,
		started_at, finished_at, idle, lock_time, lock_attempts)
	SELECT j.job, 0, 'mine_pkey'::regclass, 'mine_pkey'::regclass, 'mine_pkey', 'index',
		   CASE WHEN j.job % 10000 = 7 THEN 'few' ELSE 'mine' END::regclass, 'public.mine',
		   'regress_slow', 'regress_fast', 0, 0, 'auto', 'copy', j.status, 8192, 8192, j.started_at, j.finished_at, 0, '1 ms', 1
	  FROM index_mover.job_log j WHERE j.job BETWEEN $from AND $to;
SQL
	return;
}

my %queries = (
	'newest moves' => 'SELECT * FROM index_mover_history ORDER BY job DESC LIMIT 20',
	'newest moves, by the view for commands' => 'SELECT * FROM index_mover_call.index_mover_history ORDER BY job DESC LIMIT 20',
	'last moves' => 'SELECT * FROM index_mover_history WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 20',
	'newest jobs' => 'SELECT * FROM index_mover_jobs LIMIT 20',
	'newest jobs, in an order' => 'SELECT * FROM index_mover_jobs ORDER BY job DESC LIMIT 20',
	'one job' => "SELECT * FROM index_mover_jobs WHERE job = %d",
	'one job\'s moves' => "SELECT * FROM index_mover_history WHERE job = %d");
my $collector = slurp_file("$FindBin::RealBin/../deploy/sql_exporter.collector.yml");
my %exported = $collector =~ /^  - query_name: (\w+)\n    query: \|\n((?:      .*\n)+)/mg;
is(join(' ', sort keys %exported), 'blocked day jobs move problem', "the exporters' queries");
# (that for problems looks at pages of each index, ours too, up to a number, and reads the ledger)
$queries{"exported: $_"} = $exported{$_} foreach keys %exported;

sub as { my ($role, $query) = @_; return $node->safe_psql('postgres', $query, extra_params => [ '-U', $role ]); }

# The blocks that each query reads, when it reads them again; no plan of them is compiled.
sub blocks
{
	my ($role, $newest) = @_;
	my $session = IndexMover::Session->new($node, user => $role);
	my %result;
	foreach my $name (keys %queries)
	{
		next if $role =~ /^regress/ && $name =~ /problem/;
		# (these look at each move of the role, or of the time)
		next if $role =~ /few|outsider/ && $name =~ /last moves/ || $role eq 'regress_owner' && $name =~ /day/;
		my $query = sprintf $queries{$name} =~ s/%(?!d)/%%/gr, $newest;
		$session->run($query);
		my $plan = $session->run("EXPLAIN (ANALYZE, BUFFERS) $query");
		my ($read) = $plan =~ /Buffers: shared ([^\n]*)/;
		$result{$name} = 0;
		$result{$name} += $_ foreach ($read // '') =~ /(?:hit|read)=(\d+)/g;
		unlike($plan, qr/^JIT:/m, "$role, $name: is not compiled");
	}
	$session->end;
	return \%result;
}

# Those of the longer history are hardly more: for each row that it finds, an index may read a block or two more than
# a scan of the short one did.
sub same_ok
{
	my ($role, $before, $after, $what) = @_;
	foreach my $name (grep { !/problem/ } sort keys %$before)
	{
		# "few" has 13 moves of the long history, and none of the short one
		cmp_ok($after->{$name}, '<=', 3 * $before->{$name} + ($role eq 'regress_few' ? 13 * 30 : 20), "$role, $name: $what")
		  or diag "$before->{$name} blocks before, $after->{$name} now";
	}
	return;
}

my $superuser = $sql->('SELECT current_user');
my @roles = ($superuser, 'monitor', 'regress_owner', 'regress_few', 'regress_outsider');
# the same 1,000 are the newest of both histories
lengthen_history($MANY - 999, $MANY);
my %short = map { $_ => blocks($_, $MANY) } @roles;
lengthen_history(1, $MANY - 1000);
my %long;
foreach my $analyzed (0, 1)
{
	$sql->('VACUUM ANALYZE index_mover.job_log, index_mover.move_log') if $analyzed;
	my $what = "no more blocks of a long history" . ($analyzed ? ', after VACUUM' : '');
	%long = map { $_ => blocks($_, $MANY) } @roles;
	same_ok($_, $short{$_}, $long{$_}, $what) foreach @roles;
}

# 50,000 rows of the ledger, which a snapshot keeps, some of them of the newest moves
my $old = IndexMover::Session->new($node);
$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$sql->(<<SQL);
INSERT INTO index_mover.ledger (id, system_identifier, database, kind, tablespace, relfilenumber, table_oid, relation, new_index,
								job, pid, made_at, copied_blocks, keep_until)
	SELECT 1000000 + g, (SELECT system_identifier FROM pg_control_system()), (SELECT oid FROM pg_database WHERE datname = 'postgres'),
		   'n', 0, g, 0, 'mine_pkey'::regclass, 0, $MANY - g % 10000, 0, now(), 100, now() + interval '1 day'
	  FROM generate_series(1, 50000) g;
DELETE FROM index_mover.ledger;
SQL
foreach my $role (@roles)
{
	my $now = blocks($role, $MANY);
	same_ok($role, $short{$role}, $now, 'no more blocks, when an old snapshot keeps rows of the ledger');
	next unless exists $now->{'exported: problem'};
	my $pages = $sql->("SELECT pg_relation_size('index_mover.ledger') / current_setting('block_size')::int");
	cmp_ok($now->{'exported: problem'} - $long{$role}{'exported: problem'}, '<', 1.5 * $pages,
		"$role: the check reads the ledger once");
}

# And the time that a backend takes for them
my $session = IndexMover::Session->new($node, user => 'monitor');
my $cpu = sub { return (split ' ', slurp_file('/proc/' . $session->pid . '/schedstat'))[0] / 1e6; };
SKIP:
{
	skip 'no /proc/PID/schedstat', 2 unless -r '/proc/' . $session->pid . '/schedstat';
	foreach my $name (sort keys %queries)
	{
		my $query = sprintf $queries{$name} =~ s/%(?!d)/%%/gr, $MANY;
		$session->run($query);
		my $begin = $cpu->();
		$session->run($query) foreach 1 .. 5;
		soon_ok(($cpu->() - $begin) / 5 / 1000, $name =~ /exported/ ? 0.010 : 0.003, "$name: CPU time of a backend");
	}
}
$_->end foreach $old, $session;

# What each may see, whether it is listed or looked for
is(as('regress_few', q{SELECT string_agg(job::text, ' ') FROM (SELECT job FROM index_mover_history ORDER BY job DESC LIMIT 5) h}),
	'120007 110007 100007 90007 80007', 'the newest moves of a role that sees few');
my $counts = 'SELECT (SELECT count(*) FROM index_mover_history), (SELECT count(*) FROM index_mover_jobs)';
is(as('regress_few', $counts), '13|13', 'all of them');
is(as('regress_outsider', $counts), '0|0', 'a role that sees none');
$sql->("UPDATE index_mover.job_log SET role = 'regress_outsider'::regrole WHERE job <= 60");
foreach my $view ('index_mover_history', 'index_mover_jobs')
{
	is(as('regress_outsider', "SELECT count(*) || ' ' || min(job) || ' ' || max(job) FROM $view"), '60 1 60',
		"a role sees its own jobs, more of them than are listed: $view");
}
is(as('regress_outsider', q{SELECT string_agg(job::text, ' ') FROM (SELECT job FROM index_mover_jobs LIMIT 55 OFFSET 45) j}),
	join(' ', reverse 1 .. 15), 'in the right order');

# The owner of a table sees its moves, whoever has moved it, and not those of other tables
$sql->(q{UPDATE index_mover.move_log SET table_oid = 'pg_class'::regclass, relation = 0 WHERE job % 2 = 0});
is(as('regress_owner', 'SELECT count(*) FROM index_mover_history'), $MANY / 2 - 13, 'an owner sees the moves of his table');
is(as('monitor', 'SELECT count(*) FROM index_mover_history'), $MANY, 'a monitor all');
$sql->(<<'SQL');
CREATE FUNCTION leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0001 AS $$BEGIN RAISE NOTICE 'leaked: %', $1; RETURN false; END$$;
UPDATE index_mover.move_log SET message = 'secret' WHERE job % 2 = 0 AND job < 100;
SQL
my (undef, undef, $said) = $node->psql('postgres', 'SELECT * FROM index_mover_history WHERE job < 100 AND leak(message)',
	extra_params => [ '-U', 'regress_owner' ]);
like($said, qr/leaked: <NULL>/, 'a condition of the reader is looked at');
unlike($said, qr/secret/, 'but never for a row that he may not see');
$node->stop;
done_testing();
