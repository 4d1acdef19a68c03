# Whatever the cluster, the database, the role and other sessions bring along:
# few workers, hostile settings, changed roles, event triggers, DROP EXTENSION and
# DROP DATABASE in the middle, many jobs, and calls of every kind.
#
# Fault (processes): no worker process available (also 040)
# Fault (processes): DROP and ALTER EXTENSION, the library replaced (also 084, 026, 080)
# Fault (locks): tablespace dropped (also between its check and the file; the source behind the
#   swap), renamed, given away, right revoked (also 023, 028, 055)
# Fault (locks): timeouts and other settings of role, database, cluster: every setting of
#   pg_settings (also 051)
# Fault (locks): event triggers (`ddl_command_start`, `ddl_command_end`, `sql_drop`, `login`;
#   some run SQL, some refuse), triggers, rules (also 055)
# Fault (locks): DROP DATABASE, also WITH (FORCE), in mid-copy and in mid-rebuild; CREATE ..
#   TEMPLATE, ALTER DATABASE (also 028, 055)
# Fault (replication): hostile defaults of database and role (also 051)
# Fault (security): more jobs than there is room for
# Fault (security): event triggers that refuse (also 055)
# Fault (input): more jobs than there is room for; extended protocol, binary parameters,
#   pipelines, portals and cursors that are not read to the end; calls from functions, triggers
#   and `DO`
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IO::Handle;
use IndexMover::Places;
use IndexMover::Processes;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;
use Time::HiRes qw(time usleep);

needs_faults();

my $node = new_node('environment', conf => "max_worker_processes = 16\n");
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow, v text);
INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 1000) g;
CREATE INDEX t_v ON t (v) TABLESPACE regress_slow;
SQL
my $version = $node->safe_psql('postgres', 'SHOW server_version_num');
my $to = 'regress_fast';
my $dir = PostgreSQL::Test::Utils::tempdir();

sub move_ok
{
	my ($name, %options) = @_;
	my ($rc, $out, $err) = $node->psql('postgres',
		($options{before} || '') . "SELECT string_agg(DISTINCT status, ' ') FROM move_indexes('t', '$to', method => 'rebuild')",
		extra_params => [ '-U', $options{user} || $node->safe_psql('postgres', 'SELECT current_user') ],
		timeout => 60);
	like("$rc $out", qr/^0 moved( skipped)?$/, $name) or diag $err;
	$to = other_place($to);
	return;
}

# The error of a statement, with its SQLSTATE.
sub error_of
{
	my ($sql, %options) = @_;
	my ($rc, $out, $err) = $node->psql($options{dbname} || 'postgres', "\\set VERBOSITY verbose\n$sql",
		extra_params => $options{user} ? [ '-U', $options{user} ] : [], timeout => 180);
	return $err;
}

# A session that keeps every rebuild of t waiting until it is told.
sub hold_t
{
	my $session = $node->background_psql('postgres', on_error_die => 1);
	$session->query_safe('BEGIN; UPDATE t SET v = v WHERE i = 1');
	return $session;
}

# ---- settings that would stop or redirect an ordinary session --------------------
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE mover LOGIN;
ALTER TABLE t OWNER TO mover;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO mover;
GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb) TO mover;
CREATE SCHEMA evil AUTHORIZATION mover;
ALTER DATABASE postgres SET default_transaction_isolation = 'serializable';
ALTER DATABASE postgres SET statement_timeout = '30s';
ALTER ROLE mover SET default_transaction_read_only = on;
ALTER ROLE mover SET default_transaction_deferrable = on;
ALTER ROLE mover SET lock_timeout = 1;
ALTER ROLE mover SET idle_in_transaction_session_timeout = 1;
ALTER ROLE mover SET default_tablespace = 'regress_slow';
ALTER ROLE mover SET search_path = 'evil';
ALTER ROLE mover SET row_security = off;
ALTER ROLE mover SET maintenance_work_mem = '1MB';
ALTER ROLE mover SET index_mover.progress_interval = 0;
SQL
like(error_of("SELECT * FROM public.move_indexes('public.t', 'regress_fast')", user => 'mover'),
	qr/25006: cannot execute move_indexes\(\) in a read-only transaction/, 'default_transaction_read_only is for the caller');
$node->safe_psql('postgres', 'ALTER ROLE mover SET search_path = evil, public');
move_ok('hostile settings of role and database do not reach the worker', user => 'mover',
	before => 'SET default_transaction_read_only = off; SET lock_timeout = 0;');
$node->safe_psql('postgres', 'ALTER ROLE mover NOLOGIN CONNECTION LIMIT 0');
move_ok('a role that may not log in', before => 'SET ROLE mover;');
$node->safe_psql('postgres', 'ALTER DATABASE postgres CONNECTION LIMIT 0');
move_ok('a database that takes no more connections', before => '');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET ALL; ALTER DATABASE postgres CONNECTION LIMIT -1; ALTER ROLE mover RESET ALL');

# ---- timeouts of the whole cluster: they are for sessions, not for workers --------------
{
	my %timeouts = (lock_timeout => '1ms', statement_timeout => '1s', idle_in_transaction_session_timeout => '1ms',
		$version >= 170000 ? (transaction_timeout => '2s') : ());
	my $longest = $version >= 170000 ? 3 : 1.5;
	# the sessions of this test have none
	local $ENV{PGOPTIONS} = join ' ', map { "-c $_=0" } keys %timeouts;
	$node->append_conf('postgresql.conf', join '', map { "$_ = '$timeouts{$_}'\n" } sort keys %timeouts);
	$node->reload;
	foreach my $method ('copy', 'rebuild')
	{
		my $session = hold_t();
		my $call = start_call($node, 'patient',
			"SELECT string_agg(DISTINCT status, ' ') FROM move_indexes('t', '$to', method => '$method')");
		my $worker = wait_for_phase($node, 'waiting%');
		# longer than any of them, in the worker's own time
		poll_until($node, "SELECT clock_timestamp() - backend_start > '$longest s' FROM pg_stat_activity WHERE pid = $worker", 't',
			'the worker has waited');
		$session->query_safe('COMMIT');
		$session->quit;
		my ($status, $row, $errors) = finish_call($call);
		is($row, "moved\n", "timeouts in postgresql.conf, $method: the worker has none") or diag $errors;
		leftovers_ok($node, "timeouts in postgresql.conf, $method", within => 5);
		$to = other_place($to);
	}
	# and they are there
	delete $ENV{PGOPTIONS};
	poll_until($node, 'SHOW lock_timeout', '1ms', 'the timeouts of a session');
	$node->adjust_conf('postgresql.conf', $_, undef) foreach keys %timeouts;
	$node->reload;
	poll_until($node, 'SHOW lock_timeout', '0', 'no timeout any more');
}

# ---- event triggers fire as they do for REINDEX: none before 17 ---------------------
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN RAISE 'no % today', tg_tag; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse();
SQL
my ($rc, $out, $err) = $node->psql('postgres',
	"SELECT DISTINCT status, sqlstate, detail FROM move_indexes('t', '$to', method => 'rebuild')");
is($out, $version < 170000 ? 'moved||' : 'failed|P0001|no REINDEX today', 'an event trigger that refuses all DDL: a rebuild') or diag $err;
$to = other_place($to) if $version < 170000;
leftovers_ok($node, 'after the event trigger', within => 5);
($rc, $out, $err) = $node->psql('postgres', "SELECT DISTINCT status, sqlstate FROM move_indexes('t', '$to', method => 'copy')");
is($out, 'moved|', 'an event trigger that refuses all DDL: a copy') or diag $err;
$to = other_place($to);
# what a move drops, its old index and its rows of the ledger, is not dropped by a command
$node->safe_psql('postgres', <<'SQL');
DROP EVENT TRIGGER refuse;
CREATE EVENT TRIGGER refuse ON sql_drop EXECUTE FUNCTION refuse();
CREATE TABLE dropped ();
SQL
like(error_of('DROP TABLE dropped'), qr/P0001: no DROP TABLE today/, 'a sql_drop trigger that refuses: DROP TABLE');
move_ok('a sql_drop trigger that refuses: a rebuild');
is($node->safe_psql('postgres', "SELECT DISTINCT status FROM move_indexes('t', '$to', method => 'copy')"), 'moved',
	'a sql_drop trigger that refuses: a copy');
$to = other_place($to);
{
	# a rebuild that is canceled, and removes what it has made
	my $reader = $node->background_psql('postgres', on_error_die => 1);
	$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t');
	my $refused = $node->safe_psql('postgres', "SELECT max(job) FROM move_indexes('t_v', '$to', method => 'rebuild', wait => false)");
	wait_for_phase($node, 'waiting%');
	$node->safe_psql('postgres', "SELECT cancel_move($refused)");
	$reader->query_safe('COMMIT');
	$reader->quit;
	wait_for_job_end($node, $refused);
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $refused"), 'canceled',
		'a sql_drop trigger that refuses: a cancel');
	leftovers_ok($node, 'a sql_drop trigger that refuses', within => 5);
}
$node->safe_psql('postgres', 'DROP EVENT TRIGGER refuse; DROP TABLE dropped');
# what they see, and what they write, is what core's own command has them see and write
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE audit (i serial PRIMARY KEY, at timestamptz DEFAULT now(), what text);
CREATE FUNCTION audit() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
	IF tg_tag <> 'REINDEX' THEN RETURN; END IF;
	INSERT INTO audit (what) VALUES (concat_ws(' ', tg_event, tg_tag, current_query(), session_user, current_user));
	IF tg_event = 'ddl_command_end' THEN
		FOR r IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
			INSERT INTO audit (what) VALUES (concat_ws(' ', r.command_tag, r.object_type, r.object_identity, r.in_extension));
		END LOOP;
	ELSIF tg_event = 'sql_drop' THEN
		INSERT INTO audit (what) SELECT concat_ws(' ', object_type, object_identity) FROM pg_event_trigger_dropped_objects();
	END IF;
	-- indexes of its own
	EXECUTE format('CREATE TABLE %I (i int PRIMARY KEY)', 'audit_' || (SELECT max(i) FROM audit));
END $$;
CREATE EVENT TRIGGER a_start ON ddl_command_start EXECUTE FUNCTION audit();
CREATE EVENT TRIGGER a_end ON ddl_command_end EXECUTE FUNCTION audit();
CREATE EVENT TRIGGER a_drop ON sql_drop EXECUTE FUNCTION audit();
SQL
sub audited
{
	my ($what, $sql) = @_;
	$node->safe_psql('postgres', 'DELETE FROM audit; SELECT pg_sleep(0.1)');
	my $out = $node->safe_psql('postgres', $sql);
	is($node->safe_psql('postgres', "SELECT count(*) FROM audit WHERE at < now() - interval '1 min' OR at > now()"), 0, "$what: its time");
	return ($out, $node->safe_psql('postgres', 'SELECT what FROM audit ORDER BY i'));
}
{
	my (undef, $by_core) = audited('core', "REINDEX (TABLESPACE $to) INDEX CONCURRENTLY public.t_v");
	isnt($by_core, '', q{core's command is audited}) if $version >= 170000;
	$node->safe_psql('postgres', 'REINDEX (TABLESPACE ' . other_place($to) . ') INDEX CONCURRENTLY t_v');
	my ($row, $by_us) = audited('a rebuild', "SELECT status, sqlstate, detail FROM move_indexes('t_v', '$to', method => 'rebuild')");
	is($row, 'moved||', 'event triggers that run SQL: the row');
	is($by_us, $by_core, q{event triggers that run SQL see what they see of core's command});
	leftovers_ok($node, 'event triggers that run SQL', within => 5);
	($row, $by_us) = audited('a copy', "SELECT status, sqlstate FROM move_indexes('t_v', '${\ other_place($to)}', method => 'copy')");
	is("$row$by_us", 'moved|', 'and nothing of a copy');

	# one that raises in the end, when core has done all
	$node->safe_psql('postgres', 'DROP EVENT TRIGGER a_start; DROP EVENT TRIGGER a_end');
	$node->safe_psql('postgres', 'CREATE EVENT TRIGGER a_end ON ddl_command_end EXECUTE FUNCTION refuse()');
	($row, $by_us) = audited('a rebuild', "SELECT status, sqlstate, detail FROM move_indexes('t_v', '$to', method => 'rebuild')");
	is($row, $version < 170000 ? 'moved||' : 'moved|P0001|no REINDEX today', 'a ddl_command_end trigger that refuses');
	is(tablespace_of_index($node, 't_v'), $to, 'the index has moved');
	wait_for_no_worker($node);
	leftovers_ok($node, 'a ddl_command_end trigger that refuses', within => 5);

	# .. with the SQLSTATE of a cancel, which is none of the job
	$node->safe_psql('postgres', <<'SQL');
DROP EVENT TRIGGER a_end;
CREATE TABLE two (i int); CREATE INDEX two_1 ON two (i); CREATE INDEX two_2 ON two (i);
CREATE FUNCTION as_if() RETURNS event_trigger LANGUAGE plpgsql AS
	$$ BEGIN IF tg_tag = 'REINDEX' THEN RAISE 'as if canceled' USING ERRCODE = '57014'; END IF; END $$;
CREATE EVENT TRIGGER a_end ON ddl_command_end EXECUTE FUNCTION as_if();
SQL
	my $rows = $node->safe_psql('postgres', <<"SQL");
SELECT status, sqlstate, detail FROM move_indexes('two', '$to', method => 'rebuild', settings => '{"max_workers": "1"}')
SQL
	is($rows, join("\n", ($version < 170000 ? 'moved||' : 'moved|57014|as if canceled') x 2),
		'a ddl_command_end trigger that raises 57014: the job goes on');
	wait_for_no_worker($node);
	leftovers_ok($node, 'a ddl_command_end trigger that raises 57014', within => 5);
	$node->safe_psql('postgres', 'DROP TABLE two');
}
$node->safe_psql('postgres', 'DROP EVENT TRIGGER a_end; DROP EVENT TRIGGER a_drop; DROP FUNCTION audit(), as_if()');
move_ok('and all of the table');

SKIP:
{
	skip 'login triggers came with PostgreSQL 17', 1 if $version < 170000;
	$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION only_clients() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (SELECT backend_type FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()) <> 'client backend' THEN
		RAISE 'no workers today';
	END IF;
END $$;
CREATE EVENT TRIGGER only_clients ON login EXECUTE FUNCTION only_clients();
ALTER EVENT TRIGGER only_clients ENABLE ALWAYS;
SQL
	move_ok('a login trigger that refuses workers');
	$node->safe_psql('postgres', 'DROP EVENT TRIGGER only_clients');
}

# ---- the role changes meanwhile: privileges are checked again -----------------------
for my $change (
	[ 'loses CREATE on the tablespace', 'REVOKE CREATE ON TABLESPACE regress_slow, regress_fast FROM mover',
		qr/^\w+\|42501\|[Pp]ermission denied for tablespace/ ],
	[ 'is not the owner any more', 'ALTER TABLE t OWNER TO CURRENT_USER', qr/^\w+\|42501\|(?:[Mm]ust be owner|[Pp]ermission denied)/ ])
{
	my ($name, $sql, $pattern) = @$change;
	$node->safe_psql('postgres', 'GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO mover; ALTER TABLE t OWNER TO mover');
	my $session = hold_t();
	my $call = start_call($node, 'changes',
		"SET ROLE mover; SELECT DISTINCT status, sqlstate, detail FROM move_indexes('t_v', '$to', method => 'rebuild')");
	wait_for_phase($node, 'waiting%');
	if ($sql =~ /^ALTER TABLE/)
	{
		# it waits for the session, as the move does
		my $other = start_call($node, 'other', $sql);
		poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'other' AND wait_event_type = 'Lock'", '1',
			'ALTER TABLE waits');
		$session->query_safe('COMMIT');
		finish_call($other);
	}
	else
	{
		$node->safe_psql('postgres', $sql);
		$session->query_safe('COMMIT');
	}
	$session->quit;
	my ($status, $row, $errors) = finish_call($call);
	like($row, $pattern, "the role $name: the row says so") or diag $errors;
	leftovers_ok($node, "the role $name", within => 5);
}
$node->safe_psql('postgres', 'GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO mover; ALTER TABLE t OWNER TO mover');

# ---- DROP EXTENSION, DROP DATABASE, DROP TABLESPACE meanwhile ----------------------
$node->safe_psql('postgres', "SELECT oracle.remember_metadata('t')");
my $session = hold_t();
my $job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('t_v', '$to', method => 'rebuild', wait => false)");
wait_for_phase($node, 'waiting%');
my $drop = error_of("SET lock_timeout = '1s'; DROP EXTENSION index_mover");
like($drop, qr/(55006|55P03): /, 'DROP EXTENSION is refused while a job runs') or diag $drop;
$session->query_safe('COMMIT');
$session->quit;
$node->safe_psql('postgres', "CALL wait_for_move($job)");
is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"), 'moved', 'the job goes on');

$node->safe_psql('postgres', "CREATE TABLESPACE regress_gone LOCATION ''");
$session = hold_t();
$job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('t_v', 'regress_gone', method => 'rebuild', wait => false)");
wait_for_phase($node, 'waiting%');
$node->safe_psql('postgres', 'DROP TABLESPACE regress_gone');
$session->query_safe('COMMIT');
$session->quit;
$node->safe_psql('postgres', "CALL wait_for_move($job, raise => false)");
like($node->safe_psql('postgres', "SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job"),
	qr/^(skipped|failed)\|42704\|The target tablespace was dropped/, 'DROP TABLESPACE of the target: the history says so');
leftovers_ok($node, 'after that', within => 5);

$node->safe_psql('postgres', 'CREATE DATABASE doomed');
setup_database($node, 'doomed');
$node->safe_psql('doomed', "CREATE TABLE d (i int); CREATE INDEX d_i ON d (i)");
my $doomed = $node->background_psql('doomed', on_error_die => 1);
$doomed->query_safe('BEGIN; INSERT INTO d VALUES (1)');
$node->safe_psql('doomed', "SELECT FROM move_indexes('d_i', 'regress_fast', method => 'rebuild', wait => false)");
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase LIKE 'waiting%'", '1', 'the job in the other database',
	dbname => 'doomed');
like(error_of('DROP DATABASE doomed'), qr/55006: database "doomed" is being accessed by other users/, 'DROP DATABASE is refused');
my $start = time;
is(error_of('DROP DATABASE doomed WITH (FORCE)'), '', 'DROP DATABASE WITH (FORCE) works');
soon_ok(time - $start, 5, 'DROP DATABASE WITH (FORCE) ends soon');
eval { $doomed->quit };
$node->safe_psql('postgres', 'CREATE DATABASE doomed');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'"), '0', 'and no worker is left');

# The same in mid-copy, when there is no other session in the database: what is in the way
# is the worker, and what it has made goes with it.
setup_database($node, 'doomed');
$node->safe_psql('doomed', <<'SQL');
CREATE TABLE d (i int);
INSERT INTO d SELECT generate_series(1, 100000);
CREATE INDEX d_i ON d (i) TABLESPACE regress_slow;
SQL
{
	my $oid = $node->safe_psql('postgres', "SELECT oid FROM pg_database WHERE datname = 'doomed'");
	my $directories = sub { return scalar(() = glob($node->data_dir . "/pg_tblspc/*/PG_*/$oid")); };
	$node->safe_psql('doomed',
		"SELECT FROM move_indexes('d_i', 'regress_fast', method => 'copy', wait => false, settings => '{\"max_rate\": \"8kB\"}')");
	poll_until($node, 'SELECT throttled_by FROM index_mover_progress', 'max_rate', 'the copy in the other database', dbname => 'doomed');
	my $worker = worker_pid($node, dbname => 'doomed');
	is($directories->(), 2, 'in mid-copy: files of the database in both tablespaces');
	like(error_of('DROP DATABASE doomed'), qr/55006: database "doomed" is being accessed by other users/,
		'in mid-copy: DROP DATABASE is refused');
	ok(!process_is_gone($worker), 'in mid-copy: and the copy goes on');
	my $error;
	foreach (1 .. 10)
	{
		# it gives the others five seconds; on a busy machine one may need more
		$error = error_of('DROP DATABASE doomed WITH (FORCE)');
		last unless $error =~ /55006: /;
	}
	is($error, '', 'in mid-copy: DROP DATABASE WITH (FORCE) works');
	poll_process_is_gone($worker);
	ok(process_is_gone($worker), 'in mid-copy: the worker has gone');
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'", '0', 'the end of all workers');
	is($directories->(), 0, 'in mid-copy: nothing is left of the database in any tablespace');
	leftovers_ok($node, 'in mid-copy, DROP DATABASE', within => 5);
	move_ok('in mid-copy, DROP DATABASE: the next call works');
}

# ---- as many jobs as there is room for -----------------------------------------------
$node->safe_psql('postgres', <<'SQL');
DO $$ BEGIN
	FOR i IN 1..60 LOOP
		EXECUTE format('CREATE TABLE many_%s (i int); CREATE INDEX many_%s_i ON many_%s (i)', i, i, i);
	END LOOP;
END $$;
SQL
my $full = error_of(<<'SQL');
BEGIN;
SELECT count(*) FROM pg_class c, move_indexes(c.oid, 'regress_fast', method => 'rebuild', wait => false) WHERE c.relname LIKE 'many\_%\_i'
  AND relkind = 'i';
COMMIT;
SQL
like($full, qr/53000: /, 'too many jobs: one clean error');
leftovers_ok($node, 'nothing of them is left', within => 5);
move_ok('and the next call succeeds');
is(tablespace_of_index($node, 'many_1'), 'many_1_i: default', 'none of the many has moved');

# ---- no worker to be had ---------------------------------------------------------------
$node->adjust_conf('postgresql.conf', 'max_worker_processes', '0');
$node->restart;
my $none = error_of("SELECT * FROM move_indexes('t', '$to', method => 'rebuild')");
like($none, qr/53000: could not register background process/, 'max_worker_processes = 0: refused');
like($none, qr/HINT: .*max_worker_processes/, 'with the setting to raise');
like(error_of("BEGIN; SELECT count(*) FROM move_indexes('t', '$to', method => 'rebuild', wait => false); COMMIT"),
	qr/53000: could not register background process/, 'the same at COMMIT');
leftovers_ok($node, 'no worker: nothing is left');
$node->adjust_conf('postgresql.conf', 'max_worker_processes', '2');
$node->restart;
move_ok("one worker beside core's own is enough");
$node->adjust_conf('postgresql.conf', 'max_worker_processes', '8');
$node->restart;

# ---- the protocol: extended queries, pipelines, portals that are not read to the end ---
append_to_file("$dir/extended.sql", "SELECT name, status FROM move_indexes('t', '$to', method => 'rebuild');\n");
{
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	for my $mode ('extended', 'prepared')
	{
		my ($o, $e) = ('', '');
		IPC::Run::run([ 'pgbench', '-n', '-c', '1', '-t', '2', '-M', $mode, '-f', "$dir/extended.sql", 'postgres' ], '>', \$o, '2>', \$e);
		like($o, qr{number of transactions actually processed: 2/2}, "query mode $mode") or diag $e;
	}
	append_to_file("$dir/pipeline.sql",
		"\\startpipeline\nSELECT 1;\nSELECT count(*) FROM move_indexes('t', '$to', method => 'rebuild');\n\\endpipeline\n");
	my ($o, $e) = ('', '');
	IPC::Run::run([ 'pgbench', '-n', '-c', '1', '-t', '1', '-M', 'extended', '-f', "$dir/pipeline.sql", 'postgres' ], '>', \$o, '2>', \$e);
	like($e, qr/move_indexes\(\).*cannot run inside a transaction block|cannot be executed within a pipeline/, 'refused in a pipeline');
}
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_indexes WHERE tablename = 't' AND tablespace = '$to'"), '2',
	'moved by the extended protocol');

# Parameters and results in binary, and a portal from which one of two rows is read
# before it is closed: what no client program here does is said to the server by hand.
{
	$to = other_place($to);
	my $server;
	socket($server, PF_UNIX, SOCK_STREAM, 0) && connect($server, pack_sockaddr_un($node->host . '/.s.PGSQL.' . $node->port))
	  or die "no connection: $!";
	$server->autoflush(1);
	my $say = sub {
		my ($type, $body) = @_;
		print $server $type, pack('N', 4 + length $body), $body;
	};
	# up to ReadyForQuery
	my $hear = sub {
		my @messages;
		do
		{
			my ($head, $body) = ('', '');
			read($server, $head, 5) == 5 or die 'the server has gone';
			my ($type, $length) = unpack 'aN', $head;
			read($server, $body, $length - 4) == $length - 4 or die 'the server has gone' if $length > 4;
			push @messages, [ $type, $body ];
		} until $messages[-1][0] eq 'Z';
		return @messages;
	};
	my $user = $node->safe_psql('postgres', 'SELECT current_user');
	my $t = $node->safe_psql('postgres', "SELECT 't'::regclass::oid");
	$say->('', pack('N', 196608) . "user\0$user\0database\0postgres\0\0");
	$hear->();
	my @values = (pack('N', $t), $to, 'rebuild', pack('C', 1));
	# regclass, name, text, bool
	$say->('P', "\0SELECT name, status FROM move_indexes(\$1, \$2, method => \$3, wait => \$4) ORDER BY 1 DESC\0"
		. pack('nN4', 4, 2205, 19, 25, 16));
	$say->('B', "some\0\0" . pack('nn4', 4, (1) x 4) . pack('n', 4) . join('', map { pack('N', length $_) . $_ } @values)
		. pack('nn', 1, 1));
	$say->('E', "some\0" . pack('N', 1));
	$say->('C', "Psome\0");
	$say->('S', '');
	my @messages = grep { $_->[0] ne 'N' } $hear->();
	is(join('', map { $_->[0] } @messages), '12Ds3Z',
		'binary parameters, a portal that is not read to the end: one row, suspended, closed');
	is(join(' ', unpack 'x2 N/a N/a', $messages[2][1]), 't_v moved', 'its row');
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_indexes WHERE tablename = 't' AND tablespace = '$to'"), '2',
		'and both indexes have moved');
	$say->('X', '');
	close $server;
}
# a cursor of SQL, from which one row is read
$to = other_place($to);
is($node->safe_psql('postgres',
	"BEGIN; DECLARE c CURSOR FOR SELECT name, status FROM move_indexes('t', '$to', method => 'rebuild', wait => false) ORDER BY 1; FETCH "
		. "1 FROM c; CLOSE c; COMMIT"),
	't_pkey|queued', 'a cursor that is not read to the end');
wait_for_job_end($node, $node->safe_psql('postgres', 'SELECT max(job) FROM index_mover_history'));
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_indexes WHERE tablename = 't' AND tablespace = '$to'"), '2',
	'and both indexes have moved');

# ---- where a call can come from ------------------------------------------------------
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION calls(target name) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RETURN (SELECT string_agg(DISTINCT status, ' ') FROM move_indexes('t', target, method => 'rebuild')); END $$;
CREATE FUNCTION calls_and_catches(target name) RETURNS text LANGUAGE plpgsql AS $$
BEGIN RETURN (SELECT string_agg(DISTINCT status, ' ') FROM move_indexes('t', target, method => 'rebuild'));
EXCEPTION WHEN division_by_zero THEN RETURN 'divided'; END $$;
CREATE FUNCTION calls_as_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.said := calls(NEW.target); RETURN NEW; END $$;
CREATE TABLE wishes (target name, said text);
CREATE TRIGGER wish BEFORE INSERT ON wishes FOR EACH ROW EXECUTE FUNCTION calls_as_trigger();
SQL
sub other { $to = other_place($to); return $to; }
is($node->safe_psql('postgres', "SELECT calls('@{[ other() ]}')"), 'moved', 'from a function');
is(error_of("SET client_min_messages = warning; DO \$\$ BEGIN IF calls('@{[ other() ]}') <> 'moved' THEN RAISE 'not moved'; END IF; END "
	. "\$\$"), '', 'from a DO block');
like(error_of("SELECT calls_and_catches('@{[ other() ]}')"), qr/25001: /,
	'from a function that catches errors: refused, since that is a subtransaction');
is($node->safe_psql('postgres', "INSERT INTO wishes VALUES ('$to') RETURNING said"), 'moved', 'from a trigger on another table');
$node->safe_psql('postgres',
	'CREATE FUNCTION calls_itself() RETURNS trigger LANGUAGE plpgsql AS \'BEGIN PERFORM calls(TG_ARGV[0]); RETURN NULL; END\';'
	  . "CREATE TRIGGER wish BEFORE UPDATE ON t FOR EACH STATEMENT EXECUTE FUNCTION calls_itself('@{[ other() ]}')");
like(error_of("UPDATE t SET v = v WHERE i = 1"), qr/55006: /, 'from a trigger on the table itself: refused');
$node->safe_psql('postgres', 'DROP TRIGGER wish ON t');
leftovers_ok($node, 'at the end');
files_ok($node, 'at the end');
metadata_ok($node, 't', 'at the end', restarted => 1);
verdict_ok($node, 't', 'at the end');

$node->stop;
done_testing();
