# What other sessions, clocks and owners do to reports and policies: locks on partitions,
# transactions that stay open, samples from the future, relations that were dropped.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('odd', conf => <<CONF);
shared_preload_libraries = 'index_mover'
statement_timeout = '60s'
autovacuum = off
index_mover.lock_wait = '1s'
index_mover.on_blocker = 'fail'
CONF
sub sql { return $node->safe_psql('postgres', $_[0]); }

# Do something while another session is in a transaction that has run a statement.
sub beside
{
	my ($statement, $sub, @options) = @_;
	my $session = IndexMover::Session->new($node, @options);

	$session->run("BEGIN; $statement");
	$sub->();
	$session->run('ROLLBACK');
	$session->end;
	return;
}

# ---- locks on partitions ----------------------------------------------------------------
sql(<<'SQL');
CREATE TABLE par (i int) PARTITION BY RANGE (i);
CREATE TABLE par1 PARTITION OF par FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (i);
CREATE TABLE par11 PARTITION OF par1 FOR VALUES FROM (0) TO (9);
CREATE INDEX par_i ON par (i);
CREATE ROLE regress_alice LOGIN;
CREATE ROLE regress_bob LOGIN;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_alice, regress_bob;
GRANT CREATE ON SCHEMA public TO regress_alice;
GRANT pg_monitor TO regress_alice;
GRANT EXECUTE ON FUNCTION move_indexes, cancel_move(bigint, boolean) TO regress_alice;
SQL
beside('LOCK TABLE par11 IN ACCESS EXCLUSIVE MODE', sub {
	like(sql("SET statement_timeout = '20s'; SELECT holds_back FROM index_mover_blockers('par', '0 s')"), qr/^locks on par11: /,
		'index_mover_blockers(): a partition that is locked is no wait, and says who locks it');
	is(sql(q{SET statement_timeout = '20s'; SELECT string_agg(relation, ' ' ORDER BY relation)
		FROM (SELECT coalesce(index, table_name)::text AS relation FROM index_report('par', false)) r}),
		'par11 par11_i_idx',
		'index_report() does not wait for it, either');
});
is(sql(q{BEGIN; SELECT count(*) FROM index_report('par', false);
	SELECT count(*) FROM pg_locks WHERE relation = 'par11'::regclass; COMMIT}),
	"2\n0",
	'and keeps no lock');
is(sql(q{SELECT DISTINCT m.status FROM index_report('par', false) r, move_indexes(r.index, 'regress_fast') m
	WHERE r.index IS NOT NULL}),
	'moved',
	'so that its rows can be moved');

# ---- transactions that stay open --------------------------------------------------------
sql(q{INSERT INTO index_mover.sample SELECT now() - '8 days'::interval - make_interval(secs => g), 0, '', 0, 0, 0, 0, 0
	FROM generate_series(1, 5) g});
beside('SELECT take_index_sample()', sub {
	isnt(sql("SET statement_timeout = '20s'; SELECT take_index_sample()"),
		'', 'a sample does not wait for one that is being taken');
}, user => 'regress_alice');

$node->safe_psql('postgres', q(CREATE TABLE ta (i int); CREATE INDEX ta_i ON ta (i) TABLESPACE regress_slow),
	extra_params => [ '-U', 'regress_alice' ]);
my $holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT FROM ta');
my $job = $node->safe_psql('postgres',
	q(SELECT job FROM move_indexes('ta', 'regress_fast', 'copy')),
	extra_params => [ '-U', 'regress_alice' ]);
$holder->run('COMMIT');
sql("UPDATE index_mover.job_log SET submitted_at = now() - '2 years'::interval WHERE job = $job");
beside("SELECT cancel_move($job)", sub {
	my (undef, undef, $err) = $node->psql('postgres',
		"SET statement_timeout = '20s'; SET index_mover.history_retention = '1d'; SELECT index_mover_cleanup()");
	like($err,
		qr/WARNING:  could not delete job $job from the history\nDETAIL:  .*could not obtain lock on row in relation "job_log"/,
		'a cleanup does not wait for who acknowledges a job');
	unlike($err, qr/ERROR/, 'and goes on');
}, user => 'regress_alice');
sql("SET index_mover.history_retention = '1d'; SELECT index_mover_cleanup()");
is(sql("SELECT count(*) FROM index_mover_history WHERE job = $job"), '0', 'the next one deletes it');

# ---- a clock that was ahead ---------------------------------------------------------------
sql(q{TRUNCATE index_mover.sample; SELECT take_index_sample();
UPDATE index_mover.sample SET taken_at = taken_at - '3 days'::interval;
INSERT INTO index_mover.sample SELECT now() + '10 years'::interval, s.table_oid, s.index_name, s.blks_read + 9,
	s.blks_wanted + 9, s.index_scans + 9, s.other_scans + 9, s.changes + 9 FROM index_mover.sample s WHERE table_oid = 'ta'::regclass;
INSERT INTO index_mover.sample SELECT now() + make_interval(hours => g), 0, '', 0, 0, 0, 0, 0 FROM generate_series(1, 300) g});
is(sql(q{SELECT bool_or(last_use > now() + '1 h' OR known_since > now() + '1 h') IS NOT TRUE FROM relation_heat}),
	't', 'no use is in the future');
sql('SELECT take_index_sample()');
is(sql('SELECT count(*) FROM index_mover.sample WHERE taken_at > now()'), '0', 'samples from the future are deleted');
is(sql("SELECT count(*) >= 1 FROM index_mover.sample WHERE table_oid = 0 AND taken_at > now() - '1 minute'::interval"),
	't', 'and do not keep others from being taken');

# ---- keys of two columns ------------------------------------------------------------------
sql(<<'SQL');
CREATE TABLE m (tenant int, day int) PARTITION BY RANGE (tenant);
CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (day);
CREATE TABLE m1_now PARTITION OF m1 FOR VALUES FROM (20700) TO (30900) TABLESPACE regress_fast;
INSERT INTO tier_policy (name, owner, to_tablespace, relation, older_than, key_unit, parts)
	VALUES ('old', 'postgres', 'regress_slow', 'm', '90 days', 'days', 'table');
SQL
is(sql("SELECT moves || ' ' || reason FROM tier_plan('old')"),
	'false keys of several columns end its ranges', 'two columns of such keys: no range');
is(sql("SELECT count(*) FROM run_tier_policies('old')") . ' ' . sql("SELECT result FROM tier_policy_status WHERE policy = 'old'"),
	'0 hindered', 'two columns of such keys: the policy is hindered');
sql('DELETE FROM tier_policy');

# ---- a name that another role's policy had ---------------------------------------------------
sub as { return $node->safe_psql('postgres', $_[1], extra_params => [ '-U', $_[0] ]); }
sql(<<'SQL');
GRANT SELECT, INSERT, UPDATE, DELETE ON tier_policy TO regress_alice, regress_bob;
GRANT EXECUTE ON FUNCTION run_tier_policies, resume_move TO regress_alice, regress_bob;
GRANT SELECT ON tier_policy_status TO regress_bob;
GRANT CREATE ON SCHEMA public TO regress_bob;
SQL
my $named = sub {
	my ($role, $name, $settings) = @_;
	return as($role, <<SQL);
CREATE TABLE IF NOT EXISTS of_$role (d date) PARTITION BY RANGE (d);
CREATE TABLE IF NOT EXISTS of_${role}_1 PARTITION OF of_$role FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, settings)
	VALUES ('$name', 'of_$role', 'regress_slow', '1 day', '0', '$settings');
SELECT max(job) FROM run_tier_policies('$name');
SQL
};
my $hers = $named->('regress_alice', 'archive', '{"swap_after": "infinity"}');
as('regress_alice', "SELECT cancel_move($hers); DELETE FROM tier_policy WHERE name = 'archive'");
wait_for_job_end($node, $hers);
my $his = $named->('regress_bob', 'archive', '{}');
wait_for_job_end($node, $his);
my $last_run = "SELECT job, result FROM tier_policy_status WHERE policy = 'archive'";
my $again = as('regress_alice', "SELECT resume_move($hers)");
poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $again", 'waiting for time to swap', 'her old job goes on');
is(as('regress_bob', $last_run), "$his|moved", 'which is no job of his policy of that name');
as('regress_alice', "SELECT cancel_move($again)");
wait_for_job_end($node, $again);
$again = as('regress_alice', "SELECT resume_move($again)");
is(as('regress_bob', $last_run), "$his|moved", 'nor is the rest of its rest');
# what it has left is the policy's job, and the rest of that
sql("ALTER TABLE of_regress_bob_1 SET TABLESPACE pg_default; "
	. q(UPDATE tier_policy SET settings = '{"swap_after": "infinity"}' WHERE name = 'archive'));
my @chain = as('regress_bob', "SELECT max(job) FROM run_tier_policies('archive')");
foreach (1 .. 2)
{
	sql("SELECT cancel_move($chain[-1])");
	wait_for_job_end($node, $chain[-1]);
	push @chain, as('regress_bob', "SELECT resume_move($chain[-1])");
}
is(as('regress_bob', $last_run), "$chain[-1]|running", 'his own goes on with the rest of a rest');
is(sql("BEGIN; INSERT INTO index_mover.job_log (job, role, submitted_at, settings, undo_of, rehearse, freeze_first)
	SELECT $chain[-1] + g, 10, now(), '{}', 0, false, false FROM generate_series(1, 1000) g;
	SELECT job FROM index_mover.policy_status() WHERE policy = 'archive';
	SELECT pg_stat_get_xact_tuples_returned('index_mover.job_log_pkey'::regclass) < 10; ROLLBACK"), "$chain[-1]\nt",
	'and is found without a look at the jobs of others');
sql("UPDATE tier_policy SET owner = 'regress_alice' WHERE name = 'archive'");
is(sql("SELECT owner, last_run, job, result FROM tier_policy_status WHERE policy = 'archive'"), 'regress_alice|||',
	'a policy with another owner has no past');
sql('SELECT cancel_move(); DELETE FROM tier_policy');
wait_for_job_end($node, $_) foreach $again, $chain[-1];
is(sql('SELECT count(*) FROM index_mover.policy_run'), '0', 'nor has one of a name that was deleted');

# ---- a call that waits for its jobs -------------------------------------------------------------
sql(<<'SQL');
ALTER TABLE of_regress_bob_1 SET TABLESPACE pg_default;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, settings)
	VALUES ('a', 'of_regress_alice', 'regress_slow', '1000 years', '0', NULL),
	('b', 'of_regress_bob', 'regress_slow', '1 day', '0', '{"swap_after": "infinity"}'), ('c', 'par', 'regress_slow', '1 day', '0', NULL);
SQL
my $caller = IndexMover::Session->new($node);
$caller->send('SET statement_timeout = 0; SELECT count(*) FROM run_tier_policies(wait => true)');
poll_until($node, q{SELECT count(*) FROM index_mover_jobs WHERE policy = 'b' AND status = 'running'}, '1', 'a call that waits for a job');
is(sql('SELECT backend_xid IS NULL FROM pg_stat_activity WHERE pid = ' . $caller->pid), 't', 'has no transaction ID meanwhile');
(undef, undef, my $said) = $node->psql('postgres', "SELECT count(*) FROM run_tier_policies('a')");
is($said, '', 'and keeps no role from a policy before it');
sql("SET statement_timeout = '20s'; DELETE FROM tier_policy WHERE name IN ('a', 'b')");
$named->('regress_bob', 'b', '{}');
sql("SELECT cancel_move(job) FROM index_mover_jobs WHERE policy = 'b' AND status = 'running'");
$caller->answer;
is(sql("SELECT policy, result, job IS NULL FROM tier_policy_status ORDER BY policy"), "b|waits|t\nc|hindered|t",
	'and records all runs at its end, but not of a policy that is another role\'s by now');
# nor is who deletes a policy held up by a run that has not ended
beside("SELECT count(*) FROM run_tier_policies('c')", sub {
	sql("SET statement_timeout = '20s'; DELETE FROM tier_policy WHERE name = 'c'");
});
sql('DELETE FROM tier_policy');
$caller->end;

# ---- a run in a transaction that stays open ------------------------------------------------
my $overdue = "SELECT object FROM index_mover_check('100 ms') WHERE kind = 'overdue policy'";
sql("INSERT INTO tier_policy (name, owner, to_tablespace, relation, older_than, every)
	VALUES ('new', 'postgres', 'regress_slow', 'par', '1 day', '1 hour')");
beside("SELECT count(*) FROM run_tier_policies('new')", sub {
	$node->append_conf('postgresql.conf', "index_mover.scheduler_databases = 'postgres'");
	$node->reload;
	poll_until($node, $overdue, 'new', 'a policy that was never run, and that the scheduler cannot run');
	sql(q{UPDATE tier_policy SET window_start = (now() + interval '2 h')::time, window_end = (now() + interval '3 h')::time});
	is(sql($overdue), '', 'it is not due before its window');
	sql('UPDATE tier_policy SET window_start = NULL, window_end = NULL, max_bytes_per_run = 1');
	is(sql("SELECT count(*) FROM index_mover_check('1 min') WHERE kind = 'overdue policy'"), '0', 'nor is it due since it was new');
	$node->append_conf('postgresql.conf', "index_mover.scheduler_databases = ''");
	$node->reload;
});
sql('DELETE FROM tier_policy');
sql("INSERT INTO tier_policy (name, owner, to_tablespace, relation, older_than, every)
	VALUES ('sp', 'postgres', 'regress_slow', 'par', '1 day', '1 hour')");
sql("SELECT count(*) FROM run_tier_policies('sp')");
sql("UPDATE index_mover.policy_run SET started_at = started_at - '2 hours'::interval");
beside("SELECT count(*) FROM run_tier_policies('sp')", sub {
	$node->append_conf('postgresql.conf', "index_mover.scheduler_databases = 'postgres'");
	$node->reload;
	poll_until($node, q(SELECT object FROM index_mover_check('100 ms') WHERE kind = 'overdue policy'), 'sp',
		'a policy that the scheduler cannot run');
	is(sql("SELECT count(*) FROM index_mover_check('3 hours') WHERE kind = 'overdue policy'"),
		'0', 'due for less than max_wait');
});
sql('SELECT pg_reload_conf()');
poll_until($node, q(SELECT count(*) FROM index_mover_check('100 ms') WHERE kind = 'overdue policy'), '0', 'until it can');

# ---- windows, and jobs that a run has waited for ---------------------------------------------
sql('DELETE FROM tier_policy');
my $next = "SELECT round(extract(epoch FROM next_run - now()) / 600) FROM tier_policy_status";    # in ten minutes
sub of_window
{
	my ($name, $every, $start, $end) = @_;
	sql("DELETE FROM tier_policy; INSERT INTO tier_policy (name, owner, to_tablespace, relation, older_than, every, window_start, "
		. "window_end) VALUES ('$name', 'postgres', 'regress_slow', 'par', '1 day', '$every', (now() + interval '$start')::time, "
		. "(now() + interval '$end')::time)");
	return;
}
of_window('missed', '1 day', '-3 hours', '-2 hours');
is(sql($overdue), '', 'a window before the policy was made');
sql("ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check; UPDATE tier_policy SET scheduled_since = now() - interval '2 days'; "
	. 'ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check');
is(sql($overdue), 'missed', 'a window in which no run began');
of_window('drifts', '1 day', '1 hour', '4 hours');
sql("SELECT count(*) FROM run_tier_policies('drifts')");
sql("UPDATE index_mover.policy_run SET started_at = now() - interval '22 hours'");
is(sql($next), 6, 'a run late in its window: the next is due when that opens');
sql("UPDATE index_mover.policy_run SET started_at = now() - interval '30 min'; UPDATE tier_policy SET every = '1 hour', "
	. "window_start = (now() - interval '1 hour')::time");
is(sql($next), 3, 'a run in the same window');
of_window('waited', '10 days', '1 hour', '4 hours');
sql("SELECT count(*) FROM run_tier_policies('waited')");
is(sql("SELECT ($next) > 9 * 144"), 't', 'a policy that had nothing to move');
sql("UPDATE index_mover.policy_run SET result = 'waits', message = 'job 987654 is at work', job = 0, waits_for = 987654, "
	. 'waits_since = started_at');
is(sql($next), 6, 'a policy that waited for a job that has ended: due in the next window');
sql('DELETE FROM tier_policy');

# ---- probes of a clock that was ahead ---------------------------------------------------------
sql("INSERT INTO index_mover.probe SELECT now() + g * interval '1 day', oid, 1 FROM pg_tablespace, generate_series(1, 6) g "
	. "WHERE spcname = 'regress_slow'");
sql("SELECT tablespace_probe('regress_slow', '10 ms')") foreach 1, 2;
is(sql('SELECT count(*), count(*) FILTER (WHERE probed_at > now()) FROM index_mover.probe'), '2|0',
	'probes from the future are removed, and present ones stay');
sql("SELECT withdraw_probes('regress_slow')");

# ---- owners ---------------------------------------------------------------------------------
SKIP:
{
	skip 'MAINTAIN is of 17', 2 if $node->pg_version < 17;
	sql(<<'SQL');
DELETE FROM tier_policy;
GRANT MAINTAIN ON ta TO regress_bob;
GRANT SELECT, INSERT, UPDATE, DELETE ON tier_policy TO regress_alice, regress_bob;
INSERT INTO tier_policy (name, owner, from_tablespace, to_tablespace, relation, budget, parts)
	VALUES ('hers', 'regress_alice', 'regress_slow', 'regress_fast', 'ta', 1e9, 'indexes'),
	('his', 'regress_bob', 'regress_fast', 'regress_slow', 'ta', 1e9, 'indexes');
SQL
	is(sql("SELECT object FROM index_mover_check() WHERE kind = 'contradicting policies'"), 'his',
		'a policy of a role with MAINTAIN and one of the owner contradict each other');
	sql('REVOKE MAINTAIN ON ta FROM regress_bob');
	is(sql("SELECT object FROM index_mover_check() WHERE kind = 'contradicting policies'"), '', 'not where one may do nothing');
}

# ---- many policies for many partitions ---------------------------------------------------------
sql(<<'SQL');
DELETE FROM tier_policy;
DO $$ BEGIN FOR t IN 1 .. 2 LOOP
	EXECUTE format('CREATE TABLE many_%s (i int) PARTITION BY RANGE (i)', t);
	FOR n IN 1 .. 100 LOOP
		EXECUTE format('CREATE TABLE many_%s_%s PARTITION OF many_%1$s FOR VALUES FROM (%2$s) TO (%2$s + 1)', t, n);
	END LOOP;
END LOOP; END $$;
INSERT INTO tier_policy (name, relation, to_tablespace, idle_for)
	SELECT format('%s %s', place, n), relation, place, '1 year'
	  FROM (VALUES ('many_1'::regclass, 'regress_slow'::name), ('many_2', 'regress_fast')) v(relation, place), generate_series(1, 100) n;
SQL
my $start = time;
is(sql("SELECT count(*) FROM index_mover_check() WHERE kind = 'contradicting policies'"), '0', 'two hundred policies, of two tables');
soon_ok(time - $start, 1, 'their check');
sql(q{DELETE FROM tier_policy WHERE name !~ ' 1$'; UPDATE tier_policy SET relation = 'many_1_7' WHERE name ~ 'fast'});
is(sql("SELECT object FROM index_mover_check() WHERE kind = 'contradicting policies'"), 'regress_slow 1',
	'one of a partition of the other');
# one whose tables are below each other in more levels than a stack has room for, as any role can make them
sql(<<'SQL');
CREATE TABLE deep_0 (i int);
DO $$ BEGIN FOR n IN 1 .. 3000 LOOP
	EXECUTE format('CREATE TABLE deep_%s () INHERITS (deep_%s)', n, n - 1);
	IF n % 100 = 0 THEN COMMIT; END IF;
END LOOP; END $$;
UPDATE tier_policy SET relation = 'deep_0' WHERE name ~ 'fast';
SQL
is(sql("SET max_stack_depth = '100kB'; SELECT object FROM index_mover_check() WHERE kind = 'contradicting policies'"), '',
	'one of tables in three thousand levels');
sql(q{DO $$ BEGIN FOR n IN REVERSE 3000 .. 0 LOOP EXECUTE format('DROP TABLE deep_%s', n); IF n % 100 = 0 THEN COMMIT; END IF; END LOOP; }
	. 'END $$');
sql("UPDATE tier_policy SET older_than = '0', idle_for = NULL, min_stay = '1 s', relation = 'of_regress_alice', enabled = name ~ 'slow'; "
	. "ALTER TABLE of_regress_alice_1 SET TABLESPACE pg_default");
is(sql("BEGIN; SELECT count(*) FROM tier_plan(); SELECT pg_stat_get_xact_numscans('index_mover.move_log'::regclass)"), "1\n0",
	'a plan reads the latest part of the history');
sql('DROP TABLE many_1, many_2');

# ---- what became of relations -----------------------------------------------------------------
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE gone (i int);
INSERT INTO tier_policy (name, owner, to_tablespace, relation, older_than)
	VALUES ('dang', 'postgres', 'regress_slow', 'gone', '1 day'), ('kept', 'postgres', 'regress_slow', 'par', '1 day');
DROP TABLE gone;
SQL
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
$dump = slurp_file($dump);
like($dump, qr/^kept\t/m, 'a policy is dumped');
unlike($dump, qr/^dang\t/m, 'but not that of a relation that was dropped: its number could be that of another one');
sql("DELETE FROM tier_policy WHERE name = 'dang'; CREATE SCHEMA other; ALTER TABLE tier_policy SET SCHEMA other");
is(sql('SELECT policy FROM tier_policy_status'), 'kept', 'tier_policy in another schema');
is(sql("SELECT count(*) FROM tier_plan() WHERE policy IS NOT NULL AND policy <> 'kept'"), '0', 'is read all the same');
is(sql("SELECT count(*) FROM index_mover_check() WHERE kind = 'stopped policies'"), '0', 'and is no fault');
sql('ALTER TABLE other.tier_policy RENAME TO tier_policy_2');
is(sql("SELECT detail FROM index_mover_check() WHERE kind = 'stopped policies'"),
	'The extension has no table "tier_policy" any more.', 'a table that was renamed is');
my (undef, undef, $err) = $node->psql('postgres', 'SELECT tier_plan()');
like($err, qr/ERROR:  table "tier_policy" of extension "index_mover" does not exist/, 'and an error of its own');
$holder->end;
$node->stop;
done_testing();
