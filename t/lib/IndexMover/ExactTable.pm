# IndexMover::ExactTable
#   Tables that are copied, and what says that the copy is exact: their files, block by
#   block and bit by bit of the visibility map, and all rows by each way to read them.
#
#   start_servers('name');      # sets $node, $standby, $page_size and $checksums
#   make_changed();             # the table s.changed
#   my $rows = move_in_steps(to => 'regress_fast', change => sub { .. }, compare => sub { .. });
#   is(witnesses($node, 's.changed'), '', 'no witness against it');
#   end_servers();
package IndexMover::ExactTable;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Session;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw($node $standby $page_size $checksums part start_servers end_servers facts paths tables rows_of witnesses places
	flush_both make_changed make_plain told wait_until_told files_of_move move_in_steps);

our ($node, $standby, $page_size, $checksums);

my $only = $ENV{ONLY} || '.';

# Whether a part of the test is to run: all, but where the environment names one.
sub part { my ($name) = @_; return $only eq '.' || $name =~ /$only/; }

# A server and a standby, whose files are compared, too.  "verify" is on for tables; here,
# nothing sets it, but where a fault has to get past it
sub start_servers
{
	my ($name) = @_;
	$checksums = $only eq q{.} && faults('page checksums');
	$node = new_node($name, streaming => 1, verify => 0, extra => $checksums ? ['--data-checksums'] : [],
		conf => "checkpoint_timeout = 1h\nmax_wal_size = 4GB\nwal_keep_size = 1GB\nindex_mover.max_workers = 1");
	$page_size = block_size($node);
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_walinspect;
CREATE EXTENSION pageinspect;
CREATE EXTENSION pg_visibility;
CREATE ROLE regress_reader;
SQL
	$node->backup('start');
	$standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'start', has_streaming => 1);
	$standby->append_conf('postgresql.conf', 'wal_keep_size = 0');
	$standby->start;
	return;
}

sub end_servers
{
	return unless $checksums;
	$node->stop;
	command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'page checksums are valid on disk');
	return;
}

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

sub tables { my ($schema) = @_;
	return split /\n/, $node->safe_psql('postgres',
		"SELECT oid::regclass FROM pg_class WHERE relnamespace = '$schema'::regnamespace AND relkind IN ('r', 'm') AND relispopulated "
			. "ORDER BY 1::text"); }

# All rows of tables with their places, as a sequential scan gives them, a line each.
sub rows_of
{
	my ($server, @tables) = @_;
	return $server->safe_psql('postgres', join ";\n",
		'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off',
		map { "SELECT count(*), md5(string_agg(ctid::text || md5(t::text), '' ORDER BY ctid)) FROM $_ t" } @tables);
}

# What the witnesses say against tables: '' is nothing.
sub witnesses
{
	my ($server, @tables) = @_;
	my $list = join ', ', map { "'" . s/'/''/gr . "'::regclass" } @tables;
	my $said = $server->safe_psql('postgres', <<SQL);
WITH t AS MATERIALIZED (SELECT c.oid::regclass AS oid, reltoastrelid::regclass AS toast, c.oid::regclass || ': ' AS what FROM pg_class c
  WHERE c.oid IN ($list)),
 r AS MATERIALIZED (SELECT oid, what FROM t UNION ALL SELECT toast, what || 'TOAST ' FROM t WHERE toast <> 0)
SELECT what || 'visible ' || t FROM r, pg_check_visible(r.oid) t
UNION ALL SELECT what || 'frozen ' || t FROM r, pg_check_frozen(r.oid) t
UNION ALL SELECT what || 'heapam ' || blkno || ' ' || offnum || ' ' || msg FROM r, oracle.verify_heapam(r.oid, check_toast => true)
LIMIT 5
SQL
	my ($rc, $out, $err) = $server->psql('postgres', <<SQL);
SELECT count(oracle.bt_index_check(i.indexrelid, true)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE (i.indrelid IN ($list) OR i.indrelid IN (SELECT reltoastrelid FROM pg_class WHERE oid IN ($list)))
   AND c.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
SQL
	$said .= "\nbtree $err" if $rc;

	# by each btree index on one column, by index-only scan, and then by index scan, which
	# marks entries of rows that are gone
	my @scans = map { [ split / / ] } split /\n/, $server->safe_psql('postgres', <<SQL);
SELECT DISTINCT i.indrelid::regclass::text || ' ' || quote_ident(a.attname) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
  AND a.attnum = i.indkey[0]
 WHERE i.indrelid IN ($list) AND i.indnatts = 1 AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indrelid::regclass::text !~ ' '
SQL
	my $scan = 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET enable_seqscan = on; SET '
		. 'enable_sort = on';
	my $index = 'SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; SET enable_indexscan = on; SET '
		. 'enable_indexonlyscan = on';
	my @answers = map { s/\n+\z//r } split /^=\n/m, !@scans ? '' : $server->safe_psql('postgres', join "\\echo =\n", map {
		my ($table, $column) = @$_;
		my $all = "SELECT count(*), coalesce(sum(hashtextextended(ctid::text || t::text, 0)), 0) FROM (SELECT ctid, * FROM $table ORDER "
			. "BY $column OFFSET 0) t;\n";
		my $keys = "SELECT count(*), coalesce(sum(hashtextextended($column\::text, 0)), 0) FROM (SELECT $column FROM $table ORDER BY "
			. "$column OFFSET 0) t;\n";
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
    OR c.oid IN (SELECT indexrelid FROM pg_index JOIN pg_class t ON indrelid = t.reltoastrelid WHERE t.relnamespace
      = '$schema'::regnamespace)
SQL
}

# Both have on disk what they have.
sub flush_both
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->wait_for_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	return;
}

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

# Count how often something was said to the log.
sub told { my ($log, $what) = @_; my $n = () = slurp_file($node->logfile, $log) =~ /$what/g; return $n; }

sub wait_until_told
{
	my ($log, $what, $times, $job) = @_;
	my $start = time;
	until (told($log, $what) >= $times)
	{
		die "not told $times times: $what" if time - $start > $IndexMover::Test::TIMEOUT;
		return 0 if $job && $node->safe_psql('postgres', "SELECT $job NOT IN (SELECT alive.job FROM index_mover.alive())") eq 't';
		usleep(30_000);
	}
	return 1;
}

# Relation, kind, and the paths of the old and the new file of each copy that is under way,
# in the order in which they began.
sub files_of_move
{
	my $directory = $node->safe_psql('postgres',
		"SELECT 'PG_' || (SELECT setting::int / 10000 FROM pg_settings WHERE name = 'server_version_num') || '_' || catalog_version_no "
			. "|| '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pg_control_system()");
	return map
	{
		my ($relation, $kind, $old, $tablespace, $number) = split /\|/;
		[ $relation, $kind, map { $node->data_dir . "/$_" } $old, "pg_tblspc/$tablespace/$directory/$number" ]
	  } split /\n/, $node->safe_psql('postgres',
		"SELECT relation, (SELECT relkind FROM pg_class WHERE oid = relation), pg_relation_filepath(relation), tablespace, relfilenumber "
			. "FROM index_mover.ledger WHERE kind = 'n' ORDER BY made_at");
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
	my $job = $node->safe_psql('postgres', "SELECT max(job) FROM move_table('$what', '" . ($options{to} || 'regress_fast')
		. "', wait => false, settings => '{$settings}')");
	my %n = map { $_ => 0 } @stops;
	my $start = time;
	while (@stops)
	{
		my ($lock) = grep { told($log, qr/test point "$do{$_}[0]": waiting/) > $n{$_} } @stops;
		if (!$lock)
		{
			last if $node->safe_psql('postgres', "SELECT $job NOT IN (SELECT alive.job FROM index_mover.alive())") eq 't';
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
	return $node->safe_psql('postgres',
		"SELECT kind, status, coalesce(sqlstate, ''), CASE WHEN status <> 'moved' THEN message ELSE '' END FROM index_mover_history "
			. "WHERE job = $job ORDER BY kind");
}

1;
