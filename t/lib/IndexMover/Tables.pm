# IndexMover::Tables
#   Tables with a TOAST table to be moved, and what must be true of them: a twin that
#   is never moved gets the same changes.
#
#   make_table($node, 't', 3000);       # and the twin t_twin
#   change_table($node, 't', 1);        # updates, HOT or not, of TOAST, locks, deletes
#   my $at = places_of_table($node, 't');    # 'regress_slow regress_slow regress_slow', all_at('regress_slow')
#   table_ok($node, 't', 'name');
#   same_table_ok($primary, $standby, 't', 'name');    # byte by byte, but for hints
package IndexMover::Tables;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Test;
use List::Util ();
use Test::More;

our @EXPORT = qw(make_table change_table freeze_table places_of_table all_at files_on_record table_ok same_table_ok);

# A table of this many rows, four on a page, in regress_slow, each fifth of them with a
# value in the TOAST table, and indexes that stay.  Its twin gets the same changes.
sub make_table
{
	my ($node, $table, $rows, %options) = @_;
	my $db = $options{dbname} || 'postgres';
	$node->safe_psql($db, <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_visibility WITH SCHEMA oracle;
CREATE EXTENSION IF NOT EXISTS pageinspect;
SQL
	foreach my $one ($table, "${table}_twin")
	{
		$node->safe_psql($db, <<SQL);
CREATE TABLE $one (id int PRIMARY KEY, v int NOT NULL, filler text NOT NULL, big text)
	WITH (fillfactor = 80) TABLESPACE regress_slow;
ALTER TABLE $one ALTER filler SET STORAGE plain;
ALTER TABLE $one ALTER big SET STORAGE external;
INSERT INTO $one SELECT g, g, repeat(md5(g::text), 50), CASE WHEN g % 5 = 0 THEN repeat(md5(g::text), 120) END
  FROM generate_series(1, $rows) g;
CREATE INDEX ${one}_v ON $one (v);
SQL
		$node->safe_psql($db, "VACUUM ANALYZE $one");
	}
	$node->safe_psql($db, <<SQL);
CREATE TABLE oracle.${table}_class AS SELECT oid, to_jsonb(c) AS row, relfrozenxid, relminmxid
  FROM pg_class c WHERE '$table'::regclass IN (oid, (SELECT m.oid FROM pg_class m WHERE m.reltoastrelid = c.oid));
SELECT oracle.remember_metadata('$table');
SQL
	return;
}

# Changes of all kinds, of other rows each time, and VACUUM in between.
sub change_table
{
	my ($node, $table, $n, %options) = @_;
	my $db = $options{dbname} || 'postgres';
	foreach my $one ($table, "${table}_twin")
	{
		$node->safe_psql($db, <<SQL);
BEGIN;
UPDATE $one SET filler = md5(filler || $n) WHERE id % 97 = $n % 97;
UPDATE $one SET v = v + 1 WHERE id % 101 = $n % 101;
UPDATE $one SET big = repeat(md5(big || $n), 120) WHERE id % 5 = 0 AND id % 13 = $n % 13;
DELETE FROM $one WHERE id % 211 = $n % 211;
-- (so that hundreds of changes leave a table that takes more than one round)
INSERT INTO $one SELECT g, g, repeat(md5(g::text), 50), CASE WHEN g % 5 = 0 THEN repeat(md5(g::text), 120) END
  FROM generate_series(1, (SELECT max(id) FROM $one WHERE id <= 1000000)) g WHERE g % 211 = ($n - 3) % 211 ON CONFLICT DO NOTHING;
DELETE FROM $one WHERE id BETWEEN 1000001 AND 1000000 + ($n - 3) * 1000;
INSERT INTO $one SELECT 1000000 + $n * 1000 + g, g, repeat(md5(g::text), 50), repeat('x', 3000) FROM generate_series(1, 20) g;
SAVEPOINT s;
UPDATE $one SET v = -1 WHERE id % 17 = $n % 17;
ROLLBACK TO s;
-- key share and an update of what is no key, by two transactions: a multixact
SELECT count(*) FROM (SELECT FROM $one WHERE id % 103 = $n % 103 FOR KEY SHARE) l;
SAVEPOINT u;
UPDATE $one SET v = v + 1 WHERE id % 103 = $n % 103;
COMMIT;
SQL
	}
	$node->safe_psql($db, "VACUUM $table") if $n % 2;
	return;
}

sub freeze_table
{
	my ($node, $table, %options) = @_;
	$node->safe_psql($options{dbname} || 'postgres', "VACUUM FREEZE $table");
	return;
}

# The tablespaces of the table, its TOAST table, and the index of that.
sub places_of_table
{
	my ($node, $table, %options) = @_;
	return $node->safe_psql($options{dbname} || 'postgres', <<SQL);
SELECT string_agg(t.spcname, ' ' ORDER BY p.n)
  FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid
 CROSS JOIN LATERAL (VALUES (1, c.oid), (2, c.reltoastrelid), (3, i.indexrelid)) p(n, oid)
  JOIN pg_class r ON r.oid = p.oid JOIN pg_tablespace t ON t.oid = r.reltablespace
 WHERE c.oid = '$table'::regclass
SQL
}

# The same if all three are in one place.
sub all_at { return join ' ', ($_[0]) x 3; }

# How many files of a move of a table are on record when it is at this point, for the
# n-th time.
sub files_on_record
{
	my ($point, $n) = @_;
	return $n if $point =~ /^copy-(?!again|buffered-round)/;
	return 3 unless $point =~ /^old-file/;
	return 3 - ($point eq 'old-file-dropped' ? $n : $n - 1);
}

my %by = (
	'sequential scan' => [ 'SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SET enable_seqscan '
		. '= on', 't' ],
	'index scan' => [ 'SET enable_indexscan = on; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SET enable_seqscan = off',
		't' ],
	'index-only scan' => [ 'SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = on; SET enable_seqscan = '
		. 'off', 'id' ]);

# The rows are those of the twin, in each way to read them; what the visibility map says
# is true; amcheck finds nothing in the table, its TOAST table and the indexes; and the
# catalogs say what they said.  On a standby, no catalogs are compared.
sub table_ok
{
	my ($node, $table, $name, %options) = @_;
	my $sql = '';
	foreach my $way (sort keys %by)
	{
		my ($settings, $columns) = @{ $by{$way} };
		my $sum = "SELECT ROW(count(*), sum(hashtextextended(($columns)::text, 0))) FROM";
		$sql .= "$settings; SELECT '$way', ($sum $table t WHERE id > 0) = ($sum ${table}_twin t WHERE id > 0);\n";
	}
	my $with_toast = "(VALUES ('$table'::regclass), ((SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '$table'::regclass))) r(r)";
	$sql .= <<SQL;
SELECT 'not visible', r, v FROM $with_toast CROSS JOIN LATERAL oracle.pg_check_visible(r) v;
SELECT 'not frozen', r, v FROM $with_toast CROSS JOIN LATERAL oracle.pg_check_frozen(r) v;
SELECT 'damaged', r, v FROM $with_toast CROSS JOIN LATERAL oracle.verify_heapam(r, check_toast => r = '$table'::regclass) v;
SELECT count(oracle.bt_index_check(indexrelid, true)) FROM pg_index WHERE indrelid IN (SELECT r FROM $with_toast);
SQL
	$sql .= <<SQL unless $options{standby};
SELECT c.oid::regclass, k.key, o.row->k.key, to_jsonb(c)->k.key
  FROM oracle.${table}_class o LEFT JOIN pg_class c ON c.oid = o.oid
 CROSS JOIN LATERAL jsonb_object_keys(o.row) k(key)
 WHERE k.key NOT IN ('relfilenode', 'reltablespace', 'relpages', 'reltuples', 'relallvisible', 'relallfrozen', 'relfrozenxid', 'relminmxid')
   AND o.row->k.key IS DISTINCT FROM to_jsonb(c)->k.key
    OR age(c.relfrozenxid) > age(o.relfrozenxid) OR mxid_age(c.relminmxid) > mxid_age(o.relminmxid);
SELECT * FROM oracle.metadata_changes('$table') WHERE attribute <> 'scans';
SQL
	my ($rc, $out, $err) = $node->psql($options{dbname} || 'postgres', $sql);
	return is("$rc $out", join("\n", '0 index scan|t', 'index-only scan|t', 'sequential scan|t', '3'),
		"$name: the twin's rows by each kind of scan, visibility map, amcheck, catalogs") || (diag($err), 0);
}

# A page of a table without what a standby is not told: checksum, hints, numbers of
# commands, unused space; and without LSN, which a page has of its own there if the map
# was set.  Of another fork with everything but LSN and checksum.
sub masked
{
	my ($page, $fork) = @_;
	return $page if $page eq '';
	substr($page, 0, 10) = "\0" x 10;
	return $page if $fork ne 'main' || $page !~ /[^\0]/;
	# pd_flags, PD_HAS_FREE_LINES and PD_PAGE_FULL; pd_prune_xid
	substr($page, 10, 2) = pack 'S', unpack('S', substr $page, 10, 2) & ~3;
	substr($page, 20, 4) = "\0" x 4;
	my ($lower, $upper) = unpack 'SS', substr $page, 12, 4;
	substr($page, $lower, $upper - $lower) = "\0" x ($upper - $lower);
	foreach my $pointer (unpack 'L*', substr $page, 24, $lower - 24)
	{
		my ($offset, $state, $length) = ($pointer & 0x7fff, $pointer >> 15 & 3, $pointer >> 17);
		next unless $state == 1 && $length >= 23;
		# t_infomask: COMBOCID; XMAX_COMMITTED, XMAX_INVALID; those of xmin, unless both are set
		my $mask = unpack 'S', substr $page, $offset + 20, 2;
		my $hints = ($mask & 0x0300) == 0x0300 ? 0x0c20 : 0x0f20;
		substr($page, $offset + 20, 2) = pack 'S', $mask & ~$hints;
		substr($page, $offset + 8, 4) = "\0" x 4;
		substr($page, $offset + $length, -$length % 8) = "\0" x (-$length % 8);
	}
	return $page;
}

# What the two servers have of a fork, differs in these blocks.
sub different_blocks
{
	my ($one, $other, $relation, $fork, $db, $number) = @_;
	my $sql = "SELECT encode(get_raw_page('$relation', '$fork', b::int), 'hex') FROM generate_series(0, pg_relation_size('$relation', "
		. "'$fork') / current_setting('block_size')::int - 1) b ORDER BY b";
	my @pages = map { [ map { pack 'H*', $_ } split /\n/, $_->safe_psql($db, $sql) ] } $one, $other;
	my @different;
	foreach my $block (0 .. List::Util::max($#{ $pages[0] }, $#{ $pages[1] }))
	{
		my @pair = map { $_->[$block] } @pages;
		# a map may end in zeros that are not logged
		next if join('', grep { defined } @pair) !~ /[^\0]/;
		$$number++;
		next if defined $pair[0] && defined $pair[1]
		  && ($pair[0] eq $pair[1] || masked($pair[0], $fork) eq masked($pair[1], $fork));
		@pair = map { masked($_ // '', $fork) } @pair;
		push @different, "$relation $fork $block";
		# where, to say more than that
		my ($at) = grep { substr($pair[0], $_, 1) ne substr($pair[1], $_, 1) } 0 .. List::Util::min(map { length } @pair) - 1;
		note "$different[-1], at $at: ", join ' and ', map { unpack 'H*', substr $_, $at & ~3, 24 } @pair if defined $at;
	}
	return @different;
}

# The standby, which has replayed all, has the same table, visibility map included, and
# the same of the TOAST table and its index.
sub same_table_ok
{
	my ($primary, $standby, $table, $name, %options) = @_;
	my $db = $options{dbname} || 'postgres';
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert')) unless $options{caught_up};
	my ($toast) = $primary->safe_psql($db, "SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '$table'::regclass");
	my $number = 0;
	my @different = map { different_blocks($primary, $standby, $_->[0], $_->[1], $db, \$number) }
	  [ $table, 'main' ], [ $table, 'vm' ], [ $toast, 'main' ], [ $toast, 'vm' ];
	is(join(', ', @different), '', "$name: the same $number pages of table, TOAST table and maps");
	cmp_ok($number, '>', 10, "$name: there is something to compare");
	$IndexMover::Oracle::count{'blocks compared with those of a copy or a standby'} += $number;
	return;
}

1;
