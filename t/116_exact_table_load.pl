# A table's copy is exact under load, there and back, and the sums of TPC-B stay equal.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::ExactTable;
use IndexMover::Pages;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

start_servers('exact_table_load');

# Run scripts of pgbench, each [clients, name => SQL, ..]; returns what stop_load() takes.
sub start_load
{
	my (@runs) = @_;
	my @load;
	foreach my $run (@runs)
	{
		my ($clients, %scripts) = @$run;
		my ($in, $out) = ('', '');
		foreach my $name (keys %scripts) { open(my $fh, '>', $node->basedir . "/$name.sql") or die $!; print $fh $scripts{$name}; close $fh;
			}
		push @load, { name => join(', ', sort keys %scripts), out => \$out,
			harness => IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-T', 3600, '--max-tries=20',
				(map { ('-f', $node->basedir . "/$_.sql") } sort keys %scripts), $node->connstr('postgres') ],
				'<', \$in, '>', \$out, '2>&1') };
	}
	return @load;
}

sub stop_load
{
	my ($name, @load) = @_;
	foreach my $load (@load)
	{
		ok($load->{harness}->pumpable, "$name: $load->{name} went on until the end") or diag ${ $load->{out} };
		$load->{harness}->signal('TERM');
		eval { $load->{harness}->finish };
		unlike(${ $load->{out} }, qr/ERROR|aborted/, "$name: no error in $load->{name}");
	}
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'");
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", '0', 'the end of the load');
	return;
}

if (part('load'))
{
	make_changed();
	my @load = start_load(
		[ 2, updates => "\\set k random(1, 20000)\nUPDATE s.changed SET v = v + 1 WHERE k = :k;\n",
			moves => "\\set k random(1, 20000)\nUPDATE s.changed SET k = -k WHERE k = :k;\n",
			toast => "\\set k random(1, 400) * 50\nUPDATE s.changed SET big = reverse(big) WHERE k = :k;\n",
			locks => "\\set k random(1, 200)\nBEGIN;\nSELECT v FROM s.changed WHERE k BETWEEN :k AND :k + 3 FOR SHARE;\nSAVEPOINT "
				. "a;\nSELECT v FROM s.changed WHERE k = :k FOR KEY SHARE;\nROLLBACK TO a;\nEND;\n",
			inserts => "\\set k random(1, 1000000)\nINSERT INTO s.changed (k, v, big) SELECT :k + g, 0, CASE WHEN g = 7 THEN "
				. "repeat(md5(:k::text), 150) END FROM generate_series(1, 20) g;\n",
			deletes => "\\set k random(1, 20000)\nDELETE FROM s.changed WHERE k = :k;\n",
			undone => "\\set k random(1, 20000)\nBEGIN;\nUPDATE s.changed SET v = -v WHERE k = :k;\nSAVEPOINT a;\nDELETE FROM s.changed "
				. "WHERE k BETWEEN :k AND :k + 5;\nROLLBACK TO a;\nEND;\n" ],
		[ 1, vacuum => "VACUUM s.changed;\n\\sleep 100 ms\nVACUUM (FREEZE) s.changed;\n\\sleep 100 ms\n" ]);
	poll_until($node, 'SELECT count(*) > 20 FROM s.changed WHERE v <> 0', 't', 'load');
	my $recopied = 0;
	foreach my $to (qw(regress_fast regress_slow))
	{
		my $n = 0;
		# after each bulk copy the load writes for a while
		my $rows = move_in_steps(to => $to, points => 'copy-end:writes', compare => sub {
			my ($kind, $old, $new) = @_;
			$n++;
			$kind eq 'i' ? same_files_ok($old, $new, $page_size, "load, to $to, TOAST index, under the lock")
			  : same_heap_files_ok($old, $new, $page_size, "load, to $to, $kind, under the lock");
		});
		is($rows, "table|moved||\ntoast|moved||\ntoast index|moved||", "load: moved to $to, and verified");
		is($n, 3, "load: three relations compared, to $to");
		$recopied += $node->safe_psql('postgres',
			"SELECT blocks_recopied FROM index_mover_history WHERE kind = 'table' ORDER BY job DESC LIMIT 1");
	}
	cmp_ok($recopied, '>', 20, "load: $recopied blocks of the table copied again");
	stop_load('load', @load);
	is(witnesses($node, 's.changed'), '', 'load: no witness against it');
	flush_both();
	is(rows_of($standby, 's.changed'), rows_of($node, 's.changed'), 'load, standby: the same rows');
	same_map_on_ok($node, $standby, $page_size, 'load, standby', map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($_, 'load') foreach $node, $standby;
	leftovers_ok($node, 'load', within => 5);
}

# ---- the sums of TPC-B ---------------------------------------------------------------
if (part('tpcb'))
{
	local $ENV{PGOPTIONS} = '-c search_path=tpcb,public';
	$node->safe_psql('postgres', 'CREATE SCHEMA tpcb');
	$node->command_ok([ 'pgbench', '-i', '-q', '-s', 2, '--tablespace=regress_slow', $node->connstr('postgres') ], 'TPC-B: made');
	my ($in, $out) = ('', '');
	my $harness = IPC::Run::start([ 'pgbench', '-n', '-c', 4, '-T', 3600, $node->connstr('postgres') ], '<', \$in, '>', \$out, '2>&1');
	my $done = 'SELECT count(*) FROM tpcb.pgbench_history';
	poll_until($node, "SELECT count(*) > 100 FROM tpcb.pgbench_history", 't', 'pgbench');
	foreach my $to ('regress_fast', 'regress_slow')
	{
		my $before = $node->safe_psql('postgres', $done);
		is($node->safe_psql('postgres',
			"SELECT kind, status, count(*) FROM move_schema_tables('tpcb', '$to', indexes => true) GROUP BY 1, 2 ORDER BY 1"),
			"index|moved|3\ntable|moved|4", "TPC-B: all four tables moved to $to, and their indexes");
		cmp_ok($node->safe_psql('postgres', $done), '>', $before, 'TPC-B: and pgbench went on');
	}
	stop_load('TPC-B', { name => 'pgbench', harness => $harness, out => \$out });
	is($node->safe_psql('postgres', <<SQL), 't|t|t', 'TPC-B: the sums are equal');
SELECT a = t, t = b, b = h FROM (SELECT sum(abalance) FROM tpcb.pgbench_accounts) a (a), (SELECT sum(tbalance) FROM tpcb.pgbench_tellers) t
  (t),
 (SELECT sum(bbalance) FROM tpcb.pgbench_branches) b (b), (SELECT sum(delta) FROM tpcb.pgbench_history) h (h)
SQL
	is(witnesses($node, tables('tpcb')), '', 'TPC-B: no witness against any table');
	files_ok($node, 'TPC-B');
}

end_servers();
done_testing();
