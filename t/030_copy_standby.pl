# Moves by copying, and standbys: what a streaming standby has after them, and what
# its queries and a synchronous standby mean for them.
#
# Fault (replication): standby: lag, feedback, queries at the replay of the swap, synchronous
#   and gone (also 054)
# Fault (replication): calls on a standby (also 060)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Pages;
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my $primary = new_node('primary', streaming => 1, conf => <<CONF);
index_mover.test_access_methods = 'bloom'
wal_consistency_checking = 'all'
wal_keep_size = 2GB
max_wal_size = 4GB
checkpoint_timeout = 1h
CONF

# ---------------------------------------------------------------------------
# One table for each kind of index: on a standby the other indexes of a table
# cannot be hidden from the planner, and each is to be asked.
# ---------------------------------------------------------------------------
my %kinds = (
	btree => [ 'text', 'btree (v)', q{md5(%s::text)} ],
	uniq => [ 'int', 'btree (v)', '%s' ],
	hash => [ 'text', 'hash (v)', q{md5(%s::text)} ],
	gin => [ 'int[]', 'gin (v)', 'ARRAY[%s % 211, %s % 13]' ],
	gist => [ 'point', 'gist (v)', 'point(%s % 71, %s % 53)' ],
	spgist => [ 'text', 'spgist (v)', q{md5(%s::text)} ],
	brin => [ 'int', 'brin (v) WITH (pages_per_range = 4)', '%s' ],
	bloom => [ 'int', 'bloom (v)', '%s' ]);
my $rows = 6000;

my $make = "CREATE EXTENSION bloom;\n";
my $load = '';
foreach my $kind (sort keys %kinds)
{
	my ($type, $index, $value) = @{ $kinds{$kind} };
	(my $of_g = $value) =~ s/%s/g/g;
	(my $of_x = $value) =~ s/%s/:x/g;
	my $unique = $kind eq 'uniq' ? 'UNIQUE' : '';
	# what is changed is to stay on its page: behind the table's old end BRIN has no
	# summaries that could change
	my $fill = $kind eq 'brin' ? 10 : 60;
	my $rows_of_a_page = $kind eq 'brin'
	  ? "ctid = ANY (ARRAY(SELECT ctid FROM k_brin WHERE ctid > '(:range,0)' AND ctid < '(:behind,0)' LIMIT 2))"
	  : "ctid = ANY (ARRAY['(:page,1)', '(:page,7)', '(:page,20)']::tid[])";
	# always more than there was: a unique index wants that, and no summary of BRIN
	# has it yet
	$of_x = "$rows + nextval('growing')::int" if $kind eq 'uniq' || $kind eq 'brin';
	$make .= <<SQL;
CREATE TABLE k_$kind (id int, v $type) WITH (fillfactor = $fill);
INSERT INTO k_$kind SELECT g, $of_g FROM generate_series(1, $rows) g;
CREATE $unique INDEX k_${kind}_i ON k_$kind USING $index TABLESPACE regress_slow;
SELECT oracle.remember_keys('k_$kind');
SQL
	# (a table without an index on id would be read as a whole for each change)
	$load .= <<SQL;
UPDATE k_$kind SET v = $of_x WHERE $rows_of_a_page;
DELETE FROM k_$kind WHERE ctid = ANY (ARRAY['(0,1)', '(1,2)', '(2,3)']::tid[]);
INSERT INTO k_$kind VALUES (:id, $of_x);
SQL
}
$primary->safe_psql('postgres', "CREATE SEQUENCE growing; $make; LOAD 'index_mover'");
# In one transaction, so that a copy which waits for so many transactions of
# others has had each of these done to its index.
append_to_file($primary->basedir . '/load.sql', <<SQL . "BEGIN;\n${load}COMMIT;\n");
\\set id random(1, $rows)
\\set x random(1, 1000000)
\\set page random(0, 60)
\\set range random(0, 100)
\\set behind :range + 1
SQL

$primary->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = 12s');
$standby->start;

# ---------------------------------------------------------------------------
# All access methods, under load
# ---------------------------------------------------------------------------
my $bench_out = '';
my $bench = IPC::Run::start(
	[
		'pgbench', '-n', '-c', '2', '-T', '900', '-R', '120', '--max-tries=5',
		'-f', $primary->basedir . '/load.sql', $primary->connstr('postgres')
	],
	'>&', \$bench_out, IPC::Run::timer($IndexMover::Test::TIMEOUT));

# the load changes what is copied already
set_test_point($primary, 'copy-end:writes');
foreach my $to ('regress_fast', 'regress_slow')
{
	foreach my $kind (sort keys %kinds)
	{
		is( $primary->safe_psql('postgres',
				"SELECT status FROM move_indexes('k_${kind}_i', '$to', method => 'copy', settings => '{\"verify\": \"on\"}')"),
			'moved', "$kind to $to under load");
		$primary->safe_psql('postgres', "VACUUM k_$kind");
	}
}
# one is block 0, which is always copied again
foreach my $kind (sort keys %kinds)
{
	my $fewest = $primary->safe_psql('postgres',
		"SELECT min(blocks_recopied) FROM index_mover_history WHERE name = 'k_${kind}_i' HAVING count(*) = 2");
	cmp_ok($fewest, '>', 1, "$kind: in each move blocks changed after they had been copied ($fewest or more)");
}
set_test_point($primary, '');
# not INT: pgbench ignores that where we were started in the background
$bench->signal('TERM');
eval { $bench->finish };
note $bench_out;
unlike($bench_out, qr/ERROR|FATAL|aborted/, 'no client had an error') or diag $bench_out;

$primary->wait_for_catchup($standby);
foreach my $kind (sort keys %kinds)
{
	verdict_ok($_->[0], "k_$kind", "$kind on the $_->[1]", max_keys => faults() ? 500 : 100) foreach [ $primary, 'primary' ],
		[ $standby, 'standby' ];
}
files_ok($primary, 'primary');
files_ok($standby, 'standby');
replayed_pages_ok($primary, $standby, 'standby');

# An attempt in vain, for there is too much left to do: the standby's clients get the
# index back as soon as the primary's, also where no session flushes WAL for a while.
$primary->safe_psql('postgres', $_) foreach 'ALTER SYSTEM SET synchronous_commit = off', "ALTER SYSTEM SET wal_writer_delay = '10s'",
	'SELECT pg_reload_conf()';
{
	my $gate = IndexMover::Session->new($primary);
	$gate->run('SELECT pg_advisory_lock(0, 5959), pg_advisory_lock(0, 5960)');
	set_test_point($primary, 'swap-locked:wait,swap-given-back:wait2');
	my $log = -s $primary->logfile;
	my $job = begin_job($primary, 'k_hash_i', elsewhere($primary, 'k_hash_i'));
	$primary->wait_for_log(qr/test point "swap-locked": waiting/, $log);
	set_test_point($primary, '');
	# what is not read yet is measured by its length
	foreach (1 .. 10)
	{
		$primary->safe_psql('postgres', $_) foreach 'SELECT txid_current()', 'SELECT pg_switch_wal()';
	}
	my $lock = "SELECT count(*) FROM pg_locks WHERE relation = 'k_hash_i'::regclass AND mode = 'AccessExclusiveLock'";
	$standby->poll_query_until('postgres', $lock, '1') or die 'no lock on the standby';
	my $wal_writer = $primary->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill 'STOP', $wal_writer or die "walwriter: $!";
	$gate->run('SELECT pg_advisory_unlock(0, 5959)');
	$primary->wait_for_log(qr/test point "swap-given-back": waiting/, $log);
	ok(poll_until($standby, $lock, '0', 'the lock on the standby'), 'given back on the standby, too, while no other session flushes WAL');
	kill 'CONT', $wal_writer;
	$gate->end;
	wait_for_job_end($primary, $job);
	is($primary->safe_psql('postgres', "SELECT status || ' ' || (lock_attempts > 1) FROM index_mover_history WHERE job = $job"),
		'moved true', 'moved by a later attempt');
}
$primary->safe_psql('postgres', $_) foreach 'ALTER SYSTEM RESET synchronous_commit', 'ALTER SYSTEM RESET wal_writer_delay',
	'SELECT pg_reload_conf()';

my ($rc, $out, $err) = $standby->psql('postgres',
	"\\set VERBOSITY verbose\nSELECT move_indexes('k_btree_i', 'regress_fast')");
like($err, qr/ERROR:  25006:/, 'no move on a standby');
# it cannot know whose worker lives on the primary
my $job = begin_job($primary, 'k_btree_i', elsewhere($primary, 'k_btree_i'), swap_after => 'infinity');
poll_until($primary, "SELECT phase FROM index_mover_progress WHERE job = $job", 'waiting for time to swap', 'a copy that waits');
$primary->wait_for_catchup($standby);
foreach my $dry_run ('false', 'true')
{
	($rc, $out, $err) = $standby->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT index_mover_cleanup($dry_run)");
	like($err, qr/ERROR:  25006: cannot execute index_mover_cleanup\(\) during recovery/, "no cleanup on a standby, dry_run $dry_run");
}
like($standby->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"), qr/^(?:queued|running)$/,
	'a job that runs on the primary is not said to be interrupted');
foreach my $call ("SELECT cancel_move($job)", 'SELECT cancel_move()', "SELECT pause_move($job)", "SELECT resume_move($job)",
	"SELECT alter_move($job, 'max_rate', '0')", "CALL wait_for_move($job)")
{
	($rc, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY verbose\n$call");
	like($err, qr/ERROR:  25006: cannot execute \w+\(\) during recovery/, "$call: nor on a standby, which does not know whether it runs");
}
$primary->safe_psql('postgres', "SELECT cancel_move($job)");
wait_for_job_end($primary, $job);
$primary->wait_for_catchup($standby);

# ---------------------------------------------------------------------------
# A query on the standby when the swap is replayed
# ---------------------------------------------------------------------------
my $reader = IndexMover::Session->new($standby);
my $query = 'SELECT count(v), min(pg_sleep(%s)::text) FROM k_btree WHERE v >= \'f\'';
$reader->run('SET enable_seqscan = off; SET enable_bitmapscan = off');
like($reader->run('EXPLAIN ' . sprintf($query, 0)), qr/k_btree_i/, 'the query uses the index');
$reader->run('BEGIN ISOLATION LEVEL REPEATABLE READ');
my $before = $reader->run(sprintf($query, 0));

is( $primary->safe_psql('postgres',
		"SELECT status FROM move_indexes('k_btree_i', 'regress_fast', method => 'copy')"),
	'moved', 'the move does not wait for a query on the standby');
poll_until($standby,
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'startup' AND wait_event_type = 'Lock'",
	't', 'replay to wait for the query');
ok(1, 'replay waits for the query');
is($reader->run(sprintf($query, 0)), $before, 'which goes on and gets the same rows');
$reader->send(sprintf($query, '1'));
$reader->answer;
like($reader->errors, qr/40001|conflict with recovery/,
	'after max_standby_streaming_delay the query is canceled');
$reader->end;
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT confl_lock FROM pg_stat_database_conflicts WHERE datname = 'postgres'"),
	'1', 'as a conflict about a lock');
verdict_ok($standby, 'k_btree', 'the moved index on the standby', max_keys => 500);
files_ok($standby, 'standby after the conflict');
$standby->stop;

# ---------------------------------------------------------------------------
# A synchronous standby that is not there
# ---------------------------------------------------------------------------
$primary->safe_psql('postgres', <<SQL);
CREATE TABLE waits (id int, s text);
INSERT INTO waits SELECT g, md5(g::text) FROM generate_series(1, 50000) g;
CREATE INDEX waits_s ON waits (s) TABLESPACE regress_slow;
SQL
append_to_file($primary->basedir . '/waits.sql', <<'SQL');
SET synchronous_commit = local;
\set x random(1, 1000000)
INSERT INTO waits VALUES (:x, md5(:x::text));
SQL

# Milliseconds of the slowest transaction of a client, while something is done.
sub longest_wait
{
	my ($name, $seconds, $action) = @_;
	my $prefix = $primary->basedir . "/$name";
	my ($client_out, $longest) = ('', 0);
	my $pgbench = IPC::Run::start(
		[
			'pgbench', '-n', '-c', '1', '-T', $seconds, '-R', '1000', '-l', '--log-prefix', $prefix,
			'-f', $primary->basedir . '/waits.sql', $primary->connstr('postgres')
		],
		'>&', \$client_out, IPC::Run::timer($IndexMover::Test::TIMEOUT));
	usleep(500_000);
	$action->();
	$pgbench->finish;
	foreach my $file (glob "$prefix.*")
	{
		foreach my $line (split /\n/, slurp_file($file))
		{
			my @fields = split / /, $line;
			# without what it was late already
			my $ms = ($fields[2] - $fields[6]) / 1000;
			$longest = $ms if $ms > $longest;
		}
	}
	return $longest;
}

$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'absent'");
$primary->reload;
poll_until($primary, "SELECT current_setting('synchronous_standby_names')", 'absent');
# after a checkpoint the first draw from a logged sequence would need a transaction ID
$primary->safe_psql('postgres', 'CHECKPOINT');

# Under the lock a client waits for us; behind the commit no client does, although
# no standby has answered.
set_test_point($primary, 'swap-before-commit:wait');
my $gate = IndexMover::Session->new($primary);
$gate->run('SELECT pg_advisory_lock(0, 5959)');
my $log = -s $primary->logfile;
my $move = start_call($primary, 'mover',
	"SELECT status FROM move_indexes('waits_s', 'regress_fast', method => 'copy')");
$primary->wait_for_log(qr/test point "swap-before-commit": waiting/, $log);
my $client = IndexMover::Session->new($primary);
$client->run('SET synchronous_commit = local');
$client->send("INSERT INTO waits VALUES (1, 'x')");
poll_until($primary, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $client->{pid}", 'Lock', 'the client to wait for us');
my $locks = "SELECT count(*) FROM pg_locks WHERE relation = 'waits_s'::regclass AND mode = 'AccessExclusiveLock' AND granted";
is($primary->safe_psql('postgres', $locks), '1', 'before the commit we have the exclusive lock');
# or who creates a replication slot would wait for the end of the move
is($primary->safe_psql('postgres', "SELECT backend_xid IS NULL FROM pg_stat_activity WHERE application_name = 'mover'"), 't',
	'the caller that waits has no transaction ID');
$gate->run('SELECT pg_advisory_unlock(0, 5959)');
$client->answer;
is($client->errors, '', 'the commit lets go of it although no synchronous standby answers');
($rc, $out, $err) = finish_call($move);
like($out, qr/^moved$/m, 'and the move ends') or diag $err;
$gate->end;
$client->end;
set_test_point($primary, '');

# What clients feel of a move as it is by default.  On a busy machine they wait for
# other things, too: so the best of some moves counts; a wait for a standby would be
# in each.
my $quiet = longest_wait('quiet', 3, sub { });
my $busy;
foreach my $round (1 .. 6)
{
	my $to = $round % 2 ? 'regress_slow' : 'regress_fast';
	my $longest = longest_wait("busy$round", 3, sub {
		my $call = start_call($primary, 'mover',
			"SELECT status FROM move_indexes('waits_s', '$to', method => 'copy', settings => '{\"verify\": \"off\"}')");
		($rc, $out, $err) = finish_call($call);
	});
	like($out, qr/^moved$/m, "move $round under load ends") or diag $err;
	note sprintf('longest transaction of a client: %.1f ms during the move, %.1f ms without', $longest, $quiet);
	$busy = $longest if !defined $busy || $longest < $busy;
	last if $busy < 100;
}
soon_ok($busy / 1000, 0.1 + 2 * $quiet / 1000, 'no client waits long');

# a job that starts at commit, from a session that wants the standby's answer
my $call = start_call($primary, 'queuer',
	"SELECT status FROM move_indexes('waits_s', 'pg_default', method => 'copy', wait => false)");
($rc, $out, $err) = finish_call($call);
like($out, qr/^queued$/m, 'a move can be queued');
poll_until($primary,
	"SELECT reltablespace FROM pg_class WHERE oid = 'waits_s'::regclass",
	'0', 'the queued move');
# which still has the old file to remove
poll_until($primary, 'SELECT count(*) FROM index_mover_progress', '0', 'the end of the queued move');
$call = start_call($primary, 'queuer', 'SELECT status FROM undo_move((SELECT max(job) FROM index_mover_history), wait => false)');
($rc, $out, $err) = finish_call($call);
like($out, qr/^queued$/m, 'a second move can be queued');
wait_for_job_end($primary, $primary->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history'));
wait_for_no_worker($primary);

# but what else the caller's transaction has written is not lost sight of
$primary->safe_psql('postgres', 'SET synchronous_commit = local; CREATE TABLE written (i int)');
$call = start_call($primary, 'writer', <<SQL);
BEGIN;
INSERT INTO written VALUES (1);
SELECT status FROM move_indexes('waits_s', 'regress_fast', method => 'copy', wait => false);
COMMIT
SQL
poll_until($primary,
	"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'writer' AND wait_event = 'SyncRep'",
	'1', 'the writer to wait for the standby');
ok(1, 'who has written in the same transaction waits for the standby');
$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$primary->reload;
finish_call($call);
# its worker may not have begun yet
wait_for_job_end($primary, $primary->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history'));
wait_for_no_worker($primary);
files_ok($primary, 'primary at the end');

# the sequence of job numbers is unlogged
my $last = $primary->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history');
$primary->stop('immediate');
$primary->start;
cmp_ok($primary->safe_psql('postgres', "SELECT job FROM move_indexes('waits_s', 'pg_default')"), '>', $last,
	'after a crash job numbers go on');

done_testing();
