# The copy is exact, for each access method, although the hard things happen
# after the bulk copy has passed the blocks, here and on a standby that compares
# each page it replays with the primary's; and the checks that say so would notice
# if a part of the catch-up were left out.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Pages;
use IndexMover::Session;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

# What a mutation leaves out must get past the copy here, to be found by the oracles;
# what is to be verified says so.
my $node = new_node('copy_exact', streaming => 1, verify => 0, extra => ['--data-checksums'],
	conf => "checkpoint_timeout = 1h\nmax_wal_size = 4GB\nwal_keep_size = 2GB");
$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_walinspect;
CREATE EXTENSION pageinspect;
CREATE EXTENSION bloom;
SQL

# For each access method: a table "exact" with the index "exact_i"; what is done
# after the bulk copy; and the WAL records that prove that the hard things
# happened to blocks of the index that had been copied by then, or what the change
# itself says where they have no records of their own.
#
# How many rows that takes.
my ($btree, $hash, $gin, $gist, $spgist, $brin, $bloom, $zoo) = (60000, 15000, 50000, 15000, 12500, 1000, 8000, 3000);
my %cases = (
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
		"SET client_min_messages = warning; SET wal_consistency_checking = ''; DROP TABLE IF EXISTS exact, oracle.\"old exact_i\"; $cases{$am}{make} SELECT oracle.remember_keys('exact')");
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
		"SELECT (SELECT oid FROM pg_tablespace WHERE spcname = 'regress_slow') || '/' || (SELECT oid FROM pg_database WHERE datname = 'postgres') || '/' || pg_relation_filenode('exact_i')");
	my $state = "SELECT pg_relation_size('exact_i') / current_setting('block_size')::int, md5(get_raw_page('exact_i', 0)), %s";
	my @before = split /\|/, $node->safe_psql('postgres', sprintf($state, 'pg_current_wal_insert_lsn()'));
	my $said = $node->safe_psql('postgres', $cases{$am}{change});
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql('postgres', 'SELECT pg_switch_wal(), txid_current(); CHECKPOINT') for 1 .. ($options{switch_wal} ? 5 : 0);
	# (what the server itself has logged since the checkpoint can't be read yet)
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

my $only = $ENV{ONLY} || '.';
my $page_size = block_size($node);

# A standby, which stops if a page is not as it was on the primary after the same record.
$node->backup('start');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'start', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_keep_size = 0\nmax_wal_size = 512MB");
$standby->start;

sub let_standby_replay
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->wait_for_catchup($standby);
	return;
}

my $consistency = faults('wal_consistency_checking') ? 'all' : '';
$node->safe_psql('postgres', "ALTER SYSTEM SET wal_consistency_checking = '$consistency'");
$node->reload;
poll_until($node, 'SHOW wal_consistency_checking', $consistency, 'wal_consistency_checking');

foreach my $am (grep { /$only/ } qw(btree hash gin gist spgist brin bloom))
{
	make_case($am);
	my $log = -s $node->logfile;
	# "verify" compares before the lock, "verify-all" all of it under the lock, and then we
	my ($row, $types, $grown, $metapage, $changed, $said) =
	  move_and_change($am, settings => '{"verify": true}',
		at_swap => sub { same_files_ok(@_, $page_size, "$am, under the lock") });
	like($row, qr/^moved\|/, "$am: moved, block by block equal under the lock");
	foreach my $record (@{ $cases{$am}{records} })
	{
		like($types, qr/(?:^| )(?:$record)/, "$am: $record after the bulk copy, of a block that had been copied");
	}
	like($said, $cases{$am}{says}, "$am: so the change says") if $cases{$am}{says};
	cmp_ok($grown, '>', 0, "$am: extended after the bulk copy");
	ok($metapage, "$am: the metapage changed after the bulk copy") if $cases{$am}{unlogged_metapage};
	my ($copied, $recopied, $attempts) = split /\|/, $node->safe_psql('postgres',
		'SELECT blocks_copied, blocks_recopied, lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1');
	# block 0 is always copied again, each time the lock was got
	my $least = () = grep { $_ != 0 } @$changed;
	cmp_ok($least, '>', $am eq 'brin' ? 2 : 10, "$am: $least blocks were changed that had been copied");
	cmp_ok($recopied, '>=', $least + 1, "$am: as many of $copied blocks copied again, or more");
	cmp_ok($recopied, '<=', @$changed + $grown + $attempts, "$am: but none that was neither changed nor new ($recopied)");
	let_standby_replay();
	same_pages_ok($node, $standby, 'exact_i', "$am, standby");
	# (the standby's pages are the same)
	my @asked = picked { $_->[0] == $node } 'servers asked for each key', [ $node, '' ], [ $standby, ', standby' ];
	verdict_ok($_->[0], 'exact', "$am$_->[1]", max_keys => 100) foreach @asked;
	files_ok($_->[0], "$am$_->[1]") foreach [ $node, '' ], [ $standby, ', standby' ];
	unlike(slurp_file($node->logfile, $log), qr/starting the copy/, "$am: it was this copy");
	# and it can be written to
	$node->safe_psql('postgres', $cases{$am}{change} . 'VACUUM exact');
	let_standby_replay();
	verdict_ok($_->[0], 'exact', "$am, changed after the move$_->[1]", max_keys => 20) foreach @asked;
}
replayed_pages_ok($node, $standby, 'standby') if $consistency;
$node->safe_psql('postgres', 'ALTER SYSTEM RESET wal_consistency_checking');
$node->reload;
poll_until($node, 'SHOW wal_consistency_checking', '', 'wal_consistency_checking');

# ---- the last blocks are many, and copied directly once more ---------------------
foreach my $am (picked { /btree|spgist/ } 'access methods whose last blocks are copied directly',
	grep { $only eq '.' || 'again' =~ /$only/ } qw(btree hash gin gist spgist brin bloom))
{
	make_case($am);
	my ($row, undef, undef, undef, $changed) = move_and_change($am, mutation => 'again', settings => '{"verify": true}');
	like($row, qr/^moved\|/, "$am, copied directly again: moved, block by block equal under the lock");
	my $least = () = grep { $_ != 0 } @$changed;
	cmp_ok($least, '>', $am eq 'brin' ? 2 : 10, "$am, copied directly again: $least blocks were changed that had been copied");
	cmp_ok($node->safe_psql('postgres', 'SELECT blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1'),
		'>=', $least + 1, "$am, copied directly again: as many blocks copied again, or more");
	let_standby_replay();
	same_pages_ok($node, $standby, 'exact_i', "$am, copied directly again, standby");
	verdict_ok($node, 'exact', "$am, copied directly again", max_keys => 20);
	files_ok($node, "$am, copied directly again");
	$node->safe_psql('postgres', $cases{$am}{change} . 'VACUUM exact');
	$node->stop('immediate');
	$node->start;
	verdict_ok($node, 'exact', "$am, copied directly again, changed after the move, after a crash", max_keys => 20);
}

# ---- a race with the writers: the last blocks are many, and copied under the lock ----
# Neither directly again nor in a round through shared buffers before, which would fail.
if ($only eq '.' || 'race' =~ /$only/)
{
	my $name = 'a race';
	$node->safe_psql('postgres', <<'SQL');
SET client_min_messages = warning;
DROP TABLE IF EXISTS exact, oracle."old exact_i";
CREATE TABLE exact (k int, v int) WITH (autovacuum_enabled = off);
INSERT INTO exact SELECT g, 0 FROM generate_series(1, 1800000) g;
CREATE INDEX exact_i ON exact (k) TABLESPACE regress_slow;
SELECT oracle.remember_keys('exact');
SQL
	set_tests($node, test_mutation => 'verify-all');
	# in most blocks of the index, and again
	my $change = 'UPDATE exact SET k = k + 1 WHERE k % 350 = ';
	my $gate = IndexMover::Session->new($node);
	$gate->run('SELECT pg_advisory_lock(0, 5960)');
	my $log = -s $node->logfile;
	my $call = held_at($node, 'copy-half', "SELECT status FROM move_indexes('exact_i', 'regress_fast', method => 'copy', settings => '{\"max_lock_time\": \"1min\"}')",
		then => 'copy-round:wait2,copy-again:error,copy-buffered-round:error');
	$node->safe_psql('postgres', $change . 17);
	let_go($call);
	$node->wait_for_log(qr/test point "copy-round": waiting/, $log);
	$node->safe_psql('postgres', $change . 170);
	$gate->end;
	my ($rc, $out, $err) = finish_call($call);
	set_tests($node);
	is($out, "moved\n", "$name: moved, block by block equal under the lock") or diag $err;
	my ($recopied, $attempts) = split /\|/, $node->safe_psql('postgres',
		'SELECT blocks_recopied, lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1');
	cmp_ok($recopied, '>', 2 * 2048, "$name: $recopied blocks copied again");
	is($attempts, 1, "$name: by the first attempt");
	let_standby_replay();
	same_pages_ok($node, $standby, 'exact_i', "$name, standby");
	verdict_ok($node, 'exact', $name, max_keys => 100);
	files_ok($node, $name);
}

# what follows makes copies that are wrong
$standby->stop;

# ---- the checks notice what is left out ----------------------------------------
foreach my $case (picked { $_->[1] eq 'catch-up' } 'parts left out of the catch-up', grep { $only eq '.' || 'mutation' =~ /$only/ } [ 'btree', 'catch-up' ], [ 'btree', 'catch-up:1' ], [ 'btree', 'tail' ],
	[ 'spgist', 'block-0' ], [ 'hash', 'catch-up:1' ])
{
	my ($am, $mutation) = @$case;
	make_case($am);
	my ($row, $types, $grown, $metapage) = move_and_change($am, mutation => $mutation);
	like($row, qr/^failed\|XX001\|.*differs from the original/,
		"$am without $mutation: the block compare notices");
	files_ok($node, "$am without $mutation, after the error");
	is(tablespace_of_index($node, 'exact'), 'exact_i: regress_slow', "$am without $mutation: not moved");
	# SP-GiST's metapage is a cache: look-ups can't tell
	next if $mutation eq 'block-0';

	# without the compare the look-ups must notice
	make_case($am);
	my (@different, $segments);
	($row) = move_and_change($am, mutation => $mutation, no_compare => 1,
		at_swap => sub { @different = different_files(@_, $page_size); $segments = -e "$_[0].1" });
  SKIP:
	{
		skip "$am without $mutation: the block is in another segment than the first, in this build", 1 if $segments && !@different;
		cmp_ok(scalar @different, '>', 0, "$am without $mutation: blocks differ from the original's: @different");
	}
	like($row, qr/^moved\|/, "$am without $mutation and without compare: moved");
	my $verdict = $node->safe_psql('postgres', "SELECT oracle.verdict('exact')");
	like($verdict, qr/^0 right;/, "$am without $mutation: look-ups or amcheck notice")
	  or diag $verdict;
}

# ... and its length is always compared
if ($only eq '.' || 'mutation' =~ /$only/)
{
	make_case('btree');
	my ($row, $types, $grown) = move_and_change('btree', mutation => 'tail,short', no_compare => 1);
	cmp_ok($grown, '>', 0, 'btree without its tail: there is one');
	like($row, qr/^failed\|XX001\|the copy of index "exact_i" has \d+ blocks instead of \d+/, 'btree without its tail: noticed');
	files_ok($node, 'btree without its tail, after the error');
}

# ... and so does the user's setting "verify"
if ($only eq '.' || 'mutation' =~ /$only/)
{
	make_case('btree');
	my ($row) = move_and_change('btree', mutation => 'catch-up:1', no_compare => 1, settings => '{"verify": true}');
	like($row, qr/^failed\|XX001\|/, 'btree without catch-up:1: index_mover.verify notices');
}

# ---- SP-GiST's empty pages ---------------------------------------------------------
# It prepares an empty page in a buffer and leaves it there, not logged and not
# dirty: when the buffer is given up, zeros are back.  That is no damage.
if ($only eq '.' || 'empty' =~ /$only/)
{
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION pg_prewarm;
CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, 45000);
CHECKPOINT;
SQL
	make_case('spgist');
	set_tests($node, test_point => 'copy-end:wait', test_mutation => 'verify-all');
	# many backends, each with pages of its own
	my $pages = 'SELECT count(*) FROM generate_series(3, pg_relation_size(\'exact_i\') / current_setting(\'block_size\')::int - 1) b, page_header(get_raw_page(\'exact_i\', b::int))';
	my $prepared = 0;
	for (my $n = 0; $n < 40 && !$prepared; $n++)
	{
		$node->safe_psql('postgres', "INSERT INTO exact SELECT 'y$n' || md5((g * 7 + $n)::text), g FROM generate_series(1, 700) g");
		$prepared = $node->safe_psql('postgres', "$pages WHERE upper > 0 AND lsn = '0/0'");
	}
	cmp_ok($prepared, '>', 0, 'SP-GiST: there are empty pages in buffers only');
	my $blocker = $node->background_psql('postgres');
	$blocker->query_safe('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $job = $node->safe_psql('postgres',
		q{SELECT job FROM move_indexes('exact_i', 'regress_fast', method => 'copy', wait => false, settings => '{"verify": true}')});
	$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
	$node->safe_psql('postgres', "SELECT pg_prewarm('large')") for 1 .. 6;
	cmp_ok($node->safe_psql('postgres', "$pages WHERE upper = 0"), '>', 0, 'SP-GiST: they are zeros again after the copy');
	$blocker->quit;
	$node->psql('postgres', "CALL wait_for_move($job)");
	is($node->safe_psql('postgres', "SELECT status, message FROM index_mover_history WHERE job = $job"),
		'moved|', 'SP-GiST: verify takes no empty page for damage');
	set_tests($node);
	verdict_ok($node, 'exact', 'SP-GiST with empty pages', max_keys => 100);
	$node->safe_psql('postgres', 'DROP TABLE large');
}

# ---- blocks that are read past the shared buffers -----------------------------------
if ($only eq '.' || 'read' =~ /$only/)
{
	# a block that has a buffer is taken from there: on disk it is an older one
	if (faults('the look-up for a buffer left out'))
	{
		make_case('btree');
		my ($row) = move_and_change('btree', mutation => 'look-up');
		like($row, qr/^failed\|XX001\|.*differs from the original/, 'without the look-up for a buffer: noticed');
	}

	# one that has none is read from the disk, and no other process gets it wrong that
	# changes it between the read and its way to the new file
	$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS pg_buffercache');
	my $move = "SELECT status, sqlstate FROM move_indexes('exact_i', 'regress_fast', method => 'copy')";
	my $buffers = "SELECT count(*) FROM pg_buffercache WHERE relfilenode = pg_relation_filenode('exact_i')";
	foreach my $mutation (picked { !$_ } 'positions in the WAL', '', 'late-lsn')
	{
		my $name = 'read past the buffers' . ($mutation ? ", with $mutation" : '');
		make_case('btree');
		$node->restart;
		set_tests($node, test_mutation => "verify-all,$mutation");
		my $call = held_at($node, 'copy-read', $move, then => 'copy-end:wait2');
		my $gate = IndexMover::Session->new($node);
		$gate->run('SELECT pg_advisory_lock(0, 5960)');
		my $log = -s $node->logfile;
		cmp_ok($node->safe_psql('postgres', $buffers), '<', 4, "$name: the index is in no buffers");
		$node->safe_psql('postgres', 'INSERT INTO exact SELECT g * 500, 1 FROM generate_series(1, 20) g');
		my $changed = $node->safe_psql('postgres', $buffers);
		let_go($call);
		$node->wait_for_log(qr/test point "copy-end": waiting/, $log);
		cmp_ok($node->safe_psql('postgres', $buffers), '<=', $changed, "$name: and the copy has brought none of it there");
		$gate->end;
		my ($rc, $out, $err) = finish_call($call);
		is($out, $mutation ? "failed|XX001\n" : "moved|\n", "$name: what changes meanwhile is copied again, or the compare notices") or diag $err;
		set_tests($node);
		verdict_ok($node, 'exact', $name, max_keys => 50);
	}
}

# ---- blocks that change on their way to being copied again -----------------------------
if ($only eq '.' || 'round' =~ /$only/)
{
	# one key of each other leaf page, or of those between
	my $others = 'INSERT INTO exact SELECT g, 1 FROM generate_series(%d, 300000, 732) g';
	foreach my $mutation (picked { !$_ } 'positions in the WAL in a round', '', 'late-lsn')
	{
		my $name = 'changed in a round' . ($mutation ? ", with $mutation" : '');
		$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
DROP TABLE IF EXISTS exact;
CREATE TABLE exact (k int, v int);
INSERT INTO exact SELECT g, 0 FROM generate_series(1, 300000) g;
CREATE INDEX exact_i ON exact (k) TABLESPACE regress_slow;
SELECT oracle.remember_keys('exact');
SQL
		set_tests($node, test_mutation => "verify-all,$mutation");
		my $call = held_at($node, 'copy-end', "SELECT status, sqlstate FROM move_indexes('exact_i', 'regress_fast', method => 'copy')",
			then => 'copy-read-again:wait2');
		my $gate = IndexMover::Session->new($node);
		$gate->run('SELECT pg_advisory_lock(0, 5960)');
		my $log = -s $node->logfile;
		my $changed = $node->safe_psql('postgres', 'WITH c AS (' . sprintf($others, 100) . ' RETURNING 1) SELECT count(*) FROM c');
		# the WAL is not due to be read within the round
		$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
		let_go($call);
		$node->wait_for_log(qr/test point "copy-read-again": waiting/, $log);
		# those on the list, of which the first 128 have been read, and those that are not
		$node->safe_psql('postgres', sprintf($others, 100) . ';' . sprintf($others, 466));
		$gate->end;
		my ($rc, $out, $err) = finish_call($call);
		is($out, $mutation ? "failed|XX001\n" : "moved|\n", "$name: what is to be copied again is, or the compare notices") or diag $err;
		set_tests($node);
		next if $mutation;
		my $recopied = $node->safe_psql('postgres', 'SELECT blocks_recopied FROM index_mover_history ORDER BY job DESC LIMIT 1');
		cmp_ok($changed, '>', 256, "$name: $changed blocks on the list");
		cmp_ok($recopied, '>=', 2 * $changed + 100, "$name: copied again is all that has changed since it was copied");
		cmp_ok($recopied, '<', 2 * $changed + 128 + 50, "$name: and not what was copied behind its last change ($recopied)");
		verdict_ok($node, 'exact', $name, max_keys => 50);
	}
}

# ---- WAL that is removed before it was read ----------------------------------------
if ($only eq '.' || 'wal' =~ /$only/)
{
	make_case('btree');
	$node->safe_psql('postgres', 'ALTER SYSTEM SET wal_keep_size = 0');
	my $log = -s $node->logfile;
	my ($row) = move_and_change('btree', settings => '{"verify": true}', switch_wal => 1);
	like($row, qr/^moved\|/, 'WAL removed in mid-copy: moved');
	like(slurp_file($node->logfile, $log), qr/starting the copy of index "exact_i" again, because WAL that tells its changes was removed/,
		'WAL removed in mid-copy: the copy was started again');
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET wal_keep_size');
	verdict_ok($node, 'exact', 'WAL removed in mid-copy', max_keys => 100);
	files_ok($node, 'WAL removed in mid-copy');
}

# ---- WAL that tells of changes, but not of which blocks ----------------------------
# Also if it is noticed under the exclusive lock only.
foreach my $record (picked { !/log-special$/ } 'kinds of WAL', grep { $only eq '.' || 'special' =~ /$only/ } 'log-truncate', 'log-special', 'log-special,under-lock')
{
	make_case('btree');
	set_tests($node, test_mutation => $record);
	my $log = -s $node->logfile;
	my $row = $node->safe_psql('postgres',
		"SELECT status, sqlstate, detail FROM move_indexes('exact_i', 'regress_fast', method => 'copy')");
	like($row, qr/^failed\|55000\|.*gave up copying index "exact_i" after 5 starts/, "$record: never a swap, a clean error");
	my $starts = () = slurp_file($node->logfile, $log) =~ /starting the copy of index "exact_i" again, because its file was truncated, or changed in a way/g;
	is($starts, 4, "$record: after it was started again");
	set_tests($node);
	is(tablespace_of_index($node, 'exact'), 'exact_i: regress_slow', "$record: not moved");
	files_ok($node, $record);
	verdict_ok($node, 'exact', $record, max_keys => 20);
}

# Once under the lock: it is given back, those who wait for it go on, and the copy is
# made again, with what they have written.
if ($only eq '.' || 'special' =~ /$only/)
{
	my $name = 'started again under the lock';
	make_case('btree');
	$node->safe_psql('postgres', q{ALTER SYSTEM SET log_min_messages = 'debug1'});
	set_tests($node, test_mutation => 'log-truncate,under-lock,once,verify-all');
	poll_until($node, 'SHOW log_min_messages', 'debug1', 'the new setting');
	my $log = -s $node->logfile;
	my $call = held_at($node, 'swap-locked', "SELECT status FROM move_indexes('exact_i', 'regress_fast', method => 'copy', settings => '{\"verify\": true}')");
	my $writer = IndexMover::Session->new($node);
	$writer->send('INSERT INTO exact SELECT 20000 + g % 500, 3 FROM generate_series(1, 3000) g');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $writer->pid, 't', "$name: somebody waits for the lock");
	let_go($call);
	$writer->answer;
	is($writer->errors, '', "$name: who waits for the lock gets it");
	$writer->end;
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved\n", "$name: moved, block by block equal under the lock") or diag $err;
	my $text = slurp_file($node->logfile, $log);
	my $index = $node->safe_psql('postgres', "SELECT 'exact_i'::regclass::oid");
	my $given_back = () = $text =~ /given the exclusive lock on relation $index back after \d+ us: the copy is of no use any more/g;
	is($given_back, 1, "$name: the lock was given back once");
	my $starts = () = $text =~ /starting the copy of index "exact_i" again, because its file was truncated, or changed in a way/g;
	is($starts, 1, "$name: and the copy made again");
	cmp_ok($node->safe_psql('postgres', 'SELECT lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1'), '>', 1, "$name: with another attempt");
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET log_min_messages');
	set_tests($node);
	is(tablespace_of_index($node, 'exact'), 'exact_i: regress_fast', "$name: where it was to be");
	verdict_ok($node, 'exact', $name, max_keys => 100);
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
}

# ---- it grows between the last look and the exclusive lock ---------------------------
if ($only eq '.' || 'grows' =~ /$only/)
{
	my $blocks = "SELECT pg_relation_size('exact_i') / $page_size";
	my ($before, $after, $attempts, $out, $err);
	# if the lock is given back, for so much WAL takes long to read here, it has grown
	# before another look
	foreach my $try (1 .. 5)
	{
		make_case('btree');
		my $call = held_at($node, 'swap-asking', "SELECT status FROM move_indexes('exact_i', 'regress_fast', method => 'copy')");
		$before = $node->safe_psql('postgres', $blocks);
		$node->safe_psql('postgres', 'INSERT INTO exact SELECT 100000 + g, 2 FROM generate_series(1, 1000) g');
		$after = $node->safe_psql('postgres', $blocks);
		let_go($call);
		(undef, $out, $err) = finish_call($call);
		$attempts = $node->safe_psql('postgres', 'SELECT lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1');
		last if $attempts == 1;
	}
	cmp_ok($after, '>', $before + 1, "it grows before the lock is asked for: from $before to $after blocks");
	is($attempts, 1, 'it grows before the lock is asked for: that was the first attempt');
	is($out, "moved\n", 'it grows before the lock is asked for: moved') or diag $err;
	is($node->safe_psql('postgres', $blocks), $after, 'it grows before the lock is asked for: the new file is as long');
	verdict_ok($node, 'exact', 'it grows before the lock is asked for', max_keys => 100);
	files_ok($node, 'it grows before the lock is asked for');
}

# ---- a checkpoint between the log and the file -----------------------------------
# A base backup could begin there, and have read the file already: so the blocks
# are logged once more.
if ($only eq '.' || 'redo' =~ /$only/)
{
	make_case('btree');
	set_tests($node, test_point => 'copy-logged:wait', test_mutation => 'verify-all');
	my $blocker = $node->background_psql('postgres');
	$blocker->query_safe('SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover',
		"SELECT status FROM move_indexes('exact_i', 'regress_fast', method => 'copy')");
	$node->wait_for_log(qr/test point "copy-logged": waiting/, $log);
	$node->safe_psql('postgres', 'CHECKPOINT');
	$blocker->quit;
	my ($rc, $out) = finish_call($call);
	set_tests($node);
	is($out, "moved\n", 'a checkpoint between log and file: moved');
	# as the same without a checkpoint, and not less full of holes than a new btree
	$node->safe_psql('postgres', q{SELECT move_indexes('exact_i', 'regress_slow', method => 'copy')});
	my ($once, $wal) = split /\n/, $node->safe_psql('postgres',
		q{SELECT wal_bytes / current_setting('block_size')::int FROM index_mover_history ORDER BY job DESC LIMIT 2});
	cmp_ok($wal - $once, '>=', 0.85 * 128 * 8192 / $page_size, "a checkpoint between log and file: 1 MB logged again ($wal blocks of WAL, $once without)");
}

# ---- under load ----------------------------------------------------------------
if ($only eq '.' || 'load' =~ /$only/)
{
	make_zoo($node, 'zoo', $zoo);
	my $ids = $zoo * 3 / 2;
	# beside it, a table that nobody writes to
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE quiet (k int);
INSERT INTO quiet SELECT generate_series(1, 50000);
CREATE INDEX quiet_k ON quiet (k) TABLESPACE regress_slow;
SQL
	$node->safe_psql('postgres', "SELECT oracle.remember_keys('zoo'); SELECT oracle.remember_metadata('zoo')");
	my $dir = $node->basedir;
	my %scripts = (
		upsert => <<SQL,
\\set id random(1, $ids)
\\set n random(1, 1000000)
INSERT INTO zoo SELECT :id, :n % 97, 'text ' || :n % 2009, NULL, point(:n % 71, :n % 53), int4range(:n, :n + 10),
       ARRAY[:n % 31, :n % 7], to_tsvector('simple', 'w' || :n % 211), jsonb_build_object('k', :n % 101), :n % 50
    ON CONFLICT (id) DO UPDATE SET grp = excluded.grp, txt = excluded.txt, pt = excluded.pt, rng = excluded.rng,
       arr = excluded.arr, doc = excluded.doc, js = excluded.js, maybe = excluded.maybe;
SQL
		savepoints => <<SQL,
\\set id random(1, $ids)
\\set n random(1, 1000000)
BEGIN;
UPDATE zoo SET txt = 'one ' || :n, maybe = NULL WHERE id = :id;
SAVEPOINT a;
DELETE FROM zoo WHERE id BETWEEN :id + 1 AND :id + 5;
ROLLBACK TO a;
UPDATE zoo SET txt = 'two ' || :n, arr = ARRAY[:n % 31] WHERE id = :id;
SAVEPOINT b;
UPDATE zoo SET pt = point(:n % 71, 5) WHERE id = :id;
RELEASE b;
COMMIT;
SQL
		deletes => <<SQL,
\\set id random(1, $ids)
DELETE FROM zoo WHERE id = :id;
SQL
		prepared => <<SQL,
\\set id random(1, $ids)
BEGIN;
UPDATE zoo SET txt = 'prepared ' || :id, doc = to_tsvector('simple', 'p' || :id) WHERE id = :id;
PREPARE TRANSACTION 'p:client_id';
COMMIT PREPARED 'p:client_id';
SQL
		vacuum => "VACUUM zoo;\n\\sleep 300 ms\n");
	append_to_file("$dir/$_.sql", $scripts{$_}) foreach keys %scripts;
	my @load;
	foreach my $run ([ 2, qw(upsert savepoints deletes) ], [ 1, 'vacuum' ], [ 1, 'prepared' ])
	{
		my ($clients, @names) = @$run;
		my ($in, $out) = ('', '');
		my $harness = IPC::Run::start(
			[ 'pgbench', '-n', '-M', $names[0] eq 'upsert' ? 'prepared' : 'simple', '-c', $clients, '-T', 3600, '--max-tries=20',
				(map { ('-f', "$dir/$_.sql") } @names), $node->connstr('postgres') ],
			'<', \$in, '>', \$out, '2>&1');
		push @load, { harness => $harness, out => \$out, name => $names[0] };
	}
	poll_until($node, "SELECT count(*) > 50 FROM zoo WHERE txt LIKE 'two %'", 't', 'load');
	# each copy waits for 25 transactions of the load between the bulk copy and
	# the first drain, so that there is something to be copied again
	set_tests($node, test_point => 'copy-end:writes', test_mutation => 'verify-all');
	my ($all, $again) = (0, 0);
	my $log = -s $node->logfile;
	foreach my $to ((qw(regress_fast regress_slow)) x ($ENV{LOAD_ROUNDS} || (faults('two of three rounds under load') ? 3 : 1)))
	{
		my $rows = $node->safe_psql('postgres',
			"SELECT status, count(*) FROM move_indexes('zoo', '$to', method => 'copy', settings => '{\"verify\": true}') GROUP BY 1");
		is($rows, 'moved|17', "under load: all indexes moved to $to, block by block equal under the lock")
		  or diag $node->safe_psql('postgres', 'SELECT name, status, message FROM index_mover_history ORDER BY job DESC, name LIMIT 17');
		my $few = $node->safe_psql('postgres',
			"SELECT count(*), count(*) FILTER (WHERE blocks_recopied > 1) FROM index_mover_history WHERE job = (SELECT max(job) FROM index_mover_history)");
		$few =~ /^(\d+)\|(\d+)$/ or die $few;
		($all, $again) = ($all + $1, $again + $2);
		# beside the blocks a move logs catalogs, which may be whole pages if they
		# weren't changed since the last checkpoint; and a megabyte twice if one began
		# just then
		my $checkpoints = () = slurp_file($node->logfile, $log) =~ /checkpoint starting/g;
		my $beside = (24 + $checkpoints * (24 + 128)) * $page_size;
		my ($most, $too_much) = split /\|/, $node->safe_psql('postgres', <<SQL);
SELECT max(wal_bytes - 1.03 * (blocks_copied + blocks_recopied) * $page_size),
       string_agg(name || ': ' || wal_bytes || ' bytes for ' || blocks_copied + blocks_recopied || ' blocks', ', ')
         FILTER (WHERE wal_bytes > 1.03 * (blocks_copied + blocks_recopied) * $page_size + $beside)
  FROM index_mover_history WHERE job = (SELECT max(job) FROM index_mover_history)
SQL
		note "WAL beside 1.03 times the blocks, at most: $most bytes";
		is($too_much || '', '', "under load: the WAL is that of the blocks copied, to $to");
		is($node->safe_psql('postgres', "SELECT status FROM move_indexes('quiet', '$to', method => 'copy', settings => '{\"verify\": true}')"),
			'moved', "under load elsewhere: moved to $to");
		is($node->safe_psql('postgres',
				"SELECT blocks_copied = size_before / $page_size, blocks_recopied <= lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1"),
			't|t', 'under load elsewhere: each block is copied once, but block 0');
	}
	note "blocks copied again in $again of $all moves";
	cmp_ok($again, '>=', $all / 2, 'under load: blocks copied again in most of the moves');
	set_tests($node);
	foreach my $load (@load)
	{
		ok($load->{harness}->pumpable, "under load: $load->{name} went on until the end")
		  or diag ${ $load->{out} };
		# not INT: pgbench ignores that where we were started in the background
		$load->{harness}->signal('TERM');
		eval { $load->{harness}->finish };
		unlike(${ $load->{out} }, qr/ERROR/, "under load: no error in $load->{name}");
	}
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'");
	$node->safe_psql('postgres', $_) foreach map { "ROLLBACK PREPARED '$_'" } split /\n/,
	  $node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts');
	all_right($node, 'zoo', 'after the load', max_keys => 30, within => 5);
}

$node->stop;
command_ok([ 'pg_checksums', '--check', '-D', $node->data_dir ], 'page checksums are valid on disk');

done_testing();
