# evacuate_tablespace(): two databases are emptied out of a tablespace under load,
# through a cancel and a restart of the server, and then DROP TABLESPACE works; what
# stays has a row that says why, until it is gone.
#
# Fault (tables): a tablespace emptied in two databases under load, through a cancel and a
#   restart
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('evacuate');
my @databases = ('postgres', 'other');
$node->safe_psql('postgres', 'CREATE DATABASE other');
setup_database($node, 'other');

foreach my $db (@databases)
{
	$node->safe_psql($db, <<'SQL');
CREATE EXTENSION IF NOT EXISTS pg_visibility;
SET default_tablespace = regress_slow;
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text) WITH (fillfactor = 80);
ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
INSERT INTO accounts SELECT g, 0, CASE WHEN g % 50 = 0 THEN repeat(md5(g::text), 200) ELSE 'short' END FROM generate_series(1, 10000) g;
CREATE INDEX ON accounts (balance);
CREATE MATERIALIZED VIEW totals AS SELECT sum(balance) AS total FROM accounts;
CREATE TABLE parts (at int, what text) PARTITION BY RANGE (at);
CREATE INDEX ON parts (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (1000) TO (2000);
INSERT INTO parts SELECT g, 'row ' || g FROM generate_series(0, 1999) g;
CREATE TABLE "we""ird" ("Name" text PRIMARY KEY);
VACUUM ANALYZE;
SQL
}

# what no call moves
$node->safe_psql('postgres', <<'SQL');
CREATE UNLOGGED TABLE scratch (i int) TABLESPACE regress_slow;
CREATE ROLE app;
ALTER ROLE app SET default_tablespace = regress_slow;
ALTER ROLE app IN DATABASE other SET temp_tablespaces = pg_default, regress_slow;
ALTER DATABASE other SET default_tablespace = 'regress_slow';
CREATE FUNCTION report() RETURNS void LANGUAGE sql SET default_tablespace = regress_slow SET work_mem = '1MB' AS '';
SQL
my $temporary = IndexMover::Session->new($node);
$temporary->run('CREATE TEMPORARY TABLE mine (i int) TABLESPACE regress_slow');

my $writer = <<'SQL';
DO $$ BEGIN FOR i IN 1 .. 1000000 LOOP
	UPDATE accounts SET balance = balance + 1, note = CASE WHEN i % 20 = 0 THEN repeat(md5(i::text), 150) ELSE note END
		WHERE id = 1 + (i * 7919) % 10000;
	INSERT INTO parts VALUES (i % 2000, 'new') ON CONFLICT DO NOTHING;
	COMMIT;
END LOOP; END $$;
SQL
my @writers = map { start_call($node, "writer_$_", $writer, dbname => $_) } @databases;
poll_until($node, 'SELECT max(balance) > 0 FROM accounts', 't', 'the writers', dbname => $_) foreach @databases;

my $rows = sub
{
	my ($db, $columns, $arguments) = @_;
	return $node->safe_psql($db,
		"SELECT $columns FROM evacuate_tablespace('regress_slow', 'regress_fast'$arguments) ORDER BY kind, name, detail");
};

# ---- the plan touches nothing --------------------------------------------------------------
is($rows->('postgres', 'name, kind, sqlstate, detail', ', dry_run => true) WHERE (status = \'skipped\''), unfolded(<<'ROWS'),
other|database|0A000|This database has files in the tablespace, too. Files of moved or dropped relations go at the next checkpoint. To
	move the others, in that database, with the extension created in it:
	SELECT * FROM index_mover_call.evacuate_tablespace('regress_slow', 'regress_fast');
default_tablespace|setting|55000|It names the tablespace: ALTER DATABASE other RESET default_tablespace;
default_tablespace|setting|55000|It names the tablespace: ALTER ROLE app RESET default_tablespace;
default_tablespace|setting|55000|It names the tablespace: ALTER ROUTINE public.report() RESET default_tablespace;
temp_tablespaces|setting|55000|It names the tablespace: ALTER ROLE app IN DATABASE other SET temp_tablespaces TO pg_default;
mine|table|0A000|It is temporary, and goes with its session.
scratch|table|0A000|It cannot be copied: the table is unlogged, so no WAL tells which of its blocks change. Under an exclusive lock: ALTER
	TABLE public.scratch SET TABLESPACE regress_fast;
ROWS
	'what would stay, and why');
is($rows->('postgres', 'kind, count(*)', ", dry_run => true) WHERE (status = 'planned') GROUP BY kind, 'x'::text ORDER BY kind --"),
	<<'ROWS' =~ s/\n\z//r, 'what would move');
default|2
index|5
table|5
toast|4
toast index|4
ROWS

# policies that would fill it again are named
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_mover LOGIN;
GRANT EXECUTE ON FUNCTION evacuate_tablespace TO regress_mover;
GRANT CREATE ON TABLESPACE regress_fast TO regress_mover;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('"back"', 'parts', 'regress_slow', '1 day'),
	('elsewhere', 'parts', 'regress_fast', '1 day');
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget) VALUES ('rest', 'regress_slow', 'regress_fast', 1000);
SQL
my $plan = "SELECT count(*) FROM evacuate_tablespace('regress_slow', 'regress_fast', dry_run => true)";
is(join(' ', ($node->psql('postgres', $plan))[2] =~ /NOTICE:  tier policy "(\S+)" moves relations to tablespace "regress_slow"/g),
	'"back" rest', 'policies that would fill it again');
unlike(($node->psql('postgres', $plan, extra_params => [ '-U', 'regress_mover' ]))[2], qr/tier policy/, 'as far as a role sees them');
$node->safe_psql('postgres', 'DELETE FROM tier_policy; DROP OWNED BY regress_mover; DROP ROLE regress_mover');

# ---- canceled, resumed, and through a restart -------------------------------------------------
my $job = $node->safe_psql('postgres',
	"SELECT max(job) FROM evacuate_tablespace('regress_slow', 'regress_fast', wait => false, settings => "
		. "'{\"max_rate\": \"200kB\", \"max_workers\": 1}')");
poll_until($node, "SELECT moved > 0 FROM index_mover_jobs WHERE job = $job", 't', 'its first move');
$node->safe_psql('postgres', "SELECT cancel_move($job)");
$node->safe_psql('postgres', "CALL wait_for_move($job, raise => false)");
like($node->safe_psql('postgres', "SELECT status, moved < total FROM index_mover_jobs WHERE job = $job"), qr/^canceled\|t$/,
	'canceled in the middle');
$job = $node->safe_psql('postgres', "SELECT resume_move($job)");
poll_until($node, "SELECT moved > 0 FROM index_mover_jobs WHERE job = $job", 't', 'the first move of the rest');
finish_call($_) foreach map { $node->psql('postgres',
	"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'writer%'"); $_ } @writers;
$node->restart;
like($node->safe_psql('postgres', "SELECT status FROM index_mover_jobs WHERE job = $job"), qr/^(?:interrupted|canceled)\z/,
	'a restart ends it');
@writers = map { start_call($node, "writer_$_", $writer, dbname => $_) } @databases;
$job = $node->safe_psql('postgres', "SELECT resume_move($job, '{\"max_rate\": \"0\", \"max_workers\": \"2\"}')");
$node->safe_psql('postgres', "CALL wait_for_move($job)");
is($node->safe_psql('postgres', "SELECT status, moved = total FROM index_mover_jobs WHERE job = $job"), 'moved|t', 'the rest of it');

# ---- the other database, and what had stayed -----------------------------------------------------
my ($rc, $out, $err) = $node->psql('postgres', 'DROP TABLESPACE regress_slow');
like($err, qr/tablespace "regress_slow" (?:is not empty|cannot be dropped)/, 'the tablespace is still used');
is($rows->('other', 'count(*)', ") WHERE (status <> 'moved' AND kind NOT IN ('setting', 'database')) GROUP BY 'x'::text --"), '',
	'all of the other database moves');
$node->safe_psql('postgres', <<'SQL');
DROP TABLE scratch;
ALTER ROLE app RESET default_tablespace;
ALTER ROUTINE public.report() RESET default_tablespace;
ALTER ROLE app IN DATABASE other RESET temp_tablespaces;
ALTER DATABASE other RESET default_tablespace;
SQL
$node->safe_psql('postgres', 'CHECKPOINT');
is($rows->($_, 'name, detail', ''), '', "nothing is left of $_") foreach @databases;
(undef, $out, $err) = $node->psql('other', "SELECT name FROM evacuate_tablespace('regress_slow', 'regress_fast', dry_run => true)");
like($err, qr/NOTICE:  no relation is left in tablespace "regress_slow"$/m, 'nothing is left in the tablespace: the call says so');
$node->safe_psql('postgres', 'DROP TABLESPACE regress_slow');
pass('the tablespace is dropped, under load');

$node->psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'writer%'");
foreach my $call (@writers)
{
	my (undef, undef, $errors) = finish_call($call);
	is(join(' ', $errors =~ /(?:ERROR|FATAL|PANIC):  (\w+)/g), '57P01', "$call->{name} met no error but its end");
}

foreach my $db (@databases)
{
	is($node->safe_psql($db, <<'SQL'), '0|0|0|0', "$db: tables, TOAST and maps are right");
SELECT (SELECT count(*) FROM pg_check_visible('accounts')), (SELECT count(*) FROM pg_check_frozen('accounts')),
	   (SELECT count(*) FROM oracle.verify_heapam('accounts', check_toast => true)),
	   (SELECT count(*) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE t.spcname <> 'regress_fast'
	   	AND c.relname ~ 'accounts|parts|totals|ird')
SQL
	$node->safe_psql($db,
		"SELECT oracle.bt_index_check(indexrelid, heapallindexed => true) FROM pg_index WHERE indrelid IN ('accounts'::regclass, "
			. "'parts_1'::regclass, 'parts_2'::regclass)");
	is($node->safe_psql($db, "SELECT count(*) FROM accounts WHERE note = 'short' OR length(note) IN (6400, 4800)"), 10000,
		"$db: every row is there, whole");
	leftovers_ok($node, $db, dbname => $db, within => 5);
	files_ok($node, $db, dbname => $db);
}

# ---- the extension's own tables stay where they are, with TOAST, in every scope -----------------
my $own = <<'SQL';
SELECT string_agg(DISTINCT coalesce(t.spcname, 'default'), ' ')
  FROM pg_class r LEFT JOIN pg_class o ON o.oid = r.reltoastrelid JOIN pg_index i ON i.indrelid IN (r.oid, o.oid)
  JOIN pg_class c ON c.oid IN (r.oid, o.oid, i.indexrelid)
  LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
 WHERE (r.relnamespace = 'index_mover'::regnamespace OR r.oid = 'tier_policy'::regclass) AND r.relkind = 'r'
SQL
$node->safe_psql('postgres', q{DROP TABLE accounts, parts, "we""ird" CASCADE});

# ---- a file that a dead job has left --------------------------------------------------------
my $left = "SELECT kind, status, sqlstate, detail FROM evacuate_tablespace('regress_fast', 'pg_default') WHERE name ~ '^pg_tblspc'";
$node->safe_psql('postgres', 'CREATE TABLE dead (i int); INSERT INTO dead SELECT generate_series(1, 50000); CREATE INDEX ON dead (i)');
$job = $node->safe_psql('postgres',
	q(SELECT max(job) FROM move_indexes('dead', 'regress_fast', 'copy', wait => false, settings => '{"max_rate": "64kB"}')));
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE throttled_by = 'max_rate'", '1', 'a copy');
kill 'KILL', worker_pid($node);
poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'index_mover'", '0', 'the end of recovery');
foreach my $kind ('unfinished copy', 'old file')
{
	is($node->safe_psql('postgres', $left), "$kind|skipped|55006|Job $job has left it. To remove it: "
		. 'SELECT * FROM index_mover_call.index_mover_cleanup();', "the row of an $kind");
	$node->safe_psql('postgres', "UPDATE index_mover.ledger SET kind = 'o'");
}
$node->safe_psql('postgres', 'SELECT index_mover_cleanup()');
is($node->safe_psql('postgres', $left), '', 'the leftover is gone after index_mover_cleanup()');
$node->safe_psql('postgres', 'DROP TABLE dead');
$node->safe_psql('postgres', $_) foreach split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT format('ALTER %s %s SET TABLESPACE regress_fast', CASE relkind WHEN 'r' THEN 'TABLE' ELSE 'INDEX' END, oid::regclass)
  FROM pg_class WHERE relkind IN ('r', 'i') AND (relnamespace = 'index_mover'::regnamespace OR relname ~ '^tier_policy')
SQL
is($node->safe_psql('postgres', $own), 'regress_fast', q{the extension's tables are put into a tablespace});
my ($toast, $toast_index) = split /\|/, $node->safe_psql('postgres',
	q{SELECT i.indrelid::regclass, i.indexrelid::regclass FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid WHERE c.oid = }
		. q{'index_mover.move_log'::regclass});
foreach my $call (
	"move_table('index_mover.move_log', 'pg_default', indexes => true)", "move_table('$toast', 'pg_default')",
		"move_indexes('$toast', 'pg_default')",
	"move_indexes('$toast_index', 'pg_default')", "move_schema_tables('index_mover', 'pg_default', indexes => true)",
		"move_schema_indexes('index_mover', 'pg_default')",
	"move_tablespace_indexes('regress_fast', 'pg_default')", "evacuate_tablespace('regress_fast', 'pg_default')")
{
	my (undef, $moved, $errors) = $node->psql('postgres',
		"SELECT name FROM $call WHERE status <> 'skipped' AND (kind ~ 'toast' OR name ~ 'index_mover|tier_policy')");
	is($moved, '', "$call moves none of them") or diag $errors;
	is($node->safe_psql('postgres', $own), 'regress_fast', 'relations that are not moved are where they were');
}
is($node->safe_psql('postgres',
	"SELECT string_agg(DISTINCT index_mover.movable_methods(c.oid)::text, ' ') FROM pg_class c WHERE c.relname ~ '^pg_toast' AND "
		. "c.relkind IN ('t', 'i') AND c.reltablespace <> 0"),
	'{}', 'nor does a policy find a way to');

$node->stop;
done_testing();
