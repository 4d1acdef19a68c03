# Policies one by one, and their owners.  What is wrong with one is its row, and the
# others are planned and carried out.  What a plan says moves is exactly what a run
# moves, whatever hinders it.  A policy is planned and carried out as its owner, roles do
# not see each other's, and no role becomes the owner of what another has written.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Temp;
use IndexMover::Session;
use IndexMover::Test;
use IndexMover::Tiers;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();    # file systems that say what the test says

my $node = new_node('policies', conf => 'max_worker_processes = 16');
sub sql { return $node->safe_psql('postgres', $_[0]); }
sub as { return $node->safe_psql('postgres', $_[1], extra_params => [ '-U', $_[0] ]); }

sub error_of
{
	my ($role, $sql) = @_;
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql", extra_params => [ '-U', $role ]);
	return $err =~ /ERROR:  (\w+: .*)/ ? $1 : 'none';
}

# ---- owners ----------------------------------------------------------------------------------
my $super = sql('SELECT current_user');
sql(<<'SQL');
CREATE ROLE index_admin; CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE team;
GRANT index_admin TO alice, bob; GRANT team TO alice;
GRANT SELECT, INSERT, UPDATE, DELETE ON tier_policy TO index_admin;
GRANT EXECUTE ON FUNCTION tier_plan, run_tier_policies TO index_admin;
GRANT SELECT ON tier_policy_status TO index_admin;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO index_admin;
GRANT CREATE, USAGE ON SCHEMA public TO index_admin;
SQL
foreach my $role (qw(alice bob))
{
	as($role, <<SQL);
CREATE TABLE ${role}s (d date, n int) PARTITION BY RANGE (d);
CREATE TABLE ${role}s_1 PARTITION OF ${role}s FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE INDEX ON ${role}s (n);
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('$role', '${role}s', 'regress_slow', '1 year');
SQL
}
is(as('alice', 'SELECT name, owner FROM tier_policy'), 'alice|alice', 'a role sees its own');
is(as('bob', 'SELECT policy, relation, moves FROM tier_plan()'), 'bob|bobs_1|t', 'and plans its own');
is(as('alice', "DELETE FROM tier_policy WHERE name = 'bob' RETURNING 1; UPDATE tier_policy SET enabled = false WHERE name = 'bob' "
	. "RETURNING 1"), '', 'it cannot write another\'s');
is(as('alice', 'SELECT policy FROM tier_policy_status'), 'alice', 'nor does the status show more');
is(as('alice', "SELECT policy FROM tier_policy_status WHERE policy <> 'alice' AND (1 / (policy = 'alice')::int) > 0"), '',
	'whatever a condition gets to see');
# of two policies for one table, the second does not name the first if that is another role's
sql(q{INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('a first', 'alices', 'regress_fast', '1 year')});
is(sql(q{SELECT reason FROM tier_plan() WHERE policy = 'alice' AND relation = 'alices_1'::regclass}),
	'its rows end at 2020-02-01; but a policy earlier in the order covers its table', 'nor does a reason name it');
sql("DELETE FROM tier_policy WHERE name = 'a first'");
sql('CREATE ROLE watcher LOGIN IN ROLE pg_monitor');
is(as('watcher', 'SELECT policy, owner FROM tier_policy_status ORDER BY 1'), "alice|alice\nbob|bob", 'but to monitors all');
is(error_of('alice', "SELECT * FROM tier_plan('bob')"), '42704: tier policy "bob" does not exist', 'nor plan it');
is(error_of('alice', "SELECT * FROM run_tier_policies('bob')"), '42704: tier policy "bob" does not exist', 'nor run it');
my $insert = 'INSERT INTO tier_policy (name, relation, to_tablespace, older_than';
my $may_not = '42501: must be able to SET ROLE';
is(error_of('alice', "$insert, owner) VALUES ('x', 'alices', 'regress_slow', '1 day', '$super')"), qq($may_not "$super"),
	'no owner that it is not: a superuser');
is(error_of('alice', "$insert, owner, owner_oid) VALUES ('x', 'alices', 'regress_slow', '1 day', '$super', 10)"), qq($may_not "$super"),
	'with its OID');
is(error_of('alice', "$insert, owner) VALUES ('x', 'alices', 'regress_slow', '1 day', 'bob')"), qq($may_not "bob"), 'another role');
is(error_of('alice', "$insert, owner) VALUES ('x', 'alices', 'regress_slow', '1 day', 'absent')"), '42704: role "absent" does not exist',
	'no such role');
is(error_of('alice', "UPDATE tier_policy SET owner = '$super'"), qq($may_not "$super"), 'by UPDATE');
sql('CREATE ROLE bypasser LOGIN BYPASSRLS IN ROLE pg_write_all_data, pg_read_all_data');
is(error_of('bypasser', "UPDATE tier_policy SET enabled = true WHERE name = 'alice'"), qq($may_not "alice"),
	'nor does one write what others run who bypasses row security');
is(error_of('bypasser', "DELETE FROM tier_policy WHERE name = 'alice'"), qq($may_not "alice"), 'nor delete it');
sql('GRANT TRUNCATE, TRIGGER ON tier_policy TO bypasser');
is(error_of('bypasser', 'TRUNCATE tier_policy'), qq($may_not "alice"), 'nor all at once');
sql('GRANT SET ON PARAMETER session_replication_role TO alice');
is(error_of('alice', "SET session_replication_role = replica; UPDATE tier_policy SET owner = '$super', owner_oid = 10"),
	qq($may_not "$super"),
	'nor as a replica');
as('alice', 'UPDATE tier_policy SET owner_oid = 10');
is(as('alice', 'SELECT owner, owner_oid::regrole FROM tier_policy'), 'alice|alice', 'its OID is what it is');
is(error_of('alice', "INSERT INTO tier_policy (name, relation, to_tablespace, older_than) SELECT 'bob', 'alices', 'regress_slow', '1 "
	. "day' ON CONFLICT (name) DO UPDATE SET enabled = true"),
	'42501: new row violates row-level security policy (USING expression) for table "tier_policy"', 'nor over what it does not see');
as('alice', "$insert, owner) VALUES ('of the team', 'alices', 'regress_fast', '1 year', 'team')");
is(as('alice', "SELECT reason FROM tier_plan('of the team')"),
	'its rows end at 2020-02-01; but it is skipped. Must be owner of table "alices_1".',
	'a role that it may set, whose privileges count');
as('alice', "DELETE FROM tier_policy WHERE name = 'of the team'");

# settings are checked as for the owner, when they are written
is(error_of('alice', "UPDATE tier_policy SET settings = '{\"on_blocker\": \"terminate\"}'"),
	'42501: permission denied to set parameter "index_mover.on_blocker"', 'a setting of superusers');
is(error_of('alice', "UPDATE tier_policy SET settings = '{\"max_rat\": 1}'"), '22023: unrecognized setting "max_rat"', 'one that is none');
is(error_of($super, "UPDATE tier_policy SET settings = '{\"max_lock_time\": 5}' WHERE name = 'alice'"),
	'42501: permission denied to set parameter "index_mover.max_lock_time"', 'nor does it help who writes it');

# each process that looks for policies reads all of them
is(error_of('alice', q(UPDATE tier_policy SET settings = jsonb_build_object('swap_after', repeat(' ', 2048)))),
	'23514: new row for relation "tier_policy" violates check constraint "settings must be shorter than 2048 bytes"', 'long settings');

# an attribute of a membership decides that from 16 on
SKIP:
{
	skip 'memberships with and without SET are of 16', 2 if $node->pg_version < 16;
	sql('CREATE ROLE heir LOGIN; GRANT index_admin TO heir; GRANT alice TO heir WITH INHERIT TRUE, SET FALSE');
	is(as('heir', 'SELECT name FROM tier_policy'), 'alice', 'a role that inherits, but cannot SET ROLE, sees a policy');
	is(error_of('heir', 'UPDATE tier_policy SET enabled = true'), qq($may_not "alice"), 'and does not change it');
	sql('DROP OWNED BY heir; DROP ROLE heir');
}

# ---- a trigger of a user ---------------------------------------------------------------------
my $check = q{SELECT detail, command FROM index_mover_check() WHERE kind = 'stopped policies'};
my $stopped_ok = sub {
	my ($reason, $name) = @_;
	my ($is, $command) = split /\|/, sql($check);
	is($is, $reason, "$name: the check says so");
	foreach my $call ('tier_plan', 'run_tier_policies')
	{
		my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT * FROM $call()");
		like($err, qr/ERROR:  55000: no tier policy is carried out\nDETAIL:  \Q$reason\E\nHINT:  To mend this: \Q$command\E/,
			"$name: $call()");
	}
	sql($command);
	return;
};
sql('CREATE SCHEMA bypassed AUTHORIZATION bypasser');
as('bypasser', <<'SQL');
CREATE FUNCTION bypassed.takes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	NEW.owner := (SELECT rolname FROM pg_catalog.pg_roles WHERE oid = 10); NEW.owner_oid := 10; RETURN NEW; END $$;
CREATE TRIGGER tier_policy_check_after BEFORE INSERT OR UPDATE ON public.tier_policy FOR EACH ROW EXECUTE FUNCTION bypassed.takes();
SQL
is(error_of('bypasser', "$insert) VALUES ('x', 'alices', 'regress_slow', '1 day')"), qq($may_not "$super"),
	'an owner that another trigger sets');
$stopped_ok->('Trigger "tier_policy_check_after" on table "tier_policy" is not of index_mover.', 'a trigger of a user');
sql('CREATE RULE "a; rule" AS ON DELETE TO tier_policy DO ALSO SELECT 1');
$stopped_ok->('Rule "a; rule" on table "tier_policy" is not of index_mover.', 'a rule');
sql('CREATE TABLE "a child" () INHERITS (tier_policy)');
$stopped_ok->('Table "a child" inherits from table "tier_policy".', 'a child');
sql('DROP TABLE "a child"');
# pg_restore --disable-triggers leaves them so
sql('ALTER TABLE tier_policy DISABLE TRIGGER ALL; ALTER TABLE tier_policy ENABLE TRIGGER ALL');
$stopped_ok->("Trigger \"$_\" of table \"tier_policy\" is not enabled as it must be.", 'after pg_restore --disable-triggers')
  foreach qw(not_by_replication tier_policy_check tier_policy_owner tier_policy_truncate);
# who holds TRIGGER can replace one of ours; each command leads to the next, and in the end it is as it was made
my $definitions = "SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'tier_policy'::regclass ORDER BY 1";
my $as_made = sql($definitions);
as('bypasser', 'CREATE OR REPLACE TRIGGER tier_policy_check BEFORE UPDATE ON public.tier_policy FOR EACH ROW EXECUTE FUNCTION '
	. 'bypassed.takes()');
$stopped_ok->('Trigger "tier_policy_check" on table "tier_policy" is not of index_mover.', 'one in place of ours');
sql("DROP TRIGGER $_ ON tier_policy") foreach qw(not_by_replication tier_policy_owner tier_policy_truncate);
foreach my $trigger (qw(not_by_replication tier_policy_check tier_policy_owner tier_policy_truncate))
{
	$stopped_ok->("Trigger \"$trigger\" of table \"tier_policy\" is missing.", 'one of ours that is missing');
	$stopped_ok->("Trigger \"$trigger\" of table \"tier_policy\" is not enabled as it must be.", 'and is made again');
}
is(sql($definitions), $as_made, 'the triggers are what they were');
sql('CREATE TABLE refers (policy name REFERENCES tier_policy)');
is(sql($check), '', 'all is well again; a foreign key is no trigger');
sql('DROP TABLE refers; DROP SCHEMA bypassed CASCADE; REVOKE TRUNCATE, TRIGGER ON tier_policy FROM bypasser');

# a table of another version, as if only the library had been replaced
sql('ALTER TABLE tier_policy RENAME COLUMN key_unit TO now_function');
foreach my $call ('* FROM tier_plan()', '* FROM run_tier_policies()', '* FROM tier_policy_status', '* FROM index_mover_check()')
{
	is(error_of($super, "SELECT $call"), '55000: table "tier_policy" is of another version of extension "index_mover"',
		"another version: $call");
}
is(error_of($super, 'UPDATE tier_policy SET enabled = true'), '55000: table "tier_policy" is of another version of extension "index_mover"',
	'nor is it written');
is(error_of($super, q{SELECT * FROM move_table('alices_1', 'regress_fast', dry_run => true)}), 'none', 'but calls by hand need no policy');
sql('ALTER TABLE tier_policy RENAME COLUMN now_function TO key_unit');

# our function as a trigger of another table, and of the wrong kind
sql('CREATE TABLE another (LIKE tier_policy INCLUDING DEFAULTS)');
foreach my $case ([ 'BEFORE INSERT ON another FOR EACH ROW', 'for table "tier_policy"' ],
	[ 'AFTER INSERT ON another', 'for table "tier_policy"' ],
	[ 'BEFORE TRUNCATE ON another', 'for table "tier_policy"' ], [ 'BEFORE INSERT ON tier_policy', 'for row' ])
{
	my ($when, $must) = @$case;
	my ($table) = $when =~ /ON (\w+)/;
	sql("CREATE TRIGGER ours $when EXECUTE FUNCTION index_mover.tier_policy_check()");
	is(error_of($super, $when =~ /TRUNCATE/ ? "TRUNCATE $table"
			: "INSERT INTO $table (name, to_tablespace, older_than, min_stay) VALUES ('x', 'regress_slow', '1 s', '0')"),
		"39P01: function \"tier_policy_check\" must be fired $must", "our function, $when");
	sql("DROP TRIGGER ours ON $table");
}
is(error_of($super, 'SELECT index_mover.tier_policy_check() IS NULL'),
	'39P01: function "tier_policy_check" was not called by trigger manager', 'nor as a function');
sql('DROP TABLE another');

# ---- whoever plans and runs ----------------------------------------------------------------------
is(sql('SELECT policy, relation, moves FROM tier_plan() ORDER BY policy'), "alice|alices_1|t\nbob|bobs_1|t",
	'a superuser plans all of them');
# one's own jobs are waited for, and those of others begin at once; theirs may last
as('alice', q(UPDATE tier_policy SET settings = '{"swap_after": "infinity"}'));
sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('c own', 'bobs', 'regress_fast', '1 year')");
is(sql('SELECT name, kind, status FROM run_tier_policies(wait => true)'),
	"alices_1|table|queued\nalices_1_n_idx|index|queued\nbobs_1|table|queued\n"
	. 'bobs_1_n_idx|index|queued', 'a superuser runs them, and waits for no other');
poll_until($node, "SELECT result FROM tier_policy_status WHERE policy = 'alice'", 'running', 'the other\'s job goes on');
sql("SELECT cancel_move(job) FROM index_mover_jobs WHERE policy = 'alice' AND status = 'running'; DELETE FROM tier_policy "
	. "WHERE name = 'c own'");
wait_for_jobs($node);
as('alice', 'UPDATE tier_policy SET settings = NULL');
is(as('alice', 'SELECT name, kind, status FROM run_tier_policies(wait => true)'), "alices_1|table|moved\nalices_1_n_idx|index|moved",
	'one\'s own are waited for');
is(sql("SELECT string_agg(DISTINCT policy || ' ' || role, ', ') FROM index_mover_history JOIN index_mover_jobs USING (job, role)"),
	'alice alice, bob bob', 'jobs of their owners');

# an owner that is gone, or another of its name
sql('DROP OWNED BY bob');
sql('REASSIGN OWNED BY bob TO alice; DROP ROLE bob; CREATE ROLE bob SUPERUSER LOGIN');
sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay) VALUES ('well', 'alices', 'regress_fast', '1 year', "
	. "'0')");
my $again = 'the policy has no valid owner';
is(sql("SELECT policy, moves, reason FROM tier_plan('bob')"), "bob|f|$again", 'a role of the same name is another one');
my ($rc, $out, $err) = $node->psql('postgres', 'SELECT name, status FROM run_tier_policies(wait => true)');
is("$rc $out", "0 alices_1|moved\nalices_1_n_idx|moved", 'others run');
like(sql("SELECT command FROM index_mover_check() WHERE object = 'bob'"),
	qr/^UPDATE public.tier_policy SET owner = 'bob' WHERE name OPERATOR\(pg_catalog.=\) 'bob';$/, 'the check has the command');
like($err, qr/WARNING:  policy "bob" moves nothing: $again\nHINT:  Update the column "owner" of its row/, 'and it is a WARNING');
sql("ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check; UPDATE tier_policy SET owner = NULL WHERE name = 'bob'; "
	. "ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check");
is(error_of('alice', "UPDATE tier_policy SET owner = 'alice' WHERE owner IS NULL"), 'none', 'no role sees a row without an owner');
is(error_of($super, "UPDATE tier_policy SET owner = 'bob' WHERE owner IS NULL"), 'none', 'a superuser sets it');
sql("ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check; UPDATE tier_policy SET owner_oid = NULL WHERE name = 'bob'; "
	. "ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check");
sql("UPDATE tier_policy SET max_bytes_per_run = 1 WHERE name = 'bob'; DELETE FROM index_mover.policy_run");
is(sql("SELECT policy, moves, reason FROM tier_plan('bob')"), "bob|f|$again", 'writing it makes no superuser its owner');
is(error_of('alice', "UPDATE tier_policy SET owner = 'alice' WHERE name = 'bob'"), 'none', 'nor a role that does not see it');
sql("UPDATE tier_policy SET owner = 'alice' WHERE name = 'bob'");
is(sql("SELECT count(*) > 0, bool_or(reason ~ 'owner') FROM tier_plan('bob')"), 't|f', 'but setting it does');
sql('ALTER ROLE alice RENAME TO alicia');
is(sql("SELECT DISTINCT reason FROM tier_plan('alice')"), $again, 'a role that was renamed');
sql("ALTER ROLE alicia RENAME TO alice; REVOKE CREATE ON TABLESPACE regress_slow FROM index_admin; UPDATE tier_policy SET min_stay = '0'");
is(as('alice', "SELECT reason FROM tier_plan('alice')"),
	'its rows end at 2020-02-01; but it is skipped. Permission denied for tablespace "regress_slow".',
	'a role that has lost a privilege');
sql("SELECT count(*) FROM move_table('alices', 'regress_slow', indexes => true)");
is(as('alice', "SELECT count(*) FROM tier_plan('alice')"), 0, 'nothing of what is in place');
sql('DELETE FROM tier_policy');

# ---- each by itself ----------------------------------------------------------------------------
sql(<<'SQL');
CREATE TABLE good (d date) PARTITION BY RANGE (d);
CREATE TABLE good_1 PARTITION OF good FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE TABLE far (d date) PARTITION BY RANGE (d);
CREATE TABLE far_1 PARTITION OF far FOR VALUES FROM ('2020-01-01') TO ('300000-01-01');
CREATE TABLE far_2 PARTITION OF far FOR VALUES FROM ('300000-01-01') TO ('infinity');
CREATE TABLE far_times (t timestamp) PARTITION BY RANGE (t);
CREATE TABLE far_times_1 PARTITION OF far_times FOR VALUES FROM ('2020-01-01') TO ('294276-12-31 23:00');
CREATE MATERIALIZED VIEW plain AS SELECT date '2020-01-01' AS d;
CREATE VIEW viewed AS SELECT 1;
CREATE TABLE gone (d date) PARTITION BY RANGE (d);
CREATE SCHEMA going;
CREATE ROLE loser;
INSERT INTO tier_policy (name, relation, schema, to_tablespace, older_than) VALUES
	('far', 'far', NULL, 'regress_slow', '1 day'), ('far times', 'far_times', NULL, 'regress_slow', '1 day'),
		('farther', 'good', NULL, 'regress_slow', '300000 years'),
		('gone', 'gone', NULL, 'regress_slow', '1 day'),
	('good', 'good', NULL, 'regress_slow', '1 day'), ('no schema', NULL, 'going', 'regress_slow', '1 day'),
		('no settings', 'good', NULL, 'regress_slow', '1 day'),
	('plain', 'plain', NULL, 'regress_slow', '1 day'), ('shared', 'good', NULL, 'pg_global', '1 day'),
		('elsewhere', 'good', 'pg_catalog', 'regress_slow', '1 day'), ('loser', 'good', NULL, 'regress_slow', '1 day');
INSERT INTO tier_policy (name, relation, schema, to_tablespace, idle_for) VALUES
	('view', 'viewed', NULL, 'regress_slow', '1 day'), ('own', 'tier_policy', NULL, 'regress_slow', '1 day'),
	('catalog', 'pg_class', NULL, 'regress_slow', '1 day'), ('idle elsewhere', 'plain', 'pg_catalog', 'regress_slow', '1 day');
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget) VALUES ('nowhere', 'regress_fast', 'no_such_place', 1),
	('shared budget', 'pg_global', 'regress_fast', 1);
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, start_at, stop_at)
  VALUES ('from nowhere', 'no_such_place', 'regress_fast', 0.9, 0.8);
UPDATE tier_policy SET owner = 'loser' WHERE name = 'loser';
DROP TABLE gone; DROP SCHEMA going; DROP ROLE loser;
ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check;
UPDATE tier_policy SET settings = '{"max_rate": "fast"}' WHERE name = 'no settings';
ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check;
SQL
is(sql("SET timezone = 'Etc/GMT+12'; SELECT policy, relation, moves, regexp_replace(reason, 'OID \\d+', 'OID N') FROM tier_plan() "
		. 'ORDER BY policy, relation::text'),
	<<"ROWS" =~ s/\n\z//r, 'what is wrong with each');
catalog||f|"pg_class" is not a table or materialized view of users
elsewhere||f|"good" is not in schema "pg_catalog"
from nowhere||f|tablespace "no_such_place" does not exist
gone||f|relation with OID N does not exist
good|good_1|t|its rows end at 2020-02-01
idle elsewhere||f|"plain" is not in schema "pg_catalog"
loser||f|$again
no schema||f|schema "going" does not exist
no settings||f|invalid value for parameter "index_mover.max_rate": "fast"
nowhere||f|tablespace "no_such_place" does not exist
own||f|"tier_policy" is not a table or materialized view of users
plain||f|"plain" is not a partitioned table
shared||f|cannot move relations in to or out of pg_global tablespace
shared budget||f|cannot move relations in to or out of pg_global tablespace
view||f|"viewed" is not a table or materialized view of users
ROWS
($rc, $out, $err) = $node->psql('postgres', 'SELECT name, status FROM run_tier_policies(wait => true)');
is("$rc $out", '0 good_1|moved', 'and the good one is carried out');
is(scalar(() = $err =~ /WARNING:  policy "[\w ]+" moves nothing/g), 14, 'a WARNING for each of the others');
is(sql("SELECT reason FROM tier_plan('plain') ORDER BY 1"),
	qq("plain" is not a partitioned table\nits last run has failed: "plain" is not a partitioned table), 'the plan tells of the run');
$node->psql('postgres', 'SELECT * FROM run_tier_policies()');
is(sql("SELECT count(*) FROM tier_plan() WHERE reason ~ '^it has failed 2 times in a row: '"), 14, 'and of the second');
sql("UPDATE tier_policy SET name = name, to_tablespace = to_tablespace WHERE name = 'plain'");
is(sql("SELECT result, message, job, next_run FROM tier_policy_status WHERE policy = 'plain'"),
	'failed|"plain" is not a partitioned table||', 'monitors see it');
is(sql("SELECT result, job IS NOT NULL FROM tier_policy_status WHERE policy = 'good'"), 'nothing to move|f', 'and what succeeded');
sql("DELETE FROM tier_policy; INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('plain', 'far', "
	. "'regress_slow', '1 day')");
is(sql('SELECT count(*) FROM tier_plan()'), 0, 'a new policy has no past, and a bound of the year 300000 is not old');

$node->psql('postgres', "BEGIN; $insert) VALUES ('not yet', 'good', 'regress_slow', '1 day'); SELECT * FROM run_tier_policies('not yet')");
sql("$insert) VALUES ('not yet', 'good', 'regress_slow', '1 day')");
is(sql("SELECT count(*) FROM tier_plan('not yet')"), 0, 'nor has one that a run did not see');
$node->psql('postgres', "UPDATE tier_policy SET to_tablespace = 'regress_fast', min_stay = '0' WHERE name = 'not yet'; BEGIN; "
	. 'SELECT * FROM run_tier_policies()');
is(sql("SELECT last_run IS NOT NULL, job, result FROM tier_policy_status WHERE policy = 'not yet'"), 'f||',
	'the status tells of no run that was rolled back');

# what must never be stored: each would stop others, or mean something else
foreach my $case (
	(map { [ "every = '$_'", 'every must be from a second to 100 years' ] } '0', '101 years', '178000000 years',
		'5900000 years -2124000000 days'),
	[ 'relation = 0', 'relation must not be 0' ],
	[ "name = ''", 'name must not be empty' ],
	[ q(window_start = '24:00', window_end = '0:00'), 'window_start and window_end must not be the same' ])
{
	my (undef, undef, $err) = $node->psql('postgres', "UPDATE tier_policy SET $case->[0]");
	like($err, qr/violates check constraint "\Q$case->[1]\E"/, "$case->[1]: $case->[0]");
}

# nor does a run wait for a session that deletes a policy
my $deleter = IndexMover::Session->new($node);
$deleter->run("BEGIN; DELETE FROM tier_policy WHERE name = 'not yet'");
unlike(($node->psql('postgres', "SET statement_timeout = '30s'; SELECT * FROM run_tier_policies()"))[2], qr/ERROR/,
	'a policy that is just deleted holds up no run');
$deleter->run('ROLLBACK');
$deleter->end;

# one that has locked the record of its last run deletes nothing: the next one is on record when it ends
sql("$insert) VALUES ('locked', 'good', 'regress_slow', '1 day'); SELECT count(*) FROM run_tier_policies('locked')");
my $reader = IndexMover::Session->new($node);
my $last = $reader->run("BEGIN; SELECT started_at FROM index_mover.policy_run WHERE policy = 'locked' FOR UPDATE");
my $runner = IndexMover::Session->new($node);
$runner->send("SELECT count(*) FROM run_tier_policies('locked')");
poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'transactionid'", '1',
	'a run waits for a session that reads the record of the last one');
$reader->run('COMMIT');
$runner->answer;
is(sql("SELECT started_at > '$last' FROM index_mover.policy_run WHERE policy = 'locked'"), 't', 'and is on record itself');
$_->end foreach $reader, $runner;
sql("DELETE FROM tier_policy WHERE name = 'locked'");

# nor does one with a policy of his own whose name has the same hash
my ($mine, $theirs) = split /\|/, sql(q{SELECT a.name, b.name
  FROM (SELECT 'a' || g AS name, hashname(('a' || g)::name) AS hash FROM generate_series(1, 100000) g) a
  JOIN (SELECT 'b' || g AS name, hashname(('b' || g)::name) AS hash FROM generate_series(1, 100000) g) b USING (hash) LIMIT 1});
foreach my $case ([ alice => $mine ], [ bob => $theirs ])
{
	my ($role, $name) = @$case;
	as($role, "INSERT INTO tier_policy (name, to_tablespace, older_than) VALUES ('$name', 'regress_slow', '1000 years')");
}
my $claimer = IndexMover::Session->new($node);
$claimer->run("SET ROLE alice; BEGIN; SELECT count(*) FROM run_tier_policies('$mine')");
(undef, undef, my $said) = $node->psql('postgres', "SELECT count(*) FROM run_tier_policies('$theirs')");
unlike($said, qr/another session carries out/, 'no role is hindered by a policy of another role');
is(sql("SELECT count(*) FROM index_mover.policy_run WHERE policy = '$theirs'"), 1, 'whose run is on record');
$claimer->run('ROLLBACK');
$claimer->end;
sql("DELETE FROM tier_policy WHERE name IN ('$mine', '$theirs')");

# who may delete policies may lock the table: others do not wait for long
$deleter = IndexMover::Session->new($node);
$deleter->run('SET ROLE alice; BEGIN; LOCK TABLE tier_policy');
foreach my $call ('tier_plan()', 'run_tier_policies()')
{
	is(error_of($super, "SET statement_timeout = '60s'; SELECT * FROM $call"),
		'55P03: could not obtain lock on the tables of extension "index_mover"', "the table is locked: $call");
}
is(error_of($super, "SET statement_timeout = '60s'; SELECT * FROM evacuate_tablespace('regress_fast', 'pg_default', dry_run => true)"),
	'none', 'the table is locked: what only tells of policies does without');
my $locked = sub { return sql("SET statement_timeout = '30s'; $_[0]") };
is($locked->("SELECT count(*) FROM tier_policy_status WHERE policy IS NULL AND message = 'could not obtain lock on table "
	. "\"tier_policy\"'"), 1,
	'the status says so');
my $pid = $deleter->pid;
is($locked->($check), "Process $pid has locked table \"tier_policy\".|SELECT pg_catalog.pg_terminate_backend($pid);",
	'and the check, and who');
$deleter->end;
$deleter = IndexMover::Session->new($node);
$deleter->run('BEGIN; LOCK TABLE index_mover.policy_run');
is(error_of($super, "SET statement_timeout = '60s'; SELECT * FROM tier_plan()"), '55P03: canceling statement due to lock timeout',
	'nor for another of the extension');
$deleter->end;

# ---- a policy that can do nothing says so, once ---------------------------------------------------
sql('DELETE FROM tier_policy; REVOKE CREATE ON TABLESPACE regress_slow FROM index_admin; ALTER TABLE alices_1 SET TABLESPACE pg_default');
as('alice', "$insert, min_stay) VALUES ('alice', 'alices', 'regress_slow', '1 year', '0')");
my $hindered = 'public.alices_1: its rows end at 2020-02-01; but it is skipped. Permission denied for tablespace "regress_slow".';
my $status = "SELECT result, message FROM tier_policy_status WHERE policy = 'alice'";
my $log_before = -s $node->logfile;
foreach (1 .. 3)
{
	my (undef, undef, $err) = $node->psql('postgres', 'SELECT * FROM run_tier_policies()');
	like($err, qr/NOTICE:  policy "alice" moves nothing: \Q$hindered\E/, 'a run that is hindered');
}
is(sql($status), "hindered|$hindered", 'is a result');
is(sql("SELECT severity, object, detail FROM index_mover_check() WHERE kind = 'hindered policy'"), "warning|alice|$hindered",
	'and a row of the check');
sql('GRANT CREATE ON TABLESPACE regress_slow TO index_admin; SELECT count(*) FROM run_tier_policies()');
wait_for_jobs($node);
sql('SELECT count(*) FROM run_tier_policies()');
is(sql($status), 'nothing to move|', 'until it is mended');
my $logged = PostgreSQL::Test::Utils::slurp_file($node->logfile, $log_before);
is(join(' ', map { scalar(() = $logged =~ /$_/g) } 'LOG:  \w+: tier policy "alice" is hindered',
	'LOG:  \w+: tier policy "alice" is well again',
	'policy "alice" moves nothing'), '1 1 0', 'one line in the server log when it begins, and one when it ends');
# others' tables hinder no policy that names none, and are in its plan
as('alice', q{INSERT INTO tier_policy (name, to_tablespace, older_than, min_stay) VALUES ('any', 'regress_slow', '1 year', '0')});
sql("ALTER TABLE good_1 SET TABLESPACE pg_default; SELECT count(*) FROM run_tier_policies('any')");
is(sql("SELECT result, message FROM tier_policy_status WHERE policy = 'any'"), 'nothing to move|',
	'a policy for all tables does not have those of others to move');
is(sql("SELECT moves, reason FROM tier_plan('any') WHERE relation = 'good_1'::regclass"),
	'f|its rows end at 2020-02-01; but it is skipped. Must be owner of table "good_1".', 'which its plan says');
sql("REVOKE CREATE ON TABLESPACE regress_slow FROM index_admin; ALTER TABLE alices_1 SET TABLESPACE pg_default; "
	. "SELECT count(*) FROM run_tier_policies('any')");
is(sql("SELECT result FROM tier_policy_status WHERE policy = 'any'"), 'hindered', 'but those of its own');
sql("GRANT CREATE ON TABLESPACE regress_slow TO index_admin; DELETE FROM tier_policy WHERE name = 'any'");
# nor is each failure of the same move a line
sql("DELETE FROM tier_policy; ALTER TABLE good_1 SET TABLESPACE pg_default; $insert, min_stay, settings) VALUES ('fails', 'good', "
	. q{'regress_slow', '1 day', '0', '{"on_blocker": "fail", "lock_wait": "100ms"}')});
my $holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT FROM good_1');
$log_before = -s $node->logfile;
foreach (1 .. 3)
{
	sql('SELECT count(*) FROM run_tier_policies()');
	wait_for_jobs($node);
}
$holder->end;
is(sql("SELECT result FROM tier_policy_status WHERE policy = 'fails'"), 'failed', 'a move that fails each time');
is(scalar(() = PostgreSQL::Test::Utils::slurp_file($node->logfile, $log_before) =~ /LOG:  .*did not move table "public.good_1"/g), 1,
	'one line in the server log');
sql("DELETE FROM tier_policy; $insert) VALUES ('not yet', 'good', 'regress_slow', '1 day')");

# several sessions run the same policies: of each, one run at a time is recorded
sql("UPDATE tier_policy SET to_tablespace = 'regress_slow'");
$node->pgbench('-n -c 4 -t 10', 0, [qr{processed: 40/40}], [qr/^(?!.*duplicate key)/s], 'four sessions run them',
	{ '122_run' => 'SELECT count(*) FROM run_tier_policies()' });
wait_for_jobs($node);
# also if one of them does not commit: others pass it over
$deleter = IndexMover::Session->new($node);
$deleter->run('BEGIN; SELECT count(*) FROM run_tier_policies()');
like(($node->psql('postgres', "SET statement_timeout = '30s'; SELECT * FROM run_tier_policies()"))[2],
	qr/NOTICE:  another session carries out policy "not yet"/, 'a run that has not ended');
$deleter->run('ROLLBACK');
$deleter->end;

# ---- at another time --------------------------------------------------------------------------
cmp_ok(sql('SELECT count(*) FROM index_mover.policy_run'), '>', 0, 'there were runs');
sql(<<'SQL');
TRUNCATE tier_policy;
CREATE TABLE later (d timestamptz) PARTITION BY RANGE (d);
CREATE TABLE later_1 PARTITION OF later FOR VALUES FROM ('2030-01-01 UTC') TO ('2030-02-01 UTC');
CREATE TABLE counted (n int) PARTITION BY RANGE (n);
CREATE TABLE counted_1 PARTITION OF counted FOR VALUES FROM (0) TO (1000);
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, key_zero, keys_per_second) SELECT * FROM (VALUES
	('later'::name, 'later'::regclass, 'regress_slow'::name, '1 year'::interval, NULL, NULL),
	('counted', 'counted', 'regress_slow', '10 days', 950 - extract(epoch FROM now()) / 86400, 1 / 86400.0)) v;
SQL
is(sql('SELECT count(*) FROM index_mover.policy_run'), 0, 'they go with their policies, also by TRUNCATE');
is(sql('SELECT count(*) FROM tier_plan()'), 0, 'nothing is old');
is(sql("SELECT relation FROM tier_plan('later', at => '2031-02-02 UTC')"), 'later_1', 'but will be');
is(sql("SELECT count(*) FROM tier_plan('later', at => '2031-01-30 UTC')"), 0, 'and not before');
is(sql("SELECT relation FROM tier_plan('counted', at => now() + interval '61 days')"), 'counted_1', 'also by number');
is(sql("SELECT count(*) FROM tier_plan('counted', at => now() + interval '50 days')"), 0, 'and not before');

is(error_of($super, "SELECT * FROM tier_plan(at => '$_')"), '22023: at must be finite', "$_ is no time") foreach '-infinity', 'infinity';

# ---- idle ----------------------------------------------------------------------------------------
# a sample of 150 days ago, when the statistics are 200 days old
sql("ALTER DATABASE postgres SET index_mover.test_mutation = 'stats-age:200'");
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE SCHEMA idle;
CREATE TABLE idle.used (id int PRIMARY KEY); CREATE TABLE idle.scanned (id int PRIMARY KEY);
CREATE TABLE idle.changed (id int PRIMARY KEY); CREATE TABLE idle.sampled (id int PRIMARY KEY);
CREATE TABLE idle.unused (id int PRIMARY KEY);
INSERT INTO idle.used SELECT generate_series(1, 1000); INSERT INTO idle.scanned SELECT generate_series(1, 1000);
INSERT INTO idle.changed SELECT generate_series(1, 1000); INSERT INTO idle.sampled SELECT generate_series(1, 1000);
INSERT INTO idle.unused SELECT generate_series(1, 1000);
SELECT pg_stat_force_next_flush();
SQL
# from 16 on the statistics tell when their indexes were built
sql("SELECT pg_stat_reset_single_table_counters(c.oid) FROM pg_class c WHERE c.relnamespace = 'idle'::regnamespace");
sql("SELECT take_index_sample(); UPDATE index_mover.sample SET taken_at = taken_at - interval '150 days'");
sql('SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT * FROM idle.used WHERE id = 5; SELECT pg_stat_force_next_flush()');
sql('SELECT count(*) FROM idle.sampled TABLESAMPLE SYSTEM (100); SELECT pg_stat_force_next_flush()');
sql('SELECT count(*) FROM idle.scanned; INSERT INTO idle.changed VALUES (0); SELECT pg_stat_force_next_flush()');
sql("INSERT INTO tier_policy (name, schema, to_tablespace, idle_for) VALUES ('idle', 'idle', 'regress_slow', '100 days')");
my $idle = q{SELECT string_agg(substring(relation::text, 6), ' ' ORDER BY relation::text) FROM tier_plan('idle') WHERE moves};
is(sql($idle), 'sampled_pkey scanned_pkey unused unused_pkey', 'relations that were not used');
like(sql(q{SELECT reason FROM tier_plan('idle') LIMIT 1}), qr/^no scan or change on this server since \d{4}-/, 'and why');
sql("UPDATE tier_policy SET idle_of = 'index use'");
is(sql($idle), 'sampled sampled_pkey scanned scanned_pkey unused unused_pkey', 'sequential scans do not count');
sql("UPDATE tier_policy SET idle_of = 'change', parts = 'table'");
is(sql($idle), 'sampled scanned unused used', 'nor any scan');
sql("UPDATE tier_policy SET idle_of = 'use', parts = 'all', idle_for = '160 days'");
like(sql(q{SELECT relation IS NULL, moves, reason FROM tier_plan('idle')}),
	qr/^t\|f\|of \d+ relations nothing is known on this server before \d{4}-\S+ [\d:+]+$/, 'no sample reaches back so far');
is(sql("SELECT count(*) FROM tier_plan('idle', at => now() + interval '11 days') WHERE moves"), 4, 'but will');
is(sql('SET client_min_messages = error; SELECT count(*) FROM run_tier_policies(); SELECT result FROM tier_policy_status'), "0\nwaits",
	'so it waits');
# what no time alone ends is no wait
my $hindered = sub {
	my ($setting) = @_;
	sql('ALTER ROLE CURRENT_USER SET track_counts = off') if $setting;
	sql('SET client_min_messages = error; SELECT count(*) FROM run_tier_policies()');
	sql('ALTER ROLE CURRENT_USER RESET track_counts') if $setting;
	return sql("SELECT kind, detail FROM index_mover_check() WHERE object = 'idle'");
};
is($hindered->(1), 'hindered policy|no use is known while track_counts is off', 'without counters');
sql('CREATE TABLE samples AS SELECT * FROM index_mover.sample; DELETE FROM index_mover.sample');
is($hindered->(0), 'hindered policy|no use is known on this server before its first sample', 'without samples');
sql('INSERT INTO index_mover.sample SELECT * FROM samples; DROP TABLE samples');
sql("UPDATE tier_policy SET idle_for = '100 days'; ALTER DATABASE postgres RESET index_mover.test_mutation; SELECT pg_stat_reset()");
is(sql($idle), '', 'after a reset nothing is idle');

# ---- what hinders a move: the plan and the run agree ---------------------------------------------
my $h_parts = join("\n",
	map { sprintf("CREATE %s TABLE h_%s PARTITION OF h FOR VALUES FROM ('2020-01-%02d') TO ('2020-01-%02d')%s;", $_->[1], $_->[0], $_->[2],
		$_->[2] + 1, $_->[3] // '') }
	([ 'plain', '', 1 ], [ 'unlogged', 'UNLOGGED', 2 ], [ 'am', '', 3, ' USING other_heap' ], [ 'anothers', '', 4 ], [ 'busy', '', 5 ],
		[ 'index', '', 6 ], [ 'large', '', 7 ],
		[ 'moved', '', 8 ], [ 'there', '', 9, ' TABLESPACE regress_slow' ], [ 'anothers_there', '', 13, ' TABLESPACE regress_slow' ],
			[ 'claimed', '', 10 ], [ 'space', '', 11 ],
			[ 'last', '', 12 ]));
sql(<<SQL);
DELETE FROM tier_policy;
GRANT CREATE ON TABLESPACE regress_slow TO index_admin;
CREATE ACCESS METHOD other_heap TYPE TABLE HANDLER heap_tableam_handler;
CREATE TABLE h (d date, n int, s text) PARTITION BY RANGE (d);
$h_parts
CREATE INDEX ON h (n);
ALTER INDEX h_anothers_there_n_idx SET TABLESPACE regress_slow;
INSERT INTO h SELECT '2020-01-01'::date + g % 12, g, repeat('x', 100) FROM generate_series(1, 1200) g;
INSERT INTO h_large SELECT '2020-01-07', g, repeat('x', 500) FROM generate_series(1, 4000) g;
INSERT INTO h_space SELECT '2020-01-11', g, repeat('x', 500) FROM generate_series(1, 2000) g;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'h_index_n_idx'::regclass;
DO \$\$ DECLARE r record; BEGIN FOR r IN SELECT oid::regclass AS t FROM pg_class WHERE relname ~ '^h(_|\$)' AND relkind IN ('r', 'p')
  AND relname !~ 'h_anothers' LOOP
	EXECUTE format('ALTER TABLE %s OWNER TO alice', r.t); END LOOP; END \$\$;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, max_bytes_per_run, owner)
  VALUES ('h', 'h', 'regress_slow', '1 year', 1800000, 'alice');
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget, relation, owner)
  VALUES ('a first', 'pg_default', 'regress_fast', 8192, 'h_claimed', 'alice');
SQL
my $moved = sql("SELECT DISTINCT job FROM move_table('h_moved', 'regress_fast')");
my $busy = sql(q{SELECT max(job) FROM move_table('h_busy', 'regress_slow', wait => false, settings => '{"swap_after": "infinity"}')});
# another session's temporary partitions
my $session = IndexMover::Session->new($node);
$session->run('CREATE TEMP TABLE ht (d date) PARTITION BY RANGE (d)');
$session->run("CREATE TEMP TABLE ht_1 PARTITION OF ht FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')");
sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than) SELECT 'temporary', oid, 'regress_slow', '1 day' FROM pg_class "
	. "WHERE relname = 'ht'");
# space for all but h_space
sql("ALTER DATABASE postgres SET index_mover.min_free_space = 0; ALTER DATABASE postgres SET index_mover.test_file_systems = "
	. "'regress_slow:1:900000:100000000'");
my $repair = q{SELECT * FROM index_mover_call.move_indexes('public.h_index_n_idx', 'regress_slow', 'rebuild');};
is(sql("SELECT policy, regexp_replace(relation::text, 'temp_\\d+', 'temp_N'), moves, regexp_replace(reason, '^its rows end at \\S+(; but "
	. ")?|[.] Under an exclusive lock.*', '', 'g') FROM tier_plan() WHERE policy <> 'a first' ORDER BY policy, relation::text"),
	<<"ROWS" =~ s/\n\z//r, 'hindrances of every kind');
h|h_am|t|
h|h_anothers|f|it is skipped. Must be owner of table "h_anothers".
h|h_busy|f|job $busy is at work on its table
h|h_claimed|t|
h|h_index|t|
h|h_index_n_idx|f|it is skipped. The index is not valid. To repair and move it: $repair
h|h_large|f|it is larger than max_bytes_per_run
h|h_last|t|
h|h_moved|f|job $moved has moved it less than 7 days ago
h|h_plain|t|
h|h_space|f|it is skipped. Tablespace "regress_slow" has no space for it.
h|h_there|t|
h|h_unlogged|f|it is skipped. It cannot be copied: the table is unlogged, so no WAL tells which of its blocks change
temporary|pg_temp_N.ht_1|f|it is skipped. It cannot be copied: the table is temporary
ROWS
# nor does a plan wait for who has all of it locked
my $locker = IndexMover::Session->new($node);
$locker->run('BEGIN; LOCK TABLE h, h_plain IN ACCESS EXCLUSIVE MODE');
is(sql("SET statement_timeout = '60s'; SELECT count(*) FROM tier_plan('h')"), 13, 'a plan waits for no lock');
$locker->end;

# Carry out what is planned, and compare; with a table go its indexes, if that is so.
sub runs_as_planned_ok
{
	my ($name, $but, $parts) = @_;
	sql('DROP TABLE IF EXISTS before; CREATE TABLE before AS SELECT policy, relation, moves FROM tier_plan() WHERE relation IS NOT NULL');
	my $last = sql('SELECT coalesce(max(job), 0) FROM index_mover.job_log');
	sql('SELECT count(*) FROM run_tier_policies()');
	poll_until($node, "SELECT count(*) = 0 FROM index_mover.alive() WHERE job <> $but", 't', 'the jobs');
	is(sql(<<SQL), '', "$name: what moves in the plan is what has moved");
SELECT b.policy, b.relation, b.moves
  FROM before b JOIN tier_policy p ON p.name = b.policy
 WHERE b.moves <> EXISTS (SELECT FROM index_mover.move_log m JOIN index_mover.job_log j USING (job)
						   WHERE j.job > $last AND j.policy = b.policy AND m.status = 'moved' AND b.relation IN (m.old_relation$parts))
SQL
	return;
}
runs_as_planned_ok('by age', $busy, ', m.table_oid');
sql("SELECT cancel_move($busy)");
$session->end;
wait_for_jobs($node);
sql('DROP TABLE h');

# ---- the same by idleness, heat and pressure -------------------------------------------------------
# a table of an access method that is not heap; what is alice's, and what is an extension's
sql(<<'SQL');
DELETE FROM tier_policy;
ALTER DATABASE postgres RESET index_mover.test_file_systems;
CREATE FUNCTION foreign_handler(internal) RETURNS table_am_handler LANGUAGE internal AS 'heap_tableam_handler';
CREATE ACCESS METHOD foreign_heap TYPE TABLE HANDLER foreign_handler;
CREATE SCHEMA kinds AUTHORIZATION alice;
CREATE TABLE kinds.plain (id int PRIMARY KEY, pad text); CREATE TABLE kinds.other (id int PRIMARY KEY, pad text);
CREATE UNLOGGED TABLE kinds.unlogged (id int PRIMARY KEY, pad text);
CREATE TABLE kinds.foreign_am (id int PRIMARY KEY, pad text) USING foreign_heap;
CREATE TABLE kinds.anothers (id int PRIMARY KEY, pad text);
CREATE TABLE kinds.large (id int PRIMARY KEY, pad text);
CREATE TABLE kinds.extensions (id int PRIMARY KEY, pad text);
DO $$ DECLARE r record; BEGIN FOR r IN SELECT oid::regclass AS t, relname FROM pg_class
		WHERE relnamespace = 'kinds'::regnamespace AND relkind = 'r' LOOP
	EXECUTE format('INSERT INTO %s SELECT g, repeat(''x'', 400) FROM generate_series(1, %s) g', r.t,
		CASE r.relname WHEN 'large' THEN 9000 ELSE 1000 END);
	IF r.relname <> 'anothers' THEN EXECUTE format('ALTER TABLE %s OWNER TO alice', r.t); END IF; END LOOP; END $$;
CREATE EXTENSION pgstattuple;
ALTER EXTENSION pgstattuple ADD TABLE kinds.extensions;
CREATE TABLE extension_parts (d date) PARTITION BY RANGE (d);
CREATE TABLE extension_parts_1 PARTITION OF extension_parts FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
ALTER EXTENSION pgstattuple ADD TABLE extension_parts;
SELECT pg_stat_force_next_flush();
SQL
my $limits = "'0', 2000000, 'alice'";
my %kind = (
	idle => [ "(name, schema, to_tablespace, idle_for, min_stay, max_bytes_per_run, owner) VALUES ('idle', 'kinds', 'regress_slow', "
		. "'100 days', $limits)",
		'anothers|f anothers_pkey|f foreign_am|f foreign_am_pkey|t large|f large_pkey|t other|t other_pkey|t plain|t plain_pkey|t '
			. 'unlogged|f unlogged_pkey|t' ],
	budget => [ "(name, schema, from_tablespace, to_tablespace, budget, min_stay, max_bytes_per_run, owner) VALUES ('budget', 'kinds', "
		. "'pg_default', 'regress_slow', 100000000, $limits)",
		'anothers|f anothers_pkey|f foreign_am_pkey|t large|f large_pkey|t other|t other_pkey|t plain|t plain_pkey|t unlogged_pkey|t' ],
	start_at => [ "(name, schema, from_tablespace, to_tablespace, start_at, stop_at, min_stay, max_bytes_per_run, owner) VALUES "
		. "('start_at', 'kinds', 'pg_default', 'regress_slow', 0.9, 0.1, $limits)",
		'|f anothers|f anothers_pkey|f foreign_am|f foreign_am_pkey|t large|f large_pkey|t other|t other_pkey|t plain|t plain_pkey|t '
			. 'unlogged|f unlogged_pkey|t' ]);
foreach my $kind (sort keys %kind)
{
	my ($policy, $expected) = @{ $kind{$kind} };
	# idle for 150 days, or 100 blocks a second wanted
	sql('DELETE FROM tier_policy; DELETE FROM index_mover.sample');
	# from 16 on the statistics tell when their indexes were built
	sql("SELECT pg_stat_reset_single_table_counters(c.oid) FROM pg_class c WHERE c.relnamespace = 'kinds'::regnamespace")
	  if $kind eq 'idle';
	sql('SELECT take_index_sample()');
	sql($kind eq 'idle'
		? "UPDATE index_mover.sample SET taken_at = taken_at - interval '150 days'"
		: "UPDATE index_mover.sample SET taken_at = taken_at - interval '1000 s', blks_read = blks_read - 100000, "
			. "blks_wanted = blks_wanted - 100000");
	sql("ALTER DATABASE postgres SET index_mover.test_mutation = 'stats-age:200'") if $kind eq 'idle';
	sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'pg_default:1:5000000:100000000,regress_slow:2:90000000:100000000'");
	sql("INSERT INTO tier_policy $policy");
	is(sql(q{SELECT string_agg(coalesce(substring(relation::text, 7), '') || '|' || left(moves::text, 1), ' ' ORDER BY relation::text }
		. q{NULLS FIRST) FROM tier_plan()}), $expected, "$kind: hindrances");
	is(sql("SELECT count(*) FROM tier_plan() WHERE reason ~ 'table access method \"foreign_heap\" is not \"heap\"'"),
		$kind eq 'budget' ? 0 : 1, "$kind: an access method that is not heap");
	runs_as_planned_ok($kind, 0, '');
	sql("SELECT count(*) FROM evacuate_tablespace('regress_slow', 'pg_default')");
	sql('ALTER DATABASE postgres RESET index_mover.test_file_systems; ALTER DATABASE postgres RESET index_mover.test_mutation');
}

# the extension's own tables, and other extensions'
sql(<<'SQL');
DELETE FROM tier_policy;
INSERT INTO tier_policy (name, schema, to_tablespace, idle_for) VALUES ('own', 'index_mover', 'regress_slow', '1 s'),
	('public', 'public', 'regress_slow', '1 s');
INSERT INTO tier_policy (name, to_tablespace, older_than) VALUES ('age', 'regress_slow', '1 day');
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, start_at, stop_at) VALUES ('full', 'pg_default', 'regress_slow', 0.9, 0.1);
ALTER DATABASE postgres SET index_mover.test_file_systems = 'pg_default:1:5000000:100000000,regress_slow:2:90000000:100000000';
SQL
is(sql("SELECT policy, relation FROM tier_plan() p JOIN pg_class c ON c.oid = p.relation WHERE c.relnamespace = "
	. "'index_mover'::regnamespace OR c.relname ~ '^(tier_policy|extensions)' OR (c.relname = 'extension_parts_1' AND policy = 'age')"),
	'', 'own tables and those of other extensions are left alone');
sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('named', 'extension_parts', 'regress_slow', '1 day')");
is(sql("SELECT relation, moves FROM tier_plan('named')"), 'extension_parts_1|t', 'but for one that is named');
sql('ALTER DATABASE postgres RESET index_mover.test_file_systems; DELETE FROM tier_policy');
sql('ALTER EXTENSION pgstattuple DROP TABLE kinds.extensions; ALTER EXTENSION pgstattuple DROP TABLE extension_parts');

# ---- with the settings of the owner's sessions, whoever plans -------------------------------------------
sql(<<"SQL");
CREATE TABLE saved (d date) PARTITION BY RANGE (d);
CREATE TABLE saved_1 PARTITION OF saved FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
INSERT INTO saved VALUES ('2020-01-10');
ALTER TABLE saved OWNER TO alice; ALTER TABLE saved_1 OWNER TO alice;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay, owner)
  VALUES ('saved', 'saved', 'regress_slow', '1 year', '0', 'alice');
ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_slow:1:10000000:100000000';
ALTER DATABASE postgres RESET index_mover.min_free_space;
ALTER ROLE "$super" SET index_mover.min_free_space = '1%';
SQL
my $saves = 'index_mover.min_free_space';
# how much is to be free, by whom; 10% of it is
foreach my $case (
	[ "ALTER SYSTEM SET $saves = '20%'", 'the server, which the role of the caller hides', 0 ],
	[ "ALTER DATABASE postgres SET $saves = '5%'", 'the database', 1 ],
	[ "ALTER ROLE alice SET $saves = '30%'", 'the owner', 0 ],
	[ "ALTER ROLE alice IN DATABASE postgres SET $saves = 0", 'the owner in this database', 1 ],
	[ q(UPDATE tier_policy SET settings = '{"rebuild_threshold": 0.5}'), 'the same, with settings of the policy', 1 ])
{
	my ($change, $name, $moves) = @$case;
	sql($change);
	sql('SELECT pg_reload_conf()');
	poll_until($node, "SELECT moves FROM tier_plan('saved')", $moves ? 't' : 'f', "whoever plans: $name");
	my $set = $moves ? '99%' : '0';
	is(sql("SET $saves = '$set'; SELECT moves, reason ~ 'no space' FROM tier_plan('saved'); SHOW $saves"),
		($moves ? 't|f' : 'f|t') . "\n$set", "whatever is set in the session, which keeps it: $name");
	is(sql("SELECT count(*) FROM run_tier_policies('saved', wait => true) WHERE status = 'queued'"), $moves, "as a run: $name");
	wait_for_jobs($node);
	sql('ALTER TABLE saved_1 SET TABLESPACE pg_default');
}
# a session is not told what is wrong in a file, which it may not read
$node->append_conf('postgresql.conf', "sesame is secret\n");
($rc, $out, $err) = $node->psql('postgres', "SET client_min_messages = debug2; SELECT count(*) FROM tier_plan('saved')");
unlike($err, qr/secret|syntax error/, 'no message quotes the configuration file');
$node->adjust_conf('postgresql.conf', 'sesame', undef);
# by the clock of the owner, where a range that ends in three hours has ended
sql("CREATE TABLE hours (t timestamp) PARTITION BY RANGE (t); ALTER TABLE hours OWNER TO alice; SET TimeZone = 'UTC'; "
	. "DO \$\$ BEGIN EXECUTE format('CREATE TABLE hours_1 PARTITION OF hours FOR VALUES FROM (''2020-01-01'') TO (%L)', "
	. "localtimestamp + interval '3 h'); END \$\$; ALTER TABLE hours_1 OWNER TO alice; "
	. "$insert, owner) VALUES ('hours', 'hours', 'regress_fast', '1 h', 'alice'); ALTER ROLE alice SET TimeZone = 'Etc/GMT-12'");
is(sql("SET TimeZone = 'UTC'; SELECT moves FROM tier_plan('hours'); SHOW TimeZone"), "t\nUTC", 'by the time zone of the owner');
is(sql("SET TimeZone = 'UTC'; SELECT count(*) FROM run_tier_policies('hours', wait => true) WHERE status = 'queued'"), 1, 'as a run');
wait_for_jobs($node);
sql("ALTER ROLE alice RESET TimeZone; DELETE FROM tier_policy WHERE name = 'hours'; DROP TABLE hours");
sql("ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check; UPDATE tier_policy SET settings = '{\"max_rate\": \"fast\"}'");
sql('ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check');
is(sql("SET $saves = '7%'; SELECT reason FROM tier_plan('saved') ORDER BY 1 LIMIT 1; SHOW $saves"),
	"invalid value for parameter \"index_mover.max_rate\": \"fast\"\n7%", 'nor does an error leave any behind');
sql(<<"SQL");
DELETE FROM tier_policy; DROP TABLE saved;
ALTER ROLE alice RESET $saves; ALTER ROLE alice IN DATABASE postgres RESET $saves; ALTER ROLE "$super" RESET $saves;
ALTER DATABASE postgres SET $saves = 0; ALTER DATABASE postgres RESET index_mover.test_file_systems;
SQL
sql($_) foreach "ALTER SYSTEM RESET $saves", 'SELECT pg_reload_conf()';

# ---- a run that is refused as a whole says so -------------------------------------------------------
sql(<<'SQL');
CREATE TABLE refused (d date) PARTITION BY RANGE (d);
CREATE UNLOGGED TABLE refused_1 PARTITION OF refused FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE UNLOGGED TABLE refused_2 PARTITION OF refused FOR VALUES FROM ('2020-02-01') TO ('2020-03-01');
CREATE TABLE refused_rest PARTITION OF refused DEFAULT;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('refused', 'refused', 'regress_slow', '1 day');
SQL
($rc, $out, $err) = $node->psql('postgres', 'SELECT count(*) FROM run_tier_policies()');
like($err,
	qr/NOTICE:  policy "refused" moves nothing: public.refused_1: its rows end at \S+; but it is skipped. It cannot be copied: .*unlogged/,
	'a NOTICE with the first reason');
sql('DROP TABLE refused_1, refused_2');
($rc, $out, $err) = $node->psql('postgres', 'SELECT count(*) FROM run_tier_policies()');
is("$out|$err", '0|', 'nothing is due: nothing is said, of a default partition neither');
# of two for one table, the second
sql(<<'SQL');
CREATE TABLE refused_3 PARTITION OF refused FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('second', 'refused', 'regress_fast', '1 day');
SQL
($rc, $out, $err) = $node->psql('postgres', 'SELECT name, status FROM run_tier_policies(wait => true)');
is($out, 'refused_3|moved', 'the first moves it');
my $covered = qr/public.refused_3: its rows end at 2020-02-01; but policy "\w+", earlier in the order, covers its table/;
like($err, qr/NOTICE:  policy "second" moves nothing: $covered/,
	'the second says why not');
sql("UPDATE tier_policy SET min_stay = '0'; ALTER TABLE refused_3 SET TABLESPACE pg_default");
($rc, $out, $err) = $node->psql('postgres', 'SELECT name, status FROM run_tier_policies(wait => true)');
is($out, 'refused_3|moved', 'whatever min_stay');
like($err, qr/NOTICE:  policy "\w+" moves nothing: $covered/,
	'in one call');
# an error of the job itself is a WARNING of its policy
sql("DELETE FROM tier_policy; CREATE TABLE refused_4 PARTITION OF refused FOR VALUES FROM ('2020-02-01') TO ('2020-03-01')");
sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than, settings) VALUES ('error', 'refused', 'regress_fast', '1 day', "
	. "'{\"on_failure\": \"error\", \"max_lock_time\": 1}'), ('then', 'good', 'regress_fast', '1 day', NULL)");
sql("UPDATE tier_policy SET min_stay = '0'");
$session = IndexMover::Session->new($node);
$session->run('BEGIN; LOCK TABLE refused_4 IN ACCESS EXCLUSIVE MODE');
sql("UPDATE tier_policy SET settings = '{\"on_failure\": \"error\", \"lock_wait\": \"1s\", \"on_blocker\": \"fail\"}' "
	. "WHERE name = 'error'");
($rc, $out, $err) = $node->psql('postgres', 'SELECT name, status FROM run_tier_policies(wait => true)');
$session->end;
is($rc, 0, 'no error');
like($err, qr/WARNING:  policy "error" moves nothing/, 'but a WARNING');
like($out, qr/^good_1\|moved$/m, 'and the next policy is carried out');
# the command of the check: then it is well, with the job of the rest
my $failing = "SELECT command FROM index_mover_check() WHERE kind = 'failing policy'";
like(my $command = sql($failing), qr/resume_move\(\d+\);$/, 'the check has the command');
like(sql("SELECT reason FROM tier_plan('error') LIMIT 1"), qr/^its last run has failed: could not lock relation/, 'the plan why');
sql('UPDATE tier_policy SET enabled = false');
is(sql($failing), '', 'unless it is disabled');
my $disabled = sql('SELECT min(name) FROM tier_policy');
foreach my $call ('tier_plan', 'run_tier_policies')
{
	($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM $call('$disabled')");
	is("$rc $out", '0 ', "$call() of a disabled policy: no rows");
	like($err, qr/NOTICE:  tier policy "$disabled" is disabled/, 'a NOTICE says so');
}
sql('UPDATE tier_policy SET enabled = true');
my $rest = sql($command);
wait_for_jobs($node);
is(sql($failing), '', 'which makes it well');
is(sql("SELECT job, result FROM tier_policy_status WHERE policy = 'error'"), "$rest|moved", 'with the job of the rest');
is(sql("SELECT count(*) FROM tier_plan('error') WHERE reason ~ 'failed'"), 0, 'also for the plan');
sql('DELETE FROM tier_policy');

# ---- where a reboot loses tables --------------------------------------------------------------------
SKIP:
{
	my ($type) = split ' ', `stat -f -c '%T' /dev/shm 2>/dev/null` || 'none';
	skip 'no tmpfs at /dev/shm', 5 unless $type eq 'tmpfs' && -w '/dev/shm' && (stat $node->data_dir)[0] != (stat '/dev/shm')[0];
	my $directory = File::Temp::tempdir(DIR => '/dev/shm', CLEANUP => 1);
	sql("CREATE TABLESPACE regress_shm LOCATION '$directory'");
	my $lost = 'a reboot loses tables in tablespace "regress_shm", which is on tmpfs';
	my $to_shm = "INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, budget, parts) VALUES ('shm', 'kinds', ";
	is(error_of($super, "$to_shm 'pg_default', 'regress_shm', 1000000, 'all')"), "55000: $lost", 'no policy for tables');
	is(error_of($super, "$to_shm 'regress_shm', 'pg_default', 1000000, 'table')"), "55000: $lost", 'nor for what goes back there');
	sql("$to_shm 'pg_default', 'regress_shm', 100000000, 'indexes')");
	is(sql("SELECT count(*) > 0, bool_and(kind = 'index') FROM tier_plan('shm') WHERE moves"), 't|t', 'but for indexes');
	is(error_of($super, "UPDATE tier_policy SET parts = 'all'"), "55000: $lost", 'nor can it become one');
	# as if the tablespace had been on a disk by then, or was not known
	sql("ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check; UPDATE tier_policy SET parts = 'all'");
	sql('ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check');
	is(sql("SELECT relation, moves, reason FROM tier_plan('shm')"), "|f|$lost", 'a plan says so, too');
	sql('DELETE FROM tier_policy; DROP TABLESPACE regress_shm');
}
leftovers_ok($node, 'at the end', within => 5);
files_ok($node, 'at the end');
$node->stop;
done_testing();
