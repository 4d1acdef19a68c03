# recommend_moves(): what earns the fast space; and the samples that it goes by.
#
# Fault (storage): probes that differ on one device
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
my $node = new_node('recommend', conf => "random_page_cost = 1.1\nautovacuum = off");
sub sql { return $node->safe_psql('postgres', $_[0]); }

# what is said besides
sub notice
{
	my (undef, undef, $err) = $node->psql('postgres', $_[0]);
	return $err =~ s/^psql:<stdin>:\d+: //mr;
}

# each tablespace a device of its own; of the default's nothing is known, or it is no slower
my %file_system = (regress_slow => '1:1000000000:1000000000', regress_fast => '2:1000000000:1000000000',
	regress_same => '3:1000000000:1000000000', pg_default => '4:1000000000:1000000000');

sub file_systems
{
	my %now = (%file_system, @_);
	my $list = join ',', map { "$_:$now{$_}" } sort keys %now;
	$node->append_conf('postgresql.conf', "index_mover.test_file_systems = '$list'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('index_mover.test_file_systems') = '$list'") or die;
	return;
}
sql("CREATE TABLESPACE regress_same LOCATION ''");
sql("ALTER TABLESPACE $_->[0] SET (random_page_cost = $_->[1])") foreach [ regress_slow => 4.1 ], [ regress_fast => 1.1 ],
	[ regress_same => 4.1 ];
file_systems();

# blocks read a second in so many seconds, of the others none; all of them were wanted
sub rates
{
	my ($seconds, %rate) = @_;
	my $rows = join ', ', map { "('$_', $rate{$_})" } sort keys %rate;
	return sql(<<SQL);
BEGIN;
DELETE FROM index_mover.sample;
INSERT INTO index_mover.sample VALUES (now() - interval '$seconds s', 0, NULL, 0);
INSERT INTO index_mover.sample
	SELECT now() - interval '$seconds s', coalesce(i.indrelid, h.relation), CASE WHEN i.indrelid IS NOT NULL THEN h.relation::text END,
		   pg_stat_get_blocks_fetched(h.relation) - pg_stat_get_blocks_hit(h.relation) - coalesce(r.rate, 0) * $seconds, -1000000000000
	  FROM relation_heat h LEFT JOIN pg_index i ON i.indexrelid = h.relation LEFT JOIN (VALUES $rows) r(name, rate)
	  	ON r.name = h.relation::text;
COMMIT;
SQL
}

# "rank name method from to gain" of each row
sub advice
{
	my ($tablespace, $budget) = @_;
	return sql(<<SQL);
SELECT concat_ws(' ', rank, coalesce(index, table_name), method, from_tablespace, to_tablespace, round(gain_ms_per_second::numeric, 1))
  FROM recommend_moves('$tablespace', $budget)
SQL
}
# only what goes there
sub going { return join ' ', map { (split ' ')[1] } grep { / $_[0] -?[\d.]+$/ } split /\n/, advice(@_); }

like(notice("SELECT * FROM recommend_moves('regress_fast')"),
	qr/^NOTICE:  nothing to gain: no relation in a slower tablespace is worth a place in "regress_fast"\nDETAIL:  None .* 0\.01 /,
	'nothing is known');

sql(<<'SQL');
CREATE TABLE hot (id int, a int, b text, c int[], d int) TABLESPACE regress_slow;
CREATE TABLE cold (id int, pad text) TABLESPACE regress_slow;
INSERT INTO hot SELECT g, g, md5(g::text), ARRAY[g, g % 7], g FROM generate_series(1, 20000) g;
INSERT INTO cold SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g;
CREATE INDEX hot_a ON hot (a) TABLESPACE regress_slow;
CREATE INDEX hot_b ON hot (b) TABLESPACE regress_slow;
CREATE INDEX hot_c ON hot USING gin (c) WITH (gin_pending_list_limit = 4096) TABLESPACE regress_slow;
CREATE INDEX hot_d ON hot (d) TABLESPACE regress_fast;
CREATE INDEX hot_e ON hot (d, a) TABLESPACE regress_slow;
CREATE INDEX hot_bloated ON hot (id) TABLESPACE regress_slow;
CREATE UNIQUE INDEX cold_id ON cold (id) TABLESPACE regress_slow;
DELETE FROM hot WHERE id % 3 <> 0;
VACUUM hot;
INSERT INTO hot (c) SELECT ARRAY[g, g % 7] FROM generate_series(1, 10000) g;
SQL
sql("REINDEX INDEX $_") foreach qw(hot_a hot_b hot_d hot_e);
# an index without use earns nothing
sql(<<'SQL');
SET enable_seqscan = off;
SELECT count(*) FROM hot WHERE c @> '{3}';
SET enable_bitmapscan = off;
SELECT count(a) FROM hot WHERE a = 3;
SELECT count(b) FROM hot WHERE b = md5('3');
SELECT count(id) FROM hot WHERE id = 3;
SELECT count(d) FROM hot WHERE d = 3;
SELECT pg_stat_force_next_flush();
SQL
my %rate = (hot_a => 12, hot_b => 20, hot_c => 30, hot_bloated => 40, hot_e => 100);
rates(10000, %rate);

# ---- the ranking by itself, on arrays ------------------------------------------------------
sql("CREATE FUNCTION ranking(bigint[], float8[], boolean[], boolean[], bigint) RETURNS int[] AS 'index_mover', "
	. "'index_mover_test_ranking' LANGUAGE C");
# fates of [size, value, resident, fixed] in a budget: r(emains), g(oes), s(tays), l(eaves)
sub rank_call
{
	my ($budget, @them) = @_;
	my @columns = map { my $c = $_; join ', ', map { $c < 2 ? $_->[$c] : $_->[$c] ? 'true' : 'false' } @them } 0 .. 3;
	return "translate(array_to_string(ranking(ARRAY[$columns[0]]::bigint[], ARRAY[$columns[1]]::float8[], ARRAY[$columns[2]]::boolean[], "
		. "ARRAY[$columns[3]]::boolean[], $budget), ''), '0123', 'rgsl')";
}
sub fates { return sql('SELECT ' . rank_call(@_)); }
is(fates(100, [ 50, 10 ], [ 50, 5 ], [ 50, 1 ]), 'ggr', 'the greatest value per byte first');
is(fates(100, [ 60, 60 ], [ 60, 50 ], [ 40, 1 ]), 'grg', 'what does not fit is passed over');
is(fates(100, [ 10, 20 ], [ 100, 100 ]), 'rg', 'or the most valuable, if that is more');
is(fates(100, [ 10, 0 ], [ 10, -5 ], [ 10, 0, 1 ], [ 10, -5, 1 ]), 'rrsl', 'what gains nothing remains or stays, what loses leaves');
is(fates(100, [ 100, 11.9 ], [ 100, 10, 1 ]) . fates(100, [ 100, 12.1 ], [ 100, 10, 1 ]), 'rsgl',
	'a resident leaves for what is better by more than a fifth');
is(fates(50, [ 50, 10 ], [ 50, 10, 1 ], [ 50, 10 ]), 'rsr', 'of those that gain the same, the one that is there');
is(fates(100, [ 50, 10 ], [ 60, 0, 1, 1 ]), 'rs', 'one without another place stays, and has its bytes');
is(fates(0, [ 1, 1 ], [ 0, 1 ], [ 1, 1, 1 ]), 'rgl', 'nothing fits into nothing but nothing');
my (@random, @calls);
srand(88);
foreach (1 .. 300)
{
	my @them = map { [ 1 + int(rand(50)), rand() < 0.2 ? 0 : int(rand(1000)) / 10 - 10, rand() < 0.3, 0 ] } 1 .. 1 + int(rand(10));
	push @random, [ int(rand(150)), @them ];
}
my @first = split /\n/, sql(join "\nUNION ALL ", map { 'SELECT ' . rank_call(@$_) } @random);
# what was chosen is moved: another look
my @moved = map { my ($budget, @them) = @{ $random[$_] }; my @fate = split //, $first[$_];
	[ $budget, map { [ @{ $them[$_] }[ 0, 1 ], $fate[$_] =~ /[gs]/, 0 ] } 0 .. $#them ] } 0 .. $#random;
my @second = split /\n/, sql(join "\nUNION ALL ", map { 'SELECT ' . rank_call(@$_) } @moved);
my ($fits, $half, $stable) = (0, 0, 0);
foreach my $n (0 .. $#random)
{
	my ($budget, @them) = @{ $random[$n] };
	my $worth = sub { my $t = $_[0]; return !$t->[2] ? $t->[1] : $t->[1] < 0 ? 0 : $t->[1] * 1.2 + 1e-9; };
	my ($size, $sum, $best) = (0, 0, 0);
	foreach my $i (grep { substr($first[$n], $_, 1) =~ /[gs]/ } 0 .. $#them) { $size += $them[$i][0]; $sum += $worth->($them[$i]); }
	foreach my $set (0 .. 2**@them - 1)
	{
		my ($s, $w) = (0, 0);
		foreach my $i (grep { $set & 1 << $_ } 0 .. $#them) { $s += $them[$i][0]; $w += $worth->($them[$i]); }
		$best = $w if $s <= $budget && $w > $best;
	}
	$fits += $size <= $budget;
	$half += $sum >= $best / 2;
	$stable += $second[$n] !~ /[gl]/;
}
is("$fits $half $stable", '300 300 300', 'random ones: they fit, have half of what is possible at least, and then nothing moves any more');

# ---- room for all of them -----------------------------------------------------------------
is(advice('regress_fast', 1000000000), <<'ROWS' =~ s/\n\z//r, 'the greatest gain first; unread and unsearched ones stay where they are');
1 hot_bloated rebuild regress_slow regress_fast 12.0
2 hot_c rebuild regress_slow regress_fast 9.0
3 hot_b copy regress_slow regress_fast 6.0
4 hot_a copy regress_slow regress_fast 3.6
ROWS
is(sql("SELECT string_agg(concat_ws(' ', index, size_after < size, round(reads_per_second), bloat_ratio > 0.5, pending_pages > 16), ', ' "
	. "ORDER BY rank) FROM recommend_moves('regress_fast', 1000000000)"),
	'hot_bloated t 40 t, hot_c t 30 t t, hot_b f 20 f, hot_a f 12 f', 'bloated ones shrink, and one has a pending list');
# nor does it wait for an index that is locked
my $session = IndexMover::Session->new($node);
$session->run('BEGIN; REINDEX INDEX hot_a');
is(sql("SELECT string_agg(index || ' ' || (bloat_ratio IS NULL), ', ' ORDER BY rank) FROM recommend_moves('regress_fast', 1000000000)"),
	'hot_bloated false, hot_c false, hot_b false, hot_a true', 'what cannot be measured has no bloat_ratio');
$session->end;
sql("UPDATE index_mover.sample SET index_scans = 1 WHERE index_name = 'hot_e'");
is((split ' ', going('regress_fast', 1000000000))[0], 'hot_e', 'one that was searched before the statistics were reset');
sql("UPDATE index_mover.sample SET index_scans = 0 WHERE index_name = 'hot_e'");
my $reasons = sql(q(SELECT reason FROM recommend_moves('regress_fast', 1000000000) WHERE index::text IN ('hot_bloated', 'hot_c')));
is($reasons =~ s/[\d.]+ block reads per second, [\d.]+ of them/N block reads per second, N of them/gr =~ s/over [\d.]+ \w+/over T/gr
	  =~ s/the \d+ pages/the N pages/r,
	unfolded(<<'ROWS'), 'reasons');
N block reads per second, N of them for index scans and changes (1 sample over T), read times assumed from random_page_cost
N block reads per second, N of them for index scans and changes (1 sample over T), read times assumed from random_page_cost;
	every search reads the N pages of its pending list: flush it first: SELECT pg_catalog.gin_clean_pending_list('public.hot_c');
ROWS
unlike($reasons, qr/;;/, 'no empty command');
is(sql(q(SELECT command FROM recommend_moves('regress_fast', 1000000000) WHERE index = 'hot_bloated'::regclass)),
	q(SELECT * FROM index_mover_call.move_indexes('public.hot_bloated', 'regress_fast', 'rebuild');), 'command');

# ---- budgets ----------------------------------------------------------------------------------
my %size = map { $_ => sql("SELECT pg_relation_size('$_')") } qw(hot_a hot_b hot_d hot_e cold cold_id);
is(advice('regress_fast', $size{hot_a} + 8192 * 20),
	"1 hot_d copy regress_fast regress_slow 0.0\n2 hot_bloated rebuild regress_slow regress_fast 12.0",
	'a budget for one and what is there: the unread one has to leave');
cmp_ok(sql("SELECT sum(size_after) FROM recommend_moves('regress_fast', $size{hot_a} + 8192 * 20) WHERE to_tablespace = 'regress_fast'"),
	'<=', $size{hot_a} + 8192 * 20, 'it fits');
like(sql("SELECT reason FROM recommend_moves('regress_fast', 8192 * 12)"), qr/^does not fit into the budget of 98304 bytes; /,
	'no space at all');

# a policy with that budget moves the same
sql("INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget, min_stay) "
	. "VALUES ('same', 'regress_slow', 'regress_fast', 1, '0')");
foreach my $budget (1000000000, $size{hot_a} + 8192 * 20, 8192 * 12, 500000, 700000)
{
	sql("UPDATE tier_policy SET budget = $budget");
	is(sql("SELECT string_agg(relation || ' ' || to_tablespace, ', ' ORDER BY relation::text) FROM tier_plan('same') WHERE moves"),
		sql("SELECT string_agg(coalesce(index, table_name) || ' ' || to_tablespace, ', ' ORDER BY coalesce(index, table_name)::text) "
			. "FROM recommend_moves('regress_fast', $budget)"), "a policy with a budget of $budget moves the same");
}
sql('DELETE FROM tier_policy');

# the default is what is free and what is there already, less the reserve
my $default = sub { my ($free, $reserve) = @_; file_systems(regress_fast => "2:$free:10000000");
	return sql("SET index_mover.min_free_space = '$reserve'; SELECT string_agg(index::text, ' ' ORDER BY rank) FROM "
		. "recommend_moves('regress_fast')"); };
is($default->(10000000 - $size{hot_d}, '50%'), 'hot_bloated hot_c hot_b hot_a', 'half of a file system');
is($default->(10000000 - $size{hot_d}, '93.75%'), 'hot_d hot_bloated hot_a', 'a sixteenth');
is($default->(10000000 - $size{hot_d}, '100%'), 'hot_d', 'nothing of it');
file_systems();

# ---- what the probes have measured counts more than the settings -----------------------------
sql(<<'SQL');
INSERT INTO index_mover.probe SELECT now(), oid, CASE spcname WHEN 'regress_fast' THEN 5 ELSE 1 END
  FROM pg_tablespace WHERE spcname ~ '^regress';
SQL
rates(10000, %rate, hot_d => 15);
is(advice('regress_same', 'NULL'), '1 hot_d copy regress_fast regress_same 60.0', 'as probed');
like(sql("SELECT reason FROM recommend_moves('regress_same')"), qr/read times as probed/, 'it says so');
my $probed = "SELECT count(*) FROM recommend_moves('regress_same') WHERE reason ~ 'as probed'";
sql("UPDATE index_mover.probe SET probed_at = now() - interval '89 days'");
is(sql($probed), 1, 'a probe of 89 days ago counts');
sql("UPDATE index_mover.probe SET probed_at = now() - interval '91 days'");
is(sql($probed), 0, 'one of 91 days ago does not');
sql("UPDATE index_mover.probe SET probed_at = now() - interval '3 h'");
# several count by their median, and a noisy one can be withdrawn
sql("INSERT INTO index_mover.probe SELECT now() - interval '2 h', oid, 5.2 FROM pg_tablespace WHERE spcname = 'regress_fast'");
sql("INSERT INTO index_mover.probe SELECT now() - interval '1 min', oid, 900 FROM pg_tablespace WHERE spcname = 'regress_fast'");
is(advice('regress_same', 'NULL'), '1 hot_d copy regress_fast regress_same 63.0', 'the median of three probes');
is(sql("SELECT random_read_ms FROM withdraw_probes('regress_fast', now() - interval '1 h')"), 900, 'a probe is withdrawn');
is(advice('regress_same', 'NULL'), '1 hot_d copy regress_fast regress_same 61.5', 'the mean of the two that are left');
is(sql("SELECT count(*) FROM withdraw_probes('regress_fast')"), 2, 'all of them');
is(sql($probed), 0, 'without a probe of both, the settings count');
like(($node->psql('postgres', "BEGIN READ ONLY; SELECT withdraw_probes('regress_fast')"))[2],
	qr/cannot execute withdraw_probes\(\) in a read-only transaction/, 'it writes');
sql("INSERT INTO index_mover.probe SELECT now(), oid, 5 FROM pg_tablespace WHERE spcname = 'regress_fast'");
file_systems(map { $_ => '1:1000000000:1000000000' } keys %file_system);
my $no_slower = 'NOTICE:  nothing to gain: no tablespace on another device is known to be slower than "regress_same"' . "\n"
	. 'HINT:  Set random_page_cost of it and of the others, or run for it and for the others: '
	. "SELECT * FROM index_mover_call.tablespace_probe('regress_same');";
is(notice("SELECT * FROM recommend_moves('regress_same')"),
	'NOTICE:  nothing to gain: all tablespaces are on the same device as "regress_same"', 'on one device, whatever the probes say');
like(sql("SELECT gain_ms_per_second, reason FROM recommend_moves('regress_fast', 0) WHERE index = 'hot_d'::regclass"),
	qr/^0\|does not fit into the budget of 0 bytes; .* both tablespaces are on the same device, where reads take as long/, 'nor lost');
file_systems((map { $_ => '1:1000000000:1000000000' } keys %file_system), pg_default => '0:0:0');
like(notice("SELECT * FROM recommend_moves('pg_default', 1000000000)"),
	qr/^NOTICE:  nothing to gain: the directory of tablespace "pg_default" is missing$/, 'a missing directory');
file_systems(regress_same => '3:0:0');
is(notice("SELECT * FROM recommend_moves('regress_same')"),
	'NOTICE:  nothing to gain without a budget: the file system of "regress_same" does not say how full it is', 'no size, and no budget');
file_systems((map { $_ => '1:1000000000:1000000000' } keys %file_system), pg_default => '4:1:1');
is(notice("SELECT * FROM recommend_moves('regress_same')"), $no_slower, 'no other is slower');
file_systems();
sql('DELETE FROM index_mover.probe');
# the reads of bitmap scans overlap, as many at a time as effective_io_concurrency
sql(<<'SQL');
CREATE TABLE bm TABLESPACE regress_slow AS SELECT g AS i, repeat('x', 500) AS s FROM generate_series(1, 2000) g;
CREATE INDEX bm_i ON bm (i);
INSERT INTO index_mover.probe SELECT now(), oid, r, d
  FROM pg_tablespace JOIN (VALUES ('regress_slow', 8, 2), ('regress_fast', 1, 0.5)) v (n, r, d) ON n = spcname;
SQL
sql("SELECT pg_stat_reset_single_table_counters('bm'::regclass)");
sql("SET enable_seqscan = off; SET enable_indexscan = off; SELECT count(s) FROM bm WHERE i < 1000");
rates(10000, bm => 100);
sql("UPDATE index_mover.sample SET blks_overlapped = blks_wanted WHERE table_oid = 'bm'::regclass");
my $bitmap = sub { return sql("SELECT round(gain_ms_per_second), reason ~ '; 100% of the rows by bitmap scans, whose reads overlap' FROM "
	. "recommend_moves($_[0]) WHERE table_name = 'bm'::regclass AND index IS NULL"); };
foreach my $case ([ 0, 700 ], [ 1, 700 ], [ 2, 350 ], [ 32, 150 ])
{
	my ($at_a_time, $gain) = @$case;
	sql("ALTER TABLESPACE $_ SET (effective_io_concurrency = $at_a_time)") foreach 'regress_slow', 'regress_fast';
	is($bitmap->("'regress_fast'"), "$gain|t", "bitmap scans, $at_a_time reads at a time");
}
is($bitmap->('random_read_ms => 0.5, budget => 1000000000'), '150|t', 'of a disk that is not there, one at a time');
sql("UPDATE index_mover.probe SET deep_read_ms = NULL");
is($bitmap->("'regress_fast'"), '700|t', 'nothing is known of many reads at a time');
# a reset ends no share: it is of the samples, as the rates are
sql("UPDATE index_mover.probe SET deep_read_ms = 0.5 * random_read_ms");
sql(<<'SQL');
DELETE FROM index_mover.sample;
INSERT INTO index_mover.sample SELECT now() - interval '10000 s', t, NULL, 0, 0, 0, 0, 0, 0 FROM (VALUES (0::oid), ('bm'::regclass)) r(t);
INSERT INTO index_mover.sample SELECT now() - interval '1 s', t, NULL, 1000000, 1000000, 0, 0, 0, 1000000
  FROM (VALUES (0::oid), ('bm'::regclass)) r(t);
SELECT pg_stat_reset_single_table_counters('bm'::regclass);
SQL
like($bitmap->("'regress_fast'"), qr/\|t$/, 'after a reset of the statistics');
sql("DROP TABLE bm; DELETE FROM index_mover.probe");
sql("ALTER TABLESPACE $_ RESET (effective_io_concurrency)") foreach 'regress_slow', 'regress_fast';
rates(10000, %rate, hot_d => 15);
# neither probed, and costs equal: by heat alone
like(sql("SELECT string_agg(index::text, ' ' ORDER BY rank), min(reason) FROM recommend_moves('regress_same')"),
	qr/^hot_bloated hot_c hot_b hot_a\|.*read times not known, as if 1 ms longer/, 'by heat alone');

# ---- tables compete as indexes do -------------------------------------------------------------
rates(10000, cold => 50, cold_id => 40);
is(sql("SELECT string_agg(concat_ws(' ', rank, index, table_name, method, round(reads_per_second), command), ' / ' ORDER BY rank) FROM "
	. "recommend_moves('regress_fast', 1000000000) WHERE table_name = 'cold'::regclass"),
	"1 cold copy 50 SELECT * FROM index_mover_call.move_table('public.cold', 'regress_fast'); / 2 cold_id cold copy 40 SELECT * FROM "
		. "index_mover_call.move_indexes('public.cold_id', 'regress_fast', 'copy');",
	'a table and its index');
# the default's reads take as long as the fast one's: it was probed, and the other was not
sql("INSERT INTO index_mover.probe SELECT now(), oid, 0.11 FROM pg_tablespace WHERE spcname = 'pg_default'");
sql('ALTER TABLE cold SET TABLESPACE regress_fast');
my %cold = (cold => 50, cold_id => 40);
rates(10000, %cold);
is(going('regress_fast', $size{cold_id} + 8192), 'cold_id', 'a resident that gains nothing makes room');
is(advice('regress_fast', $size{cold_id} + 8192),
	"1 hot_d copy regress_fast regress_slow 0.0\n2 cold copy regress_fast pg_default 0.0\n3 cold_id copy regress_slow regress_fast 12.0",
		'a table to the default tablespace');
is(advice('regress_fast', $size{cold} + $size{cold_id} + $size{hot_d}), '1 cold_id copy regress_slow regress_fast 12.0',
	'if there is space, it stays');
sql("DELETE FROM index_mover.probe; ALTER TABLESPACE pg_default SET (random_page_cost = 4.1)");
is(advice('regress_fast', $size{cold}), '1 hot_d copy regress_fast regress_slow 0.0', 'one that gains more stays');
# one that is there leaves only for what is better by a fifth: of two indexes alike
sql(<<'SQL');
ALTER TABLE cold SET TABLESPACE regress_slow;
CREATE TABLE p (id int PRIMARY KEY USING INDEX TABLESPACE regress_fast) TABLESPACE regress_slow;
CREATE TABLE q (id int PRIMARY KEY USING INDEX TABLESPACE regress_slow) TABLESPACE regress_slow;
INSERT INTO p SELECT generate_series(1, 5000);
INSERT INTO q SELECT generate_series(1, 5000);
SQL
my $pq = sql("SELECT pg_relation_size('p_pkey')");
rates(10000, p_pkey => 10, q_pkey => 11.9);
is(going('regress_fast', $pq), '', 'less than a fifth better: nothing leaves for it');
rates(10000, p_pkey => 10, q_pkey => 12.1);
is(going('regress_fast', $pq), 'q_pkey', 'more: it goes');
# what has been used lately counts more, the more the shorter the half-life is, and for policies alike
rates(864000, p_pkey => 9.5, q_pkey => 1.5);
sql(<<'SQL');
BEGIN;
INSERT INTO index_mover.sample SELECT now() - interval '12 hours', 0, NULL, 0;
INSERT INTO index_mover.sample SELECT now() - interval '12 hours', s.table_oid, s.index_name,
	s.blks_read + CASE s.index_name WHEN 'p_pkey' THEN 9.5 * 864000 ELSE 0 END, -990000000000
  FROM index_mover.sample s WHERE s.index_name IN ('p_pkey', 'q_pkey');
COMMIT;
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget) VALUES ('halves', 'regress_slow', 'regress_fast', 1);
SQL
is(sql("SELECT min_stay, half_life FROM tier_policy"), '1 day|12:00:00', 'defaults of a budget');
sql("UPDATE tier_policy SET budget = $pq, min_stay = NULL, schema = 'public'");
is(sql("SELECT min_stay FROM tier_policy"), '1 day', 'a default again');
foreach my $case ([ '1 hour', 'p_pkey q_pkey' ], [ '12 hours', 'p_pkey q_pkey' ], [ '1 day', 'p_pkey q_pkey' ], [ '4 days', '' ],
	[ '10 years', '' ])
{
	my ($half_life, $moves) = @$case;
	my $only = "relation::text ~ '^[pq]_pkey'";
	sql("UPDATE tier_policy SET half_life = '$half_life'");
	my $planned = sql("SELECT string_agg(relation::text, ' ' ORDER BY relation::text) FROM tier_plan('halves') WHERE moves AND $only");
	my $advised = sql("SELECT string_agg(index::text, ' ' ORDER BY index::text) FROM recommend_moves('regress_fast', $pq, '$half_life') "
		. "WHERE " . $only =~ s/relation/index/r);
	is("$planned / $advised", "$moves / $moves", "by a half-life of $half_life");
}
# policies that take turns with their half-lives each have the rates by theirs, which are kept; hot_d,
# of which the first one disposes, leaves no space for q_pkey
sql("UPDATE tier_policy SET name = 'a_slow', half_life = '4 days'");
sql("INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget, schema, half_life) SELECT v.n, from_tablespace, to_tablespace, "
	. "budget, schema, v.h FROM tier_policy, (VALUES ('b_fast', interval '1 hour'), ('c_slow', '4 days')) v(n, h)");
is(sql("SELECT string_agg(policy || ' ' || relation, ', ' ORDER BY policy, relation::text) FROM tier_plan() "
	. "WHERE relation::text ~ '^[pq]_pkey'"), 'b_fast p_pkey', 'by half-lives that take turns');
is(sql("SELECT round(heat) FROM relation_heat('1 hour') WHERE relation = 'q_pkey'::regclass"), 30, 'what is read now');
is(sql("SELECT round(h.heat), round(v.heat) FROM relation_heat('12 hours') h JOIN relation_heat v USING (relation) "
	. "WHERE relation = 'q_pkey'::regclass"), '15|15', 'half of it, after one half-life');
is(sql("SELECT round(heat::numeric, 1) FROM relation_heat('10 years') WHERE relation = 'q_pkey'::regclass"), 1.5, 'and nearly the mean');
like(notice("SELECT * FROM $_"), qr/ERROR:  half_life must be from a minute to 10 years/, $_)
  foreach "relation_heat('59 s')", "relation_heat('1 mon -29 days')", "recommend_moves('regress_fast', NULL, '11 years')";
like(notice("UPDATE tier_policy SET half_life = '0'"), qr/violates check constraint "half_life must be from a minute to 10 years"/,
	'nor of a policy');
sql('DELETE FROM tier_policy');
# what has no other place stays, and takes its bytes from a budget
sql('ALTER TABLESPACE pg_default RESET (random_page_cost)');
sql('ALTER TABLE cold SET TABLESPACE pg_default');
rates(10000, %cold, hot_a => 40);
is(going('pg_default', $size{hot_a}), '', 'no other place');
is(going('pg_default', 1000000000), 'hot_a cold_id', 'beside it');
# no heat to speak of, whatever the difference
sql('ALTER TABLESPACE regress_slow SET (random_page_cost = 10000)');
rates(10000, cold_id => 0.009);
is(going('regress_fast', 1000000000), '', 'below the floor of heat');
rates(10000, cold_id => 0.011);
is(going('regress_fast', 1000000000), 'cold_id', 'above it');
sql('ALTER TABLESPACE regress_slow SET (random_page_cost = 4.1)');
# another extension's table is left alone
rates(10000, cold_id => 10);
sql('CREATE EXTENSION pgstattuple; ALTER EXTENSION pgstattuple ADD TABLE cold');
is(going('regress_fast', 1000000000), '', 'of an extension');
sql('ALTER EXTENSION pgstattuple DROP TABLE cold');

# ---- what it goes by --------------------------------------------------------------------------
rates(1000, cold_id => 10);
like(sql("SELECT reason FROM recommend_moves('regress_fast') WHERE index = 'cold_id'::regclass"),
	qr/warning: the statistics cover only 17 min$/, 'a quarter of an hour only');
sql('DELETE FROM index_mover.sample; SELECT pg_stat_force_next_flush()');
sql("SELECT pg_stat_reset()");
$node->restart;
sql("SET enable_seqscan = off; SELECT count(*) FROM generate_series(1, 100) g, LATERAL (SELECT 1 FROM hot WHERE b = md5(g::text)) x; "
	. "SELECT pg_stat_force_next_flush()");
like(sql("SELECT reason FROM recommend_moves('regress_fast') WHERE index = 'hot_b'::regclass"), qr/\(cumulative statistics, no samples\)/,
	'without samples');

# ---- a big one, where the greatest gain per byte would keep it out -----------------------------
rates(10000, hot_a => 12, hot_b => 20);
sql("SET enable_seqscan = off; SELECT count(a) FROM hot WHERE a = 3; SELECT pg_stat_force_next_flush()");
cmp_ok(12 / $size{hot_a}, '>', 20 / $size{hot_b}, 'gain per byte');
is(going('regress_fast', $size{hot_b}), 'hot_b', 'the greatest gain');
is(going('regress_fast', $size{hot_b} - 8192), 'hot_a', 'if that does not fit, the other');
is(going('regress_fast', $size{hot_a} + $size{hot_b}), 'hot_b hot_a', 'a budget for both: both go');

# ---- a disk that is not there -------------------------------------------------------------------
rates(10000, hot_a => 12, hot_b => 20, hot => 100);
my $disk = "recommend_moves(random_read_ms => %s, budget => %s, price_per_gb => 0.5)";
my $foretold = sub {
	return sql("SELECT string_agg(concat_ws(' ', rank, coalesce(index, table_name), round(gain_ms_per_second::numeric, 2), "
		. "round(remains_ms_per_second::numeric, 2), command IS NULL, to_tablespace IS NULL), ', ' ORDER BY rank) FROM "
		. sprintf $disk, @_);
};
# a unit of random_page_cost is 0.1 ms, of which there are 4.1: 132 reads a second wait 54.12 ms
is($foretold->(0.01, 1000000000), '1 hot 40.00 14.12 t t, 2 hot_b 8.00 6.12 t t, 3 hot_a 4.80 1.32 t t',
	'the gain, and what remains');
is($foretold->(0.01, $size{hot_b}), '1 hot_b 8.00 46.12 t t', 'a small one');
is(sql("SELECT round((gain_per_price * size_after / 1024 ^ 3 * 0.5)::numeric, 2) FROM " . sprintf $disk, 0.01, $size{hot_b}), '8.00',
	'the gain for a unit of the price');
is(sql("SELECT string_agg(concat_ws(' ', coalesce(index, table_name), round(gain_ms_per_second::numeric, 2), "
	. "round(remains_ms_per_second::numeric, 2)), ', ' ORDER BY rank) FROM recommend_moves('regress_fast', 1000000000) "
	. "WHERE 'hot'::regclass = table_name"),
	'hot 30.00 24.12, hot_b 6.00 18.12, hot_a 3.60 14.52', 'the same of a tablespace that is there');
like(notice('SELECT * FROM ' . sprintf $disk, 0.41, 1000000000), qr/^NOTICE:  nothing to gain from a disk whose reads take 0\.41 ms$/m,
	'a slow one');
foreach my $case ([ q('regress_fast', 1, random_read_ms => 0.1), '22023: tablespace and random_read_ms cannot be used together' ],
	[ 'random_read_ms => 0.1', '22004: budget must not be null' ],
	[ 'random_read_ms => 0, budget => 1', '22023: random_read_ms must be greater than zero' ],
		[ q('regress_fast', price_per_gb => -1), '22023: price_per_gb must be greater than zero' ])
{
	my (undef, undef, $err) = $node->psql('postgres', "SELECT * FROM recommend_moves($case->[0])",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($err, qr/ERROR:  \Q$case->[1]\E\n/, $case->[1]);
}

# ---- errors, privileges ----------------------------------------------------------------------
foreach my $case ([ q('no_such'), '42704: tablespace "no_such" does not exist' ],
	[ q('regress_fast', -1), '22023: budget must not be negative' ],
	[ 'NULL', '22004: tablespace must not be null' ],
		[ q('pg_global'), '22023: cannot move relations in to or out of pg_global tablespace' ])
{
	my (undef, undef, $err) = $node->psql('postgres', "SELECT * FROM recommend_moves($case->[0])",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($err, qr/ERROR:  \Q$case->[1]\E\n/, $case->[1]);
}
sql('CREATE ROLE monitor IN ROLE pg_monitor; CREATE ROLE outsider');
foreach my $call ("recommend_moves('regress_fast')", 'take_index_sample()', 'relation_heat', "relation_heat('1 day')")
{
	my ($rc) = $node->psql('postgres', "SET ROLE monitor; SELECT count(*) FROM $call");
	is($rc, 0, "$call: for pg_monitor");
	like(notice("SET ROLE outsider; SELECT count(*) FROM $call"), qr/ERROR:  permission denied/, "$call: not for others");
}
like(notice("BEGIN READ ONLY; SELECT take_index_sample()"), qr/cannot execute take_index_sample\(\) in a read-only transaction/,
	'it writes');

# ---- how old a measurement may be ----------------------------------------------------------------
sql('DELETE FROM index_mover.sample');
# 80,000,000 blocks in 70 days, of which 10,000,700 in the last 7
sql(<<'SQL');
INSERT INTO index_mover.sample
SELECT now() - d * interval '1 day' + interval '1 min', t, CASE WHEN t <> 0 THEN 'hot_a' END, r - 80000000, r - 80000000, 0
  FROM (VALUES (70, 0), (7, 69999300)) v(d, r), (VALUES (0::oid), ('hot'::regclass)) s(t);
SQL
is(sql("SELECT round(extract(epoch FROM period) / 86400), round((reads_per_second * 86400)::numeric / 1e6, 2) "
	. "FROM relation_heat('1 day') WHERE relation = 'hot_a'::regclass"), '10|1.43', 'rates are of ten half-lives');
is(sql("SELECT round(extract(epoch FROM period) / 86400), round((reads_per_second * 86400)::numeric / 1e6, 2) "
	. "FROM relation_heat('7 days') WHERE relation = 'hot_a'::regclass"), '70|1.27', 'and of these the last counts half');

# ---- samples: only what changed, and fewer with age --------------------------------------------
sql('DELETE FROM index_mover.sample');
is(sql('SELECT take_index_sample()'), sql('SELECT count(*) FROM relation_heat'), 'the first sample has all relations');
is(sql('SELECT take_index_sample()'), 0, 'the next one none');
is(sql('SELECT count(*) FROM index_mover.sample WHERE table_oid = 0'), 2, 'but its moment');
sql("SET enable_seqscan = off; SELECT count(a) FROM hot WHERE a = 3; SELECT pg_stat_force_next_flush()");
sql('SELECT take_index_sample()');
is(sql("SELECT string_agg(coalesce(index_name, table_oid::regclass::text), ' ' ORDER BY index_name) FROM index_mover.sample WHERE "
	. "taken_at = (SELECT max(taken_at) FROM index_mover.sample) AND table_oid <> 0"),
	'hot_a hot', 'what was used, and its table');
# two sessions: one has looked at the counters before, or waits for the table
my $back = "SELECT count(*) FROM (SELECT blks_read - lag(blks_read) OVER same AS read, other_scans - lag(other_scans) OVER same AS scans "
	. "FROM index_mover.sample WINDOW same AS (PARTITION BY table_oid, index_name ORDER BY taken_at)) s WHERE read < 0 OR scans < 0";
{
	my $session = IndexMover::Session->new($node);
	$session->run('BEGIN; SELECT sum(heap_blks_read + seq_scan) FROM pg_statio_user_tables JOIN pg_stat_user_tables USING (relid)');
	sql('SELECT count(*) FROM cold; SELECT pg_stat_force_next_flush()');
	cmp_ok(sql('SELECT take_index_sample()'), '>=', 1, 'a sample, after another session has read the counters');
	$session->run('SELECT take_index_sample(); COMMIT');
	is(sql($back), 0, 'a sample in a transaction that has read the counters before has no older counters');
	sql("SELECT count(*) FROM cold; SELECT pg_stat_force_next_flush()");
	$session->run('BEGIN; LOCK TABLE index_mover.sample IN SHARE MODE');
	my $sampler = IndexMover::Session->new($node);
	$sampler->send("SET statement_timeout = '100s'; SELECT take_index_sample()");
	$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted') or die;
	like(notice("SET lock_timeout = '20s'; SELECT take_index_sample()"),
		qr/^NOTICE:  no sample was taken, since another session takes one$/, 'a sample does not queue behind another');
	$session->run('COMMIT');
	cmp_ok($sampler->answer, '>=', 1, 'the sample of the other session is taken');
	$_->end foreach $session, $sampler;
}
# a hundred days, a sample of one relation every ten minutes
sql(<<'SQL');
DELETE FROM index_mover.sample;
INSERT INTO index_mover.sample SELECT now() - g * interval '10 min', t, CASE WHEN t <> 0 THEN 'hot_a' END, 100000 - g, 0, 100000 - g
  FROM generate_series(12, 14400 + 2000) g, (VALUES (0::oid), ('hot'::regclass)) r(t);
INSERT INTO index_mover.sample
SELECT date_trunc('hour', now() - interval '3 days') + n * interval '1 min', 'hot'::regclass, 'hot_a', 0, 0, s
  FROM (VALUES (1, 200000), (2, 5), (3, 200000)) v(n, s);
INSERT INTO index_mover.sample
SELECT now() - interval '110 days' + n * interval '1 hour', t, 'hot_a', 0, 0, n % 2
  FROM generate_series(1, 10) n, (VALUES ('hot'::regclass::oid), (4000000000::oid)) r(t);
SELECT take_index_sample();
SQL
is(sql('SELECT count(*) FROM index_mover.sample WHERE index_scans IN (5, 200000)'), 3,
	'scans that go back, as when an index is dropped, stay');
is(sql("SELECT count(*) FROM index_mover.sample WHERE index_scans < 2 AND taken_at < now() - interval '101 days'"), 0,
	'but not beyond the retention, nor of a table that has gone');
my $days = sql("SELECT count(*) FILTER (WHERE taken_at > now() - interval '1 day'),
	count(*) FILTER (WHERE taken_at BETWEEN now() - interval '7 days' AND now() - interval '1 day'),
	count(*) FILTER (WHERE taken_at BETWEEN now() - interval '100 days' AND now() - interval '7 days'),
	count(*) FILTER (WHERE taken_at < now() - interval '100 days')
	FROM index_mover.sample WHERE index_name = 'hot_a'");
like($days, qr/^13[1-3]\|14[4-9]\|9[345]\|1$/, "thinned: $days rows of a day, a week, the rest and before");
is(sql("SELECT reads_per_second >= 0 AND samples > 100 FROM relation_heat WHERE relation = 'hot_a'::regclass"), 't',
	'a counter that went back makes no rate negative');

# ---- many samples: read relation by relation, whatever settings of temporary files say ------------
sql(join '; ', map { "CREATE TABLE many_$_ (i int)" } 1 .. 40);
# to the n-th come n blocks a second
sql(<<'SQL');
DELETE FROM index_mover.sample;
INSERT INTO index_mover.sample SELECT now() - g * interval '1 min', 0, NULL, 0 FROM generate_series(1, 10000) g;
INSERT INTO index_mover.sample SELECT now() - g * interval '1 min', r.oid, NULL, -60 * g * r.n, -60 * g * r.n
  FROM generate_series(1, 10000) g, (SELECT oid, substr(relname, 6)::int AS n FROM pg_class WHERE relname ~ '^many_\d+$') r;
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget) VALUES ('many', 'regress_slow', 'regress_fast', 1);
UPDATE tier_policy SET owner = 'outsider' WHERE name = 'many';
ALTER DATABASE postgres SET temp_file_limit = 0;
ALTER DATABASE postgres SET log_temp_files = 0;
ALTER DATABASE postgres SET maintenance_work_mem = '4MB';
ALTER SYSTEM SET temp_tablespaces = regress_fast;
SELECT pg_reload_conf();
SQL
$node->poll_query_until('postgres', "SELECT current_setting('temp_tablespaces') = 'regress_fast'") or die;
my $fast = sql("SELECT oid FROM pg_tablespace WHERE spcname = 'regress_fast'");
my $log = -s $node->logfile;
# the most memory that a session has had, in MB
my $peak = "SELECT (regexp_match(pg_read_file('/proc/self/status'), 'VmHWM:\\s+(\\d+)'))[1]::int / 1024";
my $others = "CREATE TEMP TABLE %s (i int); SELECT coalesce(spcname, 'none') FROM pg_class c LEFT JOIN pg_tablespace s "
	. "ON s.oid = reltablespace WHERE c.oid = '%1\$s'::regclass; SHOW temp_file_limit";
foreach my $call ('relation_heat', "recommend_moves('regress_fast')", 'tier_plan()', 'take_index_sample()')
{
	my ($rows, $before, undef, $after, @then) =
	  split /\n/, sql("SET max_parallel_workers_per_gather = 0; SELECT count(*) FROM index_mover.sample; $peak; "
		. "BEGIN; SELECT count(*) FROM $call; $peak; " . sprintf $others, 'others');
	cmp_ok($after - $before, '<', 20, "$call: of $rows samples, $before MB before and $after MB after");
	is("@then", 'regress_fast 0', "$call: temporary tables and files of the rest of the transaction are as before");
}
my @files = slurp_file($node->logfile, $log) =~ /temporary file: path "(.*?)"/g;
cmp_ok(scalar @files, '>=', 4, 'the rest is in temporary files');
# of a policy whose owner may not create any there, too: the caller may
is_deeply([ grep { !m{^pg_tblspc/$fast/} } @files ], [], 'in temp_tablespaces');
is(sql("SET ROLE monitor; SELECT count(*) > 40 FROM relation_heat; SHOW temp_file_limit"), "t\n0",
	'another role, which cannot set the limit');
# a plan needs no disk, if there is memory
my $written = sub {
	my $from = -s $node->logfile;
	sql($_[0]);
	return scalar(() = slurp_file($node->logfile, $from) =~ /temporary file: path/g) > 0 ? 'some' : 'none';
};
is(join(' ', map { $written->("SET work_mem = '64kB'; SET maintenance_work_mem = '1GB'; SELECT count(*) FROM $_") } 'tier_plan()',
		'take_index_sample()', 'relation_heat'),
	'none none some', 'plans and samples sort in maintenance_work_mem');
# sorted in memory, or not; and samples from later than now
sql("INSERT INTO index_mover.sample SELECT now() + interval '30 s', oid, NULL, 1000000000, 1000000000 FROM pg_class "
	. "WHERE relname = 'many_7'");
my $expected = join "\n", map { "many_$_|$_" } 1 .. 40;
foreach my $memory ('64kB', '1GB')
{
	is(sql("SET work_mem = '$memory'; SELECT relation, round(heat) FROM relation_heat WHERE relation::text ~ '^many_' ORDER BY relation"),
		$expected, "each relation has its own samples, with work_mem $memory");
}
sql("DELETE FROM index_mover.sample WHERE taken_at > now()");
# each half-life is read once for all policies: its rates, and the histories for their looks back
sql("INSERT INTO tier_policy (name, from_tablespace, to_tablespace, budget, half_life) SELECT 'many_' || g, 'regress_slow', "
	. "'regress_fast', g, CASE g % 2 WHEN 0 THEN interval '1 day' ELSE '12 hours' END FROM generate_series(1, 5) g");
my $readings = "SELECT pg_stat_get_xact_numscans('index_mover.sample'::regclass)";
is((split /\n/, sql("BEGIN; SELECT count(*) FROM tier_plan(); $readings"))[-1], 4, 'six policies of two half-lives: four readings');
sql("ALTER DATABASE postgres RESET $_") foreach 'temp_file_limit', 'log_temp_files', 'maintenance_work_mem';
sql('ALTER SYSTEM RESET temp_tablespaces');
$node->reload;
sql("DELETE FROM tier_policy WHERE name ~ '^many'");

# ---- idle: since when, as far as is known -------------------------------------------------------
$node->append_conf('postgresql.conf', "index_mover.test_mutation = 'stats-age:200'");
$node->restart;
my $idle = "SELECT relation, extract(day FROM now() - last_use), extract(day FROM now() - last_index_use), extract(day FROM now() - "
	. "last_change), extract(day FROM now() - known_since) FROM relation_heat WHERE relation = ";
sql("CREATE TABLE idle (id int PRIMARY KEY, v int); INSERT INTO idle SELECT g, g FROM generate_series(1, 1000) g; SELECT "
	. "pg_stat_force_next_flush()");
# the index was, with a scan; another one has as many rows
my $built = sql("SELECT pg_stat_get_numscans('idle'::regclass) + pg_stat_get_tuples_returned('idle'::regclass)");
my $sample = sub {
	my ($days, $scans, $other, $changes) = @_;
	sql("INSERT INTO index_mover.sample VALUES (now() - interval '$days days 1 hour', 0, NULL, 0, 0, 0, 0, 0), (now() - interval '$days "
		. "days 1 hour', 'idle'::regclass, NULL, 0, 0, $scans, $built + 1001 * $other, $changes)");
};
# From 16 on the statistics have the time of the last scan, of the index's build, too: with these,
# the table was used today (t/122 has idle tables there), and all else is the same, unless $later says other.
sub before_16_ok
{
	my ($answer, $expected, $name, $later) = @_;
	return is($answer, $expected, $name) if $node->pg_version < 16;
	return is($answer, $later // $expected =~ s/^(\w+)\|\d*/$1|0/r, "$name, and a scan of today");
}
sql('DELETE FROM index_mover.sample');
before_16_ok(sql("$idle 'idle'::regclass"), 'idle||||0', 'without samples, of a new table: nothing is known');
$sample->(150, 0, 0, 1000);
before_16_ok(sql("$idle 'idle'::regclass"), 'idle||||150', 'a sample of long ago says that it was there, and was not used since');
sql("DELETE FROM index_mover.sample WHERE table_oid <> 0");
before_16_ok(sql("$idle 'idle'::regclass"), 'idle||||0', 'that moment says nothing of it');
$sample->(150, 0, 0, 1000);
$sample->(90, 0, 0, 1000);
$sample->(60, 0, 1, 1000);
is(sql("$idle 'idle'::regclass"), 'idle|0|||0', 'a counter that went back: it was used, and nothing is known before');
sql("DELETE FROM index_mover.sample WHERE other_scans = $built + 1001");
sql("SELECT count(*) FROM idle; SELECT pg_stat_force_next_flush()");
is(sql("$idle 'idle'::regclass"), 'idle|0|||150', 'a scan now');
$sample->(40, 0, 1, 1000);
before_16_ok(sql("$idle 'idle'::regclass"), 'idle|40|||150', 'a scan 40 days ago');
sql('VACUUM (FREEZE) idle; SELECT pg_stat_force_next_flush()');
before_16_ok(sql("$idle 'idle'::regclass"), 'idle|40|||150', 'VACUUM is no use');
$sample->(30, 5, 1, 995);
is(sql("$idle 'idle'::regclass"), 'idle|0|0|0|0', 'an index was dropped, and as many rows inserted as it had scans');
sql('DELETE FROM index_mover.sample WHERE changes = 995');
sql("SET enable_seqscan = off; SELECT v FROM idle WHERE id = 5; SELECT pg_stat_force_next_flush()");
is(sql("$idle 'idle'::regclass"), 'idle|0|0||150', 'an index scan');
before_16_ok(sql("$idle 'idle_pkey'::regclass"), 'idle_pkey||||0', 'of its index, without samples, nothing is known before',
	'idle_pkey|0|0||0');
my $other = "INSERT INTO index_mover.sample VALUES (now() - interval '150 days 1 hour', 'idle'::regclass, 'idle_pkey', %d, 0, 1, 0, 1000)";
sql(sprintf($other, 0));
like(sql("$idle 'idle_pkey'::regclass"), qr/\|150$/, 'with one, it is');
sql(sprintf("DELETE FROM index_mover.sample WHERE index_name IS NOT NULL; $other", 1e9));
like(sql("$idle 'idle_pkey'::regclass"), qr/\|0$/, 'unless that was of another index of its name, which had read more');
# a reset, and a crash: the counters are as small as those of a table without use
sql("SELECT pg_stat_reset_single_table_counters('idle'::regclass)");
like(sql("$idle 'idle'::regclass"), qr/^idle\|\d*\|\d*\|\d*\|0$/, 'after a reset nothing is known');
$node->append_conf('postgresql.conf', "index_mover.test_mutation = ''");
$node->stop('immediate');
$node->start;
is(sql("$idle 'idle'::regclass") =~ s/^.*\|//r, '0', 'nor after a crash');
is(sql("SELECT count(*) FROM relation_heat WHERE known_since < now() - interval '1 hour'"), 0, 'of no relation');
$node->stop;
done_testing();
