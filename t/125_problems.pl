# "All is well" means the same in three places: no row of index_mover_check(), no alert of
# deploy/alerts.yml, and 0 for the query of docs/guide.md.  Each state of a job that is not well is
# made, looked at in all three, and mended; and some that are well although a job has ended without
# its work.
#
# Fault (processes): jobs that a restart, a kill or an error ends, that are paused, or rest for a slot: an alarm, until they
#   are resumed, acknowledged, or have nothing left to do
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('problems');
my $sql = sub { return $node->safe_psql('postgres', @_); };
$sql->(<<'SQL');
CREATE ROLE monitor LOGIN;
GRANT pg_monitor TO monitor;
CREATE TABLE t (i int, j int, pad text) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT g, g, repeat('x', 100) FROM generate_series(1, 30000) g;
CREATE INDEX t_i ON t (i) TABLESPACE regress_slow;
CREATE INDEX t_j ON t (j) TABLESPACE regress_slow;
SQL

# What the three places say: the kinds of the rows, those for which there is an alert, and the count.  "Longer than
# ten minutes" is put as "at all".
my $top = "$FindBin::RealBin/..";
my ($exported) = slurp_file("$top/deploy/sql_exporter.collector.yml")
  =~ /^  - query_name: problem\n    query: \|\n((?:      .*\n)+)/m or die 'no query for problems';
my ($counted) = slurp_file("$top/docs/guide.md")
  =~ /^(SELECT count\(\*\) AS value FROM index_mover_call\.index_mover_check);$/m or die 'no query in the guide';
my ($scheduled) = slurp_file("$top/docs/guide.md") =~ /^SELECT cron\.schedule\('check moves', '[^']*', \$\$(.*?)\$\$\);$/ms
  or die 'no schedule in the guide';
my ($blocked) = slurp_file("$top/deploy/sql_exporter.collector.yml")
  =~ /^  - query_name: blocked\n    query: \|\n((?:      .*\n)+)/m or die 'no query for waits';
like(slurp_file("$top/deploy/alerts.yml"), qr/^ +expr: index_mover_blocked_seconds > 600$/m, 'an alert for waits');
my @alerts = slurp_file("$top/deploy/alerts.yml") =~ /(?<!absent\()index_mover_problem_present(\{.*?\})/g;
like(slurp_file("$top/deploy/alerts.yml"), qr/^ +expr: absent\(index_mover_problem_present\{severity="none"\}\)$/m,
	'an alert for a check that gives no answer');
cmp_ok(scalar @alerts, '>=', 5, 'alerts for rows of index_mover_check()');
foreach ($exported, $counted) { s/index_mover_call\.index_mover_check/index_mover_check('0 s')/ or die $_; }
$scheduled =~ s/index_mover_check\(\)/index_mover_check('0 s')/ or die $scheduled;

sub monitor { my ($query) = @_; return $node->safe_psql('postgres', $query, extra_params => [ '-U', 'monitor' ]); }

# Does one of the alerts fire for a row of this severity and kind?
sub is_alert
{
	my ($severity, $kind) = @_;
	my %label = (severity => $severity, kind => $kind);
	foreach my $selector (@alerts)
	{
		my $matches = 1;
		while ($selector =~ /(\w+)(=~|!~|=)"(.*?)"/g)
		{
			my ($name, $operator, $value) = ($1, $2, $3);
			my $equal = $operator eq '=' ? $label{$name} eq $value : $label{$name} =~ /\A(?:$value)\z/;
			$matches &&= $operator eq '!~' ? !$equal : $equal;
		}
		return 1 if $matches;
	}
	return 0;
}

# The three say these kinds, in order, and no others.
sub say_ok
{
	my ($expected, $what) = @_;
	my $kinds = monitor(q{SELECT string_agg(kind, ', ' ORDER BY kind) FROM index_mover_check('0 s')});
	is($kinds, $expected, "$what: index_mover_check()");
	my @fired = grep { is_alert((split /\|/)[0, 1]) } split /\n/, monitor($exported);
	my @kinds = map { (split /\|/)[1] } @fired;
	push @kinds, 'waiting job' if monitor($blocked) ne '';
	is(join(', ', sort @kinds), $expected, "$what: alerts");
	is(monitor($counted), scalar(my @all = split /, /, $expected), "$what: the query of the guide");
	my ($rc) = $node->psql('postgres', $scheduled, extra_params => [ '-U', 'monitor' ]);
	is($rc == 0, $expected eq '', "$what: the schedule of the guide fails if there is a problem");
	return;
}

# Begin a job that copies for a minute and more; returns its number.
sub begin_slow
{
	my (%settings) = @_;
	my $job = begin_job($node, 't', 'regress_fast', max_rate => '8kB', max_workers => 1, %settings);
	poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND throttled_by = 'max_rate'", 1, 'the copy');
	return $job;
}

sub check_of { my ($job) = @_; return monitor("SELECT detail, command FROM index_mover_check('0 s') WHERE object = 'job $job'"); }

sub start_after
{
	my ($way) = @_;
	$node->stop($way);
	$node->start;
	return;
}

say_ok('', 'before');
is(monitor($exported), 'none|check|index_mover|was made|0', 'a check that finds nothing is not the same as no check');
my $job = begin_slow();
say_ok('', 'a job that runs, and rests for max_rate');

# ---------------------------------------------------------------------------
# Paused
# ---------------------------------------------------------------------------
$sql->("SELECT pause_move($job)");
say_ok('paused job', 'a paused job');
like(check_of($job), qr/^it has been paused since 20\S+ \S+\|SELECT index_mover_call\.resume_move\($job\);$/,
	'since when, and how it goes on');
is(monitor('SELECT count(*) FROM index_mover_check()'), 0, 'not before max_wait');
$sql->("SELECT resume_move($job)");
say_ok('', 'resumed');

# ---------------------------------------------------------------------------
# Stopped by a restart; resumed
# ---------------------------------------------------------------------------
start_after('fast');
is($sql->("SELECT string_agg(DISTINCT status || coalesce(' ' || sqlstate, ''), ' ') FROM index_mover_history WHERE job = $job"),
	'canceled 57P01', 'a restart ends a job');
say_ok('ended job', 'a job that a restart has ended');
like(check_of($job), joined(
	qr/^its worker, or the server, was stopped: t_[ij] is not in tablespace "regress_fast", nor are 1 others in their places; /,
	qr/resume the job, or have it reported no more: SELECT index_mover_call\.cancel_move\($job\);/,
	qr/\|SELECT index_mover_call\.resume_move\($job\);$/), 'what is left, and what to do');
my $rest = $sql->("SELECT resume_move($job, '{\"max_rate\": \"8kB\"}')");
say_ok('', 'whose rest runs');
$sql->("SELECT cancel_move($rest)");
wait_for_job_end($node, $rest);
say_ok('', 'and was canceled by a user');

# ---------------------------------------------------------------------------
# Interrupted; acknowledged
# ---------------------------------------------------------------------------
$job = begin_slow();
start_after('immediate');
is($sql->("SELECT status FROM index_mover_jobs WHERE job = $job"), 'interrupted', 'an immediate shutdown interrupts a job');
poll_until($node, "SELECT count(*) FROM index_mover_check() WHERE kind = 'unfinished copy'", 0, 'the cleanup of what it has left')
  if $sql->('SHOW shared_preload_libraries') =~ /index_mover/;
$sql->('SELECT * FROM index_mover_cleanup()');
say_ok('ended job', 'an interrupted job');
like(check_of($job), qr/^interrupted: t_[ij] is not in tablespace/, 'is said to be one');
$sql->("BEGIN READ ONLY; SELECT cancel_move($job)");
say_ok('ended job', 'a read-only transaction acknowledges nothing');
$sql->("UPDATE index_mover.job_log SET submitted_at = submitted_at - interval '8 days' WHERE job = $job");
say_ok('ended job', 'an interrupted job that was submitted long ago');
my $explain = "SELECT count(*) > 0, count(command) > 0 FROM index_mover_explain($job)";
is($sql->($explain), 't|t', 'index_mover_explain() prints commands for it');
is(monitor($explain), 't|f', 'but not to a role that may not steer it');
is($sql->("SELECT cancel_move($job)"), 0, 'cancel_move() of an ended job returns 0');
say_ok('', 'acknowledged');
is($sql->("SELECT status FROM index_mover_jobs WHERE job = $job"), 'interrupted', 'and its status stays');

# ---------------------------------------------------------------------------
# Failed; in place by another way, and dropped
# ---------------------------------------------------------------------------
my $holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT count(*) FROM t');
my $fails = q('{"on_blocker": "fail", "lock_wait": "100ms", "lock_timeout": "10ms"}');
my $failed = $sql->("SELECT max(job) FROM move_indexes('t_i', 'regress_fast', 'copy', settings => $fails)");
$sql->("SELECT move_indexes('t_j', 'regress_fast', 'copy', rehearse => true, settings => $fails)");
is($sql->("SELECT status FROM index_mover_jobs WHERE job = $failed"), 'failed', 'a job fails');
say_ok('ended job', 'a failed job, and a rehearsal');
my $again = $sql->("SELECT max(job) FROM move_indexes('t_i', 'regress_fast', 'copy', settings => $fails)");
say_ok('ended job', 'which fails again: one row');
like(check_of($again), qr/^failed: t_i /, 'of the last job');
$holder->run('COMMIT');
$sql->('ALTER INDEX t_i SET TABLESPACE regress_fast');
say_ok('', 'an index that another tool has moved there');
$holder->run('BEGIN; SELECT count(*) FROM t');
$sql->("SELECT move_indexes('t_j', 'regress_fast', 'copy', settings => $fails)");
say_ok('ended job', 'a failed job');
$holder->run('COMMIT');
$sql->('REINDEX INDEX CONCURRENTLY t_j');
say_ok('ended job', 'a failed job, whose index is another of its name by now');
$holder->end;
$sql->('DROP INDEX t_j');
say_ok('', 'of an index that is gone');
$sql->(q{UPDATE index_mover.job_log SET finished_at = finished_at - interval '8 days', submitted_at = submitted_at - interval '8 days'});

# ---------------------------------------------------------------------------
# Waiting for a session; whom it waits for may be unknown between two looks
# ---------------------------------------------------------------------------
$sql->('CREATE TABLE waited_for (i int PRIMARY KEY)');
$holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT count(*) FROM waited_for');
$job = begin_job($node, 'waited_for', 'regress_fast');
poll_until($node, 'SELECT count(*) FROM index_mover_progress WHERE blocked_since IS NOT NULL', 1, 'the wait');
say_ok('waiting job', 'a job that waits for a session');
$holder->run('COMMIT');
$holder->end;
wait_for_job_end($node, $job);
say_ok('', 'the session has ended its transaction');

# ---------------------------------------------------------------------------
# Resting for a slot; waiting for its own time
# ---------------------------------------------------------------------------
$sql->("SELECT pg_create_physical_replication_slot('behind', true)");
$sql->("SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000))) FROM generate_series(1, 5)");
$job = begin_job($node, 't', 'regress_slow', max_replica_lag => '1MB');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND throttled_by LIKE '%behind%'", 1, 'the rest');
say_ok('resting job', 'a job that rests for a slot');
like(check_of($job), joined(qr/^t_i has rested since 20\S+ \S+: .*slot "behind" is \d+ MB behind/,
		qr/\|SELECT \* FROM index_mover_call\.index_mover_blockers;$/), 'for which');
is(monitor('SELECT count(*) FROM index_mover_check()'), 0, 'not before max_wait');
$sql->("SELECT pg_drop_replication_slot('behind')");
wait_for_job_end($node, $job);
say_ok('', 'the slot is gone');
$job = begin_job($node, 't', 'regress_fast', swap_after => 'infinity');
poll_until($node, 'SELECT phase FROM index_mover_progress', 'waiting for time to swap', 'the wait for its time');
say_ok('', 'a job that waits for its own time');
$sql->("SELECT cancel_move($job)");
wait_for_job_end($node, $job);

# ---------------------------------------------------------------------------
# A policy that can do nothing, and one that fails
# ---------------------------------------------------------------------------
$sql->(<<'SQL');
CREATE ROLE regress_poor;
CREATE TABLE aged (d date) PARTITION BY RANGE (d);
CREATE TABLE aged_1 PARTITION OF aged FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
ALTER TABLE aged OWNER TO regress_poor;
ALTER TABLE aged_1 OWNER TO regress_poor;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, owner) VALUES ('poor', 'aged', 'regress_slow', '1 day', 'regress_poor');
SELECT count(*) FROM run_tier_policies('poor');
SQL
say_ok('hindered policy', 'a policy whose owner may not create anything in the target');
$sql->('DELETE FROM tier_policy');
$sql->("INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('wrong', 'aged', 'no_such_place', '1 day')");
$node->psql('postgres', "SELECT * FROM run_tier_policies('wrong')");
say_ok('failing policy', 'a policy that fails');
$sql->('DELETE FROM tier_policy');
$sql->("INSERT INTO tier_policy (name, relation, to_tablespace, older_than, settings)
	VALUES ('once', 'aged', 'regress_slow', '1 day', $fails)");
$holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT count(*) FROM aged_1');
my $once = $sql->("SELECT max(job) FROM run_tier_policies('once', wait => true)");
$holder->end;
say_ok('ended job, failing policy', 'a policy without every, whose job has failed');
$sql->("SELECT cancel_move($once)");
say_ok('', 'whose job was acknowledged');
is($sql->('SELECT result FROM tier_policy_status'), 'failed', 'the status of the policy stays');
$sql->('DELETE FROM tier_policy');

# ---------------------------------------------------------------------------
# A policy that waits for another role's job, which waits for its own time
# ---------------------------------------------------------------------------
$job = $sql->(q(SELECT job FROM move_table('aged_1', 'regress_fast', wait => false, settings => '{"swap_after": "infinity"}') LIMIT 1));
$sql->(<<'SQL');
GRANT CREATE ON TABLESPACE regress_slow TO regress_poor;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, owner)
	VALUES ('waits', 'aged', 'regress_slow', '1 day', '0', 'regress_poor');
SELECT count(*) FROM run_tier_policies('waits');
SQL
say_ok('waiting policy', 'a policy that waits for a job');
my $why = "public.aged_1: its rows end at 2020-02-01; but job $job is at work on its table";
is($sql->('SELECT result, message FROM tier_policy_status'), "waits|$why", 'the status says for which');
my $waits = q{SELECT detail FROM index_mover_check('0 s') WHERE object = 'waits'};
like(my $first = monitor($waits), qr/^since (20\S+ \S+): \Q$why\E$/, 'and the check, since when');
$sql->(q{UPDATE index_mover.policy_run SET waits_since = waits_since - interval '1 hour'; SELECT count(*) FROM run_tier_policies('waits')});
isnt(monitor($waits), $first, 'which another run does not change');
is(monitor('SELECT kind FROM index_mover_check()'), 'waiting policy', 'and is longer than max_wait now');
# one that has failed twice, and then waits, is neither well nor new
my $from = -s $node->logfile;
$sql->(<<'SQL');
SET client_min_messages = error;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay) VALUES ('fails', 'aged', 'no_such_place', '1 day', '0');
SELECT count(*) FROM run_tier_policies('fails');
SELECT count(*) FROM run_tier_policies('fails');
UPDATE tier_policy SET to_tablespace = 'regress_slow' WHERE name = 'fails';
SELECT count(*) FROM run_tier_policies('fails');
SQL
is($sql->("SELECT result FROM tier_policy_status WHERE policy = 'fails'"), 'waits', 'a policy that has failed waits');
is($sql->("SELECT count(*) FROM tier_plan('fails') WHERE reason ~ 'failed'"), 0, 'a policy that waits is not said to have failed');
unlike(slurp_file($node->logfile, $from), qr/"fails" is well again/, 'a policy that waits is not said to be well again');
$sql->(<<'SQL');
SET client_min_messages = error;
UPDATE tier_policy SET to_tablespace = 'no_such_place' WHERE name = 'fails';
SELECT count(*) FROM run_tier_policies('fails');
SQL
like($sql->("SELECT reason FROM tier_plan('fails')"), qr/^it has failed 3 times in a row: /, 'a wait does not end the series of failures');
$sql->(<<'SQL');
UPDATE tier_policy SET to_tablespace = 'regress_slow' WHERE name = 'fails';
SELECT count(*) FROM run_tier_policies('fails');
UPDATE tier_policy SET older_than = '1000 years' WHERE name = 'fails';
SELECT count(*) FROM run_tier_policies('fails');
DELETE FROM tier_policy WHERE name = 'fails';
SQL
is(scalar(() = slurp_file($node->logfile, $from) =~ /"fails" is well again/g), 1, 'a run after the wait may be');
$sql->("SELECT cancel_move($job)");
wait_for_job_end($node, $job);
say_ok('', 'the job has ended');
$sql->('DELETE FROM tier_policy');

# ---------------------------------------------------------------------------
# A policy whose own job is at work, when it is run again
# ---------------------------------------------------------------------------
$sql->("INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, settings)
	VALUES ('own', 'aged', 'regress_slow', '1 day', '0', '{\"swap_after\": \"infinity\"}')");
my $own = $sql->("SELECT max(job) FROM run_tier_policies('own')");
my $at_work = "SELECT max(job) FROM index_mover_jobs WHERE policy = 'own' AND status = 'running'";
my $last_run = 'SELECT job, result, last_run FROM tier_policy_status';
poll_until($node, $at_work, $own, 'a job of a policy');
$sql->("SELECT count(*) FROM run_tier_policies('own')");
like($sql->($last_run), qr/^$own\|running\|/, 'another run of the policy leaves it on record');
say_ok('', 'a policy whose job is at work');
$sql->("SELECT cancel_move($own)");
wait_for_job_end($node, $own);
my $caller = IndexMover::Session->new($node);
$caller->send("SELECT count(*) FROM run_tier_policies('own', wait => true)");
poll_until($node, "SELECT ($at_work) > $own", 't', 'a job of a policy, which a call waits for');
$own = $sql->($at_work);
$sql->("SELECT count(*) FROM run_tier_policies('own')");
like(my $record = $sql->($last_run), qr/^$own\|running\|/, 'another run puts it on record');
say_ok('', 'a policy whose job is at work, and waited for');
$sql->("SELECT cancel_move($own)");
$caller->answer;
$caller->end;
is($sql->($last_run), $record =~ s/running/canceled/r, 'the call that waited for it does not set the last run back');
$sql->('DELETE FROM tier_policy');

# ---------------------------------------------------------------------------
# A job whose role has lost the table before its turn
# ---------------------------------------------------------------------------
$job = $sql->(<<'SQL');
GRANT CREATE ON TABLESPACE regress_fast TO regress_poor;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_poor;
SET ROLE regress_poor;
BEGIN;
SELECT job FROM move_table('aged_1', 'regress_fast', wait => false) LIMIT 1;
RESET ROLE;
REASSIGN OWNED BY regress_poor TO CURRENT_USER;
COMMIT;
SQL
wait_for_job_end($node, $job);
is($sql->("SELECT DISTINCT j.status, h.status, sqlstate FROM index_mover_history h JOIN index_mover_jobs j USING (job) WHERE job = $job"),
	'failed|failed|42501', 'a job whose role has lost the table');
say_ok('ended job', 'a job whose role has lost the table');
$sql->("SELECT resume_move($job)");
poll_until($node, "SELECT tablespace FROM pg_tables WHERE tablename = 'aged_1'", 'regress_fast', 'whose rest a superuser moves');
say_ok('', 'in the end');
$node->stop;
done_testing();
