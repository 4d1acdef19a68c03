# Twelve months of hot sets that change, half a day at a step: policies with a budget
# follow one that changes weekly, and one of the end of the month, and do not follow two of day and
# night, which take turns.  Compared with an oracle that knows the reads to come, and with the best
# placement that never changes.
#
# Time passes by making all samples and moves half a day older; reads are made in the table of samples.
# So are samples: take_index_sample() keeps the last of each day of the calendar, which here stands still.
# bench/tiers is the same with more relations, sets that change faster, and a run each hour.
#
# Fault (tables): hot sets that change weekly, at the end of the month, and with day and night, for a year
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use List::Util qw(sum);
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();    # tablespaces on devices of their own

my ($relations, $fits) = (10, 2);
my $steps = 365 * 2;
my $learning = 14 * 2;

# The indexes that are hot on a day, or in a step, of each policy's schema, and how much hotter than others they are.
my %hot = (
	weekly => sub { my $set = int($_[0] / 7) % 5; return ($set * 2 => 100, $set * 2 + 1 => 100) },
	turns => sub { my $set = $_[1] % 2; return ($set * 2 => 100, $set * 2 + 1 => 100) },
	monthly => sub { return (0 => 100, 1 => 100, $_[0] % 30 >= 27 ? (8 => 300, 9 => 300) : ()) });
my @names = sort keys %hot;

sub is_closing { return int($_[0] / 2) % 30 >= 27 }

# Blocks that each index is asked for in a step, the same in each run of the test.
sub reads_of
{
	my ($name, $step) = @_;
	my %factor = $hot{$name}->(int($step / 2), $step);
	return [ map { int(43200 * (0.5 + ($step * 13 + $_ * 7) % 11 / 10) * ($factor{$_} // 1)) } 0 .. $relations - 1 ];
}

sub best { my ($reads) = @_; return (sort { $reads->[$b] <=> $reads->[$a] || $a <=> $b } 0 .. $relations - 1)[ 0 .. $fits - 1 ]; }

# The hits of each step, and the number of moves, of one that knows what the step will read.
sub oracle
{
	my ($reads) = @_;
	my (%place, @hits);
	my $moves = 0;
	foreach my $now (@$reads)
	{
		my %wanted = map { $_ => 1 } best($now);
		my @new = sort { $now->[$b] <=> $now->[$a] } grep { !$place{$_} } keys %wanted;
		my @old = sort { $now->[$a] <=> $now->[$b] } grep { !$wanted{$_} } keys %place;
		foreach my $in (@new)
		{
			my $out = shift @old;
			# as hysteresis does: not for noise
			next if defined $out && $now->[$in] <= 1.2 * $now->[$out];
			$moves += defined $out ? 2 : 1;
			delete $place{$out} if defined $out;
			$place{$in} = 1;
		}
		push @hits, sum(map { $now->[$_] } keys %place);
	}
	return (\@hits, $moves);
}

my $node = new_node('months', conf => "log_error_verbosity = default\nmax_worker_processes = 16");
own_devices($node);
my $session = IndexMover::Session->new($node);
sub sql { return $session->run($_[0]); }

sql('SET client_min_messages = warning');
foreach my $name (@names)
{
	sql("CREATE SCHEMA $name");
	sql("CREATE TABLE $name.${name}_$_ (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow); INSERT INTO $name.${name}_$_ SELECT "
		. 'generate_series(1, 100)')
	  foreach 0 .. $relations - 1;
	sql("INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, every, budget) VALUES ('$name', '$name', "
		. "'regress_slow', 'regress_fast', 'indexes', '12 hours', $fits * pg_relation_size('$name.${name}_0_pkey'))");
}
sql(<<'SQL');
SELECT take_index_sample();
CREATE TABLE now AS TABLE index_mover.sample;
TRUNCATE index_mover.sample;
INSERT INTO index_mover.sample SELECT clock_timestamp(), 0, NULL, 0;
INSERT INTO index_mover.sample SELECT (SELECT max(taken_at) FROM index_mover.sample), i.indrelid, c.relname, 0, -1e15::bigint, 1
  FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE c.relname ~ '^(weekly|monthly|turns)_\d+_pkey$'
SQL
my (%reads, %hits, %moves, %place, %used);
my ($vain, $early) = (0, 0);
foreach my $step (0 .. $steps - 1)
{
	my @values;
	foreach my $name (@names)
	{
		my $now = reads_of($name, $step);
		push @{ $reads{$name} }, $now;
		push @{ $hits{$name} }, sum(0, map { $now->[$_] } keys %{ $place{$name} });
		$used{$name}{$_} += $now->[$_] foreach keys %{ $place{$name} };
		push @values, map { "('${name}_${_}_pkey', $now->[$_])" } 0 .. $relations - 1;
	}
	my $list = join ', ', @values;
	# of each day a sample is kept, and all of the last week
	my $thinned = $step % 2 ? "now() - interval '7 days 6 hours'" : 'now()';
	# the counters of now stay what they are, so those before go down
	my $moved = sql(<<SQL);
DELETE FROM index_mover.sample
 WHERE taken_at < now() - interval '28 days' OR taken_at BETWEEN $thinned AND now() - interval '6 days 18 hours';
UPDATE index_mover.sample s
   SET taken_at = s.taken_at - interval '12 hours', blks_read = s.blks_read - v.n, blks_wanted = s.blks_wanted - v.n
  FROM (SELECT o.ctid, coalesce(r.n, 0) AS n FROM index_mover.sample o LEFT JOIN (VALUES $list) r(name, n) ON r.name = o.index_name) v
 WHERE v.ctid = s.ctid;
UPDATE index_mover.move_log SET finished_at = finished_at - interval '12 hours' WHERE finished_at > now() - interval '9 days';
INSERT INTO index_mover.sample SELECT now(), table_oid, index_name, blks_read, blks_wanted, index_scans, other_scans, changes
  FROM now;
SELECT m.name FROM run_tier_policies(wait => true) m WHERE m.kind = 'index' AND m.status = 'moved'
SQL
	sql('VACUUM index_mover.sample; VACUUM index_mover.move_log') if $step % 30 == 0;
	while ($moved =~ /(\w+)_(\d+)_pkey/g)
	{
		my ($name, $index) = ($1, $2);
		my $since = delete $place{$name}{$index};
		$moves{$name}++;
		if (!defined $since)
		{
			$place{$name}{$index} = $step;
			$used{$name}{$index} = 0;
			next;
		}
		$early++ if $step - $since < 2;
		# it was read there no more than a cold one would have been
		$vain++ if $used{$name}{$index} < 2 * 43200 * ($step - $since);
	}
}
my $why = qr/the hottest relations take turns too fast to be followed: without moves \d+% more reads would have met/;
like(sql("SELECT reason FROM tier_plan('turns') WHERE relation IS NULL"), qr/^$why "regress_fast"; they count by a half-life of 14 days$/,
	'sets that take turns: the plan says that they are not followed');
is(sql("SELECT count(*) FROM tier_plan() WHERE relation IS NULL AND policy <> 'turns'"), '0', 'others are followed');
my %oracle = map { $_ => [ oracle($reads{$_}) ] } @names;
my $share = sub { my ($name, @at) = @_; return sum(@{ $hits{$name} }[@at]) / sum(@{ $oracle{$name}[0] }[@at]) };
my @learned = $learning .. $steps - 1;
foreach my $name (@names)
{
	my @all = map { my $r = $_; sum(map { $reads{$name}[$_][$r] } @learned) } 0 .. $relations - 1;
	my $static = sum(@all[ best(\@all) ]);
	my $reached = sum(@{ $hits{$name} }[@learned]);
	note sprintf('%s: %.0f %% of the oracle, with %d moves, and %d of the oracle', $name, 100 * $share->($name, @learned), $moves{$name},
		$oracle{$name}[1]);
	note sprintf('of the reads %.0f %% hit, and %.0f %% in the best placement that never changes', map { 100 * $_ / sum(@all) } $reached,
		$static);
	cmp_ok($moves{$name}, '<=', 1.5 * $oracle{$name}[1], "$name: it moves at most half as much again as an oracle");
	# what was read most, by chance, is known afterwards only
	cmp_ok($reached, '>=', 0.97 * $static, "$name: it is not worse than the best placement that never changes");
}
cmp_ok($share->('weekly', @learned), '>=', 0.8, 'a set that changes weekly: 80 % of what an oracle gets');
cmp_ok($share->('monthly', grep { is_closing($_) } @learned), '>=', 0.55, 'the end of the month: 55 % in those days');
is($vain, 0, 'nothing was moved in vain');
is($early, 0, 'nothing has left within min_stay');
$session->end;
$node->stop;
done_testing();
