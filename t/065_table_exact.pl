# A table's copy is exact: tables of each shape, quiet and under load, block by block
# and bit by bit of the visibility map, and all rows by each way to read them; on a
# standby and after a crash, too.  The hard things happen after the bulk copy has
# passed the blocks, and the checks that say so notice each deliberate fault.
use strict;
use warnings;

use File::Copy qw(copy);
use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Pages;
use IndexMover::Session;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

needs_test_points();

my $only = $ENV{ONLY} || '.';
sub part { my ($name) = @_; return $only eq '.' || $name =~ /$only/; }

# "verify" is on for tables; here, nothing sets it, but where a fault has to get past it
my $checksums = $only eq q{.} && faults("page checksums");
my $node = new_node('table_exact', streaming => 1, verify => 0, extra => $checksums ? ['--data-checksums'] : [],
	conf => "checkpoint_timeout = 1h\nmax_wal_size = 4GB\nwal_keep_size = 1GB\nindex_mover.max_workers = 1");
my $page_size = block_size($node);
$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_walinspect;
CREATE EXTENSION pageinspect;
CREATE EXTENSION pg_visibility;
CREATE ROLE regress_reader;
CREATE SCHEMA shapes;
SQL

# ---------------------------------------------------------------------------
# What is compared
# ---------------------------------------------------------------------------

# What must not change of the tables of a schema: all but the place.
sub facts
{
	my ($schema) = @_;
	return $node->safe_psql('postgres', <<SQL);
SELECT c.oid, c.relname, c.relkind, c.reltuples, c.relpages, c.relallvisible, c.relfrozenxid, c.relminmxid, c.relacl,
       c.relreplident, c.reloptions, c.reltoastrelid, c.relhasindex, c.relispopulated, c.relpersistence, c.relam,
       (SELECT md5(string_agg(s::text, '' ORDER BY staattnum)) FROM pg_statistic s WHERE starelid = c.oid),
       (SELECT string_agg(i::text, '' ORDER BY indexrelid) FROM pg_index i WHERE indrelid = c.oid)
  FROM pg_class c
 WHERE c.relnamespace = '$schema'::regnamespace AND c.relkind IN ('r', 'm', 'p')
    OR c.oid IN (SELECT reltoastrelid FROM pg_class WHERE relnamespace = '$schema'::regnamespace)
 ORDER BY c.oid
SQL
}

# The relations that have a file and move, "oid path": tables, TOAST tables and indexes.
sub paths
{
	my ($schema) = @_;
	return split /\n/, $node->safe_psql('postgres', <<SQL);
WITH t AS (SELECT oid, reltoastrelid FROM pg_class WHERE relnamespace = '$schema'::regnamespace AND relkind IN ('r', 'm'))
SELECT format('%s %s %s', c.oid, c.relkind, pg_relation_filepath(c.oid))
  FROM pg_class c
 WHERE c.oid IN (SELECT oid FROM t UNION SELECT reltoastrelid FROM t
                 UNION SELECT indexrelid FROM pg_index JOIN t ON indrelid = reltoastrelid) ORDER BY c.oid
SQL
}

sub tables { my ($schema) = @_; return split /\n/, $node->safe_psql('postgres', "SELECT oid::regclass FROM pg_class WHERE relnamespace = '$schema'::regnamespace AND relkind IN ('r', 'm') AND relispopulated ORDER BY 1::text"); }

# All rows of tables with their places, as a sequential scan gives them, a line each.
sub rows_of
{
	my ($server, @tables) = @_;
	return $server->safe_psql('postgres', join ";\n", 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off',
		map { "SELECT count(*), md5(string_agg(ctid::text || md5(t::text), '' ORDER BY ctid)) FROM $_ t" } @tables);
}

# What the witnesses say against tables: '' is nothing.
sub witnesses
{
	my ($server, @tables) = @_;
	my $list = join ', ', map { "'" . s/'/''/gr . "'::regclass" } @tables;
	my $said = $server->safe_psql('postgres', <<SQL);
WITH t AS MATERIALIZED (SELECT c.oid::regclass AS oid, reltoastrelid::regclass AS toast, c.oid::regclass || ': ' AS what FROM pg_class c WHERE c.oid IN ($list)),
 r AS MATERIALIZED (SELECT oid, what FROM t UNION ALL SELECT toast, what || 'TOAST ' FROM t WHERE toast <> 0)
SELECT what || 'visible ' || t FROM r, pg_check_visible(r.oid) t
UNION ALL SELECT what || 'frozen ' || t FROM r, pg_check_frozen(r.oid) t
UNION ALL SELECT what || 'heapam ' || blkno || ' ' || offnum || ' ' || msg FROM r, oracle.verify_heapam(r.oid, check_toast => true)
LIMIT 5
SQL
	my ($rc, $out, $err) = $server->psql('postgres', <<SQL);
SELECT count(oracle.bt_index_check(i.indexrelid, true)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE (i.indrelid IN ($list) OR i.indrelid IN (SELECT reltoastrelid FROM pg_class WHERE oid IN ($list))) AND c.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
SQL
	$said .= "\nbtree $err" if $rc;

	# by each btree index on one column, by index-only scan, and then by index scan, which
	# marks entries of rows that are gone
	my @scans = map { [ split / / ] } split /\n/, $server->safe_psql('postgres', <<SQL);
SELECT DISTINCT i.indrelid::regclass::text || ' ' || quote_ident(a.attname) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
 WHERE i.indrelid IN ($list) AND i.indnatts = 1 AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indrelid::regclass::text !~ ' '
SQL
	my $scan = 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET enable_seqscan = on; SET enable_sort = on';
	my $index = 'SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; SET enable_indexscan = on; SET enable_indexonlyscan = on';
	my @answers = map { s/\n+\z//r } split /^=\n/m, !@scans ? '' : $server->safe_psql('postgres', join "\\echo =\n", map {
		my ($table, $column) = @$_;
		my $all = "SELECT count(*), coalesce(sum(hashtextextended(ctid::text || t::text, 0)), 0) FROM (SELECT ctid, * FROM $table ORDER BY $column OFFSET 0) t;\n";
		my $keys = "SELECT count(*), coalesce(sum(hashtextextended($column\::text, 0)), 0) FROM (SELECT $column FROM $table ORDER BY $column OFFSET 0) t;\n";
		("$index;\nEXPLAIN (COSTS OFF) $keys", "EXPLAIN (COSTS OFF) $all", $keys, $all, "$scan;\n$keys", $all);
	} @scans);
	foreach (@scans)
	{
		my ($name) = "$_->[0] by $_->[1]";
		my ($keys_plan, $all_plan, $keys, $all, $keys_scanned, $all_scanned) = splice @answers, 0, 6;
		$said .= "\n$name: no index-only scan" unless $keys_plan =~ /Index Only Scan/;
		$said .= "\n$name: no index scan" unless $all_plan =~ /Index Scan/;
		$said .= "\n$name: index-only scan $keys, sequential scan $keys_scanned" if $keys ne $keys_scanned;
		$said .= "\n$name: index scan $all, sequential scan $all_scanned" if $all ne $all_scanned;
	}
	$said =~ s/^\n//;
	return $said;
}

# Where all of a schema lies.
sub places
{
	my ($schema) = @_;
	return join ' ', sort split /\n/, $node->safe_psql('postgres', <<SQL);
SELECT DISTINCT coalesce((SELECT spcname FROM pg_tablespace t WHERE t.oid = c.reltablespace), 'default') FROM pg_class c
 WHERE c.relnamespace = '$schema'::regnamespace AND c.relkind IN ('r', 'm', 'p')
    OR c.oid IN (SELECT reltoastrelid FROM pg_class WHERE relnamespace = '$schema'::regnamespace)
    OR c.oid IN (SELECT indexrelid FROM pg_index JOIN pg_class t ON indrelid = t.reltoastrelid WHERE t.relnamespace = '$schema'::regnamespace)
SQL
}

# ---------------------------------------------------------------------------
# A standby, whose files are compared, too
# ---------------------------------------------------------------------------

$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'wal_keep_size = 0');
$standby->start;

# Both have on disk what they have.
sub flush_both
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	return;
}

# ---------------------------------------------------------------------------
# Quiet tables of each shape, there and back
# ---------------------------------------------------------------------------

if (part('shapes'))
{
	# rows whose second line in the file is the first's successor, locks by one and by
	# several transactions, deleted and aborted ones, with and without VACUUM and FREEZE
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
SET search_path = shapes;
SET default_tablespace = regress_slow;
CREATE TABLE narrow (k int PRIMARY KEY, v int);
INSERT INTO narrow SELECT g, g % 10 FROM generate_series(1, 30000) g;
CREATE TABLE wide (k int PRIMARY KEY, a text, b text, c numeric, d timestamptz DEFAULT '2026-11-22', e int[], f jsonb);
INSERT INTO wide (k, a, b, c, e, f) SELECT g, repeat('a', g % 900), NULLIF(md5(g::text), md5('7')), g / 7.0, ARRAY[g, NULL, 1], jsonb_build_object('k', g) FROM generate_series(1, 3000) g;
CREATE TABLE toasted (k int PRIMARY KEY, external text, compressed text, extended text, main text);
ALTER TABLE toasted ALTER external SET STORAGE external, ALTER extended SET STORAGE extended, ALTER main SET STORAGE main, ALTER compressed SET COMPRESSION pglz;
INSERT INTO toasted SELECT g, repeat(md5(g::text), 100 + g % 200), repeat('y', 9000 + g), (SELECT string_agg(md5((g * 1000 + h)::text), '') FROM generate_series(1, 150) h), repeat('m', g * 10) FROM generate_series(1, 300) g;
UPDATE toasted SET external = external || 'x' WHERE k % 3 = 0;
DELETE FROM toasted WHERE k % 11 = 0;
CREATE TABLE empty (k int PRIMARY KEY, t text);
CREATE TABLE emptied (k int PRIMARY KEY, t text);
INSERT INTO emptied SELECT g, repeat('z', 100) FROM generate_series(1, 1000) g;
DELETE FROM emptied;
CREATE TABLE one_page (k int PRIMARY KEY);
INSERT INTO one_page VALUES (1);
CREATE TABLE filled (k int PRIMARY KEY, v int) WITH (fillfactor = 30);
INSERT INTO filled SELECT g, 0 FROM generate_series(1, 5000) g;
UPDATE filled SET v = v + 1;
UPDATE filled SET v = v + 1 WHERE k % 2 = 0;
CREATE TABLE dropped (a text, k int PRIMARY KEY, b text, c int);
INSERT INTO dropped SELECT 'a' || g, g, repeat('b', 50), g FROM generate_series(1, 3000) g;
ALTER TABLE dropped DROP a, DROP b, ADD d int DEFAULT 7, ADD e text;
INSERT INTO dropped SELECT g, g, g, 'e' FROM generate_series(3001, 5000) g;
-- many line pointers to a page, most of them dead or unused
CREATE TABLE pointers (b bool);
INSERT INTO pointers SELECT NULL FROM generate_series(1, 20000);
DELETE FROM pointers WHERE ctid::text !~ '7\\)';
CREATE TABLE chains (k int PRIMARY KEY, v int) WITH (fillfactor = 50, autovacuum_enabled = off);
INSERT INTO chains SELECT g, 0 FROM generate_series(1, 2000) g;
CREATE TABLE locked (k int PRIMARY KEY, v int);
INSERT INTO locked SELECT g, 0 FROM generate_series(1, 3000) g;
CREATE TABLE frozen (k int PRIMARY KEY, v text);
INSERT INTO frozen SELECT g, 'v' || g FROM generate_series(1, 8000) g;
CREATE TABLE visible (k int PRIMARY KEY, v text);
INSERT INTO visible SELECT g, 'v' || g FROM generate_series(1, 8000) g;
CREATE TABLE extended (k int PRIMARY KEY, v text);
INSERT INTO extended SELECT g, 'v' || g FROM generate_series(1, 500) g;
CREATE TABLE parted (k int, t text, PRIMARY KEY (k)) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (100) TO (1000) PARTITION BY HASH (k);
CREATE TABLE part_2a PARTITION OF part_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part_2b PARTITION OF part_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO parted SELECT g, (SELECT string_agg(md5((g * 1000 + h)::text), '') FROM generate_series(1, 120) h) FROM generate_series(1, 300) g;
CREATE MATERIALIZED VIEW seen AS SELECT k, md5(v) m, CASE WHEN k % 200 = 0 THEN repeat(md5(v), 1000) END r FROM visible;
CREATE UNIQUE INDEX seen_k ON seen (k);
CREATE MATERIALIZED VIEW unseen AS SELECT 1 AS one WITH NO DATA;
CREATE TABLE "A ""quoted"" näme" (k int PRIMARY KEY);
INSERT INTO "A ""quoted"" näme" SELECT generate_series(1, 100);
CREATE TABLE no_columns ();
INSERT INTO no_columns SELECT FROM generate_series(1, 1000);
GRANT SELECT ON narrow, wide TO regress_reader;
ALTER TABLE narrow REPLICA IDENTITY FULL;
ALTER TABLE wide REPLICA IDENTITY USING INDEX wide_pkey;
CLUSTER wide USING wide_pkey;
CREATE STATISTICS shapes.wide_stats ON k, c FROM wide;
SQL
	$node->safe_psql('postgres', 'BEGIN; SAVEPOINT a; UPDATE shapes.narrow SET v = -1 WHERE k < 50; ROLLBACK TO a; DELETE FROM shapes.narrow WHERE k = 51; COMMIT; BEGIN; DELETE FROM shapes.narrow WHERE k BETWEEN 60 AND 70; ROLLBACK');
	$node->safe_psql('postgres', "UPDATE shapes.chains SET v = v + 1 WHERE k % $_ = 0") foreach 1 .. 5;
	$node->safe_psql('postgres', 'BEGIN; SELECT count(*) FROM (SELECT FROM shapes.locked WHERE k < 400 FOR SHARE) x; COMMIT; BEGIN; SELECT count(*) FROM (SELECT FROM shapes.locked WHERE k BETWEEN 100 AND 800 FOR KEY SHARE) x; SAVEPOINT a; UPDATE shapes.locked SET v = 1 WHERE k BETWEEN 300 AND 600; COMMIT');
	{
		my @sharers = map { IndexMover::Session->new($node) } 1 .. 2;
		$_->run('BEGIN; SELECT count(*) FROM (SELECT FROM shapes.locked WHERE k BETWEEN 1000 AND 1500 FOR SHARE) x') foreach @sharers;
		$_->run('COMMIT'), $_->end foreach @sharers;
	}
	$node->safe_psql('postgres', 'VACUUM (FREEZE, ANALYZE) shapes.frozen; VACUUM (ANALYZE) shapes.visible; VACUUM (TRUNCATE off) shapes.emptied; VACUUM shapes.pointers; VACUUM (ANALYZE) shapes.toasted; VACUUM (ANALYZE) shapes.wide; VACUUM shapes.seen; ANALYZE');
	$node->safe_psql('postgres', 'UPDATE shapes.frozen SET v = v WHERE k % 500 = 0; BEGIN; SELECT count(*) FROM (SELECT FROM shapes.frozen WHERE k % 700 = 0 FOR SHARE) x; COMMIT; DELETE FROM shapes.visible WHERE k BETWEEN 2000 AND 2100');

	# blocks of zeros that an extension has left, when the server was down
	my $file = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('shapes.extended')");
	$node->stop;
	append_to_file($file, "\0" x (5 * $page_size));
	$node->start;
	is($node->safe_psql('postgres', 'SELECT upper FROM page_header(get_raw_page(\'shapes.extended\', (pg_relation_size(\'shapes.extended\') / current_setting(\'block_size\')::int - 1)::int))'), '0', 'there is a tail of zeros');
	my $multis = $node->safe_psql('postgres', q{SELECT count(*) FROM generate_series(0, pg_relation_size('shapes.locked') / current_setting('block_size')::int - 1) b, heap_page_items(get_raw_page('shapes.locked', b::int)) WHERE t_infomask & 4096 <> 0});
	cmp_ok($multis, '>', 500, "there are $multis multixacts");

	my @tables = tables('shapes');
	foreach my $to ('regress_fast', faults('the shapes moved back') ? 'regress_slow' : ())
	{
		my $facts = facts('shapes');
		my $rows = rows_of($node, @tables);
		flush_both();
		my (%path, %kind);
		foreach (paths('shapes')) { my ($oid, $kind, $path) = split / /, $_, 3; ($path{$oid}, $kind{$oid}) = ($path, $kind); }
		my $kept = "${PostgreSQL::Test::Utils::tmp_check}/kept";
		mkdir $kept;
		foreach my $oid (keys %path)
		{
			unlink glob "$kept/$oid*";
			foreach my $suffix ('', '_vm', map { ".$_" } 1 .. 400)
			{
				my $from = $node->data_dir . "/$path{$oid}$suffix";
				last if $suffix =~ /\./ && !-e $from;
				copy($from, "$kept/$oid$suffix") if -e $from;
			}
		}
		my $answer = $node->safe_psql('postgres', "SELECT kind, status, count(*) FROM move_schema_tables('shapes', '$to') GROUP BY 1, 2 ORDER BY 1");
		unlike($answer, qr/\|(?!moved)[a-z]+\|/, "to $to: all moved") or diag $node->safe_psql('postgres', "SELECT name, status, detail FROM index_mover_history WHERE status <> 'moved'");
		note $answer;
		is(places('shapes'), $to, "all is in $to");
		is(facts('shapes'), $facts, "to $to: OIDs, statistics, frozen xids, privileges, replica identities unchanged");
		flush_both();
		my @different;
		my $blocks = 0;
		my @paths;
		foreach (paths('shapes'))
		{
			my ($oid, $kind, $path) = split / /, $_, 3;
			push @paths, $path;
			my $new = $node->data_dir . "/$path";
			$blocks += (-s $new) / $page_size;
			my @blocks = $kind eq 'i' ? different_files("$kept/$oid", $new, $page_size) : different_heap_files("$kept/$oid", $new, $page_size);
			my @maps = different_maps("$kept/$oid", $new, $page_size);
			push @different, "$oid ($kind): blocks @blocks, maps @maps" if @blocks || @maps;
			isnt($path, $path{$oid}, "$oid has another file") if $path eq $path{$oid};
		}
		is(join("\n", @different), '', "to $to: $blocks blocks and all visibility maps the same");
		same_map_on_ok($node, $standby, $page_size, "to $to, standby", @paths);
		is(rows_of($node, @tables), $rows, "to $to: the same rows in the same places");
		is(witnesses($node, @tables), '', "to $to: no witness against them");
		is(rows_of($standby, @tables), $rows, "to $to, standby: the same rows");
		files_ok($_, "to $to") foreach $node, $standby;
		leftovers_ok($node, "to $to", within => 5);
	}
	$node->safe_psql('postgres', 'INSERT INTO shapes.narrow SELECT g, 1 FROM generate_series(100001, 100100) g; UPDATE shapes.toasted SET external = reverse(external); REFRESH MATERIALIZED VIEW CONCURRENTLY shapes.seen');
	$node->safe_psql('postgres', join '; ', map { "VACUUM (FREEZE) $_" } @tables);
	is(witnesses($node, @tables), '', 'written to, and frozen, after the moves: no witness against them');
	$node->safe_psql('postgres', 'SET client_min_messages = warning; DROP SCHEMA shapes CASCADE');
}

# ---------------------------------------------------------------------------
# Changed after the bulk copy has passed
# ---------------------------------------------------------------------------

# The table "changed", with TOAST: of all pages visible and half of them frozen.
sub make_changed
{
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS s CASCADE;
CREATE SCHEMA s;
SET default_tablespace = regress_slow;
CREATE TABLE s.changed (k int, v int, filler text DEFAULT repeat('f', 200), big text) WITH (fillfactor = 80);
ALTER TABLE s.changed ALTER big SET STORAGE external;
INSERT INTO s.changed (k, v, big) SELECT g, 0, CASE WHEN g % 50 = 0 THEN repeat(md5(g::text), 150) END FROM generate_series(1, 10000) g;
VACUUM (FREEZE) s.changed;
INSERT INTO s.changed (k, v, big) SELECT g, 0, CASE WHEN g % 50 = 0 THEN repeat(md5(g::text), 150) END FROM generate_series(10001, 20000) g;
VACUUM ANALYZE s.changed;
RESET default_tablespace;
CREATE INDEX changed_k ON s.changed (k);
SQL
	return;
}

# All that happens between the bulk copy and the swap.
my @changes = (
	[ 'HOT updates', 'UPDATE s.changed SET v = v + 1 WHERE k BETWEEN 100 AND 900 AND big IS NULL', qr/Heap:HOT_UPDATE/ ],
	[ 'updates that are not HOT', 'UPDATE s.changed SET k = -k WHERE k BETWEEN 2000 AND 2500', qr/Heap:UPDATE/ ],
	[ 'TOAST updates', q{UPDATE s.changed SET big = big || 'x' WHERE big IS NOT NULL AND k BETWEEN 3000 AND 9000}, qr/Heap:HOT_UPDATE|Heap:UPDATE/ ],
	[ 'deletes', 'DELETE FROM s.changed WHERE k BETWEEN 4000 AND 4300', qr/Heap:DELETE/ ],
	[ 'an abort', 'BEGIN; SAVEPOINT a; UPDATE s.changed SET v = -7 WHERE k BETWEEN 5000 AND 5200; ROLLBACK TO a; DELETE FROM s.changed WHERE k = 5300; ROLLBACK', qr/Heap:HOT_UPDATE/ ],
	[ 'row locks', 'BEGIN; SELECT count(*) FROM (SELECT FROM s.changed WHERE k BETWEEN 12000 AND 12200 FOR UPDATE) x; COMMIT', qr/Heap:LOCK/ ],
	[ 'multixacts', 'BEGIN; SELECT count(*) FROM (SELECT FROM s.changed WHERE k BETWEEN 13000 AND 13200 FOR KEY SHARE) x; SAVEPOINT a; UPDATE s.changed SET v = 9 WHERE k BETWEEN 13000 AND 13100; COMMIT', qr/Heap:LOCK/ ],
	[ 'VACUUM, which sets bits', 'VACUUM s.changed', qr/Heap2:VISIBLE|Heap2:PRUNE_VACUUM/ ],
	[ 'VACUUM FREEZE', 'VACUUM (FREEZE) s.changed', qr/Heap2:FREEZE_PAGE|Heap2:PRUNE_VACUUM_SCAN/ ],
	[ 'writes that clear bits', 'UPDATE s.changed SET v = v + 1 WHERE k BETWEEN 15000 AND 15500; DELETE FROM s.changed WHERE k BETWEEN 18000 AND 18010; BEGIN; SELECT count(*) FROM (SELECT FROM s.changed WHERE k BETWEEN 16000 AND 16500 FOR SHARE) x; COMMIT; BEGIN; SELECT count(*) FROM (SELECT FROM s.changed WHERE k BETWEEN 17000 AND 17200 FOR KEY SHARE) x; SAVEPOINT a; UPDATE s.changed SET v = 9 WHERE k BETWEEN 17000 AND 17100; COMMIT', qr/Heap:HOT_UPDATE/ ],
	[ 'an extension', 'INSERT INTO s.changed (k, v, big) SELECT g, 0, CASE WHEN g % 50 = 0 THEN repeat(md5(g::text), 150) END FROM generate_series(20001, 24000) g', qr/Heap:INSERT/ ],
);

my $map = q{SELECT count(*) FILTER (WHERE all_visible), count(*) FILTER (WHERE all_frozen) FROM pg_visibility_map('s.changed')};

# Count how often something was said to the log.
sub told { my ($log, $what) = @_; my $n = () = slurp_file($node->logfile, $log) =~ /$what/g; return $n; }

sub wait_until_told
{
	my ($log, $what, $times, $job) = @_;
	my $start = time;
	until (told($log, $what) >= $times)
	{
		die "not told $times times: $what" if time - $start > $IndexMover::Test::TIMEOUT;
		return 0 if $job && $node->safe_psql('postgres', "SELECT NOT index_mover.job_is_alive($job)") eq 't';
		usleep(30_000);
	}
	return 1;
}

# Relation, kind, and the paths of the old and the new file of each copy that is under way,
# in the order in which they began.
sub files_of_move
{
	my $directory = $node->safe_psql('postgres', "SELECT 'PG_' || (SELECT setting::int / 10000 FROM pg_settings WHERE name = 'server_version_num') || '_' || catalog_version_no || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pg_control_system()");
	return map
	{
		my ($relation, $kind, $old, $tablespace, $number) = split /\|/;
		[ $relation, $kind, map { $node->data_dir . "/$_" } $old, "pg_tblspc/$tablespace/$directory/$number" ]
	  } split /\n/, $node->safe_psql('postgres',
		"SELECT relation, (SELECT relkind FROM pg_class WHERE oid = relation), pg_relation_filepath(relation), tablespace, relfilenumber FROM index_mover.ledger WHERE kind = 'n' ORDER BY made_at");
}

# Move "changed" with what belongs to it; with each relation's copy a pause after the bulk
# copy, in which $change(relation, kind) is called, and another under the locks, when all is
# copied and $compare(kind, old file, new file) is called for each; either may be left out.  Returns the rows
# of the history, "kind|status|sqlstate|message".
sub move_in_steps
{
	my (%options) = @_;
	# Two locks, so that the one is held again when the next copy comes to it.
	my $point = $options{at} || 'copy-end';
	my %do = (
		5960 => [ $point, $options{change} && sub { my @files = files_of_move(); $options{change}->(@{ $files[-1] }) } ],
		5959 => [ 'swap-copied', $options{compare} && sub {
			$node->safe_psql('postgres', 'CHECKPOINT');
			$options{compare}->(@{$_}[1 .. 3]) foreach files_of_move();
		} ]);
	my @stops = grep { $do{$_}[1] } sort keys %do;
	set_tests($node, test_point => join(',', (map { $do{$_}[0] . ($_ == 5959 ? ':wait' : ':wait2') } @stops), $options{points} || ()),
		test_mutation => $options{mutation});
	my %lock = map { $_ => IndexMover::Session->new($node) } @stops;
	$lock{$_}->run("SELECT pg_advisory_lock(0, $_)") foreach @stops;
	my $log = -s $node->logfile;
	my $settings = $options{settings} || '';
	my $what = $options{what} || 's.changed';
	my $job = $node->safe_psql('postgres', "SELECT max(job) FROM move_table('$what', '" . ($options{to} || 'regress_fast') . "', wait => false, settings => '{$settings}')");
	my %n = map { $_ => 0 } @stops;
	my $start = time;
	while (@stops)
	{
		my ($lock) = grep { told($log, qr/test point "$do{$_}[0]": waiting/) > $n{$_} } @stops;
		if (!$lock)
		{
			last if $node->safe_psql('postgres', "SELECT NOT index_mover.job_is_alive($job)") eq 't';
			die "no move comes to @stops" if time - $start > $IndexMover::Test::TIMEOUT;
			usleep(30_000);
			next;
		}
		$do{$lock}[1]->();
		$lock{$lock}->run("SELECT pg_advisory_unlock(0, $lock)");
		# (it is not asked for again before it goes on)
		wait_until_told($log, qr/test point "$do{$lock}[0]": going on/, ++$n{$lock});
		$lock{$lock}->run("SELECT pg_advisory_lock(0, $lock)");
		$start = time;
	}
	$_->end foreach values %lock;
	$node->psql('postgres', "CALL wait_for_move($job, raise => false)");
	set_tests($node);
	return $node->safe_psql('postgres', "SELECT kind, status, coalesce(sqlstate, ''), CASE WHEN status <> 'moved' THEN message ELSE '' END FROM index_mover_history WHERE job = $job ORDER BY kind");
}

if (part('changed'))
{
	make_changed();
	my @seen;
	my $n = 0;
	my $verdict = '';
	my $log = -s $node->logfile;
	my $rows = move_in_steps(
		change => sub {
			my ($relation, $kind) = @_;
			my $heap = $node->safe_psql('postgres', "SELECT (SELECT oid FROM pg_tablespace WHERE spcname = (SELECT coalesce((SELECT spcname FROM pg_tablespace t WHERE t.oid = reltablespace), 'pg_default') FROM pg_class WHERE oid = $relation)) || '/' || (SELECT oid FROM pg_database WHERE datname = 'postgres') || '/' || pg_relation_filenode($relation)");
			my $before = $node->safe_psql('postgres', "SELECT pg_relation_size($relation)");
			foreach my $change (grep { $kind eq 'r' || $_->[0] =~ /TOAST|VACUUM|extension/ } @changes)
			{
				my ($name, $sql, $records) = @$change;
				my $map_before = $node->safe_psql('postgres', $map);
				my $lsn = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
				$node->safe_psql('postgres', $sql =~ s/\bk BETWEEN/abs(k) BETWEEN/gr);
				# so that all of it can be read
				$node->safe_psql('postgres', 'SELECT txid_current(); CHECKPOINT') if $name eq 'an extension';
				$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
				my $types = $node->safe_psql('postgres', "SELECT string_agg(DISTINCT resource_manager || ':' || split_part(record_type, '+', 1), ' ') FROM pg_get_wal_records_info('$lsn', pg_current_wal_flush_lsn()) WHERE block_ref LIKE '%rel $heap %'") // '';
				my $map_after = $node->safe_psql('postgres', $map);
				if ($kind eq 'r')
				{
					like($types, $records, "changed: $name after the bulk copy");
					my @had = split /\|/, $map_before;
					my @has = split /\|/, $map_after;
					cmp_ok($has[0], '>', $had[0], "changed: and $had[0] visible pages become $has[0]") if $name =~ /sets bits/;
					cmp_ok($has[1], '>', $had[1], "changed: and $had[1] frozen pages become $has[1]") if $name =~ /FREEZE/;
					if ($name =~ /clear bits/)
					{
						cmp_ok($has[0], '<', $had[0], "changed: and $had[0] visible pages become $has[0]");
						cmp_ok($has[0] - $has[1], '>', $had[0] - $had[1], 'changed: and of some pages only the frozen bit is cleared');
					}
				}
				elsif ($kind eq 't' && $name eq 'TOAST updates')
				{
					like($types, qr/Heap:INSERT|Heap2:MULTI_INSERT/, "changed, TOAST table: $name after the bulk copy");
					like($types, qr/Heap:DELETE/, "changed, TOAST table: and deletes");
				}
			}
			cmp_ok($node->safe_psql('postgres', "SELECT pg_relation_size($relation)"), '>', $before, "changed, $kind: extended after the bulk copy");
			# 4096: xmax is a multixact
			cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM generate_series(0, pg_relation_size('s.changed') / current_setting('block_size')::int - 1) b, heap_page_items(get_raw_page('s.changed', b::int)) WHERE t_infomask & 4096 <> 0"),
				'>', 100, 'changed: there are multixacts') if $kind eq 'r';
		},
		compare => sub {
			my ($kind, $old, $new) = @_;
			$n++;
			$kind eq 'i' ? same_files_ok($old, $new, $page_size, 'changed, TOAST index, under the lock')
			  : same_heap_files_ok($old, $new, $page_size, "changed, $kind, under the lock");
		});
	is($rows, "table|moved||\ntoast|moved||\ntoast index|moved||", 'changed: moved, and verified');
	is($n, 3, 'changed: three relations compared');
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, 'changed: it was this copy');
	my $fast = $node->safe_psql('postgres', "SELECT min(blocks_recopied) FROM index_mover_history WHERE kind = 'table' AND job = (SELECT max(job) FROM index_mover_history)");
	cmp_ok($fast, '>', 200, "changed: $fast blocks were copied again");
	is(witnesses($node, 's.changed'), '', 'changed: no witness against it');
	flush_both();
	is(rows_of($standby, 's.changed'), rows_of($node, 's.changed'), 'changed, standby: the same rows');
	same_map_on_ok($node, $standby, $page_size, 'changed, standby', map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($_, 'changed') foreach $node, $standby;
	$node->safe_psql('postgres', $changes[$_][1] =~ s/\bk BETWEEN/abs(k) BETWEEN/gr) foreach 0, 2, 3, 8, 9;
	is(witnesses($node, 's.changed'), '', 'changed, and changed again after the move: no witness against it');
}

# ---- a truncation after giving way -----------------------------------------------
# No VACUUM can truncate while we hold our lock; DDL that waits makes us give it back.
foreach my $what (picked { $_ eq 'table' } 'forks truncated', grep { part('truncated') } 'table', 'map')
{
	make_plain();
	my $log = -s $node->logfile;
	set_tests($node, test_point => 'copy-end:wait,gave-way:wait2');
	my @locks = map { my $l = IndexMover::Session->new($node); $l->run("SELECT pg_advisory_lock(0, $_)"); $l } 5959, 5960;
	my $job = $node->safe_psql('postgres', "SELECT max(job) FROM move_table('s.plain', 'regress_fast', wait => false)");
	wait_until_told($log, qr/test point "copy-end": waiting/, 1);
	my $ddl = IndexMover::Session->new($node);
	$ddl->send('ALTER TABLE s.plain ADD n int');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $ddl->pid, 't', "truncated $what: DDL waits");
	$locks[0]->end;
	wait_until_told($log, qr/test point "gave-way": waiting/, 1);
	$ddl->answer;
	is($ddl->errors, '', "truncated $what: DDL passes");
	$ddl->end;
	my $state = sub { return $node->safe_psql('postgres', $what eq 'map' ? q{SELECT count(*) FROM pg_visibility_map('s.plain') WHERE all_visible} : "SELECT pg_relation_size('s.plain') / $page_size"); };
	my $before = $state->();
	$node->safe_psql('postgres', $what eq 'map' ? q{SELECT pg_truncate_visibility_map('s.plain')} : 'DELETE FROM s.plain WHERE k > 15000; VACUUM s.plain');
	my $after = $state->();
	cmp_ok($after, '<', $before - 50, "truncated $what: from $before to $after after giving way");
	# and some of it is there again
	$node->safe_psql('postgres', 'INSERT INTO s.plain (k, v) SELECT g, 1 FROM generate_series(30001, 31000) g') if faults('growing again');
	$locks[1]->end;
	$node->safe_psql('postgres', "CALL wait_for_move($job)");
	is($node->safe_psql('postgres', "SELECT DISTINCT status FROM index_mover_history WHERE job = $job"), 'moved', "truncated $what: moved");
	like(slurp_file($node->logfile, $log), qr/starting the copy of table "plain" again, because its file was truncated/, "truncated $what: the copy was made again");
	set_tests($node);
	is(witnesses($node, 's.plain'), '', "truncated $what: no witness against it");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM s.plain WHERE k <= 15000'), '15000', "truncated $what: all rows");
	flush_both();
	is(rows_of($standby, 's.plain'), rows_of($node, 's.plain'), "truncated $what, standby: the same rows");
	same_map_on_ok($node, $standby, $page_size, "truncated $what, standby", map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($node, "truncated $what");
	leftovers_ok($node, "truncated $what", within => 5);
}

# ---------------------------------------------------------------------------
# Deliberate faults are noticed
# ---------------------------------------------------------------------------

# The table "plain" has no TOAST table, and its pages are all visible.
sub make_plain
{
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS s CASCADE;
CREATE SCHEMA s;
CREATE TABLE s.plain (k int, v int, filler char(100)) WITH (fillfactor = 80) TABLESPACE regress_slow;
INSERT INTO s.plain SELECT g, 0, 'f' FROM generate_series(1, 20000) g;
CREATE INDEX plain_k ON s.plain (k);
VACUUM ANALYZE s.plain;
SQL
	return;
}

# Updates within their pages, of many blocks, and an extension.
my $plain_change = 'UPDATE s.plain SET v = v + 1 WHERE k % 40 = 0; INSERT INTO s.plain SELECT g, 0, \'g\' FROM generate_series(20001, 24000) g';

foreach my $mutation (grep { part("mutation $_") } picked { !$_ || /^(catch-up|tail)$/ } 'parts left out', '', 'catch-up', 'catch-up:1', 'tail', 'tail,short', 'again')
{
	my $name = $mutation ? "mutation $mutation" : 'no mutation';
	my $wrong = $mutation && $mutation ne 'again';
	my ($expected, @different);
	my $change = sub {
		$node->safe_psql('postgres', $plain_change);
		$expected = rows_of($node, 's.plain');
	};
	# as it is for everybody
	make_plain();
	my $rows = move_in_steps(what => 's.plain', mutation => $mutation, change => $change);
	if ($wrong)
	{
		like($rows, $mutation eq 'tail,short' ? qr/^table\|failed\|XX001\|the copy of table "plain" has \d+ blocks instead of \d+\b/ : qr/^table\|failed\|XX001\|the copy of table "plain" differs from the original in block \d+/,
			"$name: refused by verify, which nobody has asked for");
		is(places('s'), 'regress_slow', "$name: nothing moved");
	}
	else { is($rows, 'table|moved||', "$name: moved"); }
	is(rows_of($node, 's.plain'), $expected, "$name: the rows are right");
	is(witnesses($node, 's.plain'), '', "$name: no witness against it");
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
	next if $mutation eq 'tail,short' || ($mutation ne 'catch-up' && !faults());

	# without verify it gets through: our own compare sees it, and so do the rows
	make_plain();
	$rows = move_in_steps(what => 's.plain', mutation => $mutation, settings => '"verify": false', change => $change,
		compare => sub { @different = different_heap_files(@_[1, 2], $page_size) });
	is($rows, 'table|moved||', "$name, without verify: moved");
	my $digest = rows_of($node, 's.plain');
	if ($wrong)
	{
		cmp_ok(scalar @different, '>', 0, "$name, without verify: " . @different . ' blocks differ');
		isnt($digest, $expected, "$name, without verify: the rows are others");
		note "$name: the witnesses say: ", substr witnesses($node, 's.plain'), 0, 300;
	}
	else
	{
		is("@different", '', "$name, without verify: no block differs");
		is($digest, $expected, "$name, without verify: the rows are right");
	}
}

# The visibility map: bits that are cleared after it was first compared, and before the
# lock; what a standby and recovery have of it.
foreach my $mutation (grep { part("mutation $_") } '', 'map-once')
{
	my $name = $mutation ? "mutation $mutation" : 'no mutation of the map';
	make_plain();
	my ($had, $has, @maps);
	my $rows = move_in_steps(what => 's.plain', mutation => $mutation, at => 'swap-asking',
		change => sub {
			my $bits = q{SELECT count(*) FILTER (WHERE all_visible) FROM pg_visibility_map('s.plain')};
			$had = $node->safe_psql('postgres', $bits);
			$node->safe_psql('postgres', 'DELETE FROM s.plain WHERE k % 4000 = 7');
			$has = $node->safe_psql('postgres', $bits);
		},
		compare => sub { @maps = different_maps(@_[1, 2], $page_size); is(join(' ', different_heap_files(@_[1, 2], $page_size)), '', "$name: the pages of the table are right") });
	is($rows, 'table|moved||', "$name: moved");
	cmp_ok($has, '<', $had, "$name: bits were cleared after the map was compared");
	my $said = witnesses($node, 's.plain');
	if ($mutation)
	{
		is("@maps", '0', "$name: the map differs");
		like($said, qr/^s\.plain: visible \(\d+,\d+\)/, "$name: pg_check_visible() sees it");
		like($said, qr/^s\.plain by k: index-only scan 20000\|.*sequential scan 19995\|/m, "$name: an index-only scan has rows that are deleted");
	}
	else
	{
		is("@maps", '', "$name: the map is right");
		is($said, '', "$name: no witness against it");
	}
	$node->safe_psql('postgres', 'DROP SCHEMA s CASCADE') if $mutation;
}

# VACUUM clears a bit of the map that is wrong without any WAL: what is compared is the map.
if (part('repair') && !$checksums && faults('a map that VACUUM repairs'))
{
	make_plain();
	my $old = IndexMover::Session->new($node);
	$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
	$node->safe_psql('postgres', 'UPDATE s.plain SET v = 1 WHERE k = 1');
	my $path = $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('s.plain') || '_vm'");
	my $bits = q{SELECT count(*) FROM pg_visibility_map('s.plain', 0) WHERE all_visible};
	$old->end;
	$node->stop;
	# block 0 is the lowest two bits behind the header
	open(my $fh, '+<:raw', $path) or die $!;
	seek $fh, 24, 0;
	read $fh, my $byte, 1;
	seek $fh, 24, 0;
	print $fh chr(ord($byte) | 1);
	close $fh;
	$node->start;
	my $rows = move_in_steps(what => 's.plain', at => 'swap-asking',
		change => sub {
			# (for this one's snapshot the update is not over, so that the page does not become visible)
			my $holder = IndexMover::Session->new($node);
			$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()');
			$node->safe_psql('postgres', 'UPDATE s.plain SET v = 2 WHERE k = 2');
			is($node->safe_psql('postgres', $bits), '1', 'repair: the map is wrong when it is first compared');
			$node->safe_psql('postgres', 'VACUUM (DISABLE_PAGE_SKIPPING) s.plain');
			is($node->safe_psql('postgres', $bits), '0', 'repair: and then VACUUM has cleared the bit');
			$holder->run('COMMIT');
			$holder->end;
		},
		compare => sub { same_heap_files_ok(@_[1, 2], $page_size, 'repair, under the lock') });
	is($rows, 'table|moved||', 'repair: moved');
	is($node->safe_psql('postgres', $bits), '0', 'repair: the bit is not set');
	is(witnesses($node, 's.plain'), '', 'repair: no witness against it');
}

if (part('map'))
{
	my $name = 'the map in the log';
	make_plain();
	is(move_in_steps(what => 's.plain', to => 'regress_fast'), 'table|moved||', "$name: moved");
	my $bits = q{SELECT count(*) FILTER (WHERE all_visible) FROM pg_visibility_map('s.plain')};
	my $primary = $node->safe_psql('postgres', $bits);
	cmp_ok($primary, '>', 100, "$name: visible pages on the primary: $primary");
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	is($standby->safe_psql('postgres', $bits), $primary, "$name: as many on the standby");
	$node->stop('immediate');
	$node->start;
	is($node->safe_psql('postgres', $bits), $primary, "$name: as many after a crash");
	is(witnesses($node, 's.plain'), '', "$name: no witness against it");
}

# ---------------------------------------------------------------------------
# Under load, there and back
# ---------------------------------------------------------------------------

# Run scripts of pgbench, each [clients, name => SQL, ..]; returns what stop_load() takes.
sub start_load
{
	my (@runs) = @_;
	my @load;
	foreach my $run (@runs)
	{
		my ($clients, %scripts) = @$run;
		my ($in, $out) = ('', '');
		foreach my $name (keys %scripts) { open(my $fh, '>', $node->basedir . "/$name.sql") or die $!; print $fh $scripts{$name}; close $fh; }
		push @load, { name => join(', ', sort keys %scripts), out => \$out,
			harness => IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-T', 3600, '--max-tries=20', (map { ('-f', $node->basedir . "/$_.sql") } sort keys %scripts), $node->connstr('postgres') ],
				'<', \$in, '>', \$out, '2>&1') };
	}
	return @load;
}

sub stop_load
{
	my ($name, @load) = @_;
	foreach my $load (@load)
	{
		ok($load->{harness}->pumpable, "$name: $load->{name} went on until the end") or diag ${ $load->{out} };
		$load->{harness}->signal('TERM');
		eval { $load->{harness}->finish };
		unlike(${ $load->{out} }, qr/ERROR|aborted/, "$name: no error in $load->{name}");
	}
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'");
	poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", '0', 'the end of the load');
	return;
}

if (part('load'))
{
	make_changed();
	my @load = start_load(
		[ 2, updates => "\\set k random(1, 20000)\nUPDATE s.changed SET v = v + 1 WHERE k = :k;\n",
			moves => "\\set k random(1, 20000)\nUPDATE s.changed SET k = -k WHERE k = :k;\n",
			toast => "\\set k random(1, 400) * 50\nUPDATE s.changed SET big = reverse(big) WHERE k = :k;\n",
			locks => "\\set k random(1, 200)\nBEGIN;\nSELECT v FROM s.changed WHERE k BETWEEN :k AND :k + 3 FOR SHARE;\nSAVEPOINT a;\nSELECT v FROM s.changed WHERE k = :k FOR KEY SHARE;\nROLLBACK TO a;\nEND;\n",
			inserts => "\\set k random(1, 1000000)\nINSERT INTO s.changed (k, v, big) SELECT :k + g, 0, CASE WHEN g = 7 THEN repeat(md5(:k::text), 150) END FROM generate_series(1, 20) g;\n",
			deletes => "\\set k random(1, 20000)\nDELETE FROM s.changed WHERE k = :k;\n",
			undone => "\\set k random(1, 20000)\nBEGIN;\nUPDATE s.changed SET v = -v WHERE k = :k;\nSAVEPOINT a;\nDELETE FROM s.changed WHERE k BETWEEN :k AND :k + 5;\nROLLBACK TO a;\nEND;\n" ],
		[ 1, vacuum => "VACUUM s.changed;\n\\sleep 100 ms\nVACUUM (FREEZE) s.changed;\n\\sleep 100 ms\n" ]);
	poll_until($node, 'SELECT count(*) > 20 FROM s.changed WHERE v <> 0', 't', 'load');
	my $recopied = 0;
	foreach my $to ((qw(regress_fast regress_slow)) x (faults('three of four rounds under load') ? 4 : 1))
	{
		my $n = 0;
		# after each bulk copy the load writes for a while
		my $rows = move_in_steps(to => $to, points => 'copy-end:writes', compare => sub {
			my ($kind, $old, $new) = @_;
			$n++;
			$kind eq 'i' ? same_files_ok($old, $new, $page_size, "load, to $to, TOAST index, under the lock")
			  : same_heap_files_ok($old, $new, $page_size, "load, to $to, $kind, under the lock");
		});
		is($rows, "table|moved||\ntoast|moved||\ntoast index|moved||", "load: moved to $to, and verified");
		is($n, 3, "load: three relations compared, to $to");
		$recopied += $node->safe_psql('postgres', "SELECT blocks_recopied FROM index_mover_history WHERE kind = 'table' ORDER BY job DESC LIMIT 1");
	}
	cmp_ok($recopied, '>', 20, "load: $recopied blocks of the table copied again");
	stop_load('load', @load);
	is(witnesses($node, 's.changed'), '', 'load: no witness against it');
	flush_both();
	is(rows_of($standby, 's.changed'), rows_of($node, 's.changed'), 'load, standby: the same rows');
	same_map_on_ok($node, $standby, $page_size, 'load, standby', map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($_, 'load') foreach $node, $standby;
	leftovers_ok($node, 'load', within => 5);
}

# ---- the sums of TPC-B ---------------------------------------------------------------
if (part('tpcb'))
{
	local $ENV{PGOPTIONS} = '-c search_path=tpcb,public';
	$node->safe_psql('postgres', 'CREATE SCHEMA tpcb');
	$node->command_ok([ 'pgbench', '-i', '-q', '-s', 2, '--tablespace=regress_slow', $node->connstr('postgres') ], 'TPC-B: made');
	my ($in, $out) = ('', '');
	my $harness = IPC::Run::start([ 'pgbench', '-n', '-c', 4, '-T', 3600, $node->connstr('postgres') ], '<', \$in, '>', \$out, '2>&1');
	my $done = 'SELECT count(*) FROM tpcb.pgbench_history';
	poll_until($node, "SELECT count(*) > 100 FROM tpcb.pgbench_history", 't', 'pgbench');
	foreach my $to ('regress_fast', 'regress_slow')
	{
		my $before = $node->safe_psql('postgres', $done);
		is($node->safe_psql('postgres', "SELECT kind, status, count(*) FROM move_schema_tables('tpcb', '$to', indexes => true) GROUP BY 1, 2 ORDER BY 1"),
			"index|moved|3\ntable|moved|4", "TPC-B: all four tables moved to $to, and their indexes");
		cmp_ok($node->safe_psql('postgres', $done), '>', $before, 'TPC-B: and pgbench went on');
	}
	stop_load('TPC-B', { name => 'pgbench', harness => $harness, out => \$out });
	is($node->safe_psql('postgres', <<SQL), 't|t|t', 'TPC-B: the sums are equal');
SELECT a = t, t = b, b = h FROM (SELECT sum(abalance) FROM tpcb.pgbench_accounts) a (a), (SELECT sum(tbalance) FROM tpcb.pgbench_tellers) t (t),
 (SELECT sum(bbalance) FROM tpcb.pgbench_branches) b (b), (SELECT sum(delta) FROM tpcb.pgbench_history) h (h)
SQL
	is(witnesses($node, tables('tpcb')), '', 'TPC-B: no witness against any table');
	files_ok($node, 'TPC-B');
}

# ---- a map of several pages, of which each is changed after the first comparison -------
# One page stands for 255 MB.
if (part('large') && faults('a visibility map of two pages'))
{
	my $per_map_page = ($page_size - 24) * 4;
	$node->safe_psql('postgres', <<SQL);
DROP SCHEMA IF EXISTS s CASCADE;
CREATE SCHEMA s;
CREATE TABLE s.large (k int, filler text) TABLESPACE regress_slow;
ALTER TABLE s.large ALTER filler SET STORAGE plain, ALTER filler SET NOT NULL;
INSERT INTO s.large SELECT g, repeat('x', $page_size / 2 + 100) FROM generate_series(1, $per_map_page + 500) g;
CREATE INDEX large_k ON s.large (k);
VACUUM (FREEZE) s.large;
SQL
	my @had;
	my $rows = move_in_steps(what => 's.large', at => 'swap-asking',
		change => sub { $node->safe_psql('postgres', "DELETE FROM s.large WHERE k IN (7, $per_map_page + 100); BEGIN; SELECT k FROM s.large WHERE k = $per_map_page + 200 FOR SHARE; COMMIT") },
		compare => sub {
			return if $_[0] ne 'r';    # its TOAST table is empty
			cmp_ok(-s "$_[1]_vm", '>=', 2 * $page_size, 'large: the map has two pages');
			same_heap_files_ok(@_[1, 2], $page_size, 'large, under the lock');
		});
	is($rows, "table|moved||\ntoast|moved||\ntoast index|moved||", 'large: moved');
	note 'large: lock time ', $node->safe_psql('postgres', 'SELECT lock_time FROM index_mover_history ORDER BY job DESC LIMIT 1');
	is($node->safe_psql('postgres', q{SELECT count(*) FILTER (WHERE NOT all_visible), count(*) FILTER (WHERE NOT all_frozen) FROM pg_visibility_map('s.large')}), '2|3', 'large: what was cleared is cleared');
	is(witnesses($node, 's.large'), '', 'large: no witness against it');
	flush_both();
	same_map_on_ok($node, $standby, $page_size, 'large, standby', map { (split / /, $_, 3)[2] } paths('s'));
	files_ok($_, 'large') foreach $node, $standby;
}

if ($checksums)
{
	$node->stop;
	command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'page checksums are valid on disk');
}

done_testing();
