# The oracles can fail: each of them is shown something that is wrong.  They
# judge core here, not our extension.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Copy qw(copy);
use IndexMover::Pages;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();

my $node = new_node('oracles', extension => 0);
make_zoo($node, 'zoo', 3000);
my $data = $node->data_dir;

# ---- what is asked without a psql is answered as by psql --------------------
foreach my $sql (
	"SELECT 1, NULL, 'a;b', \"x;\" FROM (SELECT true) t(\"x;\"); -- c; d\nSELECT \$\$e;f\$\$ /* ; */ || ';''g' ; ;",
	'SELECT 1, NULL, \'it\'\'s;\', $x$a;$$b$x$, -1 - -1 FROM generate_series(1, 3); SELECT WHERE false; SELECT \'\'',
	"CREATE TEMP TABLE asked (i int); INSERT INTO asked VALUES (1) RETURNING i;\nCREATE RULE r AS ON DELETE TO asked DO (SELECT 7; "
		. "SELECT 8); BEGIN; SELECT count(*) FROM asked; COMMIT",
	"SELECT 'first'; DO 'BEGIN RAISE NOTICE \$x\$;\$x\$; END'; VACUUM zoo; SELECT repeat('long', 30000)",
	'SHOW application_name; SELECT usename, datname, client_addr FROM pg_stat_activity WHERE pid = pg_backend_pid()')
{
	is($node->safe_psql('postgres', $sql), scalar(($node->psql('postgres', $sql))[1]), 'as by psql: ' . ($sql =~ /(.*)/)[0]);
}
foreach my $case ([ 'SELECT 1; SELECT 1 / 0; SELECT 2', qr/^error running SQL: 'psql:<stdin>:1: ERROR:  division by zero\n/ ],
	[ 'SELECT pg_terminate_backend(pg_backend_pid())', qr/FATAL:  terminating connection due to administrator command\n/ ])
{
	ok(!eval { $node->safe_psql('postgres', $case->[0]); 1 }, "an error ends $case->[0]");
	like($@, $case->[1], 'the error is told');
}
ok(!eval { $node->safe_psql('nosuch', 'SELECT 1'); 1 }, 'so does a database that is not there');
like($@, qr/FATAL:  database "nosuch" does not exist/, 'the missing database is told');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"), '1',
	'and who has asked has gone');

# ---- all well -------------------------------------------------------------
$node->safe_psql('postgres',
	"SELECT oracle.remember_keys('zoo'); SELECT oracle.remember_metadata('zoo')");
my $dump = dump_schema($node);
$node->safe_psql('postgres', 'REINDEX (TABLESPACE regress_fast) TABLE CONCURRENTLY zoo');
all_right($node, 'zoo', 'after REINDEX');
dump_ok($node, $dump, 'after REINDEX');
is($node->safe_psql('postgres',
		"SELECT count(*) FROM pg_index WHERE indrelid = 'zoo'::regclass AND NOT indisvalid"),
	'0', 'the indexes hidden by the lookup are back');
cmp_ok($node->safe_psql('postgres',
		"SELECT count(DISTINCT attribute) FROM oracle.metadata('zoo')"),
	'>=', 30, 'at least 30 attributes are compared');

is($node->safe_psql('postgres', "SELECT way, keys, missing + extra + wrong_key FROM oracle.lookup('zoo_brin', ranges => 20)"),
	'bitmap scan|20|0', 'a BRIN index, by ranges');
is($node->safe_psql('postgres', "SELECT way, keys, missing + extra + wrong_key FROM oracle.lookup('zoo_txt') ORDER BY 1"),
	"bitmap scan|1009|0\nfull scan|0|0\nindex scan|1009|0\nindex-only scan|1009|0", 'a btree, in each way');

# ---- lookup: a stale copy of each index ----------------------------------
# What a copy without catch-up would be: the file of before, while rows were
# deleted, their slots reused by others, and keys changed.
my @files = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', <<SQL);
SELECT c.relname, pg_relation_filepath(c.oid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = 'zoo'::regclass ORDER BY 1
SQL
$node->stop;
copy("$data/$_->[1]", "$data/$_->[1].stale") for @files;
$node->start;
$node->safe_psql('postgres', <<SQL);
DELETE FROM zoo WHERE id % 3 = 0;
VACUUM zoo;
INSERT INTO zoo
SELECT g, g % 97, 'other ' || g % 1009, g, point(g % 71 + 1000, g % 53), int4range(g, g + 10),
       ARRAY[g % 31 + 1000, g % 7], to_tsvector('simple', 'new' || g % 211),
       jsonb_build_object('k', g % 101 + 1000), CASE WHEN g % 2 = 0 THEN g % 50 END
  FROM generate_series(100001, 101000) g;
SQL
verdict_ok($node, 'zoo', 'after changes');
$node->stop;
copy("$data/$_->[1]", "$data/$_->[1].good") for @files;

copy("$data/$_->[1].stale", "$data/$_->[1]") for @files;
$node->start;
my $verdict = $node->safe_psql('postgres', "SELECT oracle.verdict('zoo', 300)");
like($verdict, qr/^0 right;/, 'the verdict on a table full of stale indexes');
for my $index (map { $_->[0] } @files)
{
	my ($rc, $out, $err) = $node->psql('postgres',
		"SELECT sum(missing), sum(extra), sum(wrong_key) FROM oracle.lookup('$index')");
	note "stale $index: ", $rc ? $err : $out;
	ok($rc != 0 || $out =~ /[1-9]/, "lookup sees a stale copy of $index");
	like($verdict, qr/; public\.$index: /, "so does the verdict, which names $index");
}
cmp_ok($node->safe_psql('postgres', "SELECT sum(missing) FROM oracle.lookup('zoo_brin', ranges => 20)"),
	'>', 0, 'so does a lookup by ranges in a BRIN index');
$node->stop;
copy("$data/$_->[1].good", "$data/$_->[1]") for @files;

# ---- lookup: only dangling pointers, which amcheck does not see ----------
# Lost deletions alone: in a stale file the new rows' entries are put by hand,
# by inserting them again as an UPDATE of everything would do.
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE TABLE dangling (i int, s text) WITH (fillfactor = 100);
INSERT INTO dangling SELECT g, 'old ' || g FROM generate_series(1, 2000) g;
CREATE INDEX dangling_s ON dangling (s);
VACUUM ANALYZE dangling;
SELECT oracle.remember_keys('dangling');
SQL
my $path = $node->safe_psql('postgres', "SELECT pg_relation_filepath('dangling_s')");
$node->stop;
copy("$data/$path", "$data/$path.stale");
$node->start;
$node->safe_psql('postgres', <<SQL);
DELETE FROM dangling WHERE i BETWEEN 1001 AND 1400;
VACUUM dangling;
SQL
$node->stop;
copy("$data/$path.stale", "$data/$path");
$node->start;
$node->safe_psql('postgres', "INSERT INTO dangling SELECT g, 'new ' || g FROM generate_series(1, 400) g");
is($node->safe_psql('postgres', "SELECT oracle.structure('dangling_s')"),
	'', 'amcheck is content with an index that points to reused row slots');
my $found = $node->safe_psql('postgres',
	"SELECT missing, extra > 0 OR wrong_key > 0 FROM oracle.lookup('dangling_s') WHERE way = 'index scan'");
is($found, '0|t', 'the lookup is not');
$node->safe_psql('postgres', 'DROP TABLE oracle."old dangling_s"');
is($node->safe_psql('postgres', "SELECT way, missing, extra + wrong_key > 0 FROM oracle.lookup('dangling_s') ORDER BY 1"),
	"bitmap scan|0|f\nfull scan|0|t\nindex scan|0|f\nindex-only scan|0|f",
	'where nothing remembers the keys of before, reading all of the index tells');

# ---- lookup: void runs are errors ----------------------------------------
my ($rc, $out, $err) = $node->psql('postgres', <<SQL);
CREATE TABLE nothing_fits (p int4range, EXCLUDE USING gist (p WITH &&));
CREATE INDEX nothing_fits_i ON nothing_fits USING gist (p) WHERE p && int4range(1, 2) AND random() < 2;
SQL
isnt($rc, 0, 'volatile predicates are refused by core');
($rc, $out, $err) = $node->psql('postgres',
	"UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'zoo_txt'::regclass; SELECT * FROM oracle.lookup('zoo_txt')");
like($err, qr/is void/, 'an index that the planner does not use makes the run void');
$node->safe_psql('postgres',
	"UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'zoo_txt'::regclass");

# ---- amcheck --------------------------------------------------------------
my $page_size = block_size($node);

# Overwrite so many bytes of a file; its server has to be stopped.
sub overwrite
{
	my ($path, $offset, $bytes) = @_;
	open(my $fh, '+<:raw', $path) or die "$path: $!";
	seek($fh, $offset, 0);
	print $fh $bytes;
	close $fh;
	return;
}

my ($amcheck) = $node->safe_psql('postgres', "SELECT extversion FROM pg_extension WHERE extname = 'amcheck'") =~ /^1\.(\d+)$/;
# (gin_index_check() reads the special space of such a page before it looks whether there is
# one, which ends a server with assertions)
my $asserts = $node->safe_psql('postgres', 'SHOW debug_assertions') eq 'on';
foreach my $index ('zoo_txt', $amcheck >= 5 && !$asserts ? 'zoo_arr' : ())
{
	$path = $node->safe_psql('postgres', "SELECT pg_relation_filepath('$index')");
	$node->stop;
	overwrite("$data/$path", $page_size, "\0" x $page_size);
	$node->start;
	($rc, $out, $err) = $node->psql('postgres', "SELECT oracle.structure('$index')");
	isnt($rc, 0, "amcheck sees a zeroed page of $index: $err");
	$node->safe_psql('postgres', "REINDEX INDEX $index");
	($rc, $out, $err) = $node->psql('postgres', "SELECT oracle.structure('$index')");
	is($rc, 0, "and is content with $index rebuilt: $err");
}
SKIP:
{
	skip 'amcheck looks for keys that are there twice from PostgreSQL 17 on', 1 if $amcheck < 4;
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE twice (i int);
INSERT INTO twice SELECT g % 300 FROM generate_series(1, 301) g;
CREATE INDEX twice_i ON twice (i);
UPDATE pg_index SET indisunique = true WHERE indexrelid = 'twice_i'::regclass;
SQL
	($rc, $out, $err) = $node->psql('postgres', "SELECT oracle.structure('twice_i')");
	like($err, qr/uniqueness is violated/, 'amcheck sees a key that is twice in a unique index');
	$node->safe_psql('postgres', 'DROP TABLE twice');
}

# ---- files ----------------------------------------------------------------
files_ok($node, 'before');
my $dir = $node->safe_psql('postgres',
	"SELECT regexp_replace(pg_relation_filepath('zoo_txt'), '[^/]+\$', '')");
append_to_file("$data/${dir}4000000000", 'x' x 8192);
append_to_file("$data/${dir}4000000001_fsm.2", 'x' x 100);
is($node->safe_psql('postgres', 'SELECT * FROM oracle.files() ORDER BY 2'),
	"orphan|${dir}4000000000|8192\norphan|${dir}4000000001_fsm.2|100", 'orphaned files are seen');
unlink "$data/${dir}4000000000", "$data/${dir}4000000001_fsm.2";
$path = $node->safe_psql('postgres', "CREATE TABLE gone (); SELECT pg_relation_filepath('gone')");
unlink "$data/$path";
is($node->safe_psql('postgres', 'SELECT problem, path FROM oracle.files()'),
	"missing|$path", 'a missing file is seen');
append_to_file("$data/$path", '');
$node->safe_psql('postgres', 'DROP TABLE gone');
like($node->safe_psql('postgres',
	"BEGIN; UPDATE pg_class SET reltablespace = 4000000002 WHERE oid = 'zoo_txt'::regclass; SELECT problem FROM oracle.files(); ROLLBACK"),
	qr/^no such tablespace$/m, 'a tablespace that does not exist is seen');
files_ok($node, 'after');

# ---- leftovers ------------------------------------------------------------
leftovers_ok($node, 'before');
$node->psql('postgres', <<SQL);
CREATE TABLE twice (i int);
INSERT INTO twice VALUES (1), (1);
CREATE UNIQUE INDEX CONCURRENTLY twice_i ON twice (i);
SQL
is($node->safe_psql('postgres', 'SELECT * FROM oracle.leftovers()'),
	'index not valid|public.twice_i', 'an invalid index is seen');
$node->safe_psql('postgres', 'DROP TABLE twice; CREATE TABLE a (i int); CREATE INDEX a_i_ccnew ON a (i)');
is($node->safe_psql('postgres', 'SELECT * FROM oracle.leftovers()'),
	'name|public.a_i_ccnew', 'a valid index with the name of a leftover is seen');
$node->safe_psql('postgres', 'DROP TABLE a');
is($node->safe_psql('postgres', 'SELECT pg_advisory_lock(1); SELECT kind FROM oracle.leftovers()'),
	"\nlock", 'an advisory lock is seen');
$node->safe_psql('postgres', "SELECT pg_create_physical_replication_slot('index_mover_1')");
is($node->safe_psql('postgres', 'SELECT * FROM oracle.leftovers()'),
	'replication slot|index_mover_1', 'a replication slot is seen');
$node->safe_psql('postgres', "SELECT pg_drop_replication_slot('index_mover_1')");

# What a move has while it is on its way, which it must not have afterwards.
$node->safe_psql('postgres', 'SET client_min_messages = warning; CREATE EXTENSION index_mover CASCADE');
make_gate($node, 'gate', 42);
$node->safe_psql('postgres', 'CREATE TABLE gated (i int); INSERT INTO gated VALUES (1); CREATE INDEX gated_i ON gated (gate(i))');
leftovers_ok($node, 'before a move');
my $gate = $node->background_psql('postgres', on_error_die => 1);
$gate->query_safe('SELECT pg_advisory_lock(42)');
my $job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('gated_i', 'regress_fast', 'rebuild', wait => false)");
wait_for_phase($node, 'building index');
is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT kind, ', ' ORDER BY kind) FROM oracle.leftovers('0 s')"),
	'build, history, index not valid, ledger row, lock, name, process, progress', 'a move on its way is seen in each place');
$gate->query_safe('SELECT pg_advisory_unlock(42)');
$gate->quit;
wait_for_job_end($node, $job);
wait_for_no_worker($node);
leftovers_ok($node, 'after the move', within => 5);
$node->safe_psql('postgres', 'DROP TABLE gated; DROP FUNCTION gate; DROP EXTENSION index_mover');

# ---- a table apart from its TOAST table -------------------------------------
# in each way; each test file asks at its end, and before it stops a server
$node->safe_psql('postgres', 'CREATE TABLE mixed (t text) TABLESPACE regress_slow');
is(apart($node, 'postgres'), '', 'TOAST: a table is whole');
foreach my $case ([ qw(slow slow fast) ], [ qw(slow fast slow) ], [ qw(fast slow slow) ])
{
	$node->safe_psql('postgres', "CALL oracle.mix('mixed', " . join(', ', map { "'regress_$_'" } @$case) . ')');
	my $parts = grep { $_ ne $case->[0] } @$case;
	is(scalar(() = apart($node, 'postgres') =~ /^mixed\|/mg), $parts, "TOAST: @$case is noticed");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM oracle.leftovers('0 s') WHERE kind = 'apart from its table'}), $parts,
		'TOAST: it is noticed as a leftover, too');
}
$node->safe_psql('postgres', 'DROP TABLE mixed');

# ---- metadata and dump ----------------------------------------------------
# Each change is made to one table, seen by the oracle, and rolled back.
my %change = (
	'owner' => 'CREATE ROLE regress_o; ALTER TABLE zoo OWNER TO regress_o',
	'schema' => 'CREATE SCHEMA other; ALTER TABLE zoo SET SCHEMA other; SET search_path = other',
	'options' => 'ALTER INDEX zoo_txt SET (fillfactor = 50)',
	'comment' => "COMMENT ON INDEX zoo_txt IS 'another'",
	'clustered' => 'ALTER TABLE zoo CLUSTER ON zoo_txt',
	'replica identity' => 'ALTER TABLE zoo REPLICA IDENTITY DEFAULT',
	'column names, types, statistics targets' => 'ALTER INDEX zoo_expr ALTER COLUMN 1 SET STATISTICS 5',
	'statistics of expressions' => "DELETE FROM pg_statistic WHERE starelid = 'zoo_expr'::regclass",
	'valid, ready, live' => "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'zoo_txt'::regclass",
	'immediate' => "UPDATE pg_index SET indimmediate = false WHERE indexrelid = 'zoo_num_key'::regclass",
	'unique' => 'DROP INDEX zoo_incl; CREATE INDEX zoo_incl ON zoo (id) INCLUDE (grp) WITH (fillfactor = 80)',
	'predicate' => 'DROP INDEX zoo_part; CREATE INDEX zoo_part ON zoo (grp) WHERE maybe > 1',
	'collations' => 'DROP INDEX zoo_txt; CREATE INDEX zoo_txt ON zoo (txt COLLATE "POSIX" DESC NULLS LAST)',
	'column options' => 'DROP INDEX zoo_txt; CREATE INDEX zoo_txt ON zoo (txt COLLATE "C")',
	'depended on by' => "DELETE FROM pg_depend WHERE refobjid = 'zoo_incl'::regclass; INSERT INTO pg_depend VALUES "
		. "('pg_class'::regclass, 'oracle.old_metadata'::regclass, 0, 'pg_class'::regclass, 'zoo_incl'::regclass, 0, 'n')",
	'depends on' => "DELETE FROM pg_depend WHERE objid = 'zoo_expr'::regclass",
	'constraints' => 'ALTER TABLE zoo RENAME CONSTRAINT zoo_num_key TO zoo_num_key2',
	'scans' => "SELECT pg_stat_force_next_flush(); UPDATE oracle.old_metadata SET value = '1000000' WHERE attribute = 'scans' AND "
		. "index_name = 'zoo_txt'",
);
$node->safe_psql('postgres', 'ANALYZE zoo');
for my $attribute (sort keys %change)
{
	my $seen = $node->safe_psql('postgres', <<SQL);
SET client_min_messages = error;
SELECT oracle.remember_metadata('zoo');
BEGIN;
$change{$attribute};
SELECT attribute FROM oracle.metadata_changes('zoo') GROUP BY 1;
ROLLBACK;
SQL
	# The table was named by its name, so after SET SCHEMA it is the same.
	like($seen, qr/^\Q$attribute\E$/m, "a change of \"$attribute\" is seen");
}
$dump = dump_schema($node);
$node->safe_psql('postgres', 'ALTER INDEX zoo_txt SET TABLESPACE regress_slow');
dump_ok($node, $dump, 'another tablespace');
$node->safe_psql('postgres', "COMMENT ON INDEX zoo_txt IS 'changed'");
isnt(dump_schema($node), $dump, 'a change of a comment is seen in the dump');

# ---- block compare -----------------------------------------------------------
# Files at rest, and copies of them that are not quite the same.
$node->safe_psql('postgres', 'REINDEX TABLE zoo');
@files = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', <<SQL);
SELECT c.relname, pg_relation_filepath(c.oid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = 'zoo'::regclass ORDER BY 1
SQL
$node->stop;

# What the compare says of a file of which some bytes were changed.
sub changed
{
	my ($file, $options, @changes) = @_;
	my @pages = pages_in_file($file, $page_size);
	foreach my $change (@changes)
	{
		my ($block, $offset, $bits) = @$change;
		substr($pages[$block], $offset, length $bits) ^= $bits;
	}
	return join ', ', different_pages([ pages_in_file($file, $page_size) ], \@pages, %$options);
}

my %file = map { $_->[0] => "$data/$_->[1]" } @files;
foreach my $index (sort keys %file)
{
	my $copy = "$file{$index}.copy";
	copy($file{$index}, $copy) or die $!;
	same_files_ok($file{$index}, $copy, $page_size, "$index and its copy");
	my $last = (-s $copy) / $page_size - 1;
	is(changed($file{$index}, { copy => 1 }, [ $last, $page_size - 40, "\1" ]), $last, "one bit of the last page of $index is seen");
	# each has its own, and each sees them where they count
	is(changed($file{$index}, { copy => 1 }, map { [ $_, 0, "\1" x 10 ] } 0 .. $last), '',
		"$index: LSN and checksum of a copy do not count");
	is(changed($file{$index}, {}, [ $last, 0, "\1" ]), $last, "$index: the LSN of a standby's page does");
	is(changed($file{$index}, {}, [ $last, 8, "\1\1" ]), '', "$index: its checksum does not");
	truncate($copy, $last * $page_size) or die $!;
	is(join(', ', different_files($file{$index}, $copy, $page_size)), $last, "a missing tail of $index is seen");
	unlink $copy;
}
my @swapped = pages_in_file($file{zoo_txt}, $page_size);
@swapped[ 1, 2 ] = @swapped[ 2, 1 ];
is(join(', ', different_pages([ pages_in_file($file{zoo_txt}, $page_size) ], \@swapped, copy => 1)), '1, 2',
	'two blocks that have changed places are seen');

# Hint bits: a line pointer is marked as dead, and the page as one that has such;
# where they are no hints, the same bits count.
my $dead = pack 'L', 2 << 15;
foreach my $case ([ 'zoo_txt', 0x40 ], [ 'zoo_hash', 0x80 ], [ 'zoo_rng', 0x10 ], [ 'zoo_arr', 0x40, 1 ], [ 'zoo_sp', 0x40, 1 ])
{
	my ($index, $flag, $counts) = @$case;
	# the last line pointer (a btree page's first is another thing) of the first page behind the metapage that has any
	my @ends = map { unpack 'S', substr $_, 12, 2 } pages_in_file($file{$index}, $page_size);
	my ($block) = grep { $ends[$_] > 24 } 1 .. $#ends;
	my $pointer = $ends[$block] - 4;
	my @hints = ([ $block, $pointer, $dead ], [ $block, $page_size - 4, pack 'S', $flag ]);
	is(changed($file{$index}, { copy => 1 }, @hints), $counts ? $block : '', $counts ? "$index has no hint bits"
		: "$index: hint bits of a copy do not count");
	is(changed($file{$index}, {}, @hints), $block, "$index: those of a standby's page do");
	is(changed($file{$index}, { copy => 1 }, @hints, [ $block, $pointer, "\1" ]), $block, "$index: where a line pointer points counts");
}

# What is between line pointers and tuples: a copy may have zeros in its place, where
# the access method keeps nothing there.
foreach my $case ([ 'zoo_txt', '' ], [ 'zoo_rng', '' ], [ 'zoo_hash', 1 ], [ 'zoo_arr', 1 ], [ 'zoo_sp', 1 ])
{
	my ($index, $counts) = @$case;
	my @pages = pages_in_file($file{$index}, $page_size);
	my ($block) = grep { my ($lower, $upper) = unpack 'SS', substr $pages[$_], 12, 4; $lower >= 24 && $upper > $lower + 8 } 1 .. $#pages;
	my ($lower, $upper) = unpack 'SS', substr $pages[$block], 12, 4;
	my ($clean, $garbage) = ([@pages], [@pages]);
	substr($clean->[$block], $lower, $upper - $lower) = "\0" x ($upper - $lower);
	substr($garbage->[$block], $lower, $upper - $lower) = "\1" x ($upper - $lower);
	my @verdicts = map { join ', ', different_pages(@$_) } [ $garbage, $clean, copy => 1 ], [ $clean, $garbage, copy => 1 ],
		[ $garbage, $clean ];
	is_deeply(\@verdicts, [ $counts ? $block : '', $block, $block ], "$index: garbage in a hole counts, but for zeros in its place"
		. ($counts ? ', which count, too' : ''));
}

# SP-GiST's empty pages, but not an empty page of another access method
foreach my $case ([ 0xFF82, '', 'SP-GiST' ], [ 0xFF81, '3', 'GiST' ])
{
	my ($whose, $verdict, $name) = @$case;
	my @zeros = ("\0" x $page_size) x 4;
	my @empty = @zeros;
	substr($empty[3], 12, 6) = pack 'SSS', 24, $page_size - 8, $page_size - 8;
	substr($empty[3], -2) = pack 'S', $whose;
	is(join(', ', different_pages(\@zeros, \@empty, copy => 1)), $verdict, "an empty page of $name in place of zeros");
	is(join(', ', different_pages(\@zeros, \@empty)), '3', "an empty page of $name on a standby alone");
}

done_testing();
