# The copy is exact, for each access method, although the hard things happen
# after the bulk copy has passed the blocks, here and on a standby that compares
# each page it replays with the primary's.
#
# Fault (replication): a standby that compares each page it replays (wal_consistency_checking),
#   and the whole file with the primary's (also 030)
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

start_servers('exact_copy', standby => 1);

my $consistency = faults('wal_consistency_checking') ? 'all' : '';
$node->safe_psql('postgres', "ALTER SYSTEM SET wal_consistency_checking = '$consistency'");
$node->reload;
poll_until($node, 'SHOW wal_consistency_checking', $consistency, 'wal_consistency_checking');

foreach my $am (grep { part($_) } qw(btree hash gin gist spgist brin bloom))
{
	make_case($am);
	my $log = -s $node->logfile;
	# "verify" compares before the lock, "verify-all" all of it under the lock, and then we
	my ($row, $types, $grown, $metapage, $changed, $said) =
	  move_and_change($am, settings => '{"verify": true}',
		at_swap => sub { same_files_ok(@_, $page_size, "$am, under the lock") });
	like($row, qr/^moved\|/, "$am: moved, block by block equal under the lock");
	foreach my $record (@{ $cases{$am}{records} })
	{
		like($types, qr/(?:^| )(?:$record)/, "$am: $record after the bulk copy, of a block that had been copied");
	}
	like($said, $cases{$am}{says}, "$am: so the change says") if $cases{$am}{says};
	cmp_ok($grown, '>', 0, "$am: extended after the bulk copy");
	ok($metapage, "$am: the metapage changed after the bulk copy") if $cases{$am}{unlogged_metapage};
	my ($copied, $recopied, $attempts) = split /\|/, $node->safe_psql('postgres',
		'SELECT blocks_copied, blocks_recopied, lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1');
	# block 0 is always copied again, each time the lock was got
	my $least = () = grep { $_ != 0 } @$changed;
	cmp_ok($least, '>', $am eq 'brin' ? 2 : 10, "$am: $least blocks were changed that had been copied");
	cmp_ok($recopied, '>=', $least + 1, "$am: as many of $copied blocks copied again, or more");
	cmp_ok($recopied, '<=', @$changed + $grown + $attempts, "$am: but none that was neither changed nor new ($recopied)");
	let_standby_replay();
	same_pages_ok($node, $standby, 'exact_i', "$am, standby");
	# (the standby's pages are the same)
	my @asked = picked { $_->[0] == $node } 'servers asked for each key', [ $node, '' ], [ $standby, ', standby' ];
	verdict_ok($_->[0], 'exact', "$am$_->[1]", max_keys => 100) foreach @asked;
	files_ok($_->[0], "$am$_->[1]") foreach [ $node, '' ], [ $standby, ', standby' ];
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$am: it was this copy");
	# and it can be written to
	$node->safe_psql('postgres', $cases{$am}{change} . 'VACUUM exact');
	let_standby_replay();
	verdict_ok($_->[0], 'exact', "$am, changed after the move$_->[1]", max_keys => 20) foreach @asked;
}
replayed_pages_ok($node, $standby, 'standby') if $consistency;
$node->safe_psql('postgres', 'ALTER SYSTEM RESET wal_consistency_checking');
$node->reload;
poll_until($node, 'SHOW wal_consistency_checking', '', 'wal_consistency_checking');

# ---- the last blocks are many, and copied directly once more ---------------------
foreach my $am (picked { /btree|spgist/ } 'access methods whose last blocks are copied directly',
	grep { part('again') } qw(btree hash gin gist spgist brin bloom))
{
	make_case($am);
	my ($row, undef, undef, undef, $changed) = move_and_change($am, mutation => 'again', settings => '{"verify": true}');
	like($row, qr/^moved\|/, "$am, copied directly again: moved, block by block equal under the lock");
	my $least = () = grep { $_ != 0 } @$changed;
	cmp_ok($least, '>', $am eq 'brin' ? 2 : 10, "$am, copied directly again: $least blocks were changed that had been copied");
	cmp_ok($node->safe_psql('postgres', 'SELECT blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		'>=', $least + 1, "$am, copied directly again: as many blocks copied again, or more");
	let_standby_replay();
	same_pages_ok($node, $standby, 'exact_i', "$am, copied directly again, standby");
	verdict_ok($node, 'exact', "$am, copied directly again", max_keys => 20);
	files_ok($node, "$am, copied directly again");
	$node->safe_psql('postgres', $cases{$am}{change} . 'VACUUM exact');
	$node->stop('immediate');
	$node->start;
	verdict_ok($node, 'exact', "$am, copied directly again, changed after the move, after a crash", max_keys => 20);
}

# ---- a race with the writers: the last blocks are many, and copied under the lock ----
# Neither directly again nor in a round through shared buffers before, which would fail.
if (part('race'))
{
	my $name = 'a race';
	$node->safe_psql('postgres', <<'SQL');
SET client_min_messages = warning;
DROP TABLE IF EXISTS exact, oracle."old exact_i";
CREATE TABLE exact (k int, v int) WITH (autovacuum_enabled = off);
INSERT INTO exact SELECT g, 0 FROM generate_series(1, 1800000) g;
CREATE INDEX exact_i ON exact (k) TABLESPACE regress_slow;
SELECT oracle.remember_keys('exact');
SQL
	set_tests($node, test_mutation => 'verify-all');
	# in most blocks of the index, and again
	my $change = 'UPDATE exact SET k = k + 1 WHERE k % 350 = ';
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5960)');
	my $log = -s $node->logfile;
	my $call = held_at($node, 'copy-half',
		"SELECT status FROM move_indexes('exact_i', 'regress_fast', method => 'copy', settings => '{\"max_lock_time\": \"1min\"}')",
		then => 'copy-round:wait2,copy-again:error,copy-buffered-round:error');
	$node->safe_psql('postgres', $change . 17);
	let_go($call);
	$node->wait_for_log(qr/test point "copy-round": waiting/, $log);
	$node->safe_psql('postgres', $change . 170);
	$gate->end;
	my ($rc, $out, $err) = finish_call($call);
	set_tests($node);
	is($out, "moved\n", "$name: moved, block by block equal under the lock") or diag $err;
	my ($recopied, $attempts) = split /\|/, $node->safe_psql('postgres',
		'SELECT blocks_recopied, lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1');
	cmp_ok($recopied, '>', 2 * 2048, "$name: $recopied blocks copied again");
	is($attempts, 1, "$name: by the first attempt");
	let_standby_replay();
	same_pages_ok($node, $standby, 'exact_i', "$name, standby");
	verdict_ok($node, 'exact', $name, max_keys => 100);
	files_ok($node, $name);
}

$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'page checksums are valid on disk');

done_testing();
