# A move's attempts at the exclusive lock are of low priority: whoever comes
# while it waits for another, waits for the move no longer than
# index_mover.lock_timeout.  With a transaction that idles for seconds, an
# autovacuum against wraparound, a prepared transaction, and a waiting ALTER
# TABLE; sampled all the time.
#
# Fault (locks): ALTER TABLE waits while the swap asks for its lock; autovacuum against
#   wraparound; idle transaction
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

# seconds for which they stay
my $STAY = faults('two thirds of the time that others hold the tables') ? 30 : 10;

my $node = new_node('low_priority', conf => <<CONF);
autovacuum_naptime = 1
autovacuum_max_workers = 1
log_lock_waits = on
deadlock_timeout = 300ms
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

my @tables = qw(lp_idle lp_prepared lp_vacuum lp_alter);
foreach my $table (@tables, 'control', 'short')
{
	# so many pages that a vacuum that rests for 100 ms at each takes minutes
	my $pages = $table eq 'lp_vacuum' ? ', fillfactor = 10' : '';
	sql(<<SQL);
CREATE TABLE $table (i int, s text) WITH (autovacuum_enabled = off$pages);
INSERT INTO $table SELECT g, md5(g::text) FROM generate_series(1, 20000) g;
CREATE INDEX ${table}_s ON $table (s) WITH (fillfactor = 20) TABLESPACE regress_slow;
VACUUM ANALYZE $table;
SQL
}

sub status { return sql("SELECT status || coalesce(' ' || sqlstate, '') FROM index_mover_history WHERE job = $_[0]"); }

sub oid_of { return sql("SELECT '$_[0]'::regclass::oid"); }

# How often the server has said of an attempt at one of these relations that it
# stands in the queue for longer than deadlock_timeout, three times lock_timeout.
# It does not say so of a process that is merely late: if both times are over when
# that gets a processor, it leaves the queue first.
sub queued_too_long
{
	my ($from, @relations) = @_;
	my $oids = join '|', map { oid_of($_) } @relations;
	return scalar(() = slurp_file($node->logfile, $from) =~ /still waiting for AccessExclusiveLock on relation (?:$oids) /g);
}

sub worker_of { return sql("SELECT pid FROM index_mover_progress WHERE job = $_[0]"); }

# ---------------------------------------------------------------------------
# In the queue: the move behind a transaction, a third session behind the move
# ---------------------------------------------------------------------------
my $gate = IndexMover::Session->new($node);
my $third = IndexMover::Session->new($node);

$gate->run('SELECT pg_advisory_lock(0, 5959)');
my $log = -s $node->logfile;
# the last one of them stays
my ($job, $holder) = queued_at($node, "SELECT count(*) FROM control WHERE s = 'x'",
	sub { return begin_job($node, 'control_s', 'regress_fast', lock_timeout => '10s', lock_wait => 0); });
my $worker = worker_of($job);
$gate->run('SELECT pg_advisory_unlock(0, 5959)');
poll_until($node, "SELECT count(*) FROM pg_locks WHERE pid = $worker AND mode = 'AccessExclusiveLock' AND NOT granted", '1', 'the attempt');
# see queued_too_long()
$node->wait_for_log(qr/process $worker still waiting for AccessExclusiveLock on relation @{[ oid_of('control_s') ]} /, $log);
my ($start, $behind);
do
{
	# it may come between two turns in the queue, and not wait at all
	$third->answer if defined $start;
	$start = time;
	$third->send("SELECT count(*) FROM control WHERE s = 'y'");
	do { $behind = sql('SELECT ' . $worker . ' = ANY(pg_blocking_pids(' . $third->pid . '))') eq 't';
		} until ($behind || $third->has_answered);
} until ($behind);
pass('a third session waits behind the attempt');
$third->answer;
soon_ok(time - $start, 10.5, 'it waits no longer than that attempt of 10 s may stand in the queue');
is(sql('SELECT state FROM pg_stat_activity WHERE pid = ' . $holder->pid), 'idle in transaction', 'and goes on before the first one ends');
is(sql("SELECT phase FROM index_mover_progress WHERE job = $job"), 'waiting for lock to swap', 'as does the move, out of the queue');
cmp_ok(queued_too_long($log, 'control_s'), '>', 0, 'the server says of such an attempt that it stands in the queue for long');
$holder->run('COMMIT');
wait_for_job_end($node, $job);
is(status($job), 'moved', 'then it is moved');

# The same with the default, and no session that looks: out of the queue in time
$gate->run('SELECT pg_advisory_lock(0, 5959)');
$log = -s $node->logfile;
$holder->end;
($job, $holder) = queued_at($node, "SELECT count(*) FROM short WHERE s = 'x'",
	sub { return begin_job($node, 'short_s', 'regress_fast', lock_wait => 0); });
$gate->run('SELECT pg_advisory_unlock(0, 5959)');
poll_until($node, "SELECT blocked_by <> '{}' FROM index_mover_progress WHERE job = $job", 't', 'the end of the attempt');
is(queued_too_long($log, 'short_s'), 0, 'an attempt of 100 ms does not stand there for long');
$holder->run('COMMIT');
wait_for_job_end($node, $job);
is(status($job), 'moved', 'it is moved, too');

# The WAL cannot be read in the queue: so a long attempt is made in turns, and what
# is recycled meanwhile was read.
$gate->run('SELECT pg_advisory_lock(0, 5959)');
$log = -s $node->logfile;
$holder->end;
($job, $holder) = queued_at($node, "SELECT count(*) FROM short WHERE s = 'x'",
	sub { return begin_job($node, 'short_s', 'regress_slow', lock_timeout => '10min'); });
$worker = worker_of($job);
$gate->run('SELECT pg_advisory_unlock(0, 5959)');
my $queued = "FROM pg_locks WHERE pid = $worker AND mode = 'AccessExclusiveLock' AND NOT granted AND waitstart";
poll_until($node, "SELECT count(*) $queued IS NOT NULL", '1', 'the attempt');
foreach (1 .. 4)
{
	my $now = sql('SELECT clock_timestamp()');
	sql($_) foreach 'SELECT txid_current()', 'SELECT pg_switch_wal()', 'CHECKPOINT';
	poll_until($node, "SELECT count(*) $queued > '$now'", '1', 'another turn');
}
$holder->run('COMMIT');
wait_for_job_end($node, $job);
is(status($job), 'moved', 'moved, when the lock was granted');
is(sql("SELECT lock_attempts FROM index_mover_history WHERE job = $job"), '1', 'by that attempt');
ok(!$node->log_contains(qr/starting the copy/, $log), 'and no WAL was missing');

# A partitioned index has no file: its lock is looked for again and again, and nothing
# is held in between.  Else a session that has the index, and then wants the table,
# would wait for us, and we for it, and nothing in the server sees that.
sql(<<SQL);
CREATE TABLE parted (i int) PARTITION BY RANGE (i);
CREATE INDEX parted_i ON parted (i) TABLESPACE regress_slow;
SQL
$holder->run("BEGIN; COMMENT ON INDEX parted_i IS 'held'");
$job = begin_job($node, 'parted', 'regress_fast', lock_wait => 0);
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job"
	. " AND phase = 'waiting for lock to swap' AND blocked_by = ARRAY[" . $holder->pid . ']', '1', 'a partitioned index in use');
# (not in an attempt, which is short but comes again)
poll_until($node, "SELECT count(*) FROM pg_locks l JOIN index_mover_progress p USING (pid) WHERE p.job = $job AND (l.relation IN "
	. "('parted'::regclass, 'parted_i'::regclass) OR l.locktype = 'transactionid')", '0', 'a moment between two attempts');
pass('the move holds nothing while it waits');
# a lock_timeout that is far away: without a way out this would wait without end
$holder->run("SET LOCAL lock_timeout = '90s'; ALTER TABLE parted ADD COLUMN n int");
pass('who has the index gets the table, too');
is(sql("SELECT count(*) FROM index_mover_progress WHERE job = $job"), '1', 'and the job goes on');
$holder->run('COMMIT');
wait_for_job_end($node, $job);
is(status($job), 'moved', 'the default tablespace of the partitioned index is set');

# ---------------------------------------------------------------------------
# Four kinds of holders, for half a minute at most
# ---------------------------------------------------------------------------
# an autovacuum against wraparound that takes its time
sql(<<SQL);
CREATE TABLE burn (i int) WITH (autovacuum_enabled = off);
DO \$\$ BEGIN
	FOR i IN 1 .. 101000 LOOP
		BEGIN INSERT INTO burn VALUES (i); EXCEPTION WHEN OTHERS THEN RAISE; END;
	END LOOP;
END \$\$;
ALTER TABLE lp_vacuum SET (autovacuum_enabled = on, autovacuum_freeze_max_age = 100000, autovacuum_freeze_table_age = 0,
  autovacuum_freeze_min_age = 0,
	autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1);
ALTER SYSTEM SET autovacuum = on;
SELECT pg_reload_conf();
SQL
poll_until($node, "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.relation = 'lp_vacuum_s'::regclass AND "
	. "a.backend_type = 'autovacuum worker' AND a.query LIKE '%to prevent wraparound%'", '1', 'an autovacuum against wraparound');
my $vacuum = sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'");

sql("BEGIN; SELECT count(*) FROM lp_prepared WHERE s = 'x'; SELECT txid_current(); PREPARE TRANSACTION 'lp'");
my $idle = IndexMover::Session->new($node);
$idle->run("BEGIN; SELECT count(*) FROM lp_idle WHERE s = 'x'");
my $idle_since = time;
my $reader = IndexMover::Session->new($node);
my $alter = IndexMover::Session->new($node);

my %job;
my $jobs_log = -s $node->logfile;
$job{lp_idle} = begin_job($node, 'lp_idle_s', 'regress_fast', lock_wait => 0);
$job{lp_prepared} = begin_job($node, 'lp_prepared_s', 'regress_fast', lock_wait => int($STAY * 0.7) . 's', on_blocker => 'terminate');
$job{lp_vacuum} = begin_job($node, 'lp_vacuum_s', 'regress_fast', lock_wait => int($STAY * 0.7) . 's', on_blocker => 'terminate');
$job{lp_alter} = begin_job($node, 'lp_alter_s', 'regress_fast', lock_wait => 0, max_rate => '64kB');
poll_until($node, "SELECT blocks_done > 0 FROM index_mover_progress WHERE job = $job{lp_alter}", 't', 'a copy on its way');
my $copier = worker_of($job{lp_alter});
$log = -s $node->logfile;
$reader->run("BEGIN; SELECT count(*) FROM lp_alter");
$alter->send('ALTER TABLE lp_alter ADD COLUMN x int');
poll_until($node, 'SELECT ' . $reader->pid . ' = ANY(pg_blocking_pids(' . $alter->pid . '))', 't', 'the ALTER TABLE to wait');
poll_until($node, "SELECT $copier <> ALL(pg_blocking_pids(" . $alter->pid . '))', 't', 'the copy to give way');
pass('a copy lets a waiting ALTER TABLE pass, though that has to wait for others still');

# Readers of all tables; and who waits for a move, and for how long.
my $sampler = IndexMover::Session->new($node);
my ($longest_behind, $samples) = (0, 0);
my %longest;
while (time - $idle_since < $STAY)
{
	foreach my $table ('control', 'lp_idle', 'lp_prepared', 'lp_vacuum')
	{
		my $before = time;
		$third->run("SELECT count(*) FROM $table WHERE s = 'z'");
		my $took = time - $before;
		$longest{$table} = $took if $took > ($longest{$table} || 0);
	}
	my $behind = $sampler->run(<<SQL);
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - l.waitstart)), 0)
  FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE NOT l.granted AND a.backend_type = 'client backend'
   AND pg_blocking_pids(l.pid) && ARRAY(SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover')
SQL
	$longest_behind = $behind if $behind > $longest_behind;
	$samples++;
	if ($samples == 20)
	{
		$reader->run('COMMIT');
		$alter->answer;
		is($alter->errors, '', 'ALTER TABLE is done as soon as the others let it');
	}
	usleep(5_000);
}
note join ', ', map { sprintf '%s %.1f ms', $_, 1000 * $longest{$_} } sort keys %longest;
note sprintf('%d samples; seen waiting behind a move: %.1f ms', $samples, 1000 * $longest_behind);
cmp_ok($samples, '>', 30, 'sampled all the time');
# a process may have to wait for a processor; control says how long
my $limit = 0.1 + 10 + $longest{control};
cmp_ok($longest{$_}, '<', $limit, "$_: a reader never waited for long") foreach qw(lp_idle lp_prepared lp_vacuum);
cmp_ok($longest_behind, '<', $limit, 'no session was seen to wait for a move for longer');
is(queued_too_long($jobs_log, map { "${_}_s" } @tables), 0, 'and no attempt has stood in the queue for long');

poll_until($node, "SELECT status || ' ' || sqlstate FROM index_mover_history WHERE job = $job{$_}", 'failed 55P03',
	"the end of lock_wait: $_") foreach qw(lp_prepared lp_vacuum);
is(sql("SELECT count(*) FROM pg_stat_activity WHERE pid = $vacuum AND query LIKE '%to prevent wraparound%'"), '1',
	'an autovacuum against wraparound is never signaled');
is(sql("SELECT (SELECT message ~ 'process $vacuum \\(wait for its end\\)' FROM index_mover_history WHERE job = $job{lp_vacuum}), action "
	. "FROM index_mover_blockers('lp_vacuum_s') WHERE pid = $vacuum"), 't|wait for its end', 'nor is a user told to cancel it');
is(sql('SELECT count(*) FROM pg_prepared_xacts'), '1', 'nor a prepared transaction');
is(sql("SELECT phase FROM index_mover_progress WHERE job = $job{lp_idle}"), 'waiting for lock to swap', 'the third one goes on waiting');
$idle->run('COMMIT');
wait_for_job_end($node, $job{lp_idle});
is(status($job{lp_idle}), 'moved', 'and moves its index when the transaction has ended');
is(sql("SELECT lock_attempts <= 10 + 1.3 * extract(epoch FROM elapsed) FROM index_mover_history WHERE job = $job{lp_idle}"), 't',
	'it has not stood in the queue more often than about once a second');

sql("ROLLBACK PREPARED 'lp'");
sql("SELECT alter_move($job{lp_alter}, 'max_rate', '0')");
wait_for_job_end($node, $job{lp_alter});
is(status($job{lp_alter}), 'moved', 'the copy that has given way has gone on');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $log), qr/starting the copy of index/, 'and kept what it had');
sql('ALTER SYSTEM SET autovacuum = off');
sql('SELECT pg_reload_conf()');
sql("SELECT pg_terminate_backend($vacuum)");
all_right($node, $_, $_, no_metadata => 1, max_keys => 100, within => 5) foreach qw(lp_idle lp_alter);
# (lp_vacuum is left out: an autovacuum may come back to it)
survived_ok($node, 'lp_prepared', 'lp_prepared', "SELECT status FROM move_indexes('lp_prepared_s', 'regress_fast', method => 'copy')",
	no_metadata => 1, max_keys => 100);
verdict_ok($node, 'lp_prepared', 'lp_prepared, moved', max_keys => 100);
$_->end foreach $gate, $holder, $third, $idle, $reader, $alter, $sampler;

done_testing();
