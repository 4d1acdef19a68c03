# Materialized views: an index of one is copied while REFRESH MATERIALIZED VIEW
# CONCURRENTLY changes its rows, which is a write like any other; and while REFRESH
# gives it another file, which starts the copy again.
#
# Fault (transactions): a materialized view refreshed, also CONCURRENTLY (also 023)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();
needs_test_points();

my $node = new_node('matviews');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE base (id int PRIMARY KEY, n int, words int[]);
INSERT INTO base SELECT g, 0, ARRAY[10000 + g % 5003, g % 13] FROM generate_series(1, 20000) g;
CREATE MATERIALIZED VIEW mv AS SELECT id, n, words FROM base;
CREATE UNIQUE INDEX mv_id ON mv (id) TABLESPACE regress_slow;
CREATE INDEX mv_words ON mv USING gin (words) TABLESPACE regress_slow;
ANALYZE mv;
SQL

sub move
{
	my ($index) = @_;
	my $to = elsewhere($node, $index);
	return "SELECT status, sqlstate FROM move_indexes('$index', '$to', method => 'copy')";
}

# Change rows of the table in all parts of the index: some others each time, some
# deleted, some new at the end.
my $changes = 0;

sub change_base
{
	my $n = $changes++;
	my ($from, $last) = (500 * $n + 1, 20000 + 2000 * $n);
	$node->safe_psql('postgres', <<SQL);
UPDATE base SET n = n + 1, words = ARRAY[10000 + (id + $n + 1) % 5003, 20 + id % 17] WHERE id % 7 = $n % 7;
DELETE FROM base WHERE id BETWEEN $from AND $from + 400;
INSERT INTO base SELECT g, 0, ARRAY[10000 + g % 5003, 40 + $n] FROM generate_series($last + 1, $last + 2000) g;
SQL
	return;
}

sub refreshed_ok
{
	my ($name) = @_;
	return is($node->safe_psql('postgres', '(TABLE mv EXCEPT ALL TABLE base) UNION ALL (TABLE base EXCEPT ALL TABLE mv)'), '',
		"$name: the view has the table's rows");
}

sub prepare
{
	change_base();
	$node->safe_psql('postgres', "SELECT oracle.remember_keys('mv'), oracle.remember_metadata('mv')");
	return -s $node->logfile;
}

# all of it is compared under the lock, too
set_tests($node, test_mutation => 'verify-all');

# ---- REFRESH CONCURRENTLY --------------------------------------------------------------
foreach my $case ([ 'mv_id', 'copy-end' ], [ 'mv_words', 'copy-end' ], [ 'mv_id', 'copy-synced' ])
{
	my ($index, $point) = @$case;
	my $name = "REFRESH CONCURRENTLY at $point of $index";
	my $log = prepare();
	my $call = held_at($node, $point, move($index));
	my $blocks = "SELECT pg_relation_size('$index') / current_setting('block_size')::int";
	my $before = $node->safe_psql('postgres', $blocks);
	my ($rc, $out, $err) = $node->psql('postgres', "SET lock_timeout = '60s'; REFRESH MATERIALIZED VIEW CONCURRENTLY mv");
	is($rc, 0, "$name: it waits for no session") or diag $err;
	$node->safe_psql('postgres', "SELECT gin_clean_pending_list('mv_words')");
	my $grown = $node->safe_psql('postgres', $blocks) - $before;
	let_go($call);
	($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", "$name: moved, block by block equal under the lock") or diag $err;
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$name: it was one copy");
	# one is block 0
	my $recopied = $node->safe_psql('postgres', 'SELECT blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1');
	cmp_ok($recopied - $grown, '>', 10, "$name: $recopied blocks were copied again, of $before, and $grown new ones");
	refreshed_ok($name);
	all_right($node, 'mv', $name, within => 5, max_keys => 200);
}

# ---- REFRESH -----------------------------------------------------------------------------
# The copy lets it pass, and begins again; behind the last look at who waits, the swap
# comes first.
foreach my $case ([ 'mv_id', 'copy-half', 1 ], [ 'mv_words', 'copy-synced', 1 ], [ 'mv_words', 'swap-asking', 0 ])
{
	my ($index, $point, $again) = @$case;
	my $name = "REFRESH at $point of $index";
	my $log = prepare();
	my $call = held_at($node, $point, move($index));
	my $session = IndexMover::Session->new($node);
	$session->send('REFRESH MATERIALIZED VIEW mv');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $session->pid, 't', "$name: it waits");
	let_go($call);
	$session->answer;
	is($session->errors, '', "$name: it is done when the copy goes on");
	$session->end;
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved|\n", "$name: moved") or diag $err;
	my $starts = () = slurp_file($node->logfile,
		$log) =~ /starting the copy of index "$index" again, because its file was replaced by another command/g;
	is($starts, $again, "$name: copies that were started again");
	refreshed_ok($name);
	all_right($node, 'mv', $name, within => 5, max_keys => 200);
}
set_tests($node);
survived_ok($node, 'mv', 'at the end', move('mv_id'), max_keys => 200);

$node->stop;
done_testing();
