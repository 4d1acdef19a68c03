# Prepared transactions hold their locks without a process: a rebuild waits for
# them, as core's prepared-transactions-cic.spec demands, finds their rows or not
# as they end, and says whom it waits for.
#
# Fault (transactions): prepared transactions, also across a restart (also 013, 099)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('prepared');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE prep_test (a int PRIMARY KEY);
INSERT INTO prep_test SELECT generate_series(2, 50);
SQL

my $target = 'regress_slow';
for my $end ('COMMIT', 'ROLLBACK')
{
	$target = other_place($target);
	$node->safe_psql('postgres',
		"DELETE FROM prep_test WHERE a = 1; SELECT oracle.remember_keys('prep_test'), oracle.remember_metadata('prep_test')");
	$node->safe_psql('postgres', "BEGIN; INSERT INTO prep_test VALUES (1); PREPARE TRANSACTION 's1'");
	my $job = $node->safe_psql('postgres', "SELECT job FROM move_indexes('prep_test', '$target', method => 'rebuild', wait => false)");
	poll_until($node, "SELECT phase, blocked_by FROM index_mover_progress WHERE job = $job",
		'waiting for writers before build|{0}', "$end: it waits");
	is($node->safe_psql('postgres', "SELECT count(*) FROM pg_class WHERE relname LIKE 'prep_test_pkey_cc%'"), '0',
		"$end: before it has made anything");
	$node->safe_psql('postgres', "$end PREPARED 's1'");
	$node->safe_psql('postgres', "CALL wait_for_move($job)");
	is($node->safe_psql('postgres', "SELECT status FROM index_mover_history WHERE job = $job"), 'moved', "$end: it is moved then");
	is($node->safe_psql('postgres',
		"SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT a FROM prep_test WHERE a < 3 ORDER BY a"),
		$end eq 'COMMIT' ? "1\n2" : '2', "$end: the index knows how it ended");
	survived_ok($node, 'prep_test', $end, "SELECT status FROM move_indexes('prep_test', 'pg_default', method => 'rebuild')");
}

# one that does not end
$node->safe_psql('postgres', "BEGIN; INSERT INTO prep_test VALUES (60); PREPARE TRANSACTION 'it''s \"mine\"'");
my ($rc, $out, $err) = $node->psql('postgres',
	"SELECT status, sqlstate, detail FROM move_indexes('prep_test', 'regress_fast', method => 'rebuild', settings => "
		. "'{\"lock_wait\": \"1s\", \"progress_interval\": \"200ms\"}')");
like($out, joined(
	qr/^failed\|55P03\|gave up waiting for transactions that use the table: Waited [\d.]+ seconds for prepared /,
	qr/transaction "it's "mine"" \(COMMIT PREPARED 'it''s "mine"'; or ROLLBACK PREPARED 'it''s "mine"';\)\.$/),
	'the row names it');
like($err, qr/NOTICE:  index "prep_test_pkey": waiting for writers before build.*, waits for a prepared transaction$/m,
	'so do the notices');
$node->safe_psql('postgres', "ROLLBACK PREPARED 'it''s \"mine\"'");
survived_ok($node, 'prep_test', 'given up', "SELECT status FROM move_indexes('prep_test', 'regress_fast', method => 'rebuild')");
$node->stop;
done_testing();
