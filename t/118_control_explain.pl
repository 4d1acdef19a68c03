# index_mover_explain(): of a job that has not come to its end what each relation waits
# for, and what can be done; each command is run, and does what is said.
use strict;
use warnings;

use FindBin;
use IPC::Run ();
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('explain',
	conf => "index_mover.max_workers = 1\nindex_mover.progress_interval = 0\nmax_prepared_transactions = 2");
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub as_other { return $node->safe_psql('postgres', $_[0], extra_params => [ '-U', 'regress_other' ]); }

sql(<<'SQL');
CREATE ROLE regress_other LOGIN;
CREATE TABLE a (i int);
CREATE TABLE b (i int);
INSERT INTO a SELECT generate_series(1, 200000);
CREATE INDEX a_i ON a (i) TABLESPACE regress_slow;
CREATE INDEX b_i ON b (i) TABLESPACE regress_slow;
SQL

# Begin a job; returns its number.
sub begin
{
	my ($relation, $settings) = @_;
	my $to = sql("SELECT CASE spcname WHEN 'regress_slow' THEN 'regress_fast' ELSE 'regress_slow' END FROM pg_class"
		  . " JOIN pg_tablespace t ON t.oid = reltablespace WHERE relname = '${relation}_i'");
	return sql("SELECT DISTINCT job FROM move_indexes('$relation', '$to', method => 'copy', wait => false, settings => '{$settings}')");
}

# What is said of a job, a line for each choice.
sub explained { my ($job) = @_; return sql("SELECT relation, waits_for, choice, command FROM index_mover_explain($job)"); }

# Wait until as many lines are so.
sub rows_until
{
	my ($job, $condition, $rows, $what) = @_;
	poll_until($node, "SELECT count(*) FROM index_mover_explain($job) WHERE $condition", $rows, $what);
	return;
}
sub waits_until
{
	my ($job, $waits_for, $what) = @_;
	poll_until($node, "SELECT DISTINCT waits_for FROM index_mover_explain($job)", $waits_for, $what);
	return;
}

# Run a command of those lines, that of the choice that begins with these words.
sub choose
{
	my ($job, $choice) = @_;
	my $command = sql("SELECT command FROM index_mover_explain($job) WHERE choice ~ '^$choice' LIMIT 1");
	isnt($command, '', "$choice: a command");
	return sql($command);
}
sub ends_as
{
	my ($job, $status, $what) = @_;
	poll_until($node, "SELECT status FROM index_mover_jobs WHERE job = $job", $status, $what);
	is(explained($job), '', "$what: nothing to explain") if $status eq 'moved';
}

# ---- a lock ---------------------------------------------------------------------------
my $holder = IndexMover::Session->new($node);
my $pid = $holder->pid;
$holder->run("SET application_name = 'app'; BEGIN; SELECT FROM a LIMIT 1");
my $job = begin('a', '');
my $waits = qr/waiting for lock to swap: process $pid/;
rows_until($job, "waits_for ~ 'waiting for lock to swap: process $pid'", 3, 'waits for a lock');
my $said = explained($job);
like($said,
	qr/^a_i\|$waits\|end session $pid \([^)]*app\): the move goes on at once\|end its transaction .*pg_terminate_backend\($pid\)/m,
	'a lock: who holds it, and the command');
like($said, qr/^a_i\|$waits\|wait: it goes on automatically when these have ended\|$/m, 'a lock: or one waits');
like($said, qr/^a_i\|$waits\|end the job: [^|]*\|SELECT index_mover_call\.cancel_move\($job\);$/m, 'a lock: or ends the job');
is(sql("SELECT bool_and(since <= now() AND to_tablespace = 'regress_fast') FROM index_mover_explain($job)"), 't',
	'since when, and whereto');
is(as_other("SELECT count(*) FROM index_mover_explain($job)"), '0', 'another role sees nothing of it');
$holder->run('COMMIT');
ends_as($job, 'moved', 'the lock is free');

# a prepared transaction
sql("BEGIN; SELECT FROM a LIMIT 1; PREPARE TRANSACTION 'it''s'");
sql("BEGIN; SELECT FROM b LIMIT 1; PREPARE TRANSACTION 'other'");
$job = begin('a', '');
rows_until($job, "choice ~ '^end prepared transaction'", 1, 'a prepared transaction is named');
like(explained($job),
	qr/swap: a prepared transaction\|end prepared transaction it's: the move goes on at once\|COMMIT PREPARED 'it''s'; or ROLLBACK /,
	'a prepared transaction: the two commands');
unlike(explained($job), qr/'other'/, 'and not those of another one');
sql("ROLLBACK PREPARED 'it''s'");
sql("ROLLBACK PREPARED 'other'");
ends_as($job, 'moved', 'it is gone');

# ---- its turn, a limit, a pause, a time --------------------------------------------------
$job = begin('a', '"max_rate": "64kB"');
my $next = begin('b', '');
rows_until($job, "waits_for ~ 'max_rate' AND command ~ 'alter_move'", 1, 'max_rate');
sql("SELECT pause_move($job)");
waits_until($job, 'the end of a pause of the job', 'a pause');
unlike(explained($job), qr/alter_move/, 'a pause: no choice that changes nothing');
choose($job, 'go on');
rows_until($job, "command ~ 'alter_move'", 1, 'and it rests again');
choose($job, 'copy without a limit');
ends_as($job, 'moved', 'without a limit');
ends_as($next, 'moved', 'the other');

$job = begin('a', '"swap_after": "infinity"');
waits_until($job, 'swap_after: infinity', 'a time');
choose($job, 'swap now');
ends_as($job, 'moved', 'swapped now');

# ---- a rest ---------------------------------------------------------------------------
# for a slot that is too far behind, which it was not at first
$job = begin('a', '"max_rate": "64kB", "max_replica_lag": "64kB"');
rows_until($job, "waits_for ~ 'max_rate' AND command ~ 'alter_move'", 1, 'it rests for max_rate');
sql("SELECT pg_sleep(2)");    # since when is told in whole seconds
sql("SELECT pg_create_physical_replication_slot('regress_stuck', true)");
sql("SELECT pg_switch_wal(); SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1024))) FROM generate_series(1, 200)");
$waits = 'replication slot "regress_stuck" is \d+ MB behind';
rows_until($job, "waits_for ~ '$waits\$'", 4, 'a slot that is behind');
$said = explained($job);
like($said, qr/\|drop the slot: [^|]*\|SELECT pg_catalog\.pg_drop_replication_slot\('regress_stuck'\);\n/,
	'a slot that is behind: it can be dropped');
like($said, qr/\|wait: it goes on automatically when that is over\|\n/, 'or one waits for it');
is(sql("SELECT bool_and(e.since > p.started_at) FROM index_mover_explain($job) e, index_mover_progress p WHERE p.job = $job"), 't',
	'since when it rests, not since when it copies');
choose($job, 'do not wait for it');
rows_until($job, "waits_for ~ 'max_rate'", 3, 'it does not wait for the slot');
sql("SELECT alter_move($job, 'max_replica_lag', '64kB')");
rows_until($job, "waits_for ~ '$waits\$'", 4, 'it waits again');
choose($job, 'drop the slot');
sql("SELECT alter_move($job, 'max_rate', '0')");
ends_as($job, 'moved', 'the slot is gone');

# A receiver that is named like a slot is not that slot.
{
	my $directory = PostgreSQL::Test::Utils::tempdir();
	my $output = '';
	sql("SELECT pg_create_physical_replication_slot('regress_unread')");
	my $receiver = IPC::Run::start(
		[ 'pg_receivewal', '--no-loop', '-D', $directory,
			'-d', $node->connstr('postgres') . q{ application_name='replication slot "regress_unread"'} ],
		'<', \'', '>&', \$output);
	poll_until($node, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", 1, 'a receiver: it streams');
	$receiver->signal('STOP');
	sql("SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1024))) FROM generate_series(1, 20000)");
	$job = begin('a', '"max_replica_lag": "64kB"');
	rows_until($job, "waits_for ~ 'standby \"replication slot \"regress_unread\"\" is ' AND choice ~ '^do not wait'", 1,
		'a receiver: the copy rests for it');
	is(sql("SELECT count(*) FROM index_mover_explain($job) WHERE command ~ 'drop_replication_slot'"), 0,
		'a receiver: no slot of that name is to be dropped');
	$receiver->signal('KILL');
	$receiver->finish;
	ends_as($job, 'moved', 'the receiver is gone');
	sql("SELECT pg_drop_replication_slot('regress_unread')");
}

# of a job of several relations, the ones that wait for their turn
sql('CREATE INDEX a_k ON a (i) TABLESPACE regress_slow; ALTER INDEX a_i SET TABLESPACE regress_slow');
$holder->run('BEGIN; SELECT FROM a LIMIT 1');
$job = begin('a', '"max_rate": "64kB"');
poll_until($node, "SELECT count(DISTINCT relation) FROM index_mover_explain($job)", '2', 'two relations');
rows_until($job, "waits_for ~ '^its turn; the job moves a_[ik]\$'", 2, 'one waits for its turn');
rows_until($job, "waits_for ~ '^its turn' AND command ~ 'cancel_move'", 1, 'and its job can be ended');

# ---- ended ------------------------------------------------------------------------------
choose($job, 'end the job');
ends_as($job, 'canceled', 'canceled');
$said = explained($job);
like($said, qr/^a_i\|canceled: [^|]+\|move what is left, in another job\|SELECT index_mover_call\.resume_move\($job\);$/m,
	'canceled: how to go on');
$holder->run('COMMIT');
my $resumed = choose($job, 'move what is left');
sql("SELECT alter_move($resumed, 'max_rate', '0')");
ends_as($resumed, 'moved', 'resumed');
sql("SELECT set_config('index_mover.lock_wait', '100ms', false)");
$holder->run('BEGIN; SELECT FROM b');
$job = begin('b', '"lock_wait": "100ms", "on_blocker": "fail"');
ends_as($job, 'failed', 'failed');
like(explained($job),
	qr/^b_i\|failed: could not get the exclusive lock on index "b_i" within 0\.1 seconds[^|]*\|move what is left/m,
	'failed: why');
foreach my $case ([ 'regress_fast', q{'pg_tblspc/' || t.oid} ], [ 'pg_default', q{'base/' || d.oid} ])
{
	my ($tablespace, $path) = @$case;
	sql("UPDATE index_mover.move_log SET message = format('could not write file \"%s/3/4\"', $path) FROM pg_tablespace t, pg_database d "
		. "WHERE job = $job AND t.spcname = '$tablespace' AND d.datname = current_database()");
	like(explained($job), qr{^b_i\|failed: could not write file "tablespace "$tablespace": 3/4"\|}m, "a path: the name of $tablespace");
}
choose($job, 'leave it where it is');
is(sql("SELECT count(*) FROM index_mover_check() WHERE object = 'job $job'"), '0', 'and it is reported no more');
$holder->run('COMMIT');

# ---- a table with TOAST, and a rebuild, whose old index gets another name ---------------------
sql("CREATE TABLE long (i int, t text) TABLESPACE regress_slow; ALTER TABLE long ALTER t SET STORAGE EXTERNAL;
	INSERT INTO long SELECT g, repeat(md5(g::text), 200) FROM generate_series(1, 300) g");
$job = sql(q(SELECT DISTINCT job FROM move_table('long', 'regress_fast', wait => false, settings => '{"max_rate": "64kB"}')));
rows_until($job, "relation = 'long' AND waits_for ~ 'max_rate' AND command ~ 'alter_move'", 1, 'a table that rests');
rows_until($job, "relation <> 'long'", 0, 'its TOAST table goes with it');
sql("SELECT alter_move($job, 'max_rate', '0')");
ends_as($job, 'moved', 'the table');
$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM b');
$job = sql(q(SELECT DISTINCT job FROM move_indexes('a_k', 'regress_slow', 'rebuild', wait => false)));
rows_until($job, "waits_for ~ '^waiting for .*: process $pid' AND choice ~ '^end session $pid '", 1,
	'a rebuild that waits for a snapshot');
rows_until($job, "choice ~ '^end the job'", 1, 'which can be ended');
$holder->run('COMMIT');
ends_as($job, 'moved', 'the rebuild');
$holder->end;
is(sql('SELECT count(*) FROM index_mover_explain(NULL)'), '0', 'no job');
my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT * FROM index_mover_explain(999999)");
like($err, qr/ERROR:  42704/, 'none of that number');
$node->stop;
done_testing();
