# Which files are from before a loss, where neither their rows in the catalog nor the order of numbers proves it; and
# files that would not be looked at after it.
#
# Fault (storage): a device is set back to an earlier state at a crash, and its indexes had got another name meanwhile, or a
#   transaction was open; the counter of OIDs has gone round before; an unlogged table is on a device that was away in
#   a crash, its index is not; a file is cut off that has grown since it was counted
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my ($node, $location, $oid) = node_with_device('numbers',
	conf => "autovacuum = off\nmax_prepared_transactions = 2\nindex_mover.verify = off\n");
sub value { return $node->safe_psql('postgres', $_[0]); }
sub verdict { return verdict_on_record($node, $oid); }
sub path { return $node->data_dir . '/' . value("SELECT pg_relation_filepath('$_[0]')"); }
sub was_empty { return slurp_file(state_file($node)) =~ /^tablespace $_[0] (?:\S+ ){9}(\d)/m ? $1 : die; }
sub found
{
	return value("SELECT coalesce(string_agg(object || ' ' || detail, ' ' ORDER BY object), '')
		FROM index_mover_check() WHERE kind = 'lost file'");
}
sub newest { return value("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM $_[0] WHERE id = 5001"); }

sub start_and_watch
{
	$node->start;
	wait_until_watched($node);
	return;
}

sub away_in_a_crash
{
	$node->stop('immediate');
	rename $location, "$location.away" or die $!;
	make_path($location);
	start_and_watch();
	$node->stop;
	rmtree($location);
	rename "$location.away", $location or die $!;
	start_and_watch();
	return;
}

# ---- a tablespace that was empty gets its first file -------------------------------------------------
wait_until_watched($node);
wait_until('marked', sub { verdict() eq 'same' });
is(was_empty($oid), 1, 'a new tablespace is empty');
value('CREATE TABLE first (id int); CREATE INDEX first_id ON first (id) TABLESPACE fast');
wait_until('a look', sub { was_empty($oid) == 0 });
is(was_empty($oid), 0, 'its first file is noted');

# ---- an unlogged table whose index is elsewhere ------------------------------------------------------
value('CREATE UNLOGGED TABLE n (id int PRIMARY KEY USING INDEX TABLESPACE pg_default) TABLESPACE fast;
	INSERT INTO n SELECT generate_series(1, 5000); CHECKPOINT');
away_in_a_crash();
like(found(), qr/\bn its device has lost changes of it/, 'an unlogged table that was away in a crash, unlike its index: lost');
like(value("SELECT detail FROM heal_tablespace('fast', dry_run => true) WHERE name = 'n'"),
	qr/TRUNCATE makes it again/, 'and the plan says how to make it again');
value("TRUNCATE n; SELECT count(*) FROM heal_tablespace('fast')");
is(found(), '', 'which is so');
value('DROP TABLE n');
$node->restart;
wait_until('settled', sub { verdict() eq 'same' });
wait_until_watched($node);

# ---- a device that is set back at a crash ------------------------------------------------------------
value("CREATE TABLE l (id int); BEGIN; INSERT INTO l VALUES (1); PREPARE TRANSACTION 'open'");
foreach my $name ('r', 'o')
{
	value("CREATE TABLE $name (id int); INSERT INTO $name SELECT generate_series(1, 5000);
		CREATE UNIQUE INDEX ${name}_id ON $name (id) TABLESPACE fast");
}
value('CHECKPOINT');
my $comes = copy_location($location);
$node->restart;
wait_until_watched($node);
value("INSERT INTO $_ VALUES (5001)") foreach 'r', 'o';
value('CHECKPOINT; ALTER INDEX r_id RENAME TO r_new');
$node->stop('immediate');
$comes->();
start_and_watch();
is(newest($_), 1, "set back at a crash, $_: no old index is used") foreach 'r', 'o';
is(value("SELECT string_agg(name, ' ' ORDER BY name) FROM heal_tablespace('fast', dry_run => true) WHERE name IN ('r_new', 'o_id')"),
	'o_id r_new', 'set back at a crash: both indexes are lost, one with another name, and one of while a transaction was open');
value("COMMIT PREPARED 'open'; DROP TABLE r, o, first; SELECT count(*) FROM heal_tablespace('fast')");
$node->restart;
wait_until('settled', sub { verdict() eq 'same' });
wait_until_watched($node);

# ---- a file that is cut off behind the size that it had when it was counted ---------------------------
value('CREATE TABLE c (id int); INSERT INTO c SELECT generate_series(1, 10000); CREATE INDEX c_id ON c (id) TABLESPACE fast;
	INSERT INTO c SELECT generate_series(10001, 100000); CHECKPOINT');
my $path = path('c_id');
$node->stop;
truncate $path, int((-s $path) / 8192 * 0.6) * 8192 or die $!;
start_and_watch();
like(found(), qr/c_id its file ends before block \d+, to which block \d+ refers/, 'a file that is cut off is found');
value('DROP TABLE c');

# ---- a file that is not known to be whole is copied --------------------------------------------------
value('CREATE TABLE b (id int); INSERT INTO b SELECT generate_series(1, 200000); CREATE INDEX b_id ON b (id) TABLESPACE fast;
	CREATE TABLE m (id int); INSERT INTO m SELECT generate_series(1, 300000);
	CREATE UNIQUE INDEX m_id ON m (id) TABLESPACE fast; CHECKPOINT');
$path = path('m_id');
value("ALTER SYSTEM SET index_mover.test_mutation = 'read-rest:1000'");
$node->stop;
unlink glob("$location/index_mover.*");
open(my $file, '+<:raw', $path) or die $!;
seek $file, 401 * 8192, 0;
print $file "\0" x 16384;
close $file or die $!;
$node->start;
like(($node->psql('postgres', 'BEGIN; ALTER INDEX m_id SET TABLESPACE pg_default; ROLLBACK'))[2],
	qr/WARNING:  the copied file of index "m_id" is not known to be whole/,
	'SET TABLESPACE of an index that is not known to be whole: a warning');
is(value("SELECT name || ' ' || status FROM move_indexes('m', 'pg_default', method => 'copy')"), 'm_id skipped',
	'damage to a file that is not known to be whole: no copy');
is(value("SELECT name || ' ' || status || ' ' || method FROM move_indexes('m', 'pg_default')"), 'm_id moved rebuild',
	'but a rebuild, now that it is known');
value('ALTER SYSTEM RESET index_mover.test_mutation');
value('DROP TABLE b, m');
$node->restart;
wait_until('settled', sub { verdict() eq 'same' });
wait_until_watched($node);

# ---- an access method whose pages are not known ------------------------------------------------------
value("CREATE EXTENSION bloom; CREATE TABLE p (id int); BEGIN; INSERT INTO p VALUES (1); PREPARE TRANSACTION 'open'");
value('CREATE TABLE x (id int); INSERT INTO x SELECT generate_series(1, 60000);
	CREATE INDEX x_id ON x USING bloom (id) TABLESPACE fast; CHECKPOINT');
value('INSERT INTO x SELECT generate_series(60001, 100000)');
$node->stop('immediate');
rmtree($location);
make_path($location);
start_and_watch();
wait_until('x_id is found', sub { found() =~ /\bx_id / });
like(found(), qr/\bx_id (block \d+|its file) is empty/, 'zeros in a bloom index, on a device with lost files: lost');
value("COMMIT PREPARED 'open'; DROP TABLE x");

# ---- the counter of OIDs has gone round ---------------------------------------------------------------
$node->stop;
$node->command_ok([ $node->config_data('--bindir') . '/pg_resetwal', '-o', '4294967000', $node->data_dir ],
	'the counter is at its end');
$node->start;
wait_until('settled', sub { verdict() eq 'same' });
wait_until_watched($node);
value('CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 5000);
	CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast; SELECT count(lo_create(0)) FROM generate_series(1, 400)');
cmp_ok(value("SELECT pg_relation_filenode('t_id')"), '>',
	value('SELECT lo_create(0)'), 'the counter has gone round since the index was made');
$node->restart;
wait_until_watched($node);
value('INSERT INTO t VALUES (5001)');
away_in_a_crash();
is(newest('t'), 1, 'gone round before a loss: no old index is used');
like(value("SELECT string_agg(name || ' ' || status, ' ') FROM heal_tablespace('fast')"), qr/\bt_id moved/, 'and it is healed');
is(newest('t'), 1, 'with the right answer');
$node->restart;
wait_until('settled', sub { verdict() eq 'same' });
is(verdict(), 'same', 'and that is the end of it');
done_testing();
