# A lost device, found without being asked: the janitor's warning, heal_at_start, a file
# system that is mounted late; and who else may have lost it: a base backup without the
# tablespace, a standby, TOAST, a table, an index that cannot be rebuilt.
#
# Fault (storage): the device of the indexes is mounted late; two devices, with indexes of two
#   databases, are lost, and a job waits in one; a base backup is without it; a standby has
#   lost its own; a table was on it, or there are duplicates
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

note has_sanitizer() ? 'with the sanitizers' : 'without sanitizers';

my $dir = PostgreSQL::Test::Utils::tempdir();
my $location = "$dir/fast";
my $standbys = "$dir/standbys";
make_path($location, $standbys);
my $node = new_node('start', streaming => 1, conf => "shared_preload_libraries = 'index_mover'\n");
value("CREATE TABLESPACE fast LOCATION '$location'");
value(<<'SQL');
CREATE TABLE t (id int PRIMARY KEY, v int, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t SELECT g, g % 100, repeat('x', 3000) FROM generate_series(1, 500) g;
CREATE INDEX t_v ON t (v);
SELECT oracle.remember_keys('t');
SQL
value("SELECT move_indexes('t', 'fast')");
my $version = (map { m{([^/]+)$} } glob("$location/PG_*"))[0];

sub value { return $node->safe_psql('postgres', $_[0]); }

sub empty { rmtree($location); make_path($location); return; }
sub restart_without
{
	value('CHECKPOINT');
	$node->stop;
	empty();
	return $node->start;
}

sub well
{
	my ($name, $on) = @_;
	verdict_ok($on // $node, 't', $name, max_keys => 200);
	return is(($on // $node)->safe_psql('postgres', 'SELECT count(*) FROM pg_index WHERE NOT (indisvalid AND indisready)'), '0',
	"$name: no invalid index");
}

# The janitor has looked into all databases since then, of which the log tells with DEBUG1.
sub wait_for_looks
{
	my ($from) = @_;
	my $databases = value('SELECT count(*) FROM pg_database WHERE datallowconn AND datconnlimit <> -2');
	for (1 .. 6000)
	{
		my $looks = () = slurp_file($node->logfile, $from) =~ /unregistering background worker "index_mover cleanup"/g;
		return if $looks >= $databases;
		select undef, undef, undef, 0.03;
	}
	die 'the janitor does not look';
}

# ---- the warning, and heal_at_start --------------------------------------------------------------
restart_without();
my $from = -s $node->logfile;
$node->restart;
$node->wait_for_log(qr/WARNING: .*2 indexes in tablespace "fast" are lost/, $from);
$node->wait_for_log(qr/HINT:  To rebuild them, in database "postgres": SELECT \* FROM index_mover_call\.heal_tablespace\('fast'\);/, $from);
ok(1, 'the janitor warns, with the call');
is(value("SELECT string_agg(status, ' ') FROM index_mover_call.heal_tablespace('fast')"), 'moved moved', 'which heals');
well('the call of the hint');
$node->append_conf('postgresql.conf', 'log_min_messages = debug1');
$node->stop;
$from = -s $node->logfile;
$node->start;
wait_for_looks($from);
unlike(slurp_file($node->logfile, $from), qr/WARNING:[^\n]*lost/, 'nothing is said of what is well');

# what an interrupted DROP DATABASE leaves accepts no connections (15.4)
value('CREATE DATABASE invalid');
value("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'invalid'");
# (the janitor comes to it later)
value('CREATE DATABASE later');
$node->stop;
$from = -s $node->logfile;
$node->start;
wait_for_looks($from);
unlike(slurp_file($node->logfile, $from), qr/FATAL.*invalid database/, 'the janitor passes over an invalid database');
value("DROP DATABASE $_") foreach qw(invalid later);
$node->append_conf('postgresql.conf', 'log_min_messages = warning');

$node->append_conf('postgresql.conf', 'index_mover.heal_at_start = on');
restart_without();
my $healed = "SELECT count(*) = 2 FROM index_mover_history WHERE job = (SELECT max(job)
	FROM index_mover_history) AND status = 'moved' AND started_at > pg_postmaster_start_time()";
$node->poll_query_until('postgres', $healed) or die 'not healed';
wait_for_no_worker($node);
well('heal_at_start');

# ---- it is begun again after a restart, by the janitor alone -----------------------------------------
$node->append_conf('postgresql.conf', 'index_mover.resume_at_start = on');
value("BEGIN; LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE; PREPARE TRANSACTION 'holder'");
my $waits = "SELECT count(*) FROM index_mover_progress WHERE phase LIKE 'waiting%' AND started_at > pg_postmaster_start_time()";
restart_without();
foreach my $start ('lost', 'restarted')
{
	poll_until($node, $waits, 1, "$start: a job waits");
	is(join(' ', glob($node->data_dir . '/index_mover.job.*')), '', "$start: it has no file of resume_at_start");
	$node->restart if $start eq 'lost';
}
value("ROLLBACK PREPARED 'holder'");
$node->poll_query_until('postgres', $healed) or die 'not healed';
wait_for_no_worker($node);
is(value("SELECT count(*) FROM index_mover_history WHERE started_at > pg_postmaster_start_time()"), 2, 'no index is rebuilt twice');
well('heal_at_start, restarted');

# ---- a job that fails: another one follows it ----------------------------------------------------
if (faults('a job that fails at the start'))
{
	value($_) foreach 'CREATE TABLE twice (i int)', 'INSERT INTO twice SELECT generate_series(1, 100)',
		'CREATE UNIQUE INDEX twice_i ON twice (i) TABLESPACE fast',
		"SET allow_system_table_mods = on; UPDATE pg_index SET indisready = false WHERE indexrelid = 'twice_i'::regclass",
		'INSERT INTO twice VALUES (1)';
	$from = -s $node->logfile;
	restart_without();
	$node->wait_for_log(qr/could not create unique index "twice_i/, $from);
	value('DELETE FROM twice WHERE ctid = (SELECT max(ctid) FROM twice WHERE i = 1)');
	poll_until($node, "SELECT indisvalid AND indisready FROM pg_index WHERE indexrelid = 'twice_i'::regclass", 't', 'another job');
	wait_for_no_worker($node);
	value('DROP TABLE twice');
	well('a job after the one that failed');
}

# ---- a tablespace with nothing but temporary files -------------------------------------------------
make_path("$dir/temporary");
value("CREATE TABLESPACE temporary LOCATION '$dir/temporary'");
my $temporary = "SET temp_tablespaces = temporary; CREATE TEMP TABLE tt AS SELECT 1; DROP TABLE tt; SELECT 'made'";
is(value($temporary), 'made', 'temporary tables');
$node->stop;
rmtree("$dir/temporary");
make_path("$dir/temporary");
$from = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/LOG: .*made the directory of tablespace "temporary"/, $from);
is(value($temporary), 'made', 'temporary tables where the device came back empty');
rmtree("$dir/temporary/$version");
isnt($node->psql('postgres', $temporary), 0, 'lost while the server runs');
my $missing = "SELECT severity, kind, object, command FROM index_mover_check() WHERE object = 'temporary'";
is(value($missing), "warning|missing directory|temporary|SELECT * FROM index_mover_call.heal_tablespace('temporary');",
	'index_mover_check()');
my (undef, undef, $said) = $node->psql('postgres', "SELECT * FROM heal_tablespace('temporary', dry_run => true)");
like($said, qr/NOTICE:  the directory of tablespace "temporary" is missing\nDETAIL:  Without dry_run, the call makes it\./,
	'a plan says it');
(undef, undef, $said) = $node->psql('postgres', "SELECT * FROM heal_tablespace('temporary')");
like($said, qr/NOTICE:  made the directory of tablespace "temporary"\n/, 'the call makes it');
is(value($temporary) . value($missing), 'made', 'temporary tables, then');

# ---- a disk that is wiped at reboot: three reboots in a row, and no call -------------------------
# (guide.md) Indexes on it and temporary files, the server crashes or stops; the boot makes the
# directory, and nothing else is done.
value('ALTER SYSTEM SET temp_tablespaces = temporary');
my $checked = "SELECT severity, kind, object FROM index_mover_check()";
foreach my $stop ('fast', 'immediate', 'immediate')
{
	# (else recovery would make the rebuilt indexes again, whole, from the WAL of their rebuild)
	value('CHECKPOINT');
	value('UPDATE t SET v = v + 1 WHERE id % 50 = 3');
	$node->stop($stop);
	foreach my $place ($location, "$dir/temporary")
	{
		rmtree($place);
		make_path($place);
	}
	$node->start;
	# (a device of which recovery has not told is looked at first: until then a query fails)
	my $reads = 'SELECT count(*) = 10 FROM t WHERE v IN (SELECT v FROM t WHERE id <= 10) AND id <= 10';
	$node->poll_query_until('postgres', $reads) or die 'no reads' if $stop eq 'fast';
	is(value($reads), 't', "a reboot, $stop: reads work at once") if $stop ne 'fast';
	$node->poll_query_until('postgres', $healed) or die 'not healed';
	wait_for_no_worker($node);
	well("a reboot, $stop");
	is(tablespace_of_index($node, 't_v') . ' ' . tablespace_of_index($node, 't_pkey'), 'fast fast',
		"a reboot, $stop: the indexes are there again");
	is(value($temporary), 'made', "a reboot, $stop: and so are temporary tables");
	is(value($checked), '', "a reboot, $stop: nothing is left to do");
}
value('ALTER SYSTEM RESET temp_tablespaces');
value('SELECT pg_reload_conf()');
value('DROP TABLESPACE temporary');

# ---- a file system that is mounted late ----------------------------------------------------------
my ($rc, $out, $err);
value('CHECKPOINT');
$node->stop;
rename $location, "$location.late" or die $!;
$from = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/could not look for lost indexes: the file system of tablespace "fast" may not be mounted/, $from);
($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT * FROM heal_tablespace('fast')");
like($err, qr/55000:\ the\ file\ system\ of\ tablespace\ "fast"\ may\ not\ be\ mounted
\nDETAIL:\ \ Its\ location\ "[^"]*fast"\ does\ not\ exist\.\nHINT:\ \ Mount\ it\.\ If\ it\ is\ gone\ for\ good,\ make\ that\ directory\./x,
	'refused while there is no directory');
($rc, $out, $err) = $node->psql('postgres', "SELECT count(*) FROM heal_tablespace('fast', dry_run => true)");
like($err, qr/WARNING:  the file system of tablespace "fast" may not be mounted/, 'a plan warns');
rename "$location.late", $location or die $!;
is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), '0', 'mounted: nothing was lost');
well('mounted late');
value('CHECKPOINT');
$node->stop;
rmtree($location);
$from = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/could not look for lost indexes: the file system of tablespace "fast" may not be mounted/, $from);
make_path($location);
$node->poll_query_until('postgres', $healed) or die 'not healed';
wait_for_no_worker($node);
well('heal_at_start, when it has come');

# ---- several databases and devices, and few workers ----------------------------------------------
# both devices come back empty, and a prepared transaction has a lock on a table
sub start_with_both_lost
{
	value("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'p'");
	$node->stop;
	empty();
	rmtree("$dir/more");
	make_path("$dir/more");
	$from = -s $node->logfile;
	$node->start;
}
make_path("$dir/more");
value("CREATE TABLESPACE more LOCATION '$dir/more'");
value('CREATE INDEX t_more ON t (v) TABLESPACE more');
value('CREATE DATABASE other');
$node->safe_psql('other', <<'SQL');
CREATE EXTENSION index_mover CASCADE;
CREATE TABLE o (i int PRIMARY KEY USING INDEX TABLESPACE fast);
INSERT INTO o SELECT generate_series(1, 100);
SQL
$node->append_conf('postgresql.conf', "max_worker_processes = 1\nmax_logical_replication_workers = 0\n");
$from = -s $node->logfile;
$node->restart;
$node->wait_for_log(qr/WARNING: .*could not start a job to remove what interrupted moves have left/, $from);
ok(1, 'no worker for the janitor: it says so');
$node->append_conf('postgresql.conf', "max_worker_processes = 4\nmax_logical_replication_workers = 4\nmax_prepared_transactions = 1\n");
$node->restart;
wait_for_no_worker($node);
start_with_both_lost();
$node->wait_for_log(qr/could not look for lost indexes: relation "t" is already being moved/, $from);
value("COMMIT PREPARED 'p'");
$node->poll_query_until('postgres', "SELECT count(*) = 3 FROM index_mover_history WHERE status = 'moved' AND
	started_at > pg_postmaster_start_time()") or die 'not healed';
$node->poll_query_until('other', "SELECT count(*) = 1 FROM index_mover_history WHERE status = 'moved'") or die 'not healed';
wait_for_no_worker($node);
well('two devices, two databases');
is($node->safe_psql('other', 'SET enable_seqscan = off; SELECT count(*) FROM o WHERE i = 7'), '1', 'the other database');

# a job that waits for long, or is paused, does not keep the janitor in its database
$node->append_conf('postgresql.conf', "max_worker_processes = 12\n");
$node->restart;
wait_for_no_worker($node);
start_with_both_lost();
$node->poll_query_until('other', "SELECT count(*) = 1 FROM index_mover_history WHERE status = 'moved' AND
	started_at > pg_postmaster_start_time()") or die 'not healed';
like(slurp_file($node->logfile, $from), qr/could not look for lost indexes: relation "t" is already being moved/,
	'another database is healed while a job of the first one waits');
value("COMMIT PREPARED 'p'");
$node->poll_query_until('postgres', "SELECT count(*) = 3 FROM index_mover_history WHERE status = 'moved' AND
	started_at > pg_postmaster_start_time()") or die 'not healed';
wait_for_no_worker($node);
well('after the job that waited');
value('DROP DATABASE other');
value('DROP INDEX t_more');
value('DROP TABLESPACE more');

value("UPDATE index_mover.mount_point SET mount_point = '/mnt/nvme' WHERE tablespace = (SELECT oid FROM pg_tablespace
	WHERE spcname = 'fast')");
is(value("SELECT count(*) FROM index_mover.mount_point WHERE mount_point = '/mnt/nvme'"), '1', 'the mount point was noted');
is(value("SELECT count(*) FROM heal_tablespace('fast')"), '0', 'below another mount point: nothing is lost');
$from = -s $node->logfile;
$node->append_conf('postgresql.conf', 'index_mover.heal_at_start = off');
restart_without();
($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT * FROM heal_tablespace('fast')");
like($err, qr/55000: .*may not be mounted\nDETAIL:  Its location ".*fast" is below mount point ".*", and was below "\/mnt\/nvme" when /,
	'below another mount point: refused');
like($err, qr/HINT:  Mount it\. If it is gone for good, use unmounted => true\.$/m, 'with what to do');
is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast', unmounted => true)"), 'moved moved', 'unless it is forced');
is(value("SELECT count(*) FROM index_mover.mount_point WHERE mount_point = '/mnt/nvme'"), '0', 'and noted');
well('forced');

# ---- a base backup without the tablespace, and a standby that loses its own ----------------------
$node->append_conf('postgresql.conf', "wal_keep_size = 1GB\n");
$node->reload;
sub backup
{
	my ($name, %options) = @_;
	$node->run_log([ 'pg_basebackup', '-D', $node->backup_dir . "/$name", '-h', $node->host, '-p', $node->port, '-c', 'fast',
			'-X', 'stream',
			'--no-sync', "--tablespace-mapping=$location=$standbys/$name" ]) or die 'pg_basebackup';
	# core's module does not like the link
	my ($oid) = map { m{(\d+)$} } grep { -l } glob($node->backup_dir . "/$name/pg_tblspc/*");
	unlink $node->backup_dir . "/$name/pg_tblspc/$oid" or die $!;
	my $standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($node, $name, %options);
	symlink("$standbys/$name", $standby->data_dir . "/pg_tblspc/$oid") or die $!;
	return $standby;
}
my $restored = backup('restored');
rmtree("$standbys/restored");
make_path("$standbys/restored");
$restored->start;
is($restored->safe_psql('postgres', "SELECT string_agg(status, ' ')
	FROM heal_tablespace('fast', unmounted => true)"), 'moved moved', 'a base backup that left it out: healed');
well('restored', $restored);
$restored->stop;

my $standby = backup('standby', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
$standby->stop;
rmtree("$standbys/standby");
make_path("$standbys/standby");
value('UPDATE t SET v = v + 1; INSERT INTO t SELECT g, g, NULL FROM generate_series(501, 900) g');
$standby->append_conf('postgresql.conf', 'ignore_invalid_pages = on');
$standby->start;
value("SELECT move_indexes('t', '$_')") foreach 'pg_default', 'fast';
$node->wait_for_catchup($standby);
$standby->append_conf('postgresql.conf', 'ignore_invalid_pages = off');
$standby->restart;
value('INSERT INTO t SELECT g, g, NULL FROM generate_series(901, 910) g');
value("SELECT oracle.remember_keys('t')");
standby_ok($node, $standby, ['t'], 'a standby that has lost its own');
is($standby->safe_psql('postgres', "SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), '0', 'a plan on a standby');
($rc, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT count(*) FROM heal_tablespace('fast')");
like($err, qr/25006/, 'it cannot heal');
my $there = $standby->data_dir . '/' . $standby->safe_psql('postgres', "SELECT pg_relation_filepath('t_v')");
rename $there, "$there.away" or die "$there: $!";
is($standby->safe_psql('postgres', 'SELECT object, detail, command FROM index_mover_check()'), 'public.t_v|its file is missing|',
	'nor is it told to');
rename "$there.away", $there or die "$there: $!";
$standby->stop;

# ---- TOAST, a table there, what cannot be rebuilt ------------------------------------------------
my $toast = value("SELECT indexrelid::regclass FROM pg_index WHERE indrelid = (SELECT reltoastrelid FROM pg_class
	WHERE oid = 't'::regclass)");
my $file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('$toast')");
value('CHECKPOINT');
$node->stop;
unlink $file or die $!;
$node->start;
isnt($node->psql('postgres', 'SELECT sum(length(long)) FROM (SELECT long || $$$$ AS long FROM t) t'), 0, 'long values cannot be read');
# REINDEX looks it up by name, in a schema that users may not use
value('CREATE ROLE regress_owner; ALTER TABLE t OWNER TO regress_owner; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_owner');
foreach my $dry_run ('true', 'false')
{
	is(value("SET ROLE regress_owner; SELECT name, status, sqlstate, detail FROM heal_tablespace('pg_default', dry_run => $dry_run)"),
		"$toast|skipped|42501|Permission denied for schema \"pg_toast\".", "not by the table's owner, dry_run $dry_run");
}
is(value("SELECT name, kind, status FROM heal_tablespace('pg_default', 'fast')"), "$toast|toast index|moved", 'a TOAST index is rebuilt');
is(value("SELECT reltablespace FROM pg_class WHERE oid = '$toast'::regclass"), '0', 'where it was');
is(value('SELECT sum(length(long || $$$$)) FROM t'), '1500000', 'and they can');

value(<<'SQL');
CREATE TABLE there (i int PRIMARY KEY, v int) TABLESPACE fast;
INSERT INTO there SELECT g, g FROM generate_series(1, 500) g;
CREATE MATERIALIZED VIEW view TABLESPACE fast AS SELECT i, repeat('x', i) AS x FROM generate_series(1, 10) i;
CREATE UNLOGGED TABLE undone (i int, x text) TABLESPACE fast;
CREATE TABLE twice (i int, v int);
INSERT INTO twice SELECT g, g FROM generate_series(1, 100) g;
CREATE UNIQUE INDEX twice_i ON twice (i) TABLESPACE fast;
SET allow_system_table_mods = on;
UPDATE pg_index SET indisready = false WHERE indexrelid = 'twice_i'::regclass;
SQL
value("INSERT INTO twice VALUES (1, 1)");
value('CREATE INDEX there_v ON there (v) TABLESPACE fast');
restart_without();
is(value("SELECT substring(detail, 'missing\\. (.*)') FROM heal_tablespace('fast', dry_run => true) WHERE kind = 'toast' ORDER BY 1"),
	"No backup has what was in it; TRUNCATE makes it again, without rows. It belongs to \"undone\".\n"
	  . 'REFRESH MATERIALIZED VIEW makes it again. It belongs to "view".', 'a TOAST table is made again with its table');
($rc, $out, $err) = $node->psql('postgres', "SELECT name, status, sqlstate, detail FROM heal_tablespace('fast')
	WHERE kind !~ 'toast' ORDER BY name COLLATE \"C\"");
like($out, qr/^t_pkey\|moved\|\|\nt_v\|moved\|\|
\nthere\|skipped\|XX001\|Lost:\ its\ file\ is\ missing\.\ It\ cannot\ be\ made\ again:\ .*
\nthere_v\|skipped\|XX001\|Its\ table\ is\ lost:\ its\ file\ is\ missing\.
\ntwice_i\|failed\|23505\|could\ not\ create\ unique\ index\ "twice_i.*
\nundone\|skipped\|XX001\|Lost:\ its\ file\ is\ missing\.\ .*;\ TRUNCATE\ makes\ it\ again,\ without\ rows\.
\nview\|skipped\|XX001\|Lost:\ its\ file\ is\ missing\.\ REFRESH\ MATERIALIZED\ VIEW\ makes\ it\ again\.$/x,
	'a lost table is named, duplicates fail, and the others are healed') or diag($out);
like($err, qr/WARNING:  index "twice_i" was not rebuilt/, 'with a warning');
is($node->psql('postgres', 'REFRESH MATERIALIZED VIEW view'), 0, 'as a materialized view is made again');
is($node->psql('postgres', 'TRUNCATE undone; INSERT INTO undone VALUES (1)'), 0, 'and an unlogged table');
is($node->psql('postgres', 'DROP TABLE there, twice, undone; DROP MATERIALIZED VIEW view'), 0, 'they can be dropped');
well('the rest');
value(<<'SQL');
CREATE ROLE regress_o;
CREATE TABLE owned (i int PRIMARY KEY USING INDEX TABLESPACE fast);
INSERT INTO owned SELECT generate_series(1, 100);
ALTER TABLE owned OWNER TO regress_o;
GRANT EXECUTE ON FUNCTION heal_tablespace TO regress_o;
SQL

# the janitor looks again when a tablespace comes, while a job is at one of the lost indexes
make_path("$dir/away");
value("CREATE TABLESPACE away LOCATION '$dir/away'");
value('CHECKPOINT');
$node->stop;
empty();
rename "$dir/away", "$dir/gone" or die $!;
$from = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/WARNING: .*3 indexes in tablespace "fast" are lost/, $from);
my $holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe('BEGIN; LOCK TABLE owned IN ROW EXCLUSIVE MODE');
my $job = value("SET ROLE regress_o; SELECT max(job) FROM heal_tablespace('fast', wait => false)");
$from = -s $node->logfile;
rename "$dir/gone", "$dir/away" or die $!;
$node->wait_for_log(qr/WARNING: .*index(?:es)? in tablespace "fast" (?:is|are) lost/, $from);
like(slurp_file($node->logfile, $from), qr/2 indexes in tablespace "fast" are lost/, 'the warning leaves out what a job is healing');
value("SELECT cancel_move($job)");
wait_for_no_worker($node);
$holder->query_safe('COMMIT');
$holder->quit;
value('DROP TABLESPACE away');
is(value("SET ROLE regress_o; SELECT name, status, sqlstate FROM heal_tablespace('fast') ORDER BY name COLLATE \"C\""),
	"owned_pkey|moved|\nt_pkey|skipped|42501\nt_v|skipped|42501", 'an owner heals its own');
is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast')"), 'moved moved', 'a superuser the rest');
value('DROP TABLE owned; REVOKE ALL ON FUNCTION heal_tablespace FROM regress_o; DROP ROLE regress_o');
leftovers_ok($node, 'in the end');
value("SELECT move_indexes('t', 'regress_slow')");
is($node->psql('postgres', 'CHECKPOINT; DROP TABLESPACE fast'), 0, 'the tablespace can be dropped');
files_ok($node, 'in the end');
no_finding_ok($node);
$node->stop;
done_testing();
