# Files that are lost by their rows in the catalog, since their numbers are among the last that were given before
# the crash: they stay lost when such a row changes.
#
# Fault (storage): a device comes back empty after a crash; indexes, tables and the database that it had get
#   another name, owner, type or ACL; a transaction was open at the last checkpoint that had built an index there
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $location, $oid) = node_with_device('rows', conf => "autovacuum = off\n");
sub value { my ($sql, $database) = @_; return $node->safe_psql($database // 'postgres', $sql); }

value('CREATE DATABASE young');
value(<<'SQL', 'young');
CREATE EXTENSION index_mover;
CREATE TABLE x (id int);
INSERT INTO x SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX x_id ON x (id) TABLESPACE fast;
SQL
value(<<'SQL');
CREATE ROLE app;
GRANT ALL ON SCHEMA public TO app;
CREATE TABLE g (a int[]);
INSERT INTO g SELECT ARRAY[i, i % 10] FROM generate_series(1, 20000) i;
CREATE TABLE t (id int);
CREATE TABLE w (id int);
CREATE TABLE h (id int);
CREATE TABLE u (id varchar(10));
CREATE TABLE late (id int);
INSERT INTO t SELECT generate_series(1, 5000);
INSERT INTO w SELECT * FROM t;
INSERT INTO h SELECT * FROM t;
INSERT INTO u SELECT * FROM t;
INSERT INTO late SELECT * FROM t;
CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast;
CREATE UNIQUE INDEX w_id ON w (id) TABLESPACE fast;
CREATE UNIQUE INDEX u_id ON u (id) TABLESPACE fast;
CREATE INDEX h_id ON h USING hash (id) TABLESPACE fast;
CREATE TABLE y (id int) TABLESPACE fast;
SQL

# ---- the crash -----------------------------------------------------------------------------------------
my $builder = IndexMover::Session->new($node);
$builder->run('BEGIN; CREATE INDEX g_a ON g USING gin (a) TABLESPACE fast');
value('CHECKPOINT');
$builder->run('INSERT INTO g SELECT ARRAY[i, i % 10] FROM generate_series(20001, 20005) i; COMMIT');
$builder->end;
value("INSERT INTO $_ VALUES (5001)") foreach qw(t w u h y late);
value('INSERT INTO x VALUES (5001)', 'young');
value('CREATE UNIQUE INDEX late_id ON late (id) TABLESPACE fast');
$node->stop('immediate');
rmtree($location);
make_path($location);
$node->start;
wait_until_watched($node);
is(verdict_on_record($node, $oid), 'lost', 'the device came back empty');

# ---- indexes ---------------------------------------------------------------------------------------------
sub answers_ok
{
	my ($name, $table, $database) = @_;
	my ($rc, $out, $err) = $node->psql($database // 'postgres', "SET enable_seqscan = off; SELECT count(*) FROM $table WHERE id = '5001'");
	is("$out$err", 1, "$name: the right answer");
	($rc, $out, $err) = $node->psql($database // 'postgres', "INSERT INTO $table VALUES ('5001')");
	return like($err, qr/could not read block|contains corrupted page/, "$name: none writes to the index");
}

my %changes = (
	t => 'ALTER INDEX t_id RENAME TO t_key',
	w => 'ALTER TABLE w OWNER TO app',
	h => 'ALTER INDEX h_id RENAME TO h_key',
	u => 'ALTER TABLE u ALTER id TYPE varchar(20)');
foreach my $table (sort keys %changes)
{
	value($changes{$table});
	answers_ok($changes{$table}, $table);
}
# (the worker has been to this database)
wait_until('met', sub { -z $node->data_dir . '/' . value("SELECT pg_relation_filepath('x_id')", 'young') });
value('GRANT CONNECT ON DATABASE young TO public');
answers_ok('GRANT on the database', 'x', 'young');

# ---- an index of a transaction that was open at the checkpoint ----------------------------------------------
# (until the janitor has found the damage, a query may use the index)
my $is_lost = "SELECT count(*) FROM index_mover_check() WHERE object = 'public.g_a' AND detail ~ 'empty\$|has lost'";
wait_until('the ruin is lost', sub { value($is_lost) });
wait_until('empty', sub { -z $node->data_dir . '/' . value("SELECT pg_relation_filepath('g_a')") });
my $get = 'SET enable_seqscan = off; SELECT count(*) FROM g WHERE a @> ARRAY[20001]';
is(value($get), 1, 'an index of a transaction that was open at the checkpoint: the right answer');
like(($node->psql('postgres', 'ALTER INDEX g_a SET TABLESPACE pg_default'))[2],
	qr/cannot copy the lost file of index "g_a"\nDETAIL:  Damage was found in its old file: /,
	'a ruin is not copied, and the DETAIL says why');
is(value($get =~ s/20001/7/r), 2000, 'an index of a transaction that was open at the checkpoint: also what was there before');

# ---- tables ----------------------------------------------------------------------------------------------
value('ALTER TABLE y OWNER TO app');
my $found = "SELECT string_agg(object, ' ' ORDER BY object) FROM index_mover_check() WHERE kind ~ '^lost'";
like(value($found), qr/public\.y\b/, 'a table with another owner is still lost');
like(value($found, 'young'), qr/public\.x_id\b/, 'so is the index of the database with another ACL');

# ---- what is not lost ------------------------------------------------------------------------------------
value('CREATE UNIQUE INDEX new_id ON late (id DESC) TABLESPACE fast');
foreach my $index (qw(late_id new_id))
{
	my $other = $index eq 'late_id' ? 'new_id' : 'late_id';
	like(value("BEGIN; SET enable_seqscan = off; DROP INDEX $other; EXPLAIN SELECT FROM late WHERE id = 5001"), qr/$index/,
		"$index, made after the checkpoint, is in use");
}

# ---- after a restart -------------------------------------------------------------------------------------
$node->restart;
wait_until_watched($node);
answers_ok("after a restart: $_", $_) foreach sort keys %changes;
answers_ok('after a restart: GRANT', 'x', 'young');
is(value($get), 1, 'after a restart: the right answer of the index that was a ruin');
# (the table cannot be healed)
unlike(value("SELECT string_agg(name || ' ' || status, ', ') FROM heal_tablespace('fast')", $_) =~ s/^y skipped|, y skipped//r,
	qr/skipped|failed/, "healed in $_") foreach qw(postgres young);
is(value("SELECT count(*) FROM $_ WHERE id = '5001'"), 1, "healed: the right answer of $_") foreach sort keys %changes;

# ---- an index that recovery has made whole ------------------------------------------------------------------
# A file of a database with an OID above the counter is lost, and a page of another file is damaged: neither says
# anything of an index with a number in between.
$node->stop;
($node, $location, $oid) = node_with_device('whole', conf => "autovacuum = off\n");
value('CREATE DATABASE young OID = 20000');
value(<<'SQL', 'young');
CREATE TABLE x (id int);
INSERT INTO x VALUES (1);
CREATE INDEX x_id ON x (id) TABLESPACE fast;
SQL
value('CHECKPOINT');
my $comes = copy_location($location);
$node->restart;
wait_until_watched($node);
value('CREATE TABLE dummy ()');
value('CHECKPOINT');
value(<<'SQL');
CREATE TABLE u (id int);
INSERT INTO u SELECT generate_series(1, 20000);
CREATE UNIQUE INDEX u_id ON u (id) TABLESPACE fast;
CREATE TABLE g (s text);
INSERT INTO g SELECT 's' || i FROM generate_series(1, 20000) i;
CREATE INDEX g_s ON g USING gin (to_tsvector('simple', s)) TABLESPACE fast;
SQL
sub file { return $node->data_dir . '/' . value("SELECT pg_relation_filepath('$_[0]')", $_[1]); }
my ($whole, $damaged, $other) = (file('u_id'), file('g_s'), file('x_id', 'young'));
$node->stop('immediate');
$comes->();
$node->start;
wait_until('empty', sub { value('SELECT 1', 'young') && -z $other });
$node->restart;
value('SELECT 1');
ok(-s $whole, 'an index that was made since the checkpoint is whole beside a database with a higher OID');
$node->stop;
open my $page, '+<', $damaged or die $!;
seek $page, 5 * 8192, 0 or die $!;
print $page "\xEE" x 8192;
close $page or die $!;
$node->start;
wait_until('the damaged file is empty', sub { value('SELECT 1'); -z $damaged });
like(value('SELECT string_agg(object, $$ $$) FROM index_mover_check()'), qr/public\.g_s/, 'a check names the damaged index');
ok(-s $whole, 'its neighbor stays whole');
value('INSERT INTO u VALUES (20001)');
is(value('SET enable_seqscan = off; SELECT count(*) FROM u WHERE id = 20001'), 1, 'and is in use');

# ---- a loss that another database proves ----------------------------------------------------------------------
# An index of a transaction that was open at the checkpoint is not lost by its row; a file of another database, with a
# higher number, proves that it is.
$node->stop;
($node, $location, $oid) = node_with_device('proved', conf => "autovacuum = off\n");
value('CREATE DATABASE young');
value('CREATE TABLE x (id int); INSERT INTO x VALUES (1)', 'young');
value('CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 20000); CREATE INDEX t_old ON t (id) TABLESPACE fast');
value('CHECKPOINT');
$node->restart;
wait_until_watched($node);
my ($younger, $maker) = map { IndexMover::Session->new($node, dbname => $_) } qw(young postgres);
$younger->run('BEGIN; SELECT txid_current()');
$maker->run('BEGIN; CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast');
$younger->run('CREATE INDEX x_id ON x (id) TABLESPACE fast; COMMIT');
value('CHECKPOINT');
$comes = copy_location($location);
$maker->run('INSERT INTO t SELECT generate_series(20001, 20050); COMMIT');
my $made = file('t_id');
$_->end foreach $younger, $maker;
$node->stop('immediate');
$comes->();
unlink glob("$location/index_mover.*");
$node->start;
value('SELECT 1') foreach 1 .. 2;
diag("lost at first: " . (-z $made ? 'yes' : 'no'));
wait_until('proved', sub { value('SELECT 1', 'young'); -z $made });
like(($node->psql('postgres', 'INSERT INTO t VALUES (20001)'))[2], qr/could not read block/, 'no duplicate comes in');

# ---- a loss that cannot go on record ---------------------------------------------------------------------------
# Each look finds it once more, and writes no WAL for that.
wait_for_no_worker($node);
$comes = copy_location($location);
$node->restart;
wait_until_watched($node);
wait_for_no_worker($node);
mkdir state_file($node) . '.tmp' or die $!;
$comes->();
my $look = 'SELECT count(*) FROM index_mover.device_problems()';
value($look) foreach 1 .. 2;
my $session = IndexMover::Session->new($node);
my $insert = "SELECT pg_current_wal_insert_lsn() - '0/0'";
my $wal = $session->run($insert);
$session->run($look) foreach 1 .. 50;
my $written = $session->run($insert) - $wal;
cmp_ok($written, '<', 1000, '50 looks that find a loss which cannot go on record write no WAL') || diag("$written bytes");
like(slurp_file($node->logfile), qr/could not write file ".*index_mover\.evidence/, 'it could not go on record');
$session->end;
rmdir state_file($node) . '.tmp';
$node->stop;
done_testing();
