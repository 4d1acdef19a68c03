# Lost indexes and plans: those of a session that only executes what it has planned before are made
# again, and what keeps the planner from an index is seen by no other command.
#
# Fault (storage): an older copy of a device comes in its place while sessions are connected, which have
#   generic plans, and locks; a session plans, or fails to, and reindexes then; hundreds of indexes are lost;
#   a base backup is made while a hash index is lost
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
use Time::HiRes qw(usleep);

needs_test_points();

my $N = 100;
my $usual = 'lost-queueing:200,empty-again:500';
my $dir = PostgreSQL::Test::Utils::tempdir();
my ($node, $location, $oid) = node_with_device('plans', conf => <<CONF);
log_checkpoints = on
index_mover.test_mutation = '$usual'
CONF
sub value { return $node->safe_psql('postgres', $_[0]); }

sub test_with
{
	my ($mutation) = @_;
	$node->append_conf('postgresql.conf', "index_mover.test_mutation = '$mutation'\n");
	$node->reload;
	return;
}

value(<<"SQL");
CREATE TABLE t (id int);
INSERT INTO t SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast;
CREATE TABLE u (id int);
INSERT INTO u SELECT generate_series(1, 5000);
CREATE INDEX u_id ON u (id) TABLESPACE fast;
CREATE TABLE parts (id int, s text) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (3000);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (3000) TO (9000);
CREATE TABLE above (id int);
CREATE TABLE below () INHERITS (above);
INSERT INTO parts SELECT g, 'x' FROM generate_series(1, 5000) g;
INSERT INTO below SELECT generate_series(1, 5000);
CREATE UNIQUE INDEX parts_1_id ON parts_1 (id) TABLESPACE fast;
CREATE UNIQUE INDEX parts_2_id ON parts_2 (id) TABLESPACE fast;
CREATE UNIQUE INDEX below_id ON below (id) TABLESPACE fast;
CREATE FUNCTION of_t(int) RETURNS TABLE (id int) LANGUAGE sql STABLE AS 'SELECT id FROM t WHERE id = \$1';
CREATE TABLE many (@{[ join ', ', map { "c$_ int" } 1 .. $N ]});
@{[ map { "CREATE INDEX many_$_ ON many (c$_) TABLESPACE fast;\n" } 1 .. $N ]}
SQL

sub verdict { return verdict_on_record($node, $oid); }
sub watched { return wait_until_watched($node); }
sub file { return $node->data_dir . '/' . value("SELECT pg_relation_filepath('$_[0]')"); }

# An older copy of the device comes in its place, with its marker, when the result is called.
sub lose_later
{
	value('CHECKPOINT');
	my $comes = copy_location($location);
	$node->restart;
	watched();
	value("INSERT INTO $_ (id) SELECT max(id) + 1 FROM $_") foreach qw(t u parts below);
	# (no page is in memory)
	$node->restart;
	watched();
	wait_for_no_worker($node);
	return sub {
		$comes->();
		value('SELECT count(*) FROM index_mover_check()');
		is(verdict(), 'lost', 'found while sessions are connected');
	};
}
sub heal
{
	is(value("SELECT string_agg(DISTINCT status, ' ') FROM heal_tablespace('fast')"), 'moved', 'healed');
	$node->restart;
	wait_until('settled', sub { verdict() eq 'same' });
	watched();
	return;
}

# ---- a session that only executes what it has planned ----------------------------------------------
{
	my $now = lose_later();
	my $session = IndexMover::Session->new($node);
	$session->run($_) foreach 'SET enable_seqscan = off', 'SET plan_cache_mode = force_generic_plan',
	  'PREPARE get AS SELECT count(*) FROM t WHERE id = $1';
	like($session->run('EXPLAIN EXECUTE get(5001)'), qr/t_id/, 'a generic plan');
	value("BEGIN; EXPLAIN SELECT FROM t WHERE id = 1; PREPARE TRANSACTION 'reader'");
	my $file = file('t_id');
	$now->();
	ok(-s $file, 'another session has locked it');
	wait_until('planned again', sub { $session->run('EXPLAIN EXECUTE get(5001)') !~ /t_id/ });
	is($session->run('EXECUTE get(5001)'), 1, 'the generic plan is made again, without the lost index');
	ok(-s $file, 'a generic plan without the lost index, whose file is not empty yet');
	value("COMMIT PREPARED 'reader'");
	wait_until('emptied', sub { -z $file });
	pass('the janitor empties the file when the lock is gone, before the next round');
	$session->end;
}

# ---- other commands do not see that the planner is kept from an index ---------------------------
{
	my $session = IndexMover::Session->new($node);
	is($session->run('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 5001'), 1, 'without the lost index');
	is($session->run("SELECT count(*) FROM pg_backend_memory_contexts WHERE ident LIKE 'many_%'"), 0,
		'a session opens no lost indexes of tables that it does not use');
	is($session->run('SELECT count(*) FROM parts WHERE id = 5001'), 1, 'a partition');
	is($session->run('SELECT count(*) FROM parts WHERE id < 10000'), 5001, 'partitions');
	is($session->run('SELECT count(*) FROM above WHERE id = 5001'), 1, 'a table that inherits');
	is($session->run('SELECT count(*) FROM of_t(5001)'), 1, 'a function whose body the planner takes');
	is($session->run('SELECT count(*) FROM (SELECT * FROM parts WHERE id IN (SELECT id FROM t WHERE id = 5001)) q'), 1,
		'queries in queries');
	$session->send('INSERT INTO t VALUES (5001) ON CONFLICT (id) DO NOTHING');
	$session->answer;
	like($session->errors, qr/there is no unique or exclusion constraint matching/, 'ON CONFLICT does not find it');
	$session->end;
	my $scans = "SELECT pg_stat_get_numscans('pg_class'::regclass)";
	my $before = value($scans);
	value('SHOW port') foreach 1 .. 9;
	cmp_ok(value($scans) - $before, '<', 5, 'a session that connects does not read all of pg_class: another one has');
	value('CREATE DATABASE none');
	$node->safe_psql('none', <<'SQL');
CREATE TABLE p AS SELECT generate_series(1, 1000) AS id;
CREATE FUNCTION rows_of_p() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS 'BEGIN RETURN (SELECT count(*) FROM p); END';
ANALYZE p;
SQL
	my $in_workers = join ';', (map { "SET $_ = 0" } qw(parallel_setup_cost parallel_tuple_cost min_parallel_table_scan_size)),
	  'SET parallel_leader_participation = off', 'SELECT count(*) FROM p WHERE id < ';
	is($node->safe_psql('none', $in_workers . 'rows_of_p()'), 999, 'a database without lost indexes');
	# (core reads pg_class when a worker begins)
	my %read;
	foreach my $rows ('1000', 'rows_of_p()')
	{
		$before = $node->safe_psql('none', $scans);
		$node->safe_psql('none', $in_workers . $rows) foreach 1 .. 9;
		$read{$rows} = $node->safe_psql('none', $scans) - $before;
	}
	cmp_ok($read{'rows_of_p()'}, '<', $read{1000} + 5, 'parallel workers of a plan do not read all of pg_class');
	my ($rc, $out, $err) = $node->psql('postgres', <<'SQL');
SELECT count(*) FROM u WHERE id = 1;
REINDEX TABLE CONCURRENTLY u;
SQL
	is($err, '', 'REINDEX TABLE CONCURRENTLY after a query: no index is skipped');
	ok(-s file('u_id'), 'REINDEX TABLE CONCURRENTLY after a query: the file is whole');
	($rc, $out, $err) = $node->psql('postgres', <<'SQL', on_error_stop => 0);
SELECT FROM t WHERE id = 1 / 0;
REINDEX TABLE CONCURRENTLY t;
SQL
	like($err, qr/division by zero/, 'a query that cannot be planned');
	unlike($err, qr/invalid index/, 'a query that cannot be planned: REINDEX TABLE CONCURRENTLY skips no index');
	ok(-s file('t_id'), 'a query that cannot be planned: the file is whole after REINDEX');
	value(<<'SQL');
SELECT count(*) FROM parts WHERE id < 10000;
CREATE UNIQUE INDEX parts_id ON parts (id);
SQL
	is(value("SELECT indisvalid FROM pg_index WHERE indexrelid = 'parts_id'::regclass"), 't',
		'CREATE INDEX that takes the lost indexes of partitions: the partitioned index is valid');
	value('DROP INDEX parts_id');
	value("CREATE UNIQUE INDEX parts_${_}_id ON parts_$_ (id) TABLESPACE fast") foreach 1, 2;
	heal();
}

# ---- a hash index ----------------------------------------------------------------------------------
# The WAL names pages of it without their images.  So they stay, but for the first one: recovery from before, as of
# a base backup that is being made, finds them.
{
	value($_) foreach 'CREATE TABLE h (id int, k int)', 'INSERT INTO h SELECT g, g % 50 FROM generate_series(1, 60000) g',
	  'CREATE INDEX h_k ON h USING hash (k) TABLESPACE fast',
	  'ALTER TABLE h ADD EXCLUDE USING hash (id WITH =) USING INDEX TABLESPACE fast', 'VACUUM h';
	my $excludes = value("SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'h'::regclass AND indisexclusion");
	my $now = lose_later();
	my $session = IndexMover::Session->new($node);
	my ($warm, $saver, $reader) = map { IndexMover::Session->new($node) } 1 .. 3;
	$session->run('BEGIN; EXPLAIN SELECT FROM h WHERE k = 1');
	# (for which the worker queues, and has not ended)
	$reader->run('BEGIN; EXPLAIN SELECT FROM t WHERE id = 1');
	test_with('lost-queueing:600000');
	$warm->run('SET enable_seqscan = off; SELECT count(*) FROM h WHERE id = 77');
	$warm->run('PREPARE put AS INSERT INTO h VALUES ($1, 1) ON CONFLICT DO NOTHING');
	my $file = file('h_k');
	# (a transaction that deletes beside the old file of an exclusion constraint would be refused)
	value('DELETE FROM h WHERE id > 50000');
	$now->();
	ok(!is_void($file), 'a lost hash index that a transaction has locked has its first page');
	$saver->run("SELECT pg_backup_start('copy', true)");
	value('VACUUM (INDEX_CLEANUP on) h');
	$warm->send('EXECUTE put(77)');
	$warm->answer;
	like($warm->errors, qr/cannot commit changes of table "h"/, 'a session has read it, and has a copy of the first page');
	my $size = -s $file;
	$session->run('COMMIT');
	wait_until('a hash index has no first page any more', sub { value('SELECT 1'); is_void($file) && is_void(file($excludes)) });
	is(-s $file, $size, 'a hash index without a first page keeps its other pages');
	$warm->send('EXECUTE put(77)');
	$warm->answer;
	like($warm->errors, qr/corrupted page at block 0/, 'a session that has read it before finds nothing by its copy');
	ok(-s file('t_id'), 'the worker still queues for another index');
	$reader->run('COMMIT');
	$_->end foreach $warm, $reader;
	test_with($usual);

	my $backup = $node->backup_dir . '/hash';
	system("cp -a '" . $node->data_dir . "' '$backup' && cp -a '$location' '$dir/copied'") == 0 or die;
	append_to_file("$backup/backup_label", $saver->run('SELECT labelfile FROM pg_backup_stop(false)'));
	system("rm -rf '$backup/pg_wal' && cp -a '" . $node->data_dir . "/pg_wal' '$backup'") == 0 or die;
	unlink "$backup/pg_tblspc/$oid", "$backup/postmaster.pid" or die $!;
	$_->end foreach $session, $saver;
	my $restored = PostgreSQL::Test::Cluster->new('restored');
	$restored->init_from_backup($node, 'hash');
	symlink("$dir/copied", $restored->data_dir . "/pg_tblspc/$oid") or die $!;
	ok($restored->start(fail_ok => 1), 'a base backup that was made meanwhile can be restored');
	is($restored->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM h WHERE k = 7'), 1000,
		'a restored base backup has lost the index, too');
	$restored->stop;
	value('DROP TABLE h');
	heal();
}

# ---- the device is away -----------------------------------------------------------------------------
{
	lose_later()->();
	$node->stop;
	rename $location, "$location.away" or die $!;
	$node->start;
	wait_for_no_worker($node);
	my $session = IndexMover::Session->new($node);
	my $scans = "SELECT pg_stat_get_numscans('pg_class'::regclass)";
	$session->run('SELECT 1');
	$session->run('SELECT pg_sleep(1.1)') foreach 1 .. 2;
	my $before = value($scans);
	$session->run('SELECT pg_sleep(1.1)') foreach 1 .. 4;
	$session->end;
	usleep(500_000);
	cmp_ok(value($scans) - $before, '<', 4, 'a lost device is away: no session looks for its indexes again and again');
	rename "$location.away", $location or die $!;
	my $file = file('t_id');
	wait_until('emptied', sub { -z $file });
	pass('it is back: its files are emptied');
	heal();
}
done_testing();
