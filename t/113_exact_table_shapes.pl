# A quiet table's copy is exact, for each shape of table, there and back: block by block
# and bit by bit of the visibility map, and all rows by each way to read them; on a
# standby and after a crash, too.
#
# Fault (tables): each shape of table, quiet and under load: every block, every bit of the
#   visibility map, every row by each way to read it
use strict;
use warnings;

use File::Copy qw(copy);
use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::ExactTable;
use IndexMover::Pages;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

start_servers('exact_shapes');

$node->safe_psql('postgres', 'CREATE SCHEMA shapes');

if (part('shapes'))
{
	# rows whose second line in the file is the first's successor, locks by one and by
	# several transactions, deleted and aborted ones, with and without VACUUM and FREEZE
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
SET search_path = shapes;
SET default_tablespace = regress_slow;
CREATE TABLE narrow (k int PRIMARY KEY, v int);
INSERT INTO narrow SELECT g, g % 10 FROM generate_series(1, 30000) g;
CREATE TABLE wide (k int PRIMARY KEY, a text, b text, c numeric, d timestamptz DEFAULT '2026-11-22', e int[], f jsonb);
INSERT INTO wide (k, a, b, c, e, f) SELECT g, repeat('a', g % 900), NULLIF(md5(g::text), md5('7')), g / 7.0, ARRAY[g, NULL, 1],
  jsonb_build_object('k', g) FROM generate_series(1, 3000) g;
CREATE TABLE toasted (k int PRIMARY KEY, external text, compressed text, extended text, main text);
ALTER TABLE toasted ALTER external SET STORAGE external, ALTER extended SET STORAGE extended, ALTER main SET STORAGE main, ALTER compressed
  SET COMPRESSION pglz;
INSERT INTO toasted SELECT g, repeat(md5(g::text), 100 + g % 200), repeat('y', 9000 + g),
  (SELECT string_agg(md5((g * 1000 + h)::text), '') FROM generate_series(1, 150) h), repeat('m', g * 10) FROM generate_series(1, 300) g;
UPDATE toasted SET external = external || 'x' WHERE k % 3 = 0;
DELETE FROM toasted WHERE k % 11 = 0;
CREATE TABLE empty (k int PRIMARY KEY, t text);
CREATE TABLE emptied (k int PRIMARY KEY, t text);
INSERT INTO emptied SELECT g, repeat('z', 100) FROM generate_series(1, 1000) g;
DELETE FROM emptied;
CREATE TABLE one_page (k int PRIMARY KEY);
INSERT INTO one_page VALUES (1);
CREATE TABLE filled (k int PRIMARY KEY, v int) WITH (fillfactor = 30);
INSERT INTO filled SELECT g, 0 FROM generate_series(1, 5000) g;
UPDATE filled SET v = v + 1;
UPDATE filled SET v = v + 1 WHERE k % 2 = 0;
CREATE TABLE dropped (a text, k int PRIMARY KEY, b text, c int);
INSERT INTO dropped SELECT 'a' || g, g, repeat('b', 50), g FROM generate_series(1, 3000) g;
ALTER TABLE dropped DROP a, DROP b, ADD d int DEFAULT 7, ADD e text;
INSERT INTO dropped SELECT g, g, g, 'e' FROM generate_series(3001, 5000) g;
-- many line pointers to a page, most of them dead or unused
CREATE TABLE pointers (b bool);
INSERT INTO pointers SELECT NULL FROM generate_series(1, 20000);
DELETE FROM pointers WHERE ctid::text !~ '7\\)';
CREATE TABLE chains (k int PRIMARY KEY, v int) WITH (fillfactor = 50, autovacuum_enabled = off);
INSERT INTO chains SELECT g, 0 FROM generate_series(1, 2000) g;
CREATE TABLE locked (k int PRIMARY KEY, v int);
INSERT INTO locked SELECT g, 0 FROM generate_series(1, 3000) g;
CREATE TABLE frozen (k int PRIMARY KEY, v text);
INSERT INTO frozen SELECT g, 'v' || g FROM generate_series(1, 8000) g;
CREATE TABLE visible (k int PRIMARY KEY, v text);
INSERT INTO visible SELECT g, 'v' || g FROM generate_series(1, 8000) g;
CREATE TABLE extended (k int PRIMARY KEY, v text);
INSERT INTO extended SELECT g, 'v' || g FROM generate_series(1, 500) g;
CREATE TABLE parted (k int, t text, PRIMARY KEY (k)) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (100) TO (1000) PARTITION BY HASH (k);
CREATE TABLE part_2a PARTITION OF part_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part_2b PARTITION OF part_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO parted SELECT g, (SELECT string_agg(md5((g * 1000 + h)::text), '') FROM generate_series(1, 120) h)
  FROM generate_series(1, 300) g;
CREATE MATERIALIZED VIEW seen AS SELECT k, md5(v) m, CASE WHEN k % 200 = 0 THEN repeat(md5(v), 1000) END r FROM visible;
CREATE UNIQUE INDEX seen_k ON seen (k);
CREATE MATERIALIZED VIEW unseen AS SELECT 1 AS one WITH NO DATA;
CREATE TABLE "A ""quoted"" näme" (k int PRIMARY KEY);
INSERT INTO "A ""quoted"" näme" SELECT generate_series(1, 100);
CREATE TABLE no_columns ();
INSERT INTO no_columns SELECT FROM generate_series(1, 1000);
GRANT SELECT ON narrow, wide TO regress_reader;
ALTER TABLE narrow REPLICA IDENTITY FULL;
ALTER TABLE wide REPLICA IDENTITY USING INDEX wide_pkey;
CLUSTER wide USING wide_pkey;
CREATE STATISTICS shapes.wide_stats ON k, c FROM wide;
SQL
	$node->safe_psql('postgres',
		'BEGIN; SAVEPOINT a; UPDATE shapes.narrow SET v = -1 WHERE k < 50; ROLLBACK TO a; DELETE FROM shapes.narrow WHERE k = 51; '
			. 'COMMIT; BEGIN; DELETE FROM shapes.narrow WHERE k BETWEEN 60 AND 70; ROLLBACK');
	$node->safe_psql('postgres', "UPDATE shapes.chains SET v = v + 1 WHERE k % $_ = 0") foreach 1 .. 5;
	$node->safe_psql('postgres',
		'BEGIN; SELECT count(*) FROM (SELECT FROM shapes.locked WHERE k < 400 FOR SHARE) x; COMMIT; BEGIN; SELECT count(*) FROM (SELECT '
			. 'FROM shapes.locked WHERE k BETWEEN 100 AND 800 FOR KEY SHARE) x; SAVEPOINT a; UPDATE shapes.locked SET v = 1 WHERE k '
				. 'BETWEEN 300 AND 600; COMMIT');
	{
		my @sharers = map { IndexMover::Session->new($node) } 1 .. 2;
		$_->run('BEGIN; SELECT count(*) FROM (SELECT FROM shapes.locked WHERE k BETWEEN 1000 AND 1500 FOR SHARE) x') foreach @sharers;
		$_->run('COMMIT'), $_->end foreach @sharers;
	}
	$node->safe_psql('postgres',
		'VACUUM (FREEZE, ANALYZE) shapes.frozen; VACUUM (ANALYZE) shapes.visible; VACUUM (TRUNCATE off) shapes.emptied; VACUUM '
			. 'shapes.pointers; VACUUM (ANALYZE) shapes.toasted; VACUUM (ANALYZE) shapes.wide; VACUUM shapes.seen; ANALYZE');
	$node->safe_psql('postgres',
		'UPDATE shapes.frozen SET v = v WHERE k % 500 = 0; BEGIN; SELECT count(*) FROM (SELECT FROM shapes.frozen WHERE k % 700 = 0 FOR '
			. 'SHARE) x; COMMIT; DELETE FROM shapes.visible WHERE k BETWEEN 2000 AND 2100');

	# blocks of zeros that an extension has left, when the server was down
	my $file = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('shapes.extended')");
	$node->stop;
	append_to_file($file, "\0" x (5 * $page_size));
	$node->start;
	is($node->safe_psql('postgres',
		'SELECT upper FROM page_header(get_raw_page(\'shapes.extended\', (pg_relation_size(\'shapes.extended\') / '
			. 'current_setting(\'block_size\')::int - 1)::int))'), '0', 'there is a tail of zeros');
	my $multis = $node->safe_psql('postgres',
		q{SELECT count(*) FROM generate_series(0, pg_relation_size('shapes.locked') / current_setting('block_size')::int - 1) b, }
			. q{heap_page_items(get_raw_page('shapes.locked', b::int)) WHERE t_infomask & 4096 <> 0});
	cmp_ok($multis, '>', 500, "there are $multis multixacts");

	my @tables = tables('shapes');
	foreach my $to ('regress_fast', faults('the shapes moved back') ? 'regress_slow' : ())
	{
		my $facts = facts('shapes');
		my $rows = rows_of($node, @tables);
		flush_both();
		my (%path, %kind);
		foreach (paths('shapes')) { my ($oid, $kind, $path) = split / /, $_, 3; ($path{$oid}, $kind{$oid}) = ($path, $kind); }
		my $kept = "${PostgreSQL::Test::Utils::tmp_check}/kept";
		mkdir $kept;
		foreach my $oid (keys %path)
		{
			unlink glob "$kept/$oid*";
			foreach my $suffix ('', '_vm', map { ".$_" } 1 .. 400)
			{
				my $from = $node->data_dir . "/$path{$oid}$suffix";
				last if $suffix =~ /\./ && !-e $from;
				copy($from, "$kept/$oid$suffix") if -e $from;
			}
		}
		my $answer = $node->safe_psql('postgres',
			"SELECT kind, status, count(*) FROM move_schema_tables('shapes', '$to') GROUP BY 1, 2 ORDER BY 1");
		unlike($answer, qr/\|(?!moved)[a-z]+\|/, "to $to: all moved")
			or diag $node->safe_psql('postgres', "SELECT name, status, detail FROM index_mover_history WHERE status <> 'moved'");
		note $answer;
		is(places('shapes'), $to, "all is in $to");
		is(facts('shapes'), $facts, "to $to: OIDs, statistics, frozen xids, privileges, replica identities unchanged");
		flush_both();
		my @different;
		my $blocks = 0;
		my @paths;
		foreach (paths('shapes'))
		{
			my ($oid, $kind, $path) = split / /, $_, 3;
			push @paths, $path;
			my $new = $node->data_dir . "/$path";
			$blocks += (-s $new) / $page_size;
			my @blocks = $kind eq 'i' ? different_files("$kept/$oid", $new, $page_size)
				: different_heap_files("$kept/$oid", $new, $page_size);
			my @maps = different_maps("$kept/$oid", $new, $page_size);
			push @different, "$oid ($kind): blocks @blocks, maps @maps" if @blocks || @maps;
			isnt($path, $path{$oid}, "$oid has another file") if $path eq $path{$oid};
		}
		is(join("\n", @different), '', "to $to: $blocks blocks and all visibility maps the same");
		same_map_on_ok($node, $standby, $page_size, "to $to, standby", @paths);
		is(rows_of($node, @tables), $rows, "to $to: the same rows in the same places");
		is(witnesses($node, @tables), '', "to $to: no witness against them");
		is(rows_of($standby, @tables), $rows, "to $to, standby: the same rows");
		files_ok($_, "to $to") foreach $node, $standby;
		leftovers_ok($node, "to $to", within => 5);
	}
	$node->safe_psql('postgres',
		'INSERT INTO shapes.narrow SELECT g, 1 FROM generate_series(100001, 100100) g; UPDATE shapes.toasted SET external = '
			. 'reverse(external); REFRESH MATERIALIZED VIEW CONCURRENTLY shapes.seen');
	$node->safe_psql('postgres', join '; ', map { "VACUUM (FREEZE) $_" } @tables);
	is(witnesses($node, @tables), '', 'written to, and frozen, after the moves: no witness against them');
	$node->safe_psql('postgres', 'SET client_min_messages = warning; DROP SCHEMA shapes CASCADE');
}

end_servers();
done_testing();
