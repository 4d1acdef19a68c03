# The method copy after the swap: what was cached is cached again, and pause,
# DDL and cancel are obeyed while blocks are loaded and the old file is removed.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('after_swap', conf => "checkpoint_timeout = 1h\nmax_wal_size = 2GB\nshared_buffers = 128MB");
$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_buffercache;
CREATE EXTENSION pg_prewarm;
CREATE TABLE after_swap (i int, s text) WITH (fillfactor = 80);
INSERT INTO after_swap SELECT g, repeat(md5(g::text), 5) FROM generate_series(1, 170000) g;
CREATE INDEX after_swap_s ON after_swap (s) TABLESPACE regress_slow;
CREATE TABLE seen_before (block bigint);
LOAD 'index_mover';
SQL
my $s;
my $gate;

sub elsewhere
{
	return $s->run("SELECT CASE t.spcname WHEN 'regress_slow' THEN 'regress_fast' ELSE 'regress_slow' END FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'after_swap_s'::regclass");
}

# Start a move, and let it go to a point.
sub move_to_point
{
	my ($point, %settings) = @_;
	set_test_point($node, "$point:wait");
	$gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $to = elsewhere();
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	my $job = $s->run(
		"SELECT job FROM move_indexes('after_swap_s', '$to', method => 'copy', wait => false, settings => '{$json}')");
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	return ($job, $to);
}

# How often it has come to the point prewarm-step.
sub steps
{
	my ($log) = @_;
	return scalar(() = slurp_file($node->logfile, $log) =~ /test point "prewarm-step": waiting/g);
}

sub phase { return $s->run("SELECT string_agg(phase, ',') FROM index_mover_progress WHERE job = $_[0]"); }

# The index is where it was to be and right, and nothing is left.
sub all_right_in
{
	my ($to, $name) = @_;
	like(tablespace_of($node, 'after_swap'), qr/^after_swap_s: $to$/, "$name: moved");
	is($s->run('SELECT count(*) FROM index_mover_ledger'), '0', "$name: the ledger is empty");
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	$s->run("SELECT oracle.structure('after_swap_s')");
	return;
}

# ---- what was cached is cached again -------------------------------------------------
my $in_buffers = <<SQL;
FROM pg_buffercache b
WHERE b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND b.reltablespace = (SELECT oid FROM pg_tablespace WHERE spcname = '%s')
  AND b.relfilenode = %s AND b.relforknumber = 0
SQL
foreach my $prewarm ('on', 'off')
{
	# cold, but for some blocks of the index
	$s->end if $s;
	$node->restart;
	$s = IndexMover::Session->new($node);
	$s->run("SELECT pg_prewarm('after_swap_s', 'buffer', 'main', 100, 900), pg_prewarm('after_swap_s', 'buffer', 'main', 2000, 2100)");
	my $from = elsewhere() eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
	my $number = $s->run("SELECT pg_relation_filenode('after_swap_s')");
	my ($job, $to) = move_to_point('swapped', prewarm => $prewarm);
	$s->run('TRUNCATE seen_before');
	$s->run('INSERT INTO seen_before SELECT b.relblocknumber ' . sprintf($in_buffers, $from, $number));
	my $before = $s->run('SELECT count(*) FROM seen_before');
	my $total = $s->run("SELECT pg_relation_size('after_swap_s') / current_setting('block_size')::int");
	cmp_ok($before, '>=', 900, "prewarm $prewarm: $before of $total blocks were cached before the swap");
	cmp_ok($before, '<', $total / 2, "prewarm $prewarm: not all");
	$gate->end;
	$s->run("CALL wait_for_move($job)");
	set_test_point($node, '');
	$number = $s->run("SELECT pg_relation_filenode('after_swap_s')");
	my $missing = $s->run('SELECT count(*) FROM (SELECT block FROM seen_before EXCEPT SELECT b.relblocknumber '
		  . sprintf($in_buffers, $to, $number) . ') m');
	my $now = $s->run('SELECT count(*) ' . sprintf($in_buffers, $to, $number));
	if ($prewarm eq 'on')
	{
		is($missing, '0', 'prewarm on: each of them is cached after the move');
		cmp_ok($now, '<', $total / 2, "prewarm on: and not the whole index ($now)");
	}
	else
	{
		cmp_ok($missing, '>', 800, "prewarm off: they are not ($missing of $before)");
	}
	all_right_in($to, "prewarm $prewarm");
}

# ---- pause ------------------------------------------------------------------------------
# Hold it at a point after the swap, pause it, and let it go on from the point.
foreach my $case ([ 'prewarm-step', 'while blocks are loaded' ], [ 'old-file-step', 'while the old file is removed' ])
{
	my ($point, $name) = @$case;
	$s->run("SELECT count(*) FROM pg_prewarm('after_swap_s')");
	my ($job, $to) = move_to_point($point);
	$s->run("SELECT pause_move($job)");
	set_test_point($node, '');
	$gate->end;
	poll_until($node, "SELECT string_agg(phase, ',') FROM index_mover_progress WHERE job = $job", 'paused', 'the pause');
	pass("paused $name");
	is($s->run('SELECT count(*) FROM index_mover_ledger'), '1', "paused $name: the old file is not removed yet");
	# it stays as it is: the steps would have been done by the time of so many looks
	my $orphans = $s->run('SELECT sum(size) FROM oracle.files()');
	cmp_ok($orphans, '>', 0, "paused $name: $orphans bytes of it are there");
	my $changed = 0;
	foreach my $look (1 .. 20)
	{
		$changed++ if phase($job) ne 'paused';
	}
	is($changed, 0, "paused $name: it stays so");
	is($s->run('SELECT sum(size) FROM oracle.files()'), $orphans, "paused $name: and no more of it goes");
	is($s->run("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'index\\_mover%' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)"),
		'0', "paused $name: without a snapshot or a transaction ID");

	# nobody waits for somebody who is paused
	my $ddl = IndexMover::Session->new($node);
	$ddl->send("SET lock_timeout = '60s'; ALTER INDEX after_swap_s SET (fillfactor = 90); ALTER INDEX after_swap_s RESET (fillfactor)");
	$ddl->answer;
	is($ddl->errors, '', "paused $name: DDL passes");
	$ddl->end;
	poll_until($node, "SELECT string_agg(phase, ',') FROM index_mover_progress WHERE job = $job", 'paused', 'the pause, after DDL');

	$s->run("SELECT resume_move($job)");
	$s->run("CALL wait_for_move($job)");
	is($s->run("SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "resumed $name: moved");
	all_right_in($to, "resumed $name");

	# and a cancel ends the pause, not the move, which has happened
	$s->run("SELECT count(*) FROM pg_prewarm('after_swap_s')");
	($job, $to) = move_to_point($point);
	$s->run("SELECT pause_move($job)");
	set_test_point($node, '');
	$gate->end;
	poll_until($node, "SELECT string_agg(phase, ',') FROM index_mover_progress WHERE job = $job", 'paused', 'the pause');
	$s->run("SELECT cancel_move($job)");
	$s->run("CALL wait_for_move($job)");
	is($s->run("SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "cancelled $name: moved all the same");
	poll_until($node, 'SELECT count(*) FROM index_mover_ledger', '0', 'the removal');
	all_right_in($to, "cancelled $name");
}

# ---- DDL does not wait for the loading ---------------------------------------------------
{
	$s->run("SELECT count(*) FROM pg_prewarm('after_swap_s')");
	my $log = -s $node->logfile;
	my ($job, $to) = move_to_point('prewarm-step');
	$gate->end;
	$s->run("CALL wait_for_move($job)");
	cmp_ok(steps($log), '>', 5, 'all of the index is loaded in ' . steps($log) . ' steps');

	$log = -s $node->logfile;
	($job, $to) = move_to_point('prewarm-step');
	my $ddl = IndexMover::Session->new($node);
	$ddl->send('ALTER TABLE after_swap ADD COLUMN more int');
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE pid = $ddl->{pid} AND NOT granted", '1', 'DDL behind us');
	$gate->end;
	$ddl->answer;
	is($ddl->errors, '', 'DDL passes while blocks are loaded');
	$ddl->end;
	$s->run("CALL wait_for_move($job)");
	set_test_point($node, '');
	is(steps($log), 1, 'no more of them were loaded then');
	all_right_in($to, 'DDL while blocks are loaded');
}

verdict_ok($node, 'after_swap', 'at the end', max_keys => 200);
$s->end;
$node->stop;
done_testing();
