# Tier policies: 24 monthly partitions under insert load, while the clock of the policy
# goes on month by month; every partition ends where its age says, frozen, and later
# vacuums pass over it; nothing moves twice, and no client fails.  Then what hinders
# a policy, keys of other types, a budget, and a file system that is full.
#
# Fault (tables): 24 partitions under a policy of age, month by month; what hinders a policy; a
#   budget; a full file system (also 070)
# Fault (tables): keys of each type, by each unit, and out of the range of timestamps
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
tiers_by_month_ok($node, 'month by month', faults() ? 27 : 9, sub { sql('SELECT count(*) FROM run_tier_policies()'); wait_for_jobs($node);
	});

# ---- frozen before, and the map goes along: a later vacuum reads next to nothing ---------------
sql("SELECT set_clock('2026-06-01 UTC')");
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
INSERT INTO numbers SELECT g, 1 FROM generate_series(0, 1999) g;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, key_unit) VALUES
	('days', 'days', 'regress_slow', '1 year', NULL),
	('domain', 'of_domain', 'regress_slow', '1 year', NULL),
	('number', 'numbers', 'regress_slow', now() - timestamptz '1970-01-01 UTC' - interval '1500 days', 'days'),
	('number without', 'numbers', 'regress_slow', '1 day', NULL),
	('lists', 'lists', 'regress_slow', '1 day', NULL),
	('nowhere', 'days', 'no_such_place', '1 year', NULL);
SQL
is(sql('SELECT policy, relation, moves, reason FROM tier_plan() ORDER BY policy, relation::text'), <<'ROWS' =~ s/\n\z//r,
days|days_1|t|its rows end at 2020-02-01
days|days_2|f|the partition has no upper bound
domain|of_domain_1|t|its rows end at 2020-02-01
lists|lists_1|f|it is in no range of dates, timestamps, numbers or UUIDs
nowhere||f|tablespace "no_such_place" does not exist
number|numbers_1|t|its rows end at 1000, which is 1972-09-27 00:00:00+00
number without|numbers_1|f|its rows end at 1000; but a key of numbers needs a key_unit, or key_zero and keys_per_second
number without|numbers_2_a|f|its rows end at 2000; but a key of numbers needs a key_unit, or key_zero and keys_per_second
ROWS
	'what a policy does, and what it leaves alone');
sql('SELECT count(*) FROM run_tier_policies(wait => true)');
is(sql("SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE "
	. "t.spcname = 'regress_slow' AND c.relname ~ '^(days|numbers|lists)'"),
	'days_1 numbers_1', 'they are moved, one job for each policy');
sql(q{UPDATE tier_policy SET older_than = older_than - interval '1000 days', max_bytes_per_run = 1000 WHERE name = 'number'});
is(sql("SELECT relation, moves, reason FROM tier_plan('number')"),
	'numbers_2_a|f|its rows end at 2000, which is 1975-06-24 00:00:00+00; but it is larger than max_bytes_per_run', 'a bound for each run');
sql(q{UPDATE tier_policy SET to_tablespace = 'regress_fast', max_bytes_per_run = NULL WHERE name = 'number'});
like(sql("SELECT relation, moves, reason FROM tier_plan('number') ORDER BY 1 LIMIT 1"),
	qr/^numbers_1\|f\|its rows end at 1000, which is .*; but job \d+ has moved it less than 7 days ago$/,
		'what was moved stays for min_stay');
is(sql("ALTER TABLE numbers DETACH PARTITION numbers_1; SELECT count(*) FROM tier_plan('number') WHERE relation = 'numbers_1'::regclass"),
	0, 'a partition that was detached');

# one that is being moved
my $job = sql(q{SELECT max(job) FROM move_table('numbers_2_a', 'regress_slow', wait => false, settings => '{"swap_after": "infinity"}')});
like(sql("SELECT reason FROM tier_plan('number') WHERE relation = 'numbers_2_a'::regclass"), qr/but job $job is at work on its table$/,
	'a partition that is being moved');
sql("SELECT cancel_move($job)");
wait_for_job_end($node, $job);

# ---- what keys mean -----------------------------------------------------------------------------
# of each type, unit and bound: when its rows end (undef: not yet), or why that is not known
my $unix = 1_700_000_000;
my $at = '2023-11-14 22:13:20+00';
my $no_unit = 'a key of numbers needs a key_unit, or key_zero and keys_per_second';
my $no_uuid = 'a key of UUIDs needs key_unit "uuid7", if they are of version 7';
my $no_date = 'that is no date of the form yyyymmdd';
my $no_month = 'that is no month of the form yyyymm';
my $rate = sub { return "key_zero = $_[0], keys_per_second = $_[1]" };
my $snowflake = $rate->('-1288834974657::numeric * 4194304', '4194304000');
my $instagram = $rate->('-1314220021721::numeric * 8388608', '8388608000');
my ($least, $most) = ('-9223372036854775808', '9223372036854775807');
my @keys = (
	[ 'int8', 'seconds', $unix, $at ], [ 'int4', 'seconds', $unix, $at ], [ 'numeric', 'seconds', "$unix.0", $at ],
	[ 'int2', 'seconds', 86, '1970-01-01 00:01:26+00' ], [ 'int8', 'seconds', 0, '1970-01-01 00:00:00+00' ],
	[ 'int8', 'seconds', -1, '1969-12-31 23:59:59+00' ], [ 'int8', 'milliseconds', $unix * 1000, $at ],
	[ 'int8', 'microseconds', $unix * 1_000_000, $at ], [ 'numeric', 'microseconds', $unix * 1_000_000 . '.5', $at ],
	(map { [ 'int8', $_, $most, undef ] } qw(seconds milliseconds days)),
	[ 'int8', 'microseconds', $most, undef ],
	(map { [ 'int8', $_, $least, '-infinity' ] } qw(seconds milliseconds microseconds days)),
	[ 'numeric', 'seconds', '1e131000', undef ], [ 'numeric', 'days', '-1e131000', '-infinity' ],
	[ 'numeric', 'seconds', q('NaN'), undef ], [ 'numeric', 'seconds', q('Infinity'), undef ],
	[ 'numeric', 'days', q('-Infinity'), '-infinity' ], [ 'int4', 'days', 19675, '2023-11-14 00:00:00+00' ],
	[ 'int2', 'days', 0, '1970-01-01 00:00:00+00' ], [ 'int4', 'days', -719162, '0001-01-01 00:00:00+00' ],
	[ 'numeric', 'days', 19674.5, '2023-11-14 00:00:00+00' ],
	[ 'int4', 'yyyymmdd', 20231114, '2023-11-14 00:00:00+00' ], [ 'int8', 'yyyymmdd', 20240229, '2024-02-29 00:00:00+00' ],
	[ 'numeric', 'yyyymmdd', 20240101, '2024-01-01 00:00:00+00' ], [ 'int4', 'yyyymmdd', 20230229, \$no_date ],
	(map { [ 'int8', 'yyyymmdd', $_, \$no_date ] } 0, -20240101, 20241301, 20240100, 20240132, 202401, 1, 99999999, 1000000101),
	(map { [ 'numeric', 'yyyymmdd', $_, \$no_date ] } 20240101.5, q('NaN'), '1e131000'),
	[ 'int4', 'yyyymm', 202401, '2024-01-01 00:00:00+00' ], [ 'int4', 'yyyymm', 202413, '2025-01-01 00:00:00+00' ],
	(map { [ 'int4', 'yyyymm', $_, \$no_month ] } 0, -202401, 202400, 202414, 20240101, 99913, 1),
	[ 'int8', 'yyyymm', $most, \$no_month ], [ 'int4', 'yyyymm', 999912, undef ], [ 'int4', 'yyyymm', 999913, undef ],
	[ 'int8', $snowflake, '1724440926537646080', '2023-11-14 14:55:30+00' ], [ 'int8', $snowflake, $least, '1941-02-27 09:55:19+00' ],
	[ 'int8', $snowflake, $most, undef ], [ 'numeric', $instagram, '3238066000000000000', '2023-11-17 13:26:09+00' ],
	[ 'int4', $rate->(0, '1e-15'), 2147483647, undef ], [ 'int8', $rate->('1e30', '1e30'), 1, '1969-12-31 23:59:59+00' ],
	[ 'numeric', $rate->('-1e30', '1e30'), '1e131000', undef ], [ 'int4', $rate->(-10, '1/86400.0'), 9, '1970-01-20 00:00:00+00' ],
	(map { [ 'uuid', 'uuid7', "'$_'", $at ] } '018bcfe5-6800-7000-8000-000000000000', '018bcfe5-6800-0000-0000-000000000000',
		'018bcfe5-67ff-7000-8000-000000000001'),
	[ 'uuid', 'uuid7', q('ffffffff-ffff-ffff-ffff-ffffffffffff'), undef ],
	[ 'uuid', 'seconds', q('018bcfe5-6800-7000-8000-000000000000'), \$no_uuid ],
	[ 'uuid', undef, q('018bcfe5-6800-7000-8000-000000000000'), \$no_uuid ],
	[ 'int4', 'uuid7', $unix, \$no_unit ], [ 'int8', undef, $unix, \$no_unit ], [ 'numeric', undef, $unix, \$no_unit ],
	[ 'date', 'seconds', q('2023-11-14'), '2023-11-14' ], [ 'timestamptz', 'uuid7', "'$at'", $at ],
	[ 'timestamp', undef, q('infinity'), undef ], [ 'date', undef, q('5874897-12-31'), undef ],
	[ 'date', undef, q('-infinity'), '-infinity' ]);
my $script = "DELETE FROM tier_policy; CREATE SCHEMA keys;\n";
foreach my $i (0 .. $#keys)
{
	my ($type, $unit, $bound) = @{ $keys[$i] };
	my $set = !defined $unit ? '' : $unit =~ /=/ ? ", $unit" : ", key_unit = '$unit'";
	$script .= "CREATE TABLE keys.k$i (k $type) PARTITION BY RANGE (k); "
	  . "CREATE TABLE keys.k${i}_1 PARTITION OF keys.k$i FOR VALUES FROM (MINVALUE) TO ($bound);\n"
	  . "INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('k$i', 'keys.k$i', 'regress_slow', '1 s');"
	  . "UPDATE tier_policy SET enabled = true$set WHERE name = 'k$i';\n";
}
sql($script);
my %planned = map { /^(\w+)\|(.*)/ ? ($1 => $2) : () }
  split /\n/, sql("ALTER ROLE CURRENT_USER SET TimeZone = 'UTC'; SELECT policy, moves, reason FROM tier_plan()");
foreach my $i (0 .. $#keys)
{
	my ($type, $unit, $bound, $end) = @{ $keys[$i] };
	my $is = ($planned{"k$i"} // '') =~ s/its rows end at [-\w.]+(?=[;,])/its rows end at B/r;
	is($is, ref $end ? "f|its rows end at B; but $$end" : !defined $end ? '' : $type =~ /date|time/ ? "t|its rows end at $end"
		: "t|its rows end at B, which is $end", "a key: $type, " . ($unit // 'no unit') . ", $bound");
}
my ($long) = sort { $b <=> $a } map { length } values %planned;
cmp_ok($long, '<', 200, 'no reason has all digits of a bound');
my ($days) = grep { ($keys[$_][1] // '') eq 'days' && $keys[$_][2] eq '19675' } 0 .. $#keys;
is(sql("ALTER ROLE CURRENT_USER SET TimeZone = 'Asia/Tokyo'; SELECT regexp_replace(reason, '.*which is ', '') FROM tier_plan('k$days')"),
	'2023-11-14 00:00:00+09', 'a day ends in the time zone of the owner\'s sessions');
sql('ALTER ROLE CURRENT_USER RESET TimeZone');
sql("UPDATE tier_policy SET older_than = '10 days'");
my $ends = sub { return sql("SELECT count(*) FROM tier_plan('k0', at => '$at'::timestamptz + interval '240 h' + interval '$_[0]')") };
is(join(' ', map { $ends->($_) } '-1 microsecond', '0', '1 s'), '0 1 1', 'the end of a range is exclusive');

# of several levels the highest of whose keys most is known; and no order of a user's
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE levels (tenant int, k uuid, d date) PARTITION BY RANGE (tenant);
CREATE TABLE levels_1 PARTITION OF levels FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (k);
CREATE TABLE levels_1_1 PARTITION OF levels_1 FOR VALUES FROM (MINVALUE) TO ('018bcfe5-6800-7000-8000-000000000000');
CREATE TABLE levels_1_2 PARTITION OF levels_1 FOR VALUES FROM ('018bcfe5-6800-7000-8000-000000000000') TO (MAXVALUE)
	PARTITION BY RANGE (d);
CREATE TABLE levels_1_2_1 PARTITION OF levels_1_2 FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE FUNCTION backwards(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT btint4cmp($2, $1)';
CREATE OPERATOR CLASS backwards FOR TYPE int USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <,
	FUNCTION 1 backwards(int, int);
CREATE TABLE backwards (k int) PARTITION BY RANGE (k backwards);
CREATE TABLE backwards_1 PARTITION OF backwards FOR VALUES FROM (2000000000) TO (1);
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, key_unit) VALUES
	('backwards', 'backwards', 'regress_slow', '1 s', 'seconds'), ('levels', 'levels', 'regress_slow', '1 s', 'uuid7');
SQL
my $unit = "its rows end at 018bcfe5-6800-7000-8000-000000000000, which is $at";
is(sql("SET TimeZone = 'UTC'; SELECT relation, moves, reason FROM tier_plan() ORDER BY relation::text"), <<"ROWS" =~ s/\n\z//r,
backwards_1|f|it is in no range of dates, timestamps, numbers or UUIDs
levels_1_1|t|$unit
levels_1_2_1|t|its rows end at 2020-02-01
ROWS
	'several levels, and an operator class of a user');
sql('DELETE FROM tier_policy; DROP TABLE levels, backwards; DROP OPERATOR CLASS backwards USING btree');
# a partition that is moved to a parent with a key of another type, between two looks at the catalogs
sql(<<'SQL');
CREATE SCHEMA wander;
CREATE TABLE wander.by_uuid (u uuid, i int8) PARTITION BY RANGE (u);
CREATE TABLE wander.wanders PARTITION OF wander.by_uuid FOR VALUES FROM (MINVALUE) TO ('018bcfe5-6800-7000-8000-000000000000');
CREATE TABLE by_number (u uuid, i int8) PARTITION BY RANGE (i);
INSERT INTO tier_policy (name, schema, to_tablespace, older_than) VALUES ('wanders', 'wander', 'regress_slow', '1 s');
SQL
{
	my $call = held_at($node, 'partition-bound', "SELECT relation, moves, reason FROM tier_plan('wanders')");
	sql('ALTER TABLE wander.by_uuid DETACH PARTITION wander.wanders; '
		. 'ALTER TABLE by_number ATTACH PARTITION wander.wanders FOR VALUES FROM (1) TO (2)');
	let_go($call);
	my (undef, $planned, $problem) = finish_call($call);
	is("$planned$problem", "wander.wanders|f|it is in no range of dates, timestamps, numbers or UUIDs\n",
		'a bound is read as of the type that it is of');
	sql('DELETE FROM tier_policy; DROP TABLE by_number; DROP SCHEMA wander CASCADE');
}
# children by inheritance, whose CHECK constraints say their ranges; none of their functions is called
sql(<<'SQL');
CREATE TABLE logs (d date NOT NULL, n int, at timestamptz, late date, note text);
CREATE FUNCTION called(date) RETURNS date IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
	IF current_setting('my.loaded', true) = 'on' THEN RAISE EXCEPTION 'called'; END IF; RETURN $1; END $$;
CREATE TABLE logs_1 (CHECK (d >= '2020-01-01' AND d < '2020-02-01'), CHECK (n > 0)) INHERITS (logs);
CREATE TABLE logs_2 (CHECK (d BETWEEN '2020-02-01' AND '2020-02-29' AND d < '2021-01-01' AND note <> 'x')) INHERITS (logs);
CREATE TABLE logs_3 (CHECK (timestamptz '2020-04-01 UTC' > at), CHECK (at >= '2020-03-01 UTC')) INHERITS (logs);
CREATE TABLE logs_3_1 (CHECK (at < '2020-03-02 UTC')) INHERITS (logs_3);
CREATE TABLE logs_4 () INHERITS (logs); ALTER TABLE logs_4 ADD CHECK (d < '2020-05-01') NOT VALID;
CREATE TABLE logs_5 (CHECK (d < '2020-06-01') NO INHERIT) INHERITS (logs);
CREATE TABLE logs_6 (CHECK (d < '2020-07-01' OR n = 1), CHECK (called(d) < '2020-07-01')) INHERITS (logs);
CREATE TABLE logs_7 (CHECK (d < '2020-08-01'), CHECK (late < '2020-08-01')) INHERITS (logs);
CREATE TABLE logs_8 (CHECK (d >= '2020-08-01')) INHERITS (logs);
CREATE TABLE logs_9 (CHECK (d < '2020-01-01'), CHECK (n < 100)) INHERITS (logs, logs_1);
CREATE INDEX ON logs_1 (n);
DELETE FROM tier_policy;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, key_unit) VALUES ('logs', 'logs', 'regress_slow', '1 s', 'days');
ALTER DATABASE postgres SET my.loaded = 'on';
SQL
my $no_check = 'no CHECK constraint says where its rows end';
my $ignored = 'the CHECK constraint of its range is';
is(sql("SET TimeZone = 'UTC'; SELECT relation, moves, reason FROM tier_plan() ORDER BY relation::text"), <<"ROWS" =~ s/\n\z//r,
logs|f|it is the parent of the tables with ranges
logs_1|t|its rows end at 2020-02-01
logs_2|t|its rows end at 2020-02-29
logs_3|t|its rows end at 2020-04-01 00:00:00+00
logs_3_1|t|its rows end at 2020-03-02 00:00:00+00
logs_4|f|$ignored NOT VALID
logs_5|f|$ignored NO INHERIT
logs_6|f|$no_check
logs_7|f|its CHECK constraints end the ranges of several columns
logs_8|f|$no_check
logs_9|t|its rows end at 2020-01-01
ROWS
	'children by inheritance');
SKIP:
{
	skip 'before 18, a CHECK constraint is always enforced', 1 if $node->pg_version < 18;
	sql("CREATE TABLE logs_10 (CHECK (d < '2020-01-01') NOT ENFORCED) INHERITS (logs)");
	is(sql("SELECT moves, reason FROM tier_plan() WHERE relation = 'logs_10'::regclass; DROP TABLE logs_10"), "f|$ignored NOT ENFORCED",
		'a CHECK constraint that is not enforced');
}
sql("UPDATE tier_policy SET older_than = now() - timestamptz '2020-02-29 12:00 UTC'");
is(sql("SET TimeZone = 'UTC'; SELECT relation FROM tier_plan() WHERE moves ORDER BY relation::text"), "logs_1\nlogs_9",
	'the day of the greatest key has to end');
sql("SELECT count(*) FROM run_tier_policies(wait => true)");
is(sql("SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace "
	. "WHERE spcname = 'regress_slow' AND relname ~ '^logs'"), 'logs_1 logs_1_n_idx logs_9', 'they move with their indexes');
# a chunk of TimescaleDB with its compressed data: here as far as its catalog goes, and not the extension
sql(<<'SQL');
SET allow_system_table_mods = on;
INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
  VALUES (99999, 'timescaledb', 10, 'public'::regnamespace, false, '0');
CREATE SCHEMA _timescaledb_catalog;
CREATE TABLE _timescaledb_catalog.chunk (compressed_chunk_id int, table_name name, id int, schema_name name);
ALTER EXTENSION timescaledb ADD TABLE _timescaledb_catalog.chunk;
CREATE TABLE compressed_2 (x int);
INSERT INTO compressed_2 SELECT generate_series(1, 1000);
CREATE INDEX ON compressed_2 (x);
INSERT INTO _timescaledb_catalog.chunk VALUES (7, 'logs_2', 1, 'public'), (NULL, 'compressed_2', 7, 'public'),
	(8, 'logs_1', 2, 'public'), (NULL, 'gone', 8, 'nowhere');
UPDATE tier_policy SET older_than = now() - timestamptz '2020-03-01 12:00 UTC';
SQL
my $logs_2 = "SELECT size > 40000, reason FROM tier_plan() WHERE relation = 'logs_2'::regclass";
is(sql($logs_2), 't|its rows end at 2020-02-29', 'a chunk and its compressed data are one row');
# from 2.29 on its catalog has another shape
sql('ALTER TABLE _timescaledb_catalog.chunk RENAME compressed_chunk_id TO other');
my $stays = q(SELECT moves, reason FROM tier_plan() WHERE relation IS NULL);
is(sql("$logs_2; $stays"), "f|its rows end at 2020-02-29\nf|compressed data of chunks stays: timescaledb's table \"chunk\" has no column "
	. '"compressed_chunk_id" that is known here', 'in another version that is not known, the plan says so');
sql(<<'SQL');
ALTER TABLE _timescaledb_catalog.chunk ADD relid regclass;
UPDATE _timescaledb_catalog.chunk SET relid = table_name::text::regclass WHERE table_name <> 'gone';
CREATE TABLE _timescaledb_catalog.compression_settings (relid regclass, compress_relid regclass);
ALTER EXTENSION timescaledb ADD TABLE _timescaledb_catalog.compression_settings;
INSERT INTO _timescaledb_catalog.compression_settings VALUES ('logs', NULL), ('logs_2', 'compressed_2');
SQL
is(sql("$logs_2; $stays"), 't|its rows end at 2020-02-29', 'a chunk of 2.29 and its compressed data are one row, too');
sql('ALTER TABLE _timescaledb_catalog.chunk DROP relid; ALTER EXTENSION timescaledb DROP TABLE _timescaledb_catalog.compression_settings');
sql('ALTER TABLE _timescaledb_catalog.chunk RENAME other TO compressed_chunk_id');
# both are busy, in another policy, or have failed, if either is
$job = sql(q{SELECT max(job) FROM move_table('compressed_2', 'regress_fast', wait => false, settings => '{"swap_after": "infinity"}')});
is(sql($logs_2), "t|its rows end at 2020-02-29; but job $job is at work on its table", 'a job that is at work on the compressed data');
sql("SELECT cancel_move($job)");
wait_for_job_end($node, $job);
sql("CREATE TABLE compressed (x int); ALTER TABLE compressed_2 INHERIT compressed, ADD CHECK (x < 10000); INSERT INTO tier_policy (name, "
	. "relation, to_tablespace, older_than, key_unit) VALUES ('z', 'compressed', 'regress_fast', '1 s', 'seconds')");
is(sql("SELECT reason FROM tier_plan() WHERE relation = 'compressed_2'::regclass"),
	'its rows end at 10000, which is 1970-01-01 02:46:40+00; but policy "logs", earlier in the order, covers its table',
	'a policy that has the compressed data with its chunk');
sql("DELETE FROM tier_policy WHERE name = 'z'; ALTER TABLE compressed_2 NO INHERIT compressed; DROP TABLE compressed");
{
	my $reader = IndexMover::Session->new($node);
	$reader->run('BEGIN; SELECT FROM compressed_2 LIMIT 0');
	sql(q(UPDATE tier_policy SET settings = '{"lock_wait": "300ms", "on_blocker": "fail"}'));
	is(sql("SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM run_tier_policies(wait => true) WHERE kind !~ 'toast'"),
		'compressed_2 failed, compressed_2_x_idx failed, logs_2 moved', 'compressed data that fails');
	$reader->run('COMMIT');
	$reader->end;
	sql("UPDATE tier_policy SET settings = NULL, older_than = now() - timestamptz '2020-05-01 UTC'");
	is(sql("SELECT string_agg(relation::text, ' ') FROM tier_plan() WHERE moves"), 'logs_3_1 logs_3 logs_2',
		'goes in the next run, after others, whatever min_stay');
	sql("UPDATE tier_policy SET older_than = now() - timestamptz '2020-03-01 12:00 UTC'");
}
is(sql("SELECT string_agg(name, ' ') FROM run_tier_policies(wait => true) WHERE status = 'moved' AND kind !~ 'toast'"),
	'compressed_2 compressed_2_x_idx', 'without its chunk, which is there');
like(sql("SELECT count(*) FROM move_table('logs_2', 'pg_default'); SELECT count(*) FROM move_table('compressed_2', 'pg_default', "
		. "indexes => true); UPDATE tier_policy SET min_stay = '0'; SELECT string_agg(name, ' ') FROM run_tier_policies(wait => true) "
		. "WHERE status = 'moved' AND kind !~ 'toast'"),
	qr/^compressed_2 compressed_2_x_idx logs_2$/m, 'they move together, compressed data first');
sql('ALTER EXTENSION timescaledb DROP TABLE _timescaledb_catalog.chunk; DROP SCHEMA _timescaledb_catalog CASCADE; DROP TABLE compressed_2');
sql("SET allow_system_table_mods = on; DELETE FROM pg_extension WHERE extname = 'timescaledb'");
sql("ALTER DATABASE postgres RESET my.loaded; DELETE FROM tier_policy; DROP TABLE logs CASCADE; DROP FUNCTION called");

# a parent that has no children yet, as a hypertable that was just made: nothing to do, and no failure
sql("CREATE TABLE parent (d date); INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('parent', 'parent', "
	. "'regress_slow', '1 day'), ('catalog', 'pg_class', 'regress_slow', '1 day')");
is(sql('SELECT policy, relation, moves, reason FROM tier_plan() ORDER BY 1'), 'catalog||f|"pg_class" is not a table or materialized view '
	. "of users\nparent||f|\"parent\" has no partitions or children yet", 'a parent without children');
sql("DELETE FROM tier_policy WHERE name = 'catalog'");
is(($node->psql('postgres', 'SELECT count(*) FROM run_tier_policies()'))[2], '', 'of which a run says nothing');
is(sql("SELECT result, message FROM tier_policy_status"), 'nothing to move|', 'it has nothing to move');
sql("CREATE TABLE child (CHECK (d < '2020-01-01')) INHERITS (parent)");
is(sql("SELECT relation, moves FROM tier_plan() WHERE relation <> 'parent'::regclass"), 'child|t', 'until it has a child');
sql('DELETE FROM tier_policy; DROP TABLE parent CASCADE');

sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('x', 'days', 'regress_slow', '1 s')");
foreach my $case (
	[ q(key_unit = 'fortnights'), 'key_unit must be seconds to days, yyyymmdd, yyyymm, or uuid7' ],
	[ q(key_zero = 5), 'key_zero and keys_per_second go together' ],
	[ q(key_zero = 5, keys_per_second = 1, key_unit = 'days'), 'a key has a key_unit, or key_zero and keys_per_second' ],
	(map { [ "key_zero = 5, keys_per_second = '$_'", 'keys_per_second must be from 1e-15 to 1e30' ] } 0, -1, 'NaN', 'Infinity'),
	(map { [ "key_zero = '$_', keys_per_second = 1", 'key_zero must be from -1e30 to 1e30' ] } 'NaN', 'Infinity', '-Infinity'),
	[ q(key_unit = 'days', older_than = NULL, idle_for = '1 day'), 'key_unit, key_zero and keys_per_second are for older_than' ])
{
	my ($set, $message) = @$case;
	like(($node->psql('postgres', "UPDATE tier_policy SET $set"))[2], qr/violates check constraint "\Q$message\E"/, "$message: $set");
}
# a month less 30 days is of either sign, by the day
foreach my $case ([ older_than => 'older_than must not be negative' ], [ idle_for => 'idle_for must be positive' ],
	[ min_stay => 'min_stay must not be negative' ], [ half_life => 'half_life must be from a minute to 10 years' ],
	[ every => 'every must be from a second to 100 years' ])
{
	my ($column, $message) = @$case;
	foreach my $interval ('-1 mon 30 days 1 hour', '1 mon -30 days 1 hour', '1 day -1 hour', '1 year -3 mon -20 days', '1 mon -1 us')
	{
		like(($node->psql('postgres', 'UPDATE tier_policy SET ' . ($column eq 'idle_for' ? 'older_than = NULL, ' : '')
					. "$column = '$interval'"))[2],
			qr/violates check constraint "$message"/, "$message: $interval");
	}
}
# no interval is too long
sql("DELETE FROM tier_policy; INSERT INTO tier_policy (name, relation, to_tablespace, older_than, min_stay) VALUES "
	. "('long', 'days', 'regress_fast', '1 day', '178000000 years'), ('older', 'days', 'regress_fast', '178000000 years', '7 days'), "
	. "('parts', 'days', 'regress_fast', '170000000 years 2000000000 days', '7 days')");
sql("INSERT INTO tier_policy (name, to_tablespace, idle_for) VALUES ('idle', 'regress_slow', '178000000 years')");
is(sql("SELECT policy || ' ' || regexp_replace(reason, '.*but job.*moved', 'moved') FROM tier_plan() WHERE policy <> 'idle'"),
	"long moved it less than 178000000 years ago\nlong the partition has no upper bound\nolder the partition has no upper bound\n"
		. 'parts the partition has no upper bound', 'no interval is out of range');
unlike(sql("SELECT reason FROM tier_plan('idle')"), qr/out of range/, 'nor one of idleness');

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
sql('ALTER TABLESPACE regress_fast SET (random_page_cost = 8)');
is(sql("SELECT relation, moves, reason FROM tier_plan('hot')"),
	'|f|reads in "pg_default" are not known to take longer than in "regress_fast"', 'nor out of a tablespace that is said to be slower');
sql('ALTER TABLESPACE regress_fast RESET (random_page_cost)');
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

# a policy that is wrong, and two for the same partition
sql(<<'SQL');
DELETE FROM tier_policy;
CREATE TABLE twice (d date, n int) PARTITION BY RANGE (d);
CREATE TABLE twice_1 PARTITION OF twice FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('a', 'twice', 'no_such_place', '1 year'),
	('b', 'twice', 'regress_fast', '1 year'), ('c', 'twice', 'regress_slow', '2 years');
SQL
is(sql('SELECT policy, moves, reason FROM tier_plan() ORDER BY 1'), <<"ROWS" =~ s/\n\z//r, 'the others go on, and one of them has it');
a|f|tablespace "no_such_place" does not exist
b|t|its rows end at 2020-02-01
c|f|its rows end at 2020-02-01; but policy "b", earlier in the order, covers its table
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
b|halves.t_pkey|f|not among the hottest that fit into the budget; but policy "a", earlier in the order, covers its table
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
# what was measured: where, when, and both times
own_devices($node);
sql("INSERT INTO index_mover.probe SELECT '2026-01-02 03:04:05+00'::timestamptz + (now() - '2026-01-03'), oid, "
	. "CASE spcname WHEN 'regress_slow' THEN 2 ELSE 1 END FROM pg_tablespace WHERE spcname ~ '^regress_(slow|fast)'");
like(sql("SELECT reason FROM tier_plan('near')"),
	qr/^no gain: "regress_slow" was probed slower, at 20\d\d-\d\d-\d\d [^"]+: 2 ms a read, and "regress_fast" 1 ms$/,
	'it was probed slower');
sql("SELECT withdraw_probes('regress_slow'), withdraw_probes('regress_fast')");
own_devices($node, 'off');
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
is(sql("SELECT string_agg(concat_ws(' ', round(100 * from_used), round(100 * from_used_after), round(100 * to_used), "
	. "round(100 * to_used_after)), ', ') FROM tier_plan('full')"), '90 86 10 14, 86 82 14 18', 'how full both are, before and after');
# the moment, and what was counted then
sql("INSERT INTO index_mover.sample SELECT now() - interval '10000 s', CASE WHEN n = '' THEN 0 ELSE to_regclass('full_of.' || n)::oid "
	. "END, NULL, -b, -b FROM (VALUES ('', 0), ('cold', 0), ('cool', 10000), ('warm', 100000), ('hot', 1000000)) v(n, b)");
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|t|$why", 'by samples, the coldest, until less than stop_at is used');
sql("UPDATE tier_policy SET max_bytes_per_run = 4000000");
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|f|$why; but a later run moves it: max_bytes_per_run", 'a bound for each run');
sql("UPDATE tier_policy SET max_bytes_per_run = NULL");
$use->(90, 95);
my $no_space = join '', "|f|$why; but only 2696 kB of 4883 kB may be moved\nfull_of.cold|t|$why",
	map { "\nfull_of.$_|f|$why; but it is skipped. Tablespace \"regress_slow\" has no space for it." } qw(cool warm hot);
is(sql($plan), $no_space, 'the target is full');
$use->(90, 85);
sql(q(UPDATE tier_policy SET settings = '{"min_free_space": "10%"}'));
is(sql($plan), $no_space, 'the policy leaves more of it free');
sql(q(UPDATE tier_policy SET settings = '{"min_free_space": "0"}'));
sql(q(ALTER DATABASE postgres SET index_mover.min_free_space = '14%'));
is(sql($plan), "full_of.cold|t|$why\nfull_of.cool|t|$why", 'or less than others do');
sql('UPDATE tier_policy SET settings = NULL');
sql('ALTER DATABASE postgres SET index_mover.min_free_space = 0');
$use->(90, 100);
is(sql($plan), join("\n", "|f|$why; but only 0 bytes of 4883 kB may be moved",
	map { "full_of.$_|f|$why; but it is skipped. Tablespace \"regress_slow\" has no space for it." } qw(cold cool warm hot)), 'quite full');
my $jobs = 'SELECT count(*), max(job) FROM index_mover_jobs';
my $jobs_before = sql($jobs);
is(sql("SELECT count(*) FROM run_tier_policies('full', wait => true)"), 0, 'nothing moves then');
is(sql($jobs), $jobs_before, 'which leaves no job in the history');
is(sql("SELECT result, message FROM tier_policy_status WHERE policy = 'full'"), "hindered|$why; but only 0 bytes of 4883 kB may be moved",
	'which is no state to be silent about');
is(sql("SELECT detail FROM index_mover_check() WHERE kind = 'hindered policy'"), "$why; but only 0 bytes of 4883 kB may be moved",
	'nor is the check');
# though its numbers change, it is one trouble
{
	my $from = -s $node->logfile;
	foreach my $used (91, 92)
	{
		$use->($used, 100);
		sql("SELECT count(*) FROM run_tier_policies('full')");
	}
	unlike(slurp_file($node->logfile, $from), qr/tier policy "full" is hindered/, 'one line in the server log tells of it');
	like(sql("SELECT message FROM tier_policy_status WHERE policy = 'full'"), qr/is 92% full/, 'and the status what it is now');
}

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

# in small runs it comes to stop_at, too, and begins no other before start_at
{
	my $moves = sub { return sql("SELECT string_agg(name, ' ') FROM run_tier_policies('full', wait => true) WHERE kind = 'table'") };
	sql('UPDATE tier_policy SET max_bytes_per_run = 4000000');
	is($moves->(), 'full_of.cold', 'a run that leaves something for the next');
	$use->(89, 10);
	is($moves->(), 'full_of.cool', 'which goes on below start_at');
	$use->(84, 10);
	is($moves->(), '', 'up to stop_at');
	$use->(89, 10);
	is($moves->(), '', 'and then not before start_at');
	sql('UPDATE tier_policy SET max_bytes_per_run = NULL; DELETE FROM index_mover.policy_run');
	sql("SELECT count(*) FROM move_table('full_of.$_', 'regress_fast'); DELETE FROM index_mover.move_log WHERE relation_name = '$_'")
	  foreach qw(cold cool);
	$use->(90, 10);
}

# what leaves it already counts; and what has come back stays
$job = sql(q{SELECT max(job) FROM move_table('full_of.cold', 'regress_slow', wait => false, settings => '{"swap_after": "infinity"}')});
is(sql($plan), "full_of.cold|f|$why; but job $job is at work on its table\nfull_of.cool|t|$why", 'one that another job moves out');
sql("SELECT cancel_move($job)");
wait_for_job_end($node, $job);
is(sql(q{SELECT string_agg(name, ' ' ORDER BY name) FROM run_tier_policies('full', wait => true) WHERE status = 'moved' AND kind = }
	. q{'table'}), 'full_of.cold full_of.cool', 'they are moved');
is(sql($plan), "full_of.warm|t|$why\nfull_of.hot|t|$why", 'if that is not enough, the next');
is(sql("SELECT moved_relations, moved_bytes BETWEEN 5500000 AND 7000000 FROM tier_policy_status WHERE policy = 'full'"), '2|t',
	'the status tells of the run');
is(sql("SELECT day = current_date, relations FROM tier_policy_days WHERE policy = 'full'"), 't|2', 'and so does the day');
$job = sql("SELECT max(job) FROM move_table('full_of.cold', 'regress_fast')");
is(sql($plan), "full_of.cold|f|$why; but job $job has moved it less than 7 days ago\nfull_of.warm|t|$why\nfull_of.hot|t|$why",
	'what was moved stays for min_stay, and others go');

# also an index that was built again since
{
	my $stays = q{SELECT moves FROM tier_plan('full') WHERE relation = 'full_of.hot_id'::regclass};
	sql("UPDATE tier_policy SET parts = 'indexes', stop_at = 0.1");
	is(sql($stays), 't', 'an index that was not moved');
	sql("SELECT count(*) FROM move_indexes('full_of.hot_id', $_, 'copy')") foreach q('regress_slow'), q('regress_fast');
	sql('REINDEX INDEX CONCURRENTLY full_of.hot_id');
	is(sql($stays), 'f', 'REINDEX CONCURRENTLY makes an index that has moved as lately as the one before');
	sql('ALTER INDEX full_of.hot_id RENAME TO other; CREATE INDEX hot_id ON full_of.hot (id) TABLESPACE regress_fast; '
		. 'DROP INDEX full_of.other');
	sql("DELETE FROM index_mover.move_log WHERE relation_name = 'hot_id'");
	is(sql($stays), 't', 'without a move on record it may');
}

# it cannot be met
sql("UPDATE tier_policy SET stop_at = 0.1, parts = 'all'");
is(sql("$plan ORDER BY relation::text, reason"),
	join("\n", 'full_of.cold|f|' . ($why =~ s/85/10/r) . "; but job $job has moved it less than 7 days ago",
		(map { "full_of.$_|t|" . ($why =~ s/85/10/r) } qw(hot hot_id warm)),
			'|f|' . ($why =~ s/85/10/r) . '; but only 8248 kB of 76 MB may be moved'), 'a policy that cannot be met');
sql("UPDATE tier_policy SET schema = 'pg_toast'");
is(sql($plan), '|f|' . ($why =~ s/85/10/r) . '; but only 0 bytes of 76 MB may be moved', 'nothing to move');
sql("UPDATE tier_policy SET from_tablespace = 'no_such_place'");
is(sql($plan), '|f|tablespace "no_such_place" does not exist', 'a policy to a tablespace that does not exist');
sql('ALTER DATABASE postgres RESET index_mover.test_file_systems; ALTER DATABASE postgres RESET index_mover.min_free_space');

# ---- policies that would work against each other ---------------------------------------------------
sql(<<'SQL');
ALTER DATABASE postgres SET index_mover.min_free_space = 0;
DELETE FROM tier_policy;
CREATE TABLE full_of.old (d date) PARTITION BY RANGE (d);
CREATE TABLE full_of.old_1 PARTITION OF full_of.old FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
INSERT INTO full_of.old VALUES ('2020-01-01');
INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, start_at, stop_at)
  VALUES ('full', 'full_of', 'regress_fast', 'regress_slow', 'table', 0.9, 0.8);
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('fills', 'full_of.old', 'regress_fast', '1 day');
SQL
my $fills = q{SELECT relation, moves, reason FROM tier_plan('fills')};
my $ends = 'its rows end at 2020-02-01';
my $above = 'the file system of "regress_fast" would be more than 89% full, where';
$use->(88.9, 10);
is(sql($fills), "full_of.old_1|t|$ends", 'below a tenth of the way from start_at to stop_at, a policy fills');
$use->(89, 10);
is(sql($fills), "full_of.old_1|f|$ends; but $above policy \"full\" moves relations out", 'and not above');
is(sql("SELECT count(*) FROM run_tier_policies('fills')"), 0, 'nor in a run');
is(sql("SELECT detail FROM index_mover_check() WHERE object = 'fills'"),
	"full_of.old_1: $ends; but $above policy \"full\" moves relations out", 'which the check tells');
sql("UPDATE tier_policy SET from_tablespace = 'pg_default' WHERE name = 'fills'");
is(sql($fills), "full_of.old_1|t|$ends", 'but for tiers in a chain');
sql("UPDATE tier_policy SET from_tablespace = NULL WHERE name = 'fills'");
foreach my $case (
	[ "schema = 'heat'", "schema = 'full_of'", 'of another schema' ],
	[ "relation = 'full_of.hot'", 'relation = NULL', 'for another table' ],
	[ "parts = 'indexes'", "parts = 'table'", 'for indexes, of which it has none' ])
{
	my ($set, $reset, $what) = @$case;
	sql("UPDATE tier_policy SET $set WHERE name = 'full'");
	is(sql($fills), "full_of.old_1|t|$ends", "nor for a policy $what");
	sql("UPDATE tier_policy SET $reset WHERE name = 'full'");
}
sql("UPDATE tier_policy SET relation = 'full_of.old' WHERE name = 'full'");
is(sql($fills), "full_of.old_1|f|$ends; but $above policy \"full\" moves relations out", 'but for one of the table above it');
# one that was dropped is none
sql("CREATE TABLE full_of.gone (); UPDATE tier_policy SET relation = 'full_of.gone' WHERE name = 'full'; DROP TABLE full_of.gone");
is(sql($fills), "full_of.old_1|t|$ends", 'nor for a table that was dropped');
is(sql("SELECT status FROM move_table('full_of.old_1', 'regress_fast', dry_run => true) WHERE kind = 'table'"), 'planned',
	'which stops no call by hand');
is(sql("SELECT object FROM index_mover_check() WHERE kind = 'contradicting policies'"), '', 'nor the check');
sql("UPDATE tier_policy SET relation = NULL WHERE name = 'full'");
sql("ALTER DATABASE postgres SET index_mover.test_file_systems = 'regress_fast:1:11000000:100000000,regress_slow:1:11000000:100000000'");
is(sql($fills), "full_of.old_1|t|$ends", 'nor for one that can move nothing, to the same file system');
$use->(89, 10);
# the owner of the policy needs all that a move of the table needs
sql("CREATE ROLE another; GRANT CREATE ON TABLESPACE regress_slow TO another; GRANT USAGE ON SCHEMA full_of TO another; UPDATE "
	. "tier_policy SET owner = 'another' WHERE name = 'full'");
is(sql($fills), "full_of.old_1|t|$ends", 'nor for a policy of a role that may not move the table');
sql('ALTER TABLE full_of.old_1 OWNER TO another; REVOKE CREATE ON TABLESPACE regress_slow FROM another');
is(sql($fills), "full_of.old_1|t|$ends", 'nor to where the policy moves it');
sql('GRANT CREATE ON TABLESPACE regress_slow TO another; REVOKE USAGE ON SCHEMA full_of FROM another');
is(sql($fills), "full_of.old_1|t|$ends", 'nor use its schema');
sql('GRANT USAGE ON SCHEMA full_of TO another');
is(sql($fills), "full_of.old_1|f|$ends; but $above another policy moves relations out", 'but of one that may, whose policy has no name');
sql("UPDATE tier_policy SET enabled = false WHERE name = 'full'");
is(sql($fills), "full_of.old_1|t|$ends", 'nor for one that is disabled');
sql("UPDATE tier_policy SET enabled = true, owner = current_user WHERE name = 'full'");
# another role's many policies cost others next to nothing: neither looks at tablespaces, nor at the history of other tables
my $looks = sub {
	return sql(<<SQL);
BEGIN; INSERT INTO index_mover.move_log (job, item, relation, old_relation, relation_name, kind, table_oid, table_name, from_tablespace,
	to_tablespace, from_tablespace_oid, to_tablespace_oid, requested, method, status, finished_at, idle, lock_attempts)
  SELECT g, 0, 1, 1, 'other', 'table', 1, 'other', 'a', 'b', 1, 1, 'copy', 'copy', 'moved', now() - interval '1 year', 0, 0
    FROM generate_series(1000001, 1001000) g;
SELECT count(*) FROM tier_plan('fills');
SELECT 'moves ' || sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class WHERE relname ~ '^move_log_[^p]';
SELECT count(*) FROM move_table('full_of.old_1', 'regress_fast', dry_run => true);
SELECT 'scans ' || sum(pg_stat_get_xact_numscans(r)) FROM unnest('{pg_tablespace, pg_inherits}'::regclass[]) r; ROLLBACK
SQL
};
sql('ALTER TABLE full_of.old_1 OWNER TO CURRENT_USER');
my $without = $looks->();
like($without, qr/^moves \d{1,2}$/m, 'a plan reads the history of its tables');
sql("INSERT INTO tier_policy (name, relation, from_tablespace, to_tablespace, start_at, stop_at, min_stay, owner) SELECT 'many ' || g, "
	. "'full_of.hot', 'regress_fast', 'regress_slow', 0.02, 0.01, '100 years', 'another' FROM generate_series(1, 50) g");
is($looks->(), $without, 'and no more of it for policies of others, nor the catalogs');
sql("DELETE FROM tier_policy WHERE name <> 'full'");

# a budget has what is there, and what fits below the limit; what pressure has moved out stays there
sql("INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, parts, budget, min_stay) VALUES ('heats', 'full_of', "
	. "'regress_slow', 'regress_fast', 'table', 50000000, '0')");
my $heats = q{SELECT relation, moves, regexp_replace(reason, '(\d+ .B|[\d.]+ blocks a second|job \d+)', 'N') FROM tier_plan('heats')};
$use->(87, 10);
like(sql($heats), qr/^full_of.cool\|f\|N by .*; but job \d+ has moved it out of there less than 7 days ago, because/m,
	'what a policy of pressure has moved out');
sql("UPDATE tier_policy SET name = 'renamed' WHERE name = 'full'");
is(sql("$heats ORDER BY relation::text NULLS FIRST"), "|f|only N of its budget can be used; $above policy \"renamed\" moves relations out\n"
	. "full_of.cold|t|not among the hottest that fit into the budget\nfull_of.cool|f|N by index scans and changes; but there is no space "
	. 'until other relations have moved out; it moves in a later run', 'a budget, as far as it can be used');
$use->(80, 10);
is(sql($heats), 'full_of.cool|t|N by index scans and changes', 'where there is space');
# a budget that has what it wants is not hindered by less space than all would take
$use->(87, 10);
sql("UPDATE tier_policy SET budget = (SELECT sum(pg_relation_size(relation)) + 2200000 FROM relation_heat WHERE tablespace = "
	. "'regress_fast' AND kind = 'table' AND relation::text ~ '^full_of') WHERE name = 'heats'");
is(sql("SELECT string_agg(coalesce(relation::text, reason), ' ' ORDER BY relation::text) FROM tier_plan('heats')"),
	'full_of.cold full_of.cool', 'a budget that is full of the hottest');
# what leaves it may fill the tablespace behind it, unless the policy of that would bring it back
sql("UPDATE tier_policy SET budget = 1000 WHERE name = 'heats'; INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, "
	. "start_at, stop_at) VALUES ('behind', 'full_of', 'regress_slow', 'pg_default', 0.2, 0.1)");
is(sql("SELECT bool_and(moves) FROM tier_plan('heats')"), 't', 'what leaves a budget');
sql("UPDATE tier_policy SET to_tablespace = 'regress_fast' WHERE name = 'behind'");
$use->(87, 20);
is(sql("SELECT bool_or(moves), count(*) FROM tier_plan('heats') WHERE reason ~ 'more than 19% full, where policy \"behind\"'"), 'f|3',
	'unless it would come back');
sql("DELETE FROM tier_policy WHERE name = 'behind'; UPDATE tier_policy SET budget = 50000000 WHERE name = 'heats'");
$use->(88, 10);
like(($node->psql('postgres', "SELECT count(*) FROM move_table('full_of.cool', 'regress_fast', dry_run => true)"))[2],
	qr/NOTICE:  tier policy "renamed" moves relations out of tablespace "regress_fast"\nDETAIL:  The file system would be 91.\d% full/,
	'a call by hand is told');
is(sql("SELECT policy FROM index_mover.policy_conflicts()"), '', 'none contradicts another');
sql("INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('ages', 'full_of.old', 'regress_slow', '1 day'), "
	. "('ages elsewhere', 'orders', 'pg_default', '1 day'); UPDATE tier_policy SET budget = 90000000 WHERE name = 'heats'");
is(sql(q{SELECT object, detail FROM index_mover_check() WHERE kind = 'contradicting policies'}),
	'heats|policy "ages" moves relations to tablespace "regress_slow", from where this one takes them to "regress_fast"',
	'the check names those that do, each once');
sql("UPDATE tier_policy SET enabled = false WHERE name = 'ages'");
is(sql(q{SELECT object, detail FROM index_mover_check() WHERE kind = 'contradicting policies'}),
	'heats|policy "renamed" leaves at most 85 MB for its budget of 86 MB', 'or whose budget another keeps from being used');
sql("UPDATE tier_policy SET enabled = true WHERE name = 'ages'");
sql("UPDATE tier_policy SET owner = 'another' WHERE name = 'renamed'");
is(sql("SELECT count(*) FROM index_mover.policy_conflicts() WHERE detail ~ 'leaves at most'"), 0,
	'a limit is nothing to relations that the other role may not move');
sql("UPDATE tier_policy SET owner = current_user, schema = 'heat' WHERE name = 'renamed'");
is(sql("SELECT count(*) FROM index_mover.policy_conflicts() WHERE detail ~ 'leaves at most'"), 0, 'nor to those of another schema');
sql("UPDATE tier_policy SET schema = 'full_of' WHERE name = 'renamed'");
sql("UPDATE tier_policy SET enabled = false WHERE name IN ('renamed', 'ages')");
sql("UPDATE tier_policy SET enabled = false");
is(sql("SELECT count(*) FROM index_mover.policy_conflicts()"), 0, 'but for disabled ones');
# a budget moves relations back, too: what another brings, and what a greater budget of the same tablespace has room for
my $both = sub {
	sql("DELETE FROM tier_policy; INSERT INTO tier_policy (name, relation, from_tablespace, to_tablespace, budget, older_than) VALUES "
		. join ', ', map { "('$_->[0]', 'full_of.old', " . join(', ', @$_[1 .. 4]) . ')' } @_);
	return sql('SELECT * FROM index_mover.policy_conflicts()');
};
my @small = ('small', q('regress_slow'), q('regress_fast'), 1000000, 'NULL');
is($both->(\@small, [ 'ages', 'NULL', q('regress_fast'), 'NULL', q('1 day') ]),
	'small|policy "ages" moves relations to tablespace "regress_fast", from where this one takes them to "regress_slow"',
	'a budget, and a policy that fills its tablespace');
is($both->(\@small, [ 'large', q('regress_slow'), q('regress_fast'), 2000000, 'NULL' ]),
	'small|policy "large" moves relations to tablespace "regress_slow", from where this one takes them to "regress_fast"', 'two budgets');
is($both->(\@small, [ 'ages', q('pg_default'), q('regress_fast'), 'NULL', q('1 day') ]), '', 'not what comes from elsewhere');
is($both->(\@small, [ 'chain', q('regress_fast'), q('pg_default'), 2000000, 'NULL' ]), '', 'nor a chain of tiers');
sql('DROP TABLE full_of.old; DROP OWNED BY another; DROP ROLE another; DELETE FROM tier_policy');
sql('ALTER DATABASE postgres RESET index_mover.test_file_systems; ALTER DATABASE postgres RESET index_mover.min_free_space');

# ---- chunks of TimescaleDB, where it is installed; Debian's has neither compression nor move_chunk() ---------
SKIP:
{
	skip 'timescaledb is not installed', 7
	  if sql("SELECT count(*) FROM pg_available_extensions WHERE name = 'timescaledb'") eq '0';
	my $hyper = new_node('hyper', conf => "shared_preload_libraries = 'timescaledb'\ntimescaledb.telemetry_level = off\n"
			. 'max_worker_processes = 16');
	my $chunks = sub { return $hyper->safe_psql('postgres', $_[0]) };
	$chunks->("SET client_min_messages = warning; CREATE EXTENSION timescaledb");
	$chunks->(<<'SQL');
CREATE TABLE metrics (at timestamptz NOT NULL, device int, value int);
SELECT create_hypertable('metrics', 'at', chunk_time_interval => interval '30 days');
CREATE INDEX ON metrics (device, at);
INSERT INTO metrics SELECT timestamptz '2024-01-01 UTC' + g * interval '2 hours', g % 10, g FROM generate_series(0, 2999) g;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than)
VALUES ('chunks', 'metrics', 'regress_slow', now() - timestamptz '2024-07-01 UTC');
SQL
	# chunks and their indexes: those that ended before July, and how many are not where they should be
	my $places = <<'SQL';
SELECT count(*) FILTER (WHERE is_old) >= 10, count(*) FILTER (WHERE NOT is_old) >= 6,
	   count(*) FILTER (WHERE is_old <> coalesce(spcname = 'regress_slow', false))
  FROM (SELECT range_end <= timestamptz '2024-07-01 UTC' AS is_old, format('%I.%I', chunk_schema, chunk_name)::regclass AS chunk
		  FROM timescaledb_information.chunks) k
  JOIN pg_class c ON c.oid = chunk OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = chunk)
  LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
SQL
	$chunks->('SELECT count(*) FROM run_tier_policies(wait => true)');
	is($chunks->($places), 't|t|0', 'a policy moves chunks of TimescaleDB by age, with their indexes');
	is($chunks->("INSERT INTO metrics SELECT at, 99, 0 FROM unnest(ARRAY['2024-01-15 UTC', '2024-08-15 UTC', '2025-01-15 UTC'"
			. "]::timestamptz[]) at; SET enable_seqscan = off; SELECT count(*), sum((device = 99)::int) FROM metrics WHERE device >= 0"),
		'3003|3', 'rows go into chunks that were moved, that stay, and that are new');
	is($chunks->('SELECT count(*) FROM tier_plan() WHERE moves'), '0', 'no chunk is left to move');
	cmp_ok($chunks->("SELECT count(*) FROM drop_chunks('metrics', older_than => timestamptz '2024-04-01 UTC')"), '>=', 2,
		'drop_chunks() drops chunks that were moved');
	is($chunks->("SELECT min(at) >= '2024-03-01 UTC' AND max(at) > '2025-01-01 UTC' FROM metrics"), 't', 'drop_chunks() drops no others');
	leftovers_ok($hyper, 'chunks', within => 5);
	files_ok($hyper, 'chunks');
	$hyper->stop;
}

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
	sql("INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, min_stay, start_at, stop_at) "
		. "VALUES ('full', 'full_of', 'regress_small', 'regress_slow', '0', 0.8, 0.6)");
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

	# a budget for the same tablespace fills it up to that limit, and not again what has left
	sql("CREATE UNIQUE INDEX ${_}_pad ON full_of.$_ (pad, id) TABLESPACE regress_slow; INSERT INTO index_mover.sample SELECT "
		. "max(taken_at), 'full_of.$_'::regclass, '${_}_pad', -1000000, -1000000 FROM index_mover.sample WHERE table_oid = 0")
	  foreach qw(cold cool warm);
	sql("UPDATE tier_policy SET start_at = 0.7, parts = 'indexes'; INSERT INTO tier_policy (name, schema, from_tablespace, to_tablespace, "
		. "budget, parts, min_stay) VALUES ('heats', 'full_of', 'regress_slow', 'regress_small', 24000000, 'indexes', '0')");
	my $last = sql('SELECT max(job) FROM index_mover_history');
	foreach (1 .. 4)
	{
		sql('SELECT count(*) FROM run_tier_policies()');
		wait_for_jobs($node);
	}
	cmp_ok($full->(), '<', 0.7 - 0.1 / 10, 'a budget leaves what a policy of pressure needs');
	is(sql("SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM index_mover_history WHERE job > $last AND status = 'moved' "
		. "GROUP BY name) m"), 1, 'and nothing moves twice');
	sql('DROP TABLE full_of.hot, full_of.more, full_of.warm, full_of.cool, full_of.cold; DROP TABLESPACE regress_small');
}

leftovers_ok($node, 'at the end', within => 5);
files_ok($node, 'at the end');
$node->stop;
done_testing();
