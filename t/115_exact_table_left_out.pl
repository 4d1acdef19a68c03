# The checks that call a table's copy exact notice each deliberate fault: parts of the
# catch-up, of the visibility map and of its log that are left out.
use strict;
use warnings;

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

start_servers('exact_table_left_out');

# Updates within their pages, of many blocks, and an extension.
my $plain_change = 'UPDATE s.plain SET v = v + 1 WHERE k % 40 = 0; INSERT INTO s.plain SELECT g, 0, \'g\' FROM generate_series(20001, '
	. '24000) g';

foreach my $mutation (grep { part("mutation $_") } picked { !$_ || /^(catch-up|tail)$/ } 'parts left out', '', 'catch-up', 'catch-up:1',
	'tail', 'tail,short', 'again')
{
	my $name = $mutation ? "mutation $mutation" : 'no mutation';
	my $wrong = $mutation && $mutation ne 'again';
	my ($expected, @different);
	my $change = sub {
		$node->safe_psql('postgres', $plain_change);
		$expected = rows_of($node, 's.plain');
	};
	# as it is for all roles
	make_plain();
	my $rows = move_in_steps(what => 's.plain', mutation => $mutation, change => $change);
	if ($wrong)
	{
		like($rows, $mutation eq 'tail,short' ? qr/^table\|failed\|XX001\|the copy of table "plain" has \d+ blocks instead of \d+\b/
			: qr/^table\|failed\|XX001\|the copy of table "plain" differs from the original in block \d+/,
			"$name: refused by verify, which the role has not asked for");
		is(places('s'), 'regress_slow', "$name: nothing moved");
	}
	else { is($rows, 'table|moved||', "$name: moved"); }
	is(rows_of($node, 's.plain'), $expected, "$name: the rows are right");
	is(witnesses($node, 's.plain'), '', "$name: no witness against it");
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	next if $mutation eq 'tail,short' || ($mutation ne 'catch-up' && !faults());

	# without verify it gets through: our own compare sees it, and so do the rows
	make_plain();
	$rows = move_in_steps(what => 's.plain', mutation => $mutation, settings => '"verify": false', change => $change,
		compare => sub { @different = different_heap_files(@_[1, 2], $page_size) });
	is($rows, 'table|moved||', "$name, without verify: moved");
	my $digest = rows_of($node, 's.plain');
	if ($wrong)
	{
		cmp_ok(scalar @different, '>', 0, "$name, without verify: " . @different . ' blocks differ');
		isnt($digest, $expected, "$name, without verify: the rows are others");
		note "$name: the witnesses say: ", substr witnesses($node, 's.plain'), 0, 300;
	}
	else
	{
		is("@different", '', "$name, without verify: no block differs");
		is($digest, $expected, "$name, without verify: the rows are right");
	}
}

# The visibility map: bits that are cleared after it was first compared, and before the
# lock; what a standby and recovery have of it.
foreach my $mutation (grep { part("mutation $_") } '', 'map-once')
{
	my $name = $mutation ? "mutation $mutation" : 'no mutation of the map';
	make_plain();
	my ($had, $has, @maps);
	my $rows = move_in_steps(what => 's.plain', mutation => $mutation, at => 'swap-asking',
		change => sub {
			my $bits = q{SELECT count(*) FILTER (WHERE all_visible) FROM pg_visibility_map('s.plain')};
			$had = $node->safe_psql('postgres', $bits);
			$node->safe_psql('postgres', 'DELETE FROM s.plain WHERE k % 4000 = 7');
			$has = $node->safe_psql('postgres', $bits);
		},
		compare => sub { @maps = different_maps(@_[1, 2], $page_size);
			is(join(' ', different_heap_files(@_[1, 2], $page_size)), '', "$name: the pages of the table are right") });
	is($rows, 'table|moved||', "$name: moved");
	cmp_ok($has, '<', $had, "$name: bits were cleared after the map was compared");
	my $said = witnesses($node, 's.plain');
	if ($mutation)
	{
		is("@maps", '0', "$name: the map differs");
		like($said, qr/^s\.plain: visible \(\d+,\d+\)/, "$name: pg_check_visible() sees it");
		like($said, qr/^s\.plain by k: index-only scan 20000\|.*sequential scan 19995\|/m,
			"$name: an index-only scan has rows that are deleted");
	}
	else
	{
		is("@maps", '', "$name: the map is right");
		is($said, '', "$name: no witness against it");
	}
	$node->safe_psql('postgres', 'DROP SCHEMA s CASCADE') if $mutation;
}

# VACUUM clears a bit of the map that is wrong without any WAL: what is compared is the map.
if (part('repair') && !$checksums && faults('a map that VACUUM repairs'))
{
	make_plain();
	my $old = IndexMover::Session->new($node);
	$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
	$node->safe_psql('postgres', 'UPDATE s.plain SET v = 1 WHERE k = 1');
	my $path = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('s.plain') || '_vm'");
	my $bits = q{SELECT count(*) FROM pg_visibility_map('s.plain', 0) WHERE all_visible};
	$old->end;
	$node->stop;
	# block 0 is the lowest two bits behind the header
	open(my $fh, '+<:raw', $path) or die $!;
	seek $fh, 24, 0;
	read $fh, my $byte, 1;
	seek $fh, 24, 0;
	print $fh chr(ord($byte) | 1);
	close $fh;
	$node->start;
	my $rows = move_in_steps(what => 's.plain', at => 'swap-asking',
		change => sub {
			# (for this one's snapshot the update is not over, so that the page does not become visible)
			my $holder = IndexMover::Session->new($node);
			$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()');
			$node->safe_psql('postgres', 'UPDATE s.plain SET v = 2 WHERE k = 2');
			is($node->safe_psql('postgres', $bits), '1', 'repair: the map is wrong when it is first compared');
			$node->safe_psql('postgres', 'VACUUM (DISABLE_PAGE_SKIPPING) s.plain');
			is($node->safe_psql('postgres', $bits), '0', 'repair: and then VACUUM has cleared the bit');
			$holder->run('COMMIT');
			$holder->end;
		},
		compare => sub { same_heap_files_ok(@_[1, 2], $page_size, 'repair, under the lock') });
	is($rows, 'table|moved||', 'repair: moved');
	is($node->safe_psql('postgres', $bits), '0', 'repair: the bit is not set');
	is(witnesses($node, 's.plain'), '', 'repair: no witness against it');
}

if (part('map'))
{
	my $name = 'the map in the log';
	make_plain();
	is(move_in_steps(what => 's.plain', to => 'regress_fast'), 'table|moved||', "$name: moved");
	my $bits = q{SELECT count(*) FILTER (WHERE all_visible) FROM pg_visibility_map('s.plain')};
	my $primary = $node->safe_psql('postgres', $bits);
	cmp_ok($primary, '>', 100, "$name: visible pages on the primary: $primary");
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	is($standby->safe_psql('postgres', $bits), $primary, "$name: as many on the standby");
	$node->stop('immediate');
	$node->start;
	is($node->safe_psql('postgres', $bits), $primary, "$name: as many after a crash");
	is(witnesses($node, 's.plain'), '', "$name: no witness against it");
}

end_servers();
done_testing();
