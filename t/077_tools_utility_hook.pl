# Another module's utility hook beside ours, as Citus has one: it may replace what a
# rebuild runs, so the catalog says whether the index was rebuilt, else the row fails
# and says so.  And what we have to know of Citus, without Citus: its setting is off in
# our workers, and a table in its catalog is named with what is to be called instead.
#
# Fault (security): another module's utility hook: it swallows, repeats or changes the `REINDEX
#   CONCURRENTLY` of a rebuild
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

needs_faults();

my $library = "$PostgreSQL::Test::Utils::tmp_check/utility_hook.so";
{
	chomp(my $headers = `pg_config --includedir-server`);
	my $messages = '';
	IPC::Run::run(
		[ $ENV{CC} || 'cc', '-shared', '-fPIC', '-O1', "-I$headers", '-o', $library, "$FindBin::RealBin/utility_hook.c" ],
		'>&', \$messages)
	  or plan skip_all => "cannot compile t/utility_hook.c: $messages";
}

my $node = new_node('utility_hook', conf => qq{shared_preload_libraries = '"$library", index_mover'\n});
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE uh (i int, s text);
INSERT INTO uh SELECT g, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX uh_s ON uh (s) TABLESPACE regress_slow;
CREATE INDEX uh_i ON uh (i) TABLESPACE regress_slow;
SELECT oracle.remember_keys('uh'), oracle.remember_metadata('uh');
SQL

sub set_hook
{
	my ($value) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET utility_hook.reindex = '$value'");
	$node->reload;
	return;
}

sub move
{
	my ($index, $method) = @_;
	return sprintf "SELECT status, sqlstate, detail FROM move_indexes('%s', '%s', method => '%s')", $index, elsewhere($node, $index),
		$method;
}

# ---- it does not do what a rebuild has asked for --------------------------------------
my $replaced = q{Another module's utility hook may have replaced the command\.};
foreach my $case (
	[ 'pass', qr/^moved\|\|$/ ],
	[ 'swallow', qr/^failed\|55000\|index "uh_s" was not rebuilt: $replaced/ ],
	[ 'repeat', qr/^moved\|\|$/ ],
	[ 'stay', qr/^failed\|55000\|/ ],
	[ 'plain', qr/^moved\|\|$/ ])
{
	my ($what, $row) = @$case;
	my ($from, $to) = (tablespace_of_index($node, 'uh_s'), elsewhere($node, 'uh_s'));
	set_hook($what);
	like($node->safe_psql('postgres', move('uh_s', 'rebuild')), $row, "$what: the row");
	wait_for_no_worker($node);
	is(tablespace_of_index($node, 'uh_s'), $row =~ /moved/ ? $to : $from, "$what: where the index is");
	leftovers_ok($node, $what, within => 5);
	set_hook('pass');
	survived_ok($node, 'uh', $what, move('uh_s', 'rebuild'), max_keys => 50, restarted => 1);
}

# ---- a worker's commands stay on this node --------------------------------------------
my $log = -s $node->logfile;
$node->safe_psql('postgres', 'REINDEX INDEX CONCURRENTLY uh_s');
$node->safe_psql('postgres', move('uh_s', 'rebuild'));
my @said = slurp_file($node->logfile, $log) =~ /utility hook: (REINDEX .*)$/mg;
is(scalar(@said), 2, 'two commands');
like($said[0], qr/is on$/, q{Citus's setting is on in a session});
like($said[1], qr/is off$/, 'and off in a worker');

# ---- a table of Citus -------------------------------------------------------------------
sub notice_of
{
	my ($call, $name) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "SET application_name = '$name'; SELECT count(*) FROM $call");
	is($rc, 0, $call) or diag $err;
	return $err;
}

my $dry_run = q{move_indexes('uh', 'pg_default', dry_run => true)};
unlike(notice_of($dry_run, 'psql'), qr/Citus/, 'no catalog of Citus: nothing is said of it');
$node->safe_psql('postgres', <<'SQL');
SET allow_system_table_mods = on;
CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass NOT NULL, partmethod "char");
SQL
unlike(notice_of($dry_run, 'psql'), qr/Citus/, 'not in it: nothing is said');
$node->safe_psql('postgres', q{SET allow_system_table_mods = on; INSERT INTO pg_dist_partition VALUES ('uh', 'h')});
my $notice = joined(
	qr/NOTICE:  table "uh" is distributed by Citus, and its shards are not moved with it\n(?:psql:.*)?HINT:  To move /m,
	qr/the shards, too: (SELECT .*)$/m);
my $said = notice_of($dry_run, 'psql');
like($said, $notice, 'a table of Citus is named');
$said =~ $notice;
is($1, q{SELECT * FROM pg_catalog.run_command_on_all_nodes('SELECT pg_catalog.max(job) FROM }
	. q{index_mover_call.move_schema_indexes(''public'', ''pg_default'', wait => false)');}, 'the hint');
like(notice_of(q{move_indexes('uh_i', 'pg_default', dry_run => true)}, 'psql'), qr/table "uh" is distributed/, 'an index of it');
like(notice_of(q{move_schema_indexes('public', 'pg_default', dry_run => true)}, 'psql'), qr/table "uh" is distributed/, 'a schema');
unlike(notice_of($dry_run, 'citus_run_command gpid=10000000001'), qr/Citus/, 'not where Citus has sent the call');
$node->safe_psql('postgres', <<'SQL');
SET allow_system_table_mods = on;
CREATE TABLE two (i int PRIMARY KEY);
INSERT INTO pg_dist_partition VALUES ('two', 'h');
SQL
$said = notice_of(q{move_schema_indexes('public', 'pg_default', dry_run => true)}, 'psql');
my @names = $said =~ /table "(\w+)" is distributed/g;
is(scalar(@names), 1, 'two tables of a schema: one message');

# a table of that name that is not Citus's
$node->safe_psql('postgres', <<'SQL');
SET allow_system_table_mods = on;
DROP TABLE pg_catalog.pg_dist_partition;
CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid text);
INSERT INTO pg_dist_partition VALUES ('uh');
SQL
unlike(notice_of($dry_run, 'psql'), qr/Citus/, 'another table of that name');
$node->safe_psql('postgres', 'SET allow_system_table_mods = on; DROP TABLE pg_catalog.pg_dist_partition');

# ---- a caller behind a connection of Citus -----------------------------------------------
# That session has an old snapshot, and waits for the one that waits for the rebuild.
$node->safe_psql('postgres', <<'SQL');
SET allow_system_table_mods = on;
CREATE TABLE pg_catalog.pg_dist_local_group (groupid int);
CREATE TABLE pg_catalog.pg_dist_node (nodeid int, groupid int);
INSERT INTO pg_dist_local_group VALUES (7);
INSERT INTO pg_dist_node VALUES (3, 8), (4, 7);
SQL
my $caller = IndexMover::Session->new($node);
$caller->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my $sql = move('uh_s', 'rebuild');
foreach my $behind ('citus_run_command gpid=', 'citus_internal gpid=')
{
	my $start = time;
	my $other = IndexMover::Session->new($node);
	$other->run(sprintf q{SET application_name = '%s%d'}, $behind, 4 * 1e10 + $caller->pid);
	$other->send($sql);
	my $row = $other->answer . $other->errors;
	like($row, qr/^failed\|40P01\|.*process ${\ $caller->pid}, which waits/s, "$behind: the row says what it would wait for");
	soon_ok(time - $start, 3, "$behind: soon");
	$other->end;
}
{
	my $job = begin_job($node, 'uh_s', elsewhere($node, 'uh_s'), method => 'rebuild');
	my $other = IndexMover::Session->new($node);
	$other->run(sprintf q{SET application_name = 'citus_run_command gpid=%d'}, 4 * 1e10 + $caller->pid);
	$other->send("CALL wait_for_move($job)");
	$other->answer;
	like($other->errors, qr/40P01: deadlock detected\nDETAIL:  Job $job waits for process ${\ $caller->pid}, which waits for this session/,
		'wait_for_move() behind it');
	$other->end;
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"), 'running', 'and the job goes on');
	$caller->run('COMMIT');
	wait_for_job_end($node, $job);
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"), 'moved', 'to its end');
	$sql = move('uh_s', 'rebuild');
	$caller->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
}
foreach my $name ('citus_run_command gpid=' . (3 * 1e10 + $caller->pid), 'citus_run_command gpid=' . $caller->pid,
	'psql gpid=' . (4 * 1e10 + $caller->pid))
{
	my $other = IndexMover::Session->new($node);
	$other->run("SET application_name = '$name'");
	$other->send("$sql");
	wait_for_phase($node, 'waiting for old snapshots');
	poll_until($node, "SELECT now() - query_start > '3 s' FROM pg_stat_activity WHERE pid = " . $other->pid, 't',
		'three looks for a deadlock');
	ok(!$other->has_answered, "$name: of another node, or of none: waits");
	$caller->run('COMMIT');
	like($other->answer, qr/^moved/, "$name: and moves then");
	$other->end;
	$sql = move('uh_s', 'rebuild');
	$caller->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
}
$caller->end;
wait_for_no_worker($node);
leftovers_ok($node, 'behind Citus', within => 5);

# ---- an index of a few pages is not rebuilt --------------------------------------------
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE few (i int, s text) WITH (autovacuum_enabled = off);
CREATE INDEX few_hash ON few USING hash (s);
SQL
like($node->safe_psql('postgres', q{SELECT method, detail FROM move_indexes('few_hash', 'regress_fast', dry_run => true)}),
	qr/^copy\|Copy, because the index is small/, 'an empty hash index: copy');

$node->stop;
done_testing();
