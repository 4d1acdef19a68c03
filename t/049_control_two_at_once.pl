# Two who want the same, round after round: a transaction that has read from a
# table and then alters it, beside a copy of one of its indexes; and two moves, of
# one index, of two indexes of one table, of a partitioned table and one of its
# partitions, and of two tables in opposite directions.  Nobody may end in a
# deadlock or hang; where only one can have it, the other is told at once.
#
# INDEX_MOVER_ROUNDS says how many rounds of each; scripts/reliability has 1,000.
#
# Fault (locks): a transaction that has read, and then alters the table, beside a copy: 32
#   rounds, in `scripts/reliability` 1,000
# Fault (locks): two moves: of one index, one table, parent and partition, two tables in
#   opposite directions; as many rounds (also specs/move_vs_move, 023)
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
use Time::HiRes qw(usleep);

my $ROUNDS = $ENV{INDEX_MOVER_ROUNDS} || 32;

my $node = new_node('two', conf => "max_worker_processes = 20\n");
$node->safe_psql('postgres', <<'SQL');
SET default_tablespace = regress_slow;
CREATE TABLE a (i int PRIMARY KEY, k int, n int DEFAULT 0);
CREATE INDEX a_k ON a (k);
CREATE TABLE b (i int PRIMARY KEY, k int);
CREATE INDEX b_k ON b (k);
INSERT INTO a SELECT g, g % 100 FROM generate_series(1, 2000) g;
INSERT INTO b SELECT g, g % 100 FROM generate_series(1, 2000) g;
CREATE TABLE p (i int, k int) PARTITION BY RANGE (i);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (-1) TO (1000);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (3000);
CREATE INDEX p_k ON p (k);
INSERT INTO p SELECT g, g % 100 FROM generate_series(1, 2000) g;
SELECT oracle.remember_keys('a'), oracle.remember_keys('b'), oracle.remember_keys('p1');
SELECT oracle.remember_metadata('a'), oracle.remember_metadata('b'), oracle.remember_metadata('p1');
SQL
my @s = map { IndexMover::Session->new($node) } 1 .. 2;
my $look = IndexMover::Session->new($node);
my $writer = IndexMover::Session->new($node);
$_->run('SET client_min_messages = error') for @s;

sub target
{
	my ($index) = @_;
	return $look->run("SELECT CASE tablespace WHEN 'regress_fast' THEN 'regress_slow' ELSE 'regress_fast' END FROM pg_indexes WHERE "
		. "indexname = '$index'");
}

# ---- read, then alter, beside a copy --------------------------------------------------
my ($deadlocks, $not_moved) = (0, 0);
foreach my $round (1 .. $ROUNDS)
{
	my $to = target('a_k');
	$s[0]->run('BEGIN; SELECT count(*) FROM a WHERE k = 7');
	my $job = $s[1]->run("SELECT job FROM move_indexes('a_k', '$to', method => 'copy', wait => false)");
	# every other time when the copy already wants the lock that the reader has,
	# else wherever it may be
	if ($round % 2)
	{
		poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE phase = 'waiting for lock to swap'", '1',
			'the copy wants its lock');
	}
	$s[0]->send('ALTER TABLE a ALTER n SET DEFAULT ' . $round);
	$s[0]->answer;
	my $errors = $s[0]->errors;
	$s[0]->send('COMMIT');
	$s[0]->answer;
	$s[1]->run("CALL wait_for_move($job, raise => false)");
	my $row = $look->run("SELECT status, sqlstate FROM index_mover_history WHERE job = $job");
	$deadlocks++ if "$errors$row" =~ /40P01/;
	$not_moved++, diag "round $round: $row $errors" if $row ne 'moved|' || $errors =~ /ERROR|FATAL/;
}
is($deadlocks, 0, "read, then alter, $ROUNDS times beside a copy, which waits for the reader in half of them: no deadlock");
is($not_moved, 0, 'all is altered, and the index moved');
all_right($node, 'a', 'read, then alter', within => 5, max_keys => 50);
note "count: read, then alter, rounds beside a copy $ROUNDS";
note "count: read, then alter, rounds beside a copy, deadlocks $deadlocks";

# ---- two moves ------------------------------------------------------------------------
my %pairs = (
	'one index' => [ 'a_k', 'a_k' ],
	'two indexes of one table' => [ 'a_k', 'a_pkey' ],
	'a partitioned table and its partition' => [ 'p', 'p1' ],
	'two tables in opposite directions' => [ 'a', 'b' ]);
my (%met, %bad);
$deadlocks = 0;
foreach my $round (1 .. $ROUNDS)
{
	my $name = (sort keys %pairs)[ $round % 4 ];
	my @what = @{ $pairs{$name} };
	my @to = (target($what[0] eq 'p' ? 'p1_k_idx' : 'a_k'));
	push @to, $name =~ /opposite/ ? other_place($to[0])
	  : $what[1] eq 'a_pkey' ? target('a_pkey') : $to[0];
	my @method = (int($round / 8) % 2 ? 'rebuild' : 'copy', int($round / 16) % 2 ? 'rebuild' : 'copy');
	# in every other round of a kind somebody keeps the first of them from ending, so
	# that they are sure to meet: a rebuild waits for who has written, the swap of a
	# copy for who has read (an INSERT gives its locks on indexes back at once)
	my $held = $name !~ /opposite/ && int($round / 4) % 2 == 0;
	my $table = $what[1] eq 'p1' ? 'p1' : 'a';
	$writer->run("BEGIN; INSERT INTO $table VALUES (-1, 0); SELECT count(*) FROM $table") if $held;
	$s[$_]->send("SELECT string_agg(DISTINCT concat_ws(' ', status, sqlstate), ', ') FROM move_indexes('$what[$_]', '$to[$_]', method => "
		. "'$method[$_]')") for 0, 1;
	if ($held)
	{
		my $start = time;
		until ($s[0]->has_answered || $s[1]->has_answered)
		{
			die "$name, round $round: neither has answered" if time - $start > $IndexMover::Test::TIMEOUT;
			usleep(5_000);
		}
		$writer->run('ROLLBACK');
	}
	my @said = map { $_->answer . ($_->errors =~ /ERROR:\s+(\w+)/ ? $1 : '') } @s;
	wait_for_no_worker($node);
	$deadlocks++ if "@said" =~ /40P01/;
	$met{$name}++ if "@said" =~ /55006/;
	$bad{$name}++, diag "round $round, $name by @method, held: @said" if $held && (grep { /55006/ } @said) != 1;
	# moved, or in place since the other has done it, or refused at once; of a partitioned
	# table, only the partition on which the other is at work, and the index that the other
	# is just building has a row, too (55000)
	$bad{$name}++, diag "round $round, $name by @method: @said" if grep { !/^(?:moved(?:, skipped(?: 5500[06])?)*|skipped|55006)$/ } @said;
	$bad{$name}++, diag "round $round, $name by @method: nobody has moved it" if "@said" !~ /moved|skipped/;
}
is($deadlocks, 0, "two moves, $ROUNDS times: no deadlock");
is_deeply(\%bad, {}, 'each is done, or told at once that another does it');
cmp_ok($met{$_} || 0, '>=', 1, "$_: they have met") for grep { !/opposite/ } sort keys %pairs;
ok(!$met{'two tables in opposite directions'}, 'who works on another table is not told anything');
all_right($node, $_, "two moves, $_", within => 5, max_keys => 50) for 'a', 'b', 'p1';
note "count: two moves at once, rounds $ROUNDS";
note "count: two moves at once, deadlocks $deadlocks";

$_->end for @s, $look, $writer;
$node->stop;
done_testing();
