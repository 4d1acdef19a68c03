# IndexMover::Pages
#   Block compare: have two files, or two servers, the same pages of an index?
#
#   same_pages_ok($primary, $standby, 'i', 'name');    # through shared buffers
#   same_files_ok($old, $new, $page_size, 'name');     # an index's file and its copy
#   replayed_pages_ok($primary, $standby, 'name');     # each page, as it was replayed
#
# The pages of a standby are those of its primary byte by byte, but for the
# checksum, which a page has only on disk.  Ask only for an index that no session has
# read since it was copied: a scan sets hint bits, and no standby hears of them.
#
# The pages of a copy in another file have LSNs of their own, and the hint bits of
# the moment in which they were read, and zeros where a btree or GiST page has bytes
# that are not needed: these count in the first case, and not in the second (copy => 1).
# Files are looked at as they are on disk: let no session write to the index, and do a
# CHECKPOINT before.
#
# Of a table, same_heap_files_ok() looks at all segments of the main fork and at the
# visibility map, of which every byte counts but LSN and checksum.  What may
# differ in its pages is what a crash may lose: four hints of a tuple's header, two of
# the page's flags, the xid that says when to prune; its hole; and zeros are an empty
# page.
#
# This has nothing of the library's own compare, src/copy/compare_blocks.c, which it is
# there to check.  t/001_oracles.pl and t/002_oracles_online.pl show what it sees.
package IndexMover::Pages;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Test ();
use List::Util qw(max);
use PostgreSQL::Test::Utils ();
use Test::More;

our @EXPORT = qw(pages_in_file pages_of different_pages different_files same_pages_ok same_files_ok same_heap_files_ok replayed_pages_ok
  different_heap_files different_maps same_map_on_ok);

# A page's header: LSN, checksum, flags, lower, upper, special (where what the
# access method keeps at the page's end begins), and more; then the line pointers.
my $HEADER = 24;
my ($PD_LSN, $PD_CHECKSUM, $PD_LOWER, $PD_SPECIAL) = (0, 8, 12, 16);

# The access methods that mark line pointers dead as a hint keep 16 bytes at the
# page's end, of which the last four are the page's flags and a number that says
# whose page it is: in btree, any smaller one.  The flags of pages with such line
# pointers, and the one that says that there are some:
my %HINTS = (
	btree  => [ 0x01, 0x40 ],    # BTP_LEAF; BTP_HAS_GARBAGE
	0xFF80 => [ 0x03, 0x80 ],    # LH_BUCKET_PAGE, LH_OVERFLOW_PAGE; LH_PAGE_HAS_DEAD_TUPLES
	0xFF81 => [ 0x01, 0x10 ]);   # F_LEAF; F_HAS_GARBAGE (GiST)
my $SPGIST = 0xFF82;
my $SPGIST_FIXED_BLOCKS = 3;

# The pages of a file (which is one segment, no more).
sub pages_in_file
{
	my ($path, $page_size) = @_;
	open(my $fh, '<:raw', $path) or die "$path: $!";
	local $/;
	return unpack "(a$page_size)*", <$fh> // '';
}

# The pages that a server has of an index.  Its database needs pageinspect.
sub pages_of
{
	my ($node, $relation, %options) = @_;
	return map { pack 'H*', $_ } split /\n/, $node->safe_psql($options{dbname} || 'postgres', <<SQL);
SELECT encode(get_raw_page('$relation', b::int), 'hex')
  FROM generate_series(0, pg_relation_size('$relation') / current_setting('block_size')::int - 1) b ORDER BY b
SQL
}

# A page without what does not count.
sub masked
{
	my ($page, %options) = @_;
	substr($page, $PD_CHECKSUM, 2) = "\0" x 2;
	return $page unless $options{copy};
	substr($page, $PD_LSN, 8) = "\0" x 8;

	my ($lower, $special) = map { unpack 'S', substr $page, $_, 2 } $PD_LOWER, $PD_SPECIAL;
	return $page unless $special == length($page) - 16;
	my ($flags, $whose) = unpack 'SS', substr $page, -4;
	my ($has_hints, $garbage) = @{ $HINTS{$whose} || $HINTS{btree} };
	return $page unless $flags & $has_hints;
	substr($page, -4, 2) = pack 'S', $flags & ~$garbage;
	# of 32 bits, the two in the middle: 1 is in use, 3 is dead
	my @pointers = unpack 'L*', substr $page, $HEADER, $lower - $HEADER;
	substr($page, $HEADER, $lower - $HEADER) =
	  pack 'L*', map { ($_ >> 15 & 3) == 3 ? $_ & ~(2 << 15) : $_ } @pointers;
	return $page;
}

# A copy of a page, block 0 aside, of an access method that keeps nothing between its
# line pointers and its tuples may have zeros there: the page without what it had, if
# that is so.
sub without_garbage
{
	my ($page, $copy, $block) = @_;
	my ($lower, $upper, $special) = unpack 'SSS', substr $copy, $PD_LOWER, 6;
	return $page if !$block || $special != length($copy) - 16 || unpack('S', substr $copy, -2) == 0xFF80;
	return $page if $lower < $HEADER || $upper <= $lower || substr($copy, $lower, $upper - $lower) =~ /[^\0]/;
	substr($page, $lower, $upper - $lower) = "\0" x ($upper - $lower);
	return $page;
}

# SP-GiST prepares an empty page in a buffer and leaves it there, neither logged nor
# written: a copy may have one where the file has zeros, or an empty page of before.
sub is_unused
{
	my ($page) = @_;
	return 1 unless $page =~ /[^\0]/;
	return unpack('S', substr $page, $PD_LOWER, 2) == $HEADER && unpack('S', substr $page, -2) == $SPGIST;
}

# The numbers of the blocks that differ, or that only one of the two has.
sub different_pages
{
	my ($mine, $others, %options) = @_;
	my @different;
	foreach my $block (0 .. max($#$mine, $#$others))
	{
		my @pair = grep { defined } $mine->[$block], $others->[$block];
		# (most of them without taking a page apart)
		my $from = $options{copy} ? $PD_CHECKSUM + 2 : 0;
		next if @pair == 2 && substr($pair[0], $from) eq substr($pair[1], $from);
		$pair[0] = without_garbage(@pair, $block) if @pair == 2 && $options{copy};
		next if @pair == 2 && masked($pair[0], %options) eq masked($pair[1], %options);
		next if @pair == 2 && $options{copy} && $block >= $SPGIST_FIXED_BLOCKS && 2 == grep { is_unused($_) } @pair;
		push @different, $block;
	}
	return @different;
}

# The same of an index's file and its copy.
sub different_files
{
	my ($old, $new, $page_size) = @_;
	return different_pages([ pages_in_file($old, $page_size) ], [ pages_in_file($new, $page_size) ], copy => 1);
}

# A table's page without what a crash may lose.
my ($PD_FLAGS, $PD_PRUNE_XID) = (10, 20);
my ($PD_HAS_FREE_LINES, $PD_PAGE_FULL) = (0x1, 0x2);
my ($TUPLE_HEADER, $T_INFOMASK) = (23, 20);
my ($XMIN_COMMITTED, $XMIN_INVALID, $XMAX_COMMITTED, $XMAX_INVALID) = (0x100, 0x200, 0x400, 0x800);

sub masked_heap
{
	my ($page) = @_;
	my ($flags, $lower, $upper) = unpack 'SSS', substr $page, $PD_FLAGS, 6;
	return '' if $page !~ /[^\0]/ || ($lower == $HEADER && $upper == length $page);
	substr($page, $PD_LSN, 10) = "\0" x 10;
	substr($page, $PD_FLAGS, 2) = pack 'S', $flags & ~($PD_HAS_FREE_LINES | $PD_PAGE_FULL);
	substr($page, $PD_PRUNE_XID, 4) = "\0" x 4;
	# nothing is between them, and what was there is in no full page image
	substr($page, $lower, $upper - $lower) = "\0" x ($upper - $lower) if $lower >= $HEADER && $lower < $upper && $upper <= length $page;
	foreach my $pointer (unpack 'L*', substr $page, $HEADER, $lower - $HEADER)
	{
		# of 32 bits, the place in 15, two that say whether there is a tuple, its length in 15
		my ($place, $is, $length) = ($pointer & 0x7FFF, $pointer >> 15 & 3, $pointer >> 17);
		next if $is != 1 || $length < $TUPLE_HEADER;
		my $mask = unpack 'S', substr $page, $place + $T_INFOMASK, 2;
		# both bits of xmin: frozen, which is no hint
		my $hints = $XMAX_COMMITTED | $XMAX_INVALID;
		$hints |= $XMIN_COMMITTED | $XMIN_INVALID unless ($mask & ($XMIN_COMMITTED | $XMIN_INVALID)) == ($XMIN_COMMITTED | $XMIN_INVALID);
		substr($page, $place + $T_INFOMASK, 2) = pack 'S', $mask & ~$hints;
	}
	return $page;
}

# The pages of all segments of a fork.
sub pages_of_fork
{
	my ($path, $page_size) = @_;
	my @pages;
	for (my $n = 0; -e $path . ($n ? ".$n" : ''); $n++)
	{
		push @pages, pages_in_file($path . ($n ? ".$n" : ''), $page_size);
	}
	return @pages;
}

# The numbers of the blocks of a table's file and its copy that differ.
sub different_heap_files
{
	my ($old, $new, $page_size) = @_;
	my @old = pages_of_fork($old, $page_size);
	my @new = pages_of_fork($new, $page_size);
	return grep { !defined $old[$_] || !defined $new[$_] || masked_heap($old[$_]) ne masked_heap($new[$_]) } 0 .. max($#old, $#new);
}

# The same of their visibility maps; where one is shorter, the other has to be zeros.
sub different_maps
{
	my ($old, $new, $page_size) = @_;
	my @bare = map { [ map { substr $_, $PD_FLAGS } pages_of_fork("${_}_vm", $page_size) ] } $old, $new;
	my $none = "\0" x ($page_size - $PD_FLAGS);
	# a page of the map that has only a header says the same as zeros
	my $page = sub { my $p = $_[0] // $none; return substr($p, $HEADER - $PD_FLAGS) =~ /[^\0]/ ? $p : ''; };
	return grep { $page->($bare[0][$_]) ne $page->($bare[1][$_]) } 0 .. max($#{ $bare[0] }, $#{ $bare[1] });
}

# Is the second of two files a table's copy, with its map?
sub same_heap_files_ok
{
	my ($old, $new, $page_size, $name) = @_;
	my $number = () = pages_of_fork($old, $page_size);
	$IndexMover::Oracle::count{'blocks compared with those of a copy or a standby'} += $number;
	my @blocks = different_heap_files($old, $new, $page_size);
	my @maps = different_maps($old, $new, $page_size);
	return is("blocks @blocks, maps @maps", 'blocks , maps ', "$name: the same $number pages, and visibility map");
}

# Have two servers the same files of these tables, as they are on disk: all of the map,
# and of the rest what is logged?
sub same_map_on_ok
{
	my ($node, $other, $page_size, $name, @paths) = @_;
	my @different = grep { different_maps($node->data_dir . "/$_", $other->data_dir . "/$_", $page_size) } @paths;
	return is("@different", '', "$name: the same visibility maps of " . @paths . ' relations');
}

# What is said of the blocks that differ: '' if none does, and there are some.
sub verdict
{
	my ($number, @different) = @_;
	$IndexMover::Oracle::count{'blocks compared with those of a copy or a standby'} += $number;
	return $number ? join(', ', @different) : 'nothing to compare';
}

# Do both servers have the same pages of the index?
sub same_pages_ok
{
	my ($node, $other, $relation, $name, %options) = @_;
	my @mine = pages_of($node, $relation, %options);
	my @others = pages_of($other, $relation, %options);
	return is(verdict(scalar @mine, different_pages(\@mine, \@others)), '', "$name: the same pages");
}

# Is the second file a copy of the first?
sub same_files_ok
{
	my ($old, $new, $page_size, $name) = @_;
	return is(verdict((-s $old) / $page_size, different_files($old, $new, $page_size)), '', "$name: the same pages in both files");
}

# Has the standby found no page that, replayed, differs from the primary's?  It
# compares them while the primary has wal_consistency_checking = all; one that
# differs ends it.  With from => offset its log is looked at from there.
sub replayed_pages_ok
{
	my ($primary, $standby, $name, %options) = @_;
	my $different = sub {
		my $log = PostgreSQL::Test::Utils::slurp_file($standby->logfile, $options{from} || 0);
		return $log =~ /(inconsistent page found.*)/g;
	};
	my @different = $different->();
	if (!@different)
	{
		$primary->wait_for_catchup($standby);
		@different = $different->();
	}
	push @different, 'nothing was compared'
	  if $primary->safe_psql('postgres', 'SHOW wal_consistency_checking') ne 'all';
	return is(join("\n", @different), '', "$name: each page the same when it was replayed");
}

1;
