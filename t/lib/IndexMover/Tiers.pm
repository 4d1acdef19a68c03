# IndexMover::Tiers
#   Orders of 24 months in as many partitions, a policy that moves them by age, another
#   that would move them on at once, but for min_stay, and a clock, by which the ages of
#   both policies are set: set_clock(timestamptz), in SQL.
#
#   orders_by_month($node);
#   tiers_by_month_ok($node, 'name', $steps, sub { run the policies; wait_for_jobs($node) });
package IndexMover::Tiers;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Test;
use Test::More;

our @EXPORT = qw(orders_by_month tiers_by_month_ok wait_for_jobs);

# No job is left, not even one that has not begun.
sub wait_for_jobs
{
	my ($node) = @_;
	return poll_until($node, 'SELECT count(*) = 0 FROM index_mover.alive()', 't', 'the jobs');
}

# The table, again; the clock stands at the beginning, where nothing is old.
sub orders_by_month
{
	my ($node) = @_;
	$node->safe_psql('postgres', <<'SQL');
SET client_min_messages = warning;
DROP TABLE IF EXISTS orders, clock CASCADE;
DELETE FROM tier_policy;
CREATE TABLE orders (id bigint, at timestamptz NOT NULL, what text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE INDEX ON orders (at);
DO $$ BEGIN FOR m IN 0 .. 23 LOOP
	EXECUTE format('CREATE TABLE orders_%s PARTITION OF orders FOR VALUES FROM (%L) TO (%L)',
		lpad(m::text, 2, '0'), timestamptz '2024-01-01 UTC' + make_interval(months => m), timestamptz '2024-01-01 UTC'
			+ make_interval(months => m + 1));
END LOOP; END $$;
CREATE TABLE orders_rest PARTITION OF orders DEFAULT;
INSERT INTO orders SELECT g, timestamptz '2024-01-01 UTC' + make_interval(hours => g % 17000), 'order ' || g
  FROM generate_series(1, 30000) g;
CREATE TABLE clock (now timestamptz);
INSERT INTO clock VALUES ('2024-01-15 UTC');
CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT now FROM public.clock';
CREATE OR REPLACE FUNCTION set_clock(at timestamptz) RETURNS void LANGUAGE sql AS $$
	UPDATE public.clock SET now = at;
	UPDATE public.tier_policy SET older_than = make_interval(secs =>
		extract(epoch FROM statement_timestamp() - at + CASE name WHEN 'old orders' THEN '90 days' ELSE '365 days' END::interval)::float8)
	  WHERE name ~ '^old(est)? orders$'
$$;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('old orders', 'orders', 'regress_slow', '0');
INSERT INTO tier_policy (name, relation, from_tablespace, to_tablespace, older_than)
VALUES ('oldest orders', 'orders', 'regress_slow', 'regress_fast', '0');
SELECT set_clock(now) FROM clock;
SQL
	return;
}

# Put the clock forward in so many steps, until all but the last are old, under load;
# after each, carry out the policies, which returns when their jobs have ended.
sub tiers_by_month_ok
{
	my ($node, $name, $steps, $carry_out) = @_;
	my $sql = sub { return $node->safe_psql('postgres', $_[0]) };
	my $before = $sql->('SELECT coalesce(max(job), 0) FROM index_mover_history');

	my $writer = start_call($node, 'writer', <<'SQL');
DO $$ BEGIN FOR i IN 1 .. 10000000 LOOP
	INSERT INTO orders SELECT 100000 + i, timestamptz '2024-01-01 UTC' + make_interval(hours => (i * 37) % 17000), 'new';
	UPDATE orders SET what = 'changed' WHERE id = 1 + i % 30000;
	COMMIT;
END LOOP; END $$;
SQL
	poll_until($node, 'SELECT count(*) > 0 FROM orders WHERE id > 100000', 't', 'the writer');

	my $misplaced = 0;
	for my $step (1 .. $steps)
	{
		$sql->("SELECT set_clock(timestamptz '2024-01-15 UTC' + make_interval(days => " . int($step * 800 / $steps) . '))');
		$carry_out->();
		$misplaced += $sql->(<<'SQL');
SELECT count(*) FROM pg_partition_tree('orders') p
  JOIN pg_class r ON r.oid = p.relid AND p.isleaf
 CROSS JOIN LATERAL (SELECT r.oid AS relation,
   coalesce(substring(pg_get_expr(r.relpartbound, r.oid) FROM $re$TO \('(.*)'\)$re$), 'DEFAULT') AS upper) l
  JOIN pg_class c ON c.oid = l.relation OR c.oid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = l.relation)
  LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
 WHERE l.upper <> 'DEFAULT' AND (t.spcname IS NOT DISTINCT FROM 'regress_slow') <> (l.upper::timestamptz <= clock() - interval '90 days')
SQL
	}
	is($misplaced, 0, "$name: $steps steps: every partition and index is where its age says after each");
	my $in = sub { return $sql->(
		"SELECT count(*) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.relkind = 'r' AND t.spcname = '$_[0]' "
			. "AND c.relname ~ '^orders'") };
	my $old = $in->('regress_slow');
	cmp_ok($old, '>', 20, "$name: most are old by now");
	is($sql->("SELECT count(*) FROM (SELECT FROM index_mover_history WHERE job > $before AND status = 'moved' GROUP BY name HAVING "
		. "count(*) > 1) m"),
		0, "$name: nothing has moved twice");
	is($sql->("SELECT count(DISTINCT policy) || ' ' || min(policy) FROM index_mover_jobs WHERE job > $before"),
		'1 old orders', "$name: the history tells which policy moved what");
	my $oldest = $sql->("SELECT count(*) FROM tier_plan('oldest orders') WHERE NOT moves AND reason ~ 'but job \\d+ has moved it less "
		. "than 7 days ago'");
	cmp_ok($oldest, '>', 10, "$name: what another policy wants stays for min_stay");
	$sql->("UPDATE tier_policy SET min_stay = '0' WHERE name = 'oldest orders'");
	$carry_out->();
	is(join(' ', map { $in->($_) } 'regress_slow', 'regress_fast'), ($old - $oldest) . " $oldest", "$name: and no longer");
	is($sql->("SELECT count(*) FROM index_mover_history WHERE job > $before AND status NOT IN ('moved', 'skipped')"), 0,
		"$name: nothing failed");
	$sql->("DELETE FROM tier_policy WHERE name = 'oldest orders'");
	note "$name: ", $sql->(<<SQL);
SELECT format('%s moves in %s jobs, exclusive locks up to %s; the writer has committed %s times', count(*), count(DISTINCT job),
  max(lock_time), (SELECT count(*) FROM orders WHERE id > 100000))
  FROM index_mover_history WHERE job > $before AND status = 'moved'
SQL
	$sql->("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'writer'");
	my (undef, undef, $errors) = finish_call($writer);
	is(join(' ', $errors =~ /(?:ERROR|FATAL|PANIC):  (\w+)/g), '57P01', "$name: no transaction of the writer failed");
	return;
}

1;
