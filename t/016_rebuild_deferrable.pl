# Deferrable unique constraints.  Core's REINDEX CONCURRENTLY once made the new
# index enforce them at once, while it was being built, and so failed correct
# transactions; minor versions of 2026 cured that.  What this server does is
# seen from core's own command, and our answer must fit: where it is cured the
# index is rebuilt, and a transaction that needs the deferral succeeds meanwhile;
# elsewhere a rebuild is refused, and a copy moves the index.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('deferrable');
$node->safe_psql('postgres', <<'SQL');
SET default_tablespace = regress_slow;
CREATE TABLE d (id int, num numeric CONSTRAINT d_num UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO d SELECT g, g FROM generate_series(1, 500) g;
SELECT oracle.remember_keys('d');
SELECT oracle.remember_metadata('d');
SQL

# Each of these swaps two keys, and so has one of them twice for a moment.
my $swap = 'UPDATE d SET num = 3 - num WHERE id = 1; UPDATE d SET num = 3 - num WHERE id = 2';

# ---- what core does -------------------------------------------------------
my $writer = IndexMover::Session->new($node);
my $core = IndexMover::Session->new($node);
$writer->run('BEGIN; LOCK TABLE d IN ROW EXCLUSIVE MODE');
$core->send('REINDEX INDEX CONCURRENTLY d_num');
poll_until($node, "SELECT to_regclass('d_num_ccnew') IS NOT NULL", 't', "core's new index");
my $keeps = $node->safe_psql('postgres', "SELECT NOT indimmediate FROM pg_index WHERE indexrelid = 'd_num_ccnew'::regclass") eq 't';
$writer->run('COMMIT');
$core->answer;
note 'this server keeps a deferrable constraint deferrable: ', $keeps ? 'yes' : 'no';

# ---- what we do -----------------------------------------------------------
my ($there, $back) = ('regress_fast', 'regress_slow');
if ($keeps)
{
	# Stop it while writers must maintain the new index, which is not valid yet.
	my $catalog = IndexMover::Session->new($node);
	my $second = IndexMover::Session->new($node);
	$catalog->run('BEGIN; LOCK TABLE pg_depend IN SHARE MODE');
	my $call = start_call($node, 'mover', "SELECT status, sqlstate FROM move_indexes('d', '$there', 'rebuild')");
	my $blocked = sub {
		my ($phase) = @_;
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = '$phase' AND cardinality(blocked_by) > 0", '1', $phase);
	};
	$blocked->('initializing');
	$writer->run('BEGIN; LOCK TABLE d IN ROW EXCLUSIVE MODE');
	$catalog->run('COMMIT');
	$blocked->('waiting for writers before build');
	$second->run('BEGIN; LOCK TABLE d IN ROW EXCLUSIVE MODE');
	$writer->run('COMMIT');
	$blocked->('waiting for writers before validation');
	is($node->safe_psql('postgres', "SELECT indisready, indisvalid, indimmediate FROM pg_index WHERE indexrelid = 'd_num_ccnew'::regclass"),
		't|f|f', 'the new index is maintained by writers, and deferrable');
	is($node->psql('postgres', "BEGIN; $swap; COMMIT"), 0, 'a transaction that has a key twice for a moment succeeds');
	$second->run("$swap; COMMIT");
	my ($status, $out, $err) = finish_call($call);
	is($out, "moved|\n", 'the index is moved') or diag $err;
	$_->end foreach $catalog, $second;
}
else
{
	my $answer = $node->safe_psql('postgres', "SELECT status, sqlstate, detail FROM move_indexes('d', '$there', 'rebuild')");
	like($answer, joined(qr/^skipped\|0A000\|Method rebuild cannot move it: .* this server \(1[5678]\..*\) would enforce /,
			qr/the deferrable constraint at once.*Method copy can\.$/),
		'a rebuild is refused, and the row says why');
	is($node->safe_psql('postgres', "SELECT method, status FROM move_indexes('d', '$there', settings => '{\"rebuild_threshold\": 0}')"),
		'copy|moved', 'a copy moves the index, however bloated');
}
$_->end foreach $writer, $core;
is(tablespace_of_index($node, 'd'), 'd_num: regress_fast', 'it is in the target');
all_right($node, 'd', 'moved', within => 5);

# ---- and afterwards -------------------------------------------------------
is($node->psql('postgres', "BEGIN; $swap; COMMIT"), 0, 'the constraint is still deferred');
my ($rc, $out, $err) = $node->psql('postgres', 'INSERT INTO d VALUES (501, 1)');
like($err, qr/duplicate key value violates unique constraint "d_num"/, 'and still enforced');
is($node->safe_psql('postgres', "SELECT status FROM move_indexes('d', '$back')"), 'moved', 'and back');
all_right($node, 'd', 'moved back', within => 5);
$node->stop;
done_testing();
