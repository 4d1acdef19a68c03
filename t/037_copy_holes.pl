# The bytes between pd_lower and pd_upper: what of them a copy leaves out of the WAL
# is the same in the new file, on a standby, and in a file that recovery makes again
# from the WAL alone; and what an access method may keep there survives.
#
# Fault (storage): unused space in pages that is not logged: on a standby, after recovery
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Pages;
use IndexMover::Places;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $node = new_node('holes', streaming => 1, conf => <<CONF);
checkpoint_timeout = 1h
max_wal_size = 4GB
wal_keep_size = 2GB
autovacuum = off
CONF
my $page_size = block_size($node);
my %definition = (
	btree  => 'btree (t)',
	hash   => 'hash (t)',
	gin    => 'gin (a) WITH (fastupdate = off)',
	gist   => 'gist (p)',
	spgist => 'spgist (t)',
	brin   => 'brin (t) WITH (pages_per_range = 1)');
my @methods = sort keys %definition;
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pageinspect;
CREATE TABLE h (i int, t text, a int[], p point);
INSERT INTO h SELECT g, md5(g::text), ARRAY[g % 3, 10 + g % 4000], point(g % 317, g / 317) FROM generate_series(1, 20000) g;
SQL
$node->safe_psql('postgres', "CREATE INDEX h_$_ ON h USING $definition{$_}") foreach @methods;
# what deletions and insertions leave behind in holes
$node->safe_psql('postgres', <<SQL);
INSERT INTO h SELECT g, md5(g::text), ARRAY[g % 3, 10 + g % 4000], point(g % 317, g / 317) FROM generate_series(20001, 30000) g;
DELETE FROM h WHERE i % 3 <> 0 OR i BETWEEN 10000 AND 20000;
VACUUM h;
SQL
$node->safe_psql('postgres', "ALTER INDEX h_$_ SET TABLESPACE regress_slow") foreach @methods;
$node->safe_psql('postgres', "SELECT oracle.remember_keys('h'), oracle.remember_metadata('h')");

# The hole of a page: its offset and length, or nothing; and whether it has garbage.
sub hole
{
	my ($page) = @_;
	my ($lower, $upper) = unpack 'SS', substr $page, 12, 4;
	return $lower >= 24 && $upper > $lower && $upper <= $page_size ? ($lower, $upper - $lower) : ();
}
sub with_garbage { return grep { my @hole = hole($_); @hole && substr($_, $hole[0], $hole[1]) =~ /[^\0]/ } @_ }

# Garbage of ours in one page of each index, but for the block 0.
my $planted = 'garbage' x 4;
$node->stop;
run_command([ 'pg_checksums', '--disable', '-D', $node->data_dir ]);
$node->start;
my %file = map { $_ => $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('h_$_')") } @methods;
my %place;
$node->stop;
foreach my $am (@methods)
{
	my @pages = pages_in_file($file{$am}, $page_size);
	# block 1 of BRIN is the first of its revmap
	my ($block) = grep { my @hole = hole($pages[$_]); @hole && $hole[1] > 200 } $am eq 'brin' ? 1 : (reverse 1 .. $#pages);
	ok(defined $block, "$am: a page with a hole") or next;
	my @hole = hole($pages[$block]);
	$place{$am} = [ $block, $hole[0] + int($hole[1] / 2) ];
	if ($am eq 'brin')
	{
		# behind what is in use, which is in the hole, too
		$place{$am}[1] = $hole[0] + $hole[1] - 100;
		isnt(substr($pages[$block], $hole[0], 100) =~ tr/\0//c, 0, 'brin: the contents of the revmap are in the hole');
	}
	open(my $fh, '+<:raw', $file{$am}) or die "$file{$am}: $!";
	seek $fh, $block * $page_size + $place{$am}[1], 0;
	print $fh $planted;
	close $fh;
}
$node->start;
$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->start;

sub planted_in { return substr($_[0][ $place{ $_[1] }[0] ], $place{ $_[1] }[1], length $planted) eq $planted ? 1 : 0 }

# ---- moved --------------------------------------------------------------
$node->safe_psql('postgres', 'CHECKPOINT');
my (%old, %new);
foreach my $am (@methods)
{
	$old{$am} = [ pages_of($node, "h_$am") ];
	is(planted_in($old{$am}, $am), 1, "$am: the garbage is there");
	is($node->safe_psql('postgres',
		"SELECT status FROM move_indexes('h_$am', 'regress_fast', method => 'copy', settings => '{\"verify\": true}')"),
		'moved', "$am: moved");
}
foreach my $am (@methods)
{
	$new{$am} = [ pages_of($node, "h_$am") ];
	is(join(' ', different_pages($old{$am}, $new{$am}, copy => 1)), '', "$am: the new file");
	my $count = with_garbage(@{ $new{$am} }[ 1 .. $#{ $new{$am} } ]);
	if ($am eq 'btree' || $am eq 'gist')
	{
		cmp_ok(scalar with_garbage(@{ $old{$am} }), '>', 10, "$am: there was garbage of its own, too");
		is($count, 0, "$am: no garbage is left");
	}
	else
	{
		is(planted_in($new{$am}, $am), 1, "$am: what may be no garbage is left");
	}
}
my %wal = map { split /\|/ } split /\n/, $node->safe_psql('postgres',
	"SELECT name || '|' || round(wal_bytes / ((blocks_copied + blocks_recopied) * $page_size.0), 3) FROM index_mover_history");
note "WAL for a byte: $_ $wal{$_}" foreach sort keys %wal;
foreach my $am (@methods)
{
	my ($sum, $n) = (0, 0);
	foreach my $page (@{ $new{$am} }) { my @hole = hole($page); $n++; $sum += $hole[1] if @hole && !with_garbage($page); }
	# beside the blocks, whole pages of catalogs and of our own tables
	cmp_ok($wal{"h_$am"} * $n * $page_size, '<', 1.03 * ($n * $page_size - $sum) + 40 * $page_size,
		"$am: the WAL is that of the blocks without their holes");
}

# ---- on the standby, and created again by recovery -----------------------------------------
$node->wait_for_catchup($standby);
same_pages_ok($node, $standby, "h_$_", "$_, standby") foreach @methods;
%file = map { $_ => $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('h_$_')") } @methods;
$node->stop('immediate');
foreach my $am (@methods)
{
	truncate($file{$am}, 0) or die "$file{$am}: $!";
}
$node->start;
is(join(' ', different_pages($new{$_}, [ pages_of($node, "h_$_") ])), '', "$_: recovery makes the same file of the WAL alone")
	foreach @methods;
verdict_ok($node, 'h', 'after recovery', max_keys => 100);
files_ok($node, 'after recovery');

# ---- what must not be left out -------------------------
foreach my $case ([ 'holes', 'brin' ], [ 'holes', 'gin' ])
{
	my ($mutation, $am) = @$case;
	my $name = "$am, with $mutation";
	my @before = pages_of($node, "h_$am");
	set_tests($node, test_mutation => $mutation);
	my $to = other_place(tablespace_of_index($node, "h_$am"));
	my $row = $node->safe_psql('postgres',
		"SELECT status, sqlstate FROM move_indexes('h_$am', '$to', method => 'copy', settings => '{\"verify\": true}')");
	set_tests($node);
	if ($am eq 'brin')
	{
		is($row, 'failed|XX001', "$name: the compare notices that the revmap is empty");
		next;
	}
	is($row, 'moved|', "$name: moved");
	my @after = pages_of($node, "h_$am");
	isnt(join(' ', different_pages(\@before, \@after, copy => 1)), '', "$name: the pages are not the same");
}

done_testing();
