# The reports where a second session or server is needed: on a hot standby,
# beside locks of other sessions, and what they say about who holds things back.
#
# Fault (storage): statistics that say nothing yet: of a crash, a promotion, a young index, a
#   standby, with `track_counts` off (also sql/report_index)
use strict;
use warnings;

use File::Path qw(make_path rmtree);
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

needs_test_points();
my $node = new_node('primary', streaming => 1, conf => "max_replication_slots = 5\nwal_level = logical");
make_zoo($node, 'zoo', 5000);
$node->safe_psql('postgres', <<'SQL');
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
INSERT INTO unlogged SELECT generate_series(1, 1000);
ALTER INDEX zoo_arr SET (gin_pending_list_limit = 4096);
INSERT INTO zoo (id, grp, arr, num) SELECT g, 1, ARRAY[g], g FROM generate_series(10001, 12000) g;
SQL

# ---------------------------------------------------------------------------
# The interval of a sampled estimate is as wide as samples differ
# ---------------------------------------------------------------------------
# How many of the intervals hold the truth says too little, for one that is a fifth
# too narrow misses it hardly more often.  Their width can be compared with the
# spread of the estimates: 1.96 standard deviations to either side, without the 3 / n
# for what no sample shows; 900 samples tell that within 0.05, so that 1.75 is not
# undercut by chance.  The index has stretches that are nearly empty, in three
# orders; what VACUUM counts of its rows would make the estimates better than the
# sample is.  (A hash index knows its rows itself.)
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE uneven AS
	SELECT g AS id, hashint4(g) AS h, g % 5 * 100000 + g / 5 AS in_5, g % 50 * 10000 + g / 50 AS in_50 FROM generate_series(1, 400000) g;
CREATE INDEX uneven_id ON uneven (id);
CREATE INDEX uneven_in_5 ON uneven (in_5);
CREATE INDEX uneven_in_50 ON uneven (in_50);
DELETE FROM uneven WHERE hashint4(id / 2000) % 2 = 0 AND h % 10 <> 0;
VACUUM uneven;
UPDATE pg_class SET reltuples = -1 FROM pg_index WHERE pg_class.oid = indexrelid AND indrelid = 'uneven'::regclass;
SQL
my ($samples, $least, $width) = split /\|/, $node->safe_psql('postgres', <<'SQL');
SELECT sum(n), round(min(width)::numeric, 2), round(avg(width)::numeric, 2)
  FROM (SELECT count(*) AS n,
			   avg((bloat_ratio_high - bloat_ratio_low) / 2 - 3.0 / sampled_pages + 3.0 / pages) / stddev(bloat_ratio) AS width
		  FROM pg_index, generate_series(1, 300) n, LATERAL index_bloat(indexrelid, 400 + 0 * n)
		 WHERE indrelid = 'uneven'::regclass AND NOT is_exact GROUP BY indexrelid) i
SQL
note "the half of the interval in standard deviations: $width, at least $least, from $samples samples";
is($samples, 900, 'samples of an uneven index');
cmp_ok($width, '>', 1.75, 'their intervals are as wide as they differ');
$node->safe_psql('postgres', 'DROP TABLE uneven');

# ---------------------------------------------------------------------------
# What to do about a pending list: each step does what it says
# ---------------------------------------------------------------------------
sub sql { return $node->safe_psql('postgres', $_[0]); }

# The steps for words_t, and the command of one.
sub steps { return split /\n/, sql(q(SELECT unnest(advice) FROM gin_pending_list('words_t'))); }
sub command_of { return $_[0] =~ /: ([^:]*;)$/ ? $1 : die "no command: $_[0]"; }

# Blocks that the index scan of a search reads.
sub pages_of_search
{
	my $plan = sql(q(SET enable_seqscan = off; EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) SELECT FROM words WHERE t @@ 'w'));
	my ($buffers) = $plan =~ /Bitmap Index Scan on words_t.*?Buffers: ([^\n]*)/s or die $plan;
	my $pages = 0;
	$pages += $1 while $buffers =~ /(?:hit|read)=(\d+)/g;
	return $pages;
}
my $insert = q(INSERT INTO words SELECT to_tsvector('simple', md5(g::text)) FROM generate_series(1, %d) g);
my $make_words = q(CREATE TABLE words (t tsvector) WITH (autovacuum_enabled = off); CREATE INDEX words_t ON words USING gin (t) WITH )
	. '(gin_pending_list_limit = 4096)';
sql($make_words);
sql(sprintf $insert, 20000);
sql(q(SELECT gin_clean_pending_list('words_t')));
my $base = pages_of_search();
is(join(' ', steps()), '', 'no advice for an empty list');
sql(sprintf $insert, 15000);
pages_of_search();
# since yesterday 20 searches and the next one, and the 15,000 rows
sql(<<'SQL');
SELECT pg_stat_force_next_flush();
BEGIN;
DELETE FROM index_mover.sample;
INSERT INTO index_mover.sample VALUES (now() - interval '1 day', 0, NULL, 0);
INSERT INTO index_mover.sample (taken_at, table_oid, index_name, blks_read, index_scans, changes)
  SELECT now() - interval '1 day', relid, indexrelname, 0, i.idx_scan - 20, n_tup_ins - 15000
	FROM pg_stat_user_indexes i JOIN pg_stat_user_tables USING (relid) WHERE indexrelname = 'words_t';
COMMIT;
SQL
my $list = sql(q(SELECT pending_pages FROM gin_pending_list('words_t')));
cmp_ok(pages_of_search(), '>=', $base + $list, "a search reads the $list pages of the list");
like((steps())[2], qr/^\d+ rows are \d+ pages of the list, and autovacuum is off in this server, so run every \d+ minutes: .*gin_clean/,
	'without autovacuum, how often to empty it');
sql('ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET autovacuum_naptime = 1; SELECT pg_reload_conf()');
poll_until($node, 'SHOW autovacuum', 'on', 'autovacuum is on');
my @steps = steps();
note join "\n", @steps;
is(scalar(@steps), 3, 'three steps: empty the list, limit it, have autovacuum empty it');
is(sql(q(SELECT array_to_string(pending_advice, '|') FROM index_report('words_t'))), join('|', @steps), 'the same in index_report()');
sql(command_of($steps[0]));
is(pages_of_search(), $base, 'it is emptied');
my ($limit) = $steps[1] =~ / (\d+) kB suffices in place of 4096 kB: ALTER INDEX public\.words_t SET \(gin_pending_list_limit = \1\);$/
	or diag $steps[1];
# twice the pages that came in, by the searches
cmp_ok(abs($limit - 2 * $list / 21 * 8), '<=', 1, 'the limit follows from the rows and the searches');
sql(command_of($steps[1]));
sql(sprintf $insert, 15000);
cmp_ok(pages_of_search(), '<=', $base + $limit / 8 + 1, 'as many rows again, and no longer list than the limit');
my ($rows) = $steps[2] =~ /autovacuum_analyze_threshold = (\d+)\);$/ or diag $steps[2];
cmp_ok($rows, '<=', 0.5 * 15000 / $list * $limit / 8 + 1, 'rows of half the limit');
sql(q(SELECT gin_clean_pending_list('words_t')));
sql(command_of($steps[2]));
sql(sprintf $insert, $rows + 1);
poll_until($node, "SELECT p.pending_pages, s.autoanalyze_count > 0 FROM gin_pending_list('words_t') p, pg_stat_user_tables s "
		. "WHERE s.relname = 'words'", '0|t', 'the list is empty after an ANALYZE by autovacuum');
sql('ALTER SYSTEM RESET autovacuum_naptime; ALTER SYSTEM RESET autovacuum; ALTER TABLE words SET (autovacuum_enabled = off)');
sql('SELECT pg_reload_conf()');
sql(sprintf $insert, 1200);

# who holds vacuum back: a session and a prepared transaction, and not a slot that holds back the catalogs only
sql(q(SELECT pg_create_logical_replication_slot('catalogs', 'pgoutput')));
my $holder = IndexMover::Session->new($node);
$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
sql(q(BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'forgotten'));
sql('DELETE FROM words WHERE t @@ \'w\' OR ctid < \'(10,1)\'');
sub removable { return $_[0] =~ /(\d+) (?:are )?dead but not yet removable/ ? $1 : die $_[0]; }
sub vacuum { my (undef, undef, $err) = $node->psql('postgres', 'VACUUM (VERBOSE) words'); return removable($err); }
cmp_ok(vacuum(), '>', 100, 'dead rows that VACUUM cannot remove');
sql('ALTER INDEX words_t SET (gin_pending_list_limit = 4096); SELECT pg_sleep(1.1)');
sql(sprintf $insert, 3000);
@steps = grep { /holds back vacuum/ } steps();
note join "\n", @steps;
is(scalar(@steps), 2, 'two hold it back') or diag join "\n", steps();
foreach my $step (@steps)
{
	sql(command_of($step) =~ s/^.* or //r) if $step =~ /^session ${\ $holder->pid} holds back vacuum/;
	sql(q(ROLLBACK PREPARED 'forgotten'))
	  if $step =~ /^prepared transaction forgotten .*: COMMIT PREPARED 'forgotten'; or ROLLBACK PREPARED 'forgotten';$/;
}
poll_until($node, 'SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $holder->pid, '0', 'the end of the session');
is(vacuum(), 0, 'then VACUUM removes all');
sql(q(SELECT pg_drop_replication_slot('catalogs')));
sql(sprintf $insert, 3000);

# ---------------------------------------------------------------------------
# A hot standby
# ---------------------------------------------------------------------------

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', <<CONF);
hot_standby_feedback = on
wal_receiver_status_interval = 1
application_name = standby
CONF
$standby->start;
$node->wait_for_catchup($standby);

my $bloat = <<'SQL';
SELECT string_agg(format('%s %s', i.indexrelid::regclass, b), E'\n' ORDER BY 1)
  FROM pg_index i, LATERAL index_bloat(i.indexrelid, exact => true) b WHERE indrelid = 'zoo'::regclass
SQL
my $on_primary = $node->safe_psql('postgres', $bloat);
is($standby->safe_psql('postgres', $bloat), $on_primary, 'index_bloat on a standby says what the primary says');
my $pending = q(SELECT * FROM gin_pending_list('zoo_arr'));
is($standby->safe_psql('postgres', $pending), $node->safe_psql('postgres', $pending), 'gin_pending_list on a standby');
like($standby->safe_psql('postgres', q(SELECT array_to_string(advice, '|') FROM gin_pending_list('words_t'))),
	qr/^every search reads the \d+ pages of the pending list; on the primary: SELECT pg_catalog\.gin_clean_pending_list\('\S+words_t'\);$/,
	'advice on a standby is for the primary');
sql('DROP TABLE words; DELETE FROM index_mover.sample');
is($standby->safe_psql('postgres',
	q(SELECT count(*) > 15 AND bool_and(bloat_source <> 'not measured' OR access_method IN ('bloom', 'brin', 'spgist', 'heap')) FROM )
		. q(index_report('zoo'))),
	't', 'index_report on a standby');
is($standby->safe_psql('postgres', q(SELECT DISTINCT bloat_source FROM index_report('unlogged'))),
	'not measured', 'an unlogged index on a standby is no error in a report');
my ($rc, $out, $err) = $standby->psql('postgres', q(SELECT * FROM index_bloat('unlogged_pkey')),
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($err, qr/0A000: cannot access temporary or unlogged relations during recovery/, 'asked for by name it is one');
is($standby->safe_psql('postgres', q(SELECT random_read_ms > 0 FROM tablespace_probe('regress_fast', '50 ms'))),
	't', 'tablespace_probe on a standby');
# ---- "unused" has evidence -----------------------------------------------------------------
my $before = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
$node->append_conf('postgresql.conf', 'track_commit_timestamp = on');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', "SELECT stats_since > '$before' FROM index_report('zoo_arr')"), 't', 'a crash begins the statistics again');
sleep 2;    # a file's time may be in whole seconds
my $copied = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
$node->safe_psql('postgres', 'CREATE DATABASE of_template TEMPLATE postgres');
is($node->safe_psql('of_template', "SELECT index_mover.stats_since() > timestamptz '$copied' - interval '1 s'"), 't',
	'and so does a copy of the database');
$node->safe_psql('postgres', 'DROP DATABASE of_template');
$node->safe_psql('postgres', 'CREATE INDEX young ON zoo (grp, num)');
my @real = map { $node->safe_psql('postgres', "SELECT pg_get_functiondef('index_mover.$_'::regproc)") } 'stats_since', 'relation_report';
# the latter says that all files are 100 days old
my ($arguments) = $real[1] =~ /relation_report(\(.*\))\s+RETURNS/ or die $real[1];
my $columns = join ', ', grep { $_ ne 'file_birth' } $arguments =~ /OUT (\w+)/g;
$node->safe_psql('postgres', $real[1] =~ s/index_mover\.relation_report/public.real_report/r);
$node->safe_psql('postgres', <<"SQL");
CREATE OR REPLACE FUNCTION index_mover.stats_since() RETURNS timestamptz LANGUAGE sql AS 'SELECT now() - interval ''41 days 1 hour''';
CREATE OR REPLACE FUNCTION index_mover.relation_report$arguments LANGUAGE sql
	AS 'SELECT $columns, now() - interval ''100 days'' FROM public.real_report(relation, sample)';
SQL
$node->wait_for_catchup($standby);
my $remarks = q{SELECT index, substring(remark FROM 'unused[^;]*') FROM index_report('zoo')
	WHERE index IN ('young'::regclass, 'zoo_arr'::regclass) ORDER BY index::text};
is($node->safe_psql('postgres', $remarks), "young|\nzoo_arr|unused: no scan in 41 days on this server",
	'an index that is younger by its commit timestamp is not called unused');
is($standby->safe_psql('postgres', $remarks), "young|\nzoo_arr|", 'and none on a standby: the primary may use it');
# a counter of 0 may have been reset, which samples tell: it went back a day ago; or the index was used until then
my $sampled = q{INSERT INTO index_mover.sample (taken_at, table_oid, index_name, blks_read, index_scans)
	SELECT now() - d * interval '1 day', r.* FROM (VALUES (0, NULL, 0, 0), ('zoo'::regclass::oid::int8, 'zoo_arr', 7, %d)) r};
$node->safe_psql('postgres', join '; ',
	map { sprintf $sampled =~ s/\bd \*/$_->[0] */r, $_->[1] } [ 20, 30 ], [ 19, 30 ], [ 12, 0 ]);
is($node->safe_psql('postgres', $remarks), "young|\nzoo_arr|unused: no scan in 12 days on this server",
	'nor for longer than since its counter was reset');
$node->safe_psql('postgres', join '; ', map { sprintf $sampled =~ s/\bd \*/$_->[0] */r, $_->[1] } [ 4, 30 ], [ 3, 0 ]);
is($node->safe_psql('postgres', $remarks), "young|\nzoo_arr|", 'an index whose counter was reset in the last week is not called unused');
$node->safe_psql('postgres', 'DELETE FROM index_mover.sample');
$node->safe_psql('postgres', "$_; DROP INDEX IF EXISTS young") foreach @real;
$node->safe_psql('postgres', 'DROP FUNCTION public.real_report');
own_devices($_) foreach $node, $standby;

# a sample of the primary tells nothing of its standby, only what was read there
$node->safe_psql('postgres', <<'SQL');
ALTER TABLESPACE regress_slow SET (random_page_cost = 4);
ALTER TABLESPACE regress_fast SET (random_page_cost = 1);
INSERT INTO index_mover.sample VALUES (now() - interval '10000 s', 0, NULL, 0, 0),
  (now() - interval '10000 s', 'zoo'::regclass, 'zoo_num_key', -1000000, -1000000);
SQL
$node->wait_for_catchup($standby);
$standby->restart;    # nothing is cached
$standby->safe_psql('postgres', 'SELECT pg_stat_reset(); SET enable_seqscan = off; SET enable_bitmapscan = off; '
	. 'SELECT count(num) FROM zoo WHERE num < 100; SELECT pg_stat_force_next_flush()');
my $advice = q(SELECT index, method, from_tablespace, to_tablespace, reads_per_second > 0.01, reason ~ 'no samples'
	FROM recommend_moves('regress_fast') WHERE index = 'zoo_num_key'::regclass);
is($standby->safe_psql('postgres', $advice), 'zoo_num_key|copy|regress_slow|regress_fast|t|t', 'recommend_moves on a standby');
($rc, $out, $err) = $standby->psql('postgres',
	q(SET index_mover.min_free_space = '100%'; SELECT index, reason FROM recommend_moves('regress_fast')));
like("$out|$err", qr/^\|psql:<stdin>:1: NOTICE:  nothing to gain: no relation in a slower tablespace .*\n.*, fits into 0 bytes, and /,
	'and nothing where all must stay free');
is($standby->safe_psql('postgres', q(SELECT count(*) FROM index_mover_blockers('zoo'))), '0', 'index_mover_blockers on a standby');
($rc, $out, $err) = $standby->psql('postgres', 'SELECT take_index_sample()', extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($err, qr/25006: cannot execute take_index_sample\(\) during recovery/, 'samples are taken on the primary');
foreach my $case (
	[ q('pg_stats'), qr/42809: "pg_stats" is not a table, materialized view, or index\n(?:psql.*)?DETAIL:  .* views/ ],
	[ '4294967295', qr/42P01: relation with OID 4294967295 does not exist/ ])
{
	(undef, undef, $err) = $node->psql('postgres', "SELECT * FROM index_mover_blockers($case->[0])",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($err, $case->[1], "index_mover_blockers($case->[0])");
}

# ---------------------------------------------------------------------------
# Locks of other sessions
# ---------------------------------------------------------------------------

my $locker = IndexMover::Session->new($node);
$locker->run('BEGIN; REINDEX INDEX zoo_txt');
is($node->safe_psql('postgres', q(SET lock_timeout = 100;
	SELECT size > 0, bloat_ratio IS NULL, bloat_source FROM index_report('zoo') WHERE index = 'zoo_txt'::regclass)),
	't|t|not measured', 'a locked index is a row with NULLs');
is($node->safe_psql('postgres', q(SET lock_timeout = 100; SELECT count(*) > 15 FROM index_report())),
	't', 'and no reason to wait');
is($node->safe_psql('postgres', "SET lock_timeout = 100; $advice"),
	'zoo_num_key|copy|regress_slow|regress_fast|t|f', 'nor for recommend_moves');
own_devices($node, 'off');
my $blockers = q(SELECT kind, pid, holds_back ~ 'locks on .*zoo_txt', action FROM index_mover_blockers('zoo', '0 s') WHERE kind = )
	. q('session');
is($node->safe_psql('postgres', $blockers),
	'session|' . $locker->pid . '|t|end its transaction in the client, or SELECT pg_catalog.pg_terminate_backend(' . $locker->pid . ');',
	'index_mover_blockers names who holds the lock');
is($node->safe_psql('postgres', $blockers =~ s/0 s/1 h/r), '', 'but not those that are younger than asked for');
$locker->run('ROLLBACK');

# ---------------------------------------------------------------------------
# Temporary tables of other sessions, and what is not there any more
# ---------------------------------------------------------------------------

my ($temp_index, $temp_table, $temp_schema) = split /\|/, $locker->run(<<'SQL');
CREATE TEMP TABLE temporary (id int PRIMARY KEY);
SELECT 'temporary_pkey'::regclass::oid, 'temporary'::regclass::oid, pg_my_temp_schema()::oid
SQL
foreach my $case (
	[ "index_bloat($temp_index)", qr/0A000: cannot access temporary indexes of other sessions/ ],
	[ "move_indexes($temp_index, 'regress_fast')", qr/0A000: cannot move temporary tables/ ],
	[ "move_indexes($temp_table, 'regress_fast')", qr/0A000: cannot move temporary tables/ ],
	[ "move_schema_indexes($temp_schema, 'regress_fast')", qr/0A000: cannot move temporary tables/ ],
	[ 'index_bloat(4294967295)', qr/42704: index with OID 4294967295 does not exist/ ],
	[ 'gin_pending_list(4294967295)', qr/42704: index with OID 4294967295 does not exist/ ])
{
	my ($call, $message) = @$case;
	($rc, $out, $err) = $node->psql('postgres', "SELECT * FROM $call", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($err, $message, $call =~ s/\d+/OID/r);
}
is($node->safe_psql('postgres', "SELECT count(*) FROM index_report() WHERE index = $temp_index"), '0', 'no row of a report');

# ---------------------------------------------------------------------------
# Snapshots, prepared transactions, slots, standbys
# ---------------------------------------------------------------------------

is($node->safe_psql('postgres', q(SELECT count(*) FROM index_mover_blockers() WHERE kind <> 'standby')), '0', 'nothing is held back');

$locker->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
is($node->safe_psql('postgres', q(SELECT kind, pid = ) . $locker->pid
	. q(, since < now(), xid_age >= 0, holds_back ~ 'its snapshot' FROM index_mover_blockers('zoo', '0 s') WHERE kind = 'session')),
	'session|t|t|t|t', 'an old snapshot');
$locker->run('COMMIT');

# The first copy of a logical subscription is a walsender with a snapshot of this
# database: a rebuild waits for it, and it is no standby.
my $copier = IndexMover::Session->new($node, walsender => 1);
my $copier_pid = $copier->pid;
my $end_it = "end its transaction in the client, or SELECT pg_catalog.pg_terminate_backend($copier_pid);";
$copier->run('BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ');
$copier->run('SELECT count(*) FROM pg_class');
is($node->safe_psql('postgres', "SELECT backend_type FROM pg_stat_activity WHERE pid = $copier_pid"), 'walsender',
	'a walsender in the database');
is($node->safe_psql('postgres',
	"SELECT kind, xid_age >= 0, holds_back ~ 'every rebuild', action FROM index_mover_blockers() WHERE pid = $copier_pid"),
	"session|t|t|$end_it", 'is a session that holds back rebuilds');
like($node->safe_psql('postgres', q(SELECT status, sqlstate, detail FROM move_indexes('unlogged', 'regress_fast', method => 'rebuild',
	settings => '{"lock_wait": "500ms"}'))),
	joined(qr/^failed\|55P03\|gave up waiting for transactions with an old snapshot: Waited [\d.]+ seconds for /,
		qr/process $copier_pid \(\Q$end_it\E\)/),
	'and the rebuild that gives up says so');
$copier->run('COMMIT');
$copier->end;

$node->safe_psql('postgres', q(BEGIN; DELETE FROM zoo WHERE id = 1; PREPARE TRANSACTION 'it''s mine'));
is($node->safe_psql('postgres',
	q(SELECT kind, name, holds_back ~ 'locks on .*zoo', action FROM index_mover_blockers('zoo', '0 s') WHERE kind = 'prepared )
		. q(transaction')),
	q(prepared transaction|it's mine|t|COMMIT PREPARED 'it''s mine'; or ROLLBACK PREPARED 'it''s mine';), 'a prepared transaction');
$node->safe_psql('postgres', q(ROLLBACK PREPARED 'it''s mine'));

$node->safe_psql('postgres', q(SELECT pg_create_physical_replication_slot('forgotten', true)));
is($node->safe_psql('postgres',
	q{SELECT kind, name, holds_back ~ '^\d+ bytes of WAL$', action ~ 'pg_drop_replication_slot\(''forgotten''\)' FROM }
		. q{index_mover_blockers() WHERE kind = 'slot'}),
	'slot|forgotten|t|t', 'a slot without a reader');
$node->safe_psql('postgres', q(SELECT pg_drop_replication_slot('forgotten')));
# one that was invalidated has its xmin still, and holds back nothing
$node->safe_psql('postgres', q(SELECT pg_create_logical_replication_slot('lost', 'pgoutput')));
is($node->safe_psql('postgres', "SELECT name, holds_back FROM index_mover_blockers() WHERE kind = 'slot'") =~ s/\d+/N/r,
	'lost|vacuum of the catalogs; N bytes of WAL', 'a logical slot without a consumer');
$node->safe_psql('postgres', "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'; SELECT pg_reload_conf()");
foreach (1 .. 5)
{
	$node->safe_psql('postgres', 'SELECT pg_switch_wal(); CREATE TABLE wal (i int); DROP TABLE wal');
	$node->wait_for_catchup($standby);
	$node->safe_psql('postgres', 'CHECKPOINT');
}
is($node->safe_psql('postgres', 'SELECT wal_status, catalog_xmin IS NOT NULL, (SELECT count(*) FROM index_mover_blockers() '
	. "WHERE kind = 'slot') FROM pg_replication_slots"), 'lost|t|0', 'until it is lost');
$node->safe_psql('postgres', "SELECT pg_drop_replication_slot('lost'); ALTER SYSTEM RESET max_slot_wal_keep_size; SELECT pg_reload_conf()");

my $reader = IndexMover::Session->new($standby);
$reader->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM zoo');
ok($node->poll_query_until('postgres',
	q(SELECT count(*) = 1 FROM index_mover_blockers() WHERE kind = 'standby' AND xid_age >= 0 AND action ~ 'hot_standby_feedback = off')),
	'a standby that holds back vacuum');
sub holders { return join "\n", grep { /holds back vacuum/ } steps(); }
sql($make_words);
sql(sprintf $insert, 3000);
like(holders(), joined(qr/^standby \d+ holds back vacuum \(vacuum, by hot_standby_feedback\): /,
		qr/end the long query on that standby, or set hot_standby_feedback = off there$/),
	'the advice on a pending list names the standby');
# with a slot, that has it, and the standby is not behind
$node->safe_psql('postgres', q(SELECT pg_create_physical_replication_slot('its_slot')));
$standby->append_conf('postgresql.conf', "primary_slot_name = 'its_slot'");
$standby->reload;
ok($node->poll_query_until('postgres',
	q(SELECT count(*) = 1 FROM index_mover_blockers() WHERE kind = 'slot' AND name = 'its_slot' AND action ~ 'hot_standby_feedback = off')),
	'a slot of a standby that holds back vacuum');
like(holders(), joined(qr/(?m:^)slot its_slot holds back vacuum \(vacuum in every database; -?\d+ bytes of WAL\): /,
		qr/end the long query on its standby, or set hot_standby_feedback = off there(?m:$)/),
	'the advice on a pending list names the slot');
$standby->append_conf('postgresql.conf', "primary_slot_name = ''");
$standby->reload;
ok($node->poll_query_until('postgres', 'SELECT NOT active FROM pg_replication_slots'), 'the slot is free again');
$node->safe_psql('postgres', q(SELECT pg_drop_replication_slot('its_slot')));
$reader->run('COMMIT');
$standby->append_conf('postgresql.conf', 'hot_standby_feedback = off');
$standby->reload;
ok($node->poll_query_until('postgres', 'SELECT bool_and(backend_xmin IS NULL) FROM pg_stat_replication'),
	'the standby sends no feedback any more');
isnt(join("\n", steps()), '', 'there is still advice on the pending list');
is(holders(), '', 'the advice on a pending list names no standby and no slot any more');
sql('DROP TABLE words');

# ---------------------------------------------------------------------------
# A probe of a directory that cannot be written, or is not there
# ---------------------------------------------------------------------------

my $fast = $node->data_dir . '/pg_tblspc/' . $node->safe_psql('postgres', q(SELECT oid FROM pg_tablespace WHERE spcname = 'regress_fast'));
my ($version) = glob("$fast/PG_*");

sub probe_fails
{
	my ($message, $name) = @_;
	my (undef, undef, $said) = $node->psql('postgres', q(SELECT * FROM tablespace_probe('regress_fast', '50 ms')),
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return like($said, $message, $name);
}

chmod 0500, $version or die $!;
probe_fails(qr/42501: could not create file "[^"]*pgsql_tmp/, 'probe: no place for temporary files');
chmod 0700, $version or die $!;
mkdir "$version/pgsql_tmp", 0500 or die $!;
probe_fails(qr/42501: could not create file "[^"]*pgsql_tmp/, 'probe: a directory that is not writable');
rmdir "$version/pgsql_tmp" or die $!;
rename $fast, "$fast.away" or die $!;
probe_fails(qr/58P01: could not look at the file system of tablespace "regress_fast"/, 'probe: a directory that is gone');
rename "$fast.away", $fast or die $!;

# ---------------------------------------------------------------------------
# A probe takes no more room than it may
# ---------------------------------------------------------------------------

# The size of the file that a probe has open, without a name; undef if there is none.
sub probe_size
{
	my ($pid) = @_;
	my %size;
	foreach my $fd (glob("/proc/$pid/fd/*"))
	{
		next unless (readlink($fd) // '') =~ m{/pgsql_tmp\.index_mover\.\d+ \(deleted\)$};
		my ($device, $inode, $size) = (stat $fd)[ 0, 1, 7 ];
		$size{"$device $inode"} = $size if defined $size;
	}
	die 'a probe with more than one file' if keys %size > 1;
	return (values %size)[0];
}

# Begin a long probe, wait until its file grows no more, and cancel it; returns the
# file's size.
sub size_of_probe
{
	my ($tablespace) = @_;
	my $prober = IndexMover::Session->new($node);
	my $pid = $prober->pid;
	my ($size, $same) = (0, 0);
	$prober->send("SELECT * FROM tablespace_probe('$tablespace', '60 s')");
	foreach my $try (1 .. 400)
	{
		my $now = probe_size($pid) // 0;
		$same = $now >= 4 * 1024 * 1024 && $now == $size ? $same + 1 : 0;
		$size = $now;
		last if $same == 10;
		usleep(100_000);
	}
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$prober->answer;
	$prober->end;
	return $size;
}

SKIP:
{
	skip 'no /proc', 3 unless -d "/proc/$$/fd";
	my ($before) = file_system_of($node, 'regress_fast');
	my $size = size_of_probe('regress_fast');
	my ($after) = file_system_of($node, 'regress_fast');
	cmp_ok($size, '>=', 4 * 1024 * 1024, 'the file of a probe is big enough');
	cmp_ok($size, '<=', 256 * 1024 * 1024, 'and not too big');
	cmp_ok($size, '<=', ($before > $after ? $before : $after) / 10, 'nor more than a tenth of what is free');
}

# Of each tablespace the last five results are kept; no session waits for another's.
{
	my $probe = "SELECT random_read_ms > 0 FROM tablespace_probe('%s', '10 ms')";
	$node->safe_psql('postgres', sprintf($probe, $_)) foreach qw(regress_fast), ('regress_slow') x 5;
	my $other = IndexMover::Session->new($node);
	$other->run('BEGIN; ' . sprintf($probe, 'regress_slow'));
	$node->safe_psql('postgres', "SET lock_timeout = '1s'; " . sprintf($probe, 'regress_slow'));
	$other->run('COMMIT');
	$other->end;
	my $kept = 'SELECT string_agg(t.spcname || $$ $$ || n, $$, $$ ORDER BY t.spcname) FROM (SELECT tablespace, count(*) AS n '
		. 'FROM index_mover.probe GROUP BY 1) p JOIN pg_tablespace t ON t.oid = p.tablespace';
	is($node->safe_psql('postgres', $kept), 'regress_fast 1, regress_slow 6', 'probes: those of two sessions stay');
	$node->safe_psql('postgres', sprintf($probe, 'regress_slow'));
	is($node->safe_psql('postgres', $kept), 'regress_fast 1, regress_slow 5', 'probes: the next one removes the oldest ones');
}

# ---------------------------------------------------------------------------
# A probe that does not come to its end
# ---------------------------------------------------------------------------

sub probe_files
{
	return grep { -f $_ } glob($node->data_dir . '/base/pgsql_tmp/*'),
	  glob($node->data_dir . '/pg_tblspc/*/*/pgsql_tmp/*');
}

for my $way (qw(cancel terminate kill))
{
	my $prober = IndexMover::Session->new($node);
	my $pid = $prober->pid;
	$prober->send(q(SELECT * FROM tablespace_probe('regress_fast', '30 s')));
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND query ~ 'tablespace_probe'");
	usleep(300_000);
	is(scalar(probe_files()), 0, "$way: the file has no name even while the probe runs");
	if ($way eq 'cancel')
	{
		$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
		$prober->answer;
		like($prober->errors, qr/57014/, 'the probe is canceled');
	}
	elsif ($way eq 'terminate')
	{
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 10000)");
	}
	else
	{
		kill 'KILL', $pid;
		wait_until_up($node);
	}
	is(scalar(probe_files()), 0, "$way: nothing is left");
	eval { $prober->end };
}

$before = $standby->safe_psql('postgres', 'SELECT clock_timestamp()');
$standby->promote;
# the time of a file has whole seconds in pg_ls_waldir()
is($standby->safe_psql('postgres', "SELECT index_mover.stats_since() > timestamptz '$before' - interval '1 s'"), 't',
	'a promotion begins the statistics again');
# the standby would use the directory of the next tablespace, too
$standby->stop('immediate');

# ---------------------------------------------------------------------------
# A file system that does not survive a reboot
# ---------------------------------------------------------------------------

# a cloud's local disk, by its model, of the disk or of a partition on it
my $devices = tempdir();
my $number = (stat $node->data_dir)[0];
my $disk = sprintf '%s/%d:%d', $devices, (($number >> 8) & 0xfff) | (($number >> 32) & ~0xfff),
  ($number & 0xff) | (($number >> 12) & ~0xff);
foreach my $case (
	[ 'Amazon EC2 NVMe Instance Storage        ', 'device', 'Amazon EC2 NVMe Instance Storage' ],
	[ 'Amazon Elastic Block Store              ', 'device', '' ],
	[ 'Microsoft NVMe Direct Disk v2           ', '../device', 'Microsoft NVMe Direct Disk' ],
	[ 'nvme_card                               ', '../device', 'nvme_card' ],
	[ 'nvme_card-pd                            ', '../device', '' ],
	[ 'EphemeralDisk   ', 'device', 'EphemeralDisk' ])
{
	my ($model, $place, $expected) = @$case;
	make_path($disk, "$disk/$place");
	append_to_file("$disk/$place/model", "$model\n");
	$expected = 'tmpfs' if `stat -f -c %T ${\$node->data_dir}` eq "tmpfs\n";
	is($node->safe_psql('postgres', "SET index_mover.test_block_devices = '$devices'; SELECT coalesce(lost_on_reboot, '')
	FROM tablespace_probe('regress_slow', '50 ms')"),
		$expected, "the model of a disk, $place: $model");
	# the data directory is on it, too
	(undef, undef, my $told) = $node->psql('postgres',
		"SET index_mover.test_block_devices = '$devices'; SELECT count(*) FROM move_table('zoo', 'regress_fast', dry_run => true)");
	unlike($told, qr/reboot/, "the model of a disk, $place: $model: no warning where a reboot loses the whole server");
	rmtree([ $disk, "$devices/device" ]);
}

# a device whose command queue is off: the figure is fixed, since other processes change it
SKIP:
{
	my $remark = sub {
		return $node->safe_psql('postgres', "SET index_mover.test_mutation = 'probe-one';
			SELECT direct_io, remark ~ 'does not queue: $_[0] reads at a time' FROM tablespace_probe('regress_slow', '200 ms', $_[0])");
	};
	my $told = $remark->(32);
	skip 'the file system does not read past its cache', 2 if $told =~ /^f/;
	is($told, 't|t', 'tablespace_probe remarks on a device that does not queue');
	is($remark->(1), 't|', 'but not where there was nothing to queue');
}

SKIP:
{
	my ($type, $free) = split ' ', `stat -f -c '%T %a' /dev/shm 2>/dev/null` || 'none 0';
	my $block = `stat -f -c '%S' /dev/shm 2>/dev/null` || 0;
	skip 'no tmpfs at /dev/shm with 64 MB free', 9
	  unless $type eq 'tmpfs' && $free * $block >= 64e6 && -w '/dev/shm';
	skip 'the server itself is on /dev/shm', 9
	  if (stat $node->data_dir)[0] == (stat '/dev/shm')[0];
	my $directory = tempdir(DIR => '/dev/shm', CLEANUP => 1);
	$node->safe_psql('postgres', "CREATE TABLESPACE regress_shm LOCATION '$directory'");
	like($node->safe_psql('postgres', q(SELECT remark FROM tablespace_probe('regress_shm', '50 ms'))),
		qr/^on tmpfs: does not survive a reboot/, 'tablespace_probe warns of tmpfs');
	is($node->safe_psql('postgres', q(SELECT lost_on_reboot FROM tablespace_probe('regress_shm', '50 ms'))), 'tmpfs', 'in a column, too');
	like($node->safe_psql('postgres', q(CREATE TABLE wiped () TABLESPACE regress_shm; CREATE TABLE kept (i int);
		CREATE INDEX ON kept (i) TABLESPACE regress_shm;
		SELECT remark FROM tablespace_probe('regress_shm', '50 ms'); DROP TABLE wiped, kept)),
		qr/^on tmpfs: does not survive a reboot; tables of this database there: 1(?:; does not queue|$)/, 'and counts the tables there');
	($rc, $out, $err) = $node->psql('postgres', q(SELECT count(*) FROM move_table('zoo', 'regress_shm', dry_run => true)));
	like($err, qr/WARNING:  a reboot loses tables in tablespace "regress_shm", which is on tmpfs/, 'and so does the plan of a table');
	($rc, $out, $err) = $node->psql('postgres', q(CREATE TABLE parent (i int) PARTITION BY RANGE (i); )
		. q(SELECT count(*) FROM move_table('parent', 'regress_shm', dry_run => true); DROP TABLE parent));
	like($err, qr/WARNING:  a reboot loses tables in tablespace "regress_shm", which is on tmpfs/,
		'and of a partitioned table without partitions, whose new ones would be made there');
	($rc, $out, $err) = $node->psql('postgres', q(SELECT count(*) FROM move_indexes('zoo', 'regress_shm', dry_run => true)));
	unlike($err, qr/reboot/, 'but not that of indexes');
	is($node->safe_psql('postgres', q(SELECT same_device_as FROM tablespace_probe('regress_shm', '50 ms'))),
		'{}', 'it shares its device with no other tablespace');
	# what would have been read in the last 10,000 seconds
	($rc, $out, $err) = $node->psql('postgres', <<'SQL');
DELETE FROM index_mover.probe;
DELETE FROM index_mover.sample;
ALTER TABLESPACE regress_slow SET (random_page_cost = 4);
ALTER TABLESPACE regress_shm SET (random_page_cost = 1.1);
INSERT INTO index_mover.sample VALUES (now() - interval '10000 s', 0, NULL, 0, 0),
  (now() - interval '10000 s', 'zoo'::regclass, NULL, -1000000, -1000000),
  (now() - interval '10000 s', 'zoo'::regclass, 'zoo_num_key', -1000000, -1000000);
SELECT reason ~ 'warning: regress_shm is on tmpfs and does not survive a reboot'
  FROM recommend_moves('regress_shm', 1000000000) WHERE index = 'zoo_num_key'::regclass
SQL
	is("$out|$err", 't|', 'and so does recommend_moves, which says nothing of the same device');
	is($node->safe_psql('postgres', q(SELECT count(*) FILTER (WHERE index IS NULL), count(*) > 0
		FROM recommend_moves('regress_shm', 1000000000))), '0|t', 'and puts no table there');
	$node->safe_psql('postgres', 'DROP TABLESPACE regress_shm');
}

# ---------------------------------------------------------------------------
# A small file system, in a mount namespace of the server's own, so that this needs
# no privileges
# ---------------------------------------------------------------------------

SKIP:
{
	skip 'no /proc', 6 unless -d "/proc/$$/fd";
	my $small = $node->basedir . '/small';
	mkdir $small;
	my @private = ('unshare', '--user', '--map-user=' . $>, '--map-group=' . (split / /, $))[0], '--keep-caps', '--mount');
	my ($mounted, $why);
	eval { $mounted = IPC::Run::run([ @private, 'mount', '-t', 'tmpfs', '-o', 'size=95m', 'small', $small ], '>&', \$why); };
	skip 'cannot mount a small file system in a namespace of its own: ' . ($why || $@), 6 unless $mounted;

	$node->stop('immediate');
	# pg_ctl's children stay in the namespace
	local $ENV{PGDATA} = $node->data_dir;
	IPC::Run::run(
		[
			@private, 'sh', '-c',
			'mount -t tmpfs -o size=95m small "$1" && chmod 700 "$1" && exec pg_ctl -w -s -l "$2" start',
			'sh', $small, $node->logfile
		]) or die 'server does not start in a namespace';
	$node->_update_pid(1);
	$node->safe_psql('postgres', <<SQL);
CREATE TABLESPACE regress_small LOCATION '$small';
ALTER TABLESPACE regress_small SET (random_page_cost = 1);
ALTER TABLESPACE regress_slow SET (random_page_cost = 4);
DELETE FROM index_mover.probe;
DELETE FROM index_mover.sample;
INSERT INTO index_mover.sample VALUES (now() - interval '10000 s', 0, NULL, 0, 0),
  (now() - interval '10000 s', 'zoo'::regclass, 'zoo_num_key', -1000000, -1000000);
SQL
	# no other session writes there
	my ($free, $total) = file_system_of($node, 'regress_small');
	my $size = size_of_probe('regress_small');
	cmp_ok($size, '>=', 4 * 1024 * 1024, 'small file system: the file of a probe is big enough');
	cmp_ok($size, '<=', $free / 10, 'and not more than a tenth of it');
	is((file_system_of($node, 'regress_small'))[0], $free, 'all of it is free again');
	my $room = $free - int($total * (99.9 / 100));
	cmp_ok($room, '>', 0, 'a thousandth of it is free beside the reserve');
	($rc, $out, $err) = $node->psql('postgres',
		q(SET index_mover.min_free_space = '99.9%'; SELECT index, reason FROM recommend_moves('regress_small')));
	like("$out|$err",
		qr/^\|psql:<stdin>:1: NOTICE:  nothing to gain: no relation in a slower tablespace .*\n.*, fits into $room bytes, and /,
		'recommend_moves: the budget is what is free, less the reserve');
	is($node->safe_psql('postgres', q(SELECT index, method FROM recommend_moves('regress_small') WHERE index = 'zoo_num_key'::regclass)),
		'zoo_num_key|copy', 'with a smaller reserve there is room');
	$node->safe_psql('postgres', 'DROP TABLESPACE regress_small');
}

# not "fast": the server may still be recovering from the kill
$node->stop('immediate');
done_testing();
