# Commands that we print, for others to run: in the extension's schema another role has
# put overloads of every kind of each function that a command may name, and a
# superuser, with the worst search_path that there is, runs each command that a message,
# a row or a view has told him.  Ours runs, and nothing else.  The commands and who
# prints them come from the source (scripts/check-commands): one that no case is for
# fails this test.  Once with the extension in public, of which the owner of the
# database is the attacker, and once in a schema in which he may create.
#
# Fault (security): commands that we print: each is run by a superuser, with overloads of every
#   kind of each function beside ours, in `public` and in a schema of the extension's own; views
#   and functions of the script take nothing that was there before (also scripts/check-commands)
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
my $top = "$FindBin::RealBin/..";
my %commands = slurp_file("$top/src/printed_command.c") =~ /^\t\{"(\w+)", "(.*)"\},$/mg;
my @places = split /\n/, `$^X $top/scripts/check-commands --list`;
cmp_ok(scalar(keys %commands), '>', 20, 'commands in the source: ' . keys %commands);
cmp_ok(scalar(@places), '>', 40, 'places that print one: ' . @places);

# What is not met here, and the test that meets the message.  The command is met all the
# same, where another place prints it.
my %elsewhere = (
	'src/call/wait_for_job.c history' => undef,             # behind a connection of Citus's
	'src/call/wait_for_job.c progress' => undef,
	'src/call/control.c progress' => '040_control_steer.pl',
	'src/worker/move_worker.c cleanup' => undef,
	'src/call/cleanup_call.c cleanup' => '079_tools_monitoring.pl',
	'src/call/cleanup_call.c resume_move' => '117_exact_resume.pl',
	'src/plan/plan_stays.c cleanup' => '117_exact_resume.pl',
	'src/cleanup/leftover_files.c cleanup' => '028_copy_ledger.pl',
	'src/cleanup/leftover_indexes.c cleanup' => undef,
	'src/copy/copy_steps.c cleanup' => '021_copy_crash.pl',
	'src/call/resume_at_start.c resume_move' => '126_control_restart.pl',
	'src/call/online_alter.c jobs' => '107_online_alter.pl',
	'src/call/online_alter.c resume_move' => '107_online_alter.pl',
	'src/job.c progress' => undef,
	'src/worker/janitor.c heal' => '088_lost_heal_start.pl',
	'src/lost_copy.c heal' => undef,
	'src/lost_copy.c reindex' => undef,             # t/089_lost_laundered.pl runs it
	'index_mover--1.0.sql drop_index' => undef,    # t/127_own_tables.pl runs it
	'index_mover--1.0.sql alter_move' => '118_control_explain.pl',
	'index_mover--1.0.sql blockers' => '079_tools_monitoring.pl',
	'src/worker/job_launch.c cleanup' => undef,
	'src/worker/job_launch.c jobs' => undef,
	'src/copy/copy_locks.c alter_move' => undef,            # the command of copy_rounds.c, which is run below
	'src/worker/move_default.c alter_move' => undef,
	'src/wait/pacing.c cancel_move' => '084_versions_drop_extension.pl',
	'src/worker/move_default.c blockers' => '107_online_alter.pl',
	'src/worker/move_default.c cancel_move' => '107_online_alter.pl',
	'src/worker/move_item.c cleanup' => undef);

my $node = new_node('printed', extension => 0, conf => "max_worker_processes = 20\nindex_mover.on_blocker = 'fail'\n");
my $db;
my $schema;

sub sql { return $node->safe_psql($db, $_[0]); }
sub as_attacker { return $node->safe_psql($db, $_[0], extra_params => [ '-U', 'attacker' ]); }

# All that a statement says: rows, and what psql writes of messages.
sub told
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql($db, $sql);
	return "$out\n$err";
}

# ---- what the attacker has made -------------------------------------------------------
# A sequence keeps its value when the transaction is rolled back.
my $TRAP = <<'SQL';
CREATE SCHEMA trap;
CREATE SEQUENCE trap.captured;
GRANT ALL ON SCHEMA trap TO PUBLIC;
GRANT ALL ON SEQUENCE trap.captured TO PUBLIC;
CREATE FUNCTION trap.seen(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_catalog.nextval('trap.captured');
	RAISE WARNING 'captured: %', what;
END $$;
SQL

# Overloads of a function with these argument types, in a schema: fewer arguments, one
# more with a default (which makes a call with the exact types ambiguous), text, int for
# bigint, variadic, polymorphic; the same names of arguments with defaults.
my $OVERLOADS = <<'SQL';
CREATE FUNCTION trap.overload(target text, name text, types text[], names text[], ambiguous boolean DEFAULT true)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	n int := cardinality(types);
	made int := 0;
	arguments text;
	kind text;
BEGIN
	FOREACH arguments IN ARRAY
		(SELECT array_agg(array_to_string(types[1:k], ', ')) FROM generate_series(0, n - 1) k) ||
		(SELECT array_agg(array_to_string(array_fill('text'::text, ARRAY[k]), ', ')) FROM generate_series(1, n) k) ||
		(SELECT array_agg(array_to_string(array_fill('anyelement'::text, ARRAY[k]), ', ')) FROM generate_series(1, n) k) ||
		CASE WHEN ambiguous THEN ARRAY[array_to_string(types || 'int DEFAULT 0'::text, ', '),
									   array_to_string(types || 'int DEFAULT 0'::text || 'text DEFAULT NULL'::text, ', ')] END ||
		ARRAY[array_to_string(types || 'VARIADIC text[]'::text, ', '),
			  nullif(replace(array_to_string(types, ', '), 'bigint', 'int'), array_to_string(types, ', ')),
			  nullif(replace(array_to_string(types, ', '), 'regclass', 'oid'), array_to_string(types, ', ')),
			  (SELECT string_agg(format('%I text DEFAULT NULL', a), ', ') FROM unnest(names) a),
			  (SELECT string_agg(format('%I int DEFAULT NULL', a), ', ') FROM unnest(names) a),
			  'VARIADIC text[]', 'VARIADIC int[]', 'VARIADIC anyarray', 'int', 'numeric', 'int, text, text', 'int, varchar, varchar']
	LOOP
		CONTINUE WHEN arguments IS NULL;
		FOREACH kind IN ARRAY ARRAY['FUNCTION', 'PROCEDURE'] LOOP
			BEGIN
				EXECUTE format('CREATE %s %I.%I(%s) %s LANGUAGE plpgsql AS %L', kind, target, name, arguments,
					CASE kind WHEN 'FUNCTION' THEN 'RETURNS text' ELSE '' END,
					format('BEGIN PERFORM trap.seen(%L)%s; END', name, CASE kind WHEN 'FUNCTION' THEN '; RETURN NULL' ELSE '' END));
				made := made + 1;
			EXCEPTION WHEN duplicate_function OR invalid_function_definition OR ambiguous_function OR duplicate_object THEN NULL;
			END;
		END LOOP;
	END LOOP;
	RETURN made;
END $$;
SQL

# Functions of core and of the extension that printed commands call.
sub called
{
	my %called;
	foreach my $text (values %commands)
	{
		$called{$2}{$1} = 1 while $text =~ /\b(pg_catalog|index_mover_call)\.(\w+)\(/g;
	}
	return %called;
}

sub attack
{
	my %called = called();
	foreach my $function (sort keys %called)
	{
		# with the types and names of the arguments of the one that is to be run
		my @of = split /\n/, sql(<<SQL);
SELECT format('%L::text[], %L::text[]', array_agg(format_type(t.type, NULL) ORDER BY t.n),
			  array_agg(coalesce(p.proargnames[t.n], 'a' || t.n) ORDER BY t.n))
  FROM pg_proc p CROSS JOIN LATERAL unnest(p.proargtypes::oid[]) WITH ORDINALITY t(type, n)
 WHERE p.proname = '$function' AND p.pronamespace::regnamespace::text IN ('pg_catalog', 'index_mover_call', '$schema')
   AND p.prokind <> 'a'
 GROUP BY p.oid
SQL
		push @of, map { "'{$_}'::text[], '{command}'::text[]" } 'text', 'bigint';    # aggregates, functions of Citus
		foreach my $target ('public', $schema)
		{
			as_attacker("SET client_min_messages = error; SELECT trap.overload('$target', '$function', $_)") foreach @of;
		}
		cmp_ok(sql("SELECT count(*) FROM pg_proc WHERE proname = '$function' AND pg_get_userbyid(proowner) = 'attacker'"), '>', 8,
			"$db: overloads of $function()");
	}
	# relations, types and operators that stand in a command
	as_attacker(<<'SQL');
CREATE DOMAIN public.regclass AS text CHECK (trap.seen('domain') IS NULL OR true);
CREATE FUNCTION public.bad_eq(oid, oid) RETURNS boolean LANGUAGE plpgsql
	AS $$ BEGIN PERFORM trap.seen('operator'); RETURN true; END $$;
CREATE FUNCTION public.bad_eq(oid, pg_catalog.regclass) RETURNS boolean LANGUAGE plpgsql
	AS $$ BEGIN PERFORM trap.seen('operator'); RETURN true; END $$;
CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = oid, PROCEDURE = public.bad_eq);
CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = pg_catalog.regclass, PROCEDURE = public.bad_eq);
CREATE VIEW public.pg_inherits AS SELECT trap.seen('view')::text AS inhrelid, NULL::text AS inhparent;
SQL
	foreach my $view ($schema eq 'public' ? () : ('index_mover_jobs', 'index_mover_progress', 'index_mover_history'))
	{
		as_attacker("CREATE VIEW public.$view AS SELECT trap.seen('view')::text");
	}
	return;
}

# ---- running them ------------------------------------------------------------------------
my %met;      # place => 1
my %ran;      # command => 1

# The commands of a text that the named place has printed; each is run, and its output
# returned.
sub run_printed
{
	my ($place, $text, %options) = @_;
	my ($name) = $place =~ / (\w+)$/;
	$met{$place} = 1;
	my $pattern = quotemeta $commands{$name};
	$pattern =~ s/\\%d/\\d+/g;
	$pattern =~ s/\\%L/ ?E?'(?:[^']|'')*'/g;
	$pattern =~ s/\\%[Is]/(?:"(?:[^"]|"")*"|[\\w. ])+/g;
	my ($printed) = $text =~ /((?<![\w.])$pattern)/;
	ok(defined $printed, "$db: $place") or do { diag $text; return ''; };
	note $printed;
	my $command = $printed =~ /^index_mover_call\./ ? "TABLE $printed;" : $printed;
	my @ends = ($command =~ s/'(?:[^']|'')*'|"(?:[^"]|"")*"//gr) =~ /;/g;
	is(scalar(@ends), 1, "$db: $place: one statement");
	my $session = IndexMover::Session->new($node, dbname => $options{dbname} || $db);
	$session->run("SET search_path = trap, public, $schema, pg_catalog");
	$session->send($command =~ s/;$//r);
	my $answer = $session->answer;
	my $errors = $session->errors;
	$session->end;
	unlike($errors, qr/captured|is not unique|does not exist|permission denied|syntax error/, "$db: $place: ours is run");
	unlike($errors, qr/ERROR|FATAL/, "$db: $place: without an error");
	is(sql('SELECT is_called FROM trap.captured'), 'f', "$db: $place: and nothing of the attacker's");
	$ran{$name}++;
	like($answer, $options{answer}, "$db: $place: what it answers") if $options{answer};
	return $answer;
}

sub job_of { return sql("SELECT job FROM dba.$_[0] LIMIT 1"); }
sub wait_for { sql("CALL dba.wait_for_move($_[0])"); return; }

# What a move says that a session is in the way of.
sub in_vain
{
	return told(q(SELECT detail FROM dba.move_indexes('held', 'regress_slow', method => 'copy', settings => '{"lock_wait": "1ms"}')));
}

# The action for one of the rows of index_mover_blockers().
sub action { return sql("SELECT action FROM dba.index_mover_blockers(min_age => NULL) WHERE $_[0]"); }

# The detail of what a plan leaves out.
sub skipped { return sql("SELECT string_agg(detail, ' ') FROM dba.$_[0], dry_run => true) WHERE status = 'skipped' AND $_[1]"); }

# Where the index of "held" is not.
sub other_place
{
	return sql(<<'SQL');
SELECT spcname FROM pg_tablespace
 WHERE spcname ~ '^regress' AND oid <> (SELECT reltablespace FROM pg_class WHERE relname = 'held_i')
SQL
}

# A job that goes on until it is canceled.
sub paused_job
{
	my $to = other_place();
	my $job = job_of("move_indexes('held', '$to', method => 'copy', wait => false, settings => '{\"swap_after\": \"infinity\"}')");
	poll_until($node, "SELECT count(*) FROM index_mover.running() WHERE job = $job AND phase LIKE '%swap%'", '1',
		'a job that waits', dbname => $db);
	return $job;
}

sub status_of { return sql("SELECT string_agg(DISTINCT status, ' ') FROM index_mover.move_log WHERE job = $_[0]"); }

sub ended
{
	my ($job, $status, $name) = @_;
	poll_until($node, "SELECT $job IN (SELECT alive.job FROM index_mover.alive())", 'f', "end of job $job", dbname => $db);
	is(status_of($job), $status, "$db: $name");
	return;
}

# A command that a user cancels, because another session holds it up.
sub cancel_behind
{
	my ($holds, $command, $far) = @_;
	my $holder = IndexMover::Session->new($node, dbname => $db);
	$holder->run("BEGIN; $holds");
	my $session = IndexMover::Session->new($node, dbname => $db);
	$session->send($command);
	poll_until($node, $far, 't', "$command: so far", dbname => $db);
	sql('SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->answer;
	$_->end foreach $holder, $session;
	return;
}

# What others have left behind: rows of another cluster, commands that were canceled, a session that is gone.
sub leftovers_of_others
{
	sql(q(INSERT INTO index_mover.ledger (id, system_identifier, database, kind, tablespace, relfilenumber, table_oid, relation,
		new_index, job, pid, made_at) SELECT nextval('index_mover.ledger_seq'), '1''; ', d.oid, 'i', 0, 0, 1, 1, 1, 1, 1, now()
		FROM pg_database d WHERE d.datname = current_database()));
	my $of_others = q(FROM dba.index_mover_check() WHERE kind = 'rows of another cluster');
	run_printed('src/call/cleanup_call.c adopt_ledger', sql("SELECT command $of_others"));
	is(sql("SELECT count(*) $of_others"), '0', "$db: the rows are of this cluster");
	sql('DELETE FROM index_mover.ledger WHERE job = 1');

	# an index of a TOAST table, which is ours, or not
	sql('CREATE TABLE "to; ast" (i int, t text)');
	my $detail = q(SELECT string_agg(detail, ' ') FROM dba.move_table('"to; ast"', 'regress_fast', dry_run => true));
	my $invalid = q(FROM pg_class t JOIN pg_index i ON i.indrelid = t.reltoastrelid AND i.indisvalid JOIN pg_index n ON n.indrelid = )
	  . q(i.indrelid AND NOT n.indisvalid JOIN pg_class c ON c.oid = n.indexrelid WHERE t.relname = 'to; ast');
	foreach my $command ('drop_index', 'cleanup')
	{
		cancel_behind('INSERT INTO "to; ast" VALUES (0, NULL)', 'REINDEX TABLE CONCURRENTLY "to; ast"',
			q(SELECT count(*) > 0 FROM pg_stat_progress_create_index WHERE phase = 'waiting for writers before build'));
		sql(<<SQL) if $command eq 'cleanup';
INSERT INTO index_mover.ledger (id, system_identifier, database, kind, tablespace, relfilenumber, table_oid, relation, new_index,
								job, pid, made_at, new_name)
SELECT nextval('index_mover.ledger_seq'), s.system_identifier, d.oid, 'i', 0, 0, i.indrelid, i.indexrelid, n.indexrelid, 1, 1, now(),
	   c.relname
  FROM (SELECT oid FROM pg_database WHERE datname = current_database()) d, pg_control_system() s, LATERAL (
	SELECT i.indrelid, i.indexrelid, n.indexrelid AS new_index, c.relname $invalid) i, LATERAL (SELECT i.new_index) n(indexrelid),
	   LATERAL (SELECT i.relname) c(relname)
SQL
		run_printed("src/plan/plan.c $command", sql($detail));
		is(sql("SELECT count(*) $invalid"), '0', "$db: the index of the TOAST table is removed: $command");
	}
	sql('DROP TABLE "to; ast"');

	# a partition that is being detached
	sql(<<'SQL');
CREATE TABLE "pa; rent" (i int) PARTITION BY RANGE (i);
CREATE TABLE "le; af" PARTITION OF "pa; rent" FOR VALUES FROM (0) TO (10);
SQL
	cancel_behind('SELECT count(*) FROM "pa; rent"', 'ALTER TABLE "pa; rent" DETACH PARTITION "le; af" CONCURRENTLY',
		'SELECT count(*) > 0 FROM pg_catalog.pg_inherits WHERE inhdetachpending');
	run_printed('src/plan/plan.c detach_finalize', skipped(q{move_table('"pa; rent"', 'regress_fast'}, 'true'));
	sql('DROP TABLE "pa; rent"; DROP TABLE "le; af"');

	# a temporary table of a session that is gone
	my $owner = IndexMover::Session->new($node, dbname => $db);
	$owner->run('SET temp_tablespaces = regress_slow; CREATE TEMP TABLE "pass; es" (i int)');
	kill 'KILL', $owner->pid;
	wait_until_up($node);
	run_printed('src/plan/plan_stays.c drop',
		skipped("evacuate_tablespace('regress_slow', 'regress_fast'", "detail LIKE 'It is temporary%'"));
	is(sql(q(SELECT count(*) FROM pg_class WHERE relname = 'pass; es')), '0', "$db: it is dropped");

	# a tablespace without relations, whose directory is gone
	my $location = $node->basedir . '/spare';
	mkdir $location or die "$location: $!";
	sql(qq(CREATE TABLESPACE "sp; are" LOCATION '$location'));
	rmdir $_ or die "$_: $!" foreach glob "$location/PG_*";
	run_printed('src/report/device_report.c heal', sql(q(SELECT command FROM dba.index_mover_check() WHERE kind = 'missing directory')));
	is(scalar(() = glob "$location/PG_*"), 1, "$db: the directory is there again");
	sql('DROP TABLESPACE "sp; are"');
	rmdir $location or die "$location: $!";
	return;
}

sub walk
{
	# by index_mover_explain(), of a copy that rests for free space: t/109_table_free_space.pl
	run_printed("index_mover--1.0.sql $_", sql("SELECT index_mover.printed_command('$_')")) foreach 'archiver', 'checkpoint';
	sql(<<'SQL');
CREATE TABLE held (i int);
INSERT INTO held SELECT generate_series(1, 1000);
CREATE INDEX held_i ON held (i) TABLESPACE regress_slow;
CREATE TABLE "sp; ace" (i int);
CREATE INDEX "in;d""ex'" ON "sp; ace" (i) TABLESPACE regress_slow;
CREATE SCHEMA "a'b; c";
SQL

	# --- steering
	run_printed('src/call/call_checks.c jobs', told('SELECT dba.cancel_move(999999)'));
	run_printed('src/call/call_checks.c jobs', told('CALL dba.wait_for_move(999999)'));
	run_printed('src/call/wait_for_job.c jobs', told('CALL dba.wait_for_move(NULL)'));
	my ($job, $other) = (paused_job(), undef);
	run_printed('src/job.c cancel_move', told("SELECT * FROM dba.move_indexes('held', 'regress_fast')"));
	ended($job, 'canceled', 'the job is canceled');
	foreach my $case (
		[ 'src/call/control.c cancel_move', 'SELECT * FROM dba.undo_move(%d)' ],
		[ 'src/settings.c cancel_move', "SELECT dba.alter_move(%d, 'max_workers', '2')" ],
		[ 'src/call/wait_for_job.c cancel_move', "SET statement_timeout = '300ms'; CALL dba.wait_for_move(%d)" ])
	{
		# another job is not meant
		$job = paused_job();
		$other = job_of(q[move_indexes('"sp; ace"', 'regress_fast', method => 'copy', wait => false, ]
			. q[settings => '{"swap_after": "infinity"}')]);
		run_printed($case->[0], told(sprintf $case->[1], $job));
		ended($job, 'canceled', "$case->[0]: the job is canceled");
		is(sql("SELECT $other IN (SELECT alive.job FROM index_mover.alive())"), 't', "$db: and no other");
		sql("SELECT dba.cancel_move($other)");
		ended($other, 'canceled', 'nor is that left');
	}
	my $holder = IndexMover::Session->new($node, dbname => $db);
	$holder->run('BEGIN; SELECT count(*) FROM held');
	my $pid = $holder->pid;
	my $settings = q(settings => '{"on_failure": "error", "lock_wait": "1ms"}');
	my $text = told("SELECT * FROM dba.move_indexes('held', 'regress_fast', method => 'copy', $settings)");
	($job) = $text =~ /resume_move\((\d+)\)/;
	run_printed('src/call/notices.c history', told("CALL dba.wait_for_move($job, false)"));
	$holder->run('COMMIT');
	my $rest = run_printed('src/call/notices.c resume_move', $text);
	ended($rest, 'moved', 'the rest is moved');
	$text = told(q(SET statement_timeout = '2s';
		SELECT * FROM dba.move_indexes('held', 'regress_slow', method => 'copy', settings => '{"swap_after": "infinity"}')));
	$rest = run_printed('src/call/wait_for_job.c resume_move', $text);
	# (it waits again; a copy that max_rate holds up is in t/041)
	run_printed('src/copy/copy_rounds.c alter_move', sql("SELECT index_mover.printed_command('alter_move', '$rest', 'max_rate', '8MB')"));
	is(sql("SELECT settings->>'max_rate' FROM index_mover_call.index_mover_jobs WHERE job = $rest"), '8MB', "$db: max_rate is raised");
	sql("SELECT dba.cancel_move($rest)");
	poll_until($node, "SELECT $rest IN (SELECT alive.job FROM index_mover.alive())", 'f', 'its end', dbname => $db);

	# --- what is in the way
	$holder->run('BEGIN; SELECT count(*) FROM held');
	run_printed('src/wait/blockers.c terminate_backend', in_vain());
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0', 'the end of the session');
	foreach my $place ('src/wait/blockers.c cancel_backend', 'index_mover--1.0.sql cancel_backend')
	{
		my $busy = IndexMover::Session->new($node, dbname => $db);
		$busy->send('SELECT count(*), pg_sleep(600) FROM held');
		poll_until($node, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $busy->pid, 'PgSleep', 'a session at work');
		run_printed($place, $place =~ /sql/ ? action('pid = ' . $busy->pid) : in_vain());
		$busy->answer;
		like($busy->errors, qr/canceling statement due to user request/, "$db: $place: the statement is canceled");
		$busy->end;
	}
	my $idle = IndexMover::Session->new($node, dbname => $db);
	$idle->run('BEGIN; SELECT txid_current()');
	run_printed('index_mover--1.0.sql terminate_backend', action('pid = ' . $idle->pid));
	poll_until($node, 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $idle->pid, '0', 'the end of the session');
	foreach my $how ('commit_prepared', 'rollback_prepared')
	{
		foreach my $place ("index_mover--1.0.sql $how", "src/wait/blockers.c $how")
		{
			sql(q(BEGIN; INSERT INTO held VALUES (-2); SELECT count(*) FROM held; PREPARE TRANSACTION 'it''s; \\ "one"'));
			run_printed($place, $place =~ /sql/ ? action("kind = 'prepared transaction'") : in_vain());
			is(sql('SELECT count(*) FROM pg_prepared_xacts'), '0', "$db: $place: it is ended");
		}
	}
	is(sql('SELECT count(*) FROM held WHERE i = -2'), '2', "$db: two of them by a commit");
	sql(q(SELECT pg_create_physical_replication_slot('forgotten', true)));
	run_printed('index_mover--1.0.sql drop_slot', action("kind = 'slot'"));
	is(sql('SELECT count(*) FROM pg_replication_slots'), '0', "$db: the slot is dropped");

	# a copy that waits says so once, and goes on
	$holder = IndexMover::Session->new($node, dbname => $db);
	$holder->run('BEGIN; SELECT count(*) FROM held');
	my $log = -s $node->logfile;
	my $to = other_place();
	$job = job_of(qq{move_indexes('held', '$to', method => 'copy', wait => false, }
			. q{settings => '{"on_blocker": "wait", "lock_wait": "1ms"}')});
	$node->wait_for_log(qr/HINT:.*To see more: /, $log);
	my ($hint) = slurp_file($node->logfile, $log) =~ /(HINT:.*To see more: .*)/;
	run_printed('src/copy/copy_locks.c blockers', $hint);
	run_printed('src/copy/copy_locks.c cancel_move', $hint);
	ended($job, 'canceled', 'the copy that waited is canceled');
	$holder->run('COMMIT');
	$holder->end;

	# --- the server has stopped in the middle
	$job = paused_job();
	$node->stop('immediate');
	$node->start;
	my $ended = "FROM dba.index_mover_check() WHERE kind = 'ended job' AND object = 'job $job'";
	run_printed('index_mover--1.0.sql cancel_move', sql("SELECT detail $ended"));
	is(sql("SELECT count(*) $ended"), '0', "$db: the end of the job is acknowledged");
	$text = sql("SELECT message FROM index_mover_call.index_mover_history WHERE job = $job");
	$rest = run_printed('index_mover--1.0.sql resume_move', $text);
	sql("SELECT dba.cancel_move($rest)");
	poll_until($node, "SELECT $rest IN (SELECT alive.job FROM index_mover.alive())", 'f', 'its end', dbname => $db);

	# --- what is not well
	sql('CREATE TABLE gone (i int); CREATE INDEX gone_i ON gone (i) TABLESPACE regress_slow; CHECKPOINT');
	unlink $node->data_dir . '/' . sql("SELECT pg_relation_filepath('gone_i')") or die $!;
	run_printed('src/call/cleanup_call.c heal', sql("SELECT command FROM dba.index_mover_check() WHERE kind = 'lost file'"));
	is(sql("SELECT count(*) FROM dba.index_mover_check() WHERE kind = 'lost file'"), '0', "$db: the index is rebuilt");

	# --- plans
	sql(<<'SQL');
CREATE TABLE parent (i int PRIMARY KEY) TABLESPACE regress_slow;
CREATE TABLE child (PRIMARY KEY (i) USING INDEX TABLESPACE regress_slow) INHERITS (parent) TABLESPACE regress_slow;
CREATE TABLE odd (i int);
CREATE INDEX "odd_""i" ON odd (i);
CREATE INDEX "a; b_ccnew" ON odd (i);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = '"a; b_ccnew"'::regclass::oid;
SQL
	run_printed('src/plan/plan_relations.c move_children',
		told("SELECT * FROM dba.move_indexes('parent', 'regress_fast', dry_run => true)"),
		answer => qr/child_pkey.*\|moved\|/);
	run_printed('src/plan/plan_relations.c move_child_tables',
		told("SELECT * FROM dba.move_table('parent', 'regress_fast', dry_run => true)"),
		answer => qr/child\|table\|moved\|/);
	sql(q(UPDATE pg_index SET indisvalid = false WHERE indexrelid = '"odd_""i"'::regclass::oid));
	run_printed('src/plan/plan_checks.c move_indexes', skipped("move_indexes('odd', 'regress_fast'", 'true'), answer => qr/\|moved\|/);
	sql(<<'SQL');
CREATE TABLE excl (r int4range, CONSTRAINT "excl_""r" EXCLUDE USING gist (r WITH OPERATOR(pg_catalog.&&)));
UPDATE pg_index SET indisvalid = false WHERE indexrelid = '"excl_""r"'::regclass::oid;
SQL
	run_printed('src/plan/plan_checks.c reindex', skipped("move_indexes('excl', 'regress_fast'", 'true'));
	is(sql(q(SELECT i.indisvalid, t.spcname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_tablespace t
		ON t.oid = c.reltablespace WHERE c.relname = 'excl_"r')), 't|regress_fast', "$db: one of an exclusion constraint is repaired");
	run_printed('src/plan/plan_checks.c drop_index', skipped("move_indexes('odd', 'regress_fast'", 'true'));
	is(sql(q(SELECT count(*) FROM pg_class WHERE relname = 'a; b_ccnew')), '0', "$db: the index is dropped");
	sql(<<'SQL');
CREATE INDEX odd_ccnew ON odd (i);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'odd_ccnew'::regclass::oid;
INSERT INTO index_mover.ledger (id, system_identifier, database, kind, tablespace, relfilenumber, table_oid, relation, new_index,
								job, pid, made_at, new_name)
SELECT nextval('index_mover.ledger_seq'), c.system_identifier, d.oid, 'i', 0, 0, 'odd'::regclass, '"odd_""i"'::regclass,
	   'odd_ccnew'::regclass, 1, 1, now(), 'odd_ccnew'
  FROM pg_database d, pg_control_system() c WHERE d.datname = current_database();
SQL
	run_printed('src/plan/plan_checks.c cleanup', skipped("move_indexes('odd', 'regress_fast'", 'true'));
	is(sql(q(SELECT count(*) FROM pg_class WHERE relname = 'odd_ccnew')), '0', "$db: what was left is removed");

	leftovers_of_others();

	# --- ALTER ... SET TABLESPACE, online
	my %alter = (table => q(ALTER TABLE "a'b; c"."al""t"), index => q(ALTER INDEX "a'b; c"."al""t_i"));
	sql(q(CREATE TABLE "a'b; c"."al""t" (i int CONSTRAINT "al""t_i" PRIMARY KEY USING INDEX TABLESPACE regress_slow)
		TABLESPACE regress_slow));
	foreach my $what (sort keys %alter)
	{
		my $told = told("LOAD 'index_mover'; SET index_mover.online_alter = require; BEGIN;"
			  . " $alter{$what} SET TABLESPACE regress_fast; ROLLBACK");
		($job) = run_printed("src/call/online_alter.c queue_$what", $told) =~ /^(\d+)/;
		ended($job, 'moved', "online ALTER, $what");
	}
	sql(q(CREATE UNLOGGED TABLE "a'b; c"."un""l" (i int CONSTRAINT "un""l_i" PRIMARY KEY USING INDEX TABLESPACE regress_slow)));
	run_printed('src/call/online_alter.c move_indexes', told("LOAD 'index_mover'; SET index_mover.online_alter = require;"
				  . q( ALTER INDEX "a'b; c"."un""l_i" SET TABLESPACE regress_fast)));
	sql(q(CREATE FUNCTION trap.fail() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$));
	sql(q(CREATE EVENT TRIGGER fail ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION trap.fail()));
	$text = told("LOAD 'index_mover'; SET index_mover.online_alter = on; $alter{table} SET TABLESPACE regress_slow");
	sql('DROP EVENT TRIGGER fail; DROP FUNCTION trap.fail()');
	run_printed('src/call/online_alter.c undo_move', $text);

	# of Citus, what we have to know
	sql(<<'SQL');
SET allow_system_table_mods = on;
CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid pg_catalog.regclass NOT NULL, partmethod "char");
CREATE TABLE "a'b; c".shard (i int PRIMARY KEY) TABLESPACE regress_slow;
INSERT INTO pg_catalog.pg_dist_partition VALUES ($$"a'b; c".shard$$::pg_catalog.regclass, 'h');
CREATE FUNCTION pg_catalog.run_command_on_all_nodes(command text) RETURNS text LANGUAGE plpgsql
	AS $$ DECLARE r text; BEGIN EXECUTE command INTO r; RETURN r; END $$;
SQL
	foreach my $what ('indexes', 'tables')
	{
		my $call = $what eq 'tables' ? 'move_table' : 'move_indexes';
		$text = told("SELECT * FROM dba.$call(\$\$\"a'b; c\".shard\$\$, 'regress_fast', dry_run => true)");
		$met{"src/plan/plan_relations.c queue_schema_$what"} = 1;
		$ran{"queue_schema_$what"}++;
		like($text =~ s/''/'/gr, qr/index_mover_call\.move_schema_$what\(/, "$db: the whole schema is named");
		$job = run_printed('src/plan/plan_relations.c on_all_nodes', $text);
		ended($job, 'moved', "on all nodes, $what");
	}
	sql('SET allow_system_table_mods = on; DROP TABLE pg_catalog.pg_dist_partition; DROP FUNCTION pg_catalog.run_command_on_all_nodes');

	# --- what stays in a tablespace
	my $far = $db eq 'postgres' ? 'mover' : 'postgres';
	$node->safe_psql($far, 'CREATE TABLE far (i int) TABLESPACE regress_slow');
	sql(q(CREATE ROLE "r; x"));
	my @settings = (q(ROLE "r; x"), qq(DATABASE $far), qq(ROLE "r; x" IN DATABASE $far), 'ROLE ALL');
	foreach my $setting (@settings, 'SYSTEM')
	{
		foreach my $value ('temp_tablespaces = pg_default, regress_slow', 'default_tablespace = regress_slow')
		{
			sql("ALTER $setting SET $value");
			run_printed('src/plan/plan_stays.c alter_setting',
				skipped("evacuate_tablespace('regress_slow', 'regress_fast'", "kind = 'setting'"));
			is(sql('SELECT count(*) FROM pg_db_role_setting WHERE setconfig::text LIKE \'%regress_slow%\''), '0', "$db: $setting: reset");
			unlike(slurp_file($node->data_dir . '/postgresql.auto.conf'), qr/regress_slow/, "$db: $setting, of the server: reset");
		}
	}
	sql(q(DROP ROLE "r; x"));
	run_printed('src/plan/plan_stays.c evacuate', skipped("evacuate_tablespace('regress_slow', 'regress_fast'", "name = '$far'"),
		dbname => $far, answer => qr/^\d+\|far\|table\|moved\|/m);
	$node->safe_psql($far, 'DROP TABLE far');
	sql('CREATE DATABASE "s; p" TABLESPACE regress_slow');
	run_printed('src/plan/plan_stays.c alter_database', skipped("evacuate_tablespace('regress_slow', 'regress_fast'", "name = 's; p'"));
	is(sql(q(SELECT spcname FROM pg_database d JOIN pg_tablespace t ON t.oid = dattablespace WHERE datname = 's; p')), 'regress_fast',
		"$db: the other database is moved");
	sql('DROP DATABASE "s; p"');
	sql('SET allow_system_table_mods = on; ALTER TABLE pg_catalog.pg_largeobject SET TABLESPACE regress_slow');
	run_printed('src/plan/plan_stays.c do', skipped("evacuate_tablespace('regress_slow', 'pg_default'", "name = 'pg_largeobject'"));
	is(sql(q(SELECT reltablespace FROM pg_class WHERE relname = 'pg_largeobject')), '0', "$db: the catalog is moved");
	sql('CREATE UNLOGGED TABLE "s""c; x" (i int) TABLESPACE regress_slow');
	run_printed('src/plan/plan_checks.c alter_relation', skipped(q{move_table('"s""c; x"', 'pg_default'}, 'true'));
	is(sql(q(SELECT reltablespace FROM pg_class WHERE relname = 's"c; x')), '0', "$db: the unlogged table is moved");
	# --- reports
	sql("ALTER TABLESPACE $_ RESET (random_page_cost, effective_io_concurrency)") foreach 'regress_slow', 'regress_fast';
	run_printed('src/report/tablespace_probe.c tablespace_costs',
		sql("SELECT command FROM dba.tablespace_probe('regress_slow', '100 ms')"));
	like(sql("SELECT spcoptions FROM pg_tablespace WHERE spcname = 'regress_slow'"), qr/random_page_cost/, "$db: the costs are set");
	sql('ALTER TABLESPACE regress_slow RESET (random_page_cost, effective_io_concurrency)');
	own_devices($node);
	sql('ALTER TABLESPACE regress_fast SET (random_page_cost = 50)');
	run_printed('src/tier/ranking.c probe', told("SELECT * FROM dba.recommend_moves('regress_fast')"),
		answer => qr/"random_read_ms": [\d.]+/);
	sql(<<'SQL');
DELETE FROM index_mover.probe;
ALTER TABLESPACE regress_slow SET (random_page_cost = 40); ALTER TABLESPACE regress_fast SET (random_page_cost = 1);
CREATE TABLE "W; " (t tsvector) TABLESPACE regress_slow;
CREATE INDEX words_t ON "W; " USING gin (t) WITH (fastupdate = on) TABLESPACE regress_slow;
INSERT INTO "W; " SELECT to_tsvector('simple', string_agg(g || '_' || h, ' '))
  FROM generate_series(1, 300) g, generate_series(1, 100) h GROUP BY g;
SQL
	$node->restart;    # so that there is something to read
	sql(q(SET enable_seqscan = off; SELECT count(*) FROM "W; " WHERE t @@ '1_1'; SELECT pg_stat_force_next_flush()));
	my $advice = q(FROM dba.recommend_moves('regress_fast') WHERE coalesce(index, table_name)::text = );
	# with the use of a day, and autovacuum on
	sql(<<'SQL');
BEGIN;
INSERT INTO index_mover.sample VALUES ('yesterday', 0, NULL, 0);
INSERT INTO index_mover.sample (taken_at, table_oid, index_name, blks_read, index_scans, changes)
  VALUES ('yesterday', '"W; "'::regclass, 'words_t', -1000, -1000, 0);
COMMIT;
ALTER TABLE "W; " SET (autovacuum_enabled = off);
ALTER SYSTEM SET autovacuum = on;
SELECT pg_reload_conf();
SQL
	poll_until($node, 'SHOW autovacuum', 'on', "$db: autovacuum");
	my $steps = sql(q(SELECT array_to_string(advice, ' ') FROM dba.gin_pending_list('words_t')));
	sql('ALTER SYSTEM RESET autovacuum; DELETE FROM index_mover.sample; SELECT pg_reload_conf()');
	run_printed("src/tier/pending.c $_", $steps) foreach 'pending_limit', 'pending_analyze';
	sql('ALTER TABLE "W; " SET (autovacuum_enabled = off); ALTER INDEX words_t RESET (gin_pending_list_limit)');
	like($steps, qr/: SELECT pg_catalog\.gin_clean_pending_list\('public\.words_t'\); /, "$db: the first step");
	$met{'src/tier/pending.c flush_pending'} = 1;    # as the next one
	run_printed('src/tier/ranking.c flush_pending', sql("SELECT reason $advice 'words_t'"));
	is(sql("SELECT pending_pages FROM dba.gin_pending_list('words_t')"), '0', "$db: the pending list is empty");
	run_printed('src/tier/ranking.c move_indexes', sql("SELECT command $advice 'words_t'"), answer => qr/words_t\|index\|moved\|/);
	sql(q(SELECT pg_stat_reset()));
	$node->restart;
	sql(q(SET enable_seqscan = off; SELECT count(*) FROM "W; " WHERE t @@ '1'; SELECT pg_stat_force_next_flush()));
	run_printed('src/tier/ranking.c move_table', sql("SELECT command $advice '\"W; \"'"), answer => qr/\|table\|moved\|/);

	# --- what keeps policies from being carried out
	my $fault = sub { return sql('SELECT command FROM index_mover.policy_fault()') };
	my $function = 'EXECUTE FUNCTION suppress_redundant_updates_trigger()';
	foreach my $case (
		[ drop_trigger => qq(CREATE TRIGGER "t; ""x" BEFORE UPDATE ON $schema.tier_policy FOR EACH ROW $function) ],
		[ drop_rule => qq(CREATE RULE "r; ""x" AS ON DELETE TO $schema.tier_policy DO ALSO SELECT 1) ],
		[ enable_trigger => "ALTER TABLE $schema.tier_policy DISABLE TRIGGER tier_policy_owner" ],
		[ no_inherit => qq(CREATE TABLE "c; ""x" () INHERITS ($schema.tier_policy)) ])
	{
		my ($command, $makes) = @$case;
		sql($makes);
		run_printed("src/tier/policy_fault.c $command", $fault->());
		is($fault->(), '', "$db: no fault any more: $command");
	}
	foreach my $case ([ not_by_replication => 'create_replica_trigger' ], [ tier_policy_owner => 'create_trigger' ])
	{
		my ($trigger, $command) = @$case;
		sql("DROP TRIGGER $trigger ON $schema.tier_policy");
		run_printed("src/tier/policy_fault.c $command", $fault->());
		run_printed('src/tier/policy_fault.c enable_trigger', $fault->());
		is($fault->(), '', "$db: no fault any more: $command");
	}
	my $locker = IndexMover::Session->new($node, dbname => $db);
	$locker->run("BEGIN; LOCK TABLE $schema.tier_policy");
	run_printed('src/tier/policy_fault.c terminate_backend', $fault->());
	poll_until($node, q(SELECT count(*) FROM pg_stat_activity WHERE pid = ) . $locker->pid, '0',
		"$db: the session that has locked the table");
	sql(qq{CREATE ROLE "o'; "; INSERT INTO $schema.tier_policy (name, to_tablespace, idle_for, owner, owner_oid) VALUES ('p''; ', }
		. q{'regress_slow', '100 days', 'o''; ', 5)});
	run_printed('src/tier/policy_status.c set_owner', sql(q(SELECT command FROM dba.index_mover_check() WHERE object = 'p''; ')));
	is(sql("DELETE FROM $schema.tier_policy RETURNING owner_oid::regrole"), q("o'; "), "$db: the owner is set");
	sql(q(DROP ROLE "o'; "));

	# --- policies: nothing of ours looks up a name
	sql(<<SQL);
INSERT INTO $schema.tier_policy (name, budget, from_tablespace, to_tablespace, min_stay)
VALUES ('p', 100000000, 'regress_slow', 'regress_fast', '0')
SQL
	sql("SELECT * FROM dba.$_") foreach 'tier_plan()', 'run_tier_policies(NULL, true)', 'index_report()', 'take_index_sample()',
	  'run_tier_policies(NULL, true)';
	sql("TABLE $schema.$_") foreach 'relation_heat', 'index_mover_jobs', 'index_mover_history', 'index_mover_progress';
	is(sql('SELECT is_called FROM trap.captured'), 'f', "$db: policies, reports and views run nothing of the attacker's");

	# and the schema of printed commands is not his
	foreach my $try ('CREATE FUNCTION index_mover_call.resume_move(int) RETURNS int LANGUAGE sql RETURN 1',
		'ALTER SCHEMA index_mover_call RENAME TO mine', 'DROP SCHEMA index_mover_call CASCADE',
		'ALTER FUNCTION index_mover_call.cancel_move SET search_path = public')
	{
		my ($rc, $out, $err) = $node->psql($db, $try, extra_params => [ '-U', 'attacker', '-v', 'VERBOSITY=verbose' ]);
		like(sqlstate_of($err), qr/^(?:42501|2BP01)$/, "$db: not for the attacker: $try") or diag $err;
	}
	return;
}

# ---- twice ------------------------------------------------------------------------------
$node->safe_psql('postgres', 'CREATE ROLE attacker LOGIN; CREATE DATABASE mover');
$node->safe_psql('postgres', "ALTER DATABASE $_ OWNER TO attacker") foreach 'postgres', 'mover';
setup_database($node, 'mover', extension => 0);
foreach my $place ([ 'postgres', 'public' ], [ 'mover', 'mover' ])
{
	($db, $schema) = @$place;
	sql("CREATE SCHEMA IF NOT EXISTS $schema; GRANT CREATE, USAGE ON SCHEMA $schema TO attacker");
	sql("CREATE EXTENSION index_mover SCHEMA $schema CASCADE");
}
foreach my $place ([ 'postgres', 'public' ], [ 'mover', 'mover' ])
{
	($db, $schema) = @$place;
	# The test's own calls are bound by OID before there is anything else to take.
	sql('CREATE SCHEMA dba');
	foreach my $function (split /\n/, sql(<<SQL))
SET search_path = pg_catalog;
SELECT format('CREATE FUNCTION dba.%I(%s) RETURNS %s LANGUAGE sql BEGIN ATOMIC SELECT %s; END', p.proname,
			  pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
			  CASE WHEN p.proretset OR p.proargmodes IS NOT NULL THEN '* FROM ' ELSE '' END || p.oid::regproc::text || '(' ||
			  (SELECT string_agg('\$' || n, ', ') FROM generate_series(1, p.pronargs) n) || ')')
  FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'index_mover'
 WHERE p.pronamespace = '$schema'::regnamespace AND p.prokind = 'f'
SQL
	{
		sql("SET search_path = pg_catalog; $function");
	}
	sql(<<'SQL');
CREATE PROCEDURE dba.wait_for_move(job bigint, raise boolean DEFAULT true)
AS '$libdir/index_mover', 'index_mover_wait_for_move' LANGUAGE C
SQL
	as_attacker($TRAP);
	as_attacker($OVERLOADS);
	# it works: a call is taken, and a complete one with the exact types stopped
	as_attacker("CREATE FUNCTION $schema.resume_move(int) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM trap.seen(''resume_move''); "
		. "END'");
	told("SELECT $schema.resume_move(999999)");
	attack();
	is(sql('SELECT is_called FROM trap.captured'), 't', "$db: an overload of the attacker's is what a call of resume_move() runs");
	like(told("SELECT $schema.resume_move(999999::bigint, NULL::jsonb)"), qr/is not unique/,
		"$db: or what makes a complete and typed call ambiguous");
	sql("SELECT setval('trap.captured', 1, false)");
	walk();
}

# ---- before there is an extension ------------------------------------------------------
# What is in the schema already is not taken by the functions and views of the script:
# neither an overload nor an operator that fits better than core's.
my @functions = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT p.proname, format('%L::text[], %L::text[]', array_agg(format_type(t.type, NULL) ORDER BY t.n), array_agg('a' || t.n ORDER BY t.n))
  FROM pg_proc p CROSS JOIN LATERAL unnest(p.proargtypes::oid[]) WITH ORDINALITY t(type, n)
  JOIN pg_depend d ON d.classid = 'pg_proc'::regclass::oid AND d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'index_mover'
 WHERE p.pronamespace::regnamespace::text = 'public' GROUP BY p.oid, p.proname
 UNION
SELECT p.proname, '''{}''::text[], ''{}''::text[]' FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace
   AND p.proname IN ('current_setting', 'quote_ident', 'parse_ident', 'count', 'sum', 'min', 'max', 'bool_or', 'round', 'now', 'format')
SQL
$db = 'early';
$schema = 'public';
$node->safe_psql('postgres', 'CREATE DATABASE early OWNER attacker');
as_attacker($TRAP);
as_attacker($OVERLOADS);
as_attacker(join ";\n", 'SET client_min_messages = error', map { "SELECT trap.overload('public', '$_->[0]', $_->[1], false)" } @functions);
as_attacker(<<'SQL');
DO $do$
DECLARE
	types regtype[] := ARRAY['int4', 'int8', 'numeric', 'float8', 'text', 'name', '"char"', 'oid', 'regclass',
							 'timestamptz', 'interval', 'boolean'];
	o record;
BEGIN
	FOR o IN SELECT s.symbol, l.type AS l, r.type AS r,
					CASE WHEN s.symbol IN ('+', '-', '*', '/') THEN 'numeric' WHEN s.symbol = '||' THEN 'text' ELSE 'boolean' END AS result
			   FROM unnest(ARRAY['+', '-', '*', '/', '||', '=', '<>', '<', '>', '<=', '>=', '~']) s(symbol)
			  CROSS JOIN unnest(types) l(type) CROSS JOIN unnest(types) r(type)
			  WHERE NOT EXISTS (SELECT FROM pg_operator e WHERE e.oprname = s.symbol AND e.oprleft = l.type AND e.oprright = r.type)
	LOOP
		EXECUTE format('CREATE FUNCTION trap.%I(a %s, b %s) RETURNS %s LANGUAGE plpgsql '
					   'AS $$ BEGIN PERFORM trap.seen(''operator''); RETURN NULL; END $$',
			'op ' || o.symbol, o.l, o.r, o.result);
		EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, PROCEDURE = trap.%I)', o.symbol, o.l, o.r,
			'op ' || o.symbol);
	END LOOP;
END $do$;
SQL
cmp_ok(sql('SELECT count(*) FROM pg_operator WHERE oid >= 16384::oid'), '>', 500, 'operators that fit better than those of core');
sql('CREATE EXTENSION index_mover SCHEMA public CASCADE');
is(sql(<<'SQL'), '', 'CREATE EXTENSION takes none of what was there');
SET search_path = pg_catalog;
WITH theirs AS (
	SELECT 'pg_proc'::regclass AS catalog, oid FROM pg_proc WHERE pg_get_userbyid(proowner) = 'attacker'
	UNION ALL SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE pg_get_userbyid(oprowner) = 'attacker')
SELECT DISTINCT pg_describe_object(d.classid, d.objid, 0) || ' uses ' || pg_describe_object(d.refclassid, d.refobjid, 0)
  FROM pg_depend d JOIN theirs t ON t.catalog = d.refclassid AND t.oid = d.refobjid
 WHERE NOT EXISTS (SELECT FROM theirs u WHERE u.catalog = d.classid AND u.oid = d.objid)
SQL

# any role may call the function
foreach my $arguments ("'nothing'", "'resume_move'")
{
	my (undef, undef, $err) = $node->psql('postgres', "SELECT index_mover.printed_command($arguments)",
		extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);
	like($err, qr/ERROR:  22023/, "printed_command($arguments)");
}

foreach my $place (@places)
{
	ok($met{$place} || exists $elsewhere{$place}, "a case for $place");
	my $file = $elsewhere{$place} // next;
	like(slurp_file("$top/t/$file"), qr/index_mover_call\\\./, "$place is met in t/$file");
}
ok($ran{$_}, "\"$_\" was run") foreach sort grep { !/^progress$/ } keys %commands;
done_testing();
