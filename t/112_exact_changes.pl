# The copy is exact although blocks change at the worst moments: between being read
# and written, in a round, while WAL is removed or names no blocks, before the lock,
# beside a checkpoint; and under load.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::ExactCopy;
use IndexMover::Pages;
use IndexMover::Session;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

start_servers('exact_changes');
my $zoo = 3000;

# ---- blocks that are read past the shared buffers -----------------------------------
if (part('read'))
{
	# a block that has a buffer is taken from there: on disk it is an older one
	if (faults('the lookup for a buffer left out'))
	{
		make_case('btree');
		my ($row) = move_and_change('btree', mutation => 'lookup');
		like($row, qr/^failed\|XX001\|.*differs from the original/, 'without the lookup for a buffer: noticed');
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
		is($out, $mutation ? "failed|XX001\n" : "moved|\n", "$name: what changes meanwhile is copied again, or the compare notices")
			or diag $err;
		set_tests($node);
		verdict_ok($node, 'exact', $name, max_keys => 50);
	}
}

# ---- blocks that change on their way to being copied again -----------------------------
if (part('round'))
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
if (part('wal'))
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
foreach my $record (picked { !/log-special$/ } 'kinds of WAL', grep { part('special') } 'log-truncate', 'log-special',
	'log-special,under-lock')
{
	make_case('btree');
	set_tests($node, test_mutation => $record);
	my $log = -s $node->logfile;
	my $row = $node->safe_psql('postgres',
		"SELECT status, sqlstate, detail FROM move_indexes('exact_i', 'regress_fast', method => 'copy')");
	like($row, qr/^failed\|55000\|.*gave up copying index "exact_i" after 5 starts/, "$record: never a swap, a clean error");
	my $starts = () = slurp_file($node->logfile,
		$log) =~ /starting the copy of index "exact_i" again, because its file was truncated, or changed in a way/g;
	is($starts, 4, "$record: after it was started again");
	set_tests($node);
	is(tablespace_of_index($node, 'exact'), 'exact_i: regress_slow', "$record: not moved");
	files_ok($node, $record);
	verdict_ok($node, 'exact', $record, max_keys => 20);
}

# Once under the lock: it is given back, those who wait for it go on, and the copy is
# made again, with what they have written.
if (part('special'))
{
	my $name = 'started again under the lock';
	make_case('btree');
	set_tests($node, test_mutation => 'log-truncate,under-lock,once,verify-all');
	my $log = -s $node->logfile;
	my $call = held_at($node, 'swap-locked',
		"SELECT status FROM move_indexes('exact_i', 'regress_fast', method => 'copy', settings => '{\"verify\": true}')");
	my $writer = IndexMover::Session->new($node);
	$writer->send('INSERT INTO exact SELECT 20000 + g % 500, 3 FROM generate_series(1, 3000) g');
	poll_until($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $writer->pid, 't',
		"$name: a session waits for the lock");
	let_go($call);
	$writer->answer;
	is($writer->errors, '', "$name: who waits for the lock gets it");
	$writer->end;
	my ($rc, $out, $err) = finish_call($call);
	is($out, "moved\n", "$name: moved, block by block equal under the lock") or diag $err;
	my $text = slurp_file($node->logfile, $log);
	my $starts = () = $text =~ /starting the copy of index "exact_i" again, because its file was truncated, or changed in a way/g;
	is($starts, 1, "$name: and the copy made again");
	cmp_ok($node->safe_psql('postgres', 'SELECT lock_attempts FROM index_mover_history ORDER BY job DESC LIMIT 1'), '>', 1,
		"$name: with another attempt");
	set_tests($node);
	is(tablespace_of_index($node, 'exact'), 'exact_i: regress_fast', "$name: where it was to be");
	verdict_ok($node, 'exact', $name, max_keys => 100);
	files_ok($node, $name);
	leftovers_ok($node, $name, within => 5);
}

# ---- it grows between the last look and the exclusive lock ---------------------------
if (part('grows'))
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
if (part('redo'))
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
	cmp_ok($wal - $once, '>=', 0.85 * 128 * 8192 / $page_size,
		"a checkpoint between log and file: 1 MB logged again ($wal blocks of WAL, $once without)");
}

# ---- under load ----------------------------------------------------------------
if (part('load'))
{
	make_zoo($node, 'zoo', $zoo);
	my $ids = $zoo * 3 / 2;
	# beside it, a table without writers
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
	foreach my $to ((qw(regress_fast regress_slow)) x ($ENV{LOAD_ROUNDS} || 1))
	{
		my $rows = $node->safe_psql('postgres',
			"SELECT status, count(*) FROM move_indexes('zoo', '$to', method => 'copy', settings => '{\"verify\": true}') GROUP BY 1");
		is($rows, 'moved|17', "under load: all indexes moved to $to, block by block equal under the lock")
		  or diag $node->safe_psql('postgres', 'SELECT name, status, message FROM index_mover_history ORDER BY job DESC, name LIMIT 17');
		my $few = $node->safe_psql('postgres',
			"SELECT count(*), count(*) FILTER (WHERE blocks_recopied > 1) FROM index_mover_history WHERE job = (SELECT max(job) FROM "
				. "index_mover_history)");
		$few =~ /^(\d+)\|(\d+)$/ or die $few;
		($all, $again) = ($all + $1, $again + $2);
		# beside the blocks a move logs catalogs, which may be whole pages if they
		# were not changed since the last checkpoint; and a megabyte twice if one began
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
		is($node->safe_psql('postgres',
			"SELECT status FROM move_indexes('quiet', '$to', method => 'copy', settings => '{\"verify\": true}')"),
			'moved', "under load elsewhere: moved to $to");
		is($node->safe_psql('postgres',
				"SELECT blocks_copied = size_before / $page_size, blocks_recopied <= lock_attempts FROM index_mover_history ORDER BY job "
					. "DESC LIMIT 1"),
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
