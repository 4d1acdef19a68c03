# What moves by copying keep on record, and what becomes of it: ledger rows that do
# not tell the truth, a database that goes to another tablespace and takes along what
# a killed move has left, and a source behind the swap, which cannot be dropped, or
# whose directory goes away, while the old file is in it.
#
# Nothing may be removed but what a move has made, nothing of that is forgotten, and
# the standby has no file more or less than its primary.
#
# Fault (storage): source's directory gone behind the swap, with the old file in it: a WARNING,
#   and it stays on record
# Fault (security): a database with leftovers as a template, by both strategies
# Fault (security): forged rows of the ledger (see below) (also sql/privileges)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

# checkpoints come when the test says so
my $node = new_node('ledger',
	streaming => 1,
	extra => ['--data-checksums'],
	conf => "checkpoint_timeout = 1h\nmax_wal_size = 1GB\nwal_keep_size = 1GB");
# long keys: the index is to be large, and to be looked up quickly
my %rows = (store => [ 8000, 60 ], small => [ 5000, 5 ]);
foreach my $table (sort keys %rows)
{
	my ($rows, $length) = @{ $rows{$table} };
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE $table (i int, s text) WITH (fillfactor = 80);
ALTER TABLE $table ALTER s SET STORAGE plain;
INSERT INTO $table SELECT g, repeat(md5(g::text), $length) FROM generate_series(1, $rows) g;
CREATE INDEX ${table}_s ON $table (s) TABLESPACE regress_slow;
SELECT oracle.remember_metadata('$table');
SQL
}
cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size('store_s')"), '>', 17 * 1024 * 1024,
	'the old file is removed in more than one step');

$node->backup('early');
my $standby = PostgreSQL::Test::Cluster->new('ledger_standby');
$standby->init_from_backup($node, 'early', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 256MB\nwal_retrieve_retry_interval = 100ms");
$standby->start;

sub move_to_point
{
	my ($point, $to) = @_;
	return held_at($node, $point,
		"SELECT status FROM move_indexes('store_s', '$to', method => 'copy', settings => '{\"pacing\": \"off\"}')");
}

# ---------------------------------------------------------------------------
# Ledger rows that a user has made up
# ---------------------------------------------------------------------------
my ($number, $database, $slow) = split /\|/, $node->safe_psql('postgres', <<SQL);
SELECT 4000000, d.oid, t.oid FROM pg_database d, pg_tablespace t
 WHERE d.datname = current_database() AND t.spcname = 'regress_slow'
SQL
my $to = elsewhere($node, 'store_s');
my $call = move_to_point('copy-half', $to);
# a file that no relation owns: only an honest row may name it
my $stray = $node->safe_psql('postgres',
	"SELECT regexp_replace(pg_relation_filepath('small_s'), '[0-9]+\$', '$number')");
append_to_file($node->data_dir . "/$stray", 'x' x block_size($node));
$node->safe_psql('postgres', <<SQL);
CREATE TEMP TABLE forged AS
SELECT pg_control_system.system_identifier::text AS sysid, ${database}::oid AS db, 'o'::"char" AS kind,
	   ${slow}::oid AS spc, ${number}::oid AS num
  FROM pg_control_system();
CREATE TEMP TABLE made_up AS
SELECT 'other system' AS what, '1' AS sysid, db, kind, spc, num FROM forged
UNION ALL SELECT 'other database', sysid, (SELECT oid FROM pg_database WHERE datname = 'template1'), kind, spc, num FROM forged
UNION ALL SELECT 'other kind', sysid, db, 'x', spc, num FROM forged
UNION ALL SELECT 'live index', sysid, db, kind, spc, pg_relation_filenode('small_s') FROM forged
UNION ALL SELECT 'live index as a new file', sysid, db, 'n', spc, pg_relation_filenode('small_s') FROM forged
UNION ALL SELECT 'live table', sysid, db, kind, 1663, pg_relation_filenode('small') FROM forged
UNION ALL SELECT 'mapped catalog', sysid, db, kind, 1663, pg_relation_filenode('pg_class') FROM forged
UNION ALL SELECT 'shared catalog', sysid, db, kind, 1664, pg_relation_filenode('pg_authid') FROM forged
UNION ALL SELECT 'no tablespace', sysid, db, kind, 0, num FROM forged
UNION ALL SELECT 'tablespace that is not there', sysid, db, kind, 99999, num FROM forged
UNION ALL SELECT 'running job', system_identifier, database, kind, tablespace, relfilenumber FROM index_mover.ledger;
INSERT INTO index_mover.ledger
SELECT 1000000 + row_number() OVER (), sysid, db, kind, spc, num, 0, 0, 0, 1000000, 0, now() FROM made_up;
SQL
my $listed = $node->safe_psql('postgres', 'SELECT object, action FROM index_mover_cleanup(true) ORDER BY 1');
unlike($listed, qr/\|remove$/m, 'a dry run would remove nothing') or diag $listed;
my $done = $node->safe_psql('postgres', 'SELECT object, action FROM index_mover_cleanup()');
unlike($done, qr/\|removed$/m, 'nothing is removed') or diag $done;
is($node->safe_psql('postgres', "SELECT count(*) FROM index_mover.ledger WHERE id <= 1000000"),
	'1', 'the running job has its row');
ok(-s $node->data_dir . "/$stray", 'a file that rows of other places name is there');
let_go($call);
my ($rc, $out, $err) = finish_call($call);
is($out, "moved\n", 'the running job ends well') or diag $err;
is($node->safe_psql('postgres', 'SELECT count(*) FROM small'), $rows{small}[0], 'the table is there');
$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM index_mover.ledger WHERE database = $database AND system_identifier <> '1' AND kind <> 'x'"),
	'0', 'rows of this database that name nothing of ours are forgotten');
unlink $node->data_dir . "/$stray";
$node->safe_psql('postgres', 'DELETE FROM index_mover.ledger');
arrived_ok($node, 'store', 'store_s', $to, 'forged rows, running job', standby => $standby, metadata => 1, large => 1);
arrived_ok($node, 'small', 'small_s', 'regress_slow', 'forged rows, live index', standby => $standby, metadata => 1);

# ---------------------------------------------------------------------------
# A file whose relation a transaction that is still open creates, or drops
# ---------------------------------------------------------------------------
{
	my $open = IndexMover::Session->new($node);
	my $there = "SELECT count(*) FROM pg_class WHERE relname = 'small_more'";
	my $path;
	foreach my $case ([ 'created', 'ROLLBACK', 0 ], [ 'created', 'COMMIT', 1 ], [ 'dropped', 'ROLLBACK', 1 ], [ 'dropped', 'COMMIT', 0 ])
	{
		my ($what, $end, $exists) = @$case;
		my $name = "forged rows, index $what in a transaction still open";
		$open->run('BEGIN');
		$open->run('CREATE INDEX small_more ON small (s, i) TABLESPACE regress_slow') if $what eq 'created';
		my $number = $open->run("SELECT pg_relation_filenode('small_more')");
		$path = $node->data_dir . '/' . $open->run("SELECT pg_relation_filepath('small_more')");
		$open->run('DROP INDEX small_more') if $what eq 'dropped';
		my $size = -s $path;
		cmp_ok($size, '>', 0, "$name: its file");
		$node->safe_psql('postgres', <<SQL);
INSERT INTO index_mover.ledger
SELECT 1000000 + row_number() OVER (), system_identifier, $database, kind, $slow, $number, 0, 0, 0, 1000000, 0, now()
  FROM pg_control_system(), unnest('{n,o}'::"char"[]) AS kind
SQL
		is($node->safe_psql('postgres', 'SELECT DISTINCT action FROM index_mover_cleanup()'),
			'forgotten: there is no such file of ours', "$name: not removed");
		is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '0', "$name: the rows are gone");
		is(-s $path, $size, "$name: the file is as long as it was");
		$open->run($end);
		is($node->safe_psql('postgres', $there), $exists, "$name, $end: the index");
		files_ok($node, "$name, $end");
		verdict_ok($node, 'small', "$name, $end", max_keys => 100) if $exists;
	}
	$open->end;
}

# ---------------------------------------------------------------------------
# The default tablespace of a database changes, and takes what was left along
# ---------------------------------------------------------------------------
{
	$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
	$node->safe_psql('elsewhere', <<SQL);
CREATE EXTENSION index_mover CASCADE;
CREATE TABLE e (i int);
INSERT INTO e SELECT generate_series(1, 20000);
CREATE INDEX e_i ON e (i) TABLESPACE regress_fast;
SQL
	my $move = held_at($node, 'copy-end', "SELECT status FROM move_indexes('e_i', 'pg_default', method => 'copy')",
		dbname => 'elsewhere');
	$node->stop('immediate');
	finish_call($move);
	let_go($move);
	$node->start;
	my $left = 'SELECT kind, tablespace, action FROM index_mover_cleanup';
	is($node->safe_psql('elsewhere', "$left(true)"), 'unfinished copy|pg_default|remove', 'default tablespace: a file is left');
	$node->safe_psql('postgres', 'ALTER DATABASE elsewhere SET TABLESPACE regress_slow');
	my $file = $node->data_dir . '/' . $node->safe_psql('elsewhere', 'SELECT object FROM index_mover_cleanup(true)');
	cmp_ok(-s $file, '>', 0, 'default tablespace: it has gone along');
	is($node->safe_psql('elsewhere', "$left()"), 'unfinished copy|regress_slow|removed', 'default tablespace: and is removed');
	ok(!-s $file, 'default tablespace: there is no such file any more');
	$node->safe_psql('postgres', 'DROP DATABASE elsewhere');
}

# ---------------------------------------------------------------------------
# A database with leftovers is a template: what CREATE DATABASE has copied of them is
# removed in the copy, and the tablespace can be dropped
# ---------------------------------------------------------------------------
{
	$node->safe_psql('postgres', 'CREATE DATABASE template');
	setup_database($node, 'template');
	leave_behind($node, 'template');
	my $left = q{SELECT string_agg(kind || ' ' || action, ', ' ORDER BY kind) FROM index_mover_cleanup};
	is($node->safe_psql('template', "$left(true)"), 'invalid index remove, unfinished copy remove', 'a template: what is left behind');
	my ($file) = $node->safe_psql('template', q{SELECT object FROM index_mover_cleanup(true) WHERE kind = 'unfinished copy'});
	my ($source) = $node->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'template'});
	foreach my $strategy ('wal_log', 'file_copy')
	{
		my $name = "a copy by $strategy";
		my $copied = $strategy eq 'file_copy';
		my $no_file = ': there is no such file of ours';
		$node->safe_psql('postgres', "CREATE DATABASE twin TEMPLATE template STRATEGY $strategy");
		my $oid = $node->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'twin'});
		my $twin = $node->data_dir . '/' . $file =~ s/\b$source\b/$oid/r;
		is(-s $twin // -1, $copied ? -s $node->data_dir . "/$file" : -1, "$name: the file");
		is($node->safe_psql('twin', "$left(true)"), 'invalid index remove, unfinished copy ' . ($copied ? 'remove' : "forget$no_file"),
			"$name: seen");
		my $log = -s $node->logfile;
		is($node->safe_psql('twin', "$left()"), 'invalid index removed, unfinished copy ' . ($copied ? 'removed' : "forgotten$no_file"),
			"$name: removed");
		my @said = slurp_file($node->logfile, $log) =~ /LOG:  00000: cleanup \(twin, by \w+\): removing (.*)$/mg;
		my ($path) = $twin =~ m{(pg_tblspc/.*)};
		is("@said" =~ s/job \d+/job N/gr, ($copied ? "file \"$path\" (1024 kB), left by job N " : '')
			. 'index "public.behind_rebuild_i_ccnew", left by job N',
			"$name: the server log says what is removed");
		ok(!-s $twin, "$name: the file is gone");
		is($node->safe_psql('twin', 'SELECT count(*) FROM index_mover.ledger'), '0', "$name: no row is left");
		is($node->safe_psql('twin', 'SELECT count(*) FROM pg_index WHERE NOT indisvalid'), '0', "$name: nor an invalid index");
		files_ok($node, $name, dbname => 'twin');
		$node->safe_psql('postgres', 'DROP DATABASE twin');
	}
	# a row that was written later by hand does not name a file of the copy
	$node->safe_psql('postgres', 'CREATE DATABASE twin TEMPLATE template STRATEGY file_copy');
	$node->safe_psql('twin', q{UPDATE index_mover.ledger SET made_at = now() + interval '1 min'});
	is($node->safe_psql('twin', "$left()"), '', 'a row of another database that is younger than this one');
	$node->safe_psql('postgres', 'DROP DATABASE twin');
	is($node->safe_psql('template', "$left()"), 'invalid index removed, unfinished copy removed', 'a template: its own are removed');
	$node->safe_psql('postgres', 'DROP DATABASE template');
}

# ---------------------------------------------------------------------------
# Rows of another place that name an invalid index of this one
# ---------------------------------------------------------------------------
$node->safe_psql('postgres', <<SQL);
CREATE INDEX small_ccnew ON small (s) TABLESPACE regress_slow;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'small_ccnew'::regclass;
INSERT INTO index_mover.ledger
SELECT 1000000 + row_number() OVER (), sysid, db, kind, 0, 0, 'small'::regclass, 'small_s'::regclass, 'small_ccnew'::regclass,
       1000000, 0, now(), 'small_ccnew'
  FROM pg_control_system(), unnest('{i,d}'::"char"[]) AS kind,
       LATERAL (VALUES ('1', ${database}::oid), (system_identifier::text, (SELECT oid FROM pg_database WHERE datname = 'template1'))) AS
         v(sysid, db)
SQL
foreach my $dry_run ('true', 'false')
{
	is($node->safe_psql('postgres', "SELECT object, action FROM index_mover_cleanup($dry_run)"),
		'', "forged rows of other places, invalid index: nothing to remove, dry run $dry_run");
}
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('small_s', 'regress_slow')"),
	'skipped', 'forged rows of other places, invalid index: a call that has nothing to move');
wait_for_no_worker($node);
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_index WHERE indexrelid = 'small_ccnew'::regclass AND NOT indisvalid"),
	'1', 'forged rows of other places, invalid index: it is there');
is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), '4',
	'forged rows of other places, invalid index: so are the rows');
my $foreign = "FROM index_mover_check() WHERE kind = 'rows of another cluster'";
is($node->safe_psql('postgres', "SELECT severity, object, detail $foreign"), 'warning|index_mover.ledger|2 left by moves of the cluster '
		. 'with the system identifier 1, before pg_upgrade or pg_createsubscriber', 'the check tells of rows of another cluster');
# (where all tables are published, too, as on a server that pg_createsubscriber has made)
$node->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
$node->safe_psql('postgres', $node->safe_psql('postgres', "SELECT command $foreign"));
$node->safe_psql('postgres', 'DROP PUBLICATION everything');
is($node->safe_psql('postgres', "SELECT count(*) $foreign; SELECT count(*) FROM index_mover.ledger WHERE database = $database"), "0\n2",
	'its command makes them ours');
$node->safe_psql('postgres', 'DELETE FROM index_mover.ledger; DROP INDEX small_ccnew');

# ---------------------------------------------------------------------------
# The source behind the swap: it cannot be dropped while the old file is in it, and
# if its directory goes away, as with a file system that is no longer mounted, the
# file stays on record until both are there again
# ---------------------------------------------------------------------------
$node->safe_psql('postgres', "CREATE TABLESPACE regress_away LOCATION ''");
my ($directory) = glob($node->data_dir . '/pg_tblspc/'
	. $node->safe_psql('postgres', "SELECT oid FROM pg_tablespace WHERE spcname = 'regress_away'") . '/PG_*');
my $away = $node->basedir . '/away';
foreach my $point ('swapped', 'old-file-step')
{
	my $name = "source away at $point";
	is( $node->safe_psql('postgres',
			"SELECT status FROM move_indexes('store_s', 'regress_away', method => 'copy', settings => '{\"pacing\": \"off\"}')"),
		'moved', "$name: the index is in it");
	wait_for_no_worker($node);
	# or who needs a buffer would have to write one of the file that is away
	$node->safe_psql('postgres', 'CHECKPOINT');
	$call = move_to_point($point, 'regress_fast');
	($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nDROP TABLESPACE regress_away");
	like($err, qr/ERROR:  55000: tablespace "regress_away" is not empty/, "$name: it cannot be dropped");
	rename $directory, $away or die "$directory: $!";
	let_go($call);
	($rc, $out, $err) = finish_call($call);
	is($out, "moved\n", "$name: moved") or diag $err;
	like($err, joined(
		qr/WARNING:  58P01: could not remove a file that a move has left behind\nDETAIL:  Directory ".*" does not /,
		qr/exist\.\nHINT:  When it is there again, the next move removes the file, or: SELECT \* FROM /,
		qr/index_mover_call\.index_mover_cleanup\(\);/),
		"$name: the WARNING");
	unlike($err, qr/ERROR|PANIC|XX000/, "$name: and no worse");
	wait_for_no_worker($node);
	is($node->safe_psql('postgres', 'SELECT kind, action FROM index_mover_cleanup()'),
		'old file|kept: could not be removed, see the server log', "$name: a cleanup does not forget it");
	wait_for_no_worker($node);
	rename $away, $directory or die "$away: $!";
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM oracle.files()'), '>', 0, "$name: the old file is there again");
	arrived_ok($node, 'store', 'store_s', 'regress_fast', "$name, and there again", standby => $standby, metadata => 1, large => 1);
}
$node->safe_psql('postgres', 'DROP TABLESPACE regress_away');
pass('the source can be dropped when the old file is removed');

# ---------------------------------------------------------------------------
# A plan of many small relations does not read the ledger, with the rows that a
# caller's snapshot keeps in it, for each of them
# ---------------------------------------------------------------------------
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA many;
DO $$ BEGIN
	FOR n IN 1 .. 30 LOOP EXECUTE format('CREATE TABLE many.t%s (i int PRIMARY KEY)', n); END LOOP;
END $$;
SQL
my $scans = "SELECT pg_stat_force_next_flush(); SELECT seq_scan FROM pg_stat_all_tables WHERE relid = 'index_mover.ledger'::regclass";
my $before = $node->safe_psql('postgres', $scans) =~ s/\n//r;
is($node->safe_psql('postgres', "SELECT count(*) FROM move_schema_indexes('many', 'regress_fast', dry_run => true); $scans")
		=~ s/^30\n\n(\d+)$/$1 - $before < 10/er, '1', 'many small relations: the ledger is read once or twice');
my $many = $node->safe_psql('postgres', "SELECT max(job) FROM move_schema_indexes('many', 'regress_fast', wait => false, "
	. "settings => '{\"swap_after\": \"infinity\"}')");
poll_until($node, "SELECT max(phase) FROM index_mover_progress WHERE job = $many", 'waiting for time to swap', 'a job of many');
$node->safe_psql('postgres', "SELECT cancel_move($many)");
wait_for_job_end($node, $many);
is($node->safe_psql('postgres', "SELECT count(*), count(DISTINCT xmin::text) < 6 FROM index_mover.move_log WHERE job = $many "
		. "AND status = 'canceled'"), '30|t', 'many small relations: the cancel of all is recorded in some transactions');

done_testing();
