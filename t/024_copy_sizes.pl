# The method copy and the sizes of files: several segments of 1 GB, growing into
# the second one and in it, with page checksums, which know a block's number in the
# whole of the file; one block; no block at all.
#
# Fault (storage): several segments (of 6 blocks: `scripts/test-builds segments`, see
#   [Builds](../docs/reliability.md#builds))
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

# verify-all compares everything under the lock; two gigabytes are not read once more
my $node = new_node('copy_sizes', verify => 0, extra => ['--data-checksums'], conf => <<CONF);
checkpoint_timeout = 1h
max_wal_size = 1GB
wal_keep_size = 0
maintenance_work_mem = 256MB
shared_buffers = 64MB
CONF
my $s = IndexMover::Session->new($node);
$s->run('SET client_min_messages = warning; CREATE EXTENSION pg_walinspect');

# An index with two or three entries in a page becomes large quickly.  No entry
# may be longer than a third of a page, or than 8 kB.
my $page_size = block_size($node);
my $segment = 1024 * 1024 * 1024 / $page_size;
my $key_size = $page_size > 16384 ? 8000 : 2600 * $page_size / 8192;
my $rows = 60000 * 8192 / $page_size;

sub blocks { return $s->run("SELECT pg_relation_size('$_[0]') / $page_size"); }

# Move an index; after the bulk copy, and before what follows it, change it.
# Returns the row, the numbers of the blocks that the change has touched in the
# file, its length before and after, and to what lengths the old file was truncated.
sub move_and_change
{
	my ($index, $to, $change, $pacing) = @_;
	$pacing //= 'off';
	set_tests($node, test_point => 'copy-end:wait', test_mutation => 'verify-all');
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $job = $s->run(
		"SELECT job FROM move_indexes('$index', '$to', method => 'copy', wait => false, settings => '{\"pacing\": \"$pacing\"}')");
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);

	my $file = $s->run(<<SQL);
SELECT coalesce(nullif(c.reltablespace, 0), d.dattablespace) || '/' || d.oid || '/' || pg_relation_filenode(c.oid)
  FROM pg_class c, pg_database d WHERE c.oid = '$index'::regclass AND d.datname = current_database()
SQL
	my $before = blocks($index);
	my $start = $s->run('SELECT pg_current_wal_insert_lsn()');
	$s->run($change) if $change;
	my $touched = !$change ? '' : $s->run(<<SQL);
SELECT string_agg(DISTINCT m[1], ' ')
  FROM pg_get_wal_records_info('$start', pg_current_wal_flush_lsn()),
	   regexp_matches(block_ref, 'rel $file (?:fork main )?blk (\\d+)', 'g') m
SQL
	my $after = blocks($index);
	my $swap = $s->run('SELECT pg_current_wal_insert_lsn()');
	$gate->end;
	$s->run("CALL wait_for_move($job)");
	set_tests($node);
	my $row = $s->run("SELECT status, coalesce(sqlstate, ''), coalesce(message, '') FROM index_mover_history WHERE job = $job");
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$index to $to: it was one copy");
	my ($number) = $file =~ m{/(\d+)$};
	my $truncated = $s->run(<<SQL);
SELECT coalesce(string_agg(m[1], ' ' ORDER BY start_lsn), '')
  FROM pg_get_wal_records_info('$swap', pg_current_wal_flush_lsn()),
	   regexp_matches(description, '/$number to (\\d+) blocks') m
 WHERE resource_manager = 'Storage'
SQL
	return ($row, [ split / /, $touched ], $before, $after, [ split / /, $truncated ]);
}

# ---- several segments -------------------------------------------------------------
my ($row, $touched, $before, $after, $truncated);
if (faults('indexes of more than one segment'))
{
	$s->run(<<SQL);
CREATE FUNCTION large_key(int) RETURNS text IMMUTABLE LANGUAGE sql RETURN rpad(to_char(\$1, 'FM0000000'), $key_size, 'x');
CREATE TABLE large (id int, k text COLLATE "C");
ALTER TABLE large ALTER k SET STORAGE plain;
INSERT INTO large SELECT 2 * g, large_key(2 * g) FROM generate_series(1, $rows) g;
SET maintenance_work_mem = '256MB';
CREATE INDEX large_k ON large (k) WITH (fillfactor = 10) TABLESPACE regress_slow;
SQL
	# almost to the end of the first segment
	$s->run(<<SQL);
DO \$\$
DECLARE
	last	int := @{[ 2 * $rows ]};
BEGIN
	WHILE pg_relation_size('large_k') / $page_size < @{[ $segment - 300 ]} LOOP
		INSERT INTO large SELECT g, large_key(g) FROM generate_series(last + 2, last + 100, 2) g;
		last := last + 100;
	END LOOP;
END \$\$;
VACUUM large;
SQL
	my $last = $s->run('SELECT max(id) FROM large');
	my $keys = $last + 4000;

	# Every key there is or was, looked up in the index, against a scan of the table.
	sub lookup_ok
	{
		my ($name) = @_;
		my $check = IndexMover::Session->new($node);
		$check->run("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_memoize = off; SET work_mem = '64MB'; SET "
			. "max_parallel_workers_per_gather = 0");
		# around what was changed, and one in seven of all others
		my $asked = "(id % 7 = 0 OR id < 2300 OR id BETWEEN 29900 AND 40500 OR id > $last - 500)";
		my $query = <<SQL;
WITH by_index AS MATERIALIZED (
	SELECT asked.id AS g, m.id, m.tid
	  FROM (SELECT id FROM generate_series(1, $keys) AS id WHERE $asked) asked
	 CROSS JOIN LATERAL (SELECT id, ctid AS tid FROM large WHERE k = large_key(asked.id) OFFSET 0) m),
by_scan AS MATERIALIZED (
	SELECT id AS g, id, ctid AS tid FROM large WHERE ctid >= '(0,0)' AND $asked)
SELECT (SELECT count(*) FROM by_scan) > 8000,
	   (SELECT count(*) FROM (TABLE by_scan EXCEPT ALL TABLE by_index) e) AS missing,
	   (SELECT count(*) FROM (TABLE by_index EXCEPT ALL TABLE by_scan) e) AS extra,
	   (SELECT count(*) FROM by_index WHERE g <> id) AS wrong_key
SQL
		like($check->run("EXPLAIN $query"), qr/Index Scan using large_k/, "$name: the plan uses the index");
		is($check->run($query), 't|0|0|0', "$name: every key leads to its row, and to no other");
		$check->send("SELECT oracle.structure('large_k')");
		$check->answer;
		is($check->errors, '', "$name: amcheck");
		$check->end;
		return;
	}

	($row, $touched, $before, $after) = move_and_change('large_k', 'regress_fast', <<SQL);
INSERT INTO large SELECT g, large_key(g) FROM generate_series(1001, 1199, 2) g;
DELETE FROM large WHERE id BETWEEN 40000 AND 40400;
VACUUM (INDEX_CLEANUP on) large;
INSERT INTO large SELECT g, large_key(g) FROM generate_series($last + 2, $last + 2000, 2) g;
SQL
	is($row, 'moved||', 'grown into the second segment: moved, block by block equal under the lock');
	cmp_ok($before, '<=', $segment, "before it was one segment ($before blocks)");
	cmp_ok($after, '>', $segment, "and then two ($after blocks)");
	is(blocks('large_k'), $after, 'the new file is as long');
	files_ok($node, 'grown into the second segment');
	lookup_ok('grown into the second segment');

	($row, $touched, $before, $after, $truncated) = move_and_change('large_k', 'regress_slow', <<SQL);
INSERT INTO large SELECT g, large_key(g) FROM generate_series(2001, 2199, 2) g;
DELETE FROM large WHERE id BETWEEN 30000 AND 30200 OR id BETWEEN $last + 1400 AND $last + 1600;
VACUUM (INDEX_CLEANUP on) large;
INSERT INTO large SELECT g, large_key(g) FROM generate_series($last + 2002, $last + 4000, 2) g;
SQL
	is($row, 'moved||', 'two segments: moved, block by block equal under the lock');
	cmp_ok($before, '>', $segment, "it had two segments ($before blocks)");
	cmp_ok($after, '>', $before, "and has grown ($after blocks)");
	cmp_ok(scalar(grep { $_ < $segment } @$touched), '>', 100, 'blocks of the first segment have changed after they were copied');
	cmp_ok(scalar(grep { $_ >= $segment && $_ < $before } @$touched), '>', 10, 'and of the second');
	my $recopied = $s->run('SELECT blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1');
	# a long tail is copied like the rest
	cmp_ok($recopied, '>=', scalar(grep { $_ < $before } @$touched), "all of these were copied again ($recopied)");
	cmp_ok(scalar(@$truncated), '>', 60, 'the old file was removed in steps: to ' . join(', ', @{$truncated}[ 0 .. 3 ]) . ' ... blocks');
	ok((grep { $_ == $segment } @$truncated), 'and none of them goes on into another segment');
	files_ok($node, 'two segments');
	lookup_ok('two segments');
	# what a lookup has found in shared buffers, it has not read from the file
	my $number = $s->run("CHECKPOINT; SELECT pg_relation_filenode('large_k')");
	$s->end;
	$node->stop;
	command_ok([ 'pg_checksums', '--check', '--filenode', $number, '-D', $node->data_dir ], 'two segments: the checksums in both');
	$node->start;
	$s = IndexMover::Session->new($node);
	$s->run('SET client_min_messages = warning');
	$s->run('DROP TABLE large; CHECKPOINT');
}

# ---- one block, that becomes many --------------------------------------------------
$s->run('CREATE TABLE empty (k int); CREATE INDEX empty_k ON empty (k) TABLESPACE regress_slow');
($row, $touched, $before, $after) = move_and_change('empty_k', 'regress_fast', '');
is($row, 'moved||', 'one block: moved');
is("$before $after", '1 1', 'one block: nothing else');
($row, $touched, $before, $after) =
  move_and_change('empty_k', 'regress_slow', 'INSERT INTO empty SELECT generate_series(1, 60000)');
is($row, 'moved||', 'one block that becomes many: moved');
cmp_ok($after, '>', 20, "it was 1, and is $after blocks");
verdict_ok($node, 'empty', 'one block that becomes many', max_keys => 200);

# ---- nothing left to discard when the old file is removed ---------------------------
($row, $touched, $before, $after, $truncated) = move_and_change('empty_k', 'regress_fast', '');
is("$row @$truncated", 'moved|| ', 'not paced: a file of a few megabytes is removed at once');
($row, $touched, $before, $after, $truncated) = move_and_change('empty_k', 'regress_slow', '', 'on');
is("$row @$truncated", 'moved|| 0', 'paced: it is empty before');

# ---- no block ----------------------------------------------------------------------
# No access method leaves an index without any: it is what a crash has left.
$s->run('CREATE TABLE none (k int); CREATE INDEX none_k ON none (k) TABLESPACE regress_slow; CHECKPOINT');
my $path = $node->data_dir . '/' . $s->run("SELECT pg_relation_filepath('none_k')");
$s->end;
$node->stop;
truncate($path, 0) or die "truncate $path: $!";
$node->start;
$s = IndexMover::Session->new($node);
$row = $s->run("SELECT status, sqlstate, detail FROM move_indexes('none_k', 'regress_fast', method => 'copy')");
like($row, qr/^skipped\|XX002\|.*its file is empty/, 'no block: it is not copied');
like(tablespace_of_index($node, 'none'), qr/^none_k: regress_slow$/, 'no block: where it was');
files_ok($node, 'no block');
$s->run('REINDEX INDEX none_k; INSERT INTO none SELECT generate_series(1, 1000)');
verdict_ok($node, 'none', 'no block, rebuilt');
leftovers_ok($node, 'all sizes', within => 5);

$s->end;
$node->stop;
done_testing();
