# Two who want the same, round after round: a transaction that has read from a
# table and then alters it, beside a copy of one of its indexes; and two moves, of
# one index, of two indexes of one table, of a partitioned table and one of its
# partitions, and of two tables in opposite directions.  None may end in a
# deadlock or hang; where only one can have it, the other is told at once.
#
# And of a job whose smallest tables others hold without end, the rest is moved all the same.
#
# INDEX_MOVER_ROUNDS says how many rounds of each; scripts/reliability has 1,000.
#
# Fault (locks): the owner of a table cancels its move in another role's job (17: by MAINTAIN), while
#   it waits, is queued, also in a job that pauses, or is rebuilt
# Fault (locks): the smallest relations of a job are held without end, as many as it has workers, and
#   more; a cancel, and the end of max_duration, while one has given its turn
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

# ---- locks of the long phase, which the copy waits for while it has others ------------
# A session with a short deadlock_timeout has the lock of the index, and wants the table.
($deadlocks, $not_moved) = (0, 0);
$s[0]->run("SET deadlock_timeout = '100ms'");
foreach my $round (1 .. 12)
{
	my $to = target('a_k');
	$s[0]->run('BEGIN; REINDEX INDEX a_k');
	my $job = $s[1]->run("SELECT job FROM move_indexes('a_k', '$to', method => 'copy', wait => false, settings => "
		. q['{"lock_timeout": "5ms"}')]);
	poll_until($node, "SELECT count(*) FROM pg_locks WHERE relation = 'a_k'::regclass AND NOT granted", '1', 'the copy wants the index');
	$s[0]->send('LOCK TABLE a IN ACCESS EXCLUSIVE MODE');
	$s[0]->answer;
	$deadlocks++ if $s[0]->errors =~ /40P01/;
	$s[0]->run('ROLLBACK');
	$s[1]->run("CALL wait_for_move($job, raise => false)");
	$not_moved++ if $look->run("SELECT status, sqlstate FROM index_mover_history WHERE job = $job") ne 'moved|';
}
is($deadlocks, 0, 'REINDEX, then a lock of the table, 12 times beside a copy that waits for its locks: no deadlock');
is($not_moved, 0, 'and the index is moved');
$s[0]->run('RESET deadlock_timeout');

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
	# in every other round of a kind a session keeps the first of them from ending, so
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
	$bad{$name}++, diag "round $round, $name by @method: neither has moved it" if "@said" !~ /moved|skipped/;
}
is($deadlocks, 0, "two moves, $ROUNDS times: no deadlock");
is_deeply(\%bad, {}, 'each is done, or told at once that another does it');
cmp_ok($met{$_} || 0, '>=', 1, "$_: they have met") for grep { !/opposite/ } sort keys %pairs;
ok(!$met{'two tables in opposite directions'}, 'who works on another table is not told anything');
all_right($node, $_, "two moves, $_", within => 5, max_keys => 50) for 'a', 'b', 'p1';
note "count: two moves at once, rounds $ROUNDS";
note "count: two moves at once, deadlocks $deadlocks";

# ---- relations that others hold without end ---------------------------------------------
# The smallest ones first, the only worker of the job: the rest is moved, in turn.
$node->safe_psql('postgres', <<'SQL');
SET default_tablespace = regress_slow;
CREATE SCHEMA held;
CREATE TABLE held.a AS SELECT g AS i, repeat('x', 10) AS t FROM generate_series(1, 10) g;
CREATE TABLE held.b AS SELECT g AS i, repeat('x', 10) AS t FROM generate_series(1, 1000) g;
CREATE TABLE held.c AS SELECT g AS i, repeat('x', 10) AS t FROM generate_series(1, 2000) g;
CREATE TABLE held.free AS SELECT g AS i, repeat('x', 10) AS t FROM generate_series(1, 20000) g;
ALTER TABLE held.a ADD PRIMARY KEY (i) USING INDEX TABLESPACE pg_default;
ALTER TABLE held.b ADD PRIMARY KEY (i) USING INDEX TABLESPACE pg_default;
ALTER TABLE held.c ADD PRIMARY KEY (i) USING INDEX TABLESPACE pg_default;
ALTER TABLE held.free ADD PRIMARY KEY (i) USING INDEX TABLESPACE pg_default;
CREATE TABLE held.parts (i int) PARTITION BY RANGE (i);
CREATE TABLE held.part PARTITION OF held.parts FOR VALUES FROM (0) TO (100000);
CREATE INDEX part_i ON held.part (i);
INSERT INTO held.parts SELECT generate_series(1, 30000);
CREATE SCHEMA other;
CREATE TABLE other.one AS SELECT 1 AS i;
CREATE TABLE other.two AS SELECT 2 AS i;
SELECT oracle.remember_keys(c), oracle.remember_metadata(c)
  FROM unnest('{held.a, held.b, held.c, held.free, held.part}'::regclass[]) c;
SQL
my @holders = map { IndexMover::Session->new($node) } 1 .. 3;
$holders[$_]->run('BEGIN; SELECT count(*) FROM held.' . ('a', 'b', 'c')[$_]) for 0 .. 2;
sub states
{
	my ($job) = @_;
	return $look->run("SELECT string_agg(split_part(name, '.', 2) || ' ' || status, ', ' ORDER BY name) FROM index_mover_history "
		. "WHERE job = $job AND name ~ '^(held|other)' AND kind !~ 'toast'");
}
my $job = $look->run("SELECT max(job) FROM evacuate_tablespace('regress_slow', 'regress_fast', wait => false, "
	. q[settings => '{"max_workers": 1}') WHERE name !~ '^(a|b|p)']);
my $of_job = "FROM index_mover_history WHERE job = $job AND name ~ '^held' AND kind !~ 'toast'";
poll_until($node, "SELECT string_agg(name, ', ' ORDER BY name) $of_job AND status = 'moved'",
	'held.free, held.part, held.part_i, held.parts', 'whatever no session holds is moved');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND phase = 'waiting for lock to swap' "
	. "AND blocked_by <> '{}'", '1', 'and one copy waits, as many as there are workers');
like($look->run("SELECT string_agg(message, ' ') $of_job AND status = 'queued'"),
	qr/^(It has waited \d+ s for its lock; other relations of the job are moved first\. ?){2}$/,
	'the history says why the others are queued');
my ($queued) = $look->run("SELECT min(split_part(name, '.', 2)) $of_job AND status = 'queued'");
$holders[ ord($queued) - ord('a') ]->run('COMMIT');
poll_until($node, "SELECT status $of_job AND name = 'held.$queued'", 'moved',
	'which is moved when it is free, while the others wait');
my ($last) = $look->run("SELECT min(split_part(name, '.', 2)) $of_job AND status = 'running'");
$holders[ ord($last) - ord('a') ]->run('COMMIT');
poll_until($node, "SELECT status $of_job AND name = 'held.$last'", 'moved',
	'one that waits is moved, too, when it is free');
$look->run("SELECT cancel_move($job)");
wait_for_no_worker($node);
like(states($job), qr/\bcanceled\b/, 'the last one is canceled');
unlike(states($job), qr/queued|running|failed/, 'and none is forgotten');
$_->run('ROLLBACK') for @holders;

# the time until swap_after is no work that a copy would lose
$holders[0]->run('BEGIN; SELECT count(*) FROM other.one');
my $swap_after = $look->run("SELECT date_trunc('second', now()) + '40 s'");
$job = $look->run("SELECT max(job) FROM move_schema_tables('other', 'pg_default', wait => false, "
	. qq[settings => '{"max_workers": 1, "swap_after": "$swap_after"}')]);
poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND name = 'other.two'", 'moved', 'a copy gives its turn');
cmp_ok($look->run("SELECT extract(epoch FROM finished_at - '$swap_after') FROM index_mover_history "
		. "WHERE job = $job AND name = 'other.two'"), '<', 30, 'after swap_after, when it has waited as long as it has worked');
$look->run("SELECT cancel_move($job)");
wait_for_no_worker($node);
$_->run('ROLLBACK') for @holders;
$look->run("SELECT count(*) FROM move_table('other.two', 'regress_slow')");

# one worker: the others of a job that is canceled, or has had its time, while one has given its turn
$holders[0]->run('BEGIN; SELECT count(*) FROM other.one');
$holders[1]->run('BEGIN; SELECT count(*) FROM other.two');
foreach my $end ('cancel', 'max_duration')
{
	my $duration = $end eq 'cancel' ? 0 : 3;
	$job = $look->run("SELECT max(job) FROM move_schema_tables('other', 'pg_default', wait => false, "
		. qq[settings => '{"max_workers": 1, "max_duration": $duration}')]);
	if ($end eq 'cancel')
	{
		poll_until($node, "SELECT count(*) FROM index_mover_history WHERE job = $job AND message ~ '^It has waited'", '1',
			'one gives its turn');
		$look->run("SELECT cancel_move($job)");
	}
	wait_for_no_worker($node);
	my $outcome = $end eq 'cancel' ? 'canceled' : 'skipped';
	is(states($job), "one $outcome, two $outcome", "$end, while one has given its turn");
	is($look->run("SELECT string_agg(message, '; ' ORDER BY name) FROM index_mover_history WHERE job = $job"), $end eq 'cancel' ?
		'the job was canceled; the job was canceled' :
		'its lock could not be had before index_mover.max_duration was over; not started: index_mover.max_duration was over',
		"$end: the history says so");
}
$_->end for @holders;
all_right($node, "held.$_", "held, $_", within => 5) for 'a', 'b', 'c', 'free', 'part';

# ---- the owner of a table, and another role's job --------------------------------------------
# (17: MAINTAIN is enough to move its indexes; before, one must be a member of the owner)
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE team; CREATE ROLE others; CREATE ROLE owner IN ROLE team; CREATE ROLE stranger; CREATE ROLE mover;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO team, others, mover;
GRANT SET ON PARAMETER index_mover.max_workers TO mover;
CREATE SCHEMA own;
GRANT ALL ON SCHEMA own TO PUBLIC;
CREATE TABLE own.one AS SELECT 1 AS i; CREATE INDEX one_i ON own.one (i);
CREATE TABLE own.two AS SELECT generate_series(1, 1000) AS i; CREATE INDEX two_i ON own.two (i);
ALTER TABLE own.one OWNER TO team; ALTER TABLE own.two OWNER TO others;
DO $$ BEGIN
  IF current_setting('server_version_num')::int >= 170000 THEN GRANT MAINTAIN ON own.one, own.two TO mover;
  ELSE GRANT team, others TO mover; END IF;
END $$;
SQL
sub own_states
{
	return $look->run("SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM index_mover_history WHERE job = $_[0]");
}
sub tried { my ($session, $sql) = @_; $session->send($sql); return $session->answer; }
my %as = map { my $s = IndexMover::Session->new($node); $s->run("SET client_min_messages = warning; SET ROLE $_"); ($_ => $s) }
  'owner', 'others', 'stranger', 'mover';
my $move_own = "move_schema_indexes('own', 'regress_slow', method => 'copy', wait => false, settings => "
	. q('{"max_workers": 1, "swap_after": "infinity"}');
$job = $as{mover}->run("SELECT max(job) FROM $move_own)");
poll_until($node, "SELECT name FROM index_mover_progress WHERE job = $job AND phase = 'waiting for time to swap'", 'own.one_i',
	'a job waits');
is(tried($as{stranger}, "SELECT cancel_move($job)"), '', 'a role that has nothing to do with it');
like($as{stranger}->errors, qr/42501: permission denied to control job $job/, 'may not cancel the job');
is($as{owner}->run("SELECT cancel_move($job)"), '1', 'the owner of one table may end the move of it');
poll_until($node, "SELECT name FROM index_mover_progress WHERE job = $job AND phase = 'waiting for time to swap'", 'own.two_i',
	'and the job goes on with the next one');
is($look->run("SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job AND name = 'own.one_i'"),
	'skipped|57014|the owner of the table has canceled its move', 'the history says so');
is($as{owner}->run('SELECT cancel_move()'), '0', 'but not that of the other');
is(tried($as{owner}, "SELECT cancel_move($job)"), '0', 'nor by the number of the job');
is($as{owner}->run("SELECT status FROM move_table('own.one', 'regress_fast')"), 'moved', 'he moves his table himself');
$as{mover}->run("SELECT resume_move($job)");
wait_for_no_worker($node);
is(own_states($job), 'own.one_i skipped, own.two_i moved', 'the other index has moved');

# a table that is still queued, in a job that pauses, is free at once: no runner touches it any more
$job = $as{mover}->run('SELECT max(job) FROM ' . $move_own =~ s/regress_slow/regress_fast/r . ')');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND phase = 'waiting for time to swap'", '1', 'one waits');
$as{mover}->run("SELECT pause_move($job)");
is($as{others}->run("SELECT cancel_move($job)"), '1', 'a move is canceled by the owner while the job pauses');
is(tried($as{others}, "SELECT status FROM move_table('own.two', 'regress_fast')"), 'moved', 'and the owner moves the table');
is(own_states($job), 'own.one_i paused, own.two_i paused', 'before the job goes on');
tried($as{owner}, "SELECT * FROM move_table('own.one', 'regress_slow')");
like($as{owner}->errors, qr/55006: relation "one" is already being moved/, 'not a table that the job works on');
$as{mover}->run("SELECT alter_move($job, 'swap_after', ''), resume_move($job)");
wait_for_no_worker($node);
is(own_states($job), 'own.one_i moved, own.two_i skipped', 'the job leaves the table alone');
$look->run("SELECT count(*) FROM move_indexes('own.one', 'pg_default', 'copy')");

# a table that is still queued, with NULL; a rebuild, which waits for a writer; a superuser's job
$job = $as{mover}->run('SELECT max(job) FROM ' . $move_own =~ s/regress_slow/regress_fast/r . ')');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND phase = 'waiting for time to swap'", '1', 'one waits');
$look->run("GRANT others TO owner");
is($as{owner}->run('SELECT cancel_move()'), '1', 'both tables of a job are his');
wait_for_no_worker($node);
is(own_states($job), 'own.one_i skipped, own.two_i skipped', 'and the job has ended');
$writer->run('BEGIN; INSERT INTO own.one VALUES (3)');
$job = $as{mover}->run("SELECT max(job) FROM move_indexes('own.one', 'regress_fast', 'rebuild', wait => false)");
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND phase ~ '^waiting for'", '1', 'a rebuild waits');
is($as{owner}->run("SELECT cancel_move($job)"), '1', 'the move of an index of his');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $job", '0', 'ends while the writer stays');
is(own_states($job), 'own.one_i skipped', 'which is skipped, too');
$writer->run('ROLLBACK');
# after the swap of a rebuild, whose old index a reader keeps: the job goes on
$look->run("REVOKE others FROM owner");
$writer->run('BEGIN; SELECT FROM own.one');
$job = $as{mover}->run("SELECT max(job) FROM move_schema_indexes('own', 'regress_fast', 'rebuild', wait => false, settings => "
	. q['{"max_workers": 1}')]);
poll_until($node, "SELECT phase FROM index_mover_progress WHERE job = $job AND name = 'own.one_i'",
	'waiting for readers before marking dead', 'a rebuild waits for a reader');
is($as{owner}->run("SELECT cancel_move($job)"), '1', 'the move of an index that has its new file');
poll_until($node, "SELECT status FROM index_mover_history WHERE job = $job AND name = 'own.two_i'", 'moved', 'ends while the reader stays');
is($look->run("SELECT string_agg(name || ' ' || status || coalesce(' ' || sqlstate || ' ' || message, ''), ', ' ORDER BY name) "
		. "FROM index_mover_history WHERE job = $job"),
	'own.one_i moved 57014 the owner of the table has canceled its move, own.two_i moved', 'the history says so');
$writer->run('ROLLBACK');
wait_for_no_worker($node);
$job = $look->run("SELECT max(job) FROM $move_own)");
is(tried($as{owner}, "SELECT cancel_move($job)"), '', "a superuser's job");
like($as{owner}->errors, qr/42501: permission denied to control job $job/, 'is his own');
$look->run("SELECT cancel_move($job)");
wait_for_no_worker($node);
leftovers_ok($node, 'moves that owners have ended', within => 5);
files_ok($node, 'moves that owners have ended');
$_->end for values %as;

$_->end for @s, $look, $writer;
$node->stop;
done_testing();
