# Lost files that other commands would make look whole: copies by SET TABLESPACE, rewrites of tables; and
# lost indexes that are left when a command ends early.
#
# Fault (storage): an older copy of a device comes in its place while a cursor reads an index; sessions write to its
#   table; and core's SET TABLESPACE, CLUSTER, VACUUM FULL and REFRESH come then; indexes are lost that are not valid, and files of
#   leftovers are missing; a heal is canceled; the location of a tablespace has a newline, and the state file no end
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path);
use IndexMover::Evidence;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my ($node, $location, $oid) = node_with_device('laundered', conf => "index_mover.test_mutation = 'lost-queueing:200,empty-again:500'\n");
sub value { return $node->safe_psql('postgres', $_[0]); }
sub problems { my ($name) = @_; return value("SELECT kind, detail, command FROM index_mover_check() WHERE object = '$name'"); }

# The SQLSTATE and text of an error, or of a warning.
sub message_of
{
	my ($sql) = @_;
	my (undef, undef, $errors) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");
	return $errors;
}

value(<<'SQL');
CREATE TABLE t (id int);
INSERT INTO t SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast;
CREATE TABLE u (id int);
INSERT INTO u SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX u_id ON u (id) TABLESPACE fast;
CREATE TABLE parts (id int) PARTITION BY RANGE (id);
ALTER TABLE parts ATTACH PARTITION u FOR VALUES FROM (0) TO (10000);
CREATE TABLE c (id int PRIMARY KEY, b int);
INSERT INTO c SELECT g, g FROM generate_series(1, 1000) g;
CREATE INDEX c_b ON c (b) TABLESPACE fast;
CREATE TABLE moved (id int) TABLESPACE fast;
CREATE TABLE rewritten (id int) TABLESPACE fast;
INSERT INTO moved SELECT generate_series(1, 1000);
INSERT INTO rewritten SELECT * FROM moved;
CREATE MATERIALIZED VIEW mv TABLESPACE fast AS SELECT generate_series(1, 1000) AS id;
CREATE TABLE unready (id int);
INSERT INTO unready VALUES (1);
CREATE TABLE started (id int);
SQL

# An index that writers have to use, and that is not valid: its build was canceled in its last wait.
my $snapshot = IndexMover::Session->new($node);
$snapshot->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$node->psql('postgres', "SET statement_timeout = '2s'; CREATE UNIQUE INDEX CONCURRENTLY unready_id ON unready (id) TABLESPACE fast");
$snapshot->end;
is(value("SELECT indisvalid, indisready FROM pg_index WHERE indexrelid = 'unready_id'::regclass"), 'f|t',
	'an index that is ready, and not valid');
is(problems('public.unready_id'), '', 'an index that is ready, and not valid, on a device that has lost nothing: not named');

# An index that is not even ready: its build was canceled while it waited for a writer.
my $writer = IndexMover::Session->new($node);
$writer->run('BEGIN; INSERT INTO started VALUES (1)');
$node->psql('postgres', "SET statement_timeout = '2s'; CREATE INDEX CONCURRENTLY started_id ON started (id) TABLESPACE fast");
$writer->run('COMMIT');
$writer->end;
is(value("SELECT indisvalid, indisready FROM pg_index WHERE indexrelid = 'started_id'::regclass"), 'f|f', 'an index that is not ready');
is(problems('public.started_id'), '', 'an index that is not ready, on a device that has lost nothing: not named');

value('CHECKPOINT');
my $comes = copy_location($location);
$node->restart;
wait_until_watched($node);
value("INSERT INTO $_ SELECT max(id) + 1 FROM $_") foreach qw(t u c moved rewritten unready);
$node->restart;
wait_until_watched($node);
wait_for_no_worker($node);
my $reader = IndexMover::Session->new($node);
$reader->run('BEGIN; DECLARE c CURSOR FOR SELECT id FROM u ORDER BY id; FETCH 1 FROM c');
$comes->();
value('SELECT count(*) FROM index_mover_check()');
is(verdict_on_record($node, $oid), 'lost', 'the device is lost');

# ---- writes while the old file cannot be emptied ---------------------------------------------------
# (it lacks the newest row, so each of these makes a duplicate)
my %duplicates = (
	'INSERT' => 'INSERT INTO u VALUES (5001)',
	'INSERT into the parent' => 'INSERT INTO parts VALUES (5001)',
	'UPDATE' => 'UPDATE u SET id = 5001 WHERE id = 1',
	'COPY' => "COPY u FROM PROGRAM 'echo 5001'",
	'COPY into the parent' => "COPY parts FROM PROGRAM 'echo 5001'",
	'a prepared transaction' => "BEGIN; INSERT INTO u VALUES (5001); PREPARE TRANSACTION 'late'");
foreach my $what (sort keys %duplicates)
{
	like(message_of($duplicates{$what}),
		qr/^psql:.*ERROR:  XX002: cannot commit changes of table "u" without index "u_id"\n.*The index is lost/s,
		"a cursor keeps the old file: $what is refused");
}
is(message_of('BEGIN; SAVEPOINT a; INSERT INTO u VALUES (5001); ROLLBACK TO a; INSERT INTO started VALUES (2); COMMIT'), '',
	'a cursor keeps the old file: writes to another table are committed');
my $writes = IndexMover::Session->new($node);
$writes->run('BEGIN; INSERT INTO u VALUES (5001)');

# ---- SET TABLESPACE ------------------------------------------------------------------------------
my $mover = IndexMover::Session->new($node);
$mover->send('ALTER INDEX ALL IN TABLESPACE fast SET TABLESPACE pg_default');
my $queued = "SELECT count(*) FROM pg_stat_activity WHERE pid = @{[ $mover->pid ]} AND wait_event_type = 'Lock'";
wait_until('queued', sub { value($queued) });
$reader->run('COMMIT');
$mover->answer;
like($mover->errors, qr/55000: cannot copy the lost file of index "\w+".*HINT:  To .*: REINDEX \(TABLESPACE pg_default\) INDEX public/s,
	'core waits for a session that reads the old file, and does not copy it');
$_->end foreach $reader, $mover;
my $used = $node->data_dir . '/' . value("SELECT pg_relation_filepath('u_id')");
wait_until('emptied', sub { value('SELECT 1'); -z $used });
$writes->send('COMMIT');
$writes->answer;
like($writes->errors, qr/XX002: cannot commit changes/, 'a write before the file was emptied is refused after that, too');
$writes->run('DELETE FROM u WHERE id = 7');
$writes->end;
is(value('SELECT count(*) FROM u WHERE id = 7'), 0, 'the next transaction can delete');
is(value('SET enable_seqscan = off; SELECT count(*) FROM u WHERE id = 5001'), 1, 'not copied: the right answer');
isnt($node->psql('postgres', 'INSERT INTO u VALUES (5001)'), 0, 'not copied: no duplicate');
my @copies = (
	[ 'index', 'ALTER INDEX t_id SET TABLESPACE pg_default' ],
	[ 'table', 'ALTER TABLE moved SET TABLESPACE pg_default' ],
	[ 'table', 'ALTER TABLE moved SET TABLESPACE pg_default, ALTER id TYPE bigint' ],
	[ 'materialized view', 'ALTER MATERIALIZED VIEW mv SET TABLESPACE pg_default' ]);
foreach my $copy (@copies)
{
	my ($kind, $sql) = @$copy;
	like(message_of($sql), qr/55000: cannot copy the lost file of $kind/, $sql);
}
foreach my $sql ('INDEX t_id', 'INDEX ALL IN TABLESPACE fast', 'TABLE moved')
{
	like(message_of("SET index_mover.online_alter = on; ALTER $sql SET TABLESPACE pg_default"),
		qr/ERROR:  XX00[12]: ALTER \w+ ... SET TABLESPACE cannot be carried out online.*(?:lost changes of it|its file is empty)/s,
		"online_alter refuses ALTER $sql");
}
like(problems('public.t_id'), qr/^lost file\|/, 'the index is still named');
like(message_of('REINDEX (TABLESPACE pg_default) INDEX t_id'), qr/^$/, 'the hint is followed');
is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 5001'), 1, 'rebuilt elsewhere: the right answer');
is(problems('public.t_id'), '', 'rebuilt elsewhere: nothing to name');

# ---- rewrites --------------------------------------------------------------------------------------
my $emptied = $node->data_dir . '/' . value("SELECT pg_relation_filepath('c_b')");
wait_until('emptied', sub { value('SELECT 1'); -z $emptied });
like(message_of('CLUSTER c USING c_b'), qr/invalid index "c_b"/, 'CLUSTER by a lost index');
is(message_of('CLUSTER c USING c_pkey'), '', 'CLUSTER by another index of the table');
is(value('SET enable_seqscan = off; SELECT count(*) FROM c WHERE b = 1000'), 1, 'CLUSTER rebuilds the lost index');
is(value("SELECT indisvalid FROM pg_index WHERE indexrelid = 'c_b'::regclass"), 't', 'CLUSTER leaves it valid');
is(problems('public.c_b'), '', 'CLUSTER leaves it not lost');
foreach my $sql ('VACUUM FULL rewritten', 'ALTER TABLE moved ALTER id TYPE bigint')
{
	like(message_of($sql), qr/WARNING:  XX001: the new file of table "\w+" has what was left of a lost file/, "$sql: WARNING");
}
is(message_of('ALTER TABLE moved SET TABLESPACE pg_default'), '', 'a rewritten table can be moved');
is(message_of('REFRESH MATERIALIZED VIEW mv'), '', 'REFRESH makes a materialized view again');
is(message_of('TRUNCATE rewritten'), '', 'TRUNCATE: no WARNING');

# ---- not valid, and lost -----------------------------------------------------------------------------
my $unready = $node->data_dir . '/' . value("SELECT pg_relation_filepath('unready_id')");
wait_until('emptied', sub { value('SELECT 1'); -z $unready });
isnt($node->psql('postgres', 'INSERT INTO unready VALUES (3)'), 0, 'ready, not valid, and lost: writers fail');
like(problems('public.unready_id'), qr/^lost file\|its file is empty\|.*heal_tablespace/, 'ready, not valid, and lost: named');
like(problems('public.started_id'), qr/^lost file\|it is not valid\|.*heal_tablespace/, 'not ready, and lost: named');
is(value("SELECT string_agg(DISTINCT status, ' ') FROM heal_tablespace('fast')"), 'moved', 'healed');
is(value('INSERT INTO unready VALUES (3); SELECT count(*) FROM index_mover_check()'), 0, 'healed, and no problem is left');

# ---- a heal that is canceled -------------------------------------------------------------------------
value(<<'SQL');
CREATE TABLE y (id int, s text);
INSERT INTO y SELECT generate_series(1, 1000);
CREATE INDEX y_id ON y (id) TABLESPACE fast;
CREATE INDEX y_s ON y (s) TABLESPACE fast;
SQL
my @files = map { $node->data_dir . '/' . value("SELECT pg_relation_filepath('$_')") } qw(y_id y_s);
$node->stop;
foreach my $file (@files)
{
	truncate $file, 0 or die $!;
}
$node->start;
$writer = IndexMover::Session->new($node);
$writer->run('BEGIN; LOCK TABLE y IN ROW EXCLUSIVE MODE');
my $healer = IndexMover::Session->new($node);
$healer->send("SET statement_timeout = '3s'; SELECT * FROM heal_tablespace('fast')");
$healer->answer;
like($healer->errors, qr/57014/, 'a heal is canceled');
$_->end foreach $healer, $writer;
wait_for_no_worker($node);
is(value("SELECT string_agg(DISTINCT indisvalid::text, ' ') FROM pg_index WHERE indrelid = 'y'::regclass"), 'false',
	'a canceled heal leaves indexes that are not valid');
like(problems("public.$_"), qr/^lost file\|it is not valid\|.*heal_tablespace/, "a canceled heal: $_ is named") foreach qw(y_id y_s);
$node->restart;
like(problems('public.y_id'), qr/^lost file\|it is not valid\|/, 'a canceled heal: named after a restart');
is(value("SELECT string_agg(DISTINCT status, ' ') FROM heal_tablespace('fast')"), 'moved', 'healed');
is(value('SELECT count(*) FROM index_mover_check()'), 0, 'healed at last, and no problem is left');

# ---- indexes that are not valid, and not lost -----------------------------------------------------------
my $lost_here = "SELECT count(*) FROM index_mover_check() WHERE kind = 'lost file'";
value('CREATE TABLE twice (id int); INSERT INTO twice VALUES (1), (1)');
isnt($node->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY twice_id ON twice (id) TABLESPACE fast'), 0, 'duplicates');
is(problems('public.twice_id'), '', 'a unique index that duplicates have kept from being built: not named');
value("SELECT * FROM heal_tablespace('fast')");
is(problems('public.twice_id'), '', 'a unique index that was never built, and heal_tablespace() cannot build either: not named');
value('DROP TABLE twice');

value('CREATE TABLE busy (id int); INSERT INTO busy VALUES (1); CREATE INDEX busy_id ON busy (id) TABLESPACE fast');
my $user = IndexMover::Session->new($node);
my $ddl = IndexMover::Session->new($node);
$user->run('BEGIN; SELECT count(*) FROM busy');
$ddl->send('DROP INDEX CONCURRENTLY busy_id');
my $invalid = "SELECT count(*) FROM pg_index WHERE indrelid = 'busy'::regclass AND NOT indisvalid";
wait_until('to be dropped', sub { value($invalid) });
is(value($lost_here), 0, 'an index that waits to be dropped: not named');
$user->run('COMMIT');
$ddl->answer;
$user->run('BEGIN; INSERT INTO busy VALUES (2)');
$ddl->run('SET track_activities = off');
$ddl->send('CREATE INDEX CONCURRENTLY busy_id ON busy (id) TABLESPACE fast');
wait_until('being built', sub { value($invalid) });
is(value($lost_here), 0, 'an index that a session without track_activities builds: not named');
is(value("SELECT status, detail FROM heal_tablespace('fast', dry_run => true) WHERE name = 'busy_id'"),
	'skipped|It is not valid: another session may be building it.', 'an index that a session without track_activities builds: not healed');
$user->run('COMMIT');
$ddl->answer;
$_->end foreach $user, $ddl;

# ---- an index that is being built, and what such a build leaves ----------------------------------------
$snapshot = IndexMover::Session->new($node);
$snapshot->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
my $builder = IndexMover::Session->new($node);
my $waits = "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase = 'waiting for old snapshots'";
my $watcher = IndexMover::Session->new($node);
$watcher->run('BEGIN; SELECT count(*) FROM pg_stat_activity');
$builder->send('CREATE INDEX CONCURRENTLY y_built ON y (id, s) TABLESPACE fast');
wait_until('built', sub { value($waits) });
is($watcher->run("SELECT count(*) FROM index_mover_check() WHERE kind = 'lost file'"), 0, 'an index that is being built is not named');
$_->end foreach $watcher, $snapshot;
$builder->answer;
$snapshot = IndexMover::Session->new($node);
$snapshot->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$builder->send("SET statement_timeout = '2s'; REINDEX INDEX CONCURRENTLY y_built");
$builder->answer;
$snapshot->end;
is(problems('public.y_built_ccnew'), '', 'nor is what REINDEX CONCURRENTLY leaves');
my $left = $node->data_dir . '/' . value("SELECT pg_relation_filepath('y_built_ccnew')");
$node->stop;
unlink $left or die $!;
$node->start;
like(problems('public.y_built_ccnew'), qr/^lost file\|its file is missing\|DROP INDEX CONCURRENTLY public.y_built_ccnew;$/,
	'a leftover whose file is missing');
value((split /\|/, problems('public.y_built_ccnew'))[2]);
is(value('SELECT count(*) FROM index_mover_check()'), 0, 'a leftover whose file is missing: the command removes it');
$builder->end;

# ---- a newline in a location, and a state file without its end -----------------------------------------
$node->restart;
wait_until('settled', sub { verdict_on_record($node, $oid) eq 'same' });
my $odd = "$location-" . "of\nodd\\name";
make_path($odd);
value("CREATE TABLESPACE odd LOCATION '$odd'");
wait_until('known', sub { slurp_file(state_file($node)) =~ /odd/ });
my $from = -s $node->logfile;
$node->restart;
wait_until_watched($node);
is(verdict_on_record($node, $oid), 'same', 'a newline in the location of a tablespace: the devices are known at the next start');
unlike(slurp_file($node->logfile, $from), qr/invalid data/, 'a newline in the location: no word of it');
value('DROP TABLESPACE odd');
wait_until('unmarked', sub { !glob_of($odd) });
pass('a newline in the location: the marker is removed with the tablespace');
$node->stop;
my $state = slurp_file(state_file($node));
$state =~ s/end\n\z//;
open my $out, '>', state_file($node) or die $!;
print $out $state;
close $out;
$from = -s $node->logfile;
$node->start;
like(slurp_file($node->logfile, $from), qr/invalid data in file "index_mover.evidence"/, 'a state file without its end: a line in the log');
# ---- the apply of logical replication ----------------------------------------------------------------
# A trigger stops the apply worker while the device comes, so no other session empties the index that it uses.
$node->stop;
my ($sub, $sub_location, $sub_oid) = node_with_device('applied', conf => <<CONF);
wal_level = logical
wal_retrieve_retry_interval = 500ms
index_mover.test_mutation = 'lost-queueing:200,empty-again:500'
CONF
sub publish { return $sub->safe_psql('postgres', $_[0]); }
sub applied { return $sub->safe_psql('subscriber', $_[0]); }
sub published_is
{
	my ($where, $count, $name) = @_;
	$sub->poll_query_until('subscriber', "SELECT count(*) = $count FROM $where");
	return is(applied("SELECT count(*) FROM $where"), $count, $name);
}

publish($_) foreach 'CREATE TABLE u (id int)', 'CREATE TABLE w (id int)', 'CREATE TABLE calm (id int)',
  'CREATE PUBLICATION p FOR TABLE u, w, calm', 'SELECT pg_create_logical_replication_slot($$s$$, $$pgoutput$$)',
  'CREATE DATABASE subscriber';
applied($_) foreach 'CREATE EXTENSION IF NOT EXISTS index_mover CASCADE', 'CREATE TABLE u (id int)',
  'CREATE TABLE w (id int)', 'CREATE TABLE calm (id int)', 'CREATE UNIQUE INDEX u_id ON u (id) TABLESPACE fast',
  'CREATE UNIQUE INDEX w_id ON w (id) TABLESPACE fast',
  "CREATE SUBSCRIPTION s CONNECTION 'host=@{[ $sub->host ]} port=@{[ $sub->port ]} dbname=postgres'
	PUBLICATION p WITH (create_slot = false, slot_name = 's', copy_data = false)";
publish("INSERT INTO $_ SELECT generate_series(1, 5000)") foreach qw(u w);
published_is($_, 5000, "$_: applied") foreach qw(u w);
wait_until_watched($sub);

# the state file of a version before the numbers of runs
my @known = known_on_record($sub, $sub_oid);
$sub->stop;
my $state = slurp_file(state_file($sub));
ok($state =~ s/^counter \d+\n//m && $state =~ s/^(tablespace(?: \S+){23}) \d+/$1/mg, 'a state file without later fields');
open(my $file, '>', state_file($sub)) or die $!;
print $file $state;
close $file;
$sub->start;
wait_until_watched($sub);
is_deeply([ known_on_record($sub, $sub_oid) ], \@known, 'a state file without later fields: as much is known as before');

publish('CHECKPOINT');
my $sub_comes = copy_location($sub_location);
$sub->restart;
wait_until_watched($sub);
publish("INSERT INTO $_ VALUES (5001)") foreach qw(u w);
published_is($_, 5001, "$_: applied after the copy") foreach qw(u w);
applied($_) foreach
  'CREATE FUNCTION waits() RETURNS trigger AS $$BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END$$ LANGUAGE plpgsql',
  'CREATE TRIGGER waits BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION waits()', 'ALTER TABLE u ENABLE ALWAYS TRIGGER waits';
$sub->restart;
wait_until_watched($sub);
publish('INSERT INTO calm VALUES (1)');
published_is('calm', 1, 'the apply worker is there');
my $stops = IndexMover::Session->new($sub, dbname => 'subscriber');
$stops->run('SELECT pg_advisory_lock(1)');
my $cursor = IndexMover::Session->new($sub, dbname => 'subscriber');
$cursor->run('BEGIN; DECLARE c CURSOR FOR SELECT id FROM w ORDER BY id; FETCH 1 FROM c');
publish('INSERT INTO u VALUES (5001)');
$sub->poll_query_until('subscriber', "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
$sub_comes->();
applied('SELECT count(*) FROM index_mover_check()');
is(verdict_on_record($sub, $sub_oid), 'lost', 'the device of the subscriber is lost');
my $log = -s $sub->logfile;
$stops->run('SELECT pg_advisory_unlock(1)');
wait_until('the apply has ended', sub { slurp_file($sub->logfile, $log) =~ /worker" \(PID \d+\) exited|worker for sub\S+ "s" has started/
		|| applied('SELECT count(*) FROM u') > 5001 });
published_is('u WHERE id = 5001', 1, 'no duplicate');
applied('DROP TRIGGER waits ON u; DROP INDEX u_id');
published_is('u WHERE id = 5001', 2, 'without the unique index, the refused transaction comes');

# (the apply worker tried to empty the file as it connected; later it would try again)
my $since = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type LIKE 'logical replication%worker'
	AND backend_start < now() - interval '2s'";
$sub->poll_query_until('subscriber', $since);
$log = -s $sub->logfile;
publish('INSERT INTO w VALUES (6000)');
wait_until('refused', sub { slurp_file($sub->logfile, $log) =~ /cannot commit changes of table "w" without index "w_id"/ });
$_->end foreach $cursor, $stops;
applied('DROP INDEX w_id');
publish('INSERT INTO w VALUES (6001)');
published_is('w WHERE id >= 6000', 2, 'a cursor kept the old file: the transaction that was refused comes again');

done_testing();

# The files in a directory whose name has blanks.
sub glob_of
{
	my ($path) = @_;
	opendir my $dir, $path or die $!;
	my @names = grep { !/^\.\.?$/ } readdir $dir;
	closedir $dir;
	return scalar @names;
}
