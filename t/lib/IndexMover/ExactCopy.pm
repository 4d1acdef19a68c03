# IndexMover::ExactCopy
#   An index of each access method that is copied while it changes, on a server whose
#   standby compares pages; what the copy must get right, the WAL records say.
#
#   start_servers('name', standby => 1);     # sets $node, $page_size and $standby
#   make_case('btree');
#   my ($row, $types, $grown, $metapage, $changed, $said) = move_and_change('btree', mutation => 'catch-up');
package IndexMover::ExactCopy;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;

our @EXPORT = qw($node $standby $page_size %cases part start_servers make_case move_and_change files_of_move let_standby_replay);

our ($node, $standby, $page_size);

my $only = $ENV{ONLY} || '.';

# Whether a part of the test is to run: all, but where the environment names one.
sub part { my ($name) = @_; return $only eq '.' || $name =~ /$only/; }

# What a mutation leaves out must get past the copy here, to be found by the oracles;
# what is to be verified says so.
sub start_servers
{
	my ($name, %options) = @_;
	$node = new_node($name, streaming => 1, verify => 0, extra => ['--data-checksums'],
		conf => <<'CONF');
checkpoint_timeout = 1h
max_wal_size = 4GB
wal_keep_size = 2GB
index_mover.test_access_methods = 'bloom'
CONF
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_walinspect;
CREATE EXTENSION pageinspect;
CREATE EXTENSION bloom;
SQL
	$page_size = block_size($node);
	return unless $options{standby};
	# it stops if a page is not as it was on the primary after the same record
	$node->backup('start');
	$standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'start', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 512MB");
	$standby->start;
	return;
}

# For each access method: a table "exact" with the index "exact_i"; what is done
# after the bulk copy; and the WAL records that prove that the hard things
# happened to blocks of the index that had been copied by then, or what the change
# itself says where they have no records of their own.
#
# How many rows that takes.
my ($btree, $hash, $gin, $gist, $spgist, $brin, $bloom) = (60000, 15000, 50000, 15000, 12500, 1000, 8000);
our %cases = (
	btree => {
		make => <<SQL,
CREATE TABLE exact (k int, v int);
CREATE INDEX exact_i ON exact (k) TABLESPACE regress_slow;
INSERT INTO exact SELECT g, 0 FROM generate_series(1, $btree) g;
SQL
		change => <<SQL,
DELETE FROM exact WHERE k BETWEEN $btree / 5 AND $btree / 2;
VACUUM exact;
INSERT INTO exact SELECT $btree * 3 / 5 + g % 1000, 1 FROM generate_series(1, 10000) g;
INSERT INTO exact SELECT $btree + g, 2 FROM generate_series(1, 5000) g;
VACUUM exact;
SQL
		records => [qw(Btree:SPLIT_[LR] Btree:UNLINK_PAGE Btree:NEWROOT|Btree:INSERT_UPPER Btree:VACUUM)],
	},
	hash => {
		make => <<SQL,
CREATE TABLE exact (k int, v int);
INSERT INTO exact SELECT g, 0 FROM generate_series(1, $hash) g;
CREATE INDEX exact_i ON exact USING hash (k) TABLESPACE regress_slow;
SQL
		change => <<SQL,
INSERT INTO exact SELECT 7, 1 FROM generate_series(1, 3000) g;
INSERT INTO exact SELECT g, 1 FROM generate_series($hash + 1, $hash * 7 / 3) g;
DELETE FROM exact WHERE k = 7 AND v = 1;
DELETE FROM exact WHERE k % 4 = 0;
VACUUM exact;
INSERT INTO exact SELECT $hash * 7 / 3 + g, 2 FROM generate_series(1, 1000) g;
SQL
		records => [qw(Hash:SPLIT_ALLOCATE_PAGE Hash:SPLIT_COMPLETE Hash:ADD_OVFL_PAGE Hash:SQUEEZE_PAGE Hash:DELETE)],
	},
	gin => {
		make => <<SQL,
CREATE TABLE exact (k int[], v int);
INSERT INTO exact SELECT ARRAY[1, 10 + g % 5000], g FROM generate_series(1, $gin) g;
CREATE INDEX exact_i ON exact USING gin (k) WITH (fastupdate = on) TABLESPACE regress_slow;
INSERT INTO exact SELECT ARRAY[2, 10 + g % 300], g FROM generate_series(1, 500) g;
SQL
		change => <<SQL,
INSERT INTO exact SELECT ARRAY[3, 6000 + g], g FROM generate_series(1, 3000) g;
SELECT gin_clean_pending_list('exact_i') > 0;
DELETE FROM exact WHERE v BETWEEN $gin / 5 AND $gin * 4 / 5;
VACUUM exact;
INSERT INTO exact SELECT ARRAY[4, 20000 + g], -g FROM generate_series(1, 700) g;
SQL
		records => [qw(Gin:INSERT_LISTPAGE Gin:DELETE_LISTPAGE Gin:UPDATE_META_PAGE Gin:SPLIT Gin:DELETE_PAGE Gin:VACUUM)],
	},
	gist => {
		make => <<SQL,
CREATE TABLE exact (k point, v int);
INSERT INTO exact SELECT point(g % 317, g / 317), g FROM generate_series(1, $gist) g;
CREATE INDEX exact_i ON exact USING gist (k) TABLESPACE regress_slow;
SQL
		change => <<SQL,
DELETE FROM exact WHERE k[0] < 150;
VACUUM exact;
INSERT INTO exact SELECT point(200 + g % 31, g % 97), -g FROM generate_series(1, 6000) g;
INSERT INTO exact SELECT point(1000 + g % 31, g % 97), -g FROM generate_series(1, 3000) g;
SQL
		records => [qw(Gist:PAGE_SPLIT Gist:PAGE_DELETE Gist:PAGE_UPDATE)],
	},
	spgist => {
		make => <<SQL,
CREATE TABLE exact (k text, v int);
INSERT INTO exact SELECT md5((g % 9000)::text), g FROM generate_series(1, $spgist) g;
CREATE INDEX exact_i ON exact USING spgist (k) TABLESPACE regress_slow;
SQL
		change => <<SQL,
DELETE FROM exact WHERE k < 'a';
VACUUM exact;
INSERT INTO exact SELECT 'x' || md5((g % 5000)::text), -g FROM generate_series(1, $spgist * 4 / 5) g;
SQL
		records => [qw(SPGist:PICKSPLIT SPGist:VACUUM_LEAF SPGist:ADD_LEAF)],
		unlogged_metapage => 1,
	},
	brin => {
		make => <<SQL,
CREATE TABLE exact (k text, v int, filler text DEFAULT repeat('x', 900));
ALTER TABLE exact ALTER filler SET STORAGE plain;
INSERT INTO exact SELECT md5((g / 100)::text), g FROM generate_series(1, 10500) g;
CREATE INDEX exact_i ON exact USING brin (k) WITH (pages_per_range = 1) TABLESPACE regress_slow;
SQL
		change => <<SQL,
UPDATE exact SET k = repeat(k, 3) WHERE v % 1000 < 40;
DELETE FROM exact WHERE v BETWEEN 2000 AND 3000;
VACUUM exact;
INSERT INTO exact SELECT repeat('z', 100) || g, g FROM generate_series(10501, 10500 + $brin) g;
VACUUM exact;
SQL
		records => [qw(BRIN:REVMAP_EXTEND BRIN:INSERT BRIN:UPDATE BRIN:SAMEPAGE_UPDATE)],
	},
	bloom => {
		make => <<SQL,
CREATE TABLE exact (k int, v int);
INSERT INTO exact SELECT g, g FROM generate_series(1, $bloom) g;
CREATE INDEX exact_i ON exact USING bloom (k, v) TABLESPACE regress_slow;
SQL
		change => <<SQL,
DELETE FROM exact WHERE k BETWEEN $bloom / 6 AND $bloom * 3 / 4;
VACUUM exact;
-- the flag of a deleted page is in the second of the four words at its end
SELECT 'deleted pages: ' || count(*)
  FROM generate_series(1, pg_relation_size('exact_i') / current_setting('block_size')::int - 1) b, get_raw_page('exact_i', b::int) p
 WHERE (get_byte(p, length(p) - 6) | get_byte(p, length(p) - 5)) & 2 <> 0;
INSERT INTO exact SELECT g, g FROM generate_series($bloom + 1, $bloom * 2) g;
VACUUM exact;
SQL
		records => [qw(Generic:)],
		says => qr/^deleted pages: [1-9]/m,
	},
);

# (What is made before a move need not be compared.)
sub make_case
{
	my ($am) = @_;
	$node->safe_psql('postgres',
		"SET client_min_messages = warning; SET wal_consistency_checking = ''; DROP TABLE IF EXISTS exact, oracle.\"old exact_i\"; "
			. "$cases{$am}{make} SELECT oracle.remember_keys('exact')");
	return;
}

# Move with a pause after the bulk copy, and, with at_swap => a function of the old
# file's path and the new one's, another under the exclusive lock, when all is copied
# and both are on disk as they are.  Returns the row, the types of the WAL
# records that meanwhile changed blocks of the index that had been copied, the
# blocks it grew by, whether block 0 has changed, the numbers of the changed blocks
# that had been copied, and what the change has said.
sub move_and_change
{
	my ($am, %options) = @_;
	set_tests($node,
		test_point => 'copy-end:wait' . ($options{at_swap} ? ',swap-copied:wait2' : ''),
		test_mutation => join(',', grep { $_ } $options{mutation}, $options{no_compare} ? () : 'verify-all'));
	my $blocker = $node->background_psql('postgres');
	$blocker->query_safe('SELECT pg_advisory_lock(0, 5959)');
	my $gate = $options{at_swap} ? IndexMover::Session->new($node) : undef;
	$gate->run('SELECT pg_advisory_lock(0, 5960)') if $gate;
	my $log = -s $node->logfile;
	# not waiting: a caller's snapshot would keep vacuum from deleting pages
	my $settings = $options{settings} ? ", settings => '$options{settings}'" : '';
	my $job = $node->safe_psql('postgres',
		"SELECT job FROM move_indexes('exact_i', 'regress_fast', method => 'copy', wait => false$settings)");
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);

	my $file = $node->safe_psql('postgres',
		"SELECT (SELECT oid FROM pg_tablespace WHERE spcname = 'regress_slow') || '/' || (SELECT oid FROM pg_database WHERE datname = "
			. "'postgres') || '/' || pg_relation_filenode('exact_i')");
	my $state = "SELECT pg_relation_size('exact_i') / current_setting('block_size')::int, md5(get_raw_page('exact_i', 0)), %s";
	my @before = split /\|/, $node->safe_psql('postgres', sprintf($state, 'pg_current_wal_insert_lsn()'));
	my $said = $node->safe_psql('postgres', $cases{$am}{change});
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', 'SELECT pg_switch_wal(), txid_current(); CHECKPOINT') for 1 .. ($options{switch_wal} ? 5 : 0);
	# (what the server itself has logged since the checkpoint cannot be read yet)
	my @after = split /\|/, $node->safe_psql('postgres', sprintf($state, 'pg_current_wal_flush_lsn()'));
	my (%types, %changed);
	foreach ($options{switch_wal} ? () : split /\n/, $node->safe_psql('postgres', <<SQL))
SELECT DISTINCT resource_manager || ':' || split_part(record_type, '+', 1), m[1]
  FROM pg_get_wal_records_info('$before[2]', '$after[2]'), regexp_matches(block_ref, 'rel $file (?:fork main )?blk (\\d+)', 'g') m
 WHERE block_ref LIKE '%rel $file %'
SQL
	{
		my ($type, $block) = /^(.*)\|(\d+)$/ or die $_;
		# an image because of a hint bit is none
		next if $block >= $before[0] || $type eq 'XLOG:FPI_FOR_HINT';
		$types{$type} = $changed{$block} = 1;
	}
	my @files = $gate ? files_of_move() : ();
	$blocker->quit;
	if ($gate)
	{
		$node->wait_for_log(qr/test point "swap-copied": waiting/, $log);
		$node->safe_psql('postgres', 'CHECKPOINT');
		$options{at_swap}->(@files);
		$gate->end;
	}
	$node->psql('postgres', "CALL wait_for_move($job)");
	my $row = $node->safe_psql('postgres',
		"SELECT status, sqlstate, message FROM index_mover_history WHERE job = $job");
	set_tests($node);
	return ($row, join(' ', sort keys %types), $after[0] - $before[0], $before[1] ne $after[1], [ keys %changed ], $said);
}

# The paths of the index's file and of the one that is being made.
sub files_of_move
{
	my ($old, $tablespace, $number) = split /\|/, $node->safe_psql('postgres',
		"SELECT pg_relation_filepath(relation), tablespace, relfilenumber FROM index_mover.ledger WHERE kind = 'n'");
	(my $new = $old) =~ s{^pg_tblspc/\d+/(.*)/\d+$}{pg_tblspc/$tablespace/$1/$number} or die $old;
	return map { $node->data_dir . "/$_" } $old, $new;
}

sub let_standby_replay
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->wait_for_catchup($standby);
	return;
}

1;
