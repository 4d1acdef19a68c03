# The scheduler: without a caller, and without pg_cron, samples are taken and
# policies carried out; after a restart, a crash, and on a standby that is promoted, but
# not before.  It is not in the way of DROP EXTENSION, DROP DATABASE or CREATE DATABASE ..
# TEMPLATE; it does not stop for a policy that fails, for worker slots that are taken, or
# because the clock was set back; and it costs next to nothing while nothing is due.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use IndexMover::Tiers;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $node = new_node('scheduler', streaming => 1, conf => <<CONF);
shared_preload_libraries = 'index_mover'
max_worker_processes = 12
max_prepared_transactions = 2
log_min_messages = debug1
CONF
sub sql { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

# It looks once a minute, or when the configuration is loaded again.
sub look { sql('SELECT pg_reload_conf()'); return; }

# It has looked into "postgres" since now, and what it has begun there is on record.
sub look_to_end
{
	my $from = -s $node->logfile;
	my $worker = '"index_mover scheduler in postgres"';
	look();
	$node->wait_for_log(qr/ starting background worker process $worker(?s:.*) unregistering background worker $worker/, $from);
	return;
}

my $tables = <<'SQL';
CREATE TABLE events (d date, n int) PARTITION BY RANGE (d);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
INSERT INTO events SELECT '2020-01-10', g FROM generate_series(1, 100) g;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, every)
  VALUES ('old', 'events', 'regress_slow', '1 year', '0', '1 s');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, every) VALUES ('fails', 'events', 'no_such_place', '1 year', '1 s');
SQL
my $place = "SELECT coalesce((SELECT t.spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.relname = "
	. "'events_1'), 'default')";
sub moves_ok
{
	my ($name, $on, $database) = @_;
	my ($server, $db) = ($on // $node, $database // 'postgres');
	$server->safe_psql($db, 'ALTER TABLE events_1 SET TABLESPACE pg_default');
	$server->safe_psql($db, 'SELECT pg_reload_conf()');
	ok($server->poll_query_until($db, $place, 'regress_slow'), "$name: what is old is moved");
	return;
}

# ---- it runs ---------------------------------------------------------------------------------
sql($tables);
is(sql("SELECT scheduled FROM tier_policy_status WHERE policy = 'fails'"), 'f', 'no scheduler looks into the database');
# no restart is needed
$node->append_conf('postgresql.conf', q(index_mover.scheduler_databases = 'postgres, "Other", missing'));
moves_ok('without a caller');
ok($node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM index_mover.sample'), 'a sample is taken');
ok($node->poll_query_until('postgres',
	q{SELECT reason ~ '^it has failed \d+ times in a row: tablespace "no_such_place" does not exist' FROM tier_plan('fails') LIMIT 1}),
	'a policy that always fails is in the plan');
my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
my $fails = qr/LOG:  \w+: tier policy "fails" has failed\n.*DETAIL:  tablespace "no_such_place" does not exist/;
is(scalar(() = $log =~ /$fails/g), 1, 'and in the log, with its name, once');
unlike($log, qr/ERROR:  .*no_such_place/, 'and not as an error of a session');
is(sql("SELECT scheduled FROM tier_policy_status WHERE policy = 'fails'"), 't', 'a scheduler carries it out');
is(sql("SELECT count(*) FROM index_mover_check() WHERE kind = 'unscheduled policy'"), 0, 'and the check knows');
is(sql("SELECT result, next_run IS NOT NULL FROM tier_policy_status WHERE policy = 'fails'"), 'failed|t', 'and monitors see it');
is(sql("SELECT count(*) FROM index_mover_jobs WHERE policy = 'fails'"), 0, 'it has no job');
is(sql("SELECT count(DISTINCT role) || ' ' || min(role) FROM index_mover_history WHERE status = 'moved'"),
	'1 ' . sql('SELECT current_user'), 'the jobs are their owner\'s');
like(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/database "missing" does not exist/, 'a database that is missing is told of');
my $before = -s $node->logfile;
look_to_end();
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $before), qr/database "missing" does not exist/,
	'a missing database is told of once');

# databases that are named twice, and then not at all
my $launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover launcher'";
my $launcher_pid = sql($launcher);
foreach my $databases ('missing, Missing, postgres, POSTGRES', 'missing', 'postgres, "Other", missing')
{
	$node->append_conf('postgresql.conf', "index_mover.scheduler_databases = '$databases'");
	look();
	sleep 1;
}
is(sql($launcher), $launcher_pid, 'the launcher bears other names');
# more than the server has segments of shared memory; of them none is a database but the first two
my $lines = -s $node->logfile;
$node->append_conf('postgresql.conf',
	"index_mover.scheduler_databases = '" . join(', ', 'postgres', '"Other"', map { "none$_" } 1 .. 600) . "'");
look();
$node->wait_for_log(qr/database "none600" does not exist/, $lines);
is(sql($launcher), $launcher_pid, 'and 600 at once');
$node->append_conf('postgresql.conf', q(index_mover.scheduler_databases = 'postgres, "Other", missing'));
look();

# policies that are being planned may still become jobs
my $settle = sub {
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity
	WHERE datid IS NOT NULL AND backend_type = 'index_mover scheduler'")
	  or die 'policies go on';
	wait_for_jobs($node);
};

# a sample for all roles: no caller thins the others', nor fills the table
sql(q{INSERT INTO index_mover.sample SELECT s.taken_at - make_interval(secs => g), s.table_oid, s.index_name, s.blks_read, s.blks_wanted,
  s.index_scans, s.other_scans, s.changes FROM index_mover.sample s, generate_series(1, 3) g WHERE s.table_oid <> 0});
my $kept = sql('SELECT count(*) FROM index_mover.sample WHERE table_oid <> 0');
sql("SELECT take_index_sample('0'); SELECT take_index_sample('178000000 years')");
cmp_ok(sql('SELECT count(*) FROM index_mover.sample WHERE table_oid <> 0'), '>=', $kept, 'no retention ends the samples of the last week');
(undef, undef, my $notice) = $node->psql('postgres', 'SELECT count(take_index_sample()) FROM generate_series(1, 241)');
like($notice, qr/NOTICE:  no sample was taken, since the last hour has 240/, 'no more samples than are of use');
cmp_ok(sql('SELECT count(*) FROM index_mover.sample WHERE table_oid = 0'), '<=', 240, 'not even moments');
sql('DELETE FROM index_mover.sample');

# looks that overtake the run: it is due once
sql("UPDATE tier_policy SET every = '100 years'");
$settle->();
my $failures = sql("SELECT failures FROM index_mover.policy_run WHERE policy = 'fails'");
sql("UPDATE index_mover.policy_run SET started_at = now() - interval '200 years'");
look() foreach 1 .. 20;
look_to_end();
is(sql("SELECT failures FROM index_mover.policy_run WHERE policy = 'fails'"), $failures + 1, 'many looks, and one run');
is(sql("SELECT next_run > now() + interval '99 years' FROM tier_policy_status WHERE policy = 'fails'"), 't', 'the next is in 100 years');
sql("UPDATE tier_policy SET every = '1 s'");

# policies that want one table at the same moment: one gets it, and none has failed
sql(q{INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, every)
  SELECT 'rival ' || n, 'events', CASE n % 2 WHEN 0 THEN 'regress_fast' ELSE 'regress_slow' END, '1 year', '0', '1 s'
    FROM generate_series(1, 4) n});
$before = -s $node->logfile;
foreach (1 .. 10)
{
	look();
	sleep 1.1;
}
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile, $before), qr/tier policy "rival \d" has failed/, 'rivals do not fail');
sql("DELETE FROM tier_policy WHERE name ~ 'rival'");
$settle->();

# a trigger of another role that comes between two policies of a look: the second is not carried out
sql("UPDATE tier_policy SET every = '100 years'");
$settle->();
my $keeper = IndexMover::Session->new($node);
$keeper->run('BEGIN; LOCK TABLE index_mover.policy_run IN SHARE MODE');    # the first cannot be recorded
sql(q{INSERT INTO tier_policy (name, relation, to_tablespace, older_than, every)
  SELECT 'pair ' || n, 'events', 'regress_slow', '1000 years', '100 years' FROM generate_series(1, 2) n});
look();
ok($node->poll_query_until('postgres',
		q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'index_mover.policy_run'::regclass AND NOT granted}),
	'the first of two policies is being carried out');
sql('CREATE TRIGGER somebodys BEFORE UPDATE ON tier_policy FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()');
$keeper->run('COMMIT');
$settle->();
is(sql("SELECT count(*) FROM index_mover.policy_run WHERE policy ~ 'pair'"), 1, 'a trigger stops the second');
sql("DROP TRIGGER somebodys ON tier_policy; DELETE FROM tier_policy WHERE name ~ 'pair'; UPDATE tier_policy SET every = '1 s'");

# one role's many policies keep no other's waiting: of each role one is carried out, then another of each
sql("UPDATE tier_policy SET every = '100 years'");
$settle->();
sql(<<'SQL');
CREATE ROLE regress_many;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, every)
  SELECT 'many ' || n, 'events', 'regress_slow', '1000 years', '100 years' FROM generate_series(1, 30) n;
UPDATE tier_policy SET owner = 'regress_many' WHERE name ~ 'many' AND name <> 'many 25';
SQL
foreach my $n (1 .. 3)
{
	sql("DELETE FROM index_mover.policy_run WHERE policy ~ 'many'");
	look_to_end();
	$settle->();
	is(sql("SELECT count(*), count(*) FILTER (WHERE started_at <= (SELECT started_at FROM index_mover.policy_run"
			. " WHERE policy = 'many 25')) "
		. "<= 2 FROM index_mover.policy_run WHERE policy ~ 'many'"), '30|t', "the only policy of a role is among the first two, $n");
}
# nor do policies that were never run, and whose plans last for so long that a look begins no other
sql("DELETE FROM index_mover.policy_run WHERE policy ~ 'many'");
$before = -s $node->logfile;
$keeper->run('BEGIN; LOCK TABLE index_mover.policy_run IN SHARE MODE');
look();
ok(poll_log(qq(could not record the run of tier policy "many 25"), $before), 'the only policy of a role is the first in one of two looks');
$node->wait_for_log(qr/could not record the run of tier policy "many (?!25")/, $before);
$keeper->run('COMMIT');
$node->poll_query_until('postgres', q{SELECT count(*) = 30 FROM index_mover.policy_run WHERE policy ~ 'many'}) or die 'looks end';
$settle->();
# and a look ends when the database is none of the scheduler's any more
sql("DELETE FROM index_mover.policy_run WHERE policy ~ 'many'");
$keeper->run('BEGIN; LOCK TABLE index_mover.policy_run IN SHARE MODE');
look();
ok($node->poll_query_until('postgres',
		q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'index_mover.policy_run'::regclass AND NOT granted}),
	'a look is at its first policy');
$node->append_conf('postgresql.conf', "index_mover.scheduler_databases = ''");
look();
sleep 0.5;
$keeper->run('COMMIT');
$settle->();
cmp_ok(sql("SELECT count(*) FROM index_mover.policy_run WHERE policy ~ 'many'"), '<=', 1, 'and carries out no other when it may not look');
$node->append_conf('postgresql.conf', q(index_mover.scheduler_databases = 'postgres, "Other", missing'));
sql("DELETE FROM tier_policy WHERE name ~ 'many'; UPDATE tier_policy SET every = '1 s'");

# ---- when it is not due ------------------------------------------------------------------------
# windows by the time of the server: one that is closed, and one over midnight that is open
sql(<<'SQL');
UPDATE tier_policy SET window_start = (now() + interval '2 h')::time, window_end = (now() + interval '3 h')::time WHERE name = 'old';
SQL
$settle->();
sql('ALTER TABLE events_1 SET TABLESPACE pg_default');
look_to_end();
wait_for_jobs($node);
is(sql($place), 'default', 'a window that is closed');
is(sql("SELECT next_run - now() BETWEEN '1 h 55 min' AND '2 h 5 min' FROM tier_policy_status WHERE policy = 'old'"), 't',
	'the next run is when it opens');
is(sql("SET TimeZone = 'Asia/Kolkata'; "
	. "SELECT next_run - now() BETWEEN '1 h 55 min' AND '2 h 5 min' FROM tier_policy_status WHERE policy = 'old'"),
	't', 'in whatever time zone one looks');
sql("ALTER DATABASE postgres SET TimeZone = 'Asia/Kolkata'");
is(sql("SET TimeZone = 'UTC'; SELECT next_run AT TIME ZONE 'Asia/Kolkata' - (SELECT window_start FROM tier_policy WHERE name = 'old') = "
	. "date_trunc('day', next_run AT TIME ZONE 'Asia/Kolkata') FROM tier_policy_status WHERE policy = 'old'"), 't',
	'but the database may have one');
# as core takes it: hours, an interval, and a zone whose clock goes forward in half an hour
foreach my $case ([ '= 5', '5 hours' ], [ q(ZONE INTERVAL '-08:30' HOUR TO MINUTE), '-8 hours -30 min' ])
{
	my ($zone, $ahead) = @$case;
	sql("ALTER DATABASE postgres SET " . ($zone =~ /ZONE/ ? "TIME $zone" : "TimeZone $zone"));
	is(sql("SET TimeZone = 'UTC'; SELECT (next_run + interval '$ahead')::time = window_start FROM tier_policy_status, tier_policy "
		. "WHERE policy = 'old' AND name = 'old'"), 't', "as a number, or an interval: $zone");
}
my $change = "timestamp '" . sql("SET TimeZone = 'UTC'; SELECT date_trunc('minute', now() + interval '30 min')::timestamp") . "'";
my $forward = sql("SET TimeZone = 'UTC'; SELECT extract(doy FROM m) - 1 || to_char(m, '/HH24:MI') "
	. "FROM (SELECT $change) t(m)");
my $back = (sql('SELECT extract(doy FROM now())::int') + 100) % 365;
sql("ALTER DATABASE postgres SET TimeZone = '<AAA>0<BBB>-1,$forward,$back'");
# a window all of which the clock goes forward over does not open that day, and one of which it leaves a part opens then
foreach my $case ([ '10 min', '20 min', "interval '23 h' + interval '10 min'" ], [ '0 min', '60 min', "interval '23 h'" ],
	[ '30 min', '75 min', "interval '0'" ], [ '-4 h', '10 min', undef ])
{
	my ($start, $end, $opens) = @$case;
	my $at = sub { return "($change + interval '$_[0]')::time" };
	sql("SET TimeZone = 'UTC'; UPDATE tier_policy SET window_start = " . $at->($start) . ', window_end = ' . $at->($end)
		. " WHERE name = 'old'");
	# (which the scheduler may just have run)
	my $next = sql("SELECT to_char(next_run AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), next_run <= now() + interval '2 s' "
		. "FROM tier_policy_status WHERE policy = 'old'");
	my ($moment, $is_now) = split /\|/, $next;
	my $expected = defined $opens ? "f " . sql("SET TimeZone = 'UTC'; SELECT to_char($change + $opens, 'YYYY-MM-DD HH24:MI:SS')") : 't';
	is(defined $opens ? "$is_now $moment" : $is_now, $expected, "a window from $start to $end of the clock's change");
}
my $summer = '';
foreach my $window ([ 'closed', '4 h', '6 h' ], [ 'open', '-1 min', '4 h' ])
{
	my ($name, $start, $end) = @$window;
	sql("SET TimeZone = 'UTC'; UPDATE tier_policy SET window_start = (now() + interval '$start')::time, window_end = "
		. "(now() + interval '$end')::time WHERE name = 'old'");
	$summer = sql("SELECT next_run - now() BETWEEN '2 h 55 min' AND '3 h 5 min' FROM tier_policy_status WHERE policy = 'old'")
	  if $name eq 'closed';
}
is($summer, 't', 'a window that begins after the clock has gone forward');
moves_ok('and one that ends after');
is(sql("SELECT (settings->>'max_duration')::interval < '3 h 5 min' FROM index_mover_jobs WHERE policy = 'old' ORDER BY job DESC LIMIT 1"),
	't', 'no relation begins in the hour after its end');
$settle->();
# whatever zone the role of its workers has: a window that is open by that only
my $superuser = sql('SELECT current_user');
sql("ALTER DATABASE postgres RESET TimeZone; ALTER ROLE \"$superuser\" SET TimeZone = 'Asia/Kolkata'");
sql("UPDATE tier_policy SET window_start = (now() - interval '1 h')::time, window_end = (now() + interval '1 h')::time WHERE name = 'old'");
sql('ALTER TABLE events_1 SET TABLESPACE pg_default');
look_to_end();
wait_for_jobs($node);
is(sql($place), 'default', 'not by the time zone of a role');
sql("ALTER ROLE \"$superuser\" RESET TimeZone");
# the day's midnight is always between these two
sql("UPDATE tier_policy SET window_start = (now() - interval '1 min')::time, window_end = (now() - interval '1 h')::time WHERE name = "
	. "'old'");
# of an owner who is elsewhere
sql("CREATE ROLE regress_india SUPERUSER; ALTER ROLE regress_india SET TimeZone = 'Asia/Kolkata'; "
	. "UPDATE tier_policy SET owner = 'regress_india' WHERE name = 'old'");
moves_ok('a window over midnight');
is(sql("SELECT (settings->>'max_duration')::interval > '20 h' FROM index_mover_jobs WHERE policy = 'old' ORDER BY job DESC LIMIT 1"), 't',
	'no relation begins after its end')
  or diag sql("SELECT settings FROM index_mover_jobs WHERE policy = 'old' ORDER BY job DESC LIMIT 1");
sql("UPDATE tier_policy SET window_start = NULL, window_end = NULL, every = NULL WHERE name = 'old'");
$settle->();
sql('ALTER TABLE events_1 SET TABLESPACE pg_default');
look_to_end();
wait_for_jobs($node);
is(sql($place), 'default', 'a policy without "every" is for calls only');

# moments that a role may write, and that no scheduler has set
{
	my $since = "SELECT scheduled_since BETWEEN now() - interval '1 h' AND now() FROM tier_policy WHERE name = 'since'";
	foreach my $at ('infinity', '-infinity', '294276-12-31 23:59:59 UTC', '4714-11-24 BC UTC', '3000-01-01 UTC', '1999-01-01 UTC')
	{
		sql("INSERT INTO tier_policy (name, to_tablespace, older_than, every, window_start, window_end, owner_oid, scheduled_since) "
			. "VALUES ('since', 'regress_slow', '1000 years', '1 day', '1:00', '2:00', current_user::regrole, '$at')");
		is(sql($since), 't', "a policy since $at is one since now");
		sql("ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check; UPDATE tier_policy SET scheduled_since = '$at' WHERE name = "
			. "'since'; ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check");
		is(sql("SET TimeZone = 'Etc/GMT+12'; SELECT s.policy, p.due FROM tier_policy_status s JOIN index_mover.policy_status() p "
			. "USING (policy) WHERE policy = 'since'; SELECT count(*) FROM index_mover_check() WHERE kind = 'overdue policy'"), "since|\n0",
			'the views bear a policy since that moment');
		sql("DELETE FROM tier_policy WHERE name = 'since'");
	}
	sql("INSERT INTO tier_policy (name, to_tablespace, older_than, every, owner_oid, scheduled_since) "
		. "VALUES ('since', 'regress_slow', '1000 years', '1 day', current_user::regrole, '2025-01-01 UTC')");
	is(sql("SELECT scheduled_since FROM tier_policy WHERE name = 'since' AND scheduled_since = '2025-01-01 UTC'") ne '', 1,
		'that of a dump stays');
	sql("DELETE FROM tier_policy WHERE name = 'since'");
}

# a window that ends while the policy is planned, which waits for a lock of an own table
{
	# (no other plan is to wait for it)
	sql("UPDATE tier_policy SET every = NULL WHERE name = 'fails'");
	$settle->();
	my $waits = "EXISTS (SELECT FROM pg_locks WHERE relation = 'index_mover.move_log'::regclass AND NOT granted)";
	my $locker = IndexMover::Session->new($node);
	$locker->run('BEGIN; LOCK TABLE index_mover.move_log');
	my $end;
	foreach my $try (1 .. 20)
	{
		sql("DELETE FROM tier_policy WHERE name = 'late'");
		$end = sql(q{INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, every, window_start, window_end)
		  VALUES ('late', 'events', 'regress_slow', '1 year', '0', '1 s', (now() - interval '1 min')::time, (now() + interval '6 s')::time)
		  RETURNING now() + interval '6 s'});
		look();
		$node->poll_query_until('postgres', "SELECT $waits OR now() > '$end'") or die;
		last if sql("SELECT $waits") eq 't';
	}
	$node->poll_query_until('postgres', "SELECT now() > '$end'") or die;
	$locker->run('COMMIT');
	$locker->end;
	ok($node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM tier_policy_status WHERE policy = 'late' AND last_run IS NOT NULL}),
		'a window that ends while its policy is planned');
	is(sql("SELECT result, message FROM tier_policy_status WHERE policy = 'late'"), 'hindered|its window ended before its plan was made',
		'the end of its window hinders the policy');
	is(sql($place), 'default', 'a window that ends during the plan: nothing is moved');
	sql("DELETE FROM tier_policy WHERE name = 'late'; UPDATE tier_policy SET every = '1 s' WHERE name = 'fails'");
}

# one run of a policy at a time
sql("UPDATE tier_policy SET every = '1 s', settings = '{\"swap_after\": \"infinity\"}' WHERE name = 'old'");
look();
ok($node->poll_query_until('postgres', "SELECT status = 'running' FROM index_mover_jobs WHERE policy = 'old' ORDER BY job DESC LIMIT 1"),
	'a run that lasts');
my $runs = sql("SELECT count(*) FROM index_mover_jobs WHERE policy = 'old'");
look_to_end();
is(sql("SELECT count(*) FROM index_mover_jobs WHERE policy = 'old'"), $runs, 'is the only one');
sql("UPDATE tier_policy SET settings = NULL WHERE name = 'old'; SELECT cancel_move()");
wait_for_jobs($node);

# a job that lasts, of another role and with several policies, holds up no other
sql(<<'SQL');
CREATE ROLE regress_sleeper; GRANT CREATE ON TABLESPACE regress_slow TO regress_sleeper;
CREATE TABLE sleeps (d date) PARTITION BY RANGE (d); ALTER TABLE sleeps OWNER TO regress_sleeper;
DO $$ BEGIN FOR n IN 1 .. 5 LOOP
	EXECUTE format('CREATE TABLE sleeps_%s PARTITION OF sleeps FOR VALUES FROM (%L) TO (%L)', n, date '2020-01-01' + n,
		date '2020-01-02' + n);
	EXECUTE format('ALTER TABLE sleeps_%s OWNER TO regress_sleeper', n);
END LOOP; END $$;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, every, owner, settings)
  SELECT 'sleeps ' || n, 'sleeps', 'regress_slow', '1 year', '0', '1 s', 'regress_sleeper', '{"swap_after": "infinity"}'
	FROM generate_series(1, 5) n;
SQL
look();
ok($node->poll_query_until('postgres', "SELECT count(*) > 0 FROM index_mover_jobs WHERE policy ~ 'sleeps' AND status = 'running'"),
	'jobs of a role that last');
moves_ok('and hold up no other role');
sql("DELETE FROM tier_policy WHERE name ~ 'sleeps'; SELECT cancel_move(job) FROM index_mover_jobs WHERE policy ~ 'sleeps'");
wait_for_jobs($node);

# while a session has the table of policies locked, none is carried out, and one line says so
{
	my $session = IndexMover::Session->new($node);
	my $locked = 'could not look into database "postgres": could not obtain lock on the tables of extension "index_mover"';
	sql("UPDATE tier_policy SET every = '1 s'");
	$settle->();
	$session->run('BEGIN; LOCK TABLE tier_policy');
	$before = -s $node->logfile;
	look();
	ok(poll_log($locked, $before), 'the table of policies is locked');
	look(), sleep 2 foreach 1 .. 2;
	is(scalar(() = PostgreSQL::Test::Utils::slurp_file($node->logfile, $before) =~ /LOG:  .*\Q$locked\E/g), 1, 'it is said once');
	is($session->run("SELECT count(*) FROM index_mover_check() WHERE kind = 'stopped policies'"), 0, 'who has locked it, sees no fault');
	$session->end;
	moves_ok('it goes on');
	sql('CREATE FUNCTION foreigner() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; '
		. 'CREATE TRIGGER foreigner BEFORE INSERT ON tier_policy FOR EACH ROW EXECUTE FUNCTION foreigner()');
	look();
	ok(poll_log('could not look into database "postgres": no tier policy is carried out', $before), 'nor beside a trigger of another role');
	sql('DROP TRIGGER foreigner ON tier_policy');
	moves_ok('it goes on without');
}

# the clock set back: as if the last run were tomorrow
sql("UPDATE index_mover.policy_run SET started_at = now() + interval '1 day'");
moves_ok('a clock that was set back');

# no worker slot: it waits for one
my $slots = sql("SELECT current_setting('max_worker_processes')");
$node->append_conf('postgresql.conf', 'max_worker_processes = 2');    # the launcher, logical replication
$node->restart;
sql('ALTER TABLE events_1 SET TABLESPACE pg_default');
ok(poll_log('has to wait for a free background worker slot'), 'no slot is free: it says so');
$node->append_conf('postgresql.conf', "max_worker_processes = $slots");

sub poll_log
{
	my ($text, $offset) = @_;
	foreach (1 .. 600)
	{
		return 1 if index(PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset // 0), $text) >= 0;
		sleep 0.1;
	}
	return 0;
}

# ---- a restart, a crash --------------------------------------------------------------------------
$node->restart;
moves_ok('after a restart');
$node->stop('immediate');
$node->start;
moves_ok('after a crash');
# which a look itself, or a cleanup, may have been the cause of: so a crash soon after a start is followed by a pause
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
my $pauses = qr/^(\S+ \S+) .*: the launcher visits no database for 10 seconds$/m;
foreach (1 .. 5)
{
	my $session = IndexMover::Session->new($node);
	$before = -s $node->logfile;
	kill 'KILL', $session->pid;
	$session->kill_client;
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $before);
	$node->poll_query_until('postgres', 'SELECT true') or die;
	$node->wait_for_log(qr/reinitializing(?s:.*)starting background worker process "index_mover (?!launcher|device watch)/, $before);
	# (since the start, a busy machine may have needed longer than is soon)
	last if slurp_file($node->logfile, $before) =~ $pauses;
}
my $visits = qr/^(\S+ \S+) .*starting background worker process "index_mover (?!launcher|device watch)/m;
my ($paused_at, $visited_at) = slurp_file($node->logfile, $before) =~ /$pauses(?s:.*?)$visits/;
isnt($paused_at, undef, 'after a crash soon after the start, the launcher pauses');
is(sql("SELECT timestamp '$visited_at' - timestamp '$paused_at' > '9 s'"), 't', 'and neither looks nor cleans up meanwhile');
moves_ok('after a crash soon after the start');

# ---- what others do to databases -------------------------------------------------------------------
sql('CREATE DATABASE "Other"');
sql("CREATE EXTENSION index_mover CASCADE; $tables", 'Other');
look();
foreach my $n (1 .. 3)
{
	my $start = time;
	sql(qq(CREATE DATABASE copy$n TEMPLATE "Other"));
	cmp_ok(time - $start, '<', 5, "CREATE DATABASE .. TEMPLATE, $n");
	look();
	sql("DROP DATABASE copy$n");
}
moves_ok('in another database', undef, 'Other');
foreach (1 .. 3)
{
	look();
	sql('DROP EXTENSION index_mover', 'Other');
	look();
	sql("CREATE EXTENSION index_mover", 'Other');
}
pass('DROP EXTENSION');
look();
sql('DROP DATABASE "Other"');
is(sql(q{SELECT count(*) FROM pg_database WHERE datname = 'Other'}), 0, 'DROP DATABASE');

# ---- failover --------------------------------------------------------------------------------------
sql('CREATE UNLOGGED TABLE unlogged (n int PRIMARY KEY)');
sql("SELECT take_index_sample(); UPDATE index_mover.sample SET taken_at = taken_at - interval '1000 s', blks_read = blks_read - 1e12");
my $heat = 'SELECT count(*) FROM relation_heat WHERE reads_per_second > 1e6';
cmp_ok(sql($heat), '>', 0, 'the samples of a busy server');
$node->backup('before');
my $standby = PostgreSQL::Test::Cluster->new('scheduler_standby');
$standby->init_from_backup($node, 'before', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover scheduler'"), 0,
	'nothing of it runs on a standby');
like($standby->safe_psql('postgres', 'SELECT policy FROM tier_plan() LIMIT 1'), qr/^\w+$/, 'where policies can be planned');
is($standby->safe_psql('postgres', 'SELECT DISTINCT scheduled, next_run FROM tier_policy_status'), 'f|', 'and the status says so');
is($standby->safe_psql('postgres', "SELECT kind, object FROM index_mover_check() WHERE kind <> 'failing policy'"), '',
	'the check asks for no scheduler, nor for the files of unlogged tables');
is($standby->safe_psql('postgres', "$heat OR samples > 0"), 0, 'the samples of the primary tell nothing of it');
$node->stop;
$standby->promote;
ok($standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()'), 'a failover');
moves_ok('the new primary goes on', $standby);
is($standby->safe_psql('postgres', $heat), 0, 'nor do they of the new primary');
is($standby->safe_psql('postgres', "SELECT take_index_sample() IS NOT NULL; SELECT pg_sleep(1.1); SELECT count(*) FROM relation_heat "
	. "WHERE known_since > now() - interval '1 s'"), "t\n\n0", 'which takes its own of all relations');

# ---- what it costs -----------------------------------------------------------------------------------
SKIP:
{
	skip 'with faults only', 1 unless faults();
	$standby->safe_psql('postgres', 'DELETE FROM tier_policy; SELECT pg_reload_conf()');
	sleep 5;
	my $idle = $standby->safe_psql('postgres', $launcher);
	my $wakes = sub { return PostgreSQL::Test::Utils::slurp_file("/proc/$idle/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : die };
	my $first = $wakes->();
	sleep 60;
	my $count = $wakes->() - $first;
	note "wake-ups of the launcher in 60 s, with 3 databases named: $count";
	cmp_ok($count, '<=', 6, 'at most one wake-up in 10 s');
}
$standby->stop;

# ---- settings for sessions -------------------------------------------------------------------
# A serializable transaction that is deferrable would wait for the others that write.
{
	$node->start;
	my $writer = IndexMover::Session->new($node);
	$writer->run('BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO events VALUES (\'2020-01-11\', 1)');
	$node->append_conf('postgresql.conf', "default_transaction_isolation = serializable\ndefault_transaction_read_only = on\n"
			. 'default_transaction_deferrable = on');
	my $from = -s $node->logfile;
	$node->reload;
	$node->wait_for_log(qr/ unregistering background worker "index_mover scheduler in postgres"/, $from);
	sleep(1);
	is($writer->run("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover scheduler' AND wait_event = 'SafeSnapshot'"),
		0, 'serializable, read only and deferrable by default: the launcher waits for no transaction');
	$writer->run('ROLLBACK');
	$writer->end;
	$node->append_conf('postgresql.conf', "default_transaction_isolation = 'read committed'\ndefault_transaction_read_only = off\n"
			. 'default_transaction_deferrable = off');
	$node->reload;
}

# ---- a ledger that is locked -----------------------------------------------------------------
sql("BEGIN; LOCK TABLE index_mover.ledger; PREPARE TRANSACTION 'ledger'");
my $before_ledger = -s $node->logfile;
$node->restart;
$node->wait_for_log(qr/WARNING: .*could not look for leftovers of moves\n.*DETAIL:  Another session has locked the table/, $before_ledger);
ok(1, 'a ledger that stays locked: a cleanup does not wait without limit, and says so');
sql("ROLLBACK PREPARED 'ledger'");
done_testing();
