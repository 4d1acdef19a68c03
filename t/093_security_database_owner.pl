# The owner of a database owns the schema public, and so may rename it while the
# extension is in it and put a schema of his own in its place.  Whatever is at
# work meanwhile, nothing of the owner's is run as another role: moves that give up
# and say who was in the way, the cleanup that is asked for, that of the janitor,
# and the reports.
#
# Fault (security): the owner of the database, and so of `public`: renames schemas beside
#   moves, cleanup and the janitor, has twins of all our objects, functions with the names of
#   core's in commands that we print, and index functions that are run while a statement is
#   planned
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
my $MOVERS = 3;
my $QUEUED = 30;    # more than there is time for
my $node = new_node('owner', conf => <<CONF);
shared_preload_libraries = 'index_mover'
max_worker_processes = 20
index_mover.lock_wait = '1ms'
index_mover.on_blocker = 'fail'
index_mover.scheduler_databases = 'postgres'
index_mover.test_mutation = 'sample-ms:60000'
log_min_messages = log
CONF
my $super = $node->safe_psql('postgres', 'SELECT current_user');
my $owned = PostgreSQL::Test::Utils::tempdir() . '/owned';

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub as_attacker { return $node->safe_psql('postgres', $_[0], extra_params => [ '-U', 'attacker' ]); }

# The superuser's calls are bound to the extension's functions by OID: the names
# that he uses himself are his own affair, here it is about those that we use.
sql(<<'SQL');
CREATE ROLE attacker LOGIN;
ALTER DATABASE postgres OWNER TO attacker;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO attacker;
CREATE SCHEMA dba;
CREATE SEQUENCE dba.queued;
CREATE FUNCTION dba.move(index regclass, tablespace name, method text, wait boolean) RETURNS SETOF public.move_result
BEGIN ATOMIC SELECT * FROM public.move_indexes($1, $2, method => $3, wait => $4); END;
CREATE FUNCTION dba.cleanup(OUT kind text, OUT object text, OUT tablespace name, OUT size bigint, OUT action text) RETURNS SETOF record
BEGIN ATOMIC SELECT * FROM public.index_mover_cleanup(); END;
SQL

# What of his is run says as whom, and tries to use it.  (A sequence, the log and
# what a program has written stay when the transaction is rolled back.)
as_attacker(<<SQL);
CREATE SCHEMA trap;
CREATE SEQUENCE trap.as_superuser;
CREATE FUNCTION trap.seen(what text) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	RAISE LOG 'the attacker''s % runs as %', what, current_user;
	IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
		PERFORM pg_catalog.nextval('trap.as_superuser');
		EXECUTE 'COPY (SELECT current_user) TO PROGRAM ''cat >> "$owned"''';
	END IF;
END \$\$;
CREATE SCHEMA evil;
SQL

# His schema has one of everything that is in ours.
my $twins = sql(<<'SQL');
SELECT count(*)
  FROM pg_depend d, pg_extension e, pg_identify_object(d.classid, d.objid, 0) o
 WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'index_mover' AND d.deptype = 'e'
   AND o.schema <> 'index_mover_call'    -- has namesakes only: t/096
   AND d.classid IN ('pg_proc'::regclass, 'pg_class'::regclass)
SQL
as_attacker(<<'SQL');
DO $do$
DECLARE
	f record;
BEGIN
	FOR f IN SELECT p.oid, p.proname, p.prokind, p.proretset, p.proargmodes,
					pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
			   FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid AND e.extname = 'index_mover'
			   JOIN pg_proc p ON p.oid = d.objid
			  WHERE d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
				AND p.pronamespace <> 'index_mover_call'::regnamespace
	LOOP
		EXECUTE format('CREATE %s evil.%I(%s) %s LANGUAGE plpgsql AS %L',
			CASE f.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, f.proname, f.arguments,
			CASE WHEN f.prokind = 'p' THEN '' ELSE 'RETURNS ' || f.result END,
			format('BEGIN PERFORM trap.seen(%L); RETURN%s; END', f.proname,
				CASE WHEN f.proretset OR f.prokind = 'p' OR f.result = 'void' OR 'o' = ANY (f.proargmodes)
					OR 'b' = ANY (f.proargmodes) THEN ''
					ELSE ' NULL' END));
	END LOOP;
END $do$;
CREATE VIEW evil.index_mover_progress AS SELECT trap.seen('index_mover_progress')::text;
CREATE VIEW evil.index_mover_history AS SELECT trap.seen('index_mover_history')::text;
CREATE VIEW evil.index_mover_jobs AS SELECT trap.seen('index_mover_jobs')::text;
CREATE VIEW evil.changed_tables AS SELECT trap.seen('changed_tables')::text;
CREATE VIEW evil.ended_jobs AS SELECT trap.seen('ended_jobs')::text;
CREATE VIEW evil.online_alter_problems AS SELECT trap.seen('online_alter_problems')::text;
CREATE VIEW evil.relation_heat AS SELECT trap.seen('relation_heat')::text;
CREATE VIEW evil.tier_policy_status AS SELECT trap.seen('tier_policy_status')::text;
CREATE VIEW evil.tier_policy_days AS SELECT trap.seen('tier_policy_days')::text;
CREATE VIEW evil.shown_move AS SELECT trap.seen('shown_move')::text;
CREATE TYPE evil.move_result AS (i int);
CREATE SEQUENCE evil.job_seq;
CREATE SEQUENCE evil.ledger_seq;
SQL
my @own_tables = ('ledger', 'job_log', 'move_log', 'mount_point', 'policy_run', 'probe', 'sample');
sql("CREATE TABLE evil.$_ (LIKE index_mover.$_ INCLUDING ALL); ALTER TABLE evil.$_ OWNER TO attacker") foreach @own_tables;
sql('CREATE TABLE evil.tier_policy (LIKE public.tier_policy INCLUDING ALL); ALTER TABLE evil.tier_policy OWNER TO attacker');
is(sql(q(SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'evil'::regnamespace) +
	(SELECT count(*) FROM pg_class WHERE relnamespace = 'evil'::regnamespace AND relkind IN ('r', 'v', 'S')))),
	$twins, "a twin of everything in the extension: $twins");

# What has been run since $log, which is looked at once.
my $log = -s $node->logfile;

sub nothing_was_run
{
	my ($name) = @_;
	my $text = PostgreSQL::Test::Utils::slurp_file($node->logfile, $log);
	my @found = grep { !/runs as attacker$/ } $text =~ /(the attacker's \S+ runs as \w+)/g;
	is(join(', ', @found), '', "$name: nothing of the attacker's was run as another role");
	is(sql('SELECT is_called FROM trap.as_superuser'), 'f', "$name: nor as a superuser");
	ok(!-e $owned, "$name: and no program as the server's user");
	is(sql("SELECT rolsuper FROM pg_roles WHERE rolname = 'attacker'"), 'f', "$name: he is no superuser");
	sql("SELECT setval('trap.as_superuser', 1, false)");
	unlink $owned;
	$log = -s $node->logfile;
	return;
}

# ---- the schemas change places, again and again -----------------------------------
sub pgbench
{
	my ($name, $clients, $seconds, $user, %scripts) = @_;
	my @files;
	foreach my $script (sort keys %scripts)
	{
		my $file = PostgreSQL::Test::Utils::tempdir() . "/$script.sql";
		PostgreSQL::Test::Utils::append_to_file($file, "$scripts{$script}\n") unless -e $file;
		push @files, '-f', $file;
	}
	my $run = { name => $name, output => '' };
	$run->{harness} = IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-T', $seconds, @files,
		$node->connstr('postgres') . " user=$user" ],
		'<', \'', '>&', \$run->{output}, IPC::Run::timer($IndexMover::Test::TIMEOUT));
	return $run;
}

# Wait for its end; returns how many transactions it has made.
sub transactions
{
	my ($run) = @_;
	ok($run->{harness}->finish, "$run->{name}: no error") or diag $run->{output};
	my ($n) = $run->{output} =~ /transactions actually processed: (\d+)/;
	note "$run->{name}: $n transactions";
	return $n;
}

sub start_renaming
{
	my ($seconds) = @_;
	return pgbench('schemas that change places', 1, $seconds, 'attacker', rename => <<'SQL');
BEGIN; ALTER SCHEMA public RENAME TO aside; ALTER SCHEMA evil RENAME TO public; COMMIT;
BEGIN; ALTER SCHEMA public RENAME TO evil; ALTER SCHEMA aside RENAME TO public; COMMIT;
SQL
}

# Tables that are in use, so that each move gives up at once: a copy at its swap, a
# rebuild before it begins.
my $holder = IndexMover::Session->new($node, user => 'attacker');
my @tables = 0 .. $MOVERS + $QUEUED - 1;
as_attacker(join ';', map { "CREATE TABLE trap.t$_ (i int); CREATE INDEX t${_}_i ON trap.t$_ (i) TABLESPACE regress_slow" } @tables);
$holder->run(join ';', 'BEGIN', map { "LOCK TABLE trap.t$_ IN ROW EXCLUSIVE MODE; SELECT count(*) FROM trap.t$_" } @tables);

# And something to clean up that cannot be: a prepared transaction uses the table.
as_attacker(<<'SQL');
CREATE TABLE trap.kept (i int);
CREATE INDEX kept_i ON trap.kept (i) TABLESPACE regress_slow;
SQL
as_attacker("BEGIN; SELECT count(*) FROM trap.kept; PREPARE TRANSACTION 'stays'");
like(sql("SELECT status, detail FROM public.move_indexes('trap.kept_i', 'regress_fast', method => 'rebuild', settings => "
	. "'{\"lock_wait\": \"2s\"}')"),
	qr/^moved\|.*prepared transaction "stays"/, 'an index that is left over');
sql('SELECT pg_terminate_backend(pid) FROM index_mover_progress');
wait_for_no_worker($node);
my $left = q(SELECT count(*) FROM pg_index WHERE indrelid = 'trap.kept'::regclass AND NOT indisvalid);
is(sql($left), '1', 'and not removed');

my $renaming = start_renaming(14);
my $moving = pgbench('moves that give up', $MOVERS, 13, $super,
	map { ($_ => "SELECT status FROM dba.move(format('trap.t%s_i', :client_id)::regclass, 'regress_fast', '$_', true);") } 'copy',
		'rebuild');
cmp_ok(transactions($moving), '>', 20, 'moves that gave up');
ok($node->log_contains(qr/could not get the exclusive lock on index "t\d_i"/, $log), 'copies gave up');
ok($node->log_contains(qr/gave up waiting for transactions that use the table/, $log), 'and rebuilds');
cmp_ok(transactions($renaming), '>', 100, 'schemas that changed places');
nothing_was_run('moves');

# moves without a wait, as a schedule makes them, and the cleanup
$renaming = start_renaming(6);
my $queueing = pgbench('moves without a wait', 1, 5, $super,
	queue => "SELECT status FROM dba.move(format('trap.t%s_i', $MOVERS - 1 + nextval('dba.queued'))::regclass, 'regress_fast', 'copy', "
		. "false);\n\\sleep 200 ms");
my $cleaning = pgbench('cleanup', 1, 5, $super, cleanup => 'SELECT action FROM dba.cleanup();');
cmp_ok(transactions($queueing), '>', 2, 'moves that were queued');
cmp_ok(transactions($cleaning), '>', 2, 'calls of index_mover_cleanup()');
cmp_ok(transactions($renaming), '>', 50, 'schemas that changed places');
wait_for_no_worker($node);
nothing_was_run('moves without a wait, and cleanup');
is(sql('SELECT action FROM dba.cleanup()'), 'kept: its table is in use, try again later', 'what was left is still there');
$holder->run('COMMIT');
$holder->end;

# the janitor, who looks into postgres and template1
sub wait_for_janitor
{
	$node->wait_for_log(qr/(?:starting background worker process "index_mover cleanup".*?){2}/s, $log);
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'", '0', 'end of the cleanup');
	return;
}

$node->append_conf('postgresql.conf', 'log_min_messages = debug1');
foreach my $round (1, 2)
{
	$node->restart;
	transactions(start_renaming(1));
	wait_for_janitor();
	nothing_was_run("janitor, start $round");
}
is(sql($left), '1', 'what was left is still there');
is(sql('SELECT ' . join ' + ', map { "(SELECT count(*) FROM evil.$_)" } @own_tables), '0',
	"no row was written into the attacker's tables");
cmp_ok(sql('SELECT count(*) FROM index_mover.move_log'), '>', 20, 'but into ours');
as_attacker("ROLLBACK PREPARED 'stays'");
is(sql('SELECT action FROM dba.cleanup()'), 'removed', 'once the table is free, what was left is removed');
is(sql($left), '0', 'and gone');

# ---- functions of indexes with constants for arguments: run when it is planned ------
# (of which a look at the index's expression is enough)
as_attacker(<<'SQL');
CREATE FUNCTION trap.f(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	-- before 17, the worker of a job of his has been a superuser; and an error
	-- that is caught ends what core publishes of its progress
	BEGIN
		EXECUTE (SELECT format('SET SESSION AUTHORIZATION %I', rolname) FROM pg_catalog.pg_roles WHERE oid = 10);
	EXCEPTION WHEN OTHERS THEN NULL;
	END;
	PERFORM trap.seen('expression');
	RETURN i;
END $$;
CREATE TABLE trap.folded (i int, words tsvector);
INSERT INTO trap.folded SELECT g, 'a b c' FROM generate_series(1, 20) g;
SET default_tablespace = regress_slow;
CREATE INDEX folded_e ON trap.folded ((i + trap.f(1)));
CREATE INDEX folded_p ON trap.folded (i) WHERE trap.f(2) = 2;
CREATE INDEX folded_b ON trap.folded USING brin ((i + trap.f(4)));
CREATE INDEX folded_g ON trap.folded USING gin (words) WHERE trap.f(3) = 3;
SQL
is(sql("SELECT count(*) FROM public.index_report('trap.folded', sample => true)"), '5', 'index_report, the table in it');
sql($_) foreach 'SELECT count(*) FROM public.recommend_moves(\'regress_fast\')', "SELECT * FROM public.gin_pending_list('trap.folded_g')",
  "SELECT * FROM public.index_mover_blockers('trap.folded')", 'SELECT public.take_index_sample()', 'SELECT * FROM public.tier_plan()',
  	'SELECT * FROM public.run_tier_policies()', 'SELECT * FROM public.relation_heat',
  "SELECT * FROM public.move_indexes('trap.folded', 'regress_fast', dry_run => true)";
sql("SELECT * FROM public.index_bloat('trap.$_')") foreach 'folded_e', 'folded_p', 'folded_b', 'folded_g';
sql("SELECT * FROM public.index_bloat('trap.folded_e')");
nothing_was_run('reports on indexes whose functions have constants for arguments');
sql("SELECT * FROM public.index_bloat('trap.folded_b', exact => true)");
is(sql("SELECT DISTINCT status FROM public.move_indexes('trap.folded', 'regress_fast', method => 'copy')"), 'moved',
	'an index whose functions have constants for arguments is copied');
is(sql("SELECT DISTINCT status FROM public.move_indexes('trap.folded', 'regress_slow', method => 'rebuild', settings => "
	. "'{\"lock_wait\": \"60s\"}')"), 'moved', 'rebuild');
ok($node->log_contains(qr/the attacker's expression runs as attacker/, $log), 'a rebuild runs them as the owner');
nothing_was_run('moves of such indexes');
sql('GRANT EXECUTE ON FUNCTION public.move_indexes TO attacker');
foreach my $move ([ 'copy', 'regress_fast' ], [ 'rebuild', 'regress_slow' ])
{
	is(as_attacker("SELECT DISTINCT status FROM public.move_indexes('trap.folded', '$move->[1]', method => '$move->[0]', settings => "
		. "'{\"lock_wait\": \"60s\"}')"),
		'moved', "$move->[0], his own");
}
nothing_was_run('his own moves of such indexes');
leftovers_ok($node, 'at the end', within => 5);

# ---- his policies: planned by a superuser, run by one, and by the scheduler --------------------
# Names and settings are hostile.
sql('GRANT SELECT, INSERT, UPDATE, DELETE ON public.tier_policy TO attacker; GRANT EXECUTE ON FUNCTION public.tier_plan, '
	. 'public.run_tier_policies TO attacker');
as_attacker(<<'SQL');
CREATE TABLE trap."a'); SELECT trap.seen('name'); --" (d date, i int) PARTITION BY RANGE (d);
CREATE TABLE trap."""; DROP" PARTITION OF trap."a'); SELECT trap.seen('name'); --" FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE INDEX "'i" ON trap."""; DROP" ((i + trap.f(5)));
INSERT INTO trap."""; DROP" VALUES ('2020-01-02', 1);
INSERT INTO public.tier_policy (name, relation, to_tablespace, older_than, min_stay, every) VALUES
	('%s''); SELECT trap.seen(''policy''); --', 'trap."a''); SELECT trap.seen(''name''); --"', 'regress_fast', '1 day', '0',
		'1 s'),
	('back', 'trap."a''); SELECT trap.seen(''name''); --"', 'regress_slow', '1 day', '0', NULL);
INSERT INTO public.tier_policy (name, schema, from_tablespace, to_tablespace, budget, settings)
  VALUES ('budget', 'trap', 'regress_slow', 'regress_fast', 1000000000, '{"rebuild_threshold": 0}');
SQL
foreach my $settings ('{"on_blocker": "terminate"}', '{"max_workers": 8}', '{"min_free_space": 0}', '{"role": "postgres"}',
	'{"session_authorization": "postgres"}')
{
	my (undef, undef, $err) = $node->psql('postgres', "UPDATE public.tier_policy SET settings = '$settings'",
		extra_params => [ '-U', 'attacker', '-v', 'VERBOSITY=verbose' ]);
	like(sqlstate_of($err), qr/^(?:42501|22023)$/, "not in his settings: $settings");
}
foreach my $round (1 .. 3)
{
	like(sql('SELECT count(*) FROM public.tier_plan()'), qr/^[1-9]/, "a superuser plans his policies, $round");
	sql('SELECT count(*) FROM public.run_tier_policies(wait => true)');
	as_attacker('SELECT count(*) FROM public.run_tier_policies()');
	sql('SELECT pg_reload_conf()');
	poll_until($node, q(SELECT count(*) > 0 FROM index_mover.policy_run WHERE policy ~ 'policy' AND started_at > now() - interval '3 s'),
		't', 'the scheduler');
	nothing_was_run("his policies, $round");
}
is(sql("SELECT string_agg(DISTINCT role::text, ' ') FROM public.index_mover_jobs WHERE policy IS NOT NULL"), 'attacker',
	'his jobs are his');
sql('DELETE FROM public.tier_policy');

# ---- commands that the reports print, for others to run -------------------------------
# (A literal is rather a text than a regclass or a name.)
as_attacker(<<'SQL');
CREATE FUNCTION public.pg_drop_replication_slot(text) RETURNS void
	LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.seen('pg_drop_replication_slot'); END $$;
CREATE FUNCTION public.gin_clean_pending_list(text) RETURNS void
	LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.seen('gin_clean_pending_list'); END $$;
CREATE FUNCTION public.pg_terminate_backend(int) RETURNS void
	LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.seen('pg_terminate_backend'); END $$;
CREATE FUNCTION public.pg_cancel_backend(int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.seen('pg_cancel_backend'); END $$;
CREATE TABLE trap.words (t tsvector);
CREATE INDEX words_t ON trap.words USING gin (t) WITH (fastupdate = on) TABLESPACE regress_slow;
INSERT INTO trap.words SELECT to_tsvector('simple', string_agg(g || '_' || h, ' ')) FROM generate_series(1, 300) g,
  generate_series(1, 100) h GROUP BY g;
SQL
sub run_printed
{
	my ($query, $what) = @_;
	my $printed = sql($query);
	my @calls = $printed =~ /(SELECT \S*(?:pg_|gin_)\w+\([^;]*\);)/g;
	like(join(' ', @calls), qr/\b$what\(/, "a command with $what");
	sql($_) foreach @calls;
	return;
}
sql(q(SELECT pg_create_physical_replication_slot('forgotten', true)));
run_printed(q(SELECT action FROM public.index_mover_blockers() WHERE kind = 'slot'), 'pg_drop_replication_slot');
is(sql('SELECT count(*) FROM pg_replication_slots'), '0', 'the slot is dropped');
my $idle = IndexMover::Session->new($node);
$idle->run('BEGIN; SELECT txid_current()');
run_printed(q(SELECT action FROM public.index_mover_blockers(min_age => '0 s') WHERE pid = ) . $idle->pid, 'pg_terminate_backend');
poll_until($node, 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $idle->pid, '0', 'the end of the session');
my $busy = IndexMover::Session->new($node);
$busy->send('SELECT txid_current(), pg_sleep(600)');
poll_until($node, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $busy->pid, 'PgSleep', 'a session at work');
run_printed(q(SELECT action FROM public.index_mover_blockers(min_age => '0 s') WHERE pid = ) . $busy->pid, 'pg_cancel_backend');
$busy->answer;
like($busy->errors, qr/canceling statement due to user request/, 'the statement is canceled');
$busy->end;
sql('ALTER TABLESPACE regress_slow SET (random_page_cost = 40); ALTER TABLESPACE regress_fast SET (random_page_cost = 1)');
# (rates are of the time since the first sample, which would come after the only search)
$node->append_conf('postgresql.conf', "index_mover.scheduler_databases = ''");
# so that there is something to read: the janitor, too, brings pages into shared buffers, so only a few fit
$node->append_conf('postgresql.conf', 'shared_buffers = 600kB');
$node->restart;
sql('DELETE FROM index_mover.sample');
sql("SET enable_seqscan = off; SELECT count(*) FROM trap.words WHERE t @@ '1_1'; SELECT pg_stat_force_next_flush()");
own_devices($node);
run_printed(q(SELECT reason FROM public.recommend_moves('regress_fast')), 'gin_clean_pending_list');
is(sql("SELECT pending_pages FROM public.gin_pending_list('trap.words_t')"), '0', 'the pending list is empty');
nothing_was_run('printed commands');

# ---- what the owner of the schema can do to the extension in it -----------------------
foreach my $try ('DROP FUNCTION public.index_mover_blockers', 'DROP VIEW public.index_mover_progress', 'DROP TABLE index_mover.ledger',
	'DROP INDEX index_mover.ledger_pkey', 'ALTER TABLE index_mover.ledger RENAME TO mine', 'ALTER TABLE index_mover.ledger SET SCHEMA evil',
	'ALTER SCHEMA index_mover RENAME TO evil2', 'DROP SCHEMA index_mover CASCADE', 'CREATE TABLE index_mover.t (i int)',
	'ALTER FUNCTION public.index_mover_blockers SET search_path = evil', 'CREATE OR REPLACE VIEW public.index_mover_progress AS SELECT 1',
	'CREATE RULE r AS ON SELECT TO public.index_mover_progress DO INSTEAD SELECT 1',
	'CREATE TRIGGER t BEFORE INSERT ON index_mover.ledger FOR EACH ROW EXECUTE FUNCTION trap.seen()',
	'CREATE INDEX ON index_mover.ledger ((trap.f(job::int)))', 'DROP EXTENSION index_mover', 'ALTER EXTENSION index_mover SET SCHEMA evil',
	'ALTER EXTENSION index_mover DROP FUNCTION public.index_mover_blockers',
		'CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION trap.seen()',
	'CREATE OPERATOR CLASS trap.ops DEFAULT FOR TYPE int USING btree AS FUNCTION 1 btint4cmp(int, int)')
{
	my ($rc, $out, $err) = $node->psql('postgres', $try, extra_params => [ '-U', 'attacker', '-v', 'VERBOSITY=verbose' ]);
	like(sqlstate_of($err), qr/^(?:42501|2BP01)$/, "not for the owner of the schema: $try") or diag $err;
}

# He can drop the schema with all that is in it, whoever owns that.  The extension is
# gone then, and nothing that has the names of its objects is taken for them.
as_attacker('SET client_min_messages = error; DROP SCHEMA public CASCADE; ALTER SCHEMA evil RENAME TO public');
as_attacker(join '; ', 'CREATE SCHEMA index_mover', map { "ALTER TABLE public.$_ SET SCHEMA index_mover" } @own_tables);
is(sql("SELECT count(*) FROM pg_extension WHERE extname = 'index_mover'"), '0',
	'the schema can be dropped, and the extension goes with it');
$node->restart;
wait_for_janitor();
nothing_was_run('janitor, without the extension');

done_testing();
