# The checks that call a copy exact notice it if a part of the catch-up is left out,
# and take no empty page of SP-GiST for damage.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::ExactCopy;
use IndexMover::Pages;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

start_servers('exact_left_out');

# ---- the checks notice what is left out ----------------------------------------
foreach my $case (picked { $_->[1] eq 'catch-up' } 'parts left out of the catch-up', grep { part('mutation') } [ 'btree', 'catch-up' ],
	[ 'btree', 'catch-up:1' ], [ 'btree', 'tail' ],
	[ 'spgist', 'block-0' ], [ 'hash', 'catch-up:1' ])
{
	my ($am, $mutation) = @$case;
	make_case($am);
	my ($row, $types, $grown, $metapage) = move_and_change($am, mutation => $mutation);
	like($row, qr/^failed\|XX001\|.*differs from the original/,
		"$am without $mutation: the block compare notices");
	files_ok($node, "$am without $mutation, after the error");
	is(tablespace_of_index($node, 'exact'), 'exact_i: regress_slow', "$am without $mutation: not moved");
	# SP-GiST's metapage is a cache: lookups cannot tell
	next if $mutation eq 'block-0';

	# without the compare the lookups must notice
	make_case($am);
	my (@different, $segments);
	($row) = move_and_change($am, mutation => $mutation, no_compare => 1,
		at_swap => sub { @different = different_files(@_, $page_size); $segments = -e "$_[0].1" });
  SKIP:
	{
		skip "$am without $mutation: the block is in another segment than the first, in this build", 1 if $segments && !@different;
		cmp_ok(scalar @different, '>', 0, "$am without $mutation: blocks differ from the original's: @different");
	}
	like($row, qr/^moved\|/, "$am without $mutation and without compare: moved");
	my $verdict = $node->safe_psql('postgres', "SELECT oracle.verdict('exact')");
	like($verdict, qr/^0 right;/, "$am without $mutation: lookups or amcheck notice")
	  or diag $verdict;
}

# ... and its length is always compared
if (part('mutation'))
{
	make_case('btree');
	my ($row, $types, $grown) = move_and_change('btree', mutation => 'tail,short', no_compare => 1);
	cmp_ok($grown, '>', 0, 'btree without its tail: there is one');
	like($row, qr/^failed\|XX001\|the copy of index "exact_i" has \d+ blocks instead of \d+/, 'btree without its tail: noticed');
	files_ok($node, 'btree without its tail, after the error');
}

# ... and so does the user's setting "verify"
if (part('mutation'))
{
	make_case('btree');
	my ($row) = move_and_change('btree', mutation => 'catch-up:1', no_compare => 1, settings => '{"verify": true}');
	like($row, qr/^failed\|XX001\|/, 'btree without catch-up:1: index_mover.verify notices');
}

# ---- SP-GiST's empty pages ---------------------------------------------------------
# It prepares an empty page in a buffer and leaves it there, not logged and not
# dirty: when the buffer is given up, zeros are back.  That is no damage.
if (part('empty'))
{
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_prewarm;
CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, 45000);
CHECKPOINT;
SQL
	make_case('spgist');
	set_tests($node, test_point => 'copy-end:wait', test_mutation => 'verify-all');
	# many backends, each with pages of its own
	my $pages = 'SELECT count(*) FROM generate_series(3, pg_relation_size(\'exact_i\') / current_setting(\'block_size\')::int - 1) b, '
		. 'page_header(get_raw_page(\'exact_i\', b::int))';
	my $prepared = 0;
	for (my $n = 0; $n < 40 && !$prepared; $n++)
	{
		$node->safe_psql('postgres', "INSERT INTO exact SELECT 'y$n' || md5((g * 7 + $n)::text), g FROM generate_series(1, 700) g");
		$prepared = $node->safe_psql('postgres', "$pages WHERE upper > 0 AND lsn = '0/0'");
	}
	cmp_ok($prepared, '>', 0, 'SP-GiST: there are empty pages in buffers only');
	my $blocker = $node->background_psql('postgres');
	$blocker->query_safe('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $job = $node->safe_psql('postgres',
		q{SELECT job FROM move_indexes('exact_i', 'regress_fast', method => 'copy', wait => false, settings => '{"verify": true}')});
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
	$node->safe_psql('postgres', "SELECT pg_prewarm('large')") for 1 .. 6;
	cmp_ok($node->safe_psql('postgres', "$pages WHERE upper = 0"), '>', 0, 'SP-GiST: they are zeros again after the copy');
	$blocker->quit;
	$node->psql('postgres', "CALL wait_for_move($job)");
	is($node->safe_psql('postgres', "SELECT status, message FROM index_mover_history WHERE job = $job"),
		'moved|', 'SP-GiST: verify takes no empty page for damage');
	set_tests($node);
	verdict_ok($node, 'exact', 'SP-GiST with empty pages', max_keys => 100);
	$node->safe_psql('postgres', 'DROP TABLE large');
}

$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'page checksums are valid on disk');

done_testing();
