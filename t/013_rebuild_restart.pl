# The server ends while a rebuild is on its way: in every mode of pg_ctl stop,
# by kill -9 of the postmaster, and by the crash of another session.  It ends
# soon and starts at once; nothing resumes by itself; the history tells; the
# next call removes all that the job has left, or index_mover_cleanup(), or a
# server with the library preloaded, without a request.
#
# Fault (processes): postmaster killed, at each pause point of a copy, in a cleanup, and at
#   each pause point of a rebuild (also 010, 022, 031)
# Fault (processes): smart, fast, immediate shutdown, in mid-copy, at its swap and after it; in
#   the phases of a rebuild, and at its pause points (also 010, 026)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $node = new_node('restart');
my $TARGET = 'regress_fast';

$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION wait_at(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF i = 1 THEN PERFORM pg_advisory_xact_lock_shared(i); END IF;
	RETURN i;
END $$;
CREATE TABLE t (i int, filler text);
INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g;
CREATE INDEX t_wait ON t (wait_at(i)) TABLESPACE regress_slow;
CREATE INDEX t_later ON t (i) TABLESPACE regress_slow;
COMMENT ON INDEX t_wait IS 'stays';
CREATE TABLE held (i int);
CREATE INDEX held_i ON held (i) TABLESPACE regress_slow;
SELECT oracle.remember_metadata('t');
SQL

# Phases that outlast their client: each is SQL for a session that goes away or
# is killed with the server, the phase, and whether an index entry exists then.
my %phases = (
	'building index' => { hold => 'BEGIN; SELECT pg_advisory_xact_lock(1)', entry => 1 },
	'waiting for readers before marking dead' => { hold => 'BEGIN; SELECT count(*) FROM t', entry => 1, moved => 1 },
	'waiting for writers before build' => { hold => 'BEGIN; INSERT INTO t VALUES (2000)', entry => 0 },
);

sub files_and_all
{
	my ($name) = @_;
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
	verdict_ok($node, 't', $name, max_keys => 100);
	metadata_ok($node, 't', $name, restarted => 1);
	return;
}

# What every case does: start a job that waits for no session, bring it into its
# phase, end the server with $stop, start it again and look.
#
# When sessions and workers are told to end one after the other, what the worker
# waits for may go first, and the worker get to the end of its job.  Where that
# must not be (stays => 1), a prepared transaction holds it in its phase.
sub one_case
{
	my ($name, $phase, $stop, %options) = @_;
	my $p = $phases{$phase};
	$name = "$name, $phase";

	my $session = $node->background_psql('postgres', on_error_die => 1, timeout => 180);
	if ($options{all_swapped})
	{
		# only the other index is on its way, so that nothing is left to move
		$node->safe_psql('postgres', "SELECT * FROM move_indexes('t_later', '$TARGET', method => 'rebuild')");
	}
	$session->query_safe($p->{hold} . ($options{stays} ? "; PREPARE TRANSACTION 'stays'" : ''));
	my $relation = $options{all_swapped} ? 't_wait' : 't';
	my $job = $node->safe_psql('postgres',
		"SELECT max(job) FROM move_indexes('$relation', '$TARGET', method => 'rebuild', wait => false)");
	# t_later comes first: it waits where t_wait would, or is built and moved before
	my $index = $relation eq 't' && $phase ne 'building index' ? 't_later' : 't_wait';
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE name = '$index' AND phase LIKE '$phase%'", '1', "$name");
	my $worker = worker_pid($node);
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname ~ '_cc(new|old)'"),
		$p->{entry}, "$name: the worker is in that phase");

	my $postmaster = $node->{_pid};
	my $start = time;
	$stop->($session, $worker);
	soon_ok(time - $start, 10, "$name: the server ends soon");
	eval { $session->quit };
	$start = time;
	poll_process_is_gone($worker);
	soon_ok(time - $start, 1, "$name: and so does the worker");
	start_again($node, $postmaster) unless $node->{_pid};
	$node->safe_psql('postgres', "ROLLBACK PREPARED 'stays'") if $options{stays};

	# nothing goes on by itself
	is($node->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover' AND query LIKE 'REINDEX%'"),
		'0', "$name: no job resumes by itself");
	my $history = $node->safe_psql('postgres',
		"SELECT string_agg(DISTINCT status, ' ') FROM index_mover_history WHERE job = $job AND status <> 'moved'");
	like($history, $options{history}, "$name: history");

	if ($options{cleanup})
	{
		my $list = $node->safe_psql('postgres', 'SELECT kind, action FROM index_mover_cleanup(dry_run => true)');
		like($list, $p->{entry} ? qr/^invalid index\|remove$/ : qr/^$/, "$name: what a cleanup would do");
		$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
		files_and_all("$name, after index_mover_cleanup()");
	}
	elsif ($options{janitor})
	{
		files_and_all("$name, preloaded");
	}
	if ($options{all_swapped})
	{
		like($node->safe_psql('postgres', 'SELECT * FROM oracle.leftovers_now()'),
			qr/t_wait_ccold/, "$name: a leftover, and nothing to move");
	}
	my $call = $options{next} || "SELECT DISTINCT status FROM move_indexes('t', '$TARGET', method => 'rebuild')";
	$call =~ s/%JOB%/$job/;
	$call =~ s/%TARGET%/$TARGET/;
	my $rows = $node->safe_psql('postgres',
		"SELECT * FROM ($call) AS s(status) WHERE status NOT IN ('queued', 'moved', 'skipped', 'nothing left')");
	is($rows, '', "$name: the next call succeeds");
	is($node->safe_psql('postgres',
			"SELECT count(*) FROM pg_indexes WHERE tablename = 't' AND tablespace = '$TARGET'"), '2',
		"$name: and both indexes are where they belong");
	files_and_all("$name, after the next call");
	is($node->safe_psql('postgres', "SELECT count(*) FROM index_mover_history WHERE job > $job AND status <> 'moved'"), '0',
		"$name: and nothing else is on record");
	$TARGET = other_place($TARGET);
	return;
}

my $immediate = sub { $node->stop('immediate') };
my $fast = sub { $node->stop('fast') };
my $smart = sub {
	my ($session) = @_;
	# a smart shutdown waits for its clients, but not for us
	my $pid = start_call($node, 'unused', 'SELECT 1');
	finish_call($pid);
	system_log('pg_ctl', '-D', $node->data_dir, '-m', 'smart', '-W', 'stop');
	$session->quit;
	my $start = time;
	sleep(0.02) while -f $node->data_dir . '/postmaster.pid' && time - $start < $IndexMover::Test::TIMEOUT;
	$node->_update_pid(0);
};
my $kill_postmaster = sub { $node->kill9 };
my $crash = sub {
	# another session dies: the postmaster restarts everything
	my $pid = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	my $log = -s $node->logfile;
	kill 'KILL', $pid;
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
	wait_until_up($node);
};

one_case('immediate', 'building index', $immediate, history => qr/^interrupted$/, cleanup => 1);
one_case('fast', 'waiting for writers before build', $fast, history => qr/^canceled$/, cleanup => 1, stays => 1);
one_case('smart', 'waiting for readers before marking dead', $smart, history => qr/^(canceled)?$/);
# a worker that notices it in time still says so itself
one_case('postmaster killed', 'building index', $kill_postmaster, history => qr/^(canceled|interrupted)$/, stays => 1);
# nothing is left to move, but something to remove
one_case('immediate, all swapped', 'waiting for readers before marking dead', $immediate, history => qr/interrupted/, all_swapped => 1);
one_case('crash of another process', 'waiting for readers before marking dead', $crash, history => qr/interrupted/, cleanup => 1);
if (faults('the same ends in other phases'))
{
	one_case('immediate', 'waiting for readers before marking dead', $immediate, history => qr/interrupted/);
	one_case('fast', 'building index', $fast, history => qr/^canceled$/, cleanup => 1, stays => 1);
	one_case('postmaster killed', 'waiting for writers before build', $kill_postmaster, history => qr/^(canceled|interrupted)$/,
		stays => 1);
	one_case('fast, all swapped, named itself', 'waiting for readers before marking dead', $fast, history => qr/^$/, all_swapped => 1,
		stays => 1,
		next => "SELECT status FROM move_indexes('t_wait', '%TARGET%', wait => false)");
	one_case('immediate, all swapped, resume_move()', 'waiting for readers before marking dead', $immediate, history => qr/interrupted/,
		all_swapped => 1,
		next => "SELECT coalesce(resume_move(%JOB%)::text, 'nothing left')");
}

# ---- a prepared transaction across a restart ----------------------------------
$node->safe_psql('postgres', "BEGIN; INSERT INTO held VALUES (1); PREPARE TRANSACTION 'still here'");
my $job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('held_i', 'regress_fast', method => 'rebuild', wait => false)");
wait_for_phase($node, 'waiting for writers%');
is($node->safe_psql('postgres', 'SELECT blocked_by FROM index_mover_progress'), '{0}',
	'a move that waits for a prepared transaction says so');
my $start = time;
$node->stop('fast');
soon_ok(time - $start, 10, 'the server ends soon');
$node->start;
leftovers_ok($node, 'after the restart');
my ($rc, $o, $e) = $node->psql('postgres',
	"SELECT status, sqlstate, detail FROM move_indexes('held_i', 'regress_fast', method => 'rebuild', settings => "
		. "'{\"lock_wait\": \"3s\", \"progress_interval\": \"200ms\"}')");
like($o, joined(
	qr/^failed\|55P03\|gave up waiting for transactions that use the table: Waited [\d.]+ seconds for prepared /,
	qr/transaction "still here" \(COMMIT PREPARED 'still here'; or ROLLBACK PREPARED 'still here';\)\.$/), 'its name is in the row');
like($e, qr/NOTICE:  index "held_i": waiting for writers before build.*, waits for a prepared transaction$/m,
	'and in the notices');
$job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('held_i', 'regress_fast', method => 'rebuild', wait => false)");
wait_for_phase($node, 'waiting for writers%');
$node->safe_psql('postgres', "COMMIT PREPARED 'still here'");
$node->safe_psql('postgres', "CALL wait_for_move($job)");
is(tablespace_of_index($node, 'held'), 'held_i: regress_fast', 'it moves as soon as that one ends');
verdict_ok($node, 'held', 'with the row of the prepared transaction');

# ---- preloaded: the janitor --------------------------------------------------
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover'");
$node->restart;
one_case('janitor', 'building index', $immediate, history => qr/^interrupted$/, janitor => 1);
one_case('janitor', 'waiting for readers before marking dead', $kill_postmaster, history => qr/^(canceled|interrupted)?$/, janitor => 1);

$node->stop;
done_testing();
