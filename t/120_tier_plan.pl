# Tier policies: 24 monthly partitions under insert load, while the clock of the policy
# goes on month by month; every partition ends where its age says, frozen, and later
# vacuums pass over it; nothing moves twice, and no client fails.  Then what hinders
# a policy, keys of other types, a budget, and a file system that is full.
#
# Fault (tables): 24 partitions under a policy of age, month by month; what hinders a policy; a
#   budget; a full file system (also 070)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Storage;
use IndexMover::Test;
use IndexMover::Tiers;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();    # file systems that say what the test says

my $node = new_node('tiers', conf => 'max_worker_processes = 16');
sub sql { return $node->safe_psql('postgres', $_[0]); }

# ---- month by month, under load ------------------------------------------------------------
orders_by_month($node);
tiers_by_month_ok($node, 'month by month', faults() ? 100 : 9, sub { sql('SELECT count(*) FROM run_tier_policies()'); wait_for_jobs($node);
	});

# ---- frozen before, and the map goes along: a later vacuum reads next to nothing ---------------
sql("UPDATE clock SET now = '2026-06-01 UTC'");
sql("CREATE TABLE cold (LIKE orders); INSERT INTO cold SELECT g, timestamptz '2023-12-15 UTC', 'old order ' || g FROM generate_series(1, "
	. "30000) g");
sql("ALTER TABLE cold ADD PRIMARY KEY (id, at); ALTER TABLE orders ATTACH PARTITION cold FOR VALUES FROM ('2023-12-01 UTC') TO "
	. "('2024-01-01 UTC')");
is(sql("SELECT string_agg(relation::text, ' ') FROM tier_plan() WHERE moves"), 'cold orders_23', 'one more, and the last');
sql('SELECT count(*) FROM run_tier_policies()');
wait_for_jobs($node);
my $frozen = sql("SELECT relallvisible = relpages AND relpages > 100 FROM pg_class WHERE relname = 'cold'");
is($frozen, 't', 'it was vacuumed');
my (undef, undef, $verbose) = $node->psql('postgres', 'VACUUM (VERBOSE, FREEZE) cold');
my ($scanned, $pages) = $verbose =~ /(\d+) scanned \([\d.]+% of total\)/
	? ($1, sql("SELECT relpages FROM pg_class WHERE relname = 'cold'")) : (-1, 0);
ok($scanned >= 0 && $scanned <= 2, "the next vacuum against wraparound reads $scanned of $pages pages");

# ---- what hinders it: rows, not errors -------------------------------------------------------
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE days (d date, n int) PARTITION BY RANGE (d);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM ('2020-02-01') TO (MAXVALUE);
CREATE TABLE numbers (k int, n int) PARTITION BY RANGE (k);
CREATE TABLE numbers_1 PARTITION OF numbers FOR VALUES FROM (0) TO (1000);
CREATE TABLE numbers_2 PARTITION OF numbers FOR VALUES FROM (1000) TO (2000) PARTITION BY LIST (n);
CREATE TABLE numbers_2_a PARTITION OF numbers_2 FOR VALUES IN (1, 2);
CREATE TABLE lists (k int) PARTITION BY LIST (k);
CREATE TABLE lists_1 PARTITION OF lists FOR VALUES IN (1);
CREATE DOMAIN day AS date; CREATE TABLE of_domain (d day) PARTITION BY RANGE (d);
CREATE TABLE of_domain_1 PARTITION OF of_domain FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE FUNCTION today() RETURNS day LANGUAGE sql AS 'SELECT current_date';
CREATE FUNCTION key_of(interval) RETURNS int LANGUAGE sql AS 'SELECT 5000 - extract(day FROM $1)::int';
INSERT INTO numbers SELECT g, 1 FROM generate_series(0, 1999) g;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, now_function) VALUES
	('days', 'days', 'regress_slow', '1 year', NULL),
	('domain', 'of_domain', 'regress_slow', '1 year', 'today()'),
	('number', 'numbers', 'regress_slow', '3500 days', 'key_of(interval)'),
	('number without', 'numbers', 'regress_slow', '1 day', NULL),
	('lists', 'lists', 'regress_slow', '1 day', NULL),
	('nowhere', 'days', 'no_such_place', '1 year', NULL);
SQL
is(sql('SELECT policy, relation, moves, reason FROM tier_plan() ORDER BY policy, relation::text'), <<'ROWS' =~ s/\n\z//r,
days|days_1|t|its rows end at 2020-02-01
days|days_2|f|the partition has no upper bound
domain|of_domain_1|t|its rows end at 2020-02-01
lists|lists_1|f|it is in no range of dates, timestamps or integers
nowhere||f|tablespace "no_such_place" does not exist
number|numbers_1|t|its rows end at 1000
number without|numbers_1|f|its rows end at 1000; but an integer key needs a now_function(interval) that returns an integer
number without|numbers_2_a|f|its rows end at 2000; but an integer key needs a now_function(interval) that returns an integer
ROWS
	'what a policy does, and what it leaves alone');
sql('SELECT count(*) FROM run_tier_policies(wait => true)');
is(sql("SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE "
	. "t.spcname = 'regress_slow' AND c.relname ~ '^(days|numbers|lists)'"),
	'days_1 numbers_1', 'they are moved, one job for each policy');
sql(q{UPDATE tier_policy SET older_than = '3000 days', max_bytes_per_run = 1000 WHERE name = 'number'});
is(sql("SELECT relation, moves, reason FROM tier_plan('number')"),
	'numbers_2_a|f|its rows end at 2000; but it is larger than max_bytes_per_run', 'a bound for each run');
sql(q{UPDATE tier_policy SET to_tablespace = 'regress_fast', max_bytes_per_run = NULL WHERE name = 'number'});
like(sql("SELECT relation, moves, reason FROM tier_plan('number') ORDER BY 1 LIMIT 1"),
	qr/^numbers_1\|f\|its rows end at 1000; but job \d+ has moved it less than 7 days ago$/, 'what was moved stays for min_stay');
is(sql("ALTER TABLE numbers DETACH PARTITION numbers_1; SELECT count(*) FROM tier_plan('number') WHERE relation = 'numbers_1'::regclass"),
	0, 'a partition that was detached');

# one that is being moved
my $job = sql(q{SELECT max(job) FROM move_table('numbers_2_a', 'regress_slow', wait => false, settings => '{"swap_after": "infinity"}')});
like(sql("SELECT reason FROM tier_plan('number') WHERE relation = 'numbers_2_a'::regclass"), qr/but job $job is at work on its table$/,
	'a partition that is being moved');
sql("SELECT cancel_move($job)");
wait_for_job_end($node, $job);

# a function that is none, cannot write, or fails: each has its row, and stops none of the others
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE public.called (who name);
CREATE FUNCTION writes(interval) RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.called VALUES (current_user); RETURN 1; END $$;
CREATE FUNCTION fails(interval) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0';
CREATE FUNCTION many() RETURNS SETOF date LANGUAGE sql AS 'SELECT current_date';
SELECT take_index_sample();
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay) VALUES ('plain', 'days', 'regress_fast', '1 year', '0');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, now_function) VALUES
	('fails', 'numbers', 'regress_fast', '1 day', 'fails(interval)'),
	('dots', 'days', 'regress_fast', '1 day', NULL), ('open', 'days', 'regress_fast', '1 day', NULL),
	('many', 'days', 'regress_fast', '1 day', 'many()'),
	('none', 'days', 'regress_fast', '1 day', 'no_such_function()'),
	('sample', 'numbers', 'regress_fast', '1 day', 'take_index_sample(interval)'),
	('writes', 'numbers', 'regress_fast', '1 day', 'writes(interval)');
ALTER TABLE tier_policy DISABLE TRIGGER tier_policy_check;
UPDATE tier_policy SET now_function = CASE name WHEN 'dots' THEN 'a.b.c.d.e()' ELSE 'foo(()' END WHERE name IN ('dots', 'open');
ALTER TABLE tier_policy ENABLE ALWAYS TRIGGER tier_policy_check;
SQL
my $samples = sql('SELECT count(*) FROM index_mover.sample');
my $shape = 'it must be a function() that returns a date or timestamp, or a function(interval) that returns an integer, and never NULL';
my %reasons = (
	fails => 'now_function "public.fails(interval)" has failed: division by zero',
	dots => 'now_function "a.b.c.d.e()" has failed: improper qualified name (too many dotted names): a.b.c.d.e',
	many => qq(now_function "public.many()" has failed: $shape),
	none => 'now_function "no_such_function()" has failed: function "no_such_function()" does not exist',
	open => 'now_function "foo(()" has failed: improper type name',
	sample => 'now_function "public.take_index_sample(interval)" has failed: cannot execute take_index_sample() in a read-only transaction',
	writes => 'now_function "public.writes(interval)" has failed: cannot execute INSERT in a read-only transaction');
is(sql('SELECT policy, relation, moves, reason FROM tier_plan() WHERE moves OR relation IS NULL ORDER BY policy'),
	join("\n", sort((map { "$_||f|$reasons{$_}" } keys %reasons), 'plain|days_1|t|its rows end at 2020-02-01')) ,
		'functions that serve not: rows');
my (undef, $rows, $said) = $node->psql('postgres', 'SELECT name, status FROM run_tier_policies(wait => true)');
is($rows, 'days_1|moved', 'and the other policy is carried out');
like($said, qr/WARNING:  policy "$_" moves nothing: \Q$reasons{$_}\E/, "a WARNING: $_") foreach sort keys %reasons;
is(join(' ', sql('SELECT count(*) FROM called'), sql('SELECT count(*) FROM index_mover.sample')), "0 $samples", 'nothing is written');
sql('BEGIN; SELECT count(*) FROM tier_plan(); CREATE TABLE writable (); COMMIT');
is(sql("SELECT count(*) FROM tier_plan() WHERE policy = 'fails' AND reason ~ '^its last run has failed: now_function'"), 1,
	'a run that has failed is told of');

# ---- what a policy cannot be -----------------------------------------------------------------
my $needs = 'start_at needs from_tablespace, which is too full then';
my $shares = 'start_at and stop_at must be: 0 < stop_at < start_at <= 1';
foreach my $case (
	[ q{'x', NULL, NULL, 'regress_slow', 'all', NULL, NULL, NULL, NULL}, 'a policy has one of older_than, idle_for, budget and start_at' ],
	[ q{'x', NULL, 'regress_fast', 'regress_slow', 'all', '1 day', 5, NULL, NULL},
		'a policy has one of older_than, idle_for, budget and start_at' ],
	[ q{'x', NULL, 'regress_fast', 'regress_slow', 'all', '1 day', NULL, 0.9, 0.8},
		'a policy has one of older_than, idle_for, budget and start_at' ],
	[ q{'x', NULL, NULL, 'regress_slow', 'some', '1 day', NULL, NULL, NULL}, 'parts must be table, indexes or all' ],
	[ q{'x', NULL, NULL, 'regress_slow', 'all', '-1 day', NULL, NULL, NULL}, 'older_than must not be negative' ],
	[ q{'x', NULL, NULL, 'regress_slow', 'all', NULL, 5, NULL, NULL}, 'a budget needs from_tablespace, where the rest goes back to' ],
	[ q{'x', NULL, 'regress_slow', 'regress_slow', 'all', '1 day', NULL, NULL, NULL},
		'from_tablespace and to_tablespace must not be the same' ],
	[ q{'x', NULL, NULL, 'regress_slow', 'all', NULL, NULL, 0.9, 0.8}, $needs ],
	[ q{'x', NULL, 'regress_fast', 'regress_slow', 'all', NULL, NULL, 0.9, NULL}, 'start_at and stop_at go together' ],
	[ q{'x', NULL, 'regress_fast', 'regress_slow', 'all', '1 day', NULL, NULL, 0.8}, 'start_at and stop_at go together' ],
	(map { [ "'x', NULL, 'regress_fast', 'regress_slow', 'all', NULL, NULL, $_", $shares ] } '0.8, 0.9', '0.8, 0.8', '90, 80', '0.9, 0',
		q{'NaN', 0.5}))
{
	my ($values, $message) = @$case;
	my (undef, undef, $err) = $node->psql('postgres',
		"INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, older_than, budget, start_at, stop_at) VALUES "
			. "($values)");
	like($err, qr/violates check constraint "\Q$message\E"/, "$message: $values");
}

own_devices($node);
# ---- a budget: the hottest, by what index scans read ----------------------------------------------
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE SCHEMA heat;
CREATE TABLE heat.hot (id int PRIMARY KEY, pad text); CREATE TABLE heat.warm (id int PRIMARY KEY, pad text);
CREATE TABLE heat.scanned (id int PRIMARY KEY, pad text);
INSERT INTO heat.hot SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g;
INSERT INTO heat.warm SELECT g, repeat('x', 500) FROM generate_series(1, 2000) g;
INSERT INTO heat.scanned SELECT g, repeat('x', 500) FROM generate_series(1, 60000) g;
VACUUM ANALYZE heat.hot, heat.warm, heat.scanned;
SELECT pg_stat_reset();
INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, budget, min_stay)
  VALUES ('hot', 'heat', 'pg_default', 'regress_fast', 'table', 2000000, '0');
SQL
$node->restart;    # nothing is cached
sql('SELECT take_index_sample()');
sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM heat.hot WHERE id = ANY (ARRAY(SELECT "
	. "generate_series(1, 2000)))");
sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(pad) FROM heat.warm WHERE id IN (1, 100, 200)");
sql('SELECT count(pad) FROM heat.scanned; VACUUM (DISABLE_PAGE_SKIPPING) heat.scanned');
command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', '/dev/null', '-n', 'heat' ], 'pg_dump reads all of it');
poll_until($node, "SELECT heat > 0 FROM relation_heat WHERE relation = 'heat.hot'::regclass", 't', 'statistics');
is(sql("SELECT h.relation, h.reads_per_second > 0, h.heat > 0 FROM relation_heat h WHERE h.relation IN ('heat.scanned'::regclass, "
	. "'heat.hot'::regclass) ORDER BY h.relation::text"),
	"heat.hot|t|t\nheat.scanned|t|f", 'sequential scans, VACUUM and pg_dump heat nothing');
is(sql("SELECT relation, to_tablespace FROM tier_plan('hot') WHERE moves"), 'heat.hot|regress_fast', 'the hottest that fits');
sql("SELECT count(*) FROM run_tier_policies('hot', wait => true)");
is(sql("SELECT count(*) FROM tier_plan('hot')"), 0, 'nothing goes to and fro');
sql("UPDATE tier_policy SET budget = 100000");
is(sql("SELECT relation, to_tablespace, reason FROM tier_plan('hot') WHERE moves"),
	'heat.hot|pg_default|not among the hottest that fit into the budget', 'the rest goes back');
sql("SELECT count(*) FROM run_tier_policies('hot', wait => true)");
is(sql("SELECT reltablespace FROM pg_class WHERE oid = 'heat.hot'::regclass"), 0, 'and is back');

sql("UPDATE tier_policy SET budget = 2000000, parts = 'all', relation = 'heat.hot'");
is(sql("SELECT string_agg(relation::text || ' ' || kind, ', ' ORDER BY relation::text) FROM tier_plan('hot') WHERE moves"),
	'heat.hot table, heat.hot_pkey index', 'a table and its index each by itself');
is(sql("SELECT string_agg(name || ' ' || kind, ', ' ORDER BY name) FROM run_tier_policies('hot', wait => true) WHERE status = 'moved' "
	. "AND kind NOT LIKE 'toast%'"), 'heat.hot table, heat.hot_pkey index', 'as planned');
sql("UPDATE tier_policy SET relation = NULL, budget = (SELECT size + 100000 FROM relation_heat WHERE relation = 'heat.hot'::regclass), "
	. "parts = 'table'");
is(sql("SELECT count(*) FROM tier_plan('hot') WHERE moves"), 0, 'what does not fit makes nothing leave that does');
sql("SELECT move_table('heat.scanned', 'regress_fast')");
sql("UPDATE tier_policy SET min_stay = '7 days'");
is(sql("SELECT relation, moves, reason FROM tier_plan('hot')") =~ s/job \d+/job N/r,
	'heat.scanned|f|not among the hottest that fit into the budget; but job N has moved it less than 7 days ago',
	'nor does what cannot leave yet');
sql("SELECT move_table('heat.scanned', 'pg_default')");
# while a job moves the hottest there, the next does not take its bytes
sql("SELECT move_table('heat.hot', 'pg_default'); UPDATE tier_policy SET min_stay = '0', settings = '{\"swap_after\": \"infinity\"}'");
is(sql("SELECT name FROM run_tier_policies('hot') WHERE kind = 'table'"), 'heat.hot', 'a run that lasts');
like(sql("SELECT relation, moves, reason FROM tier_plan('hot')"), qr/^heat.hot\|f\|\S+ blocks .*; but job \d+ is at work on its table$/,
	'and no other takes its place in the next');
my $hotter = "UPDATE index_mover.sample SET blks_read = blks_read + %d, blks_wanted = blks_wanted + %d
	WHERE table_oid = 'heat.warm'::regclass";
sql(sprintf($hotter, (-1e9) x 2));
is(sql("SELECT count(*) FROM tier_plan('hot') WHERE moves"), 0, 'nor one that is hotter by now');
sql(sprintf($hotter, (1e9) x 2));
sql('SELECT cancel_move()');
wait_for_jobs($node);
# nor the bytes of what no method can move
sql("CREATE UNLOGGED TABLE heat.unlogged TABLESPACE regress_fast AS SELECT * FROM heat.warm");
is(sql("SELECT count(*) FROM tier_plan('hot') WHERE moves"), 0, 'what cannot leave has its bytes of the budget');
is(sql("DROP TABLE heat.unlogged; SELECT relation FROM tier_plan('hot') WHERE moves"), 'heat.hot', 'and nothing else is in the way');
# nor does it go in before those that have left
sql("UPDATE tier_policy SET settings = NULL, max_bytes_per_run = pg_table_size('heat.scanned') + 500000");
sql("SELECT move_table('heat.$_', 'regress_fast')") foreach qw(warm scanned);
is(sql("SELECT string_agg(relation::text || ' ' || moves, ', ' ORDER BY relation::text) FROM tier_plan('hot')"),
	'heat.hot false, heat.scanned false, heat.warm true', 'a run that is too small for all that has to leave');
sql("SELECT count(*) FROM run_tier_policies('hot', wait => true)") foreach 1 .. 3;
is(sql("SELECT relname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE spcname = 'regress_fast' AND relnamespace = "
	. "'heat'::regnamespace AND relkind = 'r'"), 'hot', 'and in the end what belongs there');

# a clock without a time, and two policies for the same partition
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE FUNCTION no_time() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
CREATE TABLE twice (d date, n int) PARTITION BY RANGE (d);
CREATE TABLE twice_1 PARTITION OF twice FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, now_function) VALUES
	('a', 'twice', 'regress_fast', '1 year', 'public.no_time()'), ('b', 'twice', 'regress_fast', '1 year', NULL),
		('c', 'twice', 'regress_slow', '2 years', NULL);
SQL
is(sql('SELECT policy, moves, reason FROM tier_plan() ORDER BY 1'), <<"ROWS" =~ s/\n\z//r, 'the others go on, and one of them has it');
a|f|now_function "public.no_time()" has failed: $shape
b|t|its rows end at 2020-02-01
c|f|its rows end at 2020-02-01; but another policy has its table first
ROWS
is(sql("SET TimeZone = 'Asia/Jakarta'; SET DateStyle = 'SQL, DMY'; SELECT reason FROM tier_plan('b')"), 'its rows end at 2020-02-01',
	'whatever the style of dates');

# ---- two policies for parts of one table, which is in one job at a time ---------------------------
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE SCHEMA halves;
CREATE TABLE halves.t (id int PRIMARY KEY USING INDEX TABLESPACE regress_fast, pad text) TABLESPACE regress_fast;
CREATE TABLE halves.u (id int PRIMARY KEY USING INDEX TABLESPACE regress_fast);
INSERT INTO halves.t SELECT g, 'x' FROM generate_series(1, 1000) g;
INSERT INTO halves.u SELECT generate_series(1, 1000);
INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, budget, min_stay) VALUES
	('a', 'halves', 'pg_default', 'regress_fast', 'table', 1000, '0'), ('b', 'halves', 'pg_default', 'regress_fast', 'indexes', 1000, '0');
SQL
my $halves = "SELECT string_agg(c.relname || ' ' || coalesce(t.spcname, 'default'), ', ' ORDER BY c.relname) FROM pg_class c LEFT JOIN "
	. "pg_tablespace t ON t.oid = c.reltablespace WHERE c.relnamespace = 'halves'::regnamespace AND c.relkind IN ('r', 'i')";
is(sql('SELECT policy, relation, moves, reason FROM tier_plan() ORDER BY policy, relation::text'), <<'ROWS' =~ s/\n\z//r,
a|halves.t|t|not among the hottest that fit into the budget
b|halves.t_pkey|f|not among the hottest that fit into the budget; but another policy has its table first
b|halves.u_pkey|t|not among the hottest that fit into the budget
ROWS
	'the second has its other tables only');
foreach my $then ('t default, t_pkey regress_fast, u default, u_pkey default', 't default, t_pkey default, u default, u_pkey default')
{
	my ($rc, $out, $err) = $node->psql('postgres', 'SELECT count(*) FROM run_tier_policies()');
	unlike($err, qr/moves nothing/, 'no job is refused');
	wait_for_jobs($node);
	is(sql($halves), $then, 'what the plan said has moved, and the rest in the next run');
}
# by age, and what the first has moved does not hold up the second, which moves something else
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE INDEX twice_1_n ON twice_1 (n);
INSERT INTO twice SELECT '2020-01-10', g FROM generate_series(1, 1000) g;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, parts) VALUES
	('a', 'twice', 'regress_fast', '1 year', 'table'), ('b', 'twice', 'regress_fast', '1 year', 'indexes');
SQL
is(sql("SELECT string_agg(name, ' ') FROM run_tier_policies(wait => true)"), 'twice_1', 'by age: the table');
is(sql("SELECT string_agg(name, ' ') FROM run_tier_policies(wait => true)"), 'twice_1_n',
	'and its index in the next run, whatever min_stay');
sql("SELECT count(*) FROM move_indexes('twice_1_n', 'regress_slow')");
is(sql('SELECT policy, moves, reason FROM tier_plan()') =~ s/job \d+/job N/r,
	'b|f|its rows end at 2020-02-01; but job N has moved it less than 7 days ago', 'which holds for the index itself');
# the other way round; a TOAST table goes with its table only
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE thrice (d date, n int, s text) PARTITION BY RANGE (d);
CREATE TABLE thrice_1 PARTITION OF thrice FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE INDEX thrice_1_n ON thrice_1 (n);
INSERT INTO thrice SELECT '2020-01-10', g, 'x' FROM generate_series(1, 1000) g;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, parts) VALUES
	('a', 'thrice', 'regress_fast', '1 year', 'indexes'), ('b', 'thrice', 'regress_fast', '1 year', 'table');
SQL
is(sql("SELECT string_agg(name, ' ') FROM run_tier_policies(wait => true)"), 'thrice_1_n', 'by age: the index');
is(sql("SELECT string_agg(name, ' ') FROM run_tier_policies(wait => true) WHERE kind = 'table'"), 'thrice_1',
	'and the table in the next run');

# ---- from_tablespace counts for each part of a table by itself ------------------------------------
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE apart (d date, n int, s text) PARTITION BY RANGE (d);
CREATE TABLE apart_1 PARTITION OF apart FOR VALUES FROM ('2020-01-01') TO ('2020-02-01') TABLESPACE regress_fast;
CREATE INDEX apart_n ON apart_1 (n);
CREATE INDEX apart_d ON apart_1 (d) TABLESPACE regress_fast;
INSERT INTO apart SELECT '2020-01-10', g FROM generate_series(1, 1000) g;
INSERT INTO tier_policy (name, relation, from_tablespace, to_tablespace, older_than, min_stay)
  VALUES ('apart', 'apart', 'regress_fast', 'regress_slow', '1 year', '0');
SQL
is(sql("SELECT size = (SELECT sum(pg_relation_size(c.oid) + pg_relation_size(c.oid, 'fsm') + pg_relation_size(c.oid, 'vm')) FROM "
		. "unnest(ARRAY['apart_1', 'apart_d', (SELECT reltoastrelid::regclass::text FROM pg_class "
		. "WHERE oid = 'apart_1'::regclass)]::regclass[]) c(oid)) FROM tier_plan()"),
	't', 'the size is that of the parts that are there');
my $where = "SELECT string_agg(c.relname || ' ' || coalesce(t.spcname, 'default'), ', ' ORDER BY c.relname) FROM pg_class c LEFT JOIN "
	. "pg_tablespace t ON t.oid = c.reltablespace WHERE c.relname IN ('apart_1', 'apart_n', 'apart_d')";
is(sql("SELECT string_agg(name, ' ' ORDER BY name) FROM run_tier_policies(wait => true) WHERE kind IN ('table', 'index'); $where"),
	"apart_1 apart_d\napart_1 regress_slow, apart_d regress_slow, apart_n default", 'and they move');
sql("SELECT count(*) FROM move_indexes('apart_n', 'regress_fast')");
sql("SELECT count(*) FROM run_tier_policies(wait => true)");
is(sql($where), 'apart_1 regress_slow, apart_d regress_slow, apart_n regress_slow', 'an index, too, whose table is elsewhere');

# ---- partitions of partitions, by another column or the same -----------------------------------
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE by_day (d date, n int, o date) PARTITION BY RANGE (d);
CREATE TABLE by_number (d date, n int, o date) PARTITION BY RANGE (n);
CREATE TABLE by_day_1 PARTITION OF by_day FOR VALUES FROM ('2020-01-01') TO ('2020-02-01') PARTITION BY RANGE (n);
CREATE TABLE by_day_1_1 PARTITION OF by_day_1 FOR VALUES FROM (1) TO (10);
CREATE TABLE by_day_2 PARTITION OF by_day FOR VALUES FROM ('2020-02-01') TO (MAXVALUE) PARTITION BY RANGE (d);
CREATE TABLE by_day_2_1 PARTITION OF by_day_2 FOR VALUES FROM ('2020-02-01') TO ('2020-02-05');
CREATE TABLE by_day_2_2 PARTITION OF by_day_2 DEFAULT PARTITION BY RANGE (o);
CREATE TABLE by_day_2_2_1 PARTITION OF by_day_2_2 FOR VALUES FROM ('2019-01-01') TO ('2019-02-01');
CREATE TABLE by_day_3 PARTITION OF by_day FOR VALUES FROM ('2019-01-01') TO ('2019-02-01') PARTITION BY RANGE (d);
CREATE TABLE by_day_3_1 PARTITION OF by_day_3 FOR VALUES FROM ('2019-01-01') TO ('2019-01-10');
CREATE TABLE by_day_3_2 PARTITION OF by_day_3 FOR VALUES FROM ('2019-01-20') TO (MAXVALUE);
CREATE TABLE by_day_3_rest PARTITION OF by_day_3 DEFAULT;
CREATE TABLE by_day_4 PARTITION OF by_day FOR VALUES FROM ('2018-01-01') TO ('2018-02-01') PARTITION BY RANGE (d);
CREATE TABLE by_day_4_1 PARTITION OF by_day_4 FOR VALUES FROM ('2018-01-01') TO ('2999-01-01');
CREATE TABLE by_number_1 PARTITION OF by_number FOR VALUES FROM (1) TO (10) PARTITION BY RANGE (d);
CREATE TABLE by_number_1_1 PARTITION OF by_number_1 FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
SQL
sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('day', 'by_day', 'regress_slow', '0'), ('number', "
	. "'by_number', 'regress_slow', '0')");
is(sql("SELECT relation, reason FROM tier_plan() ORDER BY relation::text"), <<'ROWS' =~ s/\n\z//r,
by_day_1_1|its rows end at 2020-02-01
by_day_2_1|its rows end at 2020-02-05
by_day_2_2_1|the partition has no upper bound
by_day_3_1|its rows end at 2019-01-10
by_day_3_2|its rows end at 2019-02-01
by_day_3_rest|its rows end at 2019-02-01
by_day_4_1|its rows end at 2018-02-01
by_number_1_1|its rows end at 2020-02-01
ROWS
	'the date counts, and a lower level of the same column');
sql('DELETE FROM tier_policy');

# ---- a file system that is too full: as if it had 100 MB --------------------------------------
sql(<<'SQL');
CREATE SCHEMA full_of;
CREATE TABLE full_of.cold (id int, pad text) TABLESPACE regress_fast;
CREATE TABLE full_of.cool (id int, pad text) TABLESPACE regress_fast;
CREATE TABLE full_of.warm (id int, pad text) TABLESPACE regress_fast;
CREATE TABLE full_of.hot (id int, pad text) TABLESPACE regress_fast;
CREATE INDEX hot_id ON full_of.hot (id) TABLESPACE regress_fast;
INSERT INTO full_of.cold SELECT g, repeat('x', 500) FROM generate_series(1, 5000) g;
INSERT INTO full_of.cool SELECT g, repeat('x', 500) FROM generate_series(1, 6000) g;
INSERT INTO full_of.warm SELECT g, repeat('x', 500) FROM generate_series(1, 7000) g;
INSERT INTO full_of.hot SELECT g, repeat('x', 500) FROM generate_series(1, 8000) g;
INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, start_at, stop_at)
  VALUES ('full', 'full_of', 'regress_fast', 'regress_slow', 'table', 0.9, 0.85);
SQL
own_devices($node, 'off');
is(sql('SELECT relation IS NULL, moves, reason FROM tier_plan()'),
	't|f|tablespaces "regress_fast" and "regress_slow" are on the same file system', 'a move that would free nothing');
sql("INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, budget)
	VALUES ('near', 'full_of', 'regress_fast', 'regress_slow', 1000)");
my $near = 'reads in "regress_fast" are not known to take longer than in "regress_slow", which is on the same device';
is(sql("SELECT relation, moves, reason FROM tier_plan('near')"), "|f|$near", 'nor make anything faster');
like(($node->psql('postgres', "SELECT * FROM run_tier_policies('near')"))[2], qr/NOTICE:  policy "near" moves nothing: \Q$near\E/,
	'a run says so, too');
sql("DELETE FROM tier_policy WHERE name = 'near'");
# what is used of either, in MB
my $use = sub {
	my ($fast, $slow) = map { (100 - $_) * 1000000 } @_;
	sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:1:$fast:100000000,regress_slow:2:$slow:100000000'");
};
sql('ALTER DATABASE postgres SET index_mover.min_free_space = 0');
my $plan = q{SELECT relation, moves, reason FROM tier_plan('full')};
sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:1:0:0,regress_slow:2:0:0'");
is(sql($plan), '|f|the file system of "regress_fast" does not say how full it is', 'a file system that tells no size');
$use->(89, 10);
is(sql($plan), '', 'not full yet');
$use->(90, 10);
my $why = 'file system of "regress_fast" is 90% full, stop_at is 85%';
is(sql($plan), "full_of.hot|t|$why\nfull_of.warm|t|$why", 'full: without samples, and nothing read, the largest');
# the moment, and what was counted then
sql("INSERT INTO index_mover.sample SELECT now() - interval '10000 s', CASE WHEN n = '' THEN 0 ELSE to_regclass('full_of.' || n)::oid "
	. "END, NULL, -b, -b FROM (VALUES ('', 0), ('cold', 0), ('cool', 10000), ('warm', 100000), ('hot', 1000000)) v(n, b)");
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|t|$why", 'by samples, the coldest, until less than stop_at is used');
sql("UPDATE tier_policy SET max_bytes_per_run = 4000000");
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|f|$why; but a later run moves it: max_bytes_per_run", 'a bound for each run');
sql("UPDATE tier_policy SET max_bytes_per_run = NULL");
$use->(90, 95);
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|f|$why; but tablespace \"regress_slow\" has no space for it", 'the target is full');
$use->(90, 85);
sql(q(UPDATE tier_policy SET settings = '{"min_free_space": "10%"}'));
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|f|$why; but tablespace \"regress_slow\" has no space for it",
	'the policy leaves more of it free');
sql(q(UPDATE tier_policy SET settings = '{"min_free_space": "0"}'));
sql(q(ALTER DATABASE postgres SET index_mover.min_free_space = '14%'));
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|t|$why", 'or less than others do');
sql('UPDATE tier_policy SET settings = NULL');
sql('ALTER DATABASE postgres SET index_mover.min_free_space = 0');
$use->(90, 100);
is(sql($plan), join("\n", "|f|$why; but only 0 bytes of 4883 kB may be moved",
	map { "full_of.$_|f|$why; but tablespace \"regress_slow\" has no space for it" } qw(cold cool warm hot)), 'quite full');
is(sql("SELECT count(*) FROM run_tier_policies('full', wait => true)"), 0, 'nothing moves then');

# what cannot move is not in the way of others: too large for the target, or an
# index that a move would skip
sql("ALTER TABLE full_of.cold SET (fillfactor = 10); VACUUM FULL full_of.cold");
my $free = 100 - int(sql("SELECT pg_relation_size('full_of.cold') / 1000000"));
$use->(90, $free);
is(sql("SELECT string_agg(relation::text || ' ' || moves, ', ') FROM tier_plan('full')"),
	'full_of.cold false, full_of.cool true, full_of.warm true', 'the coldest is too large for the target');
sql("ALTER TABLE full_of.cold RESET (fillfactor); VACUUM FULL full_of.cold");
$use->(90, 10);
sql("CREATE INDEX bad ON full_of.cold (pad, id) TABLESPACE regress_fast; UPDATE pg_index SET indisvalid = false WHERE indexrelid = "
	. "'full_of.bad'::regclass; UPDATE tier_policy SET parts = 'all'");
is(sql("SELECT count(*) FROM tier_plan('full') WHERE relation = 'full_of.bad'::regclass"), 0, 'an invalid index');
sql("DROP INDEX full_of.bad; UPDATE tier_policy SET parts = 'table'");

# nor what has failed in the last run
{
	my $reader = IndexMover::Session->new($node);
	$reader->run('BEGIN; SELECT FROM full_of.cold LIMIT 0');
	sql(q(UPDATE tier_policy SET max_bytes_per_run = 4000000, settings = '{"lock_wait": "300ms", "on_blocker": "fail"}'));
	is(sql("SELECT name, status FROM run_tier_policies('full', wait => true) WHERE kind = 'table'"), 'full_of.cold|failed',
		'one that fails');
	is(sql("SELECT relation FROM tier_plan('full') WHERE moves"), 'full_of.cool', 'and the next run moves another');
	# nor whose index has
	sql(<<'SQL');
CREATE TABLE full_of.late (d date) PARTITION BY RANGE (d);
CREATE INDEX late_d ON full_of.late (d);
CREATE TABLE full_of.late_1 PARTITION OF full_of.late FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE TABLE full_of.late_2 PARTITION OF full_of.late FOR VALUES FROM ('2020-02-01') TO ('2020-03-01');
INSERT INTO full_of.late VALUES ('2020-01-01'), ('2020-02-01');
INSERT INTO tier_policy (name, relation, to_tablespace, parts, older_than, max_bytes_per_run, settings)
  VALUES ('late', 'full_of.late', 'regress_slow', 'indexes', '1 day', 16384, '{"lock_wait": "300ms", "on_blocker": "fail"}');
SQL
	$reader->run('SELECT FROM full_of.late_1 LIMIT 0');
	is(sql("SELECT name, status FROM run_tier_policies('late', wait => true)"), 'full_of.late_1_d_idx|failed', 'an index that fails');
	is(sql("SELECT relation FROM tier_plan('late') WHERE moves"), 'full_of.late_2', 'and the next run moves that of another table');
	sql("DELETE FROM tier_policy WHERE name = 'late'");
	$reader->run('COMMIT');
	$reader->end;
	sql('UPDATE tier_policy SET max_bytes_per_run = NULL, settings = NULL; DELETE FROM index_mover.policy_run');
}

# what leaves it already counts; and what has come back stays
$job = sql(q{SELECT max(job) FROM move_table('full_of.cold', 'regress_slow', wait => false, settings => '{"swap_after": "infinity"}')});
is(sql($plan), "full_of.cold|f|$why; but job $job is at work on its table\nfull_of.cool|t|$why", 'one that another job moves out');
sql("SELECT cancel_move($job)");
wait_for_job_end($node, $job);
is(sql(q{SELECT string_agg(name, ' ' ORDER BY name) FROM run_tier_policies('full', wait => true) WHERE status = 'moved' AND kind = }
	. q{'table'}), 'full_of.cold full_of.cool', 'they are moved');
is(sql($plan), "full_of.warm|t|$why\nfull_of.hot|t|$why", 'if that is not enough, the next');
$job = sql("SELECT max(job) FROM move_table('full_of.cold', 'regress_fast')");
is(sql($plan), "full_of.cold|f|$why; but job $job has moved it less than 7 days ago\nfull_of.warm|t|$why\nfull_of.hot|t|$why",
	'what was moved stays for min_stay, and others go');

# it cannot be met
sql("UPDATE tier_policy SET stop_at = 0.1, parts = 'all'");
is(sql("$plan ORDER BY relation::text, reason"),
	join("\n", 'full_of.cold|f|' . ($why =~ s/85/10/r) . "; but job $job has moved it less than 7 days ago",
		(map { "full_of.$_|t|" . ($why =~ s/85/10/r) } qw(hot hot_id warm)),
			'|f|' . ($why =~ s/85/10/r) . '; but only 8248 kB of 76 MB may be moved'), 'a policy that cannot be met');
sql("UPDATE tier_policy SET schema = 'pg_toast'");
is(sql($plan), '|f|' . ($why =~ s/85/10/r) . '; but only 0 bytes of 76 MB may be moved', 'nothing to move');
sql("UPDATE tier_policy SET from_tablespace = 'no_such_place'");
is(sql($plan), '|f|tablespace "no_such_place" does not exist', 'nowhere');
sql('ALTER DATABASE postgres RESET index_mover.test_file_systems; ALTER DATABASE postgres RESET index_mover.min_free_space');

# ---- the same on a file system of its own -----------------------------------------------------
SKIP:
{
	$node->stop;
	my $small = $node->basedir . '/small';
	my $problem = start_with_file_system($node, $small, '27m');
	skip "cannot mount a small file system in a namespace of its own: $problem", 4 if $problem;
	sql("CREATE TABLESPACE regress_small LOCATION '$small'");
	sql("SELECT count(*) FROM move_table('full_of.$_', 'regress_small')") foreach qw(cold cool warm hot);
	sql("CREATE TABLE full_of.more TABLESPACE regress_small AS SELECT g AS id, repeat('x', 500) AS pad FROM generate_series(1, 17000) g");
	sql("INSERT INTO index_mover.sample SELECT max(taken_at), 'full_of.more'::regclass, NULL, -10000000, -10000000 FROM "
		. "index_mover.sample WHERE table_oid = 0");
	sql("UPDATE tier_policy SET schema = 'full_of', from_tablespace = 'regress_small', min_stay = '0', start_at = 0.8, stop_at = 0.6");
	my $full = sub { my ($free, $total) = file_system_of($node, 'regress_small'); return 1 - $free / $total; };
	cmp_ok($full->(), '>=', 0.8, 'a file system is full');
	# as by a schedule that does not wait for the end of what it has begun
	sql('SELECT count(*) FROM run_tier_policies()') foreach 1 .. 5;
	wait_for_jobs($node);
	cmp_ok($full->(), '<', 0.6, 'and no more');
	is(sql("SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class c JOIN pg_tablespace t ON t.oid = reltablespace WHERE spcname "
		. "= 'regress_small' AND relkind = 'r'"),
		'hot more', 'the coldest have left it, and not more than had to');
	is(sql('SELECT count(*) FROM tier_plan()'), 0, 'that is all');
	sql('DROP TABLE full_of.hot, full_of.more; DROP TABLESPACE regress_small');
}

leftovers_ok($node, 'at the end', within => 5);
files_ok($node, 'at the end');
$node->stop;
done_testing();
