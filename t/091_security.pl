# What a move runs of other people's code, it runs as the owner of the table,
# in a security-restricted operation, with a search_path of its own: the attack
# by an index function, in all its variants.
#
# Fault (security): code of others in index expressions, operators, operator classes, domains,
#   collations, triggers, as owner in a sandbox
# Fault (security): who may move, steer and see what (also sql/privileges, 040)
# Fault (security): keys in the message of a failed unique build, also under forced row
#   security, and for who has only `MAINTAIN`
# Fault (security): a search_path that an index function relies on: 42P01, and what to do
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('security');
my $super = $node->safe_psql('postgres', 'SELECT current_user');

# The log is written through dblink-like means: a table in which the attacker
# may insert does not survive a rolled back build, so notices are used too.
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE attacker LOGIN;
CREATE ROLE victim SUPERUSER LOGIN;
CREATE ROLE helper LOGIN;
CREATE SCHEMA evil AUTHORIZATION attacker;
GRANT CREATE ON TABLESPACE regress_fast, regress_slow TO attacker;
ALTER DATABASE postgres SET search_path = evil, public, pg_catalog;
SQL

my $as_attacker = sub {
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', 'attacker' ]);
};

# what the function sees and tries; each attempt in a subtransaction
$as_attacker->(<<'SQL');
CREATE TABLE evil.log (step text, who text, session_who text, path text, result text);
CREATE TABLE evil.t (i int);
CREATE SEQUENCE evil.calls;
CREATE FUNCTION evil.try(step text, what text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	outcome text;
BEGIN
	BEGIN
		EXECUTE what;
		outcome := 'done';
	EXCEPTION WHEN OTHERS THEN
		outcome := SQLSTATE || ' ' || SQLERRM;
	END;
	INSERT INTO evil.log VALUES (step, current_user, session_user, current_setting('search_path'), outcome);
END $$;
CREATE FUNCTION evil.f(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	PERFORM pg_catalog.nextval('evil.calls');
	IF pg_catalog.current_setting('evil.quiet', true) = 'on' THEN RETURN i; END IF;
	PERFORM evil.try('superuser', 'ALTER ROLE attacker SUPERUSER');
	PERFORM evil.try('reset role', 'RESET ROLE');
	PERFORM evil.try('set role', 'SET ROLE victim');
	PERFORM evil.try('session authorization', 'SET SESSION AUTHORIZATION victim');
	PERFORM evil.try('reset session authorization', 'RESET SESSION AUTHORIZATION');
	PERFORM evil.try('temporary table', 'CREATE TEMP TABLE shadow (i int)');
	PERFORM evil.try('search_path', 'SELECT pg_catalog.set_config(''search_path'', ''evil'', false)');
	PERFORM evil.try('own move', 'SELECT public.move_indexes(''evil.t'', ''regress_slow'')');
	PERFORM evil.try('own queue', 'SELECT public.move_indexes(''evil.t'', ''regress_slow'', wait => false)');
	PERFORM evil.try('dry run', 'SELECT public.move_indexes(''evil.t'', ''regress_slow'', dry_run => true)');
	PERFORM evil.try('cleanup', 'SELECT public.index_mover_cleanup()');
	PERFORM evil.try('ledger', 'DELETE FROM index_mover.ledger');
	PERFORM evil.try('history', 'DELETE FROM index_mover.move_log');
	PERFORM evil.try('cursor', 'DECLARE c CURSOR WITH HOLD FOR SELECT evil.escalate()');
	PERFORM evil.try('deferred trigger', 'INSERT INTO evil.trap VALUES (1)');
	PERFORM evil.try('file', 'COPY evil.t TO PROGRAM ''id''');
	PERFORM evil.try('unqualified', 'SELECT count(*) FROM log');
	RETURN i;
END $$;
CREATE FUNCTION evil.escalate() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	PERFORM evil.try('escalate', 'ALTER ROLE attacker SUPERUSER');
	RETURN 1;
END $$;
CREATE TABLE evil.trap (i int);
CREATE FUNCTION evil.trapped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM evil.try('trap', 'ALTER ROLE attacker SUPERUSER');
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER trap AFTER INSERT ON evil.trap DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION evil.trapped();
-- functions in the attacker's schema that shadow the catalog's
CREATE FUNCTION evil.int4eq(int, int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN PERFORM evil.try('operator', 'ALTER ROLE attacker SUPERUSER'); RETURN true; END $$;
CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.int4eq);
CREATE FUNCTION evil.count(int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN PERFORM evil.try('shadow', 'ALTER ROLE attacker SUPERUSER'); RETURN 1; END $$;
INSERT INTO evil.t SELECT generate_series(1, 3);
SQL
$as_attacker->('SET evil.quiet = on; CREATE INDEX t_f ON evil.t (evil.f(i))');
$node->safe_psql('postgres',
	'GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb) TO PUBLIC');

my %expected = (
	'superuser' => qr/^42501 (must be superuser|permission denied to alter role)/,
	'reset role' => qr/^42501 cannot set parameter "role" within security-restricted operation/,
	'set role' => qr/^42501 cannot set parameter "role" within security-restricted operation/,
	'session authorization' => qr/^42501 cannot set parameter "session_authorization" within security-restricted operation/,
	'reset session authorization' => qr/^42501 cannot set parameter "session_authorization" within security-restricted operation/,
	'temporary table' => qr/^42501 cannot create temporary table within security-restricted operation/,
	'search_path' => qr/^done/,
	'own move' => qr/^(42501|25001|55006) /,
	'own queue' => qr/^(42501|55006) /,
	'dry run' => qr/^(42501|55006) /,
	'cleanup' => qr/^42501 /,
	'ledger' => qr/^42501 permission denied/,
	'history' => qr/^42501 permission denied/,
	'cursor' => qr/^42501 cannot create a cursor WITH HOLD within security-restricted operation/,
	'deferred trigger' => qr/^42501 cannot fire deferred trigger within security-restricted operation/,
	'file' => qr/^42501 /,
);

# How often the function has tried to get at something that is not the owner's
# (looking at its own things is not that), and how often it was told that it may not.
my ($attempts, $attempts_blocked) = (0, 0);

sub attempts
{
	return split /\|/, $node->safe_psql('postgres',
		"SELECT count(*), count(*) FILTER (WHERE who = 'attacker' AND result ~ '^(42501|25001|55006) ') FROM evil.log WHERE step NOT IN "
			. "('search_path', 'unqualified', 'deferred trigger')");
}

# As superuser, as a superuser by SET ROLE, as the attacker; waiting or not.
my $round = 0;
for my $caller (
	[ 'superuser, waiting', $super, '', 'true' ],
	[ 'superuser, not waiting', $super, '', 'false' ],
	[ 'superuser by role', $super, 'SET ROLE victim;', 'true' ],
	[ 'the attacker', 'attacker', '', 'true' ])
{
	my ($name, $user, $before, $wait) = @$caller;
	my $target = $round++ % 2 ? 'regress_slow' : 'regress_fast';
	$node->safe_psql('postgres', "TRUNCATE evil.log; ALTER SEQUENCE evil.calls RESTART");
	my ($rc, $out, $err) = $node->psql('postgres', <<SQL, extra_params => [ '-U', $user ]);
SET search_path = evil, public;
$before
SELECT status, sqlstate, detail FROM public.move_indexes('evil.t_f', '$target', method => 'rebuild', wait => $wait);
SELECT 'after ' || current_user || ' ' || session_user || ' ' || current_setting('search_path');
SQL
	is($rc, 0, "$name: the call succeeds") or diag $err;
	like($out, $wait eq 'true' ? qr/^moved/m : qr/^queued/m, "$name: the index is moved");
	my $self = $before ? 'victim' : $user;
	like($out, qr/^after $self $user evil, public$/m, "$name: user and search_path of the session are as before");
	wait_for_no_worker($node);

	my @rows = map { [ split /\|/ ] } split /\n/,
	  $node->safe_psql('postgres', 'SELECT step, who, session_who, path, result FROM evil.log');
	cmp_ok(scalar(@rows), '>', scalar(keys %expected), "$name: rows were logged: " . scalar(@rows));
	is(scalar(grep { $_->[1] ne 'attacker' } @rows), 0, "$name: the function always ran as the table's owner")
	  or diag explain \@rows;
	# (later rows show what the function itself has set, until the build ends)
	is($rows[0][3], 'pg_catalog, pg_temp', "$name: with search_path pg_catalog, pg_temp");
	# the function's own search_path holds from its set_config() to the end of the build
	is((grep { $_->[0] eq 'unqualified' } @rows)[0][3], 'evil', "$name: then with what the function has set");
	my ($tried, $blocked) = attempts();
	$attempts += $tried;
	$attempts_blocked += $blocked;
	for my $step (sort keys %expected)
	{
		my @of = grep { $_->[0] eq $step } @rows;
		my @bad = grep { ($_->[4] || '') !~ $expected{$step} } @of;
		ok(@of > 0 && !@bad, "$name: attempt \"$step\"") or diag explain \@of;
	}
	# the trigger would have run at the end of the transaction, the cursor's query too;
	# and no role has used what has the names of the catalog's own
	is(join(', ', map { "$_->[0] as $_->[1]" } grep { $_->[0] =~ /^(?:trap|escalate|operator|shadow)$/ } @rows),
		'', "$name: neither the deferred trigger, nor the cursor, nor a shadowed name was run");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM evil.trap'), '0', "$name: and the trap has no row");
	is($node->safe_psql('postgres', "SELECT rolsuper FROM pg_roles WHERE rolname = 'attacker'"), 'f',
		"$name: the attacker is no superuser");
	leftovers_ok($node, $name, within => 2);
}
cmp_ok($attempts, '>=', 4 * 14, "attempts to escalate: $attempts");
is($attempts_blocked, $attempts, 'all of them are blocked');
note "count: attempts to escalate $attempts";
note "count: attempts to escalate, blocked $attempts_blocked";

# The same for what PostgreSQL itself has, and for pg_repack where it is.
{
	chomp(my $bindir = `pg_config --bindir`);
	my %others = ('REINDEX CONCURRENTLY' => [ 'psql', '-Xq', '-d', $node->connstr('postgres'), '-c',
		'REINDEX (TABLESPACE regress_fast) INDEX CONCURRENTLY evil.t_f' ]);
	$others{pg_repack} = [ 'pg_repack', '-h', $node->host, '-p', $node->port, '-d', 'postgres', '-i', 'evil.t_f', '-s', 'regress_slow' ]
	  if -x "$bindir/pg_repack" && $node->psql('postgres', 'CREATE EXTENSION pg_repack SCHEMA public') == 0;
	foreach my $other (sort keys %others)
	{
		$node->safe_psql('postgres', 'TRUNCATE evil.log');
		my $output = '';
		IPC::Run::run($others{$other}, '>&', \$output, IPC::Run::timer($IndexMover::Test::TIMEOUT));
		my ($tried, $blocked) = attempts();
		note "$other: $output" if !$tried;
		note "count: compare, $other, attempts to escalate $tried";
		note "count: compare, $other, attempts to escalate, blocked $blocked";
	}
	note "count: compare, index_mover rebuild, attempts to escalate $attempts";
	note "count: compare, index_mover rebuild, attempts to escalate, blocked $attempts_blocked";
	$node->safe_psql('postgres', 'DROP EXTENSION IF EXISTS pg_repack; TRUNCATE evil.log');
}

# ---- other code than index functions -----------------------------------------------
# A support function of an operator class, the CHECK of a domain, a collation that
# has the name of core's.  (The options of an operator class are read by C code only.)
$as_attacker->(<<'SQL');
CREATE TABLE evil.kinds (i int, v text);
CREATE FUNCTION evil.cmp(a int, b int) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
	IF pg_catalog.current_setting('evil.quiet', true) IS DISTINCT FROM 'on' THEN
		PERFORM evil.try('support function', 'ALTER ROLE attacker SUPERUSER');
	END IF;
	RETURN pg_catalog.btint4cmp(a, b);
END $$;
CREATE FUNCTION evil.is_fine(i int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF pg_catalog.current_setting('evil.quiet', true) IS DISTINCT FROM 'on' THEN
		PERFORM evil.try('domain check', 'ALTER ROLE attacker SUPERUSER');
	END IF;
	RETURN true;
END $$;
CREATE DOMAIN evil.dom AS int CHECK (evil.is_fine(VALUE));
CREATE COLLATION evil."C" (provider = libc, locale = 'POSIX');
SQL
$node->safe_psql('postgres', <<'SQL');
CREATE OPERATOR CLASS evil.hostile_ops FOR TYPE int USING btree AS
	OPERATOR 1 pg_catalog.<, OPERATOR 2 pg_catalog.<=, OPERATOR 3 pg_catalog.=, OPERATOR 4 pg_catalog.>=, OPERATOR 5 pg_catalog.>,
	FUNCTION 1 evil.cmp(int, int);
SQL
$as_attacker->(<<'SQL');
SET evil.quiet = on;
SET default_tablespace = regress_slow;
INSERT INTO evil.kinds SELECT g, 'v' || g FROM generate_series(1, 50) g;
CREATE INDEX kinds_op ON evil.kinds (i evil.hostile_ops);
CREATE INDEX kinds_dom ON evil.kinds ((i::evil.dom));
CREATE INDEX kinds_coll ON evil.kinds (v COLLATE evil."C");
SQL
$node->safe_psql('postgres', "SELECT oracle.remember_metadata('evil.kinds')");
foreach my $method ('rebuild', 'copy')
{
	my $to = $method eq 'rebuild' ? 'regress_fast' : 'regress_slow';
	$node->safe_psql('postgres', 'TRUNCATE evil.log');
	my ($rc, $out, $err) = $node->psql('postgres',
		"SELECT DISTINCT status, sqlstate FROM public.move_indexes('evil.kinds', '$to', method => '$method')");
	is($out, 'moved|', "hostile operator class, domain and collation, $method: moved") or diag $err;
	is($node->safe_psql('postgres', "SELECT step, who, path, left(result, 5) FROM evil.log GROUP BY 1, 2, 3, 4 ORDER BY 1"),
		$method eq 'copy' ? '' : "domain check|attacker|pg_catalog, pg_temp|42501\nsupport function|attacker|pg_catalog, pg_temp|42501",
		"hostile operator class, domain and collation, $method: " . ($method eq 'copy' ? 'nothing is run' : 'run as the owner'));
	is($node->safe_psql('postgres', "SELECT rolsuper FROM pg_roles WHERE rolname = 'attacker'"), 'f',
		"$method: the attacker is no superuser");
	metadata_ok($node, 'evil.kinds', "hostile operator class, domain and collation, $method");
	leftovers_ok($node, "hostile operator class, domain and collation, $method", within => 5);
}

# ---- a function that needs a search_path ----------------------------------------------
$as_attacker->(<<'SQL');
CREATE TABLE evil.factors (n int);
INSERT INTO evil.factors VALUES (3);
CREATE TABLE evil.path (i int);
INSERT INTO evil.path VALUES (1);
CREATE FUNCTION evil.times(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE
  SET search_path = evil AS 'BEGIN RETURN (SELECT i * n FROM factors); END';
CREATE INDEX path_times ON evil.path (evil.times(i)) TABLESPACE regress_slow;
ALTER FUNCTION evil.times(int) RESET search_path;
SQL
{
	my $move = "SELECT status, sqlstate, detail FROM public.move_indexes('evil.path_times', 'regress_fast', method => 'rebuild')";
	is($node->safe_psql('postgres', $move),
		'failed|42P01|relation "factors" does not exist: Functions of an index run with the search_path "pg_catalog, pg_temp" here; set '
			. 'search_path on the function.',
		'a function that needs a search_path: the row says what to do');
	leftovers_ok($node, 'a function that needs a search_path', within => 5);
	# a function in place of the table; from 19 on the error has a detail of its own
	$as_attacker->('CREATE FUNCTION evil.factor() RETURNS int LANGUAGE sql IMMUTABLE AS \'SELECT 3\'');
	$as_attacker->('CREATE OR REPLACE FUNCTION evil.times(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS \'BEGIN RETURN i * factor(); '
		. 'END\'');
	is($node->safe_psql('postgres', $move),
		'failed|42883|function factor() does not exist: Functions of an index run with the search_path "pg_catalog, pg_temp" here; set '
			. 'search_path on the function.',
		'the same for a function');
	leftovers_ok($node, 'the same for a function', within => 5);
	$as_attacker->('ALTER FUNCTION evil.times(int) SET search_path = evil');
	is($node->safe_psql('postgres', $move), 'moved||', 'and that helps');
}

# ---- functions that do not come back, raise, or call us -----------------------
$as_attacker->(<<'SQL');
CREATE TABLE evil.slow (i int);
CREATE FUNCTION evil.sleeps(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN IF pg_catalog.current_setting('evil.quiet', true) IS NULL THEN PERFORM pg_catalog.pg_sleep(600); END IF; RETURN i; END $$;
INSERT INTO evil.slow VALUES (1);
SQL
$as_attacker->('SET evil.quiet = on; CREATE INDEX slow_f ON evil.slow (evil.sleeps(i))');
my $call = start_call($node, 'sleeper', "SELECT status FROM move_indexes('evil.slow_f', 'regress_fast', method => 'rebuild')");
wait_for_phase($node, 'building index');
$node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'sleeper'");
my ($status, $out, $err, $took) = finish_call($call);
is(sqlstate_of($err), '57014', 'a function that sleeps can be canceled');
soon_ok($took, 5, 'within 5 seconds');
leftovers_ok($node, 'after that', within => 5);

# ---- the key of a failed unique build is not told ------------------------------
# Whoever calls: a superuser, the owner under forced row security, a member of the
# owning role, and who has nothing but MAINTAIN.
$as_attacker->(<<'SQL');
CREATE TABLE evil.secret (v text, hidden int);
CREATE UNIQUE INDEX secret_v ON evil.secret (v);
INSERT INTO evil.secret VALUES ('the secret', 1);
GRANT USAGE ON SCHEMA evil TO helper;
SQL
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE member LOGIN IN ROLE attacker;
GRANT CREATE ON TABLESPACE regress_fast TO helper;
-- make the rebuild fail: a second row with the same key that the index missed
UPDATE pg_index SET indisready = false, indisvalid = false WHERE indexrelid = 'evil.secret_v'::regclass;
INSERT INTO evil.secret VALUES ('the secret', 2);
UPDATE pg_index SET indisready = true, indisvalid = true WHERE indexrelid = 'evil.secret_v'::regclass;
ALTER TABLE evil.secret ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY no_role ON evil.secret USING (false);
SQL
my @curious = ($super, 'attacker', 'member');
if ($node->safe_psql('postgres', 'SHOW server_version_num') >= 170000)
{
	$node->safe_psql('postgres', 'GRANT MAINTAIN ON evil.secret TO helper');
	push @curious, 'helper';
}
is($as_attacker->('SELECT count(*) FROM evil.secret'), '0', 'row security hides the rows from their owner');
foreach my $curious (@curious)
{
	my ($rc, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY verbose\nSELECT status, sqlstate, detail FROM public.move_indexes('evil.secret_v', 'regress_fast', method => "
			. "'rebuild')",
		extra_params => [ '-U', $curious ]);
	like($out, qr/^failed\|23505\|could not create unique index/, "a unique build fails, called by $curious") or diag $err;
	unlike("$out $err", qr/the secret/, 'and the caller is not told the key');
	leftovers_ok($node, 'after the failed build', within => 5);
}
# without row security core tells the owner the key: not a row, which others may read, too
$node->safe_psql('postgres', 'ALTER TABLE evil.secret DISABLE ROW LEVEL SECURITY');
like($as_attacker->("SELECT sqlstate || ' ' || detail FROM public.move_indexes('evil.secret_v', 'regress_fast', method => 'rebuild')"),
	qr/^23505 could not create unique index "\w+"$/, 'without row security: the row has no key');
unlike($node->safe_psql('postgres', 'SELECT index_mover_history FROM index_mover_history'), qr/the secret/, 'nor the history');

# ---- steering other people's jobs ----------------------------------------------
$node->safe_psql('postgres', 'CREATE TABLE mine (i int); CREATE INDEX mine_i ON mine (i)');
my $blocker = $node->background_psql('postgres', on_error_die => 1);
$blocker->query_safe('BEGIN; INSERT INTO mine VALUES (1)');
my $job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('mine_i', 'regress_fast', method => 'rebuild', wait => false)");
wait_for_phase($node, 'waiting%');
for my $function ('cancel_move', 'pause_move', 'resume_move')
{
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT $function($job)",
		extra_params => [ '-U', 'helper' ]);
	like($err, qr/permission denied|must be/, "$function() of another role's job is refused");
}
is($node->safe_psql('postgres',
		"SELECT count(*), count(name), count(table_name), count(kind), count(blocked_by), count(phase) FROM index_mover_progress",
		extra_params => [ '-U', 'helper' ]),
	'1|0|0|0|0|0', 'others see that a job runs, but not what it does');
is($node->safe_psql('postgres', "SELECT count(*) FROM index_mover_history WHERE job = $job",
		extra_params => [ '-U', 'helper' ]), '0', 'nor its history');
$blocker->query_safe('COMMIT');
$blocker->quit;
$node->safe_psql('postgres', "CALL wait_for_move($job)");
leftovers_ok($node, 'at the end', within => 2);

# ---- privileges of the extension's objects, also after ALTER DEFAULT PRIVILEGES -----
# All that others than the owner may do, object by object.
my $privileges = <<'SQL';
WITH objects AS (
	SELECT i.identity, a.* FROM pg_extension e
	  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
	 CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, 0) i
	 CROSS JOIN LATERAL (
			SELECT coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, relowner)), relowner
			  FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid
			 UNION ALL
			SELECT coalesce(proacl, acldefault('f', proowner)), proowner
			  FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
			 UNION ALL
			SELECT coalesce(nspacl, acldefault('n', nspowner)), nspowner
			  FROM pg_namespace WHERE d.classid = 'pg_namespace'::regclass AND oid = d.objid
			 UNION ALL
			SELECT coalesce(typacl, acldefault('T', typowner)), typowner
			  FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid
			   -- (from 17 on those of tables and arrays are members, too; they have no privileges of their own)
			   AND typname = 'move_result') a(acl, owner)
	 WHERE e.extname = 'index_mover'
)
SELECT concat_ws(' ', coalesce(r.rolname, 'PUBLIC'), g.privilege_type || CASE WHEN g.is_grantable THEN '*' ELSE '' END),
	string_agg(replace(split_part(o.identity, '(', 1), 'public.', ''), ' ' ORDER BY o.identity COLLATE "C")
  FROM objects o CROSS JOIN LATERAL aclexplode(o.acl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
 WHERE g.grantee <> o.owner
 GROUP BY 1
SQL
my %expected = (
	'PUBLIC EXECUTE' => join(' ', map({ "index_mover.$_" } qw(alive check_job check_relation is_ours policy_status printed_command running
			sees_all_jobs session_action visible_jobs)),
		map({ "index_mover_call.$_" } qw(alter_move cancel_move evacuate_tablespace heal_tablespace
			  index_mover_cleanup move_indexes move_schema_indexes move_schema_tables move_table
			  resume_move tablespace_probe undo_move)), 'index_mover_blockers', 'index_mover_explain'),
	'PUBLIC SELECT' => join(' ', 'index_mover.shown_move', map({ "index_mover_call.$_" } qw(index_mover_blockers index_mover_check
			  index_mover_history index_mover_jobs index_mover_progress
		recent_jobs)),
		qw(index_mover_history index_mover_jobs index_mover_progress)),
	'PUBLIC USAGE' => 'index_mover_call move_result',
	'pg_monitor EXECUTE' => join(' ',
		map({ "index_mover.$_" } qw(device_problems job_problems leftover_problems movable_methods policy_conflicts policy_fault
			  policy_problems problems readable_tables relation_heat relation_report scheduler_looks stats_since)),
		qw(index_mover_check index_report recommend_moves relation_heat tablespace_probe take_index_sample withdraw_probes)),
	'pg_monitor SELECT' => 'index_mover.changed_tables index_mover.ended_jobs index_mover.online_alter_problems '
		. 'relation_heat tier_policy_days tier_policy_status',
	'pg_stat_scan_tables EXECUTE' => join(' ',
		map({ "index_mover.$_" } qw(pending_advice pending_list pending_steps)),
		qw(gin_pending_list index_bloat)));
my $expected = join "\n", map { "$_|$expected{$_}" } sort keys %expected;
foreach my $case (
	[ 'no default privileges' ],
	[ 'default privileges globally', '', 'attacker, helper WITH GRANT OPTION' ],
	[ 'default privileges in its schema', 'IN SCHEMA public', 'attacker' ],
	[ 'default privileges for PUBLIC', '', 'PUBLIC' ],
	[ 'default privileges for those who have some', '', 'pg_monitor, pg_stat_scan_tables WITH GRANT OPTION' ])
{
	my ($name, $in, $to) = @$case;
	$node->safe_psql('postgres', 'CREATE DATABASE defaults TEMPLATE template0');
	$node->safe_psql('defaults', "ALTER DEFAULT PRIVILEGES $in GRANT ALL ON $_ TO $to")
	  foreach $to ? (qw(TABLES SEQUENCES FUNCTIONS TYPES), $in ? () : 'SCHEMAS') : ();
	$node->safe_psql('defaults', 'CREATE EXTENSION index_mover CASCADE');
	is(join("\n", sort split /\n/, $node->safe_psql('defaults', $privileges)), $expected,
		"$name: what others may do with the extension's objects");
	$node->safe_psql('postgres', 'DROP DATABASE defaults');
}

# ---- policies: no plan runs what others have written, whoever plans and runs them -----------------------
$node->safe_psql('postgres', <<'SQL');
GRANT SELECT, INSERT, UPDATE, DELETE ON tier_policy TO attacker;
GRANT EXECUTE ON FUNCTION tier_plan, run_tier_policies TO attacker, victim;
SQL
# whatever of a table can run code when a role reads or writes it: none of it runs in a plan
$as_attacker->(<<'SQL');
CREATE FUNCTION evil.runs(what text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
	RAISE WARNING 'run as %: %', current_user, what; RETURN true; END $$;
CREATE FUNCTION evil.compares(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
	PERFORM evil.runs('operator class'); RETURN pg_catalog.btint4cmp($1, $2); END $$;
CREATE FUNCTION evil.folds(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.runs('index'); RETURN $1; END $$;
CREATE FUNCTION evil.checks(date) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN evil.runs('domain'); END $$;
CREATE DOMAIN evil.day AS date CHECK (evil.checks(VALUE));
CREATE TABLE evil.days (d evil.day, n int DEFAULT evil.folds(1)) PARTITION BY RANGE (d);
CREATE TABLE evil.days_1 PARTITION OF evil.days FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE INDEX ON evil.days_1 (evil.folds(n)) WHERE evil.folds(1) OPERATOR(pg_catalog.=) 1;
CREATE STATISTICS evil.stats ON evil.folds(n), n FROM evil.days_1;
INSERT INTO evil.days VALUES ('2020-01-02', 1);
ALTER TABLE evil.days ENABLE ROW LEVEL SECURITY; ALTER TABLE evil.days_1 ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON evil.days USING (evil.runs('row security')); CREATE POLICY p ON evil.days_1 USING (evil.runs('row security'));
CREATE TRIGGER t BEFORE UPDATE ON evil.days_1 FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE TABLE evil.numbers (n int) PARTITION BY LIST (evil.folds(n));
CREATE TABLE evil.numbers_1 PARTITION OF evil.numbers FOR VALUES IN (1);
CREATE MATERIALIZED VIEW evil.view AS SELECT 1 AS one WHERE evil.runs('materialized view');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, key_unit, min_stay) VALUES
	('days', 'evil.days', 'regress_fast', '1 day', NULL, '0'), ('numbers', 'evil.numbers', 'regress_fast', '1 day', 'days', '0');
INSERT INTO tier_policy (name, schema, to_tablespace, idle_for, min_stay) VALUES ('idle', 'evil', 'regress_fast', '1 s', '0');
INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, budget, settings) VALUES
	('heat', 'evil', 'pg_default', 'regress_fast', 1000000000, '{"rebuild_threshold": 0}');
SQL
$node->safe_psql('postgres', <<'SQL');
CREATE OPERATOR CLASS evil.backwards FOR TYPE int USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <,
	FUNCTION 1 evil.compares(int, int);
CREATE TABLE evil.backwards (n int) PARTITION BY RANGE (n evil.backwards);
CREATE TABLE evil.backwards_1 PARTITION OF evil.backwards FOR VALUES FROM (1) TO (2);
CREATE INDEX ON evil.backwards_1 (n evil.backwards);
ALTER TABLE evil.backwards OWNER TO attacker; ALTER TABLE evil.backwards_1 OWNER TO attacker;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, key_unit, min_stay, owner)
  VALUES ('backwards', 'evil.backwards', 'regress_fast', '1 day', 'days', '0', 'attacker');
SQL
foreach my $caller ([ $super, '' ], [ $super, 'SET ROLE victim;' ], [ 'attacker', '' ])
{
	my ($user, $before) = @$caller;
	foreach my $call ('tier_plan()', 'run_tier_policies()')
	{
		my $self = $before ? 'victim' : $user;
		my ($rc, $out, $err) = $node->psql('postgres',
			"SET search_path = evil, public; $before\nSELECT count(*) FROM public.$call;\n" .
			  "SELECT current_user || ' ' || session_user || ' ' || current_setting('search_path')",
			extra_params => [ '-U', $user ]);
		is($rc, 0, "$self, $call: the call succeeds") or diag $err;
		like($out, qr/^$self $user evil, public$/m, "$self, $call: user and search_path of the session are as before");
		unlike($err, qr/run as/, "$self, $call: nothing of theirs is run");
		wait_for_no_worker($node);
		$node->safe_psql('postgres', 'ALTER TABLE evil.days_1 SET TABLESPACE pg_default');
	}
}
is($node->safe_psql('postgres', "SELECT rolsuper FROM pg_roles WHERE rolname = 'attacker'"), 'f', 'he is no superuser');
$node->safe_psql('postgres', 'ANALYZE index_mover.job_log, index_mover.ledger, index_mover.move_log');
is($node->safe_psql('postgres', "SELECT DISTINCT tablename FROM pg_stats WHERE schemaname = 'index_mover'",
		extra_params => [ '-U', 'attacker' ]), '', 'nor do statistics tell him of jobs of others');

$node->stop;
done_testing();
