# Lost indexes that come back: a transaction that replaces or drops one is rolled back, in this session or
# another one, or an index with an old file is committed later.  Each session knows them at each moment.
#
# Fault (storage): an older copy of a device comes in its place while sessions are connected; REINDEX, DROP
#   INDEX and ALTER TYPE of lost indexes are rolled back, as a whole or to a savepoint; a prepared
#   CREATE INDEX is committed by another session, and a prepared REINDEX rolled back
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Evidence;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my ($node, $location, $oid) = node_with_device('undone');
sub value { return $node->safe_psql('postgres', $_[0]); }

value(<<"SQL");
CREATE TABLE t (id int, s varchar(10)) PARTITION BY RANGE (id);
CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100000);
INSERT INTO t SELECT g, g FROM generate_series(1, 5000) g;
CREATE UNIQUE INDEX t_id ON t_1 (id) TABLESPACE fast;
CREATE INDEX t_s ON t_1 (s) TABLESPACE fast;
CREATE TABLE later (id int);
INSERT INTO later SELECT generate_series(1, 5000);
CREATE DATABASE one;
SQL
$node->safe_psql('one', <<"SQL");
CREATE TABLE x (id int);
INSERT INTO x SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX x_id ON x (id) TABLESPACE fast;
SQL
value("BEGIN; CREATE UNIQUE INDEX later_id ON later (id) TABLESPACE fast; PREPARE TRANSACTION 'later'");
value('CREATE TABLE back (id int); INSERT INTO back SELECT * FROM later; CREATE UNIQUE INDEX back_id ON back (id) TABLESPACE fast');
value("BEGIN; REINDEX INDEX back_id; PREPARE TRANSACTION 'back'");

value('CHECKPOINT');
my $comes = copy_location($location);
$node->restart;
wait_until_watched($node);
value("INSERT INTO t SELECT max(id) + 1, 'x' FROM t");
# (no page is in memory)
$node->restart;
wait_until_watched($node);
wait_for_no_worker($node);

# ---- the only lost index of a database is dropped when the loss is found, and that is rolled back -----
my $dropper = IndexMover::Session->new($node, dbname => 'one');
$dropper->run('BEGIN; DROP INDEX x_id');
$comes->();
value('SELECT count(*) FROM index_mover_check()');
is(verdict_on_record($node, $oid), 'lost', 'found while sessions are connected');
$dropper->run('SELECT count(*) FROM x');
my (undef, undef, $err) = $node->psql('postgres', 'CREATE DATABASE two TEMPLATE one');
like($err, qr/cannot copy database "one" while it has files of lost indexes/, 'dropped, not committed: its file counts as lost');
$dropper->run('ROLLBACK');
$dropper->run('SELECT pg_sleep(1.2)');
$dropper->send('INSERT INTO x VALUES (5000)');
$dropper->answer;
like($dropper->errors, qr/could not read block/, 'after ROLLBACK no duplicate comes in');
$dropper->end;

# ---- sessions that plan before and after ---------------------------------------------------------------
my $read = "SELECT (SELECT count(*) FROM t_1 WHERE id = 5001) + (SELECT count(*) FROM t WHERE id = 5001)
	+ (SELECT count(*) FROM t WHERE s = 'x')";
my %undone = (
	'REINDEX INDEX' => 'REINDEX INDEX t_id',
	'REINDEX TABLE' => 'REINDEX TABLE t_1',
	'DROP INDEX' => 'DROP INDEX t_id, t_s',
	'ALTER TYPE' => 'ALTER TABLE t ALTER s TYPE varchar(20)',
	'SET TABLESPACE' => 'ALTER INDEX t_id SET TABLESPACE pg_default');
my $old = IndexMover::Session->new($node);
is($old->run($read), 3, 'without the lost indexes');
my $answer;
foreach my $what (sort keys %undone)
{
	foreach my $how ([ 'BEGIN', 'ROLLBACK' ], [ 'BEGIN; SAVEPOINT s', 'ROLLBACK TO s; COMMIT' ])
	{
		my $name = "$what, $how->[1]";
		my @statements = ("SET enable_seqscan = off; $how->[0]; $undone{$what}", $read, $how->[1], $read);
		foreach my $sql (@statements)
		{
			$old->send($sql);
			$answer = $old->answer;
		}
		is($answer . $old->errors, 3, "$name: the right answer afterwards");
		my ($rc, $out, $errors) = $node->psql('postgres', join(";\n", @statements), on_error_stop => 0);
		is((split /\n/, $out)[-1], 3, "$name, in a session that has planned nothing before: the right answer");
		# (the copy of a file that is empty fails)
		unlike($errors, qr/ERROR/, 'the undone statement gives no error') unless $what eq 'SET TABLESPACE';
	}
}

# A generic plan that is made in such a transaction, with an index that is lost again afterwards: core has the plan made
# again, as REINDEX invalidates what is cached of the table, too.
my $executor = IndexMover::Session->new($node);
$executor->run($_) foreach 'SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan',
  'PREPARE by_id AS SELECT count(*) FROM t_1 WHERE id = $1';
foreach my $what ('REINDEX INDEX', 'REINDEX TABLE')
{
	foreach my $how ([ 'BEGIN', 'ROLLBACK' ], [ 'BEGIN; SAVEPOINT s', 'ROLLBACK TO s; COMMIT' ])
	{
		unlike($executor->run('EXPLAIN EXECUTE by_id(5001)'), qr/t_id/, "$what: a generic plan without the lost index");
		$executor->run("$how->[0]; $undone{$what}");
		like($executor->run('EXPLAIN EXECUTE by_id(5001)'), qr/t_id/, 'the plan has the index where it was rebuilt');
		$executor->run($how->[1]);
		is($executor->run('EXECUTE by_id(5001)'), 1, "the plan after $how->[1]: the right answer");
	}
}
$executor->end;

# An index with another OID has the old file.
value('ALTER TABLE t ALTER s TYPE varchar(20)');
is($old->run($read), 3, 'ALTER TYPE by another session, which keeps the files: the right answer');

# ---- committed later -------------------------------------------------------------------------------------
my $get = 'SELECT count(*) FROM later WHERE id = 77';
is($old->run($get), 1, 'a prepared CREATE INDEX: the right answer');
# (sessions have tried to empty files just now, and would not again for a while)
my %prepared = (later => 'COMMIT PREPARED', back => 'ROLLBACK PREPARED');
foreach my $name (sort keys %prepared)
{
	value("$prepared{$name} '$name'");
	$old->send("INSERT INTO $name VALUES (9000)");
	$old->answer;
	like($old->errors, qr/could not read block/, "$prepared{$name} in another session: the next statement does not write to the old file");
}
my $file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('later_id')");
wait_until('emptied', sub { value('SELECT 1'); -z $file });
is($old->run($get), 1, 'a prepared statement, when another session has committed the index');

is(value("SELECT string_agg(DISTINCT status, ' ') FROM heal_tablespace('fast')"), 'moved', 'healed');
is($old->run($read), 3, 'healed: the right answer');
like($old->run('EXPLAIN SELECT FROM t_1 WHERE id = 5001'), qr/t_id/, 'the plan has the healed indexes');
$old->end;
done_testing();
